//! What came of each flow, held against what was fair.

use super::bins::{Bins, Edges, Row, quantiles};
use super::recording::{Published, Recording};
use super::replay::Due;
use canopy_judge::fair::{Sent, weighted_jain, worst_error};
use canopy_wire::Time;
use std::time::Duration;

/// A flow's count is compared with the fluid's over so long.
const WINDOW: Duration = Duration::from_secs(10);
/// A gap may be longer than its fair interval by so much.
const EVENNESS: f64 = 1.1;

/// What came of all flows to the viewers of one budget by one scheme.
pub(super) struct Flows<'a> {
    recording: &'a Recording,
    /// [`WINDOW`], or less if less was measured.
    window: Duration,
    /// By walker: the numbers of its updates, until nothing counts any more.
    numbers: Vec<Vec<usize>>,
    bins: Bins,
    delivered_and_fair: Vec<(f64, f64)>,
    errors: Vec<f32>,
    longest_gap: f64,
    worst_excess: f64,
    worst_beyond_one: f64,
    near: (f64, f64),
    near_ages: Vec<f32>,
}

/// What it comes to.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) rows: Vec<Row>,
    pub(super) jfi: f64,
    pub(super) worst_error: f64,
    /// Half of the flows were off by no more, and 99 of a hundred.
    pub(super) errors: [f64; 2],
    pub(super) near_of_fair: f64,
    pub(super) near_age_p99: f64,
    pub(super) longest_gap: f64,
    pub(super) worst_excess: f64,
    pub(super) worst_beyond_one: f64,
    pub(super) age_follows_distance: f64,
}

/// An update of a flow: what was published, what the viewer was due of it, and when it came.
#[derive(Clone, Copy)]
struct Update {
    published: Published,
    due: Due,
    came: Option<Time>,
}

impl Update {
    fn age_ms(&self) -> Option<f64> {
        self.came.map(|came| millis(came.since(self.published.at)))
    }

