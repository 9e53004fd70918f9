//! `cargo xtask soak --topologies`: a controller and its relays on the networks of a folder.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::job::Job;
use crate::report::spoken;
use crate::sim::{World, report};
use crate::soak::{BUILD, ENOUGH, new_seed};
use crate::steps::build_release;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Progress is told after so many seeds.
const TOLD_EVERY: u64 = 100;

/// A network, and how far it has come.
struct Network {
    file: PathBuf,
    next_seed: u64,
    failures: usize,
    took: Duration,
    /// Whether `canopy sim` does not simulate it with these flags.
    is_refused: bool,
    seen: Seen,
}

/// What the runs of a network that passed have asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    runs: u64,
    /// Runs in which nobody had to get anything: little was looked at.
    idle: u64,
    expected: u64,
    excused: u64,
}

/// Simulates one seed after another until the time is up, each network for about as long as every other: so there are
/// many seeds of small ones. Those that failed come after the others. What `canopy sim` refuses is skipped, and runs in
/// which nothing was expected of anybody count as skipped, too.
pub(crate) fn run(
    folder: &Path,
    minutes: u64,
    from_seed: Option<u64>,
    flags: &[String],
) -> Result<Tally> {
    let first = from_seed.unwrap_or_else(new_seed);
    let mut networks = networks(folder, first)?;
    let workspace = Workspace::load()?;
    let time = Duration::from_secs(60 * minutes);
    // The last run may go on for as long as a build.
    let mut job = Job::start(&workspace, "sweep", time + 2 * BUILD, true)?;
    build_release(&mut job)?;
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    while start.elapsed() < time && failures.len() < ENOUGH {
        let left = networks.iter_mut().filter(|network| !network.is_refused);
        let next = left.min_by_key(|network| (network.failures, network.took));
        let Some(network) = next else { break };
        match network.run(&mut job, flags) {
            Ok(counted) => tally += counted,
            Err(error) => {
                job.note(&format!("{error:#}"));
                network.failures += 1;
                failures.push(format!("{error:#}"));
                tally += Tally::FAILED;
            }
        }
        if tally.total().is_multiple_of(TOLD_EVERY) {
            job.note(&format!("{tally}, {}", spoken(start.elapsed())));
        }
    }
    println!();
    for Network { file, next_seed, took, seen, is_refused, .. } in &networks {
        let file = file.display();
        match is_refused {
            true => println!("skipped: {file}: `canopy sim` refuses it with these flags"),
            false => println!("{file}: seeds {first}..{next_seed}, {}, {seen}", spoken(*took)),
        }
    }
    println!("all together: {}", Seen::sum(networks.iter().map(|network| network.seen)));
    failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    let is_any_left = networks.iter().any(|network| !network.is_refused);
    ensure!(is_any_left, "`canopy sim` refuses all of them with these flags");
    Ok(tally)
}

impl Network {
    fn run(&mut self, job: &mut Job<'_>, flags: &[String]) -> Result<Tally> {
        let (topology, flags) = (Some(self.file.clone()), flags.to_vec());
        let world = World { seed: self.next_seed, topology, flags, ..World::default() };
        let start = Instant::now();
        let ran = report(job, &world);
        self.next_seed += 1;
        self.took += start.elapsed();
        let Some(report) = ran? else {
            self.is_refused = true;
            return Ok(Tally::SKIPPED);
        };
        let seen =
            Seen::of(&report).with_context(|| format!("{world}: no counts in its report"))?;
        self.seen = Seen::sum([self.seen, seen]);
        Ok(if seen.idle > 0 { Tally::SKIPPED } else { Tally::PASSED })
    }
}

impl Seen {
    /// What one run has asked for, by its report.
    fn of(report: &Map<String, Value>) -> Option<Seen> {
        let number = |name: &str| report.get(name)?.as_u64();
        let (expected, excused) = (number("deliveries_expected")?, number("deliveries_excused")?);
        Some(Seen { runs: 1, idle: u64::from(expected == 0), expected, excused })
    }

    fn sum(all: impl IntoIterator<Item = Seen>) -> Seen {
        all.into_iter().fold(Seen::default(), |sum, of| Seen {
            runs: sum.runs + of.runs,
            idle: sum.idle + of.idle,
            expected: sum.expected + of.expected,
            excused: sum.excused + of.excused,
        })
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { runs, idle, expected, excused } = self;
        let all = expected + excused;
        let part = 100.0 * *expected as f64 / all.max(1) as f64;
        write!(
            out,
            "{runs} passed, in {idle} of which nothing was expected; {part:.1} % of {all} deliveries \
             expected, the others excused"
        )
    }
}

/// The networks in a folder, in order.
fn networks(folder: &Path, first: u64) -> Result<Vec<Network>> {
    // Runs are not started where this is.
    let entries = std::path::absolute(folder)
        .and_then(std::fs::read_dir)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|end| end == "gml"));
    ensure!(!files.is_empty(), "the folder {} has no network in a .gml file", folder.display());
    files.sort();
    let network = |file| Network {
        file,
        next_seed: first,
        failures: 0,
        took: Duration::ZERO,
        is_refused: false,
        seen: Seen::default(),
    };
    Ok(files.into_iter().map(network).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_ask_for_nothing_are_told_apart() {
        let of = |text: &str| Seen::of(serde_json::from_str::<Value>(text).ok()?.as_object()?);
        let busy = of(r#"{"deliveries_expected": 30, "deliveries_excused": 50}"#).unwrap();
        let idle = of(r#"{"deliveries_expected": 0, "deliveries_excused": 20}"#).unwrap();
        assert_eq!((busy.idle, idle.idle), (0, 1));
        assert_eq!(
            Seen::sum([busy, idle]).to_string(),
            "2 passed, in 1 of which nothing was expected; 30.0 % of 100 deliveries expected, the \
             others excused"
        );
        assert_eq!(of(r#"{"deliveries_expected": 30}"#), None);
    }

    #[test]
    fn a_folder_without_networks_is_refused() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(networks(folder, 1).is_err());
        assert!(networks(&folder.join("no-such-folder"), 1).is_err());
    }
}
