//! Targets of `canopy-wire`. Each parses the bytes a second time, slowly and obviously, and holds
//! the crate to the same answer; what it accepts is written again and compared.

use canopy_wire::{
    Address, Bundle, BundleWriter, Challenge, Change, Comtree, Connect, Connected, Cookie,
    DropReason, Flags, Group, HEADER_LEN, Header, Hello, Keepalive, Kind, Leave, Level,
    MAX_DATAGRAM, MAX_TOKEN_LEN, Packet, RECORD_HEADER_LEN, Rebind, Record, Refused, RefusedReason,
    Subscribe, SubscribeAck, SubscribeAckWriter, SubscribeWriter, TAG_LEN, TableFull, VERSION,
    WireError, encode_record_header,
};
use std::fmt::Debug;

const COMTREE: Comtree = Comtree(1);
const SRC: Address = Address::unicast(1, 2);

/// A datagram through the check of the base header.
pub fn packet(datagram: &[u8]) {
    let expected = first_fault(datagram);
    let packet = match Packet::new_checked(datagram) {
        Ok(packet) => packet,
        Err(error) => {
            assert_eq!(Some(error), expected);
            assert!(!DropReason::from(error).name().is_empty());
            return;
        }
    };
    assert_eq!(expected, None);
    let header = *packet.header();
    let len = HEADER_LEN + packet.payload().len();
    let mut encoded = [0; MAX_DATAGRAM];
    assert_eq!(header.encode_packet(packet.payload(), &mut encoded), Ok(len));
    // The one byte of the header that is reserved.
    encoded[19] = datagram[19];
    assert_eq!(encoded[..len], datagram[..len]);
    assert_eq!(Packet::new_checked(&datagram[..len]).unwrap().payload(), packet.payload());
    assert!(Packet::new_checked(&datagram[..len - 1]).is_err());
    for address in [header.src, header.dst] {
        let again = address
            .group()
            .map_or_else(|| Address::unicast(address.site(), address.endpoint()), Group::address);
        assert_eq!(again, address);
    }
}

/// What [`Packet::new_checked`] must find, looked for in the order that docs/wire.md gives.
fn first_fault(datagram: &[u8]) -> Option<WireError> {
    let have = datagram.len();
    let byte = |at: usize| datagram.get(at).copied().unwrap_or_default();
    let payload_len = usize::from(byte(16)) << 8 | usize::from(byte(17));
    let is_kind = Kind::ALL.iter().any(|kind| *kind as u8 == byte(1));
    match have {
        0 => Some(WireError::Empty),
        _ if have > MAX_DATAGRAM => Some(WireError::Oversized(have)),
        _ if byte(0) != VERSION => Some(WireError::Version(byte(0))),
        _ if have < HEADER_LEN => Some(WireError::TooShort { have, need: HEADER_LEN }),
        _ if !is_kind => Some(WireError::Kind(byte(1))),
        _ if HEADER_LEN + payload_len > have => Some(WireError::Length),
        _ => None,
    }
}

/// The body of a bundle.
pub fn bundle(body: &[u8]) {
    let Some(datagram) = datagram(Kind::Bundle, body) else { return };
    let packet = Packet::new_checked(&datagram).unwrap();
    let expected = tile(body);
    let decoded = Bundle::new_checked(&packet);
    let (Some(expected), Ok(decoded)) = (&expected, &decoded) else {
        assert!(expected.is_none());
        assert_eq!(decoded.err(), Some(WireError::Length));
        return;
    };
    let is_update = |record: &&Record<'_>| !record.flags.contains(Flags::FILLER);
    assert!(decoded.records().eq(expected.iter().filter(is_update).copied()));

    let mut encoded = Vec::new();
    for record in expected {
        let Record { flags, level, src, dst, payload } = *record;
        encoded.extend(encode_record_header(flags, level, src, dst, payload.len() as u16));
        encoded.extend(payload);
    }
    assert_eq!(encoded, body);
    if expected.iter().all(|record| record.dst.is_group()) {
        assert_eq!(write_bundle(packet.header(), expected), datagram);
    }
}

/// Cuts a bundle's body into its records, filler included; `None` if they do not tile it.
fn tile(mut body: &[u8]) -> Option<Vec<Record<'_>>> {
    let mut records = Vec::new();
    while !body.is_empty() {
        if body.len() < RECORD_HEADER_LEN {
            return None;
        }
        let end = RECORD_HEADER_LEN + usize::from(body[0]) * 256 + usize::from(body[1]);
        if body.len() < end {
            return None;
        }
        records.push(Record {
            level: Level(body[2]),
            flags: Flags(body[3]),
            src: Address(word(&body[4..8])),
            dst: Address(word(&body[8..12])),
            payload: &body[RECORD_HEADER_LEN..end],
        });
        body = &body[end..];
    }
    Some(records)
}

