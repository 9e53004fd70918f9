//! Meshed cores (federated games §3.1): which relays of a tree are the core, so that each of them has a
//! link with every other.
//!
//! The most that are so joined are taken; of several choices the one with more of those that are in the core
//! already, and then the one with the root. Where a tree is mended or grows, the root stays in its core first of all; a larger
//! core comes later, without loss. All of the core hangs on the root then, so a tree
//! is left if the links between the others are left out. A relay outside hangs on the one that it hung on.
//! Unless something has failed, relays stay joined all the while over links that they have already.

mod choosing;
mod healing;
mod moving;
mod peering;

use crate::comtree::Step;
use crate::hops::{rooted_at, rooted_in};
use crate::ledger::{Account, Flow, Lack};
use crate::model::{Core, LinkId, PeerLink, RelayId, TreeHop};
use crate::shape::{Load, Shape};
use crate::state::State;
use canopy_wire::Comtree;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use moving::{is_same, ways_to};
pub(crate) use peering::ARRIVAL;

/// By two relays, in both orders: the link between them.
pub(crate) type Joined = BTreeMap<(RelayId, RelayId), LinkId>;

/// Who may be left out of a meshed core for which there is too little free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spare {
    /// Nobody: then it is refused.
    Nobody,
    /// Whoever is not in it yet. Relays that were outside stay there until they join it without loss.
    Newcomers,
    /// Whoever is not in it yet. Relays that were outside join it at once, and what is on its way can be lost.
    Joining,
    /// Anybody but one, for what has failed. Relays that were outside join at once only if all of the core has gone, or
    /// too little is free otherwise.
    Anybody,
}

/// What a meshed core is formed of.
pub(crate) struct Choice<'a> {
    pub(crate) joined: &'a Joined,
    /// Who is in the core already.
    pub(crate) before: &'a BTreeSet<RelayId>,
    /// Who is left out.
    pub(crate) out: &'a BTreeSet<RelayId>,
    /// Whose ways to each other go on over the links that they have.
    pub(crate) kept: &'a BTreeSet<RelayId>,
}

impl Choice<'_> {
    /// The core that a tree can have: its relays, the one that is to be the root first. One that is kept is
    /// in it only with its neighbour on the tree, so that the link between the two stays. If the root stays, it is in it
    /// if that may be, even where others are more: so who is the parent of whom stays.
    fn core(&self, hops: &[TreeHop], root_stays: bool) -> Vec<RelayId> {
        let order = self.order(hops);
        let root = hops.first().map(|hop| hop.relay);
        let key = |core: &Vec<RelayId>| {
            let known = core.iter().filter(|relay| self.before.contains(relay)).count();
            let has_root = core.iter().any(|relay| Some(*relay) == root);
            Reverse((root_stays && has_root, core.len(), known, has_root))
        };
        let cores = order.iter().map(|first| self.core_from(hops, *first, &order));
        let mut core = cores.min_by_key(key).unwrap_or_default();
        core.sort_by_key(|relay| hops.iter().position(|hop| hop.relay == *relay));
        core
    }

    /// Who may be in it. Those that are come first, in the order of the tree.
    fn order(&self, hops: &[TreeHop]) -> Vec<RelayId> {
        let mut order: Vec<RelayId> = hops.iter().map(|hop| hop.relay).collect();
        order.retain(|relay| !self.out.contains(relay));
        order.sort_by_key(|relay| !self.before.contains(relay));
        order
    }

    fn core_from(&self, hops: &[TreeHop], first: RelayId, order: &[RelayId]) -> Vec<RelayId> {
        let above: BTreeMap<RelayId, RelayId> = rooted_at(hops, first)
            .iter()
            .filter_map(|hop| Some((hop.relay, hop.above?.0)))
            .collect();
        let mut core = vec![first];
        loop {
            let had = core.len();
            for relay in order {
                let is_near = !self.kept.contains(relay)
                    || above.get(relay).is_some_and(|above| core.contains(above));
                if is_near && core.iter().all(|of| self.joined.contains_key(&(*of, *relay))) {
                    core.push(*relay);
                }
            }
            if core.len() == had {
                return core;
            }
        }
    }
}

