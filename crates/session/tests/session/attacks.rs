//! What somebody on the way between a participant and its relay can do to a handshake, and what it
//! can do with what it has seen of a session: each test is named after its attack.

use crate::support::{
    COMTREE, ID, JOIN, KEEPALIVE, NO_COOKIE, Pair, TERMS, at, config, connect_with, cookie_for,
    first_message, kind_of, nonce_of, packet, prologue,
};
use canopy_session::{Answer, Identity, Keyring, Session, SessionConfig, State, Terms};
use canopy_wire::{
    Challenge, Connect, Cookie, DropReason, Flags, Group, HEADER_LEN, Join, Keepalive, Kind, Level,
    MAX_DATAGRAM, MAX_JOIN_LEN, MAX_TOKEN_LEN, Packet, Refused, RefusedReason, SAFE_DATAGRAM,
    Sealed, Suite, Time, VERSION, WireError,
};
use std::time::Duration;

const NOW: Time = Time::from_millis(1);

/// All datagrams of a handshake, in their order: hello, cookie, connect, connected.
fn handshake(pair: &mut Pair, now: Time) -> [Vec<u8>; 4] {
    let hello = pair.sent(now).remove(0);
    let cookie = answer_to(pair, now, &hello);
    pair.hear(now, &mut cookie.clone()).unwrap();
    let connect = pair.sent(now).remove(0);
    let knock = pair.knock(now, &connect).unwrap();
    let connected = pair.let_in(now, knock, &TERMS);
    [hello, cookie, connect, connected]
}

/// The relay's answer to a hello.
fn answer_to(pair: &Pair, now: Time, hello: &[u8]) -> Vec<u8> {
    let mut answer = Answer::new();
    pair.relay.hello(now, at(1), &packet(hello), &mut answer).unwrap();
    answer.bytes().to_vec()
}

/// Both sides have the same keys: what one seals the other opens.
fn assert_they_understand_each_other(pair: &mut Pair, now: Time) {
    assert_eq!(pair.session.state(), State::Connected);
    pair.acknowledge(now, 1);
    let mut out = [0; 100];
    let dst = Group::new(7).address();
    let len = pair.session.publish(dst, Level(0), Flags(0), b"x", &mut out).unwrap();
    let id = pair.session.id();
    let opened = pair.relay.unseal(at(1), id, &mut out[..len]).unwrap();
    assert_eq!(kind_of(opened), Kind::Updates);
}

/// The bytes of a handshake's headers that say nothing, and so are bound to nothing: the session or
/// what stands for it, the number, hop limit, records and comtree.
fn says_something(at: usize) -> bool {
    at >= HEADER_LEN || matches!(at, 0 | 8 | 11)
}

#[test]
fn truncated_hellos_and_connects_open_nothing() {
    let mut pair = Pair::new(config());
    let [hello, _, connect, _] = handshake(&mut Pair::new(config()), NOW);
    for len in 0..hello.len() {
        let mut answer = Answer::new();
        let said = Packet::new_checked(&hello[..len]).map_err(DropReason::from);
        let result = said.and_then(|hello| pair.relay.hello(NOW, at(1), &hello, &mut answer));
        assert!(result.is_err() && answer.bytes().is_empty(), "{len} bytes");
    }
    for len in 0..connect.len() {
        assert!(pair.knock(NOW, &connect[..len]).is_err(), "{len} bytes");
    }
    // Nor do bytes behind it belong to it.
    for more in [&[0][..], &[0; 16], &[0xff; 64]] {
        let longer = [&connect[..], more].concat();
        assert!(pair.knock(NOW, &longer).is_err(), "{} bytes more", more.len());
    }
    assert!(pair.knock(NOW, &connect).is_ok());
    assert_eq!(pair.relay.live(), 0);
}

