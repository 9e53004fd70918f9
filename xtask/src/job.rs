//! One step at work: runs its commands, shows and logs what they say, counts the tests they report.

use std::fs::{self, File};
use std::io::{self, Write};
use std::mem;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::binaries::{self, TestBinary};
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
    /// Arguments with which `cargo test` builds what is wanted of it.
    pub(crate) wanted: Vec<String>,
    /// The binaries of tests that it built, or that it is to run.
    pub(crate) tests: Vec<TestBinary>,
    /// What it would have shown, if another step goes on in the foreground. Its commands leave the
    /// processors to that one.
    kept: Option<Vec<String>>,
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
            wanted: Vec::new(),
            tests: Vec::new(),
            kept: None,
            left_out: None,
            deadline,
            log,
            lines,
        })
    }

    /// The same job in the background: it shows nothing before its end, and disturbs nobody.
    pub(crate) fn in_background(self) -> Self {
        Self { kept: Some(Vec::new()), ..self }
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
    pub(crate) fn cargo_test<S: AsRef<str>>(&mut self, args: &[S]) -> Result<()> {
        let before = self.lines.tally().total();
        let mut command = cargo();
        command.arg("test").args(args.iter().map(AsRef::as_ref));
        if self.keep_going {
            command.arg("--no-fail-fast");
        }
        // Without it the harness swallows the lines with which tests say that they skipped themselves.
        command.args(["--", "--show-output", "--color", "never"]);
        let shown = spelled(&command);
        self.run(command)?;
        ensure!(self.lines.tally().total() > before, "`{shown}` ran no test");
        Ok(())
    }

    /// Builds what `cargo test` with these arguments runs; hands back the binaries in a fixed order.
    pub(crate) fn build_tests<S: AsRef<str>>(&mut self, args: &[S]) -> Result<Vec<TestBinary>> {
        let mut command = cargo();
        command.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
        command.args(args.iter().map(AsRef::as_ref));
        self.note(&format!("$ {}", spelled(&command)));
        let mut built = Vec::new();
        self.stream(command, |line| {
            built.extend(binaries::read(line));
            false
        })?;
        built.sort();
        Ok(built)
    }

    /// Runs the step's test binaries one after another, `threads` tests at a time, and counts the cases.
    pub(crate) fn run_tests(&mut self, threads: usize) -> Result<()> {
        ensure!(!self.tests.is_empty(), "no test was built for this step");
        let mut ended = Ok(());
        for binary in mem::take(&mut self.tests) {
            let before = self.lines.tally().total();
            let mut command = Command::new(&binary.path);
            command.args(["--show-output", "--color", "never", "--test-threads"]);
            command.arg(threads.to_string());
            command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
            if self.released {
                command.env("CANOPY_BINARY", self.canopy());
            }
            let mut done = self.run(command);
            if binary.is_integration && self.lines.tally().total() == before {
                done = done.and(Err(anyhow!("`{}` ran no test", binary.name)));
            }
            if done.is_err() && !self.keep_going {
                return done;
            }
            ended = ended.and(done);
        }
        ended
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
        let name = spelled(&command);
        self.read_unless_refused(command)?.with_context(|| format!("`{name}` ended with 2"))
    }

    /// The same; nothing if the command refuses what it is told, with the exit status 2.
    pub(crate) fn read_unless_refused(&mut self, command: Command) -> Result<Option<String>> {
        let mut text = String::new();
        let name = spelled(&command);
        let status = self.stream_to_end(command, |line| {
            text.extend([line, "\n"]);
            false
        })?;
        if status.code() == Some(2) {
            return Ok(None);
        }
        if !status.success() {
            show(&mut self.kept, Pipe::Out, text.trim_end());
        }
        ensure!(status.success(), "`{name}` ended with {status}");
        Ok(Some(text))
    }

    /// Runs a command; logs what it says, and shows its errors and the output that `is_shown` picks. Anything but success
    /// is an error.
    fn stream(&mut self, command: Command, is_shown: impl FnMut(&str) -> bool) -> Result<()> {
        let name = spelled(&command);
        let status = self.stream_to_end(command, is_shown)?;
        ensure!(status.success(), "`{name}` ended with {status}");
        Ok(())
    }

    /// The same, however it ends.
    fn stream_to_end(
        &mut self,
        command: Command,
        mut is_shown: impl FnMut(&str) -> bool,
    ) -> Result<ExitStatus> {
        let mut command = if self.kept.is_some() { nice(&command) } else { command };
        if command.get_current_dir().is_none() {
            command.current_dir(&self.workspace.root);
        }
        let deadline = self.deadline;
        let is_late = || Instant::now() > deadline;
        stream(command, is_late, |pipe, line| {
            let _ = writeln!(self.log, "{line}");
            if pipe == Pipe::Err || is_shown(line) {
                show(&mut self.kept, pipe, line);
            }
        })
    }

    /// Shows and logs a line of our own.
    pub(crate) fn note(&mut self, line: &str) {
        let _ = writeln!(self.log, "{line}");
        show(&mut self.kept, Pipe::Out, line);
    }

    /// Shows what was kept in the background.
    pub(crate) fn show_kept(&mut self) {
        if let Some(lines) = self.kept.take() {
            let _ = writeln!(io::stdout(), "{}", lines.join("\n"));
        }
    }
}

/// Shows a line, or keeps it for later.
fn show(kept: &mut Option<Vec<String>>, pipe: Pipe, line: &str) {
    if let Some(kept) = kept {
        return kept.push(line.to_owned());
    }
    // A reader that went away must not end the run: `cargo xtask test | head`.
    let _ = match pipe {
        Pipe::Out => writeln!(io::stdout(), "{line}"),
        Pipe::Err => writeln!(io::stderr(), "{line}"),
    };
}

/// The same command with the least claim on the processors: it takes what the foreground leaves.
fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
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
