//! Everything that a seed decides before the first datagram.

use super::budgets::{self, Said};
use super::config::{OverlayConfig, OverlaySabotage};
use super::flooded::{self, Flooded};
use super::important;
use super::meshes::{draw_mesh_reloads, join_threads};
use super::roles::{Reload, draw_reloads};
use super::shape::{Core, Links, Node, Shape, Tree, draw};
use super::shaping::{self, Shaped};
use crate::flood::{FLOODED, Setting};
use crate::network::LinkModel;
use crate::sabotage::Sabotage;
use crate::scenario::{Stream, stream};
use canopy_relay::{Budget, Mode};
use canopy_session::PacketsPerKey;
use canopy_wire::{Downlink, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// What the network is like in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Clean,
    Lossy,
    Reordering,
    Duplicating,
    /// A little of everything.
    Storm,
}

/// What breaks for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Element {
    Relay(usize),
    /// By its number in [`Links`].
    Link(usize),
}

/// A relay that stops or a link that is cut, and comes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) element: Element,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

/// A relay whose parent on a comtree is succeeded by another, as planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    /// By its number.
    pub(crate) tree: usize,
    pub(crate) relay: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) at: Time,
}

/// What participants do.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// Groups of each comtree.
    pub(crate) groups: u32,
    /// How many of them one wants, at most.
    pub(crate) wants: usize,
    /// Milliseconds between changes of what one wants.
    pub(crate) choose_ms: Range<u64>,
    /// Milliseconds between updates of one participant.
    pub(crate) publish_ms: Range<u64>,
    /// The share of updates that go to one participant.
    pub(crate) unicast: f64,
    /// The longest payload.
    pub(crate) longest: usize,
    /// Milliseconds between moves to another relay; none if they stay.
    pub(crate) roam_ms: Option<Range<u64>>,
}

impl Habits {
    /// Much is said of few things, so that what does not hold everything holds some of each.
    fn speak_much(&mut self, is_steady: bool) {
        if is_steady {
            (self.roam_ms, self.choose_ms) = (None, LONGEST_RUN_MS..LONGEST_RUN_MS + 1);
        }
        self.groups = self.groups.min(FEW_GROUPS);
        self.wants = self.groups as usize;
        self.publish_ms = 50..130;
        self.unicast = self.unicast.min(0.05);
        self.longest = self.longest.min(120);
    }
}

/// How long things may take before they count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// From the acknowledgement of a subscription until every relay has heard of it.
    pub(crate) settle: Duration,
    /// From an update's publication until its last delivery.
    pub(crate) deliver: Duration,
    /// From the end of a fault until what it broke is mended.
    pub(crate) recover: Duration,
    /// From when a participant vanishes until no relay sends it anything.
    pub(crate) forget: Duration,
}

/// All that is fixed about a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) links: Links,
    pub(crate) trees: Vec<Tree>,
    /// Data threads of each relay.
    pub(crate) threads: Vec<u16>,
    /// For each link: its data thread, and whether the relay with the smaller number calls.
    pub(crate) calls: Vec<(u16, bool)>,
    pub(crate) participants: usize,
    pub(crate) habits: Habits,
    pub(crate) weather: Weather,
    /// The participants' access paths, then the links between relays.
    pub(crate) wires: Vec<[LinkModel; 2]>,
    pub(crate) downlink: Downlink,
    /// How many packets a key of a session or of a link seals.
    pub(crate) packets_per_key: PacketsPerKey,
    pub(crate) mode: Mode,
    /// What one turn of a data thread takes.
    pub(crate) turn: Duration,
    /// How long a data thread takes to wake when another has passed or told it something.
    pub(crate) wake_delay: Duration,
    pub(crate) late_copies: Duration,
    pub(crate) hop_limit: u8,
    pub(crate) faults: Vec<Fault>,
    pub(crate) moves: Vec<Move>,
    pub(crate) reloads: Vec<Reload>,
    /// Links that are shaped for a while.
    pub(crate) shaped: Vec<Shaped>,
    /// What participants may be sent, for those who may not be sent everything.
    pub(crate) budgets: Vec<Option<Budget>>,
    /// Which part of what it says each participant marks as important.
    pub(crate) important: Vec<f64>,
    /// Whether comtrees have lower levels first.
    pub(crate) levels_first: bool,
    /// A relay that some flood, and how relays are armed.
    pub(crate) flooded: Option<Flooded>,
    pub(crate) patience: Patience,
    /// From here on nothing is broken any more.
    pub(crate) calm_from: Time,
    /// From here on nothing is published any more.
    pub(crate) quiet_from: Time,
    /// Everyone leaves.
    pub(crate) leave_at: Time,
    pub(crate) end: Time,
    /// Whether everything has expired by the end.
    pub(crate) expires: bool,
}

