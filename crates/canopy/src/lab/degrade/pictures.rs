//! The table and the pictures that a run leaves.

use crate::output::chart::{self, Chart, Curve, SeriesLabelPosition};
use canopy_bots::degrade::{Measured, Row, Scheme, Shares};
use serde::Serialize;
use std::path::Path;

/// A line of the table.
#[derive(Serialize)]
struct Line {
    scheme: &'static str,
    budget: f64,
    distance_m: f64,
    demand_hz: f64,
    fair_hz: f64,
    delivered_hz: f64,
    age_p50_ms: f64,
    age_p99_ms: f64,
    longest_gap_ms: f64,
    known_p50_ms: f64,
    known_p99_ms: f64,
    updates: u64,
}

/// Writes `degrade.csv`, and for each budget `rate-B.svg` and `age-B.svg`.
pub(super) fn write(folder: &Path, measured: &Measured) -> anyhow::Result<()> {
    let lines = measured
        .shares
        .iter()
        .flat_map(|shares| shares.rows.iter().map(|row| Line::new(name(shares.scheme), row)));
    chart::write_csv(&folder.join("degrade.csv"), &lines.collect::<Vec<_>>())?;
    for of_budget in measured.shares.chunk_by(|a, b| a.budget == b.budget) {
        let budget = of_budget[0].budget;
        rates(budget, of_budget).write(&folder.join(format!("rate-{budget}.svg")))?;
        ages(budget, of_budget).write(&folder.join(format!("age-{budget}.svg")))?;
    }
    Ok(())
}

fn name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Ours => "Canopy",
        Scheme::DropTail => "drop-tail",
        Scheme::Random => "random drop",
    }
}

impl Line {
    fn new(scheme: &'static str, row: &Row) -> Line {
        Line {
            scheme,
            budget: row.budget,
            distance_m: row.distance_m,
            demand_hz: row.demand_hz,
            fair_hz: row.fair_hz,
            delivered_hz: row.delivered_hz,
            age_p50_ms: row.age_p50_ms,
            age_p99_ms: row.age_p99_ms,
            longest_gap_ms: row.longest_gap_ms,
            known_p50_ms: row.known_p50_ms,
            known_p99_ms: row.known_p99_ms,
            updates: row.updates,
        }
    }
}

fn curve(name: &str, rows: &[Row], y: fn(&Row) -> f64, marked: bool) -> Curve {
    let points = rows.iter().map(|row| (row.distance_m, y(row))).collect();
    Curve { name: name.to_owned(), points, marked, fitted: None }
}

fn rates(budget: f64, of_budget: &[Shares]) -> Picture {
    let mut curves: Vec<Curve> = of_budget
        .iter()
        .map(|shares| {
            let is_ours = shares.scheme == Scheme::Ours;
            curve(name(shares.scheme), &shares.rows, |row| row.delivered_hz, is_ours)
        })
        .collect();
    let ours = of_budget.iter().find(|shares| shares.scheme == Scheme::Ours);
    curves.extend(ours.map(|ours| curve("fair share", &ours.rows, |row| row.fair_hz, false)));
    Picture {
        title: format!("Updates of a walker by its distance, at {budget} % of the demand"),
        y_label: "updates a second",
        legend: SeriesLabelPosition::UpperRight,
        curves,
    }
}

fn ages(budget: f64, of_budget: &[Shares]) -> Picture {
    let both = |shares: &Shares| {
        let (name, is_ours) = (name(shares.scheme), shares.scheme == Scheme::Ours);
        let half = curve(
            &format!("{name}, half of the time"),
            &shares.rows,
            |row| row.known_p50_ms,
            is_ours,
        );
        let most = curve(&format!("{name}, 99 %"), &shares.rows, |row| row.known_p99_ms, is_ours);
        [half, most]
    };
    Picture {
        title: format!("Age of what is known of a walker, at {budget} % of the demand"),
        y_label: "milliseconds, or less",
        legend: SeriesLabelPosition::UpperLeft,
        curves: of_budget.iter().flat_map(both).collect(),
    }
}

struct Picture {
    title: String,
    y_label: &'static str,
    legend: SeriesLabelPosition,
    curves: Vec<Curve>,
}

impl Picture {
    fn write(self, path: &Path) -> anyhow::Result<()> {
        let Picture { title, y_label, legend, curves } = self;
        let (title, x_label) = (&*title, "distance, metres");
        Chart { title, x_label, y_label, log_x: false, bottom: 0.0, legend, curves }.write(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_bots::degrade::Summary;

    #[test]
    fn every_budget_has_its_pictures() {
        let row = |distance_m: f64| Row {
            budget: 25.0,
            distance_m,
            demand_hz: 16.0,
            fair_hz: 4.0,
            delivered_hz: 4.0,
            age_p50_ms: 30.0,
            age_p99_ms: 60.0,
            longest_gap_ms: 300.0,
            known_p50_ms: 120.0,
            known_p99_ms: 250.0,
            updates: 100,
        };
        let of = |scheme| Shares { budget: 25.0, scheme, rows: vec![row(1.0), row(5.0)] };
        let summary = Summary {
            jfi_weighted: 1.0,
            worst_error_updates: 0.0,
            utilisation: 1.0,
            over_budget_bytes: 0.0,
            longest_gap_ms: 300.0,
            datagrams_lost: 0,
            bytes_per_update: 100.0,
            budgets: Vec::new(),
        };
        let shares = [Scheme::Ours, Scheme::DropTail, Scheme::Random].map(of).to_vec();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &Measured { shares, summary }).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("degrade.csv").lines().count(), 7);
        for (name, words) in [("rate-25.svg", "fair share"), ("age-25.svg", "random drop, 99 %")] {
            assert!(read(name).contains(words), "{name}");
        }
    }
}
