//! Several data threads are one relay: what one wants the others hear, and updates are passed to
//! those that want them.

use crate::support::{self, COMTREE, OTHER_COMTREE, PERIODIC, World, config};
use canopy_relay::{Mode, Relay};
use canopy_session::Event;
use canopy_wire::{
    Address, DropReason, Flags, Group, Header, Kind, Level, Packet, Record, SAFE_DATAGRAM,
    UpdatesWriter,
};

fn taken(world: &World) -> Vec<u64> {
    world.threads.iter().map(|thread| thread.counters().updates_taken).collect()
}

#[test]
fn updates_are_passed_to_the_threads_that_listen_and_to_no_other() {
    for threads in [2, 3, 4, 64] {
        let mut world = World::on_each_thread(Mode::Immediate, threads);
        let listens = |thread: &usize| thread % 2 == 1;
        let listening: Vec<usize> = (0..threads.into()).filter(listens).collect();
        for number in &listening {
            world.subscribe(*number, 7, 0);
        }
        let second_on_one = world.join(1);
        world.subscribe(second_on_one, 7, 0);
        world.relay_mut().take_wakes();
        world.publish(0, 7, 0, Flags(0), b"hello");
        let wakes = world.relay_mut().take_wakes();
        let expected = listening.iter().fold(0, |mask, thread| mask | 1u64 << thread);
        assert_eq!(wakes, expected, "{threads} threads: only who listens is woken");
        world.settle();
        let listens = |thread: usize| u64::from(listening.contains(&thread));
        let expected: Vec<_> = (0..threads.into()).map(listens).collect();
        assert_eq!(taken(&world), expected, "{threads} threads");
        assert_eq!(world.sum(|counters| counters.updates_passed), listening.len() as u64);
        for number in 0..world.participants.len() {
            let gets = listening.contains(&number) || number == second_on_one;
            let expected: &[&[u8]] = if gets { &[b"hello"] } else { &[] };
            assert_eq!(world.payloads(number), expected, "{threads} threads, {number}");
        }
        assert_eq!(world.sum(|counters| counters.updates_in), 1);
        let without = world.sum(|counters| counters.updates_without_subscriber);
        assert_eq!(without, 0, "{threads} threads");
    }
}

#[test]
fn after_the_last_unsubscribe_nothing_is_passed() {
    for threads in [2, 3, 4] {
        let mut world = World::on_each_thread(Mode::Immediate, threads);
        let other = world.join(1);
        for number in [1, other] {
            world.subscribe(number, 7, 0);
        }
        let mut passed = Vec::new();
        for leaves in [Some(1), Some(other), None] {
            world.publish(0, 7, 0, Flags(0), b"x");
            world.settle();
            passed.push(world.relay().counters().updates_passed);
            if let Some(number) = leaves {
                world.unsubscribe(number, 7);
            }
        }
        assert_eq!(passed, [1, 2, 2]);
        assert_eq!(world.relay().counters().updates_without_subscriber, 1);
        // Whoever leaves unsubscribes from all.
        world.subscribe(1, 7, 0);
        world.publish(0, 7, 0, Flags(0), b"x");
        world.participants[1].session.leave();
        world.settle();
        world.publish(0, 7, 0, Flags(0), b"x");
        assert_eq!(world.relay().counters().updates_passed, 3);
    }
}

#[test]
fn a_thread_is_passed_no_higher_level_than_it_wants() {
    let mut world = World::on_each_thread(Mode::Immediate, 3);
    let also_on_one = world.join(1);
    world.subscribe(1, 7, 2);
    world.subscribe(also_on_one, 7, 0);
    world.subscribe(2, 7, 5);
    for level in 0..8 {
        world.publish(0, 7, level, Flags(0), &[level]);
    }
    world.settle();
    assert_eq!(taken(&world), [0, 3, 6]);
    assert_eq!(world.payloads(1), [[0], [1], [2]]);
    assert_eq!(world.payloads(also_on_one), [[0]]);
    assert_eq!(world.payloads(2).len(), 6);
    // Whoever raises its level is heard, whoever lowers it is obeyed.
    world.subscribe(1, 7, 7);
    world.subscribe(2, 7, 0);
    for level in [7, 1] {
        world.publish(0, 7, level, Flags(0), &[level]);
    }
    world.settle();
    assert_eq!(world.payloads(1)[3..], [[7], [1]]);
    assert_eq!(world.payloads(2).len(), 6, "level 1 is more than it wants now");
}

#[test]
fn an_interest_is_told_before_its_ack_leaves() {
    let mut world = World::on_each_thread(Mode::Immediate, 2);
    world.participants[1].session.subscribe(Group::new(7), Level(0));
    assert!(world.threads[0].has_heard_all());
    world.send_from(1);
    let now = world.now;
    let (first, second) = world.threads.split_at_mut(1);
    let mut acks = 0;
    second[0].transmit(now, |batch| {
        acks += batch.transmits().len();
        assert!(!first[0].has_heard_all(), "the ack leaves before the interest is told");
    });
    assert_eq!(acks, 1);
    // What the ack causes comes to a thread that has not run since.
    first[0].handle_control_of_siblings(now);
    world.publish(0, 7, 0, Flags(0), b"caused by the ack");
    assert_eq!(world.relay().counters().updates_passed, 1);
}

