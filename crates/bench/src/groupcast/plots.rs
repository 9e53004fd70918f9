//! The papers' figures from our rows: throughput and processor time against the payload (multicast
//! reflector, figures 4 to 9), against the number of receivers, and the send time with its fit
//! (kernel groupcast, figures 4 to 7).

use super::cases::Sink;
use super::report::{FitLine, Row, of_series, series};
use crate::flag_value;
use canopy_output::chart::{Chart, Curve, SeriesLabelPosition, write_csv};
use canopy_output::print_note;
use std::path::Path;

/// The papers' largest crowd.
const CROWD: usize = 90;
const SMALL: usize = 100;

/// What a figure shows.
#[derive(Clone, Copy)]
enum Figure {
    ThroughputByBytes,
    CostByBytes,
    CostByN,
    SendTime,
}

/// Writes the figures for which there are rows, and rows and fits as CSV; says what it wrote.
pub(super) fn write(out: &Path, rows: &[Row], fits: &[FitLine]) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    let mut files = vec![out.join("groupcast.csv"), out.join("groupcast-fits.csv")];
    write_csv(&files[0], rows)?;
    write_csv(&files[1], &fits.iter().map(FlatFit::new).collect::<Vec<_>>())?;
    let sinks = |wanted: [Sink; 2]| {
        wanted.into_iter().find(|sink| rows.iter().any(|row| row.sink == *sink))
    };
    let veth = sinks([Sink::Dropped, Sink::Sockets]);
    let discard = sinks([Sink::Discard, Sink::Software]);
    let figures = [
        ("throughput", Figure::ThroughputByBytes, veth, 1),
        ("throughput", Figure::ThroughputByBytes, discard, 16),
        ("cost-by-receivers", Figure::CostByN, veth, 1),
        ("cost-by-receivers", Figure::CostByN, discard, 1),
        ("cost-by-receivers", Figure::CostByN, discard, 16),
        ("cost-by-payload", Figure::CostByBytes, veth, 1),
        ("cost-by-payload", Figure::CostByBytes, discard, 1),
        ("send-time", Figure::SendTime, veth, 1),
    ];
    for (name, figure, sink, segments) in figures {
        let Some(sink) = sink else { continue };
        let file = format!("{name}-{}-k{segments}.svg", flag_value(sink));
        let curves = figure.curves(sink, segments, rows, fits);
        // One point is no curve.
        if curves.iter().all(|curve| curve.points.len() < 2) {
            missing.push(file);
            continue;
        }
        let path = out.join(file);
        figure.draw(sink, segments, curves, &path)?;
        files.push(path);
    }
    files.iter().for_each(|file| print_note(file.display()));
    if !missing.is_empty() {
        print_note(format_args!(
            "not drawn, for want of two rows with 90 receivers or 100 bytes: {}",
            missing.join(", ")
        ));
    }
    Ok(())
}

/// A fit in columns.
#[derive(serde::Serialize)]
struct FlatFit {
    engine: &'static str,
    sink: Sink,
    segments: usize,
    c: f64,
    x: f64,
    y: f64,
    r2: f64,
    r_at_80: f64,
    paper_x: f64,
    paper_y: f64,
    paper_r2: f64,
}

impl FlatFit {
    fn new(fit: &FitLine) -> FlatFit {
        let FitLine { engine, sink, segments, c, x, y, r2, r_at_80, paper } = *fit;
        let (paper_x, paper_y, paper_r2) = (paper.x, paper.y, paper.r2);
        FlatFit { engine, sink, segments, c, x, y, r2, r_at_80, paper_x, paper_y, paper_r2 }
    }
}

impl Figure {
    /// The rows that it shows.
    fn shows(self, row: &Row) -> bool {
        match self {
            Figure::ThroughputByBytes | Figure::CostByBytes => row.n == CROWD,
            Figure::CostByN | Figure::SendTime => row.bytes == SMALL,
        }
    }

    fn point(self, row: &Row) -> (f64, f64) {
        match self {
            Figure::ThroughputByBytes => (row.bytes as f64, row.megabits_per_s()),
            Figure::CostByBytes => (row.bytes as f64, row.send_ns() / 1e3),
            Figure::CostByN => (row.n as f64, row.ns_per_copy),
            Figure::SendTime => (row.n as f64, row.send_ns() / 1e3),
        }
    }

    fn labels(self) -> [&'static str; 3] {
        match self {
            Figure::ThroughputByBytes => {
                ["Throughput, 90 receivers", "payload, bytes", "payload, Mbit/s"]
            }
            Figure::CostByBytes => {
                ["Processor time, 90 receivers", "payload, bytes", "µs a message to all"]
            }
            Figure::CostByN => ["Processor time, 100 bytes", "receivers", "ns a copy"],
            Figure::SendTime => [
                "Send time, 100 bytes: measured, and as fitted",
                "receivers",
                "µs a message to all",
            ],
        }
    }

    /// A curve for each engine.
    fn curves(self, sink: Sink, segments: usize, rows: &[Row], fits: &[FitLine]) -> Vec<Curve> {
        let wanted = |(of, k, engine)| (of == sink && k == segments).then_some(engine);
        let engines = series(rows).into_iter().filter_map(wanted);
        let curve = |engine: &str| {
            let shown = of_series(rows, sink, segments, engine).filter(|row| self.shows(row));
            let mut points: Vec<(f64, f64)> = shown.map(|row| self.point(row)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let fit = fits.iter().find(|fit| fit.is_of(sink, segments, engine));
            let line = fit.filter(|_| matches!(self, Figure::SendTime)).map(|fit| {
                let at = |n: f64| (n, fit.send_ns(n, SMALL as f64) / 1e3);
                points.iter().map(|(n, _)| at(*n)).collect()
            });
            Curve { name: engine.to_owned(), points, marked: true, fitted: line }
        };
        engines.map(curve).filter(|curve| !curve.points.is_empty()).collect()
    }

    fn draw(
        self,
        sink: Sink,
        segments: usize,
        curves: Vec<Curve>,
        path: &Path,
    ) -> anyhow::Result<()> {
        let [title, x_label, y_label] = self.labels();
        let chart = Chart {
            title: &format!("{title}: {}, K = {segments}", sink.describe()),
            x_label,
            y_label,
            // The papers' line is straight on plain axes only.
            log_x: !matches!(self, Figure::SendTime),
            bottom: 0.0,
            // Where cheap and dear engines leave room.
            legend: match self {
                Figure::CostByN | Figure::CostByBytes => SeriesLabelPosition::MiddleLeft,
                Figure::ThroughputByBytes | Figure::SendTime => SeriesLabelPosition::UpperLeft,
            },
            curves,
        };
        chart.write(path)
    }
}
