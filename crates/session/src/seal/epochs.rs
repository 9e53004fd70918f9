//! Keys by epoch: a key seals so many packets and no more. The number of a packet says which epoch it
//! is of, so both sides change keys without a word and without a gap, and whoever learns a key does
//! not learn those before it.

use crate::secret::Secret;
use canopy_wire::Suite;
use ring::aead::{
    AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey,
};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

/// How many packets one key seals, a power of two. It is a part of the protocol: nothing tells it to the
/// other side, so both sides must be made with the same. Fewer than [`PacketsPerKey::PROTOCOL`] are for
/// tests and simulators, whose sessions would not live to see a second key.
///
/// Whoever opens bridges no gap that is longer than half of it, and takes nothing that comes later
/// than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketsPerKey {
    bits: u8,
}

impl PacketsPerKey {
    /// 2²², well below what either cipher bears (2²³ of 1.5 kB keep an attacker's advantage against
    /// AES-GCM below 2⁻⁵⁷).
    pub const PROTOCOL: PacketsPerKey = PacketsPerKey { bits: 22 };

    /// The least power of two that is as many as `packets`, of those from 2 up to what the protocol says.
    pub const fn at_least(packets: u64) -> PacketsPerKey {
        let mut bits = 1;
        while bits < Self::PROTOCOL.bits && 1 << bits < packets {
            bits += 1;
        }
        PacketsPerKey { bits }
    }

    /// How many they are.
    pub const fn count(self) -> u64 {
        1 << self.bits
    }

    /// The epoch that a packet's number belongs to.
    #[inline]
    pub(super) fn epoch_of(self, number: u64) -> u64 {
        number >> self.bits
    }

    /// Whether more than half of the packet's epoch is over.
    #[inline]
    pub(super) fn is_in_second_half(self, number: u64) -> bool {
        number >> (self.bits - 1) & 1 == 1
    }
}

/// The secret of the next epoch, which gives that epoch's key and the secret after it.
pub(super) struct Ladder {
    suite: Suite,
    per_key: PacketsPerKey,
    secret: Secret,
    epoch: u64,
}

/// The key of one epoch.
pub(super) struct EpochKey {
    key: LessSafeKey,
    mask: [u8; NONCE_LEN],
    epoch: u64,
}

/// A length for ring's key derivation.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Ladder {
    pub(super) fn new(suite: Suite, secret: &Secret, per_key: PacketsPerKey) -> Ladder {
        Ladder { suite, per_key, secret: *secret, epoch: 0 }
    }

    /// How many packets each of its keys seals.
    #[inline]
    pub(super) fn per_key(&self) -> PacketsPerKey {
        self.per_key
    }

    /// The epoch whose key is made next.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch
    }

    /// The next epoch's key.
    pub(super) fn climb(&mut self) -> EpochKey {
        let from = Prk::new_less_safe(HKDF_SHA256, &self.secret);
        let algorithm = algorithm(self.suite);
        let mut bytes = [0; 32];
        let bytes = &mut bytes[..algorithm.key_len()];
        expand(&from, b"canopy key", bytes);
        let mut mask = [0; NONCE_LEN];
        expand(&from, b"canopy nonce", &mut mask);
        expand(&from, b"canopy next", &mut self.secret);
        let epoch = self.epoch;
        self.epoch += 1;
        let Ok(key) = UnboundKey::new(algorithm, bytes) else {
            unreachable!("the key is as long as its algorithm says")
        };
        EpochKey { key: LessSafeKey::new(key), mask, epoch }
    }
}

fn algorithm(suite: Suite) -> &'static Algorithm {
    match suite {
        Suite::Aes128Gcm => &AES_128_GCM,
        Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    }
}

fn expand(from: &Prk, label: &[u8], out: &mut [u8]) {
    let filled = from.expand(&[label], Len(out.len())).and_then(|okm| okm.fill(out));
    debug_assert!(filled.is_ok(), "32 bytes can always be derived");
}

impl EpochKey {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.mask;
        for (byte, of_number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    #[inline]
    pub(super) fn seal(&self, number: u64, clear: Aad<&[u8]>, body: &mut [u8]) -> Tag {
        let sealed = self.key.seal_in_place_separate_tag(self.nonce(number), clear, body);
        let Ok(tag) = sealed else { unreachable!("no datagram is too long for a cipher") };
        tag
    }

    /// Returns whether it was sealed with this key.
    #[inline]
    pub(super) fn open(&self, number: u64, clear: Aad<&[u8]>, tag: Tag, body: &mut [u8]) -> bool {
        self.key.open_in_place_separate_tag(self.nonce(number), clear, tag, body, 0..).is_ok()
    }
}

impl core::fmt::Debug for Ladder {
    /// Without the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Ladder(epoch {})", self.epoch)
    }
}

impl core::fmt::Debug for EpochKey {
    /// Without the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "EpochKey({})", self.epoch)
    }
}
