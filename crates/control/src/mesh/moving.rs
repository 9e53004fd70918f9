//! Planned changes of a comtree whose core is a mesh (federated games §3.1, Forest §3.5), in which nothing is
//! lost: each relay changes its place by a step of its own, one after the other.
//!
//! ```text
//!  relays that are new come ─▶ who is to leave the core does ─▶ relays outside get other parents ─▶
//!  relays go that nobody needs ─▶ who is to join the core does
//!
//!   x ── a ─── b       x gets b for its parent, while a and b hear each other as before. Then
//!         ╲   ╱        nothing runs over a, and it goes. Last x joins the core, if it has a link
//!           c          with c.
//! ```
//!
//! One relay that is in both cores, the *pivot*, is the root all the while. If there is none, all but one leave the core; that one
//! hands over to its neighbour on the tree, and so on, until one of the other core has got it.

use crate::hops::{breadth_first, rooted_at, rooted_in};
use crate::model::{LinkId, PeerLink, RelayId, TreeHop};
use crate::shape::Shape;
use crate::steps::{Way, same_tree, swaps};
use std::collections::BTreeSet;

/// As many relays are tried as the pivot, since links around it need more.
const MOST_WAYS: usize = 4;

/// The ways from a meshed comtree to another tree and core, the best first. There is at least one.
///
/// # Errors
/// Why there is none.
pub(crate) fn ways_to(old: &Shape, end: &Shape) -> Result<Vec<Way>, String> {
    let kept = kept(old, end);
    let order = end.relays().filter(|relay| match kept.is_empty() {
        true => end.is_core(*relay),
        false => kept.contains(relay),
    });
    let pivots: Vec<RelayId> = order.take(MOST_WAYS).collect();
    pivots.into_iter().map(|pivot| way(old, end, &kept, pivot)).collect()
}

/// Relays that are in both cores and hear each other over the same links.
fn kept(old: &Shape, end: &Shape) -> BTreeSet<RelayId> {
    let mut kept = BTreeSet::new();
    for relay in end.relays().filter(|relay| end.is_core(*relay) && old.is_core(*relay)) {
        if kept.iter().all(|of| old.peer_link(relay, *of) == end.peer_link(relay, *of)) {
            kept.insert(relay);
        }
    }
    kept
}

/// The way on which this relay is the pivot.
fn way(old: &Shape, end: &Shape, kept: &BTreeSet<RelayId>, pivot: RelayId) -> Result<Way, String> {
    let mut walk = Walk { at: old.clone(), later: Vec::new() };
    walk.take_in(end, pivot)?;
    if kept.is_empty() {
        let up = walk.way_up(pivot);
        walk.shrink(end, &up.last().copied().into_iter().collect(), pivot)?;
        up.into_iter().rev().skip(1).try_for_each(|next| walk.hand_over(next))?;
    } else {
        let goes = old.core().into_iter().filter(|relay| !end.has(*relay));
        walk.shrink(end, &goes.chain(kept.iter().copied()).collect(), pivot)?;
    }
    walk.swap_parents(end, pivot)?;
    walk.let_go(end)?;
    walk.grow(end)?;
    debug_assert!(is_same(&walk.at, end), "{:?} is not {end:?}", walk.at);
    if walk.at.hops().first() != end.hops().first() {
        walk.later.push(end.clone());
    }
    Ok(Way { later: walk.later.into(), ends: Vec::new() })
}

/// Whether two shapes have the same tree and core, whichever relay of that is the root.
pub(crate) fn is_same(one: &Shape, other: &Shape) -> bool {
    let Some(root) = one.hops().first().filter(|hop| other.is_core(hop.relay)) else {
        return false;
    };
    let links = |shape: &Shape| -> BTreeSet<LinkId> {
        shape.mesh().iter().map(|peers| peers.link).collect()
    };
    let tree = rooted_in(other.hops(), other.mesh(), root.relay);
    one.core() == other.core() && links(one) == links(other) && same_tree(one.hops(), &tree)
}

/// A meshed comtree on its way, and what it has been.
struct Walk {
    at: Shape,
    later: Vec<Shape>,
}

impl Walk {
    fn pass(&mut self, next: Shape) {
        self.later.push(next.clone());
        self.at = next;
    }

