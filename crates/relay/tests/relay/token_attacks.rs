//! Attacks of members who have more than one token, or who issue tokens with a delegated key.

use crate::support::tokens::{
    come_with, delegate, guarded_world, identity, issuer, judge, status_of,
};
use crate::support::{COMTREE, World, tokens};
use canopy_relay::{Budget, Change, Notice};
use canopy_session::{Event, Session, SessionConfig, State};
use canopy_token::{Claims, Grant, Role, SigningKey};
use canopy_wire::{
    DropReason, Flags, LeaveReason, NumberedRequest, RefusedReason, Request, RequestStatus,
    Restriction, Verdict, next_sequence,
};
use std::net::SocketAddr;
use std::time::Duration;

const SERVER: u8 = 1;
const MEMBER: u8 = 2;

/// For whoever has this number, by a token of this name.
fn claims(number: u8, id: &str) -> Claims {
    let claims = tokens::claims(number);
    let roles = if number == SERVER { vec![Role::Server] } else { Vec::new() };
    Claims { id: id.to_owned(), grant: Grant { roles, ..claims.grant }, ..claims }
}

fn come(world: &mut World, asks: usize, number: u8, id: &str) -> usize {
    come_with(world, asks, number, issuer().issue(&claims(number, id)).unwrap())
}

fn renew(world: &mut World, participant: usize, number: u8, id: &str) -> RequestStatus {
    let token = issuer().issue(&claims(number, id)).unwrap().into_bytes();
    let request = world.participants[participant].session.set_token(token).unwrap().unwrap();
    status_of(world, participant, request)
}

fn is_connected(world: &World, participant: usize) -> bool {
    world.participants[participant].session.state() == State::Connected
}

/// Whoever has two sessions renews the older by the token of the newer, so that a verdict on the newer
/// hits the older.
#[test]
fn a_token_that_a_newer_session_has_renews_no_older_one() {
    let mut world = guarded_world(1);
    let server = come(&mut world, 0, SERVER, "server");
    let older = come(&mut world, 0, MEMBER, "one");
    let newer = come(&mut world, 0, MEMBER, "two");
    assert_eq!(renew(&mut world, older, MEMBER, "two"), RequestStatus::Token);
    let whom = world.address(newer);
    assert_eq!(judge(&mut world, server, whom, Verdict::ThrowOut), RequestStatus::Done);
    assert!(world.events(newer).contains(&Event::SentAway(LeaveReason::ThrownOut)));
    assert!(is_connected(&world, older), "nobody has said anything of it");
}

/// The other way round the newer session takes the older one's token, as a newer join would.
#[test]
fn a_token_that_an_older_session_has_renews_a_newer_one() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        let older = come(&mut world, 0, MEMBER, "one");
        let newer = come(&mut world, usize::from(threads) - 1, MEMBER, "two");
        assert_eq!(renew(&mut world, newer, MEMBER, "one"), RequestStatus::Done);
        assert!(world.events(older).contains(&Event::SentAway(LeaveReason::Elsewhere)));
        assert!(is_connected(&world, newer) && world.sessions() == 1, "{threads} threads");
    }
}

/// A muted member goes on by another token of its own; and leaves, and comes back with that one.
#[test]
fn renewal_takes_no_restriction_away() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        let server = come(&mut world, 0, SERVER, "server");
        let other = usize::from(threads) - 1;
        let member = come(&mut world, other, MEMBER, "one");
        world.subscribe(server, 3, 0);
        let whom = world.address(member);
        let mute = Verdict::Restrict(Restriction::MUTE);
        assert_eq!(judge(&mut world, server, whom, mute), RequestStatus::Done);
        assert_eq!(renew(&mut world, member, MEMBER, "two"), RequestStatus::Done);
        world.publish(member, 3, 0, Flags(0), b"muted");
        world.settle();
        let again = come(&mut world, 0, MEMBER, "two");
        world.publish(again, 3, 0, Flags(0), b"muted");
        world.settle();
        assert!(world.payloads(server).is_empty());
        assert_eq!(world.dropped(DropReason::Restricted), 2);
        // What was said of it can be taken back.
        let whom = world.address(again);
        let restore = Verdict::Restore(Restriction::MUTE);
        assert_eq!(judge(&mut world, server, whom, restore), RequestStatus::Done);
        world.publish(again, 3, 0, Flags(0), b"heard");
        world.settle();
        assert_eq!(world.payloads(server), [b"heard"]);
    }
}

