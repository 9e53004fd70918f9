//! Access tokens: who may enter a world, and what they may do there (Forest §3.1: what an access
//! router checks).
//!
//! A token is a [PASETO](https://github.com/paseto-standard/paseto-spec) of version 4, signed:
//! text that fits a URL, with one algorithm (Ed25519). A world's backend issues it, a relay
//! verifies it, and nobody in between needs to be asked. Its claims are in `docs/tokens.md`, so that
//! a backend in any language can issue it.
//!
//! The bearer must own the secret of the key that the token names ([`Claims::client_key`]), so a
//! stolen token is useless. A key may be delegated: what its tokens grant then stays within a
//! ceiling that a trusted key has signed ([`Delegation`]).
//!
//! Time and randomness come in as arguments.
#![forbid(unsafe_code)]

mod claims;
mod grant;
mod issuing;
mod key_set;
mod keys;
mod paseto;
mod revocations;
mod signature;
mod text;
mod unix_time;

pub use claims::{Claims, Delegation, MAX_ID, MAX_NAME};
pub use grant::{
    Budget, ComtreeGrant, Grant, GroupRange, MAX_COMTREES, MAX_RANGES, Role, Scope, Unicast,
};
pub use key_set::{KeySet, KeySetError, TokenError, Verified};
pub use keys::{KeyError, KeyId, PublicKey, SigningKey};
pub use paseto::MAX_TOKEN;
pub use revocations::{Revocations, RevocationsFull};
pub use text::parse_client_key;
pub use unix_time::{CLOCK_SKEW, UnixTime};
