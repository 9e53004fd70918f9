//! Links that the controller proposes between relays that have measured their delays to each other
//! (Forest §3.1): few for each relay, all relays joined, twice where possible, and no long ways round.
//!
//! The same measurements give the same links, whatever their order, and in however many pieces they are
//! worked out. Links that are given are kept, and count. Links that were proposed before stay, and are
//! added to, unless others would make the ways much shorter; so a measurement that trembles moves nothing.

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
    /// Whether it is about to leave: the others are joined without it.
    pub(crate) leaves: bool,
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

/// A proposal that is being worked out, piece by piece: with 1,000 relays it takes longer than the
/// controller may do nothing else.
#[derive(Debug)]
pub(crate) struct Proposal {
    sites: Vec<Site>,
    measured: Vec<Candidate>,
    proposing: Proposing,
    /// With what was proposed before, and without.
    drafts: [Draft; 2],
}

impl Proposal {
    /// Begins to work out the links to have beside those that are given, by the delays one way that were
    /// measured, microseconds. `before` are those that were proposed last time.
    pub(crate) fn new(
        sites: Vec<Site>,
        measured: &BTreeMap<Pair, u32>,
        given: &BTreeSet<Pair>,
        before: &BTreeMap<Pair, Origin>,
        proposing: Proposing,
    ) -> Proposal {
        let last = sites.iter().map(|site| usize::from(site.relay.0)).max().unwrap_or(0);
        let mut places = vec![None; last + 1];
        for (place, site) in sites.iter().enumerate() {
            places[usize::from(site.relay.0)] = Some(place);
        }
        let at = |relay: &RelayId| places.get(usize::from(relay.0)).copied().flatten();
        let place = |(from, to): &Pair| {
            (from < to).then_some(())?;
            Some([at(from)?, at(to)?])
        };
        let candidate = |(pair, delay): (&Pair, &u32)| {
            Some(Candidate { length: u64::from(*delay) + HOP, ends: place(pair)? })
        };
        let mut measured: Vec<Candidate> = measured.iter().filter_map(candidate).collect();
        measured.sort_unstable();
        let given: BTreeSet<[usize; 2]> = given.iter().filter_map(place).collect();
        let before: BTreeMap<[usize; 2], Origin> =
            before.iter().filter_map(|(pair, origin)| Some((place(pair)?, *origin))).collect();
        let drafts = [before, BTreeMap::new()]
            .map(|before| Draft { before, ..Draft::new(&sites, &measured, &given) });
        Proposal { sites, measured, proposing, drafts }
    }

    /// Goes on for so many steps, and those that end what was begun: looks at a candidate, or at a link on
    /// a way. Returns whether it is done.
    pub(crate) fn work(&mut self, steps: u64) -> bool {
        let mut left = steps;
        let stretch = self.proposing.stretch;
        let [kept, fresh] = &mut self.drafts;
        kept.work(&self.measured, stretch, &mut left)
            && fresh.work(&self.measured, stretch, &mut left)
    }

    /// The links, and why, once it is done.
    pub(crate) fn links(&self) -> BTreeMap<Pair, Origin> {
        let [kept, fresh] = &self.drafts;
        let gains = fresh.ways < kept.ways * (1.0 - self.proposing.least_gain);
        let is_better = gains && fresh.apart <= kept.apart || fresh.apart < kept.apart;
        let named = |(ends, origin): (&[usize; 2], &Origin)| {
            let [from, to] = ends.map(|end| self.sites[end].relay);
            (pair(from, to), *origin)
        };
        if is_better { fresh } else { kept }.proposed.iter().map(named).collect()
    }
}

/// The links so far, by the places of their ends.
#[derive(Debug)]
struct Draft {
    /// How many links each has at most, and whether it leaves.
    most: Vec<usize>,
    leaves: Vec<bool>,
    links: Vec<Vec<(usize, u64)>>,
    /// What is kept as far as there is room.
    before: BTreeMap<[usize; 2], Origin>,
    proposed: BTreeMap<[usize; 2], Origin>,
    stage: Stage,
    /// The candidates that may still be taken, the shortest first; some of them have no room any more.
    open: Vec<Candidate>,
    /// How many pairs are not joined at all, and how long the ways between the others are, each in
    /// lengths of the direct one.
    apart: usize,
    ways: f64,
}