/// Nothing new happens for so long before everyone leaves, so that all that is on its way arrives.
const QUIET: Duration = Duration::from_secs(3);
/// After everyone has left, everything has expired after so long.
const EXPIRY: Duration = Duration::from_secs(60);
/// The latest that a copy comes after the first.
const LATEST_COPY: Duration = Duration::from_secs(2);
/// How long what is sealed for one neighbour may be overtaken, with all that leaves in one flush.
const LATE: Duration = Duration::from_millis(100);
/// How long a link is down at most that is not called anew.
const FOUND_DOWN: Duration = Duration::from_secs(5);
/// How long it takes until what was asked for is asked again, where that was lost.
const REPEATS: Duration = Duration::from_secs(4);
/// Packets that are sealed beside updates in that time: signs of life, and what is asked for.
const LATE_SLACK: u64 = 24;
/// Updates reach so many relays, more than any way is long.
const FAR: u8 = 64;
/// In a circle they go around this often at most.
const AROUND: u8 = 12;
/// Where much is said, the most participants, and the most groups of a comtree.
const FEW_PARTICIPANTS: u32 = 16;
const FEW_GROUPS: u32 = 3;
/// Nobody changes its mind in a run.
const LONGEST_RUN_MS: u64 = 1_000_000;
/// Copies of one relay's sessions and those who come back.
const MOST_PARTICIPANTS: u32 = 400;

impl Scenario {
    pub(crate) fn draw(config: &OverlayConfig) -> Scenario {
        let rng = &mut stream(config.seed, Stream::Overlay);
        let relays = config.relays as usize;
        let (links, mut trees) = draw(relays, rng);
        let links = cycle(config, links, &mut trees);
        let drawn = (config.relays * rng.random_range(3..9)).clamp(6, MOST_PARTICIPANTS);
        let is_shaped = shaping::is_drawn(config);
        let has_budgets = budgets::is_drawn(config, is_shaped);
        let drawn = if is_shaped || has_budgets { drawn.min(FEW_PARTICIPANTS) } else { drawn };
        let participants = config.participants.unwrap_or(drawn).max(1) as usize;
        let is_sabotaged = config.sabotage.is_some();
        let weather = match config.link_loss {
            Some(_) => Weather::Lossy,
            None if is_sabotaged || asks_for_roles(config) => Weather::Clean,
            None => draw_weather(rng),
        };
        let wires = draw_wires(weather, [participants, links.ends().len()], config.link_loss, rng);
        let leave_at = Time::from_millis(u64::from(config.seconds.max(4)) * 1000);
        let calm = Duration::from_secs(12).min(leave_at.since(Time::ZERO) / 2);
        let calm_from = leave_at - calm;
        let is_whole = is_sabotaged || asks_for_roles(config) || config.link_loss.is_some();
        let breaks = !is_whole && rng.random_bool(0.4);
        let expires = config.expiry.unwrap_or(rng.random_bool(0.2));
        let mut scenario = Scenario {
            threads: (0..relays).map(|_| draw_threads(relays, rng)).collect(),
            calls: links.ends().iter().map(|_| (rng.random_range(0..4), rng.random())).collect(),
            participants,
            habits: draw_habits(rng),
            weather,
            wires,
            downlink: match config.sabotage {
                // A seal would stop most of what it does.
                Some(OverlaySabotage::Access(_)) => Downlink::None,
                _ => Downlink::Member,
            },
            packets_per_key: PacketsPerKey::PROTOCOL,
            mode: draw_mode(rng),
            turn: Duration::from_micros(rng.random_range(10..200)),
            wake_delay: Duration::from_micros(rng.random_range(1..100)),
            late_copies: match weather {
                Weather::Duplicating => LATEST_COPY,
                _ => Duration::ZERO,
            },
            hop_limit: if is_cycle(config) { AROUND } else { FAR },
            faults: if breaks { draw_faults(relays, &links, calm_from, rng) } else { Vec::new() },
            moves: Vec::new(),
            reloads: Vec::new(),
            shaped: Vec::new(),
            budgets: vec![None; participants],
            important: vec![0.0; participants],
            levels_first: false,
            flooded: None,
            patience: Patience::default(),
            calm_from,
            quiet_from: leave_at - QUIET.min(calm / 2),
            leave_at,
            end: leave_at + if expires { EXPIRY } else { Duration::from_millis(500) },
            expires,
            links,
            trees,
        };
        scenario.draw_limits(config, (is_shaped, has_budgets));
        let may_move = !is_sabotaged && !is_shaped && !asks_for_roles(config);
        if may_move && scenario.faults.is_empty() && !scenario.loses() {
            scenario.moves = draw_moves(&scenario, &mut stream(config.seed, Stream::Moves));
        }
        scenario.draw_roles(config);
        scenario.draw_short_keys(config);
        scenario.patience = scenario.patience();
        scenario
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.leave_at.as_nanos() / 1_000_000_000
    }

