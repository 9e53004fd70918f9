//! Totals, of a relay or of several, as rates over the last second.

use canopy_node::{ThreadStatus, drops_of};
use canopy_wire::DropReason;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const OVER: Duration = Duration::from_secs(1);
/// Rates over less would be guesses: the relay tells its totals a few times a second.
const AT_LEAST: Duration = Duration::from_millis(800);

/// What a frame says of the relay. Rates are there as soon as there is time enough to tell.
#[derive(Serialize)]
pub(super) struct RelayRates {
    clients: u32,
    subscriptions: u32,
    groups: u32,
    #[serde(flatten)]
    rates: Option<PerSecond>,
    drops: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct PerSecond {
    updates_per_s: f64,
    deliveries_per_s: f64,
    datagrams_out_per_s: f64,
    bytes_out_per_s: f64,
    padding_share: f64,
    cpu_us_per_delivery: f64,
    cpu_share: f64,
    drops_per_s: f64,
}

/// Remembers a second of totals. All pages share it, so that one which changes its viewer goes on
/// with the rates that it had.
#[derive(Default)]
pub(super) struct Rates {
    past: VecDeque<(Instant, ThreadStatus)>,
}

impl Rates {
    /// Compares a status with that of a second ago.
    pub(super) fn read(&mut self, status: ThreadStatus) -> RelayRates {
        let now = Instant::now();
        // Nobody has looked for a while: an average over that is not what happens now.
        if self.past.back().is_some_and(|(last, _)| now.duration_since(*last) > 2 * OVER) {
            self.past.clear();
        }
        while self.past.len() > 1 && now.duration_since(self.past[1].0) >= OVER {
            self.past.pop_front();
        }
        self.past.push_back((now, status.clone()));
        let (then, before) = &self.past[0];
        let over = now.duration_since(*then);
        RelayRates {
            clients: status.sessions,
            subscriptions: status.subscriptions,
            groups: status.groups,
            rates: (over >= AT_LEAST).then(|| PerSecond::new(&status, before, over)),
            drops: drops_of(&status.counters),
        }
    }
}

impl RelayRates {
    /// Participants.
    pub(super) fn clients(&self) -> u32 {
        self.clients
    }

    /// Deliveries a second, as soon as there is time enough to tell.
    pub(super) fn deliveries_per_s(&self) -> Option<f64> {
        self.rates.as_ref().map(|rates| rates.deliveries_per_s)
    }
}

impl PerSecond {
    fn new(status: &ThreadStatus, before: &ThreadStatus, over: Duration) -> PerSecond {
        let seconds = over.as_secs_f64();
        let (new, old) = (&status.counters, &before.counters);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let deliveries = rate(new.deliveries_out, old.deliveries_out);
        let bytes = rate(new.bytes_out, old.bytes_out);
        let padding = rate(new.padding_bytes_out, old.padding_bytes_out);
        let cpu = status.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds;
        let all = |counters: &canopy_relay::Counters| {
            DropReason::ALL.iter().map(|reason| counters.dropped(*reason)).sum::<u64>()
        };
        PerSecond {
            updates_per_s: rate(new.updates_in, old.updates_in),
            deliveries_per_s: deliveries,
            datagrams_out_per_s: rate(new.datagrams_out, old.datagrams_out),
            bytes_out_per_s: bytes,
            padding_share: if bytes > 0.0 { padding / bytes } else { 0.0 },
            cpu_us_per_delivery: if deliveries > 0.0 { cpu * 1e6 / deliveries } else { 0.0 },
            cpu_share: cpu,
            drops_per_s: rate(all(new), all(old)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_a_rate_over_the_time_that_it_took() {
        let total = |deliveries_out, bytes_out| {
            let counters = canopy_relay::Counters { deliveries_out, bytes_out, ..<_>::default() };
            ThreadStatus { counters, cpu: Duration::from_millis(deliveries_out), ..<_>::default() }
        };
        let over = Duration::from_secs(2);
        let rates = PerSecond::new(&total(500, 9000), &total(100, 1000), over);
        assert_eq!((rates.deliveries_per_s, rates.bytes_out_per_s), (200.0, 4000.0));
        assert_eq!((rates.cpu_share, rates.cpu_us_per_delivery), (0.2, 1000.0));
    }
}
