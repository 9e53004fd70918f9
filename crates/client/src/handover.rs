//! What a member has beside its session while it goes to another relay: the other session with its
//! socket, and what it publishes just after it has turned.

use crate::answer::Answers;
use crate::held::Held;
use crate::relay_socket::RelaySocket;
use crate::reports::Reports;
use crate::{Participant, Update};
use canopy_session::handover::{self, LeftOut, Numbered, Step};
use canopy_session::{Event, Session};
use canopy_wire::{Address, Group, Level, MAX_DATAGRAM, Time, Weight};
use std::net::SocketAddr;

/// What became of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The client is at the other relay, and the old place can be given back.
    Moved,
    /// It stays where it is, and the new place can be given back.
    Stayed,
}

/// The other relay's side: the next one's before the client turns, the old one's after.
pub(crate) struct Other {
    pub(crate) session: Session,
    pub(crate) socket: RelaySocket,
    pub(crate) relay: SocketAddr,
    /// Those who wait for its answers, once it is the old one.
    pub(crate) answers: Answers,
}

/// A move to another relay.
pub(crate) struct Handover {
    course: handover::Handover<Update>,
    pub(crate) other: Option<Other>,
    /// What waits to be published over the next relay, just after it has taken the lead.
    pub(crate) held: Option<Held>,
}

impl Numbered for Update {
    fn src(&self) -> Address {
        self.from.address()
    }

    fn series(&self) -> u16 {
        self.series
    }
}

impl Handover {
    /// One begins, to this relay.
    pub(crate) fn new(now: Time, other: Other, was: Option<Participant>) -> Handover {
        let course = handover::Handover::new(now, was.map(Participant::address));
        Handover { course, other: Some(other), held: None }
    }

    /// Whether the next relay leads.
    pub(crate) fn has_turned(&self) -> bool {
        self.course.has_turned()
    }

    /// An update was brought by the relay that leads, or by the other one.
    pub(crate) fn bring(&mut self, now: Time, leads: bool, update: Update, to: &mut Reports) {
        if update.group.is_none() {
            return to.take(update);
        }
        let is_anothers = self.course.bring(now, leads, update, |update| to.take(update));
        to.stats.echoes += u64::from(!is_anothers);
    }

    /// The client has published so many updates over the relay that leads; `next` is the number of the one after them.
    pub(crate) fn note_published(&mut self, now: Time, next: u16, updates: usize) {
        self.course.note_published(now, next, updates);
    }

    /// What is to be done now. `is_lost`: the relay that leads is, as it seems.
    pub(crate) fn step(&mut self, now: Time, is_lost: bool) -> Step {
        let other = self.other.as_ref().map(|of| (&of.session, of.socket.nothing_listens()));
        self.course.step(now, other, is_lost)
    }

    /// The next relay is asked from now on.
    pub(crate) fn ask(&mut self, now: Time, like: &Session) {
        if let Some(other) = &mut self.other {
            self.course.ask(now, like, &mut other.session);
        }
    }

    /// The other relay says something of its session.
    pub(crate) fn hear(&mut self, event: Event, to: &mut Reports) {
        self.course.hear(event);
        to.hear_beside(event);
    }

    /// The application wants something else: both relays are asked, if the next one is at all.
    pub(crate) fn wish(&mut self, group: Group, wanted: Option<(Level, Weight)>) {
        if let Some(other) = &mut self.other {
            self.course.wish(&mut other.session, group, wanted);
        }
    }

    /// The sessions have changed places: what was the other one is the old one now.
    pub(crate) fn turn(&mut self, now: Time, is: Option<Participant>, to: &mut Reports) {
        let old = self.other.as_ref().map(|old| &old.session);
        let is = is.map(Participant::address);
        let until = self.course.turn(now, is, old, |update| to.take(update));
        self.held = until.map(Held::until);
    }

    /// The old relay is told that the client leaves, or is gone itself.
    pub(crate) fn leave(&mut self, now: Time) {
        let old = self.other.as_mut().map(|old| &mut old.session);
        if !self.course.leave(now, old) {
            self.other = None;
        }
    }

    /// Ends the other session at once; if its relay does not hear of it, it expires there.
    pub(crate) fn drop_other(&mut self, now: Time) {
        if let Some(mut other) = self.other.take() {
            other.session.leave();
            other.transmit(now);
        }
        self.course.abandon();
    }

    /// Hands over what has waited long enough.
    pub(crate) fn handle_timeout(&mut self, now: Time, to: &mut Reports) {
        self.course.handle_timeout(now, |update| to.take(update));
    }

    /// What merging has left out.
    pub(crate) fn left_out(&self) -> LeftOut {
        self.course.left_out()
    }

    /// When it wants to be looked at again.
    pub(crate) fn due(&self) -> Option<Time> {
        let course = self.course.due(self.other.as_ref().map(|other| &other.session));
        let held = self.held.as_ref().map(|held| held.until);
        [course, held].into_iter().flatten().min()
    }
}

impl Other {
    /// Sends what the session wants sent.
    pub(crate) fn transmit(&mut self, now: Time) {
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            // A packet that the system does not take is repeated by the session.
            let _ = self.socket.send(&out[..len]);
        }
    }
}
