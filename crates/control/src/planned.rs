//! Why trees are changed without need: a better one is found, an operator asks for it, a relay drains, or a link is
//! to go.

use crate::error::Refusal;
use crate::mesh::is_same;
use crate::model::{Core, LinkId, RelayId, RelayState, TreeAsk, TreeHop};
use crate::op::Op;
use crate::repair::{Aim, Leaves};
use crate::running::Running;
use crate::shape::Shape;
use crate::state::State;
use crate::steps::same_tree;
use canopy_plan::Method;
use canopy_wire::{Comtree, Time};
use std::collections::BTreeSet;

/// What a move of a comtree does.
#[derive(Clone, Debug, PartialEq)]
pub struct MovePlan {
    /// Which.
    pub comtree: Comtree,
    /// What its tree costs: the reserved bits a second of each link, both ways, times its length in
    /// kilometres of fibre.
    pub cost: f64,
    /// The same of the tree that it moves to.
    pub planned_cost: f64,
    /// How many of its relays hang on another then, or are the root, or join or leave a meshed core.
    pub hung: usize,
    /// The tree that it moves to, each relay after the one above it.
    pub tree: Vec<TreeHop>,
}

impl State {
    /// Looks for a better tree, and takes it if it gains enough. Returns why it did or did not.
    pub(crate) fn improve(&mut self, op: &mut Op, comtree: Comtree) -> String {
        let result = self.try_to_improve(op, comtree).map_err(|why| format!("it stays: {why}"));
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.kept = result.as_ref().err().cloned();
            if let Ok(why) = &result {
                running.why.clone_from(why);
            }
        }
        result.unwrap_or_else(|why| why)
    }

    /// Does that for the comtree which has been due for the longest time. Returns whether one was due.
    pub(crate) fn improve_next(&mut self, op: &mut Op, now: Time) -> bool {
        let period = self.settings.improve;
        // Where a relay is on a detour, it is looked at once that is over.
        let told = self.detours.values().flatten().copied();
        let detoured: BTreeSet<Comtree> = told.filter(|of| self.has_detour(*of)).collect();
        let calm = self.comtrees.iter_mut().filter(|(comtree, _)| !detoured.contains(*comtree));
        let due = calm.filter_map(|(comtree, running)| {
            running.is_due_since(now, period).map(|since| (since, *comtree))
        });
        let Some((_, comtree)) = due.min() else { return false };
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.rests_since = Some(now);
        }
        self.improve(op, comtree);
        true
    }

    fn try_to_improve(&mut self, op: &mut Op, comtree: Comtree) -> Result<String, String> {
        let now = self.cost_of(comtree);
        let least = self.settings.least_gain;
        let gain = |cost: f64| if now > 0.0 { 1.0 - cost / now } else { 0.0 };
        let percent = |share: f64| (share * 1000.0).round() / 10.0;
        let mut targets = self.targets(comtree, self.asked_for(comtree), Leaves::Surplus)?;
        let found = targets.iter().map(|(_, cost)| gain(*cost)).fold(f64::MIN, f64::max);
        targets.retain(|(_, cost)| gain(*cost) >= least);
        if targets.is_empty() {
            let (found, least) = (percent(found), percent(least));
            return Err(format!(
                "the best tree found costs {found} % less, {least} % are asked for"
            ));
        }
        let why = |cost: f64| {
            let found = percent(gain(cost));
            format!("it was improved: the tree costs {found} % less than the one before")
        };
        let (_, cost, relays) = self.begin_first(op, comtree, targets, why)?;
        let found = percent(gain(cost));
        Ok(format!(
            "it is being improved: the tree will cost {found} % less once {relays} relays have other places"
        ))
    }

    /// Begins a move to the first of these targets to which there is a way.
    fn begin_first(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        targets: Vec<(Shape, f64)>,
        why: impl Fn(f64) -> String,
    ) -> Result<(Shape, f64, usize), String> {
        let mut refused = None;
        for (end, cost) in targets {
            match self.begin_move(op, comtree, &end, &why(cost)) {
                Ok(moved) => return Ok((end, cost, moved)),
                Err(why) => _ = refused.get_or_insert(why),
            }
        }
        Err(refused.unwrap_or_else(|| "no other tree was found".to_owned()))
    }

    /// Moves a comtree to another tree, which goes round relays that drain and have no members.
    pub(crate) fn move_tree(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        ask: TreeAsk,
    ) -> Result<MovePlan, Refusal> {
        let running = self.comtrees.get(&comtree);
        let world = running.and_then(|running| self.worlds.get(&running.world));
        let world = world.map_or_else(|| comtree.0.to_string(), |world| world.name.to_string());
        let result = self.try_to_move(op, comtree, ask);
        if let (Ok(_), Some(running)) = (&result, self.comtrees.get_mut(&comtree)) {
            running.asked = ask;
            self.save_comtree(op, comtree);
        }
        result.map_err(|why| Refusal::NotMoved { world, why })
    }

    fn try_to_move(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        ask: TreeAsk,
    ) -> Result<MovePlan, String> {
        let cost = self.cost_of(comtree);
        let mut targets = self.targets(comtree, ask, Leaves::Surplus)?;
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let is_there = |end: &Shape| shape.is_some_and(|shape| is_there(shape, end));
        // Those behind the tree in force are no better than that.
        let there = targets.iter().position(|(end, _)| is_there(end));
        if there == Some(0) {
            let (end, planned_cost) = targets.swap_remove(0);
            let tree = end.hops().to_vec();
            return Ok(MovePlan { comtree, cost, planned_cost, hung: 0, tree });
        }
        targets.truncate(there.unwrap_or(targets.len()));
        let why = format!("it was moved to {}", self.in_words(ask));
        let (end, planned_cost, hung) = self.begin_first(op, comtree, targets, |_| why.clone())?;
        Ok(MovePlan { comtree, cost, planned_cost, hung, tree: end.hops().to_vec() })
    }

    /// What a move of a world would do.
    pub(crate) fn plan_moves(
        &mut self,
        comtrees: &[Comtree],
        ask: TreeAsk,
    ) -> Result<Vec<MovePlan>, Refusal> {
        let before: Vec<(Comtree, Running)> =
            comtrees.iter().filter_map(|id| Some((*id, self.comtrees.get(id)?.clone()))).collect();
        let mut op = Op::default();
        let plans = comtrees.iter().map(|comtree| self.move_tree(&mut op, *comtree, ask)).collect();
        before.into_iter().for_each(|(id, before)| self.restore(id, before));
        plans
    }

    fn in_words(&self, ask: TreeAsk) -> String {
        let TreeAsk { root, method, stretch } = ask;
        let which = match method {
            Method::Best => "the least costly tree".to_owned(),
            Method::Spt => "a shortest-path tree".to_owned(),
            Method::Mst => "a minimum spanning tree".to_owned(),
            Method::Hybrid => "a tree between a spanning and a shortest-path tree".to_owned(),
            Method::Stretch => {
                format!(
                    "a tree whose ways are at most {} times the direct ones",
                    f64::from(stretch) / 100.0
                )
            }
        };
        let with_root = root.map(|root| format!(" with the root {}", self.relay_name(root)));
        which + &with_root.unwrap_or_default()
    }

    /// The trees that a comtree may move to, each with what it costs. The best comes first.
    ///
    /// # Errors
    /// Why there is none.
    fn targets(
        &self,
        comtree: Comtree,
        ask: TreeAsk,
        leaves: Leaves,
    ) -> Result<Vec<(Shape, f64)>, String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        if let Some(why) = &running.broken {
            return Err(format!("its tree is not whole: {why}"));
        }
        let shape = running.shape.as_ref().ok_or("it has no members")?;
        let world = self.worlds.get(&running.world).ok_or("it has no world")?;
        let (hops, cost) = self.choose_tree(comtree, Aim::Best, leaves, Some(ask))?;
        if world.core == Core::Mesh {
            return self.meshed_targets(comtree, shape, &hops, ask);
        }
        let end = Shape::new(hops, &world.core, |relay| shape.load(relay))?;
        Ok(vec![(end, cost)])
    }

    /// The tree that an operator has asked for, without the root if that cannot be one now.
    fn asked_for(&self, comtree: Comtree) -> TreeAsk {
        let Some(running) = self.comtrees.get(&comtree) else { return TreeAsk::default() };
        let meshed = running.shape.as_ref().filter(|shape| !shape.mesh().is_empty());
        // One that is in a mesh has members, or relays that hang on it.
        let serves = |shape: &Shape, root| shape.is_core(root) || shape.load(root).0 > 0;
        let may_be = |root: &RelayId| {
            let is_up = self.relays.get(root).is_some_and(|relay| relay.state == RelayState::Up);
            is_up && meshed.is_none_or(|shape| serves(shape, *root))
        };
        TreeAsk { root: running.asked.root.filter(may_be), ..running.asked }
    }

    /// Moves comtrees off relays that drain and have no members there.
    pub(crate) fn leave_draining(&mut self, op: &mut Op, after: &mut Comtree, most: usize) {
        let drains = |relay: &RelayId| {
            self.relays.get(relay).is_some_and(|relay| relay.state == RelayState::Draining)
        };
        let idle = |shape: &Shape| shape.relays().find(|at| drains(at) && shape.load(*at).0 == 0);
        let of = |(comtree, running): (&Comtree, &Running)| {
            let relay = Some(running)
                .filter(|running| running.may_move())?
                .shape
                .as_ref()
                .and_then(idle)?;
            Some((*comtree, relay))
        };
        let mut due: Vec<(Comtree, RelayId)> = self.comtrees.iter().filter_map(of).collect();
        due.sort_by_key(|(comtree, _)| (*comtree <= *after, *comtree));
        for (comtree, relay) in due.into_iter().take(most) {
            *after = comtree;
            let result = self.leave_relay(op, comtree, relay);
            op.cut();
            let name = self.relay_name(relay);
            if let (Err(why), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
                running.why = format!("it stays over {name}, which drains: {why}");
            }
        }
    }

    /// Moves a comtree off a relay that drains and has none of its members, at once or after what it is about.
    ///
    /// # Errors
    /// Why it cannot do without the relay.
    pub(crate) fn leave_relay(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        relay: RelayId,
    ) -> Result<(), String> {
        let Some(running) = self.comtrees.get(&comtree) else { return Ok(()) };
        let is_still = running.is_still();
        // One that is on its way to a tree without the relay leaves it so.
        if !is_still && !running.shapes().last().is_some_and(|end| end.has(relay)) {
            return Ok(());
        }
        let targets = self.targets(comtree, self.asked_for(comtree), Leaves::Surplus)?;
        if is_still {
            let name = self.relay_name(relay);
            self.begin_first(op, comtree, targets, |_| format!("{name} drains"))?;
        }
        Ok(())
    }

    /// Moves some comtrees off links that are proposed no more: those behind this one, and then from the
    /// first on.
    pub(crate) fn leave_surplus(&mut self, op: &mut Op, after: &mut Comtree, most: usize) {
        let is_due_to_go = |link| self.is_surplus(link) && !self.is_being_removed(link);
        let uses = |shape: &Shape| shape.links().any(is_due_to_go);
        let is_due = |(_, running): &(&Comtree, &Running)| {
            running.may_move() && running.shape.as_ref().is_some_and(uses)
        };
        let due = self.comtrees.iter().filter(is_due).map(|(comtree, _)| *comtree);
        let mut due: Vec<Comtree> = due.collect();
        due.sort_by_key(|comtree| (*comtree <= *after, *comtree));
        for comtree in due.into_iter().take(most) {
            *after = comtree;
            let why = "other links are proposed than those that it ran over";
            let result = self.leave_links(op, comtree, Leaves::Surplus, why);
            op.cut();
            if let (Err(why), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
                running.why = format!("it stays over a link that is proposed no more: {why}");
            }
        }
    }

    /// Moves a comtree off links that are to go.
    fn leave_links(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        leaves: Leaves,
        why: &str,
    ) -> Result<(), String> {
        let targets = self.targets(comtree, self.asked_for(comtree), leaves)?;
        let targets = self.that_leave(comtree, targets, leaves)?;
        self.begin_first(op, comtree, targets, |_| why.to_owned()).map(|_| ())
    }

    /// Moves a comtree off a link that is being removed, at once or after what it is about.
    ///
    /// # Errors
    /// Why it cannot do without the link.
    pub(crate) fn leave_removed(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        link: LinkId,
    ) -> Result<(), String> {
        let Some(running) = self.comtrees.get(&comtree) else { return Ok(()) };
        if running.is_still() {
            let why = format!("the link {} is being removed", link.0);
            return self.leave_links(op, comtree, Leaves::Removed, &why);
        }
        // One that is on its way to a tree without the link leaves it so.
        match running.shapes().last().is_some_and(|end| end.links().any(|of| of == link)) {
            true => self.targets(comtree, self.asked_for(comtree), Leaves::Removed).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Moves some comtrees off links that are being removed, which something has kept from that so far: those behind
    /// this one, and then from the first on.
    pub(crate) fn leave_all_removed(&mut self, op: &mut Op, after: &mut Comtree, most: usize) {
        let over = |running: &Running| {
            running.shape.iter().flat_map(Shape::links).find(|link| self.is_being_removed(*link))
        };
        let is_due = |(comtree, running): (&Comtree, &Running)| {
            // One that is not whole cannot leave, and it is said that it holds the link.
            let is_due = running.may_move() || running.broken.is_some();
            Some((*comtree, over(running).filter(|_| is_due)?))
        };
        let mut due: Vec<(Comtree, LinkId)> = self.comtrees.iter().filter_map(is_due).collect();
        due.sort_by_key(|(comtree, _)| (*comtree <= *after, *comtree));
        for (comtree, link) in due.into_iter().take(most) {
            *after = comtree;
            let result = self.leave_removed(op, comtree, link);
            op.cut();
            if let (Err(why), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
                running.why =
                    format!("it stays over the link {}, which is being removed: {why}", link.0);
            }
        }
    }

    /// Those targets of a meshed comtree that run over fewer links that are to go than before, with the largest core:
    /// that does not become smaller for such a link.
    fn that_leave(
        &self,
        comtree: Comtree,
        mut targets: Vec<(Shape, f64)>,
        leaves: Leaves,
    ) -> Result<Vec<(Shape, f64)>, String> {
        let old = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let Some(old) = old.filter(|shape| !shape.mesh().is_empty()) else { return Ok(targets) };
        let count =
            |shape: &Shape| shape.links().filter(|link| self.is_left(*link, leaves)).count();
        let largest = targets.first().map_or(0, |(end, _)| end.core().len());
        targets.retain(|(end, _)| end.core().len() == largest && count(end) < count(old));
        targets.sort_by_key(|(end, _)| count(end));
        match targets.is_empty() {
            true => Err("relays of its meshed core hear each other over it".to_owned()),
            false => Ok(targets),
        }
    }
}

/// Whether a comtree has this tree already, with this root and core.
fn is_there(shape: &Shape, end: &Shape) -> bool {
    let root = |of: &Shape| of.hops().first().map(|hop| hop.relay);
    match [shape, end].map(Shape::mesh) {
        [[], []] => same_tree(shape.hops(), end.hops()),
        _ => root(shape) == root(end) && is_same(shape, end),
    }
}
