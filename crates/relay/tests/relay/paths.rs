//! Probes and reports: what a relay learns of the paths to its participants, and what those are told.

use crate::support::{self, COMTREE, DOWNLINKS, PERIODIC, Sent, World, config, ip_port};
use canopy_relay::Mode;
use canopy_wire::{Asked, Bound, DropReason, Flags, Kind, Packet, Probe, Report, Traffic};
use std::time::Duration;

/// Goes on to the next tick, does what is due, and returns what the relay sent, which then arrives.
fn tick(world: &mut World) -> Vec<Sent> {
    world.now = world.now.next_multiple(support::TICK);
    let now = world.now;
    world.relay_mut().handle_timeout(now);
    world.collect(0)
}

/// The probes among what was sent to a participant.
fn probes(world: &mut World, sent: &[Sent], number: usize) -> Vec<Probe> {
    let packets = world.packets_to(0, sent, number);
    let probe = |packet: &Vec<u8>| Probe::decode(&Packet::new_checked(packet).unwrap());
    let is_probe =
        |packet: &&Vec<u8>| Packet::new_checked(packet).unwrap().header().kind == Kind::Probe;
    packets.iter().filter(is_probe).map(|packet| probe(packet).unwrap()).collect()
}

/// The packet with a report, written by hand.
fn report(world: &World, number: usize, report: &Report) -> Vec<u8> {
    let mut out = [0; 1500];
    let id = world.participants[number].session.id();
    let len = report.encode(COMTREE, id, &mut out).unwrap();
    out[..len].to_vec()
}

#[test]
fn the_first_probe_leaves_when_a_participant_subscribes_and_is_answered_at_once() {
    let mut world = World::new(PERIODIC, 2);
    let sent = tick(&mut world);
    assert!(probes(&mut world, &sent, 0).is_empty(), "nobody has subscribed");
    world.subscribe(0, 7, 0);
    let sent = tick(&mut world);
    let first = probes(&mut world, &sent, 0);
    assert_eq!(first.len(), 1);
    assert_eq!((first[0].number, first[0].sent), (1, Traffic::default()));
    assert_eq!(first[0].thinning, canopy_wire::Thinning::NONE);
    assert!(probes(&mut world, &sent, 1).is_empty());
    world.carry(0, sent);
    assert!(world.send_from(0), "it answers");
    assert_eq!(world.sum(|counters| counters.reports_in), 1);
    assert_eq!(world.sum(|counters| counters.probes_out), 1);
}

#[test]
fn while_nothing_flows_nothing_is_asked() {
    let mut world = World::new(PERIODIC, 2);
    world.subscribe_all(7, 0);
    for _ in 0..100 {
        let sent = tick(&mut world);
        world.carry(0, sent);
        world.settle();
    }
    assert_eq!(world.sum(|counters| counters.probes_out), 2);
}

/// Both count the same, whatever the datagrams were sealed with, and probes are few.
#[test]
fn both_sides_count_the_same_whatever_the_downlink() {
    for downlink in DOWNLINKS {
        let mut config = config(PERIODIC);
        config.comtrees[0].downlink = downlink;
        let mut world = World::of(config, 3);
        world.subscribe_all(7, 0);
        let mut last = None;
        let mut bytes = 0;
        for _ in 0..400 {
            for _ in 0..20 {
                world.publish(0, 7, 0, Flags(0), &[0; 100]);
            }
            let sent = tick(&mut world);
            let to_it = ip_port(1);
            bytes +=
                sent.iter().filter(|one| one.to == to_it).map(|one| one.bytes.len()).sum::<usize>();
            if let Some(probe) = probes(&mut world, &sent, 1).pop() {
                // What was sent before the probe is what has arrived before it.
                let packets: Vec<_> = sent.iter().filter(|one| one.to == to_it).collect();
                assert!(packets[0].bytes.len() == 64, "it leaves ahead of the updates");
                last = Some(probe);
            }
            world.carry(0, sent);
            world.settle();
        }
        let last = last.expect("there were probes");
        assert!(last.sent.bytes as usize > bytes * 9 / 10, "{downlink:?}: {last:?} of {bytes}");
        let asked = world.sum(|counters| counters.probes_out);
        assert!((60..=300).contains(&asked), "{downlink:?}: {asked} of 3 in 20 s");
        assert_eq!(world.sum(|counters| counters.reports_in), asked);
        assert_eq!(world.dropped(DropReason::BadReport), 0);
        // On this network nothing is limited.
        assert_eq!(
            world.participants[1].session.thinning().unwrap().budget_bits,
            0,
            "{downlink:?}"
        );
    }
}

#[test]
fn what_a_participant_asks_for_is_in_force_at_once_and_it_is_told() {
    let mut world = World::new(PERIODIC, 2);
    world.subscribe_all(7, 0);
    let sent = tick(&mut world);
    world.carry(0, sent);
    world.settle();
    let before = world.sum(|counters| counters.reports_in);
    world.participants[1].session.ask_for(Asked { updates: 0, bits: 64_000 });
    world.settle();
    assert_eq!(world.sum(|counters| counters.reports_in), before + 1, "unasked");
    world.participants[1].session.ask_for(Asked { updates: 0, bits: 64_000 });
    world.settle();
    assert_eq!(world.sum(|counters| counters.reports_in), before + 1, "once");
    for _ in 0..40 {
        world.publish(0, 7, 0, Flags(0), &[0; 100]);
        let sent = tick(&mut world);
        world.carry(0, sent);
        world.settle();
    }
    let thinning = world.participants[1].session.thinning().unwrap();
    assert_eq!((thinning.budget_bits, thinning.because), (64_000, Bound::Asked));
}

