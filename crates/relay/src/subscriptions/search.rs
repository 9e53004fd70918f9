//! Groups that are looked up several at a time. A search in a large table waits for memory three times, one after the
//! other; searches that do not depend on each other wait together.

use super::SubscriptionTable;
use crate::index::NONE;
use canopy_wire::{Comtree, Group};

/// Groups that are looked up together.
pub(crate) const TOGETHER: usize = 16;

/// Where a group of a comtree was found, or that it was not, for one of the changes that follow.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(super) comtree: Comtree,
    pub(super) group: Group,
    pub(super) hash: u64,
    /// Its place then; [`NONE`] if it had none.
    place: u32,
}

impl SubscriptionTable {
    /// Looks up to [`TOGETHER`] groups up.
    pub(crate) fn find_together(&self, comtree: Comtree, groups: &[Group]) -> [Found; TOGETHER] {
        let none = Found { comtree, group: Group::new(0), hash: 0, place: NONE };
        let mut found = [none; TOGETHER];
        for (found, group) in found.iter_mut().zip(groups) {
            let hash = self.groups.hash(comtree, *group);
            *found = Found { group: *group, hash, ..none };
        }
        for Found { group, hash, place, .. } in found.iter_mut().take(groups.len()) {
            *place = self.groups.find(*hash, comtree, *group).unwrap_or(NONE);
        }
        found
    }

    pub(super) fn find_alone(&self, comtree: Comtree, group: Group) -> Found {
        let hash = self.groups.hash(comtree, group);
        Found {
            comtree,
            group,
            hash,
            place: self.groups.find(hash, comtree, group).unwrap_or(NONE),
        }
    }

    /// Where a group is by now: changes since may have brought it, or taken it away.
    pub(super) fn place_of(&self, found: &Found) -> Option<u32> {
        let Found { comtree, group, hash, place } = *found;
        let is_there = self
            .groups
            .get(place)
            .is_some_and(|entry| entry.group == group && entry.comtree == comtree);
        if is_there { Some(place) } else { self.groups.find(hash, comtree, group) }
    }
}
