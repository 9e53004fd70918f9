//! Placing members on comtrees: provisioning, and growing a tree to a relay (Forest §3.4.2, §3.5).

use crate::comtree::Step;
use crate::error::Refusal;
use crate::ledger::{Account, Flow, Lack};
use crate::mesh::{ARRIVAL, Spare};
use crate::model::{LinkId, RelayId, TreeHop, WorldId};
use crate::op::{Effect, Op};
use crate::overlap::{Overlap, Picture, follows};
use crate::repair::Leaves;
use crate::running::Running;
use crate::shape::{Load, Shape};
use crate::signal::{Branch, Role};
use crate::state::State;
use canopy_plan::Limits;
use canopy_wire::Comtree;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// How many paths to a tree are tried at most.
const MOST_PATHS: usize = 4;

/// Why a member finds no place.
pub(crate) enum NoPlace {
    Lack(Lack),
    Apart,
}

impl State {
    /// Changes what a relay's members are on all comtrees of a world: reserves it, or gives it back.
    /// Where the relay is not on a tree yet, the tree grows to it. All of it is done, or nothing.
    pub(crate) fn place(
        &mut self,
        op: &mut Op,
        world: WorldId,
        relay: RelayId,
        change: impl Fn(Load) -> Load,
        members: f64,
    ) -> Result<(), Refusal> {
        let places = [Flow::Members(relay, members)];
        self.ledger.book(&places).map_err(|lack| self.refusal(lack))?;
        let comtrees =
            self.worlds.get(&world).map_or_else(Vec::new, |world| world.comtrees.clone());
        let mut done: Vec<(Comtree, Running)> = Vec::new();
        let mut effects = Op::default();
        for comtree in &comtrees {
            // Only a world of several comtrees can have placed somebody on one and fail at another.
            let before = self.comtrees.get(comtree).filter(|_| comtrees.len() > 1).cloned();
            if let Err(no_place) = self.place_on(&mut effects, *comtree, relay, &change) {
                done.into_iter().for_each(|(comtree, before)| self.restore(comtree, before));
                self.ledger.enter(&places.map(Flow::inverse));
                return Err(self.no_place(no_place, world, relay));
            }
            done.extend(before.map(|before| (*comtree, before)));
        }
        op.writes.append(&mut effects.writes);
        op.effects.append(&mut effects.effects);
        Ok(())
    }

    fn no_place(&self, no_place: NoPlace, world: WorldId, relay: RelayId) -> Refusal {
        match (no_place, self.relays.get(&relay), self.worlds.get(&world)) {
            (NoPlace::Lack(lack), ..) => self.refusal(lack),
            (NoPlace::Apart, Some(relay), Some(world)) => {
                Refusal::Apart { relay: relay.name.clone(), world: world.name.clone() }
            }
            _ => Refusal::NoSuchRelay(self.relay_name(relay)),
        }
    }

