//! The trees that follow each other when a comtree moves, and what happens between two of them.
//!
//! If roots and cores allow, only parents are swapped. Otherwise the core shrinks to the root, and the
//! root walks over the old tree to a relay of the new one: the next relay on the way joins the core, and
//! the old root leaves it. Then parents are swapped, the root walks on to where it is to be, and the
//! core grows to what the rule says. Where the core is a mesh, see `mesh`.

use crate::comtree::{Leave, Peering, Phase, Step, Swap};
use crate::hops::{breadth_first, rooted_at};
use crate::model::{Core, LinkId, RelayId, TreeHop};
use crate::overlap::Picture;
use crate::shape::Shape;
use crate::signal::{Branch, Role};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Step {
    /// The relay whose word is waited for.
    pub(crate) fn relay(&self) -> RelayId {
        match self {
            Step::Swap(swap) => swap.child,
            Step::Leave(leave) => leave.relay,
            Step::Peer(peering) => peering.relay,
        }
    }

    /// Whether relays may have a branch over this link because of it.
    pub(crate) fn is_over(&self, link: LinkId) -> bool {
        match self {
            Step::Swap(Swap { link: of, .. }) | Step::Leave(Leave { link: of, .. }) => *of == link,
            Step::Peer(of) => of.link == link || of.peers.iter().any(|(_, of)| *of == link),
        }
    }

    /// Whether a relay's word about the parent over a link is waited for.
    pub(crate) fn waits_for(&self, relay: RelayId, over: LinkId) -> bool {
        let link = match self {
            Step::Swap(Swap { link, .. }) | Step::Leave(Leave { link, .. }) => link,
            Step::Peer(Peering { link, phase: Phase::Below, .. }) => link,
            Step::Peer(_) => return false,
        };
        self.relay() == relay && *link == over
    }

    /// The relays that are told when it begins: those of a group after those of the one before.
    pub(crate) fn told(&self) -> Vec<Vec<RelayId>> {
        match self {
            Step::Swap(swap) => vec![vec![swap.next], vec![swap.child]],
            Step::Leave(leave) => vec![vec![leave.relay]],
            Step::Peer(peering) => peering.told(),
        }
    }

    /// Whether the step cannot be done if this relay refuses what it is told.
    pub(crate) fn needs(&self, relay: RelayId) -> bool {
        match self {
            Step::Peer(peering) => peering.is_doubled_at(relay),
            _ => self.relay() == relay,
        }
    }

    /// The relays that are told first that it is taken back, one after the other. Of the others that it concerns
    /// nobody matters more than another.
    pub(crate) fn undone_by(&self) -> [RelayId; 2] {
        match self {
            Step::Swap(swap) => [swap.child, swap.next],
            Step::Leave(leave) => [leave.relay, leave.above],
            Step::Peer(peering) => peering.undone_by(),
        }
    }

    /// The link over which the first of those two may have sent what nobody else has, until it let go of it.
    pub(crate) fn link_of_last(&self) -> Option<LinkId> {
        match self {
            Step::Swap(swap) => Some(swap.link),
            // The branch stays.
            Step::Leave(_) => None,
            // All of it goes over the relay above, too.
            Step::Peer(_) => None,
        }
    }

    /// The relays that are told before those two. Gives them in `before` the branches that they have then, including
    /// those that they have let go of; `shape` is the tree in force.
    pub(crate) fn told_again(&self, before: &mut Picture, shape: Option<&Shape>) -> Vec<RelayId> {
        let Step::Peer(peering) = self else { return Vec::new() };
        let mut relays = peering.told_again();
        relays.retain(|relay| before.contains_key(relay));
        for relay in &relays {
            let in_force = shape.map_or_else(Vec::new, |shape| shape.branches(*relay));
            before.entry(*relay).and_modify(|of| peering.beside_again(*relay, of, &in_force));
        }
        relays
    }

    /// The same, once it is known that it will not be done.
    pub(crate) fn given_up(self) -> Step {
        match self {
            Step::Peer(peering) => Step::Peer(Peering { phase: Phase::TakenBack, ..peering }),
            step => step,
        }
    }

    /// What the first of [`Step::undone_by`] has once the step is taken back there, of what it has while the step is
    /// under way, or has on the tree in force: no next parent, or its neighbour in the core again. One that
    /// has a parent by now, as the step was done or another tree came, or is in a mesh, keeps what it has.
    pub(crate) fn taken_back(&self, branches: &[Branch]) -> Vec<Branch> {
        let mut branches = branches.to_vec();
        let is_up = |of: &Branch| matches!(of.role, Role::Parent | Role::CorePeer);
        match self {
            Step::Swap(Swap { link, .. }) => {
                branches.retain(|of| of.link != *link || of.role != Role::NextParent);
            }
            Step::Leave(Leave { link, .. }) if !branches.iter().any(is_up) => {
                let neighbour = branches.iter_mut().find(|branch| branch.link == *link);
                neighbour.into_iter().for_each(|branch| branch.role = Role::Core);
            }
            Step::Leave(_) => {}
            Step::Peer(peering) => peering.taken_back(&mut branches),
        }
        branches
    }
}

