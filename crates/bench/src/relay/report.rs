//! A row of results, and the table of all.

use super::cases::{Case, ModeName, Scenario};
use serde::Serialize;

/// Ages of updates at their receivers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Ages {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
}

/// One case's result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: Scenario,
    pub(crate) n: usize,
    pub(crate) bytes: usize,
    pub(crate) mode: ModeName,
    pub(crate) tick_ms: u64,
    pub(crate) receivers_gro: bool,
    pub(crate) engine: String,
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
    /// Share of the relay's bytes that carry nothing.
    pub(crate) padding: f64,
}

impl Row {
    pub(crate) fn new(case: &Case) -> Row {
        Row {
            scenario: case.scenario,
            n: case.n,
            bytes: case.bytes,
            mode: case.mode,
            tick_ms: case.tick_ms,
            receivers_gro: case.receivers_gro,
            engine: String::new(),
            threads: 1,
            rounds: 0,
            seconds: 0.0,
            deliveries: 0,
            loss: 0.0,
            cpu_us_per_delivery: 0.0,
            naive_cpu_us_per_delivery: 0.0,
            ratio: 0.0,
            ratio_min: 0.0,
            ratio_max: 0.0,
            age_us: Ages::default(),
            naive_loss: 0.0,
            rounds_discarded: 0,
            padding: 0.0,
        }
    }

    /// The result in one line.
    pub(crate) fn short(&self) -> String {
        format!(
            "{:.3} µs a delivery, naive {:.3}: ratio {:.2} ({:.2}–{:.2}), {:.2} M deliveries a \
             core-second, loss {:.4}, age p99 {} µs, {} rounds, {} discarded",
            self.cpu_us_per_delivery,
            self.naive_cpu_us_per_delivery,
            self.ratio,
            self.ratio_min,
            self.ratio_max,
            1.0 / self.cpu_us_per_delivery,
            self.loss,
            self.age_us.p99,
            self.rounds,
            self.rounds_discarded,
        )
    }

    /// All results as a table.
    pub(crate) fn table(rows: &[Row]) -> String {
        let mut table = format!(
            "{:<9}{:>9}{:>8}{:>5}{:>7}{:>11}{:>6}{:>5}{:>9}{:>9}{:>8}{:>15}{:>8}{:>9}{:>10}\n",
            "scenario",
            "engine",
            "threads",
            "n",
            "bytes",
            "mode",
            "tick",
            "gro",
            "µs/del",
            "naive",
            "ratio",
            "range",
            "M/cs",
            "loss",
            "p99 µs"
        );
        for row in rows {
            let scenario = match row.scenario {
                Scenario::Crowd => "crowd",
                Scenario::Ceiling => "ceiling",
            };
            let range = format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max);
            table += &format!(
                "{:<9}{:>9}{:>8}{:>5}{:>7}{:>11}{:>6}{:>5}{:>9.3}{:>9.3}{:>8.2}{:>15}{:>8.2}{:>9.5}{:>10}\n",
                scenario,
                row.engine,
                row.threads,
                row.n,
                row.bytes,
                row.mode.flag(),
                row.tick_ms,
                if row.receivers_gro { "on" } else { "off" },
                row.cpu_us_per_delivery,
                row.naive_cpu_us_per_delivery,
                row.ratio,
                range,
                1.0 / row.cpu_us_per_delivery,
                row.loss,
                row.age_us.p99,
            );
        }
        table
    }
}
