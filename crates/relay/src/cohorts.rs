//! Receivers that get exactly the same updates of a flush form a cohort and share one burst.
//!
//! Found by refinement: every receiver starts in the root of its class; each target that it
//! receives moves it to the child of its node for that (target, level). Receivers that end in one
//! node took the same way, so the way to the node lists their targets. Work is one step for each
//! pair of target and receiver, however many updates wait and however many levels are in use.

use crate::index::{NONE, PortIndex};
use crate::shape::{DatagramClass, PeerClass, Shape};
use canopy_wire::Level;
use hashbrown::HashTable;

/// Every shape is laid out differently, so no two of them share a cohort: each has a root.
const CLASSES: [PeerClass; 3] =
    [PeerClass::Participant, PeerClass::TreeNeighbour, PeerClass::CorePeer];
const DATAGRAMS: [DatagramClass; 2] = [DatagramClass::Safe, DatagramClass::Long];
const ROOTS: usize = CLASSES.len() * DATAGRAMS.len();
/// A node's children of one target are looked through while there are no more than this, and looked up
/// in a table otherwise.
const FEW_CHILDREN: u32 = 8;

struct Node {
    parent: u32,
    target: u32,
    level: Level,
    shape: Shape,
    newest_child: u32,
    /// How many of the newest children are of one target.
    alike_children: u32,
    older_sibling: u32,
    first_member: PortIndex,
}

/// The receivers of a flush, by cohort.
pub(crate) struct Cohorts {
    nodes: Vec<Node>,
    receivers: Vec<PortIndex>,
    /// By port: its node, [`NONE`] outside a flush.
    node_of: Vec<u32>,
    /// By port: the next member of its cohort.
    next_member: Vec<PortIndex>,
    /// The children of nodes that have many for the target at work, by node and level.
    many_children: HashTable<u32>,
    target_at_work: u32,
    /// Children looked at: a test bounds the work that participants with hostile levels can cause.
    #[cfg(test)]
    looked_at: core::cell::Cell<usize>,
}

impl Cohorts {
    /// `max_pairs` bounds the pairs of target and receiver of a flush.
    pub(crate) fn new(max_ports: u32, max_pairs: u32) -> Cohorts {
        let ports = max_ports as usize;
        let mut nodes = Vec::with_capacity(max_pairs as usize + ROOTS);
        nodes.extend((0..ROOTS).map(|root| Node::new(NONE, NONE, Level(0), shape_of(root), NONE)));
        Cohorts {
            nodes,
            receivers: Vec::with_capacity(ports),
            node_of: vec![NONE; ports],
            next_member: vec![NONE; ports],
            many_children: HashTable::with_capacity(ports),
            target_at_work: NONE,
            #[cfg(test)]
            looked_at: core::cell::Cell::new(0),
        }
    }

    /// Notes that `receiver` gets the updates of `target` up to `level`. All receivers of one
    /// target are to be added before those of the next.
    pub(crate) fn add(&mut self, receiver: PortIndex, shape: Shape, target: u32, level: Level) {
        if target != self.target_at_work {
            self.target_at_work = target;
            if !self.many_children.is_empty() {
                self.many_children.clear();
            }
        }
        let mut node = self.node_of[receiver as usize];
        if node == NONE {
            self.receivers.push(receiver);
            node = root_of(shape);
        }
        let child = self.find_child(node, target, level);
        self.node_of[receiver as usize] =
            child.unwrap_or_else(|| self.add_child(node, target, level));
    }

    fn find_child(&self, node: u32, target: u32, level: Level) -> Option<u32> {
        let parent = &self.nodes[node as usize];
        // Children of this target are the newest; older ones belong to targets already done.
        let mut child = parent.newest_child;
        if child == NONE || self.nodes[child as usize].target != target {
            return None;
        }
        if parent.alike_children > FEW_CHILDREN {
            let is_it = |child: &u32| {
                self.note_look();
                let child = &self.nodes[*child as usize];
                child.parent == node && child.level == level
            };
            return self.many_children.find(child_hash(node, level), is_it).copied();
        }
        for _ in 0..parent.alike_children {
            self.note_look();
            if self.nodes[child as usize].level == level {
                return Some(child);
            }
            child = self.nodes[child as usize].older_sibling;
        }
        None
    }

