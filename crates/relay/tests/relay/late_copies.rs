//! Datagrams that come late, twice, or from whoever else change nothing: a path is whose proof is
//! the latest, and a session lives by what its own participant sends.

use crate::support::{COMTREE, World, config, group, ip_port, is_sealed, session_of};
use canopy_relay::{Mode, Places, Relay, RelayConfig};
use canopy_session::{LoggedKeys, Session, SessionConfig, State};
use canopy_wire::{
    CLEAR_LEN, DropReason, Flags, Group, HEADER_LEN, Keepalive, Kind, Level, Packet, Path,
    SEAL_LEN, SessionId, Time, Unknown,
};
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A participant whose datagrams the test carries itself.
struct Hand {
    session: Session,
    path: Path,
    keys: Option<LoggedKeys>,
}

impl Hand {
    fn new(seed: u8, path: Path) -> Hand {
        let session = Session::new(SessionConfig::new(COMTREE, [seed; 16]));
        Hand { session, path, keys: None }
    }

    /// All that it sends now.
    fn sends(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut out = [0; 1500];
        let send = || self.session.poll_transmit(now, &mut out).map(|len| out[..len].to_vec());
        std::iter::from_fn(send).collect()
    }

    /// An update that it sends now.
    fn publishes(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut out = [0; 1500];
        let len = self.session.publish(group(7), Level(0), Flags(0), payload, &mut out).unwrap();
        out[..len].to_vec()
    }

    /// Seals a packet as its session would.
    fn seals(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut out = [packet, &[0; SEAL_LEN]].concat();
        self.session.seal(&mut out, packet.len()).unwrap();
        out
    }

    /// Brings datagrams to a data thread; returns the answers.
    fn bring(&mut self, thread: &mut Relay, now: Time, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for datagram in datagrams {
            thread.handle_datagram(now, self.path, &mut datagram.clone());
        }
        while let Some(keys) = thread.poll_key_log() {
            self.keys = Some(keys);
        }
        let mut answers = Vec::new();
        thread.transmit(now, |batch| {
            let bytes = |transmit| batch.parts(transmit).flatten().copied().collect();
            answers.extend(batch.transmits().iter().map(bytes));
        });
        answers
    }

    fn hears(&mut self, now: Time, answers: &[Vec<u8>]) {
        answers.iter().for_each(|answer| {
            self.session.handle_datagram(now, &mut answer.clone(), |_| ()).unwrap();
        });
    }

    /// The packet in a datagram of its session, whoever of the two sent it.
    fn open(&self, datagram: &[u8]) -> Vec<u8> {
        if !is_sealed(datagram) {
            return datagram.to_vec();
        }
        let keys = self.keys.as_ref().unwrap();
        let is_relays = keys.from_relay.peek(datagram);
        is_relays.or_else(|| keys.from_participant.peek(datagram)).unwrap()
    }

    fn kinds(&self, datagrams: &[Vec<u8>]) -> Vec<Kind> {
        let kind_of = |one: &Vec<u8>| Packet::new_checked(&self.open(one)).unwrap().header().kind;
        datagrams.iter().map(kind_of).collect()
    }

    /// Greets, and hears the cookie; returns its connect, which is on its way.
    fn greets(&mut self, thread: &mut Relay, now: Time) -> Vec<u8> {
        let hello = self.sends(now);
        let cookie = self.bring(thread, now, &hello);
        self.hears(now, &cookie);
        self.sends(now).remove(0)
    }

    /// What it sends reaches the data thread, and the answers reach it, until there is no more.
    fn talks(&mut self, thread: &mut Relay, now: Time) {
        loop {
            let datagrams = self.sends(now);
            if datagrams.is_empty() {
                return;
            }
            let answers = self.bring(thread, now, &datagrams);
            self.hears(now, &answers);
        }
    }
}

/// A relay with one place, and a participant that has it; with the connect that it sent.
fn joined() -> (World, Hand, Vec<u8>) {
    let places = Places::new(1);
    let mut world = World::of(RelayConfig { places, ..config(Mode::Immediate) }, 0);
    let mut hand = Hand::new(1, ip_port(0).into());
    let now = world.now;
    let connect = hand.greets(world.relay_mut(), now);
    let answers = hand.bring(world.relay_mut(), now, std::slice::from_ref(&connect));
    hand.hears(now, &answers);
    assert_eq!(hand.session.state(), State::Connected);
    (world, hand, connect)
}

