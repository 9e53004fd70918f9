//! The data plane by itself: real sessions on a perfect network without time.

use canopy_relay::{Intake, Mode, Relay, RelayConfig, TableLimits};
use canopy_session::{
    Event, Keyring, Session, SessionConfig, SessionLimits, Sessions, SessionsConfig, Update,
};
use canopy_wire::{Comtree, DropReason, Flags, Group, Kind, Level, Packet, TableFull, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const COMTREE: Comtree = Comtree(1);

/// A relay with participants, joined by memory.
struct World {
    relay: Relay,
    now: Time,
    participants: Vec<Session>,
    /// By participant: (publisher's endpoint, payload) in order of arrival.
    received: Vec<Vec<(u16, Vec<u8>)>>,
    /// Lengths of the datagrams of every send with more than one.
    segmented: Vec<Vec<usize>>,
    datagrams: usize,
}

fn ip_port(participant: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 10_000 + participant as u16))
}

fn config(mode: Mode) -> RelayConfig {
    RelayConfig {
        mode,
        sessions: SessionsConfig {
            comtrees: vec![COMTREE, Comtree(2)],
            site: 1,
            shard: 0,
            shards: 1,
            max_sessions: 200,
            limits: SessionLimits::default(),
        },
        tables: TableLimits::default(),
        smallest_set: None,
    }
}

impl World {
    fn new(mode: Mode, participants: usize) -> World {
        World::of(config(mode), participants)
    }

    fn of(config: RelayConfig, participants: usize) -> World {
        let mut world = World {
            relay: Relay::new(config, Keyring::new([1; 16]), &[2; 16]),
            now: Time::from_millis(1),
            participants: Vec::new(),
            received: vec![Vec::new(); participants],
            segmented: Vec::new(),
            datagrams: 0,
        };
        for number in 0..participants {
            let seed = [number as u8 + 1; 16];
            world.participants.push(Session::new(SessionConfig { comtree: COMTREE, seed }));
        }
        world.settle();
        world
    }

    /// Moves datagrams both ways until no one has any.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for number in 0..self.participants.len() {
                let mut out = [0; 1500];
                while let Some(len) = self.participants[number].poll_transmit(self.now, &mut out) {
                    moved = true;
                    let intake = self.relay.handle_datagram(self.now, ip_port(number), &out[..len]);
                    assert_eq!(intake, Intake::Done);
                }
            }
            self.transmit();
            if !moved {
                return;
            }
        }
    }

    fn transmit(&mut self) {
        let (now, participants) = (self.now, &mut self.participants);
        let (received, segmented) = (&mut self.received, &mut self.segmented);
        let datagrams = &mut self.datagrams;
        self.relay.transmit(now, |batch| {
            for transmit in batch.transmits() {
                let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                assert_eq!(bytes.len(), transmit.len as usize);
                let number = usize::from(transmit.to.remote.port()) - 10_000;
                let pieces: Vec<_> = bytes.chunks(transmit.segment.into()).collect();
                assert_eq!(pieces.len(), transmit.datagrams() as usize);
                *datagrams += pieces.len();
                if pieces.len() > 1 {
                    segmented.push(pieces.iter().map(|piece| piece.len()).collect());
                }
                for piece in pieces {
                    let deliver = |update: canopy_session::Update<'_>| {
                        received[number].push((update.src.endpoint(), update.payload.to_vec()));
                    };
                    participants[number].handle_datagram(now, piece, deliver).unwrap();
                }
            }
        });
    }

    fn subscribe_all(&mut self, group: u32, level: u8) {
        for participant in &mut self.participants {
            participant.subscribe(Group::new(group), Level(level));
        }
        self.settle();
    }

    fn publish(&mut self, number: usize, group: u32, level: u8, flags: Flags, payload: &[u8]) {
        let mut out = [0; 1500];
        let len = self.participants[number]
            .publish(Group::new(group).address(), Level(level), flags, payload, &mut out)
            .unwrap();
        let intake = self.relay.handle_datagram(self.now, ip_port(number), &out[..len]);
        assert_eq!(intake, Intake::Done);
    }

    fn payloads(&self, number: usize) -> Vec<&[u8]> {
        self.received[number].iter().map(|(_, payload)| &payload[..]).collect()
    }
}

