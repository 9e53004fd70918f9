//! Waiting: for a socket, for another thread, for a point in time.

use crate::clock::Clock;
use crate::socket::Socket;
use canopy_wire::Time;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Wakes a thread that waits in [`wait_readable`]. Waking is remembered until the thread looks.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    /// A waker that nobody has used yet.
    ///
    /// # Errors
    /// If the process may open no more files.
    pub fn new() -> io::Result<Waker> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Waker { event: rustix::event::eventfd(0, flags)? })
    }

    /// Wakes the thread, now or when it next waits.
    pub fn wake(&self) {
        // A full counter means that waking is remembered already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
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
    let mut files = [watch(&waker.event), watch(socket)];
    poll(&mut files, until.map(|until| until.since(clock.now())))?;
    let [woken, readable] = files.map(|file| file.revents());
    if !woken.is_empty() {
        waker.clear();
    }
    Ok(look_past_errors(socket, readable))
}

/// Waits until a file that is no [`Socket`] has something to read or the waker was used.
///
/// # Errors
/// What the kernel says.
pub fn wait_for_file(file: &impl AsFd, waker: &Waker) -> io::Result<()> {
    let mut files = [watch(&waker.event), watch(file)];
    poll(&mut files, None)?;
    if !files[0].revents().is_empty() {
        waker.clear();
    }
    Ok(())
}

/// The most sockets that one call waits for.
pub(crate) const MOST_SOCKETS: usize = 9;

/// [`wait_readable`] for several sockets, with a waker if there is one; returns which have something,
/// a bit for each.
pub(crate) fn wait_for_any(
    sockets: [&Socket; MOST_SOCKETS],
    waker: Option<&Waker>,
    clock: &Clock,
    until: Option<Time>,
) -> io::Result<u32> {
    // The last place is the waker's, or is not looked at.
    let mut files: [PollFd<'_>; MOST_SOCKETS + 1] =
        std::array::from_fn(|at| match (sockets.get(at), waker) {
            (Some(socket), _) => watch(*socket),
            (None, Some(waker)) => watch(&waker.event),
            (None, None) => watch(sockets[0]),
        });
    let count = MOST_SOCKETS + usize::from(waker.is_some());
    poll(&mut files[..count], until.map(|until| until.since(clock.now())))?;
    if let Some(waker) = waker.filter(|_| !files[MOST_SOCKETS].revents().is_empty()) {
        waker.clear();
    }
    let mut ready = 0;
    for (at, (socket, file)) in sockets.iter().zip(&files).enumerate() {
        let events = file.revents();
        if !events.is_empty() && look_past_errors(socket, events) {
            ready |= 1 << at;
        }
    }
    Ok(ready)
}

/// Waits until `socket` takes more to send, at most `limit`.
pub fn wait_writable(socket: &Socket, limit: Duration) {
    // The one that has room already ends its wait at once.
    for sending in socket.all_sending() {
        // Waiting in vain is seen by the send that follows.
        let _ = poll(&mut [PollFd::new(sending, PollFlags::OUT)], Some(limit));
    }
}

/// Sleeps for `span`.
pub(crate) fn nap(span: Duration) {
    let _ = poll(&mut [], Some(span));
}

/// Sleeps until `until`, whatever arrives meanwhile.
pub fn sleep_until(clock: &Clock, until: Time) {
    let _ = poll(&mut [], Some(until.since(clock.now())));
}

/// What [`rustix`] takes as a timeout.
pub(crate) fn timespec(span: Duration) -> Timespec {
    // More than a Timespec holds is for ever.
    let longest = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    Timespec::try_from(span).unwrap_or(longest)
}

fn watch(file: &impl AsFd) -> PollFd<'_> {
    PollFd::new(file, PollFlags::IN)
}

/// Whether a socket has something beside errors of earlier datagrams, which are thrown away: they
/// would end each wait.
fn look_past_errors(socket: &Socket, events: PollFlags) -> bool {
    if events.contains(PollFlags::ERR) {
        socket.take_errors();
    }
    !events.difference(PollFlags::ERR).is_empty()
}

fn poll(files: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    match rustix::event::poll(files, timeout.map(timespec).as_ref()) {
        // A signal is a reason to look around, not a failure.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
