//! Clients that joined through a controller, while it is there, while it is away, and when it refuses.

mod bed;

use bed::{Relay, settings};
use canopy_channel::{Channel, Hello, Reply};
use canopy_client::{Client, Event, Group, Level, RelayKey};
use canopy_node::Command;
use canopy_session::Identity;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const GROUP: Group = Group::new(7);
/// A third of it is longer than a busy machine takes for a renewal.
const LEASE_MS: u64 = 900;
const LIMIT: Duration = Duration::from_secs(60);

/// Fails the test, instead of hanging, where nothing comes.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(LIMIT, future).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// A controller that gives everybody one answer.
struct Controller {
    address: SocketAddr,
    task: JoinHandle<()>,
    /// What it was asked.
    asked: mpsc::UnboundedReceiver<Hello>,
}

impl Controller {
    fn start(address: SocketAddr, answer: Reply<Value>) -> Controller {
        // One that comes after another has its address.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(16).unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, asked) = mpsc::unbounded_channel();
        let task = tokio::spawn(serve(listener, answer, tell));
        Controller { address, task, asked }
    }

    fn key() -> RelayKey {
        RelayKey::new(*identity().public())
    }

    async fn asked(&mut self) -> Hello {
        soon("a question", self.asked.recv()).await.unwrap()
    }

    /// Ends it; nothing listens at its address then.
    async fn end(self) -> SocketAddr {
        self.task.abort();
        let _ = self.task.await;
        self.address
    }
}

fn identity() -> Identity {
    Identity::new([9; 32])
}

async fn serve(listener: TcpListener, answer: Reply<Value>, tell: mpsc::UnboundedSender<Hello>) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(mut channel) = Channel::accept(stream, &identity(), LIMIT).await else { continue };
        let Ok(hello) = channel.asked(LIMIT).await else { continue };
        let answered = match hello {
            Hello::Leave { .. } => channel.reply(&Reply::Done(json!({}))).await,
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

/// A place at a relay that asks for no token.
fn place(relay: &Relay, key: RelayKey) -> Reply<Value> {
    Reply::Done(json!({
        "address": "1.64", "token": "", "comtrees": [1], "lease_ms": LEASE_MS,
        "relay": { "name": "eu-1", "address": relay.address(), "key": key.to_string() },
    }))
}

fn refusal(what: &str) -> Reply<Value> {
    Reply::Refused(json!({ "what": what, "where": "world lobby", "remedy": "wait" }))
}

/// A relay, its place, and a client that has joined it.
async fn joined() -> (Relay, Reply<Value>, Controller, Client) {
    joined_measuring(Duration::ZERO).await
}

async fn joined_measuring(most: Duration) -> (Relay, Reply<Value>, Controller, Client) {
    let identity = Identity::new([3; 32]);
    let key = RelayKey::new(*identity.public());
    let relay = Relay::start(canopy_node::NodeConfig { identity: Some(identity), ..settings(1) });
    let place = place(&relay, key);
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), place.clone());
    let join = Client::join(controller.address.to_string(), Controller::key(), "lobby");
    let client = join.measure(most).timeout(LIMIT).connect().await.unwrap();
    (relay, place, controller, client)
}

/// Waits for the next refusal that the client is told of.
async fn not_let_in(client: &Client) -> String {
    let wait = async {
        loop {
            let event = client.next_event().await.expect("the world was left");
            if let Event::NotLetIn(why) = event {
                return why.what;
            }
        }
    };
    soon("a refusal", wait).await
}

#[tokio::test]
async fn a_lease_is_renewed_and_a_controller_that_is_away_changes_nothing() {
    let (relay, place, mut controller, client) = joined().await;
    assert!(matches!(controller.asked().await, Hello::Join(_)));
    for _ in 0..3 {
        assert!(matches!(controller.asked().await, Hello::Renew(_)));
    }
    let address = controller.end().await;
    let hearer = Client::builder(relay.address()).timeout(LIMIT).connect().await.unwrap();
    soon("an ack", hearer.subscribe(GROUP, Level(0))).await.unwrap();
    // Longer than the lease that the client had last.
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_millis(2 * LEASE_MS) {
        client.publish(GROUP, Level(0), b"still here").unwrap();
        let update = soon("an update", hearer.recv()).await.unwrap();
        assert_eq!(update.payload[..], *b"still here");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.stats().connects, 1, "the session is the same");
    let mut controller = Controller::start(address, place);
    assert!(matches!(controller.asked().await, Hello::Renew(_)), "it is asked again");
    client.leave().await;
    while !matches!(controller.asked().await, Hello::Leave { .. }) {}
    controller.end().await;
    hearer.leave().await;
    relay.end(Command::Stop);
}

#[tokio::test]
async fn a_refusal_is_told_once_for_each_reason() {
    let (relay, _, controller, client) = joined().await;
    let address = controller.end().await;
    let mut controller = Controller::start(address, refusal("it closes"));
    assert_eq!(not_let_in(&client).await, "it closes");
    // It goes on asking, and is refused, and says nothing of it.
    for _ in 0..2 {
        controller.asked().await;
    }
    let address = controller.end().await;
    let controller = Controller::start(address, refusal("you are barred"));
    assert_eq!(not_let_in(&client).await, "you are barred", "the first was told once");
    client.leave().await;
    controller.end().await;
    relay.end(Command::Stop);
}

#[tokio::test]
async fn relays_are_measured_again_and_who_has_a_nearer_one_may_move() {
    let (relay, _, mut controller, client) = joined_measuring(Duration::from_millis(100)).await;
    assert!(matches!(controller.asked().await, Hello::Relays));
    assert!(matches!(controller.asked().await, Hello::Join(_)));
    let mut renewals = 0;
    let asked = loop {
        match controller.asked().await {
            Hello::Renew(_) => renewals += 1,
            Hello::Relays => {}
            Hello::Move(asked) => break asked,
            other => panic!("{other:?}"),
        }
    };
    assert!((1..=10).contains(&renewals), "with one renewal in ten: {renewals}");
    assert_eq!(asked.measured[0].relay, "eu-1");
    assert!(matches!(controller.asked().await, Hello::Renew(_)), "it was named the same relay");
    assert_eq!(client.stats().connects, 1);
    client.leave().await;
    controller.end().await;
    relay.end(Command::Stop);
}
