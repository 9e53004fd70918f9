//! Subscriptions on their way to the core (Forest §3.3): where they go, where they stop, and that they
//! follow what is wanted.

use crate::support::{COMTREE, Sent, World, at_site, keyring, path_of_thread};
use canopy_relay::{
    BranchId, BranchRole, Change, Mode, Notice, Relay, RelayConfig, Siblings, TableLimits,
};
use canopy_session::SessionLimits;
use canopy_wire::{Comtree, DropReason, Flags, Group, Level};
use std::time::Duration;

const GROUP: u32 = 7;
const UP: [BranchRole; 2] = [BranchRole::Child, BranchRole::Parent];

/// A line of relays of one data thread each, whose first is the core, with a participant on each.
fn line(count: usize) -> World {
    line_of(count, |site| at_site(Mode::Immediate, site))
}

fn line_of(count: usize, config: impl Fn(u16) -> RelayConfig) -> World {
    let mut world = World::empty();
    for relay in 0..count {
        world.add_relay(config(relay as u16 + 1), 1);
        world.join(relay);
    }
    for relay in 1..count {
        world.link(COMTREE, [(relay - 1, relay as u16), (relay, relay as u16 + 1)], UP);
    }
    world.settle();
    world
}

/// Who is subscribed to the group at a relay: participants, branches, and the highest level.
fn at(world: &World, relay: usize) -> Option<(u32, u32, Level)> {
    let mut groups = world.threads[relay].list_groups(100).into_iter();
    let of_it = groups.find(|one| one.group == Group::new(GROUP))?;
    Some((of_it.participants, of_it.branches, of_it.highest))
}

fn assert_heard_by(world: &mut World, publisher: usize, level: u8, expected: &[usize]) {
    let before: Vec<_> = world.participants.iter().map(|one| one.received.len()).collect();
    world.publish(publisher, GROUP, level, Flags(0), b"x");
    world.settle();
    let heard: Vec<_> = (0..before.len())
        .filter(|number| world.participants[*number].received.len() > before[*number])
        .collect();
    assert_eq!(heard, expected, "from {publisher}");
}

#[test]
fn a_subscription_goes_to_the_core_and_is_dropped_there_again() {
    let mut world = line(4);
    world.subscribe(3, GROUP, 2);
    assert_eq!(at(&world, 3), Some((1, 0, Level(2))));
    for relay in [0, 1, 2] {
        assert_eq!(at(&world, relay), Some((0, 1, Level(2))), "relay {relay}");
    }
    for publisher in [0, 1, 2] {
        assert_heard_by(&mut world, publisher, 2, &[3]);
        assert_heard_by(&mut world, publisher, 3, &[]);
    }
    world.unsubscribe(3, GROUP);
    assert!((0..4).all(|relay| at(&world, relay).is_none()));
    assert_heard_by(&mut world, 0, 0, &[]);
}

#[test]
fn it_stops_where_somebody_is_subscribed_already() {
    let mut world = line(4);
    world.subscribe(2, GROUP, 5);
    let asked = world.threads[1].counters().subscriptions_asked;
    world.subscribe(3, GROUP, 4);
    let asked_again = world.threads[1].counters().subscriptions_asked;
    assert_eq!(asked_again, asked + 1, "the core hears that the group weighs twice as much");
    world.subscribe(1, GROUP, 4);
    let asked = world.threads[1].counters().subscriptions_asked;
    assert_eq!(asked, asked_again, "and of the next one with the next refresh");
    world.unsubscribe(1, GROUP);
    assert_eq!(at(&world, 2), Some((1, 1, Level(5))));
    assert_heard_by(&mut world, 0, 4, &[2, 3]);
    // Whoever is left wants less.
    world.unsubscribe(2, GROUP);
    assert_eq!(at(&world, 0), Some((0, 1, Level(4))));
    assert_heard_by(&mut world, 0, 5, &[]);
    assert_heard_by(&mut world, 0, 4, &[3]);
}

#[test]
fn the_highest_level_behind_a_branch_counts() {
    let mut world = line(3);
    let more = [world.join(2), world.join(2), world.join(1)];
    for (number, level) in more.into_iter().zip([1, 6, 3]) {
        world.subscribe(number, GROUP, level);
    }
    assert_eq!(at(&world, 0), Some((0, 1, Level(6))));
    world.subscribe(more[1], GROUP, 2);
    assert_eq!(at(&world, 0), Some((0, 1, Level(3))), "it has fallen");
    world.unsubscribe(more[2], GROUP);
    assert_eq!(at(&world, 0), Some((0, 1, Level(2))));
}

