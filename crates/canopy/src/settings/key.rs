//! The relay's key, and how often it was started: two files that outlive its starts.

use anyhow::{Context, bail};
use canopy_session::{Identity, PublicKey};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What stands before the secret, so that nobody takes it for something that may be shown.
const PREFIX: &str = "canopy-relay-secret:";

/// The identity in a key file, which is made if there is none.
pub(crate) fn load_or_make(path: &Path) -> anyhow::Result<Identity> {
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

/// A relay that a file lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its key.
    pub(crate) key: PublicKey,
    /// Its name; any if none is given.
    pub(crate) name: Option<String>,
}

/// Relays that a file lists, one a line: a key, and a name behind it if only that one is meant. What
/// follows a `#` is not read.
pub(crate) fn parse_listed(text: &str) -> anyhow::Result<Vec<Listed>> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(key) = words.next() else { continue };
        let parsed = key.parse::<canopy_client::RelayKey>();
        let key = parsed.map_err(|error| anyhow::anyhow!("line {number}: {key:?} is {error}"))?;
        let name = words.next().map(str::to_owned);
        if words.next().is_some() {
            bail!("line {number}: write a key and a name, and nothing more");
        }
        all.push(Listed { key: key.to_bytes(), name });
    }
    Ok(all)
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

/// The number of this start of the relay whose key is in `key`, counted in a file beside it. It is
/// on the disk when this returns, so that no two starts have the same, whatever ends them.
pub(super) fn next_life(key: &Path) -> anyhow::Result<u32> {
    let path = beside(key, ".life");
    let shown = path.display();
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u32>().with_context(|| {
            format!("{shown} holds no count of the relay's starts; remove it to count anew")
        })?,
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let life = last.wrapping_add(1);
    write_whole(&path, life).with_context(|| {
        format!("cannot count the relay's start in {shown}; its folder must be writable")
    })?;
    Ok(life)
}

/// Replaces the file at once: there is no moment without a number in it.
fn write_whole(path: &Path, life: u32) -> std::io::Result<()> {
    let fresh = beside(path, ".new");
    let mut file = File::create(&fresh)?;
    writeln!(file, "{life}")?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
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

    #[test]
    fn relays_are_listed_one_a_line() {
        let key = hex(&[7; 32]);
        let listed = parse_listed(&format!("# ours\n{key}\n\n {key} eu-1 # the first\n")).unwrap();
        let names: Vec<_> = listed.iter().map(|one| one.name.as_deref()).collect();
        assert_eq!(names, [None, Some("eu-1")]);
        assert!(listed.iter().all(|one| one.key == [7; 32]));
        let error = |text: &str| format!("{:#}", parse_listed(text).unwrap_err());
        assert!(error("#\nabc").contains("line 2: \"abc\" is"));
        assert!(error(&format!("{key} a b")).contains("line 1"));
    }

    #[test]
    fn every_start_has_a_number_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (key, count) = (folder.path().join("relay.key"), folder.path().join("relay.key.life"));
        assert_eq!([(); 3].map(|()| next_life(&key).unwrap()), [1, 2, 3]);
        // Nothing else is left behind.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&count, u32::MAX.to_string()).unwrap();
        assert_eq!(next_life(&key).unwrap(), 0);
        fs::write(&count, "many").unwrap();
        let error = format!("{:#}", next_life(&key).unwrap_err());
        assert!(error.contains("relay.key.life holds no count") && error.contains("remove it"));
        let error = next_life(&folder.path().join("no/such/relay.key")).unwrap_err();
        assert!(format!("{error:#}").contains("cannot count the relay's start"), "{error:#}");
    }
}
