//! The participant's side of a session, sans-IO, in four verbs: `handle_datagram`,
//! `handle_timeout` (folded into [`Session::poll_transmit`], which takes the time),
//! `poll_transmit`, `poll_timeout`. It never gives up: a lost relay is asked again, with back-off.

mod asking;
mod calling;
mod group_keys;
mod joining;
mod liveness;
mod receiving;
mod reporting;
mod types;
mod watch;

use crate::answer::REBIND_STAMP;
use crate::curve::PublicKey;
use crate::noise::Initiator;
use crate::primitives::Identity;
use crate::requests::Requests;
use crate::seal::{Opener, Sealer};
use crate::secret::SeededRandom;
use crate::subscriptions::Subscriptions;
pub use calling::LinkKeys;
use canopy_wire::{
    Address, Downlink, Flags, Group, Header, Kind, Leave, LeaveReason, Level, MAX_UPDATE,
    Recipient, Record, SAFE_DATAGRAM, SEAL_LEN, Sealed, SessionId, Tag, Ticket, Time, Weight,
    WireError, encode_update,
};
use core::time::Duration;
use group_keys::GroupKeys;
use liveness::{Doubt, Rebinding};
use reporting::Reporting;
use std::collections::VecDeque;
pub use types::{Call, Event, SessionConfig, SessionError, State, Update};
use watch::Watch;

/// Between repetitions of a handshake packet; doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
const MAX_CALL_BACKOFF: Duration = Duration::from_millis(500);
/// Repetitions of a leave.
const LEAVE_TRIES: u32 = 3;
/// Events that wait to be polled; more than one acknowledgement can cause.
const MAX_EVENTS: usize = 1_024;
/// Packets whose first sealed bytes are remembered: an answer that the relay knows no such session
/// must name one of them.
const REMEMBERED: usize = 64;

/// Both directions' keys.
struct Keys {
    sealer: Sealer,
    opener: Opener,
    /// The first sealed bytes of the last packets, round and round.
    sealed: [u64; REMEMBERED],
    next: usize,
}

/// The participant's side of a session.
pub struct Session {
    config: SessionConfig,
    state: State,
    nonce: u64,
    identity: Identity,
    random: SeededRandom,
    cookie: Tag,
    /// The relay's key, as it said itself.
    relay_key: PublicKey,
    /// The handshake under way, and its first message.
    initiator: Option<Initiator>,
    message: Vec<u8>,
    id: SessionId,
    keys: Option<Box<Keys>>,
    address: Address,
    ticket: Ticket,
    path_stamp: u64,
    max_datagram: usize,
    downlink: Downlink,
    group_keys: GroupKeys,
    doubt: Option<Doubt>,
    /// What the handshake took for a round trip.
    first_round_trip: Duration,
    /// The number of the next update.
    series: u16,
    keepalive: Duration,
    refresh: Duration,
    /// When the current state's next packet is due.
    due: Time,
    tries: u32,
    heard: Time,
    /// How the relay is asked for a sign of life.
    watch: Option<Watch>,
    /// When the last connect left.
    asked_at: Time,
    /// The stamp of the latest keepalive that was answered.
    answered: u64,
    round_trip: Option<Duration>,
    rebinding: Rebinding,
    /// A draining relay is told that its notice arrived.
    farewell: bool,
    subscriptions: Subscriptions,
    requests: Requests,
    reporting: Reporting,
    events: VecDeque<Event>,
    events_lost: u64,
    echoes: u64,
}

impl Session {
    /// A session that will greet the relay as soon as it is polled.
    pub fn new(config: SessionConfig) -> Session {
        let mut random = SeededRandom::new(&config.seed, b"canopy participant");
        let fresh = Identity::new(random.draw());
        Session {
            identity: config.identity.clone().unwrap_or(fresh),
            random,
            ticket: config.ticket,
            config,
            state: State::Greeting,
            nonce: 0,
            cookie: Tag::default(),
            relay_key: PublicKey::default(),
            initiator: None,
            message: Vec::new(),
            id: SessionId::NONE,
            keys: None,
            address: Address::UNSPECIFIED,
            path_stamp: 0,
            max_datagram: SAFE_DATAGRAM,
            downlink: Downlink::Member,
            group_keys: GroupKeys::default(),
            doubt: None,
            first_round_trip: MAX_BACKOFF,
            series: 0,
            keepalive: MAX_BACKOFF,
            refresh: MAX_BACKOFF,
            due: Time::ZERO,
            tries: 0,
            heard: Time::ZERO,
            watch: None,
            asked_at: Time::ZERO,
            answered: REBIND_STAMP,
            round_trip: None,
            rebinding: Rebinding::Settled,
            farewell: false,
            subscriptions: Subscriptions::default(),
            requests: Requests::default(),
            reporting: Reporting::default(),
            events: VecDeque::new(),
            events_lost: 0,
            echoes: 0,
        }
    }

