//! What is played of a trace, and who looks on.

use crate::error::CrowdError;
use crate::trace::{Row, Trace};
use std::time::Duration;

/// What is played beside what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// Viewers are sent everything for so long, to see how much that is.
    pub unbounded: Duration,
    /// Their budgets hold for so long before anything is counted.
    pub settling: Duration,
    /// How much is played after the last update that counts, so that what thins has something newer to send
    /// until the end.
    pub tail: Duration,
}

impl Default for Phases {
    fn default() -> Phases {
        let second = Duration::from_secs(1);
        Phases { unbounded: 3 * second, settling: 3 * second, tail: second }
    }
}

impl Phases {
    fn lead(&self) -> f64 {
        (self.unbounded + self.settling).as_secs_f64()
    }

    /// Seconds that are played beside those that count.
    pub fn seconds(&self) -> f64 {
        self.lead() + self.tail.as_secs_f64()
    }
}

/// A walker that was not seen for longer has left, seconds.
const ABSENT: f64 = 1.0;
/// The busiest second is looked for in steps of so many seconds.
const SECOND_EVERY: f64 = 0.25;
/// A walker's rate is that of so many of its updates before one and after it.
const NEIGHBOURS: usize = 8;

/// What is played: the densest part of a trace.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it is of.
    pub name: String,
    /// The positions, in order of time; the first is due at 0 s.
    pub(super) rows: Vec<Played>,
    /// The walkers that look on, those that stay longest first.
    pub(super) viewers: Vec<u32>,
    /// How many walkers the trace has; some may not be seen.
    pub(super) walkers: usize,
    /// What is played beside what counts.
    pub(super) phases: Phases,
    /// What is counted, seconds from the start.
    pub(super) measured: (f64, f64),
}

/// A position that is published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Played {
    pub(super) row: Row,
    /// Updates a second of its walker about then.
    pub(super) demand: f64,
    /// Its walker is gone when the next would be due.
    pub(super) is_last: bool,
}

impl Script {
    /// The densest `seconds` of a trace, and what is before and after them; at the places of so many
    /// walkers are viewers. Walkers have no common clock: where a recording samples all of them at once,
    /// each walker's samples are moved by a fixed part of the sampling interval.
    ///
    /// # Errors
    /// If the trace is shorter than what is counted and what comes before and after.
    pub fn new(
        trace: &Trace,
        seconds: f64,
        viewers: usize,
        phases: Phases,
    ) -> Result<Script, CrowdError> {
        let (lead, tail) = (phases.lead(), phases.tail.as_secs_f64());
        let needed = phases.seconds() + seconds;
        if trace.seconds() < needed {
            return Err(CrowdError::Short { has: trace.seconds(), needs: needed });
        }
        let rows = dephased(trace);
        let start = densest(&rows, lead, seconds, trace.seconds() - tail);
        let rows: Vec<Row> = rows
            .into_iter()
            .filter(|row| (start..start + needed).contains(&row.t))
            .map(|row| Row { t: row.t - start, ..row })
            .collect();
        let walkers = trace.walkers() as usize;
        Ok(Script {
            name: trace.name().to_owned(),
            viewers: longest_there(&rows, walkers, viewers),
            rows: played(&rows, walkers),
            walkers,
            phases,
            measured: (lead, lead + seconds),
        })
    }

    /// Seconds that are counted.
    pub fn seconds(&self) -> f64 {
        self.measured.1 - self.measured.0
    }

    /// How many viewers there are at each budget.
    pub fn viewers(&self) -> usize {
        self.viewers.len()
    }

    /// By walker: the updates of all others, or of all, in the second that counts in which these are the
    /// most.
    pub(super) fn busiest_second(&self, without_own: bool) -> Vec<u32> {
        let (from, until) = self.measured;
        let mut busiest = vec![0; self.walkers];
        let at = |t: f64| self.rows.partition_point(|played| played.row.t < t);
        let mut start = from;
        while start + 1.0 <= until {
            let second = &self.rows[at(start)..at(start + 1.0)];
            let mut own = vec![0; self.walkers];
            second.iter().for_each(|played| own[played.row.walker as usize] += 1);
            for (busiest, own) in busiest.iter_mut().zip(own) {
                let updates = second.len() as u32 - if without_own { own } else { 0 };
                *busiest = updates.max(*busiest);
            }
            start += SECOND_EVERY;
        }
        busiest
    }

    /// Each walker that is seen, with its first position.
    pub(super) fn first_seen(&self) -> Vec<Option<[f64; 2]>> {
        let mut first = vec![None; self.walkers];
        for Played { row, .. } in &self.rows {
            first[row.walker as usize].get_or_insert([row.x, row.y]);
        }
        first
    }
}

/// The rows with each walker's samples moved by its part of the sampling interval.
fn dephased(trace: &Trace) -> Vec<Row> {
    // Parts by the golden ratio: whichever walkers are there, they are spread evenly.
    let part = |walker: u32| (f64::from(walker) * 0.618_033_988_749_895).fract();
    let interval = trace.interval();
    let delayed = |row: &Row| Row { t: row.t + part(row.walker) * interval, ..*row };
    let mut rows: Vec<Row> = trace.rows().iter().map(delayed).collect();
    rows.sort_by(|a, b| a.t.total_cmp(&b.t));
    rows
}

