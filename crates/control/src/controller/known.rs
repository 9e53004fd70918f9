//! What the controller knows, for whoever asks.

use super::Controller;
use crate::agent::Agent;
use crate::error::Refusal;
use crate::ledger::Account;
use crate::model::{Member, Relay, RelayId, TreeHop, World};
use crate::name::Name;
use crate::rollouts::Rollout;
use crate::signal::Item;
use canopy_plan::Rate;
use canopy_wire::Comtree;

impl Controller {
    /// The world of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn world(&self, name: &Name) -> Result<&World, Refusal> {
        self.state.world(name)
    }

    /// The worlds.
    pub fn worlds(&self) -> impl Iterator<Item = &World> {
        self.state.worlds.values()
    }

    /// The relays.
    pub fn relays(&self) -> impl Iterator<Item = &Relay> {
        self.state.relays.values()
    }

    /// The members, and the addresses that rest.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.state.members.values()
    }

    /// Of every account: what may be reserved, and what is.
    pub fn accounts(&self) -> impl Iterator<Item = (Account, Rate, Rate)> + '_ {
        self.state.ledger.all()
    }

    /// A comtree's tree, each relay after the one above it; empty while it has no members.
    pub fn tree(&self, comtree: Comtree) -> Vec<TreeHop> {
        self.state.hops_of(comtree)
    }

    /// Why a comtree has the tree that it has; and what it lacks, if it is broken.
    pub fn why(&self, comtree: Comtree) -> Option<(&str, Option<&str>)> {
        let running = self.state.comtrees.get(&comtree)?;
        Some((&running.why, running.broken.as_deref()))
    }

    /// What a relay is to have, as far as that is committed.
    pub fn wanted(&self, relay: RelayId) -> impl Iterator<Item = &Item> {
        self.agents.get(&relay).into_iter().flat_map(Agent::wanted)
    }

    /// Whether everything is committed, and all relays that are heard have what they are to have.
    pub fn is_settled(&self) -> bool {
        let running = self.agents.values().filter(|agent| !self.lost.contains(&agent.relay));
        let rollouts = self.rollouts.values().all(Rollout::is_settled);
        let is_committed = self.ops.is_empty() && self.committing.is_none();
        is_committed && rollouts && running.into_iter().all(Agent::is_settled)
    }

    /// How often calls were sent again.
    pub fn repeats(&self) -> u64 {
        self.agents.values().map(Agent::repeats).sum()
    }
}
