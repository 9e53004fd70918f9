//! Links between relays: how they come up, stay up and come back, and what somebody who is not the
//! neighbour can do to them.

use crate::support::{
    COMTREE, OTHER_COMTREE, Sent, World, at_site, config, is_sealed, keyring, path_of_thread,
    session_of,
};
use canopy_relay::{
    BranchConfig, BranchId, BranchRole, Change, Gate, GateLimits, LinkConfig, Mode, Notice, Relay,
    RelayConfig, Siblings,
};
use canopy_session::{Call, Identity, PublicKey, Session, SessionConfig, State};
use canopy_wire::{
    DropReason, Flags, Header, Keepalive, Kind, Leave, LeaveReason, LinkList, LinkState,
    LinkStateAck, LinkStateId, Path, RefusedReason, SessionId, Time, WaySearch, WayWord,
};
use std::net::SocketAddr;
use std::time::Duration;

const GROUP: u32 = 7;
const STEP: Duration = Duration::from_millis(50);

/// Two relays that are told of each other, and of a branch of a comtree. The first calls; nothing of
/// that has been carried yet. A participant on each wants the group. The first relay is the core.
fn two() -> World {
    let mut world = World::empty();
    for site in [1, 2] {
        world.add_relay(at_site(Mode::Immediate, site), 1);
    }
    for relay in [0, 1] {
        let number = world.join(relay);
        world.subscribe(number, GROUP, 9);
    }
    for relay in [1, 0] {
        tell_of_other(&mut world, relay);
    }
    world
}

fn tell_of_other(world: &mut World, relay: usize) {
    let (other, now) = (1 - relay, world.now);
    let key = world.key_of(other);
    let path = path_of_thread(other);
    let link = LinkConfig { key, path, thread: 0, calls: relay == 0 };
    let id = BranchId { comtree: COMTREE, link: key, thread: 0 };
    let branch = BranchConfig {
        id,
        role: [BranchRole::Parent, BranchRole::Child][other],
        site: other as u16 + 1,
    };
    for change in [Change::AddLink(link), Change::AddBranch(branch)] {
        world.threads[relay].apply(now, change).unwrap();
    }
}

fn is_up(world: &World) -> [bool; 2] {
    [0, 1].map(|relay| world.threads[relay].is_linked(&world.key_of(1 - relay)))
}

/// Somebody at the neighbour's ip, such as another host of its network, has all the sessions there, or
/// all the handshakes.
#[test]
fn whoever_shares_the_neighbours_ip_keeps_no_link_down() {
    let sessions = GateLimits { sessions_per_ip: 3, ..GateLimits::NONE };
    let handshakes = GateLimits { handshakes_per_ip: 3, ..GateLimits::NONE };
    for (limits, let_in, reason) in
        [(sessions, 3, DropReason::TooManySessions), (handshakes, 6, DropReason::TooManyHandshakes)]
    {
        let gate = Gate::new(limits, &[3; 16]);
        let mut world = World::empty();
        world.add_relay(at_site(Mode::Immediate, 1), 1);
        world.add_relay(RelayConfig { gate, ..at_site(Mode::Immediate, 2) }, 1);
        for port in 0..7 {
            let number = world.add_participant(1, COMTREE);
            let Path { remote, .. } = path_of_thread(0);
            world.participants[number].path = SocketAddr::from((remote.ip(), 5000 + port)).into();
        }
        world.settle();
        assert_eq!((world.sessions(), world.dropped(reason)), (let_in, 7 - let_in as u64));
        for relay in [1, 0] {
            tell_of_other(&mut world, relay);
        }
        world.settle();
        assert_eq!(is_up(&world), [true; 2]);
    }
}

/// What the first relay's participant publishes, and how much of it reached the second's.
fn publish(world: &mut World) -> usize {
    let before = world.participants[1].received.len();
    world.publish(0, GROUP, 0, Flags(0), b"over the link");
    world.settle();
    world.participants[1].received.len() - before
}

/// Lets time pass, with all that is due.
fn pass(world: &mut World, time: Duration) {
    let until = world.now + time;
    while world.now < until {
        world.now = world.now + STEP;
        let now = world.now;
        for thread in &mut world.threads {
            thread.handle_timeout(now);
        }
        world.settle();
    }
}

