//! What is offered without the feature `kernel`: the same names, of which nothing can be had. So
//! whoever installs, watches and counts is written once, and hears why it cannot.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Why it cannot be had.
pub(crate) const REASON: &str =
    "this program was built without it; build it with the feature `kernel`";

fn not_built() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, REASON)
}

/// What to install.
#[derive(Clone, Debug)]
pub struct InstallRequest<'a> {
    /// The name of the device that packets leave by.
    pub device: &'a str,
    /// Where installations are.
    pub folder: &'a Path,
    /// The user that may send.
    pub owner: u32,
    /// Whether to install `xdp` too.
    pub xdp: bool,
}

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
#[error("{REASON}")]
pub struct InstallError;

/// Installs nothing.
///
/// # Errors
/// Always.
pub fn install(_: &InstallRequest<'_>) -> Result<Installation, InstallError> {
    Err(InstallError)
}

/// Finds no installation, of which this program could not tell.
///
/// # Errors
/// Always.
pub fn installations(_: &Path) -> io::Result<Vec<Installation>> {
    Err(not_built())
}

/// What is installed on a device: there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The device's index in its network namespace.
    pub device: u32,
    /// The number of that namespace.
    pub namespace: u64,
    /// The user that may send with it.
    pub owner: u32,
    /// Whether `xdp` is installed beside `tc-bpf`.
    pub xdp: bool,
    /// Whether installing it came to its end.
    pub complete: bool,
    never: Infallible,
}

impl Installation {
    /// Whether it belongs to the calling thread's network namespace.
    pub fn is_here(&self) -> bool {
        match self.never {}
    }

    /// The device's name now and whether it is up.
    pub fn device_now(&self) -> Option<(String, bool)> {
        match self.never {}
    }

    /// How many slots it has.
    pub fn slots(&self) -> usize {
        match self.never {}
    }

    /// How many of its slots are in use.
    pub fn slots_in_use(&self) -> Option<usize> {
        match self.never {}
    }

    /// Copies that the kernel made.
    ///
    /// # Errors
    /// Never, as there is no installation.
    pub fn copies(&self) -> io::Result<u64> {
        match self.never {}
    }

    /// Removes it.
    ///
    /// # Errors
    /// Never, as there is no installation.
    pub fn remove(&self) -> Result<(), InstallError> {
        match self.never {}
    }
}

/// What the kernel has found out about a host on one of this host's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourEvent {
    /// Its address.
    pub ip: IpAddr,
    /// Whether it answers.
    pub reachable: bool,
}

/// Tells who on this host's links answers: there is none.
#[derive(Debug)]
pub struct NeighbourWatch(Infallible);

impl NeighbourWatch {
    /// Watches nothing.
    ///
    /// # Errors
    /// Always.
    pub fn open() -> io::Result<NeighbourWatch> {
        Err(not_built())
    }
}

impl Iterator for NeighbourWatch {
    type Item = NeighbourEvent;

    fn next(&mut self) -> Option<NeighbourEvent> {
        match self.0 {}
    }
}

impl AsFd for NeighbourWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

/// Where datagrams are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkPlace {
    /// Before the kernel's network stack looks at them.
    Ingress,
    /// In the driver, before they become packets.
    Driver,
}

/// A sink on a device: there is none.
pub struct KernelSink(Infallible);

impl KernelSink {
    /// Attaches nothing.
    ///
    /// # Errors
    /// Always.
    pub fn attach(_: &str, _: SinkPlace) -> io::Result<KernelSink> {
        Err(not_built())
    }

    /// Datagrams that arrived for each of these ports.
    ///
    /// # Errors
    /// Never, as there is no sink.
    pub fn counts(&self, _: impl IntoIterator<Item = u16>) -> io::Result<Vec<u64>> {
        match self.0 {}
    }
}
