//! What is asked for at the next relay towards the core, so that updates come here (Forest §3.3): the
//! highest level that anybody behind this relay wants of a group, participants, branches and other
//! data threads.

use super::SubscriptionTable;
use super::lists::{Marks, Of, Wanted};
use crate::index::{NONE, PortIndex};
use canopy_wire::{Comtree, Group, Level, SubscriptionChange, Weight};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of a group's place in the table. It stays the group's as long as the parent has not
/// acknowledged what it was asked.
pub(crate) type GroupIndex = u32;

/// A comtree of which this data thread has the branch towards the core.
pub(super) struct Upwards {
    comtree: Comtree,
    /// The branches to the parent and to the next one, as far as they are there. What either wants itself is asked of
    /// neither: where two relays are each other's parent while a root hands over, each would otherwise want for ever
    /// what the other does; and a parent that was a child until lately would get and bring what nobody wants.
    parents: Parents,
    /// Groups of which the parent may want to hear.
    to_ask: VecDeque<GroupIndex>,
    /// Where the next round of refreshes goes on.
    refresh: GroupIndex,
    /// Groups that the parent was asked for.
    asked: u32,
    /// Whether the link to the parent is up.
    is_up: bool,
}

/// The branches to a comtree's parents; [`NONE`] in the place of one that is not there.
pub(crate) type Parents = [PortIndex; 2];

impl Upwards {
    fn new(comtree: Comtree, parents: Parents) -> Upwards {
        Upwards { comtree, parents, to_ask: VecDeque::new(), refresh: 0, asked: 0, is_up: false }
    }
}

impl SubscriptionTable {
    fn upwards_of(&mut self, comtree: Comtree) -> Option<&mut Upwards> {
        let found = self.upwards.binary_search_by_key(&comtree, |upwards| upwards.comtree);
        found.ok().map(|number| &mut self.upwards[number])
    }

    /// A comtree has these parents from now on, or none. One of them is asked once its link is up.
    pub(crate) fn set_upwards(&mut self, comtree: Comtree, parents: Option<Parents>) {
        let place = self.upwards.binary_search_by_key(&comtree, |upwards| upwards.comtree);
        match (place, parents) {
            (Err(place), Some(parents)) => {
                self.upwards.insert(place, Upwards::new(comtree, parents));
            }
            (Ok(place), Some(parents)) => {
                let before = self.asking_parents(comtree);
                self.upwards[place].parents = parents;
                if self.asking_parents(comtree) != before {
                    self.each_group_of(comtree, |table, group| {
                        table.note_asked(group);
                        table.note_weight_asked(group);
                    });
                }
            }
            (Ok(place), None) => {
                self.pause_asking(comtree);
                self.upwards.remove(place);
            }
            (Err(_), None) => {}
        }
    }

    /// The link to the parent is up, and the parent may have forgotten everything: it is asked for all
    /// that is wanted. It may know as well what it was asked `before`: what nobody wants of that any more, it hears too,
    /// or it would bring that until it expires.
    pub(crate) fn resume_asking(&mut self, comtree: Comtree, before: &BTreeSet<Group>) {
        self.pause_asking(comtree);
        let Some(upwards) = self.upwards_of(comtree) else { return };
        upwards.is_up = true;
        self.each_group_of(comtree, |table, group| {
            let wanted = table.highest(group);
            table.set_wanted(group, wanted);
        });
        for group in before {
            let hash = self.groups.hash(comtree, *group);
            let known = self.groups.find(hash, comtree, *group);
            // Where there is no room, it expires.
            let place = known.or_else(|| self.open_group(hash, (comtree, *group), NONE));
            let Some(place) = place else { continue };
            let asked = Wanted(Some(Level(0)));
            let before = self.set_asked(place, asked);
            self.count_asked(comtree, before, asked);
            // It may be wanted now, and not any more when it is asked.
            self.refresh_group(place);
        }
    }

    /// The link to the parent is down. What it was asked for expires there, unless it is asked again.
    pub(crate) fn pause_asking(&mut self, comtree: Comtree) {
        let Some(upwards) = self.upwards_of(comtree) else { return };
        *upwards = Upwards::new(comtree, upwards.parents);
        self.each_group_of(comtree, |table, group| {
            table.set_asked(group, Wanted::default());
            let passed = Marks::TO_ASK.or(Marks::ASKING).or(Marks::REFRESH);
            table.groups[group].marks.set(passed, false);
            table.release_if_unused(group);
        });
    }

