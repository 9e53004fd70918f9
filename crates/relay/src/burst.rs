//! A cohort's updates laid out as datagrams: bundles, of equal size where that lets them leave as
//! one segmented send.

use crate::index::PortIndex;
use crate::pending::Pending;
use crate::shape::{PeerClass, Shape};
use canopy_batch::{MAX_SEGMENTS, MAX_SEND_BYTES, Part};
use canopy_wire::{
    Before, Comtree, Flags, HEADER_LEN, Header, Kind, Level, MAX_RECORDS, RecordHead, SEAL_LEN,
    SessionId,
};

/// Own updates of a receiver that filler replaces in a shared burst; with more of them, or where
/// they are a large part of it, the receiver gets a burst of its own.
pub(crate) const MAX_FILLERS: usize = 4;
// Each filler cuts a send into two parts more.
const _: () = assert!(2 * MAX_FILLERS < canopy_batch::MAX_PARTS_PER_TRANSMIT);
const MIN_SHARE_OF_OTHERS: usize = 4;
/// Padding a segment costs bytes, sending it alone costs a send: worth it up to a quarter.
const MAX_PADDING_SHARE: usize = 4;

/// Consecutive datagrams of a burst that leave in one send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) part: Part,
    pub(crate) segment: u16,
}

/// One datagram's share of the chosen updates: up to which, and how long it is.
#[derive(Clone, Copy, Debug)]
struct Cut {
    after: u32,
    len: u16,
}

/// The layout of a cohort's updates in a batch's bytes.
pub(crate) struct Burst {
    /// Tells the updates of this burst from those of earlier ones.
    number: u32,
    /// The updates' numbers, in order of arrival.
    records: Vec<u32>,
    /// The origins of those updates that relays do not get because their hops have run out.
    exhausted: Vec<PortIndex>,
    cuts: Vec<Cut>,
    runs: Vec<Run>,
    padding: u32,
}

/// Which updates of a shared burst came from a receiver, and so must not go back to it.
pub(crate) enum Own {
    /// None are there: the burst goes out as it is.
    Absent,
    /// All are its own: nothing to send.
    Everything,
    /// Filler takes the place of these.
    Few(Fillers),
    /// Too many for filler.
    Many,
}

/// The records of a burst that are to be filler, in the order of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fillers {
    parts: [Part; MAX_FILLERS],
    count: usize,
}

impl Fillers {
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }
}

impl Default for Fillers {
    fn default() -> Fillers {
        Fillers { parts: [Part { start: 0, end: 0 }; MAX_FILLERS], count: 0 }
    }
}

impl Burst {
    pub(crate) fn new() -> Burst {
        Burst {
            number: 0,
            records: Vec::with_capacity(crate::pending::MAX_PENDING_RECORDS),
            exhausted: Vec::with_capacity(crate::pending::MAX_PENDING_RECORDS),
            cuts: Vec::with_capacity(1024),
            runs: Vec::with_capacity(1024),
            padding: 0,
        }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The numbers of its updates.
    pub(crate) fn records(&self) -> &[u32] {
        &self.records
    }

    /// How many bytes it has, without seals that are yet to come.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| (run.part.end - run.part.start) as usize).sum()
    }

    pub(crate) fn datagrams(&self) -> usize {
        self.cuts.len()
    }

    pub(crate) fn updates(&self) -> usize {
        self.records.len()
    }

    /// How many updates more a relay would get, had their hops not run out.
    pub(crate) fn exhausted_for(&self, receiver: PortIndex) -> usize {
        self.exhausted.iter().filter(|origin| **origin != receiver).count()
    }

    /// Bytes of padding that each receiver is sent.
    pub(crate) fn padding(&self) -> u32 {
        self.padding
    }

