//! Socket addresses as the kernel has them.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Room for an IPv4 or IPv6 socket address. Its first field is the family in both.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union KernelAddress {
    pub(crate) v4: libc::sockaddr_in,
    pub(crate) v6: libc::sockaddr_in6,
}

impl KernelAddress {
    pub(crate) const LEN: libc::socklen_t = mem::size_of::<KernelAddress>() as libc::socklen_t;

    pub(crate) fn zeroed() -> KernelAddress {
        // SAFETY: both variants are plain integers, for which all zeroes is a value.
        unsafe { mem::zeroed() }
    }

    /// Writes `address` and returns the length that the kernel wants to hear.
    pub(crate) fn set(&mut self, address: SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(v4) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
            }
            SocketAddr::V6(v6) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
            }
        }
    }

    /// Reads what the kernel wrote; an unspecified address for a family that is neither.
    pub(crate) fn get(&self) -> SocketAddr {
        // SAFETY: every bit pattern is a value of these integers, and the union starts zeroed, so
        // all bytes are initialised whichever variant was written last.
        let (v4, v6) = unsafe { (self.v4, self.v6) };
        match i32::from(v4.sin_family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                // A link-local address means something only together with its device.
                SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into()
            }
            _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["127.0.0.1:4040", "[::1]:4040", "[2001:db8::7]:1", "[fe80::7%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut kernel = KernelAddress::zeroed();
            assert!(kernel.set(address) <= KernelAddress::LEN);
            assert_eq!(kernel.get(), address);
        }
    }
}
