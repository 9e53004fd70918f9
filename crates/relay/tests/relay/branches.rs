//! Relays that are joined by branches of a comtree.

use crate::support::{
    self, COMTREE, DOWNLINKS, OTHER_COMTREE, PERIODIC, Sent, World, at_site, group, ip_port,
    path_of_thread, with_downlink,
};
use canopy_relay::{
    BranchId, BranchRole, Budget, Change, ComtreeConfig, Mode, Refusal, RelayConfig,
};
use canopy_wire::{
    Address, DropReason, Flags, Group, Header, Kind, MAX_DATAGRAM, MAX_UPDATE, Packet, Record,
    SAFE_DATAGRAM, SEAL_LEN, SessionId, SubscribeWriter, SubscriptionChange, UpdatesWriter,
};
use std::net::SocketAddr;

const GROUP: u32 = 7;

/// Relays of one data thread each, the n-th at site n + 1, with a subscriber on each.
fn relays(mode: Mode, count: usize) -> World {
    relays_with(count, |site| at_site(mode, site))
}

fn relays_with(count: usize, config: impl Fn(u16) -> RelayConfig) -> World {
    let mut world = World::empty();
    for relay in 0..count {
        world.add_relay(config(relay as u16 + 1), 1);
    }
    for relay in 0..count {
        let number = world.join(relay);
        world.subscribe(number, GROUP, 9);
    }
    world
}

fn own_address(relay: usize) -> Address {
    Address::unicast(relay as u16 + 1, 0)
}

const CORE: [BranchRole; 2] = [BranchRole::Core; 2];
const CORE_PEERS: [BranchRole; 2] = [BranchRole::CorePeer; 2];

/// Joins two relays that are both in the core.
fn join(world: &mut World, one: usize, other: usize, roles: [BranchRole; 2]) {
    world.link(COMTREE, [(one, one as u16 + 1), (other, other as u16 + 1)], roles);
    world.settle();
}

/// A relay sends its neighbour a packet.
fn send_over_link(world: &mut World, from: usize, to: usize, packet: &[u8]) {
    let key = world.key_of(to);
    assert!(world.threads[from].send_over_link(&key, packet));
    let sent = world.collect(from);
    world.carry(from, sent);
}

/// A line of three.
fn line(mode: Mode) -> World {
    let mut world = relays(mode, 3);
    join(&mut world, 0, 1, CORE);
    join(&mut world, 1, 2, CORE);
    world
}

fn counts(world: &World) -> Vec<usize> {
    world.participants.iter().map(|one| one.received.len()).collect()
}

/// The packets in the datagrams among `sent` that go from one relay to another.
fn packets_to(world: &mut World, sent: &[Sent], from: usize, to: usize) -> Vec<Vec<u8>> {
    let there = path_of_thread(to).remote;
    let to_it = sent.iter().filter(|one| one.to == there).flat_map(Sent::datagrams);
    to_it.map(|datagram| world.open_between(from, to, datagram)).collect()
}

/// Publishes with a hop limit.
fn publish_with_hops(world: &mut World, number: usize, hop_limit: u8, payload: &[u8]) {
    let update = world.update_of(number, |header| Header { hop_limit, ..header }, payload);
    world.send(number, &update);
}

fn assert_nothing_dropped(world: &World) {
    for reason in DropReason::ALL {
        assert_eq!(world.dropped(*reason), 0, "{}", reason.name());
    }
}

#[test]
fn an_update_reaches_all_relays_of_a_line_once() {
    let mut world = line(Mode::Immediate);
    for publisher in 0..3 {
        let before = counts(&world);
        world.publish(publisher, GROUP, 3, Flags(0), &[publisher as u8; 100]);
        world.settle();
        let mut expected: Vec<_> = before.iter().map(|count| count + 1).collect();
        expected[publisher] -= 1;
        assert_eq!(counts(&world), expected);
        for number in (0..3).filter(|number| *number != publisher) {
            let last = world.participants[number].received.last().unwrap();
            assert_eq!((last.src, last.level.0), (world.address(publisher), 3));
            assert_eq!((last.dst, last.series), (group(GROUP), 0));
            assert_eq!(last.payload, [publisher as u8; 100]);
        }
    }
    assert_nothing_dropped(&world);
    assert_eq!(world.sum(|counters| counters.updates_in), 3, "where they were published");
    // From the ends two hops each, from the middle one each way.
    assert_eq!(world.sum(|counters| counters.deliveries_out), 6 + 6);
}

