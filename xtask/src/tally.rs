//! Counts of test cases, read from what the Rust test harness prints.

use std::fmt;
use std::ops::AddAssign;

/// How many test cases passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Cases that ran and held.
    pub(crate) passed: u64,
    /// Cases that ran and did not hold.
    pub(crate) failed: u64,
    /// Cases that were ignored, that skipped themselves, or whose step was left out.
    pub(crate) skipped: u64,
}

impl Tally {
    /// One case of each kind.
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    pub(crate) const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// All cases counted.
    pub(crate) fn total(self) -> u64 {
        self.passed + self.failed + self.skipped
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Reads the harness's lines one by one, as `cargo test … -- --show-output` prints them.
#[derive(Default)]
pub(crate) struct TestLines {
    counted: Tally,
    /// Why tests skipped themselves, one entry a test.
    pub(crate) skips: Vec<String>,
    /// What the harness said of the tests that failed.
    pub(crate) failures: Vec<String>,
    part: Part,
}

/// Where in a test binary's output a line stands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Progress,
    Successes,
    Failures,
}

/// More than this of failing tests' output helps nobody; the log has it all.
const MOST_FAILURES: usize = 300;

impl TestLines {
    /// Takes in one line; says whether it is worth showing. The output of passing tests is not,
    /// but for the lines with which they say that they skipped themselves.
    pub(crate) fn read(&mut self, line: &str) -> bool {
        if let Some(reason) = skip_reason(line) {
            self.skips.push(reason.to_owned());
            return true;
        }
        if let Some(result) = parse_result(line) {
            self.counted += result;
            self.part = Part::Progress;
        }
        match line {
            "successes:" => self.part = Part::Successes,
            "failures:" => self.part = Part::Failures,
            // A binary that crashed has no result line to end its last part.
            _ if line.starts_with("running ") => self.part = Part::Progress,
            _ => {}
        }
        if self.part == Part::Failures && self.failures.len() < MOST_FAILURES {
            self.failures.push(line.to_owned());
        }
        self.part != Part::Successes
    }

    /// What was counted. A test that skipped itself passed in the harness's eyes, not in ours.
    pub(crate) fn tally(&self) -> Tally {
        let skips = self.skips.len() as u64;
        let mut tally = self.counted;
        tally.passed = tally.passed.saturating_sub(skips);
        tally.skipped += skips;
        tally
    }
}

/// Reads `test result: ok. 3 passed; 1 failed; 2 ignored; …`.
fn parse_result(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in counts.split("; ") {
        let Some((number, word)) = part.split_once(' ') else { continue };
        match word {
            "passed" => tally.passed = number.parse().ok()?,
            "failed" => tally.failed = number.parse().ok()?,
            "ignored" => tally.skipped = number.parse().ok()?,
            _ => {}
        }
    }
    Some(tally)
}

/// Reads `skipped: REASON`, also behind the `test NAME ... ` that an uncaptured test prints first.
fn skip_reason(line: &str) -> Option<&str> {
    let said = match line.strip_prefix("test ") {
        Some(rest) => rest.split_once(" ... ")?.1,
        None => line.trim_start(),
    };
    said.strip_prefix("skipped:").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (TestLines, Vec<&str>) {
        let mut lines = TestLines::default();
        let shown = text.lines().filter(|line| lines.read(line)).collect();
        (lines, shown)
    }

    #[test]
    fn result_lines_are_summed_over_the_runs() {
        let (lines, _) = read(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.03s\n\
             test a ... ok\n\
             test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s",
        );
        assert_eq!(lines.tally(), Tally { passed: 15, failed: 2, skipped: 1 });
    }

    #[test]
    fn other_lines_count_nothing() {
        let (lines, shown) =
            read("running 3 tests\ntest result\ntest result: ok\n3 passed; 1 failed");
        assert_eq!(lines.tally(), Tally::default());
        assert_eq!(shown.len(), 4);
    }

    #[test]
    fn a_test_that_skipped_itself_has_not_passed() {
        let (lines, _) = read(
            "test netns ... skipped: needs root\nok\n\
             successes:\n---- uring stdout ----\nskipped: no io_uring\n\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured",
        );
        assert_eq!(lines.tally(), Tally { passed: 3, failed: 0, skipped: 2 });
        assert_eq!(lines.skips, ["needs root", "no io_uring"]);
    }

    #[test]
    fn the_output_of_passing_tests_is_hidden_and_that_of_failing_ones_shown() {
        let (lines, shown) = read(
            "test a ... ok\nsuccesses:\n---- a stdout ----\nchatter\nskipped: no tshark\n\
             failures:\n---- b stdout ----\nwhy\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored",
        );
        let expected =
            ["test a ... ok", "skipped: no tshark", "failures:", "---- b stdout ----", "why"];
        assert_eq!(shown[..5], expected);
        assert_eq!(shown.len(), 6);
        assert_eq!(lines.failures, &shown[2..5]);
    }

    #[test]
    fn the_closing_line_has_the_form_that_machines_read() {
        let tally = Tally { passed: 7, failed: 0, skipped: 2 };
        assert_eq!(tally.to_string(), "7 passed, 0 failed, 2 skipped");
    }
}
