//! Which receivers probably share a bottleneck: those of one ip whose paths bear less than is meant for them.
//!
//! A receiver that its path limits leaves a *mark* where its ip is with each report, and counts in the mean of the rates there.
//! Both are in a table of atomics that the data threads of a relay share. Marks count for some seconds. Nothing hangs on a mean
//! to the bit: where two data threads write one at once, one report is not in it.

use crate::index::{PortIndex, fold};
use canopy_wire::Time;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A mark counts for so many tenths of a second; whoever is limited reports about once a second.
const COUNTS_FOR: u64 = 40;
/// Ips whose receivers are limited at a time, about.
const SLOTS: usize = 1 << 14;
const WHO_BITS: u32 = 24;
const TIME_BITS: u32 = 24;
/// A part of an ip's hash, in marks and in means.
const HASH: u64 = u64::MAX << (WHO_BITS + TIME_BITS);
/// The bits of the port among those that say who it is; the others say on which data thread.
const PORT_BITS: u32 = 18;
/// A receiver's report moves the mean by one part in so many of the difference for each second since the one before, up to one second.
const MEAN_OVER: f64 = 10.0;

/// What is known of an ip.
#[derive(Default)]
struct Slot {
    /// The marks of the two receivers that left one last.
    marks: [AtomicU64; 2],
    /// The mean of the rates of those that leave marks, in bits a second, as the bits of an `f32`; and a part of the ip's hash.
    mean: AtomicU64,
}

/// The marks of a relay, by ip.
pub(crate) struct PathMarks(Box<[Slot]>);

impl PathMarks {
    /// None.
    pub(crate) fn new() -> Arc<PathMarks> {
        Arc::new(PathMarks((0..SLOTS).map(|_| Slot::default()).collect()))
    }
}

/// What a data thread makes of them.
pub(super) struct SharedPaths {
    marks: Arc<PathMarks>,
    thread: u16,
    /// By port: where a receiver is.
    places: Vec<Option<Place>>,
}

/// Where a receiver is.
#[derive(Clone, Copy)]
struct Place {
    /// The hash of its ip.
    network: u64,
    marked_at: Option<Time>,
}

impl SharedPaths {
    pub(super) fn new(marks: Arc<PathMarks>, thread: u16, max_ports: usize) -> SharedPaths {
        SharedPaths { marks, thread, places: Vec::with_capacity(max_ports) }
    }

    /// A receiver is at an ip from now on.
    pub(super) fn enter(&mut self, port: PortIndex, ip: IpAddr) {
        let index = port as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.places[index] = Some(Place { network: hash_of(ip), marked_at: None });
    }

    /// A receiver is there no more.
    pub(super) fn forget(&mut self, port: PortIndex) {
        if let Some(place) = self.places.get_mut(port as usize) {
            *place = None;
        }
    }

    /// A receiver's path bears less than is meant for it: so many bits a second.
    pub(super) fn mark(&mut self, now: Time, port: PortIndex, rate: u64) {
        let Some(Some(place)) = self.places.get_mut(port as usize) else { return };
        let before = place.marked_at.replace(now);
        let since = before.map_or(0.0, |before| now.since(before).as_secs_f64().min(1.0));
        let Some((slot, own)) = self.slot(now, port) else { return };
        let newest = slot.marks[0].load(Ordering::Relaxed);
        if newest >> TIME_BITS != own >> TIME_BITS {
            slot.marks[1].store(newest, Ordering::Relaxed);
        }
        slot.marks[0].store(own, Ordering::Relaxed);
        let rate = rate as f64;
        let before = mean_of(slot, own).filter(|_| is_near(newest, own) && counts(newest, own));
        let mean = before.map_or(rate, |mean| mean + (rate - mean) * since / MEAN_OVER);
        slot.mean.store(own & HASH | u64::from((mean as f32).to_bits()), Ordering::Relaxed);
    }

    /// The mean rate, in bits a second, of the limited receivers at a receiver's ip, if another one of them has left a mark
    /// lately. Its own `rate` stands in where none is known.
    pub(super) fn mean(&self, now: Time, port: PortIndex, rate: u64) -> Option<f64> {
        let (slot, own) = self.slot(now, port)?;
        let is_shared = slot.marks.iter().any(|mark| {
            let mark = mark.load(Ordering::Relaxed);
            let is_own = mark >> TIME_BITS == own >> TIME_BITS;
            !is_own && is_near(mark, own) && counts(mark, own)
        });
        is_shared.then(|| mean_of(slot, own).unwrap_or(rate as f64))
    }

