//! A comtree's tree over relays, and what is reserved for it on each link (Forest §3.4.2).
//!
//! `plan` provisions; this says which of its nodes is which relay.

mod meshed;

use crate::ledger::Flow;
use crate::model::{Core, LinkId, PeerLink, RelayId, TreeHop};
use crate::signal::{Branch, Role};
use canopy_plan::{Capacity, CoreRule, Limits, Provisioning, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// A tree with its reservations. It has at least one relay.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// By node.
    hops: Vec<TreeHop>,
    /// By node: the node above.
    above: Vec<Option<usize>>,
    nodes: BTreeMap<RelayId, usize>,
    core: Vec<bool>,
    provisioning: Provisioning,
    /// By node: what is reserved on the link above.
    reserved: Vec<Capacity>,
    /// By node: how many members.
    members: Vec<u32>,
    /// The links of a meshed core, one for each two relays.
    mesh: Vec<PeerLink>,
}

/// A relay's members on a comtree: how many, and the sums of their limits.
pub(crate) type Load = (u32, Limits);

impl Core {
    /// The rule for the core of a tree.
    pub(crate) fn rule(&self) -> CoreRule {
        match self {
            // A mesh is formed of what a tree has besides: see `mesh`.
            Core::Center | Core::Mesh => CoreRule::Center,
            Core::CenterAndNeighbours => CoreRule::CenterAndNeighbours,
            Core::All => CoreRule::All,
        }
    }
}

impl Shape {
    /// The shape of a tree with these members.
    ///
    /// # Errors
    /// Why it is no tree.
    pub(crate) fn new(
        hops: Vec<TreeHop>,
        core: &Core,
        load: impl Fn(RelayId) -> Load,
    ) -> Result<Shape, String> {
        Shape::build(hops, |tree, _| core.rule().on(tree), load)
    }

    /// The shape of a tree with these members, whose core is on its way to what the rule says. The core
    /// has the root, and is connected.
    ///
    /// # Errors
    /// Why it is no tree.
    pub(crate) fn with_core(
        hops: Vec<TreeHop>,
        core: &BTreeSet<RelayId>,
        load: impl Fn(RelayId) -> Load,
    ) -> Result<Shape, String> {
        let is_core =
            |_: &Tree, hops: &[TreeHop]| hops.iter().map(|hop| core.contains(&hop.relay)).collect();
        Shape::build(hops, is_core, load)
    }

    fn build(
        hops: Vec<TreeHop>,
        core: impl FnOnce(&Tree, &[TreeHop]) -> Vec<bool>,
        load: impl Fn(RelayId) -> Load,
    ) -> Result<Shape, String> {
        let nodes: BTreeMap<RelayId, usize> =
            hops.iter().enumerate().map(|(node, hop)| (hop.relay, node)).collect();
        if nodes.len() < hops.len() {
            return Err("a relay is in the tree twice".to_owned());
        }
        let node_above = |hop: &TreeHop| match hop.above {
            None => Ok(None),
            Some((above, _)) => {
                nodes.get(&above).copied().map(Some).ok_or("a relay hangs on nothing")
            }
        };
        let above: Vec<Option<usize>> = hops.iter().map(node_above).collect::<Result<_, _>>()?;
        let tree = Tree::from_parents(&above)?;
        let is_core = core(&tree, &hops);
        let loads: Vec<Load> = hops.iter().map(|hop| load(hop.relay)).collect();
        let limits = loads.iter().map(|(_, limits)| *limits).collect();
        let provisioning = Provisioning::new(tree, limits, is_core.clone());
        let reserved = (0..hops.len()).map(|node| provisioning.capacity(node)).collect();
        let members = loads.iter().map(|(members, _)| *members).collect();
        let mesh = Vec::new();
        Ok(Shape { hops, above, nodes, core: is_core, provisioning, reserved, members, mesh })
    }

    /// The tree as it is stored.
    pub(crate) fn hops(&self) -> &[TreeHop] {
        &self.hops
    }