    /// Updates a second that go before all others, at most: those for one participant's eyes, and what is important.
    pub(crate) fn urgent_a_second(&self) -> u64 {
        let each_second = self.participants as u64 * 1000 / self.habits.publish_ms.start;
        let unicasts = (each_second as f64 * self.habits.unicast).ceil() as u64;
        let each_second = 1e3 / self.habits.publish_ms.start as f64;
        let important = self.important.iter().sum::<f64>() * each_second;
        unicasts + important.ceil() as u64
    }

    /// Whether anybody may be sent so much only.
    pub(crate) fn has_budgets(&self) -> bool {
        self.budgets.iter().any(Option::is_some)
    }

    /// Whether relays ask how much paths bear. They do not where links are shaped, somebody has a budget, or turns take
    /// long, so that all that is left out has its reason.
    pub(crate) fn asks_paths(&self) -> bool {
        !self.is_thinned() && self.flooded.is_none()
    }

    /// Whether relays leave out updates where a link or a budget does not hold them.
    pub(crate) fn is_thinned(&self) -> bool {
        self.has_budgets() || !self.shaped.is_empty()
    }

    /// The wire of a link.
    pub(crate) fn wire_of_link(&self, link: usize) -> usize {
        self.participants + link
    }

    /// What does not hold all that is said: shaped links, and budgets; and who says far more than it may.
    fn draw_limits(&mut self, config: &OverlayConfig, (is_shaped, has_budgets): (bool, bool)) {
        if is_shaped || has_budgets {
            let is_steady = stream(config.seed, Stream::Steady).random_bool(0.5);
            self.habits.speak_much(is_steady);
        }
        if important::is_drawn(config, is_shaped || has_budgets) {
            self.important = important::draw(config.seed, self.participants);
        }
        let is_drawn =
            stream(config.seed, Stream::Levels).random_bool(0.5) && config.sabotage.is_none();
        self.levels_first = (is_shaped || has_budgets) && config.levels_first.unwrap_or(is_drawn);
        if is_shaped {
            self.shape_links(config);
        }
        if has_budgets {
            let said = Said {
                participants: self.participants,
                comtrees: self.peaceful().len(),
                groups: self.habits.groups.into(),
                urgent_a_second: self.urgent_a_second(),
                longest: self.habits.longest,
            };
            self.budgets = budgets::draw(config.seed, &said);
            let calm = self.leave_at.since(self.calm_from);
            self.quiet_from = self.leave_at - (QUIET + budgets::WAITS).min(calm / 2);
        }
        if flooded::is_drawn(config) {
            self.draw_floods(config);
        }
    }

    /// Links are shaped for a while.
    fn shape_links(&mut self, config: &OverlayConfig) {
        let habits = &self.habits;
        let setting = shaping::Setting {
            links: self.links.ends().len(),
            flows: self.participants as u64 * u64::from(habits.groups),
            urgent: self.urgent_a_second(),
            longest: habits.longest,
            calm_from: self.calm_from,
        };
        self.shaped = shaping::draw(config.seed, &setting);
    }

