//! Installing the kernel programs of a device, and finding what is installed.
//!
//! Installing needs CAP_BPF and CAP_NET_ADMIN; using what is installed needs only the permission
//! that was given with it. Everything hangs on pins in a BPF file system of Canopy's own:
//!
//! ```text
//! /run/canopy/engine/              a BPF file system
//!   <namespace>-<device index>/    of the user that may send
//!     slots, triggers              the maps that user space writes to
//!     clone, broadcast, drops      the links that keep the programs attached
//!     slot-0 … slot-15             locked by whoever uses the slot
//! ```

use super::netlink::{Device, Netlink};
use super::slot::{self, CHUNK, SLOTS};
use super::tap;
use super::trigger::Maps;
use crate::Namespace;
use aya::maps::xdp::DevMap;
use aya::maps::{ArrayOfMaps, Map, MapData, MapError};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{
    BtfTracePoint, LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode,
};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use aya_obj::generated::{bpf_devmap_val, bpf_map_type};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The programs, as `cargo xtask bpf` built them.
const PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../bpf/groupcast.bpf.o");
/// Where installations are, unless another folder is asked for.
pub const ENGINE_FOLDER: &str = "/run/canopy/engine";

/// Where the kernel describes its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// What mounts of ours are called: no other is unmounted.
const MOUNT_NAME: &CStr = c"canopy";
/// What `statfs` says of a BPF file system.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

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
}

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// There is no such device, or it is not one that packets can be cloned on.
    #[error("{0}")]
    Device(String),
    /// A capability is missing.
    #[error(
        "{what} was refused ({error}); installing and removing engines needs CAP_BPF, \
         CAP_NET_ADMIN, CAP_PERFMON and, to mount their folder, CAP_SYS_ADMIN: run it as root"
    )]
    Privilege {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The kernel lacks something.
    #[error("{what}: {error}; the clone engines need Linux 6.6 with BPF and BTF")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: String,
    },
    /// The kernel does not take a program.
    #[error("the kernel's verifier rejects the program {program}:\n{log}")]
    Rejected {
        /// Which.
        program: String,
        /// The verifier's log.
        log: String,
    },
    /// The device has an installation already.
    #[error(
        "the engines are installed on {0} already; remove them first: canopy engine remove --device {0}"
    )]
    Present(String),
    /// Something about the files.
    #[error("{what}: {error}")]
    Files {
        /// What was tried.
        what: String,
        /// What the system said.
        error: io::Error,
    },
}

/// What to install.
#[derive(Clone, Debug)]
pub struct InstallRequest<'a> {
    /// The name of the device that packets leave by.
    pub device: &'a str,
    /// Where installations are: [`ENGINE_FOLDER`] unless there is a reason.
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
    mount(request.folder)?;
    let folder = request.folder.join(format!("{namespace}-{}", device.index));
    if let Some(present) = Installation::at(&folder) {
        if present.is_attached(&device.name) {
            return Err(InstallError::Present(device.name));
        }
        // Left of a device that is gone, whose namespace had the number that this one has now.
        present.remove()?;
        mount(request.folder)?;
    }
    let installation = Installation {
        folder,
        device: device.index,
        namespace,
        owner: request.owner,
        xdp: request.xdp,
    };
    let installed = set_up(&installation, &device, programs, kernel_types);
    if let Err(error) = installed {
        // What is there already goes again; the first error is the one to tell.
        let _ = installation.remove();
        return Err(error);
    }
    Ok(installation)
}

