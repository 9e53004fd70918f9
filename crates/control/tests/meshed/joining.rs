//! A relay joins a meshed core that has been there before, and nothing is lost.

use crate::bed::{ALL, Bed, rate};
use crate::flooding::{At, check_once, is_doubled};
use crate::watch::{ARRIVAL, Watch};
use canopy_control::signal::{Branch, Role};
use canopy_control::{Core, Event, LinkId, LinkReport, RelayId};
use std::collections::BTreeMap;

/// Relays 0, 1 and 2 are a mesh; 3 hangs on 0, and gets its last link with one of them now.
fn last_link() -> Bed {
    let mut bed = Bed::new(&ALL[..5], Core::Mesh);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.roles(3), [(0, Role::Parent)]);
    let ends = [bed.relays[2].0, bed.relays[3].0];
    let link = bed.controller.add_link(ends, rate(1_000_000), 1000).unwrap();
    bed.links.push((link, (2, 3)));
    bed.commit();
    bed
}

fn is_in(bed: &Bed) -> bool {
    bed.controller.mesh(bed.comtree()).len() == 6 && bed.controller.is_settled()
}

#[test]
fn a_relay_joins_a_mesh_phase_by_phase_and_an_update_arrives_once_at_any_moment() {
    use Role::{Core, CorePeer, NextPeer};
    let mut bed = last_link();
    let mut watch = Watch::new(4);
    let mut most = 0.0_f64;
    watch.run(&mut bed, 1500, |bed| {
        let there = bed.branches(3).iter().any(|of| of.role == NextPeer);
        if there && bed.is_moving() {
            // All that the others send comes over 0, too; and what 3 sends goes from there to the others.
            most = most.max(bed.reserved(0, 3).0);
            assert_eq!(bed.reserved(3, 1).0, 8000.0);
            assert_eq!(bed.reserved(0, 1).0, 9000.0);
            assert_eq!(bed.outside(3).as_deref(), Some("it is about to join the core"));
            assert_eq!(bed.controller.audit(), Ok(()));
        }
        is_in(bed)
    });
    assert_eq!(most, 7000.0);
    let both = vec![
        vec![(1, CorePeer), (2, CorePeer), (3, Core)],
        vec![(0, CorePeer), (2, CorePeer), (3, NextPeer)],
        vec![(0, CorePeer), (1, CorePeer), (3, NextPeer)],
        vec![(0, CorePeer), (1, NextPeer), (2, NextPeer)],
    ];
    assert!(watch.lasted(|roles| *roles == both) >= ARRIVAL, "{:#?}", watch.seen);
    bed.are_peers(&[0, 1, 2, 3]);
    assert_eq!(bed.reserved(0, 3).0, 1000.0, "what was needed in between is given back");
    assert!(bed.why().starts_with("a relay has links with all of its core now"), "{}", bed.why());
}