    /// Chooses the updates of the burst: those of `targets` up to their levels that may go to a
    /// receiver of `class` and did not come from `exclude`, in order of arrival.
    pub(crate) fn choose(
        &mut self,
        pending: &mut Pending,
        targets: impl Iterator<Item = (u32, Level)>,
        class: PeerClass,
        exclude: Option<PortIndex>,
    ) {
        self.number = self.number.wrapping_add(1) % u32::MAX;
        self.records.clear();
        self.exhausted.clear();
        let mut merged = false;
        for (target, level) in targets {
            merged |= !self.records.is_empty();
            self.records.extend(pending.of_target(target).filter(|number| {
                let record = &pending.records[*number as usize];
                let is_for_class = match class {
                    PeerClass::Participant | PeerClass::TreeNeighbour => true,
                    // A core peer hears all the others itself (federated games, algorithm 3.1).
                    PeerClass::CorePeer => !record.from_core_peer,
                };
                if record.level > level || !is_for_class || exclude == Some(record.origin) {
                    return false;
                }
                let may_go_on = class == PeerClass::Participant || record.hops > 0;
                if !may_go_on {
                    self.exhausted.push(record.origin);
                }
                may_go_on
            }));
        }
        if merged {
            // What one publisher sent keeps its order across groups.
            self.records.sort_unstable();
        }
        for number in &self.records {
            pending.records[*number as usize].burst = self.number;
        }
    }

    /// Chooses these updates, in order of arrival, but for those that came from `exclude`.
    pub(crate) fn take(
        &mut self,
        pending: &mut Pending,
        numbers: &[u32],
        exclude: Option<PortIndex>,
    ) {
        self.number = self.number.wrapping_add(1) % u32::MAX;
        self.records.clear();
        self.exhausted.clear();
        for number in numbers {
            let record = &mut pending.records[*number as usize];
            if exclude != Some(record.origin) {
                record.burst = self.number;
                self.records.push(*number);
            }
        }
    }

    /// Writes the chosen updates behind `bytes`, as datagrams of their shape with room for a seal of
    /// `seal` bytes behind each, and gathers those that leave in one send.
    pub(crate) fn lay_out(
        &mut self,
        pending: &mut Pending,
        (comtree, shape): (Comtree, Shape),
        seal: usize,
        bytes: &mut Vec<u8>,
    ) {
        self.runs.clear();
        self.padding = 0;
        self.cut(pending, shape.datagrams.max_datagram() - SEAL_LEN);
        let segment = usize::from(self.cuts.iter().map(|cut| cut.len).max().unwrap_or(0));
        // What is sealed copy by copy later still has to fit a send.
        let room_for_seals = if seal == 0 { MAX_SEGMENTS * SEAL_LEN } else { 2 * seal };
        let (mut first, mut run_start, mut segments) = (0, bytes.len(), 0);
        for number in 0..self.cuts.len() {
            let Cut { after, len } = self.cuts[number];
            let numbers = first..after as usize;
            first = numbers.end;
            self.write_datagram(pending, numbers, (comtree, shape.class), bytes);
            segments += 1;
            let short = segment - usize::from(len);
            let last = number + 1 == self.cuts.len();
            let room = segments < MAX_SEGMENTS
                && bytes.len() + short + segment + room_for_seals - run_start <= MAX_SEND_BYTES;
            if !last && room && short * MAX_PADDING_SHARE <= segment {
                bytes.resize(bytes.len() + short + seal, 0);
                self.padding += short as u32;
                continue;
            }
            bytes.resize(bytes.len() + seal, 0);
            // The last datagram of a segmented send may be the only shorter one.
            let part = Part { start: run_start as u32, end: bytes.len() as u32 };
            let alone = segments == 1;
            let whole = if alone { (part.end - part.start) as usize } else { segment + seal };
            let segment = whole as u16;
            self.runs.push(Run { part, segment });
            run_start = bytes.len();
            segments = 0;
        }
    }

