//! The seeds of all corpora; here those of `canopy-wire`: small packets that its encoders wrote, and
//! what is one step away from them. `cargo run --example write_seeds` puts them where they belong.

use crate::step_seeds;
use canopy_wire::{
    Address, BundleWriter, Challenge, Change, Comtree, Connect, Connected, Cookie, Flags, Group,
    HEADER_LEN, Header, Hello, Keepalive, Kind, Leave, LeaveReason, Level, MAX_CHANGES,
    MAX_DATAGRAM, MAX_TOKEN_LEN, MAX_UPDATE, Rebind, Refused, RefusedReason, SubscribeAckWriter,
    SubscribeWriter, TableFull, WireError,
};

/// One file of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The target whose corpus it is in.
    pub target: &'static str,
    /// The file's name.
    pub name: String,
    /// What is in the file.
    pub bytes: Vec<u8>,
}

const COMTREE: Comtree = Comtree(9);
const SENDER: Address = Address::unicast(1, 2);
const RECEIVER: Address = Address::unicast(1, 5);
const NONCE: u64 = 0x0011_2233_4455_6677;

/// The seeds of every target that this crate can make seeds for.
pub fn seeds() -> Vec<Seed> {
    let handshakes = handshakes();
    let mut packets = updates();
    packets.extend(handshakes.iter().cloned());
    packets.extend(broken_packets());
    let mut handshake = handshakes;
    handshake.extend(broken_handshakes());
    let corpora = [
        ("packet", packets),
        ("bundle", bundles()),
        ("subscribe", subscribes()),
        ("subscribe_ack", subscribe_acks()),
        ("handshake", handshake),
        ("relay", step_seeds::relay()),
        ("session", step_seeds::session()),
    ];
    let seed = |target| {
        move |(name, bytes): (&str, Vec<u8>)| Seed { target, name: name.to_owned(), bytes }
    };
    corpora.into_iter().flat_map(|(target, files)| files.into_iter().map(seed(target))).collect()
}

/// Files of one corpus: name and bytes.
pub(crate) type Files = Vec<(&'static str, Vec<u8>)>;

fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
    let mut out = [0; MAX_DATAGRAM];
    let len = write(&mut out).expect("a seed fits a datagram");
    out[..len].to_vec()
}

