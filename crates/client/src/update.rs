//! Updates: those that come in and those that go out.

use crate::{Epoch, Participant};
use bytes::Bytes;
use canopy_wire::{Address, Flags, Group, Level};

/// An update that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Update {
    /// Its publisher.
    pub from: Participant,
    /// The group that it was published to; `None` if it was sent to this client alone.
    pub group: Option<Group>,
    /// Its number among its publisher's updates, modulo 2¹⁶. The same number again within a short
    /// time is a copy that the network made; a gap is a loss, unless the publisher also sends to
    /// groups that this client is not subscribed to.
    pub series: u16,
    /// Its level.
    pub level: Level,
    /// Its bytes. Cloning them is cheap. Updates that came in one datagram share its memory, at
    /// most 1.5 kB, for as long as one of them is kept.
    pub payload: Bytes,
    /// The client's session in which it came. [`Update::from`] means its publisher within this
    /// epoch; later the address may be another's, see [`Participant`].
    pub epoch: Epoch,
}

/// An update to publish: to whom, and how.
///
/// ```no_run
/// # async fn tick(world: canopy_client::Client, player: canopy_client::Participant)
/// # -> Result<(), canopy_client::PublishError> {
/// use canopy_client::{Group, Level, Outgoing};
///
/// const SQUARE: Group = Group::new(7);
/// // To a group and to one participant, in one datagram and one system call.
/// world.publish_many([
///     Outgoing::new(SQUARE, Level(0), b"for all"),
///     Outgoing::new(SQUARE, Level(1), b"for those who want detail"),
///     Outgoing::to(player, b"for you"),
/// ])
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an update goes out with `publish_with` or `publish_many`"]
pub struct Outgoing<'a> {
    pub(crate) dst: Address,
    pub(crate) level: Level,
    pub(crate) payload: &'a [u8],
    pub(crate) flags: Flags,
    pub(crate) epoch: Option<Epoch>,
}

impl<'a> Outgoing<'a> {
    /// An update for those who are subscribed to `group` at `level` or above.
    pub fn new(group: Group, level: Level, payload: &'a [u8]) -> Outgoing<'a> {
        let flags = Flags::default();
        Outgoing { dst: group.address(), level, payload, flags, epoch: None }
    }

    /// An update for one participant.
    pub fn to(participant: Participant, payload: &'a [u8]) -> Outgoing<'a> {
        let (dst, flags) = (participant.address(), Flags::default());
        Outgoing { dst, level: Level(0), payload, flags, epoch: None }
    }

    /// An answer to the publisher of `update`, and to nobody else: it is refused once the client
    /// has reconnected, when the address may be another's.
    pub fn reply(update: &Update, payload: &'a [u8]) -> Outgoing<'a> {
        Outgoing::to(update.from, payload).only_in(update.epoch)
    }

    /// Comes back to its publisher too, if that is subscribed to the group.
    pub fn echo(self) -> Outgoing<'a> {
        Outgoing { flags: Flags::ECHO, ..self }
    }

    /// Is refused with [`PublishError::Stale`](crate::PublishError::Stale) unless the client is in
    /// this epoch when it would be sent.
    pub fn only_in(self, epoch: Epoch) -> Outgoing<'a> {
        Outgoing { epoch: Some(epoch), ..self }
    }
}
