//! What goes before all flows: updates that are important, or for one endpoint's eyes. None takes the place of an
//! older one, so all of them wait, in the order in which they came, but not for ever.

use super::super::allowance::{Allowance, Down, spare};
use super::{Noted, millis};
use crate::index::LogNumber;
use canopy_wire::Time;
use core::time::Duration;
use std::collections::VecDeque;

/// The most that wait for a receiver.
const MOST: usize = 1024;
/// What has waited for longer goes nowhere: whoever is so far behind is better told what is new.
pub(super) const MOST_WAIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    update: LogNumber,
    len: u16,
    /// Milliseconds of the relay's time.
    since: u32,
}

/// What waits for one receiver.
#[derive(Clone, Debug, Default)]
pub(super) struct Urgent {
    waiting: VecDeque<Waiting>,
    /// How many were chosen since that was last asked.
    chosen: usize,
}

impl Urgent {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// An update waits from now on. Those of a flush have numbers from `first` on.
    pub(super) fn note(
        &mut self,
        now: Time,
        (update, len): (LogNumber, u16),
        first: LogNumber,
    ) -> Noted {
        let mut of_flush = self.waiting.iter().rev().take_while(|one| one.update >= first);
        if of_flush.any(|one| one.update == update) {
            return Noted::Known;
        }
        if self.waiting.len() == MOST {
            return Noted::NoRoom;
        }
        self.waiting.push_back(Waiting { update, len, since: millis(now) });
        Noted::Waits
    }

    /// Takes out what has waited for too long; calls `died` with each.
    pub(super) fn expire(&mut self, now: Time, mut died: impl FnMut(LogNumber)) {
        let most = MOST_WAIT.as_millis() as u32;
        while let Some(oldest) = self.waiting.front()
            && millis(now).wrapping_sub(oldest.since) > most
        {
            died(oldest.update);
            self.waiting.pop_front();
        }
    }

    /// Takes what goes, as long as anything is left of the allowance, into `chosen`. The last may take more than that,
    /// but not more than is left of the window, of which `most` is thought to be enough: where that is less than one of
    /// them takes, it goes when there is a datagram's worth, and no other with it.
    pub(super) fn serve(
        &mut self,
        (down, most): (Down, i64),
        allowance: &mut Allowance,
        chosen: &mut Vec<LogNumber>,
    ) {
        let may_resort = allowance.may_of_window() >= spare(down);
        let mut gone = 0;
        while allowance.left() > 0
            && let Some(one) = self.waiting.front()
        {
            let cost = down.cost(one.len.into(), 1);
            if gone + cost > most && !(gone == 0 && may_resort) {
                return;
            }
            gone += cost;
            allowance.spend(cost);
            chosen.push(one.update);
            self.chosen += 1;
            self.waiting.pop_front();
        }
    }

    /// Takes all that waits into `chosen`.
    pub(super) fn empty(&mut self, chosen: &mut Vec<LogNumber>) {
        self.chosen += self.waiting.len();
        chosen.extend(self.waiting.drain(..).map(|one| one.update));
    }

    /// How many were chosen since this was last asked.
    pub(super) fn take_chosen(&mut self) -> usize {
        core::mem::take(&mut self.chosen)
    }

    /// Takes out what is wanted no more; calls `left_out` with each.
    pub(super) fn retain(
        &mut self,
        is_wanted: impl Fn(LogNumber) -> bool,
        mut left_out: impl FnMut(LogNumber),
    ) {
        self.waiting.retain(|one| {
            let is_wanted = is_wanted(one.update);
            if !is_wanted {
                left_out(one.update);
            }
            is_wanted
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_waited_for_too_long_dies_and_nothing_else() {
        let (mut urgent, start) = (Urgent::default(), Time::from_millis(5));
        for update in 0..20_u64 {
            let now = start + Duration::from_secs(1) * update as u32;
            assert_eq!(urgent.note(now, (update, 100), update), Noted::Waits);
            assert_eq!(urgent.note(now, (update, 100), update), Noted::Known);
        }
        let mut died = Vec::new();
        urgent.expire(start + MOST_WAIT, |update| died.push(update));
        assert!(died.is_empty());
        urgent.expire(start + MOST_WAIT + Duration::from_millis(1), |update| died.push(update));
        assert_eq!(died, [0]);
        let mut chosen = Vec::new();
        urgent.empty(&mut chosen);
        assert_eq!(chosen, (1..20).collect::<Vec<u64>>());
        assert_eq!((urgent.take_chosen(), urgent.take_chosen()), (19, 0));
    }
}
