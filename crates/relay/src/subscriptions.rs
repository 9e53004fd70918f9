//! Who is subscribed to what: groups, each with a list of members; ports, each with a list of
//! groups. Bounded, soft state: what is not refreshed is swept.
//!
//! The relay's other data threads are members like any other port, but in a list of their own: what
//! they want is passed to them when it arrives, what others want waits for the flush.

use crate::NONE;
use crate::comtrees::ComtreeIndex;
use crate::ports::{PortIndex, fold};
use crate::shares::Shares;
use canopy_session::KeyedState;
use canopy_wire::{Comtree, Group, Level, SubscribeRefusal, Tag, Time};
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
    /// The most groups that one participant may be the first to subscribe to, as long as it stays
    /// subscribed.
    pub max_new_groups_per_participant: u32,
}

impl Default for TableLimits {
    fn default() -> TableLimits {
        TableLimits {
            max_groups: 1 << 16,
            max_subscriptions: 1 << 18,
            max_subscriptions_per_participant: 4096,
            max_new_groups_per_participant: 1024,
        }
    }
}

/// What one port may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) subscriptions: u32,
    /// Groups that it was the first to subscribe to.
    pub(crate) new_groups: u32,
}

impl Most {
    /// No limit but the table's.
    pub(crate) const ANYTHING: Most = Most { subscriptions: u32::MAX, new_groups: u32::MAX };
}

/// A port's part of the table.
#[derive(Clone, Copy, Default)]
struct OfPort {
    newest: u32,
    count: u32,
    /// How many of its subscriptions are to groups that nobody had before it.
    new_groups: u32,
    comtree: ComtreeIndex,
}

/// The most groups that a table can be made for, of all data threads together.
const MOST_GROUPS: u32 = 1 << 28;
/// A group's members are looked through while there are no more than this, and looked up in an index
/// otherwise. Most groups are small, and changing one that is not indexed costs a third less.
const FEW_MEMBERS: u32 = 8;
/// When a sibling's subscription ends: it is told when it does.
const NEVER: u32 = u32::MAX;

/// Aligned, so that none lies in two cache lines: whoever changes a subscription waits for memory
/// more than for anything else.
#[repr(align(32))]
struct GroupEntry {
    comtree: Comtree,
    group: Group,
    /// The lists of members: participants and branches, and the relay's other data threads. The
    /// first is the next free entry where nobody uses this one.
    first: u32,
    first_sibling: u32,
    /// The number of the group's target while updates wait for it, otherwise [`NONE`].
    target: u32,
    /// The level up to which the members want updates, or a higher one, and what the other data threads
    /// were told of it.
    wanted: Wanted,
    told: Wanted,
    /// Whether the group is in the list of those to tell of.
    is_to_tell: bool,
    /// How many members the first list has, and whether they are indexed: once there were too many
    /// to look through, until none is left.
    members: u32,
    is_indexed: bool,
}

impl GroupEntry {
    /// The hash of comtree and group, from which the hash of every subscription is made.
    fn hash(&self, state: &KeyedState) -> u64 {
        state.hash_pair(self.comtree.0, self.group.number())
    }
}

/// The highest level that somebody wants; `None` if nobody wants any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted(Option<Level>);

/// Aligned for the same reason.
#[repr(align(32))]
struct Subscription {
    group: u32,
    /// [`NONE`] where there is none.
    port: PortIndex,
    next_of_group: u32,
    prev_of_group: u32,
    next_of_port: u32,
    prev_of_port: u32,
    /// Deciseconds since the origin.
    expires: u32,
    level: Level,
    /// Whether nobody had the group before.
    is_first: bool,
}

/// Where the subscription of a port to a group with many members is. Whoever looks for it touches
/// nothing else.
struct Pair {
    port: PortIndex,
    group: u32,
    subscription: u32,
}