/// The answer may be lost, so it is kept until a sealed packet shows that it arrived.
#[test]
fn a_repeated_connect_is_answered_alike_until_its_answer_has_arrived() {
    let (mut world, mut hand, connect) = joined();
    let connect = std::slice::from_ref(&connect);
    let mut answers = Vec::new();
    for _ in 0..3 {
        world.now = world.now + SECOND * 3;
        let now = world.now;
        answers.extend(hand.bring(world.relay_mut(), now, connect));
    }
    assert_eq!(hand.kinds(&answers), [Kind::Connected; 3]);
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "nothing is sealed anew");
    assert_eq!(world.dropped(DropReason::Stale), 0);
    // What is not the session's shows nothing.
    let (now, elsewhere) = (world.now, ip_port(9));
    let keepalive = keepalive(&hand, 5);
    let keepalive = [hand.seals(&keepalive)];
    let mut forged = keepalive[0].clone();
    forged[20] ^= 1;
    world.arrive(0, hand.path, &forged);
    world.arrive(0, elsewhere, &keepalive[0]);
    world.collect(0);
    assert_eq!(hand.bring(world.relay_mut(), now, connect), answers[..1]);
    let answer = hand.bring(world.relay_mut(), now, &keepalive);
    assert_eq!(hand.kinds(&answer), [Kind::KeepaliveAck]);
    assert!(hand.bring(world.relay_mut(), now, connect).is_empty());
    assert_eq!(world.relay().counters().sessions_opened, 1);
    assert_eq!(world.dropped(DropReason::Stale), 1);
}

#[test]
fn after_a_leave_the_old_connect_brings_nothing_back() {
    for later in [Duration::ZERO, MILLI, SECOND * 10, SECOND * 11] {
        let (mut world, mut hand, connect) = joined();
        let began = world.now;
        hand.session.leave();
        hand.talks(world.relay_mut(), began);
        assert_eq!(hand.session.state(), State::Closed);
        let now = began + later;
        for _ in 0..2 {
            let answers = hand.bring(world.relay_mut(), now, std::slice::from_ref(&connect));
            assert!(answers.is_empty(), "{later:?}");
        }
        // Later its cookie itself is too old.
        let reason = if later > SECOND * 10 { DropReason::BadCookie } else { DropReason::Stale };
        assert_eq!((world.sessions(), world.dropped(reason)), (0, 2), "{later:?}");
        // The copies took no place, and whoever is at the path may come back.
        let mut again = Hand::new(2, hand.path);
        again.talks(world.relay_mut(), now + MILLI);
        assert_eq!((again.session.state(), world.sessions()), (State::Connected, 1));
    }
}

#[test]
fn after_a_move_neither_the_old_connect_nor_the_old_proof_brings_anything_back() {
    let (mut world, mut hand, connect) = joined();
    let mut proofs = Vec::new();
    for port in [1, 2] {
        world.now = world.now + SECOND / 2;
        let now = world.now;
        hand.path = ip_port(port).into();
        let update = hand.publishes(&[0; 64]);
        let challenge = hand.bring(world.relay_mut(), now, &[update]);
        assert_eq!(hand.kinds(&challenge), [Kind::Challenge]);
        hand.hears(now, &challenge);
        let proof = hand.sends(now);
        let answers = hand.bring(world.relay_mut(), now, &proof);
        assert_eq!(
            (hand.kinds(&proof), hand.kinds(&answers)),
            (vec![Kind::Rebind], vec![Kind::KeepaliveAck])
        );
        proofs.push((hand.path, proof));
    }
    let now = world.now;
    for (path, datagrams) in [(ip_port(0).into(), vec![connect]), proofs.remove(0)] {
        let mut late = Hand { path, ..Hand::new(3, path) };
        assert!(late.bring(world.relay_mut(), now, &datagrams).is_empty());
    }
    assert_eq!((world.sessions(), world.dropped(DropReason::Stale)), (1, 2));
    // It is still where it moved last; the copy of that proof is answered again, but once.
    let answers = hand.bring(world.relay_mut(), now, &proofs[0].1);
    assert_eq!(hand.kinds(&answers), [Kind::KeepaliveAck]);
    assert!(hand.bring(world.relay_mut(), now, &proofs[0].1).is_empty());
    assert_eq!(world.dropped(DropReason::Replayed), 1);
    world.now = now + SECOND * 2;
    let (now, keepalive) = (world.now, hand.sends(now + SECOND * 2));
    let answers = hand.bring(world.relay_mut(), now, &keepalive);
    assert_eq!(hand.kinds(&answers), [Kind::KeepaliveAck]);
}

