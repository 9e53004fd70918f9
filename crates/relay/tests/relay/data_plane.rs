//! What one data thread does with updates: whom they reach, in which order and shape, and what is
//! dropped instead.

use crate::support::{
    self, COMTREE, OTHER_COMTREE, PERIODIC, Sent, WITH_FILLER, World, config, ip_port, sharing,
    with_downlink,
};
use canopy_relay::{Mode, RelayConfig};
use canopy_wire::{
    Class, Downlink, DropReason, Flags, Group, Hello, Keepalive, Kind, Level, MAX_UPDATE, Packet,
    SAFE_DATAGRAM, SubscribeAck, SubscribeRefusal, SubscribeWriter, SubscriptionChange, VERSION,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

#[test]
fn everyone_but_the_publisher_receives() {
    let mut world = World::new(Mode::Immediate, 4);
    world.subscribe_all(7, 0);
    world.publish(1, 7, 0, Flags(0), b"hello");
    world.settle();
    let counts: Vec<_> = world.participants.iter().map(|one| one.received.len()).collect();
    assert_eq!(counts, [1, 0, 1, 1]);
    assert_eq!(world.relay().counters().deliveries_out, 3);
    world.publish(1, 7, 0, Flags::ECHO, b"again");
    world.settle();
    assert_eq!(world.payloads(1), [b"again"]);
}

#[test]
fn levels_are_one_comparison() {
    let mut world = World::new(Mode::Immediate, 4);
    for number in 0..4 {
        world.subscribe(number, 7, number as u8);
    }
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
    world.add_participant(0, OTHER_COMTREE);
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
    world.publish_to(0, world.address(2), 0, Flags(0), b"psst");
    world.settle();
    assert_eq!(world.payloads(2), [b"psst"]);
    assert_eq!(world.payloads(1).len(), 0);
}

#[test]
fn the_largest_update_fits() {
    let mut world = World::new(Mode::Immediate, 2);
    let payload = [7; canopy_wire::MAX_UPDATE];
    world.publish_to(0, world.address(1), 0, Flags(0), &payload);
    world.settle();
    assert_eq!(world.payloads(1), [payload]);
}

#[test]
fn unicast_reaches_oneself_too() {
    let mut world = World::new(PERIODIC, 2);
    for payload in [b"note", b"self"] {
        world.publish_to(0, world.address(0), 0, Flags(0), payload);
    }
    world.tick();
    assert_eq!(world.payloads(0), [b"note", b"self"]);
    assert_eq!(world.relay().counters().deliveries_out, 2);
}

#[test]
fn a_tick_leaves_as_segments_of_equal_size_without_ones_own() {
    for downlink in WITH_FILLER {
        assert_a_tick_is_segments(World::of(with_downlink(config(PERIODIC), downlink), 60));
    }
}

fn assert_a_tick_is_segments(mut world: World) {
    world.subscribe_all(7, 0);
    let before = world.datagrams;
    for number in 0..60 {
        world.publish(number, 7, 0, Flags(0), &[number as u8; 100]);
    }
    world.settle();
    assert_eq!(world.datagrams, before, "nothing leaves before the tick");
    world.tick();
    for number in 0..60 {
        let mut expected: Vec<Vec<u8>> = (0..60u8).map(|byte| vec![byte; 100]).collect();
        expected.remove(number);
        assert_eq!(world.payloads(number), expected, "participant {number}");
    }
    assert_eq!(world.segmented.len(), 60);
    for lengths in &world.segmented {
        let (last, rest) = lengths.split_last().unwrap();
        assert!(rest.iter().all(|len| *len == rest[0]) && *last <= rest[0], "{lengths:?}");
    }
    let counters = world.relay().counters();
    // Eleven fit a datagram; a record costs 5 bytes beside its own, the first of a datagram 7 more.
    let filler = 60 * (5 + 100) + 60_u64.div_ceil(11) * 7;
    assert_eq!(counters.padding_bytes_out, filler, "one's own is filler");
    assert_eq!((counters.deliveries_out, counters.segmented_sends), (60 * 59, 60));
}

#[test]
fn a_set_spares_whom_nothing_is_for() {
    let mut world = World::of(RelayConfig { smallest_set: Some(2), ..sharing(PERIODIC) }, 3);
    world.subscribe_all(7, 0);
    let before = world.relay().counters().datagrams_out;
    world.publish(0, 7, 0, Flags(0), b"to the others");
    world.tick();
    assert_eq!(world.relay().counters().datagrams_out, before + 2);
    assert_eq!([0, 1, 2].map(|number| world.payloads(number).len()), [0, 1, 1]);
    assert_eq!(world.participants[0].session.echoes(), 0);
}

#[test]
fn a_set_is_sent_the_same_and_drops_its_own() {
    let mut world = World::of(RelayConfig { smallest_set: Some(4), ..sharing(PERIODIC) }, 5);
    for number in 0..4 {
        world.subscribe(number, 7, 0);
    }
    world.subscribe(4, 8, 0);
    // More than one segmented send carries, so that there are several runs.
    let payload = |number: usize, update: u8| [number as u8, update].repeat(500);
    for update in 0..40 {
        for number in 0..2 {
            world.publish(number, 7, 0, Flags(0), &payload(number, update));
        }
    }
    world.publish(0, 8, 0, Flags(0), b"to one, who is no set");
    world.now = world.now.next_multiple(support::TICK);
    let now = world.now;
    let mut after_another = 0;
    let mut sent = Vec::new();
    world.relay_mut().transmit(now, |batch| {
        let same = |pair: &[canopy_batch::Transmit]| batch.carries_the_same(&pair[0], &pair[1]);
        after_another += batch.transmits().windows(2).filter(|pair| same(pair)).count();
        for transmit in batch.transmits() {
            let bytes = batch.parts(transmit).flatten().copied().collect();
            sent.push(support::Sent {
                to: transmit.to.remote,
                bytes,
                segment: transmit.segment.into(),
            });
        }
    });
    let sends_to = |number| sent.iter().filter(|one| one.to == ip_port(number)).count();
    assert!(sends_to(0) > 1, "one send is all: {}", sends_to(0));
    assert_eq!(after_another, 3 * sends_to(0), "each run goes to one member after the other");
    world.carry(0, sent);
    let expected = |of: &[usize]| -> Vec<Vec<u8>> {
        (0..40).flat_map(|update| of.iter().map(move |number| payload(*number, update))).collect()
    };
    for (number, others) in [&[1][..], &[0], &[0, 1], &[0, 1]].into_iter().enumerate() {
        assert_eq!(world.payloads(number), expected(others), "participant {number}");
        let echoes = if number < 2 { 40 } else { 0 };
        assert_eq!(world.participants[number].session.echoes(), echoes, "participant {number}");
    }
    assert_eq!(world.payloads(4).len(), 1);
    let counters = world.relay().counters();
    assert_eq!((counters.deliveries_out, counters.echoes_out), (6 * 40 + 1, 2 * 40));
}

#[test]
fn order_is_kept_across_groups() {
    let mut world = World::new(PERIODIC, 2);
    world.subscribe_all(1, 0);
    world.subscribe_all(2, 0);
    for step in 0..40u8 {
        world.publish(0, 1 + u32::from(step) % 2, 0, Flags(0), &[step; 40]);
    }
    world.tick();
    let steps: Vec<_> = world.payloads(1).iter().map(|payload| payload[0]).collect();
    assert_eq!(steps, (0..40).collect::<Vec<_>>());
}

#[test]
fn updates_of_mixed_length_arrive_whole() {
    let mut world = World::new(PERIODIC, 5);
    world.subscribe_all(1, 0);
    let mut expected: BTreeMap<_, Vec<Vec<u8>>> = BTreeMap::new();
    for step in 0..400usize {
        let payload = vec![step as u8; (step * 37) % MAX_UPDATE];
        let number = step % 5;
        world.publish(number, 1, 0, Flags(0), &payload);
        expected.entry(world.address(number)).or_default().push(payload);
    }
    world.tick();
    for number in 0..5 {
        let mut by_publisher: BTreeMap<_, Vec<Vec<u8>>> = BTreeMap::new();
        for one in &world.participants[number].received {
            by_publisher.entry(one.src).or_default().push(one.payload.clone());
        }
        let mut expected = expected.clone();
        expected.remove(&world.address(number));
        assert_eq!(by_publisher, expected);
    }
    let counters = world.relay().counters();
    assert!(counters.padding_bytes_out * 3 < counters.bytes_out, "{counters:?}");
}

fn altered(datagram: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut altered = datagram.to_vec();
    altered[at] = byte;
    altered
}

/// A datagram costs its sender a count of this reason and no other, and brings it no more bytes.
fn assert_dropped(world: &mut World, from: SocketAddr, datagram: &[u8], reason: DropReason) {
    let mut expected = world.relay().counters().drops;
    expected[reason as usize] += 1;
    world.arrive(0, from, datagram);
    assert_eq!(world.relay().counters().drops, expected, "{}", reason.name());
    let answered: usize = world.collect(0).iter().map(|sent| sent.bytes.len()).sum();
    assert!(answered <= datagram.len(), "{}: {answered}", reason.name());
}

#[test]
fn hostile_datagrams_are_counted_and_answered_with_no_more() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    let data = world.update_of(0, |header| header, b"x");
    let sealed = world.seal(0, &data);
    let (own, stranger) = (ip_port(0), SocketAddr::from(([10, 9, 8, 7], 1)));
    let of_no_session = altered(&data, 0, VERSION | Class::Stranger as u8);
    let from_a_relay = altered(&of_no_session, 8, Kind::Connected as u8);
    let of_nobody = [&data[..1], &[0xff; 3], &data[4..]].concat();
    let nowhere = altered(&sealed, 3, 99);
    let of_class = |class| altered(&[VERSION; 40], 0, VERSION | class);
    let cases: [(SocketAddr, &[u8], DropReason); 20] = [
        (own, &[], DropReason::Empty),
        (own, &data[..10], DropReason::Malformed),
        (own, &sealed[..1], DropReason::Malformed),
        (own, &sealed[..7], DropReason::Malformed),
        (own, &[7; 40], DropReason::Version),
        (own, &[VERSION; 40], DropReason::UnknownKind),
        (own, &of_class(3), DropReason::UnknownKind),
        (own, &of_class(7), DropReason::UnknownKind),
        (own, &[VERSION; 1453], DropReason::Oversized),
        (own, &[VERSION | Class::Sealed as u8; 1453], DropReason::Oversized),
        (own, &altered(&data, 11, 1), DropReason::Malformed),
        (own, &of_no_session, DropReason::Malformed),
        // Cleartext in the name of a session, its own or whoever's.
        (own, &data, DropReason::Forged),
        (stranger, &altered(&data, 3, 99), DropReason::Forged),
        (own, &of_nobody, DropReason::Forged),
        (own, &from_a_relay, DropReason::UnexpectedKind),
        // What is sealed for a session, or only says so.
        (own, &sealed[..sealed.len() - 1], DropReason::Forged),
        (stranger, &altered(&sealed, 20, 0), DropReason::Forged),
        (stranger, &nowhere, DropReason::UnknownSource),
        (ip_port(1), &sealed, DropReason::SpoofedSource),
    ];
    for (from, datagram, reason) in cases {
        assert_dropped(&mut world, from, datagram, reason);
    }
    world.arrive(0, own, &sealed);
    world.settle();
    assert_eq!(world.payloads(1), [b"x"], "the datagram itself was left as it was");
    assert_dropped(&mut world, own, &sealed, DropReason::Replayed);
    assert_dropped(&mut world, stranger, &sealed, DropReason::Replayed);
}