/// A member repeats its connect until there is no room to tell the other data thread of a verdict.
#[test]
fn a_flood_between_data_threads_loses_no_verdict() {
    let mut world = guarded_world(2);
    let server = come(&mut world, 0, SERVER, "server");
    let member = come(&mut world, 0, MEMBER, "one");
    // Somebody whose connect is answered again and again, and each time the other thread is told.
    let token = issuer().issue(&claims(3, "three")).unwrap().into_bytes();
    let identity = Some(identity(3));
    let repeater = SessionConfig { identity, token, ..SessionConfig::new(COMTREE, [3; 16]) };
    let (mut repeater, mut out) = (Session::new(repeater), [0; 1500]);
    let path = SocketAddr::from(([127, 0, 0, 1], 60_000));
    let len = repeater.poll_transmit(world.now, &mut out).unwrap();
    world.arrive(0, path, &out[..len]);
    let mut cookie = world.collect(0).remove(0).bytes;
    repeater.handle_datagram(world.now, &mut cookie, |_| ()).unwrap();
    let len = repeater.poll_transmit(world.now, &mut out).unwrap();
    for _ in 0..7000 {
        world.arrive(0, path, &out[..len]);
        world.collect(0);
    }
    assert!(world.dropped(DropReason::SiblingsFull) > 0, "there is no room");
    let whom = world.address(member);
    let request = world.participants[server].session.judge(whom, Verdict::ThrowOut).unwrap();
    world.send_from(server);
    assert_eq!(status_of(&mut world, server, request), RequestStatus::Done);
    world.pass(Duration::from_millis(200));
    for thread in [0, 1] {
        let again = come(&mut world, thread, MEMBER, "one");
        assert!(world.events(again).contains(&Event::Refused(RefusedReason::Token)));
    }
}

/// Who may issue tokens gives one of them the name of somebody else's.
#[test]
fn a_delegated_keys_token_of_the_same_name_ends_and_blames_nobody_else() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        let server = come(&mut world, 0, SERVER, "server");
        let victim = come(&mut world, 0, MEMBER, "one");
        let token = delegate().issue(&claims(3, "one")).unwrap();
        let attacker = come_with(&mut world, usize::from(threads) - 1, 3, token);
        assert!(is_connected(&world, attacker) && is_connected(&world, victim));
        let whom = world.address(attacker);
        assert_eq!(judge(&mut world, server, whom, Verdict::ThrowOut), RequestStatus::Done);
        assert!(is_connected(&world, victim));
        let again = come(&mut world, 0, MEMBER, "one");
        assert!(is_connected(&world, again));
    }
}

/// Whoever runs the relay has given a member a budget; the member renews its token.
#[test]
fn renewal_brings_no_other_budget_than_the_relay_was_told() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, MEMBER, "one");
    let (comtree, address, now) = (COMTREE, world.address(member), world.now);
    let budget = Budget { up_bits: 100_000, ..Budget::default() };
    world.relay_mut().apply(now, Change::SetBudget { comtree, address, budget }).unwrap();
    assert_eq!(renew(&mut world, member, MEMBER, "two"), RequestStatus::Done);
    // A newcomer has little at first.
    world.now = world.now + Duration::from_secs(2);
    (0..30).for_each(|_| world.publish(member, 3, 0, Flags(0), &[1; 1000]));
    assert_eq!(world.dropped(DropReason::OverBudget), 17);
}

#[test]
fn a_flood_of_renewals_has_few_signatures_checked() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, MEMBER, "one");
    let (id, mut out, mut sequence) = (world.participants[member].session.id(), [0; 1500], 0);
    let token = delegate().issue(&claims(3, "anothers")).unwrap();
    for _ in 0..1000 {
        let next = next_sequence(sequence);
        let request = Request::Renew(token.as_bytes());
        let request = NumberedRequest { sequence: next, request };
        let len = request.encode(COMTREE, id, &mut out).unwrap();
        let checked = world.dropped(DropReason::BadToken);
        world.send(member, &out[..len]);
        let is_taken = world.dropped(DropReason::BadToken) > checked;
        sequence = if is_taken { next } else { sequence };
        world.settle();
        world.now = world.now + Duration::from_millis(1);
    }
    let checked = world.dropped(DropReason::BadToken);
    assert!((5..=10).contains(&checked), "{checked}");
}

