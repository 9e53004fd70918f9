//! The BPF file system that installations are in.

use super::error::InstallError;
use super::installation::installations;
use rustix::fs::{Access, access, statfs};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What mounts of ours are called: no other is unmounted.
const MOUNT_NAME: &CStr = c"canopy";
/// What `statfs` says of a BPF file system.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Mounts a BPF file system on the folder, unless there is one.
pub(super) fn mount(folder: &Path) -> Result<(), InstallError> {
    if is_bpf_fs(folder) {
        return access(folder, Access::WRITE_OK).map_err(|error| InstallError::Privilege {
            what: "writing to the engines' folder",
            error: error.into(),
        });
    }
    let mounted =
        rustix::mount::mount(MOUNT_NAME, folder, "bpf", MountFlags::empty(), c"mode=0755");
    mounted.map_err(|error| InstallError::Privilege {
        what: "mounting a BPF file system",
        error: error.into(),
    })
}

pub(super) fn unmount_if_empty(folder: &Path) -> Result<(), InstallError> {
    let is_empty = installations(folder).map_or(true, |others| others.is_empty());
    if !is_empty || !is_our_mount(folder) {
        return Ok(());
    }
    unmount(folder, UnmountFlags::DETACH).map_err(|error| InstallError::Privilege {
        what: "unmounting the engines' folder",
        error: error.into(),
    })
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

fn is_bpf_fs(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type == BPF_FS_MAGIC)
}
