//! Who has an address keeps it: over reconnections, over a restart of the relay, whichever data
//! thread is asked; and nobody gets one that others may still take for somebody else's.

use crate::support::{COMTREE, OTHER_COMTREE, World, config, ip_port};
use canopy_relay::{ADDRESS_REST, ComtreeConfig, Mode, Places, RelayConfig};
use canopy_session::{Event, Identity, SessionConfig, State};
use canopy_wire::{Address, DropReason, Flags, LeaveReason, RefusedReason, Ticket};
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn relay_config() -> RelayConfig {
    config(Mode::Immediate)
}

/// A relay whose comtree has few addresses.
fn cramped(last: u16) -> RelayConfig {
    let comtree = ComtreeConfig { endpoints: 64..=last, ..ComtreeConfig::new(COMTREE, 1) };
    RelayConfig { comtrees: vec![comtree], ..relay_config() }
}

fn identity(of: u8) -> Identity {
    Identity::new([of; 32])
}

/// Somebody, with the ticket of an earlier session.
fn somebody(of: u8, ticket: Ticket, number: usize) -> SessionConfig {
    let seed = [[of; 8], (number as u64).to_be_bytes()].as_flattened().try_into().unwrap();
    SessionConfig { identity: Some(identity(of)), ticket, ..SessionConfig::new(COMTREE, seed) }
}

/// Somebody joins a data thread from a path of their own.
fn join(world: &mut World, asks: usize, of: u8, ticket: Ticket) -> usize {
    let number = world.add_session(asks, somebody(of, ticket, world.participants.len()));
    world.settle();
    number
}

fn is_in(world: &World, number: usize) -> bool {
    world.participants[number].session.state() == State::Connected
}

/// Its process is no more: nothing reaches it, and nothing comes from it.
fn crash(world: &mut World, number: usize) -> Ticket {
    let ticket = world.participants[number].session.ticket();
    world.participants[number].session.leave();
    // The leave is never sent.
    while world.participants[number].session.state() != State::Closed {
        world.now = world.now + Duration::from_millis(10);
        world.participants[number].session.poll_transmit(world.now, &mut [0; 1500]);
    }
    world.participants[number].path = ip_port(40_000 + number).into();
    ticket
}

#[test]
fn who_comes_back_with_a_ticket_has_its_address_whichever_thread_it_asks() {
    for threads in [1, 2, 3, 64] {
        for (before, after) in [(0, 0), (0, threads - 1), (threads - 1, 0)] {
            let mut world = World::with_threads(relay_config(), threads);
            let first = join(&mut world, before.into(), 1, Ticket::default());
            let (address, ticket) =
                (world.address(first), world.participants[first].session.ticket());
            world.participants[first].session.leave();
            world.settle();
            // Newcomers on all threads do not get it.
            for thread in 0..threads {
                let newcomer = join(&mut world, thread.into(), 2, Ticket::default());
                assert_ne!(world.address(newcomer), address);
            }
            let again = join(&mut world, after.into(), 1, ticket);
            assert_eq!(world.address(again), address, "{threads} threads, {before} then {after}");
            assert_eq!(world.sessions(), u32::from(threads) + 1);
        }
    }
}

#[test]
fn after_a_kill_everyone_has_the_address_of_before_and_newcomers_have_others() {
    for threads in [1, 3] {
        let life = |life| RelayConfig { life: Some(life), ..relay_config() };
        let mut world = World::with_threads(life(7), threads);
        for number in 0..12 {
            join(&mut world, number % usize::from(threads), number as u8, Ticket::default());
        }
        let before: Vec<_> = (0..12).map(|number| world.address(number)).collect();
        world.restart(life(8));
        for number in 0..12 {
            join(&mut world, number % usize::from(threads), 50 + number as u8, Ticket::default());
            // They ask another data thread than before.
            world.participants[number].asks = (number + 1) % usize::from(threads);
        }
        world.pass(6 * SECOND);
        for (number, before) in before.iter().enumerate() {
            assert!(is_in(&world, number), "{number} is back");
            assert_eq!(world.address(number), *before, "{number}, {threads} threads");
        }
        let newcomers: Vec<_> = (12..24).map(|number| world.address(number)).collect();
        assert!(newcomers.iter().all(|one| !before.contains(one)), "{newcomers:?}");
        assert_eq!(world.sessions(), 24);
    }
}

