//! The steps of the test command, in the order in which they run: cheap ones first.

use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::thread::{self, available_parallelism};

use anyhow::{Result, ensure};

use crate::bpf;
use crate::job::Job;
use crate::packages::on_path;
use crate::sim::{self, World};
use crate::workspace::{Workspace, cargo};

/// One step of the test command.
pub(crate) struct Step {
    /// What `--only` and `--skip` call it.
    pub(crate) name: &'static str,
    /// What it holds, in a few words.
    pub(crate) what: &'static str,
    /// Does it.
    pub(crate) run: fn(&mut Job<'_>) -> Result<()>,
}

/// All steps.
pub(crate) const ALL: [Step; 12] = [
    Step { name: "fmt", what: "rustfmt has nothing to change", run: fmt },
    Step { name: "clippy", what: "no warning in any target of the workspace", run: clippy },
    Step { name: "doc", what: "rustdoc has no warning", run: doc },
    Step {
        name: "bpf",
        what: "the committed kernel programs are their source's",
        run: bpf::check_committed,
    },
    Step { name: "test", what: "unit, property, simulation and doc tests", run: test },
    Step { name: "fuzz", what: "every committed fuzz input replays", run: fuzz },
    Step { name: "sim", what: "a seed repeats its trace; two seeds differ", run: simulate },
    Step { name: "system", what: "the binary, over loopback and between namespaces", run: system },
    Step { name: "dissector", what: "tshark reads our packets", run: dissector },
    Step { name: "browser", what: "the web console in Chromium", run: browser },
    Step { name: "deny", what: "licences, advisories and sources of dependencies", run: deny },
    Step {
        name: "bench",
        what: "the benches of relay and joins run and their rows parse",
        run: bench,
    },
];

/// Integration tests of the steps below, so the `test` step passes them by.
const OWN_STEP: [&str; 5] = ["system", "engine", "benches", "dissector", "browser"];

/// Those of the `test` step that compute all the time. The others wait more than they compute, so
/// these run beside them.
const COMPUTING: [&str; 4] = ["exhaustive", "methods", "relays", "seeds"];

/// The steps that start the released binary, where it is asked for.
pub(crate) const RELEASED: [&str; 4] = ["sim", "system", "browser", "bench"];

/// As many seeds as tell chance from determinism in a minute or so; `cargo xtask soak` runs more.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// The same, of worlds of so many relays.
const RELAYS: [u32; 5] = [2, 3, 5, 12, 30];
const SEEDS_OF_RELAYS: u64 = 4;

/// The steps as `--list` prints them.
pub(crate) fn list() -> String {
    ALL.iter().map(|step| format!("{:<10} {}\n", step.name, step.what)).collect()
}

fn fmt(job: &mut Job<'_>) -> Result<()> {
    job.cargo(&["fmt", "--all", "--check"])?;
    let manifest = job.workspace.fuzz_manifest();
    job.cargo(&["fmt", "--manifest-path", &manifest.to_string_lossy(), "--check"])
}

fn clippy(job: &mut Job<'_>) -> Result<()> {
    let strict = ["--", "-D", "warnings"];
    job.cargo(&[&["clippy", "--workspace", "--all-targets"][..], &strict].concat())?;
    let fuzz = fuzz_crate(job.workspace);
    let fuzz: Vec<&str> = fuzz.iter().map(String::as_str).collect();
    job.cargo(&[&["clippy", "--all-targets"][..], &fuzz, &strict].concat())
}

fn doc(job: &mut Job<'_>) -> Result<()> {
    // With the examples, crates have the features that they have in clippy's step: none is checked again.
    let workspace = ["--workspace", "--lib", "--bins", "--examples"].map(str::to_owned);
    for which in [workspace.to_vec(), fuzz_crate(job.workspace)] {
        let mut command = cargo();
        command.args(["doc", "--no-deps"]).args(which).env("RUSTDOCFLAGS", "-D warnings");
        job.run(command)?;
    }
    Ok(())
}

fn test(job: &mut Job<'_>) -> Result<()> {
    let names = job.workspace.tests.iter().filter(|name| !OWN_STEP.contains(&name.as_str()));
    let (computing, waiting): (Vec<_>, Vec<_>) =
        names.cloned().partition(|name| COMPUTING.contains(&name.as_str()));
    let units = ["--lib", "--bins"].map(str::to_owned).into_iter();
    let waiting: Vec<String> = units.chain(tests_named(waiting)).collect();
    let computing: Vec<String> = tests_named(computing).collect();
    let workspace = ["--workspace".to_owned()];
    job.cargo(
        &[&["test".to_owned(), "--no-run".to_owned()], &workspace[..], &waiting, &computing]
            .concat(),
    )?;
    // A few at a time: many wait, for timers, for namespaces, for what a crowd still owes.
    let threads = (3 * available_parallelism().map_or(1, NonZero::get)).to_string();
    let mut beside = job.beside("beside")?;
    let releases = job.releases;
    let (cases, computed) = thread::scope(|scope| {
        let computed = scope.spawn(|| {
            let computed = beside.cargo_test(&[&workspace[..], &computing].concat(), &[]);
            // If it fails, the step that needs it says so.
            let _ = releases.then(|| build_release(&mut beside));
            (beside.lines, computed)
        });
        let cases =
            job.cargo_test(&[&workspace[..], &waiting].concat(), &["--test-threads", &threads]);
        (cases, computed.join().expect("the tests beside do not panic"))
    });
    let (lines, computed) = computed;
    job.lines.absorb(lines);
    let cases = cases.and(computed);
    if cases.is_err() && !job.keep_going {
        return cases;
    }
    // What depends on it builds its kernel side; this holds that it also works without.
    job.cargo_test(
        &["-p", "canopy-engines", "--no-default-features", "--lib"].map(str::to_owned),
        &[],
    )?;
    // Not through `cargo_test`: a workspace without a doc test is no failure.
    job.cargo(&["test", "--workspace", "--doc"])?;
    cases
}

fn fuzz(job: &mut Job<'_>) -> Result<()> {
    job.cargo_test(&fuzz_crate(job.workspace), &[])
}

fn simulate(job: &mut Job<'_>) -> Result<()> {
    build_binary(job)?;
    let one = SEEDS.map(|seed| World { seed, relays: None, topology: None });
    let many = RELAYS.iter().flat_map(|relays| {
        let seeds = 0..SEEDS_OF_RELAYS;
        seeds.map(|seed| World { seed, relays: Some(*relays), topology: None })
    });
    sim::check_worlds(job, one.chain(many))
}

fn system(job: &mut Job<'_>) -> Result<()> {
    build_binary(job)?;
    for name in ["system", "engine", "benches"] {
        named_test(job, name, "2")?;
    }
    Ok(())
}

fn dissector(job: &mut Job<'_>) -> Result<()> {
    named_test(job, "dissector", "1")
}

fn browser(job: &mut Job<'_>) -> Result<()> {
    build_binary(job)?;
    named_test(job, "browser", "1")
}

fn deny(job: &mut Job<'_>) -> Result<()> {
    if !on_path("cargo-deny") {
        let why = "cargo-deny missing; `cargo install --locked cargo-deny` brings it";
        job.left_out = Some(why.to_owned());
        return Ok(());
    }
    job.cargo(&["deny", "check", "bans", "licenses", "sources"])?;
    deny_advisories(job)
}

fn bench(job: &mut Job<'_>) -> Result<()> {
    if available_parallelism().is_ok_and(|processors| processors.get() < 2) {
        let why = "one processor only; the bench takes one for the relay and one for the load";
        job.left_out = Some(why.to_owned());
        return Ok(());
    }
    build_binary(job)?;
    let mut command = Command::new(job.canopy());
    command.args(["bench", "relay", "--quick", "--json"]);
    let mut rows = sim::rows(&job.read(command)?)?.len();
    let mut command = Command::new(job.canopy());
    command.args(["bench", "join", "--rounds", "1", "--participants", "50", "--json"]);
    rows += sim::rows(&job.read(command)?)?.len();
    job.note(&format!("{rows} rows"));
    Ok(())
}

/// Arguments with which cargo takes the fuzz crate in place of the workspace. It is built in the
/// workspace's own target folder, so that what both need is built once.
fn fuzz_crate(workspace: &Workspace) -> Vec<String> {
    let (manifest, target) = (workspace.fuzz_manifest(), &workspace.target);
    let path = |path: &Path| path.to_string_lossy().into_owned();
    ["--manifest-path".to_owned(), path(&manifest), "--target-dir".to_owned(), path(target)].into()
}

/// Arguments with which `cargo test` runs these integration tests.
fn tests_named(names: Vec<String>) -> impl Iterator<Item = String> {
    names.into_iter().flat_map(|name| ["--test".to_owned(), name])
}

/// Tests in one file that share the machine's network or a browser: `threads` of them at a time.
fn named_test(job: &mut Job<'_>, name: &str, threads: &str) -> Result<()> {
    let known = job.workspace.tests.iter().any(|test| test == name);
    ensure!(known, "the workspace has no integration test named `{name}`");
    job.cargo_test(&["--workspace", "--test", name], &["--test-threads", threads])
}

/// Builds the binary that the step starts.
fn build_binary(job: &mut Job<'_>) -> Result<()> {
    if job.releases {
        return build_release(job);
    }
    // The `test` step has built it: with the tests' features, as `cargo build` would not.
    job.cargo(&["test", "--no-run", "--workspace", "--test", "system"])
}

/// Builds the binary that ships, which the step's tests start from then on. The tests themselves are
/// built as those of the `test` step are, so that little is compiled twice.
pub(crate) fn build_release(job: &mut Job<'_>) -> Result<()> {
    job.released = true;
    job.cargo(&["build", "--release", "-p", "canopy", "--bin", "canopy"])
}

/// The database of advisories lies on the network; a machine that cannot reach it has not failed.
fn deny_advisories(job: &mut Job<'_>) -> Result<()> {
    let fetched = job.cargo(&["deny", "fetch", "db"]);
    if let Err(error) = fetched {
        let why =
            format!("all but the advisories holds; their database cannot be fetched: {error:#}");
        job.left_out = Some(why);
        return Ok(());
    }
    job.cargo(&["deny", "check", "advisories"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_names_are_distinct_and_fit_the_table() {
        let mut names: Vec<_> = ALL.iter().map(|step| step.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(names.iter().all(|name| name.len() <= 10 && *name != "setup"));
        assert!(RELEASED.iter().all(|name| names.contains(name)));
    }
}
