//! What tokens and delegations have in common beside their claims (PASETO).

use serde::Deserialize;

/// The longest token, bytes: it fits the first packet of a handshake.
pub const MAX_TOKEN: usize = 1000;
/// The longest footer: a key's name.
pub(crate) const MAX_FOOTER: usize = 128;

/// What is signed along (the implicit assertion of PASETO), so that nothing signed for another
/// purpose passes for a token or a delegation.
pub(crate) const TOKEN: &[u8] = b"canopy token v1";
pub(crate) const DELEGATION: &[u8] = b"canopy delegation v1";

/// What a token says in its footer, which is read before the signature is checked.
#[derive(Deserialize)]
pub(crate) struct Footer {
    pub(crate) kid: String,
}
