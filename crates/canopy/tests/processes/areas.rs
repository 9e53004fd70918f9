//! A controller divides a world, two relays carry it, and walkers follow: areas are split and merged
//! under them, the controller is killed halfway, and each update is heard once.

use crate::support::{Server, run};
use canopy_client::areas::Areas;
use canopy_client::{Client, Event, Group, Level, PollClient, RelayKey, Update};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(50);
const WALKERS: usize = 10;
/// A step of a walker. Those who walk together stay well within the ring, whose radius is 40.
const STEP: f64 = 1.0;

fn start_controller(folder: &Path, listen: &str) -> Server {
    let dir = folder.to_str().unwrap();
    Server::start(&[
        "controller",
        "--dir",
        dir,
        "--json",
        "--listen",
        listen,
        "--api",
        "127.0.0.1:0",
    ])
}

fn start_relay(folder: &Path, controller: &Server, name: &str) -> Server {
    let key = folder.join(format!("{name}.key"));
    let (listen, of) = (controller.address("listen").to_string(), &controller.ready["key"]);
    let flags = ["--threads", "1", "--key", key.to_str().unwrap(), "--name", name];
    let called = ["--controller", &listen, "--controller-key", of.as_str().unwrap()];
    Server::relay(&[&flags[..], &called].concat())
}

fn command(folder: &Path, args: &[&str]) -> Result<Value, String> {
    let of = ["--controller-dir", folder.to_str().unwrap(), "--json"];
    let done = run(&[args, &of[..]].concat());
    match done.status.success() {
        true => Ok(serde_json::from_slice(&done.stdout).unwrap()),
        false => Err(String::from_utf8(done.stderr).unwrap()),
    }
}

/// Tries a command until it does what it should.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(TICK);
    }
}

/// Half of the walkers are game loops without a runtime.
enum Walking {
    Task(Client),
    Loop(Box<PollClient>),
}

