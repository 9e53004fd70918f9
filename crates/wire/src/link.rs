//! What a relay says in its handshake with a neighbour: it asks for a link, not for a comtree.

use crate::fields::{Fields, concatenate};
use crate::{Comtree, Join, SessionId, WireError};

/// What a relay asks its neighbour for, in the handshake's first message. It reads as a [`Join`] of
/// comtree 0 with the feature [`LinkJoin::FEATURE`], behind whose ticket there are the link's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkJoin {
    /// The number that the neighbour's packets are to carry: a session of the relay that asks.
    pub session: SessionId,
    /// Which data thread of the neighbour's is to have the link, modulo how many it has.
    pub thread: u16,
    /// The longest datagram in bytes that the path takes.
    pub max_datagram: u16,
    /// The suites that the relay takes, a [bit](crate::Suite::bit) each.
    pub suites: u8,
    /// Those that its processor has no instructions for.
    pub slow_suites: u8,
}

const FIELDS_LEN: usize = 4 + 2 + 2;

impl LinkJoin {
    /// The bit of a join's features that says that a relay asks for a link.
    pub const FEATURE: u32 = 1 << 31;

    /// Writes it into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let LinkJoin { session, thread, max_datagram, suites, slow_suites } = *self;
        let (comtree, features) = (Comtree(0), LinkJoin::FEATURE);
        let (token, ticket) = (&[][..], &[][..]);
        let join = Join { comtree, features, max_datagram, suites, slow_suites, token, ticket };
        let len = join.encode(out)?;
        let fields: [&[u8]; 2] = [&session.number().to_be_bytes(), &thread.to_be_bytes()];
        Ok(len + concatenate(&fields, FIELDS_LEN, &mut out[len..])?)
    }

    /// Reads it; `None` if it is a participant's join.
    ///
    /// # Errors
    /// Those of [`Join::decode`], or [`WireError::TooShort`].
    pub fn decode(bytes: &[u8]) -> Result<Option<LinkJoin>, WireError> {
        let (join, behind) = Join::decode_front(bytes)?;
        if join.features & LinkJoin::FEATURE == 0 {
            return Ok(None);
        }
        let mut fields = Fields::of(behind, FIELDS_LEN)?;
        let (session, thread) = (SessionId::new(fields.u32()?), fields.u16()?);
        let Join { max_datagram, suites, slow_suites, .. } = join;
        Ok(Some(LinkJoin { session, thread, max_datagram, suites, slow_suites }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SAFE_DATAGRAM;

    const ASKED: LinkJoin = LinkJoin {
        session: SessionId::new(0x01_02_03),
        thread: 5,
        max_datagram: SAFE_DATAGRAM as u16,
        suites: 3,
        slow_suites: 1,
    };

    #[test]
    fn what_a_relay_asks_for_survives_the_wire_and_reads_as_a_join() {
        let mut out = [0xff; 64];
        let len = ASKED.encode(&mut out).unwrap();
        assert_eq!(LinkJoin::decode(&out[..len]), Ok(Some(ASKED)));
        let join = Join::decode(&out[..len]).unwrap();
        assert_eq!((join.comtree, join.suites, join.token), (Comtree(0), 3, &[][..]));
        for short in 0..len {
            assert!(LinkJoin::decode(&out[..short]).is_err(), "{short} bytes");
            assert!(ASKED.encode(&mut out.to_vec()[..short]).is_err(), "{short} bytes");
        }
    }

    #[test]
    fn a_participants_join_asks_for_no_link() {
        let join = Join {
            comtree: Comtree(1),
            features: 1,
            max_datagram: 1232,
            suites: 3,
            slow_suites: 0,
            token: b"abc",
            ticket: b"",
        };
        let mut out = [0; 64];
        let len = join.encode(&mut out).unwrap();
        assert_eq!(LinkJoin::decode(&out[..len]), Ok(None));
    }
}
