//! Keeping a client in its world: renews its lease, finds another relay when its own is lost, and moves to
//! another when its own drains or another is nearer.

use super::areas::Following;
use super::pause::{chance, pause};
use super::{Ask, JoinError, Nearness, Place, RelayPlace, measure};
use crate::handover::Outcome;
use crate::shared::Shared;
use crate::{ClientKey, Event, Refusal};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// A lease is renewed so often while it lasts: two renewals may fail.
const RENEWALS: u32 = 3;
/// The shortest time between renewals, however short the lease is.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// Relays are measured again with one renewal in so many: every 200 s, while leases are 60 s.
const LOOK_EVERY: u32 = 10;
/// How soon a renewal that failed is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(2);

pub(super) struct Keeper {
    shared: Arc<Shared>,
    ask: Ask,
    key: ClientKey,
    place: Place,
    measured: Vec<Nearness>,
    /// How long relays are measured; not at all if it is zero.
    measure: Duration,
    /// Counted from a number by chance on, as not all who came together shall measure together.
    renewals: u32,
    /// Why the controller refused last, if it did.
    refused: Option<Refusal>,
    renew_at: Instant,
}

impl Keeper {
    pub(super) fn new(
        shared: Arc<Shared>,
        ask: Ask,
        key: ClientKey,
        place: Place,
        (measured, measure): (Vec<Nearness>, Duration),
    ) -> Keeper {
        if place.areas {
            shared.standing.there_are_areas();
        }
        let renew_at = Instant::now() + renew_in(&place);
        let (renewals, refused) = (u32::from(chance()), None);
        Keeper { shared, ask, key, place, measured, measure, renewals, refused, renew_at }
    }

    /// Runs until the world is left, and gives the place back then.
    pub(super) async fn run(mut self) {
        let (shared, ask, key) = (self.shared.clone(), self.ask.clone(), self.key.clone());
        let following = Following { shared, ask, key };
        tokio::select! {
            () = self.keep() => {}
            never = following.run() => match never {},
        }
        if self.shared.lock().has_departed() {
            // If the controller does not hear of it, the lease ends.
            let _ = self.ask.leave(&self.key).await;
        }
    }

    async fn keep(&mut self) {
        while !self.shared.lock().is_over() {
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                () = shared.lack.notified() => {}
                () = sleep_until(self.renew_at) => self.renew().await,
            }
            while self.shared.lacks_a_relay() {
                self.ask_now().await;
                sleep(pause()).await;
            }
        }
    }

    /// Renews the lease; and asks for another relay if the present one drains, or now and then whether
    /// another is nearer.
    async fn renew(&mut self) {
        self.renewals = self.renewals.wrapping_add(1);
        if !self.ask_now().await || self.shared.lacks_a_relay() {
            return;
        }
        let looks = !self.measure.is_zero() && self.renewals.is_multiple_of(LOOK_EVERY);
        if self.place.drains || looks {
            self.measure_again().await;
            // Who gets no other place stays, and asks again another time.
            if let Ok(place) = self.ask.relocate(&self.key, &self.measured).await {
                self.renew_at = Instant::now() + renew_in(&place) + pause();
                self.go_on_at(place).await;
            }
        }
    }

    async fn measure_again(&mut self) {
        if self.measure.is_zero() {
            return;
        }
        let Ok(mut relays) = self.ask.relays(&self.key).await else { return };
        if !relays.contains(&self.place.relay) {
            relays.push(self.place.relay.clone());
        }
        self.measured = measure::all(&relays, self.measure).await;
    }

    /// Asks for the place, and goes where it is. Returns whether it has been renewed.
    async fn ask_now(&mut self) -> bool {
        let asked = self.ask.renew(&self.key, &self.measured).await;
        let again = asked.as_ref().map_or(RENEW_AGAIN, renew_in);
        self.renew_at = Instant::now() + again + pause();
        match asked {
            Ok(place) => {
                self.go_on_at(place).await;
                return true;
            }
            Err(JoinError::Refused(why)) => self.tell(why),
            // Whoever is in stays in without the controller.
            Err(_) => {}
        }
        false
    }

    async fn go_on_at(&mut self, place: Place) {
        self.refused = None;
        if place.areas {
            self.shared.standing.there_are_areas();
        }
        let relay = &place.relay;
        let has_moved = *relay != self.place.relay;
        if has_moved && !self.shared.lacks_a_relay() {
            return self.move_to(place).await;
        }
        self.shared
            .with(|member, now| {
                if has_moved {
                    // Without a socket there is no network; the next question comes soon.
                    member.turn_to(now, relay.address, relay.key.to_bytes(), &place.token)
                } else {
                    // The answer only says what the relay says to the session.
                    drop(member.set_token(&place.token));
                    Ok(())
                }
            })
            .is_ok()
            .then(|| self.place = place);
        self.shared.nudge.notify_one();
    }

    /// Goes to another relay without a break, and gives one of the two places back.
    async fn move_to(&mut self, place: Place) {
        let RelayPlace { address, key, .. } = &place.relay;
        let begun = self
            .shared
            .with(|member, now| member.move_to(now, *address, key.to_bytes(), &place.token));
        self.shared.nudge.notify_one();
        let outcome = if begun.is_ok() { self.moved().await } else { Outcome::Stayed };
        let left = match outcome {
            Outcome::Moved => std::mem::replace(&mut self.place, place),
            Outcome::Stayed => place,
        };
        // If the controller does not hear of it, that place's lease ends; and the next answer may name
        // it again.
        let _ = self.ask.give_back(&self.key, &left.address).await;
    }

    /// What becomes of a move. A relay that is lost meanwhile ends it, one way or the other.
    async fn moved(&self) -> Outcome {
        loop {
            let outcome = self.shared.with(|member, _| member.moved());
            if let Some(outcome) = outcome {
                return outcome;
            }
            if self.shared.lock().is_over() {
                return Outcome::Stayed;
            }
            self.shared.lack.notified().await;
        }
    }

    /// Tells the application of a refusal, once for each reason.
    fn tell(&mut self, why: Refusal) {
        if self.refused.as_ref() != Some(&why) {
            let event = Event::NotLetIn(why.clone());
            self.shared.with(|member, _| member.inbox().push_event(event));
            self.refused = Some(why);
        }
    }
}

/// When a place is asked for again. The lease is counted from the answer on, so clocks may differ.
fn renew_in(place: &Place) -> Duration {
    (place.lease / RENEWALS).max(LEAST_PAUSE)
}
