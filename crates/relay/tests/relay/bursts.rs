//! Bursts: how the updates of a flush become datagrams, and what each receiver finds in them.

use crate::support::{
    COMTREE, DOWNLINKS, OTHER_COMTREE, PERIODIC, Received, Sent, TICK, WITH_FILLER, World, config,
    group, ip_port, session_of, sharing, with_downlink,
};
use canopy_relay::{Mode, RelayConfig};
use canopy_session::SessionConfig;
use canopy_wire::{
    Address, CLEAR_LEN, Downlink, DropReason, Flags, Group, HEADER_LEN, Header, Kind, Level,
    MAX_DATAGRAM, MAX_RECORDS, MAX_UPDATE, Packet, Record, SAFE_DATAGRAM, SEAL_LEN, SessionId,
    UpdatesWriter, Weight,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const SAFE: u16 = SAFE_DATAGRAM as u16;
const LONG: u16 = MAX_DATAGRAM as u16;

/// What receivers may share: nothing, a burst, or its very bytes.
type Sharing = (Downlink, Option<u32>);
const SHARINGS: [Sharing; 5] = [
    (Downlink::Member, None),
    (Downlink::None, None),
    (Downlink::None, Some(2)),
    (Downlink::Group, None),
    (Downlink::Group, Some(2)),
];

/// A relay on a network that takes long datagrams, and participants on paths that take these.
fn world_of_paths(mode: Mode, (downlink, smallest_set): Sharing, paths: &[u16]) -> World {
    let config = with_downlink(config(mode), downlink);
    let config = RelayConfig { max_datagram: LONG, smallest_set, ..config };
    let mut world = World::of(config, 0);
    for path in paths {
        add(&mut world, *path);
    }
    world
}

/// Adds a participant on a path that takes so long datagrams, subscribed to groups 7 and 8.
fn add(world: &mut World, max_datagram: u16) -> usize {
    let mut seed = [7; 16];
    seed[0] = world.participants.len() as u8;
    let number =
        world.add_session(0, SessionConfig { max_datagram, ..SessionConfig::new(COMTREE, seed) });
    world.settle();
    for group in [7, 8] {
        world.subscribe(number, group, 9);
    }
    number
}

/// What the relay sends at the next tick.
fn next_tick(world: &mut World) -> Vec<Sent> {
    world.now = world.now.next_multiple(TICK);
    world.collect(0)
}

/// The packets in what was sent to a participant. With their seals they fit its path.
fn packets_to(world: &mut World, sent: &[Sent], number: usize) -> Vec<Vec<u8>> {
    let longest = world.participants[number].session.max_datagram();
    for one in sent.iter().filter(|one| one.to == ip_port(number)) {
        assert!(one.datagrams().all(|datagram| datagram.len() <= longest), "participant {number}");
    }
    world.packets_to(0, sent, number)
}

/// What is alike in the packets of a burst: where they were sealed, all but for whom they are, and
/// their numbers.
fn shared(packets: &[Vec<u8>]) -> Vec<&[u8]> {
    let start = |packet| if session_of(packet) == SessionId::NONE { 0 } else { CLEAR_LEN };
    packets.iter().map(|packet| &packet[start(packet)..]).collect()
}

/// How many records a datagram has, filler included.
fn records_in(datagram: &[u8]) -> usize {
    datagram[10].into()
}

#[test]
fn each_path_gets_datagrams_as_long_as_it_takes() {
    for sharing in SHARINGS {
        let mut world = world_of_paths(PERIODIC, sharing, &[SAFE, LONG, SAFE, LONG, LONG - 1, 0]);
        let agreed: Vec<_> =
            world.participants.iter().map(|one| one.session.max_datagram() as u16).collect();
        assert_eq!(agreed, [SAFE, LONG, SAFE, LONG, SAFE, SAFE]);
        let publisher = add(&mut world, SAFE);
        for update in 0..200u8 {
            world.publish(publisher, 7, 0, Flags(0), &[update; 100]);
        }
        let sent = next_tick(&mut world);
        let (safe, long) = (SAFE_DATAGRAM - SEAL_LEN, MAX_DATAGRAM - SEAL_LEN);
        for (number, agreed) in agreed.into_iter().enumerate() {
            let datagrams = packets_to(&mut world, &sent, number);
            let longest = datagrams.iter().map(|one| one.len()).max().unwrap();
            let room = if agreed == LONG { long } else { safe };
            assert!((room - 101..=room).contains(&longest), "participant {number}: {longest}");
            // The head of a publisher's next update is one byte; the first of a datagram has 13.
            let in_each = (room - HEADER_LEN - 12) / 101;
            assert_eq!(datagrams.len(), 200_usize.div_ceil(in_each), "participant {number}");
        }
        world.carry(0, sent);
        for number in 0..6 {
            let updates: Vec<_> = world.payloads(number).iter().map(|one| one[0]).collect();
            assert_eq!(updates, (0..200).collect::<Vec<_>>(), "participant {number}");
        }
    }
}

#[test]
fn a_relay_on_a_network_of_safe_datagrams_sends_no_longer_ones() {
    for downlink in DOWNLINKS {
        let mut world = World::of(with_downlink(config(PERIODIC), downlink), 0);
        for path in [LONG, SAFE] {
            let number = add(&mut world, path);
            assert_eq!(world.participants[number].session.max_datagram(), SAFE_DATAGRAM);
        }
        let publisher = add(&mut world, LONG);
        for update in 0..100u8 {
            world.publish(publisher, 7, 0, Flags(0), &[update; 100]);
        }
        let sent = next_tick(&mut world);
        let [one, other] = [0, 1].map(|number| packets_to(&mut world, &sent, number));
        assert!(one.iter().all(|packet| packet.len() <= SAFE_DATAGRAM - SEAL_LEN));
        assert_eq!(shared(&one), shared(&other), "they are one cohort");
    }
}

/// Alone or behind others, to a group or to one, with the longest head that there is.
#[test]
fn the_longest_update_always_arrives() {
    for (mode, sharing) in [Mode::Immediate, PERIODIC]
        .into_iter()
        .flat_map(|mode| SHARINGS.map(|sharing| (mode, sharing)))
    {
        for before in [0, 1, 50] {
            let mut world = world_of_paths(mode, sharing, &[SAFE, LONG, SAFE]);
            for number in 0..2 {
                // Then its series stands in its head.
                world.participants[number].session.take_series(300);
            }
            for update in 0..before {
                world.publish(1, 8, update, Flags(0), &[update; 40]);
            }
            let longest = |byte| vec![byte; MAX_UPDATE];
            world.publish(0, 7, 3, Flags::ECHO, &longest(200));
            world.publish(1, 7, 9, Flags::ECHO, &longest(201));
            world.publish(0, 8, 2, Flags::ECHO, &longest(202));
            world.publish_to(1, world.address(0), 5, Flags(0), &longest(203));
            world.tick();
            world.tick();
            let arrived = |number: usize| -> Vec<u8> {
                let payloads = world.payloads(number);
                payloads.iter().filter(|one| one.len() == MAX_UPDATE).map(|one| one[0]).collect()
            };
            assert_eq!(arrived(0), [200, 201, 202, 203], "{mode:?}, behind {before}");
            assert_eq!(arrived(1), [200, 201, 202], "{mode:?}, behind {before}");
            assert_eq!(arrived(2), [200, 201, 202], "{mode:?}, behind {before}");
            let drops: u64 = DropReason::ALL.iter().map(|reason| world.dropped(*reason)).sum();
            assert_eq!(drops, 0);
        }
    }
}

#[test]
fn an_update_that_is_too_long_is_dropped_alone() {
    let mut world = world_of_paths(Mode::Immediate, SHARINGS[0], &[LONG, LONG]);
    // Its length is written by hand: no writer takes it. Form, series, group, level and length are
    // in the first head, and the second begins anew.
    let id = world.participants[0].session.id();
    let mut datagram = Header::new(Kind::Updates, id, COMTREE).encode(2).to_vec();
    let too_long = MAX_UPDATE as u16 + 1;
    datagram.extend([0b0001_0011]);
    datagram.extend(group(7).0.to_be_bytes());
    datagram.extend((0x8000 | too_long).to_be_bytes());
    datagram.extend(vec![1; too_long.into()]);
    datagram.extend([0b0001_1011, 1, 2]);
    world.send(0, &datagram);
    world.settle();
    assert_eq!(world.dropped(DropReason::Oversized), 1);
    let received = &world.participants[1].received;
    assert_eq!(
        received.iter().map(|one| (one.series, one.payload.len())).collect::<Vec<_>>(),
        [(1, 1)]
    );
}

/// More records than a datagram can have, though it has room for their bytes.
#[test]
fn more_small_updates_than_a_datagram_can_count_all_arrive() {
    for (len, sharing) in (0..3).flat_map(|len| SHARINGS.map(|sharing| (len, sharing))) {
        let mut world = world_of_paths(PERIODIC, sharing, &[SAFE, LONG, SAFE, LONG]);
        let updates = 1_000_u16;
        for update in 0..updates {
            world.publish(0, 7, 0, Flags(0), &update.to_be_bytes()[..len]);
        }
        let sent = next_tick(&mut world);
        for number in 1..4 {
            let packets = packets_to(&mut world, &sent, number);
            let records: Vec<_> = packets.iter().map(|packet| records_in(packet)).collect();
            assert_eq!(records, [MAX_RECORDS, MAX_RECORDS, MAX_RECORDS, 235], "{len} bytes");
        }
        world.carry(0, sent);
        for number in 1..4 {
            let received = &world.participants[number].received;
            assert!(received.iter().map(|one| one.series).eq(0..updates), "{len} bytes, {number}");
            let is_whole = |one: &Received| one.payload == one.series.to_be_bytes()[..len];
            assert!(received.iter().all(is_whole), "{len} bytes, {number}");
        }
    }
}

/// One burst for all: a publisher's own updates are marked in it, wherever they stand.
#[test]
fn ones_own_is_filler_wherever_it_stands_in_the_burst() {
    // 40 updates of 100 bytes are four datagrams; the places are those of the publisher's own.
    for own in [
        vec![0],
        vec![39],
        vec![0, 39],
        vec![10, 11],
        vec![0, 1, 2, 3],
        vec![36, 37, 38, 39],
        vec![3, 11, 12, 30],
        (0..40).step_by(10).collect(),
    ] {
        for downlink in WITH_FILLER {
            assert_own_is_filler(downlink, &own);
        }
    }
}

fn assert_own_is_filler(downlink: Downlink, own: &[usize]) {
    let mut world = world_of_paths(PERIODIC, (downlink, None), &[SAFE; 4]);
    // Lengths and levels differ, so that records lean on what filler says.
    let payload = |place: usize| vec![place as u8; 95 + place % 3 * 5];
    for place in 0..40 {
        let publisher = usize::from(!own.contains(&place));
        let (to, level) = (7 + place as u32 / 20, place as u8 / 10);
        world.publish(publisher, to, level, Flags(0), &payload(place));
    }
    let sent = next_tick(&mut world);
    let [mine, others] = [0, 2].map(|number| packets_to(&mut world, &sent, number));
    let (mine, others) = (shared(&mine), shared(&others));
    assert_eq!(mine.len(), others.len(), "{own:?}: it is the same burst");
    let mut marked = 0;
    for (mine, others) in mine.iter().zip(&others) {
        assert_eq!(mine.len(), others.len());
        let differ: Vec<_> = mine.iter().zip(*others).filter(|(one, other)| one != other).collect();
        assert!(differ.iter().all(|(one, other)| **one == **other | Flags::FILLER.0), "{own:?}");
        marked += differ.len();
    }
    assert_eq!(marked, own.len(), "a bit for each of its own, and nothing else");
    world.carry(0, sent);
    let places = |number: usize| -> Vec<usize> {
        world.payloads(number).iter().map(|one| one[0].into()).collect()
    };
    let of_others: Vec<_> = (0..40).filter(|place| !own.contains(place)).collect();
    assert_eq!(places(0), of_others, "{own:?}");
    assert_eq!(places(1), own, "its own are many: it gets a burst of its own");
    for number in [2, 3] {
        assert_eq!(places(number), (0..40).collect::<Vec<_>>());
    }
    for number in 0..4 {
        for one in &world.participants[number].received {
            let place = usize::from(one.payload[0]);
            let is_own = own.contains(&place);
            let series = (0..place).filter(|other| own.contains(other) == is_own).count();
            let expected = Received {
                src: world.address(usize::from(!is_own)),
                dst: group(7 + place as u32 / 20),
                series: series as u16,
                level: Level(place as u8 / 10),
                weight: Weight::ONE,
                object: 0,
                payload: payload(place),
            };
            assert_eq!(*one, expected, "{own:?}, participant {number}");
        }
    }
}

/// Sealed copies are so many bytes that they leave in the middle of a flush, and with them what the
/// cohorts before have laid out.
#[test]
fn ones_own_is_filler_behind_another_comtrees_sealed_copies() {
    let mut config = sharing(PERIODIC);
    config.comtrees[1].downlink = Downlink::Member;
    let mut world = World::of(config, 4);
    for _ in 0..2 {
        world.add_participant(0, OTHER_COMTREE);
    }
    world.settle();
    for (number, group) in [(0, 7), (1, 7), (2, 8), (3, 8), (4, 7), (5, 7)] {
        world.subscribe(number, group, 0);
    }
    let publish = |world: &mut World, number: usize, group: u32, updates: u16, len: usize| {
        for update in 0..updates {
            let payload = [update.to_be_bytes()[0], update as u8].repeat(len / 2);
            world.publish(number, group, 0, Flags(0), &payload);
        }
    };
    for (number, group) in [(0, 7), (2, 8)] {
        publish(&mut world, number, group, 1, 60);
        publish(&mut world, number + 1, group, 8, 60);
        if group == 7 {
            publish(&mut world, 4, 7, 400, 1_000);
        }
    }
    world.tick();
    let counts: Vec<_> = world.participants.iter().map(|one| one.received.len()).collect();
    assert_eq!(counts, [8, 1, 8, 1, 0, 400]);
    for number in [0, 2] {
        let series = world.participants[number].received.iter().map(|one| one.series);
        assert!(series.eq(0..8), "participant {number}");
        assert_eq!(world.participants[number].session.echoes(), 0, "participant {number}");
    }
    assert_eq!(world.relay().counters().flushes, 1);
}

#[test]
fn records_in_anothers_name_are_dropped_one_by_one() {
    let mut world = World::new(Mode::Immediate, 3);
    world.subscribe_all(7, 9);
    let own = world.address(0);
    let sources = [
        (Address::UNSPECIFIED, true),
        (world.address(1), false),
        (own, true),
        (Address::unicast(77, 70), false),
        (group(7), false),
        (Address::UNSPECIFIED, true),
        (Address(own.0 + 0x4000), false),
    ];
    let mut out = [0; 1500];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
    for (series, (src, _)) in (40..).zip(sources) {
        assert!(writer.push(&Record { src, ..Record::new(group(7), series, b"x") }));
    }
    let id = world.participants[0].session.id();
    let len = writer.finish(&Header::new(Kind::Updates, id, COMTREE));
    world.send(0, &out[..len]);
    world.settle();
    for number in [1, 2] {
        let received = &world.participants[number].received;
        let got: Vec<_> = received.iter().map(|one| (one.src, one.series)).collect();
        assert_eq!(got, [(own, 40), (own, 42), (own, 45)], "participant {number}");
    }
    assert_eq!(world.dropped(DropReason::SpoofedSource), 4);
    assert_eq!(world.relay().counters().updates_in, 3);
    assert!(world.payloads(0).is_empty());
}

/// What is wrong with the form of a datagram costs all of it: nothing behind the fault is sure.
#[test]
fn a_datagram_with_fewer_records_than_it_says_is_dropped_whole() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 9);
    let mut out = [0; 1500];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
    for series in 0..3 {
        assert!(writer.push(&Record::new(group(7), series, b"four")));
    }
    let id = world.participants[0].session.id();
    let len = writer.finish(&Header::new(Kind::Updates, id, COMTREE));
    for cut in [1, 4, 5] {
        world.send(0, &out[..len - cut]);
    }
    world.settle();
    assert_eq!((world.dropped(DropReason::Malformed), world.payloads(1).len()), (3, 0));
    // More bytes than it says are padding, and filler is passed over.
    out[10] = 2;
    out[HEADER_LEN] |= Flags::FILLER.0;
    world.send(0, &out);
    world.settle();
    assert_eq!(world.dropped(DropReason::Malformed) + world.dropped(DropReason::Oversized), 4);
    world.send(0, &out[..MAX_DATAGRAM - SEAL_LEN]);
    world.settle();
    let received = &world.participants[1].received;
    assert_eq!(received.iter().map(|one| one.series).collect::<Vec<_>>(), [1]);
}

