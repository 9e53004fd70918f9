//! Subscriptions that are looked up many at a time. A search in a large table waits for memory four times, one after
//! the other: for the bucket, the group, its first member and the next. So searches that do not depend on each other
//! wait together.

use super::SubscriptionTable;
use crate::index::{NONE, PortIndex};
use canopy_wire::{Comtree, Group, SubscriptionChange};
use core::hint::select_unpredictable;

/// How many searches go together.
const TOGETHER: usize = 32;

/// Up to this many are faster one by one.
const FEW: usize = 4;

/// Groups of a bucket, and members of a group, that are looked at when searches go together.
const FEW_STEPS: u32 = 2;

/// What a port has in a group of a comtree, for one of the changes that follow: what was found, or that nothing was.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(super) port: PortIndex,
    pub(super) comtree: Comtree,
    pub(super) group: Group,
    pub(super) hash: u32,
    /// The group's place then; [`NONE`] if it had none, or was not found yet.
    place: u32,
    /// The port's subscription, or [`NONE`] if it had none, or another's if it was not found yet.
    subscription: u32,
}

impl Found {
    /// Nothing was looked up.
    const NOTHING: Found = Found {
        port: NONE,
        comtree: Comtree(0),
        group: Group::new(0),
        hash: 0,
        place: NONE,
        subscription: NONE,
    };
}

impl SubscriptionTable {
    /// Begins a search.
    fn search(&self, port: PortIndex, comtree: Comtree, group: Group) -> Found {
        let hash = self.groups.hash(comtree, group);
        Found { port, comtree, group, hash, place: self.groups.first(hash), subscription: NONE }
    }

    /// Makes changes of a port that is no sibling's, in their order: `make` is told what was found for each, and changes
    /// nothing of other ports.
    pub(crate) fn change_all(
        &mut self,
        (port, comtree): (PortIndex, Comtree),
        changes: impl ExactSizeIterator<Item = SubscriptionChange>,
        mut make: impl FnMut(&mut SubscriptionTable, SubscriptionChange, &Found),
    ) {
        debug_assert!(port >= self.siblings, "a sibling's subscriptions are in another list");
        if changes.len() <= FEW {
            for change in changes {
                let found = self.find_alone(port, comtree, change.group());
                make(self, change, &found);
            }
            return;
        }
        let mut changes = changes;
        let mut some = [SubscriptionChange::Drop(Group::new(0)); TOGETHER];
        let mut found = [Found::NOTHING; TOGETHER];
        while changes.len() > 0 {
            let count = changes.len().min(TOGETHER);
            for ((place, search), change) in some.iter_mut().zip(&mut found).zip(&mut changes) {
                *place = change;
                *search = self.search(port, comtree, change.group());
            }
            self.find_together(&mut found[..count]);
            for (change, found) in some[..count].iter().zip(&found) {
                make(self, *change, found);
            }
        }
    }

    /// Goes on with searches of one port, none of which waits for another: no branch depends on what is found, so
    /// none is guessed wrong. Whoever is behind others in its bucket, or among the members, is looked for again
    /// when its change is made.
    fn find_together(&self, searches: &mut [Found]) {
        for _ in 0..FEW_STEPS {
            for Found { comtree, group, place, .. } in &mut *searches {
                *place = self.groups.step(*place, *comtree, *group);
            }
        }
        for Found { place, subscription, .. } in &mut *searches {
            *subscription = self.groups.first_member(*place);
        }
        for _ in 0..FEW_STEPS {
            for Found { port, subscription, .. } in &mut *searches {
                *subscription = self.step(*subscription, *port);
            }
        }
    }

    /// The subscription, if it is the port's, and else the next of the group.
    #[inline]
    fn step(&self, subscription: u32, port: PortIndex) -> u32 {
        let last = self.subscriptions.len().saturating_sub(1);
        let Some(there) = self.subscriptions.get(last.min(subscription as usize)) else {
            return NONE;
        };
        let stays = there.port == port || subscription == NONE;
        select_unpredictable(stays, subscription, there.next_of_group)
    }

    pub(super) fn find_alone(&self, port: PortIndex, comtree: Comtree, group: Group) -> Found {
        let search = self.search(port, comtree, group);
        let place = self.groups.find(search.hash, comtree, group);
        let subscription = place.and_then(|place| self.find_pair(port, place));
        Found { place: place.unwrap_or(NONE), subscription: subscription.unwrap_or(NONE), ..search }
    }

    /// Where the group is by now, and what the port has in it: changes since may have brought them, or taken
    /// them away.
    pub(super) fn find_now(&self, found: &Found) -> (Option<u32>, Option<u32>) {
        let Found { port, comtree, group, hash, place, subscription } = *found;
        let is_there = self
            .groups
            .get(place)
            .is_some_and(|entry| entry.group == group && entry.comtree == comtree);
        if !is_there {
            let place = self.groups.find(hash, comtree, group);
            return (place, place.and_then(|place| self.find_pair(port, place)));
        }
        // A port that had nothing there, and has since, is the latest to have come.
        let likely = if subscription == NONE { self.latest(port, place) } else { subscription };
        let likely_one = self.subscriptions.get(likely as usize);
        if likely_one.is_some_and(|there| there.port == port && there.group == place) {
            return (Some(place), Some(likely));
        }
        (Some(place), if subscription == NONE { None } else { self.find_pair(port, place) })
    }
}
