//! The machine of one relay: its sockets, its data threads, its restarts.

use super::scenario::Scenario;
use super::shape::{Edge, Node, Tree};
use crate::flood::{FLOODED, Floods};
use crate::host::{Inboxes, Read, Thread, UNIX_ZERO, Waiting, steer};
use crate::sabotage::Sabotage;
use canopy_overlay::{Net, changes};
use canopy_relay::{
    ADDRESS_REST, BranchConfig, BranchId, BranchRole, Budgets, Change, ComtreeConfig, Counters,
    FIRST_ENDPOINT, Fairness, Gate, GateLimits, Inlet, LinkConfig, Losses, Medium, Notice,
    PathShare, Places, Ready, Received, Relay, RelayConfig, SendBatch, Siblings, TableLimits,
};
use canopy_session::{Identity, Keyring, LoggedKeys, PublicKey, SessionLimits};
use canopy_wire::{Comtree, Lane, SAFE_DATAGRAM, Tag, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::convert::Infallible;
use std::mem;
use std::net::SocketAddr;
use std::rc::Rc;

/// The port of all relays.
const PORT: u16 = 4747;
/// Addresses that one relay gives out on a comtree.
const ENDPOINTS: u16 = 1000;

/// A datagram that is sent, and where to.
pub(crate) type Sent = (SocketAddr, Rc<[u8]>);

/// Where a relay is reached.
pub(crate) fn ip_port(relay: usize) -> SocketAddr {
    SocketAddr::from(([198, 18, 0, relay as u8 + 1], PORT))
}

/// Which relay is reached there.
pub(crate) fn relay_at(ip_port: SocketAddr) -> Option<usize> {
    match ip_port {
        SocketAddr::V4(v4) => match v4.ip().octets() {
            [198, 18, 0, number] => usize::from(number).checked_sub(1),
            _ => None,
        },
        SocketAddr::V6(_) => None,
    }
}

/// Who a relay is, in all its lives.
pub(crate) fn identity(relay: usize) -> Identity {
    Identity::new([relay as u8 + 1; 32])
}

/// What a turn of a data thread did.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) sent: Vec<Sent>,
    /// What was read, at a relay that is flooded.
    pub(crate) read: Vec<Read>,
    /// The other data threads that have something to take, a bit for each.
    pub(crate) to_wake: u64,
    /// The sessions that began.
    pub(crate) opened: Vec<LoggedKeys>,
    /// The neighbours whose links came up or were found down.
    pub(crate) links: Vec<(PublicKey, bool)>,
    /// Comtrees whose parent was succeeded, or knows all that is wanted here.
    pub(crate) succeeded: Vec<Comtree>,
    /// What must not be.
    pub(crate) broken: Option<String>,
}

/// How much a relay holds, over all its data threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) sessions: u32,
    pub(crate) subscriptions: u32,
    pub(crate) groups: u32,
    pub(crate) routes: u32,
}

/// What a turn reads from and sends through.
pub(crate) struct Sockets<'a> {
    /// When the turn began.
    now: Time,
    inboxes: &'a mut Inboxes,
    /// The datagram at hand.
    opened: &'a mut Vec<u8>,
    pub(crate) sent: Vec<Sent>,
    losses: Losses,
    /// What is read, where that is watched.
    watched: Option<Watched>,
}

/// What a turn read, and what came of it.
#[derive(Default)]
struct Watched {
    read: Vec<Read>,
    /// What the counters were before the datagram at hand.
    before: Option<Counters>,
}

impl<'a> Sockets<'a> {
    pub(crate) fn new(now: Time, inboxes: &'a mut Inboxes, opened: &'a mut Vec<u8>) -> Sockets<'a> {
        let (sent, losses) = (Vec::new(), Losses::default());
        Sockets { now, inboxes, opened, sent, losses, watched: None }
    }
}

impl Medium for Sockets<'_> {
    type Error = Infallible;

    fn ready(&mut self) -> Result<Ready, Infallible> {
        Ok(self.inboxes.ready())
    }

    fn receive(&mut self, inlet: Inlet) -> Result<bool, Infallible> {
        Ok(self.inboxes.receive(inlet))
    }

    fn next(&mut self, inlet: Inlet) -> Option<Received<'_>> {
        let Some(waiting) = self.inboxes.next(inlet) else {
            self.watched.iter_mut().for_each(|watched| watched.before = None);
            return None;
        };
        // It is opened where it lies, and there may be copies of it on the way.
        self.opened.clear();
        self.opened.extend_from_slice(&waiting.bytes);
        let (waited, from) = (self.now.since(waiting.at), waiting.from.into());
        if let Some(watched) = &mut self.watched {
            watched.read.push(Read::new(waiting));
        }
        Some(Received { from, waited, bytes: self.opened })
    }

    fn observe(&mut self, relay: &Relay) {
        let Some(watched) = &mut self.watched else { return };
        let before = watched.before.replace(relay.counters().clone());
        if let (Some(before), Some(read)) = (before, watched.read.last_mut()) {
            read.moved(&before, relay.counters());
        }
    }

    fn send(&mut self, batch: &SendBatch) {
        for transmit in batch.transmits() {
            let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
            let datagrams = bytes.chunks(transmit.segment.max(1).into());
            self.sent.extend(datagrams.map(|datagram| (transmit.to.remote, datagram.into())));
        }
    }

    fn losses(&mut self) -> Losses {
        mem::take(&mut self.losses)
    }
}

