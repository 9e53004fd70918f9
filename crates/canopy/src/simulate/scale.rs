//! `canopy sim scale`: what worlds of relays cost against their size.

use crate::output::{print_line, print_note};
use anyhow::Context;
use canopy_net::thread_cpu_time;
use canopy_output::chart::{self, Chart, Curve, SeriesLabelPosition};
use canopy_sim::{Gauge, ScaleConfig, ScaleCore, ScaleRow, exponent, run_scale};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Routes grow with the number of endpoints by this exponent.
const EXPONENT: f64 = 0.5;
/// The fit says something over so large a range.
const RANGE: f64 = 10.0;
/// No relay knows more ways than this times the square root of the number of endpoints, where its own
/// participants are not more than the root by themselves.
const MOST_PER_ROOT: f64 = 2.5;
/// And no plan of sites makes it less than this.
const LEAST_PER_ROOT: f64 = 2.0;

/// Builds worlds of growing size from the real relays and sessions, in virtual time without sockets, and
/// tells what a relay holds and what a join, a first contact, a subscription and an update cost. Every
/// participant joins, writes to another who answers, subscribes to four groups and publishes once, and one in
/// twenty writes to forty others; every answer and delivery is counted. Each world has a process of its own,
/// for its memory is measured. The exit status is 1 if something is missing; if a relay learns more than one
/// route for each other site and one for each endpoint of its own; if a relay knows more ways than 2.5 times
/// the square root of the number of endpoints, where it has no more participants than that root; or if the ways
/// grow by more than the exponent 0.5, and what 2.5 in place of 2 times the root would add to it, where the
/// largest world has at least ten times the endpoints of the smallest.
#[derive(Args)]
pub(crate) struct ScaleCommand {
    /// How many relays, world by world
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = [10, 30, 100, 300, 1000], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    relays: Vec<u32>,
    /// Participants of each relay
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    endpoints_per_relay: u16,
    /// Which relays are the core
    #[arg(long, value_name = "CORE,…", value_delimiter = ',', default_values_t = [Core::One, Core::Subtree])]
    core: Vec<Core>,
    /// Decides how the relays are joined, and who writes to whom
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where tables and pictures go; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print a line of JSON for each world, and one with the exponents
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Core {
    /// The one at the centre
    One,
    /// A subtree around the centre, of as many relays as the square root of all
    Subtree,
}

impl Core {
    fn of_world(self) -> ScaleCore {
        match self {
            Core::One => ScaleCore::One,
            Core::Subtree => ScaleCore::Subtree,
        }
    }
}

impl Display for Core {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.of_world().name())
    }
}

/// One world, and how long it took.
#[derive(Serialize, Deserialize)]
struct World {
    #[serde(flatten)]
    row: ScaleRow,
    wall_seconds: f64,
}

/// By which exponent something grows with the number of endpoints.
#[derive(Serialize)]
struct Growth {
    core: ScaleCore,
    /// How the number of addresses grows that the relay with most of them knows the way to, its own among them.
    addresses_exponent: f64,
    /// The same without worlds in which a relay's own participants are more than the root of all.
    addresses_exponent_of_large: Option<f64>,
    /// How the number of those grows that it has learned.
    routes_exponent: f64,
    /// The most addresses, in square roots of the number of endpoints.
    most_per_root: f64,
    /// The same without worlds in which a relay's own participants are more than that root.
    most_per_root_of_large: f64,
    /// How many times the endpoints of the smallest world the largest has.
    range: f64,
}

/// Reads the thread's clock, and the process's memory.
struct ThisProcess;

impl Gauge for ThisProcess {
    fn cpu(&self) -> Duration {
        thread_cpu_time()
    }

    fn memory(&self) -> u64 {
        anonymous_bytes().unwrap_or(0)
    }
}

/// The process's resident memory that is no file's, if the system tells.
fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