fn write_bundle(header: &Header, records: &[Record<'_>]) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = BundleWriter::new(&mut out).unwrap();
    for record in records {
        let group = record.dst.group().unwrap();
        assert!(writer.push(record.src, group, record.level, record.flags, record.payload));
    }
    assert_eq!(writer.is_empty(), records.is_empty());
    let len = writer.finish(header);
    out[..len].to_vec()
}

/// The body of a subscribe packet.
pub fn subscribe(body: &[u8]) {
    let Some(datagram) = datagram(Kind::Subscribe, body) else { return };
    let packet = Packet::new_checked(&datagram).unwrap();
    let expected = sections(body);
    let decoded = Subscribe::new_checked(&packet);
    let (Some(expected), Ok(decoded)) = (&expected, &decoded) else {
        assert!(expected.is_none() && decoded.is_err(), "{expected:?} is not {decoded:?}");
        return;
    };
    assert_eq!(decoded.sequence(), word(&body[..4]));
    assert!(decoded.changes().eq(expected.iter().copied()));

    // Written again it is no longer: sections are merged and empty ones left out.
    let written = write_subscribe(decoded.sequence(), expected);
    assert!(written.len() <= datagram.len());
    let packet = Packet::new_checked(&written).unwrap();
    let again = Subscribe::new_checked(&packet).unwrap();
    assert_eq!(again.sequence(), decoded.sequence());
    assert!(again.changes().eq(expected.iter().copied()));
}

/// The changes in a subscribe packet's body; `None` if its sections do not tile it.
fn sections(body: &[u8]) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    let mut rest = body.get(4..)?;
    while !rest.is_empty() {
        if rest.len() < 4 || rest[0] > 1 {
            return None;
        }
        let (adds, level) = (rest[0] == 1, Level(rest[1]));
        let end = 4 + 4 * (usize::from(rest[2]) * 256 + usize::from(rest[3]));
        for bytes in rest.get(4..end)?.chunks(4) {
            let group = Group::from_low_bits(word(bytes));
            changes.push(if adds { Change::Add(group, level) } else { Change::Drop(group) });
        }
        rest = &rest[end..];
    }
    Some(changes)
}

fn write_subscribe(sequence: u32, changes: &[Change]) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = SubscribeWriter::new(&mut out, sequence).unwrap();
    for change in changes {
        assert!(writer.push(*change), "what came in one packet fits one");
    }
    let len = writer.finish(COMTREE, SRC);
    out[..len].to_vec()
}

/// The body of a subscribe-ack.
pub fn subscribe_ack(body: &[u8]) {
    let Some(datagram) = datagram(Kind::SubscribeAck, body) else { return };
    let packet = Packet::new_checked(&datagram).unwrap();
    let expected = refusals(body);
    let decoded = SubscribeAck::new_checked(&packet);
    let (Some(expected), Ok(ack)) = (&expected, &decoded) else {
        assert!(expected.is_none() && decoded.is_err(), "{expected:?} is not {decoded:?}");
        return;
    };
    assert_eq!(ack.sequence(), word(&body[..4]));
    assert!(ack.refused().eq(expected.iter().copied()));
    if let Some((group, _)) = expected.last() {
        let first = expected.iter().find(|(other, _)| other == group).unwrap();
        assert_eq!(ack.refusal_of(*group), Some(first.1));
    }

    // Written again it is no longer: sections are merged and empty ones left out.
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = SubscribeAckWriter::new(&mut out, ack.sequence()).unwrap();
    for (group, reason) in expected {
        assert!(writer.push(*group, *reason), "what came in one packet fits one");
    }
    let len = writer.finish(COMTREE, SRC);
    assert!(len <= datagram.len());
    let packet = Packet::new_checked(&out[..len]).unwrap();
    assert!(SubscribeAck::new_checked(&packet).unwrap().refused().eq(expected.iter().copied()));
}

/// What a subscribe-ack's body refuses, and why; `None` if its sections do not tile it.
fn refusals(body: &[u8]) -> Option<Vec<(Group, TableFull)>> {
    let mut refusals = Vec::new();
    let mut rest = body.get(4..)?;
    while !rest.is_empty() {
        let count = usize::from(*rest.get(2)?) * 256 + usize::from(*rest.get(3)?);
        let end = 4 + 4 * count;
        let reason = match rest[0] {
            1 => TableFull::Table,
            2 => TableFull::Participant,
            other => TableFull::Other(other),
        };
        let groups = rest.get(4..end)?.chunks(4);
        refusals.extend(groups.map(|group| (Group::from_low_bits(word(group)), reason)));
        rest = &rest[end..];
    }
    Some(refusals)
}

