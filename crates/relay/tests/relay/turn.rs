//! The rhythm of a data thread, with a medium that does what a script says.

use crate::support::{COMTREE, OTHER_COMTREE, PERIODIC, Sent, TICK, World, config};
use canopy_batch::SendBatch;
use canopy_relay::{
    Budget, Change, ComtreeConfig, Inlet, Lanes, Losses, Medium, Mode, READ_EVERY, Ready, Received,
    Relay, RelayConfig, Turn, Wait,
};
use canopy_wire::{
    Comtree, DropReason, Flags, Group, Header, Hello, Keepalive, Lane, Level, Path, Time,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

type Datagram = (Path, Vec<u8>);

/// The lane of most participants.
const LANE: Lane = Lane::of(COMTREE);

/// What a medium was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Receive,
    ReceiveIn(Lane),
    ReceiveStrangers,
    /// A batch with this many sends.
    Send(usize),
    Losses,
}

/// A medium of which every receive call brings the next batch of a script.
#[derive(Default)]
struct Script {
    batches: VecDeque<Vec<Datagram>>,
    /// The same of other lanes than [`LANE`].
    others: BTreeMap<Lane, VecDeque<Vec<Datagram>>>,
    strangers: VecDeque<Vec<Datagram>>,
    /// Whether more is said to wait even when there is none.
    is_endless: bool,
    /// The next receive call fails.
    is_broken: bool,
    at_hand: [VecDeque<Datagram>; Inlet::COUNT],
    handed_out: Option<Datagram>,
    calls: Vec<Call>,
    sent: Vec<Sent>,
    losses: Losses,
    /// Done at every receive call.
    meanwhile: Option<Box<dyn FnMut()>>,
}

impl Medium for Script {
    type Error = &'static str;

    fn ready(&mut self) -> Result<Ready, &'static str> {
        if self.is_broken {
            return Err("broken");
        }
        let in_lane = |lanes: Lanes, lane| {
            let has_some = lane == LANE && (!self.batches.is_empty() || self.is_endless)
                || self.others.contains_key(&lane);
            if has_some { lanes.with(lane) } else { lanes }
        };
        let lanes = Lane::all().fold(Lanes::NONE, in_lane);
        Ok(Ready { lanes, strangers: !self.strangers.is_empty() })
    }

    fn receive(&mut self, inlet: Inlet) -> Result<bool, &'static str> {
        let at_hand = &mut self.at_hand[inlet.index()];
        assert!(at_hand.is_empty(), "what was received is not handed out yet");
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile();
        }
        let (call, batches) = match inlet {
            Inlet::Strangers => (Call::ReceiveStrangers, &mut self.strangers),
            Inlet::Lane(LANE) => (Call::Receive, &mut self.batches),
            Inlet::Lane(lane) => (Call::ReceiveIn(lane), self.others.entry(lane).or_default()),
        };
        self.calls.push(call);
        *at_hand = batches.pop_front().unwrap_or_default().into();
        let more = self.is_endless || !batches.is_empty();
        self.others.retain(|_, batches| !batches.is_empty());
        Ok(more)
    }

    fn next(&mut self, inlet: Inlet) -> Option<Received<'_>> {
        self.handed_out = self.at_hand[inlet.index()].pop_front();
        self.handed_out.as_mut().map(|(from, bytes)| Received {
            from: *from,
            waited: Duration::ZERO,
            bytes,
        })
    }

    fn send(&mut self, batch: &SendBatch) {
        self.calls.push(Call::Send(batch.transmits().len()));
        for transmit in batch.transmits() {
            let bytes = batch.parts(transmit).flatten().copied().collect();
            let segment = transmit.segment.into();
            self.sent.push(Sent { to: transmit.to.remote, bytes, segment });
        }
    }

    fn losses(&mut self) -> Losses {
        self.calls.push(Call::Losses);
        core::mem::take(&mut self.losses)
    }
}

