//! Trees that are moved: relays take next parents, which are the way to the core after a while.

use crate::adversary;
use crate::relays::SimRelay;
use crate::sim::{Plan, Sim, branches};
use canopy_control::signal::{Branch, Role};
use canopy_control::{Applying, Controller, Item, LinkId, LinkReport, Refusal, RelayId, TreeAsk};
use canopy_plan::Method;
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::BTreeSet;

/// The link of the branch of this role, if there is one.
fn with(item: &Option<Item>, role: Role) -> Option<LinkId> {
    let Some(Item::Comtree { branches, .. }) = item else { return None };
    branches.iter().find(|branch| branch.role == role).map(|branch| branch.link)
}

impl Sim {
    /// Links get other delays, so that another tree is better.
    fn change_delays(&mut self) {
        for (link, ends, up) in self.links.clone() {
            let delay_us = 1000 + self.up_to(60_000) as u32;
            for end in ends {
                if let Some(side) = &mut self.relays[end].side {
                    side.set_link(self.now, LinkReport { link, up, delay_us });
                }
            }
        }
    }

    /// Moves a comtree, or all of a world.
    pub(crate) fn move_tree(&mut self) {
        if self.one_in(2) {
            self.change_delays();
            return;
        }
        let at = self.up_to(self.worlds.len());
        let (world, whole) = (self.worlds[at].clone(), self.one_in(3));
        let method = if self.one_in(3) { Method::ALL[self.up_to(5)] } else { Method::Best };
        let ask = TreeAsk { method, ..TreeAsk::default() };
        let Some(controller) = &mut self.controller else { return };
        let Ok(comtrees) = controller.world(&world).map(|world| world.comtrees.clone()) else {
            return;
        };
        let state = |controller: &Controller| {
            let trees = |comtree: &Comtree| controller.trees_on_the_way(*comtree);
            let accounts: Vec<_> = controller.accounts().collect();
            (comtrees.iter().map(trees).collect::<Vec<_>>(), accounts)
        };
        let before = state(controller);
        let planned = controller.plan_move(&world, ask);
        assert_eq!(before, state(controller), "it was only planned");
        let moved = match whole {
            true => controller.move_world(&world, ask),
            false => controller.move_tree(comtrees[0], ask).map(|moved| vec![moved]),
        };
        match moved {
            Ok(moved) => {
                self.told.moves += u32::from(moved.iter().any(|of| of.hung > 0));
                // The second comtree may lack what the first one has.
                if whole {
                    assert_eq!(Ok(moved), planned);
                }
            }
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::NotMoved { .. }), "{refusal}");
                assert!(planned.is_err(), "what is planned is done");
                assert_eq!(before, state(controller), "{refusal}: nothing changed");
            }
        }
    }

    /// What members send has a way up all the while if nothing fails, whatever is changed by plan. It has none at
    /// a relay that is the root by now, that is off the tree, or whose world has another rule for the core; and it needs
    /// none while all other members are below it: a tree of which it was the root may have another one before it knows.
    fn check_keeps_way_up(&self, at: usize, comtree: Comtree, applied: &Applying) {
        let Some(controller) = &self.controller else { return };
        let is_up = |branch: &Branch| {
            let down = [Role::Child, Role::StandbyChild, Role::StandbyParent, Role::NextParent];
            !down.contains(&branch.role)
        };
        let had_parent = with(&applied.before, Role::Parent).is_some();
        let Some(Item::Comtree { branches, .. }) = &applied.after else { return };
        let hop = controller.tree(comtree).into_iter().find(|hop| hop.relay == self.relays[at].id);
        let is_below = hop.is_some_and(|hop| hop.above.is_some());
        let is_served = self.relays[at].has_members(comtree);
        let below = adversary::with_all_below(self.relays[at].id, &self.relays, comtree);
        let mut others = self.relays.iter().filter(|other| !below.contains(&other.id));
        let has_receivers = others.any(|other| other.has_members(comtree));
        let is_needed = is_below && is_served && has_receivers;
        let is_exempt = !is_needed || self.remade.contains_key(&comtree);
        let keeps = !had_parent || is_exempt || branches.iter().any(is_up);
        assert!(keeps, "what goes up from {at} has no way, though nothing has failed");
    }

    /// A relay has a comtree's branches as they are now.
    pub(crate) fn follow_succession(&mut self, at: usize, comtree: Comtree, applied: &Applying) {
        if self.plan == Plan::Calm {
            self.check_keeps_way_up(at, comtree, applied);
        }
        let next = with(&applied.after, Role::NextParent);
        let before = with(&applied.before, Role::NextParent);
        let has_turned = before.is_some() && before == with(&applied.after, Role::Parent);
        self.told.swapped += u32::from(has_turned);
        let is_meshed = self.controller.as_ref().is_some_and(|of| !of.mesh(comtree).is_empty());
        if has_turned && is_meshed {
            self.told.swapped_below_mesh += 1;
            assert_eq!(
                with(&applied.after, Role::CorePeer),
                None,
                "who is in the core stays there"
            );
        }
        let takes = Duration::from_millis(200 + self.up_to(700) as u64);
        let successions = &mut self.relays[at].successions;
        if self.plan == Plan::Calm && has_turned {
            let has_succeeded = matches!(successions.get(&comtree), Some((_, None)));
            assert!(has_succeeded, "the parent goes once the next one is the way to the core");
            if let Some(gone) = with(&applied.before, Role::Parent) {
                assert!(
                    !self.is_in_force_elsewhere(at, comtree, gone),
                    "it went at the old one first"
                );
            }
        } else if next.is_none_or(|next| successions.get(&comtree).is_none_or(|s| s.0 != next)) {
            successions.remove(&comtree);
        }
        let successions = &mut self.relays[at].successions;
        match next {
            Some(link) => {
                let due = self.now + takes;
                successions.entry(comtree).or_insert((link, Some(due)));
                if self.plan == Plan::Calm {
                    assert!(self.is_in_force_elsewhere(at, comtree, link), "the next one knows it");
                }
            }
            None => _ = successions.remove(&comtree),
        }
        if self.plan == Plan::Calm
            && let Some(controller) = &self.controller
        {
            adversary::check_in_force(controller, &self.relays, comtree);
        }
    }

    /// The controller may die while a relay has a next parent or next peers, and start again.
    pub(crate) fn die_halfway(&mut self) {
        let is_between = |relay: &SimRelay| !relay.successions.is_empty() || relay.is_doubled();
        let is_halfway = self.relays.iter().any(is_between);
        let may_die = self.plan == Plan::Dying && self.controller.is_some() && is_halfway;
        if may_die && self.one_in(10) {
            self.told.died_halfway += 1;
            self.crash_controller();
            self.start_controller();
        }
    }

    /// These relays are waited for no more.
    pub(crate) fn give_up(&mut self, lost: &[RelayId]) {
        let given_up = self.relays.iter_mut().filter(|relay| lost.contains(&relay.id));
        given_up.for_each(|relay| relay.was_lost = true);
    }

    /// Whoever is a next parent keeps the branch until the relay below has it no more for that: it may have
    /// turned to it. That holds whichever controller says so, and in whatever order relays hear it; but for
    /// who has nobody there or below, and for one whose place on the tree is elsewhere by now than where it has a
    /// branch, as what goes up from there waits for that.
    pub(crate) fn check_keeps_next_parent(&self, at: usize, comtree: Comtree, applied: &Applying) {
        let Some(controller) = &self.controller else { return };
        let tree = controller.tree(comtree);
        let links = |item: &Option<Item>| -> Vec<LinkId> {
            let Some(Item::Comtree { branches, .. }) = item else { return Vec::new() };
            let standing = branches.iter().filter(|branch| !branch.role.is_standby());
            standing.map(|branch| branch.link).collect()
        };
        let (before, after) = (links(&applied.before), links(&applied.after));
        let gone: Vec<LinkId> = before.into_iter().filter(|link| !after.contains(link)).collect();
        // Each relay of the tree follows the one above it.
        let are_served = |top: RelayId| {
            let mut below = BTreeSet::from([top]);
            for hop in &tree {
                if hop.above.is_some_and(|(above, _)| below.contains(&above)) {
                    below.insert(hop.relay);
                }
            }
            self.relays.iter().any(|relay| below.contains(&relay.id) && relay.has_members(comtree))
        };
        for (of, relay) in self.relays.iter().enumerate().filter(|(of, _)| *of != at) {
            let branches = branches(relay, comtree);
            let next = branches.iter().find(|branch| branch.role == Role::NextParent);
            let is_lost = next.is_some_and(|next| gone.contains(&next.link));
            let hop = tree.iter().find(|hop| hop.relay == relay.id);
            let has = |link: LinkId| branches.iter().any(|of| of.link == link);
            let leads =
                |over: LinkId| tree.iter().any(|of| of.above.is_some_and(|(_, of)| of == over));
            let is_used = hop.is_some_and(|hop| match hop.above {
                Some((_, link)) => has(link),
                None => next.is_some_and(|next| leads(next.link)),
            });
            assert!(
                !is_lost || !is_used || relay.was_lost || !are_served(relay.id),
                "what goes up from {of} to {at} is lost"
            );
        }
    }

    /// Whether another relay has a branch over this link.
    fn is_in_force_elsewhere(&self, at: usize, comtree: Comtree, link: LinkId) -> bool {
        let others = self.relays.iter().enumerate().filter(|(of, _)| *of != at);
        others
            .map(|(_, relay)| relay)
            .any(|relay| branches(relay, comtree).iter().any(|branch| branch.link == link))
    }

    pub(crate) fn successions_due(&self) -> Vec<Time> {
        let of = self.relays.iter().filter(|relay| relay.side.is_some());
        of.flat_map(|relay| relay.successions.values().filter_map(|(_, due)| *due)).collect()
    }

    /// Next parents that had time to are the way to the core, if they have the branch, too.
    pub(crate) fn succeed(&mut self) {
        for at in 0..self.relays.len() {
            for (comtree, (link, due)) in self.relays[at].successions.clone() {
                if due.is_none_or(|due| due > self.now) {
                    continue;
                }
                let is_there = self.is_in_force_elsewhere(at, comtree, link);
                let again = (!is_there).then_some(self.now + Duration::from_millis(500));
                let now = self.now;
                let relay = &mut self.relays[at];
                relay.successions.insert(comtree, (link, again));
                if let (true, Some(side)) = (is_there, &mut relay.side) {
                    side.set_succeeded(now, comtree);
                }
            }
        }
    }
}