    /// The rate that was fair, updates a second.
    fn rate(&self) -> f64 {
        self.due.share * self.published.demand
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl<'a> Flows<'a> {
    pub(super) fn new(recording: &'a Recording, edges: Edges) -> Flows<'a> {
        let (from, until) = recording.measured;
        let mut numbers = vec![Vec::new(); recording.walkers];
        let counted = recording.published.iter().take_while(|one| one.at < until);
        for (number, one) in counted.enumerate() {
            numbers[one.walker as usize].push(number);
        }
        Flows {
            recording,
            window: WINDOW.min(until.since(from).mul_f64(0.9)),
            numbers,
            bins: Bins::new(edges),
            delivered_and_fair: Vec::new(),
            errors: Vec::new(),
            longest_gap: 0.0,
            worst_excess: f64::NEG_INFINITY,
            worst_beyond_one: f64::NEG_INFINITY,
            near: (0.0, 0.0),
            near_ages: Vec::new(),
        }
    }

    /// A viewer was due these parts of all updates, and they came then.
    pub(super) fn add(&mut self, dues: &[Option<Due>], came: &[Option<Time>]) {
        let update = |number: &usize| {
            let due = (*dues.get(*number)?)?;
            let came = came.get(*number).copied().flatten();
            Some(Update { published: self.recording.published[*number], due, came })
        };
        let flows = self.numbers.iter().map(|numbers| numbers.iter().filter_map(update).collect());
        let flows: Vec<Vec<Update>> = flows.collect();
        for flow in flows {
            for run in flow.chunk_by(|before, _| !before.published.is_last) {
                self.add_run(run);
            }
        }
    }

    /// A walker was there from the first of these updates to the last.
    fn add_run(&mut self, run: &[Update]) {
        let (from, _) = self.recording.measured;
        let counted = &run[run.partition_point(|update| update.published.at < from)..];
        self.add_counts(counted);
        self.add_gaps(run);
        let mut arrivals = arrivals_of(run).into_iter().peekable();
        let mut known = run[0].published.at;
        for update in run {
            let now = update.published.at;
            while let Some(arrival) = arrivals.next_if(|(came, _)| *came <= now) {
                known = known.max(run[arrival.1].published.at);
            }
            if now >= from {
                let age = update.age_ms();
                let Published { demand, .. } = update.published;
                self.bins.add(&update.due, demand, millis(now.since(known)), age);
                if update.due.is_near {
                    self.near.0 += f64::from(u8::from(age.is_some()));
                    self.near.1 += update.due.share;
                    self.near_ages.extend(age.map(|age| age as f32));
                }
            }
        }
    }

    /// How many of these came, and how many should have.
    fn add_counts(&mut self, counted: &[Update]) {
        let sent = |update: &Update| {
            let Update { published, due, came } = update;
            Sent { at: published.at, share: due.share, came: came.is_some() }
        };
        let sent: Vec<Sent> = counted.iter().map(sent).collect();
        // Who was there for less time has too few to compare.
        let Some(worst) = worst_error(&sent, self.window) else { return };
        self.errors.push(worst as f32);
        let delivered = sent.iter().filter(|one| one.came).count() as f64;
        self.delivered_and_fair.push((delivered, sent.iter().map(|one| one.share).sum()));
    }

    /// The times in which nothing came, those that ended while it counted.
    fn add_gaps(&mut self, run: &[Update]) {
        let [first, .., last] = run else { return };
        let (from, until) = self.recording.measured;
        let end = last.published.at;
        let arrivals = arrivals_of(run);
        let ends = arrivals.iter().map(|(came, number)| (*came, run[*number].due.distance));
        // What did not come at the end is a gap too, as long as the walker was there.
        let ends = ends.take_while(|(came, _)| *came < end).chain([(end, last.due.distance)]);
        let (mut since, mut next) = (first.published.at, 0);
        for (gap_end, distance) in ends {
            let (mut slowest, mut demand) = (f64::INFINITY, f64::INFINITY);
            while let Some(update) = run.get(next).filter(|one| one.published.at < gap_end) {
                slowest = slowest.min(update.rate());
                demand = demand.min(update.published.demand);
                next += 1;
            }
            let gap = millis(gap_end.since(since));
            if (from..until).contains(&gap_end) {
                self.bins.add_gap(distance, gap);
                self.longest_gap = self.longest_gap.max(gap);
                let fair = EVENNESS * 1000.0 / slowest + millis(self.recording.tick);
                if slowest > 0.0 && slowest.is_finite() {
                    self.worst_excess = self.worst_excess.max(gap - fair);
                    let beyond_one = gap - fair - 1000.0 / demand;
                    self.worst_beyond_one = self.worst_beyond_one.max(beyond_one);
                }
            }
            since = gap_end;
        }
    }

    pub(super) fn outcome(mut self, budget: f64) -> Outcome {
        let (rows, age_follows_distance) = self.bins.rows(budget);
        Outcome {
            rows,
            jfi: weighted_jain(self.delivered_and_fair).unwrap_or(0.0),
            worst_error: self.errors.iter().fold(0.0, |most, error| most.max(f64::from(*error))),
            errors: quantiles(&mut self.errors),
            near_of_fair: if self.near.1 > 0.0 { self.near.0 / self.near.1 } else { 0.0 },
            near_age_p99: quantiles(&mut self.near_ages)[1],
            longest_gap: self.longest_gap,
            worst_excess: if_finite(self.worst_excess),
            worst_beyond_one: if_finite(self.worst_beyond_one),
            age_follows_distance,
        }
    }
}

fn if_finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// When updates of a run came, in that order, and their places in the run.
fn arrivals_of(run: &[Update]) -> Vec<(Time, usize)> {
    let numbered = run.iter().enumerate();
    let mut arrivals: Vec<_> =
        numbered.filter_map(|(number, update)| Some((update.came?, number))).collect();
    arrivals.sort_unstable();
    arrivals
}
