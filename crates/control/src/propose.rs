//! Links that the controller proposes between relays that have measured their delays to each other
//! (Forest §3.1): few for each relay, all relays joined, twice where possible, and no long ways round.
//!
//! A pure function: the same measurements give the same links, whatever their order. Links that are
//! given are kept, and count. Links that were proposed before stay, and are added to, unless others
//! would make the ways much shorter; so a measurement that trembles moves nothing.

use crate::model::{Origin, RelayId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// What passing a relay costs beside the links' delays, microseconds. So on a network whose delays are
/// small few hops count, and not what is noise.
const HOP: u64 = 500;
/// Ways are compared from so many relays at most, for the sake of large networks.
const MOST_SOURCES: usize = 64;

/// A relay that may be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Which.
    pub(crate) relay: RelayId,
    /// How many links it has at most. What is needed to join all relays may exceed it by one.
    pub(crate) most: usize,
}

/// How links are proposed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Proposing {
    /// Links that were proposed before are given up for others if the ways between all relays get
    /// shorter by this share, 0 to 1, on the average.
    pub(crate) least_gain: f64,
    /// A link is added where the way over the links so far is longer than this many times the
    /// measured delay.
    pub(crate) stretch: f64,
}

impl Default for Proposing {
    fn default() -> Proposing {
        Proposing { least_gain: 0.25, stretch: 1.5 }
    }
}

/// Two relays, the one with the lower number first.
pub(crate) type Pair = (RelayId, RelayId);

/// Two relays as a [`Pair`].
pub(crate) fn pair(one: RelayId, other: RelayId) -> Pair {
    (one.min(other), one.max(other))
}

/// Two relays by their places among the sites, and how long a link of theirs is with its hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    length: u64,
    ends: [usize; 2],
}

/// The links so far, by the places of their ends.
struct Draft<'a> {
    sites: &'a [Site],
    links: Vec<Vec<(usize, u64)>>,
    proposed: BTreeMap<[usize; 2], Origin>,
}

/// The links to have beside those that are given, and why, by the delays one way that were measured,
/// microseconds. `before` are those that were proposed last time.
pub(crate) fn propose(
    sites: &[Site],
    measured: &BTreeMap<Pair, u32>,
    given: &BTreeSet<Pair>,
    before: &BTreeMap<Pair, Origin>,
    proposing: &Proposing,
) -> BTreeMap<Pair, Origin> {
    let places: BTreeMap<RelayId, usize> =
        sites.iter().enumerate().map(|(place, site)| (site.relay, place)).collect();
    let place = |(from, to): &Pair| {
        (from < to).then_some(())?;
        Some([*places.get(from)?, *places.get(to)?])
    };
    let candidate = |(pair, delay): (&Pair, &u32)| {
        Some(Candidate { length: u64::from(*delay) + HOP, ends: place(pair)? })
    };
    let mut measured: Vec<Candidate> = measured.iter().filter_map(candidate).collect();
    measured.sort_unstable();
    let given: BTreeSet<[usize; 2]> = given.iter().filter_map(place).collect();
    let before: BTreeMap<[usize; 2], Origin> =
        before.iter().filter_map(|(pair, origin)| Some((place(pair)?, *origin))).collect();
    let draft = |before: &BTreeMap<[usize; 2], Origin>| {
        let mut draft = Draft::new(sites, &measured, &given);
        draft.keep(&measured, before);
        draft.connect(&measured);
        draft.connect_twice(&measured);
        draft.shorten(&measured, proposing.stretch);
        draft
    };
    let (kept, fresh) = (draft(&before), draft(&BTreeMap::new()));
    let (apart, ways) = kept.ways(&measured);
    let (fresh_apart, fresh_ways) = fresh.ways(&measured);
    let gains = fresh_ways < ways * (1.0 - proposing.least_gain) && fresh_apart <= apart;
    let better = if gains || fresh_apart < apart { fresh } else { kept };
    let named = |([from, to], origin): ([usize; 2], Origin)| {
        (pair(sites[from].relay, sites[to].relay), origin)
    };
    better.proposed.into_iter().map(named).collect()
}

