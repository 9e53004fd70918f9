//! Who is joined with whom in a lab, and who is what to whom: a pure function of shape and core.

use anyhow::bail;
use canopy_relay::BranchRole;
use clap::ValueEnum;

/// The most relays of a lab.
pub(crate) const MAX_RELAYS: usize = 64;

/// How relays are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// One after the other; relay 1 is an end
    Line,
    /// All with relay 1
    Star,
    /// A binary tree; relay 1 is the root
    Tree,
    /// Each with every other
    Mesh,
}

/// Which relays are the comtree's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Core {
    /// Relay 1 alone
    One,
    /// All of them, as a tree
    All,
    /// All of them, each joined with every other: a meshed core
    Mesh,
}

/// Two relays that are joined. Relays have numbers from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Join {
    /// Which two; the nearer to relay 0 first.
    pub(crate) relays: [usize; 2],
    /// What the other is to each of them, in the same order.
    pub(crate) roles: [BranchRole; 2],
}

/// The joins of a number of relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) relays: usize,
    pub(crate) joins: Vec<Join>,
}

/// What a relay has of one of its joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// The neighbour's number.
    pub(crate) neighbour: usize,
    /// What the neighbour is to the relay.
    pub(crate) role: BranchRole,
    /// The join's number: the same on both sides.
    pub(crate) join: usize,
}

impl Shape {
    /// The core that is meant unless it is said.
    pub(crate) fn core(self) -> Core {
        if self == Shape::Mesh { Core::Mesh } else { Core::One }
    }
}

impl Topology {
    /// The joins of so many relays.
    ///
    /// # Errors
    /// If there are none or too many, or shape and core do not go together.
    pub(crate) fn new(relays: usize, shape: Shape, core: Core) -> anyhow::Result<Topology> {
        if !(1..=MAX_RELAYS).contains(&relays) {
            bail!("--relays {relays} is out of range; choose 1 to {MAX_RELAYS}");
        }
        match (shape, core) {
            (Shape::Mesh, Core::One | Core::All) => bail!(
                "--shape mesh joins each relay with every other, and a comtree may have such circles \
                 only in a meshed core; choose --core mesh, or --shape line, star or tree"
            ),
            (Shape::Line | Shape::Star | Shape::Tree, Core::Mesh) => bail!(
                "--core mesh asks for a join of each relay with every other; choose --shape mesh, or \
                 --core one or all"
            ),
            _ => {}
        }
        let roles = match core {
            Core::One => [BranchRole::Child, BranchRole::Parent],
            Core::All => [BranchRole::Core; 2],
            Core::Mesh => [BranchRole::CorePeer; 2],
        };
        let joins = (1..relays).flat_map(|relay| nearer(shape, relay).map(move |to| [to, relay]));
        let joins = joins.map(|relays| Join { relays, roles }).collect();
        Ok(Topology { relays, joins })
    }

    /// The branches of a relay.
    pub(crate) fn branches(&self, relay: usize) -> impl Iterator<Item = Branch> {
        self.joins.iter().enumerate().flat_map(move |(join, Join { relays: [a, b], roles })| {
            let near = (*a == relay).then_some(Branch { neighbour: *b, role: roles[0], join });
            let far = (*b == relay).then_some(Branch { neighbour: *a, role: roles[1], join });
            near.or(far)
        })
    }
}

