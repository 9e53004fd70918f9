//! The addresses of a comtree that a data thread gives out, so that nobody gets one that others may
//! still take for somebody else's.

use crate::comtree_config::{ComtreeConfig, FIRST_ENDPOINT};
use canopy_wire::{Address, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// How long an address whose owner has left is given to nobody else: longer than a player is waited
/// for after a break, and than an application remembers whom it has not heard of.
pub const ADDRESS_REST: Duration = Duration::from_secs(600);

/// From a relay's life to the next: the fraction of the golden ratio, in parts of 2³². Any few lives
/// in a row begin far apart.
const GOLDEN: u32 = 0x9e37_79b9;

/// Where the addresses of a relay's life begin, in parts of 2³² of the range.
pub(crate) fn start_of_life(life: u32) -> u32 {
    life.wrapping_mul(GOLDEN)
}

/// Who has, or had, an address: a keyed hash of the key that a participant is known by.
pub(crate) type Owner = u64;

/// A data thread's share of a relay's addresses. The kernel steers a datagram to its thread by its
/// source endpoint modulo the number of threads, so each thread gives out those of its own
/// remainder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) thread: u16,
    pub(crate) threads: u16,
    /// Where newcomers' addresses begin, in parts of 2³² of the range.
    pub(crate) start: u32,
    /// How long an address rests.
    pub(crate) rest: Duration,
}

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// Somebody has each of them.
    AllTaken,
    /// Those that nobody has rest for their last owners.
    AllResting,
    /// The one that was asked for is another's, or not this thread's to give.
    Anothers,
}

/// An address that was given back.
#[derive(Clone, Copy, Debug)]
struct Resting {
    owner: Owner,
    since: Time,
    /// Its place among those that rest.
    order: u64,
}

/// The addresses of a comtree on a data thread.
pub(crate) struct AddressPool {
    site: u16,
    first: u32,
    step: u32,
    count: u32,
    start: u32,
    rest: Duration,
    /// How many were passed in the order in which newcomers get them.
    fresh: u32,
    /// Those beyond that were given to who had them in an earlier life of the relay.
    early: BTreeSet<u16>,
    resting: BTreeMap<u16, Resting>,
    /// Those that rest, the longest first.
    by_order: BTreeMap<u64, u16>,
    next_order: u64,
}

impl AddressPool {
    pub(crate) fn new(config: &ComtreeConfig, share: &Share) -> AddressPool {
        let (step, thread) = (u32::from(share.threads), u32::from(share.thread));
        let least = u32::from((*config.endpoints.start()).max(FIRST_ENDPOINT));
        let last = u32::from(*config.endpoints.end());
        let first = least + (thread + step - least % step) % step;
        let count = if first > last { 0 } else { (last - first) / step + 1 };
        AddressPool {
            site: config.site,
            first,
            step,
            count,
            start: ((u64::from(share.start) * u64::from(count)) >> 32) as u32,
            rest: share.rest,
            fresh: 0,
            early: BTreeSet::new(),
            resting: BTreeMap::new(),
            by_order: BTreeMap::new(),
            next_order: 0,
        }
    }

    pub(crate) fn site(&self) -> u16 {
        self.site & 0x7fff
    }

    /// An address for somebody new: one that nobody has had, or the one that has rested longest, if
    /// that is long enough.
    pub(crate) fn take(&mut self, now: Time) -> Result<Address, NoAddress> {
        while self.fresh < self.count {
            let number = (self.start + self.fresh) % self.count;
            let endpoint = (self.first + number * self.step) as u16;
            self.fresh += 1;
            if !self.early.remove(&endpoint) {
                return Ok(Address::unicast(self.site, endpoint));
            }
        }
        let (_, &endpoint) = self.by_order.first_key_value().ok_or(NoAddress::AllTaken)?;
        let has_rested =
            self.resting.get(&endpoint).is_some_and(|one| now.since(one.since) >= self.rest);
        if !has_rested {
            return Err(NoAddress::AllResting);
        }
        self.wake(endpoint);
        Ok(Address::unicast(self.site, endpoint))
    }

