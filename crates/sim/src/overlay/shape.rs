//! The relays of a run: their links, and the comtrees over them with their cores.

use canopy_relay::BranchRole;
use canopy_wire::Comtree;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

use crate::network::Direction;

/// How the relays of a comtree hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Line,
    Star,
    /// Each relay hangs on any of those before it.
    Random,
    /// Each relay hangs on one of the last few before it: long branches.
    Deep,
    /// A part of the links that are there.
    Shared,
}

/// Which relays of a comtree are its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    One,
    Subtree,
    All,
    Mesh,
}

/// A relay's place on a comtree.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The relay that is next on the way to the root; none at the root, and none in a meshed core.
    pub(crate) parent: Option<usize>,
    pub(crate) in_core: bool,
    pub(crate) site: u16,
}

/// A branch, as both of its relays see it.
pub(crate) struct Edge {
    pub(crate) relays: [usize; 2],
    /// What each of them calls the other.
    pub(crate) roles: [BranchRole; 2],
}

/// A step from one relay to the next: the link, and which way.
pub(crate) type Hop = (usize, Direction);

/// A comtree.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) comtree: Comtree,
    pub(crate) shape: Shape,
    pub(crate) core: Core,
    /// By relay; none for a relay that does not carry it.
    pub(crate) nodes: Vec<Option<Node>>,
    /// Two relays that are joined although there is a way between them already.
    pub(crate) shortcut: Option<[usize; 2]>,
}

/// The links between relays, by their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    ends: Vec<[usize; 2]>,
    numbers: BTreeMap<[usize; 2], usize>,
}

impl Links {
    /// The links, each with its two relays, the smaller number first.
    pub(crate) fn ends(&self) -> &[[usize; 2]] {
        &self.ends
    }

    /// The link between two relays, and the direction from the first to the second.
    pub(crate) fn between(&self, from: usize, to: usize) -> Option<Hop> {
        let number = *self.numbers.get(&[from.min(to), from.max(to)])?;
        Some((number, if from < to { Direction::Up } else { Direction::Down }))
    }

    pub(crate) fn add(&mut self, one: usize, other: usize) {
        let ends = [one.min(other), one.max(other)];
        if one != other && !self.numbers.contains_key(&ends) {
            self.numbers.insert(ends, self.ends.len());
            self.ends.push(ends);
        }
    }

    pub(crate) fn neighbours(&self, relay: usize) -> impl Iterator<Item = usize> {
        let other = move |[a, b]: &[usize; 2]| match relay {
            _ if *a == relay => Some(*b),
            _ if *b == relay => Some(*a),
            _ => None,
        };
        self.ends.iter().filter_map(other)
    }
}

impl Tree {
    /// The relays that carry the comtree.
    pub(crate) fn relays(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().enumerate().filter_map(|(relay, node)| node.as_ref().map(|_| relay))
    }