#[test]
fn a_stolen_ticket_brings_nobody_anothers_address() {
    let mut world = World::with_threads(relay_config(), 2);
    let victim = join(&mut world, 0, 1, Ticket::default());
    let address = world.address(victim);
    let stolen = world.participants[victim].session.ticket();
    let thief = join(&mut world, 1, 2, stolen);
    assert_ne!(world.address(thief), address);
    assert!(is_in(&world, victim), "the victim stays");
    // Nor when the victim has gone, nor in the relay's next life.
    world.participants[victim].session.leave();
    world.settle();
    let thief = join(&mut world, 1, 2, stolen);
    assert_ne!(world.address(thief), address);
    world.restart(relay_config());
    let thief = join(&mut world, 1, 2, stolen);
    assert_ne!(world.address(thief), address);
    let again = join(&mut world, 1, 1, stolen);
    assert_eq!(world.address(again), address);
}

/// Made up, of another comtree, or of another relay.
#[test]
fn a_forged_ticket_brings_an_ordinary_address() {
    let mut world = World::with_threads(relay_config(), 1);
    let first = join(&mut world, 0, 1, Ticket::default());
    let address = world.address(first);
    let ticket = world.participants[first].session.ticket();
    world.participants[first].session.leave();
    world.settle();
    let mut altered = ticket.bytes().to_vec();
    altered[7] ^= 1;
    for ticket in [&altered[..], &[0; 32], &ticket.bytes()[..8]] {
        let ticket = Ticket::new(ticket).unwrap();
        let number = join(&mut world, 0, 1, ticket);
        assert!(is_in(&world, number));
        assert_ne!(world.address(number), address);
    }
    let comtree = OTHER_COMTREE;
    let number = world.add_session(0, SessionConfig { comtree, ..somebody(1, ticket, 9) });
    world.settle();
    assert!(is_in(&world, number));
    let other_relay = world.add_relay(relay_config(), 1);
    let number = join(&mut world, other_relay, 1, ticket);
    assert!(is_in(&world, number));
}

/// A process that has crashed comes back before its session has expired.
#[test]
fn of_two_sessions_of_one_identity_the_newer_has_the_address() {
    for threads in [1, 3] {
        // Its own place is the last one.
        let places = Places::new(1);
        let mut world = World::with_threads(RelayConfig { places, ..relay_config() }, threads);
        let first = join(&mut world, 0, 1, Ticket::default());
        let address = world.address(first);
        let ticket = crash(&mut world, first);
        let again = join(&mut world, usize::from(threads) - 1, 1, ticket);
        assert!(is_in(&world, again));
        assert_eq!(world.address(again), address);
        assert_eq!((world.sessions(), world.sum(|all| all.sessions_opened)), (1, 2));
    }
}

#[test]
fn two_processes_with_one_identity_do_not_take_the_address_from_each_other_in_turn() {
    let mut world = World::with_threads(relay_config(), 2);
    let first = join(&mut world, 0, 1, Ticket::default());
    let address = world.address(first);
    let ticket = world.participants[first].session.ticket();
    world.events(first);
    world.now = world.now + Duration::from_millis(1);
    let second = join(&mut world, 1, 1, ticket);
    world.pass(5 * SECOND);
    assert_eq!(world.address(second), address);
    assert_eq!(world.events(second), [Event::Connected(address)]);
    assert_eq!(world.events(first), [Event::SentAway(LeaveReason::Elsewhere), Event::Closed]);
    assert_eq!(world.sum(|all| all.sessions_opened), 2);
}

