//! From what a relay has of the overlay to what it is to have, in an order in which the data plane
//! takes every step.

use crate::Net;
use canopy_relay::{BranchConfig, BranchRole, Change};

/// The changes that make `after` of `before`, in order. At no step does a relay have a second parent,
/// or a parent beside a neighbour in the core; and no step needs one that comes later:
///
/// 1. branches go, also those that are to be another's or over a link that changes;
/// 2. links and comtrees go;
/// 3. comtrees and links come;
/// 4. branches that stay change their roles, the old parents first;
/// 5. branches come, next parents behind the parents;
/// 6. budgets and fairness of comtrees change, budgets of branches, and what links bear.
///
/// A link that is another one now is taken away and added. So is a branch whose neighbour has another
/// site, and one that is on standby from now on. Of a
/// comtree that is on both sides, nothing else changes.
pub fn changes(before: &Net, after: &Net) -> Vec<Change> {
    let mut changes = Vec::new();
    if before.most_subscriptions != after.most_subscriptions {
        changes.push(Change::LimitSubscriptions(after.most_subscriptions));
    }
    let stays = |branch: &BranchConfig| {
        after.branches.get(&branch.id).is_some_and(|next| next.site == branch.site)
            && before.links.get(&branch.id.link) == after.links.get(&branch.id.link)
            && (branch.role == BranchRole::Standby || !becomes_standby(branch, after))
    };
    let going = before.branches.values().filter(|branch| !stays(branch));
    changes.extend(going.map(|branch| Change::RemoveBranch(branch.id)));
    for (key, link) in &before.links {
        if after.links.get(key) != Some(link) {
            changes.push(Change::RemoveLink { key: *key, thread: link.thread });
        }
    }
    let gone = before.comtrees.keys().filter(|id| !after.comtrees.contains_key(id));
    changes.extend(gone.map(|id| Change::RemoveComtree(*id)));
    let new = after.comtrees.iter().filter(|(id, _)| !before.comtrees.contains_key(id));
    changes.extend(new.map(|(_, config)| Change::AddComtree(config.clone())));
    for (key, link) in &after.links {
        if before.links.get(key) != Some(link) {
            changes.push(Change::AddLink(*link));
        }
    }
    changes.extend(roles(before, after, stays));
    let mut coming: Vec<_> = after
        .branches
        .values()
        .filter(|branch| before.branches.get(&branch.id).is_none_or(|old| !stays(old)))
        .collect();
    coming.sort_by_key(|branch| branch.role == BranchRole::NextParent);
    changes.extend(coming.into_iter().map(|branch| Change::AddBranch(*branch)));
    let fairness = after.comtrees.iter().filter_map(|(comtree, config)| {
        let fairness = config.fairness;
        let is_other = before.comtrees.get(comtree).is_some_and(|old| old.fairness != fairness);
        is_other.then_some(Change::SetFairness { comtree: *comtree, fairness })
    });
    changes.extend(fairness);
    changes.extend(budgets(before, after, stays));
    changes.extend(capacities(before, after, stays));
    changes
}

/// What links bear, and what branches have of that for certain, where it is something else than what the data
/// plane has then: a link and a branch that have just come have no limits and no guarantee.
fn capacities(before: &Net, after: &Net, stays: impl Fn(&BranchConfig) -> bool) -> Vec<Change> {
    let of_links = after.links.values().filter_map(|link| {
        let key = link.key;
        let stayed = before.links.get(&key) == Some(link);
        let before = before.capacities.get(&key).filter(|_| stayed).copied();
        let capacity = after.capacities.get(&key).copied().unwrap_or_default();
        let change = Change::SetLinkCapacity { key, thread: link.thread, capacity };
        (capacity != before.unwrap_or_default()).then_some(change)
    });
    let of_branches = after.branches.values().filter_map(|branch| {
        let id = branch.id;
        let stayed = before.branches.get(&id).is_some_and(&stays);
        let before = before.budgets.guarantees.get(&id).filter(|_| stayed).copied();
        let bits = after.budgets.guarantees.get(&id).copied().unwrap_or_default();
        let change = Change::SetBranchGuarantee { branch: id, bits };
        (bits != before.unwrap_or_default()).then_some(change)
    });
    of_links.chain(of_branches).collect()
}

