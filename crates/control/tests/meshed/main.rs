//! A world whose core is a mesh (federated games §3.1), with relays that answer at once.

#[allow(dead_code, reason = "others use the rest of it")]
mod bed;
mod elsewhere;
#[path = "../flooding/mod.rs"]
mod flooding;
mod joining;
mod leaving;
mod moving;
mod watch;

use bed::{ALL, Bed, rate, world};
use canopy_control::signal::Role;
use canopy_control::{Controller, Core, Event, Retry, Settings, WorldChanges};

#[test]
fn all_relays_with_members_hear_each_other_directly_and_each_link_bears_what_its_ends_send() {
    let mut bed = Bed::new(&ALL, Core::Mesh);
    for (at, send) in [(0, 1000), (1, 2000), (2, 4000), (3, 8000)] {
        bed.enter(at as u8, at, send).unwrap();
    }
    bed.are_peers(&[0, 1, 2, 3]);
    for (at, to, expected) in [(0, 1, (1000.0, 2000.0)), (2, 3, (4000.0, 8000.0))] {
        assert_eq!(bed.reserved(at, to), expected);
    }
    bed.enter(9, 2, 100).unwrap();
    assert_eq!(bed.reserved(2, 0), (4100.0, 1000.0));
    assert_eq!(bed.reserved(1, 2), (2000.0, 4100.0));
    // A controller that starts again has the same.
    let before = bed.controller.mesh(bed.comtree());
    assert_eq!(before.len(), 6);
    let started =
        Controller::start(Settings::default(), Retry::default(), bed.now, &mut bed.storage);
    assert_eq!(started.as_ref().unwrap().mesh(bed.comtree()), before);
    assert_eq!(started.unwrap().audit(), Ok(()));
}

#[test]
fn a_relay_that_lacks_a_link_is_a_child_until_it_has_it() {
    let without = &ALL[..5];
    let mut bed = Bed::new(without, Core::Mesh);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.outside(2), None);
    assert_eq!(bed.outside(3).as_deref(), Some("it has no link that can be used with r2"));
    let roles = bed.roles(3);
    assert!(matches!(roles[..], [(0 | 1, Role::Parent)]), "{roles:?}");
    let ends = [bed.relays[2].0, bed.relays[3].0];
    let link = bed.controller.add_link(ends, rate(1_000_000), 1000).unwrap();
    bed.links.push((link, (2, 3)));
    // It is looked at with the next beats of the links.
    bed.report((2, 3), false);
    bed.report((2, 3), true);
    bed.wait();
    bed.are_peers(&[0, 1, 2, 3]);
    assert_eq!(bed.outside(3), None);
}

#[test]
fn who_loses_a_link_of_the_mesh_leaves_the_core_and_comes_back() {
    for lost in ALL {
        let mut bed = Bed::new(&ALL, Core::Mesh);
        for at in 0..4 {
            bed.enter(at as u8, at, 1000).unwrap();
        }
        let told = bed.report(lost, false);
        assert!(told.iter().any(|event| matches!(event, Event::Reshaped { .. })), "{told:?}");
        let (_, broken) = bed.controller.why(bed.comtree()).unwrap();
        assert_eq!(broken, None);
        assert_eq!(bed.controller.mesh(bed.comtree()).len(), 3, "three are left");
        let outside: Vec<usize> = (0..4).filter(|at| bed.outside(*at).is_some()).collect();
        assert_eq!(outside.len(), 1);
        assert!(outside[0] == lost.0 || outside[0] == lost.1);
        let in_core: Vec<u16> = (0..4).filter(|at| usize::from(*at) != outside[0]).collect();
        bed.are_peers(&in_core);
        let roles = bed.roles(outside[0]);
        assert!(matches!(roles[..], [(_, Role::Parent)]), "{roles:?}");
        bed.report(lost, true);
        bed.wait();
        bed.are_peers(&[0, 1, 2, 3]);
    }
}

#[test]
fn the_root_may_go_and_the_others_stay_as_they_are() {
    let mut bed = Bed::new(&ALL, Core::Mesh);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    let root = bed.controller.tree(bed.comtree())[0].relay;
    let there = bed.controller.members().find(|member| member.relay == root);
    let there = there.map(|member| (member.world, member.address)).unwrap();
    bed.controller.leave(there.0, there.1).unwrap();
    bed.exchange();
    let left: Vec<u16> = (0..4).filter(|at| *at != root.0 - 1).collect();
    bed.are_peers(&left);
    assert!(bed.branches(usize::from(root.0) - 1).is_empty());
}

#[test]
fn a_link_that_is_full_refuses_a_member_and_keeps_a_new_relay_outside() {
    let mut bed = Bed::new(&ALL, Core::Mesh);
    for at in 0..3 {
        bed.enter(at as u8, at, 300_000).unwrap();
    }
    bed.enter(10, 1, 500_000).unwrap();
    let refusal = bed.enter(11, 1, 200_000).unwrap_err().to_string();
    assert!(refusal.contains("the link") && refusal.contains("from r1 to"), "{refusal}");
    assert!(refusal.contains("200000 bit/s") && refusal.contains("100000 bit/s"), "{refusal}");
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_world_gets_a_mesh_and_another_core() {
    let mut bed = Bed::new(&ALL, Core::Center);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    let set = |bed: &mut Bed, core| {
        let changes = WorldChanges { core: Some(core), ..WorldChanges::default() };
        bed.controller.set_world(&world(), changes).unwrap();
        bed.exchange();
    };
    set(&mut bed, Core::Mesh);
    bed.are_peers(&[0, 1, 2, 3]);
    set(&mut bed, Core::All);
    for at in 0..4 {
        let roles = bed.roles(at);
        assert!(!roles.is_empty() && roles.iter().all(|(_, role)| *role == Role::Core));
    }
    assert_eq!(bed.controller.mesh(bed.comtree()), []);
}
