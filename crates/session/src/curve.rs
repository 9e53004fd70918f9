//! X25519: the key agreement of the handshake. Four of them are most of what a join costs, so they
//! are left to verified assembly where there is some and the processor can run it, and to portable
//! code elsewhere.

use curve25519_dalek::MontgomeryPoint;
use snow::Error;
use snow::types::{Dh, Random};

const LEN: usize = 32;

/// An X25519 public key.
pub type PublicKey = [u8; 32];

/// A key pair, for handshakes of [`snow`].
#[derive(Clone)]
pub(crate) struct Curve {
    private: [u8; LEN],
    public: PublicKey,
}

impl Curve {
    pub(crate) fn new(private: [u8; LEN]) -> Curve {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if assembly::is_possible() {
            return Curve { private, public: assembly::public(&private) };
        }
        Curve { private, public: portable::public(private) }
    }

    /// A pair that is none: with the public key of somebody whose private key is not known.
    #[cfg(test)]
    pub(crate) fn posing(private: [u8; LEN], public: PublicKey) -> Curve {
        Curve { private, public }
    }

    /// The private key.
    pub(crate) fn private(&self) -> &[u8; LEN] {
        &self.private
    }

    /// The public key.
    pub(crate) fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The secret that it shares with the owner of a public key; none with a key that makes it the
    /// same for all, which nobody draws by chance (RFC 7748, section 6.1).
    fn agree(&self, public: PublicKey) -> Option<[u8; LEN]> {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if assembly::is_possible() {
            return assembly::agree(&self.private, &public);
        }
        portable::agree(self.private, public)
    }
}

impl Dh for Curve {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        LEN
    }

    fn priv_len(&self) -> usize {
        LEN
    }

    fn set(&mut self, privkey: &[u8]) {
        // The public key of a pair is not worked out again in each handshake.
        if let Ok(private) = privkey.try_into()
            && private != self.private
        {
            *self = Curve::new(private);
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut private = [0; LEN];
        rng.try_fill_bytes(&mut private)?;
        *self = Curve::new(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public = *pubkey.first_chunk().ok_or(Error::Dh)?;
        let shared = self.agree(public).ok_or(Error::Dh)?;
        out.first_chunk_mut().map(|out| *out = shared).ok_or(Error::Dh)
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod assembly {
    use super::{LEN, PublicKey};
    use graviola::key_agreement::x25519;

    /// Whether the processor has what the rest needs, which panics otherwise.
    pub(super) fn is_possible() -> bool {
        graviola::util::is_cpu_supported()
    }

    pub(super) fn public(private: &[u8; LEN]) -> PublicKey {
        x25519::StaticPrivateKey::from_array(private).public_key().as_bytes()
    }

    pub(super) fn agree(private: &[u8; LEN], public: &PublicKey) -> Option<[u8; LEN]> {
        let private = x25519::StaticPrivateKey::from_array(private);
        let shared = private.diffie_hellman(&x25519::PublicKey::from_array(public)).ok()?;
        Some(shared.as_bytes())
    }
}

mod portable {
    use super::{LEN, MontgomeryPoint, PublicKey};

    pub(super) fn public(private: [u8; LEN]) -> PublicKey {
        MontgomeryPoint::mul_base_clamped(private).to_bytes()
    }

    pub(super) fn agree(private: [u8; LEN], public: PublicKey) -> Option<[u8; LEN]> {
        let shared = MontgomeryPoint(public).mul_clamped(private).to_bytes();
        (shared != [0; LEN]).then_some(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 7748, section 5.2.
    const PRIVATE: [u8; LEN] = [
        0xa5, 0x46, 0xe3, 0x6b, 0xf0, 0x52, 0x7c, 0x9d, 0x3b, 0x16, 0x15, 0x4b, 0x82, 0x46, 0x5e,
        0xdd, 0x62, 0x14, 0x4c, 0x0a, 0xc1, 0xfc, 0x5a, 0x18, 0x50, 0x6a, 0x22, 0x44, 0xba, 0x44,
        0x9a, 0xc4,
    ];
    const PUBLIC: PublicKey = [
        0xe6, 0xdb, 0x68, 0x67, 0x58, 0x30, 0x30, 0xdb, 0x35, 0x94, 0xc1, 0xa4, 0x24, 0xb1, 0x5f,
        0x7c, 0x72, 0x66, 0x24, 0xec, 0x26, 0xb3, 0x35, 0x3b, 0x10, 0xa9, 0x03, 0xa6, 0xd0, 0xab,
        0x1c, 0x4c,
    ];
    const SHARED: [u8; LEN] = [
        0xc3, 0xda, 0x55, 0x37, 0x9d, 0xe9, 0xc6, 0x90, 0x8e, 0x94, 0xea, 0x4d, 0xf2, 0x8d, 0x08,
        0x4f, 0x32, 0xec, 0xcf, 0x03, 0x49, 0x1c, 0x71, 0xf7, 0x54, 0xb4, 0x07, 0x55, 0x77, 0xa2,
        0x85, 0x52,
    ];

    #[test]
    fn the_standards_example_comes_out() {
        assert_eq!(Curve::new(PRIVATE).agree(PUBLIC), Some(SHARED));
        assert_eq!(portable::agree(PRIVATE, PUBLIC), Some(SHARED));
    }

    /// Points of small order: every secret made with one of them is zero (RFC 7748, section 6.1).
    #[test]
    fn a_key_that_makes_everybodys_secret_the_same_is_refused() {
        let mut one = [0; LEN];
        one[0] = 1;
        for public in [[0; LEN], one] {
            assert_eq!(Curve::new(PRIVATE).agree(public), None);
            assert_eq!(portable::agree(PRIVATE, public), None);
        }
        let mut out = [0; LEN];
        assert!(Curve::new(PRIVATE).dh(&[0; LEN], &mut out).is_err());
        assert!(Curve::new(PRIVATE).dh(&PUBLIC[1..], &mut out).is_err());
    }

    #[test]
    fn another_private_key_makes_another_pair() {
        let mut curve = Curve::new([7; LEN]);
        curve.set(&[7; LEN]);
        assert_eq!(*curve.public(), portable::public([7; LEN]));
        curve.set(&PRIVATE);
        assert_eq!((*curve.public(), curve.privkey()), (portable::public(PRIVATE), &PRIVATE[..]));
    }

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x5ea1);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        /// Whoever has an old processor talks with whoever has a new one.
        #[test]
        fn both_implementations_agree(private: [u8; LEN], public: PublicKey) {
            let curve = Curve::new(private);
            prop_assert_eq!(*curve.public(), portable::public(private));
            prop_assert_eq!(curve.agree(public), portable::agree(private, public));
        }
    }
}
