//! The oracle: what must be delivered, from the trace and from acknowledged subscriptions alone.
//!
//! Sans-IO: it is told what the participants did and heard, with times of one clock, and never
//! asks the relay. An update must reach whoever's subscription to its group was acknowledged
//! before it was published, unless the receiver asked to unsubscribe within the settle window
//! after. It may reach whoever is between asking and acknowledgement. It must reach no one else,
//! and no one twice.

use canopy_wire::{Group, Time};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// So long after all that may excuse it, an update's deliveries are judged; whatever comes later is
/// missing all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sums of all judgements so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Updates published.
    #[serde(rename = "updates_published")]
    pub published: u64,
    /// Deliveries that had to come about, of the updates judged: those that did, and the missing.
    #[serde(rename = "deliveries_expected")]
    pub expected: u64,
    /// Deliveries that came about, with those that were allowed but not required.
    #[serde(rename = "deliveries")]
    pub delivered: u64,
    /// Deliveries that had to and did not.
    pub missing: u64,
    /// Deliveries made before.
    pub duplicates: u64,
    /// Deliveries to someone not subscribed, or of an update that nobody published.
    pub unexpected: u64,
    /// Deliveries not made because the receiver was unsubscribing.
    pub excused: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Subscribed when it was published; not come yet.
    Awaited,
    /// It came, and had to.
    Came,
    /// It came, and did not have to.
    CameUnasked,
}

struct Update {
    publisher: u32,
    group: Group,
    published: Time,
    /// Receivers in order, with what is due.
    receivers: Vec<(u32, Due)>,
}

/// A participant's standing with a group.
#[derive(Clone, Default)]
struct Interest {
    wanted: bool,
    acknowledged: bool,
    /// When it last asked to unsubscribe, latest last; old ones are forgotten.
    unsubscribed: Vec<Time>,
    /// When the last unsubscription was acknowledged.
    ended: Option<Time>,
}

/// Judges every delivery of a run.
pub struct Oracle {
    settle: Duration,
    /// Updates not judged yet, by number from `first`.
    updates: VecDeque<Update>,
    first: u64,
    interests: HashMap<(u32, Group), Interest>,
    /// By group: who has an acknowledged subscription and has not asked to end it; in order.
    subscribed: HashMap<Group, Vec<u32>>,
    verdict: Verdict,
    /// Lists of receivers to use again.
    spare: Vec<Vec<(u32, Due)>>,
}

impl Oracle {
    /// An oracle that excuses deliveries to whoever unsubscribes within `settle` after the update
    /// was published.
    pub fn new(settle: Duration) -> Oracle {
        Oracle {
            settle,
            updates: VecDeque::new(),
            first: 0,
            interests: HashMap::new(),
            subscribed: HashMap::new(),
            verdict: Verdict::default(),
            spare: Vec::new(),
        }
    }

    fn judged_after(&self) -> Duration {
        self.settle + PATIENCE
    }

    /// The sums so far; `missing` counts only updates old enough to be judged.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// A participant asked to subscribe.
    pub fn subscribing(&mut self, participant: u32, group: Group) {
        let interest = self.interests.entry((participant, group)).or_default();
        interest.wanted = true;
        // From now on it holds the group again, until an end that comes after this.
        interest.ended = None;
    }

    /// The relay acknowledged a subscription.
    pub fn subscribed(&mut self, participant: u32, group: Group) {
        let interest = self.interests.entry((participant, group)).or_default();
        interest.acknowledged = true;
        // Acknowledged too late, if it asked to end it meanwhile.
        if interest.wanted {
            let members = self.subscribed.entry(group).or_default();
            if let Err(place) = members.binary_search(&participant) {
                members.insert(place, participant);
            }
        }
    }

    /// A participant asked to unsubscribe.
    pub fn unsubscribing(&mut self, now: Time, participant: u32, group: Group) {
        let judged_after = self.judged_after();
        let interest = self.interests.entry((participant, group)).or_default();
        interest.wanted = false;
        interest.unsubscribed.retain(|at| now.since(*at) < 2 * judged_after);
        interest.unsubscribed.push(now);
        self.remove(participant, group);
    }

    /// The relay acknowledged an unsubscription.
    pub fn unsubscribed(&mut self, now: Time, participant: u32, group: Group) {
        let interest = self.interests.entry((participant, group)).or_default();
        interest.acknowledged = false;
        // It asked again meanwhile: the end of the last subscription is not the end of this one.
        if !interest.wanted {
            interest.ended.get_or_insert(now);
        }
    }

    /// A participant's session was lost: nothing of it is acknowledged any more. What it wants, it
    /// asks for again once it is connected.
    pub fn lost(&mut self, now: Time, participant: u32, groups: impl Iterator<Item = Group>) {
        for group in groups {
            let interest = self.interests.entry((participant, group)).or_default();
            interest.acknowledged = false;
            interest.unsubscribed.push(now);
            self.remove(participant, group);
        }
    }

