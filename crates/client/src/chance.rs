//! Pauses before the controller is asked again, which differ by chance from client to client.

use std::time::Duration;

/// How soon the controller is asked again while a relay is lost, and what is added by chance.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const JITTER_MS: u64 = 50;

/// Numbers by chance, the same for the same seed: they keep clients apart, and no secret depends on them.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// By a seed of the system's; without random numbers all clients have the same.
    pub(crate) fn of_system() -> Chance {
        let mut seed = [0; 8];
        let _ = getrandom::fill(&mut seed);
        Chance::new(u64::from_ne_bytes(seed))
    }

    pub(crate) const fn new(seed: u64) -> Chance {
        Chance(seed | 1)
    }

    /// A number below this one (xorshift).
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The lowest bits of small seeds look alike at first.
        (self.0 >> 11) % most
    }

    /// How long to wait before the controller is asked again: not all at once who have lost a relay.
    pub(crate) fn pause(&mut self) -> Duration {
        ASK_AGAIN + Duration::from_millis(self.below(JITTER_MS + 1))
    }
}
