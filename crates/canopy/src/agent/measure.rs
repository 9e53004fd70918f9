//! How far other relays are, whether there is a link or not: each is asked a few times, as clients do
//! before they join, from sockets that are not the data plane's.

use super::spread::spread;
use canopy_client::join::ask_once;
use canopy_control::signal::{Measure, Measured, Other, Reading};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How often each is asked. The shortest time counts.
const ASKS: u8 = 4;
/// Between an answer and the next question, on average: what makes one late may be over then.
const PAUSE: Duration = Duration::from_millis(60);
/// An answer is waited for so long.
const PATIENCE: Duration = Duration::from_secs(1);

/// Measures the relays that are asked for, all at once.
pub(super) async fn all(measure: Measure) -> Measured {
    let Measure { controller, round, others } = measure;
    let mut measuring = JoinSet::new();
    for other in others {
        measuring.spawn(one(other));
    }
    Measured { controller, round, readings: measuring.join_all().await }
}

async fn one(other: Other) -> Reading {
    let (mut answered, mut least) = (0, Duration::MAX);
    for _ in 0..ASKS {
        sleep(PAUSE.mul_f64(0.5 + spread())).await;
        if let Ok(Some(round_trip)) = ask_once(other.native, PATIENCE).await {
            answered += 1;
            least = least.min(round_trip);
        }
    }
    let delay_us = if answered == 0 { 0 } else { (least.as_micros() / 2) as u32 };
    Reading { relay: other.relay, delay_us, asked: ASKS, answered }
}
