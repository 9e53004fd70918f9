//! Receivers behind bottlenecks, in virtual time: what the controller is held to.

use super::receiver::{ReceiverPath, micros};
use super::shared::{PathMarks, SharedPaths};
use canopy_wire::{Asked, Report, Time, Traffic};
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::VecDeque;

/// One step of virtual time.
const STEP_MICROS: u64 = 250;
/// A probe and a report, sealed, in bytes of UDP payload.
const PROBE_BYTES: u32 = 64;
const REPORT_BYTES: u32 = 68;
/// Updates come so long after a participant has subscribed, in microseconds.
const FIRST_UPDATE: u64 = 50_000;
/// IP and UDP.
const HEADERS: u32 = 48;
const LONGEST: u32 = 1200;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) receivers: usize,
    /// The bottleneck's rates, in bits a second, in the first, second and third part of the time.
    pub(crate) rates: [u64; 3],
    pub(crate) buffer: Duration,
    pub(crate) round_trip: Duration,
    /// What each receiver wants, in bits a second, but for the last ones, so many, that want so much.
    pub(crate) demand: u64,
    pub(crate) modest: (usize, u64),
    /// Somebody has the receivers' ip, and a path of its own that bears so much.
    pub(crate) stranger: Option<u64>,
    /// Datagrams in a thousand that are lost before the bottleneck.
    pub(crate) loss: u64,
    /// The relay's tick; zero for none.
    pub(crate) tick: Duration,
    /// Each receiver comes so long after the one before.
    pub(crate) apart: Duration,
    /// Arrivals are late by up to so much, at random.
    pub(crate) jitter: Duration,
    /// Participants look at what has arrived once in so long: a game does in each frame.
    pub(crate) frame: Duration,
    /// The bottleneck takes nothing from then, for so long; or takes what its buffer holds, and passes nothing.
    pub(crate) outage: (Duration, Duration),
    pub(crate) holds: bool,
    pub(crate) time: Duration,
}

impl Scene {
    pub(crate) const ONE: Scene = Scene {
        receivers: 1,
        rates: [1_000_000; 3],
        buffer: Duration::from_millis(200),
        round_trip: Duration::from_millis(40),
        demand: 5_000_000,
        modest: (0, 0),
        stranger: None,
        loss: 0,
        tick: Duration::from_millis(50),
        apart: Duration::ZERO,
        jitter: Duration::ZERO,
        frame: Duration::ZERO,
        outage: (Duration::ZERO, Duration::ZERO),
        holds: false,
        time: Duration::from_secs(60),
    };
}

#[derive(Clone, Copy, Debug)]
enum What {
    Data,
    Probe { number: u32, clock: u32 },
}

struct Datagram {
    receiver: usize,
    bytes: u32,
    what: What,
}

struct Receiver {
    path: ReceiverPath,
    begins: u64,
    sent: Traffic,
    /// What had been when the last probe left.
    sent_before: Traffic,
    received: Traffic,
    /// What it may still be sent, in bits.
    credit: f64,
    clock_offset: u32,
    /// Bytes that arrived, by tenths of a second.
    arrived: Vec<u64>,
    probes: u64,
    reports: u64,
    /// Bytes of UDP payload with updates that arrived.
    payload: u64,
}

pub(crate) struct Outcome {
    /// By millisecond: how long what waits at the bottleneck takes, in milliseconds; the least of a tick.
    pub(crate) standing: Vec<f64>,
    /// By receiver and tenth of a second: bytes that arrived.
    pub(crate) arrived: Vec<Vec<u64>>,
    pub(crate) capacity: Vec<u64>,
    /// By receiver: bytes of UDP payload with updates that arrived.
    pub(crate) payloads: Vec<u64>,
    pub(crate) limits: Vec<Vec<u64>>,
    /// Bytes of UDP payload of probes and of their reports, as a share of those of updates that arrived.
    pub(crate) probe_share: f64,
    pub(crate) report_share: f64,
}

/// Draws numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % most.max(1)
    }
}

struct World {
    scene: Scene,
    now: u64,
    receivers: Vec<Receiver>,
    shared: SharedPaths,
    queue: VecDeque<Datagram>,
    queued: u64,
    credit: f64,
    to_receivers: Vec<(u64, Datagram)>,
    to_relay: VecDeque<(u64, usize, Report)>,
    dice: Dice,
    outcome: Outcome,
    least: f64,
}

