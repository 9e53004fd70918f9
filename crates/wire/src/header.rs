//! The base header that every packet starts with.

use crate::{Comtree, HEADER_LEN, Kind, Lane, MAX_DATAGRAM, VERSION, WireError};

/// The hop limit that a sender sets. Trees over real networks of some hundred sites have ways of more than
/// thirty relays.
pub const DEFAULT_HOP_LIMIT: u8 = 128;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(seeded())]

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
    }
}
