//! Each kind of fault is found, and what is none is not.

use canopy_judge::{Carriage, Oracle, Publish, Received, Rules, Tally};
use canopy_session::Event;
use canopy_wire::{Address, Comtree, Group, Level, Time};
use std::time::Duration;

const GROUP: Group = Group::new(5);
const OTHER: Group = Group::new(6);
const LEVEL: Level = Level(2);

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn address(participant: usize) -> Address {
    Address::unicast(1, 1 + participant as u16)
}

/// Participants 1 and 2 are subscribed to both groups; 0 and 3 are in the world.
fn oracle() -> Oracle {
    in_the_world(Rules::undisturbed(Duration::from_millis(100), Duration::from_secs(2)))
}

fn in_the_world(rules: Rules) -> Oracle {
    let mut oracle = Oracle::new(rules, std::iter::repeat_n(Comtree(1), 4));
    for participant in 0..4 {
        oracle.appear(at(1), participant);
        oracle.event(at(2), participant, Event::Connected(address(participant)));
    }
    for (participant, group) in [(1, GROUP), (1, OTHER), (2, GROUP), (2, OTHER)] {
        oracle.request(at(3), participant, group, Some(LEVEL));
        oracle.event(at(4), participant, Event::Subscribed(group, LEVEL));
    }
    oracle
}

/// Participant 0 publishes, and the relay reads it.
fn publish(oracle: &mut Oracle, now: u64, group: Group, level: Level) -> Received {
    let (src, dst) = (address(0), group.address());
    let update = Publish { publisher: 0, src, dst, level, echo: false, overtaken: false };
    let id = oracle.publish(at(now), update);
    oracle.read(at(now), 0, &[id]);
    Received { id: Some(id), src, dst, level }
}

fn deliver(oracle: &mut Oracle, now: u64, receivers: &[usize], received: Received) {
    for receiver in receivers {
        let carriage = Carriage { sent: at(now), copy: false, overtaken: false };
        oracle.received(at(now), *receiver, &received, carriage);
    }
}

fn judged(mut oracle: Oracle) -> Tally {
    oracle.judge_all(at(10_000));
    oracle.tally().clone()
}

#[test]
fn it_finds_the_missing_and_the_double() {
    let mut oracle = oracle();
    let update = publish(&mut oracle, 100, GROUP, LEVEL);
    deliver(&mut oracle, 101, &[1, 1], update);
    let tally = judged(oracle);
    assert_eq!((tally.expected, tally.deliveries, tally.missing), (2, 1, 1));
    assert_eq!((tally.duplicates, tally.unexpected), (1, 0));
    assert_eq!(tally.findings.len(), 2);
}

#[test]
fn it_finds_what_comes_to_the_wrong_or_in_another_form() {
    let mut oracle = oracle();
    let update = publish(&mut oracle, 100, GROUP, LEVEL);
    deliver(&mut oracle, 101, &[1, 2], update);
    deliver(&mut oracle, 101, &[0, 3], update);
    let forged = [
        Received { src: address(3), ..update },
        Received { dst: OTHER.address(), ..update },
        Received { level: Level(0), ..update },
        Received { id: None, ..update },
        Received { id: Some(77), ..update },
    ];
    forged.into_iter().for_each(|received| deliver(&mut oracle, 101, &[1], received));
    let tally = judged(oracle);
    assert_eq!((tally.unexpected, tally.duplicates, tally.missing), (7, 0, 0));
}

#[test]
fn it_finds_what_is_above_the_level() {
    let mut oracle = oracle();
    let update = publish(&mut oracle, 100, GROUP, Level(3));
    deliver(&mut oracle, 101, &[1], update);
    let tally = judged(oracle);
    assert_eq!((tally.expected, tally.missing, tally.unexpected), (0, 0, 1));
}

#[test]
fn it_finds_another_order_across_groups_at_the_receiver_that_has_it() {
    let mut oracle = oracle();
    let first = publish(&mut oracle, 100, GROUP, LEVEL);
    let second = publish(&mut oracle, 101, OTHER, LEVEL);
    deliver(&mut oracle, 102, &[1], first);
    deliver(&mut oracle, 102, &[1, 2], second);
    deliver(&mut oracle, 103, &[2], first);
    let tally = judged(oracle);
    assert_eq!((tally.out_of_order, tally.missing), (1, 0));
    assert_eq!(tally.overtaken, [(1, 1)].into());
    assert!(tally.findings[0].contains("participant 2 got after update 1"), "{tally:?}");
}

