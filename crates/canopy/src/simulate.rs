//! `canopy sim`: a seeded world in virtual time.

use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub(crate) struct SimCommand {
    /// The seed
    #[arg(long)]
    seed: u64,
}

impl SimCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::bail!("seed {}", self.seed)
    }
}
