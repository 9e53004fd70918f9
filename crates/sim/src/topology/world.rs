//! The run: one queue of events in virtual time, and what each of them does.

use super::config::{TopologyConfig, TopologySabotage};
use super::controller::{Channel, Process};
use super::faults::{self, Planned};
use super::graph::{Down, Graph};
use super::machine::Machine;
use super::model::Model;
use super::network::Datagram;
use super::people::Participant;
use super::report::{Scene, Told, TopologyReport};
use crate::host::UNIX_ZERO;
use crate::overlay::queue::Queue;
use crate::scale::machine::ip_port;
use crate::scenario::{Stream, stream};
use crate::trace::Trace;
use canopy_control::storage::{Storage, StorageError};
use canopy_control::{Core, Downlink, Event, ItemKey, Mode, Name, NewRelay, NewWorld};
use canopy_plan::{Limits, Network, Rate};
use canopy_relay::Trust;
use canopy_token::{KeySet, Revocations, SigningKey};
use canopy_wire::{Comtree, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Relays look at their links so often, as the daemon's agent does.
const LOOK: Duration = Duration::from_millis(250);
/// The world is looked at this often.
const JUDGE_EVERY: Duration = Duration::from_millis(500);
/// Nothing fails before this, milliseconds, and nothing in the last part of the run.
const SETTLES_IN: u64 = 6_000;
const CALM: u64 = 9_000;
/// After everyone has left, the run goes on for so long.
const ENDS_IN: Duration = Duration::from_secs(4);

/// What a link bears each way.
pub(crate) const LINK: Rate = Rate { bits: 100e6, packets: 50e3 };
const UPLINK: Limits = Limits {
    send: Rate { bits: 1e9, packets: 500e3 },
    receive: Rate { bits: 1e9, packets: 500e3 },
};
const MEMBER: Limits = Limits {
    send: Rate { bits: 100e3, packets: 60.0 },
    receive: Rate { bits: 1e6, packets: 600.0 },
};

/// Something that happens. A relay's, and the controller's, happen in the life for which they were
/// planned.
pub(crate) enum Step {
    Arrive(Datagram),
    /// With the time for which it was asked, which may have been over by then.
    Turn(usize, u32, Time),
    Connect(usize, u32),
    RelayTimer(usize, u32),
    Applied(usize, u32),
    Look(usize, u32),
    ToController(usize, u64, Vec<u8>),
    ToRelay(usize, u64, Vec<u8>),
    ControllerTimer(u32),
    Committed(u32),
    Come(usize),
    Ask(usize, u64),
    Answered(usize, usize, Rc<[u8]>),
    Bounced(usize, usize),
    Wake(usize),
    Change(usize),
    Publish(usize),
    Break(usize),
    Mend(usize),
    /// These participants are to have another relay by now.
    Rehomed(Vec<usize>),
    Judge,
    Leak,
    LeaveAll,
}

/// A world of the run, as the model has it.
pub(crate) struct Realm {
    pub(crate) name: Name,
    pub(crate) comtree: Comtree,
    /// The nodes from which it is joined.
    nodes: Vec<usize>,
}

pub(crate) struct World<'a> {
    pub(crate) config: TopologyConfig,
    pub(crate) now: Time,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) graph: Graph,
    /// About the longest time one way between two nodes.
    pub(crate) span: Duration,
    pub(crate) machines: Vec<Machine>,
    pub(crate) process: Process,
    pub(crate) channels: Vec<Channel>,
    pub(crate) issuer: SigningKey,
    pub(crate) tokens: u128,
    pub(crate) worlds: Vec<Realm>,
    pub(crate) people: Vec<Participant>,
    pub(crate) model: Model,
    pub(crate) told: Told,
    pub(crate) faults: Vec<Planned>,
    pub(crate) calm_from: Time,
    pub(crate) leave_at: Time,
    pub(crate) is_over: bool,
    /// Of each link, whether it is cut; and what passed over it in this second, each way.
    pub(crate) cut: Vec<bool>,
    pub(crate) bytes: Vec<[(u64, u64); 2]>,
    pub(crate) wires: Vec<[Time; 2]>,
    pub(crate) loses: bool,
    pub(crate) reorders: bool,
    pub(crate) trace: Trace<'a>,
    components: usize,
    queue: Queue<Step>,
}

