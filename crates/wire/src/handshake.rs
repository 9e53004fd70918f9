//! The packets with which a session begins: hello, cookie, connect, connected, refused.
//!
//! No reply to an unproved path is longer than what asked for it: a hello is padded to the length of
//! a cookie.

use crate::fields::{Fields, concatenate, encode};
use crate::{
    Address, Comtree, HEADER_LEN, Header, Kind, Packet, RefusedReason, SessionId, VERSION,
    WireError,
};

/// Length of cookies in bytes.
pub const TAG_LEN: usize = 16;
/// The longest token in bytes that a connect can carry: with it, a connect fits a safe datagram.
pub const MAX_TOKEN_LEN: usize = 1000;

/// The longest ticket in bytes.
pub const MAX_TICKET_LEN: usize = 32;

/// A cookie, or a key that cookies are made with.
pub type Tag = [u8; TAG_LEN];

/// The cipher of a session's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    /// AES-128-GCM: the cheapest where the processor has instructions for it.
    Aes128Gcm = 0,
    /// ChaCha20-Poly1305, for all others.
    ChaCha20Poly1305 = 1,
}

impl Suite {
    /// All suites, the best first.
    pub const ALL: &'static [Suite] = &[Suite::Aes128Gcm, Suite::ChaCha20Poly1305];

    /// The bit that stands for it in a set of suites.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The suite of this number.
    ///
    /// # Errors
    /// [`WireError::Field`] if there is none.
    pub(crate) fn from_number(number: u8) -> Result<Suite, WireError> {
        let is_it = |one: &Suite| *one as u8 == number;
        Suite::ALL.iter().copied().find(is_it).ok_or(WireError::Field("suite"))
    }

    /// The one that two sides use: the best that both take and neither is slow at, or else the best
    /// that both take.
    pub fn agreed(taken: u8, slow: u8) -> Option<Suite> {
        Suite::best_of(taken & !slow).or_else(|| Suite::best_of(taken))
    }

    fn best_of(set: u8) -> Option<Suite> {
        Suite::ALL.iter().copied().find(|suite| set & suite.bit() != 0)
    }
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
    /// The relay's public key: for whoever has no other way to know it, and trusts the network.
    pub relay_key: [u8; 32],
}

/// The cookie brought back, with the first message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// The hello's nonce.
    pub nonce: u64,
    /// The relay's cookie.
    pub cookie: Tag,
    /// The participant's Noise message, with a [`Join`] as its payload.
    pub message: &'a [u8],
}

/// What a participant asks for, in the handshake's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join<'a> {
    /// The comtree to join.
    pub comtree: Comtree,
    /// What it can do beyond the base protocol, a bit each; the highest is
    /// [`LinkJoin::FEATURE`](crate::LinkJoin::FEATURE).
    pub features: u32,
    /// The longest datagram in bytes that the participant's path takes.
    pub max_datagram: u16,
    /// The suites that the participant takes, a [bit](Suite::bit) each.
    pub suites: u8,
    /// Those that its processor has no instructions for: used only where the two sides have no other.
    pub slow_suites: u8,
    /// The access token; empty without one.
    pub token: &'a [u8],
    /// The ticket of an earlier session whose address is wanted back; empty without one.
    pub ticket: &'a [u8],
}

/// With what a participant gets its address back in a later session. Its bytes mean something to
/// relays alone.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ticket {
    len: u8,
    bytes: [u8; MAX_TICKET_LEN],
}

impl Ticket {
    /// A ticket of these bytes, which may be none; `None` if they are more than [`MAX_TICKET_LEN`].
    pub fn new(bytes: &[u8]) -> Option<Ticket> {
        let mut ticket = Ticket { len: u8::try_from(bytes.len()).ok()?, ..Ticket::default() };
        ticket.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(ticket)
    }

    /// Its bytes; none if there is no ticket.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl core::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Ticket({} bytes)", self.len)
    }
}

/// The relay's answer to a right [`Connect`]: the session is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected<'a> {
    /// The hello's nonce.
    pub nonce: u64,
    /// The relay's Noise message, with a [`Joined`] as its payload.
    pub message: &'a [u8],
}