/// The older connect was on its way for longer. Which of them is older the cookies say.
#[test]
fn of_two_connects_of_one_path_the_newer_wins_in_whatever_order_they_arrive() {
    for (threads, older_asks, newer_asks) in
        [(1, 0, 0), (2, 0, 1), (2, 1, 0), (2, 1, 1), (64, 63, 5)]
    {
        // Whether the older arrives first, and which threads hear of the first before the second.
        for (older_first, hearing) in [
            (true, vec![]),
            (true, vec![older_asks]),
            (true, vec![newer_asks]),
            (true, vec![newer_asks, older_asks]),
            (false, vec![]),
            (false, vec![older_asks]),
            (false, vec![newer_asks]),
            (false, vec![older_asks, newer_asks]),
        ] {
            let mut world = World::with_threads(config(Mode::Immediate), threads);
            let path = ip_port(0).into();
            let mut hands = [(1, older_asks), (2, newer_asks)].map(|(seed, asks)| {
                world.now = world.now + MILLI;
                let mut hand = Hand::new(seed, path);
                let connect = hand.greets(&mut world.threads[asks], world.now);
                (hand, asks, connect)
            });
            world.now = world.now + MILLI;
            let now = world.now;
            let order = if older_first { [0, 1] } else { [1, 0] };
            for number in order {
                let (hand, asks, connect) = &mut hands[number];
                let answers =
                    hand.bring(&mut world.threads[*asks], now, std::slice::from_ref(connect));
                hand.hears(now, &answers);
                for thread in &hearing {
                    world.run(*thread);
                }
            }
            world.settle();
            let case = format!(
                "{threads} threads, {older_asks} and {newer_asks}, {older_first}, {hearing:?}"
            );
            let newer = &hands[1].0.session;
            assert_eq!((newer.state(), world.sessions()), (State::Connected, 1), "{case}");
            assert_eq!(world.threads[newer_asks].sessions(), 1, "{case}");
            // What is left is the newer one's, and answers it.
            let now = world.now + SECOND * 2;
            let keepalive = hands[1].0.sends(now);
            let answers = hands[1].0.bring(&mut world.threads[newer_asks], now, &keepalive);
            assert_eq!(hands[1].0.kinds(&answers), [Kind::KeepaliveAck], "{case}");
        }
    }
}

#[test]
fn after_a_leave_no_thread_opens_a_session_for_a_late_copy() {
    for (older_asks, newer_asks) in [(0, 1), (1, 0), (0, 0)] {
        let mut world = World::with_threads(config(Mode::Immediate), 2);
        let path = ip_port(0).into();
        let mut copies = Vec::new();
        for (seed, asks) in [(1, older_asks), (2, newer_asks)] {
            world.now = world.now + MILLI;
            let now = world.now;
            let mut hand = Hand::new(seed, path);
            let connect = hand.greets(&mut world.threads[asks], now);
            let answers = hand.bring(&mut world.threads[asks], now, std::slice::from_ref(&connect));
            hand.hears(now, &answers);
            world.settle();
            copies.push((hand, asks, connect));
        }
        let now = world.now + MILLI;
        let (hand, asks, _) = &mut copies[1];
        hand.session.leave();
        hand.talks(&mut world.threads[*asks], now);
        assert_eq!((hand.session.state(), world.sessions()), (State::Closed, 0));
        for (hand, asks, connect) in &mut copies {
            let copy = std::slice::from_ref(connect);
            assert!(hand.bring(&mut world.threads[*asks], now, copy).is_empty());
        }
        world.settle();
        assert_eq!((world.sessions(), world.dropped(DropReason::Stale)), (0, 2));
    }
}

/// A session's applicant may be passed on to another thread; so may a copy of its connect.
#[test]
fn a_late_copy_that_is_passed_on_opens_nothing_either() {
    let mut config = config(Mode::Immediate);
    for comtree in &mut config.comtrees {
        comtree.endpoints = 64..=65;
    }
    let mut world = World::with_threads(config, 2);
    world.join(0);
    let mut hand = Hand::new(9, ip_port(50).into());
    let now = world.now;
    let connect = hand.greets(&mut world.threads[0], now);
    let connect = std::slice::from_ref(&connect);
    hand.bring(&mut world.threads[0], now, connect);
    world.threads[1].handle_siblings(now);
    let answers = hand.bring(&mut world.threads[1], now, &[]);
    hand.hears(now, &answers);
    assert_eq!(world.threads[1].sessions(), 1, "thread 0 had no address left");
    assert_eq!(hand.session.id().thread(2), 1, "the number says who serves it");
    hand.session.leave();
    hand.talks(&mut world.threads[1], now);
    assert_eq!(world.sessions(), 1);
    hand.bring(&mut world.threads[0], now, connect);
    world.settle();
    assert_eq!((world.sessions(), world.dropped(DropReason::Stale)), (1, 1));
}

