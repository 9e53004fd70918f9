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
    /// Draws a tree of so many relays with so many endpoints each. Its sites are subtrees, none with more
    /// than `most_of_site` relays, and as large as makes relays know the fewest ways.
    pub(crate) fn draw(
        relays: usize,
        endpoints_per_relay: u32,
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
        let known = |size: &usize| {
            tree.share_into_sites(*size);
            tree.most_known(endpoints_per_relay)
        };
        let best = (1..=relays.min(most_of_site).max(1)).min_by_key(known).unwrap_or(1);
        tree.share_into_sites(best);
        tree.choose_core(core);
        tree
    }

    /// The most that a relay is to know: one way to each other site, and one to each endpoint of its own
    /// (Forest §3.2).
    pub(crate) fn most_known(&self, endpoints_per_relay: u32) -> u32 {
        let sizes = self.site_sizes();
        let largest = sizes.iter().max().copied().unwrap_or(0);
        u32::from(self.sites) - 1 + largest * endpoints_per_relay
    }

    /// The most routes that a relay is to learn: the same without its own participants.
    pub(crate) fn most_learned(&self, relay: usize, endpoints_per_relay: u32) -> u32 {
        let of_site = self.nodes.iter().filter(|node| node.site == self.nodes[relay].site).count();
        u32::from(self.sites) - 1 + (of_site as u32 - 1) * endpoints_per_relay
    }

    /// The relays of each site, by its number.
    fn site_sizes(&self) -> Vec<u32> {
        let mut sizes = vec![0; usize::from(self.sites) + 1];
        self.nodes.iter().for_each(|node| sizes[usize::from(node.site)] += 1);
        sizes
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
    use crate::scale::exponent;
    use rand::SeedableRng;

    #[test]
    fn sites_are_subtrees_of_bounded_size() {
        for seed in 0..20 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let tree = Tree::draw(1000, 100, 4, ScaleCore::Subtree, &mut rng);
            let mut tops = vec![0; usize::from(tree.sites) + 1];
            for node in &tree.nodes {
                assert!(node.neighbours() <= MOST_NEIGHBOURS);
                let parent = node.parent.map(|parent| tree.nodes[parent].site);
                tops[usize::from(node.site)] += usize::from(parent != Some(node.site));
            }
            assert!(tops[1..].iter().all(|tops| *tops == 1), "a site hangs together");
            assert!(tree.site_sizes().iter().all(|relays| *relays <= 4));
        }
    }

    /// The plan of sites alone, in worlds far larger than those that are run: a run checks that no relay
    /// learns more than the plan says.
    #[test]
    fn what_relays_are_to_know_grows_with_the_root_of_the_endpoints() {
        for endpoints_per_relay in [10, 100] {
            let points = [100, 1_000, 10_000].map(|relays| {
                let mut rng = ChaCha8Rng::seed_from_u64(1);
                let tree = Tree::draw(relays, endpoints_per_relay, 600, ScaleCore::One, &mut rng);
                let known = tree.most_known(endpoints_per_relay);
                (f64::from(relays as u32 * endpoints_per_relay), f64::from(known))
            });
            let per_root = points.map(|(endpoints, known)| known / endpoints.sqrt());
            assert!(per_root.iter().all(|times| *times <= 2.5), "{points:?}: {per_root:?}");
            // Sites of hundreds of small relays are as large as they should be; those of a few large ones
            // are not.
            if endpoints_per_relay == 10 {
                let grows = exponent(&points[1..]).unwrap();
                assert!(grows <= 0.51, "{points:?}: {grows}");
            }
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
