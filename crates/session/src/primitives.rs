//! The primitives of handshakes: X25519 as [`Curve`] has it, ChaCha20-Poly1305 by `ring`, BLAKE2s by `snow`.

use crate::curve::{Curve, PublicKey};
use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};

/// How a handshake goes: which keys are known beforehand, and in which order the others are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Two messages. The first one tells, to whoever has the expected key, who begins.
    Ik,
    /// Three messages. Who begins tells who it is in the third one, once the other has proved its key. It takes
    /// both sides a key agreement less.
    Xk,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Ik => "Noise_IK_25519_ChaChaPoly_BLAKE2s",
            Pattern::Xk => "Noise_XK_25519_ChaChaPoly_BLAKE2s",
        }
    }
}

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

    /// Begins a handshake of this identity's. The random numbers are for this handshake alone. Both sides must
    /// give the same pattern and prologue.
    ///
    /// # Errors
    /// What `snow` says.
    pub fn handshake<'own>(
        &'own self,
        pattern: Pattern,
        prologue: &'own [u8],
        random: impl Random + Clone + 'static,
    ) -> Result<Builder<'own>, snow::Error> {
        let resolver = Box::new(Primitives { own: self.curve.clone(), random });
        let builder = Builder::with_resolver(pattern.name().parse()?, resolver);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::SeededRandom;

    /// Has both sides say what they have to. Returns by which key the second knows the first.
    fn shake_hands(pattern: Pattern, first: &Identity, second: &Identity) -> Option<PublicKey> {
        let random = |seed| SeededRandom::from_drawn([seed; 32]);
        let begun = first.handshake(pattern, b"prologue", random(1)).unwrap();
        let mut initiator =
            begun.remote_public_key(second.public()).unwrap().build_initiator().unwrap();
        let begun = second.handshake(pattern, b"prologue", random(2)).unwrap();
        let mut responder = begun.build_responder().unwrap();
        let (mut message, mut payload) = ([0; 200], [0; 200]);
        while !initiator.is_handshake_finished() || !responder.is_handshake_finished() {
            let (from, to) = match initiator.is_my_turn() {
                true => (&mut initiator, &mut responder),
                false => (&mut responder, &mut initiator),
            };
            let len = from.write_message(&[], &mut message).unwrap();
            to.read_message(&message[..len], &mut payload).ok()?;
        }
        responder.get_remote_static()?.try_into().ok()
    }

    /// The key is in what it says, and the secret is not in what it computes.
    #[test]
    fn nobody_is_taken_for_another_whose_public_key_it_knows() {
        let [caller, called, thief] = [1, 2, 3].map(|number| Identity::new([number; 32]));
        let posing = Identity { curve: Curve::posing(*thief.private(), *caller.public()) };
        for pattern in [Pattern::Ik, Pattern::Xk] {
            assert_eq!(shake_hands(pattern, &caller, &called), Some(*caller.public()));
            assert_eq!(shake_hands(pattern, &posing, &called), None, "{pattern:?}");
        }
    }
}
