//! What must be reserved, worked out anew and in the simplest way from members and trees.

use canopy_control::{Account, Controller, Core, LinkId, MemberState, RelayId, TreeHop};
use canopy_plan::{Capacity, CoreRule, Limits, Rate, Tree, provision};
use canopy_wire::Comtree;
use std::collections::BTreeMap;

/// What a comtree's links need, by the node below; the nodes are those of the hops.
pub(crate) fn capacities(hops: &[TreeHop], core: &Core, limits: &[Limits]) -> Vec<Capacity> {
    capacities_by(hops, &rule(core), limits)
}

/// The rule as `plan` has it.
pub(crate) fn rule(core: &Core) -> CoreRule {
    match core {
        Core::Center => CoreRule::Center,
        Core::CenterAndNeighbours => CoreRule::CenterAndNeighbours,
        Core::All => CoreRule::All,
    }
}

/// The same by any rule.
pub(crate) fn capacities_by(hops: &[TreeHop], rule: &CoreRule, limits: &[Limits]) -> Vec<Capacity> {
    if hops.is_empty() {
        return Vec::new();
    }
    let tree = tree_of(hops);
    provision(&tree, limits, &rule.on(&tree))
}

fn tree_of(hops: &[TreeHop]) -> Tree {
    let node = |relay: RelayId| hops.iter().position(|hop| hop.relay == relay).unwrap();
    let parents: Vec<Option<usize>> =
        hops.iter().map(|hop| hop.above.map(|(above, _)| node(above))).collect();
    Tree::from_parents(&parents).expect("a tree")
}

/// By relay of a tree: the sum of its members' limits.
pub(crate) fn limits(controller: &Controller, comtree: Comtree, hops: &[TreeHop]) -> Vec<Limits> {
    let world = controller.worlds().find(|world| world.comtrees.contains(&comtree)).unwrap();
    let held =
        || controller.members().filter(|m| m.world == world.id && m.state != MemberState::Resting);
    for member in held() {
        let is_on_it = hops.iter().any(|hop| hop.relay == member.relay());
        assert!(is_on_it, "{} is on the tree of comtree {}", member.relay().0, comtree.0);
    }
    let sum = |hop: &TreeHop| {
        held().filter(|m| m.relay() == hop.relay).map(|member| member.reserved).sum()
    };
    hops.iter().map(sum).collect()
}

/// Every account has reserved what members and trees need, to the bit, and no more than it may.
pub(crate) fn check_accounts(controller: &Controller) {
    let mut needed: BTreeMap<Account, Rate> = BTreeMap::new();
    let mut add = |account: Account, rate: Rate| {
        let sum = needed.entry(account).or_default();
        *sum = *sum + rate;
    };
    for member in controller.members().filter(|m| m.state != MemberState::Resting) {
        add(Account::Places(member.relay()), Rate::bits(1.0));
    }
    for world in controller.worlds() {
        for comtree in &world.comtrees {
            let hops = controller.tree(*comtree);
            for (hop, limits) in hops.iter().zip(limits(controller, *comtree, &hops)) {
                add(Account::In(hop.relay), limits.send);
                add(Account::Out(hop.relay), limits.receive);
            }
            // While it moves, each link is to bear every tree that there will be, with the core that it has
            // then and with that of the rule.
            let mut most: BTreeMap<(LinkId, RelayId, RelayId), Rate> = BTreeMap::new();
            for (hops, core) in controller.trees_on_the_way(*comtree) {
                let limits = limits(controller, *comtree, &hops);
                let by_rule = capacities(&hops, &world.core, &limits);
                let is_core: Vec<bool> = hops.iter().map(|hop| core.contains(&hop.relay)).collect();
                let by_core = provision(&tree_of(&hops), &limits, &is_core);
                let both = hops.iter().zip(by_rule).chain(hops.iter().zip(by_core));
                for (hop, Capacity { up, down }) in both {
                    let Some((above, link)) = hop.above else { continue };
                    for (from, to, rate) in [(hop.relay, above, up), (above, hop.relay, down)] {
                        let most = most.entry((link, from, to)).or_default();
                        most.bits = most.bits.max(rate.bits);
                        most.packets = most.packets.max(rate.packets);
                    }
                }
            }
            for ((link, from, to), rate) in most {
                add(Account::Link(link, from), rate);
                add(Account::Out(from), rate);
                add(Account::In(to), rate);
            }
        }
    }
    for (account, most, reserved) in controller.accounts() {
        let of = needed.remove(&account).unwrap_or_default();
        assert_eq!(reserved, of, "{account:?}: what is reserved belongs to somebody, and suffices");
        let fits = reserved.bits <= most.bits && reserved.packets <= most.packets;
        assert!(fits, "{account:?}: {reserved:?} of {most:?}");
    }
    let forgotten: Vec<_> = needed.iter().filter(|(_, rate)| **rate != Rate::ZERO).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
}
