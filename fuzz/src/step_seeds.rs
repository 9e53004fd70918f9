//! The seeds of the state machines' corpora: short lists of steps that each reach one deep place.

use crate::relay::{CRAMPED, HANDOVER, PERIODIC, SETS, Step as R, TWO_THREADS};
use crate::seeds::Files;
use crate::session::Step as S;
use canopy_wire::{Comtree, Hello, Kind};

/// An input of the target `relay` begins with how the relay is made.
const ROOMY: &[u8] = &[0];
const TICKING: &[u8] = &[PERIODIC];
const SHARED: &[u8] = &[TWO_THREADS];
const FULL: &[u8] = &[CRAMPED];

const SETTLE: &[u8] = &[R::Settle as u8];
const TRANSMIT: &[u8] = &[R::Transmit as u8];
const TICK: &[u8] = &[R::Wait as u8, 0, 0, 50];
const SECOND: &[u8] = &[R::Wait as u8, 0, 0x03, 0xe8];
const KEEPALIVE: &[u8] = &[R::Wait as u8, 0, 0x07, 0xd0];
const LIFETIME: &[u8] = &[R::Wait as u8, 0, 0x2a, 0xf8];
const DRAIN: &[u8] = &[R::Drain as u8];
/// The longest update that is taken, with an echo, twice.
const LONGEST: &[u8] = &[R::Publish as u8, 0, 7, 0, 1, 177, 1];
const LOSE: &[u8] = &[R::Lose as u8, 0];
/// To the first participant's endpoint, as [`crate::relay::destination`] reads it.
const FIRST: u8 = 0x81;

fn joined<const N: usize>(steps: [&[u8]; N]) -> Vec<u8> {
    steps.concat()
}

fn say(participant: u8) -> Vec<u8> {
    vec![R::Say as u8, participant]
}

fn subscribe(participant: u8, group: u8, level: u8) -> Vec<u8> {
    vec![R::Subscribe as u8, participant, group, level]
}

fn publish(participant: u8, dst: u8, times: u8) -> Vec<u8> {
    vec![R::Publish as u8, participant, dst, 0, 0, 4, times - 1]
}

fn leave(participant: u8) -> Vec<u8> {
    vec![R::Leave as u8, participant]
}

fn move_to(participant: u8, place: u8) -> Vec<u8> {
    vec![R::Move as u8, participant, place]
}

/// What went over the network `back` datagrams ago, unaltered.
fn replay(place: u8, back: u8) -> Vec<u8> {
    vec![R::Replay as u8, place, back - 1, 0]
}

/// The seeds of the target `relay`. Its participants 0 and 2 are on one comtree, 1 and 3 on another.
pub(crate) fn relay() -> Files {
    [worlds(), troubles()].concat()
}

/// Everyone joins and subscribes.
fn world() -> Vec<u8> {
    let subscribes: Vec<u8> = (0..4).flat_map(|number| subscribe(number, 7, number)).collect();
    joined([SETTLE, &subscribes, SETTLE])
}

fn worlds() -> Files {
    let world = &world()[..];
    let crowd: Vec<u8> = (0..4).flat_map(|number| publish(number, 7, number * 7 + 1)).collect();
    let returns = joined([&leave(0), SETTLE, &leave(0), SETTLE]);
    let in_pieces = joined([&say(0), &say(1), &say(0), TRANSMIT, &say(0), TRANSMIT]);
    let after_the_drain = joined([TICK, SETTLE, SECOND, SETTLE]);
    let join = |number| joined([&say(number), TRANSMIT, &say(number), TRANSMIT]);
    let leaves = joined([&leave(0), &say(0), TRANSMIT]);
    let changes_hands = joined([&join(0), &join(2), &publish(2, FIRST, 1), &leaves, &join(1)]);
    vec![
        ("place-changes-hands", joined([&[PERIODIC | CRAMPED], &changes_hands, TICK])),
        ("join", joined([ROOMY, SETTLE])),
        ("join-in-pieces", joined([ROOMY, &in_pieces])),
        ("publish-leave", joined([ROOMY, world, &publish(0, 7, 1), TRANSMIT, &leave(0), SETTLE])),
        ("tick", joined([TICKING, world, &publish(0, 7, 4), TICK])),
        ("crowd", joined([TICKING, world, &crowd, TICK])),
        ("blanked", joined([TICKING, world, &publish(0, 7, 1), &publish(2, 7, 8), TICK])),
        ("sets", joined([&[SETS | PERIODIC], world, &crowd, TICK])),
        ("sets-at-once", joined([&[SETS], world, &crowd, TRANSMIT])),
        ("unicast", joined([ROOMY, world, &publish(2, FIRST, 3), TRANSMIT])),
        ("longest", joined([ROOMY, world, LONGEST, TRANSMIT])),
        ("leave-and-return", joined([ROOMY, world, &returns])),
        ("rebind", joined([ROOMY, world, &move_to(0, 5), &publish(0, 7, 1), SETTLE, SETTLE])),
        ("rebind-evicts", joined([ROOMY, world, &move_to(0, 2), KEEPALIVE, SETTLE])),
        ("expire", joined([ROOMY, world, LIFETIME, SETTLE])),
        ("drain", joined([ROOMY, world, DRAIN, &after_the_drain])),
        ("handover", joined([SHARED, world, &publish(0, 7, 1), &replay(HANDOVER, 1), TRANSMIT])),
        ("handover-ends", joined([SHARED, SETTLE, &replay(HANDOVER, 2), TRANSMIT])),
    ]
}

