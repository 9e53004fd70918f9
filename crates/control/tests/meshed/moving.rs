//! Planned changes of a world around its meshed core: relays outside it get other parents, and those go
//! that nobody needs any more (Forest §3.5). The mesh itself stays; `elsewhere` is about others.

use crate::bed::{ALL, Bed, world};
use canopy_control::signal::Role;
use canopy_control::{
    Account, Controller, Core, Enter, LinkReport, RelayId, Retry, Settings, TreeAsk,
};

/// Relays 0, 1 and 2 are a mesh, and 3 hangs on `parent`, which is 0 or 1, and has a link with the other.
fn one_below(parent: usize) -> Bed {
    let mut bed = one_link_below(parent);
    bed.add_link(1 - parent, 3);
    bed.are_peers(&[0, 1, 2]);
    assert_eq!(bed.roles(3), [(parent as u16, Role::Parent)]);
    bed
}

/// The same without that link.
fn one_link_below(parent: usize) -> Bed {
    let other = 1 - parent;
    let links: Vec<_> = ALL.into_iter().filter(|of| *of != (2, 3) && *of != (other, 3)).collect();
    let mut bed = Bed::new(&links, Core::Mesh);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000 << at).unwrap();
    }
    bed
}

impl Bed {
    pub(crate) fn add_link(&mut self, one: usize, other: usize) {
        let ends = [self.relays[one].0, self.relays[other].0];
        let rate = crate::bed::rate(1_000_000);
        let link = self.controller.add_link(ends, rate, 1000).unwrap();
        self.links.push((link, (one, other)));
        self.exchange();
    }

    /// The members of a relay move to another.
    pub(crate) fn relocate(&mut self, owner: u8, from: usize, to: usize) {
        let measured = vec![(self.relays[from].0, 1000), (self.relays[to].0, 1000)];
        let ask = Enter::new(world(), [owner; 16], measured);
        let of = self.controller.members().find(|of| of.owner == [owner; 16]).unwrap().clone();
        self.controller.relocate(self.now, &ask).unwrap();
        self.exchange();
        self.controller.give_up_place(of.world, of.owner, of.address).unwrap();
        self.exchange();
    }

    pub(crate) fn root(&self) -> u16 {
        self.controller.tree(self.comtree())[0].relay.0 - 1
    }

    pub(crate) fn why(&self) -> String {
        self.controller.why(self.comtree()).unwrap().0.to_owned()
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.controller.trees_on_the_way(self.comtree()).len() > 1
    }

    pub(crate) fn set_delay(&mut self, ends: (usize, usize), delay_us: u32) {
        let link = self.links.iter().find(|(_, of)| *of == ends).unwrap().0;
        for _ in 0..60 {
            for at in [ends.0, ends.1] {
                self.relays[at].1.set_link(self.now, LinkReport { link, up: true, delay_us });
            }
            self.renew();
        }
    }
}

#[test]
fn a_relay_of_the_core_drains_and_who_hangs_on_it_has_another_parent_before_it_goes() {
    for drains in [0, 1] {
        let mut bed = one_below(drains);
        let (d, other) = (drains as u16, 1 - drains as u16);
        assert_eq!(bed.root(), 0, "once the root drains, and once another");
        bed.controller.drain(bed.relays[drains].0, true).unwrap();
        bed.relocate(drains as u8, drains, 2);
        bed.succeeds = false;
        bed.wait();
        // The next parent is there, and the parent still is; the mesh is as it was.
        let mut both = vec![(d, Role::Parent), (other, Role::NextParent)];
        both.sort_by_key(|(relay, _)| *relay);
        assert_eq!(bed.roles(3), both);
        assert!(bed.roles(usize::from(other)).contains(&(3, Role::Child)));
        bed.are_peers(&[0, 1, 2]);
        // What 3 sends goes into the mesh at the one and then at the other: both have it reserved.
        for at in [d, other] {
            assert_eq!(bed.reserved(3, at).0, 8000.0);
            assert!(bed.reserved(usize::from(at), 2).0 >= 8000.0);
        }
        assert_eq!(bed.controller.tree(bed.comtree()).len(), 4, "nobody has gone");

        bed.succeeds = true;
        bed.wait();
        assert_eq!(bed.roles(3), [(other, Role::Parent)]);
        let peers = [other.min(2), other.max(2)];
        bed.are_peers(&peers);
        assert!(bed.branches(drains).is_empty(), "nothing leads over it");
        assert_eq!(bed.controller.tree(bed.comtree()).len(), 3);
        let gone = bed.relays[drains].0;
        let own = [Account::Out(gone), Account::In(gone), Account::Places(gone)];
        let accounts = bed.controller.accounts().filter(|(of, ..)| own.contains(of));
        let reserved: Vec<f64> = accounts.map(|(.., reserved)| reserved.bits).collect();
        assert_eq!(reserved, [0.0; 3], "nothing is reserved there");
    }
}

