//! What the controller is held to: in simulated networks, and whatever is reported.

use super::controller::{Controller, FIRST_RATE, LEAST_RATE, MOST_RATE, Seen};
use super::simulation::{Outcome, Scene, jains_index, run};
use super::{PathMarks, Paths};
use canopy_wire::Time;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use proptest::prelude::*;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// From when on a scene of a minute is judged, as a share of it and in tenths of a second.
const AFTER_5_S: (f64, usize) = (5.0 / 60.0, 50);
/// The relay sends at once, or at its tick.
const TICKS: [Duration; 2] = [Duration::ZERO, millis(50)];

/// What waits at the bottleneck for 95 % of the time at most, in milliseconds, and how much of it is used.
fn after_5_s(outcome: &Outcome) -> (f64, f64) {
    (outcome.standing_p95(AFTER_5_S.0), outcome.utilisation(AFTER_5_S.1..595))
}

#[test]
fn whoever_gets_a_port_has_another_path_than_whoever_had_it() {
    let mut paths = Paths::new(1, PathMarks::new(), 0);
    let mut now = Time::from_millis(1);
    for member in 0..2 {
        paths.open(0);
        paths.begin(0, IpAddr::V4(Ipv4Addr::LOCALHOST));
        for number in 1..=3 {
            assert!(paths.begin_round(now, false));
            let due = paths.next_of_round(now).flatten().expect("a probe is due");
            assert_eq!((due.port, due.number), (0, number), "member {member}");
            assert!(paths.next_of_round(now).is_none());
            paths.sent(0, 1, canopy_wire::Traffic { datagrams: 1, bytes: 100 });
            now = now + Duration::from_secs(2);
        }
        paths.close(0);
    }
}

#[test]
fn a_slow_path_never_stands_with_a_full_queue() {
    for tick in TICKS {
        for (round_trip, most) in [(5, 50.0), (40, 50.0), (100, 55.0), (200, 60.0)] {
            let scene = Scene { tick, round_trip: millis(round_trip), ..Scene::ONE };
            let (standing, used) = after_5_s(&run(scene, 1));
            let what = format!("{round_trip} ms, tick {tick:?}: {standing:.1} ms, {used:.3}");
            println!("1 Mbit/s, {what}");
            assert!(standing <= most && used >= 0.85, "{what}");
        }
    }
}

#[test]
fn it_holds_from_256_kbit_to_50_mbit_and_where_one_in_a_hundred_is_lost() {
    for (rate, most) in [(256_000, 60.0), (1_000_000, 50.0), (10_000_000, 50.0), (50_000_000, 50.0)]
    {
        for loss in [0, 10] {
            let scene = Scene { rates: [rate; 3], demand: 5 * rate, loss, ..Scene::ONE };
            let (standing, used) = after_5_s(&run(scene, 1));
            let what = format!("{rate}, loss {loss}: {standing:.1} ms, {used:.3}");
            println!("{what}");
            assert!(standing <= most && used >= 0.85, "{what}");
        }
    }
}

/// Reports come once a second there, and a datagram takes some 20 ms.
#[test]
fn at_64_kbit_a_queue_is_short_too() {
    for round_trip in [5, 40, 200] {
        let (rates, demand) = ([64_000; 3], 320_000);
        let scene = Scene { rates, demand, round_trip: millis(round_trip), ..Scene::ONE };
        let (standing, used) = after_5_s(&run(scene, 1));
        let what = format!("64000, {round_trip} ms: {standing:.1} ms, {used:.3}");
        println!("{what}");
        assert!(standing <= 90.0 && used >= 0.85, "{what}");
    }
}

#[test]
fn a_path_that_halves_or_doubles_is_followed_within_two_seconds() {
    const M: u64 = 1_000_000;
    for rates in [[M, M / 2, M], [M, 2 * M, M], [10 * M, 5 * M, 10 * M]] {
        for tick in TICKS {
            let demand = 5 * rates[0].max(rates[1]);
            let outcome = run(Scene { rates, demand, tick, ..Scene::ONE }, 1);
            let (standing, used) = after_5_s(&outcome);
            println!("{rates:?}, tick {tick:?}: {standing:.1} ms, {used:.3}");
            for change in [200, 400] {
                // From two seconds after it to five.
                let (begin, end) = (change + 20, change + 50);
                let used = outcome.utilisation(begin..end);
                let standing = outcome.standing_p95_between(begin, end);
                let what =
                    format!("{rates:?}, tick {tick:?}, at {change}: {standing:.1}, {used:.3}");
                assert!(standing <= 60.0 && used >= 0.85, "{what}");
            }
        }
    }
}

