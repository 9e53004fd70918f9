//! How much capacity a comtree's links need, so that every traffic pattern within the endpoints'
//! limits fits (Forest §3.4.2).

use crate::network::Network;
use crate::rate::{Limits, Rate};
use crate::tree::Tree;
use std::ops::{Add, Sub};

/// What lies on one side of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Side {
    /// The sums of the limits of its endpoints.
    pub(crate) limits: Limits,
    /// How many core nodes it has.
    pub(crate) core: u32,
}

impl Side {
    /// What a node adds to its side.
    pub(crate) fn of(limits: Limits, is_core: bool) -> Side {
        Side { limits, core: u32::from(is_core) }
    }

    /// The capacity needed from this side to the other: α(X) if the other has a core node, which
    /// gets a copy of everything, and min{α(X), ω(Y)} if not.
    pub(crate) fn needed_towards(&self, other: &Side) -> Rate {
        let sent = self.limits.send;
        if other.core > 0 { sent } else { sent.min(other.limits.receive) }
    }
}

impl Side {
    /// What may lie on this side of a link while one tree takes another's place.
    fn or(&self, other: &Side) -> Side {
        let (one, two) = (self.limits, other.limits);
        let limits =
            Limits { send: max(one.send, two.send), receive: max(one.receive, two.receive) };
        Side { limits, core: self.core.max(other.core) }
    }
}

impl Add for Side {
    type Output = Side;

    fn add(self, other: Side) -> Side {
        Side { limits: self.limits + other.limits, core: self.core + other.core }
    }
}

impl Sub for Side {
    type Output = Side;

    fn sub(self, other: Side) -> Side {
        Side { limits: self.limits - other.limits, core: self.core - other.core }
    }
}

/// The capacity that a link needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Capacity {
    /// From the node below to the one above.
    pub up: Rate,
    /// From the node above to the one below.
    pub down: Rate,
}

impl Capacity {
    pub(crate) fn between(below: &Side, above: &Side) -> Capacity {
        Capacity { up: below.needed_towards(above), down: above.needed_towards(below) }
    }
}

/// By node: what lies below the link to its parent, itself with it.
pub(crate) fn sides_below(tree: &Tree, limits: &[Limits], core: &[bool]) -> Vec<Side> {
    let mut below = vec![Side::default(); tree.numbers()];
    for node in tree.order().iter().rev() {
        below[*node] = below[*node] + Side::of(limits[*node], core[*node]);
        if let Some((above, _)) = tree.hop(*node) {
            below[above] = below[above] + below[*node];
        }
    }
    below
}

/// The capacity that each link of a tree needs, by the node below it; in one walk over the tree.
/// `limits` and `core` are by node.
pub fn provision(tree: &Tree, limits: &[Limits], core: &[bool]) -> Vec<Capacity> {
    let below = sides_below(tree, limits, core);
    let all = below[tree.root()];
    let mut capacities = vec![Capacity::default(); below.len()];
    for hop in tree.hops() {
        let side = below[hop.below];
        capacities[hop.below] = Capacity::between(&side, &(all - side));
    }
    capacities
}

/// What a tree costs with these capacities: the sum over its links of the bits provisioned both
/// ways, times the length.
pub fn cost(network: &Network, tree: &Tree, capacities: &[Capacity]) -> f64 {
    let of_hop = |below: usize, link: usize| {
        let Capacity { up, down } = capacities[below];
        (up.bits + down.bits) * network.links()[link].length
    };
    // A sum of nothing would be -0.
    tree.hops().fold(0.0, |sum, hop| sum + of_hop(hop.below, hop.link))
}

/// The capacities of a tree whose endpoints come, go and change. A change costs time in the depth
/// of the endpoint, plus the links that lead to a core node, plus the children of every node with a
/// link below it that depends on all that is sent or received: in most trees the few nodes around
/// their middle.
#[derive(Clone, Debug)]
pub struct Provisioning {
    tree: Tree,
    children: Vec<Vec<usize>>,
    /// By node: the children that have a core node below or are one.
    core_children: Vec<Vec<usize>>,
    limits: Vec<Limits>,
    below: Vec<Side>,
    capacities: Vec<Capacity>,
    /// By node: no child's side has larger sums of send and receive limits than this. May be too
    /// large after a decrease, until the children are looked at.
    heaviest_child: Vec<Rate>,
    changed: Vec<usize>,
    stack: Vec<usize>,
}