    /// Where the session stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The participant's address, unspecified before it is connected.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Who the participant is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What brings the participant's address back in a later session, together with its
    /// [identity](Session::identity).
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The number that the relay gave the session; its packets carry it.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Which of a relay's datagrams are for this session. It changes with each hello, and when a session
    /// begins: ask after each call that may have brought that about.
    pub fn recipient(&self) -> Recipient {
        match self.state {
            State::Greeting | State::Connecting => Recipient::Handshake(self.nonce),
            State::Connected | State::Leaving | State::Closed => Recipient::Session(self.id),
        }
    }

    /// The longest datagram in bytes that either side sends.
    pub fn max_datagram(&self) -> usize {
        self.max_datagram
    }

    /// The numbers of the next `count` updates, of which this is the first. Who writes updates
    /// itself gets their numbers here.
    pub fn take_series(&mut self, count: usize) -> u16 {
        let first = self.series;
        self.series = first.wrapping_add(count as u16);
        first
    }

    /// Updates of its own that came back although it had not asked for them, and were dropped: a
    /// relay may send what is for many to its publisher too.
    pub fn echoes(&self) -> u64 {
        self.echoes
    }

    /// Datagrams that were dropped because the group key that they were sealed with had not arrived
    /// yet, or is one of the past. The relay is asked for a key that is not there.
    pub fn keyless(&self) -> u64 {
        self.group_keys.keyless()
    }

    /// The last measured round trip to the relay.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// How many groups the participant wants to be subscribed to.
    pub fn subscriptions(&self) -> usize {
        self.subscriptions.wanted()
    }

    /// The groups that the participant wants to be subscribed to, with their levels and weights.
    pub fn wanted(&self) -> impl Iterator<Item = (Group, Level, Weight)> {
        self.subscriptions.all_wanted()
    }

    /// A session of the same participant with another relay, which has this key, by another token. It asks
    /// for no more than this one, and has no subscriptions: see [`Session::wanted`]. The seed must
    /// differ from that of any other session.
    pub fn beside(&self, relay_key: Option<PublicKey>, token: Vec<u8>, seed: Tag) -> Session {
        let identity = Some(self.identity.clone());
        let ticket = Ticket::default();
        let config =
            SessionConfig { seed, relay_key, identity, token, ticket, ..self.config.clone() };
        let mut session = Session::new(config);
        session.ask_for(self.reporting.asked());
        session
    }

    /// Asks for all subscriptions again, and tells again that they are there.
    pub fn renew_subscriptions(&mut self) {
        self.subscriptions.renew();
    }

    /// Wants the group's updates of level ≤ `level`. [`Event::Subscribed`] tells when they come.
    pub fn subscribe(&mut self, group: Group, level: Level) {
        self.subscribe_with(group, level, Weight::ONE);
    }

    /// Wants the group's updates of level ≤ `level`, which have so much weight where not all that is
    /// wanted can be sent.
    pub fn subscribe_with(&mut self, group: Group, level: Level, weight: Weight) {
        self.subscriptions.add(group, level, weight);
    }

    /// Wants no more of the group.
    pub fn unsubscribe(&mut self, group: Group) {
        self.subscriptions.remove(group);
    }

