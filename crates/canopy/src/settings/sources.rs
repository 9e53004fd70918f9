//! Where the value of a setting comes from: a flag, the environment, or the file.
//!
//! Every error names the place (`--tick-ms`, `CANOPY_TICK_MS` or `canopy.toml:3: tick_ms`), what
//! is wrong there, and what to write instead.

use anyhow::{anyhow, bail};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// A setting: its table and key in the file, and how it is written there.
struct Setting {
    table: &'static str,
    key: &'static str,
    form: Form,
    example: &'static str,
}

/// What is written behind a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Number,
    Switch,
    Numbers,
}

use Form::{Number, Numbers, Switch, Text};

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    Setting { table: "relay", key: "listen", form: Text, example: "\"127.0.0.1:4040\"" },
    Setting { table: "relay", key: "mode", form: Text, example: "\"periodic\"" },
    Setting { table: "relay", key: "tick_ms", form: Number, example: "50" },
    Setting { table: "relay", key: "threads", form: Number, example: "2" },
    Setting { table: "relay", key: "engine", form: Text, example: "\"auto\"" },
    Setting { table: "relay", key: "engine_folder", form: Text, example: "\"/run/canopy/engine\"" },
    Setting { table: "relay", key: "comtrees", form: Numbers, example: "[1, 2]" },
    Setting { table: "relay", key: "site", form: Number, example: "1" },
    Setting { table: "relay", key: "downlink", form: Text, example: "\"member\"" },
    Setting { table: "relay", key: "world", form: Text, example: "\"main\"" },
    Setting { table: "relay", key: "trust", form: Text, example: "\"/etc/canopy/trust.toml\"" },
    Setting { table: "relay", key: "open", form: Switch, example: "false" },
    Setting { table: "relay", key: "key", form: Text, example: "\"/etc/canopy/relay.key\"" },
    Setting { table: "relay", key: "console", form: Text, example: "\"127.0.0.1:8080\"" },
    Setting { table: "relay", key: "metrics", form: Text, example: "\"127.0.0.1:9090\"" },
    Setting { table: "relay", key: "insecure", form: Switch, example: "false" },
    Setting { table: "limits", key: "max_sessions", form: Number, example: "10000" },
    Setting { table: "limits", key: "max_datagram", form: Number, example: "1232" },
    Setting { table: "limits", key: "max_groups", form: Number, example: "65536" },
    Setting { table: "limits", key: "max_subscriptions", form: Number, example: "262144" },
    Setting { table: "limits", key: "max_routes", form: Number, example: "131072" },
    Setting { table: "limits", key: "max_subscriptions_per_participant", form: Number, example: "4096" },
    Setting { table: "limits", key: "max_new_groups_per_participant", form: Number, example: "1024" },
    Setting { table: "limits", key: "member_up_packets", form: Number, example: "50000" },
    Setting { table: "limits", key: "member_up_bits", form: Number, example: "100000000" },
    Setting { table: "limits", key: "comtree_up_packets", form: Number, example: "0" },
    Setting { table: "limits", key: "comtree_up_bits", form: Number, example: "0" },
    Setting { table: "limits", key: "subscription_changes", form: Number, example: "20000" },
    Setting { table: "limits", key: "handshakes_per_ip", form: Number, example: "32" },
    Setting { table: "limits", key: "handshakes_per_prefix", form: Number, example: "128" },
    Setting { table: "limits", key: "sessions_per_ip", form: Number, example: "64" },
    Setting { table: "limits", key: "replies_per_ip_port", form: Number, example: "50" },
    Setting { table: "limits", key: "session_lifetime_ms", form: Number, example: "10000" },
    Setting { table: "limits", key: "keepalive_ms", form: Number, example: "2000" },
    Setting { table: "limits", key: "subscription_lifetime_ms", form: Number, example: "60000" },
    Setting { table: "limits", key: "address_rest_ms", form: Number, example: "600000" },
    Setting { table: "limits", key: "drain_ms", form: Number, example: "5000" },
];

