//! Trees over a network's nodes: the shape of a comtree.

use crate::network::Network;

/// A rooted tree over some of a network's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: usize,
    /// By node: its parent and the link that leads there; of the root and of nodes that are not in
    /// the tree, none.
    hops: Vec<Option<(usize, usize)>>,
    /// The nodes of the tree, each after its parent.
    order: Vec<usize>,
}

impl Tree {
    /// The tree of the nodes from which these hops, each a parent and the link to it, lead to the
    /// root. Other nodes are not in it.
    pub(crate) fn new(root: usize, mut hops: Vec<Option<(usize, usize)>>) -> Tree {
        hops[root] = None;
        let children = children_of(&hops);
        let mut order = vec![root];
        let mut next = 0;
        while let Some(node) = order.get(next).copied() {
            order.extend_from_slice(&children[node]);
            next += 1;
        }
        if order.len() < hops.len() {
            let mut inside = vec![false; hops.len()];
            order.iter().for_each(|node| inside[*node] = true);
            hops.iter_mut()
                .zip(inside)
                .filter(|(_, inside)| !inside)
                .for_each(|(hop, _)| *hop = None);
        }
        Tree { root, hops, order }
    }

    /// A tree over nodes numbered from 0, given by each node's parent: for trees that come from
    /// elsewhere than a network's links. The link to the parent has the number of the node.
    ///
    /// # Errors
    /// What is no tree: not one root, or a node that does not lead to it.
    pub fn from_parents(parents: &[Option<usize>]) -> Result<Tree, String> {
        let mut roots = (0..parents.len()).filter(|node| parents[*node].is_none());
        let (Some(root), None) = (roots.next(), roots.next()) else {
            return Err("a tree has one root: one node without a parent".to_owned());
        };
        if let Some(parent) = parents.iter().flatten().find(|parent| **parent >= parents.len()) {
            return Err(format!("parent {parent} is no node"));
        }
        let hops = parents.iter().enumerate().map(|(node, parent)| parent.map(|p| (p, node)));
        let tree = Tree::new(root, hops.collect());
        if tree.order.len() < parents.len() {
            return Err("some nodes do not lead to the root: there is a cycle".to_owned());
        }
        Ok(tree)
    }

    /// The root.
    pub fn root(&self) -> usize {
        self.root
    }

    /// The nodes of the tree, each after its parent.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The parent of a node and the link that leads there.
    pub fn hop(&self, node: usize) -> Option<(usize, usize)> {
        self.hops[node]
    }

    /// The links of the tree: each with the node below it and the one above.
    pub fn hops(&self) -> impl Iterator<Item = Hop> + '_ {
        self.order.iter().filter_map(|below| {
            self.hops[*below].map(|(above, link)| Hop { below: *below, above, link })
        })
    }

    /// How many numbers the nodes of the network have.
    pub(crate) fn numbers(&self) -> usize {
        self.hops.len()
    }

    /// By node: its children.
    pub(crate) fn children(&self) -> Vec<Vec<usize>> {
        children_of(&self.hops)
    }

    /// The tree without what no path between kept nodes needs. A root that is not kept and has
    /// one child left is not needed either: the child is then the root.
    #[must_use]
    pub fn pruned(&self, keep: &[bool]) -> Tree {
        let mut children = vec![0_u32; self.hops.len()];
        let mut hops = self.hops.clone();
        for node in &self.order {
            if let Some((above, _)) = hops[*node] {
                children[above] += 1;
            }
        }
        for node in self.order.iter().rev() {
            if children[*node] == 0
                && !keep[*node]
                && let Some((above, _)) = hops[*node].take()
            {
                children[above] -= 1;
            }
        }
        let mut root = self.root;
        for node in &self.order {
            let only_child = children[root] == 1 && hops[*node].is_some_and(|(up, _)| up == root);
            if only_child && !keep[root] {
                root = *node;
                hops[root] = None;
            }
        }
        Tree::new(root, hops)
    }

    /// The same links with another node of the tree as the root.
    #[must_use]
    pub fn rooted_at(&self, root: usize) -> Tree {
        let mut hops = self.hops.clone();
        let mut below = None;
        let mut node = root;
        loop {
            let up = self.hops[node];
            hops[node] = below;
            let Some((above, link)) = up else { break };
            below = Some((node, link));
            node = above;
        }
        Tree::new(root, hops)
    }

    /// By node: the length of its path to the root, kilometres; infinite outside the tree.
    pub fn distances(&self, network: &Network) -> Vec<f64> {
        let mut distances = vec![f64::INFINITY; self.hops.len()];
        for node in &self.order {
            distances[*node] = match self.hops[*node] {
                Some((above, link)) => distances[above] + network.links()[link].length,
                None => 0.0,
            };
        }
        distances
    }

    /// The mean and the largest length of the paths between two of these nodes, kilometres.
    pub fn path_lengths(&self, network: &Network, between: &[usize]) -> PathLengths {
        let mut marked = vec![0_u64; self.hops.len()];
        between.iter().for_each(|node| marked[*node] += 1);
        let all = between.len() as u64;
        let mut below = marked.clone();
        // The longest way down to a marked node, and the longest path that turns at a node.
        let mut depth: Vec<Option<f64>> = marked.iter().map(|m| (*m > 0).then_some(0.0)).collect();
        let (mut sum, mut max) = (0.0, 0.0_f64);
        for node in self.order.iter().rev() {
            let Some((above, link)) = self.hops[*node] else { continue };
            let length = network.links()[link].length;
            sum += length * (below[*node] * (all - below[*node])) as f64;
            below[above] += below[*node];
            if let Some(down) = depth[*node].map(|down| down + length) {
                if let Some(other) = depth[above] {
                    max = max.max(other + down);
                }
                depth[above] = Some(depth[above].map_or(down, |other| other.max(down)));
            }
        }
        let pairs = all * all.saturating_sub(1) / 2;
        PathLengths { mean: if pairs == 0 { 0.0 } else { sum / pairs as f64 }, max }
    }
}