/// How what a relay sends to the participants of a comtree is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Downlink {
    /// For each member with its own key.
    #[default]
    Member = 0,
    /// Updates to groups with one key for all members of the comtree, all else as with
    /// [`Downlink::Member`].
    Group = 1,
    /// Not at all.
    None = 2,
}

impl Downlink {
    /// All of them, in the order of their numbers.
    pub const ALL: &'static [Downlink] = &[Downlink::Member, Downlink::Group, Downlink::None];

    /// Whether many receivers are sent the same bytes.
    pub const fn is_shared(self) -> bool {
        !matches!(self, Downlink::Member)
    }
}

/// The session's number, address and parameters, in the handshake's second message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The session's number, which all its packets carry.
    pub session: SessionId,
    /// The participant's unicast address in the comtree.
    pub address: Address,
    /// Which of the participant's features the relay will use.
    pub features: u32,
    /// The longest datagram in bytes that either side sends.
    pub max_datagram: u16,
    /// The cipher of the session's packets.
    pub suite: Suite,
    /// How updates to the participant are protected.
    pub downlink: Downlink,
    /// The session ends after so many milliseconds without a sign of life from the participant.
    pub lifetime_ms: u32,
    /// The participant sends a keepalive every so many milliseconds.
    pub keepalive_ms: u32,
    /// A subscription ends after so many milliseconds without a refresh.
    pub subscription_ms: u32,
    /// What the first keepalive brings back.
    pub path_stamp: u64,
    /// What brings the address back in a later session.
    pub ticket: Ticket,
}

/// The relay does not take the participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The hello's nonce.
    pub nonce: u64,
    /// Why.
    pub reason: RefusedReason,
}

/// The bits of the first byte that tell this protocol from others, in every version.
const OURS_MASK: u8 = 0xc0;
/// Where the kind stands, in every version.
const KIND_AT: usize = 8;
/// As long as the cookie that answers it.
const HELLO_LEN: usize = 8 + TAG_LEN + 32;
/// The longest payload of either message of the handshake.
pub const MAX_JOIN_LEN: usize = JOIN_FIXED + MAX_TOKEN_LEN + 1 + MAX_TICKET_LEN;
const JOIN_FIXED: usize = 4 + 4 + 2 + 2 + 2;
const JOINED_LEN: usize = 4 + 4 + 4 + 2 + 2 + 3 * 4 + 8;

