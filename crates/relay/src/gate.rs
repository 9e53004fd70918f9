//! What one ip, its prefix and one ip:port may cost a relay: handshakes, sessions, answers. Shared by
//! the relay's data threads, for whoever connects chooses the thread.
//!
//! There is one count for many ips, found by a keyed hash, and each ip has one in every row of a
//! table: it is refused only where all of them are used up. So the tables never grow and nothing is
//! evicted: nobody gets a fresh count by coming from many ips.

use crate::bucket::{Rate, SharedBucket};
use canopy_session::KeyedState;
use canopy_wire::{Tag, Time};
use core::hash::BuildHasher;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// What may come from one place of the network. 0 is no limit, and what comes from the relay's own
/// host over loopback has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// Handshakes a second of an IPv4 address, or of an IPv6 /64; twice as many at once.
    pub handshakes_per_ip: u32,
    /// Handshakes a second of an IPv4 /24, or of an IPv6 /48; four times as many at once.
    pub handshakes_per_prefix: u32,
    /// Sessions at a time of an IPv4 address, or of an IPv6 /64.
    pub sessions_per_ip: u32,
    /// Answers a second to one ip:port that has no session; twice as many at once.
    pub replies_per_ip_port: u32,
}

impl Default for GateLimits {
    fn default() -> GateLimits {
        GateLimits {
            handshakes_per_ip: 32,
            handshakes_per_prefix: 128,
            sessions_per_ip: 64,
            replies_per_ip_port: 50,
        }
    }
}

impl GateLimits {
    /// No limit at all.
    pub const NONE: GateLimits = GateLimits {
        handshakes_per_ip: 0,
        handshakes_per_prefix: 0,
        sessions_per_ip: 0,
        replies_per_ip_port: 0,
    };
}

/// Whether somebody may cost the relay a key agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// Yes: hardly any came from there lately.
    Quiet,
    /// Yes, if there is nothing better to do: many came from there lately.
    Crowded,
    /// No: too many came from there.
    TooMany,
}

/// Where a session was counted; to be given back when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted(Option<u64>);

/// What a relay's data threads know of the ips that come to it.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Tables>);

#[derive(Debug)]
struct Tables {
    most_sessions: u32,
    hash: KeyedState,
    ips: Rates,
    prefixes: Rates,
    ip_ports: Rates,
    /// Answers, while hardly any are left for others.
    answers_to_ips: Rates,
    answers_to_prefixes: Rates,
    sessions: Box<[AtomicU32]>,
}

/// Answers a second to each ip and prefix, and at once, for every handshake a second that it may make.
const ANSWERS_A_HANDSHAKE: u32 = 4;

/// Every hash has one entry in each row.
const ROWS: u64 = 4;
const COLUMNS: u64 = 1 << 12;

/// A bucket for each of many ips, prefixes or ip:ports.
#[derive(Debug)]
struct Rates {
    rate: Rate,
    buckets: Box<[SharedBucket]>,
}

/// What a hash is of, so that an ip and a prefix of the same bytes differ.
#[derive(Hash)]
enum Hashed {
    Ip([u8; 8]),
    Prefix([u8; 6]),
    IpPort(SocketAddr),
}

impl Gate {
    /// A gate that nobody has come to. Its tables are seeded by 16 random bytes.
    pub fn new(limits: GateLimits, key: &Tag) -> Gate {
        let rates = |per_second: u32, at_once: u64| {
            Rates::new(Rate::new(per_second.into(), u64::from(per_second) * at_once))
        };
        let answers = |handshakes: u32| handshakes.saturating_mul(ANSWERS_A_HANDSHAKE);
        let sessions = if limits.sessions_per_ip == 0 { 0 } else { ROWS * COLUMNS };
        Gate(Arc::new(Tables {
            most_sessions: limits.sessions_per_ip,
            hash: KeyedState::new(key),
            ips: rates(limits.handshakes_per_ip, 2),
            prefixes: rates(limits.handshakes_per_prefix, 4),
            ip_ports: rates(limits.replies_per_ip_port, 2),
            answers_to_ips: rates(answers(limits.handshakes_per_ip), 1),
            answers_to_prefixes: rates(answers(limits.handshakes_per_prefix), 1),
            sessions: (0..sessions).map(|_| AtomicU32::new(0)).collect(),
        }))
    }

    /// A gate without limits.
    pub fn open() -> Gate {
        Gate::new(GateLimits::NONE, &Tag::default())
    }