#[test]
fn truncated_cookies_refusals_and_welcomes_are_waited_for_in_whole() {
    let mut pair = Pair::new(config());
    let hello = pair.sent(NOW).remove(0);
    let (nonce, mut refused) = (nonce_of(&hello), [0; 100]);
    let refusal = Refused { nonce, reason: RefusedReason::Full };
    for len in 0..refusal.encode(COMTREE, &mut refused).unwrap() {
        assert!(pair.hear(NOW, &mut refused[..len]).is_err(), "{len} bytes");
    }
    let mut cookie = answer_to(&pair, NOW, &hello);
    for len in 0..cookie.len() {
        assert!(pair.hear(NOW, &mut cookie.clone()[..len]).is_err(), "{len} bytes");
        assert_eq!(pair.session.state(), State::Greeting, "{len} bytes");
    }
    pair.hear(NOW, &mut cookie).unwrap();
    let connect = pair.sent(NOW).remove(0);
    let knock = pair.knock(NOW, &connect).unwrap();
    let mut connected = pair.let_in(NOW, knock, &TERMS);
    for len in 0..connected.len() {
        assert!(pair.hear(NOW, &mut connected.clone()[..len]).is_err(), "{len} bytes");
        assert_eq!(pair.session.state(), State::Connecting, "{len} bytes");
    }
    assert!(pair.hear(NOW, &mut [&connected[..], &[0]].concat()).is_err());
    pair.hear(NOW, &mut connected).unwrap();
    assert_they_understand_each_other(&mut pair, NOW);
}

#[test]
fn an_altered_connect_opens_nothing() {
    let len = Pair::new(config()).greet(NOW).len();
    for (at, bit) in (0..len).flat_map(|at| [0x01, 0x80, 0x04].map(|bit| (at, bit))) {
        let mut pair = Pair::new(config());
        let mut connect = pair.greet(NOW);
        connect[at] ^= bit;
        let knock = pair.knock(NOW, &connect);
        assert_eq!(knock.is_err(), says_something(at), "bit {bit:#x} of byte {at}");
        let Ok(knock) = knock else { continue };
        let mut welcome = pair.let_in(NOW, knock, &TERMS);
        pair.hear(NOW, &mut welcome).unwrap();
        assert_they_understand_each_other(&mut pair, NOW);
    }
}

#[test]
fn an_altered_welcome_is_not_believed() {
    for bit in [0x01, 0x80, 0x04] {
        let mut pair = Pair::new(config());
        let connect = pair.greet(NOW);
        let knock = pair.knock(NOW, &connect).unwrap();
        let welcome = pair.let_in(NOW, knock, &TERMS);
        for at in (0..welcome.len()).filter(|at| says_something(*at)) {
            let mut altered = welcome.clone();
            altered[at] ^= bit;
            // If its kind or its nonce is another, it is of no concern; otherwise it is forged.
            let is_of_no_concern = (8..HEADER_LEN + 8).contains(&at);
            let heard = pair.hear(NOW, &mut altered);
            assert!(heard.is_err() || is_of_no_concern, "bit {bit:#x} of byte {at}");
            assert_eq!(pair.session.state(), State::Connecting, "bit {bit:#x} of byte {at}");
            assert!(pair.events().is_empty());
        }
        // The rest says nothing.
        let mut altered = welcome;
        (0..HEADER_LEN).filter(|at| !says_something(*at)).for_each(|at| altered[at] ^= bit);
        pair.hear(NOW, &mut altered).unwrap();
        assert_they_understand_each_other(&mut pair, NOW);
    }
}

/// All orders of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let shorter = if count == 1 { vec![Vec::new()] } else { orders(count - 1) };
    let with_last = |order: Vec<usize>| {
        (0..count).map(move |place| {
            let mut order = order.clone();
            order.insert(place, count - 1);
            order
        })
    };
    shorter.into_iter().flat_map(with_last).collect()
}

