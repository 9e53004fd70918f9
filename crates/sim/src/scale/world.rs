//! The world itself: relays, participants, and what is on its way between them.

use super::config::{Gauge, PARTICIPANTS_PER_GROUP, ScaleConfig, WANTS};
use super::machine::{COMTREE, Keys, Machine, endpoint_numbers, ip_port, relay_at};
use super::tree::Tree;
use crate::overlay::queue::Queue;
use crate::scenario::{Stream, stream};
use canopy_relay::{Counters, FIRST_ENDPOINT};
use canopy_session::{Event, Session, SessionConfig, State};
use canopy_wire::{Address, Flags, Group, Level, MAX_DATAGRAM, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// How long a datagram is under way.
const WAY: Duration = Duration::from_millis(1);
/// A session that wants to be polled at once, again and again, is polled this late.
const STUBBORN: Duration = Duration::from_millis(100);

/// Something that happens.
pub(crate) enum Step {
    AtRelay(u32, SocketAddr, Rc<[u8]>),
    AtEndpoint(u32, Rc<[u8]>),
    Turn(u32),
    /// A session asked to be polled.
    Wake(u32),
    Do(Deed, u32),
}

/// What a participant does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Join,
    /// Writes to another, who answers.
    Ask,
    /// One in [`ONE_IN`] writes to [`MANY`] others all over the world, who answer.
    AskMany,
    Subscribe,
    Publish,
}

/// Which part of the participants writes to how many.
const ONE_IN: u32 = 20;
const MANY: u32 = 40;

/// What a payload begins with.
const QUESTION: u8 = 1;
const ANSWER: u8 = 2;
const PUBLISHED: u8 = 3;

struct Endpoint {
    session: Session,
    wake_at: Option<Time>,
    wants: [Group; WANTS],
}

/// What participants have done and got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) connected: u64,
    pub(crate) questions: u64,
    pub(crate) answers: u64,
    pub(crate) subscribed: u64,
    /// Pairs of publisher and receiver that have to come about, and those that did.
    pub(crate) expected: u64,
    pub(crate) deliveries: Vec<(u32, u32)>,
    /// What must not be.
    pub(crate) problems: Vec<String>,
}

/// What has been spent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    pub(crate) over_links: u64,
    pub(crate) over_access: u64,
}

pub(crate) struct World<'a> {
    pub(crate) config: ScaleConfig,
    pub(crate) gauge: &'a dyn Gauge,
    pub(crate) tree: Tree,
    pub(crate) now: Time,
    pub(crate) machines: Vec<Machine>,
    pub(crate) heard: Heard,
    pub(crate) spent: Spent,
    pub(crate) groups: u32,
    /// How many want each group.
    wanted: Vec<u32>,
    endpoints: Vec<Endpoint>,
    queue: Queue<Step>,
    rng: ChaCha8Rng,
}

