//! The rates of a row's flows: weighted max-min fairness with demands (Meru §4.3).

use super::super::allowance::Down;
use super::{Fairness, Pair, Row, SOLVE_EVERY, millis};
use canopy_wire::Time;

/// What a flow sends is averaged over this time, seconds.
const SMOOTH: f32 = 2.0;
/// How much less the backlog counts, for each part of the time of the last second in which a budget was not used.
const BETWEEN_BUNCHES: f32 = 5.0;
/// How fast what is shared out follows what of the budget is not used, a second.
const CORRECT: f32 = 0.5;
/// How much of what is due is to wait, seconds of the budget: a little, or a part of it would not be used.
const BACKLOG: f32 = 0.005;
/// What waits beside that is to go within this time, seconds.
const DRAIN: f32 = 0.5;
/// How much more or less than the budget is shared out, at most.
const LEAST_EXCESS: f32 = -0.3;
const MOST_EXCESS: f32 = 0.1;
/// A flow is free whose share is so many times what it sends.
const FREE_ABOVE: f32 = 1.25;
/// There is something to spare where all that is sent takes no more than this part of the budget.
const SPARE_BELOW: f32 = 0.95;
/// A flow is silent that has sent nothing for so many of its intervals, and so many seconds.
const SILENT_INTERVALS: f32 = 2.0;
const SILENT_SECONDS: f32 = 0.125;
/// All flows bear alike by how much less than the budget is shared out, each up to this part of its rate.
const BEARS: f32 = 0.035;
/// A flow is heavy that has so many times the mean weight. Where all have the same, none is.
const HEAVY_ABOVE: f32 = 1.25;
/// What a flow has missed is forgotten over this time, seconds.
const FORGET: f32 = 10.0;
/// How many steps the search for the water level may take; a few are enough nearly always.
const MOST_STEPS: usize = 40;
/// How exact the water level is to be.
const EXACT: f32 = 1e-4;

impl Row {
    /// Works out the rates.
    pub(super) fn solve(&mut self, now: Time, (down, fairness): (Down, Fairness)) {
        let before = core::mem::replace(&mut self.solved, now);
        // The first time, flows have just come, and what they sent is of no longer time.
        let passed = if before == Time::ZERO { SOLVE_EVERY } else { now.since(before) };
        let passed = passed.as_secs_f32().min(1.0);
        self.measure(now, passed);
        self.newcomers *= 1.0 - passed;
        let floor = 1.0 / fairness.floor.as_secs_f32();
        let (excess, real) = (self.excess, 1.0 + self.dearness);
        let (each, borne) = self.borne_by_each((-excess / real).max(0.0), floor, down);
        // What is left of the budget by what comes first, in seconds a second: 1 is all of the budget. Costs are
        // those that updates are thought to have, so what they really cost beside that makes the budget smaller. What
        // is borne alike is taken off afterwards.
        let mut left = (1.0 + excess) / real - self.urgent_share + borne;
        let most_level = self.pairs.iter().map(|pair| pair.level).max().unwrap_or(0);
        let creditless = self.creditless.as_ref().map_or(0, |creditless| creditless.highest());
        let levels = if fairness.levels_first { most_level.max(creditless) } else { 0 };
        let (mut first_short, mut all) = ((u8::MAX, f32::INFINITY), 0.0);
        for level in 0..=levels {
            let is_in = |other: u8| !fairness.levels_first || other == level;
            // Those of higher levels have their floor whatever this one wants.
            let kept = if level < levels {
                self.at_floor(floor, down, |other| other > level)
            } else {
                0.0
            };
            let taken = self.share_out((left - kept).max(0.0), floor, down, is_in);
            (left, all) = (left - taken, all + taken);
            if self.is_short && first_short.1.is_infinite() {
                first_short = (level, self.water_level);
            }
        }
        self.is_short = first_short.1.is_finite();
        if self.is_short {
            self.water_level = first_short.1;
        }
        self.heavy_from = HEAVY_ABOVE * self.mean_weight();
        let fills = self.wanted(down, |_| true) * real + self.urgent_share;
        self.is_tight = fills > SPARE_BELOW;
        if let Some(creditless) = &mut self.creditless {
            creditless.set(fairness, first_short, all);
        }
        for pair in self.pairs.iter_mut().filter(|pair| pair.bears(floor)) {
            pair.rate = (pair.rate - pair.part_of(each)).max(floor);
        }
    }

