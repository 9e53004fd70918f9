//! Who joins, publishes and leaves when.

use crate::trace::Row;
use canopy_wire::Time;
use std::cmp::Reverse;
use std::time::Duration;

/// Walkers join so long before their first position, and leave so long after their last.
pub(super) const LEAD: Duration = Duration::from_millis(1500);
const TRAIL: Duration = Duration::from_millis(500);

/// A walker that joins, at its first position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    at: Time,
    pub(super) walker: u32,
    pub(super) x: f64,
    pub(super) y: f64,
}

/// Who joins and leaves when, and when a row of the trace is due.
pub(super) struct Schedule {
    /// When the trace's zero is.
    start: Time,
    speed: f64,
    /// Latest first.
    joins: Vec<Join>,
    /// Walkers by the time they leave; latest first.
    leaves: Vec<(Time, u32)>,
}

impl Schedule {
    /// The schedule of a trace's rows at a speed, whose first walkers join at `now`.
    pub(super) fn new(rows: &[Row], walkers: u32, speed: f64, now: Time) -> Schedule {
        let start = now + LEAD;
        let mut schedule = Schedule { start, speed, joins: Vec::new(), leaves: Vec::new() };
        let mut spans: Vec<Option<(Row, f64)>> = vec![None; walkers as usize];
        for row in rows {
            let span = &mut spans[row.walker as usize];
            span.get_or_insert((*row, row.t)).1 = row.t;
        }
        for (walker, span) in (0..).zip(spans) {
            let Some((Row { t, x, y, .. }, last)) = span else { continue };
            schedule.joins.push(Join { at: schedule.due(t) - LEAD, walker, x, y });
            schedule.leaves.push((schedule.due(last) + TRAIL, walker));
        }
        schedule.joins.sort_by_key(|join| Reverse((join.at, join.walker)));
        schedule.leaves.sort_by_key(|leave| Reverse(*leave));
        schedule
    }

    /// When the trace's zero is.
    pub(super) fn start(&self) -> Time {
        self.start
    }

    /// When something at `t` seconds of the trace is due.
    pub(super) fn due(&self, t: f64) -> Time {
        self.start + Duration::from_secs_f64(t / self.speed)
    }

    /// The next walker that is to join by now.
    pub(super) fn next_join(&mut self, now: Time) -> Option<Join> {
        self.joins.pop_if(|join| join.at <= now)
    }

    /// The next walker that is to leave by `due`.
    pub(super) fn next_leave(&mut self, due: Time) -> Option<u32> {
        self.leaves.pop_if(|(at, _)| *at <= due).map(|(_, walker)| walker)
    }

    /// Whether all have left.
    pub(super) fn is_done(&self) -> bool {
        self.leaves.is_empty()
    }
}
