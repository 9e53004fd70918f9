//! Ways to the root that relays have found by themselves while the controller was away. They are the tree from then on,
//! if that can be reserved.
//!
//! Relays on such ways have parents that the controller does not know of. Together with another tree they could form a
//! circle. So a comtree is not repaired before those of its relays have been heard that may be on one, or have had their
//! time. Then relays are told just what they have, or first to let go of it.

use crate::mesh::Spare;
use crate::model::{Link, LinkId, RelayId};
use crate::op::{Effect, Event, Op};
use crate::running::Standbys;
use crate::shape::Shape;
use crate::signal::{FoundWay, Role};
use crate::state::State;
use canopy_wire::Comtree;
use std::collections::{BTreeMap, BTreeSet};

impl State {
    /// A relay beats, and has said before which ways it has found.
    pub(crate) fn hear_ways(&mut self, relay: RelayId, ways: Vec<FoundWay>) {
        let has_none = ways.is_empty();
        let mut ways: BTreeMap<Comtree, [LinkId; 2]> =
            ways.into_iter().map(|of| (of.comtree, [of.over, of.instead_of])).collect();
        // Once all relays of a comtree have been heard, it is repaired.
        let mut is_new = false;
        self.ways.retain(|comtree, of| {
            match ways.remove(comtree) {
                Some(way) => is_new |= of.insert(relay, way) != Some(way),
                None => _ = of.remove(&relay),
            }
            !of.is_empty()
        });
        for (comtree, way) in ways {
            self.ways.entry(comtree).or_default().insert(relay, way);
            is_new = true;
        }
        self.links_have_come |= is_new && !has_none;
    }

    /// A relay is on no way that it has found.
    pub(crate) fn forget_ways(&mut self, relay: RelayId) {
        self.hear_ways(relay, Vec::new());
        self.apart.remove(&relay);
        self.ended_ways.retain(|(of, _)| *of != relay);
    }

