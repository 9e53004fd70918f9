//! The participant's side of a session, sans-IO, in four verbs: `handle_datagram`,
//! `handle_timeout` (folded into [`Session::poll_transmit`], which takes the time),
//! `poll_transmit`, `poll_timeout`. It never gives up: a lost relay is asked again, with back-off.

mod asking;
mod calling;
mod group_keys;
mod joining;
mod liveness;

use crate::noise::{Identity, Initiator, PublicKey, SeededRandom};
use crate::requests::{RequestNumber, Requests};
use crate::seal::{Opener, Sealer};
use crate::sessions::REBIND_STAMP;
use crate::subscriptions::{Settled, Subscriptions};
pub use calling::{Call, LinkKeys};
use canopy_wire::{
    Address, Busy, Challenge, Class, Comtree, Connected, Cookie, Downlink, Flags, Gone, Group,
    GroupKey, Header, Keepalive, Kind, Leave, LeaveReason, Level, MAX_TOKEN_LEN, MAX_UPDATE,
    Packet, Record, Refused, RefusedReason, RequestStatus, Response, SAFE_DATAGRAM, SEAL_LEN,
    Sealed, SessionId, SubscribeAck, SubscribeRefusal, Suite, Tag, Ticket, Time, Unknown, VERSION,
    WireError, encode_update,
};
use core::time::Duration;
use group_keys::GroupKeys;
use liveness::{Doubt, Rebinding};
use std::collections::VecDeque;

/// What a session is opened with.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The comtree to join.
    pub comtree: Comtree,
    /// 16 random bytes, from which nonces and keys are drawn. Must differ between sessions.
    pub seed: Tag,
    /// The relay's public key. Without it, whoever answers is believed to be the relay: for
    /// networks that nobody else is on.
    pub relay_key: Option<PublicKey>,
    /// Who the participant is; someone new unless it is given.
    pub identity: Option<Identity>,
    /// The access token; empty without one.
    pub token: Vec<u8>,
    /// The ticket of an earlier session of the same [identity](SessionConfig::identity), whose
    /// address is wanted back. Later sessions bring the one of the session before.
    pub ticket: Ticket,
    /// The suites that this host is good at, a [bit](Suite::bit) each.
    pub suites: u8,
    /// The longest datagram in bytes that the path to the relay takes, from [`SAFE_DATAGRAM`] to
    /// [`MAX_DATAGRAM`](canopy_wire::MAX_DATAGRAM). The relay may know of less.
    pub max_datagram: u16,
    /// If it is a relay that calls its neighbour: what it asks for.
    pub call: Option<Call>,
}

impl SessionConfig {
    /// A session on `comtree` over a path that takes no more than any, with whatever relay answers.
    pub fn new(comtree: Comtree, seed: Tag) -> SessionConfig {
        SessionConfig {
            comtree,
            seed,
            relay_key: None,
            identity: None,
            token: Vec::new(),
            ticket: Ticket::default(),
            suites: Suite::Aes128Gcm.bit() | Suite::ChaCha20Poly1305.bit(),
            max_datagram: SAFE_DATAGRAM as u16,
            call: None,
        }
    }
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A hello is on the way, or the next is being waited for.
    Greeting,
    /// A connect is on the way.
    Connecting,
    /// In the world.
    Connected,
    /// A leave is on the way.
    Leaving,
    /// Left for good.
    Closed,
}

/// Something that the application may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// In the world, under this address. After a loss, subscriptions are being made again.
    Connected(Address),
    /// The relay is lost or going away; the session is trying again by itself.
    Lost,
    /// The relay does not take the participant; the session asks again later by itself.
    Refused(RefusedReason),
    /// The relay acknowledged the subscription.
    Subscribed(Group, Level),
    /// The relay acknowledged the end of the subscription.
    Unsubscribed(Group),
    /// The relay refused the subscription.
    SubscriptionRefused(Group, SubscribeRefusal),
    /// The relay ends the session for this reason. [`Event::Lost`] follows, or [`Event::Closed`] if
    /// another session goes on by the same token.
    SentAway(LeaveReason),
    /// The relay has answered a request.
    Answered(RequestNumber, RequestStatus),
    /// The participant's ip:port has changed, and the relay has confirmed that it knows the new one.
    Rebound,
    /// The relay drops a part of what the participant sends. It tells so once a second at most.
    Busy(Busy),
    /// Nobody is at this address, to which something was sent: it reached no one. Not every update
    /// that reaches no one is told of.
    Gone(Address),
    /// The session was left.
    Closed,
}

