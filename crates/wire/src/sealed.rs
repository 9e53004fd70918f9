//! What can be read of a sealed datagram without its key.

use crate::{CLEAR_LEN, Class, HEADER_LEN, MAX_DATAGRAM, SessionId, VERSION};

/// A datagram that says it is sealed, as it looks to whoever has no key. Nothing of it is proved yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The session whose keys open it.
    pub session: SessionId,
    /// The first of the sealed bytes. No two packets of a session are likely to have the same, so an
    /// [`Unknown`](crate::Unknown) names by them the packet that it answers.
    pub first: u64,
}

impl Sealed {
    /// The view of a datagram; `None` if it does not say that it is sealed, or is shorter than a
    /// header or longer than [`MAX_DATAGRAM`]: then [`Packet::new_checked`](crate::Packet::new_checked)
    /// says what is wrong with it.
    #[inline]
    pub fn of(datagram: &[u8]) -> Option<Sealed> {
        let head = datagram.first_chunk::<HEADER_LEN>()?;
        if head[0] != VERSION | Class::Sealed as u8 || datagram.len() > MAX_DATAGRAM {
            return None;
        }
        let (clear, first) = head.split_at(CLEAR_LEN);
        let word = u32::from_be_bytes([clear[0], clear[1], clear[2], clear[3]]);
        Some(Sealed {
            session: SessionId::new(word),
            first: u64::from_be_bytes(*first.first_chunk()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_datagram_shows_its_session_and_its_first_sealed_bytes() {
        let mut datagram = [0; MAX_DATAGRAM + 1];
        datagram[..4].copy_from_slice(&[VERSION | Class::Sealed as u8, 1, 2, 3]);
        datagram[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let seen = Some(Sealed { session: SessionId::new(0x01_02_03), first: 0x0102030405060708 });
        for len in [HEADER_LEN, HEADER_LEN + 1, MAX_DATAGRAM] {
            assert_eq!(Sealed::of(&datagram[..len]), seen, "{len} bytes");
        }
    }

    #[test]
    fn what_is_in_clear_too_short_or_too_long_is_not_sealed() {
        let mut datagram = [0; MAX_DATAGRAM + 1];
        datagram[0] = VERSION | Class::Sealed as u8;
        for len in [0, 1, CLEAR_LEN, HEADER_LEN - 1, MAX_DATAGRAM + 1] {
            assert_eq!(Sealed::of(&datagram[..len]), None, "{len} bytes");
        }
        for first in (0..=u8::MAX).filter(|first| *first != VERSION | Class::Sealed as u8) {
            datagram[0] = first;
            assert_eq!(Sealed::of(&datagram[..40]), None, "{first:#x}");
        }
    }
}
