//! What of one flow waits for a receiver, and whether it is due.

use super::{News, millis};
use crate::index::{FlowId, LogNumber, NOTHING};
use canopy_wire::Time;

/// What a flow may be owed while it waits.
const MOST_OWED: f32 = 3.0;
/// What a flow may have saved up when it has sent all that waited.
const MOST_SAVED: f32 = 1.0;
/// The same of one that could get more than it sends: it is not to be ahead of the others when it can no more, and
/// with less than this it would miss some where ticks bring its updates unevenly.
const MOST_SAVED_IF_FULL: f32 = 0.85;
/// A flow that gets at least this part of what it sends goes first: it cannot make up for what it misses.
const NEARLY_ALL: f32 = 0.9;
/// What such a flow is thought to have missed with each update that it does not get. For some 14 seconds, until less
/// than a half is left of that, it goes before those that have missed nothing.
const MISSED: f32 = 2.0;
/// What a flow is thought to send as long as that is not known, updates a second: more than any does.
const UNKNOWN_DEMAND: f32 = 1e6;

/// How many wait at most before the newest of a flow where there is room to spare: bursts leave as they came.
/// Elsewhere it is one.
const MOST_EARLIER: usize = 7;

/// Updates that wait before the newest of their flow, the oldest first.
#[derive(Clone, Copy)]
pub(super) struct Earlier([LogNumber; MOST_EARLIER]);

impl Earlier {
    const NONE: Earlier = Earlier([NOTHING; MOST_EARLIER]);

    pub(super) fn is_empty(&self) -> bool {
        self.0[0] == NOTHING
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = LogNumber> + use<> {
        self.0.into_iter().take_while(|update| *update != NOTHING)
    }

    /// Adds the newest of them. Returns the oldest if that finds no room, or [`NOTHING`].
    pub(super) fn push(&mut self, update: LogNumber) -> LogNumber {
        let len = self.len();
        let oldest = if len == MOST_EARLIER { self.pop() } else { NOTHING };
        self.0[len.min(MOST_EARLIER - 1)] = update;
        oldest
    }

    /// Takes the oldest; [`NOTHING`] if there is none.
    pub(super) fn pop(&mut self) -> LogNumber {
        let oldest = core::mem::replace(&mut self.0[0], NOTHING);
        self.0.rotate_left(1);
        oldest
    }
}

/// A flow, for a receiver.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) flow: FlowId,
    pub(super) weight: f32,
    pub(super) waiting: LogNumber,
    /// Those before it that may go, too.
    pub(super) earlier: Earlier,
    /// The newest that the row was told of, and its series.
    pub(super) newest: u64,
    pub(super) series: u16,
    /// Updates a second that come and could go, and how many came since that was worked out.
    pub(super) demand: f32,
    pub(super) came: u16,
    pub(super) len: u16,
    pub(super) level: u8,
    /// How many have come since it was last looked for what is due: not more can go than may wait.
    pub(super) fresh: u8,
    /// What it has missed lately, as one that should get nearly all.
    pub(super) missed: f32,
    /// Whether it sends no more, or pauses: its share is for others as long.
    pub(super) is_silent: bool,
    /// Updates a second that may go; infinite if the flow is free.
    pub(super) rate: f32,
    /// Updates that may go. That of a free flow is kept until it is free no more.
    pub(super) credit: f32,
    /// Milliseconds of the relay's time.
    pub(super) seen: u32,
    pub(super) since: u32,
    pub(super) sent: u32,
}

/// There may be a million of them.
const _: () = assert!(size_of::<Pair>() <= 120);

impl Pair {
    /// A flow that has come into sight with this update.
    pub(super) fn new(seen: u32, news: &News) -> Pair {
        Pair {
            flow: news.flow,
            weight: news.weight,
            waiting: news.update,
            earlier: Earlier::NONE,
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
        }
    }

