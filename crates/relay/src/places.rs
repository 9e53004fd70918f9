//! The places for participants: a relay has them, not its data threads.

use crate::index::ComtreeIndex;
use canopy_session::SessionIndex;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The most participants that a relay takes, shared by its data threads.
#[derive(Clone, Debug)]
pub struct Places {
    count: u32,
    /// Whether each comtree has a part of its own.
    is_divided: bool,
    left: Arc<AtomicU32>,
    /// How many comtrees have taken beyond their own parts.
    beyond: Arc<AtomicU32>,
}

/// The places as one data thread sees them. A comtree's own part is divided among the threads, and each
/// counts what of it is taken here. So what the threads count together is only what goes beyond.
#[derive(Debug)]
pub(crate) struct ThreadPlaces {
    places: Places,
    threads: u32,
    /// What each comtree can have on this thread whatever the others have.
    own_part: u32,
    /// What there is beside all own parts.
    common: u32,
    /// By comtree: what it has on this thread.
    taken: Vec<u32>,
    /// By session: whose place it has.
    held: Vec<ComtreeIndex>,
}

impl Places {
    /// This many places, all free, for whoever comes first.
    pub fn new(count: u32) -> Places {
        let (left, beyond) = (Arc::new(AtomicU32::new(count)), Arc::default());
        Places { count, is_divided: false, left, beyond }
    }

    /// The same, but each comtree has a part of half of them for itself, whoever comes to the others.
    pub fn divided(count: u32) -> Places {
        Places { is_divided: true, ..Places::new(count) }
    }
}

impl ThreadPlaces {
    /// One of so many threads, before there are comtrees.
    pub(crate) fn new(places: Places, threads: u16) -> ThreadPlaces {
        let (threads, common) = (u32::from(threads.max(1)), places.count);
        ThreadPlaces { places, threads, own_part: 0, common, taken: Vec::new(), held: Vec::new() }
    }

    /// This many comtrees share them from now on. What they have they keep, so their own parts hold
    /// only once what is too much has gone.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        let beyond = |own_part| self.taken.iter().map(|taken| taken.saturating_sub(own_part)).sum();
        let before: u32 = beyond(self.own_part);
        let parts = self.threads * comtrees.max(1);
        self.own_part = if self.places.is_divided { self.places.count / 2 / parts } else { 0 };
        self.common = self.places.count - self.own_part * parts;
        let after: u32 = self.taken.iter().map(|taken| taken.saturating_sub(self.own_part)).sum();
        self.places.beyond.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Takes a place for a comtree. Returns whether there was one.
    pub(crate) fn take(&mut self, comtree: ComtreeIndex) -> bool {
        let index = comtree as usize;
        if index >= self.taken.len() {
            self.taken.resize(index + 1, 0);
        }
        // It is asked first, so that nobody takes what is another's part, not even for a moment.
        let is_own = self.taken[index] < self.own_part;
        let more = |beyond: u32| (beyond < self.common).then_some(beyond + 1);
        if !is_own && !update(&self.places.beyond, more) {
            return false;
        }
        if !update(&self.places.left, |left| left.checked_sub(1)) {
            if !is_own {
                self.places.beyond.fetch_sub(1, Ordering::Relaxed);
            }
            return false;
        }
        self.taken[index] += 1;
        true
    }

    /// A session has the place that was taken for it.
    pub(crate) fn hold(&mut self, session: SessionIndex, comtree: ComtreeIndex) {
        let index = session as usize;
        if index >= self.held.len() {
            self.held.resize(index + 1, 0);
        }
        self.held[index] = comtree;
    }

    /// Gives a place back that no session has.
    pub(crate) fn give_back(&mut self, comtree: ComtreeIndex) {
        let Some(taken) = self.taken.get_mut(comtree as usize) else { return };
        if *taken > self.own_part {
            self.places.beyond.fetch_sub(1, Ordering::Relaxed);
        }
        *taken -= 1;
        self.places.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives back the place of a session that has ended.
    pub(crate) fn give_back_of(&mut self, session: SessionIndex) {
        if let Some(comtree) = self.held.get(session as usize).copied() {
            self.give_back(comtree);
        }
    }
}

fn update(count: &AtomicU32, change: impl FnMut(u32) -> Option<u32>) -> bool {
    count.try_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads<const N: usize>(places: Places, comtrees: u32) -> [ThreadPlaces; N] {
        core::array::from_fn(|_| {
            let mut thread = ThreadPlaces::new(places.clone(), N as u16);
            thread.deal(comtrees);
            thread
        })
    }

    fn fill(threads: &mut [ThreadPlaces], comtree: ComtreeIndex) -> u32 {
        let take_all =
            |thread: &mut ThreadPlaces| (0..).take_while(|_| thread.take(comtree)).count();
        threads.iter_mut().map(take_all).sum::<usize>() as u32
    }

    #[test]
    fn a_comtree_that_comes_first_leaves_the_others_their_parts() {
        let mut threads: [_; 2] = threads(Places::divided(100), 5);
        assert_eq!(fill(&mut threads, 3), 60, "its own part, and all that is common");
        for comtree in [0, 1, 2, 4] {
            assert_eq!(fill(&mut threads, comtree), 10);
        }
        // It has all that is common on the thread that was asked first.
        threads[0].give_back(3);
        assert_eq!((fill(&mut threads, 0), fill(&mut threads, 3)), (1, 0), "that was common");
        threads[0].hold(7, 4);
        threads[0].give_back_of(7);
        assert_eq!((fill(&mut threads, 0), fill(&mut threads, 4)), (0, 1), "that was its own");
    }

    #[test]
    fn places_that_are_not_divided_and_those_of_a_comtree_alone_go_to_who_comes() {
        let [mut undivided, mut alone]: [[_; 2]; 2] =
            [threads(Places::new(7), 3), threads(Places::divided(7), 1)];
        assert_eq!([fill(&mut undivided, 2), fill(&mut alone, 0)], [7, 7]);
    }

    #[test]
    fn parts_are_dealt_anew_when_comtrees_come_and_go() {
        let mut threads: [_; 2] = threads(Places::divided(100), 1);
        assert_eq!(fill(&mut threads, 0), 100);
        let deal = |threads: &mut [ThreadPlaces; 2], comtrees| {
            threads.iter_mut().for_each(|thread| thread.deal(comtrees));
        };
        deal(&mut threads, 2);
        assert_eq!(fill(&mut threads, 1), 0, "what is taken is kept");
        (0..15).for_each(|_| threads.iter_mut().for_each(|thread| thread.give_back(0)));
        // The first comtree has 60 on one thread and 10 on the other, where 12 are its own on each: 48 of the
        // 52 that are common are taken.
        assert_eq!(fill(&mut threads, 1), 12 + 12 + 4);
        assert_eq!(fill(&mut threads, 0), 2);
        deal(&mut threads, 1);
        (0..10).for_each(|_| threads[0].give_back(1));
        assert_eq!(fill(&mut threads, 0), 10);
    }
}
