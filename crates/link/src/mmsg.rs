//! The default engine: `sendmmsg`, many receivers a call, with `UDP_SEGMENT` where one receiver
//! gets several datagrams of equal size.

use crate::Socket;
use crate::address::KernelAddress;
use crate::send::{SendEngine, SendReport};
use crate::sendto::{Sendto, WAIT, is_full};
use crate::wait::wait_writable;
use canopy_relay::{SendBatch, Transmit};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

/// Messages of one system call (Linux takes up to 1,024).
const MESSAGES: usize = 256;
/// Parts of one system call.
const VECTORS: usize = MESSAGES * 4;
/// Waits in a row, without anything sent, before a datagram counts as refused.
const MAX_WAITS: u32 = 50;

/// Bytes of a control message that carries a segment length.
pub(crate) const SEGMENT_CONTROL_LEN: usize = 24;

type Control = [u64; SEGMENT_CONTROL_LEN / 8];

/// `sendmmsg` with segmentation offload.
pub struct Mmsg {
    names: Vec<KernelAddress>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    fallback: Sendto,
    /// Cleared when the kernel or the device turns out to have no segmentation offload.
    segments: bool,
}

// SAFETY: the raw pointers are written and used within one call of `send`, by which time the
// engine is borrowed mutably; between calls they are dead.
unsafe impl Send for Mmsg {}

impl Mmsg {
    /// An engine with its memory reserved.
    pub fn new() -> Mmsg {
        Mmsg {
            names: vec![KernelAddress::zeroed(); MESSAGES],
            controls: vec![Control::default(); MESSAGES],
            vectors: Vec::with_capacity(VECTORS),
            messages: Vec::with_capacity(MESSAGES),
            fallback: Sendto::new(),
            segments: true,
        }
    }

    /// Builds messages for as many of `transmits` as fit one call; returns how many.
    fn build(&mut self, batch: &SendBatch, transmits: &[Transmit]) -> usize {
        self.messages.clear();
        self.vectors.clear();
        for (slot, transmit) in transmits.iter().take(MESSAGES).enumerate() {
            let first = self.vectors.len();
            if first + transmit.parts as usize > VECTORS {
                break;
            }
            for part in batch.parts(transmit) {
                let iov_base = part.as_ptr().cast_mut().cast();
                self.vectors.push(libc::iovec { iov_base, iov_len: part.len() });
            }
            // SAFETY: all zeroes is a value of this struct of integers and pointers.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut message.msg_hdr;
            header.msg_namelen = self.names[slot].set(transmit.to);
            header.msg_name = ptr::from_mut(&mut self.names[slot]).cast();
            // Within capacity, so earlier pointers stay good.
            header.msg_iov = self.vectors[first..].as_mut_ptr();
            header.msg_iovlen = transmit.parts as _;
            if transmit.datagrams() > 1 {
                let control = &mut self.controls[slot];
                // SAFETY: u64s are as good as bytes, and there are as many.
                let bytes: &mut [u8; SEGMENT_CONTROL_LEN] =
                    unsafe { &mut *ptr::from_mut(control).cast() };
                write_segment_control(bytes, transmit.segment);
                header.msg_control = bytes.as_mut_ptr().cast();
                header.msg_controllen = SEGMENT_CONTROL_LEN as _;
            }
            self.messages.push(message);
        }
        self.messages.len()
    }

    fn sendmmsg(&mut self, socket: &Socket, from: usize) -> io::Result<usize> {
        let messages = &mut self.messages[from..];
        // SAFETY: every message points to names, vectors and controls of self, and the vectors to
        // the batch's bytes, all borrowed until this returns. The kernel only reads the bytes.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

impl Default for Mmsg {
    fn default() -> Mmsg {
        Mmsg::new()
    }
}

impl SendEngine for Mmsg {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let mut report = SendReport::default();
        let mut rest = batch.transmits();
        while !rest.is_empty() {
            let has_segments = |transmit: &Transmit| transmit.datagrams() > 1;
            if !self.segments && has_segments(&rest[0]) {
                self.fallback.send_one(socket, batch, &rest[0], &mut report);
                rest = &rest[1..];
                continue;
            }
            let built = self.build(batch, rest);
            let mut done = 0;
            let mut waits = 0;
            while done < built {
                match self.sendmmsg(socket, done) {
                    Ok(sent) => {
                        let transmits = &rest[done..done + sent];
                        report.sent +=
                            transmits.iter().map(|t| u64::from(t.datagrams())).sum::<u64>();
                        done += sent;
                        waits = 0;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if is_full(&error) && waits < MAX_WAITS => {
                        waits += 1;
                        report.waits += 1;
                        wait_writable(socket, WAIT);
                    }
                    Err(error) => {
                        // The first of the messages is at fault.
                        let transmit = &rest[done];
                        if has_segments(transmit) && !is_full(&error) {
                            self.segments &= error.raw_os_error() != Some(libc::EIO);
                            self.fallback.send_one(socket, batch, transmit, &mut report);
                        } else {
                            report.failed += u64::from(transmit.datagrams());
                        }
                        done += 1;
                        waits = 0;
                    }
                }
            }
            rest = &rest[built..];
        }
        report
    }
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
