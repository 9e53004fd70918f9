//! The Wireshark dissector in docs/wireshark against this crate: tshark must show what the
//! encoders wrote, and call malformed what the decoders refuse.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the crate is sans-IO; this test hands files to tshark"
)]

use canopy_wire::{
    Address, Bundle, BundleWriter, Challenge, Change, Comtree, Connect, Connected, Cookie, Flags,
    Group, HEADER_LEN, Header, Hello, Keepalive, Kind, Leave, LeaveReason, Level, MAX_DATAGRAM,
    Packet, Rebind, Refused, RefusedReason, Subscribe, SubscribeAck, SubscribeAckWriter,
    SubscribeWriter, TableFull, WireError,
};
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wireshark/canopy.lua");
/// A port that the dissector is told of, one that is decoded "as Canopy", and one where only its
/// heuristic can find a packet. No socket is opened on them.
const NAMED_PORT: u16 = 40_000;
const DECODED_AS_PORT: u16 = 40_001;
const OTHER_PORT: u16 = 40_002;

/// Where tshark shows what is remarkable in a packet, Lua errors included; the last column.
const EXPERT: &str = "_ws.expert.message";

const COMTREE: Comtree = Comtree(9);
const SENDER: Address = Address::unicast(1, 2);
const RECEIVER: Address = Address::unicast(1, 5);
const NONCE: u64 = 0x0011_2233_4455_6677;
const COOKIE: [u8; 16] = [0xab; 16];
const PROOF: [u8; 16] = [0xcd; 16];
const COOKIE_HEX: &str = "abababababababababababababababab";
const PROOF_HEX: &str = "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd";

/// A datagram and what tshark must say of it. A field that occurs several times has its values
/// joined by `|`; one that must not occur is "".
struct Case {
    port: u16,
    datagram: Vec<u8>,
    info: &'static str,
    fields: Vec<(&'static str, &'static str)>,
}

fn case(datagram: Vec<u8>, info: &'static str, fields: &[(&'static str, &'static str)]) -> Case {
    Case { port: OTHER_PORT, datagram, info, fields: fields.to_vec() }
}

fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let len = write(&mut out).unwrap();
    out[..len].to_vec()
}

fn data() -> Vec<u8> {
    let mut header = Header::new(Kind::Data, COMTREE, SENDER, Group::new(7).address());
    (header.level, header.flags) = (Level(3), Flags::ECHO);
    written(|out| header.encode_packet(b"hello", out))
}

/// Two updates with filler between them.
fn bundle() -> Vec<u8> {
    let header = Header::new(Kind::Bundle, COMTREE, Address::UNSPECIFIED, Address::UNSPECIFIED);
    written(|out| {
        let mut writer = BundleWriter::new(out)?;
        assert!(writer.push(SENDER, Group::new(7), Level(3), Flags(0), b"abc"));
        assert!(writer.push(Address(0), Group::new(0), Level(0), Flags::FILLER, &[0; 10]));
        assert!(writer.push(RECEIVER, Group::new(8), Level(0), Flags::ECHO, b""));
        Ok(writer.finish(&header))
    })
}

fn subscribe() -> Vec<u8> {
    written(|out| {
        let mut writer = SubscribeWriter::new(out, 4)?;
        assert!(writer.push(Change::Add(Group::new(7), Level(2))));
        assert!(writer.push(Change::Add(Group::new(Group::MAX), Level(2))));
        assert!(writer.push(Change::Drop(Group::new(8))));
        Ok(writer.finish(COMTREE, SENDER))
    })
}

fn subscribe_ack() -> Vec<u8> {
    written(|out| {
        let mut writer = SubscribeAckWriter::new(out, 4)?;
        assert!(writer.push(Group::new(7), TableFull::Table));
        assert!(writer.push(Group::new(8), TableFull::Participant));
        assert!(writer.push(Group::new(9), TableFull::Participant));
        assert!(writer.push(Group::new(10), TableFull::Other(9)));
        Ok(writer.finish(COMTREE, SENDER))
    })
}

fn connected() -> Connected {
    Connected {
        nonce: NONCE,
        address: SENDER,
        lifetime_ms: 10_000,
        keepalive_ms: 2_000,
        subscription_ms: 60_000,
        secret: PROOF,
    }
}

