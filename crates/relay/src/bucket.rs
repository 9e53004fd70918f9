//! Token buckets: each has a rate a second, and a burst that may be taken at once.

use canopy_wire::Time;
use core::sync::atomic::{AtomicU64, Ordering};

/// Times are kept in parts of a nanosecond, so that many units may come in one.
const PARTS: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// How fast a bucket fills, and how much it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    /// How long a unit takes, in parts of a nanosecond; 0 where nothing is limited.
    unit: u64,
    /// How long an empty bucket takes to fill, in nanoseconds.
    burst: u64,
}

impl Rate {
    /// No limit.
    pub(crate) const NONE: Rate = Rate { unit: 0, burst: 0 };

    /// A rate of `per_second` units with a burst of `at_once`; 0 a second is no limit.
    pub(crate) const fn new(per_second: u64, at_once: u64) -> Rate {
        if per_second == 0 {
            return Rate::NONE;
        }
        let unit = SECOND * PARTS / per_second;
        let unit = if unit == 0 { 1 } else { unit };
        let burst = at_once as u128 * unit as u128 / PARTS as u128;
        Rate { unit, burst: if burst > u64::MAX as u128 { u64::MAX } else { burst as u64 } }
    }

    /// When a bucket that would be full at `full_at` is full once `cost` units are taken from it;
    /// `None` if it holds less.
    fn take(&self, full_at: u64, now: Time, cost: u64) -> Option<u64> {
        let now = now.as_nanos();
        let full_at = full_at.max(now).saturating_add(self.unit.saturating_mul(cost) / PARTS);
        (full_at - now <= self.burst).then_some(full_at)
    }

    /// Whether a bucket that would be full at `full_at` holds three quarters or more.
    fn is_mostly_full(&self, full_at: u64, now: Time) -> bool {
        full_at.saturating_sub(now.as_nanos()) <= self.burst / 4
    }
}

/// A bucket of which its owner knows the rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// When it would be full again, in nanoseconds.
    full_at: u64,
}

impl Bucket {
    /// One that nobody has taken from will be full then.
    pub(crate) fn full_at(time: Time) -> Bucket {
        Bucket { full_at: time.as_nanos() }
    }

    /// Takes `cost` units, if the bucket holds them.
    #[inline]
    pub(crate) fn take(&mut self, rate: &Rate, now: Time, cost: u64) -> bool {
        if rate.unit == 0 {
            return true;
        }
        let taken = rate.take(self.full_at, now, cost);
        if let Some(full_at) = taken {
            self.full_at = full_at;
        }
        taken.is_some()
    }

    /// It is filled at another rate from now on, and holds as much as before, if that is not more than it
    /// can.
    pub(crate) fn change_rate(&mut self, before: &Rate, after: &Rate, now: Time) {
        let now = now.as_nanos();
        let lacks = self.full_at.saturating_sub(now);
        let held = match before.unit {
            // Nobody has taken from it: it fills as it did.
            0 => after.burst.saturating_sub(lacks),
            unit => {
                let held = u128::from(before.burst.saturating_sub(lacks));
                let held = held * u128::from(after.unit) / u128::from(unit);
                u64::try_from(held).unwrap_or(u64::MAX)
            }
        };
        if after.unit > 0 {
            self.full_at = now.saturating_add(after.burst.saturating_sub(held));
        }
    }

    /// Whether it holds a unit.
    pub(crate) fn holds_one(&self, rate: &Rate, now: Time) -> bool {
        rate.unit == 0 || rate.take(self.full_at, now, 1).is_some()
    }

    /// Whether three quarters of it or more are there.
    pub(crate) fn is_mostly_full(&self, rate: &Rate, now: Time) -> bool {
        rate.is_mostly_full(self.full_at, now)
    }
}

/// A bucket that data threads share.
#[derive(Debug, Default)]
pub(crate) struct SharedBucket(AtomicU64);

