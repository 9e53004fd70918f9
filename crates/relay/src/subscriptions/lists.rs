//! The table's entries: how they are linked with each other and found again.

use super::SubscriptionTable;
use crate::index::{ComtreeIndex, NONE, PortIndex, fold};
use canopy_wire::{Comtree, Group, Level, Weight};

/// A group's members are looked through while there are no more than this, and looked up in an index
/// otherwise. Most groups are small, and changing one that is not indexed costs a third less.
pub(super) const FEW_MEMBERS: u32 = 8;

/// A port's part of the table.
#[derive(Clone, Copy, Default)]
pub(super) struct OfPort {
    pub(super) newest: u32,
    pub(super) count: u32,
    /// How many of its subscriptions are to groups that nobody had before it.
    pub(super) new_groups: u32,
    pub(super) comtree: ComtreeIndex,
    /// All of its subscriptions in brief, and whether they have changed since.
    pub(super) interests: u64,
    pub(super) has_changed: bool,
}

/// Aligned, so that none lies in two cache lines: whoever changes a subscription waits for memory
/// more than for anything else.
#[repr(align(32))]
pub(super) struct GroupEntry {
    pub(super) comtree: Comtree,
    pub(super) group: Group,
    /// The next in its bucket of [`super::groups::Groups`], or the next that is free.
    pub(super) next: u32,
    /// The lists of members: participants and branches, and the relay's other data threads.
    pub(super) first: u32,
    pub(super) first_sibling: u32,
    /// The number of the group's target while updates wait for it, otherwise [`NONE`].
    pub(super) target: u32,
    /// How many members the first list has; [`NONE`] where the place is nobody's.
    pub(super) members: u32,
    /// By [`Of`]: each holds where the group has its mark.
    levels: [Level; 3],
    pub(super) marks: Marks,
}

/// What is so of a group: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(u8);

impl Marks {
    /// It is in the list of those of which other data threads are to be told.
    pub(super) const TO_TELL: Marks = Marks(1);
    /// Its members are indexed: once there were too many to look through, until none is left.
    pub(super) const INDEXED: Marks = Marks(2);
    /// It is in the list of those that the parent may have to be asked for.
    pub(super) const TO_ASK: Marks = Marks(4);
    /// The parent has not acknowledged yet what it was asked last.
    pub(super) const ASKING: Marks = Marks(8);
    /// The parent is to be asked again, even if nothing has changed.
    pub(super) const REFRESH: Marks = Marks(16);

    pub(super) fn has(self, any_of: Marks) -> bool {
        self.0 & any_of.0 != 0
    }

    pub(super) fn set(&mut self, mark: Marks, on: bool) {
        self.0 = if on { self.0 | mark.0 } else { self.0 & !mark.0 };
    }

    pub(super) const fn or(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }
}

const _: () = assert!(size_of::<GroupEntry>() == 32);

impl GroupEntry {
    /// A group that nobody has yet.
    pub(super) fn new(comtree: Comtree, group: Group) -> GroupEntry {
        GroupEntry {
            comtree,
            group,
            next: NONE,
            first: NONE,
            first_sibling: NONE,
            target: NONE,
            members: 0,
            levels: [Level(0); 3],
            marks: Marks::default(),
        }
    }

    /// Whether the place is nobody's.
    pub(super) fn is_free(&self) -> bool {
        self.members == NONE
    }

    /// One of its levels.
    pub(super) fn level(&self, of: Of) -> Wanted {
        Wanted(self.marks.has(of.mark()).then(|| self.levels[of as usize]))
    }

    pub(super) fn set_level(&mut self, of: Of, level: Wanted) {
        self.levels[of as usize] = level.0.unwrap_or_default();
        self.marks.set(of.mark(), level.0.is_some());
    }
}

/// The levels of a group.
#[derive(Clone, Copy)]
pub(super) enum Of {
    /// Up to which its members want updates, or a higher one.
    Members,
    /// What the other data threads were told of that.
    Told,
    /// Up to which the parent was asked for updates.
    Asked,
}

impl Of {
    /// Set where there is such a level.
    const fn mark(self) -> Marks {
        Marks(32 << self as u8)
    }
}

/// What others were told that a group weighs, beside its entry: where there is nobody to tell, it takes no room.
#[derive(Clone, Copy)]
pub(super) struct Weighed {
    /// The other data threads.
    pub(super) told: Weight,
    /// The parent.
    pub(super) asked: Weight,
}

impl Weighed {
    /// They were told nothing.
    pub(super) const NOTHING: Weighed = Weighed { told: Weight::ONE, asked: Weight::ONE };
}

/// The highest level that somebody wants; `None` if nobody wants any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted(pub(super) Option<Level>);

/// Aligned for the same reason.
#[repr(align(32))]
pub(super) struct Subscription {
    pub(super) group: u32,
    /// [`NONE`] where there is none.
    pub(super) port: PortIndex,
    pub(super) next_of_group: u32,
    pub(super) prev_of_group: u32,
    pub(super) next_of_port: u32,
    pub(super) prev_of_port: u32,
    /// Deciseconds since the origin.
    pub(super) expires: u32,
    pub(super) level: Level,
    /// How much the group matters to the subscriber.
    pub(super) weight: Weight,
    /// Whether nobody had the group before.
    pub(super) is_first: bool,
}

/// Where the subscription of a port to a group with many members is. Whoever looks for it touches
/// nothing else.
pub(super) struct Pair {
    pub(super) port: PortIndex,
    pub(super) group: u32,
    pub(super) subscription: u32,
}

