//! Links whose capacity is known, shared by the comtrees whose branches go over them; and comtrees with budgets,
//! shared by their participants.

use super::Relay;
use crate::budget_parts::Wants;
use crate::changes::{BranchId, Refusal};
use crate::thin::Down;
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time};

impl Relay {
    pub(super) fn set_link_capacity(
        &mut self,
        now: Time,
        key: &PublicKey,
        capacity: Down,
    ) -> Result<(), Refusal> {
        let session = self.link_with(key).ok_or(Refusal::UnknownLink)?.session;
        self.thinning.links.set_capacity(session, capacity);
        self.share_links(now);
        Ok(())
    }

    pub(super) fn set_branch_guarantee(
        &mut self,
        now: Time,
        id: &BranchId,
        bits: u64,
    ) -> Result<(), Refusal> {
        let port = self.branch_of(id)?;
        self.thinning.links.set_guarantee(port, bits);
        self.share_links(now);
        Ok(())
    }

    /// When [`Relay::review_shares`] has something to do next.
    pub(super) fn review_due(&self) -> Option<Time> {
        let links = &self.thinning.links;
        let links = links.is_any_shaped().then(|| links.due());
        let comtrees = self.thinning.comtrees.due();
        [links, comtrees, self.budget_parts.due()].into_iter().flatten().min()
    }

    /// Works out now and then what each branch and each participant may be sent.
    pub(super) fn review_shares(&mut self, now: Time) {
        self.thinning.review_comtrees(now);
        self.review_parts(now);
        if !self.links.is_empty() && now >= self.thinning.links.due() {
            self.share_links(now);
        }
    }

    /// Tells the other data threads what is wanted here of comtrees with budgets, if that has changed.
    fn review_parts(&mut self, now: Time) {
        let wanted = |comtree| self.thinning.comtrees.wanted(comtree);
        self.budget_parts.review(now, wanted);
        while let Some(index) = self.budget_parts.next_news() {
            let (comtree, wants) = (self.comtrees.get(index).id, self.budget_parts.own(index));
            // Where there is no room, they are told at the next review.
            if self.siblings.tell_wants(comtree, wants) {
                self.budget_parts.told(index);
                self.set_budget_here(now, index);
            }
        }
    }

    /// Another data thread wants so much of a comtree's budget.
    pub(super) fn hear_of_wants(&mut self, now: Time, comtree: Comtree, thread: u16, wants: Wants) {
        if let Some(index) = self.comtrees.find(comtree)
            && self.budget_parts.hear(index, thread, wants)
        {
            self.set_budget_here(now, index);
        }
    }

    /// Works out what each branch may be sent.
    pub(super) fn share_links(&mut self, now: Time) {
        let mut changed = core::mem::take(&mut self.shares_changed);
        let paths = &self.paths;
        self.thinning.links.review(now, |port| paths.bytes_sent(port), &mut changed);
        for port in changed.drain(..) {
            self.budget_changed(port);
        }
        self.shares_changed = changed;
    }
}
