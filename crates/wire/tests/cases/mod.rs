//! Packets as the encoders write them, whole and with faults, and what tshark must say of each.

mod overlay;
mod paths;

use crate::tshark::{DECODED_AS_PORT, EXPERT, NAMED_PORT, OTHER_PORT};
use canopy_wire::{
    Address, Busy, CLEAR_LEN, Challenge, Class, Comtree, Connect, Connected, Cookie, Excess, Flags,
    Gone, Group, GroupKey, GroupKeyHeld, GroupKeyNumber, HEADER_LEN, Header, Hello, Keepalive,
    Kind, Leave, LeaveReason, Level, MAX_DATAGRAM, NumberedRequest, Rebind, Record, Refused,
    RefusedReason, Request, RequestStatus, Response, Restriction, SEAL_LEN, SessionId,
    SubscribeAckWriter, SubscribeRefusal, SubscribeWriter, SubscriptionChange, Suite, Unknown,
    UpdatesWriter, VERSION, Verdict, Weight, WireError, encode_update,
};
pub(crate) use overlay::{link_state_cases, malformed_overlay_cases, overlay_cases};
pub(crate) use paths::{malformed_path_cases, path_cases};

/// Places in the base header.
pub(crate) const KIND_AT: usize = 8;
pub(crate) const COUNT_AT: usize = 10;
pub(crate) const FLAGS_AT: usize = 11;

pub(crate) const COMTREE: Comtree = Comtree(9);
const GONE: Address = Address::unicast(1, 66);
pub(crate) const SESSION: SessionId = SessionId::new(70_007);
const SENDER: Address = Address::unicast(1, 2);
const RECEIVER: Address = Address::unicast(1, 5);
const ELSEWHERE: Address = Address::unicast(2, 7);
const NONCE: u64 = 0x0011_2233_4455_6677;
const COOKIE: [u8; 16] = [0xab; 16];
const RELAY_KEY: [u8; 32] = [0xcd; 32];
const COOKIE_HEX: &str = "abababababababababababababababab";
const RELAY_KEY_HEX: &str = "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd";

/// A datagram and what tshark must say of it. A field that occurs several times has its values
/// joined by `|`; one that must not occur is "".
pub(crate) struct Case {
    pub(crate) port: u16,
    pub(crate) datagram: Vec<u8>,
    pub(crate) info: String,
    pub(crate) fields: Vec<(&'static str, &'static str)>,
}

fn case(
    datagram: Vec<u8>,
    info: impl Into<String>,
    fields: &[(&'static str, &'static str)],
) -> Case {
    Case { port: OTHER_PORT, datagram, info: info.into(), fields: fields.to_vec() }
}

pub(crate) fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let len = write(&mut out).unwrap();
    out[..len].to_vec()
}

/// What a participant sends: an update of its own.
pub(crate) fn published() -> Vec<u8> {
    let header = Header { counter: 12, ..Header::new(Kind::Updates, SESSION, COMTREE) };
    let update = Record::new(Group::new(7).address(), 700, b"hello");
    let update = Record { flags: Flags::ECHO, level: Level(3), ..update };
    written(|out| encode_update(&header, &update, out))
}

/// Records that take every form of every field between them.
pub(crate) fn records() -> [Record<'static>; 7] {
    let of = |src, dst, series, payload| Record { src, ..Record::new(dst, series, payload) };
    let group = |number| Group::new(number).address();
    let at_two = |flags, record| Record { level: Level(2), flags, ..record };
    [
        of(SENDER, group(7), 500, b"abc"),
        of(SENDER, group(7), 501, b"def"),
        at_two(Flags::ECHO, of(SENDER, group(8), 510, &[0x5a; 130])),
        at_two(Flags::FILLER, of(RECEIVER, group(8), 9, &[0; 130])),
        of(RECEIVER, SENDER, 10, b""),
        of(ELSEWHERE, RECEIVER, u16::MAX, b"xyz"),
        of(ELSEWHERE, RECEIVER, 0, b"uvw"),
    ]
}