/// A tree whose core is a mesh, and the links of that.
pub(crate) fn form(
    hops: &[TreeHop],
    choice: &Choice<'_>,
    root_stays: bool,
) -> (Vec<TreeHop>, Vec<PeerLink>) {
    let core = choice.core(hops, root_stays);
    let Some(root) = core.first().copied() else { return (hops.to_vec(), Vec::new()) };
    let mut mesh = Vec::new();
    for (at, one) in core.iter().enumerate() {
        for other in &core[at + 1..] {
            if let Some(link) = choice.joined.get(&(*one, *other)) {
                mesh.push(PeerLink { ends: [*one, *other], link: *link });
            }
        }
    }
    (rooted_in(hops, &mesh, root), mesh)
}

/// Who is left out of a core for which something is lacking, if anybody may be.
fn left_out(
    shape: &Shape,
    before: &BTreeSet<RelayId>,
    lack: &Lack,
    spare: Spare,
) -> Option<RelayId> {
    let root = shape.hops().first().map(|hop| hop.relay);
    let lacks = |relay: RelayId| match lack.account {
        Account::Link(link, _) => {
            shape.mesh().iter().any(|peers| peers.link == link && peers.ends.contains(&relay))
        }
        Account::Out(of) | Account::In(of) => of == relay,
        Account::Places(_) | Account::Comtrees(_) => false,
    };
    let may_go = |relay: &RelayId| match spare {
        Spare::Nobody => false,
        Spare::Newcomers | Spare::Joining => !before.contains(relay),
        Spare::Anybody => true,
    };
    // The last of those who come new, first one that lacks something.
    let worth = |relay: &RelayId| (!before.contains(relay), lacks(*relay), *relay);
    let core = shape.core();
    // Whoever has no room for the comtree lacks that outside the core, too.
    if core.len() < 2 || matches!(lack.account, Account::Comtrees(_)) {
        return None;
    }
    core.into_iter().filter(|relay| Some(*relay) != root).filter(may_go).max_by_key(worth)
}

impl State {
    /// The links that can be used between relays of a tree. Of several between two relays it is one that the
    /// comtree uses, or else the one with the least delay.
    fn joined(&self, comtree: Comtree, hops: &[TreeHop]) -> Joined {
        self.joined_by(comtree, hops, |_| true)
    }

    /// The same, of those links only that may be used.
    fn joined_by(
        &self,
        comtree: Comtree,
        hops: &[TreeHop],
        may_be: impl Fn(LinkId) -> bool,
    ) -> Joined {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        let used: BTreeSet<LinkId> = shape.into_iter().flat_map(Shape::links).collect();
        let on_tree: BTreeSet<RelayId> = hops.iter().map(|hop| hop.relay).collect();
        let fits = |id: LinkId| self.is_usable(id) && (used.contains(&id) || !self.is_surplus(id));
        let links = self
            .links
            .values()
            .filter(|link| link.ends.iter().all(|end| on_tree.contains(end)) && fits(link.id))
            .filter(|link| may_be(link.id));
        let mut links: Vec<_> = links.collect();
        links.sort_by_key(|link| (!used.contains(&link.id), link.delay_us, link.id));
        let mut joined = Joined::new();
        for link in links {
            let [one, other] = link.ends;
            joined.entry((one, other)).or_insert(link.id);
            joined.entry((other, one)).or_insert(link.id);
        }
        joined
    }

