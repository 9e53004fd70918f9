//! A client without a runtime joins a world through its controller.

use super::JoinBuilder;
use crate::ask::{JoinError, Nearness, Place};
use crate::keep::{Apart, Entered, Kept};
use crate::{ClientKey, PollClient};
use canopy_net::{Clock, Waker, wait_any_readable};
use canopy_wire::Time;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Who asks gives up by itself when joining takes too long, and has so long to say why.
const SAYS_WHY: Duration = Duration::from_secs(1);

/// A client that is about to join a world: made by [`JoinBuilder::open`], and polled until it has, for
/// example each frame of a loading screen. Dropping it gives the place back, if there is one already.
///
/// ```no_run
/// # fn loading_screen() {}
/// # fn enter(controller_key: canopy_client::RelayKey) -> Result<(), Box<dyn std::error::Error>> {
/// use canopy_client::PollClient;
///
/// let mut joining = PollClient::join("controller.example:4041", controller_key, "lobby").open()?;
/// let mut world = loop {
///     if let Some(joined) = joining.poll() {
///         break joined?;
///     }
///     loading_screen();
/// };
/// while world.poll() {
///     // The game's frames, as without a controller.
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is joined unless it is polled"]
pub struct Joining {
    builder: JoinBuilder,
    key: ClientKey,
    clock: Clock,
    until: Time,
    waker: Arc<Waker>,
    state: State,
}

enum State {
    Asking(Apart, Receiver<Entered>),
    Connecting(Box<PollClient>),
    Over,
}

impl Joining {
    pub(super) fn open(builder: JoinBuilder) -> Result<Joining, JoinError> {
        let clock = Clock::start();
        let until = clock.now() + builder.timeout;
        let key = builder.client_key()?;
        let waker = Arc::new(Waker::new().map_err(JoinError::System)?);
        let asking = Apart::start(builder.asker(&key), builder.timeout, waker.clone());
        let (apart, entered) = asking.map_err(JoinError::System)?;
        let state = State::Asking(apart, entered);
        Ok(Joining { builder, key, clock, until, waker, state })
    }

    /// Goes on, without waiting for anything. Returns the client once a relay has taken it, or why it
    /// could not join; nothing while neither is known, and after it was returned.
    pub fn poll(&mut self) -> Option<Result<PollClient, JoinError>> {
        let (state, result) = match std::mem::replace(&mut self.state, State::Over) {
            State::Asking(apart, entered) => match entered.try_recv() {
                Ok(Ok((place, measured))) => match self.connect(apart, place, measured) {
                    Ok(client) => (State::Connecting(Box::new(client)), None),
                    Err(error) => (State::Over, Some(Err(error))),
                },
                Ok(Err(error)) => (State::Over, Some(Err(error))),
                Err(TryRecvError::Empty) if self.clock.now() < self.until + SAYS_WHY => {
                    (State::Asking(apart, entered), None)
                }
                Err(_) => {
                    apart.leave();
                    (State::Over, Some(Err(self.builder.late())))
                }
            },
            State::Connecting(mut client) => {
                client.poll();
                match client.is_connected() {
                    true => (State::Over, Some(Ok(*client))),
                    false if self.clock.now() < self.until => (State::Connecting(client), None),
                    false => {
                        let error = client.unanswered(self.builder.timeout);
                        (State::Over, Some(Err(error.into())))
                    }
                }
            }
            State::Over => (State::Over, None),
        };
        self.state = state;
        result
    }

    fn connect(
        &self,
        apart: Apart,
        place: Place,
        measured: Vec<Nearness>,
    ) -> Result<PollClient, JoinError> {
        let found = Ok(vec![place.relay.address]);
        let builder = self.builder.client(&place, &self.key).inspect_err(|_| apart.leave())?;
        let (member, _) = builder.member(self.clock, found)?;
        let keeper = self.builder.keeper(self.clock.now(), place, measured);
        let mut client = PollClient::new(member, self.clock, self.waker.clone());
        client.keep(Kept { keeper, apart });
        Ok(client)
    }

    /// Polls until the client has joined, or could not.
    pub(super) fn finish(mut self) -> Result<PollClient, JoinError> {
        loop {
            if let Some(joined) = self.poll() {
                return joined;
            }
            let until = self.until + SAYS_WHY;
            match &mut self.state {
                State::Connecting(client) => client.sleep(self.until),
                // If the system cannot wait, the loop looks again at once.
                _ => _ = wait_any_readable([], &self.waker, &self.clock, Some(until)),
            }
        }
    }
}

impl fmt::Debug for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joining").field("builder", &self.builder).finish_non_exhaustive()
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if let State::Asking(apart, _) = &self.state {
            apart.leave();
        }
    }
}