/// In one tick there are updates from everywhere: each branch gets all but its own, few or many.
#[test]
fn nothing_goes_back_over_the_branch_that_it_came_by() {
    for from_the_first in [1, 3, 40] {
        let mut world = line(PERIODIC);
        for update in 0..from_the_first {
            world.publish(0, GROUP, 0, Flags(0), &[0, update]);
        }
        for update in 0..20 {
            world.publish(1, GROUP, 0, Flags(0), &[1, update]);
            world.publish(2, GROUP, 0, Flags(0), &[2, update]);
        }
        // The ends flush, then the middle.
        world.now = world.now.next_multiple(support::TICK);
        for end in [0, 2] {
            let sent = world.collect(end);
            world.carry(end, sent);
        }
        let sent = world.collect(1);
        for (relay, own_site) in [(0, 1), (2, 3)] {
            let mut sources = Vec::new();
            for packet in packets_to(&mut world, &sent, 1, relay) {
                let packet = Packet::new_checked(&packet).unwrap();
                sources.extend(packet.updates().unwrap().map(|record| record.src.site()));
            }
            assert!(!sources.is_empty());
            assert!(!sources.contains(&own_site), "to relay {relay}: {sources:?}");
        }
        world.carry(1, sent);
        world.tick();
        let first = usize::from(from_the_first);
        assert_eq!(counts(&world), [40, 20 + first, 20 + first]);
        assert_nothing_dropped(&world);
    }
}

/// Sets are for participants, which drop their own: a relay would take its own for new.
#[test]
fn branches_are_never_a_set() {
    for downlink in DOWNLINKS {
        let with_sets = |site| {
            let config = with_downlink(at_site(PERIODIC, site), downlink);
            RelayConfig { smallest_set: Some(2), ..config }
        };
        let mut world = relays_with(4, with_sets);
        for leaf in 1..4 {
            join(&mut world, 0, leaf, CORE);
        }
        for leaf in [1, 2] {
            world.publish(leaf, GROUP, 0, Flags(0), b"from a leaf");
        }
        for _ in 0..3 {
            world.tick();
        }
        assert_eq!(counts(&world), [2, 1, 1, 2], "{downlink:?}");
        assert_nothing_dropped(&world);
    }
}

#[test]
fn a_hop_limit_reaches_so_many_relays() {
    for (hop_limit, expected) in [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (255, [1, 1, 1])]
    {
        let mut world = line(Mode::Immediate);
        let publisher = world.join(0);
        publish_with_hops(&mut world, publisher, hop_limit, b"x");
        world.settle();
        assert_eq!(counts(&world)[..3], expected, "hop limit {hop_limit}");
        let would_have_gone_on = u64::from(hop_limit < 3);
        assert_eq!(world.dropped(DropReason::HopLimit), would_have_gone_on);
    }
}

#[test]
fn the_hop_limit_of_a_datagram_is_the_least_of_its_updates() {
    let mut world = line(PERIODIC);
    for hop_limit in [9, 3, 200] {
        publish_with_hops(&mut world, 0, hop_limit, b"x");
    }
    world.now = world.now.next_multiple(support::TICK);
    let sent = world.collect(0);
    let packets = packets_to(&mut world, &sent, 0, 1);
    assert_eq!(packets.len(), 1);
    let packet = Packet::new_checked(&packets[0]).unwrap();
    assert_eq!((packet.header().kind, packet.header().hop_limit), (Kind::Updates, 2));
    assert_eq!(packet.updates().unwrap().count(), 3);
}

/// A ring is a mistake of whoever configured it; an update in it must die all the same.
#[test]
fn an_update_dies_in_a_ring() {
    let mut world = relays(Mode::Immediate, 4);
    for (one, next) in [(0, 1), (1, 2), (2, 0)] {
        world.link(COMTREE, [(one, one as u16 + 1), (next, next as u16 + 1)], CORE);
    }
    join(&mut world, 0, 3, CORE);
    publish_with_hops(&mut world, 3, 31, b"round and round");
    world.settle();
    assert_eq!(counts(&world)[..3].iter().sum::<usize>(), 59, "one hop each, both ways round");
    // The first relay of the ring also offers it to the fourth again and again, whose own it is.
    let spoofed = world.dropped(DropReason::SpoofedSource);
    assert_eq!(world.dropped(DropReason::HopLimit), 2);
    assert_eq!(spoofed, 18, "it came by the first relay again so often");
}

