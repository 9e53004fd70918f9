//! A member goes to another relay: it makes the new session before it ends the old one, if it still has that.

use super::{Member, PASS_AFTER_SILENCE};
use crate::handover::{Handover, Other, Outcome};
use crate::relay_socket::RelaySocket;
use crate::relays::Relays;
use crate::{Event, Outgoing, Participant, PublishError};
use canopy_net::{Receiver, Socket};
use canopy_session::handover::Step;
use canopy_session::{PublicKey, State};
use canopy_wire::Time;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// What the system has no room for is sent again after this.
const SEND_AGAIN: Duration = Duration::from_millis(5);

impl Member {
    /// Whether the application has left the world.
    pub(crate) fn has_departed(&self) -> bool {
        self.has_departed
    }

    /// Whether its relay seems to be lost, so that another is to be looked for.
    pub(crate) fn lacks_a_relay(&self, now: Time) -> bool {
        if self.is_left() {
            return false;
        }
        let is_in = self.session.state() == State::Connected;
        let is_overdue = self.relay_socket.age(now) > PASS_AFTER_SILENCE;
        self.relay_socket.nothing_listens() || self.is_silent() || (!is_in && is_overdue)
    }

    /// Whether there is a session whose relay answers nothing.
    pub(crate) fn is_silent(&self) -> bool {
        self.session.is_silent()
    }

    /// Goes on with another relay, by another token; the subscriptions come along.
    pub(crate) fn turn_to(
        &mut self,
        now: Time,
        relay: SocketAddr,
        key: PublicKey,
        token: &str,
    ) -> io::Result<()> {
        if self.is_left() {
            return Ok(());
        }
        self.relay_socket.reopen(now, relay)?;
        self.end_handover(now);
        if let Some(relays) = Relays::new([relay]) {
            self.relays = relays;
        }
        self.session.turn_to(now, Some(key), token.as_bytes().to_vec());
        self.reports.hear(&mut self.session);
        self.reports.inbox.push_event(Event::Moved { relay });
        Ok(())
    }

    /// Begins to go to another relay, which has this key, by another token. [`Member::moved`] says what
    /// became of it.
    ///
    /// # Errors
    /// There is no socket, or no randomness; nothing has changed then.
    pub(crate) fn move_to(
        &mut self,
        now: Time,
        relay: SocketAddr,
        key: PublicKey,
        token: &str,
    ) -> io::Result<()> {
        self.moved = None;
        if self.is_left() {
            self.moved = Some(Outcome::Stayed);
            return Ok(());
        }
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(io::Error::from)?;
        let socket = RelaySocket::open(now, relay, self.receive_offload)?;
        let session = self.session.beside(Some(key), token.as_bytes().to_vec(), seed);
        self.end_handover(now);
        let other = Other { session, socket, relay, answers: Default::default() };
        self.handover = Some(Box::new(Handover::new(now, other, self.participant())));
        Ok(())
    }

    /// What has become of the move; nothing while it is under way.
    pub(crate) fn moved(&mut self) -> Option<Outcome> {
        self.moved.take()
    }

    /// Whether there is something for [`Member::moved`] to say.
    pub(crate) fn has_moved_or_not(&self) -> bool {
        self.moved.is_some()
    }

    /// The socket of the other relay, while there are two.
    pub(crate) fn socket_beside(&self) -> Option<&Arc<Socket>> {
        let other = self.handover.as_ref()?.other.as_ref()?;
        Some(other.socket.socket())
    }

    pub(super) fn look_at_errors_beside(&mut self) {
        if let Some(other) = self.handover.as_mut().and_then(|of| of.other.as_mut()) {
            other.socket.look_at_errors();
        }
    }

    /// Takes what has arrived from the other relay, at most `receiver` once. Returns whether more may wait.
    pub(crate) fn receive_beside(&mut self, now: Time, receiver: &mut Receiver) -> bool {
        let Member { handover, reports, .. } = self;
        let Some(handover) = handover else { return false };
        let Some(mut other) = handover.other.take() else { return false };
        other.socket.look_at_errors();
        let socket = Arc::clone(other.socket.socket());
        let received = receiver.receive(&socket, |_, datagram| {
            other.socket.heard(now);
            let mut shared = None;
            let handled = other.session.handle_datagram(now, datagram, |update| {
                let payload = super::keep(&update, &mut shared);
                if let Some(update) = reports.read(update, payload) {
                    handover.bring(now, false, update, reports);
                }
            });
            reports.stats.malformed += u64::from(handled.is_err());
            while let Some(event) = other.session.poll_event() {
                match event {
                    canopy_session::Event::Answered(number, status) => {
                        other.answers.answered(number, status);
                    }
                    event => handover.hear(event, reports),
                }
            }
        });
        let more = received.unwrap_or_else(|error| {
            other.socket.note(&error);
            false
        });
        handover.other = Some(other);
        more
    }

