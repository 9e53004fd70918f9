//! A parent is succeeded by another without loss, and a mesh gets or loses a relay; whole networks of that are
//! simulated elsewhere.

use crate::support::{COMTREE, Sent, World, at_site};
use canopy_relay::{BranchId, BranchRole, Change, Mode};
use canopy_wire::{DropReason, Flags};
use std::time::Duration;

const GROUP: u32 = 7;
/// What a neighbour may want no more has expired by then.
const UNTIL_FORGOTTEN: Duration = Duration::from_secs(71);
const DOWN: [BranchRole; 2] = [BranchRole::Child, BranchRole::Parent];

/// A relay that was cut off its parent has taken another, and the parent, which still knows what was asked of
/// it, is to succeed that. What it brings before it is asked has passed already.
#[test]
fn a_parent_that_is_to_be_the_parent_again_brings_nothing_twice() {
    let mut world = World::empty();
    for site in [1, 2, 3] {
        world.add_relay(at_site(Mode::Immediate, site), 1);
    }
    for relay in [0, 2] {
        world.join(relay);
    }
    for below in [1, 2] {
        world.link(COMTREE, [(0, 1), (below, below as u16 + 1)], DOWN);
    }
    world.subscribe(1, GROUP, 3);
    world.settle();
    let to_first = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
    let now = world.now;
    world.threads[2].apply(now, Change::RemoveBranch(to_first)).unwrap();
    world.link(COMTREE, [(1, 2), (2, 3)], DOWN);
    world.settle();

    world.publish(0, GROUP, 0, Flags(0), b"over the one");
    let (first, second): (Vec<_>, Vec<_>) = world
        .collect(0)
        .into_iter()
        .partition(|sent| sent.to == crate::support::path_of_thread(1).remote);
    assert!(!first.is_empty() && !second.is_empty(), "both are sent it");
    world.carry(0, first);
    world.settle();
    world.add_branch(COMTREE, 2, (0, 1), BranchRole::NextParent);
    world.carry(0, second);
    world.settle();
    assert_eq!(world.payloads(1), [b"over the one"]);
    assert_eq!(world.dropped(DropReason::Repeated), 1);

    // It is asked in time, and has all then.
    for update in 0..60 {
        world.publish(0, GROUP, 0, Flags(0), &[update]);
        world.pass(Duration::from_millis(100));
    }
    let expected: Vec<Vec<u8>> = (0..60).map(|update| vec![update]).collect();
    assert_eq!(world.payloads(1)[1..], expected);
    let to_second = BranchId { link: world.key_of(1), ..to_first };
    let now = world.now;
    world.threads[2].apply(now, Change::RemoveBranch(to_second)).unwrap();
    world.publish(0, GROUP, 0, Flags(0), b"over the other");
    world.settle();
    assert_eq!(world.payloads(1).len(), 62);
}

/// A succession over the link 0 in which relay 2 has got ten updates of relay 0 over relay 1 so far.
fn both_bring() -> World {
    let mut world = World::empty();
    for site in [1, 2, 3] {
        world.add_relay(at_site(Mode::Immediate, site), 1);
    }
    for relay in [0, 2] {
        world.join(relay);
    }
    for (above, below) in [(0, 1), (1, 2)] {
        world.link(COMTREE, [(above, above as u16 + 1), (below, below as u16 + 1)], DOWN);
    }
    world.subscribe(1, GROUP, 3);
    world.settle();
    world.link(COMTREE, [(0, 1), (2, 3)], [BranchRole::Child, BranchRole::NextParent]);
    for update in 0..10 {
        world.publish(0, GROUP, 0, Flags(0), &[update]);
        world.pass(Duration::from_millis(100));
    }
    world
}

/// What relay 0 sends: what the old parent brings of it, and what the next one does.
fn by_both(world: &mut World) -> [Vec<Sent>; 2] {
    let to_old = |sent: &Sent| sent.to == crate::support::path_of_thread(1).remote;
    let (by_old, by_next): (Vec<_>, Vec<_>) = world.collect(0).into_iter().partition(to_old);
    assert!(!by_old.is_empty() && !by_next.is_empty(), "both bring it");
    [by_old, by_next]
}

