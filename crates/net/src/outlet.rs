//! The way out of a socket: an engine, and a bounded queue for what the kernel does not take at once.

use crate::clock::Clock;
use crate::engine::{Full, SendEngine, SendReport};
use crate::socket::Socket;
use crate::wait::{sleep_until, wait_writable};
use canopy_batch::{Backlog, SendBatch, Unsent};
use canopy_wire::{Path, Time};
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

/// While the device's queue is full, the first and the longest time until the next attempt.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));
/// How long the first that waits may not be taken before what waits is tried once and dropped, and what waits
/// longer is of no use any more: by the socket's buffer, which is for all receivers; and by a device's queue,
/// whose next datagram fits after a millisecond or two if it bears 10 Mbit/s. A busy machine empties a device's
/// queue late, but comes back to it late as well: so that counts only once pauses are as long as they get.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_WITH_DEVICE: Duration = Duration::from_millis(10);
/// How many waiting sends are offered to the engine at first, and at most: most attempts are in vain,
/// and what is offered is copied.
const OFFERS: (usize, usize) = (8, 128);
/// For how many receivers' addresses the device may be full before no others are tried: each costs an attempt in
/// vain, also where one device is for all of them.
const MOST_HELD: usize = 32;

/// A send engine that never waits and loses nothing silently.
///
/// What the kernel does not take is copied into a queue, in order. While anything waits there for the socket's
/// buffer, what is sent later waits behind it. Behind a device's queue only that waits which is for the same
/// address: others, whose way may leave through another device, pass. What the queue has no room for is dropped
/// and counted.
pub struct Outlet<E> {
    engine: E,
    backlog: Backlog,
    /// What is offered of the backlog.
    offered: SendBatch,
    rest: Vec<Unsent>,
    /// For whom the device was full when it was last tried. If there are fewer than the most, nothing waits for
    /// others.
    held: HashSet<IpAddr>,
    wants: Option<Retry>,
    pause: Duration,
    /// Since when the first that waits was not taken.
    stuck_since: Option<Time>,
}

/// When to call [`Outlet::retry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// When the socket is writable.
    Writable,
    /// At this time.
    At(Time),
}

