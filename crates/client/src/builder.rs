//! Joining a world.

use crate::member::{Member, MemberConfig};
use crate::relays::{RelayName, Relays};
use crate::{ClientKey, ConnectError, PollClient, RelayKey, Resumption};
use canopy_net::{Clock, Waker};
use canopy_wire::{Comtree, MAX_TOKEN_LEN, SAFE_DATAGRAM};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tokio")]
use crate::Client;
#[cfg(feature = "tokio")]
use crate::driver::Driver;
#[cfg(feature = "tokio")]
use crate::shared::Shared;
#[cfg(feature = "tokio")]
use canopy_wire::Time;
#[cfg(feature = "tokio")]
use std::future::poll_fn;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Two seconds of a crowd of a hundred at twenty updates a second; at most 6 MB.
const DEFAULT_RECEIVE_QUEUE: usize = 4096;

/// How to join a world; made by `Client::builder` and [`PollClient::builder`].
///
/// ```no_run
/// use canopy_client::{Comtree, PollClient};
/// use std::time::Duration;
///
/// let world = PollClient::builder("relay.example:4040")
///     .relay("spare.example:4040")
///     .comtree(Comtree(3))
///     .timeout(Duration::from_secs(10))
///     .connect_blocking()?;
/// # Ok::<(), canopy_client::ConnectError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is joined before `connect`, `connect_blocking` or `open`"]
pub struct ClientBuilder {
    relays: Vec<RelayName>,
    comtree: Comtree,
    timeout: Duration,
    relay_key: Option<RelayKey>,
    key: Option<ClientKey>,
    token: String,
    trusts_any_relay: bool,
    resumption: Option<Resumption>,
    max_datagram: u16,
    receive_queue: usize,
    receive_offload: bool,
    is_kept: bool,
}

#[cfg(feature = "tokio")]
impl Client {
    /// Sets out to join a world through a relay: `host:port`, or an IP address with a port.
    pub fn builder(relay: impl ToString) -> ClientBuilder {
        ClientBuilder::new(relay.to_string())
    }
}

impl PollClient {
    /// Sets out to join a world through a relay: `host:port`, or an IP address with a port.
    pub fn builder(relay: impl ToString) -> ClientBuilder {
        ClientBuilder::new(relay.to_string())
    }
}

impl ClientBuilder {
    pub(crate) fn new(relay: String) -> ClientBuilder {
        ClientBuilder {
            relays: vec![RelayName(relay)],
            comtree: Comtree(1),
            timeout: DEFAULT_TIMEOUT,
            relay_key: None,
            key: None,
            token: String::new(),
            trusts_any_relay: false,
            resumption: None,
            max_datagram: SAFE_DATAGRAM as u16,
            receive_queue: DEFAULT_RECEIVE_QUEUE,
            receive_offload: true,
            is_kept: false,
        }
    }

    /// Another relay, to be asked when those before it do not answer, refuse or are lost, and then
    /// the first again. Names are looked up once, when the client is made; each address of a name
    /// counts as a relay of its own.
    pub fn relay(mut self, relay: impl ToString) -> ClientBuilder {
        self.relays.push(RelayName(relay.to_string()));
        self
    }

    /// The comtree of the world to join; 1 unless set.
    pub fn comtree(self, comtree: Comtree) -> ClientBuilder {
        ClientBuilder { comtree, ..self }
    }

    /// How long connecting waits for the relays, all together; 5 s unless set. Once connected a
    /// client never gives up.
    pub fn timeout(self, timeout: Duration) -> ClientBuilder {
        ClientBuilder { timeout, ..self }
    }

    /// The key that the relays are known by; it is needed for relays on other machines.
    pub fn relay_key(self, key: RelayKey) -> ClientBuilder {
        ClientBuilder { relay_key: Some(key), ..self }
    }

