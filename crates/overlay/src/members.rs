//! From a controller's items to members.

use canopy_control::{Item, ItemKey};
use canopy_relay::{Budget, Change, DISMISSED_FOR};
use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;
use std::collections::BTreeSet;

/// The most dismissed addresses of a period that are known one by one.
const MOST: usize = 65_536;
/// A period is as long as the data plane remembers a dismissal, and longer by what data threads take to hear of one.
const PERIOD: Duration = DISMISSED_FOR.saturating_add(Duration::from_secs(60));

/// What the members' items change of the data plane, beside their tokens.
///
/// A member that comes for the first time changes nothing: its token says it all, and nobody waits for a data
/// thread. So it is known here whose address the data plane has dismissed before.
///
/// Dismissals are gathered by periods. Those of this period and the one before are known, so none is forgotten that the
/// data plane may have yet.
#[derive(Debug, Default)]
pub struct Members {
    recent: Dismissed,
    before: Dismissed,
    /// When the period began.
    began: Time,
}

/// Whom the data plane has dismissed in a period.
#[derive(Debug, Default)]
struct Dismissed {
    known: BTreeSet<(Comtree, Address)>,
    /// Others were dismissed as well.
    and_others: bool,
}

impl Dismissed {
    fn may_have(&self, member: (Comtree, Address)) -> bool {
        self.and_others || self.known.contains(&member)
    }
}

impl Members {
    /// What an item that was `before` and is `after` changes, in order, if anything.
    /// A relay that knows no such member, or no such comtree any more, has nothing to change.
    ///
    /// Whom this dismisses is known at once: a data thread may have taken that and not said so. Who is admitted is
    /// known to be so only by [`Members::took`].
    pub fn changes(
        &mut self,
        now: Time,
        key: ItemKey,
        before: Option<&Item>,
        after: Option<&Item>,
    ) -> Vec<Change> {
        let ItemKey::Member(comtree, address) = key else { return Vec::new() };
        if now.since(self.began) > PERIOD {
            self.before = core::mem::take(&mut self.recent);
            self.began = now;
        }
        let Some(after) = after else {
            if self.recent.known.len() < MOST {
                self.recent.known.insert((comtree, address));
            } else {
                self.recent.and_others = true;
            }
            return vec![Change::Dismiss { comtree, address }];
        };
        let was_dismissed =
            [&self.recent, &self.before].iter().any(|of| of.may_have((comtree, address)));
        let admit = was_dismissed.then_some(Change::Admit { comtree, address });
        // A token says what its member may do, unless that has changed since.
        let set = before.and_then(|_| budget(after));
        let set = set.map(|budget| Change::SetBudget { comtree, address, budget });
        admit.into_iter().chain(set).collect()
    }

    /// The data plane has taken a change.
    pub fn took(&mut self, change: &Change) {
        if let Change::Admit { comtree, address } = change {
            for dismissed in [&mut self.recent, &mut self.before] {
                dismissed.known.remove(&(*comtree, *address));
            }
        }
    }
}

fn budget(item: &Item) -> Option<Budget> {
    let Item::Member { limits, .. } = item else { return None };
    let (up, down) = (limits.send, limits.receive);
    Some(Budget {
        up_packets: up.packets as u64,
        up_bits: up.bits as u64,
        down_packets: down.packets as u64,
        down_bits: down.bits as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_plan::{Limits, Rate};

    const COMTREE: Comtree = Comtree(16);
    const NOW: Time = Time::from_millis(1000);

    fn member(address: Address) -> Item {
        let rate = Rate { bits: 1e6, packets: 1e3 };
        Item::Member { comtree: COMTREE, address, limits: Limits { send: rate, receive: rate } }
    }

    #[test]
    fn who_was_dismissed_is_admitted_when_it_comes_again() {
        let mut members = Members::default();
        let address = Address::unicast(0x7001, 64);
        let (key, item) = (ItemKey::Member(COMTREE, address), member(address));
        assert!(members.changes(NOW, key, None, Some(&item)).is_empty(), "nobody has dismissed it");
        let dismissed = members.changes(NOW, key, Some(&item), None);
        assert!(matches!(dismissed[..], [Change::Dismiss { address: at, .. }] if at == address));
        // The data plane does not take it: it is to be admitted still.
        for _ in 0..2 {
            let admitted = members.changes(NOW, key, None, Some(&item));
            assert!(matches!(admitted[..], [Change::Admit { address: at, .. }] if at == address));
        }
        let admitted = members.changes(NOW, key, None, Some(&item));
        admitted.iter().for_each(|change| members.took(change));
        assert!(members.changes(NOW, key, None, Some(&item)).is_empty(), "once");
    }

    /// The data plane may have dismissed it, and not have said so: then its item stays.
    #[test]
    fn who_may_have_been_dismissed_is_admitted_when_its_limits_change() {
        let mut members = Members::default();
        let address = Address::unicast(0x7001, 64);
        let (key, item) = (ItemKey::Member(COMTREE, address), member(address));
        let changed = members.changes(NOW, key, Some(&item), Some(&item));
        assert!(matches!(changed[..], [Change::SetBudget { .. }]), "{changed:?}");
        members.changes(NOW, key, Some(&item), None);
        let changed = members.changes(NOW, key, Some(&item), Some(&item));
        assert!(matches!(changed[..], [Change::Admit { .. }, Change::SetBudget { .. }]));
    }

    #[test]
    fn whoever_comes_is_admitted_once_more_are_dismissed_than_are_known_until_no_token_can_hold() {
        let mut members = Members::default();
        for number in 0..=MOST as u32 {
            members.changes(NOW, ItemKey::Member(COMTREE, Address(number)), None, None);
        }
        let address = Address(MOST as u32);
        let key = ItemKey::Member(COMTREE, address);
        let newcomer = ItemKey::Member(COMTREE, Address::unicast(0x7001, 64));
        let mut is_admitted = |now: Time, key| {
            let changes = members.changes(now, key, None, Some(&member(address)));
            changes.iter().any(|change| matches!(change, Change::Admit { .. }))
        };
        assert!(is_admitted(NOW, key) && is_admitted(NOW, newcomer));
        // The data plane may have it until then.
        let most = NOW + PERIOD;
        assert!(is_admitted(most, key) && is_admitted(most, newcomer));
        let over = most + PERIOD + Duration::from_secs(1);
        assert!(!is_admitted(over, key) && !is_admitted(over, newcomer));
    }
}
