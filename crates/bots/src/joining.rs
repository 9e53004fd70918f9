//! Walkers that join through their world's controller. A thread asks it for all of them.
//!
//! Whoever hears that its relay drains asks for another place at once.

use crate::error::CrowdError;
use crate::issuer::Issuer;
use canopy_client::join::{Ask, JoinError, Place};
use canopy_client::{ClientKey, RelayKey};
use canopy_session::Identity;
use canopy_wire::{Comtree, Time};
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc as asks};
use tokio::task::JoinSet;

/// How many questions are under way at a time: a controller takes 64 connections of an ip.
const AT_ONCE: usize = 32;
/// How long a controller that cannot be reached is asked again before a walker has a place.
const PATIENCE: Duration = Duration::from_secs(10);
/// A lease is renewed so often while it lasts.
const RENEWALS: u32 = 3;
/// How soon a walker whose relay is lost asks again; by its number some milliseconds more.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const SPREAD: u32 = 50;
/// The pause doubles each time that asking does not help, up to some five seconds, as in the SDK.
const MOST_DOUBLINGS: u32 = 5;

/// What became of a walker's question.
pub(crate) struct Answered {
    pub(crate) walker: u32,
    /// Which of the walker's seats it is for.
    seat: u64,
    /// It was asked for a place at another relay.
    relocates: bool,
    pub(crate) place: Result<Place, JoinError>,
}

enum What {
    Place,
    /// A place at another relay, as its own drains.
    Relocate,
    /// Takes the place with this address back.
    GiveBack(String),
    Leave,
}

struct Question {
    walker: u32,
    seat: u64,
    key: ClientKey,
    credential: Option<String>,
    /// The first of the walker's, which waits for a controller that is away.
    is_first: bool,
    what: What,
}

/// What a walker has at the controller.
pub(crate) struct Seat {
    /// Counted over all walkers.
    number: u64,
    key: ClientKey,
    /// What it shows the controller, where that asks for something.
    credential: Option<String>,
    pub(crate) identity: Identity,
    /// Where it appears, until it has been given a place.
    pub(crate) appears: Option<(f64, f64)>,
    /// When it asks again, unless it asks now.
    ask_at: Option<Time>,
    /// Whether it lacked its relay when it was last looked at.
    lacks_a_relay: bool,
    /// How often it was answered since it lacks its relay, or was refused.
    in_vain: u32,
    /// How long its place was to last that it was given last.
    lease: Duration,
}

impl Seat {
    fn new(
        number: u64,
        (key, identity): (ClientKey, Identity),
        credential: Option<String>,
        at: (f64, f64),
    ) -> Seat {
        let (appears, ask_at, lacks_a_relay, in_vain) = (Some(at), None, false, 0);
        let lease = Duration::ZERO;
        Seat { number, key, credential, identity, appears, ask_at, lacks_a_relay, in_vain, lease }
    }

    /// Whether it is time to ask: at once when its relay is lost.
    fn is_due(&mut self, now: Time, lacks_a_relay: bool) -> bool {
        let is_lost = lacks_a_relay && !self.lacks_a_relay;
        self.lacks_a_relay = lacks_a_relay;
        if is_lost {
            self.in_vain = 0;
        }
        let soon = now + ASK_AGAIN + Duration::from_millis(SPREAD.into());
        self.ask_at.is_some_and(|at| now >= at || is_lost && at > soon)
    }

    /// An answer has come: a place for that long, if it helps.
    fn take_answer(&mut self, now: Time, walker: u32, lease: Option<Duration>) {
        let spread = Duration::from_millis((walker * 37 % SPREAD).into());
        let pause = match lease {
            Some(lease) => {
                (self.in_vain, self.lease) = (0, lease);
                (lease / RENEWALS).max(ASK_AGAIN) + spread
            }
            None => {
                let pause = (ASK_AGAIN + spread) * (1 << self.in_vain);
                self.in_vain = (self.in_vain + 1).min(MOST_DOUBLINGS);
                pause
            }
        };
        self.ask_at = Some(now + pause);
    }
}

