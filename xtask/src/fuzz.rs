//! `cargo xtask fuzz`: libFuzzer through cargo-fuzz, on a nightly toolchain.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::job::Job;
use crate::packages::{on_path, succeeds};
use crate::tally::Tally;
use crate::workspace::{FuzzTarget, Workspace};

/// Time to build a target with sanitizers, on top of the time to fuzz.
const BUILD: Duration = Duration::from_secs(20 * 60);

/// Runs one target for a while.
pub(crate) fn run(name: &str, seconds: u64) -> Result<Tally> {
    if let Some(why) = unavailable() {
        bail!("cannot fuzz here: {why}");
    }
    let workspace = Workspace::load()?;
    let targets = workspace.fuzz_targets()?;
    let Some(target) = targets.iter().find(|target| target.name == name) else {
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        bail!("no fuzz target is named `{name}`; there are: {}", names.join(", "));
    };
    fuzz(&workspace, target, seconds)?;
    Ok(Tally::PASSED)
}

/// What keeps this machine from fuzzing, if anything does.
pub(crate) fn unavailable() -> Option<&'static str> {
    if !on_path("cargo-fuzz") {
        return Some("cargo-fuzz missing; `cargo install --locked cargo-fuzz` brings it");
    }
    if succeeds("rustup", &["run", "nightly", "rustc", "--version"]) {
        return None;
    }
    Some("nightly missing; `rustup toolchain install nightly` brings it")
}

/// Runs `target` for `seconds`; what it finds out about inputs stays outside the committed corpus.
pub(crate) fn fuzz(workspace: &Workspace, target: &FuzzTarget, seconds: u64) -> Result<()> {
    let name = &target.name;
    let found = workspace.target.join("fuzz-corpus").join(name);
    fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
    let committed = workspace.root.join("fuzz/corpus").join(name);
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz", "run"]);
    // What the released binary leaves out finds faults here, and what it links for builds longer.
    command.env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    if !target.features.is_empty() {
        command.args(["--features", &target.features.join(",")]);
    }
    // libFuzzer writes new inputs to the first folder and only reads the others.
    command.arg(name).arg(&found);
    if committed.exists() {
        command.arg(&committed);
    }
    command.args(["--", &format!("-max_total_time={seconds}")]);
    let limit = BUILD + Duration::from_secs(2 * seconds);
    let mut job = Job::start(workspace, &format!("fuzz-{name}"), limit, false)?;
    job.run(command).with_context(|| {
        format!("fuzz target {name}: the input is in fuzz/artifacts/{name}; CONTRIBUTING.md says what to do with it")
    })
}