/// The header of a packet of the handshake: the low bits of the nonce stand in for the session, so
/// that hello and connect reach the same data thread.
fn handshake_header(kind: Kind, comtree: Comtree, nonce: u64) -> Header {
    Header::new(kind, SessionId::new(nonce as u32), comtree)
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
        let is_hello = datagram.len() >= HEADER_LEN + HELLO_LEN
            && datagram[0] & OURS_MASK == VERSION & OURS_MASK
            && datagram[KIND_AT] == Kind::Hello as u8;
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
        let header = handshake_header(Kind::Cookie, comtree, self.nonce);
        encode(&header, &[&self.nonce.to_be_bytes(), &self.cookie, &self.relay_key], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Cookie, WireError> {
        let mut fields = Fields::new(packet, HELLO_LEN)?;
        let (nonce, cookie) = (fields.u64()?, fields.array()?);
        Ok(Cookie { nonce, cookie, relay_key: fields.array()? })
    }
}

impl<'a> Connect<'a> {
    /// Where the message begins in the packet.
    pub const MESSAGE_AT: usize = HEADER_LEN + 8 + TAG_LEN;

    /// Writes the packet into `out` and returns its length. The comtree is in the message.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let header = handshake_header(Kind::Connect, Comtree(0), self.nonce);
        encode(&header, &[&self.nonce.to_be_bytes(), &self.cookie, self.message], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'a>) -> Result<Connect<'a>, WireError> {
        let mut fields = Fields::new(packet, 8 + TAG_LEN)?;
        let (nonce, cookie) = (fields.u64()?, fields.array()?);
        Ok(Connect { nonce, cookie, message: fields.0 })
    }
}

impl<'a> Join<'a> {
    /// The feature that other sessions may be at the participant's ip:port beside its own, as behind a
    /// gateway: they are told apart by their participants' keys and their comtrees. Without it an
    /// ip:port belongs to whoever has proved it last.
    pub const SHARES: u32 = 1;

    /// Writes it into `out` and returns its length, at most [`MAX_JOIN_LEN`].
    ///
    /// # Errors
    /// [`WireError::Field`] if the token is longer than [`MAX_TOKEN_LEN`] or the ticket than
    /// [`MAX_TICKET_LEN`], [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if self.token.len() > MAX_TOKEN_LEN {
            return Err(WireError::Field("token"));
        }
        if self.ticket.len() > MAX_TICKET_LEN {
            return Err(WireError::Field("ticket"));
        }
        let fields: [&[u8]; 8] = [
            &self.comtree.0.to_be_bytes(),
            &self.features.to_be_bytes(),
            &self.max_datagram.to_be_bytes(),
            &[self.suites, self.slow_suites],
            &(self.token.len() as u16).to_be_bytes(),
            self.token,
            &[self.ticket.len() as u8],
            self.ticket,
        ];
        concatenate(&fields, 0, out)
    }

    /// Reads it; a ticket may be left out. Bytes behind it are ignored.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], [`WireError::Field`] for a token longer than
    /// [`MAX_TOKEN_LEN`] or a ticket longer than [`MAX_TICKET_LEN`].
    pub fn decode(bytes: &'a [u8]) -> Result<Join<'a>, WireError> {
        Ok(Join::decode_front(bytes)?.0)
    }

    /// Reads it, and returns the bytes behind it too.
    pub(crate) fn decode_front(bytes: &'a [u8]) -> Result<(Join<'a>, &'a [u8]), WireError> {
        let mut fields = Fields::of(bytes, JOIN_FIXED)?;
        let (comtree, features) = (Comtree(fields.u32()?), fields.u32()?);
        let max_datagram = fields.u16()?;
        let [suites, slow_suites] = fields.array()?;
        let token_len = fields.u16()?;
        if usize::from(token_len) > MAX_TOKEN_LEN {
            return Err(WireError::Field("token"));
        }
        let cut = fields.0.split_at_checked(token_len.into());
        let (token, behind) = cut.ok_or(WireError::Length)?;
        let (ticket, behind) = counted(behind, "ticket")?;
        Ok((Join { comtree, features, max_datagram, suites, slow_suites, token, ticket }, behind))
    }
}

impl<'a> Connected<'a> {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let header = handshake_header(Kind::Connected, Comtree(0), self.nonce);
        encode(&header, &[&self.nonce.to_be_bytes(), self.message], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'a>) -> Result<Connected<'a>, WireError> {
        let mut fields = Fields::new(packet, 8)?;
        Ok(Connected { nonce: fields.u64()?, message: fields.0 })
    }
}

impl Joined {
    /// Writes it into `out` and returns its length, less than [`MAX_JOIN_LEN`].
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let fields: [&[u8]; 11] = [
            &self.session.number().to_be_bytes(),
            &self.address.0.to_be_bytes(),
            &self.features.to_be_bytes(),
            &self.max_datagram.to_be_bytes(),
            &[self.suite as u8, self.downlink as u8],
            &self.lifetime_ms.to_be_bytes(),
            &self.keepalive_ms.to_be_bytes(),
            &self.subscription_ms.to_be_bytes(),
            &self.path_stamp.to_be_bytes(),
            &[self.ticket.len],
            self.ticket.bytes(),
        ];
        concatenate(&fields, 0, out)
    }

    /// Reads it; a ticket may be left out. Bytes behind it are ignored.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], or [`WireError::Field`] for a suite or a
    /// downlink that does not exist, or a ticket longer than [`MAX_TICKET_LEN`].
    pub fn decode(bytes: &[u8]) -> Result<Joined, WireError> {
        let mut fields = Fields::of(bytes, JOINED_LEN)?;
        let (session, address) = (SessionId::new(fields.u32()?), Address(fields.u32()?));
        let (features, max_datagram) = (fields.u32()?, fields.u16()?);
        let [suite, downlink] = fields.array()?;
        let is_it = |one: &&Downlink| **one as u8 == downlink;
        Ok(Joined {
            session,
            address,
            features,
            max_datagram,
            suite: Suite::from_number(suite)?,
            downlink: *Downlink::ALL.iter().find(is_it).ok_or(WireError::Field("downlink"))?,
            lifetime_ms: fields.u32()?,
            keepalive_ms: fields.u32()?,
            subscription_ms: fields.u32()?,
            path_stamp: fields.u64()?,
            ticket: Ticket::new(counted(fields.0, "ticket")?.0).unwrap_or_default(),
        })
    }
}

/// Bytes behind one that says how many there are, at most [`MAX_TICKET_LEN`], and what follows; none
/// where nothing is left.
fn counted<'a>(bytes: &'a [u8], field: &'static str) -> Result<(&'a [u8], &'a [u8]), WireError> {
    let Some((len, rest)) = bytes.split_first() else { return Ok((&[], &[])) };
    let len = usize::from(*len);
    if len > MAX_TICKET_LEN {
        return Err(WireError::Field(field));
    }
    rest.split_at_checked(len).ok_or(WireError::Length)
}

