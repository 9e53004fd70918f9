//! What signs tokens: Ed25519 (PASETO, version 4, public). A controller signs one for each join and each
//! renewal, so that is left to verified assembly where there is some and the processor can run it, and to
//! `pasetors` elsewhere. Both write the same text: nothing in a signature is drawn by chance (RFC 8032).

use pasetors::errors::Error;
use pasetors::keys::AsymmetricSecretKey;
use pasetors::version4::{PublicToken, V4};

const SEED: usize = 32;

/// A secret key, in the form of whoever signs by it.
pub(crate) struct Signer {
    secret: AsymmetricSecretKey<V4>,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fast: Option<assembly::Signer>,
}

impl Signer {
    /// Takes a secret key: its seed, and the public key behind it.
    pub(crate) fn new(secret: AsymmetricSecretKey<V4>) -> Signer {
        Signer {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            fast: secret.as_bytes().first_chunk::<SEED>().and_then(assembly::Signer::new),
            secret,
        }
    }

    pub(crate) fn secret(&self) -> &AsymmetricSecretKey<V4> {
        &self.secret
    }

    /// Signs a message, which is not empty, with a footer, and with what both sides know beside.
    pub(crate) fn sign(
        &self,
        message: &[u8],
        footer: &[u8],
        assertion: &[u8],
    ) -> Result<String, Error> {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if let Some(fast) = &self.fast {
            return Ok(fast.sign(message, footer, assertion));
        }
        self.sign_portably(message, footer, assertion)
    }

    fn sign_portably(
        &self,
        message: &[u8],
        footer: &[u8],
        assertion: &[u8],
    ) -> Result<String, Error> {
        PublicToken::sign(&self.secret, message, Some(footer), Some(assertion))
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod assembly {
    use super::SEED;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use graviola::signing::eddsa::Ed25519SigningKey;

    const HEADER: &str = "v4.public.";

    pub(super) struct Signer(Ed25519SigningKey);

    impl Signer {
        /// None if the processor lacks what the assembly needs, which panics otherwise.
        pub(super) fn new(seed: &[u8; SEED]) -> Option<Signer> {
            let is_possible = graviola::util::is_cpu_supported();
            is_possible.then(|| Ed25519SigningKey::from_bytes(seed).ok().map(Signer)).flatten()
        }

        pub(super) fn sign(&self, message: &[u8], footer: &[u8], assertion: &[u8]) -> String {
            let signed = authenticated([HEADER.as_bytes(), message, footer, assertion]);
            let body = [message, &self.0.sign(&signed)].concat();
            format!("{HEADER}{}.{}", URL_SAFE_NO_PAD.encode(body), URL_SAFE_NO_PAD.encode(footer))
        }
    }

    /// What is signed of several pieces: how many there are, and each behind its length (PASETO's PAE).
    fn authenticated(pieces: [&[u8]; 4]) -> Vec<u8> {
        let mut out = (pieces.len() as u64).to_le_bytes().to_vec();
        for piece in pieces {
            out.extend_from_slice(&(piece.len() as u64).to_le_bytes());
            out.extend_from_slice(piece);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> ProptestConfig {
        let rng_seed = proptest::test_runner::RngSeed::Fixed(0x5161);
        ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        /// Whoever verifies cannot tell, and a key works on any processor.
        #[test]
        fn both_implementations_write_the_same(
            seed: [u8; 32],
            message in prop::collection::vec(any::<u8>(), 1..600),
            footer in prop::collection::vec(any::<u8>(), 1..100),
            assertion in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let pair = ed25519_compact::KeyPair::from_seed(ed25519_compact::Seed::new(seed));
            let signer = Signer::new(AsymmetricSecretKey::from(&*pair.sk).unwrap());
            let signed = signer.sign(&message, &footer, &assertion).unwrap();
            let portably = signer.sign_portably(&message, &footer, &assertion).unwrap();
            prop_assert_eq!(signed, portably);
        }
    }
}