fn update_cases() -> Vec<Case> {
    let route = Header::new(Kind::RouteReply, COMTREE, SENDER, RECEIVER);
    vec![
        case(
            data(),
            "Data 1.2 → group 7 level 3, comtree 9, 5 bytes",
            &[
                ("canopy.version", "0xc1"),
                ("canopy.kind", "0x01"),
                ("canopy.flags", "0x01"),
                ("canopy.level", "3"),
                ("canopy.comtree", "9"),
                ("canopy.src", "0x00010002"),
                ("canopy.src.site", "1"),
                ("canopy.src.endpoint", "2"),
                ("canopy.dst", "0x80000007"),
                ("canopy.group", "7"),
                ("canopy.length", "5"),
                ("canopy.hop_limit", "32"),
                ("canopy.payload", "68656c6c6f"),
            ],
        ),
        case(
            [bundle(), vec![0; 6]].concat(),
            "Bundle, comtree 9, 2 updates and 1 filler record",
            &[
                ("canopy.kind", "0x02"),
                ("canopy.bundle.updates", "2"),
                ("canopy.bundle.fillers", "1"),
                ("canopy.record.length", "3|10|0"),
                ("canopy.record.level", "3|0|0"),
                ("canopy.record.flags", "0x00|0x80|0x01"),
                ("canopy.record.src", "0x00010002|0x00000000|0x00010005"),
                ("canopy.record.dst", "0x80000007|0x80000000|0x80000008"),
                ("canopy.record.payload", "616263|00000000000000000000"),
                ("canopy.group", "7|0|8"),
                ("canopy.padding", "000000000000"),
            ],
        ),
        case(
            written(|out| route.encode_packet(b"", out)),
            "Route-reply 1.2 → 1.5, comtree 9, 0 bytes",
            &[("canopy.kind", "0x08"), ("canopy.dst.site", "1"), ("canopy.dst.endpoint", "5")],
        ),
    ]
}

fn subscribe_cases() -> Vec<Case> {
    vec![
        case(
            subscribe(),
            "Subscribe 1.2 → relay, comtree 9, #4, add 2, drop 1",
            &[
                ("canopy.kind", "0x03"),
                ("canopy.sequence", "4"),
                ("canopy.section.operation", "1|0"),
                ("canopy.section.level", "2|0"),
                ("canopy.section.count", "2|1"),
                ("canopy.group", "7|2147483647|8"),
            ],
        ),
        case(
            subscribe_ack(),
            "Subscribe-ack relay → 1.2, comtree 9, #4, 1 refused (table full), \
             2 refused (participant's share full), 1 refused (reason 9)",
            &[
                ("canopy.kind", "0x04"),
                ("canopy.sequence", "4"),
                ("canopy.section.reason", "1|2|9"),
                ("canopy.section.count", "1|2|1"),
                ("canopy.group", "7|8|9|10"),
            ],
        ),
    ]
}

fn handshake_cases() -> Vec<Case> {
    let refused = Refused { nonce: NONCE, reason: RefusedReason::Draining };
    let connect = Connect { nonce: NONCE, cookie: COOKIE, suite: 0, token: b"key" };
    vec![
        case(
            written(|out| Hello { nonce: NONCE }.encode(COMTREE, out)),
            "Hello, comtree 9, nonce 0011223344556677",
            &[
                ("canopy.kind", "0x10"),
                ("canopy.src", "0x44556677"),
                ("canopy.src.site", ""),
                ("canopy.nonce", "0x0011223344556677"),
                ("canopy.ignored", "000000000000000000000000000000000000000000000000"),
            ],
        ),
        case(
            written(|out| Cookie { nonce: NONCE, cookie: COOKIE }.encode(COMTREE, out)),
            "Cookie, comtree 9, nonce 0011223344556677",
            &[
                ("canopy.kind", "0x11"),
                ("canopy.nonce", "0x0011223344556677"),
                ("canopy.cookie", COOKIE_HEX),
            ],
        ),
        case(
            written(|out| connect.encode(COMTREE, out)),
            "Connect, comtree 9, nonce 0011223344556677, suite 0, token of 3 bytes",
            &[
                ("canopy.kind", "0x12"),
                ("canopy.nonce", "0x0011223344556677"),
                ("canopy.cookie", COOKIE_HEX),
                ("canopy.suite", "0"),
                ("canopy.token.length", "3"),
                ("canopy.token", "6b6579"),
            ],
        ),
        case(
            written(|out| connected().encode(COMTREE, out)),
            "Connected relay → 1.2, comtree 9, nonce 0011223344556677, as 1.2",
            &[
                ("canopy.kind", "0x13"),
                ("canopy.address", "0x00010002"),
                ("canopy.lifetime_ms", "10000"),
                ("canopy.keepalive_ms", "2000"),
                ("canopy.subscription_ms", "60000"),
                ("canopy.secret", PROOF_HEX),
            ],
        ),
        case(
            written(|out| refused.encode(COMTREE, out)),
            "Refused, comtree 9, nonce 0011223344556677: draining",
            &[("canopy.kind", "0x14"), ("canopy.refused.reason", "5")],
        ),
    ]
}

