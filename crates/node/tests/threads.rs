//! A relay of several data threads, with real threads and sockets: what crosses between them is
//! whole, comes once, wakes who sleeps, and is counted if it is lost.

mod peers;

use canopy_engines::{EngineChoice, EngineName, Namespace};
use canopy_node::{
    ChangeError, Command, Health, NodeConfig, RelayWatch, RunningRelay, ThreadStatus,
};
use canopy_relay::{Change, ComtreeConfig, FIRST_ENDPOINT, Mode};
use canopy_session::SessionLimits;
use canopy_wire::{Comtree, DropReason, Flags, Group, MAX_DATAGRAM, MAX_UPDATE, SAFE_DATAGRAM};
use peers::{LIMIT, Peer, Place};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const THREADS: u16 = 3;
const WORLD: Group = Group::new(1);

/// A relay that stops when it is dropped.
struct TestRelay(Option<RunningRelay>);

impl TestRelay {
    fn start(config: NodeConfig) -> TestRelay {
        const HOUR: Duration = Duration::from_secs(3600);
        // Peers say nothing by themselves.
        let session_limits =
            SessionLimits { lifetime: HOUR, subscription: HOUR, ..SessionLimits::default() };
        TestRelay(Some(RunningRelay::start(&NodeConfig { session_limits, ..config }).unwrap()))
    }

    fn address(&self) -> SocketAddr {
        self.0.as_ref().unwrap().address()
    }

    fn join(&self, threads: u16, seed: u16, groups: &[Group]) -> Peer {
        let place = Place { relay: self.address(), threads, ..Place::default() };
        Peer::join(place, seed, groups)
    }

    /// A peer on each data thread.
    fn join_each(&self, groups: &[Group]) -> Vec<Peer> {
        let place = Place { relay: self.address(), threads: THREADS, ..Place::default() };
        join_each(place, groups)
    }

    fn watch(&self) -> RelayWatch {
        self.0.as_ref().unwrap().watch()
    }

    /// What the relay says once that is as it should be.
    fn status_when(&self, is_right: impl Fn(&ThreadStatus) -> bool) -> ThreadStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = self.watch().status();
            if is_right(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "never as it should be: {status:?}");
            thread::yield_now();
        }
    }
}

/// A peer on each data thread.
fn join_each(place: Place, groups: &[Group]) -> Vec<Peer> {
    let mut peers = BTreeMap::new();
    for seed in 0.. {
        if peers.len() == usize::from(THREADS) {
            break;
        }
        let peer = Peer::join(place, seed, groups);
        if let Some(second) = peers.insert(peer.thread(THREADS), peer) {
            second.leave();
        }
    }
    peers.into_values().collect()
}

impl Drop for TestRelay {
    fn drop(&mut self) {
        let Some(relay) = self.0.take() else { return };
        relay.watch().command(Command::Stop);
        let ended = relay.join();
        if !thread::panicking() {
            ended.expect("the relay ends well");
        }
    }
}

fn three_threads() -> NodeConfig {
    NodeConfig { threads: THREADS, ..NodeConfig::loopback() }
}

#[test]
fn the_largest_updates_cross_whole_and_status_counts_them() {
    const ROUNDS: u64 = 40;
    let comtrees = [1, 2].map(|number| ComtreeConfig::new(Comtree(number), 1)).into();
    let relay = TestRelay::start(NodeConfig { comtrees, ..three_threads() });
    let mut peers = relay.join_each(&[WORLD]);
    let place = Place { relay: relay.address(), comtree: Comtree(2), ..Place::default() };
    let other = Peer::join(place, 9, &[WORLD, Group::new(2)]);
    let others = u64::from(THREADS) - 1;
    for round in 1..=ROUNDS {
        peers.iter_mut().for_each(|peer| peer.publish(WORLD));
        peers.iter_mut().for_each(|peer| peer.expect(round * others));
    }
    assert_eq!(other.received, 0);
    let published = ROUNDS * u64::from(THREADS);
    let status = relay.status_when(|status| status.counters.updates_in == published);
    let counters = &status.counters;
    assert_eq!(counters.updates_passed, published * others);
    assert_eq!(counters.updates_taken, published * others);
    assert_eq!(counters.deliveries_out, published * others);
    assert_eq!(canopy_node::drops_of(counters), BTreeMap::new());
    let participants = |status: &ThreadStatus| {
        let mut all: Vec<_> =
            status.comtrees.iter().map(|one| (one.comtree.0, one.participants)).collect();
        all.sort_unstable();
        all
    };
    assert_eq!((status.sessions, status.subscriptions), (4, 5));
    assert_eq!(participants(&status), [(1, 3), (2, 1)]);
    let of_first = status.comtrees.iter().find(|one| one.comtree == Comtree(1)).unwrap();
    assert_eq!(of_first.counters.updates_in, published);
    peers.pop().unwrap().leave();
    other.leave();
    let status = relay.status_when(|status| status.sessions == 2);
    assert_eq!((status.subscriptions, participants(&status)), (2, vec![(1, 2), (2, 0)]));
}

