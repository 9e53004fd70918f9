//! Keeping a client in its world: renews its lease, and finds another relay when its own is lost.

use super::areas::Following;
use super::{Ask, JoinError, Nearness, Place};
use crate::driver::Shared;
use crate::{ClientKey, Event, Refusal};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// A lease is renewed so often while it lasts: two renewals may fail.
const RENEWALS: u32 = 3;
/// The shortest time between renewals, however short the lease is.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// How soon the controller is asked again while a relay is lost, and what is added by chance.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const JITTER_MS: u64 = 50;
/// How soon a renewal that failed is tried again.
const RENEW_AGAIN: Duration = Duration::from_secs(2);

pub(super) struct Keeper {
    shared: Arc<Shared>,
    ask: Ask,
    key: ClientKey,
    place: Place,
    measured: Vec<Nearness>,
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
        measured: Vec<Nearness>,
    ) -> Keeper {
        if place.areas {
            shared.standing.there_are_areas();
        }
        let renew_at = Instant::now() + renew_in(&place);
        Keeper { shared, ask, key, place, measured, refused: None, renew_at }
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
                () = sleep_until(self.renew_at) => {
                    self.ask_now().await;
                }
            }
            while self.shared.lacks_a_relay() {
                self.ask_now().await;
                sleep(pause()).await;
            }
        }
    }

    /// Asks for the place, and goes where it is.
    async fn ask_now(&mut self) {
        let asked = self.ask.renew(&self.key, &self.measured).await;
        let again = asked.as_ref().map_or(RENEW_AGAIN, renew_in);
        self.renew_at = Instant::now() + again + pause();
        match asked {
            Ok(place) => self.go_on_at(place),
            Err(JoinError::Refused(why)) => self.tell(why),
            // Whoever is in stays in without the controller.
            Err(_) => {}
        }
    }

    fn go_on_at(&mut self, place: Place) {
        self.refused = None;
        if place.areas {
            self.shared.standing.there_are_areas();
        }
        let relay = &place.relay;
        let has_moved = *relay != self.place.relay;
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

/// How long to wait before the controller is asked again: not all at once who have lost a relay.
pub(super) fn pause() -> Duration {
    let mut chance = [0];
    // Without random numbers all wait the same time.
    let _ = getrandom::fill(&mut chance);
    ASK_AGAIN + Duration::from_millis(u64::from(chance[0]) * JITTER_MS / 255)
}
