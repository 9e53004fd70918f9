//! A real relay, and somebody on the way from it who meddles with what it sends.

use canopy_net::set_receive_buffer;
use canopy_node::{Command, NodeConfig, RunningRelay};
use canopy_relay::Mode;
use canopy_wire::{Address, Downlink, HEADER_LEN, Packet};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is done to one in [`ONE_IN`] of the datagrams with updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Drop,
    Double,
    /// Another participant, who never got anything of its first update's group, gets a copy too.
    Misroute,
    /// It comes after the next one with an update of the same publisher.
    Swap,
    /// Its first update is in another publisher's name.
    Forge,
}

const ONE_IN: u64 = 300;
/// A relay that stops when it is dropped.
pub(crate) struct TestRelay(Option<RunningRelay>);

impl TestRelay {
    pub(crate) fn start(mode: Mode, threads: u16, max_sessions: u32) -> TestRelay {
        TestRelay::with(NodeConfig { mode, threads, max_sessions, ..NodeConfig::loopback() })
    }

    /// One that seals no updates, so that somebody on the way can meddle with them unseen.
    pub(crate) fn in_clear() -> TestRelay {
        let mut config = NodeConfig { max_sessions: 200, ..NodeConfig::loopback() };
        config.comtrees.iter_mut().for_each(|comtree| comtree.downlink = Downlink::None);
        TestRelay::with(config)
    }

    fn with(config: NodeConfig) -> TestRelay {
        let config = NodeConfig { drain: Duration::ZERO, ..config };
        TestRelay(Some(RunningRelay::start(&config).unwrap()))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.as_ref().unwrap().address()
    }
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        let Some(relay) = self.0.take() else { return };
        relay.watch().command(Command::Stop);
        let ended = relay.join();
        if !std::thread::panicking() {
            ended.expect("the relay ends well");
        }
    }
}

/// Forwards between participants and a relay, each participant from a socket of its own.
pub(crate) struct Meddler {
    pub(crate) address: SocketAddr,
    /// Updates in the datagrams that were meddled with.
    pub(crate) meddled: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meddler {
    pub(crate) fn start(relay: SocketAddr, fault: Fault) -> Meddler {
        let (front, meddled) = (Arc::new(socket()), Arc::new(AtomicU64::new(0)));
        let (address, stop) = (front.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let tricks = Tricks { fault, seen: 0, had: BTreeMap::new(), held: HashMap::new() };
        let way = Way {
            front,
            relay,
            stop: Arc::clone(&stop),
            tricks: Arc::new(Mutex::new(tricks)),
            meddled: Arc::clone(&meddled),
        };
        let thread = std::thread::spawn(move || way.up());
        Meddler { address, meddled, stop, thread: Some(thread) }
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes who waits for the next datagram.
        socket().send_to(&[], self.address).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().expect("the meddler does not panic");
        }
    }
}

#[derive(Clone)]
struct Way {
    front: Arc<UdpSocket>,
    relay: SocketAddr,
    stop: Arc<AtomicBool>,
    tricks: Arc<Mutex<Tricks>>,
    meddled: Arc<AtomicU64>,
}

impl Way {
    /// From the participants to the relay.
    fn up(&self) {
        let mut backs: HashMap<SocketAddr, (Arc<UdpSocket>, JoinHandle<()>)> = HashMap::new();
        let mut bytes = vec![0; 65_536];
        loop {
            let (len, participant) = self.front.recv_from(&mut bytes).unwrap();
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let (back, _) = backs.entry(participant).or_insert_with(|| {
                let (way, back) = (self.clone(), Arc::new(socket()));
                let towards = Arc::clone(&back);
                (back, std::thread::spawn(move || way.down(&towards, participant)))
            });
            back.send_to(&bytes[..len], self.relay).unwrap();
        }
        for (back, thread) in backs.into_values() {
            self.front.send_to(&[], back.local_addr().unwrap()).unwrap();
            thread.join().unwrap();
        }
    }

    /// From the relay to one participant.
    fn down(&self, back: &UdpSocket, participant: SocketAddr) {
        let mut bytes = vec![0; 65_536];
        while !self.stop.load(Ordering::Relaxed) {
            let (len, from) = back.recv_from(&mut bytes).unwrap();
            if from != self.relay {
                continue;
            }
            let mut tricks = self.tricks.lock().unwrap();
            for (to, datagram) in tricks.take(participant, &bytes[..len], &self.meddled) {
                // Who has gone is no concern of this one's.
                let _ = self.front.send_to(&datagram, to);
            }
        }
    }
}

struct Tricks {
    fault: Fault,
    seen: u64,
    /// By participant: the groups that the relay ever sent it something of.
    had: BTreeMap<SocketAddr, BTreeSet<Address>>,
    /// By participant: what is held back.
    held: HashMap<SocketAddr, Vec<u8>>,
}

impl Tricks {
    /// Somebody who never got anything of what the first update of a datagram was sent to.
    fn stranger_to(&self, datagram: &[u8]) -> Option<SocketAddr> {
        let packet = Packet::new_checked(datagram).unwrap();
        let group = packet.updates().unwrap().next()?.dst;
        self.had.iter().find_map(|(who, had)| (!had.contains(&group)).then_some(*who))
    }

    /// What becomes of a datagram.
    fn take(
        &mut self,
        to: SocketAddr,
        datagram: &[u8],
        meddled: &AtomicU64,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let (publishers, updates) = publishers(datagram);
        let mut all = vec![(to, datagram.to_vec())];
        if updates == 0 {
            return all;
        }
        self.seen += 1;
        let packet = Packet::new_checked(datagram).unwrap();
        self.had.entry(to).or_default().extend(packet.updates().unwrap().map(|one| one.dst));
        let shares = |held: &Vec<u8>| !self::publishers(held).0.is_disjoint(&publishers);
        if self.held.get(&to).is_some_and(shares) {
            all.extend(self.held.remove(&to).map(|held| (to, held)));
            return all;
        }
        if !self.seen.is_multiple_of(ONE_IN) || self.held.contains_key(&to) {
            return all;
        }
        meddled.fetch_add(updates, Ordering::Relaxed);
        match self.fault {
            Fault::Drop => all.clear(),
            Fault::Double => all.push((to, datagram.to_vec())),
            Fault::Misroute => {
                let stranger = self.stranger_to(datagram).expect("nobody gets all groups");
                all.push((stranger, datagram.to_vec()));
            }
            Fault::Swap => {
                self.held.insert(to, datagram.to_vec());
                all.clear();
            }
            Fault::Forge => forge(&mut all[0].1),
        }
        all
    }
}

/// Whose updates a datagram carries, and how many.
fn publishers(datagram: &[u8]) -> (BTreeSet<Address>, u64) {
    let Ok(packet) = Packet::new_checked(datagram) else { return Default::default() };
    let sources: Vec<_> = packet.updates().unwrap().map(|record| record.src).collect();
    let count = sources.len() as u64;
    (sources.into_iter().collect(), count)
}

/// The publisher of the first record becomes its neighbour by address: the last byte of the source,
/// which stands before the series.
fn forge(datagram: &mut [u8]) {
    const SOURCE_FORM: u8 = 3;
    let last = match datagram[HEADER_LEN] & SOURCE_FORM {
        0 => HEADER_LEN + 4,
        form => panic!("the first record of a datagram leaves its source out: {form}"),
    };
    datagram[last] ^= 1;
}

fn anywhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(anywhere()).unwrap();
    set_receive_buffer(&socket, 4 << 20).unwrap();
    socket
}
