//! The core of a comtree: the subtree of its nodes that gets a copy of every multicast packet
//! (Forest §3.3).

use crate::demand::Demand;
use crate::tree::Tree;

/// Which nodes of a comtree are its core.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreRule {
    /// None: provisioning is min{α, ω} everywhere.
    None,
    /// The root alone.
    Center,
    /// The root and its neighbours in the tree.
    CenterAndNeighbours,
    /// Every node.
    All,
    /// These, and what lies between them.
    Nodes(Vec<usize>),
    /// The smallest core that no endpoint is further from than this.
    Within(Reach),
}

/// How far an endpoint may be from the nearest core node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Links.
    pub hops: u32,
    /// Kilometres; infinite for no limit.
    pub length: f64,
}

impl CoreRule {
    /// The nodes that the rule names itself.
    pub(crate) fn nodes(&self) -> &[usize] {
        if let CoreRule::Nodes(nodes) = self { nodes } else { &[] }
    }

    /// Whether the core depends on where the root is.
    pub(crate) fn follows_root(&self) -> bool {
        matches!(self, CoreRule::Center | CoreRule::CenterAndNeighbours)
    }

    /// The core of this tree, by node.
    pub(crate) fn of(&self, demand: &Demand<'_>, tree: &Tree) -> Vec<bool> {
        let mut core = vec![false; tree.numbers()];
        match self {
            CoreRule::None => {}
            CoreRule::Center => core[tree.root()] = true,
            CoreRule::CenterAndNeighbours => {
                core[tree.root()] = true;
                let near = tree.hops().filter(|hop| hop.above == tree.root());
                near.for_each(|hop| core[hop.below] = true);
            }
            CoreRule::All => tree.order().iter().for_each(|node| core[*node] = true),
            CoreRule::Nodes(nodes) => {
                nodes.iter().for_each(|node| core[*node] = true);
                let between = tree.pruned(&core);
                between.order().iter().for_each(|node| core[*node] = true);
            }
            CoreRule::Within(reach) => {
                let least = tree.order().iter().map(|root| within(demand, tree, *root, *reach));
                let size = |core: &Vec<bool>| core.iter().filter(|inside| **inside).count();
                core = least.min_by_key(size).unwrap_or(core);
            }
        }
        core
    }
}

/// The smallest core with this node in it: it has a node if some endpoint beyond it would be too
/// far from the node before.
fn within(demand: &Demand<'_>, tree: &Tree, root: usize, reach: Reach) -> Vec<bool> {
    let tree = tree.rooted_at(root);
    let mut core = vec![false; tree.numbers()];
    // The furthest endpoint below each node: links and length; none without one.
    let mut furthest: Vec<Option<(u32, f64)>> = vec![None; tree.numbers()];
    demand.endpoints().iter().for_each(|node| furthest[*node] = Some((0, 0.0)));
    for node in tree.order().iter().rev() {
        let Some((above, link)) = tree.hop(*node) else { continue };
        let Some((hops, length)) = furthest[*node] else { continue };
        let (hops, length) = (hops + 1, length + demand.network().links()[link].length);
        if hops > reach.hops || length > reach.length {
            core[*node] = true;
        }
        let (most, longest) = furthest[above].unwrap_or_default();
        furthest[above] = Some((most.max(hops), longest.max(length)));
    }
    core[root] = true;
    core
}
