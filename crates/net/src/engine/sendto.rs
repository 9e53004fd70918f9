//! The baseline engine: one `sendto` a datagram. Also what the others fall back to.

use super::control::Control;
use super::messages::{empty_message, vector_of};
use super::retry::Retries;
use super::{SendEngine, SendReport};
use crate::Socket;
use crate::address::KernelAddress;
use crate::group::{Burst, Group, Refused};
use canopy_batch::{MAX_SEND_BYTES, SendBatch, Transmit};
use canopy_wire::Path;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr;

/// One `sendto` a datagram.
pub struct Sendto {
    /// A send's parts put together.
    joined: Vec<u8>,
}

impl Sendto {
    /// An engine with its memory reserved.
    pub fn new() -> Sendto {
        Sendto { joined: Vec::with_capacity(MAX_SEND_BYTES + 2048) }
    }

    /// Sends the datagrams of one transmit.
    pub fn send_one(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        transmit: &Transmit,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        self.joined.clear();
        for part in batch.parts(transmit) {
            self.joined.extend_from_slice(part);
        }
        for datagram in self.joined.chunks(usize::from(transmit.segment).max(1)) {
            send_waiting(socket, transmit.to, datagram, retries, report);
        }
    }

    /// Sends a burst to one receiver.
    pub fn send_burst(
        &self,
        socket: &Socket,
        to: SocketAddr,
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        for datagram in burst.bytes().chunks(burst.segment().into()) {
            send_waiting(socket, to.into(), datagram, retries, report);
        }
    }
}

impl Default for Sendto {
    fn default() -> Sendto {
        Sendto::new()
    }
}

impl SendEngine for Sendto {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        for transmit in batch.transmits() {
            self.send_one(socket, batch, transmit, &mut retries, &mut report);
        }
        report
    }

    fn send_to_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
    ) -> Result<SendReport, Refused> {
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        for datagram in burst.bytes().chunks(burst.segment().into()) {
            for member in group.members() {
                send_waiting(socket, (*member).into(), datagram, &mut retries, &mut report);
            }
        }
        Ok(report)
    }
}

fn send_waiting(
    socket: &Socket,
    to: Path,
    datagram: &[u8],
    retries: &mut Retries,
    report: &mut SendReport,
) {
    while let Err(error) = sendto(socket, to, datagram) {
        if !retries.again(socket, &error, report) {
            report.failed += 1;
            retries.next(false);
            return;
        }
    }
    retries.next(true);
    report.sent += 1;
}

fn sendto(socket: &Socket, to: Path, datagram: &[u8]) -> io::Result<()> {
    let (mut name, mut control) = (KernelAddress::zeroed(), Control::of(to, None));
    let mut vector = vector_of(datagram);
    let mut message = empty_message().msg_hdr;
    message.msg_namelen = name.set(to.remote);
    message.msg_name = ptr::from_mut(&mut name).cast();
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    control.attach_to(&mut message);
    let file = socket.sending_to(&to.remote).as_raw_fd();
    // SAFETY: the kernel reads the message and what it points to, all as long as is said.
    let sent = unsafe {
        if message.msg_control.is_null() {
            let name = ptr::from_ref(&name).cast();
            let (bytes, len) = (datagram.as_ptr().cast(), datagram.len());
            libc::sendto(file, bytes, len, libc::MSG_DONTWAIT, name, message.msg_namelen)
        } else {
            libc::sendmsg(file, &message, libc::MSG_DONTWAIT)
        }
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