    /// The token that lets the client in, where relays ask for one. It is for a client key, which
    /// must be given too; [`Client::set_token`](crate::PollClient::set_token) replaces it before it
    /// ends.
    pub fn token(self, token: impl ToString) -> ClientBuilder {
        ClientBuilder { token: token.to_string(), ..self }
    }

    /// The client's own key; a new one unless set.
    pub fn key(self, key: ClientKey) -> ClientBuilder {
        ClientBuilder { key: Some(key), ..self }
    }

    /// Speaks with any relay that answers, although it may be an impostor who reads and alters
    /// everything: for networks that nobody else is on.
    pub fn trust_any_relay(self) -> ClientBuilder {
        ClientBuilder { trusts_any_relay: true, ..self }
    }

    /// Comes back as who an earlier client was, maybe in another process: under its address, if the
    /// relay can still give it. It brings its key along; another that is given with
    /// [`ClientBuilder::key`] makes it useless. [`Event::Connected`](crate::Event::Connected) says whether it did.
    ///
    /// ```no_run
    /// use canopy_client::{PollClient, Resumption};
    ///
    /// let mut builder = PollClient::builder("relay.example:4040");
    /// if let Ok(kept) = std::fs::read("player.resumption") {
    ///     builder = builder.resume(Resumption::try_from(&kept[..])?);
    /// }
    /// let world = builder.connect_blocking()?;
    /// if let Some(resumption) = world.resumption() {
    ///     // Where nobody else can read it.
    ///     std::fs::write("player.resumption", resumption.to_bytes())?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(self, resumption: Resumption) -> ClientBuilder {
        ClientBuilder { resumption: Some(resumption), ..self }
    }

    /// The longest datagram in bytes that the path to the relay takes: 1,232 unless set, which every
    /// path does. Where the MTU is 1,500 all the way, 1,452 saves some headers; the relay must be set
    /// to it too.
    pub fn max_datagram(self, bytes: u16) -> ClientBuilder {
        ClientBuilder { max_datagram: bytes, ..self }
    }

    /// How many updates may wait to be taken before the oldest are dropped; 4,096 unless set, at
    /// least 1.
    pub fn receive_queue(self, updates: usize) -> ClientBuilder {
        ClientBuilder { receive_queue: updates, ..self }
    }

    /// Whether the kernel may hand over several datagrams in one piece (`UDP_GRO`), which makes
    /// receiving in crowds several times cheaper; on unless set.
    pub fn receive_offload(self, on: bool) -> ClientBuilder {
        ClientBuilder { receive_offload: on, ..self }
    }

    /// Somebody finds another relay when this one is lost.
    #[cfg(feature = "join")]
    pub(crate) fn kept(self) -> ClientBuilder {
        ClientBuilder { is_kept: true, ..self }
    }

    /// Joins the world, on tokio. A future that is dropped joins nothing.
    ///
    /// # Errors
    /// [`ConnectError`]: no address, no socket, no answer in time, or a refusal, each with what to
    /// do about it.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without I/O or time.
    #[cfg(feature = "tokio")]
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let (clock, timeout) = (Clock::start(), self.timeout);
        let found = tokio::time::timeout(timeout, self.look_up()).await;
        let late = || self.relays[0].unresolved(std::io::ErrorKind::TimedOut.into());
        let (client, shared) = self.start(clock, found.unwrap_or_else(|_| Err(late())))?;
        let first_word = poll_fn(|context| {
            shared.poll(context, |member| member.first_word(clock.now().since(Time::ZERO)))
        });
        let left = timeout.saturating_sub(clock.now().since(Time::ZERO));
        match tokio::time::timeout(left, first_word).await {
            Ok(word) => word.map(|()| client),
            Err(_elapsed) => Err(shared.lock().unanswered(timeout)),
        }
    }

    /// A client that runs, and what it shares with its task. It is not in the world yet.
    #[cfg(feature = "tokio")]
    pub(crate) fn start(
        &self,
        clock: Clock,
        found: Result<Vec<SocketAddr>, ConnectError>,
    ) -> Result<(Client, Arc<Shared>), ConnectError> {
        let (member, relay) = self.member(clock, found)?;
        let shared = Arc::new(Shared::new(member, clock));
        let driver = Driver::new(Arc::clone(&shared));
        // From here on, dropping the client ends the task.
        let client = Client::new(Arc::clone(&shared));
        tokio::spawn(driver.map_err(|source| ConnectError::Socket { relay, source })?.run());
        Ok((client, shared))
    }

    #[cfg(feature = "tokio")]
    async fn look_up(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let mut found = Found::default();
        for relay in &self.relays {
            found.add(relay.resolved(tokio::net::lookup_host(&relay.0).await));
        }
        found.all()
    }

    /// Joins the world without a runtime: waits until a relay has taken the client.
    ///
    /// # Errors
    /// [`ConnectError`]: no address, no socket, no answer in time, or a refusal, each with what to
    /// do about it.
    pub fn connect_blocking(self) -> Result<PollClient, ConnectError> {
        let timeout = self.timeout;
        let mut client = self.open()?;
        client.wait_for_first_word(timeout)?;
        Ok(client)
    }

    /// A client without a runtime that joins the world while it is polled, and tries until it is
    /// taken. Only looking up host names waits, not addresses.
    ///
    /// # Errors
    /// [`ConnectError`]: no address or no socket.
    pub fn open(self) -> Result<PollClient, ConnectError> {
        let clock = Clock::start();
        let mut found = Found::default();
        for relay in &self.relays {
            found.add(relay.resolved(relay.0.to_socket_addrs()));
        }
        let (member, relay) = self.member(clock, found.all())?;
        let waker = Waker::new().map_err(|source| ConnectError::Socket { relay, source })?;
        Ok(PollClient::new(member, clock, Arc::new(waker)))
    }

    pub(crate) fn member(
        &self,
        clock: Clock,
        found: Result<Vec<SocketAddr>, ConnectError>,
    ) -> Result<(Member, SocketAddr), ConnectError> {
        let missing = || self.relays[0].unresolved(std::io::ErrorKind::NotFound.into());
        let found = found?;
        if self.token.len() > MAX_TOKEN_LEN {
            return Err(ConnectError::LongToken { bytes: self.token.len() });
        }
        let is_away = |relay: &&SocketAddr| !relay.ip().to_canonical().is_loopback();
        let is_known = self.relay_key.is_some() || self.trusts_any_relay;
        if let Some(relay) = found.iter().find(is_away).filter(|_| !is_known) {
            return Err(ConnectError::UnknownRelay { relay: *relay });
        }
        let relays = Relays::new(found).ok_or_else(missing)?;
        let relay = relays.current();
        let config = MemberConfig {
            comtree: self.comtree,
            relay_key: self.relay_key.map(|RelayKey(key)| key),
            identity: self.key.as_ref().map(ClientKey::identity),
            token: self.token.clone(),
            resumption: self.resumption.clone(),
            max_datagram: self.max_datagram,
            receive_queue: self.receive_queue,
            receive_offload: self.receive_offload,
            is_kept: self.is_kept,
        };
        Ok((Member::open(clock.now(), relays, &config)?, relay))
    }
}

/// What looking up the relays' names has brought.
#[derive(Default)]
struct Found {
    addresses: Vec<SocketAddr>,
    errors: Vec<ConnectError>,
}

impl Found {
    fn add(&mut self, found: Result<Vec<SocketAddr>, ConnectError>) {
        match found {
            Ok(addresses) => self.addresses.extend(addresses),
            Err(error) => self.errors.push(error),
        }
    }

    /// All addresses. A name that has none is passed over, unless no other has one.
    fn all(mut self) -> Result<Vec<SocketAddr>, ConnectError> {
        if !self.addresses.is_empty() {
            return Ok(self.addresses);
        }
        match self.errors.len() {
            1 => Err(self.errors.remove(0)),
            _ => Err(ConnectError::NoneOf { errors: self.errors }),
        }
    }
}