/// α(S) + ω(S): the side is limited by what the rest sends exactly when this exceeds all sends,
/// so it decides whether a change elsewhere reaches a link. It only grows towards the root.
fn weight(side: &Side) -> Rate {
    side.limits.send + side.limits.receive
}

fn exceeds(rate: Rate, other: Rate) -> bool {
    rate.bits > other.bits || rate.packets > other.packets
}

fn max(rate: Rate, other: Rate) -> Rate {
    Rate { bits: rate.bits.max(other.bits), packets: rate.packets.max(other.packets) }
}

impl Provisioning {
    /// The capacities of a tree with these endpoints' limits and these core nodes, both by node.
    ///
    /// Limits are rounded up to whole bits and packets, at most [`Rate::MOST`]: sums of those are
    /// exact, so that a change equals provisioning anew.
    pub fn new(tree: Tree, mut limits: Vec<Limits>, core: Vec<bool>) -> Provisioning {
        limits.iter_mut().for_each(|limits| *limits = limits.whole());
        let capacities = provision(&tree, &limits, &core);
        let below = sides_below(&tree, &limits, &core);
        let children = tree.children();
        let has_core = |children: &Vec<usize>| -> Vec<usize> {
            children.iter().copied().filter(|child| below[*child].core > 0).collect()
        };
        let heaviest = |children: &Vec<usize>| {
            children
                .iter()
                .fold(Rate::ZERO, |heaviest, child| max(heaviest, weight(&below[*child])))
        };
        Provisioning {
            heaviest_child: children.iter().map(heaviest).collect(),
            core_children: children.iter().map(has_core).collect(),
            tree,
            children,
            limits,
            below,
            capacities,
            changed: Vec::new(),
            stack: Vec::new(),
        }
    }

    /// The capacity of the link above a node; nothing above the root.
    pub fn capacity(&self, node: usize) -> Capacity {
        self.capacities[node]
    }

    /// What the link above a node needs while this tree takes the place of another, where it is above `other_node`.
    /// What a relay sends still goes over its old link to the core when it is taken over its new one already, so
    /// on either side of this link may be what is there on either tree. That can be more than both trees need.
    pub fn capacity_between(
        &self,
        node: usize,
        other: &Provisioning,
        other_node: usize,
    ) -> Capacity {
        let sides = |of: &Provisioning, node: usize| {
            let (below, all) = (of.below[node], of.below[of.tree.root()]);
            (below, all - below)
        };
        let ((below, above), others) = (sides(self, node), sides(other, other_node));
        Capacity::between(&below.or(&others.0), &above.or(&others.1))
    }

    /// What a node of a meshed core sends to each other node of it (federated games §3.1): all that is
    /// sent on its side, which is at it and behind those of its links that do not lead to the core.
    ///
    /// The root must be in the core, and all of the rest of the core beside it. What the link between two
    /// such nodes needs is this of each of them, and not [`Provisioning::capacity`].
    pub fn sent_into_mesh(&self, node: usize) -> Rate {
        let behind = |child: &usize| self.below[*child].limits.send;
        let core = self.core_children[node].iter().map(behind);
        core.fold(self.below[node].limits.send, |all, of| all - of)
    }

    /// The limits in force at a node.
    pub fn limits(&self, node: usize) -> Limits {
        self.limits[node]
    }

    /// Changes the limits at a node: from nothing when an endpoint is added, to nothing when it is
    /// removed; rounded up to whole numbers. Returns the links whose capacity changed, each by the
    /// node below it.
    ///
    /// The node must be in the tree.
    pub fn set_limits(&mut self, node: usize, limits: Limits) -> &[usize] {
        let root = self.tree.root();
        let before = self.below[root].limits;
        let limits = limits.whole();
        let delta = limits - std::mem::replace(&mut self.limits[node], limits);
        self.changed.clear();
        for_path(&self.tree, node, |at, above| {
            self.below[at].limits = self.below[at].limits + delta;
            if let Some(above) = above {
                let heaviest = &mut self.heaviest_child[above];
                *heaviest = max(*heaviest, weight(&self.below[at]));
            }
        });
        let all = self.below[root];
        for_path(&self.tree, node, |at, above| {
            if above.is_some() {
                let capacity = Capacity::between(&self.below[at], &(all - self.below[at]));
                replace(&mut self.capacities[at], capacity, at, &mut self.changed);
            }
        });
        self.visit_elsewhere(before);
        &self.changed
    }

