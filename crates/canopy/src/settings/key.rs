//! The relay's key: a file that outlives its starts.

use anyhow::{Context, bail};
use canopy_session::Identity;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What stands before the secret, so that nobody takes it for something that may be shown.
const PREFIX: &str = "canopy-relay-secret:";

/// The identity in a key file, which is made if there is none.
pub(super) fn load_or_make(path: &Path) -> anyhow::Result<Identity> {
    match load(path)? {
        Some(identity) => Ok(identity),
        None => make(path)
            .with_context(|| format!("cannot make the relay's key file {}", path.display())),
    }
}

/// The identity in a key file, if there is one.
pub(crate) fn load(path: &Path) -> anyhow::Result<Option<Identity>> {
    let shown = path.display();
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).with_context(|| format!("{shown} holds no relay's key")).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the relay's key file {shown}"))
        }
    }
}

fn make(path: &Path) -> anyhow::Result<Identity> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    let mut options = OpenOptions::new();
    let mut file: File = options.write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{PREFIX}{}", hex(&secret))?;
    file.sync_all()?;
    Ok(Identity::new(secret))
}

fn parse(text: &str) -> anyhow::Result<Identity> {
    let digits = text.trim().strip_prefix(PREFIX);
    let bytes = digits.and_then(|digits| digits.parse::<canopy_client::RelayKey>().ok());
    match bytes {
        Some(secret) => Ok(Identity::new(secret.to_bytes())),
        None => {
            bail!("it has one line, {PREFIX} and 64 hexadecimal digits; remove it to get a new key")
        }
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    canopy_client::RelayKey::new(*bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once_and_nobody_else_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.key");
        let made = load_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load_or_make(&path).unwrap().public(), made.public());
        fs::write(&path, "something else").unwrap();
        let error = format!("{:#}", load_or_make(&path).unwrap_err());
        assert!(error.contains("holds no relay's key") && error.contains("remove it"), "{error}");
        let error = load_or_make(&folder.path().join("no/such/relay.key")).unwrap_err();
        assert!(format!("{error:#}").contains("cannot make the relay's key file"));
    }
}
