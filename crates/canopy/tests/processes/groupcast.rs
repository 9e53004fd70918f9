//! `canopy bench groupcast` with the real binary: it needs root, for its network namespaces.

use crate::support::run;
use canopy_engines::{Engine, EngineChoice, EngineName};
use canopy_net::{Socket, SocketOptions};
use serde_json::Value;
use std::process::{Command, Output};

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

/// Why this machine cannot run the bench, or not all of it, although nothing is wrong with it.
fn cannot_run(output: &Output) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let refuses = said.contains("it needs root") || said.contains("two processors");
    if !output.status.success() && refuses {
        return Some(said.trim().to_owned());
    }
    let ethtool = Command::new("ethtool").arg("--version").output();
    ethtool.is_err().then(|| "ethtool cannot be started; install ethtool".to_owned())
}

fn uring_works() -> bool {
    let any = "127.0.0.1:0".parse().unwrap();
    let socket = Socket::bind(any, &SocketOptions::default()).unwrap();
    Engine::open(EngineChoice::Named(EngineName::Uring), &socket).is_ok()
}

#[test]
fn every_copy_of_the_quick_bench_is_counted() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().to_str().unwrap();
    let measure = || run(&["bench", "groupcast", "--quick", "--json", "--out", folder]);
    let mut output = measure();
    if let Some(why) = cannot_run(&output) {
        return println!("skipped: {why}");
    }
    // Beside other tests a device's queue may be full before anything is taken from it: what is lost so is measured again.
    let loses = |line: &Value| line["lost"].as_u64() > Some(0);
    for _ in 0..2 {
        if lines(&output).iter().any(loses) {
            output = measure();
        }
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = lines(&output);
    let (left_out, rows): (Vec<&Value>, Vec<&Value>) =
        lines.iter().partition(|line| line.get("left_out").is_some());
    // One payload is not enough for a fit, so every other line is a row.
    for row in &rows {
        for key in ["n", "bytes", "segments", "ns_per_copy", "copies_per_s", "ratio_to_sendto"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
        assert!(row["copies"].as_u64() > Some(0), "{row}");
        assert_eq!(row["lost"], 0, "{row}");
    }
    let mut may_be_missing = Vec::new();
    if !uring_works() {
        may_be_missing.push("uring");
    }
    for sink in ["sockets", "dropped", "driver", "discard", "software"] {
        for engine in EngineName::ALL.map(EngineName::name) {
            let is_it = |row: &&&Value| row["sink"] == sink && row["engine"] == engine;
            let why = left_out.iter().find(|o| o["case"] == sink && o["left_out"] == engine);
            // Devices that discard take no frames past their queue.
            let discards = ["discard", "software"].contains(&sink);
            if engine == "xdp" && discards || may_be_missing.contains(&engine) {
                assert!(why.is_some_and(|why| why["why"].is_string()), "{sink}, {engine}\n{said}");
                continue;
            }
            let expected = if sink == "software" { 2 } else { 4 };
            assert_eq!(rows.iter().filter(is_it).count(), expected, "{sink}, {engine}: {why:?}");
        }
    }
    assert!(out.path().join("groupcast.csv").is_file());
    assert!(out.path().join("cost-by-receivers-dropped-k1.svg").is_file());
}

#[test]
fn fits_follow_from_rows_of_several_sizes() {
    let filters = ["--sink", "discard", "--segments", "1", "--n", "3,30,90", "--bytes", "50,1000"];
    let output = run(&[&["bench", "groupcast", "--quick", "--json"], &filters[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if let Some(why) = cannot_run(&output) {
        return println!("skipped: {why}");
    }
    assert!(output.status.success(), "{said}");
    let fits: Vec<Value> =
        lines(&output).into_iter().filter(|line| line.get("c").is_some()).collect();
    assert_eq!(fits[0]["engine"], "sendto");
    assert_eq!(fits[0]["r_at_80"], 1.0);
    for fit in &fits {
        assert_eq!((&fit["sink"], &fit["segments"]), (&"discard".into(), &1.into()));
        for value in [&fit["x"], &fit["y"], &fit["r2"], &fit["paper"]["x"], &fit["paper"]["r2"]] {
            assert!(value.is_f64(), "{fit}");
        }
    }
}

#[test]
fn a_relay_between_two_hosts_is_measured_with_the_clone_engines() {
    // More participants of one ip than a relay takes elsewhere.
    let case = ["--scenario", "ceiling", "--n", "90", "--bytes", "100", "--gro", "off"];
    let short = ["--rounds", "1", "--seconds", "0.2", "--netns", "--json"];
    let engines = ["tc-bpf", "xdp", "gso"];
    let bench = ["bench", "relay", "--engine", "tc-bpf,xdp,gso", "--keys", "none"];
    let output = run(&[&bench[..], &case, &short].concat());
    if let Some(why) = cannot_run(&output) {
        return println!("skipped: {why}");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let rows = lines(&output);
    let measured: Vec<Value> = rows.iter().map(|row| row["engine"].clone()).collect();
    assert_eq!(measured, engines, "nothing is left out\n{said}");
    for row in rows {
        assert!(row["deliveries"].as_u64() > Some(0), "{row}");
        assert!(
            row["drops"]["thinned"].is_null(),
            "the relay sends all that it is asked to: {row}"
        );
    }
}

#[test]
fn an_engine_that_cannot_take_part_is_told_with_the_reason() {
    let case = ["--scenario", "ceiling", "--n", "3", "--bytes", "100", "--gro", "off"];
    let short = ["--rounds", "1", "--seconds", "0.2", "--json"];
    let bench = ["bench", "relay", "--engine", "gso,xdp"];
    let output = run(&[&bench[..], &case, &short].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--keys none"), "{said}");
    let output = run(&[&bench[..], &["--keys", "none"], &case, &short].concat());
    if let Some(why) = cannot_run(&output) {
        return println!("skipped: {why}");
    }
    assert!(!output.status.success(), "it was asked for");
    let lines = lines(&output);
    let [left_out, row] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&left_out["left_out"], &left_out["case"]), (&"xdp".into(), &"loopback".into()));
    assert!(left_out["why"].to_string().contains("Ethernet"), "{left_out}");
    assert_eq!(row["engine"], "gso");
}
