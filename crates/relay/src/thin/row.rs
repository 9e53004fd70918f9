//! What waits for one limited receiver, and what of it goes next.
//!
//! The newest update of each flow waits, and the one before it if both are due, or a few where there is room to spare.
//! Ten times a second the row works out the rates of weighted max-min fairness with demands (Meru §4.3, [`rates`]): a
//! flow that sends less than its share is *free*, and what it leaves goes to the others; nobody gets less than the
//! *floor*. A flow that is not free collects credit at its rate, and an update goes for each that it has. So updates of
//! a flow are evenly spaced. What is due and finds no room waits, and its flow is owed it still: rates follow that
//! backlog.
//! A flow for which the table of pairs has no room sends without a credit ([`creditless`]).
//! Updates that are important, or for one endpoint's eyes, go before all others, in the order in which they came.

mod creditless;
mod pair;
mod rates;
#[cfg(test)]
mod tests;
mod urgent;

use super::allowance::{Allowance, Down, spare};
use super::flows::{FLOW_LIFETIME, Pace};
use crate::index::{FlowId, LogNumber, NOTHING, fold};
use canopy_wire::Time;
use core::time::Duration;
use creditless::Creditless;
use hashbrown::HashTable;
use pair::Pair;
use urgent::Urgent;

/// How often it is looked for what is due.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often rates are worked out.
const SOLVE_EVERY: Duration = Duration::from_millis(100);
/// Within so long, and so many updates of its publisher, one that was overtaken on its way may still come.
const OVERTAKEN_WITHIN: u32 = 250;
const OVERTAKEN_BY: u16 = 512;
/// The first credit of a flow that comes alone. Who leaves is sent its last update in any case, which is more than
/// its share. So that it is off by less in all, it begins a little behind, by no more than a gap may be too long.
const FIRST_CREDIT: f32 = -0.1;
/// A row is flooded when so much waits on average, seconds of its budget.
const FLOODED: f32 = 0.1;
/// There is room to spare only where less waits on average, seconds of the budget.
const ROOMY: f32 = 0.02;
/// Flows that get all they send wait by turns while no more than this was left due, as time of the budget. More is
/// left where a shortage lasts that is not seen yet, and that is for the light ones to bear.
const BY_TURNS: Duration = Duration::from_millis(10);
/// How fast the backlog's mean follows, from one time when something comes to the next.
const SMOOTH_BACKLOG: f32 = 0.25;
/// What a heavy flow is ahead of all others by, in what they have missed.
const HEAVY: u8 = 1 << 7;
/// The golden ratio, as a part of all numbers: its multiples are spread evenly.
const GOLDEN: u32 = 0x9e37_79b9;
/// How many more of the flows that are due are put in order than will probably go.
const SPARE_CHOICES: usize = 4;

/// How rows are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// Whatever one is subscribed to, one gets an update of it this often, if there is one.
    pub floor: Duration,
    /// Whether beyond the floor updates of higher levels go only where none of a lower level waits.
    pub levels_first: bool,
}

impl Default for Fairness {
    fn default() -> Fairness {
        Fairness { floor: Duration::from_secs(2), levels_first: false }
    }
}