/// The budgets that are others than what the data plane has then: a branch that has just come has no
/// limits, and a comtree those of all.
fn budgets(before: &Net, after: &Net, stays: impl Fn(&BranchConfig) -> bool) -> Vec<Change> {
    let at_first = &before.budgets.at_first;
    let had = |comtree| before.budgets.comtrees.get(comtree).unwrap_or(at_first);
    let comtrees = after.budgets.comtrees.iter();
    let of_comtrees = comtrees
        .filter(|(comtree, budget)| had(comtree) != *budget)
        .map(|(comtree, budget)| Change::SetComtreeBudget { comtree: *comtree, budget: *budget });
    let of_branches = after.branches.values().filter_map(|branch| {
        let id = branch.id;
        let stayed = before.branches.get(&id).is_some_and(&stays);
        let before = before.budgets.branches.get(&id).filter(|_| stayed).copied();
        let budget = after.budgets.branches.get(&id).copied().unwrap_or_default();
        let is_other = budget != before.unwrap_or_default();
        is_other.then_some(Change::SetBranchBudget { branch: id, budget })
    });
    of_comtrees.chain(of_branches).collect()
}

/// The new roles of the branches that stay. Who becomes a child comes first, because a relay may have
/// any number of those; then an old parent that moves into the core, and a next parent, which is the parent
/// where there is no other; then the others.
fn roles(before: &Net, after: &Net, stays: impl Fn(&BranchConfig) -> bool) -> Vec<Change> {
    let next = |branch: &BranchConfig| after.branches.get(&branch.id).map(|next| next.role);
    let mut turning: Vec<_> = before
        .branches
        .values()
        .filter(|branch| stays(branch))
        .filter_map(|branch| Some((branch, next(branch)?)))
        .filter(|(branch, role)| branch.role != *role)
        .collect();
    turning.sort_by_key(|(branch, role)| match (branch.role, role) {
        (_, BranchRole::Child | BranchRole::Standby) => 0,
        (BranchRole::Parent, _) => 1,
        (BranchRole::NextParent, _) => 2,
        _ => 3,
    });
    let change = |(branch, role): (&BranchConfig, BranchRole)| Change::SetBranchRole {
        branch: branch.id,
        role,
    };
    turning.into_iter().map(change).collect()
}

