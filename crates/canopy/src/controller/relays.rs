//! The sealed channels that come in: relays register and are told what to have, participants join.

use super::driver::Handle;
use super::feeds::Feeds;
use super::joins::Joins;
use super::participants;
use crate::settings::key::parse_listed;
use anyhow::{Context, anyhow, bail};
use canopy_api::Problem;
use canopy_channel::{Channel, ChannelError, Hello, Register, Registered, Reply};
use canopy_control::{Name, NewRelay, RelayId};
use canopy_plan::{Limits, Rate};
use canopy_session::{Identity, PublicKey};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A handshake, and the question after it, may take so long.
const DEADLINE: Duration = Duration::from_secs(5);
/// A participant may think so long between two questions.
const IDLE: Duration = Duration::from_secs(10);
/// A relay beats twice a second. One that is silent for so long is connected no more.
const SILENCE: Duration = Duration::from_secs(10);
/// The most connections.
const MOST: usize = 16_384;
/// The most connections of one ip that are not a registered relay's or a member's who follows areas.
const MOST_OF_IP: u32 = 64;
/// The most connections of one ip over which members follow areas: others have room beside them.
const MOST_FOLLOWERS_OF_IP: u32 = MOST as u32 / 4;
/// Messages that may wait for a relay. What is not taken is sent again later.
const QUEUE: usize = 256;
/// Messages for a relay that leave together, and messages of one that are taken together, if so many wait.
const TOGETHER: usize = 32;

/// Which relays may register.
#[derive(Clone, Debug)]
pub(crate) enum Welcome {
    /// All.
    All,
    /// Those whose keys are in this file, which is read at each registration.
    Listed(PathBuf),
}

/// The channels that are open.
#[derive(Clone, Default)]
pub(crate) struct Relays(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    /// The newest of each relay.
    live: BTreeMap<RelayId, Live>,
    /// How many were registered: their numbers.
    registered: u64,
    connections: usize,
    /// Connections that are not a registered relay's or a member's.
    strangers: HashMap<IpAddr, u32>,
    /// Connections of members that follow areas.
    followers: HashMap<IpAddr, u32>,
}

/// A registered relay's channel. It ends when the queue is dropped.
struct Live {
    number: u64,
    queue: mpsc::Sender<Vec<u8>>,
}

/// What channels need to be answered.
pub(crate) struct Answering {
    pub(crate) identity: Identity,
    pub(crate) handle: Handle,
    pub(crate) joins: Joins,
    pub(crate) relays: Relays,
    pub(crate) feeds: Feeds,
    pub(crate) welcome: Welcome,
    /// The key whose tokens relays are to take.
    pub(crate) issuers: String,
}