impl Walking {
    async fn join(controller: &Server, number: usize) -> Walking {
        let key: RelayKey = controller.ready["key"].as_str().unwrap().parse().unwrap();
        // Unmeasured: the relays are taken in turn, by their free places.
        let at = controller.address("listen");
        let join = PollClient::join(at, key, "w").measure(Duration::ZERO);
        // They alternate by pairs, so that both kinds are at both relays.
        if number % 4 < 2 {
            return Walking::Task(join.connect().await.unwrap());
        }
        let mut joining = join.open().unwrap();
        loop {
            if let Some(joined) = joining.poll() {
                return Walking::Loop(Box::new(joined.unwrap()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The frame of a game loop; a client with a task has none.
    fn poll(&mut self) {
        if let Walking::Loop(client) = self {
            assert!(client.poll());
        }
    }

    fn stand_at(&mut self, position: [f64; 2]) -> Option<Group> {
        match self {
            Walking::Task(client) => client.stand_at(position),
            Walking::Loop(client) => client.stand_at(position),
        }
    }

    fn publish(&mut self, group: Group, payload: &[u8]) {
        match self {
            Walking::Task(client) => client.publish(group, Level(0), payload),
            Walking::Loop(client) => client.publish(group, Level(0), payload),
        }
        .unwrap();
    }

    fn try_recv(&mut self) -> Option<Update> {
        match self {
            Walking::Task(client) => client.try_recv(),
            Walking::Loop(client) => client.try_recv(),
        }
    }

    fn try_next_event(&mut self) -> Option<Event> {
        match self {
            Walking::Task(client) => client.try_next_event(),
            Walking::Loop(client) => client.try_next_event(),
        }
    }

    fn areas(&self) -> Option<Areas> {
        match self {
            Walking::Task(client) => client.areas(),
            Walking::Loop(client) => client.areas().cloned(),
        }
    }

    fn relay(&self) -> SocketAddr {
        match self {
            Walking::Task(client) => client.relay(),
            Walking::Loop(client) => client.relay(),
        }
    }

    async fn leave(&mut self) {
        match self {
            Walking::Task(client) => client.leave().await,
            Walking::Loop(client) => {
                client.leave();
                while client.poll() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

struct Walker {
    client: Walking,
    position: [f64; 2],
    goal: [f64; 2],
    /// How often each update was heard, by its publisher and number.
    heard: BTreeMap<(u8, u32), u32>,
    changes: u64,
}

struct Walkers {
    all: Vec<Walker>,
    /// What was published while everybody followed: by whom, and the others who walk with it.
    published: Vec<((u8, u32), Vec<usize>)>,
    next: u32,
}

impl Walkers {
    async fn join(controller: &Server) -> Walkers {
        let mut all = Vec::new();
        for number in 0..WALKERS {
            let client = Walking::join(controller, number).await;
            let position = [45.0 + number as f64, 50.0];
            let (heard, goal) = (BTreeMap::new(), position);
            all.push(Walker { client, position, goal, heard, changes: 0 });
        }
        Walkers { all, published: Vec::new(), next: 0 }
    }

    /// Everybody walks, publishes and hears for a tick.
    async fn tick(&mut self) {
        self.next += 1;
        for number in 0..self.all.len() {
            self.hear(number);
            let walker = &mut self.all[number];
            for (at, goal) in walker.position.iter_mut().zip(walker.goal) {
                *at += (goal - *at).clamp(-STEP, STEP);
            }
            let Some(group) = walker.client.stand_at(walker.position) else { continue };
            let update = (number as u8, self.next);
            let payload = [&[update.0][..], &update.1.to_be_bytes()].concat();
            walker.client.publish(group, &payload);
            let goal = self.all[number].goal;
            let is_with = |other: &usize| *other != number && self.all[*other].goal[1] == goal[1];
            self.published.push((update, (0..self.all.len()).filter(is_with).collect()));
        }
        tokio::time::sleep(TICK).await;
    }

    fn hear(&mut self, number: usize) {
        let walker = &mut self.all[number];
        walker.client.poll();
        while let Some(update) = walker.client.try_recv() {
            let (from, at) = update.payload.split_at(1);
            let at = u32::from_be_bytes(at.try_into().unwrap());
            *walker.heard.entry((from[0], at)).or_default() += 1;
        }
        while let Some(event) = walker.client.try_next_event() {
            walker.changes += u64::from(matches!(event, Event::AreasChanged { .. }));
        }
    }

    async fn ticks_until(&mut self, what: &str, mut is_so: impl FnMut(&Walkers) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.all[0].client.areas());
            self.tick().await;
        }
    }

    fn step(&self, wanted: impl Fn(u64) -> bool) -> bool {
        let areas = self.all.iter().map(|walker| walker.client.areas());
        areas.into_iter().all(|areas| areas.is_some_and(|areas| wanted(areas.step)))
    }

    fn splits(&self) -> usize {
        self.all[0].client.areas().map_or(0, |areas| areas.in_force().splits.len())
    }

    /// Everything that was published was heard once by those who walk together, and never twice.
    async fn check(&mut self) {
        for _ in 0..20 {
            (0..self.all.len()).for_each(|number| self.hear(number));
            tokio::time::sleep(TICK).await;
        }
        let twice = self.all.iter().flat_map(|walker| &walker.heard).find(|(_, times)| **times > 1);
        assert_eq!(twice, None, "an update was heard twice");
        for (update, by) in std::mem::take(&mut self.published) {
            for walker in by {
                let is_heard = self.all[walker].heard.contains_key(&update);
                assert!(is_heard, "{walker} has not heard {update:?} of {}", self.next);
            }
        }
    }
}

#[test]
fn areas_are_split_and_merged_under_walkers_who_hear_each_update_once() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let controller = start_controller(dir, "127.0.0.1:0");
    let _relays = ["r1", "r2"].map(|name| start_relay(dir, &controller, name));
    until("the relays are up", || {
        let told = command(dir, &["relay", "list"]).unwrap();
        told["relays"].as_array().unwrap().iter().filter(|of| of["state"] == "up").count() == 2
    });
    command(dir, &["world", "create", "w", "--channel", "ground=0-99"]).unwrap();
    let set = |more: &[&str]| {
        let args = ["world", "areas", "set", "w", "--ring", "40", "--split-above", "6"];
        command(dir, &[&args[..], more].concat())
    };
    let refused = set(&["--grid", "1", "--over", "0,0,200,200"]).unwrap_err();
    assert!(refused.contains("40000 areas, and 100 groups"), "{refused}");
    set(&["--grid", "100", "--over", "0,0,200,200", "--deepest", "2"]).unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _again = runtime.block_on(async {
        let mut walkers = Walkers::join(&controller).await;
        let at = |of: &Walker| (matches!(of.client, Walking::Loop(_)), of.client.relay());
        let kinds: BTreeSet<_> = walkers.all.iter().map(at).collect();
        assert_eq!(kinds.len(), 4, "both kinds are at both relays");
        // Subscriptions of the first moment are not there yet for what is published then.
        walkers.ticks_until("all follow", |walkers| walkers.step(|_| true)).await;
        for _ in 0..20 {
            walkers.tick().await;
        }
        walkers.published.clear();

        // All are in one area, which is split. The controller dies in the middle of it.
        walkers.ticks_until("a split begins", |walkers| walkers.step(|step| step >= 1)).await;
        let listen = controller.address("listen").to_string();
        controller.kill();
        for _ in 0..20 {
            walkers.tick().await;
        }
        let again = start_controller(dir, &listen);
        walkers.ticks_until("it is split", |walkers| walkers.splits() > 0).await;
        let is_settled = |step: u64| step >= 3 && step.is_multiple_of(3);
        walkers.ticks_until("it is settled", |walkers| walkers.step(is_settled)).await;
        walkers.check().await;

        // They part, and what is empty is merged.
        for (number, walker) in walkers.all.iter_mut().enumerate() {
            walker.goal[1] = [115.0, 135.0, 165.0, 185.0][number % 4];
            walker.goal[0] += if number % 2 == 0 { 0.0 } else { 100.0 };
        }
        walkers.published.clear();
        walkers.ticks_until("it is merged", |walkers| walkers.splits() == 0).await;
        walkers.ticks_until("it is settled", |walkers| walkers.step(is_settled)).await;
        walkers.check().await;
        assert!(walkers.all.iter().all(|walker| walker.changes >= 3), "update alerts");
        for walker in &mut walkers.all {
            walker.client.leave().await;
        }
        again
    });
    let shown = command(dir, &["world", "areas", "show", "w"]).unwrap();
    assert_eq!((&shown["phase"], shown["areas"].as_array().unwrap().len()), (&"settled".into(), 4));
}

#[test]
fn what_cannot_be_divided_is_refused_and_what_can_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let _controller = start_controller(dir, "127.0.0.1:0");
    command(dir, &["world", "create", "w", "--channel", "a=0-9", "--channel", "b=10-99"]).unwrap();
    let file = folder.path().join("land.geojson");
    let set = |more: &[&str]| {
        command(dir, &[&["world", "areas", "set", "w", "--ring", "40"][..], more].concat())
    };
    let land = |second: &str| {
        let square = "[[0,0],[9,0],[9,9],[0,9],[0,0]]";
        let polygon = |ring| format!("{{\"type\":\"Polygon\",\"coordinates\":[{ring}]}}");
        let feature = |ring| {
            format!("{{\"type\":\"Feature\",\"properties\":null,\"geometry\":{}}}", polygon(ring))
        };
        let features = [feature(square), feature(second)].join(",");
        let all = format!("{{\"type\":\"FeatureCollection\",\"features\":[{features}]}}");
        std::fs::write(&file, all).unwrap();
        set(&["--channel", "b", "--geojson", file.to_str().unwrap()])
    };
    let missing = command(dir, &["world", "areas", "show", "w"]).unwrap_err();
    assert!(
        missing.contains("it has no areas") && missing.contains("divide it first"),
        "{missing}"
    );
    let refused = land("[[8,0],[18,0],[18,9],[8,9],[8,0]]").unwrap_err();
    assert!(refused.contains("polygon 0 and polygon 1 overlap"), "{refused}");
    let refused = land("[[20,0],[30,9],[30,0],[20,9],[20,0]]").unwrap_err();
    assert!(refused.contains("polygon 1"), "{refused}");
    let hex = ["--hex", "50", "--over", "0,0,100,100"];
    let refused = set(&hex).unwrap_err();
    assert!(refused.contains("the world has 2 channels"), "{refused}");
    let refused = set(&[&hex[..], &["--channel", "c"]].concat()).unwrap_err();
    assert!(refused.contains("has no channel c"), "{refused}");

    land("[[9,0],[18,0],[18,9],[9,9],[9,0]]").unwrap();
    let picture = folder.path().join("land.svg");
    let shown =
        command(dir, &["world", "areas", "show", "w", "--svg", picture.to_str().unwrap()]).unwrap();
    assert_eq!(shown["areas"][1]["group"], 11);
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("area 1: 0 there"), "{picture}");
}
