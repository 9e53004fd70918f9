//! The summary at the end of a run of the test command.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::tally::Tally;

/// More characters than this of what a failing test said are left to its log.
const MOST_SAID: usize = 300;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All of it held.
    Passed,
    /// It did not, for this reason.
    Failed(String),
    /// It could not run here, for this reason.
    LeftOut(String),
    /// A step before it failed.
    NotRun,
}

/// What is known of a step at the end.
pub(crate) struct StepReport {
    /// The step's name.
    pub(crate) name: &'static str,
    /// How it ended.
    pub(crate) ending: Ending,
    /// How long it took.
    pub(crate) time: Duration,
    /// Its test cases, or one for the step itself where it has none.
    pub(crate) tally: Tally,
    /// Why tests of it skipped themselves.
    pub(crate) skips: Vec<String>,
    /// What was said of the tests that failed.
    pub(crate) failures: Vec<String>,
}

impl StepReport {
    /// A step that ends now.
    pub(crate) fn new(name: &'static str, ending: Ending, tally: Tally, start: Instant) -> Self {
        let time = start.elapsed();
        Self { name, ending, time, tally, skips: Vec::new(), failures: Vec::new() }
    }

    /// Whether it failed.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.ending, Ending::Failed(_))
    }
}

/// All cases of all steps.
pub(crate) fn total(reports: &[StepReport]) -> Tally {
    let mut total = Tally::default();
    for report in reports {
        total += report.tally;
    }
    total
}

/// The table, with the time that `all` of it took, and below it what was left out, what skipped itself and what failed.
pub(crate) fn summary(
    reports: &[StepReport],
    all: Duration,
    log_of: impl Fn(&str) -> String,
) -> String {
    let mut text = table(reports, all);
    for report in reports {
        if let Ending::LeftOut(why) = &report.ending {
            let _ = writeln!(text, "left out: {} ({why})", report.name);
        }
        for (reason, times) in counted(&report.skips) {
            let _ = writeln!(text, "skipped in {}: {times} × {reason}", report.name);
        }
    }
    for report in reports {
        if let Ending::Failed(why) = &report.ending {
            let _ = writeln!(text, "FAILED: {}: {why}", report.name);
            for said in panics(&report.failures) {
                let _ = writeln!(text, "  {said}");
            }
            let _ = writeln!(text, "  its output: {}", log_of(report.name));
            let _ = writeln!(text, "  run it again: cargo xtask test --only {}", report.name);
        }
    }
    text
}

/// One line for each panic of a test that failed: the test's name, where it was, and the first line of what it said.
fn panics(failures: &[String]) -> Vec<String> {
    let mut panics = Vec::new();
    let mut test = "";
    for (at, line) in failures.iter().enumerate() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.split_once(" stdout")) {
            test = name.0;
        } else if let Some((_, place)) = line.split_once("panicked at ") {
            let said = failures.get(at + 1).map_or("", |said| said.as_str());
            let said: String = said.chars().take(MOST_SAID).collect();
            panics.push(format!("{test}: {place} {said}"));
        }
    }
    panics
}

/// A time as people say it.
pub(crate) fn spoken(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

fn table(reports: &[StepReport], all: Duration) -> String {
    let mut text = format!(
        "{:<10} {:<9} {:>12} {:>7} {:>7} {:>8}\n",
        "step", "result", "time", "passed", "failed", "skipped"
    );
    for StepReport { name, ending, time, tally, .. } in reports {
        let result = match ending {
            Ending::Passed => "ok",
            Ending::Failed(_) => "FAILED",
            Ending::LeftOut(_) => "left out",
            Ending::NotRun => "not run",
        };
        let Tally { passed, failed, skipped } = tally;
        let time = spoken(*time);
        let _ = writeln!(
            text,
            "{name:<10} {result:<9} {time:>12} {passed:>7} {failed:>7} {skipped:>8}"
        );
    }
    let _ = writeln!(text, "{:<10} {:<9} {:>12}", "all", "", spoken(all));
    text
}

fn counted(reasons: &[String]) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for reason in reasons {
        *counted.entry(reason.as_str()).or_default() += 1;
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &'static str, ending: Ending, tally: Tally) -> StepReport {
        let skips = vec!["needs root".to_owned(); 2];
        StepReport { skips, ..StepReport::new(name, ending, tally, Instant::now()) }
    }

    #[test]
    fn the_summary_says_what_was_left_out_what_skipped_and_what_failed() {
        let mut reports = [
            report("fmt", Ending::Passed, Tally::PASSED),
            report("browser", Ending::LeftOut("chromium missing".into()), Tally::SKIPPED),
            report("test", Ending::Failed("`cargo test` ended".into()), Tally::FAILED),
        ];
        let failures = "---- a::b stdout ----\n\nthread 'a::b' (7) panicked at tests/a.rs:3:5:\nnever\nnote: run";
        reports[2].failures = failures.lines().map(str::to_owned).collect();
        let text = summary(&reports, Duration::from_secs(61), |name| format!("{name}.log"));
        assert!(text.contains("1 min 01 s\n"), "{text}");
        assert!(text.contains("left out: browser (chromium missing)\n"), "{text}");
        assert!(text.contains("skipped in fmt: 2 × needs root\n"), "{text}");
        assert!(
            text.contains(
                "FAILED: test: `cargo test` ended\n  a::b: tests/a.rs:3:5: never\n  its output: test.log\n"
            ),
            "{text}"
        );
        assert_eq!(total(&reports), Tally { passed: 1, failed: 1, skipped: 1 });
    }

    #[test]
    fn times_are_short_to_read() {
        assert_eq!(spoken(Duration::from_millis(1540)), "1.5 s");
        assert_eq!(spoken(Duration::from_secs(245)), "4 min 05 s");
    }
}
