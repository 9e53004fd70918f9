//! Which way leads to whom (Forest §3.1–3.2): learned from what passes, in two levels. An endpoint of
//! the relay's own site or of a portable one has a route of its own; all of another site have one
//! together. Bounded, shared out by comtree, soft state: what nothing came from for a while is
//! forgotten.

use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::shares::Shares;
use canopy_session::KeyedState;
use canopy_wire::{Address, Comtree, Tag, Time};
use core::time::Duration;
use hashbrown::HashTable;

/// A route from which nothing has come for so long is forgotten.
pub(crate) const ROUTE_LIFETIME: Duration = Duration::from_secs(30);
/// When another data thread's route ends: it is told when it does.
const NEVER: u32 = u32::MAX;

/// What leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// A branch, or another data thread.
    pub(crate) port: PortIndex,
    /// What is behind it.
    pub(crate) leads: Leads,
}

/// How a way goes on behind a branch, or behind another data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// Over a branch of the tree.
    OverTree,
    /// Over a branch to a core peer.
    ToCorePeer,
    /// To a participant with a portable address, whom the other data thread serves.
    ToParticipant,
}

impl Way {
    /// Whether the branch, here or at the other data thread, is to a core peer.
    pub(crate) fn is_core_peer(self) -> bool {
        self.leads == Leads::ToCorePeer
    }
}

/// The way to an endpoint or to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) comtree: Comtree,
    comtree_index: ComtreeIndex,
    /// An endpoint of the relay's own site or of a portable one; or endpoint 0 of another site, for all of
    /// it.
    pub(crate) to: Address,
    pub(crate) way: Way,
    /// When something came from there last, in deciseconds; [`NEVER`] if another data thread knows.
    heard: u32,
    /// Its place in the list that is swept.
    place: u32,
}

impl Route {
    /// When something came from there last; `None` if another data thread knows.
    pub(crate) fn heard(&self) -> Option<Time> {
        (self.heard != NEVER).then(|| Time::from_millis(u64::from(self.heard) * 100))
    }

    fn leads(&self, comtree: Comtree, to: Address) -> bool {
        self.to == to && self.comtree == comtree
    }
}

/// What became of a route that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It was known.
    Known,
    /// It is new.
    New,
    /// It led elsewhere before.
    Moved,
    /// There is no room for it.
    Full,
}

/// Whose a route is, and when something had come from there when it was last looked at.
#[derive(Clone, Copy)]
struct Swept {
    comtree: Comtree,
    to: Address,
    heard: u32,
}

/// All routes of a data thread. A route lies in the hash table itself, so that whoever looks for it
/// waits for memory once.
pub(crate) struct Routes {
    table: HashTable<Route>,
    /// Whose routes they are, in the order in which they are swept.
    swept: Vec<Swept>,
    hash: KeyedState,
    room: Shares,
    sweep: u32,
}

impl Routes {
    pub(crate) fn new(most: u32, key: &Tag) -> Routes {
        Routes {
            table: HashTable::new(),
            swept: Vec::with_capacity(most as usize),
            hash: KeyedState::new(key),
            room: Shares::new(most),
            sweep: 0,
        }
    }