    /// Goes over the groups of a comtree that are in use.
    fn each_group_of(&mut self, comtree: Comtree, mut each: impl FnMut(&mut Self, GroupIndex)) {
        for group in 0..self.groups.high_water() {
            if self.groups.get(group).is_some_and(|entry| entry.comtree == comtree) {
                each(self, group);
            }
        }
    }

    /// What is wanted of a group behind this relay.
    fn wanted_upwards(&self, group: GroupIndex) -> Wanted {
        let entry = &self.groups[group];
        let siblings = self.list(entry.first_sibling).map(|(_, level, _)| level).max();
        let here = match self.asking_parents(entry.comtree) {
            [NONE, NONE] => entry.level(Of::Members),
            parents => {
                let others = self.members(group).filter(|(port, ..)| !parents.contains(port));
                Wanted(others.map(|(_, level, _)| level).max())
            }
        };
        here.max(Wanted(siblings))
    }

    /// The branches of a comtree's parents that want something here themselves: each was a child until lately, or
    /// does not know yet that it is the parent.
    fn asking_parents(&self, comtree: Comtree) -> Parents {
        let found = self.upwards.binary_search_by_key(&comtree, |upwards| upwards.comtree);
        let parents = found.map_or([NONE; 2], |number| self.upwards[number].parents);
        let wants =
            |port: &PortIndex| self.of_port.get(*port as usize).is_some_and(|of| of.count > 0);
        parents.map(|parent| Some(parent).filter(wants).unwrap_or(NONE))
    }

    /// What that weighs: the sum behind this relay, so that fairness holds over hops (Meru §4.4).
    fn weight_upwards(&self, group: GroupIndex) -> Weight {
        let entry = &self.groups[group];
        let siblings = self.list(entry.first_sibling).map(|(_, _, weight)| weight);
        let mut more = 0.0;
        for weight in siblings {
            if weight.is_important() {
                return weight;
            }
            more += weight.value();
        }
        self.sum_of_weights(entry.first, &self.asking_parents(entry.comtree), more)
    }

    /// What a group weighs may be another than what the parent was asked.
    pub(super) fn note_weight_asked(&mut self, group: GroupIndex) {
        let entry = &self.groups[group];
        let is_listed = entry.marks.has(Marks::TO_ASK.or(Marks::ASKING));
        if self.upwards.is_empty() || is_listed || entry.level(Of::Asked).0.is_none() {
            return;
        }
        if self.weight_upwards(group).is_far_from(self.weighed(group).asked) {
            self.groups[group].marks.set(Marks::REFRESH, true);
            self.list_to_ask(group);
        }
    }

    /// What is wanted of a group may be another than what the parent was asked.
    pub(super) fn note_asked(&mut self, group: GroupIndex) {
        if self.upwards.is_empty() {
            return;
        }
        let entry = &self.groups[group];
        if entry.marks.has(Marks::TO_ASK.or(Marks::ASKING)) {
            // It is looked at later anyway.
            return;
        }
        if self.wanted_upwards(group) != self.groups[group].level(Of::Asked) {
            self.list_to_ask(group);
        }
    }

    /// Notes what the parent is asked from now on; returns what it was asked before.
    fn set_asked(&mut self, group: GroupIndex, asked: Wanted) -> Wanted {
        let before = self.groups[group].level(Of::Asked);
        self.groups[group].set_level(Of::Asked, asked);
        before
    }

    fn list_to_ask(&mut self, group: GroupIndex) {
        let entry = &mut self.groups[group];
        let comtree = entry.comtree;
        let found = self.upwards.binary_search_by_key(&comtree, |upwards| upwards.comtree);
        if let Ok(number) = found
            && self.upwards[number].is_up
        {
            entry.marks.set(Marks::TO_ASK, true);
            self.upwards[number].to_ask.push_back(group);
        }
    }

    /// How many groups of a comtree the parent may want to hear of.
    pub(crate) fn to_ask(&self, comtree: Comtree) -> usize {
        let found = self.upwards.binary_search_by_key(&comtree, |upwards| upwards.comtree);
        found.map_or(0, |number| self.upwards[number].to_ask.len())
    }

    /// How many groups of a comtree the parent was asked for.
    pub(crate) fn asked(&self, comtree: Comtree) -> u32 {
        let found = self.upwards.binary_search_by_key(&comtree, |upwards| upwards.comtree);
        found.map_or(0, |number| self.upwards[number].asked)
    }

