//! What the application wants to be subscribed to, and who waits for the relay's word on it.
//!
//! The session does the work; this only matches its events with those who wait.

use canopy_wire::{Group, Level};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// The relay's word on one change: made, or refused.
pub(crate) type Verdict = Result<(), Group>;

#[derive(Default)]
pub(crate) struct Subscriptions {
    groups: BTreeMap<Group, Wish>,
}

/// What was last asked for of a group. A wish for nothing goes when it is fulfilled.
#[derive(Default)]
struct Wish {
    level: Option<Level>,
    fulfilled: bool,
    waiting: Vec<oneshot::Sender<Verdict>>,
}

impl Wish {
    fn fulfil(&mut self, verdict: Verdict) {
        self.fulfilled = true;
        for waiting in self.waiting.drain(..) {
            // Who dropped the acknowledgement does not want to know.
            let _ = waiting.send(verdict);
        }
    }
}

impl Subscriptions {
    /// Notes that the group is wanted at `level`, or not at all. The verdict comes when the relay
    /// has answered this wish or a later one that replaced it.
    pub(crate) fn wish(
        &mut self,
        group: Group,
        level: Option<Level>,
    ) -> oneshot::Receiver<Verdict> {
        let (waiting, verdict) = oneshot::channel();
        let unwanted = || Wish { fulfilled: true, ..Wish::default() };
        let wish = self.groups.entry(group).or_insert_with(unwanted);
        if wish.level != level {
            wish.level = level;
            wish.fulfilled = false;
        }
        // Acknowledgements that were dropped while the relay is lost must not pile up.
        wish.waiting.retain(|waiting| !waiting.is_closed());
        wish.waiting.push(waiting);
        if wish.fulfilled {
            wish.fulfil(Ok(()));
            self.forget_unwanted(group);
        }
        verdict
    }

    /// The relay has subscribed the client to the group at `level`.
    pub(crate) fn subscribed(&mut self, group: Group, level: Level) {
        if let Some(wish) = self.groups.get_mut(&group).filter(|wish| wish.level == Some(level)) {
            wish.fulfil(Ok(()));
        }
    }

    /// The relay has ended the subscription.
    pub(crate) fn unsubscribed(&mut self, group: Group) {
        if let Some(wish) = self.groups.get_mut(&group).filter(|wish| wish.level.is_none()) {
            wish.fulfil(Ok(()));
            self.forget_unwanted(group);
        }
    }

    /// The relay has refused the subscription. Returns whether somebody was told.
    pub(crate) fn refused(&mut self, group: Group) -> bool {
        let Some(wish) = self.groups.get_mut(&group).filter(|wish| wish.level.is_some()) else {
            return true;
        };
        let told = wish.waiting.iter().any(|waiting| !waiting.is_closed());
        wish.fulfil(Err(group));
        self.groups.remove(&group);
        told
    }

    /// The relay knows of no subscription, as the session was lost or is new: what is unwanted is
    /// gone, and what is wanted is yet to be acknowledged.
    pub(crate) fn restart(&mut self) {
        self.groups.retain(|_, wish| {
            if wish.level.is_none() {
                wish.fulfil(Ok(()));
            }
            wish.fulfilled = false;
            wish.level.is_some()
        });
    }

    /// The world is left; who still waits learns it by the end of the channel.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }

    fn forget_unwanted(&mut self, group: Group) {
        if self.groups.get(&group).is_some_and(|wish| wish.level.is_none()) {
            self.groups.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    const GROUP: Group = Group::new(7);
    const PENDING: Result<Verdict, TryRecvError> = Err(TryRecvError::Empty);

    #[test]
    fn a_wish_waits_for_its_own_level_or_what_replaced_it() {
        let mut subscriptions = Subscriptions::default();
        let mut first = subscriptions.wish(GROUP, Some(Level(1)));
        let mut second = subscriptions.wish(GROUP, Some(Level(2)));
        subscriptions.subscribed(GROUP, Level(1));
        assert_eq!((first.try_recv(), second.try_recv()), (PENDING, PENDING));
        subscriptions.subscribed(GROUP, Level(2));
        assert_eq!((first.try_recv(), second.try_recv()), (Ok(Ok(())), Ok(Ok(()))));
        assert_eq!(subscriptions.wish(GROUP, Some(Level(2))).try_recv(), Ok(Ok(())));
    }

    #[test]
    fn what_is_unwanted_leaves_nothing_behind() {
        let mut subscriptions = Subscriptions::default();
        assert_eq!(subscriptions.wish(GROUP, None).try_recv(), Ok(Ok(())));
        assert!(subscriptions.groups.is_empty());
        let mut refused = subscriptions.wish(GROUP, Some(Level(0)));
        assert!(subscriptions.refused(GROUP));
        assert_eq!(refused.try_recv(), Ok(Err(GROUP)));
        assert!(subscriptions.groups.is_empty());
    }

    #[test]
    fn a_lost_session_ends_subscriptions_and_keeps_wishes() {
        let mut subscriptions = Subscriptions::default();
        let other = Group::new(8);
        drop(subscriptions.wish(GROUP, Some(Level(0))));
        drop(subscriptions.wish(other, Some(Level(0))));
        subscriptions.subscribed(GROUP, Level(0));
        subscriptions.subscribed(other, Level(0));
        let mut gone = subscriptions.wish(other, None);
        subscriptions.restart();
        assert_eq!(gone.try_recv(), Ok(Ok(())));
        let mut again = subscriptions.wish(GROUP, Some(Level(0)));
        assert_eq!(again.try_recv(), PENDING);
        subscriptions.subscribed(GROUP, Level(0));
        assert_eq!(again.try_recv(), Ok(Ok(())));
    }
}
