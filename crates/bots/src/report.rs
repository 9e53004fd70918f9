//! What a crowd's run came to.

use canopy_judge::Tally;
use canopy_wire::Time;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

/// What the oracle says of updates and deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Updates published.
    #[serde(rename = "updates_published")]
    pub published: u64,
    /// Deliveries that had to come about, of the updates judged: those that did, and the missing.
    #[serde(rename = "deliveries_expected")]
    pub expected: u64,
    /// Deliveries that came about, with those that were allowed but not required.
    #[serde(rename = "deliveries")]
    pub delivered: u64,
    /// Deliveries that had to and did not.
    pub missing: u64,
    /// Deliveries made before.
    pub duplicates: u64,
    /// Deliveries to someone not subscribed, in another publisher's name, or of an update that
    /// nobody published.
    pub unexpected: u64,
    /// Deliveries after a later update of the same publisher.
    pub out_of_order: u64,
    /// Deliveries not made because the receiver was unsubscribing, or its subscription on its
    /// way to the publisher's relay.
    pub excused: u64,
}

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

/// One relay's part of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RelayShare {
    /// Where it is.
    pub relay: SocketAddr,
    /// Walkers that joined there; with a controller, those that were there last.
    pub walkers: u32,
}

/// A time in which a walker lacked a relay, or some of its subscriptions after a relay was lost: from
/// the last datagram of the lost relay until all that it wants is acknowledged again, or until it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outage {
    /// Whose it was.
    pub walker: u32,
    /// When it began, milliseconds after the trace's zero.
    pub at_ms: u64,
    /// How long it lasted, milliseconds.
    pub ms: u64,
}

impl Outage {
    /// One that began at `since` and ends now; the trace's zero was at `zero`.
    pub(crate) fn new(walker: u32, since: Time, now: Time, zero: Time) -> Outage {
        let ms = |of: Time, since| of.since(since).as_millis() as u64;
        Outage { walker, at_ms: ms(since, zero), ms: ms(now, since) }
    }
}

/// Somebody misses what somebody else has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// When the tenth of a second ended in which it was published, milliseconds after the trace's zero.
    pub until_ms: u64,
    /// The walker that published it.
    pub publisher: u32,
    /// The walker that misses it.
    pub receiver: u32,
}

/// How often something happened to what was published in a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenth {
    /// When that ended, milliseconds after the trace's zero.
    pub until_ms: u64,
    /// Deliveries to which it happened.
    pub deliveries: u64,
}

/// What a crowd's run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Walkers, each with a session and a socket.
    pub clients: u32,
    /// Where they joined.
    pub relays: Vec<RelayShare>,
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
    /// How long after it was due an update was published, at most, milliseconds. If it grows, this machine
    /// is too slow for such a crowd at that speed.
    pub late_ms: u64,
    /// Subscriptions that the relay refused.
    pub subscriptions_refused: u64,
    /// Sessions lost and made again.
    pub reconnects: u64,
    /// How often a walker turned to another relay, because the controller said so: its own was lost, or drains.
    pub moves: u64,
    /// When walkers were without their relay.
    pub outages: Vec<Outage>,
    /// When the last update was published that somebody misses, milliseconds after the trace's zero;
    /// nothing if nothing is missing.
    pub last_missing_ms: Option<u64>,
    /// How long after the run began the trace's zero was.
    #[serde(skip)]
    pub zero: Duration,
    /// What is missing between whom, in order; the first of it, if it is very much.
    #[serde(skip)]
    pub missing: Vec<Missing>,
    /// What came twice, in order.
    #[serde(skip)]
    pub doubled: Vec<Tenth>,
    /// What came after something that its publisher sent later, in order.
    #[serde(skip)]
    pub overtaken: Vec<Tenth>,
    /// Walkers' own updates that came back to them and were dropped: where many get an update, a
    /// relay with a clone engine sends it to its publisher too.
    pub echoes: u64,
    /// The first things that are wrong, in words.
    pub findings: Vec<String>,
    /// What was walked.
    pub trace: String,
    /// How fast, against the recording.
    pub speed: f64,
}

impl Report {
    /// Whether the whole trace was walked and everything arrived where it must, once, in order, and
    /// nowhere else.
    pub fn is_flawless(&self) -> bool {
        let Verdict { missing, duplicates, unexpected, out_of_order, .. } = self.verdict;
        let unwalked = [self.updates_unsent, self.subscriptions_refused];
        [missing, duplicates, unexpected, out_of_order] == [0; 4] && unwalked == [0; 2]
    }
}

impl Report {
    /// Whether nothing came twice, to the wrong walker, or after what was published later.
    pub fn is_orderly(&self) -> bool {
        let Verdict { duplicates, unexpected, out_of_order, .. } = self.verdict;
        [duplicates, unexpected, out_of_order] == [0; 3]
    }
}

impl Verdict {
    pub(crate) fn new(tally: &Tally) -> Verdict {
        Verdict {
            published: tally.published,
            expected: tally.expected,
            delivered: tally.deliveries,
            missing: tally.missing,
            duplicates: tally.duplicates,
            unexpected: tally.unexpected,
            out_of_order: tally.out_of_order,
            excused: tally.excused,
        }
    }
}
