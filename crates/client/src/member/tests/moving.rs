//! A member goes from one relay to another.

use super::*;
use crate::handover::Outcome;

const STEP: Duration = Duration::from_millis(50);

/// A member at the first relay, which has subscribed, and another relay.
fn at_the_first() -> World {
    let mut world = World::new(vec![Script::new()]);
    world.relays.push(Script { site: 2, ..Script::new() });
    world.settle();
    let subscribed = world.member.wish([(Group::new(7), Some((Level(0), Weight::ONE)))]);
    world.settle();
    assert_eq!(subscribed.result(), Some(Ok(())));
    assert!(matches!(world.events()[..], [Event::Connected { .. }]));
    world
}

fn set_out(world: &mut World) {
    let next = &world.relays[1];
    let key = *next.sessions.identity().public();
    world.member.move_to(world.now, next.address(), key, "").unwrap();
}

/// Both relays bring the same updates, one of them a step later, until a move has ended.
fn until_it_has_moved(world: &mut World, behind: usize) -> (Outcome, Vec<u16>) {
    let publisher = Address::unicast(3, 9);
    let mut taken = Vec::new();
    for number in 0..400_u16 {
        for relay in [0, 1] {
            let late = u16::from(relay == behind);
            let is_heard = world.relays[relay].subscribed && !world.relays[relay].has_left;
            if is_heard && number >= late {
                world.relays[relay].publish_from(publisher, number - late, &[b"update"]);
            }
        }
        // Somebody who walks changes its mind all the time.
        let group = Group::new(100 + u32::from(number % 3));
        let wanted = (number % 2 == 0).then_some((Level(0), Weight::ONE));
        drop(world.member.wish([(group, wanted)]));
        world.settle();
        taken.extend(std::iter::from_fn(|| world.member.inbox().next_update()).map(|of| of.series));
        world.now = world.now + STEP;
        if let Some(outcome) = world.member.moved() {
            return (outcome, taken);
        }
    }
    panic!("it never ends");
}

#[test]
fn each_update_is_taken_once_on_the_way_from_one_relay_to_another() {
    for behind in [0, 1] {
        let mut world = at_the_first();
        world.member.publish(world.now, &Outgoing::new(Group::new(7), Level(0), b"here")).unwrap();
        set_out(&mut world);
        let (outcome, taken) = until_it_has_moved(&mut world, behind);
        assert_eq!(outcome, Outcome::Moved);
        let all: Vec<u16> = (0..taken.len() as u16).collect();
        assert_eq!(taken, all, "with relay {behind} behind");
        assert!(taken.len() > 80, "it takes its time: {}", taken.len());
        let events = world.events();
        let [Event::Moved { relay }, Event::Connected { participant, kept_address, epoch }] =
            events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((relay, kept_address, epoch.number()), (world.relays[1].address(), false, 2));
        assert_eq!((participant.site(), world.member.participant()), (2, Some(participant)));
        assert!(world.relays[0].has_left, "it says so to the old one");
        assert!(world.member.stats().doubled > 70);
        world.member.publish(world.now, &Outgoing::new(Group::new(7), Level(0), b"there")).unwrap();
        world.settle();
        assert_eq!((world.relays[0].heard.len(), world.relays[1].heard.len()), (1, 1));
        world.run(Duration::from_secs(20));
        assert_eq!(world.events(), [], "it stays there");
        assert!(world.member.handover.is_none());
    }
}

#[test]
fn whom_the_next_relay_does_not_take_stays_where_it_is() {
    for fault in 0..3 {
        let mut world = at_the_first();
        match fault {
            0 => world.relays[1].silent = true,
            1 => world.relays[1].refuses = Some(RefusedReason::Full),
            _ => world.relays[1].refuses_groups = Some(SubscribeRefusal::Table),
        }
        set_out(&mut world);
        let (outcome, taken) = until_it_has_moved(&mut world, 1);
        assert_eq!(outcome, Outcome::Stayed, "{fault}");
        assert_eq!(taken, (0..taken.len() as u16).collect::<Vec<_>>());
        assert_eq!(world.events(), [], "nobody hears of it");
        assert_eq!(world.member.participant().map(Participant::site), Some(1));
        assert!(world.member.handover.is_none());
    }
}

