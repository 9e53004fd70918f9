//! What cargo says of this repository: where things are, and which test and fuzz targets there are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The repository, as `cargo metadata` describes it.
pub(crate) struct Workspace {
    /// The folder with the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    pub(crate) target: PathBuf,
    /// The integration tests of all packages, by name.
    pub(crate) tests: Vec<String>,
}

/// One binary of the package in `fuzz/`.
pub(crate) struct FuzzTarget {
    /// Its name, which is also its corpus's.
    pub(crate) name: String,
    /// The features it is built with.
    pub(crate) features: Vec<String>,
}

impl Workspace {
    /// Asks cargo about the repository that this program was built in.
    pub(crate) fn load() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent")?;
        let metadata = metadata(&root.join("Cargo.toml"))?;
        let target = metadata["target_directory"].as_str().context("no target_directory")?;
        let mut tests: Vec<String> = targets(&metadata, "test").map(name).collect();
        tests.sort();
        tests.dedup();
        Ok(Self { root: root.to_owned(), target: target.into(), tests })
    }

    /// The binary, where cargo leaves it: as it ships, or as it is built with the tests.
    pub(crate) fn canopy(&self, released: bool) -> PathBuf {
        self.target.join(if released { "release/canopy" } else { "debug/canopy" })
    }

    /// The targets that `cargo fuzz` can run.
    pub(crate) fn fuzz_targets(&self) -> Result<Vec<FuzzTarget>> {
        let mut metadata = metadata(&self.root.join("Cargo.toml"))?;
        let packages = metadata["packages"].as_array_mut().context("no packages")?;
        packages.retain(|package| package["name"] == "canopy-fuzz");
        let describe = |target: &Value| FuzzTarget {
            name: name(target),
            features: strings(&target["required-features"]),
        };
        Ok(targets(&metadata, "bin").map(describe).collect())
    }
}

/// A cargo command without what `cargo run` adds to this program's own environment: build scripts
/// that watch those variables would otherwise run again at every change between `cargo` and `cargo xtask`.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let ours = name.to_string_lossy();
        if ours.starts_with("CARGO_PKG_") || ours.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

fn metadata(manifest: &Path) -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo cannot read {}:\n{}",
        manifest.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn targets<'a>(metadata: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .flat_map(|package| package["targets"].as_array().into_iter().flatten())
        .filter(move |target| strings(&target["kind"]).iter().any(|known| known == kind))
}

fn name(target: &Value) -> String {
    target["name"].as_str().unwrap_or_default().to_owned()
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn targets_are_picked_by_kind_over_all_packages() {
        let metadata = json!({"packages": [
            {"targets": [{"kind": ["lib"], "name": "a"}, {"kind": ["test"], "name": "system"}]},
            {"targets": [{"kind": ["test"], "name": "oracle"}, {"kind": ["bin"], "name": "b"}]},
        ]});
        let found: Vec<_> = targets(&metadata, "test").map(name).collect();
        assert_eq!(found, ["system", "oracle"]);
    }
}
