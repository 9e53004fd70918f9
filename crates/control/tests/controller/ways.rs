//! Relays that have found ways to the root while the controller was away: they are the tree from then on, if that can be
//! reserved, and nobody notices.

use crate::bed::{Bed, limits, new_world, world};
use canopy_control::signal::{Branch, FoundWay, Role};
use canopy_control::{
    Enter, Event, Item, ItemKey, LinkId, Message, Name, RelayId, RelaySide, Settings, TreeAsk,
};
use canopy_wire::{Comtree, Time};
use core::time::Duration;

/// A ring of five relays, in which most have no neighbour but their parent and their child.
const RING: [(usize, usize, u32); 5] =
    [(0, 1, 1000), (1, 2, 1000), (2, 3, 1000), (3, 4, 1000), (4, 0, 1000)];

/// The ring with a member at each relay, who sends so much, and its comtree with its root at relay 0.
fn ring(send: u32) -> (Bed, Comtree) {
    let settings = Settings { lease: Duration::from_secs(3600), ..Settings::default() };
    let mut bed = Bed::with(settings, 5, 10_000_000, &RING);
    for at in 0..5 {
        _ = bed.enter(at, &[usize::from(at)], limits(send, send)).unwrap();
    }
    bed.exchange();
    let root = TreeAsk { root: Some(bed.relays[0].0), ..TreeAsk::default() };
    _ = bed.controller.move_world(&world(), root);
    (0..20).for_each(|_| _ = bed.exchange());
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    assert_eq!(bed.links_of_tree(), [1, 2, 4, 5], "1 and 2 on one side, 4 and 3 on the other");
    (bed, comtree)
}

fn branches(side: &RelaySide, comtree: Comtree) -> Vec<Branch> {
    match side.items().get(&ItemKey::Comtree(comtree)) {
        Some(Item::Comtree { branches, .. }) => branches.clone(),
        _ => Vec::new(),
    }
}

impl Bed {
    fn role_on(&self, at: usize, comtree: Comtree, link: u32) -> Option<Role> {
        let branches = branches(&self.relays[at].1, comtree);
        branches.iter().find(|of| of.link == LinkId(link)).map(|of| of.role)
    }

    /// The controller dies, the link between relays 0 and 1 fails, relay 2 is joined over relay 3 and relay 1 over relay 2; and
    /// a controller starts.
    fn find_ways(&mut self, comtree: Comtree) {
        for (at, over, instead_of) in [(1, 2, 1), (2, 3, 2)] {
            let [over, instead_of] = [over, instead_of].map(LinkId);
            self.relays[at].1.set_ways(self.now, [FoundWay { comtree, over, instead_of }]);
        }
        for (link, (from, to, _)) in (1..).zip(RING) {
            self.set_link(link, [from, to], link != 1);
        }
        self.start_again();
    }

    /// Whoever is told to let go of its parent has no other way either.
    fn forget_ways(&mut self, comtree: Comtree) {
        for (_, side) in &mut self.relays {
            if branches(side, comtree).iter().all(|of| of.role != Role::Parent) {
                side.set_ways(self.now, []);
            }
        }
    }

    fn above(&self, comtree: Comtree, at: usize) -> Option<(RelayId, LinkId)> {
        let tree = self.controller.tree(comtree);
        tree.iter().find(|hop| hop.relay == self.relays[at].0).and_then(|hop| hop.above)
    }
}

/// Four relays, of which each has a link with each other one. Relay 0 is the root.
fn all_joined() -> Bed {
    let links = [(0, 1, 1000), (0, 2, 1000), (0, 3, 1000), (1, 2, 900), (1, 3, 900), (2, 3, 900)];
    let settings = Settings { lease: Duration::from_secs(3600), ..Settings::default() };
    let mut bed = Bed::with(settings, 4, 10_000_000, &links);
    for at in 0..4 {
        _ = bed.enter(at, &[usize::from(at)], limits(1000, 1000)).unwrap();
    }
    bed.exchange();
    bed
}

