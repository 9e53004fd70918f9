//! Rows, fits and the summary.

use super::cases::Sink;
use crate::flag_value;
use crate::noise::median;
use crate::table::{Column, table};
use canopy_engines::EngineName;
use canopy_plan::{Sample, SendCost};
use serde::Serialize;

/// What an engine does in one case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) sink: Sink,
    pub(super) engine: &'static str,
    pub(super) n: usize,
    pub(super) bytes: usize,
    pub(super) segments: usize,
    /// Processor time of the sender; medians over the rounds.
    pub(super) ns_per_copy: f64,
    /// By the wall clock.
    pub(super) copies_per_s: f64,
    /// Median of the same-round ratios sendto / engine, and their range.
    pub(super) ratio_to_sendto: f64,
    pub(super) ratio_min: f64,
    pub(super) ratio_max: f64,
    /// Copies sent in all rounds, those of them that did not arrive, and those that came twice.
    pub(super) copies: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Copies that the engine sent one by one, in another way than its own.
    pub(super) fallbacks: u64,
    /// Rounds that count, and those discarded for steal.
    pub(super) rounds: usize,
    pub(super) rounds_discarded: u32,
}

impl Row {
    /// S(N, b): nanoseconds to send one message to all N, in a burst of `segments` messages.
    pub(super) fn send_ns(&self) -> f64 {
        self.ns_per_copy * self.n as f64
    }

    /// Payload by the wall clock.
    pub(super) fn megabits_per_s(&self) -> f64 {
        self.copies_per_s * self.bytes as f64 * 8.0 / 1e6
    }

    /// A case's results in one line.
    pub(super) fn short(rows: &[Row]) -> String {
        let each = rows.iter().map(|row| {
            let lost = if row.lost > 0 { format!(", {} lost", row.lost) } else { String::new() };
            format!("{} {:.0} ns (×{:.2}{lost})", row.engine, row.ns_per_copy, row.ratio_to_sendto)
        });
        each.collect::<Vec<_>>().join(", ")
    }

    /// All results as a table.
    pub(super) fn table(rows: &[Row]) -> String {
        let columns: [Column<Row>; 11] = [
            ("sink", |row| flag_value(row.sink)),
            ("K", |row| row.segments.to_string()),
            ("n", |row| row.n.to_string()),
            ("bytes", |row| row.bytes.to_string()),
            ("engine", |row| row.engine.to_owned()),
            ("ns/copy", |row| format!("{:.1}", row.ns_per_copy)),
            ("Mcopies/s", |row| format!("{:.3}", row.copies_per_s / 1e6)),
            ("Mbit/s", |row| format!("{:.0}", row.megabits_per_s())),
            ("ratio", |row| format!("{:.2}", row.ratio_to_sendto)),
            ("range", |row| format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max)),
            ("lost", |row| row.lost.to_string()),
        ];
        table(rows, &columns)
    }
}

/// The papers' form `xN + yNb`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PaperFit {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) r2: f64,
}

/// `S(N, b) = c + xN + yNb` in nanoseconds, for one engine and all its N and b.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct FitLine {
    pub(super) engine: &'static str,
    pub(super) sink: Sink,
    pub(super) segments: usize,
    pub(super) c: f64,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) r2: f64,
    /// `(x + 80 y)` of sendto in that of this engine: the ratio for large N at 80 bytes.
    pub(super) r_at_80: f64,
    pub(super) paper: PaperFit,
}

impl FitLine {
    /// The fits of all engines that were measured with enough N and b.
    pub(super) fn all(rows: &[Row]) -> Vec<FitLine> {
        let mut fits: Vec<FitLine> = Vec::new();
        for (sink, segments, engine) in series(rows) {
            let samples: Vec<Sample> = of_series(rows, sink, segments, engine)
                .map(|row| Sample {
                    receivers: row.n as f64,
                    bytes: row.bytes as f64,
                    time: row.send_ns(),
                })
                .collect();
            // Too few N or b for a fit are no failure.
            let Ok(fit) = canopy_plan::fit(&samples) else { continue };
            // The baseline is the first of its sink and K.
            let naive =
                fits.iter().find(|fit| fit.is_of(sink, segments, EngineName::Sendto.name()));
            let naive = naive.map_or(fit.full.cost, FitLine::cost);
            let (full, paper) = (fit.full.cost, fit.paper.cost);
            fits.push(FitLine {
                engine,
                sink,
                segments,
                c: full.per_message,
                x: full.per_receiver,
                y: full.per_byte,
                r2: fit.full.r2,
                r_at_80: naive.per_user(80.0) / full.per_user(80.0),
                paper: PaperFit { x: paper.per_receiver, y: paper.per_byte, r2: fit.paper.r2 },
            });
        }
        fits
    }

