//! One relay: a data thread as the daemon runs it, the relay's side of the control plane, and what is
//! between the two.

use super::config::TopologySabotage;
use crate::host::{Thread, UNIX_ZERO, Waiting, steer};
use crate::overlay::machine::{Sent, Sockets};
use canopy_control::signal::Role;
use canopy_control::{Applying, Item, ItemKey, RelaySide};
use canopy_overlay::{
    Detours, Flooded, Items, LinkStates, LinkWatch, Members, Net, Said, Seen, changes, wanted,
};
use canopy_relay::{
    ADDRESS_REST, BranchRole, Budgets, Change, Counters, Gate, GateLimits, Mode, Notice, Places,
    Refusal, Relay, RelayConfig, Siblings, TableLimits, Trust,
};
use canopy_session::{Identity, Keyring, PacketsPerKey, PublicKey, SessionLimits};
use canopy_wire::{Comtree, SAFE_DATAGRAM, Suite, Tag, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How many participants a relay can have.
const SESSIONS: u32 = 256;
/// Relays look at their links so often, as the daemon's agent does.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

pub(crate) struct Machine {
    pub(crate) identity: Identity,
    /// Its clock is ahead of the world's by so much.
    pub(crate) ahead: Duration,
    /// What a turn takes.
    pub(crate) turn: Duration,
    /// What applying a change takes.
    pub(crate) applies_in: Duration,
    trust: Arc<Trust>,
    budgets: Budgets,
    rng: ChaCha8Rng,
    thread: Option<Thread>,
    pub(crate) side: RelaySide,
    watch: LinkWatch,
    pub(crate) detours: Detours,
    /// What relays say of their links, and when it is seen to next.
    pub(crate) states: LinkStates,
    pub(crate) next_flood: Option<Time>,
    base: Net,
    net: Net,
    members: Members,
    opened: Vec<u8>,
    retired: Counters,
    /// A detour is over, and the data plane is still to have one parent.
    is_to_apply: bool,
    /// How many ways it has found since that was last looked at.
    found: u32,
    /// What is being applied.
    pub(crate) applying: Option<Applying>,
    /// Counted by its starts.
    pub(crate) life: u32,
}

/// How much a relay holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) sessions: u32,
    pub(crate) subscriptions: u32,
    pub(crate) groups: u32,
}

