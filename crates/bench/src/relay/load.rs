//! The load: participants of the relay or members of the reflector, each with a socket, all on
//! one thread. The same datagrams go out at the same times to both sides.

use super::cases::{Case, Scenario};
use crate::reflector::JOIN;
use anyhow::bail;
use canopy_net::{Clock, Readiness, Receiver, Socket, SocketOptions, process_cpu_time};
use canopy_session::{Event, Session, SessionConfig, State, Update};
use canopy_wire::{Comtree, Flags, Group, Level, MAX_DATAGRAM, Time};
use hdrhistogram::Histogram;
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
/// Keepalives are answered within this.
const ANSWER_TIME: Duration = Duration::from_millis(100);
const JOIN_LIMIT: Duration = Duration::from_secs(10);
const COMTREE: Comtree = Comtree(1);
/// Sequence numbers of updates in flight, modulo this, are distinct.
const RING: usize = 256;

/// Whom the load speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Relay,
    Reflector,
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
    pub(crate) padding: f64,
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

struct Member {
    socket: Socket,
    /// None with the reflector.
    session: Option<Session>,
    subscribed: bool,
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
    clock: Clock,
    members: Vec<Member>,
    /// The ceiling's publisher is the last member and receives nothing.
    readiness: Readiness,
    ready: Vec<usize>,
    receiver: Receiver,
    arrivals: Arrivals,
    published: u64,
    sequence: u32,
}

impl Load {
    /// Opens all sockets and joins.
    pub(crate) fn join(
        side: Side,
        case: &Case,
        from: IpAddr,
        server: SocketAddr,
    ) -> anyhow::Result<Load> {
        let gro = case.receivers_gro;
        let options = SocketOptions { receive_offload: gro, ..SocketOptions::default() };
        let count = case.n + usize::from(case.scenario == Scenario::Ceiling);
        let readiness = Readiness::new()?;
        let mut members = Vec::new();
        for number in 0..count {
            let socket = Socket::bind(SocketAddr::new(from, 0), &options)?;
            socket.connect(server)?;
            if !case.polls() {
                readiness.add(&socket, number as u64)?;
            }
            let listens = number < case.n;
            let session = (side == Side::Relay).then(|| {
                let mut seed = [0x5a; 16];
                seed[..8].copy_from_slice(&(number as u64).to_be_bytes());
                let mut session = Session::new(SessionConfig { comtree: COMTREE, seed });
                if listens {
                    session.subscribe(Group::new(1), Level(0));
                }
                session
            });
            members.push(Member { socket, session, subscribed: !listens });
        }
        // Two sizes of memory, so that receiving small pieces does not walk through large ones.
        let slot = if gro { 65_535 } else { MAX_DATAGRAM + 1 };
        let mut load = Load {
            case: *case,
            clock: Clock::start(),
            members,
            readiness,
            ready: Vec::new(),
            receiver: Receiver::new(64, slot),
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
        };
        load.keep_alive()?;
        Ok(load)
    }

    /// Drives sessions until every member is joined and subscribed. A session that heard nothing
    /// while the other side had its turn may be lost, and is joined again here.
    pub(crate) fn keep_alive(&mut self) -> anyhow::Result<()> {
        let start = self.clock.now();
        let limit = start + JOIN_LIMIT;
        let mut asked_at = Time::ZERO;
        loop {
            let now = self.clock.now();
            let answered = now.since(start) > ANSWER_TIME;
            if answered && self.members.iter().all(Member::is_ready) {
                return Ok(());
            }
            if now > limit {
                bail!("the server did not take all participants within {JOIN_LIMIT:?}");
            }
            if now.since(asked_at) > Duration::from_millis(20) {
                asked_at = now;
                for member in &mut self.members {
                    member.turn(now)?;
                }
            }
            self.drain(Duration::from_millis(5))?;
        }
    }

    /// Runs one round against the server with this process number.
    pub(crate) fn run(&mut self, process: u32, measured: Duration) -> anyhow::Result<Measured> {
        self.keep_alive()?;
        let (published, arrived) = (self.published, self.arrivals.deliveries);
        self.load_for(WARM_UP)?;
        let (cpu, deliveries) = (process_cpu_time(process)?, self.arrivals.deliveries);
        let (bytes, payload) = (self.arrivals.bytes, self.arrivals.payload_bytes);
        self.arrivals.ages.reset();
        self.load_for(measured)?;
        let result = Measured {
            cpu: process_cpu_time(process)?.saturating_sub(cpu),
            deliveries: self.arrivals.deliveries - deliveries,
            ages: self.arrivals.ages.clone(),
            expected: 0,
            arrived: 0,
            padding: 1.0
                - (self.arrivals.payload_bytes - payload) as f64
                    / (self.arrivals.bytes - bytes).max(1) as f64,
        };
        let receivers = match self.case.scenario {
            Scenario::Crowd => self.case.n - 1,
            Scenario::Ceiling => self.case.n,
        };
        let expected = (self.published - published) * receivers as u64;
        let until = self.clock.now() + LOST_AFTER;
        while self.arrivals.deliveries - arrived < expected && self.clock.now() < until {
            self.drain(Duration::from_millis(10))?;
        }
        Ok(Measured { expected, arrived: self.arrivals.deliveries - arrived, ..result })
    }

