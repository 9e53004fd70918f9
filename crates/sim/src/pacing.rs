//! Whether those who may be sent so much only are sent no more than that.

use canopy_relay::{Budget, Mode};
use canopy_wire::{MAX_DATAGRAM, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// No such time brings more than its budget, and what is at once.
const WINDOWS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Datagrams that a receiver may be sent at once, beside what its budget holds: the one that it may save
/// up, the one that exceeds what is left, and one more when it comes to share another's allowance.
const AT_ONCE: u64 = 3;

/// What one receiver was sent lately.
#[derive(Debug)]
struct Sent {
    bits: u64,
    since: Time,
    /// All that it was sent since then.
    all: u64,
    lately: VecDeque<(Time, u64)>,
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
        let (bits, lately) = (budget.down_bits, VecDeque::new());
        self.receivers.insert(ip_port, Sent { bits, since: now, all: 0, lately });
    }

    /// Whoever is at an ip:port may come to share another's allowance.
    pub(crate) fn shares(&mut self, now: Time, ip_port: SocketAddr) {
        if let Some(sent) = self.receivers.get_mut(&ip_port) {
            (sent.since, sent.all) = (now, 0);
        }
    }

    /// All that somebody was sent since it was limited, or may have come to share another's allowance.
    ///
    /// # Errors
    /// It is more than its budget for that time.
    pub(crate) fn check_all(&self, now: Time, to: SocketAddr) -> Result<(), String> {
        let Some(sent) = self.receivers.get(&to).filter(|sent| sent.bits > 0) else {
            return Ok(());
        };
        let (lasts, all) = (now.since(sent.since) + self.tick, sent.all);
        let budget = sent.bits * lasts.as_millis() as u64 / 8000;
        if all <= budget + AT_ONCE * MAX_DATAGRAM as u64 {
            return Ok(());
        }
        Err(format!("{to} was sent {all} bytes in {lasts:?}, where {budget} are its budget"))
    }

    /// Nobody that is limited is at an ip:port any more, as far as is known.
    pub(crate) fn forget(&mut self, ip_port: SocketAddr) {
        self.receivers.remove(&ip_port);
    }

    /// The relay sends a datagram with updates.
    ///
    /// # Errors
    /// It is more than the receiver may be sent.
    pub(crate) fn sends(&mut self, now: Time, to: SocketAddr, bytes: usize) -> Result<(), String> {
        let Some(sent) = self.receivers.get_mut(&to).filter(|sent| sent.bits > 0) else {
            return Ok(());
        };
        sent.lately.push_back((now, bytes as u64));
        sent.all += bytes as u64;
        let longest = WINDOWS[WINDOWS.len() - 1];
        while sent.lately.front().is_some_and(|(at, _)| now.since(*at) >= longest) {
            sent.lately.pop_front();
        }
        for window in WINDOWS {
            let within = sent.lately.iter().filter(|(at, _)| now.since(*at) < window);
            let bytes: u64 = within.map(|(_, bytes)| bytes).sum();
            let saved = if window == longest { self.tick } else { Duration::ZERO };
            let budget = sent.bits * (window + saved).as_millis() as u64 / 8000;
            if now.since(sent.since) >= window && bytes > budget + AT_ONCE * MAX_DATAGRAM as u64 {
                return Err(format!(
                    "{to} was sent {bytes} bytes in {window:?}, where {budget} are its budget"
                ));
            }
        }
        Ok(())
    }
}
