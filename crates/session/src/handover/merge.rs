//! One stream of updates made of two: a participant that moves hears its old relay and the next one for a
//! while. Each update is taken once, and each publisher's in order. It has no clock and no socket.
//!
//! Both relays bring the same updates, each publisher's in its order and by its numbers, but not at the
//! same time. An update is taken from whoever brings it first, with one exception: what the next relay
//! brings before the participant has turned waits until the old one has brought it or something later of
//! that publisher, as the old one may still be about to bring what came before it. It waits for
//! [`AHEAD`] at most.

use canopy_wire::{Address, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What the next relay brings waits for so long for the old one to bring it: it may be as much ahead.
/// Relays that change their parents go by the same time.
pub(crate) const AHEAD: Duration = Duration::from_millis(500);
/// The most updates that wait: at most 6 MB, as in a receive queue. Then the oldest is taken.
const MOST_WAITING: usize = 4_096;
/// The most publishers of whom it is known what was taken, each in 288 bytes.
const MOST_PUBLISHERS: usize = 1 << 14;
/// How many of a publisher's last numbers are remembered: one second of a thousand updates a second. What is
/// older than that is dropped.
const KNOWN: u16 = 1_024;
const WORDS: usize = KNOWN as usize / 64;
/// What is so far behind is of a publisher that counts anew.
const ANEW: u16 = 4 * KNOWN;
/// So is what comes after so long a silence: whoever comes back has its address again, and begins with its
/// first number. What the other relay brings is not as late.
const SILENCE: Duration = Duration::from_secs(1);

/// Which relay has brought something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// The one that the participant leaves.
    ByOld,
    /// The one to which it goes.
    ByNext,
}

/// What a handover has left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The other relay had brought it.
    pub doubled: u64,
    /// It came so late that nobody knows whether it was taken before.
    pub too_late: u64,
}

/// An update, as far as merging looks at it.
pub trait Numbered {
    /// Its publisher.
    fn src(&self) -> Address;
    /// Its number among its publisher's updates, modulo 2¹⁶.
    fn series(&self) -> u16;
}

/// The two streams, and what of them was taken.
#[derive(Debug)]
pub(crate) struct Merge<U> {
    /// The next relay leads: what it brings waits no more.
    has_turned: bool,
    seen: BTreeMap<Address, Seen>,
    /// By publisher: what the next relay has brought, in its order, and when.
    waiting: BTreeMap<Address, VecDeque<(Time, U)>>,
    /// When each of that came, and of whom. What is taken before its time stays here until then.
    came: VecDeque<(Time, Address)>,
    waits: usize,
    /// By how much the old relay was behind the next one at most, as far as it is known.
    lead: Duration,
    left_out: LeftOut,
}

impl<U> Default for Merge<U> {
    fn default() -> Merge<U> {
        Merge {
            has_turned: false,
            seen: BTreeMap::new(),
            waiting: BTreeMap::new(),
            came: VecDeque::new(),
            waits: 0,
            lead: Duration::ZERO,
            left_out: LeftOut::default(),
        }
    }
}

impl<U: Numbered> Merge<U> {
    /// A relay has brought an update to a group. `take` gets what is to be taken now, in order.
    pub(crate) fn bring(&mut self, now: Time, by: Brought, update: U, mut take: impl FnMut(U)) {
        let src = update.src();
        if by == Brought::ByNext && !self.has_turned {
            self.wait(now, src, update, &mut take);
            return;
        }
        // What the publisher sent before goes first: who brings this one does not bring that any more.
        while let Some((came, before)) =
            self.take_waiting(src, |_, of| !is_after(of.series(), update.series()))
        {
            if before.series() == update.series() {
                self.lead = self.lead.max(now.since(came));
            }
            self.pass(now, Brought::ByNext, before, &mut take);
        }
        self.pass(now, by, update, &mut take);
    }

