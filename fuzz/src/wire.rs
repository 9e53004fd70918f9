//! Targets of `canopy-wire`. Each parses the bytes a second time, slowly and obviously, and holds
//! the crate to the same answer; what it accepts is written again and compared.

use canopy_session::GroupOpener;
use canopy_wire::{
    Address, Before, Busy, Challenge, Class, Comtree, Connect, Connected, Cookie, DropReason,
    Flags, Gone, Group, GroupKey, GroupKeyHeld, HEADER_LEN, Header, Hello, Join, Joined, Keepalive,
    Kind, Leave, Level, LinkHello, LinkJoin, LinkState, LinkStateAck, MAX_DATAGRAM, MAX_JOIN_LEN,
    MAX_LINK_STATES, MAX_RECORDS, MAX_TICKET_LEN, MAX_TOKEN_LEN, MAX_UPDATE, NumberedRequest,
    Packet, Probe, Rebind, Record, Refused, RefusedReason, Report, Request, Response, RouteReply,
    SAFE_DATAGRAM, SEAL_LEN, SessionId, Subscribe, SubscribeAck, SubscribeAckWriter,
    SubscribeRefusal, SubscribeWriter, SubscriptionChange, Suite, TAG_LEN, Unknown, UpdatesWriter,
    VERSION, WaySearch, Weight, WireError,
};
use std::fmt::Debug;

const COMTREE: Comtree = Comtree(1);
const SESSION: SessionId = SessionId::new(2);
/// What is longer than this leaves no room for a seal, so that no writer writes it.
const LONGEST_WRITTEN: usize = MAX_DATAGRAM - SEAL_LEN;
/// What a participant's Noise message has beside a [`Join`].
const FIRST_MORE: usize = 96;
/// What the header of a connect and of a connected is followed by, before the message.
const BEFORE_JOIN: usize = 8 + TAG_LEN;
const BEFORE_JOINED: usize = 8;

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
    assert_eq!(packet.datagram_len(), datagram.len());
    let mut encoded = [0; MAX_DATAGRAM];
    assert_eq!(header.encode_packet(packet.payload(), &mut encoded), Ok(datagram.len()));
    // How many records there are is no field of the header's, as it is counted.
    encoded[10] = datagram[10];
    assert_eq!(encoded[..datagram.len()], *datagram);
    assert_eq!(header.encode(datagram[10])[..], datagram[..HEADER_LEN]);
    // What is sealed is opened first.
    assert_ne!(header.kind.class(), Class::Sealed);
    if header.kind != Kind::Updates {
        assert_eq!(packet.updates().map(Iterator::count), Ok(0));
    }
}

/// What [`Packet::new_checked`] must find, looked for in the order that docs/wire.md gives.
fn first_fault(datagram: &[u8]) -> Option<WireError> {
    let have = datagram.len();
    let byte = |at: usize| datagram.get(at).copied().unwrap_or_default();
    let is_kind = Kind::ALL.iter().any(|kind| *kind as u8 == byte(8));
    match have {
        0 => Some(WireError::Empty),
        _ if have > MAX_DATAGRAM => Some(WireError::Oversized(have)),
        _ if byte(0) >> 3 != VERSION >> 3 => Some(WireError::Version(byte(0))),
        _ if have < HEADER_LEN => Some(WireError::TooShort { have, need: HEADER_LEN }),
        _ if !is_kind => Some(WireError::Kind(byte(8))),
        _ if byte(0) & 7 != class_of(byte(8)) => Some(WireError::Field("class")),
        _ if byte(11) != 0 => Some(WireError::Field("flags")),
        _ => None,
    }
}

/// Strangers have the handshake, and are told that a session is unknown.
fn class_of(kind: u8) -> u8 {
    match kind {
        0x10..=0x14 | 0x1b => 0,
        _ => 1,
    }
}