    /// Somebody at an ip asks for a handshake.
    pub(crate) fn handshake(&self, now: Time, ip: IpAddr) -> Handshake {
        let Tables { hash, ips, prefixes, .. } = &*self.0;
        if is_exempt(ip) {
            return Handshake::Quiet;
        }
        let (ip, prefix) = (hash.hash_one(Hashed::ip(ip)), hash.hash_one(Hashed::prefix(ip)));
        let is_quiet = ips.is_quiet(ip, now) && prefixes.is_quiet(prefix, now);
        // What an ip is refused is not its neighbours' loss.
        if !ips.take(ip, now) || !prefixes.take(prefix, now) {
            return Handshake::TooMany;
        }
        if is_quiet { Handshake::Quiet } else { Handshake::Crowded }
    }

    /// Whether one more answer may be sent to somebody without a session. While answers are `scarce`, no
    /// ip and no prefix gets many: a host has thousands of ports. At other times they do not count,
    /// because anybody can write another's ip on a hello, and would keep it out with a few of them.
    pub(crate) fn may_answer(&self, now: Time, to: SocketAddr, scarce: bool) -> bool {
        let Tables { hash, ip_ports, answers_to_ips, answers_to_prefixes, .. } = &*self.0;
        if is_exempt(to.ip()) {
            return true;
        }
        ip_ports.take(hash.hash_one(Hashed::IpPort(to)), now)
            && (!scarce
                || answers_to_ips.take(hash.hash_one(Hashed::ip(to.ip())), now)
                    && answers_to_prefixes.take(hash.hash_one(Hashed::prefix(to.ip())), now))
    }

    /// Whether an ip has as many sessions as it may.
    pub(crate) fn is_full(&self, ip: IpAddr) -> bool {
        let tables = &*self.0;
        let limits = tables.most_sessions > 0 && !is_exempt(ip);
        limits && tables.sessions_of(tables.hash.hash_one(Hashed::ip(ip))) >= tables.most_sessions
    }

    /// Counts a session that is opened from an ip.
    pub(crate) fn enter(&self, ip: IpAddr) -> Counted {
        let tables = &*self.0;
        if tables.most_sessions == 0 || is_exempt(ip) {
            return Counted(None);
        }
        let hash = tables.hash.hash_one(Hashed::ip(ip));
        for at in entries(hash) {
            tables.sessions[at].fetch_add(1, Ordering::Relaxed);
        }
        Counted(Some(hash))
    }

