use super::*;
use crate::index::PortIndex;
use canopy_wire::SubscriptionChange;
use proptest::prelude::*;
use std::collections::BTreeMap;

const COMTREE: Comtree = Comtree(1);
const KEY: Tag = [3; 16];

fn table(max_groups: u32, max_subscriptions: u32) -> SubscriptionTable {
    let limits = TableLimits { max_groups, max_subscriptions, ..TableLimits::default() };
    SubscriptionTable::new(limits, 0, 24, &KEY)
}

/// Groups that are so far apart lie in one bucket where the secret is zero.
const APART: u32 = 16;

fn at_most(subscriptions: u32) -> Most {
    Most { subscriptions, ..Most::ANYTHING }
}

/// A level, with the weight that subscriptions have unless they say another.
fn at(level: u8) -> (Level, Weight) {
    (Level(level), Weight::ONE)
}

/// The members of a group by port, with their levels and weights.
fn weighted_members(table: &SubscriptionTable, group: u32) -> Vec<(PortIndex, Level, Weight)> {
    let found = table.find_group(COMTREE, Group::new(group));
    let mut members: Vec<_> = found.map_or(Vec::new(), |found| table.members(found).collect());
    members.sort_unstable();
    members
}

fn members(table: &SubscriptionTable, group: u32) -> Vec<(PortIndex, Level)> {
    let members = weighted_members(table, group);
    members.into_iter().map(|(port, level, _)| (port, level)).collect()
}

#[test]
fn a_full_table_refuses_and_stays_whole() {
    let mut table = table(2, 3);
    let mut add = |port, group| {
        table.add((port, at_most(2)), COMTREE, Group::new(group), at(0), Time::from_millis(1000))
    };
    assert_eq!(add(0, 1), Ok(()));
    assert_eq!(add(0, 2), Ok(()));
    assert_eq!(add(0, 3), Err(SubscribeRefusal::Participant));
    assert_eq!(add(1, 3), Err(SubscribeRefusal::Table), "no third group");
    assert_eq!(add(1, 1), Ok(()));
    assert_eq!(add(2, 1), Err(SubscribeRefusal::Table), "no fourth subscription");
    assert_eq!(add(1, 1), Ok(()), "a refresh needs no room");
    assert_eq!((table.live(), table.live_groups()), (3, 2));
}

/// What waits for a receiver is looked through only when it wants something else.
#[test]
fn who_wants_another_group_wants_something_else_in_brief() {
    let mut table = table(8, 8);
    let mut wants_on = |comtree, port, changes: &[(u32, bool)]| {
        for (group, is_wanted) in changes {
            let group = Group::new(*group);
            match is_wanted {
                true => table.add((port, at_most(9)), comtree, group, at(0), Time::ZERO).unwrap(),
                false => table.remove(port, comtree, group),
            }
        }
        table.interests(port)
    };
    let on_other = wants_on(Comtree(2), 2, &[(3, true)]);
    let mut wants = |port, changes: &[(u32, bool)]| wants_on(COMTREE, port, changes);
    let nothing = wants(0, &[]);
    let third = wants(0, &[(3, true)]);
    // The second group has the third's place in the table.
    let second = wants(0, &[(3, false), (2, true)]);
    let both = wants(0, &[(3, true)]);
    let all = [nothing, third, second, both, on_other];
    assert!(all.iter().enumerate().all(|(at, one)| !all[..at].contains(one)), "{all:?}");
    assert_eq!(wants(1, &[(2, true), (3, true)]), both, "those who want the same are alike");
    assert_eq!(wants(0, &[(2, false)]), third);
}

#[test]
fn a_full_table_has_room_for_what_another_data_thread_wants_next() {
    let limits = TableLimits { max_groups: 2, ..TableLimits::default() };
    let mut table = SubscriptionTable::new(limits, 2, 24, &KEY);
    let groups = [1, 2, 3, 4].map(Group::new);
    for (port, group) in [(2, groups[0]), (2, groups[1])] {
        table.add((port, at_most(9)), COMTREE, group, at(0), Time::ZERO).unwrap();
    }
    for group in [groups[2], groups[3]] {
        table.add_sibling(0, COMTREE, group, at(0)).unwrap();
    }
    // Nobody wants it any more, but updates for it have not left yet.
    let left = table.find_group(COMTREE, groups[2]).unwrap();
    *table.target_mut(left) = 0;
    table.remove(0, COMTREE, groups[2]);
    assert_eq!(table.add_sibling(0, COMTREE, Group::new(5), at(0)), Ok(()));
    table.forget_target(left);
    assert_eq!(table.find_group(COMTREE, groups[2]), None);
}

/// Among many members whoever wants the most is not searched for at once.
#[test]
fn what_other_data_threads_were_told_of_many_members_ends_with_the_last() {
    let limits = TableLimits { max_groups: 8, ..TableLimits::default() };
    let mut table = SubscriptionTable::new(limits, 2, 24, &KEY);
    let group = Group::new(1);
    let ports = 2..2 + 2 * FEW_MEMBERS;
    for port in ports.clone() {
        let level = if port == 2 { 3 } else { 1 };
        table.add((port, at_most(9)), COMTREE, group, at(level), Time::ZERO).unwrap();
    }
    let told = |table: &mut SubscriptionTable| {
        core::iter::from_fn(|| table.next_to_tell())
            .last()
            .map(|(.., interest)| interest.map(|(level, _)| level))
    };
    assert_eq!(told(&mut table), Some(Some(Level(3))));
    // While they are many, it takes some changes.
    table.remove(2, COMTREE, group);
    let mut last = None;
    for _ in 0..10 {
        table.remove(3, COMTREE, group);
        table.add((3, at_most(9)), COMTREE, group, at(1), Time::ZERO).unwrap();
        last = told(&mut table).or(last);
    }
    assert_eq!(last, Some(Some(Level(1))));
    for port in ports {
        table.remove(port, COMTREE, group);
        last = told(&mut table).or(last);
    }
    assert_eq!(last, Some(None), "nobody wants it any more");
    assert_eq!(table.find_group(COMTREE, group), None);
}