impl<E: SendEngine> Outlet<E> {
    /// An outlet with an empty queue.
    pub fn new(engine: E) -> Outlet<E> {
        Outlet {
            engine,
            backlog: Backlog::new(),
            offered: SendBatch::new(),
            rest: Vec::with_capacity(OFFERS.1),
            held: HashSet::new(),
            wants: None,
            pause: PAUSES.0,
            stuck_since: None,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// When what waits should be tried again. None if nothing waits.
    pub fn wants(&self) -> Option<Retry> {
        self.wants
    }

    /// How many sends wait.
    pub fn waiting(&self) -> usize {
        self.backlog.len()
    }

    /// Sends the batch, or as much of it as the kernel takes; the rest waits, or is dropped if there
    /// is no room for it. What waits is in no report until it was sent.
    pub fn send(&mut self, socket: &Socket, now: Time, batch: &SendBatch) -> SendReport {
        if !self.backlog.is_empty() {
            return self.send_past_what_waits(socket, batch);
        }
        self.rest.clear();
        let sent = self.engine.send(socket, batch, &mut self.rest);
        let mut report = sent.report;
        if sent.full.is_some() {
            report.dropped += self.backlog.push(batch, self.rest.drain(..));
            self.serve(socket, now, &mut report);
        }
        report
    }

    /// Sends as much as the kernel takes of what waits. Does nothing before its time has come.
    pub fn retry(&mut self, socket: &Socket, now: Time) -> SendReport {
        let mut report = SendReport::default();
        if !matches!(self.wants, Some(Retry::At(at)) if now < at) {
            self.serve(socket, now, &mut report);
        }
        report
    }

    /// Waits until nothing waits any more, with everything sent or dropped. Not for a data thread.
    pub fn flush(&mut self, socket: &Socket, clock: &Clock) -> SendReport {
        let mut report = SendReport::default();
        while let Some(wants) = self.wants {
            match wants {
                Retry::Writable => wait_writable(socket, PAUSES.1),
                Retry::At(at) => sleep_until(clock, at),
            }
            report.add(self.retry(socket, clock.now()));
        }
        report
    }

    /// Offers a batch to the engine, but for what is for an address that something waits for already.
    fn send_past_what_waits(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let from = self.backlog.len();
        let whole = |transmit| Unsent { transmit, datagrams: 0 };
        let all = (0..batch.transmits().len() as u32).map(whole);
        let dropped = self.backlog.push(batch, all);
        let mut report = SendReport { dropped, ..SendReport::default() };
        let for_device = matches!(self.wants, Some(Retry::At(_)));
        if for_device && self.offer(socket, from, MOST_HELD, &mut report).0 == Some(Full::Buffer) {
            self.wants = Some(Retry::Writable);
        }
        report
    }

    /// Offers all that waits to the engine, and drops what it does not take if that has waited for too long.
    fn serve(&mut self, socket: &Socket, now: Time, report: &mut SendReport) {
        self.held.clear();
        let (full, progress) = self.offer(socket, 0, MOST_HELD, report);
        if let Some(full) = full {
            self.wait(full, now, progress);
        }
        if self.is_stuck(now) {
            self.offer(socket, 0, usize::MAX, report);
            report.dropped += self.backlog.drop_all();
        }
        if self.backlog.is_empty() {
            (self.wants, self.stuck_since, self.pause) = (None, None, PAUSES.0);
        }
    }

    /// Offers the sends that wait from place `from` on to the engine, but for those to addresses whose device is
    /// full, and only while there are fewer of these than `most_held`. Returns what turned out to be full, and
    /// whether anything was taken of the first that was offered.
    fn offer(
        &mut self,
        socket: &Socket,
        mut from: usize,
        most_held: usize,
        report: &mut SendReport,
    ) -> (Option<Full>, bool) {
        let (mut most, mut full, mut progress) = (OFFERS.0, None, false);
        while self.held.len() < most_held {
            let held = |to: &Path| self.held.contains(&to.remote.ip());
            self.offered.clear();
            from = self.backlog.offer(&mut self.offered, from, most, held);
            let offered = self.offered.transmits();
            if offered.is_empty() {
                break;
            }
            self.rest.clear();
            let sent = self.engine.send(socket, &self.offered, &mut self.rest);
            report.add(sent.report);
            self.backlog.settle(from, offered.len(), &self.rest);
            let first_waits = self.rest.first() == Some(&Unsent { transmit: 0, datagrams: 0 });
            progress |= full.is_none() && !first_waits;
            full = sent.full.or(full);
            match (sent.full, self.rest.first()) {
                (Some(Full::Device), Some(first)) => {
                    self.held.insert(offered[first.transmit as usize].to.remote.ip());
                    most = OFFERS.0;
                }
                (Some(_), _) => break,
                (None, _) => most = (most * 2).min(OFFERS.1),
            }
        }
        (full, progress)
    }

    fn wait(&mut self, full: Full, now: Time, progress: bool) {
        let begins = progress || self.stuck_since.is_none();
        if begins {
            self.pause = PAUSES.0;
            self.stuck_since = Some(now);
        }
        self.wants = Some(match full {
            Full::Buffer => Retry::Writable,
            Full::Device => Retry::At(now + self.pause),
        });
        if !begins && full == Full::Device {
            self.pause = (self.pause * 2).min(PAUSES.1);
        }
    }

    /// Whether the first that waits was not taken for as long as may be.
    fn is_stuck(&self, now: Time) -> bool {
        let lasts = |patience| self.stuck_since.is_some_and(|since| now.since(since) >= patience);
        match self.wants {
            Some(Retry::Writable) => lasts(PATIENCE),
            Some(Retry::At(_)) => self.pause == PAUSES.1 && lasts(PATIENCE_WITH_DEVICE),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sent, SocketOptions};
    use canopy_batch::{MAX_WAITING_SENDS, Segments};
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use std::collections::{HashMap, VecDeque};
    use std::net::SocketAddr;

    /// An engine that takes as many datagrams at a time as its script says, and then is full.
    #[derive(Default)]
    struct Scripted {
        script: VecDeque<(u32, Full)>,
        taken: HashMap<SocketAddr, Vec<u8>>,
        /// To whom nothing can be sent.
        stuck: HashSet<SocketAddr>,
        /// How many datagrams were offered in vain.
        in_vain: usize,
    }

    impl SendEngine for Scripted {
        fn send(&mut self, _: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
            let mut sent = Sent::default();
            let (mut room, full) = self.script.pop_front().unwrap_or((u32::MAX, Full::Buffer));
            for (place, transmit) in batch.transmits().iter().enumerate() {
                let whole = batch.parts(transmit).collect::<Vec<_>>().concat();
                let mut datagrams = 0;
                for datagram in whole.chunks(transmit.segment.into()) {
                    if sent.full.is_some() || room == 0 || self.stuck.contains(&transmit.to.remote)
                    {
                        self.in_vain += usize::from(sent.full.is_none());
                        sent.full = sent.full.or(Some(full));
                        break;
                    }
                    room -= 1;
                    datagrams += 1;
                    sent.report.sent += 1;
                    self.taken.entry(transmit.to.remote).or_default().extend(datagram);
                }
                if datagrams < transmit.datagrams() {
                    rest.push(Unsent { transmit: place as u32, datagrams });
                }
            }
            sent
        }
    }

    fn socket() -> Socket {
        Socket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap()
    }

    fn to(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, (number >> 8) as u8, number as u8], 9))
    }