/// Thousands of subscriptions that end at once fill what tells the other threads; an ack must not
/// pass its own interest by that.
#[test]
fn an_acked_interest_does_not_wait_behind_those_that_ended() {
    let mut config = config(Mode::Immediate);
    config.tables.max_groups = 1 << 15;
    config.tables.max_new_groups_per_participant = 4000;
    let mut world = World::with_threads(config, 2);
    world.join(0);
    world.join(1);
    let leaving: Vec<usize> = (0..5).map(|_| world.join(1)).collect();
    for (nth, number) in leaving.iter().enumerate() {
        for one in 0..4000 {
            let group = Group::new(1000 + nth as u32 * 4000 + one);
            world.participants[*number].session.subscribe(group, Level(0));
        }
        world.settle();
    }
    assert_eq!(world.threads[1].subscriptions(), 20_000);
    world.participants[1].session.subscribe(Group::new(7), Level(0));
    world.send_from(1);
    for number in leaving {
        world.participants[number].session.leave();
        world.send_from(number);
    }
    let sent = world.collect(1);
    world.carry(1, sent);
    let subscribed = Event::Subscribed(Group::new(7), Level(0));
    assert!(world.events(1).contains(&subscribed), "it is acked");
    let now = world.now;
    world.relay_mut().handle_control_of_siblings(now);
    world.publish(0, 7, 0, Flags(0), b"caused by the ack");
    world.settle();
    assert_eq!(world.payloads(1), [b"caused by the ack"]);
    world.publish(0, 1000, 0, Flags(0), b"nobody wants this");
    assert_eq!(world.relay().counters().updates_passed, 1, "all that ended is told in the end");
}

#[test]
fn unicast_goes_to_its_own_thread() {
    for threads in [2, 3, 4, 64] {
        let mut world = World::on_each_thread(Mode::Immediate, threads);
        let to = usize::from(threads) - 1;
        world.publish_to(0, world.address(to), 0, Flags(0), b"psst");
        world.settle();
        let mut expected = vec![0; threads.into()];
        expected[to] = 1;
        assert_eq!(taken(&world), expected, "{threads} threads");
        assert_eq!(world.payloads(to), [b"psst"]);
        assert_eq!(world.relay().counters().updates_passed, 1);
        world.publish_to(0, world.address(0), 0, Flags(0), b"self");
        world.settle();
        assert_eq!(world.payloads(0), [b"self"]);
        assert_eq!(world.relay().counters().updates_passed, 1, "it stays");
    }
}

#[test]
fn a_publishers_order_is_kept_across_groups_and_threads() {
    let mut world = World::on_each_thread(PERIODIC, 3);
    for number in [1, 2] {
        world.subscribe(number, 1, 0);
        world.subscribe(number, 2, 9);
    }
    for step in 0..200u8 {
        world.publish(0, 1 + u32::from(step) % 2, step % 2, Flags(0), &[step; 40]);
        // Thread 1 takes them one by one, thread 2 all at once.
        let now = world.now;
        world.threads[1].handle_siblings(now);
    }
    world.tick();
    for number in [1, 2] {
        let steps: Vec<_> = world.payloads(number).iter().map(|payload| payload[0]).collect();
        assert_eq!(steps, (0..200).collect::<Vec<_>>(), "on thread {number}");
    }
}

/// More is passed than what passes between threads can hold, while one of them sleeps.
#[test]
fn a_slow_thread_loses_counted_updates_and_nobody_elses() {
    let mut world = World::on_each_thread(Mode::Immediate, 3);
    for number in [0, 1, 2] {
        world.subscribe(number, 7, 0);
    }
    let published = 20_000;
    for step in 0..published {
        world.publish(0, 7, 0, Flags(0), &(step as u32).to_be_bytes().repeat(25));
        if step % 100 == 99 {
            world.run(1);
        }
    }
    world.settle();
    let lost = world.threads[2].counters().dropped(DropReason::SiblingsFull);
    assert!(lost > 0, "the log must be too small for this test");
    assert_eq!(world.dropped(DropReason::SiblingsFull), lost, "nobody else loses any");
    assert_eq!(world.payloads(1).len(), published);
    assert_eq!(world.payloads(2).len() as u64 + lost, published as u64);
    let steps: Vec<_> = world.payloads(2).iter().map(|payload| payload[..4].to_vec()).collect();
    assert!(steps.is_sorted(), "what is left keeps its order");
    // The books of the relay add up as well.
    let counters = |thread: usize| world.threads[thread].counters().clone();
    assert_eq!(counters(0).updates_passed, 2 * published as u64);
    assert_eq!(counters(1).updates_taken, published as u64);
    assert_eq!(counters(2).updates_taken + lost, published as u64);
    assert_eq!(world.dropped(DropReason::PendingFull), 0);
}