    /// A session that was counted has ended.
    pub(crate) fn leave(&self, counted: Counted) {
        for at in counted.0.into_iter().flat_map(entries) {
            self.0.sessions[at].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Tables {
    fn sessions_of(&self, hash: u64) -> u32 {
        let counts = entries(hash).map(|at| self.sessions[at].load(Ordering::Relaxed));
        counts.min().unwrap_or_default()
    }
}

impl Rates {
    fn new(rate: Rate) -> Rates {
        let entries = if rate == Rate::NONE { 0 } else { ROWS * COLUMNS };
        Rates { rate, buckets: (0..entries).map(|_| SharedBucket::default()).collect() }
    }

    /// Takes one from every bucket of a hash that holds one. Returns whether any did.
    fn take(&self, hash: u64, now: Time) -> bool {
        let take = |any, at: usize| self.buckets[at].take(&self.rate, now) || any;
        self.buckets.is_empty() || entries(hash).fold(false, take)
    }

    /// Whether hardly any were taken lately.
    fn is_quiet(&self, hash: u64, now: Time) -> bool {
        self.buckets.is_empty()
            || entries(hash).any(|at| self.buckets[at].is_mostly_full(&self.rate, now))
    }
}

/// Where a hash's entries are, one in each row.
fn entries(hash: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| (row * COLUMNS + (hash >> (row * 16)) % COLUMNS) as usize)
}

/// What comes from this host itself is not limited: crowds are tried there, gateways serve many from
/// there, and whoever has the host can hurt the relay in simpler ways.
fn is_exempt(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl Hashed {
    /// An IPv6 address counts as its /64, because who has one address of it has them all.
    fn ip(ip: IpAddr) -> Hashed {
        Hashed::Ip(match ip.to_canonical() {
            IpAddr::V4(ip) => [[0; 4], ip.octets()].concat().try_into().unwrap_or_default(),
            IpAddr::V6(ip) => *ip.octets().first_chunk().unwrap_or(&[0; 8]),
        })
    }

    /// The least network that is commonly given to one owner.
    fn prefix(ip: IpAddr) -> Hashed {
        Hashed::Prefix(match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                [0, 0, 0, a, b, c]
            }
            IpAddr::V6(ip) => *ip.octets().first_chunk().unwrap_or(&[0; 6]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: GateLimits = GateLimits {
        handshakes_per_ip: 10,
        handshakes_per_prefix: 20,
        sessions_per_ip: 3,
        replies_per_ip_port: 5,
    };

    fn gate() -> Gate {
        Gate::new(LIMITS, &[5; 16])
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn handshakes(gate: &Gate, now: Time, from: &str) -> usize {
        let asks = std::iter::repeat_with(|| gate.handshake(now, ip(from)));
        asks.take_while(|handshake| *handshake != Handshake::TooMany).take(1000).count()
    }

    #[test]
    fn an_ip_and_its_prefix_have_their_handshakes_and_others_theirs() {
        let (gate, now) = (gate(), Time::from_millis(5));
        assert_eq!(handshakes(&gate, now, "203.0.113.1"), 20);
        for other in 2..5 {
            assert_eq!(handshakes(&gate, now, &format!("203.0.113.{other}")), 20);
        }
        assert_eq!(handshakes(&gate, now, "203.0.113.9"), 0, "the /24 has had its 80");
        assert_eq!(handshakes(&gate, now, "203.0.114.9"), 20);
        assert_eq!(handshakes(&gate, now, "2001:db8:0:1::1"), 20);
        assert_eq!(handshakes(&gate, now, "2001:db8:0:1:ffff::9"), 0, "it is the same /64");
        assert_eq!(handshakes(&gate, now, "2001:db8:0:2::1"), 20, "of the same /48");
        assert_eq!(handshakes(&gate, now, "127.0.0.1"), 1000);
        let later = Time::from_millis(1005);
        assert_eq!(handshakes(&gate, later, "203.0.113.1"), 10);
    }

    #[test]
    fn who_comes_seldom_is_told_from_who_comes_often() {
        let (gate, now) = (gate(), Time::from_millis(5));
        let from = ip("203.0.113.1");
        for _ in 0..6 {
            assert_eq!(gate.handshake(now, from), Handshake::Quiet);
        }
        assert_eq!(gate.handshake(now, from), Handshake::Crowded);
        assert_eq!(gate.handshake(now, ip("203.0.113.2")), Handshake::Quiet);
    }

    #[test]
    fn while_answers_are_scarce_each_ip_and_prefix_has_its_own() {
        let gate = gate();
        let answers = |from: &str, scarce| {
            let asks = (1..=2000).map(|port| SocketAddr::new(ip(from), port));
            asks.filter(|to| gate.may_answer(Time::from_millis(5), *to, scarce)).count()
        };
        assert_eq!(answers("203.0.113.1", false), 2000);
        assert_eq!(answers("203.0.113.1", true), 40, "four for each handshake");
        assert_eq!(answers("203.0.113.2", true), 40);
        assert_eq!(answers("203.0.113.9", true), 0, "the /24 has had its 80");
        assert_eq!(answers("203.0.113.9", false), 2000, "nobody is kept out by it");
        assert_eq!(answers("203.0.114.9", true), 40);
        assert_eq!(answers("127.0.0.1", true), 2000);
    }

    #[test]
    fn sessions_of_an_ip_are_counted_and_given_back() {
        let gate = gate();
        let (here, there) = (ip("198.51.100.7"), ip("198.51.100.8"));
        let counted: Vec<_> = (0..3).map(|_| gate.enter(here)).collect();
        assert!(gate.is_full(here) && !gate.is_full(there));
        assert!(gate.is_full(ip("::ffff:198.51.100.7")), "the same written otherwise");
        counted.into_iter().for_each(|one| gate.leave(one));
        assert!(!gate.is_full(here));
        for _ in 0..100 {
            let _ = gate.enter(ip("127.0.0.1"));
        }
        assert!(!gate.is_full(ip("127.0.0.1")) && !Gate::open().is_full(here));
    }

    #[test]
    fn a_limit_of_many_sessions_holds_too() {
        let sessions_per_ip = 70_000;
        let gate = Gate::new(GateLimits { sessions_per_ip, ..GateLimits::NONE }, &[4; 16]);
        let here = ip("198.51.100.7");
        for _ in 0..sessions_per_ip {
            let _ = gate.enter(here);
        }
        assert!(gate.is_full(here));
    }

    /// From 300 ips of as many prefixes, each with more than it may.
    #[test]
    fn a_flood_from_many_ips_leaves_nearly_all_others_alone() {
        let (gate, now) = (gate(), Time::from_millis(5));
        for attacker in 0..300u32 {
            let from = IpAddr::from((0x0a00_0001 + (attacker << 8)).to_be_bytes());
            for _ in 0..100 {
                let _ = gate.handshake(now, from);
                let _ = gate.enter(from);
            }
        }
        let others = (0..10_000u32).map(|n| IpAddr::from((0xc000_0001 + (n << 8)).to_be_bytes()));
        let hurt = others
            .filter(|ip| gate.handshake(now, *ip) == Handshake::TooMany || gate.is_full(*ip))
            .count();
        assert!(hurt <= 3, "{hurt} of 10,000");
    }
}
