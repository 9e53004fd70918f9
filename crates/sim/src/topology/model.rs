//! The reference model: who had to get which update, and who got what.

use canopy_wire::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// An update had so long to arrive, beside the longest way twice and the ticks that relays wait for.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// Whoever has subscribed gets what is published so long after that, beside the longest way four times and the ticks:
/// relays pass subscriptions on to each other.
const SPREADS: Duration = Duration::from_millis(1_500);

/// How many faults are reported at most.
const MOST_FAULTS: usize = 20;

/// What is for one participant alone is to a group of its own.
pub(crate) fn to_one(number: usize) -> u32 {
    1_000 + number as u32
}

struct Published {
    id: u64,
    at: Time,
    by: usize,
    world: usize,
    group: u32,
    got: BTreeSet<usize>,
    /// Who has got it twice.
    twice: BTreeSet<usize>,
    is_judged: bool,
}

/// What the model knows of a participant.
#[derive(Clone, Default)]
struct Known {
    world: usize,
    /// Since when it is in its world with all that it wants acknowledged.
    since: Option<Time>,
    /// When it turned to another relay last, without a gap.
    turned: Time,
    groups: BTreeSet<u32>,
}

/// A time in which nothing joins some participants of a world to others.
struct Apart {
    world: usize,
    from: Time,
    until: Time,
    /// By participant: in which part of the network it is.
    parts: Vec<Option<usize>>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) published: u64,
    pub(crate) expected: u64,
    pub(crate) deliveries: u64,
    pub(crate) excused: u64,
    pub(crate) missing: u64,
    pub(crate) duplicates: u64,
    pub(crate) duplicates_excused: u64,
    pub(crate) unexpected: u64,
    pub(crate) out_of_order: u64,
    pub(crate) late: u64,
}

pub(crate) struct Model {
    known: Vec<Known>,
    waiting: VecDeque<Published>,
    /// Times in which things are allowed to go wrong, by world.
    excused: Vec<Vec<(Time, Time)>>,
    /// Times in which things are allowed to go wrong between those who are apart.
    apart: Vec<Apart>,
    /// Times in which the network keeps no order.
    unordered: Vec<(Time, Time)>,
    /// The newest update that somebody got of somebody in a group.
    newest: BTreeMap<(usize, usize, u32), (Time, u64)>,
    span: Duration,
    /// By world: how long ticks make an update wait on its way at most.
    waits: Vec<Duration>,
    /// Whether nothing may come late: nothing fails.
    is_punctual: bool,
    next: u64,
    pub(crate) tally: Tally,
    pub(crate) faults: Vec<String>,
    told: BTreeSet<String>,
}

impl Model {
    /// With the world of each participant, how long ticks make an update wait in each, and the longest way.
    pub(crate) fn new(
        worlds: &[usize],
        waits: Vec<Duration>,
        span: Duration,
        is_punctual: bool,
    ) -> Model {
        let of = |world: &usize| Known { world: *world, ..Known::default() };
        Model {
            known: worlds.iter().map(of).collect(),
            waiting: VecDeque::new(),
            excused: vec![Vec::new(); waits.len()],
            apart: Vec::new(),
            unordered: Vec::new(),
            newest: BTreeMap::new(),
            span,
            waits,
            is_punctual,
            next: 1,
            tally: Tally::default(),
            faults: Vec::new(),
            told: BTreeSet::new(),
        }
    }

    /// Something is wrong that no fault excuses.
    pub(crate) fn broken(&mut self, now: Time, what: impl Into<String>) {
        let what = what.into();
        // What is wrong is so again when it is looked at again.
        if self.faults.len() < MOST_FAULTS && self.told.insert(what.clone()) {
            let at = now.as_nanos() / 1_000_000;
            self.faults.push(format!("{at} ms: {what}"));
        }
    }

    /// What is published to a world in this time may be lost.
    pub(crate) fn excuse(&mut self, world: usize, from: Time, until: Time) {
        self.excused[world].push((from, until));
    }

    /// Whether what is published to a world now may be lost.
    pub(crate) fn is_excused(&self, world: usize, now: Time) -> bool {
        self.excused[world].iter().any(|(from, until)| *from <= now && now <= *until)
    }

