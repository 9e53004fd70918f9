//! `cargo xtask soak --topologies`: a controller and its relays on the networks of a folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::job::Job;
use crate::report::spoken;
use crate::sim::{World, trace_hash};
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
}

/// Simulates one seed after another until the time is up, each network for about as long as every other: so there are
/// many seeds of small ones. Those that failed come after the others, as one may be refused with these flags of `canopy sim`.
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
        let next = networks.iter_mut().min_by_key(|network| (network.failures, network.took));
        let Some(network) = next else { break };
        match network.run(&mut job, flags) {
            Ok(()) => tally += Tally::PASSED,
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
    for Network { file, next_seed, took, .. } in &networks {
        println!("{}: seeds {first}..{next_seed}, {}", file.display(), spoken(*took));
    }
    failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    Ok(tally)
}

impl Network {
    fn run(&mut self, job: &mut Job<'_>, flags: &[String]) -> Result<()> {
        let (topology, flags) = (Some(self.file.clone()), flags.to_vec());
        let world = World { seed: self.next_seed, topology, flags, ..World::default() };
        let start = Instant::now();
        let ran = trace_hash(job, &world);
        self.next_seed += 1;
        self.took += start.elapsed();
        ran.map(drop)
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
    let network = |file| Network { file, next_seed: first, failures: 0, took: Duration::ZERO };
    Ok(files.into_iter().map(network).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_networks_is_refused() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(networks(folder, 1).is_err());
        assert!(networks(&folder.join("no-such-folder"), 1).is_err());
    }
}
