//! Members and relays of the test's own over loopback sockets, in virtual time: a datagram that was
//! sent waits in its receiver's socket, so nothing has to be waited for.

use super::*;
use crate::{Event, Incoming};
use canopy_session::{
    Answer, Keyring, PacketsPerKey, SessionIndex, SessionLimits, Sessions, SessionsConfig, Terms,
    refuse,
};
use canopy_wire::{
    Address, Downlink, Header, Kind, LeaveReason, NumberedRequest, Packet, Record, RefusedReason,
    RequestStatus, Response, SAFE_DATAGRAM, Sealed, Subscribe, SubscribeAckWriter,
    SubscribeRefusal, Suite, UpdatesWriter,
};
use std::net::UdpSocket;

mod moving;

pub(crate) const COMTREE: Comtree = Comtree(1);

/// A relay that does as it is told.
pub(crate) struct Script {
    socket: UdpSocket,
    pub(crate) sessions: Sessions,
    /// Refuses whoever connects.
    refuses: Option<RefusedReason>,
    /// Answers nobody.
    pub(crate) silent: bool,
    /// Answers nobody from these ports.
    blocked: Vec<u16>,
    /// From where it heard something last.
    peer: Option<SocketAddr>,
    joined: u16,
    session: SessionIndex,
    /// Sends an update of this publisher's right behind its welcome.
    publisher: Option<Address>,
    /// Its own site.
    pub(crate) site: u16,
    refuses_groups: Option<SubscribeRefusal>,
    /// Somebody has subscribed, or left.
    pub(crate) subscribed: bool,
    pub(crate) has_left: bool,
    /// What it was sent of updates: when, their numbers, and what is in them.
    heard: Vec<(Time, u16, Vec<u8>)>,
}

impl Script {
    pub(crate) fn new() -> Script {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let limits = SessionLimits::default();
        let config = SessionsConfig {
            max_sessions: 99,
            thread: 0,
            threads: 1,
            unix_zero: 0,
            log_keys: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits,
        };
        Script {
            socket,
            sessions: Sessions::new(config, Keyring::new([1; 16]), &[2; 16]),
            refuses: None,
            silent: false,
            blocked: Vec::new(),
            peer: None,
            joined: 0,
            session: 0,
            publisher: None,
            site: 1,
            refuses_groups: None,
            subscribed: false,
            has_left: false,
            heard: Vec::new(),
        }
    }

    #[cfg(feature = "join")]
    pub(crate) fn at(site: u16) -> Script {
        Script { site, ..Script::new() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Answers all that waits.
    fn serve(&mut self, now: Time) {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
            self.peer = Some(from);
            if self.silent || self.blocked.contains(&from.port()) {
                continue;
            }
            let joined = self.joined;
            let mut answer = Answer::new();
            self.answer(now, from, &mut bytes[..len], &mut answer);
            if !answer.bytes().is_empty() {
                self.send(answer.bytes());
            }
            if self.joined > joined {
                let welcome = self.sessions.welcome(self.session).unwrap().to_vec();
                self.send(&welcome);
                if let Some(publisher) = self.publisher {
                    self.publish(publisher, &[b"welcome"]);
                }
            }
        }
    }

    fn answer(&mut self, now: Time, from: SocketAddr, datagram: &mut [u8], answer: &mut Answer) {
        let path = from.into();
        if let Some(Sealed { session, .. }) = Sealed::of(datagram) {
            let Ok(opened) = self.sessions.unseal(path, session, datagram) else { return };
            let packet = Packet::new_checked(opened).unwrap();
            match packet.header().kind {
                Kind::Keepalive => {
                    self.sessions.keepalive(now, self.session, &packet, answer).unwrap();
                }
                Kind::Subscribe => {
                    let sequence = Subscribe::new_checked(&packet).unwrap().sequence();
                    self.acknowledge(sequence);
                }
                Kind::Updates => {
                    let updates = packet.updates().unwrap();
                    let heard = updates.map(|of| (now, of.series, of.payload.to_vec()));
                    self.heard.extend(heard);
                }
                Kind::Request => {
                    let sequence = NumberedRequest::decode(&packet).unwrap().sequence;
                    self.respond(Response { sequence, status: RequestStatus::Done });
                }
                Kind::Leave => self.has_left = true,
                _ => {}
            }
            return;
        }
        let Ok(packet) = Packet::new_checked(datagram) else { return };
        match packet.header().kind {
            Kind::Hello => self.sessions.hello(now, path, &packet, answer).unwrap(),
            Kind::Connect => self.connect(now, from, &packet, answer),
            _ => {}
        }
    }

    fn connect(&mut self, now: Time, from: SocketAddr, packet: &Packet<'_>, answer: &mut Answer) {
        let (connect, proof) = self.sessions.prove(now, from.into(), packet).unwrap();
        if let Some(reason) = self.refuses {
            return refuse(connect.nonce, COMTREE, reason, answer);
        }
        let knock = self.sessions.knock(&connect).unwrap();
        if let Some(older) = self.sessions.at(from.into(), knock.holder()) {
            let _ = self.sessions.end(older);
        }
        self.joined += 1;
        self.subscribed = false;
        self.has_left = false;
        let terms = Terms {
            address: Address::unicast(self.site, self.joined),
            suite: Suite::Aes128Gcm,
            downlink: Downlink::Member,
            max_datagram: SAFE_DATAGRAM as u16,
            features: 0,
        };
        self.session = self.sessions.open(now, from.into(), proof, knock, &terms).unwrap();
    }

    fn acknowledge(&mut self, sequence: u32) {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = SubscribeAckWriter::new(&mut out, sequence, SAFE_DATAGRAM).unwrap();
        if let Some(reason) = self.refuses_groups {
            assert!(writer.push(Group::new(7), reason));
        }
        let len = writer.finish(COMTREE, self.sessions.id(self.session));
        let len = self.sessions.seal(self.session, &mut out, len).unwrap();
        self.subscribed = true;
        self.send(&out[..len]);
    }

    fn respond(&mut self, response: Response) {
        let mut out = [0; MAX_DATAGRAM];
        let len = response.encode(COMTREE, self.sessions.id(self.session), &mut out).unwrap();
        let len = self.sessions.seal(self.session, &mut out, len).unwrap();
        self.send(&out[..len]);
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.peer.unwrap()).unwrap();
    }

