//! Waiting for the relay's word on subscriptions.

use crate::SubscribeError;
use canopy_wire::{Group, SubscribeRefusal};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// A change of subscriptions that is under way. It goes on whether or not anyone looks at this;
/// drop it, await it to know when the relay has made the change or refused it, or ask it now and
/// then with [`Acknowledgement::result`].
///
/// While the relay is lost it waits; it resolves when a relay has taken the client back and has
/// answered. A change that a later one of the same group replaces resolves with the later one.
///
/// ```no_run
/// # async fn move_on(world: canopy_client::Client) -> Result<(), canopy_client::SubscribeError> {
/// use canopy_client::{Group, Level};
///
/// // Under way from here on; nobody waits for it.
/// world.subscribe(Group::new(7), Level(0));
/// // This one is waited for: updates come from here on.
/// world.subscribe(Group::new(8), Level(1)).await
/// # }
/// ```
#[derive(Debug)]
pub struct Acknowledgement {
    pending: Arc<Mutex<Pending>>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Groups that the relay has yet to answer for.
    open: usize,
    refused: Vec<(Group, SubscribeRefusal)>,
    /// The world was left before the relay answered for all.
    left: bool,
    waker: Option<Waker>,
}

/// The answer that one group is waiting for. Dropped without one, it tells that the world was left.
#[derive(Debug)]
pub(crate) struct Awaited(Weak<Mutex<Pending>>);

impl Acknowledgement {
    /// One for as many groups as [`Acknowledgement::await_one`] is called for.
    pub(crate) fn new() -> Acknowledgement {
        Acknowledgement { pending: Arc::default() }
    }

    /// For a world that was left.
    pub(crate) fn left() -> Acknowledgement {
        let left = Acknowledgement::new();
        lock(&left.pending).left = true;
        left
    }

    pub(crate) fn await_one(&self) -> Awaited {
        lock(&self.pending).open += 1;
        Awaited(Arc::downgrade(&self.pending))
    }

    /// What became of the change; `None` while it is under way.
    pub fn result(&self) -> Option<Result<(), SubscribeError>> {
        lock(&self.pending).result()
    }
}

impl Pending {
    fn result(&self) -> Option<Result<(), SubscribeError>> {
        if self.left {
            return Some(Err(SubscribeError::Left));
        }
        if self.open > 0 {
            return None;
        }
        let mut groups = self.refused.clone();
        groups.sort_unstable();
        Some(if groups.is_empty() { Ok(()) } else { Err(SubscribeError::Refused { groups }) })
    }
}

impl Future for Acknowledgement {
    type Output = Result<(), SubscribeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut pending = lock(&self.pending);
        if let Some(result) = pending.result() {
            return Poll::Ready(result);
        }
        pending.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Awaited {
    /// Whether somebody still wants to know.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// The relay has made the change.
    pub(crate) fn made(mut self) {
        self.answer(|_| {});
    }

    /// The relay has refused it for `group`.
    pub(crate) fn refused(mut self, group: Group, reason: SubscribeRefusal) {
        self.answer(|pending| pending.refused.push((group, reason)));
    }

    fn answer(&mut self, note: impl FnOnce(&mut Pending)) {
        let Some(pending) = std::mem::take(&mut self.0).upgrade() else { return };
        let waker = {
            let mut pending = lock(&pending);
            pending.open -= 1;
            note(&mut pending);
            if pending.open == 0 || pending.left { pending.waker.take() } else { None }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.answer(|pending| pending.left = true);
    }
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_all_groups_and_names_the_refused_ones() {
        let change = Acknowledgement::new();
        let (first, second) = (change.await_one(), change.await_one());
        first.refused(Group::new(2), SubscribeRefusal::Participant);
        assert_eq!(change.result(), None);
        second.refused(Group::new(1), SubscribeRefusal::Table);
        let groups = vec![
            (Group::new(1), SubscribeRefusal::Table),
            (Group::new(2), SubscribeRefusal::Participant),
        ];
        assert_eq!(change.result(), Some(Err(SubscribeError::Refused { groups })));
        assert_eq!(Acknowledgement::new().result(), Some(Ok(())), "nothing was asked");
    }

    #[test]
    fn an_answer_that_will_not_come_is_told() {
        let change = Acknowledgement::new();
        let (first, second) = (change.await_one(), change.await_one());
        first.made();
        drop(second);
        assert_eq!(change.result(), Some(Err(SubscribeError::Left)));
        let unwanted = Acknowledgement::new().await_one();
        assert!(!unwanted.is_wanted());
        unwanted.made();
    }
}
