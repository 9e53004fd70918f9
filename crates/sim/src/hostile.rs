//! Those who mean harm: strangers who send garbage, packets in the name of others' sessions and
//! altered copies of what they overheard, and insiders with a session who try what is not allowed.
//!
//! Whoever can see a session's packets may copy and alter them, and claim its ip:port.

use canopy_wire::{
    Address, Before, Class, Comtree, Connect, Flags, Group, HEADER_LEN, Header, Hello, Keepalive,
    Kind, Leave, LeaveReason, Level, MAX_DATAGRAM, MAX_UPDATE, Rebind, Record, RecordHead,
    SEAL_LEN, SessionId, SubscribeWriter, SubscriptionChange, UpdatesWriter, VERSION, WireError,
    encode_update,
};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

/// How many overheard datagrams are kept.
const OVERHEARD: usize = 32;
/// Groups from here on are no one's cells.
pub(crate) const FAR_GROUPS: u32 = 1 << 20;

pub(crate) struct Hostile {
    rng: ChaCha8Rng,
    overheard: VecDeque<Rc<[u8]>>,
}

impl Hostile {
    pub(crate) fn new(rng: ChaCha8Rng) -> Hostile {
        Hostile { rng, overheard: VecDeque::new() }
    }

    pub(crate) fn overhear(&mut self, datagram: &Rc<[u8]>) {
        self.overheard.push_back(datagram.clone());
        if self.overheard.len() > OVERHEARD {
            self.overheard.pop_front();
        }
    }

    /// One datagram to the relay, and the ip:port that it claims to be from. `ip_ports` and
    /// `sessions` are those of participants.
    pub(crate) fn attack(
        &mut self,
        ip_ports: &[SocketAddr],
        sessions: &[SessionId],
    ) -> (SocketAddr, Vec<u8>) {
        let rng = &mut self.rng;
        let own =
            SocketAddr::from(([203, 0, 113, rng.random_range(1..5)], rng.random_range(1..2000)));
        let victim = SocketAddr::from(([198, 51, 100, 7], 53));
        let guess = SessionId::new(rng.random());
        let someone =
            if rng.random_bool(0.2) { guess } else { pick(sessions, rng).unwrap_or(guess) };
        let comtree = Comtree(rng.random_range(0..4));
        match rng.random_range(0..11) {
            0 => (own, noise(rng)),
            1 => (own, plausible_noise(rng, comtree, someone)),
            2 => (own, altered(self.overheard.iter(), rng)),
            3 => (victim, greeting(rng, comtree)),
            4 => (victim, altered(self.overheard.iter(), rng)),
            5 => (own, greeting(rng, comtree)),
            6 => (own, claim(rng, comtree, someone)),
            7 => (victim, claim(rng, comtree, someone)),
            8 => (pick(ip_ports, rng).unwrap_or(own), greeting(rng, comtree)),
            9 => (pick(ip_ports, rng).unwrap_or(own), sign_of_life(rng, comtree, someone)),
            _ => (pick(ip_ports, rng).unwrap_or(own), noise(rng)),
        }
    }
}

/// What a session of the relay's sends although it must not: none of it may reach anyone.
pub(crate) fn mischief(
    rng: &mut ChaCha8Rng,
    comtree: Comtree,
    (own, address): (SessionId, Address),
) -> Vec<u8> {
    let mut out = vec![0; MAX_DATAGRAM + 1];
    let far = Group::new(FAR_GROUPS + rng.random_range(0..64)).address();
    let near = Group::new(rng.random_range(1..10));
    let header = Header::new(Kind::Updates, own, comtree);
    let record = Record { level: Level(rng.random()), ..Record::new(far, rng.random(), b"none") };
    let to_near = Record { dst: near.address(), level: Level(0), ..record };
    let len = match rng.random_range(0..10) {
        0 => encode_update(&Header { hop_limit: 0, ..header }, &to_near, &mut out),
        1 => oversized(&header, &to_near, &mut out),
        2 => encode_update(&header, &Record { dst: Address::unicast(99, 1), ..record }, &mut out),
        3 => Header { kind: Kind::Connected, ..header }.encode_packet(&[1; 60], &mut out),
        4 => Header { kind: Kind::RouteReply, ..header }.encode_packet(&[1; 60], &mut out),
        5 => {
            encode_update(&Header { comtree: Comtree(comtree.0 ^ 3), ..header }, &to_near, &mut out)
        }
        6 => SubscribeWriter::new(&mut out, 1 << 31, MAX_DATAGRAM).map(|mut writer| {
            writer.push(SubscriptionChange::Add(near, Level(3)));
            writer.finish(comtree, own)
        }),
        7 => miscounted(rng, &header, &to_near, &mut out),
        8 => {
            // The form of a destination that does not exist.
            encode_update(&header, &to_near, &mut out).inspect(|_| out[HEADER_LEN] |= 3 << 2)
        }
        _ => UpdatesWriter::new(&mut out, MAX_DATAGRAM).map(|mut writer| {
            let other = Address::unicast(1, address.endpoint() ^ rng.random_range(1..8));
            // In another's name, or a group's, each with one that leans on it.
            for src in [other, near.address()] {
                writer.push(&Record { src, ..to_near });
                writer.push(&Record { src, series: to_near.series.wrapping_add(1), ..to_near });
            }
            writer.push(&Record { flags: Flags::FILLER, ..to_near });
            writer.finish(&header)
        }),
    };
    out.truncate(len.unwrap_or(0));
    out
}

