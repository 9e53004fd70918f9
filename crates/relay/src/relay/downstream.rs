//! The receiving side of branches' subscriptions: several packets in flight, each applied once, in
//! whatever order they come, answered as often as they are repeated.

use super::Relay;
use super::upstream::WINDOW;
use crate::index::PortIndex;
use crate::subscriptions::Most;
use canopy_session::SessionIndex;
use canopy_wire::{
    Comtree, DropReason, Path, SessionId, Subscribe, SubscribeAckWriter, SubscribeRefusal, Time,
};

/// Which of a branch's last subscribe packets were applied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SubscribeWindow {
    /// The number that is ahead of all others, modulo 2³²; 0 before the first.
    newest: u32,
    /// That and those before it, a bit for each.
    applied: u64,
}

const _: () = assert!(WINDOW == u64::BITS as usize);

impl SubscribeWindow {
    /// Whether the packet with this number was applied.
    ///
    /// # Errors
    /// [`DropReason::SubscribeOrder`] if it is too old to tell.
    fn has(&self, sequence: u32) -> Result<bool, DropReason> {
        match self.newest.wrapping_sub(sequence) {
            behind if behind < u64::BITS => Ok(self.applied >> behind & 1 == 1),
            behind if behind > u32::MAX / 2 => Ok(false),
            _ => Err(DropReason::SubscribeOrder),
        }
    }

    fn note(&mut self, sequence: u32) {
        let ahead = sequence.wrapping_sub(self.newest);
        if ahead <= u32::MAX / 2 {
            self.applied = self.applied.checked_shl(ahead).unwrap_or(0);
            self.newest = sequence;
        }
        self.applied |= 1 << self.newest.wrapping_sub(sequence);
    }
}

impl Relay {
    /// Takes what a neighbour wants on a comtree. If the neighbour gets everything anyway, that counts
    /// once it is a child.
    pub(super) fn take_from_branch(
        &mut self,
        now: Time,
        (from, port): (Path, PortIndex),
        comtree: Comtree,
        subscribe: &Subscribe<'_>,
    ) -> Result<(), DropReason> {
        let sequence = subscribe.sequence();
        let there = self.ports.get(port).ok_or(DropReason::UnknownSource)?;
        let (most, index) = (there.shape.datagrams.max_datagram(), there.comtree_index);
        let window = self.overlay.windows.get(&port).copied().unwrap_or_default();
        let repeats = window.has(sequence)?;
        // Without an answer it is sent again: then the other data threads may have caught up.
        if !self.can_tell(subscribe.count()) {
            return Err(DropReason::SiblingsFull);
        }
        let room = self.replies.room().ok_or(DropReason::RepliesFull)?;
        let mut writer = SubscribeAckWriter::new(room, sequence, most)?;
        let expires = now + self.subscription_lifetime;
        let (whose, mut refused) = ((port, Most::ANYTHING), 0);
        for change in subscribe.changes() {
            self.counters.subscription_changes += 1;
            let table = &mut self.table;
            let group = change.group();
            let changed = match change.wanted() {
                // By the time that a copy comes, something newer may have been applied. So it renews
                // what is there, and what is not was refused.
                Some(wanted) if repeats => match table.wanted_by(port, comtree, group) {
                    Some(now) if now == wanted => table.add(whose, comtree, group, wanted, expires),
                    Some(_) => Ok(()),
                    None => Err(SubscribeRefusal::Table),
                },
                Some(wanted) => table.add(whose, comtree, group, wanted, expires),
                None if repeats => Ok(()),
                None => {
                    table.remove(port, comtree, group);
                    Ok(())
                }
            };
            if let Err(reason) = changed {
                writer.push(group, reason);
                refused += 1;
            }
        }
        let len = writer.finish(comtree, SessionId::NONE);
        self.wake_branch(index, port);
        self.push_reply(from, port, len)?;
        if !repeats {
            if let Some(window) = self.overlay.windows.get_mut(&port) {
                window.note(sequence);
            }
            self.drop_many_on(comtree, DropReason::SubscriptionsFull, refused);
        }
        self.sweep_at.get_or_insert(now + super::SWEEP_EVERY);
        if self.table.changes_to_tell() > 0 {
            self.tell_siblings();
        }
        Ok(())
    }

    /// A link has new keys, and its packets new numbers.
    pub(super) fn begin_downstream(&mut self, session: SessionIndex) {
        for port in self.ports.of_link(session).collect::<Vec<_>>() {
            if let Some(window) = self.overlay.windows.get_mut(&port) {
                *window = SubscribeWindow::default();
            }
            self.begin_upstream(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_applied_is_known_in_whatever_order_it_came() {
        let mut window = SubscribeWindow::default();
        for sequence in [1, 3, 2, 70, 40] {
            assert_eq!(window.has(sequence), Ok(false), "{sequence}");
            window.note(sequence);
            assert_eq!(window.has(sequence), Ok(true), "{sequence}");
        }
        assert_eq!(window.has(7), Ok(false));
        assert_eq!(window.has(6), Err(DropReason::SubscribeOrder));
        assert_eq!(window.has(71), Ok(false));
        // The numbers begin anew behind the last one.
        for sequence in [u32::MAX / 2, u32::MAX - 1, u32::MAX, 1, 0] {
            assert_eq!(window.has(sequence), Ok(false), "{sequence}");
            window.note(sequence);
        }
        assert_eq!(window.has(u32::MAX), Ok(true));
    }
}
