//! Bodies of the controller's HTTP API: whoever has its secret can send any.

use canopy_api::{
    KickAsk, MembersAsk, NewLink, NewMember, NewWorld, Problem, WorldChange, accounts, add_link,
    create_world, delete_world, drain, enter, health, joined, kick, links, member, members, parse,
    relay, relays, relays_to_measure, remove_link, remove_relay, set_world, world, worlds,
};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{Controller, Message, Name, NewRelay, Retry, Settings};
use canopy_wire::Time;
use serde::Serialize;
use serde_json::Value;

/// Requests, each behind a byte that says what it asks and its length in two bytes. Whatever is sent,
/// every answer is JSON, and what is refused has a status, a place and a remedy.
pub fn api(input: &[u8]) {
    let mut storage = MemoryStorage::default();
    let mut controller = start(&mut storage);
    let mut rest = input;
    for at in 0.. {
        let Some(([what, high, low], behind)) = rest.split_first_chunk::<3>() else { return };
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (body, behind) = behind.split_at(len);
        rest = behind;
        let now = Time::from_millis(at * 10);
        match ask(&mut controller, now, *what, body) {
            Ok(answer) => assert!(answer.is_object(), "an answer that is no object: {answer}"),
            Err(problem) => {
                assert!((400..600).contains(&problem.status), "{problem}");
                let wrong = &problem.error;
                assert!(![&wrong.what, &wrong.place, &wrong.remedy].iter().any(|t| t.is_empty()));
                let written = serde_json::to_string(&problem).expect("it can be written");
                let read: Problem = serde_json::from_str(&written).expect("it can be read");
                assert_eq!(read.error, problem.error);
            }
        }
        settle(&mut controller, &mut storage, now);
    }
}

/// A controller with two relays and a link.
fn start(storage: &mut MemoryStorage) -> Controller {
    let (settings, retry) = (Settings::default(), Retry::default());
    let mut controller =
        Controller::start(settings, retry, Time::ZERO, storage).expect("an empty store");
    for number in [1, 2] {
        let rate = canopy_plan::Rate { bits: 1e9, packets: 1e6 };
        let new = NewRelay {
            name: Name::new(["a", "b"][number as usize - 1]).expect("a name"),
            key: [number; 32],
            native: ([127, 0, 0, 1], 1).into(),
            uplink: canopy_plan::Limits { send: rate, receive: rate },
            places: 4,
        };
        let relay = controller.register(Time::ZERO, new).expect("two relays");
        let beat = Message::Beat {
            relay: 1,
            controller: 1,
            answered: 0,
            links: Vec::new(),
            succeeded: Vec::new(),
        }
        .encode();
        controller.handle_message(Time::ZERO, relay, &beat);
    }
    settle(&mut controller, storage, Time::ZERO);
    controller
}

fn settle(controller: &mut Controller, storage: &mut MemoryStorage, now: Time) {
    while let Some(batch) = controller.poll_commit(now) {
        let result = storage.commit(&batch);
        controller.handle_commit(now, result).expect("nothing fails");
    }
    while controller.poll_transmit(now).is_some() {}
    while controller.poll_event().is_some() {}
}

fn ask(controller: &mut Controller, now: Time, what: u8, body: &[u8]) -> Result<Value, Problem> {
    // In a path: text, whatever its bytes are.
    let text = String::from_utf8_lossy(body);
    let (of, at) = text.split_once('\n').unwrap_or((&text, ""));
    match what % 16 {
        0 => json(&create_world(controller, &parse::<NewWorld>(body)?)?),
        1 if body.is_empty() => json(&worlds(controller)),
        1 => json(&set_world(controller, of, &parse::<WorldChange>(at.as_bytes())?)?),
        2 => json(&world(controller, of)?),
        3 => delete_world(controller, of).map(|()| serde_json::json!({})),
        4 => json(&members(controller, of, &parse::<MembersAsk>(at.as_bytes())?)?),
        5 => join(controller, now, of, at.as_bytes()),
        6 => json(&member(controller, of, at)?),
        7 => kick(controller, now, of, at, &KickAsk::default()).map(|()| serde_json::json!({})),
        8 => json(&relays(controller)),
        9 => json(&relay(controller, of)?),
        10 => json(&drain(controller, of, true)?),
        11 => json(&drain(controller, of, false)?),
        12 => json(&add_link(controller, &parse::<NewLink>(body)?)?),
        13 => {
            json(&links(controller))?;
            remove_link(controller, of)?;
            remove_relay(controller, at).map(|()| serde_json::json!({}))
        }
        14 => json(&accounts(controller)),
        _ => {
            json(&relays_to_measure(controller))?;
            json(&health(controller))
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
    let admission = controller.enter(now, &enter)?;
    let joined = joined(controller, &admission, &enter)?;
    assert_eq!(joined.world, world);
    json(&joined)
}

fn json(value: &impl Serialize) -> Result<Value, Problem> {
    Ok(serde_json::to_value(value).expect("it can be written"))
}

/// Requests that do something, as inputs for a fuzzer to begin with, each with a name.
pub fn api_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let with = |requests: &[(u8, &str)]| {
        let mut input = Vec::new();
        for (what, body) in requests {
            input.push(*what);
            input.extend((body.len() as u16).to_be_bytes());
            input.extend(body.as_bytes());
        }
        input
    };
    let world = r#"{"name": "lobby", "comtrees": 2, "mode": "periodic", "tick_ms": 50, "core": "all",
        "channels": [{"name": "chat", "first": 0, "groups": 9}], "downlink": "group"}"#;
    let link = r#"{"ends": ["a", "b"], "bits": 1000000, "packets": 1000, "delay_us": 500}"#;
    let member = r#"lobby
        {"subject": "p", "client_key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE",
        "measured": [{"relay": "b", "delay_us": 7}],
        "budget": {"up_bits": 1, "up_packets": 1, "down_bits": 9, "down_packets": 9}}"#;
    vec![
        (
            "world",
            with(&[
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
            "member",
            with(&[
                (0, r#"{"name": "lobby"}"#),
                (5, member),
                (4, "lobby\n{\"most\": 1, \"after\": \"1.1\"}"),
                (6, "lobby\n2.64"),
                (14, ""),
                (7, "lobby\n2.64"),
                (7, "lobby\n2.64"),
            ]),
        ),
        ("link", with(&[(12, link), (13, "1\nb"), (10, "b"), (13, "2\nb"), (12, link), (15, "")])),
        ("drain", with(&[(10, "a"), (9, "a"), (11, "a"), (8, ""), (10, "z")])),
        ("unknown-field", with(&[(0, r#"{"name": "x", "colour": 1}"#), (12, "{\"ends\": []}")])),
        ("not-json", with(&[(0, "{"), (5, "lobby\n\u{0}"), (4, "Ä\n"), (7, "a\n70000.1")])),
    ]
}
