//! The way of a datagram outside a comtree: whose ip:port, and which address of ours.

use core::net::{IpAddr, SocketAddr};

/// Where a peer's datagrams come from and answers to it go: its ip:port, and the address of this
/// host that it uses, so that an answer leaves from where the peer expects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The peer's ip:port.
    pub remote: SocketAddr,
    /// Our address. `None` where the socket is bound to one address alone, or the kernel may
    /// choose.
    pub local: Option<IpAddr>,
}

impl From<SocketAddr> for Path {
    /// A path that leaves the choice of our address to the kernel.
    fn from(remote: SocketAddr) -> Path {
        Path { remote, local: None }
    }
}
