//! A participant whose relay answers late or oddly.

use crate::support::{
    COMTREE, ID, KEEPALIVE, Pair, TERMS, config, echo_of, kind_of, nonce_of, packet,
};
use canopy_session::{Event, SessionError, State, Terms};
use canopy_wire::{
    Address, Challenge, Downlink, Flags, Group, Header, Keepalive, Kind, Leave, Level,
    MAX_DATAGRAM, MAX_UPDATE, Record, Refused, RefusedReason, SAFE_DATAGRAM, SEAL_LEN, SessionId,
    Subscribe, SubscribeAckWriter, SubscribeRefusal, Time, UpdatesWriter, WireError,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// The keepalive among packets, if there is one.
fn keepalive_in(packets: &[Vec<u8>]) -> Option<Keepalive> {
    packets.iter().find_map(|datagram| {
        let packet = packet(datagram);
        let header = packet.header();
        assert!(header.session == ID || header.kind == Kind::Hello, "{header:?}");
        (header.kind == Kind::Keepalive).then(|| Keepalive::decode(&packet).unwrap())
    })
}

#[test]
fn a_leave_after_a_challenge_is_not_due_at_once_for_ever() {
    let (mut pair, now) = Pair::connected();
    pair.say(now, |out| Challenge { cookie: [1; 16] }.encode(COMTREE, ID, out));
    pair.session.leave();
    pair.sent(now);
    let due = pair.session.poll_timeout();
    assert!(due.unwrap() > now, "due again at once: {due:?}");
}

/// The number of the subscribe packet that the session sends first at `now`.
fn sequence_of_next(pair: &mut Pair, now: Time) -> u32 {
    let subscribe = pair.packets(now).remove(0);
    Subscribe::new_checked(&packet(&subscribe)).unwrap().sequence()
}

#[test]
fn closed_is_the_last_event() {
    let (mut pair, now) = Pair::connected();
    pair.session.subscribe(Group::new(7), Level(0));
    let sequence = sequence_of_next(&mut pair, now);
    pair.session.leave();
    pair.sent(now);
    pair.say(now, |out| Leave::encode_left(COMTREE, ID, out));
    let mut ack = pair
        .seal(|out| Ok(SubscribeAckWriter::new(out, sequence, SAFE_DATAGRAM)?.finish(COMTREE, ID)));
    assert!(pair.hear(now, &mut ack).is_err(), "its keys are of no use any more");
    let events = pair.events();
    assert_eq!(events.last(), Some(&Event::Closed), "{events:?}");
}

/// A relay of another release may have a reason of its own.
#[test]
fn each_refused_group_has_its_reason_and_is_not_asked_for_again() {
    let (mut pair, now) = Pair::connected();
    (1..=4).for_each(|group| pair.session.subscribe(Group::new(group), Level(0)));
    let sequence = sequence_of_next(&mut pair, now);
    let reasons =
        [SubscribeRefusal::Table, SubscribeRefusal::Participant, SubscribeRefusal::Other(9)];
    let refused: Vec<_> = (1..=3).map(Group::new).zip(reasons).collect();
    pair.say(now, |out| {
        let mut writer = SubscribeAckWriter::new(out, sequence, SAFE_DATAGRAM)?;
        assert!(refused.iter().all(|(group, reason)| writer.push(*group, *reason)));
        Ok(writer.finish(COMTREE, ID))
    });
    let session = &mut pair.session;
    assert_eq!(session.poll_event(), Some(Event::Connected(session.address())));
    for (group, reason) in refused {
        assert_eq!(session.poll_event(), Some(Event::SubscriptionRefused(group, reason)));
    }
    assert_eq!(session.poll_event(), Some(Event::Subscribed(Group::new(4), Level(0))));
    assert!(pair.sent(now + Duration::from_secs(1)).is_empty());
    assert_eq!(pair.session.subscriptions(), 1);
}

/// Who answers the session's keepalives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AnsweredBy {
    Relay,
    /// Somebody who has no keys, in cleartext.
    Clear,
    /// Another session of the same number.
    OtherKeys,
    /// Somebody who repeats what the relay once sent.
    Copy,
    /// Somebody who alters what the relay sends.
    Altered,
    /// The relay, for another session.
    OtherNumber,
}

