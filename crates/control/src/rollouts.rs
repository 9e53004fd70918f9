//! What of a comtree is on its way to its relays, and who waits for it.
//!
//! A member is let in only where all that was reserved for it is in force. So each change of a
//! comtree at a relay has a number, and a member waits for the changes up to its own. Those who
//! come together wait together; nobody waits for changes that come later. Where a tree loses a link,
//! what follows waits at a barrier, so that old branches and new ones never form a circle.

use crate::comtree;
use crate::model::RelayId;
use crate::signal::Item;
use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a relay is to have next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Comtree(RelayId, Option<Item>),
    Member(RelayId, Item),
    /// It has said what it has.
    Await(RelayId),
    /// What is on its way over a link has arrived this long after what came before.
    Arrival(Duration),
    /// What came before was the taking back of a step that was not done.
    TakenBack,
    /// What came before is a phase of a step.
    Told,
    /// What came before follows from this step, which is done, or resumes a move.
    Passed(Option<comtree::Step>),
    /// What came before is all of a tree, up to the change of this number.
    RolledOut(u64),
}

impl Step {
    /// The relay whose answer is waited for.
    pub(crate) fn waits_for(&self) -> Option<RelayId> {
        match self {
            Step::Comtree(relay, _) | Step::Await(relay) => Some(*relay),
            Step::Member(..)
            | Step::Arrival(_)
            | Step::TakenBack
            | Step::Told
            | Step::Passed(_)
            | Step::RolledOut(_) => None,
        }
    }
}

/// One comtree's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rollout {
    /// The number of the last change. All rollouts count together: an answer to a change that was made
    /// before this rollout began is not one to its own.
    version: u64,
    /// By relay: its last change, and the first that it may not have yet.
    unsettled: BTreeMap<RelayId, (u64, u64)>,
    /// Those of them that no barrier waits for, until they are told what is staged for them.
    passed: BTreeSet<RelayId>,
    /// Until when barriers wait for what is on its way over a link.
    arrival: Option<Time>,
    /// What waits at a barrier; each list for the one before.
    stages: VecDeque<Vec<Step>>,
    /// What waits until relays have everything up to a change, in the order of the changes: members, and the
    /// word that a tree is rolled out.
    held_back: VecDeque<(u64, Step)>,
}

