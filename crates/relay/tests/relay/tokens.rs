//! Tokens at a relay: who is let in, what each may do, and how that ends. The attacks are named
//! after what an attacker tries.

use crate::support::tokens::{
    DAY, claims, come, delegate, groups, guarded_world, issuer, judge, server_claims, session,
    status_of, trust,
};
use crate::support::{COMTREE, OTHER_COMTREE, World};
use canopy_relay::{Change, Mode, Notice, TokenRefusal, Trust, UnixTime};
use canopy_session::{Event, SessionConfig, State};
use canopy_token::{Claims, Grant, KeySet, Revocations, SigningKey, TokenError, Unicast};
use canopy_wire::{
    Acts, Address, DropReason, Flags, Group, LeaveReason, Level, RefusedReason, RequestStatus,
    Restriction, SubscribeRefusal, Verdict,
};
use std::sync::Arc;
use std::time::Duration;

fn notices(world: &mut World, thread: usize) -> Vec<Notice> {
    std::iter::from_fn(|| world.threads[thread].poll_notice()).collect()
}

/// Somebody comes with a token that is not taken. Returns why, as the relay's log says it.
fn turned_away(config: SessionConfig) -> TokenRefusal {
    let mut world = guarded_world(1);
    let participant = world.add_session(0, config);
    world.settle();
    let events = world.events(participant);
    assert!(events.contains(&Event::Refused(RefusedReason::Token)), "{events:?}");
    assert_eq!((world.sessions(), world.dropped(DropReason::BadToken)), (0, 1));
    match notices(&mut world, 0).pop() {
        Some(Notice::TokenRefused { comtree: COMTREE, why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_has_a_token_is_let_in_and_nobody_without_one() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, 1, &claims(1));
    assert_eq!(world.participants[member].session.state(), State::Connected);
    assert_eq!(turned_away(session(2, String::new())), TokenRefusal::Missing);
}

#[test]
fn forged_tokens_are_refused() {
    let token = issuer().issue(&claims(1)).unwrap();
    let forger = SigningKey::from_seed([66; 32]).issue(&claims(1)).unwrap();
    let footer = token.rsplit_once('.').unwrap().1;
    let forged = format!("{}.{footer}", forger.rsplit_once('.').unwrap().0);
    let why = turned_away(session(1, forged));
    assert_eq!(why, TokenRefusal::Invalid(TokenError::BadSignature));
    let why = turned_away(session(1, forger));
    assert!(matches!(why, TokenRefusal::Invalid(TokenError::UnknownKey(_))), "{why:?}");
    let why = turned_away(session(1, "v4.public.nothing".to_owned()));
    assert_eq!(why, TokenRefusal::Invalid(TokenError::NotAToken));
    let not_text = SessionConfig { token: vec![0xff; 80], ..session(1, String::new()) };
    assert_eq!(turned_away(not_text), TokenRefusal::Invalid(TokenError::NotAToken));
}

#[test]
fn expired_and_not_yet_valid_tokens_are_refused() {
    let expired = Claims { expires: UnixTime(DAY.0 - 3600), ..claims(1) };
    let why = turned_away(session(1, issuer().issue(&expired).unwrap()));
    assert_eq!(why, TokenRefusal::Invalid(TokenError::Expired(expired.expires)));
    let early = Claims { not_before: Some(DAY.after(60)), ..claims(1) };
    let why = turned_away(session(1, issuer().issue(&early).unwrap()));
    assert_eq!(why, TokenRefusal::Invalid(TokenError::NotYetValid(DAY.after(60))));
}

#[test]
fn a_token_for_another_world_or_comtree_is_refused() {
    let mut other = claims(1);
    other.grant.world = "elsewhere".to_owned();
    let why = turned_away(session(1, issuer().issue(&other).unwrap()));
    assert_eq!(why, TokenRefusal::OtherWorld("elsewhere".to_owned()));
    let mut other = claims(1);
    other.grant.comtrees[0].comtree = OTHER_COMTREE;
    let why = turned_away(session(1, issuer().issue(&other).unwrap()));
    assert_eq!(why, TokenRefusal::OtherComtree(COMTREE));
}

/// The thief has seen the token, but not the secret of the key that it names.
#[test]
fn a_stolen_token_is_refused() {
    let token = issuer().issue(&claims(1)).unwrap();
    assert_eq!(turned_away(session(2, token)), TokenRefusal::OtherKey);
}

#[test]
fn a_delegated_key_beyond_its_ceiling_is_refused() {
    let mut more = claims(1);
    more.grant.comtrees[0].publish = groups("0-10", 1);
    let why = turned_away(session(1, delegate().issue(&more).unwrap()));
    let TokenRefusal::Invalid(TokenError::BeyondCeiling(what)) = why else { panic!("{why:?}") };
    assert!(what.contains("publishing"), "{what}");
    let server = delegate().issue(&server_claims(1)).unwrap();
    let why = turned_away(session(1, server));
    assert!(matches!(why, TokenRefusal::Invalid(TokenError::BeyondCeiling(_))), "{why:?}");
    let mut world = guarded_world(1);
    let within = session(1, delegate().issue(&claims(1)).unwrap());
    let member = world.add_session(0, within);
    world.settle();
    assert_eq!(world.participants[member].session.state(), State::Connected);
}

/// The newer session has it, whichever data thread serves it; the older does not come back.
#[test]
fn one_token_from_two_places_is_the_newer_ones() {
    for threads in [1, 3] {
        let mut world = guarded_world(threads);
        let first = come(&mut world, 0, 1, &claims(1));
        let second = come(&mut world, usize::from(threads) - 1, 1, &claims(1));
        assert_eq!(world.sessions(), 1, "{threads} threads");
        assert_eq!(world.participants[second].session.state(), State::Connected);
        let events = world.events(first);
        assert!(events.contains(&Event::SentAway(LeaveReason::Elsewhere)), "{events:?}");
        world.now = world.now + Duration::from_secs(30);
        assert_eq!(world.participants[first].session.state(), State::Closed);
    }
}

/// Two connects with one nonce and cookies of one moment, on two data threads.
#[test]
fn one_token_twice_at_the_same_moment_ends_and_settles() {
    let mut world = guarded_world(2);
    let token = issuer().issue(&claims(1)).unwrap();
    let twins = [0, 1].map(|asks| world.add_session(asks, session(1, token.clone())));
    world.settle();
    assert!(world.sessions() < 2);
    for twin in twins {
        assert!(world.participants[twin].session.state() != State::Connected);
    }
}

#[test]
fn a_member_publishes_what_its_token_grants_and_nothing_else() {
    let mut world = guarded_world(1);
    let listener = come(&mut world, 0, 1, &server_claims(1));
    let mut pinned = claims(2);
    pinned.grant.comtrees[0].unicast = Unicast::Only(world.address(listener));
    let speaker = come(&mut world, 0, 2, &pinned);
    let other = come(&mut world, 0, 3, &claims(3));
    world.subscribe(listener, 9, 1);
    world.publish(speaker, 9, 1, Flags(0), b"granted");
    world.publish(speaker, 10, 0, Flags(0), b"group");
    world.publish(speaker, 9, 2, Flags(0), b"level");
    let (to_listener, to_other) = (world.address(listener), world.address(other));
    world.publish_to(speaker, to_listener, 0, Flags(0), b"to the server");
    world.publish_to(speaker, to_other, 0, Flags(0), b"to another");
    world.settle();
    assert_eq!(world.payloads(listener), [&b"granted"[..], b"to the server"]);
    assert!(world.payloads(other).is_empty());
    assert_eq!(world.dropped(DropReason::PublishNotAllowed), 1);
    assert_eq!(world.dropped(DropReason::PublishLevelNotAllowed), 1);
    assert_eq!(world.dropped(DropReason::UnicastNotAllowed), 1);
}

/// Looking for groups that are somebody else's: each is refused, counted, and takes no room.
#[test]
fn a_scan_of_group_numbers_finds_what_the_token_grants() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, 1, &claims(1));
    let session = &mut world.participants[member].session;
    (0..1000).for_each(|group| session.subscribe(Group::new(group), Level(1)));
    session.subscribe(Group::new(3), Level(2));
    world.settle();
    let events = world.events(member);
    let refused = |event: &&Event| {
        matches!(event, Event::SubscriptionRefused(_, SubscribeRefusal::NotAllowed))
    };
    assert_eq!(events.iter().filter(refused).count(), 991);
    assert_eq!(world.relay().subscriptions(), 9, "0 to 9 without 3, which it asked too much of");
    assert_eq!(world.dropped(DropReason::SubscribeNotAllowed), 990);
    assert_eq!(world.dropped(DropReason::SubscribeLevelNotAllowed), 1);
}