#[test]
fn everyone_but_the_publisher_receives() {
    let mut world = World::new(Mode::Immediate, 4);
    world.subscribe_all(7, 0);
    world.publish(1, 7, 0, Flags(0), b"hello");
    world.settle();
    let counts: Vec<_> = world.received.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 0, 1, 1]);
    assert_eq!(world.relay.counters().deliveries_out, 3);
    world.publish(1, 7, 0, Flags::ECHO, b"again");
    world.settle();
    assert_eq!(world.payloads(1), [b"again"]);
}

#[test]
fn reserved_flags_go_no_further_than_the_relay() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    // One update leaves as a data packet, two as a bundle.
    for updates in [1, 2] {
        for _ in 0..updates {
            world.publish(0, 7, 0, Flags(0x7f), b"hello");
        }
        let mut flags = Vec::new();
        world.relay.transmit(world.now, |batch| {
            for transmit in batch.transmits() {
                let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                let packet = Packet::new_checked(&bytes).unwrap();
                flags.extend(packet.updates().unwrap().map(|update| update.flags));
            }
        });
        assert_eq!(flags, vec![Flags::ECHO; 2 * updates]);
    }
}

#[test]
fn levels_are_one_comparison() {
    let mut world = World::new(Mode::Immediate, 4);
    for (number, level) in [0, 1, 2, 3].into_iter().enumerate() {
        world.participants[number].subscribe(Group::new(7), Level(level));
    }
    world.settle();
    for level in 0..4 {
        world.publish(3, 7, level, Flags::ECHO, &[level]);
    }
    world.settle();
    assert_eq!(world.payloads(0), [[0]]);
    assert_eq!(world.payloads(1), [[0], [1]]);
    assert_eq!(world.payloads(2), [[0], [1], [2]]);
    assert_eq!(world.payloads(3), [[0], [1], [2], [3]]);
}

#[test]
fn comtrees_do_not_hear_each_other() {
    let mut world = World::new(Mode::Immediate, 2);
    let other = SessionConfig { comtree: Comtree(2), seed: [99; 16] };
    world.participants.push(Session::new(other));
    world.received.push(Vec::new());
    world.settle();
    world.subscribe_all(7, 0);
    world.publish(0, 7, 0, Flags(0), b"one");
    world.publish(2, 7, 0, Flags::ECHO, b"two");
    world.settle();
    assert_eq!(world.payloads(1), [b"one"]);
    assert_eq!(world.payloads(2), [b"two"]);
}

#[test]
fn unicast_reaches_one() {
    let mut world = World::new(Mode::Immediate, 3);
    let dst = world.participants[2].address();
    let mut out = [0; 1500];
    let sender = &world.participants[0];
    let len = sender.publish(dst, Level(0), Flags(0), b"psst", &mut out).unwrap();
    let _ = world.relay.handle_datagram(world.now, ip_port(0), &out[..len]);
    world.settle();
    assert_eq!(world.payloads(2), [b"psst"]);
    assert_eq!(world.payloads(1).len(), 0);
}

#[test]
fn unicast_reaches_oneself_too() {
    let mut world = World::new(Mode::Periodic { tick: Duration::from_millis(50) }, 2);
    let mut out = [0; 1500];
    let own = world.participants[0].address();
    for payload in [b"note", b"self"] {
        let len = world.participants[0].publish(own, Level(0), Flags(0), payload, &mut out);
        let _ = world.relay.handle_datagram(world.now, ip_port(0), &out[..len.unwrap()]);
    }
    world.now = world.now + Duration::from_millis(100);
    world.settle();
    assert_eq!(world.payloads(0), [b"note", b"self"]);
    assert_eq!(world.relay.counters().deliveries_out, 2);
}

