//! Bodies of the controller's HTTP API: whoever has its secret can send any.

use crate::bed::{Bed, input_of, requests};
use canopy_api::{
    AreasAsk, KickAllAsk, KickAsk, MembersAsk, MoveAsk, NewLink, NewMember, NewWorld, OverlayAsk,
    Problem, RemovalAsk, WorldChange, accounts, add_link, allow_relay, areas, create_world,
    delete_world, drain, enter, ground, health, joined, keep_link, kick, kick_all, links, member,
    members, move_world, overlay, parse, plan_move, relay, relays, relays_to_measure, remove_link,
    remove_relay, set_areas, set_world, world, worlds,
};
use canopy_control::{Controller, Enter};
use canopy_wire::Time;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// How many things can be asked.
pub const ASKS: u8 = 21;

/// Requests, each behind a byte that says what it asks and its length in two bytes. Whatever is sent,
/// every answer is JSON, what is refused has a status, a place and a remedy, and the accounts are right.
pub fn api(input: &[u8]) {
    run_api(input);
}

/// The same; returns what was asked that was not refused.
pub fn run_api(input: &[u8]) -> BTreeSet<u8> {
    let mut bed = Bed::new();
    let mut done = BTreeSet::new();
    for (at, (what, body)) in (0..).zip(requests(input)) {
        let now = Time::from_millis(at * 10);
        if is_done(ask(&mut bed.controller, now, what, body)) {
            done.insert(what % ASKS);
        }
        bed.settle(now);
    }
    done
}

/// Whether something was done, rather than refused as a refusal should be.
pub(crate) fn is_done(answer: Result<Value, Problem>) -> bool {
    let problem = match answer {
        Ok(answer) => {
            assert!(answer.is_object(), "an answer that is no object: {answer}");
            return true;
        }
        Err(problem) => problem,
    };
    assert!((400..600).contains(&problem.status), "{problem}");
    let wrong = &problem.error;
    assert!(![&wrong.what, &wrong.place, &wrong.remedy].iter().any(|t| t.is_empty()));
    let written = serde_json::to_string(&problem).expect("it can be written");
    let read: Problem = serde_json::from_str(&written).expect("it can be read");
    assert_eq!(read.error, problem.error);
    false
}

fn ask(controller: &mut Controller, now: Time, what: u8, body: &[u8]) -> Result<Value, Problem> {
    // In a path: text, whatever its bytes are.
    let text = String::from_utf8_lossy(body);
    let (of, at) = text.split_once('\n').unwrap_or((&text, ""));
    match what % ASKS {
        0 => json(&create_world(controller, &parse::<NewWorld>(body)?)?),
        1 if body.is_empty() => json(&worlds(controller)),
        1 => json(&set_world(controller, of, &parse::<WorldChange>(at.as_bytes())?)?),
        2 => json(&world(controller, of)?),
        3 => delete_world(controller, of).map(|()| serde_json::json!({})),
        4 => json(&members(controller, of, &parse::<MembersAsk>(at.as_bytes())?)?),
        5 => join(controller, now, of, at.as_bytes()),
        6 => json(&member(controller, of, at)?),
        7 if at.starts_with('{') => {
            json(&kick_all(controller, now, of, &parse::<KickAllAsk>(at.as_bytes())?)?)
        }
        7 => kick(controller, now, of, at, &KickAsk::default()).map(|()| serde_json::json!({})),
        8 => json(&relays(controller)),
        9 => json(&relay(controller, of)?),
        10 => json(&drain(controller, of, true)?),
        11 => json(&drain(controller, of, false)?),
        12 => json(&add_link(controller, &parse::<NewLink>(body)?)?),
        13 => {
            json(&links(controller))?;
            let ask = RemovalAsk { force: at.is_empty() };
            if !remove_link(controller, of, &ask)? {
                json(&keep_link(controller, of)?)?;
            }
            remove_relay(controller, at, &ask).map(|_| serde_json::json!({}))
        }
        14 => json(&accounts(controller)),
        15 => {
            json(&relays_to_measure(controller))?;
            json(&health(controller))
        }
        16 => {
            let ask = parse::<AreasAsk>(at.as_bytes())?;
            let ground = ground(&ask)?;
            json(&set_areas(controller, now, of, &ask, ground)?)
        }
        17 => json(&areas(controller, of)?),
        18 => {
            let ask = parse::<MoveAsk>(at.as_bytes())?;
            json(&plan_move(controller, of, &ask)?)?;
            json(&move_world(controller, of, &ask)?)
        }
        20 => allow_relay(controller, of).map(|()| serde_json::json!({})),
        _ => {
            let ask = parse::<OverlayAsk>(body)?;
            json(&overlay(controller, ask.world.as_deref()))
        }
    }
}

