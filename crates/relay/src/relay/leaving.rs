//! What a relay does that leaves a comtree's core: a neighbour becomes its parent, which goes on
//! sending everything until all that is wanted here was asked for (Forest §3.5).

use super::{Notice, Relay};
use crate::index::PortIndex;
use canopy_wire::{Comtree, Time};
use core::time::Duration;

/// After this, what other data threads wanted before is among what the parent is asked.
const HEARD: Duration = Duration::from_millis(100);

/// A comtree's parent that was none before, and is asked for what is wanted here.
pub(super) struct Leaving {
    port: PortIndex,
    /// Once other data threads were heard.
    heard: Time,
    /// Whether it was called a next parent.
    as_next: bool,
}

impl Relay {
    /// The branch to a neighbour leads to the parent from now on, where the relay had none.
    pub(super) fn begin_leaving(
        &mut self,
        now: Time,
        comtree: Comtree,
        port: PortIndex,
        as_next: bool,
    ) {
        let leaving = Leaving { port, heard: now + HEARD, as_next };
        self.overlay.leaving.insert(comtree, leaving);
    }

    /// When [`Relay::advance_leaving`] has something to do, as far as only time is lacking.
    pub(super) fn leaving_due(&self) -> Option<Time> {
        let asked = |(comtree, leaving): &(&Comtree, &Leaving)| {
            self.has_asked_all(**comtree, leaving.port) || !self.is_parent(**comtree, leaving.port)
        };
        self.overlay.leaving.iter().filter(asked).map(|(_, leaving)| leaving.heard).min()
    }

    /// Says of which comtrees the parent knows all that is wanted here.
    pub(super) fn advance_leaving(&mut self, now: Time) {
        if self.overlay.leaving.is_empty() {
            return;
        }
        let mut leaving = core::mem::take(&mut self.overlay.leaving);
        leaving.retain(|comtree, Leaving { port, heard, as_next }| {
            if !self.is_parent(*comtree, *port) {
                return false;
            }
            let is_known = *heard <= now && self.has_asked_all(*comtree, *port);
            if is_known {
                self.note(match as_next {
                    true => Notice::ParentSucceeded { comtree: *comtree },
                    false => Notice::ParentAsked { comtree: *comtree },
                });
            }
            !is_known
        });
        self.overlay.leaving = leaving;
    }

    /// Whether a branch is still that of the comtree's parent.
    fn is_parent(&self, comtree: Comtree, port: PortIndex) -> bool {
        let index = self.comtrees.find(comtree);
        index.is_some_and(|index| self.comtrees.get(index).tree.parent() == Some(port))
    }
}
