//! Where an update to a group goes over the branches that relays have at a moment, in the simplest way: all
//! relays want it, and nothing is on its way. What it is held against is that it arrives once.

use canopy_control::RelayId;
use canopy_control::signal::{Branch, Role};
use std::collections::{BTreeMap, VecDeque};

/// A relay as it is now.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub(crate) branches: Vec<Branch>,
    /// Whether what comes twice from above passes once.
    pub(crate) passes_once: bool,
}

/// Who sees so many copies sees more than two ways can bring.
const MOST_COPIES: u32 = 8;

/// How often an update that is published at a relay arrives at each. A relay takes nothing over a link over which
/// it has no branch.
pub(crate) fn deliveries(relays: &BTreeMap<RelayId, At>, from: RelayId) -> BTreeMap<RelayId, u32> {
    let mut counts: BTreeMap<RelayId, u32> = BTreeMap::from([(from, 1)]);
    let mut queue = VecDeque::from([(from, None::<Branch>)]);
    while let Some((relay, over)) = queue.pop_front() {
        let Some(at) = relays.get(&relay) else { continue };
        let has_parent = at.branches.iter().any(|of| of.role == Role::Parent && knows(relays, of));
        for next in at.branches.iter().filter(|next| passes(has_parent, over.as_ref(), next)) {
            let to = RelayId(next.site);
            let Some(there) = relays.get(&to) else { continue };
            let taken = there.branches.iter().find(|of| of.link == next.link);
            let Some(taken) = taken.filter(|of| !of.role.is_standby()) else { continue };
            let count = counts.entry(to).or_default();
            let is_repeated = *count > 0 && there.passes_once && taken.role != Role::Child;
            if is_repeated || *count >= MOST_COPIES {
                continue;
            }
            *count += 1;
            queue.push_back((to, Some(*taken)));
        }
    }
    counts
}

/// Whether the neighbour over a branch has one as well.
fn knows(relays: &BTreeMap<RelayId, At>, of: &Branch) -> bool {
    let there = relays.get(&RelayId(of.site));
    there.is_some_and(|there| there.branches.iter().any(|back| back.link == of.link))
}

/// Whether a relay sends what came over a branch, or from a participant, to a neighbour.
fn passes(has_parent: bool, over: Option<&Branch>, next: &Branch) -> bool {
    let is_back = over.is_some_and(|over| over.link == next.link);
    let among_peers = over.is_some_and(|over| over.role.is_peer()) && next.role.is_peer();
    let gets = match next.role {
        Role::LastPeer | Role::StandbyParent | Role::StandbyChild => false,
        Role::NextParent => !has_parent,
        _ => true,
    };
    // What comes from above goes up to nobody.
    let is_up = |of: &Branch| matches!(of.role, Role::Parent | Role::NextParent);
    let turns = over.is_some_and(is_up) && is_up(next);
    gets && !is_back && !among_peers && !turns
}

/// Whether a meshed core changes at a relay: what comes twice passes once as long as it has these branches.
pub(crate) fn is_doubled(branches: &[Branch]) -> bool {
    branches.iter().any(|of| matches!(of.role, Role::NextPeer | Role::LastPeer))
}

/// The same, or it has two parents, of which the next one may bring the same.
pub(crate) fn has_two_ways(branches: &[Branch]) -> bool {
    is_doubled(branches) || branches.iter().any(|of| of.role == Role::NextParent)
}

/// What is wrong if an update of some of these relays does not arrive once at the others.
pub(crate) fn check_once(
    relays: &BTreeMap<RelayId, At>,
    with_members: &[RelayId],
) -> Result<(), String> {
    for from in with_members {
        let counts = deliveries(relays, *from);
        for to in with_members {
            match counts.get(to).copied().unwrap_or_default() {
                1 => {}
                count => {
                    return Err(format!("{} of {}: {count} times, with {relays:#?}", to.0, from.0));
                }
            }
        }
    }
    Ok(())
}