impl Fairness {
    fn floor_millis(self) -> u32 {
        self.floor.as_millis() as u32
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

/// The flows that one receiver, or several of one mind, are sent.
#[derive(Clone, Default)]
pub(crate) struct Row {
    pairs: Vec<Pair>,
    by_flow: HashTable<u32>,
    urgent: Urgent,
    /// Flows that have no pair, if there are any.
    creditless: Option<Box<Creditless>>,
    /// The place behind that of the pair that was found last.
    next: u32,
    /// How many updates wait.
    waiting: u32,
    served: Time,
    solved: Time,
    /// What urgent updates took since rates were worked out, in nanoseconds, and the part of the time that
    /// they take.
    urgent_cost: i64,
    urgent_share: f32,
    /// Whether anything has come since it was last looked for what is due.
    has_news: bool,
    /// The newest of all that came, and of all that had come at the last look.
    newest: LogNumber,
    looked_at: LogNumber,
    /// What was due and did not go last, in nanoseconds.
    left_due: i64,
    /// The mean of what of it was still there when more came, in seconds.
    backlog: f32,
    /// What of the budget was not used, in seconds, since rates were worked out; the part of the time that this was
    /// in the last second; and how much more is shared out for it.
    lost: f32,
    idle: f32,
    unused: f32,
    /// The water level of last time: bytes a second for a weight of 1; and whether there was one, as the flows
    /// sent more than the budget holds.
    water_level: f32,
    is_short: bool,
    /// The least weight of those that go before the others where all flows get all they send.
    heavy_from: f32,
    /// Whether the budget holds no more than what all flows send, or little more. Of flows that have just come into sight
    /// that is not known: a burst waits as if it held more.
    is_tight: bool,
    /// How many pairs were there at the last look: the others are new.
    known: u32,
    /// How many came in the last second or so.
    newcomers: f32,
    /// What updates really cost, headers and seals of datagrams included, beside what was thought.
    dearness: f32,
    /// By how much more than the budget is shared out, so that all of it is used and little waits.
    excess: f32,
    order: Vec<(u64, u32)>,
    /// What was left out for a newer one of its flow as that went, and was not told of yet.
    overdue: Vec<LogNumber>,
}

/// What became of an update that a row was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It waits.
    Waits,
    /// It waits in place of an older one of its flow, or of two.
    Replaces([LogNumber; 2]),
    /// The row was told of it before, and it waits.
    Known,
    /// The row was told of a newer one before.
    Outdated,
    /// A newer one overtook it on its way here: it goes nowhere.
    Overtaken,
    /// There was no room for another flow, or for another important update.
    NoRoom,
    /// Its flow sends without a credit, and it is not the turn of this one.
    NotItsTurn,
}

impl Row {
    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.count_waiting() > 0
    }

    /// How many flows it knows.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// What updates really cost, as a multiple of what they are thought to.
    pub(crate) fn real_cost(&self) -> f32 {
        1.0 + self.dearness
    }

    /// What may be thought to be spent of what is left: what is thought to be enough is not to turn out too little.
    pub(crate) fn within(&self, left: i64) -> i64 {
        (left as f32 / self.real_cost().max(1.0)) as i64
    }

    /// What else is to be left for what is thought to cost so much.
    pub(crate) fn margin(&self, cost: i64) -> i64 {
        (cost as f32 * (self.real_cost() - 1.0).max(0.0)) as i64
    }

