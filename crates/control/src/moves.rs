//! Planned changes of a tree, in which nothing is lost (Forest §3.5): one relay after the other gets
//! another parent, as its data plane can, until the tree is the one that is wanted.
//!
//! ```text
//!  T1 ── relays that are new come ──▶ ── a swap for each relay with another parent ──▶ ── relays go ──▶ T2
//!
//!  a swap:  q: child ──▶ c: next parent ──▶ c says that it is the way to the core ──▶ p: gone ──▶ c: parent
//! ```
//!
//! The swaps are in breadth-first order of the new tree, so a relay's new parent is never below it:
//! all above that have their places by then. What all trees on the way need is reserved at the
//! start, and given back as they are passed.
//!
//! Only the tree that is in force is stored. A controller that starts finds that, and takes back the
//! branch of a swap that was not done.

use crate::ledger::{Flow, Lack};
use crate::model::{LinkId, RelayId, TreeHop};
use crate::op::{Effect, Event, Op};
use crate::shape::{Load, Shape};
use crate::signal::{Branch, Role};
use crate::state::{Running, State};
use canopy_plan::Rate;
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A swap that is not done within this is taken back, and the move ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// A comtree on its way to another tree.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// The trees that follow the one in force, each with another parent for one relay; the last may
    /// have fewer relays.
    later: VecDeque<Shape>,
    swap: Option<Swap>,
    why: String,
    /// When the swap was looked at first.
    since: Option<Time>,
}

/// What changes between a tree and the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Swap {
    pub(crate) child: RelayId,
    pub(crate) next: RelayId,
    pub(crate) link: LinkId,
}

/// The branches of each relay on a comtree.
pub(crate) type Picture = BTreeMap<RelayId, Vec<Branch>>;

impl Running {
    /// The tree in force, and those that follow it.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        let later = self.moving.iter().flat_map(|moving| &moving.later);
        self.shape.iter().chain(later)
    }

    /// The swap that is under way.
    pub(crate) fn swap(&self) -> Option<Swap> {
        self.moving.as_ref().and_then(|moving| moving.swap)
    }

    /// By link and the relay that sends: the relay that receives, and the most that one of the trees
    /// needs.
    fn needs(&self) -> BTreeMap<(LinkId, RelayId), (RelayId, Rate)> {
        let mut needs: BTreeMap<(LinkId, RelayId), (RelayId, Rate)> = BTreeMap::new();
        for flow in self.shapes().flat_map(Shape::flows) {
            if let Flow::Over(link, from, to, rate) = flow {
                let (_, most) = needs.entry((link, from)).or_insert((to, Rate::ZERO));
                most.bits = most.bits.max(rate.bits);
                most.packets = most.packets.max(rate.packets);
            }
        }
        needs
    }

    /// All that is reserved for the comtree.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let mut flows = self.shape.as_ref().map_or_else(Vec::new, Shape::flows);
        if self.moving.is_some() {
            flows.retain(|flow| !matches!(flow, Flow::Over(..)));
            let over = |((link, from), (to, rate))| Flow::Over(link, from, to, rate);
            flows.extend(self.needs().into_iter().map(over));
        }
        flows
    }

    /// The branches of the relays, as they are to be now.
    pub(crate) fn picture(&self) -> Picture {
        let relays = self.shape.iter().flat_map(Shape::relays);
        relays.map(|relay| (relay, self.branches(relay))).collect()
    }

    /// The branches of a relay, as they are to be now.
    pub(crate) fn branches(&self, relay: RelayId) -> Vec<Branch> {
        let mut branches = self.shape.as_ref().map_or_else(Vec::new, |s| s.branches(relay));
        if self.moving.is_none() {
            return branches;
        }
        if let Some(Swap { child, next, link }) = self.swap() {
            let zero = Rate::ZERO;
            let branch = |site: RelayId, role| Branch {
                link,
                site: site.0,
                role,
                send: zero,
                receive: zero,
            };
            if relay == child {
                branches.push(branch(next, Role::NextParent));
            } else if relay == next {
                branches.push(branch(child, Role::Child));
            }
        }
        let needs = self.needs();
        let need = |link, from| needs.get(&(link, from)).map_or(Rate::ZERO, |(_, rate)| *rate);
        for branch in &mut branches {
            branch.send = need(branch.link, relay);
            branch.receive = need(branch.link, RelayId(branch.site));
        }
        branches.sort_by_key(|branch| branch.link);
        branches
    }

    /// Changes what a relay's members are, on all trees.
    pub(crate) fn change(&mut self, relay: RelayId, load: Load) {
        let later = self.moving.iter_mut().flat_map(|moving| &mut moving.later);
        for shape in self.shape.iter_mut().chain(later) {
            shape.change(relay, load);
        }
    }
}

