//! Who is subscribed to what: groups, each with a list of members; ports, each with a list of
//! groups. Bounded, soft state: what is not refreshed is swept.
//!
//! The relay's other data threads are members like any other port, but in a list of their own: what
//! they want is passed to them when it arrives, what others want waits for the flush.

mod groups;
mod limits;
mod lists;
mod search;
#[cfg(test)]
mod tests;
mod upwards;

use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::shares::Shares;
use canopy_session::{KeyedState, derive};
use canopy_wire::{Comtree, Group, Level, SubscribeRefusal, Tag, Time, Weight};
use core::hash::BuildHasher;
use groups::Groups;
use hashbrown::HashTable;
pub(crate) use limits::Most;
pub use limits::TableLimits;
use lists::{FEW_MEMBERS, Marks, Of, OfPort, Pair, Subscription, Wanted, Weighed};
pub(crate) use search::Found;
pub(crate) use upwards::GroupIndex;
use upwards::Upwards;

/// The most groups that a table can be made for, of all data threads together.
const MOST_GROUPS: u32 = 1 << 28;
/// When a sibling's subscription ends: it is told when it does.
const NEVER: u32 = u32::MAX;

/// Up to which level somebody wants a group, and what it weighs, if anybody does.
pub(crate) type Interest = Option<(Level, Weight)>;

/// Who is subscribed to what.
pub(crate) struct SubscriptionTable {
    /// Ports below this are the relay's data threads.
    siblings: u32,
    groups: Groups,
    max_groups: u32,
    subscriptions: Vec<Subscription>,
    free_subscription: u32,
    /// What participants and branches have: their subscriptions, and the groups of these.
    of_comtrees: Shares,
    groups_of_comtrees: Shares,
    of_port: Vec<OfPort>,
    /// The index grows as it fills, on the way of a subscribe, never of an update: its entries
    /// are scattered, so reserved they would soon be resident whole.
    by_pair: HashTable<Pair>,
    hash: KeyedState,
    sweep: u32,
    /// Groups of which the other data threads are to be told.
    to_tell: Vec<u32>,
    /// By group: what others were told that it weighs, where there is anybody to tell.
    weighed: Vec<Weighed>,
    /// Changes of weights, of which those to large groups are looked at now and then only.
    weights_changed: u32,
    /// The comtrees of which this data thread has the branch towards the core, in order.
    upwards: Vec<Upwards>,
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
            groups: Groups::new(max_groups, groups_secret(key)),
            max_groups,
            subscriptions: Vec::with_capacity(max_subscriptions as usize),
            free_subscription: NONE,
            of_comtrees: Shares::new(limits.max_subscriptions),
            groups_of_comtrees: Shares::new(limits.max_groups),
            of_port: vec![OfPort { newest: NONE, ..OfPort::default() }; max_ports as usize],
            by_pair: HashTable::new(),
            hash: KeyedState::new(key),
            sweep: 0,
            to_tell: Vec::with_capacity(if siblings > 1 { max_groups as usize } else { 0 }),
            weighed: Vec::new(),
            weights_changed: 0,
            upwards: Vec::new(),
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

