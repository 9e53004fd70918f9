//! What a relay does while a core peer joins its meshed core, or leaves it, or while it does so itself; see
//! [`Doubled`].

use super::Relay;
use super::intake::Accepted;
use super::overlay::NOBODY;
use crate::changes::BranchRole;
use crate::doubled::{Doubled, Passage};
use crate::index::{ComtreeIndex, PortIndex};
use crate::routes::Leads;
use crate::succession::Kept;
use crate::tree::Tree;
use canopy_wire::{Address, DropReason, Time};

impl Relay {
    /// A branch is that of a next peer from now on. `is_new` says whether it was no peer's before.
    pub(super) fn begin_doubling(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        port: PortIndex,
        is_new: bool,
    ) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        tree.doubled.get_or_insert_default().watch(now, port, is_new);
        if !self.overlay.doubled.contains(&index) {
            self.overlay.doubled.push(index);
        }
    }

    /// The branch of a parent that has succeeded another lately becomes that of a core peer. What the other brought ahead of it
    /// may come of it still, and what has passed is known on.
    pub(super) fn know_passed_on(&mut self, now: Time, index: ComtreeIndex, port: PortIndex) {
        self.pass_what_waits_for(now, index, port);
        let tree = &mut self.comtrees.get_mut(index).tree;
        let succession = tree.succession.as_mut().filter(|of| of.is_left_with(port));
        let Some(seen) = succession.map(|of| of.take_seen()) else { return };
        tree.doubled.get_or_insert_with(|| Box::new(Doubled::remembering(now))).know(seen);
        if !self.overlay.doubled.contains(&index) {
            self.overlay.doubled.push(index);
        }
    }

    /// A branch that was that of a `before` is something else from now on, or has been closed. If it was no next peer's
    /// and no last peer's, others may have waited for what it would have brought all the same.
    pub(super) fn end_doubling_over(
        &mut self,
        now: Time,
        index: ComtreeIndex,
        port: PortIndex,
        before: BranchRole,
    ) {
        let tree = &mut self.comtrees.get_mut(index).tree;
        let is_last = !tree.branches().iter().any(|one| one.role.may_double());
        let role = tree.branch(port).map(|branch| branch.role);
        let Some(doubled) = &mut tree.doubled else { return };
        let other = doubled.let_go(now, port, is_last);
        if role.is_none() && !before.may_double() && before.gets_everything() {
            doubled.hear();
        }
        if before.may_double() && role == Some(BranchRole::CorePeer) {
            doubled.lead_no_more();
        } else if before.may_double() || role.is_none() {
            // What is sent there from now on would arrive when nobody takes it any more.
            match other.filter(|other| tree.branch(*other).is_some()) {
                Some(other) => {
                    self.overlay.routes.redirect(index, port, other);
                    self.relabel_routes(index, other);
                }
                None => self.forget_routes_over(port),
            }
        }
        let Some(doubled) = self.doubled(index) else { return };
        for src in doubled.waiting() {
            self.release_next(now, index, src);
        }
    }

    /// What becomes of an update that a neighbour has brought while updates may come twice: it goes on, or it
    /// waits, or it has passed already.
    pub(super) fn pass_doubled<'a>(
        &mut self,
        now: Time,
        accepted: Accepted<'a>,
    ) -> Result<Option<Accepted<'a>>, DropReason> {
        let Accepted { update, index, origin, .. } = accepted;
        let tree = &self.comtrees.get(index).tree;
        let role = tree.branch(origin).map(|branch| branch.role);
        let is_above = role.is_some_and(|role| role.gets_everything() || role.is_peer());
        if Self::is_word(&update) {
            return Ok(Some(accepted));
        }
        // Where it comes from below its publisher has come there, and nobody else brings what it sent before.
        let leads = |doubled: &mut Doubled| !is_above || doubled.leads(origin, update.src);
        if self.doubled(index).is_some_and(leads) {
            while let Some((from, kept)) =
                self.doubled(index).and_then(|of| of.take_before(update.src, update.series))
            {
                self.pass_late(now, index, from, &kept);
            }
        }
        let Some(doubled) = self.doubled(index).filter(|_| is_above) else {
            return Ok(Some(accepted));
        };
        let may_lead = role != Some(BranchRole::LastPeer);
        match doubled.pass(now, (origin, may_lead), &update) {
            Passage::Open => Ok(Some(accepted)),
            Passage::Waits => Ok(None),
            Passage::Repeated => Err(DropReason::Repeated),
            Passage::NoRoom => Err(DropReason::PendingFull),
        }
    }

    /// Lets through what waited for an update of its publisher that has passed now.
    pub(super) fn release_next(&mut self, now: Time, index: ComtreeIndex, src: Address) {
        while let Some((from, kept)) = self.doubled(index).and_then(|of| of.take_next(now, src)) {
            self.pass_late(now, index, from, &kept);
        }
    }

    fn pass_late(&mut self, now: Time, index: ComtreeIndex, origin: PortIndex, kept: &Kept) {
        let update = kept.update();
        let Some(doubled) = self.doubled(index) else { return };
        if !doubled.pass_late(now, origin, kept) {
            return self.drop_on(update.comtree, DropReason::Repeated);
        }
        let accepted = Accepted { update, index, origin, may_pass: true };
        if let Err(reason) = self.deliver_now(now, accepted) {
            self.drop_on(update.comtree, reason);
            self.undelivered(now, reason, &update);
        }
    }

    fn doubled(&mut self, index: ComtreeIndex) -> Option<&mut Doubled> {
        self.comtrees.get_mut(index).tree.doubled.as_deref_mut()
    }

    /// When [`Relay::advance_doubled`] has something to do.
    pub(super) fn doubled_due(&self) -> Option<Time> {
        let due = |index: &ComtreeIndex| self.comtrees.get(*index).tree.doubled.as_ref()?.due();
        self.overlay.doubled.iter().filter_map(due).min()
    }

    /// Lets through what has waited long enough, and forgets what has passed where nothing can come twice.
    pub(super) fn advance_doubled(&mut self, now: Time) {
        for place in (0..self.overlay.doubled.len()).rev() {
            let index = self.overlay.doubled[place];
            while let Some((from, kept)) = self.doubled(index).and_then(|of| of.take_late(now)) {
                let src = kept.update().src;
                self.pass_late(now, index, from, &kept);
                self.release_next(now, index, src);
            }
            if self.doubled(index).is_none_or(|of| of.is_over(now)) {
                self.comtrees.get_mut(index).tree.doubled = None;
                self.overlay.doubled.swap_remove(place);
            }
        }
    }

    /// A neighbour is a core peer now, or is one no more: so it is on the ways that lead there. The other data threads
    /// hear of it, because they ask no core peer on behalf of another.
    pub(super) fn relabel_routes(&mut self, index: ComtreeIndex, port: PortIndex) {
        let role = self.comtrees.get(index).tree.branch(port).map(|branch| branch.role);
        let leads = match role.is_some_and(BranchRole::is_peer) {
            true => Leads::ToCorePeer,
            false => Leads::OverTree,
        };
        let (siblings, comtree) = (&mut self.siblings, self.comtrees.get(index).id);
        let tell = |to| siblings.tell_route(comtree, to, Some(leads));
        self.overlay.routes.relabel(index, port, leads, tell);
        self.overlay.learned = NOBODY;
    }
}

impl Tree {
    /// Whether what comes over a branch shows which way leads to its source: a next peer's does not, because
    /// somebody else brings the same, and to a last peer nothing is sent.
    pub(crate) fn teaches(&self, port: PortIndex) -> bool {
        !self.branch(port).is_some_and(|branch| branch.role.may_double())
    }
}
