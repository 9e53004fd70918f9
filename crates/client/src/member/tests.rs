//! Members and relays of the test's own over loopback sockets, in virtual time: a datagram that was
//! sent waits in its receiver's socket, so nothing has to be waited for.

use super::*;
use crate::{Event, Incoming};
use canopy_wire::{
    Address, BundleWriter, Connected, Cookie, Header, Hello, Keepalive, Kind, LeaveReason, Packet,
    Refused, RefusedReason,
};
use std::net::UdpSocket;

const COMTREE: Comtree = Comtree(1);

/// A relay that does as it is told.
struct Script {
    socket: UdpSocket,
    /// Refuses whoever connects.
    refuses: Option<RefusedReason>,
    /// Answers nobody.
    silent: bool,
    /// Answers nobody from these ports.
    blocked: Vec<u16>,
    /// From where it heard something last.
    peer: Option<SocketAddr>,
    joined: u16,
    /// Sends an update of this publisher's right behind its welcome.
    publisher: Option<Address>,
}

impl Script {
    fn new() -> Script {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let (refuses, silent, blocked) = (None, false, Vec::new());
        Script { socket, refuses, silent, blocked, peer: None, joined: 0, publisher: None }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Answers all that waits.
    fn serve(&mut self) {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
            self.peer = Some(from);
            if self.silent || self.blocked.contains(&from.port()) {
                continue;
            }
            let mut out = [0; MAX_DATAGRAM];
            let joined = self.joined;
            if let Some(len) = self.answer(&Packet::new_checked(&bytes[..len]).unwrap(), &mut out) {
                self.send(&out[..len]);
            }
            if let (true, Some(publisher)) = (self.joined > joined, self.publisher) {
                self.publish(publisher, &[b"welcome"]);
            }
        }
    }

    fn answer(&mut self, packet: &Packet<'_>, out: &mut [u8]) -> Option<usize> {
        let len = match packet.header().kind {
            Kind::Hello => {
                let nonce = Hello::decode(packet).unwrap().nonce;
                Cookie { nonce, cookie: [1; 16] }.encode(COMTREE, out)
            }
            Kind::Connect => self.connect(packet, out),
            Kind::Keepalive => {
                Keepalive::decode(packet).unwrap().encode_ack(COMTREE, packet.header().src, out)
            }
            _ => return None,
        };
        Some(len.unwrap())
    }

    fn connect(&mut self, packet: &Packet<'_>, out: &mut [u8]) -> Result<usize, WireError> {
        let nonce = canopy_wire::Connect::decode(packet).unwrap().nonce;
        if let Some(reason) = self.refuses {
            return Refused { nonce, reason }.encode(COMTREE, out);
        }
        self.joined += 1;
        let connected = Connected {
            nonce,
            address: Address::unicast(1, self.joined),
            lifetime_ms: 10_000,
            keepalive_ms: 2_000,
            subscription_ms: 60_000,
            secret: [1; 16],
        };
        connected.encode(COMTREE, out)
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.peer.unwrap()).unwrap();
    }

    /// Tells the member with this address that it is going away.
    fn drain(&self, participant: Participant) {
        let (mut out, leave) = ([0; 64], canopy_wire::Leave { reason: LeaveReason::Draining });
        let to = participant.address();
        let len = leave.encode(COMTREE, Address::UNSPECIFIED, to, &mut out).unwrap();
        self.send(&out[..len]);
    }

    /// A bundle of updates from `src`.
    fn publish(&self, src: Address, payloads: &[&[u8]]) {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = BundleWriter::new(&mut out).unwrap();
        for payload in payloads {
            assert!(writer.push(src, Group::new(7), Level(0), Default::default(), payload));
        }
        let none = Address::UNSPECIFIED;
        let len = writer.finish(&Header::new(Kind::Bundle, COMTREE, none, none));
        self.send(&out[..len]);
    }
}

struct World {
    now: Time,
    member: Member,
    relays: Vec<Script>,
    receiver: Receiver,
}

