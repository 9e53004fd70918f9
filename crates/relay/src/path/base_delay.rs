//! How long a path takes when nothing waits on it, by two clocks that nobody has set.

use canopy_wire::Time;
use core::time::Duration;

/// The least delay of this time and the one before it counts. So clocks may drift, and a path that has
/// become longer is known as such after twice as long.
const WINDOW: Duration = Duration::from_secs(10);

/// The least of the delays of a path. They are differences of two clocks: what they count from is
/// unknown, and so only how they differ from each other says anything (RFC 8698 §5.1.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct BaseDelay {
    /// The delay that the others are counted from, in microseconds of any origin; wraps.
    origin: u32,
    /// The least of the window under way and of the one before, from the origin.
    least: [i32; 2],
    began: Time,
}

impl BaseDelay {
    pub(crate) fn new(now: Time, delay: u32) -> BaseDelay {
        BaseDelay { origin: delay, least: [0; 2], began: now }
    }

    /// Takes a delay, and returns how much it is above the least, and how much below what was the least until now, in
    /// microseconds.
    pub(crate) fn above(&mut self, now: Time, delay: u32) -> (u32, u32) {
        if now.since(self.began) >= WINDOW {
            self.begin_window(now, delay);
        }
        let from_origin = delay.wrapping_sub(self.origin) as i32;
        let before = self.least[0].min(self.least[1]);
        self.least[0] = self.least[0].min(from_origin);
        let least = before.min(from_origin);
        (from_origin.abs_diff(least), before.abs_diff(least))
    }

    /// Counts from what is the least now, so that no drift ever wraps.
    fn begin_window(&mut self, now: Time, delay: u32) {
        let is_long_ago = now.since(self.began) >= WINDOW * 2;
        self.origin = match is_long_ago {
            true => delay,
            false => self.origin.wrapping_add(self.least[0] as u32),
        };
        // The window before has 0 in the new count; the one that begins has nothing yet.
        self.least = [i32::MAX, 0];
        self.began = now;
    }
}
