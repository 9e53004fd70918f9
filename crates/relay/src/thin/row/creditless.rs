//! Flows of a row that have no pair, because the table of pairs is full: nothing is kept of any one of them.
//!
//! The first update in each period of the floor goes, of all levels: a receiver that does not want that one's has
//! no floor in this period, as nothing is known of its own. Whether another goes says its number in its flow, times the
//! golden ratio: however small a part of a flow's updates is to go, those are spread nearly evenly. The part is what
//! is fair by the row's water level. What all these flows take at a water level is known by *kinds*, those of about
//! the same weight beside what they send, so that the rates of the row's pairs leave them what is theirs. What goes
//! waits in a queue. Where pairs wait too, both have their parts of what may be sent.

use super::super::allowance::{Down, spare};
use super::super::flows::{Flows, Pace};
use super::rates::{had, seconds};
use super::{Fairness, GOLDEN, News, Noted, phase_of};
use crate::index::{FlowId, LogNumber, NOTHING, fold};
use core::cmp::Ordering;
use hashbrown::HashTable;
use std::collections::VecDeque;

/// The most updates without a credit that wait for a receiver, and how much of its time they may take, or a datagram,
/// in nanoseconds. Where more come, the oldest go nowhere.
const MOST: usize = 256;
const MOST_TIME: i64 = 200_000_000;
/// How many updates a flush may bring whose memory is kept for the next.
const MOST_KEPT: usize = 1_024;
/// The most kinds of flows of a row. Where there are more, they count as the nearest.
const MOST_KINDS: usize = 64;
/// Who takes less, in seconds of the budget a second, takes nothing.
const LEAST_COST: f32 = 1e-7;

/// What flows take of the budget, in seconds, or seconds a second.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// If they get all that they send.
    all: f32,
    /// If they get the floor.
    floor: f32,
    /// Between these, at a water level of 1.
    at_one: f32,
}

impl Taken {
    fn at(&self, water_level: f32) -> f32 {
        (water_level * self.at_one).max(self.floor).min(self.all)
    }

    /// Adds a part of what another is more.
    fn approach(&mut self, other: Taken, part: f32) {
        self.all += (other.all - self.all) * part;
        self.floor += (other.floor - self.floor) * part;
        self.at_one += (other.at_one - self.at_one) * part;
    }
}

/// The flows of one level that get all they send from about the same water level on.
#[derive(Clone, Copy, Debug)]
struct Kind {
    level: u8,
    octave: u8,
    /// Since rates were worked out.
    came: Taken,
    /// On average.
    mean: Taken,
}

/// What is to go.
#[derive(Clone, Copy, Debug)]
struct Queued {
    update: LogNumber,
    flow: FlowId,
    /// Grows from update to update of a flow.
    order: u64,
    /// The bytes that it takes.
    len: u16,
}

/// The flows of a row that have no pair.
#[derive(Clone, Debug)]
pub(super) struct Creditless {
    /// What is to go, and the bytes that all of it takes.
    queue: VecDeque<Queued>,
    bytes: u64,
    /// The part of what the row sends that is theirs, and how much more than that they had where pairs waited too, in
    /// nanoseconds.
    part: f32,
    ahead: i64,
    kinds: Vec<Kind>,
    /// Milliseconds of the relay's time.
    since: u32,
    /// What the row was told of in this flush, whose updates have numbers from `first` on.
    told: HashTable<LogNumber>,
    first: LogNumber,
    /// The water level, and the level whose flows it is for: those of lower ones get all that they send, and those
    /// of higher ones the floor.
    water_level: f32,
    level: u8,
    fairness: Fairness,
    /// Whether anything was left out since that was last asked.
    has_left_out: bool,
}

impl Creditless {
    /// None has come yet. The water level is infinite where all get what they send.
    pub(super) fn new(at: u32, water_level: f32) -> Creditless {
        Creditless {
            queue: VecDeque::new(),
            bytes: 0,
            part: 1.0,
            ahead: 0,
            kinds: Vec::new(),
            since: at,
            told: HashTable::new(),
            first: 0,
            water_level,
            level: 0,
            fairness: Fairness::default(),
            has_left_out: false,
        }
    }