/// What a token says is read before its signature is checked, and the reason goes to the log.
#[test]
fn a_forged_token_writes_no_lines_of_its_own_into_the_log() {
    let mut world = guarded_world(1);
    let token = issuer().issue(&claims(MEMBER, "one")).unwrap();
    let front = token.rsplit_once('.').unwrap().0;
    // {"kid":"k\n2026-11-22 INFO all is well\u001b[2J"}
    let footer = "eyJraWQiOiJrXG4yMDI2LTExLTIyIElORk8gYWxsIGlzIHdlbGxcdTAwMWJbMkoifQ";
    let forged = come_with(&mut world, 0, MEMBER, format!("{front}.{footer}"));
    assert!(world.events(forged).contains(&Event::Refused(RefusedReason::Token)));
    let Some(Notice::TokenRefused { why, .. }) = world.relay_mut().poll_notice() else {
        panic!("it is in the log");
    };
    let line = why.to_string();
    assert!(line.contains("INFO all is well"), "{line:?}");
    assert!(!line.contains(char::is_control), "{line:?}");
}

/// What a server says is said of a token. SECURITY.md says that it is no more than that.
#[test]
fn a_verdict_is_on_a_token_and_whoever_has_another_comes_back() {
    let mut world = guarded_world(2);
    let server = come(&mut world, 0, SERVER, "server");
    let member = come(&mut world, 1, MEMBER, "thrown out");
    let whom = world.address(member);
    assert_eq!(judge(&mut world, server, whom, Verdict::ThrowOut), RequestStatus::Done);
    world.settle();
    assert_eq!(world.sessions(), 1);
    // Neither another ip:port nor another data thread is a way back, but another token is, be it for
    // the same key.
    for (thread, id, sessions) in [(0, "thrown out", 1), (1, "thrown out", 1), (0, "another", 2)] {
        come(&mut world, thread, MEMBER, id);
        assert_eq!(world.sessions(), sessions, "thread {thread}, {id}");
    }
}

/// A connect with a right cookie and a token that is right in all but its signature.
fn connect_with_bad_token(world: &mut World, from: SocketAddr, seed: u8) -> Vec<u8> {
    let right = issuer().issue(&claims(MEMBER, "forged")).unwrap();
    let forger = SigningKey::from_seed([66; 32]).issue(&claims(MEMBER, "forged")).unwrap();
    let ((signed, _), (_, footer)) =
        (forger.rsplit_once('.').unwrap(), right.rsplit_once('.').unwrap());
    let config = tokens::session(MEMBER, format!("{signed}.{footer}"));
    world.connect_of(from, SessionConfig { seed: [seed; 16], ..config })
}

/// 50,000 connects a second with false tokens from 256 ips of 16 networks: each that is looked at costs a
/// key agreement and the check of a signature.
#[test]
fn a_flood_of_bad_tokens_leaves_others_their_joins() {
    let mut world = guarded_world(1);
    let mut connects = Vec::new();
    for number in 0..256u16 {
        world.now = world.now + Duration::from_millis(1);
        let (network, host) = ((number % 16) as u8, (number / 16) as u8);
        let from = SocketAddr::from(([203, 0, network, host], 666));
        connects.push((from, connect_with_bad_token(&mut world, from, host)));
    }
    let (mut joined, mut flood) = (0, connects.iter().cycle());
    for step in 0..1000u32 {
        world.now = world.now + Duration::from_millis(1);
        for (from, connect) in flood.by_ref().take(50) {
            world.arrive(0, *from, connect);
        }
        world.collect(0);
        if step % 100 == 99 {
            let number = 100 + (step / 100) as u8;
            let token = issuer().issue(&claims(number, "right")).unwrap();
            let newcomer = world.add_session(0, tokens::session(number, token));
            let path = SocketAddr::from(([198, 51, number, 7], 10_000 + newcomer as u16));
            world.participants[newcomer].path = path.into();
            world.settle();
            let session = &world.participants[newcomer].session;
            joined += u32::from(session.state() == State::Connected);
        }
    }
    assert_eq!(joined, 10, "all who come from elsewhere are let in, at their first try");
    let looked_at = world.dropped(DropReason::BadToken);
    // A quarter of what each network may at once, and 1,000 and as many a second.
    assert!((2_000..=16 * 128 + 2_100).contains(&looked_at), "{looked_at}");
    assert_eq!(world.dropped(DropReason::TooManyHandshakes), 50_000 - looked_at);
}
