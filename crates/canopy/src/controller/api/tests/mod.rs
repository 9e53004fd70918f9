//! The API over a socket, with a real controller, a store in memory, and relays that do as they are
//! told.

mod daemon;
mod following;
mod joining;
mod meshed;
mod requested;

use super::*;
use crate::controller::credentials::Admits;
use crate::controller::joins::{JoinAsk, LeaveAsk};
use crate::page::client;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use canopy_control::storage::MemoryStorage;
use canopy_control::{
    Controller, Item, LinkReport, MemberState, Name, NewRelay, RelayId, RelaySide, Retry, Settings,
};
use canopy_plan::{Limits, Rate};
use canopy_token::{KeySet, Revocations, SigningKey, UnixTime};
use canopy_wire::Time;
use daemon::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

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
    let (status, _) = daemon.send("DELETE", &format!("{path}/28672.64?bar_s=600"), "").await;
    assert_eq!(status, StatusCode::ACCEPTED);
    daemon.until("/v1/health", |health| health["members"] == 0).await;
    let (status, barred) = daemon.send("POST", path, &new_member(1)).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{barred}");
    assert_eq!(barred["error"]["where"], "world lobby");
    assert_eq!(daemon.send("POST", path, &new_member(2)).await.0, StatusCode::OK);
    // So are all who are called so, and who has left by itself just now.
    let (status, none) = daemon.send("DELETE", &format!("{path}?subject=nobody"), "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(none["error"]["what"].as_str().unwrap().contains("\"nobody\""), "{none}");
    assert_eq!(daemon.send("DELETE", path, "").await.0, StatusCode::BAD_REQUEST);
    let subject: serde_json::Value = serde_json::from_str(&new_member(2)).unwrap();
    let all = format!("{path}?subject={}&bar_s=600", subject["subject"].as_str().unwrap());
    let (status, kicked) = daemon.send("DELETE", &all, "").await;
    assert_eq!((status, &kicked["kicked"]), (StatusCode::ACCEPTED, &1.into()));
    assert_eq!(daemon.send("POST", path, &new_member(2)).await.0, StatusCode::FORBIDDEN);
    let (status, _) =
        daemon.send("DELETE", &format!("{path}/28672.65?bar_s=99999999999"), "").await;
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
async fn how_a_world_shares_is_set_while_members_are_in_and_nonsense_names_its_field_and_range() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    daemon.send("POST", "/v1/worlds/lobby/members", &new_member(1)).await;
    let path = "/v1/worlds/lobby";
    let world = daemon.get(path).await;
    let of = |world: &Value| {
        ["floor_ms", "levels_first", "comtree_budget"].map(|field| world[field].clone())
    };
    let budget =
        |down: u64| json!({ "up_bits": 0, "up_packets": 0, "down_bits": down, "down_packets": 0 });
    assert_eq!(of(&world), [json!(2000), json!(false), budget(0)]);
    let change = json!({ "floor_ms": 500, "comtree_budget": { "down_bits": 1_000_000 } });
    let (status, world) = daemon.send("PATCH", path, &change.to_string()).await;
    assert_eq!(
        (status, of(&world)),
        (StatusCode::OK, [json!(500), json!(false), budget(1_000_000)])
    );
    let (_, world) = daemon.send("PATCH", path, r#"{"levels_first": true}"#).await;
    assert_eq!(of(&world), [json!(500), json!(true), budget(1_000_000)], "what is not named stays");
    for (wrong, place, range) in [
        (json!({ "floor_ms": 99 }), "floor_ms", "100 to 60000"),
        (json!({ "floor_ms": 70_000 }), "floor_ms", "100 to 60000"),
        (
            json!({ "comtree_budget": { "up_bits": 5_000_000_000_000_u64 } }),
            "comtree_budget.up_bits",
            "0 to 4398046511104",
        ),
        (json!({ "levels_first": "yes" }), "body, line 1, column 21", "openapi"),
    ] {
        let new = json!({ "name": "other" });
        let new = [&new, &wrong].into_iter().filter_map(Value::as_object).flatten();
        let new =
            new.map(|(key, value)| (key.clone(), value.clone())).collect::<serde_json::Map<_, _>>();
        for (method, path, body) in
            [("PATCH", path, wrong.clone()), ("POST", "/v1/worlds", Value::Object(new))]
        {
            let (status, refused) = daemon.send(method, path, &body.to_string()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{refused}");
            let (said, remedy) = (&refused["error"]["where"], &refused["error"]["remedy"]);
            assert!(remedy.as_str().unwrap().contains(range), "{refused}");
            assert!(method == "POST" || said == place, "{refused}");
        }
    }
    assert_eq!(daemon.get(path).await, world, "nothing has changed");
}

#[tokio::test]
async fn a_move_is_planned_before_it_is_made() {
    let daemon = Daemon::start(2).await;
    daemon.world("lobby", 1).await;
    let link =
        json!({ "ends": ["a", "b"], "bits": 1_000_000_000, "packets": 1_000_000, "delay_us": 9 });
    daemon.send("POST", "/v1/links", &link.to_string()).await;
    daemon.until("/v1/links", |all| all["links"][0]["usable"] == true).await;
    for number in 1..=2 {
        daemon.send("POST", "/v1/worlds/lobby/members", &new_member(number)).await;
    }
    let before = daemon.get("/v1/worlds/lobby").await;
    let other = &before["comtrees"][0]["tree"][1]["relay"];
    let path = format!("/v1/worlds/lobby/move?root={}&method=spt", other.as_str().unwrap());
    let planned = &daemon.get(&path).await["comtrees"][0];
    assert_eq!((&planned["tree"][0]["relay"], &planned["hung"]), (other, &json!(2)), "{planned}");
    assert_eq!(planned["tree"][1]["link"], 1);
    assert_eq!(daemon.get("/v1/worlds/lobby").await, before, "nothing has changed");
    for wrong in ["?method=luck", "?stretch=2", "?method=stretch&stretch=0.5"] {
        let path = format!("/v1/worlds/lobby/move{wrong}");
        let (status, refused) = daemon.send("GET", &path, "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{wrong}: {refused}");
    }
    let (status, moving) = daemon.send("POST", &path, "").await;
    assert_eq!(status, StatusCode::OK, "{moving}");
    let (status, refused) = daemon.send("GET", &path, "").await;
    assert_eq!(status, StatusCode::CONFLICT, "{refused}");
}

#[tokio::test]
async fn links_and_relays_are_taken_away() {
    let daemon = Daemon::start(2).await;
    let link = json!({ "ends": ["a", "b"], "bits": 1000, "packets": 10, "delay_us": 9 });
    let (_, link) = daemon.send("POST", "/v1/links", &link.to_string()).await;
    let path = format!("/v1/links/{}", link["id"]);
    assert_eq!(link["removing"], false);
    let wrong = daemon.send("DELETE", &format!("{path}?force=maybe"), "").await;
    assert_eq!(wrong.0, StatusCode::BAD_REQUEST);
    assert_eq!(daemon.send("DELETE", &path, "").await.0, StatusCode::NO_CONTENT);
    let forced = format!("{path}?force=true");
    assert_eq!(daemon.send("DELETE", &forced, "").await.0, StatusCode::NOT_FOUND);
    let keep = format!("{path}/keep");
    assert_eq!(daemon.send("POST", &keep, "").await.0, StatusCode::NOT_FOUND);
    assert_eq!(daemon.send("DELETE", "/v1/relays/b", "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(daemon.get("/v1/relays").await["relays"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_relay_with_members_goes_once_they_have_and_stays_if_that_is_taken_back() {
    let daemon = Daemon::start(2).await;
    let link = json!({ "ends": ["a", "b"], "bits": 1000, "packets": 10, "delay_us": 9 });
    let (_, link) = daemon.send("POST", "/v1/links", &link.to_string()).await;
    let (status, kept) = daemon.send("POST", &format!("/v1/links/{}/keep", link["id"]), "").await;
    assert_eq!((status, &kept["removing"]), (StatusCode::OK, &json!(false)));
    daemon.world("lobby", 1).await;
    let (_, joined) = daemon.send("POST", "/v1/worlds/lobby/members", &new_member(1)).await;
    let relay = joined["relay"]["name"].as_str().unwrap();
    let path = format!("/v1/relays/{relay}");
    let stands = async || {
        let relay = daemon.get(&path).await;
        (relay["state"].clone(), relay["removing"].clone())
    };
    assert_eq!(daemon.send("DELETE", &path, "").await.0, StatusCode::ACCEPTED);
    assert_eq!(stands().await, (json!("draining"), json!(true)));
    let (status, refused) = daemon.send("DELETE", &format!("{path}?force=true"), "").await;
    let place = json!(format!("relay {relay}"));
    assert_eq!((status, &refused["error"]["where"]), (StatusCode::CONFLICT, &place), "{refused}");
    daemon.send("POST", &format!("{path}/undrain"), "").await;
    assert_eq!(stands().await, (json!("up"), json!(false)));
    assert_eq!(daemon.send("DELETE", &path, "").await.0, StatusCode::ACCEPTED);
    let member = format!("/v1/worlds/lobby/members/{}", joined["address"].as_str().unwrap());
    daemon.send("DELETE", &member, "").await;
    daemon.until("/v1/relays", |all| all["relays"].as_array().unwrap().len() == 1).await;
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
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let mut told = daemon.events().await;
    daemon.send("POST", "/v1/worlds/lobby/members", &new_member(1)).await;
    let admitted = json!({"event": "admitted", "world": "lobby", "address": "28672.64"});
    while told.next().await != admitted {}
}

#[tokio::test]
async fn who_is_not_let_in_for_want_of_room_is_told_of_with_figures_and_counted() {
    let daemon = Daemon::start(1).await;
    daemon.world("lobby", 1).await;
    let mut told = daemon.events().await;
    let path = "/v1/worlds/lobby/members";
    for number in 1..=3 {
        let mut new: Value = serde_json::from_str(&new_member(number)).unwrap();
        new["budget"] = json!({ "up_bits": 1, "up_packets": 1, "down_bits": 2_000_000_000_u64,
            "down_packets": 1 });
        let (status, refused) = daemon.send("POST", path, &new.to_string()).await;
        assert_eq!(status, StatusCode::CONFLICT, "{refused}");
    }
    let mut times = 0;
    while times < 3 {
        let event = told.next().await;
        if event["event"] == "not_let_in" {
            assert_eq!(event["world"], "lobby");
            assert_eq!(event["where"], "the uplink of a, sending", "{event}");
            assert!(event["asked"].as_str().unwrap().starts_with("2000000000 bit/s"), "{event}");
            assert!(event["free"].as_str().unwrap().starts_with("900000000 bit/s"), "{event}");
            times += event["times"].as_u64().unwrap();
        }
    }
    let counts = &daemon.get("/v1/health").await["not_let_in"];
    assert_eq!((times, counts), (3, &json!({ "refusals": 3, "untold": 0 })));
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
