//! Whether those who may be sent so much only are sent no more than that.

use canopy_relay::{Budget, Down, Mode};
use canopy_wire::{MAX_DATAGRAM, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// No such time brings more than its budget, and what is at once.
const WINDOWS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Datagrams of one update each that a receiver may be sent beside what its budget holds in the shorter time: the one
/// that it may save up.
const SAVED_UP: u64 = 1;
/// The same of a longer one, where another may exceed what is left.
const AT_ONCE: u64 = 2;
/// What comes without ticks may be saved up for so long.
const SAVED: Duration = Duration::from_millis(25);

/// What a receiver is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) bytes: u64,
    pub(crate) updates: u64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.bytes += other.bytes;
        self.updates += other.updates;
    }

    /// # Errors
    /// It is more than a budget holds in so long, and what is at once: of updates, one for each datagram; or, where a
    /// path may bear so little that a datagram takes it longer than many updates take the budget, what goes into those
    /// by the mean length.
    fn is_within(
        self,
        down: Down,
        (lasts, at_once): (Duration, u64),
        asks_paths: bool,
    ) -> Result<(), String> {
        let millis = lasts.as_millis() as u64;
        let (bytes, updates) = (down.bits * millis / 8000, down.updates * millis / 1000);
        let of_datagrams = at_once * MAX_DATAGRAM as u64;
        let more = self.updates.saturating_sub(updates);
        let goes_in = asks_paths && self.bytes * more <= of_datagrams * self.updates;
        let err = |sent, budget, what| {
            Err(format!("{sent} {what} in {lasts:?}, where {budget} are its budget"))
        };
        if down.bits > 0 && self.bytes > bytes + of_datagrams {
            return err(self.bytes, bytes, "bytes");
        }
        if down.updates > 0 && more > at_once && !goes_in {
            return err(self.updates, updates, "updates");
        }
        Ok(())
    }
}

/// What one receiver was sent lately.
#[derive(Debug)]
struct Sent {
    down: Down,
    since: Time,
    /// All that it was sent since then.
    all: Amount,
    lately: VecDeque<(Time, Amount)>,
}

/// What limited receivers are sent, by the relay's time of sending.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// What comes in so long may be saved up: where updates come with ticks, in a tick.
    saved: Duration,
    /// Whether the relay asks how much paths bear.
    asks_paths: bool,
    receivers: BTreeMap<SocketAddr, Sent>,
}

impl Pacing {
    pub(crate) fn new(mode: Mode, asks_paths: bool) -> Pacing {
        let saved = if let Mode::Periodic { tick } = mode { tick.max(SAVED) } else { SAVED };
        Pacing { saved, asks_paths, ..Pacing::default() }
    }

    /// Whoever is at an ip:port may be sent so much from now on.
    pub(crate) fn limit(&mut self, now: Time, ip_port: SocketAddr, budget: &Budget) {
        let down = Down { bits: budget.down_bits, updates: budget.down_packets };
        let (all, lately) = (Amount::default(), VecDeque::new());
        self.receivers.insert(ip_port, Sent { down, since: now, all, lately });
    }

    /// Whoever is at an ip:port may come to share another's allowance.
    pub(crate) fn shares(&mut self, now: Time, ip_port: SocketAddr) {
        if let Some(sent) = self.receivers.get_mut(&ip_port) {
            (sent.since, sent.all) = (now, Amount::default());
        }
    }

    /// All that somebody was sent since it was limited, or may have come to share another's allowance.
    ///
    /// # Errors
    /// It is more than its budget for that time.
    pub(crate) fn check_all(&self, now: Time, to: SocketAddr) -> Result<(), String> {
        let Some(sent) = self.receivers.get(&to) else { return Ok(()) };
        let lasts = now.since(sent.since) + self.saved;
        let is_within = sent.all.is_within(sent.down, (lasts, AT_ONCE), self.asks_paths);
        is_within.map_err(|what| format!("{to} was sent {what}"))
    }

    /// Nobody that is limited is at an ip:port any more, as far as is known.
    pub(crate) fn forget(&mut self, ip_port: SocketAddr) {
        self.receivers.remove(&ip_port);
    }

    /// The relay sends a datagram with updates.
    ///
    /// # Errors
    /// It is more than the receiver may be sent.
    pub(crate) fn sends(
        &mut self,
        now: Time,
        to: SocketAddr,
        amount: Amount,
    ) -> Result<(), String> {
        let Some(sent) = self.receivers.get_mut(&to) else { return Ok(()) };
        sent.lately.push_back((now, amount));
        sent.all.add(amount);
        let longest = WINDOWS[WINDOWS.len() - 1];
        while sent.lately.front().is_some_and(|(at, _)| now.since(*at) >= longest) {
            sent.lately.pop_front();
        }
        for window in WINDOWS.into_iter().filter(|window| now.since(sent.since) >= *window) {
            let mut all = Amount::default();
            let within = sent.lately.iter().filter(|(at, _)| now.since(*at) < window);
            within.for_each(|(_, amount)| all.add(*amount));
            let (saved, at_once) =
                if window == longest { (self.saved, AT_ONCE) } else { (Duration::ZERO, SAVED_UP) };
            let is_within = all.is_within(sent.down, (window + saved, at_once), self.asks_paths);
            is_within.map_err(|what| format!("{to} was sent {what}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::Budgets;

    /// What is said of the first datagram that exceeds a budget of ten updates a second, where one of one update goes
    /// each `gap` for three seconds.
    fn each(gap: Duration) -> Result<(), String> {
        let mut pacing = Pacing::new(Mode::Immediate, false);
        let to = "10.0.0.2:20001".parse().unwrap();
        let budget = Budget { down_packets: 10, ..Budgets::default().member };
        pacing.limit(Time::ZERO, to, &budget);
        let gaps = 3_000_000_000 / gap.as_nanos() as u32;
        let mut sends =
            |at| pacing.sends(Time::ZERO + gap * at, to, Amount { bytes: 100, updates: 1 });
        (0..gaps).try_for_each(&mut sends)
    }

    #[test]
    fn what_exceeds_a_budget_is_found_over_either_window() {
        assert_eq!(each(Duration::from_millis(100)), Ok(()));
        // Two in 100 ms are one and what was saved up; fifteen in a second are more than ten and two.
        assert!(each(Duration::from_millis(70)).unwrap_err().contains("updates in 1."));
        assert!(each(Duration::from_millis(40)).unwrap_err().contains("updates in 100ms"));
    }
}
