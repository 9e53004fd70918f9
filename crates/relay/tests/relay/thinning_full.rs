//! What limited receivers get where the table of pairs is full: its room is shared by comtree, and flows without a
//! pair go on without a credit.

use crate::support::thinning::{Fluid, Say, Stage, fair, seconds};
use crate::support::{DOWNLINKS, OTHER_COMTREE, PERIODIC, config, with_downlink};
use canopy_relay::{Mode, RelayConfig};
use canopy_wire::{Downlink, DropReason, SAFE_DATAGRAM, Time, Weight};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
/// One update in two seconds.
const FLOOR: f64 = 0.5;
/// Shares are looked at over so many seconds.
const WINDOW: u32 = 10;

fn each_way(mut test: impl FnMut(Mode, Downlink)) {
    for mode in [Mode::Immediate, PERIODIC] {
        DOWNLINKS.iter().for_each(|downlink| test(mode, *downlink));
    }
}

fn stage((mode, downlink): (Mode, Downlink), pairs: u32, participants: usize) -> Stage {
    let mut config: RelayConfig = with_downlink(config(mode), downlink);
    config.tables.max_flow_pairs = pairs;
    Stage::new(config, participants)
}

/// Who says something to a group of its own, and how often a second.
type Publisher = (usize, u64);

/// Everybody of some crowds says what it is time for. Their times are spread, each by another part of its interval.
fn talk(stage: &mut Stage, crowds: &[&[Publisher]], time: Duration) {
    let end = stage.world.now + time;
    while stage.world.now < end {
        let at = stage.world.now.as_nanos();
        for (place, (publisher, hz)) in crowds.iter().flat_map(|crowd| crowd.iter().enumerate()) {
            // In whole numbers, so that none is said twice or left out.
            let beats = |at: u64| (at * hz + place as u64 * 370_000_000) / 1_000_000_000;
            if beats(at) > beats(at.saturating_sub(MILLI.as_nanos() as u64)) {
                stage.say(*publisher, Say::to(place as u32));
            }
        }
        stage.pass(MILLI);
    }
}

fn count(stage: &Stage, viewer: usize, publishers: &[Publisher], from: Time) -> Vec<f64> {
    let end = stage.world.now;
    let times = |(publisher, _): &Publisher| stage.times(viewer, *publisher, from, end).len();
    publishers.iter().map(times).map(|count| count as f64).collect()
}

/// The longest time in which a viewer got nothing of one of them, until now.
fn longest_gap(stage: &Stage, viewer: usize, publishers: &[Publisher], from: Time) -> f64 {
    let end = stage.world.now;
    let of_one = |(publisher, _): &Publisher| {
        let mut times = stage.times(viewer, *publisher, from, end);
        times.insert(0, seconds(from));
        times.push(seconds(end));
        times.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max)
    };
    publishers.iter().map(of_one).fold(0.0, f64::max)
}

/// A listener on one comtree wants more flows than there is room for. On the other one, everybody has a pair: what
/// it hears there is as fair as ever.
#[test]
fn a_comtree_that_fills_the_table_of_pairs_leaves_another_its_part() {
    each_way(|mode, downlink| {
        // Six are each comtree's own part.
        let mut stage = stage((mode, downlink), 24, 41);
        let flooding: Vec<Publisher> = (0..40).map(|number| (number, 10)).collect();
        let six: Vec<Publisher> =
            (0..6).map(|_| (stage.world.add_participant(0, OTHER_COMTREE), 10)).collect();
        let listener = stage.world.add_participant(0, OTHER_COMTREE);
        for (viewer, groups) in [(40, 40), (listener, 6)] {
            (0..groups).for_each(|group| stage.want(viewer, group, 0, Weight::ONE));
        }
        stage.limit(40, 0, 30);
        stage.upkeep();
        talk(&mut stage, &[&flooding], 2 * SECOND);
        stage.limit(listener, 0, 5);
        talk(&mut stage, &[&flooding, &six], 5 * SECOND);
        let from = stage.world.now;
        talk(&mut stage, &[&flooding, &six], 13 * SECOND);
        let counts = count(&stage, listener, &six, from);
        let fair = counts.iter().sum::<f64>() / 6.0;
        let off = counts.iter().map(|count| (count - fair).abs()).fold(0.0, f64::max);
        assert!(off <= 1.5 && fair > 10.0, "{counts:?} {mode:?} {downlink:?}");
        assert!(stage.world.sum(|counters| counters.updates_without_credit) > 1_000);
        stage.check_order();
    });
}

