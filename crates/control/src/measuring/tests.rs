use super::*;
use proptest::prelude::*;

const ME: RelayId = RelayId(1);

fn others(count: u16) -> Vec<Other> {
    let native = ([127, 0, 0, 1], 1).into();
    (2..2 + count).map(|of| Other { relay: RelayId(of), native }).collect()
}

fn reading(relay: RelayId, delay_us: u32, answered: u8) -> Reading {
    Reading { relay, delay_us, asked: 4, answered }
}

/// A round in which each answers after so long.
fn round(
    measuring: &mut Measuring,
    now: Time,
    count: u16,
    delay: impl Fn(RelayId) -> u32,
) -> usize {
    let Some(asked) = measuring.ask(now, 1, ME, || others(count)) else { return 0 };
    let readings = asked.others.iter().map(|of| reading(of.relay, delay(of.relay), 4));
    let told = Measured { controller: 1, round: asked.round, readings: readings.collect() };
    measuring.take(1, ME, told);
    asked.others.len()
}

#[test]
fn a_relay_is_asked_seldom_and_comes_round_to_everybody() {
    let mut measuring = Measuring::default();
    let mut now = Time::from_millis(1);
    for rounds in 1..=5_u64 {
        assert_eq!(round(&mut measuring, now, 100, |of| u32::from(of.0) * 100), MOST_MEASURED);
        assert_eq!(round(&mut measuring, now + EVERY / 2, 100, |_| 1), 0, "it is not due");
        now = now + EVERY * 2;
        let known = measuring.of[&ME].known.len();
        assert!(known >= 100.min(16 * rounds as usize), "{known} after {rounds}");
    }
    for _ in 0..4 {
        round(&mut measuring, now, 100, |of| u32::from(of.0) * 100);
        now = now + EVERY * 2;
    }
    let known = &measuring.of[&ME].known;
    assert_eq!(known.len(), 100, "all are known");
    let newest = measuring.of[&ME].round;
    let nearest = (2..10).all(|of| known[&RelayId(of)].round == newest);
    assert!(nearest, "the nearest are measured each time");
}

#[test]
fn what_is_known_is_bounded() {
    let mut measuring = Measuring::default();
    for rounds in 0..40_u64 {
        round(&mut measuring, Time::from_millis(rounds * 200_000), 1_000, |_| 100);
    }
    assert_eq!(measuring.of[&ME].known.len(), MOST_KNOWN);
}

#[test]
fn relays_near_a_near_one_are_measured_next() {
    let mut measuring = Measuring::default();
    let near = Known { delay: 100.0, round: 1, missed: 0 };
    let of = |known: &[u16]| Own {
        known: known.iter().map(|of| (RelayId(*of), near)).collect(),
        ..Own::default()
    };
    measuring.of.insert(ME, of(&[2]));
    measuring.of.insert(RelayId(2), of(&[700, 701, 800]));
    // One that says of itself that it is near, and that nobody else has found so.
    measuring.of.extend([700, 701].map(|near| (RelayId(near), of(&[2]))));
    let asked = measuring.ask(Time::ZERO, 1, ME, || others(1_000)).unwrap();
    let is_asked = |of| asked.others.iter().any(|other| other.relay == RelayId(of));
    assert!(is_asked(2) && is_asked(700) && is_asked(701));
}

#[test]
fn what_was_not_asked_or_cannot_be_counts_for_nothing() {
    let mut measuring = Measuring::default();
    measuring.take(1, ME, Measured { controller: 1, round: 1, readings: Vec::new() });
    let asked = measuring.ask(Time::ZERO, 1, ME, || others(3)).unwrap();
    let mut say = |controller, round, readings: &[Reading]| {
        measuring.take(1, ME, Measured { controller, round, readings: readings.to_vec() });
        measuring.ignored
    };
    let good = reading(RelayId(2), 5_000, 4);
    say(9, asked.round, &[good]);
    assert_eq!(say(1, asked.round + 1, &[good]).late, 3);
    let lies = [reading(RelayId(3), MOST_DELAY + 1, 4), reading(RelayId(4), 1, 5)];
    assert_eq!(say(1, asked.round, &lies).unbelievable, 2);
    let twice = [good, good, reading(RelayId(99), 1, 4), reading(ME, 1, 4)];
    assert_eq!(say(1, asked.round, &twice).unasked, 3);
    let known: Vec<_> =
        measuring.of[&ME].known.iter().map(|(of, known)| (of.0, known.delay)).collect();
    assert_eq!(known, [(2, 5_000.0)]);
}