fn changed(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

fn cut(mut bytes: Vec<u8>, short_by: usize) -> Vec<u8> {
    bytes.truncate(bytes.len() - short_by);
    bytes
}

fn padded(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.resize(len, 0);
    bytes
}

/// Without the base header, for the targets that put one in front themselves.
fn body(packet: Vec<u8>) -> Vec<u8> {
    packet[HEADER_LEN..].to_vec()
}

fn data(dst: Address, payload: &[u8]) -> Vec<u8> {
    let mut header = Header::new(Kind::Data, COMTREE, SENDER, dst);
    (header.level, header.flags) = (Level(3), Flags::ECHO);
    written(|out| header.encode_packet(payload, out))
}

fn bundle(records: &[(Flags, Group, &[u8])]) -> Vec<u8> {
    let header = Header::new(Kind::Bundle, COMTREE, SENDER, Address::UNSPECIFIED);
    written(|out| {
        let mut writer = BundleWriter::new(out)?;
        for (flags, group, payload) in records {
            assert!(writer.push(SENDER, *group, Level(1), *flags, payload), "a seed fits");
        }
        Ok(writer.finish(&header))
    })
}

fn subscribe(sequence: u32, changes: &[Change]) -> Vec<u8> {
    written(|out| {
        let mut writer = SubscribeWriter::new(out, sequence)?;
        assert!(changes.iter().all(|change| writer.push(*change)), "a seed fits");
        Ok(writer.finish(COMTREE, SENDER))
    })
}

fn subscribe_ack(sequence: u32, refused: &[(Group, TableFull)]) -> Vec<u8> {
    written(|out| {
        let mut writer = SubscribeAckWriter::new(out, sequence)?;
        assert!(refused.iter().all(|(group, reason)| writer.push(*group, *reason)), "a seed fits");
        Ok(writer.finish(COMTREE, SENDER))
    })
}

fn mixed_changes() -> Vec<Change> {
    vec![
        Change::Add(Group::new(7), Level(2)),
        Change::Add(Group::new(8), Level(2)),
        Change::Add(Group::new(Group::MAX), Level(255)),
        Change::Drop(Group::new(0)),
    ]
}

fn updates() -> Files {
    let route = Header::new(Kind::RouteReply, COMTREE, SENDER, RECEIVER);
    let two: [(Flags, Group, &[u8]); 2] =
        [(Flags(0), Group::new(7), b"abc"), (Flags::VOID, Group::new(0), b"filler")];
    vec![
        ("data-group", data(Group::new(7).address(), b"hello")),
        ("data-endpoint", data(RECEIVER, b"hello")),
        ("data-empty", data(RECEIVER, b"")),
        ("data-padded", padded(data(RECEIVER, b"hello"), 40)),
        ("bundle", bundle(&two)),
        ("subscribe", subscribe(4, &mixed_changes())),
        ("subscribe-ack", subscribe_ack(4, &[(Group::new(7), TableFull::Table)])),
        ("route-reply", written(|out| route.encode_packet(b"", out))),
    ]
}

fn handshakes() -> Files {
    let cookie = [0xab; 16];
    let connect = |token| Connect { nonce: NONCE, cookie, suite: 0, token };
    let connected = Connected {
        nonce: NONCE,
        address: SENDER,
        lifetime_ms: 10_000,
        keepalive_ms: 2_000,
        subscription_ms: 60_000,
        secret: [0xcd; 16],
    };
    let refused = Refused { nonce: NONCE, reason: RefusedReason::Full };
    let keepalive = Keepalive { stamp: 1 << 40 };
    let done = Leave { reason: LeaveReason::Done };
    let draining = Leave { reason: LeaveReason::Draining };
    let nowhere = Address::UNSPECIFIED;
    let rebind = Rebind { cookie, proof: [0xcd; 16] };
    vec![
        ("hello", written(|out| Hello { nonce: NONCE }.encode(COMTREE, out))),
        ("cookie", written(|out| Cookie { nonce: NONCE, cookie }.encode(COMTREE, out))),
        ("connect", written(|out| connect(b"").encode(COMTREE, out))),
        ("connect-token", written(|out| connect(b"token").encode(COMTREE, out))),
        ("connected", written(|out| connected.encode(COMTREE, out))),
        ("refused", written(|out| refused.encode(COMTREE, out))),
        ("keepalive", written(|out| keepalive.encode(COMTREE, SENDER, out))),
        ("keepalive-ack", written(|out| keepalive.encode_ack(COMTREE, SENDER, out))),
        ("leave-done", written(|out| done.encode(COMTREE, SENDER, nowhere, out))),
        ("leave-draining", written(|out| draining.encode(COMTREE, nowhere, SENDER, out))),
        ("left", written(|out| Leave::encode_left(COMTREE, SENDER, out))),
        ("challenge", written(|out| Challenge { cookie }.encode(COMTREE, SENDER, out))),
        ("rebind", written(|out| rebind.encode(COMTREE, SENDER, out))),
    ]
}

fn broken_packets() -> Files {
    let update = data(RECEIVER, b"hello");
    vec![
        ("empty", Vec::new()),
        ("version-alone", update[..1].to_vec()),
        ("other-version", changed(update.clone(), 0, 0xC2)),
        ("unknown-kind", changed(update.clone(), 1, 0x7f)),
        ("header-short", update[..HEADER_LEN - 1].to_vec()),
        ("length-over-the-end", changed(update.clone(), 17, 6)),
        ("length-most", changed(update.clone(), 16, 0xff)),
        ("reserved-set", changed(update.clone(), 19, 0xff)),
        ("longest", padded(update.clone(), MAX_DATAGRAM)),
        ("oversized", padded(update, MAX_DATAGRAM + 1)),
    ]
}

fn broken_handshakes() -> Files {
    let all = handshakes();
    let of = |name| {
        let found = all.iter().find(|(known, _)| *known == name);
        found.expect("a handshake packet of this name").1.clone()
    };
    let with_length = |name, len: u8| changed(of(name), 17, len);
    vec![
        ("hello-other-version", changed(of("hello"), 0, 0xC2)),
        ("hello-short", cut(with_length("hello", 31), 1)),
        ("hello-cut", cut(of("hello"), 1)),
        ("cookie-short", with_length("cookie", 23)),
        ("connect-short", with_length("connect", 27)),
        ("connect-token-over-the-end", changed(of("connect-token"), 47, 6)),
        ("connect-token-shorter", changed(of("connect-token"), 47, 4)),
        ("connect-suite-unknown", changed(of("connect"), 44, 9)),
        ("connected-short", with_length("connected", 39)),
        ("connect-token-longest", connect_with_token(MAX_TOKEN_LEN)),
        ("connect-token-too-long", connect_with_token(MAX_TOKEN_LEN + 1)),
        ("refused-comtree", changed(of("refused"), 28, RefusedReason::UnknownComtree.number())),
        ("refused-version", changed(of("refused"), 28, RefusedReason::Version.number())),
        ("refused-credentials", changed(of("refused"), 28, RefusedReason::Credentials.number())),
        ("refused-draining", changed(of("refused"), 28, RefusedReason::Draining.number())),
        ("refused-reason-unknown", changed(of("refused"), 28, 6)),
        ("refused-short", with_length("refused", 8)),
        ("keepalive-unpadded", with_length("keepalive", 8)),
        ("keepalive-short", with_length("keepalive", 7)),
        ("keepalive-ack-short", with_length("keepalive-ack", 7)),
        ("challenge-short", with_length("challenge", 15)),
        ("leave-reason-unknown", changed(of("leave-done"), 20, 2)),
        ("leave-short", with_length("leave-done", 0)),
        ("rebind-short", with_length("rebind", 31)),
    ]
}

/// The encoder writes none that is too long, so the length is put in by hand.
fn connect_with_token(token_len: usize) -> Vec<u8> {
    let connect = Connect { nonce: NONCE, cookie: [0xab; 16], suite: 0, token: b"" };
    let mut packet = written(|out| connect.encode(COMTREE, out));
    packet[16..18].copy_from_slice(&(28 + token_len as u16).to_be_bytes());
    packet[46..48].copy_from_slice(&(token_len as u16).to_be_bytes());
    let len = packet.len() + token_len;
    padded(packet, len)
}

fn bundles() -> Files {
    let one = |payload| body(bundle(&[(Flags(0), Group::new(7), payload)]));
    let full = vec![7; MAX_UPDATE];
    let many: Vec<(Flags, Group, &[u8])> =
        (0..119).map(|group| (Flags(0), Group::new(group), &b""[..])).collect();
    let mixed: [(Flags, Group, &[u8]); 3] = [
        (Flags::ECHO, Group::new(7), b"abc"),
        (Flags::VOID, Group::new(0), &[0; 9]),
        (Flags(0), Group::new(Group::MAX), b"de"),
    ];
    vec![
        ("no-record", Vec::new()),
        ("one", one(b"hello")),
        ("one-empty", one(b"")),
        ("one-longest", one(&full)),
        ("mixed", body(bundle(&mixed))),
        ("filler-alone", body(bundle(&mixed[1..2]))),
        ("most-records", body(bundle(&many))),
        ("to-an-endpoint", changed(one(b"hello"), 8, 0)),
        ("record-over-the-end", changed(one(b"hello"), 1, 6)),
        ("record-shorter", changed(one(b"hello"), 1, 4)),
        ("header-short", cut(one(b""), 1)),
        ("length-most", changed(one(b"hello"), 0, 0xff)),
        ("oversized", padded(one(&full), MAX_DATAGRAM - HEADER_LEN + 1)),
    ]
}

fn subscribes() -> Files {
    let mixed = body(subscribe(4, &mixed_changes()));
    let most: Vec<Change> =
        (0..MAX_CHANGES as u32).map(|group| Change::Add(Group::new(group), Level(0))).collect();
    let empty_section = [body(subscribe(1, &[])), vec![1, 2, 0, 0]].concat();
    vec![
        ("no-change", body(subscribe(1, &[]))),
        ("add", body(subscribe(1, &mixed_changes()[..1]))),
        ("drop", body(subscribe(2, &mixed_changes()[3..]))),
        ("mixed", mixed.clone()),
        ("sequence-last", body(subscribe(u32::MAX, &mixed_changes()))),
        ("most-changes", body(subscribe(3, &most))),
        ("oversized", padded(body(subscribe(3, &most)), MAX_DATAGRAM - HEADER_LEN + 1)),
        ("section-empty", empty_section.clone()),
        ("section-repeated", [empty_section, mixed[4..].to_vec(), mixed[4..].to_vec()].concat()),
        ("drop-with-level", changed(body(subscribe(2, &mixed_changes()[3..])), 5, 3)),
        ("group-top-bit", changed(mixed.clone(), 8, 0x80)),
        ("operation-unknown", changed(mixed.clone(), 4, 2)),
        ("count-over-the-end", changed(mixed.clone(), 7, 200)),
        ("count-most", changed(mixed.clone(), 6, 0xff)),
        ("group-cut", cut(mixed.clone(), 1)),
        ("section-cut", cut(mixed.clone(), 6)),
        ("sequence-cut", mixed[..3].to_vec()),
    ]
}

fn subscribe_acks() -> Files {
    let (share, table) = (TableFull::Participant, TableFull::Table);
    let two = body(subscribe_ack(4, &[(Group::new(7), table), (Group::new(Group::MAX), table)]));
    let each = body(subscribe_ack(4, &[(Group::new(7), table), (Group::new(8), share)]));
    let none = body(subscribe_ack(4, &[]));
    let most: Vec<_> = (0..MAX_CHANGES as u32).map(|group| (Group::new(group), share)).collect();
    let no_room = [&[(Group::new(7), table)], &most[1..]].concat();
    vec![
        ("none-refused", none.clone()),
        ("two-refused", two.clone()),
        ("two-reasons", each),
        ("most-refused", body(subscribe_ack(4, &most))),
        ("most-refused-two-reasons", body(subscribe_ack(4, &no_room))),
        ("section-empty", [none.clone(), vec![2, 0, 0, 0]].concat()),
        ("reason-unknown", changed(two.clone(), 4, 3)),
        ("reserved-set", changed(two.clone(), 5, 0xff)),
        ("group-top-bit", changed(two.clone(), 8, 0x80)),
        ("count-less", changed(two.clone(), 7, 1)),
        ("count-more", changed(two.clone(), 7, 3)),
        ("oversized", padded(two.clone(), MAX_DATAGRAM - HEADER_LEN + 1)),
        ("group-cut", cut(two.clone(), 1)),
        ("section-cut", cut(two, 9)),
        ("sequence-cut", none[..3].to_vec()),
    ]
}
