//! How many users a server carries, by what sending costs it (Groupcast §4 and §6).
//!
//! A server spends its period T on two things: sending updates to all N users, and *other* work on
//! the messages that it gets from them. Times are milliseconds, numbers of users real.

use crate::send_cost::SendCost;
use serde::Serialize;

/// A server, but for what its work costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Server {
    /// When it sends.
    pub model: ServerModel,
    /// T: the most between updates, milliseconds, more than 0.
    pub period_ms: f64,
    /// λ: messages of a user in a period, more than 0.
    pub messages_per_user: f64,
    /// b: bytes of an update, 0 or more.
    pub bytes: f64,
}

/// When a server sends (Groupcast §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerModel {
    /// On every message, to all: λN(H + S) ≤ T (eq. 1).
    Immediate,
    /// Once a period, to all: λNH + S ≤ T (eq. 2).
    Periodic,
}

/// How the other work on a message grows with the users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// Not: H = c (eq. 11).
    Constant,
    /// In proportion: H = cN (eq. 12).
    Linear,
}

/// H: what a server does on a message besides sending (eq. 11, 12).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OtherWork {
    /// How it grows with the users.
    pub growth: Growth,
    /// c, one *other* operation, 0 or more: milliseconds, for linear growth milliseconds per user.
    pub c: f64,
}

/// From what the other work is known. Shares and times were measured with the old way of sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evidence {
    /// c itself.
    Constant(f64),
    /// α: sending one update to one user, in other operations (eq. 18); more than 0.
    Ratio(f64),
    /// f and t of a running server (eq. 14, 15).
    Measured {
        /// f: the share of sending in all processing (eq. 13), more than 0, at most 1.
        send_share: f64,
        /// t: the mean time between updates, milliseconds, more than 0. At t = T, and with neither
        /// users nor messages counted, the server is at capacity.
        time_ms: f64,
        /// N in that time; otherwise it follows from the cost of sending.
        users: Option<f64>,
        /// M: messages received in that time; otherwise the users', λ each a period.
        messages: Option<f64>,
    },
    /// f of a server that was given as many users as it can serve (§6.2, last paragraph).
    StressTest {
        /// f, as above.
        send_share: f64,
        /// The most users, more than 0.
        users: f64,
    },
}

/// What a new way of sending is worth to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// f at the most users of the old way.
    pub send_share: f64,
    /// α there (eq. 18); infinite if there is no other work.
    pub alpha: f64,
    /// The most users, sending the old way.
    pub users_old: f64,
    /// The most users, sending the new way.
    pub users_new: f64,
    /// k: the new most users in old ones (eq. 6).
    pub gain: f64,
    /// r: the old time for sending in new ones (eq. 5), at `users_old` if it depends on them.
    pub speedup: f64,
    /// The gain if there were no other work at all: √r in the immediate model, r in the periodic one
    /// (eq. 19, 20). The gain is between 1 and this. With costs per message it is what the new way
    /// serves in the time that sending takes the old way at `users_old`, over `users_old`.
    pub bound: f64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServerError {
    /// A number is none that can be calculated with.
    #[error("{what} = {value} is out of range; give {range}")]
    Range {
        /// Its name.
        what: &'static str,
        /// What was given.
        value: f64,
        /// What can be.
        range: &'static str,
    },
    /// A cost of sending that is no cost.
    #[error(
        "sending an update to one more user costs {per_user_ms} ms at {bytes} bytes ({cost}); give \
         costs whose x + y·b is more than 0"
    )]
    NoCost {
        /// The cost.
        cost: SendCost,
        /// x + y·b.
        per_user_ms: f64,
        /// b.
        bytes: f64,
    },
    /// There is no time for a single user's share of anything.
    #[error(
        "{time_ms} ms are too little for sending: each update costs {per_message_ms} ms before it \
         goes to anybody; give a longer period, a larger share or a smaller cost per message"
    )]
    NoTime {
        /// What there is for it.
        time_ms: f64,
        /// What it costs without receivers.
        per_message_ms: f64,
    },
    /// The numbers are too far apart.
    #[error("the most users would be {0}; give costs and times closer to each other")]
    Extreme(f64),
}

