//! Waiting for many sockets at once: what drives a crowd of clients on one thread.

use crate::clock::Clock;
use crate::socket::Socket;
use crate::wait::timespec;
use canopy_wire::Time;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;

/// The most sockets that one wait reports; the others are reported by the next.
const EVENTS: usize = 256;

/// A set of sockets to wait for (`epoll`, level-triggered): a socket is reported by every wait
/// until it was read empty. A socket leaves the set when it is dropped.
pub struct Readiness {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Readiness {
    /// An empty set.
    ///
    /// # Errors
    /// If the process may open no more files.
    pub fn new() -> io::Result<Readiness> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Readiness { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Adds a socket, to be reported as `token`.
    ///
    /// # Errors
    /// What the kernel says, for example that the socket is in the set already.
    pub fn add(&self, socket: &Socket, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
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
        let timeout = until.map(|until| timespec(until.since(clock.now())));
        self.events.clear();
        let events = spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, events, timeout.as_ref()) {
            Ok(_) => {}
            // A signal is a reason to look around, not a failure.
            Err(rustix::io::Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
        self.events.iter().for_each(|event| ready(event.data.u64()));
        Ok(self.events.len())
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
