//! `canopy plan`, as its users call it.

mod support;

use serde_json::Value;
use std::path::Path;
use support::run;

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
