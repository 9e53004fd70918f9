//! Why trees are changed without need: a better one is found, an operator asks for it, or a relay drains.

use crate::error::Refusal;
use crate::hops::rooted_in;
use crate::mesh::{around_core, mesh_on};
use crate::model::{RelayId, RelayState, TreeAsk, TreeHop};
use crate::op::Op;
use crate::repair::Aim;
use crate::running::Running;
use crate::shape::Shape;
use crate::state::State;
use crate::steps::same_tree;
use canopy_plan::Method;
use canopy_wire::Comtree;

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
    /// How many of its relays hang on another then, or are the root.
    pub hung: usize,
    /// The tree that it moves to, each relay after the one above it.
    pub tree: Vec<TreeHop>,
}

impl State {
    /// Looks for a better tree, and takes it if it gains enough. Returns why it did or did not.
    pub(crate) fn improve(&mut self, op: &mut Op, comtree: Comtree) -> String {
        let verdict =
            self.try_to_improve(op, comtree).unwrap_or_else(|why| format!("it stays: {why}"));
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.why.clone_from(&verdict);
        }
        verdict
    }

    fn try_to_improve(&mut self, op: &mut Op, comtree: Comtree) -> Result<String, String> {
        let now = self.cost_of(comtree);
        let least = self.settings.least_gain;
        let (hops, cost) = self.planned_tree(comtree, self.asked_for(comtree))?;
        let gain = if now > 0.0 { 1.0 - cost / now } else { 0.0 };
        let percent = |share: f64| (share * 1000.0).round() / 10.0;
        let (found, least_percent) = (percent(gain), percent(least));
        if gain < least {
            return Err(format!(
                "the best tree found costs {found} % less, {least_percent} % are asked for"
            ));
        }
        let why = format!("it was improved: the tree costs {found} % less than the one before");
        let relays = self.begin_move(op, comtree, &hops, why)?;
        Ok(format!(
            "it is being improved: the tree will cost {found} % less once {relays} relays have other parents"
        ))
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
        let (tree, planned_cost) = self.planned_tree(comtree, ask)?;
        let hung = match same_tree(&self.hops_of(comtree), &tree) {
            true => 0,
            false => {
                let why = format!("it was moved to {}", self.in_words(ask));
                self.begin_move(op, comtree, &tree, why)?
            }
        };
        Ok(MovePlan { comtree, cost, planned_cost, hung, tree })
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

    fn planned_tree(&self, comtree: Comtree, ask: TreeAsk) -> Result<(Vec<TreeHop>, f64), String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        if let Some(why) = &running.broken {
            return Err(format!("its tree is not whole: {why}"));
        }
        match &running.shape {
            Some(shape) if !shape.mesh().is_empty() => self.tree_around_mesh(comtree, shape, ask),
            _ => self.choose_tree(comtree, Aim::Best, Some(ask)),
        }
    }

    /// The tree that an operator has asked for, without the root if that cannot be one now.
    fn asked_for(&self, comtree: Comtree) -> TreeAsk {
        let Some(running) = self.comtrees.get(&comtree) else { return TreeAsk::default() };
        let meshed = running.shape.as_ref().filter(|shape| !shape.mesh().is_empty());
        let may_be = |root: &RelayId| {
            let is_up = self.relays.get(root).is_some_and(|relay| relay.state == RelayState::Up);
            is_up && meshed.is_none_or(|shape| shape.is_core(*root))
        };
        TreeAsk { root: running.asked.root.filter(may_be), ..running.asked }
    }

    /// Moves comtrees off relays that drain and have no members there.
    pub(crate) fn leave_draining(&mut self, op: &mut Op) {
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
        for (comtree, relay) in self.comtrees.iter().filter_map(of).collect::<Vec<_>>() {
            let name = self.relay_name(relay);
            let why = format!("{name} drains");
            let result = self.planned_tree(comtree, self.asked_for(comtree));
            let result = result.and_then(|(hops, _)| self.begin_move(op, comtree, &hops, why));
            if let (Err(why), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
                running.why = format!("it stays over {name}, which drains: {why}");
            }
        }
    }

    /// Moves some comtrees off links that are proposed no more: those behind this one, and then from the
    /// first on.
    pub(crate) fn leave_surplus(&mut self, op: &mut Op, after: &mut Comtree, most: usize) {
        let uses = |shape: &Shape| shape.links().any(|link| self.is_surplus(link));
        let is_due = |(_, running): &(&Comtree, &Running)| {
            running.may_move() && running.shape.as_ref().is_some_and(uses)
        };
        let due = self.comtrees.iter().filter(is_due).map(|(comtree, _)| *comtree);
        let mut due: Vec<Comtree> = due.collect();
        due.sort_by_key(|comtree| (*comtree <= *after, *comtree));
        for comtree in due.into_iter().take(most) {
            *after = comtree;
            let why = "other links are proposed than those that it ran over".to_owned();
            let result = self.planned_tree(comtree, self.asked_for(comtree));
            let result = result.and_then(|(hops, _)| {
                self.check_leaves_surplus(comtree, &hops)?;
                self.begin_move(op, comtree, &hops, why)
            });
            if let (Err(why), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
                running.why = format!("it stays over a link that is proposed no more: {why}");
            }
        }
    }

    /// Another tree around a comtree's meshed core, and what that costs; or why there is none.
    fn tree_around_mesh(
        &self,
        comtree: Comtree,
        old: &Shape,
        ask: TreeAsk,
    ) -> Result<(Vec<TreeHop>, f64), String> {
        let outside = |root: RelayId| {
            let core: Vec<String> = old.core().into_iter().map(|of| self.relay_name(of)).collect();
            let (name, core) = (self.relay_name(root), core.join(", "));
            format!(
                "{name} is not in its meshed core, which has the root; that may be any of {core}"
            )
        };
        if let Some(root) = ask.root.filter(|root| !old.is_core(*root)) {
            return Err(outside(root));
        }
        let (tree, _) = self.choose_tree(comtree, Aim::Best, Some(ask))?;
        if tree.is_empty() {
            return Ok((tree, 0.0));
        }
        let shape = around_core(old, &tree)?;
        let hops = match ask.root {
            Some(root) if shape.is_core(root) => rooted_in(shape.hops(), shape.mesh(), root),
            Some(root) => {
                let name = self.relay_name(root);
                return Err(format!(
                    "{name} has no members, and no relay hangs on it, so it is no root"
                ));
            }
            None => shape.hops().to_vec(),
        };
        Ok((hops, self.cost_of_shape(&shape)))
    }

    /// Says so if another tree around a comtree's meshed core runs over as many links that are to go as before:
    /// relays of the core do not leave it for that.
    fn check_leaves_surplus(&self, comtree: Comtree, target: &[TreeHop]) -> Result<(), String> {
        let old = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let Some(old) = old.filter(|shape| !shape.mesh().is_empty() && !target.is_empty()) else {
            return Ok(());
        };
        let new = Shape::meshed(target.to_vec(), mesh_on(old.mesh(), target), |at| old.load(at))?;
        let count = |shape: &Shape| shape.links().filter(|link| self.is_surplus(*link)).count();
        match count(&new) < count(old) {
            true => Ok(()),
            false => Err("relays of its meshed core hear each other over it".to_owned()),
        }
    }
}
