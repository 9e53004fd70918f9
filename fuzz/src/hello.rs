//! What callers ask the controller over their channels, and what followers of areas report there: whoever
//! reaches it can send any. Credentials are the `token` target's; here every caller may do what it asks.

use crate::api::{is_done, json};
use crate::bed::{Bed, UPLINK, input_of, requests};
use canopy_api::{Budget, Nearness, Problem, Wish, enter, joined, relays_to_measure};
use canopy_areas::{Ground, Rect, Report, Ring, Rules};
use canopy_channel::{Hello, Join, Register};
use canopy_control::{
    Admission, Controller, Enter, Entry, Name, NewAreas, NewRelay, Owner, Refusal,
};
use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, Time};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// In the byte before a message: which of four callers sends it,
const CALLER: u8 = 0b11;
/// that it is a report, not a question,
const REPORT: u8 = 0b100;
/// and that the channel ends after it.
const ENDS: u8 = 0b1000;

/// Messages of four callers, of which two have the relays' keys, each behind a byte that says whose it is
/// and its length in two bytes. Whatever they say, what can be read is, written again, read as the same,
/// what is refused says where and what to do, and the accounts are right.
pub fn hello(input: &[u8]) {
    run_hello(input);
}

/// The same; returns what was asked that was not refused.
pub fn run_hello(input: &[u8]) -> BTreeSet<&'static str> {
    let mut bed = with_a_world();
    let mut done = BTreeSet::new();
    for (at, (what, message)) in (0..).zip(requests(input)) {
        let now = Time::from_millis(at * 100);
        let caller = 1 + (what & CALLER);
        if what & REPORT != 0 {
            if report(&mut bed.controller, now, caller, message, what & ENDS != 0) {
                done.insert("report");
            }
        } else if let Ok(hello) = serde_json::from_slice::<Hello>(message) {
            let written = serde_json::to_vec(&hello).expect("it can be written");
            assert_eq!(serde_json::from_slice::<Hello>(&written).ok().as_ref(), Some(&hello));
            let name = name_of(&hello);
            if is_done(answer(&mut bed, now, caller, hello)) {
                done.insert(name);
            }
        }
        bed.settle(now);
    }
    done
}

/// Two relays with a link, and a world that is divided into areas.
fn with_a_world() -> Bed {
    let mut bed = Bed::new();
    let ids: Vec<_> = bed.controller.relays().map(|relay| relay.id).collect();
    bed.controller.add_link([ids[0], ids[1]], UPLINK, 500).expect("two relays");
    let lobby = br#"{"name": "lobby", "levels": 1, "core": "all",
        "channels": [{"name": "here", "first": 64, "groups": 64}]}"#;
    let new = canopy_api::parse(lobby).expect("a world");
    canopy_api::create_world(&mut bed.controller, &new).expect("there is none of that name");
    bed.settle(Time::ZERO);
    let rule = Rules { split_above: 1, merge_below: 0, deepest: 2 };
    let areas = NewAreas {
        ground: Ground::Grid { size: 10.0, over: Rect { from: [0.0, 0.0], to: [20.0, 20.0] } },
        channel: Name::new("here").expect("a name"),
        rings: vec![Ring { radius: 5.0, level: 1 }],
        rules: Some(rule),
    };
    let name = Name::new("lobby").expect("a name");
    bed.controller.set_areas(Time::ZERO, &name, areas).expect("there are groups");
    bed.settle(Time::ZERO);
    bed
}

fn name_of(hello: &Hello) -> &'static str {
    match hello {
        Hello::Register(_) => "register",
        Hello::Join(_) => "join",
        Hello::Renew(_) => "renew",
        Hello::Move(_) => "move",
        Hello::Leave { .. } => "leave",
        Hello::Follow { .. } => "follow",
        Hello::Relays => "relays",
    }
}

/// A follower's report, over its channel. Returns whether it was taken.
fn report(controller: &mut Controller, now: Time, caller: u8, message: &[u8], ends: bool) -> bool {
    let world = controller.worlds().next().map(|world| world.id);
    let Some(world) = world else { return false };
    let owner = owner(caller);
    let taken = match serde_json::from_slice::<Report>(message) {
        Ok(report) => {
            let written = serde_json::to_vec(&report).expect("it can be written");
            assert_eq!(serde_json::from_slice::<Report>(&written).ok(), Some(report));
            controller.handle_report(world, owner, 1, report)
        }
        Err(_) => false,
    };
    if ends {
        controller.handle_unreachable(now, world, owner, 1);
    }
    taken
}

fn owner(caller: u8) -> Owner {
    [caller; 16]
}

/// What the daemon does with a question whose credential counts.
fn answer(bed: &mut Bed, now: Time, caller: u8, hello: Hello) -> Result<Value, Problem> {
    match hello {
        Hello::Register(register) => {
            let relay = take_relay(&mut bed.controller, now, caller, register)?;
            bed.run(relay);
            Ok(json!({}))
        }
        Hello::Join(join) | Hello::Renew(join) => {
            admit(&mut bed.controller, now, caller, join, Controller::enter)
        }
        Hello::Move(join) => admit(&mut bed.controller, now, caller, join, Controller::relocate),
        Hello::Leave { world, address, .. } => {
            let address = address.map(|text| canopy_api::address("address", &text)).transpose()?;
            leave(&mut bed.controller, caller, &world, address)
        }
        Hello::Follow { world, .. } => {
            let name = Name::new(&world).map_err(Refusal::from)?;
            let id = bed.controller.world(&name)?.id;
            if bed.controller.held_by(id, owner(caller)).is_none() {
                return Err(Problem::missing("world", "you are not in it", "join it first"));
            }
            json(&canopy_api::areas(&bed.controller, &world)?)
        }
        Hello::Relays => json(&relays_to_measure(&bed.controller)),
    }
}

