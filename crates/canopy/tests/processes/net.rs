//! Relays that are joined by their settings, and changed by SIGHUP while they run.

use crate::support::{Server, get, get_until, run};
use canopy_client::{Comtree, Event, Group, Level, PollClient};
use serde_json::Value;
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A relay whose settings file can be written again.
struct Relay {
    server: Server,
    file: PathBuf,
    head: String,
    /// What it logs, line after line.
    logs: std::io::Lines<std::io::BufReader<std::process::ChildStderr>>,
}

impl Relay {
    fn start(folder: &Path, name: &str, rest: &str) -> Relay {
        let file = folder.join(format!("{name}.toml"));
        let key = folder.join(format!("{name}.key"));
        let head = format!(
            "[relay]\nlisten = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\nthreads = 2\n\
             key = {:?}\n\n",
            key.to_str().unwrap()
        );
        fs::write(&file, format!("{head}{rest}")).unwrap();
        let args = ["relay", "--json", "--settings", file.to_str().unwrap()];
        let mut server = Server::start_telling(&args, Stdio::piped());
        let logs = server.logs().lines();
        Relay { server, file, head, logs }
    }

    /// The `[[link]]` that leads to it.
    fn as_link(&self, name: &str, more: &str) -> String {
        let (key, address) = (&self.server.ready["key"], &self.server.ready["relay"]);
        format!("[[link]]\nname = {name:?}\nkey = {key}\naddress = {address}\n{more}\n")
    }

    /// Has it read other settings, and waits until it logs `wanted`. Returns that line.
    fn reload(&mut self, rest: &str, wanted: &str) -> String {
        self.ask_to_reload(rest);
        self.log(wanted)
    }

    /// Has it read other settings, and does not wait until it has.
    fn ask_to_reload(&self, rest: &str) {
        fs::write(&self.file, format!("{}{rest}", self.head)).unwrap();
        let process = self.server.process().to_string();
        assert!(Command::new("kill").args(["-HUP", &process]).status().unwrap().success());
    }

    /// Waits until it logs `wanted`.
    fn log(&mut self, wanted: &str) -> String {
        let line = self.logs.find(|line| line.as_ref().is_ok_and(|line| line.contains(wanted)));
        line.unwrap_or_else(|| panic!("it ended without {wanted:?}")).unwrap()
    }

    fn net(&self) -> Value {
        let page = get(self.server.address("metrics"), "/net");
        let body = page.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {page}"))
    }

    fn net_until(&self, wanted: &str) {
        get_until(self.server.address("metrics"), "/net", wanted);
    }

    fn join(&self, comtree: u32) -> PollClient {
        let builder = PollClient::builder(self.server.address("relay")).timeout(PATIENCE);
        let mut client = builder.comtree(Comtree(comtree)).connect_blocking().unwrap();
        assert!(matches!(client.try_next_event(), Some(Event::Connected { .. })));
        client
    }
}

/// Publishes until the other one gets it: routes and subscriptions may be on their way.
fn delivers(from: &mut PollClient, to: &mut PollClient, group: u32) -> bool {
    let group = Group::try_from(group).unwrap();
    drop(to.subscribe(group, Level(0)));
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let _ = from.publish(group, Level(0), b"hello");
        to.wait(Duration::from_millis(10));
        assert!(from.poll() && to.poll(), "neither has left");
        if to.try_recv().is_some_and(|update| update.group == Some(group)) {
            return true;
        }
    }
    false
}

/// One branch of comtree 1, on a relay with this site.
fn comtree(site: u16, link: &str, role: &str, of_neighbour: u16) -> String {
    format!(
        "[[comtree]]\nid = 1\nsite = {site}\n\
         branches = [{{ link = {link:?}, role = {role:?}, site = {of_neighbour} }}]\n"
    )
}