/// Viewers for whom there is room for a few pairs, or for one: all others' flows go without a credit.
#[test]
fn flows_without_a_credit_get_what_is_fair_within_a_few_updates() {
    each_way(|mode, downlink| {
        for pairs in [1, 20] {
            let publishers: Vec<Publisher> =
                (0..40).map(|number| (number, if number % 4 == 0 { 4 } else { 16 })).collect();
            let weights: Vec<Weight> =
                (1..=40).map(|metres| Weight::nearest(1.0 / (metres * metres) as f32)).collect();
            let mut stage = stage((mode, downlink), pairs, 43);
            for viewer in 40..43 {
                for (group, weight) in weights.iter().enumerate() {
                    stage.want(viewer, group as u32, 0, *weight);
                }
            }
            let budgets = [(40, 200_000), (41, 100_000), (42, 50_000)];
            budgets.into_iter().for_each(|(viewer, bits)| stage.limit(viewer, bits, 0));
            stage.upkeep();
            talk(&mut stage, &[&publishers], 8 * SECOND);
            let from = stage.world.now;
            talk(&mut stage, &[&publishers], WINDOW * SECOND);
            for (viewer, bits) in budgets {
                let counts = count(&stage, viewer, &publishers, from);
                let hz_of = publishers.iter().map(|(_, hz)| *hz as f64);
                let flows: Vec<Fluid> = (weights.iter().zip(hz_of))
                    .map(|(weight, hz)| Fluid { weight: weight.value().into(), hz })
                    .collect();
                let fair = fair(&flows, FLOOR, counts.iter().sum::<f64>() / f64::from(WINDOW));
                let off = counts
                    .iter()
                    .zip(&fair)
                    .map(|(count, fair)| (count - fair * f64::from(WINDOW)).abs());
                let off = off.fold(0.0, f64::max);
                let gap = longest_gap(&stage, viewer, &publishers, from);
                let bytes = stage.bytes_between(viewer, from, stage.world.now);
                let used = bytes as f64 * 8.0 / bits as f64 / f64::from(WINDOW);
                let most = stage.most_bytes(viewer, from, Duration::from_millis(100)) as f64;
                let excess = (most - bits as f64 / 80.0).max(0.0);
                println!(
                    "{mode:?} {downlink:?} {pairs} pairs, {bits} bit/s: off by {off:.2}, a gap of {gap:.2} s, {used:.3} used, {excess:.0} too many bytes"
                );
                assert!(off <= 4.5, "{counts:?} {fair:?}");
                assert!(gap <= 2.25, "{gap}");
                assert!(used >= 0.95, "{used}");
                assert!(excess <= SAFE_DATAGRAM as f64 + 60.0, "{excess}");
            }
            stage.check_order();
        }
    });
}

/// Viewers with different budgets are told of a flush one after the other: of flows that say several things in one,
/// each of them gets the floor.
#[test]
fn flows_that_say_much_in_a_tick_keep_their_floor_without_a_credit_for_all_viewers() {
    each_way(|mode, downlink| {
        let publishers: Vec<Publisher> = (0..20).map(|number| (number, 60)).collect();
        let mut stage = stage((mode, downlink), 1, 23);
        let budgets = [(20, 60_000), (21, 50_000), (22, 40_000)];
        for (viewer, bits) in budgets {
            for group in 0..20 {
                // One takes all that the floors of the others leave.
                let weight = if group == 0 { 1.0 } else { 1e-6 };
                stage.want(viewer, group, 0, Weight::nearest(weight));
            }
            stage.limit(viewer, bits, 0);
        }
        stage.upkeep();
        talk(&mut stage, &[&publishers], 8 * SECOND);
        let from = stage.world.now;
        talk(&mut stage, &[&publishers], WINDOW * SECOND);
        for (viewer, bits) in budgets {
            let gap = longest_gap(&stage, viewer, &publishers, from);
            println!("{mode:?} {downlink:?} {bits} bit/s: a gap of {gap:.2} s");
            assert!(gap <= 2.25, "{gap} {mode:?} {downlink:?} {bits}");
        }
        stage.check_order();
    });
}

/// A viewer that has filled the table, and for whom nothing comes any more, leaves its room to another.
#[test]
fn a_viewer_for_whom_all_fall_silent_leaves_the_table_to_others() {
    each_way(|mode, downlink| {
        // One comtree may take 42 of them.
        let mut stage = stage((mode, downlink), 56, 82);
        let first: Vec<Publisher> = (0..40).map(|number| (number, 10)).collect();
        let second: Vec<Publisher> =
            (0..80).map(|number| (number, if number < 40 { 0 } else { 10 })).collect();
        for (viewer, from) in [(80, 0), (81, 40)] {
            (from..from + 40).for_each(|group| stage.want(viewer, group, 0, Weight::ONE));
            stage.limit(viewer, 0, 100);
        }
        stage.upkeep();
        talk(&mut stage, &[&first], 3 * SECOND);
        stage.pass(4 * SECOND);
        talk(&mut stage, &[&second], 2 * SECOND);
        assert_eq!(stage.world.sum(|counters| counters.updates_without_credit), 0);
        assert!(stage.world.dropped(DropReason::Thinned) > 1_000);
    });
}