impl State {
    /// Moves a comtree to another tree without loss. Returns how many relays get another parent.
    ///
    /// # Errors
    /// Why that cannot be; then nothing changes.
    pub(crate) fn begin_move(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        target: &[TreeHop],
        why: String,
    ) -> Result<usize, String> {
        let mut later = self.plan_move(comtree, target)?;
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Ok(0) };
        let Some(old) = running.shape.clone() else { return Ok(0) };
        let (before, flows) = (running.picture(), running.flows());
        let relays: BTreeSet<RelayId> = old.relays().collect();
        let swaps = later.iter().zip([&old].into_iter().chain(&later));
        let swaps = swaps.filter(|(next, before)| swap_to(before, next).is_some()).count();
        let adds = later.front().is_some_and(|first| first.relays().any(|r| !relays.contains(&r)));
        let first = if adds { later.pop_front() } else { None };
        let moving = Move { later, swap: None, why, since: None };
        running.moving = Some(moving);
        running.shape = first.or(running.shape.take());
        let asked: Vec<Flow> = flows.iter().map(|f| f.inverse()).chain(running.flows()).collect();
        if let Err(lack) = self.ledger.book(&asked) {
            running.moving = None;
            running.shape = Some(old);
            return Err(self.refusal(lack).to_string());
        }
        self.save_comtree(op, comtree);
        self.tell_changed(op, comtree, &before, &[]);
        self.advance(op, comtree);
        Ok(swaps)
    }

    /// The trees from the one in force to another.
    fn plan_move(&self, comtree: Comtree, target: &[TreeHop]) -> Result<VecDeque<Shape>, String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        let world = self.worlds.get(&running.world).ok_or("it has no world")?;
        let old = running.shape.as_ref().ok_or("it has no members")?;
        if running.moving.is_some() {
            return Err("it is on its way to another tree".to_owned());
        }
        if old.hops().first().map(|hop| hop.relay) != target.first().map(|hop| hop.relay) {
            return Err("the other tree has another root, and a move keeps it".to_owned());
        }
        let shape = |hops: Vec<TreeHop>| Shape::new(hops, &world.core, |relay| old.load(relay));
        let order = breadth_first(target);
        let mut hops = old.hops().to_vec();
        hops.extend(order.iter().filter(|hop| !old.has(hop.relay)));
        let mut shapes = VecDeque::new();
        if hops.len() > old.hops().len() {
            shapes.push_back(shape(hops.clone())?);
        }
        for hop in &order {
            let Some(at) = hops.iter_mut().find(|of| of.relay == hop.relay) else { continue };
            if at.above != hop.above {
                at.above = hop.above;
                hops = breadth_first(&hops);
                shapes.push_back(shape(hops.clone())?);
            }
        }
        if hops.len() > target.len() {
            shapes.push_back(shape(target.to_vec())?);
        }
        let before = [old].into_iter().chain(&shapes);
        if !before.zip(&shapes).all(|(before, after)| keeps_core(before, after)) {
            let why = "relays of its core would change their places, and only others do that without loss";
            return Err(why.to_owned());
        }
        Ok(shapes)
    }

    /// A relay says that its next parent is the way to the core.
    pub(crate) fn succeeded(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        over: LinkId,
    ) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let is_it = |swap: &Swap| swap.child == relay && swap.link == over;
        if !running.swap().as_ref().is_some_and(is_it) {
            return;
        }
        let (before, flows) = (running.picture(), running.flows());
        let Some(moving) = &mut running.moving else { return };
        let old = std::mem::replace(&mut running.shape, moving.later.pop_front());
        (moving.swap, moving.since) = (None, None);
        let given: Vec<Flow> = flows.iter().map(|f| f.inverse()).chain(running.flows()).collect();
        self.ledger.enter(&given);
        self.save_comtree(op, comtree);
        let above = |hop: &TreeHop| hop.above.filter(|_| hop.relay == relay).map(|above| above.0);
        let parent = old.iter().flat_map(|shape| shape.hops()).find_map(above);
        let first: Vec<RelayId> = parent.into_iter().chain([relay]).collect();
        op.effects.push(Effect::Barrier(comtree));
        self.tell_changed(op, comtree, &before, &first);
        self.advance(op, comtree);
    }

    /// Goes on with a move: begins the next swap, or ends it.
    fn advance(&mut self, op: &mut Op, comtree: Comtree) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (Some(moving), Some(shape)) = (&mut running.moving, &running.shape) else { return };
        match moving.later.front().and_then(|next| swap_to(shape, next)) {
            Some(swap) => {
                moving.swap = Some(swap);
                for relay in [swap.next, swap.child] {
                    op.effects.push(Effect::Barrier(comtree));
                    let item = self.comtree_item(comtree, relay);
                    op.effects.push(Effect::Comtree(comtree, relay, item));
                }
            }
            None => self.finish(op, comtree),
        }
    }

    /// The last relay has its parent: those that are not needed any more go.
    fn finish(&mut self, op: &mut Op, comtree: Comtree) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (before, flows) = (running.picture(), running.flows());
        let Some(mut moving) = running.moving.take() else { return };
        if let Some(last) = moving.later.pop_front() {
            running.shape = Some(last);
        }
        running.why.clone_from(&moving.why);
        let given: Vec<Flow> = flows.iter().map(|f| f.inverse()).chain(running.flows()).collect();
        self.ledger.enter(&given);
        self.save_comtree(op, comtree);
        op.effects.push(Effect::Barrier(comtree));
        self.reshape_effects(op, comtree, &before, None);
        op.tell(Event::Reshaped { comtree, why: moving.why });
        self.prune(op, comtree);
    }

    /// Ends a move where it is: a swap that is not done is taken back, first at the relay that was to
    /// have another parent.
    pub(crate) fn end_move(&mut self, op: &mut Op, comtree: Comtree, reason: &str) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (before, flows) = (running.picture(), running.flows());
        let Some(moving) = running.moving.take() else { return };
        running.why = format!("a move ended before its end: {reason}");
        let why = running.why.clone();
        let given: Vec<Flow> = flows.iter().map(|f| f.inverse()).chain(running.flows()).collect();
        self.ledger.enter(&given);
        let child: Vec<RelayId> = moving.swap.iter().map(|swap| swap.child).collect();
        self.tell_changed(op, comtree, &before, &child);
        op.tell(Event::Reshaped { comtree, why });
        self.prune(op, comtree);
    }

    /// Tells the relays whose branches have changed since; these first, one after the other.
    pub(crate) fn tell_changed(
        &self,
        op: &mut Op,
        comtree: Comtree,
        before: &Picture,
        first: &[RelayId],
    ) {
        let Some(running) = self.comtrees.get(&comtree) else { return };
        let tell =
            |relay: RelayId| Effect::Comtree(comtree, relay, self.comtree_item(comtree, relay));
        for relay in first {
            op.effects.extend([tell(*relay), Effect::Barrier(comtree)]);
        }
        let after = running.picture();
        let relays: BTreeSet<RelayId> = before.keys().chain(after.keys()).copied().collect();
        for relay in relays.into_iter().filter(|relay| !first.contains(relay)) {
            if before.get(&relay) != after.get(&relay) {
                op.effects.push(tell(relay));
            }
        }
    }

    /// Ends moves that do not get on.
    pub(crate) fn review_moves(&mut self, op: &mut Op, now: Time) {
        let mut over = Vec::new();
        for (comtree, running) in &mut self.comtrees {
            let Some(moving) = &mut running.moving else { continue };
            if *moving.since.get_or_insert(now) + PATIENCE <= now {
                over.push(*comtree);
            }
        }
        for comtree in over {
            let seconds = PATIENCE.as_secs();
            self.end_move(op, comtree, &format!("a relay had no new parent after {seconds} s"));
        }
    }

    /// Whether a relay is about to have another parent on the comtree.
    pub(crate) fn is_swapping(&self, comtree: Comtree, relay: RelayId) -> bool {
        let swap = self.comtrees.get(&comtree).and_then(Running::swap);
        swap.is_some_and(|swap| swap.child == relay)
    }

    /// Whether the comtree is on its way to another tree.
    pub(crate) fn is_moving(&self, comtree: Comtree) -> bool {
        self.comtrees.get(&comtree).is_some_and(|running| running.moving.is_some())
    }

    /// Changes a relay's members on a comtree that is moving; the relay is on all its trees.
    pub(crate) fn change_in_move(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        load: Load,
        is_booked: bool,
    ) -> Result<(), Lack> {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Ok(()) };
        let kept = (running.shape.clone(), running.moving.clone());
        let (before, flows) = (running.picture(), running.flows());
        running.change(relay, load);
        let asked: Vec<Flow> = flows.iter().map(|f| f.inverse()).chain(running.flows()).collect();
        if !is_booked {
            self.ledger.enter(&asked);
        } else if let Err(lack) = self.ledger.book(&asked) {
            (running.shape, running.moving) = kept;
            return Err(lack);
        }
        self.tell_changed(op, comtree, &before, &[]);
        Ok(())
    }
}

/// Which relay has another parent in the next tree; none if that has only more relays, or fewer.
fn swap_to(now: &Shape, next: &Shape) -> Option<Swap> {
    next.hops().iter().find_map(|hop| {
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
        let hop = shape.hops().iter().find(|hop| hop.relay == relay);
        let link = hop.and_then(|hop| hop.above).map(|(_, link)| link);
        link.and_then(|link| roles.get(&(relay, link))) == Some(&Role::Parent)
    };
    same && swap_to(before, after).is_none_or(|swap| {
        is_parent(&old, swap.child, before) && is_parent(&new, swap.child, after)
    })
}

/// The hops of a tree, those nearer to the root first.
fn breadth_first(hops: &[TreeHop]) -> Vec<TreeHop> {
    let mut order: Vec<TreeHop> = hops.iter().copied().filter(|hop| hop.above.is_none()).collect();
    let mut next = 0;
    while let Some(above) = order.get(next).map(|hop| hop.relay) {
        let is_below = |hop: &&TreeHop| hop.above.is_some_and(|(of, _)| of == above);
        order.extend(hops.iter().filter(is_below));
        next += 1;
    }
    order
}