    /// What is published to a world in this time may be lost between participants who are in different parts of the
    /// network.
    pub(crate) fn excuse_apart(
        &mut self,
        world: usize,
        (from, until): (Time, Time),
        parts: Vec<Option<usize>>,
    ) {
        self.apart.push(Apart { world, from, until, parts });
    }

    /// Whether two participants are apart in some of this time. Of whoever has come or turned to another relay since
    /// they were parted, it is not known.
    fn are_apart(&self, pair: [usize; 2], from: Time, until: Time) -> bool {
        self.apart.iter().any(|apart| {
            let [one, other] = pair.map(|of| apart.parts[of]);
            let has_moved = |of: usize| {
                let Known { since, turned, .. } = &self.known[of];
                since.is_none_or(|since| since > apart.from) || *turned > apart.from
            };
            let is_then = apart.from <= until && from <= apart.until;
            let is_there = apart.world == self.known[pair[0]].world;
            is_there && is_then && (one != other || pair.into_iter().any(has_moved))
        })
    }

    /// A participant turns to another relay.
    pub(crate) fn turned(&mut self, now: Time, number: usize) {
        self.known[number].turned = now;
    }

    /// What is on its way in this time may overtake what was before it.
    pub(crate) fn excuse_order(&mut self, from: Time, until: Time) {
        self.unordered.push((from, until));
    }

    /// A participant has all that it wants.
    pub(crate) fn settled(&mut self, now: Time, number: usize, groups: BTreeSet<u32>) {
        let known = &mut self.known[number];
        known.since = Some(now);
        known.groups = groups;
        known.groups.insert(to_one(number));
    }

    /// It has not, from now on: it leaves, is lost, or wants something else.
    pub(crate) fn unsettled(&mut self, number: usize) {
        self.known[number].since = None;
    }

    /// Somebody publishes. Returns the update's number.
    pub(crate) fn publish(&mut self, at: Time, by: usize, group: u32) -> u64 {
        let (id, world) = (self.next, self.known[by].world);
        self.next += 1;
        self.tally.published += 1;
        let (got, twice) = (BTreeSet::new(), BTreeSet::new());
        self.waiting.push_back(Published {
            id,
            at,
            by,
            world,
            group,
            got,
            twice,
            is_judged: false,
        });
        id
    }

    pub(crate) fn received(&mut self, now: Time, number: usize, id: Option<u64>, group: u32) {
        self.tally.deliveries += 1;
        let found = id.and_then(|id| {
            let first = self.waiting.front()?.id;
            self.waiting.get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
        });
        let known = &self.known[number];
        let fault = match found {
            None => "gets what is older than anything on its way, or nobody's",
            Some(of) if of.world != known.world => "gets what is of another world",
            Some(of) if of.group != group => "gets what was for another group",
            Some(of) if of.by == number => "gets its own",
            Some(of) => {
                let (id, at, by) = (of.id, of.at, of.by);
                if !of.got.insert(number) {
                    let is_second = of.twice.insert(number);
                    return self.doubled(now, number, (by, at, id), is_second);
                }
                self.check_time(now, number, (at, id));
                return self.check_order(now, number, (by, group), (at, id));
            }
        };
        self.tally.unexpected += 1;
        self.broken(now, format!("participant {number} {fault} ({id:?})"));
    }

    /// An update comes once; while a fault is in flight it may come a second time. What comes more often goes round in a
    /// circle, which nothing excuses.
    fn doubled(
        &mut self,
        now: Time,
        number: usize,
        (by, at, id): (usize, Time, u64),
        is_second: bool,
    ) {
        if is_second && self.is_fault_in_flight([number, by], at, now) {
            self.tally.duplicates_excused += 1;
            return;
        }
        self.tally.duplicates += 1;
        let times = if is_second { "twice" } else { "again and again" };
        self.broken(now, format!("participant {number} gets update {id} {times}"));
    }

    /// Whether something failed, or was failing, while an update was on its way from one participant to another.
    fn is_fault_in_flight(&self, pair: [usize; 2], at: Time, now: Time) -> bool {
        let mut excused = self.excused[self.known[pair[0]].world].iter();
        excused.any(|(from, until)| *from <= now && at <= *until) || self.are_apart(pair, at, now)
    }

