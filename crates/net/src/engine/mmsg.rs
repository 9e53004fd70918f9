//! `sendmmsg`: many datagrams a system call, and with `UDP_SEGMENT` several of equal size to one
//! receiver in one message.

use super::messages::{
    MESSAGES, Messages, SEGMENT_CONTROL_LEN, SegmentControl, empty_message, segment_control,
    vector_of,
};
use super::retry::{Retries, is_full};
use super::sendto::Sendto;
use super::{SendEngine, SendReport};
use crate::Socket;
use crate::address::KernelAddress;
use crate::group::{Burst, Group, Refused};
use crate::sender::is_mapped;
use canopy_batch::{SendBatch, Transmit};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr;

/// `sendmmsg`, with or without segmentation offload.
pub struct Mmsg {
    messages: Messages,
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
            messages: Messages::new(),
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
}

impl Mmsg {
    /// Sends a part of the batch.
    pub fn send_transmits(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        transmits: &[Transmit],
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        let mut rest = transmits;
        while !rest.is_empty() {
            let whole = self.segments;
            let built = if whole {
                self.messages.build_whole(batch, rest)
            } else {
                self.messages.build_cut(batch, rest)
            };
            if built == 0 {
                // More parts than one system call has room for.
                self.fallback.send_one(socket, batch, &rest[0], retries, report);
                rest = &rest[1..];
                continue;
            }
            let (messages, fallback) = (self.messages.all(), &mut self.fallback);
            let segments = &mut self.segments;
            send_all(
                (socket, socket.sending_to(&rest[0].to.remote)),
                messages,
                retries,
                report,
                |place| if whole { u64::from(rest[place].datagrams()) } else { 1 },
                |place, error, retries, report| {
                    if !whole || rest[place].datagrams() == 1 {
                        return false;
                    }
                    *segments &= error.raw_os_error() != Some(libc::EIO);
                    report.fallbacks += u64::from(rest[place].datagrams());
                    fallback.send_one(socket, batch, &rest[place], retries, report);
                    true
                },
            );
            rest = &rest[built..];
        }
    }

    /// Sends the burst to each of these.
    pub fn send_to_each(
        &self,
        socket: &Socket,
        members: impl Iterator<Item = SocketAddr>,
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        for member in members {
            self.fallback.send_burst(socket, member, burst, retries, report);
        }
    }
}

impl SendEngine for Mmsg {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        self.send_transmits(socket, batch, batch.transmits(), &mut retries, &mut report);
        report
    }

    fn send_to_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
    ) -> Result<SendReport, Refused> {
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        self.send_group(socket, group, burst, &mut retries, &mut report);
        Ok(report)
    }
}

impl Mmsg {
    /// Sends the burst to every member of the group.
    pub fn send_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        if group.members().iter().any(is_mapped) {
            let members = group.members().iter().copied();
            return self.send_to_each(socket, members, burst, retries, report);
        }
        self.group.prepare(group);
        if self.segments && burst.datagrams() > 1 {
            return self.send_segmented(socket, group.members(), burst, retries, report);
        }
        for datagram in burst.bytes().chunks(burst.segment().into()) {
            let mut vector = vector_of(datagram);
            self.group.point_to(&mut vector, ptr::null_mut());
            for messages in self.group.messages.chunks_mut(MESSAGES) {
                send_all(
                    (socket, socket.sending()),
                    messages,
                    retries,
                    report,
                    |_| 1,
                    |_, _, _, _| false,
                );
            }
        }
    }

    fn send_segmented(
        &mut self,
        socket: &Socket,
        members: &[SocketAddr],
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        let mut vector = vector_of(burst.bytes());
        let mut control = segment_control(burst.segment());
        self.group.point_to(&mut vector, &mut control);
        let mut first = 0;
        for messages in self.group.messages.chunks_mut(MESSAGES) {
            let count = messages.len();
            let (fallback, segments) = (&mut self.fallback, &mut self.segments);
            send_all(
                (socket, socket.sending()),
                messages,
                retries,
                report,
                |_| burst.datagrams() as u64,
                |place, error, retries, report| {
                    *segments &= error.raw_os_error() != Some(libc::EIO);
                    report.fallbacks += burst.datagrams() as u64;
                    fallback.send_burst(socket, members[first + place], burst, retries, report);
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
    fn point_to(&mut self, vector: &mut libc::iovec, control: *mut SegmentControl) {
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
    (socket, sending): (&Socket, &socket2::Socket),
    messages: &mut [libc::mmsghdr],
    retries: &mut Retries,
    report: &mut SendReport,
    datagrams: impl Fn(usize) -> u64,
    mut refused: impl FnMut(usize, &io::Error, &mut Retries, &mut SendReport) -> bool,
) {
    let mut done = 0;
    while done < messages.len() {
        match sendmmsg(sending, &mut messages[done..]) {
            Ok(sent) => {
                report.sent += (done..done + sent).map(&datagrams).sum::<u64>();
                done += sent;
                retries.next(true);
                if done < messages.len() {
                    // What stopped it is told by the next call, unless it was another's error.
                    socket.take_errors();
                }
            }
            Err(error) if retries.again(socket, &error, report) => {}
            Err(error) => {
                // The first of the messages is at fault.
                if is_full(&error) || !refused(done, &error, retries, report) {
                    report.failed += datagrams(done);
                }
                done += 1;
                retries.next(false);
            }
        }
    }
}

fn sendmmsg(sending: &socket2::Socket, messages: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: every message points to names, vectors and controls that its owner keeps in place
    // until this returns, and the vectors to bytes that the kernel only reads.
    let sent = unsafe {
        libc::sendmmsg(
            sending.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as u32,
            libc::MSG_DONTWAIT as _,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
