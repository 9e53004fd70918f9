//! Who is subscribed to what: groups, each with a list of members; members, each with a list of
//! groups. Bounded, soft state: what is not refreshed is swept.

use crate::cohorts::NONE;
use canopy_session::{KeyedState, SlotIndex};
use canopy_wire::{Comtree, Group, Level, TableFull, Tag, Time};
use core::hash::BuildHasher;
use hashbrown::HashTable;

/// How much a data thread's tables may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// The most groups that have subscribers.
    pub max_groups: u32,
    /// The most subscriptions.
    pub max_subscriptions: u32,
    /// The most subscriptions of one participant.
    pub max_subscriptions_per_participant: u32,
}

impl Default for TableLimits {
    fn default() -> TableLimits {
        TableLimits {
            max_groups: 1 << 16,
            max_subscriptions: 1 << 18,
            max_subscriptions_per_participant: 4096,
        }
    }
}

struct GroupEntry {
    comtree: Comtree,
    group: Group,
    first: u32,
    /// The number of the group's target while updates wait for it, otherwise [`NONE`].
    target: u32,
    next_free: u32,
}

struct Subscription {
    group: u32,
    slot: SlotIndex,
    next_of_group: u32,
    prev_of_group: u32,
    next_of_slot: u32,
    prev_of_slot: u32,
    /// Deciseconds since the origin.
    expires: u32,
    level: Level,
}

/// Who is subscribed to what.
pub(crate) struct SubscriptionTable {
    limits: TableLimits,
    groups: Vec<GroupEntry>,
    free_group: u32,
    subscriptions: Vec<Subscription>,
    free_subscription: u32,
    live: u32,
    live_groups: u32,
    /// By session: its newest subscription, and how many it has.
    newest_of_slot: Vec<u32>,
    count_of_slot: Vec<u32>,
    /// The indexes grow as they fill, on the way of a subscribe, never of an update: their entries
    /// are scattered, so reserved they would soon be resident whole.
    by_group: HashTable<u32>,
    by_pair: HashTable<u32>,
    hash: KeyedState,
    sweep: u32,
}

impl SubscriptionTable {
    pub(crate) fn new(limits: TableLimits, max_sessions: u32, key: &Tag) -> SubscriptionTable {
        SubscriptionTable {
            groups: Vec::with_capacity(limits.max_groups as usize),
            free_group: NONE,
            subscriptions: Vec::with_capacity(limits.max_subscriptions as usize),
            free_subscription: NONE,
            live: 0,
            live_groups: 0,
            newest_of_slot: vec![NONE; max_sessions as usize],
            count_of_slot: vec![0; max_sessions as usize],
            by_group: HashTable::new(),
            by_pair: HashTable::new(),
            hash: KeyedState::new(key),
            sweep: 0,
            limits,
        }
    }

    /// How many subscriptions there are.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// How many groups have subscribers.
    pub(crate) fn live_groups(&self) -> u32 {
        self.live_groups
    }

    /// The group's index, if it has subscribers or updates waiting.
    pub(crate) fn find_group(&self, comtree: Comtree, group: Group) -> Option<u32> {
        let same = |index: &u32| {
            let entry = &self.groups[*index as usize];
            entry.group == group && entry.comtree == comtree
        };
        self.by_group.find(self.hash.hash_one((comtree, group)), same).copied()
    }