    /// An update of a flow that has no pair has come. Those of a flush have numbers from `first` on.
    pub(super) fn note(
        &mut self,
        news: &News,
        pace: &Pace,
        (down, first): (Down, LogNumber),
    ) -> Noted {
        if !self.tell(news.update, first) {
            let waits = self.queue().any(|update| update == news.update);
            return if waits { Noted::Known } else { Noted::Outdated };
        }
        let hz = pace.hz();
        let floor = (1.0 / self.fairness.floor.as_secs_f32() / hz).min(1.0);
        let at_one = news.weight / had(news.len, down) / hz;
        let level = if self.fairness.levels_first { news.level } else { 0 };
        self.count(level, at_one, floor, seconds(news.len, down));
        let part = match level.cmp(&self.level) {
            Ordering::Less => 1.0,
            Ordering::Equal => (at_one * self.water_level).max(floor),
            Ordering::Greater => floor,
        };
        if !self.is_its_turn(news.flow, pace, (part, floor)) {
            self.has_left_out = true;
            return Noted::NotItsTurn;
        }
        // Groups are told of in any order, and a roaming object may have been in two of them. Flows without a place
        // share a number: of these, what is newer may be another one's.
        let is_newer = |queued: &Queued| queued.flow == news.flow && queued.order > news.order;
        if Flows::has_place(news.flow) && self.queue.iter().any(is_newer) {
            return Noted::Overtaken;
        }
        match self.push((news.update, news.flow, news.order, news.len), down) {
            [NOTHING, _] => Noted::Waits,
            oldest => Noted::Replaces(oldest),
        }
    }

    /// Whether the last update of a flow goes, of which this part is to go. The floor stands still, so the first of
    /// each of its periods goes. A part that moves with the water level would count updates twice or not at all so: of
    /// what is beyond the floor, the golden ratio says whose turn it is.
    fn is_its_turn(&self, flow: FlowId, pace: &Pace, (part, floor): (f32, f32)) -> bool {
        // A flow that begins has no period yet.
        let has_begun = pace.said > 1;
        if part >= 1.0 || has_begun && pace.begins(self.fairness.floor, phase_of(flow)) {
            return true;
        }
        let beyond = if has_begun { (part - floor) / (1.0 - floor) } else { part };
        let turn = pace.said.wrapping_add(flow).wrapping_mul(GOLDEN);
        f64::from(turn) < f64::from(beyond) * f64::from(u32::MAX)
    }

    /// Takes note that the row is told of an update. Returns whether it was not yet in this flush.
    pub(super) fn tell(&mut self, update: LogNumber, first: LogNumber) -> bool {
        if first > self.first {
            self.first = first;
            if self.told.capacity() > MOST_KEPT {
                self.told = HashTable::new();
            }
            self.told.clear();
        }
        let hash = |update: &LogNumber| fold(*update);
        let same = |other: &LogNumber| *other == update;
        if self.told.find(hash(&update), same).is_some() {
            return false;
        }
        self.told.insert_unique(hash(&update), update, hash);
        true
    }

    /// Counts an update as a part of what its kind takes.
    fn count(&mut self, level: u8, at_one: f32, floor: f32, cost: f32) {
        // The sign is 0, so this is the exponent.
        let octave = (at_one.to_bits() >> 23) as u8;
        let is_it = |kind: &Kind| kind.level == level && kind.octave == octave;
        let place = match self.kinds.iter().position(is_it) {
            Some(place) => place,
            None if self.kinds.len() < MOST_KINDS => {
                let (came, mean) = Default::default();
                self.kinds.push(Kind { level, octave, came, mean });
                self.kinds.len() - 1
            }
            None => self.nearest_kind(level, octave),
        };
        let came = &mut self.kinds[place].came;
        came.all += cost;
        came.floor += cost * floor;
        came.at_one += cost * at_one;
    }

    fn nearest_kind(&self, level: u8, octave: u8) -> usize {
        let off = |place: &usize| {
            let kind = &self.kinds[*place];
            (kind.level.abs_diff(level), kind.octave.abs_diff(octave))
        };
        (0..self.kinds.len()).min_by_key(off).unwrap_or(0)
    }

    /// An update is to go. Returns the oldest ones that go nowhere for it: a long update takes the place of many short
    /// ones little by little.
    pub(super) fn push(
        &mut self,
        (update, flow, order, len): (LogNumber, FlowId, u64, u16),
        down: Down,
    ) -> [LogNumber; 2] {
        self.queue.push_back(Queued { update, flow, order, len });
        self.bytes += u64::from(len);
        [(); 2].map(|()| {
            if self.queue.len() <= MOST && self.due(down) <= most_time(down) {
                return NOTHING;
            }
            self.has_left_out = true;
            self.pop().map_or(NOTHING, |oldest| oldest.update)
        })
    }

    fn pop(&mut self) -> Option<Queued> {
        let first = self.queue.pop_front()?;
        self.bytes -= u64::from(first.len);
        Some(first)
    }