    /// A relay is flooded, on a comtree of its own or on the first.
    fn draw_floods(&mut self, config: &OverlayConfig) {
        let mut tree = self.trees[0].clone();
        tree.comtree = FLOODED;
        let slowest = self.wires.iter().flatten().map(|way| way.worst()).max();
        let setting = Setting {
            sabotage: flooded::sabotage_of(config),
            lets_in: true,
            calm_from: self.calm_from,
            publish_ms: self.habits.publish_ms.start,
            longest: self.habits.longest,
            held_back: slowest.unwrap_or_default(),
        };
        let relays: Vec<usize> = self.trees[0].relays().collect();
        let flooded = Flooded::draw(config.seed, &relays, &setting);
        let up = flooded.floods.budgets.member;
        for budget in self.budgets.iter_mut().flatten() {
            (budget.up_packets, budget.up_bits) = (up.up_packets, up.up_bits);
        }
        self.trees.push(tree);
        self.flooded = Some(flooded);
    }

    /// The comtrees of participants, which are all but that of who floods.
    pub(crate) fn peaceful(&self) -> &[Tree] {
        let count = self.trees.iter().filter(|tree| tree.comtree != FLOODED).count();
        &self.trees[..count]
    }

    /// In most scenarios a key seals few packets: no fewer than twice what may come late on a link, or be
    /// lost in a row, which is most where one is cut and not found down before it is back.
    fn draw_short_keys(&mut self, config: &OverlayConfig) {
        let rng = &mut stream(config.seed, Stream::Keys);
        let (is_drawn, times) = (rng.random_bool(0.7), [1, 1, 2, 4][rng.random_range(0..4)]);
        let is_asked_for = config.sabotage == Some(OverlaySabotage::CountAgain);
        let is_steady = config.link_loss.is_none() && config.sabotage.is_none();
        if is_asked_for || (is_drawn && is_steady) {
            let publish_ms = (self.habits.publish_ms.start + self.habits.publish_ms.end) / 2;
            let each_second = self.participants as u64 * 1000 / publish_ms;
            let late = if self.faults.is_empty() { LATE } else { FOUND_DOWN };
            let late = each_second * late.as_millis() as u64 / 1000;
            self.packets_per_key = PacketsPerKey::at_least((late + LATE_SLACK) * 2 * times);
        }
    }

    /// In most scenarios roles change, in some of them while links are full.
    fn draw_roles(&mut self, config: &OverlayConfig) {
        let rng = &mut stream(config.seed, Stream::Roles);
        let (is_drawn, is_full) = (rng.random_bool(0.7), rng.random_bool(0.4));
        let is_steady = config.link_loss.is_none() && config.sabotage.is_none();
        let is_asked_for = asks_for_roles(config);
        let is_steady = is_steady && self.shaped.is_empty();
        let may_change = is_drawn && is_steady && config.roles_change.is_none();
        if !is_asked_for && !may_change {
            return;
        }
        if is_asked_for || (is_full && self.is_clean() && self.moves.is_empty()) {
            self.fill_links(rng);
        }
        let moved = self.moves.iter().map(|one| one.tree).collect();
        self.reloads = draw_reloads(&self.trees, &moved, config.sabotage, rng);
        // The model knows one way of an update, on which it may be lost.
        if self.moves.is_empty() && self.faults.is_empty() && !self.loses() {
            join_threads(&self.trees, &self.links, &mut self.calls);
            draw_mesh_reloads(&self.trees, &mut self.reloads, config.sabotage, rng);
        }
    }

    /// Whether relays join and leave meshed cores.
    pub(crate) fn meshes_change(&self) -> bool {
        self.reloads.iter().any(|reload| self.trees[reload.tree].core == Core::Mesh)
    }

    /// Whether an update may take another way than the last one: then the ways of unicast and of groups change
    /// one after the other.
    pub(crate) fn ways_change(&self) -> bool {
        !self.moves.is_empty() || self.meshes_change()
    }

    /// Links between relays take long and much is published, so that in every moment of a change there
    /// is something on its way that could be lost.
    fn fill_links(&mut self, rng: &mut ChaCha8Rng) {
        self.habits.publish_ms = 100..300;
        // While a meshed core changes, what comes directly waits half a second for what comes over two links.
        let is_meshed = self.trees.iter().any(|tree| tree.core == Core::Mesh);
        let longest = if is_meshed { 140 } else { 200 };
        for ways in &mut self.wires[self.participants..] {
            let delay = Duration::from_millis(rng.random_range(60..longest));
            *ways = [0, 1].map(|_| draw_way(Weather::Clean, delay, rng));
        }
    }

