//! A flush: pending updates become cohorts, bursts and sends.

mod limited;
mod send;

use crate::burst::{Burst, Fillers, Own};
use crate::cohorts::Cohorts;
use crate::comtrees::Comtrees;
use crate::counters::Counters;
use crate::index::{NONE, PortIndex};
use crate::path::Paths;
use crate::pending::{Audience, MAX_PENDING_BYTES, Pending};
use crate::ports::Ports;
use crate::shape::PeerClass;
use crate::subscriptions::SubscriptionTable;
use crate::thin::Thinning;
use canopy_batch::{Part, SendBatch};
use canopy_session::{SessionIndex, Sessions};
use canopy_wire::{Downlink, DropReason, Level, Path, SEAL_LEN, Time, Traffic, Weight};
use core::net::IpAddr;
use send::{push_run, seal_all, seal_run};

/// What a flush reads of the relay.
pub(crate) struct Tables<'a> {
    pub(crate) table: &'a mut SubscriptionTable,
    pub(crate) ports: &'a Ports,
    pub(crate) sessions: &'a mut Sessions,
    /// Where it is noted what each receiver was sent.
    pub(crate) paths: &'a mut Paths,
    /// Addresses to which nothing can be sent right now.
    pub(crate) unreachable: &'a [IpAddr],
    pub(crate) thinning: &'a mut Thinning,
    pub(crate) now: Time,
}

impl Tables<'_> {
    /// Where a port's datagrams go; `None` if whoever it led to is gone.
    fn path(&self, port: PortIndex) -> Option<Path> {
        self.sessions.path(self.session(port)?)
    }

    /// The session of a port.
    fn session(&self, port: PortIndex) -> Option<SessionIndex> {
        self.ports.get(port)?.peer.session()
    }

    fn is_relay(&self, port: PortIndex) -> bool {
        let class = self.ports.get(port).map(|port| port.shape.class);
        class.is_some_and(|class| class != PeerClass::Participant)
    }

    fn is_unreachable(&self, path: Path) -> bool {
        // A socket for both families shows IPv4 as a part of IPv6.
        let remote = || path.remote.ip().to_canonical();
        !self.unreachable.is_empty() && self.unreachable.contains(&remote())
    }
}

/// Sealed bytes that are gathered before they leave: what one receiver is sent is no other's, so they
/// add up, and should still be near when the kernel copies them.
const SEALED_BYTES: usize = 256 << 10;

/// What a flush adds to the relay's counts.
pub(crate) struct FlushCounts<'a> {
    pub(crate) counters: &'a mut Counters,
    pub(crate) comtrees: &'a mut Comtrees,
}

/// The relay's totals that are also kept by comtree, read before and after a cohort is sent to.
struct FlushTotals {
    deliveries: u64,
    bytes: u64,
    drops: u64,
}

impl FlushTotals {
    fn of(counters: &Counters) -> FlushTotals {
        let drops =
            counters.dropped(DropReason::Unreachable) + counters.dropped(DropReason::HopLimit);
        FlushTotals { deliveries: counters.deliveries_out, bytes: counters.bytes_out, drops }
    }
}

/// The memory of a flush.
pub(crate) struct Fanout {
    cohorts: Cohorts,
    burst: Burst,
    /// Members of the cohort at work that need a burst without what came from them.
    apart: Vec<PortIndex>,
    /// What such a member gets of what was chosen for a row.
    own: Vec<u32>,
    /// A cohort with at least this many members is a set: all of them are sent the same bytes.
    smallest_set: Option<u32>,
    /// The first byte of filler that was written last, and where in the batch it is.
    filler: Option<(u8, Part)>,
    /// The burst of a cohort whose members are each sent it under their own key.
    plain: Vec<u8>,
    /// How the burst at work is sealed.
    sealed: Sealed,
    /// The limited receivers of the target at work.
    limited: Vec<(PortIndex, Level, Weight)>,
    /// The updates that a row is sent.
    chosen: Vec<u32>,
}

