//! How much a receiver may be sent: a token bucket whose tokens are time.

use canopy_wire::{SAFE_DATAGRAM, Time};
use core::time::Duration;

/// What a receiver may be sent a second. 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Down {
    /// Bits a second of UDP payload, headers and seals included.
    pub bits: u64,
    /// Updates a second.
    pub updates: u64,
}

impl Down {
    /// No limit.
    pub const NONE: Down = Down { bits: 0, updates: 0 };

    /// Whether anything is limited.
    pub fn is_limited(self) -> bool {
        self != Down::NONE
    }

    /// The less of both, number by number.
    pub fn least(self, other: Down) -> Down {
        let least = |one: u64, other: u64| match (one, other) {
            (0, limit) | (limit, 0) => limit,
            (one, other) => one.min(other),
        };
        Down { bits: least(self.bits, other.bits), updates: least(self.updates, other.updates) }
    }

    /// Which part of a second's allowance some updates take, in nanoseconds: that of the number which
    /// they use up first.
    #[inline]
    pub(crate) fn cost(self, bytes: u64, updates: u64) -> i64 {
        let of = |amount: u64, limit: u64| match limit {
            0 => 0,
            limit => (amount.saturating_mul(SECOND) / limit).min(MOST_COST),
        };
        of(8 * bytes, self.bits).max(of(updates, self.updates)) as i64
    }
}

const SECOND: u64 = 1_000_000_000;
/// What takes longer than an hour takes an hour.
pub(super) const MOST_COST: u64 = 3600 * SECOND;

/// The cost of the datagram that an allowance may save up.
pub(crate) fn spare(down: Down) -> i64 {
    down.cost(SAFE_DATAGRAM as u64, 1)
}

/// Within this time, a receiver is sent no more than its budget holds, and one datagram.
const BURST: Duration = Duration::from_millis(100);
/// For that, what was spent counts for a little longer: a turn takes a while, so what one sends and what the
/// next does are not always as far apart as the turns.
pub(super) const WINDOW: Duration = Duration::from_millis(102);
/// What is spent within so long counts as spent at once; rows are served more seldom.
const AT_A_TIME: Duration = Duration::from_millis(8);
/// What is a smaller part of what was spent within so long does not count as the last of it.
const A_LITTLE: f32 = 8.0;
/// As many of them as there may be in a window.
const PARTS: usize = 16;

/// What of its budget a receiver has left: nanoseconds of it. It grows as time goes by, up to a little
/// more than what passes between two sends, and is negative for a while after a datagram that exceeds it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowance {
    left: i64,
    at: Time,
    /// What could not be saved up, since it was last asked for.
    lost: i64,
    /// What was spent lately, and when last, in microseconds of the relay's time; the place of the newest, and when
    /// that began.
    spent: [(u32, f32); PARTS],
    newest: u8,
    newest_began: Time,
    spare: i64,
    /// What is left and may not be spent now, and the same of the window.
    held: i64,
    held_of_window: i64,
}

