//! What waits for one limited receiver, and what of it goes next.
//!
//! The newest update of each flow waits, and the one before it if both are due. Ten times a second the row works
//! out the rates of weighted max-min fairness with demands (Meru §4.3, [`rates`]): a flow that sends less than its
//! share is *free*, and what it leaves goes to the others; nobody gets less than the *floor*. A flow that is not
//! free collects credit at its rate, and an update goes for each that it has. So updates of a flow are evenly
//! spaced. What is due and finds no room waits, and its flow is owed it still: rates follow that backlog.
//! A flow for which the table of pairs has no room sends without a credit ([`creditless`]).
//! Updates that are important, or for one endpoint's eyes, go before all others, in the order in which they came.

mod creditless;
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
use urgent::Urgent;

/// How often it is looked for what is due.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often rates are worked out.
const SOLVE_EVERY: Duration = Duration::from_millis(100);
/// Within so long, and so many updates of its publisher, one that was overtaken on its way may still come.
const OVERTAKEN_WITHIN: u32 = 250;
const OVERTAKEN_BY: u16 = 512;
/// What a flow may be owed while it waits.
const MOST_OWED: f32 = 3.0;
/// What a flow may have saved up when it has sent all that waited.
const MOST_SAVED: f32 = 1.0;
/// The same of one that could get more than it sends: it is not to be ahead of the others when it can no more, and
/// with less than this it would miss some where ticks bring its updates unevenly.
const MOST_SAVED_IF_FULL: f32 = 0.85;
/// The first credit of a flow that comes alone. Who leaves is sent its last update in any case, which is more than
/// its share. So that it is off by less in all, it begins a little behind, by no more than a gap may be too long.
const FIRST_CREDIT: f32 = -0.1;
/// A row is flooded when so much waits on average, seconds of its budget.
const FLOODED: f32 = 0.1;
/// A flow that gets at least this part of what it sends goes first: it cannot make up for what it misses.
const NEARLY_ALL: f32 = 0.9;
/// What such a flow is thought to have missed with each update that it does not get. For some 14 seconds, until less
/// than a half is left of that, it goes before those that have missed nothing.
const MISSED: f32 = 2.0;
/// How fast the backlog's mean follows, from one time when something comes to the next.
const SMOOTH_BACKLOG: f32 = 0.25;
/// What a flow is thought to send as long as that is not known, updates a second: more than any does.
const UNKNOWN_DEMAND: f32 = 1e6;
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

#[derive(Clone)]
struct Pair {
    flow: FlowId,
    weight: f32,
    waiting: LogNumber,
    /// The one before it, if both may go.
    earlier: LogNumber,
    /// The newest that the row was told of, and its series.
    newest: u64,
    series: u16,
    /// Updates a second that come and could go, and how many came since that was worked out.
    demand: f32,
    came: u16,
    len: u16,
    level: u8,
    /// How many have come since it was last looked for what is due: two can go at most.
    fresh: u8,
    /// What it has missed lately, as one that should get nearly all.
    missed: f32,
    /// Whether it sends no more, or pauses: its share is for others as long.
    is_silent: bool,
    /// Updates a second that may go; infinite if the flow is free.
    rate: f32,
    /// Updates that may go. That of a free flow is kept until it is free no more.
    credit: f32,
    /// Milliseconds of the relay's time.
    seen: u32,
    since: u32,
    sent: u32,
}

impl Pair {
    fn is_free(&self) -> bool {
        self.rate == f32::INFINITY
    }

    /// Whether it has come into sight since rates were worked out.
    fn is_new(&self) -> bool {
        self.demand == UNKNOWN_DEMAND
    }

    /// Whether an update goes for a credit: if that is due sooner than halfway to the flow's next one, so that
    /// updates are as often ahead of their time as behind it, at any rate.
    fn is_due_with(&self, credit: f32) -> bool {
        self.is_free() || (credit - 1.0) * 2.0 * self.demand + self.rate >= 0.0
    }

    /// Whether an update goes: for a credit, or as the flow has waited for longer than the floor.
    fn is_due(&self, at: u32, floor: u32) -> bool {
        at.wrapping_sub(self.sent) > floor || self.is_due_with(self.credit)
    }

    /// Whether it should get nearly all that it sends. That is not known of a new flow: if it has a rate already,
    /// this says no.
    fn gets_nearly_all(&self) -> bool {
        self.rate >= NEARLY_ALL * self.demand
    }

