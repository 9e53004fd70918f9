//! Session packets: hello, cookie, connect, keepalive, leave, rebind.
//!
//! No relay reply to an unproved path is longer than what asked for it: a hello is padded to
//! more than a cookie or a refusal, a keepalive to a challenge.

use crate::{
    Address, Comtree, HEADER_LEN, Header, Kind, LeaveReason, Packet, RefusedReason, WireError,
};

/// Length of cookies, proofs and session secrets in bytes.
pub const TAG_LEN: usize = 16;
/// The longest token in bytes that a connect can carry.
pub const MAX_TOKEN_LEN: usize = 1200;

/// A cookie, a proof or a session secret.
pub type Tag = [u8; TAG_LEN];

/// The security of a session. Only `None` exists in this version of the protocol; the place in
/// the handshake is kept for the keyed suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    /// Cleartext.
    None = 0,
}

/// First packet of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Chosen at random by the participant; ties the replies to the request.
    pub nonce: u64,
}

/// The relay's stateless answer to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// The hello's nonce.
    pub nonce: u64,
    /// What the participant must bring back.
    pub cookie: Tag,
}

/// The cookie brought back, with what the participant wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The hello's nonce.
    pub nonce: u64,
    /// The relay's cookie.
    pub cookie: Tag,
    /// The number of the security suite asked for; [`Suite::None`] is 0.
    pub suite: u8,
    /// An access token; empty in this version.
    pub token: &'a [u8],
}

/// The session's address and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The hello's nonce.
    pub nonce: u64,
    /// The participant's unicast address in the comtree.
    pub address: Address,
    /// The session ends after so many milliseconds without a packet from the participant.
    pub lifetime_ms: u32,
    /// The participant sends a keepalive every so many milliseconds.
    pub keepalive_ms: u32,
    /// A subscription ends after so many milliseconds without a refresh.
    pub subscription_ms: u32,
    /// Proves the session when its ip:port changes.
    pub secret: Tag,
}

/// The relay does not take the participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The hello's nonce.
    pub nonce: u64,
    /// Why.
    pub reason: RefusedReason,
}

/// A sign of life, and its echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The participant's clock; comes back unchanged in the echo.
    pub stamp: u64,
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
    /// Bound to the path and to the session's address.
    pub cookie: Tag,
}

/// The proof that an ip:port change is the session's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebind {
    /// The challenge's cookie.
    pub cookie: Tag,
    /// The cookie under the session's secret.
    pub proof: Tag,
}

const HELLO_LEN: usize = 32;
const CONNECT_FIXED: usize = 8 + TAG_LEN + 4;

/// Reads fixed-width fields off the front of a payload.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn new(packet: &Packet<'a>, need: usize) -> Result<Fields<'a>, WireError> {
        let payload = packet.payload();
        if payload.len() < need {
            let have = HEADER_LEN + payload.len();
            return Err(WireError::TooShort { have, need: HEADER_LEN + need });
        }
        Ok(Fields(payload))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(WireError::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}

/// Concatenates `fields` behind a header into `out`; the payload is zero-filled to `min_len`.
fn encode(
    header: &Header,
    fields: &[&[u8]],
    min_len: usize,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let len: usize = fields.iter().map(|field| field.len()).sum::<usize>().max(min_len);
    let out = out.get_mut(..HEADER_LEN + len).ok_or(WireError::Length)?;
    let (head, mut body) = out.split_at_mut(HEADER_LEN);
    head.copy_from_slice(&header.encode(len as u16));
    for field in fields {
        let (slot, rest) = body.split_at_mut(field.len());
        slot.copy_from_slice(field);
        body = rest;
    }
    body.fill(0);
    Ok(HEADER_LEN + len)
}

/// The header of a packet that a participant sends before it has an address: the low half of the
/// nonce stands in for it, so that hello and connect reach the same data thread.
fn handshake_header(kind: Kind, comtree: Comtree, nonce: u64) -> Header {
    Header::new(kind, comtree, Address(nonce as u32), Address::UNSPECIFIED)
}