impl World {
    /// A member who knows these relays, in this order.
    fn new(relays: Vec<Script>) -> World {
        let now = Time::from_millis(1);
        let known = Relays::new(relays.iter().map(Script::address)).unwrap();
        let config = MemberConfig { comtree: COMTREE, receive_queue: 100, receive_offload: true };
        let member = Member::open(now, known, &config).unwrap();
        World { now, member, relays, receiver: Receiver::new(4, 65_535) }
    }

    fn settle(&mut self) {
        for _ in 0..8 {
            self.member.receive(self.now, &mut self.receiver);
            self.member.turn(self.now);
            self.relays.iter_mut().for_each(Script::serve);
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.now + span;
        while self.now < until {
            self.settle();
            self.now = self.now + Duration::from_millis(50);
        }
        self.settle();
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.member.inbox().next_event()).collect()
    }
}

fn is_connected(event: &Event) -> bool {
    matches!(event, Event::Connected { .. })
}

#[test]
fn a_socket_that_gets_nothing_through_is_replaced() {
    let mut world = World::new(vec![Script::new()]);
    world.settle();
    assert!(matches!(world.events()[..], [Event::Connected { .. }]));
    let port = world.member.socket().local_address().port();
    world.run(Duration::from_secs(60));
    assert_eq!(world.events(), []);
    assert_eq!(world.member.socket().local_address().port(), port, "nothing was wrong with it");
    world.relays[0].blocked.push(port);
    world.run(Duration::from_secs(15));
    let events = world.events();
    assert!(matches!(events[..], [Event::Lost, Event::Connected { .. }]), "{events:?}");
    assert_ne!(world.member.socket().local_address().port(), port);
}

#[test]
fn the_next_relay_is_asked_when_one_is_silent_or_refuses() {
    let (mut silent, mut full) = (Script::new(), Script::new());
    silent.silent = true;
    full.refuses = Some(RefusedReason::Full);
    let mut world = World::new(vec![silent, full, Script::new()]);
    world.run(Duration::from_secs(2));
    let events = world.events();
    let refused = Event::Refused(RefusedReason::Full);
    assert!(events[0] == refused && is_connected(&events[1]) && events.len() == 2, "{events:?}");
    assert_eq!(world.member.relay(), world.relays[2].address());
    // When its relay falls silent it asks the others in turn, from the next one on.
    world.relays[2].silent = true;
    world.relays[0].silent = false;
    world.run(Duration::from_secs(10));
    let events = world.events();
    assert!(events[0] == Event::Lost && is_connected(&events[1]), "{events:?}");
    assert_eq!(world.member.relay(), world.relays[0].address());
}

#[test]
fn a_relay_where_nothing_listens_is_passed_over_soon() {
    let gone = Script::new();
    let (address, here) = (gone.address(), Script::new());
    let known = Relays::new([address, here.address()]).unwrap();
    drop(gone);
    let mut world = World::new(vec![here]);
    let config = MemberConfig { comtree: COMTREE, receive_queue: 100, receive_offload: true };
    world.member = Member::open(world.now, known, &config).unwrap();
    world.run(Duration::from_millis(600));
    assert!(world.events().iter().any(is_connected));
}

#[test]
fn relays_that_all_refuse_are_asked_again_with_pauses() {
    let mut relays = vec![Script::new(), Script::new()];
    relays.iter_mut().for_each(|relay| relay.refuses = Some(RefusedReason::Full));
    let mut world = World::new(relays);
    world.settle();
    let word = world.member.first_word(Duration::ZERO);
    assert!(matches!(word, Some(Err(ConnectError::NoneOf { errors })) if errors.len() == 2));
    world.events();
    world.run(Duration::from_secs(10));
    let asked = world.events().len();
    assert!((10..=22).contains(&asked), "asked {asked} times in ten seconds");
    world.relays[1].refuses = None;
    world.run(Duration::from_secs(3));
    assert!(world.events().iter().any(is_connected));
}