/// The first datagram of a kind among what was captured.
fn captured(world: &World, kind: Kind) -> Vec<u8> {
    let all = world.captured.as_ref().unwrap().iter();
    all.rev().find(|one| !is_sealed(one) && one[8] == kind as u8).unwrap().clone()
}

#[test]
fn a_link_is_up_when_both_sides_have_proved_their_keys_and_stays_up() {
    let mut world = two();
    assert_eq!(is_up(&world), [false, false]);
    world.settle();
    assert_eq!(is_up(&world), [true, true]);
    assert_eq!(publish(&mut world), 1);
    // Twice as long as a session lives without a sign of life.
    for participant in 0..2 {
        world.participants[participant].session.leave();
    }
    pass(&mut world, Duration::from_secs(20));
    assert_eq!(is_up(&world), [true, true]);
    let before = world.sum(|counters| counters.datagrams_in);
    pass(&mut world, Duration::from_secs(1));
    let hellos = world.sum(|counters| counters.datagrams_in) - before;
    assert!((26..=44).contains(&hellos), "{hellos}, of both sides");
    assert_eq!(world.sessions(), 0, "a link is no participant");
}

#[test]
fn what_goes_over_a_link_cannot_be_read() {
    let mut world = two();
    world.settle();
    world.captured = Some(Vec::new());
    assert_eq!(publish(&mut world), 1);
    let captured = world.captured.take().unwrap();
    assert_eq!(captured.len(), 3, "to the relay, over the link, and from it");
    for datagram in captured {
        assert!(is_sealed(&datagram));
        assert!(!datagram.windows(9).any(|bytes| bytes == b"over the "), "a payload is readable");
    }
}

/// Calls a relay as a neighbour would, with a key that nobody has told it of. Returns how it was
/// refused.
fn call_by_stranger(world: &mut World, thread: usize, key: PublicKey, number: u16) -> Vec<Sent> {
    let call = Call { session: SessionId::new(5), threads: 1, thread: number };
    let mut session = Session::new(SessionConfig {
        relay_key: Some(key),
        identity: Some(Identity::new([77; 32])),
        call: Some(call),
        ..SessionConfig::new(COMTREE, [5; 16])
    });
    let from = SocketAddr::from(([10, 66, 6, 6], 4748));
    let (now, mut out) = (world.now, [0; 1500]);
    let mut answers = Vec::new();
    while let Some(len) = session.poll_transmit(now, &mut out) {
        world.arrive(thread, from, &out[..len]);
        answers = world.collect(thread);
        for datagram in answers.iter().flat_map(Sent::datagrams) {
            session.handle_datagram(now, &mut datagram.to_vec(), |_| ()).unwrap();
        }
    }
    assert_ne!(session.state(), State::Connected);
    answers
}

#[test]
fn a_stranger_that_calls_never_becomes_a_link() {
    let mut world = two();
    world.settle();
    let key = world.key_of(1);
    let answers = call_by_stranger(&mut world, 1, key, 0);
    let datagram = answers[0].datagrams().next().unwrap();
    assert_eq!(
        (datagram[8], datagram[24]),
        (Kind::Refused as u8, RefusedReason::Credentials.number())
    );
    assert_eq!(world.dropped(DropReason::BadCredentials), 1);
    assert_eq!((is_up(&world), world.threads[1].sessions()), ([true, true], 1));
}

/// Opening a call's message is what costs most in it.
#[test]
fn a_strangers_call_is_opened_by_two_data_threads_at_most() {
    let mut world = World::with_threads(config(Mode::Immediate), 4);
    let key = world.key_of(0);
    assert!(call_by_stranger(&mut world, 0, key, 2).is_empty(), "another thread answers");
    assert_eq!(world.sum(|counters| counters.connects_passed), 1);
    world.settle();
    assert_eq!(world.sum(|counters| counters.connects_passed), 1);
    let by_third = world.threads[2].counters().dropped(DropReason::BadCredentials);
    assert_eq!((by_third, world.dropped(DropReason::BadCredentials)), (1, 1));
}

