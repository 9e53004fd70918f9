//! What sockets send, share and count, over loopback.

use canopy_net::{
    Clock, Receiver, Socket, SocketOptions, ThreadSockets, Waker, listen, wait_readable,
};
use canopy_wire::{Class, Lane, SessionId, VERSION};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn socket(ip: &str) -> Socket {
    let address = SocketAddr::new(ip.parse().unwrap(), 0);
    let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
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

#[test]
fn segments_of_a_connected_socket_arrive_one_by_one() {
    let receiver = socket("127.0.0.1");
    let sender = socket("127.0.0.1");
    sender.connect(receiver.local_address()).unwrap();
    let bytes: Vec<u8> = (0..250).collect();
    sender.send_segments(&bytes, 100).unwrap();
    let expected: Vec<_> = bytes.chunks(100).map(<[u8]>::to_vec).collect();
    assert_eq!(receive(&receiver, 3), expected);
}

#[test]
fn a_socket_tells_when_datagrams_arrived_however_late_they_are_read() {
    let unix = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (first, second, sender) = (socket("127.0.0.1"), socket("127.0.0.1"), socket("127.0.0.1"));
    first.stamp_arrivals().unwrap();
    let mut receiver = Receiver::new(4, 65_535);
    // The kernel begins to take the time a moment after the first socket has asked for it.
    let deadline = unix() + Duration::from_secs(2);
    loop {
        let before = unix();
        assert!(before < deadline, "nothing was stamped");
        sender.connect(first.local_address()).unwrap();
        sender.send(b"early").unwrap();
        // What is read later is no younger for it.
        let after = unix();
        sender.connect(second.local_address()).unwrap();
        sender.send(b"later").unwrap();
        assert_eq!(receive(&second, 1), [b"later"]);
        receiver.fill(&first).unwrap();
        let (_, arrived, bytes) = receiver.next_stamped(&first).unwrap();
        assert_eq!(bytes, b"early");
        if arrived.is_some_and(|arrived| (before..=after).contains(&arrived)) {
            break;
        }
    }
    receiver.fill(&second).unwrap();
    sender.send(b"unasked").unwrap();
    receiver.fill(&second).unwrap();
    assert_eq!(receiver.next_stamped(&second).map(|(_, arrived, _)| arrived), Some(None));
}

/// The front of a packet of this class, of a session.
fn packet(class: Class, session: u32) -> [u8; 20] {
    let mut packet = [0; 20];
    packet[..4].copy_from_slice(&session.to_be_bytes());
    packet[0] = VERSION | class as u8;
    packet
}

#[test]
fn packets_are_steered_by_their_class_and_session() {
    for (ip, threads) in [("127.0.0.1", 1), ("127.0.0.1", 3), ("::1", 2)] {
        let any = SocketAddr::new(ip.parse().unwrap(), 0);
        let all = listen(any, threads, &SocketOptions::default()).unwrap();
        // The third is of nobody's.
        let first_bytes = [VERSION | Class::Stranger as u8, VERSION | Class::Session as u8, 0xff];
        let sessions = [0, 1, 2, 3, 8, 9, 17, 0x1_0004, 0x1_000f, 0xff_fffe];
        let sent: Vec<[u8; 20]> = sessions
            .iter()
            .flat_map(|session| {
                first_bytes.map(|byte| {
                    let mut packet = packet(Class::Session, *session);
                    packet[0] = byte;
                    packet
                })
            })
            .collect();
        for packet in &sent {
            let sender = socket(ip);
            sender.connect(all[0].sending().local_address()).unwrap();
            sender.send(packet).unwrap();
        }
        for (thread, sockets) in (0..threads).zip(&all) {
            // What a lane's socket should get, or the strangers' for `None`.
            let expected = |lane: Option<Lane>| {
                let is_due = |packet: &&[u8; 20]| {
                    let session =
                        SessionId::new(u32::from_be_bytes([0, packet[1], packet[2], packet[3]]));
                    let is_of_strangers = packet[0] == VERSION | Class::Stranger as u8;
                    let is_lanes = lane
                        .map_or(is_of_strangers, |lane| !is_of_strangers && session.lane() == lane);
                    session.thread(threads) == thread && is_lanes
                };
                sent.iter().filter(is_due).map(|packet| packet.to_vec()).collect::<Vec<_>>()
            };
            let lanes = Lane::all().map(|lane| (sockets.lane(lane), expected(Some(lane))));
            for (socket, due) in lanes.chain([(&sockets.strangers, expected(None))]) {
                assert_eq!(socket.local_address(), all[0].sending().local_address());
                assert_eq!(receive(socket, due.len()), due, "{ip}, thread {thread} of {threads}");
            }
        }
    }
}

#[test]
fn packets_too_short_to_say_reach_the_first_threads_strangers() {
    let all = listen("127.0.0.1:0".parse().unwrap(), 2, &SocketOptions::default()).unwrap();
    let sender = socket("127.0.0.1");
    sender.connect(all[0].sending().local_address()).unwrap();
    let [stranger, session] = [packet(Class::Stranger, 1), packet(Class::Session, 1)];
    let short = [vec![], vec![VERSION], stranger[..3].to_vec(), session[..3].to_vec()];
    short.iter().for_each(|packet| sender.send(packet).unwrap());
    assert_eq!(receive(&all[0].strangers, short.len()), short);
}

#[test]
fn who_is_woken_while_it_looks_does_not_wait_next() {
    let any = "127.0.0.1:0".parse().unwrap();
    let [sockets] = <[_; 1]>::try_from(listen(any, 1, &SocketOptions::default()).unwrap()).unwrap();
    sockets.waker().wake();
    assert_eq!(sockets.look().unwrap(), 0);
    // It would wait for ever.
    assert_eq!(sockets.wait_readable(&Clock::start(), None).unwrap(), 0);
    // Once only.
    let clock = Clock::start();
    let until = clock.now() + Duration::from_millis(2);
    assert_eq!(sockets.wait_readable(&clock, Some(until)).unwrap(), 0);
    assert!(clock.now() >= until);
}

/// The timer may be set for another wait, which something else has ended.
#[test]
fn each_wait_lasts_until_its_own_time() {
    let any = "127.0.0.1:0".parse().unwrap();
    let [sockets] = <[_; 1]>::try_from(listen(any, 1, &SocketOptions::default()).unwrap()).unwrap();
    let clock = Clock::start();
    // What it was set for before, if anything; and the wait.
    for (before, millis) in [(None, 3), (Some(1), 6), (Some(60_000), 3), (Some(1), 0)] {
        let after = |millis| Some(clock.now() + Duration::from_millis(millis));
        if let Some(before) = before {
            sockets.waker().wake();
            assert_eq!(sockets.wait_readable(&clock, after(before)).unwrap(), 0);
        }
        let (began, until) = (clock.now(), after(millis));
        assert_eq!(sockets.wait_readable(&clock, until).unwrap(), 0);
        assert!(until <= Some(clock.now()), "{millis} ms after {before:?}");
        assert!(clock.now().since(began) < Duration::from_secs(30), "{millis} ms after {before:?}");
    }
}

/// A socket that is flooded, and one that is not; and a packet for each.
fn flooded_and_other(
    flood: &[u8; 20],
    other: fn(u32) -> [u8; 20],
    pick: fn(&ThreadSockets) -> [&Socket; 2],
) {
    let options = SocketOptions { receive_buffer: 64 << 10, ..SocketOptions::default() };
    let [sockets] =
        <[_; 1]>::try_from(listen("127.0.0.1:0".parse().unwrap(), 1, &options).unwrap()).unwrap();
    let [flooder, session] = [socket("127.0.0.1"), socket("127.0.0.1")];
    flooder.connect(sockets.sending().local_address()).unwrap();
    session.connect(sockets.sending().local_address()).unwrap();
    // Far more than fits either buffer, and then as much as fits easily.
    let (flood_len, updates) = (5_000, 20);
    (0..flood_len).for_each(|_| flooder.send(flood).unwrap());
    (0..updates).for_each(|number| session.send(&other(number)).unwrap());
    let look = || sockets.look().unwrap();
    assert_eq!(look().count_ones(), 2);
    assert_eq!(look(), sockets.wait_readable(&Clock::start(), None).unwrap());
    let [flooded, quiet] = pick(&sockets);
    let arrived = receive(quiet, updates as usize);
    assert_eq!(arrived, Vec::from_iter((0..updates).map(|number| other(number).to_vec())));
    assert_eq!(quiet.lost(), 0);
    // The flood waits still, which is seen without the other.
    assert_eq!(look().count_ones(), 1);
    let mut read = receive(flooded, 1).len();
    assert!(read < flood_len, "{read}");
    // The losses are told with the next.
    flooder.send(flood).unwrap();
    read += receive(flooded, 1).len();
    assert_eq!(flooded.lost() as usize + read, flood_len + 1);
    assert_eq!(look(), 0);
}

#[test]
fn a_flood_of_strangers_costs_the_sessions_nothing() {
    let session = |number| packet(Class::Session, 8 * number + 1);
    flooded_and_other(&packet(Class::Stranger, 7), session, |sockets| {
        [&sockets.strangers, sockets.lane(Lane::new(1))]
    });
}

#[test]
fn a_flood_in_one_lane_costs_the_others_nothing() {
    let session = |number| packet(Class::Sealed, 8 * number + 1);
    flooded_and_other(&packet(Class::Sealed, 10), session, |sockets| {
        [sockets.lane(Lane::new(2)), sockets.lane(Lane::new(1))]
    });
}

#[test]
fn an_address_that_a_relay_listens_on_is_in_use() {
    let options = SocketOptions::default();
    for ip in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
        let any = SocketAddr::new(ip.parse().unwrap(), 0);
        for (held, wanted) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let sockets = listen(any, held, &options).unwrap();
            let address = sockets[0].sending().local_address();
            let second = listen(address, wanted, &options);
            assert_eq!(second.unwrap_err().kind(), ErrorKind::AddrInUse, "{held} {wanted} {ip}");
            drop(sockets);
            assert!(listen(address, wanted, &options).is_ok(), "free again");
        }
    }
}

#[test]
fn what_does_not_fit_the_receive_buffer_is_counted() {
    let options = SocketOptions { receive_buffer: 4096, ..SocketOptions::default() };
    let receiver = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let asked = SocketOptions::default().receive_buffer;
    assert!(receiver.receive_buffer().unwrap() < asked, "a small buffer is seen to be small");
    let sender = socket("127.0.0.1");
    sender.connect(receiver.local_address()).unwrap();
    (0..200).for_each(|_| sender.send(&[0; 500]).unwrap());
    let (mut pieces, mut count) = (Receiver::new(4, 65_535), 0);
    while pieces.receive(&receiver, |_, _| count += 1).unwrap() {}
    assert!((1..200).contains(&count), "{count} fit");
    // The losses are told with the next.
    sender.send(&[0; 500]).unwrap();
    count += receive(&receiver, 1).len() as u32;
    assert_eq!(receiver.lost() + count, 201);
}
