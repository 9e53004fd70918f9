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
//! Before it joins, the client measures the relays that the controller names, and says how far they
//! are. While it is in the world it renews its lease three times before that would end. A controller that cannot be
//! reached stops nobody who is in: the client asks it again and again.
//!
//! When the relay drains, or another is nearer, the client moves: it makes a session at the other relay beside
//! the one that it has, and takes each update once, whichever of the two brings it first. No update is lost.
//!
//! When the relay is lost, which its host says at once or missing keepalives show, the client asks the
//! controller every 100 ms or so, until it names another relay or the present one is back. So it turns to
//! another only when the controller has given the relay up.

mod areas;
mod ask;
mod keep;
mod measure;
mod pause;

pub use ask::{Ask, JoinError, Place, RelayPlace};
pub use canopy_channel::{Budget as JoinBudget, Nearness};
pub use measure::ask_once;

use crate::{Client, ClientBuilder, ClientKey, ConnectError, RelayKey};
use canopy_wire::Comtree;
use keep::Keeper;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long joining takes at most, unless it is said otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long relays are measured, unless it is said otherwise.
const DEFAULT_MEASURE: Duration = Duration::from_millis(300);

/// How to join a world through its controller; made by [`Client::join`].
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
#[must_use = "nothing is joined before `connect`"]
pub struct JoinBuilder {
    ask: Ask,
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

impl JoinBuilder {
    pub(crate) fn new(controller: String, key: RelayKey, world: String) -> JoinBuilder {
        JoinBuilder {
            ask: Ask::new(controller, key, world),
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

    /// How long joining takes at most; 10 s unless set. Once connected a client never gives up.
    pub fn timeout(self, timeout: Duration) -> JoinBuilder {
        JoinBuilder { timeout, ..self }
    }

    /// How many updates may wait to be taken before the oldest are dropped; 4,096 unless set.
    pub fn receive_queue(self, updates: usize) -> JoinBuilder {
        JoinBuilder { receive_queue: Some(updates), ..self }
    }

    /// Joins the world. A relay that is lost meanwhile is replaced like one that is lost later.
    ///
    /// # Errors
    /// [`JoinError`]: the controller cannot be reached or refuses, or its relay does not take the
    /// client in time.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without I/O or time.
    pub async fn connect(self) -> Result<Client, JoinError> {
        let until = Instant::now() + self.timeout;
        let key = match &self.key {
            Some(key) => key.clone(),
            None => ClientKey::generate().map_err(ConnectError::Random)?,
        };
        let measured = match self.measure {
            Duration::ZERO => Vec::new(),
            most => measure::all(&self.ask.relays(&key).await?, most).await,
        };
        loop {
            let place = self.ask.join(&key, &measured).await?;
            let left = until.saturating_duration_since(Instant::now());
            match self.connect_to(&place, &key, left.min(Duration::from_secs(2))).await {
                Ok(client) => {
                    let shared = client.shared_with_keeper();
                    let keeper =
                        Keeper::new(shared, self.ask, key, place, (measured, self.measure));
                    tokio::spawn(keeper.run());
                    return Ok(client);
                }
                Err(error) if Instant::now() >= until => return Err(error.into()),
                Err(_) => sleep(pause::pause()).await,
            }
        }
    }

    async fn connect_to(
        &self,
        place: &Place,
        key: &ClientKey,
        timeout: Duration,
    ) -> Result<Client, ConnectError> {
        let builder = ClientBuilder::new(place.relay.address.to_string());
        let builder = match self.receive_queue {
            Some(updates) => builder.receive_queue(updates),
            None => builder,
        };
        builder
            .relay_key(place.relay.key)
            .key(key.clone())
            .token(&place.token)
            .comtree(place.comtrees.first().copied().unwrap_or(Comtree(1)))
            .timeout(timeout)
            .kept()
            .connect()
            .await
    }
}
