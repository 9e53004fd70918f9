//! The budgets of comtrees, dealt out to the data threads of a relay by what their participants want.
//!
//! Threads share nothing for an update, so each polices a part of a comtree's budget. Ten times a second a thread works
//! out what is wanted of it, and tells the others if that has changed. All deal the budget out by the same wants
//! and in the same way, max-min fair, so that their parts together are the budget: what one thread does not want is the
//! others', and what nobody wants is there in equal parts for whoever begins.

use crate::index::ComtreeIndex;
use crate::meters::Budget;
use canopy_wire::Time;
use core::time::Duration;

/// Wants are worked out this often.
const REVIEW_EVERY: Duration = Duration::from_millis(100);
/// What is wanted is averaged over this time, in seconds.
const SMOOTH: f32 = 0.3;
/// Each thread counts as wanting this part of its equal part at least, so that whoever begins there is heard of.
const LEAST: f32 = 1.0 / 64.0;
/// The others are told of a change of a want by this part of it, and of the budget.
const NEWS: f32 = 1.0 / 16.0;
const NEWS_OF_BUDGET: f32 = 0.01;
/// And each time that wants were worked out so often: who had no such budget yet when it was told knows then.
const TELL_AGAIN: u32 = 32;
/// Less than this part of a budget is nothing.
const NOTHING_WANTED: f32 = 0.001;

/// What is wanted of a budget, in parts of it, or had: by what participants send, and by what they are to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) up: f32,
    pub(crate) down: f32,
}

impl Parts {
    fn is_far_from(self, other: Parts) -> bool {
        let far = |one: f32, other: f32| {
            (one - other).abs() > (one.max(other) * NEWS).max(NEWS_OF_BUDGET)
                || (one == 0.0) != (other == 0.0)
        };
        far(self.up, other.up) || far(self.down, other.down)
    }
}

/// A comtree that has a budget.
#[derive(Default)]
struct Dealt {
    budget: Budget,
    /// By data thread: what is wanted there. Of this one, what the others were told.
    wants: Vec<Parts>,
    /// What is wanted here by now.
    own: Parts,
    /// Updates and bits that came since that was worked out, whatever became of them.
    came: (u64, u64),
    /// What this thread has.
    part: Parts,
}

/// The comtrees with budgets, on one data thread of several.
pub(crate) struct BudgetParts {
    thread: usize,
    threads: usize,
    /// By comtree.
    comtrees: Vec<Option<Box<Dealt>>>,
    reviewed: Time,
    reviews: u32,
    /// Whether anything is wanted, or has come since wants were worked out; and whether any budget is of what
    /// participants are sent, of which nothing says when they begin to want it.
    is_busy: bool,
    has_down: bool,
}

impl BudgetParts {
    pub(crate) fn new(thread: u16, threads: u16) -> BudgetParts {
        BudgetParts {
            thread: thread.into(),
            threads: threads.into(),
            comtrees: Vec::new(),
            reviewed: Time::ZERO,
            reviews: 0,
            is_busy: false,
            has_down: false,
        }
    }

    fn of(&self, comtree: ComtreeIndex) -> Option<&Dealt> {
        self.comtrees.get(comtree as usize)?.as_deref()
    }

    fn of_mut(&mut self, comtree: ComtreeIndex) -> Option<&mut Dealt> {
        self.comtrees.get_mut(comtree as usize)?.as_deref_mut()
    }

    /// The participants of a comtree may send and be sent so much together from now on. Returns this thread's part.
    pub(crate) fn set(&mut self, comtree: ComtreeIndex, budget: Budget) -> Budget {
        if self.threads == 1 {
            return budget;
        }
        let index = comtree as usize;
        if index >= self.comtrees.len() {
            self.comtrees.resize_with(index + 1, || None);
        }
        if budget == Budget::default() {
            self.comtrees[index] = None;
        } else {
            let dealt = self.comtrees[index].get_or_insert_default();
            dealt.budget = budget;
            dealt.wants.resize(self.threads, Parts::default());
            dealt.deal(self.thread);
        }
        let is_down = |dealt: &Dealt| dealt.budget.down_packets > 0 || dealt.budget.down_bits > 0;
        self.has_down = self.comtrees.iter().flatten().any(|dealt| is_down(dealt));
        self.of(comtree).map_or(budget, Dealt::budget_here)
    }

    /// The part of what the participants of a comtree may be sent that this thread has.
    pub(crate) fn part_of_down(&self, comtree: ComtreeIndex) -> f64 {
        self.of(comtree).map_or(1.0, |dealt| dealt.part.down.into())
    }

    /// So many bits have come from the participants of a comtree.
    #[inline]
    pub(crate) fn note_bits(&mut self, comtree: ComtreeIndex, bits: u64) {
        if let Some(dealt) = self.of_mut(comtree) {
            dealt.came.1 += bits;
            self.is_busy = true;
        }
    }

