//! A participant goes from one relay to another, and has a session with both for a while: what is to be done when, and
//! one stream of updates made of what both bring.
//!
//! ```text
//!            Watching ──▶ Asking ──▶ Overlapping ──▶ Lingering ──▶ Leaving ──▶ Afterwards
//!  leads:    old          old        old             next          next        next
//!  hears:    old          both       both            both          next        next
//! ```
//!
//! Until it lingers the participant can stay where it is, and does if the next relay fails. When it begins to linger,
//! what it publishes waits for a moment: what it has published over the old relay is to arrive first, wherever that is
//! the longer way.
//!
//! Whoever hands over holds both sessions and their sockets; [`Handover`] is told of them. The *other* session is the
//! next one until the participant turns, and the old one from then on.

mod merge;

pub use merge::{LeftOut, Numbered};

use crate::{Event, Session, State};
use canopy_wire::{Address, Group, Level, Time, Weight};
use merge::{AHEAD, Brought, Merge, is_after};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Once the next relay has taken all subscriptions, the relays above it have them within this: they are
/// passed on at once, and repeated if they are lost on the way.
const OVERLAP: Duration = Duration::from_secs(2);
/// The old relay is heard for so long after the participant has turned: what is on its way arrives, and
/// subscriptions that were made shortly before have reached the relays above the next one.
const LINGER: Duration = OVERLAP;
/// What the old relay has brought may come from the next one for so long.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// The next relay takes the participant within this, or is not gone to. A session is asked for again after 100
/// ms, then 200 and so on.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// It answers for all subscriptions within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the participant publishes waits for so long once it has turned, and for as long as the old relay is behind the
/// next one as far as it can tell, [`AHEAD`] at most: what it has published over the old relay has arrived everywhere by
/// then. Relays that change their parents go by the same times.
const HOLD: Duration = Duration::from_millis(100);
/// How many of the participant's own updates are remembered that are still on their way round, over the old relay to the
/// next.
const MOST_ON_THEIR_WAY: usize = 1_024;

/// How far a handover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is noted what the old relay brings. The next one is asked for a session, and not for
    /// updates yet.
    Watching { until: Time, connected_by: Time },
    /// The next relay is asked for all subscriptions.
    Asking { until: Time },
    /// Both relays bring everything, from now on or soon.
    Overlapping { until: Time },
    /// The next relay leads.
    Lingering { until: Time },
    /// The old relay is told.
    Leaving,
    /// Only the next relay is left, which may bring what was taken already.
    Afterwards { until: Time },
}

/// What is to be done for a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Wait,
    /// The next relay is to be asked for what the old one was: [`Handover::ask`].
    Ask,
    /// The sessions change places, and then [`Handover::turn`].
    Turn,
    /// The next relay has failed: its session is to be ended, and the handover forgotten.
    Stay,
    /// The old session is over, or nearly: [`Handover::leave`].
    Left,
    /// It is over, and to be forgotten.
    End,
}

/// A handover of a participant, with updates `U`. It has no clock, session or socket.
#[derive(Debug)]
pub struct Handover<U> {
    phase: Phase,
    /// Who the participant was, and who it is at the next relay once that leads.
    was: Option<Address>,
    is: Option<Address>,
    /// The next relay has refused a subscription.
    is_refused: bool,
    /// What it was asked for at first, and has not answered for. For what is wanted later both relays are asked, and the
    /// old one is heard long enough.
    unanswered: BTreeSet<Group>,
    merge: Merge<U>,
    /// What the participant has published over the old relay, by number, and when, as long as the next one has not brought
    /// it.
    on_their_way: VecDeque<(u16, Time)>,
    /// How long that took at most which came round. No way over the world's tree is by more longer over the old relay
    /// than over the next.
    round: Duration,
}

