//! `canopy plan`: which tree, how much capacity, what it costs.

mod compare;
mod cost;
mod figures;
mod input;
mod map;
mod tree;

use clap::{Args, Subcommand};
pub(crate) use input::read_network;
use std::process::ExitCode;

/// Size a deployment before it is built: pure computation, no network is touched.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy plan tree --network Abilene.gml --send 1 --receive 8\n  \
    canopy plan compare --points 25 --send 1M --receive 20M\n  \
    canopy plan figures --out figures\n  \
    canopy plan cost")]
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
}

impl PlanCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Tree(command) => command.run()?,
            What::Compare(command) => command.run()?,
            What::Figures(command) => command.run()?,
            What::Cost(command) => command.run()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
