//! What a data thread tells the others beside updates, and its form in the control log.

use crate::access::TokenId;
use crate::budget_parts::Wants;
use crate::routes::Leads;
use crate::tree::Reach;
use canopy_session::{Holder, Proof};
use canopy_wire::{
    Acts, Address, Comtree, Group, Level, MAX_DATAGRAM, Path, Restriction, RouteReply, Time,
    Verdict, Weight,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const INTEREST: u64 = 1;
const MOVED: u64 = 2;
const CONNECT: u64 = 3;
const TOKEN_USED: u64 = 4;
const VERDICT: u64 = 5;
const CONDUCT: u64 = 6;
const GONE: u64 = 7;
const REACH: u64 = 8;
const ROUTE: u64 = 9;
const ROUTE_REPLY: u64 = 10;
const WANTS: u64 = 11;

/// What a data thread tells the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Told<'a> {
    /// It wants a group's updates up to this level from now on, or none.
    Interest { comtree: Comtree, group: Group, wanted: Option<(Level, Weight)> },
    /// A session there has this path, as that holder and by that proof: whoever had it so by an older one
    /// has lost it.
    Moved { path: Path, holder: Holder, proof: Proof },
    /// Somebody who has proved its path wants to join.
    Connect { path: Path, passed: Passed, datagram: &'a [u8] },
    /// A session there joined by this token and that proof: whoever joined by it before has lost it.
    TokenUsed { token: TokenId, proof: Proof },
    /// What a server says of a member that the other thread serves.
    Verdict { comtree: Comtree, address: Address, verdict: Verdict },
    /// What a server has said of the bearer of a token.
    Conduct { token: TokenId, ends: Time, verdict: Verdict },
    /// Nobody is at an address to which a participant there has sent.
    Gone { comtree: Comtree, sender: Address, address: Address },
    /// What branches of a comtree it has from now on.
    Reach { comtree: Comtree, reach: Reach },
    /// What is wanted there of the comtree's budget.
    Wants { comtree: Comtree, wants: Wants },
    /// The way to an endpoint, or to a site, leads to it from now on, and from there on so; or does so
    /// no more.
    Route { comtree: Comtree, to: Address, leads: Option<Leads> },
    /// An answer for whoever asked for a route, to be sent on over a branch there.
    RouteReply { comtree: Comtree, reply: RouteReply },
}

/// Why a data thread passes on a connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Data threads that were asked in turn, and have no address or no place left.
    pub(crate) asked: u16,
    /// Before that it was brought to the thread whose the address is that it wants.
    pub(crate) was_brought: bool,
}

/// Writes bytes into words; returns how many words.
pub(crate) fn pack(bytes: &[u8], words: &mut [u64]) -> usize {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[chunks.len()] = u64::from_le_bytes(last);
    }
    bytes.len().div_ceil(8)
}

/// Writes words back into bytes.
pub(crate) fn unpack(words: &[u64], bytes: &mut [u8]) {
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
}

pub(crate) const MOST_CONTROL_WORDS: usize = CONNECT_HEAD + MAX_DATAGRAM.div_ceil(8);
/// Words before the datagram of a connect.
const CONNECT_HEAD: usize = 6;
/// Words before the key of a participant that has moved, if it shares its path.
const HOLDER: usize = 8;