#[test]
fn a_tick_leaves_as_segments_of_equal_size_without_ones_own() {
    let tick = Duration::from_millis(50);
    let mut world = World::new(Mode::Periodic { tick }, 60);
    world.subscribe_all(7, 0);
    let before = world.datagrams;
    for number in 0..60 {
        world.publish(number, 7, 0, Flags(0), &[number as u8; 100]);
    }
    world.settle();
    assert_eq!(world.datagrams, before, "nothing leaves before the tick");
    world.now = world.now.next_multiple(tick);
    world.transmit();
    for (number, received) in world.received.iter().enumerate() {
        let mut expected: Vec<Vec<u8>> = (0..60u8).map(|byte| vec![byte; 100]).collect();
        expected.remove(number);
        let payloads: Vec<_> = received.iter().map(|(_, payload)| payload.clone()).collect();
        assert_eq!(payloads, expected, "participant {number}");
    }
    assert_eq!(world.segmented.len(), 60);
    for lengths in &world.segmented {
        let (last, rest) = lengths.split_last().unwrap();
        assert!(rest.iter().all(|len| *len == rest[0]) && *last <= rest[0], "{lengths:?}");
    }
    assert_eq!(world.relay.counters().padding_bytes_out, 60 * 112, "one's own, blanked out");
}

#[test]
fn a_set_is_sent_the_same_and_drops_its_own() {
    let periodic = Mode::Periodic { tick: Duration::from_millis(50) };
    let mut world = World::of(RelayConfig { smallest_set: Some(4), ..config(periodic) }, 5);
    for number in 0..4 {
        world.participants[number].subscribe(Group::new(7), Level(0));
    }
    world.settle();
    world.participants[4].subscribe(Group::new(8), Level(0));
    world.settle();
    // More than one segmented send carries, so that there are several runs.
    let payload = |number: usize, update: u8| [number as u8, update].repeat(500);
    for update in 0..40 {
        for number in 0..2 {
            world.publish(number, 7, 0, Flags(0), &payload(number, update));
        }
    }
    world.publish(0, 8, 0, Flags(0), b"to one, who is no set");
    world.now = world.now + Duration::from_millis(100);
    let (mut carried, mut after_another) = (Vec::new(), 0);
    let now = world.now;
    world.relay.transmit(now, |batch| {
        let same = |pair: &[canopy_batch::Transmit]| batch.carries_the_same(&pair[0], &pair[1]);
        after_another += batch.transmits().windows(2).filter(|pair| same(pair)).count();
        for transmit in batch.transmits() {
            let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
            carried.push((transmit.to.remote, bytes, usize::from(transmit.segment)));
        }
    });
    let sends_to = |number| carried.iter().filter(|(to, ..)| *to == ip_port(number)).count();
    assert!(sends_to(0) > 1, "one send is all: {}", sends_to(0));
    assert_eq!(after_another, 3 * sends_to(0), "each run goes to one member after the other");
    for (to, bytes, segment) in carried {
        let number = usize::from(to.port()) - 10_000;
        for piece in bytes.chunks(segment) {
            let got = &mut world.received[number];
            let deliver =
                |update: Update<'_>| got.push((update.src.endpoint(), update.payload.to_vec()));
            world.participants[number].handle_datagram(now, piece, deliver).unwrap();
        }
    }
    let expected = |of: &[usize]| -> Vec<Vec<u8>> {
        (0..40).flat_map(|update| of.iter().map(move |number| payload(*number, update))).collect()
    };
    for (number, others) in [&[1][..], &[0], &[0, 1], &[0, 1]].into_iter().enumerate() {
        assert_eq!(world.payloads(number), expected(others), "participant {number}");
        let echoes = if number < 2 { 40 } else { 0 };
        assert_eq!(world.participants[number].echoes(), echoes, "participant {number}");
    }
    assert_eq!(world.payloads(4).len(), 1);
    let counters = world.relay.counters();
    assert_eq!((counters.deliveries_out, counters.echoes_out), (6 * 40 + 1, 2 * 40));
}