/// A participant is whoever joined: what it seals need not be right.
#[test]
fn hostile_packets_of_a_session_are_counted_and_answered_with_no_more() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    let data = world.update_of(0, |header| header, b"x");
    let long_enough = world.update_of(0, |header| header, b"as long as a challenge");
    // Behind the form of its only record is the group in full.
    let mut to_nobody = data.clone();
    to_nobody[17..21].copy_from_slice(&[0, 1, 0xff, 0xff]);
    let (own, stranger) = (ip_port(0), SocketAddr::from(([10, 9, 8, 7], 1)));
    let of_kind = |kind: Kind| altered(&data, 8, kind as u8);
    let cases: [(SocketAddr, &[u8], DropReason); 17] = [
        (own, &data[..8], DropReason::Malformed),
        (own, &data[..15], DropReason::Malformed),
        (own, &altered(&data, 8, 0xee), DropReason::UnknownKind),
        (own, &altered(&data, 11, 1), DropReason::Malformed),
        (own, &altered(&data, 10, 2), DropReason::Malformed),
        (own, &altered(&data, 15, 2), DropReason::UnknownSource),
        (own, &altered(&data, 15, 9), DropReason::UnknownComtree),
        (own, &altered(&data, 9, 0), DropReason::HopLimit),
        (own, &to_nobody, DropReason::UnknownDestination),
        (stranger, &data, DropReason::SpoofedSource),
        (stranger, &long_enough, DropReason::SpoofedSource),
        (stranger, &altered(&long_enough, 15, 9), DropReason::SpoofedSource),
        // A handshake is in cleartext, and what only relays say is not heard from participants.
        (own, &of_kind(Kind::Hello), DropReason::Malformed),
        (own, &of_kind(Kind::Connect), DropReason::Malformed),
        (own, &of_kind(Kind::Challenge), DropReason::UnexpectedKind),
        (own, &of_kind(Kind::KeepaliveAck), DropReason::UnexpectedKind),
        (own, &of_kind(Kind::RouteReply), DropReason::UnexpectedKind),
    ];
    for (from, packet, reason) in cases {
        let datagram = world.seal(0, packet);
        assert_dropped(&mut world, from, &datagram, reason);
    }
    assert_eq!(world.payloads(1).len(), 0);
}

