//! A meshed world moves to another core (Forest §3.5): relays leave and join it one after the other, and nothing is
//! lost.

use crate::bed::{Bed, world};
use crate::watch::Watch;
use canopy_control::signal::Role;
use canopy_control::{Core, MovePlan, RelayId, TreeAsk};

/// By relay of the bed: whether it is in the core.
fn core(bed: &Bed) -> Vec<u16> {
    let mesh = bed.controller.mesh(bed.comtree());
    let mut core: Vec<u16> = mesh.iter().flat_map(|of| of.ends).map(|of| of.0 - 1).collect();
    core.sort_unstable();
    core.dedup();
    core
}

fn is_over(bed: &Bed) -> bool {
    !bed.is_moving() && bed.controller.is_settled()
}

/// Goes on until the move is over. At any moment, an update of everybody arrives at everybody once.
fn watch_move(bed: &mut Bed) {
    Watch::new(bed.relays.len()).run(bed, 9000, |bed| {
        assert_eq!(bed.controller.audit(), Ok(()));
        is_over(bed)
    });
}

/// Relays 0, 1 and 2 are a mesh, with a long way from 0 to 1; 3 and 4 hang on 2, and have a link with each other.
fn dear_core() -> Bed {
    core_with_delay(20_000)
}

fn core_with_delay(delay_us: u32) -> Bed {
    let mut bed = Bed::of(5, &[(0, 1), (1, 2), (0, 2), (2, 3), (2, 4)], Core::Mesh);
    for at in [2, 0, 1, 3, 4] {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.add_link(3, 4);
    bed.set_delay((0, 1), delay_us);
    bed.are_peers(&[0, 1, 2]);
    bed
}

fn planned(bed: &mut Bed) -> MovePlan {
    let mut plans = bed.controller.plan_move(&world(), TreeAsk::default()).unwrap();
    plans.remove(0)
}

#[test]
fn a_meshed_world_is_moved_to_another_core_and_an_update_arrives_once_at_any_moment() {
    for by_operator in [true, false] {
        let mut bed = dear_core();
        let plan = planned(&mut bed);
        assert_eq!(plan.hung, 4, "two leave the core, and two join it");
        assert!(plan.planned_cost < plan.cost, "{plan:?}");
        match by_operator {
            true => _ = bed.controller.move_world(&world(), TreeAsk::default()).unwrap(),
            false => {
                let why = bed.controller.improve(bed.comtree());
                assert!(why.starts_with("it is being improved"), "{why}");
            }
        }
        assert!(bed.is_moving());
        watch_move(&mut bed);
        bed.are_peers(&[2, 3, 4]);
        for at in [0, 1] {
            assert_eq!(bed.roles(at), [(2, Role::Parent)]);
        }
        let again = planned(&mut bed);
        assert_eq!((again.hung, again.cost), (0, plan.planned_cost), "it costs what was said");
        assert!(bed.controller.improve(bed.comtree()).starts_with("it stays"));
    }
}

#[test]
fn another_core_has_to_gain_as_much_as_any_tree() {
    let mut bed = core_with_delay(3000);
    let plan = planned(&mut bed);
    let why = bed.controller.improve(bed.comtree());
    assert!(why.starts_with("it stays: the best tree found costs"), "{why} {plan:?}");
    assert!(plan.planned_cost < plan.cost, "{plan:?}");
    assert!(!bed.is_moving());
    bed.are_peers(&[0, 1, 2]);
}

#[test]
fn a_root_of_another_core_is_asked_for() {
    let mut bed = dear_core();
    // What costs least has 0, 1 and 2.
    bed.set_delay((3, 4), 90_000);
    assert_eq!(planned(&mut bed).hung, 0);
    let ask = TreeAsk { root: Some(RelayId(5)), ..TreeAsk::default() };
    bed.controller.move_world(&world(), ask).unwrap();
    watch_move(&mut bed);
    bed.are_peers(&[2, 3, 4]);
    assert_eq!(bed.root(), 4);
    // It is kept, though another would cost less.
    assert!(bed.controller.improve(bed.comtree()).starts_with("it stays"));
}

#[test]
fn a_core_moves_to_relays_none_of_which_was_in_it() {
    // 0, 1 and 2 are the core, and one of 3, 4 and 5 hangs on each. Those have links with each other, too.
    let links = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 4), (2, 5)];
    let mut bed = Bed::of(6, &links, Core::Mesh);
    for at in [0, 1, 2, 3, 4, 5] {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    for (one, other) in [(3, 4), (3, 5), (4, 5)] {
        bed.add_link(one, other);
    }
    for (at, to) in [(0, 3), (1, 4), (2, 5)] {
        bed.relocate(at as u8, at, to);
        bed.controller.drain(bed.relays[at].0, true).unwrap();
    }
    let watch = |bed: &mut Bed| {
        Watch::of(&[3, 4, 5], 6).run(bed, 9000, |bed| {
            assert_eq!(bed.controller.audit(), Ok(()));
            core(bed) == [3, 4, 5] && is_over(bed)
        });
    };
    watch(&mut bed);
    bed.are_peers(&[3, 4, 5]);
    for at in 0..3 {
        assert!(bed.branches(at).is_empty(), "nothing leads over {at}: {}", bed.why());
    }
}

