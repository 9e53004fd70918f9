//! Links and relays that an operator removes while comtrees run over them.

use crate::bed::{Bed, SQUARE, limits, new_relay, new_world, world};
use canopy_control::signal::Role;
use canopy_control::{
    Enter, Event, Item, ItemKey, LinkId, Name, NewRelay, NewWorld, Refusal, Relay, RelayId,
    RelaySide, RelayState, Settings, TreeAsk,
};

/// A square with a member at each relay, whose tree has the links 1, 2 and 3.
fn square() -> Bed {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    bed
}

impl Bed {
    fn is_removing(&self, link: u32) -> bool {
        self.controller.link(LinkId(link)).is_some_and(|link| link.removing)
    }

    fn relay(&self, id: u16) -> Option<&Relay> {
        self.controller.relays().find(|relay| relay.id == RelayId(id))
    }

    /// Whether any relay has this link.
    fn has_link(&self, link: u32) -> bool {
        let key = ItemKey::Link(LinkId(link));
        self.relays.iter().any(|(_, side)| side.items().contains_key(&key))
    }

    fn next_parents(&self) -> usize {
        let is_next = |item: &Item| match item {
            Item::Comtree { branches, .. } => branches.iter().any(|b| b.role == Role::NextParent),
            _ => false,
        };
        let items = self.relays.iter().flat_map(|(_, side)| side.items().values());
        items.filter(|item| is_next(item)).count()
    }
}

#[test]
fn comtrees_move_off_a_link_before_it_is_removed() {
    let mut bed = square();
    bed.waits = true;
    bed.controller.remove_link(LinkId(2)).unwrap();
    let events = bed.exchange();
    assert!(events.contains(&Event::LinkRemoving(LinkId(2))), "{events:?}");
    assert!(bed.is_removing(2) && bed.has_link(2) && bed.next_parents() == 1);
    assert_eq!((bed.links_of_tree(), bed.controller.trees_over(LinkId(2))), (vec![1, 2, 3], 1));
    // Asking again changes nothing.
    let accounts: Vec<_> = bed.controller.accounts().collect();
    assert_eq!(bed.controller.remove_link(LinkId(2)), Ok(()));
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), accounts);
    bed.waits = false;
    let events = bed.exchange();
    assert!(events.contains(&Event::LinkRemoved(LinkId(2))), "{events:?}");
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    bed.exchange();
    assert!(!bed.has_link(2) && bed.controller.is_settled());
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_link_that_a_world_needs_stays_as_it_was_and_the_refusal_names_both() {
    let mut bed = square();
    bed.controller.remove_link(LinkId(2)).unwrap();
    while bed.controller.link(LinkId(2)).is_some() {
        bed.exchange();
    }
    bed.exchange();
    let before: Vec<_> = bed.controller.accounts().collect();
    let refusal = bed.controller.remove_link(LinkId(3)).unwrap_err().to_string();
    assert!(refusal.starts_with("the link 3 from r2 to r3 carries the world w, and"), "{refusal}");
    let at_once = bed.controller.remove_link_at_once(LinkId(3));
    assert!(matches!(at_once, Err(Refusal::Needed { .. })), "{at_once:?}");
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), before, "nothing has changed");
    assert!(!bed.is_removing(3));
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    assert_eq!(bed.controller.links().filter(|(_, usable)| *usable).count(), 3);
}

#[test]
fn nothing_new_comes_over_a_link_that_is_being_removed() {
    // Two relays are joined over link 1 alone; the third has two ways to them.
    let mut bed = Bed::new(3, 10_000_000, &[(0, 1, 1000), (1, 2, 1000), (0, 2, 9000)]);
    (0..2).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1]);
    bed.waits = true;
    bed.controller.remove_link(LinkId(1)).unwrap();
    bed.exchange();
    assert!(bed.is_removing(1));
    // A move that is ended by a member for whom the tree grows begins anew.
    _ = bed.enter(2, &[2], limits(1000, 1000)).unwrap();
    bed.waits = false;
    (0..15).for_each(|_| _ = bed.exchange());
    assert_eq!((bed.links_of_tree(), bed.has_link(1)), (vec![2, 3], false));
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// A square with so many worlds of eight comtrees each, whose trees have the links 1, 2 and 3.
fn crowded(worlds: u8) -> Bed {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    for at in 0..4 {
        let relay = bed.controller.relays().nth(at).unwrap().clone();
        let (name, key, native, uplink) = (relay.name, relay.key, relay.native, relay.uplink);
        let new = NewRelay { name, key, native, uplink, places: 100, comtrees: 1024 };
        bed.controller.register(bed.now, new).unwrap();
    }
    for number in 0..worlds {
        let name = Name::new(&format!("w{number}")).unwrap();
        bed.controller.create_world(NewWorld { comtrees: 8, ..new_world(name.clone()) }).unwrap();
        for at in 0..4_u8 {
            let ask =
                Enter::new(name.clone(), [at; 16], vec![(bed.relays[usize::from(at)].0, 1000)]);
            let few = Some(limits(10, 10));
            bed.controller.enter(bed.now, &Enter { limits: few, ..ask }).unwrap();
        }
    }
    bed.exchange();
    bed
}