/// What the relay said in two handshakes before comes in any order, in each state of the third.
#[test]
fn reordered_answers_of_other_handshakes_change_nothing() {
    assert_eq!(orders(4).len(), 24);
    for order in orders(4) {
        let (mut pair, mut now, mut late) = (Pair::new(config()), NOW, Vec::new());
        for _ in 0..2 {
            let [_, cookie, _, connected] = handshake(&mut pair, now);
            late.extend([cookie, connected]);
            // The welcome is lost, and so are those to its repetitions.
            while pair.session.state() != State::Greeting {
                now = pair.session.poll_timeout().unwrap();
                if pair.sent(now).first().is_some_and(|sent| kind_of(sent) == Kind::Hello) {
                    break;
                }
            }
            now = pair.session.poll_timeout().unwrap();
        }
        let all_come = |pair: &mut Pair, state| {
            for number in &order {
                let _ = pair.hear(now, &mut late[*number].clone());
                assert_eq!(pair.session.state(), state, "{order:?}");
            }
        };
        all_come(&mut pair, State::Greeting);
        let hello = pair.sent(now).remove(0);
        all_come(&mut pair, State::Greeting);
        let cookie = answer_to(&pair, now, &hello);
        pair.hear(now, &mut cookie.clone()).unwrap();
        all_come(&mut pair, State::Connecting);
        let connect = pair.sent(now).remove(0);
        all_come(&mut pair, State::Connecting);
        let knock = pair.knock(now, &connect).unwrap();
        let welcome = pair.let_in(now, knock, &TERMS);
        pair.hear(now, &mut cookie.clone()).unwrap();
        pair.hear(now, &mut welcome.clone()).unwrap();
        all_come(&mut pair, State::Connected);
        pair.hear(now, &mut cookie.clone()).unwrap();
        pair.hear(now, &mut welcome.clone()).unwrap();
        assert_they_understand_each_other(&mut pair, now);
    }
}

/// A welcome before its connect, or a connect before its cookie.
#[test]
fn a_handshake_cannot_begin_in_its_middle() {
    let [hello, _, connect, mut connected] = handshake(&mut Pair::new(config()), NOW);
    let mut pair = Pair::new(config());
    assert_eq!(pair.sent(NOW), [hello], "of one seed they greet alike");
    pair.hear(NOW, &mut connected).unwrap();
    assert_eq!(pair.session.state(), State::Greeting);
    let mut out = [0; MAX_DATAGRAM];
    let message = &connect[Connect::MESSAGE_AT..];
    let early = Connect { nonce: nonce_of(&connect), cookie: NO_COOKIE, message };
    let len = early.encode(&mut out).unwrap();
    assert_eq!(pair.knock(NOW, &out[..len]).err(), Some(DropReason::BadCookie));
}

/// Reads a connect with this message, for a cookie that the relay gave.
fn knock_with(pair: &mut Pair, cookie: &Cookie, message: &[u8]) -> Result<Vec<u8>, DropReason> {
    let Cookie { nonce, cookie, .. } = *cookie;
    let mut out = [0; MAX_DATAGRAM];
    let len = Connect { nonce, cookie, message }.encode(&mut out).unwrap();
    let knock = pair.knock(NOW, &out[..len])?;
    Ok(pair.let_in(NOW, knock, &TERMS))
}

#[test]
fn a_downgrade_to_another_version_is_noticed() {
    let mut pair = Pair::new(config());
    let cookie = cookie_for(&pair.relay, NOW, at(1), 7);
    let mut payload = [0; 100];
    let len = JOIN.encode(&mut payload).unwrap();
    let mut message_of = |version: u8| {
        let prologue = prologue(version, cookie.nonce, &cookie.cookie);
        first_message(&cookie.relay_key, &prologue, &payload[..len])
    };
    let messages: Vec<_> = (0..=u8::MAX).map(&mut message_of).collect();
    for (version, message) in messages.iter().enumerate() {
        let read = knock_with(&mut pair, &cookie, message);
        assert_eq!(read.is_ok(), version == usize::from(VERSION), "{version:#x}");
    }
}

