//! What happens in a world whose relay asks for tokens: they are revoked and renewed, thieves come, and
//! whoever has no token any more is there no more.

use crate::world::{Step, World};
use canopy_judge::Received;
use canopy_session::{Session, State};
use canopy_wire::{Address, Comtree, MAX_DATAGRAM, SessionId};
use rand::RngExt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// How long it is until the next token is revoked, milliseconds.
const REVOKED_EVERY: std::ops::Range<u64> = 500..4000;
/// Nobody's token is revoked so shortly before all is well.
const BEFORE_CALM: Duration = Duration::from_secs(2);
/// From where thieves come.
const THIEVES: [u8; 4] = [203, 0, 114, 9];
/// The share of attacks with which a thief comes.
const THEFTS: f64 = 0.05;

impl World<'_> {
    /// Somebody's token is revoked, and the relay told.
    pub(crate) fn revoke(&mut self) {
        if self.now + BEFORE_CALM >= self.scenario.calm_from {
            return;
        }
        let Some(tokens) = &mut self.tokens else { return };
        let revoked = tokens.revoke(self.now);
        let trust = tokens.trust();
        let wait = self.rng.random_range(REVOKED_EVERY);
        self.after(Duration::from_millis(wait), Step::Revoke);
        if let Some(number) = revoked {
            self.tallies.revoked += 1;
            self.host.trust(self.now, trust, self.config.sabotage);
            self.is_out(number);
            for thread in 0..usize::from(self.scenario.threads) {
                let turn = self.host.wake(self.now, thread);
                self.ask_for(turn);
            }
        }
    }

    /// A participant renews its token before it ends, if that is still the one that it joined with.
    pub(crate) fn renew(&mut self, number: usize, joined: u32) {
        let participant = &mut self.participants[number];
        let Some(tokens) = &mut self.tokens else { return };
        if participant.joined != joined {
            return;
        }
        let Some(session) = &mut participant.session else { return };
        if let Some(token) = tokens.renewal(self.now, number)
            && session.set_token(token).is_ok()
        {
            self.tallies.renewed += 1;
            self.pump(number);
        }
    }

    /// The relay says that a member has left. Where its token has ended, nothing else was to happen.
    pub(crate) fn left(&mut self, (comtree, address): (Comtree, Address)) {
        let is_it = |number: &usize| {
            let one = &self.participants[*number];
            one.comtree == comtree && one.is_connected() && self.address(*number) == address
        };
        let found = (0..self.participants.len()).find(is_it);
        let has_ended = |number: &usize| {
            self.tokens.as_ref().is_some_and(|tokens| tokens.may_have_ended(self.now, *number))
        };
        if let Some(number) = found.filter(has_ended) {
            self.is_out(number);
        }
    }

    /// A participant is in the world no more, and will hear of it.
    fn is_out(&mut self, number: usize) {
        self.oracle.disconnect(self.now, number);
        self.oracle.lost(self.now, number, &[]);
    }

    /// Nobody is sent updates long after its token has ended.
    pub(crate) fn check_tokens(&mut self, to: SocketAddr, updates: &[u64]) {
        let Some(tokens) = self.tokens.as_ref().filter(|_| !updates.is_empty()) else { return };
        let Some(number) = self.bindings.get(&to).copied() else { return };
        // Until it has a session, the relay may go on with the one of its application before.
        let id = self.participants[number].session.as_ref().map(Session::id);
        if id.is_none_or(|id| id == SessionId::NONE) {
            return;
        }
        let is_anothers = self.oracle.is_for_predecessor(number, self.now);
        if tokens.must_have_ended(self.now, number) && !is_anothers {
            let what = format!("participant {number} was sent updates after its token had ended");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// The updates in a datagram from a participant that may reach somebody.
    pub(crate) fn granted_in(&self, datagram: &[u8]) -> Vec<u64> {
        let mut updates = self.updates_in(datagram, false);
        updates.retain(|id| self.tokens.as_ref().is_none_or(|tokens| tokens.is_granted(*id)));
        updates
    }

    /// A participant hears only what its tokens grant.
    pub(crate) fn check_heard(&mut self, number: usize, received: &[Received]) {
        let Some(tokens) = &self.tokens else { return };
        let is_too_much = |one: &&Received| {
            one.dst.group().is_some_and(|group| !tokens.may_hear(number, group, one.level))
        };
        if let Some(Received { dst, level, .. }) = received.iter().find(is_too_much) {
            let what = format!("participant {number} may not hear of {dst} at {level:?}");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// A participant is connected: by a token that holds.
    pub(crate) fn check_connected(&mut self, number: usize) {
        let tokens = self.tokens.as_ref();
        let way = self.scenario.longest_down();
        if tokens.is_some_and(|tokens| tokens.must_have_ended(self.now - way, number)) {
            let what = format!("participant {number} was let in by a token that had ended");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// A participant's token is taken no more: its application gives up, and comes back another time.
    pub(crate) fn is_turned_away(&mut self, number: usize) {
        let Some(tokens) = &self.tokens else { return };
        if !tokens.may_have_ended(self.now, number) {
            let what = format!("participant {number} was turned away although its token holds");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
        self.tallies.turned_away += 1;
        self.go(number);
    }

    /// Now and then somebody comes with a token that is not its own.
    pub(crate) fn steal(&mut self) {
        if self.tokens.is_none() || !self.rng.random_bool(THEFTS) {
            return;
        }
        let port = self.rng.random_range(1..u16::MAX);
        let config = self.tokens.as_mut().and_then(|tokens| tokens.thief());
        self.thief = config.map(|config| (SocketAddr::from((THIEVES, port)), Session::new(config)));
        self.pump_thief();
    }

    fn pump_thief(&mut self) {
        let mut out = [0; MAX_DATAGRAM];
        let said = self.thief.as_mut().and_then(|(from, session)| {
            let len = session.poll_transmit(self.now, &mut out)?;
            Some((*from, Rc::from(&out[..len])))
        });
        if let Some((from, bytes)) = said {
            self.arrives_aside(from, bytes);
        }
    }

    /// What the relay sends to where nobody is, a thief may hear.
    pub(crate) fn tell_thief(&mut self, to: SocketAddr, bytes: &[u8]) {
        let Some((_, session)) = self.thief.as_mut().filter(|(from, _)| *from == to) else {
            return;
        };
        let _ = session.handle_datagram(self.now, &mut bytes.to_vec(), |_| ());
        if session.state() == State::Connected {
            self.oracle.broken(format!("{}: a thief was let in by another's token", self.now));
        }
        self.pump_thief();
    }
}
