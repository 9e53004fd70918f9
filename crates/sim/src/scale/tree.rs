//! The relays of a world: a random tree of bounded degree, its sites, its core.

use super::config::ScaleCore;
use canopy_relay::BranchRole;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;

/// The most neighbours of a relay.
pub(crate) const MOST_NEIGHBOURS: usize = 8;

/// A relay's place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<usize>,
    pub(crate) depth: u32,
    pub(crate) in_core: bool,
    /// From 1.
    pub(crate) site: u16,
    /// Its number among the relays of its site.
    pub(crate) in_site: u16,
}

/// All relays; the first is the centre, and every other comes after its parent.
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) sites: u16,
}

impl Tree {
    /// Draws a tree of so many relays. About `sites` sites are subtrees of it, none with more than
    /// `most_of_site` relays.
    pub(crate) fn draw(
        relays: usize,
        sites: usize,
        most_of_site: usize,
        core: ScaleCore,
        rng: &mut ChaCha8Rng,
    ) -> Tree {
        let mut nodes: Vec<Node> = Vec::with_capacity(relays);
        // Those that have room for another neighbour.
        let mut open: Vec<usize> = Vec::new();
        for relay in 0..relays {
            let parent = (relay > 0).then(|| {
                // Two are drawn, and the one nearer to the centre is taken, so that the network is no line.
                let [one, other] = [0, 1].map(|_| rng.random_range(0..open.len()));
                let is_nearer = nodes[open[one]].depth <= nodes[open[other]].depth;
                let place = if is_nearer { one } else { other };
                let parent = open[place];
                nodes[parent].children.push(relay);
                if nodes[parent].neighbours() == MOST_NEIGHBOURS {
                    open.swap_remove(place);
                }
                parent
            });
            let depth = parent.map_or(0, |parent| nodes[parent].depth + 1);
            let children = Vec::new();
            nodes.push(Node { parent, children, depth, in_core: false, site: 0, in_site: 0 });
            open.push(relay);
        }
        let mut tree = Tree { nodes, sites: 0 };
        tree.share_into_sites(relays.div_ceil(sites.max(1)).min(most_of_site.max(1)));
        tree.choose_core(core);
        tree
    }

    /// Cuts the tree into connected parts of `size` relays, or a few less.
    fn share_into_sites(&mut self, size: usize) {
        let mut is_top = vec![false; self.nodes.len()];
        let mut rest = vec![1; self.nodes.len()];
        // Children before parents.
        for relay in (0..self.nodes.len()).rev() {
            let mut children = self.nodes[relay].children.clone();
            children.sort_by_key(|child| rest[*child]);
            children.retain(|child| rest[*child] > 0);
            for child in children {
                if rest[relay] + rest[child] <= size {
                    rest[relay] += rest[child];
                } else {
                    is_top[child] = true;
                }
            }
            if rest[relay] >= size || relay == 0 {
                is_top[relay] = true;
                rest[relay] = 0;
            }
        }
        let mut members = vec![0; 1];
        for (relay, is_top) in is_top.into_iter().enumerate() {
            let parent = self.nodes[relay].parent;
            let site = match parent {
                Some(parent) if !is_top => self.nodes[parent].site,
                _ => {
                    members.push(0);
                    members.len() as u16 - 1
                }
            };
            self.nodes[relay].site = site;
            self.nodes[relay].in_site = members[usize::from(site)];
            members[usize::from(site)] += 1;
        }
        self.sites = members.len() as u16 - 1;
    }

    fn choose_core(&mut self, core: ScaleCore) {
        let wanted = match core {
            ScaleCore::One => 1,
            ScaleCore::Subtree => (self.nodes.len() as f64).sqrt().round() as usize,
        };
        let mut next = VecDeque::from([0]);
        for _ in 0..wanted {
            let Some(relay) = next.pop_front() else { return };
            self.nodes[relay].in_core = true;
            next.extend(self.nodes[relay].children.iter().copied());
        }
    }

    /// The neighbours of a relay, with what each is to it.
    pub(crate) fn branches(&self, relay: usize) -> impl Iterator<Item = (usize, BranchRole)> {
        let node = &self.nodes[relay];
        let role = |other: usize, role| match self.nodes[other].in_core && node.in_core {
            true => BranchRole::Core,
            false => role,
        };
        let up = node.parent.map(|parent| (parent, role(parent, BranchRole::Parent)));
        let down = node.children.iter().map(move |child| (*child, role(*child, BranchRole::Child)));
        up.into_iter().chain(down)
    }

    /// The greatest distance from the centre, in links.
    pub(crate) fn depth(&self) -> u32 {
        self.nodes.iter().map(|node| node.depth).max().unwrap_or(0)
    }
}

impl Node {
    fn neighbours(&self) -> usize {
        self.children.len() + usize::from(self.parent.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn sites_are_subtrees_of_bounded_size_and_there_are_about_as_many_as_asked_for() {
        for seed in 0..20 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (relays, sites) = (1000, 316);
            let tree = Tree::draw(relays, sites, 100, ScaleCore::Subtree, &mut rng);
            assert!((sites..2 * sites).contains(&tree.sites.into()), "{}", tree.sites);
            let mut tops = vec![0; usize::from(tree.sites) + 1];
            let mut members = tops.clone();
            for node in &tree.nodes {
                assert!(node.neighbours() <= MOST_NEIGHBOURS);
                let site = usize::from(node.site);
                members[site] += 1;
                let parent = node.parent.map(|parent| tree.nodes[parent].site);
                tops[site] += usize::from(parent != Some(node.site));
            }
            assert!(tops[1..].iter().all(|tops| *tops == 1), "a site hangs together");
            assert!(members.iter().all(|members| *members <= 4), "{members:?}");
        }
    }

    #[test]
    fn the_core_is_a_subtree_around_the_centre_and_every_other_relay_has_one_parent() {
        for (core, wanted) in [(ScaleCore::One, 1), (ScaleCore::Subtree, 10)] {
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let tree = Tree::draw(100, 100, 100, core, &mut rng);
            assert_eq!(tree.sites, 100);
            let in_core = tree.nodes.iter().filter(|node| node.in_core).count();
            assert_eq!(in_core, wanted);
            for relay in 0..100 {
                let parents =
                    tree.branches(relay).filter(|(_, role)| *role == BranchRole::Parent).count();
                assert_eq!(parents, usize::from(!tree.nodes[relay].in_core));
            }
        }
    }
}
