//! What the agent tells other relays of this one's links, and what it hears of theirs.

use super::Agent;
use crate::net::SharedStates;
use canopy_overlay::LinkStates;
use canopy_session::PublicKey;
use canopy_wire::LinkDetail;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a relay knows that has just started.
pub(super) fn none(origin: Instant, own: PublicKey, name: &str) -> SharedStates {
    let life = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    SharedStates::new(origin, LinkStates::new(own, name, life.as_nanos() as u64))
}

impl Agent {
    /// This relay's links stand so.
    pub(super) fn set_own_links(&self, links: BTreeMap<PublicKey, LinkDetail>) {
        self.states.with(|now, states| states.set_links(now, links));
    }

    /// Sends neighbours what is due, while it goes on with other things: data threads may take their time. Returns in how long
    /// more is due.
    pub(super) fn flood(&mut self) -> Duration {
        if !self.flooding.is_empty() {
            return Duration::MAX;
        }
        let (flooded, wait) = self.states.with(|now, states| {
            states.review(now);
            let flooded: Vec<_> = std::iter::from_fn(|| states.poll_flooded()).collect();
            (flooded, states.poll_timeout().map(|until| until.since(now)))
        });
        if !flooded.is_empty() {
            let data_plane = self.data_plane.clone();
            self.flooding.spawn_blocking(move || {
                if let Err(why) = data_plane.flood(flooded) {
                    tracing::debug!("neighbours are not told of links: {why}");
                }
            });
        }
        wait.unwrap_or(Duration::MAX)
    }

    /// The controller asks after relays of which it hears nothing: it is told to which of them links lead.
    pub(super) fn answer_after(&mut self) {
        let Some(asked) = self.side.poll_asked_after() else { return };
        let reachable = self.states.with(|_, states| states.reachable());
        self.side.set_reachable(&reachable.intersection(&asked).copied().collect::<Vec<_>>());
    }
}