    /// A send to each; neighbours with the same bytes share them.
    fn batch_of(sends: &[(u16, Vec<u8>)]) -> SendBatch {
        let mut batch = SendBatch::new();
        for (place, (number, bytes)) in sends.iter().enumerate() {
            if place > 0 && sends[place - 1].1 == *bytes {
                batch.push_same(to(*number));
                continue;
            }
            let segments = Segments::new(bytes, 2).unwrap();
            batch.push_burst(to(*number), &[segments.bytes()], segments.segment());
        }
        batch
    }

    #[test]
    fn what_is_not_taken_waits_and_what_follows_waits_behind_it() {
        let script = [
            (1, Full::Device),
            // Again, by itself: for the first, and for the second.
            (0, Full::Device),
            (0, Full::Device),
            // When its time has come.
            (1, Full::Device),
            (0, Full::Device),
            (1, Full::Buffer),
        ];
        let mut outlet = Outlet::new(Scripted { script: script.into(), ..Scripted::default() });
        let (socket, now) = (socket(), Time::ZERO);
        let report = outlet.send(&socket, now, &batch_of(&[(0, vec![1, 1, 2]), (1, vec![3])]));
        assert_eq!((report.sent, report.dropped, outlet.waiting()), (1, 0, 2));
        assert_eq!(outlet.wants(), Some(Retry::At(now + PAUSES.0)));
        assert_eq!(outlet.send(&socket, now, &batch_of(&[(0, vec![4])])), SendReport::default());
        assert_eq!(outlet.retry(&socket, now), SendReport::default(), "it is not time yet");
        let now = now + PAUSES.0;
        assert_eq!(outlet.retry(&socket, now).sent, 1);
        assert_eq!(outlet.wants(), Some(Retry::At(now + PAUSES.0)), "the first pause again");
        let now = now + PAUSES.1;
        assert_eq!(outlet.retry(&socket, now).sent, 1);
        assert_eq!(outlet.wants(), Some(Retry::Writable));
        assert_eq!(outlet.retry(&socket, now).sent, 1);
        assert_eq!((outlet.wants(), outlet.waiting()), (None, 0));
        assert_eq!(outlet.engine().taken[&to(0)], [1, 1, 2, 4]);
        assert_eq!(outlet.engine().taken[&to(1)], [3]);
    }