    /// Sets how many comtrees share the table from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.room.deal(comtrees);
    }

    pub(crate) fn len(&self) -> u32 {
        self.swept.len() as u32
    }

    /// Whether a comtree has no room for another.
    pub(crate) fn is_full(&self, comtree: ComtreeIndex) -> bool {
        !self.room.has_room(comtree)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.table.iter()
    }

    fn hash(&self, comtree: Comtree, to: Address) -> u64 {
        self.hash.hash_pair(comtree.0, to.0)
    }

    /// What leads there.
    #[inline]
    pub(crate) fn find(&self, comtree: Comtree, to: Address) -> Option<Way> {
        let found = self.table.find(self.hash(comtree, to), |route| route.leads(comtree, to));
        found.map(|route| route.way)
    }

    /// Something came from there over this branch.
    #[inline]
    pub(crate) fn note(
        &mut self,
        now: Time,
        comtree: (Comtree, ComtreeIndex),
        to: Address,
        way: Way,
    ) -> Noted {
        self.put(comtree, to, way, deciseconds(now))
    }

    /// Another data thread knows the way there, until it says otherwise.
    pub(crate) fn note_sibling(
        &mut self,
        comtree: (Comtree, ComtreeIndex),
        to: Address,
        way: Way,
    ) -> Noted {
        self.put(comtree, to, way, NEVER)
    }

    fn put(
        &mut self,
        (comtree, comtree_index): (Comtree, ComtreeIndex),
        to: Address,
        way: Way,
        heard: u32,
    ) -> Noted {
        let hash = self.hash(comtree, to);
        if let Some(route) = self.table.find_mut(hash, |route| route.leads(comtree, to)) {
            if route.heard != heard {
                if route.heard == NEVER {
                    self.swept[route.place as usize].heard = heard;
                }
                route.heard = heard;
            }
            if route.way == way {
                return Noted::Known;
            }
            route.way = way;
            return Noted::Moved;
        }
        if !self.room.has_room(comtree_index) {
            return Noted::Full;
        }
        self.room.take(comtree_index);
        let place = self.len();
        self.swept.push(Swept { comtree, to, heard });
        let keyed = &self.hash;
        let hash_of = |route: &Route| keyed.hash_pair(route.comtree.0, route.to.0);
        let route = Route { comtree, comtree_index, to, way, heard, place };
        self.table.insert_unique(hash, route, hash_of);
        Noted::New
    }

    /// Forgets the way there, if it leads over this port, or over any if that is [`NONE`]. Returns
    /// what it was.
    pub(crate) fn forget(
        &mut self,
        comtree: Comtree,
        to: Address,
        port: PortIndex,
    ) -> Option<Route> {
        let way = self.find(comtree, to)?;
        (port == NONE || way.port == port).then(|| self.remove(comtree, to)).flatten()
    }

    /// What led over one port leads over another.
    pub(crate) fn redirect(&mut self, comtree: Comtree, from: PortIndex, to: PortIndex) {
        let ways = self.table.iter_mut().filter(|route| route.comtree == comtree);
        ways.filter(|route| route.way.port == from).for_each(|route| route.way.port = to);
    }

    /// Keeps the routes for which `keep` says so, and forgets the others.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Route) -> bool) {
        let going: Vec<_> = self
            .table
            .iter()
            .filter(|route| !keep(route))
            .map(|route| (route.comtree, route.to))
            .collect();
        for (comtree, to) in going {
            self.remove(comtree, to);
        }
    }

    /// Looks at up to `budget` routes, starting where the last call stopped, and forgets those from
    /// which nothing came for [`ROUTE_LIFETIME`] and for which `may_end` says yes.
    pub(crate) fn expire(
        &mut self,
        now: Time,
        budget: u32,
        mut may_end: impl FnMut(&Route) -> bool,
    ) {
        let lifetime = ROUTE_LIFETIME.as_millis() as u32 / 100;
        let now = deciseconds(now);
        for _ in 0..budget.min(self.len()) {
            self.sweep = if self.sweep + 1 < self.len() { self.sweep + 1 } else { 0 };
            let Some(swept) = self.swept.get_mut(self.sweep as usize) else { return };
            let is_old = |heard: u32| heard != NEVER && now > heard.saturating_add(lifetime);
            // Most are not, and the table need not be searched for them.
            if !is_old(swept.heard) {
                continue;
            }
            let Swept { comtree, to, .. } = *swept;
            let hash = self.hash.hash_pair(comtree.0, to.0);
            let found = self.table.find(hash, |route| route.leads(comtree, to));
            let Some(route) = found else { continue };
            swept.heard = route.heard;
            if is_old(route.heard) && may_end(route) {
                self.remove(comtree, to);
            }
        }
    }

    fn remove(&mut self, comtree: Comtree, to: Address) -> Option<Route> {
        let hash = self.hash(comtree, to);
        let entry = self.table.find_entry(hash, |route| route.leads(comtree, to)).ok()?;
        let (route, _) = entry.remove();
        self.swept.swap_remove(route.place as usize);
        // The last one takes its place.
        if let Some(Swept { comtree, to, .. }) = self.swept.get(route.place as usize).copied() {
            let hash = self.hash(comtree, to);
            if let Some(moved) = self.table.find_mut(hash, |route| route.leads(comtree, to)) {
                moved.place = route.place;
            }
        }
        self.room.give_back(route.comtree_index);
        Some(route)
    }
}

