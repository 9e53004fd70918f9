//! A relay process of many data threads: what its metrics count, and how large it grows.

#[path = "../../../node/tests/peers/mod.rs"]
mod peers;

use crate::support::{Server, get, run};
use canopy_wire::Group;
use peers::{LIMIT, Peer, Place};
use std::io::Write;
use std::time::{Duration, Instant};

const WORLD: Group = Group::new(1);
/// Why one of two subscribers may not have got an update, and how many of them.
const LOSSES: [(&str, u64); 5] = [
    ("receive_queue_full", 2),
    ("siblings_full", 1),
    ("pending_full", 1),
    ("send_queue_full", 1),
    ("send_failed", 1),
];

#[test]
fn metrics_count_what_a_small_receive_buffer_loses() {
    let flags = ["--threads", "3", "--receive-buffer", "4096", "--metrics", "127.0.0.1:0"];
    // Peers say nothing by themselves.
    let relay = Server::relay(&[&flags[..], &["--session-lifetime-ms", "3600000"]].concat());
    let place = Place { relay: relay.address("relay"), threads: 3, ..Place::default() };
    let mut publisher = Peer::join(place, 0, &[]);
    let mut subscribers = [1, 2].map(|seed| Peer::join(place, seed, &[WORLD]));
    let deadline = Instant::now() + 2 * LIMIT;
    let mut lost = 0;
    let mut is_even = false;
    // The kernel tells of a loss with the next datagram only.
    while lost == 0 || !is_even {
        let burst = if lost == 0 { 500 } else { 1 };
        (0..burst).for_each(|_| publisher.publish(WORLD));
        let look_again = Instant::now() + Duration::from_secs(1);
        is_even = false;
        while !is_even && Instant::now() < look_again {
            let page = get(relay.address("metrics"), "/metrics");
            let dropped = |reason: &str| metric(&page, &format!("{{reason=\"{reason}\"}}"));
            let mut heard = 0;
            for subscriber in &mut subscribers {
                subscriber.take();
                heard += subscriber.received + u64::from(subscriber.socket.lost());
            }
            let counted: u64 = LOSSES.iter().map(|(reason, of)| dropped(reason) * of).sum();
            let sent = 2 * publisher.published();
            assert!(heard + counted <= sent, "{heard} + {counted} of {sent}: {page}");
            assert!(Instant::now() < deadline, "{heard} + {counted} of {sent}: {page}");
            lost = dropped("receive_queue_full");
            is_even = heard + counted == sent;
        }
    }
}

/// The total of a drop reason on the page of metrics.
fn metric(page: &str, labels: &str) -> u64 {
    let name = format!("canopy_relay_drops_total{labels} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// 144 walkers in nine small squares, ten positions a second, for three seconds.
fn walkers() -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    writeln!(file, "t,id,x,y").unwrap();
    for step in 0..30 {
        for walker in 0..144 {
            let (t, square) = (f64::from(step) * 0.1, f64::from(walker % 9) * 8.0);
            let x = square + f64::from(step) * 0.1;
            writeln!(file, "{t:.3},{walker},{x:.3},{:.3}", f64::from(walker / 9) * 0.3).unwrap();
        }
    }
    file
}

#[test]
fn sixteen_data_threads_stay_small() {
    const MOST: u64 = 300 << 10;
    let relay = Server::relay(&["--threads", "16"]);
    let (address, trace) = (relay.address("relay").to_string(), walkers());
    let trace = trace.path().to_str().unwrap();
    // Slowly: these are more threads than a machine that tests has processors.
    let args = ["bots", "--json", "--speed", "0.5", "--relay", &address, "--trace", trace];
    let output = run(&args);
    let told =
        [output.stderr, output.stdout].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{told:?}");
    let report: serde_json::Value = serde_json::from_str(&told[1]).unwrap();
    assert_eq!(report["clients"], 144, "{report}");
    assert!(report["deliveries"].as_u64() > Some(50_000), "{report}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.process())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    println!("{kib} KiB at most");
    assert!(kib <= MOST, "{kib} KiB, more than {MOST}");
}
