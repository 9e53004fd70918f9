//! The controller's process, its store, and its channels to the relays.

use super::config::TopologyConfig;
use crate::host::UNIX_ZERO;
use canopy_control::storage::{Batch, MemoryStorage, Storage};
use canopy_control::{Controller, RelayId, Retry, Settings};
use canopy_wire::Time;
use std::time::Duration;

/// A channel between the controller and a relay. What is sent over it arrives in order, or not at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    /// Counts the connections; odd while there is one.
    pub(crate) epoch: u64,
    /// When the last message arrives: to the controller, to the relay.
    pub(crate) newest: [Time; 2],
    /// Until when nothing passes.
    pub(crate) blocked: Time,
}

impl Channel {
    pub(crate) fn is_open(&self) -> bool {
        self.epoch % 2 == 1
    }

    /// When something arrives that is sent now: TCP sends again what did not pass.
    pub(crate) fn arrives(&mut self, now: Time, side: usize, takes: Duration) -> Time {
        let at = self.blocked.max(now) + takes;
        self.newest[side] = self.newest[side].max(at);
        self.newest[side]
    }
}

/// The process, which ends and starts again on what was committed.
pub(crate) struct Process {
    pub(crate) controller: Option<Controller>,
    pub(crate) storage: MemoryStorage,
    /// What is being committed.
    pub(crate) commit: Option<Batch>,
    /// Its clock is ahead of the world's by so much.
    ahead: Duration,
    pub(crate) life: u32,
    /// When it wants to know the time.
    pub(crate) timer: Option<Time>,
    settings: Settings,
    /// By node.
    pub(crate) ids: Vec<Option<RelayId>>,
}

impl Process {
    pub(crate) fn new(relays: usize, ahead: Duration, config: &TopologyConfig) -> Process {
        Process {
            controller: None,
            storage: MemoryStorage::default(),
            commit: None,
            ahead,
            life: 0,
            timer: None,
            // A move that begins shortly before the end is not settled there.
            settings: Settings {
                degree: config.degree,
                improve: Duration::ZERO,
                share: config.load.map_or(Settings::default().share, |load| load.share),
                ..Settings::default()
            },
            ids: vec![None; relays],
        }
    }

    /// The controller's time, which its lives have in common: that of day.
    pub(crate) fn local(&self, now: Time) -> Time {
        now + Duration::from_secs(UNIX_ZERO.0) + self.ahead
    }

    /// The world's time of a moment on its clock.
    pub(crate) fn global(&self, local: Time) -> Time {
        Time::ZERO + local.since(self.local(Time::ZERO))
    }

    pub(crate) fn start(&mut self, now: Time) -> Result<(), String> {
        self.life += 1;
        self.timer = None;
        let at = self.local(now);
        let started = Controller::start(self.settings, Retry::default(), at, &mut self.storage);
        self.controller = Some(started.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// The process ends. What was handed to the store is committed, or not.
    pub(crate) fn stop(&mut self, commits: bool) {
        self.controller = None;
        if let Some(batch) = self.commit.take()
            && commits
        {
            // The process that would hear of a failure is no more.
            _ = self.storage.commit(&batch);
        }
    }

    /// The node of a relay.
    pub(crate) fn node(&self, id: RelayId) -> Option<usize> {
        self.ids.iter().position(|of| *of == Some(id))
    }
}