/// Simulates one run on a network and judges it. Of parallel links the shortest counts; each of the
/// largest parts of a network that falls into several has a world of its own.
///
/// # Errors
/// The network cannot be simulated: it has more nodes than addresses.
pub fn run_topology(network: &Network, config: &TopologyConfig) -> Result<TopologyReport, String> {
    if network.nodes().len() > 4_000 {
        return Err(format!("{}: at most 4000 nodes can be simulated", config.file));
    }
    let mut ignore = |_, _, _, _: &[u8]| ();
    let mut world = World::new(network, config, Trace::new(&mut ignore))?;
    world.begin();
    while world.step() {}
    world.finish();
    let scene = Scene {
        relays: world.machines.len(),
        links: world.graph.edges.len(),
        components: world.components,
        participants: world.people.len(),
        worlds: world.worlds.len(),
    };
    let counts = (world.model.tally, world.told);
    let problems = std::mem::take(&mut world.model.faults);
    Ok(TopologyReport::new(config, &scene, counts, world.trace.hash(), problems))
}

impl<'a> World<'a> {
    fn new(
        network: &Network,
        config: &TopologyConfig,
        trace: Trace<'a>,
    ) -> Result<World<'a>, String> {
        let graph = Graph::new(network);
        let mut rng = stream(config.seed, Stream::Topology);
        let issuer = SigningKey::from_seed(rng.random());
        let keys = KeySet::new([issuer.public().clone()], &[], UNIX_ZERO);
        let keys = keys.map_err(|error| error.to_string())?;
        let trust = Arc::new(Trust { keys, revoked: Revocations::new(1) });
        let machine = |number| {
            let rng = ChaCha8Rng::from_seed(rng.random());
            Machine::new(number, Arc::clone(&trust), rng)
        };
        let relays = graph.names.len();
        let machines: Vec<Machine> = (0..relays).map(machine).collect();
        let (components, worlds) = realms(&graph)?;
        let wanted = config.participants.map_or_else(
            || rng.random_range(6..=24.min(6 + relays)),
            |participants| participants as usize,
        );
        let people = people(&graph, &worlds, wanted, &mut rng);
        let end = u64::from(config.seconds) * 1_000;
        let calm = end.saturating_sub(CALM);
        let faults = faults::draw(&graph, SETTLES_IN, calm, &mut rng);
        let of: Vec<usize> = people.iter().map(|person| person.world).collect();
        let span = graph.span();
        Ok(World {
            config: config.clone(),
            now: Time::from_millis(1),
            model: Model::new(&of, worlds.len(), span),
            span,
            process: Process::new(relays, Duration::from_millis(rng.random_range(0..3_000))),
            channels: vec![Channel::default(); relays],
            issuer,
            tokens: 0,
            told: Told::default(),
            calm_from: Time::from_millis(calm),
            leave_at: Time::from_millis(end),
            is_over: false,
            cut: vec![false; graph.edges.len()],
            bytes: vec![[(0, 0); 2]; graph.edges.len()],
            wires: vec![[Time::ZERO; 2]; graph.edges.len() + people.len()],
            loses: false,
            reorders: false,
            trace,
            components,
            queue: Queue::default(),
            rng,
            graph,
            machines,
            worlds,
            people,
            faults,
        })
    }

    fn begin(&mut self) {
        self.start_controller();
        for relay in 0..self.machines.len() {
            self.start_relay(relay);
        }
        for number in 0..self.people.len() {
            let at = Time::from_millis(self.rng.random_range(1_500..4_000));
            self.at(at, Step::Come(number));
            self.at(at, Step::Publish(number));
            let at = Time::from_millis(self.rng.random_range(5_000..12_000));
            self.at(at, Step::Change(number));
        }
        for (number, planned) in self.faults.clone().into_iter().enumerate() {
            self.at(planned.from, Step::Break(number));
            self.at(planned.until, Step::Mend(number));
        }
        if self.config.sabotage == Some(TopologySabotage::LeakReservation) {
            self.at(Time::from_millis(5_000), Step::Leak);
        }
        self.at(self.leave_at, Step::LeaveAll);
        self.after(JUDGE_EVERY, Step::Judge);
    }

    pub(crate) fn at(&mut self, at: Time, step: Step) {
        self.queue.plan(at.max(self.now), step);
    }

    pub(crate) fn after(&mut self, wait: Duration, step: Step) {
        self.at(self.now + wait, step);
    }

    fn step(&mut self) -> bool {
        let Some((at, step)) = self.queue.next() else { return false };
        if at > self.leave_at + ENDS_IN {
            return false;
        }
        self.now = at;
        let lives = |of: &World<'_>, relay: usize, life| {
            of.machines[relay].is_up() && of.machines[relay].life == life
        };
        match step {
            Step::Arrive(datagram) => self.arrive(&datagram),
            Step::Turn(relay, life, asked) if lives(self, relay, life) => self.turn(relay, asked),
            Step::Connect(relay, life) if lives(self, relay, life) => self.connect(relay),
            Step::RelayTimer(relay, life) if lives(self, relay, life) => self.pump_relay(relay),
            Step::Applied(relay, life) if lives(self, relay, life) => self.applied(relay),
            Step::Look(relay, life) if lives(self, relay, life) => {
                self.machines[relay].look(at);
                self.after(LOOK, Step::Look(relay, life));
                self.pump_relay(relay);
            }
            Step::Turn(..)
            | Step::Connect(..)
            | Step::RelayTimer(..)
            | Step::Applied(..)
            | Step::Look(..) => {}
            Step::ToController(relay, epoch, bytes) => {
                self.message_to_controller(relay, epoch, &bytes)
            }
            Step::ToRelay(relay, epoch, bytes) => {
                if self.channels[relay].epoch == epoch && self.machines[relay].is_up() {
                    self.machines[relay].side.handle_message(&bytes);
                    self.pump_relay(relay);
                }
            }
            Step::ControllerTimer(life) => self.controller_timer(life),
            Step::Committed(life) => self.committed(life),
            Step::Come(number) => self.come(number),
            Step::Ask(number, question) => self.ask(number, question),
            Step::Answered(number, relay, token) => self.answered(number, relay, &token),
            Step::Bounced(number, relay) => self.bounced(number, relay),
            Step::Wake(number) => self.wake(number),
            Step::Change(number) => self.change(number),
            Step::Publish(number) => self.publish(number),
            Step::Break(number) => self.break_down(number),
            Step::Mend(number) => self.mend(number),
            Step::Rehomed(people) => self.check_rehomed(&people),
            Step::Judge => {
                self.after(JUDGE_EVERY, Step::Judge);
                self.judge();
            }
            Step::Leak => self.leak(),
            Step::LeaveAll => self.leave_all(),
        }
        true
    }

    fn leave_all(&mut self) {
        self.check_everybody_is_in();
        self.is_over = true;
        for number in 0..self.people.len() {
            self.go(number);
        }
    }

    pub(crate) fn start_relay(&mut self, relay: usize) {
        self.machines[relay].start();
        let life = self.machines[relay].life;
        let pause = Duration::from_millis(self.rng.random_range(1..100));
        self.after(pause, Step::Connect(relay, life));
        self.after(LOOK, Step::Look(relay, life));
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
    }

    pub(crate) fn ask_for_turn(&mut self, relay: usize, turn: Option<Time>) {
        if let Some(at) = turn {
            self.at(at, Step::Turn(relay, self.machines[relay].life, at));
        }
    }

    fn turn(&mut self, relay: usize, asked: Time) {
        if !self.machines[relay].is_due(asked) {
            return;
        }
        for sent in self.machines[relay].turn(self.now) {
            self.send(relay, sent);
        }
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
        self.pump_relay(relay);
    }

    /// A relay calls the controller, and registers.
    fn connect(&mut self, relay: usize) {
        let life = self.machines[relay].life;
        let is_there = self.process.controller.is_some();
        if self.channels[relay].is_open() {
            return;
        }
        if !is_there || self.channels[relay].blocked > self.now {
            let pause = Duration::from_millis(self.rng.random_range(100..1_500));
            return self.after(pause, Step::Connect(relay, life));
        }
        self.register(relay);
        let channel = &mut self.channels[relay];
        channel.epoch += 1;
        channel.newest = [self.now; 2];
        // Calls whose answers were lost with the last channel come again.
        while self.machines[relay].side.poll_transmit().is_some() {}
        self.pump_controller();
        self.pump_relay(relay);
    }

    fn register(&mut self, relay: usize) {
        let at = self.process.local(self.now);
        let Some(controller) = &mut self.process.controller else { return };
        let Ok(name) = Name::new(&format!("relay-{relay}")) else { return };
        let new = NewRelay {
            name,
            key: *self.machines[relay].identity.public(),
            native: ip_port(relay),
            uplink: UPLINK,
            places: 200,
        };
        match controller.register(at, new) {
            Ok(id) => self.process.ids[relay] = Some(id),
            Err(why) => self.model.broken(self.now, format!("relay {relay}: {why}")),
        }
        // Links are given, by whoever runs the network, once both ends are there.
        for link in 0..self.graph.edges.len() {
            let edge = self.graph.edges[link];
            let ends = edge.ends.map(|end| self.process.ids[end]);
            let ([Some(one), Some(other)], true) = (ends, edge.ends.contains(&relay)) else {
                continue;
            };
            let Some(controller) = &mut self.process.controller else { return };
            let known = controller
                .links()
                .any(|(link, _)| link.ends == [one, other] || link.ends == [other, one]);
            let delay_us = edge.delay.as_micros() as u32;
            if !known && let Err(why) = controller.add_link([one, other], LINK, delay_us) {
                self.model.broken(self.now, format!("link {link}: {why}"));
            }
        }
    }

    /// Sends what a relay has to say, and begins what it is to apply. While it has no channel, nobody
    /// asks it.
    pub(crate) fn pump_relay(&mut self, relay: usize) {
        if !self.channels[relay].is_open() {
            return;
        }
        let now = self.now;
        let machine = &mut self.machines[relay];
        let (local, life) = (machine.local(now), machine.life);
        machine.side.handle_timeout(local);
        let mut messages = Vec::new();
        while let Some(message) = machine.side.poll_transmit() {
            messages.push(message);
        }
        if let Some(applying) = machine.side.poll_apply() {
            machine.applying = Some(applying);
            let takes = machine.applies_in;
            self.queue.plan(now + takes, Step::Applied(relay, life));
        }
        let timer = self.machines[relay].side.poll_timeout();
        let timer = self.machines[relay].global(timer);
        for message in messages {
            // It says so when it beats next.
            self.at(timer, Step::RelayTimer(relay, life));
            self.send_message(relay, 0, message);
        }
    }

    fn applied(&mut self, relay: usize) {
        self.machines[relay].apply(self.now, self.config.sabotage);
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
        self.pump_relay(relay);
    }

    fn message_to_controller(&mut self, relay: usize, epoch: u64, bytes: &[u8]) {
        let at = self.process.local(self.now);
        let id = self.process.ids[relay];
        if self.channels[relay].epoch == epoch
            && let (Some(controller), Some(id)) = (&mut self.process.controller, id)
        {
            controller.handle_message(at, id, bytes);
            self.pump_controller();
        }
    }

    /// Sends what the controller has to say, hears what it tells, begins what it is to commit.
    pub(crate) fn pump_controller(&mut self) {
        let at = self.process.local(self.now);
        loop {
            let Some(controller) = &mut self.process.controller else { return };
            if let Some(event) = controller.poll_event() {
                self.hear_event(event);
            } else if let Some((id, bytes)) = controller.poll_transmit(at) {
                let relay = self.process.node(id).filter(|relay| self.channels[*relay].is_open());
                if let Some(relay) = relay {
                    self.send_message(relay, 1, bytes);
                }
            } else if self.process.commit.is_none()
                && let Some(batch) = controller.poll_commit(at)
            {
                self.process.commit = Some(batch);
                let takes = Duration::from_micros(self.rng.random_range(500..6_000));
                self.after(takes, Step::Committed(self.process.life));
            } else {
                break;
            }
        }
        let Some(controller) = &self.process.controller else { return };
        let due = self.process.global(controller.poll_timeout(at));
        let due = due.max(self.now + Duration::from_micros(100));
        if self.process.timer.is_none_or(|timer| timer > due || timer <= self.now) {
            self.process.timer = Some(due);
            self.at(due, Step::ControllerTimer(self.process.life));
        }
    }

    fn controller_timer(&mut self, life: u32) {
        if self.process.life != life || self.process.timer != Some(self.now) {
            return;
        }
        self.process.timer = None;
        let at = self.process.local(self.now);
        if let Some(controller) = &mut self.process.controller {
            controller.handle_timeout(at);
            self.pump_controller();
        }
    }

    fn committed(&mut self, life: u32) {
        if self.process.life != life {
            return;
        }
        let at = self.process.local(self.now);
        let Some(batch) = self.process.commit.take() else { return };
        let result: Result<_, StorageError> = self.process.storage.commit(&batch);
        if let Some(controller) = &mut self.process.controller
            && let Err(why) = controller.handle_commit(at, result)
        {
            self.model.broken(self.now, format!("the store: {why}"));
        }
        self.pump_controller();
    }

    fn hear_event(&mut self, event: Event) {
        let told = &mut self.told;
        match event {
            Event::Admitted { world, address } => self.admitted(world, address),
            Event::Refused { .. } => told.refused += 1,
            Event::Left { .. } => told.left += 1,
            Event::Reshaped { .. } => told.reshaped += 1,
            Event::Broken { .. } => told.broken += 1,
            Event::RelayLost(_) => told.relays_lost += 1,
            Event::RelayFound(_) => told.relays_found += 1,
            Event::LinkDown(_) => told.links_down += 1,
            _ => {}
        }
    }

    pub(crate) fn start_controller(&mut self) {
        self.told.controllers += 1;
        if let Err(why) = self.process.start(self.now) {
            return self.model.broken(self.now, format!("the controller does not start: {why}"));
        }
        for number in 0..self.worlds.len() {
            let Some(controller) = &mut self.process.controller else { return };
            let name = self.worlds[number].name.clone();
            if controller.world(&name).is_err() {
                // What is not there is created, so it cannot be there.
                _ = controller.create_world(new_world(name.clone()));
            }
            if let Ok(world) = controller.world(&name) {
                self.worlds[number].comtree = world.comtrees[0];
            }
        }
        self.pump_controller();
    }

    /// A relay's items that are of worlds, not links.
    pub(crate) fn items_of_worlds(&self, relay: usize) -> usize {
        let items = self.machines[relay].side.items().keys();
        items.filter(|key| !matches!(key, ItemKey::Link(_))).count()
    }

    /// What does not stand now, with one more fault.
    pub(crate) fn standing(&self, link: Option<usize>, relay: Option<usize>) -> Vec<Option<usize>> {
        let relays = |of: usize| Some(of) == relay || !self.machines[of].is_up();
        let links = |of: usize| Some(of) == link || self.cut[of];
        self.graph.components(&Down { relays: &relays, links: &links })
    }
}