impl<U: Numbered> Handover<U> {
    /// One begins. `was`: who the participant is at the old relay.
    pub fn new(now: Time, was: Option<Address>) -> Handover<U> {
        Handover {
            phase: Phase::Watching { until: now + AHEAD, connected_by: now + CONNECT_WITHIN },
            was,
            is: None,
            is_refused: false,
            unanswered: BTreeSet::new(),
            merge: Merge::default(),
            on_their_way: VecDeque::new(),
            round: Duration::ZERO,
        }
    }

    /// Whether the next relay leads.
    pub fn has_turned(&self) -> bool {
        matches!(self.phase, Phase::Lingering { .. } | Phase::Leaving | Phase::Afterwards { .. })
    }

    /// An update to a group was brought by the relay that leads, or by the other one. `take` gets what is to be taken
    /// now, in order. Returns whether it is another's: nobody takes the participant's own, which come back over the
    /// relay that they were not published over.
    pub fn bring(&mut self, now: Time, leads: bool, update: U, take: impl FnMut(U)) -> bool {
        let by = if leads == self.has_turned() { Brought::ByNext } else { Brought::ByOld };
        let own = if by == Brought::ByNext { self.was } else { self.is };
        if own == Some(update.src()) {
            if by == Brought::ByNext {
                self.come_round(now, update.series());
            }
            return false;
        }
        self.merge.bring(now, by, update, take);
        true
    }

    /// The participant has published so many updates over the relay that leads; `next` is the number of the one after
    /// them.
    pub fn note_published(&mut self, now: Time, next: u16, updates: usize) {
        if self.has_turned() {
            return;
        }
        let updates = updates.min(MOST_ON_THEIR_WAY) as u16;
        let numbers = (1..=updates).rev().map(|back| (next.wrapping_sub(back), now));
        self.on_their_way.extend(numbers);
        let too_many = self.on_their_way.len().saturating_sub(MOST_ON_THEIR_WAY);
        self.on_their_way.drain(..too_many);
    }

    /// The next relay has brought what the participant has published over the old one.
    fn come_round(&mut self, now: Time, series: u16) {
        while let Some((number, at)) = self.on_their_way.front().copied()
            && !is_after(number, series)
        {
            self.on_their_way.pop_front();
            if number == series {
                self.round = self.round.max(now.since(at));
            }
        }
    }

    /// For how long the old relay may bring what the participant has published later than the next one would. Whoever it
    /// hears is as far from it as it is from them. Where it hears neither others nor itself by both, the
    /// way from relay to relay is taken to be no longer than the one over the participant.
    fn behind(&self, old: Option<&Session>) -> Duration {
        let old = old.and_then(|old| old.round_trip());
        self.merge.lead().max(self.round).max(old.unwrap_or_default()).min(AHEAD)
    }

    /// What is to be done now. `other`: the other session if there still is one, and whether its relay's host says that
    /// nothing listens. `is_lost`: the relay that leads is, as it seems.
    pub fn step(&mut self, now: Time, other: Option<(&Session, bool)>, is_lost: bool) -> Step {
        let Some((session, nothing_listens)) = other else {
            let is_over = matches!(self.phase, Phase::Afterwards { until } if until <= now);
            return if is_over { Step::End } else { Step::Wait };
        };
        let is_in = session.state() == State::Connected;
        let has_failed = self.is_refused || nothing_listens;
        match self.phase {
            Phase::Watching { .. } | Phase::Asking { .. } | Phase::Overlapping { .. }
                if is_lost =>
            {
                Step::Turn
            }
            Phase::Watching { until, .. } if is_in && until <= now => Step::Ask,
            Phase::Watching { connected_by, .. } if has_failed || connected_by <= now => Step::Stay,
            Phase::Asking { .. } if is_in && self.unanswered.is_empty() && !has_failed => {
                self.phase = Phase::Overlapping { until: now + OVERLAP };
                Step::Wait
            }
            Phase::Asking { until } if has_failed || !is_in || until <= now => Step::Stay,
            Phase::Overlapping { .. } if has_failed || !is_in => Step::Stay,
            Phase::Overlapping { until } if until <= now => Step::Turn,
            // The old relay may go while it is heard out.
            Phase::Lingering { until } if until <= now || !is_in || is_lost => Step::Left,
            Phase::Leaving if session.state() != State::Leaving => Step::Left,
            _ => Step::Wait,
        }
    }

