//! Keyed hashing: cookies, proofs and secrets, and the seeded hasher of the tables.

use crate::primitives::Identity;
use crate::secret::{derive, equal};
use crate::ticket::TicketOffice;
use canopy_wire::{Path, SessionId, Tag, Time};
use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;
use core::time::Duration;
use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher24};

/// How long a cookie is taken.
pub(crate) const COOKIE_LIFETIME: Duration = Duration::from_secs(10);
/// How far the clocks of a relay's data threads may be apart: each reads its own once a turn.
const CLOCK_SLACK: Duration = Duration::from_secs(1);
/// A cookie's front: when it was made, in microseconds modulo 2³². The rest is the keyed hash.
const COOKIE_TIME_LEN: usize = 4;

/// A relay's secret keys: the one that it makes cookies with, the one that it is known by, and what
/// it makes tickets with, which follows from the latter. All data threads of a relay share them, so that any of them can check what another made.
#[derive(Clone)]
pub struct Keyring {
    key: Tag,
    identity: Identity,
    pub(crate) tickets: TicketOffice,
}

/// What a cookie is bound to, so that one kind never passes for another.
#[derive(Clone, Copy)]
enum Purpose {
    Connect(u64),
    Rebind(SessionId),
    PathStamp(SessionId),
}

impl core::fmt::Debug for Keyring {
    /// Without the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keyring")
    }
}

impl Keyring {
    /// A keyring of 16 random bytes that the driver drew; the relay's identity is made from them,
    /// too.
    pub fn new(key: Tag) -> Keyring {
        Keyring::with_identity(key, Identity::new(derive(&key, b"canopy relay identity")))
    }

    /// A keyring of 16 random bytes for a relay whose identity outlives it.
    pub fn with_identity(key: Tag, identity: Identity) -> Keyring {
        let mut cookies = Tag::default();
        let len = cookies.len();
        cookies.copy_from_slice(&derive(&key, b"canopy cookies")[..len]);
        let tickets = TicketOffice::new(&identity);
        Keyring { key: cookies, identity, tickets }
    }

    /// Who the relay is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The cookie for a hello with `nonce` from `from` at `now`.
    pub fn connect_cookie(&self, now: Time, from: Path, nonce: u64) -> Tag {
        self.cookie(now, from, Purpose::Connect(nonce))
    }

    /// When `cookie` was made, if it is a connect cookie that this keyring made for `from` and
    /// `nonce` and that is still taken.
    pub fn made_connect(&self, now: Time, from: Path, nonce: u64, cookie: &Tag) -> Option<Time> {
        self.made(now, from, Purpose::Connect(nonce), cookie)
    }

    /// The cookie that challenges `from` to prove that it has the session.
    pub fn rebind_cookie(&self, now: Time, from: Path, session: SessionId) -> Tag {
        self.cookie(now, from, Purpose::Rebind(session))
    }

    /// When `cookie` was made, if it is a rebind cookie that this keyring made for `from` and
    /// `session` and that is still taken.
    pub fn made_rebind(
        &self,
        now: Time,
        from: Path,
        session: SessionId,
        cookie: &Tag,
    ) -> Option<Time> {
        self.made(now, from, Purpose::Rebind(session), cookie)
    }

    /// What a session at `path` must bring back to show that what is sent there reaches it. It is
    /// another one in each period.
    pub(crate) fn path_stamp(&self, period: u64, path: Path, session: SessionId) -> u64 {
        let [stamp @ .., _, _, _, _, _, _, _, _] =
            self.tag(period, path, Purpose::PathStamp(session));
        u64::from_be_bytes(stamp)
    }

    fn cookie(&self, now: Time, from: Path, purpose: Purpose) -> Tag {
        let micros = now.as_nanos() / 1000;
        let mut cookie = self.tag(micros, from, purpose);
        cookie[..COOKIE_TIME_LEN].copy_from_slice(&(micros as u32).to_be_bytes());
        cookie
    }

