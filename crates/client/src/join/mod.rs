//! Joining a world through its controller: it says at which relay, and finds another when that one
//! is lost.
//!
//! ```no_run
//! use canopy_client::{Client, Event, Group, Incoming, Level};
//!
//! # async fn play(controller_key: canopy_client::RelayKey) -> Result<(), Box<dyn std::error::Error>> {
//! let world = Client::join("controller.example:4041", controller_key, "lobby").connect().await?;
//! world.subscribe(Group::new(7), Level(1)).await?;
//! while let Some(incoming) = world.next().await {
//!     match incoming {
//!         Incoming::Update(update) => println!("{} says {:?}", update.from, update.payload),
//!         Incoming::Event(Event::Moved { relay, .. }) => println!("going on at {relay}"),
//!         Incoming::Event(Event::NotLetIn(why)) => println!("not let in: {why}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`PollClient`] joins in the same way, and is kept in its world while it is polled. What is asked of the
//! controller is asked by a thread of its own, so no frame waits for a name or a connection:
//!
//! ```no_run
//! use canopy_client::PollClient;
//!
//! # fn play(controller_key: canopy_client::RelayKey) -> Result<(), Box<dyn std::error::Error>> {
//! let mut world =
//!     PollClient::join("controller.example:4041", controller_key, "lobby").connect_blocking()?;
//! while world.poll() {
//!     // A frame.
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Before it joins, the client measures the relays that the controller names, and says how far they
//! are. A controller that is away is waited for, as long as [`JoinBuilder::timeout`] says. While it is in the world it renews its lease three times before that would end. A controller that cannot be
//! reached stops nobody who is in: the client asks it again and again.
//!
//! When the relay drains, or another is nearer, the client moves: it makes a session at the other relay beside
//! the one that it has, and takes each update once, whichever of the two brings it first. No update is lost.
//!
//! When the relay is lost, which its host says at once or missing keepalives show, the client asks the
//! controller every 100 ms or so, until it names another relay or the present one is back. So it turns to
//! another only when the controller has given the relay up.

mod joining;
mod task;

pub use crate::ask::{
    Ask, JoinBudget, JoinError, Nearness, Place, RelayPlace, WorldChannel, ask_once,
};
pub use joining::Joining;

use crate::ask::Patience;
use crate::chance::Chance;
use crate::keep::{Asker, Keeper};

use crate::{Client, ClientBuilder, ClientKey, ConnectError, PollClient, RelayKey};
use canopy_net::Clock;
use canopy_wire::Time;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use task::Keeping;
use tokio::time::timeout_at;

/// How long joining takes at most, unless it is said otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long relays are measured, unless it is said otherwise.
const DEFAULT_MEASURE: Duration = Duration::from_millis(300);

/// How to join a world through its controller; made by [`Client::join`] and [`PollClient::join`].
///
/// ```no_run
/// # async fn enter(controller_key: canopy_client::RelayKey, key: canopy_client::ClientKey, token: String)
/// # -> Result<(), canopy_client::JoinError> {
/// use canopy_client::Client;
/// use std::time::Duration;
///
/// let world = Client::join("controller.example:4041", controller_key, "lobby")
///     .key(key)
///     .credential(token)
///     .timeout(Duration::from_secs(20))
///     .connect()
///     .await?;
/// println!("in the world, at the relay {}", world.relay());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is joined before `connect`, `connect_blocking` or `open`"]
pub struct JoinBuilder {
    ask: Ask,
    is_let_in: bool,
    comtree: usize,
    key: Option<ClientKey>,
    measure: Duration,
    timeout: Duration,
    receive_queue: Option<usize>,
}

impl Client {
    /// Sets out to join a world through its controller: `host:port`, and the key that the controller
    /// tells when it starts. See [`join`](crate::join).
    pub fn join(
        controller: impl ToString,
        controller_key: RelayKey,
        world: impl ToString,
    ) -> JoinBuilder {
        JoinBuilder::new(controller.to_string(), controller_key, world.to_string())
    }
}

impl PollClient {
    /// Sets out to join a world through its controller: `host:port`, and the key that the controller
    /// tells when it starts. See [`join`](crate::join).
    pub fn join(
        controller: impl ToString,
        controller_key: RelayKey,
        world: impl ToString,
    ) -> JoinBuilder {
        JoinBuilder::new(controller.to_string(), controller_key, world.to_string())
    }
}

impl JoinBuilder {
    pub(crate) fn new(controller: String, key: RelayKey, world: String) -> JoinBuilder {
        JoinBuilder {
            ask: Ask::new(controller, key, world),
            is_let_in: false,
            comtree: 0,
            key: None,
            measure: DEFAULT_MEASURE,
            timeout: DEFAULT_TIMEOUT,
            receive_queue: None,
        }
    }

    /// The token that lets the client into the world, where the controller asks for one. It is for a
    /// client key, which must be given too.
    pub fn credential(mut self, credential: impl ToString) -> JoinBuilder {
        self.ask.credential = Some(credential.to_string());
        self
    }

