//! Receiving many datagrams in one call, each of which may be several (`UDP_GRO`).

use crate::address::KernelAddress;
use crate::engine::may_be_reported;
use crate::socket::Socket;
use crate::wait::nap;
use canopy_wire::Path;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

/// Room for what the kernel says of a piece: how it is cut, what was lost before it, which of our
/// addresses it was sent to.
const CONTROL_LEN: usize = 128;

/// Errors of earlier sends that a receive call looks past.
const REPORTED_ERRORS: u32 = 4;

/// Calls that fail in a row, for whatever reason, before the reason is handed up: with the nap
/// between them, some ten seconds.
const MAX_FAILED_IN_A_ROW: u32 = 2_000;
/// How long to wait after a call that failed.
const FAILED_NAP: Duration = Duration::from_millis(5);

/// Memory for receiving, reused by every call, for any number of sockets in turn.
pub struct Receiver {
    bytes_per_slot: usize,
    bytes: Vec<u8>,
    names: Vec<KernelAddress>,
    controls: Vec<[u64; CONTROL_LEN / 8]>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// How many messages the last call filled in: only these need their lengths set anew.
    used: usize,
    /// Which datagram is handed out next.
    at: At,
    /// Calls that failed since the last that did not.
    failed_in_a_row: u32,
}

/// How far a receive call's datagrams were handed out.
#[derive(Clone, Copy)]
struct At {
    slot: usize,
    /// Whether the slot's piece has been begun; the rest describes it.
    is_in_piece: bool,
    from: Path,
    begin: usize,
    end: usize,
    segment: usize,
    arrived: Option<Duration>,
}

impl Default for At {
    fn default() -> At {
        let from = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into();
        At { slot: 0, is_in_piece: false, from, begin: 0, end: 0, segment: 1, arrived: None }
    }
}

// SAFETY: the raw pointers point into the vectors next to them, which move with them on the heap
// and are never resized.
unsafe impl Send for Receiver {}

impl Receiver {
    /// Memory for `slots` pieces a call. A piece has at most `bytes_per_slot` bytes: 65,535 with
    /// receive offload, the longest datagram plus one without.
    pub fn new(slots: usize, bytes_per_slot: usize) -> Receiver {
        let mut receiver = Receiver {
            bytes_per_slot,
            bytes: vec![0; slots * bytes_per_slot],
            names: vec![KernelAddress::zeroed(); slots],
            controls: vec![[0; CONTROL_LEN / 8]; slots],
            vectors: Vec::with_capacity(slots),
            messages: Vec::with_capacity(slots),
            used: slots,
            // Nothing was received yet.
            at: At { slot: slots, ..At::default() },
            failed_in_a_row: 0,
        };
        for slot in 0..slots {
            receiver.vectors.push(libc::iovec {
                iov_base: receiver.bytes[slot * bytes_per_slot..].as_mut_ptr().cast(),
                iov_len: bytes_per_slot,
            });
        }
        for slot in 0..slots {
            // SAFETY: all zeroes is a value of this struct of integers and pointers.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_name = ptr::from_mut(&mut receiver.names[slot]).cast();
            message.msg_hdr.msg_iov = ptr::from_mut(&mut receiver.vectors[slot]);
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = receiver.controls[slot].as_mut_ptr().cast();
            receiver.messages.push(message);
        }
        receiver
    }

    /// Receives what waits, up to one piece a slot; [`Receiver::next`] then hands out the datagrams.
    /// Those of an earlier call that were not handed out are gone. Returns whether every slot was
    /// filled, so that more may wait.
    ///
    /// # Errors
    /// What the kernel says; an empty socket is no error.
    pub fn fill(&mut self, socket: &Socket) -> io::Result<bool> {
        for message in &mut self.messages[..self.used] {
            message.msg_hdr.msg_namelen = KernelAddress::LEN;
            message.msg_hdr.msg_controllen = CONTROL_LEN as _;
        }
        (self.used, self.at) = (0, At::default());
        self.used = self.recvmmsg(socket)?.unwrap_or(0);
        Ok(self.used > 0 && self.used == self.messages.len())
    }

    /// The next datagram that was received, with where it came from and, if the socket serves many
    /// and is bound to every address, which address it was sent to.
    pub fn next(&mut self, socket: &Socket) -> Option<(Path, &mut [u8])> {
        let datagram = self.step(socket)?;
        Some((self.at.from, &mut self.bytes[datagram]))
    }

    /// [`Receiver::next`], and when the datagram arrived at this host, in Unix time, if the socket
    /// [tells](Socket::stamp_arrivals).
    pub fn next_stamped(&mut self, socket: &Socket) -> Option<(Path, Option<Duration>, &mut [u8])> {
        let datagram = self.step(socket)?;
        Some((self.at.from, self.at.arrived, &mut self.bytes[datagram]))
    }

