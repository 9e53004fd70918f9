//! Every committed input of every target, without libFuzzer; and that no target lacks a part.

use canopy_fuzz::{TARGETS, input_of, run_relay};
use canopy_relay::Counters;
use canopy_wire::{DropReason, Kind, Packet};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// A corpus stays small enough to be read: what fuzzing finds on the way is not committed.
const MAX_FILES: usize = 80;
const MAX_BYTES: u64 = 1500;
/// How many bytes from a packet's start hold all its fields.
const FIRST_BYTES: usize = 80;
/// Counters that some input of the relay's moves, and reasons for which it drops something.
const REACHED: [&str; 5] =
    ["deliveries_out", "echoes_out", "padding_bytes_out", "segmented_sends", "sessions_expired"];
const REASONS: [DropReason; 23] = [
    DropReason::Malformed,
    DropReason::Version,
    DropReason::UnexpectedKind,
    DropReason::UnknownSource,
    DropReason::SpoofedSource,
    DropReason::UnknownDestination,
    DropReason::BadCookie,
    DropReason::Forged,
    DropReason::Replayed,
    DropReason::Stale,
    DropReason::SubscribeOrder,
    DropReason::RepliesFull,
    DropReason::BadToken,
    DropReason::PublishNotAllowed,
    DropReason::UnicastNotAllowed,
    DropReason::SubscribeNotAllowed,
    DropReason::Restricted,
    DropReason::RequestNotAllowed,
    DropReason::RequestOrder,
    DropReason::OverBudget,
    DropReason::AddressTaken,
    DropReason::Thinned,
    DropReason::WaitedTooLong,
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What is in a folder of this crate, in order; a folder that does not exist is empty.
fn list(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn stems(folder: &str) -> BTreeSet<String> {
    list(folder).iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_committed_input_replays() {
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        for path in list(&format!("corpus/{name}")) {
            let bytes = fs::read(&path).unwrap();
            if catch_unwind(|| target(&bytes)).is_err() {
                failed.push(format!("{name}: {}", path.display()));
            }
        }
    }
    assert!(failed.is_empty(), "inputs that break a promise:\n{}", failed.join("\n"));
}

/// What is wrong with an input in one place: cut or longer, or a byte of it changed.
fn one_step_away(input: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let lengths = [1, 2].map(|less| input[..input.len().saturating_sub(less)].to_vec());
    let longer = [input, &[0]].concat();
    let places = 0..input.len().min(FIRST_BYTES);
    let changed = places.flat_map(|at| {
        let byte = input[at];
        [byte ^ 1, byte ^ 0x80, !byte, byte.wrapping_sub(1)].map(|other| {
            let mut bytes = input.to_vec();
            bytes[at] = other;
            bytes
        })
    });
    lengths.into_iter().chain([longer]).chain(changed)
}

/// The packets that go back and forth in the relay's corpus: of every kind but those that only relays
/// send each other.
fn packets() -> BTreeMap<u8, Vec<u8>> {
    let mut packets: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    for path in list("corpus/relay") {
        for (kind, packet) in run_relay(&fs::read(path).unwrap()).packets {
            let kept = packets.entry(kind).or_default();
            *kept = packet.max(std::mem::take(kept));
        }
    }
    packets
}

#[test]
fn packets_and_what_is_one_step_from_them_replay() {
    let packets = packets();
    let of_relays =
        [Kind::LinkHello, Kind::RouteReply, Kind::WaySearch, Kind::LinkState, Kind::LinkStateAck];
    let of_relays = of_relays.map(|kind| kind as u8);
    let missing = Kind::ALL.iter().map(|kind| *kind as u8);
    let missing = missing.filter(|kind| !packets.contains_key(kind) && !of_relays.contains(kind));
    assert_eq!(
        missing.collect::<Vec<u8>>(),
        [0u8; 0],
        "kinds that the relay's corpus does not show"
    );
    for (name, target) in TARGETS.iter().filter(|(name, _)| {
        !["answers", "api", "channel", "control", "hello", "joining", "relay", "session", "token"]
            .contains(name)
    }) {
        for packet in packets.values() {
            let input = input_of(name, packet);
            target(&input);
            one_step_away(&input).for_each(|bytes| target(&bytes));
        }
    }
}

/// Committed inputs that are made here, against what is made today; and what is one step from them.
fn replay_seeds(name: &str, seeds: Vec<(&str, Vec<u8>)>) {
    let (_, target) = TARGETS.iter().find(|(target, _)| *target == name).unwrap();
    for (seed, input) in seeds {
        let committed = fs::read(root().join("corpus").join(name).join(seed)).unwrap_or_default();
        assert_eq!(committed, input, "{name}/{seed} is of old: cargo run --example write_seeds");
        one_step_away(&input).for_each(|bytes| target(&bytes));
    }
}

#[test]
fn control_messages_and_what_is_one_step_from_them_replay() {
    replay_seeds("control", canopy_fuzz::control_seeds());
}

#[test]
fn requests_of_the_api_and_what_is_one_step_from_them_replay() {
    replay_seeds("api", canopy_fuzz::api_seeds());
}

/// What is refused shows little of what it would do.
#[test]
fn the_seeds_of_the_api_do_all_that_can_be_asked() {
    let seeds = canopy_fuzz::api_seeds().into_iter();
    let done: BTreeSet<u8> = seeds.flat_map(|(_, input)| canopy_fuzz::run_api(&input)).collect();
    let missing: Vec<u8> = (0..canopy_fuzz::ASKS).filter(|what| !done.contains(what)).collect();
    assert!(missing.is_empty(), "no seed does {missing:?}");
}

#[test]
fn what_callers_ask_and_what_is_one_step_from_that_replays() {
    replay_seeds("hello", canopy_fuzz::hello_seeds());
}

#[test]
fn what_a_controller_answers_and_what_is_one_step_from_that_replays() {
    let seeds = canopy_fuzz::answers_seeds();
    for (name, input) in &seeds {
        let expected: &[&str] = match *name {
            "replies" => &["place", "refused", "registered"],
            _ => &["areas", "position"],
        };
        let read: Vec<&str> = canopy_fuzz::run_answers(input).into_iter().collect();
        assert_eq!(read, expected, "{name}");
    }
    replay_seeds("answers", seeds);
}

/// Eight messages are sent, and fewer arrive if anything is changed on the way.
#[test]
fn what_goes_over_a_channel_and_what_is_one_step_from_that_replays() {
    let seeds = canopy_fuzz::channel_seeds();
    for (name, input) in &seeds {
        let arrived = canopy_fuzz::run_channel(input);
        match *name {
            "untouched" => assert_eq!(arrived, [8]),
            "without-keys" | "pieces" => assert!(arrived.is_empty()),
            _ => assert!(
                arrived.len() == 2 && arrived.iter().all(|count| *count < 8),
                "{name}: {arrived:?}"
            ),
        }
    }
    replay_seeds("channel", seeds);
}

#[test]
fn the_corpus_of_packets_has_every_kind_as_it_is_today() {
    let kinds = list("corpus/packet").into_iter().filter_map(|path| {
        let bytes = fs::read(path).unwrap();
        Packet::new_checked(&bytes).ok().map(|packet| packet.header().kind as u8)
    });
    let kinds: BTreeSet<u8> = kinds.collect();
    for kind in packets().keys() {
        assert!(
            kinds.contains(kind),
            "no packet of kind {kind:#x}: cargo run --example write_seeds"
        );
    }
}

/// An input of the relay is a list of steps, so a change of the protocol does not make it invalid,
/// only idle: it would replay, and show nothing.
#[test]
fn the_relays_corpus_still_reaches_what_it_is_for() {
    let mut sum = Counters::default();
    for path in list("corpus/relay") {
        sum.add(&run_relay(&fs::read(path).unwrap()).counters);
    }
    let idle: Vec<&str> =
        sum.named().filter(|(_, _, count)| *count == 0).map(|(name, ..)| name).collect();
    let lost: Vec<&&str> = REACHED.iter().filter(|name| idle.contains(name)).collect();
    assert!(lost.is_empty(), "no input reaches {lost:?} any more");
    let lost = REASONS.iter().filter(|reason| sum.dropped(**reason) == 0);
    let lost: Vec<_> = lost.collect();
    assert!(lost.is_empty(), "no input is dropped any more for {lost:?}");
}

#[test]
fn every_target_has_a_binary_and_a_corpus_and_the_reverse() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "two targets have one name");
    assert_eq!(stems("corpus"), names, "folders in corpus/ against TARGETS");
    assert_eq!(stems("fuzz_targets"), names, "files in fuzz_targets/ against TARGETS");
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for name in &names {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "Cargo.toml has no [[bin]] with {path}");
    }
}

#[test]
fn every_corpus_has_files_and_is_small() {
    for (name, _) in TARGETS {
        let files = list(&format!("corpus/{name}"));
        assert!(!files.is_empty(), "corpus/{name} has no file");
        assert!(files.len() <= MAX_FILES, "corpus/{name} has {} files", files.len());
        for path in files {
            let len = fs::metadata(&path).unwrap().len();
            assert!(len <= MAX_BYTES, "{} has {len} bytes", path.display());
        }
    }
}
