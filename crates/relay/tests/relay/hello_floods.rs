//! H3: 300,000 hellos a second. Nobody could join while they came; see also `limits.rs` and `data_plane.rs`
//! for what they cost those who have joined.

use crate::support::{COMTREE, World, config, ip_port};
use canopy_relay::{Budgets, Mode, RelayConfig};
use canopy_session::State;
use canopy_wire::{Comtree, DropReason, Hello};
use std::net::SocketAddr;
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);
const HELLOS_A_MILLISECOND: u32 = 300;

/// This many hellos come within a second, each from where `from` says. When what each ip may be told at once
/// is over, somebody comes from elsewhere every tenth of the second, and says hello in between. Returns how
/// many of these eight are let in at their first try.
fn joins_under(world: &mut World, from: impl Fn(u32) -> SocketAddr) -> usize {
    let (mut nonce, mut joined, mut out) = (0, 0, [0; 1500]);
    for step in 0..1000u32 {
        let newcomer = (step > 200 && step % 100 == 99).then(|| world.add_participant(0, COMTREE));
        if let Some(number) = newcomer {
            let ip = [198, 51, 100, number as u8];
            world.participants[number].path = SocketAddr::from((ip, ip_port(number).port())).into();
        }
        for hello in 0..HELLOS_A_MILLISECOND {
            nonce += 1;
            let len = Hello { nonce: nonce.into() }.encode(Comtree(0), &mut out).unwrap();
            world.arrive(0, from(nonce), &out[..len]);
            if hello == HELLOS_A_MILLISECOND / 2
                && let Some(number) = newcomer
            {
                world.send_from(number);
            }
        }
        // Two turns are there and back.
        for _ in 0..2 {
            let sent = world.collect(0);
            world.carry(0, sent);
            newcomer.into_iter().for_each(|number| {
                world.send_from(number);
            });
        }
        let is_in = |number: usize| world.participants[number].session.state() == State::Connected;
        joined += usize::from(newcomer.is_some_and(is_in));
        world.now = world.now + MILLI;
    }
    joined
}

fn world() -> World {
    World::of(RelayConfig { budgets: Budgets::default(), ..config(Mode::Immediate) }, 0)
}

/// One host, or a few, have thousands of ports, and each ip:port is answered fifty times a second.
#[test]
fn a_flood_of_hellos_from_the_ports_of_some_hosts_leaves_others_their_joins() {
    for hosts in [1, 16] {
        let mut world = world();
        let from = |nonce: u32| {
            let host = (nonce % hosts) as u8;
            SocketAddr::from(([203, 0, 113 + host, 7], 1024 + (nonce / hosts % 60_000) as u16))
        };
        let joined = joins_under(&mut world, from);
        assert_eq!(joined, 8, "{hosts} hosts");
        let hellos = 1000 * u64::from(HELLOS_A_MILLISECOND);
        let dropped = [DropReason::RepliesRate, DropReason::RepliesFull];
        let answered = hellos - dropped.map(|reason| world.dropped(reason)).iter().sum::<u64>();
        // As fast as strangers are answered, but of what is left for a moment they take no more.
        assert!((15_000..21_000).contains(&answered), "{hosts} hosts: {answered}");
    }
}

/// Whoever writes another's ip on its hellos takes the other's answers only while it takes all of them.
#[test]
fn a_few_hellos_in_its_name_keep_no_ip_out() {
    let mut world = world();
    let victim = world.add_participant(0, COMTREE);
    world.participants[victim].path = SocketAddr::from(([198, 51, 100, 7], 4040)).into();
    let mut out = [0; 1500];
    for nonce in 0..10_000u32 {
        let len = Hello { nonce: nonce.into() }.encode(Comtree(0), &mut out).unwrap();
        let from = SocketAddr::from(([198, 51, 100, 7], 5000 + (nonce % 50_000) as u16));
        world.arrive(0, from, &out[..len]);
        world.collect(0);
        // 10,000 a second: eighty times what an ip has while answers are scarce.
        world.now = world.now + MILLI / 10;
    }
    world.settle();
    assert_eq!(world.participants[victim].session.state(), State::Connected);
    assert_eq!(world.dropped(DropReason::RepliesRate), 0);
}
