//! The controller by its interface, with relays that answer at once.

mod bed;
mod better_trees;
mod detours;
mod dismissed;
mod loads;
mod parted;
mod removing;
mod renewals;
mod resuming;
mod rooms;
mod sharing;
mod ways;

use bed::{Bed, SQUARE, limits, new_world, rate, world};
use canopy_control::storage::{Storage, StorageError};
use canopy_control::{
    Admission, Controller, Core, Downlink, Enter, Entry, Event, ItemKey, LinkId, LinkReport,
    MOST_TICKS, MemberState, Mode, Name, NewRelay, NewWorld, NotLetIn, Refusal, RelayId, RelaySide,
    RelayState, Retry, Settings, TreeAsk, WorldChanges,
};
use core::time::Duration;

#[test]
fn the_nearest_relay_with_room_takes_whoever_enters() {
    let mut bed = Bed::new(3, 10_000_000, &[(0, 1, 1000), (1, 2, 1000)]);
    let relays: Vec<u16> = (0..4)
        .map(|owner| bed.enter(owner, &[1, 0, 2], limits(1000, 1000)).unwrap().relay.0)
        .collect();
    assert_eq!(relays, [2, 2, 1, 1], "two places each");
    let admitted = bed.exchange().into_iter().filter(|e| matches!(e, Event::Admitted { .. }));
    assert_eq!(admitted.count(), 4);
    let grant = bed.enter(0, &[2], limits(9, 9)).unwrap().grant;
    assert_eq!(grant.budget.up_bits, Some(1000), "who asks again gets what it has");
    assert_eq!((grant.address.unwrap().is_portable(), grant.site), (true, Some(2)), "there alone");
}

#[test]
fn a_refusal_names_what_is_full_what_was_asked_and_what_is_free() {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    bed.enter(0, &[0], limits(600_000, 600_000)).unwrap();
    bed.enter(1, &[1], limits(600_000, 600_000)).unwrap();
    let refusal = bed.enter(2, &[1], limits(400_000, 400_000)).unwrap_err().to_string();
    let expected = "the link 1 from r1 to r0: 400000 bit/s and 400000 packets/s more is asked for, \
                    300000 bit/s and 300000 packets/s is free; ask for less, or take another relay";
    assert_eq!(refusal, expected);
    bed.enter(3, &[0, 1], limits(1, 1)).unwrap();
    bed.enter(4, &[1], limits(1, 1)).unwrap();
    let refusal = bed.enter(5, &[0], limits(1, 1)).unwrap_err().to_string();
    assert!(refusal.starts_with("the places of r0: 1 places more is asked for, 0 places is free"));
    let nobody = bed.enter(6, &[], limits(1, 1)).unwrap_err().to_string();
    assert!(nobody.contains("measure others"), "{nobody}");
}

#[test]
fn who_asks_again_and_again_where_there_is_no_room_is_told_of_once_a_second_with_a_count() {
    let mut bed = Bed::new(2, 1_000_000, &[(0, 1, 1000)]);
    let not_let_in = |bed: &mut Bed| {
        let told = |event| match event {
            Event::NotLetIn { why, times, .. } => Some((why.to_string(), times)),
            _ => None,
        };
        (0..3).flat_map(|_| bed.exchange()).filter_map(told).collect::<Vec<_>>()
    };
    for number in 0..1_000_u32 {
        let at = usize::from(number == 500);
        bed.enter(number as u8, &[at], limits(1, 2_000_000 + number)).unwrap_err();
    }
    let told = not_let_in(&mut bed);
    let [(first, 999), (second, 1)] = &told[..] else { panic!("{told:?}") };
    assert!(first.starts_with("the uplink of r0, sending: 2000999 bit/s"), "the last: {first}");
    assert!(second.starts_with("the uplink of r1, sending: 2000500 bit/s"), "{second}");
    assert_eq!(not_let_in(&mut bed), [], "once");

    // More worlds in one second than are told of, and who is kept out for another reason.
    let barred = bed.enter(0, &[0], limits(1, 1)).unwrap();
    let bar = Duration::from_secs(60);
    bed.controller.kick(bed.now, barred.world, barred.address, bar).unwrap();
    bed.enter(0, &[0], limits(1, 1)).unwrap_err();
    for number in 0..70_u8 {
        let name = Name::new(&format!("w{number}")).unwrap();
        bed.controller.create_world(new_world(name.clone())).unwrap();
        let measured = vec![(bed.relays[0].0, 1)];
        let ask =
            Enter { limits: Some(limits(1, 2_000_000)), ..Enter::new(name, [1; 16], measured) };
        bed.controller.enter(bed.now, &ask).unwrap_err();
    }
    assert_eq!(not_let_in(&mut bed).len(), 64);
    let NotLetIn { refusals, untold } = bed.controller.not_let_in();
    assert_eq!((refusals, untold), (1_070, 6));
}

