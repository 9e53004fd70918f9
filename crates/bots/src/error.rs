//! Why a crowd cannot walk.

use crate::grid::GridError;
use crate::position::MIN_PAYLOAD;
use canopy_client::join::JoinError;
use canopy_token::KeyError;
use canopy_wire::{Group, MAX_UPDATE, RefusedReason, SubscribeRefusal};
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
    /// A budget is none.
    #[error("--budgets {0} is out of range; choose percentages above 0, up to 100")]
    Budget(f64),
    /// The trace is too short for what is to be measured.
    #[error(
        "the trace has {has:.0} s and {needs:.0} s are needed; choose fewer with --seconds, or a longer trace"
    )]
    Short {
        /// Its length, seconds.
        has: f64,
        /// The length that is needed, seconds.
        needs: f64,
    },
    /// A viewer may not subscribe to a walker.
    #[error("the relay refused a viewer's subscription to {group:?}: {reason:?}; see its limits")]
    NoSubscription {
        /// The walker's group.
        group: Group,
        /// What the relay said.
        reason: SubscribeRefusal,
    },
    /// Viewers without budgets got no update.
    #[error("no update came to the viewers; are the relays joined, and do they carry the comtree?")]
    NothingCame,
    /// The relay does not take the budgets.
    #[error("the relay does not take the viewers' budgets: {0}")]
    NoBudgets(String),
    /// Some updates were not sent: the rest is no measure.
    #[error(
        "{0} updates were not sent, because their walkers' sessions were lost; is this machine overloaded?"
    )]
    Unsent(u64),
    /// Whoever was asked has stopped the run.
    #[error("stopped before anything was measured")]
    Stopped,
    /// A walker's token cannot be issued.
    #[error("a walker's token cannot be issued: {0}")]
    Token(#[from] KeyError),
    /// The grid does not fit the world.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The controller lets a walker not in.
    #[error("a walker cannot join: {0}")]
    Join(#[from] JoinError),
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
