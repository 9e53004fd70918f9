//! `io_uring`: many sends in one system call, through the socket that the engine is given.
//!
//! No send waits in the kernel: one that finds no room fails at once. Nothing is in the kernel's
//! hands any more when a call returns.

mod ring;

use canopy_batch::{SendBatch, Transmit, Unsent};
use canopy_net::parts::{Errors, MESSAGES, Messages, Unsegmented, Verdict};
use canopy_net::{SendEngine, Sendto, Sent, Socket};
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use ring::Ring;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::ptr;
use std::time::Instant;

/// `io_uring`, with segmentation offload where a receiver gets several datagrams.
pub struct Uring {
    ring: Ring,
    messages: Messages,
    entries: Vec<Entry>,
    /// Receivers of the messages that leave together.
    receivers: HashSet<SocketAddr>,
    fallback: Sendto,
    /// Whether a receiver's datagrams leave as one message.
    segments: bool,
    /// Receivers for whom they must not.
    unsegmented: Unsegmented,
    /// Whether there was no room for something in the last call.
    was_full: bool,
}

impl Uring {
    /// An engine with its memory reserved, for what `socket` or another sends.
    ///
    /// # Errors
    /// If the kernel has no `io_uring` of Linux 5.11, or does not let us use it.
    pub fn new(socket: &Socket) -> io::Result<Uring> {
        Ok(Uring {
            ring: Ring::new(MESSAGES)?,
            messages: Messages::new(),
            entries: Vec::with_capacity(MESSAGES),
            receivers: HashSet::with_capacity(MESSAGES),
            fallback: Sendto::new(),
            segments: socket.probe_segmentation().is_ok(),
            unsegmented: Unsegmented::default(),
            was_full: false,
        })
    }
}

impl SendEngine for Uring {
    fn send(&mut self, socket: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
        let mut sent = Sent::default();
        if !self.unsegmented.is_empty() {
            self.unsegmented.forget_old(Instant::now());
        }
        let works = self.ring.serve(socket);
        let (transmits, first_unsent) = (batch.transmits(), rest.len());
        let mut done = 0;
        while done < transmits.len() && sent.full.is_none() {
            let list = &transmits[done..];
            // Several datagrams to one receiver, where they are not one message, are sent one by one.
            let whole = |t: &&Transmit| {
                let sending = socket.sending_to(&t.to.remote);
                ptr::eq(sending, socket.sending())
                    && (t.datagrams() == 1 || self.may_segment(t.to.remote))
            };
            let fit = if works { list.iter().take_while(whole).count() } else { 0 };
            let built = self.messages.build_whole(batch, &list[..fit]);
            if built == 0 {
                self.send_plainly(socket, batch, done, 0, &mut sent, rest);
                done += 1;
                continue;
            }
            let built = self.address_messages(&list[..built]);
            self.send_built(socket, batch, done, &mut sent, rest);
            done += built;
        }
        rest.extend((done..transmits.len()).map(|place| unsent(place, 0)));
        self.was_full = sent.full.is_some();
        rest[first_unsent..].sort_unstable_by_key(|unsent| unsent.transmit);
        sent
    }
}

fn unsent(transmit: usize, datagrams: u32) -> Unsent {
    Unsent { transmit: transmit as u32, datagrams }
}

impl Uring {
    fn may_segment(&self, to: SocketAddr) -> bool {
        self.segments && (self.unsegmented.is_empty() || !self.unsegmented.contains(to))
    }

    /// Makes entries of the messages that were built for `transmits`; returns of how many.
    ///
    /// A send that fails must not be overtaken by another to the same receiver. So sends to one
    /// receiver are chained if they are neighbours, and otherwise leave one after the other. Where
    /// there will hardly be room for all, everything is one chain: the first failure ends it.
    fn address_messages(&mut self, transmits: &[Transmit]) -> usize {
        self.entries.clear();
        self.receivers.clear();
        for (place, transmit) in transmits.iter().enumerate() {
            let is_same = place > 0 && transmits[place - 1].to == transmit.to;
            if place > 0 && (is_same || self.was_full) {
                let before = self.entries[place - 1].clone();
                self.entries[place - 1] = before.flags(Flags::IO_LINK);
            } else if !self.receivers.insert(transmit.to.remote) {
                break;
            }
            let message = ptr::from_ref(&self.messages.all()[place].msg_hdr);
            let entry = opcode::SendMsg::new(types::Fixed(Ring::SOCKET), message)
                .flags(libc::MSG_DONTWAIT as u32)
                .build();
            self.entries.push(entry.user_data(place as u64));
        }
        self.entries.len()
    }

    /// Sends what the entries say; an entry's user data is its place behind the transmit `first`.
    fn send_built(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        first: usize,
        sent: &mut Sent,
        rest: &mut Vec<Unsent>,
    ) {
        let mut errors = Errors::default();
        let mut refused = Vec::new();
        while !self.entries.is_empty() && sent.full.is_none() {
            // SAFETY: the entries point to the messages, those to the batch; all stay till after.
            let results = unsafe { self.ring.run(&self.entries) };
            let mut reported = None;
            self.entries.retain(|entry| {
                let place = entry.get_user_data() as usize;
                let error = match results[place] {
                    0.. => {
                        let datagrams = batch.transmits()[first + place].datagrams();
                        sent.report.sent += u64::from(datagrams);
                        return false;
                    }
                    // The send before it in its chain failed.
                    result if result == -libc::ECANCELED => return true,
                    result => io::Error::from_raw_os_error(-result),
                };
                // All that failed together may have failed for one reason.
                let verdict = Errors::default().judge(socket, &error);
                match verdict {
                    Verdict::Again => reported = Some(error),
                    Verdict::Full(full) if sent.full.is_none() => sent.stop(full),
                    Verdict::Full(_) => {}
                    Verdict::Refused => refused.push((place, error)),
                }
                verdict != Verdict::Refused
            });
            if let Some(error) = reported
                && errors.judge(socket, &error) == Verdict::Refused
            {
                for entry in self.entries.drain(..) {
                    let place = entry.get_user_data() as usize;
                    refused.push((place, io::Error::from(error.kind())));
                }
            }
            for (place, error) in refused.drain(..) {
                self.unsegmented.note(batch.transmits()[first + place].to.remote, &error);
                self.send_plainly(socket, batch, first + place, 0, sent, rest);
            }
        }
        let left = self.entries.iter().map(|entry| first + entry.get_user_data() as usize);
        rest.extend(left.map(|place| unsent(place, 0)));
    }

    /// Sends the transmit at `place` datagram by datagram, unless there is no room.
    fn send_plainly(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        place: usize,
        first: u32,
        sent: &mut Sent,
        rest: &mut Vec<Unsent>,
    ) {
        let transmit = &batch.transmits()[place];
        if sent.full.is_some() {
            rest.push(unsent(place, first));
            return;
        }
        sent.report.fallbacks += u64::from(transmit.datagrams());
        let done = self.fallback.send_one(socket, batch, transmit, first, sent);
        if sent.full.is_some() {
            rest.push(unsent(place, done));
        }
    }
}
