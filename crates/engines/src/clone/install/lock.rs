//! One at a time installs and removes in a folder.

use super::error::{InstallError, files};
use crate::ENGINE_FOLDER;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long another's installing or removing is waited for, and how often it is looked for.
const LOCK_WAIT: Duration = Duration::from_secs(20);
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// Keeps others from installing in a folder and removing there, as long as it lives. With the folder
/// goes the file that is locked, which only its maker may open.
pub(super) struct Lock {
    file: File,
    path: PathBuf,
    folder: PathBuf,
}

impl Lock {
    /// Makes the folder and locks it. Returns its path without detours too.
    pub(super) fn make(folder: &Path) -> Result<(Lock, PathBuf), InstallError> {
        let started = Instant::now();
        loop {
            let made = fs::create_dir_all(folder).and_then(|()| folder.canonicalize());
            let lock = match made {
                Ok(path) => Lock::take(&path)?.map(|lock| (lock, path)),
                // Whoever had the lock has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(InstallError::Privilege { what: "making the folder", error });
                }
                Err(error) => return Err(files(folder, "cannot make", error)),
            };
            match lock {
                Some((lock, path)) if path.exists() => return Ok((lock, path)),
                _ if started.elapsed() > LOCK_WAIT => {
                    let why = io::Error::other("it is removed again and again");
                    return Err(files(folder, "cannot make", why));
                }
                _ => {}
            }
        }
    }

    /// Locks a folder, by its path without detours. None if it is gone by then.
    pub(super) fn take(folder: &Path) -> Result<Option<Lock>, InstallError> {
        let mut path = folder.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let started = Instant::now();
        while folder.exists() {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = match options.custom_flags(libc::O_NOFOLLOW).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(InstallError::Privilege { what: "locking the folder", error });
                }
                Err(error) => return Err(files(&path, "cannot open", error)),
            };
            match file.try_lock() {
                // Else whoever had the lock has removed its file.
                Ok(()) if is_at(&file, &path) => {
                    return Ok(Some(Lock { file, path, folder: folder.to_owned() }));
                }
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
        Ok(None)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.folder.exists() && is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
            if *self.folder == *ENGINE_FOLDER
                && let Some(parent) = self.folder.parent()
            {
                // It may be shared with something else.
                let _ = fs::remove_dir(parent);
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let there = fs::metadata(path).map(|there| (there.dev(), there.ino()));
    file.metadata().is_ok_and(|file| there.is_ok_and(|there| there == (file.dev(), file.ino())))
}
