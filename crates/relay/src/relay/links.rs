//! Links to neighbour relays. Of the two one calls, as a participant would, and keeps the link alive;
//! the other is called. From the handshake on both have the link as a session of their own.

use super::joining::Applicant;
use super::{Relay, SWEEP_EVERY};
use crate::changes::{LinkConfig, Refusal};
use crate::ports::{DatagramClass, LastSubscribe};
use crate::told::Passed;
use canopy_session::{
    Answer, Call, Knock, PublicKey, Session, SessionConfig, SessionIndex, Terms, derive,
};
use canopy_wire::{
    Address, Comtree, Downlink, DropReason, Kind, LinkJoin, Packet, Path, RefusedReason, Suite,
    Time,
};
use core::time::Duration;

/// Who calls sends a keepalive this often, and calls anew when so many stay unanswered.
const KEEPALIVE: Duration = Duration::from_millis(500);
const LOST_AFTER: u32 = 3;

/// A link with a neighbour, up or down.
pub(crate) struct Link {
    config: LinkConfig,
    /// Its own session, whose number the neighbour's packets carry.
    pub(super) session: SessionIndex,
    /// The handshake, if this side calls.
    call: Option<Session>,
    keepalive_at: Time,
    /// Keepalives since the last answer.
    unanswered: u32,
    /// What the next one brings back.
    path_stamp: u64,
    /// How long the datagrams are that both sides take.
    pub(super) datagrams: DatagramClass,
}

impl Relay {
    pub(super) fn add_link(&mut self, now: Time, config: LinkConfig) -> Result<(), Refusal> {
        if config.key == *self.sessions.identity().public() {
            return Err(Refusal::OwnKey);
        }
        if self.link_with(&config.key).is_some() {
            return Err(Refusal::LinkExists);
        }
        let session = self.sessions.add_link().ok_or(Refusal::TooManyLinks)?;
        self.ports.mark_link(session, true);
        let call = config.calls.then(|| self.new_call(&config, session));
        let datagrams = DatagramClass::of(self.max_datagram);
        self.links.push(Link {
            config,
            session,
            call,
            keepalive_at: now,
            unanswered: 0,
            path_stamp: 0,
            datagrams,
        });
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
        self.drive_links(now);
        Ok(())
    }

    pub(super) fn remove_link(&mut self, now: Time, key: &PublicKey) -> Result<(), Refusal> {
        let is_it = |link: &Link| link.config.key == *key;
        let number = self.links.iter().position(is_it).ok_or(Refusal::UnknownLink)?;
        let Link { session, .. } = self.links.swap_remove(number);
        for branch in self.ports.of_link(session).collect::<Vec<_>>() {
            self.close(now, branch);
        }
        self.ports.mark_link(session, false);
        self.sessions.remove_link(session);
        Ok(())
    }

    pub(super) fn link_with(&self, key: &PublicKey) -> Option<&Link> {
        self.links.iter().find(|link| link.config.key == *key)
    }

    /// Whether a neighbour is to be found there.
    pub(super) fn is_neighbour(&self, path: Path) -> bool {
        self.links.iter().any(|link| link.config.path.remote == path.remote)
    }

    /// Whether the link with a neighbour is up.
    pub fn is_linked(&self, key: &PublicKey) -> bool {
        self.link_with(key).is_some_and(|link| self.sessions.path(link.session).is_some())
    }

    /// Sends a neighbour a packet that was laid out as if it were for cleartext: what the control
    /// plane has to say, such as what it subscribes to. False if the link is down or there is no room.
    pub fn send_over_link(&mut self, key: &PublicKey, packet: &[u8]) -> bool {
        let Some(session) = self.link_with(key).map(|link| link.session) else { return false };
        let Some(path) = self.sessions.path(session) else { return false };
        let Some(room) = self.replies.room() else { return false };
        let Some(place) = room.get_mut(..packet.len()) else { return false };
        place.copy_from_slice(packet);
        let Some(len) = self.sessions.seal(session, room, packet.len()) else { return false };
        self.replies.push(path, len);
        true
    }

    fn new_call(&mut self, config: &LinkConfig, session: SessionIndex) -> Session {
        let mut seed = [0; 16];
        seed.copy_from_slice(&derive(&self.call_seed, b"call")[..16]);
        self.call_seed = derive(&self.call_seed, b"next");
        Session::new(SessionConfig {
            relay_key: Some(config.key),
            identity: Some(self.sessions.identity().clone()),
            max_datagram: self.max_datagram,
            call: Some(Call {
                session: self.sessions.id(session),
                threads: self.siblings.threads(),
                thread: config.thread,
            }),
            ..SessionConfig::new(Comtree(0), seed)
        })
    }

    /// The relay has other keys: the next calls are made with them.
    pub(super) fn renew_calls(&mut self) {
        for number in 0..self.links.len() {
            let Link { config, session, call, .. } = &self.links[number];
            if call.is_some() {
                let (config, session) = (*config, *session);
                self.links[number].call = Some(self.new_call(&config, session));
            }
        }
    }

