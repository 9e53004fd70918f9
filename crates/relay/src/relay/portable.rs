//! Portable addresses: who has one may be at any relay of the comtree, so no site says which way leads
//! there. What is known of it is soft state, as of all ways; but the data threads of a relay tell each
//! other who is here, so that they agree whose name no branch may use.

use super::Relay;
use super::overlay::NOBODY;
use crate::index::ComtreeIndex;
use crate::ports::Peer;
use crate::routes::Leads;
use canopy_wire::{Address, Comtree};

impl Relay {
    /// Somebody has come with an address, or has left it: the other data threads are told, if it is
    /// portable. For they may know a way that leads elsewhere.
    pub(super) fn tell_of_portable(&mut self, comtree: Comtree, address: Address) {
        // A branch may have brought it last.
        self.overlay.learned = NOBODY;
        if address.is_portable() && self.siblings.threads() > 1 {
            self.overlay.portable_to_tell.insert((comtree, address));
            self.tell_portable();
        }
    }

    /// Tells the other data threads who with a portable address is here, as far as they do not know.
    pub(super) fn tell_portable(&mut self) {
        while let Some((comtree, address)) = self.overlay.portable_to_tell.first().copied() {
            let is_here = self.ports.find(comtree, address).is_some();
            let leads = is_here.then_some(Leads::ToParticipant);
            if !self.siblings.tell_route(comtree, address, leads) {
                // They are slow; the next flush tries again.
                return;
            }
            self.overlay.portable_to_tell.pop_first();
        }
    }

    /// Whether another data thread serves somebody with this address, as far as is known.
    pub(super) fn is_at_sibling(&self, index: ComtreeIndex, address: Address) -> bool {
        let way = self.overlay.routes.find(index, address);
        way.is_some_and(|way| way.leads == Leads::ToParticipant)
    }

    /// The portable addresses of a comtree's participants on this data thread.
    pub(super) fn portable_here(&self, index: ComtreeIndex) -> Vec<Address> {
        let ports = (0..self.ports.high_water()).filter_map(|port| self.ports.get(port));
        let of_comtree = ports.filter(|port| port.comtree_index == index);
        let participants = of_comtree.filter(|port| matches!(port.peer, Peer::Participant(_)));
        participants.map(|port| port.address).filter(|address| address.is_portable()).collect()
    }
}
