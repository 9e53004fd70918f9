//! A controller that runs a world's core as a full mesh (federated games §3.1), over relays as processes.

use crate::control_plane::{Cluster, Listener, Member};
use crate::support::{Server, canopy};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(25);

/// Somebody who publishes numbers, and what listeners have heard of them.
struct Traffic {
    input: ChildStdin,
    sent: u32,
    listeners: Vec<(Listener, Vec<u32>)>,
}

impl Traffic {
    fn send(&mut self, times: u32) {
        for _ in 0..times {
            writeln!(self.input, "number {} ", self.sent).unwrap();
            self.sent += 1;
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes what has come until each listener has the last number; then those from `first` on came to each
    /// once, in order, and no number came twice.
    fn check_from(&mut self, first: u32) {
        let last = self.sent - 1;
        for (listener, heard) in &mut self.listeners {
            while heard.last() != Some(&last) {
                let line = listener.told.recv_timeout(PATIENCE).unwrap();
                let of = line.split("number ").nth(1).and_then(|rest| rest.split(' ').next());
                heard.extend(of.and_then(|number| number.parse::<u32>().ok()));
            }
            let settled: Vec<u32> = heard.iter().copied().filter(|of| *of >= first).collect();
            assert_eq!(settled, (first..=last).collect::<Vec<_>>(), "each once, in order");
            assert!(heard.is_sorted_by(|one, next| one < next), "none twice: {heard:?}");
        }
    }
}

/// The relays of the world's core.
fn core_names(cluster: &Cluster) -> BTreeSet<String> {
    let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
    let hops = world["comtrees"][0]["tree"].as_array().unwrap().clone();
    let core = hops.iter().filter(|hop| hop["core"] == true);
    core.map(|hop| hop["relay"].as_str().unwrap().to_owned()).collect()
}

/// By relay of the world's tree: whether it is in the core.
fn core(cluster: &Cluster) -> Vec<bool> {
    let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
    let hops = world["comtrees"][0]["tree"].as_array().unwrap();
    hops.iter().map(|hop| hop["core"] == true).collect()
}

fn until_in_core(cluster: &Cluster, relays: usize) {
    let began = Instant::now();
    while core(cluster).into_iter().filter(|is_in| *is_in).count() != relays {
        assert!(began.elapsed() < PATIENCE, "the core has {:?}", core(cluster));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Relays have it, too.
    std::thread::sleep(Duration::from_secs(1));
}

/// Somebody publishes, and these hear it.
fn traffic(from: &Member, to: &[&Member], group: &str) -> (Child, Traffic) {
    let listeners = to.iter().map(|member| (member.listen(group), Vec::new())).collect();
    let mut sender = canopy(&[&["pub", group, "-"][..], &from.flags()].concat());
    let mut sender = sender.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let input = sender.stdin.take().unwrap();
    (sender, Traffic { input, sent: 0, listeners })
}

/// A controller with four relays that have no links. Members stay, though they renew nothing.
fn four_relays() -> (Cluster, [Server; 4]) {
    four_relays_with("1")
}

/// The same with relays of so many data threads.
fn four_relays_with(threads: &str) -> (Cluster, [Server; 4]) {
    let more = ["--degree", "0", "--lease", "600"];
    let cluster = Cluster::start_in(tempfile::tempdir().unwrap(), &more);
    let relays = ["r1", "r2", "r3", "r4"].map(|name| cluster.relay_with(name, threads));
    cluster.until_relays_are(&["up", "up", "up", "up"]);
    (cluster, relays)
}

/// Joins two relays. Returns the link's number.
fn link(cluster: &Cluster, ends: [&str; 2]) -> Value {
    let link = json!({ "ends": ends, "bits": 100_000_000, "packets": 100_000, "delay_us": 1000 });
    cluster.ask("POST", "/v1/links", &link)["id"].clone()
}

#[test]
fn a_meshed_core_delivers_each_update_once_with_all_its_links_and_without_one() {
    let (cluster, _relays) = four_relays();
    link(&cluster, ["r1", "r2"]);
    link(&cluster, ["r1", "r3"]);
    let third = link(&cluster, ["r2", "r3"]);
    // The fourth has one link, and hangs below.
    link(&cluster, ["r3", "r4"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w", "core": "mesh" }));
    let subjects = [("a", "r1"), ("b", "r2"), ("c", "r3"), ("d", "r4")];
    let members = subjects.map(|(who, at)| cluster.member(who, at));
    until_in_core(&cluster, 3);
    let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
    let hops = world["comtrees"][0]["tree"].as_array().unwrap();
    let peers: usize =
        hops.iter().map(|hop| hop["peers"].as_array().map_or(0, |peers| peers.len())).sum();
    assert_eq!(peers, 1, "one link of the mesh is none of the tree: {world}");
    let outside = hops.iter().find(|hop| hop["relay"] == "r4").unwrap()["outside"].to_string();
    assert!(outside.contains("no link that can be used with r1, r2"), "{outside}");

    let [a, b, c, d] = &members;
    let (mut sender, mut traffic) = traffic(a, &[b, c, d], "7");
    // Who listens has subscribed by then.
    traffic.send(80);
    let first = traffic.sent;
    traffic.send(100);
    traffic.check_from(first);

    cluster.ask("DELETE", &format!("/v1/links/{third}"), &Value::Null);
    traffic.send(20);
    until_in_core(&cluster, 2);
    let first = traffic.sent;
    traffic.send(100);
    traffic.check_from(first);

    link(&cluster, ["r2", "r3"]);
    traffic.send(20);
    until_in_core(&cluster, 3);
    let first = traffic.sent;
    traffic.send(100);
    traffic.check_from(first);
    drop(traffic);
    sender.wait().unwrap();
}

/// By relay of the world's tree but its root: the one that it hangs on.
fn parents(cluster: &Cluster) -> BTreeMap<String, String> {
    let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
    let hops = world["comtrees"][0]["tree"].as_array().unwrap().clone();
    let name = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    hops.iter().map(|hop| (name(&hop["relay"]), name(&hop["above"]))).collect()
}

#[test]
fn a_relay_of_a_meshed_core_drains_with_another_below_it_and_no_update_is_lost() {
    let (cluster, _relays) = four_relays();
    // The fourth hangs on the second, where nobody is, and could hang on the third.
    for ends in [["r1", "r2"], ["r1", "r3"], ["r2", "r3"], ["r2", "r4"]] {
        link(&cluster, ends);
    }
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w", "core": "mesh" }));
    let subjects = [("a", "r1"), ("b", "r1"), ("c", "r3"), ("d", "r4"), ("e", "r4")];
    let [a, b, c, d, e] = subjects.map(|(who, at)| cluster.member(who, at));
    until_in_core(&cluster, 3);
    link(&cluster, ["r3", "r4"]);
    assert_eq!(parents(&cluster)["r4"], "r2");

    // One publishes in the core, and one below it; others hear.
    let (mut inside, mut down) = traffic(&a, &[&d], "7");
    let (mut outside, mut up) = traffic(&e, &[&b, &c], "8");
    let mut send = |times| {
        for _ in 0..times {
            down.send(1);
            up.send(1);
        }
        [down.sent, up.sent]
    };
    // Who listens has subscribed by then.
    let first = send(60);
    send(20);
    cluster.ask("POST", "/v1/relays/r2/drain", &Value::Null);
    let began = Instant::now();
    while parents(&cluster).contains_key("r2") {
        assert!(began.elapsed() < PATIENCE, "{:?}", parents(&cluster));
        send(10);
    }
    assert_eq!(parents(&cluster)["r4"], "r3");
    send(60);
    down.check_from(first[0]);
    up.check_from(first[1]);
    drop((down, up));
    inside.wait().unwrap();
    outside.wait().unwrap();
}

#[test]
fn a_relay_joins_a_meshed_core_under_load_and_no_update_is_lost() {
    join_a_meshed_core("1");
}

/// Relays have a data thread for each processor unless they are told otherwise.
#[test]
fn a_relay_of_several_data_threads_joins_a_meshed_core_and_no_update_is_lost() {
    join_a_meshed_core("3");
}

fn join_a_meshed_core(threads: &str) {
    let (cluster, _relays) = four_relays_with(threads);
    // The fourth lacks one link, and hangs below another until it has that.
    for ends in [["r1", "r2"], ["r1", "r3"], ["r2", "r3"], ["r1", "r4"], ["r2", "r4"]] {
        link(&cluster, ends);
    }
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w", "core": "mesh" }));
    let from = ["r3", "r4"].map(|at| cluster.member(at, at));
    let to = [("a", "r1"), ("b", "r2"), ("c", "r4"), ("d", "r1"), ("e", "r2"), ("f", "r3")];
    let [a, b, c, d, e, f] = to.map(|(who, at)| cluster.member(who, at));
    until_in_core(&cluster, 3);

    // One publishes where the relay will have another way, and one at the relay itself; others hear.
    let (mut there, mut down) = traffic(&from[0], &[&a, &b, &c], "7");
    let (mut here, mut up) = traffic(&from[1], &[&d, &e, &f], "8");
    let mut send = |times| {
        for _ in 0..times {
            down.send(1);
            up.send(1);
        }
        [down.sent, up.sent]
    };
    // Who listens has subscribed by then.
    let first = send(60);
    send(20);
    link(&cluster, ["r3", "r4"]);
    let began = Instant::now();
    while core(&cluster).contains(&false) {
        assert!(began.elapsed() < PATIENCE, "the core has {:?}", core(&cluster));
        send(10);
    }
    let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
    assert!(!world.to_string().contains("refused"), "{world}");
    send(80);
    down.check_from(first[0]);
    up.check_from(first[1]);
    drop((down, up));
    there.wait().unwrap();
    here.wait().unwrap();
}

#[test]
fn a_meshed_world_moves_to_another_core_under_load_and_no_update_is_lost() {
    let (cluster, _relays) = four_relays();
    // The first and the fourth have no link, so one of them is in the core at a time.
    for ends in [["r1", "r2"], ["r1", "r3"], ["r2", "r3"], ["r2", "r4"], ["r3", "r4"]] {
        link(&cluster, ends);
    }
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w", "core": "mesh" }));
    let to = [("a", "r2"), ("b", "r3"), ("c", "r4"), ("d", "r1"), ("e", "r2"), ("f", "r3")];
    let from = ["r1", "r4"].map(|at| cluster.member(at, at));
    let [a, b, c, d, e, f] = to.map(|(who, at)| cluster.member(who, at));
    until_in_core(&cluster, 3);

    // One publishes at each of the two that change their places; others hear everywhere.
    let (mut there, mut first) = traffic(&from[0], &[&a, &b, &c], "7");
    let (mut here, mut fourth) = traffic(&from[1], &[&d, &e, &f], "8");
    let mut send = |times| {
        for _ in 0..times {
            first.send(1);
            fourth.send(1);
        }
        [first.sent, fourth.sent]
    };
    // Who listens has subscribed by then.
    let began_with = send(60);
    send(20);
    let outside = |core: &BTreeSet<String>| if core.contains("r1") { "r4" } else { "r1" };
    // There and back: each of the two leaves once and joins once.
    for _ in 0..2 {
        let root = outside(&core_names(&cluster));
        cluster.ask("POST", &format!("/v1/worlds/w/move?root={root}"), &Value::Null);
        let began = Instant::now();
        let is_there =
            |core: &BTreeSet<String>| core.len() == 3 && core.contains(root) && core.contains("r2");
        while !is_there(&core_names(&cluster)) {
            assert!(began.elapsed() < PATIENCE, "the core has {:?}", core_names(&cluster));
            send(10);
        }
        send(80);
    }
    let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null).to_string();
    assert!(world.contains("it was moved to") && !world.contains("refused"), "{world}");
    send(40);
    first.check_from(began_with[0]);
    fourth.check_from(began_with[1]);
    drop((first, fourth));
    there.wait().unwrap();
    here.wait().unwrap();
}
