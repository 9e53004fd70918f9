//! What must be reserved, worked out anew in the simplest way from members and trees, and held against
//! the controller's accounts. Simulations look at it again and again: the accounts themselves are kept
//! by what changes.

use crate::controller::{Controller, TreeOnTheWay};
use crate::ledger::Account;
use crate::model::{
    LinkId, Member, MemberState, Owner, PeerLink, RelayId, TreeHop, World, WorldId,
};
use canopy_plan::{Capacity, Limits, Rate, Tree, provision};
use canopy_wire::{Address, Comtree};
use std::collections::{BTreeMap, BTreeSet};

impl Controller {
    /// What is wrong with the accounts, if anything: every reservation is a member's, suffices to the bit,
    /// and leaves no account overdrawn. It looks at everything there is.
    ///
    /// # Errors
    /// The first thing that is wrong, in words.
    pub fn audit(&self) -> Result<(), String> {
        let mut needed: BTreeMap<Account, Rate> = BTreeMap::new();
        check_owners(self)?;
        for member in held(self) {
            add(&mut needed, Account::Places(member.relay), Rate::bits(1.0));
        }
        for world in self.worlds() {
            for comtree in &world.comtrees {
                comtree_needs(self, world, *comtree, &mut needed)?;
            }
        }
        for (account, most, reserved) in self.accounts() {
            let of = needed.remove(&account).unwrap_or_default();
            if reserved != of {
                return Err(format!("{account:?}: {reserved:?} is reserved, {of:?} is needed"));
            }
            if reserved.bits > most.bits || reserved.packets > most.packets {
                return Err(format!("{account:?}: {reserved:?} is reserved of {most:?}"));
            }
        }
        let forgotten = needed.iter().find(|(_, rate)| **rate != Rate::ZERO);
        forgotten.map_or(Ok(()), |(account, rate)| {
            Err(format!("{account:?}: nothing is reserved of {rate:?}"))
        })
    }
}

/// Everybody has one place in a world, or another one from which it moves; the one that is held leads.
fn check_owners(controller: &Controller) -> Result<(), String> {
    let of = |state| controller.members().filter(move |member| member.state == state);
    let mut places: BTreeMap<(WorldId, Owner), Address> = BTreeMap::new();
    for member in of(MemberState::Held) {
        if places.insert((member.world, member.owner), member.address).is_some() {
            return Err(format!("{} has two places", member.address));
        }
        if controller.address_of(member.world, member.owner) != Some(member.address) {
            return Err(format!("{} is not found by its owner", member.address));
        }
    }
    let mut moving = BTreeSet::new();
    for member in of(MemberState::Moving) {
        let owner = (member.world, member.owner);
        if !places.contains_key(&owner) || !moving.insert(owner) {
            return Err(format!("{} moves to no place", member.address));
        }
    }
    Ok(())
}

fn held(controller: &Controller) -> impl Iterator<Item = &Member> {
    controller.members().filter(|member| member.state != MemberState::Resting)
}

fn add(needed: &mut BTreeMap<Account, Rate>, account: Account, rate: Rate) {
    let sum = needed.entry(account).or_default();
    *sum = *sum + rate;
}

