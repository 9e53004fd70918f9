//! Keys by epoch: a key seals no more than [`PACKETS_PER_KEY`] packets. The number of a packet says
//! which epoch it is of, so both sides change keys without a word and without a gap, and whoever
//! learns a key does not learn those before it.

use crate::secret::Secret;
use canopy_wire::Suite;
use ring::aead::{
    AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey,
};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

/// Packets that one key seals, well below what either cipher bears (2²³ of 1.5 kB keep an attacker's
/// advantage against AES-GCM below 2⁻⁵⁷).
#[cfg(not(test))]
const EPOCH_BITS: u32 = 22;
#[cfg(test)]
const EPOCH_BITS: u32 = 12;

/// Packets that one key seals at most.
pub(super) const PACKETS_PER_KEY: u64 = 1 << EPOCH_BITS;

/// The epoch that a packet's number belongs to.
pub(super) fn epoch_of(number: u64) -> u64 {
    number >> EPOCH_BITS
}

/// Whether more than half of the packet's epoch is over.
pub(super) fn is_in_second_half(number: u64) -> bool {
    number >> (EPOCH_BITS - 1) & 1 == 1
}

/// The secret of the next epoch, which gives that epoch's key and the secret after it.
pub(super) struct Ladder {
    suite: Suite,
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
    pub(super) fn new(suite: Suite, secret: &Secret) -> Ladder {
        Ladder { suite, secret: *secret, epoch: 0 }
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
