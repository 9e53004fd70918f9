//! The keys that a relay trusts, and the check that a token passes.

use crate::claims::{Claims, Delegation};
use crate::keys::{KeyId, PublicKey};
use crate::paseto::{DELEGATION, Footer, MAX_FOOTER, MAX_TOKEN, TOKEN};
use crate::revocations::Revocations;
use crate::unix_time::{CLOCK_SKEW, UnixTime};
use pasetors::Public;
use pasetors::token::UntrustedToken;
use pasetors::version4::{PublicToken, V4};
use std::collections::BTreeMap;

/// Why a token is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is longer than any token.
    #[error("it has {0} bytes, {MAX_TOKEN} are allowed")]
    TooLong(usize),
    /// It is no PASETO of version 4, or its footer names no key.
    #[error("it is no signed PASETO of version 4 (v4.public.…) with a key's name in its footer")]
    NotAToken,
    /// It names a key that is not trusted.
    #[error("it names the key {0}, which is not trusted here")]
    UnknownKey(KeyId),
    /// A claim is missing, cannot be read, or breaks a limit.
    #[error("its claims do not do: {0}")]
    Claims(String),
    /// It has ended.
    #[error("it ended at {0}")]
    Expired(UnixTime),
    /// It has not begun.
    #[error("it begins at {0}")]
    NotYetValid(UnixTime),
    /// It was revoked.
    #[error("it was revoked")]
    Revoked,
    /// What it says was not signed by the key that it names.
    #[error("its signature is wrong")]
    BadSignature,
    /// It grants more than its key may.
    #[error("it grants more than its key may: {0}")]
    BeyondCeiling(String),
}

/// Why a key set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("delegation {number}: {reason}")]
pub struct KeySetError {
    /// Which of the delegations, counted from 1.
    pub number: usize,
    /// What is wrong with it.
    pub reason: TokenError,
}

/// The keys that a relay trusts. To rotate a key, one puts the new one beside the old, issues with
/// the new one, and takes the old one out when its last token has ended.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: BTreeMap<KeyId, Trusted>,
}

/// What a token that was checked says, and which key has signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What it says.
    pub claims: Claims,
    /// The key.
    pub key: KeyId,
}

#[derive(Clone, Debug)]
struct Trusted {
    key: PublicKey,
    /// What bounds a delegated key.
    delegation: Option<Delegation>,
}

impl KeySet {
    /// Trusts these keys for everything, and no others.
    pub fn of(keys: impl IntoIterator<Item = PublicKey>) -> KeySet {
        let trusted = |key: PublicKey| (key.id(), Trusted { key, delegation: None });
        KeySet { keys: keys.into_iter().map(trusted).collect() }
    }

    /// Trusts `keys` for everything, and those that they have delegated to for what was delegated.
    /// A delegated key cannot delegate further. Delegations that have ended are left out.
    ///
    /// # Errors
    /// If a delegation is not signed by one of the keys, or cannot be read.
    pub fn new(
        keys: impl IntoIterator<Item = PublicKey>,
        delegations: &[&str],
        now: UnixTime,
    ) -> Result<KeySet, KeySetError> {
        let roots = KeySet::of(keys);
        let mut all = roots.clone();
        for (number, text) in (1..).zip(delegations) {
            let delegation = roots.verify_delegation(text);
            let delegation = delegation.map_err(|reason| KeySetError { number, reason })?;
            let id = delegation.key.id();
            if delegation.expires > now && !roots.keys.contains_key(&id) {
                let key = delegation.key.clone();
                all.keys.insert(id, Trusted { key, delegation: Some(delegation) });
            }
        }
        Ok(all)
    }