    /// Whether nothing may keep an update from whoever is to have it.
    pub(crate) fn is_clean(&self) -> bool {
        self.weather == Weather::Clean && self.faults.is_empty() && !self.is_crowded()
    }

    /// Whether somebody floods a lane by which participants' updates come: its receive buffer may have no room for them.
    fn is_crowded(&self) -> bool {
        let is_its = |flooded: &Flooded, tree: &Tree| flooded.floods_lane_of(tree.comtree);
        self.flooded.iter().any(|flooded| self.peaceful().iter().any(|tree| is_its(flooded, tree)))
    }

    /// How much longer an update takes at most where it passes a flooded relay.
    pub(crate) fn flooded_wait(&self) -> Duration {
        let waits = |flooded: &Flooded| {
            self.peaceful().iter().map(|tree| flooded.delays(tree.comtree)).max()
        };
        self.flooded.as_ref().and_then(waits).unwrap_or_default()
    }

    /// Whether datagrams vanish.
    pub(crate) fn loses(&self) -> bool {
        self.wires.iter().flatten().any(|way| way.loss > 0.0)
    }

    /// Whether the network keeps the order.
    pub(crate) fn keeps_order(&self) -> bool {
        // A late copy may be the only one that arrives where something is broken, or had no room for the first.
        let may_miss = !self.faults.is_empty() || self.flooded.is_some();
        let late = !self.late_copies.is_zero() && may_miss;
        !late && !self.wires.iter().flatten().any(LinkModel::reorders)
    }

    /// The longest way of a comtree, in links.
    fn longest_way(&self) -> usize {
        self.trees.iter().map(|tree| tree.diameter(&self.links)).max().unwrap_or(0)
    }

    fn patience(&self) -> Patience {
        let slowest = self.wires.iter().flatten().map(LinkModel::worst).max().unwrap_or_default();
        let waits = match self.mode {
            Mode::Immediate => Duration::ZERO,
            Mode::Periodic { tick } => tick + self.mode.longest_unread(),
        };
        // A parent that succeeds another may be farther from the core, and the relay keeps back what the
        // other one may still bring.
        let moves = self.ways_change();
        let hops = self.longest_way() as u32 * (1 + u32::from(moves)) + 2;
        let (kept, succession) = match moves {
            true => (Duration::from_secs(1), Duration::from_secs(3)),
            false => (Duration::ZERO, Duration::ZERO),
        };
        // A relay may take a turn in each of two data threads, after those under way.
        let hop = slowest + waits + (self.turn + self.wake_delay) * 6;
        let deliver = hop * hops + Duration::from_millis(50) + kept;
        let repeats = match self.weather {
            Weather::Lossy | Weather::Storm => REPEATS,
            _ if self.is_crowded() => REPEATS,
            Weather::Clean | Weather::Reordering | Weather::Duplicating => Duration::ZERO,
        };
        let repeats = repeats + self.flooded_wait();
        Patience {
            settle: deliver * 2 + repeats + succession,
            deliver: deliver + self.late_copies,
            recover: deliver * 2 + repeats + Duration::from_secs(6),
            forget: EXPIRY,
        }
    }
}

/// Whether roles have to change.
fn asks_for_roles(config: &OverlayConfig) -> bool {
    let is_sabotaged = config.sabotage.is_some_and(OverlaySabotage::is_of_roles);
    is_sabotaged || config.roles_change == Some(true)
}

fn is_cycle(config: &OverlayConfig) -> bool {
    config.sabotage == Some(OverlaySabotage::Cycle)
}

/// For the sabotage: a line of relays, all of them core, of which the second and the last are joined.
/// The first is outside the circle: whatever comes back to its publisher's own relay ends there.
fn cycle(config: &OverlayConfig, mut links: Links, trees: &mut Vec<Tree>) -> Links {
    if !is_cycle(config) {
        return links;
    }
    trees.truncate(1);
    let tree = &mut trees[0];
    tree.core = Core::All;
    tree.shape = Shape::Line;
    for (relay, node) in tree.nodes.iter_mut().enumerate() {
        if let Some(node) = node {
            (node.parent, node.in_core, node.site) = (relay.checked_sub(1), true, relay as u16 + 1);
        }
    }
    let last = tree.nodes.len() - 1;
    (1..=last).for_each(|relay| links.add(relay - 1, relay));
    if last > 2 {
        links.add(1, last);
        tree.shortcut = Some([1, last]);
    }
    links
}

