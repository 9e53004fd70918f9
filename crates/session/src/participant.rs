//! The participant's side of a session, sans-IO, in four verbs: `handle_datagram`,
//! `handle_timeout` (folded into [`Session::poll_transmit`], which takes the time),
//! `poll_transmit`, `poll_timeout`. It never gives up: a lost relay is asked again, with back-off.

use crate::subscriptions::{Settled, Subscriptions};
use crate::tag::rebind_proof;
use canopy_wire::{
    Address, Bundle, Challenge, Comtree, Connect, Connected, Cookie, Flags, Group, Header, Hello,
    Keepalive, Kind, Leave, LeaveReason, Level, MAX_UPDATE, Packet, Rebind, Refused, RefusedReason,
    SubscribeAck, Suite, TableFull, Tag, Time, WireError,
};
use core::hash::Hasher;
use core::time::Duration;
use siphasher::sip::SipHasher13;
use std::collections::VecDeque;

/// What a session is opened with.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The comtree to join.
    pub comtree: Comtree,
    /// 16 random bytes, from which nonces are drawn. Must differ between sessions.
    pub seed: Tag,
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
    SubscriptionRefused(Group, TableFull),
    /// The participant's ip:port has changed, and the relay has confirmed that it knows the new one.
    Rebound,
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
    /// Its level.
    pub level: Level,
    /// Its bytes.
    pub payload: &'a [u8],
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
    /// The driver's buffer is too short, or a datagram from the relay is no packet.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Between repetitions of a handshake packet; doubles up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
/// Unanswered keepalives after which the relay counts as lost.
const LOST_AFTER_KEEPALIVES: u32 = 3;
/// Repetitions of a leave.
const LEAVE_TRIES: u32 = 3;
/// Repetitions of a connect before the cookie is given up.
const CONNECT_TRIES: u32 = 5;
/// Between proofs of a new ip:port. Anyone who can write the relay's address on a packet can send
/// challenges, and each proof costs a packet.
const PROOF_PAUSE: Duration = Duration::from_millis(100);
/// Events that wait to be polled; more than one acknowledgement can cause.
const MAX_EVENTS: usize = 1_024;
/// The stamp with which a relay answers a proof that it takes; no keepalive carries it.
const REBIND_STAMP: u64 = 0;

/// How far a change of the participant's ip:port has come.
enum Rebinding {
    /// As far as anyone knows, nothing has changed.
    Settled,
    /// The relay has seen another ip:port and asks for a proof, which may go out at `due`.
    Challenged { cookie: Tag, due: Time },
    /// The proof was sent at `at`, and the relay has not said yet that it took it.
    Proved { at: Time },
}

/// The participant's side of a session.
pub struct Session {
    config: SessionConfig,
    state: State,
    nonce: u64,
    drawn: u64,
    cookie: Tag,
    address: Address,
    secret: Tag,
    keepalive: Duration,
    refresh: Duration,
    /// When the current state's next packet is due.
    due: Time,
    tries: u32,
    heard: Time,
    last_stamp: u64,
    round_trip: Option<Duration>,
    rebinding: Rebinding,
    /// A draining relay is told that its notice arrived.
    farewell: bool,
    subscriptions: Subscriptions,
    events: VecDeque<Event>,
    events_lost: u64,
    echoes: u64,
}

