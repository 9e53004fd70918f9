//! What was found.

use canopy_wire::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How many findings are kept in words: missing deliveries, and all else.
const MAX_FINDINGS: usize = 12;
/// How many gaps are kept.
const MAX_GAPS: usize = 100_000;

/// What is missing between two participants in a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// When the updates were published, in tenths of a second.
    pub tenth: u64,
    /// Who published them.
    pub publisher: u32,
    /// Who misses them.
    pub receiver: u32,
}

/// The sums of all judgements so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Updates published.
    pub published: u64,
    /// Deliveries that had to come about: those that did, and the missing.
    pub expected: u64,
    /// Deliveries that were due when the update was published and did not come about for a reason
    /// that is not the relay's: the network took them, or the receiver was on its way out.
    pub excused: u64,
    /// Updates that a data thread lost, each as often as threads lost it. What that cost is excused.
    pub lost_between_threads: u64,
    /// Deliveries that had to come about, but for their receivers' budgets, and did not.
    pub thinned: u64,
    /// Flows to limited receivers whose newest update never came.
    pub starved: u64,
    /// Deliveries that came about, with those that were allowed but not required.
    pub deliveries: u64,
    /// Deliveries that had to come about and did not.
    pub missing: u64,
    /// When the last update was published of which a delivery is missing.
    pub last_missing: Option<Time>,
    /// Between whom updates are missing, and when they were published; the first ones, if there are very
    /// many.
    pub gaps: BTreeSet<Gap>,
    /// Updates that came more often than the relay had read them.
    pub duplicates: u64,
    /// The same by the tenth of a second in which they were published.
    pub doubled: BTreeMap<u64, u64>,
    /// Updates that came to someone to whom they must not, or in another form than published.
    pub unexpected: u64,
    /// Updates that came after a later one of the same publisher, on a path that keeps the order.
    pub out_of_order: u64,
    /// The same by the tenth of a second in which they were published.
    pub overtaken: BTreeMap<u64, u64>,
    /// Participants who were not back in the world, or had no answer, long after all was well.
    pub stuck: u64,
    /// Breaches of what must always hold.
    pub broken: u64,
    /// The first things that are wrong, in words.
    pub findings: Vec<String>,
    /// How many of these are missing deliveries.
    missing_in_words: usize,
}

impl Tally {
    pub(crate) fn note_gap(&mut self, published: Time, publisher: usize, receiver: usize) {
        if self.gaps.len() < MAX_GAPS {
            let tenth = tenth_of(published);
            let (publisher, receiver) = (publisher as u32, receiver as u32);
            self.gaps.insert(Gap { tenth, publisher, receiver });
        }
    }

    pub(crate) fn note_doubled(&mut self, published: Time) {
        self.duplicates += 1;
        *self.doubled.entry(tenth_of(published)).or_default() += 1;
    }

    pub(crate) fn note_overtaken(&mut self, published: Time) {
        self.out_of_order += 1;
        *self.overtaken.entry(tenth_of(published)).or_default() += 1;
    }

    /// Keeps in words what is missing, if there is not too much already.
    pub(crate) fn note_missing(&mut self, what: impl FnOnce() -> String) {
        if self.missing_in_words < MAX_FINDINGS {
            self.missing_in_words += 1;
            self.findings.push(what());
        }
    }

    /// Keeps what is wrong in words, if there are not too many already. Much that is missing takes no room from it.
    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.findings.len() - self.missing_in_words < MAX_FINDINGS {
            self.findings.push(what());
        }
    }
}

/// In which tenth of a second a time is.
fn tenth_of(time: Time) -> u64 {
    time.as_nanos() / 100_000_000
}
