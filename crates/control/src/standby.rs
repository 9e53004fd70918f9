//! Standby parents: over which link a relay is joined to its comtree if the link to its parent fails and
//! the controller is not there to say so.
//!
//! A relay's standby parent *ranks* before it: it is nearer to the root, counted in relays, or as near
//! with a lower number. So does a parent. Whichever relays use their standby parents, and whatever has
//! failed, ways up lead to ever lower ranks: they never form a circle, and relays need not agree.

use crate::hops::breadth_first;
use crate::ledger::Account;
use crate::model::{LinkId, RelayId, TreeHop};
use crate::op::Op;
use crate::running::Standbys;
use crate::shape::Shape;
use crate::state::State;
use canopy_wire::Comtree;
use std::collections::{BTreeMap, BTreeSet};

/// A link that could join a relay to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) relay: RelayId,
    pub(crate) to: RelayId,
    pub(crate) link: LinkId,
    /// Whether what is reserved for the relay's present way up would fit on the link.
    pub(crate) has_room: bool,
    pub(crate) delay_us: u32,
    /// Whether the relay may be on a detour to it.
    pub(crate) is_used: bool,
}

/// Chooses the standby parents of a tree whose hops follow those above them. One that is used stays. One whose own way to the
/// root does not lead over the relay's parent comes first; then the one that is there `before`; then
/// one whose link has room; then the nearest.
pub(crate) fn choose(
    hops: &[TreeHop],
    candidates: impl IntoIterator<Item = Candidate>,
    before: &Standbys,
) -> Standbys {
    let places = Places::new(hops);
    let mut best = BTreeMap::new();
    for of in candidates {
        let (Some(own), Some(other)) = (places.rank(of.relay), places.rank(of.to)) else {
            continue;
        };
        let Some(Some(parent)) = places.above.get(&of.relay).copied() else { continue };
        if other >= own || of.to == parent {
            continue;
        }
        let is_new = before.get(&of.relay) != Some(&(of.to, of.link));
        let leads_over = places.leads_over(of.to, parent);
        let key = (!of.is_used, leads_over, is_new, !of.has_room, of.delay_us, of.to, of.link);
        let known = best.entry(of.relay).or_insert(key);
        *known = key.min(*known);
    }
    best.into_iter().map(|(relay, (.., to, link))| (relay, (to, link))).collect()
}

/// Where relays are on a tree.
struct Places {
    above: BTreeMap<RelayId, Option<RelayId>>,
    depths: BTreeMap<RelayId, usize>,
}

impl Places {
    fn new(hops: &[TreeHop]) -> Places {
        let mut places = Places { above: BTreeMap::new(), depths: BTreeMap::new() };
        for hop in hops {
            let above = hop.above.map(|(above, _)| above);
            let depth =
                above.and_then(|above| places.depths.get(&above)).map_or(0, |depth| depth + 1);
            places.above.insert(hop.relay, above);
            places.depths.insert(hop.relay, depth);
        }
        places
    }

    fn rank(&self, relay: RelayId) -> Option<(usize, RelayId)> {
        self.depths.get(&relay).map(|depth| (*depth, relay))
    }

    /// Whether a relay's way to the root leads over another.
    fn leads_over(&self, relay: RelayId, over: RelayId) -> bool {
        let above = |at: &RelayId| self.above.get(at).copied().flatten();
        core::iter::successors(Some(relay), above).any(|at| at == over)
    }
}

/// A tree in which relays hang where they have found ways, and each other one whose parent is lost on its standby
/// parent, if it has one that is not; and without lost relays at its ends, as far as they may go.
fn with_standbys(
    hops: &[TreeHop],
    (standbys, found): (&Standbys, &Standbys),
    is_lost: impl Fn(RelayId, LinkId) -> bool,
    may_go: impl Fn(RelayId) -> bool,
) -> Vec<TreeHop> {
    let hang = |hop: &TreeHop| {
        let lost = hop.above.is_some_and(|(above, link)| is_lost(above, link));
        let standby = standbys.get(&hop.relay).filter(|(to, link)| lost && !is_lost(*to, *link));
        let above = found.get(&hop.relay).or(standby).copied();
        TreeHop { relay: hop.relay, above: above.or(hop.above) }
    };
    let mut hops = breadth_first(&hops.iter().map(hang).collect::<Vec<_>>());
    for at in (1..hops.len()).rev() {
        let relay = hops[at].relay;
        let has_below = hops.iter().any(|hop| hop.above.is_some_and(|(above, _)| above == relay));
        if !has_below && may_go(relay) {
            hops.remove(at);
        }
    }
    hops
}