pub(crate) fn encode(told: &Told<'_>) -> ([u64; MOST_CONTROL_WORDS], usize) {
    let mut words = [0; MOST_CONTROL_WORDS];
    let len = match told {
        Told::Interest { comtree, group, wanted } => {
            let (level, weight) = encode_wanted(*wanted);
            words[0] = INTEREST | level << 8 | u64::from(comtree.0) << 32;
            words[1] = two(weight, group.number());
            2
        }
        Told::Moved { path, holder, proof } => {
            words[0] = MOVED;
            words[1..3].copy_from_slice(&[proof.at.as_nanos(), proof.nonce]);
            words[3..HOLDER].copy_from_slice(&encode_path(path));
            match holder {
                Holder::Alone => HOLDER,
                Holder::Sharing(participant, comtree) => {
                    words[0] |= u64::from(comtree.0) << 32;
                    HOLDER + pack(participant, &mut words[HOLDER..])
                }
            }
        }
        Told::Connect { path, passed: Passed { asked, was_brought }, datagram } => {
            let passed = u64::from(*asked) << 8 | u64::from(*was_brought) << 24;
            words[0] = CONNECT | passed | (datagram.len() as u64) << 32;
            words[1..CONNECT_HEAD].copy_from_slice(&encode_path(path));
            CONNECT_HEAD + pack(datagram, &mut words[CONNECT_HEAD..])
        }
        Told::TokenUsed { token, proof } => {
            words[..4].copy_from_slice(&[TOKEN_USED, proof.at.as_nanos(), proof.nonce, token.0]);
            4
        }
        Told::Verdict { comtree, address, verdict } => {
            let (kind, groups) = encode_verdict(verdict);
            let head = VERDICT | kind << 8 | u64::from(comtree.0) << 32;
            words[..3].copy_from_slice(&[head, address.0.into(), groups]);
            3
        }
        Told::Conduct { token, ends, verdict } => {
            let (kind, groups) = encode_verdict(verdict);
            words[..4].copy_from_slice(&[CONDUCT | kind << 8, token.0, ends.as_nanos(), groups]);
            4
        }
        Told::Gone { comtree, sender, address } => {
            words[0] = GONE | u64::from(comtree.0) << 32;
            words[1] = two(sender.0, address.0);
            2
        }
        Told::Reach { comtree, reach } => {
            words[0] = REACH | u64::from(reach.0) << 8 | u64::from(comtree.0) << 32;
            2
        }
        Told::Wants { comtree, wants } => {
            words[0] = WANTS | u64::from(comtree.0) << 32;
            words[1..3].copy_from_slice(&encode_wants(wants));
            3
        }
        Told::Route { comtree, to, leads } => {
            words[0] = ROUTE | encode_leads(*leads) << 8 | u64::from(comtree.0) << 32;
            words[1] = to.0.into();
            2
        }
        Told::RouteReply { comtree, reply: RouteReply { to, about, is_there, hops } } => {
            let (is_there, hops) = (u64::from(*is_there) << 8, u64::from(*hops) << 16);
            words[0] = ROUTE_REPLY | is_there | hops | u64::from(comtree.0) << 32;
            words[1] = two(to.0, about.0);
            2
        }
    };
    (words, len)
}

fn two(one: u32, other: u32) -> u64 {
    u64::from(one) << 32 | u64::from(other)
}

/// 0 for nothing.
fn encode_wanted(wanted: Option<(Level, Weight)>) -> (u64, u32) {
    wanted.map_or((0, 0), |(level, weight)| (u64::from(level.0) + 1, weight.0.into()))
}

fn encode_wants(wants: &Wants) -> [u64; 2] {
    let up = two(wants.up_packets.to_bits(), wants.up_bits.to_bits());
    [up, two(wants.down.to_bits(), wants.receivers)]
}

fn encode_leads(leads: Option<Leads>) -> u64 {
    match leads {
        None => 0,
        Some(Leads::OverTree) => 1,
        Some(Leads::ToCorePeer) => 2,
        Some(Leads::ToParticipant) => 3,
    }
}

/// A verdict: its kind and its acts, a byte each, and its groups.
fn encode_verdict(verdict: &Verdict) -> (u64, u64) {
    let of = |kind, Restriction { acts, first, last, .. }: &Restriction| {
        let groups = u64::from(first.number()) << 32 | u64::from(last.number());
        (kind | u64::from(acts.0) << 8, groups)
    };
    match verdict {
        Verdict::ThrowOut => (0, 0),
        Verdict::Restrict(restriction) => of(1, restriction),
        Verdict::Restore(restriction) => of(2, restriction),
    }
}

fn decode_verdict(kind: u64, groups: u64) -> Verdict {
    let group = |word: u64| Group::from_low_bits(word as u32);
    let acts = Acts((kind >> 8) as u8);
    let restriction = Restriction::new(acts, group(groups >> 32), group(groups));
    match kind & 0xff {
        0 => Verdict::ThrowOut,
        1 => Verdict::Restrict(restriction),
        _ => Verdict::Restore(restriction),
    }
}

