//! A relay on a thread of the test, on a free port of the loopback, that can be told to misbehave.

use canopy_net::{Clock, Mmsg, Receiver, SendEngine, Socket, SocketOptions, Waker, wait_readable};
use canopy_relay::{Mode, Relay, RelayConfig, SendBatch, TableLimits};
use canopy_session::{Keyring, SessionLimits, SessionsConfig};
use canopy_wire::{Bundle, Comtree, Flags, Kind, Packet, Path};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// What the relay does to one in [`ONE_IN`] of the datagrams with updates that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Drop,
    Double,
    /// Another participant gets a copy too.
    Misroute,
}

const ONE_IN: u64 = 500;

pub(crate) struct RelayThread {
    pub(crate) address: SocketAddr,
    /// Updates in the datagrams that were meddled with.
    pub(crate) meddled: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl RelayThread {
    pub(crate) fn start(mode: Mode, fault: Fault, max_sessions: u32) -> RelayThread {
        let options = SocketOptions::default();
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let address = socket.local_address();
        let (stop, meddled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let waker = Arc::new(Waker::new().unwrap());
        let count = Arc::clone(&meddled);
        let mut turn = Turn {
            relay: Relay::new(config(mode, max_sessions), Keyring::new([1; 16]), &[2; 16]),
            socket,
            clock: Clock::start(),
            waker: Arc::clone(&waker),
            sender: Sender { engine: Mmsg::plain(), fault, sent: 0, last: None, meddled: count },
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut receiver = Receiver::new(32, 65_535);
            while !stopped.load(Ordering::Relaxed) {
                turn.run(&mut receiver);
            }
        });
        RelayThread { address, meddled, stop, waker, thread: Some(thread) }
    }
}

fn config(mode: Mode, max_sessions: u32) -> RelayConfig {
    let sessions = SessionsConfig {
        comtrees: vec![Comtree(1)],
        site: 1,
        shard: 0,
        shards: 1,
        max_sessions,
        limits: SessionLimits::default(),
    };
    RelayConfig { mode, sessions, tables: TableLimits::default(), smallest_set: None }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().expect("the relay's thread does not panic");
        }
    }
}

struct Turn {
    relay: Relay,
    socket: Socket,
    clock: Clock,
    waker: Arc<Waker>,
    sender: Sender,
}

impl Turn {
    fn run(&mut self, receiver: &mut Receiver) {
        let until = self.relay.poll_timeout();
        wait_readable(&self.socket, &self.waker, &self.clock, until).unwrap();
        let now = self.clock.now();
        let relay = &mut self.relay;
        let take = |from: Path, datagram: &[u8]| {
            let _ = relay.handle_datagram(now, from.remote, datagram);
        };
        receiver.receive(&self.socket, take).unwrap();
        relay.handle_timeout(now);
        relay.transmit(now, |batch| self.sender.send(&self.socket, batch));
    }
}

struct Sender {
    engine: Mmsg,
    fault: Fault,
    sent: u64,
    last: Option<SocketAddr>,
    meddled: Arc<AtomicU64>,
}

impl Sender {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) {
        if self.fault == Fault::None {
            self.send_now(socket, batch);
            return;
        }
        let mut out = SendBatch::new();
        for transmit in batch.transmits() {
            let joined: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
            for datagram in joined.chunks(transmit.segment.into()) {
                self.push(&mut out, transmit.to.remote, datagram);
            }
        }
        self.send_now(socket, &out);
    }

    fn send_now(&mut self, socket: &Socket, batch: &SendBatch) {
        let mut rest = Vec::new();
        let sent = self.engine.send(socket, batch, &mut rest);
        assert_eq!(sent.full, None, "loopback always has room");
    }

    fn push(&mut self, out: &mut SendBatch, to: SocketAddr, datagram: &[u8]) {
        let updates = updates_in(datagram);
        self.sent += u64::from(updates > 0);
        let other = self.last.replace(to).filter(|last| *last != to);
        if updates == 0 || !self.sent.is_multiple_of(ONE_IN) {
            return out.push_datagram(to, datagram);
        }
        self.meddled.fetch_add(updates, Ordering::Relaxed);
        match (self.fault, other) {
            (Fault::Drop, _) => {}
            (Fault::Misroute, Some(other)) => {
                out.push_datagram(to, datagram);
                out.push_datagram(other, datagram);
            }
            _ => {
                out.push_datagram(to, datagram);
                out.push_datagram(to, datagram);
            }
        }
    }
}

fn updates_in(datagram: &[u8]) -> u64 {
    let packet = Packet::new_checked(datagram).unwrap();
    match packet.header().kind {
        Kind::Data => 1,
        Kind::Bundle => {
            let bundle = Bundle::new_checked(&packet).unwrap();
            bundle.records().filter(|record| !record.flags.contains(Flags::VOID)).count() as u64
        }
        _ => 0,
    }
}
