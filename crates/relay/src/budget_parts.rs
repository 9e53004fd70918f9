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
/// What comes is averaged over this time, in seconds, as it becomes more and as it becomes less: what is said at once once a
/// second is to find the part that it takes.
const RISES: f32 = 0.3;
const FALLS: f32 = 1.0;
/// Each thread counts as wanting this part of its equal part at least, so that whoever begins there is heard of.
const LEAST: f32 = 1.0 / 64.0;
/// And as wanting so many times what it does: what comes is not even.
const HEADROOM: f32 = 1.125;
/// The others are told of a change of a want by this part of it, and of the budget.
const NEWS: f32 = 1.0 / 16.0;
const NEWS_OF_BUDGET: f32 = 0.01;
/// And each time that wants were worked out so often: who had no such budget yet when it was told knows then.
const TELL_AGAIN: u32 = 32;
/// Less than this part of a budget is nothing.
const NOTHING_WANTED: f32 = 0.001;

/// What is wanted of a comtree's budget on a data thread, in parts of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wants {
    /// Which parts of the updates, and of the bits, that its participants may send.
    pub(crate) up_packets: f32,
    pub(crate) up_bits: f32,
    /// Which part of what they may be sent, by the number of which the greater part is wanted. And for how many of them.
    pub(crate) down: f32,
    pub(crate) receivers: u32,
}

impl Wants {
    fn parts(self) -> [f32; 3] {
        [self.up_packets, self.up_bits, self.down]
    }

    fn is_any(self) -> bool {
        self.parts() != [0.0; 3]
    }

    fn is_far_from(self, other: Wants) -> bool {
        let far = |(one, other): (f32, f32)| {
            (one - other).abs() > (one.max(other) * NEWS).max(NEWS_OF_BUDGET)
                || (one == 0.0) != (other == 0.0)
        };
        let receivers = (self.receivers as f32, other.receivers as f32);
        self.parts().into_iter().zip(other.parts()).any(far)
            || (receivers.0 - receivers.1).abs() > receivers.0.max(receivers.1) * NEWS
    }
}

/// A comtree that has a budget.
#[derive(Default)]
struct Dealt {
    budget: Budget,
    /// By data thread: what is wanted there. Of this one, what the others were told.
    wants: Vec<Wants>,
    /// What is wanted here by now.
    own: Wants,
    /// Updates and bits that came since that was worked out, whatever became of them.
    came: (u64, u64),
    /// What this thread has of the updates and the bits that may be sent, and of what may be received.
    parts: [f32; 3],
    /// The others may know something of an earlier budget.
    is_new: bool,
}

/// The comtrees with budgets, on one data thread of several.
pub(crate) struct BudgetParts {
    thread: usize,
    threads: usize,
    /// By comtree.
    comtrees: Vec<Option<Box<Dealt>>>,
    reviewed: Time,
    reviews: u32,
    /// Those of whose wants the others are to be told.
    news: Vec<ComtreeIndex>,
    /// Whether anything is wanted, has come since wants were worked out, or is to be told; and whether any budget is of
    /// what participants are sent, of which nothing says when they begin to want it.
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
            news: Vec::new(),
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

    /// A comtree has this budget from now on.
    pub(crate) fn set(&mut self, comtree: ComtreeIndex, budget: Budget) {
        if self.threads == 1 {
            return;
        }
        let index = comtree as usize;
        if index >= self.comtrees.len() {
            self.comtrees.resize_with(index + 1, || None);
        }
        if budget == Budget::default() {
            self.comtrees[index] = None;
        } else {
            let dealt = self.comtrees[index].get_or_insert_default();
            (dealt.budget, dealt.is_new) = (budget, true);
            dealt.wants.resize(self.threads, Wants::default());
            dealt.deal(self.thread);
            self.is_busy = true;
        }
        let is_down = |dealt: &Dealt| dealt.budget.down_packets > 0 || dealt.budget.down_bits > 0;
        self.has_down = self.comtrees.iter().flatten().any(|dealt| is_down(dealt));
    }

    /// What this thread has of a comtree's budget, and which part that is of what may be received.
    pub(crate) fn part_of(&self, comtree: ComtreeIndex, budget: Budget) -> (Budget, f64) {
        let Some(dealt) = self.of(comtree) else { return (budget, 1.0) };
        (dealt.budget_here(), dealt.parts[2].into())
    }

