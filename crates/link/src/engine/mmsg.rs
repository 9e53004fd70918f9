//! `sendmmsg`: many datagrams a system call, and with `UDP_SEGMENT` several of equal size to one
//! receiver in one message.

use super::sendto::{Sendto, WAIT, is_full};
use super::{SendEngine, SendReport};
use crate::Socket;
use crate::address::KernelAddress;
use crate::group::{Burst, Group, Refused};
use crate::wait::wait_writable;
use canopy_relay::{SendBatch, Transmit};
use std::io;
use std::mem;
use std::net::SocketAddr;
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

/// `sendmmsg`, with or without segmentation offload.
pub struct Mmsg {
    names: Vec<KernelAddress>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    fallback: Sendto,
    group: PreparedGroup,
    /// Whether a receiver's datagrams leave as one message. Cleared when the device turns out to
    /// have no segmentation offload.
    segments: bool,
}

/// Messages for the group that was sent to last. Its names' places never change while the
/// messages live.
#[derive(Default)]
struct PreparedGroup {
    stamp: u64,
    names: Vec<KernelAddress>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers are written and used within one call of `send` or `send_to_group`, by
// which time the engine is borrowed mutably; the prepared group's pointers to its own names stay
// good wherever the engine is moved, for the names are on the heap.
unsafe impl Send for Mmsg {}

impl Mmsg {
    /// One message a datagram.
    pub fn plain() -> Mmsg {
        Mmsg {
            names: vec![KernelAddress::zeroed(); MESSAGES],
            controls: vec![Control::default(); MESSAGES],
            vectors: Vec::with_capacity(VECTORS),
            messages: Vec::with_capacity(MESSAGES),
            fallback: Sendto::new(),
            group: PreparedGroup::default(),
            segments: false,
        }
    }

    /// One message for what a receiver gets at once.
    ///
    /// # Errors
    /// If the kernel has no `UDP_SEGMENT` (it came with Linux 4.18).
    pub fn with_segments(socket: &Socket) -> io::Result<Mmsg> {
        socket.probe_segmentation()?;
        Ok(Mmsg { segments: true, ..Mmsg::plain() })
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
            if !self.segments && transmit.datagrams() > 1 {
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
                let control = &mut self.controls[slot];
                write_segment_control(as_bytes(control), transmit.segment);
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = SEGMENT_CONTROL_LEN as _;
            }
            self.messages.push(message);
        }
        self.messages.len()
    }
}

impl Mmsg {
    /// Sends a part of the batch.
    pub(crate) fn send_transmits(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        transmits: &[Transmit],
        report: &mut SendReport,
    ) {
        let mut rest = transmits;
        while !rest.is_empty() {
            let built = self.build(batch, rest);
            if built == 0 {
                // Several datagrams to one receiver, where they are not one message.
                self.fallback.send_one(socket, batch, &rest[0], report);
                rest = &rest[1..];
                continue;
            }
            let (messages, fallback) = (&mut self.messages, &mut self.fallback);
            let segments = &mut self.segments;
            send_all(
                socket,
                messages,
                report,
                |place| u64::from(rest[place].datagrams()),
                |place, error, report| {
                    let transmit = &rest[place];
                    if transmit.datagrams() == 1 {
                        return false;
                    }
                    *segments &= error.raw_os_error() != Some(libc::EIO);
                    fallback.send_one(socket, batch, transmit, report);
                    true
                },
            );
            rest = &rest[built..];
        }
    }

    /// Sends the burst to each of these.
    pub(crate) fn send_to_each(
        &self,
        socket: &Socket,
        members: impl Iterator<Item = SocketAddr>,
        burst: Burst<'_>,
    ) -> SendReport {
        let mut report = SendReport::default();
        members.for_each(|member| self.fallback.send_burst(socket, member, burst, &mut report));
        report
    }
}

impl SendEngine for Mmsg {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let mut report = SendReport::default();
        self.send_transmits(socket, batch, batch.transmits(), &mut report);
        report
    }

    fn send_to_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
    ) -> Result<SendReport, Refused> {
        let mut report = SendReport::default();
        self.group.prepare(group);
        if self.segments && burst.datagrams() > 1 {
            self.send_segmented(socket, group.members(), burst, &mut report);
        } else {
            for datagram in burst.bytes().chunks(burst.segment().into()) {
                let mut vector = vector_of(datagram);
                self.group.point_to(&mut vector, ptr::null_mut());
                for messages in self.group.messages.chunks_mut(MESSAGES) {
                    send_all(socket, messages, &mut report, |_| 1, |_, _, _| false);
                }
            }
        }
        Ok(report)
    }
}

impl Mmsg {
    fn send_segmented(
        &mut self,
        socket: &Socket,
        members: &[SocketAddr],
        burst: Burst<'_>,
        report: &mut SendReport,
    ) {
        let mut vector = vector_of(burst.bytes());
        let mut control = Control::default();
        write_segment_control(as_bytes(&mut control), burst.segment());
        self.group.point_to(&mut vector, &mut control);
        let mut first = 0;
        for messages in self.group.messages.chunks_mut(MESSAGES) {
            let count = messages.len();
            let (fallback, segments) = (&mut self.fallback, &mut self.segments);
            send_all(
                socket,
                messages,
                report,
                |_| burst.datagrams() as u64,
                |place, error, report| {
                    *segments &= error.raw_os_error() != Some(libc::EIO);
                    fallback.send_burst(socket, members[first + place], burst, report);
                    true
                },
            );
            first += count;
        }
    }
}

impl PreparedGroup {
    fn prepare(&mut self, group: &Group) {
        if self.stamp == group.stamp() {
            return;
        }
        self.stamp = group.stamp();
        let count = group.members().len();
        self.names.resize(count, KernelAddress::zeroed());
        self.messages.resize(count, empty_message());
        for ((name, message), member) in
            self.names.iter_mut().zip(&mut self.messages).zip(group.members())
        {
            message.msg_hdr.msg_namelen = name.set(*member);
            message.msg_hdr.msg_name = ptr::from_mut(name).cast();
        }
    }

    /// Lets every message carry the same bytes, and the same control message if there is one.
    fn point_to(&mut self, vector: &mut libc::iovec, control: *mut Control) {
        for message in &mut self.messages {
            let header = &mut message.msg_hdr;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = control.cast();
            header.msg_controllen = if control.is_null() { 0 } else { SEGMENT_CONTROL_LEN as _ };
        }
    }
}

/// Sends all messages. A full queue is waited out; one that is refused is handed to `refused`,
/// which says whether it has sent it in another way, and the others are served.
fn send_all(
    socket: &Socket,
    messages: &mut [libc::mmsghdr],
    report: &mut SendReport,
    datagrams: impl Fn(usize) -> u64,
    mut refused: impl FnMut(usize, &io::Error, &mut SendReport) -> bool,
) {
    let mut done = 0;
    let mut waits = 0;
    while done < messages.len() {
        match sendmmsg(socket, &mut messages[done..]) {
            Ok(sent) => {
                report.sent += (done..done + sent).map(&datagrams).sum::<u64>();
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
                if is_full(&error) || !refused(done, &error, report) {
                    report.failed += datagrams(done);
                }
                done += 1;
                waits = 0;
            }
        }
    }
}

fn sendmmsg(socket: &Socket, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: every message points to names, vectors and controls that its owner keeps in place
    // until this returns, and the vectors to bytes that the kernel only reads.
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

fn empty_message() -> libc::mmsghdr {
    // SAFETY: all zeroes is a value of this struct of integers and pointers.
    unsafe { mem::zeroed() }
}

fn vector_of(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
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
