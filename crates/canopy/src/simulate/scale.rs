//! `canopy sim scale`: what worlds of relays cost against their size.

use crate::output::{print_line, print_note};
use canopy_net::thread_cpu_time;
use canopy_output::chart::{self, Chart, Curve, SeriesLabelPosition};
use canopy_sim::{Gauge, ScaleConfig, ScaleCore, ScaleRow, exponent, run_scale};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Routes grow with the number of endpoints by this exponent at most.
const MOST_EXPONENT: f64 = 0.5;

/// Builds worlds of growing size from the real relays and sessions, in virtual time without sockets, and
/// tells what a relay holds and what a join, a first contact, a subscription and an update cost. Every
/// participant joins, writes to another who answers, subscribes to four groups and publishes once;
/// every delivery is counted. The exit status is 1 if something is missing, or if routes grow
/// faster than the square root of the number of endpoints.
#[derive(Args)]
pub(crate) struct ScaleCommand {
    /// How many relays, world by world
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = [10, 30, 100, 300, 1000], value_parser = clap::value_parser!(u32).range(1..=10_000))]
    relays: Vec<u32>,
    /// Participants of each relay
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    endpoints_per_relay: u16,
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

/// One world, and how long it took.
#[derive(Clone, Serialize)]
struct Timed {
    #[serde(flatten)]
    row: ScaleRow,
    wall_seconds: f64,
}

