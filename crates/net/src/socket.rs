//! UDP sockets with Canopy's options.

use socket2::{Domain, Protocol, Type};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How a socket is set up.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// The kernel may hand over several datagrams of one sender in one piece (`UDP_GRO`).
    pub receive_offload: bool,
    /// Bytes that may wait to be read; the kernel may grant less.
    pub receive_buffer: usize,
    /// Bytes that may wait in the device's queue. Below the queue's own limit a full queue makes
    /// the sender wait instead of losing datagrams.
    pub send_buffer: usize,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { receive_offload: true, receive_buffer: 4 << 20, send_buffer: 256 << 10 }
    }
}

/// The most errors of earlier datagrams that are thrown away at once.
const MOST_ERRORS: usize = 1024;

/// A UDP socket that never blocks.
#[derive(Debug)]
pub struct Socket {
    inner: socket2::Socket,
    local: SocketAddr,
    lost: AtomicU32,
    id: u64,
}

impl Socket {
    /// A socket at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// What the kernel says, for example that the address is in use.
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
        Socket::bind_one(address, options, false)
    }

    /// `count` sockets that share one address, one for each data thread; port 0 takes a free one.
    ///
    /// The first is bound alone and opened to the others afterwards: an address that anybody
    /// holds, be it another group, is in use. So no relay joins another's group by mistake and
    /// takes its datagrams.
    ///
    /// # Errors
    /// What the kernel says, for example that the address is in use.
    pub fn bind_group(
        address: SocketAddr,
        count: usize,
        options: &SocketOptions,
    ) -> io::Result<Vec<Socket>> {
        let first = Socket::bind(address, options)?;
        let address = first.local;
        let mut group = vec![first];
        if count > 1 {
            group[0].inner.set_reuse_port(true)?;
        }
        while group.len() < count {
            group.push(Socket::bind_one(address, options, true)?);
        }
        Ok(group)
    }

    fn bind_one(address: SocketAddr, options: &SocketOptions, share: bool) -> io::Result<Socket> {
        let inner =
            socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        inner.set_nonblocking(true)?;
        inner.set_reuse_port(share)?;
        inner.set_recv_buffer_size(options.receive_buffer)?;
        inner.set_send_buffer_size(options.send_buffer)?;
        inner.bind(&address.into())?;
        let local = inner.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let socket = Socket { inner, local, lost: AtomicU32::new(0), id: fresh_id() };
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

    pub(crate) fn note_lost(&self, lost: u32) {
        self.lost.store(lost, Ordering::Relaxed);
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
        let mut control = [0; crate::engine::SEGMENT_CONTROL_LEN];
        crate::engine::write_segment_control(&mut control, segment);
        let buffers = [io::IoSlice::new(datagrams)];
        let message = socket2::MsgHdr::new().with_buffers(&buffers).with_control(&control);
        self.inner.sendmsg(&message, libc::MSG_DONTWAIT).map(drop)
    }

    /// Makes the kernel choose among the `shards` sockets of this one's group by the packet's
    /// source endpoint: bytes 10 and 11 of the header, modulo `shards`. The sockets count in the
    /// order of the group. So a session stays with its thread when its ip:port changes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn steer_by_source(&self, shards: u16) -> io::Result<()> {
        let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let mut program = [
            step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 10),
            step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, shards.max(1).into()),
            step(libc::BPF_RET | libc::BPF_A, 0),
        ];
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
    }

    /// Which of the sockets that this process ever had it is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Makes sends fail that a full device queue drops: the kernel tells of them only where it
    /// also tells what became of earlier datagrams ([`Socket::take_errors`]).
    pub fn report_errors(&self) {
        // Every Linux has it; without, a datagram is lost as on any device.
        let _ = tell_errors(&self.inner, self.local.is_ipv6());
    }

    /// Throws away what is told of earlier datagrams, such as that nobody takes them. Kept, it
    /// would fill the receive buffer, and fail the next call, whatever that sends or receives.
    pub fn take_errors(&self) {
        let mut nothing = [0u8; 1];
        let mut taken = 0;
        while taken < MOST_ERRORS {
            // SAFETY: the kernel writes at most one byte; it is asked for no name and no control.
            let got = unsafe {
                let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
                libc::recv(self.as_raw_fd(), nothing.as_mut_ptr().cast(), nothing.len(), flags)
            };
            if got < 0 {
                break;
            }
            taken += 1;
        }
        // What was told before it could be queued is left.
        let _ = self.inner.take_error();
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

    fn set_option<T>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        set_option(&self.inner, level, name, value)
    }
}

fn set_option<T>(socket: &socket2::Socket, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the value has; for the filter program, also the
    // steps that it points to, which the caller keeps until this returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has a socket told of what became of what it sent: of a full device queue too.
///
/// # Errors
/// What the kernel says.
pub fn tell_errors(socket: &socket2::Socket, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set_option(socket, libc::SOL_IPV6, libc::IPV6_RECVERR, &1)?;
    }
    set_option(socket, libc::SOL_IP, libc::IP_RECVERR, &1)
}

fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Sets how many bytes may wait in a socket of the standard library's; the kernel may grant less.
///
/// # Errors
/// What the kernel says.
pub fn set_receive_buffer(socket: &std::net::UdpSocket, bytes: usize) -> io::Result<()> {
    socket2::SockRef::from(socket).set_recv_buffer_size(bytes)
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}
