//! What a member has beside its session while it goes to another relay: the other session with its
//! socket, and what merges the two.
//!
//! ```text
//!            Watching ──▶ Asking ──▶ Overlapping ──▶ Lingering ──▶ Leaving ──▶ Afterwards
//!  leads:    old          old        old             next          next        next
//!  hears:    old          both       both            both          next        next
//! ```
//!
//! Until it lingers the member can stay where it is, and does if the next relay fails. When it begins to linger, what it
//! publishes waits for a moment: what it has published over the old relay is to arrive first, wherever that is the longer
//! way.

use crate::answer::Answers;
use crate::held::Held;
use crate::merge::{AHEAD, Brought, LeftOut, Merge, is_after};
use crate::relay_socket::RelaySocket;
use crate::reports::Reports;
use crate::{Participant, Update};
use canopy_session::{Session, State};
use canopy_wire::{Group, Level, MAX_DATAGRAM, Time, Weight};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// Once the next relay has taken all subscriptions, the relays above it have them within this: they are
/// passed on at once, and repeated if they are lost on the way.
const OVERLAP: Duration = Duration::from_secs(2);
/// The old relay is heard for so long after the client has turned: what is on its way arrives, and
/// subscriptions that were made shortly before have reached the relays above the next one.
const LINGER: Duration = OVERLAP;
/// What the old relay has brought may come from the next one for so long.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// The next relay takes the client within this, or is not gone to. A session is asked for again after 100
/// ms, then 200 and so on.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// It answers for all subscriptions within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the client publishes waits for so long once it has turned, and for as long as the old relay is behind the next
/// one as far as it can tell, [`AHEAD`] at most: what it has published over the old relay has arrived everywhere by then.
/// Relays that change their parents go by the same times.
const HOLD: Duration = Duration::from_millis(100);
/// How many of the client's own updates are remembered that are still on their way round, over the old relay to the next.
const MOST_ON_THEIR_WAY: usize = 1_024;

/// What became of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The client is at the other relay, and the old place can be given back.
    Moved,
    /// It stays where it is, and the new place can be given back.
    Stayed,
}

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// The next relay is to be asked for what the old one was.
    Ask,
    /// The sessions change places.
    Turn,
    /// The next relay has failed.
    Stay,
    /// The old session is over.
    Left,
    /// It is over.
    End,
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
    pub(crate) phase: Phase,
    pub(crate) other: Option<Other>,
    /// Who the client was, and who it is at the next relay once that leads.
    was: Option<Participant>,
    is: Option<Participant>,
    /// The next relay has refused a subscription.
    is_refused: bool,
    /// What it was asked for at first, and has not answered for. For what the application wants later both
    /// relays are asked, and the old one is heard long enough.
    unanswered: BTreeSet<Group>,
    pub(crate) merge: Merge,
    /// What the client has published over the old relay, by number, and when, as long as the next one has not brought it.
    on_their_way: VecDeque<(u16, Time)>,
    /// How long that took at most which came round. No way over the world's tree is by more longer over the old relay
    /// than over the next.
    round: Duration,
    /// What waits to be published over the next relay, just after it has taken the lead.
    pub(crate) held: Option<Held>,
}

impl Handover {
    /// One begins, to this relay.
    pub(crate) fn new(now: Time, other: Other, was: Option<Participant>) -> Handover {
        let phase = Phase::Watching { until: now + AHEAD, connected_by: now + CONNECT_WITHIN };
        let merge = Merge::default();
        Handover {
            phase,
            other: Some(other),
            was,
            is: None,
            is_refused: false,
            unanswered: BTreeSet::new(),
            merge,
            on_their_way: VecDeque::new(),
            round: Duration::ZERO,
            held: None,
        }
    }

    /// Whether the next relay leads.
    pub(crate) fn has_turned(&self) -> bool {
        matches!(self.phase, Phase::Lingering { .. } | Phase::Leaving | Phase::Afterwards { .. })
    }

    /// An update was brought by the relay that leads, or by the other one.
    pub(crate) fn bring(&mut self, now: Time, leads: bool, update: Update, to: &mut Reports) {
        if update.group.is_none() {
            return to.take(update);
        }
        let by = if leads == self.has_turned() { Brought::ByNext } else { Brought::ByOld };
        // What the client has published over one relay comes back over that one only.
        let own = if by == Brought::ByNext { self.was } else { self.is };
        if own == Some(update.from) {
            to.stats.echoes += 1;
            if by == Brought::ByNext {
                self.come_round(now, update.series);
            }
            return;
        }
        self.merge.bring(now, by, update, |update| to.take(update));
    }