    /// Time has passed: what has waited long enough is taken.
    pub(crate) fn handle_timeout(&mut self, now: Time, mut take: impl FnMut(U)) {
        while let Some((came, src)) = self.came.front().copied() {
            if !self.has_turned && came + AHEAD > now {
                return;
            }
            self.release_first(now, (came, src), &mut take);
        }
    }

    /// The next relay leads from now on.
    pub(crate) fn turn(&mut self, now: Time, take: impl FnMut(U)) {
        self.has_turned = true;
        self.handle_timeout(now, take);
    }

    /// The next relay is not gone to: what it has brought, the old one brings too.
    pub(crate) fn abandon(&mut self) {
        self.left_out.doubled += self.waits as u64;
        (self.waits, self.waiting) = (0, BTreeMap::new());
        self.came.clear();
    }

    /// When [`Merge::handle_timeout`] has something to do.
    pub(crate) fn due(&self) -> Option<Time> {
        self.came.front().map(|(came, _)| *came + AHEAD)
    }

    /// By how much the old relay was behind the next one at most, with updates that both have brought; no more than
    /// [`AHEAD`].
    pub(crate) fn lead(&self) -> Duration {
        self.lead
    }

    /// What was left out so far.
    pub(crate) fn left_out(&self) -> LeftOut {
        self.left_out
    }

    fn wait(&mut self, now: Time, src: Address, update: U, take: &mut impl FnMut(U)) {
        if self.seen.get(&src).is_some_and(|seen| !seen.is_silent(now) && seen.has(update.series()))
        {
            self.left_out.doubled += 1;
            return;
        }
        self.waiting.entry(src).or_default().push_back((now, update));
        self.came.push_back((now, src));
        self.waits += 1;
        while self.waits > MOST_WAITING
            && let Some((came, src)) = self.came.front().copied()
        {
            self.release_first(now, (came, src), take);
        }
    }

    /// Takes what came first, if it was not taken before its time.
    fn release_first(&mut self, now: Time, (came, src): (Time, Address), take: &mut impl FnMut(U)) {
        self.came.pop_front();
        if let Some((_, first)) = self.take_waiting(src, |at, _| at <= came) {
            self.pass(now, Brought::ByNext, first, take);
        }
    }

    fn take_waiting(
        &mut self,
        src: Address,
        is_due: impl Fn(Time, &U) -> bool,
    ) -> Option<(Time, U)> {
        let of_src = self.waiting.get_mut(&src)?;
        of_src.front().filter(|(came, update)| is_due(*came, update))?;
        let first = of_src.pop_front()?;
        if of_src.is_empty() {
            self.waiting.remove(&src);
        }
        self.waits -= 1;
        Some(first)
    }

    fn pass(&mut self, now: Time, by: Brought, update: U, take: &mut impl FnMut(U)) {
        let (src, series) = (update.src(), update.series());
        if self.seen.len() >= MOST_PUBLISHERS && !self.seen.contains_key(&src) {
            // Nothing is known of this publisher: only the relay that leads is heard.
            match (by == Brought::ByNext) == self.has_turned {
                true => take(update),
                false => self.left_out.doubled += 1,
            }
            return;
        }
        match self.seen.entry(src).or_insert_with(|| Seen::before(now, series)).pass(now, series) {
            Passed::Now => take(update),
            Passed::Before => self.left_out.doubled += 1,
            Passed::Unknown => self.left_out.too_late += 1,
        }
    }
}

/// Whether a number is behind another, as they go round.
pub(crate) fn is_after(series: u16, other: u16) -> bool {
    (1..=u16::MAX / 2).contains(&series.wrapping_sub(other))
}

/// Whether a number has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Now,
    Before,
    Unknown,
}

/// A bit for each of the last numbers, round and round.
type Numbers = [u64; WORDS];

