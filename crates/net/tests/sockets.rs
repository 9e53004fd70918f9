//! What sockets send, share and count, over loopback.

use canopy_net::{Clock, Receiver, Socket, SocketOptions, Waker, wait_readable};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

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
fn packets_are_steered_by_their_source_endpoint() {
    let any = "127.0.0.1:0".parse().unwrap();
    let group = Socket::bind_group(any, 2, &SocketOptions::default()).unwrap();
    let [first, second] = group.try_into().unwrap();
    first.steer_by_source(2).unwrap();
    for port_of_sender in 0..8u8 {
        let sender = socket("127.0.0.1");
        sender.connect(first.local_address()).unwrap();
        let mut packet = [port_of_sender; 20];
        packet[10..12].copy_from_slice(&u16::from(port_of_sender).to_be_bytes());
        sender.send(&packet).unwrap();
    }
    let senders = |socket| receive(socket, 4).iter().map(|p| p[0]).collect::<Vec<_>>();
    assert_eq!(senders(&first), [0, 2, 4, 6]);
    assert_eq!(senders(&second), [1, 3, 5, 7]);
}

#[test]
fn an_address_that_a_group_holds_is_in_use() {
    let options = SocketOptions::default();
    for ip in ["127.0.0.1", "::1"] {
        let any = SocketAddr::new(ip.parse().unwrap(), 0);
        for (held, wanted) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let group = Socket::bind_group(any, held, &options).unwrap();
            let address = group[0].local_address();
            assert!(group.iter().all(|socket| socket.local_address() == address));
            let second = Socket::bind_group(address, wanted, &options);
            assert_eq!(second.unwrap_err().kind(), ErrorKind::AddrInUse, "{held} {wanted} {ip}");
            drop(group);
            assert!(Socket::bind_group(address, wanted, &options).is_ok(), "free again");
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
