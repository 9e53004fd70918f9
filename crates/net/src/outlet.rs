//! The way out of a socket: an engine, and a bounded queue for what the kernel does not take at once.

use crate::clock::Clock;
use crate::engine::{Full, SendEngine, SendReport};
use crate::passing::Passing;
use crate::socket::Socket;
use crate::wait::{sleep_until, wait_writable};
use canopy_batch::{Backlog, SendBatch, Transmit, Unsent};
use canopy_wire::Time;
use std::collections::BTreeSet;
use std::time::Duration;

/// While the device's queue is full, the first and the longest time until the next attempt.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));
/// If nothing of what waits is taken for so long, by the socket's buffer or by a device's queue, it is tried once more
/// and dropped: it is of no use any more, and devices of others that wait may have room. The next datagram fits into the
/// queue of a device of 10 Mbit/s after a millisecond or two. A busy machine empties a device's queue late, but comes back
/// to it late as well: so a device's time counts only once pauses are as long as they get.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_WITH_DEVICE: Duration = Duration::from_millis(10);
/// How many waiting sends are offered to the engine at first, and at most: most attempts are in vain,
/// and what is offered is copied.
const OFFERS: (usize, usize) = (8, 128);

/// A send engine that never waits and loses nothing silently.
///
/// What the kernel does not take is copied into a queue, in order. While anything waits there for the socket's buffer,
/// what is sent later waits behind it. Behind a full device only that waits which is for an address for which something
/// waits already: others, whose way may leave through another device, are tried at once. What the queue has no room for
/// is dropped and counted.
pub struct Outlet<E> {
    engine: E,
    backlog: Backlog,
    /// What is offered of the backlog.
    offered: SendBatch,
    rest: Vec<Unsent>,
    passing: Passing,
    wants: Option<Retry>,
    pause: Duration,
    /// Since when nothing of what waits was taken.
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
            passing: Passing::default(),
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
        if self.has_to_pass(batch) {
            return self.send_past_what_waits(socket, now, batch);
        }
        self.rest.clear();
        let sent = self.engine.send(socket, batch, &mut self.rest);
        let mut report = sent.report;
        if let Some(full) = sent.full {
            self.passing.begin(self.rest.drain(..));
            let most = usize::from(full == Full::Device);
            let full = self.pass(socket, batch, most, &mut report).unwrap_or(full);
            self.note(full, now);
        }
        report
    }

    /// Whether something of a batch waits behind what waits already.
    fn has_to_pass(&self, batch: &SendBatch) -> bool {
        let waits = |to: &Transmit| self.backlog.waits_for(to.to.remote.ip());
        match self.wants {
            None => false,
            Some(Retry::Writable) => true,
            Some(Retry::At(_)) => batch.transmits().iter().any(waits),
        }
    }

    fn send_past_what_waits(
        &mut self,
        socket: &Socket,
        now: Time,
        batch: &SendBatch,
    ) -> SendReport {
        let whole = |transmit| Unsent { transmit, datagrams: 0 };
        self.passing.begin((0..batch.transmits().len() as u32).map(whole));
        let most = if self.wants == Some(Retry::Writable) { 0 } else { OFFERS.1 };
        let mut report = SendReport::default();
        if let Some(full) = self.pass(socket, batch, most, &mut report) {
            self.note(full, now);
        }
        report
    }

    /// A batch has met something that is full. If nothing waited before it, what waits now waits for that. Otherwise
    /// the next attempt stays where it is, but a full buffer is waited for first.
    fn note(&mut self, full: Full, now: Time) {
        match self.wants {
            None if self.backlog.is_empty() => {}
            None => self.wait(full, now, true),
            Some(_) if full == Full::Buffer => self.wants = Some(Retry::Writable),
            Some(_) => {}
        }
    }

    /// Offers sends of a batch to the engine, up to `most` at first, but for those to addresses for which something
    /// waits. What is not taken waits. Returns what was full.
    ///
    /// Where a device is full, sends are tried one by one: only so is it known whose it is. An address for which nothing
    /// waits is tried, and again only when all that waited for it has gone. So few attempts are in vain for each send that
    /// goes, though one device may be for thousands of addresses.
    fn pass(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        mut most: usize,
        report: &mut SendReport,
    ) -> Option<Full> {
        let mut full = None;
        while full != Some(Full::Buffer)
            && self.passing.pick(batch, &self.backlog, &mut self.offered, most)
        {
            self.rest.clear();
            let sent = self.engine.send(socket, &self.offered, &mut self.rest);
            report.add(sent.report);
            if sent.full.is_some() {
                self.passing.put_back(batch, &self.rest);
            }
            most = if sent.full.is_some() { 1 } else { (most * 2).min(OFFERS.1) };
            full = sent.full.or(full);
        }
        report.dropped += self.backlog.push(batch, self.passing.end());
        full
    }

    /// Sends as much as the kernel takes of what waits. Does nothing before its time has come.
    pub fn retry(&mut self, socket: &Socket, now: Time) -> SendReport {
        let mut report = SendReport::default();
        if matches!(self.wants, Some(Retry::At(at)) if now < at) {
            return report;
        }
        let (mut progress, mut most) = (false, OFFERS.0);
        while !self.backlog.is_empty() {
            let (full, taken) = self.offer(socket, most, &mut report);
            most = (most * 2).min(OFFERS.1);
            progress |= taken;
            if let Some(full) = full {
                self.wait(full, now, progress);
                break;
            }
        }
        if self.is_stuck(now) {
            self.try_each_once(socket, &mut report);
            self.stuck_since = Some(now);
        }
        if self.backlog.is_empty() {
            (self.wants, self.stuck_since, self.pause) = (None, None, PAUSES.0);
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

    /// Offers the first sends that wait to the engine. Returns why it did not take all, and whether
    /// it took anything.
    fn offer(
        &mut self,
        socket: &Socket,
        most: usize,
        report: &mut SendReport,
    ) -> (Option<Full>, bool) {
        self.offered.clear();
        self.backlog.offer(&mut self.offered, most);
        self.rest.clear();
        let sent = self.engine.send(socket, &self.offered, &mut self.rest);
        report.add(sent.report);
        self.backlog.settle(self.offered.transmits().len(), &self.rest);
        (sent.full, sent.report.sent + sent.report.failed > 0)
    }

    fn wait(&mut self, full: Full, now: Time, progress: bool) {
        if progress {
            self.pause = PAUSES.0;
            self.stuck_since = Some(now);
        }
        self.wants = Some(match full {
            Full::Buffer => Retry::Writable,
            Full::Device => Retry::At(now + self.pause),
        });
        if !progress && full == Full::Device {
            self.pause = (self.pause * 2).min(PAUSES.1);
        }
    }

    /// Whether nothing was taken for as long as may be.
    fn is_stuck(&self, now: Time) -> bool {
        let lasts = |patience| self.stuck_since.is_some_and(|since| now.since(since) >= patience);
        match self.wants {
            Some(Retry::Writable) => lasts(PATIENCE),
            Some(Retry::At(_)) => self.pause == PAUSES.1 && lasts(PATIENCE_WITH_DEVICE),
            None => false,
        }
    }

    /// Tries the sends that wait, in order. If one is not taken, it and all others for its address are dropped.
    fn try_each_once(&mut self, socket: &Socket, report: &mut SendReport) {
        let mut full_for = BTreeSet::new();
        while let Some(address) = self.backlog.first_address() {
            if full_for.contains(&address) {
                report.dropped += self.backlog.drop_first();
            } else if self.offer(socket, 1, report).0.is_some() {
                full_for.insert(address);
            }
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
    use std::collections::{HashMap, HashSet, VecDeque};
    use std::net::SocketAddr;

    /// An engine that takes as many datagrams at a time as its script says, and then is full.
    #[derive(Default)]
    struct Scripted {
        script: VecDeque<(u32, Full)>,
        taken: HashMap<SocketAddr, Vec<u8>>,
        /// To whom nothing can be sent.
        stuck: HashSet<SocketAddr>,
        /// Whether it goes on behind what is not taken.
        is_unordered: bool,
        /// How many calls were stopped.
        in_vain: usize,
    }

    impl SendEngine for Scripted {
        fn send(&mut self, _: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
            let mut sent = Sent::default();
            let none = if self.stuck.is_empty() { Full::Buffer } else { Full::Device };
            let (mut room, full) = self.script.pop_front().unwrap_or((u32::MAX, none));
            for (place, transmit) in batch.transmits().iter().enumerate() {
                let whole = batch.parts(transmit).collect::<Vec<_>>().concat();
                let mut datagrams = 0;
                for datagram in whole.chunks(transmit.segment.into()) {
                    let is_over = sent.full.is_some() && !self.is_unordered;
                    if is_over || room == 0 || self.stuck.contains(&transmit.to.remote) {
                        sent.full = Some(full);
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
            self.in_vain += usize::from(sent.full.is_some());
            sent
        }
    }

    /// Another one at the same address.
    const BESIDE: u16 = 1 << 12;

    fn socket() -> Socket {
        Socket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap()
    }

    fn to(number: u16) -> SocketAddr {
        let [high, low] = (number & !BESIDE).to_be_bytes();
        SocketAddr::from(([127, 0, high, low], 9 + number / BESIDE))
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
            // Each alone.
            (0, Full::Device),
            (0, Full::Device),
            // Later.
            (1, Full::Device),
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
        assert_eq!(outlet.send(&socket, now, &batch_of(&[(2, vec![5])])), SendReport::default());
        assert_eq!(outlet.retry(&socket, now).sent, 2, "one buffer is for all");
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
        const STUCK: u16 = 200;
        let stuck = (0..STUCK).map(to).collect();
        let mut outlet = Outlet::new(Scripted { stuck, ..Scripted::default() });
        let (socket, now) = (socket(), Time::ZERO);
        for round in 0..20 {
            let both = (0..STUCK).flat_map(|number| [number, 2000 + number, number]);
            let sends = Vec::from_iter(both.map(|number| (number, vec![round])));
            let before = outlet.engine().in_vain;
            let report = outlet.send(&socket, now, &batch_of(&sends));
            assert_eq!((report.sent, report.dropped), (STUCK.into(), 0));
            let in_vain = outlet.engine().in_vain - before;
            let most = if round == 0 { 1 + 2 * usize::from(STUCK) } else { 0 };
            assert!(in_vain <= most, "{in_vain} in round {round}");
        }
        for ready in 2000..2000 + STUCK {
            assert_eq!(outlet.engine().taken[&to(ready)], Vec::from_iter(0..20));
        }
        // One of them is taken: it is tried again, and the others are not.
        let before = outlet.engine().in_vain;
        outlet.engine.stuck.remove(&to(0));
        outlet.retry(&socket, now + PAUSES.0);
        assert_eq!(outlet.engine().in_vain - before, 1, "the first of the next is not taken");
        assert_eq!(outlet.engine().taken[&to(0)], [0, 0]);
    }

    /// The backlog has room for 4 MiB, and none of that is for those who pass.
    #[test]
    fn who_passes_takes_no_room_from_who_waits() {
        let mut outlet = Outlet::new(Scripted { stuck: [to(0)].into(), ..Scripted::default() });
        let (socket, now) = (socket(), Time::ZERO);
        outlet.send(&socket, now, &batch_of(&[(0, vec![1])]));
        for _ in 0..40_000 {
            let report = outlet.send(&socket, now, &batch_of(&[(1, vec![2; 128])]));
            assert_eq!((report.sent, report.dropped), (64, 0));
        }
        assert_eq!(outlet.waiting(), 1);
    }

    #[test]
    fn what_waits_for_a_stuck_device_is_dropped_soon() {
        let mut outlet = Outlet::new(Scripted { stuck: [to(0)].into(), ..Scripted::default() });
        let (socket, mut now) = (socket(), Time::ZERO);
        let mut report = SendReport::default();
        for round in 0..100 {
            let batch = batch_of(&[(0, vec![round]), (1, vec![round]), (0, vec![round])]);
            report.add(outlet.send(&socket, now, &batch));
        }
        assert_eq!((report.sent, outlet.engine().in_vain), (100, 2));
        while let Some(Retry::At(at)) = outlet.wants() {
            // That others pass is no sign that this device takes something.
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
        // Both at once, each alone, and then four attempts.
        let script = [(0, Full::Device); 3 + 4].into();
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
        let script = [(0, Full::Buffer)].into();
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
                    prop::collection::vec((0..6_u16, 1..7_usize, any::<bool>()), 0..8),
                    0..4_u32,
                    0..900_u64,
                    prop::collection::hash_set(0..6_u16, 0..4),
                ),
                1..30,
            ),
            is_unordered in any::<bool>(),
        ) {
            let number_of = |at: u16| if at < 4 { at } else { at - 4 + BESIDE };
            let full = |device| if device { Full::Device } else { Full::Buffer };
            // A device takes something each time.
            let room = |room: u32, device| room.max(u32::from(device));
            let of = |(most, device)| (room(most, device), full(device));
            let script = script.into_iter().map(of).collect();
            let mut outlet =
                Outlet::new(Scripted { script, is_unordered, ..Scripted::default() });
            let (socket, mut now) = (socket(), Time::ZERO);
            let (mut number, mut report) = (0_u8, SendReport::default());
            let mut expected: HashMap<SocketAddr, Vec<u8>> = HashMap::new();
            for (sends, retries, micros, stuck) in turns {
                outlet.engine.stuck = stuck.into_iter().map(number_of).map(to).collect();
                let mut bytes = vec![0];
                let sends: Vec<(u16, Vec<u8>)> = sends.into_iter().map(|(receiver, len, same)| {
                    if !same {
                        number = number.wrapping_add(1);
                        bytes = vec![number; len];
                    }
                    (number_of(receiver), bytes.clone())
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
            outlet.engine.stuck.clear();
            while outlet.wants().is_some() {
                now = now + PAUSES.1;
                report.add(outlet.retry(&socket, now));
            }
            prop_assert_eq!(report.dropped, 0, "there was room, and progress in time");
            prop_assert_eq!(&outlet.engine().taken, &expected);
        }
    }
}
