//! The clock that drivers hand to the sans-IO crates.

use canopy_wire::Time;
use std::time::Instant;

/// Monotonic time since the clock was made. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now, at [`Time::ZERO`].
    pub fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        // 2^64 nanoseconds are 584 years.
        Time::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
}
