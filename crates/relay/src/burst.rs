//! A cohort's updates laid out as datagrams: bundles, of equal size where that lets them leave as
//! one segmented send.

use crate::pending::Pending;
use crate::ports::{PeerClass, PortIndex};
use canopy_batch::{MAX_SEGMENTS, MAX_SEND_BYTES, Part};
use canopy_wire::{
    Address, Comtree, Flags, HEADER_LEN, Header, Kind, Level, MAX_DATAGRAM, RECORD_HEADER_LEN,
    encode_record_header,
};

/// Own updates of a receiver that filler replaces in a shared burst; with more of them, or where
/// they are a large part of it, the receiver gets a burst of its own.
pub(crate) const MAX_FILLERS: usize = 4;
// Each filler cuts a send into two parts more.
const _: () = assert!(2 * MAX_FILLERS < canopy_batch::MAX_PARTS_PER_TRANSMIT);
const MIN_SHARE_OF_OTHERS: usize = 4;
/// Padding a segment costs bytes, sending it alone costs a send: worth it up to a quarter.
const MAX_PADDING_SHARE: usize = 4;

/// Who a burst says it is from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) comtree: Comtree,
    /// The relay's own address, in what goes to other relays. Participants know their relay.
    pub(crate) address: Option<Address>,
}

/// Consecutive datagrams of a burst that leave in one send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) part: Part,
    pub(crate) segment: u16,
}