/// The keys of a `[[comtree]]`, which no flag has.
#[rustfmt::skip]
const COMTREE_KEYS: &[Setting] = &[
    Setting { table: "comtree", key: "id", form: Number, example: "1" },
    Setting { table: "comtree", key: "site", form: Number, example: "1" },
    Setting { table: "comtree", key: "downlink", form: Text, example: "\"member\"" },
    Setting { table: "comtree", key: "world", form: Text, example: "\"main\"" },
    Setting { table: "comtree", key: "endpoints", form: Text, example: "\"64-65535\"" },
];

/// The keys of all settings but the comtrees'.
#[cfg(test)]
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.key)
}

/// A value and where it was given, for errors.
pub(super) struct Given<T> {
    value: T,
    place: String,
}

impl<T> Given<T> {
    /// The value as it was given.
    pub(super) fn value(self) -> T {
        self.value
    }

    /// A valid form of the value, or an error that names where it came from.
    pub(super) fn check<U>(self, check: impl FnOnce(T) -> Result<U, String>) -> anyhow::Result<U> {
        let Given { value, place } = self;
        check(value).map_err(|problem| anyhow!("{place}: {problem}"))
    }
}

/// Everything that was given. Flags win over the environment, the environment over the file.
pub(super) struct Sources {
    /// By key, what clap found as a flag or in the environment.
    flags: BTreeMap<&'static str, String>,
    file: File,
}

/// What the settings file says.
#[derive(Default)]
struct File {
    /// Its tables' values, by key.
    values: Values,
    comtrees: Vec<ComtreeTable>,
}

type Values = BTreeMap<&'static str, Given<Value>>;

/// One `[[comtree]]` of the file.
pub(super) struct ComtreeTable {
    /// Where it begins.
    pub(super) place: String,
    values: Values,
}

/// A value of the file.
enum Value {
    Text(String),
    Number(i64),
    Switch(bool),
    Numbers(Vec<i64>),
}

impl Sources {
    /// Joins flags with the text of a file, whose keys and forms are checked here.
    pub(super) fn new(
        flags: BTreeMap<&'static str, String>,
        path: &Path,
        text: &str,
    ) -> anyhow::Result<Sources> {
        let file = Reader { path, text }.read()?;
        Ok(Sources { flags, file })
    }

    /// Where a setting was given; `None` if nowhere.
    pub(super) fn place(&self, key: &str) -> Option<String> {
        let flag = self.flags.get(key).map(|text| flag_place(key, text));
        flag.or_else(|| self.file.values.get(key).map(|given| given.place.clone()))
    }

