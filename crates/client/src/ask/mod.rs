//! What a controller is asked, and what it answers.

mod looked;
mod measure;
mod patience;

pub use canopy_channel::{Budget as JoinBudget, Nearness};
pub(crate) use looked::Looked;
pub(crate) use measure::all as measure;
pub use measure::ask_once;
pub(crate) use patience::Patience;

use crate::{ClientKey, ConnectError, Refusal, RelayKey};
use canopy_channel::{Budget, Channel, ChannelError, Hello, Join};
use canopy_wire::{Comtree, Group};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

/// How long a connection to the controller may take.
const CALL_LIMIT: Duration = Duration::from_secs(3);
/// How long an answer may take: the controller waits for the relay, five seconds at most.
const ANSWER_LIMIT: Duration = Duration::from_secs(8);

/// Whom to ask, and for which world. It is what [`Client::join`](crate::Client::join) goes by, for those
/// who have sessions of their own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ask {
    /// The controller, as `host:port`.
    pub controller: String,
    /// The key that it is known by.
    pub controller_key: RelayKey,
    /// The world's name.
    pub world: String,
    /// A token for the world; nothing if it is open.
    pub credential: Option<String>,
    /// What is to be sent and received; what the credential or the world says if nothing.
    pub budget: Option<Budget>,
    /// A number for the visit, the same from a join to the leave, and higher than those of earlier visits by the same
    /// key: so who leaves gives no place back that a later join has, and a join that comes late takes none over.
    /// Without one, they do.
    pub visit: Option<u64>,
}

/// A place in a world, as the controller gives it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Place {
    /// The relay that serves it.
    pub relay: RelayPlace,
    /// The next nearest relay, where there is one. It is a hint only: nothing is reserved there, and the token does
    /// not count there.
    #[serde(default)]
    pub second: Option<RelayPlace>,
    /// The token that the relay asks for.
    pub token: String,
    /// The world's comtrees, in order.
    #[serde(deserialize_with = "comtrees")]
    pub comtrees: Vec<Comtree>,
    /// The address on each comtree, such as `1.64`.
    pub address: String,
    /// The world's channels; see [`Place::channel`].
    #[serde(default)]
    pub channels: Vec<WorldChannel>,
    /// Whether the world has areas.
    #[serde(default)]
    pub areas: bool,
    /// Whether its relay drains, so that it should be left: see [`Ask::relocate`].
    #[serde(default)]
    pub drains: bool,
    /// How long the place is kept from the answer on, unless it is asked for again.
    #[serde(rename = "lease_ms", default = "default_lease", deserialize_with = "millis")]
    pub lease: Duration,
}

/// A channel of a world: groups, one after another, that have a name together.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorldChannel {
    /// Its name.
    pub name: String,
    /// The number of its first group.
    pub first: u32,
    /// How many groups it has.
    pub groups: u32,
}

impl WorldChannel {
    /// One of its groups, counted from 0; nothing if it has fewer.
    pub fn group(&self, number: u32) -> Option<Group> {
        let number = (number < self.groups).then_some(number)?;
        Group::try_from(self.first.checked_add(number)?).ok()
    }
}

impl Place {
    /// The world's channel of this name, if it has one.
    pub fn channel(&self, name: &str) -> Option<&WorldChannel> {
        self.channels.iter().find(|channel| channel.name == name)
    }
}

/// A relay, as the controller names it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayPlace {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: SocketAddr,
    /// The key that it is known by.
    #[serde(deserialize_with = "key")]
    pub key: RelayKey,
}

