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

/// Runs a crowd on three relays in alternated rounds, and compares the processor time per delivery of the
/// whole process: on one without budgets, on one whose participants each have a part of what they would be
/// sent, and on one without budgets whose participants ask for that part only. The latter is 1, 1/2, 1/3 and
/// so on, whichever is nearest and no smaller.
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
    /// Rounds of all relays in turn
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
    /// The same where nobody has a budget, and everyone asks for that part only: as much comes in and goes out,
    /// and nothing is chosen.
    asked_cpu_us_per_delivery: f64,
    /// The ratio of the costs: the median over rounds, and the least and the greatest.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    ratio_to_asked: f64,
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
            let part = (100 / u32::from(self.budget)).max(1);
            for (name, interests) in [
                ("places", [Interests::OwnGroups, Interests::SomeGroups(part)]),
                ("cell", [Interests::OneGroup, Interests::Cells(part)]),
            ] {
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
        [all, some]: [Interests; 2],
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
        let start = |bits: u64, interests: Interests| {
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
        let mut relays = [start(0, all)?, start(bits, all)?, start(0, some)?];
        let (mut rounds, mut discarded) = (Vec::new(), 0);
        while rounds.len() < self.rounds as usize && discarded < 2 * self.rounds {
            let before = Steal::read();
            let mut measured = Vec::new();
            for number in 0..relays.len() {
                relays.iter_mut().try_for_each(|(_, load)| load.keep_alive())?;
                let (server, load) = &mut relays[number];
                let time = Duration::from_secs_f64(self.seconds);
                measured.push(load.run(&[server.process()], time)?);
            }
            match <[Measured; 3]>::try_from(measured) {
                Ok(round) if !before.disturbed() => rounds.push(round),
                _ => discarded += 1,
            }
        }
        if rounds.is_empty() {
            bail!("all {discarded} rounds had more than 5 % steal; try again on a quieter machine");
        }
        Ok(self.summarise((name, keys), &rounds, discarded))
    }

    fn summarise(
        &self,
        (weights, keys): (&'static str, Keys),
        all_rounds: &[[Measured; 3]],
        rounds_discarded: u32,
    ) -> Row {
        let of =
            |value: fn(&[Measured; 3]) -> f64| all_rounds.iter().map(value).collect::<Vec<_>>();
        let ratios = of(|[unlimited, limited, _]| limited.cost() / unlimited.cost());
        Row {
            weights,
            keys,
            n: self.n,
            bytes: self.bytes,
            budget_percent: self.budget,
            rounds: all_rounds.len(),
            rounds_discarded,
            cpu_us_per_delivery: median(&of(|[_, limited, _]| limited.cost())),
            unlimited_cpu_us_per_delivery: median(&of(|[unlimited, ..]| unlimited.cost())),
            asked_cpu_us_per_delivery: median(&of(|[.., asked]| asked.cost())),
            ratio: median(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            ratio_to_asked: median(&of(|[_, limited, asked]| limited.cost() / asked.cost())),
            delivered: median(&of(|[unlimited, limited, _]| {
                limited.deliveries as f64 / unlimited.deliveries.max(1) as f64
            })),
        }
    }
}

/// The rows below their headings.
fn table(rows: &[Row]) -> String {
    let columns: [Column<Row>; 10] = [
        ("weights", |row| row.weights.to_owned()),
        ("keys", |row| flag_value(row.keys)),
        ("budget %", |row| row.budget_percent.to_string()),
        ("delivered", |row| format!("{:.3}", row.delivered)),
        ("ns/del", |row| format!("{:.0}", 1e3 * row.cpu_us_per_delivery)),
        ("without", |row| format!("{:.0}", 1e3 * row.unlimited_cpu_us_per_delivery)),
        ("asked", |row| format!("{:.0}", 1e3 * row.asked_cpu_us_per_delivery)),
        ("ratio", |row| format!("{:.2}", row.ratio)),
        ("range", |row| format!("{:.2}–{:.2}", row.ratio_min, row.ratio_max)),
        ("to asked", |row| format!("{:.2}", row.ratio_to_asked)),
    ];
    table::table(rows, &columns)
}