fn deciseconds(time: Time) -> u32 {
    (time.as_nanos() / 100_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const COMTREE: (Comtree, ComtreeIndex) = (Comtree(7), 0);

    fn over(port: PortIndex) -> Way {
        Way { port, leads: Leads::OverTree }
    }

    #[test]
    fn a_route_lives_as_long_as_something_comes_from_there() {
        let mut routes = Routes::new(8, &[1; 16]);
        let (quiet, busy) = (Address::unicast(3, 0), Address::unicast(4, 0));
        let told = Address::unicast(5, 0);
        for second in 0..40 {
            let now = Time::from_millis(second * 1000);
            if second == 0 {
                assert_eq!(routes.note(now, COMTREE, quiet, over(1)), Noted::New);
                assert_eq!(routes.note_sibling(COMTREE, told, over(0)), Noted::New);
            }
            routes.note(now, COMTREE, busy, over(2));
            routes.expire(now, 8, |_| true);
        }
        let found = [quiet, busy, told].map(|to| routes.find(COMTREE.0, to));
        assert_eq!(found, [None, Some(over(2)), Some(over(0))]);
    }

    /// Whether it ends is known again from when it was heard here.
    #[test]
    fn what_another_thread_knew_ends_like_any_other_once_it_is_heard_here() {
        let mut routes = Routes::new(8, &[1; 16]);
        let to = Address::unicast(3, 0);
        let at = |second: u64| Time::from_millis(second * 1000);
        routes.note_sibling(COMTREE, to, over(0));
        routes.expire(at(100), 8, |_| true);
        assert_eq!(routes.note(at(100), COMTREE, to, over(1)), Noted::Moved);
        routes.expire(at(130), 8, |_| true);
        assert_eq!(routes.len(), 1);
        routes.expire(at(131), 8, |_| false);
        assert_eq!(routes.len(), 1, "it may not end yet");
        routes.expire(at(131), 8, |_| true);
        assert_eq!(routes.len(), 0);
    }

    #[test]
    fn a_full_table_keeps_what_it_knows() {
        let mut routes = Routes::new(2, &[1; 16]);
        let to = |site| Address::unicast(site, 0);
        for site in 1..=2 {
            assert_eq!(routes.note(Time::ZERO, COMTREE, to(site), over(5)), Noted::New);
        }
        assert_eq!(routes.note(Time::ZERO, COMTREE, to(3), over(5)), Noted::Full);
        assert_eq!(routes.note(Time::ZERO, COMTREE, to(1), over(6)), Noted::Moved);
        assert_eq!(routes.find(COMTREE.0, to(1)), Some(over(6)));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x707e),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec((0u8..4, 0u32..12, 0u32..4), 0..300)) {
            let mut routes = Routes::new(64, &[2; 16]);
            let mut model = BTreeMap::new();
            for (what, to, port) in steps {
                let address = Address(to);
                match what {
                    0 | 1 => {
                        let noted = routes.note(Time::ZERO, COMTREE, address, over(port));
                        let expected = match model.insert(to, port) {
                            None => Noted::New,
                            Some(before) if before == port => Noted::Known,
                            Some(_) => Noted::Moved,
                        };
                        prop_assert_eq!(noted, expected);
                    }
                    2 => {
                        routes.forget(COMTREE.0, address, NONE);
                        model.remove(&to);
                    }
                    _ => {
                        routes.retain(|route| route.way.port != port);
                        model.retain(|_, other| *other != port);
                    }
                }
                prop_assert_eq!(routes.len() as usize, model.len());
            }
            for to in 0..12 {
                prop_assert_eq!(routes.find(COMTREE.0, Address(to)), model.get(&to).copied().map(over));
            }
        }
    }
}
