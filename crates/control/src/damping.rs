//! Links that come and go: each failure counts as a penalty, which halves with time (RFC 2439).

use canopy_wire::Time;
use core::time::Duration;

/// A penalty of a failure.
const FAILURE: f64 = 1_000.0;
/// Above this a link is not used.
const SUPPRESS: f64 = 2_500.0;
/// Below this it is used again.
const REUSE: f64 = 1_000.0;
/// No penalty is larger: a link is used again four half-lives after its last failure at most.
const MOST: f64 = 16_000.0;

/// How often a link has failed lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Damping {
    penalty: f64,
    at: Time,
    is_suppressed: bool,
}

impl Damping {
    fn decay(&mut self, now: Time, half_life: Duration) {
        let halves = now.since(self.at).as_secs_f64() / half_life.as_secs_f64().max(1e-3);
        self.penalty *= (-halves).exp2();
        self.at = now;
        self.is_suppressed &= self.penalty > REUSE;
    }

    /// The link has failed.
    pub(crate) fn fail(&mut self, now: Time, half_life: Duration) {
        self.decay(now, half_life);
        self.penalty = (self.penalty + FAILURE).min(MOST);
        self.is_suppressed |= self.penalty > SUPPRESS;
    }

    /// Whether the link has failed too often to be used.
    pub(crate) fn is_suppressed(&mut self, now: Time, half_life: Duration) -> bool {
        self.decay(now, half_life);
        self.is_suppressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE: Duration = Duration::from_secs(15);

    #[test]
    fn a_link_that_flaps_is_not_used_for_a_while() {
        let mut damping = Damping::default();
        let second = |s: u64| Time::from_millis(s * 1000);
        for s in 0..2 {
            damping.fail(second(s), HALF_LIFE);
            assert!(!damping.is_suppressed(second(s), HALF_LIFE));
        }
        damping.fail(second(2), HALF_LIFE);
        assert!(damping.is_suppressed(second(2), HALF_LIFE));
        assert!(damping.is_suppressed(second(20), HALF_LIFE), "2,870 is above 1,000 for 23 s");
        assert!(!damping.is_suppressed(second(27), HALF_LIFE));
    }

    #[test]
    fn failures_an_hour_apart_cost_nothing() {
        let mut damping = Damping::default();
        for hour in 0..20 {
            let now = Time::from_millis(hour * 3_600_000);
            damping.fail(now, HALF_LIFE);
            assert!(!damping.is_suppressed(now, HALF_LIFE));
        }
    }
}
