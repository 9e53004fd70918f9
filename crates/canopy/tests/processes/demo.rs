//! The demo's overlay, from outside: links are cut and mended, relays killed, brought back and drained, by
//! its own page alone; and its controller mends what it can.

use crate::support::Server;
use serde_json::Value;
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

struct Demo {
    /// Ends it when dropped.
    _server: Server,
    console: SocketAddr,
}

impl Demo {
    fn start() -> Demo {
        let flags = ["--json", "--walkers", "20", "--console", "127.0.0.1:0", "--threads", "1"];
        let server = Server::start(&[&["demo", "--listen", "127.0.0.1:0"], &flags[..]].concat());
        assert_eq!(server.ready["relays"].as_array().map(Vec::len), Some(5));
        let url = server.ready["console"].as_str().unwrap();
        let console = url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        Demo { _server: server, console }
    }

    /// Does something as a page of `origin` would; returns the status.
    fn post(&self, deed: &str, origin: &str) -> u16 {
        let mut stream = TcpStream::connect(self.console).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let host = self.console;
        write!(
            stream,
            "POST /demo/{deed} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }

    fn act(&self, deed: &str) -> u16 {
        self.post(deed, &format!("http://{}", self.console))
    }

    /// What pages are told for half a minute; of a page that looks through a walker, with what that receives.
    fn frames(&self, viewer: Option<u32>) -> impl Iterator<Item = Value> {
        let mut stream = TcpStream::connect(self.console).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let query = viewer.map_or_else(String::new, |viewer| format!("?viewer={viewer}"));
        write!(stream, "GET /events{query} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .filter(|frame| frame["net"].is_object())
            .take(300)
    }

    /// Looks at the relays until they are as wanted.
    fn until(&self, what: &str, is_so: impl Fn(&Value, &Value) -> bool) {
        let found = self.frames(None).find(|frame| is_so(&frame["net"], &frame["crowd"]));
        assert!(found.is_some(), "never in 30 s: {what}");
    }
}

fn all_up(net: &Value) -> bool {
    let are_up = |what: &str| net[what].as_array().unwrap().iter().all(|one| one["up"] == true);
    are_up("relays") && are_up("links")
}

/// How many participants have sessions, if nobody lacks one.
fn all_served(net: &Value) -> Option<u64> {
    let relays = net["relays"].as_array().unwrap();
    let served = relays.iter().map(|relay| relay["participants"].as_u64().unwrap());
    relays.iter().all(|relay| relay["lost"] == 0).then(|| served.sum())
}

/// The world's tree: the relays at the ends of its links.
fn tree(net: &Value) -> impl Iterator<Item = &Value> {
    net["links"].as_array().unwrap().iter().filter(|link| link["tree"] == true)
}

/// Whether the tree joins so many relays, over links that are up.
fn is_whole(net: &Value, relays: usize) -> bool {
    tree(net).count() == relays - 1 && tree(net).all(|link| link["up"] == true)
}

#[test]
fn links_are_cut_and_the_tree_goes_around_them() {
    let demo = Demo::start();
    let link = Cell::new(0);
    demo.until("all up, and everybody there", |net, _| {
        link.set(tree(net).find_map(|link| link["id"].as_u64()).unwrap_or(0));
        all_up(net) && all_served(net) == Some(20) && is_whole(net, 5)
    });
    let link = link.get();
    assert_eq!(demo.post(&format!("links/{link}/cut"), "http://evil.example"), 403);
    assert_eq!(demo.act("links/9999/cut"), 409);
    assert_eq!(demo.act(&format!("links/{link}/break")), 404);
    assert_eq!(demo.act(&format!("links/{link}/cut")), 204);
    demo.until("it is cut, and the tree is whole without it", |net, _| {
        let links = net["links"].as_array().unwrap();
        let cut = links.iter().find(|one| one["id"] == link).unwrap();
        cut["cut"] == true && cut["up"] == false && cut["tree"] == false && is_whole(net, 5)
    });
    assert_eq!(demo.act(&format!("links/{link}/cut")), 409, "it is cut already");
    assert_eq!(demo.act(&format!("links/{link}/mend")), 204);
    demo.until("all up again", |net, _| all_up(net) && is_whole(net, 5));
}

#[test]
fn participants_of_a_relay_that_is_killed_go_on_at_others() {
    let demo = Demo::start();
    demo.until("everybody there", |net, _| all_up(net) && all_served(net) == Some(20));
    assert_eq!(demo.act("relays/1/kill"), 204);
    let told = Cell::new(false);
    demo.until("the others serve everybody, over a tree of their own", |net, _| {
        let lost = |event: &Value| event["event"] == "relay_lost" && event["relay"] == "relay-2";
        told.set(told.get() || net["events"].as_array().unwrap().iter().any(lost));
        let is_down = net["relays"][1]["up"] == false && net["relays"][1]["participants"] == 0;
        is_down && all_served(net) == Some(20) && is_whole(net, 4) && told.get()
    });
    assert_eq!(demo.act("relays/1/kill"), 409);
    assert_eq!(demo.act("relays/1/revive"), 204);
    demo.until("all up", |net, _| all_up(net) && all_served(net) == Some(20));
}

#[test]
fn a_relay_drains_and_serves_again() {
    let demo = Demo::start();
    demo.until("everybody there", |net, _| all_up(net) && all_served(net) == Some(20));
    assert_eq!(demo.act("relays/7/drain"), 409);
    assert_eq!(demo.act("relays/2/drain"), 204);
    demo.until("it drains, and its walkers are at others", |net, _| {
        let relay = &net["relays"][2];
        relay["drains"] == true && relay["participants"] == 0 && all_served(net) == Some(20)
    });
    assert_eq!(demo.act("relays/2/undrain"), 204);
    demo.until("it serves", |net, _| net["relays"][2]["drains"] == false && all_up(net));
}

#[test]
fn the_world_moves_to_another_root() {
    let demo = Demo::start();
    let next = Cell::new(0);
    demo.until("a relay that is not the root", |net, _| {
        let relays = net["relays"].as_array().unwrap();
        let other = relays.iter().position(|relay| relay["root"] == false);
        next.set(other.unwrap_or(0));
        all_up(net) && all_served(net) == Some(20) && is_whole(net, 5)
    });
    assert_eq!(demo.act("relays/9/root"), 409);
    assert_eq!(demo.act(&format!("relays/{}/root", next.get())), 204);
    demo.until("it is the root", |net, _| {
        net["relays"][next.get()]["root"] == true && is_whole(net, 5)
    });
}

/// Whom no page looks through has the budget, too: all deliveries together become fewer.
#[test]
fn everyone_is_sent_less_and_everything_again() {
    let demo = Demo::start();
    demo.until("everybody there", |net, _| all_up(net) && all_served(net) == Some(20));
    let deliveries = |frame: &Value| frame["relay"]["deliveries_per_s"].as_f64().unwrap_or(0.0);
    let mut frames = demo.frames(Some(3)).skip(30);
    let full = frames.next().map(|frame| deliveries(&frame)).unwrap();
    assert!(full > 100.0, "{full}");
    assert_eq!(demo.act("viewers/some/8000"), 404);
    assert_eq!(demo.act("viewers/all/0"), 404);
    assert_eq!(demo.post("viewers/all/8000", "http://evil.example"), 403);
    assert_eq!(demo.act("viewers/9/8000"), 409, "no page looks through that one");
    assert_eq!(demo.act("viewers/all/8000"), 204);
    let is_limited = |frame: &Value| {
        frame["everyone_bits"] == 8000
            && frame["viewer"]["limit_bits"] == 8000
            && deliveries(frame) < full / 2.0
    };
    assert!(frames.any(|frame| is_limited(&frame)), "never less than half of {full} deliveries/s");
    assert_eq!(demo.act("viewers/3/16000"), 204);
    let is_apart =
        |frame: &Value| frame["everyone_bits"] == 8000 && frame["viewer"]["limit_bits"] == 16_000;
    assert!(frames.any(|frame| is_apart(&frame)), "one has a budget of its own");
    drop(frames);
    let other = demo.frames(Some(4)).any(|frame| frame["viewer"]["limit_bits"] == 8000);
    assert!(other, "another has what everyone has");
    let mut frames = demo.frames(Some(3));
    assert_eq!(demo.act("viewers/all/everything"), 204);
    let is_free = |frame: &Value| {
        let bits = [&frame["everyone_bits"], &frame["viewer"]["limit_bits"]];
        bits.iter().all(|bits| bits.is_null()) && deliveries(frame) > full * 0.7
    };
    assert!(frames.any(|frame| is_free(&frame)), "never {full} deliveries/s again");
}
