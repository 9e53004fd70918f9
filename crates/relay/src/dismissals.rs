//! Addresses whose places are gone, while there are tokens that name them.

use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// For how long a data thread remembers that an address was dismissed. No token that names one holds for longer than a
/// controller's longest lease, and the skew of clocks.
pub const DISMISSED_FOR: Duration = Duration::from_secs(3600 + 60);
/// The most addresses that are remembered; beyond that, the one that was dismissed first is forgotten.
const MOST: usize = 65_536;
/// Entries of the order beyond the standing ones that are kept before it is compacted.
const SPARE: usize = 1024;

/// The addresses that [`Change::Dismiss`](crate::Change::Dismiss) has named, and
/// [`Change::Admit`](crate::Change::Admit) has not since.
#[derive(Debug, Default)]
pub(crate) struct Dismissals {
    /// The number of the dismissal, and when it was.
    dismissed: BTreeMap<(Comtree, Address), (u64, Time)>,
    /// The same from the first on, with those that were admitted since.
    order: VecDeque<(u64, Time, Comtree, Address)>,
    next: u64,
}

impl Dismissals {
    pub(crate) fn note(&mut self, now: Time, comtree: Comtree, address: Address) {
        while let Some(&(number, since, comtree, address)) = self.order.front() {
            // It may have been admitted, and dismissed once more.
            let stands = self.dismissed.get(&(comtree, address)) == Some(&(number, since));
            if stands && self.dismissed.len() < MOST && since + DISMISSED_FOR >= now {
                break;
            }
            self.order.pop_front();
            if stands {
                self.dismissed.remove(&(comtree, address));
            }
        }
        self.dismissed.insert((comtree, address), (self.next, now));
        self.order.push_back((self.next, now, comtree, address));
        self.next += 1;
        // Those that were admitted since take no more room than the others.
        if self.order.len() > 2 * self.dismissed.len() + SPARE {
            let dismissed = &self.dismissed;
            let stands = |entry, at| dismissed.get(&at) == Some(&entry);
            self.order.retain(|(number, at, comtree, address)| {
                stands((*number, *at), (*comtree, *address))
            });
        }
    }

    pub(crate) fn forget(&mut self, comtree: Comtree, address: Address) {
        self.dismissed.remove(&(comtree, address));
    }

    pub(crate) fn has(&self, now: Time, comtree: Comtree, address: Address) -> bool {
        let dismissed = self.dismissed.get(&(comtree, address));
        dismissed.is_some_and(|(_, since)| *since + DISMISSED_FOR >= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMTREE: Comtree = Comtree(1);

    #[test]
    fn the_first_is_forgotten_when_there_are_too_many_or_no_token_can_hold() {
        let mut dismissals = Dismissals::default();
        let address = |number: u32| Address(number);
        for number in 0..=MOST as u32 {
            dismissals.note(Time::from_millis(number.into()), COMTREE, address(number));
        }
        let last = Time::from_millis(MOST as u64);
        let has = |dismissals: &Dismissals, number| dismissals.has(last, COMTREE, address(number));
        assert!(!has(&dismissals, 0) && has(&dismissals, 1));
        let later = last + DISMISSED_FOR;
        dismissals.note(later, COMTREE, address(0));
        assert!(dismissals.has(later, COMTREE, address(MOST as u32)));
        let over = later + Duration::from_millis(1);
        assert!(
            !dismissals.has(over, COMTREE, address(MOST as u32)),
            "also if nobody else is dismissed"
        );
        assert_eq!((dismissals.dismissed.len(), dismissals.order.len()), (2, 2));
    }

    #[test]
    fn an_address_that_comes_and_goes_has_no_other_forgotten() {
        let mut dismissals = Dismissals::default();
        let (one, other) = (Address(1), Address(2));
        dismissals.note(Time::ZERO, COMTREE, one);
        for number in 0..=MOST as u64 {
            dismissals.note(Time::from_millis(number / 100), COMTREE, other);
            dismissals.forget(COMTREE, other);
            assert!(dismissals.order.len() <= 2 * 2 + SPARE, "it takes no room for ever");
        }
        assert!(dismissals.has(Time::from_millis(1000), COMTREE, one));
    }

    #[test]
    fn an_address_that_is_dismissed_once_more_is_remembered_from_then_on() {
        let mut dismissals = Dismissals::default();
        let (one, other) = (Address(1), Address(2));
        dismissals.note(Time::ZERO, COMTREE, one);
        dismissals.forget(COMTREE, one);
        assert!(!dismissals.has(Time::ZERO, COMTREE, one));
        dismissals.note(Time::from_millis(1000), COMTREE, one);
        // The first time is over.
        let over = Time::ZERO + DISMISSED_FOR + Duration::from_millis(1);
        dismissals.note(over, COMTREE, other);
        assert!(dismissals.has(over, COMTREE, one) && !dismissals.has(over, Comtree(2), one));
    }
}