    /// How many updates a second less each flow gets that is neither at the floor nor gets all it sends, so that
    /// all of them take `less`, in seconds a second; and what they really take less by that. The rates are those of
    /// last time. Thus a flow is off by as little as can be, whether fast or slow: the last update of who leaves goes
    /// in any case, and the others pay for that.
    fn borne_by_each(&self, less: f32, floor: f32, down: Down) -> (f32, f32) {
        let all = || self.pairs.iter().filter(|pair| pair.bears(floor));
        let costs: f32 = all().map(|pair| seconds(pair.len, down)).sum();
        if costs == 0.0 {
            return (0.0, 0.0);
        }
        let each = less / costs;
        (each, all().map(|pair| pair.part_of(each) * seconds(pair.len, down)).sum())
    }

    /// Takes note of what the flows sent, what urgent updates took, and what was due and did not go.
    fn measure(&mut self, now: Time, passed: f32) {
        let share = (passed / SMOOTH).min(1.0);
        let urgent = core::mem::take(&mut self.urgent_cost) as f32 / 1e9 / passed;
        self.urgent_share += (urgent - self.urgent_share) * share;
        let unused = core::mem::take(&mut self.lost).min(passed);
        self.idle += (unused / passed - self.idle) * passed;
        // Where more is due than the budget holds, less is shared out until that has gone, but for bunches that
        // leave before the next ones come; what is not used is shared out beside. The bounds keep a pause in which
        // nobody sends, and a crowd that comes into sight, from changing rates by far more than lasts.
        let drained = (BACKLOG - self.backlog) / DRAIN;
        let drained = drained.max((drained + BETWEEN_BUNCHES * self.idle).min(0.0));
        self.unused =
            (self.unused + (unused + drained.min(0.0) * passed) * CORRECT).clamp(0.0, MOST_EXCESS);
        self.excess = (drained + self.unused).clamp(LEAST_EXCESS, MOST_EXCESS);
        let at = millis(now);
        self.creditless.take_if(|creditless| !creditless.measure(at, passed, share));
        for pair in &mut self.pairs {
            pair.missed *= 1.0 - passed / FORGET;
            let age = (at.wrapping_sub(pair.since) as f32 / 1e3).max(passed);
            let came = f32::from(core::mem::take(&mut pair.came));
            // A new flow has no past to smooth with: its demand is the plain mean since it came.
            if pair.is_new() {
                pair.demand = came / age;
            }
            pair.demand += (came / passed - pair.demand) * share.max((passed / age).min(1.0));
            let silent = at.wrapping_sub(pair.seen) as f32 / 1e3;
            pair.is_silent = silent > SILENT_SECONDS && silent * pair.demand > SILENT_INTERVALS;
        }
    }

    /// Gives those flows a rate that have come into sight since the last look: by the water level of last time.
    pub(super) fn welcome(&mut self, down: Down, fairness: Fairness) {
        if fairness.levels_first || !self.is_short {
            return;
        }
        let floor = 1.0 / fairness.floor.as_secs_f32();
        for pair in self.pairs[self.known as usize..].iter_mut().filter(|pair| pair.is_new()) {
            pair.rate = (self.water_level * pair.weight / had(pair.len, down)).max(floor);
        }
    }

    fn mean_weight(&self) -> f32 {
        let sum: f32 = self.pairs.iter().map(|pair| pair.weight).sum();
        sum / self.pairs.len().max(1) as f32
    }

    /// What some flows would take if all went that they send, in seconds a second.
    fn wanted(&self, down: Down, is_in: impl Fn(u8) -> bool) -> f32 {
        let all = self.pairs.iter().filter(|pair| is_in(pair.level) && !pair.is_silent);
        let of_pairs: f32 = all.map(|pair| pair.demand * seconds(pair.len, down)).sum();
        let creditless = self.creditless.as_ref();
        of_pairs + creditless.map_or(0.0, |flows| flows.taken(f32::INFINITY, &is_in).2)
    }

    /// What some flows take if each gets no more than the floor, in seconds a second.
    fn at_floor(&self, floor: f32, down: Down, is_in: impl Fn(u8) -> bool) -> f32 {
        let all = self.pairs.iter().filter(|pair| is_in(pair.level) && !pair.is_silent);
        let of_pairs: f32 = all.map(|pair| pair.demand.min(floor) * seconds(pair.len, down)).sum();
        let creditless = self.creditless.as_ref();
        of_pairs + creditless.map_or(0.0, |flows| flows.taken(0.0, &is_in).0)
    }

