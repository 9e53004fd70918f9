//! A relay whose members have budgets: who said what when, who got it when, and how many bytes that took.

use super::{World, group};
use canopy_relay::{Budget, Change, RelayConfig};
use canopy_wire::{
    Address, Group, Header, Kind, Level, Record, Time, Weight, encode_update, is_roaming,
};
use std::time::Duration;

const MILLI: Duration = Duration::from_millis(1);
/// Sessions are looked after this often.
const UPKEEP: Duration = Duration::from_millis(100);

/// An update that is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Say {
    pub(crate) dst: Address,
    pub(crate) object: u16,
    pub(crate) level: u8,
    pub(crate) weight: Weight,
    pub(crate) len: usize,
}

impl Say {
    /// To a group, as most are.
    pub(crate) fn to(number: u32) -> Say {
        Say { dst: group(number), object: 0, level: 0, weight: Weight::ONE, len: 100 }
    }

    pub(crate) fn important(self) -> Say {
        Say { weight: Weight::IMPORTANT, ..self }
    }
}

/// An update that was said. Its number is its place among all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) at: Time,
    pub(crate) publisher: usize,
    pub(crate) say: Say,
}

/// When an update reached somebody, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) at: Time,
    pub(crate) number: usize,
}

/// A world whose time goes by milliseconds.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) said: Vec<Said>,
    /// By participant.
    pub(crate) got: Vec<Vec<Got>>,
    /// By participant: when it was sent how many bytes.
    pub(crate) bytes: Vec<Vec<(Time, usize)>>,
    upkeep_at: Time,
}

impl Stage {
    pub(crate) fn new(config: RelayConfig, participants: usize) -> Stage {
        Stage::of(World::of(config, participants))
    }

    pub(crate) fn of(world: World) -> Stage {
        let (said, upkeep_at) = (Vec::new(), world.now);
        Stage { world, said, got: Vec::new(), bytes: Vec::new(), upkeep_at }
    }

    /// What a participant may be sent from now on, in bits and updates a second.
    pub(crate) fn limit(&mut self, number: usize, bits: u64, updates: u64) {
        let budget = Budget { down_bits: bits, down_packets: updates, ..Budget::default() };
        let (thread, address) = (self.world.thread_of(number), self.world.address(number));
        let comtree = self.world.participants[number].comtree;
        let change = Change::SetBudget { comtree, address, budget };
        self.world.threads[thread].apply(self.world.now, change).unwrap();
    }

    /// What a participant wants of a group, as of the next upkeep.
    pub(crate) fn want(&mut self, number: usize, group: u32, level: u8, weight: Weight) {
        let session = &mut self.world.participants[number].session;
        session.subscribe_with(Group::new(group), Level(level), weight);
    }

    /// An update reaches its publisher's data thread. Returns its number.
    pub(crate) fn say(&mut self, publisher: usize, say: Say) -> usize {
        let number = self.said.len();
        let mut payload = vec![0; say.len.max(4)];
        payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
        let participant = &mut self.world.participants[publisher];
        let (session, comtree) = (&mut participant.session, participant.comtree);
        let header = Header::new(Kind::Updates, session.id(), comtree);
        let (level, weight, object) = (Level(say.level), say.weight, say.object);
        let series = session.take_series(1);
        let record = Record { level, weight, object, ..Record::new(say.dst, series, &payload) };
        let mut out = [0; 1500];
        let len = encode_update(&header, &record, &mut out).unwrap();
        self.world.send(publisher, &out[..len]);
        self.said.push(Said { at: self.world.now, publisher, say });
        number
    }

