//! Walkers whose process is killed. Nobody is told: not their relay, nor the controller. Once the process is there again
//! they come where they were, as somebody new.

use super::Crowd;
use crate::error::CrowdError;
use crate::report::Outage;
use crate::walker::Walker;
use canopy_wire::Time;
use std::collections::BTreeMap;

/// Who is killed, and who was.
#[derive(Debug, Default)]
pub(super) struct Killings {
    /// Where walkers appear once their processes are there again.
    down: BTreeMap<u32, (f64, f64)>,
    /// Since when processes are there again whose walkers have no place yet.
    back: BTreeMap<u32, Time>,
}

impl Killings {
    /// A walker of a killed process that was not there yet appears later.
    pub(super) fn wait(&mut self, number: u32, at: (f64, f64)) {
        self.down.insert(number, at);
    }

    /// A walker leaves.
    pub(super) fn forget(&mut self, number: u32) {
        self.down.remove(&number);
        self.back.remove(&number);
    }

    /// A walker has a place. Returns since when its process was there again.
    pub(super) fn placed(&mut self, number: u32) -> Option<Time> {
        self.back.remove(&number)
    }

    /// Those who have no place in the end: they were out since then, and until now.
    pub(super) fn outages(&self, now: Time, zero: Time) -> Vec<Outage> {
        self.back.iter().map(|(number, since)| Outage::new(*number, *since, now, zero)).collect()
    }
}

impl Crowd<'_> {
    pub(super) fn is_killed(&self, number: u32) -> bool {
        self.config.killed.as_ref().is_some_and(|killed| killed.0(number))
    }

    /// Has walkers vanish whose process is killed, and appear again once it is not.
    ///
    /// # Errors
    /// There is no socket, or no key for somebody new.
    pub(super) fn kill_and_start(&mut self, now: Time) -> Result<(), CrowdError> {
        if self.config.killed.is_none() {
            return Ok(());
        }
        for number in 0..self.walkers.len() as u32 {
            match (self.is_killed(number), self.killings.down.get(&number).copied()) {
                (true, None) => self.kill(now, number),
                (false, Some(at)) => {
                    self.killings.down.remove(&number);
                    self.start(now, number, at)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, now: Time, number: u32, at: (f64, f64)) -> Result<(), CrowdError> {
        if let Some(joining) = &mut self.joining {
            self.killings.back.insert(number, now);
            return joining.appear(number, at);
        }
        let mut walker = Walker::new(number, now, self.config, &self.readiness)?;
        walker.lost = Some(now);
        self.appear(now, walker, at);
        Ok(())
    }

    fn kill(&mut self, now: Time, number: u32) {
        let seat = self.joining.as_mut().and_then(|joining| joining.forget(number));
        self.killings.back.remove(&number);
        let walker = self.walkers[number as usize].take();
        if let Some(walker) = &walker {
            self.oracle.vanish(now, number as usize);
            self.told.echoes += walker.session.echoes();
            let start = self.schedule.start();
            self.outages.extend(walker.lost.map(|since| Outage::new(number, since, now, start)));
            if self.joining.is_some() {
                self.relays.leave(walker.relay);
            }
        }
        // Who is leaving does not come again.
        let was_at = |walker: Walker| walker.at.map(|[x, y]| (x, y)).or(walker.appeared);
        let awaited = seat.and_then(|seat| seat.appears);
        if let Some(at) = walker.and_then(was_at).or(awaited) {
            self.killings.down.insert(number, at);
        }
    }
}