    /// The next relay is asked from now on for what the old one was.
    pub fn ask(&mut self, now: Time, old: &Session, next: &mut Session) {
        self.phase = Phase::Asking { until: now + ANSWER_WITHIN };
        for (group, level, weight) in old.wanted() {
            self.unanswered.insert(group);
            next.subscribe_with(group, level, weight);
        }
    }

    /// The other relay says something of its session.
    pub fn hear(&mut self, event: Event) {
        match event {
            Event::Subscribed(group, _) | Event::Unsubscribed(group) => {
                self.unanswered.remove(&group);
            }
            Event::SubscriptionRefused(..) => self.is_refused = true,
            _ => {}
        }
    }

    /// Something else is wanted: the other relay is asked too, if it is asked for anything yet.
    pub fn wish(&self, other: &mut Session, group: Group, wanted: Option<(Level, Weight)>) {
        match wanted {
            _ if matches!(self.phase, Phase::Watching { .. }) => {}
            Some((level, weight)) => other.subscribe_with(group, level, weight),
            None => other.unsubscribe(group),
        }
    }

    /// The sessions have changed places: the next one leads, and `old` is the other one now. `is`: who the participant is
    /// there. Returns until when what it publishes is to wait; it does not if the next relay has not taken it yet.
    pub fn turn(
        &mut self,
        now: Time,
        is: Option<Address>,
        old: Option<&Session>,
        take: impl FnMut(U),
    ) -> Option<Time> {
        self.is = is;
        self.phase = Phase::Lingering { until: now + LINGER };
        self.merge.turn(now, take);
        is.map(|_| now + HOLD + self.behind(old))
    }

    /// The old relay is told that the participant leaves, or has heard it, or is gone itself. Returns whether its session
    /// is still needed.
    pub fn leave(&mut self, now: Time, old: Option<&mut Session>) -> bool {
        match old.filter(|old| old.state() == State::Connected) {
            Some(old) => {
                old.leave();
                self.phase = Phase::Leaving;
                true
            }
            None => {
                self.phase = Phase::Afterwards { until: now + AFTERWARDS };
                false
            }
        }
    }

    /// The other session is ended before its time: what the next relay has brought, the old one brings too.
    pub fn abandon(&mut self) {
        if !self.has_turned() {
            self.merge.abandon();
        }
    }

    /// Time has passed: what has waited long enough is taken.
    pub fn handle_timeout(&mut self, now: Time, take: impl FnMut(U)) {
        self.merge.handle_timeout(now, take);
    }

    /// What it has left out so far.
    pub fn left_out(&self) -> LeftOut {
        self.merge.left_out()
    }

    /// When [`Handover::step`] or [`Handover::handle_timeout`] may have something to do, or the other session.
    pub fn due(&self, other: Option<&Session>) -> Option<Time> {
        let phase = match self.phase {
            Phase::Watching { until, connected_by } => {
                let is_in = other.is_some_and(|other| other.state() == State::Connected);
                Some(if is_in { until } else { connected_by })
            }
            Phase::Asking { until }
            | Phase::Overlapping { until }
            | Phase::Lingering { until }
            | Phase::Afterwards { until } => Some(until),
            // Its last word may be said by now.
            Phase::Leaving => {
                let is_over = other.is_none_or(|other| other.state() != State::Leaving);
                is_over.then_some(Time::ZERO)
            }
        };
        let session = other.and_then(Session::poll_timeout);
        [phase, session, self.merge.due()].into_iter().flatten().min()
    }
}
