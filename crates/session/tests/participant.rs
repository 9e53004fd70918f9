//! A participant whose relay answers late or oddly.

use canopy_session::{Event, Session, SessionConfig, State};
use canopy_wire::{
    Address, Challenge, Comtree, Connected, Cookie, Group, Header, Keepalive, Kind, Leave, Level,
    Packet, Refused, RefusedReason, Subscribe, SubscribeAckWriter, TableFull, Time,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// A session that is connected, and when.
fn connected() -> (Session, Time) {
    let (comtree, now) = (Comtree(1), Time::from_millis(1));
    let mut session = Session::new(SessionConfig { comtree, seed: [9; 16] });
    let mut out = [0; 1500];
    session.poll_transmit(now, &mut out).unwrap();
    let nonce = u64::from_be_bytes(out[20..28].try_into().unwrap());
    let len = Cookie { nonce, cookie: [1; 16] }.encode(comtree, &mut out).unwrap();
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    session.poll_transmit(now, &mut out).unwrap();
    let address = Address::unicast(1, 1);
    let told = Connected {
        nonce,
        address,
        lifetime_ms: 10_000,
        keepalive_ms: 2_000,
        subscription_ms: 60_000,
        secret: [1; 16],
    };
    let len = told.encode(comtree, &mut out).unwrap();
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    (session, now)
}

#[test]
fn a_leave_after_a_challenge_is_not_due_at_once_for_ever() {
    let (mut session, now) = connected();
    let mut out = [0; 1500];
    let len =
        Challenge { cookie: [1; 16] }.encode(Comtree(1), session.address(), &mut out).unwrap();
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    session.leave();
    while session.poll_transmit(now, &mut out).is_some() {}
    assert!(
        session.poll_timeout().unwrap() > now,
        "due again at once: {:?}",
        session.poll_timeout()
    );
}

#[test]
fn closed_is_the_last_event() {
    let (mut session, now) = connected();
    let mut out = [0; 1500];
    session.subscribe(Group::new(7), Level(0));
    let len = session.poll_transmit(now, &mut out).unwrap();
    let packet = Packet::new_checked(&out[..len]).unwrap();
    let sequence = Subscribe::new_checked(&packet).unwrap().sequence();
    session.leave();
    session.poll_transmit(now, &mut out).unwrap();
    let len = Leave::encode_left(Comtree(1), session.address(), &mut out).unwrap();
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    let len =
        SubscribeAckWriter::new(&mut out, sequence).unwrap().finish(Comtree(1), session.address());
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| session.poll_event()).collect();
    assert_eq!(events.last(), Some(&Event::Closed), "{events:?}");
}

/// A relay of another release may have a reason of its own.
#[test]
fn each_refused_group_has_its_reason_and_is_not_asked_for_again() {
    let (mut session, now) = connected();
    let mut out = [0; 1500];
    (1..=4).for_each(|group| session.subscribe(Group::new(group), Level(0)));
    let len = session.poll_transmit(now, &mut out).unwrap();
    let packet = Packet::new_checked(&out[..len]).unwrap();
    let sequence = Subscribe::new_checked(&packet).unwrap().sequence();
    let reasons = [TableFull::Table, TableFull::Participant, TableFull::Other(9)];
    let refused: Vec<_> = (1..=3).map(Group::new).zip(reasons).collect();
    let mut writer = SubscribeAckWriter::new(&mut out, sequence).unwrap();
    assert!(refused.iter().all(|(group, reason)| writer.push(*group, *reason)));
    let len = writer.finish(Comtree(1), session.address());
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    assert_eq!(session.poll_event(), Some(Event::Connected(session.address())));
    for (group, reason) in refused {
        assert_eq!(session.poll_event(), Some(Event::SubscriptionRefused(group, reason)));
    }
    assert_eq!(session.poll_event(), Some(Event::Subscribed(Group::new(4), Level(0))));
    assert_eq!(session.poll_transmit(now + Duration::from_secs(1), &mut out), None);
    assert_eq!(session.subscriptions(), 1);
}

/// A round trip may take longer than the time between keepalives: the answer is then to none but
/// the last but one. It counts as a sign of life only if it knows the participant.
#[test]
fn late_answers_that_know_nobody_do_not_keep_a_session_alive() {
    for (knows, alive) in [(true, true), (false, false)] {
        let (mut session, _) = connected();
        let address = if knows { session.address() } else { Address::UNSPECIFIED };
        let mut out = [0; 1500];
        for _ in 0..10 {
            let now = session.poll_timeout().unwrap();
            while session.poll_transmit(now, &mut out).is_some() {}
            let ack = Keepalive { stamp: 1 };
            let len = ack.encode_ack(Comtree(1), address, &mut out).unwrap();
            session.handle_datagram(now, &out[..len], |_| ()).unwrap();
        }
        assert_eq!(session.state() == State::Connected, alive, "knows it: {knows}");
    }
}