#[test]
fn order_is_kept_across_groups() {
    let tick = Duration::from_millis(50);
    let mut world = World::new(Mode::Periodic { tick }, 2);
    world.subscribe_all(1, 0);
    world.subscribe_all(2, 0);
    for step in 0..40u8 {
        world.publish(0, 1 + u32::from(step) % 2, 0, Flags(0), &[step; 40]);
    }
    world.now = world.now.next_multiple(tick);
    world.transmit();
    let steps: Vec<_> = world.payloads(1).iter().map(|payload| payload[0]).collect();
    assert_eq!(steps, (0..40).collect::<Vec<_>>());
}

#[test]
fn updates_of_mixed_length_arrive_whole() {
    let tick = Duration::from_millis(50);
    let mut world = World::new(Mode::Periodic { tick }, 5);
    world.subscribe_all(1, 0);
    let mut expected: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for step in 0..400usize {
        let payload = vec![step as u8; (step * 37) % canopy_wire::MAX_UPDATE];
        let number = step % 5;
        world.publish(number, 1, 0, Flags(0), &payload);
        let endpoint = world.participants[number].address().endpoint();
        expected.entry(endpoint).or_default().push(payload);
    }
    world.now = world.now.next_multiple(tick);
    world.transmit();
    for (number, received) in world.received.iter().enumerate() {
        let mut by_publisher: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for (src, payload) in received {
            by_publisher.entry(*src).or_default().push(payload.clone());
        }
        let mut expected = expected.clone();
        expected.remove(&world.participants[number].address().endpoint());
        assert_eq!(by_publisher, expected);
    }
    let counters = world.relay.counters();
    assert!(counters.padding_bytes_out * 3 < counters.bytes_out, "{counters:?}");
}

#[test]
fn hostile_datagrams_are_counted_and_answered_with_no_more() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    let mut data = [0; 1500];
    let len = world.participants[0]
        .publish(Group::new(7).address(), Level(0), Flags(0), b"x", &mut data)
        .unwrap();
    let stranger = SocketAddr::from(([127, 0, 0, 1], 10_001));
    let unknown = SocketAddr::from(([10, 9, 8, 7], 1));
    let mut foreign = data;
    foreign[7] = 2;
    let mut nowhere = data;
    nowhere[8..12].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
    let mut no_comtree = nowhere;
    no_comtree[4] = 9;
    let cases: [(SocketAddr, &[u8], DropReason); 9] = [
        (ip_port(0), &[], DropReason::Empty),
        (ip_port(0), &data[..10], DropReason::Malformed),
        (ip_port(0), &[7; 40], DropReason::Version),
        (ip_port(0), &[0xC1; 40], DropReason::UnknownKind),
        (ip_port(0), &[0xC1; 1453], DropReason::Oversized),
        (stranger, &data[..len], DropReason::SpoofedSource),
        (unknown, &nowhere[..len], DropReason::UnknownSource),
        (ip_port(0), &foreign[..len], DropReason::ForeignComtree),
        (unknown, &no_comtree[..len], DropReason::UnknownComtree),
    ];
    for (from, datagram, reason) in cases {
        let before = world.relay.counters().dropped(reason);
        let intake = world.relay.handle_datagram(world.now, from, datagram);
        assert_eq!(intake, Intake::Done);
        assert_eq!(world.relay.counters().dropped(reason), before + 1, "{}", reason.name());
        let mut answered = 0;
        world.relay.transmit(world.now, |batch| {
            answered += batch.transmits().iter().map(|sent| sent.len as usize).sum::<usize>();
        });
        assert!(answered <= datagram.len(), "{}: {answered}", reason.name());
    }
}

