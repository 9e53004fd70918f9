//! `cargo xtask mutants`: small faults made in the core one by one, which its tests must find.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::job::Job;
use crate::packages::on_path;
use crate::tally::Tally;
use crate::workspace::{Workspace, cargo};

/// The crates that hold what a relay decides.
const CORE: [&str; 5] =
    ["canopy-wire", "canopy-batch", "canopy-session", "canopy-relay", "canopy-node"];

/// Runs cargo-mutants on the core, or on some files of it. A fault that no test finds is an error.
pub(crate) fn run(files: &[PathBuf], minutes: u64) -> Result<Tally> {
    if !on_path("cargo-mutants") {
        bail!("cargo-mutants missing; `cargo install --locked cargo-mutants` brings it");
    }
    let workspace = Workspace::load()?;
    let mut command = cargo();
    command.args(["mutants", "--jobs", "1", "--no-shuffle", "--colors", "never"]);
    // Tests that a fault keeps waiting end by themselves after half a minute.
    command
        .args(["--minimum-test-timeout", "60"])
        .arg("--output")
        .arg(workspace.target.join("xtask"));
    for name in CORE {
        command.args(["--package", name]);
    }
    for file in files {
        command.arg("--file").arg(file);
    }
    Job::start(&workspace, "mutants", Duration::from_secs(60 * minutes), false)?.run(command)?;
    Ok(Tally::PASSED)
}