/// How many records there are, in one byte, and the body of a packet of updates.
pub fn updates(input: &[u8]) {
    let Some((count, body)) = input.split_first() else { return };
    let Some(mut datagram) = datagram(Kind::Updates, body) else { return };
    datagram[10] = *count;
    let packet = Packet::new_checked(&datagram).unwrap();
    let expected = records(*count, body);
    let is_update = |record: &&Record<'_>| record.flags.0 & 0x80 == 0;
    let expected = match (&expected, packet.updates()) {
        (Ok(expected), Ok(updates)) => {
            assert!(updates.eq(expected.iter().filter(is_update).copied()));
            expected
        }
        (expected, updates) => {
            assert_eq!(updates.map(Iterator::count).err(), expected.as_ref().err().copied());
            return;
        }
    };
    for address in expected.iter().flat_map(|record| [record.src, record.dst]) {
        let again = address
            .group()
            .map_or_else(|| Address::unicast(address.site(), address.endpoint()), Group::address);
        assert_eq!(again, address);
    }
    if expected.iter().all(|record| record.payload.len() <= MAX_UPDATE) {
        write_updates(packet.header(), &datagram, expected);
    }
}

/// The records at the front of a body, filler included: what each says itself, and what it leaves to
/// the record before it.
fn records(count: u8, body: &[u8]) -> Result<Vec<Record<'_>>, WireError> {
    let mut records: Vec<Record<'_>> = Vec::new();
    let mut at = 0;
    let mut next = |len: usize| {
        at += len;
        body.get(at - len..at).ok_or(WireError::Length)
    };
    for _ in 0..count {
        let first = Record::new(Address(0), u16::MAX, &[]);
        let before = records.last().copied().unwrap_or(first);
        let forms = next(1)?[0];
        let src = match forms & 3 {
            0 => word(next(4)?),
            1 => before.src.0 >> 16 << 16 | word(next(2)?),
            _ => before.src.0,
        };
        let series =
            if forms & 3 == 3 { before.series.wrapping_add(1) } else { word(next(2)?) as u16 };
        let dst = match forms >> 2 & 3 {
            0 => word(next(4)?),
            1 => before.dst.0 >> 16 << 16 | word(next(2)?),
            2 => before.dst.0,
            _ => return Err(WireError::Field("destination")),
        };
        let level = if forms & 0x10 == 0 { Level(next(1)?[0]) } else { before.level };
        let (mut len, mut weight, mut object) =
            (before.payload.len(), before.weight, before.object);
        if forms & 0x20 == 0 {
            let first = next(1)?[0];
            len = first.into();
            if first >= 0x80 {
                len = usize::from(first % 0x20) * 256 + usize::from(next(1)?[0]);
                if first & 0x40 != 0 {
                    weight = Weight(next(1)?[0]);
                }
                if first & 0x20 != 0 {
                    object = word(next(2)?) as u16;
                }
            }
        }
        let (flags, src, dst) = (Flags(forms & 0xc0), Address(src), Address(dst));
        let payload = next(len)?;
        records.push(Record { flags, src, series, dst, level, weight, object, payload });
    }
    Ok(records)
}

