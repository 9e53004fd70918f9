//! The load: members of the relay or of the reflector that publish. The same datagrams go out at
//! the same times to both sides.

use super::cases::{Case, Scenario};
use crate::members::{Heard, Members, session};
use anyhow::Context;
use canopy_batch::MAX_SEND_BYTES;
use canopy_net::{Socket, SocketOptions, process_cpu_time};
use canopy_session::Session;
use canopy_wire::{Flags, Group, Level, MAX_DATAGRAM, Time, Weight};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Each participant of a crowd publishes this often.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);
/// Updates of the ceiling's publisher that are sent and not yet received by all.
const IN_FLIGHT: u32 = 64;
/// An update not received by all after so long is lost.
const LOST_AFTER: Duration = Duration::from_millis(300);
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);
const SESSION_TURN: Duration = Duration::from_millis(250);
/// The group of all.
const GROUP: u32 = 1;
/// Sequence numbers of updates in flight, modulo this, are distinct.
const RING: usize = 256;

/// Whom the load speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Relay,
    Reflector,
}

/// To what the members publish and subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interests {
    /// All to one group, which has the same weight for everyone: they are in one cell.
    OneGroup,
    /// The same in so many cells, and nobody hears of the others.
    Cells(u32),
    /// Each to a group of its own, and everyone to all groups, with weights of its own: each stands at
    /// another place.
    OwnGroups,
    /// The same, but everyone only to one of so many groups.
    SomeGroups(u32),
}

impl Interests {
    /// The group that a member publishes to.
    fn group_of(self, member: usize) -> u32 {
        match self {
            Interests::OneGroup => GROUP,
            Interests::Cells(cells) => GROUP + member as u32 % cells,
            Interests::OwnGroups | Interests::SomeGroups(_) => GROUP + member as u32,
        }
    }

    /// A member's session, one of so many.
    fn session(self, number: usize, members: usize, listens: bool) -> Session {
        let one_of = match self {
            Interests::OwnGroups => 1,
            Interests::SomeGroups(groups) => groups as usize,
            Interests::OneGroup | Interests::Cells(_) => {
                let group = listens.then(|| self.group_of(number));
                return session(number, group.into_iter());
            }
        };
        let mut session = session(number, core::iter::empty());
        if listens {
            let is_heard =
                |other: &usize| *other != number && (other + number).is_multiple_of(one_of);
            for other in (0..members).filter(is_heard) {
                // As if they stood in a line, 10 m from each other.
                let distance = 10.0 * (other as f32 - number as f32).abs();
                let weight = Weight::nearest(1.0 / distance.powi(2));
                let group = Group::new(self.group_of(other));
                session.subscribe_with(group, Level(0), weight);
            }
        }
        session
    }
}

/// What one side did in one round.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) cpu: Duration,
    /// Deliveries within the measured time.
    pub(crate) deliveries: u64,
    /// Deliveries due and arrived over the whole round.
    pub(crate) expected: u64,
    arrived: u64,
    pub(crate) ages: Histogram<u64>,
    pub(crate) wire_bytes_per_payload_byte: f64,
}

impl Measured {
    /// Processor microseconds per delivery.
    pub(crate) fn cost(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.deliveries.max(1) as f64
    }

    pub(crate) fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.arrived)
    }
}

/// What has arrived.
struct Arrivals {
    deliveries: u64,
    bytes: u64,
    payload_bytes: u64,
    ages: Histogram<u64>,
    /// By sequence number modulo [`RING`]: how many receivers an update still has to reach.
    missing: [u32; RING],
    complete: u32,
}

impl Arrivals {
    fn hear(&mut self, heard: Heard<'_>) {
        match heard {
            Heard::Datagram(datagram) => self.bytes += datagram.len() as u64,
            Heard::Payload(now, payload) => self.take(now, payload),
            Heard::Opened(..) => {}
        }
    }

    fn take(&mut self, now: Time, payload: &[u8]) {
        let Some((stamp, rest)) = payload.split_first_chunk::<8>() else { return };
        let Some(sequence) = rest.first_chunk::<4>() else { return };
        self.deliveries += 1;
        self.payload_bytes += payload.len() as u64;
        let sent = Time::from_nanos(u64::from_be_bytes(*stamp));
        // The histogram resizes no more after its first seconds.
        let _ = self.ages.record(now.since(sent).as_nanos() as u64);
        let missing = &mut self.missing[u32::from_be_bytes(*sequence) as usize % RING];
        if *missing > 0 {
            *missing -= 1;
            self.complete += u32::from(*missing == 0);
        }
    }
}

