//! What relays have measured of the ways to others, and whom each is asked to measure next.
//!
//! Nothing of it is stored: a controller that starts asks anew. What is known of a relay is bounded,
//! and whatever a relay says that it was not asked is counted and forgotten.

use crate::model::RelayId;
use crate::propose::Pair;
use crate::signal::{MOST_MEASURED, Measure, Measured, Other, Reading};
use canopy_wire::Time;
use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// A relay is asked this often, and by up to a quarter later, so that not all are asked at once.
const EVERY: Duration = Duration::from_secs(60);
/// How many others are known at most by a relay's own word.
const MOST_KNOWN: usize = 128;
/// How many of those that are asked for are the nearest known ones, and how many those that are likely
/// to be near because relays nearby are near them.
const NEAR: usize = MOST_MEASURED / 4;
/// A relay that has so few ways that both ends have measured waits for others' word: whom it has measured
/// is asked at once,
const FEW: usize = NEAR;
/// but so long after it was asked last.
const SOON: Duration = Duration::from_secs(5);
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
    /// When it was asked last.
    last: Time,
    /// Who waits for its word, [`MOST_MEASURED`] at most.
    waiting: BTreeSet<RelayId>,
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
        let is_due = own.next.is_none_or(|next| now >= next);
        if !is_due && (own.waiting.is_empty() || now < own.last + SOON) {
            return None;
        }
        own.round += 1;
        own.last = now;
        let (round, waiting) = (own.round, core::mem::take(&mut own.waiting));
        let others = if is_due {
            let later = EVERY / 4 * (mix(relay, relay, own.round) % 256) as u32 / 256;
            own.next = Some(now + EVERY + later);
            self.choose(relay, round, others())
        } else {
            let mut others = others();
            others.retain(|other| waiting.contains(&other.relay));
            others
        };
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
        // The bits of numbers that are not negative are in their order. Of those of whom nothing is known
        // not all relays ask for the same ones.
        others.sort_by_cached_key(|of| (far(of).to_bits(), mix(relay, of.relay, round)));
        let mut rest = others.split_off(NEAR);
        let round_about = |of: &Other| {
            let over = |near: &Other| {
                // Whoever says that it is near everybody has nobody measured for that.
                far(near) + self.agreed(near.relay, of.relay).unwrap_or(f64::INFINITY)
            };
            others.iter().map(over).fold(f64::INFINITY, f64::min)
        };
        rest.sort_by_cached_key(|of| (round_about(of).to_bits(), mix(relay, of.relay, round)));
        let mut last = rest.split_off(NEAR);
        // Those who have measured it wait for its word. They have half of what is left.
        last.sort_by_cached_key(|of| {
            let is_known = |from, to| known(from).is_some_and(|known| known.contains_key(&to));
            let waits = is_known(of.relay, relay) && !is_known(relay, of.relay);
            (!waits, mix(relay, of.relay, round))
        });
        let waiting = MOST_MEASURED / 2 - NEAR;
        let mut later = last.split_off(waiting.min(last.len()));
        let age = |of: &Other| {
            let round_of = known(relay).and_then(|known| known.get(&of.relay)).map(|of| of.round);
            (round_of.unwrap_or(0), mix(relay, of.relay, round))
        };
        later.sort_by_cached_key(age);
        later.truncate(MOST_MEASURED - 2 * NEAR - waiting);
        others.into_iter().chain(rest).chain(last).chain(later).collect()
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
        let mut heard = Vec::new();
        for reading in measured.readings {
            let Reading { relay: other, delay_us, asked, answered } = reading;
            if !own.asked.remove(&other) {
                self.ignored.unasked += 1;
            } else if answered > asked || delay_us > MOST_DELAY {
                self.ignored.unbelievable += 1;
            } else {
                self.has_news |= own.note(other, reading);
                heard.extend((answered > 0).then_some(other));
            }
        }
        self.press(relay, &heard);
    }

    /// Has others asked soon who are to say how far a relay is, if few have said so yet.
    fn press(&mut self, relay: RelayId, heard: &[RelayId]) {
        let Some(own) = self.of.get(&relay) else { return };
        let agreed = own.known.keys().filter(|other| self.agreed(relay, **other).is_some());
        if agreed.count() >= FEW {
            return;
        }
        for other in heard {
            if let Some(of) = self.of.get_mut(other)
                && !of.known.contains_key(&relay)
                && of.waiting.len() < MOST_MEASURED
            {
                of.waiting.insert(relay);
            }
        }
    }

    /// By pair: how long the way is, microseconds, where both ends have measured it. The greater word
    /// counts: nobody draws ways to itself by saying that it is near, not even if it is believed nowhere
    /// else; and who says that it is far harms its own links alone.
    pub(crate) fn pairs(&self) -> BTreeMap<Pair, u32> {
        let agreed = self.of.iter().flat_map(|(one, own)| {
            let after = (Bound::Excluded(*one), Bound::Unbounded);
            let of_one = own.known.range(after);
            of_one.filter_map(|(other, known)| {
                let theirs = self.of.get(other)?.known.get(one)?;
                Some(((*one, *other), known.delay.max(theirs.delay).round() as u32))
            })
        });
        agreed.collect()
    }

    /// How long the way between two relays is as far as both have measured it, microseconds.
    pub(crate) fn between(&self, one: RelayId, other: RelayId) -> Option<u32> {
        self.agreed(one, other).map(|delay| delay.round() as u32)
    }

    fn agreed(&self, one: RelayId, other: RelayId) -> Option<f64> {
        let of = |from, to| Some(self.of.get(&from)?.known.get(&to)?.delay);
        Some(of(one, other)?.max(of(other, one)?))
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
mod tests;
