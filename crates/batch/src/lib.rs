//! What a relay wants sent: bytes once, and for each receiver the parts of them that it gets.
//!
//! A leaf: the relay fills a batch, a send engine empties it, and neither knows the other.
#![forbid(unsafe_code)]

mod backlog;
mod segments;

pub use backlog::{Backlog, MAX_WAITING_BYTES, MAX_WAITING_SENDS};
pub use segments::{NotSendable, Segments};

use canopy_wire::Path;

/// The most datagrams that one segmented send may carry (Linux allows 64 on all kernels that have
/// `UDP_SEGMENT`).
pub const MAX_SEGMENTS: usize = 64;
/// The most bytes that one segmented send may carry: below UDP's own limit.
pub const MAX_SEND_BYTES: usize = 65_000;

/// The most sends of a batch.
const MAX_TRANSMITS: usize = 512;
/// The most parts of one send.
pub const MAX_PARTS_PER_TRANSMIT: usize = 9;
/// A new burst is not begun in a batch that holds this many bytes already.
const SOFT_BYTES: usize = 1 << 20;

/// A range of a batch's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins in the bytes of its [`SendBatch`].
    pub start: u32,
    /// Where it ends.
    pub end: u32,
}

/// One send to one receiver: its parts, put together, are cut into datagrams of `segment` bytes,
/// of which the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The receiver, and the address of ours that it is sent from.
    pub to: Path,
    /// Its parts in its [`SendBatch`].
    pub first_part: u32,
    /// How many parts.
    pub parts: u32,
    /// Bytes of all parts together.
    pub len: u32,
    /// Bytes of each datagram but the last. Equal to `len` for a single datagram.
    pub segment: u16,
}

impl Transmit {
    /// How many datagrams this is.
    pub fn datagrams(&self) -> u32 {
        self.len.div_ceil(self.segment.max(1).into())
    }
}

/// A send that was not taken, or not all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Its place among those that were offered.
    pub transmit: u32,
    /// How many of its datagrams are done with; the rest of them is what is left.
    pub datagrams: u32,
}

/// Sends that leave together. The bytes are shared: a burst for ninety receivers is there once.
#[derive(Debug)]
pub struct SendBatch {
    bytes: Vec<u8>,
    parts: Vec<Part>,
    transmits: Vec<Transmit>,
}

impl SendBatch {
    /// An empty batch.
    pub fn new() -> SendBatch {
        SendBatch::with_room(0)
    }

    /// An empty batch with all the memory reserved that it needs for bursts of up to `burst_bytes`.
    pub fn with_room(burst_bytes: usize) -> SendBatch {
        SendBatch {
            bytes: Vec::with_capacity(SOFT_BYTES + burst_bytes),
            parts: Vec::with_capacity(MAX_TRANSMITS * MAX_PARTS_PER_TRANSMIT),
            transmits: Vec::with_capacity(MAX_TRANSMITS),
        }
    }

    /// The sends, in order.
    pub fn transmits(&self) -> &[Transmit] {
        &self.transmits
    }

    /// The parts of a send.
    pub fn parts(&self, transmit: &Transmit) -> impl Iterator<Item = &[u8]> {
        let first = transmit.first_part as usize;
        self.parts[first..first + transmit.parts as usize]
            .iter()
            .map(|part| &self.bytes[part.start as usize..part.end as usize])
    }

    /// Whether both sends carry the same bytes, cut in the same way.
    pub fn carries_the_same(&self, one: &Transmit, other: &Transmit) -> bool {
        let ranges = |transmit: &Transmit| {
            let first = transmit.first_part as usize;
            &self.parts[first..first + transmit.parts as usize]
        };
        one.segment == other.segment && ranges(one) == ranges(other)
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.transmits.is_empty()
    }

    /// Adds a send of one datagram.
    pub fn push_datagram(&mut self, to: impl Into<Path>, datagram: &[u8]) {
        let (first_part, start) = (self.parts.len() as u32, self.bytes.len() as u32);
        self.bytes.extend_from_slice(datagram);
        let len = datagram.len() as u32;
        self.parts.push(Part { start, end: start + len });
        let segment = datagram.len() as u16;
        self.transmits.push(Transmit { to: to.into(), first_part, parts: 1, len, segment });
    }

    /// Adds a send of datagrams of `segment` bytes, of which the last may be shorter: the parts, put
    /// together and cut.
    pub fn push_burst(&mut self, to: impl Into<Path>, parts: &[&[u8]], segment: u16) {
        let first = self.parts.len();
        for part in parts {
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(part);
            self.parts.push(Part { start, end: self.bytes.len() as u32 });
        }
        self.push_from(to.into(), first, segment);
    }

    /// Adds a send of the same as the send before, to another receiver.
    ///
    /// # Panics
    /// If there is none before.
    pub fn push_same(&mut self, to: impl Into<Path>) {
        let before = self.transmits[self.transmits.len() - 1];
        let first = before.first_part as usize;
        let parts = first..first + before.parts as usize;
        let first_part = self.parts.len() as u32;
        self.parts.extend_from_within(parts);
        self.transmits.push(Transmit { to: to.into(), first_part, ..before });
    }

    /// Adds what is left of a send of another batch.
    pub fn push_left(&mut self, of: &SendBatch, unsent: Unsent) {
        let transmit = of.transmits[unsent.transmit as usize];
        let mut skip = (unsent.datagrams * u32::from(transmit.segment)) as usize;
        let first = self.parts.len();
        for part in of.parts(&transmit) {
            let from = skip.min(part.len());
            skip -= from;
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(&part[from..]);
            self.parts.push(Part { start, end: self.bytes.len() as u32 });
        }
        self.push_from(transmit.to, first, transmit.segment);
    }

    /// Adds a send whose parts are in the batch's bytes already.
    pub fn push(&mut self, to: impl Into<Path>, parts: &[Part], segment: u16) -> &Transmit {
        let first = self.parts.len();
        self.parts.extend_from_slice(parts);
        self.push_from(to.into(), first, segment)
    }

    /// Adds a send of the parts from `first` on.
    fn push_from(&mut self, to: Path, first: usize, segment: u16) -> &Transmit {
        let parts = &self.parts[first..];
        let len = parts.iter().map(|part| part.end - part.start).sum();
        let (first_part, parts) = (first as u32, parts.len() as u32);
        self.transmits.push(Transmit { to, first_part, parts, len, segment });
        &self.transmits[self.transmits.len() - 1]
    }

    /// Whether there is room for no further send.
    pub fn is_full(&self) -> bool {
        self.transmits.len() >= MAX_TRANSMITS
    }

    /// Whether the bytes at hand should leave before a new burst is begun.
    pub fn is_heavy(&self) -> bool {
        self.bytes.len() > SOFT_BYTES
    }

    /// The bytes that [`SendBatch::push`] takes parts of; they only grow until [`SendBatch::clear`].
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Forgets the sends; the bytes stay for those still to come.
    pub fn clear_transmits(&mut self) {
        self.transmits.clear();
        self.parts.clear();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.clear_transmits();
        self.bytes.clear();
    }
}

impl Default for SendBatch {
    fn default() -> SendBatch {
        SendBatch::new()
    }
}
