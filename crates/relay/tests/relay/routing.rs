//! Updates to one endpoint, over several relays (Forest §3.1–3.2): the way is learned from what passes,
//! and asked for where it is not known.

use crate::support::{COMTREE, OTHER_COMTREE, World, at_site, config};
use canopy_relay::{BranchId, BranchRole, Change, ComtreeConfig, Mode, RelayConfig, Via};
use canopy_session::Event;
use canopy_wire::{
    Address, DropReason, Flags, Header, Kind, Packet, Record, RouteReply, SAFE_DATAGRAM, SessionId,
    UpdatesWriter,
};
use std::time::Duration;

const UP: [BranchRole; 2] = [BranchRole::Child, BranchRole::Parent];
const CORE: [BranchRole; 2] = [BranchRole::Core; 2];

/// Relays of one data thread each, the n-th at site n + 1, with a participant on each, and joined so.
fn world_of(count: usize, joined: &[(usize, usize)]) -> World {
    let mut world = World::empty();
    for relay in 0..count {
        world.add_relay(at_site(Mode::Immediate, relay as u16 + 1), 1);
        world.join(relay);
    }
    for (one, other) in joined {
        world.link(COMTREE, [(*one, *one as u16 + 1), (*other, *other as u16 + 1)], UP);
    }
    world.settle();
    world
}

/// A relay whose participants have a part of a site's endpoint numbers.
fn of_site(site: u16, endpoints: std::ops::RangeInclusive<u16>) -> RelayConfig {
    let comtrees = vec![ComtreeConfig { endpoints, ..ComtreeConfig::new(COMTREE, site) }];
    RelayConfig { comtrees, ..config(Mode::Immediate) }
}

/// One participant sends another something. Returns how many copies asked for the way meanwhile.
fn send(world: &mut World, from: usize, to: usize) -> u64 {
    let (before, asked) = (world.participants[to].received.len(), requests(world));
    let address = world.address(to);
    world.publish_to(from, address, 0, Flags(0), b"to one");
    world.settle();
    assert_eq!(world.participants[to].received.len(), before + 1, "{from} to {to}");
    requests(world) - asked
}

fn requests(world: &World) -> u64 {
    world.sum(|counters| counters.route_requests)
}

fn routes(world: &World) -> Vec<u32> {
    world.threads.iter().map(canopy_relay::Relay::routes).collect()
}

#[test]
fn the_first_update_asks_for_the_way_and_the_next_one_knows_it() {
    // A star of four around the first, and a line of two behind the last.
    let mut world = world_of(6, &[(0, 1), (0, 2), (0, 3), (3, 4), (4, 5)]);
    assert_eq!(send(&mut world, 1, 5), 1 + 2 + 1 + 1, "to all but whence it came, along the tree");
    let ended = |world: &World| world.sum(|counters| counters.route_requests_ended);
    assert_eq!(ended(&world), 1, "relay 2 is a leaf");
    for _ in 0..3 {
        assert_eq!(send(&mut world, 1, 5), 0);
        assert_eq!(send(&mut world, 5, 1), 0, "the way back was learned from what came");
    }
    // Whoever else lies on the way knows it too.
    assert_eq!(send(&mut world, 3, 5), 0);
    assert_eq!(send(&mut world, 0, 1), 0);
    // The first relay that knows the way answers.
    let replies = world.sum(|counters| counters.route_replies);
    assert_eq!(send(&mut world, 2, 5), 1);
    assert_eq!(world.sum(|counters| counters.route_replies), replies + 1);
    assert_eq!(ended(&world), 1);
    for publisher in [0, 4] {
        assert!(world.participants[publisher].received.len() <= 1);
    }
}

#[test]
fn a_site_is_one_route_however_many_are_there() {
    let mut world = world_of(3, &[(0, 1), (1, 2)]);
    let more: Vec<_> = (0..20).map(|_| world.join(2)).collect();
    for number in &more {
        assert_eq!(send(&mut world, 0, *number), if *number == more[0] { 2 } else { 0 });
        send(&mut world, *number, 0);
    }
    assert_eq!(routes(&world), [1, 2, 1]);
    let listed = world.threads[0].list_routes(world.now, 9);
    assert_eq!(
        (listed[0].to, listed[0].via),
        (Address::unicast(3, 0), Via::Branch(world.key_of(1)))
    );
    assert!(listed[0].heard.is_some());
}

