//! Participants stay, move and go.

use super::{Notice, Relay};
use crate::index::PortIndex;
use crate::ports::Peer;
use crate::told::{Passed, Told};
use canopy_session::{Answer, Ended, SessionIndex};
use canopy_wire::{DropReason, Kind, Leave, LeaveReason, Packet, Path, Time};

impl Relay {
    pub(super) fn take_session_packet(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        match packet.header().kind {
            Kind::Hello => self.take_hello(now, from, packet),
            Kind::Connect => self.take_connect(now, from, packet, Passed::default()),
            Kind::Keepalive => self.take_keepalive(now, from, packet),
            Kind::Leave => self.take_leave(now, from, packet),
            Kind::Rebind => self.take_rebind(now, from, packet),
            Kind::Request => self.take_request(now, from, packet),
            Kind::Cookie | Kind::Connected | Kind::Refused => self.take_answer(now, from, packet),
            Kind::LinkHello => self.take_link_hello(now, from, packet),
            Kind::SubscribeAck => self.take_subscribe_ack(now, from, packet),
            Kind::WaySearch => self.take_search(now, from, packet),
            Kind::LinkState | Kind::LinkStateAck => self.take_link_state(now, from, packet),
            Kind::RouteReply => self.take_route_reply(now, from, packet),
            Kind::GroupKeyHeld => self.take_held_key(now, from, packet),
            Kind::Report => self.take_report(now, from, packet),
            _ => Err(DropReason::UnexpectedKind),
        }
    }

    fn take_keepalive(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let session = self.admit_session(now, from, packet)?;
        if self.ports.is_link(session) {
            return Err(DropReason::UnexpectedKind);
        }
        let port = self.port_of(session, packet.header().comtree)?;
        self.charge_keepalive(now, port)?;
        let mut answer = Answer::new();
        self.sessions.keepalive(now, session, packet, &mut answer)?;
        self.reply(from, answer.bytes());
        Ok(())
    }

    /// The session whose port this is, if it is a participant's.
    pub(super) fn session_of(&self, port: PortIndex) -> Option<SessionIndex> {
        match self.ports.get(port)?.peer {
            Peer::Participant(session) => Some(session),
            Peer::Branch(_) | Peer::Sibling(_) => None,
        }
    }

    fn take_leave(&mut self, now: Time, from: Path, packet: &Packet<'_>) -> Result<(), DropReason> {
        Leave::decode(packet)?;
        let session = self.admit_session(now, from, packet)?;
        if self.ports.is_link(session) {
            return Err(DropReason::UnexpectedKind);
        }
        let port = self.port_of(session, packet.header().comtree)?;
        let mut answer = Answer::new();
        self.sessions.left(session, packet.header().comtree, &mut answer);
        self.reply(from, answer.bytes());
        self.leave(now, port);
        Ok(())
    }

    fn take_rebind(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        // A proof that was taken already is answered again, as often as a keepalive.
        let header = packet.header();
        if let Ok(session) = self.sessions.admit(from, header.session)
            && let Some(port) = self.ports.of_member(session, header.comtree)
        {
            self.charge_keepalive(now, port)?;
        }
        let mut answer = Answer::new();
        let (session, evicted) = self.sessions.rebind(now, from, packet, &mut answer)?;
        self.reply(from, answer.bytes());
        if let Some(ended) = evicted {
            self.end(now, ended);
        }
        self.give_keys_again(session, from);
        self.restart_paths(session);
        self.tell_of_move(session);
        Ok(())
    }

    /// Tells the other data threads by which proof a session here has its path. A repeated connect
    /// makes no session newer.
    pub(super) fn tell_of_move(&mut self, session: SessionIndex) {
        let (path, proof) = (self.sessions.path(session), self.sessions.proof(session));
        let Some((path, proof)) = path.zip(proof) else { return };
        let holder = self.sessions.holder(session);
        if !self.siblings.tell(Told::Moved { path, holder, proof }) {
            self.counters.drop(DropReason::SiblingsFull);
        }
    }

