//! The network as the run sees it: nodes that are relays, one link for each two neighbours, and which
//! nodes can reach each other.

use canopy_plan::{FIBRE_SPEED, Network};
use std::collections::BTreeMap;
use std::time::Duration;

/// A link between two nodes, the smaller number first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) ends: [usize; 2],
    /// The time one way.
    pub(crate) delay: Duration,
}

/// The nodes and links of a run.
pub(crate) struct Graph {
    pub(crate) names: Vec<String>,
    pub(crate) edges: Vec<Edge>,
    numbers: BTreeMap<[usize; 2], usize>,
}

/// What does not stand at a moment.
pub(crate) struct Down<'a> {
    pub(crate) relays: &'a dyn Fn(usize) -> bool,
    pub(crate) links: &'a dyn Fn(usize) -> bool,
}

impl Graph {
    /// The shortest of parallel links counts: two relays have one session with each other.
    pub(crate) fn new(network: &Network) -> Graph {
        let mut shortest: BTreeMap<[usize; 2], f64> = BTreeMap::new();
        for link in network.links() {
            let [a, b] = link.ends;
            let length = shortest.entry([a.min(b), a.max(b)]).or_insert(f64::INFINITY);
            *length = length.min(link.length);
        }
        let edges: Vec<Edge> = shortest
            .into_iter()
            .map(|(ends, length)| {
                let delay = Duration::from_secs_f64(length / FIBRE_SPEED / 1000.0);
                Edge { ends, delay: delay.max(Duration::from_micros(50)) }
            })
            .collect();
        let names = network.nodes().iter().map(|node| node.name.clone()).collect();
        Graph::of(names, edges)
    }

    /// What joins any two nodes between which a path leads, as on an internet: as long as the shortest path.
    pub(crate) fn closure(&self) -> Graph {
        let mut edges = Vec::new();
        for from in 0..self.names.len() {
            let delays = self.delays(from).into_iter().enumerate().skip(from + 1);
            let edge = |(to, delay)| Some(Edge { ends: [from, to], delay: delay? });
            edges.extend(delays.filter_map(edge));
        }
        Graph::of(self.names.clone(), edges)
    }

    fn of(names: Vec<String>, edges: Vec<Edge>) -> Graph {
        let numbers = edges.iter().enumerate().map(|(number, edge)| (edge.ends, number)).collect();
        Graph { names, edges, numbers }
    }

    /// The link between two nodes.
    pub(crate) fn between(&self, one: usize, other: usize) -> Option<usize> {
        self.numbers.get(&[one.min(other), one.max(other)]).copied()
    }

    /// By node: the number of its component among what stands; none for a node that is down.
    pub(crate) fn components(&self, down: &Down<'_>) -> Vec<Option<usize>> {
        let mut found = vec![None; self.names.len()];
        let mut neighbours = vec![Vec::new(); self.names.len()];
        for (number, edge) in self.edges.iter().enumerate().filter(|(link, _)| !(down.links)(*link))
        {
            let [a, b] = self.edges[number].ends;
            if !edge.ends.iter().any(|end| (down.relays)(*end)) {
                neighbours[a].push(b);
                neighbours[b].push(a);
            }
        }
        let mut count = 0;
        for start in 0..found.len() {
            if found[start].is_some() || (down.relays)(start) {
                continue;
            }
            let mut open = vec![start];
            while let Some(node) = open.pop() {
                if found[node].replace(count).is_none() {
                    open.extend(neighbours[node].iter().filter(|next| found[**next].is_none()));
                }
            }
            count += 1;
        }
        found
    }

    /// By node: the time one way over the shortest path from one of them; none where none leads.
    pub(crate) fn delays(&self, from: usize) -> Vec<Option<Duration>> {
        let mut delays = vec![None; self.names.len()];
        delays[from] = Some(Duration::ZERO);
        // A path has fewer links than there are nodes, and most graphs need a few rounds.
        for _ in 0..self.names.len() {
            let mut is_done = true;
            for Edge { ends: [a, b], delay } in &self.edges {
                for (one, other) in [(*a, *b), (*b, *a)] {
                    let Some(way) = delays[one].map(|so_far: Duration| so_far + *delay) else {
                        continue;
                    };
                    if delays[other].is_none_or(|known| way < known) {
                        (delays[other], is_done) = (Some(way), false);
                    }
                }
            }
            if is_done {
                break;
            }
        }
        delays
    }

    /// About the longest time one way between two nodes.
    pub(crate) fn span(&self) -> Duration {
        let farthest = |from: usize| {
            let far = self.delays(from).into_iter().enumerate();
            far.filter_map(|(node, delay)| Some((delay?, node))).max().unwrap_or_default()
        };
        (0..self.names.len())
            .step_by(1 + self.names.len() / 16)
            .map(|node| farthest(node).0)
            .max()
            .unwrap_or_default()
    }
}