    /// Walks down from the root over the links that depend on all that the rest sends or
    /// receives: a change reaches those wherever it is.
    fn visit_elsewhere(&mut self, before: Limits) {
        let root = self.tree.root();
        let all = self.below[root];
        // Sides that weigh no more than this are limited by themselves, before and after.
        let now = all.limits;
        let least = before.send.min(now.send).min(before.receive).min(now.receive);
        self.stack.clear();
        self.stack.push(root);
        while let Some(above) = self.stack.pop() {
            let has_heavy = exceeds(self.heaviest_child[above], least);
            let look_at = if has_heavy { &self.children } else { &self.core_children };
            let mut heaviest = Rate::ZERO;
            for child in &look_at[above] {
                let side = self.below[*child];
                heaviest = max(heaviest, weight(&side));
                if side.core > 0 || exceeds(weight(&side), least) {
                    let capacity = Capacity::between(&side, &(all - side));
                    replace(&mut self.capacities[*child], capacity, *child, &mut self.changed);
                    self.stack.push(*child);
                }
            }
            if has_heavy {
                self.heaviest_child[above] = heaviest;
            }
        }
    }
}

/// Calls `visit` for a node and those above it, each with its parent.
fn for_path(tree: &Tree, node: usize, mut visit: impl FnMut(usize, Option<usize>)) {
    let mut next = Some(node);
    while let Some(at) = next {
        next = tree.hop(at).map(|(above, _)| above);
        visit(at, next);
    }
}

