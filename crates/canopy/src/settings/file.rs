//! The settings file: which keys there are, how they are written, and where each of them stands.

use super::given::Given;
use anyhow::{anyhow, bail};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// What the settings file says.
#[derive(Default)]
pub(super) struct File {
    /// The values of its tables `[relay]` and `[limits]`, by key.
    pub(super) values: Values,
    /// Its tables `[[comtree]]`.
    pub(super) comtrees: Vec<Table>,
    /// Its tables `[[link]]`.
    pub(super) links: Vec<Table>,
}

pub(super) type Values = BTreeMap<&'static str, Given<Value>>;

/// One of a list of tables, like a `[[comtree]]`.
pub(super) struct Table {
    /// Where it begins.
    pub(super) place: String,
    values: Values,
}

/// A value of the file.
pub(super) enum Value {
    Text(String),
    Number(i64),
    Switch(bool),
    Numbers(Vec<i64>),
    Tables(Vec<Table>),
}

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
    Tables,
}

use Form::{Number, Numbers, Switch, Tables, Text};

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
    Setting { table: "limits", key: "max_flow_pairs", form: Number, example: "1048576" },
    Setting { table: "limits", key: "member_up_packets", form: Number, example: "50000" },
    Setting { table: "limits", key: "member_up_bits", form: Number, example: "100000000" },
    Setting { table: "limits", key: "member_down_packets", form: Number, example: "0" },
    Setting { table: "limits", key: "member_down_bits", form: Number, example: "0" },
    Setting { table: "limits", key: "path_budgets", form: Text, example: "\"beyond-host\"" },
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
    Setting { table: "comtree", key: "floor_ms", form: Number, example: "2000" },
    Setting { table: "comtree", key: "levels_first", form: Switch, example: "false" },
    Setting { table: "comtree", key: "up_packets", form: Number, example: "0" },
    Setting { table: "comtree", key: "up_bits", form: Number, example: "0" },
    Setting { table: "comtree", key: "down_packets", form: Number, example: "0" },
    Setting { table: "comtree", key: "down_bits", form: Number, example: "0" },
    Setting { table: "comtree", key: "branches", form: Tables, example: BRANCHES },
];
const BRANCHES: &str = "[{ link = \"b\", role = \"parent\", site = 2 }]";

/// The keys of one of a comtree's `branches`.
#[rustfmt::skip]
const BRANCH_KEYS: &[Setting] = &[
    Setting { table: "branches", key: "link", form: Text, example: "\"b\"" },
    Setting { table: "branches", key: "role", form: Text, example: "\"parent\"" },
    Setting { table: "branches", key: "site", form: Number, example: "2" },
    Setting { table: "branches", key: "up_packets", form: Number, example: "0" },
    Setting { table: "branches", key: "up_bits", form: Number, example: "0" },
    Setting { table: "branches", key: "down_packets", form: Number, example: "0" },
    Setting { table: "branches", key: "down_bits", form: Number, example: "0" },
    Setting { table: "branches", key: "guaranteed_bits", form: Number, example: "0" },
];

/// The keys of a `[[link]]`, which no flag has.
#[rustfmt::skip]
const LINK_KEYS: &[Setting] = &[
    Setting { table: "link", key: "name", form: Text, example: "\"b\"" },
    Setting { table: "link", key: "key", form: Text, example: "\"0a1b…\", as the neighbour logs it" },
    Setting { table: "link", key: "address", form: Text, example: "\"10.0.0.2:4040\"" },
    Setting { table: "link", key: "calls", form: Switch, example: "true" },
    Setting { table: "link", key: "thread", form: Number, example: "0" },
    Setting { table: "link", key: "capacity_bits", form: Number, example: "0" },
    Setting { table: "link", key: "capacity_packets", form: Number, example: "0" },
];

/// The keys of all settings.
#[cfg(test)]
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    [SETTINGS, COMTREE_KEYS, LINK_KEYS].into_iter().flatten().map(|setting| setting.key)
}

/// The keys of one table.
#[cfg(test)]
pub(super) fn keys_of(table: &str) -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().filter(move |setting| setting.table == table).map(|setting| setting.key)
}

impl Table {
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

    /// A key that is on or off, if it is there.
    pub(super) fn switch(&self, key: &str) -> Option<bool> {
        match self.values.get(key)?.value {
            Value::Switch(is_on) => Some(is_on),
            _ => None,
        }
    }

    /// A key that is a list of tables; none if it is not there.
    pub(super) fn tables(&self, key: &str) -> &[Table] {
        match self.values.get(key) {
            Some(Given { value: Value::Tables(tables), .. }) => tables,
            _ => &[],
        }
    }
}

impl File {
    /// Reads the text of the file at `path`.
    pub(super) fn read(path: &Path, text: &str) -> anyhow::Result<File> {
        Reader { path, text }.read()
    }
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
            let tables = |name, keys| {
                let tables = self.read_tables(&format!("[[{name}]]"), value.get_ref(), keys)?;
                tables.ok_or_else(|| {
                    anyhow!(
                        "{place}: {name} is a list of tables; write [[{name}]] on a line for each, \
                         and its keys below"
                    )
                })
            };
            match name.get_ref().as_ref() {
                "comtree" => file.comtrees = tables("comtree", COMTREE_KEYS)?,
                "link" => file.links = tables("link", LINK_KEYS)?,
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

    /// A list of tables with these keys; `None` if the value is something else. `name` is for errors.
    fn read_tables(
        &self,
        name: &str,
        value: &DeValue<'_>,
        keys: &'static [Setting],
    ) -> anyhow::Result<Option<Vec<Table>>> {
        let DeValue::Array(list) = value else { return Ok(None) };
        let mut tables = Vec::new();
        for one in list.iter() {
            let DeValue::Table(table) = one.get_ref() else { return Ok(None) };
            let mut read = Table { place: self.place(one.span()), values: Values::default() };
            let setting = |key: &str| keys.iter().find(|setting| setting.key == key);
            let unknown = |key: &str| {
                let keys: Vec<_> = keys.iter().map(|setting| setting.key).collect();
                format!("there is no key {key} in {name}; there are {}", listed(&keys))
            };
            self.read_keys(table, &mut read.values, setting, unknown)?;
            tables.push(read);
        }
        Ok(Some(tables))
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
            let value = value.get_ref();
            let tables = match setting.form {
                Tables => self.read_tables(setting.key, value, BRANCH_KEYS)?.map(Value::Tables),
                _ => None,
            };
            let given = Given { value, place: place.clone() };
            let value = tables.map_or_else(|| given.check(|value| setting.read(value)), Ok)?;
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
            Tables => "a list of tables",
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
        None => format!(
            "there is no table [{name}]; there are [relay], [limits], [[comtree]] and [[link]]"
        ),
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

/// Words as a list of them is written.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => words.concat(),
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
