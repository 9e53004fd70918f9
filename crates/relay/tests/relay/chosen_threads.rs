//! Whoever asks chooses the data thread: by the nonce of its hello, or by the one that it wants a link
//! with. What it may cost the relay is the same whichever it chooses.

use crate::support::{COMTREE, OTHER_COMTREE, Sent, World, config, ip_port};
use canopy_relay::{ComtreeConfig, Gate, GateLimits, Mode, Places, RelayConfig};
use canopy_session::{Call, Event, Identity, PublicKey, Session, SessionConfig, State};
use canopy_wire::{DropReason, Flags, RefusedReason, SessionId};
use std::net::SocketAddr;
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);
const ATTACKER: [u8; 4] = [203, 0, 113, 7];
/// From how many prefixes handshakes come for nothing, and how many from each.
const PREFIXES: u32 = 8;
const EACH: u32 = 800;
/// What each may at once, of which a quarter is quiet; it is far more than the failures that a relay bears.
const GATE: GateLimits =
    GateLimits { handshakes_per_ip: 400, handshakes_per_prefix: 400, ..GateLimits::NONE };

/// A relay whose comtree has so many addresses, divided among its data threads.
fn with_addresses(addresses: u16, limits: GateLimits, threads: u16) -> World {
    let endpoints = 64..=63 + addresses;
    let comtrees = vec![ComtreeConfig { endpoints, ..ComtreeConfig::new(COMTREE, 1) }];
    let (gate, address_rest) = (Gate::new(limits, &[8; 16]), Duration::ZERO);
    let config = RelayConfig { comtrees, gate, address_rest, ..config(Mode::Immediate) };
    World::with_threads(config, threads)
}

fn add_at(world: &mut World, ip: [u8; 4], asks: usize) -> usize {
    let number = world.add_participant(asks, COMTREE);
    world.participants[number].path = SocketAddr::from((ip, ip_port(number).port())).into();
    number
}

fn is_in(world: &World, number: usize) -> bool {
    world.participants[number].session.state() == State::Connected
}

/// L3: the sender chooses its data thread by its nonce, so one thread can be filled on purpose. The
/// others' addresses are there for whoever asks that thread.
#[test]
fn a_data_thread_that_is_filled_on_purpose_keeps_nobody_out() {
    for threads in [2, 4, 64] {
        let each = 40;
        let mut world = with_addresses(threads * each, GateLimits::NONE, threads);
        for _ in 0..each {
            world.join(0);
        }
        assert_eq!(world.relay().sessions(), u32::from(each), "thread 0 has no address left");
        let honest: Vec<usize> = (0..20).map(|_| world.join(0)).collect();
        assert!(honest.iter().all(|number| is_in(&world, *number)), "{threads} threads");
        let next = world.threads[1].sessions();
        assert_eq!(next, 20, "each was passed on to the next thread, by way of nobody else");
        let passed = world.sum(|counters| counters.connects_passed);
        assert_eq!((passed, world.dropped(DropReason::SessionsFull)), (20, 0));
        // They are members like all others.
        world.subscribe(honest[0], 7, 0);
        world.publish(honest[1], 7, 0, Flags(0), b"x");
        world.settle();
        assert_eq!(world.payloads(honest[0]), [b"x"]);
    }
}

/// L3: the places are the relay's, so asking one thread alone brings no more of them than asking all in
/// turn; and those of other comtrees stay theirs.
#[test]
fn a_data_thread_that_is_filled_on_purpose_leaves_other_comtrees_their_places() {
    let config = RelayConfig { places: Places::divided(80), ..config(Mode::Immediate) };
    let mut world = World::with_threads(config, 4);
    for _ in 0..100 {
        world.add_participant(0, OTHER_COMTREE);
        world.settle();
    }
    // What is common, and the comtree's own part of each thread.
    assert_eq!((world.sessions(), world.relay().sessions()), (60, 45));
    for asks in [0, 0, 0, 0, 1, 2, 3, 0] {
        let number = world.add_participant(asks, COMTREE);
        world.settle();
        assert!(is_in(&world, number), "whoever asks {asks}");
    }
}

/// L3: what an ip may is counted over all data threads, whichever of them it asks.
#[test]
fn the_limits_of_an_ip_hold_over_all_data_threads() {
    for asks_all in [false, true] {
        let limits = GateLimits { sessions_per_ip: 8, ..GateLimits::default() };
        let mut world = with_addresses(400, limits, 4);
        for number in 0..100 {
            add_at(&mut world, ATTACKER, if asks_all { number % 4 } else { 0 });
        }
        world.settle();
        assert_eq!(world.sessions(), 8);
        let agreements = world.dropped(DropReason::TooManySessions) + 8;
        assert_eq!(agreements, 64, "what an ip may at once");
        assert_eq!(world.dropped(DropReason::TooManyHandshakes), 100 - 64);
        assert_eq!(world.events(99), [Event::Refused(RefusedReason::TooMany)]);
    }
}

