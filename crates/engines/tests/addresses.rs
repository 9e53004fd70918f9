//! A host with several addresses answers from the one that it was asked at.

use canopy_batch::SendBatch;
use canopy_engines::{Engine, EngineChoice, EngineName, Namespace};
use canopy_net::{Clock, Receiver, SendEngine, Socket, SocketOptions, Waker, wait_readable};
use canopy_wire::Path;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
const ENGINES: [EngineName; 4] =
    [EngineName::Sendto, EngineName::Sendmmsg, EngineName::Gso, EngineName::Uring];
/// What the near host is bound to, and its addresses that the far host asks at.
const CASES: [(&str, &[&str]); 5] = [
    ("0.0.0.0", &["10.77.0.1", "10.77.0.9"]),
    ("::", &["fd77::1", "fd77::9", "fe80::77", "10.77.0.1", "10.77.0.9"]),
    ("10.77.0.9", &["10.77.0.9"]),
    ("fd77::9", &["fd77::9"]),
    ("fe80::77", &["fe80::77"]),
];

#[test]
fn answers_leave_from_the_address_that_was_asked() {
    let made = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
    let (near, far) = match made {
        Ok(hosts) => hosts,
        Err(error) => return println!("skipped: {error}"),
    };
    Namespace::join(&near, &far).unwrap();
    near.ip("addr add 10.77.0.9/16 dev near").unwrap();
    near.ip("addr add fd77::9/64 dev near nodad").unwrap();
    near.ip("addr add fe80::77/64 dev near nodad").unwrap();
    far.ip("addr add fe80::78/64 dev far nodad").unwrap();
    for (bound, asked) in CASES {
        for name in ENGINES {
            let serving = || bind(bound, "near", true);
            let relay = near.run(serving).unwrap();
            assert!(relay.notices_full_queues(), "{bound}");
            let mut engine =
                match near.run(|| Engine::open(EngineChoice::Named(name), &relay)).unwrap() {
                    Ok(engine) => engine,
                    Err(error) => {
                        println!("skipped: {error}");
                        continue;
                    }
                };
            for ip in asked {
                let what = format!("{name}, bound to {bound}, asked at {ip}");
                ask(&far, &relay, &mut engine, ip, &what);
            }
        }
    }
}

/// Lets the far host ask the relay at `ip`, and hears the answers.
fn ask(far: &Namespace, relay: &Socket, engine: &mut Engine, ip: &str, what: &str) {
    let any = if ip.starts_with("fe80") {
        "fe80::78"
    } else if ip.contains(':') {
        "::"
    } else {
        "0.0.0.0"
    };
    let asker = far.run(|| bind(any, "far", false)).unwrap();
    let mut to = far.run(|| scoped(ip, "far")).unwrap();
    to.set_port(relay.local_address().port());
    // Connected, it hears only who it asked.
    far.run(|| asker.connect(to)).unwrap().unwrap();
    asker.send(b"who are you?").unwrap();
    let asked = receive(relay, 1);
    let (path, question) = &asked[0];
    assert_eq!(question, b"who are you?", "{what}");
    let bound = relay.local_address().ip();
    let local = bound.is_unspecified().then(|| path.local.map(|local| local.to_canonical()));
    assert_eq!(local.unwrap_or(path.local), bound.is_unspecified().then(|| ip.parse().unwrap()));

    let mut batch = SendBatch::new();
    batch.push_datagram(*path, b"one");
    batch.push_burst(*path, &[b"two", b"three"], 4);
    let report = engine.send(relay, &batch, &mut Vec::new()).report;
    assert_eq!((report.sent, report.failed), (3, 0), "{what}");
    let heard: Vec<Vec<u8>> = receive(&asker, 3).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(heard, [&b"one"[..], b"twot", b"hree"], "{what}");
}

/// A socket at this address; a link-local one is on `device`.
fn bind(ip: &str, device: &str, serves_many: bool) -> Socket {
    let options = SocketOptions { serves_many, ..SocketOptions::default() };
    Socket::bind(scoped(ip, device), &options).unwrap()
}

/// The address with port 0, and the device's number if it means nothing without.
fn scoped(ip: &str, device: &str) -> SocketAddr {
    let mut address = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0);
    if let SocketAddr::V6(v6) = &mut address
        && v6.ip().is_unicast_link_local()
    {
        let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap();
        let line = table.lines().find(|line| line.ends_with(device)).unwrap();
        let number = line.split_whitespace().nth(1).unwrap();
        v6.set_scope_id(u32::from_str_radix(number, 16).unwrap());
    }
    address
}

fn receive(socket: &Socket, count: usize) -> Vec<(Path, Vec<u8>)> {
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + PATIENCE;
    let (mut pieces, mut all) = (Receiver::new(4, 65_535), Vec::new());
    while all.len() < count && clock.now() < deadline {
        wait_readable(socket, &waker, &clock, Some(deadline)).unwrap();
        while pieces.receive(socket, |from, bytes| all.push((from, bytes.to_vec()))).unwrap() {}
    }
    assert_eq!(all.len(), count);
    all
}
