//! What the relay's own code costs for a delivery, without sockets, on a relay that this process drives: the cases of
//! `canopy bench relay`, and those of `canopy bench budget`. In a crowd all are in one group, each with 20 updates a second; in the ceiling one sends 64 updates
//! at once to the others. Prints nanoseconds for a delivery, of the time in which it takes datagrams and lays out
//! what it sends, seals included. `cargo run --release -p canopy-relay --example own_cost`

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it measures time")]

use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, Relay, RelayConfig, Siblings,
    TableLimits, UnixTime,
};
use canopy_session::{Keyring, PacketsPerKey, Session, SessionConfig, SessionLimits, State};
use canopy_wire::{Comtree, Flags, Group, Level, MAX_DATAGRAM, SAFE_DATAGRAM, Time, Weight};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const COMTREE: Comtree = Comtree(1);
const GROUP: Group = Group::new(7);
/// Each of a crowd publishes once in this time.
const ROUND: Duration = Duration::from_millis(50);
/// How many updates are in flight in the ceiling.
const IN_FLIGHT: usize = 64;
/// Rounds in which all join, their budgets grow and tables get their size.
const WARM_UP: usize = 60;
/// How many deliveries are measured at least.
const MEASURED: u64 = 400_000;
const FIRST_PORT: u16 = 10_000;

/// What was sent in a call: to whom, in segments of which length, and the bytes.
type Sent = Vec<(SocketAddr, usize, Vec<u8>)>;

/// What is measured.
struct Case {
    name: &'static str,
    mode: Mode,
    members: u16,
    bytes: usize,
    /// How often the relay sends in a round of a crowd, each time after as many updates; none in the ceiling.
    sends: Option<usize>,
    /// What the budgets hold a quarter of, if there are any.
    weights: Weights,
}

/// How the members of a crowd weigh each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// Not at all: they have no budgets.
    None,
    /// Alike: all are in one group.
    Cell,
    /// Each otherwise: each publishes to a group of its own.
    Places,
}

impl Case {
    fn all() -> Vec<Case> {
        let tick = |tick: Duration| Mode::Periodic { tick };
        let mut cases = Vec::new();
        for members in [30, 90, 150] {
            for bytes in [100, 290] {
                let weights = Weights::None;
                let case = |name, mode, sends| Case { name, mode, members, bytes, sends, weights };
                cases.push(case("crowd, immediate", Mode::Immediate, Some(members.into())));
                cases.push(case("crowd, tick of 50 ms", tick(ROUND), Some(1)));
                cases.push(case("crowd, tick of 5 ms", tick(ROUND / 10), Some(10)));
            }
        }
        let (name, mode) = ("crowd, tick of 50 ms", tick(ROUND));
        let tick_of_50 =
            Case { name, mode, members: 90, bytes: 20, sends: Some(1), weights: Weights::None };
        cases.push(tick_of_50);
        for (name, weights) in
            [("a quarter, cell", Weights::Cell), ("a quarter, places", Weights::Places)]
        {
            cases.push(Case { name, mode, members: 90, bytes: 100, sends: Some(1), weights });
        }
        for receivers in [3, 30, 90] {
            for bytes in [100, 1000] {
                let (name, members) = ("ceiling, immediate", receivers + 1);
                cases.push(Case {
                    name,
                    mode: Mode::Immediate,
                    members,
                    bytes,
                    sends: None,
                    weights: Weights::None,
                });
            }
        }
        cases
    }
}

/// What the head of an update and its part of a datagram take.
const OVERHEAD: u64 = 8;

/// The group to which a member publishes, where each has its own.
fn own_group(number: u16) -> Group {
    Group::new(100 + u32::from(number))
}

struct Crowd {
    relay: Relay,
    sessions: Vec<Session>,
    now: Time,
    spent: Duration,
}

fn ip_port(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8 + 1], FIRST_PORT + number as u16))
}

