//! Network namespaces: hosts of their own inside this process, for benches and tests.
//!
//! They have no name, so nothing of them is left when the process ends, however it ends.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
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
            // SAFETY: the call takes flags only; it concerns the calling thread, which ends here.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                let error = io::Error::last_os_error();
                let why = format!("a network namespace cannot be made ({error}); it needs root");
                return Err(io::Error::new(error.kind(), why));
            }
            let handle = File::open("/proc/thread-self/ns/net")?;
            ip("link set lo up")?;
            Ok(Namespace { handle })
        });
        made?
    }

    /// Runs `inside` on a thread in the namespace. Sockets that it opens and processes that it
    /// starts stay there.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_own_thread(|| {
            // SAFETY: the descriptor is a namespace's; the thread is ours and ends here.
            if unsafe { libc::setns(self.handle.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(inside())
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
