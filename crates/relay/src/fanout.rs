//! A flush: pending updates become cohorts, bursts and sends.

use crate::NONE;
use crate::burst::{Burst, Fillers, Own, Run};
use crate::cohorts::Cohorts;
use crate::comtrees::Comtrees;
use crate::counters::Counters;
use crate::pending::{Audience, MAX_PENDING_BYTES, Pending};
use crate::ports::{PeerClass, PortIndex, Ports};
use crate::subscriptions::SubscriptionTable;
use canopy_batch::{MAX_PARTS_PER_TRANSMIT, Part, SendBatch};
use canopy_session::{GroupSealer, SessionIndex, Sessions};
use canopy_wire::{Downlink, DropReason, Flags, Level, Path, SEAL_LEN};
use core::net::IpAddr;

/// What a flush reads of the relay.
pub(crate) struct Tables<'a> {
    pub(crate) table: &'a SubscriptionTable,
    pub(crate) ports: &'a Ports,
    pub(crate) sessions: &'a mut Sessions,
    /// Addresses to which nothing can be sent right now.
    pub(crate) unreachable: &'a [IpAddr],
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

/// What a flush adds to the relay's books.
pub(crate) struct Books<'a> {
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
    /// A cohort with at least this many members is a set: all of them are sent the same bytes.
    smallest_set: Option<u32>,
    /// The first byte of filler that was written last, and where in the batch it is.
    filler: Option<(u8, Part)>,
    /// The burst of a cohort whose members are each sent it under their own key.
    plain: Vec<u8>,
    /// How the burst at work is sealed.
    sealed: Sealed,
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
            smallest_set,
            filler: None,
            plain: Vec::with_capacity(2 * MAX_PENDING_BYTES),
            sealed: Sealed::Not,
        }
    }

    /// Sends all pending updates to whom they concern, through `batch`, which may have sends
    /// already and is empty afterwards.
    ///
    /// The batch's bytes hold the burst of the cohort at work. When the batch has no room for another
    /// send, its sends leave and the bytes stay, because the next members' sends point into them
    /// ([`Outbox::send`]). The bytes go between two layouts only, when there are many of them.
    /// Sending never waits, so the loop always runs to its end.
    pub(crate) fn send_all(
        &mut self,
        pending: &mut Pending,
        tables: &mut Tables<'_>,
        books: &mut Books<'_>,
        batch: &mut SendBatch,
        send: impl FnMut(&SendBatch),
    ) {
        let mut out = Outbox { batch, send };
        // 1. Receivers of the same updates become cohorts.
        self.find_cohorts(pending, tables, books.comtrees);
        for node in self.cohorts.nodes() {
            if self.cohorts.first_member(node) == NONE {
                continue;
            }
            // 2. A cohort's updates are laid out once, behind what waits in the batch.
            let Some(comtree) = self.compose(node, None, pending, tables, books.comtrees, &mut out)
            else {
                continue;
            };
            let before = FlushTotals::of(books.counters);
            // 3. Its members are sent them.
            if self.sealed == Sealed::ForAll || self.is_set(node) {
                self.send_to_set(node, pending, tables, books.counters, &mut out);
            } else {
                self.send_to_each(node, pending, tables, books.counters, &mut out);
            }
            // 4. Those from whom much of it came get a layout of their own. By now the others' sends
            //    are in the batch, so the burst may be composed anew behind them.
            while let Some(receiver) = self.apart.pop() {
                self.compose(node, Some(receiver), pending, tables, books.comtrees, &mut out);
                self.send_to_one(receiver, pending, tables, books.counters, &mut out);
            }
            let after = FlushTotals::of(books.counters);
            let counters = &mut books.comtrees.get_mut(comtree).counters;
            counters.deliveries_out += after.deliveries - before.deliveries;
            counters.bytes_out += after.bytes - before.bytes;
            counters.drops += after.drops - before.drops;
        }
        out.send();
        out.batch.clear();
        self.filler = None;
        self.cohorts.clear();
    }

    /// Sorts the receivers of all pending updates into cohorts.
    fn find_cohorts(&mut self, pending: &Pending, tables: &Tables<'_>, comtrees: &Comtrees) {
        for (number, target) in (0..).zip(&pending.targets) {
            match target.audience {
                Audience::Nobody => {}
                Audience::Port(port) => {
                    if let Some(shape) = tables.ports.get(port).map(|port| port.shape) {
                        self.cohorts.add(port, shape, number, Level(u8::MAX));
                    }
                }
                Audience::Tree => self.add_tree(target.comtree, number, tables, comtrees),
                Audience::Group(group) => {
                    let everything = comtrees.everything(target.comtree);
                    self.add_tree(target.comtree, number, tables, comtrees);
                    for (port, level) in tables.table.members(group) {
                        let Some(shape) = tables.ports.get(port).map(|port| port.shape) else {
                            continue;
                        };
                        if !everything.is_empty() && everything.contains(&port) {
                            continue;
                        }
                        if level >= target.highest {
                            // All levels that let everything through are one.
                            self.cohorts.add(port, shape, number, Level(u8::MAX));
                        } else if level >= target.lowest {
                            self.cohorts.add(port, shape, number, level);
                        }
                    }
                }
            }
        }
        self.cohorts.seal();
    }

    /// Adds a target's receivers that get every update to a group.
    fn add_tree(&mut self, comtree: u32, target: u32, tables: &Tables<'_>, comtrees: &Comtrees) {
        for port in comtrees.everything(comtree) {
            if let Some(shape) = tables.ports.get(*port).map(|port| port.shape) {
                self.cohorts.add(*port, shape, target, Level(u8::MAX));
            }
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
        if out.batch.is_heavy() {
            // No burst is at work here, so its bytes may go.
            out.send();
            out.batch.clear();
            self.filler = None;
        }
        let shape = self.cohorts.shape(node);
        // A port is on one comtree, so all its targets are, and so is its whole cohort.
        let port = tables.ports.get(self.cohorts.first_member(node))?;
        self.burst.choose(pending, self.cohorts.targets(node), shape.class, exclude);
        let downlink = comtrees.get(port.comtree_index).downlink;
        self.sealed = match (shape.class, downlink) {
            (PeerClass::Participant, Downlink::Member) => Sealed::ForEach,
            (PeerClass::Participant, Downlink::Group) => {
                self.for_all_or_each(node, exclude, pending)
            }
            (PeerClass::Participant, Downlink::None) => Sealed::Not,
            _ => Sealed::ForEach,
        };
        let (burst, layout) = (&mut self.burst, (port.comtree, shape));
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

    /// Whose key seals a burst where all members share one: theirs, unless it is for one receiver, or
    /// is for one endpoint's eyes in part. Receivers of unicast are cohorts of their own.
    fn for_all_or_each(&self, node: u32, exclude: Option<PortIndex>, pending: &Pending) -> Sealed {
        let is_for_one = |(target, _): (u32, Level)| {
            matches!(pending.targets[target as usize].audience, Audience::Port(_))
        };
        let is_alone = exclude.is_some() || self.cohorts.members_up_to(node, 2) < 2;
        if is_alone || self.cohorts.targets(node).any(is_for_one) {
            Sealed::ForEach
        } else {
            Sealed::ForAll
        }
    }

    /// Sends the burst to the members of a cohort, each without what came from it.
    fn send_to_each<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        pending: &Pending,
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

    fn send_to_one<F: FnMut(&SendBatch)>(
        &mut self,
        receiver: PortIndex,
        pending: &Pending,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        let fillers = match self.burst.own(pending, receiver) {
            Own::Absent => Fillers::default(),
            Own::Few(fillers) => fillers,
            Own::Everything => return,
            Own::Many => return self.apart.push(receiver),
        };
        if !fillers.parts().is_empty() && tables.is_relay(receiver) {
            // A datagram's hop limit is the least of its updates: what goes one way must not have the
            // limit of what goes the other.
            return self.apart.push(receiver);
        }
        let updates = (self.burst.updates() - fillers.parts().len()) as u64;
        let Some(path) = tables.path(receiver) else {
            // A participant that left since its updates arrived was counted then. A link that is down
            // has its branches still.
            let is_down = tables.ports.get(receiver).is_some();
            counters.drops[DropReason::Unreachable as usize] += if is_down { updates } else { 0 };
            return;
        };
        if tables.is_unreachable(path) {
            counters.drops[DropReason::Unreachable as usize] += updates;
            return;
        }
        counters.deliveries_out += updates;
        counters.padding_bytes_out += u64::from(self.burst.padding());
        let session = tables.session(receiver).filter(|_| self.sealed == Sealed::ForEach);
        for run in self.burst.runs() {
            match session {
                Some(session) => {
                    seal_run(run, (path, session), &fillers, (&self.plain, tables), counters, out);
                }
                None => push_run(run, path, &fillers, &mut self.filler, counters, out),
            }
        }
    }

    /// Sends the burst to the members of a set, what came from them included, which they drop. All
    /// members get a run before any gets the next, so that sends of the same bytes follow one
    /// another. Where no engine clones them, a member from whom much of it came gets its own layout.
    fn send_to_set<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        pending: &Pending,
        tables: &mut Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        let is_set = self.is_set(node);
        for (number, run) in self.burst.runs().iter().enumerate() {
            let mut member = self.cohorts.first_member(node);
            while member != NONE {
                let receiver = member;
                member = self.cohorts.next_member(receiver);
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
                    counters.deliveries_out += others as u64;
                    counters.echoes_out += own as u64;
                    counters.padding_bytes_out += u64::from(self.burst.padding());
                }
                push_run(run, path, &Fillers::default(), &mut self.filler, counters, out);
            }
        }
    }
}