    /// An update comes in its time, where nothing fails.
    fn check_time(&mut self, now: Time, number: usize, (at, id): (Time, u64)) {
        let took = now.since(at);
        if took > PATIENCE + self.span * 2 + self.waits[self.known[number].world] {
            self.tally.late += 1;
            if self.is_punctual {
                self.broken(now, format!("participant {number} gets update {id} after {took:?}"));
            }
        }
    }

    /// What somebody publishes to a group comes in its order, unless a fault is in flight, or one of the two came or wanted
    /// something else in between.
    fn check_order(
        &mut self,
        now: Time,
        number: usize,
        (by, group): (usize, u32),
        new: (Time, u64),
    ) {
        let newest = self.newest.entry((number, by, group)).or_default();
        let before = std::mem::replace(newest, new.max(*newest));
        let overlaps = |(from, until): &(Time, Time)| *from <= now && new.0 <= *until;
        let is_steady = |of: usize| self.known[of].since.is_some_and(|since| since <= new.0);
        let is_excused = self.unordered.iter().any(overlaps)
            || self.is_fault_in_flight([number, by], new.0, now);
        if before > new && is_steady(number) && is_steady(by) && !is_excused {
            self.tally.out_of_order += 1;
            let what = format!(
                "participant {number} gets update {} of {by} after update {}",
                new.1, before.1
            );
            self.broken(now, what);
        }
    }

    /// Judges what is old enough.
    pub(crate) fn judge(&mut self, now: Time) {
        let flight = self.flight();
        // Updates are kept a while longer: a late one is no stranger.
        while self.waiting.front().is_some_and(|of| of.at + flight * 3 < now) {
            let Some(of) = self.waiting.pop_front() else { return };
            if !of.is_judged {
                self.judge_one(now, &of);
            }
        }
    }

    /// Judges whatever has had its time, before everybody leaves.
    pub(crate) fn judge_at_last(&mut self, now: Time) {
        let (flight, mut waiting) = (self.flight(), std::mem::take(&mut self.waiting));
        for of in waiting.iter_mut().filter(|of| !of.is_judged && of.at + flight < now) {
            of.is_judged = true;
            self.judge_one(now, of);
        }
        self.waiting = waiting;
    }

    /// How long an update takes at most.
    fn flight(&self) -> Duration {
        PATIENCE + self.span * 2 + self.waits.iter().max().copied().unwrap_or_default()
    }

    fn judge_one(&mut self, now: Time, of: &Published) {
        let waits = self.waits[of.world];
        let until = of.at + PATIENCE + self.span * 2 + waits;
        let is_excused =
            self.excused[of.world].iter().any(|(from, to)| *from <= until && of.at <= *to);
        let spreads = SPREADS + self.span * 4 + waits;
        let is_steady = |known: &Known| known.since.is_some_and(|since| since + spreads <= of.at);
        // Whoever is steady now was when it was published, and in between.
        let mut missing = Vec::new();
        for (number, known) in self.known.iter().enumerate() {
            let wants = known.world == of.world && known.groups.contains(&of.group);
            if number == of.by || !wants {
                continue;
            }
            let is_excused = is_excused || self.are_apart([number, of.by], of.at, until);
            match is_steady(known) && is_steady(&self.known[of.by]) && !is_excused {
                true => {
                    self.tally.expected += 1;
                    if !of.got.contains(&number) {
                        missing.push(number);
                    }
                }
                false => self.tally.excused += u64::from(!of.got.contains(&number)),
            }
        }
        let since = |number: usize| {
            self.known[number].since.map_or(0, |since: Time| since.as_nanos() / 1_000_000)
        };
        let missing: Vec<(usize, u64)> = missing.into_iter().map(|one| (one, since(one))).collect();
        let by_since = since(of.by);
        for (number, since) in missing {
            self.tally.missing += 1;
            let at = of.at.as_nanos() / 1_000_000;
            let what = format!(
                "participant {number}, settled since {}, lacks update {} of {}, settled since {}, \
                 published at {at} ms",
                since, of.id, of.by, by_since
            );
            self.broken(now, what);
        }
    }