    /// Each relay, whether it is in the core, and what is reserved on the link above it.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (TreeHop, bool, Capacity)> + '_ {
        let parts = self.hops.iter().zip(&self.core).zip(&self.reserved);
        parts.map(|((hop, core), reserved)| (*hop, *core, *reserved))
    }

    /// The relays of its core.
    pub(crate) fn core(&self) -> BTreeSet<RelayId> {
        self.parts().filter(|(_, is_core, _)| *is_core).map(|(hop, ..)| hop.relay).collect()
    }

    /// How a relay hangs on the one above.
    pub(crate) fn above(&self, relay: RelayId) -> Option<(RelayId, LinkId)> {
        self.nodes.get(&relay).and_then(|node| self.hops[*node].above)
    }

    /// The relays of the tree.
    pub(crate) fn relays(&self) -> impl Iterator<Item = RelayId> + '_ {
        self.hops.iter().map(|hop| hop.relay)
    }

    /// The links of the tree, and of its mesh.
    pub(crate) fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        let tree = self.hops.iter().filter_map(|hop| hop.above.map(|(_, link)| link));
        tree.chain(self.chords().map(|(peers, _)| peers.link))
    }

    pub(crate) fn has(&self, relay: RelayId) -> bool {
        self.nodes.contains_key(&relay)
    }

    /// What a relay's members are together.
    pub(crate) fn load(&self, relay: RelayId) -> Load {
        self.nodes.get(&relay).map_or((0, Limits::default()), |node| {
            (self.members[*node], self.provisioning.limits(*node))
        })
    }

    /// How many members there are on the comtree.
    pub(crate) fn all_members(&self) -> u32 {
        self.members.iter().sum()
    }

    /// What is reserved between a relay and the one above.
    pub(crate) fn reserved(&self, relay: RelayId) -> Capacity {
        self.nodes.get(&relay).map_or_else(Capacity::default, |node| self.reserved[*node])
    }

    /// All that is reserved for the comtree.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let mut flows = Vec::new();
        for (node, hop) in self.hops.iter().enumerate() {
            let limits = self.provisioning.limits(node);
            flows.push(Flow::Comtrees(hop.relay, 1.0));
            flows.push(Flow::Up(hop.relay, limits.send));
            flows.push(Flow::Down(hop.relay, limits.receive));
            if let Some((above, link)) = hop.above {
                let Capacity { up, down } = self.reserved[node];
                flows.push(Flow::Over(link, hop.relay, above, up));
                flows.push(Flow::Over(link, above, hop.relay, down));
            }
        }
        for (PeerLink { ends, link }, nodes) in self.chords() {
            for (from, to, node) in [(ends[0], ends[1], nodes[0]), (ends[1], ends[0], nodes[1])] {
                flows.push(Flow::Over(*link, from, to, self.provisioning.sent_into_mesh(node)));
            }
        }
        flows
    }

    /// What links of both trees need while the next takes this one's place. A link between core peers needs no more
    /// than on one of them.
    pub(crate) fn flows_between(&self, next: &Shape) -> Vec<Flow> {
        let mut flows = Vec::new();
        for (node, hop) in self.hops.iter().enumerate() {
            let Some((above, link)) = hop.above else { continue };
            let is_peer = |of: &Shape| of.mesh.iter().any(|peers| peers.link == link);
            let same = next.nodes.get(&hop.relay).filter(|of| next.hops[**of].above == hop.above);
            if let Some(of) = same
                && !is_peer(self)
                && !is_peer(next)
            {
                let capacity = self.provisioning.capacity_between(node, &next.provisioning, *of);
                flows.push(Flow::Over(link, hop.relay, above, capacity.up));
                flows.push(Flow::Over(link, above, hop.relay, capacity.down));
            }
        }
        flows
    }

    /// Changes a relay's members. Returns what is to be booked for it, and the relays one of whose
    /// branches needs more or less than before. The relay must be in the tree.
    pub(crate) fn change(&mut self, relay: RelayId, load: Load) -> (Vec<Flow>, Vec<RelayId>) {
        let Some(node) = self.nodes.get(&relay).copied() else { return Default::default() };
        let before = self.provisioning.limits(node);
        let limits = load.1.whole();
        let mut flows = vec![
            Flow::Up(relay, limits.send - before.send),
            Flow::Down(relay, limits.receive - before.receive),
        ];
        self.members[node] = load.0;
        let mut relays = Vec::new();
        for changed in self.set_limits(node, limits, &mut flows, &mut relays) {
            let now = self.capacity(changed);
            let was = std::mem::replace(&mut self.reserved[changed], now);
            let TreeHop { relay: below, above: Some((above, link)) } = self.hops[changed] else {
                continue;
            };
            // One end sends so much more, and the other takes it.
            if now != was {
                relays.extend([below, above]);
            }
            if now.up != was.up {
                flows.push(Flow::Over(link, below, above, now.up - was.up));
            }
            if now.down != was.down {
                flows.push(Flow::Over(link, above, below, now.down - was.down));
            }
        }
        relays.sort_unstable();
        relays.dedup();
        (flows, relays)
    }

    /// The tree without relays at its ends that have no members, or nothing if none has any; and
    /// without a root that has none and one neighbour left.
    pub(crate) fn pruned(&self) -> Vec<TreeHop> {
        if self.all_members() == 0 {
            return Vec::new();
        }
        let hops = self.without_idle_root();
        let node = |relay: RelayId| hops.iter().position(|hop| hop.relay == relay);
        let above: Vec<Option<usize>> =
            hops.iter().map(|hop| hop.above.and_then(|(above, _)| node(above))).collect();
        let Ok(tree) = Tree::from_parents(&above) else { return hops };
        let keep: Vec<bool> = hops.iter().map(|hop| self.load(hop.relay).0 > 0).collect();
        let pruned = tree.pruned(&keep);
        let hop = |node: &usize| {
            let above = pruned.hop(*node).and(hops[*node].above);
            TreeHop { relay: hops[*node].relay, above }
        };
        pruned.order().iter().map(hop).collect()
    }

    /// Whether a relay could be left out.
    pub(crate) fn has_idle_end(&self) -> bool {
        // Whoever is in a mesh has all of it for one neighbour.
        let is_meshed = |node: usize| !self.mesh.is_empty() && self.core[node];
        let mut neighbours: Vec<u32> =
            (0..self.hops.len()).map(|node| u32::from(is_meshed(node))).collect();
        for (node, above) in self.above.iter().enumerate() {
            if let Some(above) = above.filter(|_| !is_meshed(node)) {
                neighbours[node] += 1;
                neighbours[above] += 1;
            }
        }
        neighbours
            .iter()
            .zip(&self.members)
            .any(|(neighbours, members)| *neighbours <= 1 && *members == 0)
    }

    /// The branches of a relay: what each neighbour is to it, and what is reserved towards it.
    pub(crate) fn branches(&self, relay: RelayId) -> Vec<Branch> {
        let Some(node) = self.nodes.get(&relay).copied() else { return Vec::new() };
        let mut branches = Vec::new();
        if let Some((above, link)) = self.hops[node].above {
            let role = self.role(node, self.above[node].unwrap_or(node));
            let Capacity { up, down } = self.reserved[node];
            branches.push(Branch { link, site: above.0, role, send: up, receive: down });
        }
        for (below, hop) in self.hops.iter().enumerate() {
            if self.above[below] == Some(node)
                && let Some((_, link)) = hop.above
            {
                let Capacity { up, down } = self.reserved[below];
                let role = self.role(node, below);
                branches.push(Branch { link, site: hop.relay.0, role, send: down, receive: up });
            }
        }
        branches.extend(self.peers(relay).into_iter().map(|(peer, link, capacity)| {
            let Capacity { up, down } = capacity;
            Branch { link, site: peer.0, role: Role::CorePeer, send: up, receive: down }
        }));
        branches.sort_by_key(|branch| branch.link);
        branches
    }

    /// What a neighbour is to a node. The root is always in the core, so the way to the core leads
    /// up.
    fn role(&self, node: usize, neighbour: usize) -> Role {
        if self.core[node] && self.core[neighbour] {
            if self.mesh.is_empty() { Role::Core } else { Role::CorePeer }
        } else if self.above[node] == Some(neighbour) {
            Role::Parent
        } else {
            Role::Child
        }
    }
}
