//! The base header that every packet starts with, and the checked view of a packet.

use crate::{Address, Bundle, Comtree, Level, Record, WireError};

/// First byte of every packet: the letter of the protocol and its version.
pub const VERSION: u8 = 0xC1;
/// Length of the base header in bytes.
pub const HEADER_LEN: usize = 20;
/// The longest datagram in bytes of UDP payload: IPv6 + UDP + this fit a 1,500-byte MTU.
pub const MAX_DATAGRAM: usize = 1452;
/// The longest update in bytes: one that fits a bundle of one, so that any relay on its way may
/// bundle it.
pub const MAX_UPDATE: usize = MAX_DATAGRAM - HEADER_LEN - crate::RECORD_HEADER_LEN;
/// The hop limit that a sender sets.
pub const DEFAULT_HOP_LIMIT: u8 = 32;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal,)*) => {
        /// What a packet is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $variant = $number,)* }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            const fn from_number(number: u8) -> Option<Kind> {
                match number { $($number => Some(Kind::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    /// One update, to a group or an endpoint.
    Data = 0x01,
    /// Several updates in one datagram.
    Bundle = 0x02,
    /// Subscription changes.
    Subscribe = 0x03,
    /// Answer to a subscribe: what was applied, and what was refused.
    SubscribeAck = 0x04,
    /// Where an address is (Forest §3.1); reserved for relays that learn routes.
    RouteReply = 0x08,
    /// First packet of a participant.
    Hello = 0x10,
    /// The relay's stateless answer to a hello.
    Cookie = 0x11,
    /// The cookie brought back: the return path is proved.
    Connect = 0x12,
    /// The session's address and parameters.
    Connected = 0x13,
    /// The relay does not take the participant.
    Refused = 0x14,
    /// A participant's sign of life.
    Keepalive = 0x15,
    /// Its echo.
    KeepaliveAck = 0x16,
    /// Either side ends the session.
    Leave = 0x17,
    /// The relay has forgotten the session.
    Left = 0x18,
    /// The relay asks for a proof of the return path and the session behind an unexpected path.
    Challenge = 0x19,
    /// The proof.
    Rebind = 0x1a,
}

/// Flag bits of a packet or of a bundle's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The publisher wants its own update back if it is subscribed.
    pub const ECHO: Flags = Flags(0x01);
    /// Forward although the route is unknown, and answer with a route-reply (Forest §3.1). Reserved.
    pub const ROUTE_REQUEST: Flags = Flags(0x02);
    /// A Shaker block follows the base header (federated games §3.2). Reserved.
    pub const SHAKER: Flags = Flags(0x04);
    /// In a bundle: this record is filler and carries no update.
    pub const FILLER: Flags = Flags(0x80);

    /// What a relay passes on of the flags that a participant sets on an update. It clears the
    /// others: what is reserved today may tell the receivers of another release how to read the
    /// bytes that follow.
    pub const fn passed_on(self) -> Flags {
        Flags(self.0 & Flags::ECHO.0)
    }

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The base header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is.
    pub kind: Kind,
    /// Flag bits; those that a receiver does not know are ignored.
    pub flags: Flags,
    /// The update's level; 0 in packets that are no update.
    pub level: Level,
    /// The comtree it travels on.
    pub comtree: Comtree,
    /// The sender's unicast address. In hello and connect: the low half of the nonce, so that
    /// both reach the same data thread.
    pub src: Address,
    /// A group, a unicast address, or unspecified.
    pub dst: Address,
    /// Hops left: [`DEFAULT_HOP_LIMIT`] from whoever sends the packet first.
    pub hop_limit: u8,
}

impl Header {
    /// A header of `kind` without flags, at level 0, with the default hop limit.
    pub const fn new(kind: Kind, comtree: Comtree, src: Address, dst: Address) -> Header {
        let (flags, level) = (Flags(0), Level(0));
        Header { kind, flags, level, comtree, src, dst, hop_limit: DEFAULT_HOP_LIMIT }
    }

    /// Writes the header of a packet with `payload_len` bytes behind it.
    pub fn encode(&self, payload_len: u16) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[2] = self.flags.0;
        bytes[3] = self.level.0;
        bytes[4..8].copy_from_slice(&self.comtree.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.src.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.dst.0.to_be_bytes());
        bytes[16..18].copy_from_slice(&payload_len.to_be_bytes());
        bytes[18] = self.hop_limit;
        bytes
    }

    /// Writes a whole packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Oversized`] if header and payload exceed [`MAX_DATAGRAM`], [`WireError::Length`]
    /// if they exceed `out`.
    pub fn encode_packet(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
        let len = HEADER_LEN + payload.len();
        if len > MAX_DATAGRAM {
            return Err(WireError::Oversized(len));
        }
        let out = out.get_mut(..len).ok_or(WireError::Length)?;
        out[..HEADER_LEN].copy_from_slice(&self.encode(payload.len() as u16));
        out[HEADER_LEN..].copy_from_slice(payload);
        Ok(len)
    }
}

/// A datagram whose base header has been checked. Bytes after the payload are padding.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: Header,
    payload: &'a [u8],
    datagram_len: usize,
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
        if datagram[0] != VERSION {
            return Err(WireError::Version(datagram[0]));
        }
        let Some((head, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(WireError::TooShort { have, need: HEADER_LEN });
        };
        let kind = Kind::from_number(head[1]).ok_or(WireError::Kind(head[1]))?;
        let payload_len = u16::from_be_bytes([head[16], head[17]]);
        let payload = rest.get(..payload_len.into()).ok_or(WireError::Length)?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let header = Header {
            kind,
            flags: Flags(head[2]),
            level: Level(head[3]),
            comtree: Comtree(word(4)),
            src: Address(word(8)),
            dst: Address(word(12)),
            hop_limit: head[18],
        };
        Ok(Packet { header, payload, datagram_len: have })
    }

    /// The base header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes that the header's length covers.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The length of the datagram that holds it, padding included: what its sender paid for.
    pub fn datagram_len(&self) -> usize {
        self.datagram_len
    }

    /// The updates in it, without filler: the one of a data packet, those of a bundle, and of
    /// other kinds none.
    ///
    /// # Errors
    /// Those of [`Bundle::new_checked`].
    pub fn updates(&self) -> Result<impl Iterator<Item = Record<'a>> + use<'a>, WireError> {
        let Header { kind, flags, level, src, dst, .. } = self.header;
        let alone = Record { flags, level, src, dst, payload: self.payload };
        let alone = (kind == Kind::Data).then_some(alone);
        let bundled = match kind {
            Kind::Bundle => Bundle::new_checked(self)?,
            _ => Bundle::default(),
        };
        Ok(alone.into_iter().chain(bundled.records()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded;
    use proptest::prelude::*;

    fn header() -> Header {
        Header::new(Kind::Data, Comtree(9), Address(3), Address(0x8000_0001))
    }

    #[test]
    fn every_kind_has_its_number() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(*kind as u8), Some(*kind));
        }
    }

    #[test]
    fn faults_are_named() {
        let mut bytes = [0; 64];
        let len = header().encode_packet(b"hello", &mut bytes).unwrap();
        assert_eq!(Packet::new_checked(&[]).unwrap_err(), WireError::Empty);
        assert_eq!(
            Packet::new_checked(&bytes[..19]).unwrap_err(),
            WireError::TooShort { have: 19, need: 20 }
        );
        assert_eq!(Packet::new_checked(&bytes[..len - 1]).unwrap_err(), WireError::Length);
        assert_eq!(Packet::new_checked(&[0; 1453]).unwrap_err(), WireError::Oversized(1453));
        bytes[1] = 0xee;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), WireError::Kind(0xee));
        bytes[0] = 0xC2;
        assert_eq!(Packet::new_checked(&bytes).unwrap_err(), WireError::Version(0xC2));
    }

    #[test]
    fn bytes_after_the_payload_are_padding() {
        let mut bytes = [0xaa; 64];
        header().encode_packet(b"hello", &mut bytes).unwrap();
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.payload(), packet.datagram_len()), (&b"hello"[..], 64));
    }

    #[test]
    fn reserved_flags_are_not_passed_on() {
        for bits in 0..=u8::MAX {
            assert_eq!(Flags(bits).passed_on(), Flags(bits & 1));
        }
    }

    #[test]
    fn a_data_packet_is_an_update_and_other_kinds_hold_none() {
        let mut bytes = [0; 64];
        for kind in Kind::ALL {
            let header = Header { kind: *kind, flags: Flags::ECHO, level: Level(7), ..header() };
            let len = header.encode_packet(b"", &mut bytes).unwrap();
            let packet = Packet::new_checked(&bytes[..len]).unwrap();
            let updates: Vec<Record<'_>> = packet.updates().unwrap().collect();
            let Header { flags, level, src, dst, .. } = header;
            let expected = Record { flags, level, src, dst, payload: b"" };
            let expected = if *kind == Kind::Data { vec![expected] } else { Vec::new() };
            assert_eq!(updates, expected, "{kind:?}");
        }
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn a_header_survives_the_wire(
            kind in 0..Kind::ALL.len(), flags: u8, level: u8, comtree: u32, src: u32, dst: u32,
            hop_limit: u8, payload in proptest::collection::vec(any::<u8>(), 0..MAX_DATAGRAM - HEADER_LEN),
        ) {
            let header = Header {
                kind: Kind::ALL[kind], flags: Flags(flags), level: Level(level),
                comtree: Comtree(comtree), src: Address(src), dst: Address(dst), hop_limit,
            };
            let mut out = [0; MAX_DATAGRAM];
            let len = header.encode_packet(&payload, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!(packet.header(), &header);
            prop_assert_eq!(packet.payload(), &payload[..]);
        }

        #[test]
        fn no_datagram_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            let _ = Packet::new_checked(&bytes);
        }
    }
}
