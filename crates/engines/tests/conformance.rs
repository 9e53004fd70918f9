//! One body for all engines: what a batch or a set of receivers says arrives, over loopback, IPv4 and
//! IPv6.

use canopy_batch::{Segments, SendBatch};
use canopy_engines::{Engine, EngineChoice, EngineName};
use canopy_net::{
    Clock, Receiver, ReceiverSet, SendEngine, SendReport, Socket, SocketOptions, Waker,
    wait_readable,
};
use std::net::SocketAddr;
use std::time::Duration;

/// The engine, if it works here.
fn open(name: EngineName, socket: &Socket) -> Option<Engine> {
    let engine = Engine::open(EngineChoice::Named(name), socket);
    engine.inspect_err(|error| println!("skipped: {error}")).ok()
}

/// Sends the whole batch: over loopback there is always room.
fn send(engine: &mut Engine, socket: &Socket, batch: &SendBatch) -> SendReport {
    let mut rest = Vec::new();
    let sent = engine.send(socket, batch, &mut rest);
    assert_eq!((sent.full, &rest[..]), (None, &[][..]), "{}", engine.name());
    sent.report
}

/// Sends the segments to every receiver of the set.
fn send_to_set(
    engine: &mut Engine,
    socket: &Socket,
    set: &ReceiverSet,
    segments: Segments<'_>,
) -> SendReport {
    let mut batch = SendBatch::new();
    set.push_to(&mut batch, segments);
    send(engine, socket, &batch)
}

/// Runs `body` with each engine that works, and a sender for it, over IPv4 and IPv6.
fn with_every_engine(body: impl Fn(&mut Engine, &Socket, &str)) {
    // Loopback is no Ethernet; tests/clone.rs holds the clone engines to the same.
    for name in EngineName::ALL.into_iter().filter(|name| !name.clones()) {
        for ip in ["127.0.0.1", "::1"] {
            let sender = serving(ip);
            if let Some(mut engine) = open(name, &sender) {
                body(&mut engine, &sender, ip);
            }
        }
    }
}

fn socket(ip: &str, offload: bool) -> Socket {
    let address = SocketAddr::new(ip.parse().unwrap(), 0);
    let options = SocketOptions { receive_offload: offload, ..SocketOptions::default() };
    Socket::bind(address, &options).unwrap()
}

/// A socket such as a relay has.
fn serving(ip: &str) -> Socket {
    let address = SocketAddr::new(ip.parse().unwrap(), 0);
    let options = SocketOptions { serves_many: true, ..SocketOptions::default() };
    Socket::bind(address, &options).unwrap()
}

/// Everything that arrives at `socket` until `count` datagrams have, or two seconds passed.
fn receive(socket: &Socket, count: usize) -> Vec<Vec<u8>> {
    let mut receiver = Receiver::new(4, 65_535);
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + Duration::from_secs(2);
    let mut datagrams = Vec::new();
    while datagrams.len() < count && clock.now() < deadline {
        wait_readable(socket, &waker, &clock, Some(deadline)).unwrap();
        while receiver.receive(socket, |_, bytes| datagrams.push(bytes.to_vec())).unwrap() {}
    }
    datagrams
}

/// Datagrams of `segment` bytes and a shorter last, every one different.
fn numbered(datagrams: usize, segment: usize, seed: u8) -> Vec<u8> {
    let len = if datagrams == 1 { segment } else { datagrams * segment - segment / 3 };
    (0..len).map(|at| (at / segment * 7 + at) as u8 ^ seed).collect()
}

#[test]
fn batches_arrive_whole_and_in_order() {
    with_every_engine(|engine, sender, ip| {
        for offload in [false, true] {
            let receivers = [socket(ip, offload), socket(ip, offload), socket(ip, offload)];
            let mut batch = SendBatch::new();
            for round in 0..5u8 {
                for receiver in &receivers {
                    // The last receiver is sent two in a row.
                    for half in 0..=u8::from(receiver.local_address() == batch_end(&receivers)) {
                        let bytes = vec![2 * round + half; 100 + usize::from(round)];
                        batch.push_datagram(receiver.local_address(), &bytes);
                    }
                }
            }
            let report = send(engine, sender, &batch);
            assert_eq!((report.sent, report.failed), (20, 0), "{} {ip}", engine.name());
            for receiver in &receivers {
                let twice = receiver.local_address() == batch_end(&receivers);
                let expected: Vec<_> = (0..10u8)
                    .filter(|number| twice || number % 2 == 0)
                    .map(|number| vec![number; 100 + usize::from(number / 2)])
                    .collect();
                let arrived = receive(receiver, expected.len());
                assert_eq!(arrived, expected, "{} {ip} offload {offload}", engine.name());
            }
        }
    });
}

