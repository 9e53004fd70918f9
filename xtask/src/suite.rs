//! `cargo xtask test`: sets up, runs the chosen steps one after another, sums up.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::job::{Job, log_path};
use crate::packages::{self, Need};
use crate::report::{self, Ending, StepReport, spoken};
use crate::steps::{self, Step};
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
    let chosen = chosen(options);
    ensure!(!chosen.is_empty(), "no step is left to run; `cargo xtask test --list` names them");
    let workspace = Workspace::load()?;
    let releases =
        options.release && chosen.iter().any(|step| steps::RELEASED.contains(&step.name));
    let mut suite = Suite { workspace: &workspace, options, releases, reports: Vec::new() };
    let missing = suite.set_up(&chosen)?;
    for step in &chosen {
        suite.step(step, &missing)?;
    }
    suite.sum_up();
    Ok(report::total(&suite.reports))
}

struct Suite<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    /// Whether a step is to start the released binary.
    releases: bool,
    reports: Vec<StepReport>,
}

impl<'a> Suite<'a> {
    /// No step in itself: where something cannot be installed, the steps that need it say so.
    fn set_up(&mut self, chosen: &[&Step]) -> Result<Vec<&'static Need>> {
        headline("setup", "the programs that the steps need");
        let start = Instant::now();
        let names: Vec<&str> = chosen.iter().map(|step| step.name).collect();
        let mut job = self.job("setup")?;
        let installer = packages::installer(!self.options.no_install);
        let missing = packages::set_up(&names, installer, &mut job);
        self.reports.push(StepReport::new("setup", Ending::Passed, Tally::default(), start));
        Ok(missing)
    }

    fn step(&mut self, step: &Step, missing: &[&Need]) -> Result<()> {
        let start = Instant::now();
        if self.failed() && !self.options.keep_going {
            let tally = step_tally(Tally::default(), &Ending::NotRun);
            self.reports.push(StepReport::new(step.name, Ending::NotRun, tally, start));
            return Ok(());
        }
        headline(step.name, step.what);
        let mut job = self.job(step.name)?;
        job.releases = self.releases;
        job.left_out = packages::left_out(step.name, missing);
        let done = if job.left_out.is_some() { Ok(()) } else { (step.run)(&mut job) };
        let ending = match (done, job.left_out.take()) {
            (Err(error), _) => Ending::Failed(format!("{error:#}")),
            (Ok(()), Some(why)) => Ending::LeftOut(why),
            (Ok(()), None) => Ending::Passed,
        };
        let tally = step_tally(job.lines.tally(), &ending);
        job.note(&format!(
            "== {}: {} after {}",
            step.name,
            verdict(&ending),
            spoken(start.elapsed())
        ));
        let mut report = StepReport::new(step.name, ending, tally, start);
        report.skips = job.lines.skips;
        report.failures = job.lines.failures;
        self.reports.push(report);
        Ok(())
    }

    fn sum_up(&self) {
        // Without --keep-going it stands right above.
        if let Some(failed) = self.reports.iter().find(|report| report.failed())
            && self.options.keep_going
        {
            println!("\n== once more, what {} said", failed.name);
            self.show_again(failed);
        }
        println!();
        let log_of = |name: &str| log_path(self.workspace, name).display().to_string();
        print!("{}", report::summary(&self.reports, log_of));
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

    fn failed(&self) -> bool {
        self.reports.iter().any(StepReport::failed)
    }
}

fn chosen(options: &Options) -> Vec<&'static Step> {
    let named = |names: &[String], step: &Step| names.iter().any(|name| name == step.name);
    let wanted = |step: &&Step| options.only.is_empty() || named(&options.only, step);
    steps::ALL.iter().filter(wanted).filter(|step| !named(&options.skip, step)).collect()
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
        assert_eq!(names(&options(&["test", "fmt"], &[])), ["fmt", "test"]);
        assert_eq!(names(&options(&["test", "fmt"], &["test"])), ["fmt"]);
        assert_eq!(names(&options(&[], &[])).len(), steps::ALL.len());
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
