//! A relay joins a meshed core, or leaves it, without loss (federated games §3.1): phase by phase, each once all
//! relays have the one before.
//!
//! ```text
//!   n ─── p      n: the relay; p: the one of the core above it; c: each other one of the core
//!    ╲   ╱
//!      c         joins:   announced ─▶ both ─ wait ─▶ core peers
//!                leaves:  beside ─ wait ─▶ both ─ wait ─▶ last ─ wait ─▶ below ─ n's word ─▶ a child
//! ```
//!
//! What was sent before relays were told has arrived after the wait. Who is most likely to refuse comes early: c and then n
//! may have too many data threads to tell what comes twice. Whoever refuses to let n join refuses before n has changed.

use super::{Joined, PeerLink};
use crate::comtree::{Peering, Phase};
use crate::hops::{breadth_first, rooted_in};
use crate::ledger::Flow;
use crate::model::{RelayId, TreeHop};
use crate::shape::Shape;
use crate::signal::{Branch, Role};
use canopy_plan::Rate;
use core::time::Duration;

/// What was sent before relays were told has arrived everywhere after this.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(1);

impl Peering {
    /// The one between a tree with a meshed core and the next, with the same relays. Its core has one relay more, or
    /// one less; and two others at least.
    pub(crate) fn between(now: &Shape, next: &Shape) -> Option<Peering> {
        let (before, after) = (now.mesh().len(), next.mesh().len());
        if before == after || before.min(after) == 0 {
            return None;
        }
        let joins = before < after;
        let (smaller, larger) = if joins { (now, next) } else { (next, now) };
        let relay = larger.core().difference(&smaller.core()).next().copied()?;
        let (above, link) = smaller.above(relay)?;
        let peer = |of: &PeerLink| Some((of.other(relay)?, of.link));
        let peers = larger.mesh().iter().filter_map(peer).filter(|(_, of)| *of != link).collect();
        let phase = if joins { Phase::Announced } else { Phase::Beside };
        Some(Peering { relay, above, link, peers, joins, phase })
    }

    /// Why its comtree has another tree then.
    pub(crate) fn why(&self) -> String {
        match self.joins {
            true => "a relay has links with all of its core now, and joined that".to_owned(),
            false => "a relay left its core".to_owned(),
        }
    }

    /// The phase that follows; none if another tree does.
    pub(crate) fn next(&self) -> Option<Phase> {
        match (self.phase, self.joins) {
            (Phase::Announced, _) | (Phase::Beside, _) => Some(Phase::Both),
            (Phase::Both, false) => Some(Phase::Last),
            (Phase::Last, _) => Some(Phase::Below),
            (Phase::Both, true) | (Phase::Below, _) | (Phase::TakenBack, _) => None,
        }
    }

    /// Whether what was sent before has to have arrived first.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Beside | Phase::Both | Phase::Last)
    }

    /// The relays that are told of the phase: those of a group after those of the one before.
    pub(crate) fn told(&self) -> Vec<Vec<RelayId>> {
        let peers = || self.peers.iter().map(|(peer, _)| *peer);
        match (self.phase, self.joins) {
            (Phase::Announced, _) => vec![vec![self.above], peers().collect()],
            (Phase::Beside, _) => vec![vec![self.relay], peers().collect()],
            (Phase::Both, true) => vec![vec![self.relay]],
            (Phase::Both, false) => vec![vec![self.above]],
            _ => vec![[self.relay].into_iter().chain(peers()).collect()],
        }
    }

    /// Whether what comes twice is to pass once at a relay.
    pub(crate) fn is_doubled_at(&self, relay: RelayId) -> bool {
        relay == self.relay || self.peers.iter().any(|(peer, _)| *peer == relay)
    }

    /// A relay's branches in this phase, of those that it has on the tree before.
    pub(crate) fn apply_to(&self, relay: RelayId, branches: &mut Vec<Branch>) {
        let (over_tree, over_peers) = match (self.phase, relay == self.relay) {
            (Phase::Announced, true) => (Some(Role::Parent), None),
            (Phase::Announced, false) | (Phase::Both, false) => {
                (Some(Role::Core), Some(Role::NextPeer))
            }
            (Phase::Beside, _) | (Phase::Both, true) => {
                (Some(Role::CorePeer), Some(Role::NextPeer))
            }
            (Phase::Last, true) => (Some(Role::CorePeer), Some(Role::LastPeer)),
            (Phase::Last, false) => (Some(Role::Core), Some(Role::LastPeer)),
            (Phase::Below, true) => (Some(Role::NextParent), None),
            (Phase::Below, false) => (Some(Role::Core), None),
            (Phase::TakenBack, _) => return,
        };
        branches.retain(|branch| !self.peers.iter().any(|(_, link)| *link == branch.link));
        if let (Some(role), Some(branch)) =
            (over_tree, branches.iter_mut().find(|branch| branch.link == self.link))
        {
            branch.role = role;
        }
        let Some(role) = over_peers else { return };
        for (peer, link) in &self.peers {
            let site = match relay {
                at if at == self.relay => peer.0,
                at if at == *peer => self.relay.0,
                _ => continue,
            };
            let (send, receive) = (Rate::ZERO, Rate::ZERO);
            branches.push(Branch { link: *link, site, role, send, receive });
        }
    }

    /// The relays that are told before those two if it is given up: the one that leaves, and the others of the core, send to
    /// each other again before the one above stops to bring that.
    pub(crate) fn told_again(&self) -> Vec<RelayId> {
        let peers = self.peers.iter().map(|(peer, _)| *peer);
        let all = [self.relay].into_iter().chain(peers);
        all.filter(|_| !self.joins && self.phase == Phase::TakenBack).collect()
    }

    /// What one of those has then, of what it has in some phase, or on the tree in force. A branch that it has let go of
    /// bears what it does on that tree, as is reserved again.
    pub(crate) fn beside_again(
        &self,
        relay: RelayId,
        branches: &mut Vec<Branch>,
        in_force: &[Branch],
    ) {
        let before = branches.clone();
        Peering { phase: Phase::Beside, ..self.clone() }.apply_to(relay, branches);
        for branch in branches.iter_mut() {
            let had = before.iter().chain(in_force).find(|had| had.link == branch.link);
            if let Some(had) = had {
                (branch.send, branch.receive) = (had.send, had.receive);
            }
        }
        branches.sort_by_key(|branch| branch.link);
    }

    /// The two relays that are told first if it is given up, one after the other. A relay goes back below the one
    /// above before that knows; and it is a core peer again once that knows.
    pub(crate) fn undone_by(&self) -> [RelayId; 2] {
        match self.joins == (self.phase == Phase::TakenBack) {
            true => [self.relay, self.above],
            false => [self.above, self.relay],
        }
    }

    /// What the first of those has then, of what it has in some phase, or on the tree in force.
    pub(crate) fn taken_back(&self, branches: &mut Vec<Branch>) {
        let is_between = branches.iter().any(|of| of.role == Role::NextPeer);
        let [first, _] = self.undone_by();
        if first == self.relay && is_between {
            branches.retain(|branch| !self.peers.iter().any(|(_, link)| *link == branch.link));
        }
        if let Some(branch) = branches.iter_mut().find(|branch| branch.link == self.link) {
            branch.role = match branch.role {
                Role::CorePeer if first == self.relay && is_between => Role::Parent,
                Role::Core if first == self.above => Role::CorePeer,
                role => role,
            };
        }
    }

    /// What the one above sends over the link between the two while it brings what all others send, too; `larger` is
    /// the tree with the larger core.
    pub(crate) fn need(&self, larger: &Shape) -> Flow {
        let others = self.peers.iter().map(|(peer, _)| *peer).chain([self.above]);
        let rate = others.fold(Rate::ZERO, |sum, of| sum + larger.sent_into_mesh(of));
        Flow::Over(self.link, self.above, self.relay, rate)
    }
}

