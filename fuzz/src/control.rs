//! The control plane's messages: whoever holds a relay's or the controller's key can send any.

use crate::bed::{Bed, UPLINK};
use canopy_control::signal::{
    Answer, Branch, Call, FoundWay, LinkLoad, LinkReport, MOST_TOGETHER, Measure, Measured, Other,
    Reading, Role,
};
use canopy_control::storage::{MemoryStorage, Storage};
use canopy_control::{
    Controller, Downlink, Enter, Event, Item, ItemKey, LinkId, Message, Mode, Name, NewRelay,
    Owner, RelayId, RelaySide, Retry, Settings, Sharing, WorldId,
};
use canopy_plan::Limits;
use canopy_wire::{Address, Comtree, Time};
use std::collections::BTreeSet;

/// The first byte says who gets what follows: messages, each behind its length in two bytes. What
/// can be read is, written again, read as the same; no answer is longer than a message may be.
pub fn control(input: &[u8]) {
    run_control(input);
}

/// The same; returns what kinds of events a controller with a world told.
pub fn run_control(input: &[u8]) -> BTreeSet<String> {
    let Some((form, mut rest)) = input.split_first() else { return BTreeSet::new() };
    let mut messages = Vec::new();
    while let Some(([high, low], behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (message, behind) = behind.split_at(len);
        messages.push(message);
        rest = behind;
    }
    for bytes in &messages {
        if let Ok(message) = Message::decode(bytes) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
    match form & 3 {
        1 => to_controller(&messages),
        3 => return to_controller_with_a_world(&messages),
        _ => to_relay(&messages),
    }
    BTreeSet::new()
}

fn to_relay(messages: &[&[u8]]) {
    let mut relay = RelaySide::new(1);
    for (at, bytes) in (0..).zip(messages) {
        relay.handle_message(bytes);
        while let Some(applying) = relay.poll_apply() {
            relay.applied(applying, if at % 5 == 4 { Err("no room".to_owned()) } else { Ok(()) });
        }
        if let Some(Measure { controller, round, others }) = relay.poll_measure() {
            let read = |other: &Other| Reading {
                relay: other.relay,
                delay_us: u32::MAX,
                asked: u8::MAX,
                answered: u8::MAX,
            };
            let readings = others.iter().map(read).collect();
            relay.measured(Measured { controller, round, readings });
        }
        relay.handle_timeout(Time::from_millis(at * 100));
        while let Some(answer) = relay.poll_transmit() {
            assert!(answer.len() <= Message::MOST);
            assert!(Message::decode(&answer).is_ok());
        }
    }
    assert!(relay.items().len() <= messages.len() * MOST_TOGETHER);
}

fn to_controller(messages: &[&[u8]]) {
    let mut storage = MemoryStorage::default();
    let (settings, retry) = (Settings { degree: 2, ..Settings::default() }, Retry::default());
    let mut controller =
        Controller::start(settings, retry, Time::ZERO, &mut storage).expect("an empty store");
    let mut register = |number: u8| {
        let new = NewRelay {
            name: Name::new(&format!("r{number}")).expect("a name"),
            key: [number; 32],
            native: ([127, 0, 0, 1], u16::from(number)).into(),
            uplink: canopy_plan::Limits::bits(1e7, 1e7),
            places: 10,
            comtrees: 1024,
        };
        controller.register(Time::ZERO, new).expect("there is room")
    };
    // It speaks for itself, and measures the others, which say nothing.
    let relay = register(1);
    (2..5).for_each(|number| _ = register(number));
    for (at, bytes) in (0..).zip(messages) {
        let now = Time::from_millis(at * 100);
        controller.handle_message(now, relay, bytes);
        controller.handle_timeout(now);
        while let Some(batch) = controller.poll_commit(now) {
            let result = storage.commit(&batch);
            controller.handle_commit(now, result).expect("nothing fails");
        }
        while let Some((to, message)) = controller.poll_transmit(now) {
            assert!(to.0 < 5);
            assert!(message.len() <= Message::MOST);
        }
        while controller.poll_event().is_some() {}
    }
}

/// What a relay that has done what it was told says from now on, of a world that goes over it. Members come
/// and go meanwhile, so that there are calls to answer.
fn to_controller_with_a_world(messages: &[&[u8]]) -> BTreeSet<String> {
    let World { mut bed, world, hostile, near, .. } = World::new();
    bed.silence(hostile);
    bed.events.clear();
    for (at, bytes) in (0..).zip(messages) {
        let now = Time::from_millis(1_000 + at * 100);
        let owner = [3 + (at / 4 % 3) as u8; 16];
        match at % 4 {
            0 => _ = bed.controller.enter(now, &enter(owner, hostile)),
            2 => _ = bed.controller.enter(now, &enter(owner, near)),
            3 => _ = bed.controller.depart(world, owner),
            _ => {}
        }
        bed.settle(now);
        bed.controller.handle_message(now, hostile, bytes);
        bed.settle(now);
    }
    let kind = |event: &Event| {
        let text = format!("{event:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    bed.events.iter().map(kind).collect()
}

/// Two relays with a link, both in a world's tree, and a member at each.
struct World {
    bed: Bed,
    world: WorldId,
    comtree: Comtree,
    link: LinkId,
    /// The relay in whose place the input speaks.
    hostile: RelayId,
    /// The other.
    near: RelayId,
}

impl World {
    fn new() -> World {
        let mut bed = Bed::new();
        let ids: Vec<RelayId> = bed.controller.relays().map(|relay| relay.id).collect();
        let link = bed.controller.add_link([ids[0], ids[1]], UPLINK, 500).expect("two relays");
        let new = canopy_api::parse(br#"{"name": "lobby", "core": "all"}"#).expect("a world");
        canopy_api::create_world(&mut bed.controller, &new).expect("there is none of that name");
        bed.settle(Time::ZERO);
        for (owner, relay) in [([1; 16], ids[0]), ([2; 16], ids[1])] {
            bed.controller.enter(Time::ZERO, &enter(owner, relay)).expect("there is room");
            bed.settle(Time::ZERO);
        }
        let of = bed.controller.worlds().next().expect("a world");
        let (world, comtree) = (of.id, of.comtrees[0]);
        World { bed, world, comtree, link, hostile: ids[0], near: ids[1] }
    }
}

fn enter(owner: Owner, relay: RelayId) -> Enter {
    let world = Name::new("lobby").expect("a name");
    Enter::new(world, owner, vec![(relay, 100)])
}

/// An input of a form, with messages.
fn with(form: u8, messages: &[Message]) -> Vec<u8> {
    let mut input = vec![form];
    for message in messages {
        let bytes = message.encode();
        input.extend((bytes.len() as u16).to_be_bytes());
        input.extend(bytes);
    }
    input
}

/// A relay is asked to measure so many others.
fn measure(round: u32, others: u16) -> Message {
    let native = ([127, 0, 0, 1], 9).into();
    let others = (0..others).map(|of| Other { relay: RelayId(of), native }).collect();
    Message::Measure(Measure { controller: 1, round, others })
}

/// It says what it has measured.
fn measured(round: u32, others: u16) -> Message {
    let reading = |of| Reading { relay: RelayId(of), delay_us: 9_000, asked: 4, answered: 3 };
    let readings = (1..others).map(reading).collect();
    Message::Measured(Measured { controller: 1, round, readings })
}

/// It says what it sends over so many links.
fn loads(links: u32) -> Message {
    let load = |of| LinkLoad { link: LinkId(of), bits_out: 1_000_000 };
    Message::Loads((1..=links).map(load).collect())
}

/// It says on which comtrees it is on a detour.
fn detours(comtrees: u32) -> Message {
    Message::Detours((16..16 + comtrees).map(Comtree).collect())
}

/// It says which ways it has found by itself.
fn ways(comtrees: u32) -> Message {
    let (over, instead_of) = (LinkId(2), LinkId(1));
    let way = |of| FoundWay { comtree: Comtree(of), over, instead_of };
    Message::Ways((16..16 + comtrees).map(way).collect())
}

/// Messages that go back and forth, as inputs for a fuzzer to begin with, each with a name.
pub fn control_seeds() -> Vec<(&'static str, Vec<u8>)> {
    [seeds_for_relays(), seeds_of_relays(), seeds_of_a_world()].concat()
}

fn answer(number: u64, answer: Answer) -> Message {
    Message::Answer { controller: 1, relay: 1, number, answer }
}

fn beat(relay: u32, links: Vec<LinkReport>, succeeded: Vec<(Comtree, LinkId)>) -> Message {
    Message::Beat { relay, controller: 1, answered: 0, links, succeeded }
}

fn link(id: u32) -> Item {
    Item::Link {
        id: LinkId(id),
        key: [7; 32],
        native: ([127, 0, 0, 1], 9).into(),
        calls: true,
        capacity: canopy_plan::Rate { bits: 1e9, packets: 1e5 },
    }
}

/// A comtree of a world that says so what members get who cannot be sent everything.
fn comtree(sharing: Sharing) -> Item {
    let branch =
        Branch { link: LinkId(1), site: 2, role: Role::Parent, send: UPLINK, receive: UPLINK };
    Item::Comtree {
        id: Comtree(16),
        world: Name::new("lobby").expect("a name"),
        site: 1,
        mode: Mode::Periodic(50),
        downlink: Downlink::Member,
        levels: 2,
        sharing,
        branches: vec![branch],
    }
}

/// What a relay is told.
fn seeds_for_relays() -> Vec<(&'static str, Vec<u8>)> {
    let call = |number, call| Message::Call { controller: 1, relay: 1, number, settled: 1, call };
    let key = ItemKey::Link(LinkId(1));
    let together = Limits { send: UPLINK, receive: UPLINK };
    let sharing = Sharing { floor_ms: 500, levels_first: true, together };
    // It has never heard of this member.
    let gone = ItemKey::Member(Comtree(16), Address::unicast(0x7000, 64));
    let change = |id| Call::Set(link(id));
    let set = |number, id| call(number, change(id));
    vec![
        (
            "set-list-remove",
            with(0, &[set(1, 1), call(2, Call::List(None)), call(3, Call::Remove(key))]),
        ),
        ("out-of-order", with(0, &[call(2, Call::List(Some(key))), set(1, 2), set(1, 2)])),
        ("refused", with(0, &(1..6).map(|n| set(n, n as u32)).collect::<Vec<_>>())),
        (
            "sharing",
            with(
                0,
                &[
                    set(1, 1),
                    call(2, Call::Set(comtree(sharing))),
                    call(3, Call::Set(comtree(Sharing::default()))),
                    call(4, Call::List(None)),
                ],
            ),
        ),
        (
            "dismissed",
            with(0, &[call(1, Call::Remove(gone)), set(2, 1), call(3, Call::Remove(gone))]),
        ),
        (
            "together",
            with(
                0,
                &[
                    call(1, Call::Together(vec![change(1), Call::Remove(gone), change(2)])),
                    call(2, Call::Together(vec![Call::Remove(gone); 65])),
                    call(2, Call::Together(vec![Call::Remove(gone); 64])),
                    call(3, Call::Together(Vec::new())),
                    call(4, Call::Together(vec![Call::List(None)])),
                ],
            ),
        ),
        ("measure", with(0, &[measure(1, 3), measure(2, 32), measure(3, 33)])),
    ]
}

/// What a relay says to a controller that has no world.
fn seeds_of_relays() -> Vec<(&'static str, Vec<u8>)> {
    let (beat, succeeded) =
        (beat(1, Vec::new(), Vec::new()), beat(1, Vec::new(), vec![(Comtree(16), LinkId(1))]));
    let after = |messages: &[Message]| with(1, &[std::slice::from_ref(&beat), messages].concat());
    let measuring = [&[measured(1, 6), measured(2, 3)][..], &vec![beat.clone(); 40]].concat();
    let refused = answer(1, Answer::Refused("no".to_owned()));
    vec![
        ("beat-and-list", after(&[answer(1, Answer::Items(vec![link(5)], false))])),
        ("measured", after(&measuring)),
        ("succeeded", after(&[succeeded])),
        ("loads", after(&[loads(2), loads(128), loads(129)])),
        ("detours", after(&[detours(1), beat.clone(), detours(20)])),
        ("ways", after(&[ways(1), beat.clone(), ways(20), beat.clone()])),
        ("more-of-nothing", after(&[answer(1, Answer::Items(Vec::new(), true))])),
        (
            "refused-list",
            after(&[refused, answer(2, Answer::Done), answer(u64::MAX, Answer::Done)]),
        ),
    ]
}

/// What relays say to one that has a world.
fn seeds_of_a_world() -> Vec<(&'static str, Vec<u8>)> {
    let world = World::new();
    let links = |up| vec![LinkReport { link: world.link, up, delay_us: 700 }];
    let [up, down] = [true, false].map(|up| beat(1, links(up), Vec::new()));
    let succeeded = beat(1, links(true), vec![(world.comtree, world.link)]);
    // Whatever the calls have for numbers that wait for an answer, these are among them.
    let answers = |of: Answer| (1..40).map(|number| answer(number, of.clone())).collect::<Vec<_>>();
    let new_life = beat(2, links(true), Vec::new());
    let items = Answer::Items(vec![link(9)], false);
    let of_new_life = Message::Answer { controller: 1, relay: 2, number: 1, answer: items };
    // It has forgotten whom it was to keep out, who went while the first of these were answered.
    let nothing = Answer::Items(Vec::new(), true);
    let forgetful = Message::Answer { controller: 1, relay: 2, number: 1, answer: nothing };
    let restarts = [&answers(Answer::Done)[..], &[new_life.clone(), forgetful]].concat();
    vec![
        ("world-answered", with(3, &answers(Answer::Done))),
        ("world-refused", with(3, &answers(Answer::Refused("no room".to_owned())))),
        ("world-link-down", with(3, &[up.clone(), down, up.clone(), up.clone()])),
        ("world-succeeded", with(3, &[up.clone(), succeeded, up.clone()])),
        ("world-restarted", with(3, &restarts)),
        ("world-new-life", with(3, &[up, new_life.clone(), of_new_life, new_life])),
    ]
}
