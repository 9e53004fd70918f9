//! How a participant joins: hello, cookie, connect, connected, or a refusal.

use super::group_keys::GroupKeys;
use super::watch::Watch;
use super::{Call, Event, Keys, REMEMBERED, Session, SessionConfig, State};
use crate::answer::REBIND_STAMP;
use crate::noise::{FIRST_MORE, Initiator, Prologue};
use crate::seal::{Opener, Sealer};
use canopy_wire::{
    Comtree, Connect, Connected, Cookie, Downlink, Hello, Join, Joined, LinkJoin, MAX_DATAGRAM,
    MAX_JOIN_LEN, Refused, RefusedReason, SAFE_DATAGRAM, Time, WireError,
};
use core::time::Duration;

/// Repetitions of a connect before the cookie is given up.
const CONNECT_TRIES: u32 = 5;

impl Session {
    pub(super) fn transmit_hello(
        &mut self,
        now: Time,
        out: &mut [u8],
    ) -> Result<Option<usize>, WireError> {
        if now < self.due {
            return Ok(None);
        }
        let nonce = self.draw();
        self.nonce = self.config.call.map_or(nonce, |call| call.steered(nonce));
        self.back_off(now);
        // Which comtree it wants to join, it says where only the relay reads it.
        Hello { nonce: self.nonce }.encode(Comtree(0), out).map(Some)
    }

    pub(super) fn transmit_connect(
        &mut self,
        now: Time,
        out: &mut [u8],
    ) -> Result<Option<usize>, WireError> {
        if now < self.due {
            return Ok(None);
        }
        if self.tries >= CONNECT_TRIES {
            self.enter(State::Greeting, now);
            return self.transmit_hello(now, out);
        }
        self.back_off(now);
        self.asked_at = now;
        if self.initiator.is_none() {
            self.begin_handshake()?;
        }
        let (nonce, cookie) = (self.nonce, self.cookie);
        Connect { nonce, cookie, message: &self.message }.encode(out).map(Some)
    }

    /// Writes the first message; a repeated connect brings the same one.
    pub(super) fn begin_handshake(&mut self) -> Result<(), WireError> {
        let SessionConfig { comtree, max_datagram, suites, slow_suites, .. } = self.config;
        let (token, ticket) = (&self.config.token[..], self.ticket.bytes());
        let features = if self.config.shares_ip_port { Join::SHARES } else { 0 };
        let join = Join { comtree, features, max_datagram, suites, slow_suites, token, ticket };
        let mut payload = [0; MAX_JOIN_LEN];
        let len = match self.config.call {
            Some(Call { session, thread, .. }) => {
                LinkJoin { session, thread, max_datagram, suites, slow_suites }
                    .encode(&mut payload)?
            }
            None => join.encode(&mut payload)?,
        };
        let relay_key = self.config.relay_key.unwrap_or(self.relay_key);
        let mut message = vec![0; FIRST_MORE + len];
        let seed = self.random.draw();
        let prologue = Prologue::new(self.nonce, &self.cookie);
        let (own, payload) = (&self.identity, &payload[..len]);
        let begun = Initiator::begin(own, &relay_key, seed, &prologue, payload, &mut message);
        let (initiator, len) = begun.map_err(|_| WireError::Field("relay key"))?;
        message.truncate(len);
        self.initiator = Some(initiator);
        self.message = message;
        Ok(())
    }

    pub(super) fn handle_cookie(&mut self, cookie: Cookie, now: Time) {
        if self.state == State::Greeting && cookie.nonce == self.nonce {
            self.cookie = cookie.cookie;
            self.relay_key = cookie.relay_key;
            self.initiator = None;
            self.enter(State::Connecting, now);
        }
    }

    pub(super) fn handle_connected(
        &mut self,
        connected: &Connected<'_>,
        now: Time,
    ) -> Result<(), WireError> {
        if self.state != State::Connecting || connected.nonce != self.nonce {
            return Ok(());
        }
        let mut payload = [0; MAX_DATAGRAM];
        let read = |initiator: &mut Initiator| initiator.read(connected.message, &mut payload);
        let len = self.initiator.as_mut().and_then(read).ok_or(WireError::Field("message"))?;
        let Some(initiator) = self.initiator.take() else { return Ok(()) };
        let is_offered = |joined: &Joined| self.config.suites & joined.suite.bit() != 0;
        let joined = Joined::decode(&payload[..len]).and_then(|joined| {
            is_offered(&joined).then_some(joined).ok_or(WireError::Field("suite"))
        });
        let joined = joined.inspect_err(|_| {
            // A relay of another release. It may be replaced.
            self.enter(State::Greeting, now + self.max_backoff());
        })?;
        let (secrets, per_key) = (initiator.finish(), self.config.packets_per_key);
        self.keys = Some(Box::new(Keys {
            sealer: Sealer::new(joined.suite, &secrets.from_participant, per_key),
            opener: Opener::new(joined.suite, &secrets.from_relay, per_key),
            sealed: [0; REMEMBERED],
            next: 0,
        }));
        self.id = joined.session;
        self.address = joined.address;
        self.ticket = joined.ticket;
        self.path_stamp = joined.path_stamp;
        self.answered = REBIND_STAMP;
        self.downlink = joined.downlink;
        self.group_keys = match joined.downlink {
            Downlink::Group => GroupKeys::awaited(now),
            Downlink::Member | Downlink::None => GroupKeys::default(),
        };
        let agreed = joined.max_datagram.min(self.config.max_datagram);
        self.max_datagram = usize::from(agreed).clamp(SAFE_DATAGRAM, MAX_DATAGRAM);
        let millis = |ms: u32| Duration::from_millis(ms.max(1).into());
        self.keepalive = millis(joined.keepalive_ms);
        // Two refreshes may be lost before a subscription ends.
        self.refresh = millis(joined.subscription_ms) / 3;
        self.heard = now;
        self.watch = self.config.watches.then(|| Watch::begin(now));
        self.doubt = None;
        self.first_round_trip = now.since(self.asked_at);
        self.enter(State::Connected, now + self.keepalive);
        self.subscriptions.restart();
        self.restart_requests();
        self.reporting.restart();
        self.tell(Event::Connected(self.address));
        Ok(())
    }

    /// The only packet of another version that can be read is its refusal of ours.
    pub(super) fn handle_foreign_version(
        &mut self,
        version: u8,
        datagram: &[u8],
        now: Time,
    ) -> Result<(), WireError> {
        let nonce = Refused::nonce_of_any_version(datagram).ok_or(WireError::Version(version))?;
        self.handle_refused(Refused { nonce, reason: RefusedReason::Version }, now);
        Ok(())
    }

    pub(super) fn handle_refused(&mut self, refused: Refused, now: Time) {
        let waiting = matches!(self.state, State::Greeting | State::Connecting);
        if !waiting || refused.nonce != self.nonce {
            return;
        }
        self.enter(State::Greeting, now + self.max_backoff());
        self.tell(Event::Refused(refused.reason));
    }

    pub(super) fn draw(&mut self) -> u64 {
        let drawn = self.random.draw();
        let nonce = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| drawn[at]);
        u64::from_be_bytes(nonce)
    }
}
