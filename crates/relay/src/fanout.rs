//! A flush: pending updates become cohorts, bursts and sends.

use crate::NONE;
use crate::burst::{Burst, Fillers, Own, Run, Sender};
use crate::cohorts::Cohorts;
use crate::comtrees::Comtrees;
use crate::counters::Counters;
use crate::pending::{Audience, Pending};
use crate::ports::{Peer, PeerClass, PortIndex, Ports};
use crate::subscriptions::SubscriptionTable;
use canopy_batch::{MAX_PARTS_PER_TRANSMIT, Part, SendBatch};
use canopy_session::Sessions;
use canopy_wire::{
    Address, DropReason, Flags, Level, Path, RECORD_HEADER_LEN, encode_record_header,
};
use core::net::IpAddr;

/// What a flush reads of the relay.
pub(crate) struct Tables<'a> {
    pub(crate) table: &'a SubscriptionTable,
    pub(crate) ports: &'a Ports,
    pub(crate) sessions: &'a Sessions,
    /// Addresses to which nothing can be sent right now.
    pub(crate) unreachable: &'a [IpAddr],
}

impl Tables<'_> {
    /// Where a port's datagrams go; `None` if whoever it led to is gone.
    fn path(&self, port: PortIndex) -> Option<Path> {
        match self.ports.get(port)?.peer {
            Peer::Participant(session) => self.sessions.path(session),
            Peer::Branch(link) => self.ports.path_of_link(link),
            Peer::Sibling(_) => None,
        }
    }

    fn is_unreachable(&self, path: Path) -> bool {
        // A socket for both families shows IPv4 as a part of IPv6.
        let remote = || path.remote.ip().to_canonical();
        !self.unreachable.is_empty() && self.unreachable.contains(&remote())
    }
}

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
    /// The filler record made last, while its bytes are in the batch.
    filler: Option<Part>,
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
        tables: &Tables<'_>,
        books: &mut Books<'_>,
        batch: &mut SendBatch,
        send: impl FnMut(&SendBatch),
    ) {
        let mut out = Outbox { batch, send };
        // 1. Receivers of the same updates become cohorts.
        self.find_cohorts(pending, tables);
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
            if self.is_set(node) {
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
    fn find_cohorts(&mut self, pending: &Pending, tables: &Tables<'_>) {
        for (number, target) in (0..).zip(&pending.targets) {
            match target.audience {
                Audience::Nobody => {}
                Audience::Port(port) => {
                    if let Some(class) = tables.ports.get(port).map(|port| port.class) {
                        self.cohorts.add(port, class, number, Level(u8::MAX));
                    }
                }
                Audience::Group(group) => {
                    for (port, level) in tables.table.members(group) {
                        let Some(class) = tables.ports.get(port).map(|port| port.class) else {
                            continue;
                        };
                        if level >= target.highest {
                            // All levels that let everything through are one.
                            self.cohorts.add(port, class, number, Level(u8::MAX));
                        } else if level >= target.lowest {
                            self.cohorts.add(port, class, number, level);
                        }
                    }
                }
            }
        }
        self.cohorts.seal();
    }

    /// Whether a cohort's members are all sent the same bytes. Relays never are: what is their own
    /// they would take for new.
    fn is_set(&self, node: u32) -> bool {
        self.cohorts.class(node) == PeerClass::Participant
            && self
                .smallest_set
                .is_some_and(|least| self.cohorts.members_up_to(node, least) == least)
    }

    /// Lays the cohort's updates out behind the batch's bytes, without what came from `exclude`.
    /// Returns the comtree that they are on.
    fn compose<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        exclude: Option<PortIndex>,
        pending: &mut Pending,
        tables: &Tables<'_>,
        comtrees: &Comtrees,
        out: &mut Outbox<'_, F>,
    ) -> Option<u32> {
        if out.batch.is_heavy() {
            // No burst is at work here, so its bytes may go.
            out.send();
            out.batch.clear();
            self.filler = None;
        }
        let class = self.cohorts.class(node);
        // A port is on one comtree, so all its targets are, and so is its whole cohort.
        let port = tables.ports.get(self.cohorts.first_member(node))?;
        self.burst.choose(pending, self.cohorts.targets(node), class, exclude);
        let is_relay = class != PeerClass::Participant;
        let address = is_relay.then(|| comtrees.get(port.comtree_index).own_address);
        let sender = Sender { comtree: port.comtree, address };
        self.burst.lay_out(pending, sender, out.batch.bytes_mut());
        Some(port.comtree_index)
    }

    /// Sends the burst to the members of a cohort, each without what came from it.
    fn send_to_each<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        pending: &Pending,
        tables: &Tables<'_>,
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
        tables: &Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        let fillers = match self.burst.own(pending, receiver) {
            Own::Absent => Fillers::default(),
            Own::Few(fillers) => fillers,
            Own::Everything => return,
            Own::Many => return self.apart.push(receiver),
        };
        // Whoever left since its updates arrived has no path: its copies end here.
        let Some(path) = tables.path(receiver) else { return };
        let updates = (self.burst.updates() - fillers.parts().len()) as u64;
        if tables.is_unreachable(path) {
            counters.drops[DropReason::Unreachable as usize] += updates;
            return;
        }
        counters.deliveries_out += updates;
        counters.padding_bytes_out += u64::from(self.burst.padding());
        for run in self.burst.runs() {
            push_run(run, path, &fillers, &mut self.filler, counters, out);
        }
    }

    /// Sends the burst to the members of a set, what came from them included, which they drop. All
    /// members get a run before any gets the next, so that sends of the same bytes follow one
    /// another.
    fn send_to_set<F: FnMut(&SendBatch)>(
        &mut self,
        node: u32,
        pending: &Pending,
        tables: &Tables<'_>,
        counters: &mut Counters,
        out: &mut Outbox<'_, F>,
    ) {
        for (number, run) in self.burst.runs().iter().enumerate() {
            let mut member = self.cohorts.first_member(node);
            while member != NONE {
                let receiver = member;
                member = self.cohorts.next_member(receiver);
                let own = self.burst.count_own(pending, receiver);
                let others = self.burst.updates() - own;
                // Whoever left since its updates arrived has no path: its copies end here.
                let Some(path) = tables.path(receiver).filter(|_| others > 0) else { continue };
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

/// Adds one send: the run's bytes, with filler in the place of what came from the receiver.
fn push_run<F: FnMut(&SendBatch)>(
    run: &Run,
    to: Path,
    fillers: &Fillers,
    filler: &mut Option<Part>,
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
            add(filler_of(own.end - own.start, filler, out.batch.bytes_mut()));
            counters.padding_bytes_out += u64::from(own.end - own.start);
            at = own.end;
        }
    }
    add(Part { start: at, end: run.part.end });
    let transmit = out.batch.push(to, &parts[..count], run.segment);
    counters.bytes_out += u64::from(transmit.len);
    counters.datagrams_out += u64::from(transmit.datagrams());
    counters.segmented_sends += u64::from(transmit.len > transmit.segment.into());
}

/// A filler record of `len` bytes; receivers' own updates are mostly of one length, so the last one
/// made is kept.
fn filler_of(len: u32, made: &mut Option<Part>, bytes: &mut Vec<u8>) -> Part {
    if let Some(part) = made.filter(|part| part.end - part.start == len) {
        return part;
    }
    let start = bytes.len();
    let payload_len = len as usize - RECORD_HEADER_LEN;
    let nowhere = Address::UNSPECIFIED;
    let head = encode_record_header(Flags::FILLER, Level(0), nowhere, nowhere, payload_len as u16);
    bytes.extend_from_slice(&head);
    bytes.resize(start + len as usize, 0);
    let part = Part { start: start as u32, end: (start + len as usize) as u32 };
    *made = Some(part);
    part
}
