//! Areas of interest: a client says where it is, and hears those who are near.

use crate::ask::Ask;
use crate::keep::Chance;
use crate::shared::Shared;
use crate::{Acknowledgement, ClientKey, Event, SubscribeError};
use canopy_areas::{Areas, Report};
use canopy_channel::{ChannelError, Pieces};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How soon a follower whose channel has ended calls again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is said at most where the client is.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// Follows the areas of a client's world.
pub(super) struct Following {
    pub(super) shared: Arc<Shared>,
    pub(super) ask: Ask,
    pub(super) key: ClientKey,
}

impl Following {
    /// Runs until it is dropped: once there are areas, a channel tells them, and is called again when it ends.
    pub(super) async fn run(self) -> Infallible {
        self.shared.standing.has_areas.notified().await;
        let mut chance = Chance::of_system();
        loop {
            // Without the controller nothing changes, and it is asked again.
            let _ = self.follow().await;
            sleep(AGAIN + chance.pause()).await;
        }
    }

    async fn follow(&self) -> Result<(), ChannelError> {
        let Ok(channel) = self.ask.follow(&self.key).await else { return Ok(()) };
        let canopy_channel::Channel { mut sender, mut receiver, .. } = channel;
        let mut pieces = Pieces::default();
        // Steps whose subscriptions are not acknowledged yet, in order.
        let mut under_way: VecDeque<(Acknowledgement, Report)> = VecDeque::new();
        let mut next = Instant::now();
        loop {
            let moved = async {
                sleep_until(next).await;
                self.shared.standing.has_moved.notified().await;
            };
            let report = tokio::select! {
                piece = receiver.receive() => {
                    let text = pieces.take(&piece?).map_err(|_| ChannelError::Forged)?;
                    let Some(text) = text else { continue };
                    let areas = Areas::from_text(&text).map_err(|_| ChannelError::Forged)?;
                    under_way.push_back(self.take(areas));
                    continue;
                }
                result = acknowledged(&mut under_way) => {
                    self.tell_refused(result);
                    under_way.pop_front().map(|(_, report)| report)
                }
                () = moved, if under_way.is_empty() => self.shared.standing.follower().report(),
            };
            if let Some(report) = report {
                let text = serde_json::to_vec(&report).map_err(ChannelError::Text)?;
                sender.send(&text).await?;
                next = Instant::now() + REPORT_EVERY;
            }
        }
    }

    /// Nobody else awaits these subscriptions. The step is confirmed all the same: waiting does not make room.
    fn tell_refused(&self, result: Result<(), SubscribeError>) {
        if let Err(SubscribeError::Refused { groups }) = result {
            let event = Event::SubscriptionsRefused(groups);
            self.shared.with(|member, _| member.inbox().push_event(event));
        }
    }

    /// Follows areas that were told. Returns what is to be acknowledged first, and then to be said.
    fn take(&self, areas: Areas) -> (Acknowledgement, Report) {
        let (step, version) = (areas.step, areas.step.div_ceil(3));
        let standing = &self.shared.standing;
        let mut follower = standing.follower();
        let is_other = follower.areas().is_none_or(|before| before.step.div_ceil(3) != version);
        let change = follower.handle_areas(areas);
        let acknowledgement = self.shared.wish(change).unwrap_or_else(Acknowledgement::new);
        let report = follower.report().unwrap_or(Report { step, area: None });
        drop(follower);
        if is_other {
            let event = Event::AreasChanged { version };
            self.shared.with(|member, _| member.inbox().push_event(event));
        }
        (acknowledgement, report)
    }
}

/// Waits for the first of those that are under way; forever if there is none.
async fn acknowledged(
    under_way: &mut VecDeque<(Acknowledgement, Report)>,
) -> Result<(), SubscribeError> {
    match under_way.front_mut() {
        Some((acknowledgement, _)) => acknowledgement.await,
        None => std::future::pending().await,
    }
}