#[test]
fn a_controller_that_dies_while_a_relay_joins_goes_on_where_it_was_and_an_update_arrives_once() {
    // At every look: before, between, and after relays were told of each phase.
    for ticks in (0..700).step_by(3) {
        let mut bed = last_link();
        let mut watch = Watch::new(4);
        watch.run_for(&mut bed, ticks);
        bed.start_again();
        watch.run(&mut bed, 2000, is_in);
        bed.are_peers(&[0, 1, 2, 3]);
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

#[test]
fn who_refuses_next_peers_refuses_before_anything_has_changed_and_joins_at_once() {
    for refuses in [1, 2, 3] {
        let mut bed = last_link();
        bed.has_threads = Some(refuses);
        let mut watch = Watch::new(4);
        // It was told, refused, and all have let go of the others' next peers again.
        watch.run(&mut bed, 1500, |bed| bed.why().contains("a next peer needs one data thread"));
        watch.run(&mut bed, 300, |bed| bed.roles(0).contains(&(3, Role::Child)));
        assert_eq!(bed.roles(3), [(0, Role::Parent)]);
        bed.wait();
        bed.are_peers(&[0, 1, 2, 3]);
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

#[test]
fn a_link_that_fails_while_a_relay_joins_leaves_it_where_it_was() {
    for lost in [(0, 3), (1, 3), (2, 3), (1, 2)] {
        let mut bed = last_link();
        let mut watch = Watch::new(4);
        let is_between = |bed: &Bed| bed.branches(3).iter().any(|of| of.role == Role::NextPeer);
        watch.run(&mut bed, 1500, is_between);
        bed.report(lost, false);
        // If one of the core has left that, it joins in its place.
        bed.wait();
        assert_eq!(bed.controller.mesh(bed.comtree()).len(), 3, "three are left without {lost:?}");
        let has_next = |at: usize| bed.branches(at).iter().any(|of| of.role == Role::NextPeer);
        assert!(!(0..4).any(has_next));
        bed.report(lost, true);
        bed.wait();
        bed.are_peers(&[0, 1, 2, 3]);
    }
}

/// Each of them would end the joining, and wait for that.
#[test]
fn nobody_joins_a_core_while_members_of_a_relay_that_was_given_up_come_back() {
    let mut bed = Bed::of(5, &[&ALL[..5], &[(0, 4)]].concat(), Core::Mesh);
    (0..5).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    let given_up = bed.relays[4].0;
    bed.controller.handle_disconnect(bed.now, given_up);
    bed.relays[0].1.set_link(bed.now, LinkReport { link: LinkId(6), up: false, delay_us: 0 });
    let events: Vec<Event> = (0..10).flat_map(|_| bed.tick(|at| at != 4)).collect();
    assert!(events.contains(&Event::RelayLost(given_up)), "{events:?}");
    let ends = [bed.relays[2].0, bed.relays[3].0];
    bed.controller.add_link(ends, rate(1_000_000), 1000).unwrap();
    bed.commit();
    for _ in 10..200 {
        assert!(!bed.is_moving());
        bed.tick(|at| at != 4);
    }
    let joins = (0..700).any(|_| {
        bed.tick(|at| at != 4);
        bed.is_moving()
    });
    assert!(joins);
}

/// A member that comes far away ends the joining. What was sent over the link between the next peers is still on its way.
#[test]
fn a_next_peers_link_is_nobodys_standby_until_what_it_carried_has_arrived() {
    let links = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (3, 4)];
    let mut bed = Bed::of(5, &links, Core::Mesh);
    (0..4).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    bed.add_link(2, 3);
    let role = |bed: &Bed, at: usize, to: u16| {
        let branches = bed.branches(at);
        branches.iter().find(|of| of.site == to + 1).map(|of| of.role)
    };
    let between = |bed: &Bed| [(1, 3), (2, 3)].map(|(at, to)| role(bed, at, to));
    let is_next = |role: &Option<Role>| *role == Some(Role::NextPeer);
    let mut ticks = 0;
    while !between(&bed).iter().any(is_next) {
        bed.tick(|_| true);
        ticks += 1;
        assert!(ticks < 1500, "no relay joins");
    }
    let began = bed.now;
    bed.enter(4, 4, 1000).unwrap();
    let is_standby = |role: Role| role.is_standby();
    while !between(&bed).into_iter().flatten().any(is_standby) {
        bed.tick(|_| true);
        assert!(bed.now.since(began) < 3 * ARRIVAL, "no link is a standby parent's");
    }
    let waited = bed.now.since(began);
    assert!(waited >= ARRIVAL, "{waited:?}");
}

#[test]
fn a_relay_joins_what_is_left_of_a_core_that_is_mended_without_loss() {
    // 3 lacks a link with 0 alone, and has all that it needs once 0 has lost its place.
    let mut bed = Bed::new(&[(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)], Core::Mesh);
    for at in [1, 0, 2, 3] {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    bed.report((0, 1), false);
    assert_eq!(bed.controller.why(bed.comtree()).unwrap().1, None);
    assert_eq!(bed.controller.mesh(bed.comtree()).len(), 1, "two are left");
    let mut watch = Watch::new(4);
    watch.run(&mut bed, 3000, |bed| {
        bed.controller.mesh(bed.comtree()).len() == 3 && bed.controller.is_settled()
    });
    bed.are_peers(&[1, 2, 3]);
    let was_next = |roles: &Vec<(u16, Role)>| roles.iter().any(|(_, role)| *role == Role::NextPeer);
    assert!(watch.seen.iter().any(|(_, roles)| was_next(&roles[3])), "{:#?}", watch.seen);
}

#[test]
fn nobody_joins_a_core_of_one_relay_at_once_when_it_is_mended() {
    let mut bed = Bed::new(&[(0, 1), (1, 2), (2, 3)], Core::Mesh);
    (0..4).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    bed.wait();
    let core = bed.controller.mesh(bed.comtree());
    let [core] = &core[..] else { panic!("two are in the core: {core:?}") };
    let is_core = |(link, _): &&(LinkId, (usize, usize))| *link == core.link;
    let (_, of_core) = *bed.links.iter().find(is_core).unwrap();
    assert_eq!(of_core, (0, 1), "{:?}", bed.links);
    bed.report(of_core, false);
    assert!(bed.controller.mesh(bed.comtree()).is_empty());
    // Another way between relays that can still be joined, which makes three that are all joined.
    bed.add_link(1, 3);
    bed.report((1, 2), false);
    assert!(bed.controller.mesh(bed.comtree()).is_empty(), "nobody joins while others are cut off");
    [(1, 2), (0, 1)].into_iter().for_each(|of| _ = bed.report(of, true));
    bed.wait();
    bed.are_peers(&[1, 2, 3]);
}

#[test]
fn who_comes_makes_no_other_core_at_once_though_it_would_be_larger() {
    let mut bed = Bed::new(&[(0, 1), (1, 2), (2, 3)], Core::Mesh);
    (0..2).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    bed.wait();
    bed.report((0, 1), false);
    let mesh = |bed: &Bed| bed.controller.mesh(bed.comtree()).len();
    let root = |bed: &Bed| bed.controller.tree(bed.comtree())[0].relay;
    assert_eq!(mesh(&bed), 0, "the core is one relay");
    let before = root(&bed);
    // On the way there is another relay, and these two are joined.
    bed.enter(3, 3, 1000).unwrap();
    assert_eq!((mesh(&bed), root(&bed)), (0, before));
    bed.report((0, 1), true);
    bed.wait();
    assert_eq!(mesh(&bed), 1, "two are the core again");
}

/// The root has most members, and loses its links with the others of the core, which keep theirs.
#[test]
fn what_is_left_of_a_core_where_fewer_are_does_not_become_the_root() {
    let mut bed = Bed::of(4, &[(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)], Core::Mesh);
    for (owner, at) in [0, 0, 0, 1, 2].into_iter().enumerate() {
        bed.enter(owner as u8, at, 1000).unwrap();
    }
    bed.wait();
    bed.are_peers(&[0, 1, 2]);
    let root = |bed: &Bed| bed.controller.tree(bed.comtree())[0].relay;
    let before = bed.relays[0].0;
    assert_eq!(root(&bed), before);
    bed.report_together(&[(0, 1), (0, 2)], false);
    assert_eq!(bed.controller.why(bed.comtree()).unwrap().1, None, "all are joined over 3");
    assert_eq!(root(&bed), before);
}

#[test]
fn who_has_no_room_between_stays_outside() {
    // 0 would have to bring 3 all that the others send.
    let mut bed = Bed::new(&ALL[..5], Core::Mesh);
    for (at, send) in [(0, 100_000), (1, 420_000), (2, 420_000), (3, 1000)] {
        bed.enter(at as u8, at, send).unwrap();
    }
    bed.add_link(2, 3);
    bed.wait();
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.outside(3).as_deref(), Some("too little is free for it to be in the core"));
}

/// What the watch is there for: it sees what is lost and what comes twice.
#[test]
fn a_relay_that_is_told_out_of_order_is_found() {
    let branch = |to: u16, link: u32, role: Role| {
        let rate = Default::default();
        Branch { link: LinkId(link), site: to, role, send: rate, receive: rate }
    };
    // 1 and 2 are a mesh over link 12; 3 has links 13 and 23.
    let check = |of_1: Role, of_3: [Role; 2], of_2: Role| {
        let at = |branches: Vec<Branch>| At { passes_once: is_doubled(&branches), branches };
        let relays = BTreeMap::from([
            (RelayId(1), at(vec![branch(2, 12, Role::CorePeer), branch(3, 13, of_1)])),
            (RelayId(2), at(vec![branch(1, 12, Role::CorePeer), branch(3, 23, of_2)])),
            (RelayId(3), at(vec![branch(1, 13, of_3[0]), branch(2, 23, of_3[1])])),
        ]);
        check_once(&relays, &[RelayId(1), RelayId(2), RelayId(3)])
    };
    use Role::{Core, CorePeer, LastPeer, NextPeer};
    assert_eq!(check(Core, [CorePeer, NextPeer], NextPeer), Ok(()));
    assert_eq!(check(CorePeer, [CorePeer, CorePeer], CorePeer), Ok(()));
    let twice = check(Core, [CorePeer, CorePeer], CorePeer).unwrap_err();
    assert!(twice.contains(": 2 times"), "{twice}");
    let lost = check(CorePeer, [CorePeer, LastPeer], LastPeer).unwrap_err();
    assert!(lost.contains(": 0 times"), "{lost}");
}