/// The thread that asks, and what each walker has there.
pub(crate) struct Joining {
    asks: Option<asks::UnboundedSender<Question>>,
    answers: mpsc::Receiver<Answered>,
    thread: Option<JoinHandle<()>>,
    /// Makes the walkers' credentials.
    issuer: Option<Issuer>,
    seats: Vec<Option<Seat>>,
    /// How many there have been.
    count: u64,
}

impl Joining {
    pub(crate) fn start(ask: Ask, issuer: Option<Issuer>, walkers: u32) -> io::Result<Joining> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (asks, asked) = asks::unbounded_channel();
        let (answer, answers) = mpsc::channel();
        let run = move || runtime.block_on(answer_all(ask, asked, answer));
        let thread = std::thread::Builder::new().name("joins".to_owned()).spawn(run)?;
        let seats = (0..walkers).map(|_| None).collect();
        Ok(Joining { asks: Some(asks), answers, thread: Some(thread), issuer, seats, count: 0 })
    }

    /// A walker wants to appear at a position.
    pub(crate) fn appear(&mut self, walker: u32, at: (f64, f64)) -> Result<(), CrowdError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(io::Error::from)?;
        let (key, identity) = (ClientKey::from_seed(secret), Identity::new(secret));
        // A credential counts comtrees within the world: walkers are on its first.
        let issue = |issuer: &Issuer| issuer.issue(walker, &identity, Comtree(1));
        let credential = self.issuer.as_ref().map(issue).transpose()?;
        self.count += 1;
        let seat = Seat::new(self.count, (key, identity), credential, at);
        self.ask(walker, &seat, What::Place);
        self.seats[walker as usize] = Some(seat);
        Ok(())
    }

    /// A walker leaves, or wants to appear no more.
    pub(crate) fn leave(&mut self, walker: u32) {
        if let Some(seat) = self.seats[walker as usize].take() {
            self.ask(walker, &seat, What::Leave);
        }
    }

    /// A walker is gone without a word. Returns what it had.
    pub(crate) fn forget(&mut self, walker: u32) -> Option<Seat> {
        self.seats[walker as usize].take()
    }

    /// What the walker has, if it has not left.
    pub(crate) fn seat(&mut self, walker: u32) -> Option<&mut Seat> {
        self.seats[walker as usize].as_mut()
    }

    /// Whether a walker waits for its first place.
    pub(crate) fn awaits(&self, walker: u32) -> bool {
        self.seats[walker as usize].as_ref().is_some_and(|seat| seat.appears.is_some())
    }

    /// Asks for the walker if it is time to, which is soon if it lacks a relay.
    pub(crate) fn keep(&mut self, walker: u32, now: Time, lacks_a_relay: bool) {
        let Some(seat) = &mut self.seats[walker as usize] else { return };
        if seat.is_due(now, lacks_a_relay) {
            seat.ask_at = None;
            if let Some(seat) = &self.seats[walker as usize] {
                self.ask(walker, seat, What::Place);
            }
        }
    }

    /// One of the walker's two places is needed no more.
    pub(crate) fn give_back(&self, walker: u32, address: String) {
        if let Some(seat) = &self.seats[walker as usize] {
            self.ask(walker, seat, What::GiveBack(address));
        }
    }

    /// The next answer, if there is one. The walker asks again in a while, or at once if its relay drains.
    pub(crate) fn next(&mut self, now: Time, lacks: impl Fn(u32) -> bool) -> Option<Answered> {
        let is_of_now = |of: &Answered| {
            let seat = self.seats[of.walker as usize].as_ref();
            seat.is_none_or(|seat| seat.number == of.seat)
        };
        // Who has been forgotten and come anew may be answered still as whom it was before.
        let answered = self.answers.try_iter().find(is_of_now)?;
        let walker = answered.walker;
        if let Some(seat) = &mut self.seats[walker as usize] {
            let place = answered.place.as_ref().ok().filter(|_| !lacks(walker));
            // Who gets no other place keeps its own, and asks for another with the next renewal.
            let stays = answered.relocates && answered.place.is_err() && !lacks(walker);
            let kept = stays.then_some(seat.lease);
            seat.take_answer(now, walker, place.map(|place| place.lease).or(kept));
            if place.is_some_and(|place| place.drains) && !answered.relocates {
                seat.ask_at = None;
                if let Some(seat) = &self.seats[walker as usize] {
                    self.ask(walker, seat, What::Relocate);
                }
            }
        }
        Some(answered)
    }

    fn ask(&self, walker: u32, seat: &Seat, what: What) {
        let (key, credential) = (seat.key.clone(), seat.credential.clone());
        let is_first = seat.appears.is_some();
        if let Some(asks) = &self.asks {
            // The thread runs as long as there is somebody who asks.
            let seat = seat.number;
            let _ = asks.send(Question { walker, seat, key, credential, is_first, what });
        }
    }
}