fn draw_threads(relays: usize, rng: &mut ChaCha8Rng) -> u16 {
    // Data threads take a few megabytes each.
    let one_in = (relays / 6).max(2);
    if rng.random_range(0..one_in) == 0 { rng.random_range(2..=3) } else { 1 }
}

fn draw_mode(rng: &mut ChaCha8Rng) -> Mode {
    if rng.random_bool(0.6) {
        return Mode::Immediate;
    }
    Mode::Periodic { tick: Duration::from_millis([10, 20, 50][rng.random_range(0..3)]) }
}

fn draw_weather(rng: &mut ChaCha8Rng) -> Weather {
    match rng.random_range(0..8) {
        0..4 => Weather::Clean,
        4 => Weather::Lossy,
        5 => Weather::Reordering,
        6 => Weather::Duplicating,
        _ => Weather::Storm,
    }
}

/// The access paths of so many participants, then so many links.
fn draw_wires(
    weather: Weather,
    [participants, links]: [usize; 2],
    link_loss: Option<f64>,
    rng: &mut ChaCha8Rng,
) -> Vec<[LinkModel; 2]> {
    let is_slow = rng.random_bool(0.2);
    let mut wires: Vec<_> =
        (0..participants + links).map(|_| draw_wire(weather, is_slow, rng)).collect();
    if let Some(loss) = link_loss {
        wires[participants..].iter_mut().flatten().for_each(|way| way.loss = loss);
    }
    wires
}

fn draw_wire(weather: Weather, is_slow: bool, rng: &mut ChaCha8Rng) -> [LinkModel; 2] {
    let longest = if is_slow { 20_000 } else { 2_000 };
    let delay = Duration::from_micros(rng.random_range(50..longest));
    [0, 1].map(|_| draw_way(weather, delay, rng))
}

fn draw_way(weather: Weather, delay: Duration, rng: &mut ChaCha8Rng) -> LinkModel {
    let jitter = delay / 4;
    let steady = LinkModel { delay, jitter, ..LinkModel::default() };
    let detour = Duration::from_millis(rng.random_range(5..30));
    let loss = rng.random_range(0.001..0.03);
    let share = rng.random_range(0.01..0.1);
    match weather {
        Weather::Clean => steady,
        Weather::Lossy => LinkModel { loss, ..steady },
        Weather::Reordering => LinkModel { reorder: share, detour, ..steady },
        Weather::Duplicating => LinkModel { duplicate: share, ..steady },
        Weather::Storm => LinkModel { loss, reorder: share, detour, duplicate: share, ..steady },
    }
}

fn draw_habits(rng: &mut ChaCha8Rng) -> Habits {
    let groups = rng.random_range(1..40);
    let fastest = rng.random_range(300..1500);
    let restless = rng.random_range(3_000..15_000);
    let fickle = rng.random_range(500..5_000);
    Habits {
        groups,
        wants: rng.random_range(1..=groups.min(6)) as usize,
        choose_ms: fickle..fickle * 4,
        publish_ms: fastest..fastest * 3,
        unicast: [0.0, 0.1, 0.2, 0.5][rng.random_range(0..4)],
        longest: if rng.random_bool(0.1) { canopy_wire::MAX_UPDATE } else { 120 },
        roam_ms: rng.random_bool(0.6).then_some(restless..restless * 3),
    }
}

fn draw_faults(relays: usize, links: &Links, calm_from: Time, rng: &mut ChaCha8Rng) -> Vec<Fault> {
    let count = rng.random_range(1..=2 + relays / 8);
    // An element breaks once: faults of one that overlap would be one.
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..count {
        let is_link = !links.ends().is_empty() && rng.random_bool(0.5);
        let element = match is_link {
            true => Element::Link(rng.random_range(0..links.ends().len())),
            false => Element::Relay(rng.random_range(0..relays)),
        };
        let first = 3_000;
        let last = (calm_from.as_nanos() / 1_000_000).saturating_sub(2_500).max(first + 1);
        let from = Time::from_millis(rng.random_range(first..last));
        let until = from + Duration::from_millis(rng.random_range(10..2_500));
        if faults.iter().all(|fault| fault.element != element) {
            faults.push(Fault { element, from, until });
        }
    }
    faults
}

