//! Which way leads to whom (Forest §3.1–3.2): learned from what passes, in two levels. An endpoint of
//! the relay's own site or of a portable one has a route of its own; all of another site have one
//! together. Bounded, shared out by comtree, soft state: what nothing came from for a while is
//! forgotten.

mod entry;
mod table;

use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::shares::Shares;
use canopy_session::KeyedState;
use canopy_wire::{Address, Tag, Time};
use core::time::Duration;
use entry::{Entry, Ticks};
use table::{Place, RouteTable};

pub(crate) use entry::{Leads, Route, Way};

/// A route from which nothing has come for so long is forgotten.
pub(crate) const ROUTE_LIFETIME: Duration = Duration::from_secs(30);

/// Sources that are noted together.
const TOGETHER: usize = 16;

/// What became of routes that were noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// They were not there.
    pub(crate) new: u64,
    /// They led elsewhere before.
    pub(crate) moved: u64,
    /// There was no room for them.
    pub(crate) refused: u64,
}

impl Changed {
    fn count(&mut self, noted: Noted) {
        match noted {
            Noted::Known => {}
            Noted::New => self.new += 1,
            Noted::Moved => self.moved += 1,
            Noted::Full => self.refused += 1,
        }
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

/// All routes of a data thread.
pub(crate) struct Routes {
    table: RouteTable,
    hash: KeyedState,
    room: Shares,
    /// Heard from lately, the last at the end, and not in the table yet: [`Routes::hear`].
    heard: Vec<Entry>,
    changed: Changed,
    /// Where the route may lie that is asked for next: [`Routes::begin`].
    begun: Place,
    /// The place in the table that is swept next.
    sweep: usize,
}

impl Routes {
    pub(crate) fn new(most: u32, key: &Tag) -> Routes {
        Routes {
            table: RouteTable::new(),
            hash: KeyedState::new(key),
            room: Shares::new(most),
            heard: Vec::with_capacity(TOGETHER),
            changed: Changed::default(),
            begun: 0,
            sweep: 0,
        }
    }

    /// Sets how many comtrees share the table from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.room.deal(comtrees);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        let is_new = |(place, entry): &(usize, &Entry)| {
            let Entry { comtree, to, .. } = **entry;
            let is_it = |other: &Entry| other.leads(comtree, to);
            let is_known = self.heard[..*place].iter().any(is_it)
                || self.table.find(self.hash(comtree, to), comtree, to).is_some();
            !is_known && self.room.has_room(comtree)
        };
        self.room.total() + self.heard.iter().enumerate().filter(is_new).count() as u32
    }

    /// What has become of all that was noted since the last call.
    pub(crate) fn take_changed(&mut self) -> Changed {
        core::mem::take(&mut self.changed)
    }

    /// Whether a comtree has no room for another.
    pub(crate) fn is_full(&self, comtree: ComtreeIndex) -> bool {
        !self.room.has_room(comtree)
    }

    /// All of them, after [`Routes::settle`].
    pub(crate) fn iter(&self, now: Time) -> impl Iterator<Item = Route> {
        debug_assert!(self.heard.is_empty(), "some are not in the table yet");
        let now = Ticks::at(now);
        self.table.iter().map(move |entry| entry.route(now))
    }

    fn hash(&self, comtree: ComtreeIndex, to: Address) -> u64 {
        self.hash.hash_pair(comtree, to.0)
    }

    /// What leads there will be asked for soon. The search waits for memory, and others need not wait with it:
    /// so it begins before there is anything else to do.
    #[inline]
    pub(crate) fn begin(&mut self, comtree: ComtreeIndex, to: Address) {
        self.begun = self.table.find(self.hash(comtree, to), comtree, to).unwrap_or_default();
    }

    /// What leads there.
    #[inline]
    pub(crate) fn find(&self, comtree: ComtreeIndex, to: Address) -> Option<Way> {
        let lately = self.heard.iter().rfind(|entry| entry.leads(comtree, to));
        let begun = || self.table.get(self.begun).filter(|entry| entry.leads(comtree, to));
        let in_table = || self.table.get(self.table.find(self.hash(comtree, to), comtree, to)?);
        lately.or_else(begun).or_else(in_table).map(Entry::way)
    }

    /// Something came from there over this branch. What becomes of it is told later
    /// ([`Routes::take_changed`]).
    ///
    /// Nobody waits for it to be in the table. A search in a large one waits for memory, and several searches
    /// in a row wait together: so sources are gathered, and put there a few at a time.
    #[inline]
    pub(crate) fn hear(&mut self, now: Time, comtree: ComtreeIndex, to: Address, way: Way) {
        self.heard.push(Entry::heard(now, comtree, to, way));
        if self.heard.len() == TOGETHER {
            self.settle();
        }
    }

