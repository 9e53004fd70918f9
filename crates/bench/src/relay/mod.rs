//! `canopy bench relay`: the real relay process against a naive reflector, in alternated rounds.

pub(super) mod cases;
mod hosts;
pub(super) mod load;
mod plan;
mod report;
mod rounds;
mod softirq;

use crate::Processors;
use crate::left_out::LeftOut;
use anyhow::{bail, ensure};
use canopy_engines::{EngineChoice, EngineName};
use canopy_output::{print_line, print_note};
use cases::{Case, Filters};
use clap::Args;
pub(crate) use hosts::Hosts;
pub(crate) use plan::Keys;
use plan::Plan;
use report::Row;
pub(crate) use rounds::{Server, UNLIMITED, server_command};
use std::process::ExitCode;
use std::time::Duration;

/// Runs the real relay process and a naive reflector (recvfrom, then sendto per member) in turn,
/// on one processor, with the load on another, and compares the processor time per delivery of
/// the whole process. 'crowd': N participants in one group, 20 updates/s each. 'ceiling': one
/// publisher with 64 updates in flight. Rounds with more than 5 % steal are discarded and counted.
#[derive(Args)]
pub(crate) struct RelayBench {
    #[command(flatten)]
    filters: Filters,
    /// Rounds of relay and reflector in turn; without this, 5
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Seconds measured of each in each round; without this, 5
    #[arg(long)]
    seconds: Option<f64>,
    /// A few cases, for two rounds of a second where nothing else is said: shows that the bench works,
    /// not what things cost
    #[arg(long)]
    quick: bool,
    /// Send engines of the relay, one after the other
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "auto")]
    engine: Vec<EngineChoice>,
    /// Data threads of the relay, one number after the other; those that have no processor of their
    /// own beside the load share
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// How the relay protects what it sends to participants: with each member's key, with one key for
    /// all, or not at all.
    /// Several are measured in turn within each round
    #[arg(long, value_name = "KEYS", value_delimiter = ',', default_value = "member")]
    keys: Vec<Keys>,
    /// Relay and load on two hosts: network namespaces joined by a virtual Ethernet. Needs root
    #[arg(long)]
    netns: bool,
    /// Print the rows and what was left out as JSON, one a line
    #[arg(long)]
    json: bool,
}

impl RelayBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (rounds, seconds) = if self.quick { (2, 1.0) } else { (5, 5.0) };
        let (rounds, seconds) = (self.rounds.unwrap_or(rounds), self.seconds.unwrap_or(seconds));
        if !(0.1..=600.0).contains(&seconds) {
            bail!("--seconds {seconds} is out of range; choose 0.1 to 600");
        }
        self.check_keys()?;
        let cases = self.filters.cases(self.quick);
        if cases.is_empty() {
            bail!("no case passes these filters; without filters there are {}", Case::all().len());
        }
        let Processors { load_on, relay_on } = Processors::take()?;
        let measured = Duration::from_secs_f64(seconds);
        let hosts = if self.netns { Hosts::virtual_ethernet(load_on)? } else { Hosts::loopback() };
        let engine = EngineChoice::Auto;
        let keys = self.keys.clone();
        let mut plan = Plan { rounds, measured, engine, keys, threads: 1, relay_on, hosts };
        let mut rows = Vec::new();
        let engines = self.engines_that_work(&plan.hosts)?;
        let relays: Vec<(EngineChoice, u16)> = engines
            .iter()
            .flat_map(|engine| self.threads.iter().map(move |threads| (*engine, *threads)))
            .collect();
        let all = cases.len() * relays.len() * self.keys.len();
        for case in &cases {
            for (engine, threads) in &relays {
                (plan.engine, plan.threads) = (*engine, *threads);
                let number = rows.len() + 1;
                print_note(format_args!(
                    "[{number}/{all}] {case} engine={engine} threads={threads}"
                ));
                for row in plan.hosts.run(|| rounds::measure(case, &plan))?? {
                    if self.json {
                        print_line(serde_json::to_string(&row)?)?;
                    } else {
                        print_note(format_args!("        {}", row.short()));
                    }
                    rows.push(row);
                }
            }
        }
        if !self.json {
            print_line(Row::table(&rows))?;
        }
        if !self.quick {
            print_note(format_args!("measuring the receivers' share of the processor time"));
            // No row of the table, so beside it: whoever reads rows meets only rows.
            print_note(plan.hosts.run(|| softirq::receivers_share(&plan))?);
        }
        let missing = self.engine.iter().find(|engine| !engines.contains(engine));
        let missing = missing.map(ToString::to_string).unwrap_or_default();
        ensure!(missing.is_empty(), "{missing} was asked for, and took no part; see why above");
        Ok(ExitCode::SUCCESS)
    }

    /// A row would bear the name of an engine that did nothing.
    fn check_keys(&self) -> anyhow::Result<()> {
        let clones =
            |engine: &&EngineChoice| matches!(engine, EngineChoice::Named(name) if name.clones());
        match self.engine.iter().find(clones) {
            Some(engine) if self.keys.contains(&Keys::Member) => bail!(
                "--engine {engine} copies only what is the same for all, and with a key for each member \
                 nothing is; add --keys none or --keys group"
            ),
            _ => Ok(()),
        }
    }

    /// The engines asked for, without those that a relay cannot have here, which is said.
    fn engines_that_work(&self, hosts: &Hosts) -> anyhow::Result<Vec<EngineChoice>> {
        let case = if self.netns { "netns" } else { "loopback" };
        let leave_out = |left_out: EngineName, why: String| {
            LeftOut { left_out: left_out.name(), case: case.to_owned(), why }.tell(self.json)
        };
        let mut work = Vec::new();
        for engine in &self.engine {
            let why_not = hosts.why_not(*engine)?;
            match (engine, why_not) {
                (EngineChoice::Named(name), Some(why)) => {
                    leave_out(*name, why)?;
                    continue;
                }
                // It would have taken the first of them.
                (EngineChoice::Auto, _) if let Some(why) = hosts.not_installed() => {
                    leave_out(EngineName::TcBpf, why.to_owned())?;
                }
                _ => {}
            }
            work.push(*engine);
        }
        Ok(work)
    }
}
