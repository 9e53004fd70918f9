//! What relays have measured of the ways to others, and whom each is asked to measure next.
//!
//! Nothing of it is stored: a controller that starts asks anew. What is known of a relay is bounded,
//! and whatever a relay says that it was not asked is counted and forgotten.

use crate::model::RelayId;
use crate::propose::{Pair, pair};
use crate::signal::{MOST_MEASURED, Measure, Measured, Other, Reading};
use canopy_wire::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// A relay is asked this often, and by up to a quarter later, so that not all are asked at once.
const EVERY: Duration = Duration::from_secs(60);
/// How many others are known at most by a relay's own word.
const MOST_KNOWN: usize = 128;
/// How many of those that are asked for are the nearest known ones, and how many those that are likely
/// to be near because relays nearby are near them.
const NEAR: usize = MOST_MEASURED / 4;
/// A longer time one way is not believed, microseconds.
const MOST_DELAY: u32 = 10_000_000;
/// A new reading counts for one part in so many.
const PART: f64 = 2.0;
/// A relay that has not answered so many times in a row is out of reach.
const MOST_MISSED: u8 = 2;
/// A way that has changed by less than this share is no news.
const NEWS: f64 = 0.1;

/// Why something that relays have said of their ways counted for nothing, how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// The message cannot be read.
    pub unreadable: u64,
    /// It answers what was not asked last, such as what a controller before has asked.
    pub late: u64,
    /// It is of a relay of which nothing was asked, or that was answered for already.
    pub unasked: u64,
    /// It cannot be true.
    pub unbelievable: u64,
}

/// What relays have measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measuring {
    of: BTreeMap<RelayId, Own>,
    pub(crate) ignored: Ignored,
    /// Whether something has changed since it was last asked.
    has_news: bool,
}

/// What one relay has measured.
#[derive(Clone, Debug, Default)]
struct Own {
    round: u32,
    asked: BTreeSet<RelayId>,
    next: Option<Time>,
    known: BTreeMap<RelayId, Known>,
}

/// How far another is from it.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Microseconds one way, smoothed. A way that loses counts as longer by what it loses.
    delay: f64,
    round: u32,
    missed: u8,
}

impl Measuring {
    /// What a relay is to measure now, of these others; nothing while that is not due.
    pub(crate) fn ask(
        &mut self,
        now: Time,
        controller: u32,
        relay: RelayId,
        others: impl Fn() -> Vec<Other>,
    ) -> Option<Measure> {
        let own = self.of.entry(relay).or_default();
        if own.next.is_some_and(|next| now < next) {
            return None;
        }
        let later = EVERY / 4 * (mix(relay, relay, own.round) % 256) as u32 / 256;
        own.next = Some(now + EVERY + later);
        own.round += 1;
        let round = own.round;
        let others = self.choose(relay, round, others());
        if let Some(own) = self.of.get_mut(&relay) {
            own.asked = others.iter().map(|other| other.relay).collect();
        }
        (!others.is_empty()).then_some(Measure { controller, round, others })
    }

    /// As many of the others as are measured at a time: the nearest, those that are likely to be near,
    /// and then those that were measured longest ago or never.
    fn choose(&self, relay: RelayId, round: u32, mut others: Vec<Other>) -> Vec<Other> {
        if others.len() <= MOST_MEASURED {
            return others;
        }
        let known = |of: RelayId| self.of.get(&of).map(|own| &own.known);
        let far = |of: &Other| {
            let own = known(relay).and_then(|known| known.get(&of.relay)).map(|of| of.delay);
            own.unwrap_or(f64::INFINITY)
        };
        // The bits of numbers that are not negative are in their order.
        others.sort_by_cached_key(|of| far(of).to_bits());
        let mut rest = others.split_off(NEAR);
        let round_about = |of: &Other| {
            let over = |near: &Other| {
                let on = known(near.relay).and_then(|known| known.get(&of.relay));
                far(near) + on.map_or(f64::INFINITY, |on| on.delay)
            };
            others.iter().map(over).fold(f64::INFINITY, f64::min)
        };
        rest.sort_by_cached_key(|of| round_about(of).to_bits());
        let mut last = rest.split_off(NEAR);
        let age = |of: &Other| {
            let round_of = known(relay).and_then(|known| known.get(&of.relay)).map(|of| of.round);
            (round_of.unwrap_or(0), mix(relay, of.relay, round))
        };
        last.sort_by_cached_key(age);
        last.truncate(MOST_MEASURED - 2 * NEAR);
        others.into_iter().chain(rest).chain(last).collect()
    }

