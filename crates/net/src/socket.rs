//! UDP sockets with Canopy's options.

use crate::control::{SEGMENT_CONTROL_LEN, write_segment_control};
use crate::options::{ignore_path_mtu, set_option, set_send_buffer, tell_addresses, tell_errors};
use crate::sender::Sender;
use socket2::{Domain, Protocol, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How a socket is set up.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// The kernel may hand over several datagrams of one sender in one piece (`UDP_GRO`).
    pub receive_offload: bool,
    /// Bytes that may wait to be read; the kernel may grant less.
    pub receive_buffer: usize,
    /// Bytes that may wait in the device's queue. Below the queue's own limit a full queue makes
    /// the sender wait instead of losing datagrams. The kernel may grant less.
    pub send_buffer: usize,
    /// Whether it serves many peers, as a relay's does; a participant's is connected to one. Then
    /// it sends through a second socket, so that no ICMP message, which anybody can forge,
    /// disturbs what it sends to others.
    pub serves_many: bool,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions {
            receive_offload: true,
            receive_buffer: 4 << 20,
            send_buffer: 256 << 10,
            serves_many: false,
        }
    }
}

/// The most errors of earlier datagrams that are thrown away at once.
const MOST_ERRORS: usize = 1024;

/// A UDP socket that never blocks.
#[derive(Debug)]
pub struct Socket {
    inner: socket2::Socket,
    local: SocketAddr,
    /// What sends, if this socket only receives.
    sender: Option<Sender>,
    serves_many: bool,
    lost: AtomicU32,
    failed_receives: AtomicU32,
    id: u64,
}