    /// The tables of comtrees.
    pub(super) fn comtree_tables(&self) -> &[ComtreeTable] {
        &self.file.comtrees
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

impl ComtreeTable {
    /// A key that is a number, if it is there.
    pub(super) fn number(&self, key: &str) -> Option<Given<i64>> {
        let Given { value, place } = self.values.get(key)?;
        let Value::Number(number) = value else { return None };
        Some(Given { value: *number, place: place.clone() })
    }

    /// A key that is text, if it is there.
    pub(super) fn text(&self, key: &str) -> Option<Given<String>> {
        let Given { value, place } = self.values.get(key)?;
        let Value::Text(text) = value else { return None };
        Some(Given { value: text.clone(), place: place.clone() })
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

/// The settings file as text.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn read(&self) -> anyhow::Result<File> {
        let root = DeTable::parse(self.text).map_err(|error| {
            let place = self.place(error.span().unwrap_or_default());
            anyhow!("{place}: this is no TOML: {}", error.message().replace('\n', ", "))
        })?;
        let mut file = File::default();
        for (name, value) in root.get_ref() {
            let place = self.place(name.span());
            match name.get_ref().as_ref() {
                "comtree" => file.comtrees = self.read_comtrees(&place, value.get_ref())?,
                name => self.read_table(&place, name, value.get_ref(), &mut file.values)?,
            }
        }
        Ok(file)
    }

    fn read_table(
        &self,
        place: &str,
        name: &str,
        value: &DeValue<'_>,
        values: &mut Values,
    ) -> anyhow::Result<()> {
        if !SETTINGS.iter().any(|setting| setting.table == name) {
            bail!("{place}: {}", no_such_table(name));
        }
        let DeValue::Table(table) = value else {
            bail!("{place}: {name} is a table; write [{name}] on a line, once, and its keys below");
        };
        let setting = |key: &str| SETTINGS.iter().find(|s| s.table == name && s.key == key);
        self.read_keys(table, values, setting, |key| no_such_key(name, key))
    }

    fn read_comtrees(&self, place: &str, value: &DeValue<'_>) -> anyhow::Result<Vec<ComtreeTable>> {
        let form = || {
            anyhow!(
                "{place}: comtree is a list of tables; write [[comtree]] on a line for each, and \
                 its keys below"
            )
        };
        let DeValue::Array(list) = value else { return Err(form()) };
        let mut comtrees = Vec::new();
        for one in list.iter() {
            let DeValue::Table(table) = one.get_ref() else { return Err(form()) };
            let mut comtree =
                ComtreeTable { place: self.place(one.span()), values: Values::default() };
            let setting = |key: &str| COMTREE_KEYS.iter().find(|s| s.key == key);
            let unknown = |key: &str| {
                format!("there is no key {key} in [[comtree]]; there are id, site and endpoints")
            };
            self.read_keys(table, &mut comtree.values, setting, unknown)?;
            comtrees.push(comtree);
        }
        Ok(comtrees)
    }

    fn read_keys(
        &self,
        table: &DeTable<'_>,
        values: &mut Values,
        setting: impl Fn(&str) -> Option<&'static Setting>,
        unknown: impl Fn(&str) -> String,
    ) -> anyhow::Result<()> {
        for (key, value) in table {
            let (place, key) = (self.place(key.span()), key.get_ref().as_ref());
            let Some(setting) = setting(key) else { bail!("{place}: {}", unknown(key)) };
            let place = format!("{place}: {}", setting.key);
            let given = Given { value: value.get_ref(), place: place.clone() };
            let value = given.check(|value| setting.read(value))?;
            values.insert(setting.key, Given { value, place });
        }
        Ok(())
    }

    /// File and line.
    fn place(&self, span: Range<usize>) -> String {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }
}

impl Setting {
    fn read(&self, value: &DeValue<'_>) -> Result<Value, String> {
        let Setting { key, form, example, .. } = self;
        let read = match (form, value) {
            (Text, DeValue::String(text)) => Some(Value::Text(text.clone().into_owned())),
            (Number, DeValue::Integer(_)) => whole_number(value).map(Value::Number),
            (Switch, DeValue::Boolean(is_on)) => Some(Value::Switch(*is_on)),
            (Numbers, DeValue::Array(list)) => {
                let numbers = list.iter().map(|one| whole_number(one.get_ref()));
                numbers.collect::<Option<_>>().map(Value::Numbers)
            }
            _ => None,
        };
        let wanted = match form {
            Text => "text in quotes",
            Number => "a whole number without quotes",
            Switch => "true or false without quotes",
            Numbers => "a list of whole numbers",
        };
        read.ok_or_else(|| {
            format!("{} cannot be its value; give {wanted}, like {key} = {example}", shown(value))
        })
    }
}

fn whole_number(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A value as its author would recognise it.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(is_on) => is_on.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "this list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn no_such_table(name: &str) -> String {
    match SETTINGS.iter().find(|setting| setting.key == name) {
        Some(Setting { table, .. }) => {
            format!("{name} belongs in [{table}]; write it below a line [{table}]")
        }
        None => format!("there is no table [{name}]; there are [relay], [limits] and [[comtree]]"),
    }
}

fn no_such_key(table: &str, key: &str) -> String {
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
        return format!("{key} belongs in [{0}]; move it below a line [{0}]", setting.table);
    }
    let near = SETTINGS.iter().map(|setting| (edits(key, setting.key), setting));
    match near.min_by_key(|(edits, _)| *edits).filter(|(edits, _)| *edits <= 2) {
        Some((_, Setting { table, key: near, .. })) => {
            format!("there is no key {key}; {near} in [{table}] may be meant")
        }
        None => {
            format!("there is no key {key} in [{table}]; the keys are listed in docs/settings.md")
        }
    }
}

/// How many letters must be changed, added or taken away to make one word of the other.
fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_far_apart_as_their_edits() {
        for (one, other, distance) in
            [("", "", 0), ("tick", "tick", 0), ("ticks", "tick_ms", 2), ("abc", "", 3)]
        {
            assert_eq!(edits(one, other), distance, "{one} {other}");
            assert_eq!(edits(other, one), distance, "{other} {one}");
        }
    }
}
