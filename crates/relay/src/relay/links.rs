//! Links to neighbour relays. Of the two one calls, as a participant would; the other is called. Both
//! send signs of life. From the handshake on both have the link as a session of their own.

use super::joining::Applicant;
use super::{MAX_NOTICES, Notice, Relay, SWEEP_EVERY};
use crate::changes::{LinkConfig, Refusal};
use crate::index::fold;
use crate::pulse::Pulse;
use crate::shape::DatagramClass;
use crate::status::LinkStatus;
use crate::timing::{Mode, READ_LITTLE_EVERY, next_part};
use crate::told::Passed;
use canopy_session::{
    Call, Knock, PublicKey, Session, SessionConfig, SessionIndex, Sessions, Terms, derive,
};
use canopy_wire::{
    Address, Comtree, Downlink, DropReason, Kind, LinkHello, LinkJoin, LinkState, LinkStateAck,
    Packet, Path, RefusedReason, Suite, Time, WaySearch,
};
use core::time::Duration;

/// Links are looked at this often at least while one is up; whoever comes later was late itself.
const LOOK_EVERY: Duration = Duration::from_millis(75);

/// How many notices wait at most when one of a search is added, and when one of links' states is.
const MOST_SEARCHES: usize = MAX_NOTICES / 2;
const MOST_STATES: usize = MAX_NOTICES / 4;

/// Room for a hello and its seal.
const HELLO_ROOM: usize = 64;

/// A link with a neighbour, up or down.
pub(crate) struct Link {
    config: LinkConfig,
    /// Its own session, whose number the neighbour's packets carry.
    pub(super) session: SessionIndex,
    /// The handshake, if this side calls.
    call: Option<Session>,
    pulse: Pulse,
    /// How often it has come up.
    ups: u32,
    /// How long the datagrams are that both sides take.
    pub(super) datagrams: DatagramClass,
}

impl Link {
    pub(super) fn key(&self) -> &PublicKey {
        &self.config.key
    }