    /// Takes another tree with the core that there is.
    fn pass_to(&mut self, hops: Vec<TreeHop>) -> Result<(), String> {
        let is_there = |end: &RelayId| hops.iter().any(|hop| hop.relay == *end);
        let mut mesh = self.at.mesh().to_vec();
        mesh.retain(|peers| peers.ends.iter().all(is_there));
        let next = Shape::meshed(hops, mesh, |relay| self.at.load(relay))?;
        self.pass(next);
        Ok(())
    }

    /// Relays that are new come, each below the one that it hangs on if a relay that both trees have is the root.
    fn take_in(&mut self, end: &Shape, pivot: RelayId) -> Result<(), String> {
        let mut common = [pivot].into_iter().chain(end.relays()).filter(|at| self.at.has(*at));
        let root = common.next().ok_or("it has no relay of the other tree")?;
        let mut hops = self.at.hops().to_vec();
        hops.extend(rooted_at(end.hops(), root).iter().filter(|hop| !self.at.has(hop.relay)));
        match hops.len() == self.at.hops().len() {
            true => Ok(()),
            false => self.pass_to(hops),
        }
    }

    /// A relay, those above it, and the one of the core on which they hang.
    fn way_up(&self, from: RelayId) -> Vec<RelayId> {
        let above = |at: &RelayId| {
            let is_outside = !self.at.is_core(*at);
            self.at.above(*at).filter(|_| is_outside).map(|(above, _)| above)
        };
        core::iter::successors(Some(from), above).collect()
    }

    /// Relays leave the core until these are left: each below the one where it is to hang, or else the pivot, if it can.
    fn shrink(
        &mut self,
        end: &Shape,
        to: &BTreeSet<RelayId>,
        pivot: RelayId,
    ) -> Result<(), String> {
        for relay in self.at.core().difference(to) {
            let is_left = |(above, link): &(RelayId, LinkId)| {
                to.contains(above) && self.at.peer_link(*relay, *above) == Some(*link)
            };
            let next = end.above(*relay).filter(is_left).map(|(above, _)| above);
            let pivot = to.contains(&pivot).then_some(pivot);
            let above =
                next.or(pivot).or(to.first().copied()).ok_or("nobody is left in its core")?;
            let next = self.at.without_peer(*relay, above);
            self.pass(next.ok_or("a relay cannot leave its core")?);
        }
        Ok(())
    }

    /// The one relay of the core hands over to a relay that hangs on it.
    fn hand_over(&mut self, relay: RelayId) -> Result<(), String> {
        let from = self.at.core();
        let with = self.at.with_peer(relay, &[]).ok_or("a relay cannot join its core")?;
        let next = from.first().and_then(|from| with.without_peer(*from, relay));
        self.pass(with);
        self.pass(next.ok_or("a relay cannot leave its core")?);
        Ok(())
    }

    /// Relays outside the core hang where they are to hang, and who is to join it on the pivot.
    fn swap_parents(&mut self, end: &Shape, pivot: RelayId) -> Result<(), String> {
        let now = rooted_in(self.at.hops(), self.at.mesh(), pivot);
        let next = rooted_in(end.hops(), end.mesh(), pivot);
        swaps(&now, &next).into_iter().try_for_each(|hops| self.pass_to(hops))
    }

    /// Relays go that the other tree has not.
    fn let_go(&mut self, end: &Shape) -> Result<(), String> {
        let mut hops = self.at.hops().to_vec();
        hops.retain(|hop| end.has(hop.relay));
        let joins = end.core().into_iter().any(|relay| !self.at.is_core(relay));
        match (hops.len() < self.at.hops().len(), joins) {
            (true, true) => self.pass_to(hops)?,
            (true, false) => self.pass(end.clone()),
            (false, _) => {}
        }
        Ok(())
    }

    /// Relays join the core until that is the other one.
    fn grow(&mut self, end: &Shape) -> Result<(), String> {
        for relay in breadth_first(end.hops()).into_iter().map(|hop| hop.relay) {
            if end.is_core(relay) && !self.at.is_core(relay) {
                let next = self.at.with_peer(relay, end.mesh());
                self.pass(next.ok_or("a relay cannot join its core")?);
            }
        }
        Ok(())
    }
}

impl Shape {
    /// The link over which two core peers hear each other.
    fn peer_link(&self, one: RelayId, other: RelayId) -> Option<LinkId> {
        let is_theirs = |peers: &&PeerLink| peers.other(one) == Some(other);
        self.mesh().iter().find(is_theirs).map(|peers| peers.link)
    }
}