/// The first data thread of a world in the rhythm of its turns.
fn turn(world: &mut World) -> Turn {
    Turn::new(world.threads.remove(0))
}

fn at(millis: u64) -> Time {
    Time::from_millis(millis)
}

/// An update of a participant, as it arrives.
fn update(world: &mut World, number: usize, comtree: Comtree, payload: &[u8]) -> Datagram {
    let update = world.update_of(number, |header| Header { comtree, ..header }, payload);
    (world.participants[number].path, world.seal(number, &update))
}

fn hello(nonce: u64) -> Datagram {
    let mut out = [0; 1500];
    let len = Hello { nonce }.encode(COMTREE, &mut out).unwrap();
    (SocketAddr::from(([10, 8, 8, 8], nonce as u16)).into(), out[..len].to_vec())
}

fn keepalive(world: &mut World, number: usize) -> Datagram {
    let mut out = [0; 1500];
    let id = world.participants[number].session.id();
    let len = Keepalive { stamp: 1, path_stamp: 0 }.encode(COMTREE, id, &mut out).unwrap();
    (world.participants[number].path, world.seal(number, &out[..len]))
}

/// Brings what was sent to the participants.
fn bring(world: &mut World, medium: &mut Script) {
    let sent = core::mem::take(&mut medium.sent);
    world.carry(0, sent);
}

/// Two participants that are subscribed, and have reported on their first probes.
fn two(mode: Mode) -> World {
    let mut world = World::new(mode, 2);
    world.subscribe_all(7, 0);
    let now = world.now;
    world.relay_mut().handle_timeout(now);
    world.settle();
    world
}

#[test]
fn a_turn_reads_its_sessions_then_strangers_and_then_sends_all_together() {
    let mut world = two(Mode::Immediate);
    let updates = [0, 1].map(|number| update(&mut world, number, COMTREE, b"x"));
    let mut turn = turn(&mut world);
    let mut medium = Script {
        batches: [vec![updates[0].clone()], vec![updates[1].clone()]].into(),
        strangers: [vec![hello(1)], vec![hello(2)]].into(),
        ..Script::default()
    };
    turn.run(world.now, &mut medium).unwrap();
    let expected =
        [Call::Receive, Call::Receive, Call::ReceiveStrangers, Call::Send(3), Call::Losses];
    assert_eq!(medium.calls, expected, "one receive batch of strangers a turn");
    assert_eq!(turn.relay().counters().flushes, 1, "both receive batches leave together");
    medium.calls.clear();
    turn.run(world.now, &mut medium).unwrap();
    assert_eq!(medium.calls, [Call::ReceiveStrangers, Call::Send(1), Call::Losses]);
    bring(&mut world, &mut medium);
    assert_eq!((world.payloads(0), world.payloads(1)), (vec![&b"x"[..]], vec![&b"x"[..]]));
}

#[test]
fn a_turn_ends_although_more_waits() {
    let mut world = two(Mode::Immediate);
    let one = |_| vec![update(&mut world, 0, COMTREE, b"x")];
    let batches = (0..100).map(one).collect();
    let mut turn = turn(&mut world);
    let mut medium = Script { batches, is_endless: true, ..Script::default() };
    turn.run(world.now, &mut medium).unwrap();
    let receives = medium.calls.iter().filter(|call| **call == Call::Receive).count();
    assert_eq!(receives, 16);
    assert_eq!(turn.relay().counters().deliveries_out, 16, "and what it read has left");
}

#[test]
fn losses_outside_are_counted_and_an_error_ends_the_turn() {
    let mut world = two(Mode::Immediate);
    let mut turn = turn(&mut world);
    let losses = Losses {
        receive_queue_full: 1,
        strangers_queue_full: 2,
        send_queue_full: 3,
        send_failed: 4,
    };
    let mut medium = Script { losses, ..Script::default() };
    for _ in 0..2 {
        turn.run(world.now, &mut medium).unwrap();
    }
    let counted = [
        (DropReason::ReceiveQueueFull, 1),
        (DropReason::StrangersQueueFull, 2),
        (DropReason::SendQueueFull, 3),
        (DropReason::SendFailed, 4),
    ];
    for (reason, count) in counted {
        assert_eq!(turn.relay().counters().dropped(reason), count, "{}", reason.name());
    }
    medium.is_broken = true;
    assert_eq!(turn.run(world.now, &mut medium), Err("broken"));
}

