//! `canopy lab isolation`: what a flood on one comtree costs a world on another that shares sockets,
//! relays and links with it. The original router delivers 25–41 % of the world's packets then.

mod bed;
mod load;
mod verdict;

use crate::Processors;
use crate::noise::median;
use crate::table::{Column, table};
use anyhow::{Context, ensure};
use bed::{Bed, Side};
use canopy_net::{KernelDrops, end_with_parent};
use canopy_output::chart::{self, Chart, Curve, SeriesLabelPosition};
use canopy_output::verdict::conclude;
use canopy_output::{print_line, print_note};
use clap::{Args, ValueEnum};
pub use load::IsolationFlooder;
use load::{Offered, Seen, walk};
use serde::Serialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

/// Runs a world of 1,000 updates a second and a flood on another comtree, in network namespaces: real
/// relays, real sockets, virtual Ethernet between them. Each round has a quiet walk, one whose flood
/// goes to a socket of its own instead of the relay (what the flooder itself takes from this machine),
/// and one with the flood. It needs root, and two processors: the relay's data thread has one, and
/// everybody else the other. A relay of two data threads has both, and shares one with the load.
#[derive(Args)]
pub struct IsolationLab {
    /// Data threads of the relays
    #[arg(long, value_delimiter = ',', value_name = "T", default_values_t = [1, 2],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// What world and flood share; everything unless given
    #[arg(long, value_delimiter = ',', value_name = "PLACE")]
    at: Vec<Shared>,
    /// Packets a second of the flood, as many as this machine can send
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    flood_pps: u32,
    /// The flood's comtree. The world's is 1, and comtrees whose numbers are alike modulo 7 share a receive buffer
    #[arg(long, value_name = "ID", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    flood_comtree: u32,
    /// Seconds of each walk
    #[arg(long, value_name = "S", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    seconds: u32,
    /// Rounds of all walks in turn: what is told are medians, but for deliveries, which are the worst round's, and
    /// what the kernel dropped in all of them
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Print the rows as one JSON object
    #[arg(long)]
    json: bool,
    /// Write the rows as CSV and their picture as SVG into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// What world and flood share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shared {
    /// A relay's input: nobody wants the flood
    Input,
    /// Its output too: somebody at the same relay has subscribed to the flood
    Output,
    /// A link: publishers are at one relay, and the subscribers of both comtrees at another
    Link,
}

impl Shared {
    /// How many relays it needs.
    fn relays(self) -> usize {
        if self == Shared::Link { 2 } else { 1 }
    }

    /// The relay at which the subscribers are.
    fn far(self) -> usize {
        self.relays() - 1
    }
}

/// Where a walk's flood goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flooded {
    Quiet,
    Elsewhere,
    Relay,
}

#[derive(Clone, Serialize)]
struct Row {
    at: Shared,
    threads: u16,
    /// Packets of the flood that were sent to the relay, a second.
    flood_pps_offered: f64,
    /// How many of them the relay took; where somebody wants them, how many it sent on.
    flood_pps_through: f64,
    /// The share of the deliveries that were due, from 0 to 1, in the round in which it was the least.
    victim_delivered: f64,
    victim_age_p99_ms: f64,
    /// The same without a flood, in that round.
    quiet_delivered: f64,
    quiet_age_p99_ms: f64,
    /// When the flood goes elsewhere: what the flooder takes from this machine.
    elsewhere_age_p99_ms: f64,
    /// Datagrams of the flooded walks that the kernel dropped: see [`KernelDrops`].
    kernel_backlog_drops: u64,
    kernel_device_drops: u64,
    kernel_receive_buffer_drops: u64,
}

#[derive(Serialize)]
struct Rows<'a> {
    rows: &'a [Row],
}

/// What one walk saw.
#[derive(Clone, Copy)]
struct Walk {
    delivered: f64,
    age_p99_ms: f64,
    offered: f64,
    through: f64,
    drops: KernelDrops,
}

impl Row {
    /// The quiet walks of all rounds, those whose flood went elsewhere, and the flooded ones.
    fn of(at: Shared, threads: u16, [quiet, elsewhere, flooded]: &[Vec<Walk>; 3]) -> Row {
        let drops = drops_of(flooded);
        // A median would hide a round in which the world got a quarter.
        let delivered =
            flooded.iter().zip(quiet).map(|(one, quiet)| (one.delivered, quiet.delivered));
        let worst = delivered.min_by(|one, other| one.0.total_cmp(&other.0));
        let (victim_delivered, quiet_delivered) = worst.expect("there is a round at least");
        Row {
            at,
            threads,
            flood_pps_offered: middle(flooded, |walk| walk.offered),
            flood_pps_through: middle(flooded, |walk| walk.through),
            victim_delivered,
            victim_age_p99_ms: middle(flooded, |walk| walk.age_p99_ms),
            quiet_delivered,
            quiet_age_p99_ms: middle(quiet, |walk| walk.age_p99_ms),
            elsewhere_age_p99_ms: middle(elsewhere, |walk| walk.age_p99_ms),
            kernel_backlog_drops: drops.backlog,
            kernel_device_drops: drops.devices,
            kernel_receive_buffer_drops: drops.receive_buffers,
        }
    }
}

