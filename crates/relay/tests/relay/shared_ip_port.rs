//! Several sessions at one ip:port, as behind a gateway: each says that it shares it, and is known by its
//! participant's key and its comtree.

use crate::support::{COMTREE, OTHER_COMTREE, World, config, ip_port, with_downlink};
use canopy_relay::{Gate, GateLimits, Mode, RelayConfig};
use canopy_session::{Event, Identity, SessionConfig, State};
use canopy_wire::{Comtree, Downlink, DropReason, Flags, RefusedReason};
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const GATEWAY: ([u8; 4], u16) = ([10, 0, 0, 9], 4040);

/// Somebody with this private key, who shares an ip:port.
fn sharer(key: u8, number: usize, comtree: Comtree) -> SessionConfig {
    let seed = [[key; 8], (number as u64).to_be_bytes()].as_flattened().try_into().unwrap();
    let identity = Some(Identity::new([key; 32]));
    SessionConfig { identity, shares_ip_port: true, ..SessionConfig::new(comtree, seed) }
}

/// Adds a participant behind the gateway; it joins when the world settles.
fn add(world: &mut World, asks: usize, config: SessionConfig) -> usize {
    world.has_gateway = true;
    let number = world.add_session(asks, config);
    world.participants[number].path = SocketAddr::from(GATEWAY).into();
    number
}

fn join(world: &mut World, asks: usize, key: u8) -> usize {
    let number = add(world, asks, sharer(key, world.participants.len(), COMTREE));
    world.settle();
    number
}

/// Somebody publishes to a group, and whoever wants it has it.
fn say(world: &mut World, number: usize, payload: &[u8]) {
    world.publish(number, 7, 0, Flags(0), payload);
    world.settle();
}

fn are_in(world: &World, numbers: impl IntoIterator<Item = usize>) -> Vec<bool> {
    let state = |number: usize| world.participants[number].session.state();
    numbers.into_iter().map(|number| state(number) == State::Connected).collect()
}

/// Ends a participant's process: nothing more comes from it.
fn crash(world: &mut World, number: usize) {
    world.participants[number].path = ip_port(40_000 + number).into();
    let identity = Some(Identity::new([0; 32]));
    let config = SessionConfig { identity, ..SessionConfig::new(COMTREE, [0; 16]) };
    let mut session = canopy_session::Session::new(config);
    session.leave();
    world.participants[number].session = session;
}

#[test]
fn each_session_of_a_gateway_gets_its_own_and_nobody_elses() {
    for threads in [1, 3] {
        let mut world = World::with_threads(config(Mode::Immediate), threads);
        let all: Vec<_> = (0..12)
            .map(|number| {
                add(
                    &mut world,
                    number % usize::from(threads),
                    sharer(number as u8 + 1, number, COMTREE),
                )
            })
            .collect();
        world.settle();
        assert_eq!((world.sessions(), are_in(&world, all.clone())), (12, vec![true; 12]));
        let mut addresses: Vec<_> = all.iter().map(|one| world.address(*one)).collect();
        addresses.sort_by_key(|address| address.0);
        addresses.dedup();
        assert_eq!(addresses.len(), 12);
        for number in 0..6 {
            world.subscribe(number, 7, 0);
        }
        say(&mut world, 11, b"to the half that wants it");
        let told = (0..12).map(|number| world.payloads(number).len());
        assert_eq!(told.collect::<Vec<_>>(), [[1; 6], [0; 6]].concat());
        let one = world.address(9);
        world.publish_to(11, one, 0, Flags(0), b"to one");
        world.settle();
        assert_eq!(world.payloads(9), [b"to one"]);
        assert_eq!(world.participants.iter().map(|one| one.received.len()).sum::<usize>(), 7);
        // They stay for as long as each gives signs of life.
        world.pass(SECOND * 15);
        assert_eq!(world.sessions(), 12);
        crash(&mut world, 3);
        world.pass(SECOND * 15);
        assert_eq!((world.sessions(), are_in(&world, [2, 3, 4])), (11, vec![true, false, true]));
    }
}

#[test]
fn one_participant_is_on_two_comtrees_from_one_ip_port() {
    let mut world = World::new(Mode::Immediate, 0);
    for (number, comtree) in [COMTREE, OTHER_COMTREE].into_iter().enumerate() {
        add(&mut world, 0, sharer(5, number, comtree));
        world.settle();
    }
    assert_eq!((world.sessions(), are_in(&world, 0..2)), (2, vec![true; 2]));
    world.subscribe_all(7, 0);
    for number in 0..2 {
        let other = world.join(0);
        assert_eq!(world.participants[other].comtree, COMTREE);
        say(&mut world, number, &[number as u8]);
    }
    let received = [0, 1].map(|number| world.payloads(number).len());
    assert_eq!(received, [0, 0], "comtrees do not hear each other, nor does who publishes");
}

