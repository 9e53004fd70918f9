//! What left over a shaped link lately.

use canopy_wire::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// How long it counts.
pub(crate) const WINDOW: Duration = Duration::from_millis(100);

/// What left over a shaped link lately.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    /// Since when the link is up.
    pub(crate) begun: Time,
    sent: VecDeque<(Time, usize)>,
    bytes: usize,
}

impl Lately {
    /// A datagram leaves. Returns what did in the last [`WINDOW`], it included.
    pub(crate) fn sends(&mut self, now: Time, bytes: usize) -> usize {
        self.sent.push_back((now, bytes));
        self.bytes += bytes;
        while let Some((_, bytes)) = self.sent.pop_front_if(|(at, _)| now.since(*at) >= WINDOW) {
            self.bytes -= bytes;
        }
        self.bytes
    }
}
