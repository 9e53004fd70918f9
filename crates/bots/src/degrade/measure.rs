//! What a recording shows: rates, ages and gaps by distance, and how far from fair it was.

use super::bins::{Edges, Row};
use super::flows::{Flows, Outcome};
use super::recording::{Recording, Viewed};
use super::replay::{Due, Timeline};
use super::rivals;
use canopy_wire::Time;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;

/// No more than the budget in any time of this length.
const BURST: Duration = Duration::from_millis(100);

/// Who decided what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The relay.
    Ours,
    /// A queue of the budget's rate, which drops what finds no room.
    DropTail,
    /// Chance.
    Random,
}

/// What came at one budget by one scheme.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Percent of the demand.
    pub budget: f64,
    /// Who decided.
    pub scheme: Scheme,
    /// By distance, the nearest first.
    pub rows: Vec<Row>,
}

/// How the viewers at one budget fared.
#[derive(Clone, Debug, Serialize)]
pub struct BudgetSummary {
    /// Percent of the demand.
    pub budget: f64,
    /// That in bits a second, on average over the viewers.
    pub budget_bits: f64,
    /// Bytes that an update took, with its part of its datagram.
    pub bytes_per_update: f64,
    /// Jain's index over all flows of what came by what was fair: 1 if all had the same part of it.
    pub jfi_weighted: f64,
    /// By how many updates a flow was off its fluid count, at most, in any 10 s.
    pub worst_error_updates: f64,
    /// The same of a thinner that knows in advance what is fair of every update and who leaves when: about what
    /// could be reached. Not where all viewers share one budget.
    pub foreseen_error_updates: Option<f64>,
    /// By how many half of the flows were off at most.
    pub error_p50_updates: f64,
    /// By how many 99 of a hundred flows were off at most.
    pub error_p99_updates: f64,
    /// What came in bits, by what would have come of a fluid.
    pub utilisation: f64,
    /// Bytes beyond the budget and one datagram in the worst 100 ms of any viewer.
    pub over_budget_bytes: f64,
    /// Which share came of what was fair for the ten walkers nearest to a viewer.
    pub nearest_ten_of_fair: f64,
    /// 99 of 100 of their updates had this age or less, milliseconds.
    pub nearest_ten_age_p99_ms: f64,
    /// The longest time in which nothing came of a walker, milliseconds.
    pub longest_gap_ms: f64,
    /// By how much a gap was longer than 1.1 of its fair interval and a tick, at most, milliseconds;
    /// negative if none was.
    pub worst_gap_excess_ms: f64,
    /// The same, if one interval of what the flow sends is allowed as well: a gap is a whole number of them.
    pub worst_gap_beyond_one_ms: f64,
    /// [`Self::worst_gap_excess_ms`] of the thinner of [`Self::foreseen_error_updates`].
    pub foreseen_gap_excess_ms: Option<f64>,
    /// [`Self::worst_gap_beyond_one_ms`] of that thinner.
    pub foreseen_gap_beyond_one_ms: Option<f64>,
    /// How the age of what is known follows distance: 1 if it grows from row to row.
    pub age_follows_distance: f64,
    /// Jain's index for the same updates through a queue that drops at its tail.
    pub drop_tail_jfi: f64,
    /// And if chance drops them.
    pub random_jfi: f64,
}

/// How all fared: the worst of the budgets, and each.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The least.
    pub jfi_weighted: f64,
    /// The greatest.
    pub worst_error_updates: f64,
    /// The least.
    pub utilisation: f64,
    /// The greatest.
    pub over_budget_bytes: f64,
    /// The longest.
    pub longest_gap_ms: f64,
    /// Datagrams that the kernel dropped before the viewers: beyond 0, this machine was too slow.
    pub datagrams_lost: u64,
    /// Bytes that an update takes where all are sent, of UDP payload.
    pub bytes_per_update: f64,
    /// Each budget.
    pub budgets: Vec<BudgetSummary>,
}

/// What a recording shows.
#[derive(Clone, Debug)]
pub struct Measured {
    /// For each budget ours, and then the rivals.
    pub shares: Vec<Shares>,
    /// The sums.
    pub summary: Summary,
}

