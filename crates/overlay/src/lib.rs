//! What a relay has of the overlay: links, comtrees, branches and their budgets; what a controller's
//! items make of it; and the changes that lead from one to the other.
//!
//! The daemon applies the changes to its data threads, and the simulator to its relays.
#![forbid(unsafe_code)]

mod changes;
mod detours;
mod link_states;
mod members;
mod told;
mod watch;

pub use changes::changes;
pub use detours::{Detours, Items, Said};
pub use link_states::{Flooded, KnownLinks, KnownRelay, KnownState, LinkStates, NEAR};
pub use members::Members;
pub use told::wanted;
pub use watch::{LinkWatch, Seen};

use canopy_relay::{
    BranchConfig, BranchId, BranchRole, Budget, Change, ComtreeConfig, Down, LinkConfig,
};
use canopy_session::PublicKey;
use canopy_wire::Comtree;
use std::collections::BTreeMap;

/// The budgets of all comtrees, and of all branches; one without limits is not among the branches'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnBudgets {
    /// What a comtree has that has just come.
    pub at_first: Budget,
    /// What the members of a comtree may send together.
    pub comtrees: BTreeMap<Comtree, Budget>,
    /// What neighbours may send over branches.
    pub branches: BTreeMap<BranchId, Budget>,
    /// What branches have of their links' capacity for certain, bits a second.
    pub guarantees: BTreeMap<BranchId, u64>,
}

/// What a relay is given of the overlay, and what else of its settings may change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// The comtrees.
    pub comtrees: BTreeMap<Comtree, ComtreeConfig>,
    /// The links, by the neighbour's key.
    pub links: BTreeMap<PublicKey, LinkConfig>,
    /// The branches.
    pub branches: BTreeMap<BranchId, BranchConfig>,
    /// The neighbours' names, by key.
    pub names: BTreeMap<PublicKey, String>,
    /// The most subscriptions of a participant.
    pub most_subscriptions: u32,
    /// What comtrees and branches may be sent.
    pub budgets: OwnBudgets,
    /// What links bear, by the neighbour's key, where that is said.
    pub capacities: BTreeMap<PublicKey, Down>,
}

impl Net {
    /// The relay's site on a comtree.
    pub fn site(&self, comtree: Comtree) -> Option<u16> {
        self.comtrees.get(&comtree).map(|config| config.site)
    }

    /// Whether the relay is in a comtree's core: it is unless it has a parent there. A next parent is it where
    /// there is no other.
    pub fn is_core(&self, comtree: Comtree) -> bool {
        let id = |link, thread| BranchId { comtree, link, thread };
        let mut on_it = self.branches.range(id([0; 32], 0)..=id([u8::MAX; 32], u16::MAX));
        on_it.all(|(_, branch)| !matches!(branch.role, BranchRole::Parent | BranchRole::NextParent))
    }

    /// Leaves the comtrees that were there before as they were, and returns those that would be others.
    pub fn keep_comtrees(&mut self, before: &Net) -> Vec<u32> {
        let mut kept = Vec::new();
        for (id, config) in &mut self.comtrees {
            if let Some(old) = before.comtrees.get(id).filter(|old| *old != config) {
                kept.push(id.0);
                config.clone_from(old);
            }
        }
        kept
    }

    /// What nothing is reserved of, towards each neighbour: bits a second; 0 if it is not said what the link bears.
    pub fn free_bits(&self) -> BTreeMap<PublicKey, u64> {
        let of = |key: &PublicKey| self.capacities.get(key).map_or(0, |most| most.bits);
        let mut free: BTreeMap<_, _> = self.links.keys().map(|key| (*key, of(key))).collect();
        for (id, bits) in &self.budgets.guarantees {
            if let Some(free) = free.get_mut(&id.link) {
                *free = free.saturating_sub(*bits);
            }
        }
        free
    }

    /// Removes a link, and the branches over it.
    pub fn remove_link(&mut self, key: &PublicKey) {
        self.links.remove(key);
        self.capacities.remove(key);
        self.budgets.branches.retain(|id, _| id.link != *key);
        self.budgets.guarantees.retain(|id, _| id.link != *key);
        self.branches.retain(|id, _| id.link != *key);
    }

    /// Notes a change that the data plane has taken.
    pub fn took(&mut self, change: &Change) {
        match change {
            Change::AddComtree(config) => {
                self.comtrees.insert(config.comtree, config.clone());
            }
            Change::RemoveComtree(comtree) => {
                self.comtrees.remove(comtree);
                self.budgets.comtrees.remove(comtree);
                self.budgets.branches.retain(|id, _| id.comtree != *comtree);
                self.budgets.guarantees.retain(|id, _| id.comtree != *comtree);
                self.branches.retain(|id, _| id.comtree != *comtree);
            }
            Change::AddLink(config) => {
                self.links.insert(config.key, *config);
            }
            Change::RemoveLink { key, .. } => self.remove_link(key),
            Change::AddBranch(config) => {
                self.branches.insert(config.id, *config);
            }
            Change::RemoveBranch(id) => {
                self.branches.remove(id);
                self.budgets.branches.remove(id);
                self.budgets.guarantees.remove(id);
            }
            Change::SetBranchRole { branch, role } => {
                if let Some(config) = self.branches.get_mut(branch) {
                    config.role = *role;
                }
            }
            Change::SetFairness { comtree, fairness } => {
                if let Some(config) = self.comtrees.get_mut(comtree) {
                    config.fairness = *fairness;
                }
            }
            Change::SetComtreeBudget { comtree, budget } => {
                self.budgets.comtrees.insert(*comtree, *budget);
            }
            Change::SetBranchBudget { branch, budget } => {
                self.budgets.branches.insert(*branch, *budget);
            }
            Change::SetLinkCapacity { key, capacity, .. } => {
                self.capacities.insert(*key, *capacity);
            }
            Change::SetBranchGuarantee { branch, bits } => {
                self.budgets.guarantees.insert(*branch, *bits);
            }
            Change::LimitSubscriptions(most) => self.most_subscriptions = *most,
            _ => {}
        }
    }
}
