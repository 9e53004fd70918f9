//! All relays are drained, stopped and started again, one after the other, while clients publish and listen:
//! everybody hears every update once, and each publisher's in order.

mod support;

use canopy_client::{Client, Event, Group, Incoming, Level, Participant, RelayKey};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{Server, canopy};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

const RELAYS: [&str; 3] = ["r1", "r2", "r3"];
/// The one that takes its time.
const LONG_AWAY: &str = "r2";
const GROUP: Group = Group::new(7);
/// Who publishes, and listens as well.
const CLIENTS: usize = 6;
/// 40 updates a second.
const STEP: Duration = Duration::from_millis(25);
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    folder: tempfile::TempDir,
    controller: Server,
    relays: BTreeMap<&'static str, Server>,
}

impl Cluster {
    async fn start() -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_str().unwrap().to_owned();
        // Members renew three times as often as this, and hear then that their relay drains.
        let flags = ["controller", "--dir", &dir, "--json", "--lease", "10", "--degree", "2"];
        let at = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"];
        let controller = Server::start(&[&flags[..], &at].concat());
        let mut cluster = Cluster { folder, controller, relays: BTreeMap::new() };
        RELAYS.into_iter().for_each(|name| cluster.start_relay(name));
        cluster.until_all_are("up").await;
        cluster.tell(&["world", "create", "w"]).await;
        cluster
    }

    fn start_relay(&mut self, name: &'static str) {
        let key = self.folder.path().join(format!("{name}.key"));
        let listen = self.controller.address("listen").to_string();
        let controller_key = self.controller.ready["key"].as_str().unwrap();
        let flags = ["--threads", "1", "--key", key.to_str().unwrap(), "--name", name];
        let to = ["--controller", &listen, "--controller-key", controller_key];
        self.relays.insert(name, Server::relay(&[&flags[..], &to].concat()));
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
            if are == RELAYS.len() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the relays are not all {state}: {told}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn join(&self) -> Client {
        let key: RelayKey = self.controller.ready["key"].as_str().unwrap().parse().unwrap();
        let join = Client::join(self.controller.address("listen"), key, "w");
        join.receive_queue(100_000).timeout(PATIENCE).connect().await.unwrap()
    }
}

/// What somebody has published: the numbers of its updates, which go on over all its addresses.
struct Publisher {
    client: Client,
    stop: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

/// What somebody has heard: the numbers by publisher, and by its address, in the order in which they came.
#[derive(Debug, Default)]
struct Heard {
    of: BTreeMap<u64, BTreeMap<Participant, Vec<u64>>>,
    moves: u32,
    lost: u32,
}

impl Publisher {
    fn start(number: u64, client: Client) -> Publisher {
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, publisher) = (stop.clone(), client.clone());
        let task = tokio::spawn(async move {
            let mut published = 0_u64;
            let mut steps = tokio::time::interval(STEP);
            while !ends.load(Ordering::Relaxed) {
                steps.tick().await;
                let text = [number.to_be_bytes(), published.to_be_bytes()].concat();
                publisher.publish(GROUP, Level(0), &text).expect("it is connected all the time");
                published += 1;
            }
            published
        });
        Publisher { client, stop, task }
    }
}

/// What somebody has heard of somebody else: both, and which round of calls it was.
type Call = (u64, u64, u8);

/// Hears until its client has left, and tells of the calls that it hears.
async fn listen(listener: u64, client: Client, called: UnboundedSender<Call>) -> Heard {
    let mut heard = Heard::default();
    while let Some(incoming) = client.next().await {
        match incoming {
            Incoming::Update(update) => {
                let (number, count) = update.payload.split_at(8);
                let read = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
                if let [round] = count {
                    // Nobody may be waiting for it any more.
                    let _ = called.send((listener, read(number), *round));
                    continue;
                }
                let of = heard.of.entry(read(number)).or_default();
                of.entry(update.from).or_default().push(read(count));
            }
            Incoming::Event(Event::Moved { .. }) => heard.moves += 1,
            Incoming::Event(Event::Lost) => heard.lost += 1,
            _ => {}
        }
    }
    heard
}