/// Who is subscribed to what.
pub(crate) struct SubscriptionTable {
    /// Ports below this are the relay's data threads.
    siblings: u32,
    groups: Vec<GroupEntry>,
    max_groups: u32,
    free_group: u32,
    subscriptions: Vec<Subscription>,
    free_subscription: u32,
    /// What participants and branches have: their subscriptions, and the groups of these.
    of_comtrees: Shares,
    groups_of_comtrees: Shares,
    of_port: Vec<OfPort>,
    /// The indexes grow as they fill, on the way of a subscribe, never of an update: their entries
    /// are scattered, so reserved they would soon be resident whole.
    by_group: HashTable<u32>,
    by_pair: HashTable<Pair>,
    hash: KeyedState,
    sweep: u32,
    /// Groups of which the other data threads are to be told.
    to_tell: Vec<u32>,
}

impl SubscriptionTable {
    /// A table for ports numbered below `max_ports`, of which the first `siblings` are data
    /// threads. What those subscribe to has places of its own.
    pub(crate) fn new(
        limits: TableLimits,
        siblings: u16,
        max_ports: u32,
        key: &Tag,
    ) -> SubscriptionTable {
        let siblings = u32::from(siblings);
        let max_groups = limits.max_groups.saturating_mul(siblings.max(1)).min(MOST_GROUPS);
        let others = limits.max_groups.saturating_mul(siblings.saturating_sub(1)).min(MOST_GROUPS);
        let max_subscriptions = limits.max_subscriptions.saturating_add(others);
        SubscriptionTable {
            siblings,
            groups: Vec::with_capacity(max_groups as usize),
            max_groups,
            free_group: NONE,
            subscriptions: Vec::with_capacity(max_subscriptions as usize),
            free_subscription: NONE,
            of_comtrees: Shares::new(limits.max_subscriptions),
            groups_of_comtrees: Shares::new(limits.max_groups),
            of_port: vec![OfPort { newest: NONE, ..OfPort::default() }; max_ports as usize],
            by_group: HashTable::new(),
            by_pair: HashTable::new(),
            hash: KeyedState::new(key),
            sweep: 0,
            to_tell: Vec::with_capacity(if siblings > 1 { max_groups as usize } else { 0 }),
        }
    }

    /// How many subscriptions participants and branches have.
    pub(crate) fn live(&self) -> u32 {
        self.of_comtrees.total()
    }

    /// How many groups they are subscribed to.
    pub(crate) fn live_groups(&self) -> u32 {
        self.groups_of_comtrees.total()
    }

