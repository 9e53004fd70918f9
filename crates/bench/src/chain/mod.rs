//! `canopy bench chain`: what it costs that a world is spread over several relays.
//!
//! The relays are those of `canopy lab net`, each a process of its own, all on one processor. A single
//! relay is started the same way, so nothing but the number of relays differs.

mod crowd;
mod network;
mod report;

use crate::noise::Steal;
use crate::relay::cases::{Case, ModeName, Scenario};
use crate::relay::load::{Load, Measured, Side, WARM_UP};
use crate::{Processors, Switch};
use anyhow::bail;
use canopy_output::{print_line, print_note};
use clap::{Args, ValueEnum};
use network::{Layout, Network};
use report::Row;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs a crowd on one relay and on a chain of relays in turn, in alternated rounds, and compares the
/// processor time per delivery of all relays together. Each participant publishes 20 updates a
/// second to a group of all; they join the relays in turn. The relays share one processor, the load
/// has another. Rounds with more than 5 % steal are discarded and counted. With --trace, a recorded
/// crowd walks through one relay and through the chain, one after the other: an oracle judges every
/// delivery, and the ages are compared. Ends with 1 if a delivery was lost.
#[derive(Args)]
pub(crate) struct ChainBench {
    /// Relays of the chain
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u16).range(2..=64))]
    relays: u16,
    /// Which relays of the chain are the core: the first alone, or all; several are measured in turn
    #[arg(long, value_name = "CORE", value_delimiter = ',', default_value = "one,all")]
    core: Vec<Core>,
    /// Only this mode of the relays; with --trace, immediate unless it is said
    #[arg(long, value_name = "MODE")]
    mode: Option<ModeName>,
    /// Milliseconds between ticks in periodic mode
    #[arg(long, value_name = "MS", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    tick_ms: u16,
    /// Participants
    #[arg(long, value_name = "N", default_value_t = 90,
          value_parser = clap::value_parser!(u16).range(2..=1000))]
    n: u16,
    /// Bytes of an update
    #[arg(long, value_name = "B", default_value_t = 100,
          value_parser = clap::value_parser!(u16).range(12..=1024))]
    bytes: u16,
    /// Only receivers with (on) or without (off) UDP_GRO
    #[arg(long)]
    gro: Option<Switch>,
    /// Rounds of one relay and each chain in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds measured of each in each round
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Walk this recorded crowd instead, as fast as it was recorded
    #[arg(long, value_name = "FILE[.csv|.csv.gz]",
          conflicts_with_all = ["n", "gro", "rounds", "seconds"])]
    trace: Option<PathBuf>,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// Which relays of a line are the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Core {
    /// The first one, which is an end
    One,
    /// All of them
    All,
}

/// A network under measurement, and its load.
struct Measuring {
    layout: Layout,
    network: Network,
    load: Load,
    rounds: Vec<Measured>,
}

impl ChainBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !(0.1..=600.0).contains(&self.seconds) {
            bail!("--seconds {} is out of range; choose 0.1 to 600", self.seconds);
        }
        let processors = Processors::take()?;
        let is_whole = match &self.trace {
            Some(trace) => crowd::run(&self, trace, &processors)?,
            None => self.measure_all(&processors)?,
        };
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Measures every case. Returns whether every delivery arrived.
    fn measure_all(&self, processors: &Processors) -> anyhow::Result<bool> {
        let modes =
            self.mode.map_or(vec![ModeName::Periodic, ModeName::Immediate], |mode| vec![mode]);
        let switches = self.gro.map_or(vec![Switch::Off, Switch::On], |gro| vec![gro]);
        let mut rows = Vec::new();
        for (mode, gro) in
            modes.iter().flat_map(|mode| switches.iter().map(move |gro| (*mode, *gro)))
        {
            let case = Case {
                scenario: Scenario::Crowd,
                n: self.n.into(),
                bytes: self.bytes.into(),
                mode,
                tick_ms: if mode == ModeName::Periodic { self.tick_ms.into() } else { 0 },
                receivers_gro: gro == Switch::On,
            };
            print_note(case);
            for row in self.measure(&case, processors)? {
                if self.json {
                    print_line(serde_json::to_string(&row)?)?;
                }
                rows.push(row);
            }
        }
        if !self.json {
            print_line(Row::table(&rows))?;
        }
        Ok(rows.iter().all(|row| row.loss == 0.0))
    }

    /// What is compared in one mode: a single relay first, then the chains.
    fn layouts(&self, mode: ModeName) -> Vec<Layout> {
        let layout = |relays, core| Layout { relays, core, mode, tick_ms: self.tick_ms };
        let chains = self.core.iter().map(|core| layout(self.relays, *core));
        std::iter::once(layout(1, Core::One)).chain(chains).collect()
    }

    /// Measures a single relay and the chains under one load, in alternated rounds.
    fn measure(&self, case: &Case, processors: &Processors) -> anyhow::Result<Vec<Row>> {
        let from = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let start = |layout: Layout| {
            let network = Network::start(&layout, processors)?;
            let mut load = Load::join(Side::Relay, case, from, &network.addresses)?;
            // Subscriptions are still on their way to the core, so this round does not count.
            load.run(&network.processes, WARM_UP)?;
            anyhow::Ok(Measuring { layout, network, load, rounds: Vec::new() })
        };
        let layouts = self.layouts(case.mode).into_iter();
        let mut all = layouts.map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let (mut rounds, mut discarded) = (0, 0);
        // A noisy machine may cost rounds, but not without end.
        while rounds < self.rounds && discarded < 2 * self.rounds {
            let before = Steal::read();
            let mut measured = Vec::new();
            for number in 0..all.len() {
                // The idle networks stay alive: their participants answer between the rounds.
                all.iter_mut().try_for_each(|one| one.load.keep_alive())?;
                let Measuring { network, load, .. } = &mut all[number];
                let time = Duration::from_secs_f64(self.seconds);
                measured.push(load.run(&network.processes, time)?);
            }
            if before.disturbed() {
                discarded += 1;
                continue;
            }
            rounds += 1;
            for (one, measured) in all.iter_mut().zip(measured) {
                one.rounds.push(measured);
            }
        }
        if rounds == 0 {
            bail!("all {discarded} rounds had more than 5 % steal; try again on a quieter machine");
        }
        let single = &all[0].rounds;
        Ok(all.iter().map(|one| Row::new(case, one, single, discarded)).collect())
    }
}