/// The thread of the one that moves knows nothing of the newer session that another thread has.
#[test]
fn a_move_by_an_older_proof_loses_the_path_to_another_threads_session() {
    for hears_of_it_first in [true, false] {
        let mut world = World::with_threads(config(Mode::Immediate), 2);
        let (mut mover, mut holder) =
            (Hand::new(1, ip_port(0).into()), Hand::new(2, ip_port(1).into()));
        let now = world.now;
        mover.talks(&mut world.threads[0], now);
        world.settle();
        mover.path = holder.path;
        let update = mover.publishes(&[0; 64]);
        let challenge = mover.bring(&mut world.threads[0], now, &[update]);
        mover.hears(now, &challenge);
        let proof = mover.sends(now);
        assert_eq!(mover.kinds(&proof), [Kind::Rebind]);
        world.now = now + MILLI;
        let now = world.now;
        holder.talks(&mut world.threads[1], now);
        if hears_of_it_first {
            world.settle();
        }
        mover.bring(&mut world.threads[0], now, &proof);
        world.settle();
        assert_eq!((world.threads[0].sessions(), world.threads[1].sessions()), (0, 1));
        assert_eq!(holder.session.state(), State::Connected);
    }
}

/// A participant whose session has lived for long, with its first keepalive; and its relay's world.
fn long_joined() -> (World, Hand, Vec<u8>) {
    let (mut world, mut hand, _) = joined();
    let mut first = None;
    for _ in 0..20 {
        let now = hand.session.poll_timeout().unwrap();
        let keepalive = hand.sends(now);
        first.get_or_insert(keepalive[0].clone());
        let answers = hand.bring(world.relay_mut(), now, &keepalive);
        hand.hears(now, &answers);
        world.relay_mut().handle_timeout(now);
        world.now = now;
    }
    assert_eq!(world.sessions(), 1);
    (world, hand, first.unwrap())
}

/// Lets time pass until the session has expired, while datagrams come. Returns the answers.
fn expire_although(
    world: &mut World,
    hand: &mut Hand,
    mut datagrams: impl FnMut(&mut Hand) -> Vec<Vec<u8>>,
) -> Vec<Vec<u8>> {
    let (last, mut answers) = (world.now, Vec::new());
    while world.sessions() > 0 {
        world.now = world.now + Duration::from_millis(100);
        let now = world.now;
        assert!(now.since(last) < SECOND * 13, "it is kept alive");
        let datagrams = datagrams(hand);
        answers.extend(hand.bring(world.relay_mut(), now, &datagrams));
        world.relay_mut().handle_timeout(now);
    }
    assert!(world.now.since(last) >= SECOND * 10, "{:?}", world.now.since(last));
    assert_eq!(world.relay().counters().sessions_expired, 1);
    answers
}

fn keepalive(hand: &Hand, path_stamp: u64) -> Vec<u8> {
    let mut out = [0; 100];
    let id = hand.session.id();
    let len = Keepalive { stamp: 1, path_stamp }.encode(COMTREE, id, &mut out).unwrap();
    out[..len].to_vec()
}

/// Whoever else writes the participant's ip:port on a packet has no keys, but may have copies.
#[test]
fn a_session_expires_although_spoofed_keepalives_come() {
    let (mut world, mut hand, copy) = long_joined();
    let path_stamp = path_stamp_in(&hand.open(&copy));
    let mut sent = 0;
    let answers = expire_although(&mut world, &mut hand, |hand| {
        let clear = keepalive(hand, path_stamp);
        let mut altered = hand.seals(&clear);
        altered[30] ^= 1;
        let mut renumbered = copy.clone();
        renumbered[4..8].copy_from_slice(&(1_000_u32 + sent).to_be_bytes());
        sent += 1;
        vec![clear, altered, copy.clone(), renumbered]
    });
    assert!(answers.is_empty(), "{} answers", answers.len());
    let dropped = [DropReason::Forged, DropReason::Replayed].map(|reason| world.dropped(reason));
    assert_eq!(dropped, [3 * u64::from(sent), sent.into()]);
}

