//! The secret that the API asks its callers for.

use anyhow::{Context, anyhow, bail};
use canopy_session::derive;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The file in the controller's folder.
pub(crate) const FILE: &str = "api.secret";
/// The fewest characters of a secret that somebody has chosen.
const FEWEST: usize = 16;

/// Whoever knows it may do everything.
pub(crate) struct ApiSecret(String);

impl ApiSecret {
    /// The secret in a controller's folder; a new one if there is none.
    ///
    /// # Errors
    /// The file cannot be read or written, or others may read it, or it is too short.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<ApiSecret> {
        let path = folder.join(FILE);
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match new {
            Ok(mut file) => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes)
                    .map_err(|error| anyhow!("no random numbers: {error}"))?;
                let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                let written = writeln!(file, "{secret}").and_then(|()| file.sync_all());
                written.with_context(|| format!("cannot write {}", path.display()))?;
                Ok(ApiSecret(secret))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => ApiSecret::read(folder),
            Err(error) => Err(error).with_context(|| {
                format!("cannot write {}; see whether the folder can be written to", path.display())
            }),
        }
    }

    /// The secret in a controller's folder.
    ///
    /// # Errors
    /// There is none, others may read it, or it is too short.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<ApiSecret> {
        let path = folder.join(FILE);
        let shown = path.display();
        let text = fs::read_to_string(&path).with_context(|| {
            format!("cannot read {shown}; name the controller's folder, or set CANOPY_API_SECRET")
        })?;
        let mode = fs::metadata(&path)?.permissions().mode();
        if mode & 0o077 != 0 {
            bail!(
                "others than its owner may read {shown}; chmod 600 it, or remove it for a new one"
            );
        }
        let secret = text.trim();
        if secret.len() < FEWEST {
            bail!("{shown} has fewer than {FEWEST} characters; remove it for a new one");
        }
        Ok(ApiSecret(secret.to_owned()))
    }

    /// This text as a secret.
    pub(crate) fn new(text: &str) -> ApiSecret {
        ApiSecret(text.trim().to_owned())
    }

    /// Whether somebody knows it. How long that takes does not tell how much they have guessed.
    pub(super) fn is(&self, given: &str) -> bool {
        // Digests: which byte differs first says nothing about the secret.
        derive(self.0.as_bytes(), given.as_bytes()) == derive(self.0.as_bytes(), self.0.as_bytes())
    }

    /// Its text, for whoever asks the API.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = ApiSecret::open(folder.path()).unwrap();
        assert_eq!(made.text().len(), 64);
        let again = ApiSecret::open(folder.path()).unwrap();
        assert!(again.is(made.text()) && !again.is("something else") && !again.is(""));
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = ApiSecret::read(folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_secret_that_is_missing_or_short_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = |folder: &Path| format!("{:#}", ApiSecret::read(folder).map(drop).unwrap_err());
        assert!(error(folder.path()).contains("CANOPY_API_SECRET"));
        let path = folder.path().join(FILE);
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        writeln!(file, "short").unwrap();
        assert!(error(folder.path()).contains("fewer than 16"));
    }
}
