//! The key by which a relay is known.

use canopy_session::PublicKey;
use core::fmt;
use core::str::FromStr;

/// A relay's public key: the client speaks with whoever has the secret that belongs to it, and with
/// nobody else. A relay tells its key when it starts; as text it has 64 hexadecimal digits.
///
/// ```no_run
/// use canopy_client::{PollClient, RelayKey};
///
/// let key: RelayKey = std::env::var("RELAY_KEY")?.parse()?;
/// let world = PollClient::builder("relay.example:4040").relay_key(key).connect_blocking()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelayKey(pub(crate) PublicKey);

/// A text that is no relay's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no relay's key: it has 64 hexadecimal digits; copy the one that the relay tells when it starts"
)]
pub struct NoRelayKey;

impl RelayKey {
    /// The key with these bytes.
    pub const fn new(bytes: [u8; 32]) -> RelayKey {
        RelayKey(bytes)
    }

    /// Its bytes.
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

impl FromStr for RelayKey {
    type Err = NoRelayKey;

    fn from_str(text: &str) -> Result<RelayKey, NoRelayKey> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut key = RelayKey([0; 32]);
        if pairs.len() != key.0.len() || !rest.is_empty() {
            return Err(NoRelayKey);
        }
        for (byte, pair) in key.0.iter_mut().zip(pairs) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(NoRelayKey) };
            *byte = (high << 4 | low) as u8;
        }
        Ok(key)
    }
}

impl fmt::Display for RelayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RelayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelayKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_nothing_else_is_one() {
        let key = RelayKey::new(core::array::from_fn(|at| at as u8 * 7));
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(key.to_string().to_uppercase().parse(), Ok(key));
        let text = key.to_string();
        for wrong in
            ["", "00", &text[1..], &format!("{text}0"), &text.replace('0', "g"), &"ä".repeat(32)]
        {
            assert_eq!(wrong.parse::<RelayKey>(), Err(NoRelayKey), "{wrong:?}");
        }
    }
}
