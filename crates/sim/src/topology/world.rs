//! The run: one queue of events in virtual time, and what each of them does.

use super::config::{TopologyConfig, TopologySabotage};
use super::controller::{Channel, Process};
use super::deed::Deed;
use super::drawing;
use super::excess::Excess;
use super::faults::{self, Planned};
use super::graph::{Down, Graph};
use super::load::Loading;
use super::machine::Machine;
use super::model::Model;
use super::participant::Participant;
use super::report::{Scene, Told, TopologyReport};
use crate::host::UNIX_ZERO;
use crate::overlay::queue::Queue;
use crate::scenario::{Stream, stream};
use crate::trace::Trace;
use canopy_control::signal::Measure;
use canopy_control::{ItemKey, Mode, Name, Settings};
use canopy_plan::{Network, Rate};
use canopy_relay::{Budgets, PathShare, Trust};
use canopy_token::{KeySet, Revocations, SigningKey};
use canopy_wire::{Comtree, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The world is looked at this often.
const JUDGE_EVERY: Duration = Duration::from_millis(500);
/// Nothing fails before this, milliseconds, and nothing in the last part of the run.
const SETTLES_IN: u64 = 6_000;
const CALM: u64 = 9_000;
const EXCHANGED_IN: u64 = 20_000;
/// How long a comtree keeps its tree before the controller looks for a better one, seconds.
const IMPROVED_EVERY: std::ops::Range<u64> = 6..15;
/// Ticks of worlds in periodic mode, milliseconds; and how long they make an update wait on its way at most, in as many
/// relays as there are on a long way.
const TICKS: std::ops::RangeInclusive<u16> = 5..=50;
const TICKS_ON_A_WAY: u16 = 400;
const MOST_ON_A_WAY: usize = 24;
/// After everyone has left, the run goes on for so long.
const ENDS_IN: Duration = Duration::from_secs(4);

/// What a link bears each way.
pub(crate) const LINK: Rate = Rate { bits: 100e6, packets: 50e3 };

/// A datagram on its way.
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Rc<[u8]>,
    /// Which link it goes over, if it goes between relays.
    pub(crate) link: Option<usize>,
}

/// Something that happens. A relay's, and the controller's, happen in the life for which they were
/// planned.
pub(crate) enum Step {
    Arrive(Datagram),
    /// With the time for which it was asked, which may have been over by then.
    Turn(usize, u32, Time),
    Connect(usize, u32),
    RelayTimer(usize, u32),
    Applied(usize, u32),
    /// A relay has measured what it was asked to.
    Measured(usize, u32, Measure),
    Look(usize, u32),
    /// A relay looks whether a detour is due.
    Detours(usize, u32),
    /// It tells others of its links.
    Flood(usize, u32),
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
    /// The operator does something.
    Operate(Deed),
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
    pub(crate) mode: Mode,
    /// The nodes from which it is joined.
    pub(crate) nodes: Vec<usize>,
    /// Whether links have joined all of them.
    pub(crate) is_joined: bool,
    /// Since when it is on its way to another tree, as far as was looked.
    pub(crate) moves_since: Option<Time>,
}

impl Realm {
    /// 0 in immediate mode.
    fn tick_ms(&self) -> u16 {
        match self.mode {
            Mode::Immediate => 0,
            Mode::Periodic(tick_ms) => tick_ms,
        }
    }

    pub(crate) fn tick(&self) -> Duration {
        Duration::from_millis(self.tick_ms().into())
    }

    /// How long ticks make relays wait at most on the longest way, one after the other.
    pub(crate) fn waits(&self) -> Duration {
        self.tick() * self.relays_on_a_way()
    }

    fn draw_mode(&mut self, is_periodic: Option<bool>, rng: &mut ChaCha8Rng) {
        let (is_drawn, tick_ms) = (rng.random_bool(0.4), rng.random_range(TICKS));
        if is_periodic.unwrap_or(is_drawn) {
            let most = TICKS_ON_A_WAY / self.relays_on_a_way() as u16;
            self.mode = Mode::Periodic(tick_ms.min(most));
        }
    }

