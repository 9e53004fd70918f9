//! What waits for one limited receiver, and what of it goes next.
//!
//! The newest update of each flow waits. Ten times a second the row works out the rates of weighted max-min
//! fairness with demands (Meru §4.3): a flow that sends less than its share is *free*, and what it leaves goes
//! to the others; nobody gets less than the *floor*. A flow that is not free collects credit at its rate, and
//! an update goes for each that it has. So updates of a flow are evenly spaced.
//! Updates that are important, or for one endpoint's eyes, go before all others, in the order in which they came.

use super::allowance::{Allowance, Down, spare};
use super::flows::FLOW_LIFETIME;
use crate::index::{FlowId, LogNumber, NOTHING, fold};
use canopy_wire::Time;
use core::time::Duration;
use hashbrown::HashTable;
use std::collections::VecDeque;

/// The most important updates that wait for a receiver.
const MAX_URGENT: usize = 1024;
/// How often it is looked for what is due.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often rates are worked out.
const SOLVE_EVERY: Duration = Duration::from_millis(100);
/// Within so long, and so many updates of its publisher, one that was overtaken on its way may still come.
const OVERTAKEN_WITHIN: u32 = 250;
const OVERTAKEN_BY: u16 = 512;
/// What a flow sends is averaged over this time.
const SMOOTH: f32 = 2.0;
/// Which part of a budget that was not used, or was promised and not there, is made up for at a time.
const CORRECT: f32 = 0.5;
/// How many more of the flows that are due are put in order than will probably go.
const SPARE_CHOICES: usize = 4;

/// How rows are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// Whatever one is subscribed to, one gets an update of it this often, if there is one.
    pub floor: Duration,
    /// Whether updates of higher levels go only where none of a lower level waits.
    pub levels_first: bool,
}

impl Default for Fairness {
    fn default() -> Fairness {
        Fairness { floor: Duration::from_secs(2), levels_first: false }
    }
}

/// An update that a row is told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    pub(crate) flow: FlowId,
    /// What the flow's weight is for this receiver.
    pub(crate) weight: f32,
    pub(crate) level: u8,
    /// Bytes that it takes in a datagram.
    pub(crate) len: u16,
    pub(crate) update: LogNumber,
    /// Grows from update to update of a flow, in the order in which they came.
    pub(crate) order: u64,
    /// Counts its publisher's updates; wraps.
    pub(crate) series: u16,
}

#[derive(Clone)]
struct Pair {
    flow: FlowId,
    weight: f32,
    waiting: LogNumber,
    /// The newest that the row was told of, and its series.
    newest: u64,
    series: u16,
    /// Updates a second that come and could go, and how many came since that was worked out.
    demand: f32,
    came: u16,
    len: u16,
    level: u8,
    /// Whether an update has come since it was last looked for what is due: of several only one can go.
    is_fresh: bool,
    /// Updates a second that may go; infinite if the flow is free.
    rate: f32,
    /// Updates that may go.
    credit: f32,
    /// Milliseconds of the relay's time.
    seen: u32,
    since: u32,
    sent: u32,
}

/// The flows that one receiver, or several of one mind, are sent.
#[derive(Clone, Default)]
pub(crate) struct Row {
    pairs: Vec<Pair>,
    by_flow: HashTable<u32>,
    urgent: VecDeque<(LogNumber, u16)>,
    /// The place behind that of the pair that was found last.
    next: u32,
    /// How many pairs wait.
    waiting: u32,
    served: Time,
    solved: Time,
    /// What urgent updates took since rates were worked out, in nanoseconds, and the part of the time that
    /// they take.
    urgent_cost: i64,
    urgent_share: f32,
    /// Whether anything has come since it was last looked for what is due.
    has_news: bool,
    /// What was due and did not go last, in nanoseconds.
    left_due: i64,
    /// What was promised and not sent since rates were worked out, in nanoseconds: credit that flows could not
    /// save up while they waited, and what was replaced of flows that are free.
    broken: i64,
    /// Bytes of the latter.
    replaced_free: u64,
    /// What of the budget was not used, in seconds, since rates were worked out.
    lost: f32,
    /// The water level of last time: bytes a second for a weight of 1.
    water_level: f32,
    /// What updates really cost, headers and seals of datagrams included, beside what was thought.
    dearness: f32,
    /// By how much more than the budget is shared out, so that all of it is used.
    excess: f32,
    order: Vec<(u64, u32)>,
}