impl OtherWork {
    /// H at so many users, milliseconds per message.
    pub fn time_ms(&self, users: f64) -> f64 {
        match self.growth {
            Growth::Constant => self.c,
            Growth::Linear => self.c * users,
        }
    }
}

impl Server {
    /// The paper's example (§6.3): a 30th of a second, a message of each user in it, 80 bytes.
    pub const fn paper(model: ServerModel) -> Server {
        Server { model, period_ms: 33.3, messages_per_user: 1.0, bytes: 80.0 }
    }

    /// The other work, from what is known of it, with the old way of sending.
    ///
    /// # Errors
    /// A number out of its range; evidence that leaves no time for sending to anybody.
    pub fn other_work(
        &self,
        growth: Growth,
        evidence: Evidence,
        old: SendCost,
    ) -> Result<OtherWork, ServerError> {
        self.check(old)?;
        evidence.check()?;
        let (users, time_ms) = match evidence {
            Evidence::Constant(c) => return Ok(OtherWork { growth, c }),
            Evidence::Ratio(alpha) => {
                let users = self.users_at_ratio(growth, alpha, old)?;
                return Ok(OtherWork { growth, c: self.per_user(old, users) / alpha });
            }
            Evidence::Measured { send_share, time_ms, users, messages } => {
                let (users, messages) = self.measured(send_share, time_ms, users, messages, old)?;
                (users, (1.0 - send_share) * time_ms / messages)
            }
            Evidence::StressTest { send_share, users } => {
                let sends = match self.model {
                    ServerModel::Immediate => 1.0,
                    ServerModel::Periodic => 1.0 / (self.messages_per_user * users),
                };
                let sending = sends * old.time(users, self.bytes);
                (users, sending * (1.0 - send_share) / send_share)
            }
        };
        let c = match growth {
            Growth::Constant => time_ms,
            Growth::Linear => time_ms / users,
        };
        Ok(OtherWork { growth, c })
    }

    /// N_max: the users at which the server has just no time left (eq. 1, 2).
    ///
    /// # Errors
    /// A number out of its range; a cost per message that alone takes more than the period.
    pub fn most_users(&self, other: OtherWork, send: SendCost) -> Result<f64, ServerError> {
        self.check(send)?;
        in_range("c", other.c, other.c >= 0.0, "0 or more")?;
        let per_user = send.per_user(self.bytes);
        let (message, c) = (send.per_message, other.c);
        let (period, rate) = (self.period_ms, self.messages_per_user);
        let (squared, linear, time) = match (self.model, other.growth) {
            (ServerModel::Immediate, Growth::Constant) => (per_user, c + message, period / rate),
            (ServerModel::Immediate, Growth::Linear) => (per_user + c, message, period / rate),
            (ServerModel::Periodic, Growth::Constant) => {
                (0.0, rate * c + per_user, period - message)
            }
            (ServerModel::Periodic, Growth::Linear) => (rate * c, per_user, period - message),
        };
        users(squared, linear, time, message)
    }

    /// The time that the messages of a period take with so many users, milliseconds: the left side
    /// of eq. 1 and 2. At the most users it is the period.
    pub fn busy_ms(&self, other: OtherWork, send: SendCost, users: f64) -> f64 {
        let messages = self.messages_per_user * users;
        let sends = self.sends(messages);
        messages * other.time_ms(users) + sends * send.time(users, self.bytes)
    }

    /// f: the share of sending in that time (eq. 13), 0 to 1.
    pub fn send_share(&self, other: OtherWork, send: SendCost, users: f64) -> f64 {
        let sends = self.sends(self.messages_per_user * users);
        sends * send.time(users, self.bytes) / self.busy_ms(other, send, users)
    }