#[test]
fn in_the_core_nobody_is_asked() {
    let mut world = World::empty();
    for relay in 0..3 {
        world.add_relay(at_site(Mode::Immediate, relay + 1), 1);
        let number = world.join(relay.into());
        world.subscribe(number, GROUP, 9);
    }
    world.link(COMTREE, [(0, 1), (1, 2)], [BranchRole::Core; 2]);
    world.link(COMTREE, [(1, 2), (2, 3)], UP);
    world.settle();
    assert_eq!(
        at(&world, 0),
        Some((1, 0, Level(9))),
        "the core's relays keep no state of each other"
    );
    assert_eq!(at(&world, 1), Some((1, 1, Level(9))));
    for publisher in 0..3 {
        let others: Vec<_> = (0..3).filter(|number| *number != publisher).collect();
        assert_heard_by(&mut world, publisher, 0, &others);
    }
}

/// What one data thread's participants want is asked over the branch that another has.
#[test]
fn the_data_thread_with_the_parent_asks_for_the_others() {
    let mut world = World::empty();
    world.add_relay(at_site(Mode::Immediate, 1), 1);
    world.add_relay(at_site(Mode::Immediate, 2), 3);
    // Thread 2 is the second of the second relay.
    world.link(COMTREE, [(0, 1), (2, 2)], UP);
    let all = [0, 1, 2, 3].map(|thread| world.join(thread));
    for (number, level) in [(1, 4), (3, 7)] {
        world.subscribe(all[number], GROUP, level);
    }
    assert_eq!(at(&world, 0), Some((0, 1, Level(7))));
    assert_heard_by(&mut world, 0, 3, &[1, 3]);
    assert_heard_by(&mut world, 1, 3, &[3]);
    world.unsubscribe(all[3], GROUP);
    assert_eq!(at(&world, 0), Some((0, 1, Level(4))));
    world.subscribe(all[0], GROUP, 1);
    for publisher in [1, 2, 3] {
        let heard: Vec<_> = [0, 1].into_iter().filter(|number| *number != publisher).collect();
        assert_heard_by(&mut world, publisher, 0, &heard);
    }
    world.unsubscribe(all[1], GROUP);
    assert_eq!(at(&world, 0), Some((1, 0, Level(1))));
}

#[test]
fn what_is_wanted_is_asked_of_the_new_parent() {
    let mut world = line(3);
    world.subscribe(2, GROUP, 3);
    world.subscribe(0, GROUP, 3);
    // The core moves from the first relay to the last: outwards first, so that there always is one.
    let role = |world: &mut World, here: usize, there: usize, role| {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(there), thread: 0 };
        let now = world.now;
        world.threads[here].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    };
    for (here, there, what) in [
        (1, 0, BranchRole::Child),
        (0, 1, BranchRole::Parent),
        (2, 1, BranchRole::Child),
        (1, 2, BranchRole::Parent),
    ] {
        role(&mut world, here, there, what);
    }
    assert_eq!(at(&world, 2), Some((1, 1, Level(3))));
    for _ in 0..4 {
        assert_heard_by(&mut world, 1, 0, &[0, 2]);
        world.pass(Duration::from_secs(20));
    }
    assert_eq!(at(&world, 0), Some((1, 0, Level(3))), "nobody is behind it any more");
    assert_heard_by(&mut world, 1, 0, &[0, 2]);
    assert_heard_by(&mut world, 2, 0, &[0]);
    assert_heard_by(&mut world, 0, 0, &[2]);
}