impl Machine {
    pub(crate) fn new(
        number: usize,
        (trust, budgets): (Arc<Trust>, Budgets),
        mut rng: ChaCha8Rng,
    ) -> Machine {
        let mut seed = [9; 32];
        seed[..4].copy_from_slice(&(number as u32).to_be_bytes());
        // One in ten is slow.
        let is_slow = rng.random_bool(0.1);
        let micros = if is_slow { [2_000, 30_000] } else { [20, 2_000] };
        let identity = Identity::new(seed);
        Machine {
            states: LinkStates::new(*identity.public(), "", 0),
            next_flood: None,
            identity,
            ahead: Duration::from_millis(rng.random_range(0..3_000)),
            turn: Duration::from_micros(micros[0]),
            applies_in: Duration::from_micros(micros[1]),
            trust,
            budgets,
            rng,
            thread: None,
            side: RelaySide::new(0),
            watch: LinkWatch::default(),
            detours: Detours::new(Duration::from_secs(UNIX_ZERO.0)),
            base: Net { most_subscriptions: 1_000, ..Net::default() },
            net: Net::default(),
            members: Members::default(),
            opened: Vec::new(),
            retired: Counters::default(),
            is_to_apply: false,
            found: 0,
            applying: None,
            life: 0,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.thread.is_some()
    }

    /// The relay's time.
    pub(crate) fn local(&self, now: Time) -> Time {
        now + self.ahead
    }

    /// The world's time of a moment on the relay's clock.
    pub(crate) fn global(&self, local: Time) -> Time {
        Time::from_nanos(local.as_nanos().saturating_sub(self.ahead.as_nanos() as u64))
    }

    pub(crate) fn start(&mut self) {
        self.life += 1;
        let keys = Keyring::with_identity(self.rng.random::<Tag>(), self.identity.clone());
        let config = self.config();
        let table_key = self.rng.random::<Tag>();
        let siblings = Siblings::mesh(1).into_iter().next();
        self.thread =
            siblings.map(|siblings| Thread::new(Relay::new(config, siblings, keys, &table_key)));
        self.side = RelaySide::new(self.life);
        self.watch = LinkWatch::default();
        self.detours = Detours::new(Duration::from_secs(UNIX_ZERO.0));
        // Its clock may show an earlier time than in the life before.
        let life = u64::from(self.life.is_multiple_of(2)) + 1;
        self.states = LinkStates::new(*self.identity.public(), "", life);
        self.next_flood = None;
        self.net = self.base.clone();
        self.members = Members::default();
        self.applying = None;
        self.is_to_apply = false;
    }

    /// What a neighbour is to it on a comtree, as the controller wants it.
    pub(crate) fn branch_to(&self, comtree: Comtree, neighbour: &PublicKey) -> Option<Role> {
        let items = self.side.items();
        let link = items.values().find_map(|item| match item {
            Item::Link { id, key, .. } if key == neighbour => Some(*id),
            _ => None,
        })?;
        let Some(Item::Comtree { branches, .. }) = items.get(&ItemKey::Comtree(comtree)) else {
            return None;
        };
        branches.iter().find(|branch| branch.link == link).map(|branch| branch.role)
    }

    /// The relay goes down with all that it knew.
    pub(crate) fn stop(&mut self) {
        self.retired = self.counters();
        self.thread = None;
        self.applying = None;
    }

    /// The neighbours with which its links are up.
    pub(crate) fn linked(&self) -> Vec<PublicKey> {
        let links = self.thread.iter().flat_map(|thread| thread.turn.relay().links());
        links.filter(|link| link.is_up).map(|link| link.key).collect()
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sum = self.retired.clone();
        if let Some(thread) = &self.thread {
            sum.add(thread.turn.relay().counters());
        }
        sum
    }

    pub(crate) fn held(&self) -> Held {
        let relay = self.thread.as_ref().map(|thread| thread.turn.relay());
        relay.map_or_else(Held::default, |relay| Held {
            sessions: relay.sessions(),
            subscriptions: relay.subscriptions(),
            groups: relay.groups(),
        })
    }

    /// Does what the controller says; see `Controlled` of the daemon.
    pub(crate) fn apply(&mut self, now: Time, sabotage: Option<TopologySabotage>) {
        let Some(applying) = self.applying.take() else { return };
        let local = self.local(now);
        let result = match applying.key() {
            ItemKey::Member(..) => self.apply_member(local, &applying),
            key => self.apply_net(local, key, &applying, sabotage),
        };
        if result.is_ok() {
            self.watch.applied(local, &applying);
        }
        self.side.applied(applying, result);
    }

    fn apply_member(&mut self, local: Time, applying: &Applying) -> Result<(), String> {
        let (before, after) = (applying.before.as_ref(), applying.after.as_ref());
        for change in self.members.changes(local, applying.key(), before, after) {
            match self.change(local, change.clone()) {
                Ok(()) | Err(Refusal::UnknownAddress(..) | Refusal::UnknownComtree(_)) => {
                    self.members.took(&change);
                }
                Err(why) => return Err(why.to_string()),
            }
        }
        Ok(())
    }

    fn apply_net(
        &mut self,
        local: Time,
        key: ItemKey,
        applying: &Applying,
        sabotage: Option<TopologySabotage>,
    ) -> Result<(), String> {
        let mut items = self.side.items().clone();
        match &applying.after {
            Some(item) => _ = items.insert(key, item.clone()),
            None => _ = items.remove(&key),
        }
        self.detours.review(local, &items);
        let items = self.detours.apply_to(&items).into_owned();
        self.apply_items(local, &items, sabotage)
    }

    /// Gives the data plane what these items say instead of what it has.
    fn apply_items(
        &mut self,
        local: Time,
        items: &Items,
        sabotage: Option<TopologySabotage>,
    ) -> Result<(), String> {
        let mut after = wanted(&self.base, &self.net, items, Suite::ChaCha20Poly1305)?;
        if sabotage == Some(TopologySabotage::DropBranch) && after.branches.len() > 1 {
            after.branches.pop_last();
        }
        let before = self.net.clone();
        let is_exchanged = after.links.len() > before.links.len() && !before.branches.is_empty();
        if sabotage == Some(TopologySabotage::HastyExchange) && is_exchanged {
            after.branches.pop_first();
        }
        let mut steps = changes(&before, &after);
        if sabotage == Some(TopologySabotage::KeepBranches) {
            steps.iter_mut().for_each(keep_branch);
        }
        if let Err(why) = self.go(local, steps) {
            let back = changes(&self.net, &before);
            return match self.go(local, back) {
                Ok(()) => Err(why),
                Err(worse) => Err(format!("{why}; and it could not be taken back: {worse}")),
            };
        }
        self.net.names = after.names;
        Ok(())
    }

    /// Begins and ends detours that are due, and says to neighbours what there is to say, if it does. Returns how many
    /// have begun, and when to look again.
    pub(crate) fn review_detours(
        &mut self,
        now: Time,
        (has_controller, says): (bool, bool),
    ) -> Result<(u32, Option<Time>), String> {
        let local = self.local(now);
        if self.thread.is_none() {
            return Ok((0, None));
        }
        self.detours.set_controller(local, has_controller);
        let before = self.detours.clone();
        let has_changed = self.detours.review(local, self.side.items());
        if has_changed || core::mem::take(&mut self.is_to_apply) {
            let items = self.detours.apply_to(self.side.items()).into_owned();
            self.apply_items(local, &items, None)?;
        }
        while let Some(Said { to: key, comtree, search }) = self.detours.poll_said() {
            if !says {
                continue;
            }
            let search = Change::Search { key, thread: 0, comtree, search };
            self.change(local, search).map_err(|why| why.to_string())?;
        }
        let begun = self.detours.comtrees().filter(|comtree| !before.has(*comtree)).count();
        let begun = begun as u32 + core::mem::take(&mut self.found);
        let next = self.detours.poll_timeout(local, self.side.items());
        Ok((begun, next.map(|at| self.global(at))))
    }

    fn go(&mut self, local: Time, steps: Vec<Change>) -> Result<(), String> {
        for step in steps {
            self.change(local, step.clone()).map_err(|why| why.to_string())?;
            self.net.took(&step);
        }
        Ok(())
    }

    fn change(&mut self, local: Time, change: Change) -> Result<(), Refusal> {
        let thread = self.thread.as_mut();
        thread.map_or(Ok(()), |thread| thread.turn.relay_mut().apply(local, change))
    }

    /// Looks how its links stand, as the daemon's agent does now and then.
    pub(crate) fn look(&mut self, now: Time) {
        let local = self.local(now);
        let Some(thread) = &self.thread else { return };
        let (mut own, free) = (BTreeMap::new(), self.net.free_bits());
        for link in thread.turn.relay().links() {
            let seen = Seen::from(&link);
            if let Some(report) = self.watch.seen(local, &link.key, seen) {
                self.side.set_link(local, report);
                let free_bits = free.get(&link.key).copied().unwrap_or(0);
                own.insert(link.key, seen.detail(&report, free_bits));
            }
        }
        self.states.set_links(local, own);
    }

    /// Tells neighbours what relays say of their links, and the controller to which relays links lead after which it asks.
    /// Returns when to do so again.
    pub(crate) fn flood(&mut self, now: Time) -> Result<Option<Time>, String> {
        let local = self.local(now);
        if self.thread.is_none() {
            return Ok(None);
        }
        self.states.review(local);
        while let Some(Flooded { to: key, packets }) = self.states.poll_flooded() {
            let packets = packets.into_iter().map(|packet| (key, packet)).collect();
            let send = Change::SendLinkStates { thread: 0, packets };
            self.change(local, send).map_err(|why| why.to_string())?;
        }
        if let Some(asked) = self.side.poll_asked_after() {
            let reachable = self.states.reachable();
            self.side.set_reachable(&reachable.intersection(&asked).copied().collect::<Vec<_>>());
        }
        Ok(self.states.poll_timeout().map(|at| self.global(at)))
    }

    /// A datagram arrives. Returns when that wants a turn.
    pub(crate) fn arrive(&mut self, now: Time, from: SocketAddr, bytes: Rc<[u8]>) -> Option<Time> {
        let local = self.local(now);
        let (_, inlet) = steer(&bytes, 1);
        let thread = self.thread.as_mut()?;
        let waiting = Waiting { from, bytes, at: local, participant: None, corrupted: false };
        let at = thread.arrive(inlet, waiting)?;
        Some(self.global(at))
    }

    /// Returns when its data thread wants its next turn by itself.
    pub(crate) fn next_turn(&mut self) -> Option<Time> {
        let at = self.thread.as_mut()?.next_turn()?;
        Some(self.global(at))
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        let local = self.local(now);
        self.thread.as_ref().is_some_and(|thread| thread.is_due(local))
    }

    /// Its data thread has its turn. Returns what it sends.
    pub(crate) fn turn(&mut self, now: Time) -> Vec<Sent> {
        let local = self.local(now);
        let Some(thread) = &mut self.thread else { return Vec::new() };
        thread.begin_turn(local + self.turn);
        let mut sockets = Sockets::new(local, &mut thread.inboxes, &mut self.opened);
        let Ok(_) = thread.turn.run(local, &mut sockets);
        let sent = sockets.sent;
        let relay = thread.turn.relay_mut();
        while let Some(notice) = relay.poll_notice() {
            match notice {
                Notice::LinkUp { key } | Notice::LinkDown { key } => {
                    let up = matches!(notice, Notice::LinkUp { .. });
                    let link = relay.links().find(|link| link.key == key);
                    let round_trip = link.and_then(|link| link.round_trip).unwrap_or_default();
                    self.detours.hear_link(local, key, up);
                    self.states.hear_link(local, &key, up);
                    let delay_us = (round_trip.as_micros() / 2) as u32;
                    if let Some(report) = self.watch.told(local, &key, up, delay_us) {
                        self.side.set_link(local, report);
                    }
                }
                Notice::ParentSucceeded { comtree } if self.detours.succeeded(comtree) => {
                    self.is_to_apply = true;
                }
                Notice::LinkState { key, packet } => self.states.hear(local, &key, &packet),
                Notice::ParentSucceeded { comtree } => self.side.set_succeeded(local, comtree),
                Notice::Search { key, comtree, search } => {
                    let (items, before) = (self.side.items(), self.detours.ways().count());
                    self.is_to_apply |=
                        self.detours.hear_search(local, items, &key, comtree, search);
                    self.found += self.detours.ways().count().saturating_sub(before) as u32;
                }
                _ => {}
            }
        }
        thread.end_turn(local);
        sent
    }

    fn config(&self) -> RelayConfig {
        RelayConfig {
            mode: Mode::Immediate,
            comtrees: Vec::new(),
            trust: Some(Arc::clone(&self.trust)),
            origin: UNIX_ZERO,
            places: Places::new(SESSIONS),
            max_sessions: SESSIONS,
            max_datagram: SAFE_DATAGRAM as u16,
            slow_suites: 0,
            address_rest: ADDRESS_REST,
            life: Some(self.life),
            log_keys: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: SessionLimits::default(),
            tables: TableLimits {
                max_groups: 1 << 12,
                max_subscriptions: 1 << 14,
                ..TableLimits::default()
            },
            budgets: self.budgets,
            gate: Gate::new(GateLimits::default(), &[6; 16]),
            smallest_set: None,
        }
    }
}

/// A branch stays that was to go, and everything passes over it both ways.
fn keep_branch(step: &mut Change) {
    if let Change::RemoveBranch(branch) = *step {
        *step = Change::SetBranchRole { branch, role: BranchRole::Core };
    }
}