impl IsolationLab {
    /// Runs the lab and prints what it measured.
    ///
    /// # Errors
    /// Without the right to make network namespaces, or with fewer than two processors.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(folder) = &self.out {
            chart::make_folder(folder, "--out")?;
        }
        let processors = Processors::take()?;
        let places = match &self.at[..] {
            [] => Shared::value_variants(),
            some => some,
        };
        let mut rows = Vec::new();
        for at in places {
            for threads in &self.threads {
                rows.push(self.row(*at, *threads, &processors)?);
            }
        }
        if let Some(folder) = &self.out {
            chart::write(folder, "isolation", &rows, &picture(&rows))?;
        }
        if self.json {
            print_line(serde_json::to_string(&Rows { rows: &rows })?)?;
        } else {
            print_line(table(&rows, COLUMNS))?;
        }
        if self.rounds > 1 {
            print_note(format_args!("{}, of {} rounds each", verdict::tally(&rows), self.rounds));
        }
        Ok(conclude(&verdict::findings(&rows)))
    }

    fn row(&self, at: Shared, threads: u16, processors: &Processors) -> anyhow::Result<Row> {
        let mut walks: [Vec<Walk>; 3] = Default::default();
        for round in 1..=self.rounds {
            print_note(format_args!(
                "{at:?}, {threads} data threads: round {round} of {}",
                self.rounds
            ));
            for (flooded, walks) in
                [Flooded::Quiet, Flooded::Elsewhere, Flooded::Relay].into_iter().zip(&mut walks)
            {
                walks.push(self.walk(at, threads, flooded, processors)?);
            }
        }
        if let Some(remedy) = drops_of(&walks[2]).remedy() {
            print_note(format_args!("{at:?}, {threads} data threads: {remedy}"));
        }
        Ok(Row::of(at, threads, &walks))
    }

    fn walk(
        &self,
        at: Shared,
        threads: u16,
        flooded: Flooded,
        processors: &Processors,
    ) -> anyhow::Result<Walk> {
        let folder = std::env::temp_dir().join(format!("canopy-isolation-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let Processors { load_on, relay_on } = processors;
        let mut pins = relay_on.clone();
        pins.push(*load_on);
        let pins: Vec<_> = pins.iter().take(threads.into()).map(ToString::to_string).collect();
        let comtrees = [load::WORLD.0, self.flood_comtree];
        let bed = Bed::new(at, &folder, (threads, &pins.join(",")), comtrees)?;
        let length = Duration::from_secs(self.seconds.into());
        let flooder = match flooded {
            Flooded::Quiet => None,
            _ => Some(self.flooder(&bed, at, flooded, *load_on)?),
        };
        let before = bed.drops()?;
        let (publish_at, receive_at) =
            (bed.address(Side::World, 0), bed.address(Side::World, at.far()));
        let seen = bed.world.run(|| {
            canopy_net::pin_thread(*load_on)?;
            walk(publish_at, receive_at, length)
        })??;
        let offered = flooder.map(Flooder::end).transpose()?.unwrap_or_default();
        let after = bed.drops()?;
        let totals = bed.end()?;
        // It may be gone already.
        let _ = std::fs::remove_dir_all(&folder);
        let is_offered = flooded == Flooded::Relay;
        let through = if is_offered { through(at, &seen, &totals) } else { 0 };
        let rate = |packets: u64| packets as f64 / offered.seconds.max(f64::MIN_POSITIVE);
        Ok(Walk {
            delivered: seen.delivered as f64 / seen.due.max(1) as f64,
            age_p99_ms: seen.age_p99_ms,
            offered: rate(offered.packets),
            through: rate(through),
            drops: after.since(before),
        })
    }

    /// Starts who floods, and lets it begin.
    fn flooder(
        &self,
        bed: &Bed,
        at: Shared,
        flooded: Flooded,
        pin: usize,
    ) -> anyhow::Result<Flooder> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["lab", "isolation-flooder", "--pps", &self.flood_pps.to_string()]);
        command.args(["--relay", &bed.address(Side::Flood, 0).to_string()]);
        command.args(["--comtree", &self.flood_comtree.to_string()]);
        if at != Shared::Input {
            let subscriber_at = bed.address(Side::Flood, at.far());
            command.args(["--subscriber-at", &subscriber_at.to_string()]);
        }
        // The world joins while it floods, and is heard to its end.
        let seconds = f64::from(self.seconds) + 1.5;
        command.args(["--seconds", &seconds.to_string(), "--pin", &pin.to_string()]);
        if flooded == Flooded::Elsewhere {
            command.arg("--elsewhere");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = end_with_parent(bed.flood.host(&mut command))
            .spawn()
            .context("cannot start who floods")?;
        let mut stdout = BufReader::new(child.stdout.take().context("the flooder has no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let flooder = Flooder { child, stdout };
        ensure!(line.trim() == "ready", "the flooder is not let in; what it says above tells why");
        flooder.child.stdin.as_ref().context("the flooder has no input")?.write_all(b"go\n")?;
        Ok(flooder)
    }
}

/// What of the flood a relay took, or sent on to who wants it.
fn through(at: Shared, seen: &Seen, totals: &[Value]) -> u64 {
    let count = |relay: usize, name: &str| totals[relay]["counters"][name].as_u64().unwrap_or(0);
    match at {
        Shared::Input => count(0, "updates_in").saturating_sub(seen.published),
        _ => count(at.far(), "deliveries_out").saturating_sub(seen.delivered),
    }
}

/// Who floods. Ended when dropped.
struct Flooder {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Flooder {
    fn end(mut self) -> anyhow::Result<Offered> {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said)?;
        serde_json::from_str(said.trim()).context("the flooder did not say what it has sent")
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One walk follows the other, so the backlog's drops add up, too.
fn drops_of(walks: &[Walk]) -> KernelDrops {
    walks.iter().fold(KernelDrops::default(), |sum, walk| KernelDrops {
        backlog: sum.backlog + walk.drops.backlog,
        devices: sum.devices + walk.drops.devices,
        receive_buffers: sum.receive_buffers + walk.drops.receive_buffers,
    })
}

fn middle(walks: &[Walk], pick: fn(&Walk) -> f64) -> f64 {
    median(&walks.iter().map(pick).collect::<Vec<_>>())
}

const COLUMNS: &[Column<Row>] = &[
    ("at", |row| format!("{:?}", row.at).to_lowercase()),
    ("threads", |row| row.threads.to_string()),
    ("flood/s", |row| format!("{:.0}", row.flood_pps_offered)),
    ("through/s", |row| format!("{:.0}", row.flood_pps_through)),
    ("delivered %", |row| format!("{:.3}", row.victim_delivered * 100.0)),
    ("age p99 ms", |row| format!("{:.3}", row.victim_age_p99_ms)),
    ("quiet ms", |row| format!("{:.3}", row.quiet_age_p99_ms)),
    ("elsewhere ms", |row| format!("{:.3}", row.elsewhere_age_p99_ms)),
    ("backlog drops", |row| row.kernel_backlog_drops.to_string()),
    ("device drops", |row| row.kernel_device_drops.to_string()),
    ("buffer drops", |row| row.kernel_receive_buffer_drops.to_string()),
];

/// The ages of each row, one beside the other.
fn picture(rows: &[Row]) -> Chart<'static> {
    let curve = |name: &str, age: fn(&Row) -> f64| Curve {
        name: name.into(),
        points: rows.iter().zip(1..).map(|(row, at)| (f64::from(at), age(row))).collect(),
        marked: true,
        fitted: None,
    };
    Chart {
        title: "Age of a world's updates beside a flood on another comtree",
        x_label: "row",
        y_label: "99th percentile, ms",
        log_x: false,
        bottom: 0.0,
        legend: SeriesLabelPosition::UpperLeft,
        curves: vec![
            curve("quiet", |row| row.quiet_age_p99_ms),
            curve("flood elsewhere", |row| row.elsewhere_age_p99_ms),
            curve("flood", |row| row.victim_age_p99_ms),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_in_which_the_world_got_little_is_what_a_row_tells() {
        let walk = |delivered: f64, age_p99_ms: f64| Walk {
            delivered,
            age_p99_ms,
            offered: 400_000.0,
            through: 0.0,
            drops: KernelDrops { backlog: 1, devices: 2, receive_buffers: 3 },
        };
        let quiet = vec![walk(0.9, 0.3), walk(1.0, 0.3), walk(1.0, 0.3)];
        let flooded = vec![walk(1.0, 0.5), walk(0.25, 9.0), walk(1.0, 0.4)];
        let row = Row::of(Shared::Input, 1, &[quiet.clone(), quiet, flooded]);
        assert_eq!((row.victim_delivered, row.quiet_delivered), (0.25, 1.0));
        assert_eq!((row.victim_age_p99_ms, row.quiet_age_p99_ms), (0.5, 0.3));
        assert_eq!((row.kernel_backlog_drops, row.kernel_device_drops), (3, 6));
    }
}