fn answer_by(by: AnsweredBy, pair: &mut Pair, other: &mut Pair, copy: &[u8]) -> Vec<u8> {
    let ack = Keepalive { stamp: 1, path_stamp: 1 };
    let mut sealed = pair.seal(|out| ack.encode_ack(COMTREE, ID, out));
    match by {
        AnsweredBy::Relay => {}
        AnsweredBy::Clear => {
            let len = ack.encode_ack(COMTREE, ID, &mut sealed).unwrap();
            sealed.truncate(len);
        }
        AnsweredBy::OtherKeys => sealed = other.seal(|out| ack.encode_ack(COMTREE, ID, out)),
        AnsweredBy::Copy => sealed = copy.to_vec(),
        AnsweredBy::Altered => sealed[20] ^= 1,
        AnsweredBy::OtherNumber => sealed[1..4].copy_from_slice(&[0, 0, 1]),
    }
    sealed
}

/// A round trip may take longer than the time between keepalives: the answer is then to none but
/// the last but one. It counts as a sign of life only if it is of this session.
#[test]
fn late_answers_of_no_session_do_not_keep_one_alive() {
    let others = [
        AnsweredBy::Clear,
        AnsweredBy::OtherKeys,
        AnsweredBy::Copy,
        AnsweredBy::Altered,
        AnsweredBy::OtherNumber,
    ];
    for by in [AnsweredBy::Relay].into_iter().chain(others) {
        let ((mut pair, now), (mut other, _)) = (Pair::connected(), Pair::connected_elsewhere());
        let copy =
            pair.seal(|out| Keepalive { stamp: 1, path_stamp: 1 }.encode_ack(COMTREE, ID, out));
        pair.hear(now, &mut copy.clone()).unwrap();
        for _ in 0..10 {
            let now = pair.session.poll_timeout().unwrap();
            pair.sent(now);
            let mut answer = answer_by(by, &mut pair, &mut other, &copy);
            let heard = pair.hear(now, &mut answer);
            assert_eq!(
                heard.is_ok(),
                matches!(by, AnsweredBy::Relay | AnsweredBy::Clear),
                "{by:?}"
            );
        }
        let is_alive = pair.session.state() == State::Connected;
        assert_eq!(is_alive, by == AnsweredBy::Relay, "{by:?}");
    }
}

/// What the relay sent last is brought back, by which it sees that its answers arrive.
#[test]
fn a_keepalive_brings_back_the_path_stamp_of_the_last_answer() {
    let (mut pair, now) = Pair::connected();
    let told = pair.path_stamp(now);
    let mut next = |late_stamp: Option<u64>, answered_with: Option<u64>| {
        let now = pair.session.poll_timeout().unwrap();
        let keepalive = keepalive_in(&pair.packets(now)).unwrap();
        if let Some(path_stamp) = answered_with {
            pair.acknowledge_with(now, keepalive.stamp, path_stamp);
        }
        if let Some(stamp) = late_stamp {
            pair.acknowledge_with(now, stamp, 666);
        }
        keepalive
    };
    let first = next(None, Some(2_000));
    assert_eq!(first, Keepalive { stamp: (now + KEEPALIVE).as_nanos(), path_stamp: told });
    assert_eq!(next(None, None).path_stamp, 2_000);
    assert_eq!(next(None, Some(3_000)).path_stamp, 2_000, "the answer was lost");
    assert_eq!(next(Some(first.stamp), Some(4_000)).path_stamp, 3_000);
    assert_eq!(next(None, None).path_stamp, 4_000, "a late answer's stamp is an old one");
}

