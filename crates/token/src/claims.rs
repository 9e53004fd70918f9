//! What tokens and delegations say.

use crate::grant::Grant;
use crate::keys::PublicKey;
use crate::text::client_key;
use crate::unix_time::UnixTime;
use serde::{Deserialize, Serialize};

/// The longest subject and the longest name of a world, bytes.
pub const MAX_NAME: usize = 64;
/// The longest identifier of a token, bytes.
pub const MAX_ID: usize = 36;

/// What a token says. Other claims than these are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// For whom it is, as the issuer names them; shown in logs.
    #[serde(rename = "sub")]
    pub subject: String,
    /// The token's identifier, by which it is revoked; no two tokens have the same.
    #[serde(rename = "jti")]
    pub id: String,
    /// When it ends.
    #[serde(rename = "exp")]
    pub expires: UnixTime,
    /// When it begins; at once if it does not say.
    #[serde(rename = "nbf", default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixTime>,
    /// The bearer's public key (X25519): whoever uses the token must have its secret.
    #[serde(rename = "cnf", with = "client_key")]
    pub client_key: [u8; 32],
    /// What it grants.
    #[serde(flatten)]
    pub grant: Grant,
}

/// What a trusted key says of another: that it may sign tokens, and what they may grant at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The key that may sign.
    pub key: PublicKey,
    /// When it may no longer. No token of the key outlives this.
    #[serde(rename = "exp")]
    pub expires: UnixTime,
    /// How far ahead its tokens may end, seconds.
    pub longest_s: u64,
    /// What its tokens may grant at most.
    #[serde(flatten)]
    pub ceiling: Grant,
}

impl Claims {
    /// Whether the claims keep to their limits.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_length("sub", &self.subject, MAX_NAME)?;
        check_length("jti", &self.id, MAX_ID)?;
        check_length("world", &self.grant.world, MAX_NAME)?;
        if self.not_before.is_some_and(|begin| begin >= self.expires) {
            return Err("exp: it ends before it begins".to_owned());
        }
        self.grant.check()
    }
}

impl Delegation {
    /// Whether the claims keep to their limits.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_length("world", &self.ceiling.world, MAX_NAME)?;
        self.ceiling.check()
    }
}

fn check_length(claim: &str, text: &str, most: usize) -> Result<(), String> {
    if text.is_empty() || text.len() > most {
        return Err(format!("{claim}: 1 to {most} bytes are allowed"));
    }
    Ok(())
}