    /// So many comtrees share the table from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.of_comtrees.deal(comtrees);
        self.groups_of_comtrees.deal(comtrees);
    }

    /// A port is opened, on a comtree; it has no subscriptions.
    pub(crate) fn open_port(&mut self, port: PortIndex, comtree: ComtreeIndex) {
        self.of_port[port as usize].comtree = comtree;
    }

    /// The group's index, if it has subscribers or updates waiting.
    pub(crate) fn find_group(&self, comtree: Comtree, group: Group) -> Option<u32> {
        self.find_hashed(self.hash.hash_pair(comtree.0, group.number()), comtree, group)
    }

    /// Whether a group has members that wait for the flush.
    pub(crate) fn has_members(&self, group: u32) -> bool {
        self.groups[group as usize].first != NONE
    }

    /// The participants and branches of a group with their levels, latest first.
    pub(crate) fn members(&self, group: u32) -> impl Iterator<Item = (PortIndex, Level)> + '_ {
        self.list(self.groups[group as usize].first)
    }

    /// Which of the relay's other data threads want a group's updates of a level, a bit for each.
    pub(crate) fn siblings_that_want(&self, group: u32, level: Level) -> u64 {
        self.list(self.groups[group as usize].first_sibling)
            .filter(|(_, wanted)| *wanted >= level)
            .fold(0, |mask, (sibling, _)| mask | 1 << sibling)
    }

    fn list(&self, first: u32) -> impl Iterator<Item = (PortIndex, Level)> + '_ {
        core::iter::successors(self.subscriptions.get(first as usize), |member| {
            self.subscriptions.get(member.next_of_group as usize)
        })
        .map(|member| (member.port, member.level))
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

    /// Subscribes a participant or a branch, which may have at most so many, or refreshes.
    pub(crate) fn add(
        &mut self,
        (port, most): (PortIndex, Most),
        comtree: Comtree,
        group: Group,
        level: Level,
        expires: Time,
    ) -> Result<(), SubscribeRefusal> {
        self.insert((port, most), (comtree, group), level, deciseconds(expires))
    }

    /// Subscribes another data thread of the relay, until it says otherwise.
    pub(crate) fn add_sibling(
        &mut self,
        port: PortIndex,
        comtree: Comtree,
        group: Group,
        level: Level,
    ) -> Result<(), SubscribeRefusal> {
        self.insert((port, Most::ANYTHING), (comtree, group), level, NEVER)
    }

    /// Why a port that may have at most so many was refused a subscription.
    pub(crate) fn would_refuse(
        &self,
        port: PortIndex,
        most: Most,
        (comtree, group): (Comtree, Group),
    ) -> SubscribeRefusal {
        let is_first = self.find_group(comtree, group).is_none_or(|known| !self.has_members(known));
        self.may_add(port, most, is_first).err().unwrap_or(SubscribeRefusal::Table)
    }

    /// Whether a port may have one more subscription, which is the first to its group or not.
    fn may_add(&self, port: PortIndex, most: Most, is_first: bool) -> Result<(), SubscribeRefusal> {
        let of_port = &self.of_port[port as usize];
        if of_port.count >= most.subscriptions {
            return Err(SubscribeRefusal::Participant);
        }
        if is_first && of_port.new_groups >= most.new_groups {
            return Err(SubscribeRefusal::NewGroups);
        }
        let has_room = self.of_comtrees.has_room(of_port.comtree)
            && (!is_first || self.groups_of_comtrees.has_room(of_port.comtree));
        has_room.then_some(()).ok_or(SubscribeRefusal::Table)
    }

    fn insert(
        &mut self,
        (port, most): (PortIndex, Most),
        (comtree, group): (Comtree, Group),
        level: Level,
        expires: u32,
    ) -> Result<(), SubscribeRefusal> {
        let hash = self.hash.hash_pair(comtree.0, group.number());
        let known = self.find_hashed(hash, comtree, group);
        let is_sibling = port < self.siblings;
        if let Some(existing) = known.and_then(|known| self.find_pair(port, known)) {
            let subscription = &mut self.subscriptions[existing as usize];
            subscription.level = level;
            subscription.expires = expires;
            self.note_wanted(existing);
            return Ok(());
        }
        if !is_sibling {
            let is_first = known.is_none_or(|known| !self.has_members(known));
            self.may_add(port, most, is_first)?;
        }
        let group = match known {
            Some(known) => known,
            None => self.open_group(hash, comtree, group).ok_or(SubscribeRefusal::Table)?,
        };
        let subscription = self.link(port, group, level, expires);
        self.note_wanted(subscription);
        Ok(())
    }

    /// Whether the port is subscribed to the group.
    pub(crate) fn contains(&self, port: PortIndex, comtree: Comtree, group: Group) -> bool {
        self.find_group(comtree, group).is_some_and(|group| self.find_pair(port, group).is_some())
    }

    /// Unsubscribes; nothing happens if there is no such subscription.
    pub(crate) fn remove(&mut self, port: PortIndex, comtree: Comtree, group: Group) {
        let group = self.find_group(comtree, group);
        if let Some(subscription) = group.and_then(|group| self.find_pair(port, group)) {
            self.unlink(subscription);
        }
    }

    /// Ends all subscriptions of a port.
    pub(crate) fn remove_all(&mut self, port: PortIndex) {
        while self.of_port[port as usize].newest != NONE {
            self.unlink(self.of_port[port as usize].newest);
        }
    }

    /// Ends the subscriptions of a port that are not to be kept.
    pub(crate) fn keep_of_port(
        &mut self,
        port: PortIndex,
        mut keep: impl FnMut(Group, Level) -> bool,
    ) {
        let mut next = self.of_port[port as usize].newest;
        while next != NONE {
            let this = next;
            let Subscription { group, level, next_of_port, .. } = self.subscriptions[this as usize];
            next = next_of_port;
            if !keep(self.groups[group as usize].group, level) {
                self.unlink(this);
            }
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
            if subscription.port != NONE && subscription.expires < now {
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

    /// How many groups the other data threads are to be told of.
    pub(crate) fn changes_to_tell(&self) -> usize {
        self.to_tell.len()
    }

    /// The next group of which the other data threads are to be told, with the highest level that
    /// somebody here wants, if anybody wants it.
    pub(crate) fn next_to_tell(&mut self) -> Option<(Comtree, Group, Option<Level>)> {
        loop {
            let index = self.to_tell.pop()?;
            let entry = &mut self.groups[index as usize];
            entry.is_to_tell = false;
            let has_changed = entry.wanted != entry.told;
            entry.told = entry.wanted;
            let news = (entry.comtree, entry.group, entry.wanted.0);
            self.release_if_unused(index);
            if has_changed {
                return Some(news);
            }
        }
    }

    /// Raises what the group's members want to the level of this subscription. It only falls when the
    /// last member has gone, because the second highest level would have to be searched for. Until
    /// then this thread may be passed updates that none of its members' levels lets through.
    fn note_wanted(&mut self, subscription: u32) {
        if self.siblings > 1 {
            let Subscription { group, port, level, .. } = self.subscriptions[subscription as usize];
            if port >= self.siblings {
                let wanted = self.groups[group as usize].wanted.max(Wanted(Some(level)));
                self.set_wanted(group, wanted);
            }
        }
    }

    fn set_wanted(&mut self, group: u32, wanted: Wanted) {
        let entry = &mut self.groups[group as usize];
        entry.wanted = wanted;
        if wanted != entry.told && !entry.is_to_tell {
            entry.is_to_tell = true;
            self.to_tell.push(group);
        }
    }

    fn find_hashed(&self, hash: u64, comtree: Comtree, group: Group) -> Option<u32> {
        let same = |index: &u32| {
            let entry = &self.groups[*index as usize];
            entry.group == group && entry.comtree == comtree
        };
        self.by_group.find(hash, same).copied()
    }

    fn open_group(&mut self, hash: u64, comtree: Comtree, group: Group) -> Option<u32> {
        let entry = GroupEntry {
            comtree,
            group,
            first: NONE,
            first_sibling: NONE,
            target: NONE,
            wanted: Wanted::default(),
            told: Wanted::default(),
            is_to_tell: false,
            members: 0,
            is_indexed: false,
        };
        let index = if self.free_group != NONE {
            let index = self.free_group;
            self.free_group = self.groups[index as usize].first;
            self.groups[index as usize] = entry;
            index
        } else if (self.groups.len() as u32) < self.max_groups {
            self.groups.push(entry);
            self.groups.len() as u32 - 1
        } else {
            return None;
        };
        let (groups, state) = (&self.groups, &self.hash);
        let hash_of = |index: &u32| groups[*index as usize].hash(state);
        self.by_group.insert_unique(hash, index, hash_of);
        Some(index)
    }

    fn release_if_unused(&mut self, group: u32) {
        let entry = &self.groups[group as usize];
        let is_unused = entry.first == NONE
            && entry.first_sibling == NONE
            && entry.target == NONE
            && !entry.is_to_tell;
        if !is_unused {
            return;
        }
        if let Ok(found) = self.by_group.find_entry(entry.hash(&self.hash), |index| *index == group)
        {
            found.remove();
        }
        self.groups[group as usize].first = self.free_group;
        self.free_group = group;
    }

    fn find_pair(&self, port: PortIndex, group: u32) -> Option<u32> {
        let entry = &self.groups[group as usize];
        let is_sibling = port < self.siblings;
        if !is_sibling && entry.is_indexed {
            let hash = pair_hash(entry.hash(&self.hash), port);
            let found = self.by_pair.find(hash, |pair| pair.port == port && pair.group == group);
            return found.map(|pair| pair.subscription);
        }
        let mut member = if is_sibling { entry.first_sibling } else { entry.first };
        while let Some(subscription) = self.subscriptions.get(member as usize) {
            if subscription.port == port {
                return Some(member);
            }
            member = subscription.next_of_group;
        }
        None
    }

    /// Indexes a new member of a group, if the group has too many to look through; all of them when
    /// it comes to that.
    fn index_pair(&mut self, group: u32, subscription: u32) {
        let entry = &mut self.groups[group as usize];
        let to_index = match entry.members {
            0..=FEW_MEMBERS if !entry.is_indexed => return,
            _ if entry.is_indexed => 1,
            all => all,
        };
        entry.is_indexed = true;
        let (groups, state, mut index) = (&self.groups, &self.hash, subscription);
        for _ in 0..to_index {
            let Subscription { port, next_of_group, .. } = self.subscriptions[index as usize];
            let hash_of =
                |pair: &Pair| pair_hash(groups[pair.group as usize].hash(state), pair.port);
            let pair = Pair { port, group, subscription: index };
            self.by_pair.insert_unique(hash_of(&pair), pair, hash_of);
            index = next_of_group;
        }
    }

    fn link(&mut self, port: PortIndex, group: u32, level: Level, expires: u32) -> u32 {
        let is_sibling = port < self.siblings;
        let entry = &mut self.groups[group as usize];
        let first = if is_sibling { &mut entry.first_sibling } else { &mut entry.first };
        let of_port = &mut self.of_port[port as usize];
        let is_first = !is_sibling && *first == NONE;
        let subscription = Subscription {
            group,
            port,
            next_of_group: *first,
            prev_of_group: NONE,
            next_of_port: of_port.newest,
            prev_of_port: NONE,
            expires,
            level,
            is_first,
        };
        let (after_in_group, after_of_port) = (*first, of_port.newest);
        let index = match self.free_subscription {
            NONE => self.subscriptions.len() as u32,
            free => free,
        };
        *first = index;
        of_port.newest = index;
        of_port.count += 1;
        of_port.new_groups += u32::from(is_first);
        let comtree = of_port.comtree;
        entry.members += u32::from(!is_sibling);
        if !is_sibling {
            self.of_comtrees.take(comtree);
        }
        if is_first {
            self.groups_of_comtrees.take(comtree);
        }
        if index == self.free_subscription {
            self.free_subscription = self.subscriptions[index as usize].next_of_group;
            self.subscriptions[index as usize] = subscription;
        } else {
            self.subscriptions.push(subscription);
        }
        if let Some(after) = self.subscriptions.get_mut(after_in_group as usize) {
            after.prev_of_group = index;
        }
        if let Some(after) = self.subscriptions.get_mut(after_of_port as usize) {
            after.prev_of_port = index;
        }
        if !is_sibling {
            self.index_pair(group, index);
        }
        index
    }

    fn unlink(&mut self, index: u32) {
        let Subscription {
            group,
            port,
            next_of_group,
            prev_of_group,
            next_of_port,
            prev_of_port,
            is_first,
            ..
        } = self.subscriptions[index as usize];
        let is_sibling = port < self.siblings;
        let entry = &mut self.groups[group as usize];
        let first = if is_sibling { &mut entry.first_sibling } else { &mut entry.first };
        match self.subscriptions.get_mut(prev_of_group as usize) {
            Some(before) => before.next_of_group = next_of_group,
            None => *first = next_of_group,
        }
        let is_empty = *first == NONE;
        if !is_sibling {
            entry.members -= 1;
            if entry.is_indexed {
                let hash = pair_hash(entry.hash(&self.hash), port);
                if let Ok(pair) = self.by_pair.find_entry(hash, |pair| pair.subscription == index) {
                    pair.remove();
                }
                entry.is_indexed = entry.members > 0;
            }
        }
        if let Some(after) = self.subscriptions.get_mut(next_of_group as usize) {
            after.prev_of_group = prev_of_group;
        }
        match self.subscriptions.get_mut(prev_of_port as usize) {
            Some(before) => before.next_of_port = next_of_port,
            None => self.of_port[port as usize].newest = next_of_port,
        }
        if let Some(after) = self.subscriptions.get_mut(next_of_port as usize) {
            after.prev_of_port = prev_of_port;
        }
        self.subscriptions[index as usize].port = NONE;
        self.subscriptions[index as usize].next_of_group = self.free_subscription;
        self.free_subscription = index;
        let of_port = &mut self.of_port[port as usize];
        of_port.count -= 1;
        of_port.new_groups -= u32::from(is_first);
        let comtree = of_port.comtree;
        if !is_sibling {
            self.of_comtrees.give_back(comtree);
            if is_empty {
                self.groups_of_comtrees.give_back(comtree);
            }
            if is_empty && self.siblings > 1 {
                self.set_wanted(group, Wanted(None));
            }
        }
        self.release_if_unused(group);
    }
}

/// The hash of a port's subscription to the group that hashes to `group`, which is keyed already.
fn pair_hash(group: u64, port: PortIndex) -> u64 {
    fold(group ^ u64::from(port).rotate_left(32))
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

    fn table(max_groups: u32, max_subscriptions: u32) -> SubscriptionTable {
        let limits = TableLimits { max_groups, max_subscriptions, ..TableLimits::default() };
        SubscriptionTable::new(limits, 0, 24, &KEY)
    }

    fn at_most(subscriptions: u32) -> Most {
        Most { subscriptions, ..Most::ANYTHING }
    }

    fn members(table: &SubscriptionTable, group: u32) -> Vec<(PortIndex, Level)> {
        let found = table.find_group(COMTREE, Group::new(group));
        let mut members: Vec<_> = found.map_or(Vec::new(), |found| table.members(found).collect());
        members.sort_unstable();
        members
    }

    #[test]
    fn a_full_table_refuses_and_stays_whole() {
        let mut table = table(2, 3);
        let mut add = |port, group| {
            table.add(
                (port, at_most(2)),
                COMTREE,
                Group::new(group),
                Level(0),
                Time::from_millis(1000),
            )
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

    #[test]
    fn a_group_with_updates_waiting_is_not_given_to_another() {
        let mut table = table(4, 4);
        table.add((0, at_most(9)), COMTREE, Group::new(1), Level(0), Time::ZERO).unwrap();
        let group = table.find_group(COMTREE, Group::new(1)).unwrap();
        *table.target_mut(group) = 0;
        table.remove(0, COMTREE, Group::new(1));
        table.add((0, at_most(9)), COMTREE, Group::new(2), Level(0), Time::ZERO).unwrap();
        assert_ne!(table.find_group(COMTREE, Group::new(2)), Some(group));
        table.forget_target(group);
        assert_eq!(table.find_group(COMTREE, Group::new(1)), None);
    }

    #[test]
    fn what_is_not_refreshed_expires() {
        let mut table = table(8, 8);
        for group in 0..4 {
            let expires = Time::from_millis(1000 + 1000 * u64::from(group % 2));
            table.add((0, at_most(9)), COMTREE, Group::new(group), Level(0), expires).unwrap();
        }
        assert_eq!(table.expire(Time::from_millis(1500), 8), 2);
        assert_eq!(table.live(), 2);
        assert_eq!(members(&table, 1).len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(PortIndex, u32, u8),
        Remove(PortIndex, u32),
        RemoveAll(PortIndex),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..24, 0u32..6, 0u8..3).prop_map(|(s, g, l)| Step::Add(s, g, l)),
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
                    Step::Add(port, group, level) => {
                        table.add((port, at_most(64)), COMTREE, Group::new(group), Level(level), Time::ZERO).unwrap();
                        model.insert((group, port), Level(level));
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
                    .map(|((_, port), level)| (*port, *level)).collect();
                prop_assert_eq!(members(&table, group), expected);
            }
            prop_assert_eq!(table.live() as usize, model.len());
        }
    }
}
