//! The world of a run: one queue of events in virtual time, and what each of them does.

use super::config::{OverlayConfig, OverlaySabotage};
use super::flooders::{self, OverlayFlooder};
use super::important;
use super::keys::Keys;
use super::lately::Lately;
use super::machine::{self, Held, Machine, Sent};
use super::model::Model;
use super::participant::{Participant, participant_at};
use super::progress::Reloads;
use super::proofs::Proofs;
use super::queue::{Datagram, Queue, Step};
use super::scenario::{Element, Move, Scenario, access_sabotage};
use crate::flooder::OWN_GROUPS;
use crate::network::{Direction, Fate, Loss, Network};
use crate::pacing::Pacing;
use crate::sabotage::Saboteur;
use crate::scenario::{Stream, stream};
use crate::trace::{Tap, Trace};
use crate::world::updates_in;
use canopy_relay::{BranchRole, Counters};
use canopy_wire::{DropReason, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Between the moment when a parent was succeeded, the moment when it lets go, and the moment when the
/// relay does.
const LETS_GO_AFTER: Duration = Duration::from_millis(500);
/// The model judges, and the relays' tables are looked at, this often.
const JUDGE_EVERY: Duration = Duration::from_millis(500);

/// What happened, for the report.
#[derive(Default)]
pub(crate) struct Tallies {
    pub(crate) moves: u32,
    pub(crate) crashes: u32,
    pub(crate) relay_restarts: u32,
    pub(crate) link_cuts: u32,
    pub(crate) parents_succeeded: u32,
    pub(crate) joined_core: u32,
    pub(crate) left_core: u32,
    /// Those of them whose core was a mesh.
    pub(crate) joined_mesh: u32,
    pub(crate) left_mesh: u32,
    pub(crate) root_steps: u32,
    /// How long applications ran, all together.
    pub(crate) client_time: Duration,
    /// The most that one relay held.
    pub(crate) peak: Held,
    /// Datagrams that left relays for others.
    pub(crate) over_links: u32,
    /// Datagrams of those who flood, and updates of theirs that passed links.
    pub(crate) flooded: u64,
    pub(crate) flooded_over_links: u64,
}

pub(crate) struct World<'a> {
    pub(crate) config: OverlayConfig,
    pub(crate) scenario: Rc<Scenario>,
    pub(crate) now: Time,
    pub(crate) rng: ChaCha8Rng,
    /// Says what is marked as important.
    pub(crate) marks: ChaCha8Rng,
    pub(crate) participants: Vec<Participant>,
    pub(crate) model: Model,
    pub(crate) tallies: Tallies,
    pub(crate) keys: Keys,
    proofs: Proofs,
    pub(crate) has_left: bool,
    queue: Queue<Step>,
    pub(crate) network: Network,
    pub(crate) machines: Vec<Machine>,
    pub(crate) reloads: Reloads,
    /// Whether each link is cut.
    cut: Vec<bool>,
    /// What left over each shaped link.
    pub(crate) lately: Vec<Lately>,
    /// What those with budgets are sent.
    pub(crate) pacing: Pacing,
    pub(crate) flooders: Vec<OverlayFlooder>,
    pub(crate) trace: Trace<'a>,
    saboteur: Saboteur,
}