/// The relays with lower numbers that a relay other than 0 is joined with.
fn nearer(shape: Shape, relay: usize) -> std::ops::Range<usize> {
    let only = |one| one..one + 1;
    match shape {
        Shape::Line => only(relay - 1),
        Shape::Star => only(0),
        Shape::Tree => only((relay - 1) / 2),
        Shape::Mesh => 0..relay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREES: [Shape; 3] = [Shape::Line, Shape::Star, Shape::Tree];

    fn count(topology: &Topology, relay: usize, role: BranchRole) -> usize {
        topology.branches(relay).filter(|branch| branch.role == role).count()
    }

    /// How many relays can be reached from relay 0.
    fn reached(topology: &Topology) -> usize {
        let (mut seen, mut next) = (vec![false; topology.relays], vec![0]);
        while let Some(relay) = next.pop() {
            if !std::mem::replace(&mut seen[relay], true) {
                next.extend(topology.branches(relay).map(|branch| branch.neighbour));
            }
        }
        seen.iter().filter(|seen| **seen).count()
    }

    #[test]
    fn every_relay_but_the_core_has_one_parent_and_that_way_leads_to_the_core() {
        for (shape, relays) in TREES.into_iter().flat_map(|shape| (1..=64).map(move |n| (shape, n)))
        {
            let topology = Topology::new(relays, shape, Core::One).unwrap();
            for relay in 0..relays {
                let parents = count(&topology, relay, BranchRole::Parent);
                assert_eq!(parents, usize::from(relay > 0), "{shape:?} {relays}: relay {relay}");
                let mut at = relay;
                for _ in 0..relays {
                    let mut branches = topology.branches(at);
                    let parent = branches.find(|branch| branch.role == BranchRole::Parent);
                    at = parent.map_or(at, |parent| parent.neighbour);
                }
                assert_eq!(at, 0, "{shape:?} {relays}: relay {relay} is led astray");
            }
        }
    }

    #[test]
    fn trees_are_connected_without_circles_and_the_two_sides_agree() {
        for core in [Core::One, Core::All] {
            for (shape, relays) in
                TREES.into_iter().flat_map(|shape| [1, 2, 5, 64].map(|n| (shape, n)))
            {
                let topology = Topology::new(relays, shape, core).unwrap();
                assert_eq!((topology.joins.len(), reached(&topology)), (relays - 1, relays));
                for (relay, branch) in
                    (0..relays).flat_map(|relay| topology.branches(relay).map(move |b| (relay, b)))
                {
                    let mut back = topology.branches(branch.neighbour);
                    let back = back.find(|back| back.join == branch.join).unwrap();
                    let opposite = match branch.role {
                        BranchRole::Parent => BranchRole::Child,
                        BranchRole::Child => BranchRole::Parent,
                        same => same,
                    };
                    assert_eq!((back.neighbour, back.role), (relay, opposite));
                }
            }
        }
    }

    #[test]
    fn the_shapes_are_what_they_are_called() {
        let joins = |shape| {
            let topology = Topology::new(5, shape, Shape::core(shape)).unwrap();
            topology.joins.iter().map(|join| join.relays).collect::<Vec<_>>()
        };
        assert_eq!(joins(Shape::Line), [[0, 1], [1, 2], [2, 3], [3, 4]]);
        assert_eq!(joins(Shape::Star), [[0, 1], [0, 2], [0, 3], [0, 4]]);
        assert_eq!(joins(Shape::Tree), [[0, 1], [0, 2], [1, 3], [1, 4]]);
        assert_eq!(joins(Shape::Mesh).len(), 10);
    }

    #[test]
    fn a_mesh_has_every_pair_once_as_core_peers() {
        let topology = Topology::new(7, Shape::Mesh, Core::Mesh).unwrap();
        for relay in 0..7 {
            assert_eq!(count(&topology, relay, BranchRole::CorePeer), 6);
            let mut neighbours: Vec<_> = topology.branches(relay).map(|b| b.neighbour).collect();
            neighbours.sort_unstable();
            assert_eq!(neighbours, (0..7).filter(|other| *other != relay).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_does_not_go_together_is_explained() {
        for (relays, shape, core, words) in [
            (0, Shape::Line, Core::One, "choose 1 to 64"),
            (65, Shape::Line, Core::One, "choose 1 to 64"),
            (3, Shape::Mesh, Core::One, "choose --core mesh, or --shape line"),
            (3, Shape::Mesh, Core::All, "choose --core mesh, or --shape line"),
            (3, Shape::Tree, Core::Mesh, "choose --shape mesh, or --core one"),
        ] {
            let error = Topology::new(relays, shape, core).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