/// The layout of a cohort's updates in a batch's bytes.
pub(crate) struct Burst {
    /// Tells the updates of this burst from those of earlier ones.
    number: u32,
    /// The updates' numbers, in order of arrival.
    records: Vec<u32>,
    /// The origins of those updates that relays do not get because their hops have run out.
    exhausted: Vec<PortIndex>,
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

/// What filler takes the place of in a burst, in the order of its bytes.
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
            runs: Vec::with_capacity(1024),
            padding: 0,
        }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
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

    /// Writes the chosen updates behind `bytes` and cuts them into runs.
    ///
    /// To a participant, one update leaves as it is. To a relay, everything is a bundle whose base
    /// header says which relay sends it: the sources are the records'.
    pub(crate) fn lay_out(&mut self, pending: &mut Pending, from: Sender, bytes: &mut Vec<u8>) {
        self.runs.clear();
        self.padding = 0;
        match self.records[..] {
            [] => {}
            [number] if from.address.is_none() => {
                self.lay_out_single(pending, number, from.comtree, bytes);
            }
            _ => self.lay_out_bundles(pending, from, bytes),
        }
    }

    fn lay_out_single(
        &mut self,
        pending: &mut Pending,
        number: u32,
        comtree: Comtree,
        bytes: &mut Vec<u8>,
    ) {
        let start = bytes.len() as u32;
        let record = pending.records[number as usize];
        let mut header = Header::new(Kind::Data, comtree, record.src, record.dst);
        header.flags = record.flags;
        header.level = record.level;
        header.hop_limit = record.hops;
        bytes.extend_from_slice(&header.encode(record.len));
        bytes.extend_from_slice(pending.payload(number));
        let part = Part { start, end: bytes.len() as u32 };
        self.runs.push(Run { part, segment: (part.end - part.start) as u16 });
    }

    fn lay_out_bundles(&mut self, pending: &mut Pending, from: Sender, bytes: &mut Vec<u8>) {
        let segment = self.longest_segment(pending);
        let mut next = 0;
        let mut run_start = bytes.len();
        let mut segments = 0;
        while next < self.records.len() {
            let (after, len) = self.segment_from(pending, next);
            self.write_segment(pending, &self.records[next..after], from, bytes);
            next = after;
            segments += 1;
            let short = segment - len;
            let last = next == self.records.len();
            let room = segments < MAX_SEGMENTS
                && bytes.len() + short + segment - run_start <= MAX_SEND_BYTES;
            if !last && room && short * MAX_PADDING_SHARE <= segment {
                bytes.resize(bytes.len() + short, 0);
                self.padding += short as u32;
                continue;
            }
            // The last datagram of a segmented send may be the only shorter one.
            let part = Part { start: run_start as u32, end: bytes.len() as u32 };
            let alone = segments == 1;
            let segment = if alone { (part.end - part.start) as u16 } else { segment as u16 };
            self.runs.push(Run { part, segment });
            run_start = bytes.len();
            segments = 0;
        }
    }

    /// How many updates, from the chosen one numbered `first`, fit one datagram, and its length.
    fn segment_from(&self, pending: &Pending, first: usize) -> (usize, usize) {
        let mut len = HEADER_LEN;
        let mut next = first;
        while let Some(number) = self.records.get(next) {
            let record_len = RECORD_HEADER_LEN + usize::from(pending.records[*number as usize].len);
            if len + record_len > MAX_DATAGRAM {
                break;
            }
            len += record_len;
            next += 1;
        }
        (next, len)
    }

    fn longest_segment(&self, pending: &Pending) -> usize {
        let mut longest = 0;
        let mut next = 0;
        while next < self.records.len() {
            let (after, len) = self.segment_from(pending, next);
            longest = longest.max(len);
            next = after;
        }
        longest
    }

    fn write_segment(
        &self,
        pending: &mut Pending,
        numbers: &[u32],
        from: Sender,
        bytes: &mut Vec<u8>,
    ) {
        let start = bytes.len();
        let mut hops = u8::MAX;
        // Other relays do not see ECHO: it was settled where the update came in.
        let passed_on = if from.address.is_some() { !Flags::ECHO.0 } else { u8::MAX };
        bytes.resize(start + HEADER_LEN, 0);
        for number in numbers {
            let record = &mut pending.records[*number as usize];
            record.at = bytes.len() as u32;
            hops = hops.min(record.hops);
            bytes.extend_from_slice(&encode_record_header(
                Flags(record.flags.0 & passed_on),
                record.level,
                record.src,
                record.dst,
                record.len,
            ));
            bytes.extend_from_slice(pending.payload(*number));
        }
        let payload_len = (bytes.len() - start - HEADER_LEN) as u16;
        let src = from.address.unwrap_or(Address::UNSPECIFIED);
        let mut header = Header::new(Kind::Bundle, from.comtree, src, Address::UNSPECIFIED);
        header.hop_limit = hops;
        bytes[start..start + HEADER_LEN].copy_from_slice(&header.encode(payload_len));
    }

    /// How many updates of the burst came from `receiver`.
    pub(crate) fn count_own(&self, pending: &Pending, receiver: PortIndex) -> usize {
        self.own_numbers(pending, receiver).count()
    }

    fn own_numbers(&self, pending: &Pending, receiver: PortIndex) -> impl Iterator<Item = u32> {
        let is_in = |number: &u32| pending.records[*number as usize].burst == self.number;
        pending.of_origin(receiver).filter(is_in)
    }

    /// Which updates of the burst came from `receiver`.
    pub(crate) fn own(&self, pending: &Pending, receiver: PortIndex) -> Own {
        let mut fillers = Fillers::default();
        let mut count = 0;
        for number in self.own_numbers(pending, receiver) {
            let record = &pending.records[number as usize];
            if let Some(part) = fillers.parts.get_mut(count) {
                let len = RECORD_HEADER_LEN as u32 + u32::from(record.len);
                *part = Part { start: record.at, end: record.at + len };
            }
            count += 1;
        }
        match count {
            0 => Own::Absent,
            _ if count == self.updates() => Own::Everything,
            _ if count <= MAX_FILLERS && count * MIN_SHARE_OF_OTHERS <= self.updates() => {
                // Newest first becomes the order of the bytes.
                fillers.parts[..count].reverse();
                fillers.count = count;
                Own::Few(fillers)
            }
            _ => Own::Many,
        }
    }
}
