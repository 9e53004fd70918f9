//! The BPF file system that installations are in.

use super::error::{InstallError, files};
use super::{ENGINE_FOLDER, installations};
use std::ffi::{CStr, CString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// What mounts of ours are called: no other is unmounted.
const MOUNT_NAME: &CStr = c"canopy";
/// What `statfs` says of a BPF file system.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

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

/// Mounts a BPF file system on the folder, unless there is one.
pub(super) fn mount(folder: &Path) -> Result<(), InstallError> {
    let path = c_path(folder)?;
    if is_bpf_fs(&path) {
        // SAFETY: a string that ends in zero.
        if unsafe { libc::access(path.as_ptr(), libc::W_OK) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        return Err(InstallError::Privilege { what: "writing to the engines' folder", error });
    }
    // SAFETY: all are strings that end in zero and outlive the call.
    let result = unsafe {
        let (kind, options) = (c"bpf".as_ptr(), c"mode=0755".as_ptr());
        libc::mount(MOUNT_NAME.as_ptr(), path.as_ptr(), kind, 0, options.cast())
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let _ = fs::remove_dir(folder);
    Err(InstallError::Privilege { what: "mounting a BPF file system", error })
}

pub(super) fn unmount_if_empty(folder: &Path) -> Result<(), InstallError> {
    if installations(folder).is_ok_and(|others| !others.is_empty()) {
        return Ok(());
    }
    let path = c_path(folder)?;
    // SAFETY: a string that ends in zero.
    if is_our_mount(folder) && unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } < 0 {
        let error = io::Error::last_os_error();
        return Err(InstallError::Privilege { what: "unmounting the engines' folder", error });
    }
    // It may be shared with something else.
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Whether a BPF file system is mounted on this very folder, and by [`mount`].
fn is_our_mount(folder: &Path) -> bool {
    let mounts = fs::read("/proc/thread-self/mounts").unwrap_or_default();
    let folder = as_listed(folder);
    mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        words.next() == Some(MOUNT_NAME.to_bytes()) && words.next() == Some(&folder)
    })
}

/// A path as the kernel lists it among its mounts.
fn as_listed(path: &Path) -> Vec<u8> {
    let mut listed = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => listed.extend(format!("\\{byte:03o}").bytes()),
            _ => listed.push(*byte),
        }
    }
    listed
}

fn is_bpf_fs(path: &CString) -> bool {
    // SAFETY: all zeroes is a value of this struct of integers; the path ends in zero.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &mut found) == 0 && found.f_type as i64 == BPF_FS_MAGIC
    }
}

pub(super) fn c_path(path: &Path) -> Result<CString, InstallError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| files(path, "cannot use", io::Error::other(error)))
}
