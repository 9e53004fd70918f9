//! Comtrees with a mode of their own: when the updates of each leave a relay that has comtrees of several.

use crate::support::thinning::Dice;
use crate::support::{COMTREE, OTHER_COMTREE, PERIODIC, TICK, World, config, group, with_downlink};
use canopy_relay::{Budget, Budgets, Change, ComtreeConfig, Mode, PathShare, Refusal, RelayConfig};
use canopy_wire::{Comtree, Downlink, DropReason, Flags, Group, Level, Time};
use std::collections::BTreeMap;
use std::time::Duration;

const MODES: [Mode; 2] = [Mode::Immediate, PERIODIC];
const GROUP: u32 = 7;

fn every(millis: u64) -> Mode {
    Mode::Periodic { tick: Duration::from_millis(millis) }
}

/// A relay of this mode, whose comtrees, numbered from 1 on, have these.
fn relay_with(own: Mode, modes: &[Option<Mode>]) -> RelayConfig {
    let comtree = |(number, mode): (u32, &Option<Mode>)| ComtreeConfig {
        mode: *mode,
        ..ComtreeConfig::new(Comtree(number), 1)
    };
    RelayConfig { comtrees: (1..).zip(modes).map(comtree).collect(), ..config(own) }
}

/// Two participants of each comtree, which are subscribed: those of comtree N have the numbers 2N - 2 and
/// 2N - 1.
fn world_of(config: RelayConfig) -> World {
    let comtrees: Vec<Comtree> = config.comtrees.iter().map(|one| one.comtree).collect();
    let mut world = World::of(config, 0);
    for comtree in comtrees {
        world.add_participant(0, comtree);
        world.add_participant(0, comtree);
    }
    world.settle();
    world.subscribe_all(GROUP, 0);
    world.tick();
    world
}

/// The first is told when the tick ends, the other at once, by group and by address, whatever the relay's own mode.
#[test]
fn each_comtree_keeps_to_its_own_mode() {
    for own in MODES {
        let mut world = world_of(relay_with(own, &[Some(PERIODIC), Some(Mode::Immediate)]));
        let flushes = world.relay().counters().flushes;
        let addresses = [1, 3].map(|number| world.address(number));
        for (from, text) in [(0, b"slow"), (2, b"fast")] {
            world.publish(from, GROUP, 0, Flags(0), text);
            world.publish_to(from, addresses[from / 2], 0, Flags(0), text);
        }
        world.settle();
        assert_eq!(world.payloads(1), Vec::<&[u8]>::new(), "{own:?}");
        assert_eq!(world.payloads(3), [b"fast", b"fast"], "{own:?}");
        world.now = world.now + TICK / 2;
        world.publish(0, GROUP, 0, Flags(0), b"late");
        world.publish(2, GROUP, 0, Flags(0), b"more");
        world.settle();
        assert_eq!((world.payloads(1).len(), world.payloads(3).len()), (0, 3), "{own:?}");
        assert_eq!(world.relay().counters().flushes - flushes, 2);
        let datagrams = world.datagrams;
        world.tick();
        let mut slow = world.payloads(1);
        slow.sort_unstable();
        assert_eq!(slow, [&b"late"[..], b"slow", b"slow"], "{own:?}");
        assert_eq!(world.datagrams - datagrams, 1, "the updates of a tick leave together");
        assert_eq!(world.relay().counters().flushes - flushes, 3);
    }
}

/// A comtree without a mode has the relay's.
#[test]
fn a_comtree_without_a_mode_has_the_relays() {
    for (own, at_once) in [(Mode::Immediate, 1), (PERIODIC, 0)] {
        let mut world = world_of(relay_with(own, &[None, Some(every(1000))]));
        world.publish(0, GROUP, 0, Flags(0), b"x");
        world.settle();
        assert_eq!(world.payloads(1).len(), at_once, "{own:?}");
        world.tick();
        assert_eq!(world.payloads(1).len(), 1, "{own:?}");
    }
}

/// Seeded: comtrees of four modes, and participants who publish at any time. A model says when each update leaves.
#[test]
fn each_update_leaves_when_its_comtrees_mode_says() {
    for seed in 0..20 {
        let mut dice = Dice(seed);
        let own = MODES[seed as usize % 2];
        let modes = [Mode::Immediate, every(20), every(50), every(200)];
        let mut world = world_of(relay_with(own, &modes.map(Some)));
        world.now = world.now.next_multiple(Duration::from_millis(200));
        world.settle();
        let mut expected: BTreeMap<u16, Time> = BTreeMap::new();
        let (mut number, mut told, mut seen) = (0_u16, BTreeMap::new(), [0; 8]);
        for step in 0..400 {
            world.now = world.now + Duration::from_millis(5);
            for _ in 0..if step < 350 { dice.below(4) } else { 0 } {
                let of = dice.below(modes.len());
                let to = world.address(2 * of + 1);
                let to = if dice.below(3) == 0 { to } else { group(GROUP) };
                world.publish_to(2 * of, to, 0, Flags(0), &number.to_be_bytes());
                let tick = modes[of].tick().unwrap_or(Duration::from_millis(5));
                let now = world.now;
                let is_now = now.last_multiple(tick) == now;
                expected.insert(number, if is_now { now } else { now.next_multiple(tick) });
                number += 1;
            }
            world.settle();
            for (participant, seen) in seen.iter_mut().enumerate() {
                for payload in &world.payloads(participant)[*seen..] {
                    let number = u16::from_be_bytes(payload[..].try_into().unwrap());
                    assert_eq!(told.insert(number, world.now), None, "seed {seed}: twice");
                }
                *seen = world.payloads(participant).len();
            }
        }
        assert!(number > 300, "there is something to see");
        assert_eq!(told, expected, "seed {seed}");
    }
}

