//! A hash table of routes in which a search waits for memory once: it touches one cache line, mostly.
//!
//! A line has room for a few routes, which lie at its beginning. The hash of a route says in which line it
//! lies; if that is full, it is in the next line that has room. Who searches goes on as long as lines are
//! full. When a route goes, one that lies behind its line takes its place, so that this stays true.

use super::entry::Entry;
use crate::index::ComtreeIndex;
use canopy_wire::Address;

/// Routes in a cache line.
const WIDTH: usize = 4;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([Entry; WIDTH]);

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const EMPTY: Line = Line([Entry::FREE; WIDTH]);

    fn is_full(&self) -> bool {
        !self.0[WIDTH - 1].is_free()
    }

    /// How many routes it has.
    fn len(&self) -> usize {
        self.0.iter().take_while(|entry| !entry.is_free()).count()
    }
}

/// Where a route lies, as long as none comes or goes.
pub(super) type Place = usize;

/// The routes of a data thread. Hashes are the caller's, and always the same for a route.
pub(super) struct RouteTable {
    /// A power of two.
    lines: Vec<Line>,
    len: usize,
}

impl RouteTable {
    pub(super) fn new() -> RouteTable {
        RouteTable { lines: vec![Line::EMPTY], len: 0 }
    }

    /// How many places there are, taken and free.
    pub(super) fn places(&self) -> usize {
        self.lines.len() * WIDTH
    }

    /// The route at a place, if there is one.
    pub(super) fn get(&self, place: Place) -> Option<&Entry> {
        let entry = &self.lines.get(place / WIDTH)?.0[place % WIDTH];
        (!entry.is_free()).then_some(entry)
    }

    /// The same, to be changed. What is changed must not be what it is found by.
    pub(super) fn get_mut(&mut self, place: Place) -> Option<&mut Entry> {
        let entry = &mut self.lines.get_mut(place / WIDTH)?.0[place % WIDTH];
        (!entry.is_free()).then_some(entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.lines.iter().flat_map(|line| &line.0).filter(|entry| !entry.is_free())
    }

    /// The same, to be changed, as by [`RouteTable::get_mut`].
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.lines.iter_mut().flat_map(|line| &mut line.0).filter(|entry| !entry.is_free())
    }

    /// Where the route to an address lies.
    #[inline]
    pub(super) fn find(&self, hash: u64, comtree: ComtreeIndex, to: Address) -> Option<Place> {
        let mut line = self.home(hash);
        loop {
            let entries = &self.lines[line].0;
            // All are compared, so that nobody has to guess which one it will be.
            let mut found = 0;
            for (place, entry) in entries.iter().enumerate() {
                found |= u32::from(entry.leads(comtree, to)) << place;
            }
            if found != 0 {
                return Some(line * WIDTH + found.trailing_zeros() as usize);
            }
            if entries[WIDTH - 1].is_free() {
                return None;
            }
            line = self.after(line);
        }
    }

    /// Takes a route that is not there yet.
    pub(super) fn insert(&mut self, hash: u64, entry: Entry, hash_of: impl Fn(&Entry) -> u64) {
        if (self.len + 1) * 8 > self.places() * 7 {
            let larger = vec![Line::EMPTY; self.lines.len() * 2];
            let smaller = core::mem::replace(&mut self.lines, larger);
            let entries = smaller.iter().flat_map(|line| &line.0);
            entries.filter(|entry| !entry.is_free()).for_each(|of| self.put(hash_of(of), *of));
        }
        self.put(hash, entry);
        self.len += 1;
    }

    fn put(&mut self, hash: u64, entry: Entry) {
        let mut line = self.home(hash);
        while self.lines[line].is_full() {
            line = self.after(line);
        }
        let place = self.lines[line].len();
        self.lines[line].0[place] = entry;
    }

    /// Takes the route at a place away. Another one may lie there then, of those that lay behind it; of those
    /// before it none has moved, but for those that have their homes at the end of the table and
    /// lay at its beginning.
    pub(super) fn remove(&mut self, place: Place, hash_of: impl Fn(&Entry) -> u64) {
        let (mut gap, mut was_full) = (place / WIDTH, self.lines[place / WIDTH].is_full());
        self.take_out(gap, place % WIDTH);
        self.len -= 1;
        // Who could not lie in this line, or had to go past it, may now.
        let mut line = gap;
        while was_full {
            line = self.after(line);
            let entries = &self.lines[line];
            was_full = entries.is_full();
            let ahead = |from: usize| line.wrapping_sub(from) & (self.lines.len() - 1);
            let mut there = entries.0[..entries.len()].iter();
            let fitting = there.position(|of| ahead(self.home(hash_of(of))) >= ahead(gap));
            if let Some(place) = fitting {
                let moved = self.lines[line].0[place];
                let free = self.lines[gap].len();
                self.lines[gap].0[free] = moved;
                self.take_out(line, place);
                gap = line;
            }
        }
    }

    /// Takes a route out of a line; the last one there takes its place.
    fn take_out(&mut self, line: usize, place: usize) {
        let Line(entries) = &mut self.lines[line];
        let last = entries.iter().rposition(|entry| !entry.is_free()).unwrap_or(place);
        entries.swap(place, last);
        entries[last] = Entry::FREE;
    }

    /// The line in which a route lies, if there is room.
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.lines.len() - 1)
    }

    fn after(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Leads, Way};
    use super::*;
    use canopy_wire::Time;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const COMTREE: ComtreeIndex = 3;

    fn route(to: u32, port: u32) -> Entry {
        Entry::heard(Time::ZERO, COMTREE, Address(to), Way { port, leads: Leads::OverTree })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x11e5),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Many have the same home, the last line among them, so that lines overflow and the table is gone
        /// round.
        #[test]
        fn lines_overflow_and_all_is_found(
            homes in 1u64..9,
            steps in proptest::collection::vec((any::<bool>(), 0u32..60), 0..300),
        ) {
            let hash = |to: u32| u64::MAX - u64::from(to).wrapping_mul(0x9e37_79b9) % homes;
            let hash_of = |entry: &Entry| hash(entry.to.0);
            let mut table = RouteTable::new();
            let mut model = BTreeMap::new();
            for (step, (comes, to)) in steps.into_iter().enumerate() {
                let found = table.find(hash(to), COMTREE, Address(to));
                prop_assert_eq!(found.is_some(), model.contains_key(&to));
                match (comes, found) {
                    (true, None) => {
                        table.insert(hash(to), route(to, step as u32), hash_of);
                        model.insert(to, step as u32);
                    }
                    (false, Some(place)) => {
                        table.remove(place, hash_of);
                        model.remove(&to);
                    }
                    _ => {}
                }
                for (to, port) in &model {
                    let place = table.find(hash(*to), COMTREE, Address(*to));
                    let entry = place.and_then(|place| table.get(place));
                    prop_assert_eq!(entry.map(|entry| entry.way().port), Some(*port));
                }
                prop_assert_eq!(table.iter().count(), model.len());
                prop_assert_eq!(table.find(hash(99), COMTREE + 1, Address(99)), None);
            }
        }
    }
}
