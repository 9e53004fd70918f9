//! What came, by distance.

use super::replay::Due;
use serde::Serialize;

/// Where the parts of all updates by distance end. The nearest and the farthest are looked at more closely.
const ENDS: [f64; 13] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0];

/// What viewers at one budget saw of what was so far away.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Percent of the demand.
    pub budget: f64,
    /// The mean distance, metres.
    pub distance_m: f64,
    /// Updates a second that a walker there published.
    pub demand_hz: f64,
    /// How many of them are a viewer's fair share.
    pub fair_hz: f64,
    /// How many came.
    pub delivered_hz: f64,
    /// Half of those that came had this age on arrival or less, milliseconds. 0 if none came.
    pub age_p50_ms: f64,
    /// 99 of 100 had this age or less.
    pub age_p99_ms: f64,
    /// The longest time between two that came of one walker, milliseconds; from its first update on, until
    /// its last.
    pub longest_gap_ms: f64,
    /// The age of what a viewer knew of a walker there, whenever the walker published: half of the time it
    /// was this old or less, milliseconds.
    pub known_p50_ms: f64,
    /// 99 of 100 times it was this old or less.
    pub known_p99_ms: f64,
    /// Updates that it is made from.
    pub updates: u64,
}

/// The parts of distance.
#[derive(Clone, Debug)]
pub(super) struct Edges(Vec<f64>);

impl Edges {
    /// Such that each part has a fixed share of these distances.
    pub(super) fn of(mut distances: Vec<f64>) -> Edges {
        distances.sort_by(f64::total_cmp);
        let last = distances.len().saturating_sub(1);
        let end = |part: &f64| distances.get((part * last as f64) as usize).copied();
        let mut ends: Vec<f64> = ENDS.iter().filter_map(end).collect();
        ends.dedup();
        Edges(ends)
    }

    fn of_distance(&self, distance: f64) -> usize {
        self.0.partition_point(|end| *end < distance).min(self.0.len().saturating_sub(1))
    }
}

/// What is seen of updates, by distance.
pub(super) struct Bins {
    edges: Edges,
    bins: Vec<Bin>,
}

#[derive(Clone, Default)]
struct Bin {
    updates: u64,
    distances: f64,
    /// Seconds of flows: each update stands for the time until the next.
    seconds: f64,
    fair: f64,
    ages: Vec<f32>,
    known: Vec<f32>,
    longest_gap: f64,
}

impl Bins {
    pub(super) fn new(edges: Edges) -> Bins {
        let bins = vec![Bin::default(); edges.0.len().max(1)];
        Bins { edges, bins }
    }

    fn at(&mut self, distance: f64) -> &mut Bin {
        &mut self.bins[self.edges.of_distance(distance)]
    }

    /// An update was due, of a walker that published so many a second; what the viewer knew of it was so
    /// old, in milliseconds. It came at this age, if it came.
    pub(super) fn add(&mut self, due: &Due, demand: f64, known_ms: f64, age_ms: Option<f64>) {
        let bin = self.at(due.distance);
        bin.updates += 1;
        bin.distances += due.distance;
        bin.seconds += 1.0 / demand;
        bin.fair += due.share;
        bin.known.push(known_ms as f32);
        bin.ages.extend(age_ms.map(|age| age as f32));
    }

    /// Nothing came for so long, in milliseconds, of a walker at this distance.
    pub(super) fn add_gap(&mut self, distance: f64, gap_ms: f64) {
        let bin = self.at(distance);
        bin.longest_gap = bin.longest_gap.max(gap_ms);
    }

