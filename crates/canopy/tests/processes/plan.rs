//! `canopy plan`, as its users call it.

use crate::support::run;
use serde_json::Value;
use std::path::Path;

/// A square of four towns with a town in the middle that nobody located.
const TOWNS: &str = r#"graph [
  node [ id 0 label "North" Latitude 51.0 Longitude 10.0 ]
  node [ id 1 label "East" Latitude 50.0 Longitude 12.0 ]
  node [ id 2 label "South" Latitude 49.0 Longitude 10.0 ]
  node [ id 3 label "West" Latitude 50.0 Longitude 8.0 ]
  node [ id 4 label "Middle" ]
  edge [ source 0 target 1 ] edge [ source 1 target 2 ] edge [ source 2 target 3 ]
  edge [ source 3 target 0 ] edge [ source 4 target 0 ] edge [ source 4 target 1 ]
  edge [ source 4 target 2 ] edge [ source 4 target 3 ]
]"#;

fn towns() -> tempfile::NamedTempFile {
    file(".gml", TOWNS)
}

fn file(suffix: &str, text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(suffix).tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn plan(args: &[&str]) -> String {
    let output = run(&[&["plan"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn tree(network: &Path, args: &[&str]) -> String {
    plan(&[&["tree", "--network", network.to_str().unwrap()], args].concat())
}

fn refused(args: &[&str]) -> String {
    let output = run(&[&["plan"], args].concat());
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_tree_is_planned_and_its_capacities_are_the_limits() {
    let towns = towns();
    let limits = ["--send", "1M,20", "--receive", "2M,40", "--core", "center", "--json"];
    let report: Value = serde_json::from_str(&tree(towns.path(), &limits)).unwrap();
    assert_eq!(report["method"], "best");
    // Four endpoints meet in the middle, where none is.
    assert_eq!((&report["root"], &report["core"][0]), (&"Middle".into(), &"Middle".into()));
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 4);
    let mut cost = 0.0;
    for link in links {
        assert_eq!(link["to"], "Middle");
        assert_eq!((&link["capacity_forward"], &link["capacity_back"]), (&1e6.into(), &2e6.into()));
        assert_eq!((&link["packets_forward"], &link["packets_back"]), (&20.0.into(), &40.0.into()));
        cost += 3e6 * link["length"].as_f64().unwrap();
    }
    assert!((report["cost"].as_f64().unwrap() - cost).abs() < 1.0);
    // About 143 km to East and West each, 200 km a millisecond.
    let longest = report["max_delay"].as_f64().unwrap();
    assert!((1.4..1.5).contains(&longest) && report["mean_delay"].as_f64().unwrap() < longest);
}

#[test]
fn every_method_and_format_answers() {
    let towns = towns();
    let limits = ["--send", "1", "--receive", "2"];
    for method in ["spt", "mst", "stretch", "hybrid", "best"] {
        let args = [&limits[..], &["--method", method, "--json"]].concat();
        let report: Value = serde_json::from_str(&tree(towns.path(), &args)).unwrap();
        assert_eq!(report["method"], method);
    }
    let svg = tree(towns.path(), &[&limits[..], &["--svg"]].concat());
    assert!(svg.starts_with("<svg") && svg.matches("<circle").count() == 5, "{svg}");
    let dot = tree(towns.path(), &[&limits[..], &["--dot"]].concat());
    assert!(dot.starts_with("graph comtree {") && dot.matches(" -- ").count() == 4, "{dot}");
    let words = tree(towns.path(), &limits);
    assert!(words.starts_with("best from Middle: 4 endpoints, 4 links"), "{words}");
}

#[test]
fn all_methods_are_compared_with_the_optimum() {
    let compared = plan(&["compare", "--points", "8", "--send", "1", "--receive", "3", "--json"]);
    let compared: Value = serde_json::from_str(&compared).unwrap();
    let methods = compared["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 5);
    for row in methods {
        let ratio = row["ratio_to_optimum"].as_f64().unwrap();
        let bound = compared["shortest_path_bound"].as_f64().unwrap();
        assert!(ratio > 1.0 - 1e-9, "{row}");
        assert!(row["method"] != "spt" || ratio <= bound, "{row}");
        assert!(row["method"] != "best" || ratio < 1.0 + 1e-9, "{row}");
    }
}

#[test]
fn neighbourhoods_save_capacity() {
    let near = ["--near", "0.8", "--send-outside", "0.1", "--receive-outside", "0.4"];
    let args = ["tree", "--points", "12", "--send", "1", "--receive", "4", "--json"];
    let report: Value = serde_json::from_str(&plan(&[&args[..], &near].concat())).unwrap();
    let locality = &report["locality"];
    let (cost, bound) = (report["cost"].as_f64().unwrap(), locality["cost_of_bound"].as_f64());
    let without = locality["cost_without"].as_f64();
    assert!(Some(cost) <= bound && bound <= without, "{report}");
    assert!(locality["saved"].as_f64() > Some(0.1), "{report}");
}

#[test]
fn what_does_not_fit_is_explained() {
    let text = "[[node]]\nname='a'\n[[node]]\nname='b'\n[[node]]\nname='c'\n\
        [[link]]\nfrom='a'\nto='b'\nlength=1\ncapacity=5\n\
        [[link]]\nfrom='b'\nto='c'\nlength=1\ncapacity=1\n";
    let network = file(".toml", text);
    let network = network.path().to_str().unwrap();
    let args = ["tree", "--network", network, "--endpoints", "a,b,c", "--send", "2"];
    let error = refused(&[&args[..], &["--receive", "2"]].concat());
    assert!(error.contains("no tree fits what is free: c is to send 2"), "{error}");
    let fits = plan(&[&args[..], &["--receive", "2", "--free", "4", "--json"]].concat());
    assert!(fits.contains("\"capacity_forward\":2.0"), "{fits}");
}

#[test]
fn neighbourhoods_make_fit_what_would_not() {
    let pairs = "[[node]]\nname='a'\n[[node]]\nname='b'\n[[node]]\nname='c'\n[[node]]\nname='d'\n\
        [[link]]\nfrom='a'\nto='b'\nlength=1\n[[link]]\nfrom='c'\nto='d'\nlength=1\n\
        [[link]]\nfrom='b'\nto='c'\nlength=99\ncapacity=2\n";
    let network = file(".toml", pairs);
    let network = network.path().to_str().unwrap();
    let args = ["tree", "--network", network, "--endpoints", "a,b,c,d", "--send", "4"];
    let args = [&args[..], &["--receive", "8"]].concat();
    assert!(refused(&args).contains("b is to send 4") || refused(&args).contains("c–b"));
    let near = ["--near", "5", "--send-outside", "1", "--receive-outside", "2", "--json"];
    let report: Value = serde_json::from_str(&plan(&[&args[..], &near].concat())).unwrap();
    assert!(report["locality"]["saved"].as_f64() > Some(0.5), "{report}");
    let near = ["--near", "5", "--send-outside", "2", "--receive-outside", "2"];
    let error = refused(&[&args[..], &near].concat());
    assert!(error.contains("does not fit what is free, with neighbourhoods either"), "{error}");
}

#[test]
fn bad_input_is_named_with_a_remedy() {
    let towns = towns();
    let network = towns.path().to_str().unwrap();
    let limits = ["--send", "1", "--receive", "2"];
    let broken = file(".gml", "graph [\n node [ id 0 ]\n edge [ source 0 target 9 ]\n]");
    let broken = broken.path().to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--network", "missing.gml"], "cannot read the network missing.gml; check --network"),
        (&["--network", broken], "line 3: target 9 is no node's id"),
        (&["--network", network, "--endpoints", "north"], "did you mean North?"),
        (&["--network", network, "--core", "Nowhere"], "--core: there is no node \"Nowhere\""),
        (&["--network", network, "--core", "within"], "needs --core-hops or --core-ms"),
        (&["--network", network, "--stretch", "0.5"], "stretch 0.5 is out of range"),
        (&["--network", network, "--endpoints", "North,North"], "North is named twice"),
        (&["--network", network, "--points", "3"], "cannot be used with"),
        (&["--points", "9", "--side", "0"], "--side 0 is out of range"),
        (&[], "--network <FILE.gml|FILE.toml>"),
    ];
    for (args, expected) in cases {
        let error = refused(&[&["tree"], &limits[..], args].concat());
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn figures_are_written_as_pictures_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("figures");
    let sizes = ["--points", "9", "--trials", "4", "--json"];
    let findings = plan(&[&["figures", "--out", out.to_str().unwrap()], &sizes[..]].concat());
    let findings: Value = serde_json::from_str(&findings).unwrap();
    assert_eq!(findings["files"].as_array().unwrap().len(), 6);
    let headers = [
        ("figure4", "fanout,spt,mst,stretch_1_2,hybrid,best", 9),
        ("figure5", "fanout,no_core,core_center,core_center_and_neighbours,all_core,unicast", 9),
        ("figure6", "stretch,mean_tree_delay,max_tree_delay,mean_direct_delay", 32),
    ];
    for (name, header, lines) in headers {
        let csv = std::fs::read_to_string(out.join(name).with_extension("csv")).unwrap();
        assert_eq!((csv.lines().next(), csv.lines().count()), (Some(header), lines), "{name}");
        let svg = std::fs::read_to_string(out.join(name).with_extension("svg")).unwrap();
        assert!(svg.contains("<svg") && svg.contains("<polyline"), "{name}");
    }
}

#[test]
fn a_users_cost_is_the_papers_or_from_a_file() {
    let words = plan(&["cost"]);
    for dollars in ["$2.07", "$0.10", "$2.00"] {
        assert!(words.contains(dollars), "{words}");
    }
    let inputs = file(".toml", "bandwidth_price = 0.5\n");
    let path = inputs.path().to_str().unwrap();
    let estimate: Value =
        serde_json::from_str(&plan(&["cost", "--inputs", path, "--json"])).unwrap();
    assert_eq!(estimate["estimate"]["rows"][2]["cost_per_user"], 0.1);
    let again = file(".toml", &plan(&["cost", "--inputs", path, "--print-inputs"]));
    let again = plan(&["cost", "--inputs", again.path().to_str().unwrap(), "--json"]);
    assert_eq!(estimate, serde_json::from_str::<Value>(&again).unwrap());
}

/// The paper's costs of sending (eq. 8, 9).
const PAPER: [&str; 4] = ["--old", "6.02e-3,8.69e-7", "--new", "2.16e-3,2.12e-7"];

fn capacity(args: &[&str]) -> Value {
    serde_json::from_str(&plan(&[&["capacity", "--json"], args].concat())).unwrap()
}

fn assert_close(report: &Value, field: &str, expected: f64) {
    let found = report[field].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-9, "{field} of {report} is not {expected}");
}

#[test]
fn the_users_that_a_relay_carries_are_the_papers() {
    let (old, new) = (6.02e-3 + 80.0 * 8.69e-7, 2.16e-3 + 80.0 * 2.12e-7);
    let r: f64 = old / new;
    // f = ½, λ = 1, T = 33.3: half the period is for sending.
    let immediate = (33.3_f64 / 2.0 / old).sqrt();
    let periodic = 33.3 / 2.0 / old;
    let expected = [
        (
            "immediate",
            "constant",
            immediate,
            old * immediate,
            (1.0 + 8.0 / r).sqrt() / 2.0 * r - r / 2.0,
        ),
        ("immediate", "linear", immediate, old, (2.0 / (1.0 + 1.0 / r)).sqrt()),
        ("periodic", "constant", periodic, old, 2.0 / (1.0 + 1.0 / r)),
        (
            "periodic",
            "linear",
            periodic,
            old / periodic,
            ((1.0 + 8.0 * r * r).sqrt() - 1.0) / r / 2.0,
        ),
    ];
    for (model, h, users, c, k) in expected {
        let question =
            ["--model", model, "--h", h, "--f", "0.5", "--t-ms", "33.3", "--bytes", "80"];
        let report = capacity(&[&question[..], &PAPER].concat());
        assert_eq!((&report["model"], &report["h"]), (&model.into(), &h.into()));
        assert_eq!((&report["f"], &report["t_ms"]), (&0.5.into(), &33.3.into()));
        assert_eq!((&report["bytes"], &report["lambda"]), (&80.0.into(), &1.0.into()));
        let bound = if model == "immediate" { r.sqrt() } else { r };
        let numbers = [
            ("n_max_old", users),
            ("n_max_new", users * k),
            ("c", c),
            ("k", k),
            ("r", r),
            ("bound", bound),
        ];
        for (field, expected) in numbers {
            assert_close(&report, field, expected);
        }
        // What follows from f gives it back.
        let same = [&["--model", model, "--h", h][..], &PAPER].concat();
        for known in ["alpha", "c"] {
            let (flag, value) = (format!("--{known}"), report[known].to_string());
            let again = capacity(&[&same[..], &[&flag, &value]].concat());
            for field in ["f", "alpha", "c", "n_max_old", "k"] {
                assert_close(&again, field, report[field].as_f64().unwrap());
            }
        }
    }
}

#[test]
fn what_was_counted_tells_the_other_work() {
    let question = ["--model", "immediate", "--h", "linear", "--f", "0.25"];
    let question = [&question[..], &["--old", "0.01,0", "--new", "0.005,0"]].concat();
    // 50 messages of 40 users in 30 ms: H = 0.75 × 30 / 50.
    let counted = ["--t-ms", "30", "--users", "40", "--messages", "50", "--period-ms", "60"];
    let report = capacity(&[&question[..], &counted].concat());
    assert_close(&report, "c", 0.45 / 40.0);
    assert_close(&report, "n_max_old", (60.0_f64 / (0.45 / 40.0 + 0.01)).sqrt());
    assert_eq!((&report["t_ms"], &report["period_ms"]), (&30.0.into(), &60.0.into()));
    // As many users as it can serve: sending to 40 takes 0.4 ms, the other work three times that.
    let report = capacity(&[&question[..], &["--users", "40"]].concat());
    assert_close(&report, "n_max_old", 40.0);
    assert_close(&report, "c", 1.2 / 40.0);
    assert_close(&report, "t_ms", 40.0 * 1.6);
    // With a cost per message r is the one at the old most users.
    let costs = ["--old", "0.01,0,0.5", "--new", "0.005,0,0.1", "--c", "0.2"];
    let question = ["--model", "periodic", "--h", "constant"];
    let report = capacity(&[&question[..], &costs].concat());
    let users = (33.3 - 0.5) / 0.21;
    assert_close(&report, "n_max_old", users);
    assert_close(&report, "n_max_new", (33.3 - 0.1) / 0.205);
    assert_close(&report, "r", (0.5 + 0.01 * users) / (0.1 + 0.005 * users));
}

#[test]
fn a_calibration_stands_for_the_costs() {
    let fits = r#"{"machine":"here"}
{"engine":"sendto","n":10,"bytes":80,"segments":1,"ns_per_copy":900,"lost":0}
{"engine":"sendto","sink":"drop","segments":1,"c":0,"x":6020,"y":0.869,"r2":1,"paper":{"x":6020,"y":0.869,"r2":1}}
{"engine":"clone","sink":"drop","segments":1,"c":-5,"x":2165,"y":0.2,"r2":1,"paper":{"x":2160,"y":0.212,"r2":1}}
{"engine":"mmsg","sink":"drop","segments":1,"c":0,"x":4000,"y":0.5,"r2":1}
"#;
    let good = file(".json", fits);
    let good = good.path().to_str().unwrap();
    let question = ["--model", "periodic", "--h", "linear", "--f", "0.5", "--calibration"];
    let report = capacity(&[&question[..], &[good]].concat());
    assert_close(&report, "r", (6.02e-3 + 80.0 * 8.69e-7) / (2.16e-3 + 80.0 * 2.12e-7));
    assert_eq!(
        (&report["old"]["engine"], &report["new"]["engine"]),
        (&"sendto".into(), &"clone".into())
    );
    let report = capacity(&[&question[..], &[good, "--new-engine", "mmsg"]].concat());
    assert_close(&report, "r", (6.02e-3 + 80.0 * 8.69e-7) / (4e-3 + 80.0 * 5e-7));
    let broken = file(".json", "{\"engine\":\"sendto\"}\n{\"engine\":\"sendto\",\"r2\":1}\n");
    let broken = broken.path().to_str().unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["missing.json"], "cannot read the calibration missing.json; check --calibration"),
        (
            &[broken],
            "line 2: this is no fit (missing field `c`); write the file anew with canopy bench",
        ),
        (
            &[good, "--old-engine", "uring"],
            "there is no fit of uring (segments 1, sink drop); there are sendto",
        ),
        (&[good, "--segments", "8"], "there is no fit of sendto (segments 8"),
    ];
    for (args, expected) in cases {
        let error = refused(&[&["capacity"], &question[..], args].concat());
        assert!(error.contains(expected) && error.contains(args[0]), "{error}");
    }
}

#[test]
fn questions_without_an_answer_are_refused_with_a_remedy() {
    let question = ["capacity", "--model", "immediate", "--h", "constant"];
    let cases: [(&[&str], &str); 7] = [
        (&["--f", "0"], "f = 0 is out of range; give more than 0 and at most 1"),
        (&["--f", "-0.5"], "f = -0.5 is out of range"),
        (&["--f", "0.5", "--t-ms", "0"], "the period T in ms = 0 is out of range"),
        (&["--alpha", "nan"], "α = NaN is out of range"),
        (&["--c", "1", "--lambda", "0"], "λ = 0 is out of range"),
        (&["--c", "1", "--alpha", "1"], "cannot be used with"),
        (&["--c", "1", "--users", "9"], "cannot be used with"),
    ];
    for (args, expected) in cases {
        let error = refused(&[&question[..], &PAPER, args].concat());
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let error = refused(&[&question[..], &["--c", "1"]].concat());
    assert!(error.contains("give --old and --new, or --calibration"), "{error}");
    let error = refused(&[&question[..], &PAPER].concat());
    assert!(error.contains("give --f, --alpha or --c"), "{error}");
    let error = refused(&[&question[..], &["--c", "1", "--old", "1", "--new", "1,2"]].concat());
    assert!(error.contains("give two or three numbers, such as"), "{error}");
}

#[test]
fn the_papers_figures_of_gains_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("figures");
    let files = plan(&["capacity", "--figures", out.to_str().unwrap()]);
    assert_eq!(files.lines().count(), 8);
    let numbers =
        |name: &str| std::fs::read_to_string(out.join(name).with_extension("csv")).unwrap();
    for (name, x, lines) in [
        ("figure8", "f", 101),
        ("figure9", "f", 101),
        ("figure10", "alpha", 52),
        ("figure11", "alpha", 52),
    ] {
        let csv = numbers(name);
        let header = format!("{x},immediate,periodic");
        assert_eq!((csv.lines().next(), csv.lines().count()), (Some(&*header), lines), "{name}");
        let svg = std::fs::read_to_string(out.join(name).with_extension("svg")).unwrap();
        assert_eq!(svg.matches("<polyline").count() >= 2, svg.contains("immediate"), "{name}");
    }
    assert!(numbers("figure8").ends_with("1.0,1.6725006912999894,2.797258562398942\n"));
    let others =
        ["--old", "0.004,0", "--new", "0.001,0", "--figures", out.to_str().unwrap(), "--json"];
    let files: Value = serde_json::from_str(&plan(&[&["capacity"], &others[..]].concat())).unwrap();
    assert_eq!(files["files"].as_array().unwrap().len(), 8);
    assert!(numbers("figure9").ends_with("1.0,2.0,4.0\n"), "{}", numbers("figure9"));
}
