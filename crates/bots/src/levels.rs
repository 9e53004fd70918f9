//! The oracle for subscriptions with levels.
//!
//! [`Oracle`] knows groups alone. A subscription at level L is one to an audience for each level
//! up to L, and an update goes to the audience of its level; so whoever gets what is too detailed
//! for them, or does not get what they asked for, is found out.

use crate::oracle::{Oracle, Verdict};
use canopy_session::Event;
use canopy_wire::{Group, Level, Time};
use std::collections::HashMap;
use std::time::Duration;

/// What comes to whoever is near: every update.
pub(crate) const DETAILED: Level = Level(1);
/// What comes to everybody who is interested.
pub(crate) const COARSE: Level = Level(0);

/// Groups of cells have 30 bits: above them there is room for what tells audiences apart.
const DETAILED_BIT: u32 = 1 << 30;

/// Judges deliveries by group and level.
pub(crate) struct LevelOracle {
    oracle: Oracle,
    asked: HashMap<(u32, Group), Asked>,
}

/// What a participant asked of a group.
struct Asked {
    /// The level that it wants now.
    wanted: Option<Level>,
    /// The highest level that the relay may still have it at.
    highest: Level,
}

fn audience(group: Group, level: Level) -> Group {
    if level == COARSE { group } else { Group::new(group.number() | DETAILED_BIT) }
}

/// The audiences from a level, the first, to another, the last.
fn audiences(group: Group, levels: impl Iterator<Item = u8>) -> impl Iterator<Item = Group> {
    levels.map(move |level| audience(group, Level(level)))
}

/// The levels above `level`, up to `highest`.
fn above(level: Option<Level>, highest: Level) -> std::ops::RangeInclusive<u8> {
    level.map_or(0, |level| level.0 + 1)..=highest.0
}

impl LevelOracle {
    pub(crate) fn new(settle: Duration) -> LevelOracle {
        LevelOracle { oracle: Oracle::new(settle), asked: HashMap::new() }
    }

    /// A participant asked for a group up to a level, or for nothing of it any more.
    pub(crate) fn request(
        &mut self,
        now: Time,
        participant: u32,
        group: Group,
        level: Option<Level>,
    ) {
        let asked = self.asked.entry((participant, group));
        let asked = asked.or_insert(Asked { wanted: None, highest: COARSE });
        let had = std::mem::replace(&mut asked.wanted, level);
        if let Some(level) = level {
            asked.highest = asked.highest.max(level);
            for audience in audiences(group, above(had, level)) {
                self.oracle.subscribing(participant, audience);
            }
        }
        if let Some(had) = had {
            for audience in audiences(group, above(level, had)) {
                self.oracle.unsubscribing(now, participant, audience);
            }
        }
    }

    /// A participant's session told something.
    pub(crate) fn event(&mut self, now: Time, participant: u32, event: Event) {
        let (group, level) = match event {
            Event::Subscribed(group, level) => (group, Some(level)),
            Event::Unsubscribed(group) => (group, None),
            _ => return,
        };
        let Some(asked) = self.asked.get_mut(&(participant, group)) else { return };
        if let Some(level) = level {
            for audience in audiences(group, 0..=level.0) {
                self.oracle.subscribed(participant, audience);
            }
        }
        for audience in audiences(group, above(level, asked.highest)) {
            self.oracle.unsubscribed(now, participant, audience);
        }
        match asked.wanted.max(level) {
            Some(highest) => asked.highest = highest,
            None => drop(self.asked.remove(&(participant, group))),
        }
    }

    /// A participant's session was lost.
    pub(crate) fn lost(
        &mut self,
        now: Time,
        participant: u32,
        groups: impl Iterator<Item = Group>,
    ) {
        for group in groups {
            let asked = self.asked.get(&(participant, group));
            let Some(wanted) = asked.and_then(|asked| asked.wanted) else { continue };
            self.oracle.lost(now, participant, audiences(group, 0..=wanted.0));
        }
    }

    /// A participant leaves.
    pub(crate) fn left(
        &mut self,
        now: Time,
        participant: u32,
        groups: impl Iterator<Item = Group>,
    ) {
        for group in groups {
            let Some(asked) = self.asked.remove(&(participant, group)) else { continue };
            self.oracle.left(now, participant, audiences(group, 0..=asked.highest.0));
        }
    }

