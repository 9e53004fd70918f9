//! Relays on hosts of their own: each is a process in a network namespace, its links are virtual
//! Ethernet, and a crowd on another host is spread over them. It needs root.

use crate::support::{Server, canopy, get, get_until, lateness, recorded_traces, round_trace};
use canopy_bots::Trace;
use canopy_engines::Namespace;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Both sides of a link notice within this that it is cut.
const NOTICED: Duration = Duration::from_millis(300);
/// What a report counts of what must not be.
const WRONGS: [&str; 7] = [
    "missing",
    "duplicates",
    "unexpected",
    "out_of_order",
    "updates_unsent",
    "subscriptions_refused",
    "reconnects",
];
const IMMEDIATE: &str = "mode = \"immediate\"\n";
const PERIODIC: &str = "mode = \"periodic\"\ntick_ms = 50\n";

/// Relays that are joined, and a crowd's host that reaches each of them.
struct Bed {
    /// Ended before their hosts.
    relays: Vec<Relay>,
    crowd: Namespace,
    folder: tempfile::TempDir,
}

/// What came of a crowd.
struct Walked {
    report: Value,
    /// What bots and relays said of it, if anything went wrong.
    wrong: Option<String>,
}

/// A relay on its host.
struct Relay {
    server: Server,
    host: Namespace,
    settings: PathBuf,
    head: String,
    /// What it logs, and when that came.
    logs: Receiver<(Instant, String)>,
}

/// A join of two relays: the one nearer to the core first.
type Join = [usize; 2];

/// Each with the one before; the first is the core.
fn line(relays: usize) -> Vec<Join> {
    (1..relays).map(|relay| [relay - 1, relay]).collect()
}

/// A binary tree; the first is the core.
fn tree(relays: usize) -> Vec<Join> {
    (1..relays).map(|relay| [(relay - 1) / 2, relay]).collect()
}

impl Bed {
    /// Relays with these joins, all of which are up, and one data thread each; `None`, with a word, where no
    /// namespace can be made.
    fn new(relays: usize, joins: &[Join]) -> Option<Bed> {
        Bed::with(relays, joins, IMMEDIATE, 1)
    }

    /// The same in a mode, with so many data threads.
    fn with(relays: usize, joins: &[Join], mode: &str, threads: usize) -> Option<Bed> {
        let crowd = Namespace::new().inspect_err(|error| println!("skipped: {error}")).ok()?;
        let folder = tempfile::tempdir().unwrap();
        let mut bed = Bed { relays: Vec::new(), crowd, folder };
        for number in 0..relays {
            let host = Namespace::new().unwrap();
            let device = format!("relay{number}");
            connect([&bed.crowd, &host], &device, [crowd_ip(number, 1), crowd_ip(number, 2)])
                .unwrap();
            let head = head(mode, threads);
            bed.relays.push(Relay::start(bed.folder.path(), number, host, head));
        }
        for (number, [a, b]) in joins.iter().enumerate() {
            let hosts = [&bed.relays[*a].host, &bed.relays[*b].host];
            connect(hosts, &device(number), [link_ip(number, 1), link_ip(number, 2)]).unwrap();
        }
        for relay in 0..relays {
            bed.relays[relay].reload(&bed.settings(relay, joins));
        }
        for relay in 0..relays {
            for _ in joins.iter().filter(|join| join.contains(&relay)) {
                bed.relays[relay].log("the link is up");
            }
        }
        Some(bed)
    }

    /// The links and branches of a relay.
    fn settings(&self, relay: usize, joins: &[Join]) -> String {
        let (mut links, mut branches) = (String::new(), String::new());
        for (number, [a, b]) in joins.iter().enumerate() {
            let (neighbour, role, end) = match relay {
                relay if relay == *a => (*b, "child", 2),
                relay if relay == *b => (*a, "parent", 1),
                _ => continue,
            };
            let server = &self.relays[neighbour].server;
            let address =
                SocketAddr::new(link_ip(number, end).into(), server.address("relay").port());
            let (name, key) = (device(number), &server.ready["key"]);
            let site = neighbour + 1;
            write!(links, "[[link]]\nname = {name:?}\nkey = {key}\naddress = \"{address}\"\n")
                .unwrap();
            write!(branches, "{{ link = {name:?}, role = {role:?}, site = {site} }},").unwrap();
        }
        format!("{links}{}branches = [{branches}]\n", comtree(relay))
    }

