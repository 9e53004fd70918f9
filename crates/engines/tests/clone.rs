//! The clone engines, on virtual devices between network namespaces. Needs root; elsewhere the
//! tests are skipped.

mod bed;

use bed::{Bed, CLONERS, Family, IPV4, IPV6, Sender, payload, receive, receive_waiting, soon};
use canopy_batch::{Segments, SendBatch};
use canopy_engines::EngineName;
use canopy_net::{Clock, ReceiverSet, SendReport};
use socket2::{Domain, Protocol, Type};
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

fn on_both(test: impl Fn(&Bed, EngineName, Family)) {
    let Some(bed) = Bed::new() else { return };
    for name in CLONERS {
        for family in [IPV4, IPV6] {
            test(&bed, name, family);
        }
    }
}

#[test]
fn everyone_gets_everything_once_and_in_order() {
    on_both(|bed, name, family| {
        for members in [8, 9, 128, 129, 300] {
            let mut sender = Sender::new(bed, name, family);
            let to = bed.receivers(family, members);
            for (datagrams, segment) in [(1, 1), (1, 99), (1, 1001), (4, 99), (16, 333), (3, 100)] {
                let what = format!("{name} {} to {members}: {datagrams}x{segment}", family.near);
                // The last is shorter.
                let bytes = payload(datagrams * segment - segment / 3, datagrams as u8);
                let report = sender.serve(&to, &bytes, segment, &what);
                assert!(report.cloned > 0, "{what}: {report:?}");
            }
        }
    });
}

#[test]
fn all_is_cloned_once_the_neighbours_are_known() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 40);
        let sends = (0..5).map(|number| sender.serve(&to, &payload(99, number), 99, "all"));
        assert!(sends.filter(|report| report.cloned == 40).count() >= 3, "{name}");
    });
}

#[test]
fn whoever_is_no_member_any_more_gets_nothing() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let (first, second) = (bed.receivers(family, 20), bed.receivers(family, 150));
        for round in 0..3 {
            sender.serve(&first, &payload(99, round), 99, "the first");
            second.expect([].into_iter(), "not the second");
            sender.serve(&second, &payload(333, round), 111, "the second");
            first.expect([].into_iter(), "not the first");
        }
    });
}

#[test]
fn a_batch_is_cloned_where_many_get_the_same() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let (many, few) = (bed.receivers(family, 30), bed.receivers(family, 3));
        let (common, own) = (payload(301, 1), payload(77, 2));
        let mut batch = SendBatch::new();
        few.addresses().for_each(|to| batch.push_datagram(to, &own));
        push_to_all(&mut batch, many.addresses(), &common);
        let report = sender.send_batch(&batch);
        assert_eq!((report.sent, report.failed), (33, 0), "{name}: {report:?}");
        assert!(report.cloned >= 27, "{name}: {report:?}");
        few.expect([&own[..]].into_iter(), "few");
        many.expect([&common[..]].into_iter(), "many");
    });
}

/// Adds one send of the same bytes to each.
fn push_to_all(batch: &mut SendBatch, mut all: impl Iterator<Item = SocketAddr>, bytes: &[u8]) {
    batch.push_datagram(all.next().unwrap(), bytes);
    all.for_each(|to| batch.push_same(to));
}

/// Every UDP packet from `port` that the far host sees: the bytes from IP's header on.
struct Capture {
    socket: socket2::Socket,
}

impl Capture {
    fn on(bed: &Bed) -> Capture {
        let all = Protocol::from(i32::from(3_u16.to_be())); // ETH_P_ALL
        let open = || socket2::Socket::new(Domain::PACKET, Type::RAW, Some(all)).unwrap();
        let socket = bed.far.run(open).unwrap();
        socket.set_recv_buffer_size(4 << 20).unwrap();
        socket.set_read_timeout(Some(bed::PATIENCE)).unwrap();
        Capture { socket }
    }

    fn packets(&self, count: usize, port: u16) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let mut bytes = vec![0; 65_536];
        while packets.len() < count {
            let len = (&self.socket).read(&mut bytes).expect("all copies are seen");
            let packet = bytes[14..len].to_vec();
            let udp = if packet[0] >> 4 == 4 { 20 } else { 40 };
            if packet.get(udp..udp + 2) == Some(&port.to_be_bytes()) {
                packets.push(packet);
            }
        }
        packets
    }
}

