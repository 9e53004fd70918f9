//! The whole: real processes over loopback.

mod support;

use canopy_wire::{
    Comtree, Group, Header, Hello, Kind, Packet, Record, SessionId, VERSION, encode_update,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Server, canopy, get, get_until, join_for_good, recorded_traces, run};

/// A small crowd that crosses a square: eight walkers, five seconds, ten positions a second.
fn small_trace() -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    writeln!(file, "t,id,x,y").unwrap();
    for step in 0..50 {
        for walker in 0..8 {
            let (t, along) = (f64::from(step) * 0.1, f64::from(step) * 0.2);
            let x = if walker % 2 == 0 { along } else { 10.0 - along };
            writeln!(file, "{t:.3},{walker},{x:.3},{:.3}", f64::from(walker) * 1.1).unwrap();
        }
    }
    file
}

fn bots(relay: &Server, trace: &Path, flags: &[&str]) -> Value {
    let relay = relay.address("relay").to_string();
    let trace = trace.to_str().unwrap();
    let args = [&["bots", "--json", "--relay", &relay, "--trace", trace], flags].concat();
    let output = run(&args);
    let [said, noted] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{noted}{said}");
    serde_json::from_str(&said).expect("one JSON object")
}

fn assert_all_right(report: &Value) {
    for key in [
        "missing",
        "duplicates",
        "unexpected",
        "out_of_order",
        "subscriptions_refused",
        "reconnects",
    ] {
        assert_eq!(report[key], 0, "{report}");
    }
    assert!(report["deliveries_expected"].as_u64() > Some(0), "{report}");
}

#[test]
fn every_delivery_of_a_crowd_is_accounted_for() {
    let trace = small_trace();
    for flags in [
        &["--mode", "immediate", "--threads", "1"][..],
        &["--mode", "immediate", "--threads", "2"],
        &["--mode", "periodic", "--tick-ms", "50", "--threads", "1"],
        &["--mode", "periodic", "--tick-ms", "5", "--threads", "2"],
        &["--mode", "immediate", "--engine", "sendto"],
    ] {
        let relay = Server::relay(flags);
        let report = bots(&relay, trace.path(), &["--speed", "2", "--repeat", "2"]);
        assert_all_right(&report);
        assert_eq!(report["clients"], 16);
        let totals = &relay.terminate()["totals"];
        assert_eq!(totals["counters"]["deliveries_out"], report["deliveries"], "{flags:?}");
        assert_eq!(totals["drops"], serde_json::json!({}), "{flags:?}");
    }
}

#[test]
fn recorded_crowds_walk_through_one_relay() {
    let Some(traces) = recorded_traces() else { return };
    for (name, flags) in [
        ("quake-arena", &["--cell", "128", "--radius", "512", "--speed", "10"][..]),
        ("campus", &["--speed", "10"]),
        ("corridor-flow", &["--speed", "4"]),
        ("crossing-crowd", &["--speed", "2"]),
    ] {
        let relay = Server::relay(&[]);
        let trace: PathBuf = traces.join(format!("{name}.csv.gz"));
        let report = bots(&relay, &trace, flags);
        assert_all_right(&report);
        println!("{name}: {report}");
    }
}

