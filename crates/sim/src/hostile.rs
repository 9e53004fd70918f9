//! Those who mean harm: strangers who send garbage, spoofed sources and altered copies of what
//! they overheard, and insiders with a session who try what is not allowed.
//!
//! No one sends what only a real session could from its real ip:port: without keys that is no
//! attack that a relay could tell from the truth.

use canopy_wire::{
    Address, BundleWriter, Comtree, Connect, Flags, Group, HEADER_LEN, Header, Hello, Keepalive,
    Kind, Leave, LeaveReason, Level, MAX_DATAGRAM, Rebind, SubscribeWriter, VERSION,
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

    /// One datagram to the relay, and the ip:port that it claims to be from. `ip_ports` are those
    /// of participants, `addresses` below this endpoint number may be theirs.
    pub(crate) fn attack(
        &mut self,
        ip_ports: &[SocketAddr],
        endpoints: u16,
    ) -> (SocketAddr, Vec<u8>) {
        let rng = &mut self.rng;
        let own =
            SocketAddr::from(([203, 0, 113, rng.random_range(1..5)], rng.random_range(1..2000)));
        let victim = SocketAddr::from(([198, 51, 100, 7], 53));
        let someone = Address::unicast(1, rng.random_range(0..endpoints));
        let comtree = Comtree(rng.random_range(0..4));
        match rng.random_range(0..10) {
            0 => (own, noise(rng)),
            1 => (own, plausible_noise(rng, comtree, someone)),
            2 => (own, altered(self.overheard.iter(), rng)),
            3 => (victim, greeting(rng, comtree)),
            4 => (victim, altered(self.overheard.iter(), rng)),
            5 => (own, greeting(rng, comtree)),
            6 => (own, claim(rng, comtree, someone)),
            7 => (victim, claim(rng, comtree, someone)),
            8 => (pick(ip_ports, rng).unwrap_or(own), greeting(rng, comtree)),
            _ => (pick(ip_ports, rng).unwrap_or(own), noise(rng)),
        }
    }
}

/// What a session of the relay's sends although it must not: none of it may reach anyone.
pub(crate) fn mischief(rng: &mut ChaCha8Rng, comtree: Comtree, own: Address) -> Vec<u8> {
    let mut out = vec![0; MAX_DATAGRAM + 1];
    let far = Group::new(FAR_GROUPS + rng.random_range(0..64));
    let near = Group::new(rng.random_range(1..10));
    let other = Address::unicast(1, own.endpoint() ^ rng.random_range(1..8));
    let mut header = Header::new(Kind::Data, comtree, own, far.address());
    header.level = Level(rng.random());
    let len = match rng.random_range(0..8) {
        0 => {
            header.dst = near.address();
            header.hop_limit = 0;
            header.encode_packet(b"at the end of its hops", &mut out)
        }
        1 => header.encode_packet(&[7; MAX_DATAGRAM - HEADER_LEN], &mut out),
        2 => Header { dst: Address::unicast(99, 1), ..header }.encode_packet(b"no one", &mut out),
        3 => Header { kind: Kind::Connected, ..header }.encode_packet(&[1; 60], &mut out),
        4 => Header { kind: Kind::RouteReply, ..header }.encode_packet(&[1; 60], &mut out),
        5 => Header { comtree: Comtree(comtree.0 ^ 3), dst: near.address(), ..header }
            .encode_packet(b"another comtree", &mut out),
        6 => SubscribeWriter::new(&mut out, 1 << 31).map(|mut writer| {
            writer.push(canopy_wire::Change::Add(near, Level(3)));
            writer.finish(comtree, own)
        }),
        _ => BundleWriter::new(&mut out).map(|mut writer| {
            writer.push(other, near, Level(0), Flags(0), b"in another's name");
            writer.push(own, far, Level(9), Flags::FILLER, b"none");
            writer.finish(&Header { kind: Kind::Bundle, dst: Address::UNSPECIFIED, ..header })
        }),
    };
    out.truncate(len.unwrap_or(0));
    out
}

fn pick(ip_ports: &[SocketAddr], rng: &mut ChaCha8Rng) -> Option<SocketAddr> {
    (!ip_ports.is_empty()).then(|| ip_ports[rng.random_range(0..ip_ports.len())])
}

fn noise(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..1600)];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// A right header, then anything.
fn plausible_noise(rng: &mut ChaCha8Rng, comtree: Comtree, src: Address) -> Vec<u8> {
    let kind = Kind::ALL[rng.random_range(0..Kind::ALL.len())];
    let mut body = vec![0; rng.random_range(0..200)];
    rng.fill_bytes(&mut body);
    let header = Header::new(kind, comtree, src, Address(rng.random()));
    let mut bytes = header.encode(body.len() as u16).to_vec();
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
fn greeting(rng: &mut ChaCha8Rng, comtree: Comtree) -> Vec<u8> {
    let mut out = [0; 256];
    let len = Hello { nonce: rng.random() }.encode(comtree, &mut out).unwrap_or(0);
    if rng.random_bool(0.2) {
        out[0] = rng.random();
    }
    let padding = rng.random_range(0..20);
    out[..if rng.random_bool(0.3) { len + padding - 10 } else { len }].to_vec()
}

/// A packet in the name of an address that may be someone's.
fn claim(rng: &mut ChaCha8Rng, comtree: Comtree, someone: Address) -> Vec<u8> {
    let mut out = [0; 256];
    let len = match rng.random_range(0..6) {
        0 => Keepalive { stamp: rng.random() }.encode(comtree, someone, &mut out),
        1 => Leave { reason: LeaveReason::Done }.encode(comtree, someone, Address(0), &mut out),
        2 => {
            Rebind { cookie: rng.random(), proof: rng.random() }.encode(comtree, someone, &mut out)
        }
        3 => Connect {
            nonce: rng.random(),
            cookie: rng.random(),
            suite: rng.random(),
            token: b"let me in",
        }
        .encode(comtree, &mut out),
        4 => SubscribeWriter::new(&mut out, 1).map(|mut writer| {
            writer.push(canopy_wire::Change::Add(Group::new(1), Level(3)));
            writer.finish(comtree, someone)
        }),
        _ => Header::new(Kind::Data, comtree, someone, Group::new(1).address())
            .encode_packet(b"in another's name", &mut out),
    };
    out[..len.unwrap_or(0)].to_vec()
}