    /// Lets time pass. Data threads do what is due at every millisecond.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.world.now + time;
        self.run();
        while self.world.now < end {
            self.world.now = (self.world.now + MILLI).min(end);
            self.run();
        }
    }

    /// Data threads do what is due now; every update is noted that reaches anybody.
    pub(crate) fn run(&mut self) {
        if self.world.now >= self.upkeep_at {
            self.upkeep_at = self.world.now + UPKEEP;
            self.upkeep();
        }
        self.run_threads();
    }

    /// Participants send what they have to send beside updates, and get their answers.
    pub(crate) fn upkeep(&mut self) {
        for thread in &mut self.world.threads {
            thread.handle_timeout(self.world.now);
        }
        for _ in 0..3 {
            for number in 0..self.world.participants.len() {
                self.world.send_from(number);
            }
            self.run_threads();
        }
    }

    fn run_threads(&mut self) {
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for thread in 0..self.world.threads.len() {
                is_moving |= !self.world.threads[thread].has_heard_all();
                self.world.threads[thread].handle_siblings(self.world.now);
                let sent = self.world.collect(thread);
                is_moving |= !sent.is_empty();
                for one in &sent {
                    let to = usize::from(one.to.port()) - 10_000;
                    if to >= self.bytes.len() {
                        self.bytes.resize(to + 1, Vec::new());
                    }
                    self.bytes[to].push((self.world.now, one.bytes.len()));
                }
                self.world.carry(thread, sent);
            }
        }
        self.got.resize(self.world.participants.len(), Vec::new());
        for (participant, got) in self.world.participants.iter_mut().zip(&mut self.got) {
            for one in participant.received.drain(..) {
                let number = u32::from_be_bytes(*one.payload.first_chunk().unwrap()) as usize;
                assert_eq!(one.dst, self.said[number].say.dst);
                got.push(Got { at: self.world.now, number });
            }
        }
    }

    /// The numbers of what a participant got, in order.
    pub(crate) fn numbers(&self, number: usize) -> Vec<usize> {
        self.got[number].iter().map(|got| got.number).collect()
    }

    /// When a participant got anything of a publisher's, between two times.
    pub(crate) fn times(&self, number: usize, publisher: usize, from: Time, to: Time) -> Vec<f64> {
        let of = |got: &&Got| {
            self.said[got.number].publisher == publisher && got.at >= from && got.at < to
        };
        self.got[number].iter().filter(of).map(|got| seconds(got.at)).collect()
    }

    /// How many bytes a participant was sent between two times.
    pub(crate) fn bytes_between(&self, number: usize, from: Time, to: Time) -> usize {
        let between = |(at, _): &&(Time, usize)| *at >= from && *at < to;
        self.bytes[number].iter().filter(between).map(|(_, bytes)| bytes).sum()
    }

    /// The most bytes that a participant was sent in any such time, from a time on.
    pub(crate) fn most_bytes(&self, number: usize, from: Time, within: Duration) -> usize {
        let all = || self.bytes[number].iter().filter(|(at, _)| *at >= from);
        let sums = all().map(|(at, _)| self.bytes_between(number, *at, *at + within));
        sums.max().unwrap_or(0)
    }

    /// Nothing comes twice, nothing comes back, and what is of one flow comes in its order; what is urgent
    /// may overtake the rest of its flow.
    pub(crate) fn check_order_of_flows(&self) {
        self.check(|say| usize::from(say.weight.is_important()));
    }

    /// Nothing comes twice, nothing comes back, and what is of one flow comes in its order.
    pub(crate) fn check_order(&self) {
        self.check(|_| 0);
    }

    fn check(&self, class: impl Fn(&Say) -> usize) {
        for (receiver, got) in self.got.iter().enumerate() {
            let mut newest = std::collections::BTreeMap::new();
            for Got { number, at } in got {
                let Said { publisher, say, .. } = self.said[*number];
                assert_ne!(publisher, receiver, "its own came back");
                let place = (!is_roaming(say.object)).then_some(say.dst);
                let before = newest.insert((publisher, say.object, place, class(&say)), *number);
                let is_next = before.is_none_or(|before| before < *number);
                assert!(is_next, "{receiver} got {number} after {before:?} at {at:?}");
            }
        }
    }
}

pub(crate) fn seconds(time: Time) -> f64 {
    time.as_nanos() as f64 / 1e9
}

/// Numbers that look random, the same each time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// At least 0, and less than 1.
    pub(crate) fn part(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        (self.part() * most as f64) as usize
    }
}

/// A flow of the fluid model: what it weighs, and the updates a second that it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fluid {
    pub(crate) weight: f64,
    pub(crate) hz: f64,
}

/// Updates a second of weighted max-min fairness with demands and a floor, of so many in all.
pub(crate) fn fair(flows: &[Fluid], floor: f64, most: f64) -> Vec<f64> {
    let rates = |level: f64| -> Vec<f64> {
        flows.iter().map(|flow| flow.hz.min(floor.max(level * flow.weight))).collect()
    };
    let (mut low, mut high) = (-30.0_f64, 40.0_f64);
    for _ in 0..200 {
        let level = (low + high) / 2.0;
        let fits = rates(level.exp2()).iter().sum::<f64>() <= most;
        *(if fits { &mut low } else { &mut high }) = level;
    }
    rates(low.exp2())
}