/// Written again they take no more room, for every head is as short as it can be.
fn write_updates(header: &Header, datagram: &[u8], records: &[Record<'_>]) {
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = UpdatesWriter::new(&mut out, MAX_DATAGRAM).unwrap();
    let (mut before, mut len) = (Before::FIRST, HEADER_LEN);
    for record in records {
        assert_eq!(writer.is_empty(), len == HEADER_LEN);
        len += record.head().len_behind(&mut before) + record.payload.len();
        let fits = writer.push(record);
        assert_eq!(fits, len <= LONGEST_WRITTEN, "a record of {} bytes", record.payload.len());
        if !fits {
            return;
        }
    }
    assert!(records.len() <= MAX_RECORDS);
    assert_eq!(writer.finish(header), len);
    assert!(len <= datagram.len());
    let again = self::records(records.len() as u8, &out[HEADER_LEN..len]);
    assert_eq!(again.as_deref(), Ok(records));
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

    if datagram.len() > LONGEST_WRITTEN {
        return;
    }
    // Written again it is no longer: sections are merged and empty ones left out.
    let written = write_subscribe(decoded.sequence(), expected);
    assert!(written.len() <= datagram.len());
    let packet = Packet::new_checked(&written).unwrap();
    let again = Subscribe::new_checked(&packet).unwrap();
    assert_eq!(again.sequence(), decoded.sequence());
    assert!(again.changes().eq(expected.iter().copied()));
}

/// The changes in a subscribe packet's body; `None` if its sections do not tile it.
fn sections(body: &[u8]) -> Option<Vec<SubscriptionChange>> {
    let mut changes = Vec::new();
    let mut rest = body.get(4..)?;
    while !rest.is_empty() {
        if rest.len() < 4 || rest[0] > 2 {
            return None;
        }
        let (operation, level) = (rest[0], Level(rest[1]));
        let each = if operation == 2 { 5 } else { 4 };
        let end = 4 + each * (usize::from(rest[2]) * 256 + usize::from(rest[3]));
        for bytes in rest.get(4..end)?.chunks(each) {
            let group = Group::from_low_bits(word(&bytes[..4]));
            changes.push(match operation {
                0 => SubscriptionChange::Drop(group),
                1 => SubscriptionChange::Add(group, level),
                _ => SubscriptionChange::AddWeighted(group, level, Weight(bytes[4])),
            });
        }
        rest = &rest[end..];
    }
    Some(changes)
}

fn write_subscribe(sequence: u32, changes: &[SubscriptionChange]) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = SubscribeWriter::new(&mut out, sequence, MAX_DATAGRAM).unwrap();
    for change in changes {
        assert!(writer.push(*change), "what came in one packet fits one");
    }
    let len = writer.finish(COMTREE, SESSION);
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

    if datagram.len() > LONGEST_WRITTEN {
        return;
    }
    // Written again it is no longer: sections are merged and empty ones left out.
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = SubscribeAckWriter::new(&mut out, ack.sequence(), MAX_DATAGRAM).unwrap();
    for (group, reason) in expected {
        assert!(writer.push(*group, *reason), "what came in one packet fits one");
    }
    let len = writer.finish(COMTREE, SESSION);
    assert!(len <= datagram.len());
    let packet = Packet::new_checked(&out[..len]).unwrap();
    assert!(SubscribeAck::new_checked(&packet).unwrap().refused().eq(expected.iter().copied()));
}

/// What a subscribe-ack's body refuses, and why; `None` if its sections do not tile it.
fn refusals(body: &[u8]) -> Option<Vec<(Group, SubscribeRefusal)>> {
    let mut refusals = Vec::new();
    let mut rest = body.get(4..)?;
    while !rest.is_empty() {
        let count = usize::from(*rest.get(2)?) * 256 + usize::from(*rest.get(3)?);
        let end = 4 + 4 * count;
        let reason = match rest[0] {
            1 => SubscribeRefusal::Table,
            2 => SubscribeRefusal::Participant,
            3 => SubscribeRefusal::NotAllowed,
            4 => SubscribeRefusal::NewGroups,
            other => SubscribeRefusal::Other(other),
        };
        let groups = rest.get(4..end)?.chunks(4);
        refusals.extend(groups.map(|group| (Group::from_low_bits(word(group)), reason)));
        rest = &rest[end..];
    }
    Some(refusals)
}

/// A datagram through the decoder of its kind, and through all others. Where it has a Noise message,
/// that is taken for its payload too.
pub fn handshake(datagram: &[u8]) {
    let nonce = Hello::nonce_of_any_version(datagram);
    let Ok(packet) = Packet::new_checked(datagram) else { return };
    decode_as_anything(&packet);
    let (comtree, len) = (packet.header().comtree, datagram.len());
    match packet.header().kind {
        Kind::Hello => {
            let form = Form { need: 56, told: 8 };
            if let Some(hello) =
                survives(&packet, form, Hello::decode, |it, out| it.encode(comtree, out))
            {
                assert_eq!(nonce, Some(hello.nonce));
                assert!(longest_answer(&hello) <= len, "an answer longer than the hello");
            }
        }
        Kind::Cookie => {
            survives(&packet, Form::of(56), Cookie::decode, |it, out| it.encode(comtree, out));
        }
        Kind::Connect => {
            survives(&packet, Form::message(BEFORE_JOIN, len), Connect::decode, Connect::encode);
            join(packet.payload().get(BEFORE_JOIN..).unwrap_or_default());
        }
        Kind::Connected => {
            let form = Form::message(BEFORE_JOINED, len);
            survives(&packet, form, Connected::decode, Connected::encode);
            joined(packet.payload().get(BEFORE_JOINED..).unwrap_or_default());
        }
        Kind::Refused => {
            survives(&packet, Form::of(9), Refused::decode, |it, out| it.encode(comtree, out));
        }
        _ => in_session(&packet, len),
    }
}