#[test]
fn an_uplink_is_not_overbooked_either() {
    let mut bed = Bed::new(1, 1_000_000, &[]);
    bed.enter(0, &[0], limits(1, 800_000)).unwrap();
    let refusal = bed.enter(1, &[0], limits(1, 100_001)).unwrap_err().to_string();
    assert!(refusal.starts_with("the uplink of r0, sending: 100001 bit/s"), "{refusal}");
    bed.enter(1, &[0], limits(1, 100_000)).unwrap();
}

#[test]
fn who_drains_takes_nobody_new() {
    let mut bed = Bed::new(2, 1_000_000, &[(0, 1, 1000)]);
    bed.controller.drain(RelayId(1), true).unwrap();
    assert_eq!(bed.enter(0, &[0, 1], limits(1, 1)).unwrap().relay, RelayId(2));
    bed.controller.drain(RelayId(1), false).unwrap();
    assert_eq!(bed.enter(1, &[0, 1], limits(1, 1)).unwrap().relay, RelayId(1));
}

#[test]
fn a_failed_link_is_gone_round_and_what_stands_stays() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    bed.set_link(2, [1, 2], false);
    let events = bed.exchange();
    assert!(events.iter().any(|event| matches!(event, Event::Reshaped { .. })), "{events:?}");
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    bed.set_link(4, [3, 0], false);
    let events = bed.exchange();
    assert!(events.iter().any(|event| matches!(event, Event::Broken { .. })), "{events:?}");
    assert_eq!(bed.links_of_tree(), [1, 3, 4], "what stands goes on");
    bed.set_link(2, [1, 2], true);
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
}

/// Nothing has failed and nothing has come back: there is a way that was not there before.
#[test]
fn a_new_link_mends_what_nothing_else_could() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.set_link(2, [1, 2], false);
    bed.set_link(4, [3, 0], false);
    let events = bed.exchange();
    assert!(events.iter().any(|event| matches!(event, Event::Broken { .. })), "{events:?}");
    let ends = [0, 2].map(|at: usize| bed.relays[at].0);
    let link = bed.controller.add_link(ends, rate(1_000_000), 1_000).unwrap();
    bed.exchange();
    bed.set_link(link.0, [0, 2], true);
    bed.exchange();
    assert_eq!(link, LinkId(5));
    assert_eq!(bed.links_of_tree(), [1, 3, 5]);
}

/// It may carry nothing for a while.
#[test]
fn a_link_that_has_just_been_made_mends_only_what_nothing_else_can() {
    for in_parts in [false, true] {
        let mut bed = Bed::new(5, 10_000_000, &[&SQUARE[..], &[(3, 4, 1000)]].concat());
        let members = if in_parts { 5 } else { 4 };
        (0..members).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
        for (number, (one, other, _)) in SQUARE.into_iter().enumerate() {
            bed.set_link(number as u32 + 1, [one, other], true);
        }
        bed.exchange();
        let ends = [1, 3].map(|at: usize| bed.relays[at].0);
        let link = bed.controller.add_link(ends, rate(1_000_000), 10).unwrap();
        bed.exchange();
        // If the fifth has a member, nothing joins all.
        bed.set_link(5, [3, 4], false);
        bed.exchange();
        bed.set_link(2, [1, 2], false);
        bed.exchange();
        let tree = bed.links_of_tree();
        assert!(tree.contains(&4) && !tree.contains(&link.0), "{in_parts}: {tree:?}");
        bed.set_link(4, [3, 0], false);
        bed.exchange();
        let tree = bed.links_of_tree();
        assert!(tree.contains(&link.0), "{in_parts}: {tree:?}");
    }
}