/// How long the relay is waited for depends on the round trip: the last that was measured, or what
/// the handshake took.
#[test]
fn a_relay_that_does_not_know_the_session_and_stays_silent_is_greeted_again() {
    let millis = Duration::from_millis;
    for (handshake, measured, patience) in
        [(0, None, 20), (25, None, 50), (25, Some(1), 20), (0, Some(30), 60)]
    {
        let (mut pair, now) = (Pair::new(config()), Time::from_millis(1));
        let connect = pair.greet(now);
        let knock = pair.knock(now, &connect).unwrap();
        let mut welcome = pair.let_in(now, knock, &TERMS);
        pair.hear(now + millis(handshake), &mut welcome).unwrap();
        let first = pair.session.poll_timeout().unwrap();
        let keepalive = keepalive_in(&pair.packets(first)).unwrap();
        if let Some(round_trip) = measured {
            pair.acknowledge(first + millis(round_trip), keepalive.stamp);
        }
        let now = pair.session.poll_timeout().unwrap();
        let datagram = pair.sent(now).remove(0);
        pair.events();
        let said_at = now + millis(5);
        pair.say_unknown(said_at, echo_of(&datagram));
        for asked in 0..3 {
            let now = said_at + millis(patience) * asked;
            assert!(asked == 0 || pair.sent(Time::from_nanos(now.as_nanos() - 1)).is_empty());
            assert_eq!(pair.session.poll_timeout().map(|due| due.max(said_at)), Some(now));
            let asks = pair.packets(now);
            assert!(asks.len() == 1 && keepalive_in(&asks).is_some(), "it is asked {asked}");
            assert_eq!((pair.session.state(), pair.events()), (State::Connected, vec![]));
        }
        let hello = pair.sent(said_at + millis(patience) * 3);
        assert_eq!((kind_of(&hello[0]), pair.events()), (Kind::Hello, vec![Event::Lost]));
        let now = pair.session.poll_timeout().unwrap();
        pair.connect(now, TERMS);
        // A copy that the network made comes late: it speaks of the session before.
        pair.say_unknown(now, echo_of(&datagram));
        assert!(pair.sent(now).is_empty());
        assert_eq!(pair.session.poll_timeout(), Some(now + KEEPALIVE));
    }
}

/// Lets the session send for a second in which the relay is silent. Returns whether it is lost.
fn is_lost_in_silence(pair: &mut Pair, now: Time) -> bool {
    for step in 0..100 {
        pair.sent(now + Duration::from_millis(step * 10));
    }
    pair.session.state() != State::Connected
}

/// Whoever sees the participant's packets can say that the relay does not know them. But it cannot
/// keep the relay from answering, and nobody can answer in its place.
#[test]
fn a_relay_that_answers_is_not_given_up_whoever_says_that_it_knows_nobody() {
    let (mut pair, start) = Pair::connected();
    pair.events();
    let mut asked = 0;
    for step in 0..2_000 {
        let now = start + Duration::from_millis(step * 10);
        for datagram in pair.sent(now) {
            asked += 1;
            let stamp = keepalive_in(&[pair.open(&datagram)]).unwrap().stamp;
            pair.say_unknown(now, echo_of(&datagram));
            pair.acknowledge(now, stamp);
        }
    }
    assert_eq!((pair.session.state(), pair.events()), (State::Connected, vec![]));
    assert!(asked <= 2_000, "{asked} keepalives: more than it was told");
    // The silence must be whole: one that answers late, with whatever, is there.
    let now = pair.session.poll_timeout().unwrap().max(start + Duration::from_secs(20));
    let datagram = pair.sent(now).remove(0);
    pair.say_unknown(now, echo_of(&datagram));
    let copy = pair.seal(|out| Leave::encode_left(COMTREE, ID, out));
    pair.hear(now + Duration::from_millis(19), &mut copy.clone()).unwrap();
    assert!(!is_lost_in_silence(&mut pair, now + Duration::from_millis(19)));
    // A copy of what it said before is none.
    let now = pair.session.poll_timeout().unwrap();
    let datagram = pair.sent(now).remove(0);
    pair.say_unknown(now, echo_of(&datagram));
    assert!(pair.hear(now, &mut copy.clone()).is_err());
    assert!(is_lost_in_silence(&mut pair, now));
}

/// Whoever cannot see the participant's packets does not know what to answer.
#[test]
fn a_guessed_unknown_ends_nothing_and_is_no_sign_of_life() {
    let (mut pair, start) = Pair::connected();
    let mut now = start;
    for echo in [0, 1, u64::MAX] {
        pair.say_unknown(now, echo);
        assert_eq!(pair.session.poll_timeout(), Some(start + KEEPALIVE), "no packet yet: {echo}");
    }
    let first = pair.session.poll_timeout().unwrap();
    let mut last = pair.sent(first).remove(0);
    while pair.session.state() == State::Connected {
        now = pair.session.poll_timeout().unwrap();
        assert!(now.since(start) < KEEPALIVE * 6, "it is kept alive");
        last = pair.sent(now).pop().unwrap_or(last);
        let due = pair.session.poll_timeout();
        let right = echo_of(&last);
        for echo in [0, 1, right ^ 1, right.swap_bytes(), !right, now.as_nanos()] {
            pair.say_unknown(now, echo);
        }
        assert_eq!(pair.session.poll_timeout(), due, "it is believed");
    }
    assert!(now.since(start) > KEEPALIVE * 3, "it ended at {now}, by an answer");
}

