//! A relay tells a member that it drops a part of what the member sends.

use crate::fields::{Fields, encode};
use crate::{Comtree, Excess, Header, Kind, Packet, SessionId, WireError};

/// What a relay drops of what a member sends, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// What there was too much of.
    pub what: Excess,
    /// Datagrams and updates that were dropped since the last such packet.
    pub dropped: u32,
}

impl Busy {
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
        let header = Header::new(Kind::Busy, session, comtree);
        encode(&header, &[&[self.what.number(), 0, 0, 0], &self.dropped.to_be_bytes()], 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Busy, WireError> {
        let mut fields = Fields::new(packet, 8)?;
        let [what, _, _, _] = fields.array()?;
        Ok(Busy { what: Excess::from_number(what), dropped: fields.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = [0; 64];
        for what in [Excess::Updates, Excess::Subscriptions, Excess::Other(77)] {
            let busy = Busy { what, dropped: 0x0102_0304 };
            let len = busy.encode(Comtree(9), SessionId::new(5), &mut out).unwrap();
            assert_eq!(Busy::decode(&Packet::new_checked(&out[..len]).unwrap()), Ok(busy));
            let short = Packet::new_checked(&out[..len - 1]).unwrap();
            assert!(Busy::decode(&short).is_err());
        }
    }
}
