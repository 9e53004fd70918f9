//! Benches with processes of the real binary: `bench router`, `bench chain`, `bench subscribe` over a link, and
//! `bench admit`.

mod support;

use canopy_engines::Namespace;
use serde_json::Value;
use std::process::{Command, Output};
use support::{round_trace, run};

/// The lines of a bench; `None` where this machine cannot run it, although nothing is wrong with it.
fn lines(output: &Output) -> Option<Vec<Value>> {
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("two processors") {
        println!("skipped: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect())
}

/// Whether this machine lets a bench have two hosts, and has what it sets them up with.
fn can_have_hosts() -> bool {
    let hosts = || {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        Namespace::join(&near, &far)?;
        Command::new("ethtool").arg("--version").output()
    };
    hosts().inspect_err(|error| println!("skipped between hosts: {error}")).is_ok()
}

#[test]
fn every_copy_that_passes_a_router_is_counted() {
    let can_have_hosts = can_have_hosts();
    for flags in [&[][..], &["--loopback"]] {
        let output = run(&[&["bench", "router", "--quick", "--json"], flags].concat());
        let Some(lines) = lines(&output) else { return };
        let (left_out, rows): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.get("left_out").is_some());
        let place = if flags.is_empty() && can_have_hosts { "netns" } else { "loopback" };
        // It goes over loopback only where it is told to, or has no choice.
        let is_left_out = flags.is_empty() && !can_have_hosts;
        assert_eq!(left_out.len(), usize::from(is_left_out), "{left_out:?}");
        assert_eq!(rows.len(), 8, "{rows:?}");
        for row in &rows {
            for key in ["ns_per_copy", "copies_per_s", "ratio", "ratio_sealed"] {
                assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
            }
            assert!(row["copies"].as_u64() > Some(0), "{row}");
            assert_eq!((&row["keys"], &row["doubled"]), (&"link".into(), &0.into()), "{row}");
            assert_eq!(row["place"], place, "{row}");
            assert_eq!((&row["routes"], &row["lost"]), (&1_000.into(), &0.into()), "{row}");
            // A load that got no time for a quarter of a second has lost a link in a round that does
            // not count, where updates may have found no way.
            if row["links_lost"] == 0 {
                assert_eq!(row["drops"], serde_json::json!({}), "{row}");
            }
        }
    }
}

#[test]
fn no_change_of_a_subscription_is_lost_on_a_long_link() {
    let bench = ["bench", "subscribe", "--path", "link", "--link-rate", "20000", "--json"];
    let Some(rows) = lines(&run(&bench)) else { return };
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!((&row["path"], &row["round_trip_ms"]), (&"link".into(), &100.into()), "{row}");
        assert!(row["changes_per_second"].as_f64() > Some(0.0), "{row}");
        assert!(row["offered"].as_u64() > Some(0), "{row}");
        assert_eq!((&row["missing"], &row["unexpected"]), (&0.into(), &0.into()), "{row}");
    }
}

#[test]
fn a_chain_is_measured_against_a_single_relay() {
    let crowd = ["--n", "12", "--rounds", "1", "--seconds", "0.3", "--gro", "off", "--json"];
    let output = run(&[&["bench", "chain", "--mode", "periodic"], &crowd[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if ["needs two processors", "5 % steal"].iter().any(|why| said.contains(why)) {
        return println!("skipped: {said}");
    }
    let rows = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let networks = rows.iter().map(|row| format!("{} {}", row["relays"], row["core"]));
    let expected = ["1 \"one\"", "3 \"one\"", "3 \"all\""];
    assert_eq!(networks.collect::<Vec<_>>(), expected, "{said}");
    for row in &rows {
        assert!(row["deliveries"].as_u64() > Some(0) && row["ratio"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["loss"], 0.0, "{row}");
    }
    // A single relay is what the others are compared with.
    assert_eq!(rows[0]["ratio"], 1.0);

    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("round.csv");
    std::fs::write(&trace, round_trace(12, 1)).unwrap();
    let trace = trace.to_str().unwrap();
    let output = run(&["bench", "chain", "--trace", trace, "--core", "one", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let rows = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && rows.lines().count() == 2, "{rows}\n{said}");
}

#[test]
fn a_controller_that_is_killed_after_a_bench_has_lost_nobody_and_reserves_nothing_for_who_has_left()
{
    let crowd = ["--endpoints", "200", "--worlds", "20", "--together", "32"];
    let output = run(&[&["bench", "admit", "--json"], &crowd[..]].concat());
    let Some(rows) = lines(&output) else { return };
    let at: Vec<_> = rows.iter().map(|row| row["at"].as_str().unwrap()).collect();
    assert_eq!(at, ["core", "daemon"]);
    for row in &rows {
        for key in ["joins_per_second", "joins_per_core_second", "memory_bytes", "started_again_ms"]
        {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
        assert_eq!((&row["endpoints"], &row["lost"]), (&200.into(), &0.into()), "{row}");
    }
    for key in ["renewals_per_core_second", "leaves_per_core_second", "join_p50_ms", "join_p99_ms"]
    {
        assert!(rows[1][key].as_f64() > Some(0.0), "{key}: {}", rows[1]);
    }
}
