//! A local search: as long as it pays, a link is put into the tree and another of the cycle that
//! it closes is taken out. What is not used by any path between endpoints needs no capacity and
//! costs nothing, so the search runs on a spanning tree of the component and finds detours too.

use crate::demand::Demand;
use crate::network::Ordered;
use crate::provision::{Side, sides_below};
use crate::tree::Tree;
use std::collections::VecDeque;

/// How many of a node's links are tried, the shortest first, if it has very many.
const NEAREST: usize = 32;
/// The search ends when a pass over all links finds nothing, and at the latest after so many.
const MOST_PASSES: usize = 64;
/// What is gained must be more than rounding.
const LEAST_GAIN: f64 = 1e-9;

/// A bound on how far nodes may be from the root, in lengths of the direct way.
#[derive(Clone, Debug)]
pub(crate) struct StretchBound {
    pub(crate) bound: f64,
    /// By node: the length of the shortest path from the root.
    pub(crate) direct: Vec<f64>,
}

impl StretchBound {
    fn allows(&self, demand: &Demand<'_>, tree: &Tree) -> bool {
        let distances = tree.distances(demand.network());
        let within = |node: &usize| {
            distances[*node] <= self.bound * self.direct[*node] * (1.0 + 1e-9) + 1e-9
        };
        demand.endpoints().iter().all(within)
    }
}

/// Improves a spanning tree of the demand's component by exchanging links, under the substrate's
/// limits and, if given, a bound on the stretch. The core is by node and stays.
pub(crate) fn improve(
    demand: &Demand<'_>,
    tree: Tree,
    core: &[bool],
    stretch: Option<&StretchBound>,
) -> Tree {
    let mut search = Search::new(demand, tree, core, stretch);
    let links = candidates(demand);
    for _ in 0..MOST_PASSES {
        let exchanged = links.iter().filter(|link| search.try_link(**link)).count();
        if exchanged == 0 {
            break;
        }
    }
    search.tree
}

/// The links worth trying: all, but of a node with very many only the shortest.
fn candidates(demand: &Demand<'_>) -> Vec<usize> {
    let network = demand.network();
    let mut wanted = vec![false; network.links().len()];
    for node in demand.component() {
        let mut near: Vec<usize> =
            network.neighbours(*node).iter().map(|(_, link)| *link).collect();
        near.sort_by_key(|link| (Ordered(network.links()[*link].length), *link));
        near.into_iter().take(NEAREST).for_each(|link| wanted[link] = true);
    }
    (0..wanted.len()).filter(|link| wanted[*link]).collect()
}

struct Search<'a> {
    demand: &'a Demand<'a>,
    core: &'a [bool],
    stretch: Option<&'a StretchBound>,
    tree: Tree,
    below: Vec<Side>,
    depth: Vec<u32>,
    cycle: Cycle,
}

/// What a tree lacks, and what it costs: fitting comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Price {
    excess: Ordered,
    cost: Ordered,
}

impl Price {
    /// Whether it is better by more than rounding.
    fn is_below(&self, other: &Price) -> bool {
        let gain = |now: Ordered, than: Ordered| than.0 - now.0;
        let excess = gain(self.excess, other.excess);
        let saved = gain(self.cost, other.cost) > LEAST_GAIN * other.cost.0.max(1e-300);
        excess > LEAST_GAIN || (excess >= -LEAST_GAIN * LEAST_GAIN && saved)
    }
}