/// An update that is longer than one may be, in a datagram that is not.
fn oversized(header: &Header, record: &Record<'_>, out: &mut [u8]) -> Result<usize, WireError> {
    let head = RecordHead { len: MAX_UPDATE as u16 + 1, ..record.head() };
    let (head, head_len) = head.encode(&mut Before::FIRST.clone());
    let body = [&head[..head_len], &[7; MAX_UPDATE + 1]].concat();
    let len = header.encode_packet(&body, out)?;
    out[..HEADER_LEN].copy_from_slice(&header.encode(1));
    Ok(len)
}

/// More records announced than are there.
fn miscounted(
    rng: &mut ChaCha8Rng,
    header: &Header,
    record: &Record<'_>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let len = encode_update(header, record, out)?;
    out[..HEADER_LEN].copy_from_slice(&header.encode(rng.random_range(2..=u8::MAX)));
    Ok(len)
}

fn pick<T: Copy>(some: &[T], rng: &mut ChaCha8Rng) -> Option<T> {
    (!some.is_empty()).then(|| some[rng.random_range(0..some.len())])
}

fn noise(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..1600)];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// A right header, then anything.
pub(crate) fn plausible_noise(
    rng: &mut ChaCha8Rng,
    comtree: Comtree,
    session: SessionId,
) -> Vec<u8> {
    let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
    let mut body = vec![0; rng.random_range(0..200)];
    rng.fill_bytes(&mut body);
    let header = Header::new(kind, session, comtree);
    let mut bytes = header.encode(rng.random_range(0..4)).to_vec();
    bytes.extend(body);
    if rng.random_bool(0.2) {
        bytes.truncate(rng.random_range(0..bytes.len()));
    }
    bytes
}

/// A copy of what was overheard, often with some bytes changed.
fn altered<'a>(
    overheard: impl ExactSizeIterator<Item = &'a Rc<[u8]>>,
    rng: &mut ChaCha8Rng,
) -> Vec<u8> {
    let which = rng.random_range(0..overheard.len().max(1));
    let mut bytes =
        overheard.skip(which).map(|bytes| bytes.to_vec()).next().unwrap_or(vec![VERSION]);
    for _ in 0..rng.random_range(0..4) {
        let at = rng.random_range(0..bytes.len());
        bytes[at] = rng.random();
    }
    bytes
}

/// A hello, often padded to more or less than it must be, sometimes of another version.
pub(crate) fn greeting(rng: &mut ChaCha8Rng, comtree: Comtree) -> Vec<u8> {
    let mut out = [0; 256];
    let len = Hello { nonce: rng.random() }.encode(comtree, &mut out).unwrap_or(0);
    if rng.random_bool(0.2) {
        out[0] = rng.random();
    }
    let padding = rng.random_range(0..20);
    out[..if rng.random_bool(0.3) { len + padding - 10 } else { len }].to_vec()
}

/// A packet in the name of a session that may be someone's.
fn claim(rng: &mut ChaCha8Rng, comtree: Comtree, someone: SessionId) -> Vec<u8> {
    let mut out = [0; 256];
    let len = match rng.random_range(0..6) {
        0 => return sign_of_life(rng, comtree, someone),
        1 => Leave { reason: LeaveReason::Done }.encode(comtree, someone, &mut out),
        2 => Rebind { cookie: rng.random() }.encode(comtree, someone, &mut out),
        3 => {
            let (nonce, cookie, message) = (rng.random(), rng.random(), rng.random::<[u8; 110]>());
            Connect { nonce, cookie, message: &message }.encode(&mut out)
        }
        4 => SubscribeWriter::new(&mut out, 1, MAX_DATAGRAM).map(|mut writer| {
            writer.push(SubscriptionChange::Add(Group::new(1), Level(3)));
            writer.finish(comtree, someone)
        }),
        _ => {
            let update = Record::new(Group::new(1).address(), 0, b"in another's name");
            encode_update(&Header::new(Kind::Updates, someone, comtree), &update, &mut out)
        }
    };
    let mut out = out[..len.unwrap_or(0)].to_vec();
    if rng.random_bool(0.5) {
        // As if it were sealed.
        out.resize(out.len() + SEAL_LEN, 0);
        out[0] = VERSION | Class::Sealed as u8;
        rng.fill_bytes(&mut out[4..]);
    }
    out
}

/// A keepalive that brings nothing back, in the name of a session that may be someone's.
fn sign_of_life(rng: &mut ChaCha8Rng, comtree: Comtree, someone: SessionId) -> Vec<u8> {
    let mut out = [0; 64];
    let keepalive = Keepalive { stamp: rng.random(), path_stamp: rng.random() };
    let len = keepalive.encode(comtree, someone, &mut out).unwrap_or(0);
    out[..len].to_vec()
}
