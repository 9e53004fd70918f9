//! Portable addresses: whose token names one has it at whichever relay of the comtree it is, and what is
//! sent to it finds it there.

use crate::support::tokens::{DAY, claims, come, trust};
use crate::support::{COMTREE, World, at_site, group, ip_port};
use canopy_relay::{
    BranchId, BranchRole, Change, ComtreeConfig, Mode, Notice, Refusal, RelayConfig, TableLimits,
};
use canopy_session::{Event, State};
use canopy_token::Claims;
use canopy_wire::{
    Address, DropReason, Flags, Header, Kind, PORTABLE_SITES, Record, RefusedReason, SAFE_DATAGRAM,
    SessionId, UpdatesWriter,
};
use std::time::Duration;

const UP: [BranchRole; 2] = [BranchRole::Child, BranchRole::Parent];
const CORE: [BranchRole; 2] = [BranchRole::Core; 2];
const SECOND: Duration = Duration::from_secs(1);
/// Whoever has the portable address.
const MOVER: u8 = 100;

fn portable(endpoint: u16) -> Address {
    Address::unicast(*PORTABLE_SITES.start(), endpoint)
}

/// By a token that names a portable address.
fn pinned(number: u8, endpoint: u16) -> Claims {
    let mut claims = claims(number);
    claims.grant.address = Some(portable(endpoint));
    claims
}

/// Relays that ask for tokens, the n-th of site n + 1, with so many data threads each; and for each the
/// number of its first.
fn relays(threads: &[u16]) -> (World, Vec<usize>) {
    let mut world = World::empty();
    let add = |(number, threads): (usize, &u16)| {
        let site = at_site(Mode::Immediate, number as u16 + 1);
        let config = RelayConfig { trust: Some(trust(&[])), origin: DAY, ..site };
        world.add_relay(config, *threads)
    };
    let firsts = threads.iter().enumerate().map(add).collect();
    (world, firsts)
}

/// Relays in a line. The one in the middle has its branches on its last data thread and on its first.
fn line(threads: u16, roles: [BranchRole; 2]) -> (World, Vec<usize>) {
    let (mut world, firsts) = relays(&[threads; 3]);
    let last = usize::from(threads) - 1;
    for (one, other, thread) in [(0, 1, last), (1, 2, 0)] {
        let ends = [one, other].map(|relay: usize| (firsts[relay] + thread, relay as u16 + 1));
        world.link(COMTREE, ends, roles);
    }
    (world, firsts)
}

/// Somebody on each data thread.
fn somebody_everywhere(world: &mut World) -> Vec<usize> {
    let all = (0..world.threads.len())
        .map(|thread| come(world, thread, thread as u8, &claims(thread as u8)));
    all.collect()
}

fn received(world: &World, number: usize) -> usize {
    world.participants[number].received.len()
}

/// Everyone sends somebody something, and each of it arrives, once.
fn all_reach(world: &mut World, everyone: &[usize], whom: usize) {
    let address = world.address(whom);
    for from in everyone {
        let before = received(world, whom);
        world.publish_to(*from, address, 0, Flags(0), b"to one");
        world.settle();
        assert_eq!(received(world, whom), before + 1, "{from} to {address}");
    }
}

/// Its process is no more: nothing reaches it, and its relay does not hear of it.
fn crash(world: &mut World, number: usize) {
    world.participants[number].session.leave();
    while world.participants[number].session.state() != State::Closed {
        world.now = world.now + Duration::from_millis(10);
        world.participants[number].session.poll_transmit(world.now, &mut [0; 1500]);
    }
    world.participants[number].path = ip_port(40_000 + number).into();
}

fn requests(world: &World) -> u64 {
    world.sum(|counters| counters.route_requests)
}

