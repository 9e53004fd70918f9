//! `canopy sim scale`, on worlds that are small enough to be run every time.

use std::process::Command;

#[test]
fn small_worlds_are_measured_each_in_a_process_of_its_own_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_canopy"))
        .args([
            "sim",
            "scale",
            "--relays",
            "3,10",
            "--endpoints-per-relay",
            "20",
            "--json",
            "--out",
        ])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Two sizes with two kinds of core, and how each kind grows.
    assert_eq!(lines.len(), 4 + 2);
    for world in &lines[..4] {
        assert!(world["join_cpu_us"].as_f64().unwrap() > 0.0, "{world}");
        assert!(world["memory_kib"].as_f64().unwrap() > 0.0, "{world}");
    }
    assert!(lines[4..].iter().all(|growth| growth["most_per_root"].as_f64().unwrap() <= 5.0));
    let table = std::fs::read_to_string(folder.path().join("scale.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 4);
    for picture in ["routes", "join", "contact", "subscription", "memory"] {
        let picture = std::fs::read_to_string(folder.path().join(picture).with_extension("svg"));
        assert!(picture.unwrap().contains("core: subtree"));
    }
}

#[test]
fn a_world_needs_a_seed_and_worlds_of_growing_size_do_not() {
    let output = Command::new(env!("CARGO_BIN_EXE_canopy")).arg("sim").output().unwrap();
    let problem = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && problem.contains("--seed <N>"), "{problem}");
}

#[test]
fn what_a_world_cannot_have_is_refused() {
    for (flags, needs) in [
        ("--floods true --participants 500", "--floods true needs"),
        ("--relays 1 --shaping true", "--relays 2"),
        ("--relays 2 --shaping true --seconds 27", "--seconds 28"),
    ] {
        let args = ["sim", "--seed", "1"].into_iter().chain(flags.split(' '));
        let output = Command::new(env!("CARGO_BIN_EXE_canopy")).args(args).output().unwrap();
        let problem = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && problem.contains(needs), "{problem}");
    }
}
