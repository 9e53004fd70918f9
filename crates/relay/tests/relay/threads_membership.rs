//! Several data threads are one relay: whichever a participant asks, there are so many places, and a
//! path has one session.

use crate::support::{self, COMTREE, World, at_site, config, ip_port};
use canopy_relay::{ComtreeConfig, Mode, Places, Relay, RelayConfig};
use canopy_session::{Event, Session, SessionConfig, State};
use canopy_wire::{DropReason, Flags, Lane, Path, RefusedReason, SessionId, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// Lets a session join a data thread, without the others hearing of it yet.
fn join_alone(thread: &mut Relay, session: &mut Session, now: Time, path: Path) {
    let mut out = [0; 1500];
    while let Some(len) = session.poll_transmit(now, &mut out) {
        thread.handle_datagram(now, path, &mut out[..len]);
        thread.transmit(now, |batch| {
            for transmit in batch.transmits() {
                let mut answer: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                session.handle_datagram(now, &mut answer, |_| ()).unwrap();
            }
        });
    }
    assert_eq!(session.state(), State::Connected);
}

fn session(seed: u8) -> Session {
    Session::new(SessionConfig::new(COMTREE, [seed; 16]))
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
    let (now, path): (_, Path) = (world.now, ip_port(0).into());
    let (mut older, mut out) = (session(1), [0; 1500]);
    let len = older.poll_transmit(now, &mut out).unwrap();
    world.arrive(0, path, &out[..len]);
    let mut cookie = world.collect(0).remove(0).bytes;
    older.handle_datagram(now, &mut cookie, |_| ()).unwrap();
    let len = older.poll_transmit(now, &mut out).unwrap();
    world.arrive(0, path, &out[..len]);
    let later = now + Duration::from_millis(5);
    join_alone(&mut world.threads[1], &mut session(2), later, path);
    // Thread 0 has not heard of the newer session when the copy comes.
    world.now = now + Duration::from_millis(9);
    world.arrive(0, path, &out[..len]);
    world.settle();
    assert_eq!((world.threads[0].sessions(), world.threads[1].sessions()), (0, 1));
}

#[test]
fn who_joins_again_on_another_thread_has_one_session_and_its_subscriptions_end() {
    let mut world = World::on_each_thread(Mode::Immediate, 3);
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
    let mut world = World::on_each_thread(Mode::Immediate, 2);
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

/// By its number the kernel brings a session's datagrams to the thread that serves it; by its
/// address the other threads know where it is.
#[test]
fn number_and_address_of_a_session_name_its_thread() {
    for threads in [1, 2, 3, 64] {
        let mut world = World::with_threads(config(Mode::Immediate), threads);
        let mut numbers = BTreeSet::new();
        for joined in 0..3 * usize::from(threads) {
            let asks = joined % usize::from(threads);
            let number = world.join(asks);
            let session = &world.participants[number].session;
            let named = [session.id().thread(threads), session.address().endpoint() % threads];
            assert_eq!(named.map(usize::from), [asks; 2]);
            assert!(numbers.insert(session.id()), "{:?} is another's", session.id());
        }
        // Places are taken one after the other, so that numbers stay small.
        let highest = *numbers.last().unwrap();
        let last = SessionId::at(2, Lane::of(COMTREE), threads - 1, threads);
        assert_eq!(highest, last, "{threads} threads");
    }
}

#[test]
fn a_thread_without_addresses_passes_the_applicant_on() {
    for threads in [2, 3, 4, 64] {
        let mut config = RelayConfig { address_rest: Duration::ZERO, ..config(Mode::Immediate) };
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

/// Its session is on a thread that it does not ask, though that one has room by then.
#[test]
fn a_repeated_connect_finds_the_session_that_another_thread_opened() {
    for (places, has_room_again) in [(2, false), (5, false), (2, true), (5, true)] {
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
        if has_room_again {
            world.participants[0].session.leave();
            world.settle();
        }
        world.now = world.now + Duration::from_millis(200);
        world.settle();
        let session = &world.participants[handed_on].session;
        assert_eq!(session.state(), State::Connected, "{places} places");
        assert_eq!(world.sessions(), if has_room_again { 1 } else { 2 });
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
    // The nonce would decide between two proofs of one instant.
    world.now = world.now + Duration::from_millis(1);
    let again = world.add_participant(2, COMTREE);
    world.participants[again].path = path;
    world.settle();
    assert_eq!(world.participants[again].session.state(), State::Connected);
    assert_eq!(world.sessions(), 1);
    let stranger = world.join(0);
    assert_ne!(world.participants[stranger].session.state(), State::Connected);
}

/// No address and the first of site 0 are the same number.
#[test]
fn at_site_0_too_whoever_wants_no_address_stays_with_the_thread_that_it_asked() {
    let mut world = World::with_threads(at_site(Mode::Immediate, 0), 3);
    for thread in 0..3 {
        let number = world.join(thread);
        assert_eq!(world.thread_of(number), thread);
    }
}
