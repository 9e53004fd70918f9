//! Waiting for many sockets at once: what drives a crowd of clients on one thread.

use crate::{Clock, Socket};
use canopy_wire::Time;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// The most sockets that one wait reports; the others are reported by the next.
const EVENTS: usize = 256;

/// A set of sockets to wait for (`epoll`, level-triggered): a socket is reported by every wait
/// until it was read empty. A socket leaves the set when it is dropped.
pub struct Readiness {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Readiness {
    /// An empty set.
    ///
    /// # Errors
    /// If the process may open no more files.
    pub fn new() -> io::Result<Readiness> {
        // SAFETY: the call takes an integer; the descriptor it returns is owned by nobody else.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Readiness { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Adds a socket, to be reported as `token`.
    ///
    /// # Errors
    /// What the kernel says, for example that the socket is in the set already.
    pub fn add(&self, socket: &Socket, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: both descriptors are open; the call reads one event.
        let result = unsafe {
            let epoll = self.epoll.as_raw_fd();
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits until a socket has something to read or `until` is reached; an `until` in the past
    /// only looks. Calls `ready` with the token of each socket that has something, and returns how
    /// many have.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(
        &mut self,
        clock: &Clock,
        until: Option<Time>,
        mut ready: impl FnMut(u64),
    ) -> io::Result<usize> {
        let timeout = until.map(|until| until.since(clock.now())).map(|limit| libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the kernel writes at most as many events as the vector has; the timeout outlives
        // the call or is null.
        let count = unsafe {
            let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
            libc::epoll_pwait2(epoll, events, self.events.len() as i32, timeout, ptr::null())
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            // A signal is a reason to look around, not a failure.
            return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
        }
        let count = count as usize;
        self.events[..count].iter().for_each(|event| ready(event.u64));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Receiver, SocketOptions};
    use std::time::Duration;

    fn socket() -> Socket {
        Socket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap()
    }

    fn ready(readiness: &mut Readiness, clock: &Clock, until: Time) -> Vec<u64> {
        let mut tokens = Vec::new();
        let count = readiness.wait(clock, Some(until), |token| tokens.push(token)).unwrap();
        assert_eq!(count, tokens.len());
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn sockets_are_reported_until_they_are_read_empty_or_dropped() {
        let clock = Clock::start();
        let mut readiness = Readiness::new().unwrap();
        let sockets = [socket(), socket(), socket()];
        for (socket, token) in sockets.iter().zip(10..) {
            readiness.add(socket, token).unwrap();
        }
        assert!(readiness.add(&sockets[0], 7).is_err(), "a socket is in the set once");
        assert_eq!(ready(&mut readiness, &clock, Time::ZERO), []);

        let sender = socket();
        let deadline = clock.now() + Duration::from_secs(2);
        for to in [&sockets[0], &sockets[2]] {
            sender.connect(to.local_address()).unwrap();
            sender.send(b"hello").unwrap();
        }
        assert_eq!(ready(&mut readiness, &clock, deadline), [10, 12]);
        assert_eq!(ready(&mut readiness, &clock, deadline), [10, 12]);

        let mut receiver = Receiver::new(2, 65_535);
        let mut received = 0;
        receiver.receive(&sockets[0], |_, bytes| received += bytes.len()).unwrap();
        assert_eq!((received, ready(&mut readiness, &clock, deadline)), (5, vec![12]));
        drop(sockets);
        assert_eq!(ready(&mut readiness, &clock, Time::ZERO), []);
    }

    #[test]
    fn a_wait_ends_when_its_time_is_reached() {
        let clock = Clock::start();
        let mut readiness = Readiness::new().unwrap();
        let until = clock.now() + Duration::from_micros(1500);
        assert_eq!(ready(&mut readiness, &clock, until), []);
        assert!(clock.now() >= until);
    }
}