/// The Internet checksum's sum (RFC 1071).
fn sum(parts: &[&[u8]]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).map(word).sum()
    };
    let mut sum: u64 = parts.iter().map(|part| words(part)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Whether a packet's checksums hold: UDP's in full, or as far as the device is to complete it.
fn checksums(packet: &[u8]) -> (bool, bool) {
    let ipv4 = packet[0] >> 4 == 4;
    let (addresses, udp) = if ipv4 { (&packet[12..20], 20) } else { (&packet[8..40], 40) };
    if ipv4 {
        assert_eq!(sum(&[&packet[..20]]), 0xffff, "the IPv4 header's checksum");
    }
    let len = u16::from_be_bytes([packet[udp + 4], packet[udp + 5]]);
    let udp = &packet[udp..udp + usize::from(len)];
    let pseudo = [addresses, &[0, 17], &len.to_be_bytes()];
    let field = u16::from_be_bytes([udp[6], udp[7]]);
    assert_ne!(field, 0, "a checksum");
    let full = sum(&[pseudo[0], pseudo[1], pseudo[2], udp]) == 0xffff;
    (full, field == sum(&pseudo))
}

#[test]
fn checksums_hold_with_and_without_offload() {
    let Some(bed) = Bed::new() else { return };
    for offload in ["on", "off"] {
        if bed.command(&bed.near, &format!("ethtool -K near tx {offload}")).is_none() {
            return;
        }
        for name in CLONERS {
            for family in [IPV4, IPV6] {
                let mut sender = Sender::new(&bed, name, family);
                let to = bed.receivers(family, 12);
                for len in [1, 2, 99, 1001, 1400] {
                    let capture = Capture::on(&bed);
                    let what = format!("{name} {} {len} bytes, offload {offload}", family.near);
                    let report = sender.serve(&to, &payload(len, len as u8), len, &what);
                    assert!(report.cloned >= 9, "{what}: {report:?}");
                    let port = sender.socket.local_address().port();
                    for packet in capture.packets(12, port) {
                        let (full, partial) = checksums(&packet);
                        let may_be_partial = offload == "on" && name == EngineName::TcBpf;
                        assert!(full || may_be_partial && partial, "{what}: {packet:x?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_checksum_of_zero_is_sent_as_all_ones() {
    let Some(bed) = Bed::new() else { return };
    if bed.command(&bed.near, "ethtool -K near tx off").is_none() {
        return;
    }
    for name in CLONERS {
        for family in [IPV4, IPV6] {
            let mut sender = Sender::new(&bed, name, family);
            let to = bed.receivers(family, 8);
            let capture = Capture::on(&bed);
            sender.serve(&to, &[0, 0], 2, "to learn the sum");
            let port = sender.socket.local_address().port();
            let udp = if family.near == IPV4.near { 20 } else { 40 };
            for packet in capture.packets(8, port) {
                // With this payload the sum is all ones, so its complement is zero.
                let checksum = &packet[udp + 6..udp + 8];
                let capture = Capture::on(&bed);
                sender.serve(&to, checksum, 2, "zero");
                let zeros = capture.packets(8, port).into_iter().filter(|packet| {
                    assert!(checksums(packet).0);
                    packet[udp + 6..udp + 8] == [0xff, 0xff]
                });
                assert!(zeros.count() >= 1, "{name}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_the_device_is_not_cloned() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 10);
        let most = 1500 - 48;
        let report = sender.serve(&to, &payload(most, 1), most, "what just fits");
        assert!(report.cloned > 0, "{name}: {report:?}");
        let bytes = payload(most + 21, 2);
        let report = sender.send(&to.set(), Segments::one(&bytes).unwrap());
        let whole = (report.sent, report.cloned, report.fallbacks);
        assert_eq!(whole, (10, 0, 0), "{name}: as an engine without clones sends it");
        for socket in &to.sockets {
            assert_eq!(receive(socket, 1).concat(), bytes, "{name}: in pieces, put together");
        }
    });
}

#[test]
fn a_batch_to_more_members_than_the_table_has_is_served() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 10);
        let mut batch = SendBatch::new();
        let often = (0..103).flat_map(|_| to.addresses());
        push_to_all(&mut batch, often, b"x");
        let report = sender.send_batch(&batch);
        assert_eq!((report.sent, report.failed), (1030, 0), "{name}: {report:?}");
        assert!(report.cloned >= 1000 && report.fallbacks >= 6, "{name}: {report:?}");
        to.expect(std::iter::repeat_n(&b"x"[..], 103), "the same again and again");
    });
}

#[test]
fn a_smaller_mtu_is_followed() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 10);
        sender.serve(&to, &payload(1400, 1), 1400, "before");
        bed.near.ip("link set near mtu 1300").unwrap();
        let bytes = payload(1400, 1);
        let uncloned = soon(|| {
            let report = sender.send(&to.set(), Segments::one(&bytes).unwrap());
            report.cloned == 0
        });
        assert!(uncloned, "{name}");
        bed.near.ip("link set near mtu 1500").unwrap();
        for socket in &to.sockets {
            receive_waiting(socket);
        }
    });
}

#[test]
fn a_narrow_way_is_not_cloned_to() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 30);
        assert_eq!(sender.serve(&to, &payload(1400, 1), 1400, "before").fallbacks, 0);
        let bits = if family.near == IPV4.near { 32 } else { 128 };
        let way = format!("{}/{bits} dev near", family.far[1]);
        bed.near.ip(&format!("route add {way} mtu 1300")).unwrap();
        // A third of the members are there.
        let behind = soon(|| sender.serve(&to, &payload(1400, 1), 1400, "behind").fallbacks == 10);
        assert!(behind, "{name}");
        // A plain send of the burst does not fit there either, and each datagram counts once.
        let burst = payload(4 * 1400, 2);
        assert!(soon(|| sender.serve(&to, &burst, 1400, "burst").fallbacks == 40), "{name}");
        bed.near.ip(&format!("route del {way}")).unwrap();
    });
}