/// Seals the datagrams of a burst for all members of a comtree. The key has room for them.
fn seal_all(burst: &Burst, sealer: &mut GroupSealer, bytes: &mut [u8]) {
    for run in burst.runs() {
        let datagrams = &mut bytes[run.part.start as usize..run.part.end as usize];
        for datagram in datagrams.chunks_mut(run.segment.into()) {
            let is_sealed = sealer.seal(datagram);
            debug_assert!(is_sealed, "the key had room");
        }
    }
}

/// Adds one send: the run's bytes, in which the records that came from the receiver are marked as
/// filler. Their bytes stay, for the records behind lean on their heads, and the rest is the
/// receiver's own.
fn push_run<F: FnMut(&SendBatch)>(
    run: &Run,
    to: Path,
    fillers: &Fillers,
    filler: &mut Option<(u8, Part)>,
    counters: &mut Counters,
    out: &mut Outbox<'_, F>,
) {
    if out.batch.is_full() {
        out.send();
    }
    let mut parts = [Part { start: 0, end: 0 }; MAX_PARTS_PER_TRANSMIT];
    let mut count = 0;
    let mut add = |part: Part| {
        parts[count] = part;
        count += usize::from(part.start < part.end);
    };
    let mut at = run.part.start;
    for own in fillers.parts() {
        if (run.part.start..run.part.end).contains(&own.start) {
            add(Part { start: at, end: own.start });
            add(filler_of(own.start, filler, out.batch.bytes_mut()));
            counters.padding_bytes_out += u64::from(own.end - own.start);
            at = own.start + 1;
        }
    }
    add(Part { start: at, end: run.part.end });
    let transmit = out.batch.push(to, &parts[..count], run.segment);
    counters.bytes_out += u64::from(transmit.len);
    counters.datagrams_out += u64::from(transmit.datagrams());
    counters.segmented_sends += u64::from(transmit.len > transmit.segment.into());
}