#[test]
fn who_comes_to_another_relay_keeps_its_portable_address_and_is_found_there() {
    for (threads, roles) in [(1, CORE), (1, UP), (3, CORE)] {
        // On each data thread in turn.
        for endpoint in 64..64 + threads {
            let (mut world, firsts) = line(threads, roles);
            let everyone = somebody_everywhere(&mut world);
            everyone.iter().for_each(|number| world.subscribe(*number, 7, 0));
            for relay in [2, 0, 1, 2] {
                let mover = come(&mut world, firsts[relay], MOVER, &pinned(MOVER, endpoint));
                assert_eq!(world.address(mover), portable(endpoint), "at relay {relay}");
                assert_eq!(world.thread_of(mover), firsts[relay] + usize::from(endpoint % threads));
                // What it publishes shows everyone the way.
                world.publish(mover, 7, 0, Flags(0), b"here I am");
                world.settle();
                let asked = requests(&world);
                all_reach(&mut world, &everyone, mover);
                assert_eq!(requests(&world), asked, "{threads} threads, relay {relay}");
                world.participants[mover].session.leave();
                world.settle();
            }
        }
    }
}

#[test]
fn who_says_nothing_at_its_new_relay_is_found_by_asking() {
    for (threads, roles) in [(1, CORE), (1, UP), (2, CORE)] {
        let (mut world, firsts) = line(threads, roles);
        let everyone = somebody_everywhere(&mut world);
        for relay in [2, 0, 1, 0] {
            let mover = come(&mut world, firsts[relay], MOVER, &pinned(MOVER, 65));
            // Ways that lead to where it was are forgotten as soon as somebody is told so.
            for _ in 0..3 {
                for from in &everyone {
                    world.publish_to(*from, portable(65), 0, Flags(0), b"where are you?");
                }
                world.pass(SECOND / 2);
            }
            all_reach(&mut world, &everyone, mover);
            let asked = requests(&world);
            all_reach(&mut world, &everyone, mover);
            assert_eq!(requests(&world), asked, "now the ways are known");
            world.participants[mover].session.leave();
            world.settle();
        }
    }
}

/// Nobody but its former relay believes in it: that one learns better when the session ends.
#[test]
fn a_former_relay_that_has_not_noticed_speaks_for_it_until_the_session_ends() {
    for threads in [1, 3] {
        let (mut world, firsts) = line(threads, CORE);
        let everyone = somebody_everywhere(&mut world);
        everyone.iter().for_each(|number| world.subscribe(*number, 7, 0));
        let ghost = come(&mut world, firsts[0], MOVER, &pinned(MOVER, 64));
        crash(&mut world, ghost);
        let mover = come(&mut world, firsts[2], MOVER, &pinned(MOVER, 64));
        assert_eq!(world.address(mover), portable(64));
        let hear = |world: &mut World| {
            let before: Vec<_> = everyone.iter().map(|number| received(world, *number)).collect();
            world.publish(mover, 7, 0, Flags(0), b"here I am");
            world.settle();
            let heard =
                everyone.iter().zip(before).map(|(number, was)| received(world, *number) - was);
            heard.sum::<usize>()
        };
        let at_former = usize::from(threads);
        assert_eq!(
            hear(&mut world),
            everyone.len() - at_former,
            "all but those of its former relay"
        );
        assert!(world.dropped(DropReason::SpoofedSource) > 0);
        // Elsewhere it is found.
        all_reach(&mut world, &everyone[at_former..], mover);
        world.pass(11 * SECOND);
        assert_eq!(hear(&mut world), everyone.len(), "{threads} threads");
        all_reach(&mut world, &everyone, mover);
    }
}

