//! Participants come, stay, move and go.

use super::{MAX_PASSED_ON, Notice, Relay, SWEEP_EVERY};
use crate::ports::{Peer, PeerClass, PortIndex};
use crate::siblings::Told;
use canopy_session::{Answer, Ended, Sessions, dismiss, left, refuse};
use canopy_wire::{
    Comtree, DropReason, Kind, Leave, LeaveReason, Packet, Path, RefusedReason, Suite, Time,
};

/// Somebody who has proved its path and wants to be a member of a comtree.
#[derive(Clone, Copy)]
pub(super) struct Applicant {
    pub(super) comtree: Comtree,
    pub(super) nonce: u64,
    pub(super) path: Path,
    /// Data threads that had no address left, or no place.
    pub(super) asked: u16,
}

impl Relay {
    pub(super) fn take_session_packet(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        match packet.header().kind {
            Kind::Hello => {
                let mut answer = Answer::new();
                self.sessions.hello(now, from, packet, &mut answer)?;
                self.reply_to_stranger(now, from, answer.bytes());
                Ok(())
            }
            Kind::Connect => self.take_connect(now, from, packet),
            Kind::Keepalive => self.take_keepalive(now, from, packet),
            Kind::Leave => self.take_leave(now, from, packet),
            Kind::Rebind => self.take_rebind(now, from, packet),
            _ => Err(DropReason::UnexpectedKind),
        }
    }

    fn take_connect(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let connect = self.sessions.prove(now, from, packet)?;
        let comtree = packet.header().comtree;
        if connect.suite != Suite::None as u8 || !connect.token.is_empty() {
            self.refuse(from, comtree, connect.nonce, RefusedReason::Credentials);
            return Err(DropReason::BadCredentials);
        }
        let applicant = Applicant { comtree, nonce: connect.nonce, path: from, asked: 0 };
        self.join(now, applicant)
    }

    /// Makes an applicant a member, or says why not.
    pub(super) fn join(&mut self, now: Time, applicant: Applicant) -> Result<(), DropReason> {
        let Applicant { comtree, nonce, path, .. } = applicant;
        if self.is_draining {
            self.refuse(path, comtree, nonce, RefusedReason::Draining);
            return Err(DropReason::Draining);
        }
        let Some(index) = self.comtrees.find(comtree) else {
            self.refuse(path, comtree, nonce, RefusedReason::UnknownComtree);
            return Err(DropReason::UnknownComtree);
        };
        match self.sessions.at(path) {
            // The participant sent connect twice: its first answer was lost or late.
            Some((session, opened_with)) if opened_with == nonce => {
                let port = self
                    .ports
                    .of_session(session)
                    .find(|port| self.ports.get(*port).is_some_and(|port| port.comtree == comtree));
                // A cookie opens one session, on one comtree.
                self.welcome(port.ok_or(DropReason::BadCookie)?, path);
                return Ok(());
            }
            Some((older, _)) => {
                let ended = self.sessions.end(older);
                self.end(ended);
            }
            None => {}
        }
        // Sent twice, and passed on before: another data thread may have made it a member since, and
        // there must not be two of it.
        if self.passed_on.contains(&(nonce, path)) {
            return self.ask_next_thread(applicant);
        }
        if !self.places.take() {
            // One of them may be the applicant's own, on another data thread.
            return self.ask_next_thread(applicant);
        }
        let Some(address) = self.comtrees.get_mut(index).addresses.take() else {
            self.places.give_back();
            return self.ask_next_thread(applicant);
        };
        let session = self.sessions.open(now, path, nonce);
        let port = session.and_then(|session| {
            let peer = Peer::Participant(session);
            self.ports.open(peer, PeerClass::Participant, (comtree, index), address)
        });
        let Some(port) = port else {
            self.comtrees.get_mut(index).addresses.give_back(address);
            self.places.give_back();
            if let Some(session) = session {
                // It was never a member, so nothing hangs on it.
                let _ = self.sessions.end(session);
            }
            return self.refuse_full(path, comtree, nonce);
        };
        self.comtrees.get_mut(index).participants += 1;
        self.counters.sessions_opened += 1;
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        self.note(Notice::Joined { comtree, address, path });
        self.welcome(port, path);
        Ok(())
    }

    /// Answers a connect, and tells the other data threads who holds the path now.
    fn welcome(&mut self, port: PortIndex, path: Path) {
        let Some(port) = self.ports.get(port) else { return };
        let Peer::Participant(session) = port.peer else { return };
        let mut answer = Answer::new();
        self.sessions.connected(session, port.comtree, port.address, &mut answer);
        self.reply(path, answer.bytes());
        self.tell_of_move(path);
    }

