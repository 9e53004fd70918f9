//! `canopy bench`: what things cost on this machine, as ratios inside one run.

mod capacity;
mod footprint;
mod groupcast;
mod left_out;
mod noise;
mod plan;
mod reflector;
mod relay;

use clap::{Args, Subcommand, ValueEnum};
use std::process::ExitCode;

/// Measure what things cost on this machine.
#[derive(Args)]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The relay's processor time per delivery, against a naive reflector in the same rounds
    Relay(Box<relay::RelayBench>),
    /// How many users a relay carries: predicted from its costs, and found by raising the load
    Capacity(capacity::CapacityBench),
    /// What one payload to many receivers costs with each send engine, against a sendto each
    Groupcast(groupcast::GroupcastBench),
    /// Memory and idle processor time of a relay with many clients
    Footprint(footprint::FootprintBench),
    /// Time to choose a tree by every method, and to provision one change in a large tree
    Plan(plan::PlanBench),
    /// The naive reflector: recvfrom, then sendto per member
    #[command(hide = true)]
    Reflector(reflector::Reflector),
}

/// A flag that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl BenchCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Relay(bench) => bench.run(),
            What::Capacity(bench) => bench.run(),
            What::Groupcast(bench) => bench.run(),
            What::Footprint(bench) => bench.run(),
            What::Plan(bench) => bench.run(),
            What::Reflector(reflector) => reflector.run(),
        }
    }
}