    /// Takes this very address for somebody who is entitled to it. False if it is not this thread's
    /// to give, or somebody has it, or it rests for another.
    pub(crate) fn take_this(&mut self, now: Time, address: Address, owner: Owner) -> bool {
        let endpoint = address.endpoint();
        let Some(number) = self.number(address) else { return false };
        if (number + self.count - self.start) % self.count >= self.fresh
            && !self.early.contains(&endpoint)
        {
            return self.early.insert(endpoint);
        }
        let may = |one: &Resting| one.owner == owner || now.since(one.since) >= self.rest;
        let is_free = self.resting.get(&endpoint).is_some_and(may);
        if is_free {
            self.wake(endpoint);
        }
        is_free
    }

    /// Whether a participant at a relay of a site may have an address that a token names: one of that
    /// site, in the range of newcomers or beyond it, or a portable one.
    pub(crate) fn may_have(site: u16, address: Address) -> bool {
        let is_of_site = Address::unicast(site, address.endpoint()) == address;
        (is_of_site || address.is_portable()) && address.endpoint() >= FIRST_ENDPOINT
    }

    /// Takes this very address for whom a token names it, even if it rests for another. Nobody may
    /// have it. False if it is not this thread's to give. A portable address is nobody's without a
    /// token, so it needs no rest here, and no ticket brings it back.
    pub(crate) fn take_pinned(&mut self, address: Address) -> bool {
        let endpoint = address.endpoint();
        let is_here = Self::may_have(self.site, address)
            && u32::from(endpoint) % self.step == self.first % self.step;
        if let Some(number) = self.number(address).filter(|_| is_here) {
            self.wake(endpoint);
            if (number + self.count - self.start) % self.count >= self.fresh {
                self.early.insert(endpoint);
            }
        }
        is_here
    }

    /// An address whose owner is gone; it rests from now on. Those beyond the range of newcomers need
    /// no rest.
    pub(crate) fn give_back(&mut self, now: Time, address: Address, owner: Owner) {
        if self.number(address).is_none() {
            return;
        }
        let (endpoint, order) = (address.endpoint(), self.next_order);
        self.next_order += 1;
        self.resting.insert(endpoint, Resting { owner, since: now, order });
        self.by_order.insert(order, endpoint);
    }

    /// The place of an address in the range, if it is one of this thread's.
    fn number(&self, address: Address) -> Option<u32> {
        let beyond = u32::from(address.endpoint()).checked_sub(self.first)?;
        let number = beyond / self.step;
        let is_one = Address::unicast(self.site, address.endpoint()) == address
            && beyond.is_multiple_of(self.step)
            && number < self.count;
        is_one.then_some(number)
    }

