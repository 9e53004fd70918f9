//! What differs where the core is a mesh (federated games §3.1): its relays send to each other
//! directly, and over each link goes what is sent on the sides of both.
//!
//! ```text
//!   c ── a ─── root      a, b and the root are the mesh: a and b hang on the root in the tree,
//!         ╲   ╱          and a ─ b is a chord. What c sends goes from a to the root, and from a to b.
//!          ╲ ╱
//!           b
//! ```

use super::{Load, Shape};
use crate::hops::rooted_in;
use crate::ledger::Flow;
use crate::model::{LinkId, PeerLink, RelayId, TreeHop};
use canopy_plan::{Capacity, Limits, Rate};
use std::collections::BTreeSet;

impl Shape {
    /// The shape of a tree whose core is a mesh of these links. Its root is in the mesh, and every other
    /// relay of the mesh hangs on the root by their link. A mesh without links is the root alone.
    ///
    /// # Errors
    /// Why it is no tree with such a core.
    pub(crate) fn meshed(
        hops: Vec<TreeHop>,
        mesh: Vec<PeerLink>,
        load: impl Fn(RelayId) -> Load,
    ) -> Result<Shape, String> {
        let root = hops.first().map(|hop| hop.relay).ok_or("it has no relay")?;
        let mut core: BTreeSet<RelayId> = mesh.iter().flat_map(|peers| peers.ends).collect();
        core.insert(root);
        let pair =
            |PeerLink { ends: [one, other], .. }: &PeerLink| [*one.min(other), *one.max(other)];
        let pairs: BTreeSet<[RelayId; 2]> = mesh.iter().map(pair).collect();
        if pairs.len() < mesh.len() || pairs.len() * 2 != core.len() * (core.len() - 1) {
            return Err("its mesh has not one link for each two relays".to_owned());
        }
        let hangs = |hop: &&TreeHop| {
            hop.relay == root || {
                let link = hop.above.filter(|(above, _)| *above == root).map(|(_, link)| link);
                mesh.iter().any(|of| of.other(hop.relay) == Some(root) && Some(of.link) == link)
            }
        };
        if hops.iter().filter(|hop| core.contains(&hop.relay)).filter(hangs).count() < core.len() {
            return Err("a relay of its mesh does not hang on the root".to_owned());
        }
        let mut shape = Shape::with_core(hops, &core, load)?;
        shape.mesh = mesh;
        shape.reserved = (0..shape.hops.len()).map(|node| shape.capacity(node)).collect();
        Ok(shape)
    }

    /// What the link above a node needs.
    pub(super) fn capacity(&self, node: usize) -> Capacity {
        match self.above[node] {
            Some(above) if !self.mesh.is_empty() && self.core[node] => Capacity {
                up: self.provisioning.sent_into_mesh(node),
                down: self.provisioning.sent_into_mesh(above),
            },
            _ => self.provisioning.capacity(node),
        }
    }

    /// The links of its meshed core, one for each two relays; nothing if it is none.
    pub(crate) fn mesh(&self) -> &[PeerLink] {
        &self.mesh
    }

    /// The links of its mesh that are not links of the tree, each with its relays' nodes.
    pub(super) fn chords(&self) -> impl Iterator<Item = (&PeerLink, [usize; 2])> {
        let node = |relay: &RelayId| self.nodes.get(relay).copied();
        let chord = move |peers: &PeerLink| {
            let [one, other] = [node(&peers.ends[0])?, node(&peers.ends[1])?];
            (self.above[one].is_some() && self.above[other].is_some()).then_some([one, other])
        };
        self.mesh.iter().filter_map(move |peers| Some((peers, chord(peers)?)))
    }

    /// The links of a relay's other core peers than the one above or the root's below, each with that peer and
    /// what is reserved towards it and from it.
    pub(crate) fn peers(&self, relay: RelayId) -> Vec<(RelayId, LinkId, Capacity)> {
        let Some(node) = self.nodes.get(&relay).copied() else { return Vec::new() };
        let sent = |node| self.provisioning.sent_into_mesh(node);
        let of = |(peers, ends): (&PeerLink, [usize; 2])| {
            let other = ends.into_iter().find(|of| *of != node)?;
            let capacity = Capacity { up: sent(node), down: sent(other) };
            Some((peers.other(relay)?, peers.link, capacity))
        };
        self.chords().filter_map(of).collect()
    }

    /// What a relay of the core sends to each other one.
    pub(crate) fn sent_into_mesh(&self, relay: RelayId) -> Rate {
        self.nodes.get(&relay).map_or(Rate::ZERO, |node| self.provisioning.sent_into_mesh(*node))
    }

    /// The node of the core on whose side a node is.
    fn side_of(&self, node: usize) -> usize {
        let above = |node: &usize| self.above[*node];
        let mut way = core::iter::successors(Some(node), above);
        way.find(|node| self.core[*node]).unwrap_or(node)
    }

    /// Changes the limits at a node. Returns the nodes whose links to those above need something else; what is
    /// to be booked on chords, and whose branches those are, is added.
    pub(super) fn set_limits(
        &mut self,
        node: usize,
        limits: Limits,
        flows: &mut Vec<Flow>,
        relays: &mut Vec<RelayId>,
    ) -> Vec<usize> {
        if self.mesh.is_empty() {
            return self.provisioning.set_limits(node, limits).to_vec();
        }
        let side = self.side_of(node);
        let sent = self.provisioning.sent_into_mesh(side);
        let mut changed = self.provisioning.set_limits(node, limits).to_vec();
        changed.retain(|node| !self.core[*node]);
        let hangs = |node: &usize| *node == side || self.above[*node] == Some(side);
        changed.extend((0..self.hops.len()).filter(|node| self.core[*node] && hangs(node)));
        let more = self.provisioning.sent_into_mesh(side) - sent;
        let from = self.hops[side].relay;
        for (to, link, _) in if more == Rate::ZERO { Vec::new() } else { self.peers(from) } {
            relays.extend([from, to]);
            flows.push(Flow::Over(link, from, to, more));
        }
        changed
    }

    /// The hops of its tree; with another root of the mesh if this one has no members, and nobody outside
    /// the core hangs on it.
    pub(super) fn without_idle_root(&self) -> Vec<TreeHop> {
        let Some(root) = self.hops.first().map(|hop| hop.relay) else { return Vec::new() };
        let is_next = |hop: &&TreeHop| hop.relay != root && self.is_core(hop.relay);
        let has_outside = |hop: &TreeHop| {
            hop.above.is_some_and(|(above, _)| above == root) && !self.is_core(hop.relay)
        };
        let next = self.hops.iter().find(is_next).filter(|_| !self.mesh.is_empty());
        match next {
            Some(next) if self.load(root).0 == 0 && !self.hops.iter().any(has_outside) => {
                rooted_in(&self.hops, &self.mesh, next.relay)
            }
            _ => self.hops.clone(),
        }
    }

    pub(crate) fn is_core(&self, relay: RelayId) -> bool {
        self.nodes.get(&relay).is_some_and(|node| self.core[*node])
    }
}