pub(crate) fn run(scene: Scene, seed: u64) -> Outcome {
    let mut dice = Dice(seed);
    let tenths = scene.time.as_millis() as usize / 100;
    let receivers = (0..scene.receivers)
        .map(|number| Receiver {
            path: ReceiverPath::default(),
            begins: number as u64 * scene.apart.as_micros() as u64,
            sent: Traffic::default(),
            sent_before: Traffic::default(),
            received: Traffic::default(),
            credit: 0.0,
            clock_offset: dice.below(1 << 32) as u32,
            arrived: vec![0; tenths + 1],
            probes: 0,
            reports: 0,
            payload: 0,
        })
        .collect();
    let outcome = Outcome {
        standing: Vec::new(),
        arrived: Vec::new(),
        capacity: Vec::new(),
        payloads: Vec::new(),
        limits: vec![Vec::new(); scene.receivers],
        probe_share: 0.0,
        report_share: 0.0,
    };
    let mut world = World {
        scene,
        now: 0,
        receivers,
        shared: all_at_one_ip(scene.receivers),
        queue: VecDeque::new(),
        queued: 0,
        credit: 0.0,
        to_receivers: Vec::new(),
        to_relay: VecDeque::new(),
        dice,
        outcome,
        least: f64::MAX,
    };
    world.run();
    let World { mut outcome, receivers, .. } = world;
    let sum = |of: fn(&Receiver) -> u64| receivers.iter().map(of).sum::<u64>() as f64;
    let bytes = sum(|one| one.payload).max(1.0);
    outcome.probe_share = sum(|one| one.probes) * f64::from(PROBE_BYTES) / bytes;
    outcome.report_share = sum(|one| one.reports) * f64::from(REPORT_BYTES) / bytes;
    outcome.payloads = receivers.iter().map(|one| one.payload).collect();
    outcome.arrived = receivers.into_iter().map(|one| one.arrived).collect();
    outcome
}