#[test]
fn what_is_published_to_a_group_shows_the_way_too() {
    for joined in [UP, CORE] {
        let mut world = world_of(2, &[]);
        world.link(COMTREE, [(0, 1), (1, 2)], joined);
        world.subscribe(0, 7, 0);
        world.publish(1, 7, 0, Flags(0), b"here I am");
        world.settle();
        assert_eq!(send(&mut world, 0, 1), 0);
        assert_eq!(routes(&world), [1, 1]);
    }
}

#[test]
fn a_way_from_which_nothing_comes_is_forgotten() {
    let mut world = world_of(3, &[(0, 1), (1, 2)]);
    send(&mut world, 0, 2);
    for _ in 0..20 {
        world.pass(Duration::from_secs(3));
        send(&mut world, 2, 0);
    }
    // Nothing comes from the first, so the last asks again now and then.
    assert_eq!(routes(&world), [1, 2, 1]);
    assert!((3..=6).contains(&requests(&world)), "{}", requests(&world));
    world.pass(Duration::from_secs(45));
    assert_eq!(routes(&world), [0, 0, 0]);
    assert!(world.sum(|counters| counters.routes_expired) >= 4);
}

#[test]
fn who_sends_to_nobody_hears_so_and_does_not_flood() {
    let mut world = world_of(3, &[(0, 1), (1, 2)]);
    let (nobody, nowhere) = (Address::unicast(3, 9999), Address::unicast(77, 100));
    world.publish_to(0, nobody, 0, Flags(0), b"x");
    world.settle();
    assert_eq!(world.dropped(DropReason::UnknownDestination), 1);
    assert!(world.events(0).contains(&Event::Gone(nobody)), "whose site it is says so");
    // Nobody can say that a site is nowhere: after a while it counts as gone.
    let mut told = 0;
    for _ in 0..40 {
        world.publish_to(0, nowhere, 0, Flags(0), b"x");
        world.pass(Duration::from_millis(100));
        told += world.events(0).iter().filter(|event| **event == Event::Gone(nowhere)).count();
    }
    assert!(told >= 2, "{told}");
    let asked = requests(&world);
    assert!((10..=30).contains(&asked), "{asked}: for a second, over two links");
}

#[test]
fn a_flood_of_unknown_addresses_is_limited() {
    let mut world = world_of(2, &[(0, 1)]);
    for number in 0..3000 {
        world.publish_to(0, Address::unicast(100 + number, 100), 0, Flags(0), b"x");
    }
    world.settle();
    assert_eq!(requests(&world), 800, "of one member");
    assert_eq!(world.dropped(DropReason::RouteRequests), 2200);
    // Another member asks all the same, and so does one of another comtree.
    let others = [world.join(0), world.add_participant(0, OTHER_COMTREE)];
    world.link(OTHER_COMTREE, [(0, 1), (1, 2)], UP);
    for other in others {
        let before = requests(&world);
        world.publish_to(other, Address::unicast(9999, 100), 0, Flags(0), b"x");
        world.settle();
        assert_eq!(requests(&world), before + 1);
    }
}

/// Whoever gets answers that nobody is there has asked for nothing.
#[test]
fn addresses_that_are_gone_use_up_nothing() {
    let mut world = world_of(2, &[(0, 1)]);
    let asked = send(&mut world, 1, 0);
    for number in 0..5000 {
        world.publish_to(0, Address::unicast(2, 10_000 + number), 0, Flags(0), b"x");
        if number % 100 == 0 {
            world.pass(Duration::from_millis(100));
        }
    }
    assert_eq!(world.dropped(DropReason::RouteRequests), 0);
    assert_eq!(requests(&world), asked, "the way to the site is known");
}

/// Two relays of one site in a line with a third between others.
fn shared_site() -> World {
    let mut world = World::empty();
    // 0 — 1 — 2 — 3: relays 1 and 2 are of site 5.
    for (site, endpoints) in [(1, 64..=999), (5, 64..=999), (5, 1000..=1999), (4, 64..=999)] {
        let relay = world.add_relay(of_site(site, endpoints), 1);
        world.join(relay);
    }
    for (one, other) in [((0, 1), (1, 5)), ((1, 5), (2, 5)), ((2, 5), (3, 4))] {
        world.link(COMTREE, [one, other], UP);
    }
    world.settle();
    world
}