/// How the copies of a burst are sealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sealed {
    /// Not at all: they share the bytes, but for filler.
    Not,
    /// Each with its receiver's key. Until then the burst is apart from the batch's bytes.
    ForEach,
    /// Once with the comtree's key: they share the bytes to the last.
    ForAll,
}

/// A receiver's copy of a burst.
struct Copy {
    path: Path,
    /// What is its own.
    fillers: Fillers,
    /// What is not.
    updates: u64,
}

/// A batch that is sent whenever it is full.
struct Outbox<'a, F: FnMut(&SendBatch)> {
    batch: &'a mut SendBatch,
    send: F,
}

impl<F: FnMut(&SendBatch)> Outbox<'_, F> {
    /// Sends what is there; the bytes stay, for the burst at work.
    fn send(&mut self) {
        if !self.batch.is_empty() {
            (self.send)(self.batch);
            self.batch.clear_transmits();
        }
    }
}

impl Fanout {
    pub(crate) fn new(max_ports: u32, max_pairs: u32, smallest_set: Option<u32>) -> Fanout {
        Fanout {
            cohorts: Cohorts::new(max_ports, max_pairs),
            burst: Burst::new(),
            apart: Vec::with_capacity(max_ports as usize),
            own: Vec::new(),
            smallest_set,
            filler: None,
            plain: Vec::with_capacity(2 * MAX_PENDING_BYTES),
            sealed: Sealed::Not,
            limited: Vec::with_capacity(max_ports as usize),
            chosen: Vec::new(),
        }
    }

    /// Sends all pending updates to whom they concern, through `batch`, which may have sends
    /// already. What is in it afterwards leaves with what follows ([`Fanout::send_to_limited`]).
    ///
    /// The batch's bytes hold the burst of the cohort at work. When the batch has no room for another
    /// send, its sends leave and the bytes stay, because the next members' sends point into them
    /// ([`Outbox::send`]). The bytes go between two layouts only, when there are many of them.
    /// Sending never waits, so the loop always runs to its end.
    pub(crate) fn send_all(
        &mut self,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counts: &mut FlushCounts<'_>,
        batch: &mut SendBatch,
        send: impl FnMut(&SendBatch),
    ) {
        let mut out = Outbox { batch, send };
        // 1. Receivers of the same updates become cohorts, but for those who cannot be sent everything.
        self.find_cohorts(pending, tables, counts);
        for node in self.cohorts.nodes() {
            if self.cohorts.first_member(node) == NONE {
                continue;
            }
            // 2. A cohort's updates are laid out once, behind what waits in the batch.
            let Some(comtree) =
                self.compose(node, None, pending, tables, counts.comtrees, &mut out)
            else {
                continue;
            };
            let before = FlushTotals::of(counts.counters);
            // 3. Its members are sent them.
            if self.sealed == Sealed::ForAll || self.is_set(node) {
                self.send_to_set(node, pending, tables, counts.counters, &mut out);
            } else {
                self.send_to_each(node, pending, tables, counts.counters, &mut out);
            }
            // 4. Those from whom much of it came get a layout of their own. By now the others' sends
            //    are in the batch, so the burst may be composed anew behind them.
            while let Some(receiver) = self.apart.pop() {
                self.compose(node, Some(receiver), pending, tables, counts.comtrees, &mut out);
                self.send_to_one(receiver, pending, tables, counts.counters, &mut out);
            }
            let after = FlushTotals::of(counts.counters);
            let counters = &mut counts.comtrees.get_mut(comtree).counters;
            counters.deliveries_out += after.deliveries - before.deliveries;
            counters.bytes_out += after.bytes - before.bytes;
            counters.drops += after.drops - before.drops;
        }
        self.cohorts.clear();
    }