    /// Chooses the links of a comtree over which its relays may find ways: all between them that carry nothing of it. One with
    /// a larger core than its root has none, as nobody there is the root for all.
    pub(crate) fn renew_spares(&mut self, comtree: Comtree) {
        let Some(running) = self.comtrees.get(&comtree) else { return };
        let shape = running.shape.as_ref().filter(|shape| shape.core().len() == 1);
        let spares = shape.map(|shape| {
            let of_tree: BTreeSet<LinkId> = shape.links().collect();
            let standby: BTreeSet<LinkId> =
                running.standbys.values().map(|(_, link)| *link).collect();
            let is_spare = |link: &&Link| {
                link.ends.iter().all(|end| shape.has(*end))
                    && !of_tree.contains(&link.id)
                    && !standby.contains(&link.id)
                    && !link.removing
            };
            self.links.values().filter(is_spare).map(|link| (link.id, link.ends)).collect()
        });
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.spares = spares.unwrap_or_default();
        }
    }

    /// The parents that relays of a comtree have found, which are not yet those of its tree. Where there are any, with
    /// them the standby parents of relays on detours.
    pub(crate) fn found_ways(&self, comtree: Comtree) -> Standbys {
        let running = self.comtrees.get(&comtree);
        let said = running.and_then(|of| Some((of, of.shape.as_ref()?, self.ways.get(&comtree)?)));
        let Some((running, shape, ways)) = said else { return Standbys::new() };
        let way = |(relay, way): (&RelayId, &[LinkId; 2])| {
            let [over, instead_of] = *way;
            // What it has told is of before, if it has been given another tree since.
            let (_, above) = shape.above(*relay)?;
            let link = self.links.get(&over).filter(|link| link.ends.contains(relay))?;
            let is_way = above == instead_of && above != over;
            (is_way && self.is_running(*relay)).then_some((*relay, (link.other(*relay), over)))
        };
        let mut found: Standbys = ways.iter().filter_map(way).collect();
        if found.is_empty() {
            return found;
        }
        let is_on_detour = |(relay, _): &(&RelayId, &(RelayId, LinkId))| {
            let detours = self.detours.get(relay).filter(|_| self.is_running(**relay));
            detours.is_some_and(|detours| detours.contains(&comtree)) && shape.has(**relay)
        };
        for (relay, standby) in running.standbys.iter().filter(is_on_detour) {
            found.entry(*relay).or_insert(*standby);
        }
        found
    }

    /// A relay is not heard, and a neighbour of it neither: the two may agree on ways by themselves.
    pub(crate) fn note_apart(&mut self) {
        let is_apart = |link: &&Link| link.ends.iter().all(|end| self.is_unheard(*end));
        let apart: Vec<RelayId> =
            self.links.values().filter(is_apart).flat_map(|link| link.ends).collect();
        self.apart.extend(apart);
    }

    /// The relays that are there and may be on ways of which they have not told yet. Those are not there to which no link
    /// is up, as far as is known.
    pub(crate) fn yet_to_say(&self) -> BTreeSet<RelayId> {
        let is_yet = |relay: &RelayId| self.apart.contains(relay) && self.is_unheard(*relay);
        let links = self.links.values().filter(|link| link.ends.iter().any(is_yet));
        let usable = links.filter(|link| self.is_usable(link.id));
        usable.flat_map(|link| link.ends).filter(is_yet).collect()
    }

    /// Whether any of these relays may be on a way of this comtree.
    pub(crate) fn may_have_ways(&self, comtree: Comtree, of: &BTreeSet<RelayId>) -> bool {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let is_alone = |shape: &&Shape| shape.core().len() == 1;
        !of.is_empty()
            && shape.filter(is_alone).is_some_and(|shape| of.iter().any(|of| shape.has(*of)))
    }

    /// Makes the ways that relays of a comtree have found its tree. Nobody notices: relays are told what they have. False if
    /// that is no tree of all relays, or does not fit.
    pub(crate) fn take_ways(&mut self, op: &mut Op, comtree: Comtree) -> bool {
        let Some(running) = self.comtrees.get(&comtree) else { return false };
        let (before, is_calm) =
            (running.picture(), running.moving.is_none() && running.undone.is_none());
        let hops = self.detoured(comtree).filter(|hops| is_calm && self.is_sound(hops));
        let Some(hops) = hops else { return false };
        let is_all = running.shape.as_ref().is_some_and(|shape| {
            shape
                .relays()
                .all(|relay| !self.is_running(relay) || hops.iter().any(|hop| hop.relay == relay))
        });
        if !is_all {
            return false;
        }
        let Ok(new) = self.fit(comtree, &hops, |_, load| load, Spare::Newcomers) else {
            return false;
        };
        let why = "its relays have found these ways while the controller was away".to_owned();
        let Some(running) = self.comtrees.get_mut(&comtree) else { return false };
        running.shape = new;
        running.why.clone_from(&why);
        (running.kept, running.broken, running.rests_since) = (None, None, None);
        // They rank by the tree. Others are chosen once all have it.
        running.standbys.clear();
        running.spares.clear();
        let after = running.picture();
        self.save_comtree(op, comtree);
        self.take_on(op, comtree, before, &after);
        op.effects.push(Effect::Barrier(comtree));
        op.tell(Event::Reshaped { comtree, why });
        true
    }

    /// Has relays let go of the ways that they have found, before they are told of others.
    pub(crate) fn end_ways(&mut self, op: &mut Op, comtree: Comtree, found: &Standbys) {
        for relay in found.keys() {
            let Some(running) = self.comtrees.get(&comtree) else { return };
            let mut branches = running.branches(*relay);
            branches.retain(|of| of.role != Role::Parent);
            let item = self.comtree_base(comtree, *relay, branches);
            op.effects.push(Effect::Comtree(comtree, *relay, item));
        }
        op.effects.push(Effect::Barrier(comtree));
    }

    /// Tells relays what they are to have.
    pub(crate) fn tell_all(&mut self, op: &mut Op, comtree: Comtree, relays: &Standbys) {
        for relay in relays.keys() {
            let item = self.comtree_item(comtree, *relay);
            op.effects.push(Effect::Comtree(comtree, *relay, item));
            self.ended_ways.insert((*relay, comtree));
        }
        self.ways.remove(&comtree);
    }
}
