//! What a crowd's run came to.

use crate::oracle::Verdict;
use serde::Serialize;

/// Ages of updates at their receivers, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ages {
    /// Half were younger.
    pub p50: u64,
    /// 99 of 100 were younger.
    pub p99: u64,
    /// 999 of 1,000 were younger.
    pub p999: u64,
}

/// What a crowd's run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Walkers, each with a session and a socket.
    pub clients: u32,
    /// What the oracle says of updates and deliveries.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Ages of deliveries.
    pub age_us: Ages,
    /// Subscriptions and unsubscriptions acknowledged.
    pub subscriptions_changed: u64,
    /// Length of the run.
    pub seconds: f64,
    /// Updates not sent, because the walker had no session when they were due.
    pub updates_unsent: u64,
    /// Subscriptions that the relay refused.
    pub subscriptions_refused: u64,
    /// Sessions lost and made again.
    pub reconnects: u64,
    /// Walkers' own updates that came back to them and were dropped: where many get an update, a
    /// relay with a clone engine sends it to its publisher too.
    pub echoes: u64,
    /// What was walked.
    pub trace: String,
    /// How fast, against the recording.
    pub speed: f64,
}

impl Report {
    /// Whether the whole trace was walked and everything arrived where it must, once, and nowhere
    /// else.
    pub fn is_flawless(&self) -> bool {
        let Verdict { missing, duplicates, unexpected, .. } = self.verdict;
        let unwalked = [self.updates_unsent, self.subscriptions_refused];
        [missing, duplicates, unexpected] == [0; 3] && unwalked == [0; 2]
    }
}
