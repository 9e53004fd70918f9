//! Relays that have used their standby parents while the controller was away, and have yet to return: nothing that is
//! planned takes those from them.

use crate::bed::{Bed, SQUARE, limits, world};
use canopy_control::signal::Role;
use canopy_control::{Event, Item, ItemKey, LinkId, Message, RelaySide, Settings, TreeAsk};
use canopy_wire::{Comtree, Time};
use core::time::Duration;

/// A square with a member at some relays, and its comtree.
fn square(members: &[u8], settings: Settings) -> (Bed, Comtree) {
    let settings = Settings { lease: Duration::from_secs(3600), ..settings };
    let mut bed = Bed::with(settings, 4, 10_000_000, &SQUARE);
    members.iter().for_each(|at| {
        _ = bed.enter(*at, &[usize::from(*at)], limits(1000, 1000)).unwrap();
    });
    bed.exchange();
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    (bed, comtree)
}

impl Bed {
    /// The relay that has a standby parent, and over which link.
    fn with_standby(&self, comtree: Comtree) -> Option<(usize, LinkId)> {
        let relays = self.relays.iter().enumerate();
        relays.filter_map(|(at, (_, side))| Some((at, standby(side, comtree)?))).next()
    }

    /// The relay says that it is on a detour, or no more.
    fn set_detour(&mut self, at: usize, detour: Option<Comtree>) {
        self.relays[at].1.set_detours(self.now, detour);
        self.exchange();
    }
}

fn standby(side: &RelaySide, comtree: Comtree) -> Option<LinkId> {
    let Some(Item::Comtree { branches, .. }) = side.items().get(&ItemKey::Comtree(comtree)) else {
        return None;
    };
    branches.iter().find(|of| of.role == Role::StandbyParent).map(|of| of.link)
}

#[test]
fn nothing_planned_takes_its_standby_parent_from_a_relay_that_is_on_a_detour() {
    let (mut bed, comtree) = square(&[0, 1, 2, 3], Settings::default());
    let (away, over) = bed.with_standby(comtree).unwrap();
    bed.set_detour(away, Some(comtree));
    let before = bed.links_of_tree();
    let accounts: Vec<_> = bed.controller.accounts().collect();
    let ask = TreeAsk { root: Some(bed.relays[away].0), ..TreeAsk::default() };
    let is_told = |refusal: String| {
        assert!(refusal.contains(&format!("r{away} is yet to return from its standby parent")));
    };
    is_told(bed.controller.move_world(&world(), ask).unwrap_err().to_string());
    is_told(bed.controller.remove_link(LinkId(before[0])).unwrap_err().to_string());
    is_told(bed.controller.remove_link(over).unwrap_err().to_string());
    // It says so with each beat.
    (0..20).for_each(|_| _ = bed.exchange());
    is_told(bed.controller.move_world(&world(), ask).unwrap_err().to_string());
    assert_eq!((bed.with_standby(comtree), bed.links_of_tree()), (Some((away, over)), before));
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), accounts, "nothing has changed");
    // Once it is back all goes on.
    bed.set_detour(away, None);
    bed.controller.move_world(&world(), ask).unwrap();
    (0..6).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.controller.tree(comtree)[0].relay, bed.relays[away].0);
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// A controller that looks for better trees, and a comtree for which there is one.
fn with_a_better_tree() -> (Bed, Comtree) {
    let settings = Settings { improve: Duration::from_secs(30), ..Settings::default() };
    let (mut bed, comtree) = square(&[0, 1, 2, 3], settings);
    for up in [false, true] {
        bed.set_link(2, [1, 2], up);
        bed.exchange();
    }
    assert_eq!(bed.links_of_tree(), [1, 3, 4], "there is a better one");
    (bed, comtree)
}

