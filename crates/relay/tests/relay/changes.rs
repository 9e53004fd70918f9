//! What reaches a running relay that is not traffic.

use crate::support::{
    self, COMTREE, DOWNLINKS, OTHER_COMTREE, PERIODIC, World, config, ip_port, path_of_thread,
    with_downlink,
};
use canopy_relay::{
    BranchConfig, BranchId, BranchRole, Budget, Change, ComtreeConfig, LinkConfig, MAX_COMTREES,
    Mode, Notice, Places, Refusal, RelayConfig,
};
use canopy_session::{Event, Keyring, MAX_LINKS, PublicKey, State};
use canopy_wire::{
    Address, Comtree, Downlink, DropReason, Flags, Group, HEADER_LEN, RefusedReason, SEAL_LEN,
    SubscribeRefusal,
};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const NEW_COMTREE: Comtree = Comtree(3);

fn apply(world: &mut World, change: Change) -> Result<(), Refusal> {
    let now = world.now;
    world.relay_mut().apply(now, change)
}

/// The key of a neighbour that never calls.
const NEIGHBOUR: PublicKey = [9; 32];

fn link_with(key: PublicKey) -> Change {
    Change::AddLink(LinkConfig { key, path: path_of_thread(9), thread: 0, calls: false })
}

fn branch_over(comtree: Comtree, link: PublicKey, role: BranchRole, site: u16) -> Change {
    let id = BranchId { comtree, link, thread: 0 };
    Change::AddBranch(BranchConfig { id, role, site })
}

fn branch(comtree: Comtree) -> Change {
    branch_over(comtree, NEIGHBOUR, BranchRole::Core, 9)
}

/// Lets time pass in steps, with all that is due.
fn pass(world: &mut World, time: Duration) {
    let until = world.now + time;
    while world.now < until {
        world.now = (world.now + Duration::from_millis(50)).min(until);
        let now = world.now;
        for thread in &mut world.threads {
            thread.handle_timeout(now);
        }
        world.settle();
    }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 9, last])
}