/// Every installation in `folder`, of all network namespaces.
///
/// # Errors
/// If the folder cannot be read. A folder that is not there holds none.
pub fn installations(folder: &Path) -> io::Result<Vec<Installation>> {
    let entries = match fs::read_dir(folder) {
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
        Some(Installation {
            folder: folder.to_owned(),
            device: device.parse().ok()?,
            namespace: namespace.parse().ok()?,
            owner: fs::metadata(folder).ok()?.uid(),
            xdp: folder.join("broadcast").exists(),
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

    /// How many of its slots are in use.
    pub fn slots_in_use(&self) -> usize {
        let in_use = |number: &usize| {
            use std::os::fd::AsRawFd;
            let Ok(slot) = fs::File::open(self.folder.join(format!("slot-{number}"))) else {
                return false;
            };
            // SAFETY: the descriptor is open; the lock goes with it.
            unsafe { libc::flock(slot.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) != 0 }
        };
        (0..SLOTS).filter(in_use).count()
    }

    /// The tap's name.
    pub(crate) fn tap(&self) -> String {
        format!("canopy{}", self.device)
    }

    /// Removes the programs, maps and tap, and the folder with the last installation. Whoever
    /// sends with them falls back on plain sends.
    ///
    /// # Errors
    /// If something cannot be removed, which may take the privileges of installing.
    pub fn remove(&self) -> Result<(), InstallError> {
        if !self.is_here()
            // The tap is there.
            && let Some(namespace) = Namespace::numbered(self.namespace)
        {
            let removed = namespace.run(|| self.remove_here());
            return removed
                .map_err(|error| files(&self.folder, "cannot enter the namespace of", error))?;
        }
        self.remove_here()
    }

    fn remove_here(&self) -> Result<(), InstallError> {
        if let Ok(entries) = fs::read_dir(&self.folder) {
            for entry in entries.flatten() {
                let path = entry.path();
                let slot = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let removed = if slot { fs::remove_dir(&path) } else { fs::remove_file(&path) };
                removed.map_err(|error| not_removed(&path, error))?;
            }
            fs::remove_dir(&self.folder).map_err(|error| not_removed(&self.folder, error))?;
        }
        if self.is_here()
            && let Ok(mut netlink) = Netlink::open()
            && let Ok(tap) = netlink.device_named(&self.tap())
        {
            let deleted = netlink.delete(tap.index);
            deleted.map_err(|error| InstallError::Privilege { what: "removing the tap", error })?;
        }
        unmount_if_empty(self.folder.parent())
    }
}

fn set_up(
    installation: &Installation,
    device: &Device,
    programs: &[u8],
    kernel_types: &Path,
) -> Result<(), InstallError> {
    let folder = &installation.folder;
    fs::create_dir(folder).map_err(|error| files(folder, "cannot make", error))?;
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

/// A kernel without this description was built without it, and cannot load the programs.
fn types_in(file: &Path) -> io::Result<Btf> {
    let described = fs::metadata(file)
        .and_then(|_| Btf::parse_file(file, Endianness::default()).map_err(io::Error::other));
    described.map_err(|error| io::Error::new(error.kind(), format!("{} ({error})", file.display())))
}

fn load(
    programs: &[u8],
    types: &Btf,
    installation: &Installation,
    tap_index: u32,
) -> Result<Ebpf, InstallError> {
    let (device_index, tap_index) = (installation.device as i32, tap_index as i32);
    let namespace = installation.namespace as u32;
    let programs = EbpfLoader::new()
        .btf(Some(types))
        .override_global("device_index", &device_index, true)
        .override_global("tap_index", &tap_index, true)
        .override_global("namespace_number", &namespace, true)
        .load(programs);
    programs.map_err(|error| match source_errno(&error) {
        Some(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            InstallError::Privilege { what: "making the maps", error }
        }
        _ => InstallError::Kernel { what: "making the maps", error: chain(&error) },
    })
}

fn attach_clone(programs: &mut Ebpf, device: &Device, folder: &Path) -> Result<(), InstallError> {
    let program: &mut SchedClassifier = program(programs, "clone_to_members")?;
    program.load().map_err(|error| rejected("clone_to_members", &error))?;
    // By a link, which lives as long as its pin; kernels without tcx have none.
    let tcx = TcAttachOptions::TcxOrder(LinkOrder::default());
    let attached = program.attach_with_options(&device.name, TcAttachType::Egress, tcx);
    let link = kernel("attaching to the device's egress (tcx)", attached)?;
    let link = kernel("attaching to the device's egress", program.take_link(link))?;
    pin(link, &folder.join("clone"))
}

fn attach_broadcast(
    programs: &mut Ebpf,
    device: &Device,
    tap_index: u32,
    types: &Btf,
    folder: &Path,
) -> Result<(), InstallError> {
    let copy: &mut Xdp = program(programs, "address_copy")?;
    copy.load().map_err(|error| rejected("address_copy", &error))?;
    let copy = kernel("keeping a program", copy.fd().and_then(|fd| Ok(fd.try_clone()?)))?;
    let fans = programs.map_mut("fans").map(ArrayOfMaps::<_, DevMap<MapData>>::try_from);
    let mut fans = kernel("the array of device maps", fans.transpose())?.ok_or_else(missing)?;
    for count in 1..=CHUNK as u32 {
        let mut fan = kernel("making device maps", device_map(count))?;
        for entry in 0..count {
            kernel("filling device maps", fan.set(entry, device.index, Some(&copy), 0))?;
        }
        kernel("filling the array of device maps", fans.set(count, &fan, 0))?;
    }
    let broadcast: &mut Xdp = program(programs, "broadcast_frame")?;
    broadcast.load().map_err(|error| rejected("broadcast_frame", &error))?;
    let link = broadcast.attach_to_if_index(tap_index, XdpMode::Driver);
    let link = kernel("attaching to the tap", link)?;
    pin(kernel("attaching to the tap", broadcast.take_link(link))?, &folder.join("broadcast"))?;
    let drops: &mut BtfTracePoint = program(programs, "note_losses")?;
    let loaded = drops.load("xdp_devmap_xmit", types);
    loaded.map_err(|error| rejected("note_losses", &error))?;
    let link = kernel("attaching to the tracepoint xdp_devmap_xmit", drops.attach())?;
    pin(kernel("attaching to the tracepoint", drops.take_link(link))?, &folder.join("drops"))
}

fn device_map(entries: u32) -> Result<DevMap<MapData>, MapError> {
    const VALUE_LEN: u32 = size_of::<bpf_devmap_val>() as u32;
    let kind = bpf_map_type::BPF_MAP_TYPE_DEVMAP as u32;
    let map = aya_obj::Map::new_from_params(kind, size_of::<u32>() as u32, VALUE_LEN, entries, 0);
    DevMap::try_from(Map::from_map_data(MapData::create(map, "fan", None)?)?)
}

fn program<'a, P>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut P, InstallError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program>,
{
    programs.program_mut(name).and_then(|program| program.try_into().ok()).ok_or_else(missing)
}

fn missing() -> InstallError {
    InstallError::Kernel {
        what: "the programs are not those that this was built for",
        error: "build them again with `cargo xtask bpf`".to_owned(),
    }
}

fn pin<L>(link: L, path: &Path) -> Result<(), InstallError>
where
    FdLink: TryFrom<L>,
    <FdLink as TryFrom<L>>::Error: std::error::Error,
{
    let link = kernel("keeping a program attached", FdLink::try_from(link))?;
    let _stays: PinnedLink = kernel("pinning a link", link.pin(path))?;
    Ok(())
}

fn make_tap(installation: &Installation, device: &Device) -> Result<u32, InstallError> {
    let refused = |error| InstallError::Privilege { what: "making a tap", error };
    let name = installation.tap();
    tap::create(&name, installation.owner).map_err(refused)?;
    // Or every new device would announce itself to routers that are not there.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    let mut netlink = Netlink::open().map_err(refused)?;
    let tap = netlink.device_named(&name).map_err(refused)?;
    netlink.bring_up(tap.index, device.mtu).map_err(refused)?;
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
    give(&installation.folder)
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

/// Mounts a BPF file system on the folder, unless there is one.
fn mount(folder: &Path) -> Result<(), InstallError> {
    fs::create_dir_all(folder).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            InstallError::Privilege { what: "making the engines' folder", error }
        }
        _ => files(folder, "cannot make", error),
    })?;
    let path = c_path(folder)?;
    if is_bpf_fs(&path) {
        return Ok(());
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

fn unmount_if_empty(folder: Option<&Path>) -> Result<(), InstallError> {
    let Some(folder) = folder else { return Ok(()) };
    if installations(folder).is_ok_and(|others| !others.is_empty()) {
        return Ok(());
    }
    let path = c_path(folder)?;
    // SAFETY: a string that ends in zero.
    if is_our_mount(folder) && unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } < 0 {
        let error = io::Error::last_os_error();
        return Err(InstallError::Privilege { what: "unmounting the engines' folder", error });
    }
    // It may be shared with something else, or be wanted for the next installation.
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Whether a BPF file system is mounted on this very folder, and by [`mount`].
fn is_our_mount(folder: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
    mounts.lines().any(|line| {
        let mut words = line.split(' ');
        words.next() == MOUNT_NAME.to_str().ok() && words.next() == folder.to_str()
    })
}

fn is_bpf_fs(path: &CString) -> bool {
    // SAFETY: all zeroes is a value of this struct of integers; the path ends in zero.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &mut found) == 0 && found.f_type as i64 == BPF_FS_MAGIC
    }
}

fn c_path(path: &Path) -> Result<CString, InstallError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| files(path, "cannot use", io::Error::other(error)))
}

fn files(path: &Path, what: &str, error: io::Error) -> InstallError {
    InstallError::Files { what: format!("{what} {}", path.display()), error }
}

fn not_removed(path: &Path, error: io::Error) -> InstallError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return InstallError::Privilege { what: "removing what is installed", error };
    }
    files(path, "cannot remove", error)
}