/// A packet of somebody who has a session, or had one.
fn in_session(packet: &Packet<'_>, len: usize) {
    let Header { comtree, session, .. } = *packet.header();
    match packet.header().kind {
        Kind::Keepalive => {
            let encode = |it: &Keepalive, out: &mut [u8]| it.encode(comtree, session, out);
            if let Some(alive) = survives(packet, Form::of(16), Keepalive::decode, encode) {
                assert!(longest_answer_to_keepalive(&alive) <= len, "an answer longer than it");
            }
        }
        Kind::KeepaliveAck => {
            survives(packet, Form::of(16), Keepalive::decode, |it, out| {
                it.encode_ack(comtree, session, out)
            });
        }
        Kind::Leave => {
            survives(packet, Form::of(1), Leave::decode, |it, out| {
                it.encode(comtree, session, out)
            });
        }
        Kind::Challenge => {
            let encode = |it: &Challenge, out: &mut [u8]| it.encode(comtree, session, out);
            survives(packet, Form::of(16), Challenge::decode, encode);
        }
        Kind::Rebind => {
            survives(packet, Form::of(16), Rebind::decode, |it, out| {
                it.encode(comtree, session, out)
            });
        }
        Kind::Unknown => {
            survives(packet, Form::of(8), Unknown::decode, |it, out| {
                it.encode(comtree, session, out)
            });
        }
        _ => asked_or_told(packet),
    }
}

/// What a member asks for, and what it is told beside answers.
fn asked_or_told(packet: &Packet<'_>) {
    let Header { comtree, session, .. } = *packet.header();
    match packet.header().kind {
        Kind::GroupKey => {
            // Three bytes of the key's number count, and three others are reserved.
            let form = Form { need: 44, told: 0 };
            if let Some(key) =
                survives(packet, form, GroupKey::decode, |it, out| it.encode(comtree, session, out))
            {
                group_key(&key, packet.payload());
            }
        }
        Kind::GroupKeyHeld => {
            survives(packet, Form { need: 8, told: 0 }, GroupKeyHeld::decode, |it, out| {
                it.encode(comtree, session, out)
            });
        }
        Kind::Busy => {
            // Three bytes behind the first are reserved.
            let form = Form { need: 8, told: 1 };
            let encode = |it: &Busy, out: &mut [u8]| it.encode(comtree, session, out);
            if let Some(busy) = survives(packet, form, Busy::decode, encode) {
                assert_eq!(busy.dropped, word(&packet.payload()[4..8]));
            }
        }
        Kind::Probe => {
            // A byte behind the bound is reserved, and a share of more than all is none.
            let form = Form { need: 32, told: 19 };
            let encode = |it: &Probe, out: &mut [u8]| it.encode(comtree, session, out);
            if let Some(probe) = survives(packet, form, Probe::decode, encode) {
                assert!(probe.thinning.share <= 1000);
                assert_eq!(probe.thinning.left_out, word(&packet.payload()[20..24]));
            }
        }
        Kind::Report => {
            survives(packet, Form::of(36), Report::decode, |it, out| {
                it.encode(comtree, session, out)
            });
        }
        Kind::Request => request(packet),
        Kind::Response => {
            survives(packet, Form::of(5), Response::decode, |it, out| {
                it.encode(comtree, session, out)
            });
        }
        Kind::Gone => {
            survives(packet, Form::of(4), Gone::decode, |it, out| it.encode(comtree, session, out));
        }
        _ => between_relays(packet),
    }
}