    fn note_look(&self) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
    }

    fn add_child(&mut self, node: u32, target: u32, level: Level) -> u32 {
        let child = self.nodes.len() as u32;
        let Node { shape, newest_child, alike_children, .. } = self.nodes[node as usize];
        let is_first = newest_child == NONE || self.nodes[newest_child as usize].target != target;
        let alike = if is_first { 1 } else { alike_children + 1 };
        self.nodes.push(Node::new(node, target, level, shape, newest_child));
        self.nodes[node as usize].newest_child = child;
        self.nodes[node as usize].alike_children = alike;
        // When there is one child too many to look through, all of the target's go into the table;
        // from then on each new one does.
        let to_index = match alike {
            0..=FEW_CHILDREN => 0,
            _ if alike == FEW_CHILDREN + 1 => alike,
            _ => 1,
        };
        let (nodes, mut index) = (&self.nodes, child);
        let hash_of = |child: &u32| {
            let child = &nodes[*child as usize];
            child_hash(child.parent, child.level)
        };
        for _ in 0..to_index {
            self.many_children.insert_unique(hash_of(&index), index, hash_of);
            index = nodes[index as usize].older_sibling;
        }
        child
    }

    /// Lists each receiver with its cohort, after the last [`Cohorts::add`].
    pub(crate) fn seal(&mut self) {
        for receiver in self.receivers.iter().rev() {
            let node = &mut self.nodes[self.node_of[*receiver as usize] as usize];
            self.next_member[*receiver as usize] = node.first_member;
            node.first_member = *receiver;
        }
    }

    /// The nodes that have members: the cohorts.
    pub(crate) fn nodes(&self) -> core::ops::Range<u32> {
        ROOTS as u32..self.nodes.len() as u32
    }

    /// The shape of a node's members.
    pub(crate) fn shape(&self, node: u32) -> Shape {
        self.nodes[node as usize].shape
    }

    /// The first member of a node, or [`NONE`] if it is only on the way to others.
    pub(crate) fn first_member(&self, node: u32) -> PortIndex {
        self.nodes[node as usize].first_member
    }

    /// The member after `receiver`, or [`NONE`].
    pub(crate) fn next_member(&self, receiver: PortIndex) -> PortIndex {
        self.next_member[receiver as usize]
    }

    /// How many members a node has, counted up to `most`.
    pub(crate) fn members_up_to(&self, node: u32, most: u32) -> u32 {
        let mut member = self.first_member(node);
        let mut count = 0;
        while member != NONE && count < most {
            member = self.next_member(member);
            count += 1;
        }
        count
    }

    /// The targets of a node's members with the level up to which they get them, last first.
    pub(crate) fn targets(&self, node: u32) -> impl Iterator<Item = (u32, Level)> + '_ {
        core::iter::successors(Some(node), |node| Some(self.nodes[*node as usize].parent))
            .take_while(|node| *node >= ROOTS as u32)
            .map(|node| (self.nodes[node as usize].target, self.nodes[node as usize].level))
    }

    pub(crate) fn clear(&mut self) {
        for receiver in self.receivers.drain(..) {
            self.node_of[receiver as usize] = NONE;
        }
        self.nodes.truncate(ROOTS);
        for root in &mut self.nodes {
            root.newest_child = NONE;
            root.alike_children = 0;
        }
        self.many_children.clear();
        self.target_at_work = NONE;
    }
}

impl Node {
    fn new(parent: u32, target: u32, level: Level, shape: Shape, older_sibling: u32) -> Node {
        Node {
            parent,
            target,
            level,
            shape,
            newest_child: NONE,
            alike_children: 0,
            older_sibling,
            first_member: NONE,
        }
    }
}

/// The root of a shape's receivers.
fn root_of(shape: Shape) -> u32 {
    shape.class as u32 * DATAGRAMS.len() as u32 + shape.datagrams as u32
}