/// Which of a publisher's last numbers have passed.
#[derive(Clone, Debug)]
struct Seen {
    newest: u16,
    passed: Numbers,
    /// Which of those did after the newest one: they filled gaps before it.
    filled: Numbers,
    /// When the newest of them did.
    at: Time,
    /// When the last of them did, of whatever number.
    last_at: Time,
}

impl Seen {
    /// Nothing has passed yet; this number is the first.
    fn before(now: Time, series: u16) -> Seen {
        let (passed, filled) = ([0; WORDS], [0; WORDS]);
        Seen { newest: series.wrapping_sub(1), passed, filled, at: now, last_at: now }
    }

    fn is_silent(&self, now: Time) -> bool {
        now.since(self.last_at) > SILENCE
    }

    fn pass(&mut self, now: Time, series: u16) -> Passed {
        let behind = self.newest.wrapping_sub(series);
        if is_after(series, self.newest) {
            let ahead = series.wrapping_sub(self.newest);
            let next = self.newest.wrapping_add(1);
            (0..ahead.min(KNOWN))
                .for_each(|step| set(&mut self.passed, next.wrapping_add(step), false));
            (self.newest, self.filled, self.at) = (series, [0; WORDS], now);
        } else if behind >= ANEW || self.is_silent(now) {
            *self = Seen { newest: series, ..Seen::before(now, series) };
        } else if behind >= KNOWN {
            return Passed::Unknown;
        } else if self.has_passed(now, series) {
            return Passed::Before;
        } else {
            set(&mut self.filled, series, true);
        }
        set(&mut self.passed, series, true);
        self.last_at = now;
        Passed::Now
    }

    /// Whether a number before the newest one has passed. What fills gaps does not show that its publisher was not
    /// gone: it may count anew among the numbers of before. So when the newest one is too long ago for anything of
    /// before to be under way, only what has passed since then has.
    fn has_passed(&self, now: Time, series: u16) -> bool {
        has(if now.since(self.at) > SILENCE { &self.filled } else { &self.passed }, series)
    }

    /// Whether a number has passed, as far as is known.
    fn has(&self, series: u16) -> bool {
        self.newest.wrapping_sub(series) < KNOWN && has(&self.passed, series)
    }
}

fn has(numbers: &Numbers, series: u16) -> bool {
    let (word, bit) = place(series);
    numbers[word] & bit != 0
}

fn set(numbers: &mut Numbers, series: u16, passed: bool) {
    let (word, bit) = place(series);
    match passed {
        true => numbers[word] |= bit,
        false => numbers[word] &= !bit,
    }
}

