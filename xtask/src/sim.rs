//! What the `canopy` binary prints as JSON: simulation results and bench rows.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Deserializer, Map, Value};

use crate::job::Job;
use crate::report::spoken;

/// Runs every seed twice: the same seed must give the same trace, and no two seeds the same one.
pub(crate) fn check_seeds(job: &mut Job<'_>, seeds: RangeInclusive<u64>) -> Result<()> {
    let mut seen = BTreeMap::new();
    for seed in seeds {
        let start = Instant::now();
        let first = trace_hash(job, seed)?;
        let second = trace_hash(job, seed)?;
        ensure!(
            first == second,
            "seed {seed} is not deterministic: trace {first}, then {second}; replay: {}",
            replay(seed)
        );
        if let Some(other) = seen.insert(first.clone(), seed) {
            bail!(
                "seeds {other} and {seed} gave the same trace {first}: does the seed reach everything?"
            );
        }
        job.note(&format!("seed {seed}: trace {first}, twice, {}", spoken(start.elapsed())));
    }
    Ok(())
}

/// Simulates one seed; hands back the hash of its trace.
pub(crate) fn trace_hash(job: &mut Job<'_>, seed: u64) -> Result<String> {
    let mut command = Command::new(job.workspace.canopy());
    command.args(["sim", "--seed", &seed.to_string(), "--json"]);
    let text = job
        .read(command)
        .with_context(|| format!("seed {seed} failed; replay: {}", replay(seed)))?;
    let rows = rows(&text)?;
    let hash = rows.iter().find_map(|row| row.get("trace_hash")?.as_str());
    hash.filter(|hash| !hash.is_empty())
        .map(str::to_owned)
        .with_context(|| format!("no trace_hash in what `canopy sim --seed {seed} --json` printed"))
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

fn replay(seed: u64) -> String {
    format!("cargo run --release -p canopy -- sim --seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
