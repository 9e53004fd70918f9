//! The comtrees that a relay is to carry: a list of ids, or a table for each, with its branches.

use super::file::Table;
use super::limits::MAX_SITE;
use super::links::{Link, check_branches};
use super::sources::{Sources, within};
use super::{parse_downlink, parse_world};
use anyhow::{anyhow, bail};
use canopy_relay::{BranchConfig, ComtreeConfig, FIRST_ENDPOINT, MAX_COMTREES};
use canopy_wire::{Comtree, Downlink, Suite};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

/// What holds for a comtree of which nothing else is said.
pub(super) struct Defaults {
    pub(super) site: u16,
    pub(super) downlink: Downlink,
    pub(super) world: String,
}

/// The comtrees by either form, and their branches over the links. Each data thread gives out its own
/// part of the addresses, so none may be left without.
pub(super) fn check_comtrees(
    sources: &Sources,
    defaults: &Defaults,
    threads: u16,
    links: &[Link],
) -> anyhow::Result<(Vec<ComtreeConfig>, Vec<BranchConfig>)> {
    let tables = sources.comtree_tables();
    let Some(first) = tables.first() else {
        let ids = sources.numbers("comtrees", &[1])?.check(parse_ids)?;
        let config = |id| with_suite(defaults.config(id));
        return Ok((ids.into_iter().map(config).collect(), Vec::new()));
    };
    if let Some(place) = sources.place("comtrees") {
        bail!(
            "{place}: comtrees are described by [[comtree]] at {} too; use one form of the two",
            first.place
        );
    }
    check_count(tables.len()).map_err(|problem| anyhow!("{}: {problem}", first.place))?;
    let mut seen = BTreeSet::new();
    let (mut comtrees, mut branches) = (Vec::new(), Vec::new());
    for table in tables {
        let config = check_table(table, defaults, threads, &mut seen)?;
        branches.extend(check_branches(table.tables("branches"), &config, links)?);
        comtrees.push(config);
    }
    Ok((comtrees, branches))
}

fn check_table(
    table: &Table,
    defaults: &Defaults,
    threads: u16,
    seen: &mut BTreeSet<i64>,
) -> anyhow::Result<ComtreeConfig> {
    let Some(id) = table.number("id") else {
        bail!("{}: this [[comtree]] has no id; give it one, like id = 1", table.place);
    };
    let comtree = id.check(|id| parse_id(id, seen))?;
    let mut config = defaults.config(comtree);
    if let Some(site) = table.number("site") {
        config.site = site.check(|site| within(site, &(0..=MAX_SITE)))? as u16;
    }
    if let Some(name) = table.text("downlink") {
        config.downlink = name.check(|name| parse_downlink(&name))?;
    }
    if let Some(name) = table.text("world") {
        config.world = name.check(parse_world)?;
    }
    if let Some(endpoints) = table.text("endpoints") {
        config.endpoints = endpoints.check(|text| parse_endpoints(&text, threads))?;
    }
    if let Some(floor) = table.number("floor_ms") {
        let floor = floor.check(|floor| within(floor, &(100..=60_000)))?;
        config.fairness.floor = Duration::from_millis(floor);
    }
    if let Some(first) = table.switch("levels_first") {
        config.fairness.levels_first = first;
    }
    Ok(with_suite(config))
}

impl Defaults {
    fn config(&self, comtree: Comtree) -> ComtreeConfig {
        ComtreeConfig {
            downlink: self.downlink,
            world: self.world.clone(),
            ..ComtreeConfig::new(comtree, self.site)
        }
    }
}

/// The cipher that this processor is good at, where all members of a comtree have one.
fn with_suite(config: ComtreeConfig) -> ComtreeConfig {
    if config.downlink == Downlink::Group && !canopy_net::has_aes() {
        return ComtreeConfig { group_suite: Suite::ChaCha20Poly1305, ..config };
    }
    config
}

fn parse_ids(ids: Vec<i64>) -> Result<Vec<Comtree>, String> {
    check_count(ids.len())?;
    let mut seen = BTreeSet::new();
    ids.into_iter().map(|id| parse_id(id, &mut seen)).collect()
}

fn check_count(count: usize) -> Result<(), String> {
    if (1..=MAX_COMTREES).contains(&count) {
        return Ok(());
    }
    Err(format!("{count} comtrees are named; a relay carries 1 to {MAX_COMTREES}"))
}

fn parse_id(id: i64, seen: &mut BTreeSet<i64>) -> Result<Comtree, String> {
    if !seen.insert(id) {
        return Err(format!("comtree {id} is named twice; name each once"));
    }
    let id = u32::try_from(id);
    id.map(Comtree).map_err(|_| format!("a comtree is a number from 0 to {}", u32::MAX))
}

fn parse_endpoints(text: &str, threads: u16) -> Result<RangeInclusive<u16>, String> {
    let number = |text: &str| text.trim().parse::<u16>().ok();
    let range = text.split_once('-').and_then(|(low, high)| Some((number(low)?, number(high)?)));
    let Some((first, last)) = range else {
        return Err(format!(
            "{text:?} is no range of endpoint numbers; write the first and the last, like \
             \"{FIRST_ENDPOINT}-65535\""
        ));
    };
    if first < FIRST_ENDPOINT {
        return Err(format!(
            "endpoint numbers below {FIRST_ENDPOINT} are the relay's own; begin with \
             {FIRST_ENDPOINT} or more"
        ));
    }
    if first > last {
        return Err(format!("{text:?} is empty; write the lower number first"));
    }
    if last - first < threads - 1 {
        return Err(format!(
            "{text:?} is too short for {threads} data threads, which need a number each; widen it, \
             or lower threads"
        ));
    }
    Ok(first..=last)
}
