//! ICMP messages that somebody forges about what a relay sends disturb nothing.

use canopy_batch::SendBatch;
use canopy_engines::{Engine, EngineChoice, EngineName, Namespace};
use canopy_net::{Clock, Receiver, SendEngine, Socket, SocketOptions, Waker, wait_readable};
use socket2::{Domain, Protocol, Type};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// A burst of three datagrams, longer than the path MTU that is forged.
const SEGMENT: usize = 1400;
const BURST: [u8; 3 * SEGMENT] = [7; 3 * SEGMENT];
/// Each is sent about each receiver.
const FORGED: usize = 20;
const RECEIVERS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// What the near host's socket is bound to, its address, and the far host's.
const CASES: [[&str; 3]; 7] = [
    ["10.77.0.1", "10.77.0.1", "10.77.0.2"],
    ["10.77.0.9", "10.77.0.9", "10.77.0.2"],
    ["0.0.0.0", "10.77.0.1", "10.77.0.2"],
    ["fd77::1", "fd77::1", "fd77::2"],
    ["fd77::9", "fd77::9", "fd77::2"],
    ["::", "fd77::9", "fd77::2"],
    ["::", "::ffff:10.77.0.1", "::ffff:10.77.0.2"],
];

#[test]
fn forged_icmp_does_not_disturb_what_is_sent() {
    let Some((near, far)) = hosts() else { return };
    for [bound, from, to] in CASES {
        let options = SocketOptions { serves_many: true, ..SocketOptions::default() };
        let relay = near.run(|| Socket::bind(address(bound, 0), &options)).unwrap().unwrap();
        assert!(relay.notices_full_queues(), "{bound}");
        let gso = EngineChoice::Named(EngineName::Gso);
        let mut engine = match near.run(|| Engine::open(gso, &relay)).unwrap() {
            Ok(engine) => engine,
            Err(error) => return println!("skipped: {error}"),
        };
        let bind = || Socket::bind(address(to, 0), &SocketOptions::default()).unwrap();
        let receivers: Vec<Socket> = far.run(|| (0..RECEIVERS).map(|_| bind()).collect()).unwrap();
        let quoted = address(from, relay.local_address().port());
        let mut serve = |what: &str| {
            let mut batch = SendBatch::new();
            for receiver in &receivers {
                batch.push_burst(receiver.local_address(), &[&BURST], SEGMENT as u16);
            }
            let report = engine.send(&relay, &batch, &mut Vec::new()).report;
            let all = 3 * RECEIVERS as u64;
            let whole = (report.sent, report.failed, report.fallbacks, report.waits);
            assert_eq!(whole, (all, 0, 0, 0), "{bound}, {what}");
            for receiver in &receivers {
                let sources = sources(receiver);
                assert_eq!(sources, [quoted; 3], "{bound}, {what}");
            }
        };
        serve("before");
        for receiver in &receivers {
            for message in forged(quoted, receiver.local_address()) {
                forge(&near, &far, quoted.ip().to_canonical(), &message);
            }
        }
        // Nobody is told: neither the next call nor who waits.
        let told = socket2::SockRef::from(&relay).take_error().unwrap();
        assert!(told.is_none(), "{bound}: {told:?}");
        serve("after");
    }
}

#[test]
fn what_the_device_is_too_narrow_for_arrives_in_fragments() {
    let Some((near, far)) = hosts() else { return };
    near.ip("link set near mtu 1280").unwrap();
    for [bound, _, to] in CASES {
        let options = SocketOptions { serves_many: true, ..SocketOptions::default() };
        let relay = near.run(|| Socket::bind(address(bound, 0), &options)).unwrap().unwrap();
        let bind = || Socket::bind(address(to, 0), &SocketOptions::default()).unwrap();
        let receiver = far.run(bind).unwrap();
        let mut engine = near.run(|| Engine::open(EngineChoice::Auto, &relay)).unwrap().unwrap();
        let mut batch = SendBatch::new();
        batch.push_burst(receiver.local_address(), &[&BURST], SEGMENT as u16);
        let report = engine.send(&relay, &batch, &mut Vec::new()).report;
        assert_eq!((report.sent, report.failed), (3, 0), "{bound}");
        assert_eq!(sources(&receiver).len(), 3, "{bound}");
    }
}