/// Each peer publishes some datagrams at once, as full as their class has them, to one peer of the same
/// class on each other data thread and to one that takes safe datagrams only.
fn full_datagrams_come_whole(engine: EngineName) {
    const ROUNDS: u64 = 8;
    const AT_ONCE: u64 = 6;
    // With heads, header and seal they are a few bytes short of the longest datagram.
    const FULL: [usize; 2] = [MAX_UPDATE, 360];
    // At a tick what came together leaves together.
    let mode = Mode::Periodic { tick: Duration::from_millis(20) };
    let (engine, max_datagram) = (EngineChoice::Named(engine), MAX_DATAGRAM as u16);
    let relay = TestRelay::start(NodeConfig { engine, max_datagram, mode, ..three_threads() });
    let place = Place { relay: relay.address(), threads: THREADS, ..Place::default() };
    let mut safe = Peer::join(place, 100, &[WORLD]);
    let mut peers = join_each(Place { max_datagram: MAX_DATAGRAM, ..place }, &[WORLD]);
    let each = AT_ONCE * FULL.len() as u64;
    for round in 1..=ROUNDS {
        for peer in &mut peers {
            (0..AT_ONCE).for_each(|_| peer.publish_together(WORLD, &FULL));
        }
        peers.iter_mut().for_each(|peer| peer.expect(round * each * (u64::from(THREADS) - 1)));
        safe.expect(round * each * u64::from(THREADS));
    }
    for peer in &peers {
        let lengths = &peer.lengths;
        let full: u64 = lengths.range(1401..=MAX_DATAGRAM).map(|(_, count)| count).sum();
        let datagrams: u64 = lengths.values().sum();
        // A tick may fall between two updates that come from another data thread.
        assert!(full * 10 >= datagrams * 9, "{engine:?}: few are full: {lengths:?}");
        let due = ROUNDS * each * (u64::from(THREADS) - 1);
        assert_eq!(peer.received, due, "{engine:?}: {lengths:?}");
    }
    let longest = safe.lengths.last_key_value().map(|(len, _)| *len);
    assert!(longest <= Some(SAFE_DATAGRAM), "{:?}", safe.lengths);
    let all = ROUNDS * each * u64::from(THREADS) * u64::from(THREADS);
    let status = relay.status_when(|status| status.counters.deliveries_out == all);
    assert!(status.counters.segmented_sends > 0, "{engine:?}: {status:?}");
    assert_eq!(canopy_node::drops_of(&status.counters), BTreeMap::new());
}

#[test]
fn long_datagrams_are_filled_and_come_whole() {
    for engine in [EngineName::Sendto, EngineName::Sendmmsg, EngineName::Gso] {
        full_datagrams_come_whole(engine);
    }
}

#[test]
fn six_hundred_receivers_get_every_update_once() {
    const RECEIVERS: u16 = 600;
    const ROUNDS: u64 = 3;
    // More sends than a batch holds: in one data thread, and from all of them.
    const AT_ONCE: u64 = 4;
    if canopy_net::raise_open_files() < 4 * u64::from(RECEIVERS) {
        return println!("skipped: too few files may be open (ulimit -n)");
    }
    for threads in [1, THREADS] {
        let relay = TestRelay::start(NodeConfig { threads, ..NodeConfig::loopback() });
        let mut publisher = relay.join(threads, RECEIVERS, &[]);
        let mut receivers: Vec<Peer> =
            (0..RECEIVERS).map(|seed| relay.join(threads, seed, &[WORLD])).collect();
        for round in 1..=ROUNDS {
            (0..AT_ONCE).for_each(|_| publisher.publish(WORLD));
            receivers.iter_mut().for_each(|receiver| receiver.expect(round * AT_ONCE));
        }
        let all = ROUNDS * AT_ONCE * u64::from(RECEIVERS);
        let status = relay.status_when(|status| status.counters.deliveries_out == all);
        assert_eq!(canopy_node::drops_of(&status.counters), BTreeMap::new());
    }
}

