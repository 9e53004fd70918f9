//! The groups of a table: entries that keep their places, and are found by comtree and number.
//!
//! A bucket for each hash names the first of its groups, and each group the next. A search touches
//! the bucket and the group, mostly, and a group comes and goes without looking for room.

use super::lists::{GroupEntry, Marks};
use crate::index::{NONE, fold_keyed};
use canopy_wire::{Comtree, Group, Tag};
use core::ops::{Index, IndexMut};

/// Buckets for each group that there is room for: with two, three of four groups have one for themselves.
const BUCKETS_A_GROUP: usize = 2;

/// The groups of a data thread.
pub(super) struct Groups {
    entries: Vec<GroupEntry>,
    /// The first entry of each bucket, of which there are a power of two. They grow as entries come: they are
    /// scattered, so reserved they would soon be resident whole.
    buckets: Vec<u32>,
    /// The first free entry; [`GroupEntry::next`] names the next.
    free: u32,
    key: [u64; 2],
}

impl Groups {
    /// No groups, with room for so many.
    pub(super) fn new(room: u32, key: &Tag) -> Groups {
        let (low, high) = key.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Groups {
            entries: Vec::with_capacity(room as usize),
            buckets: vec![NONE; BUCKETS_A_GROUP],
            free: NONE,
            key: [half(low), half(high)],
        }
    }

    /// How many there have been at most.
    pub(super) fn high_water(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The hash of a group, by which it is found.
    #[inline]
    pub(super) fn hash(&self, comtree: Comtree, group: Group) -> u64 {
        fold_keyed(u64::from(comtree.0) << 32 | u64::from(group.number()), self.key)
    }

    pub(super) fn hash_of(&self, place: u32) -> u64 {
        let GroupEntry { comtree, group, .. } = self[place];
        self.hash(comtree, group)
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The entry at a place, if it is somebody's.
    pub(super) fn get(&self, place: u32) -> Option<&GroupEntry> {
        self.entries.get(place as usize).filter(|entry| !entry.marks.has(Marks::FREE))
    }

    /// The places of all groups.
    pub(super) fn places(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.high_water()).filter(|place| self.get(*place).is_some())
    }

    /// The place of the group that hashes to this.
    #[inline]
    pub(super) fn find(&self, hash: u64, comtree: Comtree, group: Group) -> Option<u32> {
        let mut place = self.buckets[self.bucket(hash)];
        while let Some(entry) = self.entries.get(place as usize) {
            if entry.group == group && entry.comtree == comtree {
                return Some(place);
            }
            place = entry.next;
        }
        None
    }

    /// Takes a group that is not there yet, and hashes to this, unless `most` places are in use.
    pub(super) fn insert(&mut self, hash: u64, entry: GroupEntry, most: u32) -> Option<u32> {
        let place = if self.free != NONE {
            let place = self.free;
            self.free = self[place].next;
            self[place] = entry;
            place
        } else if self.high_water() < most {
            self.entries.push(entry);
            self.grow_buckets();
            self.high_water() - 1
        } else {
            return None;
        };
        let bucket = self.bucket(hash);
        self[place].next = core::mem::replace(&mut self.buckets[bucket], place);
        Some(place)
    }

    /// More buckets, if there are too few; all groups but the newest one, which is in none yet, move.
    fn grow_buckets(&mut self) {
        if self.entries.len() * BUCKETS_A_GROUP <= self.buckets.len() {
            return;
        }
        self.buckets = vec![NONE; self.buckets.len() * 2];
        for place in 0..self.high_water() - 1 {
            // None is free: places of those that left are taken first.
            let bucket = self.bucket(self.hash_of(place));
            self[place].next = core::mem::replace(&mut self.buckets[bucket], place);
        }
    }

    /// Frees the place of a group, which hashes to this.
    pub(super) fn remove(&mut self, hash: u64, place: u32) {
        let after = self[place].next;
        let bucket = self.bucket(hash);
        let mut before = self.buckets[bucket];
        if before == place {
            self.buckets[bucket] = after;
        } else {
            while self[before].next != place {
                before = self[before].next;
            }
            self[before].next = after;
        }
        let free = core::mem::replace(&mut self.free, place);
        (self[place].next, self[place].marks) = (free, Marks::FREE);
    }
}

impl Index<u32> for Groups {
    type Output = GroupEntry;

    #[inline]
    fn index(&self, place: u32) -> &GroupEntry {
        &self.entries[place as usize]
    }
}

impl IndexMut<u32> for Groups {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut GroupEntry {
        &mut self.entries[place as usize]
    }
}