fn join(
    controller: &mut Controller,
    now: Time,
    world: &str,
    body: &[u8],
) -> Result<Value, Problem> {
    let new = parse::<NewMember>(body)?;
    new.check_subject()?;
    let key = new.key()?;
    let mut owner = [0; 16];
    owner.copy_from_slice(&key[..16]);
    let enter = enter(controller, world, &new.wish(owner))?;
    let enter = Enter { subject: new.subject, ..enter };
    let admission = controller.enter(now, &enter)?;
    let joined = joined(controller, &admission, &enter)?;
    assert_eq!(joined.world, world);
    json(&joined)
}

pub(crate) fn json(value: &impl Serialize) -> Result<Value, Problem> {
    Ok(serde_json::to_value(value).expect("it can be written"))
}

/// Requests that do something, as inputs for a fuzzer to begin with, each with a name.
pub fn api_seeds() -> Vec<(&'static str, Vec<u8>)> {
    [seeds_of_worlds(), seeds_of_members(), seeds_of_relays(), seeds_of_areas()].concat()
}

fn seeds_of_worlds() -> Vec<(&'static str, Vec<u8>)> {
    let world = r#"{"name": "lobby", "comtrees": 2, "mode": "periodic", "tick_ms": 50, "core": "all",
        "channels": [{"name": "chat", "first": 0, "groups": 9}], "downlink": "group"}"#;
    let sharing = r#"{"name": "lobby", "levels": 1, "floor_ms": 500, "levels_first": true,
        "comtree_budget": {"up_bits": 1000000, "up_packets": 1000}}"#;
    vec![
        (
            "world",
            input_of(&[
                (0, world),
                (1, ""),
                (1, "lobby\n{\"levels\": 2, \"tick_ms\": 9, \"core\": \"center\"}"),
                (2, "lobby"),
                (0, world),
                (3, "lobby"),
                (2, "lobby"),
            ]),
        ),
        (
            "sharing",
            input_of(&[
                (0, sharing),
                (2, "lobby"),
                (1, "lobby\n{\"floor_ms\": 60000, \"comtree_budget\": {\"down_bits\": 1}}"),
                (1, "lobby\n{\"floor_ms\": 99}"),
                (1, "lobby\n{\"levels_first\": false, \"comtree_budget\": {\"up\": 1}}"),
            ]),
        ),
        (
            "unknown-field",
            input_of(&[(0, r#"{"name": "x", "colour": 1}"#), (12, "{\"ends\": []}")]),
        ),
        ("not-json", input_of(&[(0, "{"), (5, "lobby\n\u{0}"), (4, "Ä\n"), (7, "a\n70000.1")])),
    ]
}

/// Somebody comes to the lobby.
const MEMBER: &str = r#"lobby
        {"subject": "p", "client_key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE",
        "measured": [{"relay": "b", "delay_us": 7}],
        "budget": {"up_bits": 1, "up_packets": 1, "down_bits": 9, "down_packets": 9}}"#;
/// Two relays have a link.
const LINK: &str = r#"{"ends": ["a", "b"], "bits": 1000000, "packets": 1000, "delay_us": 500}"#;

fn seeds_of_members() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (
            "member",
            input_of(&[
                (0, r#"{"name": "lobby"}"#),
                (5, MEMBER),
                (4, "lobby\n{\"most\": 1, \"after\": \"1.1\"}"),
                (6, "lobby\n28672.64"),
                (14, ""),
                (7, "lobby\n28672.64"),
                (7, "lobby\n28672.64"),
            ]),
        ),
        (
            "kick-all",
            input_of(&[
                (0, r#"{"name": "lobby"}"#),
                (5, MEMBER),
                (7, "lobby\n{\"subject\": \"p\", \"bar_s\": 5}"),
                (7, "lobby\n{\"subject\": \"p\"}"),
                (5, MEMBER),
                (7, "lobby\n{\"subject\": \"q\", \"bar_s\": 99999999999}"),
                (7, "lobby\n{}"),
            ]),
        ),
    ]
}

fn seeds_of_relays() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("removed", input_of(&[(12, LINK), (13, "1\nb"), (8, ""), (20, "b"), (20, "b")])),
        (
            "link",
            input_of(&[
                (12, LINK),
                (13, "1\nb"),
                (12, LINK),
                (10, "b"),
                (13, "2\nb"),
                (12, LINK),
                (15, ""),
            ]),
        ),
        ("drain", input_of(&[(10, "a"), (9, "a"), (11, "a"), (8, ""), (10, "z")])),
        (
            "move",
            input_of(&[
                (12, LINK),
                (0, r#"{"name": "lobby", "core": "all"}"#),
                (5, MEMBER),
                (18, "lobby\n{\"root\": \"a\", \"method\": \"spt\"}"),
                (18, "lobby\n{\"root\": \"b\"}"),
                (18, "lobby\n{\"method\": \"stretch\", \"stretch\": 1.5}"),
                (19, r#"{"world": "lobby"}"#),
                (19, r#"{"world": "none"}"#),
                (18, "lobby\n{\"root\": \"c\"}"),
                (18, "lobby\n{\"stretch\": 0.5}"),
            ]),
        ),
    ]
}

fn seeds_of_areas() -> Vec<(&'static str, Vec<u8>)> {
    let areas_world = r#"{"name": "park", "levels": 2,
        "channels": [{"name": "here", "first": 64, "groups": 200}]}"#;
    let grid = r#"park
        {"grid": 10, "over": [0, 0, 40, 30], "rings": [{"radius": 5, "level": 1}, {"radius": 20, "level": 0}],
        "split_above": 8, "merge_below": 4, "deepest": 2}"#;
    let hexagons = r#"park
        {"hex": 12.5, "over": [-20, -20, 20, 20], "rings": [{"radius": 9, "level": 0}], "channel": "here"}"#;
    let polygons = r#"park
        {"rings": [{"radius": 9, "level": 0}], "geojson": {"type": "FeatureCollection", "features": [
        {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon",
        "coordinates": [[[0, 0], [9, 0], [9, 9], [0, 9], [0, 0]]]}},
        {"type": "Feature", "properties": null, "geometry": {"type": "MultiPolygon",
        "coordinates": [[[[9, 0], [20, 0], [9, 9], [9, 0]]]]}}]}}"#;
    let crossing = r#"park
        {"rings": [{"radius": 9, "level": 0}], "geojson": {"type": "Polygon",
        "coordinates": [[[0, 0], [9, 9], [9, 0], [0, 9], [0, 0]]]}}"#;
    vec![
        (
            "areas",
            input_of(&[
                (0, areas_world),
                (16, grid),
                (17, "park"),
                (16, hexagons),
                (16, polygons),
                (17, "park"),
                (16, "park\n{\"rings\": []}"),
                (17, "lobby"),
            ]),
        ),
        (
            "polygons",
            input_of(&[(0, areas_world), (16, polygons), (17, "park"), (19, ""), (16, crossing)]),
        ),
    ]
}
