//! What a world cost, for tables and charts.

use super::config::ScaleCore;
use super::world::World;
use serde::{Deserialize, Serialize};

/// What one world cost. Processor time is that of all relays together, as the [`Gauge`](super::Gauge)
/// tells it; what links cost by themselves is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleRow {
    /// Relays.
    pub relays: u32,
    /// Participants of all relays.
    pub endpoints: u32,
    /// Which relays are the core.
    pub core: ScaleCore,
    /// Sites, each a subtree.
    pub sites: u16,
    /// Links from the centre to the farthest relay.
    pub depth: u32,
    /// Groups that somebody may be subscribed to.
    pub groups: u32,
    /// Learned routes of the median relay, after everyone has written to somebody.
    pub routes_median: u32,
    /// Those of the relay with the most.
    pub routes_max: u32,
    /// Learned routes of the median relay, after a part of the participants has written to many others each.
    pub busy_routes_median: u32,
    /// Those of the relay with the most.
    pub busy_routes_max: u32,
    /// The same with a relay's own participants: one for each other site, one for each endpoint of
    /// its own site (Forest §3.2).
    pub addresses_median: u32,
    /// That of the relay with the most.
    pub addresses_max: u32,
    /// The most that a relay may know by its sites.
    pub addresses_planned: u32,
    /// The most, in square roots of the number of endpoints.
    pub addresses_per_root: f64,
    /// Datagrams between a participant and its relay for a join.
    pub join_datagrams: f64,
    /// Datagrams between relays for a join.
    pub join_link_datagrams: f64,
    /// Processor time of a join in microseconds.
    pub join_cpu_us: f64,
    /// Copies sent to branches because the way was not known, for each participant that wrote to
    /// another for the first time and was answered.
    pub contact_copies: f64,
    /// Answers of relays to who asked for the way, for each.
    pub contact_replies: f64,
    /// Processor time of a unicast in microseconds, with all that is asked for and answered.
    pub contact_cpu_us: f64,
    /// Relays that hear of a subscription, the participant's own included.
    pub subscribe_relays: f64,
    /// Links that a subscription goes over.
    pub subscribe_hops: f64,
    /// Datagrams between relays for a subscription.
    pub subscribe_link_datagrams: f64,
    /// Processor time of a subscription in microseconds.
    pub subscribe_cpu_us: f64,
    /// Groups of the relay that knows of most.
    pub groups_max: u32,
    /// Subscriptions of the relay that has most.
    pub subscriptions_max: u32,
    /// Copies of an update to a group, to participants and over links.
    pub update_copies: f64,
    /// Deliveries of all updates, every one to each subscriber once.
    pub deliveries: u64,
    /// Processor time of a delivery in microseconds.
    pub delivery_cpu_us: f64,
    /// Memory of a relay with its links and without participants, in KiB.
    pub memory_empty_kib: f64,
    /// Memory of a relay in the end in KiB. Its participants' sessions are in it, for they live in the
    /// same process.
    pub memory_kib: f64,
    /// Processor time that a link costs by itself in microseconds a second, both sides together.
    pub idle_cpu_us: f64,
}

/// How many routes relays have learned.
pub(crate) struct Routes {
    pub(crate) median: u32,
    pub(crate) max: u32,
}

impl Routes {
    pub(crate) fn of(world: &World<'_>) -> Routes {
        let routes = world.machines.iter().map(|machine| machine.relay().routes());
        let mut routes: Vec<_> = routes.collect();
        routes.sort_unstable();
        let median = routes.get(routes.len() / 2).copied().unwrap_or(0);
        Routes { median, max: routes.last().copied().unwrap_or(0) }
    }
}

/// The exponent with which y grows with x: the slope of the line through the logarithms, by least
/// squares. `None` for fewer than two different x.
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<_> = points
        .iter()
        .filter(|(x, y)| *x > 0.0 && *y > 0.0)
        .map(|(x, y)| (x.ln(), y.ln()))
        .collect();
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (middle_x, middle_y) = (mean(|log| log.0), mean(|log| log.1));
    let spread: f64 = logs.iter().map(|(x, _)| (x - middle_x).powi(2)).sum();
    let slope: f64 = logs.iter().map(|(x, y)| (x - middle_x) * (y - middle_y)).sum();
    (spread > 1e-9).then_some(slope / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_root_is_a_half() {
        let roots = [10.0_f64, 100.0, 3000.0].map(|x| (x, 7.0 * x.sqrt()));
        assert!((exponent(&roots).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(exponent(&roots[..1]), None);
        assert_eq!(exponent(&[]), None);
    }
}