    /// A comtree is again as it was before.
    pub(crate) fn restore(&mut self, comtree: Comtree, before: Running) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let after = std::mem::replace(running, before);
        let undone = after.flows().into_iter().map(Flow::inverse);
        self.ledger.enter(&undone.chain(running.flows()).collect::<Vec<_>>());
    }

    fn place_on(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        change: &impl Fn(Load) -> Load,
    ) -> Result<(), NoPlace> {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return Err(NoPlace::Apart) };
        let Some(shape) = running.shape.as_mut().filter(|shape| shape.has(relay)) else {
            return self.grow(op, comtree, relay, change((0, Limits::default())));
        };
        let before = shape.load(relay);
        if running.moving.is_some() {
            return self.place_in_move(op, comtree, relay, change(before)).map_err(NoPlace::Lack);
        }
        let (flows, relays) = shape.change(relay, change(before));
        if let Err(lack) = self.ledger.book(&flows) {
            shape.change(relay, before);
            return Err(NoPlace::Lack(lack));
        }
        for at in relays {
            op.effects.push(Effect::Comtree(comtree, at, self.comtree_item(comtree, at)));
        }
        Ok(())
    }

    /// Changes a relay's members while the comtree moves. If the relay is on its way out of the tree,
    /// the move ends.
    fn place_in_move(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        load: Load,
    ) -> Result<(), Lack> {
        let running = self.comtrees.get(&comtree);
        if running.is_some_and(|running| running.shapes().all(|shape| shape.has(relay))) {
            return self.change_in_move(op, comtree, relay, load, true);
        }
        let why = format!("{} has members again", self.relay_name(relay));
        let loaded = |at: RelayId, before: Load| if at == relay { load } else { before };
        self.reshape(op, comtree, &self.hops_of(comtree), loaded, Spare::Newcomers, why)
    }

    /// Grows a tree to a relay that is not on it, by the shortest way over links that have room.
    fn grow(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
        load: Load,
    ) -> Result<(), NoPlace> {
        let tree = self.hops_of(comtree);
        let mut excluded = BTreeSet::new();
        let mut lacked = NoPlace::Apart;
        for _ in 0..MOST_PATHS {
            let path = self.path_to(&tree, relay, &excluded, Leaves::Removed);
            // Who finds no other way needs a link that is being removed after all.
            let path = path.or_else(|| self.path_to(&tree, relay, &excluded, Leaves::None));
            let Some(path) = path else { return Err(lacked) };
            let hops = [tree.as_slice(), &path].concat();
            let why = || format!("it grew to {}", self.relay_name(relay));
            let why = why();
            let loaded = |at: RelayId, before: Load| if at == relay { load } else { before };
            match self.reshape(op, comtree, &hops, loaded, Spare::Newcomers, why) {
                Ok(()) => return Ok(()),
                Err(lack) => {
                    // A link of the way may be avoided, what is short elsewhere may not.
                    let own = |link: LinkId| {
                        path.iter().any(|hop| hop.above.is_some_and(|(_, of)| of == link))
                    };
                    let avoided = match lack.account {
                        Account::Link(link, _) if own(link) => BTreeSet::from([link]),
                        Account::Comtrees(at) if at != relay => self.links_of_full(&tree, relay),
                        _ => BTreeSet::new(),
                    };
                    lacked = NoPlace::Lack(lack);
                    if avoided.is_subset(&excluded) {
                        return Err(lacked);
                    }
                    excluded.extend(avoided);
                }
            }
        }
        Err(lacked)
    }

    /// The links of relays that can carry no other comtree, without those of a tree and of this relay.
    fn links_of_full(&self, tree: &[TreeHop], relay: RelayId) -> BTreeSet<LinkId> {
        let on_tree: BTreeSet<RelayId> = tree.iter().map(|hop| hop.relay).collect();
        let is_full =
            |of: &RelayId| *of != relay && !on_tree.contains(of) && !self.has_room_for_comtree(*of);
        let of_full = self.links.values().filter(|link| link.ends.iter().any(is_full));
        of_full.map(|link| link.id).collect()
    }

    pub(crate) fn hops_of(&self, comtree: Comtree) -> Vec<TreeHop> {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        shape.map_or_else(Vec::new, |shape| shape.hops().to_vec())
    }

    /// The shortest way from a relay to a tree, as hops that follow the tree's; over links that can
    /// be used (Dijkstra, by delay, then by hops).
    fn path_to(
        &self,
        tree: &[TreeHop],
        relay: RelayId,
        excluded: &BTreeSet<LinkId>,
        leaves: Leaves,
    ) -> Option<Vec<TreeHop>> {
        if tree.is_empty() {
            return Some(vec![TreeHop { relay, above: None }]);
        }
        let neighbours = self.neighbours(excluded, leaves);
        let mut next: BTreeMap<RelayId, Option<(RelayId, LinkId)>> = BTreeMap::new();
        let mut queue = BinaryHeap::from([(Reverse(0_u64), Reverse((relay, None)))]);
        // From the relay outwards; the first of the tree that is reached is the nearest.
        while let Some((Reverse(so_far), Reverse((at, from)))) = queue.pop() {
            if next.contains_key(&at) {
                continue;
            }
            next.insert(at, from);
            if tree.iter().any(|hop| hop.relay == at) {
                let mut hops = Vec::new();
                let mut above = at;
                while let Some(Some((below, link))) = next.get(&above).copied() {
                    hops.push(TreeHop { relay: below, above: Some((above, link)) });
                    above = below;
                }
                return Some(hops);
            }
            for (to, link, delay) in neighbours.get(&at).into_iter().flatten() {
                queue.push((Reverse(so_far + delay + 1), Reverse((*to, Some((at, *link))))));
            }
        }
        None
    }

    /// By relay: its neighbours over links that can be used, and how far they are.
    fn neighbours(
        &self,
        excluded: &BTreeSet<LinkId>,
        leaves: Leaves,
    ) -> BTreeMap<RelayId, Vec<(RelayId, LinkId, u64)>> {
        let mut neighbours: BTreeMap<RelayId, Vec<(RelayId, LinkId, u64)>> = BTreeMap::new();
        for link in self.links.values() {
            if excluded.contains(&link.id)
                || self.is_left(link.id, leaves)
                || !self.is_usable(link.id)
            {
                continue;
            }
            for end in link.ends {
                let to = (link.other(end), link.id, u64::from(link.delay_us));
                neighbours.entry(end).or_default().push(to);
            }
        }
        neighbours
    }

    /// Gives a comtree another tree, and books what it needs instead of what the old one needed; or
    /// changes nothing. `load` says what a relay's members are, from what they are so far.
    pub(crate) fn reshape(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        hops: &[TreeHop],
        load: impl Fn(RelayId, Load) -> Load,
        spare: Spare,
        why: String,
    ) -> Result<(), Lack> {
        let new = self.fit(comtree, hops, load, spare)?;
        self.take(op, comtree, new, why);
        Ok(())
    }

    /// Gives a comtree a shape that is booked.
    pub(crate) fn take(&mut self, op: &mut Op, comtree: Comtree, new: Option<Shape>, why: String) {
        let is_whole = new.as_ref().is_none_or(|shape| self.is_whole(shape));
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let (before, step) = (running.picture(), running.step().map(Step::given_up));
        let old = core::mem::replace(&mut running.shape, new);
        running.undone = step.clone().or(running.step_on_relays());
        let has_moved = running.moving.take().is_some();
        if has_moved {
            // It has not got to its end.
            running.ended_moves = running.ended_moves.saturating_add(1);
            running.rests_since = None;
        }
        running.why = why;
        running.kept = None;
        running.broken = running.broken.take().filter(|_| !is_whole);
        let is_detour = old.is_none_or(|old| running.is_detour_of(&old));
        self.renew_standbys(comtree);
        self.reshape_effects(op, comtree, before, step, (is_detour, has_moved));
    }

    /// Leaves out relays at the ends of the tree that have no members. If members are left and a relay may be on a
    /// detour over one of these, that is put off.
    pub(crate) fn prune(&mut self, op: &mut Op, comtree: Comtree) {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let Some(shape) = shape.filter(|shape| shape.has_idle_end()) else { return };
        if shape.all_members() > 0 && self.has_detour(comtree) {
            self.unpruned.insert(comtree);
        } else {
            let hops = shape.pruned();
            let why = "it shrank to the relays that have members".to_owned();
            // A core that moves may need more than is free; then the tree stays as it is.
            _ = self.reshape(op, comtree, &hops, |_, load| load, Spare::Newcomers, why);
        }
    }

    /// Does that for comtrees for which it was put off.
    pub(crate) fn prune_put_off(&mut self, op: &mut Op) {
        for comtree in core::mem::take(&mut self.unpruned) {
            // A move prunes it at its end.
            if !self.is_moving(comtree) {
                self.prune(op, comtree);
                op.cut();
            }
        }
    }

    /// Stores a new tree, and says what relays are told of it, who had these branches before. If links are left,
    /// they go first everywhere, and what is new waits for that: old branches and new ones never form a
    /// circle. What a step has begun is taken back before all of that, at the relay whose word was
    /// waited for. Standby parents that are there before and after stay, if relays hang on who was their
    /// parent or standby parent, so that what runs over them goes on.
    pub(crate) fn reshape_effects(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        mut before: Picture,
        step: Option<Step>,
        (is_detour, has_moved): (bool, bool),
    ) {
        let Some(running) = self.comtrees.get(&comtree) else { return };
        let after = running.picture();
        let links: BTreeSet<LinkId> = running.shape.iter().flat_map(Shape::links).collect();
        // What a step has brought goes, whatever comes over those links on the new tree.
        let is_new = |link: LinkId| match &step {
            Some(Step::Swap(swap)) => swap.link == link,
            Some(Step::Peer(of)) => of.joins && of.peers.iter().any(|(_, of)| *of == link),
            _ => false,
        };
        let stays = |relay: RelayId, branch: &Branch| {
            // There is no branch before a way is found over it.
            if branch.role == Role::Spare {
                return true;
            }
            if branch.role.is_standby() {
                let mut next = after.get(&relay).into_iter().flatten();
                return is_detour
                    && next.any(|of| of.link == branch.link && follows(branch.role, of.role));
            }
            links.contains(&branch.link) && !is_new(branch.link)
        };
        let is_well = before.values().flatten().all(|branch| self.is_usable(branch.link));
        if let Some(step) = &step {
            self.take_back(op, comtree, step, &mut before);
        }
        let has_let_go = self.let_go(op, comtree, &mut before, stays);
        // What a next peer or a next parent has sent would arrive when its link is a standby's already. It would pass there
        // as a child's, and once more over the tree.
        match &step {
            Some(Step::Peer(_)) if is_well => {
                op.effects.extend([Effect::Arrival(comtree, ARRIVAL), Effect::Barrier(comtree)]);
            }
            Some(step @ Step::Swap(_)) if is_well => self.await_last(op, comtree, step),
            // So would what an old parent has sent, if a move ends between two steps.
            _ if is_well && has_moved => {
                op.effects.push(Effect::Barrier(comtree));
                self.await_left(op, comtree);
            }
            _ => {}
        }
        op.effects.extend(step.as_ref().map(|_| Effect::TakenBack(comtree)));
        // Standby parents rank by the tree of before. Those that were taken away a moment ago may be on their way
        // out yet, and are gone everywhere before others come.
        if !is_detour {
            op.effects.push(Effect::Barrier(comtree));
        }
        self.note_overlap(comtree, has_let_go || !is_detour, &before, &after);
        self.save_comtree(op, comtree);
        self.take_on(op, comtree, before, &after);
    }

    /// What relays have before and is not to stay goes first everywhere. Returns whether there is any.
    fn let_go(
        &self,
        op: &mut Op,
        comtree: Comtree,
        before: &mut Picture,
        stays: impl Fn(RelayId, &Branch) -> bool,
    ) -> bool {
        let goes = |(relay, branches): (&RelayId, &Vec<Branch>)| {
            branches.iter().any(|branch| !stays(*relay, branch))
        };
        if !before.iter().any(goes) {
            return false;
        }
        let is_well = |branch: &Branch| self.is_usable(branch.link);
        let leaves_mesh = |(relay, branches): (&RelayId, &Vec<Branch>)| {
            branches.iter().any(|of| of.role == Role::CorePeer && !stays(*relay, of))
        };
        // What is on its way yet may have to come in the place of what goes, if nothing has failed.
        if before.values().flatten().all(is_well) && before.iter().any(leaves_mesh) {
            op.effects.push(Effect::Barrier(comtree));
        }
        for (relay, branches) in before {
            let had = branches.len();
            branches.retain(|branch| stays(*relay, branch));
            if branches.len() < had {
                let item = self.comtree_base(comtree, *relay, branches.clone());
                op.effects.push(Effect::Comtree(comtree, *relay, item));
            }
        }
        op.effects.push(Effect::Barrier(comtree));
        true
    }

    /// Until relays have the tree, what they surely have of it is known, if it matters in which order they are
    /// told; `before` is what they keep.
    fn note_overlap(
        &mut self,
        comtree: Comtree,
        has_let_go: bool,
        before: &Picture,
        after: &Picture,
    ) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        let has_order = has_let_go || without_new_peers(before, after).is_some();
        if has_order || running.overlap.is_some() {
            running.overlap = Some(Overlap::of(running.overlap.as_ref(), before, after));
        }
    }

    /// Relays that have let go of what does not stay take all of the tree.
    pub(crate) fn take_on(
        &self,
        op: &mut Op,
        comtree: Comtree,
        mut before: Picture,
        after: &Picture,
    ) {
        self.turn_before_peers(op, comtree, &mut before, after);
        let relays: BTreeSet<RelayId> = before.keys().chain(after.keys()).copied().collect();
        for relay in relays {
            if before.get(&relay) != after.get(&relay) {
                let item = self.comtree_item(comtree, relay);
                op.effects.push(Effect::Comtree(comtree, relay, item));
            }
        }
        let overlap = self.comtrees.get(&comtree).and_then(|running| running.overlap.as_ref());
        let number = overlap.map(|overlap| overlap.number);
        op.effects.extend(number.map(|number| Effect::RolledOut(comtree, number)));
    }

    /// All relays have the tree, up to the change of this number.
    pub(crate) fn forget_overlap(&mut self, op: &mut Op, comtree: Comtree, number: u64) {
        let Some(running) = self.comtrees.get_mut(&comtree) else { return };
        if running.overlap.take_if(|overlap| overlap.number == number).is_some() {
            self.save_comtree(op, comtree);
        }
    }

    /// Where branches turn into such of a meshed core, or out of it, and links of the mesh are new, those
    /// come after the turn: a relay that passes on what came from its parent, and one that takes the same
    /// relay for its core peer, would let an update go both ways round.
    fn turn_before_peers(
        &self,
        op: &mut Op,
        comtree: Comtree,
        before: &mut Picture,
        after: &Picture,
    ) {
        let Some(turned) = without_new_peers(before, after) else { return };
        for (relay, branches) in &turned {
            if before.get(relay) != Some(branches) {
                let item = self.comtree_base(comtree, *relay, branches.clone());
                op.effects.push(Effect::Comtree(comtree, *relay, item));
            }
        }
        op.effects.push(Effect::Barrier(comtree));
        before.extend(turned);
    }
}

