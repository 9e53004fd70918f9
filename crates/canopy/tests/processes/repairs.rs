//! What a controller mends: relays on hosts of their own, in a ring with a chord, and members whose
//! traffic goes on when a link, a relay or the controller fails. It needs root.

use crate::support::{Server, canopy, lateness, run};
use canopy_engines::Namespace;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Traffic is there again within this.
const MENDED: Duration = Duration::from_secs(1);
/// A member publishes this often: a world lets it do so up to 60 times a second.
const STEP: Duration = Duration::from_millis(20);
/// Traffic in which nothing fails has no longer pauses.
const STEADY: Duration = Duration::from_millis(150);
/// Traffic is watched for so long after something has failed: what is mended stays so.
const WATCHED: Duration = Duration::from_secs(2);
/// A ring of six, and a chord.
const RELAYS: usize = 6;
const LINKS: [[usize; 2]; 7] = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 3]];
const CONTROLLER_IP: &str = "10.80.0.100";
const CROWD_IP: &str = "10.80.0.101";
const RELAY_PORT: u16 = 4040;

/// Hosts on one network. Dropped in this order, so processes end before their hosts.
struct Bed {
    relays: Vec<Option<Server>>,
    controller: Option<Server>,
    hosts: Vec<Namespace>,
    seat: Namespace,
    crowd: Namespace,
    _network: Namespace,
    folder: tempfile::TempDir,
    key: String,
}

impl Bed {
    /// A controller and relays that are joined; `None`, with a word, where no namespace can be made.
    fn new() -> Option<Bed> {
        let network = Namespace::new().inspect_err(|error| println!("skipped: {error}")).ok()?;
        network.ip("link add bridge type bridge").unwrap();
        network.ip("link set bridge up").unwrap();
        let hosts: Vec<_> =
            (0..RELAYS).map(|of| attach(&network, &name(of), &relay_ip(of), of)).collect();
        let seat = attach(&network, "seat", CONTROLLER_IP, 100);
        let crowd = attach(&network, "crowd", CROWD_IP, 101);
        let folder = tempfile::tempdir().unwrap();
        let controller = start_controller(&seat, &folder);
        let key = controller.ready["key"].as_str().unwrap().to_owned();
        let relays = (0..RELAYS).map(|_| None).collect();
        let controller = Some(controller);
        let mut bed =
            Bed { relays, controller, hosts, seat, crowd, _network: network, folder, key };
        for relay in 0..RELAYS {
            bed.start_relay(relay);
        }
        bed.until("relays are up", |bed| bed.states().iter().all(|state| state == "up"));
        for [one, other] in LINKS {
            let ends = [one, other].map(name);
            let link = json!({ "ends": ends, "bits": 1_000_000_000_u64, "packets": 1_000_000,
                               "delay_us": 50_000 });
            bed.ask("POST", "/v1/links", &link);
        }
        bed.until("links are usable", |bed| {
            bed.links().iter().all(|link| link["usable"] == true && link["delay_us"] != 50_000)
        });
        bed.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
        Some(bed)
    }

    fn start_relay(&mut self, relay: usize) {
        let key = self.path(&format!("{}.key", name(relay)));
        let native = format!("{}:{RELAY_PORT}", relay_ip(relay));
        let (listen, controller) = (format!("0.0.0.0:{RELAY_PORT}"), controller_address());
        let mut command = canopy(&["relay", "--json", "--threads", "1", "--listen", &listen]);
        command.args(["--metrics", "127.0.0.1:0"]);
        command.args(["--key", &key, "--name", &name(relay), "--native", &native]);
        command.args(["--controller", &controller, "--controller-key", &self.key]);
        command.stderr(Stdio::null());
        self.relays[relay] = Some(self.hosts[relay].run(|| Server::spawn(command)).unwrap());
    }

