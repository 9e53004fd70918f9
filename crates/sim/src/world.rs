//! The run: one queue of events in virtual time, and what each of them does.

use crate::config::SimConfig;
use crate::flood::FLOODED;
use crate::flooder::Flooder;
use crate::gateway::Gateway;
use crate::host::{Host, Read, Waiting};
use crate::hostile::Hostile;
use crate::network::{Direction, Fate, Loss, Network};
use crate::pacing::{Amount, Pacing};
use crate::participant::Participant;
use crate::payload;
use crate::report::{RelayTotals, Report};
use crate::sabotage::{Sabotage, Saboteur};
use crate::scenario::{Scenario, Stream, stream};
use crate::tokens::Tokens;
use crate::trace::{Tap, Trace};
use canopy_judge::{Carriage, Oracle};
use canopy_relay::Mode;
use canopy_session::Session;
use canopy_wire::{Comtree, DropReason, Packet, Sealed, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The relay's ip:port.
const RELAY: ([u8; 4], u16) = ([192, 0, 2, 1], 4747);
/// When the first token is revoked.
const FIRST_REVOKED: Time = Time::from_millis(3000);
/// The oracle judges this often.
const JUDGE_EVERY: Duration = Duration::from_millis(250);

/// Simulates one run and judges it.
pub fn run(config: &SimConfig) -> Report {
    run_with_tap(config, &mut |_, _, _, _| ())
}

/// Simulates one run and judges it, showing every datagram to `tap` as it arrives.
pub fn run_with_tap(config: &SimConfig, tap: Tap<'_>) -> Report {
    let mut world = World::new(config, tap);
    world.begin();
    while world.step() {}
    world.report()
}

/// Something that happens.
pub(crate) enum Step {
    Arrive(Datagram),
    /// A data thread is woken by another, of the relay of this start (its epoch).
    WakeThread(u32, usize),
    Turn(usize),
    Wake(usize),
    Join(usize),
    Walk(usize),
    Publish(usize),
    Churn(usize),
    Attack,
    /// A flooder does what it does next.
    Flood(usize),
    /// Somebody's token is revoked.
    Revoke,
    /// A participant renews its token, unless it has joined anew since it was to.
    Renew(usize, u32),
    Judge,
    Drain,
    Stop,
    Start,
    Heal,
}

/// A datagram on its way.
#[derive(Clone)]
pub(crate) struct Datagram {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Rc<[u8]>,
    /// Whose link it is on.
    participant: Option<usize>,
    sent: Time,
    /// The relay's start that sent it.
    epoch: u32,
    corrupted: bool,
    copy: bool,
    /// It is a copy that comes later than the first.
    late: bool,
}

struct Entry {
    at: Time,
    number: u64,
    step: Step,
}

pub(crate) struct World<'a> {
    pub(crate) config: SimConfig,
    pub(crate) scenario: Scenario,
    pub(crate) now: Time,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) participants: Vec<Participant>,
    /// Who is reached at an ip:port.
    pub(crate) bindings: BTreeMap<SocketAddr, usize>,
    /// Whose ip:port some share.
    pub(crate) gateway: Gateway,
    /// An ip:port that someone left, and when.
    pub(crate) vacant: Option<(SocketAddr, Time)>,
    pub(crate) oracle: Oracle,
    pub(crate) tallies: Tallies,
    queue: BinaryHeap<Reverse<Entry>>,
    entries: u64,
    network: Network,
    pub(crate) host: Host,
    hostile: Hostile,
    pub(crate) flooders: Vec<Flooder>,
    trace: Trace<'a>,
    saboteur: Saboteur,
    pub(crate) pacing: Pacing,
    /// Where the relay asks for tokens.
    pub(crate) tokens: Option<Tokens>,
    /// Who tries to come in by another's token, and from where.
    pub(crate) thief: Option<(SocketAddr, Session)>,
}