    /// A participant leaves: its session hears nothing more, and wants nothing more.
    pub fn left(&mut self, now: Time, participant: u32, groups: impl Iterator<Item = Group>) {
        for group in groups {
            self.unsubscribing(now, participant, group);
            self.unsubscribed(now, participant, group);
        }
    }

    fn remove(&mut self, participant: u32, group: Group) {
        if let Some(members) = self.subscribed.get_mut(&group)
            && let Ok(place) = members.binary_search(&participant)
        {
            members.remove(place);
        }
    }

    /// A participant publishes an update; returns its number.
    pub fn publish(&mut self, now: Time, publisher: u32, group: Group) -> u32 {
        let mut receivers = self.spare.pop().unwrap_or_default();
        let members = self.subscribed.get(&group).map_or(&[][..], Vec::as_slice);
        let others = members.iter().filter(|member| **member != publisher);
        receivers.extend(others.map(|member| (*member, Due::Awaited)));
        self.updates.push_back(Update { publisher, group, published: now, receivers });
        self.verdict.published += 1;
        (self.first + self.updates.len() as u64 - 1) as u32
    }

    /// The last update could not be sent: it was not published after all.
    pub fn unpublish(&mut self) {
        if let Some(update) = self.updates.pop_back() {
            self.verdict.published -= 1;
            self.recycle(update);
        }
    }

    /// An update arrived, addressed to `group`.
    pub fn deliver(&mut self, receiver: u32, group: Group, number: u32) {
        let verdict = &mut self.verdict;
        // Numbers wrap after 4 billion; those in the window are told apart by the difference.
        let place = number.wrapping_sub(self.first as u32) as usize;
        let Some(update) = self.updates.get_mut(place).filter(|update| update.group == group)
        else {
            verdict.unexpected += 1;
            return;
        };
        match update.receivers.binary_search_by_key(&receiver, |(receiver, _)| *receiver) {
            Ok(found) => {
                let due = &mut update.receivers[found].1;
                if *due == Due::Awaited {
                    *due = Due::Came;
                    verdict.delivered += 1;
                } else {
                    verdict.duplicates += 1;
                }
            }
            Err(place) => {
                let interest = self.interests.get(&(receiver, update.group));
                let allowed = receiver != update.publisher
                    && interest.is_some_and(|interest| interest.may_get(update.published));
                if allowed {
                    update.receivers.insert(place, (receiver, Due::CameUnasked));
                    verdict.delivered += 1;
                } else {
                    verdict.unexpected += 1;
                }
            }
        }
    }

    /// Something arrived that is no update of this crowd.
    pub fn deliver_foreign(&mut self) {
        self.verdict.unexpected += 1;
    }

    /// Whether everything published has arrived where it must.
    pub fn is_settled(&self) -> bool {
        let awaited =
            |update: &Update| update.receivers.iter().any(|(_, due)| *due == Due::Awaited);
        !self.updates.iter().any(awaited)
    }

    /// Judges the updates that are old enough.
    pub fn judge(&mut self, now: Time) {
        let judged_after = self.judged_after();
        while self.updates.front().is_some_and(|u| now.since(u.published) > judged_after) {
            self.judge_first();
        }
    }

    /// Judges everything: the run is over.
    pub fn judge_all(&mut self) {
        while !self.updates.is_empty() {
            self.judge_first();
        }
    }

    fn judge_first(&mut self) {
        let Some(update) = self.updates.pop_front() else { return };
        self.first += 1;
        for (receiver, due) in &update.receivers {
            match due {
                Due::Came => self.verdict.expected += 1,
                Due::CameUnasked => {}
                Due::Awaited if self.is_excused(*receiver, &update) => self.verdict.excused += 1,
                Due::Awaited => {
                    self.verdict.expected += 1;
                    self.verdict.missing += 1;
                }
            }
        }
        self.recycle(update);
    }

    fn is_excused(&self, receiver: u32, update: &Update) -> bool {
        let until = update.published + self.settle;
        self.interests.get(&(receiver, update.group)).is_some_and(|interest| {
            interest.unsubscribed.iter().any(|at| (update.published..=until).contains(at))
        })
    }

    fn recycle(&mut self, mut update: Update) {
        update.receivers.clear();
        self.spare.push(update.receivers);
    }
}