    /// Walks a crowd over all relays, so fast against its recording, and expects everything to arrive,
    /// once and in order. Returns how many deliveries were due.
    fn walk(&self, trace: &Path, speed: &str) -> u64 {
        let Walked { report, wrong } = self.crowd(trace, &["--speed", speed]);
        assert!(wrong.is_none(), "{}", wrong.unwrap());
        report["deliveries_expected"].as_u64().unwrap()
    }

    /// Walks a crowd over all relays with these flags.
    fn crowd(&self, trace: &Path, flags: &[&str]) -> Walked {
        let relays = (0..self.relays.len()).map(|relay| self.reach(relay, "relay").to_string());
        let relays = relays.collect::<Vec<_>>().join(",");
        let mut bots = canopy(&[&["bots", "--json", "--relay", &relays], flags].concat());
        bots.arg("--trace").arg(trace);
        let begin = Instant::now();
        let (late, output) = lateness(|| self.crowd.run(|| bots.output()).unwrap().unwrap());
        let said = String::from_utf8_lossy(&output.stderr);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
        let is_right = output.status.success() && WRONGS.iter().all(|what| report[*what] == 0);
        let wrong = (!is_right).then(|| {
            let machine = format!("the machine was up to {late:?} late");
            format!("{report}\n{said}\n{machine}\n{}{}", self.drops(), self.logged(begin))
        });
        Walked { report, wrong }
    }

    /// Where the crowd's host finds one of a relay's servers.
    fn reach(&self, relay: usize, server: &str) -> SocketAddr {
        let port = self.relays[relay].server.address(server).port();
        SocketAddr::new(crowd_ip(relay, 2).into(), port)
    }

    /// Waits until `/net` of a relay has what is wanted.
    fn net_until(&self, relay: usize, wanted: &str) {
        let address = self.reach(relay, "metrics");
        self.crowd.run(|| get_until(address, "/net", wanted)).unwrap();
    }

    /// Waits until a relay's link has come up so many times and both sides hear each other.
    fn measured(&self, relay: usize, link: &str, ups: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let net = self.net(relay);
            let links = net["links"].as_array().expect("a list of links");
            // What was changed is told a moment later.
            let is_measured = |one: &Value| {
                one["name"] == link && one["ups"] == ups && one["round_trip_ms"].is_number()
            };
            if links.iter().any(is_measured) {
                return;
            }
            assert!(Instant::now() < deadline, "not {ups} times up: {net}");
        }
    }

    /// What each relay counted that is not a packet or an update that went its way.
    fn drops(&self) -> String {
        let mut told = String::new();
        for relay in 0..self.relays.len() {
            let address = self.reach(relay, "metrics");
            let page = self.crowd.run(|| get(address, "/metrics")).unwrap();
            let counted = |line: &&str| {
                ["drop", "lost", "overwritten", "thinned", "waiting"]
                    .iter()
                    .any(|what| line.contains(what))
                    && !line.starts_with('#')
                    && !line.ends_with(" 0")
            };
            writeln!(told, "relay {relay}:").unwrap();
            for line in page.lines().filter(counted) {
                writeln!(told, "  {line}").unwrap();
            }
        }
        told
    }

    /// What each relay has logged since then, and how many seconds later.
    fn logged(&self, begin: Instant) -> String {
        let mut told = String::new();
        for (number, relay) in self.relays.iter().enumerate() {
            for (when, line) in relay.logs.try_iter().filter(|(when, _)| *when >= begin) {
                let after = (when - begin).as_secs_f64();
                writeln!(told, "relay {number}, {after:.3}: {line}").unwrap();
            }
        }
        told
    }

    fn net(&self, relay: usize) -> Value {
        let address = self.reach(relay, "metrics");
        let page = self.crowd.run(|| get(address, "/net")).unwrap();
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).expect("JSON")
    }
}

