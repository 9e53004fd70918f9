//! What the application wants to be subscribed to, and who waits for the relay's word on it.
//!
//! The session does the work; this only matches its events with those who wait.

use crate::Acknowledgement;
use crate::acknowledgement::Awaited;
use canopy_wire::{Group, Level, SubscribeRefusal, Weight};
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Subscriptions {
    groups: BTreeMap<Group, Wish>,
}

/// What was last asked for of a group. A wish for nothing goes when it is fulfilled.
#[derive(Default)]
struct Wish {
    wanted: Option<(Level, Weight)>,
    fulfilled: bool,
    waiting: Vec<Awaited>,
}

impl Wish {
    fn fulfil(&mut self) {
        self.fulfilled = true;
        self.waiting.drain(..).for_each(Awaited::made);
    }
}

impl Subscriptions {
    /// Notes that the group is wanted at a level and with a weight, or not at all. `change` hears of it
    /// when the relay has answered this wish or a later one that replaced it.
    pub(crate) fn wish(
        &mut self,
        group: Group,
        wanted: Option<(Level, Weight)>,
        change: &Acknowledgement,
    ) {
        let unwanted = || Wish { fulfilled: true, ..Wish::default() };
        let wish = self.groups.entry(group).or_insert_with(unwanted);
        if wish.wanted != wanted {
            wish.wanted = wanted;
            wish.fulfilled = false;
        }
        // Acknowledgements that were dropped while the relay is lost must not pile up.
        wish.waiting.retain(Awaited::is_wanted);
        wish.waiting.push(change.await_one());
        if wish.fulfilled {
            wish.fulfil();
            self.forget_unwanted(group);
        }
    }

    /// The relay has subscribed the client to the group at `level`.
    pub(crate) fn subscribed(&mut self, group: Group, level: Level) {
        let is_it = |wish: &&mut Wish| wish.wanted.is_some_and(|(wanted, _)| wanted == level);
        if let Some(wish) = self.groups.get_mut(&group).filter(is_it) {
            wish.fulfil();
        }
    }

    /// The relay has ended the subscription.
    pub(crate) fn unsubscribed(&mut self, group: Group) {
        if let Some(wish) = self.groups.get_mut(&group).filter(|wish| wish.wanted.is_none()) {
            wish.fulfil();
            self.forget_unwanted(group);
        }
    }

    /// The relay has refused the subscription. Returns whether somebody was told.
    pub(crate) fn refused(&mut self, group: Group, reason: SubscribeRefusal) -> bool {
        let Some(wish) = self.groups.get_mut(&group).filter(|wish| wish.wanted.is_some()) else {
            return true;
        };
        let told = wish.waiting.iter().any(Awaited::is_wanted);
        wish.waiting.drain(..).for_each(|waiting| waiting.refused(group, reason));
        self.groups.remove(&group);
        told
    }

    /// The relay knows of no subscription, as the session was lost or is new: what is unwanted is
    /// gone, and what is wanted is yet to be acknowledged.
    pub(crate) fn restart(&mut self) {
        self.groups.retain(|_, wish| {
            if wish.wanted.is_none() {
                wish.fulfil();
            }
            wish.fulfilled = false;
            wish.wanted.is_some()
        });
    }

    /// The world is left, and those who still wait are told.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }

    fn forget_unwanted(&mut self, group: Group) {
        if self.groups.get(&group).is_some_and(|wish| wish.wanted.is_none()) {
            self.groups.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SubscribeError;

    const GROUP: Group = Group::new(7);

    fn wish(
        subscriptions: &mut Subscriptions,
        group: Group,
        level: Option<Level>,
    ) -> Acknowledgement {
        let change = Acknowledgement::new();
        subscriptions.wish(group, level.map(|level| (level, Weight::ONE)), &change);
        change
    }

    #[test]
    fn a_wish_waits_for_its_own_level_or_what_replaced_it() {
        let mut subscriptions = Subscriptions::default();
        let first = wish(&mut subscriptions, GROUP, Some(Level(1)));
        let second = wish(&mut subscriptions, GROUP, Some(Level(2)));
        subscriptions.subscribed(GROUP, Level(1));
        assert_eq!((first.result(), second.result()), (None, None));
        subscriptions.subscribed(GROUP, Level(2));
        assert_eq!((first.result(), second.result()), (Some(Ok(())), Some(Ok(()))));
        let again = wish(&mut subscriptions, GROUP, Some(Level(2)));
        assert_eq!(again.result(), Some(Ok(())));
    }

    #[test]
    fn another_weight_waits_for_the_relay_too() {
        let mut subscriptions = Subscriptions::default();
        wish(&mut subscriptions, GROUP, Some(Level(1)));
        subscriptions.subscribed(GROUP, Level(1));
        let change = Acknowledgement::new();
        subscriptions.wish(GROUP, Some((Level(1), Weight(90))), &change);
        assert_eq!(change.result(), None);
        subscriptions.subscribed(GROUP, Level(1));
        assert_eq!(change.result(), Some(Ok(())));
    }

    #[test]
    fn what_is_unwanted_leaves_nothing_behind() {
        let mut subscriptions = Subscriptions::default();
        assert_eq!(wish(&mut subscriptions, GROUP, None).result(), Some(Ok(())));
        assert!(subscriptions.groups.is_empty());
        let refused = wish(&mut subscriptions, GROUP, Some(Level(0)));
        assert!(subscriptions.refused(GROUP, SubscribeRefusal::Table));
        let groups = vec![(GROUP, SubscribeRefusal::Table)];
        assert_eq!(refused.result(), Some(Err(SubscribeError::Refused { groups })));
        assert!(subscriptions.groups.is_empty());
        drop(wish(&mut subscriptions, GROUP, Some(Level(0))));
        assert!(!subscriptions.refused(GROUP, SubscribeRefusal::Table), "nobody wanted to know");
    }

    #[test]
    fn a_lost_session_ends_subscriptions_and_keeps_wishes() {
        let mut subscriptions = Subscriptions::default();
        let other = Group::new(8);
        wish(&mut subscriptions, GROUP, Some(Level(0)));
        wish(&mut subscriptions, other, Some(Level(0)));
        subscriptions.subscribed(GROUP, Level(0));
        subscriptions.subscribed(other, Level(0));
        let gone = wish(&mut subscriptions, other, None);
        subscriptions.restart();
        assert_eq!(gone.result(), Some(Ok(())));
        let again = wish(&mut subscriptions, GROUP, Some(Level(0)));
        assert_eq!(again.result(), None);
        subscriptions.subscribed(GROUP, Level(0));
        assert_eq!(again.result(), Some(Ok(())));
        let never = wish(&mut subscriptions, other, Some(Level(0)));
        subscriptions.clear();
        assert_eq!(never.result(), Some(Err(SubscribeError::Left)));
    }
}