/// What another release may say.
fn unknown_cases() -> Vec<Case> {
    let refused = Refused { nonce: NONCE, reason: RefusedReason::Other(77) };
    let leave = Leave { reason: LeaveReason::Other(78) };
    vec![
        case(
            written(|out| refused.encode(COMTREE, out)),
            "Refused, comtree 9, nonce 0011223344556677: reason 77",
            &[("canopy.refused.reason", "77")],
        ),
        case(
            written(|out| leave.encode(COMTREE, Address::UNSPECIFIED, SENDER, out)),
            "Leave relay → 1.2, comtree 9, reason 78",
            &[("canopy.leave.reason", "78")],
        ),
    ]
}

fn session_cases() -> Vec<Case> {
    let keepalive = Keepalive { stamp: 1 << 40 };
    let leave = Leave { reason: LeaveReason::Draining };
    let rebind = Rebind { cookie: COOKIE, proof: PROOF };
    vec![
        case(
            written(|out| keepalive.encode(COMTREE, SENDER, out)),
            "Keepalive 1.2 → relay, comtree 9, stamp 1099511627776",
            &[
                ("canopy.kind", "0x15"),
                ("canopy.stamp", "1099511627776"),
                ("canopy.ignored", "0000000000000000"),
            ],
        ),
        case(
            written(|out| keepalive.encode_ack(COMTREE, SENDER, out)),
            "Keepalive-ack relay → 1.2, comtree 9, stamp 1099511627776",
            &[("canopy.kind", "0x16"), ("canopy.stamp", "1099511627776")],
        ),
        case(
            written(|out| leave.encode(COMTREE, Address::UNSPECIFIED, SENDER, out)),
            "Leave relay → 1.2, comtree 9, draining",
            &[("canopy.kind", "0x17"), ("canopy.leave.reason", "1")],
        ),
        case(
            written(|out| Leave::encode_left(COMTREE, SENDER, out)),
            "Left relay → 1.2, comtree 9",
            &[("canopy.kind", "0x18"), ("canopy.length", "0")],
        ),
        case(
            written(|out| Challenge { cookie: COOKIE }.encode(COMTREE, SENDER, out)),
            "Challenge relay → 1.2, comtree 9",
            &[("canopy.kind", "0x19"), ("canopy.cookie", COOKIE_HEX)],
        ),
        case(
            written(|out| rebind.encode(COMTREE, SENDER, out)),
            "Rebind 1.2 → relay, comtree 9",
            &[("canopy.kind", "0x1a"), ("canopy.cookie", COOKIE_HEX), ("canopy.proof", PROOF_HEX)],
        ),
    ]
}

/// What a relay drops, and how it is found where the heuristic cannot.
fn faulty_cases() -> Vec<Case> {
    let mut overrun = bundle();
    overrun[HEADER_LEN + 1] = 200;
    let mut unknown_kind = data();
    unknown_kind[1] = 0x7f;
    let mut other_version = written(|out| Hello { nonce: NONCE }.encode(COMTREE, out));
    other_version[0] = 0xC2;
    let on = |port, case: Case| Case { port, ..case };
    vec![
        case(
            overrun,
            "Bundle, comtree 9, 0 updates [malformed: record 1 runs over the end]",
            &[
                (EXPERT, "record 1 runs over the end"),
                ("canopy.record.length", "200"),
                ("canopy.bundle.updates", "0"),
            ],
        ),
        on(
            NAMED_PORT,
            case(
                unknown_kind,
                "Unknown kind 0x7f, comtree 9",
                &[(EXPERT, "Unknown kind"), ("canopy.malformed", "")],
            ),
        ),
        on(
            DECODED_AS_PORT,
            case(
                other_version,
                "Version 0xc2 Hello nonce 0011223344556677",
                &[
                    (EXPERT, "Another version"),
                    ("canopy.nonce", "0x0011223344556677"),
                    ("canopy.comtree", ""),
                ],
            ),
        ),
    ]
}

