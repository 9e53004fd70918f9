//! `canopy lab net` and `canopy bots` over several relays: real processes, joined on loopback.

use crate::support::{Server, canopy, round_trace, run};
use canopy_client::{Client, Event, Group, Level};
use canopy_engines::Namespace;
use std::fs;
use std::io::BufRead;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A lab that is up.
fn lab(flags: &[&str]) -> Server {
    Server::start_telling(&[&["lab", "net", "--json"], flags].concat(), Stdio::piped())
}

/// What stands under a key, for each relay.
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

/// Longer than anything here takes on a busy machine. How long it takes on a quiet one, `canopy lab faults`
/// holds to its limits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The next event that a client is told of which is one of those. It publishes meanwhile, as games do:
/// who sends nothing learns of a dead relay by its next keepalive.
async fn told(client: &Client, is_one: impl Fn(&Event) -> bool) -> Event {
    let began = Instant::now();
    loop {
        let _ = client.publish(Group::new(9), Level(0), b"here");
        let next = tokio::time::timeout(Duration::from_millis(50), client.next_event()).await;
        match next {
            Ok(event) if is_one(event.as_ref().unwrap()) => return event.unwrap(),
            _ => assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}"),
        }
    }
}

#[tokio::test]
async fn a_controller_finds_other_relays_for_those_of_a_killed_one() {
    let lab = lab(&["--controller", "--relays", "4"]);
    let controller = lab.ready["controller"].clone();
    let [listen, key] = ["listen", "key"].map(|what| controller[what].as_str().unwrap());
    let join = || Client::join(listen, key.parse().unwrap(), "main").connect();
    let (one, other) = (join().await.unwrap(), join().await.unwrap());
    let group = Group::new(7);
    one.subscribe(group, Level(0)).await.unwrap();
    told(&one, |event| matches!(event, Event::Connected { .. })).await;

    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path(), 12, 12);
    let flags = ["--controller", listen, "--controller-key", key, "--world", "main"];
    let mut bots = canopy(&[&["bots", "--json", "--trace", &trace][..], &flags].concat());
    let mut bots = bots.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = std::io::BufReader::new(bots.stderr.take().unwrap()).lines();
    // The clients go on while this waits.
    let begun = tokio::task::spawn_blocking(move || {
        assert!(notes.any(|line| line.unwrap().contains(" % ")), "they walk");
        notes
    });
    let notes = begun.await.unwrap();

    let at = of_relays(&lab, "listen").iter().position(|at| *at == one.relay().to_string());
    let victim = of_relays(&lab, "pid").swap_remove(at.unwrap());
    assert!(Command::new("kill").args(["-KILL", &victim]).status().unwrap().success());
    told(&one, |event| matches!(event, Event::Moved { .. })).await;
    told(&one, |event| matches!(event, Event::Connected { .. })).await;
    assert_ne!(of_relays(&lab, "listen")[at.unwrap()], one.relay().to_string());
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Until the other has come back, too, if it was at the same relay.
        let _ = other.publish(group, Level(0), b"again");
        let heard = tokio::time::timeout(Duration::from_millis(50), one.recv()).await;
        if heard.is_ok_and(|update| update.unwrap().payload[..] == *b"again") {
            break;
        }
        assert!(Instant::now() < deadline, "it is subscribed to nothing");
    }

    let ended = tokio::task::spawn_blocking(move || {
        notes.for_each(drop);
        bots.wait_with_output().unwrap()
    });
    let text = String::from_utf8(ended.await.unwrap().stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let outages = report["outages"].as_array().unwrap();
    assert!(!outages.is_empty() && report["moves"].as_u64() >= Some(1), "{report}");
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert!(
        outages.iter().all(|outage| u128::from(number(&outage["ms"])) < PATIENCE.as_millis()),
        "{report}"
    );
    let back = outages.iter().map(|outage| number(&outage["at_ms"]) + number(&outage["ms"]));
    let last_missing = report["last_missing_ms"].as_u64().unwrap_or(0);
    assert!(last_missing <= back.max().unwrap() + 1000, "something is missing later: {report}");
    assert_eq!((number(&report["duplicates"]), number(&report["unexpected"])), (0, 0), "{report}");
    let walkers = report["relays"].as_array().unwrap().iter().map(|at| number(&at["walkers"]));
    assert_eq!(walkers.sum::<u64>(), 12, "{report}");

    one.leave().await;
    other.leave().await;
    let mut processes = of_relays(&lab, "pid");
    processes.extend([controller["pid"].to_string(), lab.process().to_string()]);
    lab.ask_to_end();
    wait_until_ended(&processes);
}

