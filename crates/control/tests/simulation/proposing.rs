//! Links that the controller proposes: relays measure others over ways that are others each time, and
//! some of them are not answered.

use crate::sim::Sim;
use canopy_control::signal::{Measured, Other, Reading};

impl Sim {
    /// Relays that are asked to measure do so.
    pub(crate) fn measure(&mut self) {
        for at in 0..self.relays.len() {
            let asked = self.relays[at].side.as_mut().and_then(|side| side.poll_measure());
            let Some(asked) = asked else { continue };
            let (controller, round) = (asked.controller, asked.round);
            let readings = asked.others.iter().map(|other| self.read(other)).collect();
            if let Some(side) = &mut self.relays[at].side {
                side.measured(Measured { controller, round, readings });
            }
        }
    }

    fn read(&mut self, other: &Other) -> Reading {
        let delay_us = 500 + self.up_to(60_000) as u32;
        let answered = if self.one_in(8) { 0 } else { 4 - self.up_to(3) as u8 };
        Reading { relay: other.relay, delay_us, asked: 4, answered }
    }

    /// The links that the controller has proposed are there, too.
    pub(crate) fn know_proposed(&mut self) {
        let Some(controller) = &self.controller else { return };
        for (link, _) in controller.links().filter(|(link, _)| link.origin.is_proposed()) {
            let place = |id| self.relays.iter().position(|relay| relay.id == id);
            let [Some(from), Some(to)] = link.ends.map(place) else { continue };
            if self.links.iter().all(|(known, ..)| *known != link.id) {
                self.links.push((link.id, [from, to], true));
                self.told.links_proposed += 1;
            }
        }
    }
}
