//! A meshed core gets larger with other relays than it has: those leave that the larger one has not, others join, and
//! nothing is lost.

use crate::bed::{Bed, rate};
use crate::watch::{ARRIVAL, Watch};
use canopy_control::Core;
use canopy_control::signal::Role;

/// Relays 0, 1 and 2 are a mesh; 3 and 4 have links with 1 and 2, and get the one between them now.
fn larger_elsewhere() -> Bed {
    let links = [(0, 1), (1, 2), (0, 2), (1, 3), (2, 3), (1, 4), (2, 4)];
    let mut bed = Bed::of(5, &links, Core::Mesh);
    for at in [1, 0, 2, 3, 4] {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    add_last_link(&mut bed, 3, 4);
    bed
}

fn add_last_link(bed: &mut Bed, one: usize, other: usize) {
    let ends = [bed.relays[one].0, bed.relays[other].0];
    let link = bed.controller.add_link(ends, rate(1_000_000), 1000).unwrap();
    bed.links.push((link, (one, other)));
    bed.commit();
}

fn is_there(bed: &Bed) -> bool {
    bed.controller.mesh(bed.comtree()).len() == 6 && bed.controller.is_settled()
}

fn check_there(bed: &Bed) {
    bed.are_peers(&[1, 2, 3, 4]);
    assert!(matches!(bed.roles(0)[..], [(1 | 2, Role::Parent)]), "{:?}", bed.roles(0));
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn relays_leave_a_mesh_and_join_it_phase_by_phase_and_an_update_arrives_once_at_any_moment() {
    use Role::{CorePeer, LastPeer, NextParent, NextPeer};
    let mut bed = larger_elsewhere();
    let mut watch = Watch::new(5);
    watch.run(&mut bed, 3000, |bed| {
        assert_eq!(bed.controller.audit(), Ok(()));
        is_there(bed)
    });
    check_there(&bed);
    let above = bed.roles(0)[0].0;
    let other = 3 - above;
    let was = |with_above, with_other: Option<Role>, above_with| {
        watch.lasted(|roles: &crate::watch::Roles| {
            let with = |at: u16, of: u16| {
                roles[usize::from(at)].iter().find(|(to, _)| *to == of).map(|(_, role)| *role)
            };
            let all = [with(0, above), with(0, other), with(above, 0), with(other, 0)];
            all == [Some(with_above), with_other, Some(above_with), with_other]
        })
    };
    assert!(was(CorePeer, Some(NextPeer), CorePeer) >= ARRIVAL);
    assert!(was(CorePeer, Some(NextPeer), Role::Core) >= ARRIVAL);
    assert!(was(CorePeer, Some(LastPeer), Role::Core) >= ARRIVAL);
    _ = was(NextParent, None, Role::Core);
}

#[test]
fn a_core_of_two_changes_and_an_update_arrives_once_at_any_moment() {
    let mut bed = Bed::new(&[(0, 1), (1, 2), (1, 3)], Core::Mesh);
    for at in [1, 0, 2, 3] {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.are_peers(&[0, 1]);
    add_last_link(&mut bed, 2, 3);
    let mut watch = Watch::new(4);
    let is_over =
        |bed: &Bed| bed.controller.mesh(bed.comtree()).len() == 3 && bed.controller.is_settled();
    watch.run(&mut bed, 3000, is_over);
    bed.are_peers(&[1, 2, 3]);
    assert_eq!(bed.roles(0), [(1, Role::Parent)]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_controller_that_dies_while_a_relay_leaves_goes_on_where_it_was_and_an_update_arrives_once() {
    for ticks in (0..1800).step_by(11) {
        let mut bed = larger_elsewhere();
        let mut watch = Watch::new(5);
        watch.run_for(&mut bed, ticks);
        bed.start_again();
        watch.run(&mut bed, 4000, is_there);
        check_there(&bed);
    }
}

#[test]
fn who_refuses_next_peers_leaves_at_once() {
    for refuses in [0, 1, 2, 3] {
        let mut bed = larger_elsewhere();
        bed.has_threads = Some(refuses);
        (0..4).for_each(|_| bed.wait());
        check_there(&bed);
    }
}

/// It has let go of its branches to the others by then, and what they bring again is reserved.
#[test]
fn a_relay_that_has_almost_left_a_mesh_is_beside_the_others_again() {
    for phase in [Role::NextPeer, Role::LastPeer, Role::NextParent] {
        let mut bed = larger_elsewhere();
        let mut watch = Watch::new(5);
        let has = |bed: &Bed, role: Role| bed.branches(0).iter().any(|of| of.role == role);
        let watched = if phase == Role::NextParent { Role::LastPeer } else { phase };
        watch.run(&mut bed, 1500, |bed| has(bed, watched));
        // Without the word that it waits for in the last phase.
        for _ in 0..500 {
            if has(&bed, phase) {
                break;
            }
            bed.tick(|_| true);
        }
        assert!(has(&bed, phase));
        // The mesh in force does without this link.
        bed.report((3, 4), false);
        let mut was_next = false;
        watch.run(&mut bed, 1500, |bed| {
            for at in 0..3 {
                let branches = bed.branches(at);
                let mut next = branches.iter().filter(|of| of.role == Role::NextPeer);
                was_next |= next.clone().next().is_some();
                assert!(
                    next.all(|of| of.send.bits > 0.0 && of.receive.bits > 0.0),
                    "{phase:?}: {branches:?}"
                );
            }
            bed.controller.is_settled()
        });
        assert!(was_next, "{phase:?}");
        bed.are_peers(&[0, 1, 2]);
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

#[test]
fn a_link_that_fails_while_a_relay_leaves_is_gone_round_and_the_core_is_the_larger_one_later() {
    let cases = [((0, 1), Role::NextPeer), ((0, 2), Role::LastPeer), ((1, 2), Role::NextPeer)];
    for (lost, phase) in cases {
        let mut bed = larger_elsewhere();
        let mut watch = Watch::new(5);
        let is_between = |bed: &Bed| bed.branches(0).iter().any(|of| of.role == phase);
        watch.run(&mut bed, 1500, is_between);
        bed.report(lost, false);
        (0..4).for_each(|_| bed.renew());
        assert_eq!(bed.controller.why(bed.comtree()).unwrap().1, None);
        bed.report(lost, true);
        (0..4).for_each(|_| bed.wait());
        check_there(&bed);
    }
}

/// What is on its way is waited for where all that is sent arrives, and not where much of it is lost.
#[test]
fn a_core_that_loses_a_link_while_a_relay_leaves_has_a_tree_again_at_once() {
    for (lost, phase) in
        [((0, 1), Role::NextPeer), ((0, 2), Role::LastPeer), ((1, 2), Role::NextPeer)]
    {
        let mut bed = larger_elsewhere();
        let mut watch = Watch::new(5);
        watch.run(&mut bed, 1500, |bed| bed.branches(0).iter().any(|of| of.role == phase));
        bed.find(lost, false);
        (0..20).for_each(|_| _ = bed.tick(|_| true));
        watch.run_for(&mut bed, 200);
    }
}
