//! Events as a stream of server-sent events.

use super::Api;
use super::answer::Failure;
use crate::controller::driver::Handle;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use canopy_api::EventView;
use futures_util::stream::unfold;
use std::convert::Infallible;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// What happens from now on, as server-sent events: the data of each is one `EventView`
#[utoipa::path(get, path = "/v1/events", tag = "overview",
    responses((status = 200, description = "A stream without an end", content_type = "text/event-stream",
        body = EventView)))]
pub(super) async fn stream(State(api): State<Api>) -> Result<Response, Failure> {
    let receiver = api.handle.events();
    let events = unfold((api.handle, receiver), async |(handle, mut receiver)| {
        let event = next(&handle, &mut receiver).await?;
        let written = Event::default().json_data(&event).unwrap_or_default();
        Some((Ok::<_, Infallible>(written), (handle, receiver)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// The next event with names; nothing once the controller has stopped.
async fn next(
    handle: &Handle,
    receiver: &mut Receiver<canopy_control::Event>,
) -> Option<EventView> {
    match receiver.recv().await {
        Ok(event) => {
            let named = handle.ask(move |controller, _| EventView::new(controller, &event)).await;
            named.ok()
        }
        Err(RecvError::Lagged(events)) => Some(EventView::Missed { events }),
        Err(RecvError::Closed) => None,
    }
}
