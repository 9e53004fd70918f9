//! What a member asks of its relay beyond updates and subscriptions, and the relay's answer. One
//! request of a session is on the way at a time, and is repeated until it is answered.

use crate::fields::{Fields, encode};
use crate::{
    Address, Comtree, Group, Header, Kind, MAX_TOKEN_LEN, Packet, RequestStatus, SessionId,
    WireError,
};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Go on by this token in place of the session's own.
    Renew(&'a [u8]),
    /// Do this with a member; of servers only.
    Judge(Address, Verdict),
}

/// What a server says of a member of its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it away, and let nobody in by its token any more.
    ThrowOut,
    /// From now on it may not do this, whatever its token grants.
    Restrict(Restriction),
    /// Take back exactly this restriction.
    Restore(Restriction),
}

/// What a member may not do, whatever its token grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Restriction {
    /// The acts.
    pub acts: Acts,
    /// The first of the groups; unicast has none.
    pub first: Group,
    /// The last of them.
    pub last: Group,
}

/// Acts that can be restricted, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acts(pub u8);

impl Acts {
    /// To publish to groups.
    pub const PUBLISH: Acts = Acts(1);
    /// To subscribe to groups.
    pub const SUBSCRIBE: Acts = Acts(2);
    /// To send unicast.
    pub const UNICAST: Acts = Acts(4);

    /// Whether one of `others` is among them.
    pub const fn any_of(self, others: Acts) -> bool {
        self.0 & others.0 != 0
    }

    /// Both together.
    pub const fn and(self, others: Acts) -> Acts {
        Acts(self.0 | others.0)
    }
}

impl Restriction {
    const NONE: Restriction = Restriction::new(Acts(0), Group::new(0), Group::new(0));

    /// Forbids these acts in the groups from `first` to `last`.
    pub const fn new(acts: Acts, first: Group, last: Group) -> Restriction {
        Restriction { acts, first, last }
    }

    /// To say nothing to anybody.
    pub const MUTE: Restriction = Restriction {
        acts: Acts::PUBLISH.and(Acts::UNICAST),
        first: Group::new(0),
        last: Group::new(Group::MAX),
    };
}

/// A request in its packet: it is done once, however often it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedRequest<'a> {
    /// Its number among the session's; [`next_sequence`](crate::next_sequence) follows.
    pub sequence: u32,
    /// What is asked.
    pub request: Request<'a>,
}

/// The relay's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request's number.
    pub sequence: u32,
    /// What became of it.
    pub status: RequestStatus,
}

const RENEW: u8 = 1;
const THROW_OUT: u8 = 2;
const RESTRICT: u8 = 3;
const RESTORE: u8 = 4;

const FIXED_LEN: usize = 4 + 2 + 2 + 3 * 4;

impl<'a> NumberedRequest<'a> {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Field`] if a token is longer than [`MAX_TOKEN_LEN`], [`WireError::Length`] if
    /// `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let (what, whom, restriction, token) = match self.request {
            Request::Renew(token) => (RENEW, Address::UNSPECIFIED, Restriction::NONE, token),
            Request::Judge(whom, verdict) => {
                let (what, restriction) = match verdict {
                    Verdict::ThrowOut => (THROW_OUT, Restriction::NONE),
                    Verdict::Restrict(restriction) => (RESTRICT, restriction),
                    Verdict::Restore(restriction) => (RESTORE, restriction),
                };
                (what, whom, restriction, &[][..])
            }
        };
        if token.len() > MAX_TOKEN_LEN {
            return Err(WireError::Field("token"));
        }
        let fields: [&[u8]; 7] = [
            &self.sequence.to_be_bytes(),
            &[what, restriction.acts.0],
            &(token.len() as u16).to_be_bytes(),
            &whom.0.to_be_bytes(),
            &restriction.first.number().to_be_bytes(),
            &restriction.last.number().to_be_bytes(),
            token,
        ];
        encode(&Header::new(Kind::Request, session, comtree), &fields, 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], or [`WireError::Field`] for a request that
    /// this release does not know, and for groups whose last comes before the first.
    pub fn decode(packet: &Packet<'a>) -> Result<NumberedRequest<'a>, WireError> {
        let mut fields = Fields::new(packet, FIXED_LEN)?;
        let sequence = fields.u32()?;
        let ([what, acts], token_len) = (fields.array()?, fields.u16()?);
        let whom = Address(fields.u32()?);
        let mut group = || fields.u32().map(Group::from_low_bits);
        let (first, last) = (group()?, group()?);
        if usize::from(token_len) > MAX_TOKEN_LEN {
            return Err(WireError::Field("token"));
        }
        let token = fields.0.get(..token_len.into()).ok_or(WireError::Length)?;
        if first > last {
            return Err(WireError::Field("groups"));
        }
        let restriction = Restriction { acts: Acts(acts), first, last };
        let request = match what {
            RENEW => Request::Renew(token),
            THROW_OUT => Request::Judge(whom, Verdict::ThrowOut),
            RESTRICT => Request::Judge(whom, Verdict::Restrict(restriction)),
            RESTORE => Request::Judge(whom, Verdict::Restore(restriction)),
            _ => return Err(WireError::Field("request")),
        };
        Ok(NumberedRequest { sequence, request })
    }
}

impl Response {
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
        let header = Header::new(Kind::Response, session, comtree);
        encode(&header, &[&self.sequence.to_be_bytes(), &[self.status.number()]], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Response, WireError> {
        let mut fields = Fields::new(packet, 5)?;
        Ok(Response { sequence: fields.u32()?, status: RequestStatus::from_number(fields.u8()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_DATAGRAM, seeded};
    use proptest::prelude::*;

    const COMTREE: Comtree = Comtree(9);
    const WHOM: Address = Address::unicast(1, 70);

    fn requests() -> [Request<'static>; 5] {
        let some = Restriction { acts: Acts::SUBSCRIBE, first: Group::new(3), last: Group::new(9) };
        [
            Request::Renew(b"v4.public.abc"),
            Request::Renew(&[7; MAX_TOKEN_LEN]),
            Request::Judge(WHOM, Verdict::ThrowOut),
            Request::Judge(WHOM, Verdict::Restrict(Restriction::MUTE)),
            Request::Judge(WHOM, Verdict::Restore(some)),
        ]
    }

    #[test]
    fn requests_and_responses_survive_their_packets() {
        let mut out = [0; MAX_DATAGRAM];
        for request in requests() {
            let sent = NumberedRequest { sequence: 7, request };
            let len = sent.encode(COMTREE, SessionId::new(5), &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            assert_eq!(NumberedRequest::decode(&packet), Ok(sent));
        }
        for number in 0..=u8::MAX {
            let sent = Response { sequence: 8, status: RequestStatus::from_number(number) };
            let len = sent.encode(COMTREE, SessionId::new(5), &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            assert_eq!(Response::decode(&packet), Ok(sent));
        }
        let long = Request::Renew(&[0; MAX_TOKEN_LEN + 1]);
        let long = NumberedRequest { sequence: 1, request: long };
        let written = long.encode(COMTREE, SessionId::new(5), &mut out);
        assert_eq!(written, Err(WireError::Field("token")));
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut out = [0; MAX_DATAGRAM];
            for kind in [Kind::Request, Kind::Response] {
                let header = Header::new(kind, SessionId::new(5), COMTREE);
                let len = encode(&header, &[&body], 0, &mut out).unwrap();
                let packet = Packet::new_checked(&out[..len]).unwrap();
                let _ = NumberedRequest::decode(&packet);
                let _ = Response::decode(&packet);
            }
        }
    }
}