#[test]
fn relays_of_one_site_have_a_route_for_each_endpoint() {
    let mut world = shared_site();
    assert_eq!([1, 2].map(|number| world.address(number).site()), [5, 5]);
    assert_eq!(send(&mut world, 1, 2), 1, "only within the site");
    assert_eq!(send(&mut world, 2, 1), 0);
    assert!(send(&mut world, 0, 2) <= 1, "the site's first relay knows the way in it");
    assert!(send(&mut world, 3, 1) <= 1);
    let more = world.join(2);
    assert_eq!(send(&mut world, 0, more), 1, "another endpoint of the site");
    assert_eq!(send(&mut world, 0, more), 0);
    assert_eq!(send(&mut world, 3, 0), 1, "the next relay has heard of it");
    // Who has left is nobody's.
    let address = world.address(more);
    world.participants[more].session.leave();
    world.settle();
    world.publish_to(0, address, 0, Flags(0), b"x");
    world.settle();
    world.publish_to(0, address, 0, Flags(0), b"x");
    world.pass(Duration::from_millis(2000));
    world.publish_to(0, address, 0, Flags(0), b"x");
    world.settle();
    assert!(world.events(0).contains(&Event::Gone(address)));
}

#[test]
fn nobody_speaks_for_a_participant_that_is_here() {
    let mut world = shared_site();
    let own = world.address(1);
    let mut out = [0; 1500];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
    for src in [own, Address::unicast(5, 1500), Address::unicast(9, 100)] {
        let record = Record::new(world.address(1), 0, b"whose am I");
        assert!(writer.push(&Record { src, ..record }));
    }
    let len = writer.finish(&Header::new(Kind::Updates, SessionId::NONE, COMTREE));
    // The neighbour of another site may bring neither; that of the same site the second.
    for (from, spoofed, delivered) in [(0, 2, 1), (2, 3, 3)] {
        let key = world.key_of(1);
        assert!(world.threads[from].send_over_link(&key, &out[..len]));
        world.settle();
        assert_eq!(world.dropped(DropReason::SpoofedSource), spoofed, "from relay {from}");
        assert_eq!(world.participants[1].received.len(), delivered);
    }
}

#[test]
fn routes_are_known_to_all_data_threads_of_a_relay() {
    let mut world = World::empty();
    world.add_relay(at_site(Mode::Immediate, 1), 3);
    world.add_relay(at_site(Mode::Immediate, 2), 2);
    // The third thread of the first relay and the first of the other.
    world.link(COMTREE, [(2, 1), (3, 2)], UP);
    let all = [0, 1, 2, 3, 4].map(|thread| world.join(thread));
    assert!(send(&mut world, all[0], all[4]) > 0);
    for thread in 0..3 {
        assert_eq!(send(&mut world, all[thread], all[4]), 0, "thread {thread}");
        assert_eq!(send(&mut world, all[4], all[thread]), 0, "thread {thread}");
    }
    assert_eq!(routes(&world), [1, 1, 1, 1, 1]);
    let now = world.now;
    assert_eq!(world.threads[0].list_routes(now, 9)[0].via, Via::Thread(2));
    world.pass(Duration::from_secs(45));
    assert_eq!(routes(&world), [0; 5]);
    // Nobody is there: the sender on another data thread hears of it.
    let nobody = Address::unicast(2, 9999);
    world.publish_to(all[2], nobody, 0, Flags(0), b"x");
    world.settle();
    assert!(world.events(all[2]).contains(&Event::Gone(nobody)));
}

/// A request of a core peer goes to no other core peer. Once the neighbour is none any more, it goes there, though
/// another data thread has the branch.
#[test]
fn all_data_threads_know_that_a_neighbour_is_a_core_peer_no_more() {
    let mut world = World::empty();
    for (site, threads) in [(1, 2), (2, 1), (3, 1)] {
        world.add_relay(at_site(Mode::Immediate, site), threads);
    }
    // The first relay is threads 0 and 1; the others are threads 2 and 3.
    let site_of = |thread: usize| thread.max(1) as u16;
    let all = [0, 1, 2, 3].map(|thread| world.join(thread));
    for (one, other) in [(0, 2), (1, 3)] {
        world.link_threads([one, other]);
        for (here, there) in [(one, other), (other, one)] {
            world.add_branch(COMTREE, here, (there, site_of(there)), BranchRole::CorePeer);
        }
    }
    world.settle();
    send(&mut world, all[2], all[0]);
    for (here, other, role) in [(0, 2, BranchRole::Child), (2, 0, BranchRole::Parent)] {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(other), thread: 0 };
        let now = world.now;
        world.threads[here].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    }
    send(&mut world, all[2], all[0]);
    assert!(send(&mut world, all[3], all[2]) > 0);
    assert_eq!(send(&mut world, all[3], all[2]), 0);
}

