//! A device that is slower than its sender makes the sender sleep, and costs nobody a datagram.

use canopy_batch::SendBatch;
use canopy_engines::{Engine, EngineChoice, EngineName, Namespace};
use canopy_net::{
    Burst, Clock, Group, Receiver, SendEngine, SendReport, Socket, SocketOptions, Waker,
    thread_cpu_time, wait_readable,
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
/// Of a send buffer below the queue's limit, and of one far above it.
const SEND_BUFFERS: [usize; 2] = [16 << 10, 1 << 20];

/// What the near host is bound to, and the far host's address.
const HOSTS: [(&str, &str); 3] =
    [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2"), ("::", "::ffff:10.77.0.2")];

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

/// Sends a datagram a round to every member with `send`, several rounds at once, and holds it to its
/// word.
fn check(
    what: &str,
    members: &[Socket],
    at_once: u8,
    mut send: impl FnMut(&[u8]) -> SendReport + Send,
    near: &Namespace,
) {
    let (mut report, mut busy, mut wall) = (SendReport::default(), Duration::ZERO, Duration::ZERO);
    let in_near = || {
        let (clock, begun) = (Clock::start(), thread_cpu_time());
        let start = clock.now();
        for first in (0..ROUNDS).step_by(at_once.into()) {
            let rounds = first..first + at_once;
            report.add(send(&rounds.flat_map(|round| [round; BYTES]).collect::<Vec<u8>>()));
        }
        (busy, wall) = (thread_cpu_time() - begun, clock.now().since(start));
    };
    near.run(in_near).unwrap();
    for member in members {
        assert_eq!(arrived(member), Vec::from_iter(0..ROUNDS), "{what}: {report:?}");
    }
    let datagrams = MEMBERS as u64 * u64::from(ROUNDS);
    assert_eq!((report.sent, report.failed), (datagrams, 0), "{what}");
    // 200 datagrams of 1,242 bytes are 99 ms at 20 Mbit/s, of which the queue and burst hold 30.
    assert!(wall > Duration::from_millis(40), "{what}: {wall:?} is faster than the device");
    assert!(busy < wall / 2, "{what}: busy for {busy:?} of {wall:?}");
}

#[test]
fn a_slow_device_makes_every_engine_sleep_and_loses_nothing() {
    let Some((near, far)) = shaped_network(SLOW) else { return };
    for name in [EngineName::Sendto, EngineName::Sendmmsg, EngineName::Gso, EngineName::Uring] {
        for (ip, peer) in HOSTS {
            for send_buffer in SEND_BUFFERS {
                let options =
                    SocketOptions { send_buffer, serves_many: true, ..SocketOptions::default() };
                let address = SocketAddr::new(ip.parse().unwrap(), 0);
                let socket = near.run(|| Socket::bind(address, &options)).unwrap().unwrap();
                let engine = Engine::open(EngineChoice::Named(name), &socket);
                let Ok(mut engine) = engine.inspect_err(|error| println!("skipped: {error}"))
                else {
                    continue;
                };
                let members = members(&far, peer);
                let group: Group = members.iter().map(Socket::local_address).collect();
                let what = format!("{name} {ip}, send buffer {send_buffer}");
                let mut by_group = |bytes: &[u8]| {
                    let burst = Burst::segments(bytes, BYTES).unwrap();
                    engine.send_to_group(&socket, &group, burst).unwrap()
                };
                for at_once in [1, 5] {
                    let what = format!("{what}, group, {at_once} at once");
                    check(&what, &members, at_once, &mut by_group, &near);
                }
                let by_batch = |bytes: &[u8]| {
                    let mut batch = SendBatch::new();
                    group.members().iter().for_each(|to| batch.push_datagram(*to, bytes));
                    engine.send(&socket, &batch)
                };
                check(&format!("{what}, batch"), &members, 1, by_batch, &near);
            }
        }
    }
}

#[test]
fn a_queue_that_stays_full_is_given_up_soon() {
    let Some((near, far)) = shaped_network(STUCK) else { return };
    let (ip, peer) = HOSTS[0];
    let members = members(&far, peer);
    let group: Group = members.iter().map(Socket::local_address).collect();
    for name in [EngineName::Sendto, EngineName::Sendmmsg, EngineName::Gso, EngineName::Uring] {
        for send_buffer in SEND_BUFFERS {
            let options =
                SocketOptions { send_buffer, serves_many: true, ..SocketOptions::default() };
            let address = SocketAddr::new(ip.parse().unwrap(), 0);
            let socket = near.run(|| Socket::bind(address, &options)).unwrap().unwrap();
            let engine = Engine::open(EngineChoice::Named(name), &socket);
            let Ok(mut engine) = engine.inspect_err(|error| println!("skipped: {error}")) else {
                continue;
            };
            let burst = Burst::segments(&[7; 3 * BYTES], BYTES).unwrap();
            let mut batch = SendBatch::new();
            for to in group.members() {
                batch.push_burst(*to, &[burst.bytes()], BYTES as u16);
            }
            let of_group = engine.send_to_group(&socket, &group, burst).unwrap();
            let of_batch = engine.send(&socket, &batch);
            for report in [of_group, of_batch] {
                let what = format!("{name}, send buffer {send_buffer}: {report:?}");
                assert_eq!(report.sent + report.failed, 3 * MEMBERS as u64, "{what}");
                assert!(report.failed > 2 * MEMBERS as u64, "{what}");
                // Not so often for each member.
                assert!(report.waits <= 100, "{what}");
            }
        }
    }
}