impl Socket {
    /// A socket at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// What the kernel says, for example that the address is in use.
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
        let socket = Socket::bind_one(address, options, false)?;
        Ok(if options.serves_many { socket.with_sender() } else { socket })
    }

    /// A socket at `address` that only receives, and whose address may be shared later.
    pub(crate) fn bind_alone(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
        Socket::bind_one(address, options, false)
    }

    /// A further socket at an address whose sockets are shared. It only receives.
    pub(crate) fn join(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
        Socket::bind_one(address, options, true)
    }

    /// Lets further sockets of this user have the same address.
    pub(crate) fn share(&self) -> io::Result<()> {
        self.inner.set_reuse_port(true)
    }

    /// Gives it a socket to send through. Without, it sends by itself and is not told of full
    /// queues: better lose a datagram there than listen to everybody's ICMP messages.
    pub(crate) fn with_sender(self) -> Socket {
        let sender = Sender::open(&self.inner, self.local).ok();
        Socket { sender, ..self }
    }

    fn bind_one(address: SocketAddr, options: &SocketOptions, share: bool) -> io::Result<Socket> {
        let inner =
            socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        inner.set_nonblocking(true)?;
        inner.set_reuse_port(share)?;
        inner.set_recv_buffer_size(options.receive_buffer)?;
        set_send_buffer(&inner, options.send_buffer)?;
        inner.bind(&address.into())?;
        let local = inner.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let serves_many = options.serves_many;
        if serves_many {
            ignore_path_mtu(&inner, local.is_ipv6())?;
            if local.ip().is_unspecified() {
                tell_addresses(&inner, local.is_ipv6())?;
            }
        }
        let socket = Socket {
            inner,
            local,
            sender: None,
            serves_many,
            lost: AtomicU32::new(0),
            failed_receives: AtomicU32::new(0),
            id: fresh_id(),
        };
        socket.set_option(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1)?;
        if options.receive_offload {
            // Kernels before 5.0 don't have it; datagrams then come one by one.
            let _ = socket.set_option(libc::SOL_UDP, libc::UDP_GRO, &1);
        }
        Ok(socket)
    }

    /// Fixes the peer: only its datagrams are received.
    ///
    /// # Errors
    /// What the kernel says, for example that there is no route.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.inner.connect(&peer.into())
    }

    /// The address that it is bound to.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Bytes that may wait to be read, as the kernel granted them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        // It says twice as much, to account for its own book-keeping.
        Ok(self.inner.recv_buffer_size()? / 2)
    }

    /// Datagrams lost so far because the receive buffer was full; wraps around. The kernel tells
    /// with each datagram what was lost before it, so the latest losses are not in it yet.
    pub fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Calls so far that should have received and failed for a reason of the system's; wraps
    /// around.
    pub fn failed_receives(&self) -> u32 {
        self.failed_receives.load(Ordering::Relaxed)
    }

    pub(crate) fn note_failed_receive(&self) {
        self.failed_receives.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_lost(&self, lost: u32) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// Has the kernel tell of each datagram when it arrived: see [`Receiver::next_stamped`](crate::Receiver::next_stamped).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn stamp_arrivals(&self) -> io::Result<()> {
        self.set_option(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)
    }

    /// Sends one datagram to the connected peer.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` if the send buffer is full.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.inner.send(datagram).map(drop)
    }

    /// Sends `datagrams` to the connected peer, cut into pieces of `segment` bytes, in one call.
    ///
    /// # Errors
    /// What the kernel says; where it has no segmentation offload, send them one by one.
    pub fn send_segments(&self, datagrams: &[u8], segment: u16) -> io::Result<()> {
        let mut control = [0; SEGMENT_CONTROL_LEN];
        write_segment_control(&mut control, segment);
        let buffers = [io::IoSlice::new(datagrams)];
        let message = socket2::MsgHdr::new().with_buffers(&buffers).with_control(&control);
        self.inner.sendmsg(&message, libc::MSG_DONTWAIT).map(drop)
    }

    /// What became of an earlier datagram, if the kernel has been told and nobody has asked yet.
    pub fn take_error(&self) -> Option<io::Error> {
        self.inner.take_error().ok().flatten()
    }

    /// Makes the kernel choose by `program` among the sockets that share this one's address.
    pub(crate) fn steer(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
    }

    /// Which of the sockets that this process ever had it is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Makes sends fail that a full device queue drops: the kernel tells of them only where it
    /// also tells what became of earlier datagrams ([`Socket::take_errors`]). A socket that serves
    /// many has another to be told by.
    pub fn report_errors(&self) {
        if !self.serves_many {
            // Every Linux has it; without, a datagram is lost as on any device.
            let _ = tell_errors(&self.inner, self.local.is_ipv6());
        }
    }

    /// Whether a send fails that a full device queue drops. If not, the datagram is lost unseen.
    pub fn notices_full_queues(&self) -> bool {
        self.sender.is_some() || !self.serves_many
    }

    /// What sends to `receiver`.
    pub fn sending_to(&self, receiver: &SocketAddr) -> &socket2::Socket {
        self.sender.as_ref().map_or(&self.inner, |sender| sender.to(receiver))
    }

    /// What sends to receivers of its own family.
    pub fn sending(&self) -> &socket2::Socket {
        self.sending_to(&self.local)
    }

    /// All that send.
    pub(crate) fn all_sending(&self) -> impl Iterator<Item = &socket2::Socket> {
        let alone = self.sender.is_none().then_some(&self.inner);
        alone.into_iter().chain(self.sender.iter().flat_map(Sender::all))
    }

    /// Throws away what is told of earlier datagrams, such as that nobody takes them. Kept, it
    /// would fill the receive buffer, and fail the next call, whatever that sends or receives.
    pub fn take_errors(&self) {
        take_errors(&self.inner);
        self.sender.iter().flat_map(Sender::all).for_each(take_errors);
    }

    /// Whether the kernel cuts a send into datagrams.
    ///
    /// # Errors
    /// If it does not.
    pub fn probe_segmentation(&self) -> io::Result<()> {
        self.set_option(libc::SOL_UDP, libc::UDP_SEGMENT, &0).map_err(|error| {
            let why =
                format!("this kernel has no UDP_SEGMENT, which came with Linux 4.18 ({error})");
            io::Error::new(error.kind(), why)
        })
    }

    /// Whether the kernel joins datagrams that arrive together.
    pub(crate) fn probe_receive_offload(&self) -> io::Result<()> {
        self.set_option(libc::SOL_UDP, libc::UDP_GRO, &0)
    }

    fn set_option<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        set_option(&self.inner, level, name, value)
    }
}

fn take_errors(socket: &socket2::Socket) {
    let mut nothing = [0u8; 1];
    let mut taken = 0;
    while taken < MOST_ERRORS {
        // SAFETY: the kernel writes at most one byte; it is asked for no name and no control.
        let got = unsafe {
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            libc::recv(socket.as_raw_fd(), nothing.as_mut_ptr().cast(), nothing.len(), flags)
        };
        if got < 0 {
            break;
        }
        taken += 1;
    }
    // What was told before it could be queued is left.
    let _ = socket.take_error();
}

fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}
