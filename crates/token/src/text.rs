//! How claims are written as text.

use canopy_wire::Address;

/// Claims have a type as it is shown and parsed elsewhere.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use serde_as_text;

/// Reads a client's public key (X25519) as it stands in the claim `cnf`: base64url without padding.
///
/// # Errors
/// What it should have been.
pub fn parse_client_key(text: &str) -> Result<[u8; 32], String> {
    use base64::Engine;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text);
    let key = bytes.ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    key.ok_or_else(|| "that is no key; give 32 bytes as base64url, 43 characters".to_owned())
}

/// The claim `cnf`.
pub(crate) mod client_key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(key: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        use base64::Engine;
        to.serialize_str(&base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        super::parse_client_key(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Reads a unicast address: `site.endpoint`, such as `1.64`.
pub(crate) fn parse_address(text: &str) -> Result<Address, String> {
    let parsed = text.split_once('.').and_then(|(site, endpoint)| {
        let site = site.parse::<u16>().ok().filter(|site| *site < 1 << 15)?;
        Some(Address::unicast(site, endpoint.parse().ok()?))
    });
    parsed.filter(|address| *address != Address::UNSPECIFIED).ok_or_else(|| {
        format!("{text:?} is no address; write site.endpoint, such as 1.64 (site below 32768)")
    })
}
