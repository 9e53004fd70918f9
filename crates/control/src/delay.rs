//! A link's delay as its two ends measure it: smoothed, and followed only if it has really changed, so
//! that a measurement that trembles neither moves a tree nor writes a record.

use crate::model::RelayId;
use std::collections::BTreeMap;

/// A new measurement counts for one part in so many. With two beats a second, four fifths of a change
/// are known after six seconds.
const PART: f64 = 8.0;
/// A change of less than this share of the known delay is not followed.
const LEAST_SHARE: f64 = 0.1;
/// A change of less than this is not followed, microseconds.
const LEAST: f64 = 100.0;

/// What the ends of a link have measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delays {
    ends: BTreeMap<RelayId, Measured>,
}

/// What an end has measured, microseconds one way.
#[derive(Clone, Copy, Debug)]
struct Measured {
    smoothed: f64,
    last: f64,
}

impl Delays {
    /// Takes a measurement of an end, microseconds one way; zero is none.
    pub(crate) fn measure(&mut self, end: RelayId, delay_us: u32) {
        if delay_us == 0 {
            return;
        }
        let measured = f64::from(delay_us);
        let first = Measured { smoothed: measured, last: measured };
        let of = self.ends.entry(end).or_insert(first);
        // A single late one is an accident.
        let believed = measured.min(of.last.max(of.smoothed));
        of.smoothed += (believed - of.smoothed) / PART;
        of.last = measured;
    }

    /// Whether both ends have measured it.
    pub(crate) fn are_both(&self) -> bool {
        self.ends.len() == 2
    }

    /// The delay to go by instead of the known one, microseconds, if it has changed enough: what the
    /// end says that finds it longer. So an end that lies makes the link look longer, never shorter than
    /// the other finds it.
    pub(crate) fn change(&self, known_us: u32) -> Option<u32> {
        let measured = self.ends.values().map(|of| of.smoothed).fold(0.0, f64::max);
        let known = f64::from(known_us);
        if !self.are_both() && measured < known {
            return None;
        }
        let least = (known * LEAST_SHARE).max(LEAST);
        (measured > 0.0 && (measured - known).abs() >= least).then_some(measured.round() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [RelayId; 2] = [RelayId(1), RelayId(2)];

    #[test]
    fn the_first_measurement_replaces_what_was_given() {
        let mut delays = Delays::default();
        assert_eq!(delays.change(1_000), None, "nothing is measured");
        delays.measure(ENDS[0], 0);
        assert_eq!(delays.change(1_000), None, "zero is no measurement");
        delays.measure(ENDS[0], 20_000);
        assert_eq!(delays.change(1_000), Some(20_000));
        assert_eq!(delays.change(30_000), None, "one end alone makes it no shorter");
        delays.measure(ENDS[1], 22_000);
        assert_eq!(delays.change(1_000), Some(22_000), "the longer one counts, whose it may be");
        (0..99).for_each(|_| delays.measure(ENDS[1], 1));
        assert_eq!(delays.change(1_000), Some(20_000), "nobody makes it shorter alone");
        (0..99).for_each(|_| delays.measure(ENDS[1], 90_000));
        assert!(delays.change(1_000).is_some_and(|delay| delay > 80_000));
    }

    #[test]
    fn one_late_measurement_and_trembling_ones_change_nothing() {
        let mut delays = Delays::default();
        ENDS.iter().for_each(|end| delays.measure(*end, 20_000));
        delays.measure(ENDS[0], 45_000);
        assert_eq!(delays.change(20_000), None);
        for round in 0..200_u32 {
            let delay_us = 20_000 + round * 7_919 % 3_000 - 1_500;
            ENDS.iter().for_each(|end| delays.measure(*end, delay_us));
            assert_eq!(delays.change(20_000), None, "{round}");
        }
        for round in 0..200_u32 {
            ENDS.iter().for_each(|end| delays.measure(*end, 20 + round % 60));
        }
        assert_eq!(delays.change(50), None, "tens of microseconds are noise");
    }

    #[test]
    fn a_change_that_stays_is_followed_in_few_steps() {
        let mut delays = Delays::default();
        ENDS.iter().for_each(|end| delays.measure(*end, 10_000));
        let (mut known, mut steps) = (10_000, 0);
        for _ in 0..100 {
            ENDS.iter().for_each(|end| delays.measure(*end, 40_000));
            if let Some(to) = delays.change(known) {
                (known, steps) = (to, steps + 1);
            }
        }
        assert!((36_000..=40_000).contains(&known), "{known}");
        assert!(steps <= 14, "{steps} records were written");
    }
}