    /// What a relay knows of others: the names of those to which links lead.
    fn known_at(&self, relay: usize) -> Vec<String> {
        let at = self.relays[relay].as_ref().unwrap().address("metrics").to_string();
        let shown = self.hosts[relay].run(|| run(&["net", "show", &at, "--json"])).unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or(Value::Null);
        let relays = shown["relays"].as_array().into_iter().flatten();
        let reachable = relays.filter(|relay| relay["reachable"] == true);
        let mut names: Vec<String> =
            reachable.map(|relay| relay["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// What the API answers, whose status is to be 2xx.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let api = self.controller.as_ref().unwrap().address("api");
        let secret = std::fs::read_to_string(self.path("api.secret")).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut text = String::new();
        let asked = || {
            let mut stream = TcpStream::connect(api).unwrap();
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                 Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                secret.trim(),
                body.len()
            )
            .unwrap();
            stream.read_to_string(&mut text).unwrap();
        };
        self.seat.run(asked).unwrap();
        assert!(text.starts_with("HTTP/1.1 2"), "{method} {path}: {text}");
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or(Value::Null)
    }

    fn until(&self, what: &str, holds: impl Fn(&Bed) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "not before {PATIENCE:?}: {what}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn states(&self) -> Vec<String> {
        let told = self.ask("GET", "/v1/relays", &Value::Null);
        let state = |relay: &Value| relay["state"].as_str().unwrap().to_owned();
        told["relays"].as_array().unwrap().iter().map(state).collect()
    }

    fn links(&self) -> Vec<Value> {
        self.ask("GET", "/v1/links", &Value::Null)["links"].as_array().unwrap().clone()
    }

    /// Whether all relays are up, and all links usable.
    fn is_whole(&self) -> bool {
        let links = self.links();
        self.states().iter().all(|state| state == "up")
            && links.iter().all(|link| link["usable"] == true)
    }

    /// The links that the world's tree runs over: at each the relay below, and the one above.
    fn tree(&self) -> Vec<[usize; 2]> {
        let world = self.ask("GET", "/v1/worlds/w", &Value::Null);
        let hops = world["comtrees"][0]["tree"].as_array().unwrap();
        let ends = |hop: &Value| Some([number(&hop["relay"])?, number(&hop["above"])?]);
        hops.iter().filter_map(ends).collect()
    }

    /// A member that is nearest to a relay.
    fn member(&self, subject: &str, relay: usize) -> Member {
        let file = self.path(&format!("{subject}.client"));
        let made = run(&["token", "client-key", "--out", &file]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let client_key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let measured = json!([{ "relay": name(relay), "delay_us": 1 }]);
        let ask = json!({ "subject": subject, "client_key": client_key, "measured": measured });
        let joined = self.ask("POST", "/v1/worlds/w/members", &ask);
        assert_eq!(joined["relay"]["name"], name(relay));
        let flags = [
            ("--relay", joined["relay"]["address"].as_str().unwrap()),
            ("--relay-key", joined["relay"]["key"].as_str().unwrap()),
            ("--comtree", &joined["comtrees"][0].to_string()),
            ("--token", joined["token"].as_str().unwrap()),
            ("--client-key", &file),
        ];
        let flags = flags.iter().flat_map(|(flag, value)| [flag.to_string(), value.to_string()]);
        Member { at: relay, flags: flags.collect() }
    }

    /// Starts a command of a member on the crowd's host.
    fn run_as(&self, member: &Member, words: &[&str], pipe: impl FnOnce(&mut Command)) -> Child {
        let mut command = canopy(words);
        command.args(&member.flags).stderr(Stdio::null());
        pipe(&mut command);
        self.crowd.run(move || command.spawn().unwrap()).unwrap()
    }

    /// One member publishes at a relay, and others listen at others.
    fn traffic(&self, from: usize, to: &[usize]) -> Traffic {
        let mut listeners = Vec::new();
        for at in to {
            let member = self.member(&format!("listener at {at}"), *at);
            let mut process = self.run_as(&member, &["sub", "7", "--json"], |command| {
                command.stdout(Stdio::piped());
            });
            let heard = Arc::<Mutex<Vec<Instant>>>::default();
            let (lines, hears) = (BufReader::new(process.stdout.take().unwrap()), heard.clone());
            thread::spawn(move || {
                let lines = lines.lines().map_while(Result::ok);
                lines.for_each(|_| hears.lock().unwrap().push(Instant::now()));
            });
            listeners.push(Listener { process, at: member.at, heard });
        }
        let member = self.member("publisher", from);
        let mut process = self.run_as(&member, &["pub", "7"], |command| {
            command.stdin(Stdio::piped()).stdout(Stdio::null());
        });
        let mut lines = process.stdin.take().unwrap();
        let said = Arc::new(AtomicU64::new(0));
        let counts = said.clone();
        thread::spawn(move || {
            while writeln!(lines, "{}", counts.fetch_add(1, Ordering::Relaxed)).is_ok() {
                thread::sleep(STEP);
            }
        });
        let traffic = Traffic { publisher: process, said, listeners };
        let began = Instant::now();
        while !traffic.listeners.iter().all(|listener| listener.heard.lock().unwrap().len() > 20) {
            let heard = |listener: &Listener| listener.heard.lock().unwrap().len();
            let counts: Vec<_> = traffic.listeners.iter().map(heard).collect();
            assert!(began.elapsed() < PATIENCE, "not everybody hears: {counts:?}");
            thread::sleep(STEP);
        }
        traffic
    }

    /// Cuts what a relay sends its controller, or ends the cut.
    fn cut_off(&self, relay: usize, is_cut: bool) {
        let to = if is_cut { hardware(200) } else { hardware(100) };
        let words = format!("neigh replace {CONTROLLER_IP} lladdr {to} dev net nud permanent");
        self.hosts[relay].ip(&words).unwrap();
    }

    /// Cuts what two relays send each other, or ends the cut. Nobody is told: frames go astray.
    fn cut(&self, ends: [usize; 2], is_cut: bool) {
        for [near, far] in [ends, [ends[1], ends[0]]] {
            let to = if is_cut { hardware(200) } else { hardware(far) };
            let far = relay_ip(far);
            let words = format!("neigh replace {far} lladdr {to} dev net nud permanent");
            self.hosts[near].ip(&words).unwrap();
        }
    }
}

struct Member {
    at: usize,
    flags: Vec<String>,
}

struct Listener {
    process: Child,
    at: usize,
    heard: Arc<Mutex<Vec<Instant>>>,
}

/// A publisher that never stops, and who listens.
struct Traffic {
    publisher: Child,
    said: Arc<AtomicU64>,
    listeners: Vec<Listener>,
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let processes = self.listeners.iter_mut().map(|listener| &mut listener.process);
        for process in processes.chain([&mut self.publisher]) {
            _ = process.kill();
            _ = process.wait();
        }
    }
}

impl Traffic {
    /// Lets something fail and returns, of each listener's relay, how long after it what is published
    /// arrives for good, and the machine's lateness meanwhile. Who is at a relay that dies is left out.
    fn after(
        &self,
        dead: Option<usize>,
        fail: impl FnOnce(),
    ) -> (Vec<(usize, Duration)>, Duration) {
        let (late, began) = lateness(|| {
            let began = Instant::now();
            fail();
            thread::sleep(WATCHED);
            began
        });
        let said = self.said.load(Ordering::Relaxed);
        assert!(said > 0, "the publisher publishes");
        let listeners = self.listeners.iter().filter(|listener| Some(listener.at) != dead);
        let again = listeners.map(|listener| {
            let heard = listener.heard.lock().unwrap();
            let before = heard.iter().rev().find(|when| **when < began).copied();
            let times =
                before.into_iter().chain(heard.iter().copied().filter(|when| *when >= began));
            let times: Vec<_> = times.chain([Instant::now()]).collect();
            let longest = times.windows(2).max_by_key(|pair| pair[1] - pair[0]).unwrap();
            (listener.at, longest[1].saturating_duration_since(began.max(longest[0] - STEP)))
        });
        (again.collect(), late)
    }
}

fn name(relay: usize) -> String {
    format!("r{relay}")
}

fn number(name: &Value) -> Option<usize> {
    name.as_str()?.strip_prefix('r')?.parse().ok()
}

fn relay_ip(relay: usize) -> String {
    format!("10.80.0.{}", relay + 1)
}

/// The hardware address of a host; nobody has that of 200.
fn hardware(number: usize) -> String {
    format!("02:00:00:00:00:{number:02x}")
}

fn controller_address() -> String {
    format!("{CONTROLLER_IP}:4041")
}

fn start_controller(seat: &Namespace, folder: &tempfile::TempDir) -> Server {
    let (dir, listen) = (folder.path().to_str().unwrap(), controller_address());
    let mut command = canopy(&["controller", "--json", "--dir", dir, "--listen", &listen]);
    command
        .args(["--open-relays", "--open", "--api", "127.0.0.1:0", "--degree", "0"])
        .stderr(Stdio::null());
    seat.run(|| Server::spawn(command)).unwrap()
}

/// A host on the network, whose device is `net`.
fn attach(network: &Namespace, name: &str, ip: &str, number: usize) -> Namespace {
    let host = Namespace::new().unwrap();
    let far = host.path();
    let far = far.display();
    network.ip(&format!("link add {name} type veth peer name net netns {far}")).unwrap();
    network.ip(&format!("link set {name} master bridge up")).unwrap();
    host.ip(&format!("addr add {ip}/24 dev net")).unwrap();
    host.ip(&format!("link set net address {}", hardware(number))).unwrap();
    host.ip("link set net up").unwrap();
    host
}

/// Expects traffic again in time at all listeners, of whom some lacked it.
fn mended(what: &str, (again, late): (Vec<(usize, Duration)>, Duration)) {
    println!("{what}: traffic again after {again:?}, on a machine that is up to {late:?} late");
    let worst = again.iter().map(|(_, after)| *after).max().unwrap();
    assert!(worst > Duration::from_millis(100), "{what}: nothing failed: {again:?}");
    assert!(worst <= MENDED + 2 * late, "{what}: {again:?}, {late:?} late");
}

/// Expects that nobody notices.
fn unnoticed(what: &str, (again, late): (Vec<(usize, Duration)>, Duration)) {
    println!("{what}: pauses of {again:?} at most, on a machine that is up to {late:?} late");
    assert!(again.iter().all(|(_, pause)| *pause <= STEADY + 2 * late), "{what}: {again:?}");
}

#[test]
fn traffic_is_there_again_when_a_link_a_relay_or_the_controller_fails() {
    let Some(mut bed) = Bed::new() else { return };
    let traffic = bed.traffic(0, &[1, 2, 4]);
    unnoticed("nothing fails", traffic.after(None, || ()));

    let tree = bed.tree();
    let cut = *tree.iter().find(|ends| ends.contains(&0)).expect("a link of the publisher's relay");
    let what = format!("the link {cut:?} of {tree:?} is cut");
    mended(&what, traffic.after(None, || bed.cut(cut, true)));
    bed.cut(cut, false);
    bed.until("the link is usable again", Bed::is_whole);
    // A link that has just come up has two seconds for its first answer, and is believed meanwhile.
    unnoticed("the link is there again", traffic.after(None, || ()));

    // A relay that others are behind, and that is not the publisher's.
    let tree = bed.tree();
    let links_of = |relay: &usize| tree.iter().filter(|ends| ends.contains(relay)).count();
    let dead = (1..RELAYS).max_by_key(links_of).unwrap();
    let server = bed.relays[dead].take().unwrap();
    let what = format!("the relay {dead} of {tree:?} is killed");
    mended(&what, traffic.after(Some(dead), || server.kill()));
    bed.until("the dead relay is given up", |bed| bed.states()[dead] == "gone");
    bed.start_relay(dead);
    bed.until("it is there again, with its links", Bed::is_whole);

    let (tree, links) = (bed.tree(), bed.links().len());
    let controller = bed.controller.take().unwrap();
    unnoticed("the controller is killed", traffic.after(Some(dead), || controller.kill()));
    let restart = || bed.controller = Some(start_controller(&bed.seat, &bed.folder));
    unnoticed("the controller is started again", traffic.after(Some(dead), restart));
    bed.until("relays and links are back", Bed::is_whole);
    assert_eq!((bed.tree(), bed.links().len()), (tree, links));
    bed.member("who comes anew", dead);
}

/// Whether a relay has a neighbour beside its parent that ranks before it: nearer to the root, or as near
/// with a lower number. Of the two ends of a link that is not of the tree, one has.
fn has_standby(tree: &[[usize; 2]], relay: usize) -> bool {
    let above = |at: &usize| tree.iter().find(|[below, _]| below == at).map(|[_, above]| *above);
    let rank = |at: usize| (std::iter::successors(Some(at), above).count(), at);
    let neighbours = LINKS.iter().filter(|ends| ends.contains(&relay));
    let mut others = neighbours.map(|ends| if ends[0] == relay { ends[1] } else { ends[0] });
    others.any(|other| above(&relay) != Some(other) && rank(other) < rank(relay))
}

#[test]
fn relays_use_standby_parents_while_the_controller_is_away() {
    a_link_is_cut_while_the_controller_is_away(has_standby);
}

/// The part of the tree that is cut off is turned round as far as it must be.
#[test]
fn relays_without_standby_parents_find_other_ways_while_the_controller_is_away() {
    a_link_is_cut_while_the_controller_is_away(|tree, relay| !has_standby(tree, relay));
}

/// The first link of the tree whose lower end is such a one.
fn a_link_is_cut_while_the_controller_is_away(is_such: impl Fn(&[[usize; 2]], usize) -> bool) {
    let Some(mut bed) = Bed::new() else { return };
    let traffic = bed.traffic(0, &[1, 2, 3, 4, 5]);
    bed.until("the tree has all relays", |bed| bed.tree().len() == RELAYS - 1);

    let tree = bed.tree();
    let cut = *tree.iter().find(|[below, _]| is_such(&tree, *below)).unwrap();
    bed.controller.take().unwrap().kill();
    let what = format!("without the controller, the link {cut:?} of {tree:?} is cut");
    mended(&what, traffic.after(None, || bed.cut(cut, true)));
    let restart = || bed.controller = Some(start_controller(&bed.seat, &bed.folder));
    unnoticed("the controller is started again", traffic.after(None, restart));
    bed.until("it has a tree without the link", |bed| !bed.tree().contains(&cut));
    bed.cut(cut, false);
    bed.until("the link is usable again", Bed::is_whole);
    unnoticed("the link is there again", traffic.after(None, || ()));
}

/// The controller hears nothing of two of them, nor of any neighbour of theirs.
#[test]
fn relays_far_out_of_the_controllers_reach_are_kept_while_links_lead_there() {
    let Some(mut bed) = Bed::new() else { return };
    let traffic = bed.traffic(0, &[1, 2, 3, 4, 5]);
    bed.until("the tree has all relays", |bed| bed.tree().len() == RELAYS - 1);
    let tree = bed.tree();
    let cut_off = |bed: &Bed, is_cut| (1..RELAYS).for_each(|of| bed.cut_off(of, is_cut));

    let mut what = "all relays but one are out of the controller's reach";
    unnoticed(what, traffic.after(None, || cut_off(&bed, true)));
    for _ in 0..2 {
        unnoticed(what, traffic.after(None, || ()));
    }
    assert_eq!((bed.states(), bed.tree()), (vec!["up".to_owned(); RELAYS], tree.clone()));
    what = "they are within its reach again";
    unnoticed(what, traffic.after(None, || cut_off(&bed, false)));
    bed.until("relays and links are back", Bed::is_whole);
    assert_eq!(bed.tree(), tree);

    let names: Vec<String> = (0..RELAYS).map(name).collect();
    bed.controller.take().unwrap().kill();
    assert_eq!(bed.known_at(3), names);
    let dead = bed.relays[1].take().unwrap();
    dead.kill();
    let others: Vec<String> = names.into_iter().filter(|of| *of != name(1)).collect();
    bed.until("without the controller, all know who is dead", |bed| bed.known_at(4) == others);
}
