//! One at a time installs and removes in a folder.
//!
//! What is locked is a folder `lock` inside it, which only its maker may open. Beside the folder
//! would be no better place: the folder may be a mount point whose parent takes no files, such as
//! `/sys/fs/bpf`. A file would not do either, because a BPF file system holds none.

use super::error::{InstallError, files, is_root};
use super::installation::installations;
use crate::folder::ENGINE_FOLDER;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait while somebody else installs or removes, and how often to look.
const LOCK_WAIT: Duration = Duration::from_secs(20);
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// Keeps others from installing in a folder and from removing there, for as long as it lives.
///
/// Mounting hides what is in the folder, and unmounting shows it again. So whoever has mounted
/// locks again what is there now ([`Lock::follow`]), and holds both: those who came before the mount
/// wait for the one, those who come after it for the other.
pub(super) struct Lock {
    held: Vec<File>,
    folder: PathBuf,
}

impl Lock {
    /// Makes the folder and locks it. Also returns its path without symbolic links.
    pub(super) fn make(folder: &Path) -> Result<(Lock, PathBuf), InstallError> {
        let started = Instant::now();
        loop {
            let made = fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
            let lock = match made {
                Ok(path) => Lock::take(&path)?.map(|lock| (lock, path)),
                // Whoever had the lock has just removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(refused("making the folder", folder, error)),
            };
            match lock {
                Some(locked) => return Ok(locked),
                None if started.elapsed() > LOCK_WAIT => {
                    let why = io::Error::other("it is removed again and again");
                    return Err(files(folder, "cannot make", why));
                }
                None => {}
            }
        }
    }

    /// Locks a folder, given by its path without symbolic links. None if it is gone by then.
    pub(super) fn take(folder: &Path) -> Result<Option<Lock>, InstallError> {
        let mut lock = Lock { held: Vec::new(), folder: folder.to_owned() };
        Ok(lock.follow()?.then_some(lock))
    }

    /// Locks what the folder shows now. Returns false if the folder is gone.
    pub(super) fn follow(&mut self) -> Result<bool, InstallError> {
        let path = self.path();
        let started = Instant::now();
        while self.folder.exists() {
            let file = match open(&path) {
                Ok(file) => file,
                // Whoever had the lock has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(refused("locking the folder", &path, error)),
            };
            if self.held.iter().any(|held| is_same(held, &file)) {
                return Ok(true);
            }
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => {
                    self.held.push(file);
                    return Ok(true);
                }
                // Whoever had it has removed it, or has mounted something over it.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_WAIT => {
                    thread::sleep(LOCK_EVERY);
                }
                Err(error) => {
                    let error = io::Error::from(error);
                    let what = "somebody else is installing or removing there; cannot lock";
                    return Err(files(&path, what, error));
                }
            }
        }
        Ok(false)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Removes the lock and the folder if there is nothing else in it, and nobody else waits to use
    /// it.
    fn clear_away(&self) -> io::Result<()> {
        if !installations(&self.folder)?.is_empty() {
            return Ok(());
        }
        let path = self.path();
        let file = File::open(&path)?;
        // After unmounting, what is there now may be somebody else's.
        let is_ours = self.held.iter().any(|held| is_same(held, &file));
        if !is_ours && file.try_lock().is_err() || !is_at(&file, &path) {
            return Ok(());
        }
        fs::remove_dir(&path)?;
        fs::remove_dir(&self.folder)?;
        if *self.folder == *ENGINE_FOLDER
            && let Some(parent) = self.folder.parent()
        {
            fs::remove_dir(parent)?;
        }
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A folder that is shared with something else, or is a mount point, stays.
        let _ = self.clear_away();
    }
}

/// Opens the folder that is locked, which it makes if there is none.
fn open(path: &Path) -> io::Result<File> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags).open(path)
}

/// What the system refuses to root is no matter of privileges.
fn refused(what: &'static str, path: &Path, error: io::Error) -> InstallError {
    if error.kind() == io::ErrorKind::PermissionDenied && !is_root() {
        return InstallError::Privilege { what, error };
    }
    let what = format!("{what} failed; choose another with --folder:");
    files(path, &what, error)
}

fn is_same(one: &File, other: &File) -> bool {
    let id = |file: &File| file.metadata().map(|file| (file.dev(), file.ino())).ok();
    id(one).is_some() && id(one) == id(other)
}

fn is_at(file: &File, path: &Path) -> bool {
    File::open(path).is_ok_and(|there| is_same(file, &there))
}