    /// Whether the newest and the one before it may both wait. Only who gets at least half of what it sends ever
    /// sends two between two looks; of the others the newest says all. What goes is put in the order of the log,
    /// where two of a flush may be the other way round if another row was told of the newer one only.
    fn may_keep_two(&self, credit: f32, before: LogNumber) -> bool {
        self.gets_most() && self.is_due_with(credit - 1.0) && before < self.waiting
    }

    fn gets_most(&self) -> bool {
        self.is_free() || 2.0 * self.rate >= self.demand
    }

    /// Adds the credit of the time that has passed. More than one update's is saved up while none waits only to
    /// even out the times at which updates come: that of half the time between two of the flow's own.
    fn gain(&mut self, passed: f32) {
        if self.is_free() {
            return;
        }
        let most = match self.waiting {
            NOTHING => 1.0 + 0.5 * self.rate / self.demand,
            _ => MOST_OWED,
        };
        self.credit = (self.credit + self.rate * passed).min(most.max(self.credit));
    }

    /// Takes note that this many of its updates went nowhere. What comes beyond two between two looks could not
    /// have gone.
    fn miss(&mut self, updates: u8) {
        if self.gets_nearly_all() && self.fresh <= 2 {
            self.missed = (self.missed + MISSED * f32::from(updates)).min(u8::MAX.into());
        }
    }

    /// Whether two wait, and both go.
    fn are_two_due(&self) -> bool {
        self.earlier != NOTHING && self.is_due_with(self.credit - 1.0)
    }

    /// Whether the newest is to go in place of the one before it, which was to go, too, when the newest came. By now the
    /// next one may go as late as a floor from now, or the newest would be older than that once it is its turn.
    fn has_overdue(&self, at: u32, floor: u32) -> bool {
        let is_late = at.wrapping_sub(self.sent) > floor;
        self.earlier != NOTHING
            && !self.are_two_due()
            && (is_late || !self.gets_most() || self.age_as_second(at) > floor as f32)
    }

    /// How old the newest will be, in milliseconds, when it goes after the one before it that goes now.
    fn age_as_second(&self, at: u32) -> f32 {
        let due_with = 2.0 - self.rate / (2.0 * self.demand);
        at.wrapping_sub(self.seen) as f32 + 1e3 * (due_with - self.credit) / self.rate
    }

    /// An update that waits goes, the earlier one first.
    fn take(&mut self, now: Time) -> LogNumber {
        if !self.is_free() || self.credit >= 1.0 {
            self.credit -= 1.0;
        }
        self.sent = millis(now);
        if self.earlier != NOTHING {
            return core::mem::replace(&mut self.earlier, NOTHING);
        }
        if !self.is_free() {
            let is_full = self.rate >= self.demand;
            self.credit = self.credit.min(if is_full { MOST_SAVED_IF_FULL } else { MOST_SAVED });
        }
        core::mem::replace(&mut self.waiting, NOTHING)
    }
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