#[test]
fn a_datagram_of_many_sources_is_taken_from_a_branch() {
    let mut world = line(PERIODIC);
    let second = world.join(0);
    for step in 0..10 {
        world.publish(0, GROUP, 0, Flags(0), &[step]);
        world.publish(second, GROUP, 0, Flags(0), &[step]);
    }
    for _ in 0..3 {
        world.tick();
    }
    let sources = [world.address(0), world.address(second)];
    for number in [1, 2] {
        let received = &world.participants[number].received;
        let got: Vec<_> = received.iter().map(|one| (one.src, one.payload[0])).collect();
        let expected: Vec<_> =
            (0..10).flat_map(|step| sources.map(|source| (source, step))).collect();
        assert_eq!(got, expected);
    }
    assert_nothing_dropped(&world);
}

/// Receivers see by it what was lost, doubled or overtaken on the way.
#[test]
fn a_publishers_series_passes_unchanged_over_threads_and_branches() {
    for mode in [Mode::Immediate, PERIODIC] {
        let mut world = World::empty();
        world.add_relay(at_site(mode, 1), 2);
        world.add_relay(at_site(mode, 2), 1);
        for thread in 0..3 {
            let number = world.join(thread);
            world.subscribe(number, GROUP, 9);
        }
        // The branch is on the second thread of the first relay.
        world.link_threads([1, 2]);
        for (here, there, site) in [(1, 2, 2), (2, 1, 1)] {
            world.add_branch(COMTREE, here, (there, site), BranchRole::Core);
        }
        world.settle();
        let mut expected = Vec::new();
        // It begins near the end of the numbers, and some are never sent.
        let mut next: u16 = world.participants[0].session.take_series(65_530).wrapping_add(65_530);
        for update in 0..20u8 {
            let skipped = usize::from(update % 3);
            assert_eq!(world.participants[0].session.take_series(skipped), next);
            world.publish(0, GROUP, 0, Flags(0), &[update]);
            expected.push((world.address(0), next.wrapping_add(skipped as u16)));
            next = next.wrapping_add(skipped as u16 + 1);
        }
        for _ in 0..3 {
            world.tick();
        }
        assert!(expected.iter().any(|(_, series)| *series < 20), "it wraps");
        for number in [1, 2] {
            let received = &world.participants[number].received;
            let got: Vec<_> = received.iter().map(|one| (one.src, one.series)).collect();
            assert_eq!(got, expected, "{mode:?}, participant {number}");
        }
        assert_nothing_dropped(&world);
    }
}

#[test]
fn a_branch_gets_datagrams_as_long_as_the_relays_network_takes() {
    for max_datagram in [SAFE_DATAGRAM, MAX_DATAGRAM] {
        let long =
            |site| RelayConfig { max_datagram: max_datagram as u16, ..at_site(PERIODIC, site) };
        let mut world = relays_with(2, long);
        join(&mut world, 0, 1, CORE);
        for update in 0..100 {
            world.publish(0, GROUP, 0, Flags(0), &[update; 100]);
        }
        world.publish(0, GROUP, 0, Flags(0), &[200; MAX_UPDATE]);
        world.now = world.now.next_multiple(support::TICK);
        let sent = world.collect(0);
        let longest = packets_to(&mut world, &sent, 0, 1).iter().map(Vec::len).max().unwrap();
        let room = max_datagram - SEAL_LEN;
        assert!((room - 101..=room).contains(&longest), "{longest} of {max_datagram}");
        world.carry(0, sent);
        world.tick();
        assert_eq!(world.payloads(1).len(), 101);
        assert_eq!(world.payloads(1)[100], [200; MAX_UPDATE]);
    }
}