/// Gives a participant that has not joined yet an address of its own.
fn move_to(world: &mut World, number: usize, last: u8) {
    world.participants[number].path = SocketAddr::new(ip(last), 10_000).into();
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy_and_changes_nothing() {
    let mut world = World::new(Mode::Immediate, 1);
    let own_key = world.key_of(0);
    const ANOTHER: PublicKey = [10; 32];
    assert_eq!(apply(&mut world, branch(COMTREE)), Err(Refusal::UnknownLink));
    apply(&mut world, link_with(NEIGHBOUR)).unwrap();
    apply(&mut world, link_with(ANOTHER)).unwrap();
    apply(&mut world, branch(COMTREE)).unwrap();
    let unknown = Comtree(99);
    let nobody = Address::unicast(8, 8);
    let with = |comtree, endpoints| {
        Change::AddComtree(ComtreeConfig { endpoints, ..ComtreeConfig::new(comtree, 1) })
    };
    let id = |comtree, link| BranchId { comtree, link, thread: 0 };
    let another = |role, site| branch_over(COMTREE, ANOTHER, role, site);
    let remove_branch = |link| Change::RemoveBranch(id(COMTREE, link));
    let set_role = |link, role| Change::SetBranchRole { branch: id(COMTREE, link), role };
    let limit =
        |address| Change::SetBudget { comtree: COMTREE, address, budget: Budget::default() };
    #[allow(clippy::reversed_empty_ranges)] // The mistake that is to be refused.
    let reversed = 200..=100;
    let cases = [
        (with(COMTREE, 64..=99), Refusal::ComtreeExists(COMTREE), "remove it first"),
        (Change::RemoveComtree(unknown), Refusal::UnknownComtree(unknown), "add it first"),
        (branch(unknown), Refusal::UnknownComtree(unknown), "add it first"),
        (with(unknown, 0..=63), Refusal::NoEndpoints(unknown), "give it some from 64 on"),
        (with(unknown, reversed), Refusal::NoEndpoints(unknown), "give it some from 64 on"),
        (branch(COMTREE), Refusal::BranchExists(COMTREE), "remove it first"),
        (another(BranchRole::Parent, 8), Refusal::RoleConflict(COMTREE), "change the other branch"),
        (another(BranchRole::Child, 9), Refusal::SiteDivided(COMTREE, 9), "a site of its own"),
        (remove_branch(ANOTHER), Refusal::UnknownBranch(COMTREE), "add it first"),
        (set_role(ANOTHER, BranchRole::Core), Refusal::UnknownBranch(COMTREE), "add it first"),
        (set_role(NEIGHBOUR, BranchRole::LastPeer), Refusal::NoNextPeer(COMTREE), "a next-peer on"),
        (remove_branch([8; 32]), Refusal::UnknownLink, "add it first"),
        (link_with(NEIGHBOUR), Refusal::LinkExists, "remove it first"),
        (link_with(own_key), Refusal::OwnKey, "a key of its own"),
        (Change::RemoveLink { key: [8; 32], thread: 0 }, Refusal::UnknownLink, "add it first"),
        (limit(nobody), Refusal::UnknownAddress(COMTREE, nobody), "may have left"),
    ];
    let before: Vec<_> = world.relay().comtrees().collect();
    for (change, refusal, remedy) in cases {
        let name = format!("{change:?}");
        assert_eq!(apply(&mut world, change), Err(refusal), "{name}");
        assert!(refusal.to_string().contains(remedy), "{refusal}");
        assert_eq!(world.relay().comtrees().collect::<Vec<_>>(), before, "{name}");
        assert_eq!(world.relay().sessions(), 1, "{name}");
    }
    // One parent, and none in the core.
    apply(&mut world, set_role(NEIGHBOUR, BranchRole::Parent)).unwrap();
    apply(&mut world, another(BranchRole::Child, 8)).unwrap();
    for role in [BranchRole::Parent, BranchRole::Core, BranchRole::CorePeer] {
        let refused = apply(&mut world, set_role(ANOTHER, role));
        assert_eq!(refused, Err(Refusal::RoleConflict(COMTREE)), "{role:?}");
    }
    apply(&mut world, remove_branch(NEIGHBOUR)).unwrap();
    apply(&mut world, set_role(ANOTHER, BranchRole::Parent)).unwrap();
    // With a link its branches go.
    apply(&mut world, Change::RemoveLink { key: ANOTHER, thread: 0 }).unwrap();
    assert_eq!(world.relay().branches().count(), 0);
    apply(&mut world, branch(COMTREE)).unwrap();
}

#[test]
fn comtrees_ports_and_mutes_are_bounded() {
    let mut small = config(Mode::Immediate);
    small.max_sessions = 1;
    let mut world = World::of(small, 0);
    for id in 2..MAX_COMTREES as u32 {
        let more = ComtreeConfig::new(Comtree(100 + id), 1);
        apply(&mut world, Change::AddComtree(more)).unwrap();
    }
    let one_more = || Change::AddComtree(ComtreeConfig::new(NEW_COMTREE, 1));
    let refused = apply(&mut world, one_more()).unwrap_err();
    assert_eq!(refused, Refusal::TooManyComtrees);
    assert!(refused.to_string().contains("remove one first"), "{refused}");
    apply(&mut world, Change::RemoveComtree(Comtree(102))).unwrap();
    apply(&mut world, one_more()).unwrap();

    for number in 0..MAX_LINKS {
        let key = [&number.to_be_bytes()[..], &[7; 28]].concat();
        apply(&mut world, link_with(key.try_into().unwrap())).unwrap();
    }
    let refused = apply(&mut world, link_with(NEIGHBOUR)).unwrap_err();
    assert_eq!(refused, Refusal::TooManyLinks);
    assert!(refused.to_string().contains("at most 256 links; remove one first"), "{refused}");
    let first = [&[0; 4][..], &[7; 28]].concat().try_into().unwrap();
    apply(&mut world, Change::RemoveLink { key: first, thread: 0 }).unwrap();
    apply(&mut world, link_with(NEIGHBOUR)).unwrap();
    // They take no participant's room.
    world.add_participant(0, COMTREE);
    world.settle();
    assert_eq!(world.relay().sessions(), 1);

    let comtrees: Vec<_> = world.relay().comtrees().map(|one| one.comtree).collect();
    let links = (1..MAX_LINKS).map(|number| [&number.to_be_bytes()[..], &[7; 28]].concat());
    let pairs = links.flat_map(|key| comtrees.iter().map(move |comtree| (*comtree, key.clone())));
    let to = |(comtree, key): (Comtree, Vec<u8>)| {
        branch_over(comtree, key.try_into().unwrap(), BranchRole::CorePeer, 9)
    };
    let refused = pairs.clone().find_map(|pair| apply(&mut world, to(pair)).err());
    let refused = refused.expect("ports are bounded");
    assert_eq!(refused, Refusal::TooManyPorts);
    assert!(refused.to_string().contains("remove a branch first"), "{refused}");
    let link = [&1u32.to_be_bytes()[..], &[7; 28]].concat().try_into().unwrap();
    let first = BranchId { comtree: comtrees[0], link, thread: 0 };
    apply(&mut world, Change::RemoveBranch(first)).unwrap();
    apply(&mut world, branch_over(comtrees[0], link, BranchRole::CorePeer, 9)).unwrap();

    let until = world.now + SECOND;
    for last in 0..64 {
        apply(&mut world, Change::Mute { ip: ip(last), until }).unwrap();
    }
    let refused = apply(&mut world, Change::Mute { ip: ip(64), until }).unwrap_err();
    assert_eq!(refused, Refusal::TooManyMuted);
    assert!(refused.to_string().contains("wait for one to end"), "{refused}");
    let longer = until + SECOND;
    apply(&mut world, Change::Mute { ip: ip(3), until: longer }).expect("it is muted already");
    pass(&mut world, SECOND + SECOND / 5);
    apply(&mut world, Change::Mute { ip: ip(64), until: longer }).expect("most are over");
}

#[test]
fn a_comtree_comes_at_run_time() {
    let mut world = World::new(Mode::Immediate, 0);
    let one = world.add_participant(0, NEW_COMTREE);
    let other = world.add_participant(0, NEW_COMTREE);
    world.settle();
    assert!(world.events(one).contains(&Event::Refused(RefusedReason::UnknownComtree)));
    apply(&mut world, Change::AddComtree(ComtreeConfig::new(NEW_COMTREE, 77))).unwrap();
    pass(&mut world, SECOND * 4);
    world.subscribe(other, 7, 0);
    assert_eq!(world.address(one).site(), 77);
    world.publish(one, 7, 0, Flags(0), b"x");
    world.settle();
    assert_eq!(world.payloads(other), [b"x"]);
    let status = world.relay().comtrees().find(|one| one.comtree == NEW_COMTREE).unwrap();
    assert_eq!((status.participants, status.counters.deliveries_out), (2, 1));
}

/// It goes with members, subscriptions, a branch, and updates that wait for the flush; another
/// takes its place in the table before the flush.
#[test]
fn a_comtree_goes_with_all_that_hangs_on_it() {
    let mut world = World::of(RelayConfig { places: Places::new(4), ..config(PERIODIC) }, 2);
    for _ in 0..2 {
        world.add_participant(0, OTHER_COMTREE);
    }
    world.settle();
    world.subscribe_all(7, 0);
    apply(&mut world, link_with(NEIGHBOUR)).unwrap();
    apply(&mut world, branch(COMTREE)).unwrap();
    world.publish(0, 7, 0, Flags(0), b"gone");
    world.publish_to(0, world.address(1), 0, Flags(0), b"gone too");
    world.publish(2, 7, 0, Flags(0), b"stays");
    while world.relay_mut().poll_notice().is_some() {}
    apply(&mut world, Change::RemoveComtree(COMTREE)).unwrap();
    apply(&mut world, Change::AddComtree(ComtreeConfig::new(NEW_COMTREE, 1))).unwrap();
    assert_eq!((world.relay().sessions(), world.relay().subscriptions()), (2, 2));
    for _ in 0..2 {
        let notice = world.relay_mut().poll_notice();
        assert!(matches!(notice, Some(Notice::Left { comtree: COMTREE, .. })), "{notice:?}");
    }
    assert_eq!(world.dropped(DropReason::UnknownDestination), 1);
    world.tick();
    assert!(world.payloads(0).is_empty() && world.payloads(1).is_empty());
    assert_eq!(world.payloads(3), [b"stays"]);
    for number in [0, 1] {
        assert!(world.events(number).contains(&Event::Lost));
    }
    // Their places are free.
    for _ in 0..2 {
        let number = world.add_participant(0, NEW_COMTREE);
        world.settle();
        assert_eq!(world.participants[number].session.state(), State::Connected);
    }
    let found: Vec<_> =
        world.relay().comtrees().map(|one| (one.comtree, one.participants)).collect();
    assert_eq!(found, [(NEW_COMTREE, 2), (OTHER_COMTREE, 2)]);
}

#[test]
fn no_thread_listens_for_a_comtree_that_went() {
    let mut world = World::with_threads(config(Mode::Immediate), 2);
    world.join(0);
    world.join(1);
    world.subscribe(1, 7, 0);
    let now = world.now;
    for thread in &mut world.threads {
        thread.apply(now, Change::RemoveComtree(COMTREE)).unwrap();
        thread.apply(now, Change::AddComtree(ComtreeConfig::new(COMTREE, 1))).unwrap();
    }
    for number in [0, 1] {
        world.participants[number].session.unsubscribe(Group::new(7));
    }
    pass(&mut world, SECOND);
    world.publish(0, 7, 0, Flags(0), b"x");
    assert_eq!(world.relay().counters().updates_passed, 0);
    assert_eq!(world.relay().counters().updates_without_subscriber, 1);
}

#[test]
fn one_is_dismissed_and_the_others_stay() {
    let mut world = World::new(Mode::Immediate, 3);
    world.subscribe_all(7, 0);
    let address = world.address(1);
    apply(&mut world, Change::Dismiss { comtree: COMTREE, address }).unwrap();
    world.publish(0, 7, 0, Flags(0), b"without it");
    world.settle();
    assert!(world.events(1).contains(&Event::Lost));
    assert_eq!((world.relay().sessions(), world.relay().subscriptions()), (2, 2));
    assert_eq!((world.payloads(1).len(), world.payloads(2).len()), (0, 1));
    assert_eq!(apply(&mut world, Change::Dismiss { comtree: COMTREE, address }), Ok(()));
}

#[test]
fn who_is_muted_costs_counted_drops_until_it_ends() {
    for (downlink, smallest_set) in [
        (Downlink::Member, None),
        (Downlink::None, None),
        (Downlink::None, Some(2)),
        (Downlink::Group, None),
        (Downlink::Group, Some(2)),
    ] {
        let config = with_downlink(config(PERIODIC), downlink);
        let mut world = World::of(RelayConfig { smallest_set, ..config }, 2);
        for last in [1, 1, 2] {
            let number = world.add_participant(0, COMTREE);
            move_to(&mut world, number, last);
            world.participants[number].path.remote.set_port(10_000 + number as u16);
        }
        world.settle();
        world.subscribe_all(7, 0);
        let until = world.now + SECOND;
        apply(&mut world, Change::Mute { ip: ip(1), until }).unwrap();
        for update in 0..3u8 {
            world.publish(0, 7, 0, Flags(0), &[update; 1000]);
            world.publish(2, 7, 0, Flags(0), &[update; 1000]);
        }
        world.tick();
        let counts = |world: &World| -> Vec<usize> {
            world.participants.iter().map(|one| one.received.len()).collect()
        };
        assert_eq!(counts(&world), [3, 6, 0, 0, 6]);
        // Two at the address: three updates for the one that published itself, six for the other.
        assert_eq!(world.dropped(DropReason::Unreachable), 9);
        let on_comtree: u64 = world.relay().comtrees().map(|one| one.counters.drops).sum();
        assert_eq!(on_comtree, 9);
        pass(&mut world, SECOND + SECOND / 5);
        world.publish(0, 7, 0, Flags(0), b"again");
        pass(&mut world, support::TICK * 2);
        assert_eq!(counts(&world), [3, 7, 1, 1, 7]);
        assert_eq!(world.dropped(DropReason::Unreachable), 9);
    }
}

#[test]
fn a_mute_ends_even_where_nothing_else_is_due() {
    let mut world = World::new(Mode::Immediate, 0);
    let until = world.now + SECOND;
    apply(&mut world, Change::Mute { ip: ip(1), until }).unwrap();
    for _ in 0..20 {
        let Some(due) = world.relay().poll_timeout() else { break };
        world.now = due;
        world.relay_mut().handle_timeout(due);
    }
    assert!(world.now >= until, "{}", world.now);
    assert_eq!(world.relay().poll_timeout(), None, "an empty relay sleeps");
}

#[test]
fn a_drain_tells_all_and_takes_nobody_until_they_are_gone() {
    let mut world = World::with_threads(config(Mode::Immediate), 2);
    for number in 0..6 {
        world.join(number % 2);
    }
    let now = world.now;
    for thread in &mut world.threads {
        thread.apply(now, Change::Drain).unwrap();
    }
    pass(&mut world, SECOND);
    assert_eq!(world.sessions(), 0);
    for number in 0..6 {
        let events = world.events(number);
        assert!(events.contains(&Event::Lost), "{events:?}");
        assert!(events.contains(&Event::Refused(RefusedReason::Draining)), "{events:?}");
    }
    assert_eq!(world.dropped(DropReason::Draining), 6);
}

#[test]
fn a_lower_limit_of_subscriptions_leaves_what_there_is() {
    let mut world = World::new(Mode::Immediate, 1);
    for group in [1, 2, 3] {
        world.subscribe(0, group, 0);
    }
    world.events(0);
    apply(&mut world, Change::LimitSubscriptions(2)).unwrap();
    world.subscribe(0, 4, 0);
    assert_eq!(
        world.events(0),
        [Event::SubscriptionRefused(Group::new(4), SubscribeRefusal::Participant)]
    );
    assert_eq!(world.dropped(DropReason::SubscriptionsFull), 1);
    // All are refreshed, and so outlive their lifetime of a minute.
    for _ in 0..130 {
        pass(&mut world, SECOND);
    }
    assert_eq!(world.relay().subscriptions(), 3);
    apply(&mut world, Change::LimitSubscriptions(4)).unwrap();
    world.subscribe(0, 4, 0);
    assert_eq!(world.relay().subscriptions(), 4);
}

#[test]
fn new_keys_leave_sessions_and_have_the_rest_ask_again() {
    let mut world = World::new(Mode::Immediate, 1);
    let late = world.add_participant(0, COMTREE);
    world.send_from(late);
    let cookie = world.collect(0);
    world.carry(0, cookie);
    apply(&mut world, Change::ReplaceKeys(Keyring::new([99; 16]))).unwrap();
    world.settle();
    assert_eq!(world.dropped(DropReason::BadCookie), 1);
    pass(&mut world, SECOND * 10);
    assert_eq!(world.participants[late].session.state(), State::Connected);
    // The first one's session is of the old keys, and can still move.
    assert_eq!(world.events(0).len(), 1, "it is still the first session");
    world.participants[0].path = ip_port(4000).into();
    world.publish(0, 7, 0, Flags(0), &[0; 64]);
    world.settle();
    assert_eq!(world.events(0), [Event::Rebound]);
    assert_eq!(world.relay().counters().sessions_opened, 2);
}

#[test]
fn the_counters_of_the_comtrees_add_up_to_the_relays() {
    for downlink in DOWNLINKS {
        let config = with_downlink(config(PERIODIC), downlink);
        assert_counters_add_up(RelayConfig { smallest_set: Some(3), ..config });
    }
}

fn assert_counters_add_up(config: RelayConfig) {
    let mut world = World::of(config, 3);
    for _ in 0..2 {
        world.add_participant(0, OTHER_COMTREE);
    }
    world.settle();
    world.subscribe_all(7, 0);
    let muted = world.add_participant(0, OTHER_COMTREE);
    move_to(&mut world, muted, 1);
    world.settle();
    world.subscribe(muted, 7, 0);
    let until = world.now + SECOND;
    apply(&mut world, Change::Mute { ip: ip(1), until }).unwrap();
    world.settle();
    let before = world.relay().counters().clone();
    for number in 0..5 {
        world.publish(number, 7, 0, Flags(0), &[1; 100]);
        world.publish(number, 7, 0, Flags::ECHO, &[2; 50]);
    }
    world.publish_to(0, Address::unicast(5, 5), 0, Flags(0), b"to nobody");
    world.participants[0].path = ip_port(2).into();
    // Too short to be answered with a challenge.
    world.publish(0, 7, 0, Flags(0), b"lost");
    world.participants[0].path = ip_port(0).into();
    world.tick();
    let after = world.relay().counters();
    let sum = |of: fn(&canopy_relay::ComtreeCounters) -> u64| -> Vec<u64> {
        world.relay().comtrees().map(|one| of(&one.counters)).collect()
    };
    assert_eq!(sum(|one| one.updates_in), [6, 4]);
    assert_eq!(sum(|one| one.payload_bytes_in), [450, 300]);
    // To others, and the echoes; on the second comtree one receiver is muted.
    assert_eq!(sum(|one| one.deliveries_out), [3 * 4 + 3, 2 * 2 + 2]);
    assert_eq!(sum(|one| one.drops), [2, 4]);
    assert_eq!(after.updates_in, 10);
    assert_eq!(after.deliveries_out, 21);
    assert_eq!(after.drops.iter().sum::<u64>(), 6);
    let bytes: u64 = sum(|one| one.bytes_out).iter().sum();
    // The one answer tells who sent to nobody.
    let answers = (HEADER_LEN + 4 + SEAL_LEN) as u64;
    assert_eq!(bytes + answers, after.bytes_out - before.bytes_out);
}

#[test]
fn a_comtrees_budget_changes_while_it_is_used() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    let budget = Budget { up_packets: 1, ..Budget::default() };
    apply(&mut world, Change::SetComtreeBudget { comtree: COMTREE, budget }).unwrap();
    let publish = |world: &mut World| {
        for _ in 0..600 {
            world.publish(0, 7, 0, Flags(0), b"x");
            world.settle();
        }
        (world.participants[1].received.len(), world.dropped(DropReason::ComtreeOverBudget))
    };
    let (came, over) = publish(&mut world);
    assert!(over > 300 && came as u64 + over == 600, "{came} came, {over} were dropped");
    let budget = Budget::default();
    apply(&mut world, Change::SetComtreeBudget { comtree: COMTREE, budget }).unwrap();
    assert_eq!(publish(&mut world), (came + 600, over), "without a limit all come");
    let comtree = Comtree(99);
    let refused = apply(&mut world, Change::SetComtreeBudget { comtree, budget });
    assert_eq!(refused, Err(Refusal::UnknownComtree(comtree)));
}
