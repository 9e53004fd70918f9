//! The overlay as one relay knows it: its links to neighbour relays, its comtrees, and their branches.
//! What the settings say of them is given to the data plane at the start and at each SIGHUP.

mod controlled;
mod loads;
mod reload;
mod report;
mod show;
mod states;

pub(crate) use controlled::Controlled;
pub(crate) use loads::{Busiest, ComtreeLoad};
pub(crate) use reload::{Reloads, begin, role_name};
pub(crate) use report::router;
pub(crate) use show::{NetCommand, report_of};
pub(crate) use states::SharedStates;

use crate::settings::RelaySettings;
use canopy_client::RelayKey;
use canopy_overlay::{Net, OwnBudgets};
use canopy_session::PublicKey;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What settings say of the overlay, and what its neighbours are called.
pub(crate) trait OfSettings: Sized {
    /// What the settings of the relay with the key `own` say.
    ///
    /// # Errors
    /// If a link leads to the relay itself.
    fn of(settings: &RelaySettings, own: &PublicKey) -> anyhow::Result<Self>;

    /// What a relay with these settings has when it has just been started: its comtrees alone.
    fn at_start(settings: &RelaySettings) -> Self;

    /// A neighbour's name, or the beginning of its key if it has none.
    fn name(&self, key: &PublicKey) -> String;
}

impl OfSettings for Net {
    fn of(settings: &RelaySettings, own: &PublicKey) -> anyhow::Result<Net> {
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

    fn at_start(settings: &RelaySettings) -> Net {
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

    fn name(&self, key: &PublicKey) -> String {
        let short = || RelayKey::new(*key).to_string()[..16].to_owned();
        self.names.get(key).cloned().unwrap_or_else(short)
    }
}

/// What the data plane has of the overlay now. Pages and logs read it; who changes the relay writes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedNet {
    net: Arc<Mutex<Net>>,
    detours: Arc<AtomicU64>,
    states: Arc<Mutex<Option<SharedStates>>>,
}

impl SharedNet {
    /// It as it is now.
    pub(crate) fn get(&self) -> Net {
        self.with(Net::clone)
    }

    /// Looks at it as it is now.
    fn with<T>(&self, look: impl FnOnce(&Net) -> T) -> T {
        look(&self.net.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A neighbour's name; see [`Net::name`].
    pub(crate) fn name(&self, key: &PublicKey) -> String {
        self.with(|net| net.name(key))
    }

    /// How many detours have begun.
    pub(crate) fn detours(&self) -> u64 {
        self.detours.load(Ordering::Relaxed)
    }

    /// What relays say of their links; nothing where no controller tells what links there are.
    pub(crate) fn states(&self) -> Option<SharedStates> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, states: SharedStates) {
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = Some(states);
    }

    fn count_detour(&self) {
        self.detours.fetch_add(1, Ordering::Relaxed);
    }

    fn set(&self, net: Net) {
        *self.net.lock().unwrap_or_else(PoisonError::into_inner) = net;
    }
}