impl Refused {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, comtree: Comtree, out: &mut [u8]) -> Result<usize, WireError> {
        let header = handshake_header(Kind::Refused, comtree, self.nonce);
        encode(&header, &[&self.nonce.to_be_bytes(), &[self.reason.number()]], 0, out)
    }

    /// The nonce of a refusal because of the version, whatever version the refusing relay speaks:
    /// the places of kind, nonce and reason never change.
    pub fn nonce_of_any_version(datagram: &[u8]) -> Option<u64> {
        let (nonce, rest) = datagram.get(HEADER_LEN..)?.split_first_chunk::<8>()?;
        let is_refusal = datagram[KIND_AT] == Kind::Refused as u8
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Challenge, Gone, Keepalive, Leave, LeaveReason, MAX_DATAGRAM, Rebind, Unknown, seeded,
    };
    use proptest::prelude::*;

    const COMTREE: Comtree = Comtree(5);
    const SESSION: SessionId = SessionId::new(9);

    fn packet(out: &[u8], len: usize) -> Packet<'_> {
        Packet::new_checked(&out[..len]).unwrap()
    }

    #[test]
    fn no_reply_before_the_proof_is_longer_than_its_request() {
        let mut out = [0; 256];
        let hello = Hello { nonce: 1 }.encode(COMTREE, &mut out).unwrap();
        let cookie = Cookie { nonce: 1, cookie: [0; 16], relay_key: [1; 32] };
        let refused =
            Refused { nonce: 1, reason: RefusedReason::Full }.encode(COMTREE, &mut out).unwrap();
        assert!(cookie.encode(COMTREE, &mut out).unwrap() <= hello && refused <= hello);
        // The shortest sealed packet that is answered with a challenge, sealed too.
        let keepalive = Keepalive { stamp: 1, path_stamp: 2 };
        let keepalive = keepalive.encode(COMTREE, SESSION, &mut out).unwrap();
        let unknown = Unknown { echo: 1 }.encode(COMTREE, SESSION, &mut out).unwrap();
        assert!(Challenge::LEN <= keepalive && unknown <= HEADER_LEN + crate::SEAL_LEN);
    }

    /// What each of two sides takes and is slow at, and what they then use.
    #[test]
    fn two_sides_that_have_a_suite_in_common_agree_on_one() {
        let [aes, chacha] = [Suite::Aes128Gcm, Suite::ChaCha20Poly1305].map(Suite::bit);
        let agreed = |taken, slow| Suite::agreed(taken, slow);
        assert_eq!(agreed(aes | chacha, 0), Some(Suite::Aes128Gcm));
        assert_eq!(agreed(aes | chacha, aes), Some(Suite::ChaCha20Poly1305));
        assert_eq!(agreed(aes | chacha, aes | chacha), Some(Suite::Aes128Gcm));
        assert_eq!(agreed(aes, aes), Some(Suite::Aes128Gcm), "slow is better than nothing");
        assert_eq!(agreed(chacha, aes), Some(Suite::ChaCha20Poly1305));
        assert_eq!(agreed(0x80, 0), None);
        for taken in 0..=u8::MAX {
            let has_any = taken & (aes | chacha) != 0;
            assert!((0..=u8::MAX).all(|slow| agreed(taken, slow).is_some() == has_any));
        }
    }

    #[test]
    fn a_foreign_version_keeps_its_nonce_readable() {
        let mut out = [0; 256];
        let len = Hello { nonce: 77 }.encode(COMTREE, &mut out).unwrap();
        out[0] = 0x99;
        assert_eq!(Hello::nonce_of_any_version(&out[..len]), Some(77));
        assert_eq!(Hello::nonce_of_any_version(&out[..len - 1]), None);
    }

    #[test]
    fn a_join_or_joined_with_a_fault_is_refused() {
        let join = Join {
            comtree: COMTREE,
            features: 0,
            max_datagram: 1232,
            suites: 3,
            slow_suites: 1,
            token: b"key",
            ticket: b"seat",
        };
        let mut bytes = [0; MAX_JOIN_LEN + 1];
        let len = join.encode(&mut bytes).unwrap();
        for short in 0..JOIN_FIXED {
            let expected = WireError::TooShort { have: HEADER_LEN + short, need: HEADER_LEN + 14 };
            assert_eq!(Join::decode(&bytes[..short]), Err(expected));
        }
        let without_ticket = JOIN_FIXED + join.token.len();
        for short in (JOIN_FIXED..len).filter(|short| *short != without_ticket) {
            assert_eq!(Join::decode(&bytes[..short]), Err(WireError::Length));
        }
        assert_eq!(Join::decode(&bytes[..without_ticket]), Ok(Join { ticket: b"", ..join }));
        bytes[without_ticket] = MAX_TICKET_LEN as u8 + 1;
        assert_eq!(Join::decode(&bytes), Err(WireError::Field("ticket")));
        let ticket = &[0; MAX_TICKET_LEN + 1];
        assert_eq!(Join { ticket, ..join }.encode(&mut bytes), Err(WireError::Field("ticket")));
        bytes[12..14].copy_from_slice(&1001_u16.to_be_bytes());
        assert_eq!(Join::decode(&bytes), Err(WireError::Field("token")));
        let token = &[0; MAX_TOKEN_LEN + 1];
        assert_eq!(Join { token, ..join }.encode(&mut bytes), Err(WireError::Field("token")));

        let mut longer = [0; JOINED_LEN + 1];
        longer[JOINED_LEN] = 1;
        assert_eq!(Joined::decode(&longer), Err(WireError::Length));
        longer[JOINED_LEN] = MAX_TICKET_LEN as u8 + 1;
        assert_eq!(Joined::decode(&longer), Err(WireError::Field("ticket")));
        let mut bytes = [0; JOINED_LEN];
        assert!(Joined::decode(&bytes).is_ok());
        assert!((0..JOINED_LEN).all(|short| Joined::decode(&bytes[..short]).is_err()));
        for (at, taken, field) in [(14, &[0, 1][..], "suite"), (15, &[0, 1, 2][..], "downlink")] {
            for value in 0..=u8::MAX {
                bytes[at] = value;
                let expected =
                    if taken.contains(&value) { None } else { Some(WireError::Field(field)) };
                assert_eq!(Joined::decode(&bytes).err(), expected, "{field} {value}");
            }
            bytes[at] = 0;
        }
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn session_packets_survive_the_wire(
            nonce: u64, cookie: Tag, suite: bool, downlink in 0..3usize, reason: u8, address: u32, times: [u32; 4],
            max_datagram: u16, session: u32, relay_key: [u8; 32],
            token in proptest::collection::vec(any::<u8>(), 0..=MAX_TOKEN_LEN),
            ticket in proptest::collection::vec(any::<u8>(), 0..=MAX_TICKET_LEN),
        ) {
            let mut out = [0; MAX_DATAGRAM];
            let hello = Hello { nonce };
            let len = hello.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Hello::decode(&packet(&out, len)).unwrap(), hello);
            let answer = Cookie { nonce, cookie, relay_key };
            let len = answer.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Cookie::decode(&packet(&out, len)).unwrap(), answer);
            let (suites, slow_suites) = (reason, !reason);
            let (comtree, features) = (COMTREE, times[3]);
            let (token, ticket) = (&token[..], &ticket[..]);
            let join = Join { comtree, features, max_datagram, suites, slow_suites, token, ticket };
            let mut message = [0; MAX_JOIN_LEN];
            let len = join.encode(&mut message).unwrap();
            prop_assert_eq!(Join::decode(&message[..len]).unwrap(), join);
            let connect = Connect { nonce, cookie, message: &message[..len] };
            let len = connect.encode(&mut out).unwrap();
            prop_assert_eq!(Connect::decode(&packet(&out, len)).unwrap(), connect);
            prop_assert_eq!(&out[Connect::MESSAGE_AT..len], connect.message);
            let joined = Joined {
                session: SessionId::new(session), address: Address(address), features: times[3],
                max_datagram, suite: Suite::ALL[usize::from(suite)],
                downlink: Downlink::ALL[downlink],
                lifetime_ms: times[0], keepalive_ms: times[1], subscription_ms: times[2],
                path_stamp: nonce, ticket: Ticket::new(ticket).unwrap(),
            };
            let mut message = [0; MAX_JOIN_LEN];
            let len = joined.encode(&mut message).unwrap();
            prop_assert_eq!(Joined::decode(&message[..len]).unwrap(), joined);
            let connected = Connected { nonce, message: &message[..len] };
            let len = connected.encode(&mut out).unwrap();
            prop_assert_eq!(Connected::decode(&packet(&out, len)).unwrap(), connected);
            let refused = Refused { nonce, reason: RefusedReason::from_number(reason) };
            let len = refused.encode(COMTREE, &mut out).unwrap();
            prop_assert_eq!(Refused::decode(&packet(&out, len)).unwrap(), refused);
            let leave = Leave { reason: LeaveReason::from_number(reason) };
            let len = leave.encode(COMTREE, SESSION, &mut out).unwrap();
            prop_assert_eq!(Leave::decode(&packet(&out, len)).unwrap(), leave);
            let keepalive = Keepalive { stamp: nonce, path_stamp: 3 };
            let len = keepalive.encode(COMTREE, SESSION, &mut out).unwrap();
            prop_assert_eq!(Keepalive::decode(&packet(&out, len)).unwrap(), keepalive);
            let challenge = Challenge { cookie };
            let len = challenge.encode(COMTREE, SESSION, &mut out).unwrap();
            prop_assert_eq!(Challenge::decode(&packet(&out, len)).unwrap(), challenge);
            let unknown = Unknown { echo: nonce };
            let len = unknown.encode(COMTREE, SESSION, &mut out).unwrap();
            prop_assert_eq!(Unknown::decode(&packet(&out, len)).unwrap(), unknown);
            let gone = Gone { address: Address(address) };
            let len = gone.encode(COMTREE, SESSION, &mut out).unwrap();
            prop_assert_eq!(Gone::decode(&packet(&out, len)).unwrap(), gone);
            let rebind = Rebind { cookie };
            let len = rebind.encode(COMTREE, SESSION, &mut out).unwrap();
            prop_assert_eq!(Rebind::decode(&packet(&out, len)).unwrap(), rebind);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..1432)) {
            let mut out = [0; MAX_DATAGRAM];
            let header = Header::new(Kind::Hello, SESSION, COMTREE);
            let len = header.encode_packet(&body, &mut out).unwrap();
            let packet = packet(&out, len);
            let _ = (Hello::decode(&packet), Cookie::decode(&packet), Connect::decode(&packet));
            let _ = (Join::decode(&body), Joined::decode(&body), Connected::decode(&packet), Refused::decode(&packet), Leave::decode(&packet));
            let _ = (Unknown::decode(&packet), Keepalive::decode(&packet), Challenge::decode(&packet), Rebind::decode(&packet), Gone::decode(&packet));
        }
    }
}
