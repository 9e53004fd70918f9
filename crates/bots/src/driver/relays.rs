//! What the crowd has seen of each relay: whether it takes walkers at all.

use crate::config::CrowdConfig;
use crate::error::CrowdError;
use crate::report::RelayShare;
use canopy_wire::{RefusedReason, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// No walker has connected to a relay so long after the first asked: there is none.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The relays that the walkers have.
pub(super) struct Relays(Vec<Seen>);

struct Seen {
    relay: SocketAddr,
    walkers: u32,
    /// When its first walker asked it.
    asked: Option<Time>,
    /// Some walker was connected to it at some time.
    connected_once: bool,
    refused: Option<RefusedReason>,
}

impl Relays {
    pub(super) fn new(config: &CrowdConfig, walkers: u32) -> Relays {
        let mut all: Vec<Seen> =
            config.relays.iter().map(|target| Seen::new(target.address)).collect();
        if config.controller.is_none() {
            (0..walkers).for_each(|walker| all[config.relay_of(walker)].walkers += 1);
        }
        Relays(all)
    }

    /// Another relay.
    pub(super) fn add(&mut self, relay: SocketAddr) {
        self.0.push(Seen::new(relay));
    }

    /// A walker goes to a relay, from another if it had one.
    pub(super) fn go(&mut self, from: Option<usize>, to: usize) {
        if let Some(from) = from {
            self.leave(from);
        }
        self.0[to].walkers += 1;
    }

    /// A walker has its relay no more.
    pub(super) fn leave(&mut self, from: usize) {
        self.0[from].walkers -= 1;
    }

    /// A walker begins to ask its relay.
    pub(super) fn ask(&mut self, relay: usize, now: Time) {
        self.0[relay].asked.get_or_insert(now);
    }

    /// What a walker has of its relay now.
    pub(super) fn note(
        &mut self,
        relay: usize,
        is_connected: bool,
        refused: Option<RefusedReason>,
    ) {
        let seen = &mut self.0[relay];
        seen.connected_once |= is_connected;
        seen.refused = refused.or(seen.refused);
    }

    /// Finds a relay that takes nobody. A relay that drains comes back, or another does; the other
    /// refusals are for good, and a crowd that lacks some of its walkers would walk a different trace.
    ///
    /// # Errors
    /// Which relay, and why.
    pub(super) fn check(&self, now: Time) -> Result<(), CrowdError> {
        for Seen { relay, asked, connected_once, refused, .. } in &self.0 {
            let is_lasting =
                |reason: &RefusedReason| !connected_once || *reason != RefusedReason::Draining;
            if let Some(reason) = refused.filter(is_lasting) {
                return Err(CrowdError::Refused { relay: *relay, reason });
            }
            if !connected_once && asked.is_some_and(|asked| now.since(asked) > CONNECT_LIMIT) {
                return Err(CrowdError::Unreachable(*relay));
            }
        }
        Ok(())
    }

    /// Which relay had how many walkers.
    pub(super) fn shares(&self) -> Vec<RelayShare> {
        self.0.iter().map(|seen| RelayShare { relay: seen.relay, walkers: seen.walkers }).collect()
    }
}

impl Seen {
    fn new(relay: SocketAddr) -> Seen {
        Seen { relay, walkers: 0, asked: None, connected_once: false, refused: None }
    }
}
