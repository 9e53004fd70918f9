//! Who sealed what under which number: neither side seals two packets of a session with one, nor the
//! relay two of a comtree with one group key's. Who sees two such packets learns the cipher's key stream,
//! and with AES-GCM can forge.

use super::Verdict;
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

/// What was sealed by whom. The same packet may arrive several times, and what is sealed for many is
/// sent several times.
#[derive(Debug, Default)]
pub(super) struct Seals {
    of: BTreeMap<Seal, Sealed>,
}

/// What one side, or one group key, has sealed.
#[derive(Debug, Default)]
struct Sealed {
    /// The tags, by number.
    tags: BTreeMap<u32, Tag>,
    /// The turn in which something of it was sent last, and the highest number before that.
    turn: u64,
    before: Option<u32>,
}

/// How many numbers of each are remembered, the highest: as many as a replay window holds.
const KEPT: usize = 1024;

impl Seals {
    /// A packet that opens is sent in this turn. Within a turn the order may be another than that of
    /// sealing: what a relay answers to a path that is not proved leaves last.
    ///
    /// # Errors
    /// Another was sealed with its number, or one with a later number was sent in an earlier turn.
    pub(super) fn sent(&mut self, turn: u64, by: Seal, number: u32, tag: Tag) -> Verdict {
        let sealed = self.of.entry(by).or_default();
        if sealed.turn != turn {
            let last = sealed.tags.last_key_value().map(|(last, _)| *last);
            (sealed.turn, sealed.before) = (turn, last);
        }
        let is_known = sealed.tags.contains_key(&number);
        if let Some(last) = sealed.before.filter(|last| number <= *last && !is_known) {
            return Err(format!("number {number} was sent after number {last} by {by:?}"));
        }
        self.came(by, number, tag)
    }

    /// A packet that opens has come, in whatever order.
    ///
    /// # Errors
    /// Another was sealed with its number.
    pub(super) fn came(&mut self, by: Seal, number: u32, tag: Tag) -> Verdict {
        let Sealed { tags, .. } = self.of.entry(by).or_default();
        let known = *tags.entry(number).or_insert(tag);
        if tags.len() > KEPT {
            tags.pop_first();
        }
        if known != tag {
            return Err(format!("two packets were sealed with number {number} by {by:?}"));
        }
        Ok(())
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
            assert_eq!(seals.came(seal, 7, [1; 16]), Ok(()));
            assert_eq!(seals.came(seal, 7, [1; 16]), Ok(()), "the same packet again");
            assert_eq!(seals.sent(1, seal, 7, [1; 16]), Ok(()));
            assert!(seals.came(seal, 7, [2; 16]).is_err());
        }
        seals.forget(session, 1);
        assert_eq!(seals.came(by(1, true), 7, [2; 16]), Ok(()));
        assert!(seals.came(by(2, false), 7, [2; 16]).is_err());
        // Only the highest numbers are remembered.
        (0..2_000).for_each(|number| assert_eq!(seals.came(by(3, true), number, [1; 16]), Ok(())));
        assert_eq!(seals.of[&by(3, true)].tags.len(), KEPT);
        assert!(seals.came(by(3, true), 1_999, [2; 16]).is_err());
    }

    #[test]
    fn whoever_seals_counts_upwards() {
        for by in [
            Seal::Session { session: SessionId::new(1), nonce: 1, is_relays: true },
            Seal::Group(0),
        ] {
            let mut seals = Seals::default();
            for number in (0..3_000).filter(|number| number % 7 != 0) {
                assert_eq!(seals.sent(number.into(), by, number, [1; 16]), Ok(()));
            }
            // The same bytes go to the next of many.
            assert_eq!(seals.sent(3_000, by, 2_990, [1; 16]), Ok(()));
            for back in [0, 1, 7, 2_989, 2_990] {
                assert!(seals.sent(3_000, by, back, [2; 16]).is_err(), "{back}");
            }
            for number in [3_003, 3_001] {
                assert_eq!(seals.sent(3_001, by, number, [2; 16]), Ok(()), "in one turn");
            }
            assert!(seals.sent(3_002, by, 3_002, [2; 16]).is_err());
        }
    }
}