/// The branch to the next parent is taken away.
fn lose_next(world: &mut World) {
    let to_next = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
    let now = world.now;
    world.threads[2].apply(now, Change::RemoveBranch(to_next)).unwrap();
    world.settle();
}

/// The next parent is taken away while it is ahead of the old one, which brings the same a little later, or not.
#[test]
fn what_a_next_parent_was_ahead_with_passes_once_and_in_order_when_it_goes() {
    for is_lost in [false, true] {
        let mut world = both_bring();
        world.publish(0, GROUP, 0, Flags(0), &[10]);
        let [first_by_old, _] = by_both(&mut world);
        world.publish(0, GROUP, 0, Flags(0), &[11]);
        let [second_by_old, by_next] = by_both(&mut world);
        world.carry(0, by_next);
        world.settle();
        lose_next(&mut world);
        assert_eq!(world.payloads(1).len(), 10, "it waits for the old one");
        world.carry(0, first_by_old);
        world.settle();
        assert_eq!(world.payloads(1).len(), 11, "the old one has not brought the other yet");
        if is_lost {
            world.pass(Duration::from_secs(1));
            assert_eq!(world.payloads(1).len(), 12, "it waits no more");
        }
        world.carry(0, second_by_old);
        world.settle();
        for update in 12..60 {
            world.publish(0, GROUP, 0, Flags(0), &[update]);
            world.pass(Duration::from_millis(100));
        }
        let expected: Vec<Vec<u8>> = (0..60).map(|update| vec![update]).collect();
        assert_eq!(world.payloads(1), expected);
    }
}

/// The next parent goes while it is ahead, and another is to be the next one right after that.
#[test]
fn what_a_next_parent_was_ahead_with_waits_for_the_one_that_stays_whoever_is_the_next() {
    for is_lost in [false, true] {
        let mut world = both_bring();
        world.publish(0, GROUP, 0, Flags(0), &[10]);
        let [by_old, by_next] = by_both(&mut world);
        world.carry(0, by_next);
        world.settle();
        lose_next(&mut world);
        world.pass(Duration::from_millis(100));
        world.add_branch(COMTREE, 2, (0, 1), BranchRole::NextParent);
        assert_eq!(world.payloads(1).len(), 10, "it waits for the old one");
        if is_lost {
            world.pass(Duration::from_millis(450));
            assert_eq!(world.payloads(1).len(), 11, "it waits no more");
        }
        world.carry(0, by_old);
        for update in 11..60 {
            world.publish(0, GROUP, 0, Flags(0), &[update]);
            world.pass(Duration::from_millis(100));
        }
        let expected: Vec<Vec<u8>> = (0..60).map(|update| vec![update]).collect();
        assert_eq!(world.payloads(1), expected);
    }
}

/// The next parent is far behind the old one. Its copy of the last update of a publisher that is silent then is none of a
/// publisher that counts anew.
#[test]
fn what_a_next_parent_brings_far_behind_the_old_one_passes_once() {
    let mut world = both_bring();
    world.publish(0, GROUP, 0, Flags(0), &[10]);
    let [by_old, by_next] = by_both(&mut world);
    world.carry(0, by_old);
    world.pass(Duration::from_millis(600));
    assert_eq!(world.payloads(1).len(), 11);
    world.carry(0, by_next);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.payloads(1).len(), 11);
}

/// Where the old way is the longer one, what goes up over the next one must not overtake what went over the old one.
#[test]
fn what_goes_up_is_held_for_longer_where_the_old_parent_is_behind() {
    let [near, far] = [0, 300].map(|behind| {
        let mut world = World::empty();
        for site in [1, 2, 3] {
            world.add_relay(at_site(Mode::Immediate, site), 1);
        }
        for relay in [0, 2] {
            let number = world.join(relay);
            world.subscribe(number, GROUP, 3);
        }
        for (above, below) in [(0, 1), (1, 2)] {
            world.link(COMTREE, [(above, above as u16 + 1), (below, below as u16 + 1)], DOWN);
        }
        world.settle();
        world.link(COMTREE, [(0, 1), (2, 3)], [BranchRole::Child, BranchRole::NextParent]);
        world.pass(Duration::from_secs(1));
        world.publish(0, GROUP, 0, Flags(0), b"over both");
        let (by_old, by_next): (Vec<_>, Vec<_>) = world
            .collect(0)
            .into_iter()
            .partition(|sent| sent.to == crate::support::path_of_thread(1).remote);
        world.carry(0, by_next);
        world.pass(Duration::from_millis(behind));
        world.carry(0, by_old);
        let (mut waited, mut longest) = (0, 0);
        for update in 0..150 {
            let before = world.payloads(0).len();
            world.publish(1, GROUP, 0, Flags(0), &[update]);
            world.pass(Duration::from_millis(20));
            waited = if world.payloads(0).len() > before { 0 } else { waited + 20 };
            longest = longest.max(waited);
        }
        let expected: Vec<Vec<u8>> = (0..150).map(|update| vec![update]).collect();
        assert_eq!(world.payloads(0), expected);
        longest
    });
    assert!((80..200).contains(&near) && (380..500).contains(&far), "{near} ms, {far} ms");
}

