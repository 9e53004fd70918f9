//! The steps of the test command. What depends on nothing runs first; then what starts processes and
//! waits for them runs in the foreground, and beside it what only computes.

use std::num::NonZero;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::Result;

use crate::binaries::TestBinary;
use crate::bpf;
use crate::job::Job;
use crate::packages::on_path;
use crate::sim::{self, World};
use crate::workspace::{Workspace, cargo};
use Builds::{Binary, Nothing, OtherTests, Tests};

/// One step of the test command.
pub(crate) struct Step {
    /// What `--only` and `--skip` call it.
    pub(crate) name: &'static str,
    /// What it holds, in a few words.
    pub(crate) what: &'static str,
    /// When it runs.
    pub(crate) when: When,
    /// What the step `build` builds for it.
    pub(crate) builds: Builds,
    /// Does it.
    pub(crate) run: Run,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Before all others.
    First,
    /// In the foreground: it waits for processes, some of them for a time that a test gives them.
    Foreground,
    /// Beside those, on what they leave of the processors.
    Background,
}

/// What a step needs built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builds {
    /// Nothing, or it builds itself.
    Nothing,
    /// The binary `canopy`.
    Binary,
    /// These integration tests, with the binary that they start.
    Tests(&'static [&'static str]),
    /// The tests of the crates themselves, and the integration tests that no step names.
    OtherTests,
}

/// All steps.
pub(crate) const ALL: [Step; 15] = [
    first("fmt", "rustfmt has nothing to change", fmt),
    first("bpf", "the committed kernel programs are their source's", bpf::check_committed),
    first(BUILD, "the tests and the binary that they start", build),
    foreground(
        "test",
        "unit and property tests, and those of processes that wait for each other",
        OtherTests,
        test,
    ),
    foreground(
        "system",
        "the binary, over loopback and between namespaces",
        Tests(&["system", "engine", "benches"]),
        two_at_a_time,
    ),
    foreground("dissector", "tshark reads our packets", Tests(&["dissector"]), one_at_a_time),
    foreground("browser", "the web console in Chromium", Tests(&["browser"]), one_at_a_time),
    foreground("bench", "the benches of relay and joins run and their rows parse", Binary, bench),
    background(
        "compute",
        "tests that compute all the time: searches, and simulations of many seeds",
        Tests(&[
            "exhaustive",
            "load",
            "methods",
            "relay",
            "relays",
            "seeds",
            "simulation",
            "topology",
        ]),
        compute,
    ),
    background("sim", "a seed repeats its trace; two seeds differ", Binary, simulate),
    background("clippy", "no warning in any target of the workspace", Nothing, clippy),
    background("doc", "rustdoc has no warning, and its examples run", Nothing, doc),
    background(
        "features",
        "engines and node without the kernel's help, the SDK without tokio",
        Nothing,
        features,
    ),
    background("fuzz", "every committed fuzz input replays", Tests(&["replay"]), compute),
    background("deny", "licences, advisories and sources of dependencies", Nothing, deny),
];

/// The step that builds for the others.
pub(crate) const BUILD: &str = "build";

/// The steps that start the released binary, where it is asked for.
pub(crate) const RELEASED: [&str; 4] = ["sim", "system", "browser", "bench"];

/// As many seeds as tell chance from determinism in half a minute or so; `cargo xtask soak` runs more.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;
/// The same, of worlds of so many relays.
const RELAYS: [u32; 5] = [2, 3, 5, 12, 30];
const SEEDS_OF_RELAYS: u64 = 2;

/// The steps as `--list` prints them.
pub(crate) fn list() -> String {
    ALL.iter().map(|step| format!("{:<10} {}\n", step.name, step.what)).collect()
}

type Run = fn(&mut Job<'_>) -> Result<()>;

const fn first(name: &'static str, what: &'static str, run: Run) -> Step {
    Step { name, what, when: When::First, builds: Nothing, run }
}

const fn foreground(name: &'static str, what: &'static str, builds: Builds, run: Run) -> Step {
    Step { name, what, when: When::Foreground, builds, run }
}

const fn background(name: &'static str, what: &'static str, builds: Builds, run: Run) -> Step {
    Step { name, what, when: When::Background, builds, run }
}

impl Step {
    /// Whether it runs the tests in this binary.
    pub(crate) fn has(&self, binary: &TestBinary) -> bool {
        match self.builds {
            Nothing | Binary => false,
            Tests(names) => binary.is_integration && names.contains(&binary.name.as_str()),
            OtherTests => !binary.is_integration || !has_own_step(&binary.name),
        }
    }

    /// Arguments with which `cargo test` builds what it needs.
    fn builds(&self, workspace: &Workspace) -> Vec<String> {
        match self.builds {
            Nothing => Vec::new(),
            // Cargo builds the binary for the integration tests of its package, with the tests'
            // features. `cargo build` would build it again, with others.
            Binary => tests_named(["system"]),
            Tests(names) => tests_named(names.iter().copied()),
            OtherTests => {
                let others = workspace.tests.iter().map(String::as_str);
                let others = tests_named(others.filter(|name| !has_own_step(name)));
                [vec!["--lib".to_owned(), "--bins".to_owned()], others].concat()
            }
        }
    }
}

/// Whether a step names this integration test.
fn has_own_step(test: &str) -> bool {
    ALL.iter().any(|step| matches!(step.builds, Tests(names) if names.contains(&test)))
}

/// Arguments with which `cargo test` builds these integration tests.
fn tests_named<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().flat_map(|name| ["--test".to_owned(), name.to_owned()]).collect()
}

