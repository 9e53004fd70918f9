//! Why a comtree is as it is: its tree, what that costs, what is reserved on each link, and the
//! reason for the last change.

use crate::ledger::Account;
use crate::model::{LinkId, RelayId, WorldId};
use crate::state::State;
use canopy_plan::{Capacity, Limits, Rate};
use canopy_wire::Comtree;

/// A comtree as it is, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Which.
    pub comtree: Comtree,
    /// Its world.
    pub world: WorldId,
    /// Its relays, each after the one above it, the root first; none while it has no members.
    pub relays: Vec<RelayOnTree>,
    /// How many members it has.
    pub members: u32,
    /// What the tree costs: the reserved bits a second of each link, both ways, times its length in
    /// kilometres of fibre.
    pub cost: f64,
    /// Why it has this tree.
    pub why: String,
    /// Why it kept that when a better one was looked for last, if it has not changed since.
    pub kept: Option<String>,
    /// What it lacks, if no tree that is whole can be had.
    pub broken: Option<String>,
}

/// A relay on a comtree's tree.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayOnTree {
    /// Which.
    pub relay: RelayId,
    /// How many members it serves there.
    pub members: u32,
    /// What they send and receive together at most.
    pub limits: Limits,
    /// Whether it is in the core.
    pub core: bool,
    /// How it hangs on the relay above; nothing at the root.
    pub above: Option<LinkOnTree>,
    /// Its links with relays of a meshed core that are listed before it, other than the one above: up is
    /// towards them.
    pub peers: Vec<LinkOnTree>,
    /// Why it is not in the core, if the world asks for a mesh.
    pub outside: Option<String>,
}

/// A link of a comtree's tree, or of its meshed core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkOnTree {
    /// Which.
    pub link: LinkId,
    /// The relay above, or the core peer.
    pub relay: RelayId,
    /// The measured time one way, microseconds.
    pub delay_us: u32,
    /// What is reserved for the comtree towards the relay above.
    pub up: Rate,
    /// What is reserved for it from there.
    pub down: Rate,
    /// What is free of the link towards the relay above.
    pub free_up: Rate,
    /// What is free from there.
    pub free_down: Rate,
    /// Whether the link can be used now.
    pub usable: bool,
}

impl State {
    pub(crate) fn explain(&self, comtree: Comtree) -> Option<Explanation> {
        let running = self.comtrees.get(&comtree)?;
        let mut relays: Vec<RelayOnTree> = Vec::new();
        for (hop, core, capacity) in running.shape.iter().flat_map(|shape| shape.parts()) {
            let load = running.shape.as_ref().map(|shape| shape.load(hop.relay));
            let (members, limits) = load.unwrap_or_default();
            let above =
                hop.above.map(|(above, link)| self.on_tree(hop.relay, above, link, capacity));
            let is_listed = |peer: &RelayId| relays.iter().any(|of| of.relay == *peer);
            let peers = running.shape.iter().flat_map(|shape| shape.peers(hop.relay));
            let peers = peers
                .filter(|(peer, ..)| is_listed(peer))
                .map(|(peer, link, capacity)| self.on_tree(hop.relay, peer, link, capacity))
                .collect();
            let outside = self.outside_mesh(comtree, hop.relay);
            relays.push(RelayOnTree {
                relay: hop.relay,
                members,
                limits,
                core,
                above,
                peers,
                outside,
            });
        }
        Some(Explanation {
            comtree,
            world: running.world,
            members: relays.iter().map(|relay| relay.members).sum(),
            relays,
            // A sum of nothing is minus zero.
            cost: self.cost_of(comtree) + 0.0,
            why: running.why.clone(),
            kept: running.kept.clone(),
            broken: running.broken.clone(),
        })
    }

    fn on_tree(&self, from: RelayId, to: RelayId, link: LinkId, capacity: Capacity) -> LinkOnTree {
        let Capacity { up, down } = capacity;
        let free = |from| self.ledger.free(Account::Link(link, from));
        LinkOnTree {
            link,
            relay: to,
            delay_us: self.links.get(&link).map_or(0, |link| link.delay_us),
            up,
            down,
            free_up: free(from),
            free_down: free(to),
            usable: self.is_usable(link),
        }
    }
}