impl Measured {
    /// Adds what was measured in another run of the same script, at other budgets.
    pub fn add(&mut self, other: Measured) {
        self.shares.extend(other.shares);
        self.summary.datagrams_lost += other.summary.datagrams_lost;
        other.summary.budgets.into_iter().for_each(|budget| self.summary.add(budget));
    }
}

/// Measures a recording. `progress` is told which part of the viewers was looked at.
pub fn measure(recording: &Recording, mut progress: impl FnMut(f64)) -> Measured {
    let timeline = Timeline::new(recording);
    let mut edges = None;
    let mut measured = Measured { shares: Vec::new(), summary: Summary::new(recording) };
    let mut seen = 0;
    for viewers in recording.viewers.chunk_by(|a, b| a.budget == b.budget) {
        let budget = viewers[0].budget;
        let mut schemes = [Scheme::Ours, Scheme::DropTail, Scheme::Random].map(|one| (one, None));
        let mut foreseen = None;
        let mut traffic = Traffic::default();
        for viewed in viewers {
            let dues = timeline.dues_of(viewed);
            let edges = edges.get_or_insert_with(|| edges_of(&timeline, viewers));
            for (scheme, flows) in &mut schemes {
                let flows = flows.get_or_insert_with(|| Flows::new(recording, edges.clone()));
                flows.add(&dues, &came(*scheme, recording, viewed));
            }
            if !recording.is_shared {
                let flows = foreseen.get_or_insert_with(|| Flows::new(recording, edges.clone()));
                flows.add(&dues, &rivals::foreseeing(recording, viewed, &dues));
            }
            traffic.add(recording, viewed, &dues);
            seen += 1;
            progress(f64::from(seen) / recording.viewers.len() as f64);
        }
        let outcomes = schemes.map(|(scheme, flows)| {
            let outcome = flows.map(|flows: Flows<'_>| flows.outcome(budget)).unwrap_or_default();
            measured.shares.push(Shares { budget, scheme, rows: outcome.rows.clone() });
            outcome
        });
        let foreseen = foreseen.map(|flows: Flows<'_>| flows.outcome(budget));
        measured.summary.add(BudgetSummary::new(budget, &outcomes, foreseen.as_ref(), &traffic));
    }
    measured
}

fn came(scheme: Scheme, recording: &Recording, viewed: &Viewed) -> Vec<Option<Time>> {
    match scheme {
        Scheme::Ours => viewed.came(recording.published.len()),
        Scheme::DropTail => rivals::drop_tail(recording, viewed),
        Scheme::Random => rivals::random(recording, viewed),
    }
}

/// The parts of distance, of what these viewers are due. They are the same for all budgets, as the viewers
/// have the same places.
fn edges_of(timeline: &Timeline<'_>, viewers: &[Viewed]) -> Edges {
    let distances = |viewed| timeline.dues_of(viewed).into_iter().flatten().map(|due| due.distance);
    Edges::of(viewers.iter().flat_map(distances).collect())
}

/// What went over the wire to viewers.
#[derive(Default)]
struct Traffic {
    viewers: f64,
    bits: f64,
    came: f64,
    updates: f64,
    fair: f64,
    over: f64,
}

impl Traffic {
    fn add(&mut self, recording: &Recording, viewed: &Viewed, dues: &[Option<Due>]) {
        let (from, until) = recording.measured;
        let is_counted = |at: &Time| (from..until).contains(at);
        let datagrams = viewed.datagrams.iter().filter(|(at, _)| is_counted(at));
        let bytes: f64 = datagrams.map(|(_, len)| f64::from(*len)).sum();
        let updates = viewed.arrivals.iter().filter(|(_, at)| is_counted(at)).count();
        let published = recording.published.iter().zip(dues);
        let counted = published.filter(|(one, _)| is_counted(&one.at));
        let fair: f64 = counted.filter_map(|(_, due)| Some((*due)?.share)).sum();
        let each = if updates == 0 { recording.bytes_each } else { bytes / updates as f64 };
        self.viewers += 1.0;
        self.bits += viewed.bits;
        self.came += bytes;
        self.updates += updates as f64;
        self.fair += fair * each;
        self.over = self.over.max(over_budget(viewed, recording.measured));
    }

    fn utilisation(&self) -> f64 {
        if self.fair > 0.0 { self.came / self.fair } else { 0.0 }
    }
}

/// Bytes beyond the budget and one datagram, the longest, in the worst [`BURST`].
fn over_budget(viewed: &Viewed, (from, until): (Time, Time)) -> f64 {
    let budget = viewed.bits / 8.0 * BURST.as_secs_f64();
    let (mut within, mut bytes) = (VecDeque::new(), 0u64);
    let (mut most, mut longest) = (0, 0);
    for (at, len) in viewed.datagrams.iter().filter(|(at, _)| (from..until).contains(at)) {
        within.push_back((*at, *len));
        bytes += u64::from(*len);
        while let Some((_, old)) = within.pop_front_if(|(old, _)| at.since(*old) >= BURST) {
            bytes -= u64::from(old);
        }
        (most, longest) = (most.max(bytes), longest.max(*len));
    }
    (most as f64 - budget - f64::from(longest)).max(0.0)
}

impl BudgetSummary {
    fn new(
        budget: f64,
        outcomes: &[Outcome; 3],
        foreseen: Option<&Outcome>,
        traffic: &Traffic,
    ) -> BudgetSummary {
        let [ours, drop_tail, random] = outcomes;
        BudgetSummary {
            budget,
            budget_bits: (traffic.bits / traffic.viewers.max(1.0)).round(),
            bytes_per_update: traffic.came / traffic.updates.max(1.0),
            jfi_weighted: ours.jfi,
            worst_error_updates: ours.worst_error,
            foreseen_error_updates: foreseen.map(|one| one.worst_error),
            error_p50_updates: ours.errors[0],
            error_p99_updates: ours.errors[1],
            utilisation: traffic.utilisation(),
            over_budget_bytes: traffic.over,
            nearest_ten_of_fair: ours.near_of_fair,
            nearest_ten_age_p99_ms: ours.near_age_p99,
            longest_gap_ms: ours.longest_gap,
            worst_gap_excess_ms: ours.worst_excess,
            worst_gap_beyond_one_ms: ours.worst_beyond_one,
            foreseen_gap_excess_ms: foreseen.map(|one| one.worst_excess),
            foreseen_gap_beyond_one_ms: foreseen.map(|one| one.worst_beyond_one),
            age_follows_distance: ours.age_follows_distance,
            drop_tail_jfi: drop_tail.jfi,
            random_jfi: random.jfi,
        }
    }
}

impl Summary {
    fn new(recording: &Recording) -> Summary {
        Summary {
            jfi_weighted: 1.0,
            worst_error_updates: 0.0,
            utilisation: f64::INFINITY,
            over_budget_bytes: 0.0,
            longest_gap_ms: 0.0,
            datagrams_lost: recording.lost,
            bytes_per_update: recording.bytes_each,
            budgets: Vec::new(),
        }
    }

    fn add(&mut self, budget: BudgetSummary) {
        self.jfi_weighted = self.jfi_weighted.min(budget.jfi_weighted);
        self.worst_error_updates = self.worst_error_updates.max(budget.worst_error_updates);
        self.utilisation = self.utilisation.min(budget.utilisation);
        self.over_budget_bytes = self.over_budget_bytes.max(budget.over_budget_bytes);
        self.longest_gap_ms = self.longest_gap_ms.max(budget.longest_gap_ms);
        self.budgets.push(budget);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{even, viewer};
    use super::*;

    #[test]
    fn bursts_beyond_the_budget_are_found() {
        let mut viewed = viewer(0, 100.0, 80_000.0);
        let at = |millis: u64| Time::from_millis(millis);
        let measured = (at(0), at(10_000));
        // 1,000 bytes in 100 ms, and a datagram.
        viewed.datagrams = (0..20).map(|step| (at(50 * step), 500)).collect();
        assert_eq!(over_budget(&viewed, measured), 0.0);
        viewed.datagrams.push((at(960), 500));
        viewed.datagrams.push((at(970), 700));
        assert_eq!(over_budget(&viewed, measured), 2200.0 - 1000.0 - 700.0);
    }

    /// A viewer to whom every other update of each walker comes, 30 ms late, in datagrams of one.
    #[test]
    fn what_is_fair_is_measured_as_fair() {
        let mut recording = even(11, 10.0, 30.0);
        let mut viewed = viewer(0, 50.0, 8.0 * 100.0 * 50.0);
        for (number, one) in (0..).zip(&recording.published) {
            if one.walker != 0 && number / 11 % 2 == one.walker % 2 {
                let at = one.at + Duration::from_millis(30);
                viewed.arrivals.push((number, at));
                viewed.datagrams.push((at, 100));
            }
        }
        recording.viewers = vec![viewed];
        let mut parts = Vec::new();
        let Measured { shares, summary } = measure(&recording, |part| parts.push(part));
        assert_eq!(parts, [1.0]);
        let [budget] = &summary.budgets[..] else { panic!("{summary:?}") };
        assert!(budget.jfi_weighted > 0.999 && budget.worst_error_updates < 0.6, "{budget:?}");
        assert!((budget.utilisation - 1.0).abs() < 0.01, "{budget:?}");
        assert!((budget.nearest_ten_of_fair - 1.0).abs() < 0.01, "{budget:?}");
        assert!((budget.nearest_ten_age_p99_ms - 30.0).abs() < 0.1, "{budget:?}");
        assert!((budget.longest_gap_ms - 200.0).abs() < 1.0, "{budget:?}");
        // Its fair interval is 200 ms.
        assert!((budget.worst_gap_excess_ms + 70.0).abs() < 1.0, "{budget:?}");
        // A walker publishes every 100 ms.
        assert!((budget.worst_gap_beyond_one_ms + 170.0).abs() < 1.0, "{budget:?}");
        assert_eq!(budget.over_budget_bytes, 0.0);
        assert!(budget.random_jfi < budget.jfi_weighted, "{budget:?}");
        assert_eq!(shares.len(), 3);
        for row in &shares[0].rows {
            let rates = [row.demand_hz, row.fair_hz, row.delivered_hz];
            let close =
                rates.iter().zip([10.0, 5.0, 5.0]).all(|(rate, to)| (rate - to).abs() < 0.2);
            assert!(close, "{row:?}");
        }
    }

    #[test]
    fn runs_add_up_to_their_worst() {
        let of = |budget: f64, lost| {
            let mut recording = even(3, 10.0, 20.0);
            recording.lost = lost;
            let mut viewed = viewer(0, budget, 8_000.0);
            viewed.arrivals =
                (0..).zip(&recording.published).map(|(no, one)| (no, one.at)).collect();
            viewed.datagrams = viewed.arrivals.iter().map(|(_, at)| (*at, 100)).collect();
            viewed.arrivals.truncate((6.0 * budget) as usize);
            recording.viewers = vec![viewed];
            measure(&recording, |_| ())
        };
        let (mut sum, worse) = (of(100.0, 1), of(50.0, 2));
        let jfi = worse.summary.jfi_weighted.min(sum.summary.jfi_weighted);
        sum.add(worse);
        assert_eq!((sum.shares.len(), sum.summary.budgets.len()), (6, 2));
        assert_eq!((sum.summary.jfi_weighted, sum.summary.datagrams_lost), (jfi, 3));
    }

    /// Half of the walkers never come, and the others whole: within the budget, and not fair.
    #[test]
    fn what_is_unfair_is_measured_as_unfair() {
        let mut recording = even(11, 10.0, 30.0);
        let mut viewed = viewer(0, 50.0, 8.0 * 100.0 * 50.0);
        let of_the_first = recording.published.iter().zip(0..);
        let of_the_first = of_the_first.filter(|(one, _)| (1..=5).contains(&one.walker));
        viewed.arrivals = of_the_first.map(|(one, number)| (number, one.at)).collect();
        viewed.datagrams = viewed.arrivals.iter().map(|(_, at)| (*at, 100)).collect();
        recording.viewers = vec![viewed];
        let summary = measure(&recording, |_| ()).summary;
        assert!((summary.jfi_weighted - 0.5).abs() < 0.01, "{summary:?}");
        assert!((summary.worst_error_updates - 50.0).abs() < 1.0, "{summary:?}");
        assert!(summary.longest_gap_ms > 20_000.0, "{summary:?}");
        assert!((summary.utilisation - 1.0).abs() < 0.01, "{summary:?}");
    }
}
