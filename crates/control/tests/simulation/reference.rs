//! What a comtree's links need, by `plan`.

use canopy_control::{Controller, Core, MemberState, RelayId, TreeHop};
use canopy_plan::{Capacity, CoreRule, Limits, Tree, provision};
use canopy_wire::Comtree;

/// What a comtree's links need, by the node below; the nodes are those of the hops.
pub(crate) fn capacities(hops: &[TreeHop], core: &Core, limits: &[Limits]) -> Vec<Capacity> {
    capacities_by(hops, &rule(core), limits)
}

/// The rule as `plan` has it.
pub(crate) fn rule(core: &Core) -> CoreRule {
    match core {
        // The links of a mesh are looked at by themselves.
        Core::Center | Core::Mesh => CoreRule::Center,
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
        let is_on_it = hops.iter().any(|hop| hop.relay == member.relay);
        assert!(is_on_it, "{} is on the tree of comtree {}", member.relay.0, comtree.0);
    }
    let sum =
        |hop: &TreeHop| held().filter(|m| m.relay == hop.relay).map(|member| member.reserved).sum();
    hops.iter().map(sum).collect()
}
