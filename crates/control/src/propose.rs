//! Links that the controller proposes between relays that have measured their delays to each other
//! (Forest §3.1): few for each relay, all relays joined, twice where possible, and no long ways round.
//!
//! A pure function: the same measurements give the same links, whatever their order. Links that are
//! given are kept, and count. Links that were proposed before stay, and are added to, unless others
//! would make all ways together much shorter; so a measurement that trembles moves nothing.

use crate::model::RelayId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A relay that may be joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Which.
    pub relay: RelayId,
    /// What can be given to links of what it sends and receives, bits a second.
    pub budget: f64,
}

/// How links are proposed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposing {
    /// How many links a relay has at most. What is needed to join all relays may exceed it by one.
    pub degree: usize,
    /// What a link is to bear each way, bits a second.
    pub rate: f64,
    /// Links that were proposed before are given up for others if the ways between all relays get
    /// shorter by this share, 0 to 1, on the average.
    pub least_gain: f64,
    /// A link is added where the way over the links so far is longer than this many times the
    /// measured delay.
    pub stretch: f64,
}

impl Default for Proposing {
    fn default() -> Proposing {
        Proposing { degree: 4, rate: 100e6, least_gain: 0.25, stretch: 1.5 }
    }
}

/// Two relays, the one with the lower number first.
pub type Pair = (RelayId, RelayId);

/// Two relays as a [`Pair`].
pub fn pair(one: RelayId, other: RelayId) -> Pair {
    (one.min(other), one.max(other))
}

/// The links so far.
struct Draft<'a> {
    proposing: &'a Proposing,
    budget: BTreeMap<RelayId, f64>,
    links: BTreeMap<RelayId, BTreeMap<RelayId, u32>>,
    proposed: BTreeSet<Pair>,
}

/// The links to have beside those that are given, by the delays one way that were measured,
/// microseconds. `before` are those that were proposed last time.
pub fn propose(
    sites: &[Site],
    measured: &BTreeMap<Pair, u32>,
    given: &BTreeSet<Pair>,
    before: &BTreeSet<Pair>,
    proposing: &Proposing,
) -> BTreeSet<Pair> {
    let known: BTreeSet<RelayId> = sites.iter().map(|site| site.relay).collect();
    let is_known = |(from, to): &Pair| from < to && known.contains(from) && known.contains(to);
    let measured: Vec<(u32, Pair)> = measured
        .iter()
        .filter(|(pair, _)| is_known(pair))
        .map(|(pair, delay)| (*delay, *pair))
        .collect();
    let is_kept = |pair: &Pair| before.contains(pair);
    let draft = |keep: &dyn Fn(&Pair) -> bool| {
        let mut draft = Draft::new(sites, proposing);
        let mut candidates = Vec::new();
        for (delay, pair) in measured.iter().copied() {
            match given.contains(&pair) {
                true => draft.join(pair.0, pair.1, delay),
                false => candidates.push((delay, pair)),
            }
        }
        for pair in given.iter().filter(|pair| is_known(pair)) {
            if !draft.is_joined(*pair) {
                draft.join(pair.0, pair.1, 0);
            }
        }
        candidates.sort_unstable();
        for (delay, pair) in candidates.iter().filter(|(_, pair)| keep(pair)) {
            if draft.has_room(*pair, 1) {
                draft.take(*pair, *delay);
            }
        }
        draft.connect(&candidates);
        draft.connect_twice(&candidates);
        draft.shorten(&candidates);
        draft
    };
    let (kept, fresh) = (draft(&is_kept), draft(&|_| false));
    let (apart, ways) = kept.ways(&measured);
    let (fresh_apart, fresh_ways) = fresh.ways(&measured);
    let gains = fresh_ways < ways * (1.0 - proposing.least_gain) && fresh_apart <= apart;
    if gains || fresh_apart < apart { fresh.proposed } else { kept.proposed }
}

