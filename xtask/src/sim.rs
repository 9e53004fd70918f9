//! What the `canopy` binary prints as JSON: simulation results and bench rows.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Deserializer, Value};

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
    let hash = rows(&text)?.iter().find_map(|row| as_hash(&row["trace_hash"]));
    hash.with_context(|| format!("no trace_hash in what `canopy sim --seed {seed} --json` printed"))
}

/// The objects in a text of JSON values, one after another or in arrays.
pub(crate) fn rows(text: &str) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for value in Deserializer::from_str(text).into_iter() {
        match value.context("the output is not JSON")? {
            Value::Array(items) => rows.extend(items),
            other => rows.push(other),
        }
    }
    ensure!(!rows.is_empty(), "the output has no rows");
    let all_objects =
        rows.iter().all(|row| row.as_object().is_some_and(|fields| !fields.is_empty()));
    ensure!(all_objects, "a row of the output is no JSON object with fields");
    Ok(rows)
}

fn replay(seed: u64) -> String {
    format!("cargo run --release -p canopy -- sim --seed {seed}")
}

fn as_hash(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_lines_or_in_an_array() {
        assert_eq!(rows("{\"a\":1}\n{\"a\":2}\n").unwrap().len(), 2);
        assert_eq!(rows("[{\"a\":1}, {\"a\":2}]").unwrap().len(), 2);
        assert_eq!(rows("{\n  \"a\": 1\n}").unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_row_is_refused() {
        for text in ["", "[]", "3", "{}", "running\n{\"a\":1}", "{\"a\":1}\ndone"] {
            assert!(rows(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_hash_is_a_text_or_a_number() {
        assert_eq!(as_hash(&Value::from("a1")), Some("a1".to_owned()));
        assert_eq!(as_hash(&Value::from(7_u64)), Some("7".to_owned()));
        assert_eq!(as_hash(&Value::Null), None);
        assert_eq!(as_hash(&Value::from("")), None);
    }
}
