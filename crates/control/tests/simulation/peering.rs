//! Relays that join meshed cores and leave them: an update arrives once at any moment, if nothing fails.

use crate::flooding::{At, check_once, has_two_ways, is_doubled};
use crate::relays::SimRelay;
use crate::sim::{Plan, Sim, Told, branches, rate, relay_of_number};
use canopy_control::signal::Role;
use canopy_control::{
    Applying, Core, Downlink, Enter, Item, LinkId, Mode, Name, NewWorld, RelayId,
};
use canopy_plan::Limits;
use canopy_wire::{Comtree, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// What has passed is known for so long after the last next peer or last peer.
const KNOWN: Duration = Duration::from_secs(2);

/// After this, relays have what another rule for the core has brought, also if the controller has died meanwhile.
const ROLLED_OUT: Duration = Duration::from_secs(15);

fn links_with(item: &Option<Item>, role: Role) -> Vec<LinkId> {
    let Some(Item::Comtree { branches, .. }) = item else { return Vec::new() };
    branches.iter().filter(|of| of.role == role).map(|of| of.link).collect()
}

impl Sim {
    /// A relay has a comtree's branches as they are now.
    pub(crate) fn follow_peers(&mut self, at: usize, comtree: Comtree, applied: &Applying) {
        let before = links_with(&applied.before, Role::NextPeer);
        let peers = links_with(&applied.after, Role::CorePeer);
        let has_joined = !before.is_empty() && before.iter().all(|link| peers.contains(link));
        self.told.joined_mesh += u32::from(has_joined);
        let was_last = links_with(&applied.before, Role::LastPeer);
        let turns = !links_with(&applied.after, Role::NextParent).is_empty();
        self.told.left_mesh += u32::from(!was_last.is_empty() && turns);
        let has_doubled = has_joined || !was_last.is_empty();
        if has_doubled || is_doubled(&branches(&self.relays[at], comtree)) {
            self.relays[at].doubled.insert(comtree, self.now);
        }
        if matches!(self.plan, Plan::Calm | Plan::Dying) {
            self.check_passes_once(comtree);
        }
    }

    /// As long as relays may bring something twice, an update of each that has members arrives once at all such.
    fn check_passes_once(&mut self, comtree: Comtree) {
        let now = self.now;
        let is_late = |last: &Time| *last + KNOWN >= now;
        let of = |relay: &SimRelay| {
            let branches = branches(relay, comtree);
            let late = relay.doubled.get(&comtree).is_some_and(is_late);
            let passes_once = has_two_ways(&branches) || late;
            (relay.id, At { branches, passes_once })
        };
        let relays: BTreeMap<RelayId, At> = self.relays.iter().map(of).collect();
        if !relays.values().any(|at| is_doubled(&at.branches)) {
            _ = self.remade.extract_if(.., |_, since| *since + ROLLED_OUT < now).count();
            return;
        }
        if self.remade.contains_key(&comtree) {
            return;
        }
        let has_members = |relay: &&SimRelay| relay.has_members(comtree);
        let with: Vec<RelayId> = self.relays.iter().filter(has_members).map(|of| of.id).collect();
        if let Err(why) = check_once(&relays, &with) {
            panic!("on comtree {}: {why}", comtree.0);
        }
    }
}

/// Relays 0, 1 and 2 are a mesh, and 3 and 4 have links with 1 and 2. Those two get the one between them, and 0 is
/// outside of a larger core then; while members come and go, and the controller dies or not.
pub(crate) fn another_core(seed: u64, plan: Plan) -> Told {
    // No links are proposed beside those.
    let mut sim = Sim::empty(3 * seed, plan);
    for number in 0..5 {
        let controller = sim.controller.as_mut().unwrap();
        let id = controller.register(sim.now, relay_of_number(number)).unwrap();
        sim.relays.push(SimRelay::new(id));
    }
    for ends in [[0, 1], [1, 2], [0, 2], [1, 3], [2, 3], [1, 4], [2, 4]] {
        sim.join_well(ends);
    }
    let limits = Limits { send: rate(5_000), receive: rate(20_000) };
    let new = NewWorld {
        name: Name::new("w").unwrap(),
        comtrees: 1,
        channels: Vec::new(),
        levels: 1,
        mode: Mode::Immediate,
        downlink: Downlink::Member,
        default: limits,
        core: Core::Mesh,
        sharing: canopy_control::Sharing::default(),
    };
    sim.controller.as_mut().unwrap().create_world(new).unwrap();
    for at in [1, 0, 2, 3, 4] {
        sim.settle();
        sim.renew_all();
        sim.enter_at(at as u8, at);
    }
    sim.settle();
    assert_eq!(sim.mesh(), 3, "the smaller core");
    sim.join_well([3, 4]);
    sim.is_clear = false;
    for step in 0..500 {
        if step % 40 == 0 {
            sim.renew_all();
            let (owner, at) = (10 + sim.up_to(5) as u8, sim.up_to(5));
            sim.enter_at(owner, at);
        }
        sim.die_halfway();
        let pause = Duration::from_millis(1 + sim.up_to(120) as u64);
        sim.advance(sim.now + pause);
        assert_eq!(sim.controller.as_ref().unwrap().audit(), Ok(()));
    }
    for _ in 0..3 {
        sim.renew_all();
        sim.heal();
    }
    sim.check_settled();
    assert_eq!(sim.mesh(), 6, "the larger core");
    sim.told
}

impl Sim {
    /// Joins two relays by a link with room for all that is sent.
    fn join_well(&mut self, ends: [usize; 2]) {
        let of = ends.map(|end| self.relays[end].id);
        let controller = self.controller.as_mut().unwrap();
        let link = controller.add_link(of, rate(2_000_000), 1_000).unwrap();
        self.links.push((link, ends, true));
        self.report_links();
    }

    fn enter_at(&mut self, owner: u8, at: usize) {
        let (world, measured) = (Name::new("w").unwrap(), vec![(self.relays[at].id, 1)]);
        let ask = Enter::new(world, [owner; 16], measured);
        if let Some(controller) = &mut self.controller {
            controller.enter(self.now, &ask).unwrap();
        }
    }

    /// How many links the meshed core has.
    fn mesh(&self) -> usize {
        let controller = self.controller.as_ref().unwrap();
        let world = controller.world(&Name::new("w").unwrap()).unwrap();
        controller.mesh(world.comtrees[0]).len()
    }
}