impl State {
    /// A relay beats, and has said before on which comtrees it is on a detour.
    /// Returns whether it may have found ways since it was heard last.
    pub(crate) fn hear_detours(&mut self, relay: RelayId, comtrees: BTreeSet<Comtree>) -> bool {
        self.unheard.remove(&relay);
        let was_apart = self.apart.remove(&relay);
        // Others may have waited for its word.
        self.links_have_come |= was_apart;
        if comtrees.is_empty() {
            self.detours.remove(&relay);
        } else {
            self.detours.insert(relay, comtrees);
        }
        was_apart
    }

    /// Why what is planned for a comtree waits for a relay of it: that is on a detour, and would be at its parent at once
    /// without its standby parent, though that has yet to be asked for anything; or it may be on one without having told.
    pub(crate) fn detour_in_words(&self, comtree: Comtree, relay: RelayId) -> Option<String> {
        if self.is_unheard(relay) {
            return Some(self.unheard_in_words(relay));
        }
        let has_told = self.detours.get(&relay).is_some_and(|of| of.contains(&comtree));
        // What it has told is of before, if it has been given another tree since.
        let running = self.comtrees.get(&comtree);
        let has_standby = running.is_some_and(|running| running.standbys.contains_key(&relay));
        let is_on_one = has_told && has_standby && self.is_running(relay);
        is_on_one.then(|| {
            let name = self.relay_name(relay);
            format!("{name} is yet to return from its standby parent to its parent; wait a moment")
        })
    }

    /// Whether a relay of a comtree is on a detour, or may be.
    pub(crate) fn has_detour(&self, comtree: Comtree) -> bool {
        let Some(running) = self.comtrees.get(&comtree) else { return false };
        let shape = running.shape.as_ref().filter(|shape| shape.core().len() == 1);
        let mut may_find_ways = shape.into_iter().flat_map(|shape| shape.relays());
        let mut relays = running.standbys.keys();
        may_find_ways.any(|relay| self.is_unheard(relay))
            || relays.any(|relay| self.detour_in_words(comtree, *relay).is_some())
            || !self.found_ways(comtree).is_empty()
    }

    /// Why a link that carries nothing of a comtree may be needed there by relays that are on ways by themselves.
    pub(crate) fn detour_over_in_words(&self, comtree: Comtree, id: LinkId) -> Option<String> {
        let running = self.comtrees.get(&comtree)?;
        let mut over = running.standbys.iter().filter(|(_, (_, link))| *link == id);
        let ends = running.spares.get(&id).into_iter().flatten();
        let mut unheard = ends.copied().filter(|end| self.is_unheard(*end));
        let found = || {
            let mut found = self.found_ways(comtree).into_iter();
            let (relay, _) = found.find(|(_, (_, link))| *link == id)?;
            let name = self.relay_name(relay);
            Some(format!("{name} has found its way over it by itself; wait a moment"))
        };
        over.find_map(|(relay, _)| self.detour_in_words(comtree, *relay))
            .or_else(|| unheard.next().map(|relay| self.unheard_in_words(relay)))
            .or_else(found)
    }

    /// The links to standby parents of relays that are on detours, or may be.
    pub(crate) fn links_of_detours(&self) -> BTreeSet<LinkId> {
        let mut links = BTreeSet::new();
        for (comtree, running) in &self.comtrees {
            let on_detour = |relay| self.detour_in_words(*comtree, relay).is_some();
            let used = running.standbys.iter().filter(|(relay, _)| on_detour(**relay));
            links.extend(used.map(|(_, (_, link))| *link));
            let is_unheard = |ends: &[RelayId; 2]| ends.iter().any(|end| self.is_unheard(*end));
            let spares = running.spares.iter().filter(|(_, ends)| is_unheard(ends));
            links.extend(spares.map(|(link, _)| *link));
            links.extend(self.found_ways(*comtree).values().map(|(_, link)| *link));
        }
        links
    }

