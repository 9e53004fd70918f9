//! What those can do to a relay who see its participants' datagrams, or can write any ip:port on their
//! own: each test is named after its attack.

use crate::support::{self, COMTREE, Sent, World, config, group, ip_port, is_sealed};
use canopy_relay::{Gate, Mode, Places, RelayConfig};
use canopy_session::{Event, Keyring, Session, SessionConfig, State};
use canopy_wire::{
    Connect, Cookie, DropReason, Flags, Group, HEADER_LEN, Header, Hello, Keepalive, Kind, Leave,
    LeaveReason, Level, MAX_DATAGRAM, Packet, Rebind, RefusedReason, SAFE_DATAGRAM, SEAL_LEN,
    SessionId, SubscribeWriter, SubscriptionChange, Suite, UpdatesWriter, VERSION,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);

fn stranger() -> SocketAddr {
    SocketAddr::from(([66, 6, 6, 6], 666))
}

/// One packet of each kind that a participant sends, in cleartext, in the name of a session.
fn packets_of(id: SessionId) -> Vec<(Kind, Vec<u8>)> {
    let mut out = [0; 1500];
    let mut packets = Vec::new();
    let mut add = |kind, bytes: &[u8]| packets.push((kind, bytes.to_vec()));
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
    assert!(writer.push(&canopy_wire::Record::new(group(7), 0, b"in another's name")));
    let len = writer.finish(&Header::new(Kind::Updates, id, COMTREE));
    add(Kind::Updates, &out[..len]);
    let mut writer = SubscribeWriter::new(&mut out, 2, SAFE_DATAGRAM).unwrap();
    assert!(writer.push(SubscriptionChange::Drop(Group::new(7))));
    let len = writer.finish(COMTREE, id);
    add(Kind::Subscribe, &out[..len]);
    let len = Keepalive { stamp: 1, path_stamp: 0 }.encode(COMTREE, id, &mut out).unwrap();
    add(Kind::Keepalive, &out[..len]);
    let len = Leave { reason: LeaveReason::Done }.encode(COMTREE, id, &mut out).unwrap();
    add(Kind::Leave, &out[..len]);
    let len = Rebind { cookie: [1; 16] }.encode(COMTREE, id, &mut out).unwrap();
    add(Kind::Rebind, &out[..len]);
    packets
}

fn with_id(datagram: &[u8], id: SessionId) -> Vec<u8> {
    [&datagram[..1], &id.number().to_be_bytes()[1..], &datagram[4..]].concat()
}

/// Three members who hear each other; nothing of what came before is left to be sent or told.
fn three() -> World {
    three_of(config(Mode::Immediate))
}

fn three_of(config: RelayConfig) -> World {
    let mut world = World::of(config, 3);
    world.subscribe_all(7, 0);
    while world.relay_mut().poll_notice().is_some() {}
    world
}

/// All three are members, subscribed, and at their paths; nothing was heard.
fn assert_nothing_has_happened(world: &mut World) {
    assert_eq!((world.sessions(), world.relay().subscriptions()), (3, 3));
    assert_eq!(world.relay_mut().poll_notice(), None);
    assert!(world.participants.iter().all(|one| one.received.is_empty()));
    world.publish(0, 7, 0, Flags(0), b"still here");
    world.publish(1, 7, 0, Flags(0), b"I too");
    world.settle();
    assert_eq!(world.payloads(0), [b"I too"]);
    assert_eq!(world.payloads(1), [b"still here"]);
    for number in 0..3 {
        let is_settled =
            |event: &Event| matches!(event, Event::Connected(_) | Event::Subscribed(..));
        assert!(world.events(number).iter().all(is_settled), "participant {number}");
        world.participants[number].received.clear();
    }
}