    /// An update has come from a participant of a comtree.
    #[inline]
    pub(crate) fn note_update(&mut self, comtree: ComtreeIndex) {
        if let Some(dealt) = self.of_mut(comtree) {
            dealt.came.0 += 1;
            self.is_busy = true;
        }
    }

    /// When wants are to be worked out next.
    pub(crate) fn due(&self) -> Option<Time> {
        (self.is_busy || self.has_down).then(|| self.reviewed + REVIEW_EVERY)
    }

    /// Works out what is wanted here, if it is time. `down` knows which part of what its participants may be sent a comtree
    /// wants here. Appends to `news` the comtrees of whose wants the others are to be told.
    pub(crate) fn review(
        &mut self,
        now: Time,
        down: impl Fn(ComtreeIndex) -> f64,
        news: &mut Vec<ComtreeIndex>,
    ) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let before = core::mem::replace(&mut self.reviewed, now);
        let passed = now.since(before).as_secs_f32().min(1.0);
        self.is_busy = false;
        self.reviews = self.reviews.wrapping_add(1);
        let again = self.reviews.is_multiple_of(TELL_AGAIN);
        for (comtree, dealt) in (0..).zip(&mut self.comtrees) {
            let Some(dealt) = dealt else { continue };
            dealt.measure(passed, down(comtree) as f32);
            let is_wanted = dealt.own != Parts::default();
            self.is_busy |= is_wanted;
            if again && is_wanted || dealt.own.is_far_from(dealt.wants[self.thread]) {
                news.push(comtree);
            }
        }
    }

    /// What is wanted of a comtree here.
    pub(crate) fn own(&self, comtree: ComtreeIndex) -> Parts {
        self.of(comtree).map_or(Parts::default(), |dealt| dealt.own)
    }

    /// A data thread wants so much of a comtree: another one has told so, or this one has told the others. Returns what
    /// this thread may have of the budget from now on.
    pub(crate) fn hear(
        &mut self,
        comtree: ComtreeIndex,
        thread: u16,
        wants: Parts,
    ) -> Option<Budget> {
        let own = self.thread;
        let dealt = self.of_mut(comtree)?;
        *dealt.wants.get_mut(usize::from(thread))? = wants;
        dealt.deal(own);
        Some(dealt.budget_here())
    }

    /// This thread has told the others what it wants of a comtree. Returns what it may have from now on.
    pub(crate) fn told(&mut self, comtree: ComtreeIndex) -> Option<Budget> {
        self.hear(comtree, self.thread as u16, self.own(comtree))
    }
}

impl Dealt {
    /// `down` is what participants are to be sent, on average.
    fn measure(&mut self, passed: f32, down: f32) {
        let (updates, bits) = core::mem::take(&mut self.came);
        let part = |came: u64, budget: u64| match budget {
            0 => 0.0,
            budget => came as f32 / passed.max(1e-3) / budget as f32,
        };
        let up = part(updates, self.budget.up_packets).max(part(bits, self.budget.up_bits));
        let some = |value: f32| if value < NOTHING_WANTED { 0.0 } else { value };
        let up = self.own.up + (up - self.own.up) * (passed / SMOOTH).min(1.0);
        self.own = Parts { up: some(up), down: some(down) };
    }

    /// Works out the part of a thread.
    fn deal(&mut self, thread: usize) {
        let deal = |of: fn(&Parts) -> f32| part_of(thread, self.wants.iter().map(of));
        self.part = Parts { up: deal(|parts| parts.up), down: deal(|parts| parts.down) };
    }

    /// What this thread has of the budget. A number that limits nothing limits nothing here either.
    fn budget_here(&self) -> Budget {
        let of = |whole: u64, part: f32| match whole {
            0 => 0,
            whole => ((whole as f64 * f64::from(part)) as u64).max(1),
        };
        let Budget { up_packets, up_bits, down_packets, down_bits } = self.budget;
        Budget {
            up_packets: of(up_packets, self.part.up),
            up_bits: of(up_bits, self.part.up),
            down_packets: of(down_packets, self.part.down),
            down_bits: of(down_bits, self.part.down),
        }
    }
}