/// A datagram through the decoder of its kind, and through all others.
pub fn handshake(datagram: &[u8]) {
    let nonce = Hello::nonce_of_any_version(datagram);
    let Ok(packet) = Packet::new_checked(datagram) else { return };
    decode_as_anything(&packet);
    let (comtree, src, dst) = (packet.header().comtree, packet.header().src, packet.header().dst);
    let len = datagram.len();
    match packet.header().kind {
        Kind::Hello => {
            if let Some(hello) =
                survives(&packet, (32, 8), Hello::decode, |it, out| it.encode(comtree, out))
            {
                assert_eq!(nonce, Some(hello.nonce));
                assert!(longest_answer(&hello) <= len, "an answer longer than the hello");
            }
        }
        Kind::Cookie => {
            survives(&packet, (24, 24), Cookie::decode, |it, out| it.encode(comtree, out));
        }
        Kind::Connect => connect(&packet),
        Kind::Connected => {
            survives(&packet, (40, 40), Connected::decode, |it, out| it.encode(comtree, out));
        }
        Kind::Refused => {
            survives(&packet, (9, 9), Refused::decode, |it, out| it.encode(comtree, out));
        }
        Kind::Keepalive => {
            if let Some(alive) =
                survives(&packet, (8, 8), Keepalive::decode, |it, out| it.encode(comtree, src, out))
            {
                let mut out = [0; MAX_DATAGRAM];
                assert!(alive.encode_ack(comtree, src, &mut out).unwrap() <= len);
            }
        }
        Kind::KeepaliveAck => {
            survives(&packet, (8, 8), Keepalive::decode, |it, out| {
                it.encode_ack(comtree, dst, out)
            });
        }
        Kind::Leave => {
            survives(&packet, (1, 1), Leave::decode, |it, out| it.encode(comtree, src, dst, out));
        }
        Kind::Challenge => {
            survives(&packet, (16, 16), Challenge::decode, |it, out| it.encode(comtree, dst, out));
        }
        Kind::Rebind => {
            survives(&packet, (32, 32), Rebind::decode, |it, out| it.encode(comtree, src, out));
        }
        _ => {}
    }
}

/// Holds a decoder and its encoder to each other. `need` bytes are asked for, of which the first
/// `told` say everything; only those of wrong value may be refused besides.
fn survives<T: PartialEq + Debug>(
    packet: &Packet<'_>,
    (need, told): (usize, usize),
    decode: impl Fn(&Packet<'_>) -> Result<T, WireError>,
    encode: impl Fn(&T, &mut [u8]) -> Result<usize, WireError>,
) -> Option<T> {
    let have = packet.payload().len();
    let value = match decode(packet) {
        Ok(value) => value,
        Err(WireError::Field(_)) if have >= need => return None,
        Err(error) => {
            let (have_all, need_all) = (HEADER_LEN + have, HEADER_LEN + need);
            assert_eq!(error, WireError::TooShort { have: have_all, need: need_all });
            assert!(have < need);
            return None;
        }
    };
    assert!(have >= need);
    let mut out = [0; MAX_DATAGRAM];
    let len = encode(&value, &mut out).unwrap();
    let written = Packet::new_checked(&out[..len]).unwrap();
    assert_eq!(written.header().kind, packet.header().kind);
    assert_eq!(written.payload()[..told], packet.payload()[..told]);
    assert_eq!(decode(&written).as_ref(), Ok(&value));
    assert!(encode(&value, &mut out[..len - 1]).is_err());
    Some(value)
}

fn longest_answer(hello: &Hello) -> usize {
    let nonce = hello.nonce;
    let mut out = [0; MAX_DATAGRAM];
    let cookie = Cookie { nonce, cookie: [0; TAG_LEN] }.encode(COMTREE, &mut out).unwrap();
    let refused = Refused { nonce, reason: RefusedReason::Full }.encode(COMTREE, &mut out).unwrap();
    cookie.max(refused)
}

fn connect(packet: &Packet<'_>) {
    let Ok(connect) = Connect::decode(packet) else { return };
    let mut out = [0; MAX_DATAGRAM];
    let encoded = connect.encode(packet.header().comtree, &mut out);
    if connect.token.len() > MAX_TOKEN_LEN {
        assert_eq!(encoded, Err(WireError::Field("token")));
        return;
    }
    let written = Packet::new_checked(&out[..encoded.unwrap()]).unwrap();
    assert_eq!(Connect::decode(&written), Ok(connect));
    let told = written.payload().len();
    let mut canonical = packet.payload()[..told].to_vec();
    // The reserved byte behind the suite.
    canonical[8 + TAG_LEN + 1] = 0;
    assert_eq!(written.payload(), canonical);
}

/// A receiver picks the decoder by kind, but none may panic on another kind's body.
fn decode_as_anything(packet: &Packet<'_>) {
    let _ = (Hello::decode(packet), Cookie::decode(packet), Connect::decode(packet));
    let _ = (Connected::decode(packet), Refused::decode(packet), Leave::decode(packet));
    let _ = (Keepalive::decode(packet), Challenge::decode(packet), Rebind::decode(packet));
    let _ = Bundle::new_checked(packet).map(|bundle| bundle.records().count());
    let _ = Subscribe::new_checked(packet).map(|subscribe| subscribe.changes().count());
    let _ = SubscribeAck::new_checked(packet).map(|ack| ack.refused().count());
}

/// `body` behind a header of `kind`; `None` if it is longer than a datagram's.
fn datagram(kind: Kind, body: &[u8]) -> Option<Vec<u8>> {
    let mut out = [0; MAX_DATAGRAM];
    let len = Header::new(kind, COMTREE, SRC, SRC).encode_packet(body, &mut out).ok()?;
    Some(out[..len].to_vec())
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}
