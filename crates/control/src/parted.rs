//! Comtrees whose relays with members no tree joins, as links or relays have failed: they are in several
//! *parts*. Each part is repaired over what can be used in it. Where nothing joins two parts, the tree leads over
//! links of the one before that carry nothing now: so it is one tree, for which all is reserved, and which is whole
//! as soon as they can be used again.

use crate::model::{LinkId, RelayId, TreeHop};
use crate::op::{Event, Op};
use crate::repair::{Aim, Leaves, Top};
use crate::state::State;
use canopy_wire::Comtree;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How many relays are named that are cut off.
const MOST_NAMED: usize = 8;

/// The relays of a part that have members, and how many members these are.
struct Part {
    /// The relay that all others hang on.
    top: RelayId,
    relays: Vec<RelayId>,
    members: u32,
}

impl State {
    /// Gives a comtree for which there is no whole tree one that joins who can be joined: what relays make by
    /// themselves, or a tree that joins more than that. What is left of the tree in force stays otherwise.
    pub(crate) fn repair_parts(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        detoured: Option<Vec<TreeHop>>,
        reason: &str,
    ) {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let is_meshed = shape.is_some_and(|shape| !shape.mesh().is_empty());
        let hops = self.hops_of(comtree);
        let before = detoured.as_deref().unwrap_or(&hops);
        for top in [Top::Stays, Top::Any] {
            for hops in self.patched(comtree, before, top) {
                if self.take_tree(op, comtree, hops, reason).is_ok() {
                    return;
                }
            }
        }
        // Relays of a mesh may have lost each other, and no parent.
        if detoured.is_some() || is_meshed {
            _ = self.take_tree(op, comtree, detoured.unwrap_or(hops), reason);
        }
    }

    /// Trees in fewer parts than another one, those in the fewest first; of two that are alike, the one without links that
    /// have just been made.
    fn patched(&self, comtree: Comtree, before: &[TreeHop], top: Top) -> Vec<Vec<TreeHop>> {
        let count = |hops: &Vec<TreeHop>| self.parts(comtree, hops).len();
        let choose = |leaves| self.choose_tree(comtree, Aim::Patch(top), leaves, None).ok();
        let unheard = self.has_unheard_links().then_some(Leaves::Unheard);
        let trees = unheard.into_iter().chain([Leaves::None]).filter_map(choose);
        let most = self.parts(comtree, before).len();
        let mut trees: Vec<_> =
            trees.map(|(hops, _)| hops).filter(|hops| count(hops) < most).collect();
        trees.sort_by_key(count);
        trees
    }

    /// The parts of a tree in which there are members.
    fn parts(&self, comtree: Comtree, hops: &[TreeHop]) -> Vec<Part> {
        let running = self.comtrees.get(&comtree);
        let Some(shape) = running.and_then(|running| running.shape.as_ref()) else {
            return Vec::new();
        };
        // By relay: the highest one of its part.
        let mut tops: BTreeMap<RelayId, RelayId> = BTreeMap::new();
        let mut parts: BTreeMap<RelayId, Part> = BTreeMap::new();
        for hop in hops {
            let above = hop.above.filter(|(_, link)| self.is_usable(*link));
            let top = above.and_then(|(above, _)| tops.get(&above)).copied().unwrap_or(hop.relay);
            tops.insert(hop.relay, top);
            let (members, _) = shape.load(hop.relay);
            if members > 0 {
                let empty = Part { top, relays: Vec::new(), members: 0 };
                let part = parts.entry(top).or_insert(empty);
                part.relays.push(hop.relay);
                part.members += members;
            }
        }
        parts.into_values().collect()
    }

    /// The relay on which the part with the most members of the tree in force hangs, of those whose can be used.
    pub(crate) fn top_of_largest_part(&self, comtree: Comtree) -> Option<RelayId> {
        let hops = self.hops_of(comtree);
        let root = hops.first().map(|hop| hop.relay);
        let parts = self.parts(comtree, &hops);
        let can_be_used = parts.iter().filter(|part| self.is_running(part.top));
        let size = |part: &&Part| (part.members, Some(part.top) == root, Reverse(part.top));
        can_be_used.max_by_key(size).map(|part| part.top)
    }

    /// The relays with members that are not in the part with the most, in words; nothing if all are together.
    fn cut_off(&self, comtree: Comtree) -> Option<String> {
        let mut parts = self.parts(comtree, &self.hops_of(comtree));
        parts.sort_by_key(|part| Reverse(part.members));
        let cut_off: BTreeSet<RelayId> =
            parts.iter().skip(1).flat_map(|part| part.relays.iter().copied()).collect();
        let names: Vec<String> =
            cut_off.iter().take(MOST_NAMED).map(|relay| self.relay_name(*relay)).collect();
        let names = names.join(", ");
        match (cut_off.len(), cut_off.len().saturating_sub(MOST_NAMED)) {
            (0, _) => None,
            (1, _) => Some(format!("{names} is cut off from the others")),
            (_, 0) => Some(format!("{names} are cut off from the others")),
            (_, more) => Some(format!("{names} and {more} more are cut off from the others")),
        }
    }

    /// Says what a comtree lacks for which no whole tree was found, and why.
    pub(crate) fn say_broken(&mut self, op: &mut Op, comtree: Comtree, why: String) {
        let why = self.cut_off(comtree).unwrap_or(why);
        if let Some(running) = self.comtrees.get_mut(&comtree)
            && running.broken.as_ref() != Some(&why)
        {
            running.broken = Some(why.clone());
            op.tell(Event::Broken { comtree, why });
        }
    }

    /// A tree that lacked something is whole again: nothing of it changes. Returns whether that is so.
    pub(crate) fn is_joined_again(&mut self, op: &mut Op, comtree: Comtree) -> bool {
        let running = self.comtrees.get(&comtree);
        let shape = running.and_then(|running| running.shape.as_ref());
        if !shape.is_some_and(|shape| self.is_whole(shape)) {
            return false;
        }
        let Some(running) = self.comtrees.get_mut(&comtree) else { return false };
        if running.broken.take().is_some() {
            let why = "what had failed is there again".to_owned();
            running.why.clone_from(&why);
            op.tell(Event::Reshaped { comtree, why });
        }
        true
    }

    /// The links of a comtree in parts that are down; nothing if it is not in parts, or lacks a relay.
    pub(crate) fn dead_links(&self, comtree: Comtree) -> Option<impl Iterator<Item = LinkId>> {
        let running = self.comtrees.get(&comtree).filter(|running| running.broken.is_some())?;
        let shape = running.shape.as_ref()?;
        let are_there = shape.relays().all(|relay| self.is_running(relay));
        are_there.then(|| shape.links().filter(|link| !self.is_usable(*link)))
    }

    /// How long a link is for [`Aim::Patch`] that carries nothing: longer than any way over others. Between relays
    /// that are lost it is the shorter of two such links. They may have branches over it still, and be told of
    /// nothing, so the tree goes on over it before it leads around.
    pub(crate) fn length_of_dead(&self, link: LinkId) -> f64 {
        let ends = self.links.get(&link).map(|link| link.ends);
        let are_lost = ends.is_some_and(|ends| ends.iter().all(|end| !self.is_running(*end)));
        if are_lost { DEAD / 2.0 } else { DEAD }
    }
}

/// The longest that `plan` takes, kilometres.
const DEAD: f64 = 1e9;
