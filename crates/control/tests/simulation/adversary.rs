//! Traffic that wants to overflow: whatever endpoints send within their limits, and whoever they
//! send it to, what was reserved carries it (Forest §3.4.2).

use crate::reference::{capacities, capacities_by, limits, rule};
use crate::relays::SimRelay;
use crate::sim::{branches, relay_of};
use canopy_control::signal::{Branch, Role};
use canopy_control::{Controller, Core, Item, LinkId, RelayId, TreeHop};
use canopy_plan::{Capacity, CoreRule, Limits, Tree};
use canopy_wire::Comtree;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};

/// What traffic loads, by the node below a link: up and down.
struct Loads<'a> {
    parents: Vec<Option<usize>>,
    core: Vec<bool>,
    left: Vec<Limits>,
    up: Vec<f64>,
    down: Vec<f64>,
    hops: &'a [TreeHop],
}

/// Random traffic on every comtree, of several kinds, each until nobody can send or receive more.
pub(crate) fn check(controller: &Controller, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for world in controller.worlds() {
        for comtree in &world.comtrees {
            let hops = controller.tree(*comtree);
            let limits = limits(controller, *comtree, &hops);
            if world.core == Core::Mesh {
                crate::meshed::check(controller, *comtree, &limits, &mut rng);
                continue;
            }
            let reserved = capacities(&hops, &world.core, &limits);
            for _ in 0..8 {
                let mut loads = Loads::new(&hops, &world.core, &limits);
                loads.fill(&mut rng);
                loads.check(&reserved);
            }
            attack_each_link(&hops, &world.core, &limits, &reserved);
        }
    }
}

impl Loads<'_> {
    fn new<'a>(hops: &'a [TreeHop], core: &Core, limits: &[Limits]) -> Loads<'a> {
        let node = |relay| hops.iter().position(|hop| hop.relay == relay).unwrap();
        let parents: Vec<Option<usize>> =
            hops.iter().map(|hop| hop.above.map(|(above, _)| node(above))).collect();
        let core = if hops.is_empty() { Vec::new() } else { core_of(&parents, core) };
        let zeros = vec![0.0; hops.len()];
        Loads { parents, core, left: limits.to_vec(), up: zeros.clone(), down: zeros, hops }
    }

    /// The links of a path, each by the node below and whether it is taken up.
    fn path(&self, from: usize, to: usize) -> Vec<(usize, bool)> {
        let way = |mut node: usize| {
            let mut way = vec![node];
            while let Some(above) = self.parents[node] {
                way.push(above);
                node = above;
            }
            way
        };
        let (from, to) = (way(from), way(to));
        let shared = |node: &usize, other: &[usize]| other.contains(node);
        let up = from.iter().filter(|node| !shared(node, &to)).map(|node| (*node, true));
        up.chain(to.iter().filter(|node| !shared(node, &from)).map(|node| (*node, false))).collect()
    }

    /// An update for a group goes to the core, to all of it, and to whoever has subscribed: each
    /// link that leads to one of them bears it once.
    fn send(&mut self, from: usize, to: &[usize], bits: f64) {
        let core: Vec<usize> = (0..self.core.len()).filter(|node| self.core[*node]).collect();
        let mut links: Vec<(usize, bool)> =
            core.iter().chain(to).flat_map(|to| self.path(from, *to)).collect();
        links.sort_unstable();
        links.dedup();
        for (node, is_up) in links {
            let load = if is_up { &mut self.up } else { &mut self.down };
            load[node] += bits;
        }
        self.left[from].send.bits -= bits;
        to.iter().for_each(|to| self.left[*to].receive.bits -= bits);
    }

    fn fill(&mut self, rng: &mut ChaCha8Rng) {
        let nodes = self.left.len();
        for _ in 0..nodes * 12 {
            let from = rng.random_range(0..nodes);
            let share = rng.random_range(0..3);
            let to: Vec<usize> = (0..nodes).filter(|_| rng.random_range(0..3) >= share).collect();
            let to: Vec<usize> =
                to.into_iter().filter(|to| self.left[*to].receive.bits > 0.0).collect();
            let room =
                to.iter().map(|to| self.left[*to].receive.bits).fold(f64::INFINITY, f64::min);
            let bits = self.left[from].send.bits.min(room);
            let bits = if rng.random_range(0..2) == 0 { bits } else { (bits / 2.0).floor() };
            self.send(from, &to, bits);
        }
    }

    fn check(&self, reserved: &[Capacity]) {
        for (node, capacity) in reserved.iter().enumerate() {
            let fits = self.up[node] <= capacity.up.bits && self.down[node] <= capacity.down.bits;
            assert!(fits, "below {:?}: {} and {}", self.hops[node], self.up[node], self.down[node]);
        }
    }
}