/// The set of suites is in the sealed part of the first message, the choice in that of the second.
#[test]
fn a_downgrade_to_another_suite_is_noticed() {
    let (aes, chacha) = (Suite::Aes128Gcm, Suite::ChaCha20Poly1305);
    for suites in [aes.bit(), chacha.bit(), aes.bit() | chacha.bit()] {
        for suite in Suite::ALL {
            let mut pair = Pair::new(SessionConfig { suites, ..config() });
            let connect = pair.greet(NOW);
            let knock = pair.knock(NOW, &connect).unwrap();
            assert_eq!(knock.1.join().unwrap().suites, suites);
            let mut welcome = pair.let_in(NOW, knock, &Terms { suite: *suite, ..TERMS });
            let heard = pair.hear(NOW, &mut welcome);
            if suites & suite.bit() == 0 {
                assert_eq!(heard, Err(WireError::Field("suite")), "{suites} and {suite:?}");
                assert_eq!(pair.session.state(), State::Greeting);
            } else {
                assert_they_understand_each_other(&mut pair, NOW);
            }
        }
    }
}

/// Somebody sends what it has seen in a connect of its own.
#[test]
fn a_message_of_another_connect_is_not_read() {
    let mut pair = Pair::new(config());
    let connect = pair.greet(NOW);
    let seen = Connect::decode(&packet(&connect)).unwrap();
    let own = cookie_for(&pair.relay, NOW, at(1), 7);
    assert_eq!(knock_with(&mut pair, &own, seen.message), Err(DropReason::Forged));
    // Its own nonce, but a later cookie.
    let later = NOW + Duration::from_millis(1);
    let same_nonce = cookie_for(&pair.relay, later, at(1), seen.nonce);
    assert_eq!(knock_with(&mut pair, &same_nonce, seen.message), Err(DropReason::Forged));
    let right = Cookie { nonce: seen.nonce, cookie: seen.cookie, ..own };
    assert!(knock_with(&mut pair, &right, seen.message).is_ok());
}

/// Whoever stands between the two answers with a key of its own.
#[test]
fn who_stands_between_is_not_believed_to_be_the_relay() {
    let thief = Identity::new([66; 32]);
    let relay_key = Some(*Keyring::new([5; 16]).identity().public());
    for (relay_key, is_deceived) in [(relay_key, false), (None, true)] {
        let mut pair = Pair::new(SessionConfig { relay_key, ..config() });
        let hello = pair.sent(NOW).remove(0);
        let mut between = Pair::with(config(), Keyring::with_identity([66; 16], thief.clone()));
        let mut cookie = answer_to(&between, NOW, &hello);
        pair.hear(NOW, &mut cookie).unwrap();
        let connect = pair.sent(NOW).remove(0);
        let knock = between.knock(NOW, &connect);
        assert_eq!(knock.is_ok(), is_deceived, "only who knows no key can be deceived");
        let Ok(knock) = knock else { continue };
        assert_eq!(knock.1.participant().map(|key| key.len()), Some(32));
    }
}

#[test]
fn no_message_is_too_long_to_be_refused() {
    let mut pair = Pair::new(config());
    let cookie = cookie_for(&pair.relay, NOW, at(1), 7);
    let (prologue, room) =
        (prologue(VERSION, 7, &cookie.cookie), MAX_DATAGRAM - Connect::MESSAGE_AT);
    for len in 0..=room {
        assert!(knock_with(&mut pair, &cookie, &vec![9; len]).is_err(), "{len} bytes");
    }
    // Made with the right keys, but with more in it than a relay has room for.
    let longest = room - (32 + 48 + 16);
    for len in [0, 1, 13, MAX_JOIN_LEN + 1, longest] {
        let message = first_message(&cookie.relay_key, &prologue, &vec![0xff; len]);
        let read = pair.knock(NOW, &connect_of(&cookie, &message));
        assert!(read.is_err() || read.unwrap().1.join().is_err(), "{len} bytes");
    }
    let token = [7; MAX_TOKEN_LEN];
    let connect = connect_with(&cookie, &Join { token: &token, ..JOIN });
    assert!(connect.len() <= SAFE_DATAGRAM);
    assert_eq!(pair.knock(NOW, &connect).unwrap().1.join().unwrap().token, token);
}

fn connect_of(cookie: &Cookie, message: &[u8]) -> Vec<u8> {
    let (Cookie { nonce, cookie, .. }, mut out) = (*cookie, [0; MAX_DATAGRAM]);
    let len = Connect { nonce, cookie, message }.encode(&mut out).unwrap();
    out[..len].to_vec()
}