    /// Where a receiver leaves its mark, and which: a part of its network's hash, who it is, and tenths of a second.
    fn slot(&self, now: Time, port: PortIndex) -> Option<(&Slot, u64)> {
        let network = self.places.get(port as usize)?.as_ref()?.network;
        let who = u64::from(self.thread) << PORT_BITS | (u64::from(port) & ((1 << PORT_BITS) - 1));
        let who = (who + 1) & ((1 << WHO_BITS) - 1);
        let time = (now.as_nanos() / 100_000_000) & ((1 << TIME_BITS) - 1);
        let slot = self.marks.0.get(network as usize % SLOTS)?;
        Some((slot, network & HASH | who << TIME_BITS | time))
    }
}

/// Whether two marks are of one ip.
fn is_near(one: u64, other: u64) -> bool {
    one & HASH == other & HASH
}

/// Whether a mark still counts by the time of another. Another data thread may be a moment ahead.
fn counts(mark: u64, now: u64) -> bool {
    let age = now.wrapping_sub(mark).wrapping_add(1) & ((1 << TIME_BITS) - 1);
    age <= COUNTS_FOR
}

/// The mean where a receiver with this mark is, if there is one.
fn mean_of(slot: &Slot, own: u64) -> Option<f64> {
    let word = slot.mean.load(Ordering::Relaxed);
    (word != 0 && is_near(word, own)).then(|| f32::from_bits(word as u32).into())
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
            let other = threads[1].mean(now, 0, 1000).is_some();
            ([0, 1, 2, 3, 4].map(|port| threads[0].mean(now, port, 1000).is_some()), other)
        };
        assert_eq!(all(&threads, at(50)), ([false; 5], false));
        threads[0].mark(at(50), 0, 1000);
        threads[0].mark(at(60), 0, 1000);
        threads[0].mark(at(60), 3, 1000);
        assert_eq!(all(&threads, at(60)), ([false, true, false, false, true], true));
        threads[1].mark(at(70), 0, 1000);
        assert_eq!(all(&threads, at(70)), ([true, true, false, false, true], true));
        // A mark counts for four seconds.
        assert_eq!(all(&threads, at(99)), ([true, true, false, false, true], true));
        assert_eq!(all(&threads, at(100)), ([true, true, false, false, false], false));
        assert_eq!(all(&threads, at(110)), ([false; 5], false));
        threads[0].forget(1);
        threads[1].mark(at(110), 0, 1000);
        assert_eq!(all(&threads, at(110)), ([true, false, false, false, false], false));
        // By the clock of a data thread that is behind.
        assert_eq!(all(&threads, at(109)), ([true, false, false, false, false], false));
    }

    /// Two data threads, with a receiver of one ip each, and one of another.
    fn two_threads() -> [SharedPaths; 2] {
        let marks = PathMarks::new();
        let mut threads = [0, 1].map(|thread| SharedPaths::new(Arc::clone(&marks), thread, 8));
        for thread in &mut threads {
            thread.enter(0, "192.0.2.1".parse().unwrap());
            thread.enter(1, "192.0.2.2".parse().unwrap());
        }
        threads
    }

    #[test]
    fn a_mean_is_over_receivers_however_often_they_report() {
        let mut threads = two_threads();
        for tenth in 0..1000 {
            threads[0].mark(at(tenth), 0, 1_000_000);
            if tenth % 10 == 0 {
                threads[1].mark(at(tenth), 0, 200_000);
            }
        }
        for thread in &threads {
            let mean = thread.mean(at(1000), 0, 1).unwrap();
            assert!((540_000.0..660_000.0).contains(&mean), "{mean}");
            assert_eq!(thread.mean(at(1000), 1, 1), None);
        }
    }

    #[test]
    fn a_newcomer_does_not_count_in_a_mean_yet_nor_does_what_was_long_ago() {
        let mut threads = two_threads();
        for tenth in 0..100 {
            threads[0].mark(at(tenth), 0, 1_000_000);
            threads[1].mark(at(tenth), 0, 200_000);
        }
        let before = threads[0].mean(at(100), 0, 1);
        assert!(before.is_some());
        threads[1].enter(2, "192.0.2.1".parse().unwrap());
        threads[1].mark(at(100), 2, 10_000_000);
        assert_eq!(threads[0].mean(at(100), 0, 1), before);
        threads[1].mark(at(200), 2, 10_000_000);
        assert_eq!(threads[0].mean(at(200), 0, 1), Some(10_000_000.0));
    }
}
