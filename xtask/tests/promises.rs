//! SECURITY.md names the tests that hold its promises: they must exist, and each promise must have one.

use std::collections::BTreeSet;
use std::path::Path;

/// The rows of the table behind this heading name files and tests.
const HEADING: &str = "## Which test holds what";

/// What stands in backquotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn page() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    std::fs::read_to_string(root.join("SECURITY.md")).unwrap()
}

/// The numbers in the first cell of a row: none in a heading.
fn numbers(row: &str) -> impl Iterator<Item = u32> {
    let first = row.strip_prefix("| ").and_then(|row| row.split(" | ").next());
    first.unwrap_or_default().split(", ").filter_map(|number| number.parse().ok())
}

#[test]
fn every_promise_has_a_test() {
    let page = page();
    let (promises, table) = page.split_once(HEADING).unwrap();
    let promised: Vec<u32> = promises.lines().flat_map(numbers).collect();
    assert_eq!(promised, (1..=promised.len() as u32).collect::<Vec<_>>(), "numbered in order");
    assert!(promised.len() >= 27, "{promised:?}");
    let tested: BTreeSet<u32> = table.lines().flat_map(numbers).collect();
    assert_eq!(tested, promised.into_iter().collect(), "those with tests, and the promises");
}

#[test]
fn every_promise_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = page();
    let (_, table) = page.split_once(HEADING).unwrap();
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let mut source = None;
        for word in quoted(row) {
            if word.ends_with(".rs") {
                source = Some((word, std::fs::read_to_string(root.join(word)).unwrap()));
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
