//! Installing the kernel programs of a device, and finding what is installed.
//!
//! Installing needs CAP_BPF and CAP_NET_ADMIN; using what is installed needs only the permission
//! that was given with it. Everything hangs on pins in a BPF file system of Canopy's own:
//!
//! ```text
//! /run/canopy/engine/              a BPF file system
//!   <namespace>-<device index>/    closed to others than root until all is in it
//!     clone, broadcast, drops      the links that keep the programs attached
//!     slots, triggers              the maps that user space writes to; of the user that may send
//!     slot-0 … slot-15             locked by whoever uses the slot; of that user too
//! ```

mod error;
mod lock;
mod mount;
mod programs;

pub use error::InstallError;

use super::netlink::{Device, Netlink};
use super::slot::{self, SLOTS};
use super::tap;
use super::trigger::Maps;
use crate::Namespace;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{SchedClassifier, TcAttachType};
use error::{files, kernel, not_removed};
use lock::Lock;
use mount::{mount, unmount_if_empty};
use programs::{attach_broadcast, attach_clone, load, types_in};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The programs, as `cargo xtask bpf` built them.
const PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../../bpf/groupcast.bpf.o");

/// Modes of an installation's folder, while something is missing from it and when all is there.
const CLOSED: u32 = 0o700;
const OPEN: u32 = 0o755;
/// Bytes of a device's alias, without the zero at its end (Linux).
const LONGEST_ALIAS: usize = 254;
/// Where the kernel describes its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

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

/// What to install.
#[derive(Clone, Debug)]
pub struct InstallRequest<'a> {
    /// The name of the device that packets leave by.
    pub device: &'a str,
    /// Where installations are: [`ENGINE_FOLDER`](crate::ENGINE_FOLDER) unless there is a reason.
    pub folder: &'a Path,
    /// The user that may send.
    pub owner: u32,
    /// Whether to install `xdp` too, which needs a tap.
    pub xdp: bool,
}

/// Installs the programs on a device of the calling thread's network namespace.
///
/// # Errors
/// See [`InstallError`]; then nothing is left of it.
pub fn install(request: &InstallRequest<'_>) -> Result<Installation, InstallError> {
    install_programs(request, PROGRAMS, Path::new(KERNEL_TYPES))
}