pub(crate) struct Machine {
    number: usize,
    scenario: Rc<Scenario>,
    /// A fault of its own.
    sabotage: Option<Sabotage>,
    /// What its settings say.
    net: Net,
    rng: ChaCha8Rng,
    threads: Vec<Thread>,
    opened: Vec<u8>,
    /// The totals of relays that are no more.
    retired: Counters,
    /// Counts its starts and stops; odd while it is up.
    epoch: u32,
}

impl Machine {
    pub(crate) fn new(
        number: usize,
        scenario: &Rc<Scenario>,
        rng: ChaCha8Rng,
        sabotage: Option<Sabotage>,
    ) -> Machine {
        Machine {
            sabotage,
            number,
            net: settings(number, scenario),
            scenario: Rc::clone(scenario),
            rng,
            threads: Vec::new(),
            opened: Vec::new(),
            retired: Counters::default(),
            epoch: 0,
        }
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn is_up(&self) -> bool {
        !self.threads.is_empty()
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = self.retired.clone();
        for thread in &self.threads {
            sum.add(thread.turn.relay().counters());
        }
        sum
    }

    pub(crate) fn held(&self) -> Held {
        let sum = |count: fn(&Relay) -> u32| {
            self.threads.iter().map(|thread| count(thread.turn.relay())).sum::<u32>()
        };
        Held {
            sessions: sum(Relay::sessions),
            subscriptions: sum(Relay::subscriptions),
            groups: sum(Relay::groups),
            routes: sum(Relay::routes),
        }
    }

    /// The relay comes up, knowing no one but its neighbours. Returns what it refuses of its settings.
    pub(crate) fn start(&mut self, now: Time) -> Vec<String> {
        self.epoch += 1;
        let keys = Keyring::with_identity(self.rng.random::<Tag>(), identity(self.number));
        let max_sessions = self.scenario.participants as u32 * 2 + 16;
        let places = Places::new(max_sessions);
        let gate = Gate::new(GateLimits::default(), &[6; 16]);
        let threads = self.scenario.threads[self.number];
        for siblings in Siblings::mesh(threads) {
            let table_key = self.rng.random::<Tag>();
            let config = self.config(max_sessions, &places, &gate);
            let relay = Relay::new(config, siblings, keys.clone(), &table_key);
            self.threads.push(Thread::new(relay));
        }
        let mut refused = Vec::new();
        // No relay starts with a next parent: where there is no other, the settings say that it is the parent.
        for branch in self.net.branches.values_mut() {
            if branch.role == BranchRole::NextParent {
                branch.role = BranchRole::Parent;
            }
        }
        // The daemon starts with its comtrees alone.
        let at_start = Net { comtrees: self.net.comtrees.clone(), ..Net::default() };
        for change in changes(&at_start, &self.net) {
            refused.extend(self.apply(now, &change));
        }
        refused
    }

    /// Changes a relay. Returns what it refuses.
    fn apply(&mut self, now: Time, change: &Change) -> Option<String> {
        let only = change.thread(self.scenario.threads[self.number]);
        let mut refused = None;
        for (number, thread) in (0..).zip(&mut self.threads) {
            if only.is_none_or(|only| only == number) {
                let applied = thread.turn.relay_mut().apply(now, change.clone());
                refused = applied.err().map(|why| format!("{change:?}: {why}")).or(refused);
            }
        }
        if refused.is_none() {
            self.net.took(change);
        }
        refused
    }

    /// The changes that lead to other roles of neighbours on a comtree, in the order in which the daemon
    /// applies them at a SIGHUP.
    pub(crate) fn changes_to(
        &self,
        tree: &Tree,
        roles: &[(usize, BranchRole)],
        drops: &[usize],
    ) -> Vec<Change> {
        let mut next = self.net.clone();
        let id_of = |other: usize| branch_id(&self.scenario, tree.comtree, (self.number, other));
        for (other, role) in roles {
            let site = tree.nodes[*other].as_ref().map(|node| node.site);
            if let Some((id, site)) = id_of(*other).zip(site) {
                let branch = BranchConfig { id, role: *role, site };
                next.branches.entry(id).or_insert(branch).role = *role;
            }
        }
        next.branches.retain(|id, _| drops.iter().all(|other| id_of(*other) != Some(*id)));
        changes(&self.net, &next)
    }

    /// Takes a change of its settings; a relay that is down does when it starts. Returns what it refuses.
    pub(crate) fn take(&mut self, now: Time, change: &Change) -> Option<String> {
        if self.is_up() {
            return self.apply(now, change);
        }
        self.net.took(change);
        None
    }

    /// What a neighbour is to the relay on a comtree, as its data thread says.
    pub(crate) fn role_of(&self, comtree: Comtree, other: usize) -> Option<BranchRole> {
        let id = branch_id(&self.scenario, comtree, (self.number, other))?;
        let thread = self.threads.get(usize::from(id.thread) % self.threads.len().max(1))?;
        let branch = thread.turn.relay().branches().find(|branch| branch.id == id);
        branch.map(|branch| branch.role)
    }

    /// Gives the relay a branch more on a comtree.
    pub(crate) fn add_branch(
        &mut self,
        now: Time,
        tree: &Tree,
        other: usize,
        role: BranchRole,
    ) -> Option<String> {
        let site = tree.nodes[other].as_ref()?.site;
        let change = branch(&self.scenario, tree.comtree, (self.number, other), role, site)?;
        self.apply(now, &change)
    }

    /// What a member may be sent from now on. Returns whether the relay knows it.
    pub(crate) fn set_budget(&mut self, now: Time, change: &Change) -> bool {
        self.is_up() && self.apply(now, change).is_none()
    }

    /// Takes a branch from the relay.
    pub(crate) fn remove_branch(&mut self, now: Time, tree: &Tree, other: usize) -> Option<String> {
        let id = branch_id(&self.scenario, tree.comtree, (self.number, other))?;
        self.apply(now, &Change::RemoveBranch(id))
    }

    /// The relay goes down with all that it knew, and with what waited in its sockets.
    pub(crate) fn stop(&mut self) {
        self.retired = self.counters();
        self.epoch += 1;
        self.threads.clear();
    }

    /// A datagram arrives at the socket of its data thread. Returns when that wants a turn.
    pub(crate) fn arrive(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: Rc<[u8]>,
    ) -> Option<(usize, Time)> {
        let (number, inlet) = self.steer(&bytes);
        let waiting = Waiting { from, bytes, at: now, participant: None, corrupted: false };
        self.threads[number].arrive(inlet, waiting).map(|at| (number, at))
    }

    /// What floods the relay, if something does.
    fn floods(&self) -> Option<&Floods> {
        let flooded = self.scenario.flooded.as_ref();
        flooded.filter(|flooded| flooded.relay == self.number).map(|flooded| &flooded.floods)
    }

    fn steer(&self, bytes: &[u8]) -> (usize, Inlet) {
        let (number, inlet) = steer(bytes, self.threads.len());
        let is_one = self.sabotage == Some(Sabotage::OneLane) && self.floods().is_some();
        (number, if is_one { Inlet::Lane(Lane::of(FLOODED)) } else { inlet })
    }

    /// Whether the socket that a datagram is for holds another one.
    pub(crate) fn has_room_for(&mut self, bytes: &[u8]) -> bool {
        let Some(holds) = self.floods().map(|floods| floods.receive_queue) else { return true };
        let (number, inlet) = self.steer(bytes);
        self.threads[number].has_room(inlet, holds)
    }

    /// A data thread is woken by another. Returns when it wants a turn.
    pub(crate) fn wake(&mut self, now: Time, thread: usize) -> Option<Time> {
        self.threads.get_mut(thread)?.wants_to_read(now)
    }

    /// Returns when a data thread wants its next turn by itself.
    pub(crate) fn next_turn(&mut self, thread: usize) -> Option<Time> {
        self.threads.get_mut(thread)?.next_turn()
    }

    /// Whether the turn that is due was not replaced by an earlier one.
    pub(crate) fn is_due(&self, now: Time, thread: usize) -> bool {
        self.threads.get(thread).is_some_and(|thread| thread.is_due(now))
    }

    /// A data thread has its turn.
    pub(crate) fn turn(&mut self, now: Time, number: usize) -> Done {
        let per_datagram = self.floods().map(|floods| floods.per_datagram);
        let thread = &mut self.threads[number];
        thread.begin_turn(now + self.scenario.turn);
        let losses = mem::take(&mut thread.losses);
        let watched = per_datagram.map(|_| Watched::default());
        let sockets = Sockets::new(now, &mut thread.inboxes, &mut self.opened);
        let mut sockets = Sockets { losses, watched, ..sockets };
        let Ok(to_wake) = thread.turn.run(now, &mut sockets);
        let read = sockets.watched.take().map_or_else(Vec::new, |watched| watched.read);
        let mut done = Done { sent: sockets.sent, read, to_wake, ..Done::default() };
        let took = per_datagram.unwrap_or_default() * done.read.len() as u32;
        thread.busy_until = thread.busy_until + took;
        let relay = thread.turn.relay_mut();
        while let Some(keys) = relay.poll_key_log() {
            done.opened.push(keys);
        }
        while let Some(notice) = relay.poll_notice() {
            match notice {
                Notice::LinkUp { key } => done.links.push((key, true)),
                Notice::LinkDown { key } => done.links.push((key, false)),
                Notice::ParentSucceeded { comtree } | Notice::ParentAsked { comtree } => {
                    done.succeeded.push(comtree);
                }
                _ => {}
            }
        }
        if relay.poll_timeout().is_some_and(|at| at <= now) {
            let what = "wants a turn although it just had one";
            done.broken = Some(format!("relay {}, data thread {number}: {what}", self.number));
        }
        thread.end_turn(now);
        done
    }

    fn budgets(&self) -> Budgets {
        let mut budgets = match &self.scenario.flooded {
            Some(_) if self.sabotage == Some(Sabotage::Unpoliced) => Budgets::NONE,
            flooded => flooded.as_ref().map_or(Budgets::default(), |it| it.floods.budgets),
        };
        if !self.scenario.asks_paths() {
            budgets.paths = PathShare::Off;
        }
        budgets
    }

    fn config(&self, max_sessions: u32, places: &Places, gate: &Gate) -> RelayConfig {
        RelayConfig {
            mode: self.scenario.mode,
            comtrees: self.net.comtrees.values().cloned().collect(),
            trust: None,
            origin: UNIX_ZERO,
            places: places.clone(),
            max_sessions,
            max_datagram: SAFE_DATAGRAM as u16,
            slow_suites: 0,
            address_rest: ADDRESS_REST,
            life: Some(self.epoch),
            log_keys: true,
            packets_per_key: self.scenario.packets_per_key,
            limits: SessionLimits::default(),
            tables: TableLimits {
                max_groups: 1 << 12,
                max_subscriptions: 1 << 14,
                ..TableLimits::default()
            },
            budgets: self.budgets(),
            gate: gate.clone(),
            smallest_set: None,
        }
    }
}

/// What a relay is told of its comtrees, links and branches.
fn settings(number: usize, scenario: &Scenario) -> Net {
    let mut net = Net::default();
    for (link, [a, b]) in scenario.links.ends().iter().enumerate() {
        let (thread, first_calls) = scenario.calls[link];
        let (other, calls) = match number {
            _ if number == *a => (*b, first_calls),
            _ if number == *b => (*a, !first_calls),
            _ => continue,
        };
        let (key, path) = (key_of(other), ip_port(other).into());
        net.took(&Change::AddLink(LinkConfig { key, path, thread, calls }));
    }
    for tree in &scenario.trees {
        let Some(Node { site, .. }) = &tree.nodes[number] else { continue };
        let first = FIRST_ENDPOINT + number as u16 * ENDPOINTS;
        net.took(&Change::AddComtree(ComtreeConfig {
            downlink: scenario.downlink,
            fairness: Fairness { levels_first: scenario.levels_first, ..Fairness::default() },
            endpoints: first..=first + ENDPOINTS - 1,
            ..ComtreeConfig::new(tree.comtree, *site)
        }));
        for Edge { relays: [a, b], roles } in tree.edges() {
            let (other, role) = match number {
                _ if number == a => (b, roles[0]),
                _ if number == b => (a, roles[1]),
                _ => continue,
            };
            let Some(Node { site, .. }) = &tree.nodes[other] else { continue };
            let branch = branch(scenario, tree.comtree, (number, other), role, *site);
            branch.iter().for_each(|branch| net.took(branch));
        }
    }
    net
}

fn branch(
    scenario: &Scenario,
    comtree: Comtree,
    (relay, other): (usize, usize),
    role: BranchRole,
    site: u16,
) -> Option<Change> {
    let id = branch_id(scenario, comtree, (relay, other))?;
    Some(Change::AddBranch(BranchConfig { id, role, site }))
}

fn branch_id(
    scenario: &Scenario,
    comtree: Comtree,
    (relay, other): (usize, usize),
) -> Option<BranchId> {
    let (link, _) = scenario.links.between(relay, other)?;
    Some(BranchId { comtree, link: key_of(other), thread: scenario.calls[link].0 })
}

pub(crate) fn key_of(relay: usize) -> PublicKey {
    *identity(relay).public()
}