/// In two of three runs: one relay after the other gets another parent.
fn draw_moves(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Vec<Move> {
    let mut moves = Vec::new();
    if rng.random_range(0..3) == 0 {
        return moves;
    }
    let links = &scenario.links;
    for (number, tree) in scenario.trees.iter().enumerate() {
        // The relays of a site are a subtree, and stay one.
        let sites: BTreeSet<_> = tree.nodes.iter().flatten().map(|node| node.site).collect();
        if sites.len() < tree.relays().count() {
            continue;
        }
        let mut tree = tree.clone();
        let mut at = Time::from_millis(rng.random_range(3_000..6_000));
        while at < scenario.calm_from {
            let thread = |relay: usize, other: usize| {
                let (link, _) = links.between(relay, other)?;
                Some(scenario.calls[link].0 % scenario.threads[relay])
            };
            let mut choices = Vec::new();
            for relay in tree.relays() {
                let Some(Node { parent: Some(from), in_core: false, .. }) = tree.nodes[relay]
                else {
                    continue;
                };
                let may = |to: &usize| {
                    let is_there = tree.nodes[*to].is_some() && *to != from;
                    let is_same = thread(relay, *to) == thread(relay, from);
                    is_there && is_same && !tree.is_below(*to, relay)
                };
                let others = links.neighbours(relay).filter(may);
                choices.extend(others.map(|to| (relay, from, to)));
            }
            if choices.is_empty() {
                break;
            }
            let (relay, from, to) = choices[rng.random_range(0..choices.len())];
            if let Some(node) = &mut tree.nodes[relay] {
                node.parent = Some(to);
            }
            moves.push(Move { tree: number, relay, from, to, at });
            at = at + Duration::from_millis(rng.random_range(5_000..8_000));
        }
    }
    moves
}

/// Whether a sabotage is of this kind, on the way to a participant.
pub(crate) fn access_sabotage(sabotage: Option<OverlaySabotage>) -> Option<Sabotage> {
    match sabotage {
        Some(OverlaySabotage::Access(sabotage)) => Some(sabotage),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::run_overlay;

    /// Who is below a mesh hears all of it over each of its relays, and both may bring the same for a while.
    #[test]
    fn relays_move_from_one_relay_of_a_mesh_to_another_and_nothing_is_lost() {
        for (relays, seed) in [(8, 247), (6, 266), (12, 370), (12, 762), (11, 2490), (12, 2624)] {
            let config = OverlayConfig::new(relays, seed);
            let config = OverlayConfig {
                shaping: Some(false),
                budgets: Some(false),
                floods: Some(false),
                ..config
            };
            let scenario = Scenario::draw(&config);
            let moved = scenario.moves.iter().filter(|one| is_along_mesh(&scenario, one)).count();
            assert!(moved > 1, "seed {seed} moves none along a mesh");
            let report = run_overlay(&config);
            assert_eq!(report.verdict(), Ok(()), "seed {seed}");
            assert!(report.parents_succeeded >= moved as u32, "seed {seed}: {report:?}");
        }
    }

    #[test]
    fn links_are_shaped_in_some_seeds() {
        let is_shaped =
            |seed: &u64| !Scenario::draw(&OverlayConfig::new(3, *seed)).shaped.is_empty();
        assert!((3..20).contains(&(0..40).filter(is_shaped).count()));
    }

    #[test]
    fn some_participants_have_budgets_in_some_seeds() {
        let has_budgets = |seed: &u64| Scenario::draw(&OverlayConfig::new(3, *seed)).has_budgets();
        assert!((3..20).contains(&(0..40).filter(has_budgets).count()));
    }

    fn is_along_mesh(scenario: &Scenario, of: &Move) -> bool {
        let tree = &scenario.trees[of.tree];
        let in_core = |at: usize| tree.nodes[at].as_ref().is_some_and(|node| node.in_core);
        tree.core == Core::Mesh && in_core(of.from) && in_core(of.to)
    }
}