/// What a comtree needs of relays and links: of each link as much as any tree does that it has now or
/// while it is moved, with the core that it has then and with that of the world's rule.
fn comtree_needs(
    controller: &Controller,
    world: &World,
    comtree: Comtree,
    needed: &mut BTreeMap<Account, Rate>,
) -> Result<(), String> {
    let hops = controller.tree(comtree);
    let limits = limits(controller, world, &hops)?;
    for (hop, limits) in hops.iter().zip(&limits) {
        add(needed, Account::In(hop.relay), limits.send);
        add(needed, Account::Out(hop.relay), limits.receive);
    }
    let mut most: BTreeMap<(LinkId, RelayId, RelayId), Rate> = BTreeMap::new();
    let mut need = |of: (LinkId, RelayId, RelayId), rate: Rate| {
        let most = most.entry(of).or_default();
        most.bits = most.bits.max(rate.bits);
        most.packets = most.packets.max(rate.packets);
    };
    let trees = controller.trees_on_the_way(comtree);
    let carrying: BTreeSet<RelayId> =
        trees.iter().flat_map(|tree| &tree.hops).map(|hop| hop.relay).collect();
    for relay in carrying {
        add(needed, Account::Comtrees(relay), Rate::bits(1.0));
    }
    for pair in trees.windows(2) {
        for (of, rate) in peering_needs(controller, world, pair)? {
            need(of, rate);
        }
        for (of, rate) in needs_of_either(controller, world, pair)? {
            need(of, rate);
        }
    }
    for TreeOnTheWay { hops, core, mesh } in trees {
        let limits = self::limits(controller, world, &hops)?;
        for (of, rate) in mesh_needs(&hops, &mesh, &limits)? {
            need(of, rate);
        }
        let capacities = capacities(controller, world, &hops, &core)?;
        for (hop, Capacity { up, down }) in hops.iter().cycle().zip(capacities) {
            let Some((above, link)) = hop.above else { continue };
            if mesh.iter().any(|peers| peers.link == link) {
                continue;
            }
            for (from, to, rate) in [(hop.relay, above, up), (above, hop.relay, down)] {
                need((link, from, to), rate);
            }
        }
    }
    for ((link, from, to), rate) in most {
        add(needed, Account::Link(link, from), rate);
        add(needed, Account::Out(from), rate);
        add(needed, Account::In(to), rate);
    }
    Ok(())
}

/// What the links of a meshed core need, each from one end to the other: all that is sent by members whose
/// way to the core ends there.
fn mesh_needs(
    hops: &[TreeHop],
    mesh: &[PeerLink],
    limits: &[Limits],
) -> Result<BTreeMap<(LinkId, RelayId, RelayId), Rate>, String> {
    let core = core_of(mesh);
    let pairs: BTreeSet<(RelayId, RelayId)> =
        mesh.iter().map(|of| (of.ends[0].min(of.ends[1]), of.ends[0].max(of.ends[1]))).collect();
    if pairs.len() != mesh.len() || 2 * pairs.len() != core.len() * core.len().saturating_sub(1) {
        return Err(format!("{mesh:?} is no mesh"));
    }
    let sent = sent_into(hops, &core, limits);
    let needs = mesh.iter().flat_map(|PeerLink { ends: [one, other], link }| {
        let of = |from: &RelayId| sent.get(from).copied().unwrap_or_default();
        [((*link, *one, *other), of(one)), ((*link, *other, *one), of(other))]
    });
    Ok(needs.collect())
}

/// What the link to a relay needs that joins a mesh of several, or leaves one, from the relay below which it is
/// outside: all that the others send, as long as it comes over that relay, too.
fn peering_needs(
    controller: &Controller,
    world: &World,
    pair: &[TreeOnTheWay],
) -> Result<BTreeMap<(LinkId, RelayId, RelayId), Rate>, String> {
    let [now, next] = pair else { return Ok(BTreeMap::new()) };
    let (smaller, larger) =
        if now.mesh.len() < next.mesh.len() { (now, next) } else { (next, now) };
    let core = core_of(&larger.mesh);
    let outside = core.iter().filter(|relay| !smaller.core.contains(relay));
    let hung = smaller.hops.iter().filter_map(|hop| Some((hop.relay, hop.above?)));
    let hung: BTreeMap<RelayId, (RelayId, LinkId)> = hung.collect();
    let limits = limits(controller, world, &larger.hops)?;
    let sent = sent_into(&larger.hops, &core, &limits);
    let need = |relay: &RelayId| {
        let (above, link) = hung.get(relay).filter(|_| !smaller.mesh.is_empty())?;
        let others = sent.iter().filter(|(of, _)| *of != relay);
        let rate = others.fold(Rate::ZERO, |sum, (_, rate)| sum + *rate);
        Some(((*link, *above, *relay), rate))
    };
    Ok(outside.filter_map(need).collect())
}