fn kernel<T, E: std::error::Error>(
    what: &'static str,
    result: Result<T, E>,
) -> Result<T, InstallError> {
    result.map_err(|error| InstallError::Kernel { what, error: chain(&error) })
}

fn rejected(program: &str, error: &ProgramError) -> InstallError {
    let program = program.to_owned();
    match error {
        ProgramError::LoadError { verifier_log, .. } if !verifier_log.to_string().is_empty() => {
            InstallError::Rejected { program, log: verifier_log.to_string() }
        }
        // Without a log it did not get as far as the verifier.
        ProgramError::LoadError { io_error, .. }
            if io_error.kind() == io::ErrorKind::PermissionDenied =>
        {
            let error = io::Error::from(io_error.kind());
            InstallError::Privilege { what: "loading the programs", error }
        }
        _ => InstallError::Kernel { what: "loading a program", error: chain(error) },
    }
}

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

fn source_errno(error: &(dyn std::error::Error + 'static)) -> Option<io::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error().map(io::Error::from_raw_os_error);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;

    /// A namespace with a virtual device, and a folder whose file system goes with it.
    struct Bed {
        near: Namespace,
        /// With it would go the device.
        _far: Namespace,
        folder: tempfile::TempDir,
    }

    impl Bed {
        fn new() -> Option<Bed> {
            let far = Namespace::new().inspect_err(|error| println!("skipped: {error}")).ok()?;
            let near = Namespace::new().unwrap();
            Namespace::join(&near, &far).unwrap();
            Some(Bed { near, _far: far, folder: tempfile::tempdir().unwrap() })
        }

        fn install(&self, programs: &[u8], types: &str) -> InstallError {
            let folder = self.folder.path().join("engine");
            let request = InstallRequest { device: "near", folder: &folder, owner: 0, xdp: true };
            let install = || install_programs(&request, programs, Path::new(types));
            let error = self.near.run(install).unwrap().unwrap_err();
            assert!(!folder.exists(), "nothing is left");
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(folder.to_str().unwrap()), "nothing is mounted");
            let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            assert!(!self.near.run(devices).unwrap().contains("canopy"), "no tap is left");
            error
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let path = c_path(&self.folder.path().join("engine")).unwrap();
            // SAFETY: a string that ends in zero.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
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
            match bed.install(&programs, KERNEL_TYPES) {
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
        let error = bed.install(PROGRAMS, "/nowhere/btf/vmlinux");
        let text = error.to_string();
        assert!(matches!(error, InstallError::Kernel { .. }), "{text}");
        assert!(text.contains("/nowhere/btf/vmlinux") && text.contains("Linux 6.6"), "{text}");
    }

    #[test]
    fn what_a_kernel_lacks_is_told_from_what_it_forbids() {
        let refused = |kind: i32| ProgramError::LoadError {
            io_error: io::Error::from_raw_os_error(kind),
            verifier_log: aya_obj::VerifierLog::new(String::new()),
        };
        let error = rejected("clone_to_members", &refused(libc::EINVAL));
        assert!(matches!(error, InstallError::Kernel { .. }), "{error}");
        let error = rejected("clone_to_members", &refused(libc::EPERM));
        assert!(matches!(error, InstallError::Privilege { .. }), "{error}");
        let no_tcx: Result<(), _> = Err(io::Error::from_raw_os_error(libc::EINVAL));
        let error = kernel("attaching to the device's egress (tcx)", no_tcx).unwrap_err();
        assert!(error.to_string().contains("Linux 6.6"), "{error}");
    }
}
