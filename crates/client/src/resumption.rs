//! Coming back as who one was.

use crate::Participant;
use canopy_session::Identity;
use canopy_wire::Ticket;
use core::fmt;

/// With what a client comes back under the address that it had: also another process, after this
/// one has ended, and also from a relay that has started anew, if that keeps its
/// key in a file. See [`ClientBuilder::resume`](crate::ClientBuilder::resume).
///
/// It is good for 30 days, and for the relay that the client was connected to last. **Keep it
/// secret**: whoever has it can take the client's place. Of two clients that use the same one at a
/// time, the later has the address, and the other is sent away.
///
/// ```no_run
/// # fn leave(world: canopy_client::PollClient) -> Result<(), Box<dyn std::error::Error>> {
/// use canopy_client::{PollClient, Resumption};
///
/// // Before the process ends. Keep it where nobody else can read it.
/// let kept: Vec<u8> = world.resumption().map(|it| it.to_bytes()).unwrap_or_default();
/// // In the next process.
/// let resumption = Resumption::try_from(&kept[..])?;
/// let world = PollClient::builder("127.0.0.1:4040").resume(resumption).connect_blocking()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Resumption {
    pub(crate) identity: Identity,
    pub(crate) ticket: Ticket,
    pub(crate) participant: Participant,
}

/// Bytes that are no [`Resumption`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these bytes are no resumption, or one of another release; join without, and keep a new one"
)]
pub struct NoResumption;

/// The first byte: how the rest is laid out.
const LAYOUT: u8 = 1;

impl Resumption {
    /// As bytes, to be kept in a file that nobody else can read.
    pub fn to_bytes(&self) -> Vec<u8> {
        let participant = u32::from(self.participant).to_be_bytes();
        [&[LAYOUT], &self.identity.private()[..], &participant, self.ticket.bytes()].concat()
    }
}

impl TryFrom<&[u8]> for Resumption {
    type Error = NoResumption;

    fn try_from(bytes: &[u8]) -> Result<Resumption, NoResumption> {
        let ([layout], rest) = bytes.split_first_chunk().ok_or(NoResumption)?;
        let (private, rest) = rest.split_first_chunk().ok_or(NoResumption)?;
        let (participant, ticket) = rest.split_first_chunk().ok_or(NoResumption)?;
        let participant = Participant::try_from(u32::from_be_bytes(*participant));
        let ticket = Ticket::new(ticket).filter(|_| *layout == LAYOUT).ok_or(NoResumption)?;
        let participant = participant.map_err(|_| NoResumption)?;
        Ok(Resumption { identity: Identity::new(*private), ticket, participant })
    }
}

impl fmt::Debug for Resumption {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumption").field("participant", &self.participant).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumption_survives_its_bytes_and_nothing_else_is_one() {
        let resumption = Resumption {
            identity: Identity::new([7; 32]),
            ticket: Ticket::new(b"a ticket").unwrap(),
            participant: Participant::new(1, 70).unwrap(),
        };
        let bytes = resumption.to_bytes();
        let again = Resumption::try_from(&bytes[..]).unwrap();
        assert_eq!(again.identity.public(), resumption.identity.public());
        assert_eq!((again.ticket, again.participant), (resumption.ticket, resumption.participant));
        for short in 0..37 {
            assert!(Resumption::try_from(&bytes[..short]).is_err(), "{short} bytes");
        }
        let long = [&bytes[..], &[0; 32]].concat();
        let other_layout = [&[2], &bytes[1..]].concat();
        let nobody = [&bytes[..33], &[0; 4], b"a ticket"].concat();
        for wrong in [long, other_layout, nobody] {
            assert!(Resumption::try_from(&wrong[..]).is_err(), "{wrong:?}");
        }
        assert!(!format!("{resumption:?}").contains("7, 7"), "it tells no secret");
    }
}
