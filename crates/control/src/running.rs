//! A comtree as it runs: the tree in force, those that follow it while it moves, and what its relays are
//! to have for them.

use crate::comtree::{Heading, Leave, Peering, Phase, Step, Swap};
use crate::ledger::Flow;
use crate::model::{LinkId, RelayId, TreeAsk, WorldId};
use crate::overlap::{Overlap, Picture};
use crate::shape::{Load, Shape};
use crate::signal::{Branch, Role};
use crate::steps::{Way, same_tree};
use canopy_plan::Rate;
use canopy_wire::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often the rest before a better tree is looked for is doubled at most.
const MOST_DOUBLED: u32 = 5;

/// A comtree as it runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) world: WorldId,
    /// Nothing while it has no members.
    pub(crate) shape: Option<Shape>,
    /// Who is a relay's parent if it loses the one that it has.
    pub(crate) standbys: Standbys,
    /// Over which other links between its relays these may find ways while there is no controller, and the ends.
    pub(crate) spares: BTreeMap<LinkId, [RelayId; 2]>,
    /// What follows while it is moved to another tree.
    pub(crate) moving: Option<Move>,
    /// The step of a move that has ended, until its relays have taken it back. There is no other move until
    /// then.
    pub(crate) undone: Option<Step>,
    /// What relays surely have of the tree, until all of them have all of it. Nothing if they have, or if what
    /// is told to them may come in any order.
    pub(crate) overlap: Option<Overlap>,
    /// The tree that an operator has asked for.
    pub(crate) asked: TreeAsk,
    /// Relays that have refused to be a next peer, or to have one. They join its meshed core at once.
    pub(crate) no_next_peers: BTreeSet<RelayId>,
    /// Why it has the tree that it has.
    pub(crate) why: String,
    /// Why it kept that when a better one was looked for last.
    pub(crate) kept: Option<String>,
    /// When it was seen first with this tree, or a better one was looked for last. Nothing since it was moved or
    /// repaired.
    pub(crate) rests_since: Option<Time>,
    /// How many of its moves have ended before their end since one did not.
    pub(crate) ended_moves: u32,
    /// Why it has no tree that is whole, if it has none.
    pub(crate) broken: Option<String>,
    /// Until when members of a relay that was given up are expected. Each would end a move, and wait for that.
    pub(crate) expects_members: Option<Time>,
}

/// By relay: its standby parent, and the link that leads there.
pub(crate) type Standbys = BTreeMap<RelayId, (RelayId, LinkId)>;

/// A comtree on its way to another tree.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// The trees that follow the one in force: each has another parent for one relay, another core, or
    /// more or fewer relays.
    pub(crate) later: VecDeque<Shape>,
    /// The trees among them whose core is not that of the rule, with that core: what they are if the
    /// move ends there.
    pub(crate) ends: Vec<Shape>,
    pub(crate) step: Option<Step>,
    /// The step before, until its relays have what follows from it. The next one begins after that.
    pub(crate) passed: Option<Step>,
    pub(crate) why: String,
    /// Whether all relays have the phase of a [`Step::Peer`] that is under way.
    pub(crate) is_told: bool,
    /// When the step was looked at first, or was since they have.
    pub(crate) since: Option<Time>,
}