impl Hello {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let header = handshake_header(Kind::Hello, comtree, self.nonce);
        encode(&header, &[&self.nonce.to_be_bytes()], HELLO_LEN, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`] unless it is padded to its full length.
    pub fn decode(packet: &Packet<'_>) -> Result<Hello, WireError> {
        let mut fields = Fields::new(packet, HELLO_LEN)?;
        Ok(Hello { nonce: fields.u64()? })
    }

    /// The nonce of a hello of any version of the protocol: the place of nonce and kind, and the
    /// length, never change, so that a relay can refuse a version in words.
    pub fn nonce_of_any_version(datagram: &[u8]) -> Option<u64> {
        let is_hello = datagram.len() >= HEADER_LEN + HELLO_LEN && datagram[1] == Kind::Hello as u8;
        let nonce = datagram.get(HEADER_LEN..)?.first_chunk::<8>()?;
        is_hello.then(|| u64::from_be_bytes(*nonce))
    }
}

impl Cookie {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let header = handshake_header(Kind::Cookie, comtree, 0);
        encode(&header, &[&self.nonce.to_be_bytes(), &self.cookie], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Cookie, WireError> {
        let mut fields = Fields::new(packet, 8 + TAG_LEN)?;
        Ok(Cookie { nonce: fields.u64()?, cookie: fields.array()? })
    }
}

impl<'a> Connect<'a> {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Field`] if the token is longer than [`MAX_TOKEN_LEN`], [`WireError::Length`]
    /// if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        if self.token.len() > MAX_TOKEN_LEN {
            return Err(WireError::Field("token"));
        }
        let header = handshake_header(Kind::Connect, comtree, self.nonce);
        let token_len = (self.token.len() as u16).to_be_bytes();
        let nonce = self.nonce.to_be_bytes();
        encode(&header, &[&nonce, &self.cookie, &[self.suite, 0], &token_len, self.token], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], [`WireError::Field`] for a token longer than
    /// [`MAX_TOKEN_LEN`].
    pub fn decode(packet: &Packet<'a>) -> Result<Connect<'a>, WireError> {
        let mut fields = Fields::new(packet, CONNECT_FIXED)?;
        let (nonce, cookie) = (fields.u64()?, fields.array()?);
        let [suite, _reserved] = fields.array()?;
        let token_len = u16::from_be_bytes(fields.array()?);
        if usize::from(token_len) > MAX_TOKEN_LEN {
            return Err(WireError::Field("token"));
        }
        let token = fields.0.get(..token_len.into()).ok_or(WireError::Length)?;
        Ok(Connect { nonce, cookie, suite, token })
    }
}

impl Connected {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let header = Header::new(Kind::Connected, comtree, Address::UNSPECIFIED, self.address);
        let fields: [&[u8]; 6] = [
            &self.nonce.to_be_bytes(),
            &self.address.0.to_be_bytes(),
            &self.lifetime_ms.to_be_bytes(),
            &self.keepalive_ms.to_be_bytes(),
            &self.subscription_ms.to_be_bytes(),
            &self.secret,
        ];
        encode(&header, &fields, 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Connected, WireError> {
        let mut fields = Fields::new(packet, 24 + TAG_LEN)?;
        Ok(Connected {
            nonce: fields.u64()?,
            address: Address(fields.u32()?),
            lifetime_ms: fields.u32()?,
            keepalive_ms: fields.u32()?,
            subscription_ms: fields.u32()?,
            secret: fields.array()?,
        })
    }
}

impl Refused {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let header = handshake_header(Kind::Refused, comtree, 0);
        encode(&header, &[&self.nonce.to_be_bytes(), &[self.reason.number()]], 0, out)
    }

    /// The nonce of a refusal because of the version, whatever version the refusing relay speaks:
    /// the places of kind, nonce and reason never change.
    pub fn nonce_of_any_version(datagram: &[u8]) -> Option<u64> {
        let (nonce, rest) = datagram.get(HEADER_LEN..)?.split_first_chunk::<8>()?;
        let is_refusal = datagram[1] == Kind::Refused as u8
            && rest.first() == Some(&RefusedReason::Version.number());
        is_refusal.then(|| u64::from_be_bytes(*nonce))
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Refused, WireError> {
        let mut fields = Fields::new(packet, 9)?;
        Ok(Refused { nonce: fields.u64()?, reason: RefusedReason::from_number(fields.u8()?) })
    }
}

impl Keepalive {
    /// Writes the packet of a participant with address `src` into `out` and returns its length.
    /// It is padded to the length of a challenge.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        src: Address,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = Header::new(Kind::Keepalive, comtree, src, Address::UNSPECIFIED);
        encode(&header, &[&self.stamp.to_be_bytes()], TAG_LEN, out)
    }

    /// Writes the echo to the participant with address `dst` into `out`; returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode_ack(
        &self,
        comtree: Comtree,
        dst: Address,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = Header::new(Kind::KeepaliveAck, comtree, Address::UNSPECIFIED, dst);
        encode(&header, &[&self.stamp.to_be_bytes()], 0, out)
    }

    /// Reads the body of a keepalive or of its echo.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Keepalive, WireError> {
        Ok(Keepalive { stamp: Fields::new(packet, 8)?.u64()? })
    }
}

