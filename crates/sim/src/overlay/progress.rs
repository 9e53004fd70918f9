//! How far relays are told of their roles.

use super::roles::Reload;
use super::scenario::Scenario;
use super::shape::Edge;
use canopy_relay::BranchRole;
use canopy_wire::{Comtree, Time};
use std::collections::{BTreeMap, BTreeSet};

/// How far the reloads of a run are.
pub(crate) struct Reloads {
    pub(super) progress: Vec<Progress>,
    /// The changes that have begun, by comtree.
    pub(super) begun: BTreeSet<(usize, usize)>,
    /// What relays' settings say of the roles of others: by comtree, relay and other.
    pub(super) settings: BTreeMap<(usize, usize, usize), BranchRole>,
}

/// How far one is.
#[derive(Clone, Copy)]
pub(super) struct Progress {
    /// How many have to come before, or to say their word.
    pub(super) left: usize,
    /// When the relay was told.
    pub(super) begun_at: Option<Time>,
    pub(super) is_done: bool,
    pub(super) has_said: bool,
}

impl Reloads {
    pub(crate) fn new(scenario: &Scenario) -> Reloads {
        let progress = |reload: &Reload| Progress {
            left: reload.after.len() + reload.words.len(),
            begun_at: None,
            is_done: false,
            has_said: false,
        };
        let mut settings = BTreeMap::new();
        for (number, tree) in scenario.trees.iter().enumerate() {
            for Edge { relays: [a, b], roles } in tree.edges() {
                settings.insert((number, a, b), roles[0]);
                settings.insert((number, b, a), roles[1]);
            }
        }
        let progress = scenario.reloads.iter().map(progress).collect();
        Reloads { progress, begun: BTreeSet::new(), settings }
    }

    /// The reload whose relay owes a word, on one comtree or any.
    pub(super) fn owed(
        &self,
        scenario: &Scenario,
        relay: usize,
        comtree: Option<Comtree>,
    ) -> Vec<usize> {
        let is_owed = |(number, reload): &(usize, &Reload)| {
            let progress = self.progress[*number];
            let is_it = comtree.is_none_or(|id| scenario.trees[reload.tree].comtree == id);
            let leads_up = |(_, role): &(usize, BranchRole)| leads_up(*role);
            let is_waited_for = progress.begun_at.is_some() && !progress.has_said;
            reload.relay == relay && is_it && is_waited_for && reload.roles.iter().any(leads_up)
        };
        let owed = scenario.reloads.iter().enumerate().filter(is_owed);
        owed.map(|(number, _)| number).collect()
    }
}

/// Whether a neighbour of that role is a parent.
pub(super) fn leads_up(role: BranchRole) -> bool {
    matches!(role, BranchRole::Parent | BranchRole::NextParent)
}