/// A connect that is handed on does not pass the gate a second time. Many that wait between two data
/// threads at once are no way round it.
#[test]
fn who_is_handed_on_counts_among_the_sessions_of_its_ip() {
    let limits = GateLimits { sessions_per_ip: 8, ..GateLimits::NONE };
    let mut world = with_addresses(80, limits, 2);
    for host in 0..40 {
        add_at(&mut world, [198, 51, 100, host], 0);
    }
    world.settle();
    assert_eq!((world.relay().sessions(), world.threads[1].sessions()), (40, 0));
    let first = world.participants.len();
    for _ in 0..20 {
        let number = add_at(&mut world, ATTACKER, 0);
        world.send_from(number);
    }
    let cookies = world.collect(0);
    world.carry(0, cookies);
    // All are on their way before the other thread counts any.
    for number in first..first + 20 {
        world.send_from(number);
    }
    assert_eq!(world.sum(|counters| counters.connects_passed), 20);
    world.settle();
    assert_eq!(world.threads[1].sessions(), 8);
    assert_eq!(world.dropped(DropReason::TooManySessions), 12);
    // Each is refused once, and who comes from elsewhere is let in.
    let refused = [Event::Refused(RefusedReason::TooMany)];
    assert_eq!((first..first + 20).filter(|number| world.events(*number) == refused).count(), 12);
    let other = add_at(&mut world, [192, 0, 2, 1], 0);
    world.settle();
    assert!(is_in(&world, other));
}

/// Says hello and brings the cookie back from an ip of its own choice; nobody hears the answers.
fn knock(world: &mut World, thread: usize, session: SessionConfig, from: SocketAddr) {
    let (mut session, mut out) = (Session::new(session), [0; 1500]);
    let len = session.poll_transmit(world.now, &mut out).unwrap();
    world.arrive(thread, from, &out[..len]);
    let cookie = world.collect(thread);
    for datagram in cookie.iter().flat_map(Sent::datagrams) {
        session.handle_datagram(world.now, &mut datagram.to_vec(), |_| ()).unwrap();
    }
    let len = session.poll_transmit(world.now, &mut out).unwrap();
    world.arrive(thread, from, &out[..len]);
}

/// A data thread takes what the other has handed on; its answers are lost.
fn hear(world: &mut World, thread: usize) {
    let now = world.now;
    world.threads[thread].handle_siblings(now);
    world.collect(thread);
}

/// From many prefixes, of each more than is quiet, handshakes come for nothing. Returns how many cost each
/// data thread a key agreement.
fn flood(world: &mut World, session: impl Fn(u32) -> SessionConfig) -> [u64; 2] {
    for attacker in 0..PREFIXES * EACH {
        let prefix = (attacker % PREFIXES) as u8;
        let from = SocketAddr::from(([203, 0, prefix, 1], 1024 + (attacker / PREFIXES) as u16));
        knock(world, 0, session(attacker), from);
        if attacker % 64 == 0 {
            (0..2).for_each(|thread| hear(world, thread));
        }
        // Strangers are answered at a rate.
        world.now = world.now + MILLI / 20;
    }
    world.settle();
    let turned_away = world.threads[0].counters().dropped(DropReason::TooManyHandshakes);
    let of_other = &world.threads[1].counters();
    let refused = DropReason::ALL.iter().map(|reason| of_other.dropped(*reason)).sum();
    [u64::from(PREFIXES * EACH) - turned_away, refused]
}

fn seed(attacker: u32) -> [u8; 16] {
    let mut seed = [9; 16];
    seed[..4].copy_from_slice(&attacker.to_be_bytes());
    seed
}

/// Beyond the quiet ones, 1,000 and as many a second: one thread as little as the other.
fn assert_is_bounded(agreements: [u64; 2]) {
    for agreements in agreements {
        assert!((1000..3200).contains(&agreements), "{agreements} of {}", PREFIXES * EACH);
    }
}

/// What costs a key agreement for nothing is bounded while many fail. Those that are handed on to a
/// thread which has no place either fail as well.
#[test]
fn a_flood_of_handshakes_at_a_full_relay_is_a_flood_of_bad_ones_on_every_data_thread() {
    let mut world = with_addresses(2, GATE, 2);
    world.join(0);
    world.join(1);
    let agreements = flood(&mut world, |attacker| SessionConfig::new(COMTREE, seed(attacker)));
    assert_is_bounded(agreements);
    // Who comes from a quiet prefix costs an agreement still, and may have a place when there is one.
    world.participants[0].session.leave();
    world.settle();
    let quiet = add_at(&mut world, [198, 51, 100, 7], 1);
    world.settle();
    assert!(is_in(&world, quiet));
}

/// Anybody can call as a neighbour would, and name the data thread that it wants.
#[test]
fn a_flood_of_calls_for_another_data_thread_is_a_flood_of_bad_handshakes() {
    let mut world = with_addresses(400, GATE, 2);
    let key = world.key_of(0);
    let agreements = flood(&mut world, |attacker| call(&key, attacker));
    assert_is_bounded(agreements);
    let quiet = add_at(&mut world, [198, 51, 100, 7], 0);
    world.settle();
    assert!(is_in(&world, quiet));
}

fn call(key: &PublicKey, attacker: u32) -> SessionConfig {
    let call = Call { session: SessionId::new(5), threads: 1, thread: 1 };
    let identity = Some(Identity::new([77; 32]));
    SessionConfig {
        relay_key: Some(*key),
        identity,
        call: Some(call),
        ..SessionConfig::new(COMTREE, seed(attacker))
    }
}
