//! How comtrees share a table's room: each has a part that no other can take, and the rest goes to
//! who comes first.

use crate::index::ComtreeIndex;

/// A table's room. Half of it is dealt out to the comtrees as their own parts.
pub(crate) struct Shares {
    room: u32,
    /// What each comtree can have whatever the others have.
    own_part: u32,
    /// What there is beside all own parts.
    common: u32,
    /// By comtree: what it has.
    taken: Vec<u32>,
    total: u32,
    /// What comtrees have beyond their own parts.
    beyond: u32,
}

impl Shares {
    /// An empty table with this much room, and no comtrees yet.
    pub(crate) fn new(room: u32) -> Shares {
        Shares { room, own_part: 0, common: room, taken: Vec::new(), total: 0, beyond: 0 }
    }

    /// This many comtrees share it from now on. What they have they keep, so their own parts hold
    /// only once what is too much has gone.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.own_part = self.room / 2 / comtrees.max(1);
        self.common = self.room - self.own_part * comtrees;
        self.beyond = self.taken.iter().map(|taken| taken.saturating_sub(self.own_part)).sum();
    }

    /// What all comtrees have.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Whether a comtree may have one more.
    #[inline]
    pub(crate) fn has_room(&self, comtree: ComtreeIndex) -> bool {
        let taken = self.taken.get(comtree as usize).copied().unwrap_or_default();
        self.total < self.room && (taken < self.own_part || self.beyond < self.common)
    }

    /// Whether a comtree has less than what no other can take.
    pub(crate) fn has_less_than_its_part(&self, comtree: ComtreeIndex) -> bool {
        self.taken.get(comtree as usize).copied().unwrap_or_default() < self.own_part
    }

    /// A comtree has one more.
    #[inline]
    pub(crate) fn take(&mut self, comtree: ComtreeIndex) {
        let index = comtree as usize;
        if index >= self.taken.len() {
            self.taken.resize(index + 1, 0);
        }
        self.taken[index] += 1;
        self.total += 1;
        self.beyond += u32::from(self.taken[index] > self.own_part);
    }

    /// A comtree has one less.
    #[inline]
    pub(crate) fn give_back(&mut self, comtree: ComtreeIndex) {
        let taken = &mut self.taken[comtree as usize];
        self.beyond -= u32::from(*taken > self.own_part);
        *taken -= 1;
        self.total -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shares: &mut Shares, comtree: ComtreeIndex) -> u32 {
        let mut taken = 0;
        while shares.has_room(comtree) {
            shares.take(comtree);
            taken += 1;
        }
        taken
    }

    #[test]
    fn whoever_comes_first_leaves_the_others_their_parts() {
        let mut shares = Shares::new(100);
        shares.deal(5);
        assert_eq!(fill(&mut shares, 3), 60, "its own part, and all that is common");
        for comtree in [0, 1, 2, 4] {
            assert_eq!(fill(&mut shares, comtree), 10);
        }
        assert_eq!(shares.total(), 100);
        shares.give_back(3);
        assert_eq!((fill(&mut shares, 0), shares.total()), (1, 100), "that was common");
    }

    #[test]
    fn a_comtree_alone_has_all_the_room() {
        let mut shares = Shares::new(7);
        shares.deal(1);
        assert_eq!(fill(&mut shares, 0), 7);
    }

    #[test]
    fn a_comtree_that_comes_later_has_its_part_once_there_is_room() {
        let mut shares = Shares::new(100);
        shares.deal(1);
        assert_eq!(fill(&mut shares, 0), 100);
        shares.deal(2);
        assert_eq!(fill(&mut shares, 1), 0);
        for _ in 0..30 {
            shares.give_back(0);
        }
        assert!(shares.has_room(1) && shares.has_room(0) == (70 < 75));
        assert_eq!(fill(&mut shares, 1), 30);
    }
}