/// How a tree becomes the next.
pub(crate) enum Turn {
    /// A relay has a word in it.
    Step(Step),
    /// A relay joins the core, after the one above it knows.
    Join { relay: RelayId, above: RelayId },
    /// Relays come or go.
    Resize,
}

impl Turn {
    /// What happens between a tree and the next; nothing if they are alike.
    pub(crate) fn between(now: &Shape, next: &Shape) -> Option<Turn> {
        let relays = |shape: &Shape| shape.relays().collect::<BTreeSet<_>>();
        if relays(now) != relays(next) {
            return Some(Turn::Resize);
        }
        if let Some(peering) = Peering::between(now, next) {
            return Some(Turn::Step(Step::Peer(peering)));
        }
        let (before, after) = (now.core(), next.core());
        if let Some(relay) = after.difference(&before).next().copied() {
            let (above, _) = next.above(relay)?;
            return Some(Turn::Join { relay, above });
        }
        if let Some(relay) = before.difference(&after).next().copied() {
            let (above, link) = next.above(relay)?;
            return Some(Turn::Step(Step::Leave(Leave { relay, above, link })));
        }
        swap_to(now, next).map(|swap| Turn::Step(Step::Swap(swap)))
    }
}

/// The way from a tree to another.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// The trees that follow it.
    pub(crate) later: VecDeque<Shape>,
    /// Those of them, and it, whose core differs from the rule's, with the rule's core.
    pub(crate) ends: Vec<Shape>,
}

impl Way {
    /// The way from a tree to another.
    ///
    /// # Errors
    /// One of them is no tree, or they have no relay in common.
    pub(crate) fn between(old: &Shape, target: &[TreeHop], rule: &Core) -> Result<Way, String> {
        let root = |hops: &[TreeHop]| hops.first().map(|hop| hop.relay);
        let by_rule = Shape::new(old.hops().to_vec(), rule, |relay| old.load(relay))?;
        // A move that has begun in another life may have another core.
        if root(old.hops()) == root(target) && old.core() == by_rule.core() {
            let way = Walk::new(old, Vec::new()).swap_by_rule(target, rule)?;
            let before = [old].into_iter().chain(&way);
            if before.zip(&way).all(|(before, after)| keeps_core(before, after)) {
                return Ok(Way { later: way.into(), ends: Vec::new() });
            }
        }
        let end = Shape::new(target.to_vec(), rule, |relay| old.load(relay))?;
        let (from, to) = (old.hops(), root(target).ok_or("the other tree has no relay")?);
        let is_in_target = |relay: &RelayId| target.iter().any(|hop| hop.relay == *relay);
        let mut common = [to].into_iter().chain(old.relays()).filter(|at| old.has(*at));
        let meet = common.find(is_in_target).ok_or("it has no relay of the other tree")?;
        let mut walk = Walk::new(old, from.to_vec());
        walk.shrink()?;
        walk.go_to(meet)?;
        walk.swap_parents(&rooted_at(target, meet))?;
        walk.go_to(to)?;
        walk.grow(&end.core())?;
        if walk.hops.len() > target.len() {
            walk.later.push(end);
        }
        let mut ends: Vec<Shape> = Vec::new();
        for shape in [old].into_iter().chain(&walk.later) {
            if !ends.iter().any(|end| same_tree(end.hops(), shape.hops())) {
                ends.push(Shape::new(shape.hops().to_vec(), rule, |relay| old.load(relay))?);
            }
        }
        Ok(Way { later: walk.later.into(), ends })
    }
}

/// A tree on its way, and those that it has been.
struct Walk<'a> {
    old: &'a Shape,
    hops: Vec<TreeHop>,
    core: BTreeSet<RelayId>,
    later: Vec<Shape>,
}