#[test]
fn a_spoofed_source_says_nothing_in_anothers_name() {
    let mut world = three();
    let [victim, thief] = [0, 1].map(|number| world.participants[number].session.id());
    let paths = [ip_port(0), ip_port(1), stranger()];
    for (kind, packet) in packets_of(victim) {
        // Cleartext; sealed with the thief's key for the victim; sealed by the thief for itself, and
        // the number written over; what the victim has sealed, a bit altered or cut.
        let for_victim = world.seal(1, &packet);
        let rewritten = with_id(&world.seal(1, &with_id(&packet, thief)), victim);
        let of_victim = world.seal(0, &packet);
        let mut altered = of_victim.clone();
        altered[HEADER_LEN + 1] ^= 0x10;
        let cut = of_victim[..of_victim.len() - 1].to_vec();
        for (form, forged) in [packet, for_victim, rewritten, altered, cut].iter().enumerate() {
            for path in paths {
                let before = world.dropped(DropReason::Forged);
                world.arrive(0, path, forged);
                assert_eq!(world.dropped(DropReason::Forged), before + 1, "{kind:?}, form {form}");
                for sent in world.collect(0) {
                    assert!(path != ip_port(0), "{kind:?}: its owner is not bothered");
                    assert_eq!(sent.to, path);
                    assert!(sent.bytes.len() <= forged.len() && !is_sealed(&sent.bytes));
                }
            }
        }
    }
    assert_nothing_has_happened(&mut world);
}

/// A member who writes another's ip:port on its own packets is not taken for the other.
#[test]
fn a_spoofed_ip_port_brings_the_other_nothing_but_a_challenge() {
    let mut world = three();
    let thief = world.participants[1].session.id();
    for (kind, packet) in packets_of(thief) {
        world.now = world.now + Duration::from_millis(60);
        let datagram = world.seal(1, &packet);
        world.arrive(0, ip_port(0), &datagram);
        for sent in world.collect(0) {
            assert_eq!(sent.to, ip_port(0), "{kind:?}");
            assert!(sent.bytes.len() <= datagram.len(), "{kind:?}");
            // It is of no session of the other's, and the other has no key for it.
            let other = &mut world.participants[0].session;
            let heard = other.handle_datagram(world.now, &mut sent.bytes.clone(), |_| ());
            assert!(heard.is_err(), "{kind:?}");
        }
    }
    assert_eq!(world.dropped(DropReason::SpoofedSource) + world.dropped(DropReason::BadCookie), 5);
    assert_nothing_has_happened(&mut world);
}

/// Everything that a participant ever sends comes again: at once, later, and much later.
#[test]
fn replays_do_nothing_again_from_wherever_they_come() {
    let mut world = three();
    world.captured = Some(Vec::new());
    world.publish(0, 7, 0, Flags(0), b"once");
    world.participants[0].session.subscribe(Group::new(9), Level(0));
    world.settle();
    world.participants[0].session.unsubscribe(Group::new(9));
    world.now = world.now + Duration::from_secs(2);
    world.settle();
    let of_victim = world.participants[0].session.id();
    let is_victims = |datagram: &Vec<u8>| support::session_of(datagram) == of_victim;
    let mut seen = world.captured.take().unwrap();
    seen.retain(is_victims);
    // The keys tell what was sent to the relay.
    seen.retain(|datagram| {
        let keys = world.keys(0, of_victim);
        keys.from_participant.peek(datagram).is_some()
    });
    assert_eq!(seen.len(), 4, "an update, two subscribes and a keepalive");
    world.participants.iter_mut().for_each(|one| one.received.clear());
    world.events(0);
    let mut replayed = 0;
    for later in [0, 1_000, 1_100, 5_000] {
        for _ in 0..later {
            world.publish(0, 99, 0, Flags(0), b"nobody wants it");
        }
        world.settle();
        for datagram in &seen {
            for path in [ip_port(0), ip_port(1), stranger()] {
                world.arrive(0, path, datagram);
                assert!(world.collect(0).is_empty(), "a replay is not even answered");
                replayed += 1;
            }
        }
        assert_eq!(world.dropped(DropReason::Replayed), replayed);
    }
    assert_nothing_has_happened(&mut world);
}

