//! A controller that is dropped in the middle of a step, and started again, in whatever order relays connect. A step by
//! which a relay gets another parent goes on. A step by which a relay leaves the core, and one that was given up, is taken
//! back first at the relay whose word was waited for. That relay may have turned already, and all that goes up from there
//! needs the branch at the other end.

#[allow(dead_code, reason = "others use the rest of it")]
#[path = "meshed/bed.rs"]
mod bed;

use bed::{ALL, Bed, rate, world};
use canopy_control::signal::{Branch, Role};
use canopy_control::{
    Core, Enter, Event, Item, ItemKey, LinkId, LinkReport, RelayId, RelaySide, TreeAsk,
};
use canopy_plan::Limits;

/// A bed whose controller has died in the middle of a step. Relays are numbered as in the bed.
struct Halfway {
    bed: Bed,
    /// Whose word was waited for.
    mover: usize,
    other: usize,
    link: LinkId,
    /// What the other is to the mover over the link, and the other way round.
    role: Role,
    /// Whether the mover was given up: then nobody waits for it.
    is_lost: bool,
}

impl Halfway {
    /// The step that is under way in a bed; the controller starts again.
    fn of(bed: Bed) -> Halfway {
        let mut halfway = Halfway::alive(bed);
        halfway.start_again();
        halfway
    }

    /// The same, and the controller lives.
    fn alive(bed: Bed) -> Halfway {
        let next = |at: usize| bed.branches(at).into_iter().find(|of| of.role == Role::NextParent);
        let found: Vec<(usize, Branch)> =
            (0..bed.relays.len()).filter_map(|at| Some((at, next(at)?))).collect();
        let [(mover, branch)] = found[..] else { panic!("one step at a time: {found:?}") };
        let (other, link) = (usize::from(branch.site) - 1, branch.link);
        let role = bed.branches(other).into_iter().find(|of| of.link == link).unwrap().role;
        Halfway { bed, mover, other, link, role, is_lost: false }
    }

    fn start_again(&mut self) {
        self.bed.start_again();
    }

    fn is_begun(&self) -> bool {
        self.bed.branches(self.mover).iter().any(|of| of.role == Role::NextParent)
    }

    fn is_known_to_other(&self) -> bool {
        let branches = self.bed.branches(self.other);
        branches.iter().any(|of| of.link == self.link && of.role == self.role)
    }

    /// Goes on for so many milliseconds, with those relays that are connected. All the while the other relay
    /// knows the mover as long as the step is begun there.
    fn go_on(&mut self, millis: u64, is_connected: impl Fn(usize) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..millis / 10 {
            events.extend(self.bed.tick(&is_connected));
            self.is_lost |= events.iter().any(|event| matches!(event, Event::RelayLost(_)));
            if self.is_begun() && !self.is_lost {
                assert!(self.is_known_to_other(), "all that goes up is lost");
            }
        }
        events
    }

    /// How many milliseconds pass from when the mover has let go until the other has, if this happens then.
    fn waits(mut self, then: impl FnOnce(&mut Bed)) -> u64 {
        let mut then = Some(then);
        assert!(self.lets_go());
        for waits in 0..300 {
            if !self.is_known_to_other() {
                return waits * 10;
            }
            then.take().into_iter().for_each(|then| then(&mut self.bed));
            self.go_on(10, |_| true);
        }
        panic!("the other has not let go");
    }

    /// Whether the mover lets go within two seconds, with all relays there.
    fn lets_go(&mut self) -> bool {
        (0..200).any(|_| {
            self.go_on(10, |_| true);
            !self.is_begun()
        })
    }

    /// The mover comes last and takes the step back; then the move goes on to its end, if it was not given up.
    fn come_back(mut self) -> Bed {
        let mover = self.mover;
        self.go_on(3_000, |at| at != mover);
        assert!(self.is_begun() && self.is_known_to_other());
        assert!(self.lets_go());
        self.bed.succeeds = true;
        (0..4).for_each(|_| _ = self.bed.exchange());
        assert!(self.bed.controller.is_settled());
        self.bed
    }
}