impl ScaleCommand {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        if let Some(out) = &self.out {
            chart::make_folder(out, "--out")?;
        }
        let mut sizes = self.relays.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let plans: Vec<_> =
            sizes.iter().flat_map(|relays| self.cores().map(|core| (*relays, core))).collect();
        let mut worlds = Vec::new();
        for (relays, core) in &plans {
            let world = match plans.len() {
                1 => self.run_world(*relays, *core)?,
                _ => self.run_apart(*relays, *core)?,
            };
            if self.json {
                print_line(serde_json::to_string(&world)?)?;
            } else {
                print_line(in_words(&world))?;
            }
            worlds.push(world);
        }
        let growths: Vec<_> = self.cores().filter_map(|core| growth(&worlds, core)).collect();
        for growth in &growths {
            if self.json {
                print_line(serde_json::to_string(growth)?)?;
            } else {
                print_line(growth.in_words())?;
            }
        }
        if let Some(out) = &self.out {
            let rows: Vec<_> = worlds.iter().map(|world| &world.row).collect();
            chart::write_csv(&out.join("scale.csv"), &rows)?;
            for (name, chart) in charts(&worlds) {
                chart.write(&out.join(name).with_extension("svg"))?;
            }
        }
        if growths.iter().any(Growth::is_fast) {
            print_note("routes grow faster than the square root of the number of endpoints");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn cores(&self) -> impl Iterator<Item = ScaleCore> {
        let mut cores = self.core.clone();
        cores.sort_unstable();
        cores.dedup();
        cores.into_iter().map(Core::of_world)
    }

    fn run_world(&self, relays: u32, core: ScaleCore) -> anyhow::Result<World> {
        let endpoints_per_relay = self.endpoints_per_relay;
        let config = ScaleConfig { seed: self.seed, relays, endpoints_per_relay, core };
        let start = Instant::now();
        let mut progress = |part: &str| {
            let (seconds, core) = (start.elapsed().as_secs(), core.name());
            print_note(format_args!("{relays} relays, core {core}: {part} ({seconds} s)"));
        };
        let row = run_scale(&config, &ThisProcess, &mut progress).map_err(anyhow::Error::msg)?;
        Ok(World { row, wall_seconds: start.elapsed().as_secs_f64() })
    }

    /// Runs a world in a process of its own: what a world before it has left in this one's memory would
    /// count for it.
    fn run_apart(&self, relays: u32, core: ScaleCore) -> anyhow::Result<World> {
        let own = std::env::current_exe().context("cannot find this program itself")?;
        let output = Command::new(own)
            .args(["sim", "scale", "--json", "--core", core.name()])
            .args(["--relays", &relays.to_string(), "--seed", &self.seed.to_string()])
            .args(["--endpoints-per-relay", &self.endpoints_per_relay.to_string()])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start a process for a world")?;
        let line = String::from_utf8_lossy(&output.stdout);
        let line = line.lines().next().filter(|_| output.status.success());
        let line = line.with_context(|| format!("the world of {relays} relays failed"))?;
        serde_json::from_str(line).context("cannot read what a world's process said")
    }
}

impl Growth {
    /// Whether routes grow faster than the root. The plan of sites is never as good as it could be, for a
    /// site has whole relays; and how good it is differs from size to size.
    fn is_fast(&self) -> bool {
        let most = EXPONENT + (MOST_PER_ROOT / LEAST_PER_ROOT).ln() / self.range.ln();
        let is_steep = self.range >= RANGE && self.addresses_exponent > most;
        is_steep || self.most_per_root_of_large > MOST_PER_ROOT
    }