#[test]
fn much_that_is_missing_takes_no_words_from_what_is_wrong_later() {
    let mut oracle = oracle();
    for number in 0..100 {
        publish(&mut oracle, 100 + number, GROUP, LEVEL);
    }
    oracle.judge(at(5_000));
    let update = publish(&mut oracle, 5_000, GROUP, LEVEL);
    deliver(&mut oracle, 5_001, &[1, 2, 2], update);
    let tally = judged(oracle);
    assert_eq!((tally.missing, tally.findings.len()), (200, 13));
    assert!(tally.findings[12].contains("participant 2 got again"), "{tally:?}");
}

/// Participant 2 turns to another relay between two updates, without a break.
#[test]
fn it_finds_what_is_missing_double_or_overtaken_across_a_hand_over() {
    let judged_with = |before: &[usize], after: &[usize], late: &[usize]| {
        let mut oracle = oracle();
        let first = publish(&mut oracle, 100, GROUP, LEVEL);
        deliver(&mut oracle, 101, before, first);
        oracle.hand_over(at(102), 2, Address::unicast(2, 3));
        let second = publish(&mut oracle, 103, GROUP, LEVEL);
        deliver(&mut oracle, 104, after, second);
        deliver(&mut oracle, 105, late, first);
        let tally = judged(oracle);
        [tally.missing, tally.duplicates, tally.out_of_order, tally.unexpected]
    };
    assert_eq!(judged_with(&[1, 2], &[1, 2], &[]), [0; 4]);
    assert_eq!(judged_with(&[1, 2], &[1], &[]), [1, 0, 0, 0]);
    assert_eq!(judged_with(&[1], &[1, 2], &[]), [1, 0, 0, 0]);
    assert_eq!(judged_with(&[1, 2], &[1, 2], &[2]), [0, 1, 0, 0]);
    assert_eq!(judged_with(&[1], &[1, 2], &[2]), [0, 0, 1, 0]);
}

/// The network doubles an update on its way to the relay, and takes the first of what the relay
/// then sends: the second comes later than what was published after it.
#[test]
fn the_second_of_a_doubled_update_may_be_late() {
    for (doubled, lost, out_of_order) in [(true, true, 0), (true, false, 1), (false, true, 1)] {
        let mut oracle = oracle();
        let first = publish(&mut oracle, 100, GROUP, LEVEL);
        let second = publish(&mut oracle, 100, GROUP, LEVEL);
        if doubled {
            oracle.read(at(100), 0, &[0, 1]);
        }
        if lost {
            oracle.lost(at(101), 1, &[0]);
        }
        deliver(&mut oracle, 101, &[1, 2], second);
        deliver(&mut oracle, 102, &[1], first);
        assert_eq!(judged(oracle).out_of_order, out_of_order, "doubled {doubled}, lost {lost}");
    }
}

#[test]
fn who_unsubscribes_in_time_may_get_it_or_not() {
    for (asked, missing, excused) in [(150, 0, 1), (250, 1, 0)] {
        let mut oracle = oracle();
        let update = publish(&mut oracle, 100, GROUP, LEVEL);
        deliver(&mut oracle, 101, &[1], update);
        oracle.request(at(asked), 2, GROUP, None);
        let tally = judged(oracle);
        assert_eq!((tally.missing, tally.excused), (missing, excused), "asked at {asked} ms");
    }
}

#[test]
fn after_the_acknowledged_end_nothing_may_come() {
    let mut oracle = oracle();
    oracle.request(at(50), 2, GROUP, None);
    oracle.event(at(60), 2, Event::Unsubscribed(GROUP));
    let update = publish(&mut oracle, 100, GROUP, LEVEL);
    deliver(&mut oracle, 101, &[1, 2], update);
    assert_eq!(judged(oracle).unexpected, 1);
}

#[test]
fn what_is_for_an_endpoint_is_due_there_only() {
    let mut oracle = oracle();
    let (src, dst) = (address(0), address(3));
    let update = Publish { publisher: 0, src, dst, level: LEVEL, echo: false, overtaken: false };
    let id = oracle.publish(at(100), update);
    oracle.read(at(100), 0, &[id]);
    deliver(&mut oracle, 101, &[1], Received { id: Some(id), src, dst, level: LEVEL });
    let tally = judged(oracle);
    assert_eq!((tally.expected, tally.missing, tally.unexpected), (1, 1, 1));
}