/// A crowd or a publisher with its audience, joined to one side.
pub(crate) struct Load {
    case: Case,
    interests: Interests,
    /// The ceiling's publisher is the last and receives nothing.
    members: Members,
    arrivals: Arrivals,
    published: u64,
    sequence: u32,
    /// When the sessions were last let speak.
    tended: Time,
}

impl Load {
    /// Opens all sockets and joins: the members are dealt out to the servers in turn.
    pub(crate) fn join(
        side: Side,
        case: &Case,
        from: IpAddr,
        servers: &[SocketAddr],
    ) -> anyhow::Result<Load> {
        Load::join_with(Interests::OneGroup, (side, case), from, servers)
    }

    /// The same for a crowd with other interests.
    pub(crate) fn join_with(
        interests: Interests,
        (side, case): (Side, &Case),
        from: IpAddr,
        servers: &[SocketAddr],
    ) -> anyhow::Result<Load> {
        let gro = case.receivers_gro;
        let options = SocketOptions { receive_offload: gro, ..SocketOptions::default() };
        // Two sizes of memory, so that receiving small pieces does not walk through large ones.
        let slot = if gro { 65_535 } else { MAX_DATAGRAM + 1 };
        let mut members = Members::new(slot, case.polls())?;
        let count = case.n + usize::from(case.scenario == Scenario::Ceiling);
        for (number, server) in (0..count).zip(servers.iter().cycle()) {
            let listens = number < case.n;
            let session = (side == Side::Relay).then(|| interests.session(number, count, listens));
            members.add([SocketAddr::new(from, 0), *server], &options, session, listens)?;
        }
        let mut load = Load {
            case: *case,
            interests,
            members,
            arrivals: Arrivals {
                deliveries: 0,
                bytes: 0,
                payload_bytes: 0,
                ages: Histogram::new(3)?,
                missing: [0; RING],
                complete: 0,
            },
            published: 0,
            sequence: 0,
            tended: Time::ZERO,
        };
        load.keep_alive()?;
        Ok(load)
    }

    /// Serves the members until all are joined, however long they were left alone.
    pub(crate) fn keep_alive(&mut self) -> anyhow::Result<()> {
        self.members.join(|heard| self.arrivals.hear(heard))
    }

    /// Runs one round against the servers with these process numbers, whose processor time counts
    /// together.
    pub(crate) fn run(
        &mut self,
        processes: &[u32],
        measured: Duration,
    ) -> anyhow::Result<Measured> {
        self.keep_alive()?;
        let (load_for, receivers): (fn(&mut Load, Duration) -> _, _) = match self.case.scenario {
            Scenario::Crowd => (Load::crowd, self.case.n - 1),
            Scenario::Ceiling => (Load::ceiling, self.case.n),
        };
        let (published, arrived) = (self.published, self.arrivals.deliveries);
        load_for(self, WARM_UP)?;
        let (cpu, deliveries) = (cpu_time(processes)?, self.arrivals.deliveries);
        let (bytes, payload) = (self.arrivals.bytes, self.arrivals.payload_bytes);
        self.arrivals.ages.reset();
        load_for(self, measured)?;
        let result = Measured {
            cpu: cpu_time(processes)?.saturating_sub(cpu),
            deliveries: self.arrivals.deliveries - deliveries,
            ages: self.arrivals.ages.clone(),
            expected: 0,
            arrived: 0,
            wire_bytes_per_payload_byte: (self.arrivals.bytes - bytes) as f64
                / (self.arrivals.payload_bytes - payload).max(1) as f64,
        };
        let expected = (self.published - published) * receivers as u64;
        let until = self.members.clock.now() + LOST_AFTER;
        while self.arrivals.deliveries - arrived < expected && self.members.clock.now() < until {
            self.drain(Duration::from_millis(10))?;
        }
        Ok(Measured { expected, arrived: self.arrivals.deliveries - arrived, ..result })
    }

