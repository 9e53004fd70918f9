//! A participant that could go to another relay notices soon that its own says nothing any more, and not where some
//! of it is lost.

use crate::support::{COMTREE, ID, KEEPALIVE, Pair, TERMS, config, packet};
use canopy_session::{SessionConfig, State};
use canopy_wire::{Keepalive, Kind, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// Numbers by chance, by a seed (xorshift).
struct Chance(u64);

impl Chance {
    fn is_one_of(&mut self, hundred: u64) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % 100 < hundred
    }
}

fn answer(now: Time, pair: &mut Pair) {
    let ack = Keepalive { stamp: now.as_nanos(), path_stamp: 1 };
    pair.say(now, |out| ack.encode_ack(COMTREE, ID, out));
}

fn watching(seed: u8, round_trip: Duration) -> (Pair, Time) {
    let config = SessionConfig { watches: true, seed: [seed; 16], ..config() };
    let (mut pair, began) = (Pair::new(config), Time::from_millis(1));
    let connect = pair.greet(began);
    let knock = pair.knock(began, &connect).unwrap();
    let (now, mut welcome) = (began + round_trip, pair.let_in(began, knock, &TERMS));
    pair.session.handle_datagram(now, &mut welcome, |_| ()).unwrap();
    (pair, now)
}

/// What became of an idle session.
#[derive(Debug, Default)]
struct Idle {
    /// How often its relay was taken for silent.
    silences: u32,
    keepalives: u32,
    is_lost: bool,
}

/// Does nothing for some time over a path of so long a round trip, which loses so many of a hundred packets
/// each way.
fn idle(seed: u8, round_trip: Duration, loses: u64, most: Duration) -> Idle {
    let (mut pair, mut now) = watching(seed, round_trip);
    let (end, mut chance, mut told) = (now + most, Chance(u64::from(seed) | 1), Idle::default());
    let mut answers: VecDeque<(Time, Keepalive)> = VecDeque::new();
    while now < end {
        if answers.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, keepalive)) = answers.pop_front()
        {
            pair.say(now, |out| keepalive.encode_ack(COMTREE, ID, out));
        }
        let was_silent = pair.session.is_silent();
        for datagram in pair.packets(now) {
            let packet = packet(&datagram);
            if packet.header().kind != Kind::Keepalive {
                continue;
            }
            told.keepalives += 1;
            if !chance.is_one_of(loses) && !chance.is_one_of(loses) {
                answers.push_back((now + round_trip, Keepalive::decode(&packet).unwrap()));
            }
        }
        told.silences += u32::from(pair.session.is_silent() && !was_silent);
        if pair.session.state() != State::Connected {
            told.is_lost = true;
            break;
        }
        let answered = answers.front().map(|(at, _)| *at);
        now = answered.into_iter().chain(pair.session.poll_timeout()).min().unwrap().max(now);
    }
    told
}

#[test]
fn a_relay_that_vanishes_is_silent_after_a_second_and_not_all_notice_at_once() {
    let mut noticed = Vec::new();
    for seed in 1..=40 {
        let (mut pair, began) = watching(seed, Duration::ZERO);
        // Until then it answers.
        let vanishes = began + Duration::from_millis(730);
        let (mut now, mut last, mut sent) = (began, began, 0);
        while !pair.session.is_silent() {
            now = pair.session.poll_timeout().unwrap().max(now);
            sent += pair.sent(now).len();
            if now <= vanishes {
                answer(now, &mut pair);
                last = now;
            }
            assert!(now.since(last) < KEEPALIVE, "seed {seed}: not noticed");
        }
        assert!(sent <= 7, "{sent} packets");
        noticed.push(now.since(last).as_millis());
        // It stays, and the relay may say something again.
        assert_eq!(pair.session.state(), State::Connected);
        answer(now, &mut pair);
        assert!(!pair.session.is_silent());
    }
    noticed.sort_unstable();
    let (first, last) = (noticed[0], noticed[noticed.len() - 1]);
    assert!(first >= 900 && last <= 1_200 && last - first >= 150, "{noticed:?}");
}

#[test]
fn a_path_that_loses_a_twentieth_is_hardly_ever_taken_for_a_silent_relay() {
    let (mut told, most) = (Idle::default(), Duration::from_secs(1_200));
    for (seed, round_trip_ms) in [(1, 1), (2, 20), (3, 80), (4, 300), (5, 700)] {
        let Idle { silences, keepalives, is_lost } =
            idle(seed, Duration::from_millis(round_trip_ms), 5, most);
        assert!(!is_lost, "{round_trip_ms} ms");
        told.silences += silences;
        told.keepalives += keepalives;
    }
    // In 100 minutes: two keepalives a second and what is repeated, and hardly a question to the controller.
    assert!(told.silences <= 5, "{told:?}");
    assert!(told.keepalives < 5 * 1_200 * 5 / 2, "{told:?}");
    // Where two of three answers lack, the relay is taken for silent all the time.
    assert!(idle(6, Duration::from_millis(20), 40, most).silences > 100);
}

#[test]
fn who_has_nowhere_else_to_go_asks_for_no_sign_of_life() {
    let (mut pair, began) = Pair::connected();
    assert_eq!(pair.session.poll_timeout(), Some(began + KEEPALIVE));
    for keepalives in 1..=3 {
        assert_eq!(pair.sent(began + KEEPALIVE * keepalives).len(), 1);
    }
    assert!(!pair.session.is_silent());
}