fn replace_trust(world: &mut World, trust: &Arc<Trust>) {
    let (now, origin) = (world.now, DAY);
    for thread in &mut world.threads {
        let trust = Arc::clone(trust);
        thread.apply(now, Change::Trust { trust, origin }).unwrap();
    }
    world.settle();
}

#[test]
fn revocation_ends_the_session_and_keeps_its_bearer_out() {
    let mut world = guarded_world(2);
    let kept = come(&mut world, 0, 1, &claims(1));
    let revoked = come(&mut world, 1, 2, &claims(2));
    replace_trust(&mut world, &trust(&["token-2"]));
    assert!(world.events(revoked).contains(&Event::SentAway(LeaveReason::Revoked)));
    assert_eq!(world.participants[kept].session.state(), State::Connected);
    world.now = world.now + Duration::from_secs(4);
    world.settle();
    assert!(world.events(revoked).contains(&Event::Refused(RefusedReason::Token)));
    assert_eq!(world.sessions(), 1);
}

#[test]
fn a_key_that_is_trusted_no_more_ends_what_it_signed() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, 1, &claims(1));
    let other = KeySet::new([delegate().public().clone()], &[], DAY).unwrap();
    let other = Arc::new(Trust { keys: other, revoked: Revocations::new(1) });
    replace_trust(&mut world, &other);
    assert!(world.events(member).contains(&Event::SentAway(LeaveReason::Revoked)));
    assert_eq!(world.sessions(), 0);
}