#[test]
fn a_changed_hardware_address_is_found_out() {
    on_both(|bed, name, family| {
        // As the kernel does by itself, only sooner.
        let kind = if family.near == IPV4.near { "ipv4" } else { "ipv6" };
        for (setting, value) in [
            ("base_reachable_time_ms", "200"),
            ("delay_first_probe_time", "0"),
            ("retrans_time_ms", "50"),
            ("ucast_solicit", "1"),
        ] {
            bed.set(&format!("{kind}/neigh/near/{setting}"), value);
        }
        bed.near.ip("neigh flush dev near").unwrap();
        family.far.into_iter().for_each(|address| bed.meet(address));
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 12);
        sender.serve(&to, b"before", 6, "before");
        // Nobody is told.
        bed.far
            .run(|| std::fs::write("/proc/sys/net/ipv4/conf/far/arp_notify", "0"))
            .unwrap()
            .unwrap();
        let number =
            if name == EngineName::Xdp { 1 } else { 2 } + if kind == "ipv4" { 0 } else { 4 };
        bed.far.ip(&format!("link set dev far address 02:00:00:00:77:0{number}")).unwrap();
        let mut sends = 0;
        let arrives = soon(|| {
            sends += 1;
            let bytes = format!("after {sends}");
            sender.send(&to.set(), Segments::one(bytes.as_bytes()).unwrap());
            std::thread::sleep(Duration::from_millis(5));
            let has = |socket| receive_waiting(socket).iter().any(|got| got == bytes.as_bytes());
            to.sockets.iter().filter(|socket| has(socket)).count() == to.sockets.len()
        });
        assert!(arrives, "{name} {}: all arrive again", family.near);
        assert!(soon(|| {
            let report = sender.send(&to.set(), Segments::one(b"cloned").unwrap());
            report.cloned == 12
        }));
    });
}

