//! Which receivers probably share a bottleneck: those of one ip whose paths bear less than is meant for them.

use crate::index::PortIndex;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;

/// A receiver's.
#[derive(Clone, Copy)]
struct Place {
    network: IpAddr,
    is_limited: bool,
}

/// Where the receivers are, and how many at one place are limited by their paths.
#[derive(Default)]
pub(super) struct SharedPaths {
    /// By port.
    places: Vec<Option<Place>>,
    limited: BTreeMap<IpAddr, u32>,
}

impl SharedPaths {
    /// A receiver is at an ip from now on, and its path limits nothing yet.
    pub(super) fn enter(&mut self, port: PortIndex, ip: IpAddr) {
        self.forget(port);
        let index = port as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(Place { network: network_of(ip), is_limited: false });
    }

    /// A receiver is there no more.
    pub(super) fn forget(&mut self, port: PortIndex) {
        self.set_limited(port, false);
        if let Some(place) = self.places.get_mut(port as usize) {
            *place = None;
        }
    }

    /// Whether a receiver's path bears less than is meant for it.
    pub(super) fn set_limited(&mut self, port: PortIndex, is_limited: bool) {
        let Some(Some(place)) = self.places.get_mut(port as usize) else { return };
        if core::mem::replace(&mut place.is_limited, is_limited) == is_limited {
            return;
        }
        let count = self.limited.entry(place.network).or_default();
        *count = if is_limited { *count + 1 } else { *count - 1 };
        if *count == 0 {
            self.limited.remove(&place.network);
        }
    }

    /// Whether others where a receiver is are limited.
    pub(super) fn is_shared(&self, port: PortIndex) -> bool {
        let Some(Some(place)) = self.places.get(port as usize) else { return false };
        let count = self.limited.get(&place.network).copied().unwrap_or_default();
        count > u32::from(place.is_limited)
    }
}

/// An IPv6 address counts as its /64, because a household has one of those, as it has one IPv4 address.
fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_one_ip_share_a_path_while_another_is_limited() {
        let mut shared = SharedPaths::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        shared.enter(0, ip("192.0.2.1"));
        shared.enter(1, ip("::ffff:192.0.2.1"));
        shared.enter(2, ip("192.0.2.2"));
        shared.enter(3, ip("2001:db8:0:1::7"));
        shared.enter(4, ip("2001:db8:0:1:9::8"));
        shared.set_limited(0, true);
        shared.set_limited(0, true);
        shared.set_limited(3, true);
        let all = |shared: &SharedPaths| [0, 1, 2, 3, 4].map(|port| shared.is_shared(port));
        assert_eq!(all(&shared), [false, true, false, false, true]);
        shared.set_limited(1, true);
        assert_eq!(all(&shared), [true, true, false, false, true]);
        // One goes to another place, and one leaves.
        shared.enter(1, ip("192.0.2.2"));
        shared.forget(3);
        assert_eq!(all(&shared), [false; 5]);
        shared.forget(0);
        assert!(shared.limited.is_empty() && !shared.is_shared(9));
    }
}