/// What became of an update that a row was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It waits.
    Waits,
    /// It waits in place of this older one of its flow.
    Replaces(LogNumber),
    /// The row was told of it before, and it waits.
    Known,
    /// The row was told of a newer one before.
    Outdated,
    /// A newer one overtook it on its way here: it goes nowhere.
    Overtaken,
    /// There was no room for another flow, or for another important update.
    NoRoom,
}

impl Row {
    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting > 0 || !self.urgent.is_empty()
    }

    /// How many flows it knows.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// What updates really cost, as a multiple of what they are thought to.
    pub(crate) fn real_cost(&self) -> f32 {
        1.0 + self.dearness
    }

    /// All that waits, but for what is important: the flow, the update, and the bytes that it takes.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (FlowId, LogNumber, u16)> + '_ {
        let all = self.pairs.iter().map(|pair| (pair.flow, pair.waiting, pair.len));
        all.filter(|(_, update, _)| *update != NOTHING)
    }

    /// How many updates wait.
    pub(crate) fn count_waiting(&self) -> usize {
        self.waiting as usize + self.urgent.len()
    }

    /// Whether anything important waits.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Leaves out what is wanted no more; calls `left_out` for each.
    pub(crate) fn retain(
        &mut self,
        is_wanted: impl Fn(LogNumber) -> bool,
        mut left_out: impl FnMut(LogNumber),
    ) {
        self.urgent.retain(|(update, _)| {
            let is_wanted = is_wanted(*update);
            if !is_wanted {
                left_out(*update);
            }
            is_wanted
        });
        for pair in &mut self.pairs {
            if pair.waiting != NOTHING && !is_wanted(pair.waiting) {
                left_out(core::mem::replace(&mut pair.waiting, NOTHING));
                self.waiting -= 1;
            }
        }
    }

    /// An important update waits from now on. Those of a flush have numbers from `first` on.
    pub(crate) fn note_urgent(&mut self, update: LogNumber, len: u16, first: LogNumber) -> Noted {
        let of_flush = self.urgent.iter().rev().take_while(|(number, _)| *number >= first);
        if of_flush.into_iter().any(|(number, _)| *number == update) {
            return Noted::Known;
        }
        if self.urgent.len() == MAX_URGENT {
            return Noted::NoRoom;
        }
        self.urgent.push_back((update, len));
        Noted::Waits
    }

    /// An update waits from now on, in place of an older one of its flow. `has_room` says whether there
    /// may be another flow.
    pub(crate) fn note(&mut self, now: Time, news: &News, has_room: bool) -> Noted {
        let seen = millis(now);
        let Some(place) = self.find(news.flow) else {
            return if has_room { self.open(seen, news) } else { Noted::NoRoom };
        };
        self.next = place + 1;
        let pair = &mut self.pairs[place as usize];
        if news.order <= pair.newest {
            let waits = pair.waiting == news.update;
            return if waits { Noted::Known } else { Noted::Outdated };
        }
        // A publisher that starts anew counts from elsewhere. So only a small step back, and only shortly after
        // the newer one, is an update that the network has overtaken.
        let ahead = pair.series.wrapping_sub(news.series);
        if (1..OVERTAKEN_BY).contains(&ahead) && seen.wrapping_sub(pair.seen) < OVERTAKEN_WITHIN {
            return Noted::Overtaken;
        }
        (pair.newest, pair.series) = (news.order, news.series);
        (pair.seen, pair.len, pair.level, pair.weight) = (seen, news.len, news.level, news.weight);
        let was_fresh = core::mem::replace(&mut pair.is_fresh, true);
        pair.came = pair.came.saturating_add(u16::from(!was_fresh));
        self.has_news = true;
        let before = core::mem::replace(&mut pair.waiting, news.update);
        // A free flow is promised all that it sends. What is replaced before it could go breaks that promise.
        if before != NOTHING && !was_fresh && pair.rate == f32::INFINITY {
            self.replaced_free += u64::from(pair.len);
        }
        self.waiting += u32::from(before == NOTHING);
        if before == NOTHING { Noted::Waits } else { Noted::Replaces(before) }
    }

    /// The place of a flow's pair: often the one behind that of the last, for publishers go on in turn.
    #[inline]
    fn find(&self, flow: FlowId) -> Option<u32> {
        if self.pairs.get(self.next as usize).is_some_and(|pair| pair.flow == flow) {
            return Some(self.next);
        }
        let same = |place: &u32| self.pairs[*place as usize].flow == flow;
        self.by_flow.find(flow_hash(flow), same).copied()
    }

    fn open(&mut self, seen: u32, news: &News) -> Noted {
        let place = self.pairs.len() as u32;
        self.pairs.push(Pair {
            flow: news.flow,
            weight: news.weight,
            waiting: news.update,
            newest: news.order,
            series: news.series,
            demand: 0.0,
            came: 1,
            len: news.len,
            level: news.level,
            is_fresh: true,
            // Who comes into sight is seen at once; the next time rates are worked out, the flow gets its own.
            rate: f32::INFINITY,
            credit: 1.0,
            seen,
            since: seen,
            sent: seen,
        });
        let pairs = &self.pairs;
        let hash = |place: &u32| flow_hash(pairs[*place as usize].flow);
        self.by_flow.insert_unique(flow_hash(news.flow), place, hash);
        self.has_news = true;
        self.waiting += 1;
        Noted::Waits
    }

    /// Takes what goes next, for which there is an allowance, into `chosen`. Returns how much of the
    /// allowance that is thought to take.
    pub(crate) fn serve(
        &mut self,
        now: Time,
        (down, fairness): (Down, Fairness),
        allowance: &mut Allowance,
        chosen: &mut Vec<LogNumber>,
    ) -> i64 {
        let before = allowance.left();
        while allowance.left() > 0
            && let Some((update, len)) = self.urgent.pop_front()
        {
            allowance.spend(down.cost(len.into(), 1));
            chosen.push(update);
        }
        self.urgent_cost += before - allowance.left();
        if self.is_worth_a_look(now, down, allowance) {
            if now.since(self.solved) >= SOLVE_EVERY {
                self.solve(now, (down, fairness));
            }
            self.serve_flows(now, (down, fairness), allowance, chosen);
        }
        before - allowance.left()
    }

    /// What was sent cost so much, and not what was thought.
    pub(crate) fn learn_cost(&mut self, thought: i64, cost: i64) {
        if thought > 0 {
            let more = (cost as f32 / thought as f32 - 1.0).clamp(-0.5, 3.0);
            self.dearness += (more - self.dearness) / 16.0;
        }
    }

    /// Whether to look for what is due: when something has come, now and then without, and in between where
    /// a whole datagram is due, and allowed.
    fn is_worth_a_look(&self, now: Time, down: Down, allowance: &Allowance) -> bool {
        let datagram = spare(down);
        self.waiting > 0
            && (self.has_news
                || now.since(self.served) >= LOOK_EVERY
                || self.left_due >= datagram && allowance.left() >= datagram)
    }

    fn serve_flows(
        &mut self,
        now: Time,
        (down, fairness): (Down, Fairness),
        allowance: &mut Allowance,
        chosen: &mut Vec<LogNumber>,
    ) {
        let due = self.put_in_order(now, (down, fairness));
        let (mut next, mut sorted, mut gone) = (0, 0, 0);
        // What is thought to be enough is not to turn out too little.
        let may = (allowance.left() as f32 / (1.0 + self.dearness.max(0.0))) as i64;
        while gone < may && next < self.order.len() {
            if next == sorted {
                // Thousands of flows may be due, and a few go: only those are put in order, as many as there is
                // an allowance for, more or less.
                let each = (due / self.order.len() as i64).max(1);
                let more = ((may - gone) / each) as usize + SPARE_CHOICES;
                sorted = (next + more).min(self.order.len());
                if sorted < self.order.len() {
                    self.order[next..].select_nth_unstable(sorted - next - 1);
                }
                self.order[next..sorted].sort_unstable();
            }
            let (_, place) = self.order[next];
            next += 1;
            let pair = &mut self.pairs[place as usize];
            let cost = down.cost(pair.len.into(), 1);
            // An update that costs more than can ever be saved up goes when a datagram's worth is there.
            let is_last_resort = gone == 0 && allowance.left() >= spare(down);
            if gone + cost > may && !is_last_resort {
                break;
            }
            gone += cost;
            chosen.push(core::mem::replace(&mut pair.waiting, NOTHING));
            self.waiting -= 1;
            pair.credit -= 1.0;
            pair.sent = millis(now);
        }
        allowance.spend(gone);
        self.left_due = due - gone;
        self.has_news = false;
        self.lost += allowance.take_lost() as f32 / 1e9;
    }

    /// Gives every pair the credit of the time that has passed, lists those that are due with their keys, of
    /// which the lowest goes first, and forgets the flows that have ended. Returns what all that is due costs.
    fn put_in_order(&mut self, now: Time, (down, fairness): (Down, Fairness)) -> i64 {
        self.order.clear();
        let passed = now.since(core::mem::replace(&mut self.served, now)).as_secs_f32().min(1.0);
        let (at, floor) = (millis(now), fairness.floor.as_millis() as u32);
        let (mut place, mut due) = (0, 0);
        while let Some(pair) = self.pairs.get_mut(place as usize) {
            pair.is_fresh = false;
            let is_free = pair.rate == f32::INFINITY;
            // More than one update's credit is saved up only to even out the times at which updates come and
            // go: that of two looks, and that of one interval between the flow's own updates.
            let most =
                if is_free { 1.0 } else { 1.0 + pair.rate * (2.0 * passed + 1.0 / pair.demand) };
            let credit = pair.credit + pair.rate * passed;
            pair.credit = credit.min(most);
            if pair.waiting == NOTHING {
                if at.wrapping_sub(pair.seen) > FLOW_LIFETIME.as_millis() as u32 {
                    self.close(place);
                } else {
                    place += 1;
                }
                continue;
            }
            if !is_free && credit > most {
                let cost = down.cost(pair.len.into(), 1) as f32;
                self.broken += ((credit - most) * cost) as i64;
            }
            if pair.credit >= 1.0 {
                let level = if fairness.levels_first { pair.level } else { 0 };
                // Positive numbers are in the order of their bits: of those past the floor who has waited
                // longest, the heaviest of those that are free, or who has waited for the most of its own
                // intervals. Whoever gets nearly all that it sends cannot make up later for what it misses,
                // so it is a little ahead.
                let silent = at.wrapping_sub(pair.sent);
                let is_late = silent > floor;
                let last = match (is_late, is_free) {
                    (true, _) => silent as f32,
                    (_, true) => pair.weight,
                    (_, false) => silent as f32 / 1e3 * pair.rate + pair.rate / pair.demand,
                };
                let turn = if is_late { 0 } else { 1 + u64::from(!is_free) };
                // The lowest key goes first: by turn, then by level, then by `last`, whose bits are inverted
                // because the greatest of those goes first.
                let key = turn << 48 | u64::from(level) << 40;
                self.order.push((key | u64::from(!last.to_bits()), place));
                due += down.cost(pair.len.into(), 1);
            }
            place += 1;
        }
        due
    }

    /// Works out the rates.
    fn solve(&mut self, now: Time, (down, fairness): (Down, Fairness)) {
        let passed = now.since(core::mem::replace(&mut self.solved, now)).as_secs_f32().min(1.0);
        self.measure(now, passed, down);
        // What is left of the budget by what comes first, in seconds a second: 1 is all of the budget. Costs are
        // those that updates are thought to have, so what they really cost beside that makes the budget smaller.
        let mut left = (1.0 + self.excess) / (1.0 + self.dearness) - self.urgent_share;
        let floor = 1.0 / fairness.floor.as_secs_f32();
        let most_level = self.pairs.iter().map(|pair| pair.level).max().unwrap_or(0);
        let levels = if fairness.levels_first { most_level } else { 0 };
        for level in 0..=levels {
            let is_in = |pair: &Pair| !fairness.levels_first || pair.level == level;
            left -= self.share_out(left.max(0.0), floor, down, is_in);
        }
    }

    /// Takes note of what the flows sent, what urgent updates took, and what was due and did not go.
    fn measure(&mut self, now: Time, passed: f32, down: Down) {
        let share = (passed / SMOOTH).min(1.0);
        let urgent = core::mem::take(&mut self.urgent_cost) as f32 / 1e9 / passed;
        self.urgent_share += (urgent - self.urgent_share) * share;
        let lost = core::mem::take(&mut self.lost);
        let replaced = down.cost(core::mem::take(&mut self.replaced_free), 0);
        let broken = (core::mem::take(&mut self.broken) + replaced) as f32 / 1e9;
        // Unused budget means that too little was shared out, and broken promises that it was too much. The
        // bounds keep a pause in which nobody sends from promising far more than there is afterwards.
        self.excess += (lost - broken) * CORRECT;
        self.excess = self.excess.clamp(-0.3, 0.1);
        let at = millis(now);
        for pair in &mut self.pairs {
            let age = at.wrapping_sub(pair.since) as f32 / 1e3;
            let rate = f32::from(core::mem::take(&mut pair.came)) / passed;
            // A new flow has no past to smooth with: its demand is the plain mean since it came.
            let share = share.max((passed / age.max(passed)).min(1.0));
            pair.demand += (rate - pair.demand) * share;
        }
    }

    /// Shares out a part of the budget among some flows: each gets its weight times the water level, at least
    /// the floor and at most what it sends. Returns what they take.
    fn share_out(
        &mut self,
        left: f32,
        floor: f32,
        down: Down,
        is_in: impl Fn(&Pair) -> bool,
    ) -> f32 {
        let cost = |pair: &Pair| down.cost(pair.len.into(), 1) as f32 / 1e9;
        // A budget of bits is shared in bytes, and a rate is in updates: long updates come less often.
        let had = |pair: &Pair| if down.bits > 0 { f32::from(pair.len) } else { 1.0 };
        let all = || self.pairs.iter().filter(|pair| is_in(pair));
        // What they take at a water level, and how fast that grows with it. It grows with the flows that are
        // between the floor and what they send; the others take the same a little higher.
        let taken_at = |level: f32| {
            all().fold((0.0, 0.0), |(taken, slope), pair| {
                let (cost, weight) = (cost(pair), pair.weight / had(pair));
                let (share, demand) = (level * weight, pair.demand);
                let is_between = share >= floor && share < demand;
                let more = if is_between { weight * cost } else { 0.0 };
                (taken + demand.min(share.max(floor)) * cost, slope + more)
            })
        };
        let wanted: f32 = all().map(|pair| pair.demand * cost(pair)).sum();
        let level = if wanted > left {
            find_water_level(self.water_level, left, taken_at)
        } else {
            f32::INFINITY
        };
        self.water_level = if level.is_finite() { level } else { self.water_level };
        let mut taken = 0.0;
        for pair in self.pairs.iter_mut().filter(|pair| is_in(pair)) {
            let share = (level * pair.weight / had(pair)).max(floor);
            pair.rate = if share >= pair.demand { f32::INFINITY } else { share };
            taken += share.min(pair.demand) * cost(pair);
        }
        taken
    }

    fn close(&mut self, place: u32) {
        let hash = |place: u32, pairs: &[Pair]| flow_hash(pairs[place as usize].flow);
        let found = self.by_flow.find_entry(hash(place, &self.pairs), |found| *found == place);
        if let Ok(found) = found {
            found.remove();
        }
        let last = self.pairs.len() as u32 - 1;
        if place != last
            && let Some(moved) =
                self.by_flow.find_mut(hash(last, &self.pairs), |found| *found == last)
        {
            *moved = place;
        }
        self.pairs.swap_remove(place as usize);
    }

    /// Takes all that waits into `chosen`: the receiver is limited no more.
    pub(crate) fn empty(&mut self, chosen: &mut Vec<LogNumber>) {
        chosen.extend(self.urgent.drain(..).map(|(update, _)| update));
        let waiting = self.pairs.iter().map(|pair| pair.waiting);
        chosen.extend(waiting.filter(|update| *update != NOTHING));
        self.waiting = 0;
        self.pairs.clear();
        self.by_flow.clear();
    }
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

