//! Whether those who may be sent so much only are sent no more than that.

use canopy_relay::{Budget, Down, Mode};
use canopy_wire::{MAX_DATAGRAM, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// No such time brings more than its budget, and what is at once.
const WINDOWS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Datagrams that a receiver may be sent at once, beside what its budget holds: the one that it may save
/// up, the one that exceeds what is left, and one more when it comes to share another's allowance.
const AT_ONCE: u64 = 3;
/// Updates of such a datagram.
const UPDATES_AT_ONCE: u64 = 1;

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
    /// It is more than a budget holds in so long, and what is at once.
    fn is_within(self, down: Down, lasts: Duration) -> Result<(), String> {
        let millis = lasts.as_millis() as u64;
        let (bytes, updates) = (down.bits * millis / 8000, down.updates * millis / 1000);
        let limits = [
            (down.bits, self.bytes, bytes, MAX_DATAGRAM as u64, "bytes"),
            (down.updates, self.updates, updates, UPDATES_AT_ONCE, "updates"),
        ];
        for (limit, sent, budget, of_datagram, what) in limits {
            if limit > 0 && sent > budget + AT_ONCE * of_datagram {
                return Err(format!("{sent} {what} in {lasts:?}, where {budget} are its budget"));
            }
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
    /// Where updates come with ticks, what a tick brings may be saved up.
    tick: Duration,
    receivers: BTreeMap<SocketAddr, Sent>,
}

impl Pacing {
    pub(crate) fn new(mode: Mode) -> Pacing {
        let tick = if let Mode::Periodic { tick } = mode { tick } else { Duration::ZERO };
        Pacing { tick, ..Pacing::default() }
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
        let lasts = now.since(sent.since) + self.tick;
        sent.all.is_within(sent.down, lasts).map_err(|what| format!("{to} was sent {what}"))
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
            let saved = if window == longest { self.tick } else { Duration::ZERO };
            let is_within = all.is_within(sent.down, window + saved);
            is_within.map_err(|what| format!("{to} was sent {what}"))?;
        }
        Ok(())
    }
}
