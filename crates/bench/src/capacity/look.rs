//! What a relay did under a load, and what its work costs by that.

use crate::noise::median;
use crate::relay::load::PERIOD;
use canopy_node::ThreadStatus;
use canopy_plan::BundledServer;
use std::time::Duration;

/// Two looks tell a slope only if one shows at least this many times what the other does.
const FAR_APART: f64 = 1.25;

/// What a relay did under a load.
#[derive(Default)]
pub(super) struct Look {
    pub(super) users: f64,
    pub(super) elapsed_ms: f64,
    pub(super) busy_ms: f64,
    pub(super) sending_ms: f64,
    pub(super) messages: f64,
    pub(super) flushes: f64,
    /// Datagrams to all receivers, and bytes of UDP payload.
    pub(super) datagrams: f64,
    pub(super) bytes: f64,
    /// The mean age of deliveries.
    pub(super) age_ms: f64,
    pub(super) lost: u64,
    /// The share of its time for which the load was busy.
    pub(super) load_busy: f64,
}

impl Look {
    /// `softirq_busy` is the share of the time that the relay's processor did receive work on its
    /// own: what the relay sends makes it.
    pub(super) fn between(before: &ThreadStatus, after: &ThreadStatus, softirq_busy: f64) -> Look {
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        let (old, new) = (&before.counters, &after.counters);
        let elapsed_ms = millis(after.at.since(before.at));
        Look {
            elapsed_ms,
            busy_ms: millis(after.cpu.saturating_sub(before.cpu)) + softirq_busy * elapsed_ms,
            sending_ms: millis(after.sending.saturating_sub(before.sending)),
            messages: (new.updates_in - old.updates_in) as f64,
            flushes: (new.flushes - old.flushes) as f64,
            datagrams: (new.datagrams_out - old.datagrams_out) as f64,
            bytes: (new.bytes_out - old.bytes_out) as f64,
            ..Look::default()
        }
    }

    /// The share of ticks with something to send whose flush came before the next tick.
    pub(super) fn ticks_kept(&self, tick_ms: f64) -> f64 {
        let ticks = self.elapsed_ms / tick_ms;
        let with_messages = ticks * (1.0 - (-self.messages / ticks).exp());
        self.flushes / with_messages
    }

    /// The work besides sending.
    fn other_ms(&self) -> f64 {
        // Different clocks.
        (self.busy_ms - self.sending_ms).max(0.0)
    }

    /// The bytes that a send carries and what it takes: one for each receiver of a flush, or one for
    /// each datagram.
    fn per_send(&self, one_by_one: bool) -> [f64; 2] {
        let sends = if one_by_one { self.datagrams } else { self.flushes * self.users };
        [self.bytes, self.sending_ms].map(|sum| sum / sends)
    }

    /// The messages of a flush and the work on them besides sending.
    fn per_flush(&self) -> [f64; 2] {
        [self.messages, self.other_ms()].map(|sum| sum / self.flushes)
    }
}

/// What a relay's work costs, from looks at it, of which the first is at the updates that it is to be
/// predicted for. `send_bytes` is what a send carries, if what a receiver gets at once takes several.
pub(super) fn costs(looks: &[Look], send_bytes: Option<f64>) -> BundledServer {
    let points = |of: fn(&Look, bool) -> [f64; 2]| -> Vec<[f64; 2]> {
        looks.iter().map(|look| of(look, send_bytes.is_some())).collect()
    };
    let (other_ms, per_turn_ms) = line(&points(|look, _| look.per_flush()));
    let (per_byte_ms, per_send_ms) = line(&points(Look::per_send));
    BundledServer {
        per_turn_ms,
        other_ms,
        per_send_ms,
        per_byte_ms,
        bytes: looks[0].bytes / (looks[0].messages * looks[0].users),
        send_bytes,
        rate: 1.0 / PERIOD.as_secs_f64() / 1e3,
    }
}

