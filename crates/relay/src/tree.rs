//! A data thread's place in the tree of a comtree: which neighbours get every update to a group, and
//! which other data threads have such neighbours.

use crate::bucket::Bucket;
use crate::changes::BranchRole;
use crate::doubled::Doubled;
use crate::index::{NONE, PortIndex};
use crate::succession::{Phase, Succession};
use canopy_wire::{Address, Time};
use std::collections::BTreeMap;

/// What a data thread has of a comtree's branches, as the others are told: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach(pub(crate) u8);

impl Reach {
    /// A branch whose neighbour gets every update to a group.
    pub(crate) const EVERYTHING: Reach = Reach(1);
    /// Any branch.
    pub(crate) const BRANCHES: Reach = Reach(2);
    /// A branch to a relay of the same site.
    pub(crate) const SITE: Reach = Reach(4);

    pub(crate) fn has(self, other: Reach) -> bool {
        self.0 & other.0 != 0
    }
}

/// How the way to an address was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) since: Time,
    /// By how many updates.
    pub(crate) times: u32,
}

/// A branch of the data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) port: PortIndex,
    pub(crate) role: BranchRole,
    /// The neighbour's site.
    pub(crate) site: u16,
}

/// A comtree's tree, as a data thread sees it.
pub(crate) struct Tree {
    /// The relay's own site.
    site: u16,
    /// What this data thread has.
    pub(crate) reach: Reach,
    branches: Vec<Branch>,
    /// Those of them whose neighbours get every update to a group.
    everything: Vec<PortIndex>,
    /// Those, and the one of two parents that gets nothing now, and last peers. What they asked for as children
    /// does not count.
    above: Vec<PortIndex>,
    /// What each other data thread has.
    siblings: [u64; 3],
    /// Addresses to which nobody here knew the way.
    pub(crate) asked: BTreeMap<Address, Asked>,
    pub(crate) asks: Bucket,
    /// What the others were told of this one.
    pub(crate) told: Reach,
    /// The number of the target of updates to groups without members here, while some wait for a
    /// flush; otherwise [`NONE`].
    pub(crate) target: u32,
    /// If the parent is being succeeded by another.
    pub(crate) succession: Option<Box<Succession>>,
    /// If what comes over two branches passes once.
    pub(crate) doubled: Option<Box<Doubled>>,
}

impl Tree {
    pub(crate) fn new(site: u16) -> Tree {
        Tree {
            site,
            reach: Reach::default(),
            branches: Vec::new(),
            everything: Vec::new(),
            above: Vec::new(),
            siblings: [0; 3],
            asked: BTreeMap::new(),
            asks: Bucket::default(),
            told: Reach::default(),
            target: NONE,
            succession: None,
            doubled: None,
        }
    }

    pub(crate) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    pub(crate) fn branch(&self, port: PortIndex) -> Option<&Branch> {
        self.branches.iter().find(|branch| branch.port == port)
    }

    /// The branches whose neighbours get every update to a group.
    #[inline]
    pub(crate) fn everything(&self) -> &[PortIndex] {
        &self.everything
    }

    /// The branches whose neighbours are sent nothing because they have subscribed to it.
    #[inline]
    pub(crate) fn above(&self) -> &[PortIndex] {
        &self.above
    }

    /// The branch to the parent that is asked for what is wanted here.
    pub(crate) fn parent(&self) -> Option<PortIndex> {
        let watches = self.succession.as_ref().is_some_and(|succession| succession.is_watching());
        let next = self.with_role(BranchRole::NextParent).filter(|_| !watches);
        next.or_else(|| self.old_parent()).map(|branch| branch.port)
    }

    /// The branches to the parent and to the one that is about to succeed it; [`NONE`] where there is none.
    pub(crate) fn parents(&self) -> [PortIndex; 2] {
        [BranchRole::Parent, BranchRole::NextParent]
            .map(|role| self.with_role(role).map_or(NONE, |branch| branch.port))
    }

    /// The branch to the parent, though another may be about to succeed it.
    pub(crate) fn old_parent(&self) -> Option<&Branch> {
        self.with_role(BranchRole::Parent)
    }

    /// Who was to be the parent is the parent, if there is no other.
    pub(crate) fn promote(&mut self) {
        if self.old_parent().is_none()
            && let Some(next) = self.parent()
        {
            self.set_role(next, BranchRole::Parent);
        }
    }

    fn with_role(&self, role: BranchRole) -> Option<&Branch> {
        self.branches.iter().find(|branch| branch.role == role)
    }

