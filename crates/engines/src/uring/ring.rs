//! The ring: submits sends together, and waits until all are done.

use canopy_net::parts::nap;
use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::time::Duration;

/// The result of a send that found no room for as long as patience lasts.
pub(super) const GAVE_UP: i32 = -libc::ETIMEDOUT;
/// The result of a send that the kernel had not done when the ring broke.
const BROKEN: i32 = -libc::ENXIO;
/// Not a result: the send is in the kernel's hands.
const UNDER_WAY: i32 = i32::MIN;

/// User data of what asks for a send to be given up.
const CANCEL: u64 = u64::MAX;
/// Without any completion for as long, what is left is given up.
const PATIENCE: Duration = Duration::from_millis(250);
/// The same where there is no patience left.
const NO_PATIENCE: Duration = Duration::from_millis(1);
/// Before the kernel is asked again when it was short of memory.
const NAP: Duration = Duration::from_micros(100);
/// The most files of a ring: one for a socket that sends by address, the others for members.
const MOST_FILES: u64 = 1025;

/// An `io_uring` with a table of registered files.
pub(super) struct Ring {
    /// None once the kernel has refused to work on it, which it never does without a change of
    /// what this process may do.
    inner: Option<IoUring>,
    results: Vec<i32>,
}

impl Ring {
    /// A ring for `entries` sends at once, and how many files it has room for.
    pub(super) fn new(entries: usize) -> io::Result<(Ring, usize)> {
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
        let needed = [opcode::Send::CODE, opcode::SendMsg::CODE, opcode::AsyncCancel::CODE];
        let works = needed.into_iter().all(|code| probe.is_supported(code));
        if !works || !inner.params().is_feature_ext_arg() || !inner.params().is_feature_nodrop() {
            return Err(unavailable(io::Error::from_raw_os_error(libc::ENOSYS)));
        }
        let files = open_files_limit().min(MOST_FILES) as usize;
        inner.submitter().register_files(&vec![-1; files]).map_err(unavailable)?;
        Ok((Ring { inner: Some(inner), results: vec![BROKEN; entries] }, files))
    }

    /// Puts a file in the table. It stays open until another takes its place, whether or not its
    /// descriptor is closed.
    pub(super) fn register(&self, place: u32, file: i32) -> io::Result<()> {
        let ring = self.inner.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        ring.submitter().register_files_update(place, &[file]).map(drop)
    }

    /// Does what the entries say, and returns the results at the places that their user data say.
    /// There are no more entries than the ring was made for.
    ///
    /// # Safety
    /// What the entries point to stays in place, and is not changed, until this returns.
    pub(super) unsafe fn run(&mut self, entries: &[Entry], patient: bool) -> &[i32] {
        let results = &mut self.results;
        let Some(ring) = &mut self.inner else {
            results.fill(BROKEN);
            return results;
        };
        for entry in entries {
            results[entry.get_user_data() as usize] = UNDER_WAY;
        }
        // SAFETY: the caller keeps what they point to until this returns, and it returns when the
        // kernel has completed all, or has dropped the ring with those that it had not begun.
        let pushed = unsafe { ring.submission().push_multiple(entries) };
        debug_assert!(pushed.is_ok(), "the ring was empty and is large enough");
        let patience = types::Timespec::from(if patient { PATIENCE } else { NO_PATIENCE });
        let (mut left, mut gave_up) = (entries.len(), false);
        while left > 0 {
            let usable = submit_and_wait(ring, left, &patience);
            let before = left;
            for done in ring.completion().filter(|done| done.user_data() != CANCEL) {
                let cancelled = gave_up && done.result() == -libc::ECANCELED;
                results[done.user_data() as usize] =
                    if cancelled { GAVE_UP } else { done.result() };
                left -= 1;
            }
            if !usable {
                self.inner = None;
                break;
            }
            if left == before {
                gave_up = true;
                give_up(ring, entries, results);
            }
        }
        results.iter_mut().filter(|result| **result == UNDER_WAY).for_each(|r| *r = BROKEN);
        results
    }
}

/// Submits what was pushed and waits for `want` completions, at most as long as `patience` lasts.
/// Returns whether the ring can be used any more.
fn submit_and_wait(ring: &mut IoUring, want: usize, patience: &types::Timespec) -> bool {
    let arguments = types::SubmitArgs::new().timespec(patience);
    loop {
        match ring.submitter().submit_with_args(want, &arguments) {
            Ok(_) => return true,
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME) => return true,
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EBUSY) => nap(NAP),
                _ => return false,
            },
        }
    }
}

/// Asks the kernel to complete what waits for room. A request that finds no place in the ring is
/// made again after the next wait.
fn give_up(ring: &mut IoUring, entries: &[Entry], results: &[i32]) {
    let places = entries.iter().map(Entry::get_user_data);
    for place in places.filter(|place| results[*place as usize] == UNDER_WAY) {
        let cancel = opcode::AsyncCancel::new(place).build().user_data(CANCEL);
        // SAFETY: the entry points to nothing.
        if unsafe { ring.submission().push(&cancel) }.is_err() {
            return;
        }
    }
}

fn open_files_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
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
    use std::net::UdpSocket;

    fn send(socket: &UdpSocket, place: u64, bytes: &'static [u8]) -> Entry {
        use std::os::fd::AsRawFd;
        let file = types::Fd(socket.as_raw_fd());
        opcode::Send::new(file, bytes.as_ptr(), bytes.len() as u32).build().user_data(place)
    }

    #[test]
    fn results_are_told_by_place() {
        let (mut ring, _) = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        let [sender, receiver] = [0, 0].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        // SAFETY: the bytes are static.
        let results = unsafe { ring.run(&[send(&sender, 2, b"to nobody")], true) };
        assert_eq!(results[2], -libc::EDESTADDRREQ);
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        // SAFETY: as above.
        let results =
            unsafe { ring.run(&[send(&sender, 1, b"one"), send(&sender, 0, b"four")], true) };
        assert_eq!(results[..2], [4, 3]);
    }

    #[test]
    fn what_never_finds_room_is_given_up() {
        let (mut ring, _) = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: {error}"),
        };
        // The other end never reads: the buffer of the first fills up.
        let (near, _far) = std::os::unix::net::UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.send(&[0; 1024]).is_ok() {}
        near.set_nonblocking(false).unwrap();
        let near = UdpSocket::from(std::os::fd::OwnedFd::from(near));
        for patient in [true, false] {
            // SAFETY: the bytes are static.
            let results =
                unsafe { ring.run(&[send(&near, 0, b"a"), send(&near, 1, b"b")], patient) };
            assert_eq!(results[..2], [GAVE_UP; 2]);
        }
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