/// What the parents bring between two ticks goes up over neither, though one of them is taken away before the next tick.
#[test]
fn what_waits_for_a_tick_goes_up_over_no_other_parent_when_its_own_goes() {
    for (gone, wait) in [(0, 500), (0, 5_000), (1, 500), (1, 5_000)] {
        let mut world = World::empty();
        let tick = Duration::from_millis(20);
        for (site, mode) in
            [(1, Mode::Immediate), (2, Mode::Immediate), (3, Mode::Periodic { tick })]
        {
            world.add_relay(at_site(mode, site), 1);
        }
        let all = [0, 1, 2].map(|relay| world.join(relay));
        for (above, below) in [(0, 1), (1, 2)] {
            world.link(COMTREE, [(above, above as u16 + 1), (below, below as u16 + 1)], DOWN);
        }
        all[1..].iter().for_each(|number| world.subscribe(*number, GROUP, 3));
        world.pass(tick);
        world.link(COMTREE, [(0, 1), (2, 3)], [BranchRole::Child, BranchRole::NextParent]);
        world.pass(Duration::from_millis(wait));

        world.publish(all[0], GROUP, 0, Flags(0), b"once");
        world.settle();
        let link = world.key_of(gone);
        let now = world.now;
        let branch = BranchId { comtree: COMTREE, link, thread: 0 };
        world.threads[2].apply(now, Change::RemoveBranch(branch)).unwrap();
        world.pass(Duration::from_secs(1));
        for number in all {
            let expected = usize::from(number != all[0]);
            assert_eq!(world.payloads(number).len(), expected, "{number}, {gone} after {wait}");
        }
    }
}

/// A relay leaves a mesh, and both neighbours that brought what it sends go, the one that was to stay first. No way
/// leads to where that one was, for its place may be another's.
#[test]
fn no_way_leads_over_a_core_peer_that_has_gone_before_the_next_peer() {
    let mut world = World::empty();
    for site in [1, 2, 3, 4] {
        let thread = world.add_relay(at_site(Mode::Immediate, site), 1);
        let number = world.join(thread);
        world.subscribe(number, GROUP, 3);
    }
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let ends = [one, other].map(|relay| (relay, relay as u16 + 1));
        world.link(COMTREE, ends, [BranchRole::CorePeer; 2]);
    }
    // What is below the relay that leaves is quiet from then on, so no other way there is learned.
    world.link(COMTREE, [(2, 3), (3, 4)], DOWN);
    world.settle();
    world.publish(3, GROUP, 0, Flags(0), b"to all");
    world.settle();
    let id = |world: &World, other: usize| BranchId {
        comtree: COMTREE,
        link: world.key_of(other),
        thread: 0,
    };
    let set = |world: &mut World, relay: usize, other: usize, role| {
        let (now, branch) = (world.now, id(world, other));
        world.threads[relay].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    };
    set(&mut world, 1, 2, BranchRole::NextPeer);
    set(&mut world, 2, 1, BranchRole::NextPeer);
    set(&mut world, 0, 2, BranchRole::Core);
    for _ in 0..2 {
        world.publish(2, GROUP, 0, Flags(0), b"twice");
        world.settle();
    }
    assert_eq!(world.dropped(DropReason::Repeated), 2);
    assert_eq!(world.payloads(1).len(), 3);
    for gone in [0, 2] {
        let (now, branch) = (world.now, id(&world, gone));
        world.threads[1].apply(now, Change::RemoveBranch(branch)).unwrap();
    }
    assert_eq!(world.threads[1].routes(), 0);
}

