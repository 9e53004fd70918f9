//! A limited receiver that changes what it wants joins those who want the same: what waits for it alone
//! reaches it still, or is counted.

use crate::support::{
    self,
    thinning::{Dice, Say, Stage},
};
use crate::support::{DOWNLINKS, PERIODIC, config, with_downlink};
use canopy_relay::Mode;
use canopy_wire::{Downlink, DropReason, Group, Level, Weight};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(50);
/// What everybody wants, and what one member wants besides, much more.
const SHARED: u32 = 7;
const DEARER: u32 = 8;
const DEAR: Weight = Weight(240);
/// Who publishes: these, and both members.
const PUBLISHERS: usize = 8;
const CHANGER: usize = 8;
const OTHER: usize = 9;
/// Who wants only what comes as a flood.
const FLOODED: usize = 10;
const FLOOD: u32 = 99;
/// Bits a second of each member.
const BUDGET: u64 = 30_000;

fn each_way(mut test: impl FnMut(Mode, Downlink)) {
    for mode in [Mode::Immediate, PERIODIC] {
        DOWNLINKS.iter().for_each(|downlink| test(mode, *downlink));
    }
}

fn left_out(stage: &Stage) -> u64 {
    stage.world.dropped(DropReason::Thinned) + stage.world.dropped(DropReason::WaitedTooLong)
}

/// Two members with equal budgets, of which one wants another group besides, and so is not sent all that the
/// other one has long got.
fn two_of_two_minds(mode: Mode, downlink: Downlink) -> Stage {
    let mut stage = Stage::new(with_downlink(config(mode), downlink), FLOODED + 1);
    for member in [CHANGER, OTHER] {
        stage.want(member, SHARED, 0, Weight::ONE);
        stage.limit(member, BUDGET, 0);
    }
    stage.want(CHANGER, DEARER, 0, DEAR);
    stage.upkeep();
    for frame in 0..80 {
        for publisher in 0..PUBLISHERS + 2 {
            if frame < 60 {
                stage.say(publisher, Say::to(SHARED));
            }
            stage.say(publisher % PUBLISHERS, Say::to(DEARER));
        }
        stage.pass(FRAME);
    }
    stage
}

/// The newest update of every flow to a group, by the number of its publisher, if it is not a receiver's own.
fn newest(stage: &Stage, group: u32, receiver: usize) -> Vec<usize> {
    let is_of = |number: &usize, publisher: usize| {
        let said = stage.said[*number];
        said.publisher == publisher && said.say.dst == support::group(group)
    };
    let publishers = (0..PUBLISHERS + 2).filter(|publisher| *publisher != receiver);
    let newest = publishers
        .map(|publisher| (0..stage.said.len()).rev().find(|number| is_of(number, publisher)));
    newest.flatten().collect()
}

/// The member stops wanting what the other does not want either, so it joins the other's row. Returns what
/// waits for it at that moment of what both want.
fn come_to_one_mind(stage: &mut Stage) -> Vec<usize> {
    let got = stage.numbers(CHANGER);
    let waits: Vec<usize> =
        newest(stage, SHARED, CHANGER).into_iter().filter(|number| !got.contains(number)).collect();
    assert!(waits.len() >= 3, "{waits:?} wait for it");
    let of_other = newest(stage, SHARED, OTHER);
    assert!(of_other.iter().all(|number| stage.numbers(OTHER).contains(number)));
    stage.world.participants[CHANGER].session.unsubscribe(Group::new(DEARER));
    stage.upkeep();
    waits
}

/// Whether a receiver was to get an update: everything of the one group, and of the other what was said
/// before it stopped wanting it.
fn missed(stage: &Stage, before: usize) -> u64 {
    let mut missed = 0;
    for receiver in [CHANGER, OTHER] {
        let got = stage.numbers(receiver);
        for (number, said) in stage.said.iter().enumerate() {
            let is_shared = said.say.dst == support::group(SHARED);
            let is_wanted = is_shared || receiver == CHANGER && number < before;
            let is_due = said.publisher != receiver && is_wanted;
            missed += u64::from(is_due && !got.contains(&number));
        }
    }
    missed
}

