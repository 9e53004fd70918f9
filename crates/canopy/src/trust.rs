//! The trust file: whose tokens a relay takes, and which no more. A running relay reads it again
//! when it changes.

use anyhow::{Context, anyhow, bail};
use canopy_node::{Health, RelayWatch};
use canopy_relay::Trust;
use canopy_token::{KeySet, PublicKey, Revocations, UnixTime};
use serde::Deserialize;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the file is looked at: a revocation takes this long, and one look, to reach the relay.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// It is promised within a second (SECURITY.md): most of that is left for a busy machine.
const _: () = assert!(LOOK_EVERY.as_millis() <= 1000 / 4);
/// The most tokens that a file revokes.
const MAX_REVOKED: usize = 100_000;

/// What stands in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// Public keys, `k4.public.…`.
    #[serde(default)]
    keys: Vec<String>,
    /// What those have delegated to others, as `canopy token delegate` prints it.
    #[serde(default)]
    delegations: Vec<String>,
    #[serde(default)]
    revoked: Vec<Revoked>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoked {
    id: String,
    expires: UnixTime,
}

/// Reads a trust file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Trust> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| {
        format!("cannot read the trust file {shown}; it names the keys whose tokens are taken")
    })?;
    parse(&text).with_context(|| format!("the trust file {shown} cannot be used"))
}

fn parse(text: &str) -> anyhow::Result<Trust> {
    let file: Content = toml::from_str(text).map_err(|error| {
        anyhow!(
            "{}; it has keys = [\"k4.public.…\"], and may have delegations = [\"v4.public.…\"] and \
             tables [[revoked]] with id and expires",
            error.to_string().trim_end()
        )
    })?;
    if file.keys.is_empty() {
        bail!("it names no keys, so nobody could join; add keys = [\"k4.public.…\"]");
    }
    let key = |(number, text): (usize, &String)| {
        text.parse::<PublicKey>().map_err(|error| anyhow!("keys, number {number}: {error}"))
    };
    let keys: Vec<PublicKey> = (1..).zip(&file.keys).map(key).collect::<Result<_, _>>()?;
    let delegations: Vec<&str> = file.delegations.iter().map(String::as_str).collect();
    let keys = KeySet::new(keys, &delegations, now())?;
    let mut revoked = Revocations::new(MAX_REVOKED);
    for Revoked { id, expires } in &file.revoked {
        revoked.add(id, *expires, now())?;
    }
    Ok(Trust { keys, revoked })
}

/// Trust in nobody: whoever comes is refused.
pub(crate) fn no_trust() -> anyhow::Result<Trust> {
    of_keys("")
}

/// Trust in these public keys, one a line.
///
/// # Errors
/// One of them is none.
pub(crate) fn of_keys(text: &str) -> anyhow::Result<Trust> {
    let keys = text.split_whitespace().map(str::parse::<PublicKey>);
    let keys = keys.collect::<Result<Vec<_>, _>>().map_err(|error| anyhow!("{error}"))?;
    let keys = KeySet::new(keys, &[], now())?;
    Ok(Trust { keys, revoked: Revocations::new(MAX_REVOKED) })
}

/// Adds a revocation to a trust file, which is replaced in one step. False if it was there already.
/// If there are several at once, each waits for the one before.
pub(crate) fn revoke(path: &Path, id: &str, expires: UnixTime) -> anyhow::Result<bool> {
    // A link stays one.
    let path = &fs::canonicalize(path)
        .with_context(|| format!("cannot find the trust file {}", path.display()))?;
    let shown = path.display();
    let _lock = lock(path).with_context(|| format!("cannot lock the trust file {shown}"))?;
    if read(path)?.revoked.contains(id) {
        return Ok(false);
    }
    let before = fs::read_to_string(path)?;
    let id = toml::Value::from(id);
    let after =
        format!("{}\n\n[[revoked]]\nid = {id}\nexpires = \"{expires}\"\n", before.trim_end());
    parse(&after).with_context(|| format!("nothing was added to {shown}"))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(after.as_bytes())?;
        file.as_file().set_permissions(fs::metadata(path)?.permissions())?;
        file.as_file().sync_all()?;
        Ok(file.persist(path)?)
    });
    written.with_context(|| format!("cannot write the trust file {shown}"))?;
    Ok(true)
}

/// Locks the file that is at a path; it may have been replaced while its lock was waited for.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::open(path)?;
        file.lock()?;
        if file.metadata()?.ino() == fs::metadata(path)?.ino() {
            return Ok(file);
        }
    }
}

fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(since.as_secs())
}

/// Which file it is that says whom a relay trusts: it can become another.
#[derive(Clone, Debug)]
pub(crate) struct TrustPath(Arc<Mutex<PathBuf>>);

impl TrustPath {
    pub(crate) fn new(path: PathBuf) -> TrustPath {
        TrustPath(Arc::new(Mutex::new(path)))
    }

    pub(crate) fn get(&self) -> PathBuf {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, path: PathBuf) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = path;
    }
}

/// Keeps a relay's trust as the file says, until the relay stops.
pub(crate) fn watch(path: TrustPath, relay: RelayWatch) -> anyhow::Result<()> {
    let mut watched = Watched::new(path, relay);
    let run = move || {
        while watched.relay.health() != Health::Draining {
            std::thread::sleep(LOOK_EVERY);
            watched.look();
        }
    };
    std::thread::Builder::new().name("trust".to_owned()).spawn(run)?;
    Ok(())
}