fn troubles() -> Files {
    let world = &world()[..];
    let forged = &forgeries()[..];
    let subscribes: Vec<u8> = (0..16).flat_map(|group| subscribe(group / 4, group, 0)).collect();
    let too_many = joined([SETTLE, &subscribes, SETTLE, &publish(0, 1, 2), TRANSMIT]);
    let stolen = joined([&move_to(0, 5), KEEPALIVE, &say(0), TRANSMIT, &say(0), &replay(4, 1)]);
    let unanswered = joined([&move_to(0, 4), &publish(0, 7, 32).repeat(17), TRANSMIT]);
    vec![
        ("lost", joined([ROOMY, world, LOSE, KEEPALIVE, LOSE, SETTLE])),
        ("replayed-connect", joined([ROOMY, SETTLE, &replay(0, 8), &replay(5, 9), TRANSMIT])),
        ("replayed-subscribe", joined([ROOMY, world, &replay(0, 8), &replay(4, 9), TRANSMIT])),
        ("replayed-rebind", joined([ROOMY, world, &stolen, TRANSMIT])),
        ("replies-full", joined([ROOMY, world, &unanswered])),
        ("full-sessions", joined([FULL, world, LIFETIME, SETTLE])),
        ("full-tables", joined([FULL, &too_many])),
        ("other-version", joined([ROOMY, &foreign_hello(), TRANSMIT])),
        ("forged", joined([ROOMY, world, forged, TRANSMIT])),
        ("forged-at-a-tick", joined([TICKING, world, forged, TICK])),
    ]
}

fn foreign_hello() -> Vec<u8> {
    let mut hello = [0; 52];
    Hello { nonce: 3 }.encode(Comtree(1), &mut hello).expect("room for a hello");
    hello[0] = 0xc9;
    joined([&[R::Raw as u8, 5, 0, hello.len() as u8], &hello])
}

/// A packet of every kind in the first participant's name, from its place and from a stranger's.
fn forgeries() -> Vec<u8> {
    let kinds = 0..Kind::ALL.len() as u8;
    let forged = |(place, kind)| joined([&[R::Forge as u8, place, kind, 1, 1, 7, 12], &[0; 12]]);
    let cases = [4, 0].into_iter().flat_map(|place| kinds.clone().map(move |kind| (place, kind)));
    cases.flat_map(forged).collect()
}

const LEAVE: &[u8] = &[S::Leave as u8];
const UNSUBSCRIBE: &[u8] = &[S::Unsubscribe as u8, 7];
/// The longest update that is taken, and one that is longer.
/// The ack of the first subscribe packet.
const LATE_ACK: &[u8] = &[S::Forge as u8, 3, 1, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0];
const PUBLISH: &[u8] = &[S::Publish as u8, 7, 3, 177];
const TOO_LONG: &[u8] = &[S::Publish as u8, 7, 3, 178];
const RAW: &[u8] = &[S::Raw as u8, 0, 2, 0xc1, 0x10];
/// A cookie that is cut, and one whose nonce is changed.
const CUT: &[u8] = &[S::Answer as u8, 0, 1, 4, 30];
const CHANGED: &[u8] = &[S::Answer as u8, 0, 1, 1, 0, 20, 0xff];
/// How to answer: refused, with a keepalive every millisecond or hardly ever, and with
/// subscriptions that do not last or do.
const REFUSED: u8 = 1;
const OFTEN: u8 = 2 << 2;
const RARELY: u8 = 3 << 2;
const NEVER: u8 = 3 << 2 | 3 << 4;
/// What a relay says by itself.
const CHALLENGE: u8 = 0;
const DRAINING: u8 = 1;
const UPDATE: u8 = 2;