#[test]
fn the_devices_own_hardware_address_is_followed() {
    let Some(bed) = Bed::new() else { return };
    let mut sender = Sender::new(&bed, EngineName::Xdp, IPV4);
    let to = bed.receivers(IPV4, 9);
    sender.serve(&to, b"before", 6, "before");
    bed.near.ip("link set dev near address 02:00:00:00:77:aa").unwrap();
    assert!(soon(|| {
        let capture = Capture::on(&bed);
        sender.send(&to.set(), Segments::one(b"after").unwrap());
        let mut bytes = [0; 2048];
        let port = sender.socket.local_address().port();
        let mut from_it = 0;
        for _ in 0..9 {
            let len = (&capture.socket).read(&mut bytes).unwrap();
            let ours = bytes[..len].get(34..36) == Some(&port.to_be_bytes());
            from_it += usize::from(ours && bytes[6..12] == [2, 0, 0, 0, 0x77, 0xaa]);
        }
        from_it == 9
    }));
}

#[test]
fn an_unreachable_member_costs_the_others_nothing() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 16);
        let nobody = if family.near == IPV4.near { "10.77.9.9:9" } else { "[fd77::9:9]:9" };
        let mut members: Vec<_> = to.addresses().collect();
        members.insert(5, nobody.parse().unwrap());
        let group: ReceiverSet = members.into_iter().collect();
        for round in 0..20 {
            let bytes = payload(99, round);
            let report = sender.send(&group, Segments::one(&bytes).unwrap());
            assert_eq!(report.waits, 0, "{name}: no stall: {report:?}");
            assert!(report.fallbacks >= 1 && report.cloned >= 13, "{name}: {report:?}");
            to.expect([&bytes[..]].into_iter(), "the others");
        }
    });
}

#[test]
fn a_device_that_goes_down_is_survived() {
    on_both(|bed, name, family| {
        let mut sender = Sender::new(bed, name, family);
        let to = bed.receivers(family, 16);
        bed.near
            .run(|| std::fs::write("/proc/sys/net/ipv6/conf/near/keep_addr_on_down", "1"))
            .unwrap()
            .unwrap();
        sender.serve(&to, b"before", 6, "before");
        bed.near.ip("link set near down").unwrap();
        for _ in 0..5 {
            let report = sender.send(&to.set(), Segments::one(b"down").unwrap());
            let became = (report.sent, report.failed, report.waits);
            assert_eq!(became, (0, 16, 0), "{name}: no stall: {report:?}");
        }
        bed.near.ip("link set near up").unwrap();
        family.far.into_iter().for_each(|address| {
            assert!(soon(|| bed
                .near
                .run(|| std::net::UdpSocket::bind((family.near, 0))
                    .unwrap()
                    .send_to(b"x", (address, 9)))
                .unwrap()
                .is_ok()));
            bed.meet(address);
        });
        assert!(soon(|| {
            let report = sender.send(&to.set(), Segments::one(b"up").unwrap());
            report.cloned == 16
        }));
        for socket in &to.sockets {
            assert!(
                !receive_waiting(socket).is_empty() || soon(|| !receive_waiting(socket).is_empty())
            );
        }
    });
}

#[test]
fn a_renamed_device_goes_on() {
    let Some(bed) = Bed::new() else { return };
    let mut senders = CLONERS.map(|name| Sender::new(&bed, name, IPV4));
    let to = bed.receivers(IPV4, 16);
    for sender in &mut senders {
        sender.serve(&to, b"before", 6, "before");
    }
    bed.near.ip("link set near down").unwrap();
    bed.near.ip("link set near name other").unwrap();
    bed.near.ip("link set other up").unwrap();
    bed.meet(IPV4.far[0]);
    IPV4.far.into_iter().for_each(|address| bed.meet(address));
    for sender in &mut senders {
        assert!(soon(|| sender.serve(&to, b"after", 5, "after").cloned == 16));
    }
    let device = bed.near.run(|| bed.installation().device_now()).unwrap();
    assert_eq!(device, Some(("other".to_owned(), true)));
}

