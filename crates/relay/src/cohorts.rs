//! Receivers that get exactly the same updates of a flush form a cohort and share one burst.
//!
//! Found by refinement: every receiver starts in the root; each target that it receives moves it
//! to the child of its node for that (target, level). Receivers that end in one node took the
//! same way, so the way to the node lists their targets. Work is one step for each pair of target
//! and receiver, however many updates wait.

use canopy_session::SlotIndex;
use canopy_wire::Level;

/// No index.
pub(crate) const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

struct Node {
    parent: u32,
    target: u32,
    level: Level,
    newest_child: u32,
    older_sibling: u32,
    first_member: SlotIndex,
}

/// The receivers of a flush, by cohort.
pub(crate) struct Cohorts {
    nodes: Vec<Node>,
    receivers: Vec<SlotIndex>,
    /// By session: its node, [`ROOT`] outside a flush.
    node_of: Vec<u32>,
    /// By session: the next member of its cohort.
    next_member: Vec<SlotIndex>,
}

impl Cohorts {
    /// `max_pairs` bounds the pairs of target and receiver of a flush.
    pub(crate) fn new(max_sessions: u32, max_pairs: u32) -> Cohorts {
        let sessions = max_sessions as usize;
        let mut nodes = Vec::with_capacity(max_pairs as usize + 1);
        nodes.push(Node::new(NONE, NONE, Level(0), NONE));
        Cohorts {
            nodes,
            receivers: Vec::with_capacity(sessions),
            node_of: vec![ROOT; sessions],
            next_member: vec![NONE; sessions],
        }
    }

    /// Notes that `receiver` gets the updates of `target` up to `level`. All receivers of one
    /// target are to be added before those of the next.
    pub(crate) fn add(&mut self, receiver: SlotIndex, target: u32, level: Level) {
        let node = self.node_of[receiver as usize];
        if node == ROOT {
            self.receivers.push(receiver);
        }
        // Children of this target are the newest; older ones belong to targets already done.
        let mut child = self.nodes[node as usize].newest_child;
        while child != NONE {
            let found = &self.nodes[child as usize];
            if found.target != target {
                child = NONE;
            } else if found.level == level {
                break;
            } else {
                child = found.older_sibling;
            }
        }
        if child == NONE {
            child = self.nodes.len() as u32;
            let older = core::mem::replace(&mut self.nodes[node as usize].newest_child, child);
            self.nodes.push(Node::new(node, target, level, older));
        }
        self.node_of[receiver as usize] = child;
    }

    /// Lists each receiver with its cohort, after the last [`Cohorts::add`].
    pub(crate) fn seal(&mut self) {
        for receiver in self.receivers.iter().rev() {
            let node = &mut self.nodes[self.node_of[*receiver as usize] as usize];
            self.next_member[*receiver as usize] = node.first_member;
            node.first_member = *receiver;
        }
    }

    /// How many nodes there are; cohorts are among them.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The first member of a node, or [`NONE`] if it is only on the way to others.
    pub(crate) fn first_member(&self, node: u32) -> SlotIndex {
        self.nodes[node as usize].first_member
    }

    /// The member after `receiver`, or [`NONE`].
    pub(crate) fn next_member(&self, receiver: SlotIndex) -> SlotIndex {
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
            .take_while(|node| *node != ROOT)
            .map(|node| (self.nodes[node as usize].target, self.nodes[node as usize].level))
    }

    pub(crate) fn clear(&mut self) {
        for receiver in self.receivers.drain(..) {
            self.node_of[receiver as usize] = ROOT;
        }
        self.nodes.truncate(1);
        self.nodes[0].newest_child = NONE;
    }
}

impl Node {
    fn new(parent: u32, target: u32, level: Level, older_sibling: u32) -> Node {
        Node { parent, target, level, newest_child: NONE, older_sibling, first_member: NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn members(cohorts: &Cohorts, node: u32) -> Vec<SlotIndex> {
        let first = Some(cohorts.first_member(node)).filter(|first| *first != NONE);
        core::iter::successors(first, |member| {
            Some(cohorts.next_member(*member)).filter(|next| *next != NONE)
        })
        .collect()
    }

    proptest! {
        /// The slow way: a map from each receiver's list of targets to the receivers that have it.
        #[test]
        fn cohorts_are_the_classes_of_equal_lists(
            pairs in proptest::collection::btree_set((0u32..6, 0u32..20, 0u8..3), 0..80),
        ) {
            let mut cohorts = Cohorts::new(20, 200);
            for round in 0..2 {
                let mut lists: BTreeMap<SlotIndex, Vec<(u32, Level)>> = BTreeMap::new();
                let mut seen = std::collections::BTreeSet::new();
                for (target, receiver, level) in &pairs {
                    if seen.insert((*target, *receiver)) {
                        cohorts.add(*receiver, *target, Level(*level));
                        lists.entry(*receiver).or_default().insert(0, (*target, Level(*level)));
                    }
                }
                cohorts.seal();
                let mut classes: BTreeMap<Vec<(u32, Level)>, Vec<SlotIndex>> = BTreeMap::new();
                for (receiver, list) in lists {
                    classes.entry(list).or_default().push(receiver);
                }
                let mut found = BTreeMap::new();
                for node in 0..cohorts.nodes() {
                    let mut members = members(&cohorts, node);
                    members.sort_unstable();
                    if !members.is_empty() {
                        found.insert(cohorts.targets(node).collect::<Vec<_>>(), members);
                    }
                }
                prop_assert_eq!(found, classes, "round {}", round);
                cohorts.clear();
            }
        }
    }
}