#[test]
fn a_link_with_more_trees_than_a_commit_has_room_for_is_removed() {
    for at_once in [false, true] {
        let mut bed = crowded(17);
        let trees = 17 * 8;
        assert_eq!(bed.controller.trees_over(LinkId(2)), trees);
        match at_once {
            true => bed.controller.remove_link_at_once(LinkId(2)).unwrap(),
            false => bed.controller.remove_link(LinkId(2)).unwrap(),
        }
        let is_gone = (0..20).any(|_| bed.exchange().contains(&Event::LinkRemoved(LinkId(2))));
        assert!(is_gone, "{at_once}");
        assert_eq!(bed.controller.trees_over(LinkId(4)), trees);
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

#[test]
fn moves_that_do_not_get_on_end_however_many_they_are() {
    let mut bed = crowded(17);
    bed.waits = true;
    bed.controller.remove_link(LinkId(2)).unwrap();
    bed.exchange();
    // Nobody turns within the time that a step has: all moves end, and begin again, some at a look.
    let events: Vec<Event> = (0..62).flat_map(|_| bed.exchange()).collect();
    let ended =
        |event: &&Event| matches!(event, Event::Reshaped { why, .. } if why.contains("after 30 s"));
    assert_eq!(events.iter().filter(ended).count(), 17 * 8);
    assert!(bed.is_removing(2));
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// However many there are, a look plans for eight: the controller does nothing else meanwhile.
#[test]
fn comtrees_leave_a_relay_that_drains_some_at_a_look_and_all_in_the_end() {
    let mut bed = crowded(3);
    let worlds: Vec<_> = bed.controller.worlds().cloned().collect();
    let comtrees: Vec<_> = worlds.iter().flat_map(|world| world.comtrees.clone()).collect();
    let there = bed.controller.members().filter(|member| member.relay == RelayId(2));
    let there: Vec<_> = there.map(|member| (member.world, member.address)).collect();
    there.into_iter().for_each(|(world, address)| bed.controller.leave(world, address).unwrap());
    bed.exchange();
    bed.waits = true;
    bed.controller.drain(RelayId(2), true).unwrap();
    let mut moving = Vec::new();
    for _ in 0..60 {
        bed.exchange();
        let now = comtrees.iter().filter(|comtree| bed.controller.is_moving(**comtree)).count();
        if moving.last() != Some(&now) {
            moving.push(now);
        }
    }
    assert_eq!(moving, [0, 8, 16, 24]);
    bed.waits = false;
    (0..60).for_each(|_| _ = bed.exchange());
    let has_it = |comtree| bed.controller.tree(comtree).iter().any(|hop| hop.relay == RelayId(2));
    assert!(!comtrees.into_iter().any(has_it));
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_world_that_finds_no_other_way_takes_a_link_that_is_being_removed() {
    let mut bed = square();
    bed.waits = true;
    bed.controller.remove_link(LinkId(2)).unwrap();
    bed.exchange();
    // The way round is gone: the world stays on the link, and another one needs it, too.
    bed.set_link(4, [3, 0], false);
    bed.exchange();
    let other = Name::new("other").unwrap();
    bed.controller.create_world(new_world(other.clone())).unwrap();
    for at in [0_u8, 2] {
        let near = vec![(bed.relays[usize::from(at)].0, 1000)];
        let ask = Enter::new(other.clone(), [at; 16], near);
        bed.controller.enter(bed.now, &ask).unwrap();
    }
    bed.exchange();
    assert!(bed.is_removing(2) && bed.controller.trees_over(LinkId(2)) == 2);
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_controller_that_starts_goes_on_with_a_removal() {
    let mut bed = square();
    bed.waits = true;
    bed.controller.remove_link(LinkId(2)).unwrap();
    bed.exchange();
    bed.start_again();
    assert!(bed.is_removing(2));
    bed.waits = false;
    (0..15).for_each(|_| _ = bed.exchange());
    assert_eq!((bed.links_of_tree(), bed.has_link(2)), (vec![1, 3, 4], false));
    assert!(bed.controller.link(LinkId(2)).is_none() && bed.controller.is_settled());
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// Relays may have helped themselves with their standby parents while there was no controller, which a move takes away.
#[test]
fn a_controller_that_starts_moves_nothing_before_it_has_heard_how_links_stand() {
    let mut bed = square();
    let root = bed.relays[1].0;
    let ask = TreeAsk { root: Some(root), ..TreeAsk::default() };
    bed.start_again();
    let before: Vec<_> = bed.controller.accounts().collect();
    let refusal = bed.controller.move_world(&world(), ask).unwrap_err().to_string();
    assert!(refusal.contains("has yet to say how its links stand"), "{refusal}");
    assert!(bed.controller.remove_link(LinkId(2)).is_err() && !bed.is_removing(2));
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), before, "nothing has changed");
    bed.exchange();
    assert_eq!(bed.controller.remove_link(LinkId(2)), Ok(()));
    (0..3).for_each(|_| _ = bed.exchange());
    assert_eq!((bed.links_of_tree(), bed.has_link(2)), (vec![1, 3, 4], false));
    assert!(bed.controller.move_world(&world(), ask).is_ok());
}

/// No tree runs over a link that a relay is on as a detour, so it would go at once.
#[test]
fn a_link_over_which_there_may_be_a_detour_stays_until_its_relay_has_said_so() {
    let mut bed = square();
    bed.start_again();
    let refusal = bed.controller.remove_link(LinkId(4)).unwrap_err().to_string();
    assert!(refusal.contains("has yet to say how its links stand; wait a moment"), "{refusal}");
    assert!(refusal.contains("the world w") && bed.controller.link(LinkId(4)).is_some());
    bed.exchange();
    assert_eq!(bed.controller.remove_link(LinkId(4)), Ok(()));
    assert!(bed.controller.link(LinkId(4)).is_none());
}

#[test]
fn who_waits_for_a_relay_out_of_reach_is_told_so() {
    let mut bed = square();
    bed.start_again();
    bed.connected = 3;
    bed.set_link(3, [2, 3], true);
    bed.set_link(4, [3, 0], true);
    (0..20).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.relay(4).unwrap().state, RelayState::Up, "its neighbours hear it");
    let refusal = bed.controller.move_world(&world(), TreeAsk::default()).unwrap_err().to_string();
    assert!(refusal.contains("the controller does not reach r3"), "{refusal}");
    let refusal = bed.controller.remove_link(LinkId(2)).unwrap_err().to_string();
    let says = |what: &&str| refusal.contains(*what);
    assert!(["does not reach r3", "whoever is at that relay"].iter().all(says), "{refusal}");
}

#[test]
fn a_link_that_fails_while_it_is_being_removed_goes_and_one_that_is_forced_goes_at_once() {
    for fails in [true, false] {
        let mut bed = square();
        bed.waits = true;
        bed.controller.remove_link(LinkId(2)).unwrap();
        bed.exchange();
        match fails {
            true => bed.set_link(2, [1, 2], false),
            false => bed.controller.remove_link_at_once(LinkId(2)).unwrap(),
        }
        bed.waits = false;
        (0..3).for_each(|_| _ = bed.exchange());
        assert_eq!((bed.links_of_tree(), bed.has_link(2)), (vec![1, 3, 4], false));
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

#[test]
fn a_removal_that_is_taken_back_leaves_the_link_to_all_that_come() {
    let mut bed = square();
    bed.waits = true;
    bed.controller.remove_link(LinkId(2)).unwrap();
    bed.exchange();
    bed.controller.keep_link(LinkId(2)).unwrap();
    assert!(bed.exchange().contains(&Event::LinkKept(LinkId(2))));
    assert!(!bed.is_removing(2));
    bed.controller.keep_link(LinkId(2)).unwrap();
    assert!(!bed.exchange().contains(&Event::LinkKept(LinkId(2))), "it changes nothing again");
    bed.start_again();
    assert!(!bed.is_removing(2), "and that is stored");
    bed.waits = false;
    (0..15).for_each(|_| _ = bed.exchange());
    assert!(bed.has_link(2));
    // The tree runs over it again when the link that took its place fails.
    bed.set_link(4, [3, 0], false);
    (0..3).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    assert_eq!(bed.controller.keep_link(LinkId(99)), Err(Refusal::NoSuchLink(99)));
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// A square with members at three relays, whose tree runs over the fourth, r1, all the same.
fn square_over_r1() -> Bed {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    [0, 2, 3].into_iter().for_each(|at| {
        _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap();
    });
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    bed
}

#[test]
fn comtrees_move_off_a_relay_before_it_is_removed() {
    let mut bed = square_over_r1();
    bed.waits = true;
    bed.controller.remove_relay(RelayId(2)).unwrap();
    let events = bed.exchange();
    assert!(events.contains(&Event::RelayRemoving(RelayId(2))), "{events:?}");
    let relay = bed.relay(2).unwrap();
    assert!(relay.removing && relay.state == RelayState::Draining && bed.next_parents() == 1);
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    // Asking again changes nothing.
    let accounts: Vec<_> = bed.controller.accounts().collect();
    assert_eq!(bed.controller.remove_relay(RelayId(2)), Ok(()));
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), accounts);
    // The next controller goes on.
    bed.start_again();
    assert!(bed.relay(2).unwrap().removing);
    bed.waits = false;
    let name = Name::new("r1").unwrap();
    let removed = Event::RelayRemoved { relay: RelayId(2), name };
    assert!((0..20).any(|_| bed.exchange().contains(&removed)));
    (0..3).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.links_of_tree(), [3, 4]);
    assert!(bed.relays[1].1.items().is_empty() && bed.controller.is_settled());
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_relay_goes_once_its_members_have_and_stays_if_its_removal_is_taken_back() {
    for is_kept in [true, false] {
        let mut bed = square();
        bed.controller.remove_relay(RelayId(2)).unwrap();
        (0..12).for_each(|_| _ = bed.exchange());
        assert!(bed.relay(2).unwrap().removing, "it has a member");
        if is_kept {
            bed.controller.undrain(RelayId(2)).unwrap();
            assert!(bed.exchange().contains(&Event::RelayServing(RelayId(2))));
            bed.start_again();
            (0..12).for_each(|_| _ = bed.exchange());
            let relay = bed.relay(2).unwrap();
            assert!(!relay.removing && relay.state == RelayState::Up);
            continue;
        }
        bed.connected = 1;
        (0..10).for_each(|_| _ = bed.exchange());
        assert_eq!(bed.relay(2).unwrap().state, RelayState::Gone, "it may come back yet");
        bed.now = bed.now + Settings::default().lease;
        bed.exchange();
        assert_eq!(bed.relay(2), None, "its member was given up with it");
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

/// A relay whose process restarts is no new one, which would take members.
#[test]
fn a_relay_that_is_lost_while_it_is_removed_goes_once_it_is_back_and_was_told() {
    for is_kept in [true, false] {
        let mut bed = square();
        bed.controller.remove_relay(RelayId(4)).unwrap();
        bed.exchange();
        bed.connected = 3;
        (0..10).for_each(|_| _ = bed.exchange());
        let relay = bed.relay(4).unwrap();
        assert!(relay.removing && relay.state == RelayState::Gone, "{relay:?}");
        bed.start_again();
        if is_kept {
            bed.controller.undrain(RelayId(4)).unwrap();
        }
        bed.relays[3].1 = RelaySide::new(2);
        let again = new_relay(3, 10_000_000);
        assert_eq!(bed.controller.register(bed.now, again), Ok(RelayId(4)), "it is the same");
        bed.connected = 4;
        bed.exchange();
        let stands = bed.relay(4).map(|relay| (relay.state, relay.removing));
        assert_eq!(stands, is_kept.then_some((RelayState::Up, false)));
        assert_eq!(bed.controller.audit(), Ok(()));
    }
}

/// Whatever its name is now, and whoever runs the controller; another that takes its name is let in.
#[test]
fn a_relay_that_was_removed_registers_again_only_once_that_is_allowed() {
    let mut bed = square_over_r1();
    bed.controller.remove_relay(RelayId(2)).unwrap();
    (0..20).for_each(|_| _ = bed.exchange());
    assert!(bed.relay(2).is_none());
    let r1 = new_relay(1, 1_000_000);
    let renamed = NewRelay { name: Name::new("other").unwrap(), ..r1.clone() };
    bed.start_again();
    for new in [&r1, &renamed] {
        let refusal = bed.controller.register(bed.now, new.clone()).unwrap_err().to_string();
        assert!(refusal.contains("`canopy relay allow r1`"), "{refusal}");
    }
    let replacement = NewRelay { key: [77; 32], ..r1.clone() };
    assert_eq!(bed.controller.register(bed.now, replacement), Ok(RelayId(5)));
    assert!(bed.controller.register(bed.now, r1.clone()).is_err(), "its name is taken");
    bed.controller.allow_relay(&r1.name).unwrap();
    assert_eq!(bed.controller.allow_relay(&r1.name), Err(Refusal::NotRemoved(r1.name.clone())));
    bed.exchange();
    bed.start_again();
    assert_eq!(bed.controller.removed_relays().count(), 0);
    assert_eq!(bed.controller.register(bed.now, renamed), Ok(RelayId(6)));
}

/// However many records that are, and a commit has few.
#[test]
fn a_relay_with_many_links_is_removed_and_many_that_had_one_name_are_allowed() {
    let links: Vec<_> = (1..=120).map(|to| (0, to, 1000)).collect();
    let mut bed = Bed::new(121, 10_000_000, &links);
    bed.controller.remove_relay_at_once(RelayId(1)).unwrap();
    bed.tick();
    assert_eq!((bed.relay(1), bed.controller.links().count()), (None, 0));
    let r0 = new_relay(0, 10_000_000);
    for number in 0..130_u16 {
        let mut key = [0xff; 32];
        key[..2].copy_from_slice(&number.to_be_bytes());
        let id = bed.controller.register(bed.now, NewRelay { key, ..r0.clone() }).unwrap();
        bed.controller.remove_relay_at_once(id).unwrap();
    }
    bed.tick();
    assert_eq!(bed.controller.removed_relays().count(), 1 + 130);
    bed.controller.allow_relay(&r0.name).unwrap();
    bed.tick();
    bed.start_again();
    assert_eq!(bed.controller.removed_relays().count(), 0);
}

#[test]
fn a_relay_that_is_needed_stays_as_it_was_and_the_refusal_says_by_whom() {
    let mut bed = Bed::new(3, 10_000_000, &[(0, 1, 1000), (1, 2, 1000)]);
    [0, 2].into_iter().for_each(|at| {
        _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap();
    });
    bed.exchange();
    let before: Vec<_> = bed.controller.accounts().collect();
    let refusal = bed.controller.remove_relay(RelayId(2)).unwrap_err().to_string();
    assert!(refusal.starts_with("the relay r1 carries the world w, and"), "{refusal}");
    let at_once = bed.controller.remove_relay_at_once(RelayId(2));
    assert!(matches!(at_once, Err(Refusal::Needed { .. })), "{at_once:?}");
    let refusal = bed.controller.remove_relay_at_once(RelayId(1)).unwrap_err();
    assert!(matches!(refusal, Refusal::StillServes { members: 1, .. }), "{refusal}");
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), before, "nothing has changed");
    let relay = bed.relay(2).unwrap();
    assert!(!relay.removing && relay.state == RelayState::Up);
    // Members of the only relay would have nowhere to go.
    let mut bed = Bed::new(1, 10_000_000, &[]);
    _ = bed.enter(0, &[0], limits(1000, 1000)).unwrap();
    let refusal = bed.controller.remove_relay(RelayId(1)).unwrap_err().to_string();
    assert!(refusal.contains("no other relay takes members"), "{refusal}");
    assert!(!bed.relay(1).unwrap().removing);
}

#[test]
fn a_relay_that_is_forced_goes_at_once() {
    let mut bed = square_over_r1();
    bed.waits = true;
    bed.controller.remove_relay(RelayId(2)).unwrap();
    bed.exchange();
    bed.controller.remove_relay_at_once(RelayId(2)).unwrap();
    (0..3).for_each(|_| _ = bed.exchange());
    assert_eq!((bed.links_of_tree(), bed.relay(2)), (vec![3, 4], None));
    assert_eq!(bed.controller.audit(), Ok(()));
}