/// Why a world could not be joined through its controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The controller cannot be reached.
    #[error(
        "the controller at {controller} cannot be reached: {why}; check its address and key, and that \
         it runs"
    )]
    Controller {
        /// Its address.
        controller: String,
        /// What went wrong.
        why: String,
    },
    /// The controller does not let the client in.
    #[error("the controller refused: {0}")]
    Refused(Refusal),
    /// The world has fewer comtrees than [`JoinBuilder::comtree`](crate::JoinBuilder::comtree) counts.
    #[error(
        "the world has no comtree {number}, counted from 0: it has {comtrees}; give a smaller number, or \
         create the world with more comtrees"
    )]
    NoSuchComtree {
        /// What was asked for.
        number: usize,
        /// How many there are.
        comtrees: usize,
    },
    /// The relay that the controller named did not take the client.
    #[error(transparent)]
    Relay(#[from] ConnectError),
    /// A client without a runtime asks the controller on a thread of its own, for which the system has no room.
    #[error("there is no thread to ask the controller on: {0}; raise the limit of the process")]
    System(#[source] std::io::Error),
}

#[derive(Deserialize)]
struct Relays {
    relays: Vec<RelayPlace>,
}

#[derive(Deserialize)]
struct Nothing {}

impl Ask {
    /// A question for a world without credential and budget.
    pub fn new(controller: String, controller_key: RelayKey, world: String) -> Ask {
        Ask { controller, controller_key, world, credential: None, budget: None, visit: None }
    }

    /// The relays that should be measured before joining.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses.
    pub async fn relays(&self, key: &ClientKey) -> Result<Vec<RelayPlace>, JoinError> {
        let Relays { relays } = self.ask(key, &Hello::Relays).await?;
        Ok(relays)
    }

    /// The same, and asks again while the controller cannot be reached, after pauses that grow, for `most` altogether.
    ///
    /// # Errors
    /// The controller could not be reached in this time, cannot be by this key or name, or refuses.
    pub async fn relays_within(
        &self,
        key: &ClientKey,
        most: Duration,
    ) -> Result<Vec<RelayPlace>, JoinError> {
        let Relays { relays } = self.ask_within(key, &Hello::Relays, most).await?;
        Ok(relays)
    }

    /// Asks for a place. Who has one gets the same again, unless its relay was given up meanwhile.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses.
    pub async fn join(&self, key: &ClientKey, measured: &[Nearness]) -> Result<Place, JoinError> {
        self.ask(key, &Hello::Join(self.wish(measured))).await
    }

    /// The same, and asks again while the controller cannot be reached, after pauses that grow, for `most` altogether.
    ///
    /// # Errors
    /// The controller could not be reached in this time, cannot be by this key or name, or refuses.
    pub async fn join_within(
        &self,
        key: &ClientKey,
        measured: &[Nearness],
        most: Duration,
    ) -> Result<Place, JoinError> {
        self.ask_within(key, &Hello::Join(self.wish(measured)), most).await
    }

    /// Prolongs the lease of a place, as [`Ask::join`] does.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses.
    pub async fn renew(&self, key: &ClientKey, measured: &[Nearness]) -> Result<Place, JoinError> {
        self.ask(key, &Hello::Renew(self.wish(measured))).await
    }

    /// Prolongs the lease of a place, and asks for one at another relay: if the present one drains, or one of
    /// those that were measured is nearer by far, the answer names another. Then there are two places,
    /// until one of them is [given back](Ask::give_back).
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses. There may be a second place all the same, which
    /// the next answer names.
    pub async fn relocate(
        &self,
        key: &ClientKey,
        measured: &[Nearness],
    ) -> Result<Place, JoinError> {
        self.ask(key, &Hello::Move(self.wish(measured))).await
    }

    /// Gives back the one of two places that has this address: the one that was left, or the one that was
    /// not gone to.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses. The place's lease ends then.
    pub async fn give_back(&self, key: &ClientKey, address: &str) -> Result<(), JoinError> {
        self.leave_place(key, Some(address.to_owned())).await
    }

    /// Gives all places back.
    ///
    /// # Errors
    /// The controller cannot be reached, or refuses.
    pub async fn leave(&self, key: &ClientKey) -> Result<(), JoinError> {
        self.leave_place(key, None).await
    }

    async fn leave_place(&self, key: &ClientKey, address: Option<String>) -> Result<(), JoinError> {
        let Ask { world, credential, visit, .. } = self.clone();
        let Nothing {} = self.ask(key, &Hello::Leave { world, credential, address, visit }).await?;
        Ok(())
    }

    fn wish(&self, measured: &[Nearness]) -> Join {
        let Ask { world, credential, budget, visit, .. } = self.clone();
        Join { world, credential, budget, measured: measured.to_vec(), visit }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        key: &ClientKey,
        hello: &Hello,
    ) -> Result<T, JoinError> {
        self.ask_over(&mut self.call(key).await?, hello).await
    }

    async fn ask_within<T: DeserializeOwned>(
        &self,
        key: &ClientKey,
        hello: &Hello,
        most: Duration,
    ) -> Result<T, JoinError> {
        let mut patience = Patience::new(most);
        let until = patience.until();
        match timeout_at(until, self.ask_anew(key, hello, &mut patience)).await {
            Ok(answered) => answered.map(|(_, answer)| answer),
            Err(_elapsed) => Err(patience.over(&self.controller)),
        }
    }

    async fn ask_over<T: DeserializeOwned>(
        &self,
        channel: &mut Channel,
        hello: &Hello,
    ) -> Result<T, JoinError> {
        channel.ask(hello, ANSWER_LIMIT).await.map_err(|error| self.failed(error))
    }

    /// A channel over which the areas of the world come from now on.
    pub(crate) async fn follow(&self, key: &ClientKey) -> Result<Channel, JoinError> {
        let (world, credential) = (self.world.clone(), self.credential.clone());
        let mut channel = self.call(key).await?;
        let asked = channel.ask(&Hello::Follow { world, credential }, ANSWER_LIMIT).await;
        let Nothing {} = asked.map_err(|error| self.failed(error))?;
        Ok(channel)
    }

    async fn call(&self, key: &ClientKey) -> Result<Channel, JoinError> {
        self.connect(key).await.map_err(|error| self.unreachable(&error))
    }

    async fn connect(&self, key: &ClientKey) -> Result<Channel, ChannelError> {
        let connecting = timeout(CALL_LIMIT, TcpStream::connect(&self.controller));
        let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
        let stream = connecting.await.map_err(late).and_then(|stream| stream)?;
        let (own, controller) = (key.identity(), self.controller_key.to_bytes());
        Channel::call(stream, &own, &controller, CALL_LIMIT).await
    }

    fn failed(&self, error: ChannelError) -> JoinError {
        match error {
            ChannelError::Refused(why) => match Refusal::deserialize(&why) {
                Ok(refusal) => JoinError::Refused(refusal),
                Err(_) => self.unreachable(&why),
            },
            error => self.unreachable(&error),
        }
    }

    fn unreachable(&self, why: &impl ToString) -> JoinError {
        JoinError::Controller { controller: self.controller.clone(), why: why.to_string() }
    }
}

fn comtrees<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Comtree>, D::Error> {
    Ok(Vec::<u32>::deserialize(from)?.into_iter().map(Comtree).collect())
}

fn millis<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    u64::deserialize(from).map(Duration::from_millis)
}

