//! Choosing a comtree's tree (Forest §3.5).

mod exact;
mod grow;
mod improve;
mod infeasible;

use crate::core_rule::CoreRule;
use crate::demand::{Demand, PlanError};
use crate::network::Ordered;
use crate::provision::{Capacity, cost, provision, sides_below};
use crate::tree::Tree;
pub use exact::MOST_NODES;
use grow::{Growth, grow};
use improve::{StretchBound, improve};
use serde::Serialize;

/// How a tree is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// A shortest-path tree.
    Spt,
    /// A minimum spanning tree.
    Mst,
    /// Prim's algorithm with a bound on the stretch.
    Stretch,
    /// Like a spanning tree near the root, like a shortest-path tree further out.
    Hybrid,
    /// The cheapest of the others and of local searches from each, at the same root and stretch;
    /// on small networks the optimum.
    Best,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 5] =
        [Method::Spt, Method::Mst, Method::Stretch, Method::Hybrid, Method::Best];

    /// The word for it in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            Method::Spt => "spt",
            Method::Mst => "mst",
            Method::Stretch => "stretch",
            Method::Hybrid => "hybrid",
            Method::Best => "best",
        }
    }
}

/// Where a tree is grown from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// Every node is tried, or where that would take long those nearest to all endpoints; the
    /// cheapest tree counts.
    Best,
    /// The node with the least sum of distances to the endpoints.
    Central,
    /// This node.
    Node(usize),
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// How the tree is chosen.
    pub method: Method,
    /// Where it is grown from.
    pub root: Root,
    /// For [`Method::Stretch`]: how far a node may be from the root, in lengths of the direct way.
    /// 1 gives shortest-path trees, infinity spanning trees.
    pub stretch: f64,
    /// Improves the tree by a local search, under the method's own bound.
    pub improve: bool,
}

/// A chosen tree, provisioned.
#[derive(Clone, Debug)]
pub struct Choice {
    /// How it was chosen.
    pub method: Method,
    /// The tree, without what joins no endpoints.
    pub tree: Tree,
    /// Its core, by node.
    pub core: Vec<bool>,
    /// What its links need, by the node below.
    pub capacities: Vec<Capacity>,
    /// What it costs: the sum of bits both ways times kilometres.
    pub cost: f64,
    /// The spanning tree of the component that it was cut from.
    spanning: Tree,
    /// By how much it needs more than is free; 0 if it fits.
    excess: f64,
}

/// Hybrids switch after such shares of the nodes.
const SWITCHES: [f64; 9] = [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0];
/// How many roots are tried where growing a tree is slow.
const FEW_ROOTS: usize = 16;
/// On larger networks than this, checking what is free makes growing slow.
const SLOW_NODES: usize = 100;
/// A search is repeated so often when its result has another core.
const MOST_CORES: usize = 8;
/// Searches for the best tree start from trees of these stretches too.
const STRETCHES: [f64; 7] = [1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0];

/// Chooses a tree for the demand.
///
/// # Errors
/// A stretch below 1; a root that is not in the endpoints' component; links that don't suffice.
pub fn choose(demand: &Demand<'_>, request: &Request) -> Result<Choice, PlanError> {
    let Request { method, root, stretch, .. } = *request;
    if stretch.is_nan() || stretch < 1.0 {
        return Err(PlanError::Stretch(stretch));
    }
    if let Root::Node(node) = root
        && demand.component().binary_search(&node).is_err()
    {
        let name = |node: usize| demand.network().nodes().get(node).map(|node| node.name.clone());
        let Some(root) = name(node) else { return Err(PlanError::NoSuchNode(node)) };
        return Err(PlanError::Apart(root, name(demand.endpoints()[0]).unwrap_or_default()));
    }
    let selection = Selection { demand, root, stretch };
    let mut choice = Choice { method, ..selection.plain(method) };
    // A tree that lacks something is mended by the same search.
    if (request.improve || choice.excess > 0.0) && method != Method::Best {
        choice = selection.improved(choice);
    }
    if choice.excess > 0.0 {
        choice = selection.mended(choice)?;
    }
    Ok(Choice { method, ..choice })
}

struct Selection<'a> {
    demand: &'a Demand<'a>,
    root: Root,
    stretch: f64,
}