/// What arrives in one turn is more than can wait for a flush, and nearly all of it is one
/// publisher's on another comtree.
#[test]
fn a_flood_on_one_comtree_costs_another_nothing() {
    for mode in [Mode::Immediate, PERIODIC] {
        let mut world = World::new(mode, 2);
        for _ in 0..2 {
            world.add_participant(0, OTHER_COMTREE);
        }
        world.settle();
        world.subscribe_all(7, 0);
        let mut batch = Vec::new();
        for step in 0..90u8 {
            batch.extend((0..100).map(|_| update(&mut world, 2, OTHER_COMTREE, &[9; 1000])));
            batch.push(update(&mut world, 0, COMTREE, &[step]));
        }
        let mut turn = turn(&mut world);
        let mut medium = Script { batches: [batch].into(), ..Script::default() };
        turn.run(world.now, &mut medium).unwrap();
        turn.run(world.now + TICK, &mut medium).unwrap();
        let counters = turn.relay().counters();
        assert_eq!(counters.dropped(DropReason::PendingFull), 0, "{mode:?}");
        assert!(counters.flushes > 2, "{} flushes: not enough arrived", counters.flushes);
        assert_eq!(counters.deliveries_out, 90 + 9000, "{mode:?}");
        bring(&mut world, &mut medium);
        let steps: Vec<_> = world.payloads(1).iter().map(|payload| payload[0]).collect();
        assert_eq!(steps, (0..90).collect::<Vec<_>>(), "{mode:?}");
    }
}

/// The same, when it comes from other data threads.
#[test]
fn a_flood_from_other_threads_costs_nothing_either() {
    for mode in [Mode::Immediate, PERIODIC] {
        let mut world = World::with_threads(config(mode), 7);
        for thread in 0..7 {
            world.join(thread);
        }
        world.subscribe(0, 7, 0);
        let from_each = 12_000;
        for number in 1..7 {
            for step in 0..from_each {
                world.publish(number, 7, 0, Flags(0), &(step as u32).to_be_bytes());
            }
        }
        let mut turn = turn(&mut world);
        let mut medium = Script::default();
        turn.run(world.now, &mut medium).unwrap();
        turn.run(world.now + TICK, &mut medium).unwrap();
        let counters = turn.relay().counters();
        assert_eq!(counters.updates_taken, 6 * from_each, "{mode:?}");
        assert_eq!(counters.dropped(DropReason::PendingFull), 0, "{mode:?}");
        assert_eq!(counters.deliveries_out, 6 * from_each, "{mode:?}");
    }
}

/// More answers than can wait, in one receive batch.
#[test]
fn a_crowd_of_keepalives_is_answered_whole() {
    let mut world = World::new(Mode::Immediate, 900);
    let batch = (0..900).map(|number| keepalive(&mut world, number)).collect();
    let mut turn = turn(&mut world);
    let mut medium = Script { batches: [batch].into(), ..Script::default() };
    turn.run(world.now, &mut medium).unwrap();
    assert_eq!(medium.sent.len(), 900);
    assert_eq!(turn.relay().counters().dropped(DropReason::RepliesFull), 0);
}

