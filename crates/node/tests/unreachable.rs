//! A receiver that has gone from the link without a word does not stop the others.

use canopy_engines::Namespace;
use canopy_net::Clock;
use canopy_node::{Command, NodeConfig, RunningRelay, ThreadStatus};
use canopy_session::{Event, Session, SessionConfig, SessionLimits};
use canopy_wire::{Comtree, DropReason, Flags, Group, Level, MAX_DATAGRAM};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const GROUP: Group = Group::new(7);
const LEVEL: Level = Level(0);
/// Where the relay listens, where it is reached, where those are who stay, and the one who goes.
const CASES: [[&str; 4]; 3] = [
    ["10.77.0.1", "10.77.0.1", "10.77.0.2", "10.77.0.50"],
    ["fd77::1", "fd77::1", "fd77::2", "fd77::50"],
    ["::", "10.77.0.1", "10.77.0.2", "10.77.0.51"],
];
/// Updates after the first that was not sent to the one who is gone.
const AFTER: u64 = 200;
/// Nothing is sent for so long to who is gone, unless it is heard of before.
const MUTE: Duration = Duration::from_secs(5);

struct Participant {
    session: Session,
    socket: UdpSocket,
    clock: Clock,
    received: u64,
    subscribed: bool,
}

impl Participant {
    fn join(host: &Namespace, ip: &str, relay: SocketAddr, clock: Clock) -> Participant {
        let socket = host.run(|| UdpSocket::bind((ip, 0))).unwrap().unwrap();
        socket.connect(relay).unwrap();
        let wait = Duration::from_millis(10);
        socket.set_read_timeout(Some(wait)).unwrap();
        let mut seed = [7; 16];
        seed[..2].copy_from_slice(&socket.local_addr().unwrap().port().to_be_bytes());
        let mut session = Session::new(SessionConfig::new(Comtree(1), seed));
        session.subscribe(GROUP, LEVEL);
        let mut new = Participant { session, socket, clock, received: 0, subscribed: false };
        new.turn_until(|new| new.subscribed);
        new
    }

    fn publish(&mut self) {
        let mut out = [0; MAX_DATAGRAM];
        let payload = [1; 1000];
        let len = self.session.publish(GROUP.address(), LEVEL, Flags(0), &payload, &mut out);
        self.socket.send(&out[..len.unwrap()]).unwrap();
    }

    fn turn_until(&mut self, done: impl Fn(&Participant) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "{} received", self.received);
            self.turn();
        }
    }

    /// Sends what it has to say, and receives a datagram if there is one within 10 ms.
    fn turn(&mut self) {
        let mut bytes = [0; 2 * MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(self.clock.now(), &mut bytes) {
            self.socket.send(&bytes[..len]).unwrap();
        }
        if let Ok(len) = self.socket.recv(&mut bytes) {
            let received = &mut self.received;
            let take = |_: canopy_session::Update<'_>| *received += 1;
            self.session.handle_datagram(self.clock.now(), &mut bytes[..len], take).unwrap();
        }
        while let Some(event) = self.session.poll_event() {
            self.subscribed |= matches!(event, Event::Subscribed(..));
        }
    }
}

/// The status, once it is as it should be.
fn status_when(relay: &RunningRelay, done: impl Fn(&ThreadStatus) -> bool) -> ThreadStatus {
    let begun = Instant::now();
    loop {
        let status = relay.watch().status();
        if done(&status) {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "{status:?}");
        std::thread::yield_now();
    }
}

fn unreachable(status: &ThreadStatus) -> u64 {
    status.counters.dropped(DropReason::Unreachable)
}

#[test]
fn who_has_gone_without_a_word_is_left_out_and_the_others_get_everything() {
    let made = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
    let (near, far) = match made {
        Ok(hosts) => hosts,
        Err(error) => return println!("skipped: {error}"),
    };
    Namespace::join(&near, &far).unwrap();
    for family in ["ipv4", "ipv6"] {
        // The kernel asks three times, this often, and begins so many seconds after a send.
        for (name, value) in [("retrans_time_ms", "20"), ("delay_first_probe_time", "1")] {
            let path = format!("/proc/sys/net/{family}/neigh/near/{name}");
            near.run(|| std::fs::write(&path, value)).unwrap().unwrap();
        }
    }
    for [listen, here, there, gone] in CASES {
        let (prefix, nodad) = if gone.contains(':') { (64, "nodad") } else { (16, "") };
        far.ip(&format!("addr add {gone}/{prefix} dev far {nodad}")).unwrap();
        let lifetime = Duration::from_secs(3_600);
        let config = NodeConfig {
            listen: SocketAddr::new(listen.parse().unwrap(), 0),
            session_limits: SessionLimits { lifetime, ..SessionLimits::default() },
            ..NodeConfig::loopback()
        };
        let relay = near.run(|| RunningRelay::start(&config)).unwrap().unwrap();
        assert!(relay.blind_to_neighbours().is_none());
        let address = SocketAddr::new(here.parse().unwrap(), relay.address().port());
        let clock = Clock::start();
        let mut publisher = Participant::join(&far, there, address, clock);
        let mut stays = Participant::join(&far, there, address, clock);
        let mut goes = Participant::join(&far, gone, address, clock);
        far.ip(&format!("addr del {gone}/{prefix} dev far")).unwrap();
        near.ip(&format!("neigh change {gone} dev near nud stale")).unwrap();

        let (mut begun, mut published, mut last) = (Instant::now(), 0, u64::MAX);
        while published < last {
            assert!(begun.elapsed() < PATIENCE, "{listen}: {:?}", relay.watch().status());
            publisher.publish();
            published += 1;
            stays.turn_until(|stays| stays.received == published);
            if last == u64::MAX && unreachable(&relay.watch().status()) > 0 {
                (begun, last) = (Instant::now(), published + AFTER);
            }
        }
        let sums = |status: &ThreadStatus| status.counters.deliveries_out + unreachable(status);
        let status = status_when(&relay, |status| sums(status) == 2 * published);
        let left_out = unreachable(&status);
        assert!(left_out > AFTER && left_out < published, "{listen}: {left_out} of {published}");
        assert_eq!(status.sessions, 3, "{listen}: its session lives on");

        // Once it is there again and asks for the relay's hardware address, it is sent to at once.
        far.ip(&format!("addr add {gone}/{prefix} dev far {nodad}")).unwrap();
        far.ip("neigh flush dev far").unwrap();
        goes.received = 0;
        goes.publish();
        while goes.received == 0 {
            publisher.publish();
            goes.turn();
            assert!(begun.elapsed() < MUTE, "{listen}: still muted");
        }
        relay.watch().command(Command::Stop);
        relay.join().unwrap();
    }
}