#[test]
fn another_relay_of_the_tree_takes_the_place_of_one_that_drains() {
    // 0, 1 and 2 are the core. 3 hangs on 1, and lacks a link with 0 alone. 4 hangs on 0.
    let mut bed = Bed::of(5, &[(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (0, 4)], Core::Mesh);
    for at in [1, 0, 2, 3, 4] {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    bed.add_link(3, 4);
    bed.relocate(0, 0, 3);
    bed.controller.drain(bed.relays[0].0, true).unwrap();
    Watch::of(&[1, 2, 3, 4], 5).run(&mut bed, 9000, |bed| {
        assert_eq!(bed.controller.audit(), Ok(()));
        // It is one move, and no core comes between that has neither.
        assert!(core(bed).len() == 3 || bed.is_moving(), "{:?}", core(bed));
        core(bed) == [1, 2, 3] && is_over(bed)
    });
    bed.are_peers(&[1, 2, 3]);
    assert!(bed.branches(0).is_empty());
    assert!(bed.why().starts_with("r0 drains"), "{}", bed.why());
}

#[test]
fn a_controller_that_dies_while_a_core_moves_goes_on_with_the_step_and_the_next_move_gets_there() {
    for ticks in (0..2600).step_by(23) {
        let mut bed = dear_core();
        bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
        let mut watch = Watch::new(5);
        watch.run_for(&mut bed, ticks);
        bed.start_again();
        watch.run(&mut bed, 3000, is_over);
        assert_eq!(bed.controller.audit(), Ok(()));
        bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
        watch.run(&mut bed, 6000, is_over);
        bed.are_peers(&[2, 3, 4]);
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

#[test]
fn a_link_that_fails_while_a_core_moves_ends_the_move_and_the_tree_is_whole() {
    for lost in [(0, 1), (0, 2), (1, 2), (3, 4)] {
        for steps in [10, 150, 420, 700, 1000] {
            let mut bed = dear_core();
            bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
            let mut left = steps;
            Watch::new(5).run(&mut bed, steps + 1, |_| {
                left -= 1;
                left == 0
            });
            bed.report(lost, false);
            (0..4).for_each(|_| bed.renew());
            assert_eq!(bed.controller.why(bed.comtree()).unwrap().1, None, "{lost:?} {steps}");
            assert_eq!(bed.controller.audit(), Ok(()));
            bed.report(lost, true);
            (0..3).for_each(|_| bed.wait());
            _ = bed.controller.move_world(&world(), TreeAsk::default());
            watch_move(&mut bed);
            bed.are_peers(&[2, 3, 4]);
        }
    }
}

#[test]
fn a_core_for_which_a_link_on_the_way_has_too_little_stays_and_the_link_is_named() {
    let mut bed = dear_core();
    // While 3 joins, all that the others send goes over 2 to it, too.
    for (owner, at, send) in [(10, 0, 300_000), (11, 1, 300_000), (12, 4, 400_000)] {
        bed.enter(owner, at, send).unwrap();
    }
    let before = bed.controller.mesh(bed.comtree());
    let refusal = bed.controller.move_world(&world(), TreeAsk::default()).unwrap_err().to_string();
    assert!(refusal.contains("from r2 to r") && refusal.contains("is free"), "{refusal}");
    assert!(!bed.is_moving());
    assert_eq!(bed.controller.mesh(bed.comtree()), before);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_core_does_not_move_over_who_has_refused_next_peers_and_that_is_named() {
    let mut bed = dear_core();
    bed.has_threads = Some(4);
    bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
    (0..5).for_each(|_| bed.wait());
    // It came as far as to a core of two, and joined that at once.
    assert_eq!(core(&bed), [2, 3, 4]);
    bed.set_delay((0, 1), 1000);
    bed.set_delay((3, 4), 20_000);
    let refusal = bed.controller.move_world(&world(), TreeAsk::default()).unwrap_err().to_string();
    assert!(refusal.contains("and r4 takes no next peers"), "{refusal}");
    assert_eq!(bed.controller.audit(), Ok(()));
}
