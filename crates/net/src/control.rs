//! Control messages: what a send says beside its bytes and its receiver.

use crate::sender::is_mapped;
use canopy_wire::Path;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};

/// Words of the longest: an IPv6 source, and how to cut.
const WORDS: usize = 8;
const HEADER: usize = mem::size_of::<libc::cmsghdr>();

/// Bytes of a control message that carries a segment length.
pub const SEGMENT_CONTROL_LEN: usize = 24;

/// The control messages of one send, one behind the other.
#[derive(Clone, Copy, Default)]
pub(crate) struct Control {
    words: [u64; WORDS],
    used: usize,
}

impl Control {
    /// What a send over `path` says: where it comes from, if the path tells, and how the kernel is
    /// to cut it, if `segment` tells.
    pub(crate) fn of(path: Path, segment: Option<u16>) -> Control {
        let mut control = Control::default();
        match source(path) {
            // struct in_pktinfo: the interface, which is left open; the source; nothing.
            Some(IpAddr::V4(ip)) => {
                let mut value = [0; 12];
                value[4..8].copy_from_slice(&ip.octets());
                control.add(libc::SOL_IP, libc::IP_PKTINFO, &value);
            }
            // struct in6_pktinfo: the source; the interface, which is left open.
            Some(IpAddr::V6(ip)) => {
                let mut value = [0; 20];
                value[..16].copy_from_slice(&ip.octets());
                control.add(libc::SOL_IPV6, libc::IPV6_PKTINFO, &value);
            }
            None => {}
        }
        if let Some(segment) = segment {
            control.add(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        control
    }

    /// Lets the message carry these, which must stay in place as long as it is used.
    pub(crate) fn attach_to(&mut self, header: &mut libc::msghdr) {
        if self.used > 0 {
            header.msg_control = self.words.as_mut_ptr().cast();
            header.msg_controllen = (self.used * mem::size_of::<u64>()) as _;
        }
    }

    fn add(&mut self, level: i32, kind: i32, value: &[u8]) {
        let mut bytes = [0; WORDS * 8];
        bytes[..8].copy_from_slice(&(HEADER + value.len()).to_ne_bytes());
        bytes[8..12].copy_from_slice(&level.to_ne_bytes());
        bytes[12..16].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER..HEADER + value.len()].copy_from_slice(value);
        let words = (HEADER + value.len()).div_ceil(8);
        for (word, bytes) in self.words[self.used..][..words].iter_mut().zip(bytes.chunks_exact(8))
        {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        self.used += words;
    }
}

/// Where a send says that it comes from.
fn source(path: Path) -> Option<IpAddr> {
    match path.local {
        // An IPv6 socket that is bound to a multicast address would give that as its source; the
        // route is to choose.
        None if is_mapped(&path.remote) => Some(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into()),
        local => local,
    }
}

/// Writes the control message that asks the kernel to cut a send into pieces of `segment` bytes.
pub fn write_segment_control(out: &mut [u8; SEGMENT_CONTROL_LEN], segment: u16) {
    // cmsg_len, cmsg_level, cmsg_type, then the value: CMSG_LEN(2) on 64-bit Linux.
    let header = mem::size_of::<libc::cmsghdr>();
    out.fill(0);
    out[..mem::size_of::<usize>()].copy_from_slice(&(header + 2).to_ne_bytes());
    out[header - 8..header - 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    out[header - 4..header].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    out[header..header + 2].copy_from_slice(&segment.to_ne_bytes());
}
