//! Updates: those that come in and those that go out.

use crate::{Epoch, Participant};
use bytes::Bytes;
use canopy_wire::{Address, Flags, Group, Level, ROAMING, Record, Weight};

/// An update that was received.
///
/// ```no_run
/// # async fn hear(world: canopy_client::Client) -> Result<(), canopy_client::PublishError> {
/// use canopy_client::Group;
///
/// const CHAT: Group = Group::new(1);
/// while let Some(update) = world.recv().await {
///     match update.group {
///         Some(CHAT) => println!("{}: {}", update.from, String::from_utf8_lossy(&update.payload)),
///         Some(group) => println!("{} bytes from {} to group {group}", update.payload.len(), update.from),
///         // It was sent to this client alone.
///         None => world.reply_to(&update, b"I have heard you")?,
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Update {
    /// Its publisher.
    pub from: Participant,
    /// The group that it was published to; `None` if it was sent to this client alone.
    pub group: Option<Group>,
    /// Its number among its publisher's updates, modulo 2¹⁶. The same number again within a short
    /// time is a copy that the network made; a gap is a loss, unless the publisher also sends to
    /// groups that this client is not subscribed to, or the relay leaves out what exceeds this client's
    /// budget.
    pub series: u16,
    /// Its level.
    pub level: Level,
    /// How much it matters to its publisher.
    pub weight: Weight,
    /// Which of its publisher's objects it is about; 0 where the publisher has said nothing.
    pub object: u16,
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
    pub(crate) weight: Weight,
    pub(crate) object: u16,
    pub(crate) payload: &'a [u8],
    pub(crate) flags: Flags,
    pub(crate) epoch: Option<Epoch>,
}

impl<'a> Outgoing<'a> {
    /// An update for those who are subscribed to `group` at `level` or above.
    pub fn new(group: Group, level: Level, payload: &'a [u8]) -> Outgoing<'a> {
        Outgoing::on(group.address(), level, payload)
    }

    /// An update for one participant.
    pub fn to(participant: Participant, payload: &'a [u8]) -> Outgoing<'a> {
        Outgoing::on(participant.address(), Level(0), payload)
    }

    fn on(dst: Address, level: Level, payload: &'a [u8]) -> Outgoing<'a> {
        let (flags, weight, object, epoch) = (Flags::default(), Weight::ONE, 0, None);
        Outgoing { dst, level, weight, object, payload, flags, epoch }
    }

    /// It as it goes out, with its number.
    pub(crate) fn record(&self, series: u16) -> Record<'a> {
        let Outgoing { dst, level, weight, object, payload, flags, .. } = *self;
        Record { flags, level, weight, object, ..Record::new(dst, series, payload) }
    }

    /// Is about this one of the publisher's objects, for example of the characters that a server moves.
    /// Where a receiver's budget is too small for everything, each object of a publisher has a share of
    /// its own, and only its newest update counts. Without this, all updates of the publisher to the
    /// group are taken to be about one thing.
    pub fn object(self, object: u16) -> Outgoing<'a> {
        Outgoing { object, ..self }
    }

    /// Is about this one of the publisher's objects, below 32,768, which *roams*: it is in one group at a time, as
    /// a character is that walks through areas with a group each. Where a receiver's budget is too small for
    /// everything, what is said of it in one group takes the place of what waits of it in another, and it has one
    /// share in all. [`Update::object`] shows it with [`ROAMING`] set. What else is said of the object, to other
    /// groups and beside that, needs another number.
    pub fn roaming(self, object: u16) -> Outgoing<'a> {
        self.object(object | ROAMING)
    }

    /// Has so much weight beside the other updates to the group, for example for the size of what it is
    /// about; 1 without this.
    pub fn weight(self, weight: Weight) -> Outgoing<'a> {
        Outgoing { weight, ..self }
    }

    /// Is left out only where everything else was.
    pub fn important(self) -> Outgoing<'a> {
        self.weight(Weight::IMPORTANT)
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
