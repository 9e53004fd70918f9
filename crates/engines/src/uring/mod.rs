//! `io_uring`: many sends a system call, to a group through a connected socket for each member.
//!
//! A full send buffer does not fail a send here: it completes when there is room, so the engine
//! sleeps until the buffer is drained. Nothing is in the kernel's hands any more when a call
//! returns.

mod members;
mod ring;

use canopy_batch::{SendBatch, Transmit};
use canopy_net::parts::{
    MESSAGES, Messages, Retries, empty_message, is_full, may_be_reported, segment_control,
    vector_of,
};
use canopy_net::{Burst, Group, Refused, SendEngine, SendReport, Sendto, Socket};
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use members::Members;
use ring::{GAVE_UP, Ring};
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::ptr;

/// `io_uring`, with segmentation offload where a receiver gets several datagrams.
///
/// [`SendEngine::send`] sends through the socket that it is given. [`SendEngine::send_to_group`]
/// keeps a socket for each of up to 1,024 members, connected to it and bound to the same address
/// and port, which receives nothing: what members send still comes to the socket that was given.
/// A member comes cheap once it has been in a group; a new one costs some microseconds. Whoever
/// cannot have such a socket, because the route to it gives another source address, is served with
/// plain sends.
pub struct Uring {
    ring: Ring,
    members: Members,
    messages: Messages,
    entries: Vec<Entry>,
    /// Receivers of the messages that leave together.
    receivers: HashSet<SocketAddr>,
    fallback: Sendto,
    /// Whether a receiver's datagrams leave as one message. Cleared when the device turns out to
    /// have no segmentation offload.
    segments: bool,
}

impl Uring {
    /// An engine with its memory reserved, for what `socket` or another sends.
    ///
    /// # Errors
    /// If the kernel has no `io_uring` of Linux 5.11, or does not let us use it.
    pub fn new(socket: &Socket) -> io::Result<Uring> {
        let (ring, files) = Ring::new(MESSAGES)?;
        Ok(Uring {
            ring,
            members: Members::new(files),
            messages: Messages::new(),
            entries: Vec::with_capacity(MESSAGES),
            receivers: HashSet::with_capacity(MESSAGES),
            fallback: Sendto::new(),
            segments: socket.probe_segmentation().is_ok(),
        })
    }
}

impl SendEngine for Uring {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        let file = self.members.file_of(&self.ring, socket);
        let mut rest = batch.transmits();
        while !rest.is_empty() {
            // Several datagrams to one receiver, where they are not one message, are sent one by one.
            let whole = |transmit: &&Transmit| {
                let sending = socket.sending_to(&transmit.to.remote);
                ptr::eq(sending, socket.sending()) && (self.segments || transmit.datagrams() == 1)
            };
            let fit = if file.is_some() { rest.iter().take_while(whole).count() } else { 0 };
            let built = self.messages.build_whole(batch, &rest[..fit]);
            let Some(file) = file.filter(|_| built > 0) else {
                report.fallbacks += u64::from(rest[0].datagrams());
                self.fallback.send_one(socket, batch, &rest[0], &mut retries, &mut report);
                rest = &rest[1..];
                continue;
            };
            let built = self.address_messages(file, &rest[..built]);
            let (fallback, segments) = (&mut self.fallback, &mut self.segments);
            // SAFETY: the entries point to the messages, those to the batch; all stay till after.
            unsafe {
                send_all(
                    &mut self.ring,
                    socket,
                    &mut self.entries,
                    &mut retries,
                    &mut report,
                    |place| u64::from(rest[place].datagrams()),
                    |place, error, retries, report| {
                        *segments &= error.raw_os_error() != Some(libc::EIO);
                        report.fallbacks += u64::from(rest[place].datagrams());
                        fallback.send_one(socket, batch, &rest[place], retries, report);
                    },
                );
            }
            rest = &rest[built..];
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
        self.members.prepare(&self.ring, socket, group)?;
        if self.segments || burst.datagrams() == 1 {
            self.send_burst(socket, group.members(), burst, &mut retries, &mut report);
        } else {
            for datagram in burst.bytes().chunks(burst.segment().into()) {
                let datagram = Burst::datagram(datagram)?;
                self.send_burst(socket, group.members(), datagram, &mut retries, &mut report);
            }
        }
        Ok(report)
    }
}

