//! A flush: pending updates become cohorts, bursts and sends.

use crate::burst::{Blanks, Burst, Own, Run};
use crate::cohorts::{Cohorts, NONE};
use crate::counters::Counters;
use crate::pending::{Audience, Pending};
use crate::subscriptions::SubscriptionTable;
use canopy_batch::{MAX_PARTS_PER_TRANSMIT, Part, SendBatch};
use canopy_session::{Sessions, SlotIndex};
use canopy_wire::{Address, Flags, Level, RECORD_HEADER_LEN, encode_record_header};
use core::net::SocketAddr;

/// The state of a flush, which may take several batches.
pub(crate) struct Fanout {
    cohorts: Cohorts,
    burst: Burst,
    /// The cohort at work.
    node: u32,
    /// Its next member that shares the burst.
    member: SlotIndex,
    /// Its members that need a burst without their own updates.
    apart: Vec<SlotIndex>,
    /// The receiver that the burst is being sent to.
    sending: Option<Sending>,
    /// From how many members on a cohort is a set, whose members are all sent the same bytes.
    smallest_set: Option<u32>,
    /// While a set is at work: the run that its members are being sent.
    set_run: Option<usize>,
    /// Whether the burst's bytes are still needed.
    burst_live: bool,
    /// The filler record made last in this batch.
    filler: Option<Part>,
    active: bool,
}

/// One receiver, part way through a burst.
struct Sending {
    to: SocketAddr,
    next_run: usize,
    blanks: Blanks,
}

impl Fanout {
    pub(crate) fn new(max_sessions: u32, max_pairs: u32, smallest_set: Option<u32>) -> Fanout {
        Fanout {
            cohorts: Cohorts::new(max_sessions, max_pairs),
            burst: Burst::new(),
            node: 0,
            member: NONE,
            apart: Vec::with_capacity(max_sessions as usize),
            sending: None,
            smallest_set,
            set_run: None,
            burst_live: false,
            filler: None,
            active: false,
        }
    }

    /// Whether a flush is under way.
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// Empties the batch for the next sends; a burst with receivers to come keeps its bytes.
    pub(crate) fn start_batch(&mut self, batch: &mut SendBatch) {
        if self.burst_live {
            batch.clear_transmits();
        } else {
            batch.clear();
            self.filler = None;
        }
    }

    /// Sorts the receivers of all pending updates into cohorts.
    pub(crate) fn begin(&mut self, pending: &Pending, table: &SubscriptionTable) {
        for (number, target) in (0..).zip(&pending.targets) {
            match target.audience {
                Audience::Nobody => {}
                Audience::Endpoint(slot) => self.cohorts.add(slot, number, Level(u8::MAX)),
                Audience::Group(group) => {
                    for (slot, level) in table.members(group) {
                        if level >= target.highest {
                            // All levels that let everything through are one.
                            self.cohorts.add(slot, number, Level(u8::MAX));
                        } else if level >= target.lowest {
                            self.cohorts.add(slot, number, level);
                        }
                    }
                }
            }
        }
        self.cohorts.seal();
        self.active = true;
        self.node = 0;
    }

    /// Adds sends until the batch is full or the flush is over; then nothing is pending any more.
    pub(crate) fn fill(
        &mut self,
        pending: &mut Pending,
        sessions: &Sessions,
        batch: &mut SendBatch,
        counters: &mut Counters,
    ) {
        while !batch.is_full() {
            if let Some(sending) = &mut self.sending {
                match self.burst.runs().get(sending.next_run) {
                    Some(run) => {
                        sending.next_run += 1;
                        push_run(run, sending, &mut self.filler, batch, counters);
                    }
                    None => self.sending = None,
                }
            } else if let Some(run) = self.set_run {
                self.send_to_set_member(run, pending, sessions, batch, counters);
            } else if self.member != NONE {
                let receiver = self.member;
                self.member = self.cohorts.next_member(receiver);
                self.begin_receiver(receiver, pending, sessions, counters);
            } else if batch.is_heavy() {
                self.burst_live = false;
                if !batch.is_empty() {
                    return;
                }
                self.start_batch(batch);
            } else if let Some(receiver) = self.apart.pop() {
                self.compose(Some(receiver), pending, batch);
                self.begin_receiver(receiver, pending, sessions, counters);
            } else if self.node + 1 < self.cohorts.nodes() {
                self.node += 1;
                self.member = self.cohorts.first_member(self.node);
                if self.member != NONE {
                    self.compose(None, pending, batch);
                    self.set_run = self.is_set().then_some(0);
                }
            } else {
                self.cohorts.clear();
                pending.clear();
                self.active = false;
                self.burst_live = false;
                return;
            }
        }
    }