    fn relays_on_a_way(&self) -> u32 {
        self.nodes.len().min(MOST_ON_A_WAY) as u32
    }
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
    pub(crate) excess: Excess,
    pub(crate) faults: Vec<Planned>,
    /// Whether the controller looks for better trees.
    pub(crate) improves: bool,
    /// Whether there is an operator, what it draws from, and which relay it drains.
    pub(crate) operates: bool,
    pub(crate) draws: ChaCha8Rng,
    pub(crate) draining: Option<usize>,
    pub(crate) loading: Loading,
    pub(crate) calm_from: Time,
    pub(crate) leave_at: Time,
    pub(crate) is_over: bool,
    /// When the controller was settled last, as far as was looked.
    pub(crate) settled_at: Time,
    /// Whether each link is cut.
    pub(crate) cut: Vec<bool>,
    /// Whether the controller has a link there that can be used, as far as was looked; given links are there, unless
    /// they are being removed.
    pub(crate) linked: Vec<bool>,
    /// What passed over each link in this second, each way.
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
    // Between many relays there are more ways than can be looked at.
    let most = if config.degree > 0 { 300 } else { 4_000 };
    let nodes = network.nodes().len();
    if nodes > most {
        return Err(format!(
            "{}: at most {most} nodes can be simulated so, and it has {nodes}",
            config.file
        ));
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
        ticks_ms: world.worlds.iter().map(Realm::tick_ms).collect(),
        load: world.config.load,
    };
    let counts = (world.model.tally, world.told);
    let problems = std::mem::take(&mut world.model.faults);
    Ok(TopologyReport::new(config, scene, counts, world.trace.hash(), problems))
}

/// Whether the controller looks for better trees, and whether there is an operator; and when updates leave in each
/// world. Under load nothing moves; only where it is drawn worlds may be in periodic mode.
fn draw_switches(
    config: &TopologyConfig,
    worlds: &mut [Realm],
    draws: &mut ChaCha8Rng,
) -> [bool; 2] {
    let asked = |asked: Option<bool>| config.load.map_or(asked, |_| Some(false));
    let switches = [config.improve, config.operator]
        .map(|is_on| asked(is_on).unwrap_or(draws.random_bool(0.5)));
    let periodic = if config.draws_load { config.periodic } else { asked(config.periodic) };
    worlds.iter_mut().for_each(|world| world.draw_mode(periodic, draws));
    switches
}

/// What has to arrive. Of what is sent to groups as a load, a little may give place to what is newer.
fn model(
    config: &TopologyConfig,
    people: &[Participant],
    worlds: &[Realm],
    span: Duration,
) -> Model {
    let of: Vec<usize> = people.iter().map(|person| person.world).collect();
    let waits = worlds.iter().map(Realm::waits).collect();
    Model::new(&of, waits, span, config.load.is_some())
}

/// How the controller does its work.
fn settings(config: &TopologyConfig, improves: bool, draws: &mut ChaCha8Rng) -> Settings {
    let improve = match improves {
        true => Duration::from_secs(draws.random_range(IMPROVED_EVERY)),
        false => Duration::ZERO,
    };
    let share = config.load.map_or(Settings::default().share, |load| load.share);
    Settings { degree: config.degree, improve, share, ..Settings::default() }
}