/// Whatever comes in one piece, the events and updates of two sessions keep their order.
#[test]
fn nothing_of_a_new_session_is_read_before_its_connected() {
    let publisher = Address::unicast(1, 9);
    let relay = Script { publisher: Some(publisher), ..Script::new() };
    let mut world = World::new(vec![relay]);
    world.settle();
    for _ in 0..3 {
        let participant = world.member.participant().unwrap();
        world.relays[0].publish(publisher, &[b"old"]);
        world.relays[0].drain(participant);
        // The session is over; this one is not heard.
        world.relays[0].publish(publisher, &[b"too late"]);
        world.run(Duration::from_millis(500));
        world.relays[0].publish(publisher, &[b"new"]);
        world.settle();
    }
    let mut epoch = Epoch::default();
    let mut updates = 0;
    while let Some(incoming) = world.member.inbox().next() {
        match incoming {
            Incoming::Event(Event::Connected { epoch: begins, .. }) => {
                assert_eq!(begins, epoch.next());
                epoch = begins;
                // It came in one piece with what made the session.
                let welcome = world.member.inbox().next_update().unwrap();
                assert_eq!((welcome.epoch, &welcome.payload[..]), (epoch, &b"welcome"[..]));
                updates += 1;
            }
            Incoming::Update(update) => {
                assert_ne!(&update.payload[..], b"too late");
                assert_eq!(update.epoch, epoch);
                updates += 1;
            }
            Incoming::Event(event) => assert_eq!(event, Event::Lost),
        }
    }
    assert_eq!((epoch.number(), updates), (4, 4 + 6));
}

#[test]
fn an_answer_to_an_earlier_session_is_refused() {
    let mut world = World::new(vec![Script::new()]);
    world.settle();
    world.relays[0].publish(Address::unicast(1, 9), &[b"question"]);
    world.settle();
    let update = world.member.inbox().next_update().unwrap();
    world.member.publish(&Outgoing::reply(&update, b"answer")).unwrap();
    let participant = world.member.participant().unwrap();
    world.relays[0].drain(participant);
    world.settle();
    let refused = world.member.publish(&Outgoing::reply(&update, b"answer"));
    assert!(matches!(refused, Err(PublishError::NotConnected)));
    world.run(Duration::from_millis(500));
    let refused = world.member.publish(&Outgoing::reply(&update, b"answer"));
    assert!(matches!(refused, Err(PublishError::Stale)));
    world.member.publish(&Outgoing::to(update.from, b"at one's own risk")).unwrap();
}

/// A relay would drop what comes from an address that is the sender's no more.
#[test]
fn what_was_packed_in_an_earlier_session_is_not_sent_in_the_next() {
    let mut world = World::new(vec![Script::new()]);
    world.settle();
    let sender = world.member.sender().unwrap();
    let update = Outgoing::new(Group::new(7), Level(0), b"late");
    let bundles = Bundles::pack(sender, [update]).unwrap();
    world.member.publish_bundles(&bundles).unwrap();
    let participant = world.member.participant().unwrap();
    world.relays[0].drain(participant);
    world.run(Duration::from_millis(500));
    assert!(world.member.participant().is_some());
    let refused = world.member.publish_bundles(&bundles);
    assert!(matches!(refused, Err(PublishError::NotConnected)));
    assert_eq!(world.member.stats().published, 1);
}

#[test]
fn updates_of_one_datagram_share_its_memory_and_hold_their_bytes() {
    let mut world = World::new(vec![Script::new()]);
    world.settle();
    let publisher = Address::unicast(1, 9);
    world.relays[0].publish(publisher, &[b"one", b"", b"three"]);
    world.relays[0].publish(publisher, &[b"alone"]);
    // Updates in the name of nobody or of a group are not delivered.
    world.relays[0].publish(Address::UNSPECIFIED, &[b"nobody"]);
    world.relays[0].publish(Group::new(7).address(), &[b"group"]);
    world.settle();
    let updates: Vec<_> = std::iter::from_fn(|| world.member.inbox().next_update()).collect();
    let payloads: Vec<_> = updates.iter().map(|update| &update.payload[..]).collect();
    assert_eq!(payloads, [&b"one"[..], b"", b"three", b"alone"]);
    // Twelve bytes are a record's header.
    let distance = payloads[2].as_ptr().addr() - payloads[0].as_ptr().addr();
    assert_eq!(distance, 3 + 2 * RECORD_HEADER_LEN);
    assert_eq!(world.member.stats().malformed, 2);
}