    fn made(&self, now: Time, from: Path, purpose: Purpose, cookie: &Tag) -> Option<Time> {
        let (made, _) = cookie.split_first_chunk::<COOKIE_TIME_LEN>()?;
        // Counted back from the latest that it can have been made.
        let latest = (now + CLOCK_SLACK).as_nanos() / 1000;
        let age = (latest as u32).wrapping_sub(u32::from_be_bytes(*made));
        let is_young = Duration::from_micros(age.into()) <= COOKIE_LIFETIME + CLOCK_SLACK;
        let micros = latest.checked_sub(age.into()).filter(|_| is_young)?;
        let made = Time::from_nanos(micros * 1000);
        equal(&self.cookie(made, from, purpose), cookie).then_some(made)
    }

    fn tag(&self, time: u64, from: Path, purpose: Purpose) -> Tag {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        let (number, bound) = match purpose {
            Purpose::Connect(nonce) => (1, nonce),
            Purpose::Rebind(session) => (2, session.number().into()),
            Purpose::PathStamp(session) => (3, session.number().into()),
        };
        hasher.write_u8(number);
        hasher.write_u64(bound);
        hasher.write_u64(time);
        hasher.write_u16(from.remote.port());
        for ip in [Some(from.remote.ip()), from.local].into_iter().flatten() {
            match ip {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
        }
        hasher.finish128().as_bytes()
    }
}

/// A seeded hasher for tables whose keys come from the wire: no one outside can choose keys that
/// collide, and a seeded run repeats.
#[derive(Clone, Debug)]
pub struct KeyedState {
    k0: u64,
    k1: u64,
}

impl KeyedState {
    /// Splits 16 random bytes into the two halves of the key.
    pub fn new(key: &Tag) -> KeyedState {
        let (low, high) = key.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        KeyedState { k0: half(low), k1: half(high) }
    }

    /// The hash of two numbers, such as a comtree's and an address's: one round for both.
    #[inline]
    pub fn hash_pair(&self, first: u32, second: u32) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write_u64(u64::from(first) << 32 | u64::from(second));
        hasher.finish()
    }
}

impl BuildHasher for KeyedState {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.k0, self.k1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    const KEY: Tag = [7; 16];

    fn from(port: u16) -> Path {
        SocketAddr::from(([10, 0, 0, 1], port)).into()
    }

    #[test]
    fn a_cookie_is_bound_to_sender_nonce_purpose_and_time() {
        let keys = Keyring::new(KEY);
        // Not far behind the wrap of a cookie's clock.
        let now = Time::from_millis(4_294_970);
        let at = |millis| Time::from_millis(millis);
        let cookie = keys.connect_cookie(now, from(1), 9);
        let made = |now, from, nonce| keys.made_connect(now, from, nonce, &cookie);
        for later in [0, 1, 5_000, 10_000] {
            assert_eq!(made(at(4_294_970 + later), from(1), 9), Some(now));
        }
        // Another data thread's clock may be behind.
        assert_eq!(made(at(4_294_960), from(1), 9), Some(now));
        assert_eq!(made(at(4_305_001), from(1), 9), None);
        assert_eq!(made(at(4_293_900), from(1), 9), None);
        assert_eq!(made(now, from(2), 9), None);
        assert_eq!(made(now, from(1), 8), None);
        assert_eq!(keys.made_rebind(now, from(1), SessionId::new(9), &cookie), None);
        assert_eq!(Keyring::new([8; 16]).made_connect(now, from(1), 9, &cookie), None);
    }

    #[test]
    fn the_time_of_a_cookie_cannot_be_altered() {
        let keys = Keyring::new(KEY);
        let now = Time::from_millis(25_000);
        let mut cookie = keys.rebind_cookie(now, from(1), SessionId::new(3));
        assert_eq!(keys.made_rebind(now, from(1), SessionId::new(3), &cookie), Some(now));
        cookie[3] ^= 1;
        assert_eq!(keys.made_rebind(now, from(1), SessionId::new(3), &cookie), None);
    }
}