/// Traffic goes both ways along a line, and is flushed together: what goes one way must not have the hop
/// limit of what comes the other, or both would die of each other.
#[test]
fn the_hop_limit_falls_by_one_a_relay_whatever_goes_the_other_way() {
    const LENGTH: usize = 12;
    let mut world = relays(PERIODIC, LENGTH);
    for relay in 1..LENGTH {
        join(&mut world, relay - 1, relay, CORE);
    }
    for round in 0..100 {
        world.publish(0, GROUP, 0, Flags(0), &[round]);
        world.publish(LENGTH - 1, GROUP, 0, Flags(0), &[round]);
        world.tick();
    }
    for _ in 0..LENGTH {
        world.tick();
    }
    assert_nothing_dropped(&world);
    assert_eq!([0, LENGTH - 1].map(|end| world.payloads(end).len()), [100, 100]);
}

/// A relay's datagram, of records with these sources.
fn updates_of(sources: &[Address], flags: Flags) -> Vec<u8> {
    let mut out = [0; 1500];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
    for (series, src) in (0..).zip(sources) {
        let record = Record::new(group(GROUP), series, b"record");
        assert!(writer.push(&Record { src: *src, flags, ..record }));
    }
    let len = writer.finish(&Header::new(Kind::Updates, SessionId::NONE, COMTREE));
    out[..len].to_vec()
}

#[test]
fn a_branch_does_not_speak_for_those_whom_the_relay_serves_itself() {
    let mut world = line(Mode::Immediate);
    let of_another_site = Address::unicast(77, 100);
    let sources = [world.address(1), of_another_site, own_address(1), group(3)];
    let packet = updates_of(&sources, Flags(0));
    send_over_link(&mut world, 0, 1, &packet);
    world.settle();
    assert_eq!(world.dropped(DropReason::SpoofedSource), 3);
    let received = &world.participants[1].received;
    assert_eq!(received.iter().map(|one| one.src).collect::<Vec<_>>(), [of_another_site]);
    assert_eq!(counts(&world), [0, 1, 1], "one bad record does not cost the others");
}

/// Neither who writes a neighbour's ip:port on a packet, nor a participant, nor a neighbour's copy from
/// elsewhere.
#[test]
fn nobody_else_speaks_in_a_neighbours_name() {
    let mut world = line(Mode::Immediate);
    let updates = updates_of(&[Address::unicast(77, 100)], Flags(0));
    let elsewhere = SocketAddr::from(([10, 66, 6, 6], 4748));
    let mut subscribe = [0; 1500];
    let mut writer = SubscribeWriter::new(&mut subscribe, 2, SAFE_DATAGRAM).unwrap();
    assert!(writer.push(SubscriptionChange::Drop(Group::new(GROUP))));
    let len = writer.finish(COMTREE, SessionId::NONE);
    for from in [path_of_thread(0).remote, elsewhere, ip_port(1)] {
        for packet in [&updates[..], &subscribe[..len]] {
            world.arrive(1, from, packet);
            assert!(world.collect(1).is_empty(), "it is not even answered");
        }
    }
    assert_eq!(world.dropped(DropReason::Forged), 6);
    // In a participant's session they are its own, and a link's sealed packets come by its path only.
    let id = world.participants[1].session.id().number().to_be_bytes();
    let of_participant = world.seal(1, &[&updates[..1], &id[1..], &updates[4..]].concat());
    world.arrive(1, ip_port(1), &of_participant);
    assert_eq!(world.dropped(DropReason::SpoofedSource), 1);
    let key = world.key_of(1);
    assert!(world.threads[0].send_over_link(&key, &updates));
    let sent = world.collect(0);
    let copied: Vec<u8> = sent[0].datagrams().next().unwrap().to_vec();
    world.arrive(1, elsewhere, &copied);
    assert_eq!(world.dropped(DropReason::SpoofedSource), 2);
    assert!(world.collect(1).is_empty(), "a link is not challenged");
    world.settle();
    assert_eq!(counts(&world), [0, 0, 0]);
    world.publish(1, GROUP, 0, Flags(0), b"still wanted");
    world.settle();
    assert_eq!(counts(&world), [1, 0, 1]);
}