fn take_relay(
    controller: &mut Controller,
    now: Time,
    caller: u8,
    register: Register,
) -> Result<canopy_control::RelayId, Problem> {
    let Register { name, native, uplink: of, places, comtrees, .. } = register;
    let rate = |bits, packets| Rate { bits: bits as f64, packets: packets as f64 };
    let uplink = Limits {
        send: rate(of.up_bits, of.up_packets),
        receive: rate(of.down_bits, of.down_packets),
    };
    let name = Name::new(&name).map_err(Refusal::from)?;
    let key = [caller; 32];
    Ok(controller.register(now, NewRelay { name, key, native, uplink, places, comtrees })?)
}

fn admit(
    controller: &mut Controller,
    now: Time,
    caller: u8,
    join: Join,
    decide: fn(&mut Controller, Time, &Enter) -> Result<Admission, Refusal>,
) -> Result<Value, Problem> {
    let budget = join.budget.map(|of| Budget {
        up_bits: of.up_bits,
        up_packets: of.up_packets,
        down_bits: of.down_bits,
        down_packets: of.down_packets,
    });
    let near = |near: canopy_channel::Nearness| {
        let canopy_channel::Nearness { relay, delay_us } = near;
        Nearness { relay, delay_us }
    };
    let measured: Vec<Nearness> = join.measured.into_iter().map(near).collect();
    let wish = Wish { owner: owner(caller), budget, measured: &measured };
    let ask = enter(controller, &join.world, &wish)?;
    let entry = Entry { visit: join.visit.unwrap_or(0), let_in: 0 };
    let ask = Enter { entry, ..ask };
    let admission = decide(controller, now, &ask)?;
    json(&joined(controller, &admission, &ask)?)
}

fn leave(
    controller: &mut Controller,
    caller: u8,
    world: &str,
    address: Option<Address>,
) -> Result<Value, Problem> {
    let name = Name::new(world).map_err(Refusal::from)?;
    let (id, owner) = (controller.world(&name)?.id, owner(caller));
    match address {
        Some(address) => controller.give_up_place(id, owner, address)?,
        None if !controller.depart(id, owner) => {
            return Err(Problem::missing("world", "you are not in it", "join it first"));
        }
        None => {}
    }
    Ok(json!({}))
}

/// Messages that do something, as inputs for a fuzzer to begin with, each with a name.
pub fn hello_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let join = r#"{"ask": "join", "world": "lobby", "visit": 7,
        "measured": [{"relay": "a", "delay_us": 900}, {"relay": "b", "delay_us": 70}],
        "budget": {"up_bits": 9000, "up_packets": 9, "down_bits": 90000, "down_packets": 90}}"#;
    let at_a = r#"{"ask": "join", "world": "lobby", "measured": [{"relay": "a", "delay_us": 9}]}"#;
    let to_b = r#"{"ask": "move", "world": "lobby",
        "measured": [{"relay": "a", "delay_us": 90000}, {"relay": "b", "delay_us": 9}]}"#;
    let leave = r#"{"ask": "leave", "world": "lobby"}"#;
    let follow = r#"{"ask": "follow", "world": "lobby"}"#;
    let at = |step: u64, cell: u32| format!(r#"{{"step": {step}, "area": "{cell}"}}"#);
    let register = r#"{"ask": "register", "name": "c", "native": "127.0.0.1:4043", "places": 9,
        "life": 1, "uplink": {"up_bits": 1000000, "up_packets": 1000, "down_bits": 1000000, "down_packets": 1000}}"#;
    let of_another = register.replace("\"c\"", "\"a\"");
    let without_room = register.replace("1000000", "0").replace("9,", "0,");
    let no_comtrees = register.replace("\"places\"", "\"comtrees\": 0, \"places\"");
    vec![
        (
            "join-renew-leave",
            input_of(&[
                (2, r#"{"ask": "relays"}"#),
                (2, join),
                (2, &join.replace("join", "renew")),
                (3, at_a),
                (2, leave),
                (2, leave),
            ]),
        ),
        (
            "move",
            input_of(&[
                (2, at_a),
                (2, to_b),
                (2, r#"{"ask": "leave", "world": "lobby", "address": "28672.64"}"#),
                (2, r#"{"ask": "leave", "world": "lobby", "address": "1.1"}"#),
            ]),
        ),
        (
            "follow-and-report",
            input_of(&[
                (2, at_a),
                (2, follow),
                (3, follow),
                (3, at_a),
                (2 | REPORT, &at(0, 0)),
                (3 | REPORT, &at(0, 0)),
                (3 | REPORT, r#"{"step": 9, "area": "99.3"}"#),
                (2 | REPORT, r#"{"step": 0}"#),
                (1, r#"{"ask": "relays"}"#),
                (2 | REPORT, &at(1, 0)),
                (3 | REPORT, &at(1, 0)),
                (3 | REPORT | ENDS, r#"{"step": 2}"#),
            ]),
        ),
        ("register", input_of(&[(2, register), (3, &of_another), (3, &without_room), (2, at_a)])),
        ("no-comtrees", input_of(&[(2, &no_comtrees), (2, &at_a.replace("\"a\"", "\"c\""))])),
        (
            "refused",
            input_of(&[
                (2, r#"{"ask": "join", "world": "none"}"#),
                (2, r#"{"ask": "join", "world": "lobby", "colour": 1}"#),
                (2, r#"{"ask": "reign"}"#),
                (2, "{"),
                (2 | REPORT, "[]"),
                (2, r#"{"ask": "leave", "world": "lobby", "address": "70000.1"}"#),
                (2, &join.replace("9000,", "0,")),
            ]),
        ),
    ]
}
