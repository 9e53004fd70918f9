//! A controller that answers what it is told to, and a relay to name.

use crate::bed::{Relay, settings};
use canopy_channel::{Channel, Hello, Reply};
use canopy_client::RelayKey;
use canopy_node::NodeConfig;
use canopy_session::Identity;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// A third of it is longer than a busy machine takes for a renewal.
pub(crate) const LEASE_MS: u64 = 900;
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Fails the test, instead of hanging, where nothing comes.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(LIMIT, future).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A controller that gives everybody one answer.
pub(crate) struct Controller {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
    answer: watch::Sender<Reply<Value>>,
    /// What it was asked.
    asked: mpsc::UnboundedReceiver<Hello>,
}

impl Controller {
    pub(crate) fn start(address: SocketAddr, answer: Reply<Value>) -> Controller {
        Controller::listen(Controller::bind(address), answer)
    }

    /// Its address; whoever calls there is refused before it listens.
    pub(crate) fn bind(address: SocketAddr) -> TcpSocket {
        // One that comes after another has its address.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }

    pub(crate) fn listen(socket: TcpSocket, answer: Reply<Value>) -> Controller {
        let listener = socket.listen(16).unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, asked) = mpsc::unbounded_channel();
        let (answer, answers) = watch::channel(answer);
        let task = tokio::spawn(serve(listener, answers, tell));
        Controller { address, task, answer, asked }
    }

    pub(crate) fn key() -> RelayKey {
        RelayKey::new(*identity().public())
    }

    /// It gives this answer from now on.
    pub(crate) fn answer(&self, answer: Reply<Value>) {
        self.answer.send_replace(answer);
    }

    pub(crate) async fn asked(&mut self) -> Hello {
        soon("a question", self.asked.recv()).await.unwrap()
    }

    /// What it was asked next, if anything.
    pub(crate) fn try_asked(&mut self) -> Option<Hello> {
        self.asked.try_recv().ok()
    }

    /// Ends it; nothing listens at its address then.
    pub(crate) async fn end(self) -> SocketAddr {
        self.task.abort();
        let _ = self.task.await;
        self.address
    }
}

fn identity() -> Identity {
    Identity::new([9; 32])
}

async fn serve(
    listener: TcpListener,
    answers: watch::Receiver<Reply<Value>>,
    tell: mpsc::UnboundedSender<Hello>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(mut channel) = Channel::accept(stream, &identity(), LIMIT).await else { continue };
        let Ok(hello) = channel.asked(LIMIT).await else { continue };
        let answer = answers.borrow().clone();
        let answered = match hello {
            Hello::Leave { .. } => {
                // Before the answer: whoever has left may look at once.
                let _ = tell.send(hello);
                let _ = channel.reply(&Reply::Done(json!({}))).await;
                continue;
            }
            Hello::Relays => {
                let Reply::Done(place) = &answer else { continue };
                channel.reply(&Reply::Done(json!({ "relays": [place["relay"]] }))).await
            }
            _ => channel.reply(&answer).await,
        };
        if answered.is_ok() {
            let _ = tell.send(hello);
        }
    }
}

/// A relay whose key is known.
pub(crate) fn start_relay() -> Relay {
    Relay::start(NodeConfig { identity: Some(relay_identity()), ..settings(1) })
}

pub(crate) fn relay_identity() -> Identity {
    Identity::new([3; 32])
}

/// A place at a relay that asks for no token.
pub(crate) fn place(name: &str, relay: &Relay, address: &str) -> Reply<Value> {
    let key = RelayKey::new(*relay_identity().public());
    Reply::Done(json!({
        "address": address, "token": "", "comtrees": [1], "lease_ms": LEASE_MS,
        "relay": { "name": name, "address": relay.address(), "key": key.to_string() },
    }))
}

pub(crate) fn refusal(what: &str) -> Reply<Value> {
    Reply::Refused(json!({ "what": what, "where": "world lobby", "remedy": "wait" }))
}