    fn crowd(&mut self, time: Duration) -> anyhow::Result<()> {
        let phases = phases(self.members.list.len());
        let start = self.members.clock.now();
        let mut cycle = start;
        let mut next = 0;
        loop {
            let now = self.members.clock.now();
            if now.since(start) >= time {
                return Ok(());
            }
            while cycle + phases[next].0 <= now {
                self.publish(phases[next].1, 1, now)?;
                next += 1;
                if next == phases.len() {
                    next = 0;
                    cycle = cycle + PERIOD;
                }
            }
            self.tend(now)?;
            self.drain((cycle + phases[next].0).since(now))?;
        }
    }

    fn ceiling(&mut self, time: Duration) -> anyhow::Result<()> {
        let start = self.members.clock.now();
        let publisher = self.members.list.len() - 1;
        let mut moved = start;
        let mut in_flight = 0;
        self.arrivals.missing = [0; RING];
        self.arrivals.complete = 0;
        loop {
            let now = self.members.clock.now();
            if now.since(start) >= time {
                return Ok(());
            }
            let complete = std::mem::take(&mut self.arrivals.complete);
            in_flight -= complete.min(in_flight);
            if complete > 0 {
                moved = now;
            } else if now.since(moved) > LOST_AFTER {
                // What has not come by now never will; the loss shows in the counts.
                self.arrivals.missing = [0; RING];
                in_flight = 0;
            }
            if in_flight < IN_FLIGHT {
                self.publish(publisher, IN_FLIGHT - in_flight, now)?;
                in_flight = IN_FLIGHT;
            }
            self.tend(now)?;
            self.drain(Duration::from_millis(1))?;
        }
    }

    /// Publishes `count` updates, in as few segmented sends as there are runs of one length that the
    /// kernel takes: a record's series takes more bytes the higher it is.
    fn publish(&mut self, member: usize, count: u32, now: Time) -> anyhow::Result<()> {
        let mut payload = [0; MAX_DATAGRAM];
        let payload = &mut payload[..self.case.bytes];
        payload[..8].copy_from_slice(&now.as_nanos().to_be_bytes());
        let group = self.interests.group_of(member);
        let member = &mut self.members.list[member];
        let mut datagrams = [0; (IN_FLIGHT as usize) * 1100];
        let (mut len, mut segment) = (0, 0);
        for _ in 0..count {
            payload[8..12].copy_from_slice(&self.sequence.to_be_bytes());
            self.arrivals.missing[self.sequence as usize % RING] = self.case.n as u32;
            self.sequence = self.sequence.wrapping_add(1);
            let one = match &mut member.session {
                Some(session) => {
                    let group = Group::new(group).address();
                    session.publish(group, Level(0), Flags(0), payload, &mut datagrams[len..])?
                }
                None => {
                    datagrams[len..len + payload.len()].copy_from_slice(payload);
                    payload.len()
                }
            };
            if len > 0 && (one != segment || len + one > MAX_SEND_BYTES) {
                send_run(&member.socket, &datagrams[..len], segment)?;
                datagrams.copy_within(len..len + one, 0);
                len = 0;
            }
            segment = one;
            len += one;
        }
        self.published += u64::from(count);
        send_run(&member.socket, &datagrams[..len], segment)
    }

    /// Lets the sessions speak from time to time.
    fn tend(&mut self, now: Time) -> anyhow::Result<()> {
        if now.since(self.tended) >= SESSION_TURN {
            self.tended = now;
            self.members.turn(now)?;
        }
        Ok(())
    }

    /// Waits at most `limit` for arrivals and takes them.
    fn drain(&mut self, limit: Duration) -> anyhow::Result<()> {
        self.members.receive(limit, |heard| self.arrivals.hear(heard))
    }
}

/// Processor time of all these processes so far.
fn cpu_time(processes: &[u32]) -> std::io::Result<Duration> {
    processes.iter().map(|process| process_cpu_time(*process)).sum()
}

/// Sends datagrams of one length.
fn send_run(socket: &Socket, datagrams: &[u8], length: usize) -> anyhow::Result<()> {
    let sent = if datagrams.len() == length {
        socket.send(datagrams)
    } else {
        socket.send_segments(datagrams, length as u16)
    };
    sent.context("the load cannot send")
}

/// When in a period each of `count` participants publishes: spread at random, in order of time.
fn phases(count: usize) -> Vec<(Duration, usize)> {
    // Seeded: every run has the same load.
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut phase = || Duration::from_nanos(rng.random_range(0..PERIOD.as_nanos() as u64));
    let mut phases: Vec<_> = (0..count).map(|member| (phase(), member)).collect();
    phases.sort_unstable();
    phases
}
