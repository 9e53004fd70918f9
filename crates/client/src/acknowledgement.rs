//! Waiting for the relay's word on subscriptions.

use crate::SubscribeError;
use crate::subscriptions::Verdict;
use canopy_wire::Group;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// A change of subscriptions that is under way. Like a spawned task it goes on whether or not it
/// is awaited; awaiting tells when the relay has made it, or that it refused.
///
/// While the relay is lost it waits; it resolves when the relay is back and has answered. A change
/// that a later one of the same group replaces resolves with the later one.
#[derive(Debug)]
pub struct Acknowledgement {
    pending: Vec<oneshot::Receiver<Verdict>>,
    refused: Vec<Group>,
}

impl Acknowledgement {
    pub(crate) fn new(pending: Vec<oneshot::Receiver<Verdict>>) -> Acknowledgement {
        Acknowledgement { pending, refused: Vec::new() }
    }

    /// For a world that was left.
    pub(crate) fn left() -> Acknowledgement {
        Acknowledgement::new(vec![oneshot::channel().1])
    }
}

impl Future for Acknowledgement {
    type Output = Result<(), SubscribeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(verdict) = self.pending.last_mut() {
            match ready!(Pin::new(verdict).poll(context)) {
                Ok(Ok(())) => {}
                Ok(Err(group)) => self.refused.push(group),
                Err(_) => return Poll::Ready(Err(SubscribeError::Left)),
            }
            self.pending.pop();
        }
        let mut refused = std::mem::take(&mut self.refused);
        refused.sort_unstable();
        Poll::Ready(if refused.is_empty() { Ok(()) } else { Err(SubscribeError::Refused(refused)) })
    }
}
