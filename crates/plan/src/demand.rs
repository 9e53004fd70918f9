//! What a comtree has to join: endpoints of a network, their limits, and a rule for the core.

use crate::core_rule::CoreRule;
use crate::network::Network;
use crate::provision::Side;
use crate::rate::{Limits, Rate};
use std::collections::BTreeSet;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Nobody is to be joined.
    #[error("there are no endpoints; name at least one")]
    NoEndpoints,
    /// A number is no node.
    #[error("node {0} is not in the network")]
    NoSuchNode(usize),
    /// An endpoint was named twice.
    #[error("endpoint {0} is named twice; give each once, with the sum of its limits")]
    Twice(String),
    /// No path joins two endpoints.
    #[error("no path joins {0} and {1}; plan a comtree for each component")]
    Apart(String, String),
    /// A limit is no rate.
    #[error("a limit of {0} is {1}; give 0 to 4.4e12")]
    Limit(String, f64),
    /// The stretch is none.
    #[error("stretch {0} is out of range; choose 1 or more, 1 gives shortest-path trees")]
    Stretch(f64),
    /// An experiment is too small.
    #[error("{trials} trials of {points} points are too few; take 1 or more of 3 or more")]
    Experiment {
        /// Points of a network.
        points: usize,
        /// Networks.
        trials: u64,
    },
    /// The links that are free do not suffice.
    #[error("{0}")]
    Infeasible(String),
}

/// What a comtree has to join.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    network: &'a Network,
    endpoints: Vec<usize>,
    limits: Vec<Limits>,
    component: Vec<usize>,
    core: CoreRule,
    /// All that is sent and received: excesses are told in shares of it.
    scale: Rate,
}

impl<'a> Demand<'a> {
    /// A comtree that joins these endpoints, each at a node of its own and with its limits.
    ///
    /// # Errors
    /// An endpoint that is no node, is named twice, or is in another component; a limit that is
    /// no rate; no endpoint at all.
    pub fn new(
        network: &'a Network,
        endpoints: &[(usize, Limits)],
        core: CoreRule,
    ) -> Result<Demand<'a>, PlanError> {
        let nodes = network.nodes();
        let Some((first, _)) = endpoints.first() else { return Err(PlanError::NoEndpoints) };
        let core_nodes = core.nodes().iter().copied();
        let named = endpoints.iter().map(|(node, _)| *node).chain(core_nodes.clone());
        if let Some(node) = named.clone().find(|node| *node >= nodes.len()) {
            return Err(PlanError::NoSuchNode(node));
        }
        let component = network.component(*first);
        if let Some(node) = named.clone().find(|node| component.binary_search(node).is_err()) {
            let name = |node: usize| nodes[node].name.clone();
            return Err(PlanError::Apart(name(*first), name(node)));
        }
        let mut limits = vec![Limits::default(); nodes.len()];
        let mut seen = BTreeSet::new();
        for (node, given) in endpoints {
            let name = || nodes[*node].name.clone();
            if !seen.insert(*node) {
                return Err(PlanError::Twice(name()));
            }
            let Limits { send, receive } = given;
            let rates = [send.bits, send.packets, receive.bits, receive.packets];
            let fits = |rate: &f64| (0.0..=Rate::MOST).contains(rate);
            if let Some(rate) = rates.into_iter().find(|rate| !fits(rate)) {
                return Err(PlanError::Limit(name(), rate));
            }
            limits[*node] = *given;
        }
        let all: Limits = limits.iter().copied().sum();
        let whole = all.send + all.receive;
        let scale = Rate { bits: whole.bits.max(1e-9), packets: whole.packets.max(1e-9) };
        let endpoints = seen.into_iter().collect();
        Ok(Demand { network, endpoints, limits, component, core, scale })
    }

    /// The substrate.
    pub fn network(&self) -> &'a Network {
        self.network
    }

    /// The endpoints' nodes, in order.
    pub fn endpoints(&self) -> &[usize] {
        &self.endpoints
    }

    /// By node: the limits of its endpoint, nothing where there is none.
    pub fn limits(&self) -> &[Limits] {
        &self.limits
    }

    /// The rule for the core.
    pub fn core(&self) -> &CoreRule {
        &self.core
    }

    /// The nodes that a tree may use, in order: those that paths join to the endpoints.
    pub fn component(&self) -> &[usize] {
        &self.component
    }

    /// What the best shortest-path tree costs at most, in costs of the least costly tree without
    /// a core: (1 + Z/A)/2, where Z is the larger of the sums of receive and send limits, and A
    /// the smaller (Forest §3.5).
    pub fn shortest_path_bound(&self) -> f64 {
        let all: Limits = self.limits.iter().copied().sum();
        let (send, receive) = (all.send.bits, all.receive.bits);
        let (small, large) = (send.min(receive), send.max(receive));
        if small == 0.0 { f64::INFINITY } else { f64::midpoint(1.0, large / small) }
    }

    /// By how much a link would exceed what is free on it, with these sides: `below` at the end
    /// `node`, `above` at the other.
    pub(crate) fn excess(&self, link: usize, node: usize, below: &Side, above: &Side) -> f64 {
        let [up, down] = self.network.links()[link].free_from(node);
        below.needed_towards(above).excess(up, self.scale)
            + above.needed_towards(below).excess(down, self.scale)
    }

    /// Whether any link could be too small: one that carries all that anybody sends or receives is
    /// large enough for every tree.
    pub(crate) fn is_limited(&self) -> bool {
        let all: Limits = self.limits.iter().copied().sum();
        let most = if self.core == CoreRule::None { all.send.min(all.receive) } else { all.send };
        let too_small = |free: &Rate| most.excess(*free, self.scale) > 0.0;
        self.network.links().iter().any(|link| link.free.iter().any(too_small))
    }

    /// The nodes that a least costly tree may need, in order: nothing that hangs on one neighbour
    /// alone and is neither an endpoint nor named as core.
    pub(crate) fn useful(&self) -> Vec<usize> {
        let mut useful = vec![false; self.network.nodes().len()];
        self.component.iter().for_each(|node| useful[*node] = true);
        let mut stack = self.component.clone();
        while let Some(node) = stack.pop() {
            let is_wanted =
                self.endpoints.binary_search(&node).is_ok() || self.core.nodes().contains(&node);
            if !useful[node] || is_wanted {
                continue;
            }
            let mut around: Vec<usize> =
                self.network.neighbours(node).iter().map(|n| n.0).collect();
            around.retain(|next| useful[*next]);
            around.sort_unstable();
            around.dedup();
            if around.len() <= 1 {
                useful[node] = false;
                stack.extend(around);
            }
        }
        self.component.iter().copied().filter(|node| useful[*node]).collect()
    }

    /// Whether [`Demand::shortest_path_bound`] holds here: no core, and links without limits.
    pub fn is_bounded(&self) -> bool {
        self.core == CoreRule::None && !self.is_limited()
    }
}