#[test]
fn a_link_that_flaps_is_left_out_for_a_while() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    let mut events = Vec::new();
    for _ in 0..3 {
        for up in [false, true] {
            bed.set_link(2, [1, 2], up);
            events.extend(bed.exchange());
        }
    }
    assert!(events.contains(&Event::LinkDamped(LinkId(2))), "{events:?}");
    assert_eq!(bed.links_of_tree(), [1, 3, 4], "it is up, and not used");
}

#[test]
fn a_relay_that_drains_and_has_no_members_is_left_out_of_trees_without_a_gap() {
    // Relay 1 leads from 0 to 2 by the shortest way, and 3 by another.
    let mut bed = Bed::new(4, 10_000_000, &[(0, 1, 1), (1, 2, 1), (0, 3, 2), (3, 2, 2)]);
    for (owner, at) in [0, 0, 2].into_iter().enumerate() {
        bed.enter(owner as u8, &[at], limits(1000, 1000)).unwrap();
    }
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2]);
    bed.controller.drain(RelayId(2), true).unwrap();
    let mut events = Vec::new();
    for _ in 0..12 {
        events.extend(bed.exchange());
    }
    assert_eq!(bed.links_of_tree(), [3, 4]);
    let why = "r1 drains";
    assert!(events.iter().any(|e| matches!(e, Event::Reshaped { why: of, .. } if of == why)));
    bed.controller.remove_relay(RelayId(2)).unwrap();
}

#[test]
fn who_was_replaced_writes_nothing_and_is_heeded_no_more() {
    let mut bed = Bed::new(1, 1_000_000, &[]);
    bed.enter(0, &[0], limits(1, 1)).unwrap();
    bed.exchange();
    let settings = Settings::default();
    let mut newer =
        Controller::start(settings, Retry::default(), bed.now, &mut bed.storage).unwrap();
    assert_eq!(newer.members().count(), 1, "what was committed is there");
    bed.enter(1, &[0], limits(1, 1)).unwrap();
    let batch = bed.controller.poll_commit(bed.now).unwrap();
    let result = bed.storage.commit(&batch);
    assert!(matches!(result, Err(StorageError::Conflict(_))));
    assert!(bed.controller.handle_commit(bed.now, result).is_err());
    // The relay has heard the newer one: calls of the older have no effect.
    bed.now = bed.now + Duration::from_secs(1);
    let side = &mut bed.relays[0].1;
    side.handle_timeout(bed.now);
    newer.handle_message(bed.now, RelayId(1), &side.poll_transmit().unwrap());
    side.handle_message(&newer.poll_transmit(bed.now).unwrap().1);
    let before = side.ignored();
    let late = canopy_control::Message::Call {
        controller: bed.controller.life(),
        relay: 1,
        number: 1,
        settled: 1,
        call: canopy_control::signal::Call::List(None),
    };
    side.handle_message(&late.encode());
    assert_eq!(side.ignored(), before + 1);
}

#[test]
fn a_controller_that_starts_again_sends_nobody_away() {
    let mut bed = Bed::new(3, 1_000_000, &[(0, 1, 1000), (1, 2, 1000)]);
    for (owner, at) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
        bed.enter(owner, &[at], limits(1, 1)).unwrap();
    }
    bed.exchange();
    let (settings, retry) = (Settings::default(), Retry::default());
    bed.controller = Controller::start(settings, retry, bed.now, &mut bed.storage).unwrap();
    for connected in [1, 2, 3] {
        bed.connected = connected;
        bed.exchange();
        assert_eq!(bed.sent_away, 0, "with {connected} of three relays");
    }
    assert!(bed.controller.is_settled());
    let there = bed.relays.iter().flat_map(|(_, side)| side.items().keys());
    assert_eq!(there.filter(|key| matches!(key, ItemKey::Member(..))).count(), 4);
}

#[test]
fn a_relay_of_another_key_does_not_take_a_name() {
    let mut bed = Bed::new(1, 1_000_000, &[]);
    let new = |key: u8| NewRelay {
        name: Name::new("r0").unwrap(),
        key: [key; 32],
        native: ([127, 0, 0, 1], 1).into(),
        uplink: limits(1, 1),
        places: 1,
        comtrees: 1024,
    };
    assert_eq!(bed.controller.register(bed.now, new(0)), Ok(RelayId(1)));
    let refusal = bed.controller.register(bed.now, new(9)).unwrap_err().to_string();
    assert!(refusal.contains("is known by another key"), "{refusal}");
}

