//! What limited receivers get where the table of pairs is full: its room is shared by comtree, and flows without a
//! pair go on without a credit.

use crate::support::thinning::{Say, Stage};
use crate::support::{DOWNLINKS, OTHER_COMTREE, PERIODIC, config, with_downlink};
use canopy_relay::{Mode, RelayConfig};
use canopy_wire::{Downlink, Time, Weight};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

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