impl<'a> World<'a> {
    pub(crate) fn new(config: &OverlayConfig, tap: Tap<'a>) -> World<'a> {
        let scenario = Rc::new(Scenario::draw(config));
        let mut rng = stream(config.seed, Stream::World);
        let participants: Vec<_> = (0..scenario.participants)
            .map(|number| {
                let trees = scenario.peaceful();
                let tree = &trees[number % trees.len()];
                let relays: Vec<_> = tree.relays().collect();
                let relay = relays[rng.random_range(0..relays.len())];
                Participant::new(number, tree.comtree, relay)
            })
            .collect();
        let comtrees = participants.iter().map(|one| one.comtree);
        let mut host = stream(config.seed, Stream::Host);
        let machines = 0..scenario.threads.len();
        World {
            config: config.clone(),
            now: Time::from_millis(1),
            marks: important::marks(config.seed),
            model: Model::new(&scenario, comtrees),
            participants,
            tallies: Tallies::default(),
            keys: Keys::new(&scenario),
            proofs: Proofs::default(),
            has_left: false,
            queue: Queue::default(),
            network: Network::new(stream(config.seed, Stream::Network), &scenario.wires),
            machines: machines
                .map(|number| {
                    let rng = ChaCha8Rng::from_seed(host.random());
                    Machine::new(number, &scenario, rng, access_sabotage(config.sabotage))
                })
                .collect(),
            reloads: Reloads::new(&scenario),
            cut: vec![false; scenario.links.ends().len()],
            lately: scenario.shaped.iter().map(|_| Lately::default()).collect(),
            pacing: Pacing::new(scenario.mode, scenario.asks_paths()),
            flooders: flooders::flooders(config, &scenario),
            trace: Trace::new(tap),
            saboteur: Saboteur::new(access_sabotage(config.sabotage)),
            rng,
            scenario,
        }
    }

    pub(crate) fn begin(&mut self) {
        for relay in 0..self.machines.len() {
            self.start(relay);
        }
        for participant in 0..self.participants.len() {
            let at = Time::from_millis(self.rng.random_range(200..2000));
            self.at(at, Step::Join(participant));
            self.at(at, Step::Choose(participant));
            self.at(at, Step::Publish(participant));
            self.plan_roam(participant);
        }
        for number in 0..self.scenario.faults.len() {
            let fault = self.scenario.faults[number];
            self.at(fault.from, Step::Break(number));
            self.at(fault.until, Step::Mend(number));
        }
        for number in 0..self.scenario.moves.len() {
            self.at(self.scenario.moves[number].at, Step::Succeed(number));
        }
        self.plan_reloads();
        self.plan_shaping();
        self.plan_floods();
        self.at(self.scenario.calm_from, Step::Heal);
        self.at(self.scenario.leave_at, Step::LeaveAll);
        self.at(self.now, Step::Judge);
    }

    pub(crate) fn at(&mut self, at: Time, step: Step) {
        self.queue.plan(at, step);
    }

    pub(crate) fn after(&mut self, wait: Duration, step: Step) {
        self.at(self.now + wait, step);
    }

    /// Does what happens next. Returns whether the run goes on.
    pub(crate) fn step(&mut self) -> bool {
        let Some((at, step)) = self.queue.next() else { return false };
        if at > self.scenario.end {
            self.queue.plan(at, step);
            return false;
        }
        self.now = at;
        match step {
            Step::Arrive(datagram) => self.arrive(&datagram),
            Step::WakeThread(relay, epoch, thread) => {
                if self.machines[relay].epoch() == epoch {
                    let turn = self.machines[relay].wake(at, thread);
                    self.ask_for(relay, thread, turn);
                }
            }
            Step::Turn(relay, thread) => self.turn(relay, thread),
            Step::Wake(participant) => self.wake(participant),
            Step::Join(participant) => self.join(participant),
            Step::Roam(participant) => self.roam(participant),
            Step::Choose(participant) => self.choose(participant),
            Step::Publish(participant) => self.publish(participant),
            Step::Judge => self.judge(),
            Step::Break(fault) => self.break_down(self.scenario.faults[fault].element),
            Step::Mend(fault) => self.mend(self.scenario.faults[fault].element),
            Step::Succeed(number) => self.succeed(number),
            Step::LetGo(number) => self.let_go(number),
            Step::Leave(number) => self.leave_parent(number),
            Step::Reload(number) => self.reload(number),
            Step::Reloaded(number) => self.reloaded(number),
            Step::Word(number) => self.take_word(number),
            Step::Change(relay, change) => {
                let refused = self.machines[relay].take(at, &change);
                self.changed(relay, refused);
            }
            Step::Shape(number, begins) => self.shape(number, begins),
            Step::Flood(number) => self.flood(number),
            Step::Heal => self.network.heal(),
            Step::LeaveAll => self.leave_all(),
        }
        true
    }

    fn start(&mut self, relay: usize) {
        let now = self.now;
        for refused in self.machines[relay].start(now) {
            self.model.broken(now, || format!("relay {relay} refuses {refused}"));
        }
        for thread in 0..self.machines[relay].threads() {
            self.ask_for_timer(relay, thread);
        }
        self.owe_words(relay);
    }

    fn break_down(&mut self, element: Element) {
        match element {
            Element::Relay(relay) => {
                self.tallies.relay_restarts += 1;
                self.machines[relay].stop();
                self.model.relay_stopped(relay);
            }
            Element::Link(link) => {
                self.tallies.link_cuts += 1;
                self.cut[link] = true;
            }
        }
    }

    fn mend(&mut self, element: Element) {
        match element {
            Element::Relay(relay) => self.start(relay),
            Element::Link(link) => self.cut[link] = false,
        }
    }

    /// A participant sends a datagram to its relay.
    pub(crate) fn send_up(&mut self, participant: usize, bytes: &[u8]) {
        let Participant { ip_port: from, relay, .. } = self.participants[participant];
        let to = machine::ip_port(relay);
        let direction = Direction::Up;
        self.carry(Datagram { from, to, bytes: bytes.into(), wire: participant, direction });
    }

    /// A relay sends a datagram, to a participant or to a neighbour.
    fn send(&mut self, relay: usize, (to, bytes): Sent) {
        let from = machine::ip_port(relay);
        self.proofs.sent(relay, to, &bytes);
        if let Some(neighbour) = machine::relay_at(to) {
            let Some((link, direction)) = self.scenario.links.between(relay, neighbour) else {
                self.model.broken(self.now, || format!("relay {relay} sends to {to}"));
                return self.network.offer_nowhere(Loss::Unreachable);
            };
            self.sends_shaped((link, direction), &bytes);
            self.floods_over((link, direction), &bytes);
            self.tallies.over_links += 1;
            let wire = self.scenario.wire_of_link(link);
            let is_dropped = match self.config.sabotage {
                Some(OverlaySabotage::DropOnLinks(one_in)) => {
                    self.tallies.over_links.is_multiple_of(one_in)
                }
                _ => false,
            };
            if !is_dropped {
                let bytes = self.sabotaged(wire, direction, bytes);
                self.carry(Datagram { from, to, bytes, wire, direction });
            }
        } else {
            self.send_down(from, to, bytes);
        }
    }

    /// What is sent over a link in place of a datagram, where relays count wrongly.
    fn sabotaged(&self, wire: usize, direction: Direction, bytes: Rc<[u8]>) -> Rc<[u8]> {
        let per_key = self.scenario.packets_per_key.count() as u32;
        let number = bytes.get(4..8).and_then(|bytes| bytes.first_chunk());
        let number = number.map_or(0, |bytes| u32::from_be_bytes(*bytes));
        if self.config.sabotage != Some(OverlaySabotage::CountAgain) || number < per_key {
            return bytes;
        }
        let again = self.keys.seal_as(wire, direction, &bytes, number % per_key);
        again.map_or(bytes, Rc::from)
    }

    /// Between a relay and the access paths, where the fault sits that the model has to find.
    fn send_down(&mut self, from: SocketAddr, to: SocketAddr, bytes: Rc<[u8]>) {
        let is_sabotaged = access_sabotage(self.config.sabotage).is_some();
        let carries_updates = is_sabotaged && !updates_in(&bytes).is_empty();
        let (rng, participants) = (&mut self.rng, &self.participants);
        let someone = || participants[rng.random_range(0..participants.len())].ip_port;
        for (to, bytes) in self.saboteur.take(to, bytes, carries_updates, someone) {
            let Some(wire) = participant_at(to).filter(|one| *one < self.participants.len()) else {
                self.network.offer_nowhere(Loss::Unreachable);
                self.tell_flooder(to, &bytes);
                continue;
            };
            let direction = Direction::Down;
            if self.scenario.budgets[wire].is_some() && !self.sends_limited(wire, to, &bytes) {
                continue;
            }
            self.carry(Datagram { from, to, bytes, wire, direction });
        }
    }

    fn carry(&mut self, datagram: Datagram) {
        let Datagram { wire, direction, ref bytes, .. } = datagram;
        if let Err(what) = self.keys.sent(wire, direction, self.now.as_nanos(), bytes) {
            self.model.broken(self.now, || format!("from {}: {what}", datagram.from));
        }
        match self.network.offer(self.now, wire, direction, bytes.len()) {
            Fate::Arrives { at, copy_at, .. } => {
                if let Some(copy_at) = copy_at {
                    let most =
                        self.scenario.late_copies.min(self.scenario.calm_from.since(self.now));
                    let late = self.network.copy_is_late(most);
                    self.at(copy_at + late, Step::Arrive(datagram.clone()));
                }
                self.at(at, Step::Arrive(datagram));
            }
            Fate::Dropped(_) => {
                let carried = self.keys.updates_in(wire, direction, bytes);
                self.model.lost_on(wire, direction, &carried);
            }
        }
    }

    fn arrive(&mut self, datagram: &Datagram) {
        let Datagram { from, to, bytes, wire, .. } = datagram;
        let is_cut = wire
            .checked_sub(self.scenario.participants)
            .is_some_and(|link| self.cut.get(link) == Some(&true));
        let relay = machine::relay_at(*to);
        let is_there = match relay {
            Some(relay) => self.machines[relay].is_up(),
            None => self.participants[*wire].ip_port == *to,
        };
        if is_cut || !is_there {
            return self.network.count_loss(Loss::Unreachable);
        }
        if relay.is_some_and(|relay| !self.machines[relay].has_room_for(bytes)) {
            self.network.count_loss(Loss::ReceiveQueueFull);
            return self.had_no_room(datagram);
        }
        self.network.arrived();
        self.trace.arrived(self.now, *from, *to, bytes);
        match relay {
            Some(relay) => {
                self.proofs.arrived(relay, *from, bytes);
                let turn = self.machines[relay].arrive(self.now, *from, Rc::clone(bytes));
                if let Some((thread, at)) = turn {
                    self.at(at, Step::Turn(relay, thread));
                }
            }
            None => self.deliver(*wire, bytes),
        }
    }

    fn turn(&mut self, relay: usize, thread: usize) {
        if !self.machines[relay].is_due(self.now, thread) {
            return;
        }
        let done = self.machines[relay].turn(self.now, thread);
        if let Some(what) = done.broken {
            self.model.broken(self.now, || what);
        }
        if !done.opened.is_empty() {
            self.limit_again(relay);
        }
        for keys in done.opened {
            if let Err(what) = self.keys.opened(&self.scenario, relay, keys) {
                self.model.broken(self.now, || what);
            }
        }
        for (key, is_up) in done.links {
            let other = self.keys.relay(&key);
            let link = other.and_then(|other| self.scenario.links.between(relay, other));
            if let Some((link, side)) = link {
                self.model.link_stands(self.now, link, side, is_up);
                self.begins_anew((link, side));
            }
        }
        for read in done.read {
            self.police(&read);
        }
        let epoch = self.machines[relay].epoch();
        for other in (0..self.machines[relay].threads()).filter(|one| done.to_wake & 1 << one != 0)
        {
            self.after(self.scenario.wake_delay, Step::WakeThread(relay, epoch, other));
        }
        for sent in done.sent {
            self.send(relay, sent);
        }
        for comtree in done.succeeded {
            let is_it = |one: &&Move| {
                let tree = &self.scenario.trees[one.tree];
                one.relay == relay && tree.comtree == comtree && one.at <= self.now
            };
            if let Some(number) = self.scenario.moves.iter().rposition(|one| is_it(&one)) {
                self.after(LETS_GO_AFTER, Step::LetGo(number));
                self.after(LETS_GO_AFTER * 2, Step::Leave(number));
            }
            self.hear_word(relay, comtree);
        }
        self.ask_for_timer(relay, thread);
    }

    /// A relay gets a next parent on a comtree.
    fn succeed(&mut self, number: usize) {
        let Move { tree, relay, to, .. } = self.scenario.moves[number];
        let tree = self.scenario.trees[tree].clone();
        for (at, other, role) in
            [(to, relay, BranchRole::Child), (relay, to, BranchRole::NextParent)]
        {
            let refused = self.machines[at].add_branch(self.now, &tree, other, role);
            self.changed(at, refused);
        }
    }

    /// The old parent does without the branch.
    fn let_go(&mut self, number: usize) {
        let Move { tree, relay, from, .. } = self.scenario.moves[number];
        self.tallies.parents_succeeded += 1;
        let tree = self.scenario.trees[tree].clone();
        let refused = self.machines[from].remove_branch(self.now, &tree, relay);
        self.changed(from, refused);
    }

    /// And then the relay does.
    fn leave_parent(&mut self, number: usize) {
        let Move { tree, relay, from, .. } = self.scenario.moves[number];
        let tree = self.scenario.trees[tree].clone();
        let refused = self.machines[relay].remove_branch(self.now, &tree, from);
        self.changed(relay, refused);
    }

    pub(crate) fn changed(&mut self, relay: usize, refused: Option<String>) {
        if let Some(refused) = refused {
            self.model.broken(self.now, || format!("relay {relay} refuses {refused}"));
        }
        for thread in 0..self.machines[relay].threads() {
            self.ask_for_timer(relay, thread);
        }
    }

    fn ask_for_timer(&mut self, relay: usize, thread: usize) {
        let next = self.machines[relay].next_turn(thread);
        self.ask_for(relay, thread, next);
    }

    fn ask_for(&mut self, relay: usize, thread: usize, turn: Option<Time>) {
        if let Some(at) = turn {
            self.at(at, Step::Turn(relay, thread));
        }
    }

    fn judge(&mut self) {
        self.after(JUDGE_EVERY, Step::Judge);
        self.judge_until(self.now);
        for relay in 0..self.machines.len() {
            let held = self.machines[relay].held();
            self.check_held(relay, held);
            let opened = self.machines[relay].counters().sessions_opened;
            if let Err(what) = self.proofs.check(relay, opened, held.sessions) {
                self.model.broken(self.now, || what);
            }
            let peak = &mut self.tallies.peak;
            *peak = Held {
                sessions: peak.sessions.max(held.sessions),
                subscriptions: peak.subscriptions.max(held.subscriptions),
                groups: peak.groups.max(held.groups),
                routes: peak.routes.max(held.routes),
            };
        }
    }

    fn judge_until(&mut self, now: Time) {
        let times = match self.config.sabotage {
            Some(OverlaySabotage::ThinUncounted) => 0,
            Some(OverlaySabotage::ThinCountedTwice) => 2,
            _ => 1,
        };
        let counted = |machine: &Machine| {
            let counters = machine.counters();
            let reasons = [DropReason::Thinned, DropReason::WaitedTooLong];
            let counted: u64 = reasons.into_iter().map(|reason| counters.dropped(reason)).sum();
            counted * times
        };
        let counted: Vec<u64> = self.machines.iter().map(counted).collect();
        self.model.judge(now, &counted);
    }

    /// What a relay holds grows with what there is, not with what has happened.
    fn check_held(&mut self, relay: usize, held: Held) {
        let scenario = &self.scenario;
        let threads = u32::from(scenario.threads[relay]);
        let own = OWN_GROUPS.len() * self.flooders.len();
        let groups = scenario.habits.groups * scenario.trees.len() as u32 + own as u32;
        let participants = (scenario.participants + self.flooders.len()) as u32;
        let branches = scenario.links.ends().len() as u32 * scenario.trees.len() as u32;
        let subscribers = participants * 2 + branches + threads;
        let relays = self.machines.len() as u32 * scenario.trees.len() as u32;
        // An address that was left is known until its route has expired.
        let most_routes =
            threads * (relays + participants + self.tallies.moves + self.tallies.crashes);
        let is_bounded = held.groups <= groups * threads
            && held.subscriptions <= groups * subscribers * threads
            && held.routes <= most_routes;
        if !is_bounded {
            self.model.broken(self.now, || format!("relay {relay} holds {held:?}"));
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for machine in &self.machines {
            sum.add(&machine.counters());
        }
        sum
    }

    /// Judges what the run leaves behind.
    pub(crate) fn finish(&mut self) {
        self.judge_until(Time::from_nanos(u64::MAX));
        self.model.check_counted(self.now);
        self.check_roles();
        if self.scenario.expires {
            for relay in 0..self.machines.len() {
                let held = self.machines[relay].held();
                if held != Held::default() {
                    let what =
                        format!("relay {relay} still holds {held:?} after everyone has left");
                    self.model.broken(self.now, || what);
                }
            }
        }
        let counts = self.network.counts().clone();
        let dropped = counts.queue_dropped + counts.receive_queue_dropped;
        let gone = counts.delivered + counts.lost + dropped + counts.unreachable;
        if counts.sent + counts.duplicated != gone + self.queue.on_the_way() {
            self.model.broken(self.now, || format!("the network lost count: {counts:?}"));
        }
        if self.scenario.is_clean() {
            let excused = self.model.tally().excused;
            if excused > 0 {
                self.model.broken(self.now, || format!("{excused} excused although nothing broke"));
            }
        }
    }
}
