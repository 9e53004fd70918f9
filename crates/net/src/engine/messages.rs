//! Messages for the kernel: an address, the parts of a send, and how it is cut.

use crate::address::KernelAddress;
use crate::control::Control;
use crate::sender::is_mapped;
use canopy_batch::{SendBatch, Transmit};
use canopy_wire::Path;
use std::mem;
use std::ptr;

/// Messages of one system call (Linux takes up to 1,024).
pub const MESSAGES: usize = 256;
/// Parts of one system call.
const VECTORS: usize = MESSAGES * 4;

/// The messages of one system call, and what they point to.
pub struct Messages {
    names: Vec<KernelAddress>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// For each message its transmit's place among those that it was built from, and how many
    /// datagrams of that transmit are in messages before it.
    owners: Vec<(u32, u32)>,
}

// SAFETY: the raw pointers into the vectors next to them stay good wherever it is moved, for those
// are on the heap and never grow; those to a batch's bytes are used while the batch is borrowed.
unsafe impl Send for Messages {}

impl Default for Messages {
    fn default() -> Messages {
        Messages::new()
    }
}

impl Messages {
    /// Nothing, with the memory reserved.
    pub fn new() -> Messages {
        Messages {
            names: vec![KernelAddress::zeroed(); MESSAGES],
            controls: vec![Control::default(); MESSAGES],
            vectors: Vec::with_capacity(VECTORS),
            messages: Vec::with_capacity(MESSAGES),
            owners: Vec::with_capacity(MESSAGES),
        }
    }

    /// Builds a message for each of as many of `transmits` as fit and leave through one socket
    /// ([`crate::Socket::sending_to`]); returns how many. Those that are several datagrams are cut by the kernel.
    pub fn build_whole(&mut self, batch: &SendBatch, transmits: &[Transmit]) -> usize {
        self.clear();
        for (done, transmit) in transmits.iter().enumerate() {
            if !self.has_room(1, transmit.parts as usize) || is_apart(transmits, transmit) {
                return done;
            }
            let first = self.vectors.len();
            self.vectors.extend(batch.parts(transmit).map(vector_of));
            let segment = (transmit.datagrams() > 1).then_some(transmit.segment);
            self.push(transmit.to, segment, first, (done as u32, 0));
        }
        transmits.len()
    }

    /// Builds a message for each datagram of as many of `transmits` as fit and leave through one
    /// socket; returns how many.
    pub fn build_cut(&mut self, batch: &SendBatch, transmits: &[Transmit]) -> usize {
        self.clear();
        for (done, transmit) in transmits.iter().enumerate() {
            // Each cut parts a part in two at most.
            let datagrams = transmit.datagrams() as usize;
            let vectors = transmit.parts as usize + datagrams;
            if !self.has_room(datagrams, vectors) || is_apart(transmits, transmit) {
                return done;
            }
            let segment = usize::from(transmit.segment).max(1);
            let (mut first, mut len) = (self.vectors.len(), 0);
            let mut owner = (done as u32, 0);
            for mut part in batch.parts(transmit) {
                while !part.is_empty() {
                    if len == segment {
                        self.push(transmit.to, None, first, owner);
                        owner.1 += 1;
                        (first, len) = (self.vectors.len(), 0);
                    }
                    let (bytes, rest) = part.split_at(part.len().min(segment - len));
                    self.vectors.push(vector_of(bytes));
                    (part, len) = (rest, len + bytes.len());
                }
            }
            self.push(transmit.to, None, first, owner);
        }
        transmits.len()
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.vectors.clear();
        self.owners.clear();
    }

    /// Whether earlier pointers stay good if so much is added.
    fn has_room(&self, messages: usize, vectors: usize) -> bool {
        self.messages.len() + messages <= MESSAGES && self.vectors.len() + vectors <= VECTORS
    }

    /// Adds a message of the vectors from `first` on.
    fn push(&mut self, to: Path, segment: Option<u16>, first: usize, owner: (u32, u32)) {
        let place = self.messages.len();
        let name = &mut self.names[place];
        let mut message = empty_message();
        let header = &mut message.msg_hdr;
        header.msg_namelen = name.set(to.remote);
        header.msg_name = ptr::from_mut(name).cast();
        header.msg_iov = self.vectors[first..].as_mut_ptr();
        header.msg_iovlen = (self.vectors.len() - first) as _;
        let control = &mut self.controls[place];
        *control = Control::of(to, segment);
        control.attach_to(header);
        self.messages.push(message);
        self.owners.push(owner);
    }

    /// Whose datagrams a message carries: the place of the transmit, and how many of its datagrams
    /// are in messages before this one.
    pub fn owner(&self, message: usize) -> (usize, u32) {
        let (transmit, datagrams) = self.owners[message];
        (transmit as usize, datagrams)
    }

    /// How many were built.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether none was built.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// What was built.
    pub fn all(&mut self) -> &mut [libc::mmsghdr] {
        &mut self.messages
    }
}

/// Whether a transmit may leave through another socket than the first of them.
fn is_apart(transmits: &[Transmit], transmit: &Transmit) -> bool {
    is_mapped(&transmit.to.remote) != is_mapped(&transmits[0].to.remote)
}

pub(super) fn empty_message() -> libc::mmsghdr {
    // SAFETY: all zeroes is a value of this struct of integers and pointers.
    unsafe { mem::zeroed() }
}

pub(super) fn vector_of(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}