/// While a root hands over, both relays may be each other's parent. What one wants, the other does not ask it for:
/// or each would want it for ever, because the other does.
#[test]
fn a_parent_is_not_asked_for_what_it_wants_itself() {
    let mut world = line(2);
    world.subscribe(1, GROUP, 3);
    assert_eq!(at(&world, 0), Some((0, 1, Level(3))));
    let branch = BranchId { comtree: COMTREE, link: world.key_of(1), thread: 0 };
    let (now, role) = (world.now, BranchRole::Parent);
    world.threads[0].apply(now, Change::SetBranchRole { branch, role }).unwrap();
    world.settle();
    assert_eq!(at(&world, 1), Some((1, 0, Level(3))));
    world.subscribe(0, GROUP, 1);
    assert_eq!(at(&world, 1), Some((1, 1, Level(3))));
    assert_heard_by(&mut world, 0, 0, &[1]);
    assert_heard_by(&mut world, 1, 0, &[0]);
    for relay in [1, 0] {
        world.unsubscribe(relay, GROUP);
    }
    assert_eq!([0, 1].map(|relay| at(&world, relay)), [None, None]);
}

/// What nobody wants any more when a neighbour is the parent again, or the link to it is up again, it hears of, and does
/// not bring until it expires.
#[test]
fn a_parent_that_comes_back_hears_what_nobody_wants_any_more() {
    for case in [
        "wanted until it is none",
        "wanted until it is asked",
        "wanted until the link is down",
        "wanted until a detour",
    ] {
        let mut world = line(2);
        world.pass(Duration::from_millis(200));
        for group in [GROUP, GROUP + 1] {
            world.subscribe(1, group, 3);
        }
        assert_eq!(world.threads[0].subscriptions(), 2);
        let branch = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
        let set = |world: &mut World, role| {
            let now = world.now;
            world.threads[1].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        };
        match case {
            "wanted until it is none" => {
                set(&mut world, BranchRole::Core);
                world.unsubscribe(1, GROUP);
                set(&mut world, BranchRole::Parent);
            }
            "wanted until it is asked" => {
                set(&mut world, BranchRole::Core);
                set(&mut world, BranchRole::Parent);
                world.unsubscribe(1, GROUP);
            }
            "wanted until the link is down" => {
                world.participants[1].session.unsubscribe(Group::new(GROUP));
                cut_links(&mut world, Duration::from_secs(1));
            }
            _ => {
                take_detour(&mut world, branch);
                world.participants[1].session.unsubscribe(Group::new(GROUP));
                world.pass(Duration::from_secs(2));
                world.add_branch(COMTREE, 1, (0, 1), BranchRole::Parent);
            }
        }
        world.pass(Duration::from_secs(3));
        assert_eq!((at(&world, 0), world.threads[0].subscriptions()), (None, 1), "{case}");
        assert_heard_by(&mut world, 0, 0, &[]);
    }
}

/// Nothing that relays send arrives for a while.
fn cut_links(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.now = world.now + Duration::from_millis(20);
        (0..world.participants.len()).for_each(|number| _ = world.send_from(number));
        for thread in 0..world.threads.len() {
            world.threads[thread].handle_timeout(world.now);
            drop(world.collect(thread));
        }
    }
}

/// The link to the parent is down, and the relay has no branch there until it is back. The parent does not hear of that.
fn take_detour(world: &mut World, branch: BranchId) {
    cut_links(world, Duration::from_secs(1));
    world.threads[1].apply(world.now, Change::RemoveBranch(branch)).unwrap();
}

/// By then it has expired there, and a relay remembers nothing for ever.
#[test]
fn what_a_parent_was_asked_long_before_it_comes_back_is_forgotten() {
    let lifetime = Duration::from_secs(10);
    for (away, changes) in [(lifetime / 2, 2), (3 * lifetime, 1)] {
        let mut world = line_of(2, |site| {
            let limits = SessionLimits { subscription: lifetime, ..SessionLimits::default() };
            RelayConfig { limits, ..at_site(Mode::Immediate, site) }
        });
        world.pass(Duration::from_millis(200));
        for group in [GROUP, GROUP + 1] {
            world.subscribe(1, group, 3);
        }
        let branch = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
        take_detour(&mut world, branch);
        world.unsubscribe(1, GROUP);
        world.pass(away);
        world.subscribe(1, GROUP + 1, 3);
        let asked = world.threads[1].counters().subscriptions_asked;
        world.add_branch(COMTREE, 1, (0, 1), BranchRole::Parent);
        world.pass(Duration::from_millis(200));
        assert_eq!(world.threads[1].counters().subscriptions_asked, asked + changes, "{away:?}");
        assert_eq!((at(&world, 0), world.threads[0].subscriptions()), (None, 1), "{away:?}");
    }
}