    /// Takes what a relay says that it has measured.
    pub(crate) fn take(&mut self, controller: u32, relay: RelayId, measured: Measured) {
        let Some(own) = self.of.get_mut(&relay) else {
            self.ignored.late += 1;
            return;
        };
        if (measured.controller, measured.round) != (controller, own.round) {
            self.ignored.late += 1;
            return;
        }
        for reading in measured.readings {
            let Reading { relay: other, delay_us, asked, answered } = reading;
            if !own.asked.remove(&other) {
                self.ignored.unasked += 1;
            } else if answered > asked || delay_us > MOST_DELAY {
                self.ignored.unbelievable += 1;
            } else {
                self.has_news |= own.note(other, reading);
            }
        }
    }

    /// By pair: how long the way is, microseconds. Waiting makes a way longer and nothing makes it
    /// shorter, so of two words the lesser counts.
    pub(crate) fn pairs(&self) -> BTreeMap<Pair, u32> {
        let words = self.of.iter().flat_map(|(relay, own)| {
            own.known
                .iter()
                .map(|(other, known)| (pair(*relay, *other), known.delay.round() as u32))
        });
        let mut words: Vec<(Pair, u32)> = words.collect();
        words.sort_unstable();
        words.dedup_by_key(|(pair, _)| *pair);
        words.into_iter().collect()
    }

    /// How long the way between two relays is by what they have measured, microseconds.
    pub(crate) fn between(&self, one: RelayId, other: RelayId) -> Option<u32> {
        let of = |from, to| {
            let known = self.of.get(&from).and_then(|own| own.known.get(&to));
            known.map(|known| known.delay.round() as u32)
        };
        of(one, other).into_iter().chain(of(other, one)).min()
    }

    /// Whether something has changed since this was last asked.
    pub(crate) fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.has_news)
    }

    /// Forgets what is known of relays that are not there any more.
    pub(crate) fn keep(&mut self, is_there: impl Fn(RelayId) -> bool) {
        self.of.retain(|relay, _| is_there(*relay));
        self.of.values_mut().for_each(|own| own.known.retain(|other, _| is_there(*other)));
    }

    /// A relay that comes anew is asked at once.
    pub(crate) fn hurry(&mut self, relay: RelayId) {
        if let Some(own) = self.of.get_mut(&relay) {
            own.next = None;
        }
    }
}

impl Own {
    /// Returns whether that is news.
    fn note(&mut self, other: RelayId, reading: Reading) -> bool {
        let round = self.round;
        if reading.answered == 0 {
            let Some(known) = self.known.get_mut(&other) else { return false };
            known.missed += 1;
            known.round = round;
            if known.missed >= MOST_MISSED {
                self.known.remove(&other);
                return true;
            }
            return false;
        }
        let loses = f64::from(reading.asked) / f64::from(reading.answered);
        let delay = f64::from(reading.delay_us.max(1)) * loses;
        let Some(known) = self.known.get_mut(&other) else {
            if self.known.len() >= MOST_KNOWN {
                let oldest = self.known.iter().min_by_key(|(_, known)| known.round);
                if let Some(oldest) = oldest.map(|(relay, _)| *relay) {
                    self.known.remove(&oldest);
                }
            }
            self.known.insert(other, Known { delay, round, missed: 0 });
            return true;
        };
        let before = known.delay;
        known.delay += (delay - before) / PART;
        (known.round, known.missed) = (round, 0);
        (known.delay - before).abs() >= before * NEWS
    }
}