/// Somebody else answers at the neighbour's ip:port: what is said to the neighbour only that can read.
#[test]
fn whoever_stands_in_the_neighbours_place_never_becomes_a_link() {
    let mut world = two();
    let config = at_site(Mode::Immediate, 2);
    world.threads[1] = Relay::new(config, Siblings::alone(), keyring(7), &[2; 16]);
    let link =
        LinkConfig { key: world.key_of(0), path: path_of_thread(0), thread: 0, calls: false };
    let now = world.now;
    world.threads[1].apply(now, Change::AddLink(link)).unwrap();
    pass(&mut world, Duration::from_secs(10));
    assert_eq!(is_up(&world), [false, false]);
    let calls = world.dropped(DropReason::Forged);
    assert!((10..=25).contains(&calls), "{calls}: each call, with a pause in between");
}

#[test]
fn late_copies_of_a_handshake_change_nothing() {
    let mut world = two();
    world.captured = Some(Vec::new());
    // All but the first sealed packet, which shows that the answer arrived.
    for _ in 0..2 {
        for relay in [0, 1] {
            let sent = world.collect(relay);
            world.carry(relay, sent);
        }
    }
    assert_eq!(is_up(&world), [true, true]);
    let (connect, connected) = (captured(&world, Kind::Connect), captured(&world, Kind::Connected));
    world.arrive(1, path_of_thread(0), &connect);
    let again = world.collect(1);
    assert_eq!(again[0].bytes, connected, "the same call gets the same answer");
    world.arrive(0, path_of_thread(1), &connected);
    assert_eq!(world.dropped(DropReason::UnexpectedKind), 1);
    world.settle();
    world.arrive(1, path_of_thread(0), &connect);
    assert_eq!(world.dropped(DropReason::Stale), 1, "now its answer has arrived");
    // From elsewhere the cookie is none.
    world.arrive(1, SocketAddr::from(([10, 66, 6, 6], 4748)), &connect);
    assert_eq!(world.dropped(DropReason::BadCookie), 1);
    assert_eq!(publish(&mut world), 1);
}

#[test]
fn altered_and_repeated_packets_of_a_link_are_dropped() {
    let mut world = two();
    world.settle();
    world.publish(0, GROUP, 0, Flags(0), b"once");
    let sent = world.collect(0);
    let to_neighbour: Vec<u8> = sent[0].datagrams().next().unwrap().to_vec();
    for at in [7, 8, 20, to_neighbour.len() - 1] {
        let mut altered = to_neighbour.clone();
        altered[at] ^= 0x40;
        world.arrive(1, path_of_thread(0), &altered);
    }
    let forged = world.dropped(DropReason::Forged);
    assert_eq!(forged, 4);
    world.carry(0, sent);
    world.settle();
    world.arrive(1, path_of_thread(0), &to_neighbour);
    assert_eq!(world.dropped(DropReason::Replayed), 1);
    // Sent back where it came from it is of no session there, or of another.
    world.arrive(0, path_of_thread(1), &to_neighbour);
    let reflected = world.dropped(DropReason::Forged) + world.dropped(DropReason::UnknownSource);
    assert_eq!(reflected, forged + 1);
    world.settle();
    assert_eq!(world.payloads(1), [b"once"]);
}

#[test]
fn a_link_comes_back_after_either_side_starts_anew() {
    for relay in [0, 1] {
        let mut world = two();
        world.settle();
        pass(&mut world, Duration::from_secs(3));
        let config = at_site(Mode::Immediate, relay as u16 + 1);
        world.threads[relay] = Relay::new(config, Siblings::alone(), keyring(relay), &[3; 16]);
        tell_of_other(&mut world, relay);
        // Who calls does so at once; who is called is called when it has been silent for long enough.
        pass(&mut world, Duration::from_millis(if relay == 0 { 50 } else { 2_000 }));
        assert_eq!(is_up(&world), [true, true], "relay {relay} anew");
        // Its participant finds out by itself, at the latest by its keepalives.
        pass(&mut world, Duration::from_secs(9));
        for number in [0, 1] {
            world.subscribe(number, GROUP, 9);
            assert_eq!(world.participants[number].session.state(), State::Connected);
        }
        assert_eq!(publish(&mut world), 1, "relay {relay} anew");
    }
}