/// An update of the session's, as it is on the wire.
fn update(pair: &mut Pair, payload: &[u8]) -> Vec<u8> {
    let (mut out, dst) = ([0; 1500], Group::new(7).address());
    let len = pair.session.publish(dst, Level(0), Flags(0), payload, &mut out).unwrap();
    out[..len].to_vec()
}

fn unseal(pair: &mut Pair, port: u16, datagram: &[u8]) -> Result<(), DropReason> {
    let Sealed { session, .. } = Sealed::of(datagram).ok_or(DropReason::Malformed)?;
    pair.relay.unseal(at(port), session, &mut datagram.to_vec()).map(drop)
}

#[test]
fn replays_to_the_relay_are_dropped_within_the_window_and_beyond() {
    let (mut pair, _) = Pair::connected();
    let all: Vec<_> = (0..2_100).map(|_| update(&mut pair, b"x")).collect();
    let held_back = [1_000, 1_080, 2_000, 2_098];
    for (number, datagram) in
        all.iter().enumerate().filter(|(number, _)| !held_back.contains(number))
    {
        assert_eq!(unseal(&mut pair, 1, datagram), Ok(()), "{number}");
    }
    for (number, datagram) in all.iter().enumerate() {
        // What is late, but not too late to be told from a copy, is taken once.
        let expected = match number {
            2_000 | 2_098 | 1_080 => Ok(()),
            _ => Err(DropReason::Replayed),
        };
        assert_eq!(unseal(&mut pair, 1, datagram), expected, "{number}");
    }
    for port in [1, 2] {
        for (number, datagram) in all.iter().enumerate() {
            let again = unseal(&mut pair, port, datagram);
            assert_eq!(again, Err(DropReason::Replayed), "{number} from {port}");
        }
    }
}

#[test]
fn replays_to_the_participant_are_dropped_within_the_window_and_beyond() {
    let (mut pair, now) = Pair::connected();
    let keepalive = Keepalive { stamp: 1, path_stamp: 1 };
    let all: Vec<_> =
        (0..2_100).map(|_| pair.seal(|out| keepalive.encode_ack(COMTREE, ID, out))).collect();
    for is_new in [true, false] {
        for (number, datagram) in all.iter().enumerate().filter(|(number, _)| *number != 2_000) {
            let heard = pair.hear(now, &mut datagram.clone());
            assert_eq!(heard.is_ok(), is_new, "{number}");
        }
    }
    assert!(pair.hear(now, &mut all[2_000].clone()).is_ok(), "it was only late");
    assert!(pair.hear(now, &mut all[2_000].clone()).is_err());
}

/// The copy may be faster than the packet itself, and come from somewhere else.
#[test]
fn a_copy_from_elsewhere_does_not_make_the_packet_itself_a_replay() {
    let (mut pair, _) = Pair::connected();
    let datagram = update(&mut pair, b"x");
    assert_eq!(unseal(&mut pair, 2, &datagram), Ok(()));
    assert_eq!(unseal(&mut pair, 3, &datagram), Ok(()));
    assert_eq!(unseal(&mut pair, 1, &datagram), Ok(()));
    for port in [1, 2, 3] {
        assert_eq!(unseal(&mut pair, port, &datagram), Err(DropReason::Replayed));
    }
}