/// What relays tell each other over a link.
fn between_relays(packet: &Packet<'_>) {
    let comtree = packet.header().comtree;
    match packet.header().kind {
        Kind::LinkHello => {
            survives(packet, Form::of(30), LinkHello::decode, LinkHello::encode);
        }
        Kind::RouteReply => {
            let encode = |it: &RouteReply, out: &mut [u8]| it.encode(comtree, out);
            if let Some(reply) = survives(packet, Form::of(9), RouteReply::decode, encode) {
                assert!(!reply.to.is_group() && !reply.about.is_group());
                assert_eq!(reply.hops, packet.header().hop_limit);
            }
        }
        Kind::WaySearch => {
            let encode = |it: &WaySearch, out: &mut [u8]| it.encode(comtree, out);
            if let Some(search) = survives(packet, Form::of(15), WaySearch::decode, encode) {
                assert_eq!(search.hops, packet.header().hop_limit);
            }
        }
        Kind::LinkState => {
            let Ok(state) = LinkState::decode(packet) else { return };
            let up = state.links.up().count();
            assert!(up <= MAX_LINK_STATES && state.links.details().count() <= MAX_LINK_STATES);
            let mut out = [0; MAX_DATAGRAM];
            let len = state.encode(&mut out).unwrap();
            let written = Packet::new_checked(&out[..len]).unwrap();
            assert_eq!(LinkState::decode(&written), Ok(state));
        }
        Kind::LinkStateAck => {
            let Ok(acks) = LinkStateAck::decode(packet) else { return };
            let acks: Vec<_> = acks.states().collect();
            let mut out = [0; MAX_DATAGRAM];
            let len = LinkStateAck::encode(&acks, &mut out).unwrap();
            assert_eq!(out[HEADER_LEN..len], packet.payload()[..len - HEADER_LEN]);
        }
        _ => {}
    }
}

/// How long a packet's body is.
struct Form {
    /// How many bytes a decoder asks for.
    need: usize,
    /// How many of the first bytes say everything.
    told: usize,
}

impl Form {
    /// All of so many bytes count.
    fn of(len: usize) -> Form {
        Form { need: len, told: len }
    }

    /// The rest of a datagram, behind so many bytes, is a message.
    fn message(before: usize, len: usize) -> Form {
        Form { need: before, told: (len - HEADER_LEN).max(before) }
    }
}

/// Holds a decoder and its encoder to each other. Beside what is too short, only what has a field of
/// wrong value may be refused.
fn survives<'a, T: PartialEq + Debug>(
    packet: &Packet<'a>,
    Form { need, told }: Form,
    decode: impl Fn(&Packet<'a>) -> Result<T, WireError>,
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
    // All that it says is there again, so it would be read alike.
    assert_eq!(written.payload()[..told], packet.payload()[..told]);
    assert!(encode(&value, &mut out[..len - 1]).is_err());
    Some(value)
}

/// The longest answer that a path is given before it has proved itself. All answers but one are sealed, as a
/// keepalive is.
fn longest_answer_to_keepalive(alive: &Keepalive) -> usize {
    let mut out = [0; MAX_DATAGRAM];
    let ack = alive.encode_ack(COMTREE, SESSION, &mut out).unwrap();
    let challenge = Challenge { cookie: [0; TAG_LEN] };
    let challenge = challenge.encode(COMTREE, SESSION, &mut out).unwrap();
    let unknown = Unknown { echo: alive.stamp }.encode(COMTREE, SESSION, &mut out).unwrap();
    ack.max(challenge).max(unknown)
}

fn longest_answer(hello: &Hello) -> usize {
    let nonce = hello.nonce;
    let mut out = [0; MAX_DATAGRAM];
    let cookie = Cookie { nonce, cookie: [0; TAG_LEN], relay_key: [0; 32] };
    let cookie = cookie.encode(COMTREE, &mut out).unwrap();
    let refused = Refused { nonce, reason: RefusedReason::Full }.encode(COMTREE, &mut out).unwrap();
    cookie.max(refused)
}