    /// Tells the member who joined last that the relay is going away.
    fn drain(&mut self) {
        let mut answer = Answer::new();
        self.sessions.dismiss(self.session, COMTREE, LeaveReason::Draining, &mut answer);
        self.send(answer.bytes());
    }

    /// Updates from `src` in one datagram, to the member who joined last.
    fn publish(&mut self, src: Address, payloads: &[&[u8]]) {
        self.publish_from(src, 0, payloads);
    }

    /// The same, the first with this number.
    pub(crate) fn publish_from(&mut self, src: Address, first: u16, payloads: &[&[u8]]) {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
        for (series, payload) in (first..).zip(payloads) {
            let record = Record::new(Group::new(7).address(), series, payload);
            assert!(writer.push(&Record { src, ..record }));
        }
        let id = self.sessions.id(self.session);
        let len = writer.finish(&Header::new(Kind::Updates, id, COMTREE));
        let len = self.sessions.seal(self.session, &mut out, len).unwrap();
        self.send(&out[..len]);
    }
}

pub(crate) fn config() -> MemberConfig {
    let max_datagram = SAFE_DATAGRAM as u16;
    MemberConfig {
        identity: None,
        token: String::new(),
        comtree: COMTREE,
        relay_key: None,
        resumption: None,
        max_datagram,
        receive_queue: 100,
        receive_offload: true,
        is_kept: false,
    }
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) member: Member,
    pub(crate) relays: Vec<Script>,
    receiver: Receiver,
}

impl World {
    /// A member who knows these relays, in this order.
    pub(crate) fn new(relays: Vec<Script>) -> World {
        let now = Time::from_millis(1);
        let known = Relays::new(relays.iter().map(Script::address)).unwrap();
        let config = config();
        let member = Member::open(now, known, &config).unwrap();
        World { now, member, relays, receiver: Receiver::new(4, 65_535) }
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..8 {
            self.member.receive(self.now, &mut self.receiver);
            self.member.receive_beside(self.now, &mut self.receiver);
            self.member.turn(self.now);
            let now = self.now;
            self.relays.iter_mut().for_each(|relay| relay.serve(now));
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

    pub(crate) fn events(&mut self) -> Vec<Event> {
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
    let config = config();
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
        world.relays[0].publish(publisher, &[b"old"]);
        world.relays[0].drain();
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
    world.member.publish(world.now, &Outgoing::reply(&update, b"answer")).unwrap();
    world.relays[0].drain();
    world.settle();
    let refused = world.member.publish(world.now, &Outgoing::reply(&update, b"answer"));
    assert!(matches!(refused, Err(PublishError::NotConnected)));
    world.run(Duration::from_millis(500));
    let refused = world.member.publish(world.now, &Outgoing::reply(&update, b"answer"));
    assert!(matches!(refused, Err(PublishError::Stale)));
    world.member.publish(world.now, &Outgoing::to(update.from, b"at one's own risk")).unwrap();
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
    // The later records' heads have two bytes: their form and their length.
    let distance = payloads[2].as_ptr().addr() - payloads[0].as_ptr().addr();
    assert_eq!(distance, 3 + 2 * 2);
    assert_eq!(world.member.stats().malformed, 2);
}
