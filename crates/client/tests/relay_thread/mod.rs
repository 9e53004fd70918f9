//! A real relay on a thread of the test's, and a NAT to put in front of it.

use canopy_net::{Clock, Mmsg, Receiver, SendEngine, Socket, SocketOptions, Waker, wait_readable};
use canopy_relay::{Mode, Relay, RelayConfig, TableLimits};
use canopy_session::{Keyring, SessionLimits, SessionsConfig};
use canopy_wire::{Comtree, Path};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Something that runs on a thread until it is dropped.
struct Running {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(body: impl FnOnce(&AtomicBool, &Waker) + Send + 'static) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let waker = Arc::new(Waker::new().unwrap());
        let (its_stop, its_waker) = (Arc::clone(&stop), Arc::clone(&waker));
        let thread = std::thread::spawn(move || body(&its_stop, &its_waker));
        Running { stop, waker, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the thread panicked");
        }
    }
}

/// A relay; stops when it is dropped, without a word to its participants.
pub(crate) struct RelayThread {
    address: SocketAddr,
    sessions: Arc<AtomicU32>,
    _running: Running,
}

/// A relay for comtree 1, with limits as in real life.
pub(crate) fn config() -> RelayConfig {
    RelayConfig {
        mode: Mode::Immediate,
        sessions: SessionsConfig {
            comtrees: vec![Comtree(1)],
            site: 1,
            shard: 0,
            shards: 1,
            max_sessions: 64,
            limits: SessionLimits::default(),
        },
        tables: TableLimits::default(),
        smallest_set: None,
    }
}

/// A relay whose participants notice soon that it is gone: for tests that are about that. A
/// machine that is busy for long enough may make them think so, too.
pub(crate) fn watchful() -> RelayConfig {
    let mut config = config();
    config.sessions.limits.keepalive = Duration::from_millis(50);
    config
}

impl RelayThread {
    /// A relay on a free port.
    pub(crate) fn start(config: RelayConfig) -> RelayThread {
        RelayThread::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), config)
    }

    pub(crate) fn start_at(address: SocketAddr, config: RelayConfig) -> RelayThread {
        let socket = Socket::bind(address, &SocketOptions::default()).unwrap();
        let address = socket.local_address();
        let sessions = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&sessions);
        let running = Running::start(move |stop, waker| {
            let mut relay = Relay::new(config, Keyring::new([1; 16]), &[2; 16]);
            let (clock, mut engine) = (Clock::start(), Mmsg::plain());
            let mut receiver = Receiver::new(8, 65_535);
            while !stop.load(Ordering::Acquire) {
                wait_readable(&socket, waker, &clock, relay.poll_timeout()).unwrap();
                let now = clock.now();
                let take = |from: Path, datagram: &[u8]| {
                    let _ = relay.handle_datagram(now, from.remote, datagram);
                };
                receiver.receive(&socket, take).unwrap();
                relay.handle_timeout(now);
                // Before anyone can have an answer.
                count.store(relay.sessions(), Ordering::Release);
                relay.transmit(now, |batch| {
                    let sent = engine.send(&socket, batch, &mut Vec::new());
                    assert_eq!(sent.full, None, "loopback always has room");
                });
            }
        });
        RelayThread { address, sessions, _running: running }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many participants the relay has.
    pub(crate) fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Acquire)
    }

    /// Another relay in its place, which knows nothing of this one's participants.
    pub(crate) fn restart(self, config: RelayConfig) -> RelayThread {
        let address = self.address;
        drop(self);
        RelayThread::start_at(address, config)
    }
}

/// A NAT in front of a relay: every client's ip:port gets a socket of its own towards the relay.
pub(crate) struct Nat {
    address: SocketAddr,
    orders: Arc<Orders>,
    _running: Running,
}

#[derive(Default)]
struct Orders {
    rebind: AtomicBool,
    block: AtomicBool,
}

impl Nat {
    pub(crate) fn start(relay: SocketAddr) -> Nat {
        let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
        // How soon it looks at its orders and at what comes back.
        inside.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let address = inside.local_addr().unwrap();
        let orders = Arc::new(Orders::default());
        let its_orders = Arc::clone(&orders);
        let running = Running::start(move |stop, _| {
            let mut mapped = HashMap::new();
            let mut blocked = Vec::new();
            while !stop.load(Ordering::Acquire) {
                if its_orders.block.load(Ordering::Acquire) {
                    blocked.extend(mapped.keys().copied());
                    its_orders.block.store(false, Ordering::Release);
                }
                if its_orders.rebind.load(Ordering::Acquire) {
                    mapped.clear();
                    its_orders.rebind.store(false, Ordering::Release);
                }
                translate(&inside, relay, &mut mapped, &blocked);
            }
        });
        Nat { address, orders, _running: running }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forgets all mappings: the relay sees every client under a new port.
    pub(crate) fn rebind(&self) {
        give(&self.orders.rebind);
    }

    /// Lets nothing of today's clients through any more; sockets that are new are welcome.
    pub(crate) fn block(&self) {
        give(&self.orders.block);
    }
}

/// Gives an order and waits until it has been carried out.
fn give(order: &AtomicBool) {
    order.store(true, Ordering::Release);
    while order.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Moves what waits, both ways.
fn translate(
    inside: &UdpSocket,
    relay: SocketAddr,
    mapped: &mut HashMap<SocketAddr, UdpSocket>,
    blocked: &[SocketAddr],
) {
    let mut bytes = [0; 2048];
    while let Ok((len, from)) = inside.recv_from(&mut bytes) {
        if blocked.contains(&from) {
            continue;
        }
        let outside = mapped.entry(from).or_insert_with(|| {
            let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
            outside.set_nonblocking(true).unwrap();
            outside.connect(relay).unwrap();
            outside
        });
        outside.send(&bytes[..len]).unwrap();
    }
    for (client, outside) in mapped.iter().filter(|(client, _)| !blocked.contains(client)) {
        while let Ok(len) = outside.recv(&mut bytes) {
            inside.send_to(&bytes[..len], client).unwrap();
        }
    }
}
