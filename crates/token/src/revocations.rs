//! Tokens that are no longer taken although they have not ended.

use crate::unix_time::{CLOCK_SKEW, UnixTime};
use std::collections::BTreeMap;

/// The revoked tokens, by their identifiers, each until it would have ended anyway. Bounded: a new
/// one is refused when it is full, rather than an old one forgotten.
#[derive(Clone, Debug)]
pub struct Revocations {
    most: usize,
    until: BTreeMap<String, UnixTime>,
}

/// There is no room for another revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} tokens are revoked already, as many as there is room for; take their key out of the key set instead"
)]
pub struct RevocationsFull(pub usize);

impl Revocations {
    /// Room for `most` revoked tokens.
    pub fn new(most: usize) -> Revocations {
        Revocations { most, until: BTreeMap::new() }
    }

    /// Revokes the token with this identifier, which would have ended at `expires`.
    ///
    /// # Errors
    /// If there is no room, even without those that have ended.
    pub fn add(
        &mut self,
        id: &str,
        expires: UnixTime,
        now: UnixTime,
    ) -> Result<(), RevocationsFull> {
        if self.until.len() >= self.most && !self.until.contains_key(id) {
            self.until.retain(|_, until| now <= until.after(CLOCK_SKEW));
            if self.until.len() >= self.most {
                return Err(RevocationsFull(self.most));
            }
        }
        let until = self.until.entry(id.to_owned()).or_insert(expires);
        *until = expires.max(*until);
        Ok(())
    }

    /// Whether the token with this identifier was revoked.
    pub fn contains(&self, id: &str) -> bool {
        self.until.contains_key(id)
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.until.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.until.is_empty()
    }
}