#[test]
fn tshark_shows_what_the_encoders_wrote() {
    if let Some(why) = tshark_unavailable() {
        println!("skipped: {why}");
        return;
    }
    let mut cases = update_cases();
    cases.extend(subscribe_cases());
    cases.extend(handshake_cases());
    cases.extend(session_cases());
    cases.extend(unknown_cases());
    for kind in Kind::ALL {
        let shown = cases.iter().any(|case| case.datagram[1] == *kind as u8);
        assert!(shown, "no case for {kind:?}");
    }
    for case in &mut cases {
        case.fields.extend(FAULTS.map(|fault| (fault, "")));
    }
    cases.extend(faulty_cases());

    let mut names = vec!["_ws.col.Protocol", "_ws.col.Info"];
    names.extend(cases.iter().flat_map(|case| case.fields.iter().map(|(name, _)| *name)));
    names.retain(|name| *name != EXPERT);
    names.sort_unstable();
    names.dedup();
    let frames: Vec<Frame> =
        cases.iter().map(|case| Frame::new(case.port, &case.datagram)).collect();
    let rows = tshark(&frames, &names);
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
fn tshark_calls_malformed_what_the_decoders_refuse() {
    if let Some(why) = tshark_unavailable() {
        println!("skipped: {why}");
        return;
    }
    let datagrams = hostile_datagrams();
    let frames: Vec<Frame> = datagrams.iter().map(|bytes| Frame::new(NAMED_PORT, bytes)).collect();
    let rows = tshark(&frames, &FAULTS);
    for (datagram, row) in datagrams.iter().zip(&rows) {
        let shown = [0, 1, 2, 3].map(|column: usize| !row[column].is_empty());
        let verdict = decode(datagram);
        let expected = match verdict {
            Ok(()) => [false, false, false, false],
            Err(WireError::Version(_)) => [false, true, false, false],
            Err(WireError::Kind(_)) => [false, false, true, false],
            Err(_) => [true, false, false, false],
        };
        assert_eq!(shown, expected, "{verdict:?}: {datagram:02x?}");
    }
}

#[test]
fn a_packet_cut_by_the_capture_is_not_called_malformed() {
    if let Some(why) = tshark_unavailable() {
        println!("skipped: {why}");
        return;
    }
    let packets = intact_packets();
    let mut frames = Vec::new();
    for packet in &packets {
        for captured in 1..packet.len() {
            frames.push(Frame { captured, ..Frame::new(NAMED_PORT, packet) });
        }
    }
    for (frame, row) in frames.iter().zip(tshark(&frames, &["canopy.cut", "canopy.malformed"])) {
        assert_eq!(row[1], "", "{:02x?} cut to {}", frame.datagram, frame.captured);
        assert!(!row[0].is_empty(), "{:02x?} cut to {}", frame.datagram, frame.captured);
    }
}

const FAULTS: [&str; 4] =
    ["canopy.malformed", "canopy.other_version", "canopy.unknown_kind", "canopy.cut"];

fn intact_packets() -> Vec<Vec<u8>> {
    let cases = [update_cases(), subscribe_cases(), handshake_cases(), session_cases()];
    cases.into_iter().flatten().map(|case| case.datagram).collect()
}

/// Every packet cut to every length, with its length field kept or made to fit; with each of its
/// first 64 bytes changed; and padded beyond the longest datagram.
fn hostile_datagrams() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for packet in intact_packets() {
        for len in 1..=packet.len() {
            let mut cut = packet[..len].to_vec();
            all.push(cut.clone());
            if len >= HEADER_LEN {
                cut[16..18].copy_from_slice(&((len - HEADER_LEN) as u16).to_be_bytes());
                all.push(cut);
            }
        }
        for at in 0..packet.len().min(64) {
            for value in [0x00, 0x01, 0x03, 0x7f, 0xff, packet[at].wrapping_add(1)] {
                let mut changed = packet.clone();
                changed[at] = value;
                all.push(changed);
            }
        }
        let mut long = packet.clone();
        long.resize(MAX_DATAGRAM + 1, 0);
        all.push(long);
    }
    all
}