fn install_programs(
    request: &InstallRequest<'_>,
    programs: &[u8],
    kernel_types: &Path,
) -> Result<Installation, InstallError> {
    let device = ethernet_device(request.device)?;
    let namespace = namespace_number()?;
    let (mut lock, store) = Lock::make(request.folder)?;
    mount(&store)?;
    lock.follow()?;
    let folder = store.join(format!("{namespace}-{}", device.index));
    if let Some(present) = Installation::at(&folder) {
        if present.complete && present.is_attached(&device.name) {
            return Err(InstallError::Present(device.name));
        }
        // Left of an installing that was ended, or of a device that is gone, whose namespace had the
        // number that this one has now.
        present.clear_away()?;
    }
    let installation = Installation {
        folder,
        device: device.index,
        namespace,
        owner: request.owner,
        xdp: request.xdp,
        complete: true,
    };
    let installed = set_up(&installation, &device, programs, kernel_types);
    if let Err(error) = installed {
        // What is there already goes again; the first error is the one to tell.
        let _ = installation.clear_away().and_then(|()| unmount_if_empty(&store));
        return Err(error);
    }
    Ok(installation)
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
    fn at(folder: &Path) -> Option<Installation> {
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
    fn is_attached(&self, device: &str) -> bool {
        let program = PinnedLink::from_pin(self.folder.join("clone"))
            .and_then(|link| FdLink::from(link).info())
            .map(|link| link.program_id());
        let attached = SchedClassifier::query_tcx(device, TcAttachType::Egress);
        let attached = attached.map(|(_, programs)| programs).unwrap_or_default();
        program.is_ok_and(|program| attached.iter().any(|other| other.id() == program))
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
        slot::copies(Maps::open(self)?.slots.fd())
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
    fn tap_alias(&self) -> String {
        let file_system = fs::metadata(self.store()).map_or(0, |store| store.dev());
        let mut alias = format!("canopy engine {file_system} in {}", self.store().display());
        alias.truncate(alias.floor_char_boundary(LONGEST_ALIAS));
        alias
    }

    /// Removes the programs, maps and tap, and the folder with the last installation. Whoever
    /// sends with them falls back on plain sends.
    ///
    /// # Errors
    /// If something cannot be removed. Without the privileges of installing nothing is.
    pub fn remove(&self) -> Result<(), InstallError> {
        let Some(_lock) = Lock::take(self.store())? else { return Ok(()) };
        self.clear_away()?;
        unmount_if_empty(self.store())
    }

    /// Where it is with others.
    fn store(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    fn clear_away(&self) -> Result<(), InstallError> {
        if !self.is_here()
            // The tap is there.
            && let Some(namespace) = Namespace::numbered(self.namespace)
        {
            let removed = namespace.run(|| self.clear_away_here());
            return removed
                .map_err(|error| files(&self.folder, "cannot enter the namespace of", error))?;
        }
        self.clear_away_here()
    }

    fn clear_away_here(&self) -> Result<(), InstallError> {
        if !self.folder.exists() {
            return Ok(());
        }
        // Nothing of it is to be used from now on, and whoever may not remove it fails here.
        let set_mode = |mode| fs::set_permissions(&self.folder, fs::Permissions::from_mode(mode));
        set_mode(CLOSED).map_err(|error| not_removed(&self.folder, error))?;
        if self.is_here()
            && let Ok(mut netlink) = Netlink::open()
            && let Ok(tap) = netlink.device_named(&self.tap())
            && tap.alias == self.tap_alias()
            && let Err(error) = netlink.delete(tap.index)
        {
            let _ = set_mode(if self.complete { OPEN } else { CLOSED });
            return Err(InstallError::Privilege { what: "removing the tap", error });
        }
        fs::remove_dir_all(&self.folder).map_err(|error| not_removed(&self.folder, error))
    }
}

fn set_up(
    installation: &Installation,
    device: &Device,
    programs: &[u8],
    kernel_types: &Path,
) -> Result<(), InstallError> {
    let folder = &installation.folder;
    let made = fs::DirBuilder::new().mode(CLOSED).create(folder);
    made.map_err(|error| files(folder, "cannot make", error))?;
    for number in 0..SLOTS {
        let slot = folder.join(format!("slot-{number}"));
        fs::create_dir(&slot).map_err(|error| files(&slot, "cannot make", error))?;
    }
    let tap_index = if installation.xdp { make_tap(installation, device)? } else { 0 };
    let types = kernel("reading the kernel's types", types_in(kernel_types))?;
    let mut programs = load(programs, &types, installation, tap_index)?;
    attach_clone(&mut programs, device, folder)?;
    if installation.xdp {
        attach_broadcast(&mut programs, device, tap_index, &types, folder)?;
    }
    for map in ["slots", "triggers"] {
        let pinned = programs.map(map).map(|pin| pin.pin(folder.join(map)));
        kernel("pinning the maps", pinned.unwrap_or(Ok(())))?;
    }
    hand_over(installation)
}

fn make_tap(installation: &Installation, device: &Device) -> Result<u32, InstallError> {
    let refused = |error| InstallError::Privilege { what: "making a tap", error };
    let name = installation.tap();
    let mut netlink = Netlink::open().map_err(refused)?;
    if netlink.device_named(&name).is_ok() {
        return Err(InstallError::Device(format!(
            "there is a device {name} already, which is what the tap of {} would be called; rename \
             or remove it, remove what is installed in another folder, or install tc-bpf alone",
            device.name
        )));
    }
    let queue = tap::open(&name).map_err(refused)?;
    // Or every new device would announce itself to routers that are not there.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    let tap = netlink.device_named(&name).map_err(refused)?;
    netlink.bring_up(tap.index, device.mtu, &installation.tap_alias()).map_err(refused)?;
    // Until now it ends with this process, so there is never one without its mark.
    tap::hand_over(&queue, installation.owner).map_err(refused)?;
    Ok(tap.index)
}

/// Lets the owner, and nobody else, use what was installed.
fn hand_over(installation: &Installation) -> Result<(), InstallError> {
    let owner = Some(installation.owner);
    let give = |path: &Path| {
        chown(path, owner, None).map_err(|error| files(path, "cannot hand over", error))
    };
    for number in 0..SLOTS {
        let slot = installation.folder.join(format!("slot-{number}"));
        give(&slot)?;
        // Whoever may open it may lock it.
        fs::set_permissions(&slot, fs::Permissions::from_mode(0o700))
            .map_err(|error| files(&slot, "cannot hand over", error))?;
    }
    for map in ["slots", "triggers"] {
        give(&installation.folder.join(map))?;
    }
    let folder = &installation.folder;
    fs::set_permissions(folder, fs::Permissions::from_mode(OPEN))
        .map_err(|error| files(folder, "cannot hand over", error))
}

fn ethernet_device(name: &str) -> Result<Device, InstallError> {
    let device = Netlink::open().and_then(|mut netlink| netlink.device_named(name));
    let device = device.map_err(|error| {
        InstallError::Device(format!("there is no device {name} here ({error}); see `ip link`"))
    })?;
    if device.ethernet {
        return Ok(device);
    }
    let why = format!("{name} is not an Ethernet device; the clone engines need one");
    Err(InstallError::Device(why))
}

/// The number of the calling thread's network namespace.
fn namespace_number() -> Result<u64, InstallError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let metadata = fs::metadata(path).map_err(|error| files(path, "cannot read", error))?;
    Ok(metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::bed::Bed;

    /// Installs where it must fail, leaving nothing.
    fn refusal(bed: &Bed, programs: &[u8], types: &str) -> InstallError {
        let folder = bed.folder();
        let install = || install_programs(&bed.request(&folder), programs, Path::new(types));
        let error = bed.near.run(install).unwrap().unwrap_err();
        assert!(!folder.exists(), "nothing is left");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(folder.to_str().unwrap()), "nothing is mounted");
        let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(!bed.near.run(devices).unwrap().contains("canopy"), "no tap is left");
        error
    }

    /// Where the object has the section with this name.
    fn section(object: &[u8], name: &str) -> usize {
        let number = |at: usize, len: usize| {
            let mut bytes = [0; 8];
            bytes[..len].copy_from_slice(&object[at..at + len]);
            u64::from_le_bytes(bytes) as usize
        };
        let header = |index: usize| number(0x28, 8) + index * 0x40;
        let names = number(header(number(0x3e, 2)) + 0x18, 8);
        let is_named =
            |at: usize| object[names + number(at, 4)..].starts_with(format!("{name}\0").as_bytes());
        let found = (0..number(0x3c, 2)).map(header).find(|at| is_named(*at)).unwrap();
        number(found + 0x18, 8)
    }

    #[test]
    fn a_program_that_the_verifier_rejects_leaves_its_log_and_nothing_else() {
        let Some(bed) = Bed::new() else { return };
        for (section_name, program) in
            [("classifier", "clone_to_members"), ("xdp", "broadcast_frame")]
        {
            let mut programs = PROGRAMS.to_vec();
            let start = section(&programs, section_name);
            // r0 = *(u64 *)(r10 + 8): beyond the stack.
            programs[start..start + 8].copy_from_slice(&[0x79, 0xa0, 8, 0, 0, 0, 0, 0]);
            match refusal(&bed, &programs, KERNEL_TYPES) {
                InstallError::Rejected { program: rejected, log } => {
                    assert_eq!(rejected, program);
                    assert!(log.contains("invalid read from stack"), "{log}");
                }
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_kernel_that_does_not_describe_its_types_is_named() {
        let Some(bed) = Bed::new() else { return };
        let error = refusal(&bed, PROGRAMS, "/nowhere/btf/vmlinux");
        let text = error.to_string();
        assert!(matches!(error, InstallError::Kernel { .. }), "{text}");
        assert!(text.contains("/nowhere/btf/vmlinux") && text.contains("Linux 6.6"), "{text}");
    }
}
