//! Joining a world.

use crate::driver::Driver;
use crate::link::open_socket;
use crate::shared::Shared;
use crate::{Client, ConnectError, Event};
use canopy_session::SessionConfig;
use canopy_wire::Comtree;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Two seconds of a crowd of a hundred at twenty updates a second; at most 6 MB.
const DEFAULT_RECEIVE_QUEUE: usize = 4096;

/// How to join a world; made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    relay: SocketAddr,
    comtree: Comtree,
    timeout: Duration,
    receive_queue: usize,
    receive_offload: bool,
}

impl ClientBuilder {
    pub(crate) fn new(relay: SocketAddr) -> ClientBuilder {
        ClientBuilder {
            relay,
            comtree: Comtree(1),
            timeout: DEFAULT_TIMEOUT,
            receive_queue: DEFAULT_RECEIVE_QUEUE,
            receive_offload: true,
        }
    }

    /// The comtree of the world to join; 1 unless set.
    pub fn comtree(self, comtree: Comtree) -> ClientBuilder {
        ClientBuilder { comtree, ..self }
    }

    /// How long [`ClientBuilder::connect`] waits for the relay; 5 s unless set. Once connected a
    /// client never gives up.
    pub fn timeout(self, timeout: Duration) -> ClientBuilder {
        ClientBuilder { timeout, ..self }
    }

    /// How many updates may wait for [`Client::recv`] before the oldest are dropped; 4,096 unless
    /// set, at least 1.
    pub fn receive_queue(self, updates: usize) -> ClientBuilder {
        ClientBuilder { receive_queue: updates, ..self }
    }

    /// Whether the kernel may hand over several datagrams in one piece (`UDP_GRO`), which makes
    /// receiving in crowds several times cheaper; on unless set.
    pub fn receive_offload(self, on: bool) -> ClientBuilder {
        ClientBuilder { receive_offload: on, ..self }
    }

    /// Joins the world. A future that is dropped joins nothing.
    ///
    /// # Errors
    /// [`ConnectError`]: no socket, no answer in time, or a refusal, each with what to do about it.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one without I/O or time.
    pub async fn connect(self) -> Result<Client, ConnectError> {
        let relay = self.relay;
        let no_socket = |source| ConnectError::Socket { relay, source };
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(|error| ConnectError::Random(error.into()))?;
        let socket = open_socket(relay, self.receive_offload).map_err(no_socket)?;
        let session = SessionConfig { comtree: self.comtree, seed };
        let shared = Arc::new(Shared::new(relay, session, Arc::clone(&socket), self.receive_queue));
        let driver = Driver::new(Arc::clone(&shared), socket, self.receive_offload);
        // From here on, dropping the client ends the task.
        let client = Client::new(shared);
        tokio::spawn(driver.map_err(no_socket)?.run());
        match tokio::time::timeout(self.timeout, self.first_word(&client)).await {
            Ok(Ok(())) => Ok(client),
            Ok(Err(error)) => Err(error),
            Err(_elapsed) => Err(self.unanswered(&client)),
        }
    }

    /// Waits until the relay has taken or refused the client.
    async fn first_word(&self, client: &Client) -> Result<(), ConnectError> {
        let (relay, comtree) = (self.relay, self.comtree);
        loop {
            match client.next_event().await {
                Some(Event::Connected(_)) => return Ok(()),
                Some(Event::Refused(reason)) => {
                    return Err(ConnectError::Refused { relay, comtree, reason });
                }
                Some(_) => {}
                // The runtime is being shut down.
                None => return Err(self.unanswered(client)),
            }
        }
    }

    fn unanswered(&self, client: &Client) -> ConnectError {
        let (other_version, nothing_listens) = client.first_impressions();
        if other_version {
            return ConnectError::Incompatible { relay: self.relay };
        }
        ConnectError::Unreachable { relay: self.relay, waited: self.timeout, nothing_listens }
    }
}