impl Interest {
    /// Whether an update published at `published` may reach the participant: it wants it, or the
    /// relay had not told it of the end of its subscription when the update was published.
    fn may_get(&self, published: Time) -> bool {
        self.wanted
            || self.acknowledged
            || self.ended.is_some_and(|ended| published <= ended)
            || (!self.unsubscribed.is_empty() && self.ended.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GROUP: Group = Group::new(5);

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    /// Participants 1 and 2 subscribed; 0 publishes at 100 ms.
    fn published() -> (Oracle, u32) {
        let mut oracle = Oracle::new(Duration::from_millis(100));
        for participant in [1, 2] {
            oracle.subscribing(participant, GROUP);
            oracle.subscribed(participant, GROUP);
        }
        let number = oracle.publish(at(100), 0, GROUP);
        (oracle, number)
    }

    fn judged(mut oracle: Oracle) -> Verdict {
        oracle.judge_all();
        *oracle.verdict()
    }

    #[test]
    fn it_finds_the_missing() {
        let (mut oracle, number) = published();
        oracle.deliver(1, GROUP, number);
        let verdict = judged(oracle);
        assert_eq!((verdict.expected, verdict.delivered, verdict.missing), (2, 1, 1));
    }

    #[test]
    fn it_finds_the_double() {
        let (mut oracle, number) = published();
        for receiver in [1, 2, 2] {
            oracle.deliver(receiver, GROUP, number);
        }
        let verdict = judged(oracle);
        assert_eq!((verdict.missing, verdict.duplicates), (0, 1));
    }

    #[test]
    fn it_finds_the_unasked() {
        let (mut oracle, number) = published();
        oracle.deliver(3, GROUP, number);
        oracle.deliver(0, GROUP, number);
        oracle.deliver(1, GROUP, number + 7);
        oracle.deliver(1, Group::new(6), number);
        oracle.deliver_foreign();
        assert_eq!(judged(oracle).unexpected, 5);
    }

    #[test]
    fn who_unsubscribes_may_get_it_or_not() {
        for delivered in [false, true] {
            let (mut oracle, number) = published();
            oracle.deliver(1, GROUP, number);
            oracle.unsubscribing(at(150), 2, GROUP);
            if delivered {
                oracle.deliver(2, GROUP, number);
            }
            oracle.unsubscribed(at(160), 2, GROUP);
            let later = oracle.publish(at(170), 0, GROUP);
            oracle.deliver(1, GROUP, later);
            let verdict = judged(oracle);
            assert_eq!((verdict.missing, verdict.unexpected), (0, 0));
            assert_eq!(verdict.excused, u64::from(!delivered));
        }
    }

    #[test]
    fn late_unsubscribing_excuses_nothing() {
        let (mut oracle, number) = published();
        oracle.deliver(1, GROUP, number);
        oracle.unsubscribing(at(250), 2, GROUP);
        assert_eq!(judged(oracle).missing, 1);
    }

    #[test]
    fn after_the_acknowledged_end_nothing_may_come() {
        let (mut oracle, number) = published();
        oracle.deliver(1, GROUP, number);
        oracle.deliver(2, GROUP, number);
        oracle.unsubscribing(at(150), 2, GROUP);
        oracle.unsubscribed(at(160), 2, GROUP);
        let later = oracle.publish(at(170), 0, GROUP);
        oracle.deliver(2, GROUP, later);
        assert_eq!(judged(oracle).unexpected, 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Subscribe(u32),
        Unsubscribe(u32),
        Publish(u32, Vec<u32>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..5).prop_map(Step::Subscribe),
            (0u32..5).prop_map(Step::Unsubscribe),
            (0u32..5, proptest::collection::vec(0u32..5, 0..6))
                .prop_map(|(publisher, to)| Step::Publish(publisher, to)),
        ]
    }

    proptest! {
        /// Subscriptions that are acknowledged at once and updates far apart: then what is due is
        /// a set difference, and the oracle must say the same.
        #[test]
        fn it_agrees_with_sets(steps in proptest::collection::vec(step(), 0..60)) {
            let mut oracle = Oracle::new(Duration::from_millis(100));
            let mut members = std::collections::BTreeSet::new();
            let mut sums = Verdict::default();
            for (number, step) in steps.into_iter().enumerate() {
                let now = at(1000 * (number as u64 + 1));
                match step {
                    Step::Subscribe(who) => {
                        members.insert(who);
                        oracle.subscribing(who, GROUP);
                        oracle.subscribed(who, GROUP);
                    }
                    Step::Unsubscribe(who) => {
                        members.remove(&who);
                        oracle.unsubscribing(now, who, GROUP);
                        oracle.unsubscribed(now, who, GROUP);
                    }
                    Step::Publish(publisher, to) => {
                        let update = oracle.publish(now, publisher, GROUP);
                        sums.published += 1;
                        let mut due = members.clone();
                        due.remove(&publisher);
                        sums.expected += due.len() as u64;
                        let mut came = std::collections::BTreeSet::new();
                        for receiver in to {
                            oracle.deliver(receiver, GROUP, update);
                            if !due.contains(&receiver) {
                                sums.unexpected += 1;
                            } else if came.insert(receiver) {
                                sums.delivered += 1;
                            } else {
                                sums.duplicates += 1;
                            }
                        }
                        sums.missing += (due.len() - came.len()) as u64;
                    }
                }
            }
            prop_assert_eq!(judged(oracle), sums);
        }
    }
}
