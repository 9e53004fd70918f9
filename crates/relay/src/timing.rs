//! When updates leave, and how often is looked at what waits.

use canopy_wire::Time;
use core::time::Duration;

/// When updates leave (groupcast §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As soon as the receive batch that brought them has been read.
    Immediate,
    /// Every tick, a receiver's updates of the tick together.
    Periodic {
        /// The time between flushes.
        tick: Duration,
    },
}

impl Mode {
    /// The time between flushes, if there is one.
    pub fn tick(self) -> Option<Duration> {
        match self {
            Mode::Immediate => None,
            Mode::Periodic { tick } => Some(tick),
        }
    }

    /// How long what has arrived may lie unread, so long as the data thread has time.
    pub fn longest_unread(self) -> Duration {
        match self {
            Mode::Immediate => Duration::ZERO,
            Mode::Periodic { tick } => part_of(tick, READ_LITTLE_EVERY),
        }
    }
}

/// In periodic mode sockets are read at least this often while there is much traffic or there are many sessions, so
/// that acks don't wait for the tick. Every read wakes the processor, which costs more than a few datagrams do.
pub const READ_EVERY: Duration = Duration::from_micros(12_500);
/// The same where few have a session, and send little.
pub const READ_LITTLE_EVERY: Duration = Duration::from_millis(50);

/// The first point after `now` that ends a part of a tick, which has as few equal parts as there can be
/// of at most `longest`. So a tick is always such a point, and what arrives until then leaves with it.
pub(crate) fn next_part(now: Time, tick: Duration, longest: Duration) -> Time {
    let tick_began = now.last_multiple(tick);
    let (parts, tick) = (parts_of(tick, longest), tick.as_nanos().max(1));
    let next = now.since(tick_began).as_nanos() * parts / tick + 1;
    tick_began + Duration::from_nanos((tick * next).div_ceil(parts) as u64)
}

/// The time between two such points.
pub(crate) fn part_of(tick: Duration, longest: Duration) -> Duration {
    Duration::from_nanos((tick.as_nanos() / parts_of(tick, longest)).max(1) as u64)
}

fn parts_of(tick: Duration, longest: Duration) -> u128 {
    tick.as_nanos().max(1).div_ceil(longest.as_nanos())
}