impl Draft<'_> {
    /// The given links alone. Of one that was not measured nothing is known but that it joins.
    fn new<'a>(
        sites: &'a [Site],
        measured: &[Candidate],
        given: &BTreeSet<[usize; 2]>,
    ) -> Draft<'a> {
        let links = vec![Vec::new(); sites.len()];
        let mut draft = Draft { sites, links, proposed: BTreeMap::new() };
        for candidate in measured.iter().filter(|candidate| given.contains(&candidate.ends)) {
            draft.join(*candidate);
        }
        for ends in given.iter().filter(|ends| ends[0] != ends[1]) {
            if !draft.is_joined(*ends) {
                draft.join(Candidate { length: HOP, ends: *ends });
            }
        }
        draft
    }

    fn join(&mut self, Candidate { length, ends: [from, to] }: Candidate) {
        self.links[from].push((to, length));
        self.links[to].push((from, length));
    }

    fn is_joined(&self, [from, to]: [usize; 2]) -> bool {
        self.links[from].iter().any(|(other, _)| *other == to)
    }

    /// Whether both ends have room, with so many links beyond the most.
    fn has_room(&self, ends: [usize; 2], beyond: usize) -> bool {
        ends.iter().all(|end| self.links[*end].len() < self.sites[*end].most + beyond)
    }

    fn take(&mut self, candidate: Candidate, origin: Origin) {
        self.join(candidate);
        self.proposed.insert(candidate.ends, origin);
    }

    /// Keeps what was proposed before, as far as there is room.
    fn keep(&mut self, candidates: &[Candidate], before: &BTreeMap<[usize; 2], Origin>) {
        for candidate in candidates {
            if let Some(origin) = before.get(&candidate.ends)
                && !self.is_joined(candidate.ends)
                && self.has_room(candidate.ends, 1)
            {
                self.take(*candidate, *origin);
            }
        }
    }

    /// Who is joined with whom, directly or not, without one relay.
    fn sets(&self, without: Option<usize>) -> Sets {
        let mut sets = Sets((0..self.sites.len()).collect());
        for (from, links) in self.links.iter().enumerate() {
            for (to, _) in links {
                if Some(from) != without && Some(*to) != without {
                    sets.join([from, *to]);
                }
            }
        }
        sets
    }

    /// Joins all relays, by the shortest links (Kruskal); first such that nobody has too many.
    fn connect(&mut self, candidates: &[Candidate]) {
        let mut sets = self.sets(None);
        for beyond in [0, 1] {
            for candidate in candidates {
                if self.has_room(candidate.ends, beyond) && sets.join(candidate.ends) {
                    self.take(*candidate, Origin::Joins);
                }
            }
        }
    }

    /// Adds links such that no relay's failure parts the others, where there are some.
    fn connect_twice(&mut self, candidates: &[Candidate]) {
        let mut all = self.sets(None);
        for without in 0..self.sites.len() {
            let mut sets = self.sets(Some(without));
            let neighbours: BTreeSet<usize> =
                self.links[without].iter().map(|(to, _)| sets.find(*to)).collect();
            if neighbours.len() < 2 {
                continue;
            }
            for candidate in candidates {
                let [from, to] = candidate.ends;
                if !candidate.ends.contains(&without)
                    && self.has_room(candidate.ends, 0)
                    && all.find(from) == all.find(to)
                    && sets.join(candidate.ends)
                {
                    self.take(*candidate, Origin::Spare);
                }
            }
        }
    }

    /// Adds links where the way so far is much longer than the direct one, the nearest first.
    fn shorten(&mut self, candidates: &[Candidate], stretch: f64) {
        for candidate in candidates {
            let [from, to] = candidate.ends;
            let most = (stretch * candidate.length as f64) as u64;
            if self.has_room(candidate.ends, 0)
                && !self.is_joined(candidate.ends)
                && self.lengths(from, Some(to), most)[to].is_none()
            {
                self.take(*candidate, Origin::Shortens);
            }
        }
    }

    /// How many pairs are not joined at all, and how long the ways between the others are, each in
    /// lengths of the direct one.
    fn ways(&self, measured: &[Candidate]) -> (usize, f64) {
        let step = self.sites.len().div_ceil(MOST_SOURCES).max(1);
        let mut of: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
        for Candidate { length, ends: [from, to] } in measured {
            of.entry(*from).or_default().push((*to, *length));
        }
        let (mut apart, mut sum) = (0, 0.0);
        for (from, others) in of.into_iter().filter(|(from, _)| from % step == 0) {
            let lengths = self.lengths(from, None, u64::MAX);
            for (to, direct) in others {
                match lengths[to] {
                    Some(length) => sum += length as f64 / direct as f64,
                    None => apart += 1,
                }
            }
        }
        (apart, sum)
    }

    /// How long the ways from a relay are, as far as they are no longer than this and not beyond `to`
    /// (Dijkstra).
    fn lengths(&self, from: usize, to: Option<usize>, most: u64) -> Vec<Option<u64>> {
        let mut known = vec![None; self.sites.len()];
        let mut queue = BinaryHeap::from([(Reverse(0_u64), from)]);
        while let Some((Reverse(far), at)) = queue.pop() {
            if known[at].is_some() {
                continue;
            }
            known[at] = Some(far);
            if to == Some(at) {
                break;
            }
            let next = self.links[at].iter().map(|(to, length)| (Reverse(far + length), *to));
            queue.extend(next.filter(|(Reverse(far), _)| *far <= most));
        }
        known
    }
}

/// Sets of places that are joined (union-find).
struct Sets(Vec<usize>);

impl Sets {
    fn find(&mut self, mut of: usize) -> usize {
        while self.0[of] != of {
            self.0[of] = self.0[self.0[of]];
            of = self.0[of];
        }
        of
    }

    /// Returns whether they were apart.
    fn join(&mut self, ends: [usize; 2]) -> bool {
        let [from, to] = ends.map(|end| self.find(end));
        self.0[from.max(to)] = from.min(to);
        from != to
    }
}

#[cfg(test)]
mod tests;
