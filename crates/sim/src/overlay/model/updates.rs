//! Updates, and who has to get them.

use crate::network::Direction;
use crate::overlay::shape::Hop;
use canopy_wire::{Address, Comtree, Level, Time};

/// Somebody who has to get an update, as it was when that was published.
pub(super) struct Due {
    pub(super) number: usize,
    pub(super) epoch: u32,
    pub(super) version: u32,
    pub(super) relay: usize,
    /// When it has to have got it.
    pub(super) by: Time,
    pub(super) got: Option<Time>,
    pub(super) is_judged: bool,
    /// What has left it out, if something has.
    pub(super) left_out: Option<Cause>,
}

/// An update that is under way or was so lately.
pub(super) struct Update {
    pub(super) at: Time,
    /// Who, and in which of its epochs.
    pub(super) publisher: (usize, u32),
    pub(super) src: Address,
    pub(super) dst: Address,
    pub(super) level: Level,
    /// Whether its publisher has marked it so.
    pub(super) is_important: bool,
    pub(super) comtree: Comtree,
    pub(super) relay: usize,
    /// Whether its relay takes it: one that has started anew does not take what its old sessions send.
    pub(super) is_taken: bool,
    pub(super) due: Vec<Due>,
    /// Who got it without having to, in which of its epochs, and when.
    pub(super) others: Vec<(usize, u32, Time)>,
    /// Where a datagram with it was lost.
    pub(super) lost: Vec<(usize, Direction)>,
    /// The shaped links that it was sent over, and when.
    pub(super) over: Vec<(Hop, Time)>,
}

impl Update {
    /// Whether it goes before all that is not.
    pub(super) fn is_urgent(&self) -> bool {
        self.is_important || !self.dst.is_group()
    }
}

/// What has left out an update for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Link(Hop),
    /// What the receiver may be sent.
    Budget,
}