impl Draft<'_> {
    fn new<'a>(sites: &[Site], proposing: &'a Proposing) -> Draft<'a> {
        Draft {
            proposing,
            budget: sites.iter().map(|site| (site.relay, site.budget)).collect(),
            links: sites.iter().map(|site| (site.relay, BTreeMap::new())).collect(),
            proposed: BTreeSet::new(),
        }
    }

    fn degree(&self, relay: RelayId) -> usize {
        self.links.get(&relay).map_or(0, BTreeMap::len)
    }

    fn join(&mut self, from: RelayId, to: RelayId, delay: u32) {
        for (from, to) in [(from, to), (to, from)] {
            self.links.entry(from).or_default().insert(to, delay);
            if let Some(budget) = self.budget.get_mut(&from) {
                *budget -= self.proposing.rate;
            }
        }
    }

    /// Whether both ends have room, with so many links beyond the degree.
    fn has_room(&self, (from, to): Pair, beyond: usize) -> bool {
        [from, to].iter().all(|end| {
            let budget = self.budget.get(end).copied().unwrap_or(0.0);
            self.degree(*end) < self.proposing.degree + beyond && budget >= self.proposing.rate
        })
    }

    fn take(&mut self, pair: Pair, delay: u32) {
        self.join(pair.0, pair.1, delay);
        self.proposed.insert(pair);
    }

    /// Whom a relay reaches, without one relay.
    fn reach(&self, from: RelayId, without: Option<RelayId>) -> BTreeSet<RelayId> {
        let mut reached = BTreeSet::from([from]);
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for to in self.links.get(&at).into_iter().flat_map(BTreeMap::keys) {
                if Some(*to) != without && reached.insert(*to) {
                    open.push(*to);
                }
            }
        }
        reached
    }

    /// Joins all relays, by the shortest links (Kruskal); first such that nobody has too many.
    fn connect(&mut self, candidates: &[(u32, Pair)]) {
        for beyond in [0, 1] {
            for (delay, pair) in candidates {
                if self.has_room(*pair, beyond) && !self.reach(pair.0, None).contains(&pair.1) {
                    self.take(*pair, *delay);
                }
            }
        }
    }

    /// Adds links such that no relay's failure parts the others, where there are some.
    fn connect_twice(&mut self, candidates: &[(u32, Pair)]) {
        let relays: Vec<RelayId> = self.links.keys().copied().collect();
        for without in relays {
            for (delay, pair) in candidates {
                let is_end = pair.0 == without || pair.1 == without;
                if !is_end
                    && self.has_room(*pair, 0)
                    && self.reach(pair.0, None).contains(&pair.1)
                    && !self.reach(pair.0, Some(without)).contains(&pair.1)
                {
                    self.take(*pair, *delay);
                }
            }
        }
    }

    /// Adds links where the way so far is much longer than the direct one, the nearest first.
    fn shorten(&mut self, candidates: &[(u32, Pair)]) {
        for (delay, pair) in candidates {
            let most = self.proposing.stretch * f64::from(*delay);
            if !self.is_joined(*pair) && self.has_room(*pair, 0) && self.way(*pair) > most {
                self.take(*pair, *delay);
            }
        }
    }

    fn is_joined(&self, pair: Pair) -> bool {
        self.links.get(&pair.0).is_some_and(|of| of.contains_key(&pair.1))
    }

    /// How many pairs are not joined at all, and how long the ways between the others are together.
    fn ways(&self, measured: &[(u32, Pair)]) -> (usize, f64) {
        let ways = || measured.iter().map(|(_, pair)| self.way(*pair));
        (ways().filter(|way| way.is_infinite()).count(), ways().filter(|way| way.is_finite()).sum())
    }

    /// How long the way between two relays is (Dijkstra).
    fn way(&self, (from, to): Pair) -> f64 {
        let mut known = BTreeSet::new();
        let mut queue = BinaryHeap::from([(Reverse(0_u64), from)]);
        while let Some((Reverse(far), at)) = queue.pop() {
            if at == to {
                return far as f64;
            }
            if known.insert(at) {
                let next = self.links.get(&at).into_iter().flatten();
                queue.extend(next.map(|(to, delay)| (Reverse(far + u64::from(*delay)), *to)));
            }
        }
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Places = Vec<(u32, u32)>;

    /// Delays on a plane, with an error of each measurement of at most so much.
    fn measure(places: &Places, error: impl Fn(usize, usize) -> f64) -> BTreeMap<Pair, u32> {
        let mut measured = BTreeMap::new();
        for from in 0..places.len() {
            for to in from + 1..places.len() {
                let x = f64::from(places[from].0) - f64::from(places[to].0);
                let y = f64::from(places[from].1) - f64::from(places[to].1);
                let delay = (x.hypot(y) + 100.0) * (1.0 + error(from, to));
                measured.insert((id(from), id(to)), delay as u32);
            }
        }
        measured
    }

    fn id(at: usize) -> RelayId {
        RelayId(at as u16 + 1)
    }

    fn sites(count: usize, budget: f64) -> Vec<Site> {
        (0..count).map(|at| Site { relay: id(at), budget }).collect()
    }

    fn draft<'a>(count: usize, links: &BTreeSet<Pair>, of: &'a Proposing) -> Draft<'a> {
        let mut draft = Draft::new(&sites(count, 1e12), of);
        links.iter().for_each(|(from, to)| draft.join(*from, *to, 1));
        draft
    }

    fn places() -> impl Strategy<Value = Places> {
        proptest::collection::vec((0..50_000_u32, 0..50_000_u32), 1..14)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a7),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn all_are_joined_and_nobody_has_too_many(places in places(), degree in 3..6_usize) {
            let proposing = Proposing { degree, ..Proposing::default() };
            let count = places.len();
            let measured = measure(&places, |_, _| 0.0);
            let none = BTreeSet::new();
            let links = propose(&sites(count, 1e12), &measured, &none, &none, &proposing);
            let draft = draft(count, &links, &proposing);
            for at in 0..count {
                prop_assert_eq!(draft.reach(id(at), None).len(), count);
                prop_assert!(draft.degree(id(at)) <= degree);
            }
        }

        #[test]
        fn with_room_no_relay_that_fails_parts_the_others(places in places()) {
            let proposing = Proposing { degree: places.len(), ..Proposing::default() };
            let (count, none) = (places.len(), BTreeSet::new());
            let measured = measure(&places, |_, _| 0.0);
            let links = propose(&sites(count, 1e12), &measured, &none, &none, &proposing);
            let draft = draft(count, &links, &proposing);
            for without in 0..count {
                let from = id(usize::from(without == 0));
                prop_assert!(count < 3 || draft.reach(from, Some(id(without))).len() == count - 1);
            }
            for (pair, delay) in &measured {
                let mut draft = Draft::new(&sites(count, 1e12), &proposing);
                links.iter().for_each(|(from, to)| draft.join(*from, *to, measured[&(*from, *to)]));
                prop_assert!(draft.way(*pair) <= f64::from(*delay) * proposing.stretch);
            }
        }

        #[test]
        fn what_trembles_moves_nothing(places in places(), errors in proptest::collection::vec(-0.04..0.04_f64, 97)) {
            let (count, none, of) = (places.len(), BTreeSet::new(), Proposing::default());
            let sites = sites(count, 1e12);
            let measured = measure(&places, |_, _| 0.0);
            let links = propose(&sites, &measured, &none, &none, &of);
            prop_assert_eq!(&propose(&sites, &measured, &none, &links, &of), &links, "settled");
            let error = |from: usize, to: usize| errors[(from * 31 + to) % errors.len()];
            let trembling = measure(&places, error);
            let after = propose(&sites, &trembling, &none, &links, &of);
            prop_assert!(after.is_superset(&links), "{:?} of {:?}", after, links);
        }

        #[test]
        fn given_links_count_and_are_not_proposed(places in places(), given in 0..20_usize) {
            let measured = measure(&places, |_, _| 0.0);
            let given: BTreeSet<Pair> = measured.keys().copied().step_by(3).take(given).collect();
            let none = BTreeSet::new();
            let of = Proposing::default();
            let links = propose(&sites(places.len(), 1e12), &measured, &given, &none, &of);
            prop_assert!(links.is_disjoint(&given));
            let all = links.union(&given).copied().collect();
            let reached = draft(places.len(), &all, &of).reach(id(0), None);
            prop_assert_eq!(reached.len(), places.len());
        }

        #[test]
        fn no_uplink_is_promised_twice(places in places(), budget in 0..5_u32) {
            let of = Proposing::default();
            let budget_bits = f64::from(budget) * of.rate;
            let none = BTreeSet::new();
            let measured = measure(&places, |_, _| 0.0);
            let links = propose(&sites(places.len(), budget_bits), &measured, &none, &none, &of);
            let draft = draft(places.len(), &links, &of);
            for at in 0..places.len() {
                prop_assert!(draft.degree(id(at)) <= budget as usize);
            }
        }
    }
}