    /// The shape of a comtree with this tree, and what it needs booked instead of what it has. Where there is
    /// too little for a meshed core, relays are left out of that, as far as they may be.
    pub(crate) fn fit(
        &mut self,
        comtree: Comtree,
        hops: &[TreeHop],
        load: impl Fn(RelayId, Load) -> Load,
        spare: Spare,
    ) -> Result<Option<Shape>, Lack> {
        let Some(running) = self.comtrees.get(&comtree) else { return Ok(None) };
        let Some(world) = self.worlds.get(&running.world) else { return Ok(None) };
        let old = &running.shape;
        let of = |relay: RelayId| {
            load(relay, old.as_ref().map_or_else(Load::default, |shape| shape.load(relay)))
        };
        let given: Vec<Flow> = running.flows().into_iter().map(Flow::inverse).collect();
        let booked = |flows: Vec<Flow>| given.iter().copied().chain(flows).collect::<Vec<_>>();
        if hops.is_empty() {
            return self.ledger.book(&booked(Vec::new())).map(|()| None);
        }
        if world.core != Core::Mesh {
            let new = Shape::new(hops.to_vec(), &world.core, of).ok();
            let flows = new.as_ref().map_or_else(Vec::new, Shape::flows);
            return self.ledger.book(&booked(flows)).map(|()| new);
        }
        let joined = self.joined(comtree, hops);
        let before = match old {
            Some(shape) if !shape.mesh().is_empty() => shape.core(),
            // A core of one relay is the root, which may be another one.
            Some(shape) => {
                hops.iter().take(1).map(|hop| hop.relay).filter(|of| shape.has(*of)).collect()
            }
            None => BTreeSet::new(),
        };
        // What is left of a core that is mended does for now, even if it is one relay: others join it later, without loss.
        let is_left =
            hops.iter().any(|hop| before.contains(&hop.relay) && self.is_running(hop.relay));
        let mut joins_later = match spare {
            Spare::Newcomers => true,
            Spare::Anybody => is_left,
            Spare::Nobody | Spare::Joining => false,
        };
        let outside = old.iter().filter(|_| joins_later).flat_map(|shape| {
            let core = shape.core();
            shape.relays().filter(move |relay| !core.contains(relay))
        });
        let mut out: BTreeSet<RelayId> = outside.collect();
        // What is mended has lost links anyway.
        let kept = old.as_ref().filter(|_| spare != Spare::Anybody);
        let kept = kept.map_or_else(BTreeSet::new, |shape| shape.relays().collect());
        loop {
            let choice = Choice { joined: &joined, before: &before, out: &out, kept: &kept };
            let (hops, mesh) = form(hops, &choice, joins_later);
            let new = Shape::meshed(hops, mesh, of).ok();
            let flows = new.as_ref().map_or_else(Vec::new, Shape::flows);
            let Err(lack) = self.ledger.book(&booked(flows)) else { return Ok(new) };
            match new.and_then(|shape| left_out(&shape, &before, &lack, spare)) {
                Some(spared) => _ = out.insert(spared),
                // It is better that others join at once than that the tree is not whole.
                None if joins_later && spare == Spare::Anybody => {
                    joins_later = false;
                    out.clear();
                }
                None => return Err(lack),
            }
        }
    }