    /// How many keys are trusted, those by delegation among them.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key is trusted, so that no token passes.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Checks a token, the dear part last: its form, its key, its times, whether it was revoked,
    /// its signature, and what its key may grant.
    ///
    /// # Errors
    /// The first check that it does not pass.
    pub fn verify(
        &self,
        token: &str,
        now: UnixTime,
        revoked: &Revocations,
    ) -> Result<Verified, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::TooLong(token.len()));
        }
        let (untrusted, key, trusted) = self.find(token)?;
        let claims: Claims = read(untrusted.untrusted_payload())?;
        claims.check().map_err(TokenError::Claims)?;
        if now.0 > claims.expires.after(CLOCK_SKEW).0 {
            return Err(TokenError::Expired(claims.expires));
        }
        if let Some(begin) = claims.not_before.filter(|begin| now.after(CLOCK_SKEW) < *begin) {
            return Err(TokenError::NotYetValid(begin));
        }
        if revoked.contains(&claims.id) {
            return Err(TokenError::Revoked);
        }
        check_signature(&trusted.key, &untrusted, TOKEN)?;
        if let Some(delegation) = &trusted.delegation {
            delegation.allows(&claims, now)?;
        }
        Ok(Verified { claims, key })
    }

    /// Whether a key is trusted, by delegation or itself.
    pub fn trusts(&self, key: &KeyId) -> bool {
        self.keys.contains_key(key)
    }

    fn verify_delegation(&self, text: &str) -> Result<Delegation, TokenError> {
        let (untrusted, _, trusted) = self.find(text)?;
        check_signature(&trusted.key, &untrusted, DELEGATION)?;
        let delegation: Delegation = read(untrusted.untrusted_payload())?;
        delegation.check().map_err(TokenError::Claims)?;
        Ok(delegation)
    }

    /// Parses a token and finds the key that it names.
    fn find(
        &self,
        token: &str,
    ) -> Result<(UntrustedToken<Public, V4>, KeyId, &Trusted), TokenError> {
        let untrusted = UntrustedToken::<Public, V4>::try_from(token);
        let untrusted = untrusted.map_err(|_| TokenError::NotAToken)?;
        let footer = untrusted.untrusted_footer();
        let footer = Some(footer).filter(|footer| footer.len() <= MAX_FOOTER);
        let footer: Option<Footer> = footer.and_then(|footer| serde_json::from_slice(footer).ok());
        let id = KeyId(footer.ok_or(TokenError::NotAToken)?.kid.into());
        match self.keys.get_key_value(&id) {
            // The key's own copy of its name, which all of its tokens share.
            Some((id, trusted)) => Ok((untrusted, id.clone(), trusted)),
            None => Err(TokenError::UnknownKey(id)),
        }
    }
}

impl Claims {
    /// What a token says, whether it is true or not.
    ///
    /// # Errors
    /// If it is no token, or cannot be read.
    pub fn read_unverified(token: &str) -> Result<Claims, TokenError> {
        let untrusted = UntrustedToken::<Public, V4>::try_from(token);
        read(untrusted.map_err(|_| TokenError::NotAToken)?.untrusted_payload())
    }
}

impl Delegation {
    fn allows(&self, claims: &Claims, now: UnixTime) -> Result<(), TokenError> {
        let most = self.expires.min(now.after(self.longest_s));
        if claims.expires > self.expires || claims.expires > most.after(CLOCK_SKEW) {
            let why = format!("it ends at {}, its key's tokens by {most}", claims.expires);
            return Err(TokenError::BeyondCeiling(why));
        }
        claims.grant.is_within(&self.ceiling).map_err(TokenError::BeyondCeiling)
    }
}

fn read<'a, T: serde::Deserialize<'a>>(payload: &'a [u8]) -> Result<T, TokenError> {
    serde_json::from_slice(payload).map_err(|error| TokenError::Claims(error.to_string()))
}

fn check_signature(
    key: &PublicKey,
    token: &UntrustedToken<Public, V4>,
    purpose: &[u8],
) -> Result<(), TokenError> {
    let footer = Some(token.untrusted_footer());
    let verified = PublicToken::verify(&key.0, token, footer, Some(purpose));
    verified.map(drop).map_err(|_| TokenError::BadSignature)
}