impl Selection<'_> {
    fn plain(&self, method: Method) -> Choice {
        match method {
            Method::Spt => self.shortest_path(),
            Method::Mst => self.spanning(),
            Method::Stretch => self.stretched(self.stretch),
            Method::Hybrid => self.hybrid(),
            Method::Best => self.best(),
        }
    }

    /// Prunes a spanning tree to what the endpoints need, and provisions it.
    fn assess(&self, method: Method, spanning: Tree) -> Choice {
        let demand = self.demand;
        let mut keep = vec![false; spanning.numbers()];
        let named = demand.endpoints().iter().chain(demand.core().nodes());
        named.for_each(|node| keep[*node] = true);
        // A core at the root keeps the root; and whoever names a root wants it.
        keep[spanning.root()] |= demand.core().follows_root() || matches!(self.root, Root::Node(_));
        let tree = spanning.pruned(&keep);
        let core = demand.core().of(demand, &tree);
        let capacities = provision(&tree, demand.limits(), &core);
        let cost = cost(demand.network(), &tree, &capacities);
        let excess = if demand.is_limited() {
            let below = sides_below(&tree, demand.limits(), &core);
            let all = below[tree.root()];
            let of = |hop: crate::tree::Hop| {
                let side = &below[hop.below];
                demand.excess(hop.link, hop.below, side, &(all - *side))
            };
            tree.hops().fold(0.0, |sum, hop| sum + of(hop))
        } else {
            0.0
        };
        Choice { method, tree, core, capacities, cost, spanning, excess }
    }

    /// The nodes to grow trees from.
    fn roots(&self) -> Vec<usize> {
        match self.root {
            Root::Best => {
                let all = self.demand.component();
                let is_slow = all.len() > SLOW_NODES && self.demand.is_limited();
                if is_slow { self.most_central(FEW_ROOTS) } else { all.to_vec() }
            }
            Root::Central => self.most_central(1),
            Root::Node(node) => vec![node],
        }
    }

    /// The nodes with the least sums of distances to the endpoints.
    fn most_central(&self, count: usize) -> Vec<usize> {
        let reach = |node: &usize| {
            let distances = self.demand.network().distances(*node);
            Ordered(self.demand.endpoints().iter().map(|end| distances[*end]).sum())
        };
        let mut nodes = self.demand.component().to_vec();
        nodes.sort_by_cached_key(reach);
        nodes.truncate(count);
        nodes
    }

    fn shortest_path(&self) -> Choice {
        let grown = self.roots().into_iter().map(|root| self.grown(Method::Spt, root));
        cheapest(grown)
    }

    fn grown(&self, method: Method, root: usize) -> Choice {
        self.assess(method, grow(self.demand, root, Growth::ShortestPath))
    }

    fn spanning(&self) -> Choice {
        // It is as long from every root; only a core at the root tells roots apart.
        let roots = match self.root {
            Root::Best if !self.demand.core().follows_root() => self.most_central(1),
            _ => self.roots(),
        };
        let tree = grow(self.demand, roots[0], Growth::Spanning);
        cheapest(roots.into_iter().map(|root| self.assess(Method::Mst, tree.rooted_at(root))))
    }

    fn stretched(&self, bound: f64) -> Choice {
        let grown = self.roots().into_iter().map(|root| {
            let direct = &self.demand.network().shortest_paths(root);
            let growth = Growth::Stretch { bound, direct };
            self.assess(Method::Stretch, grow(self.demand, root, growth))
        });
        cheapest(grown)
    }

    fn hybrid(&self) -> Choice {
        let nodes = self.demand.component().len();
        let grown = self.cheap_roots().into_iter().flat_map(|root| {
            SWITCHES.into_iter().map(move |share| {
                let switch = (share * nodes as f64) as usize;
                self.assess(Method::Hybrid, grow(self.demand, root, Growth::Hybrid { switch }))
            })
        });
        // With the spanning tree as it is chosen by itself: its root may be another.
        cheapest(grown.chain([self.spanning()]))
    }

    /// The roots of the cheapest shortest-path trees, the cheapest first.
    fn cheap_roots(&self) -> Vec<usize> {
        let rank = |root: usize| (self.grown(Method::Spt, root).rank(), root);
        let mut roots: Vec<_> = self.roots().into_iter().map(rank).collect();
        roots.sort_unstable();
        roots.into_iter().take(FEW_ROOTS).map(|(_, root)| root).collect()
    }

    fn best(&self) -> Choice {
        let plain = [Method::Spt, Method::Mst, Method::Stretch, Method::Hybrid];
        let mut starts: Vec<Choice> = plain.map(|method| self.plain(method)).into();
        // As the same methods would be improved under bounds of their own.
        starts.extend(starts.clone().into_iter().map(|start| self.improved(start)));
        let roots = if self.root == Root::Best {
            [self.cheap_roots(), self.most_central(1)].concat()
        } else {
            self.roots()
        };
        let is_small = self.demand.component().len() <= SLOW_NODES;
        for root in roots.into_iter().take(if is_small { 8 } else { 4 }) {
            let from_root = Selection { root: Root::Node(root), ..*self };
            starts.extend(STRETCHES.map(|bound| from_root.stretched(bound)));
        }
        // What some cores cost hangs on the tree's shape more than on its length.
        if is_small || self.demand.core().follows_shape() {
            starts.extend(STRETCHES.map(|bound| self.stretched(bound)));
        }
        let searched: Vec<Choice> =
            starts.iter().map(|start| self.searched(start.clone(), None)).collect();
        cheapest(starts.into_iter().chain(searched).chain(self.optimum()))
    }

    /// The choice after a local search, repeated while it finds a tree whose core is another.
    fn searched(&self, choice: Choice, stretch: Option<&StretchBound>) -> Choice {
        let mut best = choice;
        for _ in 0..MOST_CORES {
            let spanning = best.spanning.clone();
            let found =
                self.assess(best.method, improve(self.demand, spanning, &best.core, stretch));
            if found.rank() >= best.rank() {
                break;
            }
            let is_settled = found.core == best.core || !self.demand.core().follows_shape();
            best = found;
            if is_settled {
                break;
            }
        }
        best
    }

    /// The choice after a local search under its method's bound.
    fn improved(&self, choice: Choice) -> Choice {
        let root = choice.spanning.root();
        let bound = self
            .bound_of(choice.method)
            .map(|bound| StretchBound { bound, direct: self.demand.network().distances(root) });
        self.searched(choice, bound.as_ref())
    }

    /// The stretch that a method promises.
    fn bound_of(&self, method: Method) -> Option<f64> {
        match method {
            Method::Spt => Some(1.0),
            Method::Stretch if self.stretch.is_finite() => Some(self.stretch),
            _ => None,
        }
    }

    /// The optimum, if the network is small enough, and the core's rule such that there is one: a
    /// rule that follows the tree's shape is none of what lies on a link's two sides.
    fn optimum(&self) -> Option<Choice> {
        let demand = self.demand;
        let mut nodes = demand.useful();
        if let Root::Node(root) = self.root
            && let Err(place) = nodes.binary_search(&root)
        {
            nodes.insert(place, root);
        }
        if nodes.len() > MOST_NODES || demand.core().follows_shape() {
            return None;
        }
        let mut core = vec![false; demand.network().nodes().len()];
        match demand.core() {
            CoreRule::All => core.fill(true),
            rule => rule.nodes().iter().for_each(|node| core[*node] = true),
        }
        let named = if let Root::Node(node) = self.root { Some(node) } else { None };
        let roots = match (named, demand.core().follows_root()) {
            (Some(root), _) => vec![Some(root)],
            (None, true) => nodes.iter().copied().map(Some).collect(),
            (None, false) => vec![None],
        };
        let trees = roots.into_iter().filter_map(|root| {
            let mut core = core.clone();
            if let (Some(root), CoreRule::Center) = (root, demand.core()) {
                core[root] = true;
            }
            exact::optimum(demand, &nodes, &core, root)
        });
        let choices: Vec<Choice> = trees.map(|tree| self.assess(Method::Best, tree)).collect();
        (!choices.is_empty()).then(|| cheapest(choices))
    }

    /// A tree that fits where the method's own does not, or why there is none. A method that
    /// promises a stretch is mended within it or not at all.
    fn mended(&self, choice: Choice) -> Result<Choice, PlanError> {
        let explain = |nearest: &Choice, certainty| {
            Err(PlanError::Infeasible(infeasible::explain(self.demand, nearest, certainty)))
        };
        if let Some(bound) = self.bound_of(choice.method) {
            return explain(&choice, infeasible::Certainty::Within(bound));
        }
        let nearest = if choice.method == Method::Best { choice } else { self.best() };
        if nearest.excess == 0.0 {
            return Ok(nearest);
        }
        let is_small = self.demand.useful().len() <= MOST_NODES;
        let all = is_small && !self.demand.core().follows_shape();
        let certainty =
            if all { infeasible::Certainty::All } else { infeasible::Certainty::Searched };
        explain(&nearest, certainty)
    }
}

/// The least costly tree of all, by dynamic programming: for networks of at most [`MOST_NODES`]
/// nodes (that hang on more than one neighbour, or are endpoints) and rules for the core that don't
/// depend on the tree's shape. `None` also if no tree fits what is free.
pub fn optimum(demand: &Demand<'_>) -> Option<Choice> {
    let selection = Selection { demand, root: Root::Best, stretch: 1.0 };
    selection.optimum().filter(|choice| choice.excess == 0.0)
}

impl Choice {
    fn rank(&self) -> (Ordered, Ordered) {
        (Ordered(self.excess), Ordered(self.cost))
    }
}

/// The cheapest of the choices that fit; where none fits, the one that lacks least.
fn cheapest(choices: impl IntoIterator<Item = Choice>) -> Choice {
    let best = choices.into_iter().min_by_key(Choice::rank);
    let Some(best) = best else { unreachable!("there is a root, so there is a tree") };
    best
}