    fn load_for(&mut self, time: Duration) -> anyhow::Result<()> {
        match self.case.scenario {
            Scenario::Crowd => self.crowd(time),
            Scenario::Ceiling => self.ceiling(time),
        }
    }

    fn crowd(&mut self, time: Duration) -> anyhow::Result<()> {
        let phases = phases(self.members.len());
        let start = self.clock.now();
        let mut cycle = start;
        let mut next = 0;
        let mut session_turn = start;
        loop {
            let now = self.clock.now();
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
            if now >= session_turn {
                session_turn = now + SESSION_TURN;
                for member in &mut self.members {
                    member.turn(now)?;
                }
            }
            self.drain((cycle + phases[next].0).since(now))?;
        }
    }

    fn ceiling(&mut self, time: Duration) -> anyhow::Result<()> {
        let start = self.clock.now();
        let publisher = self.members.len() - 1;
        let mut session_turn = start;
        let mut moved = start;
        let mut in_flight = 0;
        self.arrivals.missing = [0; RING];
        self.arrivals.complete = 0;
        loop {
            let now = self.clock.now();
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
            if now >= session_turn {
                session_turn = now + SESSION_TURN;
                for member in &mut self.members {
                    member.turn(now)?;
                }
            }
            self.drain(Duration::from_millis(1))?;
        }
    }

    /// Publishes `count` updates, in one segmented send if there are several.
    fn publish(&mut self, member: usize, count: u32, now: Time) -> anyhow::Result<()> {
        let mut payload = [0; MAX_DATAGRAM];
        let payload = &mut payload[..self.case.bytes];
        payload[..8].copy_from_slice(&now.as_nanos().to_be_bytes());
        let member = &self.members[member];
        let mut datagrams = [0; (IN_FLIGHT as usize) * 1024];
        let mut len = 0;
        for _ in 0..count {
            payload[8..12].copy_from_slice(&self.sequence.to_be_bytes());
            self.arrivals.missing[self.sequence as usize % RING] = self.case.n as u32;
            self.sequence = self.sequence.wrapping_add(1);
            len += match &member.session {
                Some(session) => {
                    let group = Group::new(1).address();
                    session.publish(group, Level(0), Flags(0), payload, &mut datagrams[len..])?
                }
                None => {
                    datagrams[len..len + payload.len()].copy_from_slice(payload);
                    payload.len()
                }
            };
        }
        self.published += u64::from(count);
        match count {
            1 => member.socket.send(&datagrams[..len])?,
            _ => member.socket.send_segments(&datagrams[..len], (len / count as usize) as u16)?,
        }
        Ok(())
    }

    /// Waits at most `limit` for arrivals and takes them.
    fn drain(&mut self, limit: Duration) -> anyhow::Result<()> {
        let (members, arrivals) = (&mut self.members, &mut self.arrivals);
        let ready = &mut self.ready;
        ready.clear();
        if self.case.polls() {
            ready.extend(0..members.len());
        } else {
            let until = self.clock.now() + limit;
            self.readiness.wait(&self.clock, Some(until), |token| ready.push(token as usize))?;
        }
        for number in ready {
            let member = &mut members[*number];
            let now = self.clock.now();
            self.receiver.receive(&member.socket, |_, datagram| {
                arrivals.bytes += datagram.len() as u64;
                match &mut member.session {
                    Some(session) => {
                        let deliver = |update: Update<'_>| arrivals.take(now, update.payload);
                        // A datagram that is no packet is no delivery: it shows as loss.
                        let _ = session.handle_datagram(now, datagram, deliver);
                    }
                    None if *datagram == [JOIN] => member.subscribed = true,
                    None => arrivals.take(now, datagram),
                }
            })?;
            if member.session.is_some() && !member.is_ready() {
                member.turn(now)?;
            }
        }
        Ok(())
    }
}

impl Member {
    fn is_ready(&self) -> bool {
        let connected = |session: &Session| session.state() == State::Connected;
        self.subscribed && self.session.as_ref().is_none_or(connected)
    }

    /// Sends what the session has to send, or asks the reflector for membership.
    fn turn(&mut self, now: Time) -> anyhow::Result<()> {
        let Some(session) = &mut self.session else {
            if !self.subscribed {
                self.socket.send(&[JOIN])?;
            }
            return Ok(());
        };
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = session.poll_transmit(now, &mut out) {
            self.socket.send(&out[..len])?;
        }
        while let Some(event) = session.poll_event() {
            match event {
                Event::Subscribed(..) => self.subscribed = true,
                Event::Lost => self.subscribed = session.subscriptions() == 0,
                _ => {}
            }
        }
        Ok(())
    }
}

/// When in a period each of `count` participants publishes: spread at random, in order of time.
fn phases(count: usize) -> Vec<(Duration, usize)> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut phases: Vec<_> = (0..count)
        .map(|member| {
            // A fixed sequence (splitmix64): every run has the same load.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let period = PERIOD.as_nanos() as u64;
            (Duration::from_nanos((mixed ^ (mixed >> 31)) % period), member)
        })
        .collect();
    phases.sort_unstable();
    phases
}
