//! A NAT to put in front of a relay.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A NAT: every client's ip:port gets a socket of its own towards the relay.
pub(crate) struct Nat {
    address: SocketAddr,
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Orders {
    rebind: AtomicBool,
    stop: AtomicBool,
}

impl Nat {
    pub(crate) fn start(relay: SocketAddr) -> Nat {
        let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
        // How soon it looks at its orders and at what comes back.
        inside.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let address = inside.local_addr().unwrap();
        let orders = Arc::new(Orders::default());
        let its_orders = Arc::clone(&orders);
        let thread = std::thread::spawn(move || {
            let mut mapped = HashMap::new();
            while !its_orders.stop.load(Ordering::Acquire) {
                if its_orders.rebind.load(Ordering::Acquire) {
                    mapped.clear();
                    its_orders.rebind.store(false, Ordering::Release);
                }
                translate(&inside, relay, &mut mapped);
            }
        });
        Nat { address, orders, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forgets all mappings: the relay sees every client under a new port. Returns when it has.
    pub(crate) fn rebind(&self) {
        self.orders.rebind.store(true, Ordering::Release);
        while self.orders.rebind.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.orders.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the NAT panicked");
        }
    }
}

/// Moves what waits, both ways.
fn translate(inside: &UdpSocket, relay: SocketAddr, mapped: &mut HashMap<SocketAddr, UdpSocket>) {
    let mut bytes = [0; 2048];
    while let Ok((len, from)) = inside.recv_from(&mut bytes) {
        let outside = mapped.entry(from).or_insert_with(|| {
            let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
            outside.set_nonblocking(true).unwrap();
            outside.connect(relay).unwrap();
            outside
        });
        outside.send(&bytes[..len]).unwrap();
    }
    for (client, outside) in mapped.iter() {
        while let Ok(len) = outside.recv(&mut bytes) {
            inside.send_to(&bytes[..len], client).unwrap();
        }
    }
}
