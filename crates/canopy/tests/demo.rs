//! The demo's relays, from outside: links are cut and mended, relays killed and brought back, by its
//! own page alone.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use support::Server;

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

    /// Looks at the relays until they are as wanted.
    fn until(&self, what: &str, is_so: impl Fn(&Value, &Value) -> bool) {
        let mut stream = TcpStream::connect(self.console).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let mut frames = lines
            .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
            .filter(|frame| frame["net"].is_object())
            .take(300);
        let found = frames.find(|frame| is_so(&frame["net"], &frame["crowd"]));
        assert!(found.is_some(), "never in 30 s: {what}");
    }
}

fn all_up(net: &Value) -> bool {
    let are_up = |what: &str| net[what].as_array().unwrap().iter().all(|one| one["up"] == true);
    are_up("relays") && are_up("links")
}

#[test]
fn links_are_cut_and_mended() {
    let demo = Demo::start();
    demo.until("all up, and everybody there", |net, _| {
        let relays = net["relays"].as_array().unwrap();
        all_up(net) && relays.iter().all(|relay| relay["participants"] == 4)
    });
    assert_eq!(demo.post("links/0/cut", "http://evil.example"), 403);
    assert_eq!(demo.act("links/9/cut"), 409);
    assert_eq!(demo.act("links/0/break"), 404);
    assert_eq!(demo.act("links/0/cut"), 204);
    demo.until("it is cut, and something is missing", |net, crowd| {
        let link = &net["links"][0];
        link["cut"] == true && link["up"] == false && crowd["missing"].as_u64() > Some(0)
    });
    assert_eq!(demo.act("links/0/cut"), 409, "it is cut already");
    assert_eq!(demo.act("links/0/mend"), 204);
    demo.until("all up again", |net, _| all_up(net));
}

#[test]
fn relays_are_killed_and_come_back_with_their_participants() {
    let demo = Demo::start();
    demo.until("everybody there", |net, _| all_up(net) && net["relays"][1]["participants"] == 4);
    assert_eq!(demo.act("relays/1/kill"), 204);
    demo.until("it is down, and so are its links and participants", |net, _| {
        let is_down = |link: &Value| {
            let relays = link["relays"].as_array().unwrap();
            !relays.contains(&Value::from(1)) || link["up"] == false
        };
        let relay = &net["relays"][1];
        relay["up"] == false
            && relay["lost"] == 4
            && net["links"].as_array().unwrap().iter().all(is_down)
    });
    assert_eq!(demo.act("relays/1/kill"), 409);
    assert_eq!(demo.act("relays/1/revive"), 204);
    demo.until("all up, and its participants are back", |net, _| {
        all_up(net) && net["relays"][1]["participants"] == 4 && net["relays"][1]["lost"] == 0
    });
}
