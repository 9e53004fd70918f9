//! Where the value of a setting comes from: a flag, the environment, or the file.
//!
//! Every error names the place (`--tick-ms`, `CANOPY_TICK_MS` or `canopy.toml:3: tick_ms`), what
//! is wrong there, and what to write instead.

use super::file::{File, Table, Value};
use super::given::Given;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// Everything that was given. Flags win over the environment, the environment over the file.
pub(super) struct Sources {
    /// By key, what clap found as a flag or in the environment.
    flags: BTreeMap<&'static str, String>,
    file: File,
}

impl Sources {
    /// Joins flags with the text of a file, whose keys and forms are checked here.
    pub(super) fn new(
        flags: BTreeMap<&'static str, String>,
        path: &Path,
        text: &str,
    ) -> anyhow::Result<Sources> {
        let file = File::read(path, text)?;
        Ok(Sources { flags, file })
    }

    /// Where a setting was given; `None` if nowhere.
    pub(super) fn place(&self, key: &str) -> Option<String> {
        let flag = self.flags.get(key).map(|text| flag_place(key, text));
        flag.or_else(|| self.file.values.get(key).map(|given| given.place.clone()))
    }

    /// The tables of comtrees.
    pub(super) fn comtree_tables(&self) -> &[Table] {
        &self.file.comtrees
    }

    /// The tables of links.
    pub(super) fn link_tables(&self) -> &[Table] {
        &self.file.links
    }

    /// A setting that is text.
    pub(super) fn text(&self, key: &str, default: &str) -> Given<String> {
        if let Some(text) = self.flags.get(key) {
            return Given { value: text.clone(), place: flag_place(key, text) };
        }
        match self.file.values.get(key) {
            Some(Given { value: Value::Text(text), place }) => {
                Given { value: text.clone(), place: place.clone() }
            }
            _ => Given { value: default.to_owned(), place: format!("default of {key}") },
        }
    }

    /// A setting that is a number within a range.
    pub(super) fn number(
        &self,
        key: &str,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> anyhow::Result<u64> {
        if let Some(text) = self.flags.get(key) {
            let given = Given { value: text, place: flag_place(key, text) };
            return given.check(|text| within(parse_number(text)?, &range));
        }
        match self.file.values.get(key) {
            Some(Given { value: Value::Number(number), place }) => {
                let given = Given { value: *number, place: place.clone() };
                given.check(|number| within(number, &range))
            }
            _ => {
                let given = Given { value: default, place: format!("default of {key}") };
                given.check(|number| within(number.try_into().unwrap_or(i64::MAX), &range))
            }
        }
    }

    /// A setting that is a list of numbers.
    pub(super) fn numbers(&self, key: &str, default: &[i64]) -> anyhow::Result<Given<Vec<i64>>> {
        if let Some(text) = self.flags.get(key) {
            let place = flag_place(key, text);
            let given = Given { value: text, place: place.clone() };
            let value = given.check(|text| text.split(',').map(parse_number).collect())?;
            return Ok(Given { value, place });
        }
        Ok(match self.file.values.get(key) {
            Some(Given { value: Value::Numbers(numbers), place }) => {
                Given { value: numbers.clone(), place: place.clone() }
            }
            _ => Given { value: default.to_vec(), place: format!("default of {key}") },
        })
    }

    /// A setting that is on or off, and off by default.
    pub(super) fn switch(&self, key: &str) -> anyhow::Result<bool> {
        if let Some(text) = self.flags.get(key) {
            let given = Given { value: text, place: flag_place(key, text) };
            return given.check(|text| parse_switch(text));
        }
        Ok(matches!(self.file.values.get(key), Some(Given { value: Value::Switch(true), .. })))
    }
}

/// How a setting is called on the command line, or in the environment if the value is from there.
fn flag_place(key: &str, text: &str) -> String {
    let word = if key == "comtrees" { "comtree" } else { key };
    let variable = format!("CANOPY_{}", word.to_uppercase());
    let is_from_environment = std::env::var(&variable).is_ok_and(|value| value == text);
    if is_from_environment { variable } else { format!("--{}", word.replace('_', "-")) }
}

fn parse_number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{text:?} is no whole number; give one, like 50"))
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("{text:?} is neither yes nor no; give true or false")),
    }
}

pub(super) fn within(value: i64, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let (least, most) = (range.start(), range.end());
    let inside = u64::try_from(value).ok().filter(|value| range.contains(value));
    inside.ok_or_else(|| format!("{value} is out of range; choose {least} to {most}"))
}