/// Another thread acks a subscription while this one waits in its receive call; what the ack
/// causes is in the batch that the call brings.
#[test]
fn what_a_datagram_was_caused_by_is_known_before_it_is_looked_at() {
    let mut world = World::with_threads(config(Mode::Immediate), 2);
    world.join(0);
    world.join(1);
    world.participants[1].session.subscribe(Group::new(7), Level(0));
    let datagram = update(&mut world, 0, COMTREE, b"x");
    let (now, path, mut subscribe) = (world.now, world.participants[1].path, [0; 1500]);
    let len = world.participants[1].session.poll_transmit(now, &mut subscribe).unwrap();
    let mut turn = turn(&mut world);
    let other: Rc<RefCell<Relay>> = Rc::new(RefCell::new(world.threads.remove(0)));
    let acks = Rc::new(RefCell::new(0));
    let (thread, acked) = (Rc::clone(&other), Rc::clone(&acks));
    let meanwhile = move || {
        let mut thread = thread.borrow_mut();
        if *acked.borrow() == 0 {
            thread.handle_datagram(now, path, &mut subscribe[..len]);
        }
        thread.transmit(now, |batch| *acked.borrow_mut() += batch.transmits().len());
    };
    let mut medium = Script {
        batches: [vec![datagram]].into(),
        meanwhile: Some(Box::new(meanwhile)),
        ..Script::default()
    };
    let wakes = turn.run(now, &mut medium).unwrap();
    assert_eq!(*acks.borrow(), 1);
    assert_eq!(turn.relay().counters().updates_passed, 1);
    assert_eq!(wakes & 0b10, 0b10, "the other thread is woken");
    assert_eq!(turn.run(now, &mut medium).unwrap(), 0, "once");
}

#[test]
fn in_immediate_mode_every_arrival_counts() {
    let mut world = two(Mode::Immediate);
    let batch = vec![update(&mut world, 0, COMTREE, b"x")];
    let mut turn = turn(&mut world);
    let mut medium = Script { batches: [batch].into(), ..Script::default() };
    turn.run(at(7), &mut medium).unwrap();
    assert!(matches!(turn.wait(), Wait::Arrival(Some(_))), "sessions may expire");
    let empty = World::new(Mode::Immediate, 0).threads.remove(0);
    let mut turn = Turn::new(empty);
    turn.run(at(7), &mut medium).unwrap();
    assert_eq!(turn.wait(), Wait::Arrival(None), "an empty relay sleeps");
}

#[test]
fn with_traffic_a_periodic_relay_reads_at_leisure() {
    let mut world = two(PERIODIC);
    let batch = vec![update(&mut world, 0, COMTREE, b"x")];
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(1000), &mut medium).unwrap();
    assert!(matches!(turn.wait(), Wait::Arrival(Some(_))), "nothing has come");
    medium.batches.push_back(batch);
    turn.run(at(1001), &mut medium).unwrap();
    // Nothing more comes, but an update waits for the tick.
    let read_at = at(1000) + READ_EVERY;
    assert_eq!(turn.wait(), Wait::Until(read_at));
    turn.run(read_at, &mut medium).unwrap();
    assert!(medium.sent.is_empty(), "at {read_at:?}");
    assert_eq!(turn.wait(), Wait::Stranger(at(1050)));
    turn.run(at(1050), &mut medium).unwrap();
    assert_eq!(medium.sent.len(), 1);
    assert!(matches!(turn.wait(), Wait::Arrival(Some(_))), "the wait is over");
}

/// Every read wakes the processor, and a relay inside a network has little to read.
#[test]
fn with_little_traffic_a_periodic_relay_reads_once_a_tick() {
    let mut world = two(PERIODIC);
    let mut some = |count: u8| (0..count).map(|_| update(&mut world, 0, COMTREE, b"x")).collect();
    // What comes after so many microseconds, and when the next read is.
    let turns: [(Vec<_>, _, _); 7] = [
        (some(64), 0, Wait::Until(at(1000) + READ_EVERY)),
        (some(17), 12_500, Wait::Until(at(1025))),
        (some(16), 25_000, Wait::Stranger(at(1050))),
        (some(64), 50_000, Wait::Stranger(at(1100))),
        // In between, because a stranger came or something is to be changed.
        (some(1), 80_000, Wait::Stranger(at(1100))),
        (some(65), 100_000, Wait::Until(at(1105))),
        (some(16), 105_000, Wait::Until(at(1112) + Duration::from_micros(500))),
    ];
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(999), &mut medium).unwrap();
    for (batch, micros, wait) in turns {
        medium.batches.push_back(batch);
        turn.run(at(1000) + Duration::from_micros(micros), &mut medium).unwrap();
        assert_eq!(turn.wait(), wait, "after {micros} µs");
    }
}