#[test]
fn a_path_that_was_nearly_cut_is_used_again_within_twenty_seconds() {
    const M: u64 = 1_000_000;
    for round_trip in [40, 200] {
        let (rates, demand) = ([M, M / 50, M], M / 2);
        let scene = Scene { rates, demand, round_trip: millis(round_trip), ..Scene::ONE };
        let limits = &run(scene, 1).limits[0];
        let (during, after) = (limits[395], limits[595]);
        let what = format!("{round_trip} ms: {during} bit/s, then {after} bit/s");
        assert!(during < M / 20 && (after == 0 || after >= demand), "{what}");
    }
}

#[test]
fn ten_receivers_share_a_bottleneck() {
    const M: u64 = 1_000_000;
    for tick in TICKS {
        for (rate, apart, demand) in
            [(10 * M, 0, 5 * M), (10 * M, 2000, 5 * M), (5 * M, 1000, 20 * M)]
        {
            let (apart, time) = (millis(apart), Duration::from_secs(90));
            let scene =
                Scene { receivers: 10, rates: [rate; 3], demand, apart, tick, time, ..Scene::ONE };
            let outcome = run(scene, 1);
            let (fair, standing) = (outcome.fairness(450), outcome.standing_p95(0.5));
            let used = outcome.utilisation(450..895);
            let what = format!(
                "{rate} apart {apart:?} tick {tick:?}: {fair:.3}, {standing:.1} ms, {used:.3}"
            );
            println!("{what}");
            assert!(fair >= 0.9 && standing <= 50.0, "{what}");
        }
    }
}

/// Jain's index over what the receivers got, what stands for 95 % of the time, and how much is used: of the second half of a
/// minute and a half.
fn second_half(scene: Scene, seed: u64) -> (f64, f64, f64) {
    let outcome = run(Scene { time: Duration::from_secs(90), ..scene }, seed);
    (outcome.fairness(450), outcome.standing_p95(0.5), outcome.utilisation(450..895))
}

/// Each is asked once a second only there. `PATH_SEEDS` says how many seeds are tried.
#[test]
#[allow(clippy::disallowed_methods, reason = "a test may be told to run more seeds")]
fn ten_receivers_at_100_kbit_each_share_a_bottleneck() {
    let seeds: u64 = std::env::var("PATH_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    for (receivers, rate) in [(5, 500_000), (10, 1_000_000), (20, 2_000_000)] {
        let mut all = Vec::new();
        let aparts = [0, 300, 800, 1100, 1500, 1900, 3000];
        for (tick, apart) in TICKS.map(|tick| aparts.map(|apart| (tick, apart))).concat() {
            for seed in 0..seeds {
                let jitter = [2, 0, 5][seed as usize % 3];
                let (rates, apart, jitter) = ([rate; 3], millis(apart), millis(jitter));
                let scene = Scene { receivers, rates, apart, tick, jitter, ..Scene::ONE };
                all.push(second_half(scene, seed));
            }
        }
        let count = all.len() as f64;
        let mean = |of: fn(&(f64, f64, f64)) -> f64| all.iter().map(of).sum::<f64>() / count;
        let (fair, standing, used) = (mean(|one| one.0), mean(|one| one.1), mean(|one| one.2));
        let least = all.iter().map(|one| one.0).fold(1.0, f64::min);
        let longest = all.iter().map(|one| one.1).fold(0.0, f64::max);
        let below = all.iter().filter(|one| one.0 < 0.9).count();
        let what = format!(
            "{receivers} on {rate}: index {fair:.3}, {below} of {count} below 0.9, least {least:.3}; \
             {standing:.0} ms, {longest:.0} at most; {used:.3}"
        );
        println!("{what}");
        assert!(fair >= 0.95 && least >= 0.85 && used >= 0.9, "{what}");
        assert!(receivers > 10 || longest < 120.0, "{what}");
    }
}