/// Updates about objects of different weights: one that says both, one that says neither, and one of
/// each.
pub(crate) fn weighed() -> [Record<'static>; 4] {
    let of = |series, weight, object| Record {
        src: SENDER,
        weight: Weight(weight),
        object,
        ..Record::new(Group::new(7).address(), series, b"abc")
    };
    [of(500, 200, 3), of(501, 200, 3), of(502, 200, 0x1004), of(503, 128, 0x1004)]
}

/// What a relay sends to many.
pub(crate) fn relayed(records: &[Record<'_>]) -> Vec<u8> {
    written(|out| {
        let mut writer = UpdatesWriter::new(out, MAX_DATAGRAM)?;
        assert!(records.iter().all(|record| writer.push(record)));
        Ok(writer.finish(&Header::new(Kind::Updates, SessionId::NONE, COMTREE)))
    })
}

fn subscribe() -> Vec<u8> {
    written(|out| {
        let mut writer = SubscribeWriter::new(out, 4, MAX_DATAGRAM)?;
        assert!(writer.push(SubscriptionChange::Add(Group::new(7), Level(2))));
        assert!(writer.push(SubscriptionChange::Add(Group::new(Group::MAX), Level(2))));
        assert!(writer.push(SubscriptionChange::AddWeighted(Group::new(9), Level(1), Weight(200))));
        assert!(writer.push(SubscriptionChange::AddWeighted(
            Group::new(10),
            Level(1),
            Weight::LEAST
        )));
        assert!(writer.push(SubscriptionChange::Drop(Group::new(8))));
        Ok(writer.finish(COMTREE, SESSION))
    })
}

fn subscribe_ack() -> Vec<u8> {
    written(|out| {
        let mut writer = SubscribeAckWriter::new(out, 4, MAX_DATAGRAM)?;
        assert!(writer.push(Group::new(7), SubscribeRefusal::Table));
        assert!(writer.push(Group::new(8), SubscribeRefusal::Participant));
        assert!(writer.push(Group::new(9), SubscribeRefusal::Participant));
        assert!(writer.push(Group::new(10), SubscribeRefusal::Other(9)));
        Ok(writer.finish(COMTREE, SESSION))
    })
}

fn connect(message: &[u8]) -> Vec<u8> {
    written(|out| Connect { nonce: NONCE, cookie: COOKIE, message }.encode(out))
}

fn connected(message: &[u8]) -> Vec<u8> {
    written(|out| Connected { nonce: NONCE, message }.encode(out))
}

pub(crate) fn update_cases() -> Vec<Case> {
    vec![
        case(
            published(),
            "Updates, comtree 9, session 70007, sender → group 7, level 3, series 700, 5 bytes",
            &[
                ("canopy.first", "0x89"),
                ("canopy.version", "1"),
                ("canopy.class", "1"),
                ("canopy.session", "70007"),
                ("canopy.counter", "12"),
                ("canopy.kind", "0x01"),
                ("canopy.hop_limit", "128"),
                ("canopy.records", "1"),
                ("canopy.flags", "0x00"),
                ("canopy.comtree", "9"),
                ("canopy.record.form", "0x42"),
                ("canopy.record.form.source", "2"),
                ("canopy.record.form.destination", "0"),
                ("canopy.record.src", "0x00000000"),
                ("canopy.record.src.site", ""),
                ("canopy.record.series", "700"),
                ("canopy.record.dst", "0x80000007"),
                ("canopy.group", "7"),
                ("canopy.record.level", "3"),
                ("canopy.record.length", "5"),
                ("canopy.record.weight", "128"),
                ("canopy.record.object", "0"),
                ("canopy.record.payload", "68656c6c6f"),
                ("canopy.padding", ""),
            ],
        ),
        relayed_case(),
        case(
            relayed(&weighed()[2..3]),
            "Updates, comtree 9, 1.2 → group 7, level 0, series 502, 3 bytes, weight 200, \
             object 4100",
            &[("canopy.record.weight", "200"), ("canopy.record.object", "4100")],
        ),
        case(
            relayed(&weighed()),
            "Updates, comtree 9, 4 updates",
            &[
                ("canopy.record.form", "0x10|0x3b|0x1b|0x1b"),
                ("canopy.record.length", "3|3|3|3"),
                ("canopy.record.weight", "200|200|200|128"),
                ("canopy.record.object", "3|3|4100|4100"),
                ("canopy.record.payload", "616263|616263|616263|616263"),
                ("canopy.padding", ""),
            ],
        ),
        case(
            relayed(&[]),
            "Updates, comtree 9, 0 updates",
            &[("canopy.updates", "0"), ("canopy.record.form", "")],
        ),
    ]
}

fn relayed_case() -> Case {
    case(
        [relayed(&records()), vec![0; 6]].concat(),
        "Updates, comtree 9, 6 updates and 1 filler record",
        &[
            ("canopy.session", "16777215"),
            ("canopy.counter", "0"),
            ("canopy.records", "7"),
            ("canopy.updates", "6"),
            ("canopy.fillers", "1"),
            ("canopy.record.form", "0x10|0x3b|0x46|0xb9|0x03|0x14|0x3b"),
            ("canopy.record.form.source", "0|3|2|1|3|0|3"),
            ("canopy.record.form.destination", "0|2|1|2|0|1|2"),
            (
                "canopy.record.src",
                "0x00010002|0x00010002|0x00010002|0x00010005|0x00010005|0x00020007|0x00020007",
            ),
            ("canopy.record.src.site", "1|1|1|1|1|2|2"),
            ("canopy.record.src.endpoint", "2|2|2|5|5|7|7"),
            ("canopy.record.series", "500|501|510|9|10|65535|0"),
            (
                "canopy.record.dst",
                "0x80000007|0x80000007|0x80000008|0x80000008|0x00010002|0x00010005|0x00010005",
            ),
            ("canopy.group", "7|7|8|8"),
            ("canopy.record.dst.site", "1|1|1"),
            ("canopy.record.dst.endpoint", "2|5|5"),
            ("canopy.record.level", "0|0|2|2|0|0|0"),
            ("canopy.record.length", "3|3|130|130|0|3|3"),
            ("canopy.padding", "000000000000"),
        ],
    )
}

pub(crate) fn subscribe_cases() -> Vec<Case> {
    vec![
        case(
            subscribe(),
            "Subscribe, comtree 9, session 70007, #4, add 4, drop 1",
            &[
                ("canopy.kind", "0x03"),
                ("canopy.sequence", "4"),
                ("canopy.section.operation", "1|2|0"),
                ("canopy.section.level", "2|1|0"),
                ("canopy.section.count", "2|2|1"),
                ("canopy.section.weight", "200|0"),
                ("canopy.group", "7|2147483647|9|10|8"),
            ],
        ),
        case(
            subscribe_ack(),
            "Subscribe-ack, comtree 9, session 70007, #4, 1 refused (table full), \
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

pub(crate) fn handshake_cases() -> Vec<Case> {
    let cookie = Cookie { nonce: NONCE, cookie: COOKIE, relay_key: RELAY_KEY };
    vec![
        case(
            written(|out| Hello { nonce: NONCE }.encode(COMTREE, out)),
            "Hello, comtree 9, nonce 0011223344556677",
            &[
                ("canopy.first", "0x88"),
                ("canopy.class", "0"),
                ("canopy.kind", "0x10"),
                ("canopy.session", LOW_NONCE),
                ("canopy.nonce", "0x0011223344556677"),
                (
                    "canopy.ignored",
                    "000000000000000000000000000000000000000000000000\
                     000000000000000000000000000000000000000000000000",
                ),
            ],
        ),
        case(
            written(|out| cookie.encode(COMTREE, out)),
            "Cookie, comtree 9, nonce 0011223344556677",
            &[
                ("canopy.kind", "0x11"),
                ("canopy.session", LOW_NONCE),
                ("canopy.nonce", "0x0011223344556677"),
                ("canopy.cookie", COOKIE_HEX),
                ("canopy.relay_key", RELAY_KEY_HEX),
                ("canopy.ignored", ""),
            ],
        ),
        case(
            connect(b"let me in"),
            "Connect, nonce 0011223344556677, message of 9 bytes",
            &[
                ("canopy.class", "0"),
                ("canopy.kind", "0x12"),
                ("canopy.session", LOW_NONCE),
                ("canopy.comtree", "0"),
                ("canopy.nonce", "0x0011223344556677"),
                ("canopy.cookie", COOKIE_HEX),
                ("canopy.message", "6c6574206d6520696e"),
                ("canopy.ignored", ""),
            ],
        ),
        case(
            connected(b"welcome"),
            "Connected, nonce 0011223344556677, message of 7 bytes",
            &[
                ("canopy.class", "0"),
                ("canopy.kind", "0x13"),
                ("canopy.session", LOW_NONCE),
                ("canopy.comtree", "0"),
                ("canopy.nonce", "0x0011223344556677"),
                ("canopy.message", "77656c636f6d65"),
                ("canopy.ignored", ""),
            ],
        ),
    ]
}

/// The low 24 bits of the nonce: 0x556677.
const LOW_NONCE: &str = "5596791";

pub(crate) fn refused_cases() -> Vec<Case> {
    let shown = [
        (RefusedReason::Draining, "draining", "5"),
        (RefusedReason::Version, "another version", "3"),
        (RefusedReason::Key, "not made for the relay's key", "6"),
    ];
    let of = |(reason, text, number)| {
        case(
            written(|out| Refused { nonce: NONCE, reason }.encode(COMTREE, out)),
            format!("Refused, comtree 9, nonce 0011223344556677: {text}"),
            &[
                ("canopy.kind", "0x14"),
                ("canopy.session", LOW_NONCE),
                ("canopy.refused.reason", number),
            ],
        )
    };
    shown.map(of).into()
}

/// What another release may say.
pub(crate) fn unknown_cases() -> Vec<Case> {
    let refused = Refused { nonce: NONCE, reason: RefusedReason::Other(77) };
    let leave = Leave { reason: LeaveReason::Other(78) };
    vec![
        case(
            written(|out| refused.encode(COMTREE, out)),
            "Refused, comtree 9, nonce 0011223344556677: reason 77",
            &[("canopy.refused.reason", "77")],
        ),
        case(
            written(|out| leave.encode(COMTREE, SESSION, out)),
            "Leave, comtree 9, session 70007, reason 78",
            &[("canopy.leave.reason", "78")],
        ),
    ]
}

pub(crate) fn session_cases() -> Vec<Case> {
    let keepalive = Keepalive { stamp: 1 << 40, path_stamp: NONCE };
    let leave = Leave { reason: LeaveReason::Draining };
    let rebind = Rebind { cookie: COOKIE };
    let longer = |packet| [packet, vec![1, 2, 3]].concat();
    vec![
        case(
            written(|out| keepalive.encode(COMTREE, SESSION, out)),
            "Keepalive, comtree 9, session 70007, stamp 1099511627776",
            &[
                ("canopy.kind", "0x15"),
                ("canopy.stamp", "1099511627776"),
                ("canopy.path_stamp", "0x0011223344556677"),
            ],
        ),
        case(
            written(|out| keepalive.encode_ack(COMTREE, SESSION, out)),
            "Keepalive-ack, comtree 9, session 70007, stamp 1099511627776",
            &[
                ("canopy.kind", "0x16"),
                ("canopy.stamp", "1099511627776"),
                ("canopy.path_stamp", "0x0011223344556677"),
            ],
        ),
        case(
            written(|out| leave.encode(COMTREE, SESSION, out)),
            "Leave, comtree 9, session 70007, draining",
            &[("canopy.kind", "0x17"), ("canopy.leave.reason", "1"), ("canopy.ignored", "")],
        ),
        case(
            longer(written(|out| Leave::encode_left(COMTREE, SESSION, out))),
            "Left, comtree 9, session 70007",
            &[("canopy.kind", "0x18"), ("canopy.ignored", "010203")],
        ),
        case(
            longer(written(|out| Challenge { cookie: COOKIE }.encode(COMTREE, SESSION, out))),
            "Challenge, comtree 9, session 70007",
            &[("canopy.kind", "0x19"), ("canopy.cookie", COOKIE_HEX), ("canopy.ignored", "010203")],
        ),
        case(
            written(|out| rebind.encode(COMTREE, SESSION, out)),
            "Rebind, comtree 9, session 70007",
            &[("canopy.kind", "0x1a"), ("canopy.cookie", COOKIE_HEX), ("canopy.ignored", "")],
        ),
        case(
            written(|out| Unknown { echo: NONCE }.encode(COMTREE, SESSION, out)),
            "Unknown, comtree 9, session 70007, echo 0011223344556677",
            &[("canopy.kind", "0x1b"), ("canopy.unknown.echo", "0x0011223344556677")],
        ),
    ]
}

/// What members are told beside answers, and what they say to it.
pub(crate) fn notice_cases() -> Vec<Case> {
    let longer = |packet| [packet, vec![1, 2, 3]].concat();
    vec![
        case(
            written(|out| {
                Busy { what: Excess::Subscriptions, dropped: 77 }.encode(COMTREE, SESSION, out)
            }),
            "Busy, comtree 9, session 70007, too many subscriptions, 77 dropped",
            &[
                ("canopy.kind", "0x1d"),
                ("canopy.busy.what", "3"),
                ("canopy.reserved", "000000"),
                ("canopy.busy.dropped", "77"),
            ],
        ),
        case(
            written(|out| group_key(Suite::ChaCha20Poly1305).encode(COMTREE, SESSION, out)),
            "Group-key, comtree 9, session 70007, key 70007, from 300 on",
            &[
                ("canopy.kind", "0x24"),
                ("canopy.group_key.number", "70007"),
                ("canopy.group_key.suite", "1"),
                ("canopy.group_key.first", "300"),
            ],
        ),
        case(
            longer(written(|out| held().encode(COMTREE, SESSION, out))),
            "Group-key-held, comtree 9, session 70007, has 16777215, lacks 7",
            &[
                ("canopy.kind", "0x25"),
                ("canopy.group_key.number", "16777215"),
                ("canopy.group_key.lacks", "7"),
            ],
        ),
        case(
            longer(written(|out| Gone { address: GONE }.encode(COMTREE, SESSION, out))),
            "Gone, comtree 9, session 70007, 1.66",
            &[
                ("canopy.kind", "0x1c"),
                ("canopy.gone.address", "0x00010042"),
                ("canopy.ignored", "010203"),
            ],
        ),
    ]
}

pub(crate) fn request_cases() -> Vec<Case> {
    let request = |request| {
        written(|out| NumberedRequest { sequence: 7, request }.encode(COMTREE, SESSION, out))
    };
    let mute = Request::Judge(Address::unicast(1, 70), Verdict::Restrict(Restriction::MUTE));
    let response = Response { sequence: 7, status: RequestStatus::UnknownAddress };
    vec![
        case(
            request(Request::Renew(b"v4")),
            "Request, comtree 9, session 70007, number 7, renew",
            &[("canopy.kind", "0x20"), ("canopy.request", "1"), ("canopy.request.token", "7634")],
        ),
        case(
            request(mute),
            "Request, comtree 9, session 70007, number 7, restrict 1.70",
            &[
                ("canopy.request", "3"),
                ("canopy.request.acts", "0x05"),
                ("canopy.request.first", "0"),
                ("canopy.request.last", "2147483647"),
                ("canopy.request.token", ""),
            ],
        ),
        case(
            written(|out| response.encode(COMTREE, SESSION, out)),
            "Response, comtree 9, session 70007, number 7, unknown address",
            &[("canopy.kind", "0x21"), ("canopy.sequence", "7"), ("canopy.response.status", "2")],
        ),
    ]
}

pub(crate) fn group_key(suite: Suite) -> GroupKey {
    GroupKey { number: GroupKeyNumber::new(70_007), suite, first: 300, secret: [0xab; 32] }
}

pub(crate) fn held() -> GroupKeyHeld {
    GroupKeyHeld { newest: GroupKeyNumber::NONE, lacks: GroupKeyNumber::new(7) }
}

/// The first byte of sealed packets: without their keys no decoder reads them.
pub(crate) const SEALED: u8 = VERSION | Class::Sealed as u8;

/// The first byte of what is sealed for all members of a comtree.
pub(crate) const SEALED_FOR_GROUP: u8 = VERSION | Class::Group as u8;

/// A packet of session 70007 with counter 12: this much is in clear, and the rest could be anything.
pub(crate) fn sealed(ciphertext: &[u8]) -> Vec<u8> {
    let header = Header { counter: 12, ..Header::new(Kind::Updates, SESSION, COMTREE) };
    let clear = altered(header.encode(0)[..CLEAR_LEN].to_vec(), 0, SEALED);
    [&clear, ciphertext, &[0xef; SEAL_LEN]].concat()
}

/// The same with group key 70007.
pub(crate) fn sealed_for_group(ciphertext: &[u8]) -> Vec<u8> {
    altered(sealed(ciphertext), 0, SEALED_FOR_GROUP)
}

/// The least that can be sealed: the rest of the header.
pub(crate) const LEAST_SEALED: [u8; HEADER_LEN - CLEAR_LEN] =
    [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80];

pub(crate) fn sealed_cases() -> Vec<Case> {
    let shown = [
        ("canopy.first", "0x8a"),
        ("canopy.class", "2"),
        ("canopy.session", "70007"),
        ("canopy.counter", "12"),
        ("canopy.tag", "efefefefefefefefefefefefefefefef"),
        ("canopy.kind", ""),
        ("canopy.comtree", ""),
    ];
    let of = |ciphertext: &[u8], info, bytes| {
        case(sealed(ciphertext), info, &[&shown[..], &[("canopy.sealed", bytes)]].concat())
    };
    vec![
        of(
            &[0x10, 2, 3, 4, 5, 6, 7, 8, 9],
            "Sealed, session 70007, counter 12, 9 bytes",
            "100203040506070809",
        ),
        of(&LEAST_SEALED, "Sealed, session 70007, counter 12, 8 bytes", "1020304050607080"),
        case(
            sealed_for_group(&LEAST_SEALED),
            "Sealed for a group, key 70007, counter 12, 8 bytes",
            &[
                ("canopy.first", "0x8b"),
                ("canopy.class", "3"),
                ("canopy.group_key", "70007"),
                ("canopy.session", ""),
                ("canopy.counter", "12"),
                ("canopy.sealed", "1020304050607080"),
                ("canopy.tag", "efefefefefefefefefefefefefefefef"),
            ],
        ),
    ]
}

pub(crate) fn altered(mut datagram: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    datagram[at] = value;
    datagram
}

/// A case whose fault is told in the Info column and as a remark.
fn malformed(datagram: Vec<u8>, shown: &str, fault: &'static str) -> Case {
    let info = format!("{shown} [malformed: {fault}]");
    Case { port: NAMED_PORT, ..case(datagram, info, &[(EXPERT, fault)]) }
}

/// What a relay drops, and is found by the port.
pub(crate) fn malformed_cases() -> Vec<Case> {
    let relayed = relayed(&records());
    let end = relayed.len();
    // The first record's length, behind its form, source, series and destination, and of two bytes.
    let overrun = altered(relayed.clone(), HEADER_LEN + 11, 0x9f);
    // Its weight and its object would come next.
    let weighed = self::relayed(&weighed());
    let without_weight = weighed[..HEADER_LEN + 13].to_vec();
    let without_object = weighed[..HEADER_LEN + 15].to_vec();
    let no_form = altered(relayed.clone(), HEADER_LEN, 0x1c);
    let mut short_hello = written(|out| Hello { nonce: NONCE }.encode(COMTREE, out));
    short_hello.pop();
    let long = [published(), vec![0; MAX_DATAGRAM]].concat();
    let of_class = |class| altered(published(), 0, VERSION | class);
    vec![
        malformed(
            of_class(Class::Stranger as u8),
            "Updates, comtree 9, session 70007",
            "class 0, a packet of this kind has 1",
        ),
        malformed(
            of_class(4),
            "Updates, comtree 9, session 70007",
            "class 4, a packet of this kind has 1",
        ),
        malformed(sealed_for_group(&LEAST_SEALED[1..]), "Sealed for a group", "31 bytes"),
        malformed(
            altered(
                written(|out| group_key(Suite::Aes128Gcm).encode(COMTREE, SESSION, out)),
                20,
                2,
            ),
            "Group-key, comtree 9, session 70007, key 70007, from 300 on",
            "suite 2",
        ),
        malformed(sealed(&LEAST_SEALED[1..]), "Sealed", "31 bytes"),
        malformed(relayed[..end - 1].to_vec(), TOLD, "record 7 runs over the end"),
        malformed(overrun, NONE_TOLD, "record 1 runs over the end"),
        malformed(relayed[..end - 4].to_vec(), TOLD, "record 7 is missing"),
        malformed(relayed[..HEADER_LEN + 9].to_vec(), NONE_TOLD, "record 1 ends inside its head"),
        malformed(without_weight, NONE_TOLD, "record 1 ends inside its head"),
        malformed(without_object, NONE_TOLD, "record 1 ends inside its head"),
        malformed(no_form, NONE_TOLD, "record 1 has a destination of form 3"),
        malformed(altered(relayed, FLAGS_AT, 4), "Updates, comtree 9", "flags 0x04"),
        malformed(short_hello, "Hello, comtree 9", "body of 55 bytes, needs 56"),
        malformed(
            connect(&[])[..Connect::MESSAGE_AT - 1].to_vec(),
            "Connect",
            "body of 23 bytes, needs 24",
        ),
        malformed(
            connected(&[])[..HEADER_LEN + 7].to_vec(),
            "Connected",
            "body of 7 bytes, needs 8",
        ),
        malformed(
            long,
            "Updates, comtree 9, session 70007, sender → group 7, level 3, series 700, 5 bytes",
            "longer than 1452 bytes",
        ),
    ]
}

const TOLD: &str = "Updates, comtree 9, 5 updates and 1 filler record";
const NONE_TOLD: &str = "Updates, comtree 9, 0 updates";

/// What a receiver of this version cannot read. On a port where sound packets were found before,
/// a kind that is not known is named too.
pub(crate) fn foreign_cases() -> Vec<Case> {
    let hello = written(|out| Hello { nonce: NONCE }.encode(COMTREE, out));
    let refused = Refused { nonce: NONCE, reason: RefusedReason::Version };
    let refused = written(|out| refused.encode(COMTREE, out));
    let unknown_kind = altered(published(), KIND_AT, 0x7f);
    let foreign =
        |port, datagram, info: &str, fields: &[_]| Case { port, ..case(datagram, info, fields) };
    let told = (EXPERT, "Another version");
    let kind_told = [(EXPERT, "Unknown kind"), ("canopy.malformed", ""), ("canopy.updates", "")];
    vec![
        foreign(NAMED_PORT, unknown_kind.clone(), "Unknown kind 0x7f, comtree 9", &kind_told),
        foreign(OTHER_PORT, unknown_kind, "Unknown kind 0x7f, comtree 9", &kind_told),
        foreign(
            DECODED_AS_PORT,
            altered(hello.clone(), 0, 0x90),
            "First byte 0x90, version 2, Hello, nonce 0011223344556677",
            &[told, ("canopy.nonce", "0x0011223344556677"), ("canopy.comtree", "")],
        ),
        foreign(
            DECODED_AS_PORT,
            altered(hello, 0, 0xd0),
            "First byte 0xd0, version 2",
            &[told, ("canopy.nonce", ""), ("canopy.kind", "")],
        ),
        foreign(
            DECODED_AS_PORT,
            altered(refused, 0, 0x90),
            "First byte 0x90, version 2, Refused, nonce 0011223344556677",
            &[told, ("canopy.nonce", "0x0011223344556677"), ("canopy.refused.reason", "3")],
        ),
        foreign(
            NAMED_PORT,
            altered(published(), 0, 0x91),
            "First byte 0x91, version 2",
            &[told, ("canopy.class", ""), ("canopy.record.form", "")],
        ),
    ]
}