/// Everybody calls until everybody has heard everybody else. So what is asked of relays has reached those
/// above them; and as each publisher's updates come in order, what was published before has come, too.
async fn until_all_hear_all(clients: &[Client], calls: &mut UnboundedReceiver<Call>, round: u8) {
    let numbers = || 0..clients.len() as u64;
    let pairs = numbers().flat_map(|one| numbers().map(move |other| (one, other)));
    let mut missing: BTreeSet<_> = pairs.filter(|(one, other)| one != other).collect();
    let began = Instant::now();
    while !missing.is_empty() {
        assert!(began.elapsed() < PATIENCE, "who has not heard whom: {missing:?}");
        for (number, client) in (0_u64..).zip(clients) {
            let call = [&number.to_be_bytes()[..], &[round]].concat();
            client.publish(GROUP, Level(0), &call).expect("it is connected all the time");
        }
        let heard = async {
            while !missing.is_empty() {
                let (listener, of, which) = calls.recv().await.expect("the listeners listen");
                if which == round {
                    missing.remove(&(listener, of));
                }
            }
        };
        // Some calls went nowhere.
        let _ = tokio::time::timeout(2 * STEP, heard).await;
    }
}

#[tokio::test]
async fn a_rolling_restart_of_all_relays_loses_and_doubles_no_update() {
    let began = Instant::now();
    let mut cluster = Cluster::start().await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = cluster.join().await;
        client.subscribe(GROUP, Level(0)).await.unwrap();
        clients.push(client);
    }
    let (called, mut calls) = unbounded_channel();
    let listen =
        |(number, of): (u64, &Client)| tokio::spawn(listen(number, of.clone(), called.clone()));
    let listeners: Vec<_> = (0..).zip(&clients).map(listen).collect();
    until_all_hear_all(&clients, &mut calls, 1).await;
    let publishers: Vec<_> =
        (0..).zip(clients).map(|(number, client)| Publisher::start(number, client)).collect();
    for name in RELAYS {
        let at = Instant::now();
        let there = cluster.relay(name).await["members"].clone();
        let drained = cluster.tell(&["relay", "drain", name, "--wait", "60"]).await;
        assert_eq!((&drained["members"], &drained["comtrees"]), (&json!(0), &json!(0)));
        let empty = at.elapsed();
        cluster.relays.remove(name).unwrap().terminate();
        if name == LONG_AWAY {
            // The controller gives it up meanwhile, and lets it serve when it is back.
            cluster.until_it_is(name, "gone").await;
            cluster.start_relay(name);
        } else {
            cluster.start_relay(name);
            cluster.tell(&["relay", "drain", name, "--undo"]).await;
        }
        cluster.until_all_are("up").await;
        println!("{name}: {there} members, empty after {empty:?}, back after {:?}", at.elapsed());
    }
    let mut published = Vec::new();
    for publisher in &publishers {
        publisher.stop.store(true, Ordering::Relaxed);
    }
    let mut clients = Vec::new();
    for publisher in publishers {
        published.push(publisher.task.await.unwrap());
        clients.push(publisher.client);
    }
    until_all_hear_all(&clients, &mut calls, 2).await;
    let doubled: u64 = clients.iter().map(|client| client.stats().doubled).sum();
    for client in clients {
        client.leave().await;
    }
    let mut moves = 0;
    let mut wrong = Vec::new();
    for (listener, task) in listeners.into_iter().enumerate() {
        let heard = task.await.unwrap();
        moves += heard.moves;
        assert_eq!(heard.lost, 0, "{listener} has lost no relay");
        for (publisher, count) in (0..).zip(&published) {
            wrong.extend(faults(listener as u64, publisher, *count, &heard));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!(
        "{moves} moves, {published:?} updates published, {doubled} came twice and were taken once; \
         {:?}",
        began.elapsed()
    );
    assert!(moves >= CLIENTS as u32, "everybody has moved: {moves}");
}

/// What is wrong with what somebody hears of a publisher: each update once, and in order from each address.
fn faults(listener: u64, publisher: u64, published: u64, heard: &Heard) -> Vec<String> {
    let nothing = BTreeMap::new();
    let by_address = heard.of.get(&publisher).unwrap_or(&nothing);
    if listener == publisher {
        return by_address.keys().map(|_| format!("{listener} hears itself")).collect();
    }
    let mut wrong = Vec::new();
    for (address, numbers) in by_address {
        if let Some(pair) = numbers.windows(2).find(|pair| pair[0] >= pair[1]) {
            wrong.push(format!("{listener} hears {publisher} at {address} out of order: {pair:?}"));
        }
    }
    let mut times: BTreeMap<u64, u32> = (0..published).map(|number| (number, 0)).collect();
    let numbers = by_address.values().flatten();
    numbers.for_each(|number| *times.entry(*number).or_default() += 1);
    let not_once: Vec<_> = times.into_iter().filter(|(_, times)| *times != 1).collect();
    if !not_once.is_empty() {
        wrong.push(format!("{listener} hears of {publisher}, with how often: {not_once:?}"));
    }
    wrong
}