    /// How long a subscription lives at the neighbour without a refresh, if it has said so.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        self.pulse.lifetime
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.pulse.round_trip
    }

    /// How it stands, with these sessions.
    pub(super) fn status(&self, sessions: &Sessions) -> LinkStatus {
        let path = sessions.path(self.session);
        let LinkConfig { key, thread, calls, .. } = self.config;
        let Pulse { round_trip, loss_in, loss_out, bits_in, bits_out, .. } = self.pulse;
        LinkStatus {
            key,
            thread,
            remote: path.unwrap_or(self.config.path).remote,
            calls,
            is_up: path.is_some(),
            ups: self.ups,
            round_trip,
            loss_in,
            loss_out,
            bits_in: if path.is_some() { bits_in } else { 0 },
            bits_out: if path.is_some() { bits_out } else { 0 },
            max_datagram: self.datagrams.max_datagram() as u16,
        }
    }
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
        if self.links.is_empty() {
            self.links_looked_at = now;
        }
        self.ports.mark_link(session, true);
        self.thinning.links.add_link(session);
        let call = config.calls.then(|| self.new_call(&config, session));
        let datagrams = DatagramClass::of(self.max_datagram);
        self.links.push(Link {
            config,
            session,
            call,
            pulse: Pulse::begin(now),
            ups: 0,
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
        self.overlay.last_asked.retain(|(of, _), _| *of != session);
        self.ports.mark_link(session, false);
        self.thinning.links.remove_link(session);
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
    /// plane has to say. False if the link is down or there is no room.
    pub fn send_over_link(&mut self, key: &PublicKey, packet: &[u8]) -> bool {
        let session = self.link_with(key).map(|link| link.session);
        session.is_some_and(|session| self.send_over(session, packet))
    }

    /// The same, by the link's session.
    pub(super) fn send_over(&mut self, session: SessionIndex, packet: &[u8]) -> bool {
        let Some(path) = self.sessions.path(session) else { return false };
        let Some(room) = self.replies.room() else { return false };
        let Some(place) = room.get_mut(..packet.len()) else { return false };
        place.copy_from_slice(packet);
        let Some(len) = self.sessions.seal(session, room, packet.len()) else { return false };
        self.replies.push(path, len);
        true
    }

    pub(super) fn link_at(&self, session: SessionIndex) -> Option<&Link> {
        self.links.iter().find(|link| link.session == session)
    }

    fn new_call(&mut self, config: &LinkConfig, session: SessionIndex) -> Session {
        let mut seed = [0; 16];
        seed.copy_from_slice(&derive(&self.call_seed, b"call")[..16]);
        self.call_seed = derive(&self.call_seed, b"next");
        Session::new(SessionConfig {
            relay_key: Some(config.key),
            identity: Some(self.sessions.identity().clone()),
            max_datagram: self.max_datagram,
            slow_suites: self.slow_suites,
            packets_per_key: self.sessions.packets_per_key(),
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
            if is_up { Some(link.pulse.due()) } else { link.call.as_ref()?.poll_timeout() }
        };
        self.links.iter().filter_map(due).min()
    }

    /// When the sockets are read again at the latest, and timers with them; now if those are punctual.
    fn read_by(&self, now: Time) -> Time {
        match self.queues.reading() {
            Mode::Immediate => now,
            Mode::Periodic { tick } => next_part(now, tick, READ_LITTLE_EVERY),
        }
    }

    /// Calls the neighbours whose links are down, and sends the others signs of life.
    pub(super) fn drive_links(&mut self, now: Time) {
        if self.links.is_empty() {
            return;
        }
        let late = now.since(self.links_looked_at).saturating_sub(LOOK_EVERY);
        self.links_looked_at = now;
        for number in 0..self.links.len() {
            if !late.is_zero() {
                self.links[number].pulse.forgive(late);
            }
            self.drive_link(now, number);
        }
    }

    fn drive_link(&mut self, now: Time, number: usize) {
        let lifetime = self.subscription_lifetime.as_millis() as u32;
        let until = self.read_by(now);
        let link = &mut self.links[number];
        let session = link.session;
        if self.sessions.path(session).is_some() {
            if !link.pulse.is_lost(now) {
                let (traffic, jitter) = (self.sessions.link_traffic(session), now.as_nanos());
                let mut packet = [0; HELLO_ROOM];
                let hello = link.pulse.hello(now, until, fold(jitter), traffic);
                let hello = hello.map(|hello| LinkHello { lifetime, ..hello });
                if let Some(Ok(len)) = hello.map(|hello| hello.encode(&mut packet)) {
                    self.send_over(session, &packet[..len]);
                }
                return;
            }
            // The neighbour has been silent for too long, or does not hear this relay.
            let ended = self.sessions.end(session);
            self.end(now, ended);
        }
        let link = &mut self.links[number];
        let Some(call) = &mut link.call else { return };
        while let Some(room) = self.replies.room() {
            let Some(len) = call.poll_transmit(now, room) else { break };
            self.replies.push(link.config.path, len);
        }
    }

    /// Takes a neighbour's sign of life.
    pub(super) fn take_link_hello(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let session = self.admit_session(now, from, packet)?;
        let link = self.links.iter_mut().find(|link| link.session == session);
        let link = link.ok_or(DropReason::UnexpectedKind)?;
        let hello = LinkHello::decode(packet)?;
        link.pulse.take(now, self.waited, &hello, self.sessions.link_traffic(session));
        self.sessions.heard_on_link(now, session);
        Ok(())
    }

    /// Tells a neighbour something of a search, if the link with it is up.
    pub(super) fn send_search(&mut self, key: &PublicKey, comtree: Comtree, search: WaySearch) {
        let mut packet = [0; HELLO_ROOM];
        if let Ok(len) = search.encode(comtree, &mut packet) {
            // What is lost is asked again.
            self.send_over_link(key, &packet[..len]);
        }
    }

    /// The neighbour that a packet is from.
    fn admit_neighbour(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<PublicKey, DropReason> {
        let session = self.admit_session(now, from, packet)?;
        Ok(*self.link_at(session).ok_or(DropReason::UnexpectedKind)?.key())
    }

    /// Takes what a neighbour says of a search; it is for whoever runs this relay.
    pub(super) fn take_search(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let key = self.admit_neighbour(now, from, packet)?;
        let (comtree, search) = (packet.header().comtree, WaySearch::decode(packet)?);
        self.comtrees.find(comtree).ok_or(DropReason::UnknownComtree)?;
        // However much is asked, links are told of. What is lost is asked again.
        if self.notices.len() < MOST_SEARCHES {
            self.note(Notice::Search { key, comtree, search });
        }
        Ok(())
    }

    /// Tells neighbours what relays say of their links. What finds no room now is sent again; hellos need some, too.
    pub(super) fn send_link_states(&mut self, packets: Vec<(PublicKey, Box<[u8]>)>) {
        for (key, packet) in packets {
            if !self.replies.is_half_full() {
                self.send_over_link(&key, &packet);
            }
        }
    }

    /// Takes what a neighbour says of relays' links; it is for whoever runs this relay.
    pub(super) fn take_link_state(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let key = self.admit_neighbour(now, from, packet)?;
        match packet.header().kind {
            Kind::LinkStateAck => _ = LinkStateAck::decode(packet)?,
            _ => _ = LinkState::decode(packet)?,
        }
        // What is not acknowledged comes again.
        if self.notices.len() < MOST_STATES {
            let mut bytes = vec![0; packet.datagram_len()].into_boxed_slice();
            packet.header().encode_packet(packet.payload(), &mut bytes)?;
            self.note(Notice::LinkState { key, packet: bytes });
        }
        Ok(())
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
            let max_datagram = keys.max_datagram;
            self.sessions.link_up(now, session, from, keys);
            self.begin_link(now, number, max_datagram);
        }
        self.drive_link(now, number);
        Ok(())
    }

    /// A link has new keys. Whatever was agreed with the ones before is agreed anew; what was
    /// subscribed lasts until it expires.
    fn begin_link(&mut self, now: Time, number: usize, max_datagram: u16) {
        let link = &mut self.links[number];
        let (session, key) = (link.session, link.config.key);
        // A hello leaves at once, so that the other side knows that it was heard.
        link.pulse = Pulse::begin(now);
        link.ups += 1;
        link.datagrams = DatagramClass::of(max_datagram);
        let datagrams = link.datagrams;
        for branch in self.ports.of_link(session).collect::<Vec<_>>() {
            if let Some(port) = self.ports.get_mut(branch) {
                port.shape.datagrams = datagrams;
            }
        }
        self.begin_downstream(session);
        self.note(Notice::LinkUp { key });
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
            self.hand_on(applicant, thread, Passed { was_brought: true, asked: 0 })?;
            // Anybody may call, and the other thread does not ask the gate.
            self.note_failure(now);
            return Ok(());
        }
        let key = knock.participant();
        let is_it = |link: &Link| link.call.is_none() && Some(link.config.key) == key;
        let number = self.links.iter().position(is_it);
        let suite = Suite::agreed(join.suites, join.slow_suites | self.slow_suites);
        let (Some(number), Some(suite)) = (number, suite) else {
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
            self.begin_link(now, number, terms.max_datagram);
        }
        self.push_welcome(session, applicant.path);
        Ok(())
    }
}
