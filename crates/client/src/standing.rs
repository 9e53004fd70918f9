//! Where a client is in the areas of its world, and what it tells the controller of that. It only decides: the
//! member makes the changes, and `Following` (`keep/`) carries what is told.

use crate::{Acknowledgement, Event, Falloff, SubscribeError};
use canopy_areas::{Area, Areas, Change, Follower, Near, Point, Report};
use canopy_wire::{Group, Level, Time, Weight};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// How often it is said at most where the client is.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// By how many steps an area's weight must change to be asked for anew: twelve are twice or half as much. Nobody is told
/// apart within an area, so finer steps would say little, and who walks asks a few times a second as it is. Weights are
/// multiples of it, so that clients near each other mostly ask for the same, and share what is sent.
const NOTICEABLE: u8 = 12;
/// An area is weighed as one of those who may be there, who share its weight: square metres.
const AVATAR: f32 = 1.0;

/// What a client is told by who follows the areas for it.
#[derive(Debug)]
pub(crate) enum Alert {
    /// A channel is open. It takes these reports, and the areas of now come over it first.
    Opened(Sender<Report>),
    /// The areas are so from now on.
    Areas(Areas),
}

/// Subscriptions to be made, new ones and those with another level or weight, and to be ended.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) subscribe: Vec<(Group, Level, Weight)>,
    pub(crate) unsubscribe: Vec<Group>,
}

#[derive(Debug, Default)]
pub(crate) struct Standing {
    follower: Follower,
    falloff: Falloff,
    /// What was asked for last.
    asked: BTreeMap<Group, (Level, Weight)>,
    /// Where reports go; nothing while no channel is open.
    reports: Option<Sender<Report>>,
    /// Steps whose subscriptions are not acknowledged yet, in order.
    under_way: VecDeque<(Acknowledgement, Report)>,
    /// It is in another area than it has said.
    has_moved: bool,
    /// It says nothing before.
    says_at: Time,
}

impl Standing {
    /// Areas matter less with their distance by this from now on.
    pub(crate) fn set_falloff(&mut self, falloff: Falloff) {
        self.falloff = falloff;
    }

    /// The client is here from now on.
    pub(crate) fn handle_position(&mut self, position: Point) -> Wishes {
        let before = self.area();
        let change = self.follower.handle_position(position);
        self.has_moved |= self.area() != before;
        self.weigh(change)
    }

    /// Adds the weights, and those areas that have noticeably another one now.
    fn weigh(&mut self, Change { unsubscribe, .. }: Change) -> Wishes {
        for group in &unsubscribe {
            self.asked.remove(group);
        }
        let mut subscribe = Vec::new();
        for (group, Near { level, distance }) in self.follower.hears() {
            let weight = self.falloff.weight(*distance as f32, AVATAR);
            let is_known = self.asked.get(group).is_some_and(|(asked, before)| {
                asked == level && before.0.abs_diff(weight.0) < NOTICEABLE
            });
            if !is_known {
                let asks =
                    Weight(weight.0.saturating_add(NOTICEABLE / 2) / NOTICEABLE * NOTICEABLE);
                self.asked.insert(*group, (*level, asks));
                subscribe.push((*group, *level, asks));
            }
        }
        Wishes { subscribe, unsubscribe }
    }

    /// Reports go here from now on. What was to be confirmed over an earlier channel is told again over this one.
    pub(crate) fn handle_opened(&mut self, reports: Sender<Report>) {
        self.reports = Some(reports);
        self.under_way.clear();
    }

    /// The areas are so from now on. Returns what the application is told, if it is another division. The change is
    /// to be made, and its acknowledgement to be handed to [`Standing::confirm_after`].
    pub(crate) fn handle_areas(&mut self, areas: Areas) -> (Wishes, Option<Event>) {
        let version = |areas: &Areas| areas.step.div_ceil(3);
        let new = version(&areas);
        let is_other = self.areas().is_none_or(|before| version(before) != new);
        let change = self.follower.handle_areas(areas);
        (self.weigh(change), is_other.then_some(Event::AreasChanged { version: new }))
    }

    /// The present step is confirmed once this has been acknowledged.
    pub(crate) fn confirm_after(&mut self, change: Acknowledgement) {
        if let Some(report) = self.follower.report() {
            self.under_way.push_back((change, report));
        }
    }

    /// Says what is to be said. Returns what the application is told.
    pub(crate) fn turn(&mut self, now: Time) -> Vec<Event> {
        let mut events = Vec::new();
        if self.reports.as_ref().is_some_and(Sender::is_closed) {
            self.reports = None;
            self.under_way.clear();
        }
        let Some(reports) = self.reports.clone() else { return events };
        while reports.capacity() > 0
            && let Some(report) = self.next_report(now, &mut events)
        {
            // Nobody else sends there, so that there is room.
            let _ = reports.try_send(report);
            self.says_at = now + REPORT_EVERY;
        }
        if reports.capacity() == 0 {
            self.says_at = now + REPORT_EVERY;
        }
        events
    }

    fn next_report(&mut self, now: Time, events: &mut Vec<Event>) -> Option<Report> {
        let Some((change, report)) = self.under_way.front() else {
            let is_due = self.has_moved && self.says_at <= now;
            self.has_moved &= !is_due;
            return self.follower.report().filter(|_| is_due);
        };
        let (result, report) = (change.result()?, *report);
        self.under_way.pop_front();
        // Nobody else awaits it. The step is confirmed all the same: waiting does not make room.
        if let Err(SubscribeError::Refused { groups }) = result {
            events.push(Event::SubscriptionsRefused(groups));
        }
        Some(report)
    }

    /// When it wants its turn, if nothing happens before.
    pub(crate) fn due(&self) -> Option<Time> {
        self.reports.as_ref()?;
        let has_news = match self.under_way.front() {
            Some((change, _)) => change.result().is_some(),
            None => self.has_moved,
        };
        has_news.then_some(self.says_at)
    }

    fn area(&self) -> Option<Area> {
        self.follower.report()?.area
    }

    /// The group to publish to.
    pub(crate) fn publish_to(&self) -> Option<Group> {
        self.follower.publish_to()
    }

    pub(crate) fn areas(&self) -> Option<&Areas> {
        self.follower.areas()
    }
}

#[cfg(test)]
mod tests;
