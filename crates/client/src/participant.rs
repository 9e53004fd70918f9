//! Who else is in the world, and since when that is true.

use canopy_wire::Address;
use std::fmt;
use std::str::FromStr;

/// The address of one participant: where an update comes from, and where
/// [`send_to`](crate::PollClient::send_to) sends to. It is never a group and never nobody.
///
/// **An address is lent, not owned.** Who leaves may have it back; nobody else is given it for ten
/// minutes, unless the relay is set otherwise, and what is sent to it meanwhile reaches nobody
/// ([`Event::Gone`](crate::Event::Gone)). So within that time an address that was not known before is
/// a new member's. A relay that is restarted, and keeps its key in a file, gives everyone their
/// address back and begins elsewhere with those of newcomers. But it has forgotten which addresses
/// were resting, a relay without such a file knows nobody again, and another relay never did, unless
/// the address is portable, as those are that a controller gives: then
/// the client's own address changes as well, which `kept_address` of
/// [`Event::Connected`](crate::Event::Connected) tells. What always protects: key what you remember
/// by [`Epoch`] too, or forget it at `Connected`; answer with
/// [`reply_to`](crate::PollClient::reply_to), or publish with
/// [`Outgoing::only_in`](crate::Outgoing::only_in), which refuse an address of an earlier epoch.
///
/// ```
/// use canopy_client::Participant;
///
/// let alice: Participant = "1.57".parse()?;
/// assert_eq!((alice.site(), alice.endpoint()), (1, 57));
/// assert_eq!(alice.to_string(), "1.57");
/// // As a number it fits into a payload.
/// assert_eq!(Participant::try_from(u32::from(alice)), Ok(alice));
/// // Neither nobody nor a group is a participant.
/// assert!(Participant::try_from(0).is_err());
/// assert!(Participant::try_from(1 << 31 | 7).is_err());
/// # Ok::<(), canopy_client::NoSuchParticipant>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Participant(Address);

/// Which of a client's sessions with its relays something belongs to: 1 for the first, one more
/// with each reconnection. Addresses of participants hold within one epoch, and mostly longer: see
/// [`Participant`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// A number or text that names no participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such participant: write SITE.ENDPOINT, with a site up to 32767 and an endpoint from 1")]
pub struct NoSuchParticipant;

const MAX_SITE: u16 = 0x7fff;

impl Participant {
    /// The participant `endpoint` of `site`; `None` for what is no participant's: sites above
    /// 32,767, and endpoint 0, which is the relay's own.
    pub const fn new(site: u16, endpoint: u16) -> Option<Participant> {
        if site > MAX_SITE || endpoint == 0 {
            return None;
        }
        Some(Participant(Address::unicast(site, endpoint)))
    }

    /// The site of the relay that it was at; or a portable one, from 28,672 on, which is no relay's.
    pub const fn site(self) -> u16 {
        self.0.site()
    }

    /// Its number at the site.
    pub const fn endpoint(self) -> u16 {
        self.0.endpoint()
    }

    pub(crate) fn of(address: Address) -> Option<Participant> {
        if address.is_group() {
            return None;
        }
        Participant::new(address.site(), address.endpoint())
    }

    pub(crate) fn address(self) -> Address {
        self.0
    }
}

impl Epoch {
    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl TryFrom<u32> for Participant {
    type Error = NoSuchParticipant;

    fn try_from(number: u32) -> Result<Participant, NoSuchParticipant> {
        Participant::of(Address(number)).ok_or(NoSuchParticipant)
    }
}

impl From<Participant> for u32 {
    fn from(participant: Participant) -> u32 {
        participant.0.0
    }
}

impl fmt::Display for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.site(), self.endpoint())
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads what `Display` writes: site and endpoint with a dot between.
impl FromStr for Participant {
    type Err = NoSuchParticipant;

    fn from_str(text: &str) -> Result<Participant, NoSuchParticipant> {
        let (site, endpoint) = text.split_once('.').ok_or(NoSuchParticipant)?;
        let number = |text: &str| text.parse().map_err(|_| NoSuchParticipant);
        Participant::new(number(site)?, number(endpoint)?).ok_or(NoSuchParticipant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::Group;

    #[test]
    fn only_participants_are_participants() {
        for address in [Address::UNSPECIFIED, Group::new(7).address(), Address::unicast(3, 0)] {
            assert_eq!(Participant::of(address), None, "{address}");
        }
        let last = Participant::new(MAX_SITE, u16::MAX).unwrap();
        assert_eq!(Participant::of(last.address()), Some(last));
        assert_eq!(Participant::new(MAX_SITE + 1, 1), None);
        for text in ["", "1", "1.", ".1", "1.0", "1.2.3", "32768.1", "1.65536", "group 7", "-1.2"] {
            assert_eq!(text.parse::<Participant>(), Err(NoSuchParticipant), "{text:?}");
        }
    }
}