/// How a data thread of the world waits after two reads that brought little, at 1000 and 1010 ms.
fn wait_after_little(mut world: World) -> Wait {
    let batches = [(); 2].map(|()| vec![update(&mut world, 0, COMTREE, b"x")]);
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(999), &mut medium).unwrap();
    for (batch, now) in batches.into_iter().zip([1000, 1010]) {
        medium.batches.push_back(batch);
        turn.run(at(now), &mut medium).unwrap();
    }
    turn.wait()
}

/// Where ticks are long, hellos of links and strangers still are answered in time.
#[test]
fn with_little_traffic_a_long_tick_is_read_every_50_ms() {
    let tick = Duration::from_millis(200);
    assert_eq!(wait_after_little(two(Mode::Periodic { tick })), Wait::Stranger(at(1050)));
}

/// A comtree's tick need not end with a read: then it is waited for by itself.
#[test]
fn a_tick_that_ends_between_reads_is_not_missed() {
    let modes = [(COMTREE, 50), (OTHER_COMTREE, 80)].map(|(comtree, millis)| ComtreeConfig {
        mode: Some(Mode::Periodic { tick: Duration::from_millis(millis) }),
        ..ComtreeConfig::new(comtree, 1)
    });
    let config = RelayConfig { comtrees: modes.to_vec(), ..config(Mode::Immediate) };
    let mut world = World::of(config, 2);
    let other = world.add_participant(0, OTHER_COMTREE);
    world.settle();
    world.subscribe_all(7, 0);
    let some = [vec![update(&mut world, other, OTHER_COMTREE, b"x")], Vec::new(), Vec::new()];
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(1260), &mut medium).unwrap();
    // A tick of 80 ms ends at 1280 ms, and the reads are at multiples of 12.5 ms.
    let turns = [(1270, 1275), (1275, 1280), (1280, 0)];
    for (batch, (now, next)) in some.into_iter().zip(turns) {
        medium.batches.push_back(batch);
        let flushes = turn.relay().counters().flushes;
        turn.run(at(now), &mut medium).unwrap();
        assert_eq!(turn.relay().counters().flushes - flushes, u64::from(now == 1280), "at {now}");
        match turn.wait() {
            Wait::Until(until) | Wait::Stranger(until) => assert_eq!(until, at(next)),
            wait @ Wait::Arrival(_) => assert_eq!(next, 0, "{wait:?}"),
        }
    }
}

/// One comtree whose updates leave at once, and sockets are read at every arrival.
#[test]
fn where_one_comtree_is_immediate_every_arrival_is_read() {
    let mut comtrees = config(PERIODIC).comtrees;
    comtrees[1].mode = Some(Mode::Immediate);
    let mut world = World::of(RelayConfig { comtrees, ..config(PERIODIC) }, 2);
    world.subscribe_all(7, 0);
    let wait = wait_after_little(world);
    assert!(matches!(wait, Wait::Arrival(_)), "{wait:?}");
}

/// Should all who have a session begin to send at once, the receive buffers must hold it.
#[test]
fn where_many_have_sessions_reads_are_not_so_seldom() {
    let wait = |participants| wait_after_little(World::new(PERIODIC, participants));
    assert_eq!(wait(64), Wait::Stranger(at(1050)));
    assert_eq!(wait(65), Wait::Until(at(1000) + READ_EVERY));
}

