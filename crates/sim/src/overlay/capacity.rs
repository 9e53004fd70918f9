//! What happens where links are shaped: relays are told their capacities, and no more may leave over them.

use super::config::OverlaySabotage;
use super::flooded::Flooded;
use super::lately::WINDOW;
use super::machine::key_of;
use super::queue::Step;
use super::shape::Hop;
use super::shaping::Shaped;
use super::world::World;
use crate::network::Direction;
use canopy_relay::{Change, Down};
use canopy_wire::SAFE_DATAGRAM;
use std::time::Duration;

/// No [`WINDOW`] brings more than the capacity and a datagram, from so long on after a link was shaped: before, a
/// relay does not know yet what its branches are offered, and what control packets take.
const LEARNS: Duration = Duration::from_millis(250);

impl World<'_> {
    pub(crate) fn plan_shaping(&mut self) {
        for number in 0..self.scenario.shaped.len() {
            let Shaped { from, until, .. } = self.scenario.shaped[number];
            self.at(from, Step::Shape(number, true));
            self.at(until, Step::Shape(number, false));
        }
    }

    /// A relay is told what it may send over a link, or that it may send everything.
    pub(crate) fn shape(&mut self, number: usize, begins: bool) {
        let Shaped { link, direction, capacity, .. } = self.scenario.shaped[number];
        if self.config.sabotage == Some(OverlaySabotage::Unshaped) {
            return;
        }
        let [a, b] = self.scenario.links.ends()[link];
        let (relay, other) = if direction == Direction::Up { (a, b) } else { (b, a) };
        let (thread, capacity) =
            (self.scenario.calls[link].0, if begins { capacity } else { Down::NONE });
        let change = Change::SetLinkCapacity { key: key_of(other), thread, capacity };
        let refused = self.machines[relay].take(self.now, &change);
        self.changed(relay, refused);
    }

    /// A link is up anew at a relay: that learns of it from the beginning.
    pub(crate) fn begins_anew(&mut self, hop: Hop) {
        for (one, lately) in self.scenario.shaped.iter().zip(&mut self.lately) {
            if (one.link, one.direction) == hop {
                lately.begun = self.now;
            }
        }
    }

    /// A relay sends over a link: if that is shaped, no more than it may. Where somebody changes subscriptions thousands of
    /// times a second, what tells of them takes up to a half of the link more, and two datagrams, or what a slow link bears
    /// in twice that time.
    pub(crate) fn sends_shaped(&mut self, hop: Hop, bytes: &[u8]) {
        let is_it = |one: &Shaped| (one.link, one.direction) == hop;
        let Some(number) = self.scenario.shaped.iter().position(is_it) else { return };
        let (link, direction) = hop;
        let wire = self.scenario.wire_of_link(link);
        let carried = self.keys.updates_in(wire, direction, bytes);
        self.model.sent_over(self.now, hop, &carried);
        let Shaped { capacity, from, until, .. } = self.scenario.shaped[number];
        let sent = self.lately[number].sends(self.now, bytes.len());
        let bears = capacity.bits as usize * WINDOW.as_millis() as usize / 8000;
        let flooded = self.scenario.flooded.as_ref();
        let asks = if flooded.is_some_and(Flooded::changes_subscriptions) {
            bears / 2 + 2 * bears.min(SAFE_DATAGRAM)
        } else {
            0
        };
        let most = bears + SAFE_DATAGRAM + asks;
        let from = from.max(self.lately[number].begun);
        if (from + LEARNS..until).contains(&self.now) && sent > most {
            let what =
                format!("{sent} bytes left in {WINDOW:?} over link {link}, where {most} may");
            self.model.broken(self.now, || what);
        }
    }
}
