//! SECURITY.md names the tests that hold its promises, and docs/review.md those that hold what a review found:
//! they must exist, and each promise, finding and attack must have one.

use std::collections::BTreeSet;
use std::path::Path;

/// The rows of the table behind this heading name files and tests.
const HEADING: &str = "## Which test holds what";
const REVIEW: &str = "docs/review.md";

/// What stands in backquotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// A file of the repository.
fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The numbers in the first cell of a row: none in a heading.
fn numbers(row: &str) -> impl Iterator<Item = u32> {
    let first = row.strip_prefix("| ").and_then(|row| row.split(" | ").next());
    first.unwrap_or_default().split(", ").filter_map(|number| number.parse().ok())
}

#[test]
fn every_promise_has_a_test() {
    let page = read("SECURITY.md");
    let (promises, table) = page.split_once(HEADING).unwrap();
    let promised: Vec<u32> = promises.lines().flat_map(numbers).collect();
    assert_eq!(promised, (1..=promised.len() as u32).collect::<Vec<_>>(), "numbered in order");
    assert!(promised.len() >= 27, "{promised:?}");
    let tested: BTreeSet<u32> = table.lines().flat_map(numbers).collect();
    assert_eq!(tested, promised.into_iter().collect(), "those with tests, and the promises");
}

#[test]
fn every_promise_names_tests_that_exist() {
    assert_named_tests_exist(read("SECURITY.md").split_once(HEADING).unwrap().1);
}

/// A file and the tests in it stand in backquotes in each row of a table.
fn assert_named_tests_exist(table: &str) {
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let mut source = None;
        for word in quoted(row) {
            if word.ends_with(".rs") {
                source = Some((word, read(word)));
                continue;
            }
            let (file, text) = source.as_ref().expect("a file stands before its tests");
            let (before, _) = text
                .split_once(&format!("fn {word}("))
                .unwrap_or_else(|| panic!("{file} has no test {word}"));
            let attributes = before.rsplit("\n\n").next().unwrap();
            assert!(attributes.contains("#[test]"), "{word} in {file} is no test");
            named += 1;
        }
    }
    assert!(named > 0, "the table names no test");
}

/// What a review found, and whichever attacks there must be a test for.
const FINDINGS: [(char, u32); 3] = [('H', 7), ('M', 6), ('L', 7)];
const ATTACKS: [&str; 18] = [
    "spoofed source",
    "replay within and beyond the window",
    "reordered and truncated handshakes",
    "forged token",
    "expired and not-yet-valid token",
    "other world's token",
    "stolen token",
    "one token from two places",
    "delegated key beyond its ceiling",
    "downgrade",
    "amplification probes",
    "address hijack by rebind",
    "subscription bomb",
    "group-number scan",
    "use of a group key after being thrown out",
    "delays that a relay makes up",
    "flood of cookies brought back from one /24",
    "flood of bad tokens",
];
const ATTACKS_HEADING: &str = "## Attacks";

/// The first cells of a table's rows, but for its head and the line below.
fn firsts(table: &str) -> impl Iterator<Item = &str> {
    let rows = table.lines().filter_map(|row| row.strip_prefix("| ")?.split(" | ").next());
    rows.filter(|first| !["finding", "attack"].contains(first))
}

#[test]
fn every_finding_has_a_test() {
    let page = read(REVIEW);
    let (found, tests) = page.split_once(HEADING).unwrap();
    let (tests, attacks) = tests.split_once(ATTACKS_HEADING).unwrap();
    let (found, _) = found.split_once("## What the tests found besides").unwrap();
    let all =
        FINDINGS.iter().flat_map(|(rank, most)| (1..=*most).map(move |n| format!("{rank}{n}")));
    let all: BTreeSet<String> = all.collect();
    for table in [found, tests] {
        let there = firsts(table).flat_map(|cell| cell.split(", ")).map(str::to_owned);
        assert_eq!(there.collect::<BTreeSet<_>>(), all);
    }
    assert_eq!(firsts(attacks).collect::<Vec<_>>(), ATTACKS);
}

#[test]
fn every_finding_names_tests_that_exist() {
    assert_named_tests_exist(read(REVIEW).split_once(HEADING).unwrap().1);
}