    /// All that waits of its pairs: the flow, the update, and the bytes that it takes.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (FlowId, LogNumber, u16)> + '_ {
        self.pairs.iter().flat_map(|pair| {
            let (flow, len) = (pair.flow, pair.len);
            pair.all().map(move |update| (flow, update, len))
        })
    }

    /// How many updates wait.
    pub(crate) fn count_waiting(&self) -> usize {
        let creditless = self.creditless.as_ref().map_or(0, |creditless| creditless.queue().len());
        self.waiting as usize + self.urgent.len() + creditless
    }

    /// What waits of flows that have no pair.
    pub(crate) fn all_creditless(&self) -> impl Iterator<Item = LogNumber> + '_ {
        self.creditless.iter().flat_map(|creditless| creditless.queue())
    }

    /// Whether anything important waits.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Leaves out what is wanted no more; calls `left_out` for each, or `urgent_left_out`.
    pub(crate) fn retain(
        &mut self,
        is_wanted: impl Fn(LogNumber) -> bool,
        mut left_out: impl FnMut(LogNumber),
        urgent_left_out: impl FnMut(LogNumber),
    ) {
        self.urgent.retain(&is_wanted, urgent_left_out);
        if let Some(creditless) = &mut self.creditless {
            creditless.queue().filter(|update| !is_wanted(*update)).for_each(&mut left_out);
            creditless.retain(&is_wanted);
        }
        for pair in &mut self.pairs {
            self.waiting -= pair.retain(&is_wanted, &mut left_out);
        }
    }

    /// An important update waits from now on. Those of a flush have numbers from `first` on.
    pub(crate) fn note_urgent(
        &mut self,
        now: Time,
        (update, len): (LogNumber, u16),
        first: LogNumber,
    ) -> Noted {
        self.urgent.note(now, (update, len), first)
    }

    /// Takes out what is important and has waited for too long; calls `died` with each.
    pub(crate) fn expire_urgent(&mut self, now: Time, died: impl FnMut(LogNumber)) {
        self.urgent.expire(now, died);
    }

    /// How many important updates were chosen since this was last asked: they came first.
    pub(crate) fn take_urgent_chosen(&mut self) -> usize {
        self.urgent.take_chosen()
    }

    /// An update waits from now on, in place of older ones of its flow or beside the last of them. `has_room` says
    /// whether there may be another pair. A flow of which something is to go without a credit has none before that
    /// has gone: nothing newer is to go first.
    pub(crate) fn note(
        &mut self,
        now: Time,
        news: &News,
        has_room: impl FnOnce() -> bool,
    ) -> Noted {
        let (seen, is_roomy) = (millis(now), self.is_roomy());
        self.newest = self.newest.max(news.update);
        let Some(place) = self.find(news.flow) else {
            let may_open = has_room()
                && !self.creditless.as_ref().is_some_and(|creditless| creditless.has_of(news.flow));
            return if may_open { self.open(seen, news) } else { Noted::NoRoom };
        };
        self.next = place + 1;
        let pair = &mut self.pairs[place as usize];
        if news.order <= pair.newest {
            let waits = pair.all().any(|update| update == news.update);
            return if waits { Noted::Known } else { Noted::Outdated };
        }
        // A publisher that starts anew counts from elsewhere. So only a small step back, and only shortly after
        // the newer one, is an update that the network has overtaken.
        let ahead = pair.series.wrapping_sub(news.series);
        if (1..OVERTAKEN_BY).contains(&ahead) && seen.wrapping_sub(pair.seen) < OVERTAKEN_WITHIN {
            return Noted::Overtaken;
        }
        (pair.newest, pair.series) = (news.order, news.series);
        if news.weight != pair.weight {
            // An infinite rate stays so.
            pair.rate *= news.weight / pair.weight;
            pair.weight = news.weight;
        }
        (pair.seen, pair.level) = (seen, news.level);
        pair.is_silent = false;
        // As long as two wait, it is the longer one's.
        pair.len = if pair.waiting == NOTHING { news.len } else { news.len.max(pair.len) };
        pair.came += u16::from(pair.fresh < 2);
        pair.fresh = pair.fresh.saturating_add(1);
        self.has_news = true;
        let before = core::mem::replace(&mut pair.waiting, news.update);
        if before == NOTHING {
            self.waiting += 1;
            return Noted::Waits;
        }
        let credit = pair.credit + pair.rate * now.since(self.served).as_secs_f32().min(1.0);
        let may_keep = pair.may_keep(is_roomy, credit, before);
        let oldest = if may_keep > 0 { pair.earlier.push(before) } else { before };
        let mut left_out = [oldest, NOTHING];
        if pair.earlier.len() > may_keep {
            left_out[usize::from(oldest != NOTHING)] = pair.earlier.pop();
        }
        while pair.earlier.len() > may_keep {
            self.overdue.push(pair.earlier.pop());
            self.waiting -= 1;
        }
        if pair.earlier.is_empty() {
            pair.len = news.len;
        }
        let count = left_out.iter().filter(|update| **update != NOTHING).count() as u32;
        pair.miss(is_roomy, count as u8);
        self.waiting = self.waiting + 1 - count;
        if count > 0 { Noted::Replaces(left_out) } else { Noted::Waits }
    }

    /// An update of a flow for which there is no pair has come. Those of a flush have numbers from `first` on.
    #[cold]
    pub(crate) fn note_creditless(
        &mut self,
        now: Time,
        (news, pace): (&News, &Pace),
        (down, first): (Down, LogNumber),
    ) -> Noted {
        self.has_news = true;
        self.creditless_at(now).note(news, pace, (down, first))
    }

    /// Takes out one that is to go without a credit of the flow of a newer one, which waits too, but would go first.
    pub(crate) fn take_behind(&mut self, newer: &News) -> Option<LogNumber> {
        self.creditless.as_mut()?.take_behind(newer)
    }

    fn creditless_at(&mut self, now: Time) -> &mut Creditless {
        let water_level = if self.is_short { self.water_level } else { f32::INFINITY };
        self.creditless.get_or_insert_with(|| Box::new(Creditless::new(millis(now), water_level)))
    }

    /// A member comes from another row, where flows went at other times: of each that went there before it went here,
    /// the floor counts from then on.
    pub(crate) fn take_in(&mut self, now: Time, other: &Row) {
        let silent = |sent: u32| millis(now).wrapping_sub(sent);
        for Pair { flow, sent, .. } in &other.pairs {
            if let Some(place) = self.find(*flow) {
                self.next = place + 1;
                let pair = &mut self.pairs[place as usize];
                if silent(*sent) > silent(pair.sent) {
                    pair.sent = *sent;
                }
            }
        }
    }

    /// Keeps so many pairs: the flows of the others go on without. Calls `left_out` with what finds no room there.
    /// What has come in this flush has numbers from `first` on.
    pub(crate) fn keep_pairs(
        &mut self,
        (now, first, down): (Time, LogNumber, Down),
        count: usize,
        mut left_out: impl FnMut(LogNumber),
    ) {
        while self.pairs.len() > count
            && let Some(pair) = self.pairs.last().cloned()
        {
            let Pair { flow, newest, len, .. } = pair;
            self.close(self.pairs.len() as u32 - 1);
            for update in pair.all() {
                self.waiting -= 1;
                let creditless = self.creditless_at(now);
                // The row may be told of it once more in this flush.
                creditless.tell(update, first);
                let oldest = creditless.push((update, flow, newest, len), down);
                oldest.into_iter().filter(|update| *update != NOTHING).for_each(&mut left_out);
            }
        }
        self.known = self.known.min(count as u32);
        if let Some(creditless) = &mut self.creditless {
            creditless.sort();
        }
    }

    /// Whether any update without a credit was left out since this was last asked.
    pub(crate) fn take_left_out(&mut self) -> bool {
        self.creditless.as_mut().is_some_and(|creditless| creditless.take_left_out())
    }

    /// Appends what was left out for a newer one of its flow as that went, since this was last asked.
    pub(crate) fn take_overdue(&mut self, all: &mut Vec<LogNumber>) {
        all.append(&mut self.overdue);
    }

    /// Whether there is room to spare, so that what waits does so for a moment only.
    fn is_roomy(&self) -> bool {
        !self.is_tight && !self.is_short && self.backlog < ROOMY
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
        self.newcomers += 1.0;
        self.pairs.push(Pair::new(seen, news));
        let pairs = &self.pairs;
        let hash = |place: &u32| flow_hash(pairs[*place as usize].flow);
        self.by_flow.insert_unique(flow_hash(news.flow), place, hash);
        self.has_news = true;
        self.waiting += 1;
        Noted::Waits
    }

    /// Gives those flows their first credit that have come into sight since the last look: the more others have just
    /// come too, the more it is another part of an update for each, or all would be due at once again and again. If
    /// half of all have just come, it is as if all had.
    fn place_newcomers(&mut self) {
        let part = (2.0 * self.newcomers / self.pairs.len() as f32).min(1.0);
        for pair in &mut self.pairs[self.known as usize..] {
            pair.credit = part * phase_of(pair.flow) + (1.0 - part) * FIRST_CREDIT;
        }
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
        let most = self.within(allowance.may_of_window());
        self.urgent.serve((down, most), allowance, chosen);
        let of_urgent = before - allowance.left();
        self.urgent_cost += of_urgent;
        if self.is_worth_a_look(now, down, allowance) {
            if now.since(self.solved) >= SOLVE_EVERY {
                self.solve(now, (down, fairness));
            }
            // Nothing else goes while anything urgent waits.
            let left = allowance.left() - self.margin(of_urgent);
            let left = if self.urgent.is_empty() { left } else { left.min(0) };
            self.serve_both(now, (down, fairness), (allowance, left), chosen);
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
        (self.waiting > 0 || self.creditless.is_some())
            && (self.has_news
                || now.since(self.served) >= LOOK_EVERY
                || self.left_due >= datagram && allowance.left() >= datagram)
    }

    /// For what is `left`. What goes without a credit goes first, for its flows cannot make up for what they miss.
    /// Where pairs wait too, it has its part, and what these leave.
    fn serve_both(
        &mut self,
        now: Time,
        (down, fairness): (Down, Fairness),
        (allowance, left): (&mut Allowance, i64),
        chosen: &mut Vec<LogNumber>,
    ) {
        let (may, saved) = (self.within(left), left >= spare(down));
        let (mut gone, mut is_next) = (0, false);
        if let Some(creditless) = &mut self.creditless {
            let most = if self.waiting > 0 { creditless.part_of(may).min(may) } else { may };
            (gone, is_next) = creditless.serve(down, (most, may, saved), chosen);
        }
        // What has its turn and does not fit yet has it still once more is saved up.
        let left = if is_next { 0 } else { may - gone };
        let (of_pairs, mut waits) =
            self.serve_flows(now, (down, fairness), (left, saved && gone == 0 && !is_next), chosen);
        if let Some(creditless) = &mut self.creditless {
            let (most, resort) = (left - of_pairs, saved && gone + of_pairs == 0);
            let (more, _) = creditless.serve(down, (most, most, resort), chosen);
            gone += more;
            creditless.balance(down, (gone, of_pairs, waits));
            waits += creditless.due(down);
        }
        allowance.spend(gone + of_pairs);
        self.left_due = waits;
        self.has_news = false;
        self.lost += allowance.take_lost() as f32 / 1e9;
    }

    /// Takes what goes of the pairs into `chosen`, for `may` nanoseconds. An update that costs more than can ever be
    /// saved up may be a last resort. Returns what was taken, and what is due still.
    fn serve_flows(
        &mut self,
        now: Time,
        (down, fairness): (Down, Fairness),
        (may, may_resort): (i64, bool),
        chosen: &mut Vec<LogNumber>,
    ) -> (i64, i64) {
        if self.has_news {
            self.backlog += (self.left_due as f32 / 1e9 - self.backlog) * SMOOTH_BACKLOG;
        }
        self.welcome(down, fairness);
        self.place_newcomers();
        let due = self.put_in_order(now, (down, fairness));
        self.known = self.pairs.len() as u32;
        let (mut next, mut sorted, mut gone) = (0, 0, 0);
        let (at, floor, is_roomy) = (millis(now), fairness.floor_millis(), self.is_roomy());
        'all: while gone < may && next < self.order.len() {
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
            while pair.waiting != NOTHING && pair.is_due(at, floor) {
                // An update that costs more than can ever be saved up goes when a datagram's worth is there.
                if gone + cost > may && !(gone == 0 && may_resort) {
                    break 'all;
                }
                gone += cost;
                if pair.has_overdue(at, floor) {
                    self.overdue.push(pair.earlier.pop());
                    pair.miss(is_roomy, 1);
                    self.waiting -= 1;
                }
                chosen.push(pair.take(now));
                self.waiting -= 1;
            }
        }
        (gone, due - gone)
    }

    /// Gives every pair the credit of the time that has passed, lists those that are due with their keys, of
    /// which the lowest goes first, and forgets the flows that have ended. Returns what all that is due costs.
    fn put_in_order(&mut self, now: Time, (down, fairness): (Down, Fairness)) -> i64 {
        self.order.clear();
        let passed = now.since(core::mem::replace(&mut self.served, now)).as_secs_f32().min(1.0);
        let (at, floor) = (millis(now), fairness.floor_millis());
        let (is_flooded, is_roomy) = (self.backlog > FLOODED, self.is_roomy());
        let before = core::mem::replace(&mut self.looked_at, self.newest);
        let by_turns = !self.is_short && self.left_due <= BY_TURNS.as_nanos() as i64;
        let (mut place, mut due) = (0, 0);
        while let Some(pair) = self.pairs.get_mut(place as usize) {
            pair.fresh = 0;
            pair.gain(passed);
            while !is_roomy && let Some(stale) = pair.take_stale() {
                self.overdue.push(stale);
                self.waiting -= 1;
            }
            if pair.waiting == NOTHING {
                if at.wrapping_sub(pair.seen) > FLOW_LIFETIME.as_millis() as u32 {
                    self.close(place);
                } else {
                    place += 1;
                }
                continue;
            }
            if pair.is_due(at, floor) {
                let level = if fairness.levels_first { pair.level } else { 0 };
                // Positive numbers are in the order of their bits: of those past the floor who has waited
                // longest, of those that get nearly all who has missed most and then the heaviest, or whoever is
                // owed most. Where far more is due than goes, that says little, as it is bounded: then it is who
                // has waited for the most of its own intervals. Where all flows get all they send, the heavy ones go
                // before the others, and where a moment brings a little too much, they wait by turns, so that none
                // misses anything.
                let silent = at.wrapping_sub(pair.sent);
                let (is_late, is_first) = (silent > floor, pair.gets_nearly_all());
                let heavy = u8::from(!self.is_short && pair.weight >= self.heavy_from) * HEAVY;
                let in_turn = |missed: u8| heavy | missed.min(HEAVY - 1);
                let (missed, last) = match (is_late, is_first) {
                    (true, _) => (0, silent as f32),
                    (_, true) if by_turns => (in_turn(pair.shortfall(before)), pair.weight),
                    (_, true) => (in_turn(pair.missed()), pair.weight),
                    (_, false) if is_flooded => (0, silent as f32 / 1e3 * pair.rate),
                    (_, false) => (0, pair.credit.max(0.0)),
                };
                let turn = if is_late { 0 } else { 1 + u64::from(!is_first) };
                // The lowest key goes first: by turn, then by level, then by the shortfall and by `last`, whose
                // bits are inverted because the greatest of those goes first.
                let key = turn << 48 | u64::from(level) << 40 | u64::from(!missed) << 32;
                self.order.push((key | u64::from(!last.to_bits()), place));
                due += down.cost(pair.len.into(), 1) * pair.count_due() as i64;
            }
            place += 1;
        }
        due
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
        self.urgent.empty(chosen);
        let (urgent, overdue) =
            (core::mem::take(&mut self.urgent), core::mem::take(&mut self.overdue));
        if let Some(creditless) = &mut self.creditless {
            chosen.extend(creditless.drain());
        }
        chosen.extend(self.pairs.iter().flat_map(Pair::all));
        *self = Row { urgent, overdue, dearness: self.dearness, ..Row::default() };
    }
}

fn millis(now: Time) -> u32 {
    (now.as_nanos() / 1_000_000) as u32
}

/// A part of an update, another one for each flow: by the golden ratio, so they are spread evenly.
fn phase_of(flow: FlowId) -> f32 {
    flow.wrapping_mul(GOLDEN) as f32 / (u32::MAX as f32 + 1.0)
}

fn flow_hash(flow: FlowId) -> u64 {
    fold(flow.into())
}
