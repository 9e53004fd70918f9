//! What an operator does meanwhile: worlds are moved to other trees, links removed, relays drained. Each is planned by
//! the controller step by step, so the model is told of none of it: nothing may be lost, doubled or overtaken.

use super::config::TopologySabotage;
use super::deed::Deed;
use super::world::{Step, World};
use canopy_control::{LinkId, TreeAsk};
use canopy_plan::Method;
use canopy_wire::Time;
use rand::RngExt;
use std::time::Duration;

/// From one deed to the next, milliseconds.
const EVERY: std::ops::Range<u64> = 2_500..7_000;
/// How long a relay drains, and a link is away, milliseconds.
const LASTS: std::ops::Range<u64> = 6_000..15_000;
/// The operator tries again after this, where the controller is not there or not that far.
const AGAIN: Duration = Duration::from_secs(1);
/// Relays are drained where as many have the world's participants near.
const LEAST_RELAYS: usize = 5;

impl World<'_> {
    /// Draws what the operator does, and when.
    pub(crate) fn plan_deeds(&mut self, settles_in: u64) {
        let calm = self.calm_from.as_nanos() / 1_000_000;
        let mut at = settles_in;
        while self.operates && at < calm {
            let deed = match self.draws.random_range(0..3) {
                0 => Deed::MoveWorld,
                1 => Deed::RemoveLink,
                _ => Deed::Drain,
            };
            self.at(Time::from_millis(at), Step::Operate(deed));
            at += self.draws.random_range(EVERY);
        }
    }

    pub(crate) fn operate(&mut self, deed: Deed) {
        if self.is_over {
            return;
        }
        match deed {
            Deed::MoveWorld => self.move_world(),
            Deed::RemoveLink => self.remove_link(),
            Deed::GiveLink(link) => self.give_link(link),
            Deed::Drain => self.drain(),
            Deed::Undrain(relay) => self.undrain(relay),
        }
        self.pump_controller();
    }

    /// A world whose part of the network has so many relays.
    fn some_world(&mut self, least: usize) -> Option<usize> {
        let worlds = self.worlds.iter().enumerate();
        let large = worlds.filter(|(_, world)| world.nodes.len() >= least).map(|(at, _)| at);
        let large: Vec<usize> = large.collect();
        (!large.is_empty()).then(|| large[self.draws.random_range(0..large.len())])
    }

    fn move_world(&mut self) {
        let Some(world) = self.some_world(2) else { return };
        let world = &self.worlds[world];
        let root = world.nodes[self.draws.random_range(0..world.nodes.len())];
        let methods = Method::ALL;
        let ask = TreeAsk {
            root: self.process.ids[root].filter(|_| self.draws.random_bool(0.7)),
            method: methods[self.draws.random_range(0..methods.len())],
            ..TreeAsk::default()
        };
        let name = world.name.clone();
        let Some(controller) = &mut self.process.controller else { return };
        // It is refused while the tree moves or is not whole, or if both trees have no room.
        let plans = controller.move_world(&name, ask).unwrap_or_default();
        self.told.worlds_moved += u32::from(plans.iter().any(|plan| plan.hung > 0));
    }

    fn remove_link(&mut self) {
        let Some(controller) = &mut self.process.controller else { return };
        let hops = self.worlds.iter().flat_map(|world| controller.tree(world.comtree));
        let links: Vec<LinkId> = hops.filter_map(|hop| Some(hop.above?.1)).collect();
        if links.is_empty() {
            return;
        }
        let id = links[self.draws.random_range(0..links.len())];
        let Some(link) = controller.link(id).filter(|link| !link.removing) else { return };
        let [Some(one), Some(other)] = link.ends.map(|end| self.process.node(end)) else { return };
        let is_hasty = self.config.sabotage == Some(TopologySabotage::HastyRemoval);
        let Some(controller) = &mut self.process.controller else { return };
        let removed = match is_hasty {
            true => controller.remove_link_at_once(id),
            false => controller.remove_link(id),
        };
        // It is refused if a world cannot do without it.
        if removed.is_err() {
            return;
        }
        self.told.links_leaving += 1;
        // The controller proposes others for those that it has proposed.
        if let (0, Some(link)) = (self.config.degree, self.graph.between(one, other)) {
            self.linked[link] = false;
            let lasts = Duration::from_millis(self.draws.random_range(LASTS));
            self.after(lasts, Step::Operate(Deed::GiveLink(link)));
        }
    }

    /// Gives a link anew, once it has been removed, and waits until the controller can use it.
    fn give_link(&mut self, link: usize) {
        let ends = self.graph.edges[link].ends.map(|end| self.process.ids[end]);
        if let (Some(controller), [Some(one), Some(other)]) = (&self.process.controller, ends) {
            let known = controller
                .links()
                .find(|(of, _)| of.ends == [one, other] || of.ends == [other, one])
                .map(|(of, is_usable)| is_usable && !of.removing);
            match known {
                None => self.add_link(link, [one, other]),
                Some(true) => return self.linked[link] = true,
                Some(false) => {}
            }
        }
        self.after(AGAIN, Step::Operate(Deed::GiveLink(link)));
    }

    fn drain(&mut self) {
        let Some(world) = self.some_world(LEAST_RELAYS) else { return };
        let world = &self.worlds[world];
        let relay = world.nodes[self.draws.random_range(0..world.nodes.len())];
        let are_up = self.machines.iter().all(|machine| machine.is_up());
        let is_free = self.draining.is_none() && are_up;
        let (Some(controller), Some(id)) = (&mut self.process.controller, self.process.ids[relay])
        else {
            return;
        };
        if is_free && controller.drain(id, true).is_ok() {
            self.told.drained += 1;
            self.draining = Some(relay);
            let until = self.now + Duration::from_millis(self.draws.random_range(LASTS));
            self.at(until.min(self.calm_from), Step::Operate(Deed::Undrain(relay)));
        }
    }

    fn undrain(&mut self, relay: usize) {
        let id = self.process.ids[relay];
        if let (Some(controller), Some(id)) = (&mut self.process.controller, id)
            && controller.undrain(id).is_ok()
        {
            self.draining = None;
        } else {
            self.after(AGAIN, Step::Operate(Deed::Undrain(relay)));
        }
    }
}
