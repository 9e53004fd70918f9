//! Branches of comtrees: they come, go, and change what their neighbours are to the relay; and what
//! the relay's other data threads must know of them.

use super::Relay;
use super::downstream::SubscribeWindow;
use crate::changes::{BranchConfig, BranchId, BranchRole, Refusal};
use crate::index::{ComtreeIndex, PortIndex};
use crate::ports::Peer;
use crate::shape::{PeerClass, Shape};
use crate::told::Told;
use crate::tree::Branch;
use canopy_wire::{Address, Comtree, PORTABLE_SITES, Time};

impl BranchRole {
    fn class(self) -> PeerClass {
        match self {
            BranchRole::CorePeer | BranchRole::NextPeer | BranchRole::LastPeer => {
                PeerClass::CorePeer
            }
            BranchRole::Parent
            | BranchRole::NextParent
            | BranchRole::Core
            | BranchRole::Child
            | BranchRole::Standby => PeerClass::TreeNeighbour,
        }
    }
}

impl Relay {
    pub(super) fn add_branch(&mut self, now: Time, config: &BranchConfig) -> Result<(), Refusal> {
        let BranchConfig { id: BranchId { comtree, link, .. }, role, site } = *config;
        let index = self.comtrees.find(comtree).ok_or(Refusal::UnknownComtree(comtree))?;
        let link = self.link_with(&link).ok_or(Refusal::UnknownLink)?;
        let (session, datagrams) = (link.session, link.datagrams);
        if self.ports.of_member(session, comtree).is_some() {
            return Err(Refusal::BranchExists(comtree));
        }
        let entry = self.comtrees.get(index);
        if !entry.tree.allows(role, None) {
            return Err(Refusal::RoleConflict(comtree));
        }
        if PORTABLE_SITES.contains(&(site & 0x7fff)) {
            return Err(Refusal::PortableSite(comtree, site));
        }
        let is_foreign = site != entry.addresses.site() && !role.is_peer();
        if is_foreign && entry.tree.leads_to_site(site) {
            return Err(Refusal::SiteDivided(comtree, site));
        }
        let shape = Shape { class: role.class(), datagrams };
        let address = Address::unicast(site, 0);
        let port = self.open_port(now, Peer::Branch(session), shape, (comtree, index), address);
        let port = port.ok_or(Refusal::TooManyPorts)?;
        self.thinning.links.add_branch(session, port);
        self.share_links(now);
        self.overlay.windows.insert(port, SubscribeWindow::default());
        self.comtrees.get_mut(index).tree.add(Branch { port, role, site });
        if role == BranchRole::NextParent {
            self.begin_succession(now, index, (port, true));
        }
        if role == BranchRole::NextPeer {
            self.begin_doubling(now, index, port, true);
        }
        self.branch_changed(now, index);
        Ok(())
    }

    pub(super) fn remove_branch(&mut self, now: Time, id: &BranchId) -> Result<(), Refusal> {
        let port = self.branch_of(id)?;
        self.close(now, port);
        Ok(())
    }