/// A standby parent is over the same link: what the other end brings as long as it has its branch of before would be
/// taken for the new one's.
#[test]
fn the_link_of_a_step_is_used_anew_only_when_both_of_its_relays_have_let_go() {
    let mut halfway = swap(Core::Center);
    let (mover, other, link) = (halfway.mover, halfway.other, halfway.link);
    let uses = |halfway: &Halfway, at: usize| {
        halfway.bed.branches(at).into_iter().find(|of| of.link == link).map(|of| of.role)
    };
    for _ in 0..200 {
        halfway.go_on(10, |at| at != other);
        if !halfway.is_begun() {
            assert_eq!(uses(&halfway, mover), None);
        }
    }
    assert!(!halfway.is_begun() && uses(&halfway, other) == Some(Role::Child));
    let has_let_go = (0..200).any(|_| {
        halfway.go_on(10, |_| true);
        assert_eq!(uses(&halfway, mover), None);
        uses(&halfway, other).is_none()
    });
    assert!(has_let_go);
    halfway.go_on(2_000, |_| true);
    assert_eq!(uses(&halfway, mover), Some(Role::StandbyParent));
    assert_eq!(uses(&halfway, other), Some(Role::StandbyChild));
}

#[test]
fn a_step_is_taken_back_until_both_of_its_relays_have_let_go_whoever_starts_in_between() {
    let mut halfway = swap(Core::Center);
    let (mover, other, link) = (halfway.mover, halfway.other, halfway.link);
    let uses = |halfway: &Halfway, at: usize| {
        halfway.bed.branches(at).into_iter().find(|of| of.link == link).map(|of| of.role)
    };
    for _ in 0..3 {
        halfway.go_on(1_500, |at| at != other);
        assert!(!halfway.is_begun());
        assert_eq!((uses(&halfway, mover), uses(&halfway, other)), (None, Some(Role::Child)));
        halfway.start_again();
    }
    halfway.go_on(2_000, |_| true);
    assert_eq!(uses(&halfway, mover), Some(Role::StandbyParent), "both have let go");
}

/// What the mover has sent over the link is on its way, and would come to nobody. It arrives within the link's delay, a
/// millisecond, and 200 ms.
#[test]
fn the_other_relay_of_a_step_lets_go_once_what_the_mover_sent_has_arrived_but_a_repair_does_not_wait()
 {
    let given_up = || {
        let mut halfway = Halfway::alive(swapping(Core::Center));
        // The tree grows for somebody who comes, and that ends the move.
        let ask = Enter::new(world(), [9; 16], vec![(halfway.bed.relays[4].0, 1000)]);
        halfway.bed.controller.enter(halfway.bed.now, &ask).unwrap();
        halfway
    };
    for halfway in [swap(Core::Center), given_up()] {
        let waits = halfway.waits(|_| ());
        assert!((200..=250).contains(&waits), "{waits} ms");
    }
    for halfway in [swap(Core::Center), given_up()] {
        let waits = halfway.waits(|bed| {
            let (link, ends) = parent_link(bed, 1);
            for at in ends {
                bed.relays[at].1.set_link(bed.now, LinkReport { link, up: false, delay_us: 1000 });
            }
        });
        assert!(waits <= 50, "{waits} ms");
    }
}

/// A relay is about to get another parent. Then the move is given up, and the controller dies before anybody hears of that.
fn swap(core: Core) -> Halfway {
    let mut halfway = Halfway::alive(swapping(core));
    refuse_next(&mut halfway.bed, halfway.mover);
    halfway.start_again();
    assert_eq!((halfway.mover, halfway.role), (3, Role::Child));
    halfway
}

/// The relay that is about to get another parent refuses what it is told next, and the move is given up.
fn refuse_next(bed: &mut Bed, mover: usize) {
    bed.refuses = Some(mover);
    let ask = Enter::new(world(), [9; 16], vec![(bed.relays[mover].0, 1000)]);
    bed.controller.enter(bed.now, &ask).unwrap();
    let comtree = bed.comtree();
    let is_given_up = (0..50).any(|_| {
        bed.tick(|_| true);
        bed.commit();
        !bed.controller.is_moving(comtree)
    });
    assert!(is_given_up);
    bed.refuses = None;
}