    /// Since when somebody has all that it wants.
    pub(crate) fn since(&self, number: usize) -> Option<Time> {
        self.known[number].since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Two participants of a world, of which the second gets two updates of the first the wrong way round.
    fn overtaken(change: impl FnOnce(&mut Model, Time)) -> u64 {
        let mut model = Model::new(&[0, 0], vec![Duration::ZERO], Duration::ZERO, true);
        let now = Time::from_millis(5_000);
        (0..2).for_each(|number| model.settled(Time::ZERO, number, [1].into()));
        let updates = [now, now + SECOND].map(|at| model.publish(at, 0, 1));
        change(&mut model, now);
        for id in updates.into_iter().rev() {
            model.received(now + SECOND, 1, Some(id), 1);
        }
        assert_eq!(model.faults.len() as u64, model.tally.out_of_order);
        model.tally.out_of_order
    }

    /// What is told of an update that a participant gets twice, the second time a second later.
    fn twice(change: impl FnOnce(&mut Model, Time)) -> [u64; 2] {
        doubled(1, change)
    }

    /// The same, if it gets that so many times more.
    fn doubled(more: u64, change: impl FnOnce(&mut Model, Time)) -> [u64; 2] {
        let mut model = Model::new(&[0, 0], vec![Duration::ZERO], Duration::ZERO, true);
        let now = Time::from_millis(5_000);
        (0..2).for_each(|number| model.settled(Time::ZERO, number, [1].into()));
        let id = model.publish(now, 0, 1);
        change(&mut model, now);
        model.received(now, 1, Some(id), 1);
        (0..more).for_each(|_| model.received(now + SECOND, 1, Some(id), 1));
        assert_eq!(model.faults.is_empty(), model.tally.duplicates == 0);
        [model.tally.duplicates, model.tally.duplicates_excused]
    }

    #[test]
    fn what_comes_twice_is_seen_unless_a_fault_was_in_flight() {
        assert_eq!(twice(|_, _| ()), [1, 0]);
        assert_eq!(twice(|model, now| model.excuse(0, now + SECOND, now + SECOND)), [0, 1]);
        let parts = |parts: [usize; 2]| parts.map(Some).to_vec();
        let apart = |model: &mut Model, now| model.excuse_apart(0, (now, now), parts([0, 1]));
        assert_eq!(twice(apart), [0, 1]);
        let together = |model: &mut Model, now| model.excuse_apart(0, (now, now), parts([0, 0]));
        assert_eq!(twice(together), [1, 0]);
        // Faults that were over before, or began after, excuse nothing; nor does a network that keeps no order.
        assert_eq!(twice(|model, now| model.excuse(0, now - SECOND, now - SECOND)), [1, 0]);
        assert_eq!(twice(|model, now| model.excuse(0, now + SECOND * 2, now + SECOND * 2)), [1, 0]);
        assert_eq!(twice(|model, now| model.excuse_order(now, now + SECOND)), [1, 0]);
        // Nor does anything excuse a circle.
        assert_eq!(doubled(3, |model, now| model.excuse(0, now, now + SECOND)), [2, 1]);
    }

    #[test]
    fn what_is_overtaken_is_seen_unless_something_excuses_it() {
        assert_eq!(overtaken(|_, _| ()), 1);
        assert_eq!(overtaken(|model, now| model.excuse(0, now, now)), 0);
        assert_eq!(overtaken(|model, now| model.excuse_order(now + SECOND, now + SECOND)), 0);
        // Those who are in one part are not excused, unless one has come to it since.
        let apart = |parts: [usize; 2]| {
            move |model: &mut Model, now| model.excuse_apart(0, (now, now), parts.map(Some).into())
        };
        assert_eq!([[0, 1], [0, 0]].map(|parts| overtaken(apart(parts))), [0, 1]);
        let turned = |model: &mut Model, now| {
            apart([0, 0])(model, now);
            model.turned(now + SECOND, 0);
        };
        assert_eq!(overtaken(turned), 0);
        // Faults that were over before, or began after, excuse nothing.
        assert_eq!(overtaken(|model, now| model.excuse(0, now - SECOND, now - SECOND)), 1);
        assert_eq!(overtaken(|model, now| model.excuse(0, now + SECOND * 2, now + SECOND * 3)), 1);
        // Whoever comes again counts anew.
        assert_eq!(overtaken(|model, now| model.settled(now + SECOND, 0, [1].into())), 0);
    }
}