/// It may be of another household, behind one address of their provider.
#[test]
fn a_stranger_of_the_same_ip_takes_little_of_what_a_path_bears() {
    const M: u64 = 1_000_000;
    // How much may stand, in milliseconds, and how much is used at least.
    for (rate, stranger, most, least) in [
        (M, 50_000, 60.0, 0.85),
        (M, 2 * M, 60.0, 0.95),
        (M, 20 * M, 60.0, 0.95),
        (20 * M, M, 20.0, 0.95),
        (200_000, 20_000, 50.0, 0.65),
        (200_000, 400_000, 100.0, 0.9),
        (200_000, 5 * M, 100.0, 0.9),
        (64_000, 16_000, 120.0, 0.9),
        (64_000, 200_000, 140.0, 0.9),
        (64_000, 20 * M, 140.0, 0.9),
    ] {
        for tick in TICKS {
            let (rates, demand, stranger) = ([rate; 3], 5 * rate, Some(stranger));
            let scene = Scene { rates, demand, stranger, tick, ..Scene::ONE };
            let (standing, used) = after_5_s(&run(scene, 1));
            let what = format!("{rate}, {stranger:?}, tick {tick:?}: {standing:.1} ms, {used:.3}");
            println!("{what}");
            assert!(standing <= most && used >= least, "{what}");
        }
    }
}

#[test]
fn whoever_wants_little_gets_it_where_others_share_the_rest() {
    const M: u64 = 1_000_000;
    // Where only one is hungry, the index is 1.
    for (receivers, modest) in [(2, 1), (10, 9), (10, 8), (10, 5)] {
        for (tick, rate) in TICKS.map(|tick| [(tick, M), (tick, 10 * M)]).concat() {
            let (little, rates) = (rate / 50, [rate; 3]);
            let scene = Scene { receivers, rates, demand: 5 * rate, tick, ..Scene::ONE };
            let scene = Scene { modest: (modest, little), time: millis(90_000), ..scene };
            let outcome = run(scene, 1);
            let hungry = receivers - modest;
            let least = outcome.payloads[hungry..].iter().copied().fold(u64::MAX, u64::min);
            let part = (8 * least) as f64 / (90 * little) as f64;
            let fair = jains_index(&outcome.arrived[..hungry], 450);
            let (used, standing) = (outcome.utilisation(450..895), outcome.standing_p95(0.5));
            let what = format!(
                "{receivers} on {rate}, tick {tick:?}: {modest} get {part:.2} of what they want, the \
                 others have an index of {fair:.3}; {standing:.1} ms, {used:.3}"
            );
            println!("{what}");
            assert!(part >= 0.9 && fair >= 0.9 && used >= 0.85 && standing <= 80.0, "{what}");
        }
    }
}

/// Ten that share a path, and a stranger of the same ip.
#[test]
fn a_stranger_of_the_same_ip_leaves_shares_equal() {
    const M: u64 = 1_000_000;
    for (rate, stranger) in [(M, 20 * M), (M, 20_000), (10 * M, 100_000), (10 * M, 50 * M)] {
        for tick in TICKS {
            let (rates, demand, stranger) = ([rate; 3], 5 * rate, Some(stranger));
            let scene = Scene { receivers: 10, rates, demand, stranger, tick, ..Scene::ONE };
            let (fair, standing, used) = second_half(scene, 1);
            let what = format!(
                "{rate}, {stranger:?}, tick {tick:?}: {fair:.3}, {standing:.1} ms, {used:.3}"
            );
            println!("{what}");
            assert!(fair >= 0.9 && standing <= 130.0 && used >= 0.85, "{what}");
        }
    }
}

