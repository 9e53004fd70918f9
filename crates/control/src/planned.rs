//! Why trees are changed without need: a better one is found, an operator asks for it, or a relay drains.

use crate::error::Refusal;
use crate::model::{RelayId, RelayState, TreeHop};
use crate::op::Op;
use crate::repair::{Aim, Planned};
use crate::shape::Shape;
use crate::state::{Running, State};
use crate::steps::same_tree;
use canopy_wire::Comtree;

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
        let (hops, cost) = self.planned_tree(comtree, None)?;
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

    /// Moves a comtree to the least costly tree, or that with a given root, which goes round relays that
    /// drain and have no members. Returns how many relays hang on others then.
    pub(crate) fn move_tree(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        root: Option<RelayId>,
    ) -> Result<usize, Refusal> {
        let running = self.comtrees.get(&comtree);
        let world = running.and_then(|running| self.worlds.get(&running.world));
        let world = world.map_or_else(|| comtree.0.to_string(), |world| world.name.to_string());
        let with_root = root.map(|root| format!(" with the root {}", self.relay_name(root)));
        let with_root = with_root.unwrap_or_default();
        let why = format!("it was moved to the least costly tree{with_root}");
        let result = self.planned_tree(comtree, root);
        let result = result.and_then(|(hops, _)| match self.has_hops(comtree, &hops) {
            true => Ok(0),
            false => self.begin_move(op, comtree, &hops, why),
        });
        result.map_err(|why| Refusal::NotMoved { world, why })
    }

    fn planned_tree(
        &self,
        comtree: Comtree,
        root: Option<RelayId>,
    ) -> Result<(Vec<TreeHop>, f64), String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        if let Some(why) = &running.broken {
            return Err(format!("its tree is not whole: {why}"));
        }
        self.choose_tree(comtree, Aim::Best, Some(Planned { root }))
    }

    fn has_hops(&self, comtree: Comtree, hops: &[TreeHop]) -> bool {
        same_tree(&self.hops_of(comtree), hops)
    }

    /// Moves comtrees off relays that drain and have no members there.
    pub(crate) fn leave_draining(&mut self, op: &mut Op) {
        let drains = |relay: &RelayId| {
            self.relays.get(relay).is_some_and(|relay| relay.state == RelayState::Draining)
        };
        let idle = |shape: &Shape| shape.relays().find(|at| drains(at) && shape.load(*at).0 == 0);
        let is_free = |running: &&Running| running.moving.is_none() && running.broken.is_none();
        let of = |(comtree, running): (&Comtree, &Running)| {
            let relay = Some(running).filter(is_free)?.shape.as_ref().and_then(idle)?;
            Some((*comtree, relay))
        };
        for (comtree, relay) in self.comtrees.iter().filter_map(of).collect::<Vec<_>>() {
            let name = self.relay_name(relay);
            let why = format!("{name} drains");
            let result = self.planned_tree(comtree, None);
            let result = result.and_then(|(hops, _)| self.begin_move(op, comtree, &hops, why));
            if let (Err(why), Some(running)) = (result, self.comtrees.get_mut(&comtree)) {
                running.why = format!("it stays over {name}, which drains: {why}");
            }
        }
    }
}
