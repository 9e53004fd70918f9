//! Which crates may depend on which, as cargo resolves it.

use std::env;
use std::path::Path;
use std::process::Command;

/// What a participant's program must not be built from: it installs nothing and copies nothing.
const OF_ENGINES: [&str; 6] =
    ["canopy-engines", "aya", "aya-obj", "io-uring", "netlink-sys", "netlink-packet-route"];

/// The packages that `package` is built from.
fn built_from(package: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = ["tree", "--offline", "-p", package, "-e", "normal", "--prefix", "none"];
    let output = Command::new(cargo).args(tree).current_dir(root).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree -p {package}: {said}");
    let tree = String::from_utf8(output.stdout).unwrap();
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_sdk_is_built_without_the_kernel_engines() {
    let found = built_from("canopy-client");
    assert!(found.iter().any(|package| package == "canopy-net"), "{found:?}");
    for package in OF_ENGINES {
        assert!(!found.iter().any(|other| other == package), "canopy-client needs {package}");
    }
    // The same look finds them where they are.
    let daemon = built_from("canopy-node");
    assert!(OF_ENGINES.iter().all(|package| daemon.iter().any(|other| other == package)));
}