    /// Takes out one that is to go of the flow of a newer one, if it stands behind that in the log. What goes is put in
    /// the order of the log, where two of a flush may be the other way round if another row was told of the newer one
    /// only.
    pub(super) fn take_behind(&mut self, newer: &News) -> Option<LogNumber> {
        if !Flows::has_place(newer.flow) {
            return None;
        }
        let is_behind = |queued: &Queued| {
            queued.flow == newer.flow && queued.order < newer.order && queued.update > newer.update
        };
        let place = self.queue.iter().position(is_behind)?;
        let behind = self.queue.remove(place)?;
        self.bytes -= u64::from(behind.len);
        Some(behind.update)
    }

    /// Whether anything of a flow is to go.
    pub(super) fn has_of(&self, flow: FlowId) -> bool {
        self.queue.iter().any(|queued| queued.flow == flow)
    }

    /// What is to go, in the order in which it came.
    pub(super) fn queue(&self) -> impl ExactSizeIterator<Item = LogNumber> + '_ {
        self.queue.iter().map(|queued| queued.update)
    }

    /// What is to go is sorted by when it came.
    pub(super) fn sort(&mut self) {
        self.queue.make_contiguous().sort_unstable_by_key(|queued| queued.update);
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(LogNumber) -> bool) {
        self.queue.retain(|queued| is_kept(queued.update));
        self.bytes = self.queue.iter().map(|queued| u64::from(queued.len)).sum();
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = LogNumber> + '_ {
        self.bytes = 0;
        self.queue.drain(..).map(|queued| queued.update)
    }

    /// What of `may` nanoseconds is theirs where pairs wait.
    pub(super) fn part_of(&self, may: i64) -> i64 {
        (may as f32 * self.part) as i64 - self.ahead
    }

    /// Takes what goes for `most` nanoseconds into `chosen`, if all of it fits into `may`, or if it is the first and
    /// `is_last_resort` says so. Returns what that takes, and whether the next has its turn and does not fit.
    pub(super) fn serve(
        &mut self,
        down: Down,
        (most, may, is_last_resort): (i64, i64, bool),
        chosen: &mut Vec<LogNumber>,
    ) -> (i64, bool) {
        let mut gone = 0;
        while gone < most
            && let Some(Queued { len, .. }) = self.queue.front()
        {
            let cost = down.cost((*len).into(), 1);
            if gone + cost > may && !(is_last_resort && gone == 0) {
                return (gone, true);
            }
            gone += cost;
            chosen.extend(self.pop().map(|queued| queued.update));
        }
        (gone, false)
    }

    /// They had so much, and pairs so much, of which `waits` waits still.
    pub(super) fn balance(&mut self, down: Down, (gone, of_pairs, waits): (i64, i64, i64)) {
        let ahead = gone as f32 * (1.0 - self.part) - of_pairs as f32 * self.part;
        let most = most_time(down);
        self.ahead = if waits > 0 { (self.ahead + ahead as i64).clamp(-most, most) } else { 0 };
    }

    /// What all that is to go costs.
    pub(super) fn due(&self, down: Down) -> i64 {
        down.cost(self.bytes, self.queue.len() as u64)
    }

    /// Whether anything was left out since this was last asked.
    pub(super) fn take_left_out(&mut self) -> bool {
        core::mem::take(&mut self.has_left_out)
    }

    /// Takes note of what has come in these seconds. The mean follows by a part. Returns whether there is anything.
    pub(super) fn measure(&mut self, at: u32, passed: f32, part: f32) -> bool {
        let age = (at.wrapping_sub(self.since) as f32 / 1e3).max(passed);
        let part = part.max((passed / age).min(1.0));
        for Kind { came, mean, .. } in &mut self.kinds {
            let Taken { all, floor, at_one } = core::mem::take(came);
            let a_second =
                Taken { all: all / passed, floor: floor / passed, at_one: at_one / passed };
            mean.approach(a_second, part);
        }
        self.kinds.retain(|kind| kind.mean.all > LEAST_COST);
        !self.kinds.is_empty() || !self.queue.is_empty()
    }

    /// The highest level of the flows.
    pub(super) fn highest(&self) -> u8 {
        self.kinds.iter().map(|kind| kind.level).max().unwrap_or(0)
    }

    /// What the flows of some levels take at a water level, and how fast that grows with it; and what they take if
    /// they get all that they send.
    pub(super) fn taken(&self, water_level: f32, is_in: impl Fn(u8) -> bool) -> (f32, f32, f32) {
        let kinds = self.kinds.iter().filter(|kind| is_in(kind.level)).map(|kind| kind.mean);
        kinds.fold((0.0, 0.0, 0.0), |(taken, slope, all), kind| {
            let between = water_level * kind.at_one;
            let is_between = between >= kind.floor && between < kind.all;
            let more = if is_between { kind.at_one } else { 0.0 };
            (taken + kind.at(water_level), slope + more, all + kind.all)
        })
    }

    /// Rates were worked out: this is the water level, of the flows of this level. All flows of the row take so much.
    pub(super) fn set(&mut self, fairness: Fairness, (level, water_level): (u8, f32), all: f32) {
        (self.fairness, self.level, self.water_level) = (fairness, level, water_level);
        let own = |other: u8| match other.cmp(&level) {
            Ordering::Less => f32::INFINITY,
            Ordering::Equal => water_level,
            Ordering::Greater => 0.0,
        };
        let of_kind = |kind: &Kind| kind.mean.at(own(kind.level));
        let taken: f32 = self.kinds.iter().map(of_kind).sum();
        self.part = if all > 0.0 { (taken / all).min(1.0) } else { 1.0 };
    }
}

