//! How far a relay's counters may move with one datagram.

use super::{is_sealed, updates_in};
use canopy_relay::Counters;
use canopy_wire::{Class, DropReason, Kind, Packet, Subscribe};

/// No shorter datagram is told that there is no such session.
const LEAST_UNKNOWN: usize = 24;

/// How far the counters moved with one datagram.
#[derive(Debug)]
pub(super) struct Moved {
    /// Without replies that there was no room for, or that were too many to one ip:port.
    pub(super) drops: u64,
    pub(super) replies_full: u64,
    pub(super) updates: u64,
    pub(super) changes: u64,
    /// Connects that another data thread will answer.
    pub(super) passed: u64,
    pub(super) by_reason: [u64; DropReason::ALL.len()],
}

impl Moved {
    pub(super) fn between(before: &Counters, after: &Counters) -> Moved {
        let by_reason = std::array::from_fn(|reason| after.drops[reason] - before.drops[reason]);
        let replies_full = by_reason[DropReason::RepliesFull as usize]
            + by_reason[DropReason::RepliesRate as usize];
        Moved {
            drops: by_reason.iter().sum::<u64>() - replies_full,
            replies_full,
            updates: after.updates_in - before.updates_in,
            changes: after.subscription_changes - before.subscription_changes,
            passed: after.connects_passed - before.connects_passed,
            by_reason,
        }
    }

    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.by_reason[reason as usize]
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.drops == 0 || self.updates > 0 || self.changes > 0
    }

    pub(super) fn is_one_drop(&self, reason: DropReason) -> bool {
        (self.drops, self.dropped(reason), self.updates, self.changes) == (1, 1, 0, 0)
    }

    /// Whether the counters moved as this datagram can move them: what does not parse is one drop
    /// for its reason; an update or a subscribe packet is accepted or dropped, never both. If so,
    /// whether it is to be answered.
    pub(super) fn accounts_for(&self, datagram: &[u8], read: Option<&[u8]>) -> Option<bool> {
        let Moved { drops, updates, changes, .. } = *self;
        if self.replies_full > 1 {
            return None;
        }
        if is_sealed(datagram) {
            // A seal that the relay does not know, or knows already. Whoever has no session is told.
            let is_unknown = self.is_one_drop(DropReason::UnknownSource);
            let reasons = [DropReason::Forged, DropReason::Replayed, DropReason::Malformed];
            let is_dropped = is_unknown || reasons.into_iter().any(|one| self.is_one_drop(one));
            if read.is_none() || (is_dropped && !self.is_one_drop(DropReason::Malformed)) {
                let is_told = is_unknown && read.is_none() && datagram.len() >= LEAST_UNKNOWN;
                return is_dropped.then_some(is_told);
            }
        }
        let read = read?;
        let packet = match Packet::new_checked(read) {
            Ok(packet) => packet,
            Err(error) => return self.is_one_drop(error.into()).then_some(false),
        };
        let is_of_session = packet.header().kind.class() == Class::Session;
        if is_of_session && !is_sealed(datagram) {
            return self.is_one_drop(DropReason::Forged).then_some(false);
        }
        match packet.header().kind {
            Kind::Updates => {
                let is_dropped_whole = (drops, updates) == (1, 0);
                let is_each_counted = updates_in(&packet) == Ok(drops + updates);
                ((is_dropped_whole || is_each_counted) && changes == 0).then_some(false)
            }
            Kind::Subscribe => {
                let asked = Subscribe::new_checked(&packet).map(|all| all.count() as u64);
                let is_applied = asked.is_ok_and(|asked| changes == asked && drops <= asked);
                let is_refused = (drops, changes) == (1, 0);
                (updates == 0 && (is_refused || is_applied)).then_some(!is_refused)
            }
            // A request that is refused is answered too, unless its asker may not ask at all.
            Kind::Request => {
                let drops = drops - self.dropped(DropReason::UnknownDestination);
                let refused = [DropReason::RequestNotAllowed, DropReason::BadToken];
                let is_answered = drops == 0 || refused.iter().any(|one| self.dropped(*one) == 1);
                (drops <= 1 && (updates, changes) == (0, 0)).then_some(is_answered)
            }
            // Whoever brings no good token is told so.
            Kind::Connect if self.is_one_drop(DropReason::BadToken) => Some(true),
            // The one is answered only if there is a newer key, the other never.
            Kind::GroupKeyHeld | Kind::Report => {
                (drops <= 1 && (updates, changes) == (0, 0)).then_some(false)
            }
            _ => {
                // The end of a session is also that of the updates that wait for it.
                let drops = drops - self.dropped(DropReason::UnknownDestination);
                let is_answered_here = self.passed == 0 && drops == 0;
                (drops <= 1 && (updates, changes) == (0, 0)).then_some(is_answered_here)
            }
        }
    }
}