    /// Writes an update for `dst` into `out`; the driver sends it. Returns its length.
    ///
    /// # Errors
    /// [`SessionError::NotConnected`], [`SessionError::TooLong`], or [`SessionError::Wire`] if `out`
    /// is shorter than the packet.
    pub fn publish(
        &mut self,
        dst: Address,
        level: Level,
        flags: Flags,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<usize, SessionError> {
        self.publish_record(&Record { flags, level, ..Record::new(dst, 0, payload) }, out)
    }

    /// The same with all that an update may say. Its source and its number are the session's.
    ///
    /// # Errors
    /// Those of [`Session::publish`].
    pub fn publish_record(
        &mut self,
        record: &Record<'_>,
        out: &mut [u8],
    ) -> Result<usize, SessionError> {
        if self.state != State::Connected {
            return Err(SessionError::NotConnected);
        }
        if record.payload.len() > MAX_UPDATE {
            return Err(SessionError::TooLong(record.payload.len()));
        }
        let record = Record { src: Address::UNSPECIFIED, series: self.series, ..*record };
        let header = Header::new(Kind::Updates, self.id, self.config.comtree);
        let len = encode_update(&header, &record, out)?;
        let len = self.seal(out, len)?;
        self.take_series(1);
        Ok(len)
    }

    /// Seals the packet of `len` bytes at the front of `out`, written with [`Session::id`]. Returns
    /// the length of what is to be sent: `SEAL_LEN` more.
    ///
    /// # Errors
    /// [`WireError::Length`] if there is no room for the seal, or no session yet.
    pub fn seal(&mut self, out: &mut [u8], len: usize) -> Result<usize, WireError> {
        let keys = self.keys.as_mut().ok_or(WireError::Length)?;
        if out.len() < len + SEAL_LEN {
            return Err(WireError::Length);
        }
        let len = keys.sealer.seal(out, len);
        keys.sealed[keys.next % REMEMBERED] =
            Sealed::of(&out[..len]).map_or(0, |sealed| sealed.first);
        keys.next += 1;
        Ok(len)
    }

    /// Begins an orderly leave. The session is closed when the relay answers, or soon after.
    pub fn leave(&mut self) {
        match self.state {
            State::Connected => {
                self.rebinding = Rebinding::Settled;
                self.enter(State::Leaving, Time::ZERO);
            }
            State::Leaving | State::Closed => {}
            State::Greeting | State::Connecting => self.close(),
        }
    }

    /// Greets anew at `at`, whatever was tried so far: the driver asks another relay from now on.
    /// Does nothing while connected, leaving or closed.
    pub fn greet_at(&mut self, at: Time) {
        if matches!(self.state, State::Greeting | State::Connecting) {
            self.enter(State::Greeting, at);
        }
    }

    /// Goes on with another relay, which has this key, by another token. A present session counts as
    /// lost, and its subscriptions are made again at the other relay. Does nothing while leaving or
    /// closed. The driver sends what follows to the other relay.
    pub fn turn_to(&mut self, now: Time, relay_key: Option<PublicKey>, token: Vec<u8>) {
        if matches!(self.state, State::Leaving | State::Closed) {
            return;
        }
        self.config.relay_key = relay_key;
        self.config.token = token;
        self.ticket = Ticket::default();
        match self.state {
            State::Connected => self.lose(now),
            _ => self.enter(State::Greeting, now),
        }
    }

    /// The next thing to tell the application. A driver that never asks loses the oldest, which
    /// [`Session::events_lost`] counts; one that asks after every datagram loses none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Events that made room for newer ones because nobody polled them.
    pub fn events_lost(&self) -> u64 {
        self.events_lost
    }

    /// When [`Session::poll_transmit`] wants to be called next; `None` once closed.
    pub fn poll_timeout(&self) -> Option<Time> {
        let asked = match self.state {
            State::Closed => return None,
            State::Connected => {
                let subscriptions = self.subscriptions.due().filter(|_| self.may_subscribe());
                let asked = [subscriptions, self.requests.due(), self.reporting.due()];
                asked.into_iter().flatten().min()
            }
            _ => None,
        };
        let group_keys = self.group_keys.due().filter(|_| self.state == State::Connected);
        let doubt = self.doubt.filter(|_| self.state == State::Connected).map(|doubt| doubt.due);
        let watch = self.watch.as_ref().filter(|_| self.state == State::Connected);
        let sign = watch.map(|watch| watch.due);
        let farewell = self.farewell.then_some(Time::ZERO);
        let proof = match self.rebinding {
            Rebinding::Challenged { due, .. } => Some(due),
            Rebinding::Settled | Rebinding::Proved { .. } => None,
        };
        [Some(self.due), asked, group_keys, farewell, proof, doubt, sign]
            .into_iter()
            .flatten()
            .min()
    }

    /// Writes the next packet that is due at `now` into `out` and returns its length; `None` when
    /// there is none. Call until it returns `None`.
    pub fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        let written = match self.state {
            State::Closed => return None,
            _ if core::mem::take(&mut self.farewell) => self.write_leave(out).map(Some),
            State::Greeting => self.transmit_hello(now, out),
            State::Connecting => self.transmit_connect(now, out),
            State::Leaving => self.transmit_leave(now, out),
            State::Connected => self.transmit_connected(now, out),
        };
        // `out` holds a datagram, so encoding our own packets cannot fail.
        written.ok().flatten()
    }

    fn transmit_leave(&mut self, now: Time, out: &mut [u8]) -> Result<Option<usize>, WireError> {
        if now < self.due {
            return Ok(None);
        }
        if self.tries >= LEAVE_TRIES {
            self.close();
            return Ok(None);
        }
        self.back_off(now);
        self.write_leave(out).map(Some)
    }

    fn write_leave(&mut self, out: &mut [u8]) -> Result<usize, WireError> {
        let leave = Leave { reason: LeaveReason::Done };
        let len = leave.encode(self.config.comtree, self.id, out)?;
        self.seal(out, len)
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
            self.events_lost += 1;
        }
        self.events.push_back(event);
    }

    fn lose(&mut self, again_at: Time) {
        self.enter(State::Greeting, again_at);
        self.rebinding = Rebinding::Settled;
        self.round_trip = None;
        self.tell(Event::Lost);
    }

    fn close(&mut self) {
        self.enter(State::Closed, Time::ZERO);
        self.tell(Event::Closed);
    }

    fn enter(&mut self, state: State, due: Time) {
        self.state = state;
        self.due = due;
        self.tries = 0;
    }

    fn back_off(&mut self, now: Time) {
        self.due = now + (FIRST_BACKOFF * (1 << self.tries.min(5))).min(self.max_backoff());
        self.tries += 1;
    }

    /// The longest pause between two tries. Many wait for a link, and few relays call one.
    fn max_backoff(&self) -> Duration {
        if self.config.call.is_some() { MAX_CALL_BACKOFF } else { MAX_BACKOFF }
    }
}
