//! The Wireshark dissector in docs/wireshark against this crate: tshark must show what the encoders
//! wrote, call malformed what the decoders refuse, and read the rest as they do.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is sans-IO; this test hands files to tshark"
)]

mod cases;
mod tshark;

use canopy_wire::{
    Address, Busy, Challenge, Class, Connect, Connected, Cookie, Flags, Gone, GroupKey,
    GroupKeyHeld, Header, Hello, Keepalive, Kind, Leave, Level, LinkHello, LinkState, LinkStateAck,
    MAX_DATAGRAM, NumberedRequest, Packet, Probe, Rebind, Record, Refused, Report, Response,
    RouteReply, Subscribe, SubscribeAck, Unknown, VERSION, WaySearch, Weight, WireError,
};
use cases::{
    COMTREE, COUNT_AT, FLAGS_AT, KIND_AT, LEAST_SEALED, SEALED, SEALED_FOR_GROUP, SESSION, altered,
    foreign_cases, handshake_cases, link_state_cases, malformed_cases, malformed_overlay_cases,
    malformed_path_cases, notice_cases, overlay_cases, path_cases, published, records,
    refused_cases, relayed, request_cases, sealed, sealed_cases, sealed_for_group, session_cases,
    subscribe_cases, unknown_cases, update_cases, weighed, written,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tshark::{EXPERT, Frame, NAMED_PORT, STRANGE_PORT};

#[test]
fn tshark_shows_what_the_encoders_wrote() {
    if let Some(why) = tshark::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let mut cases = update_cases();
    cases.extend(subscribe_cases());
    cases.extend(handshake_cases());
    cases.extend(refused_cases());
    cases.extend(session_cases());
    cases.extend(notice_cases());
    cases.extend(request_cases());
    cases.extend(overlay_cases());
    cases.extend(link_state_cases());
    cases.extend(path_cases());
    cases.extend(unknown_cases());
    for kind in Kind::ALL {
        let shown = cases.iter().any(|case| case.datagram[KIND_AT] == *kind as u8);
        assert!(shown, "no case for {kind:?}");
    }
    cases.extend(sealed_cases());
    for case in &mut cases {
        case.fields.extend(FAULTS.map(|fault| (fault, "")));
    }
    cases.extend(malformed_cases());
    cases.extend(malformed_overlay_cases());
    cases.extend(malformed_path_cases());
    cases.extend(foreign_cases());

    let mut names = vec!["_ws.col.Protocol", "_ws.col.Info"];
    names.extend(cases.iter().flat_map(|case| case.fields.iter().map(|(name, _)| *name)));
    names.retain(|name| *name != EXPERT);
    names.sort_unstable();
    names.dedup();
    let frames: Vec<Frame> =
        cases.iter().map(|case| Frame::new(case.port, &case.datagram)).collect();
    let rows = tshark::fields(&frames, &names);
    for (case, row) in cases.iter().zip(&rows) {
        let shown = |name| {
            let column = names.iter().chain(&[EXPERT]).position(|known| *known == name);
            row[column.unwrap()].as_str()
        };
        assert_eq!(shown("_ws.col.Info"), case.info);
        assert_eq!(shown("_ws.col.Protocol"), "Canopy", "{}", case.info);
        for (name, value) in &case.fields {
            assert_eq!(shown(name), *value, "{name} of {}", case.info);
        }
    }
}

#[test]
fn the_cases_show_every_form_of_a_record() {
    let forms: Vec<u8> = update_cases()
        .iter()
        .flat_map(|case| case.fields.iter().filter(|(name, _)| *name == "canopy.record.form"))
        .flat_map(|(_, shown)| shown.split('|').filter(|form| !form.is_empty()).map(from_hex))
        .map(|form| form as u8)
        .collect();
    for source in 0..4 {
        assert!(forms.iter().any(|form| form & 0x03 == source), "source form {source}");
    }
    for destination in [0x00, 0x04, 0x08] {
        assert!(forms.iter().any(|form| form & 0x0c == destination), "destination {destination}");
    }
    for bit in [0x10, 0x20, Flags::ECHO.0, Flags::FILLER.0] {
        assert!(forms.iter().any(|form| form & bit == 0), "without {bit:#04x}");
        assert!(forms.iter().any(|form| form & bit != 0), "with {bit:#04x}");
    }
    let lengths = records().map(|record| record.payload.len());
    assert!(lengths.iter().any(|len| *len > 0x7f), "a length of two bytes");
}

#[test]
fn what_a_record_leaves_out_is_marked_as_generated() {
    if let Some(why) = tshark::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let all = vec!["Source", "Series", "Destination", "Level", "Length", "Weight", "Object"];
    let shown = tshark::tree(&relayed(&weighed()));
    let but_one = |told| [&all[..4], &[told]].concat();
    let expected = [vec!["Level"], all.clone(), but_one("Weight"), but_one("Object")];
    assert_eq!(generated(&shown), expected, "{shown}");

    let shown = tshark::tree(&relayed(&records()));
    let expected = [
        vec!["Level"],
        all[..5].to_vec(),
        vec!["Source"],
        vec!["Destination", "Level", "Length"],
        vec!["Source", "Series"],
        vec!["Level"],
        all[..5].to_vec(),
    ]
    .map(|fields| [&fields[..], &["Weight", "Object"]].concat());
    assert_eq!(generated(&shown), expected, "{shown}");
    assert!(
        shown.contains("Destination: 0x80000008 (group 8, its upper half from the record before)")
    );
    assert!(shown.contains("[Source: 0x00010002 (1.2)]"), "{shown}");
    assert!(shown.contains("Session: 16777215 (none)"), "{shown}");
}

/// The fields of each record that are marked so.
fn generated(shown: &str) -> Vec<Vec<&str>> {
    let of_records = shown.split("\n    Record ").skip(1);
    of_records
        .map(|record| {
            let fields = record.lines().filter_map(|line| line.strip_prefix("        ["));
            fields.map(|field| field.split(':').next().unwrap()).collect()
        })
        .collect()
}

#[test]
fn tshark_and_the_decoders_agree() {
    if let Some(why) = tshark::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let mut datagrams = hostile_datagrams();
    datagrams.extend(drawn_datagrams());
    let frames: Vec<Frame> = datagrams.iter().map(|bytes| Frame::new(NAMED_PORT, bytes)).collect();
    let rows = tshark::fields(&frames, &[&FAULTS[..], &HEADER, &RECORD].concat());
    let mut intact = 0;
    for (datagram, row) in datagrams.iter().zip(&rows) {
        let (faults, row) = row.split_at(FAULTS.len());
        let (header, row) = row.split_at(HEADER.len());
        let shown = [0, 1, 2, 3].map(|column: usize| !faults[column].is_empty());
        let verdict = decode(datagram);
        let expected = match verdict {
            Ok(()) => [false, false, false, false],
            Err(WireError::Version(_)) => [false, true, false, false],
            Err(WireError::Kind(_)) => [false, false, true, false],
            Err(_) => [true, false, false, false],
        };
        assert_eq!(shown, expected, "{verdict:?}: {datagram:02x?}");
        if let Err(WireError::Version(_)) = verdict {
            assert_eq!(header[0], nonce_of_any_version(datagram), "{datagram:02x?}");
        }
        let Ok(packet) = Packet::new_checked(datagram) else { continue };
        let Header { kind, session, counter, hop_limit, comtree } = *packet.header();
        let class = kind.class() as u32;
        let numbers = [class, session.number(), counter, hop_limit.into(), comtree.0];
        assert_eq!(header[1..], numbers.map(|number| number.to_string()), "{datagram:02x?}");
        if kind == Kind::Updates && verdict.is_ok() {
            let decoded: Vec<String> = packet.updates().unwrap().map(|one| told(&one)).collect();
            assert_eq!(shown_updates(row), decoded, "{datagram:02x?}");
            intact += 1;
        }
    }
    assert!(intact > 500, "only {intact} packets of updates were intact");
}

#[test]
fn a_packet_cut_by_the_capture_is_not_called_malformed() {
    if let Some(why) = tshark::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let sealed = [sealed(b"a secret"), sealed_for_group(b"a secret")];
    let packets = [intact_packets(), sealed.to_vec()].concat();
    let mut frames = Vec::new();
    for packet in &packets {
        for captured in 1..packet.len() {
            frames.push(Frame { captured, ..Frame::new(NAMED_PORT, packet) });
        }
    }
    for (frame, row) in frames.iter().zip(tshark::fields(&frames, &FAULTS)) {
        let shown = [0, 1, 2, 3].map(|column: usize| !row[column].is_empty());
        let cut = format!("{:02x?} cut to {}", frame.datagram, frame.captured);
        assert_eq!(shown, [false, false, false, true], "{cut}");
    }
}

#[test]
fn the_heuristic_leaves_alone_what_is_not_canopys() {
    if let Some(why) = tshark::unavailable() {
        println!("skipped: {why}");
        return;
    }
    let strange = [
        sealed(&LEAST_SEALED),
        altered(published(), 0, 0x90),
        altered(published(), 0, VERSION | Class::Stranger as u8),
        altered(published(), 0, VERSION | 4),
        sealed_for_group(&LEAST_SEALED[1..]),
        altered(published(), 0, 0xc8),
        altered(published(), KIND_AT, 0x02),
        altered(published(), FLAGS_AT, 1),
        published()[..FLAGS_AT].to_vec(),
        sealed(&LEAST_SEALED[1..]),
    ];
    let frames: Vec<Frame> = strange.iter().map(|bytes| Frame::new(STRANGE_PORT, bytes)).collect();
    let rows = tshark::fields(&frames, &["_ws.col.Protocol"]);
    for (at, (frame, row)) in frames.iter().zip(rows).enumerate() {
        // The sealed packet is Canopy's, but does not vouch for the others of its flow.
        assert_eq!(row[0] == "Canopy", at == 0, "{:02x?}", frame.datagram);
    }
}

const FAULTS: [&str; 4] =
    ["canopy.malformed", "canopy.other_version", "canopy.unknown_kind", "canopy.cut"];
const HEADER: [&str; 6] = [
    "canopy.nonce",
    "canopy.class",
    "canopy.session",
    "canopy.counter",
    "canopy.hop_limit",
    "canopy.comtree",
];
const RECORD: [&str; 9] = [
    "canopy.record.form",
    "canopy.record.src",
    "canopy.record.series",
    "canopy.record.dst",
    "canopy.record.level",
    "canopy.record.length",
    "canopy.record.weight",
    "canopy.record.object",
    "canopy.record.payload",
];

/// The number that tshark shows in base 16.
fn from_hex(shown: &str) -> u32 {
    u32::from_str_radix(shown.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// The nonce in a datagram of another version, as tshark shows it, if it has one.
fn nonce_of_any_version(datagram: &[u8]) -> String {
    let nonce = Hello::nonce_of_any_version(datagram).or(Refused::nonce_of_any_version(datagram));
    nonce.map_or(String::new(), |nonce| format!("{nonce:#018x}"))
}

/// An update in words.
fn told(update: &Record<'_>) -> String {
    let Record { flags, src, series, dst, level, weight, object, payload } = update;
    let payload: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    let (flags, src, dst, level, weight) = (flags.0, src.0, dst.0, level.0, weight.0);
    format!("{flags:#04x} {src:#010x} {series} {dst:#010x} {level} {weight} {object} {payload}")
}

/// The updates among the records that tshark shows, in the same words.
fn shown_updates(columns: &[String]) -> Vec<String> {
    let mut columns = columns.iter().map(|column| column.split('|').filter(|one| !one.is_empty()));
    let mut column = || columns.next().unwrap();
    let (forms, mut sources, mut series) = (column(), column(), column());
    let (mut destinations, mut levels, mut lengths) = (column(), column(), column());
    let (mut weights, mut objects, mut payloads) = (column(), column(), column());
    let mut updates = Vec::new();
    for form in forms.map(from_hex) {
        let (src, series) = (sources.next().unwrap(), series.next().unwrap());
        let (dst, level) = (destinations.next().unwrap(), levels.next().unwrap());
        let (weight, object) = (weights.next().unwrap(), objects.next().unwrap());
        let is_empty = lengths.next() == Some("0");
        let payload = if is_empty { "" } else { payloads.next().unwrap() };
        if form & u32::from(Flags::FILLER.0) == 0 {
            let flags = form & u32::from(Flags::ECHO.0);
            let to = format!("{src} {series} {dst} {level}");
            updates.push(format!("{flags:#04x} {to} {weight} {object} {payload}"));
        }
    }
    updates
}

fn intact_packets() -> Vec<Vec<u8>> {
    let cases = [
        update_cases(),
        subscribe_cases(),
        handshake_cases(),
        refused_cases(),
        session_cases(),
        notice_cases(),
        request_cases(),
        overlay_cases(),
        link_state_cases(),
        path_cases(),
    ];
    cases.into_iter().flatten().map(|case| case.datagram).collect()
}

/// Every packet cut to every length, as it is, of another version, and with other bytes in place of
/// what was cut off; with each of its bytes changed; with more records than it has; of every other
/// kind and every other class; and padded beyond the longest datagram. None of them is sealed.
fn hostile_datagrams() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for packet in intact_packets() {
        for len in 1..=packet.len() {
            let mut cut = packet[..len].to_vec();
            all.push(cut.clone());
            all.push(altered(cut.clone(), 0, 0x90));
            for filler in [0x00, 0x2b, 0xff] {
                cut.truncate(len);
                cut.resize(packet.len(), filler);
                all.push(cut.clone());
            }
        }
        for at in 0..packet.len() {
            for value in [0x00, 0x01, 0x03, 0x7f, 0xff, packet[at].wrapping_add(1)] {
                all.push(altered(packet.clone(), at, value));
            }
        }
        for count in 0..16 {
            all.push(altered(packet.clone(), COUNT_AT, count));
        }
        for kind in Kind::ALL {
            all.push(altered(packet.clone(), KIND_AT, *kind as u8));
        }
        for class in 0..8 {
            all.push(altered(packet.clone(), 0, VERSION | class));
        }
        for len in [MAX_DATAGRAM, MAX_DATAGRAM + 1] {
            let mut long = packet.clone();
            long.resize(len, 0);
            all.push(long.clone());
            all.push(altered(long.clone(), 0, 0x90));
            all.push(altered(long, KIND_AT, 0x7f));
        }
    }
    all.retain(|datagram| ![SEALED, SEALED_FOR_GROUP].contains(&datagram[0]));
    all
}

/// A thousand packets of drawn records, as far apart as can be and as near, and a thousand of drawn
/// bytes; the same in every run.
fn drawn_datagrams() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let record = (
        prop_oneof![Just(Flags(0)), Just(Flags::ECHO), Just(Flags::FILLER)],
        prop_oneof![Just(5_u32), 0..0x2_0000_u32, any::<u32>()],
        prop_oneof![Just(8_u16), Just(9_u16), any::<u16>()],
        prop_oneof![Just(1_u32 << 31), 0x8000_0000..0x8002_0000_u32, any::<u32>()],
        (0_u8..3, prop_oneof![Just(128), 127..130_u8], prop_oneof![Just(0_u16), any::<u16>()]),
        prop_oneof![
            Just(vec![7; 3]),
            proptest::collection::vec(any::<u8>(), 0..3),
            proptest::collection::vec(any::<u8>(), 126..130),
        ],
    );
    let records = proptest::collection::vec(record, 0..9);
    // Bytes of which many are forms that say little, and short lengths.
    let byte = prop_oneof![any::<u8>(), Just(0x2b_u8), Just(0x3b_u8), 0..8_u8, Just(0xe0_u8)];
    let body = (0..9_u8, proptest::collection::vec(byte, 0..90));
    let mut all = Vec::new();
    for _ in 0..1000 {
        let drawn = records.new_tree(&mut runner).unwrap().current();
        let records: Vec<Record<'_>> = drawn
            .iter()
            .map(|(flags, src, series, dst, (level, weight, object), payload)| Record {
                flags: *flags,
                src: Address(*src),
                level: Level(*level),
                weight: Weight(*weight),
                object: *object,
                ..Record::new(Address(*dst), *series, payload)
            })
            .collect();
        all.push(relayed(&records));
        let (count, body) = body.new_tree(&mut runner).unwrap().current();
        let header = Header::new(Kind::Updates, SESSION, COMTREE);
        let bytes = written(|out| header.encode_packet(&body, out));
        all.push(altered(bytes, COUNT_AT, count));
    }
    all
}

/// Everything that a receiver checks.
fn decode(datagram: &[u8]) -> Result<(), WireError> {
    let packet = Packet::new_checked(datagram)?;
    match packet.header().kind {
        Kind::Left => Ok(()),
        Kind::Updates => packet.updates().map(drop),
        Kind::Subscribe => Subscribe::new_checked(&packet).map(drop),
        Kind::SubscribeAck => SubscribeAck::new_checked(&packet).map(drop),
        Kind::RouteReply => RouteReply::decode(&packet).map(drop),
        Kind::LinkHello => LinkHello::decode(&packet).map(drop),
        Kind::WaySearch => WaySearch::decode(&packet).map(drop),
        Kind::LinkState => LinkState::decode(&packet).map(drop),
        Kind::LinkStateAck => LinkStateAck::decode(&packet).map(drop),
        Kind::Hello => Hello::decode(&packet).map(drop),
        Kind::Cookie => Cookie::decode(&packet).map(drop),
        Kind::Connect => Connect::decode(&packet).map(drop),
        Kind::Connected => Connected::decode(&packet).map(drop),
        Kind::Refused => Refused::decode(&packet).map(drop),
        Kind::Keepalive | Kind::KeepaliveAck => Keepalive::decode(&packet).map(drop),
        Kind::Leave => Leave::decode(&packet).map(drop),
        Kind::Challenge => Challenge::decode(&packet).map(drop),
        Kind::Rebind => Rebind::decode(&packet).map(drop),
        Kind::Unknown => Unknown::decode(&packet).map(drop),
        Kind::Request => NumberedRequest::decode(&packet).map(drop),
        Kind::Response => Response::decode(&packet).map(drop),
        Kind::Busy => Busy::decode(&packet).map(drop),
        Kind::GroupKey => GroupKey::decode(&packet).map(drop),
        Kind::GroupKeyHeld => GroupKeyHeld::decode(&packet).map(drop),
        Kind::Probe => Probe::decode(&packet).map(drop),
        Kind::Report => Report::decode(&packet).map(drop),
        Kind::Gone => Gone::decode(&packet).map(drop),
    }
}
