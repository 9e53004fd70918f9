//! SECURITY.md names the tests that hold its promises: they must exist.

use std::path::Path;

/// The rows of the table behind this heading name files and tests.
const HEADING: &str = "## Which test holds what";

/// What stands in backquotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn every_promise_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
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