#[test]
fn a_relay_without_a_branch_forgets_what_led_over_it() {
    let mut world = world_of(3, &[(0, 1), (1, 2)]);
    send(&mut world, 0, 2);
    let (now, key) = (world.now, world.key_of(1));
    let change = canopy_relay::Change::RemoveLink { key, thread: 0 };
    world.threads[0].apply(now, change).unwrap();
    assert_eq!(routes(&world)[0], 0);
    world.publish_to(0, world.address(2), 0, Flags(0), b"x");
    world.settle();
    assert_eq!(world.dropped(DropReason::UnknownDestination), 1);
}

#[test]
fn core_peers_pass_unicast_directly() {
    let mut world = World::empty();
    for relay in 0..4 {
        world.add_relay(at_site(Mode::Immediate, relay + 1), 1);
        world.join(relay.into());
    }
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        let ends = [(one, one as u16 + 1), (other, other as u16 + 1)];
        world.link(COMTREE, ends, [BranchRole::CorePeer; 2]);
    }
    world.link(COMTREE, [(1, 2), (3, 4)], UP);
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            send(&mut world, from, to);
            assert_eq!(send(&mut world, from, to), 0, "{from} to {to}");
        }
    }
}

#[test]
fn a_request_dies_in_a_ring() {
    let mut world = World::empty();
    for relay in 0..3 {
        world.add_relay(at_site(Mode::Immediate, relay + 1), 1);
        world.join(relay.into());
    }
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        world.link(COMTREE, [(one, one as u16 + 1), (other, other as u16 + 1)], CORE);
    }
    world.publish_to(0, Address::unicast(9, 100), 0, Flags(0), b"round and round");
    world.settle();
    let ended = world.dropped(DropReason::HopLimit) + world.dropped(DropReason::SpoofedSource);
    assert!(ended >= 2, "{ended}");
    assert!(requests(&world) <= 64, "{}", requests(&world));
}

/// As the tree turns round, two relays may each take the other for the way to somebody.
#[test]
fn a_reply_does_not_go_back_to_where_it_came_from() {
    let mut world = world_of(3, &[(0, 1), (1, 2)]);
    send(&mut world, 2, 0);
    let (to, about) = (world.address(2), world.address(0));
    let mut out = [0; 64];
    let len =
        RouteReply { to, about, is_there: false, hops: 255 }.encode(COMTREE, &mut out).unwrap();
    let passed = world.sum(|counters| counters.route_replies);
    let key = world.key_of(1);
    assert!(world.threads[2].send_over_link(&key, &out[..len]));
    world.settle();
    assert_eq!(world.sum(|counters| counters.route_replies), passed);
    assert_eq!(world.dropped(DropReason::NotThisWay), 1);
}

#[test]
fn a_reply_of_nobody_and_about_nobody_is_harmless() {
    let mut world = world_of(2, &[(0, 1)]);
    let mut out = [0; 64];
    let own = world.address(0);
    for (to, about, is_there) in [
        (Address::unicast(50, 100), Address::unicast(51, 100), true),
        (own, Address::unicast(52, 100), true),
        (own, Address::unicast(53, 100), false),
        (own, own, true),
    ] {
        let len = RouteReply { to, about, is_there, hops: 3 }.encode(COMTREE, &mut out).unwrap();
        assert!(Packet::new_checked(&out[..len]).is_ok());
        let key = world.key_of(0);
        assert!(world.threads[1].send_over_link(&key, &out[..len]));
        world.settle();
    }
    assert_eq!(world.dropped(DropReason::SpoofedSource), 1, "of whom the relay serves itself");
    assert_eq!(routes(&world)[0], 2);
    // A participant cannot say such things.
    let packet = out[..25].to_vec();
    let id = world.participants[0].session.id().number().to_be_bytes();
    world.send(0, &[&packet[..1], &id[1..], &packet[4..]].concat());
    assert_eq!(world.dropped(DropReason::UnexpectedKind), 1);
}