/// The first connect was held back on its way, until after its participant joined from elsewhere.
#[test]
fn a_connect_that_was_held_back_does_not_take_the_address_from_the_newer_session() {
    let mut world = World::with_threads(relay_config(), 3);
    let first = join(&mut world, 0, 1, Ticket::default());
    let ticket = crash(&mut world, first);
    let (address, mut out) = (world.address(first), [0; 1500]);
    let slow = world.add_session(1, somebody(1, ticket, 5));
    world.send_from(slow);
    let cookie = world.collect(1);
    world.carry(1, cookie);
    let len = world.participants[slow].session.poll_transmit(world.now, &mut out).unwrap();
    let path = world.participants[slow].path;
    crash(&mut world, slow);
    // The nonce would decide between two proofs of one instant.
    world.now = world.now + Duration::from_millis(1);
    let newer = join(&mut world, 2, 1, ticket);
    assert_eq!(world.address(newer), address);
    let stale = world.dropped(DropReason::Stale);
    world.arrive(1, path, &out[..len]);
    world.settle();
    assert_eq!(world.dropped(DropReason::Stale), stale + 1);
    assert!(is_in(&world, newer));
    assert_eq!(world.sessions(), 1);
}

#[test]
fn a_connect_with_a_ticket_that_comes_twice_opens_one_session() {
    let mut world = World::with_threads(relay_config(), 2);
    let first = join(&mut world, 0, 1, Ticket::default());
    let (address, ticket) = (world.address(first), world.participants[first].session.ticket());
    world.participants[first].session.leave();
    world.settle();
    // Its thread opens the session, and the answer is lost.
    let again = world.add_session(1, somebody(1, ticket, 5));
    world.send_from(again);
    let cookie = world.collect(1);
    world.carry(1, cookie);
    world.send_from(again);
    let now = world.now;
    world.threads[0].handle_siblings(now);
    assert_eq!(world.collect(0).len(), 1, "this answer is lost");
    world.now = world.now + Duration::from_millis(200);
    world.settle();
    assert_eq!((world.address(again), world.sessions()), (address, 1));
    assert_eq!(world.sum(|all| all.sessions_opened), 2);
    assert_eq!(world.threads[1].counters().connects_passed, 2);
}

#[test]
fn while_all_free_addresses_rest_newcomers_are_refused_and_say_why() {
    for threads in [1, 2] {
        let mut world = World::with_threads(cramped(65), threads);
        let first = join(&mut world, 0, 1, Ticket::default());
        let second = join(&mut world, 0, 2, Ticket::default());
        let address = world.address(first);
        world.participants[first].session.leave();
        world.participants[second].session.leave();
        world.settle();
        let late = join(&mut world, 0, 3, Ticket::default());
        assert!(world.events(late).contains(&Event::Refused(RefusedReason::Full)));
        assert_eq!(world.dropped(DropReason::AddressesResting), 1);
        assert_eq!(world.dropped(DropReason::SessionsFull), 0);
        // Its owner waits for nothing.
        let ticket = world.participants[first].session.ticket();
        let again = join(&mut world, 0, 1, ticket);
        assert_eq!(world.address(again), address);
        world.participants[again].session.leave();
        world.settle();
        world.now = world.now + ADDRESS_REST;
        world.settle();
        assert!(is_in(&world, late), "when they have rested, it gets one");
    }
}

#[test]
fn an_address_is_nobodys_in_turn_when_a_comtree_comes_back() {
    use canopy_relay::Change;
    let mut world = World::with_threads(relay_config(), 1);
    let first = join(&mut world, 0, 1, Ticket::default());
    let now = world.now;
    world.relay_mut().apply(now, Change::RemoveComtree(COMTREE)).unwrap();
    world.relay_mut().apply(now, Change::AddComtree(ComtreeConfig::new(COMTREE, 1))).unwrap();
    let newcomer = join(&mut world, 0, 2, Ticket::default());
    assert_ne!(world.address(newcomer), world.address(first));
}

