//! `canopy bench groupcast` with the real binary: it needs root, for its network namespaces.

mod support;

use serde_json::Value;
use support::run;

#[test]
fn every_copy_of_the_quick_bench_is_counted() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().to_str().unwrap();
    let output = run(&["bench", "groupcast", "--quick", "--json", "--out", folder]);
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success()
        && (said.contains("it needs root") || said.contains("two processors"))
    {
        return println!("skipped: {}", said.trim());
    }
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    // One payload is not enough for a fit, so every line is a row.
    for row in &lines {
        for key in ["n", "bytes", "segments", "ns_per_copy", "copies_per_s", "ratio_to_sendto"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
        assert!(row["copies"].as_u64() > Some(0), "{row}");
        assert_eq!(row["lost"], 0, "{row}");
    }
    for sink in ["sockets", "dropped", "discard", "software"] {
        for engine in ["sendto", "sendmmsg"] {
            let rows = lines.iter().filter(|row| row["sink"] == sink && row["engine"] == engine);
            let expected = if sink == "software" { 2 } else { 4 };
            assert_eq!(rows.count(), expected, "{sink}, {engine}\n{said}");
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
    if !output.status.success()
        && (said.contains("it needs root") || said.contains("two processors"))
    {
        return println!("skipped: {}", said.trim());
    }
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let fits: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .filter(|line: &Value| line.get("c").is_some())
        .collect();
    assert_eq!(fits[0]["engine"], "sendto");
    assert_eq!(fits[0]["r_at_80"], 1.0);
    for fit in &fits {
        assert_eq!((&fit["sink"], &fit["segments"]), (&"discard".into(), &1.into()));
        for value in [&fit["x"], &fit["y"], &fit["r2"], &fit["paper"]["x"], &fit["paper"]["r2"]] {
            assert!(value.is_f64(), "{fit}");
        }
    }
}