#[test]
fn a_relay_comes_that_joins_those_below_one_that_drains() {
    // 3 hangs on 1; 2 has no members, and links with 0 and 3.
    let mut bed = Bed::new(&[(0, 1), (1, 3)], Core::Mesh);
    for at in [0, 1, 3] {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    bed.add_link(0, 2);
    bed.add_link(2, 3);
    bed.controller.drain(bed.relays[1].0, true).unwrap();
    bed.relocate(1, 1, 0);
    bed.wait();
    assert!(bed.branches(1).is_empty(), "{}", bed.why());
    let tree = bed.controller.tree(bed.comtree());
    let mut relays: Vec<u16> = tree.iter().map(|hop| hop.relay.0 - 1).collect();
    relays.sort_unstable();
    assert_eq!(relays, [0, 2, 3]);
}

#[test]
fn a_relay_that_alone_joins_others_stays_and_why_says_so() {
    let mut bed = one_link_below(0);
    // 3 has a link with 0 alone.
    bed.controller.drain(bed.relays[0].0, true).unwrap();
    bed.relocate(0, 0, 1);
    bed.wait();
    assert!(bed.why().starts_with("it stays over r0, which drains: "), "{}", bed.why());
    assert_eq!(bed.roles(3), [(0, Role::Parent)]);
    bed.are_peers(&[0, 1, 2]);
}

#[test]
fn a_controller_that_starts_on_the_way_has_the_tree_in_force_and_goes_on() {
    let mut bed = one_below(0);
    bed.controller.drain(bed.relays[0].0, true).unwrap();
    bed.relocate(0, 0, 2);
    bed.succeeds = false;
    bed.wait();
    assert!(bed.is_moving());
    let (tree, mesh) = (bed.controller.tree(bed.comtree()), bed.controller.mesh(bed.comtree()));
    let start = Controller::start(Settings::default(), Retry::default(), bed.now, &mut bed.storage);
    bed.controller = start.unwrap();
    assert_eq!(bed.controller.tree(bed.comtree()), tree);
    assert_eq!(bed.controller.mesh(bed.comtree()), mesh);
    assert!(bed.is_moving());
    bed.succeeds = true;
    bed.wait();
    assert!(bed.branches(0).is_empty(), "{}", bed.why());
    assert_eq!(bed.roles(3), [(1, Role::Parent)]);
}

#[test]
fn a_step_that_is_not_done_is_taken_back_and_the_mesh_is_as_before() {
    let mut bed = one_below(1);
    bed.set_delay((1, 3), 90_000);
    let before = bed.controller.mesh(bed.comtree());
    bed.succeeds = false;
    bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
    bed.exchange();
    assert!(bed.is_moving());
    (0..40).for_each(|_| bed.renew());
    assert!(!bed.is_moving());
    assert!(bed.why().starts_with("a move ended before its end"), "{}", bed.why());
    assert_eq!(bed.roles(3), [(1, Role::Parent)]);
    assert_eq!(bed.controller.mesh(bed.comtree()), before);
    assert_eq!(bed.reserved(0, 2).0, 1000.0, "what the other way needed is given back");
}

#[test]
fn a_meshed_world_is_moved_and_improved_around_its_core() {
    for by_operator in [true, false] {
        let mut bed = one_below(1);
        bed.set_delay((1, 3), 90_000);
        let before = bed.controller.mesh(bed.comtree());
        let plan = bed.controller.plan_move(&world(), TreeAsk::default()).unwrap();
        assert_eq!(plan[0].hung, 1);
        assert!(plan[0].planned_cost < plan[0].cost);
        match by_operator {
            true => assert_eq!(
                bed.controller.move_world(&world(), TreeAsk::default()),
                Ok(plan.clone())
            ),
            false => {
                let why = bed.controller.improve(bed.comtree());
                assert!(why.starts_with("it is being improved"), "{why}");
            }
        }
        bed.wait();
        assert_eq!(bed.roles(3), [(0, Role::Parent)]);
        bed.are_peers(&[0, 1, 2]);
        assert_eq!(bed.controller.mesh(bed.comtree()), before);
        // It costs what was said, and there is nothing better.
        let again = bed.controller.plan_move(&world(), TreeAsk::default()).unwrap();
        assert_eq!((again[0].hung, again[0].cost), (0, plan[0].planned_cost));
        assert!(bed.controller.improve(bed.comtree()).starts_with("it stays"));
    }
}

#[test]
fn any_relay_of_a_mesh_may_be_its_root_and_no_other() {
    let mut bed = one_link_below(1);
    let ask = |root: usize| TreeAsk { root: Some(RelayId(root as u16 + 1)), ..TreeAsk::default() };
    let branches = |bed: &Bed| (0..4).map(|at| bed.branches(at)).collect::<Vec<_>>();
    let before = branches(&bed);
    for root in [2, 1, 0] {
        let moved = bed.controller.move_world(&world(), ask(root)).unwrap();
        bed.exchange();
        assert_eq!((bed.root(), moved[0].hung), (root as u16, 0));
        assert_eq!(branches(&bed), before, "relays do not notice");
    }
    let refusal = bed.controller.move_world(&world(), ask(3)).unwrap_err().to_string();
    let why = "r3 can be in no meshed core of 3 relays, and the root is in the largest; it may be any of r0, r1, r2";
    assert!(refusal.contains(why), "{refusal}");
}
