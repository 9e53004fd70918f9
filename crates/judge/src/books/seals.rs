//! Who sealed what: the two sides of each session, and the group keys.

use super::Verdict;
use crate::conduct::Nonce;
use crate::side::Sealed;
use canopy_wire::SessionId;
use std::collections::BTreeMap;

/// What sealed a packet: a number holds once in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seal {
    /// A session's participant, or its relay.
    Session { session: SessionId, nonce: Nonce, is_relays: bool },
    /// A group key, by how many were made before it.
    Group(u64),
}

/// What each has sealed.
#[derive(Debug, Default)]
pub(super) struct Seals {
    of: BTreeMap<Seal, Sealed>,
}

impl Seals {
    /// A packet that opens is sent in this turn.
    ///
    /// # Errors
    /// Those of [`Sealed::sent`].
    pub(super) fn sent(&mut self, turn: u64, by: Seal, datagram: &[u8]) -> Verdict {
        let sent = self.of.entry(by).or_default().sent(turn, datagram);
        sent.map_err(|what| format!("{what} by {by:?}"))
    }

    /// A packet that opens has come, in whatever order.
    ///
    /// # Errors
    /// Those of [`Sealed::came`].
    pub(super) fn came(&mut self, by: Seal, datagram: &[u8]) -> Verdict {
        let came = self.of.entry(by).or_default().came(datagram);
        came.map_err(|what| format!("{what} by {by:?}"))
    }

    /// A session is over: nothing of it is sealed any more.
    pub(super) fn forget(&mut self, session: SessionId, nonce: Nonce) {
        for is_relays in [false, true] {
            self.of.remove(&Seal::Session { session, nonce, is_relays });
        }
    }

    /// A group key is forgotten.
    pub(super) fn forget_group_key(&mut self, made: u64) {
        self.of.remove(&Seal::Group(made));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_numbers_of_its_own() {
        let mut seals = Seals::default();
        let session = SessionId::new(1);
        let by = |nonce, is_relays| Seal::Session { session, nonce, is_relays };
        for seal in [by(1, false), by(1, true), by(2, false), Seal::Group(0), Seal::Group(1)] {
            assert_eq!(seals.came(seal, &[1; 32]), Ok(()));
            assert_eq!(seals.came(seal, &[1; 32]), Ok(()), "the same packet again");
            assert!(seals.came(seal, &[&[1; 16][..], &[2; 16]].concat()).is_err());
        }
        seals.forget(session, 1);
        seals.forget_group_key(1);
        let other = [&[1; 16][..], &[2; 16]].concat();
        assert_eq!(seals.came(by(1, true), &other), Ok(()));
        assert_eq!(seals.came(Seal::Group(1), &other), Ok(()));
        assert!(seals.came(by(2, false), &other).is_err());
    }
}