/// A relay, a link, the controller, the cables of a relay and a server, and a server fail under a crowd, each on a host of
/// its own.
#[test]
fn what_fails_under_a_crowd_is_mended_in_time() {
    if let Err(error) = Namespace::new() {
        println!("skipped: {error}");
        return;
    }
    let fail = || {
        let output = run(&["lab", "faults", "--faults", "6", "--walkers", "24", "--json"]);
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (mut is_good, mut text, mut said) = fail();
    if !is_good && said.contains("this machine stood still") {
        println!("{said}\nonce more");
        (is_good, text, said) = fail();
    }
    assert!(is_good, "{text}\n{said}");
    let outcome: serde_json::Value = serde_json::from_str(&text).unwrap();
    let faults = outcome["faults"].as_array().unwrap();
    let kinds: Vec<_> = faults.iter().map(|row| row["fault"].as_str().unwrap()).collect();
    let relays_and_links = ["relay killed", "link cut", "controller killed", "relay vanished"];
    let servers = ["server vanished", "server killed"];
    assert_eq!(kinds, [&relays_and_links[..], &servers].concat());
    assert!(faults[0]["members"].as_u64() > Some(0), "a relay that served somebody: {outcome}");
    for what in ["gaps", "doubled"] {
        assert_eq!(faults[2][what], 0, "without a controller all goes on: {outcome}");
    }
    assert!(faults[4]["gaps"].as_u64() > Some(0), "a server with somebody on it: {outcome}");
    assert!(faults[5]["members"].as_u64() > Some(0), "a server with somebody on it: {outcome}");
    for of_server in &faults[4..] {
        assert_eq!(of_server["others_ms"], 0, "a server takes nobody along: {outcome}");
    }
}

/// The same cut under the relays and under FRR's routers: both find another way.
#[test]
fn relays_and_routers_go_round_the_same_cut() {
    if let Err(error) = Namespace::new() {
        println!("skipped: {error}");
        return;
    }
    if !Path::new("/usr/lib/frr/zebra").exists() {
        println!("skipped: FRR is not installed (Debian's frr)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let words = ["lab", "convergence", "--relays", "5", "--cuts", "2", "--json", "--out", out];
    let output = run(&words);
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    // Who is the faster is for a quiet machine, and for the released binary, to say.
    let outcome: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{said}"));
    let rows = outcome["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let [canopy, ospf] = ["canopy_ms", "ospf_ms"].map(|who| row[who].as_u64().unwrap());
        assert!((100..2_900).contains(&canopy), "the cut is seen and mended: {outcome}");
        assert!(ospf >= 100, "it is the same cut: {outcome}");
    }
    let picture = fs::read_to_string(folder.path().join("convergence.svg")).unwrap();
    assert!(picture.contains("OSPF and BFD"), "{picture}");
}

/// How fair a short run is on a busy machine is for nobody to promise; but its exit status has to be what its
/// figures say.
#[test]
fn the_lab_of_degradation_ends_as_its_figures_say() {
    for (flags, remedy) in [
        (["--budgets", "0"], "100"),
        (["--budgets", "ten"], "invalid"),
        (["--viewers", "0"], "1..=1000"),
        (["--colour", "red"], "--help"),
    ] {
        let refused = run(&[&["lab", "degrade"], &flags[..]].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(remedy), "{flags:?}: {said}");
    }
    let words = ["lab", "degrade", "--viewers", "2", "--seconds", "3", "--budgets", "25", "--json"];
    let output = run(&words);
    let (text, said) =
        [&output.stdout, &output.stderr].map(|of| String::from_utf8_lossy(of)).into();
    let outcome: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{said}"));
    let rows = outcome["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{outcome}");
    for field in ["budget", "distance_m", "demand_hz", "fair_hz", "delivered_hz", "longest_gap_ms"]
    {
        assert!(rows.iter().all(|row| row[field].is_number()), "{field}: {outcome}");
    }
    let summary = &outcome["summary"];
    let number = |of: &serde_json::Value, field: &str| of[field].as_f64().unwrap();
    let budgets = summary["budgets"].as_array().unwrap();
    assert_eq!((budgets.len(), number(&budgets[0], "budget")), (1, 25.0), "{outcome}");
    let is_good = number(summary, "jfi_weighted") >= 0.99
        && number(summary, "utilisation") >= 0.97
        && number(&budgets[0], "nearest_ten_age_p99_ms") <= 100.0
        && number(summary, "longest_gap_ms") <= 2_200.0
        && number(&budgets[0], "nearest_ten_of_fair") >= 0.95
        && number(&budgets[0], "age_follows_distance") >= 0.95;
    let status = match number(summary, "datagrams_lost") {
        lost if lost > 0.0 => 3,
        _ if is_good => 0,
        _ => 1,
    };
    assert_eq!(output.status.code(), Some(status), "{outcome}\n{said}");
    assert_eq!(
        status == 0,
        !said.contains("not as promised") && !said.contains("too busy"),
        "{said}"
    );
    assert!(said.contains("shown and not judged"), "{said}");
}

#[test]
fn the_lab_of_isolation_ends_as_its_figures_say() {
    let refused = run(&["lab", "isolation", "--at", "nowhere"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("possible values: input"), "{said}");
    if let Err(error) = Namespace::new() {
        println!("skipped: {error}");
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: it needs two processors");
        return;
    }
    let words =
        ["--rounds", "1", "--seconds", "1", "--threads", "1", "--at", "input,output", "--json"];
    let output = run(&[&["lab", "isolation", "--flood-pps", "50000"], &words[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let outcome: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{said}"));
    let code = output.status.code();
    let (mut are_good, places) = (true, ["input", "output"]);
    let rows = outcome["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["at"]).collect::<Vec<_>>(), places, "{outcome}");
    for row in rows {
        let number =
            |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {outcome}"));
        let (offered, through) = (number("flood_pps_offered"), number("flood_pps_through"));
        assert!(offered > 0.0 && through > 0.0, "{outcome}");
        // What never came to a socket is no relay's fault, nor is what is lost without a flood as well.
        let is_told = number("kernel_backlog_drops") + number("kernel_device_drops") == 0.0
            && number("quiet_delivered") >= 0.999;
        let is_whole = number("victim_delivered") >= 0.999;
        assert!(is_whole || !is_told, "{code:?}: {outcome}\n{said}");
        let is_late = number("victim_age_p99_ms") > 2.0 * number("quiet_age_p99_ms");
        are_good &= is_whole && !is_late;
    }
    assert_eq!(code == Some(0), are_good, "{code:?}: {outcome}\n{said}");
    assert!(are_good || [Some(1), Some(3)].contains(&code), "{code:?}: {outcome}\n{said}");
}