/// A leave that was recorded, and all else, in a session that has the same place, number and ip:port.
#[test]
fn replays_of_an_earlier_session_of_one_ip_port_do_nothing_to_the_later() {
    let mut world = World::of(
        RelayConfig { places: Places::new(2), max_sessions: 2, ..config(Mode::Immediate) },
        1,
    );
    world.captured = Some(Vec::new());
    let victim = world.join(0);
    world.subscribe(0, 7, 0);
    let path = world.participants[victim].path;
    for round in 0..2 {
        world.publish(victim, 7, 0, Flags(0), &[round; 20]);
        world.subscribe(victim, 8, 0);
        if round == 0 {
            world.participants[victim].session.leave();
            world.settle();
            world.now = world.now + MILLI;
            let id = world.participants[victim].session.id();
            let session = Session::new(SessionConfig::new(COMTREE, [99; 16]));
            world.participants[victim].session = session;
            world.participants[0].session.subscribe(Group::new(7), Level(0));
            world.settle();
            assert_eq!(world.participants[victim].session.id(), id, "it has the same place");
        }
    }
    world.now = world.now + MILLI;
    world.settle();
    world.participants[0].received.clear();
    let seen = world.captured.take().unwrap();
    let opened = world.relay().counters().sessions_opened;
    assert!(seen.len() > 15, "{}", seen.len());
    for datagram in &seen {
        world.arrive(0, path, datagram);
        let mut copy = datagram.clone();
        let now = world.now;
        let heard =
            world.participants[victim].session.handle_datagram(now, &mut copy, |_| panic!());
        assert!(heard.is_err() || !is_sealed(datagram));
        for sent in world.collect(0) {
            let kind = Packet::new_checked(&sent.bytes).unwrap().header().kind;
            assert!(matches!(kind, Kind::Cookie | Kind::Unknown), "{kind:?}");
        }
    }
    world.settle();
    assert_eq!((world.sessions(), world.relay().counters().sessions_opened), (2, opened));
    assert_eq!(world.participants[victim].session.state(), State::Connected);
    assert!(world.payloads(0).is_empty());
    world.publish(victim, 7, 0, Flags(0), b"it lives");
    world.settle();
    assert_eq!(world.payloads(0), [b"it lives"]);
}

/// A datagram that would be answered, if anything of it were right.
fn probes(world: &mut World) -> Vec<Vec<u8>> {
    let mut out = [0; 1500];
    let id = world.participants[0].session.id();
    let len = Hello { nonce: 5 }.encode(COMTREE, &mut out).unwrap();
    let mut probes = vec![out[..len].to_vec()];
    // A connect with the cookie of another ip:port.
    let mut session = Session::new(SessionConfig::new(COMTREE, [77; 16]));
    let len = session.poll_transmit(world.now, &mut out).unwrap();
    world.arrive(0, ip_port(7), &out[..len]);
    let mut cookie = world.collect(0).remove(0).bytes;
    session.handle_datagram(world.now, &mut cookie, |_| ()).unwrap();
    let len = session.poll_transmit(world.now, &mut out).unwrap();
    assert_eq!(Packet::new_checked(&out[..len]).unwrap().header().kind, Kind::Connect);
    probes.push(out[..len].to_vec());
    for (_, packet) in packets_of(id) {
        probes.push(world.seal(0, &packet));
        probes.push(packet);
    }
    // Its longest keepalive, which is authentic at first.
    let mut long = packets_of(id)[2].1.clone();
    long.resize(MAX_DATAGRAM - SEAL_LEN, 0);
    probes.push(world.seal(0, &long));
    probes
}

/// What a stranger sends and is sent, counted.
#[derive(Default)]
struct Prober {
    asked: u32,
    /// The kinds of the answers; a sealed one is a challenge.
    answers: BTreeMap<Kind, u32>,
}

impl Prober {
    /// A stranger's datagram reaches a data thread, which answers with no more bytes.
    fn probe(&mut self, world: &mut World, thread: usize, datagram: &[u8]) {
        // Strangers are answered at a rate.
        world.now = world.now + Duration::from_micros(50);
        world.arrive(thread, stranger(), datagram);
        let sent = world.collect(thread);
        let answered: usize = sent.iter().map(|sent| sent.bytes.len()).sum();
        let (len, head) = (datagram.len(), &datagram[..datagram.len().min(9)]);
        assert!(answered <= len, "{answered} for {len}: {head:?}");
        for Sent { to, bytes, .. } in sent {
            assert_eq!(to, stranger());
            let kind = if is_sealed(&bytes) {
                Kind::Challenge
            } else {
                Packet::new_checked(&bytes).unwrap().header().kind
            };
            *self.answers.entry(kind).or_default() += 1;
        }
        self.asked += 1;
        if self.asked.is_multiple_of(10_000) {
            world.settle();
        }
    }
}

