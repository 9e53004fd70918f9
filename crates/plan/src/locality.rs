//! Traffic that stays near: limits on what an endpoint exchanges with those outside its
//! neighbourhood (Forest §3.5's neighbourhood constraints).

use crate::demand::Demand;
use crate::provision::{Capacity, Side};
use crate::rate::{Limits, Rate};
use crate::tree::Tree;
use petgraph::algo::maximum_flow::dinics;
use petgraph::graph::{DiGraph, NodeIndex};

/// Neighbourhoods N_u, and what crosses them: α(u, N_u) and ω(u, N_u).
#[derive(Clone, Debug)]
pub struct Locality {
    /// By node, in order: its neighbourhood, itself not with it.
    near: Vec<Vec<usize>>,
    /// By node: what it sends to and receives from nodes outside its neighbourhood.
    outside: Vec<Limits>,
}

impl Locality {
    /// Neighbourhoods by node, and limits by node on what is exchanged with those outside.
    pub fn new(mut near: Vec<Vec<usize>>, outside: Vec<Limits>) -> Locality {
        for (node, near) in near.iter_mut().enumerate() {
            near.sort_unstable();
            near.dedup();
            near.retain(|other| *other != node);
        }
        Locality { near, outside }
    }

    /// Every endpoint's neighbourhood is the endpoints within so many kilometres over the network;
    /// each exchanges no more than `outside` with the others.
    pub fn within(demand: &Demand<'_>, length: f64, outside: Limits) -> Locality {
        let nodes = demand.network().nodes().len();
        let mut near = vec![Vec::new(); nodes];
        for node in demand.endpoints() {
            let distances = demand.network().distances(*node);
            let others = demand.endpoints().iter().copied();
            near[*node] = others.filter(|other| distances[*other] <= length).collect();
        }
        Locality::new(near, vec![outside; nodes])
    }

    /// A node's neighbourhood; nobody's if none was given.
    fn near(&self, node: usize) -> &[usize] {
        self.near.get(node).map_or(&[], Vec::as_slice)
    }

    fn is_near(&self, node: usize, other: usize) -> bool {
        self.near(node).binary_search(&other).is_ok()
    }

    /// What a node exchanges outside its neighbourhood; nothing if that was not given.
    fn outside(&self, node: usize) -> Limits {
        self.outside.get(node).copied().unwrap_or_default()
    }
}

/// What the links of a tree need under neighbourhood constraints, by the node below.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalCapacities {
    /// Exactly: the most traffic that the limits allow across the link.
    pub exact: Vec<Capacity>,
    /// A bound in one look at each neighbourhood: never below the exact, never above what is
    /// needed without neighbourhoods.
    pub bound: Vec<Capacity>,
}

/// The capacity that each link of a tree needs if endpoints keep neighbourhood constraints too.
/// Towards the core, a copy of everything goes all the same.
pub fn provision_local(
    demand: &Demand<'_>,
    tree: &Tree,
    core: &[bool],
    locality: &Locality,
) -> LocalCapacities {
    let numbers = tree.numbers();
    let below = crate::provision::sides_below(tree, demand.limits(), core);
    let all = below[tree.root()];
    let children = tree.children();
    let mut exact = vec![Capacity::default(); numbers];
    let mut bound = exact.clone();
    for hop in tree.hops() {
        let mut is_below = vec![false; numbers];
        let mut stack = vec![hop.below];
        while let Some(node) = stack.pop() {
            is_below[node] = true;
            stack.extend_from_slice(&children[node]);
        }
        let (inside, outside): (Vec<usize>, Vec<usize>) =
            demand.endpoints().iter().partition(|node| is_below[**node]);
        let crossing = Crossing { limits: demand.limits(), locality };
        let side = below[hop.below];
        let rest = all - side;
        let need = |from: &[usize], to: &[usize], from_side: &Side, to_side: &Side| {
            if to_side.core > 0 {
                return (from_side.limits.send, from_side.limits.send);
            }
            let bound = crossing.bound(from, to).min(from_side.needed_towards(to_side));
            (crossing.exact(from, to), bound)
        };
        let (up, up_bound) = need(&inside, &outside, &side, &rest);
        let (down, down_bound) = need(&outside, &inside, &rest, &side);
        exact[hop.below] = Capacity { up, down };
        bound[hop.below] = Capacity { up: up_bound, down: down_bound };
    }
    LocalCapacities { exact, bound }
}

struct Crossing<'a> {
    limits: &'a [Limits],
    locality: &'a Locality,
}

impl Crossing<'_> {
    /// The most traffic from these to those: a maximum flow. A packet that crosses is received by
    /// somebody there, so multicast needs no more than unicast.
    fn exact(&self, from: &[usize], to: &[usize]) -> Rate {
        let flow = |pick: fn(Rate) -> f64| self.flow(from, to, pick);
        Rate { bits: flow(|rate| rate.bits), packets: flow(|rate| rate.packets) }
    }

    fn flow(&self, from: &[usize], to: &[usize], pick: fn(Rate) -> f64) -> f64 {
        let outside = |node: usize| self.locality.outside(node);
        let mut graph: DiGraph<(), f64> = DiGraph::new();
        let [source, sink, hub] = [(); 3].map(|()| graph.add_node(()));
        // A node of its own for each, and one for what it exchanges with those outside its
        // neighbourhood; between two outside each other's, traffic goes over the hub.
        let mut senders: Vec<[NodeIndex; 2]> = Vec::with_capacity(from.len());
        for node in from {
            let [own, far] = [(); 2].map(|()| graph.add_node(()));
            graph.add_edge(source, own, pick(self.limits[*node].send));
            graph.add_edge(own, far, pick(outside(*node).send));
            graph.add_edge(far, hub, f64::MAX);
            senders.push([own, far]);
        }
        for node in to {
            let [own, far] = [(); 2].map(|()| graph.add_node(()));
            graph.add_edge(own, sink, pick(self.limits[*node].receive));
            graph.add_edge(far, own, pick(outside(*node).receive));
            graph.add_edge(hub, far, f64::MAX);
            for (sender, [sender_own, sender_far]) in from.iter().zip(&senders) {
                let (sends_near, receives_near) =
                    (self.locality.is_near(*sender, *node), self.locality.is_near(*node, *sender));
                let start = if sends_near { *sender_own } else { *sender_far };
                let end = if receives_near { own } else { far };
                if sends_near || receives_near {
                    graph.add_edge(start, end, f64::MAX);
                }
            }
        }
        dinics(&graph, source, sink).0
    }

    /// Each sender reaches its neighbours there as far as they receive, and the others within its
    /// limit for them; each receiver likewise.
    fn bound(&self, from: &[usize], to: &[usize]) -> Rate {
        let outside = |node: usize| self.locality.outside(node);
        let near = |node: usize, others: &[usize], pick: fn(&Limits) -> Rate| -> Rate {
            let near = self.locality.near(node).iter();
            let there = near.filter(|other| others.binary_search(other).is_ok());
            there.map(|other| pick(&self.limits[*other])).sum()
        };
        let sent: Rate = from
            .iter()
            .map(|node| {
                let reach = outside(*node).send + near(*node, to, |limits| limits.receive);
                self.limits[*node].send.min(reach)
            })
            .sum();
        let received: Rate = to
            .iter()
            .map(|node| {
                let reach = outside(*node).receive + near(*node, from, |limits| limits.send);
                self.limits[*node].receive.min(reach)
            })
            .sum();
        sent.min(received)
    }
}