/// A relay in the core, or a root, takes a neighbour for its parent. It says so once when that knows all that is
/// wanted here, by whichever word.
#[test]
fn who_takes_a_parent_says_when_that_knows_what_is_wanted() {
    for (role, before) in [
        (BranchRole::Parent, [BranchRole::Core; 2]),
        (BranchRole::NextParent, [BranchRole::Core; 2]),
        (BranchRole::Parent, [BranchRole::Parent, BranchRole::Child]),
    ] {
        let mut world = World::empty();
        for site in [1, 2] {
            world.add_relay(at_site(Mode::Immediate, site), 1);
        }
        for relay in [0, 1] {
            world.join(relay);
        }
        world.link(COMTREE, [(0, 1), (1, 2)], before);
        world.settle();
        world.subscribe(1, GROUP, 3);
        while world.threads[1].poll_notice().is_some() {}
        let branch = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
        let now = world.now;
        world.threads[1].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        // What it wants is on its way.
        assert_eq!(world.threads[1].poll_notice().map(|_| ()), None, "{role:?}");
        world.settle();
        world.pass(Duration::from_millis(200));
        assert_eq!(at(&world, 0), Some((0, 1, Level(3))));
        let comtree = COMTREE;
        let word = match role {
            BranchRole::NextParent => Notice::ParentSucceeded { comtree },
            _ => Notice::ParentAsked { comtree },
        };
        let said: Vec<_> = std::iter::from_fn(|| world.threads[1].poll_notice()).collect();
        assert_eq!(format!("{said:?}"), format!("{:?}", [word]), "{role:?} from {before:?}");
    }
}

/// A neighbour is the parent, then is not, then is again, while the link stays up.
#[test]
fn a_parent_that_comes_back_is_asked_with_numbers_that_go_on() {
    let mut world = line(2);
    let set = |world: &mut World, role| {
        let branch = BranchId { comtree: COMTREE, link: world.key_of(0), thread: 0 };
        let now = world.now;
        world.threads[1].apply(now, Change::SetBranchRole { branch, role }).unwrap();
        world.settle();
    };
    for round in 0..200 {
        world.subscribe(1, round, 1);
    }
    set(&mut world, BranchRole::Core);
    set(&mut world, BranchRole::Parent);
    world.subscribe(1, GROUP + 1000, 3);
    for group in 0..100 {
        world.unsubscribe(1, group);
    }
    assert_eq!(world.threads[0].groups(), 101);
    assert_eq!(world.dropped(DropReason::SubscribeOrder), 0);
}

#[test]
fn a_parent_that_starts_anew_learns_everything_again() {
    let mut world = line(3);
    for group in 0..1000 {
        world.participants[2].session.subscribe(Group::new(group), Level(1));
    }
    world.pass(Duration::from_secs(1));
    assert_eq!(world.threads[0].groups(), 1000);
    let config = at_site(Mode::Immediate, 2);
    world.threads[1] = Relay::new(config, Siblings::alone(), keyring(1), &[9; 16]);
    for (there, role) in [(0, BranchRole::Parent), (2, BranchRole::Child)] {
        world.link_again(1, there);
        world.add_branch(COMTREE, 1, (there, there as u16 + 1), role);
    }
    assert_eq!(world.threads[1].groups(), 0);
    world.pass(Duration::from_secs(3));
    assert_eq!([0, 1].map(|relay| world.threads[relay].groups()), [1000, 1000]);
}

#[test]
fn it_is_refreshed_as_long_as_it_is_wanted_and_expires_with_whoever_wanted_it() {
    let mut world = line(3);
    world.subscribe(2, GROUP, 1);
    for _ in 0..10 {
        world.pass(Duration::from_secs(20));
        assert_eq!(at(&world, 0), Some((0, 1, Level(1))));
    }
    let expired = world.sum(|counters| counters.subscriptions_expired);
    assert_eq!(expired, 0);
    // The way to the core is cut: what came over it lives for as long as a subscription does.
    let now = world.now;
    let key = world.key_of(1);
    world.threads[2].apply(now, Change::RemoveLink { key, thread: 0 }).unwrap();
    world.pass(Duration::from_secs(70));
    assert_eq!([0, 1].map(|relay| at(&world, relay)), [None, None]);
    assert_eq!(world.threads[0].subscriptions(), 0);
}