fn shape_of(root: usize) -> Shape {
    let (class, datagrams) = (root / DATAGRAMS.len(), root % DATAGRAMS.len());
    Shape { class: CLASSES[class], datagrams: DATAGRAMS[datagrams] }
}

fn child_hash(node: u32, level: Level) -> u64 {
    (u64::from(node) << 8 | u64::from(level.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn members(cohorts: &Cohorts, node: u32) -> Vec<PortIndex> {
        let first = Some(cohorts.first_member(node)).filter(|first| *first != NONE);
        core::iter::successors(first, |member| {
            Some(cohorts.next_member(*member)).filter(|next| *next != NONE)
        })
        .collect()
    }

    /// One shape for all, or all in turn.
    fn shape_for(receiver: PortIndex, alike: bool) -> Shape {
        shape_of(if alike { 0 } else { receiver as usize % ROOTS })
    }

    #[test]
    fn every_shape_has_its_root() {
        for root in 0..ROOTS {
            assert_eq!(root_of(shape_of(root)), root as u32);
        }
    }

    /// The most levels, in every order, over targets that split the cohorts again and again.
    #[test]
    fn many_levels_cost_a_few_steps_a_pair() {
        let (receivers, targets) = (2048u32, 24u32);
        let mut cohorts = Cohorts::new(receivers, receivers * targets);
        for target in 0..targets {
            for receiver in 0..receivers {
                // An odd stride goes through all levels.
                let level = (receiver * (2 * target + 1) + receiver / 256 * target) as u8;
                cohorts.add(receiver, shape_of(0), target, Level(level));
            }
        }
        let (looked_at, pairs) = (cohorts.looked_at.get(), (receivers * targets) as usize);
        assert!(looked_at > 0);
        assert!(looked_at <= 2 * pairs, "{looked_at} for {pairs} pairs");
        // The same levels for all targets: one cohort for each, found again every time.
        cohorts.clear();
        cohorts.looked_at.set(0);
        for target in 0..targets {
            for receiver in 0..receivers {
                cohorts.add(receiver, shape_of(0), target, Level(receiver as u8));
            }
        }
        let looked_at = cohorts.looked_at.get();
        assert!(looked_at <= 2 * pairs, "{looked_at} for {pairs} pairs");
    }

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0xc0);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]
        /// The slow way: a map from each receiver's list of targets to the receivers that have it.
        #[test]
        fn cohorts_are_the_classes_of_equal_lists(
            pairs in proptest::collection::btree_set((0u32..6, 0u32..80, 0u8..24), 0..240),
            // Then a node has more children than are looked through one by one.
            alike in any::<bool>(),
        ) {
            let mut cohorts = Cohorts::new(80, 240);
            for round in 0..2 {
                let mut lists: BTreeMap<PortIndex, Vec<(u32, Level)>> = BTreeMap::new();
                let mut seen = std::collections::BTreeSet::new();
                for (target, receiver, level) in &pairs {
                    if seen.insert((*target, *receiver)) {
                        cohorts.add(*receiver, shape_for(*receiver, alike), *target, Level(*level));
                        lists.entry(*receiver).or_default().insert(0, (*target, Level(*level)));
                    }
                }
                cohorts.seal();
                let mut classes: BTreeMap<_, Vec<PortIndex>> = BTreeMap::new();
                for (receiver, list) in lists {
                    let class = root_of(shape_for(receiver, alike));
                    classes.entry((class, list)).or_default().push(receiver);
                }
                let mut found = BTreeMap::new();
                for node in cohorts.nodes() {
                    let mut members = members(&cohorts, node);
                    members.sort_unstable();
                    if !members.is_empty() {
                        let list = cohorts.targets(node).collect::<Vec<_>>();
                        let key = (root_of(cohorts.shape(node)), list);
                        prop_assert!(found.insert(key, members).is_none(), "twice the same");
                    }
                }
                prop_assert_eq!(found, classes, "round {}", round);
                cohorts.clear();
            }
        }
    }
}