/// A flood on one comtree overtakes a thread that sleeps. What was passed of a comtree of another lane is all there
/// when it wakes.
#[test]
fn a_flood_between_threads_loses_nothing_of_other_lanes() {
    let mut world = World::on_each_thread(Mode::Immediate, 2);
    let victims = [0, 1].map(|thread| {
        let number = world.add_participant(thread, OTHER_COMTREE);
        world.settle();
        assert_eq!(world.thread_of(number), thread);
        number
    });
    world.subscribe(1, 7, 0);
    world.subscribe(victims[1], 7, 0);
    let mut said = Vec::new();
    for step in 0..20_000_u32 {
        world.publish(0, 7, 0, Flags(0), &step.to_be_bytes().repeat(25));
        if step % 500 == 0 {
            world.publish(victims[0], 7, 0, Flags(0), &step.to_be_bytes());
            said.push(step.to_be_bytes().to_vec());
        }
    }
    // Thread 1 looks once, as far as what it takes finds room.
    world.run(1);
    let got: Vec<_> = world.payloads(victims[1]).iter().map(|one| one.to_vec()).collect();
    assert_eq!(got, said);
    world.settle();
    let lost = world.dropped(DropReason::SiblingsFull);
    assert!(lost > 0, "the log must be too small for this test");
    assert_eq!(world.payloads(1).len() as u64 + lost, 20_000);
    assert_eq!(world.payloads(victims[1]).len(), said.len());
    assert_eq!(world.dropped(DropReason::PendingFull), 0);
}

#[test]
fn a_drop_is_counted_once() {
    for threads in [1, 2, 4] {
        let mut world = World::on_each_thread(Mode::Immediate, threads);
        for number in 0..threads.into() {
            world.subscribe(number, 7, 0);
        }
        let mut out = [0; 1500];
        let src = world.address(0);
        let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
        for stolen in 0..10 {
            let stolen = Address(src.0 + 1 + stolen);
            let record = Record::new(support::group(7), 0, b"not mine");
            assert!(writer.push(&Record { src: stolen, ..record }));
        }
        let id = world.participants[0].session.id();
        let len = writer.finish(&Header::new(Kind::Updates, id, COMTREE));
        world.send(0, &out[..len]);
        let nobody = Address::unicast(src.site(), src.endpoint() ^ 0x4000);
        world.publish_to(0, nobody, 0, Flags(0), b"x");
        world.settle();
        let dropped: u64 = DropReason::ALL.iter().map(|reason| world.dropped(*reason)).sum();
        assert_eq!(world.dropped(DropReason::SpoofedSource), 10, "{threads} threads");
        assert_eq!(world.dropped(DropReason::UnknownDestination), 1, "{threads} threads");
        assert_eq!(dropped, 11, "{threads} threads");
        let on_comtrees: u64 =
            world.threads.iter().flat_map(Relay::comtrees).map(|one| one.counters.drops).sum();
        assert_eq!(on_comtrees, 11, "{threads} threads");
    }
}

#[test]
fn echo_concerns_the_publishers_own_thread() {
    let mut world = World::on_each_thread(Mode::Immediate, 3);
    for number in 0..3 {
        world.subscribe(number, 7, 0);
    }
    world.publish(0, 7, 0, Flags::ECHO, b"mine too");
    let now = world.now;
    world.threads[1].handle_siblings(now);
    let sent = world.collect(1);
    let packets = world.packets_to(1, &sent, 1);
    assert_eq!(packets.len(), sent.len());
    for packet in packets {
        let packet = Packet::new_checked(&packet).unwrap();
        let flags: Vec<_> = packet.updates().unwrap().map(|record| record.flags).collect();
        assert_eq!(flags, [Flags(0)], "elsewhere the flag says nothing");
    }
    world.carry(1, sent);
    world.settle();
    for number in 0..3 {
        assert_eq!(world.payloads(number), [b"mine too"], "participant {number}");
    }
    world.publish(0, 7, 0, Flags(0), b"not mine");
    world.settle();
    assert_eq!(world.payloads(0).len(), 1);
    assert_eq!(world.payloads(2).len(), 2);
}

#[test]
fn all_threads_hear_what_one_tells_and_are_woken_for_it() {
    let mut world = World::on_each_thread(Mode::Immediate, 4);
    for thread in &mut world.threads {
        thread.take_wakes();
    }
    world.participants[2].session.subscribe(Group::new(7), Level(0));
    world.send_from(2);
    let acks = world.collect(2);
    assert_eq!(world.threads[2].take_wakes(), 0b1011);
    world.carry(2, acks);
    world.settle();
    for number in [0, 1, 3] {
        world.publish(number, 7, 0, Flags(0), b"x");
        assert_eq!(world.threads[number].take_wakes(), 0b0100);
    }
    world.publish(2, 7, 0, Flags(0), b"x");
    assert_eq!(world.threads[2].take_wakes(), 0, "it stays");
}
