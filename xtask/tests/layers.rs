//! Which crates may depend on which, as cargo resolves it, and that ARCHITECTURE.md says the same.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What a participant's program must not be built from: it installs nothing and copies nothing.
const OF_ENGINES: [&str; 6] =
    ["canopy-engines", "aya", "aya-obj", "io-uring", "netlink-sys", "netlink-packet-route"];

/// Crates of ours by name, without `canopy-`, and which others of ours each of them needs.
type Needs = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// What cargo answers.
fn cargo(args: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args).current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The packages that `package` is built from, with these flags.
fn built_from(package: &str, flags: &[&str]) -> Vec<String> {
    let tree = ["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none"];
    let tree = cargo(&[&tree, flags].concat());
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_sdk_is_built_without_the_kernel_engines() {
    let found = built_from("canopy-client", &[]);
    assert!(found.iter().any(|package| package == "canopy-net"), "{found:?}");
    for package in OF_ENGINES {
        assert!(!found.iter().any(|other| other == package), "canopy-client needs {package}");
    }
    // The same look finds them where they are.
    let daemon = built_from("canopy-node", &[]);
    assert!(OF_ENGINES.iter().all(|package| daemon.iter().any(|other| other == package)));
}

#[test]
fn the_kernel_engines_can_be_left_out_of_everything() {
    for package in ["canopy-engines", "canopy-node", "canopy-bench", "canopy"] {
        let has = |flags| {
            let found = built_from(package, flags);
            // The engines' own crate stays.
            OF_ENGINES[1..].iter().filter(|one| found.iter().any(|other| other == *one)).count()
        };
        assert_eq!(has(&[]), OF_ENGINES.len() - 1, "{package}: it is built with them");
        assert_eq!(has(&["--no-default-features"]), 0, "{package}: they cannot be left out");
    }
}

/// A crate's name as ARCHITECTURE.md has it.
fn short(package: &str) -> String {
    package.strip_prefix("canopy-").unwrap_or(package).to_owned()
}

/// What the manifests say; what tests need is left out, and so are xtask's crates.
fn needs_by_cargo() -> Needs {
    let metadata = cargo(&["metadata", "--offline", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let needs = packages.iter().map(|package| {
        let needed = package["dependencies"].as_array().unwrap().iter();
        // Other people's have no path.
        let ours = needed.filter(|one| one["kind"].is_null() && one["path"].is_string());
        let ours = ours.map(|one| short(one["name"].as_str().unwrap())).collect();
        (short(package["name"].as_str().unwrap()), ours)
    });
    needs.filter(|(name, _)| name != "xtask").collect()
}

/// The words between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What the table "Dependencies point one way" of ARCHITECTURE.md says; `all` are our crates.
fn needs_by_the_table(text: &str, all: &BTreeSet<String>) -> Needs {
    let (_, text) = text.split_once("\nDependencies point one way").expect("it has the table");
    let rows = text.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let mut needs = Needs::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [crates, needed] = cells[..] else { panic!("no row of two: {row}") };
        let named: BTreeSet<_> = quoted(needed).into_iter().collect();
        for name in quoted(crates) {
            let needed = match needed.starts_with("all but ") {
                true => all
                    .iter()
                    .filter(|one| !named.contains(*one) && **one != name)
                    .cloned()
                    .collect(),
                false => named.clone(),
            };
            assert!(needs.insert(name.clone(), needed).is_none(), "{name} has two rows");
        }
    }
    needs
}

#[test]
fn the_table_of_dependencies_is_what_cargo_says() {
    let by_cargo = needs_by_cargo();
    // What the binary is made of: nobody needs fuzz.
    let all = by_cargo.keys().filter(|name| *name != "fuzz").cloned().collect();
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let by_the_table = needs_by_the_table(&text, &all);
    let names = |needs: &Needs| needs.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&by_the_table), names(&by_cargo), "the table names the crates");
    for (name, needed) in &by_cargo {
        assert_eq!(&by_the_table[name], needed, "what `{name}` needs, table and cargo");
    }
}

#[test]
fn the_code_map_names_every_crate() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for name in needs_by_cargo().keys().filter(|name| *name != "fuzz") {
        assert!(text.contains(&format!("\n| `crates/{name}` |")), "crates/{name} has no row");
    }
}