    fn wake(&mut self, endpoint: u16) {
        if let Some(one) = self.resting.remove(&endpoint) {
            self.by_order.remove(&one.order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::{Comtree, PORTABLE_SITES};

    const ALICE: Owner = 1;
    const BOB: Owner = 2;
    const ALONE: Share = Share { thread: 0, threads: 1, start: 0, rest: ADDRESS_REST };

    fn pool(endpoints: core::ops::RangeInclusive<u16>, share: Share) -> AddressPool {
        let config = ComtreeConfig { endpoints, ..ComtreeConfig::new(Comtree(1), 5) };
        AddressPool::new(&config, &share)
    }

    fn seconds(seconds: u64) -> Time {
        Time::from_millis(seconds * 1000)
    }

    fn all_of(pool: &mut AddressPool) -> Vec<u16> {
        core::iter::from_fn(|| pool.take(Time::ZERO).ok()).map(Address::endpoint).collect()
    }

    #[test]
    fn the_threads_share_the_range_without_overlap_and_leave_none_out() {
        for threads in [1, 2, 3, 64] {
            let mut given = BTreeSet::new();
            for thread in 0..threads {
                let mut pool = pool(60..=300, Share { thread, threads, start: 1 << 30, ..ALONE });
                while let Ok(address) = pool.take(Time::ZERO) {
                    assert_eq!(address.endpoint() % threads, thread);
                    assert_eq!(address.site(), 5);
                    assert!(given.insert(address.endpoint()), "{address} was given out twice");
                }
            }
            assert_eq!(given, (FIRST_ENDPOINT..=300).collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn an_address_rests_before_somebody_else_gets_it() {
        let mut pool = pool(64..=67, Share { start: 1 << 31, ..ALONE });
        let taken: Vec<_> = (0..3).filter_map(|_| pool.take(Time::ZERO).ok()).collect();
        assert_eq!(taken.iter().map(|a| a.endpoint()).collect::<Vec<_>>(), [66, 67, 64]);
        pool.give_back(seconds(10), taken[1], ALICE);
        pool.give_back(seconds(20), taken[0], BOB);
        assert_eq!(pool.take(seconds(30)).map(Address::endpoint), Ok(65));
        assert_eq!(pool.take(seconds(609)), Err(NoAddress::AllResting));
        assert_eq!(pool.take(seconds(610)), Ok(taken[1]));
        assert_eq!(pool.take(seconds(619)), Err(NoAddress::AllResting));
        assert_eq!(pool.take(seconds(620)), Ok(taken[0]));
        assert_eq!(pool.take(seconds(9999)), Err(NoAddress::AllTaken));
    }

    #[test]
    fn its_last_owner_gets_an_address_back_at_once_and_nobody_else_does() {
        let mut pool = pool(64..=67, ALONE);
        let address = pool.take(Time::ZERO).unwrap();
        assert!(!pool.take_this(Time::ZERO, address, ALICE), "somebody has it");
        for round in 0..1000 {
            pool.give_back(seconds(round), address, ALICE);
            assert!(!pool.take_this(seconds(round), address, BOB));
            assert!(pool.take_this(seconds(round), address, ALICE));
            assert!(!pool.take_this(seconds(round), address, ALICE));
        }
        pool.give_back(seconds(2000), address, ALICE);
        assert!(!pool.take_this(seconds(2599), address, BOB));
        assert!(pool.take_this(seconds(2600), address, BOB), "it has rested");
        assert!(pool.resting.is_empty() && pool.by_order.is_empty());
    }

    #[test]
    fn who_had_an_address_in_an_earlier_life_gets_it_and_no_newcomer_does() {
        let mut pool = pool(64..=73, ALONE);
        let address = |endpoint| Address::unicast(5, endpoint);
        for endpoint in [66, 73] {
            assert!(pool.take_this(Time::ZERO, address(endpoint), ALICE));
            assert!(!pool.take_this(Time::ZERO, address(endpoint), ALICE), "{endpoint}");
        }
        // It has left again before the newcomers come so far.
        pool.give_back(Time::ZERO, address(66), ALICE);
        assert_eq!(all_of(&mut pool), [64, 65, 67, 68, 69, 70, 71, 72]);
        assert_eq!(pool.take(seconds(600)), Ok(address(66)));
        assert_eq!(pool.take(seconds(600)), Err(NoAddress::AllTaken));
        assert!(pool.early.is_empty());
    }

    #[test]
    fn a_pinned_address_is_taken_whoever_it_rests_for_and_no_newcomer_gets_it() {
        let mut pool = pool(64..=67, ALONE);
        let address = |endpoint| Address::unicast(5, endpoint);
        assert!(pool.take_pinned(address(65)));
        pool.give_back(seconds(1), address(65), ALICE);
        assert!(pool.take_pinned(address(65)), "it rests for Alice, and a token names it");
        assert!(pool.take_pinned(address(1000)), "beyond what newcomers get");
        pool.give_back(seconds(1), address(1000), ALICE);
        assert_eq!(all_of(&mut pool), [64, 66, 67]);
        assert_eq!(pool.take(seconds(9999)), Err(NoAddress::AllTaken));
        let foreign = [address(63), Address::unicast(6, 65), Address(1 << 31 | 65)];
        assert!(foreign.iter().all(|address| !pool.take_pinned(*address)));
    }

    #[test]
    fn a_portable_address_is_taken_by_a_token_alone_and_by_the_thread_whose_remainder_it_has() {
        let portable = |endpoint| Address::unicast(*PORTABLE_SITES.start(), endpoint);
        for thread in 0..3 {
            let mut pool = pool(64..=300, Share { thread, threads: 3, ..ALONE });
            for endpoint in [64, 65, 66, 9000, u16::MAX] {
                let is_here = endpoint % 3 == thread;
                assert_eq!(pool.take_pinned(portable(endpoint)), is_here, "{endpoint}");
                pool.give_back(Time::ZERO, portable(endpoint), ALICE);
                // A ticket says only whose it was at one relay.
                assert!(!pool.take_this(Time::ZERO, portable(endpoint), ALICE), "{endpoint}");
            }
            assert!(!pool.take_pinned(portable(63)), "such numbers are relays'");
            let given: Vec<_> = core::iter::from_fn(|| pool.take(seconds(9999)).ok()).collect();
            assert_eq!(given.len(), 79, "all of the range are left");
            assert!(given.iter().all(|address| !address.is_portable()), "{given:?}");
        }
    }

    #[test]
    fn an_address_that_is_not_this_threads_is_not_taken() {
        let mut pool = pool(70..=99, Share { thread: 1, threads: 3, ..ALONE });
        let wanted = [(5, 67), (5, 71), (5, 100), (5, 0), (6, 70), (5, 103)];
        for (site, endpoint) in wanted {
            let address = Address::unicast(site, endpoint);
            assert!(!pool.take_this(Time::ZERO, address, ALICE), "{address}");
        }
        assert!(!pool.take_this(Time::ZERO, Address(1 << 31 | 70), ALICE));
        assert!(pool.take_this(Time::ZERO, Address::unicast(5, 70), ALICE));
    }

    /// Each life of a relay gives out 10,000 addresses of a whole site, on any number of threads.
    #[test]
    fn the_addresses_of_three_lives_in_a_row_do_not_meet() {
        for threads in [1, 2, 7] {
            let given = |life| {
                let start = start_of_life(life);
                let mut given = BTreeSet::new();
                for thread in 0..threads {
                    let mut pool = pool(0..=u16::MAX, Share { thread, threads, start, ..ALONE });
                    let share = 10_000 / usize::from(threads);
                    let taken = (0..share).filter_map(|_| pool.take(Time::ZERO).ok());
                    given.extend(taken.map(Address::endpoint));
                }
                given
            };
            // The counter runs over, too.
            for first in (0..40).chain([u32::MAX - 1, u32::MAX]) {
                let lives = [0, 1, 2].map(|later| given(first.wrapping_add(later)));
                for (one, other) in [(0, 1), (1, 2), (0, 2)] {
                    let common = lives[one].intersection(&lives[other]).count();
                    assert_eq!(common, 0, "{threads} threads, life {first}");
                }
            }
        }
    }

    #[test]
    fn nobody_ever_gets_what_another_has_or_rests_for_another() {
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let mut pool = pool(64..=80, Share { start: 3 << 29, ..ALONE });
        // What is known outside: who has an address; who had it last, and until when.
        let (mut held, mut left) = (BTreeMap::new(), BTreeMap::new());
        for step in 0..20_000 {
            let (now, owner) = (seconds(step * 20), 100 + draw(12));
            let endpoint = 64 + draw(17) as u16;
            let got = match draw(3) {
                0 => pool.take(now).ok().map(Address::endpoint),
                1 => {
                    let address = Address::unicast(5, endpoint);
                    pool.take_this(now, address, owner).then_some(endpoint)
                }
                _ => {
                    if let Some(owner) = held.remove(&endpoint) {
                        pool.give_back(now, Address::unicast(5, endpoint), owner);
                        left.insert(endpoint, (owner, now));
                    }
                    None
                }
            };
            let Some(got) = got else { continue };
            assert_eq!(held.insert(got, owner), None, "{got} is given twice");
            if let Some((last, since)) = left.remove(&got) {
                let has_rested = now.since(since) >= ADDRESS_REST;
                assert!(last == owner || has_rested, "{got} of {last} is given to {owner}");
            }
        }
        assert!(!held.is_empty() && !left.is_empty());
    }
}
