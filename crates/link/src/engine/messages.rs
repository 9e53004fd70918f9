//! Messages for the kernel: an address, the parts of a send, and how it is cut.

use crate::address::KernelAddress;
use canopy_relay::{SendBatch, Transmit};
use std::mem;
use std::ptr;

/// Messages of one system call (Linux takes up to 1,024).
pub(crate) const MESSAGES: usize = 256;
/// Parts of one system call.
const VECTORS: usize = MESSAGES * 4;

/// Bytes of a control message that carries a segment length.
pub(crate) const SEGMENT_CONTROL_LEN: usize = 24;

pub(crate) type Control = [u64; SEGMENT_CONTROL_LEN / 8];

/// The messages of one system call, and what they point to.
pub(crate) struct Messages {
    names: Vec<KernelAddress>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers into the vectors next to them stay good wherever it is moved, for those
// are on the heap and never grow; those to a batch's bytes are used while the batch is borrowed.
unsafe impl Send for Messages {}

impl Messages {
    pub(crate) fn new() -> Messages {
        Messages {
            names: vec![KernelAddress::zeroed(); MESSAGES],
            controls: vec![Control::default(); MESSAGES],
            vectors: Vec::with_capacity(VECTORS),
            messages: Vec::with_capacity(MESSAGES),
        }
    }

    /// Builds messages for as many of `transmits` as fit; returns how many. Without `segments` it
    /// stops at the first that is several datagrams.
    pub(crate) fn build(
        &mut self,
        batch: &SendBatch,
        transmits: &[Transmit],
        segments: bool,
    ) -> usize {
        self.messages.clear();
        self.vectors.clear();
        for (slot, transmit) in transmits.iter().take(MESSAGES).enumerate() {
            let first = self.vectors.len();
            if first + transmit.parts as usize > VECTORS {
                break;
            }
            if !segments && transmit.datagrams() > 1 {
                break;
            }
            for part in batch.parts(transmit) {
                let iov_base = part.as_ptr().cast_mut().cast();
                self.vectors.push(libc::iovec { iov_base, iov_len: part.len() });
            }
            let mut message = empty_message();
            let header = &mut message.msg_hdr;
            header.msg_namelen = self.names[slot].set(transmit.to);
            header.msg_name = ptr::from_mut(&mut self.names[slot]).cast();
            // Within capacity, so earlier pointers stay good.
            header.msg_iov = self.vectors[first..].as_mut_ptr();
            header.msg_iovlen = transmit.parts as _;
            if transmit.datagrams() > 1 {
                self.controls[slot] = segment_control(transmit.segment);
                header.msg_control = self.controls[slot].as_mut_ptr().cast();
                header.msg_controllen = SEGMENT_CONTROL_LEN as _;
            }
            self.messages.push(message);
        }
        self.messages.len()
    }

    /// What was built.
    pub(crate) fn all(&mut self) -> &mut [libc::mmsghdr] {
        &mut self.messages
    }
}

pub(crate) fn empty_message() -> libc::mmsghdr {
    // SAFETY: all zeroes is a value of this struct of integers and pointers.
    unsafe { mem::zeroed() }
}

pub(crate) fn vector_of(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The control message that asks the kernel to cut a send into pieces of `segment` bytes.
pub(crate) fn segment_control(segment: u16) -> Control {
    let mut control = Control::default();
    write_segment_control(as_bytes(&mut control), segment);
    control
}

fn as_bytes(control: &mut Control) -> &mut [u8; SEGMENT_CONTROL_LEN] {
    // SAFETY: u64s are as good as bytes, and there are as many.
    unsafe { &mut *ptr::from_mut(control).cast() }
}

/// Writes the control message that asks the kernel to cut a send into pieces of `segment` bytes.
pub(crate) fn write_segment_control(out: &mut [u8; SEGMENT_CONTROL_LEN], segment: u16) {
    // cmsg_len, cmsg_level, cmsg_type, then the value: CMSG_LEN(2) on 64-bit Linux.
    let header = mem::size_of::<libc::cmsghdr>();
    out.fill(0);
    out[..mem::size_of::<usize>()].copy_from_slice(&(header + 2).to_ne_bytes());
    out[header - 8..header - 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    out[header - 4..header].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    out[header..header + 2].copy_from_slice(&segment.to_ne_bytes());
}