    #[test]
    fn pauses_grow_while_nothing_is_taken() {
        let script = (0..20).map(|_| (0, Full::Device)).collect();
        let mut outlet = Outlet::new(Scripted { script, ..Scripted::default() });
        let (socket, mut now) = (socket(), Time::ZERO);
        outlet.send(&socket, now, &batch_of(&[(0, vec![1])]));
        let mut pauses = Vec::new();
        while let Some(Retry::At(at)) = outlet.wants() {
            pauses.push(at.since(now));
            now = at;
            outlet.retry(&socket, now);
        }
        assert_eq!(pauses[..3], [PAUSES.0, PAUSES.0, PAUSES.0 * 2]);
        assert_eq!(pauses.last(), Some(&PAUSES.1));
        assert!(pauses.iter().sum::<Duration>() <= PATIENCE_WITH_DEVICE + PAUSES.1);
    }

    #[test]
    fn who_is_not_behind_a_full_device_passes_at_once() {
        let script = vec![(u32::MAX, Full::Device); 1000].into();
        let stuck = (0..MOST_HELD as u16 - 1).map(to).collect();
        let mut outlet = Outlet::new(Scripted { stuck, script, ..Scripted::default() });
        let (socket, now, ready) = (socket(), Time::ZERO, 2000);
        for round in 0..20 {
            let before = outlet.engine().in_vain;
            let both = (0..MOST_HELD as u16 - 1).flat_map(|number| [number, ready, number]);
            let sends = Vec::from_iter(both.map(|number| (number, vec![round])));
            outlet.send(&socket, now, &batch_of(&sends));
            let in_vain = outlet.engine().in_vain - before;
            assert_eq!(
                in_vain,
                if round == 0 { MOST_HELD } else { 0 },
                "once, and the first twice"
            );
            assert_eq!(outlet.engine().taken[&to(ready)].last(), Some(&round));
        }
        let rounds = (0..20).flat_map(|round| [round; MOST_HELD - 1]);
        assert_eq!(outlet.engine().taken[&to(ready)], Vec::from_iter(rounds));
        assert_eq!(outlet.wants(), Some(Retry::At(now + PAUSES.0)));
    }

    #[test]
    fn not_all_are_tried_if_too_many_devices_are_full() {
        let script = vec![(u32::MAX, Full::Device); 1000].into();
        let stuck = (0..300).map(to).collect();
        let mut outlet = Outlet::new(Scripted { stuck, script, ..Scripted::default() });
        let (socket, now) = (socket(), Time::ZERO);
        let sends = Vec::from_iter((0..=300).map(|number| (number, vec![1])));
        for attempts in [1 + MOST_HELD, 0] {
            let before = outlet.engine().in_vain;
            assert_eq!(outlet.send(&socket, now, &batch_of(&sends)), SendReport::default());
            assert_eq!(outlet.engine().in_vain - before, attempts);
        }
        let report = outlet.flush(&socket, &Clock::start());
        assert_eq!((report.sent, report.dropped), (2, 600), "all are tried before it is dropped");
    }

    #[test]
    fn what_waits_for_a_stuck_device_is_dropped_soon() {
        let (stuck, script) = ([to(0)].into(), vec![(u32::MAX, Full::Device); 1000].into());
        let mut outlet = Outlet::new(Scripted { stuck, script, ..Scripted::default() });
        let (socket, mut now) = (socket(), Time::ZERO);
        let mut report = SendReport::default();
        for round in 0..100 {
            let batch = batch_of(&[(0, vec![round]), (1, vec![round]), (0, vec![round])]);
            report.add(outlet.send(&socket, now, &batch));
        }
        assert_eq!((report.sent, outlet.engine().in_vain), (100, 2));
        while let Some(Retry::At(at)) = outlet.wants() {
            // Others' being taken is no sign that this device takes something.
            report.add(outlet.send(&socket, now, &batch_of(&[(1, vec![0])])));
            now = at;
            report.add(outlet.retry(&socket, now));
        }
        let most = PATIENCE_WITH_DEVICE + PAUSES.1;
        assert!(now.since(Time::ZERO) <= most, "once for all that waits");
        assert_eq!(report.dropped, 200);
        assert_eq!(outlet.engine().taken[&to(1)][..100], Vec::from_iter(0..100));
    }