    /// What the parent was asked for of a comtree: the groups, and up to which level.
    pub(crate) fn all_asked(&self, comtree: Comtree) -> BTreeMap<Group, Level> {
        let places = self.groups.places().filter(|place| self.groups[*place].comtree == comtree);
        let asked =
            |place| Some((self.groups[place].group, self.groups[place].level(Of::Asked).0?));
        places.filter_map(asked).collect()
    }

    /// The next change for the parent. Until it is acknowledged, no other change of that group is.
    pub(crate) fn next_to_ask(
        &mut self,
        comtree: Comtree,
    ) -> Option<(GroupIndex, SubscriptionChange)> {
        loop {
            let group = self.upwards_of(comtree)?.to_ask.pop_front()?;
            let wanted = self.wanted_upwards(group);
            let entry = &mut self.groups[group];
            entry.marks.set(Marks::TO_ASK, false);
            let is_refresh = entry.marks.has(Marks::REFRESH);
            entry.marks.set(Marks::REFRESH, false);
            let before = self.set_asked(group, wanted);
            if before == wanted && !(is_refresh && wanted != Wanted::default()) {
                self.release_if_unused(group);
                continue;
            }
            self.groups[group].marks.set(Marks::ASKING, true);
            self.weighed_mut(group).asked = self.weight_upwards(group);
            self.count_asked(comtree, before, wanted);
            return Some((group, self.change_asked(group)));
        }
    }

    fn count_asked(&mut self, comtree: Comtree, before: Wanted, now: Wanted) {
        if let Some(upwards) = self.upwards_of(comtree) {
            upwards.asked += u32::from(now.0.is_some());
            upwards.asked -= u32::from(before.0.is_some());
        }
    }

    /// The change that the parent was asked last.
    pub(crate) fn change_asked(&self, group: GroupIndex) -> SubscriptionChange {
        let number = self.groups[group].group;
        match self.groups[group].level(Of::Asked).0 {
            Some(level) => SubscriptionChange::add(number, level, self.weighed(group).asked),
            None => SubscriptionChange::Drop(number),
        }
    }

    /// The parent has acknowledged what it was asked last of a group. What it refused is asked for
    /// again with the next round of refreshes.
    pub(crate) fn acknowledged(&mut self, group: GroupIndex, refused: impl Fn(Group) -> bool) {
        let entry = &mut self.groups[group];
        entry.marks.set(Marks::ASKING, false);
        let (comtree, number) = (entry.comtree, entry.group);
        let asked = self.groups[group].level(Of::Asked);
        if asked.0.is_some() && refused(number) {
            self.set_asked(group, Wanted::default());
            self.count_asked(comtree, asked, Wanted::default());
            return self.release_if_unused(group);
        }
        self.note_asked(group);
        self.note_weight_asked(group);
        self.release_if_unused(group);
    }

    /// Goes on with a round over the table, in which the parent is asked again for what is wanted,
    /// so that it does not expire there: up to `budget` groups.
    pub(crate) fn refresh_asked(&mut self, comtree: Comtree, budget: u32) {
        let Some(upwards) = self.upwards_of(comtree) else { return };
        let mut group = upwards.refresh;
        for _ in 0..budget.min(self.groups.high_water()) {
            group = if group + 1 < self.groups.high_water() { group + 1 } else { 0 };
            if self.is_in_use(comtree, group) {
                let highest = self.highest(group);
                self.set_wanted(group, highest);
                self.refresh_group(group);
            }
        }
        if let Some(upwards) = self.upwards_of(comtree) {
            upwards.refresh = group;
        }
    }

    /// How many groups the table has had at most.
    pub(crate) fn groups_high_water(&self) -> u32 {
        self.groups.high_water()
    }

    fn is_in_use(&self, comtree: Comtree, group: GroupIndex) -> bool {
        self.groups.get(group).filter(|entry| entry.comtree == comtree).is_some_and(|entry| {
            let is_asked = entry.level(Of::Asked).0.is_some();
            entry.members > 0 || entry.first_sibling != NONE || is_asked
        })
    }

    fn refresh_group(&mut self, group: GroupIndex) {
        let entry = &mut self.groups[group];
        if entry.marks.has(Marks::ASKING) {
            return;
        }
        entry.marks.set(Marks::REFRESH, true);
        if !entry.marks.has(Marks::TO_ASK) {
            self.list_to_ask(group);
        }
    }
}