/// It has said that it takes the member, and dies before it leads.
#[test]
fn whose_next_relay_dies_on_the_way_stays_where_it_is() {
    let mut world = at_the_first();
    set_out(&mut world);
    world.run(Duration::from_millis(1200));
    assert!(world.relays[1].subscribed);
    // Nothing listens at its port any more, and whoever sends something there hears so.
    world.relays[1] = Script::new();
    drop(world.member.wish([(Group::new(8), Some((Level(0), Weight::ONE)))]));
    world.run(Duration::from_secs(3));
    assert_eq!(world.member.moved(), Some(Outcome::Stayed));
    assert_eq!(world.events(), [], "nobody hears of it");
    assert_eq!(world.member.participant().map(Participant::site), Some(1));
}

#[test]
fn who_loses_its_relay_on_the_way_goes_on_at_the_next_one() {
    for after in [100, 700, 1500, 3500] {
        let mut world = at_the_first();
        set_out(&mut world);
        world.run(Duration::from_millis(after));
        let moves = world.events().iter().filter(|of| matches!(of, Event::Moved { .. })).count();
        world.relays[0].drain();
        world.relays[0].silent = true;
        world.run(Duration::from_secs(2));
        assert_eq!(world.member.moved(), Some(Outcome::Moved), "after {after} ms");
        let events = world.events();
        let later = events.iter().filter(|of| matches!(of, Event::Moved { .. })).count();
        assert_eq!(moves + later, 1, "{events:?}");
        assert_eq!(world.member.participant().map(Participant::site), Some(2));
        assert!(world.relays[1].subscribed, "its subscriptions come along");
        let again = world.member.wish([(Group::new(7), Some((Level(0), Weight::ONE)))]);
        world.settle();
        assert_eq!(again.result(), Some(Ok(())));
    }
}

#[test]
fn who_leaves_on_the_way_leaves_both_relays() {
    let mut world = at_the_first();
    set_out(&mut world);
    world.run(Duration::from_secs(1));
    world.member.leave(world.now);
    assert_eq!(world.member.moved(), Some(Outcome::Stayed));
    world.settle();
    assert!(world.relays.iter().all(|relay| relay.has_left));
}

/// By what a client that moves can tell that its old relay is behind the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// By nothing.
    Not,
    /// By others, whom it hears by both.
    ByOthers,
    /// By itself: the next relay brings what it publishes over the old one.
    ByItself,
}

/// What somebody has heard of a client that moves.
struct Told {
    moved: Outcome,
    /// In the order in which it came.
    numbers: Vec<u8>,
    /// By how much longer an update took at most than the longer of the two ways.
    later: Duration,
}