/// One update of a flush.
#[derive(Clone, Debug)]
struct Publish {
    number: usize,
    /// The second group, or the first.
    second: bool,
    level: u8,
    weight: u8,
    object: u16,
    echo: bool,
    len: usize,
}

fn publish(publishers: usize) -> impl Strategy<Value = Publish> {
    let len = prop_oneof![6 => 0..80usize, 3 => Just(20), 1 => 0..=MAX_UPDATE];
    let level = prop_oneof![3 => Just(0), 1 => 0..10u8];
    let weight = prop_oneof![4 => Just(Weight::ONE.0), 1 => any::<u8>()];
    let object = prop_oneof![4 => Just(0), 2 => 0..3u16, 1 => any::<u16>()];
    let head = (0..publishers, any::<bool>(), level, weight, object);
    (head, prop::bool::weighted(0.1), len).prop_map(
        |((number, second, level, weight, object), echo, len)| Publish {
            number,
            second,
            level,
            weight,
            object,
            echo,
            len,
        },
    )
}

fn rules() -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(0xb0_4575);
    ProptestConfig { cases: 150, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(rules())]
    /// Whatever was published, each receiver gets all of it but its own, as it was and in order.
    #[test]
    fn every_receiver_gets_all_but_its_own(
        downlink in 0..3usize,
        smallest_set in proptest::option::of(2..5u32),
        paths in proptest::collection::vec(prop_oneof![Just(SAFE), Just(LONG)], 2..9),
        first_series: u16,
        published in proptest::collection::vec(publish(9), 0..300),
    ) {
        let downlink = DOWNLINKS[downlink];
        let mut world = world_of_paths(PERIODIC, (downlink, smallest_set), &paths);
        let mut expected = vec![Vec::new(); paths.len()];
        for one in &mut world.participants {
            one.session.take_series(first_series.into());
        }
        let mut series = vec![first_series; paths.len()];
        for (update, one) in published.iter().enumerate() {
            let number = one.number % paths.len();
            let payload: Vec<u8> = (0..one.len).map(|at| (update + at) as u8).collect();
            let flags = if one.echo { Flags::ECHO } else { Flags(0) };
            let to = 7 + u32::from(one.second);
            let (dst, level) = (Group::new(to).address(), Level(one.level));
            let (weight, object) = (Weight(one.weight), one.object);
            let record = Record { flags, level, weight, object, ..Record::new(dst, 0, &payload) };
            world.publish_record(number, record);
            let src = world.address(number);
            let series_of = series[number];
            let received = Received { src, dst, series: series_of, level, weight, object, payload };
            series[number] = series[number].wrapping_add(1);
            for (receiver, expected) in expected.iter_mut().enumerate() {
                if receiver != number || one.echo {
                    expected.push(received.clone());
                }
            }
        }
        let sent = next_tick(&mut world);
        for (number, path) in paths.iter().enumerate() {
            for packet in packets_to(&mut world, &sent, number) {
                prop_assert!(packet.len() <= usize::from(*path) - SEAL_LEN);
                let packet = Packet::new_checked(&packet).unwrap();
                prop_assert_eq!(packet.header().kind, Kind::Updates);
            }
        }
        world.carry(0, sent);
        let deliveries: usize = expected.iter().map(Vec::len).sum();
        for (number, expected) in expected.into_iter().enumerate() {
            let received = &world.participants[number].received;
            prop_assert_eq!(received, &expected, "participant {}", number);
        }
        prop_assert_eq!(world.relay().counters().deliveries_out, deliveries as u64);
    }
}