/// What is done next with a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What was before is kept, and all relays are joined.
    Join,
    /// Those that this relay's failure would part are joined.
    Spare(usize),
    /// This one of the open candidates is taken if it makes a way much shorter.
    Shorten(usize),
    /// The ways from this relay are compared with the direct ones.
    Compare(usize),
}

impl Draft {
    /// The given links alone. Of one that was not measured nothing is known but that it joins.
    fn new(sites: &[Site], measured: &[Candidate], given: &BTreeSet<[usize; 2]>) -> Draft {
        let mut draft = Draft {
            most: sites.iter().map(|site| site.most).collect(),
            leaves: sites.iter().map(|site| site.leaves).collect(),
            links: vec![Vec::new(); sites.len()],
            before: BTreeMap::new(),
            proposed: BTreeMap::new(),
            stage: Stage::Join,
            open: Vec::new(),
            apart: 0,
            ways: 0.0,
        };
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
        ends.iter().all(|end| self.links[*end].len() < self.most[*end] + beyond)
    }

    fn take(&mut self, candidate: Candidate, origin: Origin) {
        self.join(candidate);
        self.proposed.insert(candidate.ends, origin);
    }

    /// Keeps what was proposed before, as far as there is room.
    fn keep(&mut self, candidates: &[Candidate]) {
        let before = core::mem::take(&mut self.before);
        for candidate in candidates {
            if let Some(origin) = before.get(&candidate.ends)
                && !self.is_joined(candidate.ends)
                && self.has_room(candidate.ends, 1)
            {
                self.take(*candidate, *origin);
            }
        }
    }

    /// Who of those is joined with whom over those, directly or not.
    fn sets(&self, is_in: impl Fn(usize) -> bool) -> Sets {
        let mut sets = Sets::apart(self.most.len());
        for (from, links) in self.links.iter().enumerate() {
            for (to, _) in links {
                if is_in(from) && is_in(*to) {
                    sets.join([from, *to]);
                }
            }
        }
        sets
    }

    /// Joins all relays that stay, without those that leave, and then all.
    fn connect(&mut self, candidates: &[Candidate]) {
        if self.leaves.contains(&true) {
            let leaves = self.leaves.clone();
            self.connect_those(candidates, |of| !leaves[of]);
        }
        self.connect_those(candidates, |_| true);
    }

    /// Joins those relays over those, by the shortest links (Kruskal); first such that nobody has too many.
    fn connect_those(&mut self, candidates: &[Candidate], is_in: impl Fn(usize) -> bool) {
        let mut sets = self.sets(&is_in);
        for beyond in [0, 1] {
            for candidate in candidates.iter().filter(|of| of.ends.iter().all(|end| is_in(*end))) {
                if self.has_room(candidate.ends, beyond) && sets.join(candidate.ends) {
                    self.take(*candidate, Origin::Joins);
                }
            }
        }
    }

    /// Goes on as far as there are steps left. Returns whether it is done.
    fn work(&mut self, measured: &[Candidate], stretch: f64, left: &mut u64) -> bool {
        let count = self.most.len();
        while *left > 0 {
            let (stage, steps) = match self.stage {
                Stage::Join => {
                    self.keep(measured);
                    self.connect(measured);
                    self.open = measured.to_vec();
                    (Stage::Spare(0), 8 * measured.len())
                }
                Stage::Spare(without) if without < count => {
                    (Stage::Spare(without + 1), self.connect_without(without))
                }
                Stage::Spare(_) => {
                    self.close();
                    (Stage::Shorten(0), self.open.len())
                }
                Stage::Shorten(at) if at < self.open.len() => {
                    (Stage::Shorten(at + 1), self.shorten(self.open[at], stretch))
                }
                Stage::Shorten(_) => (Stage::Compare(0), 1),
                Stage::Compare(from) if from < count => {
                    let step = count.div_ceil(MOST_SOURCES).max(1);
                    (Stage::Compare(from + step), self.compare(from, measured))
                }
                Stage::Compare(_) => return true,
            };
            self.stage = stage;
            *left = left.saturating_sub(steps as u64);
        }
        false
    }