    fn in_words(&self) -> String {
        format!(
            "core {}: what a relay knows the way to grows with endpoints^{:.2} (its own participants \
             left out: ^{:.2}), and is at most {:.2} × their square root; where its own are no more than the \
             root, with endpoints^{}, and is at most {:.2} ×",
            self.core.name(),
            self.addresses_exponent,
            self.routes_exponent,
            self.most_per_root,
            self.addresses_exponent_of_large.map_or("?".to_owned(), |of| format!("{of:.2}")),
            self.most_per_root_of_large
        )
    }
}

fn growth(worlds: &[World], core: ScaleCore) -> Option<Growth> {
    let rows = worlds.iter().map(|world| &world.row).filter(|row| row.core == core);
    let points = |of: fn(&ScaleRow) -> u32| -> Vec<(f64, f64)> {
        rows.clone().map(|row| (row.endpoints.into(), of(row).into())).collect()
    };
    let endpoints = rows.clone().map(|row| f64::from(row.endpoints));
    let is_large = |row: &&ScaleRow| row.endpoints / row.relays <= row.endpoints.isqrt();
    let large = rows.clone().filter(is_large);
    let large: Vec<_> = large.map(|row| (row.endpoints.into(), row.addresses_max.into())).collect();
    let most = |rows: &mut dyn Iterator<Item = &ScaleRow>| {
        rows.map(|row| row.addresses_per_root).fold(0.0, f64::max)
    };
    Some(Growth {
        core,
        range: endpoints.clone().fold(0.0, f64::max) / endpoints.fold(f64::INFINITY, f64::min),
        addresses_exponent: exponent(&points(|row| row.addresses_max))?,
        addresses_exponent_of_large: exponent(&large),
        routes_exponent: exponent(&points(|row| row.busy_routes_max)).unwrap_or(0.0),
        most_per_root: most(&mut rows.clone()),
        most_per_root_of_large: most(&mut rows.clone().filter(is_large)),
    })
}

fn in_words(world: &World) -> String {
    let World { row, wall_seconds } = world;
    format!(
        "{} relays, {} endpoints, {} sites, core {} ({wall_seconds:.0} s)\n  \
         routes learned: {} in the median relay, {} at most; after contacts with many {} and {}\n  \
         join: {:.1} datagrams, {:.2} over links, {:.0} µs\n  \
         first contact: {:.2} copies over links to ask, {:.2} answers, {:.1} µs a unicast\n  \
         subscription: reaches {:.2} relays, {:.2} datagrams over links, {:.2} µs\n  \
         update: {:.1} copies; {} deliveries, {:.2} µs each\n  \
         memory of a relay: {:.0} KiB empty, {:.0} KiB with its participants; a link costs {:.0} µs/s",
        row.relays,
        row.endpoints,
        row.sites,
        row.core.name(),
        row.routes_median,
        row.routes_max,
        row.busy_routes_median,
        row.busy_routes_max,
        row.join_datagrams,
        row.join_link_datagrams,
        row.join_cpu_us,
        row.contact_copies,
        row.contact_replies,
        row.contact_cpu_us,
        row.subscribe_relays,
        row.subscribe_link_datagrams,
        row.subscribe_cpu_us,
        row.update_copies,
        row.deliveries,
        row.delivery_cpu_us,
        row.memory_empty_kib,
        row.memory_kib,
        row.idle_cpu_us,
    )
}

/// What a curve shows of a row.
type Shown = (&'static str, fn(&ScaleRow) -> f64);

/// The pictures, by the names of their files.
fn charts(worlds: &[World]) -> Vec<(&'static str, Chart<'static>)> {
    let picture = |title, y_label, shown: &[Shown]| Chart {
        title,
        x_label: "endpoints",
        y_label,
        log_x: true,
        bottom: 0.0,
        legend: SeriesLabelPosition::UpperLeft,
        curves: curves(worlds, shown),
    };
    let mut routes = picture(
        "Routes of a relay",
        "routes",
        &[
            ("known at most, own participants included", |row| row.addresses_max.into()),
            ("learned at most", |row| row.busy_routes_max.into()),
            ("learned by the median relay", |row| row.busy_routes_median.into()),
        ],
    );
    routes.curves.extend(roots(worlds));
    vec![
        ("routes", routes),
        (
            "join",
            picture(
                "A join",
                "µs of processor time, all relays",
                &[("join", |row| row.join_cpu_us)],
            ),
        ),
        (
            "contact",
            picture(
                "A first contact between two participants",
                "copies, µs",
                &[
                    ("copies over links that ask for the way", |row| row.contact_copies),
                    ("µs of processor time of a unicast, all relays", |row| row.contact_cpu_us),
                ],
            ),
        ),
        (
            "subscription",
            picture(
                "A subscription",
                "relays, µs",
                &[
                    ("relays that hear of it", |row| row.subscribe_relays),
                    ("µs of processor time, all relays", |row| row.subscribe_cpu_us),
                ],
            ),
        ),
        (
            "memory",
            picture(
                "Memory of a relay",
                "KiB",
                &[
                    ("without participants", |row| row.memory_empty_kib),
                    ("with participants and their sessions", |row| row.memory_kib),
                ],
            ),
        ),
    ]
}

/// A curve for each core and each thing that is shown.
fn curves(worlds: &[World], shown: &[Shown]) -> Vec<Curve> {
    let mut curves = Vec::new();
    for (what, of) in shown {
        for core in [ScaleCore::One, ScaleCore::Subtree] {
            let rows = worlds.iter().map(|world| &world.row).filter(|row| row.core == core);
            curves.push(Curve {
                name: format!("{what} (core: {})", core.name()),
                points: rows.map(|row| (row.endpoints.into(), of(row))).collect(),
                marked: true,
                fitted: None,
            });
        }
    }
    curves
}

/// Twice the square root of the number of endpoints: as many sites as each has endpoints.
fn roots(worlds: &[World]) -> Option<Curve> {
    const STEPS: i32 = 40;
    let ends = worlds.iter().map(|world| f64::from(world.row.endpoints));
    let (first, last) = (ends.clone().fold(f64::INFINITY, f64::min), ends.fold(0.0, f64::max));
    let at = |step: i32| first * (last / first).powf(f64::from(step) / f64::from(STEPS));
    let points = (0..=STEPS).map(at).map(|endpoints| (endpoints, 2.0 * endpoints.sqrt()));
    let name = "2 × √endpoints".to_owned();
    (last > first).then(|| Curve { name, points: points.collect(), marked: false, fitted: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_faster_than_the_root_is_found() {
        let growth = |addresses_exponent, most_per_root_of_large| Growth {
            core: ScaleCore::One,
            addresses_exponent,
            addresses_exponent_of_large: None,
            routes_exponent: 0.9,
            most_per_root: 5.0,
            most_per_root_of_large,
            range: 100.0,
        };
        for (exponent, per_root, is_fast) in
            [(0.5, 2.3, false), (0.54, 2.5, false), (0.56, 2.3, true), (0.4, 2.6, true)]
        {
            assert_eq!(growth(exponent, per_root).is_fast(), is_fast, "{exponent} {per_root}");
        }
        assert!(!Growth { range: 3.0, ..growth(0.7, 2.3) }.is_fast(), "too few sizes to tell");
    }
}