#[test]
fn a_better_tree_waits_for_a_relay_that_is_on_a_detour() {
    let (mut bed, comtree) = with_a_better_tree();
    let (away, _) = bed.with_standby(comtree).unwrap();
    bed.set_detour(away, Some(comtree));
    (0..140).for_each(|_| _ = bed.exchange());
    assert!(bed.with_standby(comtree).is_some_and(|(at, _)| at == away));
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    let why = bed.controller.improve(comtree);
    assert!(why.contains("is yet to return from its standby parent"), "{why}");
    // It has been due for long.
    bed.set_detour(away, None);
    (0..6).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// A relay says so of a tree that it no longer has, or has died since it said so.
#[test]
fn a_better_tree_does_not_wait_for_a_relay_without_a_standby_parent() {
    let (mut bed, comtree) = with_a_better_tree();
    let has_none = |at: &usize| standby(&bed.relays[*at].1, comtree).is_none();
    let at = (0..4).find(has_none).unwrap();
    bed.set_detour(at, Some(comtree));
    (0..140).for_each(|_| _ = bed.exchange());
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
}

#[test]
fn a_standby_parent_without_members_stays_on_the_tree_until_the_detour_is_over() {
    let (mut bed, comtree) = square(&[0, 1, 2, 3], Settings::default());
    let (away, over) = bed.with_standby(comtree).unwrap();
    let standby = bed.controller.link(over).unwrap().other(bed.relays[away].0);
    bed.set_detour(away, Some(comtree));
    let there = bed.controller.members().find(|member| member.relay == standby).unwrap();
    let (world, address) = (there.world, there.address);
    bed.controller.leave(world, address).unwrap();
    (0..20).for_each(|_| _ = bed.exchange());
    let has = |bed: &Bed| bed.controller.tree(comtree).iter().any(|hop| hop.relay == standby);
    assert!(has(&bed) && bed.with_standby(comtree) == Some((away, over)));
    bed.set_detour(away, None);
    (0..12).for_each(|_| _ = bed.exchange());
    assert!(!has(&bed), "it is idle, and goes");
    assert_eq!(bed.controller.audit(), Ok(()));
}

/// Its channel has broken and comes back: what it did meanwhile nobody knows before it has said so.
#[test]
fn nothing_planned_begins_before_a_relay_that_was_out_of_reach_has_said_whether_it_is_on_a_detour()
{
    let (mut bed, comtree) = square(&[0, 1, 2, 3], Settings::default());
    let (away, _) = bed.with_standby(comtree).unwrap();
    let id = bed.relays[away].0;
    let ask = TreeAsk { root: Some(id), ..TreeAsk::default() };
    for (link, (from, to, _)) in (1..).zip(SQUARE) {
        bed.set_link(link, [from, to], true);
    }
    bed.exchange();
    bed.controller.handle_disconnect(bed.now, id);
    let refusal = bed.controller.move_world(&world(), ask).unwrap_err().to_string();
    assert!(refusal.contains(&format!("the controller does not reach r{away}")), "{refusal}");
    bed.set_detour(away, Some(comtree));
    let refusal = bed.controller.move_world(&world(), ask).unwrap_err().to_string();
    assert!(refusal.contains("is yet to return from its standby parent"), "{refusal}");
    bed.set_detour(away, None);
    assert!(bed.controller.move_world(&world(), ask).is_ok());
}

#[test]
fn a_relay_tells_of_its_detours_before_each_beat_and_at_once_when_they_change() {
    let at = Time::from_millis;
    let mut side = RelaySide::new(1);
    let told = |side: &mut RelaySide, now: u64| -> Vec<Message> {
        side.handle_timeout(at(now));
        let messages = core::iter::from_fn(|| side.poll_transmit());
        messages.map(|bytes| Message::decode(&bytes).unwrap()).collect()
    };
    let detours = [Comtree(16), Comtree(17)];
    assert!(matches!(told(&mut side, 0)[..], [Message::Beat { .. }]));
    side.set_detours(at(100), detours);
    for now in [100, 600] {
        let told = told(&mut side, now);
        let [Message::Detours(of), Message::Beat { .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(of[..], detours);
    }
    side.set_detours(at(700), detours);
    assert_eq!(told(&mut side, 700), []);
    side.set_detours(at(700), []);
    assert!(matches!(told(&mut side, 700)[..], [Message::Beat { .. }]));
    assert!(Message::decode(&Message::Detours(vec![Comtree(1); 1_025]).encode()).is_err());
}

#[test]
fn what_a_relay_has_told_does_not_hold_up_the_tree_that_it_has_got_since() {
    let (mut bed, comtree) = square(&[0, 1, 2, 3], Settings::default());
    let (away, over) = bed.with_standby(comtree).unwrap();
    bed.set_detour(away, Some(comtree));
    let parent = bed.controller.tree(comtree).iter().find_map(|hop| {
        hop.above.filter(|_| hop.relay == bed.relays[away].0).map(|(_, link)| link)
    });
    let link = bed.controller.link(parent.unwrap()).unwrap();
    let ends = link.ends.map(|end| usize::from(end.0) - 1);
    let id = link.id.0;
    bed.set_link(id, ends, false);
    let events = bed.exchange();
    assert!(events.iter().any(|of| matches!(of, Event::Reshaped { .. })), "{events:?}");
    assert!(bed.links_of_tree().contains(&over.0), "it is repaired as it runs");
    bed.set_link(id, ends, true);
    bed.set_detour(away, None);
    assert!(bed.controller.is_settled());
    assert_eq!(bed.controller.audit(), Ok(()));
}