/// Goes on by half seconds, in which everybody says that they live.
fn wait(world: &mut World, seconds: u64) {
    for _ in 0..seconds * 2 {
        world.now = world.now + Duration::from_millis(500);
        let now = world.now;
        world.threads.iter_mut().for_each(|thread| thread.handle_timeout(now));
        world.settle();
    }
}

#[test]
fn a_session_ends_with_its_token_unless_that_is_renewed() {
    let mut world = guarded_world(1);
    let short = |number| Claims { expires: DAY.after(20), ..claims(number) };
    let (ended, renewed) = (come(&mut world, 0, 1, &short(1)), come(&mut world, 0, 2, &short(2)));
    wait(&mut world, 25);
    let longer = Claims { id: "token-2b".to_owned(), ..claims(2) };
    let longer = issuer().issue(&longer).unwrap().into_bytes();
    let number = world.participants[renewed].session.set_token(longer).unwrap().unwrap();
    world.settle();
    let answered = Event::Answered(number, RequestStatus::Done);
    assert!(world.events(renewed).contains(&answered));
    wait(&mut world, 10);
    assert!(world.events(ended).contains(&Event::SentAway(LeaveReason::Revoked)));
    assert_eq!(world.events(renewed), [], "nothing has happened to it");
    assert_eq!(world.sessions(), 1);
}