    /// Takes the steps of a move that are due.
    pub(super) fn turn_handover(&mut self, now: Time) {
        self.let_go_in_time(now);
        let Some(mut handover) = self.handover.take() else { return };
        let is_in = |other: &Other| other.session.state() == State::Connected;
        let is_lost = self.session.state() != State::Connected
            || self.relay_socket.nothing_listens()
            || (self.is_silent() && handover.other.as_ref().is_some_and(is_in));
        loop {
            match handover.step(now, is_lost) {
                Step::Wait => break,
                Step::Ask => handover.ask(now, &self.session),
                Step::Turn => self.change_places(now, &mut handover),
                Step::Stay => {
                    handover.drop_other(now);
                    self.note_left_out(&handover);
                    self.moved = Some(Outcome::Stayed);
                    return;
                }
                Step::Left => {
                    handover.leave(now);
                    if handover.other.is_none() {
                        self.moved = Some(Outcome::Moved);
                    }
                }
                Step::End => return self.note_left_out(&handover),
            }
        }
        handover.handle_timeout(now, &mut self.reports);
        if let Some(other) = &mut handover.other {
            other.transmit(now);
        }
        self.handover = Some(handover);
    }

    /// The next relay leads from now on; the old one is heard for a while.
    fn change_places(&mut self, now: Time, handover: &mut Handover) {
        let Some(other) = &mut handover.other else { return };
        std::mem::swap(&mut self.session, &mut other.session);
        std::mem::swap(&mut self.relay_socket, &mut other.socket);
        std::mem::swap(&mut self.reports.answers, &mut other.answers);
        let relay = std::mem::replace(&mut other.relay, self.relays.current());
        self.reports.stats.echoes += other.session.echoes();
        self.reports.stats.dropped_events += other.session.events_lost();
        if let Some(relays) = Relays::new([relay]) {
            self.relays = relays;
        }
        self.reports.inbox.push_event(Event::Moved { relay });
        let is_in = self.session.state() == State::Connected;
        if is_in {
            self.reports.moved(self.session.address());
        }
        if other.session.state() != State::Connected
            || other.socket.nothing_listens()
            || other.session.is_silent()
        {
            // The old relay was lost before the next one was asked, or had answered.
            for (group, level, weight) in other.session.wanted() {
                self.session.subscribe_with(group, level, weight);
            }
            self.session.renew_subscriptions();
        }
        let is = is_in.then(|| Participant::of(self.session.address())).flatten();
        handover.turn(now, is, &mut self.reports);
    }

    /// Keeps what is published while what went by the old relay is still on its way. False if it is to be sent at once.
    ///
    /// # Errors
    /// What waits had to be sent before its time, as it is too much, and the system has no room for it.
    pub(super) fn hold_back(&mut self, updates: &[Outgoing<'_>]) -> Result<bool, PublishError> {
        let is_in = self.session.state() == State::Connected;
        let held = self.handover.as_mut().and_then(|of| of.held.as_mut());
        let Some(held) = held.filter(|_| is_in) else { return Ok(false) };
        if held.keep(updates) {
            self.reports.stats.published += updates.len() as u64;
            return Ok(true);
        }
        // An update that overtakes another does less harm than one that is lost.
        if self.let_go() { Ok(false) } else { Err(PublishError::Busy) }
    }

    fn let_go_in_time(&mut self, now: Time) {
        let until = self.handover.as_ref().and_then(|of| Some(of.held.as_ref()?.until));
        if until.is_some_and(|until| until <= now)
            && !self.let_go()
            && let Some(held) = self.handover.as_mut().and_then(|of| of.held.as_mut())
        {
            held.until = now + SEND_AGAIN;
        }
    }

    /// Publishes what was held. Returns whether nothing waits any more.
    fn let_go(&mut self) -> bool {
        let Member { session, comtree, relay_socket, handover, .. } = self;
        let Some(handover) = handover else { return true };
        let Some(held) = &mut handover.held else { return true };
        // If the relay is lost, so is what was meant for it.
        let is_in = session.state() == State::Connected;
        if is_in && !held.send(session, *comtree, relay_socket) {
            return false;
        }
        handover.held = None;
        true
    }

    /// Ends what there is beside the session.
    pub(super) fn end_handover(&mut self, now: Time) {
        self.let_go();
        if let Some(mut handover) = self.handover.take() {
            if handover.other.is_some() {
                let outcome = if handover.has_turned() { Outcome::Moved } else { Outcome::Stayed };
                self.moved = Some(outcome);
            }
            handover.drop_other(now);
            self.note_left_out(&handover);
        }
    }

    fn note_left_out(&mut self, handover: &Handover) {
        let left_out = handover.left_out();
        self.reports.stats.doubled += left_out.doubled;
        self.reports.stats.too_late += left_out.too_late;
    }
}