/// More receivers than one batch has sends: the bytes of their burst must stay until all have it.
#[test]
fn a_burst_lives_through_several_batches() {
    for (downlink, smallest_set) in [
        (Downlink::Member, None),
        (Downlink::None, None),
        (Downlink::None, Some(4)),
        (Downlink::Group, None),
        (Downlink::Group, Some(4)),
    ] {
        let (receivers, config) = (600, with_downlink(config(PERIODIC), downlink));
        let mut world = World::of(RelayConfig { smallest_set, ..config }, receivers);
        world.subscribe_all(7, 0);
        // Two of the receivers are publishers as well.
        let payload = |number: usize, update: u8| [number as u8, update].repeat(50);
        for update in 0..10 {
            for number in 0..2 {
                world.publish(number, 7, 0, Flags(0), &payload(number, update));
            }
        }
        world.now = world.now.next_multiple(support::TICK);
        let (now, mut batches, mut sent) = (world.now, 0, Vec::new());
        world.relay_mut().transmit(now, |batch| {
            batches += 1;
            for transmit in batch.transmits() {
                let bytes = batch.parts(transmit).flatten().copied().collect();
                sent.push(Sent { to: transmit.to.remote, bytes, segment: transmit.segment.into() });
            }
        });
        assert!(batches > 1, "{} sends are one batch", sent.len());
        world.carry(0, sent);
        for number in 0..receivers {
            let others = (0..2).filter(|publisher| *publisher != number);
            let of_one = |update| others.clone().map(move |publisher| payload(publisher, update));
            let expected: Vec<_> = (0..10).flat_map(of_one).collect();
            assert!(world.payloads(number) == expected, "participant {number}");
        }
        assert_eq!(world.relay().counters().deliveries_out, 10 * 2 * 599);
    }
}

