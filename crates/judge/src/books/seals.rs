//! Who sealed what under which number: neither side seals two packets of a session with one, nor the
//! relay two of a comtree with one group key's. Who sees two such packets learns the cipher's key stream,
//! and with AES-GCM can forge.

use crate::conduct::Nonce;
use canopy_wire::{SessionId, Tag};
use std::collections::BTreeMap;

/// What sealed a packet: a number holds once in it. A packet's number names its epoch's key, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seal {
    /// A session's participant, or its relay.
    Session { session: SessionId, nonce: Nonce, is_relays: bool },
    /// A group key, by how many were made before it.
    Group(u64),
}

/// The tags of what was sealed, by number. The same packet may arrive several times.
#[derive(Debug, Default)]
pub(super) struct Seals {
    tags: BTreeMap<Seal, BTreeMap<u32, Tag>>,
}

/// How many numbers of each are remembered, the highest: as many as a replay window holds.
const KEPT: usize = 1024;

impl Seals {
    /// Notes a packet that opens. Returns whether another was sealed with its number.
    #[must_use]
    pub(super) fn has_another(&mut self, by: Seal, number: u32, tag: Tag) -> bool {
        let tags = self.tags.entry(by).or_default();
        let known = *tags.entry(number).or_insert(tag);
        if tags.len() > KEPT {
            tags.pop_first();
        }
        known != tag
    }

    /// A session is over: nothing of it is sealed any more.
    pub(super) fn forget(&mut self, session: SessionId, nonce: Nonce) {
        for is_relays in [false, true] {
            self.tags.remove(&Seal::Session { session, nonce, is_relays });
        }
    }

    /// A group key is forgotten.
    pub(super) fn forget_group_key(&mut self, made: u64) {
        self.tags.remove(&Seal::Group(made));
    }
}

/// The number of a sealed packet, as far as it travels, and its tag.
pub(super) fn number_and_tag(datagram: &[u8]) -> Option<(u32, Tag)> {
    let number = datagram.get(4..8)?.first_chunk()?;
    Some((u32::from_be_bytes(*number), *datagram.last_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_for_one_packet_of_one_seal() {
        let mut seals = Seals::default();
        let session = SessionId::new(1);
        let by = |nonce, is_relays| Seal::Session { session, nonce, is_relays };
        for seal in [by(1, false), by(1, true), by(2, false), Seal::Group(0), Seal::Group(1)] {
            assert!(!seals.has_another(seal, 7, [1; 16]));
            assert!(!seals.has_another(seal, 7, [1; 16]), "the same packet again");
            assert!(seals.has_another(seal, 7, [2; 16]));
        }
        seals.forget(session, 1);
        assert!(!seals.has_another(by(1, true), 7, [2; 16]));
        assert!(seals.has_another(by(2, false), 7, [2; 16]));
        // Only the highest numbers are remembered.
        (0..2_000).for_each(|number| assert!(!seals.has_another(by(3, true), number, [1; 16])));
        assert_eq!(seals.tags[&by(3, true)].len(), KEPT);
        assert!(seals.has_another(by(3, true), 1_999, [2; 16]));
    }
}
