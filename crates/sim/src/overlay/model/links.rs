//! Links that a relay finds down: as broken as one that is cut, until they are up on both sides again.

use super::{Fault, Model};
use crate::network::Direction;
use crate::overlay::scenario::Element;
use canopy_wire::Time;

/// Whether a link is up, as the relays on its two sides have said.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    up: [bool; 2],
    /// The number in [`Model::faults`] of what is broken since one of them found it down.
    broken: Option<usize>,
}

impl Model {
    /// A relay says that a link is up, or down. `side` is the direction in which it sends.
    pub(crate) fn link_stands(&mut self, now: Time, link: usize, side: Direction, is_up: bool) {
        let standing = &mut self.standing[link];
        standing.up[usize::from(side == Direction::Down)] = is_up;
        let is_whole = standing.up == [true; 2];
        match standing.broken {
            Some(fault) if is_whole => {
                standing.broken = None;
                self.faults[fault].until = now + self.patience.recover;
            }
            None if !is_up => self.find_lost(now, link),
            _ => {}
        }
    }

    /// A relay has stopped: it does not say that its links are down.
    pub(super) fn links_stopped(&mut self, relay: usize) {
        let ends = self.scenario.links.ends().iter();
        for (standing, [a, b]) in self.standing.iter_mut().zip(ends) {
            standing.up[0] &= *a != relay;
            standing.up[1] &= *b != relay;
        }
    }

    fn find_lost(&mut self, now: Time, link: usize) {
        let [a, b] = self.scenario.links.ends()[link];
        let elements = [Element::Link(link), Element::Relay(a), Element::Relay(b)];
        let is_explained = elements.into_iter().any(|one| self.was_broken(one, now, now));
        self.standing[link].broken = Some(self.faults.len());
        let until = self.scenario.end;
        self.faults.push(Fault { element: Element::Link(link), from: now, until });
        if is_explained {
            return;
        }
        self.tally.links_lost += 1;
        if !self.scenario.loses() {
            let what = format!("the link of relays {a} and {b} is down although nothing is lost");
            self.broken(now, || what);
        }
    }
}