    /// Sends limited receivers what it is the turn of, and what is in the batch; what is pending stays.
    pub(crate) fn send_to_limited(
        &mut self,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counts: &mut FlushCounts<'_>,
        batch: &mut SendBatch,
        send: impl FnMut(&SendBatch),
    ) {
        let mut out = Outbox { batch, send };
        if tables.thinning.is_due(tables.now) {
            self.serve_limited(pending, tables, counts, &mut out);
        }
        out.send();
        out.batch.clear();
        self.filler = None;
    }

    /// Sorts the receivers of all pending updates into cohorts. What is for limited receivers waits with
    /// them.
    fn find_cohorts(
        &mut self,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counts: &mut FlushCounts<'_>,
    ) {
        for number in 0..pending.targets.len() as u32 {
            let target = pending.targets[number as usize];
            match target.audience {
                Audience::Nobody => {}
                Audience::Port(port) => self.add(port, number, (Level(u8::MAX), None), tables),
                Audience::Tree => self.add_tree(target.comtree, number, tables, counts.comtrees),
                Audience::Group(group) => {
                    self.add_tree(target.comtree, number, tables, counts.comtrees);
                    let above = counts.comtrees.above(target.comtree);
                    for (port, level, weight) in tables.table.members(group) {
                        if !above.is_empty() && above.contains(&port) {
                            continue;
                        }
                        if level >= target.highest {
                            // All levels that let everything through are one.
                            self.add(port, number, (Level(u8::MAX), Some(weight)), tables);
                        } else if level >= target.lowest {
                            self.add(port, number, (level, Some(weight)), tables);
                        }
                    }
                }
            }
            if !self.limited.is_empty() {
                let is_for_one = matches!(target.audience, Audience::Port(_));
                self.note_limited(number, is_for_one, tables);
            }
        }
        tables.thinning.tell_rows(tables.now, pending, |comtree, exhausted| {
            counts.counters.drops[DropReason::HopLimit as usize] += exhausted;
            counts.comtrees.get_mut(comtree).counters.drops += exhausted;
        });
        self.cohorts.seal();
    }

    /// Adds a receiver of a target.
    #[inline]
    fn add(
        &mut self,
        port: PortIndex,
        target: u32,
        (level, weight): (Level, Option<Weight>),
        tables: &Tables<'_>,
    ) {
        let Some(shape) = tables.ports.get(port).map(|port| port.shape) else { return };
        if tables.thinning.is_limited(port) {
            self.limited.push((port, level, weight.unwrap_or_default()));
        } else {
            self.cohorts.add(port, shape, target, level);
        }
    }

    /// Adds a target's receivers that get every update to a group.
    fn add_tree(&mut self, comtree: u32, target: u32, tables: &Tables<'_>, comtrees: &Comtrees) {
        for port in comtrees.everything(comtree) {
            self.add(*port, target, (Level(u8::MAX), None), tables);
        }
    }

    /// Whether a cohort's members are all sent the same bytes, for an engine that clones them. Relays
    /// never are: what is their own they would take for new.
    fn is_set(&self, node: u32) -> bool {
        self.cohorts.shape(node).class == PeerClass::Participant
            && self.sealed != Sealed::ForEach
            && self
                .smallest_set
                .is_some_and(|least| self.cohorts.members_up_to(node, least) == least)
    }