    /// The branches.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (relay, node) in self.nodes.iter().enumerate() {
            let Some(Node { parent: Some(parent), in_core, .. }) = node else { continue };
            let roles = match in_core {
                true => [BranchRole::Core, BranchRole::Core],
                false => [BranchRole::Parent, BranchRole::Child],
            };
            edges.push(Edge { relays: [relay, *parent], roles });
        }
        if self.core == Core::Mesh {
            let core: Vec<_> = self.core_relays().collect();
            for (number, one) in core.iter().enumerate() {
                let roles = [BranchRole::CorePeer; 2];
                let peers = core[number + 1..].iter();
                edges.extend(peers.map(|other| Edge { relays: [*one, *other], roles }));
            }
        }
        let roles = [BranchRole::Core; 2];
        edges.extend(self.shortcut.map(|relays| Edge { relays, roles }));
        edges
    }

    pub(crate) fn core_relays(&self) -> impl Iterator<Item = usize> {
        self.relays().filter(|relay| self.nodes[*relay].as_ref().is_some_and(|node| node.in_core))
    }

    /// The way between two relays that carry the comtree.
    pub(crate) fn path(&self, links: &Links, from: usize, to: usize) -> Vec<Hop> {
        let (mut up, mut down) = (self.to_the_top(from), self.to_the_top(to));
        // Both end at the top, which is one relay unless the core is meshed.
        while up.len() > 1 && down.len() > 1 && up[up.len() - 2..] == down[down.len() - 2..] {
            up.pop();
            down.pop();
        }
        if up.last() == down.last() {
            down.pop();
        }
        let relays: Vec<_> = up.into_iter().chain(down.into_iter().rev()).collect();
        relays.windows(2).filter_map(|pair| links.between(pair[0], pair[1])).collect()
    }

    fn to_the_top(&self, relay: usize) -> Vec<usize> {
        let parent = |relay: &usize| self.nodes[*relay].as_ref().and_then(|node| node.parent);
        std::iter::successors(Some(relay), parent).collect()
    }

    /// Whether the way from a relay to the top leads over another.
    pub(crate) fn is_below(&self, relay: usize, top: usize) -> bool {
        self.to_the_top(relay).contains(&top)
    }

    /// The longest way between two of its relays, in links.
    pub(crate) fn diameter(&self, links: &Links) -> usize {
        let longest_from = |from: usize| {
            let far = self.relays().map(|to| (self.path(links, from, to).len(), to)).max();
            far.unwrap_or((0, from))
        };
        let Some(any) = self.relays().next() else { return 0 };
        longest_from(longest_from(any).1).0
    }
}

/// Draws the comtrees of a run, and the links that they need.
pub(crate) fn draw(relays: usize, rng: &mut ChaCha8Rng) -> (Links, Vec<Tree>) {
    let mut links = Links::default();
    let shapes = [Shape::Line, Shape::Star, Shape::Random, Shape::Deep];
    let shape = shapes[rng.random_range(0..shapes.len())];
    let core = draw_core(relays, rng);
    let meshed = if core == Core::Mesh { rng.random_range(2..=relays.min(6)) } else { 1 };
    let parents: Vec<_> = (0..relays).map(|relay| draw_parent(relay, meshed, shape, rng)).collect();
    for (relay, parent) in parents.iter().enumerate() {
        parent.iter().for_each(|parent| links.add(relay, *parent));
    }
    for one in 0..meshed {
        (0..one).for_each(|other| links.add(one, other));
    }
    let mut trees = vec![plant(Comtree(1), (shape, core), parents.into_iter().map(Some), rng)];
    // Ways that the first comtree does not need, so that the others are not always parts of it.
    for _ in 0..relays / 5 {
        links.add(rng.random_range(0..relays), rng.random_range(0..relays));
    }
    for number in 2..=[1, 1, 2, 3][rng.random_range(0..4)] {
        let parents = grow(relays, &links, rng);
        let core = [Core::One, Core::Subtree, Core::All][rng.random_range(0..3)];
        trees.push(plant(Comtree(number), (Shape::Shared, core), parents.into_iter(), rng));
    }
    (links, trees)
}

fn draw_core(relays: usize, rng: &mut ChaCha8Rng) -> Core {
    let cores = [Core::One, Core::Subtree, Core::All, Core::Mesh];
    cores[rng.random_range(0..if relays > 1 { 4 } else { 3 })]
}

fn draw_parent(relay: usize, meshed: usize, shape: Shape, rng: &mut ChaCha8Rng) -> Option<usize> {
    let first = match shape {
        _ if relay < meshed => return None,
        Shape::Line => relay - 1,
        Shape::Star => return Some(0),
        Shape::Random | Shape::Shared => 0,
        Shape::Deep => relay.saturating_sub(3),
    };
    Some(rng.random_range(first..relay))
}

/// A tree over some of the links: each relay that it reaches, with its parent.
fn grow(relays: usize, links: &Links, rng: &mut ChaCha8Rng) -> Vec<Option<Option<usize>>> {
    let wanted = rng.random_range(1..=relays);
    let root = rng.random_range(0..relays);
    let mut parents = vec![None; relays];
    parents[root] = Some(None);
    for _ in 1..wanted {
        let inside = (0..relays).filter(|relay| parents[*relay].is_some());
        let ways: Vec<_> = inside
            .flat_map(|relay| links.neighbours(relay).map(move |next| (relay, next)))
            .filter(|(_, next)| parents[*next].is_none())
            .collect();
        if ways.is_empty() {
            break;
        }
        let (relay, next) = ways[rng.random_range(0..ways.len())];
        parents[next] = Some(Some(relay));
    }
    parents
}