/// The data threads of a relay tell each other whom they serve, and branches speak for none of them.
#[test]
fn no_branch_speaks_for_whom_any_data_thread_of_the_relay_serves() {
    let (mut world, firsts) = relays(&[2, 1]);
    world.link(COMTREE, [(firsts[0], 1), (firsts[1], 2)], CORE);
    let everyone = somebody_everywhere(&mut world);
    let own = [64, 65].map(|endpoint| {
        come(&mut world, firsts[0], endpoint as u8, &pinned(endpoint as u8, endpoint))
    });
    let mut out = [0; 1500];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
    // Two who are here, a relay's numbers of a portable site, and somebody elsewhere.
    for src in [portable(64), portable(65), portable(0), portable(63), portable(66)] {
        let record = Record::new(world.address(everyone[0]), 0, b"whose am I");
        assert!(writer.push(&Record { src, ..record }));
    }
    let len = writer.finish(&Header::new(Kind::Updates, SessionId::NONE, COMTREE));
    let key = world.key_of(firsts[0]);
    assert!(world.threads[firsts[1]].send_over_link(&key, &out[..len]));
    world.settle();
    assert_eq!(world.dropped(DropReason::SpoofedSource), 4);
    let heard: Vec<_> =
        world.participants[everyone[0]].received.iter().map(|one| one.src).collect();
    assert_eq!(heard, [portable(66)]);
    // Once they have left, their names are whoever's has them.
    own.into_iter().for_each(|number| world.participants[number].session.leave());
    world.settle();
    assert!(world.threads[firsts[1]].send_over_link(&key, &out[..len]));
    world.settle();
    assert_eq!(world.dropped(DropReason::SpoofedSource), 6);
}

/// Where the table of routes is full, the data threads do not know whom the others serve.
#[test]
fn whom_another_data_thread_serves_is_found_without_a_route() {
    let mut world = World::empty();
    let site = at_site(Mode::Immediate, 1);
    let tables = TableLimits { max_routes: 0, ..site.tables };
    let firsts = [3, 1].map(|threads| {
        let config = RelayConfig { trust: Some(trust(&[])), origin: DAY, tables, ..site.clone() };
        world.add_relay(config, threads)
    });
    world.link(COMTREE, [(firsts[0], 1), (firsts[1], 2)], CORE);
    let everyone = somebody_everywhere(&mut world);
    let mover = come(&mut world, firsts[0], MOVER, &pinned(MOVER, 65));
    for _ in 0..20 {
        all_reach(&mut world, &everyone[..3], mover);
        world.pass(SECOND / 10);
    }
}

#[test]
fn nobody_gets_a_portable_address_that_somebody_has_or_without_a_token_that_names_it() {
    for threads in [1, 2] {
        let (mut world, firsts) = relays(&[threads]);
        let owner = come(&mut world, firsts[0], 1, &pinned(1, 65));
        for wrong in [pinned(2, 65), pinned(3, 63), pinned(4, 0)] {
            let number = wrong.subject.trim_start_matches("player-").parse().unwrap();
            let refused = come(&mut world, firsts[0], number, &wrong);
            let events = world.events(refused);
            assert!(events.contains(&Event::Refused(RefusedReason::AddressTaken)), "{events:?}");
        }
        // Its ticket alone brings the owner another address.
        world.participants[owner].session.leave();
        world.settle();
        let newcomer = come(&mut world, firsts[0], 1, &claims(1));
        assert!(!world.address(newcomer).is_portable());
        // Who comes by the token again has its address again, wherever it asks.
        let again = come(&mut world, firsts[0] + usize::from(threads) - 1, 1, &pinned(1, 65));
        assert_eq!(world.address(again), portable(65));
    }
}

#[test]
fn a_token_for_another_site_lets_nobody_in() {
    let (mut world, firsts) = relays(&[1, 1]);
    let mut claims = pinned(1, 64);
    claims.grant.site = Some(2);
    let refused = come(&mut world, firsts[0], 1, &claims);
    assert!(world.events(refused).contains(&Event::Refused(RefusedReason::Token)));
    let why = world.threads[firsts[0]].poll_notice();
    assert!(format!("{why:?}").contains("OtherSite(2)"), "{why:?}");
    let member = come(&mut world, firsts[1], 1, &claims);
    assert_eq!(world.address(member), portable(64));
}