pub(crate) fn decode<'a>(words: &[u64], bytes: &'a mut [u8]) -> Option<Told<'a>> {
    let (head, value) = (*words.first()?, *words.get(1)?);
    let comtree = Comtree((head >> 32) as u32);
    let path = || words.get(3..8)?.try_into().ok().map(decode_path);
    let proof = || Some(Proof { at: Time::from_nanos(value), nonce: *words.get(2)? });
    match head & 0xff {
        INTEREST => {
            let weight = Weight((value >> 32) as u8);
            let level = (head >> 8 & 0xffff).checked_sub(1);
            let wanted = level.map(|level| (Level(level as u8), weight));
            Some(Told::Interest { comtree, group: Group::from_low_bits(value as u32), wanted })
        }
        MOVED => {
            let holder = match words.get(HOLDER..).filter(|key| !key.is_empty()) {
                None => Holder::Alone,
                Some(key) => {
                    let mut participant = [0; 32];
                    unpack(key, &mut participant);
                    Holder::Sharing(participant, comtree)
                }
            };
            Some(Told::Moved { path: path()?, holder, proof: proof()? })
        }
        CONNECT => {
            let path = decode_path(words.get(1..CONNECT_HEAD)?.try_into().ok()?);
            unpack(&words[CONNECT_HEAD..], bytes);
            let datagram = bytes.get(..(head >> 32) as usize)?;
            let passed = Passed { asked: (head >> 8) as u16, was_brought: head >> 24 & 1 == 1 };
            Some(Told::Connect { path, passed, datagram })
        }
        GONE => {
            let (sender, address) = (Address((value >> 32) as u32), Address(value as u32));
            Some(Told::Gone { comtree, sender, address })
        }
        REACH => Some(Told::Reach { comtree, reach: Reach((head >> 8) as u8) }),
        WANTS => {
            let part = |word: u64| f32::from_bits(word as u32);
            let (up_packets, up_bits, down) = (part(value >> 32), part(value), *words.get(2)?);
            let receivers = down as u32;
            let wants = Wants { up_packets, up_bits, down: part(down >> 32), receivers };
            Some(Told::Wants { comtree, wants })
        }
        ROUTE => {
            let leads = match head >> 8 & 3 {
                0 => None,
                1 => Some(Leads::OverTree),
                2 => Some(Leads::ToCorePeer),
                _ => Some(Leads::ToParticipant),
            };
            Some(Told::Route { comtree, to: Address(value as u32), leads })
        }
        ROUTE_REPLY => {
            let (to, about) = (Address((value >> 32) as u32), Address(value as u32));
            let (is_there, hops) = (head >> 8 & 1 == 1, (head >> 16) as u8);
            let reply = RouteReply { to, about, is_there, hops };
            Some(Told::RouteReply { comtree, reply })
        }
        TOKEN_USED => Some(Told::TokenUsed { token: TokenId(*words.get(3)?), proof: proof()? }),
        VERDICT => {
            let verdict = decode_verdict(head >> 8 & 0xffff, *words.get(2)?);
            Some(Told::Verdict { comtree, address: Address(value as u32), verdict })
        }
        CONDUCT => {
            let ends = Time::from_nanos(*words.get(2)?);
            let verdict = decode_verdict(head >> 8 & 0xffff, *words.get(3)?);
            Some(Told::Conduct { token: TokenId(value), ends, verdict })
        }
        _ => None,
    }
}

const REMOTE_IS_V6: u64 = 1 << 48;
const HAS_LOCAL: u64 = 1 << 49;
const LOCAL_IS_V6: u64 = 1 << 50;

fn encode_path(path: &Path) -> [u64; 5] {
    let (remote, is_v6) = encode_ip(path.remote.ip());
    let mut rest = u64::from(path.remote.port());
    rest |= if is_v6 { REMOTE_IS_V6 } else { 0 };
    if let SocketAddr::V6(v6) = path.remote {
        rest |= u64::from(v6.scope_id()) << 16;
    }
    let mut local = [0; 2];
    if let Some(ip) = path.local {
        let (words, is_v6) = encode_ip(ip);
        local = words;
        rest |= HAS_LOCAL | if is_v6 { LOCAL_IS_V6 } else { 0 };
    }
    [remote[0], remote[1], rest, local[0], local[1]]
}