#[test]
fn a_send_of_many_parts_is_cut_into_its_datagrams() {
    with_every_engine(|engine, sender, ip| {
        let receivers = [socket(ip, false), socket(ip, true)];
        for segment in [1, 50, 100, 451, 458] {
            let bytes = numbered(1, 458, segment as u8);
            let parts = [&bytes[..150], &bytes[150..157], &bytes[157..457], &bytes[457..]];
            let mut batch = SendBatch::new();
            // A send may have 64 segments at most, and the shortest has one byte.
            let parts = if segment == 1 { &[&bytes[..64]][..] } else { &parts };
            for receiver in &receivers {
                batch.push_burst(receiver.local_address(), parts, segment);
                batch.push_datagram(receiver.local_address(), b"and one");
            }
            let whole = parts.concat();
            let mut expected: Vec<&[u8]> = whole.chunks(segment.into()).collect();
            expected.push(b"and one");
            let what = format!("{} {ip}, segments of {segment}", engine.name());
            let report = send(engine, sender, &batch);
            assert_eq!((report.sent, report.failed), (2 * expected.len() as u64, 0), "{what}");
            for receiver in &receivers {
                assert_eq!(receive(receiver, expected.len()), expected, "{what}");
            }
        }
    });
}

fn batch_end(receivers: &[Socket]) -> SocketAddr {
    receivers[receivers.len() - 1].local_address()
}

#[test]
fn a_receiver_that_the_kernel_refuses_does_not_stop_the_others() {
    with_every_engine(|engine, sender, ip| {
        let receiver = socket(ip, false);
        let wrong = if ip == "::1" { "192.0.2.1:9" } else { "[::1]:9" }.parse().unwrap();
        let mut batch = SendBatch::new();
        batch.push_datagram(wrong, b"wrong family");
        batch.push_datagram(receiver.local_address(), b"served");
        let group = ReceiverSet::from_iter([wrong, receiver.local_address()]);
        let burst = Segments::new(b"served", 3).unwrap();
        let (of_batch, of_group) =
            (send(engine, sender, &batch), send_to_set(engine, sender, &group, burst));
        assert_eq!((of_batch.sent, of_batch.failed), (1, 1), "{} {ip}", engine.name());
        assert_eq!((of_group.sent, of_group.failed), (2, 2), "{} {ip}", engine.name());
        assert_eq!(receive(&receiver, 3), [&b"served"[..], b"ser", b"ved"], "{}", engine.name());
    });
}

#[test]
fn every_member_gets_every_datagram_of_a_burst_once_and_in_order() {
    with_every_engine(|engine, sender, ip| {
        for offload in [false, true] {
            let members = [socket(ip, offload), socket(ip, offload), socket(ip, offload)];
            let group: ReceiverSet = members.iter().map(Socket::local_address).collect();
            for (datagrams, segment) in [(1, 1), (1, 1400), (4, 333), (16, 100), (64, 77)] {
                let bytes = numbered(datagrams, segment, datagrams as u8);
                let burst = Segments::new(&bytes, segment).unwrap();
                let report = send_to_set(engine, sender, &group, burst);
                let sent = 3 * datagrams as u64;
                assert_eq!((report.sent, report.failed), (sent, 0), "{} {ip}", engine.name());
                let expected: Vec<_> = bytes.chunks(segment).map(<[u8]>::to_vec).collect();
                for member in &members {
                    let arrived = receive(member, datagrams);
                    assert_eq!(arrived, expected, "{} {ip} offload {offload}", engine.name());
                }
            }
            for member in &members {
                assert_eq!(waiting(member), 0, "{} {ip}", engine.name());
            }
        }
    });
}

#[test]
fn a_group_is_served_as_it_is_when_something_is_sent() {
    with_every_engine(|engine, sender, ip| {
        let [a, b, c, d] = [(); 4].map(|()| socket(ip, false));
        let at = Socket::local_address;
        let mut group = ReceiverSet::new();
        let mut send = |group: &ReceiverSet, byte: u8, members: &[&Socket]| {
            let burst = [byte; 9];
            let burst = Segments::new(&burst, 5).unwrap();
            let report = send_to_set(engine, sender, group, burst);
            assert_eq!((report.sent, report.failed), (2 * members.len() as u64, 0), "{byte} {ip}");
            for member in members {
                assert_eq!(receive(member, 2), [vec![byte; 5], vec![byte; 4]], "{byte} {ip}");
            }
            assert!([&a, &b, &c, &d].iter().all(|socket| waiting(socket) == 0), "{byte} {ip}");
        };
        send(&group, 0, &[]);
        group.add(at(&a));
        group.add(at(&b));
        send(&group, 1, &[&a, &b]);
        group.add(at(&c));
        send(&group, 2, &[&a, &b, &c]);
        group.remove(at(&a));
        send(&group, 3, &[&b, &c]);
        group.replace([at(&d), at(&a)]);
        send(&group, 4, &[&a, &d]);
        send(&ReceiverSet::from_iter([at(&b)]), 5, &[&b]);
        send(&group, 6, &[&a, &d]);
    });
}