    /// What sending the new way is worth.
    ///
    /// # Errors
    /// As of [`Server::most_users`], for either way.
    pub fn compare(
        &self,
        other: OtherWork,
        old: SendCost,
        new: SendCost,
    ) -> Result<Comparison, ServerError> {
        let users_old = self.most_users(other, old)?;
        let users_new = self.most_users(other, new)?;
        Ok(Comparison {
            send_share: self.send_share(other, old, users_old),
            alpha: self.per_user(old, users_old) / other.c,
            users_old,
            users_new,
            gain: users_new / users_old,
            speedup: self.per_user(old, users_old) / self.per_user(new, users_old),
            bound: self.users_in_the_same_time(old, new, users_old) / users_old,
        })
    }

    /// Updates that are sent in the time in which so many messages come.
    fn sends(&self, messages: f64) -> f64 {
        match self.model {
            ServerModel::Immediate => messages,
            ServerModel::Periodic => 1.0,
        }
    }

    /// S(N, b) / N: sending one update to one of so many users.
    fn per_user(&self, send: SendCost, users: f64) -> f64 {
        send.per_user(self.bytes) + send.per_message / users
    }

    /// The users, and the messages in `time_ms`, of a server that spends a share of it on sending
    /// (eq. 14, 15). What was not counted follows from the cost of sending.
    fn measured(
        &self,
        send_share: f64,
        time_ms: f64,
        counted: Option<f64>,
        messages: Option<f64>,
        old: SendCost,
    ) -> Result<(f64, f64), ServerError> {
        let rate = self.messages_per_user / self.period_ms;
        let (per_user, message) = (old.per_user(self.bytes), old.per_message);
        let sending = send_share * time_ms;
        let users = match (counted, messages, self.model) {
            (Some(users), ..) => users,
            (None, None, ServerModel::Immediate) => {
                users(per_user, message, send_share / rate, message)?
            }
            (None, messages, _) => {
                let one = sending / self.sends(messages.unwrap_or(1.0));
                users(0.0, per_user, one - message, message)?
            }
        };
        Ok((users, messages.unwrap_or(rate * users * time_ms)))
    }

    /// The most users if the other work is such that α holds at them: c = S(N, b) / (Nα) put into
    /// eq. 1 and 2.
    fn users_at_ratio(
        &self,
        growth: Growth,
        alpha: f64,
        old: SendCost,
    ) -> Result<f64, ServerError> {
        let (per_user, message) = (old.per_user(self.bytes), old.per_message);
        let (period, rate) = (self.period_ms, self.messages_per_user);
        let (squared, linear, time) = match (self.model, growth) {
            (ServerModel::Immediate, Growth::Constant) => {
                (alpha * per_user, alpha * message + per_user, alpha * period / rate - message)
            }
            (ServerModel::Immediate, Growth::Linear) => {
                (per_user, message, period / rate * (alpha / (1.0 + alpha)))
            }
            (ServerModel::Periodic, Growth::Constant) => {
                (0.0, per_user, period * (alpha / (rate + alpha)) - message)
            }
            (ServerModel::Periodic, Growth::Linear) => {
                (rate / alpha * per_user, per_user + rate / alpha * message, period - message)
            }
        };
        users(squared, linear, time, message)
    }

    /// The users whom the new way serves in the time that sending takes the old way (eq. 21).
    fn users_in_the_same_time(&self, old: SendCost, new: SendCost, users_old: f64) -> f64 {
        let (per_user, message) = (new.per_user(self.bytes), new.per_message);
        let time = old.time(users_old, self.bytes);
        match self.model {
            ServerModel::Immediate => root(per_user, message, time * users_old),
            ServerModel::Periodic => ((time - message) / per_user).max(0.0),
        }
    }