/// How many steps the search for the water level may take; a few are enough nearly always.
const MOST_STEPS: usize = 40;
/// How exact the water level is to be.
const EXACT: f32 = 1e-4;

fn millis(now: Time) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

fn flow_hash(flow: FlowId) -> u64 {
    fold(flow.into())
}

#[cfg(test)]
mod tests {
    use super::super::allowance::WINDOW;
    use super::*;

    const LEN: u16 = 100;
    const TICK: Duration = Duration::from_millis(50);

    /// One of the flows of a test.
    #[derive(Clone, Copy, Debug)]
    struct Sends {
        weight: f32,
        /// Updates a second.
        hz: f64,
        /// When the first comes, as a part of the time between two.
        phase: f64,
    }

    /// The slow and obvious way: rates of weighted max-min fairness with demands and a floor, updates a second.
    fn fair(flows: &[Sends], floor: f64, most: f64) -> Vec<f64> {
        let rates = |level: f64| -> Vec<f64> {
            let rate = |flow: &Sends| flow.hz.min(floor.max(level * f64::from(flow.weight)));
            flows.iter().map(rate).collect()
        };
        let (mut low, mut high) = (0.0, 1e9);
        for _ in 0..200 {
            let level = (low + high) / 2.0;
            let fits = rates(level).iter().sum::<f64>() <= most;
            *(if fits { &mut low } else { &mut high }) = level;
        }
        rates(low)
    }