    /// The members of a group with their levels, latest first.
    pub(crate) fn members(&self, group: u32) -> impl Iterator<Item = (SlotIndex, Level)> + '_ {
        let first = self.groups[group as usize].first;
        core::iter::successors(self.subscriptions.get(first as usize), |member| {
            self.subscriptions.get(member.next_of_group as usize)
        })
        .map(|member| (member.slot, member.level))
    }

    /// Where the group remembers its target of this flush.
    pub(crate) fn target_mut(&mut self, group: u32) -> &mut u32 {
        &mut self.groups[group as usize].target
    }

    /// The flush is over: the group has no target, and goes if it has no subscribers either.
    pub(crate) fn forget_target(&mut self, group: u32) {
        self.groups[group as usize].target = NONE;
        self.release_if_unused(group);
    }

    /// Subscribes or refreshes.
    pub(crate) fn add(
        &mut self,
        slot: SlotIndex,
        comtree: Comtree,
        group: Group,
        level: Level,
        expires: Time,
    ) -> Result<(), TableFull> {
        let known = self.find_group(comtree, group);
        let expires = deciseconds(expires);
        if let Some(existing) = known.and_then(|known| self.find_pair(slot, known)) {
            let subscription = &mut self.subscriptions[existing as usize];
            subscription.level = level;
            subscription.expires = expires;
            return Ok(());
        }
        if self.count_of_slot[slot as usize] >= self.limits.max_subscriptions_per_participant {
            return Err(TableFull::Participant);
        }
        if self.live >= self.limits.max_subscriptions {
            return Err(TableFull::Table);
        }
        let group = match known {
            Some(known) => known,
            None => self.open_group(comtree, group).ok_or(TableFull::Table)?,
        };
        self.link(slot, group, level, expires);
        Ok(())
    }

    /// Whether the session is subscribed to the group.
    pub(crate) fn contains(&self, slot: SlotIndex, comtree: Comtree, group: Group) -> bool {
        self.find_group(comtree, group).is_some_and(|group| self.find_pair(slot, group).is_some())
    }

    /// Unsubscribes; nothing happens if there is no such subscription.
    pub(crate) fn remove(&mut self, slot: SlotIndex, comtree: Comtree, group: Group) {
        let group = self.find_group(comtree, group);
        if let Some(subscription) = group.and_then(|group| self.find_pair(slot, group)) {
            self.unlink(subscription);
        }
    }

    /// Ends all subscriptions of a session.
    pub(crate) fn remove_all(&mut self, slot: SlotIndex) {
        while self.newest_of_slot[slot as usize] != NONE {
            self.unlink(self.newest_of_slot[slot as usize]);
        }
    }

    /// Looks at up to `budget` subscriptions, starting where the last call stopped, and ends those
    /// that were not refreshed. Returns how many.
    pub(crate) fn expire(&mut self, now: Time, budget: u32) -> u64 {
        let now = deciseconds(now);
        let mut expired = 0;
        for _ in 0..budget.min(self.subscriptions.len() as u32) {
            self.sweep = (self.sweep + 1) % self.subscriptions.len() as u32;
            let subscription = &self.subscriptions[self.sweep as usize];
            if subscription.slot != NONE && subscription.expires < now {
                self.unlink(self.sweep);
                expired += 1;
            }
        }
        expired
    }

    /// How many places have ever been in use.
    pub(crate) fn high_water(&self) -> u32 {
        self.subscriptions.len() as u32
    }

    fn open_group(&mut self, comtree: Comtree, group: Group) -> Option<u32> {
        let entry = GroupEntry { comtree, group, first: NONE, target: NONE, next_free: NONE };
        let index = if self.free_group != NONE {
            let index = self.free_group;
            self.free_group = self.groups[index as usize].next_free;
            self.groups[index as usize] = entry;
            index
        } else if (self.groups.len() as u32) < self.limits.max_groups {
            self.groups.push(entry);
            self.groups.len() as u32 - 1
        } else {
            return None;
        };
        let (groups, hash) = (&self.groups, &self.hash);
        let hash_of = |index: &u32| {
            let entry = &groups[*index as usize];
            hash.hash_one((entry.comtree, entry.group))
        };
        self.by_group.insert_unique(hash_of(&index), index, hash_of);
        self.live_groups += 1;
        Some(index)
    }

    fn release_if_unused(&mut self, group: u32) {
        let entry = &self.groups[group as usize];
        if entry.first != NONE || entry.target != NONE {
            return;
        }
        let hash = self.hash.hash_one((entry.comtree, entry.group));
        if let Ok(found) = self.by_group.find_entry(hash, |index| *index == group) {
            found.remove();
        }
        self.groups[group as usize].next_free = self.free_group;
        self.free_group = group;
        self.live_groups -= 1;
    }

    fn find_pair(&self, slot: SlotIndex, group: u32) -> Option<u32> {
        let same = |index: &u32| {
            let subscription = &self.subscriptions[*index as usize];
            subscription.slot == slot && subscription.group == group
        };
        self.by_pair.find(self.hash.hash_one((slot, group)), same).copied()
    }

    fn link(&mut self, slot: SlotIndex, group: u32, level: Level, expires: u32) {
        let subscription = Subscription {
            group,
            slot,
            next_of_group: self.groups[group as usize].first,
            prev_of_group: NONE,
            next_of_slot: self.newest_of_slot[slot as usize],
            prev_of_slot: NONE,
            expires,
            level,
        };
        let (after_in_group, after_of_slot) =
            (subscription.next_of_group, subscription.next_of_slot);
        let index = if self.free_subscription != NONE {
            let index = self.free_subscription;
            self.free_subscription = self.subscriptions[index as usize].next_of_group;
            self.subscriptions[index as usize] = subscription;
            index
        } else {
            self.subscriptions.push(subscription);
            self.subscriptions.len() as u32 - 1
        };
        if let Some(after) = self.subscriptions.get_mut(after_in_group as usize) {
            after.prev_of_group = index;
        }
        if let Some(after) = self.subscriptions.get_mut(after_of_slot as usize) {
            after.prev_of_slot = index;
        }
        self.groups[group as usize].first = index;
        self.newest_of_slot[slot as usize] = index;
        self.count_of_slot[slot as usize] += 1;
        self.live += 1;
        let (subscriptions, hash) = (&self.subscriptions, &self.hash);
        let hash_of = |index: &u32| {
            let subscription = &subscriptions[*index as usize];
            hash.hash_one((subscription.slot, subscription.group))
        };
        self.by_pair.insert_unique(hash_of(&index), index, hash_of);
    }

    fn unlink(&mut self, index: u32) {
        let Subscription {
            group,
            slot,
            next_of_group,
            prev_of_group,
            next_of_slot,
            prev_of_slot,
            ..
        } = self.subscriptions[index as usize];
        match self.subscriptions.get_mut(prev_of_group as usize) {
            Some(before) => before.next_of_group = next_of_group,
            None => self.groups[group as usize].first = next_of_group,
        }
        if let Some(after) = self.subscriptions.get_mut(next_of_group as usize) {
            after.prev_of_group = prev_of_group;
        }
        match self.subscriptions.get_mut(prev_of_slot as usize) {
            Some(before) => before.next_of_slot = next_of_slot,
            None => self.newest_of_slot[slot as usize] = next_of_slot,
        }
        if let Some(after) = self.subscriptions.get_mut(next_of_slot as usize) {
            after.prev_of_slot = prev_of_slot;
        }
        let hash = self.hash.hash_one((slot, group));
        if let Ok(found) = self.by_pair.find_entry(hash, |found| *found == index) {
            found.remove();
        }
        self.subscriptions[index as usize].slot = NONE;
        self.subscriptions[index as usize].next_of_group = self.free_subscription;
        self.free_subscription = index;
        self.count_of_slot[slot as usize] -= 1;
        self.live -= 1;
        self.release_if_unused(group);
    }
}