    /// The client has published so many updates over the relay that leads; `next` is the number of the one after them.
    pub(crate) fn note_published(&mut self, now: Time, next: u16, updates: usize) {
        if self.has_turned() {
            return;
        }
        let updates = updates.min(MOST_ON_THEIR_WAY) as u16;
        let numbers = (1..=updates).rev().map(|back| (next.wrapping_sub(back), now));
        self.on_their_way.extend(numbers);
        let too_many = self.on_their_way.len().saturating_sub(MOST_ON_THEIR_WAY);
        self.on_their_way.drain(..too_many);
    }

    /// The next relay has brought what the client has published over the old one.
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

    /// For how long the old relay may bring what the client has published later than the next one would. Whoever the
    /// client hears is as far from it as it is from them. Where it hears neither others nor itself by both, the
    /// way from relay to relay is taken to be no longer than the one over the client.
    fn behind(&self) -> Duration {
        let old = self.other.as_ref().and_then(|old| old.session.round_trip());
        self.merge.lead().max(self.round).max(old.unwrap_or_default()).min(AHEAD)
    }

    /// What is to be done now. `is_lost`: the relay that leads is, as it seems.
    pub(crate) fn step(&mut self, now: Time, is_lost: bool) -> Step {
        let session = self.other.as_ref().map(|other| (&other.session, &other.socket));
        let Some((session, socket)) = session else {
            let is_over = matches!(self.phase, Phase::Afterwards { until } if until <= now);
            return if is_over { Step::End } else { Step::Wait };
        };
        let is_in = session.state() == State::Connected;
        let has_failed = self.is_refused || socket.nothing_listens();
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

    /// The next relay is asked from now on.
    pub(crate) fn ask(&mut self, now: Time, like: &Session) {
        self.phase = Phase::Asking { until: now + ANSWER_WITHIN };
        let Some(other) = &mut self.other else { return };
        for (group, level, weight) in like.wanted() {
            self.unanswered.insert(group);
            other.session.subscribe_with(group, level, weight);
        }
    }

    /// The other relay says something of its session.
    pub(crate) fn hear(&mut self, event: canopy_session::Event, to: &mut Reports) {
        use canopy_session::Event as Happened;
        match event {
            Happened::Subscribed(group, _) | Happened::Unsubscribed(group) => {
                self.unanswered.remove(&group);
            }
            Happened::SubscriptionRefused(..) => self.is_refused = true,
            _ => {}
        }
        to.hear_beside(event);
    }

    /// The application wants something else: both relays are asked, if the next one is at all.
    pub(crate) fn wish(&mut self, group: Group, wanted: Option<(Level, Weight)>) {
        let is_asked = !matches!(self.phase, Phase::Watching { .. });
        let Some(other) = self.other.as_mut().filter(|_| is_asked) else { return };
        match wanted {
            Some((level, weight)) => other.session.subscribe_with(group, level, weight),
            None => other.session.unsubscribe(group),
        }
    }

    /// The sessions have changed places: what was the other one is the old one now.
    pub(crate) fn turn(&mut self, now: Time, is: Option<Participant>, to: &mut Reports) {
        self.is = is;
        self.phase = Phase::Lingering { until: now + LINGER };
        self.held = is.map(|_| Held::until(now + HOLD + self.behind()));
        self.merge.turn(now, |update| to.take(update));
    }

    /// The old relay is told that the client leaves, or is gone itself.
    pub(crate) fn leave(&mut self, now: Time) {
        match &mut self.other {
            Some(other) if other.session.state() == State::Connected => {
                other.session.leave();
                self.phase = Phase::Leaving;
            }
            _ => {
                self.other = None;
                self.phase = Phase::Afterwards { until: now + AFTERWARDS };
            }
        }
    }

    /// Ends the other session at once; if its relay does not hear of it, it expires there.
    pub(crate) fn drop_other(&mut self, now: Time) {
        if let Some(mut other) = self.other.take() {
            other.session.leave();
            other.transmit(now);
        }
        if !self.has_turned() {
            self.merge.abandon();
        }
    }

    /// What merging has left out.
    pub(crate) fn left_out(&self) -> LeftOut {
        self.merge.left_out()
    }

    /// When it wants to be looked at again.
    pub(crate) fn due(&self) -> Option<Time> {
        let phase = match self.phase {
            Phase::Watching { until, connected_by } => {
                let is_in = |other: &Other| other.session.state() == State::Connected;
                Some(if self.other.as_ref().is_some_and(is_in) { until } else { connected_by })
            }
            Phase::Asking { until }
            | Phase::Overlapping { until }
            | Phase::Lingering { until }
            | Phase::Afterwards { until } => Some(until),
            Phase::Leaving => None,
        };
        let session = self.other.as_ref().and_then(|other| other.session.poll_timeout());
        let held = self.held.as_ref().map(|held| held.until);
        [phase, session, self.merge.due(), held].into_iter().flatten().min()
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