#[test]
fn a_relay_is_taken_away_once_it_is_drained_and_empty() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    let of: Vec<Admission> =
        (0..4).map(|at| bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap()).collect();
    bed.exchange();
    bed.controller.drain(RelayId(2), true).unwrap();
    bed.controller.leave(of[1].world, of[1].address).unwrap();
    assert!(bed.exchange().contains(&Event::RelayDraining(RelayId(2))));
    // It is between the others still.
    bed.controller.remove_relay(RelayId(2)).unwrap();
    let name = Name::new("r1").unwrap();
    let removed = Event::RelayRemoved { relay: RelayId(2), name: name.clone() };
    assert!((0..20).any(|_| bed.exchange().contains(&removed)));
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [3, 4]);
    assert!(bed.relays[1].1.items().is_empty(), "it has nothing any more");
    assert!(bed.controller.relay_named(&name).is_err());
    let accounts = bed.controller.accounts().map(|(account, ..)| format!("{account:?}"));
    assert!(accounts.into_iter().all(|account| !account.contains("RelayId(2)")));
}

#[test]
fn who_is_kicked_may_not_come_back_for_so_long_whatever_starts_anew() {
    let mut bed = Bed::new(1, 10_000_000, &[]);
    let Admission { world, address, .. } = bed.enter(7, &[0], limits(1, 1)).unwrap();
    bed.exchange();
    bed.controller.kick(bed.now, world, address, Duration::from_secs(120)).unwrap();
    let refusal = bed.enter(7, &[0], limits(1, 1)).unwrap_err().to_string();
    assert!(refusal.contains("for another 120 s; wait until then"), "{refusal}");
    assert!(bed.exchange().contains(&Event::Left { world, address }));
    let (settings, retry) = (Settings::default(), Retry::default());
    bed.controller = Controller::start(settings, retry, bed.now, &mut bed.storage).unwrap();
    bed.exchange();
    assert!(matches!(bed.enter(7, &[0], limits(1, 1)), Err(Refusal::Barred { .. })));
    bed.enter(8, &[0], limits(1, 1)).expect("others may");
    bed.now = bed.now + Duration::from_secs(121);
    bed.exchange();
    bed.enter(7, &[0], limits(1, 1)).expect("it is over");
}

