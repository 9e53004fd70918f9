//! Recordings made up for tests.

use super::recording::{Published, Recording, Viewed, Weighed};
use canopy_wire::{Time, Weight};
use std::time::Duration;

/// Walkers in a row, a metre apart, that publish evenly; all but the first and the last three seconds
/// count. Nobody looks on.
pub(super) fn even(walkers: u32, rate: f64, seconds: f64) -> Recording {
    let updates = (rate * seconds) as u32;
    let published = (0..updates).flat_map(|step| {
        (0..walkers).map(move |walker| {
            let phase = f64::from(walker) / f64::from(walkers);
            let at = Duration::from_secs_f64((f64::from(step) + phase) / rate);
            let place = [f64::from(walker), 0.0];
            Published {
                at: Time::ZERO + at,
                walker,
                place,
                demand: rate,
                is_last: step + 1 == updates,
            }
        })
    });
    let end = Duration::from_secs_f64(seconds - 3.0);
    Recording {
        walkers: walkers as usize,
        published: published.collect(),
        viewers: Vec::new(),
        is_shared: false,
        measured: (Time::from_millis(3000), Time::ZERO + end),
        bytes_each: 100.0,
        floor: 0.5,
        tick: Duration::from_millis(50),
        lost: 0,
    }
}

/// A viewer to whom all weights are alike, and to whom nothing came.
pub(super) fn viewer(walker: u32, budget: f64, bits: f64) -> Viewed {
    let weigh = |walker| Weighed { at: Time::ZERO, walker, weight: Weight::ONE };
    Viewed {
        walker,
        budget,
        bits,
        arrivals: Vec::new(),
        datagrams: Vec::new(),
        weights: (0..100).filter(|one| *one != walker).map(weigh).collect(),
    }
}