fn answer(how: u8, parameter: u8) -> Vec<u8> {
    vec![S::Answer as u8, how, parameter, 0]
}

fn wait(millis: u16) -> Vec<u8> {
    let [high, low] = millis.to_be_bytes();
    vec![S::Wait as u8, 0, high, low]
}

fn repeat(back: u8) -> Vec<u8> {
    vec![S::Repeat as u8, back - 1, 0]
}

fn notice(which: u8) -> Vec<u8> {
    vec![S::Notice as u8, which, 7]
}

fn connect(how: u8) -> Vec<u8> {
    joined([&answer(0, 1), &answer(how, 1)])
}

/// Connected and subscribed to one group.
fn subscribed(how: u8) -> Vec<u8> {
    joined([&connect(how), &[S::Subscribe as u8, 7, 3], &answer(0, 0)])
}

/// The seeds of the target `session`.
pub(crate) fn session() -> Files {
    let (connected, subscribed) = (&connect(0)[..], &subscribed(0)[..]);
    let refused = &joined([&answer(REFUSED, 0), &wait(3_000), connected])[..];
    let repeated = joined([&repeat(1), &repeat(2), &repeat(3), LEAVE]);
    let kinds: Vec<u8> = (0..Kind::ALL.len() as u8)
        .flat_map(|kind| joined([&[S::Forge as u8, kind, 1, 0, 12], &[0; 12]]))
        .collect();
    let mut files = vec![
        ("connect", connected.to_vec()),
        ("subscribe-leave", joined([subscribed, PUBLISH, LEAVE, &answer(0, 0)])),
        ("leave-before", LEAVE.to_vec()),
        ("leave-challenged", joined([connected, &notice(CHALLENGE), LEAVE])),
        (
            "ack-after-left",
            joined([connected, &[S::Subscribe as u8, 7, 3], LEAVE, &answer(0, 0), LATE_ACK]),
        ),
        ("refused", refused.to_vec()),
        ("refused-later", joined([&answer(0, 1), refused])),
        ("rebind", joined([connected, &notice(CHALLENGE), &wait(0), &answer(0, 0)])),
        ("drain", joined([subscribed, &notice(DRAINING), &wait(100), connected])),
        ("update", joined([connected, &notice(UPDATE), PUBLISH, TOO_LONG])),
        ("repeated", joined([subscribed, &repeated])),
        ("cut", joined([CUT, connected])),
        ("changed", joined([CHANGED, connected])),
        ("kinds", joined([connected, &kinds])),
        ("raw", RAW.to_vec()),
    ];
    files.extend(waits());
    files.extend(subscriptions());
    files
}

fn waits() -> Files {
    let (connected, silence) = (&connect(0)[..], &wait(700).repeat(20)[..]);
    let keepalive = &wait(2_000)[..];
    vec![
        ("keepalive", joined([connected, keepalive, &answer(0, 0), keepalive])),
        ("keepalive-foreign", joined([connected, keepalive, &answer(REFUSED, 0), connected])),
        ("keepalive-often", joined([&connect(OFTEN), &wait(1), &answer(0, 0), &wait(10)])),
        ("keepalive-never", joined([&connect(NEVER), &wait(60_000)])),
        ("unheard", silence.to_vec()),
        ("connect-unheard", joined([&answer(0, 1), silence])),
        ("leave-unheard", joined([connected, LEAVE, silence])),
        ("lost", joined([&subscribed(0), silence, connected, &answer(0, 0)])),
    ]
}

fn subscriptions() -> Files {
    let connected = &connect(0)[..];
    let subscribe = |group| vec![S::Subscribe as u8, group, 3];
    let many: Vec<u8> = (0..=255).step_by(4).flat_map(subscribe).collect();
    let twice = &answer(0, 4).repeat(2)[..];
    vec![
        ("refresh", joined([&subscribed(RARELY), &wait(700), &answer(0, 0)])),
        ("subscribe-unheard", joined([connected, &subscribe(7), &wait(700).repeat(8)])),
        ("subscribe-refused", joined([connected, &subscribe(7), &answer(0, 1)])),
        ("subscribe-many", joined([connected, &many, twice])),
        ("unsubscribe", joined([&subscribed(0), UNSUBSCRIBE, &answer(0, 0)])),
    ]
}
