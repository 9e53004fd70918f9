//! `canopy lab convergence`: how long traffic is away after a cut, here and with OSPF and BFD.

mod routers;
mod streams;

use super::bed::{Bed, name, numbered};
use super::faults::chance;
use crate::bots::stop_on_interrupt;
use crate::output::chart::{self, Chart, Curve, SeriesLabelPosition};
use crate::output::{print_line, print_note};
use anyhow::{Context, bail};
use axum::http::Method;
use clap::Args;
use routers::Routers;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use streams::Pair;

/// Starts a controller and relays on hosts of their own, which are network namespaces, and beside each
/// relay the routers of FRR: OSPF, which BFD tells of failures as soon as relays learn of them. Their
/// links are those of the relays. Where a link joins two relays, a member at the one sends to a member at
/// the other, and a program on the one host to one on the other by the routes of OSPF. Then the link is
/// cut, and both go another way. The exit status is 1 if that takes the relays longer, by the median. Needs root, `ip`,
/// `tc` and FRR.
#[derive(Args)]
pub(super) struct ConvergenceCommand {
    /// How many relays
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u8).range(3..=32))]
    relays: u8,
    /// How many cuts
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    cuts: u16,
    /// Which links are cut
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write convergence.csv and convergence.svg to this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print the rows as one JSON object
    #[arg(long)]
    json: bool,
}

/// Megabits a second that each host's cable carries, each way.
const MEGABITS: u32 = 200;
/// Traffic is watched for so long after a cut.
const WATCHED: Duration = Duration::from_secs(3);
/// How long it may take until all goes its direct way again.
const WHOLE_LIMIT: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Relays believe a link that has just come up for two seconds.
const STEADY: Duration = Duration::from_secs(3);

/// A cut, and how long nothing came.
#[derive(Serialize)]
struct Row {
    cut: u16,
    from: String,
    to: String,
    canopy_ms: u64,
    ospf_ms: u64,
}

#[derive(Serialize)]
struct Outcome<'a> {
    seed: u64,
    relays: u8,
    rows: &'a [Row],
    /// Medians.
    canopy_ms: u64,
    ospf_ms: u64,
    ratio: f64,
}