/// How much time what is to go may take.
fn most_time(down: Down) -> i64 {
    MOST_TIME.max(spare(down))
}

#[cfg(test)]
mod tests {
    use super::super::super::flows::FlowKey;
    use super::*;
    use canopy_wire::{Address, ROAMING, Time};

    const DOWN: Down = Down { bits: 80_000, updates: 0 };

    fn news(flow: u32, update: LogNumber) -> News {
        News { flow, weight: 1.0, level: 0, len: 100, update, order: update, series: 0 }
    }

    /// What goes of a flow that sends ten updates a second, by their numbers, at a part of them.
    fn gone(flow: u32, part: f32, updates: u32) -> Vec<u32> {
        let mut creditless = Creditless::new(0, part * 1_000.0);
        let goes = |said: &u32| {
            let pace = Pace::after(*said);
            let number = u64::from(*said);
            creditless.note(&news(flow, number), &pace, (DOWN, number)) != Noted::NotItsTurn
        };
        (0..updates).filter(goes).collect()
    }

    #[test]
    fn any_part_of_a_flow_is_spread_nearly_evenly() {
        for flow in [0, 1, 77, 123_456] {
            for part in [0.06_f32, 0.1, 0.25, 0.37, 0.5, 0.8] {
                let gone = gone(flow, part, 1_000);
                let off = (gone.len() as f32 - part * 1_000.0).abs();
                assert!(off <= 1.01, "{} of a thousand at {part}", gone.len());
                let gaps = gone.windows(2).map(|two| (two[1] - two[0]) as f32 * part);
                let longest = gaps.fold(0.0, f32::max);
                assert!(longest < 2.01, "{longest} intervals at {part}");
            }
            // The floor is a twentieth of this flow, and of that exactly one in twenty goes.
            let at_floor = gone(flow, 0.001, 1_000);
            assert!(at_floor.len().abs_diff(50) <= 1, "{}", at_floor.len());
            assert!(at_floor.windows(2).skip(1).all(|two| two[1] - two[0] == 20), "{at_floor:?}");
        }
    }

    #[test]
    fn who_needs_more_gets_what_others_get_and_more() {
        let (little, much) = (gone(5, 0.1, 500), gone(5, 0.3, 500));
        assert!(little.iter().all(|said| much.contains(said)), "they share what they are sent");
    }

    #[test]
    fn what_the_flows_take_follows_the_water_level() {
        let mut creditless = Creditless::new(0, f32::INFINITY);
        for update in 0..40 {
            let pace = Pace::after(update);
            // Half of it is a hundred times as heavy.
            let weight = if update % 2 == 0 { 1.0 } else { 100.0 };
            let news = News { weight, ..news(update % 2, update.into()) };
            creditless.note(&news, &pace, (DOWN, update.into()));
        }
        assert!(creditless.measure(1_000, 1.0, 0.05));
        // An update takes 10 ms of the budget, and 20 a second come of each kind; the floor is a twentieth of that.
        let taken = |level: f32| (creditless.taken(level, |_| true).0 * 1_000.0).round();
        assert_eq!(taken(f32::INFINITY), 400.0, "all of both");
        assert_eq!(taken(1.0), 10.0 + 20.0, "the light one at the floor, the heavy one at a tenth");
        assert_eq!(taken(100.0), 20.0 + 200.0);
        assert_eq!(taken(0.0), 20.0, "both at the floor");
        assert_eq!(creditless.taken(1.0, |level| level == 1).0, 0.0, "none is of this level");
    }

