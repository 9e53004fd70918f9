//! Areas of interest: a client says where it is, and hears those who are near.

use super::Ask;
use crate::driver::Shared;
use crate::{Acknowledgement, ClientKey, Event, SubscribeError};
use canopy_areas::{Areas, Change, Follower, Point, Report};
use canopy_channel::{ChannelError, Pieces};
use canopy_wire::Group;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

/// How soon a follower whose channel has ended calls again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is said at most where the client is.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// What a client knows of its world's areas, and where it is in them.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    follower: Mutex<Follower>,
    /// The client is in another area, or the areas are others.
    has_moved: Notify,
    /// The controller has said that there are areas.
    has_areas: Notify,
}

impl Standing {
    fn follower(&self) -> MutexGuard<'_, Follower> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn there_are_areas(&self) {
        self.has_areas.notify_one();
    }

    /// The client is here from now on. Returns the group to publish to.
    pub(crate) fn stand(&self, shared: &Shared, position: Point) -> Option<Group> {
        // Held until the wishes are made, so that they are in order.
        let mut follower = self.follower();
        let before = follower.report().and_then(|report| report.area);
        let change = follower.handle_position(position);
        // Nobody waits: what is far is subscribed to before it is near.
        drop(wish(shared, change));
        if follower.report().and_then(|report| report.area) != before {
            self.has_moved.notify_one();
        }
        follower.publish_to()
    }

    pub(crate) fn publish_to(&self) -> Option<Group> {
        self.follower().publish_to()
    }

    pub(crate) fn areas(&self) -> Option<Areas> {
        self.follower().areas().cloned()
    }
}

/// Makes a change of subscriptions.
fn wish(shared: &Shared, change: Change) -> Option<Acknowledgement> {
    if change.is_empty() {
        return None;
    }
    let Change { subscribe, unsubscribe } = change;
    let weight = canopy_wire::Weight::ONE;
    let new = subscribe.into_iter().map(|(group, level)| (group, Some((level, weight))));
    let over = unsubscribe.into_iter().map(|group| (group, None));
    let wishes = shared.lock().wish(new.chain(over));
    shared.nudge.notify_one();
    Some(wishes)
}

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
        loop {
            // Without the controller nothing changes, and it is asked again.
            let _ = self.follow().await;
            sleep(AGAIN + super::keep::pause()).await;
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
        let acknowledgement = wish(&self.shared, change).unwrap_or_else(Acknowledgement::new);
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