    /// All that waits, the oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = LogNumber> + use<> {
        self.earlier.iter().chain([self.waiting].into_iter().filter(|update| *update != NOTHING))
    }

    /// Takes out what is wanted no more; calls `left_out` with each. Returns how many these are.
    pub(super) fn retain(
        &mut self,
        is_wanted: impl Fn(LogNumber) -> bool,
        mut left_out: impl FnMut(LogNumber),
    ) -> u32 {
        let (before, all) = (self.all().count(), self.all());
        (self.earlier, self.waiting) = (Earlier::NONE, NOTHING);
        for update in all {
            if !is_wanted(update) {
                left_out(update);
                continue;
            }
            if self.waiting != NOTHING {
                self.earlier.push(self.waiting);
            }
            self.waiting = update;
        }
        (before - self.all().count()) as u32
    }

    pub(super) fn is_free(&self) -> bool {
        self.rate == f32::INFINITY
    }

    /// Whether it has come into sight since rates were worked out.
    pub(super) fn is_new(&self) -> bool {
        self.demand == UNKNOWN_DEMAND
    }

    /// Whether an update goes for a credit: if that is due sooner than halfway to the flow's next one, so that
    /// updates are as often ahead of their time as behind it, at any rate.
    pub(super) fn is_due_with(&self, credit: f32) -> bool {
        self.is_free() || (credit - 1.0) * 2.0 * self.demand + self.rate >= 0.0
    }

    /// Whether an update goes: for a credit, or as the flow has waited for longer than the floor.
    pub(super) fn is_due(&self, at: u32, floor: u32) -> bool {
        at.wrapping_sub(self.sent) > floor || self.is_due_with(self.credit)
    }

    /// Whether it should get nearly all that it sends. That is not known of a new flow: if it has a rate already,
    /// this says no.
    pub(super) fn gets_nearly_all(&self) -> bool {
        self.rate >= NEARLY_ALL * self.demand
    }

    /// How many may wait before the newest, of which `before` came last. Where there is room to spare, several may,
    /// or a burst would lack some although all of it may go. Elsewhere only who gets at least half of what it sends
    /// ever sends two between two looks; of the others the newest says all. What goes is put in the
    /// order of the log, where two of a flush may be the other way round if another row was told of the newer one only.
    pub(super) fn may_keep(&self, is_roomy: bool, credit: f32, before: LogNumber) -> usize {
        let may_two = || self.gets_most() && self.is_due_with(credit - 1.0);
        match is_roomy {
            _ if before > self.waiting => 0,
            true if self.is_free() => MOST_EARLIER,
            _ => usize::from(may_two()),
        }
    }

    /// What it has missed lately, in whole updates.
    pub(super) fn missed(&self) -> u8 {
        self.missed.round() as u8
    }

    /// The same, and one more if something of it has waited since the last look, when the newest of all was this: it
    /// would be missed next.
    pub(super) fn shortfall(&self, before: LogNumber) -> u8 {
        let has_waited = self.all().next().is_some_and(|oldest| oldest <= before);
        self.missed().saturating_add(u8::from(has_waited))
    }

    pub(super) fn gets_most(&self) -> bool {
        self.is_free() || 2.0 * self.rate >= self.demand
    }

    /// Adds the credit of the time that has passed. More than one update's is saved up while none waits only to
    /// even out the times at which updates come: that of half the time between two of the flow's own.
    pub(super) fn gain(&mut self, passed: f32) {
        if self.is_free() {
            return;
        }
        let most = match self.waiting {
            NOTHING => 1.0 + 0.5 * self.rate / self.demand,
            _ => MOST_OWED,
        };
        self.credit = (self.credit + self.rate * passed).min(most.max(self.credit));
    }

    /// Takes note that this many of its updates went nowhere. What comes between two looks beyond what may wait could
    /// not have gone.
    pub(super) fn miss(&mut self, is_roomy: bool, updates: u8) {
        let most = if is_roomy { 1 + MOST_EARLIER as u8 } else { 2 };
        if self.gets_nearly_all() && self.fresh <= most {
            self.missed = (self.missed + MISSED * f32::from(updates)).min(u8::MAX.into());
        }
    }

    /// Whether several wait, and two of them go, or all if it is free.
    pub(super) fn are_two_due(&self) -> bool {
        !self.earlier.is_empty() && self.is_due_with(self.credit - 1.0)
    }

    /// How many go of one that is due.
    pub(super) fn count_due(&self) -> usize {
        if self.are_two_due() { 1 + self.earlier.len() } else { 1 }
    }

    /// Takes out the oldest, if more than one wait before the newest: they came while there was room to spare, and
    /// there is no more.
    pub(super) fn take_stale(&mut self) -> Option<LogNumber> {
        (self.earlier.len() > 1).then(|| self.earlier.pop())
    }

    /// Whether the newest is to go in place of the one before it, which was to go, too, when the newest came. By now the
    /// next one may go as late as a floor from now, or the newest would be older than that once it is its turn.
    pub(super) fn has_overdue(&self, at: u32, floor: u32) -> bool {
        let is_late = at.wrapping_sub(self.sent) > floor;
        !self.earlier.is_empty()
            && !self.are_two_due()
            && (is_late || !self.gets_most() || self.age_as_second(at) > floor as f32)
    }

    /// How old the newest will be, in milliseconds, when it goes after the one before it that goes now.
    fn age_as_second(&self, at: u32) -> f32 {
        let due_with = 2.0 - self.rate / (2.0 * self.demand);
        at.wrapping_sub(self.seen) as f32 + 1e3 * (due_with - self.credit) / self.rate
    }

    /// An update that waits goes, the earlier one first.
    pub(super) fn take(&mut self, now: Time) -> LogNumber {
        if !self.is_free() || self.credit >= 1.0 {
            self.credit -= 1.0;
        }
        self.sent = millis(now);
        let earlier = self.earlier.pop();
        if earlier != NOTHING {
            return earlier;
        }
        if !self.is_free() {
            let is_full = self.rate >= self.demand;
            self.credit = self.credit.min(if is_full { MOST_SAVED_IF_FULL } else { MOST_SAVED });
        }
        core::mem::replace(&mut self.waiting, NOTHING)
    }
}