/// From two seconds after a path has halved or doubled on, for 17 seconds.
#[test]
fn receivers_that_share_a_path_follow_it_together() {
    const M: u64 = 1_000_000;
    for receivers in [2, 5] {
        for (rates, tick) in
            TICKS.map(|tick| [([M, M / 2, M], tick), ([10 * M, 5 * M, 10 * M], tick)]).concat()
        {
            let outcome =
                run(Scene { receivers, rates, demand: 5 * rates[0], tick, ..Scene::ONE }, 1);
            let fair = outcome.fairness(420);
            assert!(fair >= 0.9, "{receivers} on {rates:?}, tick {tick:?}: index {fair:.3}");
            for change in [200, 400] {
                let (begin, end) = (change + 20, change + 190);
                let (standing, used) =
                    (outcome.standing_p95_between(begin, end), outcome.utilisation(begin..end));
                let what = format!(
                    "{receivers} on {rates:?}, tick {tick:?}, at {change}: {standing:.1} ms, {used:.3}"
                );
                println!("{what}");
                let (most, least) = if rates[0] > M { (50.0, 0.95) } else { (130.0, 0.7) };
                assert!(standing <= most && used >= least, "{what}");
            }
        }
    }
}

/// A game looks at what has arrived once in each of its frames, and says so.
#[test]
fn a_game_that_looks_once_in_a_frame_gets_what_its_path_bears() {
    for (rate, frame, most) in
        [(1_000_000, 17, 50.0), (1_000_000, 33, 65.0), (10_000_000, 17, 50.0)]
    {
        for tick in TICKS {
            let frame = millis(frame);
            let scene = Scene { rates: [rate; 3], demand: 5 * rate, frame, tick, ..Scene::ONE };
            let (standing, used) = after_5_s(&run(scene, 1));
            let what = format!("{rate}, {frame:?}, tick {tick:?}: {standing:.1} ms, {used:.3}");
            println!("{what}");
            assert!(standing <= most && used >= 0.85, "{what}");
        }
    }
}

#[test]
fn late_arrivals_that_overtake_each_other_do_not_look_like_congestion() {
    let rates = [10_000_000; 3];
    let scene = Scene { rates, demand: 50_000_000, jitter: millis(10), ..Scene::ONE };
    let (standing, used) = after_5_s(&run(scene, 1));
    assert!(standing <= 50.0 && used >= 0.85, "{standing:.1} ms, {used:.3}");
}

#[test]
fn whoever_is_sent_less_than_its_path_bears_is_not_limited() {
    for demand in [300_000, 3_000_000, 30_000_000] {
        for (jitter, frame) in [(0, 0), (8, 0), (0, 17), (0, 33)] {
            let (jitter, frame) = (millis(jitter), millis(frame));
            let scene = Scene { rates: [100_000_000; 3], demand, jitter, frame, ..Scene::ONE };
            let outcome = run(scene, 1);
            let limits = &outcome.limits[0][30..];
            let limited = limits.iter().filter(|limit| (1..demand).contains(*limit)).count();
            assert!(limited <= 2, "{demand}, jitter {jitter:?}, frame {frame:?}: {limited}");
        }
    }
}

/// What is done in scenes of eight seeds, on average.
fn on_average(what: impl Fn(u64) -> f64) -> f64 {
    (1..=8).map(what).sum::<f64>() / 8.0
}

/// Radio does that to a path that bears far more than is sent.
#[test]
fn delays_that_differ_by_themselves_hardly_limit_anything() {
    for (round_trip, jitter) in
        [(40, 50), (100, 50), (100, 100), (100, 200), (800, 100), (800, 200)]
    {
        for demand in [50_000, 500_000, 2_000_000] {
            let (round_trip, jitter) = (millis(round_trip), millis(jitter));
            let scene = Scene { rates: [100_000_000; 3], demand, round_trip, jitter, ..Scene::ONE };
            let allowed = on_average(|seed| {
                let limits = &run(scene, seed).limits[0][50..];
                let share =
                    |limit: &u64| if *limit == 0 { 1.0 } else { *limit as f64 / demand as f64 };
                limits.iter().map(|limit| share(limit).min(1.0)).sum::<f64>() / limits.len() as f64
            });
            let what = format!("{round_trip:?}, jitter {jitter:?}, {demand}: {allowed:.2}");
            println!("{what}");
            assert!(allowed >= 0.8, "{what}");
        }
    }
}

