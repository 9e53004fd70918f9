//! The API over a socket, with a real controller, a store in memory, and relays that do as they are
//! told.

use super::*;
use crate::controller::joins::{Admits, JoinAsk};
use crate::page::client;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use canopy_control::storage::MemoryStorage;
use canopy_control::{
    Controller, Item, LinkReport, Name, NewRelay, RelayId, RelaySide, Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_token::{KeySet, Revocations, SigningKey, UnixTime};
use canopy_wire::Time;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

const SECRET: &str = "a secret of sixteen or more";
const SOON: Duration = Duration::from_secs(20);

/// A controller with its API, and relays a, b, … without links.
struct Daemon {
    api: SocketAddr,
    handle: Handle,
    joins: Joins,
    issuer: SigningKey,
}

fn key(number: u8) -> SigningKey {
    SigningKey::from_seed([number; 32])
}

impl Daemon {
    async fn start(relays: u8) -> Daemon {
        Daemon::admitting(relays, Admits::Everybody).await
    }

    async fn admitting(relays: u8, admits: Admits) -> Daemon {
        let mut storage = MemoryStorage::default();
        let (settings, retry) = (Settings::default(), Retry::default());
        let now = crate::controller::driver::now();
        let mut controller = Controller::start(settings, retry, now, &mut storage).unwrap();
        let gigabit = Rate { bits: 1e9, packets: 1e6 };
        let ids: Vec<RelayId> = (0..relays)
            .map(|number| {
                let new = NewRelay {
                    name: Name::new(&char::from(b'a' + number).to_string()).unwrap(),
                    key: [number; 32],
                    native: ([127, 0, 0, 1], 4040 + u16::from(number)).into(),
                    uplink: Limits { send: gigabit, receive: gigabit },
                    places: 100,
                };
                controller.register(now, new).unwrap()
            })
            .collect();
        let (outgoing, incoming) = unbounded_channel();
        let handle = Handle::start(controller, storage, move |relay, message| {
            _ = outgoing.send((relay, message));
        });
        tokio::spawn(obey(ids, handle.clone(), incoming));
        let joins = Joins::start(handle.clone(), key(9), admits);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = listener.local_addr().unwrap();
        let router = Api::new(handle.clone(), joins.clone()).router(ApiSecret::new(SECRET));
        tokio::spawn(axum::serve(listener, router).into_future());
        let daemon = Daemon { api, handle, joins, issuer: key(9) };
        daemon
            .until("/v1/relays", |all| {
                let up =
                    all["relays"].as_array().unwrap().iter().filter(|relay| relay["state"] == "up");
                up.count() == usize::from(relays)
            })
            .await;
        daemon
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.api))
            .header("authorization", format!("Bearer {SECRET}"));
        self.request(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    async fn request(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = timeout(SOON, client().request(request)).await.unwrap().unwrap();
        let status = response.status();
        let bytes: Bytes = to_bytes(Body::new(response.into_body()), 1 << 20).await.unwrap();
        let value = serde_json::from_slice(&bytes);
        (
            status,
            value.unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned())),
        )
    }

    async fn get(&self, path: &str) -> Value {
        let (status, value) = self.send("GET", path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {value}");
        value
    }

    /// Asks until the answer is as wished for; each question waits for the controller's answer.
    async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = tokio::time::Instant::now();
        loop {
            let value = self.get(path).await;
            if is_so(&value) {
                return value;
            }
            assert!(begun.elapsed() < SOON, "{path} stays {value}");
            tokio::task::yield_now().await;
        }
    }

    async fn world(&self, name: &str, comtrees: u8) {
        let body = json!({ "name": name, "comtrees": comtrees,
            "channels": [{ "name": "chat", "first": 0, "groups": 16 }] });
        let (status, world) = self.send("POST", "/v1/worlds", &body.to_string()).await;
        assert_eq!(status, StatusCode::CREATED, "{world}");
    }
}