    /// Counts updates and bits that have come from the participants of a comtree.
    #[inline]
    pub(crate) fn note(&mut self, comtree: ComtreeIndex, updates: u64, bits: u64) {
        if let Some(dealt) = self.of_mut(comtree) {
            dealt.came.0 += updates;
            dealt.came.1 += bits;
            self.is_busy = true;
        }
    }

    /// When wants are to be worked out next.
    pub(crate) fn due(&self) -> Option<Time> {
        (self.is_busy || self.has_down).then(|| self.reviewed + REVIEW_EVERY)
    }

    /// Works out what is wanted here, if it is time. `down` knows which part of what its participants may be sent a comtree
    /// wants here, and for how many.
    pub(crate) fn review(&mut self, now: Time, down: impl Fn(ComtreeIndex) -> (f64, u32)) {
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
            dealt.measure(passed, down(comtree));
            let told = dealt.wants[self.thread];
            self.is_busy |= dealt.own.is_any() || dealt.own != told || dealt.is_new;
            let is_news = dealt.own.is_far_from(told) || dealt.own != told && dealt.lacks();
            if is_news || dealt.is_new || again && dealt.own.is_any() {
                self.news.push(comtree);
            }
        }
    }

    /// The next comtree of whose wants the others are to be told.
    pub(crate) fn next_news(&mut self) -> Option<ComtreeIndex> {
        self.news.pop()
    }

    /// What is wanted of a comtree here.
    pub(crate) fn own(&self, comtree: ComtreeIndex) -> Wants {
        self.of(comtree).map_or(Wants::default(), |dealt| dealt.own)
    }

    /// Another data thread wants so much of a comtree. Returns whether that has a budget.
    pub(crate) fn hear(&mut self, comtree: ComtreeIndex, thread: u16, wants: Wants) -> bool {
        let own = self.thread;
        let Some(dealt) = self.of_mut(comtree) else { return false };
        if let Some(before) = dealt.wants.get_mut(usize::from(thread)) {
            *before = wants;
            dealt.deal(own);
        }
        true
    }

    /// This thread has told the others what it wants of a comtree.
    pub(crate) fn told(&mut self, comtree: ComtreeIndex) {
        self.hear(comtree, self.thread as u16, self.own(comtree));
        if let Some(dealt) = self.of_mut(comtree) {
            dealt.is_new = false;
        }
    }
}

impl Dealt {
    /// `down` is what participants are to be sent, on average, and how many.
    fn measure(&mut self, passed: f32, (down, receivers): (f64, u32)) {
        let (updates, bits) = core::mem::take(&mut self.came);
        let some = |value: f32| if value < NOTHING_WANTED { 0.0 } else { value };
        let follow = |before: f32, came: u64, budget: u64| match budget {
            0 => 0.0,
            budget => {
                let now = came as f32 / passed.max(1e-3) / budget as f32;
                let smooth = if now > before { RISES } else { FALLS };
                some(before + (now - before) * (passed / smooth).min(1.0))
            }
        };
        self.own = Wants {
            up_packets: follow(self.own.up_packets, updates, self.budget.up_packets),
            up_bits: follow(self.own.up_bits, bits, self.budget.up_bits),
            down: some(down as f32),
            receivers,
        };
    }

    /// Works out the parts of a thread. What is sent is dealt out by thread; what is received, by receiver.
    fn deal(&mut self, thread: usize) {
        let of = |place: usize| {
            let weight =
                |wants: &Wants| if place == 2 { wants.receivers.max(1) as f32 } else { 1.0 };
            let wants = self.wants.iter().map(|wants| (wants.parts()[place], weight(wants)));
            part_of(thread, wants)
        };
        self.parts = [of(0), of(1), of(2)];
    }

    /// Whether anything is wanted here beyond what this thread has.
    fn lacks(&self) -> bool {
        self.own.parts().into_iter().zip(self.parts).any(|(want, part)| want > part)
    }

    /// What this thread has of the budget. A number that limits nothing limits nothing here either.
    fn budget_here(&self) -> Budget {
        let of = |whole: u64, part: f32| match whole {
            0 => 0,
            whole => ((whole as f64 * f64::from(part)) as u64).max(1),
        };
        let Budget { up_packets, up_bits, down_packets, down_bits } = self.budget;
        let [of_packets, of_bits, of_down] = self.parts;
        Budget {
            up_packets: of(up_packets, of_packets),
            up_bits: of(up_bits, of_bits),
            down_packets: of(down_packets, of_down),
            down_bits: of(down_bits, of_down),
        }
    }
}

