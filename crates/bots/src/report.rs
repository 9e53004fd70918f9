//! What a crowd's run came to.

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
    /// Updates sent.
    pub updates_published: u64,
    /// Deliveries that had to come about: those that did, and those that are missing.
    pub deliveries_expected: u64,
    /// Deliveries that came about, with those that were allowed but not required.
    pub deliveries: u64,
    /// Deliveries that had to come about and did not.
    pub missing: u64,
    /// Deliveries of what had been delivered before.
    pub duplicates: u64,
    /// Deliveries to someone who was not subscribed.
    pub unexpected: u64,
    /// Ages of deliveries.
    pub age_us: Ages,
    /// Subscriptions and unsubscriptions acknowledged.
    pub subscriptions_changed: u64,
    /// Length of the run.
    pub seconds: f64,
    /// Deliveries neither required nor made, because the receiver unsubscribed while they were on
    /// their way.
    pub excused: u64,
    /// Subscriptions that the relay refused.
    pub subscriptions_refused: u64,
    /// Sessions lost and made again.
    pub reconnects: u64,
    /// What was walked.
    pub trace: String,
    /// How fast, against the recording.
    pub speed: f64,
}