    /// What the fit says that a message costs.
    pub(super) fn send_ns(&self, n: f64, bytes: f64) -> f64 {
        self.cost().time(n, bytes)
    }

    pub(super) fn is_of(&self, sink: Sink, segments: usize, engine: &str) -> bool {
        self.sink == sink && self.segments == segments && self.engine == engine
    }

    fn cost(&self) -> SendCost {
        SendCost { per_message: self.c, per_receiver: self.x, per_byte: self.y }
    }

    /// All fits as a table.
    pub(super) fn table(fits: &[FitLine]) -> String {
        let columns: [Column<FitLine>; 11] = [
            ("sink", |fit| flag_value(fit.sink)),
            ("K", |fit| fit.segments.to_string()),
            ("engine", |fit| fit.engine.to_owned()),
            ("c ns", |fit| format!("{:.0}", fit.c)),
            ("x ns", |fit| format!("{:.1}", fit.x)),
            ("y ns", |fit| format!("{:.4}", fit.y)),
            ("R²", |fit| format!("{:.4}", fit.r2)),
            ("r(80)", |fit| format!("{:.2}", fit.r_at_80)),
            ("papers' x", |fit| format!("{:.1}", fit.paper.x)),
            ("y", |fit| format!("{:.4}", fit.paper.y)),
            ("R²", |fit| format!("{:.4}", fit.paper.r2)),
        ];
        table(fits, &columns)
    }
}

/// The ratios of one engine over all payloads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    sink: Sink,
    segments: usize,
    engine: &'static str,
    /// Medians, where there is such an N.
    from_30: Option<f64>,
    up_to_300: Option<f64>,
    lost: u64,
    doubled: u64,
    fallbacks: u64,
}

impl Summary {
    pub(super) fn all(rows: &[Row]) -> Vec<Summary> {
        let line = |(sink, segments, engine)| {
            let rows: Vec<&Row> = of_series(rows, sink, segments, engine).collect();
            let middle = |within: fn(usize) -> bool| {
                let ratios: Vec<f64> = rows
                    .iter()
                    .filter(|row| within(row.n))
                    .map(|row| row.ratio_to_sendto)
                    .collect();
                (!ratios.is_empty()).then(|| median(&ratios))
            };
            Summary {
                sink,
                segments,
                engine,
                from_30: middle(|n| n >= 30),
                up_to_300: middle(|n| n <= 300),
                lost: rows.iter().map(|row| row.lost).sum(),
                doubled: rows.iter().map(|row| row.doubled).sum(),
                fallbacks: rows.iter().map(|row| row.fallbacks).sum(),
            }
        };
        series(rows).into_iter().map(line).collect()
    }

    /// The summary as a table.
    pub(super) fn table(lines: &[Summary]) -> String {
        fn ratio(value: Option<f64>) -> String {
            value.map_or("–".to_owned(), |value| format!("{value:.2}"))
        }
        let columns: [Column<Summary>; 8] = [
            ("sink", |line| flag_value(line.sink)),
            ("K", |line| line.segments.to_string()),
            ("engine", |line| line.engine.to_owned()),
            ("N ≥ 30", |line| ratio(line.from_30)),
            ("N ≤ 300", |line| ratio(line.up_to_300)),
            ("lost", |line| line.lost.to_string()),
            ("doubled", |line| line.doubled.to_string()),
            ("fallbacks", |line| line.fallbacks.to_string()),
        ];
        table(lines, &columns)
    }
}

/// Sinks, K and engines of the rows: by sink, then K, the engines in the order of their rows.
pub(super) fn series(rows: &[Row]) -> Vec<(Sink, usize, &'static str)> {
    let mut all: Vec<(Sink, usize, &'static str)> = Vec::new();
    for row in rows {
        let key = (row.sink, row.segments, row.engine);
        if !all.contains(&key) {
            all.push(key);
        }
    }
    // Stable, so the baseline stays the first.
    all.sort_by_key(|(sink, segments, _)| (*sink, *segments));
    all
}

/// The rows of one engine, sink and K.
pub(super) fn of_series<'a>(
    rows: &'a [Row],
    sink: Sink,
    segments: usize,
    engine: &'a str,
) -> impl Iterator<Item = &'a Row> {
    rows.iter()
        .filter(move |row| row.sink == sink && row.segments == segments && row.engine == engine)
}