/// The relay's answers do not reach it any more.
#[test]
fn a_session_expires_although_keepalives_come_that_bring_back_nothing_new() {
    let (mut world, mut hand, first) = long_joined();
    let once_right = path_stamp_in(&hand.open(&first));
    let mut sent = 0;
    let answers = expire_although(&mut world, &mut hand, |hand| {
        sent += 4;
        let stamps = [0, 1, u64::MAX, once_right];
        stamps.map(|path_stamp| hand.seals(&keepalive(hand, path_stamp))).into()
    });
    assert_eq!(hand.kinds(&answers), vec![Kind::KeepaliveAck; sent]);
}

fn path_stamp_in(packet: &[u8]) -> u64 {
    Keepalive::decode(&Packet::new_checked(packet).unwrap()).unwrap().path_stamp
}

/// They do not show that what the relay sends arrives.
#[test]
fn updates_and_subscribes_alone_do_not_keep_a_session() {
    let (mut world, mut hand, connect) = joined();
    let began = world.now;
    let mut number = 0;
    while world.sessions() > 0 {
        world.now = world.now + Duration::from_millis(100);
        let now = world.now;
        assert!(now.since(began) < SECOND * 13, "it is kept alive");
        let update = hand.publishes(b"x");
        number += 1;
        hand.session.subscribe(Group::new(number), Level(0));
        let mut datagrams = hand.sends(now);
        datagrams.retain(|one| hand.kinds(std::slice::from_ref(one)) != [Kind::Keepalive]);
        datagrams.extend([update, connect.clone()]);
        let answers = hand.bring(world.relay_mut(), now, &datagrams);
        hand.hears(now, &answers);
        world.relay_mut().handle_timeout(now);
    }
    assert!(number > 90, "{number} updates and subscribes were sent");
    assert_eq!(world.relay().counters().sessions_expired, 1);
}

/// Such an answer names the session, and what was sealed in the datagram that it answers.
fn assert_unknown(answers: &[Vec<u8>], datagram: &[u8]) {
    assert_eq!(answers.len(), 1);
    assert!(answers[0].len() <= datagram.len(), "it is no longer than what it answers");
    let packet = Packet::new_checked(&answers[0]).unwrap();
    assert_eq!(packet.header().session, session_of(datagram));
    let echo = u64::from_be_bytes(*datagram[CLEAR_LEN..].first_chunk().unwrap());
    assert_eq!(Unknown::decode(&packet).unwrap(), Unknown { echo });
}

#[test]
fn who_sends_packets_of_a_session_that_the_relay_does_not_know_is_told_so() {
    let (mut world, mut hand, _) = joined();
    let (now, own) = (world.now, hand.path);
    let packet = keepalive(&hand, 5);
    for id in [SessionId::new(77), SessionId::NONE] {
        let mut datagram = hand.seals(&packet);
        datagram[1..4].copy_from_slice(&id.number().to_be_bytes()[1..]);
        let answers = hand.bring(world.relay_mut(), now, &[datagram.clone()]);
        assert_unknown(&answers, &datagram);
        // What is shorter than the answer gets none.
        for len in 0..24 {
            assert!(hand.bring(world.relay_mut(), now, &[datagram[..len].to_vec()]).is_empty());
        }
        let answers = hand.bring(world.relay_mut(), now, &[datagram[..24].to_vec()]);
        assert_unknown(&answers, &datagram[..24]);
    }
    // What is shorter than a header names nobody.
    assert_eq!(world.dropped(DropReason::UnknownSource), 2 * (2 + 24 - HEADER_LEN as u64));
    assert_eq!(world.dropped(DropReason::Malformed), 2 * (HEADER_LEN as u64 - 1));
    // Its number may be another's by now: so may be who is told, but not at the other's path.
    let mut of_another = hand.seals(&packet);
    of_another[20] ^= 1;
    assert!(hand.bring(world.relay_mut(), now, &[of_another.clone()]).is_empty());
    hand.path = ip_port(9).into();
    let answers = hand.bring(world.relay_mut(), now, &[of_another.clone()]);
    assert_unknown(&answers, &of_another);
    hand.path = own;
    let datagram = hand.seals(&packet);
    let answers = hand.bring(world.relay_mut(), now, &[datagram]);
    assert_eq!(hand.kinds(&answers), [Kind::KeepaliveAck], "its own session is known");
    // In cleartext nothing is answered so.
    for kind in Kind::ALL {
        let header = canopy_wire::Header::new(*kind, SessionId::new(77), COMTREE);
        let (mut out, is_hello) = ([0; 100], *kind == Kind::Hello);
        let len = header.encode_packet(&[0; 60], &mut out).unwrap();
        let answers = hand.bring(world.relay_mut(), now, &[out[..len].to_vec()]);
        assert_eq!(answers.is_empty(), !is_hello, "{kind:?}");
    }
}
