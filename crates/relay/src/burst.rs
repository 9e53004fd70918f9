//! A cohort's updates laid out as datagrams: bundles, of equal size where that lets them leave as
//! one segmented send.

use crate::pending::Pending;
use canopy_batch::{MAX_SEGMENTS, MAX_SEND_BYTES, Part};
use canopy_session::SlotIndex;
use canopy_wire::{
    Address, Comtree, Flags, HEADER_LEN, Header, Kind, MAX_DATAGRAM, RECORD_HEADER_LEN,
    encode_record_header,
};

/// A publisher's own updates that are blanked out of a shared burst; with more of them, or where
/// they are a large part of it, the publisher gets a burst of its own.
pub(crate) const MAX_PATCHES: usize = 4;
// Each place cuts a send into two parts more.
const _: () = assert!(2 * MAX_PATCHES < canopy_batch::MAX_PARTS_PER_TRANSMIT);
const MIN_SHARE_OF_OTHERS: usize = 4;
/// Padding a segment costs bytes, sending it alone costs a send: worth it up to a quarter.
const MAX_PADDING_SHARE: usize = 4;

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
    runs: Vec<Run>,
    padding: u32,
}

/// Which of its own updates a receiver must not get from a shared burst.
pub(crate) enum Own {
    /// None are there: the burst goes out as it is.
    Absent,
    /// All are its own: nothing to send.
    Everything,
    /// These are replaced by filler.
    Blanked(Blanks),
    /// Too many to blank out.
    Many,
}

/// Places of a burst that are replaced by filler, in the order of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blanks {
    places: [Part; MAX_PATCHES],
    count: usize,
}

impl Blanks {
    pub(crate) fn places(&self) -> &[Part] {
        &self.places[..self.count]
    }
}

impl Default for Blanks {
    fn default() -> Blanks {
        Blanks { places: [Part { start: 0, end: 0 }; MAX_PATCHES], count: 0 }
    }
}

impl Burst {
    pub(crate) fn new() -> Burst {
        Burst {
            number: 0,
            records: Vec::with_capacity(crate::pending::MAX_PENDING_RECORDS),
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

    /// Bytes of padding that each receiver is sent.
    pub(crate) fn padding(&self) -> u32 {
        self.padding
    }

    /// Chooses the updates of the burst: those of `targets` up to their levels, without what
    /// `exclude` published, in order of arrival.
    pub(crate) fn choose(
        &mut self,
        pending: &mut Pending,
        targets: impl Iterator<Item = (u32, canopy_wire::Level)>,
        exclude: Option<SlotIndex>,
    ) {
        self.number = self.number.wrapping_add(1) % u32::MAX;
        self.records.clear();
        let mut merged = false;
        for (target, level) in targets {
            merged |= !self.records.is_empty();
            self.records.extend(pending.of_target(target).filter(|number| {
                let record = &pending.records[*number as usize];
                let own = exclude == Some(record.publisher) && !record.flags.contains(Flags::ECHO);
                record.level <= level && !own
            }));
        }
        if merged {
            // A publisher's updates keep their order across groups.
            self.records.sort_unstable();
        }
        for number in &self.records {
            pending.records[*number as usize].burst = self.number;
        }
    }

    /// Writes the chosen updates behind `bytes` and cuts them into runs.
    pub(crate) fn lay_out(&mut self, pending: &mut Pending, comtree: Comtree, bytes: &mut Vec<u8>) {
        self.runs.clear();
        self.padding = 0;
        match self.records[..] {
            [] => {}
            [number] => self.lay_out_single(pending, number, comtree, bytes),
            _ => self.lay_out_bundles(pending, comtree, bytes),
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
        bytes.extend_from_slice(&header.encode(record.len));
        bytes.extend_from_slice(pending.payload(number));
        let part = Part { start, end: bytes.len() as u32 };
        self.runs.push(Run { part, segment: (part.end - part.start) as u16 });
    }

    fn lay_out_bundles(&mut self, pending: &mut Pending, comtree: Comtree, bytes: &mut Vec<u8>) {
        let segment = self.longest_segment(pending);
        let mut next = 0;
        let mut run_start = bytes.len();
        let mut segments = 0;
        while next < self.records.len() {
            let (after, len) = self.segment_from(pending, next);
            self.write_segment(pending, &self.records[next..after], comtree, bytes);
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
        comtree: Comtree,
        bytes: &mut Vec<u8>,
    ) {
        let start = bytes.len();
        bytes.resize(start + HEADER_LEN, 0);
        for number in numbers {
            let record = &mut pending.records[*number as usize];
            record.place = bytes.len() as u32;
            bytes.extend_from_slice(&encode_record_header(
                record.flags,
                record.level,
                record.src,
                record.dst,
                record.len,
            ));
            bytes.extend_from_slice(pending.payload(*number));
        }
        let payload_len = (bytes.len() - start - HEADER_LEN) as u16;
        let everyone = Address::UNSPECIFIED;
        let header = Header::new(Kind::Bundle, comtree, everyone, everyone);
        bytes[start..start + HEADER_LEN].copy_from_slice(&header.encode(payload_len));
    }

    /// How many of `receiver`'s own are in the burst.
    pub(crate) fn count_own(&self, pending: &Pending, receiver: SlotIndex) -> usize {
        self.own_numbers(pending, receiver).count()
    }

    fn own_numbers(&self, pending: &Pending, receiver: SlotIndex) -> impl Iterator<Item = u32> {
        pending.of_publisher(receiver).filter(|number| {
            let record = &pending.records[*number as usize];
            record.burst == self.number && !record.flags.contains(Flags::ECHO)
        })
    }

    /// What of `receiver`'s own is in the burst.
    pub(crate) fn own(&self, pending: &Pending, receiver: SlotIndex) -> Own {
        let mut blanks = Blanks::default();
        let mut count = 0;
        for number in self.own_numbers(pending, receiver) {
            let record = &pending.records[number as usize];
            if let Some(place) = blanks.places.get_mut(count) {
                let len = RECORD_HEADER_LEN as u32 + u32::from(record.len);
                *place = Part { start: record.place, end: record.place + len };
            }
            count += 1;
        }
        match count {
            0 => Own::Absent,
            _ if count == self.updates() => Own::Everything,
            _ if count <= MAX_PATCHES && count * MIN_SHARE_OF_OTHERS <= self.updates() => {
                // Newest first becomes the order of the bytes.
                blanks.places[..count].reverse();
                blanks.count = count;
                Own::Blanked(blanks)
            }
            _ => Own::Many,
        }
    }
}
