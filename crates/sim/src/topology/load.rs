//! Load: what everybody sends where that is all that limits let through.

use canopy_plan::{Limits, Rate};
use std::time::Duration;

/// What everybody sends, and within which limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// What a link bears each way.
    pub link: Rate,
    /// The share of it that is reserved at most, 0 to 1.
    pub share: f64,
    /// Everybody's limits.
    pub member: Limits,
    /// Bytes of payload of an update, which has a datagram of its own.
    pub payload: usize,
    /// What may be sent in so long is sent at once. A second at most.
    pub every: Duration,
    /// Whether all send at the same moment, so that what they send meets; or each at its own, so that each update
    /// has a header of its own on every link.
    pub meets: bool,
    /// To whom.
    pub to: Receivers,
}

/// Whom everybody sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// Groups that all have subscribed to, one after the other.
    Groups,
    /// One group that all have subscribed to.
    OneGroup,
    /// The farthest one, to whom fewer than so many others send.
    Farthest(usize),
}

/// A run with load: by participant, what it may send at the moment, how long its datagrams are, and to whom it
/// sends; and what relays had dropped when the load began.
#[derive(Default)]
pub(crate) struct Loading {
    pub(crate) saved: Vec<Rate>,
    pub(crate) lengths: Vec<usize>,
    pub(crate) to: Vec<Option<usize>>,
    pub(crate) dropped: Option<Vec<u64>>,
    /// By link: how many bytes passed over it in a second at most, each way.
    pub(crate) most: Vec<[u64; 2]>,
}