impl Shape {
    /// Relays that can join the core by themselves, in the order of the tree: each hangs on one of the core, and has
    /// links with all of it. And the tree that follows.
    pub(crate) fn newcomers(&self, joined: &Joined) -> Vec<(Peering, Shape)> {
        let core = self.core();
        let newcomer = |hop: &TreeHop| {
            let (above, link) = hop.above?;
            let relay = hop.relay;
            if core.contains(&relay) || !core.contains(&above) {
                return None;
            }
            let others = core.iter().filter(|of| **of != above);
            let peer = |of: &RelayId| Some((*of, *joined.get(&(relay, *of))?));
            let peers = others.map(peer).collect::<Option<Vec<_>>>()?;
            let phase = Phase::Announced;
            let peering = Peering { relay, above, link, peers, joins: true, phase };
            let next = self.after(&peering)?;
            Some((peering, next))
        };
        self.hops().iter().filter_map(newcomer).collect()
    }

    /// The tree after a relay of the core has left that, below another one of it.
    pub(super) fn without_peer(&self, relay: RelayId, above: RelayId) -> Option<Shape> {
        let others = self.mesh().iter().filter_map(|of| Some((of.other(relay)?, of.link)));
        let (over, peers): (Vec<_>, Vec<_>) = others.partition(|(of, _)| *of == above);
        let (link, phase) = (over.first()?.1, Phase::Beside);
        self.after(&Peering { relay, above, link, peers, joins: false, phase })
    }

    /// The tree after a relay that hangs on one of the core has joined that, over these links with the others.
    pub(super) fn with_peer(&self, relay: RelayId, mesh: &[PeerLink]) -> Option<Shape> {
        let (above, link) = self.above(relay)?;
        let of_relay = mesh.iter().filter_map(|of| Some((of.other(relay)?, of.link)));
        let peers = of_relay.filter(|(of, _)| *of != above && self.is_core(*of)).collect();
        self.after(&Peering { relay, above, link, peers, joins: true, phase: Phase::Announced })
    }

    /// The tree that follows if all of a peering is done; nothing if it is none of this tree.
    pub(crate) fn after(&self, peering: &Peering) -> Option<Shape> {
        let Peering { relay, above, link, peers, joins, .. } = peering;
        let mut core = self.core();
        let has_others = core.contains(above) && peers.iter().all(|(peer, _)| core.contains(peer));
        if !has_others || core.len() != peers.len() + 2 - usize::from(*joins) {
            return None;
        }
        let mut mesh = self.mesh().to_vec();
        let hops = if *joins {
            if !core.insert(*relay) || self.above(*relay) != Some((*above, *link)) {
                return None;
            }
            let peers = peers.iter().copied().chain([(*above, *link)]);
            mesh.extend(peers.map(|(peer, link)| PeerLink { ends: [peer, *relay], link }));
            let root = self.hops().first()?.relay;
            rooted_in(self.hops(), &mesh, root)
        } else {
            let is_its = |of: &&PeerLink| of.link == *link && of.other(*relay) == Some(*above);
            mesh.iter().find(is_its).filter(|_| core.remove(relay))?;
            mesh.retain(|of| of.other(*relay).is_none());
            let root = self.hops().first()?.relay;
            let root = if root == *relay { *above } else { root };
            let mut hops = rooted_in(self.hops(), self.mesh(), root);
            let hop = hops.iter_mut().find(|hop| hop.relay == *relay)?;
            hop.above = Some((*above, *link));
            breadth_first(&hops)
        };
        Shape::meshed(hops, mesh, |relay| self.load(relay)).ok()
    }
}
