//! The socket that a relay sends through: it has the receiving socket's address and port, and no
//! ICMP message is ever found to belong to it.
//!
//! Where a socket asks to be told of errors (`IP_RECVERR`), the kernel tells it that a device's
//! queue was full, which a relay wants to know, but also of every ICMP message about any datagram,
//! which anybody can forge. So those are two sockets. The receiving one is found by what ICMP
//! messages quote, and is told nothing. The sending one is bound to a multicast address that nobody
//! sends to, and is told of full queues.

use crate::options::{ignore_path_mtu, set_send_buffer, tell_errors};
use socket2::{Domain, Protocol, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// How long a datagram of the host's own may take to the host itself. It is there at once.
const LOOP_TIME: Duration = Duration::from_millis(100);

/// A socket that only sends, or two for a receiving one that speaks both families: one that is
/// bound to an IPv6 multicast address cannot send to IPv4.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: socket2::Socket,
    /// For receivers with IPv4-mapped addresses.
    mapped: Option<socket2::Socket>,
}

impl Sender {
    /// A socket that sends from `local`, the address of `receiving`.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn open(receiving: &socket2::Socket, local: SocketAddr) -> io::Result<Sender> {
        if matches!(local.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let unheard = |address| {
            let socket = unheard_socket(receiving, local, address)?;
            tell_errors(&socket, local.is_ipv6())?;
            Ok::<_, io::Error>(socket)
        };
        let socket = unheard(unheard_address(local))?;
        let both = local.is_ipv6() && local.ip().is_unspecified() && !receiving.only_v6()?;
        let mapped = both.then(|| unheard(UNHEARD_V4.to_ipv6_mapped().into())).transpose()?;
        if !local.ip().is_unspecified() {
            fix_source(&socket, local)?;
            if !sends_from(&socket, local) {
                return Err(io::ErrorKind::AddrNotAvailable.into());
            }
        }
        Ok(Sender { socket, mapped })
    }

    /// What sends to `receiver`.
    pub(crate) fn to(&self, receiver: &SocketAddr) -> &socket2::Socket {
        match &self.mapped {
            Some(mapped) if is_mapped(receiver) => mapped,
            _ => &self.socket,
        }
    }

    /// What sends.
    pub(crate) fn all(&self) -> impl Iterator<Item = &socket2::Socket> {
        std::iter::once(&self.socket).chain(&self.mapped)
    }
}

/// Whether this is an IPv4 address as an IPv6 socket has it.
pub(crate) fn is_mapped(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some())
}

/// A socket with the port of `receiving`, which is bound to `local`, at a multicast address that nobody
/// sends to. It receives nothing: what is
/// sent to the port comes to `receiving`, as do the errors of what this socket sent.
///
/// A socket that is bound to a multicast address sends from the address that the route to its
/// receiver gives, but is found by what is sent to the multicast address only.
fn unheard_socket(
    receiving: &socket2::Socket,
    local: SocketAddr,
    address: IpAddr,
) -> io::Result<socket2::Socket> {
    let socket =
        socket2::Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // The multicast address is shared with every such socket of this host, whoever's it is.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_recv_buffer_size(0)?;
    set_send_buffer(&socket, receiving.send_buffer_size()? / 2)?;
    ignore_path_mtu(&socket, local.is_ipv6())?;
    let name = SocketAddr::new(address, local.port());
    // A socket that is bound to every address shares its port only if both say so.
    let shared = receiving.reuse_port()?;
    receiving.set_reuse_port(true)?;
    let bound = socket.bind(&name.into());
    receiving.set_reuse_port(shared)?;
    bound?;
    Ok(socket)
}

/// Makes `local` the source of all that the socket sends.
///
/// A socket that was bound to an address keeps, when it is connected and disconnected again, the
/// source that it was connected from. IPv4 takes the source for a multicast peer from
/// `IP_MULTICAST_IF`, and only there may it be any of the host's addresses; IPv6 reaches an
/// address of the host's own from that same address.
fn fix_source(socket: &socket2::Socket, local: SocketAddr) -> io::Result<()> {
    match local {
        SocketAddr::V4(v4) => {
            socket.set_multicast_if_v4(v4.ip())?;
            socket.connect(&SocketAddr::from((Ipv4Addr::new(224, 0, 0, 1), 1)).into())?;
        }
        SocketAddr::V6(_) => socket.connect(&local.into())?,
    }
    Ok(rustix::net::connect_unspec(socket)?)
}

/// Whether what the socket sends comes from `local`, found out by sending to this host.
fn sends_from(socket: &socket2::Socket, local: SocketAddr) -> bool {
    let heard = || -> io::Result<SocketAddr> {
        let mut here = local;
        here.set_port(0);
        let probe = UdpSocket::bind(here)?;
        probe.set_read_timeout(Some(LOOP_TIME))?;
        socket.send_to(&[0], &probe.local_addr()?.into())?;
        Ok(probe.recv_from(&mut [0])?.1)
    };
    heard().is_ok_and(|from| (from.ip(), from.port()) == (local.ip(), local.port()))
}

/// Multicast addresses that nobody sends to: of those kept for documentation (RFC 6676).
const UNHEARD_V4: Ipv4Addr = Ipv4Addr::new(233, 252, 0, 1);
const UNHEARD_V6: Ipv6Addr = Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0xdb8, 0, 1);

fn unheard_address(local: SocketAddr) -> IpAddr {
    if local.is_ipv4() { UNHEARD_V4.into() } else { UNHEARD_V6.into() }
}
