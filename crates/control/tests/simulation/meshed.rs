//! Traffic over a meshed core, against what the controller says that it has reserved (federated games §3.1).

use canopy_control::{Controller, LinkId, PeerLink, RelayId, TreeHop};
use canopy_plan::Limits;
use canopy_wire::Comtree;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

/// A link, and the relay that sends over it.
type Way = (LinkId, RelayId);

struct Traffic {
    hops: Vec<TreeHop>,
    mesh: Vec<PeerLink>,
    core: BTreeSet<RelayId>,
    left: Vec<Limits>,
    loads: BTreeMap<Way, f64>,
}

/// Random traffic, and then as much as each side of the mesh may send at all.
pub(crate) fn check(
    controller: &Controller,
    comtree: Comtree,
    limits: &[Limits],
    rng: &mut ChaCha8Rng,
) {
    let reserved = reserved(controller, comtree);
    for _ in 0..8 {
        let mut traffic = Traffic::new(controller, comtree, limits);
        traffic.fill(rng);
        for (way, load) in &traffic.loads {
            assert!(reserved.get(way).is_some_and(|bits| load <= bits), "{way:?}: {load}");
        }
    }
    let mut traffic = Traffic::new(controller, comtree, limits);
    for node in 0..traffic.hops.len() {
        let bits = traffic.left[node].send.bits;
        traffic.send(node, &[], bits);
    }
    for PeerLink { ends, link } in traffic.mesh {
        for way in ends.map(|from| (link, from)) {
            assert_eq!(traffic.loads.get(&way), reserved.get(&way), "no bit too many: {way:?}");
        }
    }
}

/// What is reserved each way, bits a second.
fn reserved(controller: &Controller, comtree: Comtree) -> BTreeMap<Way, f64> {
    let mut reserved = BTreeMap::new();
    for at in controller.explain(comtree).unwrap().relays {
        for link in at.above.iter().chain(&at.peers) {
            reserved.insert((link.link, at.relay), link.up.bits);
            reserved.insert((link.link, link.relay), link.down.bits);
        }
    }
    reserved
}

impl Traffic {
    fn new(controller: &Controller, comtree: Comtree, limits: &[Limits]) -> Traffic {
        let (hops, mesh) = (controller.tree(comtree), controller.mesh(comtree));
        let root = hops.first().map(|hop| hop.relay);
        let core = mesh.iter().flat_map(|peers| peers.ends).chain(root).collect();
        Traffic { hops, mesh, core, left: limits.to_vec(), loads: BTreeMap::new() }
    }

    /// The ways from a relay up to its relay of the core, and that relay; `down` says that they are taken
    /// from there.
    fn to_core(&self, from: RelayId, down: bool) -> (Vec<Way>, RelayId) {
        let (mut ways, mut at) = (Vec::new(), from);
        while !self.core.contains(&at) {
            let hop = self.hops.iter().find(|hop| hop.relay == at).unwrap();
            let (above, link) = hop.above.expect("a way to the core");
            ways.push((link, if down { above } else { at }));
            at = above;
        }
        (ways, at)
    }

    /// An update goes to the core, from there to all of it, and down to whoever has subscribed: over each
    /// way once. Below its own relay of the core it turns where the way down parts.
    fn send(&mut self, from: usize, to: &[usize], bits: f64) {
        let relay = self.hops[from].relay;
        let (up, entered) = self.to_core(relay, false);
        let mut ways: BTreeSet<Way> = up.iter().copied().collect();
        for peers in &self.mesh {
            ways.extend(peers.other(entered).map(|_| (peers.link, entered)));
        }
        let climbed: Vec<LinkId> = up.iter().map(|(link, _)| *link).collect();
        for to in to {
            let (down, _) = self.to_core(self.hops[*to].relay, true);
            ways.extend(down.into_iter().filter(|(link, _)| !climbed.contains(link)));
            self.left[*to].receive.bits -= bits;
        }
        self.left[from].send.bits -= bits;
        ways.into_iter().for_each(|way| *self.loads.entry(way).or_default() += bits);
    }

    fn fill(&mut self, rng: &mut ChaCha8Rng) {
        let nodes = self.hops.len();
        for _ in 0..nodes * 12 {
            let from = rng.random_range(0..nodes);
            let to = (0..nodes).filter(|_| rng.random_bool(0.5)).collect::<Vec<_>>();
            let has_room = |to: &usize| self.left[*to].receive.bits > 0.0;
            let to: Vec<usize> = to.into_iter().filter(has_room).collect();
            let receive = to.iter().map(|to| self.left[*to].receive.bits);
            let bits = receive.fold(self.left[from].send.bits, f64::min);
            self.send(from, &to, bits);
        }
    }
}
