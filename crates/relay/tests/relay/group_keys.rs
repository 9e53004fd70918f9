//! Comtrees whose members share a key: what it seals, who has it, and for how long.

use crate::support::{
    self, COMTREE, OTHER_COMTREE, PERIODIC, World, config, group, is_of_group, is_sealed,
    with_downlink,
};
use canopy_relay::{Change, RelayConfig};
use canopy_session::{GroupKeyMaker, GroupOpener, GroupSealer, SessionConfig, State};
use canopy_wire::{
    Downlink, DropReason, Flags, GroupKey, GroupKeyNumber, Header, Kind, Packet, Record, SEAL_LEN,
    SessionId, Suite, encode_update,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Whoever is thrown out reads for so long at most: a second until another key may be made, and half a
/// second until it is used.
const READS_FOR: u64 = 1_500;

fn group_config() -> RelayConfig {
    with_downlink(config(PERIODIC), Downlink::Group)
}

/// Members of one world who all hear group 7.
fn world_of(members: usize) -> World {
    let mut world = World::of(group_config(), members);
    world.subscribe_all(7, 0);
    world
}

/// Time goes by, and whatever is due is done.
fn pass(world: &mut World, millis: u64) {
    for _ in 0..millis {
        world.now = world.now + Duration::from_millis(1);
        let now = world.now;
        world.threads.iter_mut().for_each(|relay| relay.handle_timeout(now));
        world.settle();
    }
}

fn throw_out(world: &mut World, number: usize) {
    let (now, address) = (world.now, world.address(number));
    let change = Change::Dismiss { comtree: COMTREE, address };
    let thread = world.thread_of(number);
    world.threads[thread].apply(now, change).unwrap();
    // It does not come back.
    world.participants[number].session.leave();
    world.settle();
}

/// All group keys that a participant was ever told, by who has seen everything and has its keys.
fn keys_told_to(world: &mut World, number: usize) -> Vec<GroupKey> {
    let captured = world.captured.clone().unwrap();
    let (thread, id) = (world.thread_of(number), world.participants[number].session.id());
    let keys = world.keys(thread, id);
    let opened = captured.iter().filter_map(|datagram| keys.from_relay.peek(datagram));
    opened
        .filter_map(|packet| {
            let packet = Packet::new_checked(&packet).unwrap();
            (packet.header().kind == Kind::GroupKey).then(|| GroupKey::decode(&packet).unwrap())
        })
        .collect()
}

/// What is captured while something happens.
fn captured_during(world: &mut World, what: impl FnOnce(&mut World)) -> Vec<Vec<u8>> {
    let before = world.captured.as_ref().unwrap().len();
    what(world);
    world.captured.as_ref().unwrap()[before..].to_vec()
}

fn publish_and_tick(world: &mut World, number: usize) {
    world.publish(number, 7, 0, Flags(0), b"for members only");
    world.tick();
}

#[test]
fn updates_to_groups_are_sealed_once_for_all_and_unicast_for_its_receiver() {
    let mut world = world_of(4);
    world.publish(0, 7, 0, Flags(0), b"to all");
    let to = world.address(1);
    world.publish_to(0, to, 0, Flags(0), b"to one");
    world.now = world.now.next_multiple(support::TICK);
    let sent = world.collect(0);
    let to_it = |number: usize| -> Vec<&[u8]> {
        let to = world.participants[number].path.remote;
        sent.iter().filter(|one| one.to == to).map(|one| &one.bytes[..]).collect()
    };
    // 0 has said all that is in the burst, so nothing is for it.
    assert_eq!(to_it(0).len(), 0);
    assert!(is_of_group(to_it(2)[0]) && to_it(2) == to_it(3), "the same bytes");
    // What is for 1 alone is not sealed with a key that others have.
    assert!(to_it(1).iter().all(|datagram| is_sealed(datagram)));
    let one = to_it(2)[0].to_vec();
    assert!(world.open_of_group(0, &one).is_some());
    world.carry(0, sent);
    assert_eq!(world.payloads(1), [b"to all", b"to one"]);
    assert_eq!(
        (world.payloads(2), world.payloads(3)),
        (vec![&b"to all"[..]], vec![&b"to all"[..]])
    );
}

#[test]
fn use_of_a_group_key_after_being_thrown_out() {
    let mut world = world_of(4);
    world.captured = Some(Vec::new());
    // Another has just left, so that a key is made now, and the next only in a second.
    let thief = world.join(0);
    world.subscribe(thief, 7, 0);
    throw_out(&mut world, 3);
    pass(&mut world, 1);
    throw_out(&mut world, thief);
    let keys = keys_told_to(&mut world, thief);
    assert!(keys.len() >= 2, "it has the key in use and the next");
    let opens = |datagrams: &[Vec<u8>]| {
        let opened = |datagram: &Vec<u8>| {
            keys.iter().any(|key| GroupOpener::new(key).peek(datagram).is_some())
        };
        datagrams.iter().filter(|datagram| is_of_group(datagram)).filter(|one| opened(one)).count()
    };
    let at_first = captured_during(&mut world, |world| publish_and_tick(world, 0));
    assert_eq!(opens(&at_first), 2, "for a while it still reads");
    pass(&mut world, READS_FOR);
    let later = captured_during(&mut world, |world| {
        for _ in 0..5 {
            publish_and_tick(world, 0);
            pass(world, 300);
        }
    });
    assert_eq!(later.iter().filter(|datagram| is_of_group(datagram)).count(), 2 * 5);
    assert_eq!(opens(&later), 0);
    // Those who stayed missed nothing.
    assert_eq!((world.payloads(1).len(), world.payloads(2).len()), (6, 6));
    assert_eq!(world.sum(|counters| counters.group_keys_made), 2);
}

#[test]
fn a_group_key_that_a_leaver_took_along_forges_nothing_in_the_end() {
    let mut world = world_of(3);
    world.captured = Some(Vec::new());
    let leaver = world.join(0);
    world.participants[leaver].session.leave();
    world.settle();
    let key = *keys_told_to(&mut world, leaver).last().unwrap();
    pass(&mut world, 4_000);
    let mut datagram = captured_during(&mut world, |world| publish_and_tick(world, 0))
        .into_iter()
        .find(|datagram| is_of_group(datagram))
        .unwrap();
    datagram[1..4].copy_from_slice(&key.number.number().to_be_bytes()[1..]);
    let now = world.now;
    let one = &mut world.participants[1].session;
    let keyless = one.keyless();
    assert_eq!(one.handle_datagram(now, &mut datagram, |_| panic!("it was taken")), Ok(()));
    assert_eq!(one.keyless(), keyless + 1);
    assert_eq!(world.payloads(1).len(), 1);
}

/// Any member has the key, so any can pose as the relay towards the others, if it can write the relay's
/// ip:port: with updates to groups, and no more.
#[test]
fn forged_by_a_member_only_updates_to_groups_are_taken() {
    let mut world = world_of(3);
    let mut key = GroupKeyMaker::new(&[2; 16], 0, 1).make(Suite::Aes128Gcm);
    let start = world.now;
    let (victim, src) = (world.address(1), world.address(2));
    let forged = |key: &mut GroupSealer, kind, comtree, dst| {
        let mut out = vec![0; 200];
        let header = Header::new(kind, SessionId::NONE, comtree);
        let record = Record { src, ..Record::new(dst, 0, b"forged") };
        let len = match kind {
            Kind::Updates => encode_update(&header, &record, &mut out).unwrap(),
            _ => header.encode_packet(&[0; 16], &mut out).unwrap(),
        };
        out.truncate(len + SEAL_LEN);
        assert!(key.seal(&mut out));
        out
    };
    let mut taken = 0;
    let mut hear = |world: &mut World, mut datagram: Vec<u8>| {
        let now = world.now;
        let heard = |_: canopy_session::Update<'_>| taken += 1;
        let result = world.participants[1].session.handle_datagram(now, &mut datagram, heard);
        (result.is_ok(), taken)
    };
    let group = group(7);
    let datagrams = [
        (forged(&mut key, Kind::Updates, COMTREE, group), (true, 1)),
        (forged(&mut key, Kind::Updates, COMTREE, victim), (true, 1)),
        (forged(&mut key, Kind::Updates, OTHER_COMTREE, group), (false, 1)),
        (forged(&mut key, Kind::Leave, COMTREE, group), (false, 1)),
        (forged(&mut key, Kind::GroupKey, COMTREE, group), (false, 1)),
    ];
    for (datagram, expected) in datagrams {
        assert_eq!(hear(&mut world, datagram), expected);
    }
    assert_eq!(world.participants[1].session.state(), State::Connected);
    // No sign of life either: the relay is silent.
    while world.participants[1].session.state() == State::Connected {
        world.now = world.now + Duration::from_millis(100);
        let datagram = forged(&mut key, Kind::Updates, COMTREE, group);
        hear(&mut world, datagram);
        let (now, mut out) = (world.now, [0; 1500]);
        while world.participants[1].session.poll_transmit(now, &mut out).is_some() {}
        assert!(now.since(start) < Duration::from_secs(20), "forged updates keep it alive");
    }
}

#[test]
fn replays_of_what_is_sealed_for_all_are_dropped() {
    let mut world = world_of(3);
    world.captured = Some(Vec::new());
    for _ in 0..3 {
        publish_and_tick(&mut world, 0);
    }
    let late = world.join(0);
    world.subscribe(late, 7, 0);
    let captured = world.captured.clone().unwrap();
    let now = world.now;
    for number in [1, late] {
        for datagram in captured.iter().filter(|datagram| is_of_group(datagram)) {
            let session = &mut world.participants[number].session;
            let taken = session.handle_datagram(now, &mut datagram.clone(), |_| panic!("twice"));
            assert!(taken.is_err());
        }
    }
    assert_eq!((world.payloads(1).len(), world.payloads(late).len()), (3, 0));
}

#[test]
fn whom_no_key_reaches_asks_for_it_and_subscribes_afterwards() {
    let mut world = world_of(2);
    let number = world.add_participant(0, COMTREE);
    world.participants[number].session.subscribe(canopy_wire::Group::new(7), Default::default());
    // The first of its keys are lost.
    for _ in 0..3 {
        for _ in 0..8 {
            world.send_from(number);
            let mut sent = world.collect(0);
            sent.retain(|one| {
                world.open(0, &one.bytes).get(8).is_none_or(|kind| *kind != Kind::GroupKey as u8)
            });
            world.carry(0, sent);
        }
        world.now = world.now + Duration::from_millis(100);
    }
    assert_eq!(world.relay().subscriptions(), 2);
    pass(&mut world, 1_000);
    assert_eq!(world.relay().subscriptions(), 3);
    publish_and_tick(&mut world, 0);
    assert_eq!(world.payloads(number).len(), 1);
}

#[test]
fn who_does_not_take_the_cipher_of_all_is_refused() {
    let mut config = group_config();
    config.comtrees[0].group_suite = Suite::ChaCha20Poly1305;
    let mut world = World::of(config, 1);
    assert_eq!(world.sessions(), 1, "who takes both is taken");
    let suites = Suite::Aes128Gcm.bit();
    world.add_session(0, SessionConfig { suites, ..SessionConfig::new(COMTREE, [9; 16]) });
    world.settle();
    assert_eq!((world.sessions(), world.dropped(DropReason::BadCredentials)), (1, 1));
    world.subscribe_all(7, 0);
}

/// A crowd's leaves cost one key for each member a second, in portions.
#[test]
fn many_leaves_make_few_keys_and_no_storm() {
    let mut world = world_of(300);
    let given = |world: &World| world.sum(|counters| counters.group_keys_given);
    let before = given(&world);
    for number in 200..300 {
        throw_out(&mut world, number);
        pass(&mut world, 5);
    }
    let mut most = 0;
    for _ in 0..2_500 {
        let before = given(&world);
        pass(&mut world, 1);
        most = most.max(given(&world) - before);
    }
    // The first at once, and one more for all who left afterwards.
    assert_eq!(world.sum(|counters| counters.group_keys_made), 2);
    assert!(given(&world) - before <= 2 * 300, "{}", given(&world) - before);
    assert!(most <= 64, "{most} keys left at once");
    publish_and_tick(&mut world, 0);
    assert!((1..200).all(|number| world.payloads(number).len() == 1));
}

/// Something that happens on a comtree.
#[derive(Clone, Debug)]
enum Step {
    Publish(usize),
    Join,
    ThrowOut(usize),
    Pass(u64),
    LoseNext(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..8usize).prop_map(Step::Publish),
        2 => Just(Step::Join),
        2 => (0..8usize).prop_map(Step::ThrowOut),
        4 => (1..700u64).prop_map(Step::Pass),
        1 => (1..5usize).prop_map(Step::LoseNext),
    ]
}