    /// Forgets the candidates that have no room any more.
    fn close(&mut self) {
        let open = core::mem::take(&mut self.open);
        self.open = open.into_iter().filter(|of| self.has_room(of.ends, 0)).collect();
    }

    /// Adds links such that this relay's failure does not part the others, where there are some. Returns
    /// how many steps that took.
    fn connect_without(&mut self, without: usize) -> usize {
        let mut sets = self.sets(|of| of != without);
        let neighbours: BTreeSet<usize> =
            self.links[without].iter().map(|(to, _)| sets.find(*to)).collect();
        let has_room = |of: &usize| *of != without && self.links[*of].len() < self.most[*of];
        let roomy: BTreeSet<usize> =
            (0..self.most.len()).filter(has_room).map(|of| sets.find(of)).collect();
        // Others than the neighbours' are apart whatever becomes of it.
        let mut parts = neighbours.intersection(&roomy).count();
        let (mut looked_at, mut closed) = (0, 0);
        while parts > 1 && looked_at < self.open.len() {
            let candidate = self.open[looked_at];
            looked_at += 1;
            if !self.has_room(candidate.ends, 0) {
                closed += 1;
            } else if !candidate.ends.contains(&without)
                && candidate.ends.iter().all(|end| neighbours.contains(&sets.find(*end)))
                && sets.join(candidate.ends)
            {
                self.take(candidate, Origin::Spare);
                parts -= 1;
            }
        }
        if 2 * closed > self.open.len() {
            self.close();
        }
        looked_at + self.most.len()
    }

    /// Adds a link if the way so far is much longer than the direct one. Returns how many steps that took.
    fn shorten(&mut self, candidate: Candidate, stretch: f64) -> usize {
        let [from, to] = candidate.ends;
        if !self.has_room(candidate.ends, 0) || self.is_joined(candidate.ends) {
            return 1;
        }
        let most = (stretch * candidate.length as f64) as u64;
        let (lengths, steps) = self.lengths(from, Some(to), most);
        if lengths[to].is_none() {
            self.take(candidate, Origin::Shortens);
        }
        steps
    }

    /// Compares the ways from a relay with the direct ones. Returns how many steps that took.
    fn compare(&mut self, from: usize, measured: &[Candidate]) -> usize {
        let (lengths, steps) = self.lengths(from, None, u64::MAX);
        for Candidate { length, ends } in measured.iter().filter(|of| of.ends[0] == from) {
            match lengths[ends[1]] {
                Some(way) => self.ways += way as f64 / *length as f64,
                None => self.apart += 1,
            }
        }
        steps + measured.len()
    }

    /// How long the ways from a relay are, as far as they are no longer than this and not beyond `to`
    /// (Dijkstra); and how many steps that took.
    fn lengths(&self, from: usize, to: Option<usize>, most: u64) -> (Vec<Option<u64>>, usize) {
        let mut known = vec![None; self.most.len()];
        // To clear so much takes a while, too.
        let mut steps = 1 + known.len() / 16;
        let mut queue = BinaryHeap::from([(Reverse(0_u64), from)]);
        while let Some((Reverse(far), at)) = queue.pop() {
            steps += 1;
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
        (known, steps)
    }
}

/// Sets of places that are joined (union-find).
pub(crate) struct Sets(Vec<usize>);

impl Sets {
    /// Each place by itself.
    pub(crate) fn apart(places: usize) -> Sets {
        Sets((0..places).collect())
    }

    fn find(&mut self, mut of: usize) -> usize {
        while self.0[of] != of {
            self.0[of] = self.0[self.0[of]];
            of = self.0[of];
        }
        of
    }

    /// Returns whether they were apart.
    pub(crate) fn join(&mut self, ends: [usize; 2]) -> bool {
        let [from, to] = ends.map(|end| self.find(end));
        self.0[from.max(to)] = from.min(to);
        from != to
    }
}

#[cfg(test)]
mod tests;