/// What tells of a way goes to all core peers, but nothing goes to a last peer.
#[test]
fn a_last_peer_is_not_told_of_a_way() {
    let mut world = relays(Mode::Immediate, 4);
    join(&mut world, 0, 1, CORE_PEERS);
    join(&mut world, 1, 2, [BranchRole::LastPeer; 2]);
    join(&mut world, 1, 3, [BranchRole::Child, BranchRole::Parent]);
    let mut buffer = [0; 1500];
    let mut writer = UpdatesWriter::new(&mut buffer, SAFE_DATAGRAM).unwrap();
    let word = Record::new(Address::unicast(9, 0), 0, b"");
    assert!(writer.push(&Record { src: own_address(3), ..word }));
    let len = writer.finish(&Header::new(Kind::Updates, SessionId::NONE, COMTREE));
    send_over_link(&mut world, 3, 1, &buffer[..len]);
    let sent = world.collect(1);
    let told = [0, 2].map(|peer| packets_to(&mut world, &sent, 1, peer).len());
    assert_eq!(told, [1, 0]);
}

#[test]
fn echo_is_settled_at_the_publishers_own_relay() {
    let mut world = line(Mode::Immediate);
    world.publish(0, GROUP, 0, Flags::ECHO, b"mine too");
    let sent = world.collect(0);
    for packet in packets_to(&mut world, &sent, 0, 1) {
        let packet = Packet::new_checked(&packet).unwrap();
        let mut records = packet.updates().unwrap();
        assert!(records.all(|record| record.flags == Flags(0)), "the next relay is not asked");
    }
    world.carry(0, sent);
    world.settle();
    assert_eq!(counts(&world), [1, 1, 1]);
    assert_nothing_dropped(&world);
    // A neighbour that asks for an echo all the same gets none.
    let packet = updates_of(&[Address::unicast(77, 100)], Flags::ECHO);
    send_over_link(&mut world, 0, 1, &packet);
    let sent = world.collect(1);
    assert!(packets_to(&mut world, &sent, 1, 0).is_empty());
    assert_eq!(packets_to(&mut world, &sent, 1, 2).len(), 1);
    // Nor is it told to participants as one.
    let packets = world.packets_to(1, &sent, 1);
    let records = |packet: &Vec<u8>| {
        let records = Packet::new_checked(packet).unwrap().updates().unwrap();
        records.map(|record| record.flags).collect::<Vec<_>>()
    };
    assert_eq!(packets.iter().flat_map(records).collect::<Vec<_>>(), [Flags(0)]);
}

/// What each of four participants publishes comes to the three others, once.
fn assert_everybody_hears_everybody(world: &mut World, shape: &str) {
    for publisher in 0..4 {
        let mut expected: Vec<_> = counts(world).iter().map(|count| count + 1).collect();
        expected[publisher] -= 1;
        world.publish(publisher, GROUP, 0, Flags(0), b"x");
        world.settle();
        assert_eq!(counts(world), expected, "{shape}: from {publisher}");
    }
    assert_nothing_dropped(world);
}

/// A full mesh of three, and a tree that hangs on one of them.
#[test]
fn core_peers_do_not_forward_to_core_peers() {
    let mut world = relays(Mode::Immediate, 4);
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        join(&mut world, one, other, CORE_PEERS);
    }
    join(&mut world, 1, 3, CORE);
    assert_everybody_hears_everybody(&mut world, "a mesh and a tree");
}

/// The data threads of a relay are core peers of each other, and of its other core peers.
#[test]
fn a_relay_of_two_threads_has_its_branches_on_either() {
    for role in [BranchRole::CorePeer, BranchRole::Core] {
        let mut world = World::empty();
        for (site, threads) in [(1, 2), (2, 1), (3, 1)] {
            world.add_relay(at_site(Mode::Immediate, site), threads);
        }
        // Relay 1 is threads 0 and 1; relays 2 and 3 are threads 2 and 3.
        let site_of = |thread: usize| thread.max(1) as u16;
        let mut branches = vec![(0, 2), (1, 3)];
        if role == BranchRole::CorePeer {
            branches.push((2, 3));
        }
        for thread in 0..4 {
            let number = world.join(thread);
            world.subscribe(number, GROUP, 9);
        }
        for (one, other) in branches {
            world.link_threads([one, other]);
            for (here, there) in [(one, other), (other, one)] {
                world.add_branch(COMTREE, here, (there, site_of(there)), role);
            }
        }
        world.settle();
        assert_everybody_hears_everybody(&mut world, &format!("{role:?}"));
        // What passes between data threads is no hop.
        for number in 0..4 {
            world.participants[number].received.clear();
        }
        publish_with_hops(&mut world, 1, 2, b"x");
        world.settle();
        assert_eq!(counts(&world), [1, 0, 1, 1], "{role:?}");
    }
}