/// A relay below one of two core peers joins their mesh: each update passes once all the while, and in the end goes
/// directly.
#[test]
fn a_relay_joins_a_mesh_and_what_comes_twice_passes_once() {
    join_a_mesh(1);
}

/// The first data thread has all links, and the others have the participants.
#[test]
fn relays_of_several_data_threads_join_a_mesh_if_one_has_their_links() {
    join_a_mesh(2);
    join_a_mesh(3);
}

fn join_a_mesh(threads: u16) {
    let mut world = World::empty();
    let relays = [1, 2, 3].map(|site| {
        let first = world.add_relay(at_site(Mode::Immediate, site), threads);
        let number = world.join(first + usize::from(threads) - 1);
        world.subscribe(number, GROUP, 3);
        first
    });
    let ends = |one: usize, other: usize| [one, other].map(|of| (relays[of], of as u16 + 1));
    world.link(COMTREE, ends(0, 1), [BranchRole::CorePeer; 2]);
    world.link(COMTREE, ends(0, 2), DOWN);
    world.settle();
    let mut sent = 0_u8;
    let mut all_hear = |world: &mut World, when: &str| {
        for publisher in 0..3 {
            sent += 1;
            world.publish(publisher, GROUP, 0, Flags(0), &[sent]);
            world.pass(Duration::from_millis(10));
            for receiver in (0..3).filter(|receiver| *receiver != publisher) {
                let got = world.payloads(receiver).iter().filter(|got| ***got == [sent]).count();
                assert_eq!(got, 1, "{when}: of {publisher} at {receiver}");
            }
        }
    };
    let set = |world: &mut World, relay: usize, other: usize, role| {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(relays[other]), thread: 0 };
        let now = world.now;
        world.threads[relays[relay]].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    };
    all_hear(&mut world, "below");
    set(&mut world, 0, 2, BranchRole::Core);
    set(&mut world, 2, 0, BranchRole::CorePeer);
    world.link(COMTREE, ends(1, 2), [BranchRole::NextPeer; 2]);
    world.settle();
    // At first what comes over the old way alone passes, and then whatever comes first.
    all_hear(&mut world, "new next peers");
    world.pass(Duration::from_millis(500));
    for _ in 0..2 {
        all_hear(&mut world, "next peers");
    }
    assert_eq!(world.dropped(DropReason::Repeated), 6, "either brings what the other publishes");
    set(&mut world, 0, 2, BranchRole::CorePeer);
    all_hear(&mut world, "directly");
    for (relay, other) in [(1, 2), (2, 1)] {
        set(&mut world, relay, other, BranchRole::CorePeer);
    }
    all_hear(&mut world, "core peers");
    assert_eq!(world.dropped(DropReason::Repeated), 6);

    // And it leaves again: the first of the mesh brings all before the way between the others goes.
    for role in [BranchRole::NextPeer, BranchRole::LastPeer] {
        for (relay, other) in [(1, 2), (2, 1)] {
            set(&mut world, relay, other, role);
        }
        set(&mut world, 0, 2, BranchRole::Core);
        all_hear(&mut world, "leaving");
    }
    for (relay, other) in [(1, 2), (2, 1)] {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(relays[other]), thread: 0 };
        let now = world.now;
        world.threads[relays[relay]].apply(now, Change::RemoveBranch(branch)).unwrap();
    }
    set(&mut world, 2, 0, BranchRole::Parent);
    world.pass(Duration::from_millis(500));
    set(&mut world, 0, 2, BranchRole::Child);
    all_hear(&mut world, "below again");
}

