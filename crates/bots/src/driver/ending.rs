//! The end of a run: what is on its way is waited for, and everyone leaves.

use super::Crowd;
use crate::error::CrowdError;
use crate::report::{Missing, Outage, Report, Tenth, Verdict};
use crate::trace::Trace;
use crate::walker::Walker;
use canopy_judge::Gap;
use canopy_wire::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long deliveries on their way are waited for at the end. With several relays, their way is added.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

impl Crowd<'_> {
    /// When the end has been waited for long enough.
    pub(super) fn settle_limit(&self) -> Time {
        self.clock.now() + SETTLE_LIMIT + self.config.way()
    }

    /// Leaves in order, so that the relays have no session of this crowd any more. Who is about to
    /// be connected is waited for: before that it does not know what to leave.
    pub(super) fn leave(&mut self, limit: Time) -> Result<(), CrowdError> {
        while self.walkers.iter().any(Option::is_some) && self.clock.now() < limit {
            let now = self.clock.now();
            for number in 0..self.walkers.len() as u32 {
                let walker = self.walkers[number as usize].as_ref();
                if walker.is_some_and(|walker| walker.may_leave()) {
                    self.begin_to_leave(number, now);
                }
            }
            self.turn_due(now);
            self.serve(Some(limit))?;
        }
        Ok(())
    }

    /// A walker begins to leave. What it holds back goes before its time, which is better than never.
    pub(super) fn begin_to_leave(&mut self, number: u32, now: Time) {
        let Some(walker) = &mut self.walkers[number as usize] else { return };
        let held = walker.end_move(now);
        held.iter().for_each(|row| self.send(row));
        let Some(walker) = &mut self.walkers[number as usize] else { return };
        let lost = walker.leave(now, &mut self.oracle);
        let start = self.schedule.start();
        self.outages.extend(lost.map(|since| Outage::new(number, since, now, start)));
        self.turn(number, now);
    }

    /// Waits for what is on its way, leaves, and sums up.
    pub(super) fn finish(mut self, trace: &Trace) -> Result<Report, CrowdError> {
        let seconds = self.clock.now().since(self.schedule.start()).as_secs_f64();
        let limit = self.settle_limit();
        while !self.oracle.is_settled() && self.clock.now() < limit {
            self.serve(Some(limit))?;
            self.turn_due(self.clock.now());
        }
        self.oracle.judge_all(self.clock.now());
        self.leave(limit)?;
        self.outages.extend(self.still_lost());
        self.outages.extend(self.killings.outages(self.clock.now(), self.schedule.start()));
        let missing = self.missing();
        let tally = self.oracle.tally();
        let [doubled, overtaken] = [&tally.doubled, &tally.overtaken].map(|of| self.tenths(of));
        let still_here = self.walkers.iter().flatten().map(|walker| walker.session.echoes());
        Ok(Report {
            clients: trace.walkers(),
            relays: self.relays.shares(),
            verdict: Verdict::new(self.oracle.tally()),
            age_us: self.ages.all(),
            subscriptions_changed: self.told.subscriptions_changed,
            seconds,
            updates_unsent: self.updates_unsent,
            late_ms: self.late.as_millis() as u64,
            subscriptions_refused: self.told.subscriptions_refused,
            reconnects: self.told.reconnects,
            moves: self.moves,
            outages: self.outages,
            last_missing_ms: self
                .oracle
                .tally()
                .last_missing
                .map(|at| at.since(self.schedule.start()).as_millis() as u64),
            zero: self.schedule.start().since(Time::ZERO),
            missing,
            doubled,
            overtaken,
            echoes: self.told.echoes + still_here.sum::<u64>(),
            findings: self.oracle.tally().findings.clone(),
            trace: trace.name().to_owned(),
            speed: self.config.speed,
        })
    }

    /// Those who lack their relay in the end, and have not been able to leave.
    fn still_lost(&self) -> Vec<Outage> {
        let (now, start) = (self.clock.now(), self.schedule.start());
        let outage = |of: &Walker| Some(Outage::new(of.number, of.lost?, now, start));
        self.walkers.iter().flatten().filter_map(outage).collect()
    }

    /// What is missing between whom.
    fn missing(&self) -> Vec<Missing> {
        let missing = |gap: &Gap| Missing {
            until_ms: self.end_of_tenth_ms(gap.tenth),
            publisher: gap.publisher,
            receiver: gap.receiver,
        };
        self.oracle.tally().gaps.iter().map(missing).collect()
    }

    fn tenths(&self, deliveries: &BTreeMap<u64, u64>) -> Vec<Tenth> {
        let tenth = |(tenth, deliveries): (&u64, &u64)| Tenth {
            until_ms: self.end_of_tenth_ms(*tenth),
            deliveries: *deliveries,
        };
        deliveries.iter().map(tenth).collect()
    }

    /// When a tenth of a second ends, milliseconds after the trace's zero.
    fn end_of_tenth_ms(&self, tenth: u64) -> u64 {
        let start_ms = self.schedule.start().as_nanos() / 1_000_000;
        (100 * (tenth + 1)).saturating_sub(start_ms)
    }
}
