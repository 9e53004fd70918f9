//! Relays that nothing joins: those that can be joined are, and all are again once that is possible.

use crate::bed::{Bed, SQUARE, limits, world};
use canopy_control::signal::{Branch, Role};
use canopy_control::{Event, Item, ItemKey, RelayId, RelaySide};
use canopy_wire::Comtree;

impl Bed {
    fn comtree(&self) -> Comtree {
        self.controller.world(&world()).unwrap().comtrees[0]
    }

    fn broken(&self) -> Option<&str> {
        self.controller.why(self.comtree()).unwrap().1
    }

    /// What a relay has over a link.
    fn role(&self, at: usize, link: u32) -> Option<Role> {
        let item = self.relays[at].1.items().get(&ItemKey::Comtree(self.comtree()));
        let branches: &[Branch] = match item {
            Some(Item::Comtree { branches, .. }) => branches,
            _ => &[],
        };
        branches.iter().find(|branch| branch.link.0 == link).map(|branch| branch.role)
    }
}

/// r5 is the hub of r0 to r3, and a longer way over r4 joins r2 and r3. There are two members at r2.
fn hub(send: u32) -> Bed {
    let star = [(0, 5, 1000), (1, 5, 1000), (2, 5, 1000), (3, 5, 1000)];
    let links = [&star[..], &[(2, 4, 2500), (4, 3, 2500)]].concat();
    let mut bed = Bed::new(6, 10_000_000, &links);
    for (owner, at) in [2, 2, 3].into_iter().enumerate() {
        bed.enter(owner as u8, &[at], limits(send, 1_000_000)).unwrap();
    }
    (0..2).for_each(|at| _ = bed.enter(at as u8 + 3, &[at], limits(1000, 500_000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3, 4]);
    bed
}

fn kill_hub(bed: &mut Bed) -> Vec<Event> {
    bed.connected = 5;
    (0..4).for_each(|at| bed.set_link(at as u32 + 1, [at, 5], false));
    bed.controller.handle_disconnect(bed.now, RelayId(6));
    bed.exchange()
}

#[test]
fn children_of_a_dead_hub_are_joined_by_another_way_though_leaves_are_cut_off() {
    let mut bed = hub(1000);
    let events = kill_hub(&mut bed);
    assert!(events.iter().any(|event| matches!(event, Event::Broken { .. })), "{events:?}");
    assert_eq!(bed.broken(), Some("r0, r1 are cut off from the others"));
    let roles = [(2, 5), (4, 5), (4, 6), (3, 6)].map(|(at, link)| bed.role(at, link));
    let is_joined = |role: &Option<Role>| role.is_some_and(|role| !role.is_standby());
    assert!(roles.iter().all(is_joined), "{roles:?}");
    assert_eq!(bed.controller.audit(), Ok(()));
    // Nothing of it changes, whatever else is heard, or whoever comes.
    let tree = bed.controller.tree(bed.comtree());
    bed.set_link(5, [2, 4], true);
    bed.enter(5, &[3], limits(1000, 1000)).unwrap();
    let events = bed.exchange();
    let changes = |event: &Event| matches!(event, Event::Broken { .. } | Event::Reshaped { .. });
    assert!(!events.iter().any(changes), "{events:?}");
    assert_eq!(bed.controller.tree(bed.comtree()), tree);
    // The hub comes back, and knows nothing.
    bed.connected = 6;
    bed.relays[5].1 = RelaySide::new(2);
    (0..4).for_each(|at| bed.set_link(at as u32 + 1, [at, 5], true));
    bed.parted = 0;
    bed.exchange();
    assert_eq!((bed.broken(), bed.parted), (None, 0));
    assert_eq!(bed.controller.tree(bed.comtree()), tree, "it was one tree all the while");
    for hop in tree {
        let Some((above, link)) = hop.above else { continue };
        let ends = [hop.relay, above].map(|relay| usize::from(relay.0) - 1);
        assert!(ends.iter().all(|at| bed.role(*at, link.0).is_some()), "{hop:?}");
    }
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// The hub comes back, and its links come up one after the other. With all of them the tree is whole that is there; with
/// one less another one would do, in which somebody hangs on who was its child.
#[test]
fn the_last_link_of_a_relay_that_comes_back_is_waited_for_but_not_long() {
    for comes in [true, false] {
        let mut bed = hub(1000);
        kill_hub(&mut bed);
        let tree = bed.controller.tree(bed.comtree());
        let is_used = |link: &u32| tree.iter().any(|hop| hop.above.is_some_and(|a| a.1.0 == *link));
        let last = [3, 4].into_iter().find(is_used).unwrap();
        (bed.connected, bed.relays[5].1) = (6, RelaySide::new(2));
        for link in (1..=4).filter(|link| *link != last) {
            bed.set_link(link, [link as usize - 1, 5], true);
        }
        (0..60).for_each(|_| _ = bed.tick());
        assert_eq!(bed.broken(), Some("r0, r1 are cut off from the others"));
        if comes {
            bed.set_link(last, [last as usize - 1, 5], true);
        }
        (0..60).for_each(|_| _ = bed.tick());
        assert_eq!(bed.broken(), None, "{last} has come up: {comes}");
        assert_eq!(bed.controller.tree(bed.comtree()) == tree, comes);
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

/// A relay and its parent that changed places would lose what is sent between them meanwhile.
#[test]
fn who_is_whose_parent_stays_in_what_stands() {
    let ends: Vec<[usize; 2]> = (0..7).map(|at| [at, (at + 1) % 7]).collect();
    let ring: Vec<_> = ends.iter().map(|[one, other]| (*one, *other, 1000)).collect();
    // Which root is the best depends on what they send.
    for (busy, failing) in (0..7).flat_map(|busy| (0..7).map(move |failing| (busy, failing))) {
        let mut bed = Bed::new(7, 10_000_000, &ring);
        let send = |at| if at == busy { 100_000 } else { 1000 };
        (0..7).for_each(|at| _ = bed.enter(at as u8, &[at], limits(send(at), 100_000)).unwrap());
        bed.exchange();
        let roles = |bed: &Bed| -> Vec<[Option<Role>; 2]> {
            let role = |link: usize| ends[link].map(|at| bed.role(at, link as u32 + 1));
            (0..7).map(role).collect()
        };
        let stands = |roles: &[Option<Role>; 2]| roles.iter().flatten().any(|of| !of.is_standby());
        let before = roles(&bed);
        bed.set_link(failing as u32 + 1, ends[failing], false);
        bed.exchange();
        let after = roles(&bed);
        let stood = (0..7).filter(|link| stands(&before[*link]) && stands(&after[*link]));
        let turned = stood.filter(|link| before[*link] != after[*link]).count();
        // The smaller of both parts has three relays at most.
        assert!(turned <= 2, "{busy} sends, without {failing}: {before:?} {after:?}");
    }
}

/// What a link that is down would need is reserved, so that all is carried once it is up again.
#[test]
fn what_could_not_be_carried_once_all_are_together_again_is_not_joined() {
    // What r2 and r3 send to the leaves does not fit on one of their links with the hub.
    let mut bed = hub(300_001);
    kill_hub(&mut bed);
    assert_eq!([(2, 5), (3, 6)].map(|(at, link)| bed.role(at, link)), [None, None]);
    assert_eq!(bed.broken(), Some("r0, r1, r3 are cut off from the others"));
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_link_that_fails_is_gone_round_while_a_leaf_is_cut_off() {
    let links = [&SQUARE[..], &[(0, 4, 1000)]].concat();
    let mut bed = Bed::new(5, 10_000_000, &links);
    (0..5).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3, 5]);
    bed.set_link(5, [0, 4], false);
    bed.exchange();
    assert_eq!(bed.broken(), Some("r4 is cut off from the others"));
    assert_eq!(bed.links_of_tree(), [1, 2, 3, 5], "what stands goes on");
    bed.set_link(2, [1, 2], false);
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 3, 4, 5]);
    assert_eq!(bed.broken(), Some("r4 is cut off from the others"));
    // The next one parts what is left, and a relay that leaves is missed by nobody.
    bed.set_link(3, [2, 3], false);
    bed.exchange();
    assert_eq!(bed.broken(), Some("r2, r4 are cut off from the others"));
    let gone = bed.controller.members().find(|member| member.relay == RelayId(5)).unwrap();
    let (world, address) = (gone.world, gone.address);
    bed.controller.leave(world, address).unwrap();
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    bed.set_link(3, [2, 3], true);
    let events = bed.exchange();
    assert!(events.iter().any(|event| matches!(event, Event::Reshaped { .. })), "{events:?}");
    assert_eq!((bed.broken(), bed.links_of_tree()), (None, vec![1, 3, 4]));
    assert_eq!(bed.controller.audit(), Ok(()));
}
