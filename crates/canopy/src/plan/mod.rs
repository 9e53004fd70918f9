//! `canopy plan`: which tree, how much capacity, what it costs, how many users a relay carries.

mod capacity;
mod compare;
mod cost;
mod figures;
mod input;
mod map;
mod tree;

use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Size a deployment before it is built: pure computation, no network is touched.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy plan tree --network Abilene.gml --send 1 --receive 8\n  \
    canopy plan compare --points 25 --send 1M --receive 20M\n  \
    canopy plan figures --out figures\n  \
    canopy plan cost\n  \
    canopy plan capacity --model periodic --h constant --f 0.5 --t-ms 33.3 --bytes 80 \\\n    \
    --old 6.02e-3,8.69e-7 --new 2.16e-3,2.12e-7")]
pub(crate) struct PlanCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Choose a tree for a comtree and provision its links
    Tree(Box<tree::TreeCommand>),
    /// All methods side by side
    Compare(Box<compare::CompareCommand>),
    /// Figures 4, 5 and 6 of the Forest paper, from our own runs
    Figures(figures::FiguresCommand),
    /// What a user costs a month: servers, relays, bandwidth
    Cost(cost::CostCommand),
    /// How many users a relay carries, by what sending costs it
    Capacity(Box<capacity::CapacityCommand>),
}

impl PlanCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Tree(command) => command.run()?,
            What::Compare(command) => command.run()?,
            What::Figures(command) => command.run()?,
            What::Cost(command) => command.run()?,
            What::Capacity(command) => command.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
