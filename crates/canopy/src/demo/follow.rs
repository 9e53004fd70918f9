//! Follows the demo's controller: what it knows and tells is kept for pages to look at.

use crate::console::Shown;
use crate::controller::Handle;
use canopy_api::{EventView, overlay};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// How often the controller is asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Follows a controller and one of its worlds, in a tokio runtime, for as long as it runs.
pub(super) fn follow(shown: &Arc<Shown>, handle: Handle, world: String) {
    tokio::spawn(look(Arc::clone(shown), handle.clone(), world));
    tokio::spawn(listen(Arc::clone(shown), handle));
}

async fn look(shown: Arc<Shown>, handle: Handle, world: String) {
    loop {
        let world = world.clone();
        let asked = handle.ask(move |controller, _| overlay(controller, Some(&world)));
        let Ok(overlay) = asked.await else { return };
        shown.know(overlay);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

async fn listen(shown: Arc<Shown>, handle: Handle) {
    let mut events = handle.events();
    loop {
        let event = match events.recv().await {
            Ok(event) => handle.ask(move |controller, _| EventView::new(controller, &event)).await,
            Err(RecvError::Lagged(events)) => Ok(EventView::Missed { events }),
            Err(RecvError::Closed) => return,
        };
        let Ok(event) = event else { return };
        shown.tell(event);
    }
}