    /// What a row sends of some flows in some seconds: for each flow, when. `jitter` moves updates by a
    /// part of the time between two.
    fn sent(flows: &[Sends], down: Down, seconds: f64, every: Duration) -> Vec<Vec<f64>> {
        let (mut row, mut allowance) = (Row::default(), Allowance::default());
        let mut arrivals: Vec<(u64, usize)> = Vec::new();
        for (number, flow) in flows.iter().enumerate() {
            let count = (seconds * flow.hz) as u64;
            let at = |update: u64| ((update as f64 + flow.phase) / flow.hz * 1e9) as u64;
            arrivals.extend((0..count).map(|update| (at(update), number)));
        }
        arrivals.sort_unstable();
        let mut times = vec![Vec::new(); flows.len()];
        let (mut next, mut chosen) = (0, Vec::new());
        let ticks = (seconds / every.as_secs_f64()) as u32;
        for tick in 1..=ticks {
            let now = Time::from_nanos((every * tick).as_nanos() as u64);
            while let Some((at, flow)) = arrivals.get(next).filter(|one| one.0 <= now.as_nanos()) {
                let (weight, update) = (flows[*flow].weight, next as u64);
                let order = update + 1;
                let news = News {
                    flow: *flow as u32,
                    weight,
                    level: 0,
                    len: LEN,
                    update,
                    order,
                    series: order as u16,
                };
                row.note(Time::from_nanos(*at), &news, true);
                next += 1;
            }
            allowance.advance(now, every, spare(down), WINDOW);
            chosen.clear();
            row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
            for update in &chosen {
                times[arrivals[*update as usize].1].push(now.as_nanos() as f64 / 1e9);
            }
        }
        times
    }

