//! The groups of a table: entries that keep their places, and are found by comtree and number.
//!
//! A bucket for each hash names the first of its groups, and each group the next. A search touches
//! the bucket and the group, mostly, and a group comes and goes without looking for room. Sixteen groups whose numbers
//! follow one another have buckets in one cache line: who walks through areas changes such ones together.

use super::lists::GroupEntry;
use crate::index::{NONE, fold_keyed};
use canopy_wire::{Comtree, Group};
use core::hint::select_unpredictable;
use core::ops::{Index, IndexMut};

/// Buckets for each group, at least: with two, four of five groups are the first of theirs.
const BUCKETS_A_GROUP: usize = 2;

/// Buckets in a cache line.
const WIDTH: usize = 16;

#[derive(Clone)]
#[repr(align(64))]
struct Line([u32; WIDTH]);

impl Line {
    const EMPTY: Line = Line([NONE; WIDTH]);
}

/// The groups of a data thread.
pub(super) struct Groups {
    entries: Vec<GroupEntry>,
    /// The first entry of each bucket, in a power of two of lines. Memory for all is reserved, and taken as entries
    /// come: groups are scattered over the lines that there are.
    lines: Vec<Line>,
    /// The first free entry; [`GroupEntry::next`] names the next.
    free: u32,
    secret: [u64; 2],
}

impl Groups {
    /// No groups, with room for so many.
    pub(super) fn new(room: u32, secret: [u64; 2]) -> Groups {
        let mut lines = Vec::with_capacity(lines_for(room as usize));
        lines.push(Line::EMPTY);
        Groups { entries: Vec::with_capacity(room as usize), lines, free: NONE, secret }
    }

    /// How many there have been at most.
    pub(super) fn high_water(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The hash of a group, by which it is found. Its lowest bits say where in a line, and there those of one line
    /// differ; which line, and who has which place, nobody can aim at without the secret.
    #[inline]
    pub(super) fn hash(&self, comtree: Comtree, group: Group) -> u32 {
        let (line, within) = (group.number() / WIDTH as u32, group.number() % WIDTH as u32);
        let spread = fold_keyed(u64::from(comtree.0) << 32 | u64::from(line), self.secret);
        let turned = (spread >> 32) as u32 % WIDTH as u32;
        spread as u32 & !(WIDTH as u32 - 1) | within ^ turned
    }

    pub(super) fn hash_of(&self, place: u32) -> u32 {
        let GroupEntry { comtree, group, .. } = self[place];
        self.hash(comtree, group)
    }

    /// The line and the place in it of a bucket.
    fn bucket(&self, hash: u32) -> (usize, usize) {
        ((hash as usize / WIDTH) & (self.lines.len() - 1), hash as usize % WIDTH)
    }

    fn bucket_mut(&mut self, hash: u32) -> &mut u32 {
        let (line, within) = self.bucket(hash);
        &mut self.lines[line].0[within]
    }

    /// The entry at a place, if it is somebody's.
    pub(super) fn get(&self, place: u32) -> Option<&GroupEntry> {
        self.entries.get(place as usize).filter(|entry| !entry.is_free())
    }

    /// The places of all groups.
    pub(super) fn places(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.high_water()).filter(|place| self.get(*place).is_some())
    }

    /// The place of the group that hashes to this.
    #[inline]
    pub(super) fn find(&self, hash: u32, comtree: Comtree, group: Group) -> Option<u32> {
        let mut place = self.first(hash);
        while let Some(entry) = self.entries.get(place as usize) {
            if entry.group == group && entry.comtree == comtree {
                return Some(place);
            }
            place = entry.next;
        }
        None
    }

    /// The place of the first group of the bucket of a hash; [`NONE`] if it has none.
    #[inline]
    pub(super) fn first(&self, hash: u32) -> u32 {
        let (line, within) = self.bucket(hash);
        self.lines[line].0[within]
    }

    /// The place, if the group is there, and else the next of its bucket.
    #[inline]
    pub(super) fn step(&self, place: u32, comtree: Comtree, group: Group) -> u32 {
        let Some(entry) = self.near(place) else { return NONE };
        let stays = (entry.group == group) & (entry.comtree == comtree) | (place == NONE);
        select_unpredictable(stays, place, entry.next)
    }

    /// The first member of a group that is at a place, if any is; [`NONE`] if not.
    #[inline]
    pub(super) fn first_member(&self, place: u32) -> u32 {
        let Some(entry) = self.near(place) else { return NONE };
        select_unpredictable(place == NONE, NONE, entry.first)
    }

