//! The paths to the receivers: what is sent to each, what it reports of it, and how much its path bears.
//!
//! Nothing of this is on an update's way but one addition for each receiver and send. Probes
//! are sent in rounds over those receivers that were sent something since their last probe.

mod base_delay;
mod controller;
mod receiver;
mod shared;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use crate::index::PortIndex;
use canopy_wire::{Report, Time, Traffic};
use core::net::IpAddr;
use core::time::Duration;
use receiver::ReceiverPath;
pub(crate) use receiver::{Taken, micros};
pub(crate) use shared::PathMarks;
use shared::SharedPaths;
use std::sync::Arc;

/// Between two rounds, and between two portions of one.
const ROUND_EVERY: Duration = Duration::from_millis(25);
const PORTION_EVERY: Duration = Duration::from_millis(1);

/// Whether a port is in the list of those that may be due for a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    /// It has no path that is asked: a relay's, or a participant's that has not subscribed yet.
    #[default]
    Never,
    /// It is in the list as soon as something is sent to it.
    Idle,
    /// It is in the list.
    Listed,
    /// It is in the list still, but closed since.
    Stale,
}

/// What a port was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// Since it was opened.
    traffic: Traffic,
    /// Updates since it was opened, and until the last probe; they wrap.
    updates: u32,
    probed_updates: u32,
    /// Updates that were left out since the last probe.
    left_out: u32,
    listing: Listing,
}

/// A probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) port: PortIndex,
    pub(crate) number: u32,
    pub(crate) sent: Traffic,
    /// How many in a thousand of the updates that were meant for the receiver since its last probe were sent,
    /// and how many were not.
    pub(crate) share: u16,
    pub(crate) left_out: u32,
}

/// By port: its path.
pub(crate) struct Paths {
    sent: Vec<Sent>,
    paths: Vec<Option<Box<ReceiverPath>>>,
    shared: SharedPaths,
    /// Ports that may be due for a probe, and the one of them that is looked at next.
    listed: Vec<PortIndex>,
    next: usize,
    /// When the round began that is under way, or was last; and when to go on.
    began: Time,
    at: Time,
    /// The earliest that one is due that was looked at in this round.
    earliest: Option<Time>,
}

impl Paths {
    pub(crate) fn new(max_ports: u32, marks: Arc<PathMarks>, thread: u16) -> Paths {
        let max_ports = max_ports as usize;
        Paths {
            sent: Vec::with_capacity(max_ports),
            paths: Vec::with_capacity(max_ports),
            shared: SharedPaths::new(marks, thread, max_ports),
            listed: Vec::with_capacity(max_ports),
            next: 0,
            began: Time::ZERO,
            at: Time::ZERO,
            earliest: None,
        }
    }

    /// A port is opened.
    pub(crate) fn open(&mut self, port: PortIndex) {
        let index = port as usize;
        if index >= self.sent.len() {
            self.sent.resize(index + 1, Sent::default());
            self.paths.resize_with(index + 1, || None);
        }
        let listing = self.sent[index].listing;
        self.sent[index] = Sent { listing, ..Sent::default() };
    }

    /// A port is closed.
    pub(crate) fn close(&mut self, port: PortIndex) {
        let Some(sent) = self.sent.get_mut(port as usize) else { return };
        let is_in_list = matches!(sent.listing, Listing::Listed | Listing::Stale);
        sent.listing = if is_in_list { Listing::Stale } else { Listing::Never };
        self.paths[port as usize] = None;
        self.shared.forget(port);
    }

    /// The path of a participant at an ip is asked from now on, and at once.
    pub(crate) fn begin(&mut self, port: PortIndex, ip: IpAddr) {
        let index = port as usize;
        let Some(path @ None) = self.paths.get_mut(index) else { return };
        *path = Some(Box::default());
        self.shared.enter(port, ip);
        if self.sent[index].listing == Listing::Never {
            self.listed.push(port);
        }
        self.sent[index].listing = Listing::Listed;
        self.at = Time::ZERO;
    }

    /// A participant is at another path, of this ip: nothing is known of that.
    pub(crate) fn restart(&mut self, port: PortIndex, ip: IpAddr) {
        let Some(Some(path)) = self.paths.get_mut(port as usize) else { return };
        **path = ReceiverPath::default();
        self.shared.enter(port, ip);
        let listing = &mut self.sent[port as usize].listing;
        if core::mem::replace(listing, Listing::Listed) == Listing::Idle {
            self.listed.push(port);
        }
        self.at = Time::ZERO;
    }

