//! What a data thread hears from the others, and tells them.

use super::Relay;
use super::membership::Applicant;
use crate::siblings::Told;
use canopy_wire::{DropReason, Time};

impl Relay {
    /// Takes what the other data threads told and passed.
    pub fn handle_siblings(&mut self, now: Time) {
        self.handle_control_of_siblings(now);
        let mut incoming = self.siblings.take_incoming();
        for sibling in &mut incoming {
            let lost = sibling.read_data(|update| {
                self.take_passed(now, update);
            });
            self.count_drops(DropReason::HandoverFull, lost);
        }
        self.siblings.put_back(incoming);
    }

    /// Takes what the other data threads told. Whoever heard of a subscription may publish to it:
    /// so this comes after a datagram was received and before it is handled.
    pub fn handle_control_of_siblings(&mut self, now: Time) {
        let mut incoming = self.siblings.take_incoming();
        for sibling in &mut incoming {
            let thread = sibling.thread;
            sibling.read_control(|told| self.hear(now, thread, told));
        }
        self.siblings.put_back(incoming);
    }

    /// Whether the other data threads have told or passed nothing that was not taken.
    pub fn has_heard_all(&self) -> bool {
        self.siblings.is_empty()
    }

    /// The other data threads that have something to take since the last call, a bit for each.
    pub fn take_wakes(&mut self) -> u64 {
        self.siblings.take_wakes()
    }

    fn hear(&mut self, now: Time, thread: u16, told: Told) {
        match told {
            Told::Interest { comtree, group, wanted } => {
                let port = u32::from(thread);
                match wanted {
                    Some(level) => {
                        // It has room for whatever all the others can have.
                        let added = self.table.add_sibling(port, comtree, group, level);
                        debug_assert!(added.is_ok(), "a sibling's interest is refused");
                    }
                    None => self.table.remove(port, comtree, group),
                }
            }
            Told::Moved { path, since } => {
                if let Some(ended) = self.sessions.end_older(path, since) {
                    self.end(ended);
                }
            }
            Told::Connect { comtree, nonce, path, asked } => {
                let applicant = Applicant { comtree, nonce, path, asked };
                if let Err(reason) = self.join(now, applicant) {
                    self.drop_on(comtree, reason);
                }
            }
        }
    }

    /// Whether the other data threads can be told of so many changes more.
    pub(super) fn can_tell(&self, changes: usize) -> bool {
        self.siblings.threads() == 1
            || self.table.changes_to_tell() + changes <= self.siblings.room_for_interests()
    }

    /// Tells the other data threads what is wanted here since they were last told.
    pub(super) fn tell_siblings(&mut self) {
        let room = self.siblings.room_for_interests();
        for _ in 0..room.min(self.table.changes_to_tell()) {
            let Some((comtree, group, wanted)) = self.table.next_to_tell() else { return };
            self.siblings.tell_interest(Told::Interest { comtree, group, wanted });
        }
    }
}