impl Relay {
    fn start(folder: &Path, number: usize, host: Namespace, head: String) -> Relay {
        let settings = folder.join(format!("{number}.toml"));
        fs::write(&settings, format!("{head}{}", comtree(number))).unwrap();
        let mut command = canopy(&["relay", "--json", "--settings"]);
        command.arg(&settings).stderr(Stdio::piped());
        let mut server = host.run(|| Server::spawn(command)).unwrap();
        let (tell, logs) = channel();
        let lines = server.logs().lines().map_while(Result::ok);
        thread::spawn(move || {
            lines.map(|line| (Instant::now(), line)).try_for_each(|l| tell.send(l))
        });
        Relay { server, host, settings, head, logs }
    }

    /// Has it read other settings.
    fn reload(&self, rest: &str) {
        fs::write(&self.settings, format!("{}{rest}", self.head)).unwrap();
        let process = self.server.process().to_string();
        assert!(Command::new("kill").args(["-HUP", &process]).status().unwrap().success());
    }

    /// Waits until it logs something, and returns when it did.
    fn log(&self, wanted: &str) -> Instant {
        loop {
            let (when, line) = self.logs.recv_timeout(PATIENCE).expect(wanted);
            if line.contains(wanted) {
                return when;
            }
        }
    }
}

/// What a relay's settings begin with.
fn head(mode: &str, threads: usize) -> String {
    // Its host is behind no other, so whoever reaches it may see everything. All walkers come from
    // one address. Nothing is thinned, however long a busy machine keeps something waiting.
    format!(
        "[relay]\nlisten = \"0.0.0.0:0\"\nmetrics = \"0.0.0.0:0\"\nthreads = {threads}\n{mode}\
         open = true\ninsecure = true\n\
         [limits]\nsessions_per_ip = 0\nhandshakes_per_ip = 0\nhandshakes_per_prefix = 0\n\
         path_budgets = \"off\"\n"
    )
}

fn comtree(relay: usize) -> String {
    format!("[[comtree]]\nid = 1\nsite = {}\n", relay + 1)
}

/// The device of a join, on both sides.
fn device(join: usize) -> String {
    format!("link{join}")
}

fn crowd_ip(relay: usize, end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, relay as u8, end)
}

fn link_ip(join: usize, end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, join as u8, end)
}