/// Everything that a receiver checks.
fn decode(datagram: &[u8]) -> Result<(), WireError> {
    let packet = Packet::new_checked(datagram)?;
    match packet.header().kind {
        Kind::Data | Kind::RouteReply | Kind::Left => Ok(()),
        Kind::Bundle => Bundle::new_checked(&packet).map(drop),
        Kind::Subscribe => Subscribe::new_checked(&packet).map(drop),
        Kind::SubscribeAck => SubscribeAck::new_checked(&packet).map(drop),
        Kind::Hello => Hello::decode(&packet).map(drop),
        Kind::Cookie => Cookie::decode(&packet).map(drop),
        Kind::Connect => Connect::decode(&packet).map(drop),
        Kind::Connected => Connected::decode(&packet).map(drop),
        Kind::Refused => Refused::decode(&packet).map(drop),
        Kind::Keepalive | Kind::KeepaliveAck => Keepalive::decode(&packet).map(drop),
        Kind::Leave => Leave::decode(&packet).map(drop),
        Kind::Challenge => Challenge::decode(&packet).map(drop),
        Kind::Rebind => Rebind::decode(&packet).map(drop),
    }
}

fn tshark_unavailable() -> Option<String> {
    match Command::new("tshark").arg("--version").output() {
        Err(error) => Some(format!("tshark cannot be started: {error}")),
        Ok(output) => {
            let about = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
            (!about.contains("with Lua")).then(|| "this tshark was built without Lua".to_owned())
        }
    }
}

/// A captured datagram.
struct Frame<'a> {
    port: u16,
    datagram: &'a [u8],
    /// How many of its bytes the capture kept.
    captured: usize,
}

impl Frame<'_> {
    fn new(port: u16, datagram: &[u8]) -> Frame<'_> {
        Frame { port, datagram, captured: datagram.len() }
    }
}

/// The named fields of each frame, as tshark prints them, then [`EXPERT`]. Fails on any Lua error.
fn tshark(frames: &[Frame<'_>], names: &[&str]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("canopy.pcap");
    std::fs::write(&file, pcap(frames)).unwrap();
    let output = command(folder.path(), &file, names).output().unwrap();
    let (shown, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let complaint = said.lines().find(|line| line.to_lowercase().contains("lua"));
    assert_eq!(complaint, None, "{said}");
    let rows: Vec<Vec<String>> =
        shown.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    assert_eq!(rows.len(), frames.len(), "one line a packet");
    for row in &rows {
        let expert = &row[names.len()];
        assert!(!expert.contains("Lua"), "{expert}");
    }
    rows
}

fn command(home: &Path, file: &Path, names: &[&str]) -> Command {
    let mut command = Command::new("tshark");
    // A user's own settings and plugins, perhaps this very script, stay out of it.
    for variable in ["HOME", "XDG_CONFIG_HOME", "WIRESHARK_CONFIG_DIR"] {
        command.env(variable, home);
    }
    command.env("LC_ALL", "C.UTF-8").arg("-r").arg(file);
    command.args(["-X", &format!("lua_script:{SCRIPT}")]);
    command.args(["-o", &format!("canopy.ports:{NAMED_PORT}")]);
    command.args(["-d", &format!("udp.port=={DECODED_AS_PORT},canopy")]);
    command.args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]);
    command.args(["-E", "aggregator=|"]);
    for name in names.iter().chain(&[EXPERT]) {
        command.args(["-e", name]);
    }
    command
}

/// A pcap file of raw IPv4 (LINKTYPE_RAW).
fn pcap(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, 101_u32] {
        file.extend_from_slice(&word.to_be_bytes());
    }
    for (frame, second) in frames.iter().zip(0_u32..) {
        let packet = ipv4_udp(frame.port, frame.datagram);
        let captured = packet.len() - frame.datagram.len() + frame.captured;
        for word in [second, 0, captured as u32, packet.len() as u32] {
            file.extend_from_slice(&word.to_be_bytes());
        }
        file.extend_from_slice(&packet[..captured]);
    }
    file
}

/// `datagram` behind an IPv4 and a UDP header without checksums, between documentation addresses.
fn ipv4_udp(port: u16, datagram: &[u8]) -> Vec<u8> {
    let udp_len = 8 + datagram.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&(20 + udp_len).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    for half in [port, port, udp_len, 0] {
        packet.extend_from_slice(&half.to_be_bytes());
    }
    packet.extend_from_slice(datagram);
    packet
}
