//! The least costly tree of all, for small networks: dynamic programming over subsets of nodes.
//!
//! What a link costs depends only on which nodes lie below it. So the cheapest tree over a set of
//! nodes with a given root is the cheapest way to split off a set below one of the root's links:
//! 3ⁿ·n steps, where there are nⁿ⁻² trees.

use crate::demand::Demand;
use crate::provision::Side;
use crate::tree::Tree;

/// Networks with more nodes than this take too long.
pub const MOST_NODES: usize = 13;

/// The least costly tree for a core that is given by node, rooted at `root` if one is given; `None`
/// if no tree fits what is free.
///
/// `nodes` are those that it may use, in order, at most [`MOST_NODES`].
pub(crate) fn optimum(
    demand: &Demand<'_>,
    nodes: &[usize],
    core: &[bool],
    root: Option<usize>,
) -> Option<Tree> {
    let table = Table::fill(demand, nodes, core);
    let is_named =
        |node| demand.endpoints().contains(&node) || demand.core().nodes().contains(&node);
    let numbered = table.nodes.iter().enumerate();
    let needed: usize = numbered.filter(|(_, node)| is_named(**node)).map(|(i, _)| 1 << i).sum();
    let fixed = root.or(demand.endpoints().first().copied())?;
    let fixed = table.nodes.binary_search(&fixed).ok()?;
    let whole = (1..1_usize << table.nodes.len())
        .filter(|set| set & needed == needed && set & (1 << fixed) != 0)
        .min_by(|a, b| table.spanning(*a, fixed).total_cmp(&table.spanning(*b, fixed)))?;
    table.spanning(whole, fixed).is_finite().then(|| {
        let mut hops = vec![None; demand.network().nodes().len()];
        table.trace(whole, fixed, &mut hops);
        Tree::new(table.nodes[fixed], hops)
    })
}

struct Table {
    nodes: Vec<usize>,
    /// By set and root: the cost of the cheapest tree over the set.
    spanning: Vec<f64>,
    /// By set and a node outside it: the cost of the set below one of that node's links.
    below: Vec<Below>,
}

/// A set of nodes below a link: what it costs, and the set's root and the link.
#[derive(Clone, Copy)]
struct Below {
    cost: f64,
    child: usize,
    link: usize,
}

const NOT_LINKED: Below = Below { cost: f64::INFINITY, child: 0, link: 0 };

impl Table {
    fn fill(demand: &Demand<'_>, nodes: &[usize], core: &[bool]) -> Table {
        let nodes = nodes.to_vec();
        let count = nodes.len();
        let sides: Vec<Side> =
            nodes.iter().map(|node| Side::of(demand.limits()[*node], core[*node])).collect();
        let all = sides.iter().fold(Side::default(), |sum, side| sum + *side);
        let mut table = Table {
            spanning: vec![f64::INFINITY; count << count],
            below: vec![NOT_LINKED; count << count],
            nodes,
        };
        let mut sums = vec![Side::default(); 1 << count];
        for set in 1..1_usize << count {
            let lowest = set.trailing_zeros() as usize;
            sums[set] = sums[set & (set - 1)] + sides[lowest];
            for root in (0..count).filter(|root| set & (1 << root) != 0) {
                table.spanning[set * count + root] = table.cheapest_split(set, root).0;
            }
            for outside in (0..count).filter(|node| set & (1 << node) == 0) {
                let below = table.cheapest_link(demand, set, outside, &sums[set], &all);
                table.below[set * count + outside] = below;
            }
        }
        table
    }

    fn spanning(&self, set: usize, root: usize) -> f64 {
        self.spanning[set * self.nodes.len() + root]
    }

    fn below(&self, set: usize, outside: usize) -> Below {
        self.below[set * self.nodes.len() + outside]
    }

    /// The cheapest way to hang the rest of a set on its root: its cost, and the set below the link
    /// that leads to the rest's first node.
    fn cheapest_split(&self, set: usize, root: usize) -> (f64, usize) {
        let rest = set & !(1 << root);
        if rest == 0 {
            return (0.0, 0);
        }
        let first = rest & rest.wrapping_neg();
        let mut best = (f64::INFINITY, 0);
        // All subsets of the rest that have its first node.
        let others = rest & !first;
        let mut some = others;
        loop {
            let below = some | first;
            let cost = self.below(below, root).cost + self.spanning(set & !below, root);
            if cost < best.0 {
                best = (cost, below);
            }
            if some == 0 {
                return best;
            }
            some = (some - 1) & others;
        }
    }

    fn cheapest_link(
        &self,
        demand: &Demand<'_>,
        set: usize,
        outside: usize,
        side: &Side,
        all: &Side,
    ) -> Below {
        let rest = *all - *side;
        let needed = side.needed_towards(&rest).bits + rest.needed_towards(side).bits;
        let mut best = NOT_LINKED;
        for (next, link) in demand.network().neighbours(self.nodes[outside]) {
            let Ok(child) = self.nodes.binary_search(next) else { continue };
            if set & (1 << child) == 0 || demand.excess(*link, *next, side, &rest) > 0.0 {
                continue;
            }
            let length = demand.network().links()[*link].length;
            let cost = self.spanning(set, child) + needed * length;
            if cost < best.cost {
                best = Below { cost, child, link: *link };
            }
        }
        best
    }

    fn trace(&self, set: usize, root: usize, hops: &mut [Option<(usize, usize)>]) {
        let below = self.cheapest_split(set, root).1;
        if below == 0 {
            return;
        }
        let Below { child, link, .. } = self.below(below, root);
        hops[self.nodes[child]] = Some((self.nodes[root], link));
        self.trace(below, child, hops);
        self.trace(set & !below, root, hops);
    }
}