#[test]
fn a_slow_device_loses_nothing_and_costs_no_time() {
    let Some(bed) = Bed::new() else { return };
    let shape = "tc qdisc add dev near root tbf rate 50mbit burst 16k limit 40k";
    if bed.command(&bed.near, shape).is_none() {
        return;
    }
    for (family, segments) in [(IPV4, 1), (IPV4, 4), (IPV6, 4)] {
        let mut sender = Sender::new(&bed, EngineName::TcBpf, family);
        let to = bed.receivers(family, 100);
        let group = to.set();
        let bursts = 20 / segments as u8;
        let bursts: Vec<Vec<u8>> = (0..bursts).map(|n| payload(1000 * segments, n)).collect();
        let mut report = SendReport::default();
        let clock = Clock::start();
        let send_all = || {
            for burst in &bursts {
                let segments = Segments::new(burst, 1000).unwrap();
                let mut batch = SendBatch::new();
                group.push_to(&mut batch, segments);
                report.add(sender.outlet.send(&sender.socket, clock.now(), &batch));
            }
            report.add(sender.outlet.flush(&sender.socket, &clock));
        };
        bed.near.run(send_all).unwrap();
        let what = format!("{family:?}, {segments} at once: {report:?}");
        assert_eq!((report.sent, report.failed), (2000, 0), "{what}");
        assert!(report.waits > 0, "{what}");
        to.expect(bursts.iter().flat_map(|burst| burst.chunks(1000)), &what);
        // Attempts in vain: pauses leave room for two or three for each, and there are a hundred where
        // nothing waits.
        assert!(report.waits < 10 * report.sent, "{what}: it spins");
    }
}

#[test]
fn a_queue_that_stays_full_is_given_up_soon() {
    let Some(bed) = Bed::new() else { return };
    let mut sender = Sender::new(&bed, EngineName::TcBpf, IPV4);
    let to = bed.receivers(IPV4, 200);
    let group = to.set();
    // A datagram takes ten seconds; the queue holds three.
    let shape = "tc qdisc add dev near root tbf rate 1kbit burst 1600 limit 4k";
    if bed.command(&bed.near, shape).is_none() {
        return;
    }
    let bytes = payload(1200, 1);
    let report = sender.send(&group, Segments::one(&bytes).unwrap());
    assert_eq!(report.sent + report.dropped, 200, "{report:?}");
    assert!(report.dropped > 150, "{report:?}");
    // Once or twice for each of three addresses at first and at the end, and once after each pause.
    assert!(report.waits < 100, "given up after 10 ms of pauses: {report:?}");
}

#[test]
fn what_the_device_loses_is_sent_again() {
    let Some(bed) = Bed::new() else { return };
    for family in [IPV4, IPV6] {
        let mut sender = Sender::new(&bed, EngineName::Xdp, family);
        let to = bed.receivers(family, 200);
        let bytes = payload(400, 1);
        let report = sender.serve(&to, &bytes, 100, "taken");
        assert!(report.cloned > 0, "{report:?}");
        // Now the device takes no frame any more, without a word to whoever sends it.
        bed.command(&bed.far, "ethtool -K far gro off").unwrap();
        let report = sender.serve(&to, &bytes, 100, "not taken");
        assert_eq!((report.cloned, report.fallbacks), (0, 800), "{report:?}");
        bed.command(&bed.far, "ethtool -K far gro on").unwrap();
    }
}

#[test]
fn two_relays_share_an_installation() {
    on_both(|bed, name, family| {
        let mut one = Sender::new(bed, name, family);
        let mut two = Sender::new(bed, EngineName::TcBpf, family);
        let (to_one, to_two) = (bed.receivers(family, 140), bed.receivers(family, 20));
        for round in 0..10 {
            let (a, b) = (payload(99, round), payload(301, round));
            let report = one.send(&to_one.set(), Segments::one(&a).unwrap());
            assert_eq!((report.sent, report.failed), (140, 0));
            let report = two.send(&to_two.set(), Segments::new(&b, 101).unwrap());
            assert_eq!((report.sent, report.failed), (60, 0));
            to_one.expect([&a[..]].into_iter(), "the first's");
            to_two.expect(b.chunks(101), "the second's");
        }
    });
}

#[test]
fn two_relays_may_send_at_the_same_time() {
    on_both(|bed, name, family| {
        std::thread::scope(|scope| {
            for number in 0..2usize {
                scope.spawn(move || {
                    let mut sender = Sender::new(bed, name, family);
                    let to = bed.receivers(family, 60);
                    for round in 0..50 {
                        let bytes = payload(99 + number, round);
                        sender.serve(&to, &bytes, bytes.len(), "at the same time");
                    }
                });
            }
        });
    });
}