    fn check(&self, send: SendCost) -> Result<(), ServerError> {
        let positive = "more than 0";
        in_range("the period T in ms", self.period_ms, self.period_ms > 0.0, positive)?;
        in_range("λ", self.messages_per_user, self.messages_per_user > 0.0, positive)?;
        in_range("the bytes of an update", self.bytes, self.bytes >= 0.0, "0 or more")?;
        let message = send.per_message;
        in_range("the cost per message in ms", message, message >= 0.0, "0 or more")?;
        let per_user_ms = send.per_user(self.bytes);
        if per_user_ms.is_finite() && per_user_ms > 0.0 {
            return Ok(());
        }
        Err(ServerError::NoCost { cost: send, per_user_ms, bytes: self.bytes })
    }
}

impl Evidence {
    fn check(self) -> Result<(), ServerError> {
        let positive = |what, value: f64| in_range(what, value, value > 0.0, "more than 0");
        let share = |share: f64| {
            let fits = share > 0.0 && share <= 1.0;
            in_range("f", share, fits, "more than 0 and at most 1; without sending, c or α")
        };
        match self {
            Evidence::Constant(c) => in_range("c", c, c >= 0.0, "0 or more"),
            Evidence::Ratio(alpha) => positive("α", alpha),
            Evidence::StressTest { send_share, users } => {
                share(send_share)?;
                positive("the number of users", users)
            }
            Evidence::Measured { send_share, time_ms, users, messages } => {
                share(send_share)?;
                positive("t in ms", time_ms)?;
                positive("the number of users", users.unwrap_or(1.0))?;
                positive("the number of messages", messages.unwrap_or(1.0))
            }
        }
    }
}

fn in_range(
    what: &'static str,
    value: f64,
    fits: bool,
    range: &'static str,
) -> Result<(), ServerError> {
    if value.is_finite() && fits {
        return Ok(());
    }
    Err(ServerError::Range { what, value, range })
}

/// The users who take up `time`, at `squared`·N² + `linear`·N.
fn users(squared: f64, linear: f64, time: f64, per_message_ms: f64) -> Result<f64, ServerError> {
    if time <= 0.0 {
        return Err(ServerError::NoTime { time_ms: time + per_message_ms, per_message_ms });
    }
    let users = root(squared, linear, time);
    if users.is_finite() && users > 0.0 { Ok(users) } else { Err(ServerError::Extreme(users)) }
}

