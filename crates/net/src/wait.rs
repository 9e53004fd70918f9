//! Waiting: for a socket, for another thread, for a point in time.

use crate::{Clock, Socket};
use canopy_wire::Time;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Wakes a thread that waits in [`wait_readable`]. Waking is remembered until the thread looks.
#[derive(Debug)]
pub struct Waker {
    event: File,
}

impl Waker {
    /// A waker that nobody has used yet.
    ///
    /// # Errors
    /// If the process may open no more files.
    pub fn new() -> io::Result<Waker> {
        // SAFETY: the call takes two integers; the descriptor it returns is owned by nobody else.
        let event = unsafe {
            let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        Ok(Waker { event })
    }

    /// Wakes the thread, now or when it next waits.
    pub fn wake(&self) {
        // A full counter means that waking is remembered already.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = (&self.event).read(&mut [0; 8]);
    }
}

/// Waits until the socket has something to read, the waker was used, or `until` is reached.
/// Returns whether the socket has something.
///
/// # Errors
/// What the kernel says.
pub fn wait_readable(
    socket: &Socket,
    waker: &Waker,
    clock: &Clock,
    until: Option<Time>,
) -> io::Result<bool> {
    let watch = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [watch(socket.as_raw_fd()), watch(waker.event.as_raw_fd())];
    poll(&mut fds, until.map(|until| until.since(clock.now())))?;
    if fds[1].revents != 0 {
        waker.clear();
    }
    if fds[0].revents & libc::POLLERR != 0 {
        socket.take_errors();
    }
    Ok(fds[0].revents & !libc::POLLERR != 0)
}

/// Waits until `socket` takes more to send, at most `limit`.
pub fn wait_writable(socket: &Socket, limit: Duration) {
    let mut fds = [libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    // Waiting in vain is seen by the send that follows.
    let _ = poll(&mut fds, Some(limit));
}

/// Sleeps until `until`, whatever arrives meanwhile.
pub fn sleep_until(clock: &Clock, until: Time) {
    let _ = poll(&mut [], Some(until.since(clock.now())));
}

fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the slice is as long as is said; the timeout outlives the call or is null.
    let result =
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, ptr::null()) };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // A signal is a reason to look around, not a failure.
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
