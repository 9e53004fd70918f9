//! How relays are told of their roles: when it is time, and those that come before are done.

use super::config::OverlaySabotage;
use super::progress::{Progress, leads_up};
use super::queue::Step;
use super::roles::Reload;
use super::shape::Core;
use super::world::World;
use canopy_relay::BranchRole;
use canopy_wire::Comtree;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// What a relay asked its parent for before it joined the core expires there by itself, when it is looked at:
/// as much later than what is dropped.
const WHOLE_SWEEP: Duration = Duration::from_secs(10);
/// A word takes no longer, beside what subscriptions take, and links that were cut.
const SLOWEST_WORD: Duration = Duration::from_secs(5);

impl World<'_> {
    pub(crate) fn plan_reloads(&mut self) {
        let scenario = Rc::clone(&self.scenario);
        for (number, reload) in scenario.reloads.iter().enumerate() {
            if self.reloads.progress[number].left == 0 {
                self.after(reload.wait, Step::Reload(number));
            }
        }
    }

    /// A relay's settings change, and it is told.
    pub(crate) fn reload(&mut self, number: usize) {
        let scenario = Rc::clone(&self.scenario);
        let Reload { tree, relay, ref roles, ref drops, change, .. } = scenario.reloads[number];
        // What has begun is brought to its end, if there is time.
        let is_late = self.now >= scenario.calm_from;
        let is_too_late = scenario.expires && self.now + WHOLE_SWEEP > scenario.leave_at;
        if is_too_late || is_late && !self.reloads.begun.contains(&(tree, change)) {
            return;
        }
        self.reloads.begun.insert((tree, change));
        self.reloads.progress[number].begun_at = Some(self.now);
        self.count_roles(number);
        let is_forgotten = match self.config.sabotage {
            Some(OverlaySabotage::ForgottenRoles(one_in)) => {
                (number as u32 + 1).is_multiple_of(one_in)
            }
            _ => false,
        };
        let mut at = self.now;
        if !is_forgotten {
            // Each change is answered by the data threads before the next.
            for change in self.machines[relay].changes_to(&scenario.trees[tree], roles, drops) {
                self.at(at, Step::Change(relay, Box::new(change)));
                at = at + scenario.turn + scenario.wake_delay;
            }
        }
        self.at(at, Step::Reloaded(number));
    }

    fn count_roles(&mut self, number: usize) {
        let scenario = Rc::clone(&self.scenario);
        let Reload { tree, relay, ref roles, ref drops, is_step, .. } = scenario.reloads[number];
        let is_meshed = scenario.trees[tree].core == Core::Mesh;
        for (other, role) in roles {
            let before = self.reloads.settings.insert((tree, relay, *other), *role);
            let was_above = before.is_some_and(leads_up);
            let joins = if is_meshed { BranchRole::CorePeer } else { BranchRole::Core };
            let (joins, leaves) = (was_above && *role == joins, !was_above && leads_up(*role));
            self.tallies.joined_core += u32::from(joins);
            self.tallies.left_core += u32::from(leaves);
            self.tallies.joined_mesh += u32::from(joins && is_meshed);
            self.tallies.left_mesh += u32::from(leaves && is_meshed);
        }
        for other in drops {
            self.reloads.settings.remove(&(tree, relay, *other));
        }
        self.tallies.root_steps += u32::from(is_step);
    }

    /// A relay has taken its settings.
    pub(crate) fn reloaded(&mut self, number: usize) {
        self.reloads.progress[number].is_done = true;
        self.go_on(|reload| &reload.after, number);
    }

    /// A relay says that a comtree's parent knows all that is wanted there.
    pub(crate) fn hear_word(&mut self, relay: usize, comtree: Comtree) {
        for number in self.reloads.owed(&self.scenario, relay, Some(comtree)) {
            self.take_word(number);
        }
    }

    /// A relay starts: what it was to say before, it says no more. By then its parent has been asked anew.
    pub(crate) fn owe_words(&mut self, relay: usize) {
        for number in self.reloads.owed(&self.scenario, relay, None) {
            self.after(self.scenario.patience.recover, Step::Word(number));
        }
    }

    pub(crate) fn take_word(&mut self, number: usize) {
        if !std::mem::replace(&mut self.reloads.progress[number].has_said, true) {
            self.go_on(|reload| &reload.words, number);
        }
    }

    /// Those that have waited for this one alone have their turn.
    fn go_on(&mut self, waits_for: fn(&Reload) -> &Vec<usize>, number: usize) {
        let scenario = Rc::clone(&self.scenario);
        for (next, reload) in scenario.reloads.iter().enumerate() {
            if waits_for(reload).contains(&number) {
                self.reloads.progress[next].left -= 1;
                if self.reloads.progress[next].left == 0 {
                    self.after(reload.wait, Step::Reload(next));
                }
            }
        }
    }

    /// Who has a parent says in time that it knows all that is wanted there.
    fn check_words(&mut self) {
        let patience = self.scenario.patience;
        let most = patience.settle + patience.recover + SLOWEST_WORD;
        for relay in 0..self.machines.len() {
            for number in self.reloads.owed(&self.scenario, relay, None) {
                let begun_at = self.reloads.progress[number].begun_at;
                if let Some(at) = begun_at.filter(|at| *at + most < self.now) {
                    let what = || format!("relay {relay} never said that the parent of {at} knows");
                    self.model.broken(self.now, what);
                }
            }
        }
    }

    /// In the end neighbours are to every relay what its settings say, and two that are joined say what fits
    /// unless a change is under way.
    pub(crate) fn check_roles(&mut self) {
        self.check_words();
        let scenario = Rc::clone(&self.scenario);
        let reloads = scenario.reloads.iter().zip(&self.reloads.progress);
        let is_under_way = |(reload, progress): &(&Reload, &Progress)| {
            !progress.is_done && self.reloads.begun.contains(&(reload.tree, reload.change))
        };
        let under_way: BTreeSet<usize> =
            reloads.filter(is_under_way).map(|(reload, _)| reload.tree).collect();
        let mut wrong = Vec::new();
        for ((tree, relay, other), role) in &self.reloads.settings {
            if scenario.moves.iter().any(|one| one.tree == *tree) || !self.machines[*relay].is_up()
            {
                continue;
            }
            let comtree = scenario.trees[*tree].comtree;
            let is = self.machines[*relay].role_of(comtree, *other);
            let wanted = if leads_up(*role) { BranchRole::Parent } else { *role };
            if is != Some(wanted) {
                wrong.push(format!("relay {other} is {is:?} to relay {relay}, not {wanted:?}"));
            }
            let there = self.reloads.settings.get(&(*tree, *other, *relay));
            let fits = match role {
                role if leads_up(*role) => there == Some(&BranchRole::Child),
                BranchRole::Child => there.is_some_and(|role| leads_up(*role)),
                role => there == Some(role),
            };
            if !fits && !under_way.contains(tree) {
                wrong.push(format!(
                    "relay {other} is {role:?} to relay {relay}, and that {there:?}"
                ));
            }
        }
        for what in wrong {
            self.model.broken(self.now, || what);
        }
    }
}