    /// Lays the cohort's updates out, without what came from `exclude`: behind the batch's bytes, or
    /// apart from them if each member's copy is to be sealed. Returns the comtree that they are on.
    fn compose<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        exclude: Option<PortIndex>,
        pending: &mut Pending,
        tables: &Tables<'_>,
        comtrees: &mut Comtrees,
        out: &mut Outbox<'_, F>,
    ) -> Option<u32> {
        self.make_room(out);
        let shape = self.cohorts.shape(node);
        let first = self.cohorts.first_member(node);
        self.burst.choose(pending, self.cohorts.targets(node), shape.class, exclude);
        let is_shared = exclude.is_none() && self.is_shared(node, pending);
        self.lay_out(first, is_shared, pending, tables, comtrees, out)
    }

    /// Lets the bytes of a heavy batch go, where no burst is at work.
    fn make_room<F: FnMut(&SendBatch)>(&mut self, out: &mut Outbox<'_, F>) {
        if out.batch.is_heavy() {
            out.send();
            out.batch.clear();
            self.filler = None;
        }
    }

    /// Lays the burst's updates out for a receiver and those who are sent the same: sealed once for all of
    /// them, if they are several members of a comtree and share its key.
    fn lay_out<F: FnMut(&SendBatch)>(
        &mut self,
        receiver: PortIndex,
        is_shared: bool,
        pending: &mut Pending,
        tables: &Tables<'_>,
        comtrees: &mut Comtrees,
        out: &mut Outbox<'_, F>,
    ) -> Option<u32> {
        // A port is on one comtree, so all its targets are, and so is its whole cohort.
        let port = tables.ports.get(receiver)?;
        let downlink = comtrees.get(port.comtree_index).downlink;
        self.sealed = match (port.shape.class, downlink) {
            (PeerClass::Participant, Downlink::Group) if is_shared => Sealed::ForAll,
            (PeerClass::Participant, Downlink::None) => Sealed::Not,
            _ => Sealed::ForEach,
        };
        let (burst, layout) = (&mut self.burst, (port.comtree, port.shape));
        match self.sealed {
            Sealed::Not => burst.lay_out(pending, layout, 0, out.batch.bytes_mut()),
            Sealed::ForEach => {
                // Its sealed copies may take the place of the batch's bytes.
                self.filler = None;
                self.plain.clear();
                burst.lay_out(pending, layout, 0, &mut self.plain);
            }
            Sealed::ForAll => {
                burst.lay_out(pending, layout, SEAL_LEN, out.batch.bytes_mut());
                let sealer = comtrees.sealer(port.comtree_index, burst.datagrams())?;
                seal_all(burst, sealer, out.batch.bytes_mut());
            }
        }
        Some(port.comtree_index)
    }

    /// Whether a cohort's members may be sent bytes that were sealed for all: not if there is one only, or
    /// if it is for one endpoint's eyes in part. Receivers of unicast are cohorts of their own.
    fn is_shared(&self, node: u32, pending: &Pending) -> bool {
        let is_for_one = |(target, _): (u32, Level)| {
            matches!(pending.targets[target as usize].audience, Audience::Port(_))
        };
        self.cohorts.members_up_to(node, 2) == 2 && !self.cohorts.targets(node).any(is_for_one)
    }

    /// Sends the burst to the members of a cohort, each without what came from it.
    fn send_to_each<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        let mut member = self.cohorts.first_member(node);
        while member != NONE {
            let exhausted = self.burst.exhausted_for(member) as u64;
            counters.drops[DropReason::HopLimit as usize] += exhausted;
            self.send_to_one(member, pending, tables, counters, out);
            member = self.cohorts.next_member(member);
        }
    }

    /// Sends the burst to a receiver that has an allowance for it; another is limited from now on.
    fn send_to_one<F: FnMut(&SendBatch)>(
        &mut self,
        receiver: PortIndex,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        let Some(copy) = self.copy_for(receiver, pending, tables, counters) else { return };
        if !tables.thinning.fits(tables.now, receiver, (self.bytes_for_each(), copy.updates)) {
            return self.limit(receiver, pending, tables);
        }
        self.push(receiver, &copy, tables, counters, out);
    }

    /// The bytes that each receiver is sent of the burst at work.
    fn bytes_for_each(&self) -> u64 {
        let seals =
            if self.sealed == Sealed::ForEach { self.burst.datagrams() * SEAL_LEN } else { 0 };
        (self.burst.bytes() + seals) as u64
    }

    /// A receiver's copy of the burst at work; `None` if it gets none, or another layout.
    fn copy_for(
        &mut self,
        receiver: PortIndex,
        pending: &Pending,
        tables: &Tables<'_>,
        counters: &mut Counters,
    ) -> Option<Copy> {
        let fillers = match self.burst.own(pending, receiver) {
            Own::Absent => Fillers::default(),
            Own::Few(fillers) => fillers,
            Own::Everything => return None,
            Own::Many => {
                self.apart.push(receiver);
                return None;
            }
        };
        if !fillers.parts().is_empty() && tables.is_relay(receiver) {
            // A datagram's hop limit is the least of its updates: what goes one way must not have the
            // limit of what goes the other.
            self.apart.push(receiver);
            return None;
        }
        let updates = (self.burst.updates() - fillers.parts().len()) as u64;
        let Some(path) = tables.path(receiver) else {
            // A participant that left since its updates arrived was counted then. A link that is down
            // has its branches still.
            let is_down = tables.ports.get(receiver).is_some();
            counters.drops[DropReason::Unreachable as usize] += if is_down { updates } else { 0 };
            return None;
        };
        if tables.is_unreachable(path) {
            counters.drops[DropReason::Unreachable as usize] += updates;
            return None;
        }
        Some(Copy { path, fillers, updates })
    }

    /// Puts a receiver's copy of the burst at work into the batch.
    #[inline]
    fn push<F: FnMut(&SendBatch)>(
        &mut self,
        receiver: PortIndex,
        Copy { path, fillers, updates }: &Copy,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        counters.deliveries_out += updates;
        counters.padding_bytes_out += u64::from(self.burst.padding());
        let before = sent_so_far(counters);
        let session = tables.session(receiver).filter(|_| self.sealed == Sealed::ForEach);
        for run in self.burst.runs() {
            match session {
                Some(session) => {
                    let to = (*path, session);
                    seal_run(run, to, fillers, (&self.plain, tables), counters, out);
                }
                None => push_run(run, *path, fillers, &mut self.filler, counters, out),
            }
        }
        let sent = sent_so_far(counters).since(before);
        tables.paths.sent(receiver, *updates as u32, sent);
    }

    /// Sends the burst to the members of a set, what came from them included, which they drop. All
    /// members get a run before any gets the next, so that sends of the same bytes follow one
    /// another. Where no engine clones them, a member from whom much of it came gets its own layout.
    fn send_to_set<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        let is_set = self.is_set(node);
        for number in 0..self.burst.runs().len() {
            let run = self.burst.runs()[number];
            let mut member = self.cohorts.first_member(node);
            while member != NONE {
                let receiver = member;
                member = self.cohorts.next_member(receiver);
                if tables.thinning.is_limited(receiver) {
                    // The first run was too much already.
                    continue;
                }
                let own = self.burst.count_own(pending, receiver);
                let others = self.burst.updates() - own;
                // Whoever left since its updates arrived has no path: its copies end here.
                let Some(path) = tables.path(receiver).filter(|_| others > 0) else { continue };
                if !is_set && self.burst.is_mostly_own(own) {
                    if number == 0 {
                        self.apart.push(receiver);
                    }
                    continue;
                }
                if tables.is_unreachable(path) {
                    let dropped = if number == 0 { others as u64 } else { 0 };
                    counters.drops[DropReason::Unreachable as usize] += dropped;
                    continue;
                }
                if number == 0 {
                    let cost = (self.bytes_for_each(), others as u64);
                    if !tables.thinning.fits(tables.now, receiver, cost) {
                        self.limit(receiver, pending, tables);
                        continue;
                    }
                    counters.deliveries_out += others as u64;
                    counters.echoes_out += own as u64;
                    counters.padding_bytes_out += u64::from(self.burst.padding());
                }
                let before = sent_so_far(counters);
                push_run(&run, path, &Fillers::default(), &mut self.filler, counters, out);
                let updates = if number == 0 { others as u32 } else { 0 };
                tables.paths.sent(receiver, updates, sent_so_far(counters).since(before));
            }
        }
    }
}

/// The datagrams that were sent, and their bytes; both wrap.
fn sent_so_far(counters: &Counters) -> Traffic {
    Traffic { datagrams: counters.datagrams_out as u32, bytes: counters.bytes_out as u32 }
}
