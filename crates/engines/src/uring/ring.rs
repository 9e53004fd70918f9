//! The ring: submits sends together, and takes their results.

use canopy_net::Socket;
use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::os::fd::AsRawFd;

/// The result of a send that the kernel had not done when the ring broke.
const BROKEN: i32 = -libc::ENXIO;

/// An `io_uring` with one registered file.
pub(super) struct Ring {
    /// None once the kernel has refused to work on it, which it never does without a change of
    /// what this process may do.
    inner: Option<IoUring>,
    results: Vec<i32>,
    /// The socket that is registered, or 0.
    socket: u64,
}

impl Ring {
    /// The place of the socket among the registered files.
    pub(super) const SOCKET: u32 = 0;

    /// A ring for `entries` sends at once.
    pub(super) fn new(entries: usize) -> io::Result<Ring> {
        let build = |cooperative: bool| {
            let mut builder = IoUring::builder();
            if cooperative {
                // Nothing but our own system calls looks at completions (Linux 5.19).
                builder.setup_coop_taskrun();
            }
            builder.build(entries as u32)
        };
        let inner = build(true).or_else(|_| build(false)).map_err(unavailable)?;
        let mut probe = Probe::new();
        inner.submitter().register_probe(&mut probe).map_err(unavailable)?;
        // Linux 5.11 brought this feature, and with it everything else that is used here.
        if !probe.is_supported(opcode::SendMsg::CODE) || !inner.params().is_feature_ext_arg() {
            return Err(unavailable(io::Error::from_raw_os_error(libc::ENOSYS)));
        }
        inner.submitter().register_files(&[-1]).map_err(unavailable)?;
        Ok(Ring { inner: Some(inner), results: vec![BROKEN; entries], socket: 0 })
    }

    /// Makes this the socket that is sent through. Returns whether it could be done.
    pub(super) fn serve(&mut self, socket: &Socket) -> bool {
        let Some(ring) = &self.inner else { return false };
        if self.socket != socket.id() {
            let file = [socket.sending().as_raw_fd()];
            let registered = ring.submitter().register_files_update(Ring::SOCKET, &file);
            self.socket = if registered.is_ok() { socket.id() } else { 0 };
        }
        self.socket != 0
    }

    /// Does what the entries say, and returns the results at the places that their user data say.
    /// There are no more entries than the ring was made for, and none of them waits.
    ///
    /// # Safety
    /// What the entries point to stays in place, and is not changed, until this returns.
    pub(super) unsafe fn run(&mut self, entries: &[Entry]) -> &[i32] {
        let results = &mut self.results;
        for entry in entries {
            results[entry.get_user_data() as usize] = BROKEN;
        }
        let Some(ring) = &mut self.inner else { return results };
        // SAFETY: the caller keeps what they point to until this returns, and it returns when the
        // kernel has completed all, or has dropped the ring with those that it had not begun.
        let pushed = unsafe { ring.submission().push_multiple(entries) };
        debug_assert!(pushed.is_ok(), "the ring was empty and is large enough");
        let mut left = entries.len();
        while left > 0 {
            match ring.submit_and_wait(left) {
                Err(error) if !is_passing(&error) => {
                    self.inner = None;
                    break;
                }
                _ => {}
            }
            for done in ring.completion() {
                results[done.user_data() as usize] = done.result();
                left -= 1;
            }
        }
        results
    }
}

/// Whether submitting may work when it is tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Why there is no ring, and what to do about it.
fn unavailable(error: io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "this process may not use io_uring; set the sysctl kernel.io_uring_disabled to 0 and \
             let seccomp filters pass io_uring_setup, io_uring_enter and io_uring_register"
        }
        Some(libc::ENOSYS | libc::EINVAL) => {
            "this kernel has no io_uring that can send; use Linux 5.11 or newer, built with \
             CONFIG_IO_URING, and a seccomp filter that passes io_uring_setup"
        }
        Some(libc::ENOMEM) => "io_uring may not lock the memory it needs; raise RLIMIT_MEMLOCK",
        Some(libc::EMFILE | libc::ENFILE) => {
            "io_uring needs a file more than may be open; raise RLIMIT_NOFILE"
        }
        _ => "io_uring cannot be set up",
    };
    io::Error::new(error.kind(), format!("{why} ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::types;
    use std::net::UdpSocket;

    fn send(socket: &impl AsRawFd, place: u64, bytes: &'static [u8]) -> Entry {
        let file = types::Fd(socket.as_raw_fd());
        opcode::Send::new(file, bytes.as_ptr(), bytes.len() as u32)
            .flags(libc::MSG_DONTWAIT)
            .build()
            .user_data(place)
    }

    #[test]
    fn results_are_told_by_place() {
        let mut ring = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        let [sender, receiver] = [0, 0].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        // SAFETY: the bytes are static.
        let results = unsafe { ring.run(&[send(&sender, 2, b"to nobody")]) };
        assert_eq!(results[2], -libc::EDESTADDRREQ);
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        // SAFETY: as above.
        let results = unsafe { ring.run(&[send(&sender, 1, b"one"), send(&sender, 0, b"four")]) };
        assert_eq!(results[..2], [4, 3]);
    }

    #[test]
    fn what_finds_no_room_is_told_at_once() {
        let mut ring = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        // The other end never reads, so the buffer of the first fills up. The socket itself would
        // wait.
        let (near, _far) = std::os::unix::net::UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.send(&[0; 1024]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        // SAFETY: the bytes are static.
        let results = unsafe { ring.run(&[send(&near, 0, b"a"), send(&near, 1, b"b")]) };
        assert_eq!(results[..2], [-libc::EAGAIN; 2]);
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let said = |code| unavailable(io::Error::from_raw_os_error(code)).to_string();
        assert!(said(libc::EPERM).contains("kernel.io_uring_disabled"));
        assert!(said(libc::ENOSYS).contains("Linux 5.11"));
        assert!(said(libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(said(libc::EMFILE).contains("RLIMIT_NOFILE"));
        assert!(said(libc::EMFILE).contains("os error 24"));
    }
}