    /// The greatest difference of what came of a flow in ten seconds, after the first five.
    fn worst(flows: &[Sends], down: Down, every: Duration) -> (f64, f64) {
        let times = sent(flows, down, 25.0, every);
        let most = down.bits as f64 / (8.0 * f64::from(LEN));
        let fair = fair(flows, 0.5, most);
        let (mut worst, mut gap) = (0.0_f64, 0.0_f64);
        for ((times, fair), flow) in times.iter().zip(&fair).zip(flows) {
            for start in 5..=15 {
                let start = f64::from(start);
                let count = times.iter().filter(|at| (start..start + 10.0).contains(*at)).count();
                let off = (count as f64 - 10.0 * fair).abs();
                worst = worst.max(off);
            }
            let gaps = times.windows(2).filter(|two| two[0] > 5.0).map(|two| two[1] - two[0]);
            gap = gap.max(gaps.map(|gap| gap - 1.1 / fair - 1.0 / flow.hz).fold(0.0, f64::max));
        }
        (worst, gap)
    }

    fn crowd(count: usize, hz: f64) -> Vec<Sends> {
        let weight = |number: usize| 1.0 / (1.0 + number as f32).powi(2);
        (0..count).map(|number| Sends { weight: weight(number), hz, phase: 0.5 }).collect()
    }

