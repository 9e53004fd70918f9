//! One who follows a world's areas: turns them and a position into subscriptions.

use crate::areas::{Areas, Report};
use crate::plane::Point;
use crate::ring::Near;
use canopy_wire::{Group, Level};
use std::collections::BTreeMap;

/// Somebody at a position in a world with areas. It only computes: the changes that it returns are to be
/// made, and once subscriptions are acknowledged the step is confirmed with a [`Report`].
#[derive(Clone, Debug, Default)]
pub struct Follower {
    areas: Option<Areas>,
    position: Option<Point>,
    hears: BTreeMap<Group, Near>,
}

/// Subscriptions to be made and ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a change that is not made leaves the follower deaf"]
pub struct Change {
    /// Groups to subscribe to, new ones and those with another level.
    pub subscribe: Vec<(Group, Level)>,
    /// Groups to unsubscribe from.
    pub unsubscribe: Vec<Group>,
}

impl Change {
    /// Whether there is nothing to be made.
    pub fn is_empty(&self) -> bool {
        self.subscribe.is_empty() && self.unsubscribe.is_empty()
    }
}

impl Follower {
    /// The areas are so from now on. Publishing follows at once.
    pub fn handle_areas(&mut self, areas: Areas) -> Change {
        self.areas = Some(areas);
        self.change()
    }

    /// It is here from now on.
    pub fn handle_position(&mut self, position: Point) -> Change {
        self.position = Some(position);
        self.change()
    }

    fn change(&mut self) -> Change {
        let (Some(areas), Some(position)) = (&self.areas, self.position) else {
            return Change::default();
        };
        let hears = areas.hear_at(position);
        let is_new = |(group, near): &(&Group, &Near)| {
            self.hears.get(*group).is_none_or(|before| before.level != near.level)
        };
        let new = hears.iter().filter(is_new).map(|(group, near)| (*group, near.level));
        let subscribe = new.collect();
        let is_over = |group: &Group| !hears.contains_key(group);
        let unsubscribe = self.hears.keys().copied().filter(is_over).collect();
        self.hears = hears;
        Change { subscribe, unsubscribe }
    }

    /// The group to publish to; nothing before it has areas and a position.
    pub fn publish_to(&self) -> Option<Group> {
        Some(self.areas.as_ref()?.publish_at(self.position?))
    }

    /// What it confirms once its changes are acknowledged; nothing before it has areas.
    pub fn report(&self) -> Option<Report> {
        let areas = self.areas.as_ref()?;
        let area = self.position.map(|position| areas.in_force().area_at(position));
        Some(Report { step: areas.step, area })
    }

    /// The areas, as they were told last.
    pub fn areas(&self) -> Option<&Areas> {
        self.areas.as_ref()
    }

    /// The groups that it is subscribed to, with their levels, and how far they are now.
    pub fn hears(&self) -> &BTreeMap<Group, Near> {
        &self.hears
    }
}
