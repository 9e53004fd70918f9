//! Tokens and delegations are signed.

use crate::claims::{Claims, Delegation};
use crate::keys::{KeyError, SigningKey};
use crate::paseto::{DELEGATION, MAX_TOKEN, TOKEN};

impl SigningKey {
    /// Signs a token.
    ///
    /// # Errors
    /// If no relay would take it: a limit is broken, or it is too long.
    pub fn issue(&self, claims: &Claims) -> Result<String, KeyError> {
        claims.check().map_err(KeyError::Claims)?;
        let token = self.sign(claims, TOKEN)?;
        if token.len() > MAX_TOKEN { Err(KeyError::TooLong(token.len())) } else { Ok(token) }
    }

    /// Signs a delegation, for the key sets of relays.
    ///
    /// # Errors
    /// If a limit is broken.
    pub fn delegate(&self, delegation: &Delegation) -> Result<String, KeyError> {
        delegation.check().map_err(KeyError::Claims)?;
        self.sign(delegation, DELEGATION)
    }
}