fn rules() -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(0x6e);
    ProptestConfig { cases: 40, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(rules())]
    /// On two data threads, whoever joins, leaves or is thrown out, and whatever is lost.
    #[test]
    fn no_group_key_seals_two_packets_with_one_counter(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut world = World::with_threads(group_config(), 2);
        (0..4).for_each(|number| { world.join(number % 2); });
        world.subscribe_all(7, 0);
        world.captured = Some(Vec::new());
        let mut gone = BTreeSet::new();
        for step in steps {
            let count = world.participants.len();
            match step {
                Step::Publish(number) if !gone.contains(&(number % count)) => {
                    publish_and_tick(&mut world, number % count);
                }
                Step::Join => {
                    let number = world.join(count % 2);
                    world.subscribe(number, 7, 0);
                }
                Step::ThrowOut(number) if gone.insert(number % count) => {
                    throw_out(&mut world, number % count);
                }
                Step::Pass(millis) => pass(&mut world, millis),
                Step::LoseNext(count) => {
                    let now = world.now;
                    world.threads.iter_mut().for_each(|relay| relay.handle_timeout(now));
                    for thread in 0..2 {
                        let sent = world.collect(thread);
                        world.carry(thread, sent.into_iter().skip(count).collect());
                    }
                }
                _ => {}
            }
        }
        let mut sealed: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut newest: BTreeMap<usize, GroupKeyNumber> = BTreeMap::new();
        for datagram in world.captured.clone().unwrap().iter().filter(|one| is_of_group(one)) {
            let by: Vec<usize> =
                (0..2).filter(|one| world.open_of_group(*one, datagram).is_some()).collect();
            prop_assert_eq!(by.len(), 1, "one key and no other opens a datagram");
            // Each receiver has a copy of the same bytes.
            let other = sealed.insert(datagram[..8].to_vec(), datagram.clone());
            prop_assert!(other.is_none_or(|other| other == *datagram), "a counter was used twice");
            let number = GroupKeyNumber::of(datagram).unwrap();
            let before = newest.insert(by[0], number).unwrap_or(number);
            prop_assert!(number == before || number.is_later_than(before), "keys went back");
        }
    }
}
