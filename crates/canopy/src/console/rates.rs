//! The relay's totals as rates over the last second.

use canopy_node::{RelayWatch, ThreadStatus, drops_of};
use canopy_wire::DropReason;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const OVER: Duration = Duration::from_secs(1);

/// What a frame says of the relay.
#[derive(Serialize)]
pub(super) struct RelayRates {
    clients: u32,
    subscriptions: u32,
    groups: u32,
    updates_per_s: f64,
    deliveries_per_s: f64,
    datagrams_out_per_s: f64,
    bytes_out_per_s: f64,
    padding_share: f64,
    cpu_us_per_delivery: f64,
    cpu_share: f64,
    drops_per_s: f64,
    drops: BTreeMap<&'static str, u64>,
}

/// Remembers a second of totals.
#[derive(Default)]
pub(super) struct Rates {
    past: VecDeque<(Instant, ThreadStatus)>,
}

impl Rates {
    /// Reads the relay's status and compares it with a second ago.
    pub(super) fn read(&mut self, relay: &RelayWatch) -> RelayRates {
        let (now, status) = (Instant::now(), relay.status());
        while self.past.len() > 1 && now.duration_since(self.past[1].0) >= OVER {
            self.past.pop_front();
        }
        self.past.push_back((now, status.clone()));
        let (then, before) = &self.past[0];
        let seconds = now.duration_since(*then).as_secs_f64().max(0.001);
        let (new, old) = (&status.counters, &before.counters);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let deliveries = rate(new.deliveries_out, old.deliveries_out);
        let bytes = rate(new.bytes_out, old.bytes_out);
        let padding = rate(new.padding_bytes_out, old.padding_bytes_out);
        let cpu = status.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds;
        let all = |counters: &canopy_relay::Counters| {
            DropReason::ALL.iter().map(|reason| counters.dropped(*reason)).sum::<u64>()
        };
        RelayRates {
            clients: status.sessions,
            subscriptions: status.subscriptions,
            groups: status.groups,
            updates_per_s: rate(new.updates_in, old.updates_in),
            deliveries_per_s: deliveries,
            datagrams_out_per_s: rate(new.datagrams_out, old.datagrams_out),
            bytes_out_per_s: bytes,
            padding_share: if bytes > 0.0 { padding / bytes } else { 0.0 },
            cpu_us_per_delivery: if deliveries > 0.0 { cpu * 1e6 / deliveries } else { 0.0 },
            cpu_share: cpu,
            drops_per_s: rate(all(new), all(old)),
            drops: drops_of(new),
        }
    }
}