    /// The token that the world's backend was answered when it let the client in
    /// (`POST /v1/worlds/WORLD/members`), for the client key that it named, which must be given too. The client
    /// takes that place, renews it by itself, and moves as any other does.
    pub fn let_in(mut self, token: impl ToString) -> JoinBuilder {
        self.ask.credential = Some(token.to_string());
        JoinBuilder { is_let_in: true, ..self }
    }

    /// Which of the world's comtrees to join, counted from 0 in the order that `canopy world show` lists them
    /// in; the first unless set. A client is on one of them. Another client, with a key of its own, can be on another.
    pub fn comtree(self, number: usize) -> JoinBuilder {
        JoinBuilder { comtree: number, ..self }
    }

    /// The client's own key; a new one unless set.
    pub fn key(self, key: ClientKey) -> JoinBuilder {
        JoinBuilder { key: Some(key), ..self }
    }

    /// What the client wants to send and be sent; what its credential or the world says unless set.
    pub fn budget(mut self, budget: JoinBudget) -> JoinBuilder {
        self.ask.budget = Some(budget);
        self
    }

    /// How long relays are measured at most, 300 ms unless set. Zero measures none, and the controller
    /// takes the relay with the largest share of free places.
    pub fn measure(self, most: Duration) -> JoinBuilder {
        JoinBuilder { measure: most, ..self }
    }

    /// How long joining takes at most; 10 s unless set. While the controller cannot be reached, it is asked again
    /// after pauses that grow; what it refuses, and a wrong key or name, ends that at once or after a few tries.
    /// Once connected a client never gives up.
    pub fn timeout(self, timeout: Duration) -> JoinBuilder {
        JoinBuilder { timeout, ..self }
    }

    /// How many updates may wait to be taken before the oldest are dropped; 4,096 unless set.
    pub fn receive_queue(self, updates: usize) -> JoinBuilder {
        JoinBuilder { receive_queue: Some(updates), ..self }
    }

    /// Joins the world, on tokio. A relay that is lost meanwhile is replaced like one that is lost later.
    ///
    /// # Errors
    /// [`JoinError`]: the controller could not be reached in time or refuses, or its relay does not take the
    /// client in time.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without I/O or time.
    pub async fn connect(self) -> Result<Client, JoinError> {
        let mut patience = Patience::new(self.timeout);
        let (until, key) = (patience.until(), self.client_key()?);
        let mut asker = self.asker(&key);
        let (place, measured) = asker.enter(&mut patience).await?;
        let (clock, relay) = (Clock::start(), place.relay.address);
        let builder = match self.client(&place, &key) {
            Ok(builder) => builder,
            Err(error) => {
                let _ = timeout_at(until, asker.give_up()).await;
                return Err(error);
            }
        };
        let (client, shared) = builder.start(clock, Ok(vec![relay]))?;
        let keeper = self.keeper(clock.now(), place, measured);
        shared.has_place.send_replace(true);
        tokio::spawn(Keeping { shared: Arc::clone(&shared), keeper, asker }.run());
        let is_in = poll_fn(|context| shared.poll(context, |member| member.participant()));
        match timeout_at(until, is_in).await {
            Ok(_) => Ok(client),
            Err(_elapsed) => Err(shared.lock().unanswered(self.timeout).into()),
        }
    }

    /// Joins the world without a runtime: waits until a relay has taken the client.
    ///
    /// # Errors
    /// [`JoinError`]: the controller could not be reached in time or refuses, or its relay does not take the
    /// client in time.
    pub fn connect_blocking(self) -> Result<PollClient, JoinError> {
        self.open()?.finish()
    }

    /// A client without a runtime that joins the world while it is polled.
    ///
    /// # Errors
    /// [`JoinError::System`], or there are no random numbers.
    pub fn open(self) -> Result<Joining, JoinError> {
        Joining::open(self)
    }

    fn client_key(&self) -> Result<ClientKey, ConnectError> {
        let new = || ClientKey::generate().map_err(ConnectError::Random);
        self.key.clone().map_or_else(new, Ok)
    }

    fn asker(&self, key: &ClientKey) -> Asker {
        let JoinBuilder { measure, is_let_in, .. } = *self;
        Asker::new(self.ask.clone(), key.clone(), measure, is_let_in)
    }

    fn keeper(&self, now: Time, place: Place, measured: Vec<Nearness>) -> Keeper {
        Keeper::new(now, place, measured, !self.measure.is_zero(), Chance::of_system())
    }

    /// How to join the relay of a place.
    ///
    /// # Errors
    /// The world has no such comtree.
    fn client(&self, place: &Place, key: &ClientKey) -> Result<ClientBuilder, JoinError> {
        let (number, comtrees) = (self.comtree, place.comtrees.len());
        let comtree = place.comtrees.get(number).copied();
        let comtree = comtree.ok_or(JoinError::NoSuchComtree { number, comtrees })?;
        let builder = ClientBuilder::new(place.relay.address.to_string());
        let builder = match self.receive_queue {
            Some(updates) => builder.receive_queue(updates),
            None => builder,
        };
        let builder = builder.relay_key(place.relay.key).key(key.clone());
        Ok(builder.token(&place.token).comtree(comtree).kept())
    }

    /// The controller has not answered in time.
    fn late(&self) -> JoinError {
        Patience::new(self.timeout).over(&self.ask.controller)
    }
}
