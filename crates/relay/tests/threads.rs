//! Several data threads are one relay: who listens is told, updates are passed to who listens, and
//! places and paths are the relay's.

mod support;

use canopy_relay::{ComtreeConfig, Mode, Places, Relay, RelayConfig};
use canopy_session::{Event, Session, SessionConfig, State};
use canopy_wire::{
    Address, BundleWriter, DropReason, Flags, Group, Header, Kind, Level, Packet, Path,
    RefusedReason, Time,
};
use std::collections::BTreeSet;
use std::time::Duration;
use support::{COMTREE, PERIODIC, World, config, ip_port};

/// A relay with `threads` data threads and a participant on each.
fn world(mode: Mode, threads: u16) -> World {
    let mut world = World::with_threads(config(mode), threads);
    for thread in 0..threads.into() {
        let number = world.join(thread);
        assert_eq!(world.thread_of(number), thread, "who joins a data thread is served by it");
    }
    world
}

fn taken(world: &World) -> Vec<u64> {
    world.threads.iter().map(|thread| thread.counters().updates_taken).collect()
}

#[test]
fn updates_are_passed_to_the_threads_that_listen_and_to_no_other() {
    for threads in [2, 3, 4, 64] {
        let mut world = world(Mode::Immediate, threads);
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
        let mut world = world(Mode::Immediate, threads);
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
    let mut world = world(Mode::Immediate, 3);
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
    let mut world = world(Mode::Immediate, 2);
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
        let mut world = world(Mode::Immediate, threads);
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
    let mut world = world(PERIODIC, 3);
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
    let mut world = world(Mode::Immediate, 3);
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
    let lost = world.threads[2].counters().dropped(DropReason::HandoverFull);
    assert!(lost > 0, "the log must be too small for this test");
    assert_eq!(world.dropped(DropReason::HandoverFull), lost, "nobody else loses any");
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

#[test]
fn a_drop_is_counted_once() {
    for threads in [1, 2, 4] {
        let mut world = world(Mode::Immediate, threads);
        for number in 0..threads.into() {
            world.subscribe(number, 7, 0);
        }
        let mut out = [0; 1500];
        let src = world.address(0);
        let mut writer = BundleWriter::new(&mut out).unwrap();
        for stolen in 0..10 {
            let stolen = Address(src.0 + 1 + stolen);
            assert!(writer.push(stolen, Group::new(7), Level(0), Flags(0), b"not mine"));
        }
        let len = writer.finish(&Header::new(Kind::Bundle, COMTREE, src, Address::UNSPECIFIED));
        let now = world.now;
        world.threads[0].handle_datagram(now, ip_port(0), &out[..len]);
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
    let mut world = world(Mode::Immediate, 3);
    for number in 0..3 {
        world.subscribe(number, 7, 0);
    }
    world.publish(0, 7, 0, Flags::ECHO, b"mine too");
    let now = world.now;
    world.threads[1].handle_siblings(now);
    let sent = world.collect(1);
    for datagram in sent.iter().flat_map(support::Sent::datagrams) {
        let flags = Packet::new_checked(datagram).unwrap().header().flags;
        assert_eq!(flags, Flags(0), "elsewhere the flag says nothing");
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

/// Lets a session join a data thread, without the others hearing of it yet.
fn join_alone(thread: &mut Relay, session: &mut Session, now: Time, path: Path) {
    let mut out = [0; 1500];
    while let Some(len) = session.poll_transmit(now, &mut out) {
        thread.handle_datagram(now, path, &out[..len]);
        thread.transmit(now, |batch| {
            for transmit in batch.transmits() {
                let answer: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                session.handle_datagram(now, &answer, |_| ()).unwrap();
            }
        });
    }
    assert_eq!(session.state(), State::Connected);
}

fn session(seed: u8) -> Session {
    Session::new(SessionConfig { comtree: COMTREE, seed: [seed; 16] })
}

#[test]
fn of_two_joins_of_one_path_exactly_one_survives_and_it_is_the_newer() {
    for (threads, older, newer) in [(2, 0, 1), (2, 1, 0), (4, 3, 1), (64, 5, 63)] {
        for later in [Duration::ZERO, Duration::from_millis(1)] {
            for newer_hears_first in [true, false] {
                let mut world = World::with_threads(config(Mode::Immediate), threads);
                let path = ip_port(0).into();
                let now = world.now;
                join_alone(&mut world.threads[older], &mut session(1), now, path);
                join_alone(&mut world.threads[newer], &mut session(2), now + later, path);
                assert_eq!(world.sessions(), 2, "neither has heard of the other");
                world.now = now + later;
                let order = if newer_hears_first { [newer, older] } else { [older, newer] };
                for thread in order {
                    world.run(thread);
                }
                world.settle();
                assert_eq!(world.sessions(), 1, "threads {older} and {newer}, {later:?}");
                if later > Duration::ZERO {
                    assert_eq!(world.threads[newer].sessions(), 1);
                }
            }
        }
    }
}

/// A participant that did not hear its answer repeats its connect; meanwhile it may have joined
/// anew on another thread.
#[test]
fn a_late_repeated_connect_does_not_end_a_newer_session() {
    let mut world = World::with_threads(config(Mode::Immediate), 2);
    let (now, path) = (world.now, ip_port(0).into());
    let (mut older, mut out) = (session(1), [0; 1500]);
    let len = older.poll_transmit(now, &mut out).unwrap();
    world.threads[0].handle_datagram(now, path, &out[..len]);
    let cookie = world.collect(0).remove(0).bytes;
    older.handle_datagram(now, &cookie, |_| ()).unwrap();
    let len = older.poll_transmit(now, &mut out).unwrap();
    world.threads[0].handle_datagram(now, path, &out[..len]);
    let later = now + Duration::from_millis(5);
    join_alone(&mut world.threads[1], &mut session(2), later, path);
    // Thread 0 has not heard of the newer session when the copy comes.
    world.now = now + Duration::from_millis(9);
    world.threads[0].handle_datagram(world.now, path, &out[..len]);
    world.settle();
    assert_eq!((world.threads[0].sessions(), world.threads[1].sessions()), (0, 1));
}

#[test]
fn who_joins_again_on_another_thread_has_one_session_and_its_subscriptions_end() {
    let mut world = world(Mode::Immediate, 3);
    world.subscribe(1, 7, 0);
    let path = world.participants[1].path;
    // The first one is no longer there.
    world.participants[1].path = ip_port(4000).into();
    world.now = world.now + Duration::from_millis(1);
    let again = world.add_participant(2, COMTREE);
    world.participants[again].path = path;
    world.settle();
    assert_eq!(world.threads[1].sessions(), 0);
    assert_eq!(world.threads[2].sessions(), 2);
    world.publish(0, 7, 0, Flags(0), b"x");
    assert_eq!(world.relay().counters().updates_passed, 0);
}

#[test]
fn a_move_to_a_path_ends_the_session_that_another_thread_has_there() {
    let mut world = world(Mode::Immediate, 2);
    world.now = world.now + Duration::from_millis(1);
    // The first one's binding becomes what was the second one's, who is gone.
    world.participants[0].path = world.participants[1].path;
    world.participants[1].path = ip_port(4000).into();
    world.publish(0, 7, 0, Flags(0), &[0; 64]);
    world.settle();
    assert!(world.events(0).contains(&Event::Rebound));
    assert_eq!((world.threads[0].sessions(), world.threads[1].sessions()), (1, 0));
}

#[test]
fn the_places_are_the_relays_whichever_thread_is_asked() {
    for threads in [1, 2, 3, 4, 64] {
        for all_ask_one in [true, false] {
            let places = Places::new(5);
            let config = RelayConfig { places, ..config(Mode::Immediate) };
            let mut world = World::with_threads(config, threads);
            for number in 0..8 {
                let asks = if all_ask_one { 0 } else { number % usize::from(threads) };
                world.add_participant(asks, COMTREE);
            }
            world.settle();
            assert_eq!(world.sessions(), 5, "{threads} threads");
            let is_in = |one: &support::Participant| one.session.state() == State::Connected;
            let inside: Vec<_> = world.participants.iter().map(is_in).collect();
            assert_eq!(inside.iter().filter(|is_in| **is_in).count(), 5);
            let first_out = inside.iter().position(|is_in| !is_in).unwrap();
            // Long enough for one that asks several threads first.
            for _ in 0..8 {
                world.now = world.now + Duration::from_millis(100);
                world.settle();
            }
            let full = Event::Refused(RefusedReason::Full);
            assert!(world.events(first_out).contains(&full), "{threads} threads");
            let leaves = inside.iter().position(|is_in| *is_in).unwrap();
            world.participants[leaves].session.leave();
            world.settle();
            let late = world.join(usize::from(threads) - 1);
            assert!(is_in(&world.participants[late]), "a place is free again");
            assert_eq!(world.sessions(), 5);
        }
    }
}

#[test]
fn a_thread_without_addresses_hands_the_applicant_on() {
    for threads in [2, 3, 4, 64] {
        let mut config = config(Mode::Immediate);
        let last = 63 + threads;
        config.comtrees =
            vec![ComtreeConfig { endpoints: 64..=last, ..ComtreeConfig::new(COMTREE, 1) }];
        let mut world = World::with_threads(config, threads);
        for _ in 0..threads {
            world.join(0);
        }
        let each: Vec<_> = world.threads.iter().map(Relay::sessions).collect();
        assert_eq!(each, vec![1; threads.into()], "each thread has one address");
        let addresses: BTreeSet<_> =
            (0..threads.into()).map(|number| world.address(number).endpoint()).collect();
        assert_eq!(addresses, (64..=last).collect::<BTreeSet<_>>());
        assert_eq!(world.dropped(DropReason::SessionsFull), 0);
        let late = world.join(0);
        assert_ne!(world.participants[late].session.state(), State::Connected);
        assert_eq!(world.dropped(DropReason::SessionsFull), 1, "refused once, by one thread");
        // The hand-on took no place for good.
        world.participants[0].session.leave();
        world.settle();
        let late = world.join(usize::from(threads) - 1);
        assert_eq!(world.participants[late].session.state(), State::Connected);
    }
}

/// Its session is on a thread that it does not ask.
#[test]
fn a_repeated_connect_finds_the_session_that_another_thread_opened() {
    for places in [2, 5] {
        let mut config = config(Mode::Immediate);
        config.places = Places::new(places);
        config.comtrees =
            vec![ComtreeConfig { endpoints: 64..=65, ..ComtreeConfig::new(COMTREE, 1) }];
        let mut world = World::with_threads(config, 2);
        world.join(0);
        let handed_on = world.add_participant(0, COMTREE);
        world.send_from(handed_on);
        let cookie = world.collect(0);
        world.carry(0, cookie);
        world.send_from(handed_on);
        let now = world.now;
        world.threads[1].handle_siblings(now);
        assert_eq!(world.collect(1).len(), 1, "this answer is lost");
        world.now = world.now + Duration::from_millis(200);
        world.settle();
        let session = &world.participants[handed_on].session;
        assert_eq!(session.state(), State::Connected, "{places} places");
        assert_eq!(world.sessions(), 2);
        assert_eq!(world.sum(|counters| counters.sessions_opened), 2);
        assert_eq!(world.dropped(DropReason::SessionsFull), 0, "{places} places");
    }
}

/// A participant that crashed comes back while its old session holds the last place.
#[test]
fn who_comes_back_to_a_full_relay_gets_its_own_place() {
    let places = Places::new(1);
    let mut world = World::with_threads(RelayConfig { places, ..config(Mode::Immediate) }, 3);
    world.join(1);
    let path = world.participants[0].path;
    world.participants[0].path = ip_port(4000).into();
    let again = world.add_participant(2, COMTREE);
    world.participants[again].path = path;
    world.settle();
    assert_eq!(world.participants[again].session.state(), State::Connected);
    assert_eq!(world.sessions(), 1);
    let stranger = world.join(0);
    assert_ne!(world.participants[stranger].session.state(), State::Connected);
}

#[test]
fn all_threads_hear_what_one_tells_and_are_woken_for_it() {
    let mut world = world(Mode::Immediate, 4);
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