#[test]
fn a_group_with_updates_waiting_is_not_given_to_another() {
    let mut table = table(4, 4);
    table.add((0, at_most(9)), COMTREE, Group::new(1), at(0), Time::ZERO).unwrap();
    let group = table.find_group(COMTREE, Group::new(1)).unwrap();
    *table.target_mut(group) = 0;
    table.remove(0, COMTREE, Group::new(1));
    table.add((0, at_most(9)), COMTREE, Group::new(2), at(0), Time::ZERO).unwrap();
    assert_ne!(table.find_group(COMTREE, Group::new(2)), Some(group));
    table.forget_target(group);
    assert_eq!(table.find_group(COMTREE, Group::new(1)), None);
}

#[test]
fn what_is_not_refreshed_expires() {
    let mut table = table(8, 8);
    for group in 0..4 {
        let expires = Time::from_millis(1000 + 1000 * u64::from(group % 2));
        table.add((0, at_most(9)), COMTREE, Group::new(group), at(0), expires).unwrap();
    }
    assert_eq!(table.expire(Time::from_millis(1500), 8), 2);
    assert_eq!(table.live(), 2);
    assert_eq!(members(&table, 1).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Add(PortIndex, u32, (u8, u8)),
    Remove(PortIndex, u32),
    RemoveAll(PortIndex),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..24, 0u32..6, (0u8..3, 126u8..130)).prop_map(|(s, g, w)| Step::Add(s, g, w)),
        3 => (0u32..24, 0u32..6).prop_map(|(s, g)| Step::Remove(s, g)),
        1 => (0u32..24).prop_map(Step::RemoveAll),
    ]
}

fn config() -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0x50b);
    ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn the_table_is_a_map(steps in proptest::collection::vec(step(), 0..400)) {
        let mut table = table(8, 256);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(port, group, (level, weight)) => {
                    let (wanted, group_of) = ((Level(level), Weight(weight)), Group::new(group));
                    table.add((port, at_most(64)), COMTREE, group_of, wanted, Time::ZERO).unwrap();
                    prop_assert_eq!(table.wanted_by(port, COMTREE, group_of), Some(wanted));
                    model.insert((group, port), wanted);
                }
                Step::Remove(port, group) => {
                    table.remove(port, COMTREE, Group::new(group));
                    model.remove(&(group, port));
                }
                Step::RemoveAll(port) => {
                    table.remove_all(port);
                    model.retain(|(_, s), _| *s != port);
                }
            }
        }
        for group in 0..6 {
            let expected: Vec<_> = model.range((group, 0)..(group + 1, 0))
                .map(|((_, port), (level, weight))| (*port, *level, *weight)).collect();
            prop_assert_eq!(weighted_members(&table, group), expected);
        }
        prop_assert_eq!(table.live() as usize, model.len());
    }
}

proptest! {
    #![proptest_config(config())]
    /// Groups come, go and take each other's places while changes are made whose groups were looked up before. Half
    /// of the tables have a secret with which all groups are in one bucket, and some groups have many members.
    #[test]
    fn changes_that_are_looked_up_together_are_made_one_after_the_other(
        is_one_bucket in any::<bool>(),
        batches in proptest::collection::vec(
            (0u32..24, proptest::collection::vec((0u32..6, any::<bool>()), 1..80)), 0..60),
    ) {
        let limits =
            TableLimits { max_groups: 8, max_subscriptions: 200, ..TableLimits::default() };
        let mut table = SubscriptionTable::new(limits, 0, 24, &KEY);
        if is_one_bucket {
            table.groups = Groups::new(8, [0; 2]);
        }
        let mut model: BTreeMap<u32, BTreeMap<PortIndex, Level>> = BTreeMap::new();
        for (port, batch) in batches {
            let change = |(group, is_wanted): &(u32, bool)| {
                let group = Group::new(*group * APART);
                if *is_wanted {
                    SubscriptionChange::Add(group, Level(1))
                } else {
                    SubscriptionChange::Drop(group)
                }
            };
            let changes: Vec<SubscriptionChange> = batch.iter().map(change).collect();
            let mut made = Vec::new();
            table.change_all((port, COMTREE), changes.iter().copied(), |table, change, found| {
                match change.wanted() {
                    Some(wanted) => {
                        table.add_found(at_most(64), found, wanted, Time::ZERO).unwrap();
                    }
                    None => table.remove_found(found),
                }
                made.push((change, table.contains(port, COMTREE, change.group())));
            });
            let expected: Vec<_> =
                changes.iter().map(|change| (*change, change.wanted().is_some())).collect();
            prop_assert_eq!(made, expected);
            for (group, is_wanted) in batch {
                let wanted = model.entry(group).or_default();
                if is_wanted {
                    wanted.insert(port, Level(1));
                } else {
                    wanted.remove(&port);
                }
            }
            for (group, wanted) in &model {
                let expected: Vec<_> = wanted.iter().map(|(port, level)| (*port, *level)).collect();
                prop_assert_eq!(members(&table, *group * APART), expected, "group {}", group);
            }
            let groups = model.values().filter(|wanted| !wanted.is_empty()).count();
            prop_assert_eq!(table.live_groups() as usize, groups);
        }
    }
}
