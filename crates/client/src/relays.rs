//! The relays that a client may ask, and what became of asking them.

use crate::ConnectError;
use canopy_wire::{Comtree, RefusedReason};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

/// A relay as the application names it: `host:port`, or an IP address with a port.
#[derive(Clone, Debug)]
pub(crate) struct RelayName(pub(crate) String);

/// Relays to ask in turn, never none of them.
pub(crate) struct Relays {
    all: Vec<Relay>,
    current: usize,
    /// Where this round of asking began: at the relay that the client was last connected to.
    first: usize,
}

struct Relay {
    address: SocketAddr,
    answer: Answer,
}

/// What a relay that did not take the client did instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing.
    Silence,
    /// Its host said that nothing listens on the port.
    NothingListens,
    /// It answered in another version of the protocol, or in none.
    OtherVersion,
    /// It refused.
    Refused(RefusedReason),
}

impl RelayName {
    /// The error of a name that has no address.
    pub(crate) fn unresolved(&self, source: io::Error) -> ConnectError {
        ConnectError::Unresolved { relay: self.0.clone(), source }
    }

    /// Checks what was found for the name.
    pub(crate) fn resolved(
        &self,
        found: io::Result<impl Iterator<Item = SocketAddr>>,
    ) -> Result<Vec<SocketAddr>, ConnectError> {
        let addresses: Vec<_> = found.map_err(|error| self.unresolved(error))?.collect();
        if addresses.is_empty() {
            return Err(self.unresolved(ErrorKind::NotFound.into()));
        }
        Ok(addresses)
    }
}

impl Relays {
    /// Relays at these addresses; `None` if there are none.
    pub(crate) fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Option<Relays> {
        let relay = |address| Relay { address, answer: Answer::Silence };
        let mut all: Vec<Relay> = Vec::new();
        for address in addresses {
            if all.iter().all(|relay| relay.address != address) {
                all.push(relay(address));
            }
        }
        (!all.is_empty()).then_some(Relays { all, current: 0, first: 0 })
    }

    /// The relay that is being asked.
    pub(crate) fn current(&self) -> SocketAddr {
        self.all[self.current].address
    }

    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// Turns to the next relay. Returns whether a round is over: all have been asked.
    pub(crate) fn turn(&mut self) -> bool {
        self.current = (self.current + 1) % self.all.len();
        self.current == self.first
    }

    /// The current relay has taken the client.
    pub(crate) fn note_connected(&mut self) {
        self.first = self.current;
        self.all.iter_mut().for_each(|relay| relay.answer = Answer::Silence);
    }

    /// Notes what the current relay did.
    pub(crate) fn note(&mut self, answer: Answer) {
        self.all[self.current].answer = answer;
    }

    /// Whether each of them has refused.
    pub(crate) fn have_all_refused(&self) -> bool {
        self.all.iter().all(|relay| matches!(relay.answer, Answer::Refused(_)))
    }

    /// Why none of them has taken the client.
    pub(crate) fn error(&self, comtree: Comtree, waited: Duration) -> ConnectError {
        let mut errors: Vec<_> =
            self.all.iter().map(|relay| relay.error(comtree, waited)).collect();
        match errors.len() {
            1 => errors.remove(0),
            _ => ConnectError::NoneOf { errors },
        }
    }
}

impl Relay {
    fn error(&self, comtree: Comtree, waited: Duration) -> ConnectError {
        let relay = self.address;
        let unreachable =
            |nothing_listens| ConnectError::Unreachable { relay, waited, nothing_listens };
        match self.answer {
            Answer::Silence => unreachable(false),
            Answer::NothingListens => unreachable(true),
            Answer::OtherVersion => ConnectError::Incompatible { relay },
            Answer::Refused(reason) => ConnectError::Refused { relay, comtree, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relays(ports: &[u16]) -> Relays {
        Relays::new(ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port)))).unwrap()
    }

    #[test]
    fn a_round_ends_where_it_began() {
        let mut relays = relays(&[1, 2, 2, 3]);
        let mut turn = || (relays.turn(), relays.current().port());
        assert_eq!([turn(), turn(), turn()], [(false, 2), (false, 3), (true, 1)]);
        assert_eq!(turn(), (false, 2));
        relays.note_connected();
        assert_eq!((relays.turn(), relays.turn(), relays.turn()), (false, false, true));
    }

    #[test]
    fn the_error_says_what_each_did() {
        let mut relays = relays(&[1, 2]);
        relays.note(Answer::Refused(RefusedReason::Full));
        assert!(!relays.have_all_refused());
        relays.turn();
        relays.note(Answer::NothingListens);
        let text = relays.error(Comtree(1), Duration::from_secs(5)).to_string();
        assert!(text.contains("127.0.0.1:1 refused") && text.contains("nothing listens"), "{text}");
        relays.note(Answer::Refused(RefusedReason::Draining));
        assert!(relays.have_all_refused());
    }
}