/// Its delays are watched, and would be longer.
#[test]
fn where_a_receiver_is_limited_reads_are_not_so_seldom() {
    let mut world = two(PERIODIC);
    let (comtree, address, now) = (COMTREE, world.address(1), world.now);
    let budget = Budget { down_bits: 10_000, ..Budget::default() };
    world.relay_mut().apply(now, Change::SetBudget { comtree, address, budget }).unwrap();
    (0..40).for_each(|_| world.publish(0, 7, 0, Flags(0), &[1; 1000]));
    assert!(
        matches!(wait_after_little(world), Wait::Until(until) if until <= at(1000) + READ_EVERY)
    );
}

/// A newcomer has more to say soon.
#[test]
fn after_a_stranger_reads_are_not_so_seldom() {
    let mut world = two(PERIODIC);
    let some = [(); 3].map(|()| vec![update(&mut world, 0, COMTREE, b"x")]);
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(999), &mut medium).unwrap();
    let waits = [
        (at(1000), Wait::Until(at(1000) + READ_EVERY)),
        (at(1010), Wait::Stranger(at(1050))),
        (at(1020), Wait::Until(at(1025))),
    ];
    for (batch, (now, wait)) in some.into_iter().zip(waits) {
        medium.batches.push_back(batch);
        if now == at(1020) {
            medium.strangers.push_back(vec![hello(1)]);
        }
        turn.run(now, &mut medium).unwrap();
        assert_eq!(turn.wait(), wait, "at {now}");
    }
}

/// What arrives between two reads must find room until the second.
#[test]
fn a_periodic_relay_reads_often_while_reads_bring_much() {
    let mut world = two(PERIODIC);
    let mut some = |count: u8| (0..count).map(|_| update(&mut world, 0, COMTREE, b"x")).collect();
    // What comes after so many microseconds, and when the next read is.
    let turns: [(Vec<_>, _, _); 7] = [
        (some(64), 0, Some(12_500)),
        (some(65), 12_500, Some(15_000)),
        (some(65), 15_000, Some(20_000)),
        // That would be more than 40 in 12.5 ms.
        (some(17), 20_000, Some(25_000)),
        (some(16), 25_000, Some(37_500)),
        // An update waits for the tick.
        (some(0), 37_500, Some(50_000)),
        (some(0), 50_000, None),
    ];
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(999), &mut medium).unwrap();
    let after = |micros| at(1000) + Duration::from_micros(micros);
    for (batch, micros, next) in turns {
        let came = batch.len();
        medium.batches.push_back(batch);
        turn.run(after(micros), &mut medium).unwrap();
        let until = match turn.wait() {
            Wait::Until(until) | Wait::Stranger(until) => Some(until),
            Wait::Arrival(_) => None,
        };
        assert_eq!(until, next.map(after), "{came} after {micros} µs");
    }
}

/// One receive batch of them is taken in a turn, so their rate is that of the turns.
#[test]
fn strangers_who_must_wait_are_read_often() {
    let mut world = two(PERIODIC);
    let strangers = [vec![hello(1)], vec![hello(2)]].into();
    let mut turn = turn(&mut world);
    let mut medium = Script { strangers, ..Script::default() };
    turn.run(at(1000), &mut medium).unwrap();
    assert_eq!(turn.wait(), Wait::Until(at(1005)));
    turn.run(at(1005), &mut medium).unwrap();
    assert_eq!(turn.wait(), Wait::Until(at(1000) + READ_EVERY));
}

#[test]
fn a_full_receive_buffer_is_read_often_for_ten_seconds() {
    for strangers in [false, true] {
        let mut world = two(PERIODIC);
        let mut updates = [(); 3].map(|()| vec![update(&mut world, 0, COMTREE, b"x")]).into_iter();
        let mut turn = turn(&mut world);
        let mut medium = Script::default();
        medium.losses.receive_queue_full = u64::from(!strangers);
        medium.losses.strangers_queue_full = u64::from(strangers);
        let after = |millis: u64| [at(1000 + millis), at(1005 + millis)];
        for [now, until] in [after(0), after(9_995)] {
            medium.batches.extend(updates.next());
            turn.run(now, &mut medium).unwrap();
            assert_eq!(turn.wait(), Wait::Until(until));
        }
        medium.batches.extend(updates.next());
        turn.run(at(11_000), &mut medium).unwrap();
        assert_eq!(turn.wait(), Wait::Until(at(11_000) + READ_EVERY));
    }
}