impl<'a> World<'a> {
    /// A world of participants, whose relays do not run yet.
    pub(crate) fn new(config: &ScaleConfig, keys: &Keys, gauge: &'a dyn Gauge) -> World<'a> {
        let mut rng = stream(config.seed, Stream::Overlay);
        let relays = config.relays as usize;
        let endpoints = config.relays * u32::from(config.endpoints_per_relay);
        let numbers = endpoint_numbers(config.endpoints_per_relay);
        let most_of_site = usize::from((u16::MAX - FIRST_ENDPOINT) / numbers);
        let tree = Tree::draw(
            relays,
            config.endpoints_per_relay.into(),
            most_of_site,
            config.core,
            &mut rng,
        );
        let groups = (endpoints / PARTICIPANTS_PER_GROUP).max(WANTS as u32);
        let mut wanted = vec![0; groups as usize + 1];
        let draw = |number: u32| {
            let relay = number / u32::from(config.endpoints_per_relay);
            let config = SessionConfig {
                relay_key: Some(keys.public(relay as usize)),
                ..SessionConfig::new(COMTREE, rng.random())
            };
            // Groups that differ, however few there are.
            let (first, step) = (rng.random_range(0..groups), groups / WANTS as u32);
            let wants = [0, 1, 2, 3].map(|at| 1 + (first + at * step) % groups);
            wants.iter().for_each(|group| wanted[*group as usize] += 1);
            let wants = wants.map(Group::new);
            Endpoint { session: Session::new(config), wake_at: None, wants }
        };
        World {
            config: config.clone(),
            gauge,
            endpoints: (0..endpoints).map(draw).collect(),
            tree,
            now: Time::from_millis(1),
            machines: Vec::new(),
            heard: Heard::default(),
            spent: Spent::default(),
            groups,
            wanted,
            queue: Queue::default(),
            rng: stream(config.seed, Stream::World),
        }
    }

    pub(crate) fn start_relays(&mut self, keys: &Keys) {
        for number in 0..self.tree.nodes.len() {
            let endpoints = self.config.endpoints_per_relay;
            match Machine::start(self.now, number, &self.tree, keys, endpoints) {
                Ok(machine) => self.machines.push(machine),
                Err(problem) => return self.heard.problems.push(problem),
            }
            self.ask_for_turn(number);
        }
    }

    pub(crate) fn endpoints(&self) -> u32 {
        self.endpoints.len() as u32
    }

    /// Whether every link is up, on both sides.
    pub(crate) fn is_linked(&self) -> bool {
        self.machines.iter().all(|machine| machine.relay().links().all(|link| link.is_up))
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.machines.iter().for_each(|machine| sum.add(machine.relay().counters()));
        sum
    }

    /// Every participant does something once, spread over a time.
    pub(crate) fn plan(&mut self, deed: Deed, spread: Duration) {
        let nanos = spread.as_nanos() as u64;
        for number in 0..self.endpoints() {
            let at = self.now + Duration::from_nanos(self.rng.random_range(0..nanos));
            self.queue.plan(at, Step::Do(deed, number));
        }
    }

    /// Lets a time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.queue.next_at().is_some_and(|at| at <= end) {
            let Some((at, step)) = self.queue.next() else { break };
            self.now = at;
            match step {
                Step::AtRelay(relay, from, bytes) => {
                    let turn = self.machines[relay as usize].arrive(at, from, bytes);
                    if let Some(at) = turn {
                        self.queue.plan(at, Step::Turn(relay));
                    }
                }
                Step::AtEndpoint(number, bytes) => self.deliver(number, &bytes),
                Step::Turn(relay) => self.turn(relay as usize),
                Step::Wake(number) => {
                    if self.endpoints[number as usize].wake_at == Some(at) {
                        self.pump(number);
                    }
                }
                Step::Do(deed, number) => self.act(deed, number),
            }
        }
        self.now = end;
    }

    fn turn(&mut self, relay: usize) {
        if !self.machines[relay].is_due(self.now) {
            return;
        }
        let (sent, took) = self.machines[relay].turn(self.now, self.gauge);
        self.spent.cpu += took;
        let from = ip_port(relay);
        for (to, bytes) in sent {
            let step = if let Some(relay) = relay_at(to) {
                self.spent.over_links += 1;
                Step::AtRelay(relay as u32, from, bytes)
            } else {
                self.spent.over_access += 1;
                Step::AtEndpoint(endpoint_at(to), bytes)
            };
            self.queue.plan(self.now + WAY, step);
        }
        self.ask_for_turn(relay);
    }

    fn ask_for_turn(&mut self, relay: usize) {
        if let Some(at) = self.machines[relay].next_turn() {
            self.queue.plan(at.max(self.now), Step::Turn(relay as u32));
        }
    }

    fn act(&mut self, deed: Deed, number: u32) {
        match deed {
            Deed::Join => self.pump(number),
            Deed::Ask => self.ask(number),
            Deed::AskMany if number.is_multiple_of(ONE_IN) => {
                (0..MANY).for_each(|_| self.ask(number));
            }
            Deed::AskMany => {}
            Deed::Subscribe => {
                let Endpoint { session, wants, .. } = &mut self.endpoints[number as usize];
                wants.iter().for_each(|group| session.subscribe(*group, Level(0)));
                self.pump(number);
            }
            Deed::Publish => {
                let group = self.rng.random_range(1..=self.groups);
                let own = self.endpoints[number as usize].wants.contains(&Group::new(group));
                self.heard.expected += u64::from(self.wanted[group as usize] - u32::from(own));
                self.send(number, Group::new(group).address(), PUBLISHED);
            }
        }
    }

    fn ask(&mut self, number: u32) {
        let others = self.endpoints() - 1;
        let other = self.rng.random_range(0..others.max(1));
        let other = (number + 1 + other) % self.endpoints();
        let to = self.endpoints[other as usize].session.address();
        self.heard.questions += 1;
        self.send(number, to, QUESTION);
    }

    fn send(&mut self, number: u32, to: Address, what: u8) {
        let mut out = [0; MAX_DATAGRAM];
        let [a, b, c, d] = number.to_be_bytes();
        let payload = [what, a, b, c, d];
        let session = &mut self.endpoints[number as usize].session;
        match session.publish(to, Level(0), Flags::default(), &payload, &mut out) {
            Ok(len) => self.send_up(number, &out[..len]),
            Err(problem) => self.problem(number, &problem),
        }
    }

    fn problem(&mut self, number: u32, what: &dyn core::fmt::Debug) {
        const MOST: usize = 20;
        if self.heard.problems.len() < MOST {
            self.heard.problems.push(format!("{}: participant {number}: {what:?}", self.now));
        }
    }

    fn send_up(&mut self, number: u32, bytes: &[u8]) {
        self.spent.over_access += 1;
        let relay = number / u32::from(self.config.endpoints_per_relay);
        let step = Step::AtRelay(relay, ip_port_of(number), bytes.into());
        self.queue.plan(self.now + WAY, step);
    }

    fn deliver(&mut self, number: u32, bytes: &[u8]) {
        let mut opened = [0; MAX_DATAGRAM];
        let Some(opened) = opened.get_mut(..bytes.len()) else { return };
        opened.copy_from_slice(bytes);
        let mut received = Vec::new();
        let session = &mut self.endpoints[number as usize].session;
        let taken = session.handle_datagram(self.now, opened, |update| {
            if let [what, rest @ ..] = update.payload
                && let Ok(publisher) = rest.try_into()
            {
                received.push((*what, u32::from_be_bytes(publisher), update.src));
            }
        });
        if let Err(problem) = taken {
            self.problem(number, &problem);
        }
        for (what, publisher, src) in received {
            match what {
                QUESTION => self.send(number, src, ANSWER),
                ANSWER => self.heard.answers += 1,
                _ => self.heard.deliveries.push((publisher, number)),
            }
        }
        self.pump(number);
    }

    /// Sends what the session wants sent, hears what it tells, and notes when to poll it next.
    fn pump(&mut self, number: u32) {
        let mut out = [0; MAX_DATAGRAM];
        loop {
            let session = &mut self.endpoints[number as usize].session;
            if let Some(event) = session.poll_event() {
                match event {
                    Event::Connected(_) => self.heard.connected += 1,
                    Event::Subscribed(..) => self.heard.subscribed += 1,
                    other => self.problem(number, &other),
                }
            } else if let Some(len) = session.poll_transmit(self.now, &mut out) {
                self.send_up(number, &out[..len]);
            } else {
                break;
            }
        }
        let endpoint = &mut self.endpoints[number as usize];
        let wake_at = endpoint.session.poll_timeout().map(|at| at.max(self.now));
        let wake_at = if wake_at == Some(self.now) { Some(self.now + STUBBORN) } else { wake_at };
        if wake_at != endpoint.wake_at {
            endpoint.wake_at = wake_at;
            if let Some(at) = wake_at {
                self.queue.plan(at, Step::Wake(number));
            }
        }
    }

    /// How many participants are where they want to be.
    pub(crate) fn settled(&self) -> u32 {
        let is_there = |one: &&Endpoint| one.session.state() == State::Connected;
        self.endpoints.iter().filter(is_there).count() as u32
    }
}

fn ip_port_of(number: u32) -> SocketAddr {
    let [_, a, b, c] = number.to_be_bytes();
    SocketAddr::from(([10, a, b, c], 20_000))
}

fn endpoint_at(ip_port: SocketAddr) -> u32 {
    match ip_port {
        SocketAddr::V4(v4) => u32::from(*v4.ip()) & 0x00ff_ffff,
        SocketAddr::V6(_) => 0,
    }
}
