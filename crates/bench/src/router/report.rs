//! A row of results, and the table of all.

use super::cases::Case;
use crate::flag_value;
use crate::table::{Column, table};
use serde::Serialize;
use std::collections::BTreeMap;

/// One case's result. Costs and rates are medians over the rounds, ratios of what was measured in one
/// round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) case: Case,
    /// How links are protected: always with a key of their own.
    pub(super) keys: &'static str,
    /// Where router and neighbours are: `netns` or `loopback`.
    pub(super) place: &'static str,
    /// The router's send engine.
    pub(super) engine: String,
    /// Routes that the router knew, at least.
    pub(super) routes: u64,
    /// The router's processor time for a copy, and its copies by the wall clock.
    pub(super) ns_per_copy: f64,
    pub(super) copies_per_s: f64,
    /// The bare reflector's processor time, and that of the one that opens and seals.
    pub(super) bare_ns_per_copy: f64,
    pub(super) sealing_ns_per_copy: f64,
    /// The bare reflector's processor time over the router's, and its range.
    pub(super) ratio: f64,
    pub(super) ratio_min: f64,
    pub(super) ratio_max: f64,
    /// The same of the reflector that opens and seals.
    pub(super) ratio_sealed: f64,
    /// Copies that a datagram from the router brought.
    pub(super) copies_per_datagram: f64,
    /// Copies of all rounds, warming up included: those that were due, that did not come, that came twice.
    pub(super) copies: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) bare_lost: u64,
    pub(super) sealing_lost: u64,
    /// How often the router has lost a link, as the load had no time to keep it alive.
    pub(super) links_lost: usize,
    /// Rounds that count, and those discarded for steal or for a link that was lost.
    pub(super) rounds: usize,
    pub(super) rounds_discarded: usize,
    /// What the router dropped, by reason, from its start to its end.
    pub(super) drops: BTreeMap<String, u64>,
}

impl Row {
    /// The result in one line.
    pub(super) fn short(&self) -> String {
        format!(
            "{:.0} ns a copy, bare {:.0}: ratio {:.2} ({:.2}–{:.2}), sealing {:.0}: ratio {:.2}, {:.0} \
             copies/s, {:.1} a datagram, {} of {} lost",
            self.ns_per_copy,
            self.bare_ns_per_copy,
            self.ratio,
            self.ratio_min,
            self.ratio_max,
            self.sealing_ns_per_copy,
            self.ratio_sealed,
            self.copies_per_s,
            self.copies_per_datagram,
            self.lost,
            self.copies,
        )
    }

    /// All results as a table.
    pub(super) fn table(rows: &[Row]) -> String {
        let columns: [Column<Row>; 14] = [
            ("load", |row| flag_value(row.case.load)),
            ("keys", |row| row.keys.to_owned()),
            ("bytes", |row| row.case.bytes.to_string()),
            ("fanout", |row| row.case.fanout.to_string()),
            ("routes", |row| row.routes.to_string()),
            ("ns/copy", |row| format!("{:.0}", row.ns_per_copy)),
            ("copies/s", |row| format!("{:.0}", row.copies_per_s)),
            ("a datagram", |row| format!("{:.1}", row.copies_per_datagram)),
            ("bare", |row| format!("{:.0}", row.bare_ns_per_copy)),
            ("ratio", |row| format!("{:.2}", row.ratio)),
            ("range", |row| format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max)),
            ("sealing", |row| format!("{:.0}", row.sealing_ns_per_copy)),
            ("ratio", |row| format!("{:.2}", row.ratio_sealed)),
            ("lost", |row| row.lost.to_string()),
        ];
        table(rows, &columns)
    }
}