impl Allowance {
    /// Takes note of the time. `every` is the time between two sends that bring much; `spare` is the cost
    /// of one datagram, which is kept beyond it; what was spent a `window` ago counts no more. Where a datagram
    /// costs what such a send brings, there is room for one send too many in [`WINDOW`], so it counts as long as that.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, every: Duration, spare: i64, window: Duration) {
        self.let_pass(now);
        self.spare = spare;
        let (full, most) = (self.left, every.as_nanos() as i64 + spare);
        self.left = full.min(most);
        self.lost += full - self.left;
        let window = if spare >= every.as_nanos() as i64 { WINDOW } else { window };
        let (now, window) = (micros(now), window.as_micros() as u32);
        for (at, cost) in &mut self.spent {
            if now.wrapping_sub(*at) >= window {
                *cost = 0.0;
            }
        }
    }

    /// A receiver with its own past is sent the same as those of this allowance from now on: what is left is no
    /// more than it has left, now and of the window at any later time.
    pub(crate) fn share_with(&mut self, newcomer: &Allowance) {
        // Either may have been looked at last.
        let now = self.at.max(newcomer.at);
        let mut newcomer = *newcomer;
        newcomer.let_pass(now);
        self.let_pass(now);
        self.left = self.left.min(newcomer.left);
        self.spend_as_both(micros(now), &newcomer);
    }

    /// Multiplies what is owed, and what was spent lately, because the budget is another one: the same bits take another
    /// time of it. What is saved up stays.
    pub(super) fn owe(&mut self, times: f64) {
        if self.left < 0 {
            self.left = (self.left as f64 * times) as i64;
        }
        self.spent.iter_mut().for_each(|(_, cost)| *cost *= times as f32);
    }

    /// Takes note of the time, but not yet of how much may be saved up.
    #[inline]
    fn let_pass(&mut self, now: Time) {
        let passed = now.since(self.at).as_nanos().min(u128::from(MOST_COST)) as i64;
        self.at = now;
        self.left += passed;
        if passed >= WINDOW.as_nanos() as i64 {
            self.spent.iter_mut().for_each(|(_, cost)| *cost = 0.0);
        }
    }

    /// In any time up to now, as much counts as spent as the one of both has spent that has spent more in it. So none
    /// of what either spent late counts as early, because the other spent more then.
    fn spend_as_both(&mut self, now: u32, other: &Allowance) {
        let age = |at: u32| now.wrapping_sub(at);
        let mut all = [(0, 0.0, 0.0); 2 * PARTS];
        for (place, (at, cost)) in self.spent.into_iter().enumerate() {
            all[place] = (age(at), cost, 0.0);
        }
        for (place, (at, cost)) in other.spent.into_iter().enumerate() {
            all[PARTS + place] = (age(at), 0.0, cost);
        }
        all.sort_unstable_by_key(|(age, ..)| *age);
        // Newest first, and those are one that are so near each other that they would be if they were spent now.
        let mut parts = [(0, 0.0); PARTS];
        let (mut count, mut sums, mut counted) = (0, (0.0, 0.0), 0.0_f32);
        let within = |(age, ..): &&(u32, f32, f32)| *age < WINDOW.as_micros() as u32;
        for (age, own, others) in all.iter().take_while(within) {
            sums = (sums.0 + own, sums.1 + others);
            let more = sums.0.max(sums.1) - core::mem::replace(&mut counted, sums.0.max(sums.1));
            if more <= 0.0 {
                continue;
            }
            if count == 0 || age - parts[count - 1].0 >= AT_A_TIME.as_micros() as u32 {
                parts[count] = (*age, 0.0);
                count += 1;
            }
            parts[count - 1].1 += more;
        }
        self.spent = [(now, 0.0); PARTS];
        for (spent, (age, cost)) in self.spent.iter_mut().zip(parts[..count].iter().rev()) {
            *spent = (now.wrapping_sub(*age), *cost);
        }
        // What is spent next is a part of its own.
        self.newest = (count + PARTS - 1) as u8 % PARTS as u8;
        self.newest_began = Time::ZERO;
    }

    fn spent_lately(&self) -> f32 {
        self.spent.iter().map(|(_, cost)| cost).sum()
    }

    /// How much was left unused for so long that it could not be saved up, since the last call.
    pub(crate) fn take_lost(&mut self) -> i64 {
        core::mem::take(&mut self.lost)
    }

    /// What is left, in nanoseconds.
    #[inline]
    pub(crate) fn left(&self) -> i64 {
        self.left.min(self.left_of_window()) - self.held
    }

    /// Sets how much of what is left, and of the window, may not be spent until further notice.
    pub(crate) fn hold(&mut self, held: i64, of_window: i64) {
        (self.held, self.held_of_window) = (held, of_window);
    }

    /// What is left of the window and may be spent, in nanoseconds. Not even what may owe exceeds it.
    pub(crate) fn may_of_window(&self) -> i64 {
        self.left_of_window() - self.held_of_window
    }

    /// What is left of what has been saved up, in nanoseconds.
    pub(crate) fn saved(&self) -> i64 {
        self.left
    }

    /// What is left of the window, in nanoseconds.
    #[inline]
    pub(crate) fn left_of_window(&self) -> i64 {
        BURST.as_nanos() as i64 + self.spare - self.spent_lately() as i64
    }

    /// Spends, but owes no more than that `least` is left.
    #[inline]
    pub(crate) fn spend_down_to(&mut self, least: i64, cost: i64) {
        self.spend(cost.min(self.left - least).max(0));
    }

    /// Spends; what is lacking will be made up for.
    #[inline]
    pub(crate) fn spend(&mut self, cost: i64) {
        self.left -= cost;
        if self.at.since(self.newest_began) >= AT_A_TIME {
            self.newest_began = self.at;
            self.newest = (self.newest + 1) % PARTS as u8;
            self.spent[usize::from(self.newest)].1 = 0.0;
        }
        let (at, spent) = &mut self.spent[usize::from(self.newest)];
        *spent += cost as f32;
        // The last of it is not to be forgotten with the first; but a little that follows keeps nothing back.
        if cost as f32 >= *spent / A_LITTLE {
            *at = micros(self.at);
        }
    }
}

