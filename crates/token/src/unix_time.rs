//! The time of day, by which tokens begin and end.

use crate::text::serde_as_text;
use core::fmt;
use core::str::FromStr;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// By how much the clocks of issuer and relay may differ, seconds.
pub const CLOCK_SKEW: u64 = 10;

/// Seconds since the beginning of 1970, UTC. Claims have it as RFC 3339 text, such as
/// `2026-11-21T20:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// The time this many seconds later, or the end of time.
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

serde_as_text!(UnixTime);
