//! Ages of updates at their receivers.

use crate::report::Ages;
use canopy_wire::Time;
use hdrhistogram::Histogram;
use std::time::Duration;

/// How often the ages of late are summed up.
const RECENT: Duration = Duration::from_secs(1);

/// Ages of all deliveries, and of the last second's.
pub(super) struct AgeMeter {
    all: Histogram<u64>,
    recent: Histogram<u64>,
    /// Half, and 99 of 100, of the last whole second's were younger, microseconds.
    last: (u64, u64),
    /// When the second that is being measured ends.
    until: Time,
}

impl AgeMeter {
    /// One that sums up for the first time at `start`.
    pub(super) fn new(start: Time) -> AgeMeter {
        // Ages up to a minute, in nanoseconds, to three digits.
        let ages = || Histogram::new_with_bounds(1, 60_000_000_000, 3);
        let (Ok(all), Ok(recent)) = (ages(), ages()) else { unreachable!("the bounds are valid") };
        AgeMeter { all, recent, last: (0, 0), until: start }
    }

    pub(super) fn record(&mut self, age: Duration) {
        // Saturating, so it cannot fail.
        self.all.saturating_record(age.as_nanos() as u64);
        self.recent.saturating_record(age.as_nanos() as u64);
    }

    /// Sums up what has come of late, once a second.
    pub(super) fn turn(&mut self, now: Time) {
        if now >= self.until {
            self.until = now + RECENT;
            self.last = (micros(&self.recent, 0.5), micros(&self.recent, 0.99));
            self.recent.reset();
        }
    }

    /// Half, and 99 of 100, of the last whole second's deliveries were younger, microseconds.
    pub(super) fn last(&self) -> (u64, u64) {
        self.last
    }

    /// Ages of all deliveries.
    pub(super) fn all(&self) -> Ages {
        let micros = |quantile| micros(&self.all, quantile);
        Ages { p50: micros(0.5), p99: micros(0.99), p999: micros(0.999) }
    }
}

fn micros(ages: &Histogram<u64>, quantile: f64) -> u64 {
    ages.value_at_quantile(quantile) / 1000
}