/// Arguments with which `cargo test` builds what these steps need; none if they need nothing.
pub(crate) fn built_for(steps: &[&Step], workspace: &Workspace) -> Vec<String> {
    steps.iter().flat_map(|step| step.builds(workspace)).collect()
}

fn fmt(job: &mut Job<'_>) -> Result<()> {
    job.cargo(&["fmt", "--all", "--check"])
}

fn clippy(job: &mut Job<'_>) -> Result<()> {
    job.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn doc(job: &mut Job<'_>) -> Result<()> {
    // With the examples, crates have the features that they have in clippy's step: none is checked again.
    let mut command = cargo();
    command.args(["doc", "--no-deps", "--workspace", "--lib", "--bins", "--examples"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    job.run(command)?;
    // Not through `cargo_test`: a workspace without an example is no failure.
    job.cargo(&["test", "--workspace", "--doc"])
}

fn build(job: &mut Job<'_>) -> Result<()> {
    let wanted = [&["--workspace".to_owned()], &job.wanted[..]].concat();
    job.tests = job.build_tests(&wanted)?;
    if job.released { build_release(job) } else { Ok(()) }
}

fn test(job: &mut Job<'_>) -> Result<()> {
    // A few at a time: many wait, for timers, for namespaces, for what a crowd still owes.
    job.run_tests(3 * processors())
}

fn two_at_a_time(job: &mut Job<'_>) -> Result<()> {
    job.run_tests(2)
}

fn one_at_a_time(job: &mut Job<'_>) -> Result<()> {
    job.run_tests(1)
}

fn compute(job: &mut Job<'_>) -> Result<()> {
    job.run_tests(processors())
}

fn features(job: &mut Job<'_>) -> Result<()> {
    // What depends on it builds its kernel side; this holds that it also works without.
    job.cargo_test(&["-p", "canopy-engines", "--no-default-features", "--lib"].map(str::to_owned))?;
    // The binary's own part of it is held by `layers.rs`: to build all of it once more takes minutes.
    for features in
        [&["canopy-node"][..], &["canopy-client"], &["canopy-client", "--features", "tokio"]]
    {
        job.cargo(&[&["check", "--no-default-features", "-p"], features].concat())?;
    }
    Ok(())
}

fn simulate(job: &mut Job<'_>) -> Result<()> {
    let one = SEEDS.map(|seed| World { seed, ..World::default() });
    let many = RELAYS.iter().flat_map(|relays| {
        let seeds = 0..SEEDS_OF_RELAYS;
        seeds.map(|seed| World { seed, relays: Some(*relays), ..World::default() })
    });
    sim::check_worlds(job, one.chain(many))
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
    if processors() < 2 {
        let why = "one processor only; the bench takes one for the relay and one for the load";
        job.left_out = Some(why.to_owned());
        return Ok(());
    }
    let mut command = Command::new(job.canopy());
    command.args(["bench", "relay", "--quick", "--rounds", "1", "--seconds", "0.2", "--json"]);
    let mut rows = sim::rows(&job.read(command)?)?.len();
    let mut command = Command::new(job.canopy());
    command.args(["bench", "join", "--rounds", "1", "--participants", "50", "--json"]);
    rows += sim::rows(&job.read(command)?)?.len();
    job.note(&format!("{rows} rows"));
    Ok(())
}

fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Builds the binary that ships, which the job starts from then on.
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

    #[test]
    fn every_test_binary_is_of_one_step() {
        let workspace = Workspace::load().unwrap();
        let binary = |name: &str, is_integration| TestBinary {
            folder: "/".into(),
            is_integration,
            name: name.to_owned(),
            path: "/t".into(),
        };
        let integration = workspace.tests.iter().map(|name| binary(name, true));
        for binary in integration.chain([binary("canopy_relay", false), binary("system", false)]) {
            let of = ALL.iter().filter(|step| step.has(&binary)).map(|step| step.name);
            assert_eq!(of.count(), 1, "{binary:?}");
        }
    }

    #[test]
    fn the_named_integration_tests_exist() {
        let known = Workspace::load().unwrap().tests;
        for step in &ALL {
            if let Tests(names) = step.builds {
                assert!(
                    names.iter().all(|name| known.iter().any(|test| test == name)),
                    "{names:?}"
                );
            }
        }
    }
}
