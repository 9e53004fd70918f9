//! Planned changes of a comtree whose core is a mesh (federated games §3.1, Forest §3.5), in which nothing is
//! lost. The core stays as it is as long as anything flows over it (`healing` changes that): relays outside get other
//! parents, one after the other as on any tree, and at last the relays go that nobody needs any more.
//!
//! ```text
//!   x ── a ─── b       x gets b for its parent, while a and b hear each other as before.
//!         ╲   ╱        Then nothing runs over a, and it goes; b and c stay what they are to
//!           c          each other, whichever of the three was the root.
//! ```

use crate::hops::rooted_in;
use crate::model::{PeerLink, RelayId, TreeHop};
use crate::shape::Shape;
use crate::steps::{Way, same_tree, swaps};

/// The links of a mesh whose ends are both in a tree.
pub(crate) fn mesh_on(mesh: &[PeerLink], hops: &[TreeHop]) -> Vec<PeerLink> {
    let is_there = |end: &RelayId| hops.iter().any(|hop| hop.relay == *end);
    mesh.iter().filter(|peers| peers.ends.iter().all(is_there)).copied().collect()
}

/// A meshed comtree on another tree, with what that has of its core; without relays that nobody needs then.
///
/// # Errors
/// Why it cannot be.
pub(crate) fn around_core(old: &Shape, tree: &[TreeHop]) -> Result<Shape, String> {
    let stays = |relay: &RelayId| tree.iter().any(|hop| hop.relay == *relay);
    let mut core = old.relays().filter(|relay| old.is_core(*relay));
    let root = core.find(stays).ok_or(
        "all relays of its meshed core would go at once, and one has to stay; let one of them serve again, \
         or give its world another core first",
    )?;
    let mut hops = rooted_in(tree, &mesh_on(old.mesh(), tree), root);
    loop {
        let mesh = mesh_on(old.mesh(), &hops);
        let shape = Shape::meshed(hops, mesh, |relay| old.load(relay))?;
        if !shape.has_idle_end() {
            return Ok(shape);
        }
        hops = shape.pruned();
        if hops.is_empty() || same_tree(&hops, shape.hops()) {
            return Ok(shape);
        }
    }
}

/// The way from a meshed comtree to another tree around its core, of [`around_core`].
///
/// # Errors
/// That is no such tree.
pub(crate) fn way_around_mesh(old: &Shape, target: &[TreeHop]) -> Result<Way, String> {
    let load = |relay| old.load(relay);
    let end = Shape::meshed(target.to_vec(), mesh_on(old.mesh(), target), load)?;
    if let Some(new) = end.core().difference(&old.core()).next() {
        return Err(format!("relay {} is not in its meshed core", new.0));
    }
    let core = old.hops().iter().filter(|hop| old.is_core(hop.relay));
    let outside = target.iter().filter(|hop| !old.is_core(hop.relay));
    let with_core: Vec<TreeHop> = core.chain(outside).copied().collect();
    let trees = swaps(old.hops(), &with_core);
    let is_there = same_tree(trees.last().map_or(old.hops(), Vec::as_slice), target);
    let meshed = |hops| Shape::meshed(hops, old.mesh().to_vec(), load);
    let mut way =
        Way { later: trees.into_iter().map(meshed).collect::<Result<_, _>>()?, ..Way::default() };
    if !is_there {
        way.later.push_back(end);
    }
    Ok(way)
}