/// What links that two trees share need while one takes the other's place. On each side may be the members that are
/// there on either tree: what those of one side send is needed, at most what those of the other take.
fn needs_of_either(
    controller: &Controller,
    world: &World,
    pair: &[TreeOnTheWay],
) -> Result<BTreeMap<(LinkId, RelayId, RelayId), Rate>, String> {
    let mut needs = BTreeMap::new();
    let [now, next] = pair else { return Ok(needs) };
    let is_of_mesh = |link: LinkId| now.mesh.iter().chain(&next.mesh).any(|of| of.link == link);
    let limits_now = limits(controller, world, &now.hops)?;
    let limits_next = limits(controller, world, &next.hops)?;
    for hop in now.hops.iter().filter(|hop| next.hops.contains(hop)) {
        let Some((above, link)) = hop.above.filter(|(_, link)| !is_of_mesh(*link)) else {
            continue;
        };
        // By tree: the limits below and above, and whether there are core relays.
        let sides = [(now, &limits_now), (next, &limits_next)].map(|(tree, limits)| {
            let (mut sums, mut has_core) = ([Limits::default(); 2], [false; 2]);
            for (of, limits) in tree.hops.iter().zip(limits) {
                let side = usize::from(!is_below(&tree.hops, of.relay, hop.relay));
                sums[side] = sums[side] + limits.whole();
                has_core[side] |= tree.core.contains(&of.relay);
            }
            (sums, has_core)
        });
        let most = |one: Rate, other: Rate| Rate {
            bits: one.bits.max(other.bits),
            packets: one.packets.max(other.packets),
        };
        let [(old, old_core), (new, new_core)] = sides;
        for (from, to, side) in [(hop.relay, above, 0), (above, hop.relay, 1)] {
            let (sent, other) = (most(old[side].send, new[side].send), 1 - side);
            let taken = most(old[other].receive, new[other].receive);
            let goes_all = old_core[other] || new_core[other];
            needs.insert((link, from, to), if goes_all { sent } else { sent.min(taken) });
        }
    }
    Ok(needs)
}

/// Whether a relay is another, or below it on a tree.
fn is_below(hops: &[TreeHop], relay: RelayId, top: RelayId) -> bool {
    let above =
        |at: &RelayId| hops.iter().find(|hop| hop.relay == *at)?.above.map(|(above, _)| above);
    std::iter::successors(Some(relay), above).any(|at| at == top)
}

fn core_of(mesh: &[PeerLink]) -> BTreeSet<RelayId> {
    mesh.iter().flat_map(|peers| peers.ends).collect()
}

/// By relay of a meshed core: all that is sent by members whose way to the core ends there.
fn sent_into(
    hops: &[TreeHop],
    core: &BTreeSet<RelayId>,
    limits: &[Limits],
) -> BTreeMap<RelayId, Rate> {
    let mut sent: BTreeMap<RelayId, Rate> = BTreeMap::new();
    for (hop, limits) in hops.iter().zip(limits) {
        let mut at = hop.relay;
        while !core.contains(&at) {
            let above = hops.iter().find(|of| of.relay == at).and_then(|of| of.above);
            let Some((above, _)) = above else { break };
            at = above;
        }
        let sum = sent.entry(at).or_default();
        *sum = *sum + limits.send;
    }
    sent
}

/// By relay of a tree: the sum of its members' limits.
fn limits(controller: &Controller, world: &World, hops: &[TreeHop]) -> Result<Vec<Limits>, String> {
    let of_world = || held(controller).filter(|member| member.world == world.id);
    let is_off = |member: &&Member| hops.iter().all(|hop| hop.relay != member.relay);
    if let Some(member) = of_world().find(is_off) {
        return Err(format!("{} is not on the tree of {}", member.address, world.name));
    }
    let sum = |hop: &TreeHop| {
        of_world().filter(|member| member.relay == hop.relay).map(|member| member.reserved).sum()
    };
    Ok(hops.iter().map(sum).collect())
}

/// What the links need, by the node below: with this core, and then again with that of the rule.
fn capacities(
    controller: &Controller,
    world: &World,
    hops: &[TreeHop],
    core: &BTreeSet<RelayId>,
) -> Result<Vec<Capacity>, String> {
    if hops.is_empty() {
        return Ok(Vec::new());
    }
    let node = |relay: RelayId| hops.iter().position(|hop| hop.relay == relay);
    let parents: Vec<Option<usize>> =
        hops.iter().map(|hop| hop.above.and_then(|(above, _)| node(above))).collect();
    let tree = Tree::from_parents(&parents).map_err(|error| format!("no tree: {error}"))?;
    let limits = limits(controller, world, hops)?;
    let is_core: Vec<bool> = hops.iter().map(|hop| core.contains(&hop.relay)).collect();
    let with = |is_core: &[bool]| provision(&tree, &limits, is_core);
    Ok([with(&is_core), with(&world.core.rule().on(&tree))].concat())
}