/// What a relay's parent has brought waits for the relay's tick, and by then that is a core peer. Others of the mesh had
/// it from that before they could tell what comes twice.
#[test]
fn what_waits_for_a_tick_goes_to_no_next_peer_when_the_parent_is_a_core_peer_by_then() {
    let mut world = World::empty();
    let ticks = Mode::Periodic { tick: Duration::from_millis(1000) };
    for (site, mode) in [(1, Mode::Immediate), (2, Mode::Immediate), (3, ticks)] {
        let relay = world.add_relay(at_site(mode, site), 1);
        let number = world.join(relay);
        world.subscribe(number, GROUP, 3);
    }
    world.link(COMTREE, [(0, 1), (1, 2)], [BranchRole::CorePeer; 2]);
    world.link(COMTREE, [(0, 1), (2, 3)], DOWN);
    world.pass(Duration::from_secs(3));
    let sent: &[u8] = b"once";
    world.publish(0, GROUP, 0, Flags(0), sent);
    world.settle();
    for (relay, other, role) in [(0, 2, BranchRole::Core), (2, 0, BranchRole::CorePeer)] {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(other), thread: 0 };
        let now = world.now;
        world.threads[relay].apply(now, Change::SetBranchRole { branch, role }).unwrap();
    }
    world.link(COMTREE, [(1, 2), (2, 3)], [BranchRole::NextPeer; 2]);
    // The second relay hears who is new after half a second, and lets go on what waited in vain for as long.
    world.pass(Duration::from_secs(2));
    for number in 0..3 {
        let got = world.payloads(number).iter().filter(|got| **got == sent).count();
        assert_eq!(got, usize::from(number != 0), "at {number}");
    }
}

/// The old parent is ahead of the next one by a tick. What it brought last comes once more when the next one is a core peer.
#[test]
fn what_the_old_parent_brought_does_not_pass_again_once_the_next_one_is_a_core_peer() {
    let mut world = World::empty();
    let ticks = Mode::Periodic { tick: Duration::from_millis(200) };
    for (site, mode) in [(1, Mode::Immediate), (2, ticks), (3, Mode::Immediate)] {
        world.add_relay(at_site(mode, site), 1);
    }
    for relay in [0, 2] {
        world.join(relay);
    }
    world.subscribe(1, GROUP, 3);
    world.link(COMTREE, [(1, 2), (0, 1)], DOWN);
    world.link(COMTREE, [(0, 1), (2, 3)], DOWN);
    world.settle();
    world.link(COMTREE, [(1, 2), (2, 3)], [BranchRole::Child, BranchRole::NextParent]);
    for sent in 0..50 {
        world.publish(0, GROUP, 0, Flags(0), &[sent]);
        world.pass(Duration::from_millis(100));
    }
    let id = |world: &World, other: usize| BranchId {
        comtree: COMTREE,
        link: world.key_of(other),
        thread: 0,
    };
    let last: &[u8] = b"last";
    world.publish(0, GROUP, 0, Flags(0), last);
    world.pass(Duration::from_millis(5));
    let count = |world: &World| world.payloads(1).iter().filter(|got| **got == last).count();
    assert_eq!(count(&world), 1, "the old parent brought it");
    for (relay, other) in [(0, 2), (2, 0)] {
        let (now, branch) = (world.now, id(&world, other));
        world.threads[relay].apply(now, Change::RemoveBranch(branch)).unwrap();
    }
    for (relay, other, role) in [(1, 2, BranchRole::Core), (2, 1, BranchRole::CorePeer)] {
        let (now, branch) = (world.now, id(&world, other));
        world.threads[relay].apply(now, Change::SetBranchRole { branch, role }).unwrap();
    }
    let repeated = world.dropped(DropReason::Repeated);
    world.pass(Duration::from_millis(400));
    assert_eq!(count(&world), 1);
    assert_eq!(world.dropped(DropReason::Repeated), repeated + 1, "the next one brought it too");
}