    /// The rows, nearest first, and by how much the mean age of what is known follows distance (Spearman):
    /// 1 if it grows with each step, 0 if it does not depend on it.
    pub(super) fn rows(self, budget: f64) -> (Vec<Row>, f64) {
        let bins: Vec<Bin> = self.bins.into_iter().filter(|bin| bin.updates > 0).collect();
        let mean = |bin: &Bin| {
            bin.known.iter().map(|age| f64::from(*age)).sum::<f64>() / bin.known.len() as f64
        };
        let means: Vec<f64> = bins.iter().map(mean).collect();
        let row = |mut bin: Bin| {
            let [age_p50_ms, age_p99_ms] = quantiles(&mut bin.ages);
            let [known_p50_ms, known_p99_ms] = quantiles(&mut bin.known);
            Row {
                budget,
                distance_m: bin.distances / bin.updates as f64,
                demand_hz: bin.updates as f64 / bin.seconds,
                fair_hz: bin.fair / bin.seconds,
                delivered_hz: bin.ages.len() as f64 / bin.seconds,
                age_p50_ms,
                age_p99_ms,
                longest_gap_ms: bin.longest_gap,
                known_p50_ms,
                known_p99_ms,
                updates: bin.updates,
            }
        };
        (bins.into_iter().map(row).collect(), rank_correlation(&means))
    }
}

/// What half of these and what 99 of 100 do not exceed; 0 if there are none.
pub(super) fn quantiles(values: &mut [f32]) -> [f64; 2] {
    values.sort_unstable_by(f32::total_cmp);
    let of = |part: f64| {
        let at = (part * values.len() as f64).ceil() as usize;
        values.get(at.saturating_sub(1)).map_or(0.0, |value| f64::from(*value))
    };
    [of(0.5), of(0.99)]
}

/// Spearman's correlation of values with their order.
fn rank_correlation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let rank = |value: &f64| values.iter().filter(|other| *other < value).count() as f64;
    let squares = |(place, value): (usize, &f64)| (place as f64 - rank(value)).powi(2);
    let sum: f64 = values.iter().enumerate().map(squares).sum();
    1.0 - 6.0 * sum / (count * (count * count - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_distance_have_their_share_of_all() {
        let edges = Edges::of((0..=1000).map(f64::from).collect());
        assert_eq!(edges.0[..3], [20.0, 50.0, 100.0]);
        assert_eq!(
            [0.0, 20.0, 20.5, 1000.0, 5000.0].map(|at| edges.of_distance(at)),
            [0, 0, 1, 12, 12]
        );
        assert_eq!(Edges::of(vec![7.0; 30]).0, [7.0]);
        assert_eq!(Edges::of(Vec::new()).of_distance(3.0), 0);
    }

    #[test]
    fn a_row_says_rates_ages_and_gaps() {
        let mut bins = Bins::new(Edges::of(vec![2.0; 4]));
        for number in 0..10 {
            let due = Due { share: 0.3, distance: 2.0, is_near: false };
            bins.add(&due, 10.0, 50.0, (number % 2 == 0).then_some(f64::from(number)));
        }
        bins.add_gap(2.0, 200.0);
        bins.add_gap(2.0, 100.0);
        let (rows, _) = bins.rows(25.0);
        let [row] = rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.budget, row.distance_m, row.updates), (25.0, 2.0, 10));
        let close = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(close(row.demand_hz, 10.0) && close(row.fair_hz, 3.0), "{row:?}");
        assert!(close(row.delivered_hz, 5.0), "{row:?}");
        assert_eq!((row.age_p50_ms, row.age_p99_ms), (4.0, 8.0));
        assert_eq!((row.longest_gap_ms, row.known_p50_ms), (200.0, 50.0));
    }

    #[test]
    fn correlation_tells_whether_ages_grow() {
        assert_eq!(rank_correlation(&[1.0, 2.0, 5.0, 9.0]), 1.0);
        assert_eq!(rank_correlation(&[9.0, 5.0, 2.0, 1.0]), -1.0);
        assert!(rank_correlation(&[2.0, 1.0, 3.0, 4.0]) > 0.7);
        assert_eq!(rank_correlation(&[1.0]), 0.0);
    }
}
