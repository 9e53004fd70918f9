//! How a data thread's part of the overlay stands, for whoever runs the relay.

use crate::changes::{BranchId, BranchRole};
use canopy_session::PublicKey;
use canopy_wire::{Address, Comtree, Group, Level};
use core::net::SocketAddr;
use core::time::Duration;

/// How a link stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkStatus {
    /// The neighbour's key.
    pub key: PublicKey,
    /// The data thread that has the link.
    pub thread: u16,
    /// Where the neighbour is: where it was last heard from, or is to be called.
    pub remote: SocketAddr,
    /// Whether this relay calls.
    pub calls: bool,
    /// Whether both sides hear each other.
    pub is_up: bool,
    /// How often it has come up.
    pub ups: u32,
    /// The way there and back, smoothed; `None` before it was measured.
    pub round_trip: Option<Duration>,
    /// The share of the neighbour's datagrams that are lost on the way here, 0 to 1.
    pub loss_in: f32,
    /// The share of this relay's that are lost on the way there, as the neighbour has measured it.
    pub loss_out: f32,
    /// Bits a second from the neighbour, of UDP payload.
    pub bits_in: u64,
    /// Bits a second to the neighbour.
    pub bits_out: u64,
    /// The longest datagram in bytes that both sides take.
    pub max_datagram: u16,
}

/// How a branch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchStatus {
    /// Which.
    pub id: BranchId,
    /// What the neighbour is to this relay.
    pub role: BranchRole,
    /// The neighbour's site.
    pub site: u16,
    /// Whether its link is up.
    pub is_up: bool,
    /// Groups that the neighbour has subscribed to here.
    pub subscribed: u32,
    /// If it is the parent: groups that this relay has subscribed to there, those on the way included.
    pub subscribes: u32,
    /// How many of them have changes that the parent has not acknowledged yet.
    pub unacknowledged: u32,
    /// Bits a second of updates that are there for the neighbour, smoothed.
    pub bits_offered: u64,
    /// Bits a second of updates that the neighbour is sent, smoothed.
    pub bits_out: u64,
    /// Bits a second that it may be sent now, of a link whose capacity is known; 0 is no limit.
    pub bits_allowed: u64,
}

/// The way to what is not at this data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Over the branch with this neighbour.
    Branch(PublicKey),
    /// To the relay's data thread with this number.
    Thread(u16),
}

/// One learned route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteStatus {
    /// The comtree.
    pub comtree: Comtree,
    /// An endpoint of the relay's own site or of a portable one; or any address of another site, with endpoint 0.
    pub to: Address,
    /// The way there.
    pub via: Via,
    /// How long ago something came from there; `None` if another data thread has it.
    pub heard: Option<Duration>,
}

/// Who is subscribed to a group at a data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The comtree.
    pub comtree: Comtree,
    /// The group.
    pub group: Group,
    /// Participants.
    pub participants: u32,
    /// Branches.
    pub branches: u32,
    /// The highest level among them.
    pub highest: Level,
}