    /// Puts into the table what was gathered. All are searched for before anything is changed: a search
    /// does not depend on the one before, so they wait for memory together.
    pub(crate) fn settle(&mut self) {
        let mut hashes = [0; TOGETHER];
        for (hash, Entry { comtree, to, .. }) in hashes.iter_mut().zip(&self.heard) {
            *hash = self.hash(*comtree, *to);
        }
        let mut known = [None; TOGETHER];
        for (known, (hash, heard)) in known.iter_mut().zip(hashes.iter().zip(&self.heard)) {
            *known = self.table.find(*hash, heard.comtree, heard.to);
        }
        // Places stay what they are until something new comes in: so that comes last.
        let heard = core::mem::take(&mut self.heard);
        for (known, heard) in known.iter().zip(&heard) {
            if let Some(entry) = known.and_then(|place| self.table.get_mut(place)) {
                self.changed.count(renew(entry, *heard));
            }
        }
        for (known, (hash, heard)) in known.iter().zip(hashes.iter().zip(&heard)) {
            if known.is_none() {
                self.put(*hash, *heard);
            }
        }
        self.heard = heard;
        self.heard.clear();
    }

    /// Something came from there over this branch, and what that changes is to be known now.
    pub(crate) fn note(
        &mut self,
        now: Time,
        comtree: ComtreeIndex,
        to: Address,
        way: Way,
    ) -> Noted {
        self.settle();
        self.put(self.hash(comtree, to), Entry::heard(now, comtree, to, way))
    }

    /// Another data thread knows the way there, until it says otherwise.
    pub(crate) fn note_sibling(&mut self, comtree: ComtreeIndex, to: Address, way: Way) -> Noted {
        self.settle();
        let Way { port, leads } = way;
        let told = Entry { comtree, to, port, heard: Ticks(0), leads, is_told: true };
        self.put(self.hash(comtree, to), told)
    }

    fn put(&mut self, hash: u64, new: Entry) -> Noted {
        let noted = self.replace(hash, new);
        self.changed.count(noted);
        noted
    }

    fn replace(&mut self, hash: u64, new: Entry) -> Noted {
        let Entry { comtree, to, .. } = new;
        let known = self.table.find(hash, comtree, to);
        if let Some(entry) = known.and_then(|place| self.table.get_mut(place)) {
            return renew(entry, new);
        }
        if !self.room.has_room(comtree) {
            return Noted::Full;
        }
        self.room.take(comtree);
        let keyed = &self.hash;
        self.table.insert(hash, new, |entry| keyed.hash_pair(entry.comtree, entry.to.0));
        Noted::New
    }

    /// Takes the route at a place away.
    fn remove(&mut self, place: Place, comtree: ComtreeIndex) {
        let keyed = &self.hash;
        self.table.remove(place, |entry| keyed.hash_pair(entry.comtree, entry.to.0));
        self.room.give_back(comtree);
    }

    /// Forgets the way there, if it leads over this port, or over any if that is [`NONE`]. Returns
    /// whether there was one.
    pub(crate) fn forget(&mut self, comtree: ComtreeIndex, to: Address, port: PortIndex) -> bool {
        self.settle();
        let Some(place) = self.table.find(self.hash(comtree, to), comtree, to) else {
            return false;
        };
        let is_it = |entry: &Entry| port == NONE || entry.port == port;
        let is_there = self.table.get(place).is_some_and(is_it);
        if is_there {
            self.remove(place, comtree);
        }
        is_there
    }

    /// What led over one port leads over another.
    pub(crate) fn redirect(&mut self, comtree: ComtreeIndex, from: PortIndex, to: PortIndex) {
        self.settle();
        let entries = self.table.iter_mut().filter(|entry| entry.comtree == comtree);
        entries.filter(|entry| entry.port == from).for_each(|entry| entry.port = to);
    }

    /// What leads over this port leads there from now on. `tell` gets each address for which that is news. What it
    /// cannot tell is forgotten, so that it is new when it is heard the next time.
    pub(crate) fn relabel(
        &mut self,
        comtree: ComtreeIndex,
        port: PortIndex,
        leads: Leads,
        mut tell: impl FnMut(Address) -> bool,
    ) {
        self.settle();
        let is_news =
            |entry: &Entry| entry.comtree == comtree && entry.port == port && entry.leads != leads;
        for place in 0..self.table.places() {
            self.forget_at(place, |entry| is_news(entry) && !tell(entry.to));
            if let Some(entry) = self.table.get_mut(place).filter(|entry| is_news(entry)) {
                entry.leads = leads;
            }
        }
    }

    /// Keeps the routes for which `keep` says so, and forgets the others. It is told whose they are, where
    /// they lead, and over which port.
    pub(crate) fn retain(
        &mut self,
        mut keep: impl FnMut(ComtreeIndex, Address, PortIndex) -> bool,
    ) {
        self.settle();
        for place in 0..self.table.places() {
            self.forget_at(place, |entry| !keep(entry.comtree, entry.to, entry.port));
        }
    }

    /// Forgets the route at a place if `may_go` says so, and then the one that takes its place.
    fn forget_at(&mut self, place: Place, mut may_go: impl FnMut(&Entry) -> bool) {
        while let Some(entry) = self.table.get(place).filter(|entry| may_go(entry)) {
            self.remove(place, entry.comtree);
        }
    }

