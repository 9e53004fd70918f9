//! The base header that every packet starts with, and the checked view of a packet.

use crate::{Comtree, Lane, Record, Records, WireError};

/// First byte of every packet, without its class: two bits, `10`, that tell it from QUIC on the
/// same port (RFC 9443), and three of version. The last three are the packet's [`Class`].
pub const VERSION: u8 = 0x88;
const VERSION_MASK: u8 = 0xf8;
/// Length of the base header in bytes.
pub const HEADER_LEN: usize = 16;
/// The bytes of the header that stay in clear when the rest is sealed: what steering needs.
pub const CLEAR_LEN: usize = 8;
/// Bytes at the end of a datagram that are kept for an authentication tag.
pub const SEAL_LEN: usize = 16;
/// The longest datagram in bytes of UDP payload: IPv6 + UDP + this fit a 1,500-byte MTU.
pub const MAX_DATAGRAM: usize = 1452;
/// The longest datagram in bytes that every path takes: it fits IPv6's least MTU of 1,280.
pub const SAFE_DATAGRAM: usize = 1232;
/// The longest update in bytes: one that fits a safe datagram with all that may ever stand beside
/// it, and a browser's datagrams, which are shorter.
pub const MAX_UPDATE: usize = 1024;
/// The hop limit that a sender sets. Trees over real networks of some hundred sites have ways of more than
/// thirty relays.
pub const DEFAULT_HOP_LIMIT: u8 = 128;

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
    /// Updates, each to a group or an endpoint.
    Updates = 0x01,
    /// Subscription changes.
    Subscribe = 0x03,
    /// Answer to a subscribe: what was applied, and what was refused.
    SubscribeAck = 0x04,
    /// A relay's answer to an update that asks for a route (Forest §3.1).
    RouteReply = 0x08,
    /// A relay's sign of life on a link.
    LinkHello = 0x09,
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
    /// The relay knows no such session.
    Unknown = 0x1b,
    /// The relay has nobody at the address that something was sent to.
    Gone = 0x1c,
    /// The relay drops a part of what a member sends.
    Busy = 0x1d,
    /// A member asks for something beyond updates and subscriptions.
    Request = 0x20,
    /// The relay's answer to a request.
    Response = 0x21,
    /// A key by which updates to groups are sealed for all members of a comtree.
    GroupKey = 0x24,
    /// The newest of those keys that the participant has; if there is another, it asks for it.
    GroupKeyHeld = 0x25,
    /// The relay asks what has arrived, and tells the participant its thinning.
    Probe = 0x28,
    /// The participant's answer to a probe, and what it asks for.
    Report = 0x29,
}

/// Who a packet is of: it stands in the first byte, so that the kernel can bring strangers' packets to
/// a socket of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Of those who have no session, and the answers to them.
    Stranger = 0,
    /// In cleartext: what goes to many whose world asked for no protection.
    Session = 1,
    /// Of a session, sealed with its keys from the ninth byte on.
    Sealed = 2,
    /// Updates to groups, sealed alike for all members of a comtree with its group key.
    Group = 3,
}

impl Kind {
    /// Who packets of this kind are of.
    pub const fn class(self) -> Class {
        match self {
            Kind::Hello
            | Kind::Cookie
            | Kind::Connect
            | Kind::Connected
            | Kind::Refused
            | Kind::Unknown => Class::Stranger,
            _ => Class::Session,
        }
    }
}

/// The number of a session, given out by the relay: 24 bits that say which data thread serves it,
/// which of that thread's places it has, and in which [`Lane`] its packets are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u32);

impl SessionId {
    /// No session: in what is sent to many at once.
    pub const NONE: SessionId = SessionId(0xff_ffff);
    /// How many numbers a relay has for its sessions.
    pub const COUNT: u32 = SessionId::NONE.0;

    /// The session with this number; bits above the 24th are ignored.
    pub const fn new(number: u32) -> SessionId {
        SessionId(number & 0xff_ffff)
    }