/// It would end its own session as that of somebody else with its token, and whoever had its place
/// next would be sent away with the token's bearer.
#[test]
fn a_member_that_renews_by_the_token_that_it_has_stays() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, 1, &claims(1));
    let token = issuer().issue(&claims(1)).unwrap().into_bytes();
    for _ in 0..2 {
        let session = &mut world.participants[member].session;
        let request = session.set_token(token.clone()).unwrap().unwrap();
        assert_eq!(status_of(&mut world, member, request), RequestStatus::Done);
    }
    assert_eq!(
        (world.participants[member].session.state(), world.sessions()),
        (State::Connected, 1)
    );
    world.participants[member].session.leave();
    world.settle();
    come(&mut world, 0, 1, &claims(1));
    assert_eq!(world.sessions(), 1);
}

#[test]
fn a_token_that_is_not_taken_renews_nothing() {
    let mut world = guarded_world(1);
    let member = come(&mut world, 0, 1, &claims(1));
    let anothers = issuer().issue(&claims(2)).unwrap().into_bytes();
    let number = world.participants[member].session.set_token(anothers).unwrap().unwrap();
    world.settle();
    assert!(world.events(member).contains(&Event::Answered(number, RequestStatus::Token)));
    assert_eq!((world.sessions(), world.dropped(DropReason::BadToken)), (1, 1));
}

#[test]
fn renewal_takes_what_the_new_token_does_not_grant() {
    let mut world = guarded_world(1);
    let (member, speaker) =
        (come(&mut world, 0, 1, &claims(1)), come(&mut world, 0, 2, &claims(2)));
    world.subscribe(member, 3, 0);
    world.subscribe(member, 4, 0);
    let mut narrower = Claims { id: "token-1b".to_owned(), ..claims(1) };
    narrower.grant.comtrees[0].subscribe = groups("4", 0);
    let narrower = issuer().issue(&narrower).unwrap().into_bytes();
    world.participants[member].session.set_token(narrower).unwrap();
    world.settle();
    world.publish(speaker, 3, 0, Flags(0), b"three");
    world.publish(speaker, 4, 0, Flags(0), b"four");
    world.settle();
    assert_eq!(world.payloads(member), [b"four"]);
}

#[test]
fn a_server_mutes_and_restores_a_member() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        let server = come(&mut world, 0, 1, &server_claims(1));
        let member = come(&mut world, usize::from(threads) - 1, 2, &claims(2));
        let whom = world.address(member);
        world.subscribe(server, 3, 0);
        let mute = Verdict::Restrict(Restriction::MUTE);
        assert_eq!(judge(&mut world, server, whom, mute), RequestStatus::Done);
        world.publish(member, 3, 0, Flags(0), b"muted");
        let to_server = world.address(server);
        world.publish_to(member, to_server, 0, Flags(0), b"muted");
        world.settle();
        assert!(world.payloads(server).is_empty());
        assert_eq!(world.dropped(DropReason::Restricted), 2);
        // To come back does not help.
        let again = come(&mut world, 0, 2, &claims(2));
        world.publish(again, 3, 0, Flags(0), b"muted");
        world.settle();
        assert!(world.payloads(server).is_empty());
        let whom = world.address(again);
        let restore = Verdict::Restore(Restriction::MUTE);
        assert_eq!(judge(&mut world, server, whom, restore), RequestStatus::Done);
        world.publish(again, 3, 0, Flags(0), b"heard");
        world.settle();
        assert_eq!(world.payloads(server), [b"heard"]);
    }
}

#[test]
fn a_server_takes_groups_from_a_member() {
    let mut world = guarded_world(1);
    let server = come(&mut world, 0, 1, &server_claims(1));
    let member = come(&mut world, 0, 2, &claims(2));
    world.subscribe(member, 3, 0);
    world.subscribe(member, 4, 0);
    let (first, last) = (Group::new(3), Group::new(3));
    let team = Verdict::Restrict(Restriction::new(Acts::SUBSCRIBE, first, last));
    let whom = world.address(member);
    assert_eq!(judge(&mut world, server, whom, team), RequestStatus::Done);
    world.publish(server, 3, 0, Flags(0), b"for the team");
    world.publish(server, 4, 0, Flags(0), b"for all");
    world.settle();
    assert_eq!(world.payloads(member), [b"for all"]);
    world.unsubscribe(member, 3);
    world.subscribe(member, 3, 0);
    let not_allowed = Event::SubscriptionRefused(Group::new(3), SubscribeRefusal::NotAllowed);
    assert!(world.events(member).contains(&not_allowed));
}