/// What a controller gives that does not say how long.
const fn default_lease() -> Duration {
    Duration::from_secs(60)
}

fn key<'de, D: Deserializer<'de>>(from: D) -> Result<RelayKey, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_channel::Reply;
    use canopy_session::Identity;
    use tokio::net::TcpListener;

    /// A controller that gives one answer, and what it was asked.
    async fn asked(answer: Reply<serde_json::Value>) -> (Result<Place, JoinError>, Hello) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = Identity::new([9; 32]);
        let (address, key) = (listener.local_addr().unwrap(), RelayKey::new(*own.public()));
        let ask = Ask::new(address.to_string(), key, "lobby".to_owned());
        let client = ClientKey::from_seed([7; 32]);
        let near = [Nearness { relay: "eu-1".to_owned(), delay_us: 20 }];
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut channel = Channel::accept(stream, &own, CALL_LIMIT).await.unwrap();
            assert_eq!(*channel.peer(), client.public_bytes());
            let hello = channel.asked(CALL_LIMIT).await.unwrap();
            channel.reply(&answer).await.unwrap();
            hello
        };
        tokio::join!(ask.join(&client, &near), serve)
    }

    #[tokio::test]
    async fn a_place_is_asked_for_with_what_was_measured() {
        let relay = serde_json::json!({
            "name": "eu-1", "address": "10.0.0.1:4040", "key": "07".repeat(32),
        });
        let place = serde_json::json!({
            "world": "lobby", "address": "1.64", "relay": relay, "second": relay, "token": "t",
            "comtrees": [3, 4], "until": "2026-11-21T20:00:00Z", "lease_ms": 45_000,
            "channels": [{ "name": "chat", "first": 64, "groups": 2 }],
        });
        let (place, hello) = asked(Reply::Done(place)).await;
        let place = place.unwrap();
        assert_eq!((place.relay.name.as_str(), place.token.as_str()), ("eu-1", "t"));
        assert_eq!(place.comtrees, [Comtree(3), Comtree(4)]);
        let chat = place.channel("chat").unwrap();
        let groups = [0, 1, 2, u32::MAX].map(|number| chat.group(number));
        assert_eq!(groups, [Some(Group::new(64)), Some(Group::new(65)), None, None]);
        assert_eq!(place.channel("voice"), None);
        assert_eq!(place.lease, Duration::from_secs(45));
        assert_eq!(place.second, Some(place.relay));
        let Hello::Join(join) = hello else { panic!("{hello:?}") };
        assert_eq!((join.world.as_str(), join.measured[0].delay_us), ("lobby", 20));
    }

    #[tokio::test]
    async fn a_refusal_says_what_where_and_how_much_is_free() {
        let why = serde_json::json!({
            "what": "it is full", "where": "relay eu-1", "remedy": "ask for less",
            "asked": "2 Mbit/s", "free": "1 Mbit/s",
        });
        let Err(JoinError::Refused(why)) = asked(Reply::Refused(why)).await.0 else {
            panic!("it is refused");
        };
        assert_eq!(why.to_string(), "relay eu-1: it is full; ask for less");
        assert_eq!(
            (why.asked.as_deref(), why.free.as_deref()),
            (Some("2 Mbit/s"), Some("1 Mbit/s"))
        );
    }

    #[tokio::test]
    async fn a_controller_that_is_not_there_is_named() {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let ask = Ask::new(nobody.to_string(), RelayKey::new([1; 32]), "lobby".to_owned());
        let error = ask.relays(&ClientKey::from_seed([7; 32])).await.unwrap_err().to_string();
        assert!(
            error.contains(&nobody.to_string()) && error.contains("check its address"),
            "{error}"
        );
    }
}