/// What other data threads pass lies in logs that are not endless either.
#[test]
fn what_other_threads_pass_is_read_as_often() {
    for (passed, until) in [(64, at(1012) + Duration::from_micros(500)), (65, at(1005))] {
        let mut world = World::with_threads(config(PERIODIC), 2);
        for thread in 0..2 {
            world.join(thread);
        }
        world.subscribe(0, 7, 0);
        for step in 0..passed {
            world.publish(1, 7, 0, Flags(0), &[step]);
        }
        let mut turn = turn(&mut world);
        turn.run(at(1001), &mut Script::default()).unwrap();
        assert_eq!(turn.relay().counters().updates_taken, u64::from(passed));
        assert_eq!(turn.wait(), Wait::Until(until), "{passed} updates");
    }
}

#[test]
fn a_tick_is_read_in_as_few_equal_parts_as_there_can_be() {
    for (tick, began, micros) in [(12, 1001, 8_000), (20, 1001, 10_000), (36, 1010, 20_000)] {
        let mut world = two(Mode::Periodic { tick: Duration::from_millis(tick) });
        let datagram = update(&mut world, 0, COMTREE, b"x");
        let mut turn = turn(&mut world);
        let mut medium = Script { batches: [vec![datagram]].into(), ..Script::default() };
        turn.run(at(began), &mut medium).unwrap();
        let expected = at(1000) + Duration::from_micros(micros);
        assert_eq!(turn.wait(), Wait::Until(expected), "a tick of {tick} ms");
    }
}

/// The sweep of the tables is due every 100 ms, counted from when there was something to sweep.
#[test]
fn at_leisure_timers_wait_for_the_next_read() {
    let mut world = two(PERIODIC);
    let [first, second] = [(); 2].map(|()| update(&mut world, 0, COMTREE, b"x"));
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(1001), &mut medium).unwrap();
    let Wait::Arrival(Some(due)) = turn.wait() else { panic!("{:?}", turn.wait()) };
    assert_eq!(due, at(1101));
    medium.batches.push_back(vec![first]);
    turn.run(at(1090), &mut medium).unwrap();
    medium.batches.push_back(vec![second]);
    turn.run(at(1100), &mut medium).unwrap();
    assert_eq!(turn.wait(), Wait::Stranger(at(1150)));
}

#[test]
fn a_tick_is_not_missed_for_leisure() {
    let times = [(2, 1001, 1002), (7, 1006, 1008), (20, 1015, 1020), (30, 1019, 1020)];
    for (tick, began, until) in times.into_iter().chain([(50, 1049, 1050), (999, 1990, 1998)]) {
        let mode = Mode::Periodic { tick: Duration::from_millis(tick) };
        let mut world = two(mode);
        let datagram = update(&mut world, 0, COMTREE, b"x");
        let mut turn = turn(&mut world);
        let mut medium = Script::default();
        // The last tick before it begins is over.
        turn.run(at(began), &mut medium).unwrap();
        medium.batches.push_back(vec![datagram]);
        turn.run(at(began), &mut medium).unwrap();
        assert_eq!(turn.wait(), Wait::Until(at(until)), "a tick of {tick} ms");
        turn.run(at(until), &mut medium).unwrap();
        assert_eq!(medium.sent.len(), 1, "a tick of {tick} ms");
    }
}