    /// The addresses of a comtree are the data threads', the places are the relay's: while there
    /// is a place, some thread has an address. And while there is none, some thread may have an
    /// older session at the applicant's path, which it ends.
    fn ask_next_thread(&mut self, applicant: Applicant) -> Result<(), DropReason> {
        let Applicant { comtree, nonce, path, asked } = applicant;
        let asked = asked + 1;
        let connect = Told::Connect { comtree, nonce, path, asked };
        if asked >= self.siblings.threads() || !self.siblings.tell(connect) {
            return self.refuse_full(path, comtree, nonce);
        }
        self.counters.connects_passed += 1;
        if !self.passed_on.contains(&(nonce, path)) {
            if self.passed_on.len() == MAX_PASSED_ON {
                self.passed_on.pop_front();
            }
            self.passed_on.push_back((nonce, path));
        }
        Ok(())
    }

    fn refuse_full(&mut self, path: Path, comtree: Comtree, nonce: u64) -> Result<(), DropReason> {
        self.refuse(path, comtree, nonce, RefusedReason::Full);
        Err(DropReason::SessionsFull)
    }

    fn refuse(&mut self, to: Path, comtree: Comtree, nonce: u64, reason: RefusedReason) {
        let mut answer = Answer::new();
        refuse(nonce, comtree, reason, &mut answer);
        self.reply(to, answer.bytes());
    }

    fn take_keepalive(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let mut answer = Answer::new();
        match self.admit(now, from, packet) {
            Ok(_) => {
                Sessions::keepalive(packet, true, &mut answer)?;
                self.reply(from, answer.bytes());
                Ok(())
            }
            Err(DropReason::UnknownSource) => {
                Sessions::keepalive(packet, false, &mut answer)?;
                self.reply_to_stranger(now, from, answer.bytes());
                Err(DropReason::UnknownSource)
            }
            Err(reason) => Err(reason),
        }
    }

    fn take_leave(&mut self, now: Time, from: Path, packet: &Packet<'_>) -> Result<(), DropReason> {
        Leave::decode(packet)?;
        let header = packet.header();
        let port = self.admit(now, from, packet)?;
        let mut answer = Answer::new();
        left(header.comtree, header.src, &mut answer);
        self.reply(from, answer.bytes());
        self.leave(port);
        Ok(())
    }

    fn take_rebind(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let header = packet.header();
        let port = self.ports.find(header.comtree, header.src);
        let port = port.and_then(|port| self.ports.get(port)).ok_or(DropReason::UnknownSource)?;
        let Peer::Participant(session) = port.peer else { return Err(DropReason::UnknownSource) };
        let mut answer = Answer::new();
        let evicted = self.sessions.rebind(now, from, packet, session, &mut answer)?;
        self.reply(from, answer.bytes());
        if let Some(ended) = evicted {
            self.end(ended);
        }
        self.tell_of_move(from);
        Ok(())
    }

    /// Tells the other data threads since when a session here has held a path. A repeated connect
    /// makes no session newer.
    fn tell_of_move(&mut self, path: Path) {
        let Some(since) = self.sessions.held_since(path) else { return };
        if !self.siblings.tell(Told::Moved { path, since }) {
            self.counters.drop(DropReason::SiblingsFull);
        }
    }

    /// A participant is a member no more. Its session goes with its last membership.
    pub(super) fn leave(&mut self, port: PortIndex) {
        let Some(port) = self.close(port) else { return };
        if let Peer::Participant(session) = port.peer
            && self.ports.of_session(session).next().is_none()
        {
            let ended = self.sessions.end(session);
            self.end(ended);
        }
    }

    /// A session is no more: so are its memberships.
    pub(super) fn end(&mut self, ended: Ended) {
        let Ended(session) = ended;
        self.counters.sessions_ended += 1;
        self.places.give_back();
        loop {
            let port = self.ports.of_session(session).next();
            let Some(port) = port else { break };
            self.close(port);
        }
    }

    /// Closes a port, with all that was subscribed through it and waits for it.
    pub(super) fn close(&mut self, index: PortIndex) -> Option<crate::ports::Port> {
        let port = self.ports.close(index)?;
        self.table.remove_all(index);
        let gone = self.pending.forget(index);
        self.counters.drops[DropReason::UnknownDestination as usize] += gone;
        let entry = self.comtrees.get_mut(port.comtree_index);
        entry.counters.drops += gone;
        if let Peer::Participant(_) = port.peer {
            entry.participants -= 1;
            entry.addresses.give_back(port.address);
            self.note(Notice::Left { comtree: port.comtree, address: port.address });
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
        let Some(port) = self.ports.get(port) else { return };
        let mut answer = Answer::new();
        dismiss(port.comtree, port.address, reason, &mut answer);
        self.reply(path, answer.bytes());
    }
}
