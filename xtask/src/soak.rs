//! `cargo xtask soak`: looks for failures that no committed seed or input shows yet.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use crate::fuzz::{self, fuzz};
use crate::job::Job;
use crate::report::spoken;
use crate::sim::{World, trace_hash};
use crate::steps::build_release;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// After so many failing seeds more of them tell nothing new.
pub(crate) const ENOUGH: usize = 10;
/// Worlds have up to so many relays.
const MOST_RELAYS: u64 = 50;
/// Time to build, on top of the time that was asked for.
pub(crate) const BUILD: Duration = Duration::from_secs(20 * 60);

/// Simulates new seeds for half of the time and fuzzes for the other half, or simulates for all of it.
pub(crate) fn run(minutes: u64, from_seed: Option<u64>) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let all = Duration::from_secs(60 * minutes);
    let why_not = fuzz::unavailable();
    let targets = if why_not.is_some() { Vec::new() } else { workspace.fuzz_targets()? };
    let for_seeds = if targets.is_empty() { all } else { all / 2 };
    let mut failures = Vec::new();
    let mut tally =
        seeds(&workspace, from_seed.unwrap_or_else(new_seed), for_seeds, &mut failures)?;
    let share = (all - for_seeds).as_secs() / (targets.len().max(1) as u64);
    for target in &targets {
        tally += match fuzz(&workspace, target, share.max(1)) {
            Ok(()) => Tally::PASSED,
            Err(error) => {
                failures.push(format!("{error:#}"));
                Tally::FAILED
            }
        };
    }
    println!();
    if let Some(why) = why_not {
        println!("left out: fuzz ({why})");
        tally += Tally::SKIPPED;
    }
    for failure in failures {
        println!("FAILED: {failure}");
    }
    Ok(tally)
}

/// Simulates one seed after another until the time is up.
fn seeds(
    workspace: &Workspace,
    first: u64,
    time: Duration,
    failures: &mut Vec<String>,
) -> Result<Tally> {
    let mut job = Job::start(workspace, "soak", time + BUILD, true)?;
    build_release(&mut job)?;
    let start = Instant::now();
    let mut tally = Tally::default();
    for seed in first.. {
        if start.elapsed() >= time || failures.len() >= ENOUGH {
            break;
        }
        // Every other one is a world of many relays.
        let relays = seed.is_multiple_of(2).then(|| 1 + (seed / 2 % MOST_RELAYS) as u32);
        match trace_hash(&mut job, &World { seed, relays, ..World::default() }) {
            Ok(_) => tally += Tally::PASSED,
            Err(error) => {
                job.note(&format!("{error:#}"));
                failures.push(format!("{error:#}"));
                tally += Tally::FAILED;
            }
        }
    }
    let last = first + tally.total();
    job.note(&format!("seeds {first}..{last}: {tally}, {}", spoken(start.elapsed())));
    Ok(tally)
}

/// A start that earlier soaks have not been at: their seeds lie in the past.
pub(crate) fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs()
}
