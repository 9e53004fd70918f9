//! Joins that wait for what becomes of them.

use canopy_api::Problem;
use canopy_control::{Event, Refusal, WorldId};
use canopy_wire::Address;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{oneshot, watch};

/// The most addresses that are waited for at once.
const MOST: usize = 20_000;
/// The most joins that wait for one address.
const MOST_OF_ONE: usize = 16;

/// What became of a join.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The relay lets the member in.
    Admitted,
    /// It is not let in.
    Refused(Refusal),
    /// It was sent away.
    Left,
    /// Events were missed: the join is to be asked for again, and what became of it is told again.
    Unknown,
}

type Waiters = HashMap<(WorldId, Address), Vec<oneshot::Sender<Outcome>>>;

/// Who waits for which address. One task reads the events for all of them.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Waiters>);

impl Waiting {
    /// Waits for an address.
    ///
    /// # Errors
    /// Too many wait already.
    pub(super) fn register(
        &self,
        world: WorldId,
        address: Address,
    ) -> Result<oneshot::Receiver<Outcome>, Problem> {
        let busy = |what| {
            Err(Problem::new(503, what, "controller", "ask again in a second; the place is kept"))
        };
        let mut waiters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiters.len() >= MOST {
            waiters.retain(|_, of_one| of_one.iter().any(|waiter| !waiter.is_closed()));
            if waiters.len() >= MOST {
                return busy("as many join as it can follow");
            }
        }
        let of_one = match waiters.entry((world, address)) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(empty) => empty.insert(Vec::new()),
        };
        of_one.retain(|waiter| !waiter.is_closed());
        if of_one.len() >= MOST_OF_ONE {
            return busy("the same participant joins many times at once");
        }
        let (waiter, outcome) = oneshot::channel();
        of_one.push(waiter);
        Ok(outcome)
    }

    /// Tells those who wait, until the controller has stopped. If it is started from storage again in
    /// between, what it was about to tell is unknown.
    pub(super) async fn follow(
        self: Arc<Waiting>,
        mut events: Receiver<Event>,
        mut lives: watch::Receiver<u32>,
    ) {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                Ok(()) = lives.changed() => {
                    self.tell_all();
                    continue;
                }
            };
            match event {
                Ok(Event::Admitted { world, address } | Event::Renewed { world, address }) => {
                    self.tell((world, address), &Outcome::Admitted);
                }
                Ok(Event::Refused { world, address, why }) => {
                    self.tell((world, address), &Outcome::Refused(why));
                }
                Ok(Event::Left { world, address }) => self.tell((world, address), &Outcome::Left),
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => self.tell_all(),
                Err(RecvError::Closed) => break,
            }
        }
        // Who waits is told by the end of its channel.
        self.take_all();
    }

    fn tell(&self, key: (WorldId, Address), outcome: &Outcome) {
        let of_one = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        for waiter in of_one.into_iter().flatten() {
            _ = waiter.send(outcome.clone());
        }
    }

    fn tell_all(&self) {
        for waiter in self.take_all().into_values().flatten() {
            _ = waiter.send(Outcome::Unknown);
        }
    }

    fn take_all(&self) -> Waiters {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