    /// Whether a neighbour other than the one at `but` can be this to the relay.
    pub(crate) fn allows(&self, role: BranchRole, but: Option<PortIndex>) -> bool {
        let mut others = self.branches.iter().filter(|branch| Some(branch.port) != but);
        match role {
            BranchRole::Child | BranchRole::Standby => true,
            BranchRole::Parent => !others.any(|other| other.role.gets_everything()),
            BranchRole::NextParent => {
                let above = others.filter(|other| other.role.gets_everything());
                let above: Vec<BranchRole> = above.map(|other| other.role).collect();
                let is_core =
                    |branch: &Branch| branch.role == BranchRole::Core || branch.role.is_peer();
                let leaves_core = but.and_then(|port| self.branch(port)).is_some_and(is_core);
                above == [BranchRole::Parent] || leaves_core && above.is_empty()
            }
            BranchRole::Core | BranchRole::CorePeer | BranchRole::LastPeer => {
                !others.any(|other| other.role == BranchRole::Parent)
            }
            // What comes twice is told by one data thread.
            BranchRole::NextPeer => {
                let is_elsewhere = self.siblings_with(Reach::EVERYTHING) != 0;
                !is_elsewhere && !others.any(|other| other.role == BranchRole::Parent)
            }
        }
    }

    /// Whether a branch in a tree leads to that site already.
    pub(crate) fn leads_to_site(&self, site: u16) -> bool {
        let leads = |branch: &Branch| branch.site == site && !branch.role.is_peer();
        self.branches.iter().any(leads)
    }

    pub(crate) fn add(&mut self, branch: Branch) {
        self.branches.push(branch);
        self.sort_out();
    }

    pub(crate) fn remove(&mut self, port: PortIndex) -> Option<Branch> {
        let number = self.branches.iter().position(|branch| branch.port == port)?;
        let branch = self.branches.swap_remove(number);
        self.sort_out();
        Some(branch)
    }

    pub(crate) fn set_role(&mut self, port: PortIndex, role: BranchRole) {
        if let Some(branch) = self.branches.iter_mut().find(|branch| branch.port == port) {
            branch.role = role;
        }
        self.sort_out();
    }

    /// The succession has ended: who is left of the two is the parent.
    pub(crate) fn end_succession(&mut self) {
        self.succession = None;
        self.sort_out();
    }

    /// The branches or what they are have changed.
    pub(crate) fn sort_out(&mut self) {
        self.everything.clear();
        let gets = self.branches.iter().filter(|branch| branch.role.gets_everything());
        self.everything.extend(gets.map(|branch| branch.port));
        self.above.clone_from(&self.everything);
        let last = self.branches.iter().filter(|branch| branch.role == BranchRole::LastPeer);
        self.above.extend(last.map(|branch| branch.port));
        if let Some(succession) = &self.succession {
            let is_held = matches!(succession.phase, Phase::Holding { .. });
            self.everything.retain(|port| !is_held && *port == succession.way_up());
        }
        self.reach = Reach::default();
        for branch in &self.branches {
            self.reach.0 |= Reach::BRANCHES.0;
            self.reach.0 |= if branch.role.gets_everything() { Reach::EVERYTHING.0 } else { 0 };
            self.reach.0 |= if branch.site == self.site { Reach::SITE.0 } else { 0 };
        }
    }

    /// What an address may be behind that has a route of its own: a portable one is anywhere.
    pub(crate) fn may_lead_to(address: Address) -> Reach {
        if address.is_portable() { Reach::BRANCHES } else { Reach::SITE }
    }

    /// Whether any data thread of the relay has this.
    pub(crate) fn has_anywhere(&self, reach: Reach) -> bool {
        self.reach.has(reach) || self.siblings_with(reach) != 0
    }

    /// Another data thread has said what it has.
    pub(crate) fn hear(&mut self, thread: u16, reach: Reach) {
        for (bit, threads) in self.siblings.iter_mut().enumerate() {
            *threads &= !(1 << thread);
            *threads |= u64::from(reach.0 >> bit & 1) << thread;
        }
    }

    /// The other data threads that have any of this, a bit for each.
    #[inline]
    pub(crate) fn siblings_with(&self, reach: Reach) -> u64 {
        self.siblings[reach.0.trailing_zeros() as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    /// A parent that was a child once may still be subscribed. What is held for the next one is not to reach
    /// it over the old one.
    #[test]
    fn what_a_parent_asked_for_as_a_child_does_not_count_while_it_is_succeeded() {
        let (mut tree, now) = (Tree::new(1), Time::from_millis(1));
        let branch = |port, role, site| Branch { port, role, site };
        tree.add(branch(4, BranchRole::Parent, 2));
        tree.add(branch(5, BranchRole::NextParent, 3));
        tree.add(branch(6, BranchRole::Child, 4));
        tree.succession = Some(Box::new(Succession::new(now, (4, 2), (5, true))));
        tree.sort_out();
        assert_eq!((tree.everything(), tree.above()), (&[4][..], &[4, 5][..]));
        let until = now + Duration::from_millis(1);
        for (phase, everything) in [
            (Phase::Holding { until }, &[][..]),
            (Phase::Settling { until }, &[5]),
            (Phase::Turned { until: None }, &[5]),
        ] {
            tree.succession.as_mut().unwrap().phase = phase;
            tree.sort_out();
            assert_eq!((tree.everything(), tree.above()), (everything, &[4, 5][..]), "{phase:?}");
        }
    }
}