    /// All that waits of its pairs: the flow, the update, and the bytes that it takes.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = (FlowId, LogNumber, u16)> + '_ {
        let both = |pair: &Pair| [pair.earlier, pair.waiting].map(|one| (pair.flow, one, pair.len));
        self.pairs.iter().flat_map(both).filter(|(_, update, _)| *update != NOTHING)
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
            for update in [&mut pair.earlier, &mut pair.waiting] {
                if *update != NOTHING && !is_wanted(*update) {
                    left_out(core::mem::replace(update, NOTHING));
                    self.waiting -= 1;
                }
            }
            if pair.waiting == NOTHING {
                pair.waiting = core::mem::replace(&mut pair.earlier, NOTHING);
            }
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
        let seen = millis(now);
        let Some(place) = self.find(news.flow) else {
            let may_open = has_room()
                && !self.creditless.as_ref().is_some_and(|creditless| creditless.has_of(news.flow));
            return if may_open { self.open(seen, news) } else { Noted::NoRoom };
        };
        self.next = place + 1;
        let pair = &mut self.pairs[place as usize];
        if news.order <= pair.newest {
            let waits = pair.waiting == news.update || pair.earlier == news.update;
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
        let earlier = core::mem::replace(&mut pair.earlier, NOTHING);
        let credit = pair.credit + pair.rate * now.since(self.served).as_secs_f32().min(1.0);
        if !pair.may_keep_two(credit, before) {
            pair.len = news.len;
            pair.miss(1 + u8::from(earlier != NOTHING));
            self.waiting -= u32::from(earlier != NOTHING);
            return Noted::Replaces([before, earlier]);
        }
        pair.earlier = before;
        if earlier != NOTHING {
            pair.miss(1);
            return Noted::Replaces([earlier, NOTHING]);
        }
        self.waiting += 1;
        Noted::Waits
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

    /// Keeps so many pairs: the flows of the others go on without. Calls `left_out` with what finds no room there.
    /// What has come in this flush has numbers from `first` on.
    pub(crate) fn keep_pairs(
        &mut self,
        (now, first, down): (Time, LogNumber, Down),
        count: usize,
        mut left_out: impl FnMut(LogNumber),
    ) {
        while self.pairs.len() > count
            && let Some(Pair { flow, earlier, waiting, newest, len, .. }) =
                self.pairs.last().cloned()
        {
            self.close(self.pairs.len() as u32 - 1);
            for update in [earlier, waiting].into_iter().filter(|update| *update != NOTHING) {
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
        self.pairs.push(Pair {
            flow: news.flow,
            weight: news.weight,
            waiting: news.update,
            earlier: NOTHING,
            newest: news.order,
            series: news.series,
            demand: UNKNOWN_DEMAND,
            came: 1,
            len: news.len,
            level: news.level,
            fresh: 1,
            missed: 0.0,
            is_silent: false,
            rate: f32::INFINITY,
            credit: 0.0,
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
        self.urgent.serve(down, allowance, chosen);
        self.urgent_cost += before - allowance.left();
        if self.is_worth_a_look(now, down, allowance) {
            if now.since(self.solved) >= SOLVE_EVERY {
                self.solve(now, (down, fairness));
            }
            self.serve_both(now, (down, fairness), allowance, chosen);
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

    /// What goes without a credit goes first, for its flows cannot make up for what they miss. Where pairs wait too, it
    /// has its part, and what these leave.
    fn serve_both(
        &mut self,
        now: Time,
        (down, fairness): (Down, Fairness),
        allowance: &mut Allowance,
        chosen: &mut Vec<LogNumber>,
    ) {
        let may = within(allowance.left(), self.dearness);
        let saved = allowance.left() >= spare(down);
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
        let (at, floor) = (millis(now), fairness.floor_millis());
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
                    self.overdue.push(core::mem::replace(&mut pair.earlier, NOTHING));
                    pair.miss(1);
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
        let is_flooded = self.backlog > FLOODED;
        let (mut place, mut due) = (0, 0);
        while let Some(pair) = self.pairs.get_mut(place as usize) {
            pair.fresh = 0;
            pair.gain(passed);
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
                // has waited for the most of its own intervals.
                let silent = at.wrapping_sub(pair.sent);
                let (is_late, is_first) = (silent > floor, pair.gets_nearly_all());
                let (missed, last) = match (is_late, is_first) {
                    (true, _) => (0, silent as f32),
                    (_, true) => (pair.missed.round() as u8, pair.weight),
                    (_, false) if is_flooded => (0, silent as f32 / 1e3 * pair.rate),
                    (_, false) => (0, pair.credit.max(0.0)),
                };
                let turn = if is_late { 0 } else { 1 + u64::from(!is_first) };
                // The lowest key goes first: by turn, then by level, then by what was missed and by `last`, whose
                // bits are inverted because the greatest of those goes first.
                let key = turn << 48 | u64::from(level) << 40 | u64::from(!missed) << 32;
                self.order.push((key | u64::from(!last.to_bits()), place));
                due += down.cost(pair.len.into(), 1) * if pair.are_two_due() { 2 } else { 1 };
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
        let urgent = core::mem::take(&mut self.urgent);
        if let Some(creditless) = &mut self.creditless {
            chosen.extend(creditless.drain());
        }
        let waiting = self.pairs.iter().flat_map(|pair| [pair.earlier, pair.waiting]);
        chosen.extend(waiting.filter(|update| *update != NOTHING));
        *self = Row { urgent, dearness: self.dearness, ..Row::default() };
    }
}

/// What may be thought to be spent of what is left: what is thought to be enough is not to turn out too little.
fn within(left: i64, dearness: f32) -> i64 {
    (left as f32 / (1.0 + dearness.max(0.0))) as i64
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