    #[test]
    fn what_was_overtaken_on_its_way_does_not_take_the_place_of_newer_state() {
        let mut row = Row::default();
        let mut order = 0;
        let mut note = |millis: u64, series: u16| {
            order += 1;
            let (flow, weight, update) = (1, 1.0, LogNumber::from(series));
            let news = News { flow, weight, level: 0, len: LEN, update, order, series };
            row.note(Time::from_millis(millis), &news, true)
        };
        assert_eq!(note(100, 3), Noted::Waits);
        assert_eq!(note(110, u16::MAX), Noted::Overtaken, "numbers wrap");
        assert_eq!(note(110, 4), Noted::Replaces(3));
        assert_eq!(note(359, 3), Noted::Overtaken);
        assert_eq!(note(360, 3), Noted::Replaces(4), "by then it is a publisher that began anew");
        assert_eq!(note(361, 40_000), Noted::Replaces(3), "and so is this");
    }

    /// What updates cost was learned from short ones. A long one that is then thought to be more than can be
    /// saved up goes all the same.
    #[test]
    fn what_is_thought_to_be_too_dear_goes_once_a_datagram_is_saved_up() {
        let down = Down { bits: 16_000, updates: 0 };
        let (mut row, mut allowance) = (Row::default(), Allowance::default());
        row.learn_cost(1, 4);
        (0..99).for_each(|_| row.learn_cost(1, 4));
        let now = Time::from_millis(10_000);
        let news =
            News { flow: 1, weight: 1.0, level: 0, len: 1_000, update: 7, order: 1, series: 1 };
        row.note(now, &news, true);
        allowance.advance(now, TICK, spare(down), WINDOW);
        let mut chosen = Vec::new();
        row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
        assert_eq!(chosen, [7]);
    }

