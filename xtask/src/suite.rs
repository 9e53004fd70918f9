//! `cargo xtask test`: sets up, runs the chosen steps in the foreground and beside it, sums up.

use std::fs;
use std::mem;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::binaries::TestBinary;
use crate::job::{Job, log_path};
use crate::packages::{self, Need};
use crate::report::{self, Ending, StepReport, spoken};
use crate::steps::{self, Builds, Step, When};
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Lines of a failed step's log that are shown again when others ran after it.
const TAIL: usize = 60;

/// What is asked for of the test command.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Run only these steps
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = step_name())]
    only: Vec<String>,
    /// Run every step but these
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = step_name())]
    skip: Vec<String>,
    /// List the steps and what they do, and stop
    #[arg(long)]
    pub(crate) list: bool,
    /// Go on after a failing step
    #[arg(long)]
    keep_going: bool,
    /// Install nothing; steps whose programs are missing are left out
    #[arg(long)]
    no_install: bool,
    /// Start the binary as it ships in the steps sim, system, browser and bench
    #[arg(long)]
    release: bool,
    /// End a step that takes longer than this
    #[arg(long, value_name = "MINUTES", default_value_t = 20)]
    step_minutes: u64,
}

fn step_name() -> PossibleValuesParser {
    PossibleValuesParser::new(steps::ALL.iter().map(|step| step.name))
}

/// Runs the test command; hands back the count of all cases.
pub(crate) fn run(options: &Options) -> Result<Tally> {
    let start = Instant::now();
    let workspace = Workspace::load()?;
    let chosen = chosen(options);
    ensure!(!chosen.is_empty(), "no step is left to run; `cargo xtask test --list` names them");
    let mut suite = Suite {
        workspace: &workspace,
        options,
        chosen: &chosen,
        missing: Vec::new(),
        built: Mutex::default(),
        reports: Mutex::default(),
    };
    suite.missing = suite.set_up()?;
    let suite = suite;
    suite.all(When::First, false)?;
    // Alone, what else would run in the background shows what it does.
    let has_foreground = chosen.iter().any(|step| step.when == When::Foreground);
    thread::scope(|scope| {
        let beside = scope.spawn(|| suite.all(When::Background, has_foreground));
        let done = suite.all(When::Foreground, false);
        done.and(beside.join().expect("no step panics"))
    })?;
    let reports = suite.reports();
    suite.sum_up(&reports, start.elapsed());
    Ok(report::total(&reports))
}

struct Suite<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    chosen: &'a [&'static Step],
    /// What is not here and cannot be installed.
    missing: Vec<&'static Need>,
    /// What the step `build` built.
    built: Mutex<Vec<TestBinary>>,
    reports: Mutex<Vec<StepReport>>,
}

impl<'a> Suite<'a> {
    /// No step in itself: where something cannot be installed, the steps that need it say so.
    fn set_up(&self) -> Result<Vec<&'static Need>> {
        headline("setup", "the programs that the steps need");
        let start = Instant::now();
        let names: Vec<&str> = self.chosen.iter().map(|step| step.name).collect();
        let mut job = self.job("setup")?;
        let installer = packages::installer(!self.options.no_install);
        let missing = packages::set_up(&names, installer, &mut job);
        self.report(StepReport::new("setup", Ending::Passed, Tally::default(), start));
        Ok(missing)
    }

    /// Runs the chosen steps of one time, one after another.
    fn all(&self, when: When, in_background: bool) -> Result<()> {
        self.chosen
            .iter()
            .filter(|step| step.when == when)
            .try_for_each(|step| self.step(step, in_background))
    }

    fn step(&self, step: &Step, in_background: bool) -> Result<()> {
        let start = Instant::now();
        if self.cannot_begin(step) {
            let tally = step_tally(Tally::default(), &Ending::NotRun);
            self.report(StepReport::new(step.name, Ending::NotRun, tally, start));
            return Ok(());
        }
        let mut job = self.job(step.name)?;
        if in_background {
            job = job.in_background();
            println!("\n== {} begins in the background", step.name);
        } else {
            headline(step.name, step.what);
        }
        self.hand_over(step, &mut job);
        job.left_out = packages::left_out(step.name, &self.missing);
        let done = if job.left_out.is_some() { Ok(()) } else { (step.run)(&mut job) };
        let ending = match (done, job.left_out.take()) {
            (Err(error), _) => Ending::Failed(format!("{error:#}")),
            (Ok(()), Some(why)) => Ending::LeftOut(why),
            (Ok(()), None) => Ending::Passed,
        };
        if step.name == steps::BUILD {
            *self.built.lock().expect("no step panics") = mem::take(&mut job.tests);
        }
        let tally = step_tally(job.lines.tally(), &ending);
        job.note(&format!(
            "== {}: {} after {}",
            step.name,
            verdict(&ending),
            spoken(start.elapsed())
        ));
        if in_background {
            headline(step.name, step.what);
            job.show_kept();
        }
        let mut report = StepReport::new(step.name, ending, tally, start);
        report.skips = job.lines.skips;
        report.failures = job.lines.failures;
        self.report(report);
        Ok(())
    }

    /// Whether a step before has failed, so that this one is not to run or lacks what it needs.
    fn cannot_begin(&self, step: &Step) -> bool {
        let reports = self.reports.lock().expect("no step panics");
        let mut failed = reports.iter().filter(|report| report.failed());
        failed.any(|report| {
            let builds = report.name == steps::BUILD && step.builds != Builds::Nothing;
            builds || !self.options.keep_going
        })
    }

    /// Tells a step what to build, or what was built for it.
    fn hand_over(&self, step: &Step, job: &mut Job<'_>) {
        let releases = |step: &Step| self.options.release && steps::RELEASED.contains(&step.name);
        if step.name == steps::BUILD {
            job.wanted = steps::built_for(self.chosen, self.workspace);
            job.released = self.chosen.iter().any(|step| releases(step));
        } else {
            let built = self.built.lock().expect("no step panics");
            job.tests = built.iter().filter(|binary| step.has(binary)).cloned().collect();
            job.released = releases(step);
        }
    }

    fn sum_up(&self, reports: &[StepReport], all: Duration) {
        if let Some(failed) = reports.iter().find(|report| report.failed()) {
            println!("\n== once more, what {} said", failed.name);
            self.show_again(failed);
        }
        println!();
        let log_of = |name: &str| log_path(self.workspace, name).display().to_string();
        print!("{}", report::summary(reports, all, log_of));
    }

    /// What the failing tests said, or the end of the log where no test failed.
    fn show_again(&self, report: &StepReport) {
        if !report.failures.is_empty() {
            println!("{}", report.failures.join("\n"));
            return;
        }
        let text = fs::read(log_path(self.workspace, report.name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(TAIL)..].join("\n"));
    }

    fn job(&self, name: &str) -> Result<Job<'a>> {
        let limit = Duration::from_secs(60 * self.options.step_minutes);
        Job::start(self.workspace, name, limit, self.options.keep_going)
    }

    fn report(&self, report: StepReport) {
        self.reports.lock().expect("no step panics").push(report);
    }

    /// Takes all reports, in the order of the steps.
    fn reports(&self) -> Vec<StepReport> {
        let mut reports = mem::take(&mut *self.reports.lock().expect("no step panics"));
        // What is no step was before them.
        reports.sort_by_key(|report| steps::ALL.iter().position(|step| step.name == report.name));
        reports
    }
}