/// The parts of the network, and a world for each of the largest three of them.
fn realms(graph: &Graph) -> Result<(usize, Vec<Realm>), String> {
    let none = |_: usize| false;
    let of = graph.components(&Down { relays: &none, links: &none });
    let count = of.iter().flatten().max().map_or(0, |last| last + 1);
    let mut parts: Vec<Vec<usize>> = vec![Vec::new(); count];
    of.iter().enumerate().for_each(|(node, part)| parts[part.unwrap_or(0)].push(node));
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    let realm = |(number, nodes): (usize, Vec<usize>)| {
        let name = Name::new(&format!("world-{number}")).map_err(|error| error.to_string())?;
        Ok(Realm { name, comtree: Comtree(0), nodes })
    };
    let worlds = parts.into_iter().take(3).enumerate().map(realm).collect::<Result<_, String>>()?;
    Ok((count, worlds))
}

/// Draws who there is and where, and what each of them has measured.
fn people(graph: &Graph, worlds: &[Realm], count: usize, rng: &mut ChaCha8Rng) -> Vec<Participant> {
    let person = |number: usize| {
        let world = number % worlds.len();
        let nodes = &worlds[world].nodes;
        let home = nodes[rng.random_range(0..nodes.len())];
        let mut person = Participant::new(number, world, rng.random());
        let delays = graph.delays(home);
        let last_mile = Duration::from_millis(rng.random_range(1..8));
        let far = Duration::from_millis(100);
        person.delays = delays.iter().map(|delay| last_mile + delay.unwrap_or(far)).collect();
        let mut near: Vec<usize> = nodes.clone();
        near.sort_by_key(|node| (person.delays[*node], *node));
        near.truncate(8);
        person.near = near;
        person
    };
    (0..count).map(person).collect()
}

fn new_world(name: Name) -> NewWorld {
    NewWorld {
        name,
        comtrees: 1,
        channels: Vec::new(),
        levels: 1,
        mode: Mode::Immediate,
        downlink: Downlink::Member,
        default: MEMBER,
        core: Core::Center,
    }
}
