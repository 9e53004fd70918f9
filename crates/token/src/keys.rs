//! Keys that sign tokens and keys that verify them, in PASERK text.

use crate::paseto::MAX_TOKEN;
use crate::signature::Signer;
use crate::text::serde_as_text;
use core::fmt;
use core::str::FromStr;
use pasetors::keys::{AsymmetricPublicKey, AsymmetricSecretKey};
use pasetors::paserk::{FormatAsPaserk, Id};
use pasetors::version4::V4;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is no key.
    #[error("no {0} key: it should begin with {0}. and go on with base64url (PASERK)")]
    NotAKey(&'static str),
    /// The claims break a limit, so no relay would take the token.
    #[error("this cannot be signed: {0}")]
    Claims(String),
    /// The token would not fit a handshake.
    #[error(
        "the token has {0} bytes, {MAX_TOKEN} are allowed; grant fewer ranges or shorter names"
    )]
    TooLong(usize),
}

/// A key that verifies: `k4.public.…`.
#[derive(Clone, Debug, PartialEq)]
pub struct PublicKey(pub(crate) AsymmetricPublicKey<V4>);

/// A public key's name: `k4.pid.…`. A token says by it which key signed it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub(crate) Arc<str>);

/// A key that signs: `k4.secret.…`.
pub struct SigningKey {
    signer: Signer,
    public: PublicKey,
    /// The same in all that it signs: which key that was.
    footer: String,
}

impl SigningKey {
    /// The key that 32 random bytes make.
    pub fn from_seed(seed: [u8; 32]) -> SigningKey {
        let pair = ed25519_compact::KeyPair::from_seed(ed25519_compact::Seed::new(seed));
        let parsed = AsymmetricSecretKey::from(&*pair.sk)
            .ok()
            .zip(AsymmetricPublicKey::from(&*pair.pk).ok());
        let Some((secret, public)) = parsed else {
            unreachable!("a pair has 64 bytes of secret key and 32 of public key");
        };
        let public = PublicKey(public);
        let footer = json!({ "kid": public.id().to_string() }).to_string();
        SigningKey { signer: Signer::new(secret), public, footer }
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The key as text. Whoever has it can issue tokens.
    pub fn to_secret_text(&self) -> String {
        paserk(self.signer.secret())
    }

    /// Signs claims for one purpose.
    pub(crate) fn sign<T: Serialize>(
        &self,
        claims: &T,
        purpose: &[u8],
    ) -> Result<String, KeyError> {
        let not_written = |error: serde_json::Error| KeyError::Claims(error.to_string());
        let claims = serde_json::to_vec(claims).map_err(not_written)?;
        let signed = self.signer.sign(&claims, self.footer.as_bytes(), purpose);
        signed.map_err(|error| KeyError::Claims(format!("{error:?}")))
    }
}

impl FromStr for SigningKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<SigningKey, KeyError> {
        let not_a_key = KeyError::NotAKey("k4.secret");
        let parsed = AsymmetricSecretKey::<V4>::try_from(text);
        let secret = parsed.map_err(|_| not_a_key.clone())?;
        // The seed, and behind it the public key; a text with another public key is no key.
        let seed = secret.as_bytes().first_chunk::<32>().ok_or(not_a_key.clone())?;
        let key = SigningKey::from_seed(*seed);
        if *key.signer.secret() == secret { Ok(key) } else { Err(not_a_key) }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.public.id()).finish_non_exhaustive()
    }
}

impl PublicKey {
    /// The key's name.
    pub fn id(&self) -> KeyId {
        KeyId(paserk(&Id::from(&self.0)).into())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&paserk(&self.0))
    }
}

impl Eq for PublicKey {}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        let parsed = AsymmetricPublicKey::try_from(text);
        parsed.map(PublicKey).map_err(|_| KeyError::NotAKey("k4.public"))
    }
}

serde_as_text!(PublicKey);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn paserk(key: &impl FormatAsPaserk) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = key.fmt(&mut text);
    text
}
