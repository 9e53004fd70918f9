//! Which tree and core a meshed comtree may move to (federated games §3.1): the tree is chosen as for one relay in the
//! core, and then the largest cores that relays of it can have. Of these the least costly is the best.

use super::{Choice, Joined};
use crate::hops::rooted_in;
use crate::model::{PeerLink, RelayId, TreeAsk, TreeHop};
use crate::shape::Shape;
use crate::state::State;
use crate::steps::same_tree;
use canopy_wire::Comtree;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// No more cores of a tree are looked at.
const MOST_CORES: usize = 32;

/// What a core is looked for on.
struct Ground<'a> {
    old: &'a Shape,
    joined: Joined,
    /// The relay that is to be the root.
    root: Option<RelayId>,
}

impl State {
    /// What a meshed comtree may move to that is to have this tree, each with what it costs. The largest cores come first, and
    /// of these the least costly.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn meshed_targets(
        &self,
        comtree: Comtree,
        old: &Shape,
        tree: &[TreeHop],
        ask: TreeAsk,
    ) -> Result<Vec<(Shape, f64)>, String> {
        let joined = self.joined_by(comtree, tree, |link| !self.is_being_removed(link));
        let mut proposed = joined.clone();
        proposed.retain(|_, link| !self.is_surplus(*link));
        let mut grounds = vec![Ground { old, joined, root: ask.root }];
        if proposed != grounds[0].joined {
            grounds.push(Ground { old, joined: proposed, root: ask.root });
        }
        let mut shapes: Vec<Shape> = grounds.iter().flat_map(|of| of.shapes(tree)).collect();
        if let Some(root) = ask.root {
            let largest = shapes.iter().map(|shape| shape.core().len()).max().unwrap_or_default();
            let is_it = |shape: &Shape| shape.hops().first().map(|hop| hop.relay) == Some(root);
            let others: Vec<Shape> = shapes.extract_if(.., |shape| !is_it(shape)).collect();
            let is_large = |shape: &Shape| shape.core().len() >= largest;
            if !shapes.iter().any(is_large) {
                return Err(self.no_root(root, old, &others));
            }
        }
        let cost = |shape: Shape| (self.cost_of_shape(&shape), shape);
        let mut targets: Vec<(f64, Shape)> = shapes.into_iter().map(cost).collect();
        let key = |of: &(f64, Shape)| Reverse(of.1.core().len());
        targets.sort_by(|one, other| key(one).cmp(&key(other)).then(one.0.total_cmp(&other.0)));
        if targets.is_empty() {
            return Err("no core was found for its best tree".to_owned());
        }
        Ok(targets.into_iter().map(|(cost, shape)| (shape, cost)).collect())
    }

    /// Why a relay cannot be the root of a meshed comtree, for which there are other trees.
    fn no_root(&self, root: RelayId, old: &Shape, others: &[Shape]) -> String {
        let name = self.relay_name(root);
        if old.load(root).0 == 0 && others.iter().all(|shape| !shape.has(root)) {
            return format!("{name} has no members, and no relay hangs on it, so it is no root");
        }
        let largest = others.iter().map(|shape| shape.core().len()).max().unwrap_or_default();
        let large = others.iter().filter(|shape| shape.core().len() == largest);
        let may_be: BTreeSet<RelayId> = large.flat_map(Shape::core).collect();
        let names: Vec<String> = may_be.into_iter().map(|of| self.relay_name(of)).collect();
        format!(
            "{name} can be in no meshed core of {largest} relays, and the root is in the largest; it may be any of {}",
            names.join(", ")
        )
    }
}

impl Ground<'_> {
    /// What a tree can be with the core that there is, as far as it has that, and with its largest cores.
    fn shapes(&self, tree: &[TreeHop]) -> Vec<Shape> {
        let mut before = self.old.core();
        before.retain(|relay| tree.iter().any(|hop| hop.relay == *relay));
        let others = self.cores(tree, &before).into_iter().map(|core| (core, true));
        let all = [(before.clone(), false)].into_iter().chain(others);
        all.filter_map(|(core, grows)| self.settle(tree, core, grows)).collect()
    }

    /// The largest cores of a tree, with the root if there is to be one.
    fn cores(&self, tree: &[TreeHop], before: &BTreeSet<RelayId>) -> Vec<BTreeSet<RelayId>> {
        let none = BTreeSet::new();
        let choice = Choice { joined: &self.joined, before, out: &none, kept: &none };
        let mut cores = choice.cores(tree, self.root);
        cores.extend(self.root.into_iter().flat_map(|_| choice.cores(tree, None)));
        cores
    }

    /// The tree with this core, without relays that nobody needs then; others may join the core for those.
    fn settle(&self, tree: &[TreeHop], mut core: BTreeSet<RelayId>, grows: bool) -> Option<Shape> {
        let mut hops = tree.to_vec();
        loop {
            let order = self.root.into_iter().chain(self.old.relays());
            let mut order = order.chain(hops.iter().map(|hop| hop.relay));
            let root = order.find(|relay| core.contains(relay))?;
            let mesh = self.mesh(&core)?;
            let shape = Shape::meshed(rooted_in(&hops, &mesh, root), mesh, |at| self.old.load(at));
            let shape = shape.ok()?;
            let pruned = if shape.has_idle_end() { shape.pruned() } else { Vec::new() };
            if pruned.is_empty() || same_tree(&pruned, shape.hops()) {
                return Some(shape);
            }
            core.retain(|relay| pruned.iter().any(|hop| hop.relay == *relay));
            let root = self.root.filter(|root| core.contains(root));
            let none = BTreeSet::new();
            let choice = Choice { joined: &self.joined, before: &core, out: &none, kept: &none };
            let larger = choice.cores(&pruned, root).into_iter();
            let larger = larger.filter(|of| grows && of.len() > core.len());
            let next = larger.max_by_key(|of| of.intersection(&core).count());
            (hops, core) = (pruned, next.unwrap_or(core));
        }
    }

    /// A link for each two of a core; those that it has already come first.
    fn mesh(&self, core: &BTreeSet<RelayId>) -> Option<Vec<PeerLink>> {
        let is_its = |ends: &[RelayId; 2]| ends.iter().all(|end| core.contains(end));
        let has = |of: &PeerLink| self.joined.get(&(of.ends[0], of.ends[1])) == Some(&of.link);
        let old = self.old.mesh().iter().filter(|of| is_its(&of.ends) && has(of));
        let mut mesh: Vec<PeerLink> = old.copied().collect();
        for one in core {
            for other in core.range(*one..).skip(1) {
                if !mesh.iter().any(|of| of.other(*one) == Some(*other)) {
                    let link = *self.joined.get(&(*one, *other))?;
                    mesh.push(PeerLink { ends: [*one, *other], link });
                }
            }
        }
        Some(mesh)
    }
}

impl Choice<'_> {
    /// The largest cores that a tree can have, as far as they are found; with this relay, if one is given.
    fn cores(&self, hops: &[TreeHop], with: Option<RelayId>) -> Vec<BTreeSet<RelayId>> {
        let order = self.order(hops);
        let first = order.iter().filter(|relay| with.is_none_or(|with| with == **relay));
        let core = |first: &RelayId| self.core_from(hops, *first, &order).into_iter().collect();
        let cores: BTreeSet<BTreeSet<RelayId>> = first.map(core).collect();
        let largest = cores.iter().map(BTreeSet::len).max().unwrap_or_default();
        cores.into_iter().filter(|core| core.len() == largest).take(MOST_CORES).collect()
    }
}
