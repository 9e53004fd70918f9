//! Answers to updates that ask for a way, and to those that reached nobody: they travel back to whoever
//! sent the update, and each relay on their way learns.

use super::routing::{MIN_TIMES, REPLY_WAIT};
use super::{GONE, Relay};
use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::pending::Update;
use crate::ports::Peer;
use crate::routes::Leads;
use crate::told::Told;
use crate::tree::Asked;
use canopy_wire::{Comtree, DropReason, MAX_DATAGRAM, Packet, Path, RouteReply, Time};

/// An answer follows known ways only, however long they are.
const REPLY_HOPS: u8 = u8::MAX;

impl Relay {
    /// Answers an update that asks for the way to its destination, which is known here.
    pub(super) fn answer_route(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        update: &Update<'_>,
        may_pass: bool,
    ) {
        if !update.asks_route {
            return;
        }
        let (comtree, about) = (update.comtree, update.dst);
        if !may_pass {
            // The data thread that asks learns that the way leads here.
            let (to, _) = self.route_key(index, about);
            let is_here = about.is_portable() && self.ports.find(comtree, about).is_some();
            let leads = match self.overlay.routes.find(index, to) {
                _ if is_here => Leads::ToParticipant,
                Some(way) => way.leads,
                None => Leads::OverTree,
            };
            self.siblings.tell_route(comtree, to, Some(leads));
        }
        let reply = RouteReply { to: update.src, about, is_there: true, hops: REPLY_HOPS };
        self.send_reply(now, (comtree, index), (reply, NONE), true);
    }

    /// Nobody is where an update was to go: its sender is told, at a rate.
    pub(super) fn tell_nobody(&mut self, now: Time, update: &Update<'_>) {
        if let Some(sender) = self.ports.find(update.comtree, update.src) {
            return self.tell_gone(now, sender, update.dst);
        }
        if !self.gone.take(&GONE, now, 1) {
            return self.drop_on(update.comtree, DropReason::RepliesRate);
        }
        let Some(index) = self.comtrees.find(update.comtree) else { return };
        let hops = REPLY_HOPS;
        let reply = RouteReply { to: update.src, about: update.dst, is_there: false, hops };
        self.send_reply(now, (update.comtree, index), (reply, NONE), true);
    }

    /// Sends an answer on towards whoever has asked, but not over the branch that has brought it; if that is somebody
    /// here, it has arrived.
    fn send_reply(
        &mut self,
        now: Time,
        (comtree, index): (Comtree, ComtreeIndex),
        (reply, origin): (RouteReply, PortIndex),
        may_pass: bool,
    ) {
        let RouteReply { to: asker, about, is_there, .. } = reply;
        if let Some(port) = self.ports.find(comtree, asker) {
            if !is_there {
                self.tell_gone(now, port, about);
            }
            return;
        }
        let (to, _) = self.route_key(index, asker);
        let way = self.overlay.routes.find(index, to);
        if way.is_some_and(|way| way.port == origin) {
            return self.drop_on(comtree, DropReason::NotThisWay);
        }
        let way = way.and_then(|way| self.ports.get(way.port));
        let thread = match way.map(|port| port.peer) {
            Some(Peer::Branch(session)) => {
                let mut packet = [0; MAX_DATAGRAM];
                if let Ok(len) = reply.encode(comtree, &mut packet) {
                    self.counters.route_replies += 1;
                    if !self.send_over(session, &packet[..len]) {
                        self.drop_on(comtree, DropReason::RepliesFull);
                    }
                }
                return;
            }
            Some(Peer::Sibling(thread)) => Some(thread),
            _ => self.thread_of(comtree, asker),
        };
        match thread.filter(|_| may_pass) {
            Some(thread) if !is_there && way.is_none() => {
                let (sender, address) = (asker, about);
                self.siblings.mention(thread, Told::Gone { comtree, sender, address });
            }
            Some(thread) if way.is_some() => {
                self.siblings.mention(thread, Told::RouteReply { comtree, reply });
            }
            // To a participant there the answer to its update is nothing.
            Some(_) => {}
            None => self.drop_on(comtree, DropReason::NotThisWay),
        }
    }

    /// Takes a neighbour's answer: it leads there, or it does not.
    pub(super) fn take_route_reply(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let port = self.admit(now, from, packet)?;
        let there = self.ports.get(port).ok_or(DropReason::UnknownSource)?;
        let (is_branch, index) = (matches!(there.peer, Peer::Branch(_)), there.comtree_index);
        let comtree = (packet.header().comtree, index);
        if !is_branch {
            return Err(DropReason::UnexpectedKind);
        }
        let reply = RouteReply::decode(packet)?;
        let hops = reply.hops.checked_sub(1).ok_or(DropReason::HopLimit)?;
        let (to, is_alone) = self.route_key(index, reply.about);
        if reply.is_there {
            if !self.may_bring(now, comtree, port, reply.about) {
                return Err(DropReason::SpoofedSource);
            }
            self.comtrees.get_mut(index).tree.asked.remove(&reply.about);
        } else if is_alone {
            // It is not there any more; the next update asks all the others.
            if self.overlay.routes.forget(index, to, port) {
                self.tell_forgotten(comtree.0, to);
            }
        } else if let Some(asked) = self.comtrees.get_mut(index).tree.asked.get_mut(&reply.about) {
            // Who asks need not wait any longer.
            *asked = Asked { since: asked.since.min(now - REPLY_WAIT), times: MIN_TIMES };
        }
        self.send_reply(now, comtree, (RouteReply { hops, ..reply }, port), true);
        Ok(())
    }

    pub(super) fn hear_route_reply(&mut self, now: Time, comtree: Comtree, reply: RouteReply) {
        if let Some(index) = self.comtrees.find(comtree) {
            self.send_reply(now, (comtree, index), (reply, NONE), false);
        }
    }
}
