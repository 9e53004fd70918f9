//! `canopy bench`: what things cost on this machine, as ratios inside one run.
//!
//! The relay under measurement is the product's: a [`canopy_node`] in this process, or the binary
//! that this is part of, started anew with the flags that anyone would give it.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic when nobody reads.

mod admit;
mod budget;
mod capacity;
mod chain;
mod flood;
mod footprint;
mod groupcast;
mod isolation;
mod join;
mod left_out;
mod members;
mod noise;
mod plan;
mod reflector;
mod relay;
mod restart;
mod router;
mod subscribe;
mod table;
mod tokens;

pub use isolation::{IsolationFlooder, IsolationLab};

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use std::process::ExitCode;

/// Measure what things cost on this machine.
#[derive(Args)]
pub struct BenchCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The relay's processor time per delivery, against a naive reflector in the same rounds
    Relay(Box<relay::RelayBench>),
    /// What passes through a relay from link to links, against bare reflectors
    Router(Box<router::RouterBench>),
    /// What a delivery over a chain of relays costs, against a single relay in the same rounds
    Chain(chain::ChainBench),
    /// What a delivery costs to receivers whose budgets hold a part only, against one without budgets
    Budget(budget::BudgetBench),
    /// How many users a relay carries: predicted from its costs, and found by raising the load
    Capacity(capacity::CapacityBench),
    /// What one payload to many receivers costs with each send engine, against a sendto each
    Groupcast(groupcast::GroupcastBench),
    /// Subscription changes that one core of a relay takes in a second
    Subscribe(subscribe::SubscribeBench),
    /// Participants that one core of a relay lets in within a second
    Join(join::JoinBench),
    /// Participants that one core of a controller admits within a second, and its memory
    Admit(admit::AdmitBench),
    /// What floods cost an honest crowd
    Flood(flood::FloodBench),
    /// Memory and idle processor time of a relay with many clients
    Footprint(footprint::FootprintBench),
    /// How long a crowd is away when its relay is killed and started again
    Restart(restart::RestartBench),
    /// Time to choose a tree by every method, and to provision one change in a large tree
    Plan(plan::PlanBench),
    /// The naive reflector: recvfrom, then sendto per member
    #[command(hide = true)]
    Reflector(reflector::Reflector),
    /// The router under measurement, or a reflector in its place
    #[command(hide = true)]
    RouterSide(router::RouterSide),
    /// Who floods
    #[command(hide = true)]
    Attacker(flood::Attacker),
}

/// A flag that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// What a flag calls one of its values.
fn flag_value(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Who runs where.
struct Processors {
    load_on: usize,
    /// One at least.
    relay_on: Vec<usize>,
}

impl Processors {
    /// Keeps this thread, which is the load, on one processor and leaves the relay the others. Opens
    /// the way for as many sockets as the system allows.
    fn take() -> anyhow::Result<Processors> {
        let mut relay_on = canopy_net::available_processors();
        if relay_on.len() < 2 {
            bail!("the bench needs two processors, one for the relay and one for the load");
        }
        let load_on = relay_on.remove(0);
        relay_on.reverse();
        canopy_net::pin_thread(load_on)?;
        canopy_net::raise_open_files();
        Ok(Processors { load_on, relay_on })
    }
}

impl BenchCommand {
    /// Runs the bench and prints what it measured.
    ///
    /// # Errors
    /// Why it could not be run to its end.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Relay(bench) => bench.run(),
            What::Router(bench) => bench.run(),
            What::Chain(bench) => bench.run(),
            What::Budget(bench) => bench.run(),
            What::Capacity(bench) => bench.run(),
            What::Groupcast(bench) => bench.run(),
            What::Subscribe(bench) => bench.run(),
            What::Join(bench) => bench.run(),
            What::Admit(bench) => bench.run(),
            What::Flood(bench) => bench.run(),
            What::Footprint(bench) => bench.run(),
            What::Restart(bench) => bench.run(),
            What::Plan(bench) => bench.run(),
            What::Reflector(reflector) => reflector.run(),
            What::RouterSide(side) => side.run(),
            What::Attacker(attacker) => attacker.run(),
        }
    }
}