#[test]
fn no_altered_packet_is_taken_by_either_side() {
    let (mut pair, now) = Pair::connected();
    let up = update(&mut pair, b"payload");
    let down = pair.seal(|out| Keepalive { stamp: 1, path_stamp: 1 }.encode_ack(COMTREE, ID, out));
    for (at, bit) in (0..down.len().max(up.len())).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let altered = |datagram: &[u8]| {
            let mut altered = datagram.to_vec();
            altered.get_mut(at).map(|byte| *byte ^= 1 << bit).map(|()| altered)
        };
        if let Some(up) = altered(&up) {
            // What is not of the class of sealed packets does not come to be opened.
            assert!(at == 0 || unseal(&mut pair, 1, &up).is_err(), "bit {bit} of byte {at}");
        }
        if let Some(mut down) = altered(&down) {
            let mut delivered = 0;
            let _ = pair.session.handle_datagram(now, &mut down, |_| delivered += 1);
            assert_eq!(delivered, 0);
        }
    }
    for len in 0..up.len() {
        assert!(unseal(&mut pair, 1, &up[..len]).is_err(), "{len} bytes");
    }
    for len in 0..down.len() {
        assert!(pair.hear(now, &mut down[..len].to_vec()).is_err(), "{len} bytes");
    }
    assert_eq!(pair.session.round_trip(), None, "nothing was heard");
    assert_eq!(unseal(&mut pair, 1, &up), Ok(()));
    assert!(pair.hear(now, &mut down.clone()).is_ok());
    assert!(pair.session.round_trip().is_some());
}

/// Each side's key is its own: what one said cannot be said to it again.
#[test]
fn a_packet_reflected_to_its_sender_is_not_taken() {
    let (mut pair, now) = Pair::connected();
    for _ in 0..10 {
        let mut up = update(&mut pair, b"x");
        assert!(pair.hear(now, &mut up).is_err());
        let down = pair.seal(|out| Challenge { cookie: [1; 16] }.encode(COMTREE, ID, out));
        assert_eq!(unseal(&mut pair, 1, &down), Err(DropReason::Forged));
    }
}

/// The number in a sealed packet's header.
fn number_of(datagram: &[u8]) -> u32 {
    u32::from_be_bytes(datagram[4..8].try_into().unwrap())
}

/// The place, the number, the ip:port, even the participant's random numbers are the same.
#[test]
fn two_sessions_of_one_ip_port_share_neither_keys_nor_counters() {
    for has_same_seed in [true, false] {
        let mut pair = Pair::new(config());
        let (mut now, mut seen, mut sides) = (NOW, Vec::new(), Vec::new());
        for seed in [9, if has_same_seed { 9 } else { 10 }] {
            pair.session = Session::new(SessionConfig::new(COMTREE, [seed; 16]));
            pair.connect(now, TERMS);
            let up: Vec<_> = (0..3).map(|_| update(&mut pair, b"the same")).collect();
            let ack = Keepalive { stamp: 1, path_stamp: 1 };
            let down: Vec<_> =
                (0..3).map(|_| pair.seal(|out| ack.encode_ack(COMTREE, ID, out))).collect();
            for datagrams in [&up, &down] {
                let numbers: Vec<_> = datagrams.iter().map(|one| number_of(one)).collect();
                assert_eq!(numbers, [0, 1, 2], "it counts from the beginning");
            }
            sides.push((up, down));
            seen.push(pair.keys.take().unwrap());
            pair.keys = None;
            now = now + KEEPALIVE;
        }
        // Nothing of the first is readable with the second's keys, nor the other way round.
        for (of, by) in [(0, 1), (1, 0)] {
            for (number, datagram) in sides[of].0.iter().chain(&sides[of].1).enumerate() {
                let keys = &seen[by];
                assert!(keys.from_participant.peek(datagram).is_none(), "{number}");
                assert!(keys.from_relay.peek(datagram).is_none(), "{number}");
            }
        }
        let [(first_up, first_down), (second_up, second_down)] = &sides[..] else { panic!() };
        for (one, other) in first_up.iter().zip(second_up).chain(first_down.iter().zip(second_down))
        {
            assert_eq!(one[..8], other[..8], "the same, but for what is sealed");
            assert!(one[8..].windows(4).all(|four| !other.windows(4).any(|some| some == four)));
        }
        // And the second session takes none of the first's packets.
        for datagram in first_up {
            assert_eq!(unseal(&mut pair, 1, datagram), Err(DropReason::Forged));
        }
        for datagram in first_down {
            assert!(pair.hear(now, &mut datagram.clone()).is_err());
        }
        assert_eq!(unseal(&mut pair, 1, &second_up[0]), Ok(()));
        assert!(pair.hear(now, &mut second_down[0].clone()).is_ok());
    }
}