/// The steps that are asked for, and the one that builds what they need.
fn chosen(options: &Options) -> Vec<&'static Step> {
    let named = |names: &[String], step: &Step| names.iter().any(|name| name == step.name);
    let wanted = |step: &Step| {
        (options.only.is_empty() || named(&options.only, step)) && !named(&options.skip, step)
    };
    let needs_build = steps::ALL.iter().any(|step| wanted(step) && step.builds != Builds::Nothing);
    let is_chosen = |step: &&Step| wanted(step) || (step.name == steps::BUILD && needs_build);
    steps::ALL.iter().filter(is_chosen).collect()
}

/// The cases of a step: those its tests reported, else one for the step; a failure always counts.
fn step_tally(cases: Tally, ending: &Ending) -> Tally {
    match ending {
        Ending::Failed(_) if cases.failed == 0 => Tally { failed: 1, ..cases },
        Ending::LeftOut(_) | Ending::NotRun => Tally::SKIPPED,
        Ending::Passed if cases.total() == 0 => Tally::PASSED,
        _ => cases,
    }
}

fn verdict(ending: &Ending) -> String {
    match ending {
        Ending::Passed => "ok".to_owned(),
        Ending::Failed(why) => format!("FAILED: {why}"),
        Ending::LeftOut(why) => format!("left out: {why}"),
        Ending::NotRun => "not run".to_owned(),
    }
}

fn headline(name: &str, what: &str) {
    println!("\n== {name}: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: &[&str], skip: &[&str]) -> Options {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Options { only: owned(only), skip: owned(skip), ..Options::default() }
    }

    fn names(options: &Options) -> Vec<&'static str> {
        chosen(options).iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_run_in_their_order_whatever_order_they_are_named_in() {
        assert_eq!(names(&options(&["doc", "fmt"], &[])), ["fmt", "doc"]);
        assert_eq!(names(&options(&["test", "fmt"], &["test"])), ["fmt"]);
        assert_eq!(names(&options(&[], &[])).len(), steps::ALL.len());
    }

    #[test]
    fn what_a_step_needs_is_built_even_where_that_is_not_asked_for() {
        assert_eq!(names(&options(&["test"], &[])), ["build", "test"]);
        assert_eq!(names(&options(&["test"], &["build"])), ["build", "test"]);
        assert_eq!(names(&options(&["clippy"], &[])), ["clippy"]);
    }

    #[test]
    fn a_step_counts_its_cases_or_itself() {
        let cases = Tally { passed: 3, failed: 0, skipped: 1 };
        assert_eq!(step_tally(cases, &Ending::Passed), cases);
        assert_eq!(step_tally(Tally::default(), &Ending::Passed), Tally::PASSED);
        assert_eq!(step_tally(Tally::default(), &Ending::NotRun), Tally::SKIPPED);
    }

    #[test]
    fn a_failed_step_counts_a_failure_even_where_no_case_failed() {
        let cases = Tally { passed: 3, failed: 0, skipped: 0 };
        assert_eq!(step_tally(cases, &Ending::Failed(String::new())).failed, 1);
        let cases = Tally { passed: 3, failed: 2, skipped: 0 };
        assert_eq!(step_tally(cases, &Ending::Failed(String::new())), cases);
    }
}