impl Relays {
    /// Sends a message to a relay, if it is connected and its queue has room. The controller sends
    /// again what is not answered.
    pub(crate) fn send(&self, relay: RelayId, message: Vec<u8>) {
        if let Some(live) = self.lock().live.get(&relay) {
            _ = live.queue.try_send(message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection of somebody unknown; nothing if there are too many.
    fn connect(&self, ip: IpAddr) -> Option<Connection> {
        let mut open = self.lock();
        if open.connections >= MOST || open.strangers.get(&ip).is_some_and(|of| *of >= MOST_OF_IP) {
            return None;
        }
        open.connections += 1;
        *open.strangers.entry(ip).or_default() += 1;
        Some(Connection { relays: self.clone(), ip, of: Caller::Stranger })
    }

    /// A relay has registered: its older channel ends.
    fn enter(&self, relay: RelayId) -> (u64, mpsc::Receiver<Vec<u8>>) {
        let (queue, messages) = mpsc::channel(QUEUE);
        let mut open = self.lock();
        open.registered += 1;
        let number = open.registered;
        open.live.insert(relay, Live { number, queue });
        (number, messages)
    }

    /// A relay's channel has ended. Returns whether it has no newer one.
    fn leave(&self, relay: RelayId, number: u64) -> bool {
        let mut open = self.lock();
        let was_newest = open.live.get(&relay).is_some_and(|live| live.number == number);
        if was_newest {
            open.live.remove(&relay);
        }
        was_newest
    }

    /// Ends the channels of all relays, which register again.
    fn end_all(&self) {
        self.lock().live.clear();
    }
}

/// A connection that is counted until this is dropped.
struct Connection {
    relays: Relays,
    ip: IpAddr,
    of: Caller,
}

/// Whose connection it is.
#[derive(Clone, Copy)]
enum Caller {
    Stranger,
    Follower,
    Relay,
}

impl Connection {
    /// It is a relay's, and counts for its ip no more.
    fn registered(&mut self) {
        self.is_of(Caller::Relay);
    }

    /// It is a member's who follows areas.
    ///
    /// # Errors
    /// Too many of its ip do.
    fn follows(&mut self) -> Result<(), Problem> {
        let mut open = self.relays.lock();
        let of_ip = open.followers.entry(self.ip).or_default();
        if *of_ip >= MOST_FOLLOWERS_OF_IP {
            let what = format!("{MOST_FOLLOWERS_OF_IP} members follow areas from there already");
            let remedy = "close some of their channels, or follow from another ip";
            return Err(Problem::new(429, what, &format!("ip {}", self.ip), remedy));
        }
        *of_ip += 1;
        drop(open);
        self.is_of(Caller::Follower);
        Ok(())
    }

    fn is_of(&mut self, caller: Caller) {
        let before = std::mem::replace(&mut self.of, caller);
        self.relays.lock().forget(self.ip, before);
    }
}

impl Open {
    fn forget(&mut self, ip: IpAddr, caller: Caller) {
        let counts = match caller {
            Caller::Stranger => &mut self.strangers,
            Caller::Follower => &mut self.followers,
            Caller::Relay => return,
        };
        if let Some(of) = counts.get_mut(&ip) {
            *of -= 1;
            if *of == 0 {
                counts.remove(&ip);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.relays.lock();
        open.connections -= 1;
        open.forget(self.ip, self.of);
    }
}

/// Answers whoever connects, until the process ends.
pub(crate) async fn answer(listener: TcpListener, with: Answering) {
    let with = Arc::new(with);
    let mut lives = with.handle.lives();
    loop {
        tokio::select! {
            changed = lives.changed() => match changed {
                Ok(()) => with.relays.end_all(),
                Err(_) => return,
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let Some(connection) = with.relays.connect(from.ip()) else { continue };
                    tokio::spawn(with.clone().serve(stream, from, connection));
                }
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

impl Answering {
    async fn serve(
        self: Arc<Answering>,
        stream: TcpStream,
        from: SocketAddr,
        connection: Connection,
    ) {
        let served = async {
            let mut channel = Channel::accept(stream, &self.identity, DEADLINE).await?;
            match channel.asked(DEADLINE).await? {
                Hello::Register(register) => self.relay(channel, register, from, connection).await,
                Hello::Follow { world, credential } => {
                    self.follower(channel, world, credential, connection).await
                }
                hello => Ok(self.participant(channel, hello).await?),
            }
        };
        if let Err(error) = served.await {
            tracing::debug!(%from, "a channel has ended: {error:#}");
        }
    }

    /// Answers a participant, which may ask several things, one after the other.
    async fn participant(&self, mut channel: Channel, hello: Hello) -> Result<(), ChannelError> {
        let mut next = hello;
        loop {
            let peer = *channel.peer();
            let Some(answer) = participants::answer(&self.joins, &peer, next).await else {
                let what = "only the first question can be this one";
                let problem = Problem::new(400, what, "ask", "ask it on another channel");
                return channel.reply(&participants::refused(&problem)).await;
            };
            channel.reply(&answer).await?;
            next = match channel.asked(IDLE).await {
                // It has asked all that it wanted to.
                Err(ChannelError::Ended) => return Ok(()),
                asked => asked?,
            };
        }
    }

    /// Tells a member of its world's areas, and takes its reports, until it leaves.
    async fn follower(
        &self,
        mut channel: Channel,
        world: String,
        credential: Option<String>,
        mut connection: Connection,
    ) -> anyhow::Result<()> {
        let right = self.joins.right(&world, credential.as_deref(), channel.peer());
        let followed = match right {
            Ok(right) => self.feeds.follow(&self.handle, world, right).await,
            Err(problem) => Err(problem),
        };
        let followed = followed.and_then(|feed| connection.follows().map(|()| feed));
        match followed {
            Ok(feed) => {
                channel.reply(&Reply::Done(participants::Answer::Nothing {})).await?;
                feed.carry(&self.handle, channel).await
            }
            Err(problem) => Ok(channel.reply(&participants::refused(&problem)).await?),
        }
    }

    /// Registers a relay, and carries messages both ways until it is silent or has a newer channel.
    async fn relay(
        &self,
        mut channel: Channel,
        register: Register,
        from: SocketAddr,
        mut connection: Connection,
    ) -> anyhow::Result<()> {
        let name = register.name.clone();
        let id = match self.register(*channel.peer(), register, from).await {
            Ok(id) => id,
            Err(problem) => {
                tracing::warn!(%from, name, "a relay was not registered: {}", problem.error.what);
                return Ok(channel.reply(&participants::refused(&problem)).await?);
            }
        };
        connection.registered();
        let registered = Registered { relay: id.0, issuers: self.issuers.clone() };
        channel.reply(&Reply::Done(registered)).await?;
        let (number, messages) = self.relays.enter(id);
        tracing::info!(%from, relay = name, "a relay has registered");
        let ended = self.carry(id, channel, messages).await;
        tracing::info!(relay = name, "a relay's channel has ended: {ended:#}");
        if self.relays.leave(id, number) {
            // Whether it is dead its neighbours know.
            let told =
                self.handle.ask(move |controller, now| controller.handle_disconnect(now, id));
            told.await?;
        }
        Ok(())
    }

    /// Takes a relay that registers. It is stored when this returns.
    async fn register(
        &self,
        key: PublicKey,
        register: Register,
        from: SocketAddr,
    ) -> Result<RelayId, Problem> {
        self.check(&register.name, &key).map_err(|error| {
            let remedy =
                "add its key to the file of --relays, or start the controller with --open-relays";
            Problem::new(403, format!("{error:#}"), "relay", remedy)
        })?;
        let name = Name::new(&register.name).map_err(canopy_control::Refusal::from)?;
        let mut native = register.native;
        if native.ip().is_unspecified() {
            native.set_ip(from.ip());
        }
        let rate = |bits, packets| Rate { bits: bits as f64, packets: packets as f64 };
        let of = register.uplink;
        let uplink = Limits {
            send: rate(of.up_bits, of.up_packets),
            receive: rate(of.down_bits, of.down_packets),
        };
        let (places, comtrees) = (register.places, register.comtrees);
        let new = NewRelay { name, key, native, uplink, places, comtrees };
        let registered = self
            .handle
            .change(move |controller, now| Ok::<_, Problem>(controller.register(now, new)?));
        registered.await.map_err(unstored)?
    }

    fn check(&self, name: &str, key: &PublicKey) -> anyhow::Result<()> {
        let Welcome::Listed(path) = &self.welcome else { return Ok(()) };
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the file {shown} of relays' keys cannot be read"))?;
        let listed = parse_listed(&text).with_context(|| shown.to_string())?;
        match listed.iter().find(|one| one.key == *key) {
            None => bail!("its key is not among those that may register"),
            Some(one) if one.name.as_deref().is_some_and(|listed| listed != name) => {
                bail!("its key may register under another name only")
            }
            Some(_) => Ok(()),
        }
    }

    /// Carries messages both ways. Returns why that has ended.
    async fn carry(
        &self,
        id: RelayId,
        channel: Channel,
        mut messages: mpsc::Receiver<Vec<u8>>,
    ) -> anyhow::Error {
        let Channel { mut sender, mut receiver, .. } = channel;
        let send = async {
            let mut waiting = Vec::new();
            while messages.recv_many(&mut waiting, TOGETHER).await > 0 {
                if let Err(error) = sender.send_all(waiting.drain(..)).await {
                    return anyhow::Error::from(error);
                }
            }
            anyhow!("it has registered on another channel, or is to register again")
        };
        let receive = async {
            loop {
                let message = match tokio::time::timeout(SILENCE, receiver.receive()).await {
                    Ok(Ok(message)) => message,
                    Ok(Err(error)) => return anyhow::Error::from(error),
                    Err(_) => return anyhow!("it was silent for {} s", SILENCE.as_secs()),
                };
                let mut together = vec![message];
                while together.len() < TOGETHER {
                    match receiver.received() {
                        Ok(Some(message)) => together.push(message),
                        Ok(None) => break,
                        Err(error) => return error.into(),
                    }
                }
                let taken = self.handle.ask(move |controller, now| {
                    together.iter().for_each(|message| controller.handle_message(now, id, message));
                });
                if let Err(error) = taken.await {
                    return error;
                }
            }
        };
        tokio::select! {
            error = send => error,
            error = receive => error,
        }
    }
}

fn unstored(error: anyhow::Error) -> Problem {
    Problem::new(503, error.to_string(), "controller", "ask again in a second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_ip_that_follow_areas_leave_room_for_others() {
        let relays = Relays::default();
        let [ip, other] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let follow = |ip| {
            let mut connection = relays.connect(ip).expect("there is room");
            connection.follows().map(|()| connection)
        };
        let mut followers: Vec<Connection> =
            (0..MOST_FOLLOWERS_OF_IP).map(|_| follow(ip).unwrap()).collect();
        let refused = follow(ip).err().unwrap();
        assert!(refused.status == 429 && refused.to_string().contains("ip 10.0.0.1"), "{refused}");
        follow(other).unwrap();
        followers.pop();
        follow(ip).unwrap();
        drop(followers);
        let open = relays.lock();
        assert_eq!((open.connections, open.strangers.len(), open.followers.len()), (0, 0, 0));
    }
}
