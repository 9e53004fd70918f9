//! What the oracle says of updates that are lost between a relay's data threads: whoever is on a thread
//! that was too slow misses them, and the relay counts each, once for the thread.

use crate::oracle::Oracle;
use crate::threads::Between;
use std::collections::{BTreeMap, BTreeSet};

impl Oracle {
    /// The relay has so many data threads, and says that it has lost so many updates between them. To
    /// be told before each judgement.
    pub fn lost_between_threads(&mut self, threads: u16, updates: u64) {
        self.between = Between { threads, lost: updates };
    }

    /// Takes from `missing`, and returns, those who miss an update because their data thread does:
    /// nobody there got it, and the relay has counted as many losses as were found.
    pub(crate) fn take_lost_between(&mut self, update: u64, missing: &mut Vec<u32>) -> Vec<u32> {
        let Some(update) = self.window.get(update).filter(|_| self.between.lost > 0) else {
            return Vec::new();
        };
        let own = self.between.thread(update.publish.src);
        let (between, standings) = (self.between, &self.standings);
        let threads_of = |came: bool| {
            let receivers = update.receivers.iter().filter(move |(who, one)| {
                // Whoever has another address since may have got it there.
                let has_moved = one.address != standings[*who as usize].last_address();
                one.came == came && !(came && has_moved)
            });
            receivers.filter_map(move |(who, one)| Some((who, between.thread(one.address?))))
        };
        let of_missing: BTreeMap<u32, u16> = threads_of(false).collect();
        let mut threads: BTreeSet<u16> =
            missing.iter().filter_map(|who| of_missing.get(who).copied()).collect();
        let reached: BTreeSet<u16> = threads_of(true).map(|(_, thread)| thread).collect();
        threads.retain(|thread| *thread != own && !reached.contains(thread));
        while self.tally.lost_between_threads + threads.len() as u64 > self.between.lost {
            threads.pop_last();
        }
        self.tally.lost_between_threads += threads.len() as u64;
        let is_lost = |who: &mut u32| of_missing.get(who).is_some_and(|one| threads.contains(one));
        missing.extract_if(.., is_lost).collect()
    }
}