#[test]
fn what_waits_for_whoever_joins_a_row_reaches_it_once_and_nobody_else() {
    each_way(|mode, downlink| {
        let mut stage = two_of_two_minds(mode, downlink);
        let before = (stage.said.len(), stage.numbers(OTHER), left_out(&stage));
        let waits = come_to_one_mind(&mut stage);
        stage.pass(10 * SECOND);
        for number in waits {
            let count = stage.numbers(CHANGER).iter().filter(|got| **got == number).count();
            assert_eq!(count, 1, "{number}, {mode:?} {downlink:?}");
        }
        assert_eq!(stage.numbers(OTHER), before.1, "{mode:?} {downlink:?}");
        stage.check_order();
        assert_eq!(left_out(&stage), missed(&stage, before.0), "{mode:?} {downlink:?}");
        assert_eq!(stage.world.relay().waiting_updates(), 0);
    });
}

/// What waits for both when one joins the other goes to both in its turn, and not to one of them alone later.
#[test]
fn what_waits_for_the_others_of_a_row_as_well_goes_with_theirs() {
    each_way(|mode, downlink| {
        let mut stage = Stage::new(with_downlink(config(mode), downlink), FLOODED);
        for member in [CHANGER, OTHER] {
            stage.want(member, SHARED, 0, Weight::ONE);
            stage.limit(member, BUDGET / 2, 0);
        }
        stage.want(CHANGER, DEARER, 0, DEAR);
        stage.upkeep();
        for _ in 0..60 {
            for publisher in 0..PUBLISHERS {
                stage.say(publisher, Say::to(SHARED));
            }
            stage.pass(FRAME);
        }
        stage.world.participants[CHANGER].session.unsubscribe(Group::new(DEARER));
        stage.upkeep();
        let got = [CHANGER, OTHER].map(|member| stage.numbers(member));
        let mut waits = newest(&stage, SHARED, CHANGER);
        waits.retain(|number| got.iter().all(|got| !got.contains(number)));
        stage.pass(10 * SECOND);
        let together = waits.iter().filter(|number| {
            let at = [CHANGER, OTHER].map(|member| {
                let all = stage.got[member].iter().filter(|got| got.number == **number);
                all.map(|got| got.at).collect::<Vec<_>>()
            });
            assert_eq!(at.each_ref().map(Vec::len), [1, 1], "{mode:?} {downlink:?}");
            at[0] == at[1]
        });
        // Some may have gone in the turn in which it joined, before it did.
        let (together, all) = (together.count(), waits.len());
        assert!(together >= 3, "{together} of {all}, {mode:?} {downlink:?}");
        stage.check_order();
    });
}

/// The flows go on, so that of each something newer takes the place of what waited.
#[test]
fn what_something_newer_comes_of_is_counted_and_never_sent() {
    each_way(|mode, downlink| {
        let mut stage = two_of_two_minds(mode, downlink);
        let before = stage.said.len();
        let waits = come_to_one_mind(&mut stage);
        let got = stage.got[CHANGER].len();
        for publisher in 0..PUBLISHERS + 2 {
            stage.say(publisher, Say::to(SHARED));
        }
        stage.pass(10 * SECOND);
        let newest = newest(&stage, SHARED, CHANGER);
        assert_eq!(newest.len(), PUBLISHERS + 1, "all but its own");
        let mut since = stage.numbers(CHANGER).split_off(got);
        since.sort_unstable();
        assert_eq!(since, newest, "in place of {waits:?}, {mode:?} {downlink:?}");
        assert_eq!(left_out(&stage), missed(&stage, before), "{mode:?} {downlink:?}");
        assert_eq!(stage.world.relay().waiting_updates(), 0);
    });
}

