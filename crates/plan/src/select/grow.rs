//! Growing a tree from its root, link by link: shortest-path trees, spanning trees, and what lies
//! between (Forest §3.5).

use crate::core_rule::CoreRule;
use crate::demand::Demand;
use crate::network::{Ordered, ShortestPaths};
use crate::provision::Side;
use crate::tree::Tree;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Lengths are sums: a path of exactly the allowed length may come out longer by rounding.
const ROUNDING: f64 = 1.0 + 1e-9;

/// Which link is taken next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Growth<'a> {
    /// The one that ends nearest to the root (Dijkstra).
    ShortestPath,
    /// The shortest (Prim).
    Spanning,
    /// The shortest whose far end is no further from the root than so many times the direct way.
    Stretch {
        bound: f64,
        /// The direct ways from the root.
        direct: &'a ShortestPaths,
    },
    /// The shortest until the tree has so many nodes, then the one that ends nearest to the root:
    /// the paper's conjecture.
    Hybrid { switch: usize },
}

/// The spanning tree of the root's component that this growth gives. Where links have limits, a
/// link is excluded that would make the tree so far need more than is free (Forest §3.5); what
/// stays unreached is joined by its shortest path all the same, so that it can be mended.
pub(crate) fn grow(demand: &Demand<'_>, root: usize, growth: Growth<'_>) -> Tree {
    let mut growing = Growing::new(demand, root, growth);
    growing.add(root, None);
    growing.run();
    while let Some(node) = growing.nearest_unreached() {
        growing.graft(node);
        growing.run();
    }
    Tree::new(root, growing.hops)
}

struct Growing<'a> {
    demand: &'a Demand<'a>,
    growth: Growth<'a>,
    root: usize,
    /// Whether nearly every two nodes are linked, and no link is excluded.
    is_dense: bool,
    /// If links may be too small: the nodes that are core in every tree.
    core_of_limited: Option<Vec<bool>>,
    /// The direct ways, once they are needed.
    direct: OnceCell<Cow<'a, ShortestPaths>>,
    hops: Vec<Option<(usize, usize)>>,
    distance: Vec<f64>,
    reached: Vec<bool>,
    order: Vec<usize>,
    /// Links that lead out of the tree: key, far end, near end, link.
    queue: BinaryHeap<(Reverse<Ordered>, usize, usize, usize)>,
}

