//! A member that says where it is: its subscriptions follow the areas of its world.

use super::Member;
use crate::standing::{Alert, Wishes};
use crate::{Acknowledgement, Falloff};
use canopy_areas::{Areas, Point};
use canopy_wire::{Group, Time};

impl Member {
    /// It is here from now on. Returns the group to publish to, and whether it has something to send.
    pub(crate) fn stand_at(&mut self, position: Point) -> (Option<Group>, bool) {
        let wishes = self.standing.handle_position(position);
        let is_new = !wishes.subscribe.is_empty() || !wishes.unsubscribe.is_empty();
        // Nobody waits: what is far is subscribed to before it is near.
        drop(self.follow(wishes));
        (self.standing.publish_to(), is_new || self.standing.due().is_some())
    }

    pub(crate) fn weigh_areas_by(&mut self, falloff: Falloff) {
        self.standing.set_falloff(falloff);
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
                let (wishes, event) = self.standing.handle_areas(areas);
                let change = self.follow(wishes);
                self.standing.confirm_after(change);
                if let Some(event) = event {
                    self.reports.inbox.push_event(event);
                }
            }
        }
    }

    fn follow(&mut self, Wishes { subscribe, unsubscribe }: Wishes) -> Acknowledgement {
        let new =
            subscribe.into_iter().map(|(group, level, weight)| (group, Some((level, weight))));
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
