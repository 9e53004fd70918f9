//! Network namespaces: hosts of their own inside this process, for benches and tests.
//!
//! They have no name, so nothing of them is left when the process ends, however it ends.

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A network namespace. It lives as long as this, or a socket or process in it.
#[derive(Debug)]
pub struct Namespace {
    handle: File,
}

impl Namespace {
    /// A namespace with a loopback device that is up and nothing else.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or where there is no `ip` (iproute2).
    pub fn new() -> io::Result<Namespace> {
        let made = in_own_thread(|| {
            // SAFETY: no file descriptors are unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| {
                let why = format!("a network namespace cannot be made ({error}); it needs root");
                io::Error::new(error.kind(), why)
            })?;
            let handle = File::open("/proc/thread-self/ns/net")?;
            ip("link set lo up")?;
            Ok(Namespace { handle })
        });
        made?
    }

    /// The namespace with this number, if it has a name or a process in it that we may look at.
    #[cfg(feature = "kernel")]
    pub(crate) fn numbered(number: u64) -> Option<Namespace> {
        use std::fs;
        use std::os::unix::fs::MetadataExt;

        let entries = |folder| fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries("/run/netns").map(|entry| entry.path());
        let of_processes = entries("/proc").map(|entry| entry.path().join("ns/net"));
        let is_it = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.ino() == number);
        let path = named.chain(of_processes).find(is_it)?;
        Some(Namespace { handle: File::open(path).ok()? })
    }

    /// Runs `inside` on a thread in the namespace. Sockets that it opens and processes that it
    /// starts stay there.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_own_thread(|| {
            enter(self.handle.as_fd())?;
            Ok(inside())
        })?
    }

    /// Makes a command start in the namespace. The namespace must live until it was started.
    pub fn host<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let handle = self.handle.as_raw_fd();
        // SAFETY: the namespace, and with it the descriptor, lives until the command was started.
        let enter_it = move || enter(unsafe { BorrowedFd::borrow_raw(handle) });
        // SAFETY: between fork and exec only the one system call is made; it allocates nothing.
        unsafe { command.pre_exec(enter_it) }
    }

    /// Lets one processor do the receive work of a device of the namespace, whoever sent to it:
    /// as if the receivers were on a machine of their own.
    ///
    /// # Errors
    /// If there is no such device, or the kernel cannot steer.
    pub fn steer(&self, device: &str, processor: usize) -> io::Result<()> {
        // A set of processors as the kernel reads it: words of 32 bits, the highest first.
        let mask = format!("{:x}{}", 1_u32 << (processor % 32), ",00000000".repeat(processor / 32));
        let file = format!("class/net/{device}/queues/rx-0/rps_cpus");
        self.run(|| {
            // /sys shows the devices of the namespace in which it was mounted, so one is mounted
            // here, in a mount namespace that ends with this thread.
            unshare_mounts()?;
            mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?;
            std::fs::write(Path::new("/sys").join(&file), &mask)
        })?
    }

    /// Runs `ip` with these words in the namespace.
    ///
    /// # Errors
    /// If it fails, with what it said.
    pub fn ip(&self, words: &str) -> io::Result<()> {
        self.run(|| ip(words))?
    }

    /// Where other programs find it, while this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()).into()
    }

    /// Joins two namespaces by a pair of virtual Ethernet devices named `near` and `far`, with the
    /// addresses 10.77.0.1 and fd77::1 on the near and 10.77.0.2 and fd77::2 on the far end.
    ///
    /// # Errors
    /// If `ip` fails.
    pub fn join(near: &Namespace, far: &Namespace) -> io::Result<()> {
        near.ip(&format!("link add near type veth peer name far netns {}", far.path().display()))?;
        for (side, name, number) in [(near, "near", 1), (far, "far", 2)] {
            side.ip(&format!("addr add 10.77.0.{number}/16 dev {name}"))?;
            side.ip(&format!("addr add fd77::{number}/64 dev {name} nodad"))?;
            side.ip(&format!("link set {name} up"))?;
        }
        Ok(())
    }
}

/// Gives this process a BPF file system of its own, for engines that are installed for its time
/// only: it and what is pinned there are gone when the process has ended, however it ends. To be
/// called before the process has threads; those that it starts later share it.
///
/// # Errors
/// Without CAP_SYS_ADMIN, or if the kernel has no such file system.
pub fn private_engine_folder() -> io::Result<&'static Path> {
    unshare_mounts()?;
    mount("bpf", "/sys/fs/bpf", "bpf", MountFlags::empty(), None)?;
    Ok(Path::new("/sys/fs/bpf"))
}

/// Moves the calling thread into a network namespace.
fn enter(handle: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(handle, Some(LinkNameSpaceType::Network))?)
}

/// Gives the calling thread mounts of its own, which nobody else sees.
fn unshare_mounts() -> io::Result<()> {
    // SAFETY: no file descriptors are unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

fn in_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("a thread in a network namespace panicked"))
    })
}

fn ip(words: &str) -> io::Result<()> {
    let output = Command::new("ip").args(words.split_whitespace()).output().map_err(|error| {
        io::Error::new(error.kind(), format!("`ip` cannot be started ({error}); install iproute2"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("`ip {words}` failed: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn joined_namespaces_reach_each_other() {
        let near = match Namespace::new() {
            Ok(near) => near,
            Err(error) => return println!("skipped: {error}"),
        };
        let far = Namespace::new().unwrap();
        Namespace::join(&near, &far).unwrap();
        for ips in [["10.77.0.1", "10.77.0.2"], ["fd77::1", "fd77::2"]] {
            let bind = |namespace: &Namespace, ip: &str| {
                namespace.run(|| UdpSocket::bind((ip, 0))).unwrap().unwrap()
            };
            let (sender, receiver) = (bind(&near, ips[0]), bind(&far, ips[1]));
            sender.send_to(b"hello", receiver.local_addr().unwrap()).unwrap();
            assert_eq!(receiver.recv_from(&mut [0; 8]).unwrap().1, sender.local_addr().unwrap());
        }
        assert!(near.ip("link show far").is_err(), "each has its own devices");
    }
}
