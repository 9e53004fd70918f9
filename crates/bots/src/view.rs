//! What a console may see of a crowd: a snapshot refreshed ten times a second, off the hot path.

use crate::grid::Cell;
use crate::report::Verdict;
use canopy_wire::{Level, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An avatar is forgotten by a viewer that has not heard of it for so long: twice the time for
/// which a walker at ten updates a second is silent at the coarse level.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);

/// One avatar as a viewer received it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heard {
    /// Metres.
    pub x: f32,
    /// Metres.
    pub y: f32,
    /// When the viewer received it.
    pub received: Time,
    /// How old it was then.
    pub age: Duration,
    /// The level at which the viewer has the cell that it came from.
    pub level: Level,
}

/// One watched viewer.
#[derive(Clone, Debug, Default)]
pub struct Viewer {
    /// Where it is, metres; `None` while it is not in the world.
    pub at: Option<[f64; 2]>,
    /// The cells to which its subscription is acknowledged, with their levels.
    pub cells: Vec<(Cell, Level)>,
    /// What it received of whom.
    pub heard: BTreeMap<u32, Heard>,
    watchers: u32,
}

/// Sums of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// What the oracle says so far.
    pub verdict: Verdict,
    /// Half of the last second's deliveries were younger, microseconds.
    pub age_p50_us: u64,
    /// 99 of 100 of the last second's deliveries were younger, microseconds.
    pub age_p99_us: u64,
}

/// A crowd at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When, by the crowd's clock.
    pub now: Time,
    /// Walker, x, y in metres: where they last published themselves to be.
    pub avatars: Vec<(u32, f64, f64)>,
    /// By relay, how many of them have no session with it.
    pub lost: Vec<u32>,
    /// Sums.
    pub totals: Totals,
}

#[derive(Default)]
struct Shared {
    snapshot: Snapshot,
    viewers: BTreeMap<u32, Viewer>,
}

/// A window on a running crowd. Only what is watched costs the crowd anything.
#[derive(Default)]
pub struct View {
    shared: Mutex<Shared>,
}

/// Keeps a viewer watched until it is dropped.
pub struct Watch {
    view: Arc<View>,
    walker: u32,
}

impl View {
    /// A window on nothing yet.
    pub fn new() -> Arc<View> {
        Arc::new(View::default())
    }

    /// The last snapshot.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot.clone()
    }

    /// Begins to watch what a walker receives.
    pub fn watch(self: &Arc<View>, walker: u32) -> Watch {
        self.lock().viewers.entry(walker).or_default().watchers += 1;
        Watch { view: Arc::clone(self), walker }
    }

    /// The walkers that are watched.
    pub(crate) fn watched(&self) -> Vec<u32> {
        self.lock().viewers.keys().copied().collect()
    }

    /// Replaces the snapshot and what the watched viewers have; `seen` says where a viewer is and
    /// which cells it has.
    pub(crate) fn refresh(
        &self,
        snapshot: Snapshot,
        mut heard: BTreeMap<u32, Vec<(u32, Heard)>>,
        mut seen: impl FnMut(u32) -> (Option<[f64; 2]>, Vec<(Cell, Level)>),
    ) {
        let mut shared = self.lock();
        let now = snapshot.now;
        shared.snapshot = snapshot;
        for (walker, viewer) in &mut shared.viewers {
            (viewer.at, viewer.cells) = seen(*walker);
            viewer.heard.extend(heard.remove(walker).unwrap_or_default());
            viewer.heard.retain(|_, heard| now.since(heard.received) < FORGOTTEN_AFTER);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// The watched walker.
    pub fn walker(&self) -> u32 {
        self.walker
    }

    /// What it is and has now.
    pub fn viewer(&self) -> Viewer {
        self.view.lock().viewers.get(&self.walker).cloned().unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut shared = self.view.lock();
        if let Some(viewer) = shared.viewers.get_mut(&self.walker) {
            viewer.watchers -= 1;
            if viewer.watchers == 0 {
                shared.viewers.remove(&self.walker);
            }
        }
    }
}
