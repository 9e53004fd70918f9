//! The checked view of a packet.

use crate::{
    Comtree, HEADER_LEN, Header, Kind, MAX_DATAGRAM, Record, Records, SessionId, VERSION, WireError,
};

/// The bits of a packet's first byte that are [`VERSION`]'s; the others are its class.
const VERSION_MASK: u8 = 0xf8;

/// A datagram whose base header has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: Header,
    records: u8,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the base header of a datagram.
    ///
    /// # Errors
    /// What is wrong with it, as a [`WireError`].
    pub fn new_checked(datagram: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let have = datagram.len();
        if have == 0 {
            return Err(WireError::Empty);
        }
        if have > MAX_DATAGRAM {
            return Err(WireError::Oversized(have));
        }
        if datagram[0] & VERSION_MASK != VERSION {
            return Err(WireError::Version(datagram[0]));
        }
        let Some((head, payload)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(WireError::TooShort { have, need: HEADER_LEN });
        };
        let kind = Kind::from_number(head[8]).ok_or(WireError::Kind(head[8]))?;
        if head[0] != VERSION | kind.class() as u8 {
            return Err(WireError::Field("class"));
        }
        if head[11] != 0 {
            // They would say how to read what follows.
            return Err(WireError::Field("flags"));
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let header = Header {
            kind,
            session: SessionId::new(word(0)),
            counter: word(4),
            hop_limit: head[9],
            comtree: Comtree(word(12)),
        };
        Ok(Packet { header, records: head[10], payload })
    }

    /// The base header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes behind the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The length of the datagram that holds it, padding included: what its sender paid for.
    pub fn datagram_len(&self) -> usize {
        HEADER_LEN + self.payload.len()
    }

    /// How many records an updates packet says that it has, filler among them.
    pub fn records(&self) -> u8 {
        self.records
    }

    /// The updates in it, which have been checked; a packet of another kind has none. Filler is
    /// passed over.
    ///
    /// # Errors
    /// [`WireError::Length`] if there are fewer records than the header says,
    /// [`WireError::Field`] if one of them has a form that does not exist.
    pub fn updates(&self) -> Result<impl Iterator<Item = Record<'a>> + use<'a>, WireError> {
        let count = if self.header.kind == Kind::Updates { self.records } else { 0 };
        let records = Records::new_checked(count, self.payload)?;
        Ok(records.filter(|record| !record.is_filler()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded;
    use proptest::prelude::*;

    fn header() -> Header {
        Header::new(Kind::Keepalive, SessionId::new(7), Comtree(9))
    }

    #[test]
    fn faults_are_named() {
        let mut bytes = [0; 64];
        let len = header().encode_packet(b"hello", &mut bytes).unwrap();
        assert!(Packet::new_checked(&bytes[..len]).is_ok());
        assert_eq!(Packet::new_checked(&[]).unwrap_err(), WireError::Empty);
        assert_eq!(
            Packet::new_checked(&bytes[..15]).unwrap_err(),
            WireError::TooShort { have: 15, need: 16 }
        );
        assert_eq!(Packet::new_checked(&[0; 1453]).unwrap_err(), WireError::Oversized(1453));
        bytes[0] ^= 1;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), WireError::Field("class"));
        bytes[0] ^= 1;
        bytes[11] = 1;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), WireError::Field("flags"));
        bytes[8] = 0xee;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), WireError::Kind(0xee));
        bytes[0] = 0xC1;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), WireError::Version(0xC1));
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn a_header_survives_the_wire(
            kind in 0..Kind::ALL.len(), session: u32, counter: u32, comtree: u32, hop_limit: u8,
            payload in proptest::collection::vec(any::<u8>(), 0..MAX_DATAGRAM - HEADER_LEN),
        ) {
            let header = Header {
                kind: Kind::ALL[kind], session: SessionId::new(session), counter, hop_limit,
                comtree: Comtree(comtree),
            };
            let mut out = [0; MAX_DATAGRAM];
            let len = header.encode_packet(&payload, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!(packet.header(), &header);
            prop_assert_eq!(packet.payload(), &payload[..]);
            prop_assert_eq!(packet.datagram_len(), len);
        }

        #[test]
        fn no_datagram_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            let _ = Packet::new_checked(&bytes);
        }
    }
}
