//! The secret that the API asks its callers for.

use super::files;
use anyhow::{Context, bail};
use canopy_session::derive;
use std::path::Path;

/// The file in the controller's folder.
const FILE: &str = "api.secret";
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
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        checked(folder, files::secret(folder, FILE, hex)?)
    }

    /// The secret in a controller's folder.
    ///
    /// # Errors
    /// There is none, others may read it, or it is too short.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<ApiSecret> {
        let text = files::read(folder, FILE).context(
            "the controller's API asks for a secret; CANOPY_API_SECRET can have it, too",
        )?;
        checked(folder, text)
    }

    /// This text as a secret.
    pub(crate) fn new(text: &str) -> ApiSecret {
        ApiSecret(text.trim().to_owned())
    }

    /// Whether somebody knows it. How long that takes does not tell how much they have guessed.
    pub(crate) fn is(&self, given: &str) -> bool {
        // Digests: which byte differs first says nothing about the secret.
        derive(self.0.as_bytes(), given.as_bytes()) == derive(self.0.as_bytes(), self.0.as_bytes())
    }

    /// Its text, for whoever asks the API.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

fn checked(folder: &Path, secret: String) -> anyhow::Result<ApiSecret> {
    if secret.len() < FEWEST {
        let shown = folder.join(FILE);
        bail!("{} has fewer than {FEWEST} characters; remove it for a new one", shown.display());
    }
    Ok(ApiSecret(secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

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
        let error = format!("{:#}", ApiSecret::read(folder.path()).map(drop).unwrap_err());
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
