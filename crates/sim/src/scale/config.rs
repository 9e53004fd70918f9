//! What a world is to be like, and what tells its costs.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Groups that every participant subscribes to.
pub(crate) const WANTS: usize = 4;
/// How many participants there are for each group.
pub(crate) const PARTICIPANTS_PER_GROUP: u32 = 4;

/// A world whose cost is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleConfig {
    /// Decides everything that is not fixed here.
    pub seed: u64,
    /// How many relays, 1 at least.
    pub relays: u32,
    /// Participants of each relay, 1 at least.
    pub endpoints_per_relay: u16,
    /// Which relays are the core.
    pub core: ScaleCore,
}

/// Which relays of a world are its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleCore {
    /// The one at the centre.
    One,
    /// A subtree around the centre, of as many relays as the square root of all.
    Subtree,
}

impl ScaleCore {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ScaleCore::One => "one",
            ScaleCore::Subtree => "subtree",
        }
    }
}

/// What the simulation itself cannot know: it has no clock.
pub trait Gauge {
    /// Processor time of the thread that simulates.
    fn cpu(&self) -> Duration;

    /// Memory of the process that is resident and its own, in bytes.
    fn memory(&self) -> u64;
}