/// The receivers and a stranger, all at one ip.
fn all_at_one_ip(receivers: usize) -> SharedPaths {
    let mut shared = SharedPaths::new(PathMarks::new(), 0, receivers + 1);
    for port in 0..=receivers {
        shared.enter(port as u32, IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    shared
}

impl World {
    fn time(&self) -> Time {
        Time::from_nanos(1_000_000_000 + self.now * 1000)
    }

    fn capacity(&self) -> u64 {
        let third = self.scene.time.as_micros() as u64 / 3;
        self.scene.rates[(self.now / third).min(2) as usize]
    }

    fn run(&mut self) {
        let end = self.scene.time.as_micros() as u64;
        let tick = (self.scene.tick.as_micros() as u64).max(STEP_MICROS);
        while self.now < end {
            self.take_reports();
            if self.now.is_multiple_of(tick) {
                self.send();
            }
            self.serve();
            self.deliver();
            self.watch();
            self.now += STEP_MICROS;
        }
    }

    fn take_reports(&mut self) {
        let now = self.time();
        while self.to_relay.front().is_some_and(|(at, ..)| *at <= self.now) {
            let (_, receiver, arrival) = self.to_relay.pop_front().unwrap();
            let path = &mut self.receivers[receiver].path;
            let shared = self.shared.mean(now, receiver as u32, path.rate());
            // One that was overtaken is refused.
            let _ = path.take(now, &arrival, shared);
            if path.is_limiting() {
                self.shared.mark(now, receiver as u32, path.rate());
            }
        }
        if let Some(rate) = self.scene.stranger.filter(|_| self.now.is_multiple_of(250_000)) {
            self.shared.mark(now, self.receivers.len() as u32, rate);
        }
    }

    /// The relay's: a probe if one is due, and then what the limit allows of what there is.
    fn send(&mut self) {
        let (now, tick) = (self.time(), self.scene.tick.as_micros() as u64);
        let elapsed = tick.max(STEP_MICROS) as f64 * 1e-6;
        // Probes go before all updates, as replies do.
        for number in 0..self.receivers.len() {
            let receiver = &mut self.receivers[number];
            let is_new = receiver.probes == 0 && self.now >= receiver.begins;
            let flows = receiver.sent != receiver.sent_before;
            if is_new || flows && receiver.path.due(receiver.sent) <= now {
                let probe = receiver.path.probe(now, receiver.sent);
                receiver.sent_before = receiver.sent;
                receiver.probes += 1;
                let what = What::Probe { number: probe, clock: micros(now) };
                self.enqueue(Datagram { receiver: number, bytes: PROBE_BYTES, what });
            }
        }
        for number in 0..self.receivers.len() {
            let receiver = &mut self.receivers[number];
            if self.now < receiver.begins + FIRST_UPDATE {
                continue;
            }
            let limit = receiver.path.limit();
            let (modest, little) = self.scene.modest;
            let is_modest = number + modest >= self.scene.receivers;
            let demand = if is_modest { little } else { self.scene.demand };
            let rate = if limit == 0 { demand } else { limit.min(demand) };
            receiver.credit += rate as f64 * elapsed;
            let mut datagrams = Vec::new();
            // A slow receiver's datagrams are short.
            let longest = ((rate / 160) as u32).clamp(150, LONGEST);
            let least = if tick == 0 { longest } else { 150 };
            while receiver.credit >= f64::from(8 * least) {
                let bytes = LONGEST.min((receiver.credit / 8.0) as u32);
                receiver.credit -= f64::from(8 * bytes);
                receiver.sent.add(1, bytes);
                datagrams.push((bytes, What::Data));
            }
            for (bytes, what) in datagrams {
                self.enqueue(Datagram { receiver: number, bytes, what });
            }
        }
    }

    fn enqueue(&mut self, datagram: Datagram) {
        let bits = u64::from(8 * (datagram.bytes + HEADERS));
        let most = self.scene.rates[0] * self.scene.buffer.as_micros() as u64 / 1_000_000;
        let is_away = self.is_away() && !self.scene.holds;
        let is_lost = self.dice.below(1000) < self.scene.loss;
        if !is_lost && !is_away && self.queued + bits <= most {
            self.queued += bits;
            self.queue.push_back(datagram);
        }
    }

    fn is_away(&self) -> bool {
        let (from, long) = self.scene.outage;
        self.now.wrapping_sub(from.as_micros() as u64) < long.as_micros() as u64
    }

    fn serve(&mut self) {
        if self.is_away() && self.scene.holds {
            return;
        }
        self.credit += self.capacity() as f64 * STEP_MICROS as f64 * 1e-6;
        let one_way = self.scene.round_trip.as_micros() as u64 / 2;
        while let Some(first) = self.queue.front() {
            let bits = u64::from(8 * (first.bytes + HEADERS));
            if self.credit < bits as f64 {
                return;
            }
            self.credit -= bits as f64;
            self.queued -= bits;
            let datagram = self.queue.pop_front().unwrap();
            let late = self.dice.below(self.scene.jitter.as_micros() as u64 + 1);
            self.to_receivers.push((self.now + one_way + late, datagram));
        }
        self.credit = 0.0;
    }

    fn deliver(&mut self) {
        let now = self.now;
        let frame = (self.scene.frame.as_micros() as u64).max(STEP_MICROS);
        if now / frame == (now + STEP_MICROS) / frame {
            return;
        }
        let back = self.scene.round_trip.as_micros() as u64 / 2;
        let tenth = (now / 100_000) as usize;
        for (_, datagram) in self.to_receivers.extract_if(.., |(at, _)| *at <= now) {
            let receiver = &mut self.receivers[datagram.receiver];
            match datagram.what {
                What::Data => {
                    receiver.received.add(1, datagram.bytes);
                    receiver.payload += u64::from(datagram.bytes);
                    receiver.arrived[tenth] += u64::from(datagram.bytes + HEADERS);
                }
                What::Probe { number, clock } => {
                    let own_clock = (now as u32).wrapping_add(receiver.clock_offset);
                    let received = receiver.received;
                    let asked = Asked::default();
                    let held = self.scene.frame.as_micros() as u32;
                    let arrival = Report { number, clock, own_clock, held, received, asked };
                    receiver.reports += 1;
                    self.to_relay.push_back((now + back, datagram.receiver, arrival));
                }
            }
        }
    }

    fn watch(&mut self) {
        let tick = (self.scene.tick.as_micros() as u64).max(1000);
        self.least =
            self.least.min((self.queued as f64 - self.credit) / self.capacity() as f64 * 1e3);
        if self.now.is_multiple_of(tick) {
            self.outcome.standing.push(self.least);
            self.least = f64::MAX;
        }
        if self.now.is_multiple_of(100_000) {
            self.outcome.capacity.push(self.capacity());
            for (limits, receiver) in self.outcome.limits.iter_mut().zip(&self.receivers) {
                limits.push(receiver.path.limit());
            }
        }
    }
}

impl Outcome {
    /// What waited at the bottleneck, in milliseconds, of which one part in so many was more, from a
    /// share of the time on.
    pub(crate) fn standing_p95(&self, from: f64) -> f64 {
        let from = (self.standing.len() as f64 * from) as usize;
        p95(&self.standing[from..])
    }

    /// The same, from one tenth of a second to another.
    pub(crate) fn standing_p95_between(&self, begin: usize, end: usize) -> f64 {
        let a_tenth = self.standing.len() as f64 / self.capacity.len() as f64;
        let at = |tenths: usize| (tenths as f64 * a_tenth) as usize;
        p95(&self.standing[at(begin)..at(end)])
    }

    /// How much of the bottleneck was used from one tenth of a second to another.
    pub(crate) fn utilisation(&self, tenths: core::ops::Range<usize>) -> f64 {
        let bits: u64 = self.arrived.iter().flat_map(|one| &one[tenths.clone()]).sum::<u64>() * 8;
        let most: u64 = self.capacity[tenths].iter().sum::<u64>() / 10;
        bits as f64 / most as f64
    }

    /// Jain's index over what the receivers got from a tenth of a second on.
    pub(crate) fn fairness(&self, from: usize) -> f64 {
        jains_index(&self.arrived, from)
    }
}

/// Jain's index over what some receivers got from a tenth of a second on.
pub(crate) fn jains_index(arrived: &[Vec<u64>], from: usize) -> f64 {
    let got: Vec<f64> = arrived.iter().map(|one| one[from..].iter().sum::<u64>() as f64).collect();
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|x| x * x).sum::<f64>());
    sum * sum / (got.len() as f64 * squares)
}

fn p95(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all[all.len() * 95 / 100]
}