/// What somebody has kept says nothing of now.
#[test]
fn an_unknown_that_answers_an_old_packet_is_not_believed() {
    for (later, is_believed) in [(63, true), (64, false)] {
        let (mut pair, now) = Pair::connected();
        let publish = |pair: &mut Pair| {
            let mut out = [0; 100];
            let dst = Group::new(7).address();
            pair.session.publish(dst, Level(0), Flags(0), b"x", &mut out).unwrap();
            echo_of(&out)
        };
        let echo = publish(&mut pair);
        for _ in 0..later {
            publish(&mut pair);
        }
        pair.say_unknown(now, echo);
        assert_eq!(!pair.sent(now).is_empty(), is_believed, "{later} packets later");
    }
}

/// A proof is answered so too, when the session that it is of is no more.
#[test]
fn an_unknown_may_answer_the_proof_of_a_new_ip_port() {
    let (mut pair, now) = Pair::connected();
    let cookie = core::array::from_fn(|byte| byte as u8 + 1);
    pair.say(now, |out| Challenge { cookie }.encode(COMTREE, ID, out));
    let of_cookie = u64::from_be_bytes(*cookie.first_chunk().unwrap());
    let rebind = pair.sent(now).remove(0);
    assert_eq!(kind_of(&pair.open(&rebind)), Kind::Rebind);
    pair.say_unknown(now, of_cookie);
    assert!(pair.sent(now).is_empty(), "the cookie is no secret of the two");
    pair.say_unknown(now, echo_of(&rebind));
    assert!(keepalive_in(&pair.packets(now)).is_some());
    assert!(is_lost_in_silence(&mut pair, now));
}

/// The two sides may have lost each other's count of subscribe packets; a new session begins it
/// anew.
#[test]
fn a_subscribe_that_is_never_answered_while_keepalives_are_starts_the_session_again() {
    let (mut pair, start) = Pair::connected();
    pair.session.subscribe(Group::new(7), Level(2));
    let (mut now, mut subscribes) = (start, 0);
    while pair.session.state() == State::Connected {
        for datagram in pair.packets(now) {
            subscribes += u32::from(kind_of(&datagram) == Kind::Subscribe);
            if let Some(keepalive) = keepalive_in(&[datagram]) {
                pair.acknowledge(now, keepalive.stamp);
            }
        }
        if pair.session.state() == State::Connected {
            now = pair.session.poll_timeout().unwrap();
        }
        assert!(now.since(start) < Duration::from_secs(60), "it asks for ever");
    }
    assert!((12..=14).contains(&subscribes), "{subscribes} were sent");
    assert!(now.since(start) > Duration::from_secs(20), "after {:?}", now.since(start));
    assert_eq!(pair.events().last(), Some(&Event::Lost));
    // The hello of the new session is on its way; what was wanted is asked for again, as the first.
    let now = pair.session.poll_timeout().unwrap();
    pair.connect(now, TERMS);
    let again = pair.packets(now).remove(0);
    let subscribe = Subscribe::new_checked(&packet(&again)).unwrap();
    assert_eq!((subscribe.sequence(), subscribe.changes().count()), (1, 1));
}