/// A queue is not seen well there, but neither is the path left empty.
#[test]
fn a_bottleneck_where_delays_differ_has_a_queue_no_longer_than_they_do() {
    for (rate, jitter) in [(256_000, 50), (256_000, 100), (1_000_000, 50), (1_000_000, 100)] {
        for round_trip in [40, 200] {
            let (round_trip, most) = (millis(round_trip), 50.0 + jitter as f64);
            let (rates, demand, jitter) = ([rate; 3], 5 * rate, millis(jitter));
            let scene = Scene { rates, demand, round_trip, jitter, ..Scene::ONE };
            let standing = on_average(|seed| after_5_s(&run(scene, seed)).0);
            let used = on_average(|seed| after_5_s(&run(scene, seed)).1);
            let what =
                format!("{rate}, {round_trip:?}, jitter {jitter:?}: {standing:.0} ms, {used:.2}");
            println!("{what}");
            assert!(standing <= most && used >= 0.6, "{what}");
        }
    }
}

/// From two seconds after an outage on, a receiver is limited to less than it wants in so many tenths of a second of the
/// next six.
fn limited_after(scene: Scene, seed: u64) -> usize {
    let again = ((scene.outage.0 + scene.outage.1).as_millis() / 100) as usize;
    let limits = &run(scene, seed).limits[0][again + 20..again + 80];
    limits.iter().filter(|limit| **limit != 0 && **limit < scene.demand).count()
}

#[test]
fn a_path_that_was_away_bears_as_much_within_two_seconds() {
    const M: u64 = 1_000_000;
    for demand in [50_000, 100_000, M, 5 * M] {
        for (from, seconds) in [(20_000, 1), (20_000, 4), (20_000, 9), (300, 4)] {
            for tick in TICKS {
                let outage = (millis(from), millis(1000 * seconds));
                let scene = Scene { rates: [100 * M; 3], demand, outage, tick, ..Scene::ONE };
                let limited = limited_after(scene, 1);
                let what = format!("{demand}, from {from} for {seconds} s, {tick:?}: {limited}");
                println!("{what}");
                assert_eq!(limited, 0, "{what}");
            }
        }
    }
    let outage = (millis(20_000), millis(9_000));
    let jitter = millis(20);
    let scene = Scene { rates: [100 * M; 3], demand: M, outage, jitter, ..Scene::ONE };
    let limited: Vec<usize> = (0..20).map(|seed| limited_after(scene, seed)).collect();
    println!("jitter of 20 ms: {limited:?}");
    assert!(limited.iter().all(|tenths| *tenths <= 15), "{limited:?}");
}

/// It bears a fifth of what is wanted, and loses what comes in the outage, or holds some of it.
#[test]
fn a_slow_path_that_was_away_is_used_again_and_its_queue_stays_short() {
    const M: u64 = 1_000_000;
    for (holds, seconds, after) in [(false, 1, 20), (false, 4, 20), (false, 9, 20), (true, 4, 40)] {
        for tick in TICKS {
            let outage = (millis(20_000), millis(1000 * seconds));
            let outcome = run(Scene { outage, holds, tick, ..Scene::ONE }, 1);
            let begin = 200 + 10 * seconds as usize + after;
            let standing = outcome.standing_p95_between(begin, begin + 60);
            let used = outcome.utilisation(begin..begin + 60);
            let what = format!("holds {holds}, {seconds} s, {tick:?}: {standing:.1}, {used:.3}");
            println!("{what}");
            assert!(standing <= 60.0 && used >= 0.85, "{what}");
        }
    }
    // It comes back with half of it.
    let outage = (millis(20_000), millis(4_000));
    let outcome = run(Scene { rates: [M, M / 2, M], outage, ..Scene::ONE }, 1);
    let (standing, used) = (outcome.standing_p95_between(260, 390), outcome.utilisation(260..390));
    println!("back with half: {standing:.1}, {used:.3}");
    assert!(standing <= 60.0 && used >= 0.85, "{standing:.1}, {used:.3}");
}