fn core_of(parents: &[Option<usize>], core: &Core) -> Vec<bool> {
    rule(core).on(&Tree::from_parents(parents).unwrap())
}

/// The worst for each link: everyone on one side sends all it may to the other, until those are full.
/// That needs every bit that is reserved, so nothing is reserved that could not be used.
fn attack_each_link(hops: &[TreeHop], core: &Core, limits: &[Limits], reserved: &[Capacity]) {
    for link in 0..hops.len() {
        let mut loads = Loads::new(hops, core, limits);
        if loads.parents[link].is_none() {
            continue;
        }
        let is_below = |node: usize| loads.path(node, link).iter().all(|(_, up)| *up);
        let (below, above): (Vec<usize>, Vec<usize>) =
            (0..hops.len()).partition(|node| is_below(*node));
        for (from, to) in [(&below, &above), (&above, &below)] {
            let goes_to_core = to.iter().any(|node| loads.core[*node]);
            for sender in from {
                for receiver in to {
                    let [send, receive] =
                        [loads.left[*sender].send.bits, loads.left[*receiver].receive.bits];
                    loads.send(*sender, &[*receiver], send.min(receive));
                }
                if goes_to_core {
                    loads.send(*sender, &[], loads.left[*sender].send.bits);
                }
            }
        }
        loads.check(reserved);
        let Capacity { up, down } = reserved[link];
        assert_eq!((loads.up[link], loads.down[link]), (up.bits, down.bits), "no bit too many");
    }
}

/// What is in force at the relays carries the members that are let in there now: towards the core all
/// that they send, elsewhere as much as is received. A link is in force where both ends have it. Not in
/// force are the branches of standby parents, and a parent that the next one has succeeded.
pub(crate) fn check_in_force(controller: &Controller, relays: &[SimRelay], comtree: Comtree) {
    let tree = controller.tree(comtree);
    let on = |relay: RelayId, link: LinkId| {
        let of = relay_of(relays, relay).map(|relay| branches(relay, comtree)).unwrap_or_default();
        let above = tree.iter().find(|hop| hop.relay == relay).and_then(|hop| hop.above);
        let is_next = |branch: &Branch| {
            branch.role == Role::NextParent && above.is_some_and(|(_, link)| link == branch.link)
        };
        let has_succeeded = of.iter().any(is_next);
        of.into_iter().find(|branch| branch.link == link).filter(|branch| match branch.role {
            Role::StandbyParent | Role::StandbyChild | Role::Spare => false,
            Role::Parent => !has_succeeded,
            Role::NextParent | Role::Core | Role::Child => true,
            Role::CorePeer | Role::NextPeer | Role::LastPeer => true,
        })
    };
    // A tree is kept in order from the root, so that its parts are in order too.
    let mut parts: Vec<Vec<TreeHop>> = Vec::new();
    for hop in &tree {
        let joined = hop
            .above
            .filter(|(above, link)| on(hop.relay, *link).is_some() && on(*above, *link).is_some());
        let part = joined.and_then(|(above, _)| {
            parts.iter_mut().find(|part| part.iter().any(|of| of.relay == above))
        });
        match part {
            Some(part) => part.push(*hop),
            None => parts.push(vec![TreeHop { above: None, ..*hop }]),
        }
    }
    // Each part, and whether it has members. Parts may be joined over other links.
    let mut joined: Vec<(BTreeSet<RelayId>, bool)> = Vec::new();
    for hops in parts {
        let sums: Vec<Limits> = hops.iter().map(|hop| let_in(relays, comtree, hop.relay)).collect();
        let has_members = sums.iter().any(|sum| *sum != Limits::default());
        joined.push((hops.iter().map(|hop| hop.relay).collect(), has_members));
        let received = capacities_by(&hops, &CoreRule::None, &sums);
        let sent = capacities_by(&hops, &CoreRule::All, &sums);
        for (node, hop) in hops.iter().enumerate() {
            let Some((above, link)) = hop.above else { continue };
            let up = (hop.relay, received[node].up, sent[node].up);
            let down = (above, received[node].down, sent[node].down);
            for (from, received, sent) in [up, down] {
                let Some(Branch { role, send, .. }) = on(from, link) else { continue };
                // To a next parent of a change before, which the tree has below by now, goes nothing from above.
                if role.is_peer() || role == Role::NextParent && from == above {
                    continue;
                }
                let needed = if role == Role::Child { received } else { sent };
                assert!(send.bits >= needed.bits, "{send:?} of {needed:?} on {link:?}");
            }
        }
    }
    for ends in neighbours(relays, comtree) {
        let (with, others): (Vec<_>, Vec<_>) =
            joined.into_iter().partition(|(part, _)| ends.iter().any(|end| part.contains(end)));
        let has_members = with.iter().any(|(_, has_members)| *has_members);
        // A way may lead over a relay that is not on the controller's tree any more.
        let part = with.into_iter().flat_map(|(part, _)| part).chain(ends).collect();
        joined = others;
        joined.push((part, has_members));
    }
    let with_members = joined.iter().filter(|(_, has_members)| *has_members).count();
    assert!(with_members <= 1, "whoever is let in is joined with all others");
}

