//! `canopy bench budget`: what it costs to choose what receivers get whose budgets do not hold everything.

use crate::Processors;
use crate::flag_value;
use crate::noise::{Steal, median};
use crate::relay::cases::{Case, ModeName, Scenario};
use crate::relay::load::{Interests, Load, Measured, Side};
use crate::relay::{Keys, Server, UNLIMITED};
use crate::table::{self, Column};
use anyhow::bail;
use canopy_output::{print_line, print_note};
use clap::Args;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Duration;

/// Runs a crowd on a relay without budgets and on one whose participants each have a part of what they
/// would be sent, in alternated rounds, and compares the processor time per delivery of the whole process.
/// 'places': everyone publishes to a group of its own, and weighs the others by its distance. 'cell':
/// all are in one group. Each participant publishes 20 updates a second. Rounds with more than 5 %
/// steal are discarded and counted.
#[derive(Args)]
pub(crate) struct BudgetBench {
    /// Participants
    #[arg(long, value_name = "N", default_value_t = 90,
          value_parser = clap::value_parser!(u16).range(2..=1000))]
    n: u16,
    /// Bytes of an update
    #[arg(long, value_name = "B", default_value_t = 100,
          value_parser = clap::value_parser!(u16).range(12..=1024))]
    bytes: u16,
    /// Percent of what a participant would be sent that its budget holds
    #[arg(long, value_name = "PERCENT", default_value_t = 25,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    budget: u16,
    /// Milliseconds between ticks
    #[arg(long, value_name = "MS", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    tick_ms: u16,
    /// How the relay protects what it sends: with each member's key, with one key for all, or not at
    /// all. Several are measured one after the other
    #[arg(long, value_name = "KEYS", value_delimiter = ',', default_value = "member,none")]
    keys: Vec<Keys>,
    /// Rounds of both relays in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds measured of each in each round
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// What came out of one case.
#[derive(Serialize)]
struct Row {
    /// "places" or "cell".
    weights: &'static str,
    keys: Keys,
    n: u16,
    bytes: u16,
    budget_percent: u16,
    rounds: usize,
    rounds_discarded: u32,
    cpu_us_per_delivery: f64,
    unlimited_cpu_us_per_delivery: f64,
    /// The ratio of the costs: the median over rounds, and the least and the greatest.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    /// Deliveries with budgets, as a part of those without.
    delivered: f64,
}

/// What a record and its part of a datagram take beside the bytes of an update.
const OVERHEAD: u64 = 8;

impl BudgetBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !(0.1..=600.0).contains(&self.seconds) {
            bail!("--seconds {} is out of range; choose 0.1 to 600", self.seconds);
        }
        let processors = Processors::take()?;
        let mut rows = Vec::new();
        for keys in &self.keys {
            for (name, interests) in
                [("places", Interests::OwnGroups), ("cell", Interests::OneGroup)]
            {
                print_note(format_args!("{name}, downlink {}", flag_value(*keys)));
                let row = self.measure(name, interests, *keys, &processors)?;
                if self.json {
                    print_line(serde_json::to_string(&row)?)?;
                }
                rows.push(row);
            }
        }
        if !self.json {
            print_line(table(&rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(
        &self,
        name: &'static str,
        interests: Interests,
        keys: Keys,
        processors: &Processors,
    ) -> anyhow::Result<Row> {
        let case = Case {
            scenario: Scenario::Crowd,
            n: self.n.into(),
            bytes: self.bytes.into(),
            mode: ModeName::Periodic,
            tick_ms: self.tick_ms.into(),
            receivers_gro: true,
        };
        let updates = u64::from(self.n - 1) * 20;
        let bits = 8 * updates * (u64::from(self.bytes) + OVERHEAD) * u64::from(self.budget) / 100;
        let start = |bits: u64| {
            let (tick, bits) = (self.tick_ms.to_string(), bits.to_string());
            let (pin, keys) = (processors.relay_on[0].to_string(), flag_value(keys));
            let mut flags = vec!["--mode", "periodic", "--tick-ms", &tick, "--pin", &pin];
            flags.extend(["--downlink", &keys, "--member-down-bits", &bits, "--insecure"]);
            flags.extend(UNLIMITED);
            let server = Server::start_relay(&flags)?;
            let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let load = Load::join_with(interests, (Side::Relay, &case), from, &[server.address])?;
            anyhow::Ok((server, load))
        };
        let mut both = [start(0)?, start(bits)?];
        let (mut pairs, mut discarded) = (Vec::new(), 0);
        while pairs.len() < self.rounds as usize && discarded < 2 * self.rounds {
            let before = Steal::read();
            let mut measured = Vec::new();
            for number in 0..both.len() {
                both.iter_mut().try_for_each(|(_, load)| load.keep_alive())?;
                let (server, load) = &mut both[number];
                let time = Duration::from_secs_f64(self.seconds);
                measured.push(load.run(&[server.process()], time)?);
            }
            match <[Measured; 2]>::try_from(measured) {
                Ok(pair) if !before.disturbed() => pairs.push(pair),
                _ => discarded += 1,
            }
        }
        if pairs.is_empty() {
            bail!("all {discarded} rounds had more than 5 % steal; try again on a quieter machine");
        }
        Ok(self.summarise((name, keys), &pairs, discarded))
    }

    fn summarise(
        &self,
        (weights, keys): (&'static str, Keys),
        pairs: &[[Measured; 2]],
        rounds_discarded: u32,
    ) -> Row {
        let of = |value: fn(&[Measured; 2]) -> f64| pairs.iter().map(value).collect::<Vec<_>>();
        let ratios = of(|[unlimited, limited]| limited.cost() / unlimited.cost());
        Row {
            weights,
            keys,
            n: self.n,
            bytes: self.bytes,
            budget_percent: self.budget,
            rounds: pairs.len(),
            rounds_discarded,
            cpu_us_per_delivery: median(&of(|pair| pair[1].cost())),
            unlimited_cpu_us_per_delivery: median(&of(|pair| pair[0].cost())),
            ratio: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            delivered: median(&of(|[unlimited, limited]| {
                limited.deliveries as f64 / unlimited.deliveries.max(1) as f64
            })),
        }
    }
}

/// The rows below their headings.
fn table(rows: &[Row]) -> String {
    let columns: [Column<Row>; 8] = [
        ("weights", |row| row.weights.to_owned()),
        ("keys", |row| flag_value(row.keys)),
        ("budget %", |row| row.budget_percent.to_string()),
        ("delivered", |row| format!("{:.3}", row.delivered)),
        ("ns/del", |row| format!("{:.0}", 1e3 * row.cpu_us_per_delivery)),
        ("without", |row| format!("{:.0}", 1e3 * row.unlimited_cpu_us_per_delivery)),
        ("ratio", |row| format!("{:.2}", row.ratio)),
        ("range", |row| format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max)),
    ];
    table::table(rows, &columns)
}
