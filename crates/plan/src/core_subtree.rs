//! The core of a comtree: the subtree of its nodes that gets a copy of every multicast packet
//! (Forest §3.3).

use crate::core_rule::{CoreRule, Reach};
use crate::demand::Demand;
use crate::tree::Tree;

impl CoreRule {
    /// The core of this tree, by node, of rules that count links and not lengths: all but
    /// [`CoreRule::Within`], of which the core is then the root.
    pub fn on(&self, tree: &Tree) -> Vec<bool> {
        let mut core = vec![false; tree.numbers()];
        match self {
            CoreRule::None => {}
            CoreRule::Center | CoreRule::Within(_) => core[tree.root()] = true,
            CoreRule::CenterAndNeighbours => {
                core[tree.root()] = true;
                let near = tree.hops().filter(|hop| hop.above == tree.root());
                near.for_each(|hop| core[hop.below] = true);
            }
            CoreRule::All => tree.order().iter().for_each(|node| core[*node] = true),
            CoreRule::Nodes(nodes) if nodes.is_empty() => {}
            CoreRule::Nodes(nodes) => {
                nodes.iter().for_each(|node| core[*node] = true);
                let between = tree.pruned(&core);
                between.order().iter().for_each(|node| core[*node] = true);
            }
        }
        core
    }

    /// The core of this tree, by node.
    pub(crate) fn of(&self, demand: &Demand<'_>, tree: &Tree) -> Vec<bool> {
        match self {
            CoreRule::Within(reach) => within(demand, tree, *reach),
            rule => rule.on(tree),
        }
    }
}

/// The furthest endpoint on one side of a node: links and kilometres, each the most.
#[derive(Clone, Copy)]
struct Furthest(u32, f64);

impl Furthest {
    fn further(self, length: f64) -> Furthest {
        Furthest(self.0 + 1, self.1 + length)
    }

    fn or(self, other: Option<Furthest>) -> Furthest {
        other.map_or(self, |other| Furthest(self.0.max(other.0), self.1.max(other.1)))
    }

    fn is_beyond(self, reach: Reach) -> bool {
        self.0 > reach.hops || self.1 > reach.length
    }
}

/// The smallest core that is near enough to every endpoint, in one walk down and one up.
///
/// A node other than the root must be in the core if an endpoint below it is too far from the node
/// above. The root is in it at first, and moves towards the core as long as what lies behind it is
/// near enough to the next.
fn within(demand: &Demand<'_>, tree: &Tree, reach: Reach) -> Vec<bool> {
    let length = |link: usize| demand.network().links()[link].length;
    let mut core = vec![false; tree.numbers()];
    let mut below: Vec<Option<Furthest>> = vec![None; tree.numbers()];
    demand.endpoints().iter().for_each(|node| below[*node] = Some(Furthest(0, 0.0)));
    for node in tree.order().iter().rev() {
        let (Some((above, link)), Some(furthest)) = (tree.hop(*node), below[*node]) else {
            continue;
        };
        let furthest = furthest.further(length(link));
        core[*node] = furthest.is_beyond(reach);
        below[above] = Some(furthest.or(below[above]));
    }
    let children = tree.children();
    let mut root = tree.root();
    let mut behind: Option<Furthest> = None;
    loop {
        core[root] = true;
        let mut inside = children[root].iter().copied().filter(|child| core[*child]);
        let (Some(next), None) = (inside.next(), inside.next()) else { return core };
        let is_endpoint = demand.endpoints().binary_search(&root).is_ok();
        let own = is_endpoint.then_some(Furthest(0, 0.0)).into_iter().chain(behind);
        let others = children[root].iter().filter(|child| **child != next).filter_map(|child| {
            let (_, link) = tree.hop(*child)?;
            Some(below[*child]?.further(length(link)))
        });
        let here = own.chain(others).fold(None, |most, one| Some(one.or(most)));
        let link = tree.hop(next).map_or(0.0, |(_, link)| length(link));
        behind = here.map(|here| here.further(link));
        if behind.is_some_and(|behind| behind.is_beyond(reach)) {
            return core;
        }
        core[root] = false;
        root = next;
    }
}