/// A relay, and what it knows of its trust file.
struct Watched {
    path: TrustPath,
    relay: RelayWatch,
    seen: State,
    /// What the system's clock showed for the relay's zero.
    origin: UnixTime,
}

impl Watched {
    fn new(path: TrustPath, relay: RelayWatch) -> Watched {
        let (seen, origin) = (State::of(&path.get()), relay.origin());
        Watched { path, relay, seen, origin }
    }

    /// Reads the file if it has changed. Returns whether all data threads have taken it.
    fn look(&mut self) -> bool {
        let path = self.path.get();
        let state = State::of(&path);
        // Whoever sets the clock changes which tokens have ended.
        let clock_was_set = self.relay.origin().0.abs_diff(self.origin.0) > 1;
        if self.seen == state && !clock_was_set {
            return false;
        }
        self.seen = state;
        match read(&path) {
            Ok(trust) => {
                self.origin = self.relay.origin();
                let revoked = trust.revoked.len();
                let taken = self.relay.trust(Arc::new(trust));
                match &taken {
                    Ok(()) => tracing::info!(revoked, "took the trust file {}", path.display()),
                    Err(error) => tracing::error!("the trust file has changed, and {error}"),
                }
                taken.is_ok()
            }
            Err(error) => {
                tracing::error!("{error:#}; going on with what it said before");
                false
            }
        }
    }
}

/// A trust file that is read again when it has changed.
pub(crate) struct TrustFile {
    path: PathBuf,
    trust: Arc<Trust>,
    seen: State,
    looked: Instant,
}

impl TrustFile {
    /// Reads it.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<TrustFile> {
        let seen = State::of(&path);
        let trust = Arc::new(read(&path)?);
        Ok(TrustFile { path, trust, seen, looked: Instant::now() })
    }

    /// What it says, or said before it became unreadable.
    pub(crate) fn get(&mut self) -> Arc<Trust> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let state = State::of(&self.path);
            if state != self.seen {
                self.seen = state;
                match read(&self.path) {
                    Ok(trust) => self.trust = Arc::new(trust),
                    Err(error) => tracing::error!("{error:#}; going on with what it said before"),
                }
            }
        }
        self.trust.clone()
    }
}

/// What tells that a file has changed.
#[derive(PartialEq, Eq)]
struct State(Option<(u64, i64, i64, u64)>);

impl State {
    fn of(path: &Path) -> State {
        let of = |file: Metadata| (file.ino(), file.mtime(), file.mtime_nsec(), file.len());
        State(fs::metadata(path).ok().map(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_node::{Command, NodeConfig, RunningRelay};
    use canopy_token::SigningKey;

    fn key() -> String {
        SigningKey::from_seed([1; 32]).public().to_string()
    }

    #[test]
    fn a_revocation_is_added_once_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trust.toml");
        fs::write(&path, format!("# ours\nkeys = [{:?}]", key())).unwrap();
        let expires = now().after(3600);
        assert!(revoke(&path, "player \"17\"", expires).unwrap());
        assert!(!revoke(&path, "player \"17\"", expires).unwrap());
        assert!(revoke(&path, "another", expires).unwrap());
        let trust = read(&path).unwrap();
        assert!(trust.revoked.contains("player \"17\"") && trust.revoked.contains("another"));
        assert_eq!(trust.revoked.len(), 2);
        assert!(fs::read_to_string(&path).unwrap().starts_with("# ours\n"));
    }

    #[test]
    fn one_look_takes_a_revocation_to_all_data_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trust.toml");
        fs::write(&path, format!("keys = [{:?}]", key())).unwrap();
        let trust = Some(Arc::new(read(&path).unwrap()));
        let config = NodeConfig { trust, threads: 2, ..NodeConfig::loopback() };
        let relay = RunningRelay::start(&config).unwrap();
        let mut watched = Watched::new(TrustPath::new(path.clone()), relay.watch());
        assert!(!watched.look(), "nothing has changed");
        assert!(revoke(&path, "one", now().after(3600)).unwrap());
        assert!(watched.look());
        assert!(!watched.look(), "it has taken that already");
        relay.watch().command(Command::Stop);
        relay.join().unwrap();
        assert!(revoke(&path, "two", now().after(3600)).unwrap());
        assert!(!watched.look(), "nobody takes it any more");
    }

    #[test]
    fn revocations_at_once_are_all_kept_and_a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("trust.toml"), folder.path().join("link"));
        fs::write(&path, format!("keys = [{:?}]", key())).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let expires = now().after(3600);
        std::thread::scope(|scope| {
            for number in 0..16 {
                let path = if number % 2 == 0 { &path } else { &link };
                scope.spawn(move || assert!(revoke(path, &number.to_string(), expires).unwrap()));
            }
        });
        assert_eq!(read(&path).unwrap().revoked.len(), 16);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn every_mistake_says_where_it_is_and_what_to_write() {
        let good = key();
        for (text, words) in [
            (String::new(), "it names no keys"),
            ("keys = [\"k4.secret.x\"]".to_owned(), "keys, number 1: no k4.public key"),
            (format!("keys = [{good:?}]\ndelegations = [\"x\"]"), "delegation 1"),
            (format!("keys = [{good:?}]\nrevokd = []"), "unknown field"),
            (format!("keys = [{good:?}]\n[[revoked]]\nid = \"x\""), "missing field `expires`"),
            (
                format!("keys = [{good:?}]\n[[revoked]]\nid = \"x\"\nexpires = \"soon\""),
                "write it like 2026-",
            ),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
