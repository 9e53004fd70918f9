//! What a data thread remembers of other relays, beside their links and the branches of comtrees.

use super::downstream::SubscribeWindow;
use super::leaving::Leaving;
use super::upstream::Upstream;
use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::routes::Routes;
use canopy_session::SessionIndex;
use canopy_wire::{Address, Comtree, Group, Level, Tag, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Before the first source was learned.
pub(super) const NOBODY: (PortIndex, Address) = (NONE, Address::UNSPECIFIED);

/// What a neighbour was asked while it was a comtree's parent. It may be that again before its link has new keys, and
/// remembers what has not expired.
#[derive(Default)]
pub(super) struct LastAsked {
    /// The number of the last packet.
    pub(super) sequence: u32,
    /// What was asked for, and up to which level.
    pub(super) groups: BTreeMap<Group, Level>,
    /// When that has expired there.
    pub(super) until: Time,
}

/// What is remembered of other relays.
pub(super) struct Overlay {
    pub(super) routes: Routes,
    /// The branch and the source that were learned last.
    pub(super) learned: (PortIndex, Address),
    pub(super) upstreams: Vec<Upstream>,
    /// By link and comtree that had a parent there: what that was asked.
    pub(super) last_asked: BTreeMap<(SessionIndex, Comtree), LastAsked>,
    /// By branch.
    pub(super) windows: BTreeMap<PortIndex, SubscribeWindow>,
    /// Comtrees of which the parent is being succeeded.
    pub(super) successions: Vec<ComtreeIndex>,
    /// Comtrees of which core peers may bring the same.
    pub(super) doubled: Vec<ComtreeIndex>,
    /// Comtrees of which the relay leaves the core.
    pub(super) leaving: BTreeMap<Comtree, Leaving>,
    /// Other data threads do not know yet which branches are here.
    pub(super) reach_to_tell: bool,
    /// Portable addresses with which somebody has come or gone here, and the other data threads do not
    /// know yet. Who comes is let in at a rate, and all that is here is told at the next flush with room.
    pub(super) portable_to_tell: BTreeSet<(Comtree, Address)>,
}

impl Overlay {
    pub(super) fn new(max_routes: u32, table_key: &Tag) -> Overlay {
        Overlay {
            routes: Routes::new(max_routes, table_key),
            learned: NOBODY,
            upstreams: Vec::new(),
            last_asked: BTreeMap::new(),
            windows: BTreeMap::new(),
            successions: Vec::new(),
            doubled: Vec::new(),
            leaving: BTreeMap::new(),
            reach_to_tell: false,
            portable_to_tell: BTreeSet::new(),
        }
    }
}
