//! Comments begin as one would say it to a colleague: "How long a member may be silent", and neither "So long
//! may a member be silent" nor "Of a member's silence, so much".

use std::fs;
use std::path::{Path, PathBuf};

/// How a sentence begins that has its words in an order of its own.
const INVERTED: [&str; 6] = ["So long ", "So much ", "So many ", "So often ", "So far ", "So few "];

/// The text of a line that is a comment and nothing else.
fn text(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    Some(comment.trim_start_matches(['/', '!']).trim_start())
}

/// Whether a comment's text begins in a way that nobody speaks. "Of" is looked for at the beginning of a
/// comment only: further down it may follow a line break inside a sentence.
fn is_inverted(text: &str, is_first: bool) -> bool {
    let follows = |start: &&str| text.strip_prefix(*start);
    let so = INVERTED.iter().find_map(follows).is_some_and(|rest| !rest.starts_with("as "));
    so || is_first && text.starts_with("Of ") && !text.starts_with("Of course")
}

/// The numbers of the lines that begin so.
fn inverted(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut is_first = true;
    for (number, line) in (1..).zip(source.lines()) {
        let text = text(line);
        if text.is_some_and(|text| is_inverted(text, is_first)) {
            found.push(number);
        }
        is_first = text.is_none();
    }
    found
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn comments_begin_as_one_speaks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    ["crates", "fuzz", "xtask"].iter().for_each(|folder| sources(&root.join(folder), &mut files));
    let mut found = Vec::new();
    for file in files {
        let lines = inverted(&fs::read_to_string(&file).unwrap()).into_iter();
        let name = file.strip_prefix(root).unwrap().display().to_string();
        found.extend(lines.map(|line| format!("{name}:{line}")));
    }
    assert!(
        found.is_empty(),
        "these comments begin in an order that nobody speaks; write \"How long …\", \"Which share of …\", \
         or a sentence with its subject first:\n{}",
        found.join("\n")
    );
}

#[test]
fn inverted_beginnings_are_found_and_ordinary_ones_are_not() {
    let odd = [
        "/// So long may it wait.",
        "    // So many are tried.",
        "//! Of each flow the newest waits.",
    ];
    for line in odd {
        assert_eq!(inverted(line), [1], "{line}");
    }
    let fine = "/// So long as it waits, nothing is lost.\n/// Of this, a half.\nlet so = \"So many \";\n\
                // So it waits.\n//\n// Of course it does.";
    assert_eq!(inverted(fine), [0; 0]);
}
