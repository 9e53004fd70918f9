//! Secrets: what is derived and drawn from them, and how they are compared.

use canopy_wire::Tag;
use ring::hmac;

/// A secret from which keys are made: one for each direction.
pub(crate) type Secret = [u8; 32];

/// Random numbers from a seed that the driver drew. What was drawn cannot be found again from the
/// state that is left.
#[derive(Clone)]
pub(crate) struct SeededRandom {
    state: [u8; 32],
}

impl SeededRandom {
    /// `purpose` tells generators of one seed apart.
    pub(crate) fn new(seed: &[u8], purpose: &[u8]) -> SeededRandom {
        SeededRandom { state: mac(seed, purpose) }
    }

    /// From a seed that was drawn for this alone.
    pub(crate) fn from_drawn(seed: [u8; 32]) -> SeededRandom {
        SeededRandom { state: seed }
    }

    /// The next 32 bytes.
    pub(crate) fn draw(&mut self) -> [u8; 32] {
        let drawn = mac(&self.state, b"draw");
        self.state = mac(&self.state, b"next");
        drawn
    }
}

/// Bytes derived from a secret for a purpose. They tell nothing of the secret, nor of what is derived
/// from it for another purpose.
pub fn derive(secret: &[u8], purpose: &[u8]) -> [u8; 32] {
    mac(secret, purpose)
}

/// Compares without telling by its time where the first difference is.
pub(crate) fn equal(a: &Tag, b: &Tag) -> bool {
    a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn mac(key: &[u8], of: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut out = [0; 32];
    out.copy_from_slice(hmac::sign(&key, of).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_another_purpose_something_else() {
        let mut random = SeededRandom::new(b"seed", b"one");
        let drawn = [random.draw(), random.draw()];
        assert_ne!(drawn[0], drawn[1]);
        let mut again = SeededRandom::new(b"seed", b"one");
        assert_eq!([again.draw(), again.draw()], drawn);
        assert_ne!(SeededRandom::new(b"seed", b"two").draw(), drawn[0]);
    }
}