impl SubscriptionTable {
    /// A new group for a port, if there is room. What other data threads want was counted where their members
    /// are; a group that they gave up stays here until its updates have left and the parent has answered.
    /// So they have as much room again.
    pub(super) fn open_group(
        &mut self,
        hash: u32,
        (comtree, group): (Comtree, Group),
        port: PortIndex,
    ) -> Option<u32> {
        let most = if port < self.siblings { 2 * self.max_groups } else { self.max_groups };
        self.groups.insert(hash, GroupEntry::new(comtree, group), most)
    }

    pub(super) fn release_if_unused(&mut self, group: u32) {
        if self.is_unused(group) {
            self.groups.remove(self.groups.hash_of(group), group);
        }
    }

    fn is_unused(&self, group: u32) -> bool {
        let entry = &self.groups[group];
        !entry.is_free()
            && entry.first == NONE
            && entry.first_sibling == NONE
            && entry.target == NONE
            && entry.level(Of::Asked).0.is_none()
            && !entry.marks.has(Marks::TO_TELL.or(Marks::TO_ASK).or(Marks::ASKING))
    }

    pub(super) fn find_pair(&self, port: PortIndex, group: u32) -> Option<u32> {
        let entry = &self.groups[group];
        let is_sibling = port < self.siblings;
        if !is_sibling && entry.marks.has(Marks::INDEXED) {
            let hash = pair_hash(self.groups.hash_of(group), port);
            let found = self.by_pair.find(hash, |pair| pair.port == port && pair.group == group);
            return found.map(|pair| pair.subscription);
        }
        let mut member = self.latest(port, group);
        while let Some(subscription) = self.subscriptions.get(member as usize) {
            if subscription.port == port {
                return Some(member);
            }
            member = subscription.next_of_group;
        }
        None
    }

    /// The latest to have come of the list of a group that a port is in.
    pub(super) fn latest(&self, port: PortIndex, group: u32) -> u32 {
        let entry = &self.groups[group];
        if port < self.siblings { entry.first_sibling } else { entry.first }
    }

    /// Indexes a new member of a group, if the group has too many to look through; all of them when
    /// it comes to that.
    fn index_pair(&mut self, group: u32, subscription: u32) {
        let entry = &mut self.groups[group];
        let to_index = match entry.members {
            0..=FEW_MEMBERS if !entry.marks.has(Marks::INDEXED) => return,
            _ if entry.marks.has(Marks::INDEXED) => 1,
            all => all,
        };
        entry.marks.set(Marks::INDEXED, true);
        let (groups, mut index) = (&self.groups, subscription);
        for _ in 0..to_index {
            let Subscription { port, next_of_group, .. } = self.subscriptions[index as usize];
            let hash_of = |pair: &Pair| pair_hash(groups.hash_of(pair.group), pair.port);
            let pair = Pair { port, group, subscription: index };
            self.by_pair.insert_unique(hash_of(&pair), pair, hash_of);
            index = next_of_group;
        }
    }

    pub(super) fn link(
        &mut self,
        port: PortIndex,
        group: u32,
        (level, weight): (Level, Weight),
        expires: u32,
    ) -> u32 {
        let is_sibling = port < self.siblings;
        let entry = &mut self.groups[group];
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
            weight,
            is_first,
        };
        let (after_in_group, after_of_port) = (*first, of_port.newest);
        let index = match self.free_subscription {
            NONE => self.subscriptions.len() as u32,
            free => free,
        };
        *first = index;
        of_port.newest = index;
        of_port.has_changed = true;
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

    pub(super) fn unlink(&mut self, index: u32) {
        let group = self.subscriptions[index as usize].group;
        self.unlink_hashed(index, self.groups.hash_of(group));
    }

    /// Ends a subscription to a group whose hash this is.
    pub(super) fn unlink_hashed(&mut self, index: u32, hash: u32) {
        let Subscription {
            group,
            port,
            next_of_group,
            prev_of_group,
            next_of_port,
            prev_of_port,
            is_first,
            level,
            ..
        } = self.subscriptions[index as usize];
        let is_sibling = port < self.siblings;
        let entry = &mut self.groups[group];
        let first = if is_sibling { &mut entry.first_sibling } else { &mut entry.first };
        match self.subscriptions.get_mut(prev_of_group as usize) {
            Some(before) => before.next_of_group = next_of_group,
            None => *first = next_of_group,
        }
        let is_empty = *first == NONE;
        if !is_sibling {
            entry.members -= 1;
            if entry.marks.has(Marks::INDEXED) {
                let of_pair = pair_hash(hash, port);
                if let Ok(pair) =
                    self.by_pair.find_entry(of_pair, |pair| pair.subscription == index)
                {
                    pair.remove();
                }
                entry.marks.set(Marks::INDEXED, entry.members > 0);
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
        of_port.has_changed = true;
        of_port.count -= 1;
        of_port.new_groups -= u32::from(is_first);
        let comtree = of_port.comtree;
        if !is_sibling {
            self.of_comtrees.give_back(comtree);
            if is_empty {
                self.groups_of_comtrees.give_back(comtree);
            }
        }
        self.member_gone(group, is_sibling, level);
        if self.is_unused(group) {
            self.groups.remove(hash, group);
        }
    }
}

/// The hash of a port's subscription to the group that hashes to `group`, which is keyed already.
fn pair_hash(group: u32, port: PortIndex) -> u64 {
    fold(u64::from(port) << 32 | u64::from(group))
}
