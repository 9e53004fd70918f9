//! `canopy lab net` and `canopy bots` over several relays: real processes, joined on loopback.

mod support;

use std::io::BufRead;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Server, canopy, round_trace, run};

/// A lab that is up.
fn lab(flags: &[&str]) -> Server {
    Server::start_telling(&[&["lab", "net", "--json"], flags].concat(), Stdio::piped())
}

/// Of each relay what stands under a key.
fn of_relays(lab: &Server, key: &str) -> Vec<String> {
    let relays = lab.ready["relays"].as_array().expect("a list of relays");
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    relays.iter().map(|relay| text(&relay[key])).collect()
}

/// Whether a process runs. One that has ended and was not waited for does not.
fn runs(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn wait_until_ended(processes: &[String]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while processes.iter().any(|process| runs(process)) {
        assert!(Instant::now() < deadline, "some of {processes:?} still run");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends a lab in order, and waits until it has ended with all its relays.
fn stop(lab: Server) {
    let mut processes = of_relays(&lab, "pid");
    processes.push(lab.process().to_string());
    lab.ask_to_end();
    wait_until_ended(&processes);
}

/// Walkers that go round a small place.
fn trace(folder: &Path, walkers: u32, seconds: u32) -> String {
    let path = folder.join("round.csv");
    std::fs::write(&path, round_trace(walkers, seconds)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_lab_reports_a_killed_relay_goes_on_and_leaves_nothing_behind() {
    let mut lab = lab(&["--relays", "4", "--shape", "tree"]);
    assert_eq!(of_relays(&lab, "name"), ["relay-1", "relay-2", "relay-3", "relay-4"]);
    assert_eq!(lab.ready["world"], "main");
    let processes = of_relays(&lab, "pid");
    let logs = lab.logs();
    assert!(Command::new("kill").args(["-KILL", &processes[1]]).status().unwrap().success());
    let told = logs.lines().map_while(Result::ok).find(|line| line.contains("relay-2 (process"));
    assert!(told.unwrap().contains("was ended by signal 9"));
    assert!(runs(&processes[0]) && runs(&processes[2]) && runs(&processes[3]));
    stop(lab);
}

#[test]
fn relays_end_with_a_lab_that_is_killed() {
    // Who is killed cleans nothing up.
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        canopy(&["lab", "net", "--json", "--relays", "2", "--shape", "star", "--core", "all"]);
    command.env("TMPDIR", folder.path()).stderr(Stdio::null());
    let lab = Server::spawn(command);
    let processes = of_relays(&lab, "pid");
    lab.kill();
    wait_until_ended(&processes);
}

#[test]
fn what_does_not_go_together_is_explained() {
    for (flags, words) in [
        (&["--shape", "mesh", "--core", "one"][..], "choose --core mesh"),
        (&["--shape", "line", "--core", "mesh"], "choose --shape mesh"),
        (&["--relays", "0"], "choose 1 to 64"),
        (&["--tick-ms", "50"], "say --mode periodic"),
    ] {
        let output = run(&[&["lab", "net"], flags].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(words), "{flags:?}: {said}");
    }
}

/// Every delivery over every kind of network comes once, in order, to those who must get it.
#[test]
fn a_crowd_that_is_spread_over_relays_lacks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path(), 16, 4);
    let walk = &|flags: &[&str]| {
        let lab = lab(flags);
        let listen = of_relays(&lab, "listen").join(",");
        let output = run(&["bots", "--trace", &trace, "--relay", &listen, "--json"]);
        let said = String::from_utf8(output.stderr).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
        assert!(output.status.success(), "{flags:?}: {report}\n{said}");
        assert_eq!(report["relays"].as_array().unwrap().len(), listen.split(',').count());
        assert!(report["deliveries_expected"].as_u64() > Some(1000), "{flags:?}: {report}");
        stop(lab);
    };
    // A crowd waits most of the time.
    std::thread::scope(|scope| {
        for flags in [
            &["--relays", "3", "--shape", "line"][..],
            &["--relays", "5", "--shape", "tree", "--core", "all"],
            &["--relays", "4", "--shape", "mesh"],
            &["--relays", "4", "--shape", "star", "--threads", "2", "--mode", "periodic"],
        ] {
            scope.spawn(move || walk(flags));
        }
    });
}