#[test]
fn a_branch_gets_no_higher_level_than_it_wants() {
    let mut world = relays(Mode::Immediate, 2);
    world.subscribe(1, GROUP, 2);
    world.link(COMTREE, [(0, 1), (1, 2)], [BranchRole::Child, BranchRole::Parent]);
    world.settle();
    for level in 0..6 {
        world.publish(0, GROUP, level, Flags(0), &[level]);
        world.publish(1, GROUP, level, Flags(0), &[level]);
    }
    world.settle();
    assert_eq!(world.payloads(1), [[0], [1], [2]]);
    let all: Vec<_> = (0..6).map(|level| vec![level]).collect();
    assert_eq!(world.payloads(0), all, "towards the core goes everything");
}

#[test]
fn a_links_branches_are_apart_by_comtree() {
    let mut world = World::empty();
    for site in [1, 2] {
        let comtrees =
            vec![ComtreeConfig::new(COMTREE, site), ComtreeConfig::new(OTHER_COMTREE, 10 + site)];
        world.add_relay(RelayConfig { comtrees, ..at_site(PERIODIC, site) }, 1);
    }
    for relay in [0, 1] {
        for comtree in [COMTREE, OTHER_COMTREE] {
            let number = world.add_participant(relay, comtree);
            world.settle();
            world.subscribe(number, GROUP, 9);
        }
    }
    world.link(COMTREE, [(0, 1), (1, 2)], CORE);
    world.link(OTHER_COMTREE, [(0, 11), (1, 12)], CORE);
    world.settle();
    world.publish(0, GROUP, 0, Flags(0), b"one");
    world.publish(1, GROUP, 0, Flags(0), b"two");
    world.now = world.now.next_multiple(support::TICK);
    let sent = world.collect(0);
    let mut comtrees: Vec<_> = packets_to(&mut world, &sent, 0, 1)
        .iter()
        .map(|packet| Packet::new_checked(packet).unwrap().header().comtree)
        .collect();
    comtrees.sort_unstable();
    assert_eq!(comtrees, [COMTREE, OTHER_COMTREE]);
    world.carry(0, sent);
    world.tick();
    assert_eq!(world.payloads(2), [b"one"]);
    assert_eq!(world.payloads(3), [b"two"]);
    assert_nothing_dropped(&world);
}

#[test]
fn after_its_end_a_branch_gets_and_brings_nothing() {
    let mut world = line(PERIODIC);
    world.publish(0, GROUP, 0, Flags(0), b"waits");
    let (now, link) = (world.now, world.key_of(1));
    let id = BranchId { comtree: COMTREE, link, thread: 0 };
    world.threads[0].apply(now, Change::RemoveBranch(id)).unwrap();
    world.publish(1, GROUP, 0, Flags(0), b"comes from nobody");
    world.tick();
    world.tick();
    assert_eq!(counts(&world), [0, 0, 1]);
    assert_eq!(world.dropped(DropReason::UnknownSource), 1);
    assert_eq!(world.threads[0].subscriptions(), 1, "its own participant's");
}

/// What comes over a branch is limited as what a participant sends, and from then on only.
#[test]
fn a_branch_has_a_budget_that_can_be_set() {
    let mut world = line(Mode::Immediate);
    let branch = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
    let budget = Budget { up_packets: 1, ..Budget::default() };
    let now = world.now;
    world.threads[1].apply(now, Change::SetBranchBudget { branch, budget }).unwrap();
    let published = 600;
    for _ in 0..published {
        world.publish(0, GROUP, 0, Flags(0), b"x");
        world.settle();
    }
    let over = world.dropped(DropReason::OverBudget) as usize;
    let came = world.participants[1].received.len();
    assert!(over > 300 && came + over == published, "{came} came, {over} were dropped");
    // What others send over the other branch is not concerned.
    world.publish(2, GROUP, 0, Flags(0), b"y");
    world.settle();
    assert_eq!(world.participants[1].received.len(), came + 1);
    let unknown = BranchId { comtree: OTHER_COMTREE, ..branch };
    let refused = world.threads[1].apply(now, Change::SetBranchBudget { branch: unknown, budget });
    assert_eq!(refused, Err(Refusal::UnknownBranch(OTHER_COMTREE)));
}