/// The link to a relay's parent gets slow, and the relay is about to get another parent. Relay 4 has nobody on it, and is
/// not on the tree.
fn swapping(core: Core) -> Bed {
    let mut bed = Bed::of(5, &[(0, 1), (1, 2), (0, 2), (0, 3), (2, 3), (1, 4)], core);
    for at in 0..4 {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    slow_down(&mut bed, &[3]);
    bed.succeeds = false;
    bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
    bed.exchange();
    bed
}

/// The links to these relays' parents get slow.
fn slow_down(bed: &mut Bed, relays: &[usize]) {
    let slow: Vec<_> = relays.iter().map(|at| parent_link(bed, *at)).collect();
    for _ in 0..60 {
        for (link, ends) in &slow {
            for at in ends {
                let report = LinkReport { link: *link, up: true, delay_us: 90_000 };
                bed.relays[*at].1.set_link(bed.now, report);
            }
        }
        bed.renew();
    }
}

fn parent_link(bed: &Bed, at: usize) -> (LinkId, [usize; 2]) {
    let parent = bed.branches(at).into_iter().find(|of| of.role == Role::Parent).unwrap();
    (parent.link, [at, usize::from(parent.site) - 1])
}

/// A relay comes that has no members, and one below a relay that drains is about to hang on it.
fn swap_to_one_without_members() -> Halfway {
    let mut bed = Bed::new(&[(0, 1), (1, 3), (0, 2), (2, 3)], Core::Center);
    for at in [0, 1, 3] {
        bed.enter(at as u8, at, 1000).unwrap();
    }
    assert!(bed.branches(2).is_empty());
    let of = bed.controller.members().find(|of| of.relay == bed.relays[1].0).unwrap();
    bed.controller.leave(of.world, of.address).unwrap();
    bed.exchange();
    bed.succeeds = false;
    bed.controller.drain(bed.relays[1].0, true).unwrap();
    (0..7).for_each(|_| _ = bed.exchange());
    let halfway = Halfway::of(bed);
    assert_eq!((halfway.mover, halfway.other), (3, 2));
    halfway
}

/// The root goes from relay 0 to relay 2, and 0 is about to leave the core.
fn about_to_leave_the_core() -> Bed {
    let mut bed = Bed::new(&ALL, Core::Center);
    (0..4).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
    bed.succeeds = false;
    let ask = TreeAsk { root: Some(bed.relays[2].0), ..TreeAsk::default() };
    bed.controller.move_world(&world(), ask).unwrap();
    bed.exchange();
    bed
}

/// Relay 0 says that its neighbour knows all that is wanted.
fn say_that_it_may_leave(bed: &mut Bed) {
    let (comtree, now) = (bed.comtree(), bed.now);
    let (relay, side) = &mut bed.relays[0];
    side.set_succeeded(now, comtree);
    side.handle_timeout(now);
    while let Some(bytes) = side.poll_transmit() {
        bed.controller.handle_message(now, *relay, &bytes);
    }
}

#[test]
fn a_next_parent_keeps_its_child_until_the_mover_has_none_whoever_connects_first() {
    for core in [Core::Center, Core::Mesh] {
        let mut bed = swap(core).come_back();
        // The next one that starts finds nothing to be taken back: all are told at once.
        let comtree = bed.comtree();
        let wanted = |bed: &Bed| {
            let is_it = |of: &&Item| matches!(of, Item::Comtree { id, .. } if *id == comtree);
            let of = |(relay, _): &(RelayId, _)| bed.controller.wanted(*relay).find(is_it).cloned();
            bed.relays.iter().map(of).collect::<Vec<_>>()
        };
        let before = wanted(&bed);
        bed.start_again();
        assert_eq!(wanted(&bed), before);
    }
}

/// It has turned to the next one while there was no controller, and the new one may hear others first.
#[test]
fn a_relay_that_gets_another_parent_goes_on_whoever_connects_first() {
    for (core, last) in [Core::Center, Core::Mesh]
        .into_iter()
        .flat_map(|core| (0..4).map(move |last| (core.clone(), last)))
    {
        let mut halfway = Halfway::of(swapping(core.clone()));
        let (mover, other, link) = (halfway.mover, halfway.other, halfway.link);
        assert_eq!((mover, halfway.role), (3, Role::Child));
        let up = |halfway: &Halfway| {
            let branches = halfway.bed.branches(mover).into_iter();
            branches.filter(|of| of.link == link).map(|of| of.role).collect::<Vec<_>>()
        };
        let events = halfway.go_on(1_500, |at| at != last);
        assert_eq!(up(&halfway), [Role::NextParent], "{core:?} {last} {events:?}");
        halfway.bed.succeeds = true;
        let comtree = halfway.bed.comtree();
        for _ in 0..100 {
            let now = halfway.bed.now;
            halfway.bed.relays[mover].1.set_succeeded(now, comtree);
            halfway.go_on(10, |_| true);
            let now = up(&halfway);
            assert!(
                matches!(now[..], [Role::NextParent | Role::Parent]),
                "{now:?} {core:?} {last}"
            );
        }
        assert_eq!(up(&halfway), [Role::Parent], "{core:?} {last}");
        assert!(halfway.is_known_to_other());
        (0..2).for_each(|_| _ = halfway.bed.exchange());
        assert!(halfway.bed.controller.is_settled());
        assert_eq!(halfway.bed.controller.tree(comtree).len(), 4, "{other}");
    }
}

/// What the other relay has sent when it let go would pass as a standby child's.
#[test]
fn the_link_of_a_step_that_is_taken_back_is_free_until_what_was_sent_over_it_has_arrived() {
    let refused = || {
        let mut halfway = Halfway::alive(swapping(Core::Center));
        refuse_next(&mut halfway.bed, halfway.mover);
        halfway
    };
    for mut halfway in [swap(Core::Center), refused()] {
        let (mover, other, link) = (halfway.mover, halfway.other, halfway.link);
        let uses = |halfway: &Halfway, at: usize| {
            halfway.bed.branches(at).iter().any(|of| of.link == link)
        };
        let is_free = |halfway: &Halfway| !uses(halfway, mover) && !uses(halfway, other);
        let mut free = 0;
        for _ in 0..300 {
            halfway.go_on(10, |_| true);
            free += usize::from(is_free(&halfway));
            if free > 0 && !is_free(&halfway) {
                break;
            }
        }
        assert!((20..30).contains(&free), "{free} hundredths of a second");
        assert!(uses(&halfway, mover), "it is a standby's");
    }
}

/// What the old parent has sent when it let go would pass as a child's, and once more over the tree.
#[test]
fn the_link_to_an_old_parent_is_a_standbys_once_what_was_sent_over_it_has_arrived() {
    let mut bed = swapping(Core::Center);
    let (link, ends) = parent_link(&bed, 3);
    for at in ends {
        bed.relays[at].1.set_link(bed.now, LinkReport { link, up: true, delay_us: 1000 });
    }
    let comtree = bed.comtree();
    let (mut free, mut is_standby) = (0, false);
    for _ in 0..200 {
        let now = bed.now;
        bed.relays[3].1.set_succeeded(now, comtree);
        bed.tick(|_| true);
        let over = |at: usize| bed.branches(at).into_iter().find(|of| of.link == link);
        let roles: Vec<Role> = ends.into_iter().filter_map(over).map(|of| of.role).collect();
        free += usize::from(roles.is_empty());
        is_standby |= roles.iter().any(|role| role.is_standby());
        if is_standby {
            break;
        }
    }
    assert!(is_standby && (29..35).contains(&free), "{free} hundredths of a second");
}

#[test]
fn a_neighbour_in_the_core_stays_one_until_the_relay_that_leaves_has_it_again() {
    let halfway = Halfway::of(about_to_leave_the_core());
    assert_eq!((halfway.mover, halfway.other, halfway.role), (0, 2, Role::Core));
    let bed = halfway.come_back();
    assert_eq!(bed.controller.tree(bed.comtree())[0].relay, bed.relays[2].0);
    assert!(bed.roles(0).contains(&(2, Role::Parent)), "{:?}", bed.roles(0));
    assert!(bed.roles(2).contains(&(0, Role::Child)), "{:?}", bed.roles(2));
}

#[test]
fn a_controller_that_dies_while_it_takes_a_step_back_leaves_that_to_the_next() {
    let mut halfway = swap(Core::Center);
    let mover = halfway.mover;
    for _ in 0..3 {
        halfway.go_on(1_500, |at| at != mover);
        halfway.start_again();
    }
    halfway.come_back();
}

#[test]
fn what_a_relay_has_that_is_no_more_on_the_tree_stays_until_its_turn_and_then_goes() {
    let mut halfway = swap_to_one_without_members();
    let (mover, other) = (halfway.mover, halfway.other);
    // The move cannot go on, and the tree shrinks before the mover is there again: the next controller does not find
    // 2 on it.
    let report = LinkReport { link: LinkId(3), up: false, delay_us: 1000 };
    halfway.bed.relays[other].1.set_link(halfway.bed.now, report);
    halfway.go_on(500, |at| at != mover);
    let of = halfway.bed.controller.members().find(|of| of.relay == halfway.bed.relays[0].0);
    let (of, address) = of.map(|of| (of.world, of.address)).unwrap();
    halfway.bed.controller.leave(of, address).unwrap();
    // Until then the mover may come and say that it has found another way. Its parent hears it, so it is not given up.
    let (link, [_, parent]) = parent_link(&halfway.bed, mover);
    let report = LinkReport { link, up: true, delay_us: 1000 };
    halfway.bed.relays[parent].1.set_link(halfway.bed.now, report);
    halfway.go_on(20_500, |at| at != mover);
    let comtree = halfway.bed.comtree();
    let hops = halfway.bed.controller.tree(comtree);
    assert!(hops.iter().all(|hop| hop.relay != halfway.bed.relays[other].0), "{hops:?}");
    halfway.start_again();
    let bed = halfway.come_back();
    assert!(bed.branches(other).is_empty());
}

#[test]
fn a_mover_that_does_not_come_back_holds_nobody_up_once_it_is_given_up() {
    let mut halfway = swap(Core::Center);
    let mover = halfway.mover;
    // Its parent does not hear it either.
    let (link, [_, parent]) = parent_link(&halfway.bed, mover);
    let report = LinkReport { link, up: false, delay_us: 1000 };
    halfway.bed.relays[parent].1.set_link(halfway.bed.now, report);
    // Relays have five seconds to connect, and then it is silent for longer than is suspicious.
    let events = halfway.go_on(5_500, |at| at != mover);
    assert!(halfway.is_known_to_other(), "{events:?}");
    let lost = Event::RelayLost(halfway.bed.relays[mover].0);
    assert!(halfway.go_on(300, |at| at != mover).contains(&lost));
    halfway.go_on(200, |at| at != mover);
    assert!(!halfway.is_known_to_other());
    // It is told as well, if it comes after all.
    halfway.go_on(2_000, |_| true);
    assert!(!halfway.is_begun());
}

/// A relay leaves the core and says that its neighbour knows all that is wanted. It restarts before it has answered
/// what was on its way to it, and has no neighbour any more.
#[test]
fn a_relay_that_restarts_while_it_leaves_the_core_gets_its_parent() {
    let mut bed = about_to_leave_the_core();
    assert!(bed.roles(0).contains(&(2, Role::NextParent)));
    // Another member needs more over the link to the neighbour, and only that has heard of it.
    let limits = Some(Limits { send: rate(2000), receive: rate(2000) });
    let measured = vec![(bed.relays[0].0, 1000)];
    let ask = Enter { limits, ..Enter::new(world(), [9; 16], measured) };
    let address = bed.controller.enter(bed.now, &ask).unwrap().address;
    bed.tick(|at| at != 0);
    say_that_it_may_leave(&mut bed);
    let comtree = bed.comtree();
    bed.relays[0].1 = RelaySide::new(2);
    let mut events = Vec::new();
    for _ in 0..500 {
        events.extend(bed.tick(|_| true));
        let is_in = bed.relays[0].1.items().contains_key(&ItemKey::Member(comtree, address));
        assert!(!is_in, "what was reserved for it was refused");
    }
    assert!(bed.roles(0).contains(&(2, Role::Parent)), "{:?}", bed.roles(0));
    assert!(bed.roles(2).contains(&(0, Role::Child)));
    // The move goes on.
    bed.succeeds = true;
    events.extend(bed.exchange());
    assert!(bed.controller.is_settled());
    let is_its = |event: &Event| match event {
        Event::Refused { address: of, .. } | Event::Admitted { address: of, .. } => *of == address,
        _ => false,
    };
    let told: Vec<_> = events.into_iter().filter(is_its).collect();
    assert!(matches!(told[..], [Event::Refused { .. }]), "{told:?}");
}

/// A relay has left the core, and its neighbour knows; the relay is yet to hear it. The move goes on only then, for the
/// step that is stored says what that relay may have: also if the move ends before, for a tree without the link.
#[test]
fn a_step_that_is_done_stays_stored_until_its_relay_knows_it() {
    for does_controller_see_the_end in [None, Some(false), Some(true)] {
        let mut bed = about_to_leave_the_core();
        say_that_it_may_leave(&mut bed);
        (0..20).for_each(|_| _ = bed.tick(|at| at != 0));
        let link = bed.branches(0).into_iter().find(|of| of.role == Role::NextParent).unwrap().link;
        let fail = |bed: &mut Bed| {
            let report = LinkReport { link, up: false, delay_us: 1000 };
            bed.relays[2].1.set_link(bed.now, report);
        };
        if does_controller_see_the_end == Some(true) {
            fail(&mut bed);
            (0..10).for_each(|_| _ = bed.tick(|at| at != 0));
        }
        let mut halfway = Halfway::of(bed);
        assert_eq!((halfway.mover, halfway.other, halfway.role), (0, 2, Role::Child));
        halfway.go_on(500, |at| at != 0);
        if does_controller_see_the_end.is_some() {
            fail(&mut halfway.bed);
        }
        halfway.go_on(1_000, |at| at != 0);
        assert!(halfway.is_begun() && !halfway.is_lost);
        for _ in 0..200 {
            halfway.go_on(10, |_| true);
            let is_neighbour = halfway.bed.roles(0).contains(&(2, Role::Core));
            assert!(!is_neighbour, "it has left the core");
        }
        assert!(!halfway.is_begun());
        let has_parent = halfway.bed.roles(0).contains(&(2, Role::Parent));
        assert_eq!(has_parent, does_controller_see_the_end.is_none());
    }
}

/// The parent that a relay had before a step is its standby parent, as the move ends before the next step: the other one's
/// next parent is out of reach, or a member comes far away.
#[test]
fn the_link_of_an_old_parent_is_free_until_what_was_sent_over_it_has_arrived() {
    for comes in [false, true] {
        let links = [(0, 1), (0, 2), (0, 3), (0, 4), (2, 3), (2, 4), (1, 5)];
        let mut bed = Bed::of(6, &links, Core::Center);
        (0..5).for_each(|at| bed.enter(at as u8, at, 1000).unwrap());
        slow_down(&mut bed, &[3, 4]);
        let old = [3, 4].map(|at| parent_link(&bed, at));
        bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
        let comtree = bed.comtree();
        let step = |bed: &mut Bed| {
            bed.tick(|_| true);
            for (_, side) in &mut bed.relays {
                side.set_succeeded(bed.now, comtree);
            }
        };
        let has_moved = |bed: &Bed, at: usize| parent_link(bed, at).1[1] == 2;
        let mut ticks = 0;
        let moved = loop {
            step(&mut bed);
            match [3, 4].into_iter().position(|at| has_moved(&bed, at)) {
                Some(moved) => break moved,
                None => ticks += 1,
            }
            assert!(ticks < 500, "nobody has another parent");
        };
        if comes {
            let ask = Enter::new(world(), [9; 16], vec![(bed.relays[5].0, 1000)]);
            bed.controller.enter(bed.now, &ask).unwrap();
        } else {
            bed.find((2, 4 - moved), false);
        }
        let (link, ends) = old[moved];
        let is_free =
            |bed: &Bed| !ends.iter().any(|at| bed.branches(*at).iter().any(|of| of.link == link));
        let mut free = 0;
        for _ in 0..300 {
            step(&mut bed);
            free += usize::from(is_free(&bed));
            if free > 0 && !is_free(&bed) {
                break;
            }
        }
        assert!(!bed.controller.is_moving(comtree) && !is_free(&bed), "it is a standby's");
        assert!((29..40).contains(&free), "{comes}: {free} hundredths of a second");
    }
}