#[test]
fn a_full_relay_refuses_with_a_reason() {
    let mut small = config(Mode::Immediate);
    small.sessions.max_sessions = 2;
    small.tables.max_subscriptions = 1;
    let mut world = World::new(Mode::Immediate, 0);
    world.relay = Relay::new(small, Keyring::new([1; 16]), &[2; 16]);
    for number in 0..3u8 {
        let seed = [number + 1; 16];
        world.participants.push(Session::new(SessionConfig { comtree: COMTREE, seed }));
        world.received.push(Vec::new());
    }
    world.settle();
    let first = |session: &mut Session| session.poll_event().unwrap();
    assert!(matches!(first(&mut world.participants[0]), Event::Connected(_)));
    let full = canopy_wire::RefusedReason::Full;
    assert_eq!(first(&mut world.participants[2]), Event::Refused(full));
    world.participants[0].subscribe(Group::new(1), Level(0));
    world.participants[0].subscribe(Group::new(2), Level(0));
    world.settle();
    let subscribed = Event::Subscribed(Group::new(1), Level(0));
    assert_eq!(first(&mut world.participants[0]), subscribed);
    let refused = Event::SubscriptionRefused(Group::new(2), TableFull::Table);
    assert_eq!(first(&mut world.participants[0]), refused);
    assert_eq!(world.relay.counters().dropped(DropReason::SubscriptionsFull), 1);
}

#[test]
fn a_repeated_subscribe_gets_the_answer_that_was_given() {
    let mut small = config(Mode::Immediate);
    small.tables.max_subscriptions = 1;
    let mut world = World::new(Mode::Immediate, 0);
    world.relay = Relay::new(small, Keyring::new([1; 16]), &[2; 16]);
    for number in 0..2u8 {
        let seed = [number + 1; 16];
        world.participants.push(Session::new(SessionConfig { comtree: COMTREE, seed }));
        world.received.push(Vec::new());
    }
    world.settle();
    world.participants[0].subscribe(Group::new(1), Level(0));
    world.settle();
    world.participants[1].subscribe(Group::new(2), Level(0));
    let mut packet = [0; 1500];
    let len = world.participants[1].poll_transmit(world.now, &mut packet).unwrap();
    let _ = world.relay.handle_datagram(world.now, ip_port(1), &packet[..len]);
    world.transmit();
    world.participants[0].unsubscribe(Group::new(1));
    world.settle();
    let _ = world.relay.handle_datagram(world.now, ip_port(1), &packet[..len]);
    world.transmit();
    let events: Vec<_> = std::iter::from_fn(|| world.participants[1].poll_event()).collect();
    let refused = Event::SubscriptionRefused(Group::new(2), TableFull::Table);
    assert!(events.contains(&refused), "{events:?}");
    assert_eq!(world.relay.subscriptions(), 0, "there is room, but the refusal was heard");
}

#[test]
fn a_repeated_subscribe_renews_what_it_added() {
    let second = Duration::from_secs(1);
    let mut config = config(Mode::Immediate);
    config.sessions.limits.subscription = second * 40;
    config.sessions.limits.lifetime = second * 1000;
    let mut world = World::new(Mode::Immediate, 0);
    world.relay = Relay::new(config, Keyring::new([1; 16]), &[2; 16]);
    world.participants.push(Session::new(SessionConfig { comtree: COMTREE, seed: [1; 16] }));
    world.received.push(Vec::new());
    world.settle();
    world.participants[0].subscribe(Group::new(1), Level(0));
    let mut packet = [0; 1500];
    let len = world.participants[0].poll_transmit(world.now, &mut packet).unwrap();
    let start = world.now;
    let mut held = Vec::new();
    for passed in 0..90 {
        let now = start + second * passed;
        // The first answer is lost, so the participant counts from the second.
        if passed == 0 || passed == 30 {
            let _ = world.relay.handle_datagram(now, ip_port(0), &packet[..len]);
            world.relay.transmit(now, |_| ());
        }
        world.relay.handle_timeout(now);
        held.push(world.relay.subscriptions());
    }
    // Ended subscriptions are found within ten seconds.
    assert_eq!((held[69], held[89]), (1, 0), "{held:?}");
}

