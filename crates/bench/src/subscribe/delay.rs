//! A long way between two sockets of this host: every datagram arrives so much later, in order.

use canopy_net::{Clock, Receiver, Socket, SocketOptions, Waker, wait_readable};
use canopy_wire::{MAX_DATAGRAM, Time};
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A way between two ends, which each see the other at one end of it.
pub(super) struct Way {
    /// Where the first end finds the second, and the second the first.
    pub(super) ends: [SocketAddr; 2],
    stop: Arc<AtomicBool>,
    threads: Vec<(Arc<Waker>, JoinHandle<()>)>,
}

impl Way {
    /// A way between two sockets of this host that takes so long in each direction.
    pub(super) fn between(ends: [SocketAddr; 2], delay: Duration) -> io::Result<Way> {
        let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let open = |end: SocketAddr| {
            let socket = Socket::bind(any, &options)?;
            socket.connect(end)?;
            io::Result::Ok(Arc::new(socket))
        };
        let sockets = [open(ends[0])?, open(ends[1])?];
        let seen = [sockets[0].local_address(), sockets[1].local_address()];
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (sockets[from].clone(), sockets[to].clone());
            let (waker, stop) = (Arc::new(Waker::new()?), stop.clone());
            let woken = waker.clone();
            let carry = move || carry(&from, &to, delay, &woken, &stop);
            let name = "way".to_owned();
            threads.push((waker, std::thread::Builder::new().name(name).spawn(carry)?));
        }
        Ok(Way { ends: seen, stop, threads })
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for (waker, thread) in self.threads.drain(..) {
            waker.wake();
            // What went wrong there shows as loss.
            let _ = thread.join();
        }
    }
}

/// Carries datagrams in one direction until told to stop.
fn carry(from: &Socket, to: &Socket, delay: Duration, waker: &Waker, stop: &AtomicBool) {
    let clock = Clock::start();
    let mut receiver = Receiver::new(64, MAX_DATAGRAM + 1);
    let mut on_the_way: VecDeque<(Time, Vec<u8>)> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let until = on_the_way.front().map(|(at, _)| *at);
        if wait_readable(from, waker, &clock, until).is_err() {
            return;
        }
        let at = clock.now() + delay;
        let take = |_, datagram: &mut [u8]| on_the_way.push_back((at, datagram.to_vec()));
        if receiver.receive(from, take).is_err() {
            return;
        }
        while let Some((_, datagram)) = on_the_way.pop_front_if(|(at, _)| *at <= clock.now()) {
            // As on any network, what finds no room is lost.
            let _ = to.send(&datagram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn datagrams_arrive_later_and_in_order() {
        let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let ends = [0, 1].map(|number| sockets[number].local_addr().unwrap());
        let delay = Duration::from_millis(30);
        let way = Way::between(ends, delay).unwrap();
        for (sender, receiver) in [(0, 1), (1, 0)] {
            let clock = Clock::start();
            for number in 0..10u8 {
                sockets[sender].send_to(&[number], way.ends[sender]).unwrap();
            }
            for number in 0..10u8 {
                let mut bytes = [0; 8];
                let (_, from) = sockets[receiver].recv_from(&mut bytes).unwrap();
                assert_eq!((bytes[0], from), (number, way.ends[receiver]));
                assert!(clock.now() >= Time::ZERO + delay);
            }
        }
    }
}