/// A parent that was a child has asked for what nobody needs here now, also while it takes this relay for its parent
/// still: neither the next parent nor the old one is asked for it. It ends soon, unless it is asked for again.
#[test]
fn what_a_parent_wanted_as_a_child_is_asked_of_no_parent() {
    let mut world = World::empty();
    for site in [1, 2, 3] {
        world.add_relay(at_site(Mode::Immediate, site), 1);
    }
    for relay in [0, 2] {
        world.join(relay);
    }
    world.link(COMTREE, [(1, 2), (0, 1)], DOWN);
    world.subscribe(0, GROUP, 3);
    world.settle();
    let set = |world: &mut World, relay: usize, other: usize, role| {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(other), thread: 0 };
        let now = world.now;
        world.threads[relay].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    };
    let asked = |world: &World| world.threads[1].counters().subscriptions_asked;
    assert_eq!(world.threads[1].subscriptions(), 1);
    set(&mut world, 1, 0, BranchRole::Parent);
    world.subscribe(0, GROUP + 1, 3);
    world.settle();
    assert_eq!(world.threads[1].subscriptions(), 2);
    set(&mut world, 0, 1, BranchRole::Child);
    world.link(COMTREE, [(0, 1), (2, 3)], DOWN);
    world.settle();

    world.link(COMTREE, [(2, 3), (1, 2)], [BranchRole::Child, BranchRole::NextParent]);
    world.pass(UNTIL_FORGOTTEN);
    assert_eq!((asked(&world), world.threads[1].subscriptions()), (0, 0));
    // It is a child again, of a relay that has another parent.
    for (relay, gone) in [(0, 2), (2, 0)] {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(gone), thread: 0 };
        let now = world.now;
        world.threads[relay].apply(now, Change::RemoveBranch(branch)).unwrap();
    }
    set(&mut world, 1, 0, BranchRole::Child);
    set(&mut world, 0, 1, BranchRole::Parent);
    assert_eq!(asked(&world), 2);
    for group in [GROUP, GROUP + 1] {
        world.publish(1, group, 0, Flags(0), b"over the one between");
    }
    world.settle();
    assert_eq!(world.payloads(0), [b"over the one between"; 2]);
}

/// What was begun here is taken back, before the child has heard of it or because it refused. It has asked once.
#[test]
fn a_child_that_was_to_be_something_else_gets_what_it_wanted_as_a_child_again() {
    let mut world = World::empty();
    for site in [1, 2, 3] {
        world.add_relay(at_site(Mode::Immediate, site), 1);
    }
    for relay in [0, 1] {
        world.join(relay);
    }
    world.link(COMTREE, [(1, 2), (0, 1)], DOWN);
    world.subscribe(0, GROUP, 3);
    world.settle();
    let child = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
    let mut sent = 0_u8;
    let mut turn = |world: &mut World, role, wait| {
        for role in [role, BranchRole::Child] {
            let now = world.now;
            world.threads[1].apply(now, Change::SetBranchRole { branch: child, role }).unwrap();
            world.pass(wait);
        }
        world.publish(1, GROUP, 0, Flags(0), &[sent]);
        world.settle();
        sent += 1;
        assert_eq!(world.payloads(0).len(), usize::from(sent), "{role:?} for {wait:?}");
    };
    for wait in [Duration::from_millis(1), UNTIL_FORGOTTEN] {
        for role in [BranchRole::Parent, BranchRole::Core, BranchRole::CorePeer] {
            turn(&mut world, role, wait);
        }
    }
    world.link(COMTREE, [(2, 3), (1, 2)], DOWN);
    turn(&mut world, BranchRole::NextParent, Duration::from_millis(1));
    assert_eq!(world.threads[1].subscriptions(), 1);
}

/// The root walks to the child and back, which has asked for something before, and wants it no more.
#[test]
fn a_child_again_gets_nothing_that_it_has_ceased_to_want_meanwhile() {
    let mut world = World::empty();
    for site in [1, 2] {
        world.add_relay(at_site(Mode::Immediate, site), 1);
    }
    for relay in [0, 1] {
        world.join(relay);
    }
    world.link(COMTREE, [(0, 1), (1, 2)], DOWN);
    for group in [GROUP, GROUP + 1] {
        world.subscribe(1, group, 3);
    }
    world.settle();
    assert_eq!(world.threads[0].subscriptions(), 2);
    let set = |world: &mut World, relay: usize, role| {
        let link = world.key_of(1 - relay);
        let branch = BranchId { comtree: COMTREE, link, thread: 0 };
        let now = world.now;
        world.threads[relay].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    };
    set(&mut world, 0, BranchRole::Core);
    set(&mut world, 1, BranchRole::Core);
    world.unsubscribe(1, GROUP);
    world.settle();
    set(&mut world, 1, BranchRole::NextParent);
    world.pass(Duration::from_secs(1));
    set(&mut world, 0, BranchRole::Child);
    set(&mut world, 1, BranchRole::Parent);
    assert_eq!(world.threads[0].subscriptions(), 1);
    for group in [GROUP, GROUP + 1] {
        world.publish(0, group, 0, Flags(0), b"from above");
    }
    world.settle();
    assert_eq!(world.payloads(1).len(), 1);
}
