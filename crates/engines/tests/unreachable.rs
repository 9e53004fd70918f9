//! Receivers that answer no ARP: they do not stop the others, and the relay can learn of them.

use canopy_batch::SendBatch;
use canopy_engines::{Engine, EngineChoice, EngineName, Namespace, NeighbourEvent, NeighbourWatch};
use canopy_net::{
    Clock, Receiver, SendEngine, Socket, SocketOptions, Waker, listen, wait_readable,
};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
/// For each family: the near host's address, the far host's, and three that nobody has.
const CASES: [(&str, &str, [&str; 3]); 2] = [
    ("10.77.0.1", "10.77.0.2", ["10.77.0.50", "10.77.0.51", "10.77.0.52"]),
    ("fd77::1", "fd77::2", ["fd77::50", "fd77::51", "fd77::52"]),
];
const BYTES: usize = 1200;
/// Far more than the kernel keeps for one that does not answer, a few at a time.
const ROUNDS: usize = 100;
const EACH: usize = 4;

fn hosts() -> Option<(Namespace, Namespace)> {
    let made = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
    let (near, far) = made.inspect_err(|error| println!("skipped: {error}")).ok()?;
    Namespace::join(&near, &far).unwrap();
    Some((near, far))
}

fn address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 0)
}

#[test]
fn who_does_not_answer_does_not_stop_the_others() {
    let Some((near, far)) = hosts() else { return };
    for (here, there, nobody) in CASES {
        let options = SocketOptions::default();
        let sockets = near.run(|| listen(address(here), 1, &options)).unwrap().unwrap();
        let relay = sockets[0].sending();
        let gso = EngineChoice::Named(EngineName::Gso);
        let mut engine = near.run(|| Engine::open(gso, relay)).unwrap().unwrap();
        let honest = far.run(|| Socket::bind(address(there), &options)).unwrap().unwrap();
        let mut heard = 0;
        for round in 0..ROUNDS {
            let mut batch = SendBatch::new();
            for ip in nobody {
                let to = SocketAddr::new(ip.parse().unwrap(), 4040);
                batch.push_burst(to, &[&[1; EACH * BYTES]], BYTES as u16);
            }
            batch.push_burst(honest.local_address(), &[&[1; EACH * BYTES]], BYTES as u16);
            let report = engine.send(relay, &batch, &mut Vec::new()).report;
            let all = (EACH * (1 + nobody.len())) as u64;
            assert_eq!((report.sent, report.waits), (all, 0), "{here}, round {round}: {report:?}");
            heard += receive(&honest, EACH);
        }
        assert_eq!(heard, ROUNDS * EACH, "{here}");
    }
}

/// How many of so many datagrams arrive.
fn receive(socket: &Socket, count: usize) -> usize {
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + PATIENCE;
    let (mut pieces, mut received) = (Receiver::new(4, 65_535), 0);
    while received < count && clock.now() < deadline {
        wait_readable(socket, &waker, &clock, Some(deadline)).unwrap();
        while pieces.receive(socket, |_, _| received += 1).unwrap() {}
    }
    received
}

#[test]
fn who_does_not_answer_is_told_and_who_does_again() {
    let Some((near, far)) = hosts() else { return };
    for family in ["ipv4", "ipv6"] {
        // The kernel asks three times; this often.
        let path = format!("/proc/sys/net/{family}/neigh/near/retrans_time_ms");
        near.run(|| std::fs::write(&path, "20")).unwrap().unwrap();
    }
    let mut watch = near.run(NeighbourWatch::open).unwrap().unwrap();
    assert_eq!(watch.next(), None, "nothing has happened");
    for (here, _, [ip, ..]) in CASES {
        let sender = near.run(|| UdpSocket::bind(address(here))).unwrap().unwrap();
        let to = SocketAddr::new(ip.parse().unwrap(), 4040);
        let mut tells = |reachable: bool| {
            let begun = Instant::now();
            let event = NeighbourEvent { ip: to.ip(), reachable };
            sender.send_to(b"hello", to).unwrap();
            while !watch.by_ref().any(|told| told == event) {
                assert!(begun.elapsed() < PATIENCE, "{event:?}");
                std::thread::sleep(Duration::from_millis(10));
                if reachable {
                    // A busy machine may answer later than the kernel asks. What is sent then asks anew,
                    // unless the socket is told of the one before.
                    let _ = sender.send_to(b"hello", to);
                }
            }
        };
        tells(false);
        tells(false);
        let (prefix, nodad) = if to.is_ipv4() { (16, "") } else { (64, "nodad") };
        far.ip(&format!("addr add {ip}/{prefix} dev far {nodad}")).unwrap();
        tells(true);
    }
}