    /// Shares out a part of the budget among some flows: each gets its weight times the water level, at least
    /// the floor and at most what it sends. Returns what they take. A flow that gets a little more than it sends is
    /// not free: it saves up credit for when it gets a little less, as the level is never quite still.
    fn share_out(&mut self, left: f32, floor: f32, down: Down, is_in: impl Fn(u8) -> bool) -> f32 {
        let cost = |pair: &Pair| seconds(pair.len, down);
        let all = || self.pairs.iter().filter(|pair| is_in(pair.level) && !pair.is_silent);
        let creditless = |water_level: f32| {
            let flows = self.creditless.as_ref();
            flows.map_or((0.0, 0.0, 0.0), |flows| flows.taken(water_level, &is_in))
        };
        // What they take at a water level, and how fast that grows with it. It grows with the flows that are
        // between the floor and what they send; the others take the same a little higher.
        let taken_at = |level: f32| {
            let (taken, slope, _) = creditless(level);
            all().fold((taken, slope), |(taken, slope), pair| {
                let (cost, weight) = (cost(pair), pair.weight / had(pair.len, down));
                let (share, demand) = (level * weight, pair.demand);
                let is_between = share >= floor && share < demand;
                let more = if is_between { weight * cost } else { 0.0 };
                (taken + demand.min(share.max(floor)) * cost, slope + more)
            })
        };
        let level = if left <= 0.0 {
            0.0
        } else if self.wanted(down, &is_in) > left {
            find_water_level(self.water_level, left, taken_at)
        } else {
            f32::INFINITY
        };
        self.is_short = level.is_finite();
        if self.is_short {
            self.water_level = level;
        }
        let (mut taken, ..) = creditless(level);
        for pair in self.pairs.iter_mut().filter(|pair| is_in(pair.level)) {
            let share = (level * pair.weight / had(pair.len, down)).max(floor);
            pair.rate = if share >= FREE_ABOVE * pair.demand { f32::INFINITY } else { share };
            if !pair.is_silent {
                taken += share.min(pair.demand) * cost(pair);
            }
        }
        taken
    }
}

impl Pair {
    /// Whether it bears a part of what is missing: it is neither at the floor nor gets all that it sends.
    fn bears(&self, floor: f32) -> bool {
        !self.is_silent && self.rate < self.demand && self.rate > floor
    }

    /// What it bears, if that is to be so many updates a second.
    fn part_of(&self, each: f32) -> f32 {
        each.min(BEARS * self.rate)
    }
}

/// What an update of so many bytes costs, in seconds of the budget.
pub(super) fn seconds(len: u16, down: Down) -> f32 {
    down.cost(len.into(), 1) as f32 / 1e9
}

/// What a flow has of the share of an update: a budget of bits is shared in bytes, and a rate is in updates, so
/// long updates come less often.
pub(super) fn had(len: u16, down: Down) -> f32 {
    if down.bits > 0 { f32::from(len) } else { 1.0 }
}

/// The water level at which `left` is taken, looked for from the one of last time on: Newton's method, kept within
/// what is known to be too low and too high.
fn find_water_level(guess: f32, left: f32, taken_at: impl Fn(f32) -> (f32, f32)) -> f32 {
    let (mut low, mut high) = (0.0, f32::INFINITY);
    let mut level = if guess > 0.0 { guess } else { 1.0 };
    for _ in 0..MOST_STEPS {
        let (taken, slope) = taken_at(level);
        if (taken - left).abs() <= left * EXACT {
            break;
        }
        *(if taken < left { &mut low } else { &mut high }) = level;
        // What is taken grows with the level in straight pieces, so Newton's method is exact within a piece. Where
        // it leaves the bounds, or no flow grows, the search goes on by factors, for levels span decades.
        let newton = level + (left - taken) / slope;
        level = if newton > low && newton < high {
            newton
        } else if high.is_infinite() {
            level * 16.0
        } else if low > 0.0 {
            (low * high).sqrt()
        } else {
            level / 16.0
        };
        if level < f32::MIN_POSITIVE || high / low < 1.0 + EXACT {
            break;
        }
    }
    level
}
