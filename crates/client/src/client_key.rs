//! The key by which a client is known.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use canopy_session::Identity;
use core::fmt;
use core::str::FromStr;
use std::io;

/// A client's secret key. A token names the public key that belongs to it, so a token is of no use
/// to whoever steals it.
///
/// ```no_run
/// # fn ask_backend(public_key: &str) -> String { String::new() }
/// use canopy_client::{ClientKey, PollClient};
///
/// let key = ClientKey::generate()?;
/// // The backend issues a token for this key, when it has seen who is logged in.
/// let token = ask_backend(&key.public());
/// let world = PollClient::builder("127.0.0.1:4040").key(key).token(token).connect_blocking()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ClientKey {
    secret: [u8; 32],
}

/// A text that is no client's secret key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no client's key: it is {PREFIX} and 43 characters of base64url; make one with `canopy token client-key`"
)]
pub struct NoClientKey;

/// What stands before the secret, so that nobody takes it for something that may be shown.
const PREFIX: &str = "canopy-client-secret:";

impl ClientKey {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn generate() -> io::Result<ClientKey> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(ClientKey { secret })
    }

    /// The one that 32 random bytes make.
    pub const fn from_seed(secret: [u8; 32]) -> ClientKey {
        ClientKey { secret }
    }

    /// The public key as the claim `cnf` of a token has it: base64url, 43 characters. A backend
    /// needs it to issue a token.
    pub fn public(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.public_bytes())
    }

    /// The public key's bytes.
    pub fn public_bytes(&self) -> [u8; 32] {
        *self.identity().public()
    }

    /// The secret as text, which [`str::parse`] reads. Whoever has it can use the client's tokens.
    pub fn to_secret_text(&self) -> String {
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.secret))
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::new(self.secret)
    }
}

impl FromStr for ClientKey {
    type Err = NoClientKey;

    fn from_str(text: &str) -> Result<ClientKey, NoClientKey> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(NoClientKey)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| NoClientKey)?;
        Ok(ClientKey { secret: bytes.try_into().map_err(|_| NoClientKey)? })
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientKey").field(&self.public()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_does_not_show_its_secret() {
        let key = ClientKey::from_seed([7; 32]);
        let text = key.to_secret_text();
        let read: ClientKey = format!("{text}\n").parse().unwrap();
        assert_eq!(read.public(), key.public());
        assert_eq!(key.public().len(), 43);
        let secret = text.strip_prefix(PREFIX).unwrap();
        assert!(!format!("{key:?}").contains(secret));
        for wrong in ["", secret, &text[..text.len() - 1], PREFIX] {
            assert!(wrong.parse::<ClientKey>().is_err(), "{wrong:?}");
        }
    }
}
