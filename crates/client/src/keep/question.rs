//! What is asked of the controller for a client that it keeps in its world, one question at a time.

use crate::ClientKey;
use crate::ask::{Ask, JoinError, Looked, Nearness, Patience, Place, RelayPlace, measure};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::timeout_at;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Prolong the lease. While a relay is lost, the answer says where the place is by now.
    Renew(Vec<Nearness>),
    /// The same, and give a place at another relay if there is reason to.
    Relocate(Vec<Nearness>),
    /// How near are relays now, this one among them?
    Measure(RelayPlace),
    /// Take the place with this address back.
    GiveBack(String),
    /// Take all back. Nothing is asked afterwards.
    Leave,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Renewed(Result<Place, JoinError>),
    Relocated(Result<Place, JoinError>),
    /// Nothing, if the controller has not said which relays there are.
    Measured(Option<Vec<Nearness>>),
    /// To what is given back; it is not said whether the controller has heard.
    Done,
    /// The same, to the last question.
    Left,
}

/// Who asks, for one client.
pub(crate) struct Asker {
    pub(super) terms: watch::Sender<Terms>,
    pub(super) key: ClientKey,
    /// How long relays are measured; not at all if it is zero.
    measure: Duration,
    /// The credential is the token of the client's place, and so the next place's token replaces it.
    is_let_in: bool,
}

/// By what is asked. Whoever follows the world's areas goes by the same.
pub(super) struct Terms {
    pub(super) ask: Ask,
    /// The controller has said that the world has areas.
    pub(super) has_areas: bool,
}

impl Asker {
    /// One for a visit that begins.
    pub(crate) fn new(ask: Ask, key: ClientKey, measure: Duration, is_let_in: bool) -> Asker {
        let ask = Ask { visit: Some(next_visit()), ..ask };
        let terms = watch::Sender::new(Terms { ask, has_areas: false });
        Asker { terms, key, measure, is_let_in }
    }

    fn ask(&self) -> Ask {
        self.terms.borrow().ask.clone()
    }

    /// The first questions: measures the relays, and asks for a place. They are asked again while the controller cannot
    /// be reached.
    pub(crate) async fn enter(
        &mut self,
        patience: &mut Patience,
    ) -> Result<(Place, Vec<Nearness>), JoinError> {
        let looked = self.look(patience).await?;
        self.join(looked, patience).await
    }

    /// How near relays are, before a place is asked for.
    pub(crate) async fn look(&self, patience: &mut Patience) -> Result<Looked, JoinError> {
        if self.measure.is_zero() {
            return Ok(Looked::default());
        }
        let (ask, until) = (self.ask(), patience.until());
        let looked = timeout_at(until, ask.look(&self.key, self.measure, patience)).await;
        looked.unwrap_or_else(|_elapsed| Err(patience.over(&ask.controller)))
    }

    /// Asks for a place, with what was measured.
    pub(crate) async fn join(
        &mut self,
        looked: Looked,
        patience: &mut Patience,
    ) -> Result<(Place, Vec<Nearness>), JoinError> {
        let (ask, until) = (self.ask(), patience.until());
        let entered = timeout_at(until, ask.enter(&self.key, looked, patience)).await;
        let over = |_elapsed| Err(patience.over(&ask.controller));
        let (place, measured) = entered.unwrap_or_else(over)?;
        Ok((self.note(Ok(place))?, measured))
    }

    /// Gives back what was entered and cannot be used.
    pub(crate) async fn give_up(&self) {
        // If the controller does not hear of it, the lease ends.
        let _ = self.ask().leave(&self.key).await;
    }

    /// Asks a question. It waits no longer than the controller may.
    pub(crate) async fn answer(&mut self, question: Question) -> Answer {
        match question {
            Question::Renew(measured) => {
                let place = self.ask().renew(&self.key, &measured).await;
                Answer::Renewed(self.note(place))
            }
            Question::Relocate(measured) => {
                let place = self.ask().relocate(&self.key, &measured).await;
                Answer::Relocated(self.note(place))
            }
            Question::Measure(own) => Answer::Measured(self.measured(own).await),
            // If the controller does not hear of it, the leases end.
            Question::GiveBack(address) => {
                let _ = self.ask().give_back(&self.key, &address).await;
                Answer::Done
            }
            Question::Leave => {
                self.give_up().await;
                Answer::Left
            }
        }
    }

    async fn measured(&self, own: RelayPlace) -> Option<Vec<Nearness>> {
        let mut relays = self.ask().relays(&self.key).await.ok()?;
        if !relays.contains(&own) {
            relays.push(own);
        }
        Some(measure(&relays, self.measure).await)
    }

    fn note(&mut self, place: Result<Place, JoinError>) -> Result<Place, JoinError> {
        let place = place?;
        self.terms.send_modify(|terms| {
            terms.has_areas |= place.areas;
            if self.is_let_in {
                terms.ask.credential = Some(place.token.clone());
            }
        });
        Ok(place)
    }
}

/// The number of a visit that begins: the time. A clock that is set back makes none lower than those before it.
fn next_visit() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    following(&LAST, u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn following(last: &AtomicU64, now: u64) -> u64 {
    let next = |last: u64| now.max(last.saturating_add(1));
    let before = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    next(before.unwrap_or_else(|last| last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_visit_has_a_higher_number_also_when_the_clock_is_set_back() {
        let last = AtomicU64::new(0);
        assert_eq!(
            [1000, 1000, 5, 2000].map(|now| following(&last, now)),
            [1000, 1001, 1002, 2000]
        );
        let (first, second) = (next_visit(), next_visit());
        assert!(0 < first && first < second);
    }
}