/// Between all pairs of relays of a tree there is a branch at both ends: the tree's, a standby's or a spare one.
#[test]
fn links_between_relays_of_a_tree_are_spare_while_it_stays() {
    let mut bed = all_joined();
    (0..20).for_each(|_| _ = bed.exchange());
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    let roles = |bed: &Bed| -> Vec<Vec<Role>> {
        let of = |side: &RelaySide| branches(side, comtree).iter().map(|of| of.role).collect();
        bed.relays.iter().map(|(_, side)| of(side)).collect()
    };
    let count =
        |roles: &[Vec<Role>], role| roles.iter().flatten().filter(|of| **of == role).count();
    let at_rest = roles(&bed);
    assert!(at_rest.iter().all(|of| of.len() == 3), "{at_rest:?}");
    assert!(count(&at_rest, Role::Spare) >= 2, "{at_rest:?}");
    // A step is under way, and does not end.
    bed.waits = true;
    let root = bed.relays[3].0;
    _ = bed.controller.move_world(&world(), TreeAsk { root: Some(root), ..TreeAsk::default() });
    bed.exchange();
    let moving = roles(&bed);
    assert!(count(&moving, Role::NextParent) > 0, "{moving:?}");
    assert_eq!(count(&moving, Role::Spare), 0, "{moving:?}");
}

/// They do not know what that is. The bed sees to it.
#[test]
fn relays_of_earlier_releases_are_not_told_of_spare_links() {
    let mut bed = all_joined();
    bed.earlier.extend([1, 2, 3]);
    bed.start_again();
    (0..20).for_each(|_| _ = bed.exchange());
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    bed.set_link(6, [2, 3], false);
    (0..4).for_each(|_| _ = bed.exchange());
    bed.set_link(6, [2, 3], true);
    (0..4).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.controller.tree(comtree).len(), 4);
}

#[test]
fn ways_that_relays_have_found_are_the_tree_and_nobody_lets_go_of_its_parent() {
    let (mut bed, comtree) = ring(1000);
    bed.find_ways(comtree);
    let parted = bed.parted;
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [2, 3, 4, 5]);
    let id = |at: usize| bed.relays[at].0;
    assert_eq!(bed.above(comtree, 1), Some((id(2), LinkId(2))));
    assert_eq!(bed.above(comtree, 2), Some((id(3), LinkId(3))));
    assert_eq!(
        [(1, 2), (2, 3)].map(|(at, link)| bed.role_on(at, comtree, link)),
        [Some(Role::Parent); 2]
    );
    assert_eq!(
        [(2, 2), (3, 3)].map(|(at, link)| bed.role_on(at, comtree, link)),
        [Some(Role::Child); 2]
    );
    assert_eq!(bed.parted, parted, "nobody was without a parent");
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// A relay on a detour is where its standby parent is, though the link to its parent is up again.
#[test]
fn ways_that_lead_over_relays_on_detours_are_the_tree_with_these() {
    let (mut bed, comtree) = ring(1000);
    let (over, instead_of) = (LinkId(4), LinkId(5));
    bed.relays[3].1.set_detours(bed.now, [comtree]);
    bed.relays[4].1.set_detours(bed.now, [comtree]);
    bed.relays[4].1.set_ways(bed.now, [FoundWay { comtree, over, instead_of }]);
    for (link, (from, to, _)) in (1..).zip(RING) {
        bed.set_link(link, [from, to], link != 5);
    }
    bed.start_again();
    let parted = bed.parted;
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3, 4]);
    assert_eq!(bed.parted, parted, "nobody was without a parent");
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// It may be on a way of which nobody knows.
#[test]
fn a_relay_that_its_neighbours_hear_is_waited_for_a_while() {
    let (mut bed, comtree) = ring(1000);
    bed.find_ways(comtree);
    bed.connected = 4;
    let mut wait = |seconds: u32| {
        (0..2 * seconds).for_each(|_| _ = bed.exchange());
        bed.links_of_tree()
    };
    assert_eq!(wait(7), [1, 2, 4, 5]);
    assert_eq!(wait(3), [2, 3, 4, 5]);
    // If no link to it is up, nobody waits for it.
    let (mut bed, comtree) = ring(1000);
    bed.find_ways(comtree);
    for (link, ends) in [(4, [3, 4]), (5, [4, 0])] {
        bed.set_link(link, ends, false);
    }
    bed.connected = 4;
    let mut wait = |seconds: u32| {
        (0..2 * seconds).for_each(|_| _ = bed.exchange());
        bed.links_of_tree()
    };
    assert_eq!(wait(4), [1, 2, 3, 5], "3 is where it can be joined");
    assert_eq!(wait(4), [1, 2, 3], "4 is given up");
}