/// Those who leave are still told of.
impl Drop for Joining {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn answer_all(
    ask: Ask,
    mut asked: asks::UnboundedReceiver<Question>,
    answers: mpsc::Sender<Answered>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut under_way = JoinSet::new();
    while let Some(question) = asked.recv().await {
        let Question { walker, seat, key, credential, is_first, what } = question;
        while under_way.try_join_next().is_some() {}
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (mut ask, answers) = (ask.clone(), answers.clone());
        ask.credential = credential;
        under_way.spawn(async move {
            match what {
                What::Place => {
                    let place = match is_first {
                        true => ask.join_within(&key, &[], PATIENCE).await,
                        false => ask.join(&key, &[]).await,
                    };
                    let _ = answers.send(Answered { walker, seat, relocates: false, place });
                }
                What::Relocate => {
                    let place = ask.relocate(&key, &[]).await;
                    let _ = answers.send(Answered { walker, seat, relocates: true, place });
                }
                // The lease ends if nobody hears of it, as below.
                What::GiveBack(address) => drop(ask.give_back(&key, &address).await),
                // The lease ends if nobody hears of it.
                What::Leave => drop(ask.leave(&key).await),
            }
            drop(place);
        });
    }
    under_way.join_all().await;
}

/// The relays that take walkers, by their addresses and keys. A controller that is away is waited for a while.
///
/// # Errors
/// The controller cannot be reached, or refuses.
pub fn relays_of(ask: &Ask) -> Result<Vec<crate::RelayTarget>, CrowdError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let relays = runtime.block_on(ask.relays_within(&ClientKey::generate()?, PATIENCE));
    let target = |relay: canopy_client::join::RelayPlace| crate::RelayTarget {
        address: relay.address,
        key: Some(RelayKey::to_bytes(relay.key)),
    };
    Ok(relays?.into_iter().map(target).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    /// Looks at a walker every 20 ms from a time on, which is answered at once. Returns when it has asked.
    fn asks(seat: &mut Seat, from: u64, to: u64, lacks_a_relay: bool) -> Vec<u64> {
        let mut asked = Vec::new();
        for millis in (from..to).step_by(20) {
            let now = Time::from_millis(millis);
            if seat.is_due(now, lacks_a_relay) {
                asked.push(millis);
                seat.take_answer(now, 1, (!lacks_a_relay).then_some(LEASE));
            }
        }
        asked
    }

    #[test]
    fn a_walker_that_is_told_to_stay_asks_ever_more_seldom_and_at_once_when_it_loses_its_relay_again()
     {
        let key = ClientKey::from_seed([1; 32]);
        let mut seat = Seat::new(1, (key, Identity::new([1; 32])), None, (0.0, 0.0));
        seat.take_answer(Time::ZERO, 1, Some(LEASE));
        let asked = asks(&mut seat, 1000, 31_000, true);
        let pauses: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(asked.first(), Some(&1000));
        assert!(pauses[0] <= 160, "{pauses:?}");
        let doubles = |pair: &[u64]| pair[1].abs_diff(2 * pair[0]) <= 40;
        assert!(pauses[..6].windows(2).all(doubles), "{pauses:?}");
        assert!(pauses[5..].iter().all(|pause| (4_300..4_500).contains(pause)), "{pauses:?}");
        // Its relay is there again.
        assert_eq!(asks(&mut seat, 31_000, 51_000, false).len(), 1);
        assert_eq!(asks(&mut seat, 51_000, 51_300, true).len(), 2);
    }
}