impl Running {
    /// The tree in force, and those that follow it.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        let later = self.moving.iter().flat_map(|moving| &moving.later);
        self.shape.iter().chain(later)
    }

    /// The step that is under way.
    pub(crate) fn step(&self) -> Option<Step> {
        self.moving.as_ref().and_then(|moving| moving.step.clone())
    }

    /// The step of which relays may have something: the one that is under way, the one before while they are
    /// told what follows, or one that is taken back.
    pub(crate) fn step_on_relays(&self) -> Option<Step> {
        let passed = self.moving.as_ref().and_then(|moving| moving.passed.clone());
        self.step().or(passed).or(self.undone.clone())
    }

    /// Where it is being moved.
    pub(crate) fn heading(&self) -> Option<Heading> {
        let (moving, shape) = (self.moving.as_ref()?, self.shape.as_ref()?);
        let end = moving.later.back()?;
        let is_tree = shape.mesh().is_empty() && end.mesh().is_empty();
        let core = if is_tree { shape.core().into_iter().collect() } else { Vec::new() };
        let (tree, mesh) = (end.hops().to_vec(), end.mesh().to_vec());
        Some(Heading { tree, mesh, core, why: moving.why.clone() })
    }

    /// What a life before has begun of a step by which a relay joins a meshed core, or leaves it, is under way again, if
    /// relays are told of nothing else. A step that was given up is not.
    pub(crate) fn go_on_peering(&mut self) {
        let Some(Step::Peer(peering)) = &self.undone else { return };
        let is_alone = self.overlap.is_none() && peering.phase != Phase::TakenBack;
        let next = self.shape.as_ref().filter(|_| is_alone).and_then(|shape| shape.after(peering));
        if let Some(next) = next {
            let way = Way { later: VecDeque::from([next]), ends: Vec::new() };
            let why = peering.why();
            self.moving = Some(Move { step: self.undone.take(), ..Move::over(way, why) });
        }
    }

    /// Whether it may be moved to another tree now.
    pub(crate) fn may_move(&self) -> bool {
        self.is_still() && self.expects_members.is_none()
    }

    /// Whether it is whole, and on its way to no other tree.
    pub(crate) fn is_still(&self) -> bool {
        self.moving.is_none() && self.undone.is_none() && self.broken.is_none()
    }

    /// Whether nothing of it changes, nor does any relay have yet to take what has changed.
    fn is_settled(&self) -> bool {
        self.may_move() && self.overlap.is_none() && self.shape.is_some()
    }

    /// Since when a better tree may be looked for, if that is so now. It rests for this long before, and longer if
    /// its moves do not get to their end.
    pub(crate) fn is_due_since(&mut self, now: Time, period: Duration) -> Option<Time> {
        let since = *self.rests_since.get_or_insert(now);
        let due = since + period * (1 << self.ended_moves.min(MOST_DOUBLED));
        (self.is_settled() && due <= now).then_some(due)
    }

    /// By link and the relay that sends: the relay that receives, and the most that one of the trees
    /// needs.
    fn needs(&self) -> BTreeMap<(LinkId, RelayId), (RelayId, Rate)> {
        let mut needs: BTreeMap<(LinkId, RelayId), (RelayId, Rate)> = BTreeMap::new();
        let ends = self.moving.iter().flat_map(|moving| &moving.ends);
        let flows = self.shapes().chain(ends).flat_map(Shape::flows);
        for flow in flows.chain(self.needs_between()) {
            if let Flow::Over(link, from, to, rate) = flow {
                let (_, most) = needs.entry((link, from)).or_insert((to, Rate::ZERO));
                most.bits = most.bits.max(rate.bits);
                most.packets = most.packets.max(rate.packets);
            }
        }
        needs
    }

    /// What is sent while a tree takes another's place, which may be more than on either of them.
    fn needs_between(&self) -> impl Iterator<Item = Flow> {
        let pairs = self.shapes().zip(self.shapes().skip(1));
        pairs.flat_map(|(now, next)| {
            let peering = Peering::between(now, next);
            let need = peering.map(|of| of.need(if of.joins { next } else { now }));
            now.flows_between(next).into_iter().chain(need)
        })
    }

    /// All that is reserved for the comtree. While it moves it has room at each relay that is on one of the trees.
    pub(crate) fn flows(&self) -> Vec<Flow> {
        let mut flows = self.shape.as_ref().map_or_else(Vec::new, Shape::flows);
        if self.moving.is_some() {
            flows.retain(|flow| !matches!(flow, Flow::Over(..) | Flow::Comtrees(..)));
            let over = |((link, from), (to, rate))| Flow::Over(link, from, to, rate);
            flows.extend(self.needs().into_iter().map(over));
            let relays: BTreeSet<RelayId> = self.shapes().flat_map(Shape::relays).collect();
            flows.extend(relays.into_iter().map(|relay| Flow::Comtrees(relay, 1.0)));
        }
        flows
    }

    /// What is to be booked so that it has its flows instead of these.
    pub(crate) fn instead_of(&self, before: &[Flow]) -> Vec<Flow> {
        before.iter().map(|flow| flow.inverse()).chain(self.flows()).collect()
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
            branches.extend(self.standby_branches(relay));
            branches.extend(self.spare_branches(relay));
            branches.sort_by_key(|branch| branch.link);
            return branches;
        }
        if let Some(Step::Swap(Swap { child, next, link })) = self.step() {
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
        if let Some(Step::Leave(Leave { relay: leaving, link, .. })) = self.step()
            && leaving == relay
            && let Some(branch) = branches.iter_mut().find(|branch| branch.link == link)
        {
            branch.role = Role::NextParent;
        }
        if let Some(Step::Peer(peering)) = self.step() {
            peering.apply_to(relay, &mut branches);
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

    /// Whether its relays hang on who was their parent on an old tree, or their standby parent.
    pub(crate) fn is_detour_of(&self, old: &Shape) -> bool {
        let Some(shape) = &self.shape else { return false };
        shape.hops().iter().filter(|hop| old.has(hop.relay)).all(|hop| {
            hop.above == old.above(hop.relay)
                || hop.above.is_some() && hop.above.as_ref() == self.standbys.get(&hop.relay)
        })
    }

    /// A relay's standby parent, and those whose standby parent it is. Nothing is reserved for them.
    fn standby_branches(&self, relay: RelayId) -> impl Iterator<Item = Branch> + '_ {
        self.standbys.iter().filter_map(move |(child, (parent, link))| {
            let (site, role) = match relay {
                at if at == *child => (parent.0, Role::StandbyParent),
                at if at == *parent => (child.0, Role::StandbyChild),
                _ => return None,
            };
            Some(Branch { link: *link, site, role, send: Rate::ZERO, receive: Rate::ZERO })
        })
    }

    fn spare_branches(&self, relay: RelayId) -> impl Iterator<Item = Branch> + '_ {
        self.spares.iter().filter(move |(_, ends)| ends.contains(&relay)).map(
            move |(link, ends)| {
                let [one, other] = *ends;
                let to = if one == relay { other } else { one };
                let (role, send, receive) = (Role::Spare, Rate::ZERO, Rate::ZERO);
                Branch { link: *link, site: to.0, role, send, receive }
            },
        )
    }

    /// Changes what a relay's members are, on all trees.
    pub(crate) fn change(&mut self, relay: RelayId, load: Load) {
        let later = self
            .moving
            .iter_mut()
            .flat_map(|moving| moving.later.iter_mut().chain(&mut moving.ends));
        for shape in self.shape.iter_mut().chain(later) {
            shape.change(relay, load);
        }
    }
}

impl Move {
    /// One that begins.
    pub(crate) fn over(way: Way, why: String) -> Move {
        let Way { later, ends } = way;
        Move { later, ends, step: None, passed: None, why, is_told: false, since: None }
    }

    /// The next tree is in force: what the one before would be at the end is not needed any more.
    pub(crate) fn take_next(&mut self) -> Option<Shape> {
        let next = self.later.pop_front();
        let left = || next.iter().chain(&self.later);
        self.ends.retain(|end| left().any(|shape| same_tree(end.hops(), shape.hops())));
        next
    }
}