impl Uring {
    /// Makes entries of the messages that were built for `transmits`; returns of how many.
    ///
    /// What waits for room in the send buffer may be overtaken by what was submitted after it. So
    /// sends to one receiver are chained if they are neighbours, and else leave one after the
    /// other.
    fn address_messages(&mut self, file: u32, transmits: &[Transmit]) -> usize {
        self.entries.clear();
        self.receivers.clear();
        for (place, transmit) in transmits.iter().enumerate() {
            if place > 0 && transmits[place - 1].to == transmit.to {
                let before = self.entries[place - 1].clone();
                self.entries[place - 1] = before.flags(Flags::IO_LINK);
            } else if !self.receivers.insert(transmit.to.remote) {
                break;
            }
            let message = ptr::from_ref(&self.messages.all()[place].msg_hdr);
            let entry = opcode::SendMsg::new(types::Fixed(file), message).build();
            self.entries.push(entry.user_data(place as u64));
        }
        self.entries.len()
    }

    /// Sends the burst to every member in one send each.
    fn send_burst(
        &mut self,
        socket: &Socket,
        members: &[SocketAddr],
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        let bytes = burst.bytes();
        let mut vector = vector_of(bytes);
        let mut control = segment_control(burst.segment());
        let mut message = empty_message().msg_hdr;
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        for first in (0..members.len()).step_by(MESSAGES) {
            let members = &members[first..members.len().min(first + MESSAGES)];
            self.entries.clear();
            for (place, member) in members.iter().enumerate() {
                let Some(file) = self.members.file(first + place) else {
                    report.fallbacks += burst.datagrams() as u64;
                    self.fallback.send_burst(socket, *member, burst, retries, report);
                    continue;
                };
                let file = types::Fixed(file);
                let entry = if burst.datagrams() == 1 {
                    opcode::Send::new(file, bytes.as_ptr(), bytes.len() as u32).build()
                } else {
                    opcode::SendMsg::new(file, ptr::from_ref(&message)).build()
                };
                self.entries.push(entry.user_data(place as u64));
            }
            let (fallback, segments) = (&mut self.fallback, &mut self.segments);
            let sockets = &mut self.members;
            // SAFETY: the entries point to the burst and to the message above, which stay.
            unsafe {
                send_all(
                    &mut self.ring,
                    socket,
                    &mut self.entries,
                    retries,
                    report,
                    |_| burst.datagrams() as u64,
                    |place, error, retries, report| {
                        *segments &= error.raw_os_error() != Some(libc::EIO);
                        sockets.forget(members[place]);
                        report.fallbacks += burst.datagrams() as u64;
                        fallback.send_burst(socket, members[place], burst, retries, report);
                    },
                );
            }
        }
    }
}

/// Sends what the entries say. A full queue is waited out; a send that is refused is handed to
/// `refused`, which sends it in another way, and the others are served. An entry's user data is
/// its place for `datagrams` and `refused`.
///
/// # Safety
/// What the entries point to stays in place, and is not changed, until this returns.
unsafe fn send_all(
    ring: &mut Ring,
    socket: &Socket,
    entries: &mut Vec<Entry>,
    retries: &mut Retries,
    report: &mut SendReport,
    datagrams: impl Fn(usize) -> u64,
    mut refused: impl FnMut(usize, &io::Error, &mut Retries, &mut SendReport),
) {
    while !entries.is_empty() {
        // SAFETY: as the caller promises.
        let results = unsafe { ring.run(entries, retries.is_patient()) };
        let (mut progress, mut gave_up, mut again) = (false, false, None);
        entries.retain(|entry| {
            let place = entry.get_user_data() as usize;
            let result = results[place];
            let error = match result {
                0.. => {
                    progress = true;
                    report.sent += datagrams(place);
                    return false;
                }
                // The send before it in its chain failed.
                _ if result == -libc::ECANCELED => return true,
                _ => io::Error::from_raw_os_error(-result),
            };
            if result == GAVE_UP {
                gave_up = true;
                report.failed += datagrams(place);
                return false;
            }
            let keep = is_full(&error) || may_be_reported(&error) || result == -libc::EINTR;
            if keep {
                again = Some(error);
            } else {
                refused(place, &error, retries, report);
            }
            keep
        });
        if gave_up {
            retries.give_up();
        } else if progress {
            retries.next(true);
        }
        if again.is_some_and(|error| !retries.again(socket, &error, report)) {
            let places = entries.iter().map(|entry| entry.get_user_data() as usize);
            report.failed += places.map(&datagrams).sum::<u64>();
            return;
        }
    }
}