/// The payload of a connect's message.
fn join(body: &[u8]) {
    let token_len = body.get(12..14).map(|len| word(len) as usize);
    let fault = match token_len {
        None => Some(WireError::TooShort { have: HEADER_LEN + body.len(), need: HEADER_LEN + 14 }),
        Some(len) if len > MAX_TOKEN_LEN => Some(WireError::Field("token")),
        Some(len) if 14 + len > body.len() => Some(WireError::Length),
        Some(len) => ticket_fault(&body[14 + len..]),
    };
    let join = match Join::decode(body) {
        Ok(join) => join,
        Err(error) => {
            assert_eq!(LinkJoin::decode(body), Err(error));
            return assert_eq!(Some(error), fault);
        }
    };
    assert_eq!((fault, Some(join.token.len())), (None, token_len));
    link_join(&join, body);
    assert_eq!(join.comtree.0, word(&body[..4]));
    let mut out = [0; MAX_JOIN_LEN];
    let len = join.encode(&mut out).unwrap();
    assert!(HEADER_LEN + BEFORE_JOIN + FIRST_MORE + len <= SAFE_DATAGRAM);
    assert!(join.encode(&mut out[..len - 1]).is_err());
    assert_eq!(Join::decode(&out[..len]), Ok(join));
    assert_eq!(out[..len], said(body, len));
}

/// A join in which a relay asks for a link, whose fields stand behind the ticket.
fn link_join(join: &Join<'_>, body: &[u8]) {
    let has_ticket = body.len() > 14 + join.token.len();
    let behind = 14 + join.token.len() + usize::from(has_ticket) + join.ticket.len();
    let fields = &body[behind..];
    let link = match LinkJoin::decode(body) {
        Ok(Some(link)) => link,
        Ok(None) => return assert_eq!(join.features & LinkJoin::FEATURE, 0),
        Err(error) => return assert!(fields.len() < 8, "{error:?}"),
    };
    assert_ne!(join.features & LinkJoin::FEATURE, 0);
    assert_eq!((link.max_datagram, link.suites), (join.max_datagram, join.suites));
    assert_eq!(link.slow_suites, join.slow_suites);
    assert_eq!(link.session, SessionId::new(word(&fields[..4])));
    assert_eq!(u32::from(link.thread), word(&fields[4..6]));
    let mut out = [0; MAX_JOIN_LEN];
    let len = link.encode(&mut out).unwrap();
    assert_eq!(LinkJoin::decode(&out[..len]), Ok(Some(link)));
    assert!(link.encode(&mut out[..len - 1]).is_err());
}

/// What is wrong with the ticket at the end of a join or joined, where none may be.
fn ticket_fault(behind: &[u8]) -> Option<WireError> {
    match behind {
        [] => None,
        [len, ..] if usize::from(*len) > MAX_TICKET_LEN => Some(WireError::Field("ticket")),
        [len, ticket @ ..] => (ticket.len() < usize::from(*len)).then_some(WireError::Length),
    }
}

/// The first bytes, with a 0 in place of a ticket that was left out.
fn said(body: &[u8], len: usize) -> Vec<u8> {
    let mut said = body[..len.min(body.len())].to_vec();
    said.resize(len, 0);
    said
}

/// The payload of a connected's message.
fn joined(body: &[u8]) {
    let fault = match body {
        _ if body.len() < 36 => {
            Some(WireError::TooShort { have: HEADER_LEN + body.len(), need: HEADER_LEN + 36 })
        }
        _ if body[14] > 1 => Some(WireError::Field("suite")),
        _ if body[15] > 2 => Some(WireError::Field("downlink")),
        _ => ticket_fault(&body[36..]),
    };
    let joined = match Joined::decode(body) {
        Ok(joined) => joined,
        Err(error) => return assert_eq!(Some(error), fault),
    };
    assert_eq!(fault, None);
    assert_eq!(joined.suite == Suite::Aes128Gcm, body[14] == 0);
    assert_eq!(joined.downlink as u8, body[15]);
    let mut out = [0; MAX_JOIN_LEN];
    let len = joined.encode(&mut out).unwrap();
    assert_eq!(Joined::decode(&out[..len]), Ok(joined));
    let mut canonical = said(body, len);
    // The session's number has three bytes.
    canonical[0] = 0;
    assert_eq!(out[..len], canonical);
}