impl Crowd {
    fn new(case: &Case) -> Crowd {
        let Case { mode, members, weights, .. } = *case;
        let mut budgets = Budgets::default();
        if weights != Weights::None {
            let updates = u64::from(members - 1) * 1000 / ROUND.as_millis() as u64;
            budgets.member.down_bits = 8 * updates * (case.bytes as u64 + OVERHEAD) / 4;
        }
        let config = RelayConfig {
            mode,
            comtrees: vec![ComtreeConfig::new(COMTREE, 1)],
            trust: None,
            origin: UnixTime(0),
            places: Places::new(members.into()),
            max_sessions: members.into(),
            max_datagram: SAFE_DATAGRAM as u16,
            slow_suites: 0,
            address_rest: ADDRESS_REST,
            life: None,
            log_keys: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: SessionLimits::default(),
            tables: TableLimits::default(),
            budgets,
            gate: Gate::open(),
            smallest_set: None,
        };
        let relay = Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16]);
        let session = |number: u16| {
            let mut session = Session::new(SessionConfig::new(COMTREE, [number as u8; 16]));
            if weights != Weights::Places {
                session.subscribe(GROUP, Level(0));
                return session;
            }
            for other in 0..members {
                let weight = 1.0 / (1.0 + f32::from(number.abs_diff(other)));
                session.subscribe_with(own_group(other), Level(0), Weight::nearest(weight));
            }
            session
        };
        let sessions = (0..members).map(session).collect();
        Crowd { relay, sessions, now: Time::from_millis(1), spent: Duration::ZERO }
    }

    /// The relay takes a datagram, and the time of that counts.
    fn take(&mut self, number: usize, datagram: &mut [u8]) {
        let began = Instant::now();
        self.relay.handle_datagram(self.now, ip_port(number), datagram);
        self.spent += began.elapsed();
    }

    /// All say what they have to say, such as reports.
    fn talk(&mut self) {
        let mut out = [0; MAX_DATAGRAM];
        for number in 0..self.sessions.len() {
            while let Some(len) = self.sessions[number].poll_transmit(self.now, &mut out) {
                self.take(number, &mut out[..len]);
            }
        }
    }

    /// What is due is sent, and heard.
    fn send(&mut self) {
        let (mut sent, mut copying) = (Sent::new(), Duration::ZERO);
        let began = Instant::now();
        self.relay.handle_timeout(self.now);
        self.relay.transmit(self.now, |batch| {
            let began = Instant::now();
            for transmit in batch.transmits() {
                let bytes = batch.parts(transmit).flatten().copied().collect();
                sent.push((transmit.to.remote, usize::from(transmit.segment).max(1), bytes));
            }
            copying += began.elapsed();
        });
        self.spent += began.elapsed() - copying;
        for (to, segment, mut bytes) in sent {
            let session = &mut self.sessions[usize::from(to.port() - FIRST_PORT)];
            for datagram in bytes.chunks_mut(segment) {
                // One that is refused is not what this measures.
                let _ = session.handle_datagram(self.now, datagram, |_| ());
            }
        }
    }

    /// One publishes, if it is let in by now.
    fn publish(&mut self, number: usize, case: &Case) {
        let mut out = [0; MAX_DATAGRAM];
        let group = if case.weights == Weights::Places { own_group(number as u16) } else { GROUP };
        let session = &mut self.sessions[number];
        if session.state() == State::Connected {
            let payload = &[number as u8; 1000][..case.bytes];
            let len = session.publish(group.address(), Level(0), Flags(0), payload, &mut out);
            self.take(number, &mut out[..len.expect("it fits")]);
        }
    }

    fn pass(&mut self, case: &Case) {
        self.talk();
        let Some(sends) = case.sends else {
            (0..IN_FLIGHT).for_each(|_| self.publish(0, case));
            self.now = self.now + ROUND;
            return self.send();
        };
        for number in 0..self.sessions.len() {
            self.publish(number, case);
            if (number + 1) % (self.sessions.len() / sends) == 0 {
                let next = self.now + Duration::from_nanos(1);
                self.now = next.next_multiple(ROUND / sends as u32);
                self.send();
            }
        }
    }
}

fn main() {
    // Only those whose name has this, if it is said.
    let part = std::env::args().nth(1).unwrap_or_default();
    for case in Case::all().into_iter().filter(|case| case.name.contains(&part)) {
        let mut crowd = Crowd::new(&case);
        (0..WARM_UP).for_each(|_| crowd.pass(&case));
        let is_member = |session: &Session| session.state() == State::Connected;
        assert!(crowd.sessions.iter().all(is_member), "somebody is not let in");
        let before = crowd.relay.counters().deliveries_out;
        crowd.spent = Duration::ZERO;
        let delivered = |crowd: &Crowd| crowd.relay.counters().deliveries_out - before;
        while delivered(&crowd) < MEASURED {
            crowd.pass(&case);
        }
        let each = crowd.spent.as_nanos() as f64 / delivered(&crowd) as f64;
        let Case { name, members, bytes, .. } = case;
        println!("{name}, {members} members, {bytes} B: {each:.1} ns");
    }
}
