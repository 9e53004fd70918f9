//! How a crowd walks, and through which relays.

use crate::error::CrowdError;
use crate::grid::Grid;
use crate::issuer::Issuer;
use crate::position::MIN_PAYLOAD;
use canopy_client::join::Ask;
use canopy_judge::Rules;
use canopy_net::{Socket, SocketOptions};
use canopy_session::PublicKey;
use canopy_wire::{Comtree, MAX_UPDATE, Weight};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// How long after the last excuse a delivery counts as missing, even if it comes later.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a hop from relay to relay takes at most, unless it is said otherwise: a tick of 50 ms, and as
/// much again on a busy machine.
pub const DEFAULT_HOP: Duration = Duration::from_millis(100);

/// A relay that walkers join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayTarget {
    /// Where it is.
    pub address: SocketAddr,
    /// The key that it is known by. Without it, whoever answers is believed to be the relay.
    pub key: Option<PublicKey>,
}

impl From<SocketAddr> for RelayTarget {
    fn from(address: SocketAddr) -> RelayTarget {
        RelayTarget { address, key: None }
    }
}

/// Binds the socket of a walker, by its number, on the host where that walker is.
pub type Bind = dyn Fn(u32, SocketAddr, &SocketOptions) -> io::Result<Socket> + Send + Sync;

/// Where walkers are, if not all on this host.
#[derive(Clone)]
pub struct Seats(pub Arc<Bind>);

impl fmt::Debug for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seats")
    }
}

/// Says of a walker, by its number, whether its process is killed now.
pub type IsKilled = dyn Fn(u32) -> bool + Send + Sync;

/// Whose process is killed for a while. Such a walker is gone without a word, with all that it knew; once it is there
/// again it comes as somebody new.
#[derive(Clone)]
pub struct Killed(pub Arc<IsKilled>);

impl fmt::Debug for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Killed")
    }
}

/// How a crowd walks.
#[derive(Clone, Debug)]
pub struct CrowdConfig {
    /// The relays of the world, at least one. Walker n joins number n modulo how many there are.
    pub relays: Vec<RelayTarget>,
    /// Where walkers ask for their places. The relays are those that are known at first then; the
    /// controller says who joins where, and may name others.
    pub controller: Option<Ask>,
    /// The comtree to join; of a controller's world its first.
    pub comtree: Comtree,
    /// Who issues the walkers tokens, where the relays ask for them.
    pub issuer: Option<Issuer>,
    /// How fast, against the recording.
    pub speed: f64,
    /// The grid, and how far walkers see.
    pub grid: Grid,
    /// Bytes of an update, [`MIN_PAYLOAD`] to [`MAX_UPDATE`].
    pub bytes: usize,
    /// An unsubscription so long after an update was published excuses its delivery; with several
    /// relays, [`CrowdConfig::way`] is added.
    pub settle: Duration,
    /// What a hop from relay to relay takes at most, of an update and of a subscription.
    pub hop: Duration,
    /// How much a cell that is so many metres away matters to a walker whose relay does not send it
    /// everything ([`View::limit`](crate::View::limit)); `None`: all cells alike.
    pub weigh: Option<fn(f64) -> Weight>,
    /// On which hosts walkers are; all on this one if it is not said.
    pub seats: Option<Seats>,
    /// Whose process is killed now; nobody's if it is not said.
    pub killed: Option<Killed>,
    /// Whether to walk on when a relay does not answer, or refuses: its walkers keep asking it.
    pub endures: bool,
}

impl CrowdConfig {
    /// Checks what needs no trace and no relay.
    ///
    /// # Errors
    /// What is out of range.
    pub fn check(&self) -> Result<(), CrowdError> {
        if self.relays.is_empty() {
            return Err(CrowdError::NoRelay);
        }
        if !(MIN_PAYLOAD..=MAX_UPDATE).contains(&self.bytes) {
            return Err(CrowdError::Bytes(self.bytes));
        }
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return Err(CrowdError::Speed(self.speed));
        }
        Ok(())
    }

    /// The longest way between two relays, in time: a hop for each relay after the first, as if they
    /// were a line.
    pub fn way(&self) -> Duration {
        self.hop * self.hops()
    }

    /// What the oracle may count on.
    pub(crate) fn rules(&self) -> Rules {
        Rules::undisturbed(self.settle, PATIENCE).over(self.hops(), self.hop)
    }

    /// The number of a walker's relay.
    pub(crate) fn relay_of(&self, walker: u32) -> usize {
        walker as usize % self.relays.len().max(1)
    }

    fn hops(&self) -> u32 {
        self.relays.len().saturating_sub(1) as u32
    }
}