/// Its updates are numbered through, whatever becomes of the session, so that no receiver takes a
/// new one for a copy.
#[test]
fn updates_are_numbered_through() {
    let (mut pair, _) = Pair::connected();
    let group = Group::new(7).address();
    let series_of_next = |pair: &mut Pair| {
        let mut out = [0; 1500];
        let len = pair.session.publish(group, Level(1), Flags(0), b"x", &mut out).unwrap();
        let opened = pair.open(&out[..len]);
        assert_eq!(opened.len() + SEAL_LEN, len);
        let packet = packet(&opened);
        assert_eq!((packet.header().kind, packet.header().session), (Kind::Updates, ID));
        let mut records = packet.updates().unwrap();
        let record = records.next().unwrap();
        let expected = Record { level: Level(1), ..Record::new(group, record.series, b"x") };
        assert_eq!((record, records.next()), (expected, None), "its source is the sender");
        record.series
    };
    assert_eq!((series_of_next(&mut pair), series_of_next(&mut pair)), (0, 1));
    // What is not written takes no number: that would look like a loss.
    let mut publish = |payload: &[u8], room: usize| {
        pair.session.publish(group, Level(0), Flags(0), payload, &mut [0; 1500][..room])
    };
    assert_eq!(publish(&[0; MAX_UPDATE + 1], 1500), Err(SessionError::TooLong(MAX_UPDATE + 1)));
    let whole = publish(&[0; 100], 1500).unwrap();
    for room in [50, whole - SEAL_LEN, whole - 1] {
        assert_eq!(publish(&[0; 100], room), Err(SessionError::Wire(WireError::Length)), "{room}");
    }
    assert_eq!(pair.session.take_series(3), 3);
    let due = pair.session.poll_timeout().unwrap();
    let keepalive = pair.sent(due).remove(0);
    pair.say_unknown(due, echo_of(&keepalive));
    assert!(is_lost_in_silence(&mut pair, due));
    let not_now = pair.session.publish(group, Level(0), Flags(0), b"x", &mut [0; 1500]);
    assert_eq!(not_now, Err(SessionError::NotConnected));
    pair.connect(due + KEEPALIVE * 2, TERMS);
    assert_eq!(series_of_next(&mut pair), 6, "another session");
    pair.session.take_series(usize::from(u16::MAX) - 6);
    assert_eq!((series_of_next(&mut pair), series_of_next(&mut pair)), (0, 1), "it wraps");
}

#[test]
fn datagrams_are_as_long_as_both_sides_paths_take() {
    let (safe, long) = (SAFE_DATAGRAM as u16, MAX_DATAGRAM as u16);
    let cases = [
        (safe, safe, safe),
        (long, safe, safe),
        (safe, long, safe),
        (long, long, long),
        (long, 0, safe),
    ];
    for (ours, relays, agreed) in cases {
        let config = canopy_session::SessionConfig { max_datagram: ours, ..config() };
        let (mut pair, now) = (Pair::new(config), Time::from_millis(1));
        let asked = pair.connect(now, Terms { max_datagram: relays, ..TERMS });
        assert_eq!((asked, pair.session.max_datagram()), (ours, agreed.into()), "{relays}");
        (0..1_000).for_each(|group| pair.session.subscribe(Group::new(group), Level(0)));
        // With its seal it fills the datagram.
        let len = pair.sent(now)[0].len();
        assert!((agreed - 4..=agreed).contains(&(len as u16)), "{len} of {agreed}");
    }
}

/// Where a relay is full is its own business: the participant hears it once and asks again later.
#[test]
fn a_full_relay_is_told_and_asked_again_later() {
    let reason = RefusedReason::Full;
    let mut pair = Pair::new(config());
    let (mut now, mut out, mut asked) = (Time::from_millis(1), [0; 1500], BTreeSet::new());
    for _ in 0..4 {
        let nonce = nonce_of(&pair.sent(now)[0]);
        assert!(asked.insert(nonce), "asked with the nonce that was refused");
        let len = Refused { nonce, reason }.encode(COMTREE, &mut out).unwrap();
        pair.hear(now, &mut out[..len]).unwrap();
        assert_eq!(pair.events(), [Event::Refused(reason)]);
        assert_eq!(pair.session.state(), State::Greeting);
        let again = pair.session.poll_timeout().unwrap();
        assert!(again >= now + Duration::from_secs(1), "asked again at once");
        now = again;
    }
}

#[test]
fn another_relay_is_greeted_when_the_driver_says_so() {
    let (mut pair, now) = (Pair::new(config()), Time::from_millis(1));
    assert_eq!(pair.sent(now).len(), 1);
    let later = now + Duration::from_millis(20);
    pair.session.greet_at(later);
    assert_eq!((pair.session.poll_timeout(), pair.sent(now).len()), (Some(later), 0));
    assert_eq!(pair.sent(later).len(), 1);
    let (mut pair, now) = Pair::connected();
    pair.session.greet_at(now);
    assert_eq!((pair.session.state(), pair.sent(now).len()), (State::Connected, 0));
}

/// Hands the session a challenge, and everything that it sends by then.
fn challenge(pair: &mut Pair, now: Time) -> Vec<Kind> {
    pair.say(now, |out| Challenge { cookie: [1; 16] }.encode(COMTREE, ID, out));
    pair.packets(now).iter().map(|datagram| kind_of(datagram)).collect()
}

