//! Floods of what is not an update: what a member repeats costs it a bounded number of answers, and
//! the other data threads nothing.

use crate::support::{COMTREE, World, config, with_downlink};
use canopy_relay::{Budgets, Gate, GateLimits, Mode, RelayConfig};
use canopy_session::{Event, SessionConfig};
use canopy_wire::{
    Comtree, Downlink, DropReason, Flags, GroupKeyHeld, GroupKeyNumber, Kind, Packet, Rebind,
};
use std::net::SocketAddr;
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);

fn limited() -> RelayConfig {
    RelayConfig { budgets: Budgets::default(), ..config(Mode::Immediate) }
}

#[test]
fn a_flood_of_questions_for_group_keys_is_not_answered_for_ever() {
    let mut world = World::of(with_downlink(limited(), Downlink::Group), 2);
    let (id, mut out) = (world.participants[0].session.id(), [0; 1500]);
    let before = world.relay().counters().group_keys_given;
    let none = GroupKeyNumber::NONE;
    for _ in 0..5000 {
        let held = GroupKeyHeld { newest: none, lacks: none };
        let len = held.encode(COMTREE, id, &mut out).unwrap();
        world.send(0, &out[..len]);
        world.settle();
        world.now = world.now + MILLI / 5;
    }
    let given = world.relay().counters().group_keys_given - before;
    assert!(given <= 310, "{given}");
}

/// A member repeats the proof of one move, each time in a packet of its own.
#[test]
fn a_flood_of_proofs_of_one_move_is_not_answered_for_ever() {
    let mut world = World::with_threads(limited(), 2);
    let (mover, _) = (world.join(0), world.join(1));
    world.now = world.now + 100 * MILLI;
    let there = SocketAddr::from(([127, 0, 0, 1], 60_000));
    world.participants[mover].path = there.into();
    world.publish(mover, 7, 0, Flags(0), b"from elsewhere, and long enough for an answer");
    let challenge = world.collect(0);
    world.carry(0, challenge);
    let mut out = [0; 1500];
    let now = world.now;
    let len = world.participants[mover].session.poll_transmit(now, &mut out).unwrap();
    let packet = world.open_from(mover, &out[..len]);
    let packet = Packet::new_checked(&packet).unwrap();
    assert_eq!(packet.header().kind, Kind::Rebind);
    let cookie = Rebind::decode(&packet).unwrap().cookie;
    world.arrive(0, there, &out[..len]);
    world.settle();
    assert!(world.events(mover).contains(&Event::Rebound));
    let (before, mut told) = (world.datagrams, 0);
    for _ in 0..5000 {
        let id = world.participants[mover].session.id();
        let len = Rebind { cookie }.encode(COMTREE, id, &mut out).unwrap();
        world.send(mover, &out[..len]);
        told += usize::from(!world.threads[1].has_heard_all());
        world.settle();
        world.now = world.now + MILLI / 5;
    }
    let answered = world.datagrams - before;
    assert!(answered <= 310 && told <= 310, "{answered}, {told}");
}

/// Handshakes that hold, but are for a comtree that the relay does not carry.
#[test]
fn a_flood_of_handshakes_for_nothing_from_many_prefixes_is_a_flood_of_bad_ones() {
    let limits =
        GateLimits { handshakes_per_ip: 400, handshakes_per_prefix: 400, ..GateLimits::NONE };
    let gate = Gate::new(limits, &[8; 16]);
    let mut world = World::with_threads(RelayConfig { gate, ..limited() }, 1);
    for attacker in 0..3200u32 {
        let mut seed = [9; 16];
        seed[..4].copy_from_slice(&attacker.to_be_bytes());
        let number = world.add_session(0, SessionConfig::new(Comtree(99), seed));
        let (prefix, port) = ((attacker % 4) as u8, 1024 + attacker as u16);
        world.participants[number].path = SocketAddr::from(([203, 0, prefix, 1], port)).into();
        world.send_from(number);
        world.run(0);
        world.send_from(number);
        world.collect(0);
        world.participants.clear();
        // Strangers are answered at a rate.
        world.now = world.now + MILLI / 5;
    }
    let failed = world.dropped(DropReason::UnknownComtree);
    // The first 1,000 and as many each second; then a quarter of what each prefix may have at once.
    assert!(failed < 2400, "{failed}");
    assert_eq!(failed + world.dropped(DropReason::TooManyHandshakes), 3200);
}

/// Many join and leave, so that nobody is remembered for long. Then a copy of somebody's connect comes.
#[test]
fn a_flood_of_departures_brings_no_old_connect_back() {
    let mut world = World::of(limited(), 0);
    world.captured = Some(Vec::new());
    let left = world.join(0);
    let sent = world.captured.take().unwrap();
    let connect = sent.into_iter().find(|datagram| kind_of(datagram) == Some(Kind::Connect));
    let (connect, path) = (connect.unwrap(), world.participants[left].path);
    world.participants[left].session.leave();
    world.settle();
    for _ in 0..1100 {
        world.now = world.now + 5 * MILLI;
        let next = world.join(0);
        world.participants[next].session.leave();
        world.settle();
    }
    world.arrive(0, path, &connect);
    assert_eq!((world.sessions(), world.dropped(DropReason::Stale)), (0, 1));
}

fn kind_of(datagram: &[u8]) -> Option<Kind> {
    Packet::new_checked(datagram).ok().map(|packet| packet.header().kind)
}
