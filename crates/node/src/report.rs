//! A relay's totals, as `--json` prints them.

use crate::watch::ThreadStatus;
use canopy_relay::{ComtreeStatus, Counters, Talker, ThinnedReceiver};
use canopy_wire::{Bound, DropReason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A relay's totals, as `--json` prints them.
#[derive(Serialize)]
pub struct RelayReport {
    sessions: u32,
    subscriptions: u32,
    groups: u32,
    /// Updates that wait for receivers that cannot be sent everything, for all of them together.
    waiting_updates: u64,
    send_waits: u64,
    /// Datagrams that the kernel cloned, and that were sent otherwise than the engine would.
    datagrams_cloned: u64,
    send_fallbacks: u64,
    sending_us: u64,
    cpu_us: u64,
    counters: BTreeMap<&'static str, u64>,
    /// Only the reasons that occurred.
    drops: BTreeMap<&'static str, u64>,
    comtrees: Vec<ComtreeReport>,
    talkers: Vec<TalkerReport>,
    thinned: Vec<ThinnedReport>,
}

/// One of those who sent the most in the last second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TalkerReport {
    /// The comtree that it sends on.
    pub comtree: u32,
    /// Its address there.
    pub address: String,
    /// Its ip:port.
    pub from: SocketAddr,
    /// Bits a second that arrived from it.
    pub bits: u64,
    /// Updates a second that arrived from it.
    pub updates: u64,
    /// Datagrams and updates of its, a second, that were dropped because it was over a limit.
    pub dropped: u64,
}

impl From<&Talker> for TalkerReport {
    fn from(talker: &Talker) -> TalkerReport {
        let Talker { comtree, address, path, bits, updates, dropped } = *talker;
        let (address, from) = (address.to_string(), path.remote);
        TalkerReport { comtree: comtree.0, address, from, bits, updates, dropped }
    }
}

/// One of the receivers that were thinned most in the last second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinnedReport {
    /// The comtree that it receives on.
    pub comtree: u32,
    /// Its address there; a neighbour relay's is its site's.
    pub address: String,
    /// Its ip:port.
    pub at: SocketAddr,
    /// Bits and updates a second that it may be sent; 0 is no limit.
    pub budget_bits: u64,
    /// See `budget_bits`.
    pub budget_updates: u64,
    /// What bounds that: `admitted`, `asked`, `path` or `link`; `nothing` if it has been given all meanwhile.
    pub because: String,
    /// Updates a second that were meant for it.
    pub demand: u64,
    /// Updates a second that it was sent.
    pub delivered: u64,
    /// Updates a second that were dropped.
    pub dropped: ThinnedDrops,
}

/// By class and reason. Updates that are important, or for one endpoint's eyes, are urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinnedDrops {
    /// Something newer took their place, or it was not their turn.
    pub thinned: u64,
    /// The same, of urgent ones.
    pub urgent_thinned: u64,
    /// They were kept no more when their turn came.
    pub waited_too_long: u64,
    /// The same, of urgent ones.
    pub urgent_waited_too_long: u64,
}

impl From<&ThinnedReceiver> for ThinnedReport {
    fn from(receiver: &ThinnedReceiver) -> ThinnedReport {
        let ThinnedReceiver {
            comtree, address, path, budget, because, delivered, left_out, ..
        } = *receiver;
        let because = match because {
            None => "link",
            Some(Bound::Admitted) => "admitted",
            Some(Bound::Asked) => "asked",
            Some(Bound::Path) => "path",
            Some(_) => "nothing",
        };
        ThinnedReport {
            comtree: comtree.0,
            address: address.to_string(),
            at: path.remote,
            budget_bits: budget.bits,
            budget_updates: budget.updates,
            because: because.to_owned(),
            demand: receiver.demand(),
            delivered,
            dropped: ThinnedDrops {
                thinned: left_out.thinned,
                urgent_thinned: left_out.urgent_thinned,
                waited_too_long: left_out.waited_too_long,
                urgent_waited_too_long: left_out.urgent_waited_too_long,
            },
        }
    }
}

/// A comtree's totals.
#[derive(Serialize)]
struct ComtreeReport {
    comtree: u32,
    participants: u32,
    updates_in: u64,
    payload_bytes_in: u64,
    deliveries_out: u64,
    bytes_out: u64,
    drops: u64,
}

impl From<&ComtreeStatus> for ComtreeReport {
    fn from(status: &ComtreeStatus) -> ComtreeReport {
        let ComtreeStatus { comtree, participants, counters } = status;
        ComtreeReport {
            comtree: comtree.0,
            participants: *participants,
            updates_in: counters.updates_in,
            payload_bytes_in: counters.payload_bytes_in,
            deliveries_out: counters.deliveries_out,
            bytes_out: counters.bytes_out,
            drops: counters.drops,
        }
    }
}

impl RelayReport {
    /// The totals that a status tells.
    pub fn new(status: &ThreadStatus) -> RelayReport {
        RelayReport {
            sessions: status.sessions,
            subscriptions: status.subscriptions,
            groups: status.groups,
            waiting_updates: status.waiting_updates,
            send_waits: status.sent.waits,
            datagrams_cloned: status.sent.cloned,
            send_fallbacks: status.sent.fallbacks,
            sending_us: status.sending.as_micros() as u64,
            cpu_us: status.cpu.as_micros() as u64,
            counters: status.counters.named().map(|(name, _, total)| (name, total)).collect(),
            drops: drops_of(&status.counters),
            comtrees: status.comtrees.iter().map(ComtreeReport::from).collect(),
            talkers: status.talkers.iter().map(TalkerReport::from).collect(),
            thinned: status.thinned.iter().map(ThinnedReport::from).collect(),
        }
    }
}

/// The drops that occurred, by name.
pub fn drops_of(counters: &Counters) -> BTreeMap<&'static str, u64> {
    let all = DropReason::ALL.iter().map(|reason| (reason.name(), counters.dropped(*reason)));
    all.filter(|(_, total)| *total > 0).collect()
}
