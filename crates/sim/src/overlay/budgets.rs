//! Participants that may be sent less than what they want: what they may be sent, and that they are not sent more.

use super::config::{OverlayConfig, OverlaySabotage};
use super::scenario::Scenario;
use super::world::World;
use crate::network::Direction;
use crate::pacing::Amount;
use crate::scenario::{Stream, stream};
use canopy_relay::{Budget, Budgets, Change};
use canopy_session::Session;
use canopy_wire::Address;
use rand::RngExt;
use std::net::SocketAddr;
use std::time::Duration;

/// How long an update waits for such a participant at most: all that can wait is sent in less.
pub(crate) const WAITS: Duration = Duration::from_millis(4500);
/// In which time a budget holds an update of every flow.
const ALL_FLOWS: u64 = 2;
/// What carries an update, in bytes.
const OVERHEAD: u64 = 40;

/// Whether some participants have budgets: where links are shaped in half of the runs, and otherwise in few, for runs
/// take longer in which much is said.
pub(crate) fn is_drawn(config: &OverlayConfig, is_shaped: bool) -> bool {
    let share = if is_shaped { 0.5 } else { 0.1 };
    let is_drawn = stream(config.seed, Stream::Budgets).random_bool(share);
    let is_free = config.sabotage.is_none() && config.roles_change != Some(true);
    config.budgets.unwrap_or(is_drawn && is_free)
}

/// Half of the participants may be sent either of two amounts, so that there are several of one mind. A budget holds an
/// update of each flow in [`ALL_FLOWS`] seconds, and besides what goes first because it is for one participant's eyes.
pub(crate) fn draw(seed: u64, scenario: &Scenario) -> Vec<Option<Budget>> {
    let rng = &mut stream(seed, Stream::Budgets);
    // Those before tell whether there are any.
    rng.set_word_pos(1 << 20);
    let habits = &scenario.habits;
    let speakers = scenario.participants.div_ceil(scenario.peaceful().len()) as u64;
    let each_second =
        speakers * u64::from(habits.groups) / ALL_FLOWS + scenario.unicasts_a_second() + 1;
    let mut amount = || {
        let updates = each_second.max(4) * rng.random_range(10..20) / 10;
        let down_bits = updates * (habits.longest as u64 + OVERHEAD) * 8;
        match rng.random_bool(0.7) {
            true => Budget { down_bits, ..Budgets::default().member },
            false => Budget { down_packets: updates, ..Budgets::default().member },
        }
    };
    let amounts = [amount(), amount()];
    let limited = |_| rng.random_bool(0.5).then(|| amounts[rng.random_range(0..2)]);
    (0..scenario.participants).map(limited).collect()
}

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