impl Leave {
    /// Writes the packet into `out` and returns its length. `src` is the participant's address
    /// when it leaves, unspecified when the relay ends the session of `dst`.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        src: Address,
        dst: Address,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        encode(&Header::new(Kind::Leave, comtree, src, dst), &[&[self.reason.number()]], 0, out)
    }

    /// Writes the relay's answer, which has no body.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode_left(comtree: Comtree, dst: Address, out: &mut [u8]) -> Result<usize, WireError> {
        encode(&Header::new(Kind::Left, comtree, Address::UNSPECIFIED, dst), &[], 0, out)
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

    /// Writes the packet to the session's address `dst` into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        dst: Address,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = Header::new(Kind::Challenge, comtree, Address::UNSPECIFIED, dst);
        encode(&header, &[&self.cookie], 0, out)
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
    /// Writes the packet of the session with address `src` into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        src: Address,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = Header::new(Kind::Rebind, comtree, src, Address::UNSPECIFIED);
        encode(&header, &[&self.cookie, &self.proof], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Rebind, WireError> {
        let mut fields = Fields::new(packet, 2 * TAG_LEN)?;
        Ok(Rebind { cookie: fields.array()?, proof: fields.array()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_DATAGRAM, seeded};
    use proptest::prelude::*;

    const COMTREE: Comtree = Comtree(5);

    fn packet(out: &[u8], len: usize) -> Packet<'_> {
        Packet::new_checked(&out[..len]).unwrap()
    }

    #[test]
    fn no_reply_before_the_proof_is_longer_than_its_request() {
        let mut out = [0; 256];
        let hello = Hello { nonce: 1 }.encode(COMTREE, &mut out).unwrap();
        let cookie = Cookie { nonce: 1, cookie: [0; 16] }.encode(COMTREE, &mut out).unwrap();
        let refused =
            Refused { nonce: 1, reason: RefusedReason::Full }.encode(COMTREE, &mut out).unwrap();
        assert!(cookie <= hello && refused <= hello);
        let stamp = Keepalive { stamp: 1 };
        let keepalive = stamp.encode(COMTREE, Address(1), &mut out).unwrap();
        let ack = stamp.encode_ack(COMTREE, Address(1), &mut out).unwrap();
        assert!(Challenge::LEN <= keepalive && ack <= keepalive);
    }

    #[test]
    fn a_foreign_version_keeps_its_nonce_readable() {
        let mut out = [0; 256];
        let len = Hello { nonce: 77 }.encode(COMTREE, &mut out).unwrap();
        out[0] = 0xC9;
        assert_eq!(Hello::nonce_of_any_version(&out[..len]), Some(77));
        assert_eq!(Hello::nonce_of_any_version(&out[..len - 1]), None);
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn session_packets_survive_the_wire(
            nonce: u64, cookie: Tag, proof: Tag, suite: u8, reason: u8, address: u32, times: [u32; 3],
            token in proptest::collection::vec(any::<u8>(), 0..=MAX_TOKEN_LEN),
        ) {
            let mut out = [0; MAX_DATAGRAM];
            let hello = Hello { nonce };
            let len = hello.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Hello::decode(&packet(&out, len)).unwrap(), hello);
            let answer = Cookie { nonce, cookie };
            let len = answer.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Cookie::decode(&packet(&out, len)).unwrap(), answer);
            let connect = Connect { nonce, cookie, suite, token: &token };
            let len = connect.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Connect::decode(&packet(&out, len)).unwrap(), connect);
            let connected = Connected {
                nonce, address: Address(address), lifetime_ms: times[0], keepalive_ms: times[1],
                subscription_ms: times[2], secret: proof,
            };
            let len = connected.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Connected::decode(&packet(&out, len)).unwrap(), connected);
            let refused = Refused { nonce, reason: RefusedReason::from_number(reason) };
            let len = refused.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Refused::decode(&packet(&out, len)).unwrap(), refused);
            let leave = Leave { reason: LeaveReason::from_number(reason) };
            let len = leave.encode(COMTREE, Address(1), Address(2), &mut out).unwrap();
            prop_assert_eq!(Leave::decode(&packet(&out, len)).unwrap(), leave);
            let keepalive = Keepalive { stamp: nonce };
            let len = keepalive.encode(COMTREE, Address(1), &mut out).unwrap();
            prop_assert_eq!(Keepalive::decode(&packet(&out, len)).unwrap(), keepalive);
            let challenge = Challenge { cookie };
            let len = challenge.encode(COMTREE, Address(1), &mut out).unwrap();
            prop_assert_eq!(Challenge::decode(&packet(&out, len)).unwrap(), challenge);
            let rebind = Rebind { cookie, proof };
            let len = rebind.encode(COMTREE, Address(1), &mut out).unwrap();
            prop_assert_eq!(Rebind::decode(&packet(&out, len)).unwrap(), rebind);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..1432)) {
            let mut out = [0; MAX_DATAGRAM];
            let header = Header::new(Kind::Hello, COMTREE, Address(1), Address(2));
            let len = header.encode_packet(&body, &mut out).unwrap();
            let packet = packet(&out, len);
            let _ = (Hello::decode(&packet), Cookie::decode(&packet), Connect::decode(&packet));
            let _ = (Connected::decode(&packet), Refused::decode(&packet), Leave::decode(&packet));
            let _ = (Keepalive::decode(&packet), Challenge::decode(&packet), Rebind::decode(&packet));
        }
    }
}