/// A client moves and publishes all the while. What it publishes over the old relay comes to somebody so much later than
/// over the next one.
fn told_of_a_move(behind: Duration, shown: Shown) -> Told {
    const EVERY: Duration = Duration::from_millis(25);
    let mut world = at_the_first();
    let (others, group) = (Address::unicast(3, 9), Group::new(7));
    let was = world.member.participant().unwrap().address();
    set_out(&mut world);
    let (mut moved, mut published, mut round) = (None, Vec::new(), 0);
    for step in 0..=u8::MAX {
        let ago = (behind.as_millis() / EVERY.as_millis()) as u8;
        for (relay, late) in [(0, ago), (1, 0)] {
            let is_heard = world.relays[relay].subscribed && !world.relays[relay].has_left;
            if shown == Shown::ByOthers && is_heard && step >= late {
                world.relays[relay].publish_from(others, (step - late).into(), &[b"another"]);
            }
        }
        while let Some((at, series, _)) = world.relays[0].heard.get(round).cloned()
            && world.now.since(at) >= behind
        {
            if shown == Shown::ByItself && world.relays[1].subscribed {
                world.relays[1].publish_from(was, series, &[b"the client's own"]);
            }
            round += 1;
        }
        let update = Outgoing::new(group, Level(0), std::slice::from_ref(&step));
        world.member.publish(world.now, &update).unwrap();
        published.push(world.now);
        world.settle();
        moved = moved.or_else(|| world.member.moved());
        world.now = world.now + EVERY;
    }
    world.run(Duration::from_secs(1));
    let mut told = Vec::new();
    for (relay, late) in [(0, behind), (1, Duration::ZERO)] {
        let heard = world.relays[relay].heard.iter();
        told.extend(heard.map(|(at, _, payload)| (*at + late, payload[0])));
    }
    // What comes at the same time is in its order.
    told.sort();
    let age = |(at, number): &(Time, u8)| at.since(published[usize::from(*number)]);
    let later = told.iter().map(|one| age(one).saturating_sub(behind)).max().unwrap();
    let numbers = told.iter().map(|(_, number)| *number).collect();
    Told { moved: moved.expect("it has moved"), numbers, later }
}

#[test]
fn what_a_client_publishes_once_it_has_moved_overtakes_nothing_from_before() {
    let (mut overtaken, mut cases) = (0, 0);
    let most = [(Shown::Not, 75), (Shown::ByOthers, 450), (Shown::ByItself, 450)];
    for (shown, most) in most {
        for behind in (0..=most).step_by(75).map(Duration::from_millis) {
            let told = told_of_a_move(behind, shown);
            assert_eq!(told.moved, Outcome::Moved);
            let mut all = told.numbers.clone();
            all.sort_unstable();
            assert_eq!(all, (0..=u8::MAX).collect::<Vec<_>>(), "each comes once");
            let backwards = told.numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
            println!("{shown:?} {behind:?} behind: {backwards} overtaken, {:?} later", told.later);
            assert!(
                told.later <= Duration::from_millis(150),
                "{shown:?} {behind:?}: {:?}",
                told.later
            );
            (overtaken, cases) = (overtaken + backwards, cases + 1);
        }
    }
    assert_eq!(overtaken, 0, "in {cases} moves");
}

#[test]
fn what_waits_after_a_move_is_bounded_and_nothing_of_it_is_lost() {
    let mut world = at_the_first();
    set_out(&mut world);
    while world.member.relay() != world.relays[1].address() {
        world.now = world.now + STEP;
        world.settle();
    }
    let update = Outgoing::new(Group::new(7), Level(0), b"one of many");
    let calls = crate::held::MOST_HELD / 64;
    for _ in 0..calls {
        world.member.publish_many(world.now, &[update; 64]).unwrap();
        world.settle();
    }
    assert_eq!(world.relays[1].heard.len(), 0, "they wait");
    // No more wait than that: all go before their time, in their order.
    world.member.publish(world.now, &update).unwrap();
    world.settle();
    let numbers: Vec<_> = world.relays[1].heard.iter().map(|(_, series, _)| *series).collect();
    assert_eq!(numbers, (0..=64 * calls as u16).collect::<Vec<_>>());
    assert_eq!(world.member.stats().published, 64 * calls as u64 + 1);
}

#[test]
fn who_leaves_while_something_waits_says_it_before() {
    let mut world = at_the_first();
    set_out(&mut world);
    while world.member.relay() != world.relays[1].address() {
        world.now = world.now + STEP;
        world.settle();
    }
    world.member.publish(world.now, &Outgoing::new(Group::new(7), Level(0), b"farewell")).unwrap();
    world.member.leave(world.now);
    world.settle();
    assert_eq!(world.relays[1].heard.len(), 1);
    assert!(world.relays.iter().all(|relay| relay.has_left));
}
