//! One side of a session, as whoever stands between the two sees it who has all its keys: each packet is
//! sealed with a number of its own, later than all that were sent before.
//!
//! Whoever sees two packets with one key and number learns the cipher's key stream, and with AES-GCM can
//! forge.

use canopy_session::Reader;
use canopy_wire::Tag;
use std::collections::BTreeMap;

/// How many numbers are remembered, the highest: as many as a replay window holds.
const KEPT: usize = 1024;

/// What was sealed with one secret. A packet's number names its epoch's key, too.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    /// The tags, by number. The same packet may arrive several times, and what is sealed for many is
    /// sent several times.
    tags: BTreeMap<u32, Tag>,
    /// The turn in which something of it was sent last, and the highest number before that.
    turn: u64,
    before: Option<u32>,
}

impl Sealed {
    /// A packet that opens is sent in this turn. Within a turn the order may be another than that of
    /// sealing: what a relay answers to a path that is not proved leaves last.
    ///
    /// # Errors
    /// Another was sealed with its number, or one with a later number was sent in an earlier turn.
    pub(crate) fn sent(&mut self, turn: u64, datagram: &[u8]) -> Result<(), String> {
        let Some((number, _)) = number_and_tag(datagram) else { return Ok(()) };
        if self.turn != turn {
            let last = self.tags.last_key_value().map(|(last, _)| *last);
            (self.turn, self.before) = (turn, last);
        }
        let is_known = self.tags.contains_key(&number);
        if let Some(last) = self.before.filter(|last| number <= *last && !is_known) {
            return Err(format!("number {number} was sent after number {last}"));
        }
        self.came(datagram)
    }

    /// A packet that opens has come, in whatever order.
    ///
    /// # Errors
    /// Another was sealed with its number.
    pub(crate) fn came(&mut self, datagram: &[u8]) -> Result<(), String> {
        let Some((number, tag)) = number_and_tag(datagram) else { return Ok(()) };
        let known = *self.tags.entry(number).or_insert(tag);
        if self.tags.len() > KEPT {
            self.tags.pop_first();
        }
        if known != tag {
            return Err(format!("two packets were sealed with number {number}"));
        }
        Ok(())
    }
}

/// The number of a sealed packet, as far as it travels, and its tag.
fn number_and_tag(datagram: &[u8]) -> Option<(u32, Tag)> {
    let number = datagram.get(4..8)?.first_chunk()?;
    Some((u32::from_be_bytes(*number), *datagram.last_chunk()?))
}

/// One side of a session or of a link.
#[derive(Debug)]
pub struct Side {
    reader: Reader,
    sealed: Sealed,
}

impl Side {
    /// One that has sealed nothing yet.
    pub fn new(reader: Reader) -> Side {
        Side { reader, sealed: Sealed::default() }
    }

    /// What is in a datagram, if this side sealed it.
    pub fn read(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        self.reader.peek(datagram)
    }

    /// It sends a datagram in this turn, that it has sealed. Returns whether that is the first of another
    /// key.
    ///
    /// # Errors
    /// Its number was another's, or is not later than all that were sent in earlier turns.
    pub fn sends(&mut self, turn: u64, datagram: &[u8]) -> Result<bool, String> {
        self.sealed.sent(turn, datagram)?;
        Ok(self.reader.follow(datagram))
    }

    /// Seals what is in a datagram anew, as [`Reader::seal_as`] does: so that who checks can be checked.
    pub fn seal_as(&self, datagram: &[u8], number: u32) -> Option<Vec<u8>> {
        self.reader.seal_as(datagram, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram as far as it counts.
    fn sealed(number: u32, tag: u8) -> Vec<u8> {
        [&[0; 4][..], &number.to_be_bytes(), &[tag; 24]].concat()
    }

    #[test]
    fn one_number_is_for_one_packet() {
        let mut one = Sealed::default();
        assert_eq!(one.came(&sealed(7, 1)), Ok(()));
        assert_eq!(one.came(&sealed(7, 1)), Ok(()), "the same packet again");
        assert_eq!(one.sent(1, &sealed(7, 1)), Ok(()));
        assert!(one.came(&sealed(7, 2)).is_err());
        // Only the highest numbers are remembered.
        let mut other = Sealed::default();
        (0..2_000).for_each(|number| assert_eq!(other.came(&sealed(number, 1)), Ok(())));
        assert_eq!(other.tags.len(), KEPT);
        assert!(other.came(&sealed(1_999, 2)).is_err());
    }

    #[test]
    fn whoever_seals_counts_upwards() {
        let mut one = Sealed::default();
        for number in (0..3_000).filter(|number| number % 7 != 0) {
            assert_eq!(one.sent(number.into(), &sealed(number, 1)), Ok(()));
        }
        // The same bytes go to the next of many.
        assert_eq!(one.sent(3_000, &sealed(2_990, 1)), Ok(()));
        for back in [0, 1, 7, 2_989, 2_990] {
            assert!(one.sent(3_000, &sealed(back, 2)).is_err(), "{back}");
        }
        for number in [3_003, 3_001] {
            assert_eq!(one.sent(3_001, &sealed(number, 2)), Ok(()), "in one turn");
        }
        assert!(one.sent(3_002, &sealed(3_002, 2)).is_err());
    }
}
