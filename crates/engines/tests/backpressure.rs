//! A device that is slower than its sender holds nobody up, and costs nobody a datagram.

use canopy_batch::{Segments, SendBatch};
use canopy_engines::{Engine, EngineChoice, EngineName, Namespace};
use canopy_net::{
    Clock, Outlet, Receiver, ReceiverSet, SendReport, Socket, SocketOptions, Waker, wait_readable,
};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

const BYTES: usize = 1200;
const MEMBERS: usize = 20;
const ROUNDS: u8 = 10;
/// 20 Mbit/s; the queue holds 50 of the datagrams, a round is 20.
const SLOW: &str = "qdisc add dev near root tbf rate 20mbit burst 16k limit 60k";
/// A datagram takes ten seconds; the queue holds three.
const STUCK: &str = "qdisc add dev near root tbf rate 1kbit burst 1600 limit 4k";
/// One send buffer below the queue's limit, and one far above it.
const SEND_BUFFERS: [usize; 2] = [16 << 10, 1 << 20];

/// Attempts in vain for each datagram sent, at most: pauses leave room for two or three, and there are a
/// hundred where nothing waits.
const MOST_WAITS: u64 = 10;

/// The addresses of the near and the far host.
const HOSTS: [(&str, &str); 2] = [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")];

/// Two hosts, of which the near one sends slowly.
fn shaped_network(shaper: &str) -> Option<(Namespace, Namespace)> {
    let shaped = || {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        Namespace::join(&near, &far)?;
        for (from, to) in HOSTS {
            meet(&near.run(|| bind(from))?, &far.run(|| bind(to))?);
        }
        let tc = near.run(|| Command::new("tc").args(shaper.split(' ')).output())??;
        let said = String::from_utf8_lossy(&tc.stderr).into_owned();
        if tc.status.success() { Ok((near, far)) } else { Err(std::io::Error::other(said)) }
    };
    shaped().inspect_err(|error: &std::io::Error| println!("skipped: {error}")).ok()
}

fn bind(ip: &str) -> Socket {
    let address = SocketAddr::new(ip.parse().unwrap(), 0);
    Socket::bind(address, &SocketOptions::default()).unwrap()
}

/// Lets two hosts find each other's hardware addresses: till then a host keeps what it sends.
fn meet(near: &Socket, far: &Socket) {
    near.connect(far.local_address()).unwrap();
    near.send(b"hello").unwrap();
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + Duration::from_secs(10);
    assert!(wait_readable(far, &waker, &clock, Some(deadline)).unwrap(), "they never met");
}

/// The far end's sockets, each with room for all that it is sent.
fn members(far: &Namespace, ip: &str) -> Vec<Socket> {
    far.run(|| (0..MEMBERS).map(|_| bind(ip)).collect()).unwrap()
}

/// What each round's datagram begins with, in the order in which they arrive.
fn arrived(member: &Socket) -> Vec<u8> {
    let mut receiver = Receiver::new(4, 65_535);
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + Duration::from_secs(5);
    let mut rounds = Vec::new();
    while rounds.len() < usize::from(ROUNDS) && clock.now() < deadline {
        wait_readable(member, &waker, &clock, Some(deadline)).unwrap();
        while receiver.receive(member, |_, bytes| rounds.push(bytes[0])).unwrap() {}
    }
    rounds
}

const ENGINES: [EngineName; 4] =
    [EngineName::Sendto, EngineName::Sendmmsg, EngineName::Gso, EngineName::Uring];

/// A sender on the near host with an engine, if that works here.
fn open(near: &Namespace, ip: &str, name: EngineName, send_buffer: usize) -> Option<Sender> {
    let options = SocketOptions { send_buffer, serves_many: true, ..SocketOptions::default() };
    let address = SocketAddr::new(ip.parse().unwrap(), 0);
    let socket = near.run(|| Socket::bind(address, &options)).unwrap().unwrap();
    let engine = Engine::open(EngineChoice::Named(name), &socket);
    let engine = engine.inspect_err(|error| println!("skipped: {error}")).ok()?;
    Some(Sender { socket, outlet: Outlet::new(engine) })
}

struct Sender {
    socket: Socket,
    outlet: Outlet<Engine>,
}

impl Sender {
    /// Sends every member a datagram a round, several rounds in one send, and returns before the
    /// device has taken them: meanwhile it reads what `far` sends it.
    fn check(&mut self, what: &str, members: &[Socket], at_once: u8, far: &Socket) {
        let Sender { socket, outlet } = self;
        let set: ReceiverSet = members.iter().map(Socket::local_address).collect();
        let clock = Clock::start();
        let (mut report, mut batch) = (SendReport::default(), SendBatch::new());
        for first in (0..ROUNDS).step_by(at_once.into()) {
            let rounds = first..first + at_once;
            let bytes: Vec<u8> = rounds.flat_map(|round| [round; BYTES]).collect();
            let segments = Segments::new(&bytes, BYTES).unwrap();
            report.add(set.send(outlet, socket, clock.now(), &mut batch, segments));
        }
        assert!(outlet.waiting() > 0, "{what}: it does not wait for the device");
        far.connect(socket.local_address()).unwrap();
        far.send(b"meanwhile").unwrap();
        let (mut receiver, mut read) = (Receiver::new(4, 65_535), Vec::new());
        while outlet.waiting() > 0 && read.is_empty() {
            receiver.receive(socket, |_, bytes| read.extend_from_slice(bytes)).unwrap();
            report.add(outlet.retry(socket, clock.now()));
        }
        assert_eq!(read, b"meanwhile", "{what}: reading goes on");
        report.add(outlet.flush(socket, &clock));
        for member in members {
            assert_eq!(arrived(member), Vec::from_iter(0..ROUNDS), "{what}: {report:?}");
        }
        let all = MEMBERS as u64 * u64::from(ROUNDS);
        let became = (report.sent, report.failed, report.dropped);
        assert_eq!(became, (all, 0, 0), "{what}: {report:?}");
        assert!(report.waits > 0, "{what}: {report:?}");
        assert!(report.waits < MOST_WAITS * report.sent, "{what}: it spins: {report:?}");
    }
}

#[test]
fn a_slow_device_holds_no_engine_up_and_loses_nothing() {
    let Some((near, far)) = shaped_network(SLOW) else { return };
    for name in ENGINES {
        for (ip, peer) in HOSTS {
            for send_buffer in SEND_BUFFERS {
                let Some(mut sender) = open(&near, ip, name, send_buffer) else { continue };
                let members = members(&far, peer);
                let other = far.run(|| bind(peer)).unwrap();
                for at_once in [1, 5] {
                    let what = format!("{name} {ip}, send buffer {send_buffer}, {at_once} at once");
                    near.run(|| sender.check(&what, &members, at_once, &other)).unwrap();
                }
            }
        }
    }
}

#[test]
fn what_a_stuck_device_does_not_take_is_counted() {
    let Some((near, far)) = shaped_network(STUCK) else { return };
    let (ip, peer) = HOSTS[0];
    let members = members(&far, peer);
    let set: ReceiverSet = members.iter().map(Socket::local_address).collect();
    for name in ENGINES {
        for send_buffer in SEND_BUFFERS {
            let Some(Sender { socket, mut outlet }) = open(&near, ip, name, send_buffer) else {
                continue;
            };
            let (clock, mut batch) = (Clock::start(), SendBatch::new());
            let bytes = [7; 3 * BYTES];
            let segments = Segments::new(&bytes, BYTES).unwrap();
            let mut report = set.send(&mut outlet, &socket, clock.now(), &mut batch, segments);
            report.add(outlet.flush(&socket, &clock));
            let what = format!("{name}, send buffer {send_buffer}: {report:?}");
            assert_eq!(report.sent + report.dropped, 3 * MEMBERS as u64, "{what}");
            assert!(report.dropped > 2 * MEMBERS as u64, "{what}");
        }
    }
}