/// Unicast to whoever is at a relay whose parent changes, or behind it, goes on, though they say nothing:
/// 0 — 1 — 2 — 4, where 2 turns to 3, which is a child of 0 too.
#[test]
fn unicast_goes_on_while_a_relay_above_gets_another_parent() {
    for threads in [1, 3] {
        let (mut world, firsts) = relays(&[1, 1, threads, 1, 1]);
        let first = |relay: usize| (firsts[relay], relay as u16 + 1);
        // The branches of the relay that turns are on its first data thread.
        for (above, below) in [(0, 1), (1, 2), (0, 3), (2, 4)] {
            world.link(COMTREE, [first(above), first(below)], UP);
        }
        world.link_threads([firsts[3], firsts[2]]);
        let senders = [0, 1, 3].map(|relay| {
            let number = relay as u8;
            come(&mut world, firsts[relay], number, &claims(number))
        });
        let mut quiet: Vec<usize> = (0..threads)
            .map(|thread| {
                let (number, endpoint) = (50 + thread as u8, 66 + thread);
                come(&mut world, firsts[2], number, &pinned(number, endpoint))
            })
            .collect();
        quiet.push(come(&mut world, firsts[4], 90, &pinned(90, 900)));
        quiet.iter().for_each(|whom| all_reach(&mut world, &senders, *whom));
        // What the relay tells the others goes towards its old parent.
        all_reach(&mut world, &senders[1..2], senders[2]);
        let asked = requests(&world);
        world.add_branch(COMTREE, firsts[3], (firsts[2], 3), BranchRole::Child);
        world.add_branch(COMTREE, firsts[2], (firsts[3], 4), BranchRole::NextParent);
        for _ in 0..50 {
            for whom in &quiet {
                all_reach(&mut world, &senders, *whom);
            }
            world.pass(SECOND / 10);
        }
        let succeeded =
            |notice: Option<Notice>| matches!(notice, Some(Notice::ParentSucceeded { .. }));
        while !succeeded(world.threads[firsts[2]].poll_notice()) {}
        for (here, there) in [(1, 2), (2, 1)] {
            let link = world.key_of(firsts[there]);
            let id = BranchId { comtree: COMTREE, link, thread: 0 };
            let now = world.now;
            world.threads[firsts[here]].apply(now, Change::RemoveBranch(id)).unwrap();
        }
        quiet.iter().for_each(|whom| all_reach(&mut world, &senders, *whom));
        assert_eq!(requests(&world), asked, "nobody had to ask, {threads} threads");
    }
}

/// What relays tell each other of a portable address bears its name, and is not counted among what its
/// owner has published.
#[test]
fn what_tells_of_a_portable_address_is_none_of_its_updates() {
    let (mut world, firsts) = relays(&[1, 1, 1]);
    world.link(COMTREE, [(firsts[0], 1), (firsts[2], 3)], UP);
    let hearer = come(&mut world, firsts[2], 1, &claims(1));
    world.subscribe(hearer, 7, 0);
    world.link_threads([firsts[1], firsts[2]]);
    world.add_branch(COMTREE, firsts[1], (firsts[2], 3), BranchRole::Child);
    world.add_branch(COMTREE, firsts[2], (firsts[1], 2), BranchRole::NextParent);
    // Before it is asked, nothing of it is taken; then what it brings waits for the old parent.
    let wait = SECOND * 6 / 10;
    world.pass(wait);
    let mut bring = |parent: usize, dst: Address, series: u16, payload: &[u8]| {
        let mut out = [0; 1500];
        let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
        let record = Record::new(dst, series, payload);
        assert!(writer.push(&Record { src: portable(66), ..record }));
        let len = writer.finish(&Header::new(Kind::Updates, SessionId::NONE, COMTREE));
        let key = world.key_of(firsts[2]);
        assert!(world.threads[firsts[parent]].send_over_link(&key, &out[..len]));
        world.settle();
        if parent == 1 {
            world.pass(wait);
        }
        received(&world, hearer)
    };
    assert_eq!(bring(0, group(7), 5000, b"here I am"), 1);
    bring(0, Address::unicast(9, 0), 0, b"");
    assert_eq!(bring(1, group(7), 5000, b"here I am"), 1, "it has passed");
    assert_eq!(bring(1, group(7), 5001, b"here I am"), 2);
}