impl Walk<'_> {
    fn new(old: &Shape, hops: Vec<TreeHop>) -> Walk<'_> {
        Walk { old, hops, core: old.core(), later: Vec::new() }
    }

    fn pass(&mut self) -> Result<(), String> {
        let load = |relay| self.old.load(relay);
        self.later.push(Shape::with_core(self.hops.clone(), &self.core, load)?);
        Ok(())
    }

    /// Those who are farthest from the root leave the core first, until the root is left.
    fn shrink(&mut self) -> Result<(), String> {
        for hop in breadth_first(&self.hops).into_iter().rev() {
            if hop.above.is_some() && self.core.remove(&hop.relay) {
                self.pass()?;
            }
        }
        Ok(())
    }

    /// The root, which is all of the core, goes over the tree to a relay.
    fn go_to(&mut self, relay: RelayId) -> Result<(), String> {
        let above = |at| self.hops.iter().find(|hop| hop.relay == at).and_then(|hop| hop.above);
        let way = core::iter::successors(Some(relay), |at| above(*at).map(|(above, _)| above));
        let way: Vec<RelayId> = way.collect();
        for next in way.into_iter().rev().skip(1) {
            self.core.insert(next);
            self.pass()?;
            self.core = BTreeSet::from([next]);
            self.hops = rooted_at(&self.hops, next);
            self.pass()?;
        }
        Ok(())
    }

    /// Relays that are new come, and then each relay gets the parent that it is to have. The root stays.
    fn swap_parents(&mut self, target: &[TreeHop]) -> Result<(), String> {
        let later = swaps(&self.hops, target);
        for hops in later {
            self.hops = hops;
            self.pass()?;
        }
        Ok(())
    }

    /// The same between two trees with the same root, each with the core of the rule. At last relays go.
    fn swap_by_rule(self, target: &[TreeHop], rule: &Core) -> Result<Vec<Shape>, String> {
        let shape = |hops| Shape::new(hops, rule, |relay| self.old.load(relay));
        let mut later = swaps(self.old.hops(), target);
        if later.last().map_or(self.old.hops(), Vec::as_slice).len() > target.len() {
            later.push(target.to_vec());
        }
        later.into_iter().map(shape).collect()
    }

    /// Those who are nearest to the root join the core first.
    fn grow(&mut self, core: &BTreeSet<RelayId>) -> Result<(), String> {
        for hop in breadth_first(&self.hops) {
            if core.contains(&hop.relay) && self.core.insert(hop.relay) {
                self.pass()?;
            }
        }
        Ok(())
    }
}

/// The trees that follow one until all relays of another have the parents that they have there. Both
/// have the same root.
pub(crate) fn swaps(old: &[TreeHop], target: &[TreeHop]) -> Vec<Vec<TreeHop>> {
    let order = breadth_first(target);
    let is_new = |hop: &&TreeHop| !old.iter().any(|of| of.relay == hop.relay);
    let mut hops = old.to_vec();
    hops.extend(order.iter().filter(is_new));
    let mut later = Vec::new();
    if hops.len() > old.len() {
        later.push(hops.clone());
    }
    for hop in &order {
        let Some(at) = hops.iter_mut().find(|of| of.relay == hop.relay) else { continue };
        if at.above != hop.above {
            at.above = hop.above;
            hops = breadth_first(&hops);
            later.push(hops.clone());
        }
    }
    later
}

/// Which relay has another parent in the next tree; none if that has only more relays, or fewer, or another
/// relay of its mesh for its root.
fn swap_to(now: &Shape, next: &Shape) -> Option<Swap> {
    let is_outside = |hop: &&TreeHop| next.mesh().is_empty() || !next.is_core(hop.relay);
    next.hops().iter().filter(is_outside).find_map(|hop| {
        let before = now.hops().iter().find(|of| of.relay == hop.relay)?;
        let (above, link) = hop.above.filter(|_| before.above != hop.above)?;
        Some(Swap { child: hop.relay, next: above, link })
    })
}

/// Whether branches that are on both trees have the same roles, and who changes its parent is outside
/// the core.
fn keeps_core(before: &Shape, after: &Shape) -> bool {
    let roles = |shape: &Shape| -> BTreeMap<(RelayId, LinkId), Role> {
        let of = |relay| shape.branches(relay).into_iter().map(move |b| ((relay, b.link), b.role));
        shape.relays().flat_map(of).collect()
    };
    let (old, new) = (roles(before), roles(after));
    let same = old.iter().all(|(key, role)| new.get(key).is_none_or(|of| of == role));
    let is_parent = |roles: &BTreeMap<_, _>, relay, shape: &Shape| {
        let link = shape.above(relay).map(|(_, link)| link);
        link.and_then(|link| roles.get(&(relay, link))) == Some(&Role::Parent)
    };
    same && swap_to(before, after).is_none_or(|swap| {
        is_parent(&old, swap.child, before) && is_parent(&new, swap.child, after)
    })
}

/// Whether two trees are the same, in whatever order.
pub(crate) fn same_tree(one: &[TreeHop], other: &[TreeHop]) -> bool {
    one.len() == other.len() && one.iter().all(|hop| other.contains(hop))
}