/// The next turn follows at once, and there is one flush for all ticks that are over.
#[test]
fn a_turn_longer_than_a_tick_is_made_up_for_once() {
    let mut world = two(PERIODIC);
    let [first, second, third] = [(); 3].map(|()| update(&mut world, 0, COMTREE, b"x"));
    let mut turn = turn(&mut world);
    let mut medium = Script::default();
    turn.run(at(1001), &mut medium).unwrap();
    medium.batches.push_back(vec![first]);
    turn.run(at(1001), &mut medium).unwrap();
    // It took 179 ms: what it is to wait for is over.
    assert_eq!(turn.wait(), Wait::Until(at(1000) + READ_EVERY));
    medium.batches.push_back(vec![second]);
    turn.run(at(1180), &mut medium).unwrap();
    assert_eq!((turn.relay().counters().flushes, medium.sent.len()), (1, 1));
    // The rhythm stays on multiples of the tick.
    medium.batches.push_back(vec![third]);
    turn.run(at(1181), &mut medium).unwrap();
    turn.run(at(1199), &mut medium).unwrap();
    assert_eq!(turn.relay().counters().flushes, 1);
    turn.run(at(1200), &mut medium).unwrap();
    assert_eq!(turn.relay().counters().flushes, 2);
}

/// Turns that follow at once because lanes have a backlog are one read.
#[test]
fn what_several_turns_bring_at_once_counts_together() {
    const OTHER: Lane = Lane::of(OTHER_COMTREE);
    for (count, until) in [(64, at(1000) + READ_EVERY), (65, at(1005))] {
        let mut world = two(PERIODIC);
        world.add_participant(0, OTHER_COMTREE);
        world.settle();
        let one = update(&mut world, 0, COMTREE, b"x");
        let others = (1..count).map(|_| update(&mut world, 2, OTHER_COMTREE, &[7; 1000]));
        let others = BTreeMap::from([(OTHER, [others.collect()].into())]);
        let mut turn = turn(&mut world);
        let mut medium = Script { batches: [vec![one]].into(), others, ..Script::default() };
        turn.run(at(1000), &mut medium).unwrap();
        assert_eq!(turn.wait(), Wait::Until(at(1000)), "a quantum of the other lane was read");
        turn.run(at(1000), &mut medium).unwrap();
        assert_eq!(turn.relay().counters().updates_in, count, "both turns together");
        assert_eq!(turn.wait(), Wait::Until(until), "{count} came");
    }
}

/// Another lane has more than a turn can read. Who has little is read after a quantum of it, and the
/// turn ends, so that nothing waits for what the flood has sent.
#[test]
fn a_lane_with_an_endless_backlog_delays_no_other_by_more_than_a_quantum() {
    const FLOODED: Lane = Lane::of(OTHER_COMTREE);
    let mut world = World::new(Mode::Immediate, 2);
    for _ in 0..2 {
        world.add_participant(0, OTHER_COMTREE);
    }
    world.settle();
    world.subscribe_all(7, 0);
    let flood = (0..100)
        .map(|_| (0..32).map(|_| update(&mut world, 2, OTHER_COMTREE, &[9; 100])).collect());
    let flood: VecDeque<Vec<Datagram>> = flood.collect();
    let honest: Vec<_> = (0..20).map(|_| update(&mut world, 0, COMTREE, b"x")).collect();
    let mut turn = turn(&mut world);
    let others = BTreeMap::from([(FLOODED, flood)]);
    let mut medium = Script { others, ..Script::default() };
    let mut before = 0;
    for (number, datagram) in honest.into_iter().enumerate() {
        medium.batches.push_back(vec![datagram]);
        turn.run(world.now, &mut medium).unwrap();
        let counters = turn.relay().counters();
        let of_flood = counters.updates_in - 1 - number as u64 - before;
        before += of_flood;
        assert!(of_flood * 350 < (32 << 10) + 1500, "{of_flood} in turn {number}");
        assert!(of_flood > 0, "and the flood has what is its own");
        assert!(
            matches!(turn.wait(), Wait::Until(at) if at <= world.now),
            "the rest follows at once"
        );
    }
    bring(&mut world, &mut medium);
    assert_eq!(world.payloads(1).len(), 20, "each came with its turn");
}
