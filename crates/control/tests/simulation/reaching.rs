//! Relays that the controller does not hear: others are asked whether links lead there, and say what relays tell each other.

use crate::sim::Sim;
use canopy_control::RelayId;
use std::collections::BTreeSet;

impl Sim {
    /// Relays that are asked after others answer, as far as they know of them by their links.
    pub(crate) fn answer_after(&mut self) {
        for at in 0..self.relays.len() {
            let asked = self.relays[at].side.as_mut().and_then(|side| side.poll_asked_after());
            let (Some(asked), Some(controller)) = (asked, &self.controller) else { continue };
            let keys = self.reached_from(at).into_iter().filter_map(|id| controller.relay_of(id));
            let keys: Vec<[u8; 32]> =
                keys.map(|relay| relay.key).filter(|key| asked.contains(key)).collect();
            self.told.asked_after += asked.len() as u32;
            self.told.vouched += keys.len() as u32;
            if let Some(side) = &mut self.relays[at].side {
                side.set_reachable(&keys);
            }
        }
    }

    /// To which relays links lead from one, over relays that run.
    fn reached_from(&self, at: usize) -> BTreeSet<RelayId> {
        let (mut reached, mut next) = (BTreeSet::from([at]), vec![at]);
        while let Some(at) = next.pop() {
            for (_, ends, is_up) in &self.links {
                let other = match *ends {
                    [one, other] if one == at => other,
                    [other, one] if one == at => other,
                    _ => continue,
                };
                if *is_up && self.relays[other].side.is_some() && reached.insert(other) {
                    next.push(other);
                }
            }
        }
        reached.into_iter().map(|at| self.relays[at].id).collect()
    }
}
