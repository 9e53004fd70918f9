//! Tokens for walkers, where the relay asks for them.

use canopy_session::Identity;
use canopy_token::{
    Budget, Claims, ComtreeGrant, Grant, KeyError, Scope, SigningKey, Unicast, UnixTime,
};
use canopy_wire::Comtree;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// How long a walker may walk, seconds.
const LIFETIME: u64 = 7 * 86_400;

/// Issues each walker a token, as a world's backend would.
#[derive(Clone, Debug)]
pub struct Issuer {
    key: Arc<SigningKey>,
    world: String,
}

impl Issuer {
    /// One with this key, for this world.
    pub fn new(key: SigningKey, world: String) -> Issuer {
        Issuer { key: Arc::new(key), world }
    }

    /// A token with which the walker that has this identity may do everything on a comtree, for a week.
    ///
    /// # Errors
    /// The token would be longer than relays take.
    pub fn issue(
        &self,
        number: u32,
        identity: &Identity,
        comtree: Comtree,
    ) -> Result<String, KeyError> {
        let client_key = *identity.public();
        // The client's key is new for each walk, and so is the token.
        let [a, b, c, d, e, f, g, h, ..] = client_key;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.key.issue(&Claims {
            subject: format!("walker-{number}"),
            id: format!("walker-{:016x}", u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            expires: UnixTime(since.as_secs()).after(LIFETIME),
            not_before: None,
            client_key,
            grant: Grant {
                world: self.world.clone(),
                address: None,
                site: None,
                comtrees: vec![ComtreeGrant {
                    comtree,
                    publish: Scope::everything(),
                    subscribe: Scope::everything(),
                    unicast: Unicast::Anybody,
                }],
                budget: Budget::default(),
                roles: Vec::new(),
            },
        })
    }
}