/// Before it is its turn, more comes for another limited receiver than the relay keeps.
#[test]
fn what_is_kept_no_more_when_its_turn_comes_has_waited_too_long() {
    each_way(|mode, downlink| {
        let mut stage = two_of_two_minds(mode, downlink);
        stage.want(FLOODED, FLOOD, 0, Weight::ONE);
        stage.limit(FLOODED, BUDGET, 0);
        stage.upkeep();
        let before = stage.world.dropped(DropReason::WaitedTooLong);
        let waits = come_to_one_mind(&mut stage);
        for _ in 0..80 {
            for _ in 0..75 {
                stage.say(0, Say { len: 1_000, ..Say::to(FLOOD) });
            }
            stage.pass(Duration::from_millis(5));
        }
        stage.pass(10 * SECOND);
        let got = stage.numbers(CHANGER);
        assert!(waits.iter().all(|number| !got.contains(number)), "{mode:?} {downlink:?}");
        let lost = stage.world.dropped(DropReason::WaitedTooLong) - before;
        assert_eq!(lost, waits.len() as u64, "{mode:?} {downlink:?}");
    });
}

/// Members come to one mind and part again, whatever waits for them, and their budgets change. In the end
/// each has the newest of what all want, nothing came twice, and all else is counted.
fn change_minds(mode: Mode, downlink: Downlink, seed: u64) {
    const MEMBERS: usize = 6;
    const BESIDES: [Option<u32>; 3] = [None, Some(DEARER), Some(DEARER + 1)];
    let mut dice = Dice(seed);
    let mut stage = Stage::new(with_downlink(config(mode), downlink), PUBLISHERS + MEMBERS);
    let members = PUBLISHERS..PUBLISHERS + MEMBERS;
    for member in members.clone() {
        stage.want(member, SHARED, 0, Weight::ONE);
        stage.limit(member, BUDGET, 0);
    }
    stage.upkeep();
    // By member, what it wants besides; by update, for whom it is.
    let (mut besides, mut receivers) = ([None; MEMBERS], Vec::new());
    for _ in 0..40 {
        let member = dice.below(MEMBERS);
        let session = &mut stage.world.participants[PUBLISHERS + member].session;
        if let Some(group) = besides[member] {
            session.unsubscribe(Group::new(group));
        }
        besides[member] = BESIDES[dice.below(3)];
        if let Some(group) = besides[member] {
            session.subscribe_with(Group::new(group), Level(0), DEAR);
        }
        if dice.below(4) == 0 {
            let bits = [BUDGET, BUDGET, 2 * BUDGET, BUDGET / 2][dice.below(4)];
            members.clone().for_each(|member| stage.limit(member, bits, 0));
        }
        stage.upkeep();
        for _ in 0..dice.below(8) {
            for publisher in 0..PUBLISHERS + MEMBERS {
                let group = if dice.below(2) == 0 { SHARED } else { DEARER + dice.below(2) as u32 };
                stage.say(publisher, Say::to(group));
                let wants = |member: &usize| group == SHARED || besides[*member] == Some(group);
                let wanting = (0..MEMBERS).filter(wants).map(|member| PUBLISHERS + member);
                receivers.push(wanting.filter(|one| *one != publisher).collect::<Vec<_>>());
            }
            stage.pass(FRAME);
        }
        stage.pass(Duration::from_millis(dice.below(900) as u64));
    }
    stage.pass(20 * SECOND);
    stage.check_order();
    assert_eq!(stage.world.relay().waiting_updates(), 0, "seed {seed}, {mode:?} {downlink:?}");
    for member in members {
        let (got, newest) = (stage.numbers(member), newest(&stage, SHARED, member));
        let lacks: Vec<_> = newest.iter().filter(|number| !got.contains(number)).collect();
        assert!(lacks.is_empty(), "{member} lacks {lacks:?}: seed {seed}, {mode:?} {downlink:?}");
    }
    let entitled: usize = receivers.iter().map(Vec::len).sum();
    let got: usize = stage.got.iter().map(Vec::len).sum();
    assert_eq!(left_out(&stage), (entitled - got) as u64, "seed {seed}, {mode:?} {downlink:?}");
}

#[test]
fn whoever_changes_its_mind_misses_nothing_uncounted() {
    each_way(|mode, downlink| (1..=3).for_each(|seed| change_minds(mode, downlink, seed)));
}
