//! `sendmmsg`: many datagrams in one system call, and with `UDP_SEGMENT` several of equal size to one
//! receiver in one message.

use super::messages::Messages;
use super::sendto::Sendto;
use super::{Errors, SendEngine, Sent, Unsegmented, Verdict};
use crate::socket::Socket;
use canopy_batch::{SendBatch, Transmit, Unsent};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// `sendmmsg`, with or without segmentation offload.
pub struct Mmsg {
    messages: Messages,
    fallback: Sendto,
    /// Whether a receiver's datagrams leave as one message.
    segments: bool,
    /// Receivers for whom they must not.
    unsegmented: Unsegmented,
}

impl Mmsg {
    /// One message for each datagram.
    pub fn plain() -> Mmsg {
        Mmsg {
            messages: Messages::new(),
            fallback: Sendto::new(),
            segments: false,
            unsegmented: Unsegmented::default(),
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

    /// Sends some transmits of a batch, as [`SendEngine::send`] does; the rest is numbered by its
    /// place among them.
    pub fn send_some(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        transmits: &[Transmit],
        rest: &mut Vec<Unsent>,
    ) -> Sent {
        let mut sent = Sent::default();
        if !self.unsegmented.is_empty() {
            self.unsegmented.forget_old(Instant::now());
        }
        let mut first = 0;
        while first < transmits.len() && sent.full.is_none() {
            let list = &transmits[first..];
            let built = self.build(batch, list);
            let (place, datagrams) = if built == 0 {
                // It is more than one system call has room for, or must leave one by one.
                let all = list[0].datagrams();
                sent.report.fallbacks += if self.segments { all.into() } else { 0 };
                let done = self.fallback.send_one(socket, batch, &list[0], 0, &mut sent);
                (usize::from(done == all), done)
            } else {
                self.send_built(socket, batch, &list[..built], &mut sent)
            };
            first += place;
            if sent.full.is_some() {
                rest.push(Unsent { transmit: first as u32, datagrams });
                let behind = first + 1..transmits.len();
                rest.extend(behind.map(|place| Unsent { transmit: place as u32, datagrams: 0 }));
            }
        }
        sent
    }

    /// Builds messages for as many of the transmits as fit; returns how many.
    fn build(&mut self, batch: &SendBatch, transmits: &[Transmit]) -> usize {
        if !self.segments {
            return self.messages.build_cut(batch, transmits);
        }
        let mut fit = transmits.len();
        if !self.unsegmented.is_empty() {
            let whole =
                |t: &&Transmit| t.datagrams() == 1 || !self.unsegmented.contains(t.to.remote);
            fit = transmits.iter().take_while(whole).count();
        }
        self.messages.build_whole(batch, &transmits[..fit])
    }

    /// Sends the messages that were built for these transmits. Returns how many transmits are done
    /// with, and how many datagrams of the next one.
    fn send_built(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        transmits: &[Transmit],
        sent: &mut Sent,
    ) -> (usize, u32) {
        let sending = socket.sending_to(&transmits[0].to.remote);
        let mut errors = Errors::default();
        let mut done = 0;
        while done < self.messages.len() {
            match sendmmsg(sending, &mut self.messages.all()[done..]) {
                Ok(count) => {
                    for place in done..done + count {
                        sent.report.sent += u64::from(self.datagrams(transmits, place));
                    }
                    done += count;
                    errors.next();
                    if done < self.messages.len() {
                        // The next call tells what stopped this one, unless that was an error of an
                        // earlier datagram, which is thrown away here.
                        socket.take_errors();
                    }
                    continue;
                }
                Err(error) => match errors.judge(socket, &error) {
                    Verdict::Again => continue,
                    Verdict::Full(full) => {
                        sent.stop(full);
                        return self.messages.owner(done);
                    }
                    Verdict::Refused => {
                        let (place, _) = self.messages.owner(done);
                        let (transmit, datagrams) =
                            (&transmits[place], self.datagrams(transmits, done));
                        if datagrams == 1 {
                            sent.report.failed += 1;
                        } else {
                            self.unsegmented.note(transmit.to.remote, &error);
                            sent.report.fallbacks += u64::from(datagrams);
                            let sent_of_it =
                                self.fallback.send_one(socket, batch, transmit, 0, sent);
                            if sent.full.is_some() {
                                return (place, sent_of_it);
                            }
                        }
                    }
                },
            }
            done += 1;
            errors.next();
        }
        (transmits.len(), 0)
    }

    /// How many datagrams a message carries.
    fn datagrams(&self, transmits: &[Transmit], message: usize) -> u32 {
        if self.segments { transmits[self.messages.owner(message).0].datagrams() } else { 1 }
    }
}

impl SendEngine for Mmsg {
    fn send(&mut self, socket: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
        self.send_some(socket, batch, batch.transmits(), rest)
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