/// Relays that do as they are told, and say that they are there.
async fn obey(
    ids: Vec<RelayId>,
    handle: Handle,
    mut incoming: UnboundedReceiver<(RelayId, Vec<u8>)>,
) {
    let mut relays: BTreeMap<RelayId, RelaySide> =
        ids.into_iter().map(|id| (id, RelaySide::new(1))).collect();
    let mut beats = tokio::time::interval(Duration::from_millis(200));
    loop {
        tokio::select! {
            message = incoming.recv() => {
                let Some((id, message)) = message else { return };
                let relay = relays.get_mut(&id).unwrap();
                relay.handle_message(&message);
                while let Some(applying) = relay.poll_apply() {
                    if let Some(Item::Link { id, .. }) = &applying.after {
                        let report = LinkReport { link: *id, up: true, delay_us: 100 };
                        relay.set_link(crate::controller::driver::now(), report);
                    }
                    relay.applied(applying, Ok(()));
                }
            }
            _ = beats.tick() => {
                let now = crate::controller::driver::now();
                relays.values_mut().for_each(|relay| relay.handle_timeout(now));
            }
        }
        for (id, relay) in &mut relays {
            while let Some(answer) = relay.poll_transmit() {
                let id = *id;
                let told = handle.ask(move |controller: &mut Controller, now: Time| {
                    controller.handle_message(now, id, &answer);
                });
                if told.await.is_err() {
                    return;
                }
            }
        }
    }
}

fn client_key(number: u8) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode([number; 32])
}

fn new_member(number: u8) -> String {
    json!({ "subject": format!("player-{number}"), "client_key": client_key(number) }).to_string()
}

