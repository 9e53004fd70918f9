//! Weights and objects on their way: whatever a publisher says of an update reaches its receivers, and
//! a subscription's weight is said again as often as the subscription.

use crate::support::{
    COMTREE, DOWNLINKS, PERIODIC, Received, World, at_site, config, group, with_downlink,
};
use canopy_relay::{BranchRole, Mode};
use canopy_session::SessionLimits;
use canopy_wire::{
    Address, Downlink, DropReason, Group, Kind, Level, Packet, Record, Subscribe,
    SubscriptionChange, Weight,
};
use std::time::Duration;

const GROUP: u32 = 7;

/// Three relays in a line, the second with two data threads: whoever is at one end hears the other
/// over two branches, and between these from one data thread to the other. Two participants at the
/// first, one on each other data thread; all are subscribed.
fn line(mode: Mode, downlink: Downlink) -> World {
    let mut world = World::empty();
    for (site, threads) in [(1, 1), (2, 2), (3, 1)] {
        world.add_relay(with_downlink(at_site(mode, site), downlink), threads);
    }
    for thread in [0, 0, 1, 2, 3] {
        let number = world.join(thread);
        assert_eq!(world.thread_of(number), thread);
        world.subscribe(number, GROUP, 9);
    }
    world.link(COMTREE, [(0, 1), (1, 2)], [BranchRole::Core; 2]);
    world.link(COMTREE, [(2, 2), (3, 3)], [BranchRole::Core; 2]);
    world.settle();
    world
}

/// Updates one after the other that differ in weight, in object, in both, in neither, and in length.
fn updates(dst: Address) -> Vec<Record<'static>> {
    let said = [(128, 0), (128, 0), (200, 0), (200, 3), (128, 3), (0, 0xffff), (255, 0x80)];
    let payloads: [&[u8]; 2] = [b"short", &[7; 200]];
    let of = |(payload, (weight, object))| Record {
        level: Level(2),
        weight: Weight(weight),
        object,
        ..Record::new(dst, 0, payload)
    };
    payloads.into_iter().flat_map(|payload| said.map(|said| (payload, said))).map(of).collect()
}

/// What a receiver of these updates of the first participant has got, if they came as they were.
fn as_received(world: &World, updates: &[Record<'_>], first_series: u16) -> Vec<Received> {
    let of = |(update, series): (&Record<'_>, u16)| Received {
        src: world.address(0),
        dst: update.dst,
        series,
        level: update.level,
        weight: update.weight,
        object: update.object,
        payload: update.payload.to_vec(),
    };
    updates.iter().zip(first_series..).map(of).collect()
}

#[test]
fn weight_and_object_survive_branches_and_data_threads() {
    for (mode, downlink) in
        DOWNLINKS.into_iter().flat_map(|it| [(Mode::Immediate, it), (PERIODIC, it)])
    {
        let mut world = line(mode, downlink);
        let to_group = updates(group(GROUP));
        let to_one = updates(world.address(4));
        for update in [&to_group[..], &to_one[..]].concat() {
            world.publish_record(0, update);
        }
        for _ in 0..4 {
            world.tick();
        }
        let expected = as_received(&world, &to_group, 0);
        for number in 1..4 {
            let received = &world.participants[number].received;
            assert_eq!(*received, expected, "{mode:?}, {downlink:?}, participant {number}");
        }
        let of_one = as_received(&world, &to_one, to_group.len() as u16);
        let (by_group, by_address) = world.participants[4]
            .received
            .iter()
            .cloned()
            .partition::<Vec<_>, _>(|one| one.dst.is_group());
        assert_eq!((by_group, by_address), (expected, of_one), "{mode:?}, {downlink:?}");
        for reason in DropReason::ALL {
            assert_eq!(world.dropped(*reason), 0, "{}", reason.name());
        }
    }
}

/// Where receivers share a layout, a publisher's own updates are filler in its copy, and what comes
/// after leans on them.
#[test]
fn what_leans_on_filler_keeps_its_weight_and_its_object() {
    for downlink in DOWNLINKS {
        let mut world = World::of(with_downlink(config(PERIODIC), downlink), 3);
        world.subscribe_all(GROUP, 9);
        let update = Record {
            weight: Weight(77),
            object: 9,
            ..Record::new(group(GROUP), 0, b"of the same length")
        };
        for number in [0, 1, 2, 1] {
            world.publish_record(number, update);
        }
        world.tick();
        for (number, expected) in [(0, 3), (1, 2), (2, 3)] {
            let received = &world.participants[number].received;
            assert_eq!(received.len(), expected, "{downlink:?}");
            assert!(received.iter().all(|one| (one.weight, one.object) == (Weight(77), 9)));
        }
    }
}

/// The changes in what the first participant sends now, which its relay gets or not.
fn asked(world: &mut World, arrives: bool) -> Vec<SubscriptionChange> {
    let (now, mut out, mut changes) = (world.now, [0; 1500], Vec::new());
    while let Some(len) = world.participants[0].session.poll_transmit(now, &mut out) {
        let packet = world.open_from(0, &out[..len]);
        let packet = Packet::new_checked(&packet).unwrap();
        if packet.header().kind == Kind::Subscribe {
            changes.extend(Subscribe::new_checked(&packet).unwrap().changes());
        }
        if arrives {
            let path = world.participants[0].path;
            world.arrive(0, path, &out[..len]);
        }
    }
    world.run(0);
    changes
}

#[test]
fn a_repeated_subscribe_and_a_refresh_say_the_weights_again() {
    let mut world = World::new(Mode::Immediate, 1);
    let wanted = [(1, Weight::ONE), (2, Weight(90)), (3, Weight::IMPORTANT)];
    let session = &mut world.participants[0].session;
    for (group, weight) in wanted {
        session.subscribe_with(Group::new(group), Level(1), weight);
    }
    let expected =
        wanted.map(|(group, weight)| SubscriptionChange::add(Group::new(group), Level(1), weight));
    assert_eq!(asked(&mut world, false), expected);
    world.now = world.now + Duration::from_millis(200);
    assert_eq!(asked(&mut world, true), expected, "repeated, for the first was lost");
    let lifetime = SessionLimits::default().subscription;
    let end = world.now + lifetime;
    let mut refreshes = Vec::new();
    while world.now < end {
        world.now = world.now + Duration::from_millis(500);
        refreshes.push(asked(&mut world, true));
    }
    refreshes.retain(|changes| !changes.is_empty());
    assert!(refreshes.len() >= 2, "{refreshes:?}");
    assert!(refreshes.iter().all(|changes| *changes == expected), "{refreshes:?}");
    assert_eq!(world.relay().subscriptions(), 3);
}

/// The same weight again is no change; another weight is one, and so is its loss.
#[test]
fn only_another_weight_is_asked_for() {
    let mut world = World::new(Mode::Immediate, 1);
    let group = Group::new(1);
    for (level, weight, expected) in [
        (1, Weight(90), Some(SubscriptionChange::AddWeighted(group, Level(1), Weight(90)))),
        (1, Weight(90), None),
        (1, Weight(91), Some(SubscriptionChange::AddWeighted(group, Level(1), Weight(91)))),
        (2, Weight(91), Some(SubscriptionChange::AddWeighted(group, Level(2), Weight(91)))),
        (2, Weight::ONE, Some(SubscriptionChange::Add(group, Level(2)))),
    ] {
        world.participants[0].session.subscribe_with(group, Level(level), weight);
        assert_eq!(asked(&mut world, true), expected.as_slice());
    }
    assert_eq!(world.relay().subscriptions(), 1);
}