/// The cycle that a link closes, from its one end over the tree to its other. All by place.
#[derive(Default)]
struct Cycle {
    nodes: Vec<usize>,
    /// What hangs on each node without the cycle's links, itself with it.
    hanging: Vec<Side>,
    /// The link from each node to the next; from the last, the new one to the first.
    links: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(
        demand: &'a Demand<'a>,
        tree: Tree,
        core: &'a [bool],
        stretch: Option<&'a StretchBound>,
    ) -> Search<'a> {
        let mut search = Search {
            demand,
            core,
            stretch,
            tree,
            below: Vec::new(),
            depth: Vec::new(),
            cycle: Cycle::default(),
        };
        search.refresh();
        search
    }

    fn refresh(&mut self) {
        self.below = sides_below(&self.tree, self.demand.limits(), self.core);
        self.depth.clear();
        self.depth.resize(self.below.len(), 0);
        for node in self.tree.order() {
            if let Some((above, _)) = self.tree.hop(*node) {
                self.depth[*node] = self.depth[above] + 1;
            }
        }
    }

    /// Exchanges a link of the cycle that this one closes for it, if that pays.
    fn try_link(&mut self, link: usize) -> bool {
        let ends = self.demand.network().links()[link].ends;
        let in_tree = |node: usize| self.tree.hop(node).is_some_and(|(_, up)| up == link);
        if in_tree(ends[0]) || in_tree(ends[1]) {
            return false;
        }
        self.close_cycle(link, ends);
        let last = self.cycle.links.len() - 1;
        let now = self.cost_without(last);
        let mut others: Vec<(Price, usize)> =
            (0..last).map(|out| (self.cost_without(out), out)).collect();
        others.retain(|(price, _)| price.is_below(&now));
        // Without a bound on the stretch the cheapest is taken; with one, the cheapest allowed.
        others.sort_unstable();
        for (_, out) in others {
            let tree = self.exchanged(link, ends, out);
            if self.stretch.is_none_or(|stretch| stretch.allows(self.demand, &tree)) {
                self.tree = tree;
                self.refresh();
                return true;
            }
        }
        false
    }

    /// Walks from both ends of a link up to where their paths meet.
    fn close_cycle(&mut self, link: usize, [mut left, mut right]: [usize; 2]) {
        let Cycle { nodes, hanging, links } = &mut self.cycle;
        nodes.clear();
        hanging.clear();
        links.clear();
        let mut from_right: VecDeque<(usize, Side, usize)> = VecDeque::new();
        let nothing = Side::default();
        let (mut taken_left, mut taken_right) = (nothing, nothing);
        while left != right {
            if self.depth[left] >= self.depth[right] {
                let Some((above, up)) = self.tree.hop(left) else { break };
                nodes.push(left);
                hanging.push(self.below[left] - taken_left);
                links.push(up);
                taken_left = self.below[left];
                left = above;
            } else {
                let Some((above, up)) = self.tree.hop(right) else { break };
                from_right.push_front((right, self.below[right] - taken_right, up));
                taken_right = self.below[right];
                right = above;
            }
        }
        // Where they meet, all the rest of the tree hangs.
        nodes.push(left);
        hanging.push(self.below[self.tree.root()] - taken_left - taken_right);
        for (node, side, up) in from_right {
            links.push(up);
            nodes.push(node);
            hanging.push(side);
        }
        links.push(link);
    }

    /// What the cycle's links cost when the one at this place is not in the tree.
    fn cost_without(&self, out: usize) -> Price {
        let Cycle { nodes, hanging, links } = &self.cycle;
        let all = self.below[self.tree.root()];
        let mut piece = Side::default();
        let (mut excess, mut cost) = (0.0, 0.0);
        for step in 1..nodes.len() {
            let place = (out + step) % nodes.len();
            piece = piece + hanging[place];
            let (link, rest) = (links[place], all - piece);
            let needed = piece.needed_towards(&rest).bits + rest.needed_towards(&piece).bits;
            cost += needed * self.demand.network().links()[link].length;
            excess += self.demand.excess(link, nodes[place], &piece, &rest);
        }
        Price { excess: Ordered(excess), cost: Ordered(cost) }
    }

    /// The tree with `link` and without the cycle's link at place `out`.
    fn exchanged(&self, link: usize, ends: [usize; 2], out: usize) -> Tree {
        let places = self.cycle.nodes.len();
        let (one, other) = (self.cycle.nodes[out], self.cycle.nodes[(out + 1) % places]);
        // The lower end's side comes loose; the end of the new link on it hangs on the other end.
        let lower = if self.depth[one] > self.depth[other] { one } else { other };
        let left_is_loose = lower == one;
        let (loose, firm) = if left_is_loose { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
        let mut hops: Vec<Option<(usize, usize)>> =
            (0..self.tree.numbers()).map(|node| self.tree.hop(node)).collect();
        let mut hop = Some((firm, link));
        let mut node = loose;
        loop {
            let up = std::mem::replace(&mut hops[node], hop);
            if node == lower {
                break;
            }
            let Some((above, link)) = up else { break };
            hop = Some((node, link));
            node = above;
        }
        Tree::new(self.tree.root(), hops)
    }
}
