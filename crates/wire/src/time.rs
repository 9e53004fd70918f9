//! Time as the sans-IO crates see it: handed in, never read.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the driver chose (its start, or 0 in the
/// simulator). It never runs backwards within one driver. Wraps after 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The driver's origin.
    pub const ZERO: Time = Time(0);

    /// The point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// The point `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The first point after this one that is a whole number of `period` from the origin.
    pub fn next_multiple(self, period: Duration) -> Time {
        self.last_multiple(period) + period.max(Duration::from_nanos(1))
    }

    /// The last point, up to this one, that is a whole number of `period` from the origin.
    pub fn last_multiple(self, period: Duration) -> Time {
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
        Time(self.0 - self.0 % period)
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, after: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, before: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(before.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_multiple_is_strictly_later() {
        let tick = Duration::from_millis(50);
        assert_eq!(Time::from_millis(49).next_multiple(tick), Time::from_millis(50));
        assert_eq!(Time::from_millis(50).next_multiple(tick), Time::from_millis(100));
        assert_eq!(Time::from_nanos(5).next_multiple(Duration::ZERO), Time::from_nanos(6));
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Time::ZERO - Duration::from_secs(1), Time::ZERO);
        assert_eq!(Time::ZERO.since(Time::from_millis(1)), Duration::ZERO);
        let end = Time::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
    }
}
