//! The rows of `canopy bench chain`.

use super::{Core, Measuring};
use crate::flag_value;
use crate::noise::median;
use crate::relay::cases::Case;
use crate::relay::load::Measured;
use crate::table::{Column, table};
use serde::Serialize;

/// What a crowd cost one network.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    relays: u16,
    core: Core,
    #[serde(flatten)]
    case: Case,
    /// Processor time of all relays together; the median of the rounds.
    ns_per_delivery: f64,
    /// Against the single relay's: the median of the same-round ratios, and their range.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    age_p50_us: u64,
    age_p99_us: u64,
    /// The share of the deliveries that did not arrive.
    pub(super) loss: f64,
    /// Deliveries in all rounds that count.
    deliveries: u64,
    /// Rounds that count, and those discarded for steal.
    rounds: usize,
    rounds_discarded: u32,
}

impl Row {
    /// What was measured of a network, and of a single relay in the same rounds.
    pub(super) fn new(case: &Case, one: &Measuring, single: &[Measured], discarded: u32) -> Row {
        let rounds = &one.rounds;
        let pairs = rounds.iter().zip(single);
        let ratios: Vec<f64> = pairs.map(|(one, single)| one.cost() / single.cost()).collect();
        let costs: Vec<f64> = rounds.iter().map(|round| round.cost() * 1e3).collect();
        let mut ages = rounds[0].ages.clone();
        for round in &rounds[1..] {
            // Same bounds, so it cannot fail.
            let _ = ages.add(&round.ages);
        }
        let sum = |of: fn(&Measured) -> u64| rounds.iter().map(of).sum::<u64>();
        Row {
            relays: one.layout.relays,
            core: one.layout.core,
            case: *case,
            ns_per_delivery: median(&costs),
            ratio: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            age_p50_us: ages.value_at_quantile(0.5) / 1000,
            age_p99_us: ages.value_at_quantile(0.99) / 1000,
            loss: sum(Measured::lost) as f64 / sum(|round| round.expected).max(1) as f64,
            deliveries: sum(|round| round.deliveries),
            rounds: rounds.len(),
            rounds_discarded: discarded,
        }
    }

    /// All rows as a table.
    pub(super) fn table(rows: &[Row]) -> String {
        let columns: [Column<Row>; 12] = [
            ("mode", |row| flag_value(row.case.mode)),
            ("tick", |row| row.case.tick_ms.to_string()),
            ("gro", |row| if row.case.receivers_gro { "on" } else { "off" }.to_owned()),
            ("relays", |row| row.relays.to_string()),
            ("core", |row| flag_value(row.core)),
            ("ns/del", |row| format!("{:.0}", row.ns_per_delivery)),
            ("ratio", |row| format!("{:.2}", row.ratio)),
            ("range", |row| format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max)),
            ("age p50 µs", |row| row.age_p50_us.to_string()),
            ("age p99 µs", |row| row.age_p99_us.to_string()),
            ("loss", |row| format!("{:.5}", row.loss)),
            ("rounds", |row| row.rounds.to_string()),
        ];
        table(rows, &columns)
    }
}
