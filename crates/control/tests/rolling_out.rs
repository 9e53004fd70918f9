//! A controller that dies between the commit of a tree and telling relays of it. The next one finds relays that
//! have the tree before, or some part of the way to the tree after, and they come back in any order. Branches of
//! both never form a circle, and nobody lets go of anything before all are there.

#[allow(dead_code, reason = "others use the rest of it")]
#[path = "meshed/bed.rs"]
mod bed;

use bed::{ALL, Bed, rate, world};
use canopy_control::Core;
use canopy_control::signal::{Branch, Role};
use canopy_control::{LinkId, LinkReport, WorldChanges};
use std::collections::BTreeMap;

/// How many ticks pass from one relay to the next that comes back: a relay pauses between its calls.
const BETWEEN: usize = 40;

/// All orders of four relays.
fn orders() -> Vec<[usize; 4]> {
    let digits = |number: usize| [number / 64, number / 16 % 4, number / 4 % 4, number % 4];
    let is_order = |order: &[usize; 4]| (0..4).all(|at| order.contains(&at));
    (0..256).map(digits).filter(is_order).collect()
}

fn all_branches(bed: &Bed) -> Vec<Vec<Branch>> {
    (0..4).map(|at| bed.branches(at)).collect()
}

/// The links that both ends have close no circle, but among core peers.
fn assert_no_circle(bed: &Bed) {
    let mut ends: BTreeMap<LinkId, Vec<(usize, Role)>> = BTreeMap::new();
    for (at, branches) in all_branches(bed).iter().enumerate() {
        for of in branches.iter().filter(|of| !of.role.is_standby()) {
            ends.entry(of.link).or_default().push((at, of.role));
        }
    }
    let joins = ends.values().filter(|ends| ends.len() == 2);
    let is_meshed =
        |ends: &&Vec<(usize, Role)>| ends.iter().all(|(_, role)| *role == Role::CorePeer);
    let (meshed, others): (Vec<_>, Vec<_>) = joins.partition(is_meshed);
    let mut parts = [0, 1, 2, 3];
    for ends in meshed.iter().chain(&others) {
        let [from, to] = [parts[ends[0].0], parts[ends[1].0]];
        assert!(from != to || is_meshed(ends), "a circle: {:?}", all_branches(bed));
        parts.iter_mut().filter(|part| **part == from).for_each(|part| *part = to);
    }
}

/// A change is committed and nobody is told; or the controller has told some of it to these relays. It dies, and
/// relays come back in every order.
fn die_after(bed: impl Fn() -> Bed, change: impl Fn(&mut Bed), told: &[usize]) {
    for order in orders() {
        let mut bed = bed();
        change(&mut bed);
        bed.commit();
        (0..10).for_each(|_| _ = bed.tick(|at| told.contains(&at)));
        assert_no_circle(&bed);
        bed.start_again();
        let before = all_branches(&bed);
        for number in 0..5 * BETWEEN {
            bed.tick(|at| order.iter().take(1 + number / BETWEEN).any(|of| *of == at));
            assert_no_circle(&bed);
            if number < 3 * BETWEEN {
                let now = all_branches(&bed);
                assert_eq!(now, before, "{number} {order:?} {told:?} one is still away");
            }
        }
        assert!(bed.controller.is_settled());
        assert_ne!(all_branches(&bed), before);
        start_quietly(&mut bed);
    }
}

/// One that starts with nothing on its way tells nobody anything.
fn start_quietly(bed: &mut Bed) {
    let before = all_branches(bed);
    bed.start_again();
    for number in 0..2 * BETWEEN {
        bed.tick(|at| number / BETWEEN > 0 || at % 2 == 0);
        assert_eq!(all_branches(bed), before);
    }
    assert!(bed.controller.is_settled());
}

fn with_members(links: &[(usize, usize)], core: Core) -> Bed {
    let mut bed = Bed::new(links, core);
    (0..4).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    assert_no_circle(&bed);
    bed
}

fn set_core(bed: &mut Bed, core: Core) {
    let changes = WorldChanges { core: Some(core), ..WorldChanges::default() };
    bed.controller.set_world(&world(), changes).unwrap();
}

#[test]
fn a_ring_that_is_opened_elsewhere_is_never_closed() {
    let ring = || with_members(&[(0, 1), (1, 2), (2, 3), (0, 3)], Core::Center);
    let change = |bed: &mut Bed| {
        let used = bed.branches(1).into_iter().find(|of| !of.role.is_standby()).unwrap();
        bed.controller.remove_link_at_once(used.link).unwrap();
    };
    for told in [&[][..], &[0], &[1, 2], &[0, 1, 2]] {
        die_after(ring, change, told);
    }
}