#[test]
fn what_is_for_a_link_that_is_down_is_counted() {
    let mut world = two();
    world.settle();
    // From now on nothing reaches the neighbour: it is called in vain.
    for _ in 0..50 {
        world.now = world.now + STEP;
        let now = world.now;
        world.threads[0].handle_timeout(now);
        world.collect(0);
    }
    assert_eq!(is_up(&world), [false, true]);
    assert_eq!(publish(&mut world), 0);
    assert_eq!(world.dropped(DropReason::Unreachable), 1);
    let key = world.key_of(1);
    assert!(!world.threads[0].send_over_link(&key, &[0; 16]));
    pass(&mut world, Duration::from_secs(4));
    assert_eq!(is_up(&world), [true, true]);
    assert_eq!(publish(&mut world), 1, "what was subscribed has not expired");
}

/// A link has no membership: a neighbour cannot leave, move or ask as a participant, nor is it asked.
#[test]
fn a_neighbour_is_no_participant() {
    let mut world = two();
    world.settle();
    let key = world.key_of(1);
    let none = SessionId::NONE;
    let mut say = |comtree, reason: DropReason, write: &dyn Fn(&mut [u8]) -> usize| {
        let (mut out, before) = ([0; 200], world.threads[1].counters().dropped(reason));
        let len = write(&mut out);
        assert!(world.threads[0].send_over_link(&key, &out[..len]));
        let sent = world.collect(0);
        world.carry(0, sent);
        let after = world.threads[1].counters().dropped(reason);
        assert_eq!(after, before + 1, "{comtree:?}, {}", reason.name());
        assert!(world.collect(1).is_empty());
    };
    let leave = Leave { reason: LeaveReason::Done };
    let ack = Keepalive { stamp: 1, path_stamp: 1 };
    say(COMTREE, DropReason::UnexpectedKind, &|out| leave.encode(COMTREE, none, out).unwrap());
    say(COMTREE, DropReason::UnexpectedKind, &|out| ack.encode_ack(COMTREE, none, out).unwrap());
    let rebind = Header::new(Kind::Rebind, none, COMTREE);
    say(COMTREE, DropReason::UnexpectedKind, &|out| rebind.encode_packet(&[0; 16], out).unwrap());
    let elsewhere = Header::new(Kind::Updates, none, OTHER_COMTREE);
    say(OTHER_COMTREE, DropReason::UnknownSource, &|out| {
        elsewhere.encode_packet(&[], out).unwrap()
    });
    assert_eq!(is_up(&world), [true, true]);
}

/// What relays say of ways to a root is for whoever runs them, over a link that is up, of a comtree that both carry.
#[test]
fn a_search_for_a_way_is_handed_over_as_it_was_said() {
    let mut world = two();
    world.settle();
    let [key, from] = [1, 0].map(|relay| world.key_of(relay));
    let search = WaySearch { seeker: 7, number: 3, word: WayWord::Answer(9), hops: 60 };
    let mut say = |comtree| {
        while world.threads[1].poll_notice().is_some() {}
        let change = Change::Search { key, thread: 0, comtree, search };
        let now = world.now;
        world.threads[0].apply(now, change).unwrap();
        let sent = world.collect(0);
        world.carry(0, sent);
        let told = world.threads[1].poll_notice();
        (told, world.threads[1].counters().dropped(DropReason::UnknownComtree))
    };
    let told = Notice::Search { key: from, comtree: COMTREE, search };
    assert_eq!(say(COMTREE), (Some(told), 0));
    assert_eq!(say(canopy_wire::Comtree(77)), (None, 1));
}