/// One update that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Its publisher.
    pub src: Address,
    /// The group or the endpoint that it was sent to.
    pub dst: Address,
    /// Its number among its publisher's updates, modulo 2¹⁶. A gap is a loss if all groups that its
    /// publisher sends to are subscribed to; the same number again is a copy that the network made.
    pub series: u16,
    /// Its level.
    pub level: Level,
    /// Its bytes.
    pub payload: &'a [u8],
    /// The packet that it came in, of whose bytes its own are a part: who keeps the updates of a
    /// packet keeps one copy.
    pub packet: &'a [u8],
}

/// Why the session cannot do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no session with the relay right now; wait for [`Event::Connected`].
    #[error("not connected to the relay right now; wait for the Connected event")]
    NotConnected,
    /// The update does not fit a datagram.
    #[error("the update has {0} bytes, more than {MAX_UPDATE}; split it")]
    TooLong(usize),
    /// The token is longer than any.
    #[error(
        "the token has {0} bytes, more than {MAX_TOKEN_LEN}; grant fewer ranges or shorter names"
    )]
    LongToken(usize),
    /// Too many requests wait for the relay's answers.
    #[error("too many requests wait for the relay's answers; ask again later")]
    Busy,
    /// The driver's buffer is too short, or a datagram from the relay is no packet.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Between repetitions of a handshake packet; doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
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
            asked_at: Time::ZERO,
            answered: REBIND_STAMP,
            round_trip: None,
            rebinding: Rebinding::Settled,
            farewell: false,
            subscriptions: Subscriptions::default(),
            requests: Requests::default(),
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

    /// Wants the group's updates of level ≤ `level`. [`Event::Subscribed`] tells when they come.
    pub fn subscribe(&mut self, group: Group, level: Level) {
        self.subscriptions.add(group, level);
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
        if self.state != State::Connected {
            return Err(SessionError::NotConnected);
        }
        if payload.len() > MAX_UPDATE {
            return Err(SessionError::TooLong(payload.len()));
        }
        let record = Record { flags, level, ..Record::new(dst, self.series, payload) };
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
                [subscriptions, self.requests.due()].into_iter().flatten().min()
            }
            _ => None,
        };
        let group_keys = self.group_keys.due().filter(|_| self.state == State::Connected);
        let doubt = self.doubt.filter(|_| self.state == State::Connected).map(|doubt| doubt.due);
        let farewell = self.farewell.then_some(Time::ZERO);
        let proof = match self.rebinding {
            Rebinding::Challenged { due, .. } => Some(due),
            Rebinding::Settled | Rebinding::Proved { .. } => None,
        };
        [Some(self.due), asked, group_keys, farewell, proof, doubt].into_iter().flatten().min()
    }

    /// Handles a datagram from the relay, which is opened where it lies; `deliver` is called for each
    /// update in it.
    ///
    /// # Errors
    /// What is wrong with the datagram. It has changed nothing then, except that a relay which
    /// answers a connect with what this release cannot use is asked again later.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        let sealed = Sealed::of(datagram);
        let is_sealed = sealed.is_some();
        let packet = if let Some(Sealed { session, .. }) = sealed {
            let opened = self.open(session, datagram);
            Packet::new_checked(opened.ok_or(WireError::Field("seal"))?)?
        } else if datagram.first() == Some(&(VERSION | Class::Group as u8)) {
            return self.handle_of_group(now, datagram, deliver);
        } else {
            match Packet::new_checked(datagram) {
                Err(WireError::Version(version)) => {
                    return self.handle_foreign_version(version, datagram, now);
                }
                checked => checked?,
            }
        };
        if !is_sealed && packet.header().kind.class() == Class::Stranger {
            return self.handle_in_clear(now, &packet);
        }
        if packet.header().comtree != self.config.comtree {
            return Err(WireError::Field("comtree"));
        }
        if packet.header().kind == Kind::Updates && self.state == State::Connected {
            let may_be_clear = self.downlink == Downlink::None;
            if !is_sealed && !may_be_clear {
                return Err(WireError::Field("seal"));
            }
            self.deliver_all(&packet, |_| true, deliver)?;
        } else if is_sealed {
            self.handle_sealed(now, &packet)?;
        }
        if is_sealed {
            self.heard = self.heard.max(now);
            self.doubt = None;
        }
        Ok(())
    }

    /// Handles what was sealed for all members of the comtree. Any member could have made it: so it is
    /// no sign of life of the relay, and it carries nothing but updates to groups.
    fn handle_of_group(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        if self.downlink != Downlink::Group || self.state != State::Connected {
            return Err(WireError::Field("seal"));
        }
        // What nobody has a key for is counted.
        let Some(opened) = self.group_keys.open(now, datagram) else { return Ok(()) };
        let packet = Packet::new_checked(opened.map_err(|_| WireError::Field("seal"))?)?;
        if packet.header().comtree != self.config.comtree || packet.header().kind != Kind::Updates {
            return Err(WireError::Field("kind"));
        }
        self.deliver_all(&packet, Address::is_group, deliver)
    }

    /// Hands the updates of a packet to the application, those to which it may bring any.
    fn deliver_all(
        &mut self,
        packet: &Packet<'_>,
        may_go_to: impl Fn(Address) -> bool,
        mut deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        for record in packet.updates()? {
            let Record { flags, src, series, dst, level, payload } = record;
            let update = Update { src, dst, series, level, payload, packet: packet.payload() };
            if may_go_to(dst) {
                self.deliver(update, flags, &mut deliver);
            }
        }
        Ok(())
    }

    /// Opens a sealed datagram that says it is of session `id`.
    fn open<'a>(&mut self, id: SessionId, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let is_ours = id == self.id && matches!(self.state, State::Connected | State::Leaving);
        let keys = self.keys.as_mut().filter(|_| is_ours)?;
        keys.opener.open(datagram, true).ok()
    }

    /// What a relay says to those whose session it does not know, or not yet.
    fn handle_in_clear(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), WireError> {
        match packet.header().kind {
            Kind::Cookie => self.handle_cookie(Cookie::decode(packet)?, now),
            Kind::Connected => self.handle_connected(&Connected::decode(packet)?, now)?,
            // A relay that does not speak our version does not know our comtree either.
            Kind::Refused => self.handle_refused(Refused::decode(packet)?, now),
            Kind::Unknown if packet.header().session == self.id => {
                self.handle_unknown(Unknown::decode(packet)?, now);
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_sealed(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), WireError> {
        match packet.header().kind {
            Kind::KeepaliveAck => self.handle_keepalive_ack(Keepalive::decode(packet)?, now),
            Kind::SubscribeAck if self.state == State::Connected => {
                self.handle_subscribe_ack(&SubscribeAck::new_checked(packet)?);
            }
            Kind::GroupKey if self.downlink == Downlink::Group => {
                self.group_keys.learn(now, &GroupKey::decode(packet)?);
            }
            Kind::Challenge if self.state == State::Connected => {
                self.handle_challenge(Challenge::decode(packet)?, now);
            }
            Kind::Leave if self.state == State::Connected => {
                self.handle_leave(Leave::decode(packet)?, now);
            }
            Kind::Response if self.state == State::Connected => {
                self.handle_response(Response::decode(packet)?);
            }
            Kind::Busy if self.state == State::Connected => {
                self.tell(Event::Busy(Busy::decode(packet)?));
            }
            Kind::Gone if self.state == State::Connected => {
                let Gone { address } = Gone::decode(packet)?;
                self.tell(Event::Gone(address));
            }
            Kind::Left if self.state == State::Leaving => self.close(),
            _ => {}
        }
        Ok(())
    }

    /// Whether updates could be read that are subscribed to.
    fn may_subscribe(&self) -> bool {
        self.downlink != Downlink::Group || self.group_keys.is_there()
    }

    /// Hands an update to the application. A relay may send what goes to many to its publisher too.
    fn deliver(&mut self, update: Update<'_>, flags: Flags, to: &mut impl FnMut(Update<'_>)) {
        let is_own = update.src == self.address && update.dst.is_group();
        if is_own && !flags.contains(Flags::ECHO) {
            self.echoes += 1;
        } else if self.is_for_us(update.dst) {
            to(update);
        }
    }

    /// Whether an update goes to a group or to us, not to whoever had our ip:port before.
    fn is_for_us(&self, dst: Address) -> bool {
        dst.is_group() || dst == self.address
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

    fn handle_subscribe_ack(&mut self, ack: &SubscribeAck<'_>) {
        let mut events = Vec::new();
        self.subscriptions.handle_ack(ack, |settled| {
            events.push(match settled {
                Settled::Added(group, level) => Event::Subscribed(group, level),
                Settled::Dropped(group) => Event::Unsubscribed(group),
                Settled::Refused(group, reason) => Event::SubscriptionRefused(group, reason),
            });
        });
        events.into_iter().for_each(|event| self.tell(event));
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
        self.due = now + (FIRST_BACKOFF * (1 << self.tries.min(5))).min(MAX_BACKOFF);
        self.tries += 1;
    }
}
