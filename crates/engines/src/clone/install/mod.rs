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
mod installation;
mod lock;
mod mount;
mod programs;

pub use error::InstallError;
pub use installation::{Installation, installations};

use super::netlink::{Device, Netlink};
use super::slot::SLOTS;
use super::tap;
use crate::Namespace;
use error::{files, kernel, not_removed};
use installation::{OPEN, namespace_number, runs_on};
use lock::Lock;
use mount::{mount, unmount_if_empty};
use programs::{attach_broadcast, attach_clone, load, types_in};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The programs, as `cargo xtask bpf` built them.
const PROGRAMS: &[u8] = aya::include_bytes_aligned!("../../../bpf/groupcast.bpf.o");

/// The mode of an installation's folder while something is missing from it.
const CLOSED: u32 = 0o700;
/// How long a removal waits at most for the kernel to detach the program.
const DETACHED_WITHIN: Duration = Duration::from_secs(2);
/// Where the kernel describes its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

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

impl Installation {
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
        let (program, device) = (self.program(), self.device_now());
        fs::remove_dir_all(&self.folder).map_err(|error| not_removed(&self.folder, error))?;
        // The kernel detaches what is no longer pinned a little later, on a thread of its own.
        if let (Some(program), Some((device, _))) = (program, device) {
            let deadline = Instant::now() + DETACHED_WITHIN;
            while runs_on(program, &device) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
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
    // Otherwise the tap would announce itself to routers that are not there.
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
