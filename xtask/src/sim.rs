//! What the `canopy` binary prints as JSON: simulation results and bench rows.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Deserializer, Map, Value};

use crate::job::Job;
use crate::report::spoken;

/// A world of the simulator's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) seed: u64,
    /// How many relays; none is the world of one relay, in more detail.
    pub(crate) relays: Option<u32>,
    /// A network's file: a controller, and a relay at each node.
    pub(crate) topology: Option<PathBuf>,
    /// What else `canopy sim` is told.
    pub(crate) flags: Vec<String>,
}

impl World {
    fn args(&self) -> Vec<String> {
        let relays = self.relays.map(|relays| vec!["--relays".to_owned(), relays.to_string()]);
        let topology = self
            .topology
            .as_ref()
            .map(|file| vec!["--topology".to_owned(), file.display().to_string()]);
        let seed = vec!["--seed".to_owned(), self.seed.to_string()];
        let which = relays.or(topology).unwrap_or_default();
        [vec!["sim".to_owned()], which, seed, self.flags.clone()].concat()
    }
}

impl Display for World {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)?;
        if let Some(file) = &self.topology {
            write!(f, " on {}", file.display())?;
        }
        self.relays.map_or(Ok(()), |relays| write!(f, " of {relays} relays"))
    }
}

/// Runs every world twice: the same seed must give the same trace, and no two worlds the same one.
pub(crate) fn check_worlds(
    job: &mut Job<'_>,
    worlds: impl IntoIterator<Item = World>,
) -> Result<()> {
    let mut seen: BTreeMap<String, World> = BTreeMap::new();
    for world in worlds {
        let start = Instant::now();
        let first = trace_hash(job, &world)?;
        let second = trace_hash(job, &world)?;
        ensure!(
            first == second,
            "{world} is not deterministic: trace {first}, then {second}; replay: {}",
            replay(&world)
        );
        job.note(&format!("{world}: trace {first}, twice, {}", spoken(start.elapsed())));
        let told = world.to_string();
        if let Some(other) = seen.insert(first.clone(), world) {
            bail!(
                "{other} and {told} gave the same trace {first}: does the seed reach everything?"
            );
        }
    }
    Ok(())
}

/// Simulates one world, if it is not refused; hands back the report.
pub(crate) fn report(job: &mut Job<'_>, world: &World) -> Result<Option<Map<String, Value>>> {
    let mut command = Command::new(job.canopy());
    command.args(world.args()).arg("--json");
    let text = job
        .read_unless_refused(command)
        .with_context(|| format!("{world} failed; replay: {}", replay(world)))?;
    text.map(|text| rows(&text)).transpose().map(|rows| rows?.pop())
}

/// Simulates one world; hands back the hash of its trace.
pub(crate) fn trace_hash(job: &mut Job<'_>, world: &World) -> Result<String> {
    let mut command = Command::new(job.canopy());
    command.args(world.args()).arg("--json");
    let text =
        job.read(command).with_context(|| format!("{world} failed; replay: {}", replay(world)))?;
    let rows = rows(&text)?;
    let hash = rows.iter().find_map(|row| row.get("trace_hash")?.as_str());
    hash.filter(|hash| !hash.is_empty()).map(str::to_owned).with_context(|| {
        format!("no trace_hash in what `canopy {} --json` printed", world.args().join(" "))
    })
}

/// The objects in a text of JSON, one after another.
pub(crate) fn rows(text: &str) -> Result<Vec<Map<String, Value>>> {
    let rows: Vec<Map<String, Value>> = Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .context("the output is not JSON objects")?;
    ensure!(!rows.is_empty(), "the output has no rows");
    ensure!(rows.iter().all(|row| !row.is_empty()), "a row of the output has no fields");
    Ok(rows)
}

fn replay(world: &World) -> String {
    format!("cargo run --release -p canopy -- {}", world.args().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_replayed_by_what_runs_it() {
        let one = &World { seed: 3, ..World::default() };
        assert_eq!(replay(one), "cargo run --release -p canopy -- sim --seed 3");
        let many = &World { seed: 3, relays: Some(20), ..World::default() };
        assert_eq!(replay(many), "cargo run --release -p canopy -- sim --relays 20 --seed 3");
        let on = &World { seed: 3, topology: Some("a.gml".into()), ..World::default() };
        assert_eq!(replay(on), "cargo run --release -p canopy -- sim --topology a.gml --seed 3");
        let flags = vec!["--degree".to_owned(), "3".to_owned()];
        let told = replay(&World { flags, ..on.clone() });
        assert!(told.ends_with(" sim --topology a.gml --seed 3 --degree 3"), "{told}");
    }

    #[test]
    fn rows_come_one_after_another() {
        assert_eq!(rows("{\"a\":1}\n{\"a\":2}\n").unwrap().len(), 2);
        assert_eq!(rows("{\n  \"a\": 1\n}").unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_row_is_refused() {
        for text in ["", "[]", "[{\"a\":1}]", "3", "{}", "running\n{\"a\":1}", "{\"a\":1}\ndone"] {
            assert!(rows(text).is_err(), "{text:?}");
        }
    }
}