/// One is in, one moves, one is leaving, and one has lost its relay.
#[test]
fn all_who_are_called_so_are_kicked_and_none_comes_back_meanwhile() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    let ask = |bed: &Bed, owner: u8, at: usize, subject: &str| {
        let measured = vec![(bed.relays[at].0, 1000)];
        let entry = Entry { visit: 1, ..Entry::default() };
        let subject = subject.to_owned();
        Enter { entry, subject, ..Enter::new(world(), [owner; 16], measured) }
    };
    let entered = [(0, 0, "p"), (1, 1, "p"), (2, 0, "p"), (3, 3, "p"), (4, 1, "q")].map(
        |(owner, at, name)| {
            let ask = ask(&bed, owner, at, name);
            bed.controller.enter(bed.now, &ask).unwrap()
        },
    );
    let world = entered[0].world;
    bed.exchange();
    bed.controller.drain(RelayId(2), true).unwrap();
    let moved = ask(&bed, 1, 2, "p");
    let moved = bed.controller.relocate(bed.now, &moved).unwrap();
    assert_ne!(moved.address, entered[1].address);
    bed.connected = 3;
    (0..6).for_each(|_| _ = bed.exchange());
    bed.stalls = true;
    bed.controller.leave(world, entered[2].address).unwrap();
    let bar = Duration::from_secs(600);
    assert_eq!(bed.controller.kick_subject(bed.now, world, "nobody", bar), 0);
    assert_eq!(bed.controller.kick_subject(bed.now, world, "p", bar), 4);
    bed.stalls = false;
    bed.exchange();
    bed.start_again();
    for owner in 0..4 {
        let again = ask(&bed, owner, 2, "p");
        let refusal = bed.controller.enter(bed.now, &again);
        assert!(matches!(refusal, Err(Refusal::Barred { .. })), "{owner}: {refusal:?}");
    }
    let left = bed.controller.members().filter(|member| member.state == MemberState::Held);
    assert_eq!(left.map(|member| member.subject.as_str()).collect::<Vec<_>>(), ["q"]);
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_world_is_changed_as_far_as_it_can_be_while_members_are_in() {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    let set = |bed: &mut Bed, changes| bed.controller.set_world(&world(), changes);
    let downlink = || WorldChanges { downlink: Some(Downlink::Group), ..WorldChanges::default() };
    let core = |core| WorldChanges { core: Some(core), ..WorldChanges::default() };
    set(&mut bed, downlink()).unwrap();
    let members = [0, 1].map(|at| {
        let near = [usize::from(at)];
        let admission = bed.enter(at, &near, limits(700_000, 1000)).unwrap();
        (admission.relay, admission.address)
    });
    bed.exchange();
    let back = WorldChanges { downlink: Some(Downlink::Member), ..WorldChanges::default() };
    let refusal = set(&mut bed, back).unwrap_err().to_string();
    assert!(refusal.starts_with("the downlink of the world w cannot change"), "{refusal}");
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    let root = bed.controller.explain(comtree).unwrap().relays[0].relay;
    let sent = |bed: &Bed| bed.controller.explain(comtree).unwrap().relays[1].above.unwrap();
    assert_eq!((sent(&bed).up, sent(&bed).down), (rate(700_000), rate(1000)), "to the center");
    set(&mut bed, core(Core::All)).unwrap();
    assert!(bed.exchange().iter().any(|event| matches!(event, Event::WorldChanged(_))));
    assert_eq!((sent(&bed).up, sent(&bed).down), (rate(700_000), rate(700_000)));
    assert_eq!(sent(&bed).free_up, rate(200_000));
    let explained = bed.controller.explain(comtree).unwrap();
    assert!(explained.relays.iter().all(|relay| relay.core) && explained.why.contains("core"));
    assert_eq!((explained.members, explained.relays[0].relay), (2, root));
    // More than the link bears if all are in the core.
    set(&mut bed, core(Core::Center)).unwrap();
    let (_, at_root) = members.into_iter().find(|(relay, _)| *relay == root).unwrap();
    let id = bed.controller.world(&world()).unwrap().id;
    bed.controller.modify(id, at_root, limits(2_000_000, 1000)).unwrap();
    let before: Vec<_> = bed.controller.accounts().collect();
    let refusal = set(&mut bed, core(Core::All)).unwrap_err();
    assert!(matches!(refusal, Refusal::Full { .. }), "{refusal}");
    assert_eq!(bed.controller.accounts().collect::<Vec<_>>(), before);
    assert_eq!(bed.controller.world(&world()).unwrap().core, Core::Center, "nothing changed");
}

#[test]
fn worlds_have_only_so_many_ticks() {
    let mut bed = Bed::new(1, 1_000_000, &[]);
    let new = |number: u16, mode| NewWorld {
        name: Name::new(&format!("w{number}")).unwrap(),
        comtrees: 1,
        channels: Vec::new(),
        levels: 0,
        mode,
        downlink: Downlink::Member,
        default: limits(1, 1),
        core: Core::Center,
        sharing: canopy_control::Sharing::default(),
    };
    // One has a tick of 50 ms already.
    let most = MOST_TICKS as u16;
    for number in 1..most {
        bed.controller.create_world(new(number, Mode::Periodic(number))).unwrap();
    }
    let refused = bed.controller.create_world(new(200, Mode::Periodic(99))).unwrap_err();
    let Refusal::TooManyTicks { tick_ms: 99, ticks } = &refused else { panic!("{refused}") };
    assert_eq!((ticks.len(), ticks.first(), ticks.last()), (MOST_TICKS, Some(&1), Some(&50)));
    bed.controller.create_world(new(201, Mode::Periodic(50))).unwrap();
    bed.controller.create_world(new(202, Mode::Immediate)).unwrap();
    let periodic =
        |tick_ms| WorldChanges { mode: Some(Mode::Periodic(tick_ms)), ..WorldChanges::default() };
    let set = |bed: &mut Bed, number, tick_ms| {
        bed.controller.set_world(&new(number, Mode::Immediate).name, periodic(tick_ms))
    };
    assert_eq!(
        set(&mut bed, 202, 99),
        Err(Refusal::TooManyTicks { tick_ms: 99, ticks: ticks.clone() })
    );
    // It has one for itself, which it gives up.
    set(&mut bed, 1, 99).unwrap();
    set(&mut bed, 202, 99).unwrap();
}

