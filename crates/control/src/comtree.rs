//! A comtree as it is kept: its tree over relays, the links of its core if that is a mesh, and the step
//! that is under way while it is moved.

use crate::codec::{CodecError, Coded, Reader, coded, coded_enum};
use crate::model::{LinkId, RelayId, WorldId};
use crate::overlap::Overlap;
use canopy_plan::Method;
use canopy_wire::Comtree;

/// How a relay hangs on its comtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHop {
    /// The relay.
    pub relay: RelayId,
    /// The relay above, and the link that leads there; nothing at the root.
    pub above: Option<(RelayId, LinkId)>,
}

/// Two relays of a meshed core, and the link over which they hear each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLink {
    /// The two.
    pub ends: [RelayId; 2],
    /// The link between them.
    pub link: LinkId,
}

impl PeerLink {
    /// The other relay, if this is one of the two.
    pub fn other(&self, relay: RelayId) -> Option<RelayId> {
        match self.ends {
            [one, other] if one == relay => Some(other),
            [other, one] if one == relay => Some(other),
            _ => None,
        }
    }
}

/// Which tree is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeAsk {
    /// Its root; without one, the best is found.
    pub root: Option<RelayId>,
    /// How it is chosen.
    pub method: Method,
    /// For [`Method::Stretch`]: how far a relay may be from the root, in hundredths of the direct way.
    pub stretch: u16,
}

impl Default for TreeAsk {
    /// The least costly.
    fn default() -> TreeAsk {
        TreeAsk { root: None, method: Method::Best, stretch: 120 }
    }
}

/// A relay gets another parent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Swap {
    pub(crate) child: RelayId,
    pub(crate) next: RelayId,
    pub(crate) link: LinkId,
}

/// A relay leaves the core: the core's relay beside it becomes its parent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Leave {
    pub(crate) relay: RelayId,
    pub(crate) above: RelayId,
    pub(crate) link: LinkId,
}

/// A relay becomes a core peer of all others of a meshed core, or a neighbour below one of them. In between what
/// it and the others send reaches the other side directly, and over the one above as well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Peering {
    pub(crate) relay: RelayId,
    /// The relay of the core below which it is outside the core, and the link between the two.
    pub(crate) above: RelayId,
    pub(crate) link: LinkId,
    /// The others of the core, and its links with them.
    pub(crate) peers: Vec<(RelayId, LinkId)>,
    /// Whether it joins the core; otherwise it leaves.
    pub(crate) joins: bool,
    pub(crate) phase: Phase,
}

/// How far a [`Peering`] is: what its relay (n), the one above (p) and the other core peers are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// For p, n is in the core, and for the others a next peer. For n, p is its parent.
    Announced,
    /// n and the others are next peers, and n and p core peers.
    Beside,
    /// The same, but for p, n is in the core as in a tree. So what n and the others send comes both ways.
    Both,
    /// As before, but n and the others are last peers.
    Last,
    /// n has no peers, and p is its next parent. For p, it is in the core.
    Below,
    /// It has ended before its end, and relays may be in any phase.
    TakenBack,
}

/// What is done one after the other, and then a tree follows: once a relay says so, or a while after relays have
/// answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Swap(Swap),
    Leave(Leave),
    Peer(Peering),
}

/// Where a move leads that is under way, and what the tree in force is on that way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Heading {
    /// The tree at its end, and the links of its meshed core.
    pub(crate) tree: Vec<TreeHop>,
    pub(crate) mesh: Vec<PeerLink>,
    /// The core of the tree in force, which the rule does not say on the way. Nothing if it is a mesh.
    pub(crate) core: Vec<RelayId>,
    /// Why it is moved.
    pub(crate) why: String,
}

/// A comtree of a world, with its tree over the links.
#[derive(Clone, Debug, PartialEq)]
pub struct ComtreeRecord {
    /// Its number on the wire.
    pub id: Comtree,
    /// Its world.
    pub world: WorldId,
    /// The tree, each relay after the one above it; nothing while it has no members.
    pub tree: Vec<TreeHop>,
    /// Its relays' standby parents, in the place of the relay above.
    pub standbys: Vec<TreeHop>,
    /// The tree that an operator has asked for.
    pub asked: TreeAsk,
    /// The links of its meshed core, one for each two relays; nothing if its core is a subtree or one
    /// relay.
    pub mesh: Vec<PeerLink>,
    /// The step of a move that is under way, or was not done and is not taken back yet.
    pub(crate) step: Option<Step>,
    /// What relays surely have of the tree, while it is on its way to them.
    pub(crate) overlap: Option<Overlap>,
    /// Where it is being moved.
    pub(crate) heading: Option<Heading>,
}

