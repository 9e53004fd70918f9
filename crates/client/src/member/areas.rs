//! A member that says where it is: its subscriptions follow the areas of its world.

use super::Member;
use crate::Acknowledgement;
use crate::standing::Alert;
use canopy_areas::{Areas, Change, Point};
use canopy_wire::{Group, Time, Weight};

impl Member {
    /// It is here from now on. Returns the group to publish to, and whether it has something to send.
    pub(crate) fn stand_at(&mut self, position: Point) -> (Option<Group>, bool) {
        let change = self.standing.handle_position(position);
        let is_new = !change.is_empty();
        // Nobody waits: what is far is subscribed to before it is near.
        drop(self.follow(change));
        (self.standing.publish_to(), is_new || self.standing.due().is_some())
    }

    pub(crate) fn group_here(&self) -> Option<Group> {
        self.standing.publish_to()
    }

    pub(crate) fn areas(&self) -> Option<&Areas> {
        self.standing.areas()
    }

    pub(crate) fn handle_alert(&mut self, alert: Alert) {
        match alert {
            Alert::Opened(reports) => self.standing.handle_opened(reports),
            Alert::Areas(areas) => {
                let (change, event) = self.standing.handle_areas(areas);
                let change = self.follow(change);
                self.standing.confirm_after(change);
                if let Some(event) = event {
                    self.reports.inbox.push_event(event);
                }
            }
        }
    }

    fn follow(&mut self, Change { subscribe, unsubscribe }: Change) -> Acknowledgement {
        let new = subscribe.into_iter().map(|(group, level)| (group, Some((level, Weight::ONE))));
        let over = unsubscribe.into_iter().map(|group| (group, None));
        self.wish(new.chain(over))
    }

    /// Says where it is, if that is to be said. Returns when it is next, if nothing happens before.
    pub(super) fn turn_standing(&mut self, now: Time) -> Option<Time> {
        for event in self.standing.turn(now) {
            self.reports.inbox.push_event(event);
        }
        self.standing.due()
    }
}