/// What a member asks for.
fn request(packet: &Packet<'_>) {
    let (body, what) = (packet.payload(), packet.payload().get(4).copied().unwrap_or_default());
    let fault = if body.len() < 20 {
        Some(WireError::TooShort { have: HEADER_LEN + body.len(), need: HEADER_LEN + 20 })
    } else {
        let token_len = word(&body[6..8]) as usize;
        let [first, last] = [&body[12..16], &body[16..20]].map(|it| Group::from_low_bits(word(it)));
        match what {
            _ if token_len > MAX_TOKEN_LEN => Some(WireError::Field("token")),
            _ if 20 + token_len > body.len() => Some(WireError::Length),
            _ if first > last => Some(WireError::Field("groups")),
            1..=4 => None,
            _ => Some(WireError::Field("request")),
        }
    };
    let asked = match NumberedRequest::decode(packet) {
        Ok(asked) => asked,
        Err(error) => return assert_eq!(Some(error), fault),
    };
    assert_eq!((fault, asked.sequence), (None, word(&body[..4])));
    assert_eq!(matches!(asked.request, Request::Renew(_)), what == 1);
    let Header { comtree, session, .. } = *packet.header();
    let mut out = [0; MAX_DATAGRAM];
    let len = asked.encode(comtree, session, &mut out).unwrap();
    // What a request of its kind does not have is left out.
    assert!(len <= packet.datagram_len());
    let written = Packet::new_checked(&out[..len]).unwrap();
    assert_eq!(NumberedRequest::decode(&written), Ok(asked));
    assert!(asked.encode(comtree, session, &mut out[..len - 1]).is_err());
}

/// Whoever is told a key opens what is sealed with it, once.
fn group_key(key: &GroupKey, body: &[u8]) {
    assert_eq!((key.suite as u8, key.first), (body[4], word(&body[8..12])));
    let mut opener = GroupOpener::new(key);
    let mut datagram = [0; 40];
    assert!(opener.open(&mut datagram).is_err());
    datagram[0] = VERSION | Class::Group as u8;
    assert!(opener.open(&mut datagram).is_err());
}

/// A receiver picks the decoder by kind, but none may panic on another kind's body.
fn decode_as_anything(packet: &Packet<'_>) {
    let _ = (Hello::decode(packet), Cookie::decode(packet), Connect::decode(packet));
    let _ = (Connected::decode(packet), Refused::decode(packet), Leave::decode(packet));
    let _ = (Keepalive::decode(packet), Challenge::decode(packet), Rebind::decode(packet));
    let _ = (GroupKey::decode(packet), GroupKeyHeld::decode(packet), Gone::decode(packet));
    let _ = (NumberedRequest::decode(packet), Response::decode(packet), Busy::decode(packet));
    let _ = (LinkHello::decode(packet), RouteReply::decode(packet), WaySearch::decode(packet));
    let _ =
        (LinkState::decode(packet).map(|state| state.links.up().count()), Probe::decode(packet));
    let _ =
        (LinkStateAck::decode(packet).map(|acks| acks.states().count()), Report::decode(packet));
    let _ = (Unknown::decode(packet), packet.updates().map(Iterator::count));
    let _ = (Join::decode(packet.payload()), Joined::decode(packet.payload()));
    let _ = Subscribe::new_checked(packet).map(|subscribe| subscribe.changes().count());
    let _ = SubscribeAck::new_checked(packet).map(|ack| ack.refused().count());
}

/// `body` behind a header of `kind`; `None` if it is longer than a datagram's.
fn datagram(kind: Kind, body: &[u8]) -> Option<Vec<u8>> {
    let mut out = [0; MAX_DATAGRAM];
    let len = Header::new(kind, SESSION, COMTREE).encode_packet(body, &mut out).ok()?;
    Some(out[..len].to_vec())
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}