#[test]
fn who_is_thrown_out_stays_out() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        let server = come(&mut world, 0, 1, &server_claims(1));
        let member = come(&mut world, usize::from(threads) - 1, 2, &claims(2));
        let whom = world.address(member);
        assert_eq!(judge(&mut world, server, whom, Verdict::ThrowOut), RequestStatus::Done);
        world.settle();
        assert!(world.events(member).contains(&Event::SentAway(LeaveReason::ThrownOut)));
        for thread in 0..usize::from(threads) {
            let again = come(&mut world, thread, 2, &claims(2));
            assert!(world.events(again).contains(&Event::Refused(RefusedReason::Token)));
        }
        assert_eq!(world.sessions(), 1);
    }
}

/// Neither by the token that it came with nor by an older one, at whichever data thread it asks; until the address is
/// admitted again.
#[test]
fn who_is_dismissed_comes_back_once_its_address_is_admitted() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        let address = Address::unicast(1, 101);
        let for_it = |id: &str| {
            let grant = Grant { address: Some(address), ..claims(2).grant };
            Claims { id: id.to_owned(), grant, ..claims(2) }
        };
        let thread = usize::from(101 % threads);
        let member = come(&mut world, thread, 2, &for_it("newer"));
        assert_eq!(world.address(member), address);
        let now = world.now;
        let dismiss = Change::Dismiss { comtree: COMTREE, address };
        world.threads[thread].apply(now, dismiss).unwrap();
        world.settle();
        assert!(world.events(member).contains(&Event::SentAway(LeaveReason::ThrownOut)));
        for asks in 0..usize::from(threads) {
            for id in ["newer", "older"] {
                let again = come(&mut world, asks, 2, &for_it(id));
                assert!(
                    world.events(again).contains(&Event::Refused(RefusedReason::Token)),
                    "{id}"
                );
            }
        }
        let why = TokenRefusal::Dismissed(address);
        assert!(notices(&mut world, thread).iter().any(
            |notice| matches!(notice, Notice::TokenRefused { why: said, .. } if *said == why)
        ));
        let other = Claims { id: "other".to_owned(), ..claims(3) };
        come(&mut world, 0, 3, &other);
        assert_eq!(world.sessions(), 1, "another address is not concerned");
        let now = world.now;
        world.threads[thread].apply(now, Change::Admit { comtree: COMTREE, address }).unwrap();
        come(&mut world, 0, 2, &for_it("older"));
        assert_eq!(world.sessions(), 2);
    }
}

#[test]
fn only_a_server_judges() {
    let mut world = guarded_world(1);
    let (one, other) = (come(&mut world, 0, 1, &claims(1)), come(&mut world, 0, 2, &claims(2)));
    let whom = world.address(other);
    let status = judge(&mut world, one, whom, Verdict::ThrowOut);
    assert_eq!(status, RequestStatus::NotAllowed);
    assert_eq!((world.sessions(), world.dropped(DropReason::RequestNotAllowed)), (2, 1));
    let server = come(&mut world, 0, 3, &server_claims(3));
    let nobody = Address::unicast(1, 60_000);
    let status = judge(&mut world, server, nobody, Verdict::ThrowOut);
    assert_eq!(status, RequestStatus::UnknownAddress);
}

#[test]
fn a_relay_that_asks_for_no_tokens_has_no_servers() {
    let mut world = World::new(Mode::Immediate, 2);
    let whom = world.address(1);
    let status = judge(&mut world, 0, whom, Verdict::ThrowOut);
    assert_eq!((status, world.sessions()), (RequestStatus::NotAllowed, 2));
}

