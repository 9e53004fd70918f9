//! What a relay does that leaves a comtree's core: its neighbour in the core becomes its parent, which goes on
//! sending everything until all that is wanted here was asked for (Forest §3.5).

use super::{Notice, Relay};
use crate::index::PortIndex;
use canopy_wire::{Comtree, Time};
use core::time::Duration;

/// After this, what other data threads wanted before is among what the parent is asked.
const HEARD: Duration = Duration::from_millis(100);

impl Relay {
    /// The branch to a neighbour in the core leads to the parent from now on.
    pub(super) fn begin_leaving(&mut self, now: Time, comtree: Comtree, port: PortIndex) {
        self.overlay.leaving.insert(comtree, (port, now + HEARD));
    }

    /// When [`Relay::advance_leaving`] has something to do, as far as only time is lacking.
    pub(super) fn leaving_due(&self) -> Option<Time> {
        let asked = |(comtree, (port, _)): &(&Comtree, &(PortIndex, Time))| {
            self.has_asked_all(**comtree, *port) || !self.is_parent(**comtree, *port)
        };
        self.overlay.leaving.iter().filter(asked).map(|(_, (_, heard))| *heard).min()
    }

    /// Says of which comtrees the parent knows all that is wanted here.
    pub(super) fn advance_leaving(&mut self, now: Time) {
        if self.overlay.leaving.is_empty() {
            return;
        }
        let mut leaving = core::mem::take(&mut self.overlay.leaving);
        leaving.retain(|comtree, (port, heard)| {
            if !self.is_parent(*comtree, *port) {
                return false;
            }
            let is_known = *heard <= now && self.has_asked_all(*comtree, *port);
            if is_known {
                self.note(Notice::ParentSucceeded { comtree: *comtree });
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