/// A link of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node away from the root.
    pub below: usize,
    /// The node towards the root.
    pub above: usize,
    /// The link's number.
    pub link: usize,
}

/// Lengths of paths, kilometres.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathLengths {
    /// The mean over all pairs.
    pub mean: f64,
    /// That of the pair furthest apart.
    pub max: f64,
}

fn children_of(hops: &[Option<(usize, usize)>]) -> Vec<Vec<usize>> {
    let mut children = vec![Vec::new(); hops.len()];
    for (node, hop) in hops.iter().enumerate() {
        if let Some((above, _)) = hop {
            children[*above].push(node);
        }
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Link, Node};

    /// 0–1–2 and 1–3–4, lengths 1, 2, 3, 4.
    fn network() -> Network {
        let nodes = (0..5)
            .map(|number| Node { name: number.to_string(), place: None, located: false })
            .collect();
        let ends = [[0, 1], [1, 2], [1, 3], [3, 4]];
        let links = ends.into_iter().zip(1..).map(|(ends, km)| Link::new(ends, f64::from(km)));
        Network::new(nodes, links.collect()).unwrap()
    }

    fn tree() -> Tree {
        Tree::new(0, vec![None, Some((0, 0)), Some((1, 1)), Some((1, 2)), Some((3, 3))])
    }

    #[test]
    fn path_lengths_are_those_between_the_nodes_asked_for() {
        let lengths = tree().path_lengths(&network(), &[0, 2, 4]);
        assert_eq!(lengths, PathLengths { mean: (3.0 + 8.0 + 9.0) / 3.0, max: 9.0 });
        assert_eq!(tree().path_lengths(&network(), &[3]), PathLengths::default());
        let ends = tree().path_lengths(&network(), &[1, 4]);
        assert_eq!(ends, PathLengths { mean: 7.0, max: 7.0 });
    }

    #[test]
    fn pruning_keeps_what_paths_need() {
        let keep = [false, false, true, true, false];
        let pruned = tree().pruned(&keep);
        assert_eq!(pruned.root(), 1);
        assert_eq!(pruned.order(), [1, 2, 3]);
        let alone = tree().pruned(&[false, false, false, false, true]);
        assert_eq!((alone.root(), alone.order().len()), (4, 1));
        let rooted = tree().pruned(&[true, false, false, true, false]);
        assert_eq!(rooted.order(), [0, 1, 3]);
    }

    #[test]
    fn another_root_changes_no_link() {
        let other = tree().rooted_at(4);
        assert_eq!(other.distances(&network()), [8.0, 7.0, 9.0, 4.0, 0.0]);
        let mut links: Vec<usize> = other.hops().map(|hop| hop.link).collect();
        links.sort_unstable();
        assert_eq!(links, [0, 1, 2, 3]);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        assert!(Tree::from_parents(&[None, Some(0), Some(1)]).is_ok());
        for parents in [&[None, None][..], &[None, Some(2), Some(1)], &[None, Some(7)], &[]] {
            assert!(Tree::from_parents(parents).is_err(), "{parents:?}");
        }
    }
}
