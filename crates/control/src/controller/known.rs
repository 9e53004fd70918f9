//! What the controller knows, for whoever asks.

use super::Controller;
use crate::admission::Admission;
use crate::agent::Agent;
use crate::error::Refusal;
use crate::explain::Explanation;
use crate::ledger::Account;
use crate::measuring::Ignored;
use crate::model::{
    Link, LinkId, Member, Owner, PeerLink, Relay, RelayId, RemovedRelay, TreeHop, World, WorldId,
};
use crate::name::Name;
use crate::rollouts::Rollout;
use crate::running::Running;
use crate::settings::Settings;
use crate::shape::Shape;
use crate::signal::{Item, Retry};
use canopy_plan::Rate;
use canopy_wire::{Address, Comtree};
use std::collections::BTreeSet;
use std::ops::Bound;

/// A tree that a comtree has, or takes while it is moved.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeOnTheWay {
    /// The tree, each relay after the one above it.
    pub hops: Vec<TreeHop>,
    /// The relays of its core.
    pub core: BTreeSet<RelayId>,
    /// The links of that, if it is a mesh.
    pub mesh: Vec<PeerLink>,
}

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

    /// What one of its ends sends over a link now, bits a second, if that says so.
    pub fn load(&self, link: LinkId, end: RelayId) -> Option<u64> {
        let agent = self.agents.get(&end).filter(|agent| !agent.is_cut)?;
        if self.lost.contains(&end) { None } else { agent.loads.get(&link).copied() }
    }

    /// The relays that were removed, and may not register again.
    pub fn removed_relays(&self) -> impl Iterator<Item = &RemovedRelay> {
        self.state.removed.values()
    }

    /// The relay of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn relay_named(&self, name: &Name) -> Result<&Relay, Refusal> {
        let relay = self.state.relay_names.get(name).and_then(|id| self.state.relays.get(id));
        relay.ok_or_else(|| Refusal::NoSuchRelay(name.to_string()))
    }

    /// The links, and whether each can be used now.
    pub fn links(&self) -> impl Iterator<Item = (&Link, bool)> {
        self.state.links.values().map(|link| (link, self.state.is_usable(link.id)))
    }

    /// Where somebody is in a world, by its credential's digest.
    pub fn address_of(&self, world: WorldId, owner: Owner) -> Option<Address> {
        self.state.owners.get(&(world, owner)).copied()
    }

    /// What a member has, as it was told when it entered.
    ///
    /// # Errors
    /// Nobody has the address.
    pub fn admission(&self, world: WorldId, address: Address) -> Result<Admission, Refusal> {
        self.state.admission(world, address)
    }

    /// A comtree's tree, what it costs, what is reserved for it, and why.
    pub fn explain(&self, comtree: Comtree) -> Option<Explanation> {
        self.state.explain(comtree)
    }

    /// The members, and the addresses that rest.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.state.members.values()
    }

    /// The world of this number.
    pub fn world_of(&self, id: WorldId) -> Option<&World> {
        self.state.worlds.get(&id)
    }

    /// The relay of this number.
    pub fn relay_of(&self, id: RelayId) -> Option<&Relay> {
        self.state.relays.get(&id)
    }

    /// The link of this number.
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.state.links.get(&id)
    }

    /// Whether a link carries comtrees now: both relays are there and hear each other.
    pub fn is_usable(&self, link: LinkId) -> bool {
        self.state.is_usable(link)
    }

    /// A world's members, and its addresses that rest, in order of their addresses, behind `after`.
    pub fn members_of(
        &self,
        world: WorldId,
        after: Option<Address>,
    ) -> impl Iterator<Item = &Member> {
        let all = Bound::Included((world, Address(0)));
        let first = after.map_or(all, |after| Bound::Excluded((world, after)));
        let of = (first, Bound::Included((world, Address(u32::MAX))));
        self.state.members.range(of).map(|(_, member)| member)
    }

    /// What is known of an address in a world: whose it is, or was while it rests.
    pub fn member(&self, world: WorldId, address: Address) -> Option<&Member> {
        self.state.members.get(&(world, address))
    }

    /// The member of a world that is this owner, if it is in.
    pub fn held_by(&self, world: WorldId, owner: Owner) -> Option<&Member> {
        let address = self.state.owners.get(&(world, owner))?;
        self.state.held(world, *address).ok()
    }

    /// The same; if it is not in, what is known of the place that it had last, while its address rests.
    pub fn known_by(&self, world: WorldId, owner: Owner) -> Option<&Member> {
        let former = || self.state.former.get(&(world, owner)).copied();
        let last = || self.state.members.get(&(world, former()?));
        self.held_by(world, owner).or_else(last)
    }

    /// The comtree's world.
    pub fn world_on(&self, comtree: Comtree) -> Option<&World> {
        let running = self.state.comtrees.get(&comtree)?;
        self.state.worlds.get(&running.world)
    }

    /// Every account: what may be reserved of it, and what is.
    pub fn accounts(&self) -> impl Iterator<Item = (Account, Rate, Rate)> + '_ {
        self.state.ledger.all()
    }

    /// A comtree's tree, each relay after the one above it; empty while it has no members.
    pub fn tree(&self, comtree: Comtree) -> Vec<TreeHop> {
        self.state.hops_of(comtree)
    }

    /// The tree of a comtree, and those that it takes one after the other while it is moved.
    pub fn trees_on_the_way(&self, comtree: Comtree) -> Vec<TreeOnTheWay> {
        let shapes = self.state.comtrees.get(&comtree).into_iter().flat_map(Running::shapes);
        let tree = |shape: &Shape| TreeOnTheWay {
            hops: shape.hops().to_vec(),
            core: shape.core(),
            mesh: shape.mesh().to_vec(),
        };
        shapes.map(tree).collect()
    }

    /// The links of a comtree's meshed core, one for each two relays; nothing if its core is none.
    pub fn mesh(&self, comtree: Comtree) -> Vec<PeerLink> {
        let shape = self.state.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        shape.map_or_else(Vec::new, |shape| shape.mesh().to_vec())
    }

    /// How many comtrees run over a link, or are about to.
    pub fn trees_over(&self, link: LinkId) -> usize {
        self.state.trees_over(link).count()
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

    /// Whether all that was decided is committed.
    pub fn is_committed(&self) -> bool {
        self.ops.is_empty() && self.committing.is_none()
    }

    /// What it was started with: another is started with the same if a commit fails.
    pub fn started_with(&self) -> (Settings, Retry) {
        (self.state.settings, self.retry)
    }

    /// Whether a comtree is on its way to another tree.
    pub fn is_moving(&self, comtree: Comtree) -> bool {
        self.state.is_moving(comtree)
    }

    /// Whether everything is committed, no comtree is on its way to another tree, and all relays that are
    /// heard have what they are to have.
    pub fn is_settled(&self) -> bool {
        let running = self.agents.values().filter(|agent| !self.lost.contains(&agent.relay));
        let rollouts = self.rollouts.values().all(Rollout::is_settled);
        let is_moving = self.state.comtrees.keys().any(|comtree| self.state.is_moving(*comtree));
        let is_told = rollouts && self.unlinking.is_empty() && !is_moving;
        self.is_committed() && is_told && running.into_iter().all(Agent::is_settled)
    }

    /// How long the way between two relays is as they have measured it without a link, microseconds.
    pub fn measured(&self, ends: [RelayId; 2]) -> Option<u32> {
        self.measuring.between(ends[0], ends[1])
    }

    /// What of relays' messages about their ways counted for nothing, and why.
    pub fn ignored(&self) -> Ignored {
        self.measuring.ignored
    }

    /// How often calls were sent again.
    pub fn repeats(&self) -> u64 {
        self.agents.values().map(Agent::repeats).sum()
    }
}
