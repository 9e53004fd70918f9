//! The overlay as one relay knows it: its links to neighbour relays, its comtrees, and their branches.
//! What the settings say of them is given to the data plane at the start and at each SIGHUP.

mod changes;
mod controlled;
mod loads;
mod reload;
mod report;
mod show;

pub(crate) use changes::changes;
pub(crate) use controlled::Controlled;
pub(crate) use loads::{Busiest, ComtreeLoad};
pub(crate) use reload::{Reloads, begin, role_name};
pub(crate) use report::router;
pub(crate) use show::{NetCommand, report_of};

use crate::settings::{OwnBudgets, RelaySettings};
use canopy_client::RelayKey;
use canopy_relay::{BranchConfig, BranchId, BranchRole, Change, ComtreeConfig, Down, LinkConfig};
use canopy_session::PublicKey;
use canopy_wire::Comtree;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a relay is given of the overlay, and what else of its settings may change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Net {
    /// The comtrees.
    comtrees: BTreeMap<Comtree, ComtreeConfig>,
    /// The links, by the neighbour's key.
    links: BTreeMap<PublicKey, LinkConfig>,
    /// The branches.
    branches: BTreeMap<BranchId, BranchConfig>,
    /// The neighbours' names, by key.
    names: BTreeMap<PublicKey, String>,
    /// The most subscriptions of a participant.
    most_subscriptions: u32,
    /// What comtrees and branches may be sent.
    budgets: OwnBudgets,
    /// What links bear, by the neighbour's key, where that is said.
    capacities: BTreeMap<PublicKey, Down>,
}

impl Net {
    /// What the settings of the relay with the key `own` say.
    ///
    /// # Errors
    /// If a link leads to the relay itself.
    pub(crate) fn of(settings: &RelaySettings, own: &PublicKey) -> anyhow::Result<Net> {
        let mut net = Net::at_start(settings);
        for link in &settings.links {
            let config = link.config(own)?;
            net.names.insert(config.key, link.name.clone());
            net.links.insert(config.key, config);
            if link.capacity.is_limited() {
                net.capacities.insert(config.key, link.capacity);
            }
        }
        net.budgets = settings.own_budgets.clone();
        net.branches = settings.branches.iter().map(|branch| (branch.id, *branch)).collect();
        Ok(net)
    }

    /// What a relay with these settings has when it has just been started: its comtrees alone.
    pub(crate) fn at_start(settings: &RelaySettings) -> Net {
        let comtrees = settings.node.comtrees.iter().map(|one| (one.comtree, one.clone()));
        // All comtrees begin with the same.
        let default = settings.node.budgets.comtree;
        let budgets = settings.node.comtrees.iter().map(|one| (one.comtree, default));
        Net {
            budgets: OwnBudgets {
                at_first: default,
                comtrees: budgets.collect(),
                ..OwnBudgets::default()
            },
            comtrees: comtrees.collect(),
            most_subscriptions: settings.node.tables.max_subscriptions_per_participant,
            ..Net::default()
        }
    }

    /// A neighbour's name, or the beginning of its key if it has none.
    pub(crate) fn name(&self, key: &PublicKey) -> String {
        let short = || RelayKey::new(*key).to_string()[..16].to_owned();
        self.names.get(key).cloned().unwrap_or_else(short)
    }

    /// The relay's site on a comtree.
    fn site(&self, comtree: Comtree) -> Option<u16> {
        self.comtrees.get(&comtree).map(|config| config.site)
    }

    /// Whether the relay is in a comtree's core: it is unless it has a parent there.
    fn is_core(&self, comtree: Comtree) -> bool {
        let id = |link, thread| BranchId { comtree, link, thread };
        let mut on_it = self.branches.range(id([0; 32], 0)..=id([u8::MAX; 32], u16::MAX));
        on_it.all(|(_, branch)| branch.role != BranchRole::Parent)
    }

    /// Removes a link, and the branches over it.
    fn remove_link(&mut self, key: &PublicKey) {
        self.links.remove(key);
        self.capacities.remove(key);
        self.budgets.branches.retain(|id, _| id.link != *key);
        self.budgets.guarantees.retain(|id, _| id.link != *key);
        self.branches.retain(|id, _| id.link != *key);
    }

    /// Notes a change that the data plane has taken.
    fn took(&mut self, change: &Change) {
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

/// What the data plane has of the overlay now. Pages and logs read it; who changes the relay writes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedNet(Arc<Mutex<Net>>);

impl SharedNet {
    /// It as it is now.
    pub(crate) fn get(&self) -> Net {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A neighbour's name; see [`Net::name`].
    pub(crate) fn name(&self, key: &PublicKey) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).name(key)
    }

    fn set(&self, net: Net) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = net;
    }
}