/// Whether a branch is to be one of standby, on which nothing is subscribed.
fn becomes_standby(branch: &BranchConfig, after: &Net) -> bool {
    after.branches.get(&branch.id).is_some_and(|next| next.role == BranchRole::Standby)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::{BranchId, ComtreeConfig, Down, LinkConfig};
    use canopy_wire::Comtree;
    use std::net::SocketAddr;

    /// In any order. Who is to be the next parent comes behind the parent, and is it once that is gone.
    const ROLES: [BranchRole; 6] = [
        BranchRole::Parent,
        BranchRole::Core,
        BranchRole::CorePeer,
        BranchRole::NextPeer,
        BranchRole::LastPeer,
        BranchRole::Child,
    ];

    fn link(number: u8, port: u16) -> LinkConfig {
        let path = SocketAddr::from(([10, 0, 0, number], port)).into();
        LinkConfig { key: [number; 32], path, thread: u16::from(number), calls: true }
    }

    fn branch(comtree: u32, number: u8, role: BranchRole, site: u16) -> BranchConfig {
        let link = link(number, 1);
        let id = BranchId { comtree: Comtree(comtree), link: link.key, thread: link.thread };
        BranchConfig { id, role, site }
    }

    fn net(comtrees: &[u32], links: &[LinkConfig], branches: &[BranchConfig]) -> Net {
        let comtree = |id: &u32| (Comtree(*id), ComtreeConfig::new(Comtree(*id), 1));
        Net {
            comtrees: comtrees.iter().map(comtree).collect(),
            links: links.iter().map(|link| (link.key, *link)).collect(),
            branches: branches.iter().map(|branch| (branch.id, *branch)).collect(),
            ..Net::default()
        }
    }

    /// Why the data plane would refuse to have this, if it would.
    fn fault(net: &Net) -> Option<String> {
        for comtree in net.comtrees.keys() {
            let roles = || {
                let on_it = net.branches.values().filter(|one| one.id.comtree == *comtree);
                let roles = on_it.map(|branch| branch.role);
                roles.filter(|role| role.gets_everything() || role.is_peer())
            };
            let parents = roles().filter(|role| *role == BranchRole::Parent).count();
            if parents > 1 || parents == 1 && roles().count() > 1 {
                return Some(format!("{:?} on {comtree:?}", roles().collect::<Vec<_>>()));
            }
            let mut sites: Vec<_> = net.branches.values().map(|b| (b.id.comtree, b.site)).collect();
            sites.sort();
            if sites.windows(2).any(|pair| pair[0] == pair[1]) {
                return Some(format!("two branches to one site: {sites:?}"));
            }
        }
        let loose = net.branches.keys().find(|id| {
            !net.links.contains_key(&id.link) || !net.comtrees.contains_key(&id.comtree)
        });
        loose.map(|id| format!("{id:?} hangs on nothing"))
    }

    /// Whether somebody is to be a last peer who is there and is no next peer, which the data plane refuses.
    fn is_hasty(before: &Net, after: &Net) -> bool {
        let last = after.branches.values().filter(|branch| branch.role == BranchRole::LastPeer);
        let was = |branch: &BranchConfig| before.branches.get(&branch.id).map(|before| before.role);
        let may = [None, Some(BranchRole::NextPeer), Some(BranchRole::LastPeer)];
        last.map(was).any(|before| !may.contains(&before))
    }

    /// Goes step by step as the data plane would, and returns the steps.
    fn go(before: &Net, after: &Net) -> Vec<Change> {
        let steps = changes(before, after);
        let mut net = before.clone();
        for step in &steps {
            let is_there = match step {
                Change::AddComtree(config) => net.comtrees.contains_key(&config.comtree),
                Change::AddLink(config) => net.links.contains_key(&config.key),
                Change::AddBranch(config) => net.branches.contains_key(&config.id),
                Change::RemoveComtree(id) => !net.comtrees.contains_key(id),
                Change::RemoveLink { key, thread } => {
                    net.links.get(key).map(|link| link.thread) != Some(*thread)
                }
                Change::RemoveBranch(id) | Change::SetBranchRole { branch: id, .. } => {
                    !net.branches.contains_key(id)
                }
                _ => false,
            };
            assert!(!is_there, "{step:?} cannot be in {steps:#?}");
            net.took(step);
            assert_eq!(fault(&net), None, "after {step:?} of {steps:#?}");
        }
        assert_eq!(net, *after, "{steps:#?}");
        steps
    }

    #[test]
    fn every_change_of_roles_is_taken_step_by_step() {
        let links = [1, 2, 3].map(|number| link(number, 1));
        let role = |number: usize| number.checked_sub(1).map(|number| ROLES[number]);
        let nets = (0..7 * 7 * 7).map(|number| {
            let roles = [number % 7, number / 7 % 7, number / 49];
            let branches = (1..).zip(roles).filter_map(|(link, number)| {
                Some(branch(1, link, role(number)?, 10 + u16::from(link)))
            });
            net(&[1], &links, &branches.collect::<Vec<_>>())
        });
        let valid: Vec<_> = nets.filter(|net| fault(net).is_none()).collect();
        // Without a parent 6³; with one of three, the other two are children or not there.
        assert_eq!(valid.len(), 216 + 3 * 4);
        for before in &valid {
            for after in valid.iter().filter(|after| !is_hasty(before, after)) {
                let steps = go(before, after);
                assert_eq!(steps.is_empty(), before == after);
                let is_loss = |step: &Change| matches!(step, Change::RemoveBranch(_));
                let lost = steps.iter().filter(|step| is_loss(step)).count();
                let gone = before.branches.keys().filter(|id| !after.branches.contains_key(id));
                assert_eq!(lost, gone.count(), "only what goes is taken away");
            }
        }
    }

    /// A relay that has left the core by a next parent joins it again with a child. Whichever branch comes
    /// first otherwise, the data plane takes nobody into the core beside a parent.
    #[test]
    fn a_next_parent_that_is_the_parent_joins_the_core_before_a_child() {
        let links = [1, 2].map(|number| link(number, 1));
        for (up, down) in [(1, 2), (2, 1)] {
            let nets = [BranchRole::NextParent, BranchRole::Core].map(|role| {
                let below = if role == BranchRole::Core { role } else { BranchRole::Child };
                net(&[1], &links, &[branch(1, up, role, 11), branch(1, down, below, 12)])
            });
            let steps = go(&nets[0], &nets[1]);
            let first = Change::SetBranchRole {
                branch: branch(1, up, BranchRole::Core, 11).id,
                role: BranchRole::Core,
            };
            assert!(
                steps.len() == 2 && format!("{:?}", steps[0]) == format!("{first:?}"),
                "{steps:?}"
            );
        }
    }

    #[test]
    fn comtrees_and_links_come_before_their_branches_and_go_after_them() {
        let empty = net(&[], &[], &[]);
        let child = BranchRole::Child;
        let full = net(
            &[1, 2],
            &[link(1, 1), link(2, 1)],
            &[
                branch(1, 1, BranchRole::Parent, 11),
                branch(1, 2, child, 12),
                branch(2, 1, child, 11),
            ],
        );
        assert_eq!(go(&empty, &full).len(), 7);
        assert_eq!(go(&full, &empty).len(), 7);
        assert_eq!(go(&full, &full).len(), 0);
    }

    #[test]
    fn a_link_that_has_changed_goes_and_comes_with_its_branches() {
        let branches = [branch(1, 1, BranchRole::Parent, 11), branch(1, 2, BranchRole::Child, 12)];
        let before = net(&[1], &[link(1, 1), link(2, 1)], &branches);
        let after = net(&[1], &[link(1, 2), link(2, 1)], &branches);
        let steps = go(&before, &after);
        assert!(
            matches!(
                steps[..],
                [
                    Change::RemoveBranch(_),
                    Change::RemoveLink { .. },
                    Change::AddLink(_),
                    Change::AddBranch(BranchConfig { role: BranchRole::Parent, .. })
                ]
            ),
            "{steps:?}"
        );
    }

    #[test]
    fn two_neighbours_can_change_their_sites() {
        let with_sites = |first, second| {
            let branches =
                [branch(1, 1, BranchRole::Parent, first), branch(1, 2, BranchRole::Child, second)];
            net(&[1], &[link(1, 1), link(2, 1)], &branches)
        };
        assert_eq!(go(&with_sites(11, 12), &with_sites(12, 11)).len(), 4);
    }

    #[test]
    fn capacities_and_guarantees_follow_their_links_and_branches() {
        let one = branch(1, 1, BranchRole::Parent, 11);
        let plain = net(&[1], &[link(1, 1)], &[one]);
        let mut shaped = plain.clone();
        let capacity = Down { bits: 1_000_000, updates: 0 };
        shaped.capacities.insert(link(1, 1).key, capacity);
        shaped.budgets.guarantees.insert(one.id, 300_000);
        let is_set = |steps: &[Change]| {
            let [.., of_link, of_branch] = steps else { return false };
            matches!(of_link, Change::SetLinkCapacity { capacity: it, .. } if *it == capacity)
                && matches!(of_branch, Change::SetBranchGuarantee { bits: 300_000, .. })
        };
        let steps = changes(&plain, &shaped);
        assert!(steps.len() == 2 && is_set(&steps), "{steps:?}");
        assert!(changes(&shaped, &shaped).is_empty());
        // A link that comes anew has lost both.
        let mut moved = net(&[1], &[link(1, 2)], &[one]);
        (moved.capacities, moved.budgets) = (shaped.capacities.clone(), shaped.budgets.clone());
        let steps = changes(&shaped, &moved);
        assert!(steps.len() == 6 && is_set(&steps), "{steps:?}");
        let mut taken = shaped.clone();
        steps.iter().for_each(|change| taken.took(change));
        assert_eq!(taken, moved);
        let steps = changes(&shaped, &plain);
        assert!(
            matches!(
                steps[..],
                [
                    Change::SetLinkCapacity { capacity: Down::NONE, .. },
                    Change::SetBranchGuarantee { bits: 0, .. }
                ]
            ),
            "{steps:?}"
        );
    }

    #[test]
    fn a_limit_changes_alone() {
        let before = net(&[1], &[], &[]);
        let after = Net { most_subscriptions: 9, ..before.clone() };
        assert!(matches!(go(&before, &after)[..], [Change::LimitSubscriptions(9)]));
    }
}
