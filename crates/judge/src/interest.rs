//! What the oracle knows about one participant's subscription to one group.

use canopy_wire::{Level, Time};
use std::mem;
use std::time::Duration;

/// One participant's subscription to one group, from what its application asked for and what its
/// session told it.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    wanted: Option<Level>,
    /// Since when the relay is known to hold what is wanted.
    settled: Option<Time>,
    /// When the relay last acknowledged that.
    confirmed: Time,
    /// Since when an answer is being waited for.
    asked: Option<Time>,
    /// From each time on, the highest level that the relay may hold.
    possible: Vec<(Time, Option<Level>)>,
    /// From when to when the relay was known to hold which level, before something changed.
    held: Vec<(Time, Time, Level)>,
}

impl Interest {
    /// The application asks for a level, or for none.
    pub(crate) fn request(&mut self, now: Time, wanted: Option<Level>) {
        if self.wanted != wanted {
            self.unsettle(now);
            self.wanted = wanted;
            self.asked = Some(now);
            self.allow(now, self.possible_now().max(wanted));
        }
    }

    /// The session says that the relay acknowledged a level, or none.
    pub(crate) fn acknowledged(&mut self, now: Time, level: Option<Level>) {
        if level == self.wanted {
            self.settled.get_or_insert(now);
            self.confirmed = now;
            self.asked = None;
        }
        self.allow(now, level.max(self.wanted));
    }

    /// What the relay holds may have expired since, if it has acknowledged nothing for so long.
    pub(crate) fn lapse(&mut self, now: Time, unrefreshed: Duration) {
        if now.since(self.confirmed) > unrefreshed {
            self.unsettle(self.confirmed + unrefreshed);
        }
    }

    /// The relay refused, and the application wants the group no more.
    pub(crate) fn refused(&mut self, now: Time) {
        self.abandon(now);
        self.allow(now, None);
    }

    /// A new connection: the relay has forgotten, the session asks again for what is wanted.
    pub(crate) fn restart(&mut self, now: Time) {
        self.unsettle(now);
        self.asked = self.wanted.map(|_| now);
        self.allow(now, self.wanted);
    }

    /// The application is gone. What the relay holds stays until a new connection replaces it.
    pub(crate) fn abandon(&mut self, now: Time) {
        self.unsettle(now);
        let (possible, held) = (mem::take(&mut self.possible), mem::take(&mut self.held));
        *self = Interest { possible, held, ..Interest::default() };
    }

    /// The level that the relay has held without doubt from `since` until after `until`, having
    /// acknowledged it at `confirmed` or later. A subscription confirmed earlier may have expired.
    pub(crate) fn certain(&self, since: Time, until: Time, confirmed: Time) -> Option<Level> {
        let is_settled = self.settled.is_some_and(|settled| settled <= since);
        let now = self.wanted.filter(|_| is_settled && self.confirmed >= confirmed);
        let covers = |(from, to, _): &&(Time, Time, Level)| *from <= since && *to > until;
        now.or_else(|| self.held.iter().find(covers).map(|(.., level)| *level))
    }

    /// The level that the relay holds now without doubt.
    pub(crate) fn settled(&self) -> Option<Level> {
        self.wanted.filter(|_| self.settled.is_some())
    }

    /// Forgets what was before `horizon`. Returns whether anything is left to know.
    pub(crate) fn forget(&mut self, horizon: Time) -> bool {
        let old = self.possible.iter().take_while(|(at, _)| *at <= horizon).count();
        self.possible.drain(..old.saturating_sub(1));
        self.held.retain(|(_, to, _)| *to >= horizon);
        let is_past =
            self.possible.last().is_none_or(|(at, level)| *at < horizon && level.is_none());
        self.wanted.is_some() || !self.held.is_empty() || !is_past
    }

    /// Whether the relay holds a subscription and nothing is being changed.
    pub(crate) fn is_lasting(&self) -> bool {
        self.settled.is_some() && self.wanted.is_some()
    }

    /// The highest level that the relay may have held between two times.
    pub(crate) fn possible(&self, from: Time, to: Time) -> Option<Level> {
        let before = self.possible.iter().rev().find(|(at, _)| *at <= from);
        let during = self.possible.iter().filter(|(at, _)| *at > from && *at <= to);
        before.into_iter().chain(during).filter_map(|(_, level)| *level).max()
    }

    /// Whether no answer has come for longer than `patience`, the last trouble having been at
    /// `trouble`.
    pub(crate) fn is_overdue(&self, now: Time, trouble: Time, patience: Duration) -> bool {
        self.asked.is_some_and(|asked| now.since(asked.max(trouble)) > patience)
    }