    /// Why a relay is not in the meshed core of its comtree; nothing if it is, or the core is none.
    pub(crate) fn outside_mesh(&self, comtree: Comtree, relay: RelayId) -> Option<String> {
        let running = self.comtrees.get(&comtree)?;
        let shape = running.shape.as_ref().filter(|shape| !shape.is_core(relay))?;
        self.worlds.get(&running.world).filter(|world| world.core == Core::Mesh)?;
        let joined = self.joined(comtree, shape.hops());
        let lacks = |of: &RelayId| !joined.contains_key(&(relay, *of));
        let names: Vec<String> =
            shape.core().into_iter().filter(lacks).map(|of| self.relay_name(of)).collect();
        let joins = |step: Step| matches!(step, Step::Peer(of) if of.joins && of.relay == relay);
        if running.step().is_some_and(joins) {
            return Some("it is about to join the core".to_owned());
        }
        if let Some((above, _)) = shape.above(relay).filter(|(above, _)| !shape.is_core(*above))
            && names.is_empty()
        {
            return Some(format!(
                "it hangs on {}, which is outside the core",
                self.relay_name(above)
            ));
        }
        Some(match names.is_empty() {
            true => "too little is free for it to be in the core".to_owned(),
            false => format!("it has no link that can be used with {}", names.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form_by(
        hops: &[TreeHop],
        links: &[(u16, u16)],
        sets: [&[u16]; 3],
    ) -> (Vec<TreeHop>, Vec<PeerLink>) {
        let [before, out, kept] =
            sets.map(|of| of.iter().map(|of| RelayId(*of)).collect::<BTreeSet<_>>());
        let joined = joined(links);
        let choice = Choice { joined: &joined, before: &before, out: &out, kept: &kept };
        form(hops, &choice, false)
    }

    /// Links by the pairs that they join; the number of a link is that of both, as digits.
    fn joined(pairs: &[(u16, u16)]) -> Joined {
        let both = pairs.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]);
        let link = |one: u16, other: u16| LinkId(u32::from(one.min(other) * 10 + one.max(other)));
        both.map(|(one, other)| ((RelayId(one), RelayId(other)), link(one, other))).collect()
    }

    /// A tree by the relays, each with the one above; the first is the root.
    fn tree(hops: &[(u16, u16)]) -> Vec<TreeHop> {
        let hop = |(relay, above): &(u16, u16)| {
            let link = LinkId(u32::from(*relay.min(above) * 10 + *relay.max(above)));
            let above = (*above > 0).then_some((RelayId(*above), link));
            TreeHop { relay: RelayId(*relay), above }
        };
        hops.iter().map(hop).collect()
    }

    fn ends(mesh: &[PeerLink]) -> Vec<(u16, u16)> {
        mesh.iter().map(|peers| (peers.ends[0].0, peers.ends[1].0)).collect()
    }

    #[test]
    fn relays_that_are_all_joined_hang_on_the_root_and_others_stay_where_they_are() {
        // A line of four, of which three are joined to each other.
        let line = tree(&[(1, 0), (2, 1), (3, 2), (4, 3)]);
        let links = [(1, 2), (2, 3), (1, 3), (3, 4)];
        let (hops, mesh) = form_by(&line, &links, [&[], &[], &[]]);
        assert_eq!(ends(&mesh), [(1, 2), (1, 3), (2, 3)]);
        assert_eq!(hops, tree(&[(1, 0), (2, 1), (3, 1), (4, 3)]));
        let shape = Shape::meshed(hops, mesh, |_| Load::default()).unwrap();
        assert_eq!(shape.core(), BTreeSet::from([1, 2, 3].map(RelayId)));
    }

    #[test]
    fn the_largest_mesh_is_taken_and_its_root_is_one_of_it() {
        // The root has one link, and its neighbour is in a mesh of three.
        let star = tree(&[(1, 0), (2, 1), (3, 2), (4, 2)]);
        let links = [(1, 2), (2, 3), (2, 4), (3, 4)];
        let (hops, mesh) = form_by(&star, &links, [&[], &[], &[1, 2, 3, 4]]);
        assert_eq!(ends(&mesh), [(2, 3), (2, 4), (3, 4)]);
        assert_eq!(hops, tree(&[(2, 0), (1, 2), (3, 2), (4, 2)]));
        // One that is left out hangs where it hung.
        let (hops, mesh) = form_by(&star, &links, [&[3], &[4], &[]]);
        assert_eq!(ends(&mesh), [(2, 3)], "3 was in it, and so it is before 1");
        assert_eq!(hops, tree(&[(2, 0), (1, 2), (3, 2), (4, 2)]));
    }

    #[test]
    fn a_link_that_is_lost_costs_the_mesh_one_relay() {
        let four = tree(&[(1, 0), (2, 1), (3, 1), (4, 1)]);
        let all = [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)];
        for lost in all {
            let left: Vec<_> = all.into_iter().filter(|pair| *pair != lost).collect();
            let (hops, mesh) = form_by(&four, &left, [&[1, 2, 3, 4], &[], &[]]);
            assert_eq!(mesh.len(), 3, "three are left without {lost:?}");
            assert!(!ends(&mesh).contains(&lost));
            assert_eq!(hops.len(), 4);
        }
    }

    #[test]
    fn the_root_stays_though_more_of_a_core_are_joined_elsewhere() {
        // 1 has lost its links with the others of the core, and more hangs on it.
        let tree = tree(&[(1, 0), (4, 1), (5, 1), (3, 5), (2, 3)]);
        let joined = joined(&[(1, 4), (1, 5), (3, 5), (2, 3)]);
        let [before, out] = [[1, 2, 3], [4, 5, 5]].map(|of| BTreeSet::from(of.map(RelayId)));
        let kept = BTreeSet::new();
        let choice = Choice { joined: &joined, before: &before, out: &out, kept: &kept };
        let formed = |root_stays| form(&tree, &choice, root_stays);
        assert_eq!(formed(true), (tree.clone(), Vec::new()));
        let (turned, mesh) = formed(false);
        assert_eq!((turned[0].relay, ends(&mesh)), (RelayId(3), vec![(3, 2)]));
    }

    #[test]
    fn a_relay_that_is_kept_does_not_leave_its_link_to_be_in_the_mesh() {
        // 5 hangs on 4, which is outside; it has links with both in the core.
        let line = tree(&[(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]);
        let links = [(1, 2), (2, 3), (3, 4), (4, 5), (1, 5), (2, 5)];
        let (hops, mesh) = form_by(&line, &links, [&[1, 2], &[], &[1, 2, 3, 4, 5]]);
        assert_eq!(ends(&mesh), [(1, 2)]);
        assert_eq!(hops, line);
        // As one that comes new it may choose.
        let (hops, mesh) = form_by(&line, &links, [&[1, 2], &[], &[1, 2, 3, 4]]);
        assert_eq!(ends(&mesh), [(1, 2), (1, 5), (2, 5)]);
        assert_eq!(hops, tree(&[(1, 0), (2, 1), (5, 1), (3, 2), (4, 3)]));
    }
}