/// Wraps after more than an hour.
fn micros(now: Time) -> u32 {
    (now.as_nanos() / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_two_limits_counts_and_zero_is_none() {
        let (one, other) = (Down { bits: 5, updates: 0 }, Down { bits: 7, updates: 3 });
        assert_eq!(one.least(other), Down { bits: 5, updates: 3 });
        assert_eq!(Down::NONE.least(Down::NONE), Down::NONE);
        assert!(!Down::NONE.is_limited() && one.is_limited());
    }

    #[test]
    fn an_update_costs_what_it_uses_up_first() {
        let down = Down { bits: 8_000, updates: 10 };
        assert_eq!(
            down.cost(50, 1),
            100_000_000,
            "a tenth of the updates, a twentieth of the bits"
        );
        assert_eq!(down.cost(500, 1), 500_000_000);
        assert_eq!(Down::NONE.cost(u64::MAX / 8, u64::MAX), 0);
        assert_eq!(Down { bits: 1, updates: 1 }.cost(u64::MAX / 8, 1), MOST_COST as i64);
    }

    #[test]
    fn who_comes_to_share_an_allowance_brings_its_own_past() {
        let (down, every) = (Down { bits: 80_000, updates: 0 }, Duration::from_millis(25));
        let at = |millis: u64, spent: u64| {
            let mut allowance = Allowance::default();
            allowance.advance(Time::from_millis(millis), every, spare(down), WINDOW);
            allowance.spend(down.cost(spent, 1));
            allowance
        };
        let (rested, mut busy) = (at(1_000, 0), at(1_000, 1_000));
        let (left, of_window) = (busy.left(), busy.left_of_window());
        busy.share_with(&rested);
        assert_eq!((busy.left(), busy.left_of_window()), (left, of_window));
        let mut rested = rested;
        rested.share_with(&busy);
        assert_eq!((rested.left(), rested.left_of_window()), (left, of_window));
        // Long ago is over.
        let mut later = at(2_000, 0);
        let before = (later.left(), later.left_of_window());
        later.share_with(&busy);
        assert_eq!((later.left(), later.left_of_window()), before);
    }

    /// Two have each spent something at times of their own when the one comes to share the other's allowance, which was
    /// looked at before or since, or a while ago. From then on it is spent as soon as it is there.
    #[test]
    fn two_that_come_to_share_an_allowance_are_both_sent_no_more_than_they_may() {
        let (down, every) = (Down { bits: 0, updates: 100 }, Duration::from_millis(25));
        let update = down.cost(0, 1);
        let mut random = 1_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % end
        };
        for _ in 0..2_000 {
            let [newcomer, mut row] = [(); 2].map(|()| {
                let (mut allowance, mut sent) = (Allowance::default(), Vec::new());
                let (tries, end) = (below(10), 1_000 - below(20) * (1 + below(2) * below(20)));
                for millis in end - 200..=end {
                    allowance.advance(Time::from_millis(millis), every, spare(down), WINDOW);
                    while below(10) < tries && allowance.left() >= update {
                        allowance.spend(update);
                        sent.push(millis);
                    }
                }
                (allowance, sent)
            });
            row.0.share_with(&newcomer.0);
            let mut later = Vec::new();
            for millis in 1_001..1_200 {
                row.0.advance(Time::from_millis(millis), every, spare(down), WINDOW);
                while row.0.left() >= update {
                    row.0.spend(update);
                    later.push(millis);
                }
            }
            for past in [&row.1, &newcomer.1] {
                let sent: Vec<u64> = past.iter().chain(&later).copied().collect();
                let within =
                    |from: &u64| sent.iter().filter(|at| (*from..from + 100).contains(at)).count();
                let most = sent.iter().map(within).max().unwrap();
                assert!(most <= 10 + 1, "{most} updates: {past:?} and {later:?}");
            }
            assert!(later.len() >= 17, "what there is may be spent: {later:?}");
        }
    }

    /// Bursts go at every millisecond as long as they fit, and then what waits goes at looks.
    #[test]
    fn what_goes_bit_by_bit_counts_for_as_long_as_what_goes_at_once() {
        let down = Down { bits: 1_000_000, updates: 0 };
        let mut allowance = Allowance::default();
        let mut sent: Vec<(u64, u64)> = Vec::new();
        let mut is_limited = false;
        for millis in 1_000..1_400 {
            let now = Time::from_millis(millis);
            allowance.advance(now, Duration::from_millis(25), spare(down), WINDOW);
            let fits = |allowance: &Allowance| down.cost(195, 1) <= allowance.left();
            if !is_limited && fits(&allowance) || is_limited && millis % 13 == 0 {
                let mut bytes = 0;
                while fits(&allowance) && (is_limited || bytes == 0) {
                    allowance.spend(down.cost(195, 1));
                    bytes += 195;
                }
                sent.push((millis, bytes));
            } else {
                is_limited = true;
            }
        }
        let within = |from: u64| {
            let one = |(at, bytes): &(u64, u64)| if at - from < 100 { *bytes } else { 0 };
            sent.iter().filter(|(at, _)| *at >= from).map(one).sum::<u64>()
        };
        let most = sent.iter().map(|(at, _)| within(*at)).max().unwrap();
        assert!(most <= 12_500 + SAFE_DATAGRAM as u64, "{most}");
        assert!(most > 13_000, "it is nearly all that may go: {most}");
    }

    /// A burst leaves with a tick that is late, and the tick 100 ms after it is not. A neighbour relay's window is
    /// shorter than that, so that none of a fast link's ticks is lost. A slow one's are not lost anyway.
    #[test]
    fn what_left_late_still_counts_at_the_tick_after_next_on_a_slow_link() {
        let (tick, short) = (Duration::from_millis(50), Duration::from_millis(98));
        for (bits, counts) in [(64_000, true), (10_000_000, false)] {
            let down = Down { bits, updates: 0 };
            let mut allowance = Allowance::default();
            allowance.advance(Time::from_nanos(1_001_900_000), tick, spare(down), short);
            let burst = allowance.left();
            allowance.spend(burst);
            allowance.advance(Time::from_millis(1_100), tick, spare(down), short);
            let of_window = Duration::from_millis(100).as_nanos() as i64 + spare(down);
            let left = if counts { of_window - burst } else { of_window };
            assert!((allowance.left_of_window() - left).abs() < 100, "{bits}: {allowance:?}");
        }
    }

    /// However a receiver is sent to, any 100 ms bring no more than their budget and one datagram.
    #[test]
    fn no_time_brings_more_than_its_budget_and_one_datagram() {
        let every = Duration::from_millis(50);
        let down = Down { bits: 80_000, updates: 0 };
        let (datagram, update) = (1_000, 100);
        let mut allowance = Allowance::default();
        let mut sent = Vec::new();
        for tick in 1..200_u64 {
            // Nothing is wanted now and then, so that as much as can be is saved up.
            let now = Time::from_millis(50 * tick);
            allowance.advance(now, every, down.cost(datagram, 1), WINDOW);
            let mut bytes = 0;
            while tick % 7 > 2 && allowance.left() > 0 {
                allowance.spend(down.cost(update, 1));
                bytes += update;
            }
            sent.push(bytes);
        }
        let most = sent.windows(2).map(|two| two[0] + two[1]).max().unwrap();
        assert!(most <= 1_000 + datagram, "{most}");
        let least = sent.iter().skip(5).step_by(7).max().unwrap();
        assert!(*least >= 500, "what the time brings is there to be spent: {least}");
    }
}