impl<'a> Growing<'a> {
    fn new(demand: &'a Demand<'a>, root: usize, growth: Growth<'a>) -> Growing<'a> {
        let nodes = demand.network().nodes().len();
        let core_of_limited = demand.is_limited().then(|| known_core(demand, root));
        Growing {
            demand,
            growth,
            root,
            is_dense: demand.network().is_dense() && core_of_limited.is_none(),
            core_of_limited,
            direct: OnceCell::new(),
            hops: vec![None; nodes],
            distance: vec![f64::INFINITY; nodes],
            reached: vec![false; nodes],
            order: Vec::new(),
            queue: BinaryHeap::new(),
        }
    }

    fn run(&mut self) {
        if self.is_dense {
            return self.run_dense();
        }
        while let Some((_, node, from, link)) = self.queue.pop() {
            if !self.reached[node] && self.fits(node, from, link) {
                self.add(node, Some((from, link)));
            }
        }
    }

    /// The same without a queue: each node remembers its best link. For networks where nearly every
    /// two nodes are linked, a queue of all links would be the larger work.
    fn run_dense(&mut self) {
        let nodes = self.distance.len();
        let mut best: Vec<Option<(Ordered, usize, usize)>> = vec![None; nodes];
        let mut look_at = self.order.clone();
        loop {
            for from in look_at.drain(..) {
                for (node, link) in self.demand.network().neighbours(from) {
                    if !self.reached[*node]
                        && let Some(key) = self.key(from, *node, *link)
                    {
                        let offer = (Ordered(key), from, *link);
                        let slot = &mut best[*node];
                        *slot = Some(slot.map_or(offer, |old| old.min(offer)));
                    }
                }
            }
            let unreached = (0..nodes).filter(|node| !self.reached[*node]);
            let nearest = unreached.filter_map(|node| Some((best[node]?, node))).min();
            let Some(((_, from, link), node)) = nearest else { return };
            self.add(node, Some((from, link)));
            if self.switches_now() {
                best.fill(None);
                look_at.clone_from(&self.order);
            } else {
                look_at.push(node);
            }
        }
    }

    /// Whether a hybrid begins to look for paths instead of links.
    fn switches_now(&self) -> bool {
        matches!(self.growth, Growth::Hybrid { switch } if self.order.len() == switch)
    }

    fn add(&mut self, node: usize, hop: Option<(usize, usize)>) {
        self.reached[node] = true;
        self.order.push(node);
        self.hops[node] = hop;
        self.distance[node] = match hop {
            Some((from, link)) => self.distance[from] + self.demand.network().links()[link].length,
            None => 0.0,
        };
        if self.is_dense {
            return;
        }
        if self.switches_now() {
            self.queue.clear();
            (0..self.order.len()).for_each(|index| self.push_links(self.order[index]));
        } else {
            self.push_links(node);
        }
    }

    fn push_links(&mut self, from: usize) {
        for (node, link) in self.demand.network().neighbours(from) {
            if !self.reached[*node]
                && let Some(key) = self.key(from, *node, *link)
            {
                self.queue.push((Reverse(Ordered(key)), *node, from, *link));
            }
        }
    }

    /// The lower, the sooner a link is taken; `None` if it must not be.
    fn key(&self, from: usize, node: usize, link: usize) -> Option<f64> {
        let length = self.demand.network().links()[link].length;
        let reach = self.distance[from] + length;
        match self.growth {
            Growth::ShortestPath => Some(reach),
            Growth::Spanning => Some(length),
            Growth::Stretch { bound, direct } => {
                (reach <= bound * direct.lengths[node] * ROUNDING).then_some(length)
            }
            Growth::Hybrid { switch } => {
                Some(if self.order.len() < switch { length } else { reach })
            }
        }
    }

    /// Whether the tree so far, with this link, needs nowhere more than is free.
    fn fits(&self, node: usize, from: usize, link: usize) -> bool {
        let Some(core) = &self.core_of_limited else { return true };
        let side = |node: usize| Side::of(self.demand.limits()[node], core[node]);
        let mut below: Vec<Side> = (0..self.hops.len()).map(|_| Side::default()).collect();
        below[node] = side(node);
        below[from] = below[node];
        for inside in self.order.iter().rev() {
            below[*inside] = below[*inside] + side(*inside);
            if let Some((above, _)) = self.hops[*inside] {
                below[above] = below[above] + below[*inside];
            }
        }
        let all = below[self.root];
        let excess = |below_node: usize, link: usize| {
            self.demand.excess(link, below_node, &below[below_node], &(all - below[below_node]))
        };
        let inside = self.order.iter().filter_map(|node| Some((*node, self.hops[*node]?.1)));
        inside.chain([(node, link)]).all(|(node, link)| excess(node, link) == 0.0)
    }

    /// The direct ways from the root.
    fn direct(&self) -> &ShortestPaths {
        self.direct.get_or_init(|| match self.growth {
            Growth::Stretch { direct, .. } => Cow::Borrowed(direct),
            _ => Cow::Owned(self.demand.network().shortest_paths(self.root)),
        })
    }

    /// The unreached node of the component that is nearest to the root.
    fn nearest_unreached(&self) -> Option<usize> {
        if self.order.len() == self.demand.component().len() {
            return None;
        }
        let direct = self.direct();
        let unreached = self.demand.component().iter().copied().filter(|node| !self.reached[*node]);
        unreached.min_by_key(|node| Ordered(direct.lengths[*node]))
    }

    /// Joins a node by its shortest path, whose nodes hang on it from now on unless the tree has
    /// them as near already. No path of the tree gets longer, so every bound still holds.
    fn graft(&mut self, node: usize) {
        let mut path = vec![node];
        let mut hops = Vec::new();
        while let Some(hop) = self.direct().hops[path[path.len() - 1]] {
            hops.push(Some(hop));
            path.push(hop.0);
        }
        hops.push(None);
        let mut rehung = false;
        for (node, hop) in path.into_iter().zip(hops).rev() {
            let direct = self.direct().lengths[node];
            if !self.reached[node] {
                self.add(node, hop);
            } else if self.distance[node] > direct {
                // What hangs below gets nearer too; its old distance is on the safe side.
                self.hops[node] = hop;
                self.distance[node] = direct;
                rehung = true;
            }
        }
        if rehung && self.core_of_limited.is_some() {
            // Sums are made from the leaves up: every node must stand after its parent.
            self.order = Tree::new(self.root, self.hops.clone()).order().to_vec();
        }
    }
}

/// The core nodes that are known before there is a tree.
fn known_core(demand: &Demand<'_>, root: usize) -> Vec<bool> {
    let mut core = vec![*demand.core() == CoreRule::All; demand.network().nodes().len()];
    core[root] |= demand.core().follows_root();
    demand.core().nodes().iter().for_each(|node| core[*node] = true);
    core
}
