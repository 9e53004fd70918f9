//! A controller and its relays as processes: what they carry, and what becomes of it when one is killed.

use crate::support::{Server, canopy, get_until, round_trace, run};
use canopy_client::join::Ask;
use canopy_client::{Client, ClientKey, Event, Group, JoinBuilder, Level, Participant};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    controller: Option<Server>,
    /// More flags of the controller.
    more: Vec<String>,
    listen: SocketAddr,
    key: String,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::start_in(tempfile::tempdir().unwrap(), &[])
    }

    pub(crate) fn start_in(folder: tempfile::TempDir, more: &[&str]) -> Cluster {
        let controller = start_controller_with(folder.path(), "127.0.0.1:0", more);
        let key = controller.ready["key"].as_str().unwrap().to_owned();
        let listen = controller.address("listen");
        let more = more.iter().map(|flag| (*flag).to_owned()).collect();
        Cluster { folder, controller: Some(controller), more, listen, key }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn relay(&self, name: &str) -> Server {
        self.relay_with(name, "1")
    }

    /// A relay with so many data threads.
    pub(crate) fn relay_with(&self, name: &str, threads: &str) -> Server {
        self.relay_by(name, &["--threads", threads])
    }

    /// A relay with more flags.
    pub(crate) fn relay_by(&self, name: &str, more: &[&str]) -> Server {
        let (key, controller) = (self.path(&format!("{name}.key")), self.listen.to_string());
        let flags = ["--key", &key, "--name", name, "--controller", &controller];
        Server::relay(&[more, &flags, &["--controller-key", &self.key]].concat())
    }

    /// Where a crowd joins the world `w`.
    pub(crate) fn join_flags(&self) -> [String; 6] {
        let (listen, key) = (self.listen.to_string(), self.key.clone());
        ["--controller", &listen, "--controller-key", &key, "--world", "w"].map(str::to_owned)
    }

    /// What a command prints that an operator gives, or why it fails.
    fn operate(&self, command: &[&str]) -> Result<String, String> {
        let folder = self.folder.path().to_str().unwrap();
        let done = run(&[command, &["--controller-dir", folder]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    /// What a command prints once the world `w` is on no way to another tree.
    fn until_it_may(&self, command: &[&str]) -> String {
        let began = Instant::now();
        loop {
            match self.operate(command) {
                Err(why) if why.contains("on its way") && began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                result => return result.unwrap(),
            }
        }
    }

    /// What the API answers, whose status is to be 2xx.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.try_ask(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let api = self.controller.as_ref().unwrap().address("api");
        let secret = std::fs::read_to_string(self.folder.path().join("api.secret")).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(api).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            secret.trim(),
            body.len()
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Waits until a relay is the root of the world `w`.
    fn until_the_root_is(&self, relay: &str) {
        let began = Instant::now();
        while self.ask("GET", "/v1/worlds/w", &Value::Null)["comtrees"][0]["tree"][0]["relay"]
            != relay
        {
            assert!(began.elapsed() < PATIENCE, "{relay} does not become the root");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Drains a relay that has a member who does not move.
    fn drains_in_vain(&self, full: &str) {
        let why = self.operate(&["relay", "drain", full, "--wait", "1", "--json"]).unwrap_err();
        let why: Value = serde_json::from_str(&why).expect("what goes wrong is JSON as well");
        let what = why["error"]["what"].as_str().unwrap();
        assert!(what.contains("not empty after 1 s: it has 1 members"), "{why}");
    }

    /// The process of a relay that was removed starts again.
    fn registers_only_when_allowed(&self, relay: &str) {
        let (key, controller) = (self.path(&format!("{relay}.key")), self.listen.to_string());
        let flags = ["relay", "--listen", "127.0.0.1:0", "--json", "--threads", "1", "--key", &key];
        let to = ["--name", relay, "--controller", &controller, "--controller-key", &self.key];
        let mut process = Server::start_telling(&[flags.as_slice(), &to].concat(), Stdio::piped());
        says(&mut process, &format!("canopy relay allow {relay}"));
        let removed = format!("removed: {relay}; ");
        assert!(self.operate(&["relay", "list"]).unwrap().contains(&removed));
        let again = self.operate(&["relay", "allow", relay, "--json"]);
        assert_eq!(again, Ok("{}\n".to_owned()));
        self.until_relays_are(&["up", "up", "draining"]);
        let refused = self.operate(&["relay", "allow", relay, "--json"]).unwrap_err();
        let refused: Value = serde_json::from_str(&refused).expect("a refusal is JSON as well");
        assert_eq!(refused["error"]["where"], format!("relay {relay}"), "{refused}");
    }

    fn links(&self) -> Vec<Value> {
        let told = self.ask("GET", "/v1/links", &Value::Null);
        told["links"].as_array().unwrap().clone()
    }

    /// Takes the link away that is between the others of three relays.
    fn leave_only_the_way_over(&self, relay: &str) {
        let name = format!("\"{relay}\"");
        let links = self.links();
        let link = links.iter().find(|link| !link["ends"].to_string().contains(&name)).unwrap();
        self.ask("DELETE", &format!("/v1/links/{}", link["id"]), &Value::Null);
    }

    /// The ends of a link hear each other once they have measured it.
    fn until_given_links_are_heard(&self) {
        let began = Instant::now();
        let is_heard = |link: &Value| link["proposed"] != false || link["delay_us"] != 1000;
        while !self.links().iter().all(is_heard) {
            assert!(began.elapsed() < PATIENCE, "nobody hears anybody over a link");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the relays are in these states, in the order of their names.
    pub(crate) fn until_relays_are(&self, wanted: &[&str]) {
        let began = Instant::now();
        loop {
            let told = self.ask("GET", "/v1/relays", &Value::Null);
            let mut relays = told["relays"].as_array().unwrap().clone();
            relays.sort_by_key(|relay| relay["name"].to_string());
            let states: Vec<_> = relays.iter().map(|relay| relay["state"].clone()).collect();
            if states == wanted {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "the relays are not {wanted:?}: {told}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A member of the world w that is nearest to a relay.
    pub(crate) fn member(&self, subject: &str, relay: &str) -> Member {
        let file = self.folder.path().join(format!("{subject}.client"));
        let made = run(&["token", "client-key", "--out", file.to_str().unwrap()]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let client_key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let measured = json!([{ "relay": relay, "delay_us": 1 }]);
        let ask = json!({ "subject": subject, "client_key": client_key, "measured": measured });
        let joined = self.ask("POST", "/v1/worlds/w/members", &ask);
        assert_eq!(joined["relay"]["name"], relay);
        Member {
            relay: joined["relay"]["address"].as_str().unwrap().to_owned(),
            comtree: joined["comtrees"][0].to_string(),
            token: joined["token"].as_str().unwrap().to_owned(),
            file,
        }
    }

    /// Unmeasured: the relays are taken in turn, by their free places.
    fn joining(&self) -> JoinBuilder {
        let key = self.key.parse().unwrap();
        Client::join(self.listen, key, "w").measure(Duration::ZERO)
    }

    /// How to ask the controller about the world `w`.
    pub(crate) fn asking(&self) -> Ask {
        Ask::new(self.listen.to_string(), self.key.parse().unwrap(), "w".to_owned())
    }

    pub(crate) fn kill_controller(&mut self) {
        self.controller.take().unwrap().kill();
    }

    pub(crate) fn restart_controller(&mut self) {
        let listen = self.listen.to_string();
        let more: Vec<&str> = self.more.iter().map(String::as_str).collect();
        self.controller = Some(start_controller_with(self.folder.path(), &listen, &more));
    }
}

fn start_controller_with(folder: &Path, listen: &str, more: &[&str]) -> Server {
    let dir = folder.to_str().unwrap();
    let at = ["--listen", listen, "--api", "127.0.0.1:0"];
    let degree: &[&str] = if more.contains(&"--degree") { &[] } else { &["--degree", "2"] };
    Server::start(&[&["controller", "--dir", dir, "--json"][..], &at, degree, more].concat())
}

/// A participant with its token.
pub(crate) struct Member {
    relay: String,
    comtree: String,
    token: String,
    file: PathBuf,
}

impl Member {
    pub(crate) fn flags(&self) -> [&str; 8] {
        let file = self.file.to_str().unwrap();
        let [relay, comtree, token] = [&self.relay, &self.comtree, &self.token];
        ["--relay", relay, "--comtree", comtree, "--token", token, "--client-key", file]
    }

    pub(crate) fn listen(&self, group: &str) -> Listener {
        self.listen_at("0", group)
    }

    /// Listens up to a level.
    fn listen_at(&self, level: &str, group: &str) -> Listener {
        let what = ["sub", group, "--level", level];
        let mut command = canopy(&[&what[..], &self.flags()].concat());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).all(|line| tell.send(line).is_ok());
        });
        Listener { process, told }
    }

    fn publish(&self, group: &str, text: &str) {
        self.publish_at("0", group, text);
    }

    fn publish_at(&self, level: &str, group: &str, text: &str) {
        let what = ["pub", group, text, "--level", level];
        let said = run(&[&what[..], &self.flags()].concat());
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
}

pub(crate) struct Listener {
    process: Child,
    pub(crate) told: Receiver<String>,
}

impl Listener {
    /// Whether it hears what a member publishes again and again.
    fn hears(&self, from: &Member, group: &str, text: &str) {
        let began = Instant::now();
        loop {
            from.publish(group, text);
            let line = self.told.recv_timeout(Duration::from_millis(300)).unwrap_or_default();
            if line.contains(text) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{text:?} never came");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

#[test]
fn relays_carry_a_world_whether_the_controller_is_there_or_not() {
    let mut cluster = Cluster::start();
    let _first = [cluster.relay("r1"), cluster.relay("r2")];
    let third = cluster.relay("r3");
    cluster.until_relays_are(&["up", "up", "up"]);
    let links = cluster.ask("GET", "/v1/links", &Value::Null);
    assert_eq!(links["links"].as_array().unwrap().len(), 3, "all are joined: {links}");
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    let [one, two, three] =
        [("a", "r1"), ("b", "r2"), ("c", "r3")].map(|(who, at)| cluster.member(who, at));
    let (at_two, at_three) = (two.listen("7"), three.listen("7"));
    at_two.hears(&one, "7", "before");
    at_three.hears(&one, "7", "before");

    cluster.kill_controller();
    at_two.hears(&one, "7", "without");
    at_three.hears(&one, "7", "without");
    // Who comes anew with a token that holds is let in, too.
    one.listen("8").hears(&two, "8", "anew");

    cluster.restart_controller();
    assert_eq!(cluster.controller.as_ref().unwrap().ready["life"], 2);
    cluster.until_relays_are(&["up", "up", "up"]);
    let four = cluster.member("d", "r2");
    at_three.hears(&four, "7", "afterwards");
    let links = cluster.ask("GET", "/v1/links", &Value::Null);
    assert_eq!(links["links"].as_array().unwrap().len(), 3, "{links}");

    third.kill();
    cluster.until_relays_are(&["up", "up", "gone"]);
    let _third = cluster.relay("r3");
    cluster.until_relays_are(&["up", "up", "up"]);
    cluster.member("e", "r3");
}

/// The highest level of a world bounds what its members subscribe to and publish at, and follows it.
#[test]
fn nobody_reaches_beyond_a_worlds_levels() {
    let cluster = Cluster::start();
    let relay = cluster.relay_by("r1", &["--threads", "1", "--metrics", "127.0.0.1:0"]);
    cluster.until_relays_are(&["up"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w", "levels": 1 }));
    let one = cluster.member("a", "r1");
    let subscribe =
        |of: &Member, level| run(&[&["sub", "7", "--level", level][..], &of.flags()].concat());
    let beyond = subscribe(&one, "2");
    let why = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert!(!beyond.status.success() && why.contains("token does not grant"), "{why}");
    let near = one.listen_at("1", "7");
    near.hears(&cluster.member("b", "r1"), "7", "near");

    // What is published beyond is counted, and nothing else is lost with it.
    let other = cluster.member("c", "r1");
    let metrics = relay.address("metrics");
    other.publish_at("2", "7", "beyond");
    let dropped = "canopy_relay_drops_total{reason=\"publish_level_not_allowed\"} ";
    get_until(metrics, "/metrics", &format!("{dropped}1\n"));
    other.publish_at("1", "7", "within");
    let mut heard = near.told.recv_timeout(PATIENCE).unwrap();
    while heard.contains("near") {
        heard = near.told.recv_timeout(PATIENCE).unwrap();
    }
    assert!(heard.contains("within"), "{heard}");

    // Who comes once there are more levels may use them.
    cluster.ask("PATCH", "/v1/worlds/w", &json!({ "levels": 2 }));
    let far = cluster.member("d", "r1").listen_at("2", "7");
    let began = Instant::now();
    let publisher = cluster.member("e", "r1");
    while !far.told.recv_timeout(Duration::from_millis(300)).is_ok_and(|it| it.contains("more")) {
        assert!(began.elapsed() < PATIENCE, "it never came");
        publisher.publish_at("2", "7", "more");
    }
}

/// Updates leave as their world's mode says, whatever the relay's own: each update of a world with ticks waits for
/// the next one, as it is published when the one before has come.
#[tokio::test]
async fn updates_leave_when_their_worlds_mode_says() {
    const ROUNDS: u32 = 10;
    let (own, tick) = (Duration::from_millis(1000), Duration::from_millis(400));
    let cluster = Cluster::start();
    let _relay = cluster.relay_by("r1", &["--mode", "periodic", "--tick-ms", "1000"]);
    cluster.until_relays_are(&["up"]);
    let slow = json!({ "name": "slow", "mode": "periodic", "tick_ms": 400 });
    cluster.ask("POST", "/v1/worlds", &slow);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "fast" }));
    let rounds = async |world: &str| {
        let at = cluster.listen;
        let join = || Client::join(at, cluster.key.parse().unwrap(), world).connect();
        let (one, other) = (join().await.unwrap(), join().await.unwrap());
        other.subscribe(Group::new(7), Level(0)).await.unwrap();
        let began = Instant::now();
        for _ in 0..ROUNDS {
            one.publish(Group::new(7), Level(0), b"x").unwrap();
            let came = tokio::time::timeout(PATIENCE, other.recv()).await;
            came.expect("it comes in time").expect("it is in the world");
        }
        began.elapsed()
    };
    let (fast, slow) = (rounds("fast").await, rounds("slow").await);
    assert!(fast < (ROUNDS - 1) * tick, "at once: {fast:?}");
    let ticks = (ROUNDS - 1) * tick..(ROUNDS - 1) * own;
    assert!(ticks.contains(&slow), "with ticks of 400 ms: {slow:?}");
}

/// Members that cannot be sent everything get what their world says, from the moment when it says so: the budget of the
/// comtree, and lower levels first.
#[tokio::test]
async fn a_relay_thins_as_its_world_says_also_when_that_changes_while_members_are_in() {
    const EVERY: Duration = Duration::from_millis(5);
    let cluster = Cluster::start();
    let _relay = cluster.relay("r1");
    cluster.until_relays_are(&["up"]);
    let many = json!({ "up_bits": 4_000_000, "up_packets": 1000, "down_bits": 4_000_000, "down_packets": 1000 });
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w", "levels": 1, "budget": many }));
    let join = || Client::join(cluster.listen, cluster.key.parse().unwrap(), "w").connect();
    let (one, other) = (join().await.unwrap(), join().await.unwrap());
    other.subscribe(Group::new(7), Level(1)).await.unwrap();
    other.subscribe(Group::new(8), Level(1)).await.unwrap();
    // Publishes on both groups for a while, after a moment in which the relay finds its rates: how many come of each.
    let publish = async || {
        let mut came = [0, 0];
        for round in 0..300 {
            one.publish(Group::new(7), Level(0), b"near").unwrap();
            one.publish(Group::new(8), Level(1), b"far").unwrap();
            tokio::time::sleep(EVERY).await;
            while let Some(update) = other.try_recv() {
                came[usize::from(update.level.0)] += u32::from(round >= 100);
            }
        }
        came
    };
    let set = |change| cluster.ask("PATCH", "/v1/worlds/w", &change);
    let [near, far] = publish().await;
    assert!(near > 150 && far > 150, "everything: {near} and {far}");
    set(json!({ "comtree_budget": { "down_packets": 40 } }));
    let [near, far] = publish().await;
    assert!(near + far < 150 && far * 3 > near, "by halves: {near} and {far}");
    set(json!({ "levels_first": true }));
    let [near, far] = publish().await;
    assert!(near > far * 5, "lower levels first: {near} and {far}");
    set(json!({ "floor_ms": 100 }));
    let [near, far] = publish().await;
    assert!(near + far < 150 && far * 5 > near, "ten a second at least: {near} and {far}");
    assert!(one.is_connected() && other.is_connected(), "nobody has lost its session");
}

#[test]
fn a_world_moves_off_its_root_that_is_removed_and_loses_no_update() {
    let cluster = Cluster::start();
    let [_r1, r2, _r3] = ["r1", "r2", "r3"].map(|name| cluster.relay(name));
    cluster.until_relays_are(&["up", "up", "up"]);
    cluster.leave_only_the_way_over("r2");
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    let [one, three] = [("a", "r1"), ("c", "r3")].map(|(who, at)| cluster.member(who, at));
    // The root is the relay that is to go.
    cluster.ask("POST", "/v1/worlds/w/move?root=r2", &Value::Null);
    cluster.until_the_root_is("r2");
    let listener = three.listen("7");
    let mut sender = canopy(&[&["pub", "7", "-"][..], &one.flags()].concat());
    let mut sender = sender.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    let mut sent = 0;
    let mut send = |times: u32| {
        for _ in 0..times {
            writeln!(input, "number {sent} ").unwrap();
            sent += 1;
            std::thread::sleep(Duration::from_millis(25));
        }
        sent
    };
    let number =
        |line: String| line.split("number ").nth(1)?.split(' ').next()?.parse::<u32>().ok();
    let began = Instant::now();
    let mut heard = Vec::new();
    while heard.is_empty() {
        assert!(began.elapsed() < PATIENCE, "nothing came");
        send(1);
        heard.extend(listener.told.try_iter().filter_map(number));
    }
    let goes_over = || {
        let told = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
        told["comtrees"].to_string().contains("\"r2\"")
    };
    assert!(goes_over());
    // It is the only way between the others.
    let needed = cluster.operate(&["relay", "remove", "r2"]);
    assert!(needed.unwrap_err().contains("carries the world w"));
    cluster.operate(&["link", "add", "r1", "r3", "--bits", "100000000"]).unwrap();
    assert!(cluster.operate(&["link", "list"]).unwrap().contains("given"));
    cluster.until_given_links_are_heard();
    let removing = cluster.operate(&["relay", "remove", "r2"]).unwrap();
    assert!(removing.contains("1 comtrees lead over it; --wait"), "{removing}");
    while goes_over() {
        assert!(began.elapsed() < PATIENCE, "it stays where it is");
        send(20);
    }
    let last = send(100) - 1;
    while heard.last() != Some(&last) {
        let Ok(line) = listener.told.recv_timeout(Duration::from_secs(5)) else {
            let world = cluster.ask("GET", "/v1/worlds/w", &Value::Null);
            let gap = heard.windows(2).find(|pair| pair[1] != pair[0] + 1);
            panic!("after {:?} of {last} nothing comes; first gap {gap:?}; {world}", heard.last());
        };
        heard.extend(number(line));
    }
    let gaps: Vec<_> = heard.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
    assert!(gaps.is_empty(), "each comes once, in order, of {last}: {gaps:?}");
    let begins_with = |text: &str| {
        let list = cluster.operate(&["relay", "list"]).unwrap();
        list.lines().any(|line| line.starts_with(text))
    };
    while begins_with("r2") {
        assert!(began.elapsed() < PATIENCE, "it stays where it is");
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.drains_in_vain("r3");
    drop(input);
    sender.wait().unwrap();
    r2.kill();
    cluster.registers_only_when_allowed("r2");
}

#[test]
fn a_command_moves_a_world_within_the_share_of_rates_that_it_may_reserve() {
    let cluster = Cluster::start_in(tempfile::tempdir().unwrap(), &["--share", "50"]);
    let _relays = ["r1", "r2", "r3"].map(|name| cluster.relay(name));
    cluster.until_relays_are(&["up", "up", "up"]);
    let links = cluster.ask("GET", "/v1/links", &Value::Null);
    let accounts = cluster.ask("GET", "/v1/accounts", &Value::Null);
    let mut accounts = accounts["accounts"].as_array().unwrap().iter();
    let of_link = accounts.find(|account| account["kind"] == "link").unwrap();
    let mut links = links["links"].as_array().unwrap().iter();
    let link = links.find(|link| link["id"] == of_link["link"]).unwrap();
    assert_eq!(of_link["most"]["bits"], link["bits"].as_u64().unwrap() / 2);

    cluster.operate(&["world", "create", "w"]).unwrap();
    let _members = [("a", "r1"), ("b", "r2"), ("c", "r3")].map(|(who, at)| cluster.member(who, at));
    for root in ["r3", "r1"] {
        let moving = ["world", "move", "w", "--root", root, "--json"];
        let planned = cluster.until_it_may(&[&moving[..], &["--dry-run"]].concat());
        let planned: Value = serde_json::from_str(&planned).unwrap();
        assert_eq!(planned["comtrees"][0]["tree"][0]["relay"], root, "{planned}");
        let begun = cluster.operate(&moving).unwrap();
        assert!(begun.contains("\"name\":\"w\""), "{begun}");
        cluster.until_the_root_is(root);
    }
    let nowhere = cluster.operate(&["world", "move", "w", "--root", "r9"]).unwrap_err();
    assert!(nowhere.contains("r9"), "{nowhere}");
}

/// What the client is told next that it was not told before, if it is this.
async fn event(client: &Client, is: impl Fn(&Event) -> bool) -> Event {
    let next = async {
        loop {
            let event = client.next_event().await.expect("it is in the world");
            if is(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("it is told in time")
}

/// One sends another something until it has come, and the other answers.
async fn reach_each_other(one: &Client, other: &Client, to: Participant, text: &str) {
    let began = Instant::now();
    let update = loop {
        assert!(began.elapsed() < PATIENCE, "{text:?} never came");
        one.send_to(to, text.as_bytes()).unwrap();
        let soon = tokio::time::timeout(Duration::from_millis(100), other.recv());
        if let Ok(update) = soon.await {
            break update.expect("it is in the world");
        }
    };
    assert_eq!((&update.payload[..], update.group), (text.as_bytes(), None));
    other.reply_to(&update, b"I am here").unwrap();
    let answered = async {
        loop {
            let answer = one.recv().await.expect("it is in the world");
            if answer.payload[..] == *b"I am here" {
                return answer.from;
            }
        }
    };
    let from = tokio::time::timeout(PATIENCE, answered).await.expect("it is answered");
    assert_eq!(from, to, "it speaks under the name by which it is known");
}

#[tokio::test]
async fn whose_relay_is_killed_has_its_address_at_another_and_is_reached_there() {
    has_its_address_at_another(|cluster| cluster.joining()).await;
}

#[tokio::test]
async fn whom_a_backend_lets_in_comes_back_by_its_token_when_its_relay_is_killed() {
    has_its_address_at_another(|cluster| {
        let key = ClientKey::generate().unwrap();
        let ask = json!({ "subject": "player", "client_key": key.public() });
        let let_in = cluster.ask("POST", "/v1/worlds/w/members", &ask);
        cluster.joining().key(key).let_in(let_in["token"].as_str().unwrap())
    })
    .await;
}

/// The relay of a client that joins so is killed.
async fn has_its_address_at_another(joining: impl Fn(&Cluster) -> JoinBuilder) {
    let cluster = Cluster::start();
    let mut relays: Vec<_> = ["r1", "r2", "r3"].map(|name| (name, cluster.relay(name))).into();
    cluster.until_relays_are(&["up", "up", "up"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    let one = cluster.joining().connect().await.unwrap();
    let other = joining(&cluster).connect().await.unwrap();
    assert_ne!(one.relay(), other.relay());
    let before = other.participant().unwrap();
    reach_each_other(&one, &other, before, "before").await;

    let at = relays.iter().position(|(_, relay)| relay.address("relay") == other.relay());
    let (killed, relay) = relays.swap_remove(at.unwrap());
    // The first is told, and so are the ways that others know.
    while other.try_next_event().is_some() {}
    relay.kill();
    let connected = event(&other, |event| matches!(event, Event::Connected { .. })).await;
    let Event::Connected { participant, kept_address, .. } = connected else { unreachable!() };
    assert_eq!((participant, kept_address), (before, true));
    reach_each_other(&one, &other, before, "after").await;
    let member = cluster.ask("GET", "/v1/worlds/w/members?most=9", &Value::Null);
    let of = member["members"].as_array().unwrap().clone();
    let of = of.iter().find(|of| of["address"] == before.to_string()).unwrap();
    assert!(of["relay"] != killed && of["state"] == "held", "{of}");
    one.leave().await;
    other.leave().await;
}

/// Reads a relay's logs until it says this.
fn says(relay: &mut Server, words: &str) {
    let mut logs = relay.logs();
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(logs.read_line(&mut line).unwrap() > 0, "it never says {words:?}");
    }
}

#[test]
fn a_relay_that_is_not_listed_or_has_anothers_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("relays");
    std::fs::write(&list, "").unwrap();
    let dir = folder.path().join("controller");
    let at = ["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--json"];
    let listed = ["controller", "--dir", dir.to_str().unwrap(), "--relays", list.to_str().unwrap()];
    let controller = Server::start(&[&listed[..], &at].concat());
    let listen = controller.address("listen").to_string();
    let key = controller.ready["key"].as_str().unwrap().to_owned();
    let start = |name: &str| {
        let flags = ["relay", "--listen", "127.0.0.1:0", "--json", "--threads", "1"];
        let to = ["--name", name, "--controller", &listen, "--controller-key", &key];
        Server::start_telling(&[&flags[..], &to].concat(), Stdio::piped())
    };
    let mut first = start("a");
    says(&mut first, "its key is not among those that may register");
    let first_key = first.ready["key"].as_str().unwrap();
    std::fs::write(&list, format!("{first_key} b\n")).unwrap();
    let mut other = start("a");
    says(&mut other, "its key is not among those that may register");
    let bad = run(&["relay", "--controller", "127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    let why = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(!bad.status.success() && why.contains("--controller-key"), "{why}");
}

#[test]
fn walkers_show_credentials_to_a_controller_that_asks_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let [signing, trust, trace] =
        ["signing.key", "trust.toml", "trace.csv"].map(|file| folder.path().join(file));
    let [signing, trace_file] = [&signing, &trace].map(|path| path.to_str().unwrap());
    let made = run(&["token", "key", "--out", signing]);
    let public = String::from_utf8(made.stdout).unwrap();
    std::fs::write(&trust, format!("keys = [\"{}\"]\n", public.trim())).unwrap();
    std::fs::write(&trace, round_trace(6, 3)).unwrap();
    let cluster = Cluster::start_in(folder, &["--trust", trust.to_str().unwrap()]);
    let _relays = ["r1", "r2"].map(|name| cluster.relay(name));
    cluster.until_relays_are(&["up", "up"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    let to = cluster.join_flags();
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let walk = ["bots", "--json", "--trace", trace_file, "--token-key", signing];
    let walked = run(&[&walk[..], &to].concat());
    let report: Value = serde_json::from_slice(&walked.stdout).unwrap_or_else(|_| {
        panic!("no report: {}", String::from_utf8_lossy(&walked.stderr));
    });
    assert!(walked.status.success(), "not flawless: {report}");
    assert!(report["deliveries"].as_u64() > Some(0), "nobody heard anybody: {report}");
}
