//! What goes in and out of a client: updates, events, statistics.

use canopy_wire::{Address, Group, Level, RefusedReason};
use std::time::Duration;

/// An update that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Its publisher.
    pub src: Address,
    /// The group, or this client's own address, that it was sent to.
    pub dst: Address,
    /// Its level.
    pub level: Level,
    /// Its bytes.
    pub payload: Vec<u8>,
}

impl Update {
    /// The group that it was published to; `None` if it was sent to this client alone.
    pub fn group(&self) -> Option<Group> {
        self.dst.group()
    }
}

/// An update to publish to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    pub(crate) group: Group,
    pub(crate) level: Level,
    pub(crate) payload: &'a [u8],
    pub(crate) echo: bool,
}

impl<'a> Outgoing<'a> {
    /// An update for those who are subscribed to `group` at `level` or above.
    pub fn new(group: Group, level: Level, payload: &'a [u8]) -> Outgoing<'a> {
        Outgoing { group, level, payload, echo: false }
    }

    /// Comes back to its publisher too, if that is subscribed.
    pub fn echo(self) -> Outgoing<'a> {
        Outgoing { echo: true, ..self }
    }
}

/// Something that happened to the link between client and relay. Nothing needs to be done about
/// most of it: the client goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// In the world again, under this address, which may be another than before. Subscriptions are
    /// being made again.
    Connected(Address),
    /// The relay is silent or going away. The client tries again until it is back.
    Lost,
    /// A relay that was lost does not take the client back, for now. The client asks again.
    Refused(RefusedReason),
    /// The relay had no room for a subscription for which no one awaits the
    /// [`Acknowledgement`](crate::Acknowledgement): one that was made again after a loss, say. It
    /// is over; subscribe again to try again.
    SubscriptionRefused(Group),
    /// The client's ip:port has changed, and it has proved to the relay that it is still the same.
    Rebound,
}

/// What a client has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The last measured round trip to the relay; `None` while not connected, and before the first.
    pub round_trip: Option<Duration>,
    /// How often the world was joined: one more than the reconnections.
    pub connects: u64,
    /// Updates handed to the kernel.
    pub published: u64,
    /// Updates received, those that were dropped for a slow reader included.
    pub received: u64,
    /// Updates of its own that came back although it had not asked for them, and were dropped:
    /// where many get an update, a relay may send it to its publisher too.
    pub echoes: u64,
    /// Updates that the application did not take in time.
    pub dropped_slow_reader: u64,
    /// Events that the application did not take in time.
    pub dropped_events: u64,
    /// Datagrams that were no packets of this protocol and comtree.
    pub malformed: u64,
    /// Updates that wait for [`Client::recv`](crate::Client::recv).
    pub waiting: usize,
    /// Groups that the client wants to be subscribed to.
    pub subscriptions: usize,
}