/// Probes tell a receiver what was left out for it: each update once, and its share of what was meant for it.
#[test]
fn a_limited_receiver_is_told_what_is_left_out() {
    let mut world = World::new(PERIODIC, 2);
    world.subscribe_all(7, 0);
    world.settle();
    world.participants[1].session.ask_for(Asked { updates: 5, bits: 0 });
    world.settle();
    let (mut told, mut shares) = (0, Vec::new());
    for _ in 0..200 {
        world.publish(0, 7, 0, Flags(0), &[0; 100]);
        let sent = tick(&mut world);
        for probe in probes(&mut world, &sent, 1) {
            told += u64::from(probe.thinning.left_out);
            shares.push(probe.thinning.share);
        }
        world.carry(0, sent);
        world.settle();
    }
    // A publisher says 20 a second, of which 5 go. The last probe was less than a second ago.
    let left_out = world.dropped(DropReason::Thinned);
    assert!((140..=160).contains(&left_out), "{left_out}");
    assert!(left_out - told <= 15, "{told} of {left_out}");
    let last = shares.last().copied().unwrap();
    assert!((150..=350).contains(&last), "{shares:?}");
}

#[test]
fn a_report_that_cannot_be_true_is_dropped_and_counted() {
    let mut world = World::new(Mode::Immediate, 2);
    world.subscribe_all(7, 0);
    let sent = tick(&mut world);
    let probe = probes(&mut world, &sent, 0).remove(0);
    let (received, asked) = (Traffic::default(), Asked::default());
    let clock = probe.clock;
    let truth = Report { number: probe.number, clock, own_clock: 5, held: 0, received, asked };
    let lies = [
        Report { number: 2, ..truth },
        Report { number: u32::MAX, ..truth },
        Report { clock: clock.wrapping_add(1), ..truth },
    ];
    for (count, lie) in (1..).zip(lies) {
        let packet = report(&world, 0, &lie);
        world.send(0, &packet);
        assert_eq!(world.dropped(DropReason::BadReport), count, "{lie:?}");
    }
    let packet = report(&world, 0, &truth);
    world.send(0, &packet);
    // Again it only says what is asked for.
    world.send(0, &packet);
    assert_eq!(world.dropped(DropReason::BadReport), 3);
    assert_eq!(world.sum(|counters| counters.reports_in), 2);
    world.publish(1, 7, 0, Flags(0), b"x");
    world.now = world.now + Duration::from_secs(2);
    drop(tick(&mut world));
    world.now = world.now + Duration::from_secs(2);
    let sent = tick(&mut world);
    if let Some(probe) = probes(&mut world, &sent, 0).pop() {
        let received = Traffic { datagrams: 1 << 20, bytes: 1 << 20 };
        let (number, clock) = (probe.number, probe.clock);
        let packet = report(&world, 0, &Report { number, clock, received, ..truth });
        world.send(0, &packet);
        assert_eq!(world.dropped(DropReason::BadReport), 4, "more than was sent");
    } else {
        panic!("there was a probe after an update");
    }
}

#[test]
fn a_flood_of_reports_is_over_the_budget() {
    let mut world = World::new(Mode::Immediate, 1);
    world.subscribe_all(7, 0);
    let (received, asked) = (Traffic::default(), Asked::default());
    let wish = Report { number: 0, clock: 0, own_clock: 0, held: 0, received, asked };
    for _ in 0..1000 {
        let packet = report(&world, 0, &wish);
        world.send(0, &packet);
    }
    let taken = world.sum(|counters| counters.reports_in);
    assert!(taken <= 101, "{taken}");
    assert_eq!(world.dropped(DropReason::OverBudget), 1000 - taken);
}

/// A crowd's probes leave a portion at a time, and all of them leave.
#[test]
fn a_crowd_is_asked_a_portion_at_a_time() {
    let mut world = World::new(PERIODIC, 300);
    world.subscribe_all(7, 0);
    let mut most = 0;
    let before = world.sum(|counters| counters.probes_out);
    assert_eq!(before, 0);
    for _ in 0..20 {
        let now = world.now + Duration::from_millis(1);
        world.now = now;
        let before = world.sum(|counters| counters.probes_out);
        world.relay_mut().handle_timeout(now);
        let asked = world.sum(|counters| counters.probes_out) - before;
        most = most.max(asked);
        if asked > 0 {
            assert!(world.relay_mut().poll_timeout() > Some(now), "the next portion is for later");
        }
        let sent = world.collect(0);
        world.carry(0, sent);
    }
    assert_eq!(world.sum(|counters| counters.probes_out), 300);
    assert_eq!(most, 64);
}

/// Somebody who never answers is not limited, and is asked less and less.
#[test]
fn whoever_never_answers_is_left_alone() {
    let mut world = World::new(PERIODIC, 2);
    world.subscribe_all(7, 0);
    for _ in 0..1200 {
        world.publish(0, 7, 0, Flags(0), &[0; 1000]);
        let sent = tick(&mut world);
        // Nothing arrives, so nothing is answered.
        drop(sent);
    }
    let asked = world.sum(|counters| counters.probes_out);
    assert!((8..20).contains(&asked), "{asked} in a minute");
    let left_out = [DropReason::Thinned, DropReason::WaitedTooLong].map(|why| world.dropped(why));
    assert_eq!(left_out, [0, 0]);
    // After ten seconds without an answer its subscription ends.
    assert!(world.sum(|counters| counters.deliveries_out) > 200);
}
