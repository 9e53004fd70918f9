//! Addresses whose places are gone, while there are tokens that name them.

use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// No token that names an address holds for longer than a controller's longest lease, and the skew of clocks.
const REMEMBERED: Duration = Duration::from_secs(3600 + 60);
/// The most addresses that are remembered; beyond that, the one that was dismissed first is forgotten.
const MOST: usize = 65_536;
/// Entries of the order beyond the standing ones that are kept before it is compacted.
const SPARE: usize = 1024;

/// The addresses that [`Change::Dismiss`](crate::Change::Dismiss) has named, and
/// [`Change::Admit`](crate::Change::Admit) has not since.
#[derive(Debug, Default)]
pub(crate) struct Dismissals {
    /// By the number of the dismissal.
    dismissed: BTreeMap<(Comtree, Address), u64>,
    /// The same from the first on, with those that were admitted since.
    order: VecDeque<(u64, Time, Comtree, Address)>,
    next: u64,
}

impl Dismissals {
    pub(crate) fn note(&mut self, now: Time, comtree: Comtree, address: Address) {
        while let Some(&(number, since, comtree, address)) = self.order.front() {
            // It may have been admitted, and dismissed once more.
            let stands = self.dismissed.get(&(comtree, address)) == Some(&number);
            if stands && self.dismissed.len() < MOST && since + REMEMBERED >= now {
                break;
            }
            self.order.pop_front();
            if stands {
                self.dismissed.remove(&(comtree, address));
            }
        }
        self.dismissed.insert((comtree, address), self.next);
        self.order.push_back((self.next, now, comtree, address));
        self.next += 1;
        // Those that were admitted since take no more room than the others.
        if self.order.len() > 2 * self.dismissed.len() + SPARE {
            let dismissed = &self.dismissed;
            let stands = |number, at| dismissed.get(&at) == Some(&number);
            self.order
                .retain(|(number, _, comtree, address)| stands(*number, (*comtree, *address)));
        }
    }

    pub(crate) fn forget(&mut self, comtree: Comtree, address: Address) {
        self.dismissed.remove(&(comtree, address));
    }

    pub(crate) fn has(&self, comtree: Comtree, address: Address) -> bool {
        self.dismissed.contains_key(&(comtree, address))
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
        assert!(!dismissals.has(COMTREE, address(0)) && dismissals.has(COMTREE, address(1)));
        let later = Time::from_millis(MOST as u64) + REMEMBERED;
        dismissals.note(later, COMTREE, address(0));
        assert!(dismissals.has(COMTREE, address(MOST as u32)));
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
        assert!(dismissals.has(COMTREE, one));
    }

    #[test]
    fn an_address_that_is_dismissed_once_more_is_remembered_from_then_on() {
        let mut dismissals = Dismissals::default();
        let (one, other) = (Address(1), Address(2));
        dismissals.note(Time::ZERO, COMTREE, one);
        dismissals.forget(COMTREE, one);
        assert!(!dismissals.has(COMTREE, one));
        dismissals.note(Time::from_millis(1000), COMTREE, one);
        // The first time is over.
        dismissals.note(Time::ZERO + REMEMBERED + Duration::from_millis(1), COMTREE, other);
        assert!(dismissals.has(COMTREE, one) && !dismissals.has(Comtree(2), one));
    }
}