/// Packets of every kind, class, version and length: whoever has not proved that it is at its ip:port is
/// never sent more than it sent.
#[test]
fn probes_for_amplification_bring_no_more_bytes_than_they_cost() {
    // However many come from one ip:port, all are answered that ever are.
    let mut world = three_of(RelayConfig { gate: Gate::open(), ..config(Mode::Immediate) });
    let firsts = (0..8).map(|class| VERSION | class).chain([0x80, 0x90, 0x98, 0xb8, 0x40, 0xc8]);
    let lengths: Vec<usize> =
        (0..130).chain((130..=MAX_DATAGRAM).step_by(61)).chain([1452, 1453]).collect();
    let mut kinds: Vec<u8> = Kind::ALL.iter().map(|kind| *kind as u8).collect();
    kinds.extend([0, 2, 0x0f, 0x1e, 0xff]);
    let mut prober = Prober::default();
    for first in firsts {
        for kind in &kinds {
            for fill in [0, 0xff] {
                let mut whole = [fill; 1500];
                (whole[0], whole[8], whole[11]) = (first, *kind, 0);
                lengths.iter().for_each(|len| prober.probe(&mut world, 0, &whole[..*len]));
            }
        }
    }
    for whole in probes(&mut world) {
        for len in 0..=whole.len() {
            prober.probe(&mut world, 0, &whole[..len]);
        }
        for longer in [1, 16, 100] {
            let len = (whole.len() + longer).min(MAX_DATAGRAM);
            let padded = [&whole[..], &[0; 100]].concat();
            prober.probe(&mut world, 0, &padded[..len]);
        }
    }
    assert!(prober.asked > 50_000, "{}", prober.asked);
    // Other versions are refused, and unknown sessions named.
    for kind in [Kind::Cookie, Kind::Refused, Kind::Unknown, Kind::Challenge] {
        assert!(prober.answers[&kind] > 0, "{:?}", prober.answers);
    }
    assert_eq!(prober.answers.len(), 4, "{:?}", prober.answers);
    assert_nothing_has_happened(&mut world);
}

/// What is sealed by a session's own keys and comes from elsewhere than where it is: of each kind, and of
/// each length up to where nothing changes any more.
#[test]
fn probes_for_amplification_by_authentic_packets_bring_no_more_bytes_than_they_cost() {
    let mut world = three_of(RelayConfig { gate: Gate::open(), ..config(Mode::Immediate) });
    let id = world.participants[0].session.id();
    let mut prober = Prober::default();
    let lengths = (HEADER_LEN..100).chain([200, 500, SAFE_DATAGRAM - SEAL_LEN]);
    for (kind, len) in
        Kind::ALL.iter().flat_map(|kind| lengths.clone().map(move |len| (*kind, len)))
    {
        // A session is challenged at a rate, and must not expire meanwhile.
        world.now = world.now + Duration::from_millis(51);
        world.settle();
        let mut packet = vec![0; len];
        packet[..HEADER_LEN]
            .copy_from_slice(&Header::new(kind, id, COMTREE).encode(0)[..HEADER_LEN]);
        let datagram = world.seal(0, &packet);
        prober.probe(&mut world, 0, &datagram);
        // A copy brings no second answer.
        prober.probe(&mut world, 0, &datagram);
    }
    let challenges = prober.answers[&Kind::Challenge];
    assert!(challenges > 500 && prober.answers.len() == 1, "{:?}", prober.answers);
    assert_nothing_has_happened(&mut world);
}

/// Signs of life of a neighbour that come from elsewhere than where it is: whole ones are not answered, and
/// cut ones as those of a session that nobody knows.
#[test]
fn probes_for_amplification_by_a_links_packets_bring_no_more_bytes_than_they_cost() {
    let mut world = World::empty();
    for site in [1, 2] {
        let config = support::at_site(Mode::Immediate, site);
        world.add_relay(RelayConfig { gate: Gate::open(), ..config }, 1);
    }
    world.link_threads([0, 1]);
    let (mut prober, mut hellos) = (Prober::default(), 0);
    for _ in 0..40 {
        world.pass(Duration::from_millis(80));
        world.now = world.now + Duration::from_millis(80);
        let now = world.now;
        world.threads[0].handle_timeout(now);
        for Sent { bytes, .. } in world.collect(0) {
            hellos += u64::from(is_sealed(&bytes));
            (0..=bytes.len()).rev().for_each(|len| prober.probe(&mut world, 1, &bytes[..len]));
        }
    }
    assert!(hellos >= 20, "{hellos}");
    assert_eq!(world.threads[1].counters().dropped(DropReason::SpoofedSource), hellos);
    assert!(prober.answers.keys().eq([&Kind::Unknown]), "{:?}", prober.answers);
    let key = world.key_of(0);
    assert!(world.threads[1].is_linked(&key), "the link is as it was");
}

