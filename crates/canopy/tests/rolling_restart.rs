//! All relays are drained, stopped and started again, one after the other, while clients publish and listen:
//! everybody hears every update once, and each publisher's in order, also across the addresses that it has one after the
//! other.

mod support;

use canopy_client::{
    Client, ClientKey, Event, Group, Incoming, JoinBuilder, Level, Participant, PollClient,
    RelayKey,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};
use support::{Server, canopy};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The one that takes its time.
const LONG_AWAY: &str = "r2";
const GROUP: Group = Group::new(7);
/// Who publishes, and listens as well, in turn.
const KINDS: [Kind; 3] = [Kind::Tokio, Kind::Polled, Kind::LetIn];
/// 40 updates a second.
const STEP: Duration = Duration::from_millis(25);
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    folder: tempfile::TempDir,
    controller: Server,
    relays: BTreeMap<String, Server>,
}

impl Cluster {
    /// With so many relays.
    async fn start(relays: usize) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap().to_owned();
        // Members renew three times as often as this, and hear then that their relay drains.
        let flags = ["controller", "--dir", &dir, "--json", "--lease", "10", "--degree", "2"];
        let at = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
        let controller = Server::start(&[&flags[..], &at].concat());
        let mut cluster = Cluster { folder, controller, relays: BTreeMap::new() };
        (1..=relays).for_each(|number| cluster.start_relay(&format!("r{number}")));
        cluster.until_all_are("up").await;
        cluster.tell(&["world", "create", "w"]).await;
        cluster
    }

    fn start_relay(&mut self, name: &str) {
        let key = self.folder.path().join(format!("{name}.key"));
        let listen = self.controller.address("listen").to_string();
        let controller_key = self.controller.ready["key"].as_str().unwrap();
        let flags = ["--threads", "1", "--key", key.to_str().unwrap(), "--name", name];
        let to = ["--controller", &listen, "--controller-key", controller_key];
        let relay = Server::relay(&[&flags[..], &to].concat());
        self.relays.insert(name.to_owned(), relay);
    }

    /// What a command says that operates the controller.
    async fn tell(&self, words: &[&str]) -> Value {
        let dir = self.folder.path().to_str().unwrap().to_owned();
        let mut command = canopy(words);
        command.args(["--json", "--controller-dir", &dir]).stderr(Stdio::piped());
        let done = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let why = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{words:?}: {why}");
        serde_json::from_slice(&done.stdout).unwrap()
    }

    async fn relay(&self, name: &str) -> Value {
        let told = self.tell(&["relay", "list"]).await;
        let mut relays = told["relays"].as_array().unwrap().iter();
        relays.find(|relay| relay["name"] == name).cloned().unwrap_or_default()
    }

    async fn until_it_is(&self, name: &str, state: &str) {
        let began = Instant::now();
        while self.relay(name).await["state"] != state {
            assert!(began.elapsed() < PATIENCE, "{name} is not {state}");
        }
    }

    async fn until_all_are(&self, state: &str) {
        let began = Instant::now();
        loop {
            let told = self.tell(&["relay", "list"]).await;
            let relays = told["relays"].as_array().unwrap();
            let are = relays.iter().filter(|relay| relay["state"] == state).count();
            if are == self.relays.len() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the relays are not all {state}: {told}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn joining(&self) -> JoinBuilder {
        let key: RelayKey = self.controller.ready["key"].as_str().unwrap().parse().unwrap();
        let join = Client::join(self.controller.address("listen"), key, "w");
        join.receive_queue(100_000).timeout(PATIENCE)
    }

    async fn join(&self, kind: Kind) -> World {
        match kind {
            Kind::Tokio => World::Tokio(self.joining().connect().await.unwrap()),
            Kind::Polled => World::polled(self.joining()).await,
            Kind::LetIn => {
                let key = ClientKey::generate().unwrap();
                let token = self.let_in(&key.public());
                World::polled(self.joining().key(key).let_in(token)).await
            }
        }
    }

    /// A backend lets somebody in who has this key.
    fn let_in(&self, key: &str) -> String {
        let secret = std::fs::read_to_string(self.folder.path().join("api.secret")).unwrap();
        let body = json!({ "subject": "player", "client_key": key }).to_string();
        let mut stream = TcpStream::connect(self.controller.address("api")).unwrap();
        let head = format!(
            "POST /v1/worlds/w/members HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            secret.trim(),
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let let_in: Value = serde_json::from_str(body).unwrap();
        let_in["token"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

/// What kind of a client it is.
#[derive(Clone, Copy)]
enum Kind {
    Tokio,
    /// A game loop of its own, without a runtime.
    Polled,
    /// The same, and a backend answers for it.
    LetIn,
}

enum World {
    Tokio(Client),
    Polled(Box<PollClient>),
}

/// What a client is to do.
enum Order {
    /// Say your number, and that it is this round of calls.
    Call(u8),
    Publish,
    /// Say how many updates you have published, and publish no more.
    Stop(oneshot::Sender<u64>),
    Leave,
}

/// A client that does what it is told, and hears all the while.
struct Player {
    orders: UnboundedSender<Order>,
    task: JoinHandle<Heard>,
}

/// What somebody has heard: by publisher the numbers, and from which address, in the order in which they came.
#[derive(Debug, Default)]
struct Heard {
    of: BTreeMap<u64, Vec<(u64, Participant)>>,
    /// How old an update was at most.
    oldest: Duration,
    moves: u32,
    lost: u32,
    doubled: u64,
}

/// What somebody has heard of somebody else: both, and which round of calls it was.
type Call = (u64, u64, u8);

/// A client's own work: what it has published, whose numbers go on over all its addresses.
struct Work {
    number: u64,
    /// From when on everybody counts the time.
    began: Instant,
    published: u64,
    /// When it publishes next, while it does.
    next: Option<Instant>,
    heard: Heard,
    called: UnboundedSender<Call>,
}

impl Work {
    fn take(&mut self, incoming: Incoming) {
        let heard = &mut self.heard;
        match incoming {
            Incoming::Update(update) => {
                let (number, count) = update.payload.split_at(8);
                let read = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
                if let [round] = count {
                    // Nobody may be waiting for it any more.
                    let _ = self.called.send((self.number, read(number), *round));
                    return;
                }
                let (count, at) = count.split_at(8);
                let age = self.began.elapsed().saturating_sub(Duration::from_micros(read(at)));
                heard.oldest = heard.oldest.max(age);
                heard.of.entry(read(number)).or_default().push((read(count), update.from));
            }
            Incoming::Event(Event::Moved { .. }) => heard.moves += 1,
            Incoming::Event(Event::Lost) => heard.lost += 1,
            _ => {}
        }
    }

    /// What is to be published now.
    fn due(&mut self) -> Option<Vec<u8>> {
        let next = self.next.as_mut().filter(|next| **next <= Instant::now())?;
        *next += STEP;
        self.published += 1;
        let at = self.began.elapsed().as_micros() as u64;
        Some([self.number, self.published - 1, at].map(u64::to_be_bytes).concat())
    }

    /// Does what it is told. Returns what is to be published, or that it is to leave.
    fn obey(&mut self, order: Order) -> Option<Option<Vec<u8>>> {
        match order {
            Order::Call(round) => Some(Some([&self.number.to_be_bytes()[..], &[round]].concat())),
            Order::Publish => {
                self.next = Some(Instant::now());
                None
            }
            Order::Stop(tell) => {
                self.next = None;
                let _ = tell.send(self.published);
                None
            }
            Order::Leave => Some(None),
        }
    }
}

impl World {
    async fn polled(join: JoinBuilder) -> World {
        let joining = tokio::task::spawn_blocking(move || join.connect_blocking());
        World::Polled(Box::new(joining.await.unwrap().unwrap()))
    }

    fn play(self, number: u64, began: Instant, called: UnboundedSender<Call>) -> Player {
        let (next, heard) = (None, Heard::default());
        let work = Work { number, began, published: 0, next, heard, called };
        let (orders, told) = unbounded_channel();
        let task = match self {
            World::Tokio(client) => tokio::spawn(play(client, told, work)),
            World::Polled(client) => tokio::task::spawn_blocking(|| poll(*client, told, work)),
        };
        Player { orders, task }
    }
}

async fn play(client: Client, mut told: UnboundedReceiver<Order>, mut work: Work) -> Heard {
    client.subscribe(GROUP, Level(0)).await.unwrap();
    let publish = |text: Vec<u8>| {
        client.publish(GROUP, Level(0), &text).expect("it is connected all the time");
    };
    loop {
        work.due().into_iter().for_each(publish);
        let next = work.next.unwrap_or_else(|| Instant::now() + PATIENCE);
        tokio::select! {
            Some(incoming) = client.next() => work.take(incoming),
            Some(order) = told.recv() => match work.obey(order) {
                Some(Some(text)) => publish(text),
                Some(None) => break,
                None => {}
            },
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
    work.heard.doubled = client.stats().doubled;
    client.leave().await;
    work.heard
}

/// A game loop.
fn poll(mut client: PollClient, mut told: UnboundedReceiver<Order>, mut work: Work) -> Heard {
    let change = client.subscribe(GROUP, Level(0));
    while change.result().is_none() {
        client.wait(STEP);
    }
    change.result().unwrap().unwrap();
    while client.poll() {
        while let Some(incoming) = client.try_next() {
            work.take(incoming);
        }
        while let Ok(order) = told.try_recv() {
            match work.obey(order) {
                Some(Some(text)) => {
                    client.publish(GROUP, Level(0), &text).expect("it is connected all the time");
                }
                Some(None) => {
                    work.heard.doubled = client.stats().doubled;
                    client.leave();
                }
                None => {}
            }
        }
        while let Some(text) = work.due() {
            client.publish(GROUP, Level(0), &text).expect("it is connected all the time");
        }
        client.wait(STEP / 5);
    }
    work.heard
}

impl Player {
    fn tell(&self, order: Order) {
        self.orders.send(order).expect("it plays");
    }

    async fn stop(&self) -> u64 {
        let (tell, told) = oneshot::channel();
        self.tell(Order::Stop(tell));
        told.await.unwrap()
    }
}

/// Everybody calls until everybody has heard everybody else. So what is asked of relays has reached those
/// above them; and as each publisher's updates come in order, what was published before has come, too.
async fn until_all_hear_all(players: &[Player], calls: &mut UnboundedReceiver<Call>, round: u8) {
    let numbers = || 0..players.len() as u64;
    let pairs = numbers().flat_map(|one| numbers().map(move |other| (one, other)));
    let mut missing: BTreeSet<_> = pairs.filter(|(one, other)| one != other).collect();
    let began = Instant::now();
    while !missing.is_empty() {
        assert!(began.elapsed() < PATIENCE, "who has not heard whom: {missing:?}");
        players.iter().for_each(|player| player.tell(Order::Call(round)));
        let heard = async {
            while !missing.is_empty() {
                let (listener, of, which) = calls.recv().await.expect("the players listen");
                if which == round {
                    missing.remove(&(listener, of));
                }
            }
        };
        // Some calls went nowhere.
        let _ = tokio::time::timeout(2 * STEP, heard).await;
    }
}

impl Cluster {
    /// Drains all relays, stops them and starts them again, one after the other.
    async fn restart_all(&mut self) {
        let names: Vec<String> = self.relays.keys().cloned().collect();
        for name in &names {
            let at = Instant::now();
            let there = self.relay(name).await["members"].clone();
            let drained = self.tell(&["relay", "drain", name, "--wait", "120"]).await;
            assert_eq!((&drained["members"], &drained["comtrees"]), (&json!(0), &json!(0)));
            let empty = at.elapsed();
            self.relays.remove(name).unwrap().terminate();
            if name == LONG_AWAY {
                // The controller gives it up meanwhile, and lets it serve when it is back.
                self.until_it_is(name, "gone").await;
                self.start_relay(name);
            } else {
                self.start_relay(name);
                self.tell(&["relay", "drain", name, "--undo"]).await;
            }
            self.until_all_are("up").await;
            println!(
                "{name}: {there} members, empty after {empty:?}, back after {:?}",
                at.elapsed()
            );
        }
    }
}

#[tokio::test]
async fn a_rolling_restart_of_all_relays_loses_and_doubles_no_update() {
    restart_all_of(3, 6).await;
}

#[tokio::test]
#[ignore = "takes two minutes, and a machine that does nothing else"]
async fn a_rolling_restart_of_eight_relays_with_a_crowd_loses_and_doubles_no_update() {
    restart_all_of(8, 16).await;
}

/// Restarts so many relays, one after the other, under so many clients.
async fn restart_all_of(relays: usize, clients: usize) {
    let began = Instant::now();
    let mut cluster = Cluster::start(relays).await;
    let (called, mut calls) = unbounded_channel();
    let mut players = Vec::new();
    for (number, kind) in (0..).zip(KINDS.into_iter().cycle().take(clients)) {
        players.push(cluster.join(kind).await.play(number, began, called.clone()));
    }
    until_all_hear_all(&players, &mut calls, 1).await;
    players.iter().for_each(|player| player.tell(Order::Publish));
    cluster.restart_all().await;
    let mut published = Vec::new();
    for player in &players {
        published.push(player.stop().await);
    }
    until_all_hear_all(&players, &mut calls, 2).await;
    players.iter().for_each(|player| player.tell(Order::Leave));
    let (mut moves, mut doubled, mut oldest) = (0, 0, Duration::ZERO);
    let mut wrong = Vec::new();
    for (listener, player) in players.into_iter().enumerate() {
        let heard = player.task.await.unwrap();
        moves += heard.moves;
        doubled += heard.doubled;
        oldest = oldest.max(heard.oldest);
        assert!(heard.moves > 0, "{listener} has moved");
        assert_eq!(heard.lost, 0, "{listener} has lost no relay");
        for (publisher, count) in (0..).zip(&published) {
            wrong.extend(faults(listener as u64, publisher, *count, &heard));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!(
        "{moves} moves, {published:?} updates published, {doubled} came twice and were taken once, the \
         oldest was {oldest:?} old; {:?}",
        began.elapsed()
    );
}

/// What is wrong with what somebody hears of a publisher: each update once and in order, from whatever address.
fn faults(listener: u64, publisher: u64, published: u64, heard: &Heard) -> Vec<String> {
    let nothing = Vec::new();
    let heard = heard.of.get(&publisher).unwrap_or(&nothing);
    if listener == publisher {
        return heard.first().map(|_| format!("{listener} hears itself")).into_iter().collect();
    }
    let mut wrong = Vec::new();
    for pair in heard.windows(2).filter(|pair| pair[0].0 >= pair[1].0) {
        wrong.push(format!("{listener} hears {publisher} out of order: {pair:?}"));
    }
    let mut times: BTreeMap<u64, u32> = (0..published).map(|number| (number, 0)).collect();
    heard.iter().for_each(|(number, _)| *times.entry(*number).or_default() += 1);
    let not_once: Vec<_> = times.into_iter().filter(|(_, times)| *times != 1).collect();
    if !not_once.is_empty() {
        wrong.push(format!("{listener} hears of {publisher}, with how often: {not_once:?}"));
    }
    wrong
}