/// What one neighbour has brought of somebody waits for another one, which brings everything twice now, while that somebody
/// comes to this relay and goes on.
#[test]
fn what_waits_of_somebody_goes_before_what_it_says_after_it_has_come_here() {
    let (next_parent, next_peer) =
        ([BranchRole::Child, BranchRole::NextParent], [BranchRole::NextPeer; 2]);
    let to_core = [BranchRole::Core, BranchRole::CorePeer];
    // By the link that stays, and by the one that is new. The mover is where the second leads.
    let cases = [
        ([(0, 1), (1, 2), (0, 2)], UP, next_parent),
        ([(1, 0), (0, 2), (1, 2)], to_core, next_peer),
    ];
    for ([above, stays, new], roles, new_roles) in cases {
        let (mut world, firsts) = relays(&[1; 3]);
        let hearer = come(&mut world, firsts[2], 3, &claims(3));
        world.subscribe(hearer, 7, 0);
        let from = new.0;
        let mover = come(&mut world, firsts[from], MOVER, &pinned(MOVER, 64));
        let ends = |(one, other): (usize, usize)| {
            [(firsts[one], one as u16 + 1), (firsts[other], other as u16 + 1)]
        };
        let is_mesh = new_roles == next_peer;
        world.link(COMTREE, ends(above), if is_mesh { [BranchRole::CorePeer; 2] } else { UP });
        world.link(COMTREE, ends(stays), roles);
        world.settle();
        world.link(COMTREE, ends(new), new_roles);
        for update in 0..10 {
            world.publish(mover, 7, 0, Flags(0), &[update]);
            world.pass(Duration::from_millis(100));
        }
        // The first of the two is lost on both ways, and the second on one.
        world.publish(mover, 7, 0, Flags(0), &[10]);
        world.collect(firsts[from]);
        world.publish(mover, 7, 0, Flags(0), &[11]);
        let to_hearer = crate::support::path_of_thread(firsts[2]).remote;
        let sent = world.collect(firsts[from]).into_iter();
        let by_new = sent.filter(|sent| sent.to == to_hearer).collect();
        world.carry(firsts[from], by_new);
        world.settle();
        assert_eq!(received(&world, hearer), 10, "it waits for the other one");
        let here = come(&mut world, firsts[2], MOVER, &pinned(MOVER, 64));
        world.participants[here].session.take_series(12);
        for update in 12..20 {
            world.publish(here, 7, 0, Flags(0), &[update]);
            world.pass(Duration::from_millis(100));
        }
        let but_one = (0..20).filter(|update| *update != 10);
        let expected: Vec<Vec<u8>> = but_one.map(|update| vec![update]).collect();
        assert_eq!(world.payloads(hearer), expected);
    }
}

#[test]
fn no_relay_has_a_portable_site() {
    let (mut world, _) = relays(&[1, 1]);
    world.link_threads([0, 1]);
    let site = *PORTABLE_SITES.start();
    let now = world.now;
    let comtree = ComtreeConfig::new(canopy_wire::Comtree(77), site);
    let refused = world.threads[0].apply(now, Change::AddComtree(comtree));
    assert_eq!(refused, Err(Refusal::PortableSite(canopy_wire::Comtree(77), site)));
    let id = BranchId { comtree: COMTREE, link: world.key_of(1), thread: 0 };
    let branch = canopy_relay::BranchConfig { id, role: BranchRole::Child, site: 0x7fff };
    let refused = world.threads[0].apply(now, Change::AddBranch(branch)).unwrap_err();
    assert_eq!(refused, Refusal::PortableSite(COMTREE, 0x7fff));
    assert!(refused.to_string().contains("choose one below 28672"), "{refused}");
}