fn place(series: u16) -> (usize, u64) {
    let at = series % KNOWN;
    (usize::from(at / 64), 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    struct Update {
        endpoint: u16,
        series: u16,
    }

    impl Numbered for Update {
        fn src(&self) -> Address {
            Address::unicast(1, self.endpoint)
        }

        fn series(&self) -> u16 {
            self.series
        }
    }

    fn update(endpoint: u16, series: u16) -> Update {
        Update { endpoint, series }
    }

    /// What happens, in order of time.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Bring(bool, usize, u16),
        Turn,
    }

    #[derive(Clone, Debug)]
    struct Case {
        /// For each publisher: its first number, and by how much each one is more than the one before.
        publishers: Vec<(u16, Vec<u16>)>,
        /// How late each relay is, milliseconds, and by how much more it may be at a time.
        late: [u64; 2],
        jitter: Vec<u64>,
        /// From which update on the next relay brings anything.
        from: usize,
        /// How long the old one is heard after the client has turned.
        lingers: u64,
    }

    fn case() -> impl Strategy<Value = Case> {
        let publisher = (any::<u16>(), prop::collection::vec(1..5_u16, 80..160));
        let publishers = prop::collection::vec(publisher, 1..4);
        let jitter = prop::collection::vec(0..120_u64, 64);
        (publishers, [0..300_u64, 0..300], jitter, 0..40_usize, 0..1500_u64).prop_map(
            |(publishers, late, jitter, from, lingers)| Case {
                publishers,
                late,
                jitter,
                from,
                lingers,
            },
        )
    }

    const EVERY_MS: u64 = 25;

    impl Case {
        /// A relay brings a publisher's updates in order, each a while after it was sent.
        fn steps(&self) -> Vec<(u64, Step)> {
            // The next relay has brought something of everybody for a while by then.
            let turn = (self.from as u64 + 30) * EVERY_MS + 450;
            let mut steps = vec![(turn, Step::Turn)];
            for (who, (first, more)) in self.publishers.iter().enumerate() {
                for (is_next, late) in [false, true].into_iter().zip(self.late) {
                    let (mut series, mut at) = (*first, 0);
                    for (number, more) in more.iter().enumerate() {
                        let jitter = self.jitter[(number * 7 + who) % self.jitter.len()];
                        at = at.max(number as u64 * EVERY_MS + late + jitter);
                        let is_heard = match is_next {
                            true => number >= self.from + who,
                            false => at <= turn + self.lingers,
                        };
                        if is_heard {
                            steps.push((at, Step::Bring(is_next, who, series)));
                        }
                        series = series.wrapping_add(*more);
                    }
                }
            }
            // What a relay brings at the same time stays in its order, also where numbers go round.
            steps.sort_by_key(|(at, _)| *at);
            steps
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(14),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// However two streams in order are mixed that are less than [`AHEAD`] apart, of which one
        /// begins later and the other ends sooner: each update is taken once, in order.
        #[test]
        fn each_update_is_taken_once_and_in_order(case in case()) {
            let (mut merge, mut taken) = (Merge::default(), vec![Vec::new(); case.publishers.len()]);
            let mut take = |update: Update| {
                taken[usize::from(update.endpoint) - 1].push(update.series);
            };
            for (at, step) in case.steps() {
                let now = Time::from_millis(at);
                merge.handle_timeout(now, &mut take);
                match step {
                    Step::Turn => merge.turn(now, &mut take),
                    Step::Bring(is_next, who, series) => {
                        let by = if is_next { Brought::ByNext } else { Brought::ByOld };
                        merge.bring(now, by, update(who as u16 + 1, series), &mut take);
                    }
                }
            }
            for (taken, (first, more)) in taken.iter().zip(&case.publishers) {
                let mut series = *first;
                let all = more.iter().map(|more| {
                    let this = series;
                    series = series.wrapping_add(*more);
                    this
                });
                prop_assert_eq!(taken, &all.collect::<Vec<_>>());
            }
            prop_assert_eq!((merge.waits, merge.left_out().too_late), (0, 0));
        }

        /// Whatever comes within a second, nothing is taken twice.
        #[test]
        fn nothing_is_taken_twice(steps in prop::collection::vec((any::<bool>(), 0..900_u16), 0..2000)) {
            let (mut merge, mut taken) = (Merge::default(), Vec::new());
            for (number, (is_next, series)) in steps.into_iter().enumerate() {
                let by = if is_next { Brought::ByNext } else { Brought::ByOld };
                let now = Time::from_millis(number as u64 / 2);
                if number == 1500 {
                    merge.turn(now, |update: Update| taken.push(update.series));
                }
                merge.bring(now, by, update(1, series), |update| taken.push(update.series));
            }
            let count = taken.len();
            taken.sort_unstable();
            taken.dedup();
            prop_assert_eq!(taken.len(), count);
        }
    }

    #[test]
    fn what_only_the_next_relay_brings_waits_no_longer_than_the_old_one_may_take() {
        let (mut merge, mut taken) = (Merge::default(), Vec::new());
        let ms = Time::from_millis;
        merge.bring(ms(0), Brought::ByNext, update(1, 5), |update| taken.push(update.series));
        assert_eq!(merge.due(), Some(ms(0) + AHEAD));
        merge.handle_timeout(ms(499), |update| taken.push(update.series));
        assert!(taken.is_empty());
        // The old one has lost 6, and brings 7.
        merge.bring(ms(499), Brought::ByNext, update(1, 6), |update| taken.push(update.series));
        merge.handle_timeout(ms(500), |update| taken.push(update.series));
        merge.bring(ms(501), Brought::ByOld, update(1, 7), |update| taken.push(update.series));
        merge.bring(ms(502), Brought::ByOld, update(1, 6), |update| taken.push(update.series));
        assert_eq!(taken, [5, 6, 7]);
        assert_eq!(merge.left_out(), LeftOut { doubled: 1, too_late: 0 });
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut merge, mut taken) = (Merge::default(), 0);
        for series in 0..3 * MOST_WAITING as u16 {
            merge.bring(Time::ZERO, Brought::ByNext, update(1, series), |_| taken += 1);
            assert!(merge.waits <= MOST_WAITING);
        }
        assert_eq!(taken, 2 * MOST_WAITING);
    }

    #[test]
    fn a_number_passes_once_and_what_is_too_old_is_not_known() {
        let now = Time::ZERO;
        let mut seen = Seen::before(now, 65_000);
        for series in [65_000, 65_002, 65_001, 65_535, 3, 0, 700] {
            assert!(!seen.has(series));
            assert_eq!(seen.pass(now, series), Passed::Now, "{series}");
            assert_eq!(seen.pass(now, series), Passed::Before, "{series} again");
        }
        assert_eq!((seen.pass(now, 2_000), seen.pass(now, 700)), (Passed::Now, Passed::Unknown));
        assert_eq!(seen.pass(now, 2_000_u16.wrapping_sub(KNOWN - 1)), Passed::Now);
        assert_eq!((seen.pass(now, 30_000), seen.pass(now, 20_000)), (Passed::Now, Passed::Now));
        assert_eq!(seen.pass(now, 20_000), Passed::Before);
    }

    #[test]
    fn who_comes_back_with_its_address_counts_anew_after_a_second() {
        let (mut merge, mut taken) = (Merge::default(), 0);
        let mut bring = |at: u64, by, series| {
            merge.bring(Time::from_millis(at), by, update(1, series), |_| taken += 1);
            taken
        };
        assert_eq!((500..600).map(|series| bring(10, Brought::ByOld, series)).last(), Some(100));
        // The next relay may be as late.
        assert_eq!(bring(1010, Brought::ByNext, 599), 100);
        for series in 0..50 {
            let all = 101 + usize::from(series);
            assert_eq!(bring(1011, Brought::ByOld, series), all, "{series}");
            assert_eq!(bring(1500, Brought::ByNext, series), all, "{series} again");
        }
    }

    /// Its numbers leave gaps here, as some of what it says is for other groups.
    #[test]
    fn who_comes_back_within_a_second_is_heard_by_the_numbers_that_it_had() {
        let at = |ms: u64| Time::from_millis(ms);
        let mut seen = Seen::before(at(0), 10);
        for (ms, series) in [(10, 10), (10, 11), (10, 12), (500, 0), (1_000, 2)] {
            assert_eq!(seen.pass(at(ms), series), Passed::Now, "{series}");
        }
        assert_eq!(seen.pass(at(1_000), 10), Passed::Before, "the other relay may be as late");
        assert_eq!(seen.pass(at(1_011), 2), Passed::Before, "also with what was late");
        for (step, series) in [6, 9, 11, 12, 13].into_iter().enumerate() {
            let now = at(1_350 + 350 * step as u64);
            assert_eq!(seen.pass(now, series), Passed::Now, "{series}");
            assert_eq!(seen.pass(now, series), Passed::Before, "{series} again");
            let later = now + Duration::from_millis(10);
            assert_eq!(seen.pass(later, series), Passed::Before, "{series} late");
        }
    }
}
