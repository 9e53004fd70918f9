//! Who may be sent less than what it wants is not sent more.

use super::config::OverlaySabotage;
use super::world::World;
use crate::network::Direction;
use crate::pacing::Amount;
use canopy_relay::Change;
use canopy_session::Session;
use canopy_wire::Address;
use std::net::SocketAddr;

impl World<'_> {
    /// A participant has an address: it may be sent so much only, if it is one of those.
    pub(crate) fn limit(&mut self, number: usize, address: Address) {
        let Some(budget) = self.scenario.budgets[number] else { return };
        let (ip_port, relay) = (self.participants[number].ip_port, self.participants[number].relay);
        let comtree = self.participants[number].comtree;
        let change = Change::SetBudget { comtree, address, budget };
        let is_kept_back = self.config.sabotage == Some(OverlaySabotage::Unlimited);
        if is_kept_back || self.machines[relay].set_budget(self.now, &change) {
            self.pacing.limit(self.now, ip_port, &budget);
        } else {
            self.pacing.forget(ip_port);
        }
    }

    /// A relay has opened a session, perhaps for a copy of what somebody said that has one: it knows of no budget.
    pub(crate) fn limit_again(&mut self, relay: usize) {
        for number in 0..self.participants.len() {
            let Some(budget) = self.scenario.budgets[number] else { continue };
            let participant = &self.participants[number];
            let session = participant.session.as_ref();
            let address = session.map_or(Address::UNSPECIFIED, Session::address);
            let is_kept_back = self.config.sabotage == Some(OverlaySabotage::Unlimited);
            if participant.relay == relay && address != Address::UNSPECIFIED && !is_kept_back {
                let comtree = participant.comtree;
                let change = Change::SetBudget { comtree, address, budget };
                self.machines[relay].set_budget(self.now, &change);
            }
        }
    }

    /// A relay sends a datagram to somebody with a budget: no more than that holds. Returns whether it goes out.
    pub(crate) fn sends_limited(&mut self, number: usize, to: SocketAddr, bytes: &[u8]) -> bool {
        let updates = self.keys.updates_in(number, Direction::Down, bytes);
        if updates.is_empty() {
            return true;
        }
        let amount = Amount { bytes: bytes.len() as u64, updates: updates.len() as u64 };
        let sends = self.pacing.sends(self.now, to, amount);
        if let Err(what) = sends.and_then(|()| self.pacing.check_all(self.now, to)) {
            self.model.broken(self.now, || what);
        }
        let is_first = |id: &u64| self.model.publisher_of(*id) == Some(0);
        self.config.sabotage != Some(OverlaySabotage::Starve) || !updates.iter().any(is_first)
    }
}
