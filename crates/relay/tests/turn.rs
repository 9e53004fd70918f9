//! The rhythm of a data thread, with a medium that does what a script says.

mod support;

use canopy_batch::SendBatch;
use canopy_relay::{Losses, Medium, Mode, Relay, Turn, Wait};
use canopy_wire::{Comtree, DropReason, Flags, Group, Header, Hello, Keepalive, Level, Path, Time};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use support::{COMTREE, OTHER_COMTREE, PERIODIC, Sent, TICK, World, config};

type Datagram = (Path, Vec<u8>);

/// What a medium was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Receive,
    ReceiveStrangers,
    /// A batch with this many sends.
    Send(usize),
    Losses,
}

/// A medium of which every receive call brings the next batch of a script.
#[derive(Default)]
struct Script {
    batches: VecDeque<Vec<Datagram>>,
    strangers: VecDeque<Vec<Datagram>>,
    /// Whether more is said to wait even when there is none.
    is_endless: bool,
    /// The next receive call fails.
    is_broken: bool,
    at_hand: VecDeque<Datagram>,
    handed_out: Option<Datagram>,
    calls: Vec<Call>,
    sent: Vec<Sent>,
    losses: Losses,
    /// Done at every receive call.
    meanwhile: Option<Box<dyn FnMut()>>,
}

impl Medium for Script {
    type Error = &'static str;

    fn receive(&mut self, strangers: bool) -> Result<bool, &'static str> {
        assert!(self.at_hand.is_empty(), "what was received is not handed out yet");
        if self.is_broken {
            return Err("broken");
        }
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile();
        }
        self.calls.push(if strangers { Call::ReceiveStrangers } else { Call::Receive });
        let batches = if strangers { &mut self.strangers } else { &mut self.batches };
        self.at_hand = batches.pop_front().unwrap_or_default().into();
        Ok(self.is_endless || !batches.is_empty())
    }

    fn next(&mut self) -> Option<(Path, &mut [u8])> {
        self.handed_out = self.at_hand.pop_front();
        self.handed_out.as_mut().map(|(path, datagram)| (*path, &mut datagram[..]))
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

/// Two participants that are subscribed.
fn two(mode: Mode) -> World {
    let mut world = World::new(mode, 2);
    world.subscribe_all(7, 0);
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
    assert_eq!(medium.calls, [Call::Receive, Call::ReceiveStrangers, Call::Send(1), Call::Losses]);
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
    assert_eq!(turn.wait(), Wait::Until(at(1005)));
    // Nothing more comes, but an update waits for the tick.
    for millis in (1005..1050).step_by(5) {
        assert_eq!(turn.wait(), Wait::Until(at(millis)));
        turn.run(at(millis), &mut medium).unwrap();
        assert!(medium.sent.is_empty(), "at {millis}");
    }
    turn.run(at(1050), &mut medium).unwrap();
    assert_eq!(medium.sent.len(), 1);
    assert!(matches!(turn.wait(), Wait::Arrival(Some(_))), "the wait is over");
}

#[test]
fn a_tick_is_not_missed_for_leisure() {
    for (tick, began, until) in [(2, 1001, 1002), (7, 1006, 1008), (50, 1049, 1050)] {
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
    assert_eq!(turn.wait(), Wait::Until(at(1005)));
    medium.batches.push_back(vec![second]);
    turn.run(at(1180), &mut medium).unwrap();
    assert_eq!((turn.relay().counters().flushes, medium.sent.len()), (1, 1));
    // The rhythm stays on multiples of the tick.
    medium.batches.push_back(vec![third]);
    turn.run(at(1181), &mut medium).unwrap();
    turn.run(at(1199), &mut medium).unwrap();
    assert_eq!(medium.sent.len(), 1);
    turn.run(at(1200), &mut medium).unwrap();
    assert_eq!((turn.relay().counters().flushes, medium.sent.len()), (2, 2));
}
