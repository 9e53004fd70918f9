//! Choosing a comtree's tree (Forest §3.5).

mod exact;
mod grow;
mod improve;
mod infeasible;

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
    /// The cheapest of the others, each improved by a local search; on small networks the optimum.
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
    /// Every node is tried; the cheapest tree counts.
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
/// Hybrids are grown from so many of the roots that give the cheapest shortest-path trees.
const HYBRID_ROOTS: usize = 16;
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
    let mut choice = match method {
        Method::Best => selection.best(),
        method => selection.plain(method),
    };
    choice.method = method;
    if request.improve && method != Method::Best {
        choice = selection.improved(choice);
    }
    if choice.excess == 0.0 {
        return Ok(choice);
    }
    selection.mended(choice)
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
        let excess = if demand.network().is_limited() {
            let below = sides_below(&tree, demand.limits(), &core);
            let all = below[tree.root()];
            let of = |hop: crate::tree::Hop| {
                let side = &below[hop.below];
                demand.excess(hop.link, hop.below, side, &(all - *side))
            };
            tree.hops().map(of).sum()
        } else {
            0.0
        };
        Choice { method, tree, core, capacities, cost, spanning, excess }
    }

    /// The nodes to grow trees from.
    fn roots(&self) -> Vec<usize> {
        match self.root {
            Root::Best => self.demand.component().to_vec(),
            Root::Central => vec![self.central()],
            Root::Node(node) => vec![node],
        }
    }

    fn central(&self) -> usize {
        let reach = |node: &usize| {
            let distances = self.demand.network().distances(*node);
            Ordered(self.demand.endpoints().iter().map(|end| distances[*end]).sum())
        };
        let nodes = self.demand.component().iter().copied();
        nodes.min_by_key(reach).unwrap_or_default()
    }

    fn shortest_path(&self) -> Choice {
        let grown = self.roots().into_iter().map(|root| self.grown(Method::Spt, root));
        cheapest(grown)
    }

    fn grown(&self, method: Method, root: usize) -> Choice {
        self.assess(method, grow(self.demand, root, Growth::ShortestPath))
    }

    fn spanning(&self) -> Choice {
        // Its links are the same from every root; only a core at the root tells roots apart.
        let roots = match self.root {
            Root::Best if !self.demand.core().follows_root() => vec![self.central()],
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
        let mut trees: Vec<Choice> =
            self.roots().into_iter().map(|root| self.grown(Method::Hybrid, root)).collect();
        trees.sort_by_key(Choice::rank);
        trees.truncate(HYBRID_ROOTS);
        let roots = trees.iter().map(|choice| choice.spanning.root()).collect::<Vec<_>>();
        let nodes = self.demand.component().len();
        let switched = roots.into_iter().flat_map(|root| {
            SWITCHES.into_iter().map(move |share| (root, (share * nodes as f64) as usize))
        });
        let grown = switched.map(|(root, switch)| {
            self.assess(Method::Hybrid, grow(self.demand, root, Growth::Hybrid { switch }))
        });
        // With the spanning tree as it is chosen by itself: its root may be another.
        let spanning = Choice { method: Method::Hybrid, ..self.spanning() };
        cheapest(trees.into_iter().chain(grown).chain([spanning]))
    }

    /// Trees to start searches from.
    fn starts(&self) -> Vec<Choice> {
        let mut starts = vec![
            self.shortest_path(),
            self.spanning(),
            self.stretched(self.stretch),
            self.hybrid(),
        ];
        let root = starts[0].spanning.root();
        let from_root = Selection { root: Root::Node(root), ..*self };
        starts.extend(STRETCHES.map(|bound| from_root.stretched(bound)));
        starts
    }

    fn best(&self) -> Choice {
        let starts = self.starts();
        let searched: Vec<Choice> =
            starts.iter().map(|start| self.searched(start.clone(), None)).collect();
        let trees = starts.into_iter().chain(searched).chain(self.optimum());
        Choice { method: Method::Best, ..cheapest(trees) }
    }

    fn searched(&self, choice: Choice, stretch: Option<&StretchBound>) -> Choice {
        let Choice { method, spanning, core, .. } = choice.clone();
        let found = self.assess(method, improve(self.demand, spanning, &core, stretch));
        cheapest([choice, found])
    }

    /// The choice after a local search under its method's bound.
    fn improved(&self, choice: Choice) -> Choice {
        let root = choice.spanning.root();
        let bound = match choice.method {
            Method::Spt => Some(1.0),
            Method::Stretch => Some(self.stretch),
            _ => None,
        };
        let bound = bound
            .map(|bound| StretchBound { bound, direct: self.demand.network().distances(root) });
        self.searched(choice, bound.as_ref())
    }

    /// The optimum, if the network is small enough for it.
    fn optimum(&self) -> Option<Choice> {
        if self.demand.component().len() > MOST_NODES {
            return None;
        }
        optimum_from(self, &self.roots())
    }

    /// A tree that fits where the method's own does not, or why there is none.
    fn mended(&self, choice: Choice) -> Result<Choice, PlanError> {
        let method = choice.method;
        let starts = self.starts();
        let searched: Vec<Choice> = starts
            .into_iter()
            .chain([choice])
            .map(|start| self.searched(start, None))
            .chain(self.optimum())
            .collect();
        let nearest = Choice { method, ..cheapest(searched) };
        if nearest.excess == 0.0 {
            return Ok(nearest);
        }
        let is_certain = self.demand.component().len() <= MOST_NODES
            && !matches!(
                self.demand.core(),
                crate::CoreRule::CenterAndNeighbours | crate::CoreRule::Within(_)
            );
        Err(PlanError::Infeasible(infeasible::explain(self.demand, &nearest, is_certain)))
    }
}

/// The optimum under the demand's rule for the core. Rules that depend on the tree's shape have no
/// optimum here: the optimum without a core is offered instead, for what it is worth under them.
fn optimum_from(selection: &Selection<'_>, roots: &[usize]) -> Option<Choice> {
    use crate::core_subtree::CoreRule;
    let demand = selection.demand;
    let numbers = demand.network().nodes().len();
    let mut core = vec![false; numbers];
    let found: Vec<Choice> = match demand.core() {
        CoreRule::Center => roots
            .iter()
            .filter_map(|root| {
                core.fill(false);
                core[*root] = true;
                exact::optimum(demand, &core, Some(*root))
            })
            .map(|tree| selection.assess(Method::Best, tree))
            .collect(),
        rule => {
            if *rule == CoreRule::All {
                core.fill(true);
            }
            rule.nodes().iter().for_each(|node| core[*node] = true);
            let root = if let Root::Node(node) = selection.root { Some(node) } else { None };
            let tree = exact::optimum(demand, &core, root);
            tree.map(|tree| selection.assess(Method::Best, tree)).into_iter().collect()
        }
    };
    (!found.is_empty()).then(|| cheapest(found))
}

/// The least costly tree of all, by dynamic programming: for networks of at most [`MOST_NODES`]
/// nodes and rules for the core that don't depend on the tree's shape.
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