/// Where to start so that the `seconds` after the `lead` have the most rows and end before `end`.
fn densest(rows: &[Row], lead: f64, seconds: f64, end: f64) -> f64 {
    let count_until = |t: f64| rows.partition_point(|row| row.t < t);
    let starts = (0..).map(|step| 0.25 * f64::from(step)).take_while(|t| t + lead + seconds <= end);
    let count = |start: &f64| count_until(start + lead + seconds) - count_until(start + lead);
    // The first of equals.
    starts.fold((0.0, 0), |best, start| best_of(best, (start, count(&start)))).0
}

fn best_of(best: (f64, usize), other: (f64, usize)) -> (f64, usize) {
    if other.1 > best.1 { other } else { best }
}

fn longest_there(rows: &[Row], walkers: usize, viewers: usize) -> Vec<u32> {
    let mut counts = vec![0u32; walkers];
    rows.iter().for_each(|row| counts[row.walker as usize] += 1);
    let mut all: Vec<u32> = (0..walkers as u32).filter(|one| counts[*one as usize] > 0).collect();
    all.sort_by_key(|walker| std::cmp::Reverse(counts[*walker as usize]));
    all.truncate(viewers);
    all
}

/// The rows with their walkers' rates.
fn played(rows: &[Row], walkers: usize) -> Vec<Played> {
    let mut of_walker: Vec<Vec<usize>> = vec![Vec::new(); walkers];
    for (index, row) in rows.iter().enumerate() {
        of_walker[row.walker as usize].push(index);
    }
    let mut played: Vec<Played> =
        rows.iter().map(|row| Played { row: *row, demand: 0.0, is_last: true }).collect();
    for indices in of_walker {
        let runs = indices.chunk_by(|a, b| rows[*b].t - rows[*a].t <= ABSENT);
        for run in runs {
            for (place, index) in run.iter().enumerate() {
                let from = place.saturating_sub(NEIGHBOURS);
                let until = (place + NEIGHBOURS).min(run.len() - 1);
                let span = rows[run[until]].t - rows[run[from]].t;
                // Who is seen once is as good as gone.
                let demand = if span > 0.0 { (until - from) as f64 / span } else { 1.0 / ABSENT };
                let is_last = place + 1 == run.len();
                played[*index] = Played { row: rows[*index], demand, is_last };
            }
        }
    }
    played
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Generated;

    #[test]
    fn the_densest_part_is_played_and_who_stays_looks_on() {
        let wanted = Generated { seed: 3, walkers: 5, side: 10.0, seconds: 40.0, rate: 8.0 };
        let trace = Trace::generate(&wanted);
        let script = Script::new(&trace, 12.0, 3, Phases::default()).unwrap();
        assert_eq!((script.measured, script.viewers.len()), ((6.0, 18.0), 3));
        let last = script.rows.last().unwrap();
        assert!(script.rows[0].row.t < 0.2 && (18.8..19.0).contains(&last.row.t), "{last:?}");
        for Played { demand, .. } in &script.rows {
            assert!((demand - 8.0).abs() < 0.01, "{demand}");
        }
        assert_eq!(script.busiest_second(false), [40; 5]);
        assert_eq!(script.busiest_second(true), [32; 5]);
        let error = Script::new(&trace, 34.0, 3, Phases::default()).unwrap_err().to_string();
        assert!(error.contains("--seconds"), "{error}");
    }

    #[test]
    fn a_dense_part_is_found() {
        let row = |t: f64| Row { t, walker: 0, x: 0.0, y: 0.0 };
        let sparse = (0..100).map(f64::from);
        let dense = (0..100).map(|step| 60.0 + 0.1 * f64::from(step));
        let mut rows: Vec<Row> = sparse.chain(dense).map(row).collect();
        rows.sort_by(|a, b| a.t.total_cmp(&b.t));
        let start = densest(&rows, 6.0, 10.0, 99.0);
        assert!((start + 6.0 - 60.0).abs() <= 1.0, "{start}");
    }

    #[test]
    fn who_is_away_for_long_is_gone_and_comes_again() {
        let row = |t: f64| Row { t, walker: 0, x: 0.0, y: 0.0 };
        let rows: Vec<Row> = [0.0, 0.1, 0.2, 5.0, 5.2, 5.4, 9.0].into_iter().map(row).collect();
        let found: Vec<_> = played(&rows, 1).iter().map(|one| (one.demand, one.is_last)).collect();
        let rounded = found.iter().map(|(demand, last)| ((demand * 10.0).round(), *last));
        let expected = [
            (100.0, false),
            (100.0, false),
            (100.0, true),
            (50.0, false),
            (50.0, false),
            (50.0, true),
            (10.0, true),
        ];
        assert_eq!(rounded.collect::<Vec<_>>(), expected);
    }
}
