//! What links carry of each comtree, as metrics and the console show it.

use super::SharedNet;
use canopy_node::ThreadStatus;
use canopy_relay::{BranchStatus, ComtreeStatus};
use canopy_session::PublicKey;
use canopy_wire::Comtree;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a link carries of a comtree, or of several: bits a second of updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ComtreeLoad {
    /// Null for the sum of those that are not named.
    pub(crate) comtree: Option<u32>,
    /// What is there for the neighbour.
    pub(crate) bits_offered: u64,
    /// What it is sent.
    pub(crate) bits_out: u64,
    /// What it may be sent; 0 for no limit.
    pub(crate) bits_allowed: u64,
}

impl ComtreeLoad {
    fn add(&mut self, branch: &BranchStatus) {
        self.bits_offered += branch.bits_offered;
        self.bits_out += branch.bits_out;
        self.bits_allowed += branch.bits_allowed;
    }
}

/// The comtrees of a relay by their deliveries, the most first. Unlike the loads of the moment these only
/// grow, so the order seldom changes.
pub(crate) struct Busiest(BTreeMap<Comtree, usize>);

impl Busiest {
    pub(crate) fn of(comtrees: &[ComtreeStatus]) -> Busiest {
        let mut comtrees: Vec<_> = comtrees.iter().collect();
        comtrees.sort_by_key(|one| (Reverse(one.counters.deliveries_out), one.comtree));
        Busiest(comtrees.iter().enumerate().map(|(rank, one)| (one.comtree, rank)).collect())
    }

    /// The loads that some branches make, by comtree: of the `most` busiest of these comtrees each, and of the
    /// others together.
    pub(crate) fn loads<'a>(
        &self,
        branches: impl Iterator<Item = &'a BranchStatus>,
        most: usize,
    ) -> Vec<ComtreeLoad> {
        let mut by_rank: BTreeMap<(usize, Comtree), ComtreeLoad> = BTreeMap::new();
        for branch in branches {
            let comtree = branch.id.comtree;
            let rank = self.0.get(&comtree).copied().unwrap_or(usize::MAX);
            let load = by_rank.entry((rank, comtree)).or_default();
            load.comtree = Some(comtree.0);
            load.add(branch);
        }
        let mut loads: Vec<_> = by_rank.into_values().collect();
        let others = loads.split_off(loads.len().min(most));
        loads.sort_by_key(|load| load.comtree);
        if !others.is_empty() {
            let mut sum = ComtreeLoad::default();
            for one in &others {
                sum.bits_offered += one.bits_offered;
                sum.bits_out += one.bits_out;
                sum.bits_allowed += one.bits_allowed;
            }
            loads.push(sum);
        }
        loads
    }

    /// The same for each of a relay's links, by the neighbour's name. Data threads may have a link each with
    /// one neighbour; these count as one.
    pub(crate) fn loads_of_links(
        &self,
        status: &ThreadStatus,
        net: &SharedNet,
        most: usize,
    ) -> BTreeMap<String, Vec<ComtreeLoad>> {
        let mut by_link: BTreeMap<PublicKey, Vec<&BranchStatus>> = BTreeMap::new();
        for branch in &status.branches {
            by_link.entry(branch.id.link).or_default().push(branch);
        }
        let of_link = |(key, branches): (PublicKey, Vec<&BranchStatus>)| {
            (net.name(&key), self.loads(branches.into_iter(), most))
        };
        by_link.into_iter().map(of_link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_relay::{BranchId, BranchRole, ComtreeCounters};

    fn branch(comtree: u32, bits_out: u64) -> BranchStatus {
        BranchStatus {
            id: BranchId { comtree: Comtree(comtree), link: [1; 32], thread: 0 },
            role: BranchRole::Child,
            site: 2,
            is_up: true,
            subscribed: 0,
            subscribes: 0,
            unacknowledged: 0,
            bits_offered: 10 * bits_out,
            bits_out,
            bits_allowed: 2 * bits_out,
        }
    }

    #[test]
    fn the_busiest_comtrees_of_a_link_are_named_and_the_others_are_summed() {
        let comtree = |(id, deliveries_out)| ComtreeStatus {
            comtree: Comtree(id),
            participants: 0,
            counters: ComtreeCounters { deliveries_out, ..ComtreeCounters::default() },
        };
        let busiest = Busiest::of(&[(1, 5), (2, 70), (3, 6), (4, 80)].map(comtree));
        let branches = [branch(1, 1), branch(2, 10), branch(3, 100), branch(2, 20)];
        let load = |comtree, bits_out| ComtreeLoad {
            comtree,
            bits_offered: 10 * bits_out,
            bits_out,
            bits_allowed: 2 * bits_out,
        };
        let all = busiest.loads(branches.iter(), 3);
        assert_eq!(all, [load(Some(1), 1), load(Some(2), 30), load(Some(3), 100)]);
        let two = busiest.loads(branches.iter(), 2);
        assert_eq!(two, [load(Some(2), 30), load(Some(3), 100), load(None, 1)]);
    }

    #[test]
    fn links_of_several_data_threads_with_one_neighbour_are_one() {
        let mut other = branch(7, 5);
        other.id.thread = 1;
        let status =
            ThreadStatus { branches: vec![branch(7, 3), other], ..ThreadStatus::default() };
        let busiest = Busiest::of(&status.comtrees);
        let loads = busiest.loads_of_links(&status, &SharedNet::default(), 8);
        let loads: Vec<_> = loads.into_values().collect();
        assert_eq!(loads.len(), 1);
        assert_eq!((loads[0].len(), loads[0][0].bits_out), (1, 8));
    }
}