/// The acks to a subscribe packet and to its repetition.
fn acks(world: &mut World, number: usize, groups: core::ops::Range<u32>) -> [Vec<u8>; 2] {
    let mut out = [0; 1500];
    let mut writer = SubscribeWriter::new(&mut out, 1, SAFE_DATAGRAM).unwrap();
    for group in groups {
        assert!(writer.push(SubscriptionChange::Add(Group::new(group), Level(0))));
    }
    let len = writer.finish(COMTREE, world.participants[number].session.id());
    [(); 2].map(|()| {
        world.send(number, &out[..len]);
        let acks = world.collect(0);
        let mut ack = world.packets_to(0, &acks, number).remove(0);
        // Their numbers differ.
        ack[4..8].fill(0);
        ack
    })
}

#[test]
fn a_repeated_subscribe_hears_the_reason_that_was_given() {
    let mut config = config(Mode::Immediate);
    config.tables.max_subscriptions = 5;
    config.tables.max_subscriptions_per_participant = 3;
    config.comtrees.truncate(1);
    let mut world = World::of(config, 2);
    let expected = [
        (0, 0..5, SubscribeRefusal::Participant, vec![3, 4]),
        (1, 10..13, SubscribeRefusal::Table, vec![12]),
    ];
    for (number, groups, reason, refused) in expected {
        let [first, repeated] = acks(&mut world, number, groups);
        assert_eq!(first, repeated, "participant {number}");
        let packet = Packet::new_checked(&first).unwrap();
        let ack = SubscribeAck::new_checked(&packet).unwrap();
        let groups: Vec<_> = ack
            .refused()
            .map(|(group, why)| {
                assert_eq!(why, reason, "participant {number}");
                group.number()
            })
            .collect();
        assert_eq!(groups, refused, "participant {number}");
    }
    assert_eq!(world.relay().counters().dropped(DropReason::SubscriptionsFull), 3);
}

