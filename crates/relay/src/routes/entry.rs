//! A route, and how it lies in the table.

use crate::index::{ComtreeIndex, NONE, PortIndex};
use canopy_wire::{Address, Time};
use core::time::Duration;

/// What leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// A branch, or another data thread.
    pub(crate) port: PortIndex,
    /// What is behind it.
    pub(crate) leads: Leads,
}

/// How a way goes on behind a branch, or behind another data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// Over a branch of the tree.
    OverTree,
    /// Over a branch to a core peer.
    ToCorePeer,
    /// To a participant with a portable address, whom the other data thread serves.
    ToParticipant,
}

impl Way {
    /// Whether the branch, here or at the other data thread, is to a core peer.
    pub(crate) fn is_core_peer(self) -> bool {
        self.leads == Leads::ToCorePeer
    }
}

/// The way to an endpoint or to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) comtree: ComtreeIndex,
    /// An endpoint of the relay's own site or of a portable one; or endpoint 0 of another site, for all of
    /// it.
    pub(crate) to: Address,
    pub(crate) way: Way,
    /// For how long nothing has come from there; `None` if another data thread knows.
    pub(crate) quiet_for: Option<Duration>,
}

/// A route as it lies in the table: four to a cache line.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) comtree: ComtreeIndex,
    pub(super) to: Address,
    pub(super) port: PortIndex,
    /// When something came from there last.
    pub(super) heard: Ticks,
    pub(super) leads: Leads,
    /// Whether another data thread knows when: it says when the route ends.
    pub(super) is_told: bool,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// Tenths of a second. They wrap after 109 minutes; a route that has been quiet is looked at long
/// before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticks(pub(super) u16);

impl Ticks {
    pub(super) fn at(time: Time) -> Ticks {
        Ticks((time.as_nanos() / 100_000_000) as u16)
    }

    pub(super) fn since(self, earlier: Ticks) -> Duration {
        Duration::from_millis(100) * u32::from(self.0.wrapping_sub(earlier.0))
    }
}

impl Entry {
    pub(super) fn heard(now: Time, comtree: ComtreeIndex, to: Address, way: Way) -> Entry {
        let Way { port, leads } = way;
        Entry { comtree, to, port, heard: Ticks::at(now), leads, is_told: false }
    }

    pub(super) fn leads(&self, comtree: ComtreeIndex, to: Address) -> bool {
        self.to == to && self.comtree == comtree
    }

    pub(super) fn way(&self) -> Way {
        Way { port: self.port, leads: self.leads }
    }

    /// No route.
    pub(super) const FREE: Entry = Entry {
        comtree: NONE,
        to: Address::UNSPECIFIED,
        port: NONE,
        heard: Ticks(0),
        leads: Leads::OverTree,
        is_told: false,
    };

    pub(super) fn is_free(&self) -> bool {
        self.comtree == NONE
    }

    pub(super) fn route(&self, now: Ticks) -> Route {
        let Entry { comtree, to, heard, is_told, .. } = *self;
        let quiet_for = (!is_told).then(|| now.since(heard));
        Route { comtree, to, way: self.way(), quiet_for }
    }
}
