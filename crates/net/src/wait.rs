//! Waiting: for a socket, for another thread, for a point in time.

use crate::clock::Clock;
use crate::socket::Socket;
use canopy_wire::Time;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// Waits until one of a few sockets has something to read, the waker was used, or `until` is reached.
/// What became of an earlier datagram ends the wait, too: it is left to be looked at with
/// [`Socket::take_error`], and would end the next one.
///
/// # Errors
/// What the kernel says.
pub fn wait_any_readable<'a>(
    sockets: impl IntoIterator<Item = &'a Socket>,
    waker: &'a Waker,
    clock: &Clock,
    until: Option<Time>,
) -> io::Result<()> {
    let mut files = vec![watch(&waker.event)];
    files.extend(sockets.into_iter().map(watch));
    poll(&mut files, until.map(|until| until.since(clock.now())))?;
    if !files[0].revents().is_empty() {
        waker.clear();
    }
    Ok(())
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

/// The most files that are waited for at once: the sockets of a data thread, its waker and a timer.
const MOST_FILES: usize = 16;
/// The numbers of the latter two among them.
const OF_WAKER: u64 = MOST_FILES as u64 - 1;
const OF_TIMER: u64 = OF_WAKER - 1;
/// The most sockets.
pub(crate) const MOST_SOCKETS: usize = OF_TIMER as usize;

/// What waits for several sockets and a waker. The kernel keeps the list, so that a wait costs as much
/// however many they are.
///
/// It keeps the timer too: that is set anew only for an earlier time, and when it has rung. A timeout of
/// each wait would be set and taken back with each datagram.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer rings.
    rings_at: Cell<Option<Time>>,
}

/// What a look found.
struct Found {
    /// The sockets that have something, a bit for each.
    ready: u32,
    is_woken: bool,
    has_rung: bool,
}

impl Poller {
    /// Waits for these sockets and a waker. They must not be closed before.
    pub(crate) fn new<'a>(
        sockets: impl IntoIterator<Item = &'a Socket>,
        waker: &Waker,
    ) -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let add = |file: BorrowedFd<'_>, number| {
            epoll::add(&epoll, file, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
        };
        add(waker.event.as_fd(), OF_WAKER)?;
        add(timer.as_fd(), OF_TIMER)?;
        for (number, socket) in (0..OF_TIMER).zip(sockets) {
            add(socket.as_fd(), number)?;
        }
        Ok(Poller { epoll, timer, rings_at: Cell::new(None) })
    }

    /// Waits until a socket has something to read, the waker was used, or `until` is reached. Returns which
    /// sockets have something, a bit for each; `socket` knows them by their numbers.
    pub(crate) fn wait<'a>(
        &self,
        socket: impl Fn(usize) -> &'a Socket,
        waker: &Waker,
        clock: &Clock,
        until: Option<Time>,
    ) -> io::Result<u32> {
        loop {
            let is_over = self.set_timer(clock, until)?;
            let found = self.poll(&socket, if is_over { Some(Duration::ZERO) } else { None })?;
            if found.is_woken {
                waker.clear();
            }
            if found.has_rung {
                self.rings_at.set(None);
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            }
            // It may have been set for an earlier time than this wait's.
            let is_early = until.is_none_or(|until| clock.now() < until);
            if found.ready != 0 || found.is_woken || !found.has_rung || !is_early {
                return Ok(found.ready);
            }
        }
    }

    /// Looks which sockets have something to read. A waker that was used still ends the next wait.
    pub(crate) fn look<'a>(&self, socket: impl Fn(usize) -> &'a Socket) -> io::Result<u32> {
        Ok(self.poll(&socket, Some(Duration::ZERO))?.ready)
    }

    /// Sees that the timer rings at `until` at the latest. Returns whether that is over.
    fn set_timer(&self, clock: &Clock, until: Option<Time>) -> io::Result<bool> {
        let Some(until) = until else { return Ok(false) };
        if self.rings_at.get().is_some_and(|rings_at| rings_at <= until) {
            return Ok(false);
        }
        let span = until.since(clock.now());
        if span.is_zero() {
            return Ok(true);
        }
        let it_value = timespec(span);
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.rings_at.set(Some(until));
        Ok(false)
    }

    fn poll<'a>(
        &self,
        socket: &impl Fn(usize) -> &'a Socket,
        timeout: Option<Duration>,
    ) -> io::Result<Found> {
        let mut found = Found { ready: 0, is_woken: false, has_rung: false };
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); MOST_FILES];
        let timeout = timeout.map(timespec);
        let events = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events,
            // A signal is a reason to look around, not a failure.
            Err(rustix::io::Errno::INTR) => return Ok(found),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            let epoll::Event { flags, data } = *event;
            match data.u64() {
                OF_WAKER => found.is_woken = true,
                OF_TIMER => found.has_rung = true,
                at => {
                    // The bits mean the same.
                    let events = PollFlags::from_bits_retain(flags.bits() as u16);
                    found.ready |= u32::from(look_past_errors(socket(at as usize), events)) << at;
                }
            }
        }
        Ok(found)
    }
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