#[tokio::test]
async fn a_world_lives_from_its_creation_to_its_end() {
    let daemon = Daemon::start(1).await;
    daemon.world("eu/lobby", 2).await;
    let world = daemon.get("/v1/worlds/eu%2Flobby").await;
    assert_eq!(world["comtrees"].as_array().unwrap().len(), 2);
    assert_eq!(world["channels"][0]["name"], "chat");
    assert_eq!(world["mode"], "immediate");
    let (status, again) =
        daemon.send("POST", "/v1/worlds", &json!({ "name": "eu/lobby" }).to_string()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(again["error"]["where"], "world eu/lobby");
    assert_eq!(again["error"]["remedy"], "choose another name");
    let (status, joined) =
        daemon.send("POST", "/v1/worlds/eu%2Flobby/members", &new_member(1)).await;
    assert_eq!(status, StatusCode::OK, "{joined}");
    assert_eq!(daemon.get("/v1/worlds").await["worlds"][0]["members"], 1);
    let (status, _) = daemon.send("DELETE", "/v1/worlds/eu%2Flobby", "").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    daemon.until("/v1/worlds", |all| all["worlds"].as_array().unwrap().is_empty()).await;
}

#[tokio::test]
async fn a_backend_lets_somebody_in_and_the_token_is_good() {
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let link =
        json!({ "ends": ["a", "b"], "bits": 1_000_000_000, "packets": 1_000_000, "delay_us": 9 });
    daemon.send("POST", "/v1/links", &link.to_string()).await;
    daemon.until("/v1/links", |all| all["links"][0]["usable"] == true).await;
    let path = "/v1/worlds/lobby/members";
    let (status, joined) = daemon.send("POST", path, &new_member(1)).await;
    assert_eq!(status, StatusCode::OK, "{joined}");
    let keys = KeySet::new([daemon.issuer.public().clone()], &[], UnixTime(0)).unwrap();
    let now = UnixTime(crate::controller::driver::now().as_nanos() / 1_000_000_000);
    let token = joined["token"].as_str().unwrap();
    let claims = keys.verify(token, now, &Revocations::new(1)).unwrap().claims;
    assert_eq!(claims.client_key, [1; 32]);
    assert_eq!(claims.subject, "player-1");
    assert_eq!(claims.grant.address.unwrap().to_string(), joined["address"].as_str().unwrap());
    assert_eq!(claims.grant.world, "lobby");
    assert_eq!(claims.expires.to_string(), joined["until"].as_str().unwrap());
    assert_eq!(claims.grant.comtrees[0].comtree.0, joined["comtrees"][0].as_u64().unwrap() as u32);
    // The other relay is kept in mind, and who asks again has the same place.
    assert_ne!(joined["second"]["name"], joined["relay"]["name"]);
    let (_, again) = daemon.send("POST", path, &new_member(1)).await;
    assert_eq!((&again["address"], &again["relay"]), (&joined["address"], &joined["relay"]));
    assert_ne!(again["token"], joined["token"]);
    // Nothing was measured: the next goes where more is free.
    let (_, other) = daemon.send("POST", path, &new_member(2)).await;
    assert_eq!(other["relay"]["name"], joined["second"]["name"]);
}

#[tokio::test]
async fn members_are_listed_in_pages_and_sent_away() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let path = "/v1/worlds/lobby/members";
    for number in 1..=3 {
        assert_eq!(daemon.send("POST", path, &new_member(number)).await.0, StatusCode::OK);
    }
    let first = daemon.get(&format!("{path}?most=2")).await;
    assert_eq!((first["members"].as_array().unwrap().len(), &first["more"]), (2, &json!(true)));
    let last = first["members"][1]["address"].as_str().unwrap();
    let rest = daemon.get(&format!("{path}?after={last}")).await;
    assert_eq!((rest["members"].as_array().unwrap().len(), &rest["more"]), (1, &json!(false)));
    let one = daemon.get(&format!("{path}/{last}")).await;
    assert_eq!((&one["relay"], &one["state"]), (&json!("a"), &json!("held")));
    assert_eq!(daemon.send("DELETE", &format!("{path}/{last}"), "").await.0, StatusCode::ACCEPTED);
    daemon.until(path, |all| all["members"].as_array().unwrap().len() == 2).await;
    let (status, gone) = daemon.send("GET", &format!("{path}/{last}"), "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(gone["error"]["where"], format!("world lobby, member {last}"));
}

#[tokio::test]
async fn who_was_sent_away_is_kept_out_for_a_while() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let path = "/v1/worlds/lobby/members";
    daemon.send("POST", path, &new_member(1)).await;
    let (status, _) = daemon.send("DELETE", &format!("{path}/1.64?bar_s=600"), "").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    let (status, barred) = daemon.send("POST", path, &new_member(1)).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{barred}");
    assert_eq!(barred["error"]["where"], "world lobby");
    assert_eq!(daemon.send("POST", path, &new_member(2)).await.0, StatusCode::OK);
    let (status, _) = daemon.send("DELETE", &format!("{path}/1.65?bar_s=99999999999"), "").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_world_changes_where_it_can() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let path = "/v1/worlds/lobby";
    let (status, world) =
        daemon.send("PATCH", path, r#"{"tick_ms": 50, "levels": 3, "core": "all"}"#).await;
    assert_eq!(status, StatusCode::OK, "{world}");
    let found = (&world["mode"], &world["tick_ms"], &world["levels"], &world["core"]);
    assert_eq!(found, (&json!("periodic"), &json!(50), &json!(3), &json!("all")));
    assert_eq!(world["channels"][0]["name"], "chat", "what was not named stays");
    assert_eq!(daemon.get(path).await, world);
    daemon.send("POST", "/v1/worlds/lobby/members", &new_member(1)).await;
    let (status, fixed) = daemon.send("PATCH", path, r#"{"mode": "immediate"}"#).await;
    assert_eq!(status, StatusCode::CONFLICT, "{fixed}");
    assert!(fixed["error"]["what"].as_str().unwrap().contains("the mode"), "{fixed}");
    let world = daemon.get(path).await;
    let hop = &world["comtrees"][0]["tree"][0];
    assert_eq!(
        (&hop["relay"], &hop["members"], &hop["core"]),
        (&json!("a"), &json!(1), &json!(true))
    );
}

#[tokio::test]
async fn links_and_relays_are_taken_away() {
    let daemon = Daemon::start(2).await;
    let link = json!({ "ends": ["a", "b"], "bits": 1000, "packets": 10, "delay_us": 9 });
    let (_, link) = daemon.send("POST", "/v1/links", &link.to_string()).await;
    let path = format!("/v1/links/{}", link["id"]);
    assert_eq!(daemon.send("DELETE", &path, "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(daemon.send("DELETE", &path, "").await.0, StatusCode::NOT_FOUND);
    let (status, refused) = daemon.send("DELETE", "/v1/relays/b", "").await;
    assert_eq!((status, &refused["error"]["where"]), (StatusCode::CONFLICT, &json!("relay b")));
    daemon.send("POST", "/v1/relays/b/drain", "").await;
    assert_eq!(daemon.send("DELETE", "/v1/relays/b", "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(daemon.get("/v1/relays").await["relays"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_drained_relay_takes_nobody_until_it_may_again() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let (status, relay) = daemon.send("POST", "/v1/relays/a/drain", "").await;
    assert_eq!((status, &relay["state"]), (StatusCode::OK, &json!("draining")));
    let path = "/v1/worlds/lobby/members";
    let (status, refused) = daemon.send("POST", path, &new_member(1)).await;
    assert_eq!((status, &refused["error"]["where"]), (StatusCode::CONFLICT, &json!("relays")));
    daemon.send("POST", "/v1/relays/a/undrain", "").await;
    assert_eq!(daemon.send("POST", path, &new_member(1)).await.0, StatusCode::OK);
    let (status, _) = daemon.send("POST", "/v1/relays/z/drain", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_refusal_names_what_is_full_what_was_asked_and_what_is_free() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let mut new: Value = serde_json::from_str(&new_member(1)).unwrap();
    new["budget"] = json!({ "up_bits": 1, "up_packets": 1, "down_bits": 2_000_000_000_u64,
        "down_packets": 1 });
    let (status, refused) = daemon.send("POST", "/v1/worlds/lobby/members", &new.to_string()).await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    let wrong = &refused["error"];
    assert!(wrong["where"].as_str().unwrap().contains("uplink of a"), "{refused}");
    assert!(wrong["asked"].is_string() && wrong["free"].is_string(), "{refused}");
    let accounts = daemon.get("/v1/accounts").await;
    let out = accounts["accounts"].as_array().unwrap().iter().find(|one| one["kind"] == "out");
    assert_eq!(out.unwrap()["free"]["bits"], 900_000_000, "nothing was kept of it");
}

#[tokio::test]
async fn links_are_added_and_told_of() {
    let daemon = Daemon::start(2).await;
    let link = |ends: [&str; 2], more: &str| {
        format!(r#"{{"ends": {ends:?}, "bits": 1000, "packets": 10, "delay_us": 5{more}}}"#)
    };
    let (status, made) = daemon.send("POST", "/v1/links", &link(["a", "b"], "")).await;
    assert_eq!((status, &made["ends"]), (StatusCode::CREATED, &json!(["a", "b"])), "{made}");
    assert_eq!(daemon.get("/v1/links").await["links"][0], made);
    let (status, own) = daemon.send("POST", "/v1/links", &link(["a", "a"], "")).await;
    assert_eq!((status, &own["error"]["where"]), (StatusCode::BAD_REQUEST, &json!("ends")));
    let (status, unknown) =
        daemon.send("POST", "/v1/links", &link(["a", "b"], ", \"mtu\": 1")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(unknown["error"]["what"].as_str().unwrap().contains("`mtu`"), "{unknown}");
    assert!(unknown["error"]["where"].as_str().unwrap().starts_with("body, line 1"), "{unknown}");
}

#[tokio::test]
async fn without_the_secret_nothing_is_told_but_health_and_the_description() {
    let daemon = Daemon::start(0).await;
    let with = |path: &str, header: Option<&str>| {
        let mut request = Request::builder().uri(format!("http://{}{path}", daemon.api));
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        request.body(Body::empty()).unwrap()
    };
    for header in [None, Some("Bearer wrong"), Some("Basic x"), Some("Bearer")] {
        let (status, refused) = daemon.request(with("/v1/worlds", header)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{header:?}");
        assert_eq!(refused["error"]["where"], "credential");
    }
    for path in ["/v1/health", "/v1/openapi.json", "/v1"] {
        assert_eq!(daemon.request(with(path, None)).await.0, StatusCode::OK, "{path}");
    }
    assert_eq!(daemon.get("/v1/health").await["life"], 1);
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_as_json() {
    let daemon = Daemon::start(0).await;
    let long = format!("{{\"name\": \"{}\"}}", "a".repeat(MOST_BODY));
    for (method, path, body, status, place) in [
        ("GET", "/v1/nothing", "", 404, "path"),
        ("PUT", "/v1/worlds", "", 405, "method"),
        ("POST", "/v1/worlds", "{", 400, "body, line 1, column 1"),
        ("POST", "/v1/worlds", "{\"name\": \"A\"}", 400, "name"),
        ("POST", "/v1/worlds", long.as_str(), 413, "body"),
        ("GET", "/v1/worlds/a/members?most=0", "", 404, "world a"),
        ("GET", "/v1/worlds/a/members?mst=1", "", 400, "query"),
        ("GET", "/v1/worlds/%ff", "", 400, "path"),
        ("GET", "/v1/relays/r", "", 404, "relay r"),
    ] {
        let (found, refused) = daemon.send(method, path, body).await;
        assert_eq!(found.as_u16(), status, "{method} {path}: {refused}");
        assert_eq!(refused["error"]["where"], place, "{method} {path}: {refused}");
        assert!(!refused["error"]["remedy"].as_str().unwrap().is_empty(), "{refused}");
    }
}

#[tokio::test]
async fn what_happens_is_told_as_a_stream() {
    use futures_util::StreamExt;
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let request = Request::builder()
        .uri(format!("http://{}/v1/events", daemon.api))
        .header("authorization", format!("Bearer {SECRET}"));
    let response = client().request(request.body(Body::empty()).unwrap()).await.unwrap();
    let mut parts = Body::new(response.into_body()).into_data_stream();
    daemon.send("POST", "/v1/worlds/lobby/members", &new_member(1)).await;
    let mut text = String::new();
    while !text.contains(r#"{"event":"admitted","world":"lobby","address":"1.64"}"#) {
        let part = timeout(SOON, parts.next()).await.expect(&text).unwrap().unwrap();
        text.push_str(std::str::from_utf8(&part).unwrap());
    }
}

#[tokio::test]
async fn every_route_is_described_and_the_page_shows_it() {
    let daemon = Daemon::start(0).await;
    let description = daemon.get("/v1/openapi.json").await;
    let named = description["components"]["schemas"].as_object().unwrap();
    let names: BTreeSet<&str> = named.keys().map(String::as_str).collect();
    let page = daemon.send("GET", "/v1", "").await.1;
    let page = page.as_str().unwrap();
    let mut refs = Vec::new();
    references(&description, &mut refs);
    for name in refs {
        assert!(names.contains(name.as_str()), "{name} is not described");
        assert!(page.contains(&format!("id=\"{name}\"")), "{name} is not on the page");
    }
    let paths = description["paths"].as_object().unwrap();
    assert!(paths.len() >= 13, "{:?}", paths.keys());
    for (path, ways) in paths {
        for (method, operation) in ways.as_object().unwrap() {
            let line = format!("{} {path}", method.to_uppercase());
            assert!(page.contains(&line), "{line} is not on the page");
            assert!(operation["responses"]["default"].is_object(), "{line}");
            // It is served: nothing else answers 405 or says that there is nothing.
            let path = path
                .replace("{world}", "w")
                .replace("{relay}", "r")
                .replace("{address}", "1.1")
                .replace("{link}", "1");
            if path != "/v1/events" {
                let (status, answer) = daemon.send(&method.to_uppercase(), &path, "").await;
                assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{line}");
                assert_ne!(answer["error"]["where"], "path", "{line}");
            }
        }
    }
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(name)) = fields.get("$ref") {
                found.push(name.rsplit('/').next().unwrap().to_owned());
            }
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn participants_join_with_a_credential_for_the_world() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trust.toml");
    std::fs::write(&path, format!("keys = [\"{}\"]", key(5).public())).unwrap();
    let trust = crate::trust::TrustFile::open(path).unwrap();
    let daemon = Daemon::admitting(1, Admits::Trusted(trust)).await;
    daemon.world("lobby", 2).await;
    let now = UnixTime(crate::controller::driver::now().as_nanos() / 1_000_000_000);
    let credential = |world: &str, up_bits, signer: &SigningKey| {
        let grant: canopy_token::Grant = serde_json::from_value(json!({
            "world": world, "budget": { "up_bits": up_bits },
            "comtrees": [{ "id": 1, "pub": { "groups": ["0-7"] } }],
        }))
        .unwrap();
        let claims = canopy_token::Claims {
            subject: "player".to_owned(),
            id: "1".to_owned(),
            expires: now.after(60),
            not_before: None,
            client_key: [1; 32],
            grant,
        };
        signer.issue(&claims).unwrap()
    };
    let ask = |credential: Option<String>| JoinAsk {
        world: "lobby".to_owned(),
        credential,
        client_key: [1; 32],
        budget: Some(canopy_api::Budget {
            up_bits: 1000,
            up_packets: 10,
            down_bits: 1000,
            down_packets: 10,
        }),
        measured: Vec::new(),
    };
    let good = credential("lobby", 1000, &key(5));
    for (credential, status, words) in [
        (None, 401, "there is none"),
        (Some(credential("lobby", 1000, &key(6))), 401, "not trusted"),
        (Some(credential("arena", 1000, &key(5))), 403, "for the world arena"),
        (Some(credential("lobby", 999, &key(5))), 403, "more than your credential grants, 999"),
    ] {
        let problem = daemon.joins.join(ask(credential)).await.unwrap_err();
        assert_eq!(problem.status, status, "{problem}");
        assert!(problem.to_string().contains(words), "{problem}");
    }
    let stolen = JoinAsk { client_key: [2; 32], ..ask(Some(good.clone())) };
    assert_eq!(daemon.joins.join(stolen).await.unwrap_err().status, 403);
    assert_eq!(daemon.get("/v1/health").await["members"], 0);

    let joined = daemon.joins.join(ask(Some(good.clone()))).await.unwrap();
    let claims = canopy_token::Claims::read_unverified(&joined.token).unwrap();
    // Of the world's two comtrees the credential grants the first, and there eight groups.
    assert_eq!(claims.grant.comtrees.len(), 1);
    assert_eq!(claims.grant.comtrees[0].comtree.0, joined.comtrees[0]);
    assert_eq!(claims.grant.comtrees[0].publish.groups[0].to_string(), "0-7");
    assert!(claims.grant.comtrees[0].subscribe.is_empty());
    assert_eq!(claims.grant.budget.up_bits, Some(1000));
    daemon.joins.leave("lobby".to_owned(), Some(&good), &[1; 32]).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    let gone = daemon.joins.leave("lobby".to_owned(), Some(&good), &[1; 32]).await.unwrap_err();
    assert_eq!(gone.status, 404);
}

#[tokio::test]
async fn many_join_at_once_and_each_has_an_address_of_its_own() {
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let join = |number: u8| {
        let joins = daemon.joins.clone();
        let ask = JoinAsk {
            world: "lobby".to_owned(),
            credential: None,
            client_key: [number; 32],
            budget: None,
            measured: Vec::new(),
        };
        tokio::spawn(async move { joins.join(ask).await.unwrap().address })
    };
    let all: Vec<_> = (0..50).map(join).collect();
    let mut addresses = BTreeSet::new();
    for one in all {
        addresses.insert(timeout(SOON, one).await.unwrap().unwrap());
    }
    assert_eq!(addresses.len(), 50);
    let members = daemon.handle.ask(|controller, _| controller.members().count()).await.unwrap();
    assert_eq!(members, 50);
}

#[tokio::test]
async fn a_participant_joins_stays_and_leaves_over_a_channel() {
    use crate::controller::participants::answer;
    use canopy_channel::{Channel, Hello, Join, Reply};
    use canopy_session::Identity;
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let (participant, controller) = (Identity::new([1; 32]), Identity::new([2; 32]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (joins, key) = (daemon.joins.clone(), *controller.public());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut channel = Channel::accept(stream, &controller, SOON).await.unwrap();
            let hello = channel.asked(SOON).await.unwrap();
            let caller = *channel.peer();
            let reply: Reply<Value> = answer(&joins, &caller, hello).await.unwrap();
            channel.reply(&reply).await.unwrap();
        }
    });
    let ask = async |hello: Hello| -> Result<Value, Value> {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut channel = Channel::call(stream, &participant, &key, SOON).await.unwrap();
        channel.ask::<Value>(&hello, SOON).await.map_err(|error| match error {
            canopy_channel::ChannelError::Refused(why) => why,
            other => panic!("{other}"),
        })
    };
    let join = |world: &str, relay: &str| Join {
        world: world.to_owned(),
        credential: None,
        budget: None,
        measured: vec![canopy_channel::Nearness { relay: relay.to_owned(), delay_us: 5 }],
    };
    let near = ask(Hello::Relays).await.unwrap();
    assert_eq!(near["relays"].as_array().unwrap().len(), 2);
    let joined = ask(Hello::Join(join("lobby", "b"))).await.unwrap();
    assert_eq!((&joined["relay"]["name"], &joined["second"]["name"]), (&json!("b"), &json!("a")));
    let claims = canopy_token::Claims::read_unverified(joined["token"].as_str().unwrap()).unwrap();
    assert_eq!(&claims.client_key, participant.public(), "the token is the caller's alone");
    let renewed = ask(Hello::Renew(join("lobby", "a"))).await.unwrap();
    assert_eq!((&renewed["address"], &renewed["relay"]), (&joined["address"], &joined["relay"]));
    let refused = ask(Hello::Join(join("arena", "b"))).await.unwrap_err();
    assert_eq!(refused["where"], "world arena");
    let leave = || Hello::Leave { world: "lobby".to_owned(), credential: None };
    ask(leave()).await.unwrap();
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    assert_eq!(ask(leave()).await.unwrap_err()["remedy"], "join it first");
}
