//! What decides how updates are laid out for a receiver.

use canopy_wire::{MAX_DATAGRAM, SAFE_DATAGRAM};

/// What a port may be sent, by who is at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerClass {
    /// Gets what it subscribed to, as the last on the way.
    Participant,
    /// Forwards further along the tree.
    TreeNeighbour,
    /// Forwards further too, but gets nothing that came from a core peer.
    CorePeer,
}

/// How long the datagrams may be that a port's path takes. There are few classes, so that many
/// receivers share a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramClass {
    /// As long as every path takes.
    Safe,
    /// As long as there are.
    Long,
}

impl DatagramClass {
    /// The class of a path that takes datagrams of so many bytes.
    pub(crate) fn of(max_datagram: u16) -> DatagramClass {
        let is_long = usize::from(max_datagram) >= MAX_DATAGRAM;
        if is_long { DatagramClass::Long } else { DatagramClass::Safe }
    }

    /// The longest datagram in bytes.
    pub(crate) fn max_datagram(self) -> usize {
        match self {
            DatagramClass::Safe => SAFE_DATAGRAM,
            DatagramClass::Long => MAX_DATAGRAM,
        }
    }
}

/// What decides how updates are laid out for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) class: PeerClass,
    pub(crate) datagrams: DatagramClass,
}
