//! Every committed input of every target, without libFuzzer; and that no target lacks a part.

use canopy_fuzz::{TARGETS, seeds};
use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// A corpus stays small enough to be read: what fuzzing finds on the way is not committed.
const MAX_FILES: usize = 40;
const MAX_BYTES: u64 = 1500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What is in a folder of this crate, in order; a folder that does not exist is empty.
fn list(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn stems(folder: &str) -> BTreeSet<String> {
    list(folder).iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_committed_input_replays() {
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        for path in list(&format!("corpus/{name}")) {
            let bytes = fs::read(&path).unwrap();
            if catch_unwind(|| target(&bytes)).is_err() {
                failed.push(format!("{name}: {}", path.display()));
            }
        }
    }
    assert!(failed.is_empty(), "inputs that break a promise:\n{}", failed.join("\n"));
}

#[test]
fn every_target_has_a_binary_and_a_corpus_and_the_reverse() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "two targets have one name");
    assert_eq!(stems("corpus"), names, "folders in corpus/ against TARGETS");
    assert_eq!(stems("fuzz_targets"), names, "files in fuzz_targets/ against TARGETS");
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for name in &names {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "Cargo.toml has no [[bin]] with {path}");
    }
}

#[test]
fn every_corpus_has_files_and_is_small() {
    for (name, _) in TARGETS {
        let files = list(&format!("corpus/{name}"));
        assert!(!files.is_empty(), "corpus/{name} has no file");
        assert!(files.len() <= MAX_FILES, "corpus/{name} has {} files", files.len());
        for path in files {
            let len = fs::metadata(&path).unwrap().len();
            assert!(len <= MAX_BYTES, "{} has {len} bytes", path.display());
        }
    }
}

#[test]
fn seeds_are_what_the_encoders_write_today() {
    for seed in seeds() {
        let path = root().join("corpus").join(seed.target).join(&seed.name);
        let found = fs::read(&path).ok();
        let path = path.display();
        assert!(
            found == Some(seed.bytes),
            "{path} is out of date: cargo run --example write_seeds"
        );
    }
}