    /// Looks at one of `parts` of the table, behind that of the last call, and forgets the routes there from
    /// which nothing came for [`ROUTE_LIFETIME`] and for which `may_end` says yes.
    pub(crate) fn expire(
        &mut self,
        now: Time,
        parts: usize,
        mut may_end: impl FnMut(ComtreeIndex, Address) -> bool,
    ) {
        self.settle();
        let now = Ticks::at(now);
        let places = self.table.places();
        for _ in 0..places.div_ceil(parts) {
            self.sweep = if self.sweep + 1 < places { self.sweep + 1 } else { 0 };
            self.forget_at(self.sweep, |entry| {
                let Entry { comtree, to, heard, is_told, .. } = *entry;
                !is_told && now.since(heard) > ROUTE_LIFETIME && may_end(comtree, to)
            });
        }
    }
}

/// The same way, or another one, heard later.
fn renew(entry: &mut Entry, new: Entry) -> Noted {
    let before = core::mem::replace(entry, new);
    if before.way() == new.way() { Noted::Known } else { Noted::Moved }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const COMTREE: ComtreeIndex = 0;

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
            routes.expire(now, 1, |_, _| true);
        }
        let found = [quiet, busy, told].map(|to| routes.find(COMTREE, to));
        assert_eq!(found, [None, Some(over(2)), Some(over(0))]);
    }

    /// Whether it ends is known again from when it was heard here.
    #[test]
    fn what_another_thread_knew_ends_like_any_other_once_it_is_heard_here() {
        let mut routes = Routes::new(8, &[1; 16]);
        let to = Address::unicast(3, 0);
        let at = |second: u64| Time::from_millis(second * 1000);
        routes.note_sibling(COMTREE, to, over(0));
        routes.expire(at(100), 1, |_, _| true);
        assert_eq!(routes.note(at(100), COMTREE, to, over(1)), Noted::Moved);
        routes.expire(at(130), 1, |_, _| true);
        assert_eq!(routes.len(), 1);
        routes.expire(at(131), 1, |_, _| false);
        assert_eq!(routes.len(), 1, "it may not end yet");
        routes.expire(at(131), 1, |_, _| true);
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
        assert_eq!(routes.find(COMTREE, to(1)), Some(over(6)));
    }

    #[test]
    fn what_a_branch_leads_to_now_is_told_once_and_forgotten_if_it_cannot_be() {
        let mut routes = Routes::new(8, &[1; 16]);
        let to = |site| Address::unicast(site, 0);
        for (site, port) in [(1, 5), (2, 5), (3, 6)] {
            routes.note(Time::ZERO, COMTREE, to(site), over(port));
        }
        let mut told = Vec::new();
        for _ in 0..2 {
            routes.relabel(COMTREE, 5, Leads::ToCorePeer, |to| {
                told.push(to.site());
                to.site() != 2
            });
        }
        told.sort_unstable();
        assert_eq!(told, [1, 2]);
        let found = [1, 2, 3].map(|site| routes.find(COMTREE, to(site)));
        let peer = Way { port: 5, leads: Leads::ToCorePeer };
        assert_eq!(found, [Some(peer), None, Some(over(6))]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x707e),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn the_table_is_a_map(steps in proptest::collection::vec((0u8..7, 0u32..12, 0u32..4), 0..300)) {
            let mut routes = Routes::new(64, &[2; 16]);
            let mut model = BTreeMap::new();
            let mut changed = Changed::default();
            for (what, to, port) in steps {
                let address = Address(to);
                match what {
                    0..4 => {
                        let expected = match model.insert(to, port) {
                            None => Noted::New,
                            Some(before) if before == port => Noted::Known,
                            Some(_) => Noted::Moved,
                        };
                        changed.count(expected);
                        if what == 0 {
                            let noted = routes.note(Time::ZERO, COMTREE, address, over(port));
                            prop_assert_eq!(noted, expected);
                        } else {
                            routes.hear(Time::ZERO, COMTREE, address, over(port));
                        }
                    }
                    4 => {
                        let way = routes.find(COMTREE, address);
                        prop_assert_eq!(way, model.get(&to).copied().map(over));
                    }
                    5 => {
                        routes.forget(COMTREE, address, NONE);
                        model.remove(&to);
                    }
                    _ => {
                        routes.retain(|_, _, over| over != port);
                        model.retain(|_, other| *other != port);
                    }
                }
                prop_assert_eq!(routes.len() as usize, model.len());
            }
            for to in 0..12 {
                prop_assert_eq!(routes.find(COMTREE, Address(to)), model.get(&to).copied().map(over));
            }
            routes.settle();
            prop_assert_eq!(routes.take_changed(), changed);
            let known: BTreeMap<u32, PortIndex> =
                routes.iter(Time::ZERO).map(|route| (route.to.0, route.way.port)).collect();
            prop_assert_eq!(known, model);
        }
    }
}
