//! A relay as its users meet it: from a shell, and from the Rust SDK.

use crate::support::{Server, canopy, get_until, run};
use canopy_client::{Client, Event, Group, Level};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Child, Stdio};

const CLIENTS: usize = 16;
const UPDATES: u8 = 20;
const GROUP: Group = Group::new(7);

/// `canopy sub` with its flags, once it is subscribed.
fn subscribed(flags: &[&str]) -> Child {
    let mut command = canopy(&[&["sub"], flags].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("subscribed to "), "{told}");
    child
}

fn output_of(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_a_shell_publishes_another_shell_prints() {
    let relay = Server::relay(&["--threads", "2"]);
    let at = relay.address("relay").to_string();
    // Where this is ::1 first, the relay is found at the second address.
    let by_name = format!("localhost:{}", relay.address("relay").port());
    let near = subscribed(&["7", "8", "--level", "1", "--count", "4", "--json", "--relay", &at]);
    let far = subscribed(&["8", "--count", "2", "--relay", &at]);
    for args in [["7", "hello", "0"], ["9", "not this", "0"], ["8", "fine", "1"]] {
        let [group, text, level] = args;
        let output = run(&["pub", group, text, "--level", level, "--relay", &by_name]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut lines = canopy(&["pub", "8", "--relay", &at]);
    let mut lines = lines.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    lines.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    assert!(lines.wait().unwrap().success());
    let near: Vec<Value> =
        output_of(near).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let got = near.iter().map(|update| (&update["group"], &update["level"], &update["text"]));
    let got: Vec<String> =
        got.map(|(group, level, text)| format!("{group} {level} {text}")).collect();
    assert_eq!(got, ["7 0 \"hello\"", "8 1 \"fine\"", "8 0 \"one\"", "8 0 \"two\""]);
    let far = output_of(far);
    let far: Vec<_> = far.lines().map(|line| line.rsplit("  ").next().unwrap()).collect();
    assert_eq!(far, ["one", "two"], "level 1 is not for a subscription at level 0");
    assert_eq!(relay.terminate()["totals"]["sessions"], 0, "everybody has left");
}

#[test]
fn a_ping_measures_round_trips() {
    for mode in [&["--mode", "immediate"][..], &["--mode", "periodic", "--tick-ms", "5"]] {
        let relay = Server::relay(mode);
        let at = relay.address("relay").to_string();
        let args = ["ping", "--count", "5", "--interval-ms", "1", "--relay", &at];
        let output = run(&[&args[..], &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!([&told["sent"], &told["received"]], [5, 5], "{told}");
        let [min, median, p99] =
            ["min_ms", "median_ms", "p99_ms"].map(|key| told[key].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= p99, "{told}");
        let words = String::from_utf8(run(&args).stdout).unwrap();
        assert!(words.lines().last().unwrap().contains("5 sent, 5 came back; min "), "{words}");
        assert_eq!(words.lines().count(), 6, "{words}");
    }
}

#[test]
fn joins_and_leaves_are_logged_for_whoever_asks() {
    let mut command = canopy(&["relay", "--listen", "127.0.0.1:0", "--json"]);
    command.args(["--log-format", "json"]).env("CANOPY_LOG", "canopy=debug");
    command.stderr(Stdio::piped());
    let mut relay = Server::spawn(command);
    let at = relay.address("relay").to_string();
    let mut logs = relay.logs().lines().map(|line| line.unwrap());
    assert!(run(&["pub", "7", "hello", "--relay", &at]).status.success());
    let mut who = |what: &str| {
        let line = logs.find(|line| line.contains(what)).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["fields"]["address"].clone()
    };
    let joined = who("\"message\":\"joined\"");
    assert!(joined.is_string());
    assert_eq!(who("\"message\":\"left\""), joined);
}

#[test]
fn nobody_there_and_refusals_are_said() {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let relay = Server::relay(&[]);
    let at = relay.address("relay").to_string();
    let cases: [(&[&str], &str); 5] = [
        (&["ping", "--relay", &free], "nothing listens on that port; start the relay"),
        (&["sub", "7", "--relay", &at, "--comtree", "9"], "does not carry comtree 9; add it"),
        (&["pub", "7", "x", "--relay", "nowhere"], "no address for the relay \"nowhere\""),
        (&["pub", "7", &"x".repeat(2000), "--relay", &at], "has 2000 bytes, more than"),
        (&["sub", "2147483648", "--relay", &at], "2147483648 is not in 0..2147483648"),
    ];
    for (args, complaint) in cases {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(complaint), "{args:?}: {error}");
    }
}

/// Sixteen clients of the SDK on a relay of two data threads: each hears everybody else's updates
/// in their order, up to its level; and when the relay drains, all of them learn of it.
#[test]
fn clients_of_the_sdk_meet_across_data_threads() {
    let relay = Server::relay(&["--threads", "2", "--metrics", "127.0.0.1:0"]);
    let at = relay.address("relay");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client = Client::builder(at).connect().await.unwrap();
            client.subscribe(GROUP, Level((number % 2) as u8)).await.unwrap();
            clients.push(client);
        }
        for number in 0..UPDATES {
            for client in &clients {
                client.publish(GROUP, Level(number % 2), &[number]).unwrap();
            }
        }
        for (number, client) in clients.iter().enumerate() {
            hears_everybody_else(client, 2 - number % 2).await;
        }
        // The clients live on while the relay drains.
        let drain = move || {
            let sessions = format!("canopy_relay_sessions {CLIENTS}\n");
            get_until(relay.address("metrics"), "/metrics", &sessions);
            relay.terminate()["totals"].clone()
        };
        let totals = tokio::task::spawn_blocking(drain).await.unwrap();
        assert_eq!(totals["sessions"], 0, "{totals}");
        assert_eq!(totals["drops"], serde_json::json!({}), "{totals}");
        for client in clients {
            let joined = client.next_event().await;
            assert!(matches!(joined, Some(Event::Connected { .. })), "{joined:?}");
            assert_eq!(client.next_event().await, Some(Event::Lost));
        }
    });
}

/// Every `step`-th update of each of the others, in their order, and nothing else.
async fn hears_everybody_else(client: &Client, step: usize) {
    let mut next = BTreeMap::new();
    for _ in 0..(CLIENTS - 1) * usize::from(UPDATES) / step {
        let update = client.recv().await.unwrap();
        let expected = next.entry(update.from).or_insert(0);
        assert_eq!(update.payload[..], [*expected], "in order, from {}", update.from);
        *expected += step as u8;
    }
    assert!(next.len() == CLIENTS - 1 && client.try_recv().is_none(), "and no more");
}