    /// The standby parents for a tree, as links are now. A neighbour of a relay in the core has none.
    fn standbys_of(&self, comtree: Comtree, shape: &Shape, before: &Standbys) -> Standbys {
        let core = shape.core();
        let links = self
            .links
            .values()
            .filter(|link| self.is_usable(link.id) && !link.removing)
            .filter(|link| link.ends.iter().all(|end| shape.has(*end)));
        // Over a link on which a way was found there is what was there before.
        let found = self.found_ways(comtree);
        let is_found = |link: LinkId| found.values().any(|(_, over)| *over == link);
        let candidates = links.flat_map(|link| {
            link.ends.into_iter().filter(|end| !core.contains(end)).filter_map(|relay| {
                let (to, link_id) = (link.other(relay), link.id);
                let was_it = before.get(&relay) == Some(&(to, link_id));
                if is_found(link_id) && !was_it {
                    return None;
                }
                let needs = shape.reserved(relay);
                let fits = |from, rate: canopy_plan::Rate| {
                    let free = self.ledger.free(Account::Link(link_id, from));
                    rate.bits <= free.bits && rate.packets <= free.packets
                };
                let has_room = fits(relay, needs.up) && fits(to, needs.down);
                let may_be_used =
                    is_found(link_id) || self.detour_in_words(comtree, relay).is_some();
                let (link, delay_us) = (link_id, link.delay_us);
                let is_used = was_it && may_be_used;
                Some(Candidate { relay, to, link, has_room, delay_us, is_used })
            })
        });
        choose(shape.hops(), candidates, before)
    }

    /// Chooses a comtree's standby parents for the tree that is in force.
    pub(crate) fn renew_standbys(&mut self, comtree: Comtree) {
        let Some(running) = self.comtrees.get(&comtree) else { return };
        let shape = running.shape.as_ref();
        let standbys = shape.map(|shape| self.standbys_of(comtree, shape, &running.standbys));
        let standbys = standbys.unwrap_or_default();
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.standbys = standbys;
        }
        self.renew_spares(comtree);
    }

    /// Chooses other standby parents where links have come or gone, on trees that are whole, unless a relay may use one.
    pub(crate) fn review_standbys(&mut self, op: &mut Op) {
        let is_calm = |comtree: &Comtree| {
            let running = self.comtrees.get(comtree);
            let shape = running.filter(|of| of.moving.is_none()).and_then(|of| of.shape.as_ref());
            shape.is_some_and(|shape| self.is_whole(shape)) && !self.has_detour(*comtree)
        };
        let calm: Vec<Comtree> = self.comtrees.keys().copied().filter(is_calm).collect();
        for comtree in calm {
            let Some(running) = self.comtrees.get(&comtree) else { continue };
            let (standbys, spares) = (running.standbys.clone(), running.spares.clone());
            let picture = running.picture();
            self.renew_standbys(comtree);
            let Some(running) = self.comtrees.get(&comtree) else { continue };
            let has_others = running.standbys != standbys;
            if has_others || running.spares != spares {
                if has_others {
                    self.save_comtree(op, comtree);
                }
                self.tell_changed(op, comtree, &picture, &[]);
                op.cut();
            }
        }
    }

    /// Nobody is to be joined over these links.
    pub(crate) fn drop_standbys_over(&mut self, op: &mut Op, links: &[LinkId]) {
        for comtree in self.comtrees.keys().copied().collect::<Vec<_>>() {
            let Some(running) = self.comtrees.get_mut(&comtree) else { continue };
            let (before, picture) =
                (running.standbys.len() + running.spares.len(), running.picture());
            running.standbys.retain(|_, (_, link)| !links.contains(link));
            running.spares.retain(|link, _| !links.contains(link));
            if running.standbys.len() + running.spares.len() < before {
                self.save_comtree(op, comtree);
                self.tell_changed(op, comtree, &picture, &[]);
                op.cut();
            }
        }
    }

    /// The tree that relays make by themselves after what has failed: those who have lost their parents
    /// hang on their standby parents. Nothing if none does.
    pub(crate) fn detoured(&self, comtree: Comtree) -> Option<Vec<TreeHop>> {
        let running = self.comtrees.get(&comtree)?;
        let shape = running.shape.as_ref()?;
        let is_lost = |relay, link| !self.is_usable(link) || !self.is_running(relay);
        let may_go = |relay| !self.is_running(relay) && shape.load(relay).0 == 0;
        let found = self.found_ways(comtree);
        let hops = with_standbys(shape.hops(), (&running.standbys, &found), is_lost, may_go);
        let hangs_otherwise = |hop: &TreeHop| shape.above(hop.relay) != hop.above;
        hops.iter().any(hangs_otherwise).then_some(hops)
    }

    /// Whether a tree can be used as it is.
    pub(crate) fn is_sound(&self, hops: &[TreeHop]) -> bool {
        hops.iter().all(|hop| {
            self.is_running(hop.relay) && hop.above.is_none_or(|(_, link)| self.is_usable(link))
        })
    }
}

#[cfg(test)]
mod tests;
