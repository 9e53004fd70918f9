//! Why a crowd cannot walk.

use crate::grid::GridError;
use crate::position::MIN_PAYLOAD;
use canopy_token::KeyError;
use canopy_wire::{MAX_UPDATE, RefusedReason};
use std::io;
use std::net::SocketAddr;

/// Why a crowd cannot walk.
#[derive(Debug, thiserror::Error)]
pub enum CrowdError {
    /// There is no relay to join.
    #[error("no relay is named; name one with --relay HOST:PORT")]
    NoRelay,
    /// Updates of this length cannot be made.
    #[error("--bytes {0} is out of range; choose {MIN_PAYLOAD} to {MAX_UPDATE}")]
    Bytes(usize),
    /// The speed is none.
    #[error("--speed {0} is no speed; choose a number above 0")]
    Speed(f64),
    /// A walker's token cannot be issued.
    #[error("a walker's token cannot be issued: {0}")]
    Token(#[from] KeyError),
    /// The grid does not fit the world.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Nobody could connect to this relay.
    #[error(
        "no walker got an answer from {0} within 5 s; is the relay running there? (canopy relay --listen {0})"
    )]
    Unreachable(SocketAddr),
    /// A relay takes nobody.
    #[error("the relay at {relay} refused the walkers: {reason:?}; {}", remedy(*reason))]
    Refused {
        /// Which relay.
        relay: SocketAddr,
        /// What it said.
        reason: RefusedReason,
    },
    /// There are not enough descriptors for a socket each.
    #[error(
        "only {limit} files may be open, too few for {walkers} walkers with a socket each; raise the limit (ulimit -n)"
    )]
    OpenFiles {
        /// The hard limit.
        limit: u64,
        /// Walkers.
        walkers: u32,
    },
    /// The system says no.
    #[error("a walker's socket failed")]
    Socket(#[from] io::Error),
}

fn remedy(reason: RefusedReason) -> &'static str {
    match reason {
        RefusedReason::Token => {
            "give a signing key that it trusts (--token-key) and the comtree's world (--world); its log \
             says what is wrong with their tokens, which are good for seven days"
        }
        _ => "see its limits and comtrees",
    }
}
