//! How many users a relay carries that sends together what has gathered.
//!
//! The paper's immediate model sends to all users on every message (Groupcast §3, eq. 1). A relay
//! that reads what has arrived since it last looked, and sends each receiver all of it at once, does
//! less the busier it is: its turns grow longer until they are as long as what gathers in one takes.
//! Its periodic model is eq. 2, with an update that holds all messages of the period, so that b grows
//! with N. Times are milliseconds, numbers of users real.

use serde::Serialize;

/// What a relay's work costs, and how much its users send.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BundledServer {
    /// The work of a turn, however much it brings.
    pub per_turn_ms: f64,
    /// H: the work on a message besides sending it.
    pub other_ms: f64,
    /// x of eq. 7: a send to one receiver, whatever it carries.
    pub per_send_ms: f64,
    /// y of eq. 7: each byte to one receiver.
    pub per_byte_ms: f64,
    /// Bytes that a message adds to what each receiver gets.
    pub bytes: f64,
    /// Bytes that a send carries at most, if what a receiver gets at once takes several.
    pub send_bytes: Option<f64>,
    /// Messages of a user in a millisecond.
    pub rate: f64,
}

impl BundledServer {
    /// Eq. 2's left side: the work of a turn that sends what gathered in so many milliseconds.
    pub fn turn_work_ms(&self, users: f64, gathered_ms: f64) -> f64 {
        let messages = users * self.rate * gathered_ms;
        let bytes = users * messages * self.bytes;
        let sends = users * self.sends(messages);
        self.per_turn_ms
            + messages * self.other_ms
            + sends * self.per_send_ms
            + bytes * self.per_byte_ms
    }

    /// The most users whose messages are out within `time_ms`. In periodic mode that is the tick:
    /// what gathered in one is sent before the next. In immediate mode it is the paper's T, the mean
    /// time until a message is out: turns grow until each takes up what arrived in the one before; a
    /// message waits half a turn for the end of the one that it missed, and half of its receivers
    /// are served when half of its own is over.
    pub fn most_users(&self, time_ms: f64) -> f64 {
        let (mut fits, mut exceeds) = (0.0, 1.0_f64);
        while exceeds.is_finite() && self.turn_work_ms(exceeds, time_ms) < time_ms {
            exceeds *= 2.0;
        }
        // Halved until the two are neighbours.
        for _ in 0..64 {
            let middle = f64::midpoint(fits, exceeds);
            if self.turn_work_ms(middle, time_ms) < time_ms {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        fits
    }

    /// Sends to a receiver for so many messages, on average: their number varies from turn to turn
    /// like that of independent arrivals.
    fn sends(&self, messages: f64) -> f64 {
        let Some(most) = self.send_bytes else { return 1.0 };
        let (mean, deviation) = (messages * self.bytes, messages.sqrt() * self.bytes);
        // The sum ends so far up that its end does not show. A step in the work would leave a gap.
        let last = ((mean + 12.0 * deviation) / most).ceil() as u32;
        let exceeded = (1..=last).map(|full| at_most((mean - f64::from(full) * most) / deviation));
        1.0 + exceeded.sum::<f64>()
    }
}

/// The normal distribution's share up to so many deviations above the mean, to a hundredth.
fn at_most(deviations: f64) -> f64 {
    1.0 / (1.0 + (-1.702 * deviations).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn server()(
            per_turn_ms in 0.0..0.1,
            other_ms in 1e-4..1e-2,
            per_send_ms in 1e-4..1e-2,
            per_byte_ms in 0.0..1e-5,
            bytes in 20.0..1400.0,
            send_bytes in proptest::option::of(1000.0..1500.0),
            rate in 0.001..0.2,
        ) -> BundledServer {
            BundledServer {
                per_turn_ms, other_ms, per_send_ms, per_byte_ms, bytes, send_bytes, rate,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn at_capacity_the_time_is_used_up(server in server(), time in 1.0..100.0) {
            let users = server.most_users(time);
            prop_assert!((server.turn_work_ms(users, time) / time - 1.0).abs() < 1e-6);
        }

        #[test]
        fn more_users_are_more_work(server in server(), users in 1.0..1000.0) {
            prop_assert!(server.turn_work_ms(users * 1.01, 5.0) > server.turn_work_ms(users, 5.0));
        }
    }

    #[test]
    fn without_other_work_and_bytes_it_is_receivers_by_time() {
        let server = BundledServer {
            per_turn_ms: 0.0,
            other_ms: 0.0,
            per_send_ms: 0.01,
            per_byte_ms: 0.0,
            bytes: 100.0,
            send_bytes: None,
            rate: 0.02,
        };
        assert!((server.most_users(5.0) - 500.0).abs() < 1e-6);
        // Ten messages a turn, of which a send carries five.
        let cut = BundledServer { send_bytes: Some(550.0), ..server };
        assert!((cut.sends(10.0) - 2.3).abs() < 0.1, "{}", cut.sends(10.0));
        assert!((cut.sends(0.1) - 1.0).abs() < 0.1, "{}", cut.sends(0.1));
    }
}