/// The network of the controller was away for longer than a relay may be silent. Whoever is back first is next to one of the
/// others only.
#[test]
fn whoever_is_heard_first_again_says_nothing_of_the_others() {
    let (mut bed, comtree) = ring(1000);
    bed.connected = 0;
    (0..60).for_each(|_| _ = bed.exchange());
    for (at, over, instead_of) in [(1, 2, 1), (2, 3, 2)] {
        let [over, instead_of] = [over, instead_of].map(LinkId);
        bed.relays[at].1.set_ways(bed.now, [FoundWay { comtree, over, instead_of }]);
    }
    for (link, (from, to, _)) in (1..).zip(RING) {
        bed.set_link(link, [from, to], link != 1);
    }
    let parted = bed.parted;
    let mut events = Vec::new();
    for connected in 1..=5 {
        bed.connected = connected;
        events.extend(bed.exchange());
    }
    events.extend(bed.exchange());
    let lost = events.iter().filter(|event| matches!(event, Event::RelayLost(_)));
    assert_eq!(lost.count(), 0, "{events:?}");
    assert_eq!(bed.links_of_tree(), [2, 3, 4, 5]);
    assert_eq!(bed.parted, parted, "nobody was without a parent");
}

/// Another world has what the way round would need.
#[test]
fn relays_let_go_of_ways_that_cannot_be_reserved_before_they_are_told_of_others() {
    let (mut bed, comtree) = ring(100_000);
    let other = Name::new("other").unwrap();
    bed.controller.create_world(new_world(other.clone())).unwrap();
    for at in [2, 3] {
        let near = vec![(bed.relays[at].0, 1000)];
        let limits = Some(limits(800_000, 800_000));
        let ask = Enter::new(other.clone(), [at as u8; 16], near);
        _ = bed.controller.enter(bed.now, &Enter { limits, ..ask }).unwrap();
    }
    bed.exchange();
    let parted = bed.parted;
    bed.find_ways(comtree);
    for _ in 0..250 {
        bed.tick();
        bed.forget_ways(comtree);
    }
    assert_eq!(bed.parted, parted + 2, "both have let go");
    assert_eq!(bed.links_of_tree(), [1, 2, 4, 5], "there is no other tree until a link is back");
    let ways_up = |at: usize| {
        let of = branches(&bed.relays[at].1, comtree);
        of.into_iter().filter(|of| of.role == Role::Parent).map(|of| of.link.0).collect::<Vec<_>>()
    };
    assert_eq!([1, 2, 3, 4].map(ways_up), [[1], [2], [4], [5]]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn nothing_planned_begins_while_relays_are_on_ways_that_are_not_the_tree() {
    let (mut bed, comtree) = ring(1000);
    let (over, instead_of) = (LinkId(3), LinkId(2));
    bed.relays[2].1.set_ways(bed.now, [FoundWay { comtree, over, instead_of }]);
    // It is told while another relay has not been heard yet.
    bed.start_again();
    let root = TreeAsk { root: Some(bed.relays[2].0), ..TreeAsk::default() };
    let refusal = bed.controller.move_world(&world(), root).unwrap_err().to_string();
    assert!(refusal.contains("has yet to say how its links stand"), "{refusal}");
}

#[test]
fn a_relay_tells_of_its_ways_before_each_beat_and_at_once_when_they_change() {
    let at = Time::from_millis;
    let mut side = RelaySide::new(1);
    let told = |side: &mut RelaySide, now: u64| -> Vec<Message> {
        side.handle_timeout(at(now));
        let messages = core::iter::from_fn(|| side.poll_transmit());
        messages.map(|bytes| Message::decode(&bytes).unwrap()).collect()
    };
    let way = FoundWay { comtree: Comtree(16), over: LinkId(2), instead_of: LinkId(3) };
    assert!(matches!(told(&mut side, 0)[..], [Message::Beat { .. }]));
    side.set_ways(at(100), [way]);
    for now in [100, 600] {
        let told = told(&mut side, now);
        let [Message::Ways(of), Message::Beat { .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(of[..], [way]);
    }
    side.set_ways(at(700), []);
    assert!(matches!(told(&mut side, 700)[..], [Message::Beat { .. }]));
    assert!(Message::decode(&Message::Ways(vec![way; 1_025]).encode()).is_err());
}