#[test]
fn whose_channel_breaks_stays_while_a_neighbour_hears_it_and_is_lost_at_once_if_none_does() {
    let mut bed = Bed::new(3, 10_000_000, &[(0, 1, 1000), (1, 2, 1000), (2, 0, 1000)]);
    (0..3).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    (1..=3).for_each(|link| bed.set_link(link, [link as usize - 1, link as usize % 3], true));
    bed.exchange();
    bed.controller.handle_disconnect(bed.now, RelayId(2));
    let say = |bed: &mut Bed, at: usize, link: u32| {
        let report = LinkReport { link: LinkId(link), up: false, delay_us: 0 };
        let side = &mut bed.relays[at].1;
        side.set_link(bed.now, report);
        side.handle_timeout(bed.now);
        while let Some(bytes) = side.poll_transmit() {
            bed.controller.handle_message(bed.now, RelayId(at as u16 + 1), &bytes);
        }
        let of = bed.controller.relays().find(|relay| relay.id == RelayId(2)).unwrap();
        of.state
    };
    assert_eq!(say(&mut bed, 0, 1), RelayState::Up, "r2 hears it");
    let refusal =
        bed.controller.enter(bed.now, &Enter::new(world(), [9; 16], vec![(RelayId(2), 1)]));
    assert_eq!(refusal, Err(Refusal::NoRelay(1)), "it takes nobody new");
    assert_eq!(say(&mut bed, 2, 2), RelayState::Gone);
    assert!(
        bed.controller
            .members()
            .filter(|m| m.relay == RelayId(2))
            .all(|member| { member.state == canopy_control::MemberState::Resting })
    );
}

#[test]
fn who_loses_its_relay_has_its_address_at_another_and_the_lost_one_says_nothing_of_it_any_more() {
    let mut bed = Bed::new(3, 10_000_000, &[(0, 1, 1000), (1, 2, 1000), (2, 0, 1000)]);
    let entry = Entry { let_in: 5, visit: 6 };
    let before = bed.enter_by(0, &[2], limits(1000, 1000), entry).unwrap();
    let other = bed.enter_by(1, &[2], limits(1000, 1000), entry).unwrap();
    let entered = |bed: &Bed, owner| bed.controller.known_by(before.world, owner).unwrap().entry;
    bed.exchange();
    // One leaves while its relay is there.
    bed.controller.leave(before.world, other.address).unwrap();
    bed.connected = 2;
    (2..=3).for_each(|link| bed.set_link(link, [link as usize - 1, link as usize % 3], false));
    let lost: Vec<Event> = (0..6).flat_map(|_| bed.exchange()).collect();
    assert!(lost.contains(&Event::RelayLost(before.relay)), "{lost:?}");
    // By what it was in it may come back, and who has left may not.
    assert_eq!([entered(&bed, [0; 16]), entered(&bed, [1; 16])], [entry, Entry::default()]);
    // Who has left cannot be sent away.
    let bar = Duration::from_secs(600);
    assert!(bed.controller.kick(bed.now, other.world, other.address, bar).is_err());
    // Nobody else gets what rests for it.
    let newcomer = bed.enter(7, &[0], limits(1000, 1000)).unwrap();
    assert!(![before.address, other.address].contains(&newcomer.address));
    let after = bed.enter(0, &[2, 1], limits(1000, 1000)).unwrap();
    assert_eq!((after.address, after.relay), (before.address, RelayId(2)));
    assert_eq!(after.grant.site, Some(2), "its token is for the other relay");
    let (world, address) = (after.world, after.address);
    let events = bed.exchange();
    assert!(events.contains(&Event::Admitted { world, address }), "{events:?}");
    assert_eq!(bed.controller.audit(), Ok(()));
    // The lost relay comes back, and is told that it has nothing.
    bed.connected = 3;
    (0..6).for_each(|_| _ = bed.exchange());
    let held = bed.controller.held_by(world, [0; 16]).unwrap();
    assert_eq!((held.address, held.relay), (address, RelayId(2)));
    let is_its = |side: &RelaySide| {
        let mut keys = side.items().keys();
        keys.any(|key| matches!(key, ItemKey::Member(_, of) if *of == address))
    };
    let there: Vec<bool> = bed.relays.iter().map(|(_, side)| is_its(side)).collect();
    assert_eq!(there, [false, true, false]);
    // A controller that starts anew knows the same.
    let settings = Settings::default();
    let again = Controller::start(settings, Retry::default(), bed.now, &mut bed.storage).unwrap();
    let held = again.held_by(world, [0; 16]).unwrap();
    assert_eq!((held.address, held.relay, again.audit()), (address, RelayId(2), Ok(())));
}