impl Rollout {
    /// Whether nothing is on its way and nobody waits.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_under_way() && self.stages.is_empty() && self.held_back.is_empty()
    }

    /// Whether a barrier waits for what has been done.
    fn is_under_way(&self) -> bool {
        !self.unsettled.is_empty() || self.arrival.is_some()
    }

    /// When barriers need not wait any more for what is on its way over a link.
    pub(crate) fn arrival(&self) -> Option<Time> {
        self.arrival
    }

    /// Nobody waits any more for what is on its way over a link: the tree is to be mended.
    pub(crate) fn hurry(&mut self) {
        self.arrival = None;
        let stages = self.stages.iter_mut();
        stages.for_each(|stage| stage.retain(|step| !matches!(step, Step::Arrival(_))));
    }

    /// What follows waits for what came before.
    pub(crate) fn barrier(&mut self) {
        if self.is_under_way() || !self.stages.is_empty() {
            self.stages.push_back(Vec::new());
        }
    }

    /// Takes a step. What is to be done now comes out of [`Rollout::poll`].
    pub(crate) fn take(
        &mut self,
        now: Time,
        step: Step,
        is_lost: bool,
        count: &mut u64,
        out: &mut Vec<(u64, Step)>,
    ) {
        if let Some(stage) = self.stages.back_mut() {
            stage.push(step);
            return;
        }
        match step {
            Step::Comtree(relay, _) | Step::Await(relay) => {
                *count += 1;
                self.version = *count;
                self.passed.remove(&relay);
                if !is_lost {
                    let entry = self.unsettled.entry(relay).or_insert((0, self.version));
                    entry.0 = self.version;
                }
                out.push((self.version, step));
            }
            Step::Member(..) | Step::RolledOut(_) => self.held_back.push_back((self.version, step)),
            Step::Arrival(within) => self.arrival = self.arrival.max(Some(now + within)),
            Step::TakenBack | Step::Told | Step::Passed(_) => out.push((self.version, step)),
        }
    }

    /// A relay has everything up to this change.
    pub(crate) fn settle(&mut self, relay: RelayId, version: u64) {
        if let Some((last, first)) = self.unsettled.get_mut(&relay) {
            if *last <= version {
                self.unsettled.remove(&relay);
                self.passed.remove(&relay);
            } else {
                *first = (*first).max(version + 1);
            }
        }
    }

    /// A relay refuses its last change. If it is to be told something else later, no barrier waits for it until
    /// then. Members do: what was reserved for them is not in force there.
    pub(crate) fn pass(&mut self, relay: RelayId, version: u64) {
        let is_last = self.unsettled.get(&relay).is_some_and(|(last, _)| *last <= version);
        if is_last && self.is_staged(relay) {
            self.passed.insert(relay);
        }
    }

    /// Whether a relay is still to be told something.
    pub(crate) fn concerns(&self, relay: RelayId) -> bool {
        self.unsettled.contains_key(&relay) || self.is_staged(relay)
    }

    fn is_staged(&self, relay: RelayId) -> bool {
        self.stages.iter().flatten().any(|step| step.waits_for() == Some(relay))
    }

    /// The comtree as a relay is yet to have it.
    pub(crate) fn staged(&self, relay: RelayId) -> impl Iterator<Item = &Item> {
        self.stages.iter().flatten().filter_map(move |step| match step {
            Step::Comtree(at, item) if *at == relay => item.as_ref(),
            _ => None,
        })
    }

    /// A relay is waited for no more, and members there not at all.
    pub(crate) fn forget(&mut self, relay: RelayId) {
        self.unsettled.remove(&relay);
        self.passed.remove(&relay);
        self.held_back.retain(|(_, step)| !matches!(step, Step::Member(at, _) if *at == relay));
    }

    /// A member waits no more.
    pub(crate) fn dismiss(&mut self, relay: RelayId, address: Address) {
        let is = |at: RelayId, item: &Item| {
            at == relay && matches!(item, Item::Member { address: of, .. } if *of == address)
        };
        let is_its = |step: &Step| matches!(step, Step::Member(at, item) if is(*at, item));
        self.held_back.retain(|(_, step)| !is_its(step));
        for stage in &mut self.stages {
            stage.retain(|step| !is_its(step));
        }
    }

    /// All members who wait.
    pub(crate) fn waiting(&self) -> Vec<Address> {
        let held_back = self.held_back.iter().map(|(_, step)| step);
        let address = |step: &Step| match step {
            Step::Member(_, Item::Member { address, .. }) => Some(*address),
            _ => None,
        };
        held_back.chain(self.stages.iter().flatten()).filter_map(address).collect()
    }

    /// What is to be done now.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        is_lost: impl Fn(RelayId) -> bool,
        count: &mut u64,
        out: &mut Vec<(u64, Step)>,
    ) {
        self.arrival = self.arrival.filter(|until| now < *until);
        while self.arrival.is_none()
            && self.unsettled.keys().all(|relay| self.passed.contains(relay))
        {
            let Some(stage) = self.stages.pop_front() else { break };
            let later = std::mem::take(&mut self.stages);
            for step in stage {
                let lost = step.waits_for().is_some_and(&is_lost);
                self.take(now, step, lost, count, out);
            }
            self.stages = later;
        }
        let settled = self.unsettled.values().map(|(_, first)| *first).min().unwrap_or(u64::MAX);
        while let Some(next) = self.held_back.pop_front_if(|(version, _)| *version < settled) {
            out.push(next);
        }
    }
}

/// Those of all comtrees that have something on its way.
pub(crate) type Rollouts = BTreeMap<Comtree, Rollout>;