    #[test]
    fn what_urgent_updates_take_is_not_shared_out() {
        let down = Down { bits: 16_000, updates: 0 };
        let (mut row, mut allowance) = (Row::default(), Allowance::default());
        let mut chosen = Vec::new();
        // One of each a tick: the urgent one is what the budget bears in all.
        for number in 1..=100 {
            let now = Time::ZERO + TICK * number as u32;
            row.note_urgent(number, LEN, number);
            let (flow, weight, series) = (1, 1.0, number as u16);
            let (update, order) = (100 + number, number);
            let news = News { flow, weight, level: 0, len: LEN, update, order, series };
            row.note(now, &news, true);
            allowance.advance(now, TICK, spare(down), WINDOW);
            row.serve(now, (down, Fairness::default()), &mut allowance, &mut chosen);
        }
        assert!((0.9..=1.0).contains(&row.urgent_share), "{}", row.urgent_share);
    }

    /// All come together, which is the hardest. `tests/relay/thinning.rs` has more, with a whole relay.
    #[test]
    fn a_crowd_in_step_shares_a_budget_by_weight() {
        for (share, most) in [(0.05, 8.0), (0.25, 8.5)] {
            let flows = crowd(60, 16.0);
            let bits = (60.0 * 16.0 * 8.0 * f64::from(LEN) * share) as u64;
            let every = TICK / 2;
            let (off, late) = worst(&flows, Down { bits, updates: 0 }, every);
            assert!(off <= most && late <= 0.5, "{share}: {off} updates, {late} s");
        }
    }
}
