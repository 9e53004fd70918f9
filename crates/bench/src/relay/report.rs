//! A row of results, and the table of all.

use super::cases::Case;
use super::plan::Keys;
use crate::flag_value;
use crate::table::{Column, table};
use serde::Serialize;
use std::collections::BTreeMap;

/// Ages of updates at their receivers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Ages {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
}

/// One case's result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) case: Case,
    pub(crate) engine: String,
    pub(crate) keys: Keys,
    /// Data threads.
    pub(crate) threads: u16,
    /// Rounds that count.
    pub(crate) rounds: usize,
    /// Seconds measured of each side in each round.
    pub(crate) seconds: f64,
    /// Deliveries by the relay in all rounds that count.
    pub(crate) deliveries: u64,
    /// Share of the relay's deliveries that did not arrive.
    pub(crate) loss: f64,
    /// Medians over the rounds.
    pub(crate) cpu_us_per_delivery: f64,
    pub(crate) naive_cpu_us_per_delivery: f64,
    /// Median of the same-round ratios naive / relay, and their range.
    pub(crate) ratio: f64,
    pub(crate) ratio_min: f64,
    pub(crate) ratio_max: f64,
    pub(crate) age_us: Ages,
    /// Share of the naive reflector's deliveries that did not arrive.
    pub(crate) naive_loss: f64,
    /// Rounds discarded for steal.
    pub(crate) rounds_discarded: usize,
    /// UDP payload that the relay sends for each byte of updates that arrives.
    pub(crate) wire_bytes_per_payload_byte: f64,
    /// What the relay dropped, by reason, from its start to its end.
    pub(crate) drops: BTreeMap<String, u64>,
}

impl Row {
    /// The result in one line.
    pub(crate) fn short(&self) -> String {
        let Row { cpu_us_per_delivery: cost, naive_cpu_us_per_delivery: naive, loss, .. } = self;
        let Row { ratio, ratio_min, ratio_max, rounds, rounds_discarded, .. } = self;
        format!(
            "{cost:.3} µs a delivery, naive {naive:.3}: ratio {ratio:.2} \
             ({ratio_min:.2}–{ratio_max:.2}), {:.2} M deliveries a core-second, loss {loss:.4}, \
             age p99 {} µs, {:.3} bytes a byte, {rounds} rounds, {rounds_discarded} discarded",
            1.0 / cost,
            self.age_us.p99,
            self.wire_bytes_per_payload_byte,
        )
    }

    /// All results as a table.
    pub(crate) fn table(rows: &[Row]) -> String {
        let columns: [Column<Row>; 17] = [
            ("scenario", |row| flag_value(row.case.scenario)),
            ("engine", |row| row.engine.clone()),
            ("keys", |row| flag_value(row.keys)),
            ("threads", |row| row.threads.to_string()),
            ("n", |row| row.case.n.to_string()),
            ("bytes", |row| row.case.bytes.to_string()),
            ("mode", |row| flag_value(row.case.mode)),
            ("tick", |row| row.case.tick_ms.to_string()),
            ("gro", |row| if row.case.receivers_gro { "on" } else { "off" }.to_owned()),
            ("µs/del", |row| format!("{:.3}", row.cpu_us_per_delivery)),
            ("naive", |row| format!("{:.3}", row.naive_cpu_us_per_delivery)),
            ("ratio", |row| format!("{:.2}", row.ratio)),
            ("range", |row| format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max)),
            ("M/cs", |row| format!("{:.2}", 1.0 / row.cpu_us_per_delivery)),
            ("B/B", |row| format!("{:.3}", row.wire_bytes_per_payload_byte)),
            ("loss", |row| format!("{:.5}", row.loss)),
            ("p99 µs", |row| row.age_us.p99.to_string()),
        ];
        table(rows, &columns)
    }
}