/// The relays, who take the tokens of this issuer.
fn machines(
    config: &TopologyConfig,
    relays: usize,
    issuer: &SigningKey,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Machine>, String> {
    let keys = KeySet::new([issuer.public().clone()], &[], UNIX_ZERO);
    let keys = keys.map_err(|error| error.to_string())?;
    let trust = Arc::new(Trust { keys, revoked: Revocations::new(1) });
    let mut budgets = Budgets::default();
    if config.load.is_some() {
        // A relay takes paths for narrow until it knows them, and would thin what was let in.
        budgets.paths = PathShare::Off;
    }
    let machine = |number| {
        let rng = ChaCha8Rng::from_seed(rng.random());
        Machine::new(number, (Arc::clone(&trust), budgets), rng)
    };
    Ok((0..relays).map(machine).collect())
}

impl<'a> World<'a> {
    fn new(
        network: &Network,
        config: &TopologyConfig,
        trace: Trace<'a>,
    ) -> Result<World<'a>, String> {
        let given = Graph::new(network);
        let graph = if config.degree > 0 { given.closure() } else { given };
        let mut rng = stream(config.seed, Stream::Topology);
        let issuer = SigningKey::from_seed(rng.random());
        let (components, mut worlds) = realms(&graph)?;
        let sizes: Vec<usize> = worlds.iter().map(|world| world.nodes.len()).collect();
        let config = &drawing::with_load(config, &sizes)?;
        let relays = graph.names.len();
        let machines = machines(config, relays, &issuer, &mut rng)?;
        let mut draws = stream(config.seed, Stream::Operator);
        let [improves, operates] = draw_switches(config, &mut worlds, &mut draws);
        let wanted = config.participants.map_or_else(
            || rng.random_range(6..=24.min(6 + relays)),
            |participants| participants as usize,
        );
        let people = people(&graph, &worlds, wanted, &mut rng);
        let end = u64::from(config.seconds) * 1_000;
        let calm = end.saturating_sub(CALM);
        let are_given = config.degree == 0;
        let mut faults = faults::draw(&graph, are_given, (settles_in(config), calm), &mut rng);
        if config.load.is_some() {
            faults.clear();
        }
        let span = graph.span();
        let settings = settings(config, improves, &mut draws);
        Ok(World {
            config: config.clone(),
            now: Time::from_millis(1),
            model: model(config, &people, &worlds, span),
            span,
            process: Process::new(
                relays,
                Duration::from_millis(rng.random_range(0..3_000)),
                settings,
            ),
            channels: vec![Channel::default(); relays],
            issuer,
            tokens: 0,
            told: Told::default(),
            excess: Excess::default(),
            improves,
            operates,
            draws,
            draining: None,
            calm_from: Time::from_millis(calm),
            leave_at: Time::from_millis(end),
            is_over: false,
            settled_at: Time::ZERO,
            cut: vec![false; graph.edges.len()],
            linked: vec![are_given; graph.edges.len()],
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
            loading: Loading::default(),
        })
    }

    fn begin(&mut self) {
        self.start_controller();
        for relay in 0..self.machines.len() {
            self.start_relay(relay);
        }
        for number in 0..self.people.len() {
            // Whoever is refused under load does not ask again, so all links are up before.
            let after = if self.config.load.is_some() { 2_500 } else { 0 };
            let at = Time::from_millis(after + self.rng.random_range(1_500..4_000));
            self.at(at, Step::Come(number));
            self.at(at, Step::Publish(number));
            let at = Time::from_millis(self.rng.random_range(5_000..12_000));
            self.at(at, Step::Change(number));
        }
        for (number, planned) in self.faults.clone().into_iter().enumerate() {
            self.at(planned.from, Step::Break(number));
            self.at(planned.until, Step::Mend(number));
        }
        self.plan_deeds(settles_in(&self.config));
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
            Step::Measured(relay, life, asked) if lives(self, relay, life) => {
                self.measured(relay, &asked);
            }
            Step::Look(relay, life) if lives(self, relay, life) => self.look(relay),
            Step::Flood(relay, life) if lives(self, relay, life) => {
                self.flood(relay);
                let turn = self.machines[relay].next_turn();
                self.ask_for_turn(relay, turn);
            }
            Step::Detours(relay, life) if lives(self, relay, life) => {
                self.review_detours(relay);
                let turn = self.machines[relay].next_turn();
                self.ask_for_turn(relay, turn);
            }
            Step::Detours(..)
            | Step::Flood(..)
            | Step::Turn(..)
            | Step::Connect(..)
            | Step::RelayTimer(..)
            | Step::Applied(..)
            | Step::Measured(..)
            | Step::Look(..) => {}
            Step::ToController(relay, epoch, bytes) => {
                self.message_to_controller(relay, epoch, &bytes)
            }
            Step::ToRelay(relay, epoch, bytes) => {
                let is_current = self.channels[relay].epoch == epoch;
                if is_current && self.machines[relay].is_up() && !self.stalls() {
                    self.machines[relay].side.handle_message(&bytes);
                    self.flood(relay);
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
            Step::Operate(deed) => self.operate(deed),
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
        self.check_moves_end();
        self.check_load();
        self.is_over = true;
        for number in 0..self.people.len() {
            self.go(number);
        }
    }

    /// A relay's items that are of worlds, not links.
    pub(crate) fn items_of_worlds(&self, relay: usize) -> usize {
        let items = self.machines[relay].side.items().keys();
        items.filter(|key| !matches!(key, ItemKey::Link(_))).count()
    }

    /// What does not stand now, with one more fault.
    pub(crate) fn standing(&self, link: Option<usize>, relay: Option<usize>) -> Vec<Option<usize>> {
        let relays = |of: usize| Some(of) == relay || !self.machines[of].is_up();
        let links = |of: usize| Some(of) == link || self.cut[of] || !self.linked[of];
        self.graph.components(&Down { relays: &relays, links: &links })
    }
}

/// From when on things fail, milliseconds. Links that are proposed are made by chance at first, and exchanged once relays
/// have measured each other.
fn settles_in(config: &TopologyConfig) -> u64 {
    if config.degree > 0 { EXCHANGED_IN } else { SETTLES_IN }
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
        let mode = Mode::Immediate;
        Ok(Realm { name, comtree: Comtree(0), mode, nodes, is_joined: false, moves_since: None })
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
