//! Changes of roles by themselves: relays join and leave a comtree's core, and the root of a core of one
//! walks over the tree. Each relay is told of its part by itself, in an order in which nothing is lost: who
//! will send more before who will send less, and a neighbour takes a relay for its child only when that has
//! said that its parent knows all that is wanted there.

use super::config::OverlaySabotage;
use super::shape::{Core, Edge, Tree};
use canopy_relay::BranchRole;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// The most changes of a comtree. No new one begins in the calm end of a run.
const MOST_CHANGES: usize = 8;
/// Milliseconds before the first change of a comtree, and before each other.
const FIRST_MS: Range<u64> = 3_000..6_000;
const PAUSE_MS: Range<u64> = 300..3_000;
/// For a sabotage: subscriptions are made and settle within it.
const LONG: Duration = Duration::from_secs(10);

/// A relay's settings say that neighbours are something else to it, and it is told to read them.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    /// By its number.
    pub(crate) tree: usize,
    pub(crate) relay: usize,
    pub(crate) roles: Vec<(usize, BranchRole)>,
    /// The neighbours with which it has no branch from now on.
    pub(crate) drops: Vec<usize>,
    /// The reloads that come before, by their numbers.
    pub(crate) after: Vec<usize>,
    /// Those whose relays must have said that their parents know all that is wanted there.
    pub(crate) words: Vec<usize>,
    /// It waits for so long after these.
    pub(crate) wait: Duration,
    /// The change that it is a part of, by its number.
    pub(crate) change: usize,
    /// Whether the change begins with it, and whether a root has taken a step then.
    pub(crate) begins: bool,
    pub(crate) is_step: bool,
}

/// What a comtree's relays are to each other, as it will be after the reloads so far.
struct Planned<'a> {
    tree: &'a Tree,
    number: usize,
    /// By relay.
    neighbours: BTreeMap<usize, Vec<usize>>,
    /// The way up, for those that are not in the core.
    parents: BTreeMap<usize, usize>,
    core: BTreeSet<usize>,
    reloads: Vec<Reload>,
    /// The reloads of the change that was planned last, and how many changes there are.
    last: Vec<usize>,
    changes: usize,
}

/// Draws the reloads of a run. Comtrees that are moved otherwise, and meshed cores, stay as they are.
pub(crate) fn draw_reloads(
    trees: &[Tree],
    moved: &BTreeSet<usize>,
    sabotage: Option<OverlaySabotage>,
    rng: &mut ChaCha8Rng,
) -> Vec<Reload> {
    let mut reloads = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        if moved.contains(&number) || tree.core == Core::Mesh || tree.relays().count() < 2 {
            continue;
        }
        let mut planned = Planned::new(tree, number, reloads);
        for _ in 0..MOST_CHANGES {
            planned.draw_change(rng);
        }
        reloads = planned.reloads;
    }
    if let Some(sabotage) = sabotage {
        spoil(&mut reloads, sabotage);
    }
    reloads
}

/// Makes the mistakes that are to be found.
fn spoil(reloads: &mut [Reload], sabotage: OverlaySabotage) {
    for number in 0..reloads.len() {
        match sabotage {
            OverlaySabotage::HastyRoles => {
                let words = std::mem::take(&mut reloads[number].words);
                if !words.is_empty() {
                    reloads[number].wait = Duration::ZERO;
                }
                reloads[number].after.extend(words);
            }
            OverlaySabotage::RolesInReverse => reverse_join(reloads, number),
            _ => {}
        }
    }
}

/// Who joins the core is told before whoever is to send it everything.
fn reverse_join(reloads: &mut [Reload], number: usize) {
    let joins = |reload: &Reload| match reload.roles[..] {
        [(other, BranchRole::Core)] => Some((reload.tree, [reload.relay, other])),
        _ => None,
    };
    let Some(next) = reloads.get(number + 1) else { return };
    let (Some((tree, [above, below])), Some(after)) = (joins(&reloads[number]), joins(next)) else {
        return;
    };
    if reloads[number].begins && after == (tree, [below, above]) {
        let [one, other] =
            [number, number + 1].map(|at| (reloads[at].relay, reloads[at].roles.clone()));
        (reloads[number].relay, reloads[number].roles) = other;
        (reloads[number + 1].relay, reloads[number + 1].roles) = one;
        reloads[number + 1].wait = LONG;
    }
}

