//! The packets with which a session lives and ends: keepalive, unknown, gone, leave, challenge, rebind.
//!
//! No challenge is longer than the packet that it answers: a keepalive is as long.

use crate::fields::{Fields, encode};
use crate::{
    Address, Comtree, HEADER_LEN, Header, Kind, LeaveReason, Packet, SessionId, TAG_LEN, Tag,
    WireError,
};

/// A sign of life, and its echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The participant's clock; comes back unchanged in the echo.
    pub stamp: u64,
    /// In the echo, what the relay wants brought back by the next keepalive; in the keepalive, what
    /// it brings back: the proof that what is sent to the participant still reaches it.
    pub path_stamp: u64,
}

/// The relay's answer to a packet of a session that it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The first 8 bytes of what was sealed in that packet: who has not seen it cannot answer.
    pub echo: u64,
}

/// What was sent to an address alone reached nobody: nobody is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The address.
    pub address: Address,
}

/// Either side ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// Why.
    pub reason: LeaveReason,
}

/// The relay asks for a proof from an unexpected path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Bound to the path and to the session.
    pub cookie: Tag,
}

/// The proof that an ip:port change is the session's own: the challenge's cookie, sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebind {
    /// The challenge's cookie.
    pub cookie: Tag,
}

impl Keepalive {
    /// Writes the packet of a participant into `out` and returns its length. No shorter than a
    /// challenge.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        self.encode_as(Header::new(Kind::Keepalive, session, comtree), out)
    }

    /// Writes the echo into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode_ack(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        self.encode_as(Header::new(Kind::KeepaliveAck, session, comtree), out)
    }

    fn encode_as(&self, header: Header, out: &mut [u8]) -> Result<usize, WireError> {
        encode(&header, &[&self.stamp.to_be_bytes(), &self.path_stamp.to_be_bytes()], 0, out)
    }

    /// Reads the body of a keepalive or of its echo.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Keepalive, WireError> {
        let mut fields = Fields::new(packet, 16)?;
        Ok(Keepalive { stamp: fields.u64()?, path_stamp: fields.u64()? })
    }
}

impl Unknown {
    /// Writes the answer about `session` into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = Header::new(Kind::Unknown, session, comtree);
        encode(&header, &[&self.echo.to_be_bytes()], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Unknown, WireError> {
        Ok(Unknown { echo: Fields::new(packet, 8)?.u64()? })
    }
}

impl Gone {
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
        let header = Header::new(Kind::Gone, session, comtree);
        encode(&header, &[&self.address.0.to_be_bytes()], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Gone, WireError> {
        Ok(Gone { address: Address(Fields::new(packet, 4)?.u32()?) })
    }
}

impl Leave {
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
        encode(&Header::new(Kind::Leave, session, comtree), &[&[self.reason.number()]], 0, out)
    }

    /// Writes the relay's answer, which has no body.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode_left(
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        encode(&Header::new(Kind::Left, session, comtree), &[], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Leave, WireError> {
        Ok(Leave { reason: LeaveReason::from_number(Fields::new(packet, 1)?.u8()?) })
    }
}

impl Challenge {
    /// The packet's length: no shorter datagram is answered with a challenge.
    pub const LEN: usize = HEADER_LEN + TAG_LEN;

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
        encode(&Header::new(Kind::Challenge, session, comtree), &[&self.cookie], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Challenge, WireError> {
        Ok(Challenge { cookie: Fields::new(packet, TAG_LEN)?.array()? })
    }
}

impl Rebind {
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
        let header = Header::new(Kind::Rebind, session, comtree);
        encode(&header, &[&self.cookie], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Rebind, WireError> {
        Ok(Rebind { cookie: Fields::new(packet, TAG_LEN)?.array()? })
    }
}