/// What happened, for the report.
#[derive(Default)]
pub(crate) struct Tallies {
    pub(crate) rebinds: u32,
    pub(crate) leaves: u32,
    pub(crate) crashes: u32,
    pub(crate) attacks: u64,
    pub(crate) flooded: u64,
    pub(crate) keyless: u64,
    pub(crate) revoked: u32,
    pub(crate) renewed: u32,
    pub(crate) turned_away: u32,
    /// Updates that a fault kept from those who may be sent so much only.
    pub(crate) held_back: u64,
    /// Updates that waited for them at the last judgements: some may be on their way by now.
    waited: [u64; 4],
}

impl<'a> World<'a> {
    fn new(config: &SimConfig, tap: Tap<'a>) -> World<'a> {
        let scenario = Scenario::draw(config);
        let tokens = Tokens::new(config, &scenario);
        let mut rng = stream(config.seed, Stream::World);
        let comtrees: Vec<_> = (1..=scenario.comtrees).map(Comtree).collect();
        let participants: Vec<_> = (0..scenario.participants)
            .map(|number| {
                let is_insider = rng.random_bool(scenario.habits.insiders);
                Participant::new(number, comtrees[number % comtrees.len()], is_insider)
            })
            .collect();
        World {
            config: config.clone(),
            now: Time::from_millis(1),
            oracle: Oracle::new(scenario.rules(), participants.iter().map(|one| one.comtree)),
            participants,
            bindings: BTreeMap::new(),
            gateway: Gateway::new(stream(config.seed, Stream::Gateway)),
            vacant: None,
            tallies: Tallies::default(),
            queue: BinaryHeap::new(),
            entries: 0,
            network: Network::new(stream(config.seed, Stream::Network), &scenario.links),
            host: Host::new(
                &scenario,
                comtrees.into_iter().chain(scenario.floods.as_ref().map(|_| FLOODED)).collect(),
                stream(config.seed, Stream::Host),
                (tokens.as_ref().and_then(Tokens::trust), config.sabotage),
            ),
            tokens,
            thief: None,
            flooders: Flooder::all(config, &scenario),
            hostile: Hostile::new(stream(config.seed, Stream::Hostile)),
            trace: Trace::new(tap),
            saboteur: Saboteur::new(config.sabotage),
            pacing: Pacing::new(scenario.mode, scenario.asks_paths),
            rng,
            scenario,
        }
    }

    fn begin(&mut self) {
        for participant in 0..self.participants.len() {
            let at = Time::from_millis(self.rng.random_range(1..2000));
            self.at(at, Step::Join(participant));
            self.at(at, Step::Walk(participant));
            self.at(at, Step::Publish(participant));
            self.schedule_churn(participant);
        }
        if let Some(restart) = self.scenario.restart {
            if !restart.drain.is_zero() {
                self.at(restart.stop_at - restart.drain, Step::Drain);
            }
            self.at(restart.stop_at, Step::Stop);
            self.at(restart.stop_at + restart.down, Step::Start);
        }
        if self.scenario.attack_every.is_some() {
            self.at(self.now, Step::Attack);
        }
        for flooder in 0..self.flooders.len() {
            self.at(self.flooders[flooder].begins(), Step::Flood(flooder));
        }
        if self.tokens.is_some() {
            self.at(FIRST_REVOKED, Step::Revoke);
        }
        self.at(self.scenario.calm_from, Step::Heal);
        self.at(self.now, Step::Judge);
    }

    pub(crate) fn at(&mut self, at: Time, step: Step) {
        self.entries += 1;
        self.queue.push(Reverse(Entry { at, number: self.entries, step }));
    }

    pub(crate) fn after(&mut self, wait: Duration, step: Step) {
        self.at(self.now + wait, step);
    }

    /// Does what happens next. Returns whether the run goes on.
    fn step(&mut self) -> bool {
        let Some(Reverse(entry)) = self.queue.pop() else { return false };
        if entry.at > self.scenario.end {
            self.queue.push(Reverse(entry));
            return false;
        }
        if entry.at < self.now {
            self.oracle
                .broken(format!("{}: what happens next was to be at {}", self.now, entry.at));
        }
        self.now = entry.at;
        match entry.step {
            Step::Arrive(datagram) => match datagram.to == RELAY.into() {
                true => self.arrive_at_relay(datagram),
                false => self.arrive_at_participant(datagram),
            },
            Step::WakeThread(epoch, thread) if epoch == self.host.epoch() => {
                let turn = self.host.wake(self.now, thread);
                self.ask_for(turn);
            }
            Step::WakeThread(..) => {}
            Step::Turn(thread) => self.turn(thread),
            Step::Wake(participant) => self.wake(participant),
            Step::Join(participant) => self.join(participant),
            Step::Walk(participant) => self.walk(participant),
            Step::Publish(participant) => self.publish(participant),
            Step::Churn(participant) => self.churn(participant),
            Step::Attack => self.attack(),
            Step::Flood(flooder) => self.flood(flooder),
            Step::Revoke => self.revoke(),
            Step::Renew(participant, joined) => self.renew(participant, joined),
            Step::Judge => {
                self.tallies.waited.rotate_right(1);
                self.tallies.waited[0] = self.host.waiting_updates();
                let left_out = self.left_out();
                self.oracle.left_out(left_out);
                let lost = self.host.counters().dropped(DropReason::SiblingsFull);
                self.oracle.lost_between_threads(self.scenario.threads, lost);
                self.oracle.judge(self.now);
                self.after(JUDGE_EVERY, Step::Judge);
            }
            Step::Drain => self.drain(),
            Step::Stop => self.stop(),
            Step::Start => {
                self.host.start();
                self.oracle.relay_changed(self.now, false);
            }
            Step::Heal => {
                self.network.heal();
                self.host.heal();
            }
        }
        true
    }

    /// A participant sends a datagram to the relay.
    pub(crate) fn send_up(&mut self, participant: usize, bytes: &[u8]) {
        let bytes: Rc<[u8]> = bytes.into();
        if let Err(what) = self.host.said(&bytes) {
            self.oracle.broken(format!("{}: participant {participant}: {what}", self.now));
        }
        self.hostile.overhear(&bytes);
        self.gateway.note(participant, &bytes);
        let from = self.participants[participant].ip_port;
        let datagram = Datagram {
            from,
            to: RELAY.into(),
            bytes,
            participant: Some(participant),
            sent: self.now,
            epoch: self.host.epoch(),
            corrupted: false,
            copy: false,
            late: false,
        };
        self.carry(datagram, participant, Direction::Up);
    }

    /// The relay sends a datagram.
    fn send_down(&mut self, to: SocketAddr, bytes: Rc<[u8]>) {
        let Some(participant) = self.receiver_at(to, &bytes) else {
            self.network.offer_nowhere(Loss::Unreachable);
            self.tell_flooder(to, &bytes);
            return self.tell_thief(to, &bytes);
        };
        let datagram = Datagram {
            from: RELAY.into(),
            to,
            bytes,
            participant: Some(participant),
            sent: self.now,
            epoch: self.host.epoch(),
            corrupted: false,
            copy: false,
            late: false,
        };
        if !self.is_calm() && self.network.happens(self.scenario.send_failures) {
            self.network.offer_nowhere(Loss::SendFailed);
            return self.tell_lost(&datagram);
        }
        self.carry(datagram, participant, Direction::Down);
    }

    fn carry(&mut self, datagram: Datagram, participant: usize, direction: Direction) {
        let len = datagram.bytes.len();
        let (at, corrupted, copy_at) =
            match self.network.offer(self.now, participant, direction, len) {
                Fate::Arrives { at, corrupted, copy_at } => (at, corrupted, copy_at),
                Fate::Dropped(_) => return self.tell_lost(&datagram),
            };
        let copy = Datagram { copy: true, ..datagram.clone() };
        let carries = self.updates_in(&datagram.bytes, direction == Direction::Down);
        // A flipped bit in what the relay says in clear could make a session believe anything: only
        // updates are hit there on the way down, and what is sealed.
        let is_sealed = Sealed::of(&datagram.bytes).is_some();
        let may_be_hit = direction == Direction::Up || is_sealed || !carries.is_empty();
        let corrupted = corrupted && may_be_hit;
        let mut datagram = Datagram { corrupted, ..datagram };
        if corrupted {
            match direction {
                Direction::Up => self.oracle.flipped(at, participant, &carries),
                Direction::Down => self.oracle.lost(at, participant, &carries),
            }
            let mut bytes = datagram.bytes.to_vec();
            self.network.corrupt(&mut bytes);
            datagram.bytes = bytes.into();
        }
        self.at(at, Step::Arrive(datagram));
        if let Some(copy_at) = copy_at {
            let wait = self.network.copy_is_late(self.latest_copy());
            let late = !wait.is_zero();
            if late && direction == Direction::Up {
                self.oracle.copy_is_late(&carries);
            }
            self.at(copy_at + wait, Step::Arrive(Datagram { late, ..copy }));
        }
    }

    /// How late a copy of a datagram may come: never after all is well.
    fn latest_copy(&self) -> Duration {
        self.scenario.late_copies.min(self.scenario.calm_from.since(self.now))
    }

    /// The updates in a datagram, by their identifiers, if anybody can read it.
    pub(crate) fn updates_in(&self, datagram: &[u8], from_relay: bool) -> Vec<u64> {
        self.host.read(datagram, from_relay).map_or(Vec::new(), |read| updates_in(&read))
    }

    /// The oracle learns of a datagram that reaches no one.
    fn tell_lost(&mut self, datagram: &Datagram) {
        let Some(participant) = datagram.participant else { return };
        let down = datagram.to != RELAY.into();
        let carries = if down { self.updates_in(&datagram.bytes, true) } else { Vec::new() };
        self.oracle.lost(self.now, participant, &carries);
    }

    fn arrive_at_relay(&mut self, datagram: Datagram) {
        if !self.host.is_up() {
            self.network.count_loss(Loss::Unreachable);
            return self.tell_lost(&datagram);
        }
        if !self.host.has_room_for(&datagram.bytes) {
            self.network.count_loss(Loss::ReceiveQueueFull);
            if let Some(participant) = datagram.participant {
                self.had_no_room(participant, &datagram.bytes);
            }
            return self.tell_lost(&datagram);
        }
        let Datagram { from, to, bytes, participant, corrupted, .. } = datagram;
        self.network.arrived();
        self.trace.arrived(self.now, from, to, &bytes);
        let waiting = Waiting { from, bytes, at: self.now, participant, corrupted };
        let turn = self.host.arrive(waiting);
        self.ask_for(turn);
    }

    fn arrive_at_participant(&mut self, datagram: Datagram) {
        let is_there = |one: &usize| self.is_reached_at(datagram.to, *one);
        let Some(participant) = datagram.participant.filter(is_there) else {
            self.network.count_loss(Loss::Unreachable);
            return self.tell_lost(&datagram);
        };
        self.network.arrived();
        self.trace.arrived(self.now, datagram.from, datagram.to, &datagram.bytes);
        let carriage = Carriage {
            sent: datagram.sent,
            copy: datagram.copy,
            overtaken: datagram.late || self.scenario.links[participant][1].reorders(),
        };
        let is_current = datagram.epoch == self.host.epoch();
        self.deliver(participant, &datagram.bytes, carriage, (is_current, datagram.corrupted));
    }

    fn turn(&mut self, thread: usize) {
        if !self.host.is_due(self.now, thread) {
            return;
        }
        let turn = self.host.turn(self.now, thread);
        if turn.has_opened {
            self.limit_again();
        }
        for member in turn.left {
            self.left(member);
        }
        for what in turn.broken {
            self.oracle.broken(format!("{}: {what}", self.now));
        }
        for read in &turn.read {
            self.police(read);
            let Read { datagram, is_too_late, .. } = read;
            if let Some(participant) = datagram.participant {
                let carries = match datagram.corrupted || *is_too_late {
                    true => Vec::new(),
                    false => self.granted_in(&datagram.bytes),
                };
                self.oracle.read(self.now, participant, &carries);
            }
        }
        for other in turn.to_wake {
            let step = Step::WakeThread(self.host.epoch(), other);
            self.after(self.scenario.wake_delay, step);
        }
        for (to, bytes) in turn.sent {
            self.send_sabotaged(to, bytes);
        }
        self.ask_for_timer(thread);
    }

    /// Between the relay and the network, where the fault sits that the oracle has to find.
    fn send_sabotaged(&mut self, to: SocketAddr, bytes: Rc<[u8]>) {
        let updates = self.updates_in(&bytes, true);
        if !updates.is_empty() {
            let amount =
                Amount { bytes: bytes.len() as u64, updates: self.others_in(to, &updates) };
            if let Err(what) = self.pacing.sends(self.now, to, amount) {
                self.oracle.broken(format!("{}: {what}", self.now));
            }
        }
        self.check_tokens(to, &updates);
        if self.config.sabotage == Some(Sabotage::Starve) && self.is_starved(to, &updates) {
            return self.tallies.held_back += updates.len() as u64;
        }
        let carries_updates = !updates.is_empty();
        let (rng, participants) = (&mut self.rng, &self.participants);
        let someone = || participants[rng.random_range(0..participants.len())].ip_port;
        for (to, bytes) in self.saboteur.take(to, bytes, carries_updates, someone) {
            self.send_down(to, bytes);
        }
    }

    /// How many of the updates in a datagram are others' than the receiver's: what is sealed for all brings it its own
    /// back, which are bytes that it is sent, and no updates.
    fn others_in(&self, to: SocketAddr, updates: &[u64]) -> u64 {
        let receiver = self.bindings.get(&to);
        let is_own = |id: &u64| receiver.is_some_and(|one| self.oracle.is_own(*id, *one));
        updates.iter().filter(|id| !is_own(id)).count() as u64
    }

    /// Whether a datagram is for somebody who may be sent so much only, and brings updates of the first
    /// publisher.
    fn is_starved(&self, to: SocketAddr, updates: &[u64]) -> bool {
        let receiver = self.bindings.get(&to).filter(|one| self.oracle.is_limited(**one));
        receiver.is_some() && updates.iter().any(|id| self.oracle.is_by(*id, 0))
    }

    fn ask_for_timer(&mut self, thread: usize) {
        let next = self.host.next_turn(thread);
        self.ask_for(next.map(|at| (thread, at)));
    }

    pub(crate) fn ask_for(&mut self, turn: Option<(usize, Time)>) {
        if let Some((thread, at)) = turn {
            self.at(at, Step::Turn(thread));
        }
    }

    fn drain(&mut self) {
        self.host.drain(self.now);
        self.oracle.relay_changed(self.now, false);
        for thread in 0..usize::from(self.scenario.threads) {
            self.ask_for_timer(thread);
        }
    }

    fn stop(&mut self) {
        self.host.stop();
        self.oracle.relay_changed(self.now, true);
    }

    fn attack(&mut self) {
        let Some(every) = self.scenario.attack_every.filter(|_| !self.is_calm()) else { return };
        let shared = self.scenario.shares_ip_port.then(Gateway::ip_port);
        let ip_ports: Vec<_> = self.bindings.keys().copied().chain(shared).collect();
        let sessions = self.participants.iter().filter_map(|one| one.session.as_ref());
        let sessions: Vec<_> = sessions.map(Session::id).collect();
        let (from, bytes) = self.hostile.attack(&ip_ports, &sessions);
        self.tallies.attacks += 1;
        self.arrives_aside(from, bytes.into());
        self.steal();
        self.after(every, Step::Attack);
    }

    /// Somebody who is no participant sends a datagram to the relay.
    pub(crate) fn arrives_aside(&mut self, from: SocketAddr, bytes: Rc<[u8]>) {
        let datagram = Datagram {
            from,
            to: RELAY.into(),
            bytes,
            participant: None,
            sent: self.now,
            epoch: self.host.epoch(),
            corrupted: false,
            copy: false,
            late: false,
        };
        let at = self.network.offer_aside(self.now);
        self.at(at, Step::Arrive(datagram));
    }

    /// Whether nothing is broken any more.
    pub(crate) fn is_calm(&self) -> bool {
        self.now >= self.scenario.calm_from
    }

    fn report(mut self) -> Report {
        self.check_network();
        self.check_budgets();
        if self.scenario.is_long_enough() {
            let held = self.host.remains();
            self.oracle.check_remains(self.now, self.scenario.threads, held);
        }
        let tally = self.oracle.tally().clone();
        Report {
            seed: self.config.seed,
            mode: match self.scenario.mode {
                Mode::Immediate => "immediate".into(),
                Mode::Periodic { tick } => format!("periodic {} ms", tick.as_millis()),
            },
            weather: format!("{:?}", self.scenario.weather).to_lowercase(),
            threads: self.scenario.threads,
            participants: self.participants.len() as u64,
            virtual_seconds: self.config.seconds.into(),
            updates_published: tally.published,
            deliveries_expected: tally.expected,
            deliveries_excused: tally.excused,
            deliveries: tally.deliveries,
            missing: tally.missing,
            duplicates: tally.duplicates,
            unexpected: tally.unexpected,
            out_of_order: tally.out_of_order,
            lost_between_threads: tally.lost_between_threads,
            thinned: tally.thinned,
            starved: tally.starved,
            stuck: tally.stuck,
            broken_invariants: tally.broken,
            network: self.network.counts().clone(),
            relay: RelayTotals::new(&self.host.counters()),
            relay_restarts: self.host.restarts(),
            rebinds: self.tallies.rebinds,
            leaves: self.tallies.leaves,
            crashes: self.tallies.crashes,
            attacks: self.tallies.attacks,
            flooded: self.tallies.flooded,
            keyless: self.tallies.keyless,
            keys_changed: self.host.keys_changed(),
            asks_for_tokens: self.tokens.is_some(),
            tokens_revoked: self.tallies.revoked,
            tokens_renewed: self.tallies.renewed,
            turned_away: self.tallies.turned_away,
            not_granted: self.tokens.as_ref().map_or(0, Tokens::not_granted),
            trace_hash: self.trace.hash(),
            findings: tally.findings,
            replay: self.config.replay(),
        }
    }

    /// What was left out for those who may be sent so much only, or waits for them, as the relay says.
    fn left_out(&self) -> u64 {
        let counters = self.host.counters();
        let is_hidden = self.config.sabotage == Some(Sabotage::ThinUncounted);
        let thinned = if is_hidden { 0 } else { counters.dropped(DropReason::Thinned) };
        // What was not sent to them at all is said to be left out.
        let left_out = thinned + counters.dropped(DropReason::WaitedTooLong);
        let waited = self.tallies.waited.into_iter().max().unwrap_or(0);
        left_out + waited + self.tallies.held_back
    }

    /// At the end everybody has the newest of everything, however little one may be sent.
    fn check_budgets(&mut self) {
        if self.scenario.lets_all_come() {
            self.oracle.check_starved(self.now);
        }
    }

    /// The network's own counters add up: what was offered arrived, was dropped, or is on its way.
    fn check_network(&mut self) {
        let waiting = |entry: &&Reverse<Entry>| matches!(entry.0.step, Step::Arrive(_));
        let on_the_way = self.queue.iter().filter(waiting).count() as u64;
        let counts = self.network.counts().clone();
        let dropped = counts.queue_dropped + counts.receive_queue_dropped + counts.sends_failed;
        let gone = counts.delivered + counts.lost + dropped + counts.unreachable;
        if counts.sent + counts.duplicated != gone + on_the_way {
            let what = format!("the network lost count: {counts:?}, {on_the_way} on the way");
            self.oracle.broken(what);
        }
    }
}

/// The updates that a datagram carries, as far as it can be read.
pub(crate) fn updates_in(datagram: &[u8]) -> Vec<u64> {
    let Ok(packet) = Packet::new_checked(datagram) else { return Vec::new() };
    let Ok(updates) = packet.updates() else { return Vec::new() };
    updates.filter_map(|update| payload::identify(update.series, update.payload)).collect()
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}
