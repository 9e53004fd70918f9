//! From a controller's items to members.

use canopy_control::{Item, ItemKey};
use canopy_relay::{Budget, Change};
use canopy_wire::{Address, Comtree};
use std::collections::BTreeSet;

/// The most dismissed addresses that are known one by one.
const MOST: usize = 65_536;

/// What the members' items change of the data plane, beside their tokens.
///
/// A member that comes for the first time changes nothing: its token says it all, and nobody waits for a data
/// thread. So it is known here whose address the data plane has dismissed before.
#[derive(Debug, Default)]
pub struct Members {
    dismissed: BTreeSet<(Comtree, Address)>,
    /// Others were dismissed as well.
    and_others: bool,
}

impl Members {
    /// What an item that was `before` and is `after` changes, if anything.
    /// A relay that knows no such member, or no such comtree any more, has nothing to change.
    pub fn change(
        &mut self,
        key: ItemKey,
        before: Option<&Item>,
        after: Option<&Item>,
    ) -> Option<Change> {
        let ItemKey::Member(comtree, address) = key else { return None };
        match (before, after) {
            (_, None) => {
                if self.dismissed.len() < MOST {
                    self.dismissed.insert((comtree, address));
                } else {
                    self.and_others = true;
                }
                Some(Change::Dismiss { comtree, address })
            }
            (None, Some(_)) => {
                let was_dismissed = self.dismissed.remove(&(comtree, address)) || self.and_others;
                was_dismissed.then_some(Change::Admit { comtree, address })
            }
            // Its token says what it may do, unless that has changed since.
            (Some(_), Some(Item::Member { limits, .. })) => {
                let (up, down) = (limits.send, limits.receive);
                let budget = Budget {
                    up_packets: up.packets as u64,
                    up_bits: up.bits as u64,
                    down_packets: down.packets as u64,
                    down_bits: down.bits as u64,
                };
                Some(Change::SetBudget { comtree, address, budget })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_plan::{Limits, Rate};

    const COMTREE: Comtree = Comtree(16);

    fn member(address: Address) -> Item {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        Item::Member { comtree: COMTREE, address, limits: Limits { send: rate, receive: rate } }
    }

    #[test]
    fn who_was_dismissed_is_admitted_when_it_comes_again() {
        let mut members = Members::default();
        let address = Address::unicast(0x7001, 64);
        let (key, item) = (ItemKey::Member(COMTREE, address), member(address));
        assert!(members.change(key, None, Some(&item)).is_none(), "nobody has dismissed it");
        let dismissed = members.change(key, Some(&item), None);
        assert!(matches!(dismissed, Some(Change::Dismiss { address: at, .. }) if at == address));
        let admitted = members.change(key, None, Some(&item));
        assert!(matches!(admitted, Some(Change::Admit { address: at, .. }) if at == address));
        assert!(members.change(key, None, Some(&item)).is_none(), "once");
    }

    #[test]
    fn whoever_comes_is_admitted_once_more_are_dismissed_than_are_known() {
        let mut members = Members::default();
        for number in 0..=MOST as u32 {
            members.change(ItemKey::Member(COMTREE, Address(number)), None, None);
        }
        let address = Address(MOST as u32);
        let key = ItemKey::Member(COMTREE, address);
        let admitted = members.change(key, None, Some(&member(address)));
        assert!(matches!(admitted, Some(Change::Admit { address: at, .. }) if at == address));
    }
}