    /// The session at a place of a data thread, one of `threads`, which is received in `lane`.
    pub const fn at(place: u32, lane: Lane, thread: u16, threads: u16) -> SessionId {
        let before_lane = place * threads as u32 + thread as u32;
        SessionId::new(before_lane << Lane::BITS | lane.number() as u32)
    }

    /// How many places each of `threads` data threads can number: 32,767 of 64.
    pub const fn places(threads: u16) -> u32 {
        (SessionId::COUNT >> Lane::BITS) / threads as u32
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Its place on its data thread, one of `threads`.
    pub const fn place(self, threads: u16) -> u32 {
        (self.0 >> Lane::BITS) / threads as u32
    }

    /// Its data thread, one of `threads`.
    pub const fn thread(self, threads: u16) -> u16 {
        ((self.0 >> Lane::BITS) % threads as u32) as u16
    }

    /// In which lane its packets are received.
    pub const fn lane(self) -> Lane {
        Lane::new(self.0 as u8)
    }

    /// The same place of the same data thread, in another lane.
    pub const fn in_lane(self, lane: Lane) -> SessionId {
        SessionId(self.0 >> Lane::BITS << Lane::BITS | lane.number() as u32)
    }
}

/// The base header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is.
    pub kind: Kind,
    /// The session that it belongs to. In hello and connect the low bits of the nonce, so that
    /// both reach the same data thread.
    pub session: SessionId,
    /// The packet's number among those of its sender in the session.
    pub counter: u32,
    /// Hops left: [`DEFAULT_HOP_LIMIT`] from whoever sends the packet first.
    pub hop_limit: u8,
    /// The comtree it travels on.
    pub comtree: Comtree,
}

impl Header {
    /// A header of `kind` with the default hop limit.
    pub const fn new(kind: Kind, session: SessionId, comtree: Comtree) -> Header {
        Header { kind, session, counter: 0, hop_limit: DEFAULT_HOP_LIMIT, comtree }
    }

    /// Writes the header of a packet with so many records, which is 0 for all kinds but updates.
    pub fn encode(&self, records: u8) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.session.0.to_be_bytes());
        bytes[0] = VERSION | self.kind.class() as u8;
        bytes[4..8].copy_from_slice(&self.counter.to_be_bytes());
        bytes[8] = self.kind as u8;
        bytes[9] = self.hop_limit;
        bytes[10] = records;
        bytes[12..16].copy_from_slice(&self.comtree.0.to_be_bytes());
        bytes
    }

    /// Writes a whole packet without records into `out` and returns its length.
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
        out[..HEADER_LEN].copy_from_slice(&self.encode(0));
        out[HEADER_LEN..].copy_from_slice(payload);
        Ok(len)
    }
}

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
    fn every_kind_has_its_number() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(*kind as u8), Some(*kind));
        }
    }

    #[test]
    fn the_first_byte_is_none_of_quics() {
        // RFC 9443: QUIC has 0x40 to 0x7f and 0xc0 to 0xff.
        assert_eq!(VERSION & 0xc0, 0x80);
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
        fn a_session_id_names_thread_lane_and_place(
            threads in 1u16..=64, thread: u16, lane: u8, other: u8, place: u32,
        ) {
            let (thread, place) = (thread % threads, place % SessionId::places(threads));
            let (lane, other) = (Lane::new(lane), Lane::new(other));
            let session = SessionId::at(place, lane, thread, threads);
            prop_assert_ne!(session, SessionId::NONE);
            prop_assert_eq!(session.place(threads), place);
            prop_assert_eq!((session.thread(threads), session.lane()), (thread, lane));
            let moved = session.in_lane(other);
            prop_assert_eq!(moved, SessionId::at(place, other, thread, threads));
        }

        #[test]
        fn no_datagram_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            let _ = Packet::new_checked(&bytes);
        }
    }
}
