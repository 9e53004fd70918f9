//! How the cases of a relay bench are measured.

use super::place::Place;
use canopy_engines::EngineChoice;
use std::time::Duration;

/// How each case is measured.
pub(crate) struct Plan {
    pub(super) rounds: u32,
    pub(super) measured: Duration,
    pub(super) engine: EngineChoice,
    pub(super) threads: u16,
    /// The processors of the relay's data threads; the first is the reflector's.
    pub(super) relay_on: Vec<usize>,
    pub(super) place: Place,
}

impl Plan {
    /// The processors of so many data threads, as the relay's flag names them.
    pub(super) fn pins(&self, threads: u16) -> String {
        let all = self.relay_on.iter().cycle().take(threads.into());
        all.map(usize::to_string).collect::<Vec<_>>().join(",")
    }
}