    /// Sets how many comtrees share the table from now on.
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
        self.groups.find(self.groups.hash(comtree, group), comtree, group)
    }

    /// Whether a group has members that wait for the flush.
    pub(crate) fn has_members(&self, group: u32) -> bool {
        self.groups[group].first != NONE
    }

    /// The participants and branches of a group with their levels and weights, latest first.
    pub(crate) fn members(
        &self,
        group: u32,
    ) -> impl Iterator<Item = (PortIndex, Level, Weight)> + '_ {
        self.list(self.groups[group].first)
    }

    /// The groups that somebody here is subscribed to, with their numbers.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (Comtree, Group, u32)> + '_ {
        let subscribed = self.groups.places().filter(|place| self.has_members(*place));
        subscribed.map(|place| {
            let entry = &self.groups[place];
            (entry.comtree, entry.group, place)
        })
    }

    /// What a port is subscribed to, with comtree, levels and weights, in brief: the same for ports that are
    /// subscribed alike. It is keyed, so that nobody can choose subscriptions that look like another's.
    pub(crate) fn interests(&mut self, port: PortIndex) -> u64 {
        let of_port = &self.of_port[port as usize];
        if !of_port.has_changed {
            return of_port.interests;
        }
        let (mut interests, mut next) = (0, of_port.newest);
        while let Some(one) = self.subscriptions.get(next as usize) {
            let wanted = u32::from(one.level.0) << 8 | u32::from(one.weight.0);
            // Its number in the table may be another group's later, and the port subscribed to that.
            let of = &self.groups[one.group];
            let hash = self.hash.hash_one((of.comtree.0, of.group.number(), wanted));
            interests = u64::wrapping_add(interests, hash);
            next = one.next_of_port;
        }
        let of_port = &mut self.of_port[port as usize];
        (of_port.interests, of_port.has_changed) = (interests, false);
        interests
    }

    /// How many groups a port is subscribed to.
    pub(crate) fn count_of(&self, port: PortIndex) -> u32 {
        self.of_port[port as usize].count
    }

    /// Which of the relay's other data threads want a group's updates of a level, a bit for each.
    pub(crate) fn siblings_that_want(&self, group: u32, level: Level) -> u64 {
        self.list(self.groups[group].first_sibling)
            .filter(|(_, wanted, _)| *wanted >= level)
            .fold(0, |mask, (sibling, ..)| mask | 1 << sibling)
    }

    fn list(&self, first: u32) -> impl Iterator<Item = (PortIndex, Level, Weight)> + '_ {
        core::iter::successors(self.subscriptions.get(first as usize), |member| {
            self.subscriptions.get(member.next_of_group as usize)
        })
        .map(|member| (member.port, member.level, member.weight))
    }

    /// Where the group remembers its target of this flush.
    pub(crate) fn target_mut(&mut self, group: u32) -> &mut u32 {
        &mut self.groups[group].target
    }

    /// The flush is over: the group has no target, and goes if it has no subscribers either.
    pub(crate) fn forget_target(&mut self, group: u32) {
        self.groups[group].target = NONE;
        self.release_if_unused(group);
    }

    /// Subscribes a participant or a branch, which may have at most so many, or refreshes.
    pub(crate) fn add(
        &mut self,
        (port, most): (PortIndex, Most),
        comtree: Comtree,
        group: Group,
        wanted: (Level, Weight),
        expires: Time,
    ) -> Result<(), SubscribeRefusal> {
        self.add_found(most, &self.find_alone(port, comtree, group), wanted, expires)
    }

    /// The same for what was looked up.
    pub(crate) fn add_found(
        &mut self,
        most: Most,
        found: &Found,
        wanted: (Level, Weight),
        expires: Time,
    ) -> Result<(), SubscribeRefusal> {
        self.insert(most, found, wanted, deciseconds(expires))
    }

    /// Subscribes another data thread of the relay, until it says otherwise.
    pub(crate) fn add_sibling(
        &mut self,
        port: PortIndex,
        comtree: Comtree,
        group: Group,
        wanted: (Level, Weight),
    ) -> Result<(), SubscribeRefusal> {
        self.insert(Most::ANYTHING, &self.find_alone(port, comtree, group), wanted, NEVER)
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
        most: Most,
        found: &Found,
        (level, weight): (Level, Weight),
        expires: u32,
    ) -> Result<(), SubscribeRefusal> {
        let port = found.port;
        let is_sibling = port < self.siblings;
        let (known, existing) = self.find_now(found);
        if let Some(existing) = existing {
            let subscription = &mut self.subscriptions[existing as usize];
            subscription.expires = expires;
            let weight_before = core::mem::replace(&mut subscription.weight, weight);
            let before = core::mem::replace(&mut subscription.level, level);
            if weight_before != weight || before != level {
                self.of_port[port as usize].has_changed = true;
            }
            if before != level {
                self.level_changed(existing, before);
            }
            if weight_before != weight {
                self.weight_changed(self.subscriptions[existing as usize].group);
            }
            return Ok(());
        }
        if !is_sibling {
            let is_first = known.is_none_or(|known| !self.has_members(known));
            self.may_add(port, most, is_first)?;
        }
        let group = match known {
            Some(known) => known,
            None => self
                .open_group(found.hash, (found.comtree, found.group), port)
                .ok_or(SubscribeRefusal::Table)?,
        };
        let subscription = self.link(port, group, (level, weight), expires);
        self.member_came(subscription);
        Ok(())
    }

    /// Up to which level, and with what weight, the port is subscribed to the group, if it is.
    pub(crate) fn wanted_by(
        &self,
        port: PortIndex,
        comtree: Comtree,
        group: Group,
    ) -> Option<(Level, Weight)> {
        let subscription = self.find_pair(port, self.find_group(comtree, group)?)?;
        let Subscription { level, weight, .. } = self.subscriptions[subscription as usize];
        Some((level, weight))
    }

    /// Whether the port is subscribed to the group.
    pub(crate) fn contains(&self, port: PortIndex, comtree: Comtree, group: Group) -> bool {
        self.find_group(comtree, group).is_some_and(|group| self.find_pair(port, group).is_some())
    }

    /// Unsubscribes; nothing happens if there is no such subscription.
    pub(crate) fn remove(&mut self, port: PortIndex, comtree: Comtree, group: Group) {
        self.remove_found(&self.find_alone(port, comtree, group));
    }

    /// The same for what was looked up.
    pub(crate) fn remove_found(&mut self, found: &Found) {
        if let (_, Some(subscription)) = self.find_now(found) {
            self.unlink_hashed(subscription, found.hash);
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
            if !keep(self.groups[group].group, level) {
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
    /// somebody here wants and the sum of the weights, if anybody wants it.
    pub(crate) fn next_to_tell(&mut self) -> Option<(Comtree, Group, Interest)> {
        loop {
            let index = self.to_tell.pop()?;
            let weight = self.weight_of_members(index);
            let entry = &mut self.groups[index];
            entry.marks.set(Marks::TO_TELL, false);
            let (wanted, told) = (entry.level(Of::Members), entry.level(Of::Told));
            entry.set_level(Of::Told, wanted);
            let news = (entry.comtree, entry.group, wanted.0.map(|level| (level, weight)));
            let weighed = core::mem::replace(&mut self.weighed_mut(index).told, weight);
            let has_changed = wanted != told || wanted.0.is_some() && weight.is_far_from(weighed);
            self.release_if_unused(index);
            if has_changed {
                return Some(news);
            }
        }
    }

    /// Whether anybody is told what the members of groups want.
    fn says_what_is_wanted(&self) -> bool {
        self.siblings > 1 || !self.upwards.is_empty()
    }

    /// A group has a member more.
    fn member_came(&mut self, subscription: u32) {
        if self.says_what_is_wanted() {
            let Subscription { group, port, level, .. } = self.subscriptions[subscription as usize];
            if port < self.siblings {
                self.note_asked(group);
            } else {
                let wanted = self.groups[group].level(Of::Members);
                self.set_wanted(group, wanted.max(Wanted(Some(level))));
            }
            self.weight_changed(group);
        }
    }

    /// A member's level is another than before.
    fn level_changed(&mut self, subscription: u32, before: Level) {
        self.member_came(subscription);
        let Subscription { group, port, .. } = self.subscriptions[subscription as usize];
        self.member_gone(group, port < self.siblings, before);
    }

    /// A group has a member less, or one whose level was this.
    fn member_gone(&mut self, group: u32, is_sibling: bool, level: Level) {
        if !self.says_what_is_wanted() {
            return;
        }
        self.weight_changed(group);
        if is_sibling {
            return self.note_asked(group);
        }
        let entry = &self.groups[group];
        // Among many, whoever wants the most now would have to be searched for: that is done now and then
        // only, and once they are few. Until then some updates come that no member's level lets through.
        let is_to_be_found = match entry.members {
            0..FEW_MEMBERS => entry.level(Of::Members) == Wanted(Some(level)),
            FEW_MEMBERS => true,
            many => self.weights_changed.is_multiple_of(many / FEW_MEMBERS),
        };
        if is_to_be_found {
            let wanted = self.highest(group);
            self.set_wanted(group, wanted);
        }
    }

    /// The highest level that a participant or a branch wants.
    fn highest(&self, group: u32) -> Wanted {
        Wanted(self.members(group).map(|(_, level, _)| level).max())
    }

    fn set_wanted(&mut self, group: u32, wanted: Wanted) {
        let entry = &mut self.groups[group];
        entry.set_level(Of::Members, wanted);
        if self.siblings > 1 && wanted != entry.level(Of::Told) {
            self.list_to_tell(group);
        }
        self.note_asked(group);
    }

    fn list_to_tell(&mut self, group: u32) {
        let entry = &mut self.groups[group];
        if !entry.marks.has(Marks::TO_TELL) {
            entry.marks.set(Marks::TO_TELL, true);
            self.to_tell.push(group);
        }
    }

    /// What the members of a group weigh together is another than before, perhaps. Whoever is told of it
    /// hears so once it is far from what was told. Of many members that is added up now and then only.
    fn weight_changed(&mut self, group: u32) {
        if !self.says_what_is_wanted() {
            return;
        }
        self.weights_changed = self.weights_changed.wrapping_add(1);
        let members = self.groups[group].members;
        if members > FEW_MEMBERS && !self.weights_changed.is_multiple_of(members / FEW_MEMBERS) {
            return;
        }
        if self.siblings > 1 && members > 0 {
            let weight = self.weight_of_members(group);
            if weight.is_far_from(self.weighed(group).told) {
                self.list_to_tell(group);
            }
        }
        self.note_weight_asked(group);
    }

    /// What the participants and branches that are members of a group weigh together.
    fn weight_of_members(&self, group: u32) -> Weight {
        self.sum_of_weights(self.groups[group].first, &[], 0.0)
    }

    /// The sum of the weights of a list of members but these, and of what is there already.
    fn sum_of_weights(&self, first: u32, but: &[PortIndex], more: f32) -> Weight {
        let mut sum = more;
        for (_, _, weight) in self.list(first).filter(|(port, ..)| !but.contains(port)) {
            if weight.is_important() {
                return weight;
            }
            sum += weight.value();
        }
        Weight::nearest(sum)
    }

    /// What others were told that a group weighs.
    fn weighed(&self, group: u32) -> Weighed {
        self.weighed.get(group as usize).copied().unwrap_or(Weighed::NOTHING)
    }

    fn weighed_mut(&mut self, group: u32) -> &mut Weighed {
        let group = group as usize;
        if group >= self.weighed.len() {
            // At once for all, so that growth leaves nothing behind.
            self.weighed.reserve((self.max_groups as usize).saturating_sub(self.weighed.len()));
            self.weighed.resize(group + 1, Weighed::NOTHING);
        }
        &mut self.weighed[group]
    }
}

/// The secret of the hashes of groups. It is no other table's: they are made for speed, and could give it away.
fn groups_secret(key: &Tag) -> [u64; 2] {
    let secret = derive(key, b"canopy groups");
    let half = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    [half(&secret[..8]), half(&secret[8..16])]
}

fn deciseconds(time: Time) -> u32 {
    (time.as_nanos() / 100_000_000) as u32
}
