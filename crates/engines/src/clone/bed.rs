//! Two joined hosts for tests, and a folder to install in.

use super::install::InstallRequest;
use crate::Namespace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Hosts with a virtual device each, `near` and `far`, and a folder whose file system goes with
/// them.
pub(crate) struct Bed {
    pub(crate) near: Namespace,
    /// With it would go the device.
    far: Namespace,
    temporary: tempfile::TempDir,
}

impl Bed {
    /// None where it cannot be had, which is then said.
    pub(crate) fn new() -> Option<Bed> {
        let far = Namespace::new().inspect_err(|error| println!("skipped: {error}")).ok()?;
        let near = Namespace::new().unwrap();
        Namespace::join(&near, &far).unwrap();
        Some(Bed { near, far, temporary: tempfile::tempdir().unwrap() })
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.temporary.path().join("engine")
    }

    pub(crate) fn request<'a>(&self, folder: &'a Path) -> InstallRequest<'a> {
        InstallRequest { device: "near", folder, owner: 0, xdp: true }
    }

    /// Turns an offload of one of the devices on or off. None if there is no `ethtool`, which is
    /// then said.
    pub(crate) fn offload(&self, device: &str, feature: &str, state: &str) -> Option<()> {
        let host = if device == "near" { &self.near } else { &self.far };
        let mut ethtool = Command::new("ethtool");
        let set = host.host(ethtool.args(["-K", device, feature, state])).status();
        let set = set.inspect_err(|error| println!("skipped: ethtool: {error}")).ok()?;
        assert!(set.success());
        Some(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.folder(), rustix::mount::UnmountFlags::DETACH);
    }
}
