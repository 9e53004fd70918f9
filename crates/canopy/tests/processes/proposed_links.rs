//! Links that a controller proposes: relays on hosts of their own in two regions, with a delay between
//! them. It needs root.
//!
//! The delay is made here, by what stands between the hosts: not every kernel has `netem`.

use crate::support::{Server, canopy};
use canopy_engines::Namespace;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(40);
/// Three in each region; they come in turns.
const RELAYS: usize = 6;
const RELAY_PORT: u16 = 4040;
/// Relays are reached over this host, at a port for each.
const BETWEEN: Ipv4Addr = Ipv4Addr::new(10, 81, 0, 200);
const FIRST_PORT: u16 = 5000;
/// The time one way within a region, and to the other one.
const NEAR: Duration = Duration::from_millis(3);
const FAR: Duration = Duration::from_millis(30);
/// What is between looks so often whether something has come or is due.
const LOOK: Duration = Duration::from_micros(300);

fn name(relay: usize) -> String {
    format!("r{relay}")
}

fn host_ip(relay: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 81, 0, relay as u8 + 1)
}

fn native(relay: usize) -> SocketAddr {
    SocketAddr::new(BETWEEN.into(), FIRST_PORT + relay as u16)
}

/// In which region a relay is.
fn region(relay: usize) -> usize {
    relay % 2
}

/// A caller, and the relay that it calls.
type Way = (SocketAddr, usize);
/// A datagram: when it leaves, which one it is, whether it goes to the relay or back, over which way.
type Carried = (Instant, u64, bool, Way, Vec<u8>);

/// What is between the hosts: it carries each datagram after the time that its way takes.
struct Between {
    /// Where the relays are reached.
    doors: Vec<UdpSocket>,
    /// From where the relay is called.
    ways: BTreeMap<Way, UdpSocket>,
    /// What is on its way, in the order in which it leaves.
    due: BinaryHeap<Reverse<Carried>>,
    carried: u64,
}

impl Between {
    fn new() -> Between {
        let door = |relay| {
            let door = UdpSocket::bind(native(relay)).unwrap();
            door.set_nonblocking(true).unwrap();
            door
        };
        let doors = (0..RELAYS).map(door).collect();
        Between { doors, ways: BTreeMap::new(), due: BinaryHeap::new(), carried: 0 }
    }

    fn run(mut self, ends: &AtomicBool) {
        let mut bytes = [0; 2048];
        while !ends.load(Ordering::Relaxed) {
            for relay in 0..RELAYS {
                while let Ok((len, from)) = self.doors[relay].recv_from(&mut bytes) {
                    self.take(true, (from, relay), &bytes[..len]);
                }
            }
            let mut back = Vec::new();
            for (way, socket) in &self.ways {
                while let Ok(len) = socket.recv(&mut bytes) {
                    back.push((*way, bytes[..len].to_vec()));
                }
            }
            back.into_iter().for_each(|(way, bytes)| self.take(false, way, &bytes));
            self.carry();
            thread::sleep(LOOK);
        }
    }

    fn take(&mut self, is_there: bool, way: Way, bytes: &[u8]) {
        let caller = (0..RELAYS).find(|relay| way.0.ip() == host_ip(*relay));
        let is_near = caller.is_some_and(|caller| region(caller) == region(way.1));
        let at = Instant::now() + if is_near { NEAR } else { FAR };
        self.carried += 1;
        self.due.push(Reverse((at, self.carried, is_there, way, bytes.to_vec())));
    }

    fn carry(&mut self) {
        while self.due.peek().is_some_and(|Reverse((at, ..))| *at <= Instant::now()) {
            let Some(Reverse((_, _, is_there, way, bytes))) = self.due.pop() else { return };
            // A host that is not there yet takes nothing.
            if is_there {
                let socket = self.ways.entry(way).or_insert_with(|| {
                    let socket = UdpSocket::bind((BETWEEN, 0)).unwrap();
                    socket.connect((host_ip(way.1), RELAY_PORT)).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    socket
                });
                _ = socket.send(&bytes);
            } else {
                _ = self.doors[way.1].send_to(&bytes, way.0);
            }
        }
    }
}

/// Dropped in this order, so processes end before their hosts.
struct Bed {
    relays: Vec<Server>,
    controller: Server,
    ends: Arc<AtomicBool>,
    hosts: Vec<Namespace>,
    network: Namespace,
    folder: tempfile::TempDir,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

impl Bed {
    /// A controller that proposes three links for a relay; `None`, with a word, where no namespace can be made.
    fn new() -> Option<Bed> {
        let network = Namespace::new().inspect_err(|error| println!("skipped: {error}")).ok()?;
        network.ip("link add bridge type bridge").unwrap();
        network.ip(&format!("addr add {BETWEEN}/24 dev bridge")).unwrap();
        network.ip("link set bridge up").unwrap();
        let hosts = (0..RELAYS).map(|relay| attach(&network, relay)).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let begin = || {
            let between = Between::new();
            // It makes sockets of the network that it is started on.
            thread::spawn(move || between.run(&until));
        };
        network.run(begin).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (dir, listen) = (folder.path().to_str().unwrap(), format!("{BETWEEN}:4041"));
        let mut command = canopy(&["controller", "--json", "--dir", dir, "--listen", &listen]);
        command.args(["--open-relays", "--open", "--api", "127.0.0.1:0", "--degree", "3"]);
        command.stderr(Stdio::null());
        let controller = network.run(|| Server::spawn(command)).unwrap();
        Some(Bed { relays: Vec::new(), controller, ends, hosts, network, folder })
    }