/// The shell, its JSON and the metrics of a relay show its link and its branch to its child.
fn assert_tools_show_the_branch_to_b(a: &Relay) {
    let address = a.server.address("metrics").to_string();
    let shown = run(&["net", "show", &address]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let has = |words: &[&str]| {
        shown.lines().any(|line| {
            let line: Vec<_> = line.split_whitespace().collect();
            line.starts_with(words)
        })
    };
    assert!(has(&["b", "up"]) && has(&["1", "1", "yes", "1", "b", "child", "2", "up"]), "{shown}");
    a.net_until("\"group\":8,\"participants\":0,\"branches\":1,\"level\":0");
    let json = run(&["net", "show", &address, "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["routes_cut"], false, "{json}");
    let metrics = get(a.server.address("metrics"), "/metrics");
    for line in ["link_up{link=\"b\"} 1.0", "comtree_branches{comtree=\"1\"} 1"] {
        let line = format!("canopy_relay_{line}");
        assert!(metrics.lines().any(|one| one == line), "no {line} in {metrics}");
    }
}

#[test]
fn relays_are_joined_and_parted_by_sighup_and_nobody_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut a = Relay::start(folder.path(), "a", "[[comtree]]\nid = 1\nsite = 1\n");
    let mut at_a = a.join(1);
    let of_b = a.as_link("a", "calls = true") + &comtree(2, "a", "parent", 1);
    let mut b = Relay::start(folder.path(), "b", &of_b);
    let mut at_b = b.join(1);
    // Nobody answers its call yet.
    b.net_until("\"up\":false,\"ups\":0");

    // The link and the branch come.
    let joined = b.as_link("b", "calls = false") + &comtree(1, "b", "child", 2);
    a.reload(&joined, "took the settings again changed=2");
    a.log("the link is up link=\"b\"");
    b.log("the link is up link=\"a\"");
    a.net_until("\"up\":true,\"ups\":1");
    b.net_until("\"up\":true,\"ups\":1");
    assert!(delivers(&mut at_b, &mut at_a, 7), "towards the core");
    assert!(delivers(&mut at_a, &mut at_b, 8), "to whom has subscribed");
    let net = b.net();
    assert_eq!(net["comtrees"][0]["core"], false);
    assert_eq!(net["comtrees"][0]["branches"][0]["role"], "parent");
    assert_eq!(a.net()["comtrees"][0]["core"], true);

    assert_tools_show_the_branch_to_b(&a);

    // A mistake changes nothing.
    let line = a.reload("[[comtree]]\nid = 1\nsite = 99999\n", "were not taken");
    assert!(line.contains("a.toml:9: site: 99999 is out of range"), "{line}");
    assert!(delivers(&mut at_a, &mut at_b, 9));

    // A comtree comes; what cannot change is named and stays.
    let second = "[[comtree]]\nid = 2\nsite = 5\n[limits]\nmax_groups = 77\n";
    let line = a.reload(&(joined.clone() + second), "stays as it is");
    assert!(line.contains("max_groups"), "{line}");
    a.log("took the settings again changed=1");
    let at_second = a.join(2);
    assert!(at_second.participant().is_some_and(|one| one.to_string().starts_with("5.")));

    // The link goes, and the other side hears so by itself.
    a.reload("[[comtree]]\nid = 1\nsite = 1\n", "took the settings again changed=3");
    b.log("the link is down");
    b.net_until("\"up\":false");
    a.net_until("\"links\":[]");
    assert_eq!(a.net()["comtrees"].as_array().map(Vec::len), Some(1));
    for client in [&mut at_a, &mut at_b] {
        assert!(client.poll() && client.is_connected());
        let event = client.try_next_event();
        assert!(event.is_none(), "nothing has happened to it: {event:?}");
    }
    drop((at_a, at_second));
    assert_eq!(a.server.terminate()["event"], "stopped");
}

#[test]
fn neighbours_change_their_roles_without_the_loss_of_an_update() {
    let folder = tempfile::tempdir().unwrap();
    let a = Relay::start(folder.path(), "a", "[[comtree]]\nid = 1\nsite = 1\n");
    let link_to_a = a.as_link("a", "calls = true");
    let b = Relay::start(folder.path(), "b", &(link_to_a.clone() + &comtree(2, "a", "parent", 1)));
    let link_to_b = b.as_link("b", "calls = false");
    a.ask_to_reload(&(link_to_b.clone() + &comtree(1, "b", "child", 2)));
    let mut clients = [a.join(1), b.join(1)];
    let [at_a, at_b] = &mut clients;
    assert!(delivers(at_a, at_b, 1) && delivers(at_b, at_a, 2));

    // Both become core peers, then b becomes the parent of a. Who is to send more comes first.
    let steps = [
        (0, link_to_b.clone() + &comtree(1, "b", "core-peer", 2), "\"role\":\"core-peer\""),
        (1, link_to_a.clone() + &comtree(2, "a", "core-peer", 1), "\"role\":\"core-peer\""),
        (0, link_to_b + &comtree(1, "b", "parent", 2), "\"role\":\"parent\""),
        (1, link_to_a + &comtree(2, "a", "child", 1), "\"role\":\"child\""),
    ];
    let mut relays = [a, b];
    let mut number = 0u32;
    let mut send_some = |clients: &mut [PollClient; 2]| {
        for _ in 0..50 {
            number += 1;
            let [at_a, at_b] = clients;
            passes(at_a, at_b, 1, number);
            passes(at_b, at_a, 2, number);
        }
    };
    for (relay, settings, role) in steps {
        if role.contains("child") {
            relays[0].log("the parent knows all that is wanted here");
        }
        let relay = &relays[relay];
        relay.ask_to_reload(&settings);
        let deadline = Instant::now() + PATIENCE;
        while !get(relay.server.address("metrics"), "/net").contains(role) {
            assert!(Instant::now() < deadline, "never {role}");
            send_some(&mut clients);
        }
        send_some(&mut clients);
    }
}

/// Publishes a number, which is the next of the group's that the other one gets.
fn passes(from: &mut PollClient, to: &mut PollClient, group: u32, number: u32) {
    let group = Group::try_from(group).unwrap();
    from.publish(group, Level(0), &number.to_be_bytes()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "update {number} to {group} is lost");
        to.wait(Duration::from_millis(10));
        match to.try_recv() {
            // What is left of `delivers`.
            Some(update) if update.payload[..] == *b"hello" => {}
            Some(update) => return assert_eq!(update.payload[..], number.to_be_bytes()),
            None => {}
        }
    }
}

#[test]
fn another_trust_file_is_taken_at_sighup_and_one_with_a_mistake_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let trust = |name: &str| {
        let secret = folder.path().join(format!("{name}.secret"));
        let public = run(&["token", "key", "--out", secret.to_str().unwrap()]).stdout;
        let file = folder.path().join(format!("{name}.toml"));
        let public = String::from_utf8(public).unwrap();
        fs::write(&file, format!("keys = [{:?}]\n", public.trim())).unwrap();
        format!("trust = {:?}\n", file.to_str().unwrap())
    };
    let (first, second) = (trust("first"), trust("second"));
    let mut relay = Relay::start(folder.path(), "a", &first);
    fs::write(folder.path().join("third.toml"), "keys = []").unwrap();
    let line = relay.reload(&first.replace("first", "third"), "were not taken");
    assert!(line.contains("third.toml") && line.contains("names no keys"), "{line}");
    relay.reload(&second, "took the trust file");
    relay.reload("", "trust stays as it is");
}