    /// Lays the cohort's updates out behind the batch's bytes, without what `exclude` published.
    fn compose(
        &mut self,
        exclude: Option<SlotIndex>,
        pending: &mut Pending,
        batch: &mut SendBatch,
    ) {
        let targets = self.cohorts.targets(self.node);
        self.burst.choose(pending, targets, exclude);
        // Groups are a comtree's own, so all targets of a cohort are on one.
        if let Some((target, _)) = self.cohorts.targets(self.node).next() {
            let comtree = pending.targets[target as usize].comtree;
            self.burst.lay_out(pending, comtree, batch.bytes_mut());
        }
        self.burst_live = true;
    }

    /// Whether all members of the cohort at work are sent the same bytes.
    fn is_set(&self) -> bool {
        self.smallest_set.is_some_and(|least| self.cohorts.members_up_to(self.node, least) == least)
    }

    /// Adds one run for the next member of a set. All members get a run before any gets the next,
    /// so that sends of the same bytes follow one another.
    fn send_to_set_member(
        &mut self,
        run: usize,
        pending: &Pending,
        sessions: &Sessions,
        batch: &mut SendBatch,
        counters: &mut Counters,
    ) {
        let receiver = self.member;
        if receiver == NONE {
            let more = run + 1 < self.burst.runs().len();
            self.set_run = more.then_some(run + 1);
            self.member = if more { self.cohorts.first_member(self.node) } else { NONE };
            return;
        }
        self.member = self.cohorts.next_member(receiver);
        let own = self.burst.count_own(pending, receiver);
        let others = self.burst.updates() - own;
        // A participant that left since the last receive has no session: its copies end here.
        let Some(session) = sessions.get(receiver).filter(|_| others > 0) else { return };
        if run == 0 {
            counters.deliveries_out += others as u64;
            counters.echoes_out += own as u64;
            counters.padding_bytes_out += u64::from(self.burst.padding());
        }
        let sending = Sending { to: session.ip_port(), next_run: run, blanks: Blanks::default() };
        push_run(&self.burst.runs()[run], &sending, &mut self.filler, batch, counters);
    }

    fn begin_receiver(
        &mut self,
        receiver: SlotIndex,
        pending: &Pending,
        sessions: &Sessions,
        counters: &mut Counters,
    ) {
        let blanks = match self.burst.own(pending, receiver) {
            Own::Absent => Blanks::default(),
            Own::Blanked(blanks) => blanks,
            Own::Everything => return,
            Own::Many => return self.apart.push(receiver),
        };
        // A participant that left since the last receive has no session: its copies end here.
        let Some(session) = sessions.get(receiver) else { return };
        counters.deliveries_out += (self.burst.updates() - blanks.places().len()) as u64;
        counters.padding_bytes_out += u64::from(self.burst.padding());
        self.sending = Some(Sending { to: session.ip_port(), next_run: 0, blanks });
    }
}

/// Adds one send: the run's bytes with filler in the place of the receiver's own updates.
fn push_run(
    run: &Run,
    sending: &Sending,
    filler: &mut Option<Part>,
    batch: &mut SendBatch,
    counters: &mut Counters,
) {
    let mut parts = [Part { start: 0, end: 0 }; MAX_PARTS_PER_TRANSMIT];
    let mut count = 0;
    let mut add = |part: Part| {
        parts[count] = part;
        count += usize::from(part.start < part.end);
    };
    let mut at = run.part.start;
    for place in sending.blanks.places() {
        if (run.part.start..run.part.end).contains(&place.start) {
            add(Part { start: at, end: place.start });
            add(filler_of(place.end - place.start, filler, batch.bytes_mut()));
            counters.padding_bytes_out += u64::from(place.end - place.start);
            at = place.end;
        }
    }
    add(Part { start: at, end: run.part.end });
    let transmit = batch.push(sending.to, &parts[..count], run.segment);
    counters.bytes_out += u64::from(transmit.len);
    counters.datagrams_out += u64::from(transmit.datagrams());
    counters.segmented_sends += u64::from(transmit.len > transmit.segment.into());
}

/// A void record of `len` bytes; receivers' own updates are mostly of one length, so the last one
/// made is kept.
fn filler_of(len: u32, made: &mut Option<Part>, bytes: &mut Vec<u8>) -> Part {
    if let Some(part) = made.filter(|part| part.end - part.start == len) {
        return part;
    }
    let start = bytes.len();
    let payload_len = len as usize - RECORD_HEADER_LEN;
    let nowhere = Address::UNSPECIFIED;
    let head = encode_record_header(Flags::VOID, Level(0), nowhere, nowhere, payload_len as u16);
    bytes.extend_from_slice(&head);
    bytes.resize(start + len as usize, 0);
    let part = Part { start: start as u32, end: (start + len as usize) as u32 };
    *made = Some(part);
    part
}