/// Adds one send of copies that are sealed for their receiver, datagram by datagram, in the batch's
/// bytes. The records that came from the receiver are marked as filler first.
fn seal_run<F: FnMut(&SendBatch)>(
    run: &Run,
    (to, session): (Path, SessionIndex),
    fillers: &Fillers,
    (plain, tables): (&[u8], &mut Tables<'_>),
    counters: &mut Counters,
    out: &mut Outbox<'_, F>,
) {
    if out.batch.is_full() || out.batch.bytes_mut().len() > SEALED_BYTES {
        out.send();
        out.batch.clear();
    }
    let (mut at, end) = (run.part.start as usize, run.part.end as usize);
    let bytes = out.batch.bytes_mut();
    let start = bytes.len();
    while at < end {
        let datagram = &plain[at..end.min(at + usize::from(run.segment))];
        let begin = bytes.len();
        bytes.extend_from_slice(datagram);
        bytes.resize(bytes.len() + SEAL_LEN, 0);
        for own in fillers.parts() {
            let first = (own.start as usize).wrapping_sub(at);
            if first < datagram.len() {
                bytes[begin + first] |= Flags::FILLER.0;
                counters.padding_bytes_out += u64::from(own.end - own.start);
            }
        }
        // The session lives, for it has a path.
        let _ = tables.sessions.seal(session, &mut bytes[begin..], datagram.len());
        at += datagram.len();
    }
    let part = Part { start: start as u32, end: bytes.len() as u32 };
    let transmit = out.batch.push(to, &[part], run.segment + SEAL_LEN as u16);
    counters.bytes_out += u64::from(transmit.len);
    counters.datagrams_out += u64::from(transmit.datagrams());
    counters.segmented_sends += u64::from(transmit.len > transmit.segment.into());
}

/// The first byte of the record at `at`, marked as filler; most records of a burst begin alike, so
/// the last one made is kept.
fn filler_of(at: u32, made: &mut Option<(u8, Part)>, bytes: &mut Vec<u8>) -> Part {
    let first = bytes[at as usize] | Flags::FILLER.0;
    if let Some((_, part)) = made.filter(|(byte, _)| *byte == first) {
        return part;
    }
    let start = bytes.len() as u32;
    bytes.push(first);
    let part = Part { start, end: start + 1 };
    *made = Some((first, part));
    part
}
