//! What is installed, as it is found in a folder.

use super::error::{InstallError, files};
use crate::clone::maps::Maps;
use crate::clone::netlink::Netlink;
use crate::clone::slot::{self, SLOTS};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{SchedClassifier, TcAttachType};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mode of an installation's folder when all is in it.
pub(super) const OPEN: u32 = 0o755;
/// Bytes of a device's alias, without the zero at its end (Linux).
const LONGEST_ALIAS: usize = 254;

/// What is installed on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    pub(crate) folder: PathBuf,
    /// The device's index in its network namespace.
    pub device: u32,
    /// The number of that namespace.
    pub namespace: u64,
    /// The user that may send with it.
    pub owner: u32,
    /// Whether `xdp` is installed beside `tc-bpf`.
    pub xdp: bool,
    /// Whether installing it came to its end. What did not is good for nothing but to be removed.
    pub complete: bool,
}

/// Every installation in `folder`, of all network namespaces.
///
/// # Errors
/// If the folder cannot be read. A folder that is not there holds none.
pub fn installations(folder: &Path) -> io::Result<Vec<Installation>> {
    // Its mount is known by the path without detours.
    let entries = match folder.canonicalize().and_then(fs::read_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(Installation::at(&entry?.path()));
    }
    found.sort_by_key(|installation| (installation.namespace, installation.device));
    Ok(found)
}

impl Installation {
    /// What is in this folder, if it has the name of an installation.
    pub(super) fn at(folder: &Path) -> Option<Installation> {
        let (namespace, device) = folder.file_name()?.to_str()?.split_once('-')?;
        let open = fs::metadata(folder).ok()?.mode() & 0o777 == OPEN;
        Some(Installation {
            folder: folder.to_owned(),
            device: device.parse().ok()?,
            namespace: namespace.parse().ok()?,
            owner: fs::metadata(folder.join("slot-0")).map_or(0, |slot| slot.uid()),
            xdp: folder.join("broadcast").exists(),
            complete: open && folder.join("clone").exists(),
        })
    }

    /// Whether its program runs on the egress of the device with this name. To be asked with the
    /// privileges of installing.
    pub(super) fn is_attached(&self, device: &str) -> bool {
        self.program().is_some_and(|program| runs_on(program, device))
    }

    /// The number of the program that its link attaches.
    pub(super) fn program(&self) -> Option<u32> {
        let link = PinnedLink::from_pin(self.folder.join("clone")).ok()?;
        Some(FdLink::from(link).info().ok()?.program_id())
    }

    /// Whether it belongs to the calling thread's network namespace.
    pub fn is_here(&self) -> bool {
        namespace_number().is_ok_and(|namespace| namespace == self.namespace)
    }

    /// The device's name now and whether it is up, if it is in the calling thread's namespace and
    /// there still.
    pub fn device_now(&self) -> Option<(String, bool)> {
        let here = self.is_here();
        let device = here.then(|| Netlink::open()?.device_at(self.device));
        device?.ok().map(|device| (device.name, device.up))
    }

    /// How many slots it has: as many data threads can send with it at a time.
    pub fn slots(&self) -> usize {
        SLOTS
    }

    /// Copies that the kernel made for the engines at work, and for those that had their slots
    /// before and nobody has since.
    ///
    /// # Errors
    /// For everyone but the owner and root.
    pub fn copies(&self) -> io::Result<u64> {
        slot::copies(Maps::open(&self.folder, self.owner)?.slots.fd())
    }

    /// How many of its slots are in use. None for everyone but the owner and root.
    pub fn slots_in_use(&self) -> Option<usize> {
        let in_use = |number: usize| {
            let slot = File::open(self.folder.join(format!("slot-{number}"))).ok()?;
            // Shared, and only for this moment.
            Some(matches!(slot.try_lock_shared(), Err(TryLockError::WouldBlock)))
        };
        (0..SLOTS).map(in_use).try_fold(0, |sum, in_use| Some(sum + usize::from(in_use?)))
    }

    /// The tap's name.
    pub(crate) fn tap(&self) -> String {
        format!("canopy{}", self.device)
    }

    /// What the tap is marked with: no other device of its name is touched. The same path may be
    /// another file system to another container.
    pub(super) fn tap_alias(&self) -> String {
        let file_system = fs::metadata(self.store()).map_or(0, |store| store.dev());
        let mut alias = format!("canopy engine {file_system} in {}", self.store().display());
        alias.truncate(alias.floor_char_boundary(LONGEST_ALIAS));
        alias
    }

    /// Where it is with others.
    pub(super) fn store(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }
}

/// Whether the program of this number runs on a device's egress.
pub(super) fn runs_on(program: u32, device: &str) -> bool {
    let attached = SchedClassifier::query_tcx(device, TcAttachType::Egress);
    attached.is_ok_and(|(_, programs)| programs.iter().any(|other| other.id() == program))
}

/// The number of the calling thread's network namespace.
pub(super) fn namespace_number() -> Result<u64, InstallError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let metadata = fs::metadata(path).map_err(|error| files(path, "cannot read", error))?;
    Ok(metadata.ino())
}