/// The path stays as it is, whatever of the session comes from elsewhere.
fn assert_it_is_still_there(world: &mut World) {
    world.participants[0].received.clear();
    world.publish(1, 7, 0, Flags(0), b"to where it is");
    let sent = world.collect(0);
    let own = world.participants[0].path.remote;
    assert!(
        sent.iter().any(|sent| sent.to == own) && !sent.iter().any(|sent| sent.to == stranger())
    );
    world.carry(0, sent);
    assert_eq!(world.payloads(0), [b"to where it is"]);
    world.settle();
}

/// A thief who sees all, and can be faster than the participant, sends copies from its own ip:port.
#[test]
fn hijack_by_copies_of_authentic_packets_and_of_rebinds_moves_nothing() {
    let mut world = three();
    let mut out = [0; 1500];
    let mut authentic = |world: &mut World| {
        world.now = world.now + Duration::from_millis(100);
        let session = &mut world.participants[0].session;
        let len = session.publish(group(99), Level(0), Flags(0), &[1; 64], &mut out).unwrap();
        out[..len].to_vec()
    };
    // The copy comes first: it brings a challenge that the thief can neither read nor answer.
    let datagram = authentic(&mut world);
    world.arrive(0, stranger(), &datagram);
    let challenge = world.collect(0).remove(0);
    assert!(is_sealed(&challenge.bytes) && challenge.to == stranger());
    for answer in [&challenge.bytes[..], &datagram] {
        world.arrive(0, stranger(), answer);
        world.collect(0);
    }
    world.arrive(0, ip_port(0), &datagram);
    assert_eq!(world.relay().counters().updates_in, 1, "the packet itself is taken");
    assert_it_is_still_there(&mut world);
    // It moves; the thief sends copies of its proof, before and after it.
    for thief_is_first in [true, false] {
        let path = ip_port(if thief_is_first { 50 } else { 51 });
        world.participants[0].path = path.into();
        let datagram = authentic(&mut world);
        world.arrive(0, path, &datagram);
        let challenge = world.collect(0);
        world.carry(0, challenge);
        let (now, mut proof) = (world.now, [0; 1500]);
        let len = world.participants[0].session.poll_transmit(now, &mut proof).unwrap();
        let proof = &proof[..len];
        let packet = world.open_from(0, proof);
        assert_eq!(Packet::new_checked(&packet).unwrap().header().kind, Kind::Rebind);
        let mut order = [path, stranger()];
        if thief_is_first {
            order.reverse();
        }
        let refused = world.dropped(DropReason::BadCookie);
        for from in order {
            world.arrive(0, from, proof);
            let sent = world.collect(0);
            assert!(sent.iter().all(|sent| sent.to == path), "the thief is not answered");
            world.carry(0, sent);
        }
        assert_eq!(world.dropped(DropReason::BadCookie), refused + 1);
        assert_eq!(world.events(0).last(), Some(&Event::Rebound));
        assert_it_is_still_there(&mut world);
    }
    // Where it was before, nobody is any more; what was recorded there does not bring it back.
    for from in [ip_port(0), ip_port(50), stranger()] {
        world.now = world.now + Duration::from_millis(100);
        world.arrive(0, from, &datagram);
        assert!(world.collect(0).is_empty());
    }
    assert_it_is_still_there(&mut world);
    assert_eq!((world.sessions(), world.relay().counters().sessions_opened), (3, 3));
}

