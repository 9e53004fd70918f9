//! Waiting for the relay's answer to a request.

use canopy_session::{RequestNumber, SessionError};
use canopy_wire::RequestStatus;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A request that is under way. It goes on whether or not anyone looks at this; drop it, await it to
/// know what became of it, or ask it now and then with [`Answer::result`]. While the relay is lost it
/// waits.
///
/// ```no_run
/// # async fn judge(server: canopy_client::Client, member: canopy_client::Participant) {
/// use canopy_client::{RequestError, Restriction};
///
/// match server.restrict(member, Restriction::MUTE).await {
///     Ok(()) => println!("{member} is silent now"),
///     Err(RequestError::UnknownParticipant) => println!("{member} has left"),
///     Err(error) => eprintln!("{error}"),
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Answer {
    slot: Arc<Mutex<Slot>>,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Only servers may ask for it.
    #[error(
        "only servers may do this; join with a token of the role \"server\", at a relay that asks \
         for tokens"
    )]
    NotAllowed,
    /// No member has the address.
    #[error("no member with a token has this address; it may have left")]
    UnknownParticipant,
    /// The relay does not take the token.
    #[error("the relay does not take the token; its log says why")]
    Token,
    /// The token is longer than any.
    #[error(
        "the token has {0} bytes, more than a relay takes; grant fewer ranges or shorter names"
    )]
    LongToken(usize),
    /// As much is restricted as the relay has room for.
    #[error("the relay has no room for more restrictions; restore some, or throw the member out")]
    Full,
    /// Too many requests wait already.
    #[error("too many requests wait for the relay's answers; ask again later")]
    Busy,
    /// The world was left meanwhile.
    #[error("the world has been left")]
    Left,
    /// The relay is of another release and gave a reason that this one does not know.
    #[error("the relay's reason {0} is not known to this release")]
    Other(u8),
}

#[derive(Debug, Default)]
struct Slot {
    result: Option<Result<(), RequestError>>,
    waker: Option<Waker>,
}

impl Answer {
    fn waiting() -> Answer {
        Answer { slot: Arc::default() }
    }

    /// One that is known already.
    pub(crate) fn known(result: Result<(), RequestError>) -> Answer {
        Answer { slot: Arc::new(Mutex::new(Slot { result: Some(result), waker: None })) }
    }

    /// What became of the request; `None` while it is under way.
    pub fn result(&self) -> Option<Result<(), RequestError>> {
        lock(&self.slot).result.clone()
    }
}

impl Future for Answer {
    type Output = Result<(), RequestError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot);
        if let Some(result) = slot.result.clone() {
            return Poll::Ready(result);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Those who wait for answers.
#[derive(Default)]
pub(crate) struct Answers {
    waiting: BTreeMap<RequestNumber, Arc<Mutex<Slot>>>,
}

impl Answers {
    /// What the session said when it was asked: who waits now, or why nobody does.
    pub(crate) fn wait(&mut self, asked: Result<Option<RequestNumber>, SessionError>) -> Answer {
        match asked {
            Ok(Some(number)) => {
                let answer = Answer::waiting();
                self.waiting.insert(number, Arc::clone(&answer.slot));
                answer
            }
            Ok(None) => Answer::known(Ok(())),
            Err(SessionError::LongToken(len)) => Answer::known(Err(RequestError::LongToken(len))),
            Err(_) => Answer::known(Err(RequestError::Busy)),
        }
    }

    pub(crate) fn answered(&mut self, number: RequestNumber, status: RequestStatus) {
        let result = match status {
            RequestStatus::Done => Ok(()),
            RequestStatus::NotAllowed => Err(RequestError::NotAllowed),
            RequestStatus::UnknownAddress => Err(RequestError::UnknownParticipant),
            RequestStatus::Token => Err(RequestError::Token),
            RequestStatus::Full => Err(RequestError::Full),
            other => Err(RequestError::Other(other.number())),
        };
        if let Some(slot) = self.waiting.remove(&number) {
            settle(&slot, result);
        }
    }

    /// The world is left, and those who still wait are told.
    pub(crate) fn clear(&mut self) {
        for slot in core::mem::take(&mut self.waiting).values() {
            settle(slot, Err(RequestError::Left));
        }
    }
}

fn settle(slot: &Mutex<Slot>, result: Result<(), RequestError>) {
    let waker = {
        let mut slot = lock(slot);
        slot.result = Some(result);
        slot.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_reaches_who_waits_for_it() {
        let mut answers = Answers::default();
        let (one, two) = (answers.wait(Ok(Some(1))), answers.wait(Ok(Some(2))));
        assert_eq!((one.result(), two.result()), (None, None));
        answers.answered(2, RequestStatus::NotAllowed);
        assert_eq!((one.result(), two.result()), (None, Some(Err(RequestError::NotAllowed))));
        answers.clear();
        assert_eq!(one.result(), Some(Err(RequestError::Left)));
        assert_eq!(answers.wait(Ok(None)).result(), Some(Ok(())));
        let busy = answers.wait(Err(SessionError::Busy));
        assert_eq!(busy.result(), Some(Err(RequestError::Busy)));
    }
}
