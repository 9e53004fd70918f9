//! The run's trace: every datagram that arrives, hashed in order and shown to whoever listens.

use canopy_wire::Time;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

/// Is shown each datagram as it arrives: when, from, to, bytes.
pub type Tap<'a> = &'a mut dyn FnMut(Time, SocketAddr, SocketAddr, &[u8]);

pub(crate) struct Trace<'a> {
    hasher: SipHasher13,
    tap: Tap<'a>,
}

impl<'a> Trace<'a> {
    pub(crate) fn new(tap: Tap<'a>) -> Trace<'a> {
        Trace { hasher: SipHasher13::new(), tap }
    }

    pub(crate) fn arrived(&mut self, now: Time, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.hasher.write_u64(now.as_nanos());
        self.write_ip_port(from);
        self.write_ip_port(to);
        self.hasher.write_usize(bytes.len());
        self.hasher.write(bytes);
        (self.tap)(now, from, to, bytes);
    }

    /// The hash so far, as 16 hexadecimal digits.
    pub(crate) fn hash(&self) -> String {
        format!("{:016x}", self.hasher.finish())
    }

    fn write_ip_port(&mut self, ip_port: SocketAddr) {
        match ip_port.ip() {
            IpAddr::V4(ip) => self.hasher.write(&ip.octets()),
            IpAddr::V6(ip) => self.hasher.write(&ip.octets()),
        }
        self.hasher.write_u16(ip_port.port());
    }
}