    /// The entry at a place, or another one for [`NONE`]: to look there anyway is faster than to decide.
    fn near(&self, place: u32) -> Option<&GroupEntry> {
        self.entries.get((place as usize).min(self.entries.len().saturating_sub(1)))
    }

    /// Takes a group that is not there yet, and hashes to this, unless `most` places are in use.
    pub(super) fn insert(&mut self, hash: u32, entry: GroupEntry, most: u32) -> Option<u32> {
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
        self[place].next = core::mem::replace(self.bucket_mut(hash), place);
        Some(place)
    }

    /// More buckets, if there are too few; all groups but the newest one, which is in none yet, move.
    fn grow_buckets(&mut self) {
        let lines = lines_for(self.entries.len());
        if lines <= self.lines.len() {
            return;
        }
        self.lines.clear();
        self.lines.resize(lines, Line::EMPTY);
        for place in 0..self.high_water() - 1 {
            // None is free: places of those that left are taken first.
            let hash = self.hash_of(place);
            self[place].next = core::mem::replace(self.bucket_mut(hash), place);
        }
    }

    /// Frees the place of a group, which hashes to this.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let after = self[place].next;
        let mut before = self.first(hash);
        if before == place {
            *self.bucket_mut(hash) = after;
        } else {
            while self[before].next != place {
                before = self[before].next;
            }
            self[before].next = after;
        }
        let free = core::mem::replace(&mut self.free, place);
        (self[place].next, self[place].members) = (free, NONE);
    }
}

/// How many lines so many groups have.
fn lines_for(groups: usize) -> usize {
    (groups * BUCKETS_A_GROUP).div_ceil(WIDTH).next_power_of_two()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const ROOM: u32 = 300;
    const SECRET: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x6709),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// With a secret of zeros, buckets have a dozen groups, and otherwise few have more than one.
        #[test]
        fn groups_are_found_where_they_were_put(
            secret in prop_oneof![Just(SECRET), Just([0; 2])],
            steps in proptest::collection::vec((1u32..3, 0u32..400), 0..1000),
        ) {
            let mut groups = Groups::new(ROOM, secret);
            let mut model = BTreeMap::new();
            for (comtree, group) in steps {
                let of = (Comtree(comtree), Group::new(group));
                let hash = groups.hash(of.0, of.1);
                prop_assert_eq!(groups.find(hash, of.0, of.1), model.get(&of).copied());
                // Whoever is there goes, and whoever is not comes.
                if let Some(place) = model.remove(&of) {
                    groups.remove(hash, place);
                    prop_assert!(groups.get(place).is_none());
                } else if let Some(place) = groups.insert(hash, GroupEntry::new(of.0, of.1), ROOM) {
                    model.insert(of, place);
                } else {
                    prop_assert_eq!(model.len() as u32, ROOM, "it is refused only if all places are taken");
                }
            }
            let mut places: Vec<u32> = model.values().copied().collect();
            places.sort_unstable();
            prop_assert_eq!(groups.places().collect::<Vec<_>>(), places);
            for ((comtree, group), place) in model {
                prop_assert_eq!(groups.find(groups.hash(comtree, group), comtree, group), Some(place));
            }
        }
    }

    /// Numbers that follow one another lie in one line, and nobody can fill a line with numbers that are far apart.
    #[test]
    fn neighbours_share_a_line_and_strangers_do_not() {
        let groups = Groups::new(1, SECRET);
        let hash = |group| groups.hash(Comtree(1), Group::new(group));
        let line = |group| hash(group) / WIDTH as u32;
        assert!((0..16).all(|group| line(group) == line(0)));
        let within: std::collections::BTreeSet<u32> =
            (0..16).map(|group| hash(group) % WIDTH as u32).collect();
        assert_eq!(within.len(), WIDTH, "they have a bucket each");
        // Each of the 16 places in lines has its part of 4096 groups whose numbers end alike.
        for place in 0..WIDTH as u32 {
            let there = (0..4096).filter(|group| hash(group * 16) % WIDTH as u32 == place).count();
            assert!((200..312).contains(&there), "{there} at {place}");
        }
        // Nor do numbers that are equally far apart meet in few lines of a table for as many.
        for apart in [16, 48, 1 << 10, 1 << 17, (1 << 20) - 16] {
            let lines = lines_for(1024) as u32;
            let met: std::collections::BTreeSet<u32> =
                (0..1024).map(|group| line(group * apart) % lines).collect();
            assert!(met.len() > lines as usize * 9 / 10, "{apart} apart: {} lines", met.len());
        }
    }
}