#[test]
fn who_is_kicked_after_its_relay_was_lost_does_not_come_back() {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    let entry = Entry { let_in: 5, visit: 6 };
    let Admission { world, address, .. } = bed.enter_by(7, &[1], limits(1, 1), entry).unwrap();
    bed.exchange();
    bed.connected = 1;
    bed.set_link(1, [0, 1], false);
    let lost: Vec<Event> = (0..6).flat_map(|_| bed.exchange()).collect();
    assert!(lost.contains(&Event::RelayLost(RelayId(2))), "{lost:?}");
    let bar = Duration::from_secs(3600);
    bed.controller.kick(bed.now, world, address, bar).unwrap();
    assert!(bed.controller.kick(bed.now, world, address, bar).is_err(), "it has gone");
    bed.exchange();
    let (settings, retry) = (Settings::default(), Retry::default());
    bed.controller = Controller::start(settings, retry, bed.now, &mut bed.storage).unwrap();
    let known = bed.controller.known_by(world, [7; 16]).unwrap();
    assert_eq!(known.entry, Entry::default(), "its token counts no more");
    bed.now = bed.now + Duration::from_secs(3000);
    bed.exchange();
    assert!(matches!(bed.enter(7, &[0], limits(1, 1)), Err(Refusal::Barred { .. })));
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_tree_follows_the_delays_that_links_ends_measure_and_a_restart_forgets_none() {
    let links = [(0, 1, 1000), (1, 2, 1000), (2, 0, 1000)];
    let mut bed = Bed::new(3, 10_000_000, &links);
    (0..3).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    let delay_of = |controller: &Controller, link: u32| {
        controller.links().find(|(of, _)| of.id == LinkId(link)).unwrap().0.delay_us
    };
    let slow = bed.links_of_tree()[0];
    let (one, other, _) = links[slow as usize - 1];
    let measure = |bed: &mut Bed, ends: [usize; 2], delay_us: u32| {
        for end in ends {
            let report = LinkReport { link: LinkId(slow), up: true, delay_us };
            bed.relays[end].1.set_link(bed.now, report);
        }
        // Beats come twice a second, and the delays are looked at once a second.
        (0..6).for_each(|_| _ = bed.exchange());
    };
    // The relay that is not at the link says what is not its to say.
    let stranger = 3 - one - other;
    measure(&mut bed, [stranger; 2], 90_000);
    assert_eq!(delay_of(&bed.controller, slow), 1000);
    measure(&mut bed, [one, other], 1050);
    assert_eq!(delay_of(&bed.controller, slow), 1000, "that is noise");
    measure(&mut bed, [one, other], 60_000);
    let known = delay_of(&bed.controller, slow);
    assert!((20_000..=60_000).contains(&known), "{known}");
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    assert!(bed.links_of_tree().contains(&slow));
    assert!(bed.controller.move_tree(comtree, TreeAsk::default()).unwrap().hung > 0);
    (0..6).for_each(|_| _ = bed.exchange());
    assert!(!bed.links_of_tree().contains(&slow), "the tree is elsewhere");
    let (settings, retry) = (Settings::default(), Retry::default());
    let again = Controller::start(settings, retry, bed.now, &mut bed.storage).unwrap();
    assert_eq!(delay_of(&again, slow), delay_of(&bed.controller, slow));
}