    #[test]
    fn the_oldest_goes_nowhere_where_too_much_waits_and_nothing_is_told_twice() {
        // Two budgets: one that sends all that may wait soon enough, and one that sends twenty in 200 ms.
        for (down, most) in [(Down { bits: 8_000_000, ..DOWN }, MOST as u64), (DOWN, 20)] {
            let mut creditless = Creditless::new(0, f32::INFINITY);
            let mut note =
                |update: u64| creditless.note(&news(1, update), &Pace::default(), (down, 0));
            for update in 0..most {
                assert_eq!(note(update), Noted::Waits);
            }
            assert_eq!(note(7), Noted::Known);
            assert_eq!(note(most), Noted::Replaces([0, NOTHING]));
            assert_eq!(note(0), Noted::Outdated);
            assert_eq!(creditless.queue().len() as u64, most);
        }
    }

    #[test]
    fn what_stands_behind_a_newer_one_in_the_log_does_not_go_after_it() {
        let mut creditless = Creditless::new(0, f32::INFINITY);
        let mut note = |flow: u32, update: LogNumber, order: u64| {
            let news = News { order, ..news(flow, update) };
            assert_eq!(creditless.note(&news, &Pace::default(), (DOWN, 0)), Noted::Waits);
            core::iter::from_fn(|| creditless.take_behind(&news)).collect::<Vec<_>>()
        };
        // Another flow's, and one that is older and stands in front.
        assert!(note(2, 14, 1).is_empty() && note(1, 9, 1).is_empty());
        (11..14).for_each(|update| assert!(note(1, update, update).is_empty()));
        assert_eq!(note(1, 10, 14), [11, 12, 13]);
        assert_eq!(creditless.queue().collect::<Vec<_>>(), [14, 9, 10]);
        assert_eq!(creditless.bytes, 300);
    }

    /// Groups are told of in any order, so a flow's update may be told of before another's older one.
    #[test]
    fn flows_that_share_a_place_take_nothing_from_each_other() {
        let mut flows = Flows::new(0);
        let mut flow_of = |src: u16, group: u32| {
            let (src, dst) = (Address::unicast(1, src), Address(group));
            let key = FlowKey { comtree: 0, src, object: ROAMING, dst };
            flows.note(Time::from_millis(1), key, 1.0).0
        };
        let flow = flow_of(1, 7);
        assert!((2..10_000).any(|src| flow_of(src, 8) == flow));
        let mut creditless = Creditless::new(0, f32::INFINITY);
        for (update, order) in [(10, 2), (11, 1), (9, 3)] {
            let news = News { order, ..news(flow, update) };
            let noted = creditless.note(&news, &Pace::default(), (DOWN, 0));
            assert_eq!((noted, creditless.take_behind(&news)), (Noted::Waits, None));
        }
        assert_eq!(creditless.queue().len(), 3);
    }

    #[test]
    fn a_flood_and_many_kinds_leave_no_memory_behind() {
        let mut creditless = Creditless::new(0, f32::INFINITY);
        for update in 0..10_000_u64 {
            let weight = 2.0_f32.powi((update % 100) as i32 - 50);
            let news = News { weight, ..news(1, update) };
            creditless.note(&news, &Pace::default(), (DOWN, 0));
        }
        assert_eq!(creditless.kinds.len(), MOST_KINDS);
        creditless.note(&news(1, 10_000), &Pace::default(), (DOWN, 10_000));
        assert!(creditless.told.capacity() <= MOST_KEPT);
        // All that came is counted, as whatever kind.
        creditless.measure(1_000, 1.0, 1.0);
        let all = creditless.taken(f32::INFINITY, |_| true).0;
        assert!((all - 100.01).abs() < 0.1, "{all}");
    }

    #[test]
    fn where_pairs_wait_the_queue_has_its_part_in_all() {
        let mut creditless = Creditless::new(0, f32::INFINITY);
        creditless.part = 0.25;
        // A look allows 15 ms, and an update takes 10 ms: what is too much in one is too little in the next ones.
        let (mut chosen, mut gone, mut of_pairs) = (Vec::new(), 0, 0);
        for look in 0..400_u64 {
            creditless.push((look, 1, 0, 100), DOWN);
            let most = creditless.part_of(15_000_000);
            let (own, _) = creditless.serve(DOWN, (most, 15_000_000, false), &mut chosen);
            creditless.balance(DOWN, (own, 15_000_000 - own, 1));
            (gone, of_pairs) = (gone + own, of_pairs + 15_000_000 - own);
        }
        let part = gone as f32 / (gone + of_pairs) as f32;
        assert!((part - 0.25).abs() < 0.01, "{part}");
    }
}