    /// A participant is a member no more. Its session goes with its last membership.
    pub(super) fn leave(&mut self, now: Time, port: PortIndex) {
        let Some(port) = self.close(now, port) else { return };
        if let Peer::Participant(session) = port.peer
            && self.ports.of_session(session).next().is_none()
        {
            let ended = self.sessions.end(session);
            self.end(now, ended);
        }
    }

    /// A session is no more: so are its memberships.
    pub(super) fn end(&mut self, now: Time, ended: Ended) {
        let Ended(session) = ended;
        if self.ports.is_link(session) {
            // Its branches stay, and what is for them is counted as unreachable.
            self.pause_upstreams(now, session);
            if let Some(key) = self.link_at(session).map(|link| *link.key()) {
                self.note(Notice::LinkDown { key });
            }
            return;
        }
        self.counters.sessions_ended += 1;
        self.places.give_back_of(session);
        self.count_out(session);
        loop {
            let port = self.ports.of_session(session).next();
            let Some(port) = port else { break };
            self.close(now, port);
        }
    }

    /// Closes a port, with all that was subscribed through it and waits for it.
    pub(super) fn close(&mut self, now: Time, index: PortIndex) -> Option<crate::ports::Port> {
        let comtree = self.ports.get(index)?.comtree_index;
        self.pass_what_waits_for(now, comtree, index);
        let port = self.ports.close(index)?;
        self.table.remove_all(index);
        self.thinning.forget(index);
        self.paths.close(index);
        let entry = self.comtrees.get_mut(port.comtree_index);
        let pending = &mut self.queues.get_mut(entry.queue).pending;
        // What came from above goes over no other way up, though its tick comes when this one is gone.
        let succession = entry.tree.succession.as_ref();
        if let Some(other) = succession.and_then(|succession| succession.other_parent(index)) {
            pending.hand_over(index, other);
        }
        let gone = pending.forget(index);
        self.counters.drops[DropReason::UnknownDestination as usize] += gone;
        entry.counters.drops += gone;
        if let Some(rights) = &port.rights
            && self.by_token.get(&rights.token()) == Some(&index)
        {
            self.by_token.remove(&rights.token());
        }
        if let Peer::Branch(_) = port.peer {
            self.overlay.windows.remove(&index);
            self.branch_closed(now, port.comtree_index, index);
        } else if let Peer::Participant(_) = port.peer {
            entry.addresses.give_back(now, port.address, port.owner);
            self.comtrees.member_left(port.comtree_index, port.held_key);
            self.note(Notice::Left { comtree: port.comtree, address: port.address });
            self.left_site(port.comtree_index, port.address);
        }
        Some(port)
    }

    /// Tells the participants of a draining relay to go, a part of them each time.
    pub(super) fn notify_draining(&mut self) {
        if !self.is_draining {
            return;
        }
        while self.notify < self.sessions.high_water() && !self.replies.is_half_full() {
            self.dismiss_session(self.notify, LeaveReason::Draining);
            self.notify += 1;
        }
        // A notice may be lost: the round begins again until no one is left.
        if self.notify >= self.sessions.high_water() {
            self.notify = 0;
        }
    }

    fn dismiss_session(&mut self, session: u32, reason: LeaveReason) {
        let Some(path) = self.sessions.path(session) else { return };
        let Some(port) = self.ports.of_session(session).next() else { return };
        self.dismiss(port, path, reason);
    }

    pub(super) fn dismiss(&mut self, port: PortIndex, path: Path, reason: LeaveReason) {
        let Some(session) = self.session_of(port) else { return };
        let Some(port) = self.ports.get(port) else { return };
        let comtree = port.comtree;
        let mut answer = Answer::new();
        self.sessions.dismiss(session, comtree, reason, &mut answer);
        self.reply(path, answer.bytes());
    }
}
