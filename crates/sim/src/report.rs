//! What came of a run.

use crate::network::NetworkCounts;
use canopy_relay::Counters;
use canopy_wire::DropReason;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result of a run. The same configuration gives the same report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// When the relay sends: `immediate`, or `periodic` with its tick.
    pub mode: String,
    /// What the network was like.
    pub weather: String,
    /// Data threads of the relay.
    pub threads: u16,
    /// Participants.
    pub participants: u64,
    /// Length of the run.
    pub virtual_seconds: u64,
    /// Updates that applications published while connected.
    pub updates_published: u64,
    /// Pairs of update and participant that had to come about, and did or are missing.
    pub deliveries_expected: u64,
    /// Pairs that were due when published and did not come about, but the network took what the
    /// relay sent, or the receiver was on its way out.
    pub deliveries_excused: u64,
    /// Pairs that came about, among them those that only might.
    pub deliveries: u64,
    /// Pairs that had to come about and did not.
    pub missing: u64,
    /// Updates that came more often than the relay had read them.
    pub duplicates: u64,
    /// Updates that came to someone to whom they must not.
    pub unexpected: u64,
    /// Updates that came after a later one of the same publisher, on a path that keeps the order.
    pub out_of_order: u64,
    /// Updates that a data thread lost because it was too slow, each as often as threads lost it; the relay
    /// has counted them.
    pub lost_between_threads: u64,
    /// Pairs that had to come about but for a budget, and did not; the relay has counted them.
    pub thinned: u64,
    /// Flows whose newest update never reached somebody who may be sent so much only.
    pub starved: u64,
    /// Participants who were not back in the world, or had no answer, long after all was well.
    pub stuck: u64,
    /// Breaches of what must always hold: counters, table limits, amplification, packet formats.
    pub broken_invariants: u64,
    /// What the network did.
    pub network: NetworkCounts,
    /// What the relay counted, over all data threads and restarts.
    pub relay: RelayTotals,
    /// How often the relay was restarted.
    pub relay_restarts: u32,
    /// How often a participant changed its ip:port.
    pub rebinds: u32,
    /// How often a participant left in order.
    pub leaves: u32,
    /// How often a participant vanished without a word.
    pub crashes: u32,
    /// Datagrams that were sent to do harm.
    pub attacks: u64,
    /// Datagrams of floods.
    pub flooded: u64,
    /// Datagrams that a participant dropped because the group key that they were sealed with had not
    /// arrived yet, or was one of the past.
    pub keyless: u64,
    /// Whether nobody was let in without a token.
    pub asks_for_tokens: bool,
    /// Tokens that were revoked.
    pub tokens_revoked: u32,
    /// Tokens that participants renewed before they ended.
    pub tokens_renewed: u32,
    /// How often a participant was turned away, or sent away, because its token had ended.
    pub turned_away: u32,
    /// Updates that participants published although their tokens did not grant it.
    pub not_granted: u64,
    /// How often a side of a session went on with its next key.
    pub keys_changed: u64,
    /// A hash over all datagrams that arrived: when, from, to, bytes; 16 hexadecimal digits.
    pub trace_hash: String,
    /// The first things that are wrong, in words.
    pub findings: Vec<String>,
    /// The command that does this run again.
    pub replay: String,
}

/// A relay's counters in a form that can be printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RelayTotals {
    /// All counters but drops, by name.
    #[serde(flatten)]
    pub totals: BTreeMap<&'static str, u64>,
    /// Drops by reason; reasons without drops are left out.
    pub drops: BTreeMap<&'static str, u64>,
}

impl Report {
    /// Whether the run was as it must be.
    ///
    /// # Errors
    /// What was wrong, ending with the command that replays it.
    pub fn verdict(&self) -> Result<(), String> {
        let counts = [
            (self.missing, "missing"),
            (self.duplicates, "duplicate"),
            (self.unexpected, "unexpected"),
            (self.out_of_order, "out of order"),
            (self.starved, "starved"),
            (self.stuck, "stuck"),
            (self.broken_invariants, "broken invariants"),
        ];
        let wrong = counts.iter().filter(|(count, _)| *count > 0);
        let wrong: Vec<_> = wrong.map(|(count, what)| format!("{count} {what}")).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let findings: String = self.findings.iter().map(|what| format!("\n  {what}")).collect();
        Err(format!("seed {}: {}{findings}\nreplay: {}", self.seed, wrong.join(", "), self.replay))
    }
}

impl RelayTotals {
    pub(crate) fn new(counters: &Counters) -> RelayTotals {
        let drops = DropReason::ALL.iter().map(|reason| (reason.name(), counters.dropped(*reason)));
        RelayTotals {
            totals: counters.named().map(|(name, _, total)| (name, total)).collect(),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
        }
    }
}