/// Two hosts on one cable, the near one with a second address of each family; or why not.
fn hosts() -> Option<(Namespace, Namespace)> {
    let made = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
    let (near, far) = made.inspect_err(|error| println!("skipped: {error}")).ok()?;
    Namespace::join(&near, &far).unwrap();
    near.ip("addr add 10.77.0.9/16 dev near").unwrap();
    near.ip("addr add fd77::9/64 dev near nodad").unwrap();
    Some((near, far))
}

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Where the three datagrams came from that arrive at `receiver`.
fn sources(receiver: &Socket) -> Vec<SocketAddr> {
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + PATIENCE;
    let (mut pieces, mut sources) = (Receiver::new(4, 65_535), Vec::new());
    while sources.len() < 3 && clock.now() < deadline {
        wait_readable(receiver, &waker, &clock, Some(deadline)).unwrap();
        while pieces.receive(receiver, |from, _| sources.push(from.remote)).unwrap() {}
    }
    sources
}

/// Sends the message so often, and waits until it has arrived.
fn forge(near: &Namespace, far: &Namespace, to: IpAddr, message: &[u8]) {
    let (domain, protocol) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let before = received_icmp(near);
    let forge = || {
        let raw = socket2::Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
        for _ in 0..FORGED {
            raw.send_to(message, &SocketAddr::new(to, 0).into()).unwrap();
        }
    };
    far.run(forge).unwrap();
    let begun = Instant::now();
    while received_icmp(near) < before + FORGED as u64 {
        assert!(begun.elapsed() < PATIENCE, "the forged messages arrive");
        std::thread::yield_now();
    }
}

/// ICMP messages of either family that a host has received.
fn received_icmp(host: &Namespace) -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let (v4, v6) = host
        .run(|| (read("/proc/thread-self/net/snmp"), read("/proc/thread-self/net/snmp6")))
        .unwrap();
    let numbers =
        |line: &str| line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
    let v4 = v4.lines().filter(|line| line.starts_with("Icmp: ")).find_map(numbers);
    let v6 = v6.lines().filter(|line| line.starts_with("Icmp6InMsgs")).find_map(numbers);
    v4.unwrap_or(0) + v6.unwrap_or(0)
}

/// "Too big" and "nobody listens", about a datagram of `from`'s to `to`.
fn forged(from: SocketAddr, to: SocketAddr) -> [Vec<u8>; 2] {
    let mut udp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    udp.extend([(SEGMENT + 8).to_be_bytes()[6..].to_vec(), vec![0; 2]].concat());
    match (from.ip().to_canonical(), to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut quoted = vec![0x45, 0, 0x05, 0x94, 0, 0, 0, 0, 64, 17, 0, 0];
            quoted.extend([from.octets(), to.octets()].concat());
            quoted.extend(udp);
            let message = |code: u8, mtu: u16| {
                let mut message = vec![3, code, 0, 0, 0, 0];
                message.extend(mtu.to_be_bytes());
                message.extend(&quoted);
                let sum = checksum(&message);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                message
            };
            [message(4, 560), message(3, 0)]
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut quoted = vec![0x60, 0, 0, 0, 0x05, 0x80, 17, 64];
            quoted.extend([from.octets(), to.octets()].concat());
            quoted.extend(udp);
            // The kernel fills in the checksum.
            let message = |kind: u8, code: u8, mtu: u32| {
                let mut message = vec![kind, code, 0, 0];
                message.extend(mtu.to_be_bytes());
                message.extend(&quoted);
                message
            };
            [message(2, 0, 1280), message(1, 4, 0)]
        }
        _ => panic!("both are of one family"),
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
