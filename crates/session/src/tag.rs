//! Keyed hashing: cookies, proofs and secrets, and the seeded hasher of the tables.

use canopy_wire::{Address, Path, Tag, Time};
use core::hash::{BuildHasher, Hasher};
use core::net::IpAddr;
use siphasher::sip::SipHasher13;
use siphasher::sip128::{Hasher128, SipHasher24};

/// A cookie is taken for one to two of these.
const COOKIE_PERIOD_NANOS: u64 = 10_000_000_000;

/// A relay's secret key, from which it makes cookies and session secrets. All data threads of a
/// relay share one, so that any of them can check what another made.
#[derive(Clone)]
pub struct Keyring {
    key: Tag,
}

/// What a cookie is bound to, so that one kind never passes for another.
#[derive(Clone, Copy)]
enum Purpose {
    Connect(u64),
    Rebind(Address),
    Secret(u64),
}

impl core::fmt::Debug for Keyring {
    /// Without the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keyring")
    }
}

impl Keyring {
    /// A keyring of 16 random bytes that the driver drew.
    pub fn new(key: Tag) -> Keyring {
        Keyring { key }
    }

    /// The cookie for a hello with `nonce` from `from` at `now`.
    pub fn connect_cookie(&self, now: Time, from: Path, nonce: u64) -> Tag {
        self.tag(period(now), from, Purpose::Connect(nonce))
    }

    /// Whether `cookie` is a connect cookie that this keyring made for `from` in this period or
    /// the last.
    pub fn accepts_connect(&self, now: Time, from: Path, nonce: u64, cookie: &Tag) -> bool {
        self.accepts(now, from, Purpose::Connect(nonce), cookie)
    }

    /// The cookie that challenges `from` to prove that it is the session `address`.
    pub fn rebind_cookie(&self, now: Time, from: Path, address: Address) -> Tag {
        self.tag(period(now), from, Purpose::Rebind(address))
    }

    /// Whether `cookie` is a rebind cookie that this keyring made for `from` in this period or
    /// the last.
    pub fn accepts_rebind(&self, now: Time, from: Path, address: Address, cookie: &Tag) -> bool {
        self.accepts(now, from, Purpose::Rebind(address), cookie)
    }

    /// The secret of a session that `from` opened with `nonce` at `now`.
    pub(crate) fn session_secret(&self, now: Time, from: Path, nonce: u64) -> Tag {
        self.tag(now.as_nanos(), from, Purpose::Secret(nonce))
    }

    fn accepts(&self, now: Time, from: Path, purpose: Purpose, cookie: &Tag) -> bool {
        let current = period(now);
        [current, current.saturating_sub(1)]
            .iter()
            .any(|period| equal(&self.tag(*period, from, purpose), cookie))
    }

    fn tag(&self, period: u64, from: Path, purpose: Purpose) -> Tag {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        let (number, bound) = match purpose {
            Purpose::Connect(nonce) => (1, nonce),
            Purpose::Rebind(address) => (2, address.0.into()),
            Purpose::Secret(nonce) => (3, nonce),
        };
        hasher.write_u8(number);
        hasher.write_u64(bound);
        hasher.write_u64(period);
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

/// The proof of a rebind: the challenge's cookie under the session's secret.
pub(crate) fn rebind_proof(secret: &Tag, cookie: &Tag) -> Tag {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(cookie);
    hasher.finish128().as_bytes()
}

/// Compares without telling by its time where the first difference is.
pub(crate) fn equal(a: &Tag, b: &Tag) -> bool {
    a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn period(now: Time) -> u64 {
    now.as_nanos() / COOKIE_PERIOD_NANOS
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
        let now = Time::from_millis(25_000);
        let cookie = keys.connect_cookie(now, from(1), 9);
        assert!(keys.accepts_connect(now, from(1), 9, &cookie));
        assert!(keys.accepts_connect(Time::from_millis(35_000), from(1), 9, &cookie));
        assert!(!keys.accepts_connect(Time::from_millis(45_000), from(1), 9, &cookie));
        assert!(!keys.accepts_connect(now, from(2), 9, &cookie));
        assert!(!keys.accepts_connect(now, from(1), 8, &cookie));
        assert!(!keys.accepts_rebind(now, from(1), Address(9), &cookie));
        assert!(!Keyring::new([8; 16]).accepts_connect(now, from(1), 9, &cookie));
    }
}