/// What fills the room of one mode is no other's loss, and one tick's flood does not make another's updates leave.
#[test]
fn a_flood_of_one_mode_leaves_the_others_alone() {
    let mut config = relay_with(Mode::Immediate, &[Some(every(200)), Some(every(1000))]);
    config.budgets = Budgets { paths: PathShare::Off, ..Budgets::NONE };
    let mut world = world_of(with_downlink(config, Downlink::None));
    world.now = world.now.next_multiple(Duration::from_secs(1));
    world.settle();
    world.publish(2, GROUP, 0, Flags(0), b"quiet");
    for _ in 0..4000 {
        world.publish(0, GROUP, 0, Flags(0), &[1; 1000]);
        if world.relay().is_filling_up() {
            world.settle();
        }
    }
    assert!(!world.payloads(1).is_empty(), "half of the room is full before the tick");
    assert_eq!(world.payloads(3), Vec::<&[u8]>::new());
    world.now = world.now.next_multiple(Duration::from_millis(200));
    world.settle();
    assert_eq!(world.payloads(1).len(), 4000);
    assert_eq!(world.payloads(3), Vec::<&[u8]>::new());
    world.now = world.now.next_multiple(Duration::from_secs(1));
    world.settle();
    assert_eq!(world.payloads(3), [b"quiet"]);
    assert_eq!(world.dropped(DropReason::PendingFull), 0);
}

/// A comtree that goes while updates wait, and comes again in another mode, is a new one.
#[test]
fn a_comtree_comes_again_in_another_mode() {
    let mut world = world_of(relay_with(Mode::Immediate, &[Some(PERIODIC)]));
    world.publish(0, GROUP, 0, Flags(0), b"before");
    let now = world.now;
    world.relay_mut().apply(now, Change::RemoveComtree(COMTREE)).unwrap();
    let again = ComtreeConfig { mode: Some(Mode::Immediate), ..ComtreeConfig::new(COMTREE, 1) };
    world.relay_mut().apply(now, Change::AddComtree(again)).unwrap();
    let newcomers = [0, 1].map(|_| world.add_participant(0, COMTREE));
    world.settle();
    for newcomer in newcomers {
        world.participants[newcomer].session.subscribe(Group::new(GROUP), Level(0));
    }
    world.settle();
    world.publish(newcomers[0], GROUP, 0, Flags(0), b"after");
    world.settle();
    assert_eq!(world.payloads(newcomers[1]), [b"after"]);
    world.tick();
    assert_eq!(world.payloads(newcomers[1]), [b"after"]);
    assert_eq!(world.payloads(1), Vec::<&[u8]>::new(), "it was sent away");
}

/// What a receiver saves up is that of its comtree's tick: a budget that holds what a tick brings lets all of it leave
/// with the tick.
#[test]
fn a_budget_that_holds_what_a_tick_brings_limits_nobody() {
    for own in MODES {
        let mut world = world_of(relay_with(own, &[Some(every(100)), Some(Mode::Immediate)]));
        let (address, now) = (world.address(1), world.now);
        let budget = Budget { down_packets: 30, ..Budget::default() };
        let change = Change::SetBudget { comtree: COMTREE, address, budget };
        world.relay_mut().apply(now, change).unwrap();
        world.now = world.now.next_multiple(Duration::from_millis(100));
        world.settle();
        for number in 0..100_u8 {
            world.now = world.now + Duration::from_millis(50);
            world.publish(0, GROUP, 0, Flags(0), &[number]);
            world.settle();
            let left = usize::from(number) / 2 * 2 + if number % 2 == 1 { 2 } else { 0 };
            assert_eq!(world.payloads(1).len(), left, "{own:?}");
        }
        assert_eq!(world.dropped(DropReason::Thinned), 0, "{own:?}");
    }
}

/// A relay refuses a mode more than it may have, and takes it once another is free.
#[test]
fn a_relay_has_only_so_many_modes() {
    let most = canopy_relay::MAX_MODES as u64;
    let modes: Vec<Option<Mode>> = (1..most).map(|millis| Some(every(millis))).collect();
    let mut world = World::of(relay_with(Mode::Immediate, &modes), 0);
    let (now, comtree) = (world.now, Comtree(100));
    let another =
        |mode| Change::AddComtree(ComtreeConfig { mode, ..ComtreeConfig::new(comtree, 1) });
    let refused = world.relay_mut().apply(now, another(Some(every(999)))).unwrap_err();
    assert_eq!(refused, Refusal::TooManyModes(comtree));
    assert!(refused.to_string().contains("comtree 100 would be in one mode more"), "{refused}");
    world.relay_mut().apply(now, Change::RemoveComtree(OTHER_COMTREE)).unwrap();
    world.relay_mut().apply(now, another(Some(every(999)))).unwrap();
    world.relay_mut().apply(now, Change::RemoveComtree(comtree)).unwrap();
    world.relay_mut().apply(now, another(None)).unwrap();
}
