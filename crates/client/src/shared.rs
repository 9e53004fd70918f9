//! What a client's handles and its task on tokio share.

use crate::member::Member;
use canopy_net::Clock;
use canopy_wire::Time;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

#[cfg(feature = "join")]
use tokio::sync::watch;

/// Wakers of tasks that may have stopped waiting are not kept without bound: beyond this many all
/// are woken, and who still waits comes again.
const MAX_WAITERS: usize = 64;

/// What a client's handles and its task share. The locks are never held across an await.
pub(crate) struct Shared {
    member: Mutex<Member>,
    /// Who waits for something in the inbox. Locked after the member, if both are.
    waiters: Mutex<Vec<Waker>>,
    clock: Clock,
    /// Wakes the task: the member has something to do.
    pub(crate) nudge: Notify,
    #[cfg(feature = "join")]
    /// Wakes who finds another relay: this one seems to be lost, a move has ended, or all is over.
    pub(crate) lack: Notify,
    #[cfg(feature = "join")]
    /// Whether it has a place that somebody keeps, or gives back.
    pub(crate) has_place: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(member: Member, clock: Clock) -> Shared {
        let waiters = Mutex::default();
        Shared {
            member: Mutex::new(member),
            waiters,
            clock,
            nudge: Notify::new(),
            #[cfg(feature = "join")]
            lack: Notify::new(),
            #[cfg(feature = "join")]
            has_place: watch::Sender::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Member> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether there is something to do for who finds another relay.
    #[cfg(feature = "join")]
    pub(crate) fn needs_a_keeper(&self) -> bool {
        let now = self.now();
        let member = self.lock();
        member.lacks_a_relay(now) || member.has_moved_or_not()
    }

    /// Waits until the place was given back, if there is one, or for so long that its lease is to end.
    #[cfg(feature = "join")]
    pub(crate) async fn has_given_back(&self) {
        let mut has_place = self.has_place.subscribe();
        if *has_place.borrow() {
            let given_back = has_place.wait_for(|has_place| !has_place);
            let _ = tokio::time::timeout(crate::keep::LEAVE_LIMIT, given_back).await;
        }
    }

    /// Does something with the member that takes nothing from its inbox, then wakes those who wait
    /// if something has come.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Member, Time) -> T) -> T {
        let now = self.now();
        let (result, news) = {
            let mut member = self.lock();
            let before = member.inbox().came();
            let result = change(&mut member, now);
            let inbox = member.inbox();
            (result, inbox.came() != before || inbox.is_closed())
        };
        if news {
            let waiters = std::mem::take(&mut *self.waiters());
            waiters.into_iter().for_each(Waker::wake);
        }
        result
    }

    /// What `look` finds, once it finds something. Nothing is lost with a future that is dropped
    /// while it waits.
    pub(crate) fn poll<T>(
        &self,
        context: &Context<'_>,
        look: impl FnOnce(&mut Member) -> Option<T>,
    ) -> Poll<T> {
        let mut member = self.lock();
        match look(&mut member) {
            Some(found) => Poll::Ready(found),
            // With the member still locked, so that nothing comes in between.
            None => {
                self.wait(context);
                Poll::Pending
            }
        }
    }

    fn wait(&self, context: &Context<'_>) {
        let mut waiters = self.waiters();
        if waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
            return;
        }
        if waiters.len() >= MAX_WAITERS {
            waiters.drain(..).for_each(Waker::wake);
        }
        waiters.push(context.waker().clone());
    }

    fn waiters(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
