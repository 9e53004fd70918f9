//! One step at work: runs its commands, shows and logs what they say, counts the tests they report.

use std::fs::{self, File};
use std::io::{self, Write};
use std::mem;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::process::{Pipe, spelled, stream};
use crate::tally::TestLines;
use crate::workspace::{Workspace, cargo};

/// What a step's function works with.
pub(crate) struct Job<'a> {
    /// The repository.
    pub(crate) workspace: &'a Workspace,
    /// Whether to run all tests of a step after one has failed.
    pub(crate) keep_going: bool,
    /// Whether it starts the released binary, in place of the one that is built with the tests.
    pub(crate) released: bool,
    /// Whether this step or a later one is to start the released binary.
    pub(crate) releases: bool,
    /// Whether its commands leave the processors to whoever else wants them.
    yields: bool,
    /// Why the step cannot be done here, or not all of it: no failure.
    pub(crate) left_out: Option<String>,
    deadline: Instant,
    log: File,
    /// What its tests reported.
    pub(crate) lines: TestLines,
}

impl<'a> Job<'a> {
    /// A step's start; its log replaces that of the last run.
    pub(crate) fn start(
        workspace: &'a Workspace,
        name: &str,
        limit: Duration,
        keep_going: bool,
    ) -> Result<Self> {
        let path = log_path(workspace, name);
        fs::create_dir_all(path.parent().context("a log lies in a folder")?)?;
        let log =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let lines = TestLines::default();
        let deadline = Instant::now() + limit;
        Ok(Self {
            workspace,
            keep_going,
            released: false,
            releases: false,
            yields: false,
            left_out: None,
            deadline,
            log,
            lines,
        })
    }

    /// A second job of the same step, for what goes on beside it without disturbing it. It has a log
    /// of this name; what its tests report, the first one absorbs.
    pub(crate) fn beside(&self, name: &str) -> Result<Self> {
        let limit = self.deadline.saturating_duration_since(Instant::now());
        let beside = Self::start(self.workspace, name, limit, self.keep_going)?;
        Ok(Self { yields: true, ..beside })
    }

    /// The binary that it starts.
    pub(crate) fn canopy(&self) -> PathBuf {
        self.workspace.canopy(self.released)
    }

    /// Runs cargo with these arguments; anything but success is an error.
    pub(crate) fn cargo<S: AsRef<str>>(&mut self, args: &[S]) -> Result<()> {
        let mut command = cargo();
        command.args(args.iter().map(AsRef::as_ref));
        self.run(command)
    }

    /// Runs `cargo test` with these arguments and counts its test cases.
    pub(crate) fn cargo_test<S: AsRef<str>>(&mut self, args: &[S], harness: &[&str]) -> Result<()> {
        let before = self.lines.tally().total();
        let mut command = cargo();
        command.arg("test").args(args.iter().map(AsRef::as_ref));
        if self.keep_going {
            command.arg("--no-fail-fast");
        }
        if self.released {
            command.env("CANOPY_BINARY", self.canopy());
        }
        // Without it the harness swallows the lines with which tests say that they skipped themselves.
        command.args(["--", "--show-output", "--color", "never"]).args(harness);
        let shown = spelled(&command);
        self.run(command)?;
        ensure!(self.lines.tally().total() > before, "`{shown}` ran no test");
        Ok(())
    }

    /// Runs a command, its output shown; anything but success is an error.
    pub(crate) fn run(&mut self, command: Command) -> Result<()> {
        self.note(&format!("$ {}", spelled(&command)));
        let mut lines = mem::take(&mut self.lines);
        let done = self.stream(command, |line| lines.read(line));
        self.lines = lines;
        done
    }

    /// Runs a command and hands back its standard output, which is shown only if it fails.
    pub(crate) fn read(&mut self, command: Command) -> Result<String> {
        let mut text = String::new();
        let done = self.stream(command, |line| {
            text.extend([line, "\n"]);
            false
        });
        if done.is_err() {
            let _ = writeln!(io::stdout(), "{}", text.trim_end());
        }
        done.map(|()| text)
    }

    /// Runs a command; logs what it says, and shows its errors and the output that `is_shown` picks.
    fn stream(&mut self, command: Command, mut is_shown: impl FnMut(&str) -> bool) -> Result<()> {
        let mut command = if self.yields { nice(&command) } else { command };
        command.current_dir(&self.workspace.root);
        let name = spelled(&command);
        let deadline = self.deadline;
        let is_late = || Instant::now() > deadline;
        let status = stream(command, is_late, |pipe, line| {
            let _ = writeln!(self.log, "{line}");
            // A reader that went away must not end the run: `cargo xtask test | head`.
            let _ = match pipe {
                Pipe::Out if is_shown(line) => writeln!(io::stdout(), "{line}"),
                Pipe::Out => Ok(()),
                Pipe::Err => writeln!(io::stderr(), "{line}"),
            };
        })?;
        ensure!(status.success(), "`{name}` ended with {status}");
        Ok(())
    }

    /// Shows and logs a line of our own.
    pub(crate) fn note(&mut self, line: &str) {
        let _ = writeln!(self.log, "{line}");
        let _ = writeln!(io::stdout(), "{line}");
    }
}

/// The same command with less claim on the processors: what waits beside it is not kept waiting, and on
/// a busy machine it still gets on.
fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "5"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

/// Where a step's output is kept.
pub(crate) fn log_path(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.target.join("xtask").join(format!("{name}.log"))
}