    pub(super) fn set_branch_role(
        &mut self,
        now: Time,
        id: &BranchId,
        role: BranchRole,
    ) -> Result<(), Refusal> {
        let port = self.branch_of(id)?;
        let index = self.comtrees.find(id.comtree).ok_or(Refusal::UnknownComtree(id.comtree))?;
        let tree = &self.comtrees.get(index).tree;
        let before = tree.branch(port).map(|branch| branch.role);
        if before == Some(role) {
            return Ok(());
        }
        if role == BranchRole::LastPeer && before != Some(BranchRole::NextPeer) {
            return Err(Refusal::NoNextPeer(id.comtree));
        }
        if !tree.allows(role, Some(port)) {
            return Err(Refusal::RoleConflict(id.comtree));
        }
        if role == BranchRole::CorePeer {
            self.know_passed_on(now, index, port);
        }
        self.end_succession_over(now, index, port);
        if let Some(port) = self.ports.get_mut(port) {
            port.shape.class = role.class();
        }
        if role.is_peer() && before == Some(BranchRole::Parent) {
            // What it has brought goes to other core peers without this relay.
            let queue = self.comtrees.get(index).queue;
            self.queues.get_mut(queue).pending.came_from_core_peer(port);
        }
        let tree = &mut self.comtrees.get_mut(index).tree;
        tree.set_role(port, role);
        tree.promote();
        // What it wanted as a child stays until it ends: it may be one again without having heard of this, and does
        // not ask anew then. Meanwhile no parent is asked for it.
        match (role, self.comtrees.get(index).tree.branch(port).map(|branch| branch.role)) {
            // It was in the core, and has no other parent.
            (BranchRole::NextParent | BranchRole::Parent, Some(BranchRole::Parent)) => {
                self.begin_leaving(now, id.comtree, port, role == BranchRole::NextParent);
            }
            (BranchRole::NextParent, _) => self.begin_succession(now, index, (port, false)),
            (BranchRole::NextPeer, _) => {
                let is_new = !before.is_some_and(BranchRole::is_peer);
                self.begin_doubling(now, index, port, is_new);
            }
            _ => {}
        }
        let ends = |before: &BranchRole| before.may_double() || !role.gets_everything();
        if let Some(before) = before.filter(ends) {
            self.end_doubling_over(now, index, port, before);
        }
        if before.is_some_and(BranchRole::is_peer) != role.is_peer() {
            self.relabel_routes(index, port);
        }
        self.branch_changed(now, index);
        Ok(())
    }

    /// Something came over a branch: if this relay was the neighbour's standby parent, it is the parent.
    pub(super) fn wake_branch(&mut self, index: ComtreeIndex, port: PortIndex) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        if tree.branch(port).is_some_and(|branch| branch.role == BranchRole::Standby) {
            tree.set_role(port, BranchRole::Child);
            self.counters.standbys_used += 1;
        }
    }

    pub(super) fn branch_of(&self, id: &BranchId) -> Result<PortIndex, Refusal> {
        let link = self.link_with(&id.link).ok_or(Refusal::UnknownLink)?;
        let port = self.ports.of_member(link.session, id.comtree);
        port.ok_or(Refusal::UnknownBranch(id.comtree))
    }

    /// A branch's port was closed.
    pub(super) fn branch_closed(&mut self, now: Time, index: ComtreeIndex, port: PortIndex) {
        self.end_succession_over(now, index, port);
        let tree = &mut self.comtrees.get_mut(index).tree;
        let removed = tree.remove(port);
        tree.promote();
        if let Some(branch) = removed {
            self.end_doubling_over(now, index, port, branch.role);
        }
        self.forget_routes_over(port);
        self.branch_changed(now, index);
    }

    /// A comtree's branches have changed: the other data threads are told, and what is wanted here is
    /// asked for where the core is now.
    fn branch_changed(&mut self, now: Time, index: ComtreeIndex) {
        self.overlay.reach_to_tell = true;
        self.tell_reach();
        self.follow_parent(now, index);
    }

    /// Tells the other data threads which comtrees have branches here, as far as they do not know.
    pub(super) fn tell_reach(&mut self) {
        if !self.overlay.reach_to_tell {
            return;
        }
        self.overlay.reach_to_tell = false;
        for entry in self.comtrees.live_mut() {
            let reach = entry.tree.reach;
            if reach == entry.tree.told {
                continue;
            }
            if self.siblings.tell(Told::Reach { comtree: entry.id, reach }) {
                entry.tree.told = reach;
            } else {
                // They are slow; the next flush tries again.
                self.overlay.reach_to_tell = true;
            }
        }
    }

    pub(super) fn hear_of_reach(
        &mut self,
        comtree: Comtree,
        thread: u16,
        reach: crate::tree::Reach,
    ) {
        if let Some(index) = self.comtrees.find(comtree) {
            self.comtrees.get_mut(index).tree.hear(thread, reach);
        }
    }
}