#[test]
fn what_is_lost_makes_a_way_longer_and_silence_ends_it() {
    let mut measuring = Measuring::default();
    let near = Known { delay: 1.0, round: 1, missed: 0 };
    let own = Own { known: BTreeMap::from([(ME, near)]), ..Own::default() };
    measuring.of.insert(RelayId(2), own);
    let mut now = Time::from_millis(1);
    let mut say = |answered| {
        let asked = measuring.ask(now, 1, ME, || others(1)).unwrap();
        now = now + EVERY * 2;
        let readings = vec![reading(RelayId(2), 8_000, answered)];
        measuring.take(1, ME, Measured { controller: 1, round: asked.round, readings });
        (measuring.take_news(), measuring.between(RelayId(2), ME))
    };
    assert_eq!(say(0), (false, None));
    assert_eq!(say(4), (true, Some(8_000)));
    assert_eq!(say(4), (false, Some(8_000)));
    assert_eq!(say(2), (true, Some(12_000)), "half of it is lost");
    assert_eq!(say(0), (false, Some(12_000)), "once is an accident");
    assert_eq!(say(0), (true, None), "it is out of reach");
    assert_eq!(say(4), (true, Some(8_000)));
}

/// What a relay says that does not keep to anything.
fn word() -> impl Strategy<Value = Vec<Reading>> {
    let of = (0..12_u16, prop_oneof![0..3_u32, any::<u32>()], 0..=255_u8, 0..=255_u8);
    let reading = of.prop_map(|(relay, delay_us, asked, answered)| Reading {
        relay: RelayId(relay),
        delay_us,
        asked,
        answered,
    });
    proptest::collection::vec(reading, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a9),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The first of eight relays lies, in each of its rounds and between them.
    #[test]
    fn whoever_lies_looks_no_nearer_and_moves_no_others(
        words in proptest::collection::vec((word(), any::<bool>()), 1..8),
        delays in proptest::collection::vec(100..80_000_u32, 64),
    ) {
        let far = |one: RelayId, other: RelayId| {
            let (low, high) = (one.min(other).0, one.max(other).0);
            delays[usize::from(low * 8 + high) % delays.len()]
        };
        let mut measuring = Measuring::default();
        let native = ([127, 0, 0, 1], 1).into();
        let mut now = Time::from_millis(1);
        for (word, is_late) in words {
            for relay in (1..=8).map(RelayId) {
                let others = || {
                    let all = (1..=8).map(RelayId).filter(|of| *of != relay);
                    all.map(|relay| Other { relay, native }).collect()
                };
                let Some(asked) = measuring.ask(now, 1, relay, others) else { continue };
                let honest = asked.others.iter().map(|of| reading(of.relay, far(relay, of.relay), 4));
                let readings = if relay == ME { word.clone() } else { honest.collect() };
                let round = asked.round + u32::from(relay == ME && is_late);
                measuring.take(1, relay, Measured { controller: 1, round, readings });
            }
            now = now + EVERY * 2;
            let pairs = measuring.pairs();
            for one in (1..=8).map(RelayId) {
                for other in (one.0 + 1..=8).map(RelayId) {
                    let believed = pairs.get(&(one, other)).copied();
                    prop_assert_eq!(believed, measuring.between(other, one));
                    if one == ME {
                        prop_assert!(believed.is_none_or(|delay| delay >= far(one, other)));
                    } else {
                        prop_assert_eq!(believed, Some(far(one, other)));
                    }
                }
            }
        }
    }
}

#[test]
fn one_end_alone_makes_no_way_and_others_are_asked_soon() {
    let mut measuring = Measuring::default();
    let (you, now) = (RelayId(2), Time::from_millis(1));
    let native = ([127, 0, 0, 1], 1).into();
    let only = |relay| move || vec![Other { relay, native }];
    // The other is asked while nobody else is there.
    assert_eq!(measuring.ask(now, 1, you, Vec::new), None);
    let asked = measuring.ask(now, 1, ME, only(you)).unwrap();
    let readings = vec![reading(you, 1, 4)];
    measuring.take(1, ME, Measured { controller: 1, round: asked.round, readings });
    assert_eq!((measuring.pairs().len(), measuring.between(ME, you)), (0, None));
    assert_eq!(measuring.ask(now + SOON / 2, 1, you, only(ME)), None, "not at once");
    let asked = measuring.ask(now + SOON, 1, you, only(ME)).unwrap();
    let readings = vec![reading(ME, 7_000, 4)];
    measuring.take(1, you, Measured { controller: 1, round: asked.round, readings });
    assert_eq!(measuring.between(ME, you), Some(7_000));
    assert_eq!(measuring.ask(now + SOON * 3, 1, you, only(ME)), None, "nobody waits any more");
}

#[test]
fn whoever_waits_for_many_has_each_asked_for_few() {
    let mut measuring = Measuring::default();
    let now = Time::from_millis(1);
    measuring.ask(now, 1, RelayId(500), Vec::new);
    for number in 1..=100 {
        let native = ([127, 0, 0, 1], 1).into();
        let victim = Other { relay: RelayId(500), native };
        let asked = measuring.ask(now, 1, RelayId(number), || vec![victim]).unwrap();
        let readings = vec![reading(RelayId(500), 1, 4)];
        measuring.take(
            1,
            RelayId(number),
            Measured { controller: 1, round: asked.round, readings },
        );
    }
    let asked = measuring.ask(now + SOON, 1, RelayId(500), || others(400)).unwrap();
    assert_eq!(
        asked.others.len(),
        MOST_MEASURED - 1,
        "the first is not among those that are there"
    );
}
