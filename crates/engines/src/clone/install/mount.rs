//! The BPF file system that installations are in.

use super::error::{InstallError, files};
use super::installations;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What mounts of ours are called: no other is unmounted.
const MOUNT_NAME: &CStr = c"canopy";
/// What `statfs` says of a BPF file system.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

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