#[test]
fn three_hundred_members_are_served() {
    with_every_engine(|engine, sender, ip| {
        let members: Vec<Socket> = (0..300).map(|_| socket(ip, true)).collect();
        let group: ReceiverSet = members.iter().map(Socket::local_address).collect();
        for round in 0..3 {
            let bytes = numbered(4, 101, round);
            let burst = Segments::new(&bytes, 101).unwrap();
            let report = send_to_set(engine, sender, &group, burst);
            assert_eq!((report.sent, report.failed), (1200, 0), "{} {ip}", engine.name());
            let expected: Vec<_> = bytes.chunks(101).map(<[u8]>::to_vec).collect();
            for member in &members {
                assert_eq!(receive(member, 4), expected, "{} {ip}", engine.name());
            }
        }
    });
}

#[test]
fn members_are_sent_to_from_the_sender_and_reach_it() {
    for name in EngineName::ALL {
        for (ip, unspecified) in [("127.0.0.1", "0.0.0.0"), ("::1", "::")] {
            for bound in [ip, unspecified] {
                let sender = socket(bound, false);
                let Some(mut engine) = open(name, &sender) else { continue };
                let address = SocketAddr::new(ip.parse().unwrap(), sender.local_address().port());
                let members = [socket(ip, false), socket(ip, false)];
                let group: ReceiverSet = members.iter().map(Socket::local_address).collect();
                for number in 0..3u8 {
                    let burst = [number];
                    let burst = Segments::one(&burst).unwrap();
                    send_to_set(&mut engine, &sender, &group, burst);
                    for member in &members {
                        let (mut from, mut receiver) = (None, Receiver::new(1, 65_535));
                        assert!(wait_for(member));
                        receiver.receive(member, |source, _| from = Some(source.remote)).unwrap();
                        assert_eq!(from, Some(address), "{name} bound to {bound}");
                        member.connect(address).unwrap();
                        member.send(&[number]).unwrap();
                    }
                    assert_eq!(receive(&sender, 2), [[number], [number]], "{name} {bound}");
                }
            }
        }
    }
}

#[test]
fn a_receiver_that_is_gone_costs_the_others_nothing() {
    with_every_engine(|engine, sender, ip| {
        let live = [socket(ip, false), socket(ip, false), socket(ip, false)];
        let gone = [socket(ip, false), socket(ip, false)].map(|socket| socket.local_address());
        let at = |place: usize| live[place].local_address();
        let receivers = [at(0), gone[0], at(1), gone[1], at(2)];
        let group = ReceiverSet::from_iter(receivers);
        for round in 0..50u8 {
            let bytes = [round; 9];
            let mut batch = SendBatch::new();
            receivers.iter().for_each(|to| batch.push_datagram(*to, &bytes));
            let burst = Segments::new(&bytes, 5).unwrap();
            let mut report = send(engine, sender, &batch);
            report.add(send_to_set(engine, sender, &group, burst));
            assert_eq!(report.failed, 0, "{} {ip}", engine.name());
            for socket in &live {
                let expected = [&bytes[..], &bytes[..5], &bytes[5..]];
                assert_eq!(receive(socket, 3), expected, "{} {ip}", engine.name());
            }
            // Nor does it disturb who sends to the sender.
            let peer = socket(ip, false);
            peer.connect(sender.local_address()).unwrap();
            peer.send(&bytes).unwrap();
            assert_eq!(receive(sender, 1), [bytes], "{} {ip}", engine.name());
        }
        assert_eq!(waiting(sender), 0);
        let (clock, waker) = (Clock::start(), Waker::new().unwrap());
        let now = Some(clock.now());
        assert!(!wait_readable(sender, &waker, &clock, now).unwrap(), "no error is left");
    });
}

/// How many datagrams wait at `socket`.
fn waiting(socket: &Socket) -> usize {
    let (mut receiver, mut count) = (Receiver::new(4, 65_535), 0);
    while receiver.receive(socket, |_, _| count += 1).unwrap() {}
    count
}

fn wait_for(socket: &Socket) -> bool {
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + Duration::from_secs(2);
    wait_readable(socket, &waker, &clock, Some(deadline)).unwrap()
}