coded! {
    Heading { tree, mesh, core, why }
    TreeHop { relay, above }
    PeerLink { ends, link }
    TreeAsk { root, method, stretch }
    Swap { child, next, link }
    Leave { relay, above, link }
    Peering { relay, above, link, peers, joins, phase }
}
coded_enum!(Phase { Announced = 0, Beside = 1, Both = 2, Last = 3, Below = 4, TakenBack = 5 });
coded_enum!(Method { Spt = 0, Mst = 1, Stretch = 2, Hybrid = 3, Best = 4 });

impl Coded for Step {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Step::Swap(swap) => {
                out.push(0);
                swap.put(out);
            }
            Step::Leave(leave) => {
                out.push(1);
                leave.put(out);
            }
            Step::Peer(peering) => {
                out.push(2);
                peering.put(out);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Step, CodecError> {
        match from.array("step")? {
            [0] => Ok(Step::Swap(Coded::take(from)?)),
            [1] => Ok(Step::Leave(Coded::take(from)?)),
            [2] => Ok(Step::Peer(Coded::take(from)?)),
            _ => Err(CodecError::Value("step")),
        }
    }
}

impl Coded for ComtreeRecord {
    fn put(&self, out: &mut Vec<u8>) {
        let ComtreeRecord { id, world, tree, standbys, asked, mesh, step, .. } = self;
        id.put(out);
        world.put(out);
        tree.put(out);
        standbys.put(out);
        asked.put(out);
        mesh.put(out);
        step.put(out);
        self.overlap.put(out);
        // An earlier release reads nothing behind that.
        if self.heading.is_some() {
            self.heading.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<ComtreeRecord, CodecError> {
        let (id, world) = (Coded::take(from)?, Coded::take(from)?);
        let (tree, standbys, asked) = (Coded::take(from)?, Coded::take(from)?, Coded::take(from)?);
        // Records that earlier releases have written end here, where there were no meshed cores, or after
        // the mesh, after the step, or after the overlap.
        let mesh = if from.is_at_end() { Vec::new() } else { Coded::take(from)? };
        let step = if from.is_at_end() { None } else { Coded::take(from)? };
        let overlap = if from.is_at_end() { None } else { Coded::take(from)? };
        let heading = if from.is_at_end() { None } else { Coded::take(from)? };
        Ok(ComtreeRecord { id, world, tree, standbys, asked, mesh, step, overlap, heading })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comtree of two relays with a mesh of both, and a step.
    fn record(step: Option<Step>) -> ComtreeRecord {
        let [one, other] = [RelayId(1), RelayId(2)];
        let tree = vec![
            TreeHop { relay: one, above: None },
            TreeHop { relay: other, above: Some((one, LinkId(7))) },
        ];
        let mesh = vec![PeerLink { ends: [one, other], link: LinkId(7) }];
        let (id, world, asked) = (Comtree(16), WorldId(1), TreeAsk::default());
        let standbys = Vec::new();
        let (overlap, heading) = (None, None);
        ComtreeRecord { id, world, tree, standbys, asked, mesh, step, overlap, heading }
    }

    #[test]
    fn a_record_of_an_earlier_release_has_no_heading_and_before_that_no_overlap_step_and_mesh() {
        let now = record(None);
        let bytes = now.to_bytes();
        // A byte each says that there is no overlap and no step; of a heading that is none there is no byte.
        for left in 0..=2 {
            assert_eq!(ComtreeRecord::of_bytes(&bytes[..bytes.len() - left]).as_ref(), Ok(&now));
        }
        // Before that are the length of the mesh, and its one link.
        let before = ComtreeRecord::of_bytes(&bytes[..bytes.len() - 6]).unwrap();
        assert_eq!(before, ComtreeRecord { mesh: Vec::new(), ..now });
    }

    #[test]
    fn a_step_is_read_as_it_was_written() {
        let (child, next, link) = (RelayId(300), RelayId(2), LinkId(70_000));
        let swap = Step::Swap(Swap { child, next, link });
        let leave = Step::Leave(Leave { relay: child, above: next, link });
        let peer = Step::Peer(Peering {
            relay: child,
            above: next,
            link,
            peers: vec![(RelayId(4), LinkId(5)), (RelayId(6), LinkId(70_001))],
            joins: true,
            phase: Phase::Both,
        });
        for step in [None, Some(swap), Some(leave), Some(peer)] {
            let ComtreeRecord { tree, mesh, .. } = record(None);
            let (core, why) = (vec![child, next], "it was moved".to_owned());
            let heading = Some(Heading { tree, mesh, core, why });
            let now = ComtreeRecord { heading, ..record(step) };
            assert_eq!(ComtreeRecord::of_bytes(&now.to_bytes()), Ok(now));
        }
        assert_eq!(Step::of_bytes(&[3, 1, 2, 3]), Err(CodecError::Value("step")));
    }
}
