//! A relay that asks a neighbour for a link is on the participant's side of the handshake, up to
//! its keys. From then on the link is a session of the relay's own, like those of its participants:
//! [`Sessions::link_up`](crate::Sessions::link_up).

use super::{Call, Keys, Session, State};
use crate::curve::PublicKey;
use crate::seal::{Opener, Sealer};
use canopy_wire::{Kind, Packet, SessionId, Time, WireError};

/// What a link's session begins with at the relay that called.
pub struct LinkKeys {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// The number that packets to the neighbour carry.
    pub(crate) peer: SessionId,
    pub(crate) neighbour: Option<PublicKey>,
    pub(crate) nonce: u64,
    /// The longest datagram in bytes that either side sends.
    pub max_datagram: u16,
}

impl Call {
    /// A nonce by which the answers, which carry its low bits, are steered to the data thread that
    /// calls.
    pub(super) fn steered(self, nonce: u64) -> u64 {
        let threads = self.threads.max(1);
        let drawn = SessionId::new(nonce as u32);
        // One place less than there are, so that it is never the number of no session.
        let place = drawn.place(threads) % (SessionId::places(threads) - 1).max(1);
        let own = self.session.thread(threads);
        let low = SessionId::at(place, drawn.lane(), own, threads);
        (nonce & !u64::from(SessionId::COUNT)) | u64::from(low.number())
    }
}

impl Session {
    /// Handles an answer to the call.
    ///
    /// # Errors
    /// What is wrong with it. It has changed nothing then, except that a neighbour which answers
    /// with what this release cannot use is called again later.
    pub fn handle_answer(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), WireError> {
        self.handle_in_clear(now, packet)
    }

    /// Whether a packet answers what the call sent last: a cookie, connected or refused.
    pub fn is_answered_by(&self, packet: &Packet<'_>) -> bool {
        let answers = [Kind::Cookie, Kind::Connected, Kind::Refused];
        let nonce = packet.payload().first_chunk::<8>();
        answers.contains(&packet.header().kind)
            && matches!(self.state, State::Greeting | State::Connecting)
            && nonce.is_some_and(|nonce| u64::from_be_bytes(*nonce) == self.nonce)
    }

    /// The link that the neighbour agreed to, once. The next poll calls anew.
    pub fn take_link(&mut self) -> Option<LinkKeys> {
        let is_up = self.state == State::Connected;
        let Keys { sealer, opener, .. } = *self.keys.take().filter(|_| is_up)?;
        self.enter(State::Greeting, Time::ZERO);
        Some(LinkKeys {
            sealer,
            opener,
            peer: self.id,
            neighbour: self.config.relay_key,
            nonce: self.nonce,
            max_datagram: self.max_datagram as u16,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::Lane;

    #[test]
    fn answers_are_steered_to_the_data_thread_that_calls() {
        for threads in [1, 2, 3, 7, 64] {
            for own in [0, threads - 1] {
                let session = SessionId::at(5, Lane::CONTROL, own, threads);
                let call = Call { session, threads, thread: 0 };
                for nonce in
                    [0, 1, 0xff_ffff, 0x7f_ffff, 0x80_0000, u64::MAX, 0x0123_4567_89ab_cdef]
                {
                    let steered = call.steered(nonce);
                    assert_eq!(steered >> 24, nonce >> 24, "the rest stays as it was drawn");
                    let low = SessionId::new(steered as u32);
                    assert_eq!(low.thread(threads), own, "{nonce:x}");
                    assert_ne!(low, SessionId::NONE);
                }
            }
        }
    }
}