#[test]
fn a_late_copy_is_no_delivery_of_what_is_forgotten() {
    let mut oracle = oracle();
    let update = publish(&mut oracle, 100, GROUP, LEVEL);
    deliver(&mut oracle, 101, &[1, 2], update);
    oracle.judge(at(5_000));
    assert_eq!(oracle.updates_held(), 0);
    deliver(&mut oracle, 5_001, &[1], update);
    assert_eq!(judged(oracle).unexpected, 1);
}

/// Participant 1 has another relay than 0, who publishes, and 2 has the same.
#[test]
fn a_subscription_takes_its_time_to_other_relays_and_no_longer() {
    let rules = Rules::undisturbed(Duration::from_millis(100), Duration::from_secs(2));
    let mut oracle = in_the_world(rules.over(2, Duration::from_millis(50)));
    oracle.reside(1, 7);
    // Both were acknowledged at 4 ms.
    for (published, expected, missing) in [(50, 1, 1), (103, 2, 2), (104, 4, 4)] {
        publish(&mut oracle, published, GROUP, LEVEL);
        oracle.judge(at(published + 2201));
        let tally = oracle.tally();
        assert_eq!(
            (tally.expected, tally.missing),
            (expected, missing),
            "published at {published}"
        );
    }
}

/// Participants 0 and 2 are on one of two data threads, and 1 and 3 on the other.
#[test]
fn what_is_lost_between_threads_is_excused_as_far_as_it_is_counted() {
    let outcome = |counted: u64, came_to: &[usize]| {
        let mut oracle = oracle();
        oracle.request(at(5), 3, GROUP, Some(LEVEL));
        oracle.event(at(6), 3, Event::Subscribed(GROUP, LEVEL));
        for round in 0..2 {
            let update = publish(&mut oracle, 100 + round, GROUP, LEVEL);
            deliver(&mut oracle, 101 + round, came_to, update);
        }
        oracle.lost_between_threads(2, counted);
        let tally = judged(oracle);
        (tally.missing, tally.excused, tally.lost_between_threads)
    };
    assert_eq!(outcome(9, &[1, 2, 3]), (0, 0, 0));
    assert_eq!(outcome(2, &[2]), (0, 4, 2), "the other thread has none of the two");
    assert_eq!(outcome(1, &[2]), (2, 2, 1), "only one was counted");
    assert_eq!(outcome(0, &[2]), (4, 0, 0));
    assert_eq!(outcome(9, &[1, 2]), (2, 0, 0), "its thread had it");
    assert_eq!(outcome(9, &[1, 3]), (2, 0, 0), "the publisher's own thread loses nothing");
}

/// Participant 3 comes to the publisher's thread before the update does.
#[test]
fn who_has_changed_threads_says_nothing_of_the_one_that_it_has_left() {
    for (moves, missing, excused) in [(true, 0, 1), (false, 1, 0)] {
        let mut oracle = oracle();
        oracle.request(at(5), 3, GROUP, Some(LEVEL));
        oracle.event(at(6), 3, Event::Subscribed(GROUP, LEVEL));
        let update = publish(&mut oracle, 100, GROUP, LEVEL);
        if moves {
            oracle.event(at(101), 3, Event::Connected(Address::unicast(1, 9)));
        }
        deliver(&mut oracle, 102, &[2, 3], update);
        oracle.lost_between_threads(2, 1);
        let tally = judged(oracle);
        assert_eq!((tally.missing, tally.excused), (missing, excused), "{tally:?}");
    }
}

/// A relay takes an older update for a newer one if it reads it long after.
#[test]
fn what_was_said_last_must_come_unless_something_older_is_read_much_later() {
    for (older_is_read, starved) in [(None, 2), (Some(250), 2), (Some(310), 0)] {
        let mut oracle = oracle();
        let (src, dst) = (address(0), GROUP.address());
        let older = Publish { publisher: 0, src, dst, level: LEVEL, echo: false, overtaken: false };
        let older = oracle.publish(at(100), older);
        publish(&mut oracle, 101, GROUP, LEVEL);
        if let Some(read) = older_is_read {
            oracle.read(at(read), 0, &[older]);
        }
        oracle.check_starved(at(1_000));
        assert_eq!(oracle.tally().starved, starved, "{older_is_read:?}");
    }
}