    /// Cuts the chosen updates into datagrams of at most `room` bytes, as many in each as fit.
    fn cut(&mut self, pending: &Pending, room: usize) {
        self.cuts.clear();
        let (mut len, mut count, mut before) = (HEADER_LEN, 0, Before::FIRST);
        for (number, record) in (0..).zip(&self.records) {
            let head = head_of(pending, *record);
            let mut behind = before;
            let mut record_len = head.len_behind(&mut behind) + usize::from(head.len);
            if len + record_len > room || count == MAX_RECORDS {
                self.cuts.push(Cut { after: number, len: len as u16 });
                (len, count, behind) = (HEADER_LEN, 0, Before::FIRST);
                record_len = head.len_behind(&mut behind) + usize::from(head.len);
            }
            len += record_len;
            count += 1;
            before = behind;
        }
        if count > 0 {
            self.cuts.push(Cut { after: self.records.len() as u32, len: len as u16 });
        }
    }

    fn write_datagram(
        &self,
        pending: &mut Pending,
        numbers: core::ops::Range<usize>,
        (comtree, class): (Comtree, PeerClass),
        bytes: &mut Vec<u8>,
    ) {
        let start = bytes.len();
        let (mut hops, mut before) = (u8::MAX, Before::FIRST);
        bytes.resize(start + HEADER_LEN, 0);
        for number in &self.records[numbers.clone()] {
            let mut head = head_of(pending, *number);
            if class != PeerClass::Participant {
                // Echo was settled where the update came in.
                let asks = pending.records[*number as usize].asks_route;
                head.flags = if asks { Flags::ROUTE_REQUEST } else { Flags(0) };
            }
            let (head, head_len) = head.encode(&mut before);
            let record = &mut pending.records[*number as usize];
            record.at = bytes.len() as u32;
            record.head_len = head_len as u8;
            hops = hops.min(record.hops);
            bytes.extend_from_slice(&head[..head_len]);
            bytes.extend_from_slice(pending.payload(*number));
        }
        let mut header = Header::new(Kind::Updates, SessionId::NONE, comtree);
        header.hop_limit = hops;
        bytes[start..start + HEADER_LEN].copy_from_slice(&header.encode(numbers.len() as u8));
    }

    /// How many updates of the burst came from `receiver`.
    pub(crate) fn count_own(&self, pending: &Pending, receiver: PortIndex) -> usize {
        self.own_numbers(pending, receiver).count()
    }

    fn own_numbers(&self, pending: &Pending, receiver: PortIndex) -> impl Iterator<Item = u32> {
        let is_in = |number: &u32| pending.records[*number as usize].burst == self.number;
        pending.of_origin(receiver).filter(is_in)
    }

    /// Whether so many own updates are too large a part of the burst to be sent back to their
    /// publisher.
    pub(crate) fn is_mostly_own(&self, own: usize) -> bool {
        own * MIN_SHARE_OF_OTHERS > self.updates()
    }

    /// Which updates of the burst came from `receiver`.
    pub(crate) fn own(&self, pending: &Pending, receiver: PortIndex) -> Own {
        let mut fillers = Fillers::default();
        let mut count = 0;
        for number in self.own_numbers(pending, receiver) {
            let record = &pending.records[number as usize];
            if let Some(part) = fillers.parts.get_mut(count) {
                let len = u32::from(record.head_len) + u32::from(record.len);
                *part = Part { start: record.at, end: record.at + len };
            }
            count += 1;
        }
        match count {
            0 => Own::Absent,
            _ if count == self.updates() => Own::Everything,
            _ if count <= MAX_FILLERS && !self.is_mostly_own(count) => {
                // Newest first becomes the order of the bytes.
                fillers.parts[..count].reverse();
                fillers.count = count;
                Own::Few(fillers)
            }
            _ => Own::Many,
        }
    }
}

fn head_of(pending: &Pending, number: u32) -> RecordHead {
    let record = &pending.records[number as usize];
    RecordHead {
        flags: record.flags,
        src: record.src,
        series: record.series,
        dst: record.dst,
        level: record.level,
        weight: record.weight,
        object: record.object,
        len: record.len,
    }
}
