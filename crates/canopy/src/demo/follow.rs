//! What the demo's controller knows and tells, kept for pages to look at.

use crate::controller::Handle;
use canopy_api::{EventView, Overlay, overlay};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;

/// How often the controller is asked.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How many happenings are kept.
const MOST_KEPT: usize = 256;

/// What the controller knows, and what it has told last.
#[derive(Default)]
pub(crate) struct Followed(Mutex<Known>);

#[derive(Default)]
struct Known {
    overlay: Overlay,
    told: VecDeque<Happening>,
    /// How many it has told.
    count: u64,
}

/// Something that the controller has told.
#[derive(Clone)]
pub(crate) struct Happening {
    /// Its number, from 1 on.
    pub(crate) number: u64,
    pub(crate) at: Instant,
    pub(crate) event: EventView,
}

impl Followed {
    /// Follows a controller and one of its worlds, in a tokio runtime, for as long as it runs.
    pub(super) fn start(handle: Handle, world: String) -> Arc<Followed> {
        let followed = Arc::new(Followed::default());
        tokio::spawn(Arc::clone(&followed).look(handle.clone(), world));
        tokio::spawn(Arc::clone(&followed).listen(handle));
        followed
    }

    /// What it knew last.
    pub(super) fn overlay(&self) -> Overlay {
        self.lock().overlay.clone()
    }

    /// What it has told since so many happenings.
    pub(super) fn since(&self, seen: u64) -> Vec<Happening> {
        self.lock().told.iter().filter(|one| one.number > seen).cloned().collect()
    }

    async fn look(self: Arc<Followed>, handle: Handle, world: String) {
        loop {
            let world = world.clone();
            let asked = handle.ask(move |controller, _| overlay(controller, Some(&world)));
            let Ok(overlay) = asked.await else { return };
            self.lock().overlay = overlay;
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    async fn listen(self: Arc<Followed>, handle: Handle) {
        let mut events = handle.events();
        loop {
            let event = match events.recv().await {
                Ok(event) => {
                    handle.ask(move |controller, _| EventView::new(controller, &event)).await
                }
                Err(RecvError::Lagged(events)) => Ok(EventView::Missed { events }),
                Err(RecvError::Closed) => return,
            };
            let Ok(event) = event else { return };
            let mut known = self.lock();
            known.count += 1;
            let happening = Happening { number: known.count, at: Instant::now(), event };
            known.told.push_back(happening);
            while known.told.len() > MOST_KEPT {
                known.told.pop_front();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