/// A number that is another for each of two relays and round, and the same each time.
fn mix(one: RelayId, other: RelayId, round: u32) -> u64 {
    let seed = u64::from(one.0) << 48 ^ u64::from(other.0) << 32 ^ u64::from(round);
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: RelayId = RelayId(1);

    fn others(count: u16) -> Vec<Other> {
        let native = ([127, 0, 0, 1], 1).into();
        (2..2 + count).map(|of| Other { relay: RelayId(of), native }).collect()
    }

    fn reading(relay: RelayId, delay_us: u32, answered: u8) -> Reading {
        Reading { relay, delay_us, asked: 4, answered }
    }

    /// A round in which each answers after so long.
    fn round(
        measuring: &mut Measuring,
        now: Time,
        count: u16,
        delay: impl Fn(RelayId) -> u32,
    ) -> usize {
        let Some(asked) = measuring.ask(now, 1, ME, || others(count)) else { return 0 };
        let readings = asked.others.iter().map(|of| reading(of.relay, delay(of.relay), 4));
        let told = Measured { controller: 1, round: asked.round, readings: readings.collect() };
        measuring.take(1, ME, told);
        asked.others.len()
    }

    #[test]
    fn a_relay_is_asked_seldom_and_comes_round_to_everybody() {
        let mut measuring = Measuring::default();
        let mut now = Time::from_millis(1);
        for rounds in 1..=5_u64 {
            assert_eq!(round(&mut measuring, now, 100, |of| u32::from(of.0) * 100), MOST_MEASURED);
            assert_eq!(round(&mut measuring, now + EVERY / 2, 100, |_| 1), 0, "it is not due");
            now = now + EVERY * 2;
            let known = measuring.of[&ME].known.len();
            assert!(known >= 100.min(16 * rounds as usize), "{known} after {rounds}");
        }
        for _ in 0..4 {
            round(&mut measuring, now, 100, |of| u32::from(of.0) * 100);
            now = now + EVERY * 2;
        }
        let known = &measuring.of[&ME].known;
        assert_eq!(known.len(), 100, "all are known");
        let newest = measuring.of[&ME].round;
        let nearest = (2..10).all(|of| known[&RelayId(of)].round == newest);
        assert!(nearest, "the nearest are measured each time");
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut measuring = Measuring::default();
        for rounds in 0..40_u64 {
            round(&mut measuring, Time::from_millis(rounds * 200_000), 1_000, |_| 100);
        }
        assert_eq!(measuring.of[&ME].known.len(), MOST_KNOWN);
    }

    #[test]
    fn relays_near_a_near_one_are_measured_next() {
        let mut measuring = Measuring::default();
        let near = Known { delay: 100.0, round: 1, missed: 0 };
        let of = |known: &[u16]| Own {
            known: known.iter().map(|of| (RelayId(*of), near)).collect(),
            ..Own::default()
        };
        measuring.of.insert(ME, of(&[2]));
        measuring.of.insert(RelayId(2), of(&[700, 701]));
        let asked = measuring.ask(Time::ZERO, 1, ME, || others(1_000)).unwrap();
        let is_asked = |of| asked.others.iter().any(|other| other.relay == RelayId(of));
        assert!(is_asked(2) && is_asked(700) && is_asked(701));
    }

    #[test]
    fn what_was_not_asked_or_cannot_be_counts_for_nothing() {
        let mut measuring = Measuring::default();
        measuring.take(1, ME, Measured { controller: 1, round: 1, readings: Vec::new() });
        let asked = measuring.ask(Time::ZERO, 1, ME, || others(3)).unwrap();
        let mut say = |controller, round, readings: &[Reading]| {
            measuring.take(1, ME, Measured { controller, round, readings: readings.to_vec() });
            measuring.ignored
        };
        let good = reading(RelayId(2), 5_000, 4);
        say(9, asked.round, &[good]);
        assert_eq!(say(1, asked.round + 1, &[good]).late, 3);
        let lies = [reading(RelayId(3), MOST_DELAY + 1, 4), reading(RelayId(4), 1, 5)];
        assert_eq!(say(1, asked.round, &lies).unbelievable, 2);
        let twice = [good, good, reading(RelayId(99), 1, 4), reading(ME, 1, 4)];
        assert_eq!(say(1, asked.round, &twice).unasked, 3);
        assert_eq!(measuring.pairs(), BTreeMap::from([((ME, RelayId(2)), 5_000)]));
    }

    #[test]
    fn what_is_lost_makes_a_way_longer_and_silence_ends_it() {
        let mut measuring = Measuring::default();
        let mut now = Time::from_millis(1);
        let mut say = |answered| {
            let asked = measuring.ask(now, 1, ME, || others(1)).unwrap();
            now = now + EVERY * 2;
            let readings = vec![reading(RelayId(2), 8_000, answered)];
            measuring.take(1, ME, Measured { controller: 1, round: asked.round, readings });
            (measuring.take_news(), measuring.between(RelayId(2), ME))
        };
        assert_eq!(say(0), (false, None));
        assert_eq!(say(4), (true, Some(8_000)));
        assert_eq!(say(4), (false, Some(8_000)));
        assert_eq!(say(2), (true, Some(12_000)), "half of it is lost");
        assert_eq!(say(0), (false, Some(12_000)), "once is an accident");
        assert_eq!(say(0), (true, None), "it is out of reach");
        assert_eq!(say(4), (true, Some(8_000)));
    }
}
