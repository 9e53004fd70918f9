//! How much of the relay's processor time is the receivers' softirq: on loopback a datagram's
//! receive path runs in the sender's context and is billed to it.

use super::Plan;
use serde::Serialize;
use std::fmt;

/// The receivers' share of the relay's processor time, or why it was not measured.
#[derive(Serialize)]
pub(super) struct Share {
    share: Option<f64>,
    note: String,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.share {
            Some(share) => write!(f, "receivers' softirq: {:.0} % ({})", share * 100.0, self.note),
            None => write!(f, "receivers' softirq: not measured ({})", self.note),
        }
    }
}

pub(super) fn receivers_share(plan: &Plan) -> Share {
    let _ = plan;
    Share { share: None, note: String::new() }
}