/// The positive root of `squared`·N² + `linear`·N = `time`, in the form that never takes a difference
/// of what is nearly equal.
fn root(squared: f64, linear: f64, time: f64) -> f64 {
    2.0 * time / (linear + linear.hypot(2.0 * (squared * time).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: SendCost = SendCost::PAPER_OLD;
    const NEW: SendCost = SendCost::PAPER_NEW;
    const CASES: [(ServerModel, Growth); 4] = [
        (ServerModel::Immediate, Growth::Constant),
        (ServerModel::Immediate, Growth::Linear),
        (ServerModel::Periodic, Growth::Constant),
        (ServerModel::Periodic, Growth::Linear),
    ];

    /// The paper's f and t, at t = T.
    fn shared(server: &Server, send_share: f64) -> Evidence {
        let time_ms = server.period_ms;
        Evidence::Measured { send_share, time_ms, users: None, messages: None }
    }

    fn compared(server: &Server, growth: Growth, evidence: Evidence) -> Comparison {
        let other = server.other_work(growth, evidence, OLD).unwrap();
        server.compare(other, OLD, NEW).unwrap()
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
    }

    #[test]
    fn the_paper_speeds_up_by_2_8() {
        let speedup = OLD.per_user(80.0) / NEW.per_user(80.0);
        assert!((speedup - 2.8).abs() < 0.005, "{speedup}");
        let unit = |users: f64| SendCost::paper(0.5, 0.25).time(users, 4.0);
        assert_eq!((unit(0.0), unit(1.0), unit(3.0)), (0.0, 1.5, 4.5));
    }

    #[test]
    fn without_other_work_the_gain_is_the_bound() {
        let speedup = OLD.per_user(80.0) / NEW.per_user(80.0);
        for (model, growth) in CASES {
            let server = Server::paper(model);
            for evidence in [shared(&server, 1.0), Evidence::Constant(0.0)] {
                let row = compared(&server, growth, evidence);
                let bound = match model {
                    ServerModel::Immediate => speedup.sqrt(),
                    ServerModel::Periodic => speedup,
                };
                assert!(close(row.gain, bound) && close(row.bound, bound), "{row:?}");
                assert!(close(row.speedup, speedup) && row.alpha.is_infinite());
                assert!(close(row.send_share, 1.0));
            }
        }
    }

    #[test]
    fn four_times_the_speed_is_twice_or_four_times_the_users() {
        // §6.4: a server whose whole period goes to one update for one user.
        for (model, users) in [(ServerModel::Immediate, 2.0), (ServerModel::Periodic, 4.0)] {
            let server = Server { bytes: 0.0, ..Server::paper(model) };
            let [old, new] = [33.3, 33.3 / 4.0].map(|x| SendCost::paper(x, 0.0));
            let other = OtherWork { growth: Growth::Constant, c: 0.0 };
            let row = server.compare(other, old, new).unwrap();
            assert!(close(row.users_old, 1.0) && close(row.users_new, users), "{row:?}");
            assert!(close(row.gain, users) && close(row.speedup, 4.0));
        }
    }

    #[test]
    fn gains_solve_the_papers_equations_by_hand() {
        // f = ½ and r = 4: k/2 + k²/8 = 1, k²/2 + k²/8 = 1, k/2 + k/8 = 1, k²/2 + k/8 = 1.
        let roots = [12.0_f64.sqrt() - 2.0, 1.6_f64.sqrt(), 1.6, (129.0_f64.sqrt() - 1.0) / 8.0];
        for ((model, growth), gain) in CASES.into_iter().zip(roots) {
            let server = Server::paper(model);
            let [old, new] = [0.04, 0.01].map(|x| SendCost::paper(x, 0.0));
            let other = server.other_work(growth, shared(&server, 0.5), old).unwrap();
            let row = server.compare(other, old, new).unwrap();
            assert!(close(row.gain, gain), "{model:?} {growth:?} {} {gain}", row.gain);
        }
    }

    #[test]
    fn the_gain_grows_with_the_share_of_sending() {
        for (model, growth) in CASES {
            let server = Server::paper(model);
            let gain = |percent: u32| {
                compared(&server, growth, shared(&server, f64::from(percent) / 100.0)).gain
            };
            assert!((2..=100).all(|percent| gain(percent) > gain(percent - 1)));
            assert!(gain(1) < 1.01);
        }
    }

    #[test]
    fn immediate_sending_gains_more_where_an_update_is_cheap() {
        // §6.3, figures 10 and 11 at their left.
        for growth in [Growth::Constant, Growth::Linear] {
            let gain = |model| compared(&Server::paper(model), growth, Evidence::Ratio(0.1)).gain;
            assert!(gain(ServerModel::Immediate) > gain(ServerModel::Periodic), "{growth:?}");
        }
    }

    #[test]
    fn a_ratio_of_a_tenth_is_a_share_of_an_eleventh() {
        for (model, growth) in [CASES[1], CASES[2]] {
            for (alpha, share) in [(0.1, 0.0909), (10.0, 0.9090)] {
                let row = compared(&Server::paper(model), growth, Evidence::Ratio(alpha));
                assert!((row.send_share - share).abs() < 1e-4, "{row:?}");
                assert!(close(row.alpha, row.send_share / (1.0 - row.send_share)));
            }
        }
        // The other case has the users in it: above in the periodic model, below in the immediate.
        let row =
            compared(&Server::paper(ServerModel::Periodic), Growth::Linear, Evidence::Ratio(3.0));
        assert!(close(row.alpha, row.users_old * row.send_share / (1.0 - row.send_share)));
        let row = compared(
            &Server::paper(ServerModel::Immediate),
            Growth::Constant,
            Evidence::Ratio(3.0),
        );
        assert!(close(row.alpha, row.send_share / (1.0 - row.send_share) / row.users_old));
    }

    #[test]
    fn what_was_counted_takes_precedence() {
        // Half busy: 30 messages of 30 users in a period, H = (1−f)t/M = 0.5 × 20 / 30.
        let counted = Evidence::Measured {
            send_share: 0.5,
            time_ms: 20.0,
            users: Some(25.0),
            messages: Some(30.0),
        };
        for (model, growth) in CASES {
            let server = Server::paper(model);
            let other = server.other_work(growth, counted, OLD).unwrap();
            assert!(close(other.time_ms(25.0), 10.0 / 30.0), "{other:?}");
        }
        let server = Server { messages_per_user: 2.0, ..Server::paper(ServerModel::Immediate) };
        let users = Evidence::Measured {
            send_share: 0.5,
            time_ms: 20.0,
            users: Some(25.0),
            messages: None,
        };
        let other = server.other_work(Growth::Constant, users, OLD).unwrap();
        assert!(close(other.c, 10.0 / (2.0 * 25.0 * 20.0 / 33.3)));
    }

    #[test]
    fn messages_alone_tell_the_users_by_what_sending_took() {
        for model in [ServerModel::Immediate, ServerModel::Periodic] {
            let server = Server::paper(model);
            // Forty users who send 30 messages; H = 0.2 ms.
            let (users, messages, work) = (40.0, 30.0, 0.2);
            let sending = server.sends(messages) * OLD.time(users, 80.0);
            let time_ms = sending + messages * work;
            let evidence = Evidence::Measured {
                send_share: sending / time_ms,
                time_ms,
                users: None,
                messages: Some(messages),
            };
            let other = server.other_work(Growth::Linear, evidence, OLD).unwrap();
            assert!(close(other.c, work / users), "{other:?}");
        }
    }

    #[test]
    fn evidence_out_of_range_is_refused() {
        let server = Server::paper(ServerModel::Immediate);
        let refused =
            |evidence| server.other_work(Growth::Constant, evidence, OLD).unwrap_err().to_string();
        let none = "f = 0 is out of range; give more than 0 and at most 1";
        assert!(refused(shared(&server, 0.0)).starts_with(none));
        assert!(refused(shared(&server, 1.01)).starts_with("f = 1.01 is out of range"));
        assert!(refused(shared(&server, f64::NAN)).starts_with("f = NaN is out of range"));
        assert!(refused(Evidence::Ratio(0.0)).starts_with("α = 0 is out of range"));
        assert!(refused(Evidence::Constant(-1.0)).starts_with("c = -1 is out of range"));
        let users = Evidence::StressTest { send_share: 0.5, users: 0.0 };
        assert!(refused(users).starts_with("the number of users = 0 is out of range"));
    }

    #[test]
    fn servers_and_costs_out_of_range_are_refused() {
        let none = OtherWork { growth: Growth::Constant, c: 0.0 };
        let server = Server::paper(ServerModel::Periodic);
        let refused = |server: Server, cost| server.most_users(none, cost).unwrap_err().to_string();
        let error = refused(Server { period_ms: 0.0, ..server }, OLD);
        assert!(error.starts_with("the period T in ms = 0 is out of range"), "{error}");
        let error = refused(server, SendCost::default());
        assert!(error.starts_with("sending an update to one more user costs 0 ms"), "{error}");
        let error = refused(server, SendCost { per_message: 40.0, ..OLD });
        assert!(error.starts_with("33.3 ms are too little for sending"), "{error}");
        let error = refused(server, SendCost { per_receiver: f64::INFINITY, ..OLD });
        assert!(error.starts_with("sending an update to one more user costs inf ms"), "{error}");
    }

    fn case() -> impl Strategy<Value = (ServerModel, Growth)> {
        proptest::sample::select(&CASES[..])
    }

    /// Numbers of many sizes.
    fn size() -> impl Strategy<Value = f64> {
        (-6.0..3.0).prop_map(|exponent: f64| 10.0_f64.powf(exponent))
    }

    fn server((model, _): (ServerModel, Growth), period_ms: f64, rate: f64) -> Server {
        Server { model, period_ms, messages_per_user: rate, bytes: 100.0 }
    }

    fn cost((x, y): (f64, f64), per_message: f64) -> SendCost {
        SendCost { per_message, ..SendCost::paper(x, y / 100.0) }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn the_most_users_take_up_the_period(
            case in case(), period in size(), rate in size(), send in (size(), size()), c in size(),
            message in 0.0..0.99,
        ) {
            let server = server(case, period, rate);
            let other = OtherWork { growth: case.1, c };
            for send in [cost(send, 0.0), cost(send, message * period)] {
                let users = server.most_users(other, send).unwrap();
                prop_assert!(close(server.busy_ms(other, send, users), period));
            }
        }

        #[test]
        fn gains_lie_between_one_and_the_bound(
            case in case(), period in size(), rate in size(), old in (size(), size()),
            new in (size(), size()), c in size(), messages in (0.0..0.99, 0.0..0.99),
        ) {
            let server = server(case, period, rate);
            let other = OtherWork { growth: case.1, c };
            let between = |row: Comparison| {
                let (least, most) = (row.bound.min(1.0), row.bound.max(1.0));
                least * (1.0 - 1e-9) <= row.gain && row.gain <= most * (1.0 + 1e-9)
            };
            let row = server.compare(other, cost(old, 0.0), cost(new, 0.0)).unwrap();
            prop_assert!(between(row), "{row:?}");
            let bound = match case.0 {
                ServerModel::Immediate => row.speedup.sqrt(),
                ServerModel::Periodic => row.speedup,
            };
            prop_assert!(close(row.bound, bound), "{row:?}");
            let (old, new) = (cost(old, messages.0 * period), cost(new, messages.1 * period));
            let row = server.compare(other, old, new).unwrap();
            prop_assert!(between(row), "{row:?}");
        }

        #[test]
        fn every_evidence_tells_the_same(
            case in case(), period in size(), rate in size(), old in (size(), size()), c in size(),
            message in 0.0..0.5,
        ) {
            let (server, old) = (server(case, period, rate), cost(old, message * period));
            let other = OtherWork { growth: case.1, c };
            let users = server.most_users(other, old).unwrap();
            let row = server.compare(other, old, old).unwrap();
            // What is left of a share next to 1 has few digits.
            prop_assume!(row.send_share < 0.999);
            let share = row.send_share;
            let measured = |users, messages| {
                Evidence::Measured { send_share: share, time_ms: period, users, messages }
            };
            let count = rate * users;
            let all = [
                Evidence::Constant(c),
                Evidence::Ratio(row.alpha),
                Evidence::StressTest { send_share: share, users },
                measured(None, None),
                measured(Some(users), None),
                measured(Some(users), Some(count)),
            ];
            for evidence in all {
                let found = server.other_work(case.1, evidence, old).unwrap();
                prop_assert!((found.c / c - 1.0).abs() < 1e-6, "{evidence:?}: {found:?}");
            }
        }

        #[test]
        fn shares_and_ratios_round_trip(case in case(), share in 0.001..0.999) {
            let server = Server::paper(case.0);
            let row = compared(&server, case.1, shared(&server, share));
            prop_assert!((row.send_share - share).abs() < 1e-9);
            let again = compared(&server, case.1, Evidence::Ratio(row.alpha));
            prop_assert!((again.send_share - share).abs() < 1e-9);
            prop_assert!(close(again.users_old, row.users_old));
        }
    }
}
