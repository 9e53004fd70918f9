//! What is known of one participant's subscription to one group.

use canopy_wire::{Level, Time};
use std::time::Duration;

/// What has ended is remembered for so long: what waits for shaped links and budgets is judged after that.
const REMEMBERED: Duration = Duration::from_secs(40);

/// One participant's subscription to one group.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    wanted: Option<Level>,
    /// The level that its relay holds without doubt, and since when.
    firm: Option<(Level, Time)>,
    /// A higher level that was acknowledged later.
    raised: Option<(Level, Time)>,
    /// Changes whenever less is firm than before.
    pub(crate) version: u32,
    /// Levels that its relay may hold, and since when: what was asked for last comes last.
    open: Vec<(Level, Time)>,
    /// Those that it held no longer, with the time when that was known.
    closed: Vec<(Level, Time, Time)>,
}

impl Interest {
    /// The application asks for a level, or for none.
    pub(crate) fn request(&mut self, now: Time, wanted: Option<Level>) {
        if self.wanted == wanted {
            return;
        }
        self.wanted = wanted;
        self.raised = None;
        match (wanted, &mut self.firm) {
            (Some(level), Some((firm, _))) if level < *firm => {
                *firm = level;
                self.version += 1;
            }
            (None, Some(_)) => self.weaken(),
            _ => {}
        }
        self.open.extend(wanted.map(|level| (level, now)));
    }

    /// The relay has acknowledged a level, or none.
    pub(crate) fn acknowledged(&mut self, now: Time, level: Option<Level>) {
        if level != self.wanted {
            return;
        }
        self.close(now, level.is_some());
        let Some(level) = level else { return };
        match self.firm {
            None => self.firm = Some((level, now)),
            Some((firm, _)) if level > firm => {
                self.raised.get_or_insert((level, now));
            }
            Some(_) => {}
        }
    }

    /// A session has begun: its relay knows nothing of those before.
    pub(crate) fn reconnected(&mut self, now: Time) {
        self.close(now, self.wanted.is_some());
    }

    /// Nothing is firm any more.
    pub(crate) fn weaken(&mut self) {
        self.version += u32::from(self.firm.is_some());
        (self.firm, self.raised) = (None, None);
    }

    /// The level that every relay on the way holds at `now`, as far as that was acknowledged `settle`
    /// ago.
    pub(crate) fn firm_at(&mut self, now: Time, settle: Duration) -> Option<Level> {
        if let Some((level, since)) = self.raised
            && since + settle <= now
        {
            (self.firm, self.raised) = (Some((level, since)), None);
        }
        self.firm.filter(|(_, since)| *since + settle <= now).map(|(level, _)| level)
    }

    /// Whether an update of a level may come that was published at `published` and arrives at `now`.
    pub(crate) fn allows(&self, level: Level, published: Time, now: Time) -> bool {
        let is_open = |(held, since): &(Level, Time)| *held >= level && *since <= now;
        let was_open =
            |(held, _, until): &(Level, Time, Time)| *held >= level && *until >= published;
        self.open.iter().any(is_open) || self.closed.iter().any(was_open)
    }

    /// Whether what is wanted is what the relay has acknowledged.
    pub(crate) fn is_answered(&self) -> bool {
        let firm = self.raised.or(self.firm).map(|(level, _)| level);
        firm == self.wanted && self.open.len() == usize::from(self.wanted.is_some())
    }

    /// Only what was asked for last goes on, or nothing.
    fn close(&mut self, now: Time, keeps_last: bool) {
        let keep = usize::from(keeps_last).min(self.open.len());
        let ended = self.open.drain(..self.open.len() - keep);
        self.closed.extend(ended.map(|(level, since)| (level, since, now)));
        self.closed.retain(|(_, _, until)| *until + REMEMBERED > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn a_level_is_firm_when_it_was_acknowledged_long_enough_ago() {
        let mut interest = Interest::default();
        interest.request(at(0), Some(Level(3)));
        assert_eq!(interest.firm_at(at(100), SETTLE), None);
        interest.acknowledged(at(100), Some(Level(3)));
        assert_eq!(interest.firm_at(at(109), SETTLE), None);
        assert_eq!(interest.firm_at(at(110), SETTLE), Some(Level(3)));
        // Less is firm at once, more only later.
        interest.request(at(200), Some(Level(1)));
        assert_eq!(interest.firm_at(at(200), SETTLE), Some(Level(1)));
        interest.request(at(201), Some(Level(2)));
        interest.acknowledged(at(210), Some(Level(2)));
        assert_eq!(interest.firm_at(at(219), SETTLE), Some(Level(1)));
        assert_eq!(interest.firm_at(at(220), SETTLE), Some(Level(2)));
        interest.request(at(300), None);
        assert_eq!(interest.firm_at(at(300), SETTLE), None);
    }

    #[test]
    fn a_level_may_come_from_the_request_to_the_acknowledged_end() {
        let mut interest = Interest::default();
        assert!(!interest.allows(Level(0), at(0), at(1)));
        interest.request(at(5), Some(Level(3)));
        assert!(!interest.allows(Level(3), at(0), at(4)));
        assert!(interest.allows(Level(3), at(0), at(5)));
        assert!(!interest.allows(Level(4), at(0), at(5)));
        interest.acknowledged(at(6), Some(Level(3)));
        interest.request(at(10), None);
        assert!(interest.allows(Level(3), at(12), at(14)), "the end is not acknowledged yet");
        interest.acknowledged(at(20), None);
        assert!(interest.allows(Level(3), at(19), at(25)), "it was published before the end");
        assert!(!interest.allows(Level(3), at(21), at(25)));
    }
}