/// Where a relay is full is its own business: the participant hears it once and asks again later.
#[test]
fn a_full_relay_is_told_and_asked_again_later() {
    let (comtree, reason) = (Comtree(1), RefusedReason::Full);
    let mut session = Session::new(SessionConfig { comtree, seed: [9; 16] });
    let (mut now, mut out, mut asked) = (Time::from_millis(1), [0; 1500], BTreeSet::new());
    for _ in 0..4 {
        session.poll_transmit(now, &mut out).unwrap();
        let nonce = u64::from_be_bytes(out[20..28].try_into().unwrap());
        assert!(asked.insert(nonce), "asked with the nonce that was refused");
        let len = Refused { nonce, reason }.encode(comtree, &mut out).unwrap();
        session.handle_datagram(now, &out[..len], |_| ()).unwrap();
        assert_eq!(session.poll_event(), Some(Event::Refused(reason)));
        assert_eq!((session.poll_event(), session.state()), (None, State::Greeting));
        let again = session.poll_timeout().unwrap();
        assert!(again >= now + Duration::from_secs(1), "asked again at once");
        now = again;
    }
}

#[test]
fn another_relay_is_greeted_when_the_driver_says_so() {
    let (mut session, now) = (Session::new(config()), Time::from_millis(1));
    let mut out = [0; 1500];
    session.poll_transmit(now, &mut out).unwrap();
    assert_eq!(session.poll_transmit(now, &mut out), None);
    let later = now + Duration::from_millis(20);
    session.greet_at(later);
    assert_eq!((session.poll_timeout(), session.poll_transmit(now, &mut out)), (Some(later), None));
    assert!(session.poll_transmit(later, &mut out).is_some());
    let (mut session, now) = connected();
    session.greet_at(now);
    assert_eq!((session.state(), session.poll_transmit(now, &mut out)), (State::Connected, None));
}

fn config() -> SessionConfig {
    SessionConfig { comtree: Comtree(1), seed: [9; 16] }
}

/// Hands the session a challenge, and everything that it sends by then.
fn challenge(session: &mut Session, now: Time) -> Vec<Kind> {
    let mut out = [0; 1500];
    let len =
        Challenge { cookie: [1; 16] }.encode(Comtree(1), session.address(), &mut out).unwrap();
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
    let send = || {
        let len = session.poll_transmit(now, &mut out)?;
        Some(Packet::new_checked(&out[..len]).unwrap().header().kind)
    };
    std::iter::from_fn(send).collect()
}

fn acknowledge(session: &mut Session, now: Time, stamp: u64) {
    let mut out = [0; 1500];
    let len = Keepalive { stamp }.encode_ack(Comtree(1), session.address(), &mut out).unwrap();
    session.handle_datagram(now, &out[..len], |_| ()).unwrap();
}

#[test]
fn a_new_ip_port_counts_when_the_relay_has_confirmed_it() {
    let (mut session, now) = connected();
    session.poll_event();
    acknowledge(&mut session, now, 0);
    assert_eq!(session.poll_event(), None, "nothing was proved");
    assert_eq!(challenge(&mut session, now), [Kind::Rebind]);
    assert_eq!(session.poll_event(), None, "the proof may be lost");
    acknowledge(&mut session, now, now.as_nanos() - 1);
    assert_eq!(session.poll_event(), None, "the answer is to an earlier keepalive");
    acknowledge(&mut session, now, 0);
    assert_eq!((session.poll_event(), session.poll_event()), (Some(Event::Rebound), None));
    acknowledge(&mut session, now, 0);
    assert_eq!(session.poll_event(), None, "it was told already");
}

/// The answer to the proof may be lost; the next keepalive's tells the same.
#[test]
fn a_keepalive_from_the_new_ip_port_confirms_it_too() {
    let (mut session, now) = connected();
    session.poll_event();
    challenge(&mut session, now);
    let now = session.poll_timeout().unwrap();
    session.poll_transmit(now, &mut [0; 1500]).unwrap();
    acknowledge(&mut session, now, now.as_nanos());
    assert_eq!(session.poll_event(), Some(Event::Rebound));
}

/// Whoever writes the relay's address on a packet can send challenges.
#[test]
fn challenges_that_nobody_asked_for_cost_little() {
    let (mut session, start) = connected();
    session.poll_event();
    let mut proofs = 0;
    for step in 0..1_000 {
        let now = start + Duration::from_millis(step);
        let sent = challenge(&mut session, now);
        proofs += sent.iter().filter(|kind| **kind == Kind::Rebind).count();
    }
    assert_eq!((proofs, session.poll_event()), (10, None));
}

#[test]
fn events_that_nobody_polls_are_bounded_and_counted() {
    let (mut session, mut now) = connected();
    for _ in 0..3_000 {
        now = now + Duration::from_millis(100);
        assert!(challenge(&mut session, now).contains(&Kind::Rebind));
        acknowledge(&mut session, now, 0);
    }
    let left = std::iter::from_fn(|| session.poll_event()).count() as u64;
    assert!(left < 3_000, "{left} events were kept");
    // The first was Connected.
    assert_eq!(left + session.events_lost(), 3_001);
}

/// The relay may still send to an ip:port what is for the participant that had it before.
#[test]
fn a_unicast_to_another_address_is_not_delivered() {
    let (mut session, now) = connected();
    let ours = session.address();
    let other = Address::unicast(1, ours.endpoint() + 1);
    let mut delivered = Vec::new();
    for dst in [other, ours, Group::new(7).address()] {
        let header = Header::new(Kind::Data, Comtree(1), Address::unicast(1, 9), dst);
        let mut datagram = [0; 100];
        let len = header.encode_packet(b"hello", &mut datagram).unwrap();
        session
            .handle_datagram(now, &datagram[..len], |update| delivered.push(update.dst))
            .unwrap();
    }
    assert_eq!(delivered, [ours, Group::new(7).address()]);
}