/// Strangers who ask for cookies have a queue and a rate of their own.
#[test]
fn a_flood_of_hellos_costs_no_session_its_answer() {
    let mut world = World::new(Mode::Immediate, 400);
    world.now = world.now + Duration::from_secs(1);
    let (now, mut out) = (world.now, [0; 1500]);
    let asked = 20_000u32;
    let mut kept_alive = 0;
    for nonce in 0..asked {
        let stranger = SocketAddr::from((nonce.to_be_bytes(), 1));
        let len = Hello { nonce: nonce.into() }.encode(COMTREE, &mut out).unwrap();
        world.relay_mut().handle_datagram(now, stranger, &mut out[..len]);
        if nonce % 50 == 0 {
            let id = world.participants[kept_alive].session.id();
            let keepalive = Keepalive { stamp: 1 + nonce as u64, path_stamp: 0 };
            let len = keepalive.encode(COMTREE, id, &mut out).unwrap();
            world.send(kept_alive, &out[..len]);
            kept_alive += 1;
        }
    }
    let answers = world.collect(0);
    let mut kind_of =
        |sent: &Sent| Packet::new_checked(&world.open(0, &sent.bytes)).unwrap().header().kind;
    let kinds: Vec<_> = answers.iter().map(&mut kind_of).collect();
    assert_eq!(kinds[..400], [Kind::KeepaliveAck; 400], "sessions come first, and all of them");
    assert!(kinds[400..].iter().all(|kind| *kind == Kind::Cookie));
    let answered = kinds.len() as u64 - 400;
    assert!((256..=512).contains(&answered), "{answered} strangers at once");
    assert_eq!(world.dropped(DropReason::RepliesFull) + answered, u64::from(asked));
    // There is room again at once, but the rate holds: 20 in a millisecond.
    let len = Hello { nonce: 1 }.encode(COMTREE, &mut out).unwrap();
    for (later, answers) in [(0, 0), (1, 20)] {
        let now = now + Duration::from_millis(later);
        for port in 1..100 {
            let stranger = SocketAddr::from(([10, 8, 8, 8], port));
            world.relay_mut().handle_datagram(now, stranger, &mut out[..len]);
        }
        assert_eq!(world.collect(0).len(), answers, "{later} ms later");
    }
}