/// Gives the relays of a tree their parts in the core, and their sites.
fn plant(
    comtree: Comtree,
    (shape, core): (Shape, Core),
    parents: impl Iterator<Item = Option<Option<usize>>>,
    rng: &mut ChaCha8Rng,
) -> Tree {
    let parents: Vec<_> = parents.collect();
    let in_core = draw_core_relays(&parents, core, rng);
    // The relays of a site are a subtree.
    let shared_sites = [0.0, 0.3, 0.7][rng.random_range(0..3)];
    let joins: Vec<_> = parents.iter().map(|_| rng.random_bool(shared_sites)).collect();
    let site_of = |relay: usize| {
        let up = |relay: &usize| parents[*relay].flatten().filter(|_| joins[*relay]);
        std::iter::successors(Some(relay), up).last().unwrap_or(relay) as u16 + 1
    };
    let node = |relay: usize| {
        let parent = parents[relay]?;
        Some(Node { parent, in_core: in_core.contains(&relay), site: site_of(relay) })
    };
    let nodes = (0..parents.len()).map(node).collect();
    Tree { comtree, shape, core, nodes, shortcut: None }
}

fn draw_core_relays(
    parents: &[Option<Option<usize>>],
    core: Core,
    rng: &mut ChaCha8Rng,
) -> BTreeSet<usize> {
    let here = (0..parents.len()).filter(|relay| parents[*relay].is_some());
    let mut in_core: BTreeSet<_> =
        here.clone().filter(|relay| core == Core::All || parents[*relay] == Some(None)).collect();
    if core == Core::Subtree {
        let wanted = rng.random_range(1..=here.clone().count());
        while in_core.len() < wanted {
            let is_next = |relay: &usize| {
                let parent = parents[*relay].flatten();
                parent.is_some_and(|parent| in_core.contains(&parent)) && !in_core.contains(relay)
            };
            let next: Vec<_> = here.clone().filter(is_next).collect();
            if next.is_empty() {
                break;
            }
            in_core.insert(next[rng.random_range(0..next.len())]);
        }
    }
    in_core
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_two_relays_of_a_comtree_have_one_way_without_a_turn() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let relays = 1 + seed as usize % 12;
            let (links, trees) = draw(relays, &mut rng);
            for tree in &trees {
                for from in tree.relays() {
                    for to in tree.relays() {
                        let path = tree.path(&links, from, to);
                        assert_eq!(path.is_empty(), from == to);
                        let mut at = from;
                        let mut seen = BTreeSet::from([from]);
                        for (link, direction) in path {
                            let [a, b] = links.ends()[link];
                            let (start, end) =
                                if direction == Direction::Up { (a, b) } else { (b, a) };
                            assert_eq!(at, start, "seed {seed}");
                            assert!(seen.insert(end), "seed {seed}");
                            at = end;
                        }
                        assert_eq!(at, to, "seed {seed}");
                    }
                }
            }
        }
    }

    #[test]
    fn sites_are_subtrees_and_every_branch_has_a_link() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (links, trees) = draw(2 + seed as usize % 20, &mut rng);
            for tree in &trees {
                for Edge { relays: [a, b], .. } in tree.edges() {
                    assert!(links.between(a, b).is_some());
                }
                for node in tree.nodes.iter().flatten() {
                    let root = usize::from(node.site) - 1;
                    let site = tree.nodes[root].as_ref().map(|node| node.site);
                    assert_eq!(site, Some(node.site), "a site is named after its root");
                    let parent = node.parent.and_then(|parent| tree.nodes[parent].as_ref());
                    let is_in_site = parent.is_some_and(|parent| parent.site == node.site);
                    let is_root = std::ptr::eq(tree.nodes[root].as_ref().unwrap(), node);
                    assert!(is_in_site || is_root, "seed {seed}");
                }
            }
        }
    }
}
