//! Secrets in the controller's folder: files that only their owner may read.

use anyhow::{Context, anyhow, bail};
use canopy_token::SigningKey;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The file of the key that signs the tokens of members.
const ISSUER: &str = "issuer.key";

/// The key that signs the tokens of members, from the controller's folder; a new one if there is
/// none. Relays are told to trust it.
///
/// # Errors
/// The file cannot be read or written, others may read it, or it holds no key.
pub(crate) fn issuer_key(folder: &Path) -> anyhow::Result<SigningKey> {
    let text = secret(folder, ISSUER, |seed| SigningKey::from_seed(seed).to_secret_text())?;
    let shown = folder.join(ISSUER);
    text.parse().map_err(|error| {
        anyhow!("{}: {error}; restore it from a copy, or remove it for a new one", shown.display())
    })
}

/// The secret in a file; a new one of 32 random bytes if there is none.
///
/// # Errors
/// The file cannot be read or written, or others may read it.
pub(super) fn secret(
    folder: &Path,
    name: &str,
    text_of: impl FnOnce([u8; 32]) -> String,
) -> anyhow::Result<String> {
    let path = folder.join(name);
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match new {
        Ok(mut file) => {
            let mut bytes = [0; 32];
            getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random numbers: {error}"))?;
            let text = text_of(bytes);
            let written = writeln!(file, "{text}").and_then(|()| file.sync_all());
            written.with_context(|| format!("cannot write {}", path.display()))?;
            Ok(text)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read(folder, name),
        Err(error) => Err(error).with_context(|| {
            format!("cannot write {}; see whether the folder can be written to", path.display())
        }),
    }
}

/// The secret in a file.
///
/// # Errors
/// There is none, or others may read it.
pub(super) fn read(folder: &Path, name: &str) -> anyhow::Result<String> {
    let path = folder.join(name);
    let shown = path.display();
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read {shown}; name the controller's folder"))?;
    if fs::metadata(&path)?.permissions().mode() & 0o077 != 0 {
        bail!("others than its owner may read {shown}; chmod 600 it, or remove it for a new one");
    }
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = issuer_key(folder.path()).unwrap();
        assert_eq!(issuer_key(folder.path()).unwrap().public(), made.public());
        let path = folder.path().join(ISSUER);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = issuer_key(folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "nothing").unwrap();
        let error = issuer_key(folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("no k4.secret key"), "{error}");
    }
}