/// A member knows its own cookies, and may have others'; neither moves another's session.
#[test]
fn hijack_by_a_members_own_rebind_moves_its_own_session_only() {
    let mut world = three();
    let thief = world.participants[1].session.id();
    let packet = packets_of(thief)[0].1.clone();
    let datagram = world.seal(1, &packet);
    // It is challenged at the victim's ip:port, and somehow learns what was sent there.
    world.arrive(0, ip_port(0), &datagram);
    let sent = world.collect(0).remove(0).bytes;
    let challenge = world.open(0, &sent);
    let cookie = challenge[HEADER_LEN..].try_into().unwrap();
    let mut out = [0; 100];
    let victim = world.participants[0].session.id();
    for id in [victim, thief] {
        let len = Rebind { cookie }.encode(COMTREE, id, &mut out).unwrap();
        let proof = world.seal(1, &out[..len]);
        world.arrive(0, stranger(), &proof);
        world.collect(0);
    }
    assert_eq!((world.dropped(DropReason::Forged), world.dropped(DropReason::BadCookie)), (1, 1));
    assert_nothing_has_happened(&mut world);
}

/// An observer sends what it saw of a handshake in one of its own.
#[test]
fn a_stolen_handshake_message_takes_no_place() {
    let mut world = World::of(RelayConfig { places: Places::new(1), ..config(Mode::Immediate) }, 0);
    let mut victim = Session::new(SessionConfig::new(COMTREE, [1; 16]));
    let (now, mut out) = (world.now, [0; 1500]);
    let ask = |world: &mut World, from: SocketAddr, datagram: &[u8]| {
        world.arrive(0, from, datagram);
        let mut sent = world.collect(0);
        (!sent.is_empty()).then(|| sent.remove(0).bytes)
    };
    let len = victim.poll_transmit(now, &mut out).unwrap();
    let mut cookie = ask(&mut world, ip_port(0), &out[..len]).unwrap();
    victim.handle_datagram(now, &mut cookie, |_| ()).unwrap();
    let len = victim.poll_transmit(now, &mut out).unwrap();
    let connect = out[..len].to_vec();
    // Its own cookie, for its own nonce or for the victim's.
    let seen = Connect::decode(&Packet::new_checked(&connect).unwrap()).unwrap();
    for nonce in [6, seen.nonce] {
        let len = Hello { nonce }.encode(COMTREE, &mut out).unwrap();
        let cookie = ask(&mut world, stranger(), &out[..len]).unwrap();
        let Cookie { cookie, .. } = Cookie::decode(&Packet::new_checked(&cookie).unwrap()).unwrap();
        let len = Connect { nonce, cookie, ..seen }.encode(&mut out).unwrap();
        let answer = ask(&mut world, stranger(), &out[..len]).unwrap();
        let refused = canopy_wire::Refused::decode(&Packet::new_checked(&answer).unwrap()).unwrap();
        assert_eq!(refused.reason, RefusedReason::Key);
    }
    // Nor does the connect itself open anything elsewhere.
    assert_eq!(ask(&mut world, stranger(), &connect), None);
    assert_eq!((world.sessions(), world.dropped(DropReason::Forged)), (0, 2));
    let mut welcome = ask(&mut world, ip_port(0), &connect).unwrap();
    victim.handle_datagram(now, &mut welcome, |_| ()).unwrap();
    assert_eq!((victim.state(), world.sessions()), (State::Connected, 1));
}

#[test]
fn downgrades_to_no_suite_or_to_another_relay_are_refused() {
    let [aes, chacha] = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305].map(Suite::bit);
    let right = Some(*Keyring::new([1; 16]).identity().public());
    let wrong = Some(*Keyring::new([2; 16]).identity().public());
    for (suites, relay_key, refused) in [
        (aes, right, None),
        (chacha, right, None),
        (aes | chacha | 0x80, right, None),
        (aes | chacha, None, None),
        (0, right, Some(RefusedReason::Credentials)),
        (0x80, right, Some(RefusedReason::Credentials)),
        (aes, wrong, Some(RefusedReason::Key)),
    ] {
        let mut world = World::new(Mode::Immediate, 0);
        let session = SessionConfig { suites, relay_key, ..SessionConfig::new(COMTREE, [1; 16]) };
        world.add_session(0, session);
        world.settle();
        let events = world.events(0);
        let Some(reason) = refused else {
            assert!(matches!(events[..], [Event::Connected(_)]), "{suites}: {events:?}");
            world.subscribe(0, 7, 0);
            world.publish(0, 7, 0, Flags::ECHO, b"x");
            world.settle();
            assert_eq!(world.payloads(0), [b"x"]);
            continue;
        };
        assert_eq!((events, world.sessions()), (vec![Event::Refused(reason)], 0));
        assert_ne!(world.participants[0].session.state(), State::Connected);
    }
}
