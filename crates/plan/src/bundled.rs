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
    /// x of eq. 7: sending to one receiver, whatever it gets.
    pub per_receiver_ms: f64,
    /// y of eq. 7: each byte to one receiver.
    pub per_byte_ms: f64,
    /// Bytes that a message adds to what each receiver gets.
    pub bytes: f64,
    /// Messages of a user in a millisecond.
    pub rate: f64,
}

impl BundledServer {
    /// Eq. 2's left side: the work of a period of so many milliseconds.
    pub fn period_work_ms(&self, users: f64, period_ms: f64) -> f64 {
        self.turn_alone_ms(users) + users * self.rate * period_ms * self.message_ms(users)
    }

    /// How long a turn is, if each takes up what arrived in the one before: t = A + xN + ρNt(H + yNb).
    /// Infinite if the messages of a turn take longer than it.
    pub fn turn_ms(&self, users: f64) -> f64 {
        let left = 1.0 - users * self.rate * self.message_ms(users);
        if left > 0.0 { self.turn_alone_ms(users) / left } else { f64::INFINITY }
    }

    /// The most users whose period's work is done within the period.
    pub fn most_users_periodic(&self, period_ms: f64) -> f64 {
        self.most_users(period_ms, period_ms)
    }

    /// The most users whose messages are out within the deadline on average (the paper's T of the
    /// immediate model): a message waits half a turn for the end of the one that it missed, and half
    /// of its receivers are served when half of its own turn is over.
    pub fn most_users_immediate(&self, deadline_ms: f64) -> f64 {
        self.most_users(deadline_ms, deadline_ms)
    }

    /// Solves A + xN + ρN·gathering(H + yNb) = within.
    fn most_users(&self, gathering_ms: f64, within_ms: f64) -> f64 {
        let within_ms = (within_ms - self.per_turn_ms).max(0.0);
        let messages = self.rate * gathering_ms;
        let quadratic = messages * self.per_byte_ms * self.bytes;
        let linear = self.per_receiver_ms + messages * self.other_ms;
        // In this form nothing cancels, and without a quadratic term it is within / linear.
        2.0 * within_ms / (linear + (linear * linear + 4.0 * quadratic * within_ms).sqrt())
    }

    fn turn_alone_ms(&self, users: f64) -> f64 {
        self.per_turn_ms + users * self.per_receiver_ms
    }

    fn message_ms(&self, users: f64) -> f64 {
        self.other_ms + self.per_byte_ms * users * self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn server()(
            per_turn_ms in 0.0..0.1,
            other_ms in 1e-4..1e-2,
            per_receiver_ms in 1e-4..1e-2,
            per_byte_ms in 0.0..1e-5,
            bytes in 20.0..1400.0,
            rate in 0.001..0.2,
        ) -> BundledServer {
            BundledServer { per_turn_ms, other_ms, per_receiver_ms, per_byte_ms, bytes, rate }
        }
    }

    proptest! {
        #[test]
        fn at_capacity_the_time_is_used_up(server in server(), time in 1.0..100.0) {
            let users = server.most_users_periodic(time);
            prop_assert!((server.period_work_ms(users, time) / time - 1.0).abs() < 1e-9);
            let users = server.most_users_immediate(time);
            prop_assert!((server.turn_ms(users) / time - 1.0).abs() < 1e-6);
        }

        #[test]
        fn more_time_carries_more_users(server in server(), time in 1.0..100.0) {
            prop_assert!(server.most_users_periodic(time) < server.most_users_periodic(time * 1.1));
            prop_assert!(server.turn_ms(1e9).is_infinite());
        }
    }

    #[test]
    fn without_other_work_and_bytes_it_is_receivers_by_time() {
        let server = BundledServer {
            per_turn_ms: 0.0,
            other_ms: 0.0,
            per_receiver_ms: 0.01,
            per_byte_ms: 0.0,
            bytes: 100.0,
            rate: 0.02,
        };
        assert!((server.most_users_periodic(5.0) - 500.0).abs() < 1e-9);
    }
}