#[test]
fn a_mesh_that_turns_into_a_tree_or_comes_of_one_closes_no_circle() {
    let [mesh, tree] =
        [Core::Mesh, Core::Center].map(|core| move || with_members(&ALL, core.clone()));
    for told in [&[][..], &[0], &[1, 2], &[0, 1, 2]] {
        die_after(&mesh, |bed| set_core(bed, Core::Center), told);
        die_after(&tree, |bed| set_core(bed, Core::Mesh), told);
    }
}

#[test]
fn changes_that_follow_each_other_before_anybody_is_told_close_no_circle() {
    let mesh = || with_members(&ALL, Core::Mesh);
    let change = |bed: &mut Bed| {
        for core in [Core::Center, Core::Mesh, Core::All] {
            set_core(bed, core);
        }
    };
    for told in [&[][..], &[0], &[1, 2], &[0, 1, 2]] {
        die_after(mesh, change, told);
    }
}

/// It may have branches yet that it was to let go of.
#[test]
fn nobody_takes_new_branches_before_a_relay_that_refuses_has_let_go() {
    for at in 0..4 {
        let mut bed = with_members(&[(0, 1), (1, 2), (2, 3), (0, 3)], Core::Center);
        let standing = |bed: &Bed, at: usize| -> Vec<LinkId> {
            let branches = bed.branches(at).into_iter().filter(|of| !of.role.is_standby());
            branches.map(|of| of.link).collect()
        };
        let before = [0, 1, 2, 3].map(|of| standing(&bed, of));
        let gone = before[at][0];
        bed.controller.remove_link_at_once(gone).unwrap();
        bed.refuses = Some(at);
        for _ in 0..5 * BETWEEN {
            bed.tick(|_| true);
            assert!(standing(&bed, at).contains(&gone));
            for (of, before) in before.iter().enumerate() {
                assert!(standing(&bed, of).iter().all(|link| before.contains(link)));
            }
        }
        bed.refuses = None;
        (0..5 * BETWEEN).for_each(|_| _ = bed.tick(|_| true));
        assert!(bed.controller.is_settled() && !standing(&bed, at).contains(&gone));
    }
}

/// A chain of three with a standby parent over its ends. One of its links fails, so that it goes over the ends' link, and
/// comes back; then that one does so. Most members are at the end that was cut off, so the chain has its root there now, and
/// who was the standby parent has one.
fn turn_chain_round(dies: bool) {
    let mut bed = Bed::new(&[(0, 1), (1, 2)], Core::Center);
    [2, 1, 0].into_iter().for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    [3, 4].into_iter().for_each(|number| bed.enter(number, 0, 1000).unwrap());
    let ends = [bed.relays[0].0, bed.relays[2].0];
    let link = bed.controller.add_link(ends, rate(1_000_000), 1000).unwrap();
    bed.links.push((link, (0, 2)));
    [false, true].into_iter().for_each(|up| _ = bed.report((0, 2), up));
    let role = |bed: &Bed, at: usize| {
        bed.branches(at).into_iter().find(|of| of.link == link).map(|of| of.role)
    };
    assert_eq!(
        [0, 2].map(|at| role(&bed, at)),
        [Some(Role::StandbyParent), Some(Role::StandbyChild)]
    );
    let chain = bed.links[0].0;
    // Relays 1 and 2 hear nothing of it meanwhile.
    for (link, up) in [(chain, false), (chain, true), (link, false), (link, true)] {
        bed.relays[0].1.set_link(bed.now, LinkReport { link, up, delay_us: 1000 });
        (0..4).for_each(|_| _ = bed.tick(|at| at == 0));
        assert_ne!(role(&bed, 0), Some(Role::StandbyChild), "the other end may have it yet");
    }
    assert_eq!(role(&bed, 2), Some(Role::StandbyChild));
    if dies {
        bed.start_again();
        (0..BETWEEN).for_each(|_| _ = bed.tick(|at| at == 0));
        assert_ne!(role(&bed, 0), Some(Role::StandbyChild), "the other end may have it yet");
    }
    (0..5 * BETWEEN).for_each(|_| _ = bed.tick(|_| true));
    assert_eq!(
        [0, 2].map(|at| role(&bed, at)),
        [Some(Role::StandbyChild), Some(Role::StandbyParent)]
    );
}

#[test]
fn standby_parents_by_an_old_rank_are_gone_everywhere_before_others_come() {
    turn_chain_round(false);
    turn_chain_round(true);
}