/// What one of several has of a whole of 1, of which they want these parts: weighted max-min fair, and an equal part of
/// what nobody wants.
fn part_of(one: usize, wants: impl ExactSizeIterator<Item = (f32, f32)> + Clone) -> f32 {
    let threads = wants.len() as f32;
    let wants = wants.map(|(want, weight)| ((want * HEADROOM).max(LEAST / threads), weight));
    let (own, own_weight) = wants.clone().nth(one).unwrap_or_default();
    let sum: f32 = wants.clone().map(|(want, _)| want).sum();
    if sum <= 1.0 {
        return own + (1.0 - sum) / threads;
    }
    let all_weights: f32 = wants.clone().map(|(_, weight)| weight).sum();
    // Each round sates those who want no more than their part of what the sated have left.
    let mut level = 1.0 / all_weights;
    loop {
        let sated = wants.clone().filter(|(want, weight)| *want <= level * weight);
        let rest = |(left, weights), (want, weight)| (left - want, weights - weight);
        let (left, weights) = sated.fold((1.0, all_weights), rest);
        let higher = if weights > 0.5 { left / weights } else { level };
        if higher <= level * 1.0001 {
            return own.min(level * own_weight);
        }
        level = higher;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: Budget =
        Budget { up_packets: 8000, up_bits: 800_000, down_packets: 0, down_bits: 0 };

    /// What threads have that want these parts, in thousandths.
    fn parts(wants: &[(f32, f32)]) -> Vec<u32> {
        let part = |one| (part_of(one, wants.iter().copied()) * 1000.0).round() as u32;
        (0..wants.len()).map(part).collect()
    }

    #[test]
    fn what_one_thread_does_not_want_is_the_others() {
        assert_eq!(parts(&[(0.0, 1.0); 4]), [250; 4], "nobody wants anything yet");
        assert_eq!(parts(&[(9.0, 1.0), (9.0, 1.0)]), [500, 500]);
        assert_eq!(parts(&[(0.2, 1.0), (9.0, 1.0)]), [225, 775], "and a little more than it wants");
        assert_eq!(
            parts(&[(0.0, 1.0), (9.0, 1.0)]),
            [8, 992],
            "who begins is let in a little at once"
        );
        assert_eq!(parts(&[(0.08, 1.0), (9.0, 1.0), (9.0, 1.0)]), [90, 455, 455]);
        assert_eq!(
            parts(&[(0.2, 1.0), (0.4, 1.0)]),
            [388, 613],
            "what is left is there in equal parts"
        );
        assert_eq!(parts(&[(9.0, 10.0), (9.0, 1.0)]), [909, 91], "ten receivers, and one");
        assert_eq!(parts(&[(0.1, 10.0), (9.0, 1.0)]), [113, 888]);
    }

    proptest! {
        #[test]
        fn all_parts_together_are_the_budget(
            wants in proptest::collection::vec((0.0..4.0_f32, 1..2000_u32), 1..16),
        ) {
            let wants: Vec<_> = wants.into_iter().map(|(want, weight)| (want, weight as f32)).collect();
            let all: Vec<f32> =
                (0..wants.len()).map(|one| part_of(one, wants.iter().copied())).collect();
            let sum: f32 = all.iter().sum();
            prop_assert!((sum - 1.0).abs() < 2e-3, "{wants:?}: {all:?}");
            // Nobody has more by weight than whoever has less than it wants.
            let level = |place: usize| all[place] / wants[place].1;
            for (place, (want, _)) in wants.iter().enumerate() {
                let is_sated = all[place] >= want * 0.999;
                let has_most = (0..wants.len()).all(|other| level(place) >= level(other) * 0.999);
                prop_assert!(is_sated || has_most, "{wants:?}: {all:?}");
            }
        }
    }

    /// Two threads that hear each other at once.
    struct Two([BudgetParts; 2], u64);

    impl Two {
        fn new(budget: Budget) -> Two {
            let mut threads = [0, 1].map(|thread| BudgetParts::new(thread, 2));
            threads.iter_mut().for_each(|thread| thread.set(0, budget));
            Two(threads, 0)
        }

        fn have(&self) -> [Budget; 2] {
            self.0.each_ref().map(|thread| thread.part_of(0, WHOLE).0)
        }

        /// On each come these updates and bits in each 100 ms. Returns what each has then.
        fn settle(&mut self, came: [(u64, u64); 2], rounds: u64) -> [Budget; 2] {
            for _ in 0..rounds {
                self.1 += 100;
                for (one, (updates, bits)) in came.into_iter().enumerate() {
                    self.0[one].note(0, updates, bits);
                    self.0[one].review(Time::from_millis(self.1), |_| (0.0, 0));
                    while let Some(comtree) = self.0[one].next_news() {
                        let wants = self.0[one].own(comtree);
                        self.0[one].told(comtree);
                        assert!(self.0[1 - one].hear(comtree, one as u16, wants));
                    }
                }
            }
            self.have()
        }
    }

    #[test]
    fn whoever_wants_more_gets_what_others_leave() {
        let mut two = Two::new(WHOLE);
        let up = |have: [Budget; 2]| have.map(|budget| budget.up_packets);
        assert_eq!(up(two.have()), [4000; 2]);
        // 20,000 and 1,000 updates a second.
        let [one, other] = up(two.settle([(2_000, 0), (100, 0)], 30));
        assert!(
            (6_800..=6_950).contains(&one) && (1_050..=1_200).contains(&other),
            "{one}, {other}"
        );
        assert_eq!(up(two.settle([(2_000, 0), (2_000, 0)], 30)), [4_000; 2]);
        assert_eq!(up(two.settle([(2_000, 0), (0, 0)], 90)), [7_937, 62]);
    }

    /// Many short ones on one thread, and few long ones on the other: each has what it wants of either number.
    #[test]
    fn updates_and_bits_are_dealt_out_apart() {
        let mut two = Two::new(WHOLE);
        let [one, other] = two.settle([(560, 16_000), (160, 56_000)], 30);
        assert!(one.up_packets >= 5_600 && one.up_bits >= 160_000, "{one:?}");
        assert!(other.up_packets >= 1_600 && other.up_bits >= 560_000, "{other:?}");
    }

    #[test]
    fn what_is_wanted_is_told_again_now_and_then() {
        let mut thread = BudgetParts::new(0, 2);
        thread.set(0, WHOLE);
        let mut told = 0;
        for round in 1..=100 {
            thread.note(0, 50, 0);
            thread.review(Time::from_millis(100 * round), |_| (0.0, 0));
            while let Some(comtree) = thread.next_news() {
                thread.told(comtree);
                told += u32::from(round > 30);
            }
        }
        assert_eq!(told, 3, "of the 70 rounds in which nothing changed");
    }

    #[test]
    fn an_idle_relay_has_nothing_to_do_and_a_budget_that_ends_limits_nothing() {
        let mut thread = BudgetParts::new(0, 2);
        assert!(thread.due().is_none());
        thread.set(3, WHOLE);
        let mut now = Time::from_millis(1);
        let mut idle = |thread: &mut BudgetParts, tells: bool, seconds: u64| {
            let end = now + Duration::from_secs(seconds);
            while let Some(due) = thread.due().filter(|_| now < end) {
                now = now.max(due);
                thread.review(now, |_| (0.0, 0));
                while let Some(comtree) = thread.next_news() {
                    if tells {
                        thread.told(comtree);
                    }
                }
            }
        };
        idle(&mut thread, true, 20);
        thread.note(3, 100, 0);
        idle(&mut thread, true, 20);
        assert!(thread.due().is_none() && thread.own(3) == Wants::default());
        // As long as the others could not be told that nothing is wanted any more, there is something to do.
        thread.note(3, 1_000, 0);
        idle(&mut thread, true, 1);
        idle(&mut thread, false, 20);
        assert!(thread.due().is_some());
        thread.set(3, Budget::default());
        assert_eq!(thread.part_of(3, Budget::default()), (Budget::default(), 1.0));
        assert!(!thread.hear(3, 1, Wants::default()));
        let mut alone = BudgetParts::new(0, 1);
        alone.set(3, WHOLE);
        assert_eq!(alone.part_of(3, WHOLE), (WHOLE, 1.0), "alone it has all");
    }
}
