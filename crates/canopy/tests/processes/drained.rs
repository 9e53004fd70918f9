//! Relays that are drained under a crowd.

use crate::control_plane::Cluster;
use crate::support::{round_trace, run};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a relay has so many members.
fn until_members(cluster: &Cluster, relay: &str, is_so: impl Fn(u64) -> bool) {
    let began = Instant::now();
    loop {
        let told = cluster.ask("GET", "/v1/relays", &Value::Null);
        let relays = told["relays"].as_array().unwrap();
        let of = relays.iter().find(|one| one["name"] == relay).unwrap();
        let members = of["members"].as_u64().unwrap();
        if is_so(members) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "never: {told}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One relay after the other drains while walkers walk. They go to the others, and nobody notices.
#[test]
fn walkers_move_off_relays_that_drain_and_nobody_misses_anything() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, round_trace(12, 40)).unwrap();
    let trace = trace.to_str().unwrap().to_owned();
    // Walkers hear of it when they renew, which is three times as often.
    let cluster = Cluster::start_in(folder, &["--lease", "10"]);
    let _relays = ["r1", "r2", "r3"].map(|name| cluster.relay(name));
    cluster.until_relays_are(&["up", "up", "up"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    let to = cluster.join_flags();
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let walked = std::thread::scope(|scope| {
        let walk = ["bots", "--json", "--trace", &trace];
        let walking = scope.spawn(move || run(&[&walk[..], &to].concat()));
        for relay in ["r1", "r2"] {
            until_members(&cluster, relay, |members| members > 0);
            cluster.ask("POST", &format!("/v1/relays/{relay}/drain"), &Value::Null);
            until_members(&cluster, relay, |members| members == 0);
            cluster.ask("POST", &format!("/v1/relays/{relay}/undrain"), &Value::Null);
        }
        walking.join().unwrap()
    });
    let report: Value = serde_json::from_slice(&walked.stdout).unwrap_or_else(|_| {
        panic!("no report: {}", String::from_utf8_lossy(&walked.stderr));
    });
    assert!(walked.status.success(), "not flawless: {report}");
    assert!(report["moves"].as_u64() > Some(1), "{report}");
    assert_eq!((&report["reconnects"], &report["outages"]), (&json!(0), &json!([])), "{report}");
}