#[test]
fn who_joins_again_from_a_shared_ip_port_takes_the_place_of_its_own_session_alone() {
    for (threads, asks) in [(1, 0), (3, 0), (3, 2)] {
        let mut world = World::with_threads(config(Mode::Immediate), threads);
        for key in 1..=4 {
            join(&mut world, 0, key);
        }
        crash(&mut world, 1);
        world.now = world.now + SECOND;
        let again = join(&mut world, asks, 2);
        assert_eq!(world.sessions(), 4, "{threads} threads, thread {asks} is asked");
        assert_eq!(are_in(&world, [0, 2, 3, again]), [true; 4]);
        world.subscribe(0, 7, 0);
        say(&mut world, again, b"here again");
        assert_eq!(world.payloads(0), [b"here again"]);
    }
}

#[test]
fn without_the_feature_an_ip_port_is_its_last_owners_and_sharers_stay() {
    for threads in [1, 2] {
        let mut world = World::with_threads(config(Mode::Immediate), threads);
        let sharers = [join(&mut world, 0, 1), join(&mut world, 0, 2)];
        let alone = |world: &mut World, asks| {
            world.now = world.now + SECOND;
            let config = SessionConfig {
                shares_ip_port: false,
                ..sharer(9, world.participants.len(), COMTREE)
            };
            let number = add(world, asks, config);
            world.settle();
            number
        };
        let older = alone(&mut world, 0);
        assert_eq!((world.sessions(), are_in(&world, sharers)), (3, vec![true; 2]));
        crash(&mut world, older);
        let newer = alone(&mut world, usize::from(threads) - 1);
        assert_eq!(world.sessions(), 3, "the newer has the place of the older");
        assert_eq!(are_in(&world, [sharers[0], sharers[1], newer]), [true; 3]);
    }
}

/// A browser's session goes on from another gateway's ip:port.
#[test]
fn one_session_moves_away_from_a_shared_ip_port_and_back() {
    for threads in [1, 2] {
        let mut world = World::with_threads(config(Mode::Immediate), threads);
        let all =
            [1, 2, 3].map(|key| join(&mut world, usize::from(key) % usize::from(threads), key));
        world.subscribe_all(7, 0);
        for path in [ip_port(77), SocketAddr::from(GATEWAY)] {
            world.now = world.now + SECOND;
            world.participants[all[1]].path = path.into();
            // Its next packet is answered with a challenge, and the proof moves it.
            say(&mut world, all[1], b"from elsewhere");
            assert!(world.events(all[1]).contains(&Event::Rebound), "to {path}");
            for number in all {
                world.participants[number].received.clear();
            }
            say(&mut world, all[0], b"to all");
            let received = all.map(|number| world.payloads(number).len());
            assert_eq!((world.sessions(), received), (3, [0, 1, 1]), "at {path}");
        }
        world.pass(SECOND * 15);
        assert_eq!(are_in(&world, all), [true; 3]);
    }
}

#[test]
fn a_late_copy_from_a_shared_ip_port_brings_nothing_back() {
    let mut world = World::new(Mode::Immediate, 0);
    world.captured = Some(Vec::new());
    join(&mut world, 0, 1);
    let sent = world.captured.replace(Vec::new()).unwrap();
    let other = join(&mut world, 0, 2);
    world.participants[0].session.leave();
    world.pass(SECOND);
    assert_eq!(world.sessions(), 1);
    let stale = world.dropped(DropReason::Stale);
    for datagram in &sent {
        world.arrive(0, SocketAddr::from(GATEWAY), datagram);
    }
    assert_eq!((world.sessions(), are_in(&world, [other])), (1, vec![true]));
    assert_eq!(world.dropped(DropReason::Stale), stale + 1, "its connect");
}

/// What goes out as one datagram for all does not say whose copy it is.
#[test]
fn nobody_shares_an_ip_port_where_updates_are_one_datagram_for_all() {
    for downlink in [Downlink::Group, Downlink::None] {
        let relay = with_downlink(config(Mode::Immediate), downlink);
        let mut world = World::of(relay, 0);
        let number = join(&mut world, 0, 1);
        assert_eq!(world.events(number), [Event::Refused(RefusedReason::CannotShare)]);
        assert_eq!((world.sessions(), world.dropped(DropReason::CannotShare)), (0, 1));
    }
}

#[test]
fn sessions_that_share_an_ip_port_count_for_their_ip_each() {
    let limits = GateLimits { sessions_per_ip: 4, ..GateLimits::NONE };
    let gate = Gate::new(limits, &[8; 16]);
    let mut world = World::with_threads(RelayConfig { gate, ..config(Mode::Immediate) }, 2);
    for key in 1..=6 {
        join(&mut world, usize::from(key) % 2, key);
    }
    assert_eq!((world.sessions(), world.dropped(DropReason::TooManySessions)), (4, 2));
    // Whoever takes the place of its own session needs no other.
    crash(&mut world, 0);
    world.now = world.now + SECOND;
    let again = join(&mut world, 1, 1);
    assert_eq!((world.sessions(), are_in(&world, [again])), (4, vec![true]));
}