fn replace(old: &mut Capacity, new: Capacity, node: usize, changed: &mut Vec<usize>) {
    if *old != new {
        *old = new;
        changed.push(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 1 and 2 below 0, 3 and 4 below 2; sends 1, receives 3, but 4 sends nothing.
    fn example() -> (Tree, Vec<Limits>) {
        let tree = Tree::from_parents(&[None, Some(0), Some(0), Some(2), Some(2)]).unwrap();
        let mut limits = vec![Limits::bits(1.0, 3.0); 5];
        limits[4] = Limits::bits(0.0, 3.0);
        (tree, limits)
    }

    fn bits(capacities: &[Capacity]) -> Vec<(f64, f64)> {
        capacities.iter().map(|capacity| (capacity.up.bits, capacity.down.bits)).collect()
    }

    #[test]
    fn between_two_trees_a_link_carries_what_either_side_sends_on_either() {
        let (tree, limits) = example();
        let old = Provisioning::new(tree, limits.clone(), vec![false; 5]);
        // 3 hangs on 1 now. Node 1 takes for two, and what 3 sends may still come from above.
        let tree = Tree::from_parents(&[None, Some(0), Some(0), Some(1), Some(2)]).unwrap();
        let new = Provisioning::new(tree, limits, vec![false; 5]);
        let down = [old.capacity(1), new.capacity(1), old.capacity_between(1, &new, 1)];
        assert_eq!(down.map(|capacity| capacity.down.bits), [3.0, 2.0, 3.0]);
        let capacity = old.capacity_between(2, &new, 2);
        assert_eq!((capacity.up.bits, capacity.down.bits), (2.0, 3.0));
        assert_eq!(new.capacity_between(2, &old, 2), capacity);
        assert_eq!(old.capacity_between(2, &old, 2), old.capacity(2));
    }

    #[test]
    fn a_link_carries_what_one_side_sends_and_the_other_takes() {
        let (tree, limits) = example();
        let capacities = provision(&tree, &limits, &[false; 5]);
        let expected = [(0.0, 0.0), (1.0, 3.0), (2.0, 2.0), (1.0, 3.0), (0.0, 3.0)];
        assert_eq!(bits(&capacities), expected);
    }

    #[test]
    fn towards_the_core_everything_goes() {
        let (tree, mut limits) = example();
        limits[0].receive = Rate::ZERO;
        limits[1].receive = Rate::ZERO;
        let mut core = [false; 5];
        core[0] = true;
        let with_core = provision(&tree, &limits, &core);
        assert_eq!(bits(&with_core)[1], (1.0, 0.0));
        assert_eq!(bits(&with_core)[2], (2.0, 2.0));
        let without = provision(&tree, &limits, &[false; 5]);
        assert_eq!(bits(&without)[2], (0.0, 2.0));
    }

    #[test]
    fn a_node_of_a_mesh_sends_what_is_on_its_side() {
        let (tree, limits) = example();
        // 2 is in a mesh with the root: 1 is on the root's side, and 3 and 4 are on the other.
        let core = vec![true, false, true, false, false];
        let mut provisioning = Provisioning::new(tree, limits, core);
        let sent = |of: &Provisioning| [0, 2].map(|node| of.sent_into_mesh(node).bits);
        assert_eq!(sent(&provisioning), [2.0, 2.0]);
        provisioning.set_limits(4, Limits::bits(5.0, 3.0));
        assert_eq!(sent(&provisioning), [2.0, 7.0]);
        provisioning.set_limits(1, Limits::default());
        assert_eq!(sent(&provisioning), [1.0, 7.0]);
    }

    #[test]
    fn packets_are_provisioned_by_themselves() {
        let tree = Tree::from_parents(&[None, Some(0)]).unwrap();
        let limits = |bits, packets| {
            let rate = Rate { bits, packets };
            Limits { send: rate, receive: rate }
        };
        let capacities = provision(&tree, &[limits(9.0, 1.0), limits(2.0, 5.0)], &[false; 2]);
        assert_eq!(capacities[1].down, Rate { bits: 2.0, packets: 1.0 });
    }

    /// A tree of up to 40 nodes, limits of each, which of them are core, and changes.
    type Case = (Vec<usize>, Vec<(u32, u32)>, Vec<bool>, Vec<(usize, u32, u32)>);

    fn case() -> impl Strategy<Value = Case> {
        (1..40_usize).prop_flat_map(|nodes| {
            (
                proptest::collection::vec(any::<usize>(), nodes),
                proptest::collection::vec((0..5_u32, 0..20_u32), nodes),
                prop_oneof![
                    Just(vec![false; nodes]),
                    proptest::collection::vec(any::<bool>(), nodes)
                ],
                proptest::collection::vec((0..nodes, 0..9_u32, 0..30_u32), 1..20),
            )
        })
    }

    fn limits((send, receive): (u32, u32)) -> Limits {
        let rate = |bits: u32| Rate { bits: f64::from(bits), packets: f64::from(bits % 3) };
        Limits { send: rate(send), receive: rate(receive) }
    }

    #[test]
    fn fractions_leave_nothing_behind() {
        let tree = Tree::from_parents(&[None, Some(0), Some(1), Some(1), Some(1)]).unwrap();
        let mut provisioning = Provisioning::new(tree, vec![Limits::default(); 5], vec![false; 5]);
        let asked = [Limits::bits(0.1, 0.7), Limits::bits(0.2, f64::NAN), Limits::bits(9e99, 3.0)];
        for (node, limits) in (2..).zip(asked) {
            provisioning.set_limits(node, limits);
        }
        assert_eq!(provisioning.capacity(2).up.bits, 1.0, "a whole bit");
        for node in 2..5 {
            provisioning.set_limits(node, Limits::default());
        }
        assert_eq!(provisioning.capacity(1), Capacity::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Changing one endpoint after another gives what provisioning anew gives, and names
        /// exactly the links that differ.
        #[test]
        fn changes_equal_recomputation((parents, given, core, changes) in case()) {
            let parents: Vec<Option<usize>> = parents
                .iter()
                .enumerate()
                .map(|(node, parent)| (node > 0).then(|| parent % node.max(1)))
                .collect();
            let tree = Tree::from_parents(&parents).unwrap();
            let mut now: Vec<Limits> = given.into_iter().map(limits).collect();
            let mut provisioning = Provisioning::new(tree.clone(), now.clone(), core.clone());
            let mut before = provision(&tree, &now, &core);
            for (node, send, receive) in changes {
                now[node] = limits((send, receive));
                let mut changed = provisioning.set_limits(node, now[node]).to_vec();
                let anew = provision(&tree, &now, &core);
                let differ: Vec<usize> =
                    (0..parents.len()).filter(|node| anew[*node] != before[*node]).collect();
                changed.sort_unstable();
                prop_assert_eq!(changed, differ);
                let kept: Vec<Capacity> =
                    (0..parents.len()).map(|node| provisioning.capacity(node)).collect();
                prop_assert_eq!(&kept, &anew);
                before = anew;
            }
        }
    }
}