#[test]
fn what_a_full_parent_refuses_is_asked_again_when_there_is_room() {
    let mut world = line_of(2, |site| {
        let max_groups = if site == 1 { 12 } else { 1 << 12 };
        let tables = TableLimits { max_groups, ..TableLimits::default() };
        RelayConfig { tables, ..at_site(Mode::Immediate, site) }
    });
    for group in 0..20 {
        world.subscribe(1, group, 1);
    }
    let known = world.threads[0].groups();
    assert!((6..12).contains(&known), "{known}: the other comtree has a part of its own");
    assert!(world.threads[1].counters().subscriptions_refused_above >= 8);
    for group in 0..known {
        world.unsubscribe(1, group);
    }
    world.pass(Duration::from_secs(30));
    assert_eq!(world.threads[0].groups(), known, "others have taken their places");
}

/// Takes the datagrams that go from one relay to another out of what is sent; the rest is carried.
fn between(world: &mut World, from: usize, to: usize) -> Vec<Vec<u8>> {
    let sent = world.collect(from);
    let there = path_of_thread(to).remote;
    let (taken, others): (Vec<Sent>, Vec<Sent>) = sent.into_iter().partition(|one| one.to == there);
    world.carry(from, others);
    taken.iter().flat_map(Sent::datagrams).map(<[u8]>::to_vec).collect()
}

/// A hundred thousand changes over a link on which datagrams are lost, doubled and overtaken.
#[test]
fn no_change_is_lost_on_a_bad_link() {
    let mut world = line(2);
    let mut random = 1u64;
    let mut wanted = std::collections::BTreeMap::new();
    let mut on_the_way: Vec<(usize, Vec<u8>)> = Vec::new();
    for round in 0..400 {
        for _ in 0..50 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (group, level) = ((random >> 33) as u32 % 600, (random >> 60) as u8);
            let session = &mut world.participants[1].session;
            if level < 5 {
                wanted.remove(&group);
                session.unsubscribe(Group::new(group));
            } else {
                wanted.insert(group, level);
                session.subscribe(Group::new(group), Level(level));
            }
        }
        // The participant's own way is a good one, the link is not.
        for _ in 0..6 {
            world.send_from(1);
            on_the_way.extend(between(&mut world, 1, 0).into_iter().map(|bytes| (0, bytes)));
            on_the_way.extend(between(&mut world, 0, 1).into_iter().map(|bytes| (1, bytes)));
        }
        let bad = round < 380;
        for (to, bytes) in std::mem::take(&mut on_the_way) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match random >> 61 {
                0 if bad => {}
                1 if bad => on_the_way.push((to, bytes)),
                2 if bad => {
                    world.arrive(to, path_of_thread(1 - to), &bytes);
                    world.arrive(to, path_of_thread(1 - to), &bytes);
                }
                _ => world.arrive(to, path_of_thread(1 - to), &bytes),
            }
        }
        world.now = world.now + Duration::from_millis(10);
        let now = world.now;
        world.threads.iter_mut().for_each(|thread| thread.handle_timeout(now));
    }
    world.pass(Duration::from_secs(5));
    let known: std::collections::BTreeMap<_, _> = world.threads[0]
        .list_groups(1000)
        .iter()
        .map(|one| (one.group.number(), one.highest.0))
        .collect();
    assert_eq!(known, wanted);
    assert!(world.threads[0].is_linked(&world.key_of(1)));
}

#[test]
fn a_neighbour_that_gets_everything_gets_nothing_twice() {
    let mut world = line(2);
    world.subscribe(1, GROUP, 9);
    // The parent takes the other for one of the core, which the other does not know yet: it still asks.
    let branch = BranchId { comtree: COMTREE, link: world.key_of(1), thread: 0 };
    let (now, role) = (world.now, BranchRole::Core);
    world.threads[0].apply(now, Change::SetBranchRole { branch, role }).unwrap();
    world.pass(Duration::from_secs(30));
    world.publish(0, GROUP, 0, Flags(0), b"once");
    world.settle();
    assert_eq!(world.payloads(1), [b"once"]);
    assert_eq!(world.dropped(DropReason::SubscriptionsFull), 0);
}

#[test]
fn nothing_is_asked_on_other_comtrees() {
    let mut world = line(2);
    world.subscribe(1, GROUP, 9);
    assert!(world.threads[0].list_groups(9).iter().all(|one| one.comtree == Comtree(1)));
}