impl SharedBucket {
    /// Takes one unit, if the bucket holds it.
    pub(crate) fn take(&self, rate: &Rate, now: Time) -> bool {
        let taken = |full_at| rate.take(full_at, now, 1);
        rate.unit == 0 || self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Whether three quarters of it or more are there.
    pub(crate) fn is_mostly_full(&self, rate: &Rate, now: Time) -> bool {
        rate.is_mostly_full(self.0.load(Ordering::Relaxed), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    /// Takes `cost` at every one of `times` of a second, and counts how much was taken.
    fn taken_in_a_second(rate: &Rate, times: u64, cost: u64) -> u64 {
        let (mut bucket, shared) = (Bucket::default(), SharedBucket::default());
        let mut taken = 0;
        for time in 0..times {
            let now = Time::from_nanos(time * SECOND / times);
            let may = bucket.take(rate, now, cost);
            if cost == 1 {
                assert_eq!(shared.take(rate, now), may, "the shared one is no other");
            }
            taken += if may { cost } else { 0 };
        }
        taken
    }

    #[test]
    fn a_flood_gets_the_rate_and_one_burst() {
        for (rate, at_once, times, cost) in
            [(20_000, 512, 1_000_000, 1), (10, 3, 100_000, 1), (1_000_000, 50_000, 10_000, 9_856)]
        {
            let taken = taken_in_a_second(&Rate::new(rate, at_once), times, cost);
            let most = rate + at_once;
            assert!((most - cost - 2..=most + 1).contains(&taken), "{taken} of {most}");
        }
        // A unit takes less than a nanosecond.
        let taken = taken_in_a_second(&Rate::new(10_000_000_000, 100_000), 2_000_000, 11_616);
        assert!((9_980_000_000..=10_020_000_000).contains(&taken), "{taken}");
    }

    #[test]
    fn who_keeps_to_the_rate_is_never_refused() {
        assert_eq!(taken_in_a_second(&Rate::new(1000, 1), 1000, 1), 1000);
        assert_eq!(taken_in_a_second(&Rate::new(80_000, 800), 100, 800), 80_000);
    }

    #[test]
    fn no_rate_is_no_limit() {
        assert_eq!(taken_in_a_second(&Rate::NONE, 1000, u64::MAX / 1000), u64::MAX / 1000 * 1000);
        assert_eq!(Rate::new(0, 7), Rate::NONE);
    }

    /// A budget that is raised is there at once, also for who had spent the one before; and no change gives
    /// anybody more.
    #[test]
    fn what_a_bucket_holds_outlasts_a_change_of_its_rate() {
        let (slow, fast) = (Rate::new(10, 100), Rate::new(1000, 1100));
        let holds = |mut bucket: Bucket, rate: &Rate, now| {
            (0..2000).take_while(|_| bucket.take(rate, now, 1)).count()
        };
        let (mut bucket, now) = (Bucket::default(), Time::from_millis(5));
        assert!(bucket.take(&slow, now, 93));
        bucket.change_rate(&slow, &fast, now);
        assert_eq!(holds(bucket, &fast, now), 7);
        assert_eq!(holds(bucket, &fast, now + Duration::from_millis(100)), 107);
        bucket.change_rate(&fast, &slow, now);
        assert_eq!(holds(bucket, &slow, now), 7);
        let mut full = Bucket::default();
        full.change_rate(&fast, &slow, now);
        assert_eq!(holds(full, &slow, now), 100, "no more than it can hold");
        full.change_rate(&slow, &Rate::NONE, now);
        full.change_rate(&Rate::NONE, &fast, now);
        assert_eq!(holds(full, &fast, now), 1100, "nobody took from it");
    }

    #[test]
    fn more_than_it_holds_is_refused_and_costs_nothing() {
        let (rate, mut bucket) = (Rate::new(1000, 10), Bucket::default());
        assert!(!bucket.take(&rate, Time::ZERO, 11));
        assert!(bucket.take(&rate, Time::ZERO, 10));
        assert!(!bucket.take(&rate, Time::ZERO, 1));
    }
}