#[test]
fn a_drain_sends_everyone_home() {
    let relay = Server::relay(&["--threads", "2", "--metrics", "127.0.0.1:0"]);
    let trace = small_trace();
    let address = relay.address("relay").to_string();
    let args = ["bots", "--json", "--relay", &address, "--trace", trace.path().to_str().unwrap()];
    let mut child = canopy(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    get_until(relay.address("metrics"), "/metrics", "canopy_relay_sessions 8\n");
    let last = relay.terminate();
    assert_eq!(last["event"], "stopped");
    assert_eq!(last["totals"]["sessions"], 0, "{last}");
    assert_eq!(last["totals"]["counters"]["sessions_opened"], 8, "{last}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_relay_is_healthy_until_it_drains() {
    let flags = ["--metrics", "127.0.0.1:0", "--console", "127.0.0.1:0", "--threads", "2"];
    let relay = Server::relay(&[&flags[..], &["--drain-ms", "600000"]].concat());
    let pages = ["metrics", "console"].map(|key| relay.address(key));
    for page in pages {
        assert!(get(page, "/healthz").ends_with("serving\n"));
        let metrics = get(page, "/metrics");
        for name in ["canopy_build_info{version=", "process_start_time_seconds "] {
            assert!(metrics.contains(name), "{metrics}");
        }
    }
    // It stays, so that the drain goes on.
    let _participant = join_for_good(relay.address("relay"));
    get_until(pages[0], "/metrics", "canopy_relay_sessions 1\n");
    relay.ask_to_end();
    for page in pages {
        let told = get_until(page, "/healthz", "draining\n");
        assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    }
    assert_eq!(relay.terminate()["event"], "stopped");
}

/// Asks `canopy top` until it says what is wanted.
fn top_until(relay: &Server, flags: &[&str], is_wanted: impl Fn(&str) -> bool) -> String {
    let address = relay.address("metrics").to_string();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let output = run(&[&["top", &address, "--once"], flags].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        if is_wanted(&text) {
            return text;
        }
        assert!(Instant::now() < deadline, "it says:\n{text}");
    }
}

#[test]
fn who_sends_too_much_is_named_by_top_and_in_the_log() {
    let mut command = canopy(&["relay", "--listen", "127.0.0.1:0", "--json", "--threads", "1"]);
    command.args(["--metrics", "127.0.0.1:0", "--member-up-packets", "300"]);
    command.stderr(Stdio::piped());
    let mut relay = Server::spawn(command);
    let mut logs = relay.logs();
    let to = relay.address("relay").to_string();
    let mut publisher = canopy(&["pub", "--relay", &to, "7"]);
    let mut publisher =
        publisher.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be run");
    let mut lines = publisher.stdin.take().unwrap();
    // Until nobody reads them any more.
    let writer = std::thread::spawn(move || {
        while lines.write_all(&b"x\n".repeat(20)).is_ok() {
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let text = top_until(&relay, &["--json"], |text| {
        let told: Value = serde_json::from_str(text).unwrap();
        told["talkers"][0]["dropped"].as_u64() > Some(0)
    });
    assert!(text.contains("\"comtree\":1"), "{text}");
    get_until(relay.address("metrics"), "/metrics", "canopy_relay_talker_bits{rank=\"1\"} ");
    let named = std::iter::from_fn(|| {
        let mut line = String::new();
        (logs.read_line(&mut line).unwrap() > 0).then_some(line)
    })
    .find(|line| line.contains("sends more than it may"));
    assert!(named.is_some_and(|line| line.contains("comtree") && line.contains("127.0.0.1")));
    publisher.kill().unwrap();
    publisher.wait().unwrap();
    writer.join().unwrap();
    let output = run(&["top", "127.0.0.1:9", "--once"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--metrics"), "{error}");
}

#[test]
fn who_is_thinned_is_named_by_top_with_what_it_lacks() {
    let flags = ["--metrics", "127.0.0.1:0", "--threads", "1", "--member-down-packets", "20"];
    let relay = Server::relay(&flags);
    let to = relay.address("relay").to_string();
    let mut subscriber = canopy(&["sub", "--relay", &to, "7"]);
    let mut subscriber =
        subscriber.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be run");
    let mut publisher = canopy(&["pub", "--relay", &to, "7"]);
    let mut publisher =
        publisher.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be run");
    let mut lines = publisher.stdin.take().unwrap();
    // Until nobody reads them any more.
    let writer = std::thread::spawn(move || {
        while lines.write_all(&b"x\n".repeat(2)).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let text = top_until(&relay, &["--thinned", "--json"], |text| {
        let told: Value = serde_json::from_str(text).unwrap();
        told["thinned"][0]["dropped"]["thinned"].as_u64() > Some(50)
    });
    let told: Value = serde_json::from_str(&text).unwrap();
    let one = &told["thinned"][0];
    assert_eq!(one["budget_updates"], 20, "{text}");
    assert_eq!(one["because"], "admitted", "{text}");
    let (demand, delivered) = (one["demand"].as_u64().unwrap(), one["delivered"].as_u64().unwrap());
    assert!((10..=30).contains(&delivered) && demand > 70, "{text}");
    let table = top_until(&relay, &["--thinned"], |text| text.contains(" thinned"));
    assert!(table.contains("20/s") && table.contains("admitted"), "{table}");
    publisher.kill().unwrap();
    publisher.wait().unwrap();
    subscriber.kill().unwrap();
    subscriber.wait().unwrap();
    writer.join().unwrap();
}

#[test]
fn strangers_are_counted_and_cost_nothing() {
    let relay = Server::relay(&["--metrics", "127.0.0.1:0", "--threads", "1"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(relay.address("relay")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let header = Header::new(Kind::Updates, SessionId::new(1), Comtree(1));
    let mut data = [0; 128];
    let record = Record::new(Group::new(1).address(), 0, b"before the handshake");
    let len = encode_update(&header, &record, &mut data).unwrap();
    let kind = Header { kind: Kind::Cookie, ..header }.encode(0);
    for datagram in [&data[..len], &kind, &data[..7], &[VERSION; 1453], &[9; 30], &[]] {
        socket.send(datagram).unwrap();
    }
    let mut answer = [0; 2048];
    let hello = Hello { nonce: 7 }.encode(Comtree(1), &mut data).unwrap();
    socket.send(&data[..hello]).unwrap();
    let len = socket.recv(&mut answer).expect("a hello is answered");
    assert!(len <= hello, "a cookie is no longer than the hello");
    // The data thread takes datagrams in their order: any answer to the others would be here first.
    let first = Packet::new_checked(&answer[..len]).unwrap().header().kind;
    assert_eq!(first, Kind::Cookie, "nothing but the hello is answered");
    let expected = ["forged", "unexpected_kind", "malformed", "oversized", "version", "empty"];
    for reason in expected {
        let counted = format!("canopy_relay_drops_total{{reason=\"{reason}\"}} 1\n");
        get_until(relay.address("metrics"), "/metrics", &counted);
    }
    assert!(get(relay.address("metrics"), "/metrics").contains("canopy_relay_sessions 0\n"));
}

#[test]
fn a_doctor_says_what_fails_and_what_would_do() {
    let healthy = run(&["doctor", "--json", "--listen", "127.0.0.1:0", "--threads", "1"]);
    let told: Value = serde_json::from_slice(&healthy.stdout).expect("one JSON object");
    assert!(healthy.status.success() && told["outcome"] != "failed", "{told}");
    let is_there =
        |name: &str| told["checks"].as_array().unwrap().iter().any(|c| c["check"] == name);
    for name in ["settings", "listen", "send engine", "receive buffer", "mtu", "processor"] {
        assert!(is_there(name), "{name}: {told}");
    }
    for name in ["clock sync", "open files", "UDP_SEGMENT", "UDP_GRO", "SO_REUSEPORT", "io_uring"] {
        assert!(is_there(name), "{name}: {told}");
    }
    let relay = Server::relay(&[]);
    let taken = relay.address("relay").to_string();
    let sick = run(&["doctor", "--listen", &taken]);
    let said = String::from_utf8_lossy(&sick.stdout).into_owned();
    assert!(!sick.status.success() && said.contains("failed   listen"), "{said}");
    assert!(said.contains(&taken) && said.contains("port 0"), "{said}");
}

#[test]
fn a_connected_client_takes_the_memory_that_is_promised() {
    // Enough clients that what they share is little beside what each costs. The idle cost is a time, which is
    // for a quiet machine to say.
    let words = ["bench", "footprint", "--tokens", "--clients", "2000", "--seconds", "1", "--json"];
    let output = run(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    let footprint: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    let bytes = |key: &str| footprint[key].as_u64().unwrap();
    assert!(bytes("memory_bytes") > 0, "{footprint}");
    assert!(bytes("memory_bytes") <= bytes("memory_allowed_bytes"), "{footprint}");
    assert!(footprint["idle_cpu_share"].is_f64(), "{footprint}");
}

#[test]
fn a_crowd_comes_back_under_its_addresses_when_its_relay_was_killed() {
    // Whether it is back in time is for a quiet machine to say.
    let output = run(&["bench", "restart", "--clients", "20", "--rounds", "2", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let restart: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!((&restart["clients"], &restart["rounds"]), (&20.into(), &2.into()), "{restart}");
    assert_eq!(restart["other_addresses"], 0, "{restart}");
    // Who is told that its session is unknown asks three times, 20 ms each, before it believes it.
    assert!(restart["away_p50_ms"].as_f64() >= Some(60.0), "{restart}");
}

#[test]
fn a_seed_replays_and_seeds_differ() {
    let hash = |seed: &str| {
        let output = run(&["sim", "--seed", seed, "--json", "--seconds", "20"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["trace_hash"].clone()
    };
    assert_eq!(hash("11"), hash("11"));
    assert_ne!(hash("11"), hash("12"));
}

#[test]
fn mistakes_are_explained() {
    let mut settings = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    writeln!(settings, "[relay]\nmode = \"immediate\"\nticks = 3").unwrap();
    let path = settings.path().to_str().unwrap();
    let trace = small_trace();
    let trace = trace.path().to_str().unwrap();
    let cases: [(&[&str], &[&str]); 10] = [
        (&["relay", "--settings", path], &[path, ":3:", "no key ticks; tick_ms in [relay]"]),
        (&["relay", "--console", "0.0.0.0:0"], &["error: --console: ", "--insecure"]),
        (&["relay", "--max-subscriptions", "-1"], &["--max-subscriptions: -1 is out of range"]),
        (&["relay", "--listen", "0.0.0.0:1"], &["--listen", "--trust", "--open"]),
        (&["relay", "--mode", "fast"], &["--mode", "immediate or periodic"]),
        (&["relay", "--engine", "warp"], &["--engine", "choose auto, sendto"]),
        (
            &["bots", "--trace", "nowhere.csv", "--relay", "127.0.0.1:9"],
            &["nowhere.csv", "--trace"],
        ),
        (
            &["bots", "--trace", trace, "--relay", "127.0.0.1:9", "--speed", "0"],
            &["error: --speed 0 is no speed"],
        ),
        (&["bench", "relay", "--n", "7"], &["no case passes these filters"]),
        (&["bench", "relay", "--engine", "warp"], &["--engine", "choose auto, sendto"]),
    ];
    for (args, parts) in cases {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{args:?}");
        for part in parts {
            assert!(error.contains(part), "{args:?}: {error}");
        }
        assert!(error.matches("No such file").count() <= 1 && !error.contains("inf s"), "{error}");
    }
}

#[test]
fn mistakes_in_the_environment_name_the_variable() {
    for (name, value, complaint) in [
        ("CANOPY_TICK_MS", "abc", "error: CANOPY_TICK_MS: \"abc\" is no whole number; give one"),
        ("CANOPY_THREADS", "-1", "error: CANOPY_THREADS: -1 is out of range; choose 1 to 64"),
        ("CANOPY_INSECURE", "perhaps", "error: CANOPY_INSECURE: \"perhaps\" is neither yes nor no"),
        ("CANOPY_CONSOLE", "0.0.0.0:0", "error: CANOPY_CONSOLE: 0.0.0.0:0 can be reached"),
        ("CANOPY_LOG", "canopy=loud", "error: CANOPY_LOG: \"canopy=loud\" cannot be understood"),
        ("CANOPY_LOG", "loud", "error: CANOPY_LOG: \"loud\" is no level; give a level (error, "),
    ] {
        let args = ["relay", "--listen", "127.0.0.1:0"];
        let output = canopy(&args).env(name, value).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.starts_with(complaint), "{error}");
    }
}

#[test]
fn a_taken_address_is_refused_and_a_demo_finds_another() {
    for threads in ["1", "2"] {
        let relay = Server::relay(&["--threads", threads]);
        let taken = relay.address("relay").to_string();
        for threads in ["1", "2"] {
            let output = run(&["relay", "--listen", &taken, "--threads", threads]);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{error}");
            assert!(error.contains(&taken) && error.contains("--listen"), "{error}");
        }
        let flags = ["--json", "--walkers", "2", "--console", "127.0.0.1:0", "--listen", &taken];
        let demo = Server::start(&[&["demo"], &flags[..], &["--threads", "2"]].concat());
        assert_ne!(demo.address("relay"), relay.address("relay"));
        assert_eq!(relay.terminate()["totals"]["counters"]["datagrams_in"], 0);
    }
}

#[test]
fn a_relay_whose_logs_nobody_reads_still_drains() {
    let args = ["relay", "--listen", "127.0.0.1:0", "--json"];
    let mut relay = Server::start_telling(&args, Stdio::piped());
    let mut first = String::new();
    relay.logs().read_line(&mut first).unwrap();
    assert!(first.contains("serving") && !first.contains('\x1b'), "{first:?}");
    assert_eq!(relay.terminate()["event"], "stopped");
}

#[test]
fn a_relay_admits_as_many_as_it_says() {
    let trace = small_trace();
    let roomy = Server::relay(&["--threads", "2", "--max-sessions", "8"]);
    assert_all_right(&bots(&roomy, trace.path(), &["--speed", "4"]));
    let flags = ["--threads", "2", "--max-sessions", "7", "--metrics", "127.0.0.1:0"];
    // Sessions that are merely lost last longer than anybody waits here.
    let tight = Server::relay(&[&flags[..], &["--session-lifetime-ms", "3600000"]].concat());
    let address = tight.address("relay").to_string();
    let output = run(&["bots", "--relay", &address, "--trace", trace.path().to_str().unwrap()]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("Full"), "{error}");
    // They left in order.
    get_until(tight.address("metrics"), "/metrics", "canopy_relay_sessions 0\n");
    assert_eq!(tight.terminate()["totals"]["counters"]["sessions_opened"], 7);
}

#[test]
fn the_environment_wins_over_the_file() {
    let mut settings = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    writeln!(settings, "[relay]\nlisten = \"0.0.0.0:0\"\nopen = true").unwrap();
    let args = ["relay", "--engine", "warp", "--settings", settings.path().to_str().unwrap()];
    for (open, complaint) in [("0", "--open"), ("false", "--open"), ("1", "warp"), ("true", "warp")]
    {
        let output = canopy(&args).env("CANOPY_OPEN", open).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(complaint), "{open}: {error}");
    }
}

#[test]
fn bots_without_a_relay_say_so() {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let trace = small_trace();
    let output =
        run(&["bots", "--relay", &free, "--trace", trace.path().to_str().unwrap(), "--json"]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(&free) && error.contains("canopy relay"), "{error}");
}

#[test]
fn the_demo_has_a_picture() {
    let flags = ["--json", "--walkers", "40", "--world", "plaza", "--metrics", "127.0.0.1:0"];
    let demo = Server::start(&[&["demo"], &flags[..]].concat());
    let url = demo.ready["console"].as_str().unwrap().to_owned();
    let address = url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let mut stream = TcpStream::connect::<std::net::SocketAddr>(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /events?viewer=3 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let received = lines
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .find(|frame| frame["viewer"]["received"].as_array().is_some_and(|list| !list.is_empty()));
    assert!(received.is_some(), "the viewer receives");
    for address in [address, demo.address("metrics")] {
        assert!(get(address, "/metrics").contains("canopy_relay_deliveries_out_total"));
    }
    assert!(get(address, "/").contains("<title>"));
}

/// All floods at once, weakly, so that it holds on a machine that does something else, too.
#[test]
fn floods_cost_a_crowd_no_session_and_no_update_that_the_kernel_took() {
    let walkers = "20";
    let flags = ["--seconds", "2", "--walkers", walkers, "--together", "--strength", "0.02"];
    let output = run(&[&["bench", "flood", "--json"], &flags[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("needs two processors") {
        return println!("skipped: {said}");
    }
    let rows = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let [quiet, flood] = &rows[..] else { panic!("{rows:?}: {said}") };
    assert_eq!((&quiet["attack"], &flood["attack"]), (&"quiet".into(), &"together".into()));
    let number = |of: &Value| of.as_u64().unwrap_or_default();
    for row in &rows {
        assert!(number(&row["deliveries"]) > 0, "{row}");
        assert_eq!(number(&row["reconnects"]), 0, "{row}");
        // Whoever is not heard is missed by all others at most.
        let lost = number(&row["drops"]["receive_queue_full"]);
        let others = walkers.parse::<u64>().unwrap() - 1;
        assert!(number(&row["missing"]) <= lost * others, "{row}");
    }
    // Each of them reached the relay: garbage, hellos, what says it is sealed, updates that went through, and
    // changes of subscriptions.
    assert!(flood["packets_per_second"].as_f64() > Some(5_000.0), "{flood}");
    assert!(number(&flood["updates_heard"]) > 0, "{flood}");
    for reason in ["version", "forged", "subscribe_rate"] {
        assert!(number(&flood["drops"][reason]) > 0, "{reason}: {flood}");
    }
}
