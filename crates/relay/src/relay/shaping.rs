//! Links whose capacity is known, shared by the comtrees whose branches go over them; and comtrees with budgets,
//! shared by their participants.

use super::Relay;
use crate::changes::{BranchId, Refusal};
use crate::thin::Down;
use canopy_session::PublicKey;
use canopy_wire::Time;

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
        [links, self.thinning.comtrees.due()].into_iter().flatten().min()
    }

    /// Works out now and then what each branch and each participant may be sent.
    pub(super) fn review_shares(&mut self, now: Time) {
        self.thinning.review_comtrees(now);
        if !self.links.is_empty() && now >= self.thinning.links.due() {
            self.share_links(now);
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
