//! Relays that join meshed cores: an update arrives once at any moment, if nothing fails.

use crate::flooding::{At, check_once, is_doubled};
use crate::sim::{Plan, Sim, branches};
use canopy_control::signal::Role;
use canopy_control::{Applying, Item, LinkId, RelayId};
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// What has passed is known for so long after the last next peer or last peer.
const KNOWN: Duration = Duration::from_secs(2);

fn links_with(item: &Option<Item>, role: Role) -> Vec<LinkId> {
    let Some(Item::Comtree { branches, .. }) = item else { return Vec::new() };
    branches.iter().filter(|of| of.role == role).map(|of| of.link).collect()
}

impl Sim {
    /// A relay has a comtree's branches as they are now.
    pub(crate) fn follow_peers(&mut self, at: usize, comtree: Comtree, applied: &Applying) {
        let before = links_with(&applied.before, Role::NextPeer);
        let peers = links_with(&applied.after, Role::CorePeer);
        let last = links_with(&applied.after, Role::LastPeer);
        let has_joined = !before.is_empty() && before.iter().all(|link| peers.contains(link));
        self.told.joined_mesh += u32::from(has_joined);
        if has_joined || is_doubled(&branches(&self.relays[at], comtree)) || !last.is_empty() {
            self.relays[at].doubled.insert(comtree, self.now);
        }
        if matches!(self.plan, Plan::Calm | Plan::Dying) {
            self.check_passes_once(comtree);
        }
    }

    /// As long as relays may bring something twice, an update of each that has members arrives once at all such.
    fn check_passes_once(&self, comtree: Comtree) {
        let now = self.now;
        let is_late = |last: &Time| *last + KNOWN >= now;
        let of = |relay: &crate::relays::SimRelay| {
            let branches = branches(relay, comtree);
            let late = relay.doubled.get(&comtree).is_some_and(is_late);
            let passes_once = is_doubled(&branches) || late;
            (relay.id, At { branches, passes_once })
        };
        let relays: BTreeMap<RelayId, At> = self.relays.iter().map(of).collect();
        if !relays.values().any(|at| is_doubled(&at.branches)) {
            return;
        }
        let has_members = |relay: &&crate::relays::SimRelay| relay.has_members(comtree);
        let with: Vec<RelayId> = self.relays.iter().filter(has_members).map(|of| of.id).collect();
        if let Err(why) = check_once(&relays, &with) {
            panic!("on comtree {}: {why}", comtree.0);
        }
    }
}