impl<'a> Planned<'a> {
    fn new(tree: &'a Tree, number: usize, reloads: Vec<Reload>) -> Planned<'a> {
        let mut neighbours: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let (mut parents, mut core) = (BTreeMap::new(), BTreeSet::from_iter(tree.relays()));
        for Edge { relays: [a, b], roles } in tree.edges() {
            neighbours.entry(a).or_default().push(b);
            neighbours.entry(b).or_default().push(a);
            if roles[0] == BranchRole::Parent {
                parents.insert(a, b);
                core.remove(&a);
            }
        }
        Planned { tree, number, neighbours, parents, core, reloads, last: Vec::new(), changes: 0 }
    }

    fn draw_change(&mut self, rng: &mut ChaCha8Rng) {
        let all = self.tree.relays().count();
        let first = self.reloads.len();
        match rng.random_range(0..6) {
            0 | 1 if self.core.len() < all => self.grow(rng),
            0 | 1 => self.shrink(rng),
            2 if self.core.len() > 1 => self.shrink(rng),
            3 if self.core.len() < all => self.join_all(rng),
            3 | 4 if self.core.len() > 1 => self.leave_all(rng),
            _ if self.core.len() == 1 => self.step(rng),
            _ => self.shrink(rng),
        }
        self.last = (first..self.reloads.len()).collect();
        self.changes += 1;
    }

    /// A child of a relay in the core joins it.
    fn grow(&mut self, rng: &mut ChaCha8Rng) {
        let ways = self.parents.iter().map(|(relay, above)| (*relay, *above));
        let ways: Vec<_> = ways.filter(|(_, above)| self.core.contains(above)).collect();
        let (relay, above) = ways[rng.random_range(0..ways.len())];
        let first = self.begin(above, vec![(relay, BranchRole::Core)], rng);
        self.then(relay, vec![(above, BranchRole::Core)], (vec![first], vec![]), rng);
        self.core.insert(relay);
        self.parents.remove(&relay);
    }

    /// A relay with one neighbour in the core leaves it.
    fn shrink(&mut self, rng: &mut ChaCha8Rng) {
        let leaves = self.core.iter().filter_map(|relay| match self.in_core(*relay)[..] {
            [above] => Some((*relay, above)),
            _ => None,
        });
        let leaves: Vec<_> = leaves.collect();
        let (relay, above) = leaves[rng.random_range(0..leaves.len())];
        let role = draw_leaving(rng);
        let first = self.begin(relay, vec![(above, role)], rng);
        self.then(above, vec![(relay, BranchRole::Child)], (vec![], vec![first]), rng);
        self.core.remove(&relay);
        self.parents.insert(relay, above);
    }

    /// All relays join the core, each after the one above it, which has taken it for one of the core with
    /// its other children by then.
    fn join_all(&mut self, rng: &mut ChaCha8Rng) {
        let mut told: BTreeMap<usize, usize> = BTreeMap::new();
        let mut next: Vec<usize> = self.core.iter().copied().collect();
        while let Some(relay) = next.pop() {
            let below = |other: &&usize| self.parents.get(other) == Some(&relay);
            let below: Vec<usize> = self.neighbours[&relay].iter().filter(below).copied().collect();
            let above = self.parents.get(&relay).copied();
            let to_core = above.into_iter().chain(below.iter().copied());
            let roles: Vec<_> = to_core.map(|other| (other, BranchRole::Core)).collect();
            next.extend(below);
            if roles.is_empty() {
                continue;
            }
            let number = match above.and_then(|above| told.get(&above)) {
                Some(before) => self.then(relay, roles, (vec![*before], vec![]), rng),
                None => self.begin(relay, roles, rng),
            };
            told.insert(relay, number);
        }
        self.core = self.tree.relays().collect();
        self.parents.clear();
    }

    /// All leave the core but one, the farthest first. Each takes those below it, when they have said that it
    /// knows what they want, and leaves itself in one.
    fn leave_all(&mut self, rng: &mut ChaCha8Rng) {
        let core: Vec<usize> = self.core.iter().copied().collect();
        let root = core[rng.random_range(0..core.len())];
        let mut outwards = vec![(root, None)];
        let mut at = 0;
        while let Some((relay, above)) = outwards.get(at).copied() {
            let below = self.in_core(relay).into_iter().filter(|other| Some(*other) != above);
            outwards.extend(below.map(|other| (other, Some(relay))));
            at += 1;
        }
        let mut told: BTreeMap<usize, usize> = BTreeMap::new();
        for (relay, above) in outwards.iter().rev().copied() {
            let below = outwards.iter().filter(|(_, above)| *above == Some(relay));
            let below: Vec<usize> = below.map(|(other, _)| *other).collect();
            let words: Vec<usize> = below.iter().map(|other| told[other]).collect();
            let to_below = below.iter().map(|other| (*other, BranchRole::Child));
            let mut roles: Vec<_> = to_below.collect();
            roles.extend(above.map(|above| (above, draw_leaving(rng))));
            let number = match words.is_empty() {
                true => self.begin(relay, roles, rng),
                false => self.then(relay, roles, (vec![], words), rng),
            };
            told.insert(relay, number);
            self.parents.extend(above.map(|above| (relay, above)));
        }
        self.core = BTreeSet::from([root]);
    }

    /// The root of a core of one goes to a neighbour: that joins the core, and the old root leaves it. Or the old
    /// root takes it for its parent at once, and both send each other everything for a while.
    fn step(&mut self, rng: &mut ChaCha8Rng) {
        let Some(from) = self.core.pop_first() else { return };
        let next = &self.neighbours[&from];
        let to = next[rng.random_range(0..next.len())];
        let leaves = if rng.random_bool(0.5) {
            let first = self.begin(from, vec![(to, BranchRole::Core)], rng);
            let joined = self.then(to, vec![(from, BranchRole::Core)], (vec![first], vec![]), rng);
            let role = draw_leaving(rng);
            self.then(from, vec![(to, role)], (vec![joined], vec![]), rng)
        } else {
            self.begin(from, vec![(to, BranchRole::Parent)], rng)
        };
        let last = self.then(to, vec![(from, BranchRole::Child)], (vec![], vec![leaves]), rng);
        self.reloads[last].is_step = true;
        self.core.insert(to);
        self.parents.remove(&to);
        self.parents.insert(from, to);
    }

    /// A relay's neighbours in the core.
    fn in_core(&self, relay: usize) -> Vec<usize> {
        let neighbours = self.neighbours[&relay].iter();
        neighbours.filter(|other| self.core.contains(other)).copied().collect()
    }

    /// A relay is told that begins a change, when the one before is over.
    fn begin(
        &mut self,
        relay: usize,
        roles: Vec<(usize, BranchRole)>,
        rng: &mut ChaCha8Rng,
    ) -> usize {
        let after = self.last.clone();
        let ms = if after.is_empty() { FIRST_MS } else { PAUSE_MS };
        let wait = Duration::from_millis(rng.random_range(ms));
        self.push(Reload { wait, begins: true, ..self.reload(relay, roles, after) })
    }

    /// A relay is told after others, and when others have said their word.
    fn then(
        &mut self,
        relay: usize,
        roles: Vec<(usize, BranchRole)>,
        (after, words): (Vec<usize>, Vec<usize>),
        rng: &mut ChaCha8Rng,
    ) -> usize {
        // Whoever hears may act at once, so nothing may depend on its being late.
        let is_late = rng.random_bool(0.5);
        let wait = Duration::from_millis(if is_late { rng.random_range(1..800) } else { 0 });
        self.push(Reload { words, wait, ..self.reload(relay, roles, after) })
    }

    fn reload(&self, relay: usize, roles: Vec<(usize, BranchRole)>, after: Vec<usize>) -> Reload {
        let (tree, words, wait) = (self.number, Vec::new(), Duration::ZERO);
        let change = self.changes;
        let drops = Vec::new();
        Reload {
            tree,
            relay,
            roles,
            drops,
            after,
            words,
            wait,
            change,
            begins: false,
            is_step: false,
        }
    }

    fn push(&mut self, reload: Reload) -> usize {
        self.reloads.push(reload);
        self.reloads.len() - 1
    }
}

/// A relay that leaves the core calls its neighbour there its parent, as settings do, or its next parent, as a
/// controller does.
pub(crate) fn draw_leaving(rng: &mut ChaCha8Rng) -> BranchRole {
    if rng.random_bool(0.5) { BranchRole::Parent } else { BranchRole::NextParent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::shape::draw;
    use rand::SeedableRng;

    /// Every two neighbours say what fits when a change is over, and no relay has a parent beside another or
    /// beside a neighbour in the core.
    #[test]
    fn changes_lead_from_one_tree_to_another() {
        let (mut steps, mut at_once) = (0, 0);
        for seed in 0..60 {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let (_, trees) = draw(2 + seed as usize % 9, rng);
            let reloads = draw_reloads(&trees, &BTreeSet::new(), None, rng);
            for (number, tree) in trees.iter().enumerate() {
                let (mut roles, mut change) = (initial(tree), 0);
                for reload in reloads.iter().filter(|one| one.tree == number) {
                    if reload.change != change {
                        assert_fits(&roles, seed);
                        change = reload.change;
                    }
                    for (other, role) in &reload.roles {
                        let before = roles.insert((reload.relay, *other), *role);
                        assert_ne!(before, Some(*role), "seed {seed}: {reload:?} changes nothing");
                        let is_from_child = before == Some(BranchRole::Child);
                        at_once += u32::from(is_from_child && *role == BranchRole::Parent);
                    }
                    steps += u32::from(reload.is_step);
                }
                assert_fits(&roles, seed);
            }
        }
        assert!(steps > 20 && at_once > 10, "{steps} steps, {at_once} of them at once");
    }

    fn initial(tree: &Tree) -> BTreeMap<(usize, usize), BranchRole> {
        let both = |Edge { relays: [a, b], roles }| [((a, b), roles[0]), ((b, a), roles[1])];
        tree.edges().into_iter().flat_map(both).collect()
    }

    fn assert_fits(roles: &BTreeMap<(usize, usize), BranchRole>, seed: u64) {
        let is_parent =
            |role: BranchRole| matches!(role, BranchRole::Parent | BranchRole::NextParent);
        for ((relay, other), role) in roles {
            let there = roles[&(*other, *relay)];
            let fits = match role {
                BranchRole::Child => is_parent(there),
                BranchRole::Core | BranchRole::CorePeer => there == *role,
                _ => there == BranchRole::Child,
            };
            assert!(fits, "seed {seed}: {relay} to {other}: {role:?} and {there:?}");
            let of_relay = roles.iter().filter(|((at, _), _)| at == relay);
            let above = of_relay.filter(|(_, role)| role.gets_everything()).count();
            assert!(
                !is_parent(*role) || above == 1,
                "seed {seed}: relay {relay} has another above"
            );
        }
    }
}
