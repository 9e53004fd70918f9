//! Who is thinned most: the list that a data thread keeps of its receivers.

use crate::support::thinning::{Say, Stage};
use crate::support::{COMTREE, PERIODIC, config, ip_port};
use canopy_relay::{Down, MAX_THINNED, Mode, PathShare, RelayConfig, ThinnedReceiver};
use canopy_wire::{Bound, DropReason, Weight};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(50);
/// Updates a second that everybody is to get.
const DEMAND: f64 = 160.0;
const PUBLISHERS: usize = 8;
const VIEWERS: usize = MAX_THINNED + 5;

fn talk(stage: &mut Stage, time: Duration) {
    let end = stage.world.now + time;
    while stage.world.now < end {
        for publisher in 0..PUBLISHERS {
            stage.say(publisher, Say::to(publisher as u32));
        }
        stage.pass(FRAME);
    }
}

/// Nobody's path is asked, so that budgets are those that are set.
fn without_paths(mode: Mode) -> RelayConfig {
    let mut config = config(mode);
    config.budgets.paths = PathShare::Off;
    config
}

/// Viewers by the updates a second that each may be sent.
fn stage(mode: Mode, budget_of: impl Fn(usize) -> u64) -> Stage {
    let mut stage = Stage::new(without_paths(mode), PUBLISHERS + VIEWERS);
    for viewer in 0..VIEWERS {
        for group in 0..PUBLISHERS {
            stage.want(PUBLISHERS + viewer, group as u32, 0, Weight::ONE);
        }
        stage.limit(PUBLISHERS + viewer, 0, budget_of(viewer));
    }
    stage.upkeep();
    stage
}

fn thinned(stage: &Stage) -> Vec<ThinnedReceiver> {
    stage.world.threads[0].thinned().to_vec()
}

#[test]
fn the_list_of_the_most_thinned_says_what_each_was_to_get_and_got() {
    for mode in [Mode::Immediate, PERIODIC] {
        // Everybody may be sent another part, the first the least, and the last ten everything.
        let budget_of = |viewer| if viewer < VIEWERS - 10 { 20 + 8 * viewer as u64 } else { 0 };
        let mut stage = stage(mode, budget_of);
        assert_eq!(thinned(&stage), []);
        talk(&mut stage, 5 * SECOND);
        let list = thinned(&stage);
        assert_eq!(list.len(), VIEWERS - 10, "{mode:?}: {list:?}");
        for (place, one) in list.iter().enumerate() {
            let viewer = PUBLISHERS + place;
            let (address, path) = (stage.world.address(viewer), ip_port(viewer).into());
            assert_eq!((one.comtree, one.address, one.path), (COMTREE, address, path), "{mode:?}");
            let budget = Down { bits: 0, updates: budget_of(place) };
            assert_eq!((one.budget, one.because), (budget, Some(Bound::Admitted)));
            let (demand, delivered) = (one.demand() as f64, one.delivered as f64);
            assert!((demand / DEMAND - 1.0).abs() < 0.1, "{mode:?}: {one:?}");
            assert!((delivered / budget.updates as f64 - 1.0).abs() < 0.15, "{mode:?}: {one:?}");
            assert_eq!(one.left_out.all(), one.left_out.thinned, "{one:?}");
        }
        // Whoever is limited no more is soon in the list no more, nor who has left.
        for viewer in 1..VIEWERS {
            stage.limit(PUBLISHERS + viewer, 0, 0);
        }
        stage.world.participants[PUBLISHERS].session.leave();
        talk(&mut stage, 3 * SECOND);
        assert_eq!(thinned(&stage), [], "{mode:?}");
    }
}

#[test]
fn the_list_of_the_most_thinned_has_twenty_at_most() {
    let mut stage = stage(PERIODIC, |viewer| 20 + 5 * viewer as u64);
    talk(&mut stage, 4 * SECOND);
    let addresses: Vec<_> = thinned(&stage).iter().map(|one| one.address).collect();
    let expected = (0..MAX_THINNED).map(|viewer| stage.world.address(PUBLISHERS + viewer));
    assert_eq!(addresses, expected.collect::<Vec<_>>());
}

/// When all have left at once, nobody is in the lists any more by the time when the relay has nothing to do.
#[test]
fn a_relay_that_falls_idle_forgets_who_was_thinned_and_who_sent_the_most() {
    for mode in [Mode::Immediate, PERIODIC] {
        let mut stage = stage(mode, |_| 20);
        talk(&mut stage, 3 * SECOND);
        assert!(!thinned(&stage).is_empty() && !stage.world.threads[0].talkers().is_empty());
        for number in 0..PUBLISHERS + VIEWERS {
            stage.world.participants[number].session.leave();
        }
        stage.pass(4 * SECOND);
        assert_eq!(stage.world.threads[0].poll_timeout(), None, "{mode:?}");
        assert_eq!((thinned(&stage), stage.world.threads[0].talkers()), (vec![], &[][..]));
    }
}

/// What is important waits in order, and is dropped only once it has waited for too long: by class and reason the
/// list says as much as the counters, as the member stays in its row. What was left out for one that has gone to another
/// row since is counted, and in no list.
#[test]
fn what_a_receiver_lacks_is_told_by_class_and_reason() {
    let mut stage = Stage::new(without_paths(PERIODIC), 2);
    stage.want(1, 0, 0, Weight::ONE);
    stage.limit(1, 0, 10);
    stage.upkeep();
    for frame in 1..=700 {
        stage.say(0, Say::to(0));
        stage.say(0, Say::to(0).important());
        stage.pass(FRAME);
        // What waits for ten seconds dies, and the backlog is as long after twenty.
        if frame > 500 && frame % 20 == 0 {
            let list = thinned(&stage);
            // 20 of each kind come in a second, and the 10 that go are important.
            let [one] = list[..] else { panic!("{list:?}") };
            let left_out = one.left_out;
            assert!(left_out.thinned.abs_diff(20) <= 2, "{list:?}");
            assert!(left_out.urgent_waited_too_long.abs_diff(10) <= 2, "{list:?}");
            assert_eq!((left_out.urgent_thinned, left_out.waited_too_long), (0, 0), "{list:?}");
        }
    }
    assert!(stage.world.dropped(DropReason::WaitedTooLong) > 100);
}
