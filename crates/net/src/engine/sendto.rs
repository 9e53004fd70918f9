//! The baseline engine: one `sendto` for each datagram. The others fall back to it.

use super::messages::{empty_message, vector_of};
use super::{Errors, SendEngine, Sent, Verdict};
use crate::address::KernelAddress;
use crate::control::Control;
use crate::socket::Socket;
use canopy_batch::{MAX_SEND_BYTES, SendBatch, Transmit, Unsent};
use canopy_wire::Path;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

/// One `sendto` for each datagram.
pub struct Sendto {
    /// A send's parts put together.
    joined: Vec<u8>,
}

impl Sendto {
    /// An engine with its memory reserved.
    pub fn new() -> Sendto {
        Sendto { joined: Vec::with_capacity(MAX_SEND_BYTES + 2048) }
    }

    /// Sends the datagrams of one transmit from the `first` on. Returns how many of all are done
    /// with; if that is not all of them, `sent` says why.
    pub fn send_one(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        transmit: &Transmit,
        first: u32,
        sent: &mut Sent,
    ) -> u32 {
        self.joined.clear();
        for part in batch.parts(transmit) {
            self.joined.extend_from_slice(part);
        }
        let segment = usize::from(transmit.segment).max(1);
        let mut errors = Errors::default();
        let mut done = first;
        for datagram in self.joined.chunks(segment).skip(first as usize) {
            let verdict = loop {
                match sendto(socket, transmit.to, datagram) {
                    Ok(()) => break None,
                    Err(error) => match errors.judge(socket, &error) {
                        Verdict::Again => {}
                        verdict => break Some(verdict),
                    },
                }
            };
            match verdict {
                None => sent.report.sent += 1,
                Some(Verdict::Full(full)) => {
                    sent.stop(full);
                    return done;
                }
                Some(_) => sent.report.failed += 1,
            }
            done += 1;
            errors.next();
        }
        done
    }
}

impl Default for Sendto {
    fn default() -> Sendto {
        Sendto::new()
    }
}

impl SendEngine for Sendto {
    fn send(&mut self, socket: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
        let mut sent = Sent::default();
        for (place, transmit) in batch.transmits().iter().enumerate() {
            let done = match sent.full {
                None => self.send_one(socket, batch, transmit, 0, &mut sent),
                Some(_) => 0,
            };
            if sent.full.is_some() {
                rest.push(Unsent { transmit: place as u32, datagrams: done });
            }
        }
        sent
    }
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