    /// A port was sent so many updates, in so many datagrams and bytes.
    #[inline]
    pub(crate) fn sent(&mut self, port: PortIndex, updates: u32, traffic: Traffic) {
        let Some(sent) = self.sent.get_mut(port as usize) else { return };
        sent.traffic.add(traffic.datagrams, traffic.bytes);
        sent.updates = sent.updates.wrapping_add(updates);
        if sent.listing == Listing::Idle {
            sent.listing = Listing::Listed;
            self.listed.push(port);
        }
    }

    /// The bytes that a port was sent in all; they wrap.
    pub(crate) fn bytes_sent(&self, port: PortIndex) -> u32 {
        self.sent.get(port as usize).map_or(0, |sent| sent.traffic.bytes)
    }

    /// The updates that a port was sent in all; they wrap.
    pub(crate) fn updates_sent(&self, port: PortIndex) -> u32 {
        self.sent.get(port as usize).map_or(0, |sent| sent.updates)
    }

    /// Counts updates that were meant for a port and were not sent, because its budget was spent.
    pub(crate) fn left_out(&mut self, port: PortIndex, updates: u32) {
        if let Some(sent) = self.sent.get_mut(port as usize) {
            sent.left_out = sent.left_out.saturating_add(updates);
        }
    }

    /// Takes a report of a port.
    pub(crate) fn take(&mut self, now: Time, port: PortIndex, report: &Report) -> Taken {
        match self.paths.get_mut(port as usize) {
            Some(Some(path)) => {
                let taken = path.take(now, report, self.shared.mean(now, port, path.rate()));
                if path.is_limiting() {
                    self.shared.mark(now, port, path.rate());
                }
                taken
            }
            _ => Taken::Wish,
        }
    }

    /// The most that a port's path bears, in bits a second; 0 where it limits nothing.
    pub(crate) fn limit(&self, port: PortIndex) -> u64 {
        let path = self.paths.get(port as usize).and_then(Option::as_deref);
        path.map_or(0, ReceiverPath::limit)
    }

    /// When there is something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.listed.is_empty()).then_some(self.at)
    }

    /// Whether a round is under way, or due; also if updates are about to leave, because a probe ahead
    /// of them does not wait behind them.
    pub(crate) fn begin_round(&mut self, now: Time, is_flush_due: bool) -> bool {
        if self.next == 0 {
            let is_ahead = is_flush_due && now.since(self.began) >= ROUND_EVERY;
            if self.listed.is_empty() || (now < self.at && !is_ahead) {
                return false;
            }
            self.began = now;
            self.earliest = None;
        } else if now < self.at {
            return false;
        }
        true
    }

    /// Looks at the next port of the round. `None` if that is over; otherwise the probe that is due, if
    /// one is.
    pub(crate) fn next_of_round(&mut self, now: Time) -> Option<Option<Due>> {
        let Some(port) = self.listed.get(self.next).copied() else {
            self.next = 0;
            let earliest = self.earliest.unwrap_or(now);
            self.at = earliest.max(now + ROUND_EVERY);
            return None;
        };
        let index = port as usize;
        let (sent, path) = (&mut self.sent[index], &mut self.paths[index]);
        let Some(path) = path else {
            sent.listing = Listing::Never;
            self.listed.swap_remove(self.next);
            return Some(None);
        };
        let due = path.due(sent.traffic);
        if due > now {
            self.earliest = Some(self.earliest.map_or(due, |earliest| earliest.min(due)));
            self.next += 1;
            return Some(None);
        }
        let number = path.probe(now, sent.traffic);
        let updates = u64::from(sent.updates.wrapping_sub(sent.probed_updates));
        let left_out = sent.left_out;
        let meant = (updates + u64::from(left_out)).max(1);
        let share = if left_out == 0 { 1000 } else { (1000 * updates / meant) as u16 };
        (sent.probed_updates, sent.left_out) = (sent.updates, 0);
        sent.listing = Listing::Idle;
        self.listed.swap_remove(self.next);
        Some(Some(Due { port, number, sent: sent.traffic, share, left_out }))
    }

    /// Updates have left: who was sent some is looked at in a round to come.
    pub(crate) fn flushed(&mut self, now: Time) {
        if self.next == 0 {
            self.at = self.at.max(now + ROUND_EVERY);
        }
    }

    /// The rest of the round is for later.
    pub(crate) fn pause(&mut self, now: Time) {
        self.at = now + PORTION_EVERY;
    }
}
