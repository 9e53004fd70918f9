//! Which areas are split because many are there, and which are merged because few are.

use crate::areas::Rules;
use crate::division::{Area, Division, MOST_SPLITS};
use std::collections::BTreeMap;

/// How many looks in a row must find the same before an area is split or merged.
const LOOKS: u8 = 3;

/// What was found of late. An area is split above one number, and its quarters are merged below another,
/// which is half of it at most; and both only if that was so at each of the last three looks. So a crowd that
/// stays as it is leaves the division as it is.
#[derive(Clone, Debug, Default)]
pub struct Crowds {
    /// Areas for which something is due, and for how many looks it has been.
    due: BTreeMap<Area, u8>,
}

impl Crowds {
    /// Looks at how many are in each area, and returns the division that is better from now on, if there
    /// is one. The most crowded areas are split first, as far as groups are free.
    pub fn look(
        &mut self,
        division: &Division,
        crowd: &BTreeMap<Area, u32>,
        rules: &Rules,
    ) -> Option<Division> {
        let in_area = |area: Area| crowd.get(&area).copied().unwrap_or(0);
        let mut splits: Vec<Area> = crowd
            .iter()
            .filter(|(area, there)| **there > rules.split_above && area.depth() < rules.depth())
            .map(|(area, _)| *area)
            .filter(|area| {
                division.group_of(*area).is_some() && !division.splits.contains_key(area)
            })
            .collect();
        splits.sort_by_key(|area| (std::cmp::Reverse(in_area(*area)), *area));
        let merges: Vec<Area> = division
            .splits
            .keys()
            .filter(|area| {
                let mut quarters = (0..4).map(|quarter| area.quarter(quarter));
                let are_whole = quarters.clone().all(|part| !division.splits.contains_key(&part));
                are_whole && quarters.by_ref().map(in_area).sum::<u32>() < rules.merge_below
            })
            .copied()
            .collect();
        let before = std::mem::take(&mut self.due);
        let found = splits
            .iter()
            .chain(&merges)
            .map(|area| (*area, before.get(area).copied().unwrap_or(0).saturating_add(1)));
        self.due = found.collect();
        let is_due = |area: &&Area| self.due.get(area).is_some_and(|looks| *looks >= LOOKS);
        let mut next = division.clone();
        // What is given back here may be others' only after the change.
        let mut free = division.free_groups();
        for area in splits.iter().filter(is_due) {
            let groups = [free.next(), free.next(), free.next(), free.next()];
            let [Some(a), Some(b), Some(c), Some(d)] = groups else { break };
            if next.splits.len() >= MOST_SPLITS {
                break;
            }
            next.splits.insert(*area, [a, b, c, d]);
        }
        for area in merges.iter().filter(is_due) {
            next.splits.remove(area);
        }
        drop(free);
        if next == *division {
            return None;
        }
        self.due.clear();
        Some(next)
    }

    /// Forgets what was found: the division has changed.
    pub fn clear(&mut self) {
        self.due.clear();
    }
}