/// A request whose answer is lost is repeated, and done once.
#[test]
fn a_repeated_request_is_answered_again_and_done_once() {
    let mut world = guarded_world(1);
    let server = come(&mut world, 0, 1, &server_claims(1));
    let member = come(&mut world, 0, 2, &claims(2));
    let whom = world.address(member);
    let number = world.participants[server].session.judge(whom, Verdict::ThrowOut).unwrap();
    assert!(world.send_from(server));
    let lost = world.collect(0);
    assert!(!lost.is_empty());
    world.now = world.now + Duration::from_millis(200);
    world.settle();
    // The second time there would be nobody to throw out.
    let events = world.events(server);
    assert!(events.contains(&Event::Answered(number, RequestStatus::Done)), "{events:?}");
}

/// What a token says of budgets holds, and another token changes it without filling what was used up.
#[test]
fn a_tokens_budget_holds_until_another_token_changes_it() {
    let mut world = guarded_world(1);
    let mut modest = claims(1);
    modest.grant.budget.up_packets = Some(0);
    modest.grant.budget.up_bits = Some(80_000);
    let publisher = come(&mut world, 0, 1, &modest);
    let hearer = come(&mut world, 0, 2, &claims(2));
    world.subscribe(hearer, 7, 0);
    // A newcomer has little at first.
    world.now = world.now + Duration::from_secs(2);
    let publish = |world: &mut World, count: usize| {
        (0..count).for_each(|_| world.publish(publisher, 7, 0, Flags(0), &[1; 900]));
        world.settle();
        world.payloads(hearer).len()
    };
    assert_eq!(publish(&mut world, 30), 12, "80,000 bits and a datagram's are twelve of these");
    assert_eq!(world.dropped(DropReason::OverBudget), 18);
    let mut richer = modest.clone();
    richer.id = "richer".to_owned();
    richer.grant.budget.up_packets = None;
    let token = issuer().issue(&richer).unwrap().into_bytes();
    world.participants[publisher].session.set_token(token).unwrap();
    world.settle();
    assert_eq!(publish(&mut world, 30), 12, "it has used up its bits");
    world.now = world.now + Duration::from_secs(1);
    assert_eq!(publish(&mut world, 30), 22);
}

/// By a token that pins an address of the relay's site.
fn pinned(number: u8, endpoint: u16) -> Claims {
    let mut claims = claims(number);
    claims.grant.address = Some(Address::unicast(1, endpoint));
    claims
}

#[test]
fn a_token_that_names_an_address_brings_it_whichever_thread_is_asked() {
    for threads in [1, 3] {
        let mut world = guarded_world(threads);
        for (number, endpoint) in [(1, 64), (2, 65), (3, 66), (4, 9000)] {
            let member = come(&mut world, 0, number, &pinned(number, endpoint));
            assert_eq!(world.address(member), Address::unicast(1, endpoint), "{threads} threads");
        }
        // Again, after it has left, and over its own session.
        world.participants[0].session.leave();
        world.settle();
        for _ in 0..2 {
            let again = come(&mut world, usize::from(threads) - 1, 1, &pinned(1, 64));
            assert_eq!(world.address(again), Address::unicast(1, 64));
        }
        assert_eq!(world.sessions(), 4);
    }
}

#[test]
fn an_address_that_somebody_has_or_that_is_of_another_site_is_refused() {
    for threads in [1, 2] {
        let mut world = guarded_world(threads);
        come(&mut world, 0, 1, &pinned(1, 65));
        let mut elsewhere = claims(3);
        elsewhere.grant.address = Some(Address::unicast(2, 65));
        for claims in [pinned(2, 65), elsewhere, pinned(4, 63)] {
            let number = claims.subject.trim_start_matches("player-").parse().unwrap();
            let refused = come(&mut world, 0, number, &claims);
            let events = world.events(refused);
            assert!(events.contains(&Event::Refused(RefusedReason::AddressTaken)), "{events:?}");
        }
        assert_eq!((world.sessions(), world.dropped(DropReason::AddressTaken)), (1, 3));
    }
}