#[test]
fn a_new_ip_port_counts_when_the_relay_has_confirmed_it() {
    let (mut pair, now) = Pair::connected();
    pair.events();
    pair.acknowledge(now, 0);
    assert_eq!(pair.events(), [], "nothing was proved");
    assert_eq!(challenge(&mut pair, now), [Kind::Rebind]);
    assert_eq!(pair.events(), [], "the proof may be lost");
    pair.acknowledge(now, now.as_nanos() - 1);
    assert_eq!(pair.events(), [], "the answer is to an earlier keepalive");
    let measured = pair.session.round_trip();
    pair.acknowledge_with(now + KEEPALIVE / 2, 0, 7_000);
    assert_eq!(pair.events(), [Event::Rebound]);
    assert_eq!(pair.session.round_trip(), measured, "that was no echo of a clock");
    pair.acknowledge(now, 0);
    assert_eq!(pair.events(), [], "it was told already");
}

/// The answer to the proof may be lost; the next keepalive's tells the same.
#[test]
fn a_keepalive_from_the_new_ip_port_confirms_it_too() {
    let (mut pair, now) = Pair::connected();
    pair.events();
    challenge(&mut pair, now);
    let now = pair.session.poll_timeout().unwrap();
    assert_eq!(pair.sent(now).len(), 1);
    pair.acknowledge(now, now.as_nanos());
    assert_eq!(pair.events(), [Event::Rebound]);
}

/// The relay sends one to whoever brings a packet of the session's from elsewhere, and somebody
/// may bring many.
#[test]
fn challenges_that_nobody_asked_for_cost_little() {
    let (mut pair, start) = Pair::connected();
    pair.events();
    let mut proofs = 0;
    for step in 0..1_000 {
        let now = start + Duration::from_millis(step);
        let sent = challenge(&mut pair, now);
        proofs += sent.iter().filter(|kind| **kind == Kind::Rebind).count();
    }
    assert_eq!((proofs, pair.events()), (10, vec![]));
}

/// Whoever writes the relay's address on a packet can send what looks like challenges.
#[test]
fn challenges_that_are_not_the_relays_are_not_answered_and_no_sign_of_life() {
    let challenge = Challenge { cookie: [1; 16] };
    let ((mut pair, start), (mut other, _)) = (Pair::connected(), Pair::connected_elsewhere());
    let copy = pair.seal(|out| challenge.encode(COMTREE, ID, out));
    pair.hear(start, &mut copy.clone()).unwrap();
    assert_eq!(pair.packets(start).len(), 1, "the relay's is answered");
    let mut clear = copy.clone();
    let len = challenge.encode(COMTREE, ID, &mut clear).unwrap();
    clear.truncate(len);
    let mut now = start;
    while pair.session.state() == State::Connected {
        now = now + Duration::from_millis(50);
        let of_another = other.seal(|out| challenge.encode(COMTREE, ID, out));
        let mut altered = pair.seal(|out| challenge.encode(COMTREE, ID, out));
        altered[30] ^= 1;
        for mut forged in [clear.clone(), copy.clone(), of_another, altered] {
            let _ = pair.hear(now, &mut forged);
            let is_rebind = |datagram: &Vec<u8>| kind_of(datagram) == Kind::Rebind;
            assert!(!pair.packets(now).iter().any(is_rebind));
        }
        assert!(now.since(start) < KEEPALIVE * 5, "they keep it alive");
    }
    assert!(now.since(start) > KEEPALIVE * 3, "after {:?}", now.since(start));
    assert!(pair.events().contains(&Event::Lost));
}

#[test]
fn events_that_nobody_polls_are_bounded_and_counted() {
    let (mut pair, mut now) = Pair::connected();
    for _ in 0..3_000 {
        now = now + Duration::from_millis(100);
        assert!(challenge(&mut pair, now).contains(&Kind::Rebind));
        pair.acknowledge(now, 0);
    }
    let left = pair.events().len() as u64;
    assert!(left < 3_000, "{left} events were kept");
    // The first was Connected.
    assert_eq!(left + pair.session.events_lost(), 3_001);
}

/// The terms of both kinds of comtrees: one where each receiver's copy is sealed, and one where
/// updates are sent in cleartext.
fn both_downlinks() -> [Terms; 2] {
    [TERMS, Terms { downlink: Downlink::None, ..TERMS }]
}