#[test]
fn who_sends_to_somebody_who_is_gone_is_told_so() {
    for threads in [1, 2, 3] {
        for (from, to) in [(0, 0), (0, threads - 1), (threads - 1, 0)] {
            let mut world = World::with_threads(relay_config(), threads);
            let sender = join(&mut world, from.into(), 1, Ticket::default());
            let goes = join(&mut world, to.into(), 2, Ticket::default());
            let address = world.address(goes);
            world.publish_to(sender, address, 0, Flags(0), b"for you");
            world.settle();
            assert_eq!(world.payloads(goes), [b"for you"]);
            world.participants[goes].session.leave();
            world.settle();
            world.events(sender);
            world.publish_to(sender, address, 0, Flags(0), b"for nobody");
            world.settle();
            assert_eq!(world.events(sender), [Event::Gone(address)], "{threads}: {from} to {to}");
            assert_eq!(world.dropped(DropReason::UnknownDestination), 1);
            // Nobody else hears what was for the one who is gone.
            let newcomer = join(&mut world, to.into(), 3, Ticket::default());
            assert_eq!(world.payloads(newcomer), [b""; 0]);
        }
    }
}

#[test]
fn who_sends_to_many_who_are_gone_is_told_four_times_a_second() {
    for threads in [1, 2] {
        let mut world = World::with_threads(relay_config(), threads);
        let sender = join(&mut world, 0, 1, Ticket::default());
        world.events(sender);
        // Each second one of them is another data thread's.
        for number in 0..1000_u16 {
            let nobody = Address::unicast(1, 30_000 + number);
            world.publish_to(sender, nobody, 0, Flags(0), b"for nobody");
            world.now = world.now + Duration::from_millis(2);
            world.settle();
        }
        let told = world.events(sender).len();
        assert!((8..=9).contains(&told), "{told} in two seconds");
        assert_eq!(world.dropped(DropReason::UnknownDestination), 1000);
    }
}

/// Random joins, moves, leaves and crashes, with tickets and without, on three data threads.
#[test]
fn no_two_have_one_address_and_none_gets_one_that_rests_for_another() {
    let mut random = 11_u64;
    let mut draw = move |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    let mut world = World::with_threads(cramped(78), 3);
    let mut tickets: BTreeMap<u8, Ticket> = BTreeMap::new();
    // Who had an address last, and when.
    let mut owners: BTreeMap<Address, (u8, canopy_wire::Time)> = BTreeMap::new();
    let mut inside: Vec<(usize, u8)> = Vec::new();
    let mut resumed = 0;
    for step in 0..400 {
        match draw(5) {
            0..=2 => {
                let of = draw(10) as u8;
                let ticket = if draw(4) == 0 { None } else { tickets.get(&of).copied() };
                let number = join(&mut world, draw(3), of, ticket.unwrap_or_default());
                if is_in(&world, number) {
                    inside.push((number, of));
                    tickets.insert(of, world.participants[number].session.ticket());
                    let address = world.address(number);
                    if let Some((owner, since)) = owners.get(&address) {
                        let has_rested = world.now.since(*since) >= ADDRESS_REST;
                        assert!(*owner == of || has_rested, "step {step}: {address} was {owner}'s");
                        resumed += usize::from(*owner == of);
                    }
                } else {
                    // It does not go on asking.
                    crash(&mut world, number);
                }
            }
            3 if !inside.is_empty() => {
                let (number, _) = inside.swap_remove(draw(inside.len()));
                world.participants[number].session.leave();
                world.settle();
            }
            _ => world.now = world.now + SECOND * draw(60) as u32,
        }
        // Whose session was taken over is out.
        inside.retain(|(number, _)| is_in(&world, *number));
        let mut addresses: BTreeMap<Address, usize> = BTreeMap::new();
        for (number, of) in &inside {
            let address = world.address(*number);
            assert_eq!(addresses.insert(address, *number), None, "step {step}: {address} twice");
            owners.insert(address, (*of, world.now));
        }
    }
    assert!(resumed > 50, "{resumed} got their address back");
}
