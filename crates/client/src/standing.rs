//! Where a client is in the areas of its world.

use canopy_areas::{Areas, Change, Follower, Point};
use canopy_wire::Group;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What a client knows of its world's areas, and where it is in them.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    follower: Mutex<Follower>,
    /// The client is in another area, or the areas are others.
    pub(crate) has_moved: Notify,
    /// The controller has said that there are areas.
    pub(crate) has_areas: Notify,
}

impl Standing {
    pub(crate) fn follower(&self) -> MutexGuard<'_, Follower> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn there_are_areas(&self) {
        self.has_areas.notify_one();
    }

    /// The client is here from now on: `wish` makes the change of its subscriptions. Returns the group to
    /// publish to.
    pub(crate) fn stand(&self, position: Point, wish: impl FnOnce(Change)) -> Option<Group> {
        // Held until the wishes are made, so that they are in order.
        let mut follower = self.follower();
        let before = follower.report().and_then(|report| report.area);
        let change = follower.handle_position(position);
        wish(change);
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