    /// When [`Relay::drive_links`] has something to do next.
    pub(super) fn links_due(&self) -> Option<Time> {
        let due = |link: &Link| {
            let is_up = self.sessions.path(link.session).is_some();
            let call = link.call.as_ref()?;
            if is_up { Some(link.keepalive_at) } else { call.poll_timeout() }
        };
        self.links.iter().filter_map(due).min()
    }

    /// Calls the neighbours whose links are down, and keeps the others alive.
    pub(super) fn drive_links(&mut self, now: Time) {
        for number in 0..self.links.len() {
            self.drive_link(now, number);
        }
    }

    fn drive_link(&mut self, now: Time, number: usize) {
        let link = &mut self.links[number];
        let (session, Some(call)) = (link.session, &mut link.call) else { return };
        if let Some(path) = self.sessions.path(session) {
            if now < link.keepalive_at {
                return;
            }
            if link.unanswered < LOST_AFTER {
                link.unanswered += 1;
                link.keepalive_at = now + KEEPALIVE;
                let mut answer = Answer::new();
                self.sessions.write_keepalive(now, session, link.path_stamp, &mut answer);
                return self.reply(path, answer.bytes());
            }
            // The neighbour has been silent for too long, or does not know the link any more.
            let _ = self.sessions.end(session);
        }
        while let Some(room) = self.replies.room() {
            let Some(len) = call.poll_transmit(now, room) else { break };
            self.replies.push(link.config.path, len);
        }
    }

    /// Takes an answer to one of this relay's calls.
    pub(super) fn take_answer(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let answers = |link: &Link| {
            link.config.path.remote == from.remote
                && link.call.as_ref().is_some_and(|call| call.is_answered_by(packet))
                && self.sessions.path(link.session).is_none()
        };
        let number = self.links.iter().position(answers).ok_or(DropReason::UnexpectedKind)?;
        let Link { call: Some(call), session, .. } = &mut self.links[number] else {
            return Err(DropReason::UnexpectedKind);
        };
        let session = *session;
        call.handle_answer(now, packet).map_err(|error| match packet.header().kind {
            // What is the neighbour's own opens.
            Kind::Connected => DropReason::Forged,
            _ => error.into(),
        })?;
        while call.poll_event().is_some() {}
        if let Some(keys) = call.take_link() {
            let (max_datagram, path_stamp) = (keys.max_datagram, keys.path_stamp);
            self.sessions.link_up(now, session, from, keys);
            let link = &mut self.links[number];
            // At once, so that the neighbour knows that its answer has arrived.
            (link.keepalive_at, link.unanswered, link.path_stamp) = (now, 0, path_stamp);
            self.begin_link(number, max_datagram);
        }
        self.drive_link(now, number);
        Ok(())
    }

    /// A link has new keys. Whatever was agreed with the ones before is agreed anew; what was
    /// subscribed lasts until it expires.
    fn begin_link(&mut self, number: usize, max_datagram: u16) {
        let link = &mut self.links[number];
        let session = link.session;
        link.datagrams = DatagramClass::of(max_datagram);
        let datagrams = link.datagrams;
        for branch in self.ports.of_link(session).collect::<Vec<_>>() {
            if let Some(port) = self.ports.get_mut(branch) {
                port.shape.datagrams = datagrams;
                port.last_subscribe = LastSubscribe::default();
            }
        }
    }

    /// Takes the call of a relay that says it is a neighbour, if this data thread is the one that it
    /// wants.
    pub(super) fn take_call(
        &mut self,
        now: Time,
        applicant: &Applicant<'_>,
        knock: Knock,
        join: LinkJoin,
    ) -> Result<(), DropReason> {
        let thread = join.thread % self.siblings.threads();
        if thread != self.siblings.thread() && applicant.passed == Passed::default() {
            return self.hand_on(applicant, thread, Passed { was_brought: true, asked: 0 });
        }
        let key = knock.participant();
        let is_it = |link: &Link| link.call.is_none() && Some(link.config.key) == key;
        let number = self.links.iter().position(is_it);
        let (Some(number), Some(suite)) = (number, Suite::best_of(join.suites)) else {
            let (reason, drop) = (RefusedReason::Credentials, DropReason::BadCredentials);
            return self.refuse_for(applicant, reason, drop);
        };
        let session = self.links[number].session;
        let datagrams = DatagramClass::of(join.max_datagram.min(self.max_datagram));
        let terms = Terms {
            address: Address::UNSPECIFIED,
            suite,
            downlink: Downlink::Member,
            max_datagram: datagrams.max_datagram() as u16,
            features: LinkJoin::FEATURE,
        };
        let proved = (applicant.path, applicant.proof);
        if self.sessions.answer_call(now, session, proved, (knock, join), &terms)? {
            self.begin_link(number, terms.max_datagram);
        }
        self.push_welcome(session, applicant.path);
        Ok(())
    }

    /// Takes the answer to a link's keepalive.
    pub(super) fn take_keepalive_ack(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let session = self.admit_session(now, from, packet)?;
        let called = |link: &&mut Link| link.session == session && link.call.is_some();
        let link = self.links.iter_mut().find(called).ok_or(DropReason::UnexpectedKind)?;
        link.path_stamp = self.sessions.keepalive_ack(now, session, packet)?;
        link.unanswered = 0;
        Ok(())
    }
}
