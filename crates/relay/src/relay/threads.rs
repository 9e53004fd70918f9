//! What a data thread hears from the others, and tells them.

use super::Relay;
use crate::told::Told;
use canopy_wire::{DropReason, Packet, Time};

impl Relay {
    /// Takes what the other data threads told and passed. Returns false if that is more than can
    /// wait for a flush: then what waits must leave first ([`Relay::transmit`]), and this be called
    /// again.
    pub fn handle_siblings(&mut self, now: Time) -> bool {
        self.handle_control_of_siblings(now);
        let mut incoming = self.siblings.take_incoming();
        let mut stopped_at = None;
        for (number, sibling) in incoming.iter_mut().enumerate() {
            let lost = sibling.read_data(|update| {
                self.take_passed(now, update);
                !self.queues.is_any_half_full()
            });
            self.count_drops(DropReason::SiblingsFull, lost);
            if self.queues.is_any_half_full() {
                stopped_at = Some(number);
                break;
            }
        }
        if let Some(number) = stopped_at {
            // The next call begins with the next thread, so that one's flood is nobody else's loss.
            incoming.rotate_left(number + 1);
        }
        self.siblings.put_back(incoming);
        stopped_at.is_none()
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

    fn hear(&mut self, now: Time, thread: u16, told: Told<'_>) {
        match told {
            Told::Interest { comtree, group, wanted } => {
                let port = u32::from(thread);
                match wanted {
                    Some(wanted) => {
                        // It has room for whatever all the others can have.
                        let added = self.table.add_sibling(port, comtree, group, wanted);
                        debug_assert!(added.is_ok(), "a sibling's interest is refused");
                    }
                    None => self.table.remove(port, comtree, group),
                }
            }
            Told::Moved { path, holder, proof } => {
                if let Some(ended) = self.sessions.end_older(path, holder, proof) {
                    self.end(now, ended);
                } else if let Some(session) = self.sessions.at(path, holder)
                    && self.sessions.proof(session).is_some_and(|own| own > proof)
                {
                    // The other had not joined yet when it was told of the newer session here.
                    self.tell_of_move(session);
                }
            }
            Told::TokenUsed { token, proof } => self.hear_of_token(now, token, proof),
            // A member that is not there, or no room: nobody waits for the answer.
            Told::Verdict { comtree, address, verdict } => {
                let _ = self.take_verdict(now, comtree, address, verdict);
            }
            Told::Conduct { token, ends, verdict } => {
                let _ = self.hear_of_conduct(now, token, ends, verdict);
            }
            Told::Connect { path, passed, datagram } => {
                let packet = Packet::new_checked(datagram).map_err(DropReason::from);
                let taken = packet.and_then(|packet| self.take_connect(now, path, &packet, passed));
                if let Err(reason) = taken {
                    self.counters.drop(reason);
                }
            }
            Told::Reach { comtree, reach } => self.hear_of_reach(comtree, thread, reach),
            Told::Wants { comtree, wants } => self.hear_of_wants(now, comtree, thread, wants),
            Told::Route { comtree, to, leads } => self.hear_of_route(thread, comtree, to, leads),
            Told::RouteReply { comtree, reply } => self.hear_route_reply(now, comtree, reply),
            Told::Gone { comtree, sender, address } => {
                if let Some(port) = self.ports.find(comtree, sender) {
                    self.tell_gone(now, port, address);
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
