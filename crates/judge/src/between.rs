//! What the oracle says of updates that are lost between a relay's data threads: whoever is on a thread
//! that was too slow misses them, and the relay counts each, once for the thread.

use crate::oracle::Oracle;
use crate::threads::Between;
use crate::window::Update;
use std::collections::BTreeSet;

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
        let mut threads: BTreeSet<u16> =
            missing.iter().filter_map(|who| self.thread_of(*who)).collect();
        threads.retain(|thread| *thread != own && !self.came_to(*thread, update));
        while self.tally.lost_between_threads + threads.len() as u64 > self.between.lost {
            threads.pop_last();
        }
        self.tally.lost_between_threads += threads.len() as u64;
        let is_lost =
            |who: &mut u32| self.thread_of(*who).is_some_and(|thread| threads.contains(&thread));
        missing.extract_if(.., is_lost).collect()
    }

    /// The data thread that a participant is on.
    fn thread_of(&self, participant: u32) -> Option<u16> {
        let address = self.standings[participant as usize].last_address();
        address.map(|address| self.between.thread(address))
    }

    /// Whether somebody on a data thread got an update.
    fn came_to(&self, thread: u16, update: &Update) -> bool {
        let mut came = update.receivers.iter().filter(|(_, receiver)| receiver.came);
        came.any(|(who, _)| self.thread_of(who) == Some(thread))
    }
}
