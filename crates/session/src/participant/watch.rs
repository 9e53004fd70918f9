//! How a participant that could go to another relay notices that its own is silent: long before missing
//! keepalives say that the session is lost. The session stays; what follows is the driver's affair.

use super::{Session, State};
use canopy_wire::Time;
use core::time::Duration;

/// A relay is asked for a sign of life when nothing has come from it for so long.
const QUIET: Duration = Duration::from_millis(500);
/// From one question to the next: so long, or half a round trip if that is longer.
const ASK_GAP: Duration = Duration::from_millis(100);
/// A relay that answers none of so many counts as silent.
const QUESTIONS: u32 = 4;
/// After the last of them, up to so long is waited by chance in addition: all who are at one relay notice at the
/// same time, and ask the same controller.
const SPREAD_MS: u64 = 250;
/// A silent relay is asked so often.
const SILENT_GAP: Duration = Duration::from_millis(500);

/// How a relay is asked for a sign of life, by keepalives out of turn.
pub(super) struct Watch {
    /// How often since something came.
    asked: u32,
    /// When it may be asked next. What comes does not move that, or each datagram would move a timer.
    pub(super) due: Time,
}

impl Watch {
    pub(super) const fn begin(due: Time) -> Watch {
        Watch { asked: 0, due }
    }
}

impl Session {
    /// Whether the relay has left all questions for a sign of life unanswered. It may be gone, or the way to it, or
    /// it pauses. Nobody is asked unless [`SessionConfig::watches`](super::SessionConfig::watches) was set.
    pub fn is_silent(&self) -> bool {
        let is_silent = |watch: &Watch| watch.asked > QUESTIONS;
        self.state == State::Connected && self.watch.as_ref().is_some_and(is_silent)
    }

    /// The relay has said something.
    pub(super) fn note_heard(&mut self, now: Time) {
        self.heard = self.heard.max(now);
        self.doubt = None;
        if let Some(watch) = self.watch.as_mut().filter(|watch| watch.asked > 0) {
            *watch = Watch::begin(self.heard + QUIET);
        }
    }

    /// Whether the relay is to be asked for a sign of life now. The question after the last means that it is silent.
    pub(super) fn asks_for_a_sign(&mut self, now: Time) -> bool {
        let Some(watch) = self.watch.as_ref().filter(|watch| now >= watch.due) else {
            return false;
        };
        let quiet_until = self.heard + QUIET;
        if watch.asked == 0 && now < quiet_until {
            self.watch = Some(Watch::begin(quiet_until));
            return false;
        }
        let asked = watch.asked.min(QUESTIONS) + 1;
        let gap = ASK_GAP.max(self.round_trip.unwrap_or(self.first_round_trip) / 2);
        let pause = match asked {
            ..QUESTIONS => gap,
            QUESTIONS => gap + Duration::from_millis(self.draw() % (SPREAD_MS + 1)),
            _ => gap.max(SILENT_GAP),
        };
        self.watch = Some(Watch { asked, due: now + pause });
        true
    }
}
