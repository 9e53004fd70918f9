//! The primitives of handshakes: X25519 as [`Curve`] has it, ChaCha20-Poly1305 by `ring`, BLAKE2s by `snow`.

use crate::curve::{Curve, PublicKey};
use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

/// A key pair by which a relay, or a participant, is known.
#[derive(Clone)]
pub struct Identity {
    curve: Curve,
}

impl Identity {
    /// The pair of a private key: 32 random bytes.
    pub fn new(private: [u8; 32]) -> Identity {
        Identity { curve: Curve::new(private) }
    }

    /// The private key: whoever has it can pose as its owner.
    pub fn private(&self) -> &[u8; 32] {
        self.curve.private()
    }

    /// The public key, by which others know its owner.
    pub fn public(&self) -> &PublicKey {
        self.curve.public()
    }

    /// Begins a handshake of this identity's, Noise IK. The random numbers are for this handshake alone.
    /// Both sides must give the same prologue.
    ///
    /// # Errors
    /// What `snow` says.
    pub fn handshake<'own>(
        &'own self,
        prologue: &'own [u8],
        random: impl Random + Clone + 'static,
    ) -> Result<Builder<'own>, snow::Error> {
        let resolver = Box::new(Primitives { own: self.curve.clone(), random });
        let builder = Builder::with_resolver(PATTERN.parse()?, resolver);
        builder.prologue(prologue)?.local_private_key(self.private())
    }
}

impl core::fmt::Debug for Identity {
    /// Without the private key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").field("public", self.public()).finish_non_exhaustive()
    }
}

struct Primitives<R> {
    own: Curve,
    random: R,
}

impl<R: Random + Clone + 'static> CryptoResolver for Primitives<R> {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(self.random.clone()))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            // It has the pair already that is set afterwards. The ephemeral pair takes its place.
            DHChoice::Curve25519 => Some(Box::new(self.own.clone())),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}