#[test]
fn the_silent_expire_and_free_their_place() {
    let mut world = World::new(Mode::Immediate, 3);
    world.subscribe_all(7, 0);
    let mut now = world.now;
    for _ in 0..130 {
        now = now + Duration::from_millis(100);
        world.relay.handle_timeout(now);
    }
    assert_eq!((world.relay.sessions(), world.relay.subscriptions()), (0, 0));
    assert_eq!(world.relay.counters().sessions_expired, 3);
    assert_eq!(world.relay.poll_timeout(), None, "an empty relay sleeps");
}

#[test]
fn draining_tells_everyone_and_takes_no_one() {
    let mut world = World::new(Mode::Immediate, 3);
    world.relay.drain(world.now);
    world.relay.handle_timeout(world.now);
    world.transmit();
    for participant in &mut world.participants {
        let events: Vec<_> = std::iter::from_fn(|| participant.poll_event()).collect();
        assert!(events.contains(&Event::Lost), "{events:?}");
    }
    world.now = world.now + Duration::from_secs(1);
    world.settle();
    let draining = canopy_wire::RefusedReason::Draining;
    let refused = std::iter::from_fn(|| world.participants[0].poll_event());
    assert!(refused.collect::<Vec<_>>().contains(&Event::Refused(draining)));
}

#[test]
fn a_new_binding_is_followed_after_proof() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    let elsewhere = SocketAddr::from(([127, 0, 0, 1], 20_000));
    let mut out = [0; 1500];
    let group = Group::new(7).address();
    let mover = &mut world.participants[0];
    let len = mover.publish(group, Level(0), Flags(0), &[1; 32], &mut out).unwrap();
    let _ = world.relay.handle_datagram(world.now, elsewhere, &out[..len]);
    let mut answer = Vec::new();
    world.relay.transmit(world.now, |batch| {
        let sent = batch.transmits()[0];
        assert_eq!(sent.to, elsewhere.into());
        answer = batch.parts(&sent).flatten().copied().collect();
    });
    assert_eq!(Packet::new_checked(&answer).unwrap().header().kind, Kind::Challenge);
    mover.handle_datagram(world.now, &answer, |_| ()).unwrap();
    let len = mover.poll_transmit(world.now, &mut out).unwrap();
    let before = world.relay.counters().dropped(DropReason::SpoofedSource);
    let _ = world.relay.handle_datagram(world.now, elsewhere, &out[..len]);
    // From now on the old ip:port is the stranger.
    let len = mover.publish(group, Level(0), Flags(0), b"moved", &mut out).unwrap();
    let _ = world.relay.handle_datagram(world.now, elsewhere, &out[..len]);
    world.relay.transmit(world.now, |_| ());
    assert_eq!(world.relay.counters().dropped(DropReason::SpoofedSource), before);
    let _ = world.relay.handle_datagram(world.now, ip_port(0), &out[..len]);
    assert_eq!(world.relay.counters().dropped(DropReason::SpoofedSource), before + 1);
}