/// What relays have of a picture before core peers get new branches to each other: others change their roles
/// first. Nothing if none does.
fn without_new_peers(before: &Picture, after: &Picture) -> Option<Picture> {
    let had = |relay: &RelayId, link: LinkId| {
        let mut branches = before.get(relay).into_iter().flatten();
        branches.find(move |branch| branch.link == link && branch.role != Role::Spare)
    };
    let turns = |(relay, branches): (&RelayId, &Vec<Branch>)| {
        let is_other = |of: &Branch| had(relay, of.link).is_some_and(|had| had.role != of.role);
        branches.iter().any(is_other)
    };
    let is_new = |relay: &RelayId, branch: &Branch| {
        branch.role == Role::CorePeer && had(relay, branch.link).is_none()
    };
    let has_new = |(relay, branches): (&RelayId, &Vec<Branch>)| {
        branches.iter().any(|branch| is_new(relay, branch))
    };
    if !after.iter().any(turns) || !after.iter().any(has_new) {
        return None;
    }
    let without = |(relay, branches): (&RelayId, &Vec<Branch>)| {
        let left = branches.iter().filter(|branch| !is_new(relay, branch)).copied().collect();
        (*relay, left)
    };
    Some(after.iter().filter(|(relay, _)| before.contains_key(relay)).map(without).collect())
}