/// A packet of updates, as a relay sends them on a comtree with these terms.
fn of_the_relay(pair: &mut Pair, terms: &Terms, records: &[Record<'_>]) -> Vec<u8> {
    let write = |out: &mut [u8], session| {
        let mut writer = UpdatesWriter::new(out, SAFE_DATAGRAM)?;
        assert!(records.iter().all(|record| writer.push(record)));
        Ok(writer.finish(&Header::new(Kind::Updates, session, COMTREE)))
    };
    if terms.downlink == Downlink::Member {
        return pair.seal(|out| write(out, SessionId::NONE));
    }
    let mut out = vec![0; 1500];
    let len = write(&mut out, SessionId::NONE);
    out.truncate(len.unwrap_or_else(|error: WireError| panic!("{error}")));
    out
}

/// The relay may still send to an ip:port what is for the participant that had it before.
#[test]
fn a_unicast_to_another_address_is_not_delivered() {
    for terms in both_downlinks() {
        let (mut pair, now) = Pair::connected_on(terms);
        let ours = pair.session.address();
        let other = Address::unicast(1, ours.endpoint() + 1);
        let src = Address::unicast(1, 9);
        let records = [other, ours, Group::new(7).address()]
            .map(|dst| Record { src, ..Record::new(dst, 3, b"hello") });
        let mut datagram = of_the_relay(&mut pair, &terms, &records);
        let mut delivered = Vec::new();
        let deliver = |update: canopy_session::Update<'_>| {
            assert_eq!((update.src, update.series), (src, 3));
            delivered.push(update.dst);
        };
        pair.session.handle_datagram(now, &mut datagram, deliver).unwrap();
        assert_eq!(delivered, [ours, Group::new(7).address()]);
    }
}

/// A relay may send one burst to many: what is the receiver's own in it is filler, or an echo.
#[test]
fn filler_and_echoes_of_its_own_are_not_delivered() {
    for terms in both_downlinks() {
        let (mut pair, now) = Pair::connected_on(terms);
        let (own, other) = (pair.session.address(), Address::unicast(1, 9));
        let group = Group::new(7).address();
        let sources = [
            (own, Flags::FILLER, 5),
            (own, Flags(0), 6),
            (own, Flags::ECHO, 7),
            (other, Flags(0), 8),
        ];
        let records = sources.map(|(src, flags, series)| Record {
            src,
            flags,
            ..Record::new(group, series, b"x")
        });
        let mut datagram = of_the_relay(&mut pair, &terms, &records);
        let mut delivered = Vec::new();
        let deliver =
            |update: canopy_session::Update<'_>| delivered.push((update.src, update.series));
        pair.session.handle_datagram(now, &mut datagram, deliver).unwrap();
        assert_eq!((delivered, pair.session.echoes()), (vec![(own, 7), (other, 8)], 1));
    }
}

/// Where copies are sealed, what is not was not sent by the relay.
#[test]
fn updates_in_cleartext_are_taken_only_where_the_relay_said_so() {
    for terms in both_downlinks() {
        let (mut pair, now) = Pair::connected_on(terms);
        let record =
            Record { src: Address::unicast(1, 9), ..Record::new(Group::new(7).address(), 0, b"x") };
        let clear = Terms { downlink: Downlink::None, ..TERMS };
        for session in [SessionId::NONE, ID] {
            let mut datagram = of_the_relay(&mut pair, &clear, &[record]);
            datagram[1..4].copy_from_slice(&session.number().to_be_bytes()[1..]);
            let mut delivered = 0;
            let heard = pair.session.handle_datagram(now, &mut datagram, |_| delivered += 1);
            if terms.downlink == Downlink::None {
                assert_eq!((heard, delivered), (Ok(()), 1));
            } else {
                assert_eq!((heard, delivered), (Err(WireError::Field("seal")), 0));
            }
        }
        // They are no sign of life: anyone can write them.
        let start = now;
        let mut now = now;
        while pair.session.state() == State::Connected {
            now = now + Duration::from_millis(100);
            let mut datagram = of_the_relay(&mut pair, &clear, &[record]);
            let _ = pair.hear(now, &mut datagram);
            pair.sent(now);
            assert!(now.since(start) < KEEPALIVE * 5, "they keep it alive");
        }
    }
}