/// What one of several has of a whole of 1, of which they want these parts: max-min fair, and an equal part of what
/// nobody wants.
fn part_of(one: usize, wants: impl ExactSizeIterator<Item = f32> + Clone) -> f32 {
    let threads = wants.len() as f32;
    let wants = wants.map(|want| want.max(LEAST / threads));
    let own = wants.clone().nth(one).unwrap_or_default();
    let sum: f32 = wants.clone().sum();
    if sum <= 1.0 {
        return own + (1.0 - sum) / threads;
    }
    // Each round sates those who want no more than an equal part of what the sated have left.
    let mut level = 1.0 / threads;
    loop {
        let sated = wants.clone().filter(|want| *want <= level);
        let (left, hungry) =
            sated.fold((1.0, threads), |(left, count), want| (left - want, count - 1.0));
        let higher = left / f32::max(hungry, 1.0);
        if higher <= level * 1.0001 {
            return own.min(level);
        }
        level = higher;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: Budget =
        Budget { up_packets: 8000, up_bits: 800_000, down_packets: 0, down_bits: 8_000_000 };

    fn parts(wants: &[f32]) -> Vec<f32> {
        let part = |one| (part_of(one, wants.iter().copied()) * 1000.0).round() / 1000.0;
        (0..wants.len()).map(part).collect()
    }

    #[test]
    fn what_one_thread_does_not_want_is_the_others() {
        assert_eq!(parts(&[0.0; 4]), [0.25; 4], "nobody wants anything yet");
        assert_eq!(parts(&[9.0, 9.0]), [0.5, 0.5]);
        assert_eq!(parts(&[0.2, 9.0]), [0.2, 0.8]);
        assert_eq!(parts(&[0.0, 9.0]), [0.008, 0.992], "who begins is let in a little at once");
        assert_eq!(parts(&[0.1, 0.3, 9.0, 9.0]), [0.1, 0.3, 0.3, 0.3]);
        assert_eq!(parts(&[0.2, 0.4]), [0.4, 0.6], "what is left is there in equal parts");
    }

    proptest! {
        #[test]
        fn all_parts_together_are_the_budget(wants in proptest::collection::vec(0.0..4.0_f32, 1..16)) {
            let all: Vec<f32> =
                (0..wants.len()).map(|one| part_of(one, wants.iter().copied())).collect();
            let sum: f32 = all.iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-3, "{wants:?}: {all:?}");
            let least = LEAST / wants.len() as f32;
            let level = all.iter().copied().fold(0.0, f32::max);
            for (want, part) in wants.iter().zip(&all) {
                prop_assert!(*part >= least * 0.999);
                prop_assert!(*part >= want.min(level) * 0.999, "{wants:?}: {all:?}");
            }
        }
    }

    /// Two threads that hear each other at once. Returns what each may have.
    fn settle(came: [u64; 2], rounds: u64) -> [Budget; 2] {
        let mut threads = [0, 1].map(|thread| BudgetParts::new(thread, 2));
        let mut have = threads.each_mut().map(|thread| thread.set(0, WHOLE));
        assert_eq!(have.map(|budget| budget.up_packets), [4000; 2]);
        for round in 1..=rounds {
            let now = Time::from_millis(100 * round);
            for one in 0..2 {
                (0..came[one]).for_each(|_| threads[one].note_update(0));
                let mut news = Vec::new();
                threads[one].review(now, |_| 0.0, &mut news);
                for comtree in news {
                    let wants = threads[one].own(comtree);
                    have[one] = threads[one].told(comtree).expect("it has a budget");
                    let heard = threads[1 - one].hear(comtree, one as u16, wants);
                    have[1 - one] = heard.expect("it has a budget");
                }
            }
        }
        have
    }

    #[test]
    fn whoever_wants_more_gets_what_others_leave() {
        let up = |have: [Budget; 2]| have.map(|budget| budget.up_packets);
        // A second of which brings 20,000 and 1,000 updates.
        let [one, other] = up(settle([2_000, 100], 30));
        assert!((6_900..=7_100).contains(&one) && (900..=1_100).contains(&other), "{one}, {other}");
        assert_eq!(up(settle([2_000, 2_000], 30)), [4_000; 2]);
        let [one, other] = up(settle([2_000, 0], 30));
        assert_eq!((one, other), (7_937, 62));
    }

    #[test]
    fn what_is_wanted_is_told_again_now_and_then() {
        let mut thread = BudgetParts::new(0, 2);
        thread.set(0, WHOLE);
        let mut told = 0;
        for round in 1..=100 {
            (0..50).for_each(|_| thread.note_update(0));
            let mut news = Vec::new();
            thread.review(Time::from_millis(100 * round), |_| 0.0, &mut news);
            for comtree in news {
                assert!(thread.told(comtree).is_some());
                told += u32::from(round > 30);
            }
        }
        assert_eq!(told, 3, "of the 70 rounds in which nothing changed");
    }

    #[test]
    fn an_idle_relay_has_nothing_to_do_and_a_budget_that_ends_limits_nothing() {
        let mut thread = BudgetParts::new(0, 2);
        thread.set(3, Budget { down_bits: 0, ..WHOLE });
        assert!(thread.due().is_none());
        thread.note_update(3);
        let (mut now, mut news) = (Time::from_millis(1), Vec::new());
        while let Some(due) = thread.due() {
            now = now.max(due);
            thread.review(now, |_| 0.0, &mut news);
            news.drain(..).for_each(|comtree| assert!(thread.told(comtree).is_some()));
            assert!(now < Time::from_millis(10_000), "it ends");
        }
        assert_eq!(thread.own(3), Parts::default());
        assert_eq!(thread.set(3, Budget::default()), Budget::default());
        assert!(thread.told(3).is_none());
        assert_eq!(BudgetParts::new(0, 1).set(3, WHOLE), WHOLE, "alone it has all");
    }
}
