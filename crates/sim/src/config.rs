//! What a run is asked for; all the rest is drawn from the seed.

use crate::sabotage::Sabotage;
use std::fmt::Write;

/// Length of a run in virtual seconds, if nothing else is asked for.
const DEFAULT_SECONDS: u32 = 30;

/// There are floods among fewer participants only: so many stand in one place and say little.
pub const FLOODED_BELOW: u32 = 500;

/// What to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Decides everything that is not fixed here.
    pub seed: u64,
    /// How many participants; drawn from the seed if not given.
    pub participants: Option<u32>,
    /// Virtual seconds. In the last part of them nothing is broken any more, so that what does not
    /// recover by itself is found; runs under 20 seconds have little of it.
    pub seconds: u32,
    /// Whether somebody sends far beyond its limits for a while; drawn from the seed if not given.
    pub floods: Option<bool>,
    /// A fault of the relay's that the oracle is not told of: the proof that it can find one.
    pub sabotage: Option<Sabotage>,
}

impl SimConfig {
    /// A run of a seed as `canopy sim --seed` does it.
    pub fn new(seed: u64) -> SimConfig {
        SimConfig {
            seed,
            participants: None,
            seconds: DEFAULT_SECONDS,
            floods: None,
            sabotage: None,
        }
    }

    /// The one command that does this run again.
    pub fn replay(&self) -> String {
        let mut command = format!("canopy sim --seed {}", self.seed);
        if let Some(participants) = self.participants {
            let _ = write!(command, " --participants {participants}");
        }
        if self.seconds != DEFAULT_SECONDS {
            let _ = write!(command, " --seconds {}", self.seconds);
        }
        if let Some(floods) = self.floods {
            let _ = write!(command, " --floods {floods}");
        }
        command
    }
}