/// What relays say of their links is for whoever runs them, if it can be read; a part of the places for notices is left to
/// others.
#[test]
fn what_relays_say_of_links_is_handed_over_as_it_was_said() {
    let mut world = two();
    world.settle();
    let [key, from] = [1, 0].map(|relay| world.key_of(relay));
    let mut say = |packets: Vec<Vec<u8>>| {
        while world.threads[1].poll_notice().is_some() {}
        let packets = packets.into_iter().map(|packet| (key, packet.into()));
        let change = Change::SendLinkStates { thread: 0, packets: packets.collect() };
        let now = world.now;
        world.threads[0].apply(now, change).unwrap();
        let sent = world.collect(0);
        world.carry(0, sent);
        // The header has the session and the number by now.
        let told = std::iter::from_fn(|| match world.threads[1].poll_notice()? {
            Notice::LinkState { key, packet } => Some((key, packet[8..].to_vec())),
            other => panic!("{other:?}"),
        });
        let told: Vec<_> = told.collect();
        (told, world.threads[1].counters().dropped(DropReason::Malformed))
    };
    let id = LinkStateId { relay: [5; 32], part: 0, life: 1, number: 2 };
    let links = LinkList::Summary(&[0, 0, 0, 7]);
    let state = LinkState { id, age: 1, distance: 2, free_kbit: 3, name: "eu-1", links };
    let mut packet = [0; 200];
    let len = state.encode(&mut packet).unwrap();
    let state = packet[..len].to_vec();
    let len = LinkStateAck::encode(&[(id, 1)], &mut packet).unwrap();
    let ack = packet[..len].to_vec();
    let told = [&state, &ack].map(|of| (from, of[8..].to_vec()));
    assert_eq!(say(vec![state.clone(), ack]), (told.to_vec(), 0));
    assert_eq!(say(vec![state[..60].to_vec()]), (Vec::new(), 1));
    assert_eq!(say(vec![state; 200]).0.len(), 64);
}

/// Relays of one ip:port each, whose kernels steer by the number in a datagram's header.
struct Steered {
    relays: [Vec<Relay>; 2],
    now: Time,
}

impl Steered {
    fn ip_port(relay: usize) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, relay as u8], 4040))
    }

    /// Carries all that there is to carry.
    fn settle(&mut self) {
        let now = self.now;
        for _ in 0..100 {
            let mut moved = Vec::new();
            for (relay, threads) in self.relays.iter_mut().enumerate() {
                for thread in threads {
                    thread.handle_siblings(now);
                    thread.transmit(now, |batch| {
                        for transmit in batch.transmits() {
                            let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                            moved.push((relay, transmit.to.remote, bytes));
                        }
                    });
                }
            }
            for (from, to, mut datagram) in moved {
                let relay = usize::from(to == Steered::ip_port(1));
                let threads = self.relays[relay].len();
                let thread = usize::from(session_of(&datagram).thread(threads as u16));
                let path: Path = Steered::ip_port(from).into();
                self.relays[relay][thread].handle_datagram(now, path, &mut datagram);
            }
        }
    }
}

#[test]
fn calls_and_answers_reach_the_data_threads_that_have_the_link() {
    for counts in [[1, 1], [2, 3], [3, 2], [4, 1], [5, 64]] {
        let mut relays = [0, 1].map(|relay| {
            let meshed = Siblings::mesh(counts[relay]).into_iter();
            let config = || config(Mode::Immediate);
            let all = meshed.map(|own| Relay::new(config(), own, keyring(relay), &[4; 16]));
            all.collect::<Vec<_>>()
        });
        let now = Time::from_millis(1);
        let links = *counts.iter().min().unwrap();
        let key = |relay: usize| *keyring(relay).identity().public();
        for relay in [1, 0] {
            for thread in 0..links {
                let path = Steered::ip_port(1 - relay).into();
                let link = LinkConfig { key: key(1 - relay), path, thread, calls: relay == 0 };
                let change = Change::AddLink(link);
                assert_eq!(change.thread(counts[relay]), Some(thread));
                relays[relay][usize::from(thread)].apply(now, change).unwrap();
            }
        }
        let mut steered = Steered { relays, now };
        steered.settle();
        for relay in [0, 1] {
            for thread in 0..links {
                let thread = &steered.relays[relay][usize::from(thread)];
                assert!(thread.is_linked(&key(1 - relay)), "{counts:?}, relay {relay}");
                let counters = thread.counters();
                let dropped: u64 = counters.drops.iter().sum();
                assert_eq!(dropped, 0, "{counts:?}, relay {relay}: {:?}", counters.drops);
            }
        }
    }
}
