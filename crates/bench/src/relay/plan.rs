//! How the cases of a relay bench are measured.

use super::hosts::Hosts;
use canopy_engines::EngineChoice;
use clap::ValueEnum;
use serde::Serialize;
use std::time::Duration;

/// How the relay protects what it sends to participants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keys {
    /// Not at all: one datagram's bytes for all.
    None,
    /// Once, with one key for all participants.
    Group,
    /// For each participant with its own key.
    Member,
}

/// How each case is measured.
pub(crate) struct Plan {
    pub(super) rounds: u32,
    pub(super) measured: Duration,
    pub(super) engine: EngineChoice,
    /// Relays that are measured in turn.
    pub(super) keys: Vec<Keys>,
    pub(super) threads: u16,
    /// The processors of the relay's data threads; the first is the reflector's.
    pub(super) relay_on: Vec<usize>,
    pub(super) hosts: Hosts,
}

impl Plan {
    /// The processors of so many data threads, as the relay's flag names them.
    pub(super) fn pins(&self, threads: u16) -> String {
        let all = self.relay_on.iter().cycle().take(threads.into());
        all.map(usize::to_string).collect::<Vec<_>>().join(",")
    }
}