/// A virtual Ethernet between two hosts, whose ends have the same name.
fn connect(hosts: [&Namespace; 2], device: &str, ips: [Ipv4Addr; 2]) -> io::Result<()> {
    let far = hosts[1].path();
    hosts[0]
        .ip(&format!("link add {device} type veth peer name {device} netns {}", far.display()))?;
    for (host, ip) in hosts.into_iter().zip(ips) {
        host.ip(&format!("addr add {ip}/24 dev {device}"))?;
        host.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}

/// Walkers that go round a small place.
fn round(folder: &Path, walkers: u32, seconds: u32) -> PathBuf {
    write(folder, "round", &round_trace(walkers, seconds))
}

/// Some seconds from the middle of a recorded crowd.
fn from_the_middle(folder: &Path, trace: &Trace, seconds: f64) -> PathBuf {
    let rows = trace.rows();
    let begin = rows[rows.len() / 2].t;
    let mut text = "t,id,x,y\n".to_owned();
    for row in rows.iter().filter(|row| (begin..begin + seconds).contains(&row.t)) {
        writeln!(text, "{},{},{},{}", row.t, row.walker, row.x, row.y).unwrap();
    }
    write(folder, "recorded", &text)
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(format!("{name}.csv"));
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_crowd_on_three_hosts_in_a_line_lacks_nothing() {
    lacks_nothing(3, &line(3));
}

#[test]
fn a_crowd_on_eight_hosts_in_a_line_lacks_nothing() {
    lacks_nothing(8, &line(8));
}

#[test]
fn a_crowd_on_eight_hosts_in_a_tree_lacks_nothing() {
    lacks_nothing(8, &tree(8));
}

#[test]
fn crowds_on_hosts_with_periodic_relays_lack_nothing() {
    for (relays, joins) in [(3, line(3)), (8, tree(8))] {
        let Some(bed) = Bed::with(relays, &joins, PERIODIC, 2) else { return };
        walks_round(&bed);
    }
}

fn lacks_nothing(relays: usize, joins: &[Join]) {
    let Some(bed) = Bed::new(relays, joins) else { return };
    walks_round(&bed);
}

fn walks_round(bed: &Bed) {
    let due = bed.walk(&round(bed.folder.path(), 24, 2), "1");
    assert!(due > 1000, "{due} deliveries are no crowd");
}

#[test]
fn recorded_crowds_on_several_hosts_lack_nothing() {
    let Some(traces) = recorded_traces() else { return };
    for (name, relays, joins) in [("crossing-crowd", 3, line(3)), ("corridor-flow", 8, tree(8))] {
        let Some(bed) = Bed::new(relays, &joins) else { return };
        let trace = Trace::read(&traces.join(format!("{name}.csv.gz"))).unwrap();
        // Slowly: the relays of a build for tests are several times as slow.
        let due = bed.walk(&from_the_middle(bed.folder.path(), &trace, 1.0), "0.2");
        println!("{name} over {relays} relays: {due} deliveries");
    }
}

/// The recorded crowds, and how far walkers see where lengths are no metres.
const RECORDED: [(&str, &[&str]); 4] = [
    ("quake-arena", &["--cell", "128", "--radius", "512"]),
    ("campus", &[]),
    ("corridor-flow", &[]),
    ("crossing-crowd", &[]),
];

/// All recorded crowds at their speed, the largest in both modes, one after the other. Each prints a row of
/// the table in `docs/performance.md`; what went wrong is told at the end.
#[test]
#[ignore = "it takes twenty minutes, and a release build"]
fn whole_recordings_on_several_hosts_lack_nothing() {
    let Some(traces) = recorded_traces() else { return };
    let immediate = RECORDED.iter().map(|(name, flags)| (*name, *flags, "immediate", IMMEDIATE));
    let walks = immediate.chain([("crossing-crowd", &[][..], "periodic 50 ms", PERIODIC)]);
    let mut wrongs = Vec::new();
    println!("| recording | mode | relays | {TOLD} |\n|---|---|---{}|", "|---".repeat(8));
    for (name, flags, called, mode) in walks {
        for (relays, shape, joins) in [(3, "line", line(3)), (8, "tree", tree(8))] {
            let Some(bed) = Bed::with(relays, &joins, mode, 1) else { return };
            let Walked { report, wrong } = bed.crowd(&traces.join(format!("{name}.csv.gz")), flags);
            println!("| {name} | {called} | {relays}, {shape} | {} |", told(&report));
            wrongs.extend(wrong.map(|wrong| format!("{name}, {called}, {relays}: {wrong}")));
        }
    }
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}

/// What is told of a report.
const TOLD: &str = "deliveries | excused | missing | duplicates | unexpected | out of order | \
                    age p50 ms | p99 ms";

fn told(report: &Value) -> String {
    let counts = ["deliveries", "excused", "missing", "duplicates", "unexpected", "out_of_order"];
    let ages = ["p50", "p99"].map(|part| report["age_us"][part].as_f64().unwrap() / 1000.0);
    let counts = counts.map(|what| report[what].to_string());
    format!("{} | {:.2} | {:.1}", counts.join(" | "), ages[0], ages[1])
}

#[test]
fn a_cut_cable_is_noticed_on_both_sides_and_mended_nothing_is_missing() {
    let Some(bed) = Bed::new(3, &line(3)) else { return };
    // Between the second and the third; each of the two ends once, the other one as soon as the link
    // is up again.
    for (end, ups) in [(1, 1), (2, 2)] {
        for side in [1, 2] {
            bed.measured(side, "link1", ups);
        }
        let (late, noticed) = lateness(|| {
            let cut = Instant::now();
            bed.relays[end].host.ip("link set link1 down").unwrap();
            [1, 2].map(|side| bed.relays[side].log("the link is down") - cut)
        });
        println!("noticed after {noticed:?}, on a machine that is up to {late:?} late");
        for after in noticed {
            assert!(after <= NOTICED + 2 * late, "noticed after {after:?}, {late:?} late");
        }
        bed.net_until(1, "\"up\":false,\"ups\":");
        bed.net_until(2, "\"up\":false,\"ups\":");
        assert_eq!(bed.net(0)["links"][0]["up"], true, "the other link is not concerned");
        bed.relays[end].host.ip("link set link1 up").unwrap();
        for side in [1, 2] {
            bed.relays[side].log("the link is up");
        }
    }
    bed.walk(&round(bed.folder.path(), 24, 1), "1");
}