    /// Where the next datagram is among the bytes.
    fn step(&mut self, socket: &Socket) -> Option<Range<usize>> {
        if !self.at.is_in_piece {
            if self.at.slot == self.used {
                return None;
            }
            let message = &self.messages[self.at.slot];
            let len = message.msg_len as usize;
            let remarks = Remarks::of(&message.msg_hdr);
            if let Some(lost) = remarks.lost {
                socket.note_lost(lost);
            }
            self.at = At {
                slot: self.at.slot,
                is_in_piece: true,
                from: Path { remote: self.names[self.at.slot].get(), local: remarks.local },
                begin: 0,
                end: len,
                segment: remarks.segment.unwrap_or(len).max(1),
                arrived: remarks.arrived,
            };
        }
        let At { slot, begin, end, segment, .. } = self.at;
        let datagram = begin..(begin + segment).min(end);
        self.at.begin = datagram.end;
        if datagram.end == end {
            self.at.is_in_piece = false;
            self.at.slot += 1;
        }
        let first = slot * self.bytes_per_slot;
        Some(first + datagram.start..first + datagram.end)
    }

    /// Receives what waits, up to one piece a slot, and calls `take` for each datagram. Returns
    /// whether every slot was filled, so that more may wait.
    ///
    /// A call that fails for want of memory, or for a reason that nobody has thought of, brings
    /// nothing and is counted ([`Socket::failed_receives`]); the next may do better.
    ///
    /// # Errors
    /// If no call can do better (`EBADF`, `ENOTSOCK`, `EFAULT`, `EINVAL`, `ENOSYS`), or 2,000 have
    /// failed in a row, which takes ten seconds. An empty socket is no error.
    pub fn receive(
        &mut self,
        socket: &Socket,
        mut take: impl FnMut(Path, &mut [u8]),
    ) -> io::Result<bool> {
        let more = self.fill(socket)?;
        while let Some((from, datagram)) = self.next(socket) {
            take(from, datagram);
        }
        Ok(more)
    }
}

impl Receiver {
    /// Fills messages; `None` if nothing waits, or nothing can be had for now.
    fn recvmmsg(&mut self, socket: &Socket) -> io::Result<Option<usize>> {
        for _ in 0..REPORTED_ERRORS {
            // SAFETY: the messages point to names, vectors and controls that live as long as self.
            let count = unsafe {
                libc::recvmmsg(
                    socket.as_raw_fd(),
                    self.messages.as_mut_ptr(),
                    self.messages.len() as u32,
                    libc::MSG_DONTWAIT as _,
                    ptr::null_mut(),
                )
            };
            if count >= 0 {
                self.failed_in_a_row = 0;
                return Ok(Some(count as usize));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.failed_in_a_row = 0;
                    return Ok(None);
                }
                io::ErrorKind::Interrupted => {}
                // An earlier datagram found no one, or no way. It is told before what waits, so
                // look again.
                _ if may_be_reported(&error) => socket.take_errors(),
                _ => {
                    socket.note_failed_receive();
                    self.failed_in_a_row += 1;
                    if is_for_good(&error) || self.failed_in_a_row >= MAX_FAILED_IN_A_ROW {
                        return Err(error);
                    }
                    // The socket is still said to have something, so nothing else would wait.
                    nap(FAILED_NAP);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}

/// Whether no later call can succeed: what is called is no socket, or the call itself is wrong.
fn is_for_good(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL | libc::ENOSYS))
}

/// What the kernel says of a piece.
#[derive(Default)]
struct Remarks {
    /// The length of its datagrams, if it has several.
    segment: Option<usize>,
    /// Datagrams that the socket had lost when this piece came, if any.
    lost: Option<u32>,
    /// The address that it was sent to, if the socket has more than one.
    local: Option<IpAddr>,
    /// When it arrived, in Unix time, if the socket tells.
    arrived: Option<Duration>,
}

impl Remarks {
    fn of(header: &libc::msghdr) -> Remarks {
        let mut remarks = Remarks::default();
        // SAFETY: the kernel has written the control messages and their length; CMSG_* stay inside.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(header);
            while !control.is_null() {
                let place = libc::CMSG_DATA(control);
                let value = place.cast::<u32>();
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        remarks.segment = Some(value.read_unaligned() as usize);
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        remarks.lost = Some(value.read_unaligned());
                    }
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let at = place.cast::<libc::timespec>().read_unaligned();
                        remarks.arrived = Some(Duration::new(at.tv_sec as u64, at.tv_nsec as u32));
                    }
                    (libc::SOL_IP, libc::IP_PKTINFO) => {
                        let info = place.cast::<libc::in_pktinfo>().read_unaligned();
                        remarks.local =
                            Some(IpAddr::V4(u32::from_be(info.ipi_spec_dst.s_addr).into()));
                    }
                    (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                        let info = place.cast::<libc::in6_pktinfo>().read_unaligned();
                        remarks.local = Some(IpAddr::V6(info.ipi6_addr.s6_addr.into()));
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(header, control);
            }
        }
        remarks
    }
}
