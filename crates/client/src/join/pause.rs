//! Pauses before the controller is asked again, which differ by chance from client to client.

use std::time::Duration;

/// How soon the controller is asked again while a relay is lost, and what is added by chance.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const JITTER_MS: u64 = 50;

/// How long to wait before the controller is asked again: not all at once who have lost a relay.
pub(super) fn pause() -> Duration {
    ASK_AGAIN + Duration::from_millis(u64::from(chance()) * JITTER_MS / 255)
}

/// A number by chance.
pub(super) fn chance() -> u8 {
    let mut chance = [0];
    // Without random numbers it is the same for all.
    let _ = getrandom::fill(&mut chance);
    chance[0]
}
