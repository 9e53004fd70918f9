//! Whose turn it is to be read: deficit round robin over the lanes of a data thread.
//!
//! A lane that has something gets a *quantum* a round, in bytes. What it takes beyond that in its
//! last datagram is taken from its next quantum; what it does not use is not kept. So whoever sends
//! much gets what the others leave, and nobody waits for more than a quantum of each other lane.

use canopy_wire::Lane;

/// Bytes of a lane that are handled before the others are looked at.
pub(crate) const QUANTUM: i64 = 32 << 10;
/// What a datagram costs beside its bytes: opening its seal, and looking up whose it is.
const PER_DATAGRAM: i64 = 256;

/// A set of lanes, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes(u8);

impl Lanes {
    /// None.
    pub const NONE: Lanes = Lanes(0);

    /// With a lane more.
    #[must_use]
    pub fn with(self, lane: Lane) -> Lanes {
        Lanes(self.0 | 1 << lane.number())
    }

    /// Without a lane.
    #[must_use]
    pub fn without(self, lane: Lane) -> Lanes {
        Lanes(self.0 & !(1 << lane.number()))
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, others: Lanes) -> Lanes {
        Lanes(self.0 | others.0)
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether there are two or more.
    pub fn are_several(self) -> bool {
        self.0.count_ones() > 1
    }

    /// Whether a lane is among them.
    pub fn contains(self, lane: Lane) -> bool {
        self.0 & 1 << lane.number() != 0
    }
}

/// How far each lane has come.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// What may have more than was read.
    backlog: Lanes,
    credits: [i64; Lane::COUNT as usize],
    /// Where the next round begins.
    first: u8,
}

impl Rounds {
    /// The lanes that may have more than was read.
    pub(crate) fn backlog(&self) -> Lanes {
        self.backlog
    }

    /// These lanes have something to read.
    pub(crate) fn wake(&mut self, ready: Lanes) {
        self.backlog = self.backlog.and(ready);
    }

    /// The lanes of the next round, in the order in which they are read.
    pub(crate) fn next_round(&mut self) -> impl Iterator<Item = Lane> + use<> {
        let (first, backlog) = (self.first, self.backlog);
        // Nobody is always the first.
        self.first = (first + 1) % Lane::COUNT;
        let lanes = (0..Lane::COUNT).map(move |at| Lane::new(first + at));
        lanes.filter(move |lane| backlog.contains(*lane))
    }

    /// A lane is read next, for a quantum.
    pub(crate) fn begin(&mut self, lane: Lane) {
        let credit = &mut self.credits[usize::from(lane.number())];
        *credit = (*credit + QUANTUM).min(QUANTUM);
    }

    /// Whether the quantum of a lane lasts.
    #[inline]
    pub(crate) fn lasts(&self, lane: Lane) -> bool {
        self.credits[usize::from(lane.number())] > 0
    }

    /// A datagram of a lane is handled.
    #[inline]
    pub(crate) fn charge(&mut self, lane: Lane, bytes: usize) {
        self.credits[usize::from(lane.number())] -= PER_DATAGRAM + bytes as i64;
    }

    /// A lane was read empty.
    pub(crate) fn emptied(&mut self, lane: Lane) {
        self.backlog = self.backlog.without(lane);
        self.credits[usize::from(lane.number())] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x13);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    /// Reads lanes of which each has endless datagrams of one length, and returns what each cost.
    fn read(rounds: &mut Rounds, lens: &[(Lane, usize)], count: usize) -> Vec<i64> {
        let mut costs = vec![0; lens.len()];
        for _ in 0..count {
            let order: Vec<Lane> = rounds.next_round().collect();
            for lane in order {
                let at = lens.iter().position(|(one, _)| *one == lane).unwrap();
                rounds.begin(lane);
                while rounds.lasts(lane) {
                    rounds.charge(lane, lens[at].1);
                    costs[at] += PER_DATAGRAM + lens[at].1 as i64;
                }
            }
        }
        costs
    }

    proptest! {
        #![proptest_config(config())]
        /// Whatever they send, lanes with a backlog get the same, to a datagram.
        #[test]
        fn lanes_with_a_backlog_share_alike(
            lens in proptest::collection::vec(24usize..1452, 1..8), count in 1usize..200,
        ) {
            let lens: Vec<_> = lens.into_iter().enumerate()
                .map(|(at, len)| (Lane::new(at as u8), len)).collect();
            let mut rounds = Rounds::default();
            rounds.wake(lens.iter().fold(Lanes::NONE, |lanes, (lane, _)| lanes.with(*lane)));
            for cost in read(&mut rounds, &lens, count) {
                let due = count as i64 * QUANTUM;
                prop_assert!((due..due + PER_DATAGRAM + 1452).contains(&cost), "{cost} of {due}");
            }
        }
    }

    #[test]
    fn a_lane_that_was_empty_keeps_nothing() {
        let lane = Lane::new(3);
        let mut rounds = Rounds::default();
        for _ in 0..100 {
            rounds.wake(Lanes::NONE.with(lane));
            rounds.begin(lane);
            rounds.emptied(lane);
        }
        assert!(rounds.backlog().is_empty() && !rounds.lasts(lane));
    }

    #[test]
    fn every_lane_is_first_in_its_turn() {
        let mut rounds = Rounds::default();
        rounds.wake(Lane::all().fold(Lanes::NONE, Lanes::with));
        let firsts: Vec<_> = (0..Lane::COUNT).filter_map(|_| rounds.next_round().next()).collect();
        assert_eq!(firsts, Lane::all().collect::<Vec<_>>());
    }
}
