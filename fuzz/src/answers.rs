//! What a controller answers, as relays, clients and followers of areas read it over their channels: whoever has taken the
//! controller's place can send any.

use crate::bed::{input_of, requests};
use canopy_areas::{Areas, Division, Follower, Ground, Point, Rect, Ring, Rules};
use canopy_channel::{Pieces, Registered, Reply, pieces};
use canopy_client::join::Place;
use serde_json::Value;
use std::collections::BTreeSet;

/// What the byte before a message says that it is.
const PIECE: u8 = 0;
const POSITION: u8 = 1;
const PLACE: u8 = 2;
const REGISTERED: u8 = 3;

/// Messages, each behind a byte that says what it is and its length in two bytes. Whatever they say, what can be read is, written
/// again, read as the same, and a follower hears the group to which it publishes.
pub fn answers(input: &[u8]) {
    run_answers(input);
}

/// The same; returns what was read of which something could be made.
pub fn run_answers(input: &[u8]) -> BTreeSet<&'static str> {
    let (mut together, mut follower) = (Pieces::default(), Follower::default());
    let mut read = BTreeSet::new();
    for (what, message) in requests(input) {
        let made = match what {
            PIECE => {
                let text = together.take(message).ok().flatten();
                text.and_then(|text| follow(&mut follower, &text))
            }
            POSITION => position(message).map(|position| stand(&mut follower, position)),
            PLACE => place(message),
            REGISTERED => registered(message),
            _ => None,
        };
        read.extend(made);
    }
    read
}

/// Areas come, if the text says any.
fn follow(follower: &mut Follower, text: &[u8]) -> Option<&'static str> {
    let areas = Areas::from_text(text).ok()?;
    let written = areas.to_text();
    assert_eq!(Areas::from_text(written.as_bytes()).as_ref(), Ok(&areas));
    let mut told = Pieces::default();
    let last = pieces(written.as_bytes()).map(|piece| told.take(&piece)).last();
    assert_eq!(last, Some(Ok(Some(written.into_bytes()))));
    let _ = follower.handle_areas(areas);
    hears_itself(follower);
    Some("areas")
}

fn position(message: &[u8]) -> Option<Point> {
    let (x, rest) = message.split_first_chunk()?;
    Some([f64::from_le_bytes(*x), f64::from_le_bytes(*rest.first_chunk()?)])
}

fn stand(follower: &mut Follower, position: Point) -> &'static str {
    let before: BTreeSet<_> = follower.hears().keys().copied().collect();
    let change = follower.handle_position(position);
    let after: BTreeSet<_> = follower.hears().keys().copied().collect();
    let new = change.subscribe.iter().map(|(group, _)| group);
    assert!(new.clone().all(|group| after.contains(group)), "{change:?}");
    assert!(after.difference(&before).all(|group| new.clone().any(|one| one == group)));
    let gone: BTreeSet<_> = change.unsubscribe.iter().copied().collect();
    assert!(before.difference(&after).copied().eq(gone), "{change:?}");
    hears_itself(follower);
    "position"
}

fn hears_itself(follower: &Follower) {
    if let Some(group) = follower.publish_to() {
        let hears = follower.hears();
        assert!(hears.contains_key(&group), "publishes to {group:?} and hears {hears:?}");
        assert!(follower.report().is_some());
    }
}

/// The answer to who joins, renews or moves.
fn place(message: &[u8]) -> Option<&'static str> {
    match serde_json::from_slice::<Reply<Place>>(message).ok()? {
        Reply::Done(place) => {
            for channel in &place.channels {
                assert_eq!(channel.group(channel.groups), None);
                let _ = channel.group(channel.groups.saturating_sub(1));
            }
            Some("place")
        }
        Reply::Refused(_) => Some("refused"),
    }
}

fn registered(message: &[u8]) -> Option<&'static str> {
    let reply: Reply<Registered> = serde_json::from_slice(message).ok()?;
    let written = serde_json::to_vec(&reply).ok()?;
    assert_eq!(serde_json::from_slice::<Reply<Registered>>(&written).ok(), Some(reply));
    Some("registered")
}

/// Inputs to begin with.
pub fn answers_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let over = Rect { from: [0.0, 0.0], to: [20.0, 20.0] };
    let rings = vec![Ring { radius: 5.0, level: 1 }, Ring { radius: 12.0, level: 0 }];
    let rules = Some(Rules { split_above: 10, merge_below: 4, deepest: 3 });
    let areas = |ground: Ground, splits: &str| {
        let division = Division::new(ground, 64, 64).expect("there are groups");
        let areas = Areas::new(division, rings.clone(), rules).expect("rings in order");
        areas.to_text().replacen("\"groups\":64", &format!("\"groups\":64{splits}"), 1)
    };
    let split = r#","splits":{"0":[100,101,102,103],"0.3":[110,111,112,113]}"#;
    let grid = areas(Ground::Grid { size: 10.0, over }, split);
    let hexagons = areas(Ground::Hex { size: 6.0, over }, "");
    let next = grid.replacen("\"step\":0", "\"step\":1", 1).replacen(
        "\"rings\"",
        r#""next":{"ground":{"grid":{"size":10.0,"over":{"from":[0.0,0.0],"to":[20.0,20.0]}}},"first":64,"groups":64},"rings""#,
        1,
    );
    let relay = r#"{"name":"r1","address":"127.0.0.1:4040","key":"KEY"}"#;
    let place = |more: &str| {
        format!(
            r#"{{"done":{{"world":"lobby","address":"1.64","relay":{relay},"token":"t","comtrees":[1,2],
            "channels":[{{"name":"here","first":64,"groups":64}}],"lease_ms":60000{more}}}}}"#
        )
        .replace("KEY", &"ab".repeat(32))
    };
    let at = |x: f64, y: f64| [x.to_le_bytes(), y.to_le_bytes()].concat();
    let piece = |text: &str| [&[0], text.as_bytes()].concat();
    let refused = Value::from("no room; leave a world").to_string();
    vec![
        (
            "grid",
            input_of(&[(PIECE, piece(&grid)), (POSITION, at(4.0, 4.0)), (POSITION, at(9.0, 9.0))]),
        ),
        ("hexagons", input_of(&[(POSITION, at(-3.0, 50.0)), (PIECE, piece(&hexagons))])),
        (
            "change",
            input_of(&[(POSITION, at(9.0, 9.0)), (PIECE, piece(&grid)), (PIECE, piece(&next))]),
        ),
        (
            "in-two",
            input_of(&[
                (PIECE, [&[1], &grid.as_bytes()[..40]].concat()),
                (PIECE, piece(&grid[40..])),
                (POSITION, at(f64::NAN, f64::INFINITY)),
            ]),
        ),
        (
            "replies",
            input_of(&[
                (PLACE, &*place(r#","areas":true,"drains":true"#)),
                (PLACE, &*format!(r#"{{"refused":{refused}}}"#)),
                (REGISTERED, r#"{"done":{"relay":3,"issuers":"one\ntwo"}}"#),
            ]),
        ),
    ]
}
