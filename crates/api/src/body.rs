//! Bodies and texts of requests, as values, and bytes as text. Input is hostile: nothing here panics.

use crate::problem::Problem;
use canopy_control::Name;
use canopy_plan::{Limits, Rate};
use canopy_wire::{Address, PORTABLE_SITES};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest body of a request, bytes.
pub const MOST_BODY: usize = 64 << 10;

/// Reads a body of JSON; nothing at all is an empty object. A field that is not known is an error.
///
/// # Errors
/// What is wrong, and in which line and column.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or(&text).to_owned();
        let place = format!("body, line {}, column {}", error.line(), error.column());
        Problem::value(&place, what, "see /v1/openapi.json for the fields and their types")
    })
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let mut text = String::with_capacity(2 * bytes.len());
    text.extend(digits.map(|digit| char::from(DIGITS[usize::from(digit)])));
    text
}

/// How much somebody may send and be sent, on each of the world's comtrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Bits a second to the relay.
    #[schema(example = 256000)]
    pub up_bits: u64,
    /// Packets a second to the relay.
    #[schema(example = 60)]
    pub up_packets: u64,
    /// Bits a second from the relay.
    #[schema(example = 4000000)]
    pub down_bits: u64,
    /// Packets a second from the relay.
    #[schema(example = 1000)]
    pub down_packets: u64,
}

/// What an avatar needs that moves 30 times a second and sees some hundred others.
impl Default for Budget {
    fn default() -> Budget {
        Budget { up_bits: 256_000, up_packets: 60, down_bits: 4_000_000, down_packets: 1_000 }
    }
}

impl Budget {
    /// It as the controller counts it.
    ///
    /// # Errors
    /// A number is more than anybody can promise, or nothing.
    pub fn limits(&self, place: &str) -> Result<Limits, Problem> {
        let remedy = format!("give 1 to {}", Rate::MOST);
        self.limits_from(1, place, &remedy)
    }

    /// The same, with numbers from `least` on.
    pub(crate) fn limits_from(
        &self,
        least: u64,
        place: &str,
        remedy: &str,
    ) -> Result<Limits, Problem> {
        let number = |field: &str, number: u64| {
            if number < least || number as f64 > Rate::MOST {
                let what = format!("{number} is not allowed");
                return Err(Problem::value(&format!("{place}.{field}"), what, remedy));
            }
            Ok(number as f64)
        };
        let send = Rate {
            bits: number("up_bits", self.up_bits)?,
            packets: number("up_packets", self.up_packets)?,
        };
        let receive = Rate {
            bits: number("down_bits", self.down_bits)?,
            packets: number("down_packets", self.down_packets)?,
        };
        Ok(Limits { send, receive })
    }
}

impl From<Limits> for Budget {
    fn from(Limits { send, receive }: Limits) -> Budget {
        Budget {
            up_bits: send.bits as u64,
            up_packets: send.packets as u64,
            down_bits: receive.bits as u64,
            down_packets: receive.packets as u64,
        }
    }
}

/// A name that somebody has sent.
pub(crate) fn name(place: &str, text: &str) -> Result<Name, Problem> {
    Name::new(text).map_err(|error| {
        let mut problem = Problem::from(canopy_control::Refusal::from(error));
        problem.error.place = place.to_owned();
        problem
    })
}

/// A member's address that somebody has sent: `site.endpoint`.
///
/// # Errors
/// It is none; `place` says where it was written.
pub fn address(place: &str, text: &str) -> Result<Address, Problem> {
    let parsed = text.split_once('.').and_then(|(site, endpoint)| {
        let site = site.parse::<u16>().ok().filter(|site| site <= PORTABLE_SITES.end())?;
        Some(Address::unicast(site, endpoint.parse().ok()?))
    });
    let what = || format!("{text:?} is no address");
    parsed.ok_or_else(|| Problem::value(place, what(), "write site.endpoint, such as 28672.64"))
}