/// By which exponent something grows with the number of endpoints.
#[derive(Serialize)]
struct Growth {
    core: ScaleCore,
    /// Of the addresses that the relay with most of them knows the way to, its own among them.
    addresses_exponent: f64,
    /// Of those that it has learned.
    routes_exponent: f64,
    /// The most addresses, in square roots of the number of endpoints.
    most_per_root: f64,
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
        let mut worlds = Vec::new();
        for relays in sizes {
            for core in [ScaleCore::One, ScaleCore::Subtree] {
                let timed = self.run_world(relays, core)?;
                if self.json {
                    print_line(serde_json::to_string(&timed)?)?;
                } else {
                    print_line(in_words(&timed))?;
                }
                worlds.push(timed);
            }
        }
        let growths = [ScaleCore::One, ScaleCore::Subtree].map(|core| growth(&worlds, core));
        let growths: Vec<_> = growths.into_iter().flatten().collect();
        for growth in &growths {
            if self.json {
                print_line(serde_json::to_string(growth)?)?;
            } else {
                print_line(format_args!(
                    "core {}: what a relay knows the way to grows with endpoints^{:.2} (its own \
                     participants left out: ^{:.2}); at most {:.2} × their square root",
                    growth.core.name(),
                    growth.addresses_exponent,
                    growth.routes_exponent,
                    growth.most_per_root
                ))?;
            }
        }
        if let Some(out) = &self.out {
            chart::write_csv(
                &out.join("scale.csv"),
                &worlds.iter().map(Flat::of).collect::<Vec<_>>(),
            )?;
            for (name, chart) in charts(&worlds) {
                chart.write(&out.join(name).with_extension("svg"))?;
            }
        }
        // A rounding off the root is still the root.
        let is_steep = |growth: &Growth| growth.addresses_exponent > MOST_EXPONENT + 0.005;
        Ok(if growths.iter().any(is_steep) {
            print_note("routes grow faster than the square root of the number of endpoints");
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }

    fn run_world(&self, relays: u32, core: ScaleCore) -> anyhow::Result<Timed> {
        let endpoints_per_relay = self.endpoints_per_relay;
        let config = ScaleConfig { seed: self.seed, relays, endpoints_per_relay, core };
        let start = Instant::now();
        let mut progress = |part: &str| {
            let (seconds, core) = (start.elapsed().as_secs(), core.name());
            print_note(format_args!("{relays} relays, core {core}: {part} ({seconds} s)"));
        };
        let row = run_scale(&config, &ThisProcess, &mut progress).map_err(anyhow::Error::msg)?;
        Ok(Timed { row, wall_seconds: start.elapsed().as_secs_f64() })
    }
}

fn growth(worlds: &[Timed], core: ScaleCore) -> Option<Growth> {
    let rows = worlds.iter().map(|world| &world.row).filter(|row| row.core == core);
    let points = |of: fn(&ScaleRow) -> u32| -> Vec<(f64, f64)> {
        rows.clone().map(|row| (row.endpoints.into(), of(row).into())).collect()
    };
    Some(Growth {
        core,
        addresses_exponent: exponent(&points(|row| row.addresses_max))?,
        routes_exponent: exponent(&points(|row| row.routes_max)).unwrap_or(0.0),
        most_per_root: rows.clone().map(|row| row.addresses_per_root).fold(0.0, f64::max),
    })
}

fn in_words(timed: &Timed) -> String {
    let Timed { row, wall_seconds } = timed;
    format!(
        "{} relays, {} endpoints, {} sites, core {} ({wall_seconds:.0} s)\n  \
         routes learned: {} in the median relay, {} at most\n  \
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

/// A row as a table has it, which knows no rows in rows.
#[derive(Serialize)]
struct Flat {
    relays: u32,
    endpoints: u32,
    core: &'static str,
    sites: u16,
    routes_median: u32,
    routes_max: u32,
    addresses_max: u32,
    join_datagrams: f64,
    join_cpu_us: f64,
    contact_copies: f64,
    contact_cpu_us: f64,
    subscribe_relays: f64,
    subscribe_cpu_us: f64,
    update_copies: f64,
    delivery_cpu_us: f64,
    memory_empty_kib: f64,
    memory_kib: f64,
    idle_cpu_us: f64,
    wall_seconds: f64,
}

impl Flat {
    fn of(timed: &Timed) -> Flat {
        let Timed { row, wall_seconds } = timed;
        Flat {
            relays: row.relays,
            endpoints: row.endpoints,
            core: row.core.name(),
            sites: row.sites,
            routes_median: row.routes_median,
            routes_max: row.routes_max,
            addresses_max: row.addresses_max,
            join_datagrams: row.join_datagrams,
            join_cpu_us: row.join_cpu_us,
            contact_copies: row.contact_copies,
            contact_cpu_us: row.contact_cpu_us,
            subscribe_relays: row.subscribe_relays,
            subscribe_cpu_us: row.subscribe_cpu_us,
            update_copies: row.update_copies,
            delivery_cpu_us: row.delivery_cpu_us,
            memory_empty_kib: row.memory_empty_kib,
            memory_kib: row.memory_kib,
            idle_cpu_us: row.idle_cpu_us,
            wall_seconds: *wall_seconds,
        }
    }
}

/// What a curve shows of a row.
type Shown = (&'static str, fn(&ScaleRow) -> f64);

/// The pictures, by the names of their files.
fn charts(worlds: &[Timed]) -> Vec<(&'static str, Chart<'static>)> {
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
            ("learned at most", |row| row.routes_max.into()),
            ("learned by the median relay", |row| row.routes_median.into()),
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
fn curves(worlds: &[Timed], shown: &[Shown]) -> Vec<Curve> {
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
fn roots(worlds: &[Timed]) -> Option<Curve> {
    const STEPS: i32 = 40;
    let ends = worlds.iter().map(|world| f64::from(world.row.endpoints));
    let (first, last) = (ends.clone().fold(f64::INFINITY, f64::min), ends.fold(0.0, f64::max));
    let at = |step: i32| first * (last / first).powf(f64::from(step) / f64::from(STEPS));
    let points = (0..=STEPS).map(at).map(|endpoints| (endpoints, 2.0 * endpoints.sqrt()));
    let name = "2 × √endpoints".to_owned();
    (last > first).then(|| Curve { name, points: points.collect(), marked: false, fitted: None })
}