impl ConvergenceCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(folder) = &self.out {
            chart::make_folder(folder, "--out")?;
        }
        routers::check()?;
        let bed = Bed::start(self.relays, 1, MEGABITS)?;
        let mut links = links(&bed)?;
        let routers = Routers::start(&bed, &links)?;
        print_note(format_args!("{} relays and their routers are up", self.relays));
        let stop = stop_on_interrupt()?;
        let mut rows = Vec::new();
        for cut in 1..=self.cuts {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let first = chance(self.seed, cut, links.len());
            links.rotate_left(first);
            let row = row(&bed, &routers, cut, &links)?;
            print_note(format_args!(
                "{} – {}: {} ms, OSPF {} ms",
                row.from, row.to, row.canopy_ms, row.ospf_ms
            ));
            rows.push(row);
        }
        self.tell(&rows)
    }

    fn tell(&self, rows: &[Row]) -> anyhow::Result<ExitCode> {
        let [canopy_ms, ospf_ms] = [|row: &Row| row.canopy_ms, |row: &Row| row.ospf_ms]
            .map(|of| median(rows.iter().map(of).collect()));
        let ratio = canopy_ms as f64 / ospf_ms.max(1) as f64;
        if let Some(folder) = &self.out {
            chart::write(folder, "convergence", rows, &picture(rows))?;
        }
        if self.json {
            let (seed, relays) = (self.seed, self.relays);
            let outcome = Outcome { seed, relays, rows, canopy_ms, ospf_ms, ratio };
            print_line(serde_json::to_string(&outcome)?)?;
        } else {
            print_line(table(rows, canopy_ms, ospf_ms, ratio))?;
        }
        let is_good = !rows.is_empty() && canopy_ms <= ospf_ms;
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Cuts a link under traffic, and mends it: this one, or the next over which the world's tree goes directly.
fn row(bed: &Bed, routers: &Routers, cut: u16, links: &[[usize; 2]]) -> anyhow::Result<Row> {
    for [one, other] in links.iter().copied() {
        let [from, to] = if cut.is_multiple_of(2) { [one, other] } else { [other, one] };
        until("OSPF goes directly", || {
            Ok(routers.is_direct(bed, one, other)? && routers.is_direct(bed, other, one)?)
        })?;
        std::thread::sleep(STEADY);
        // Who joins while others leave would hang on their relays.
        until("the members of the cut before have left", || streams::is_empty(bed))?;
        let pair = Pair::new(bed, cut, from, to)?;
        // On one machine delays are so short that noise may make a way over other relays the shorter one.
        let is_over = |hop: &[usize; 2]| hop.contains(&one) && hop.contains(&other);
        if !bed.tree()?.iter().any(is_over) {
            pair.leave(bed)?;
            continue;
        }
        let [canopy, ospf] = pair.watch(bed, || bed.cut([one, other], true), WATCHED)?;
        bed.cut([one, other], false)?;
        bed.until_whole()?;
        let [canopy_ms, ospf_ms] = [canopy, ospf].map(|time| time.as_millis() as u64);
        return Ok(Row { cut, from: name(from), to: name(to), canopy_ms, ospf_ms });
    }
    bail!("over no link does the world's tree go directly")
}

fn until(what: &str, holds: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let began = Instant::now();
    while !holds()? {
        if began.elapsed() > WHOLE_LIMIT {
            bail!("not after {} s: {what}", WHOLE_LIMIT.as_secs());
        }
        std::thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// The links between relays, as the controller has made them.
fn links(bed: &Bed) -> anyhow::Result<Vec<[usize; 2]>> {
    let answer = bed.ask(Method::GET, "/v1/links", String::new())?;
    let links = answer["links"].as_array().context("the controller lists no links")?;
    let ends =
        |link: &serde_json::Value| Some([numbered(&link["ends"][0])?, numbered(&link["ends"][1])?]);
    Ok(links.iter().filter_map(ends).collect())
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

fn table(rows: &[Row], canopy_ms: u64, ospf_ms: u64, ratio: f64) -> String {
    let head = format!("{:24} {:>10} {:>10}\n", "link cut", "canopy", "ospf");
    let line = |row: &Row| {
        let link = format!("{} – {}", row.from, row.to);
        format!("{link:24} {:>7} ms {:>7} ms\n", row.canopy_ms, row.ospf_ms)
    };
    let rows: String = rows.iter().map(line).collect();
    format!("{head}{rows}{:24} {canopy_ms:>7} ms {ospf_ms:>7} ms  ratio {ratio:.2}", "median")
}

fn picture(rows: &[Row]) -> Chart<'static> {
    let curve = |name: &str, of: fn(&Row) -> u64| Curve {
        name: name.to_owned(),
        points: rows.iter().map(|row| (f64::from(row.cut), of(row) as f64)).collect(),
        marked: true,
        fitted: Some(Vec::new()),
    };
    Chart {
        title: "How long nothing comes after a link is cut",
        x_label: "cut",
        y_label: "milliseconds",
        log_x: false,
        bottom: 0.0,
        legend: SeriesLabelPosition::LowerRight,
        curves: vec![
            curve("Canopy", |row| row.canopy_ms),
            curve("OSPF and BFD (FRR)", |row| row.ospf_ms),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_a_table_and_a_picture() {
        let row =
            |cut, canopy_ms, ospf_ms| Row { cut, from: name(0), to: name(1), canopy_ms, ospf_ms };
        let rows = [row(1, 240, 300), row(2, 250, 310), row(3, 900, 290)];
        let text = table(&rows, median(vec![240, 250, 900]), median(vec![300, 310, 290]), 0.83);
        assert!(text.ends_with("250 ms     300 ms  ratio 0.83"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let [_, svg] = chart::write(folder.path(), "c", &rows, &picture(&rows)).unwrap();
        let svg = std::fs::read_to_string(svg).unwrap();
        assert_eq!(svg.matches("<circle").count(), 6);
    }
}