    /// What the relay holds is in doubt from now on.
    fn unsettle(&mut self, now: Time) {
        if let Some((from, level)) = self.settled.take().zip(self.wanted) {
            self.held.push((from, now, level));
        }
    }

    fn possible_now(&self) -> Option<Level> {
        self.possible.last().and_then(|(_, level)| *level)
    }

    fn allow(&mut self, now: Time, level: Option<Level>) {
        if self.possible_now() != level {
            self.possible.push((now, level));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Option<Level> = Some(Level(1));
    const HIGH: Option<Level> = Some(Level(3));

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn certain_only_after_the_acknowledgement() {
        let mut interest = Interest::default();
        interest.request(at(10), HIGH);
        assert_eq!(interest.certain(at(15), at(100), at(20)), None);
        interest.acknowledged(at(20), HIGH);
        assert_eq!(
            (interest.certain(at(19), at(100), at(20)), interest.certain(at(20), at(100), at(20))),
            (None, HIGH)
        );
        interest.acknowledged(at(30), HIGH);
        assert_eq!(interest.certain(at(25), at(100), at(30)), HIGH, "a refresh changes nothing");
        assert_eq!(interest.certain(at(25), at(100), at(31)), None, "it may have expired");
    }

    #[test]
    fn a_late_refresh_does_not_hide_that_it_may_have_expired() {
        let mut interest = Interest::default();
        interest.request(at(10), HIGH);
        interest.acknowledged(at(20), HIGH);
        interest.lapse(at(40), Duration::from_millis(30));
        interest.acknowledged(at(40), HIGH);
        assert_eq!(interest.certain(at(20), at(100), at(30)), HIGH, "it came in time");
        interest.lapse(at(90), Duration::from_millis(30));
        interest.acknowledged(at(90), HIGH);
        assert_eq!(interest.certain(at(75), at(100), at(80)), None, "it may have expired");
        assert_eq!(interest.certain(at(25), at(60), at(80)), HIGH, "not yet");
        assert_eq!(interest.certain(at(90), at(100), at(80)), HIGH, "it is there again");
    }

    #[test]
    fn a_change_there_and_back_is_uncertain_until_answered() {
        let mut interest = Interest::default();
        interest.request(at(10), HIGH);
        interest.acknowledged(at(20), HIGH);
        interest.request(at(30), LOW);
        interest.request(at(31), HIGH);
        assert_eq!(interest.certain(at(40), at(100), at(20)), None);
        interest.acknowledged(at(50), LOW);
        assert_eq!(interest.certain(at(50), at(100), at(20)), None);
        interest.acknowledged(at(60), HIGH);
        assert_eq!(interest.certain(at(60), at(100), at(20)), HIGH);
    }

    #[test]
    fn possible_is_the_highest_between_request_and_answer() {
        let mut interest = Interest::default();
        interest.request(at(10), LOW);
        interest.acknowledged(at(20), LOW);
        interest.request(at(30), None);
        interest.acknowledged(at(40), None);
        assert_eq!(interest.possible(at(0), at(9)), None);
        assert_eq!(interest.possible(at(0), at(10)), LOW);
        assert_eq!(interest.possible(at(35), at(36)), LOW);
        assert_eq!(interest.possible(at(41), at(50)), None);
    }

    #[test]
    fn what_a_crash_leaves_behind_is_possible_until_the_next_connection() {
        let mut interest = Interest::default();
        interest.request(at(10), LOW);
        interest.acknowledged(at(20), LOW);
        interest.abandon(at(0));
        assert_eq!(interest.certain(at(30), at(100), at(20)), None);
        assert_eq!(interest.possible(at(30), at(30)), LOW);
        interest.restart(at(40));
        assert_eq!(interest.possible(at(41), at(41)), None);
    }

    #[test]
    fn what_was_certain_for_a_while_stays_known_until_it_is_forgotten() {
        let mut interest = Interest::default();
        interest.request(at(10), HIGH);
        interest.acknowledged(at(20), HIGH);
        interest.request(at(50), None);
        interest.acknowledged(at(60), None);
        let certain =
            |interest: &Interest, since, until| interest.certain(at(since), at(until), at(0));
        assert_eq!(certain(&interest, 20, 49), HIGH);
        assert_eq!(certain(&interest, 20, 50), None, "it had asked to end it");
        assert_eq!(certain(&interest, 19, 30), None, "it was not acknowledged");
        assert!(interest.forget(at(50)));
        assert!(!interest.forget(at(61)), "nothing is left to know");
        assert_eq!(certain(&interest, 20, 49), None);
    }
}
