//! The packets that bring a comtree's group keys to its members, and the relay the word that they
//! have arrived.

use crate::fields::{Fields, encode};
use crate::{Comtree, Header, Kind, Packet, SessionId, Suite, WireError};

/// The number of a group key: 24 bits, which stand in clear on what the key seals. A data thread
/// gives them out one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKeyNumber(u32);

impl GroupKeyNumber {
    /// No key.
    pub const NONE: GroupKeyNumber = GroupKeyNumber(0xff_ffff);

    /// The key with this number; bits above the 24th are ignored.
    pub const fn new(number: u32) -> GroupKeyNumber {
        GroupKeyNumber(number & 0xff_ffff)
    }

    /// The key that a datagram's first bytes name.
    pub fn of(datagram: &[u8]) -> Option<GroupKeyNumber> {
        let first = datagram.first_chunk::<4>()?;
        Some(GroupKeyNumber::new(u32::from_be_bytes(*first)))
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The number so many later. It begins anew after 2²⁴, and [`GroupKeyNumber::NONE`] is no key's.
    pub const fn after(self, steps: u32) -> GroupKeyNumber {
        GroupKeyNumber((self.0 + steps) % GroupKeyNumber::NONE.0)
    }

    /// Whether it was given out after `other`, as long as there are less than 2²³ between them.
    pub const fn is_later_than(self, other: GroupKeyNumber) -> bool {
        let ahead = self.0.wrapping_sub(other.0) & 0xff_ffff;
        ahead != 0 && ahead < 1 << 23
    }
}

/// A key by which the relay seals updates to groups, for all members of a comtree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GroupKey {
    /// Its number.
    pub number: GroupKeyNumber,
    /// Its cipher.
    pub suite: Suite,
    /// The lowest counter that may be taken: what was sealed before is not for this receiver.
    pub first: u32,
    /// The secret that key and mask are derived from.
    pub secret: [u8; 32],
}

impl core::fmt::Debug for GroupKey {
    /// Without the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "GroupKey({}, {:?}, from {})", self.number.0, self.suite, self.first)
    }
}

/// A participant tells which key it has, so that the relay need not send it again, and which it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupKeyHeld {
    /// The newest key that it has; [`GroupKeyNumber::NONE`] before the first.
    pub newest: GroupKeyNumber,
    /// One that it has met and does not have; [`GroupKeyNumber::NONE`] if there is none.
    pub lacks: GroupKeyNumber,
}

const KEY_LEN: usize = 4 + 1 + 3 + 4 + 32;

impl GroupKey {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let fields: [&[u8]; 4] = [
            &self.number.0.to_be_bytes(),
            &[self.suite as u8, 0, 0, 0],
            &self.first.to_be_bytes(),
            &self.secret,
        ];
        encode(&Header::new(Kind::GroupKey, session, comtree), &fields, 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`], or [`WireError::Field`] for a suite that does not exist.
    pub fn decode(packet: &Packet<'_>) -> Result<GroupKey, WireError> {
        let mut fields = Fields::new(packet, KEY_LEN)?;
        let number = GroupKeyNumber::new(fields.u32()?);
        let [suite, _, _, _] = fields.array()?;
        let suite = Suite::from_number(suite)?;
        Ok(GroupKey { number, suite, first: fields.u32()?, secret: fields.array()? })
    }
}

impl GroupKeyHeld {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = Header::new(Kind::GroupKeyHeld, session, comtree);
        encode(&header, &[&self.newest.0.to_be_bytes(), &self.lacks.0.to_be_bytes()], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<GroupKeyHeld, WireError> {
        let mut fields = Fields::new(packet, 8)?;
        let mut number = || Ok(GroupKeyNumber::new(fields.u32()?));
        Ok(GroupKeyHeld { newest: number()?, lacks: number()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_DATAGRAM, seeded};
    use proptest::prelude::*;

    #[test]
    fn later_numbers_are_known_across_their_end() {
        let last = GroupKeyNumber::new(GroupKeyNumber::NONE.number() - 1);
        for steps in [1, 2, 64] {
            assert!(last.after(steps).is_later_than(last) && last.after(steps) != last);
            assert!(!last.is_later_than(last.after(steps)));
        }
        assert_eq!(last.after(1), GroupKeyNumber::new(0));
        assert!(!last.is_later_than(last));
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn keys_survive_the_wire(
            number: u32, first: u32, secret: [u8; 32], suite in 0..2usize, session: u32,
        ) {
            let (comtree, session) = (Comtree(9), SessionId::new(session));
            let (suite, number) = (Suite::ALL[suite], GroupKeyNumber::new(number));
            let mut out = [0; MAX_DATAGRAM];
            let key = GroupKey { number, suite, first, secret };
            let len = key.encode(comtree, session, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!(GroupKey::decode(&packet), Ok(key));
            let held = GroupKeyHeld { newest: number, lacks: number.after(1) };
            let len = held.encode(comtree, session, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!(GroupKeyHeld::decode(&packet), Ok(held));
        }

        #[test]
        fn no_key_packet_panics(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            for kind in [Kind::GroupKey, Kind::GroupKeyHeld] {
                let mut out = [0; MAX_DATAGRAM];
                let header = Header::new(kind, SessionId::new(1), Comtree(2));
                let len = header.encode_packet(&body, &mut out).unwrap();
                let packet = Packet::new_checked(&out[..len]).unwrap();
                let key = GroupKey::decode(&packet);
                prop_assert_eq!(key.is_ok(), body.len() >= KEY_LEN && body[4] < 2);
                prop_assert_eq!(GroupKeyHeld::decode(&packet).is_ok(), body.len() >= 8);
            }
        }
    }
}