/// The relays that hang below a relay by the branches that both ends have, itself too.
pub(crate) fn with_all_below(
    relay: RelayId,
    relays: &[SimRelay],
    comtree: Comtree,
) -> BTreeSet<RelayId> {
    let of = |id: RelayId| relays.iter().find(|of| of.id == id).map(|of| branches(of, comtree));
    let (mut below, mut to_visit) = (BTreeSet::from([relay]), vec![relay]);
    while let Some(above) = to_visit.pop() {
        let down = of(above).unwrap_or_default();
        let down = down.iter().filter(|branch| matches!(branch.role, Role::Child | Role::Core));
        for link in down.map(|branch| branch.link) {
            let has_it = |id: &RelayId| {
                let of = of(*id).unwrap_or_default();
                of.iter().any(|branch| branch.link == link && branch.role == Role::Parent)
            };
            let children = relays.iter().map(|of| of.id).filter(|id| *id != above && has_it(id));
            to_visit.extend(children.filter(|id| below.insert(*id)));
        }
    }
    below
}

/// Relays that both have a branch to each other, two and two; also such as the controller's tree has no
/// more. Where a mesh is formed or left, ways lead over those until what is decided is in force.
fn neighbours(relays: &[SimRelay], comtree: Comtree) -> Vec<[RelayId; 2]> {
    let mut ends: BTreeMap<LinkId, Vec<RelayId>> = BTreeMap::new();
    for relay in relays {
        for branch in branches(relay, comtree).iter().filter(|of| !of.role.is_standby()) {
            ends.entry(branch.link).or_default().push(relay.id);
        }
    }
    ends.into_values().filter_map(|ends| ends.try_into().ok()).collect()
}

/// The links in force form no circle, in which an update would go round; whichever relays use their
/// standby parents.
pub(crate) fn check_no_circle(relays: &[SimRelay], comtree: Comtree) {
    check_no_circle_with(relays, comtree, |_| false);
    check_no_circle_with(relays, comtree, |_| true);
    for bit in 0..3 {
        check_no_circle_with(relays, comtree, |relay| relay >> bit & 1 == 0);
    }
}

fn check_no_circle_with(relays: &[SimRelay], comtree: Comtree, detours: impl Fn(usize) -> bool) {
    let mut ends: BTreeMap<LinkId, Vec<usize>> = BTreeMap::new();
    let mut peers: BTreeMap<LinkId, usize> = BTreeMap::new();
    for (at, relay) in relays.iter().enumerate() {
        let branches = branches(relay, comtree);
        let has_standby = branches.iter().any(|of| of.role == Role::StandbyParent);
        let is_used = |of: &&Branch| match of.role {
            Role::Parent => !(has_standby && detours(at)),
            Role::StandbyParent => detours(at),
            // A next parent is not used before the parent is gone, and no way is found while there is a controller.
            Role::NextParent | Role::Spare => false,
            Role::Core | Role::CorePeer | Role::Child | Role::StandbyChild => true,
            // What they bring twice passes once.
            Role::NextPeer | Role::LastPeer => false,
        };
        for branch in branches.iter().filter(is_used) {
            ends.entry(branch.link).or_default().push(at);
            *peers.entry(branch.link).or_default() += usize::from(branch.role == Role::CorePeer);
        }
    }
    let mut part: Vec<usize> = (0..relays.len()).collect();
    // What came from a core peer goes to no other one, so among those circles are allowed.
    let is_meshed = |link: &LinkId| peers.get(link) == Some(&2);
    let (meshed, others): (Vec<_>, Vec<_>) =
        ends.into_iter().partition(|(link, _)| is_meshed(link));
    for (link, ends) in meshed.into_iter().chain(others) {
        let [from, to] = ends[..] else { continue };
        let (from, to) = (part[from], part[to]);
        let is_closed = from == to && !is_meshed(&link);
        assert!(!is_closed, "{link:?} closes a circle of comtree {}", comtree.0);
        part.iter_mut().filter(|of| **of == from).for_each(|of| *of = to);
    }
}

/// The sum of the limits of those whom a relay lets in now.
fn let_in(relays: &[SimRelay], comtree: Comtree, relay: RelayId) -> Limits {
    let side = relay_of(relays, relay).and_then(|relay| relay.side.as_ref());
    let limits = |item: &Item| match item {
        Item::Member { comtree: of, limits, .. } if *of == comtree => Some(*limits),
        _ => None,
    };
    side.into_iter().flat_map(|side| side.items().values()).filter_map(limits).sum()
}
