//! Tickets: what brings a participant its address back, also from a relay that has started anew and
//! remembers nobody. A relay that keeps its key in a file knows its tickets again by that key.

use crate::curve::PublicKey;
use crate::primitives::Identity;
use crate::secret::{derive, equal};
use canopy_wire::{Address, Comtree, Tag, Ticket};
use ring::hmac;

/// How long a ticket is taken, in seconds: a month, because a session keeps the ticket that it
/// began with, and a relay may be restarted late in a long session.
const LIFETIME: u64 = 30 * 24 * 3600;

/// Whose an address is: what a ticket says, and what it is good together with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat<'a> {
    pub(crate) comtree: Comtree,
    pub(crate) address: Address,
    /// Only who has the private key to this one gets the address back.
    pub(crate) participant: &'a PublicKey,
}

/// Makes tickets, and knows them again.
#[derive(Clone)]
pub(crate) struct TicketOffice {
    key: [u8; 32],
}

impl TicketOffice {
    pub(crate) fn new(relay: &Identity) -> TicketOffice {
        TicketOffice { key: derive(relay.private(), b"canopy tickets") }
    }

    /// The ticket for a seat, made at this time in Unix seconds.
    pub(crate) fn make(&self, seat: &Seat<'_>, made: u64) -> Ticket {
        let made = u32::try_from(made).unwrap_or(u32::MAX);
        let tag = self.tag(seat, made);
        let mut bytes = [0; 4 + 4 + size_of::<Tag>()];
        bytes[..4].copy_from_slice(&made.to_be_bytes());
        bytes[4..8].copy_from_slice(&seat.address.0.to_be_bytes());
        bytes[8..].copy_from_slice(&tag);
        Ticket::new(&bytes).unwrap_or_default()
    }

    /// The address that `ticket` gives `participant` on `comtree`, if it was made here for them and
    /// is still taken at this time in Unix seconds. The clock may have been set back since.
    pub(crate) fn read(
        &self,
        ticket: &[u8],
        comtree: Comtree,
        participant: &PublicKey,
        now: u64,
    ) -> Option<Address> {
        let (made, rest) = ticket.split_first_chunk()?;
        let (address, tag) = rest.split_first_chunk()?;
        let made = u32::from_be_bytes(*made);
        let address = Address(u32::from_be_bytes(*address));
        let expected = self.tag(&Seat { comtree, address, participant }, made);
        let is_ours = equal(tag.try_into().ok()?, &expected);
        (is_ours && now.abs_diff(made.into()) <= LIFETIME).then_some(address)
    }

    fn tag(&self, seat: &Seat<'_>, made: u32) -> Tag {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.key);
        let mut signer = hmac::Context::with_key(&key);
        signer.update(&made.to_be_bytes());
        signer.update(&seat.comtree.0.to_be_bytes());
        signer.update(&seat.address.0.to_be_bytes());
        signer.update(seat.participant);
        let mut tag = Tag::default();
        let len = tag.len();
        tag.copy_from_slice(&signer.sign().as_ref()[..len]);
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;
    const SEAT: Seat<'_> =
        Seat { comtree: Comtree(3), address: Address(0x0001_0042), participant: &[7; 32] };

    fn office() -> TicketOffice {
        TicketOffice::new(&Identity::new([1; 32]))
    }

    fn read(ticket: &Ticket, now: u64) -> Option<Address> {
        office().read(ticket.bytes(), SEAT.comtree, SEAT.participant, now)
    }

    #[test]
    fn a_ticket_is_taken_by_a_later_life_of_the_relay_and_by_no_other() {
        let ticket = office().make(&SEAT, NOW);
        assert_eq!(read(&ticket, NOW + 5), Some(SEAT.address));
        let other = TicketOffice::new(&Identity::new([2; 32]));
        assert_eq!(other.read(ticket.bytes(), SEAT.comtree, SEAT.participant, NOW), None);
    }

    #[test]
    fn a_ticket_is_good_for_its_owner_on_its_comtree_alone() {
        let ticket = office().make(&SEAT, NOW);
        assert_eq!(office().read(ticket.bytes(), SEAT.comtree, &[8; 32], NOW), None);
        assert_eq!(office().read(ticket.bytes(), Comtree(4), SEAT.participant, NOW), None);
    }

    #[test]
    fn any_change_of_a_ticket_is_found() {
        let ticket = office().make(&SEAT, NOW);
        for at in 0..ticket.bytes().len() {
            let mut altered = ticket.bytes().to_vec();
            altered[at] ^= 1;
            assert_eq!(read(&Ticket::new(&altered).unwrap(), NOW), None, "byte {at}");
            assert_eq!(read(&Ticket::new(&ticket.bytes()[..at]).unwrap(), NOW), None, "{at} bytes");
        }
    }

    #[test]
    fn a_ticket_is_taken_for_a_month_and_when_the_clock_was_set_back() {
        let ticket = office().make(&SEAT, NOW);
        for (now, is_taken) in [
            (NOW + LIFETIME, true),
            (NOW + LIFETIME + 1, false),
            (NOW - LIFETIME, true),
            (NOW - LIFETIME - 1, false),
        ] {
            assert_eq!(read(&ticket, now).is_some(), is_taken, "{now}");
        }
    }
}
