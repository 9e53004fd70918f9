//! How claims are written: times, keys and addresses as text.

use canopy_wire::Address;
use core::fmt;
use core::str::FromStr;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What is written and read in claims as it is shown and parsed elsewhere.
macro_rules! serde_as_text {
    ($($type:ty),*) => { $(
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
    )* };
}

serde_as_text!(UnixTime, crate::grant::GroupRange, crate::grant::Unicast, crate::keys::PublicKey);

/// Seconds since the beginning of 1970, UTC. Claims have it as RFC 3339 text, such as
/// `2026-11-21T20:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// So many seconds later, or the end of time.
    pub fn after(self, seconds: u64) -> UnixTime {
        UnixTime(self.0.saturating_add(seconds))
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = i64::try_from(self.0).ok();
        let at = at.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
        match at.and_then(|at| at.format(&Rfc3339).ok()) {
            Some(text) => f.write_str(&text),
            None => write!(f, "{} s after 1970", self.0),
        }
    }
}

impl FromStr for UnixTime {
    type Err = String;

    fn from_str(text: &str) -> Result<UnixTime, String> {
        let at = OffsetDateTime::parse(text, &Rfc3339);
        let seconds = at.ok().and_then(|at| u64::try_from(at.unix_timestamp()).ok());
        let seconds = seconds.map(UnixTime);
        seconds.ok_or_else(|| {
            format!("{text:?} is no time; write it like 2026-11-21T20:00:00Z (RFC 3339)")
        })
    }
}

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