#[test]
fn data_threads_share_what_is_published() {
    let mut shards: Vec<Relay> = (0..2)
        .map(|shard| {
            let mut config = config(Mode::Immediate);
            config.sessions.shards = 2;
            config.sessions.shard = shard;
            config.sessions.max_sessions = Sessions::capacity(2);
            Relay::new(config, Keyring::new([1; 16]), &[2; 16])
        })
        .collect();
    let now = Time::from_millis(1);
    let mut sessions: Vec<Session> = (0..2u8)
        .map(|n| Session::new(SessionConfig { comtree: COMTREE, seed: [n + 1; 16] }))
        .collect();
    let mut out = [0; 1500];
    for (number, session) in sessions.iter_mut().enumerate() {
        session.subscribe(Group::new(1), Level(0));
        while let Some(len) = session.poll_transmit(now, &mut out) {
            let _ = shards[number].handle_datagram(now, ip_port(number), &out[..len]);
            shards[number].transmit(now, |batch| {
                for sent in batch.transmits() {
                    let bytes: Vec<u8> = batch.parts(sent).flatten().copied().collect();
                    session.handle_datagram(now, &bytes, |_| ()).unwrap();
                }
            });
        }
        assert_eq!(usize::from(session.address().endpoint()) % 2, number);
    }
    let group = Group::new(1).address();
    let len = sessions[0].publish(group, Level(0), Flags(0), b"across", &mut out).unwrap();
    let intake = shards[0].handle_datagram(now, ip_port(0), &out[..len]);
    assert_eq!(intake, Intake::Shared);
    shards[1].handle_handover(now, ip_port(0), &out[..len]);
    let mut seen = Vec::new();
    shards[1].transmit(now, |batch| {
        for sent in batch.transmits() {
            let bytes: Vec<u8> = batch.parts(sent).flatten().copied().collect();
            let deliver = |update: canopy_session::Update<'_>| seen.push(update.payload.to_vec());
            sessions[1].handle_datagram(now, &bytes, deliver).unwrap();
        }
    });
    assert_eq!(seen, [b"across"]);
    // A participant that joins again from its ip:port on another thread has one session only.
    let mut again = Session::new(SessionConfig { comtree: COMTREE, seed: [7; 16] });
    let mut shared = 0;
    while let Some(len) = again.poll_transmit(now, &mut out) {
        if shards[0].handle_datagram(now, ip_port(1), &out[..len]) == Intake::Shared {
            shared += 1;
            shards[1].handle_handover(now, ip_port(1), &out[..len]);
        }
        shards[0].transmit(now, |batch| {
            for sent in batch.transmits() {
                let bytes: Vec<u8> = batch.parts(sent).flatten().copied().collect();
                again.handle_datagram(now, &bytes, |_| ()).unwrap();
            }
        });
    }
    assert_eq!(shared, 1, "the accepted connect");
    assert_eq!((shards[0].sessions(), shards[1].sessions()), (2, 0));
}

#[test]
fn what_waits_for_one_who_left_does_not_reach_who_takes_the_place() {
    let tick = Duration::from_millis(50);
    let mut small = config(Mode::Periodic { tick });
    small.sessions.max_sessions = 3;
    let mut world = World::new(Mode::Immediate, 0);
    world.relay = Relay::new(small, Keyring::new([1; 16]), &[2; 16]);
    // 0 and 1 on comtree 1, 2 and 3 on comtree 2; 3 joins when 1 has left, into its place.
    for comtree in [1, 1, 2] {
        let seed = [world.participants.len() as u8 + 1; 16];
        world.participants.push(Session::new(SessionConfig { comtree: Comtree(comtree), seed }));
        world.received.push(Vec::new());
    }
    world.settle();
    let dst = world.participants[1].address();
    let mut out = [0; 1500];
    let len = world.participants[0].publish(dst, Level(0), Flags(0), b"secret", &mut out).unwrap();
    let _ = world.relay.handle_datagram(world.now, ip_port(0), &out[..len]);
    world.participants[1].leave();
    world.settle();
    world.participants.push(Session::new(SessionConfig { comtree: Comtree(2), seed: [4; 16] }));
    world.received.push(Vec::new());
    world.participants[3].subscribe(Group::new(7), Level(0));
    world.settle();
    assert_eq!(world.participants[3].address(), dst);
    world.publish(2, 7, 0, Flags(0), b"ours");
    world.now = world.now.next_multiple(tick);
    world.transmit();
    assert_eq!(world.payloads(3), [b"ours"], "an update of another comtree");
}
