//! Which receivers probably share a bottleneck: those of one ip whose paths bear less than is meant for them.
//!
//! A receiver that its path limits leaves a *mark* where its ip is with each report. Marks are in a table of atomics that the
//! data threads of a relay share, and count for some seconds.

use crate::index::{PortIndex, fold};
use canopy_wire::Time;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Whoever is limited reports about once a second.
const COUNTS_FOR: u32 = 40;
/// Ips whose receivers are limited at a time, about.
const SLOTS: usize = 4096;
const WHO_BITS: u32 = 24;
const TIME_BITS: u32 = 24;
/// The bits of the port among those that say who it is; the others say on which data thread.
const PORT_BITS: u32 = 18;

/// The marks of a relay, by ip: of the two receivers that left one last.
pub(crate) struct PathMarks(Box<[[AtomicU64; 2]]>);

impl PathMarks {
    /// None.
    pub(crate) fn new() -> Arc<PathMarks> {
        Arc::new(PathMarks((0..SLOTS).map(|_| Default::default()).collect()))
    }
}

/// What a data thread makes of them.
pub(super) struct SharedPaths {
    marks: Arc<PathMarks>,
    thread: u16,
    /// By port: where a receiver is.
    networks: Vec<Option<u64>>,
}

impl SharedPaths {
    pub(super) fn new(marks: Arc<PathMarks>, thread: u16, max_ports: usize) -> SharedPaths {
        SharedPaths { marks, thread, networks: Vec::with_capacity(max_ports) }
    }

    /// A receiver is at an ip from now on.
    pub(super) fn enter(&mut self, port: PortIndex, ip: IpAddr) {
        let index = port as usize;
        if index >= self.networks.len() {
            self.networks.resize(index + 1, None);
        }
        self.networks[index] = Some(hash_of(ip));
    }

    /// A receiver is there no more.
    pub(super) fn forget(&mut self, port: PortIndex) {
        if let Some(network) = self.networks.get_mut(port as usize) {
            *network = None;
        }
    }

    /// A receiver's path bears less than is meant for it.
    pub(super) fn mark(&self, now: Time, port: PortIndex) {
        let Some((slot, own)) = self.slot(now, port) else { return };
        let newest = slot[0].load(Ordering::Relaxed);
        if newest >> TIME_BITS != own >> TIME_BITS {
            slot[1].store(newest, Ordering::Relaxed);
        }
        slot[0].store(own, Ordering::Relaxed);
    }

    /// Whether another one where a receiver is has left a mark lately.
    pub(super) fn is_shared(&self, now: Time, port: PortIndex) -> bool {
        let Some((slot, own)) = self.slot(now, port) else { return false };
        slot.iter().any(|mark| {
            let mark = mark.load(Ordering::Relaxed);
            let is_same = |bits: u32| mark >> bits == own >> bits;
            let age = (own.wrapping_sub(mark) as u32) << (32 - TIME_BITS) >> (32 - TIME_BITS);
            is_same(WHO_BITS + TIME_BITS) && !is_same(TIME_BITS) && age < COUNTS_FOR
        })
    }

    /// Where a receiver leaves its mark, and which: a part of its network's hash, who it is, and tenths of a second.
    fn slot(&self, now: Time, port: PortIndex) -> Option<(&[AtomicU64; 2], u64)> {
        let network = (*self.networks.get(port as usize)?)?;
        let who = u64::from(self.thread) << PORT_BITS | (u64::from(port) & ((1 << PORT_BITS) - 1));
        let who = (who + 1) & ((1 << WHO_BITS) - 1);
        let time = (now.as_nanos() / 100_000_000) & ((1 << TIME_BITS) - 1);
        let slot = self.marks.0.get(network as usize % SLOTS)?;
        Some((slot, network >> 48 << 48 | who << TIME_BITS | time))
    }
}

/// An IPv6 address counts as its /64, because a household has one of those, as it has one IPv4 address.
fn hash_of(ip: IpAddr) -> u64 {
    let bits = match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits() & (u128::MAX << 64),
    };
    fold(fold((bits >> 64) as u64) ^ bits as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(tenths: u64) -> Time {
        Time::from_millis(100 * tenths)
    }

    #[test]
    fn those_of_one_ip_share_a_path_on_all_data_threads_while_another_is_limited() {
        let marks = PathMarks::new();
        let mut threads = [0, 1].map(|thread| SharedPaths::new(Arc::clone(&marks), thread, 8));
        let ips =
            ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2", "2001:db8:0:1::7", "2001:db8:0:1:9::8"];
        for (port, ip) in (0..).zip(ips) {
            threads[0].enter(port, ip.parse().unwrap());
        }
        threads[1].enter(0, "192.0.2.1".parse().unwrap());
        let all = |threads: &[SharedPaths; 2], now| {
            let other = threads[1].is_shared(now, 0);
            ([0, 1, 2, 3, 4].map(|port| threads[0].is_shared(now, port)), other)
        };
        assert_eq!(all(&threads, at(50)), ([false; 5], false));
        threads[0].mark(at(50), 0);
        threads[0].mark(at(60), 0);
        threads[0].mark(at(60), 3);
        assert_eq!(all(&threads, at(60)), ([false, true, false, false, true], true));
        threads[1].mark(at(70), 0);
        assert_eq!(all(&threads, at(70)), ([true, true, false, false, true], true));
        // A mark counts for four seconds.
        assert_eq!(all(&threads, at(99)), ([true, true, false, false, true], true));
        assert_eq!(all(&threads, at(100)), ([true, true, false, false, false], false));
        assert_eq!(all(&threads, at(110)), ([false; 5], false));
        threads[0].forget(1);
        threads[1].mark(at(110), 0);
        assert_eq!(all(&threads, at(110)), ([true, false, false, false, false], false));
    }
}