    /// A participant publishes an update; returns its number.
    pub(crate) fn publish(&mut self, now: Time, publisher: u32, group: Group, level: Level) -> u32 {
        self.oracle.publish(now, publisher, audience(group, level))
    }

    /// The last update could not be sent.
    pub(crate) fn unpublish(&mut self) {
        self.oracle.unpublish();
    }

    /// An update arrived, addressed to `group` at `level`.
    pub(crate) fn deliver(&mut self, receiver: u32, group: Group, level: Level, number: u32) {
        if level > DETAILED {
            return self.oracle.deliver_foreign();
        }
        self.oracle.deliver(receiver, audience(group, level), number);
    }

    /// Something arrived that is no update of this crowd.
    pub(crate) fn deliver_foreign(&mut self) {
        self.oracle.deliver_foreign();
    }

    pub(crate) fn verdict(&self) -> &Verdict {
        self.oracle.verdict()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.oracle.is_settled()
    }

    pub(crate) fn judge(&mut self, now: Time) {
        self.oracle.judge(now);
    }

    pub(crate) fn judge_all(&mut self) {
        self.oracle.judge_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Group = Group::new(5);

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    /// Participant 1 near and 2 far, as the relay has acknowledged.
    fn near_and_far() -> LevelOracle {
        let mut oracle = LevelOracle::new(Duration::from_millis(100));
        for (participant, level) in [(1, DETAILED), (2, COARSE)] {
            oracle.request(at(1), participant, GROUP, Some(level));
            oracle.event(at(2), participant, Event::Subscribed(GROUP, level));
        }
        oracle
    }

    /// Missing and unexpected after all is judged.
    fn faults(mut oracle: LevelOracle) -> (u64, u64) {
        oracle.judge_all();
        (oracle.verdict().missing, oracle.verdict().unexpected)
    }

    #[test]
    fn details_are_for_those_who_are_near() {
        for (receivers, expected) in [(&[1][..], (0, 0)), (&[], (1, 0)), (&[1, 2], (0, 1))] {
            let mut oracle = near_and_far();
            let number = oracle.publish(at(100), 0, GROUP, DETAILED);
            receivers.iter().for_each(|to| oracle.deliver(*to, GROUP, DETAILED, number));
            assert_eq!(faults(oracle), expected, "{receivers:?}");
        }
    }

    #[test]
    fn what_is_coarse_is_for_all() {
        for (receivers, level, expected) in
            [(&[1, 2][..], COARSE, (0, 0)), (&[1], COARSE, (1, 0)), (&[1, 2], DETAILED, (2, 2))]
        {
            let mut oracle = near_and_far();
            let number = oracle.publish(at(100), 0, GROUP, COARSE);
            receivers.iter().for_each(|to| oracle.deliver(*to, GROUP, level, number));
            assert_eq!(faults(oracle), expected, "{receivers:?}");
        }
    }

    #[test]
    fn whoever_goes_away_gets_details_until_the_relay_has_heard_of_it() {
        let mut oracle = near_and_far();
        oracle.request(at(50), 1, GROUP, Some(COARSE));
        let during = oracle.publish(at(60), 0, GROUP, DETAILED);
        oracle.deliver(1, GROUP, DETAILED, during);
        oracle.event(at(70), 1, Event::Subscribed(GROUP, COARSE));
        let after = oracle.publish(at(80), 0, GROUP, DETAILED);
        oracle.deliver(1, GROUP, DETAILED, after);
        assert_eq!(faults(oracle), (0, 1), "only the last is too detailed");
    }

    #[test]
    fn whoever_comes_back_at_once_is_owed_details_only_after_the_answer() {
        let mut oracle = near_and_far();
        oracle.request(at(50), 1, GROUP, Some(COARSE));
        oracle.request(at(55), 1, GROUP, Some(DETAILED));
        let during = oracle.publish(at(300), 0, GROUP, DETAILED);
        oracle.event(at(310), 1, Event::Subscribed(GROUP, COARSE));
        oracle.event(at(320), 1, Event::Subscribed(GROUP, DETAILED));
        let after = oracle.publish(at(330), 0, GROUP, DETAILED);
        let _ = (during, after);
        assert_eq!(faults(oracle), (1, 0), "the one after the answer is missing");
    }
}
