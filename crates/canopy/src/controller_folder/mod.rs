//! The controller's folder: what its daemon keeps there, and what commands on this machine find there to ask
//! its API.

mod files;
mod secret;

pub(crate) use files::issuer_key;
pub(crate) use secret::ApiSecret;

/// Where the API is served unless it is told otherwise.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:4042";
/// The file in the controller's folder that says where the API is served.
pub(crate) const ADDRESS_FILE: &str = "api.address";