fn deciseconds(time: Time) -> u32 {
    (time.as_nanos() / 100_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const COMTREE: Comtree = Comtree(1);
    const KEY: Tag = [3; 16];

    fn table(max_groups: u32, max_subscriptions: u32, per_participant: u32) -> SubscriptionTable {
        let limits = TableLimits {
            max_groups,
            max_subscriptions,
            max_subscriptions_per_participant: per_participant,
        };
        SubscriptionTable::new(limits, 8, &KEY)
    }

    fn members(table: &SubscriptionTable, group: u32) -> Vec<(SlotIndex, Level)> {
        let found = table.find_group(COMTREE, Group::new(group));
        let mut members: Vec<_> = found.map_or(Vec::new(), |found| table.members(found).collect());
        members.sort_unstable();
        members
    }

    #[test]
    fn a_full_table_refuses_and_stays_whole() {
        let mut table = table(2, 3, 2);
        let mut add = |slot, group| {
            table.add(slot, COMTREE, Group::new(group), Level(0), Time::from_millis(1000))
        };
        assert_eq!(add(0, 1), Ok(()));
        assert_eq!(add(0, 2), Ok(()));
        assert_eq!(add(0, 3), Err(TableFull::Participant));
        assert_eq!(add(1, 3), Err(TableFull::Table), "no third group");
        assert_eq!(add(1, 1), Ok(()));
        assert_eq!(add(2, 1), Err(TableFull::Table), "no fourth subscription");
        assert_eq!(add(1, 1), Ok(()), "a refresh needs no room");
        assert_eq!((table.live(), table.live_groups()), (3, 2));
    }

    #[test]
    fn a_group_with_updates_waiting_is_not_given_to_another() {
        let mut table = table(4, 4, 4);
        table.add(0, COMTREE, Group::new(1), Level(0), Time::ZERO).unwrap();
        let group = table.find_group(COMTREE, Group::new(1)).unwrap();
        *table.target_mut(group) = 0;
        table.remove(0, COMTREE, Group::new(1));
        table.add(0, COMTREE, Group::new(2), Level(0), Time::ZERO).unwrap();
        assert_ne!(table.find_group(COMTREE, Group::new(2)), Some(group));
        table.forget_target(group);
        assert_eq!(table.find_group(COMTREE, Group::new(1)), None);
    }

    #[test]
    fn what_is_not_refreshed_expires() {
        let mut table = table(8, 8, 8);
        for group in 0..4 {
            let expires = Time::from_millis(1000 + 1000 * u64::from(group % 2));
            table.add(0, COMTREE, Group::new(group), Level(0), expires).unwrap();
        }
        assert_eq!(table.expire(Time::from_millis(1500), 8), 2);
        assert_eq!(table.live(), 2);
        assert_eq!(members(&table, 1).len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(SlotIndex, u32, u8),
        Remove(SlotIndex, u32),
        RemoveAll(SlotIndex),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..8, 0u32..6, 0u8..3).prop_map(|(s, g, l)| Step::Add(s, g, l)),
            3 => (0u32..8, 0u32..6).prop_map(|(s, g)| Step::Remove(s, g)),
            1 => (0u32..8).prop_map(Step::RemoveAll),
        ]
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec(step(), 0..200)) {
            let mut table = table(8, 64, 64);
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Add(slot, group, level) => {
                        table.add(slot, COMTREE, Group::new(group), Level(level), Time::ZERO).unwrap();
                        model.insert((group, slot), Level(level));
                    }
                    Step::Remove(slot, group) => {
                        table.remove(slot, COMTREE, Group::new(group));
                        model.remove(&(group, slot));
                    }
                    Step::RemoveAll(slot) => {
                        table.remove_all(slot);
                        model.retain(|(_, s), _| *s != slot);
                    }
                }
            }
            for group in 0..6 {
                let expected: Vec<_> = model.range((group, 0)..(group + 1, 0))
                    .map(|((_, slot), level)| (*slot, *level)).collect();
                prop_assert_eq!(members(&table, group), expected);
            }
            prop_assert_eq!(table.live() as usize, model.len());
        }
    }
}