fn decode_path(words: [u64; 5]) -> Path {
    let [remote_high, remote_low, rest, local_high, local_low] = words;
    let port = rest as u16;
    let remote = match decode_ip([remote_high, remote_low], rest & REMOTE_IS_V6 != 0) {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, (rest >> 16) as u32).into(),
    };
    let local = decode_ip([local_high, local_low], rest & LOCAL_IS_V6 != 0);
    Path { remote, local: (rest & HAS_LOCAL != 0).then_some(local) }
}

fn encode_ip(ip: IpAddr) -> ([u64; 2], bool) {
    match ip {
        IpAddr::V4(ip) => ([0, u64::from(ip.to_bits())], false),
        IpAddr::V6(ip) => ([(ip.to_bits() >> 64) as u64, ip.to_bits() as u64], true),
    }
}

fn decode_ip(words: [u64; 2], is_v6: bool) -> IpAddr {
    if is_v6 {
        Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1])).into()
    } else {
        Ipv4Addr::from_bits(words[1] as u32).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::MAX_DATAGRAM;

    #[test]
    fn what_is_told_arrives_as_it_was() {
        let local = "fe80::1".parse().ok();
        let paths = [
            Path::from(SocketAddr::from(([127, 0, 0, 1], 9))),
            Path { remote: "[2001:db8::7]:4040".parse().unwrap(), local },
            Path {
                remote: SocketAddrV6::new("fe80::2".parse().unwrap(), 1, 0, 7).into(),
                local: Some(Ipv4Addr::LOCALHOST.into()),
            },
        ];
        let comtree = Comtree(u32::MAX);
        let longest: Vec<u8> = (0..MAX_DATAGRAM).map(|byte| byte as u8).collect();
        let wants = Wants { up_packets: 0.25, up_bits: 3.5, down: 0.5, receivers: 7 };
        let mut all = vec![
            Told::Interest {
                comtree,
                group: Group::new(Group::MAX),
                wanted: Some((Level(255), Weight(3))),
            },
            Told::Interest { comtree, group: Group::new(0), wanted: Some((Level(0), Weight::ONE)) },
            Told::Interest { comtree, group: Group::new(3), wanted: None },
            Told::Gone { comtree, sender: Address(u32::MAX), address: Address(7) },
            Told::Wants { comtree, wants },
            Told::Reach { comtree, reach: Reach(7) },
        ];
        let leads = [Leads::OverTree, Leads::ToCorePeer, Leads::ToParticipant].map(Some);
        for leads in leads.into_iter().chain([None]) {
            all.push(Told::Route { comtree, to: Address(u32::MAX >> 1), leads });
        }
        for is_there in [false, true] {
            let (to, about) = (Address(u32::MAX >> 1), Address(9));
            let reply = RouteReply { to, about, is_there, hops: u8::MAX };
            all.push(Told::RouteReply { comtree, reply });
        }
        let (token, ends) = (TokenId(u64::MAX), Time::from_nanos(u64::MAX));
        let (first, last) = (Group::new(Group::MAX - 1), Group::new(Group::MAX));
        let some = Restriction::new(Acts(u8::MAX), first, last);
        for verdict in [Verdict::ThrowOut, Verdict::Restrict(some), Verdict::Restore(some)] {
            all.push(Told::Verdict { comtree, address: Address(u32::MAX), verdict });
            all.push(Told::Conduct { token, ends, verdict });
        }
        let proof = Proof { at: Time::from_millis(77), nonce: u64::MAX };
        all.push(Told::TokenUsed { token, proof });
        for path in paths {
            let proof = Proof { at: Time::from_millis(77), nonce: u64::MAX };
            for holder in [Holder::Alone, Holder::Sharing([255; 32], comtree)] {
                all.push(Told::Moved { path, holder, proof });
            }
            let passed = Passed { asked: 63, was_brought: false };
            all.push(Told::Connect { path, passed, datagram: &longest });
            let passed = Passed { asked: 0, was_brought: true };
            all.push(Told::Connect { path, passed, datagram: b"short" });
        }
        for told in all {
            let (words, len) = encode(&told);
            assert_eq!(decode(&words[..len], &mut [0; 1456]), Some(told));
        }
    }
}