/// Why an update may not have come, and for how many of the two subscribers.
const LOSSES: [(DropReason, u64); 5] = [
    (DropReason::ReceiveQueueFull, 2),
    (DropReason::SiblingsFull, 1),
    (DropReason::PendingFull, 1),
    (DropReason::SendQueueFull, 1),
    (DropReason::SendFailed, 1),
];

/// Two on the first data thread publish as fast as they can to one subscriber on each of the two
/// others, until updates were lost for `reason`. The second thread has `ballast` subscribers more.
/// Then all that was sent has been received or is counted.
fn what_is_sent_is_received_or_counted(config: NodeConfig, ballast: usize, reason: DropReason) {
    let relay = TestRelay::start(config);
    let mut seeds = 0..;
    let mut join = |thread, groups: &[Group]| {
        seeds
            .by_ref()
            .find_map(|seed| {
                let peer = relay.join(THREADS, seed, groups);
                if peer.thread(THREADS) == thread {
                    return Some(peer);
                }
                peer.leave();
                None
            })
            .unwrap()
    };
    let mut publishers = [join(0, &[]), join(0, &[])];
    let _ballast: Vec<Peer> = (0..ballast).map(|_| join(1, &[WORLD])).collect();
    let subscribers = [join(1, &[WORLD]), join(2, &[WORLD])];
    let (stop, heard) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    thread::scope(|scope| {
        for (mut subscriber, heard) in subscribers.into_iter().zip(&heard) {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    subscriber.wait(Duration::from_millis(20));
                    subscriber.take();
                    // What its own socket lost is none of the relay's doing.
                    let lost = u64::from(subscriber.socket.lost());
                    heard.store(subscriber.received + lost, Ordering::Relaxed);
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        let deadline = Instant::now() + 2 * LIMIT;
        while relay.watch().status().counters.dropped(reason) == 0 {
            for _ in 0..500 {
                publishers.iter_mut().for_each(|publisher| publisher.publish(WORLD));
            }
            assert!(Instant::now() < deadline, "nothing is counted under {reason:?}");
        }
        settle(&relay, &mut publishers, &heard, deadline);
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until the books are even. The kernel tells of a loss with the next datagram only, so one
/// more is published now and then.
fn settle(relay: &TestRelay, publishers: &mut [Peer], heard: &[AtomicU64], deadline: Instant) {
    loop {
        publishers.iter_mut().for_each(|publisher| publisher.publish(WORLD));
        let sent: u64 = publishers.iter().map(Peer::published).sum();
        let look_again = Instant::now() + Duration::from_secs(1);
        while Instant::now() < look_again {
            // The relay's first: what it counts later has not been heard either.
            let counters = relay.watch().status().counters;
            let heard: u64 = heard.iter().map(|one| one.load(Ordering::Relaxed)).sum();
            let dropped = |reason| counters.dropped(reason);
            let counted: u64 = LOSSES.iter().map(|(reason, of)| dropped(*reason) * of).sum();
            assert!(heard + counted <= 2 * sent, "{heard} + {counted} of {sent}: {counters:?}");
            let accepted = sent - dropped(DropReason::ReceiveQueueFull);
            // Data threads tell one after the other, so they agree only when all is told.
            let handed = counters.updates_taken + dropped(DropReason::SiblingsFull);
            let passed = [counters.updates_passed, handed, heard + counted - 2 * (sent - accepted)];
            if counters.updates_in == accepted && passed == [2 * accepted; 3] {
                return;
            }
            assert!(Instant::now() < deadline, "{heard} + {counted} of {sent}: {counters:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_thread_that_cannot_keep_up_loses_counted_updates() {
    what_is_sent_is_received_or_counted(three_threads(), 100, DropReason::SiblingsFull);
}

#[test]
fn a_small_receive_buffer_loses_counted_updates() {
    let config = NodeConfig { receive_buffer: 4096, ..three_threads() };
    what_is_sent_is_received_or_counted(config, 0, DropReason::ReceiveQueueFull);
}

#[test]
fn sends_that_the_kernel_refuses_are_counted() {
    let host = match Namespace::new() {
        Ok(host) => host,
        Err(error) => return println!("skipped: {error}"),
    };
    for engine in [EngineName::Sendto, EngineName::Sendmmsg, EngineName::Gso] {
        host.run(|| refuse_one_receiver(&host, EngineChoice::Named(engine))).unwrap();
    }
}

fn refuse_one_receiver(host: &Namespace, engine: EngineChoice) {
    const UPDATES: u64 = 50;
    let relay = TestRelay::start(NodeConfig { engine, ..three_threads() });
    let mut peers = relay.join_each(&[WORLD]);
    let elsewhere = Ipv4Addr::new(127, 0, 0, 5);
    let place = Place { relay: relay.address(), from: elsewhere, ..Place::default() };
    let mut refused = Peer::join(place, 100, &[WORLD]);
    let mut came = 0;
    for round in 1..=2 {
        host.ip("route add unreachable 127.0.0.5 table local").unwrap();
        (0..UPDATES).for_each(|_| peers[0].publish(WORLD));
        relay.status_when(|status| {
            status.counters.dropped(DropReason::SendFailed) == round * UPDATES
        });
        host.ip("route del unreachable 127.0.0.5 table local").unwrap();
        peers[0].publish(WORLD);
        came += UPDATES + 1;
        peers[1..].iter_mut().for_each(|peer| peer.expect(came));
        refused.expect(round);
    }
}

/// One of three data threads ends by itself, as it cannot stay on a processor that there is not.
#[test]
fn a_thread_that_fails_is_named_and_ends_the_relay() {
    let here = canopy_net::available_processors()[0];
    let relay = RunningRelay::start(&NodeConfig { pin: vec![here, usize::MAX], ..three_threads() });
    let relay = relay.unwrap();
    let watch = relay.watch();
    let (ended, end) = mpsc::channel();
    let joining = thread::spawn(move || ended.send(relay.join()));
    let failed = end.recv_timeout(LIMIT).expect("the others are stopped").unwrap_err();
    joining.join().unwrap().unwrap();
    let why = format!("{failed:#}");
    assert!(why.contains("data thread 1 failed: cannot stay on processor"), "{why}");
    assert_eq!(watch.health(), Health::Draining, "the others were told to stop");
    for thread in 0..THREADS {
        let remove = Change::RemoveLink { key: [0; 32], thread };
        assert_eq!(watch.apply(remove), Err(ChangeError::NoAnswer(thread.into())), "it is gone");
    }
}

/// A thread that has nobody has nothing to wait for but the others.
#[test]
fn an_idle_thread_is_woken_for_who_finds_no_place_elsewhere() {
    let endpoints = FIRST_ENDPOINT..=FIRST_ENDPOINT + THREADS - 1;
    let comtree = ComtreeConfig { endpoints, ..ComtreeConfig::new(Comtree(1), 1) };
    let config = NodeConfig { comtrees: vec![comtree], ..three_threads() };
    let mut passed_on = 0;
    for seed in 0..4 {
        let relay = TestRelay::start(config.clone());
        let peers = [0, 1, 2].map(|number| relay.join(THREADS, 3 * seed + number, &[]));
        passed_on += peers.iter().filter(|peer| peer.thread(THREADS) != peer.asked).count();
    }
    assert!(passed_on > 0, "each asked the thread that had a place: choose other seeds");
}

/// A publisher talks to itself on its own data thread while an update of its goes to another: how
/// often there and back before it comes is the clock. A thread that is not woken looks for itself
/// ten times a second, hundreds of rounds later.
#[test]
fn idle_threads_deliver_within_few_turns_of_the_others() {
    const UPDATES: usize = 24;
    const FEW: u64 = 20;
    const MIRROR: Group = Group::new(2);
    let relay = TestRelay::start(three_threads());
    let mut peers = relay.join_each(&[WORLD]);
    let seed = (100..).find_map(|seed| {
        let peer = relay.join(THREADS, seed, &[MIRROR]);
        if peer.thread(THREADS) == 0 {
            return Some(peer);
        }
        peer.leave();
        None
    });
    let mut publisher = seed.unwrap();
    for idle in peers.iter_mut().skip(1) {
        let mut rounds = Vec::new();
        for _ in 0..UPDATES {
            publisher.publish(WORLD);
            let (mut count, begun) = (0, Instant::now());
            let all = idle.received + 1;
            while idle.received < all {
                assert!(begun.elapsed() < LIMIT, "it never comes");
                publisher.publish_len(MIRROR, 100, Flags::ECHO);
                publisher.expect(publisher.received + 1);
                idle.take();
                count += 1;
            }
            rounds.push(count);
        }
        let quick = rounds.iter().filter(|rounds| **rounds <= FEW).count();
        assert!(quick >= UPDATES / 4, "thread {}: {rounds:?}", idle.thread(THREADS));
    }
}