/// The buffer then holds two seconds, so for as long no report comes of any probe that was sent since. Draining that
/// takes a few seconds more.
#[test]
fn a_path_that_falls_to_a_tenth_is_followed_though_its_queue_takes_seconds() {
    const M: u64 = 1_000_000;
    for (rates, most) in [([10 * M, M, 10 * M], 60.0), ([M, M / 10, M], 100.0)] {
        for tick in TICKS {
            let outcome = run(Scene { rates, demand: 5 * rates[0], tick, ..Scene::ONE }, 1);
            let (begin, end) = (300, 390);
            let standing = outcome.standing_p95_between(begin, end);
            let used = outcome.utilisation(begin..end);
            let what = format!("{rates:?}, tick {tick:?}: {standing:.1} ms, {used:.3}");
            println!("{what}");
            assert!(standing <= most && used >= 0.85, "{what}");
        }
    }
}

/// It is of UDP payload, as budgets are.
#[test]
fn probes_and_their_reports_are_a_percent() {
    for (rate, most) in [(10_000_000, 0.005), (1_000_000, 0.005), (64_000, 0.012), (16_000, 0.06)] {
        let scene = Scene { rates: [rate; 3], demand: 2 * rate, ..Scene::ONE };
        let Outcome { probe_share: probes, report_share: reports, .. } = run(scene, 1);
        let what = format!("{rate} bit/s: probes {probes:.4}, reports {reports:.4}");
        println!("{what}");
        assert!(probes.max(reports) <= most, "{what}");
    }
}

/// What may be reported.
fn reports() -> impl Strategy<Value = Seen> {
    let bits = prop_oneof![0..100_000_u64, any::<u64>()];
    let delay = prop_oneof![0..300_000_u32, any::<u32>()];
    let within = prop_oneof![20_000..1_200_000_u64, any::<u32>().prop_map(u64::from)];
    let mean = prop_oneof![Just(0.0), 16e3..1e7, Just(1e10)];
    let shared = proptest::option::of(mean);
    (delay, within, bits, 0..1000_u32, any::<u32>(), 0..2000_u64, shared).prop_map(
        |(one_way, within, bits, sent, missing, round_trip, shared)| Seen {
            now: Time::ZERO,
            round_trip: millis(round_trip),
            one_way,
            held: millis(round_trip / 40),
            within: Duration::from_micros(within),
            bits,
            sent,
            missing,
            shared,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default()
    })]

    #[test]
    fn a_rate_is_a_number_within_its_limits_whatever_is_reported(
        all in proptest::collection::vec((reports(), 0..3000_u64, any::<bool>()), 1..60),
    ) {
        let mut now = Time::from_millis(1);
        let mut controller = Controller::new(now, 0, 0);
        for (seen, after, starves) in all {
            now = now + millis(after);
            match starves {
                true => controller.starve(now, seen.bits),
                false => controller.report(&Seen { now, ..seen }),
            }
            prop_assert!((LEAST_RATE..=MOST_RATE).contains(&controller.rate()), "{controller:?}");
        }
    }

    /// The longer a queue, the lower the rate; and a long one never raises it.
    #[test]
    fn a_longer_queue_never_makes_a_rate_higher(
        before in 0..60_usize, bits in 10_000..2_000_000_u64, queue in 0..400_u32, more in 1..400_u32,
    ) {
        let mut now = Time::from_millis(1);
        let mut calm = Controller::new(now, 0, 0);
        let seen = |now, queue: u32| Seen {
            now,
            round_trip: millis(40),
            one_way: queue * 1000,
            held: Duration::ZERO,
            within: millis(100),
            bits,
            sent: 10,
            missing: 0,
            shared: None,
        };
        for _ in 0..before {
            now = now + millis(100);
            calm.report(&seen(now, 0));
        }
        let was = calm.rate();
        let mut congested = calm;
        for _ in 0..3 {
            now = now + millis(130);
            calm.report(&seen(now, queue));
            congested.report(&seen(now, queue + more));
        }
        prop_assert!(congested.rate() <= calm.rate().max(was));
        if queue > 100 {
            prop_assert!(calm.rate() <= was);
        }
    }
}

#[test]
fn silence_halves_down_to_the_least() {
    let mut controller = Controller::new(Time::ZERO, 0, 0);
    assert_eq!(controller.rate(), FIRST_RATE);
    controller.starve(Time::from_millis(500), 1_000_000);
    assert_eq!(controller.rate(), 500_000);
    for second in 1..20 {
        controller.starve(Time::from_millis(1000 * second), 1_000_000);
    }
    assert_eq!(controller.rate(), LEAST_RATE);
}