impl Session {
    /// A session that will greet the relay as soon as it is polled.
    pub fn new(config: SessionConfig) -> Session {
        Session {
            config,
            state: State::Greeting,
            nonce: 0,
            drawn: 0,
            cookie: Tag::default(),
            address: Address::UNSPECIFIED,
            secret: Tag::default(),
            keepalive: MAX_BACKOFF,
            refresh: MAX_BACKOFF,
            due: Time::ZERO,
            tries: 0,
            heard: Time::ZERO,
            last_stamp: 0,
            round_trip: None,
            rebinding: Rebinding::Settled,
            farewell: false,
            subscriptions: Subscriptions::default(),
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

    /// Updates of its own that came back although it had not asked for them, and were dropped: a
    /// relay may send what is for many to its publisher too.
    pub fn echoes(&self) -> u64 {
        self.echoes
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
        &self,
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
        let mut header = Header::new(Kind::Data, self.config.comtree, self.address, dst);
        header.level = level;
        header.flags = flags;
        Ok(header.encode_packet(payload, out)?)
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
        let subscriptions = match self.state {
            State::Closed => return None,
            State::Connected => self.subscriptions.due(),
            _ => None,
        };
        let farewell = self.farewell.then_some(Time::ZERO);
        let proof = match self.rebinding {
            Rebinding::Challenged { due, .. } => Some(due),
            Rebinding::Settled | Rebinding::Proved { .. } => None,
        };
        [Some(self.due), subscriptions, farewell, proof].into_iter().flatten().min()
    }

    /// Handles a datagram from the relay; `deliver` is called for each update in it.
    ///
    /// # Errors
    /// What is wrong with the datagram. It has changed nothing then.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        datagram: &[u8],
        mut deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        let packet = match Packet::new_checked(datagram) {
            Err(WireError::Version(version)) => {
                return self.handle_foreign_version(version, datagram, now);
            }
            checked => checked?,
        };
        let header = packet.header();
        if header.kind == Kind::Refused {
            // A relay that does not speak our version does not know our comtree either.
            self.handle_refused(Refused::decode(&packet)?, now);
            return Ok(());
        }
        if header.comtree != self.config.comtree {
            return Err(WireError::Field("comtree"));
        }
        match header.kind {
            Kind::Data if self.state == State::Connected => {
                let (src, dst, level) = (header.src, header.dst, header.level);
                let update = Update { src, dst, level, payload: packet.payload() };
                self.deliver(update, header.flags, &mut deliver);
            }
            Kind::Bundle if self.state == State::Connected => {
                for record in Bundle::new_checked(&packet)?.records() {
                    let canopy_wire::Record { src, dst, level, payload, flags } = record;
                    self.deliver(Update { src, dst, level, payload }, flags, &mut deliver);
                }
            }
            Kind::Cookie => self.handle_cookie(Cookie::decode(&packet)?, now),
            Kind::Connected => self.handle_connected(Connected::decode(&packet)?, now),
            Kind::KeepaliveAck => {
                self.handle_keepalive_ack(header.dst, Keepalive::decode(&packet)?, now);
            }
            // One that comes late, to a session that has ended, settles nothing of the next.
            Kind::SubscribeAck if self.state == State::Connected && header.dst == self.address => {
                self.handle_subscribe_ack(&SubscribeAck::new_checked(&packet)?);
            }
            Kind::Challenge if self.state == State::Connected => {
                self.handle_challenge(Challenge::decode(&packet)?, now);
            }
            Kind::Leave if self.state == State::Connected => {
                Leave::decode(&packet)?;
                self.lose(now + FIRST_BACKOFF);
                self.farewell = true;
            }
            Kind::Left if self.state == State::Leaving => self.close(),
            _ => {}
        }
        // An answer that knows no session of ours, or none at this path, does not prove that it lives.
        let is_unknown = match header.kind {
            Kind::Challenge => true,
            Kind::KeepaliveAck => header.dst != self.address,
            _ => false,
        };
        if !is_unknown {
            self.heard = self.heard.max(now);
        }
        Ok(())
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

    fn transmit_hello(&mut self, now: Time, out: &mut [u8]) -> Result<Option<usize>, WireError> {
        if now < self.due {
            return Ok(None);
        }
        self.nonce = self.draw();
        self.back_off(now);
        Hello { nonce: self.nonce }.encode(self.config.comtree, out).map(Some)
    }

    fn transmit_connect(&mut self, now: Time, out: &mut [u8]) -> Result<Option<usize>, WireError> {
        if now < self.due {
            return Ok(None);
        }
        if self.tries >= CONNECT_TRIES {
            self.enter(State::Greeting, now);
            return self.transmit_hello(now, out);
        }
        self.back_off(now);
        let suite = Suite::None as u8;
        let connect = Connect { nonce: self.nonce, cookie: self.cookie, suite, token: &[] };
        connect.encode(self.config.comtree, out).map(Some)
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

    fn write_leave(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let leave = Leave { reason: LeaveReason::Done };
        leave.encode(self.config.comtree, self.address, Address::UNSPECIFIED, out)
    }

    fn transmit_connected(
        &mut self,
        now: Time,
        out: &mut [u8],
    ) -> Result<Option<usize>, WireError> {
        let (comtree, src) = (self.config.comtree, self.address);
        if let Rebinding::Challenged { cookie, due } = self.rebinding
            && now >= due
        {
            self.rebinding = Rebinding::Proved { at: now };
            let proof = rebind_proof(&self.secret, &cookie);
            return Rebind { cookie, proof }.encode(comtree, src, out).map(Some);
        }
        if now >= self.due {
            if now.since(self.heard) > self.keepalive * LOST_AFTER_KEEPALIVES {
                self.lose(now);
                return self.transmit_hello(now, out);
            }
            self.due = now + self.keepalive;
            self.last_stamp = now.as_nanos().max(REBIND_STAMP + 1);
            return Keepalive { stamp: self.last_stamp }.encode(comtree, src, out).map(Some);
        }
        self.subscriptions.poll_transmit(now, self.refresh, (comtree, src), out)
    }

    fn handle_cookie(&mut self, cookie: Cookie, now: Time) {
        if self.state == State::Greeting && cookie.nonce == self.nonce {
            self.cookie = cookie.cookie;
            self.enter(State::Connecting, now);
        }
    }

    fn handle_connected(&mut self, connected: Connected, now: Time) {
        if self.state != State::Connecting || connected.nonce != self.nonce {
            return;
        }
        self.address = connected.address;
        self.secret = connected.secret;
        let millis = |ms: u32| Duration::from_millis(ms.max(1).into());
        self.keepalive = millis(connected.keepalive_ms);
        // Two refreshes may be lost before a subscription ends.
        self.refresh = millis(connected.subscription_ms) / 3;
        self.heard = now;
        self.enter(State::Connected, now + self.keepalive);
        self.subscriptions.restart();
        self.tell(Event::Connected(self.address));
    }

    /// The only packet of another version that can be read is its refusal of ours.
    fn handle_foreign_version(
        &mut self,
        version: u8,
        datagram: &[u8],
        now: Time,
    ) -> Result<(), WireError> {
        let nonce = Refused::nonce_of_any_version(datagram).ok_or(WireError::Version(version))?;
        self.handle_refused(Refused { nonce, reason: RefusedReason::Version }, now);
        Ok(())
    }

    fn handle_refused(&mut self, refused: Refused, now: Time) {
        let waiting = matches!(self.state, State::Greeting | State::Connecting);
        if !waiting || refused.nonce != self.nonce {
            return;
        }
        self.enter(State::Greeting, now + MAX_BACKOFF);
        self.tell(Event::Refused(refused.reason));
    }

    fn handle_challenge(&mut self, challenge: Challenge, now: Time) {
        let due = match self.rebinding {
            Rebinding::Settled => now,
            Rebinding::Challenged { due, .. } => due,
            Rebinding::Proved { at } => at + PROOF_PAUSE,
        };
        self.rebinding = Rebinding::Challenged { cookie: challenge.cookie, due };
    }

    fn handle_keepalive_ack(&mut self, dst: Address, keepalive: Keepalive, now: Time) {
        if self.state != State::Connected {
            return;
        }
        if dst == self.address {
            self.confirm_rebinding(keepalive.stamp);
        }
        if keepalive.stamp != self.last_stamp {
            return;
        }
        if dst == self.address {
            self.round_trip = Some(now.since(Time::from_nanos(keepalive.stamp)));
        } else {
            // Another incarnation of the relay answered.
            self.lose(now);
        }
    }

    /// The relay answers a proof that it takes, and afterwards the keepalives that come from the new
    /// ip:port. An answer to an earlier keepalive may have been under way for long.
    fn confirm_rebinding(&mut self, stamp: u64) {
        if let Rebinding::Proved { at } = self.rebinding
            && (stamp == REBIND_STAMP || stamp > at.as_nanos())
        {
            self.rebinding = Rebinding::Settled;
            self.tell(Event::Rebound);
        }
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

    fn draw(&mut self) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.config.seed);
        hasher.write_u64(self.drawn);
        self.drawn += 1;
        hasher.finish()
    }
}
