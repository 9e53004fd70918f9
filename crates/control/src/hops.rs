//! Trees as they are stored, with other roots and in order.

use crate::model::{PeerLink, RelayId, TreeHop};

/// The hops of a tree, those nearer to the root first.
pub(crate) fn breadth_first(hops: &[TreeHop]) -> Vec<TreeHop> {
    let mut order: Vec<TreeHop> = hops.iter().copied().filter(|hop| hop.above.is_none()).collect();
    let mut next = 0;
    while let Some(above) = order.get(next).map(|hop| hop.relay) {
        let is_below = |hop: &&TreeHop| hop.above.is_some_and(|(of, _)| of == above);
        order.extend(hops.iter().filter(is_below));
        next += 1;
    }
    order
}

/// The same links as a tree with another root.
pub(crate) fn rooted_at(hops: &[TreeHop], root: RelayId) -> Vec<TreeHop> {
    let mut hops = hops.to_vec();
    let (mut relay, mut above) = (root, None);
    while let Some(hop) = hops.iter_mut().find(|hop| hop.relay == relay) {
        let before = core::mem::replace(&mut hop.above, above);
        let Some((next, link)) = before else { break };
        above = Some((relay, link));
        relay = next;
    }
    breadth_first(&hops)
}

/// The hops of a tree with this relay of its mesh as the root: all others of the mesh hang on it, and whoever
/// is not in the mesh on the one that it hung on.
pub(crate) fn rooted_in(hops: &[TreeHop], mesh: &[PeerLink], root: RelayId) -> Vec<TreeHop> {
    let mut hops = rooted_at(hops, root);
    for peers in mesh {
        let Some(relay) = peers.other(root) else { continue };
        let below = hops.iter_mut().filter(|hop| hop.relay == relay);
        below.for_each(|hop| hop.above = Some((root, peers.link)));
    }
    breadth_first(&hops)
}