    fn start_relay(&mut self) {
        let relay = self.relays.len();
        let key = self.folder.path().join(format!("{}.key", name(relay)));
        let (listen, native) = (format!("{}:{RELAY_PORT}", host_ip(relay)), native(relay));
        let mut command = canopy(&["relay", "--json", "--threads", "1", "--listen", &listen]);
        command.args(["--key", key.to_str().unwrap(), "--name", &name(relay)]);
        command.args(["--native", &native.to_string(), "--uplink", "100000000"]);
        command.args(["--controller", &format!("{BETWEEN}:4041")]);
        command.args(["--controller-key", self.controller.ready["key"].as_str().unwrap()]);
        command.stderr(Stdio::null());
        self.relays.push(self.hosts[relay].run(|| Server::spawn(command)).unwrap());
    }

    /// What a command of an operator prints.
    fn operate(&self, words: &[&str]) -> String {
        let mut command = canopy(words);
        command.env("CANOPY_CONTROLLER_DIR", self.folder.path());
        let output = self.network.run(|| command.output().unwrap()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn links(&self) -> Vec<Value> {
        let told = self.operate(&["relay", "links", "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        told["links"].as_array().unwrap().clone()
    }

    /// Waits until all links are usable, and proposed for what was measured.
    fn until_measured(&self) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let links = self.links();
            let is_done = |link: &Value| {
                let why = link["why"].as_str().unwrap();
                let is_measured = why.contains("were measured") && !why.contains("made before");
                link["usable"] == true && is_measured
            };
            let ends: Vec<usize> = links.iter().flat_map(ends).collect();
            let are_all = (0..self.relays.len()).all(|relay| ends.contains(&relay));
            if are_all && links.iter().all(is_done) {
                return links;
            }
            assert!(began.elapsed() < PATIENCE, "{links:?}");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// A host on the network.
fn attach(network: &Namespace, relay: usize) -> Namespace {
    let host = Namespace::new().unwrap();
    let (name, far) = (name(relay), host.path());
    let far = far.display();
    network.ip(&format!("link add {name} type veth peer name net netns {far}")).unwrap();
    network.ip(&format!("link set {name} master bridge up")).unwrap();
    host.ip(&format!("addr add {}/24 dev net", host_ip(relay))).unwrap();
    host.ip("link set net up").unwrap();
    host
}

fn ends(link: &Value) -> [usize; 2] {
    [0, 1].map(|end| link["ends"][end].as_str().unwrap()[1..].parse().unwrap())
}

fn is_across(link: &&Value) -> bool {
    let [one, other] = ends(link);
    region(one) != region(other)
}

/// How many links each relay has.
fn links_of_each(links: &[Value]) -> [usize; RELAYS] {
    let mut counts = [0; RELAYS];
    links.iter().flat_map(ends).for_each(|end| counts[end] += 1);
    counts
}

#[test]
fn proposed_links_follow_the_delays_between_two_regions() {
    let Some(mut bed) = Bed::new() else { return };
    (1..RELAYS).for_each(|_| bed.start_relay());
    bed.until_measured();
    // The last one comes when the others have found each other.
    bed.start_relay();
    let links = bed.until_measured();
    let told = bed.operate(&["relay", "links"]);
    let (far, near): (Vec<&Value>, Vec<&Value>) = links.iter().partition(is_across);
    for (links, delay) in [(&near, NEAR), (&far, FAR)] {
        let is_so = |link: &&Value| {
            let measured = Duration::from_micros(link["delay_us"].as_u64().unwrap());
            measured >= delay && measured < delay + FAR / 2
        };
        assert!(links.iter().all(is_so), "{links:?} take {delay:?}");
    }
    // What suited five relays may stay for six; joined by what is there, six would have seven of these. Where
    // the five left the last one no room in its region for its second link, that leads across, too.
    let counts = links_of_each(&links);
    let last = RELAYS - 1;
    let is_full =
        |relay: usize| relay == last || region(relay) != region(last) || counts[relay] == 3;
    let most = if (0..RELAYS).all(is_full) { 4 } else { 3 };
    assert!((1..=most).contains(&far.len()), "{told}");
    let of_region = |at| near.iter().filter(|link| region(ends(link)[0]) == at).count();
    assert!(of_region(0) >= 2 && of_region(1) >= 2, "each region is joined within: {told}");
    assert!(counts.iter().all(|count| *count <= 3), "{told}");
    assert!(links.iter().all(|link| link["bits"] == 100_000_000 && link["proposed"] == true));
}