/// The slope and the value at 0, neither negative, of a line through points of which some were
/// disturbed: the median slope of all pairs that are far enough apart, and the median of what it
/// leaves (Theil and Sen).
fn line(points: &[[f64; 2]]) -> (f64, f64) {
    let slopes: Vec<f64> = points
        .iter()
        .flat_map(|a| points.iter().map(move |b| (a, b)))
        .filter(|(a, b)| b[0] > a[0] * FAR_APART)
        .map(|(a, b)| (b[1] - a[1]) / (b[0] - a[0]))
        .collect();
    let of_points = |of: &dyn Fn(f64, f64) -> f64| {
        median(&points.iter().map(|[x, y]| of(*x, *y)).collect::<Vec<f64>>())
    };
    // Without slopes their median is no number, and this is 0.
    let slope = median(&slopes).max(0.0);
    let at_zero = of_points(&|x, y| y - slope * x);
    if at_zero < 0.0 { (of_points(&|x, y| y / x), 0.0) } else { (slope, at_zero) }
}

/// Eq. 1 solved for the users, with T as long as it likes: λN(H + S) = T does not depend on it.
pub(super) fn by_equation_1(costs: &BundledServer) -> f64 {
    let message = costs.per_turn_ms + costs.other_ms;
    let receiver = costs.per_send_ms + costs.per_byte_ms * costs.bytes;
    let root = (costs.rate * message).powi(2) + 4.0 * costs.rate * receiver;
    2.0 / (costs.rate * message + root.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: BundledServer = BundledServer {
        per_turn_ms: 0.004,
        other_ms: 0.001,
        per_send_ms: 0.002,
        per_byte_ms: 1e-7,
        bytes: 112.0,
        send_bytes: None,
        rate: 0.02,
    };

    fn look(users: f64, flushes: f64) -> Look {
        let costs = COSTS;
        let (elapsed_ms, bytes) = (1000.0, costs.bytes);
        let messages = users * costs.rate * elapsed_ms;
        let sending_ms =
            flushes * users * costs.per_send_ms + messages * users * bytes * costs.per_byte_ms;
        let other_ms = flushes * costs.per_turn_ms + messages * costs.other_ms;
        Look {
            users,
            elapsed_ms,
            busy_ms: sending_ms + other_ms,
            sending_ms,
            messages,
            flushes,
            datagrams: flushes * users,
            bytes: messages * users * bytes,
            ..Look::default()
        }
    }

    #[test]
    fn looks_tell_the_costs_in_spite_of_disturbances() {
        let disturbed = |look: Look| Look {
            busy_ms: look.busy_ms * 3.0,
            sending_ms: look.sending_ms * 2.5,
            ..look
        };
        let looks: Vec<Look> = (0..8)
            .map(|number| {
                let look = if number % 2 == 0 { look(50.0, 900.0) } else { look(90.0, 1200.0) };
                if [2, 5].contains(&number) { disturbed(look) } else { look }
            })
            .collect();
        let found = costs(&looks, None);
        for (found, expected) in [
            (found.per_turn_ms, COSTS.per_turn_ms),
            (found.other_ms, COSTS.other_ms),
            (found.per_send_ms, COSTS.per_send_ms),
            (found.per_byte_ms, COSTS.per_byte_ms),
            (found.bytes, COSTS.bytes),
        ] {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn no_cost_is_negative() {
        assert_eq!(line(&[[1.0, 5.0]]), (0.0, 5.0), "no slope to see");
        assert_eq!(line(&[[1.0, 5.0], [2.0, 4.0]]), (0.0, 4.0), "falls");
        assert_eq!(line(&[[1.0, 1.0], [2.0, 4.0]]), (1.0, 0.0), "begins below 0");
        assert_eq!(line(&[[1.0, 5.0], [2.0, 7.0]]), (2.0, 3.0));
    }

    #[test]
    fn equation_1_is_solved() {
        let costs = BundledServer {
            per_turn_ms: 0.0,
            other_ms: 0.003,
            per_send_ms: 0.001,
            per_byte_ms: 0.0,
            bytes: 100.0,
            send_bytes: None,
            rate: 0.02,
        };
        let users = by_equation_1(&costs);
        assert!((users * costs.rate * (0.003 + 0.001 * users) - 1.0).abs() < 1e-9);
    }
}