    /// The machine is busy: it empties the device's queue after 20 ms, and each attempt is 5 ms late.
    #[test]
    fn what_a_busy_machine_is_late_with_is_not_dropped() {
        // For both at first, and for each in each attempt.
        let script = [(0, Full::Device); 1 + 5 * 2].into();
        let mut outlet = Outlet::new(Scripted { script, ..Scripted::default() });
        let (socket, mut now) = (socket(), Time::ZERO);
        let mut report = outlet.send(&socket, now, &batch_of(&[(0, vec![1]), (1, vec![2])]));
        while let Some(Retry::At(at)) = outlet.wants() {
            now = at + Duration::from_millis(5);
            report.add(outlet.retry(&socket, now));
        }
        assert!(now.since(Time::ZERO) > Duration::from_millis(20));
        assert_eq!((report.sent, report.dropped), (2, 0));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let script = [(0, Full::Buffer); 2].into();
        let mut outlet = Outlet::new(Scripted { script, ..Scripted::default() });
        let socket = socket();
        let mut report = SendReport::default();
        for _ in 0..MAX_WAITING_SENDS + 9 {
            report.add(outlet.send(&socket, Time::ZERO, &batch_of(&[(0, vec![1, 2, 3])])));
        }
        assert_eq!((report.sent, report.dropped), (0, 18));
        report.add(outlet.retry(&socket, Time::ZERO));
        assert_eq!(report.sent, 2 * MAX_WAITING_SENDS as u64);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(0x0071_e700),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn everything_is_sent_once_and_in_order(
            script in prop::collection::vec((0..6_u32, any::<bool>()), 0..40),
            turns in prop::collection::vec(
                (
                    prop::collection::vec((0..4_u16, 1..7_usize, any::<bool>()), 0..8),
                    0..4_u32,
                    0..900_u64,
                ),
                1..30,
            ),
        ) {
            let full = |device| if device { Full::Device } else { Full::Buffer };
            // A device takes something each time.
            let room = |room: u32, device| room.max(u32::from(device));
            let of = |(most, device)| (room(most, device), full(device));
            let script = script.into_iter().map(of).collect();
            let mut outlet = Outlet::new(Scripted { script, ..Scripted::default() });
            let (socket, mut now) = (socket(), Time::ZERO);
            let (mut number, mut report) = (0_u8, SendReport::default());
            let mut expected: HashMap<SocketAddr, Vec<u8>> = HashMap::new();
            for (sends, retries, micros) in turns {
                let mut bytes = vec![0];
                let sends: Vec<(u16, Vec<u8>)> = sends.into_iter().map(|(receiver, len, same)| {
                    if !same {
                        number = number.wrapping_add(1);
                        bytes = vec![number; len];
                    }
                    (receiver, bytes.clone())
                }).collect();
                for (receiver, bytes) in &sends {
                    expected.entry(to(*receiver)).or_default().extend(bytes);
                }
                report.add(outlet.send(&socket, now, &batch_of(&sends)));
                for _ in 0..retries {
                    now = now + Duration::from_micros(micros);
                    report.add(outlet.retry(&socket, now));
                    prop_assert_eq!(outlet.wants().is_some(), outlet.waiting() > 0);
                }
            }
            while outlet.wants().is_some() {
                now = now + PAUSES.1;
                report.add(outlet.retry(&socket, now));
            }
            prop_assert_eq!(report.dropped, 0, "there was room, and progress in time");
            prop_assert_eq!(&outlet.engine().taken, &expected);
        }
    }
}
