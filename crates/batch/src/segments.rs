//! Datagrams of one size that a receiver gets at once.

use crate::{MAX_SEGMENTS, MAX_SEND_BYTES};
use core::fmt;

/// Datagrams of one size, of which the last may be shorter: no more than one send can carry.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    bytes: &'a [u8],
    segment: u16,
}

/// Why bytes cannot leave in one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSendable {
    /// There are no datagrams, or they have no bytes.
    Empty,
    /// They are more than one send can carry.
    TooLarge {
        /// How many datagrams.
        datagrams: usize,
        /// How many bytes all of them have.
        bytes: usize,
    },
}

impl<'a> Segments<'a> {
    /// Datagrams of `segment` bytes.
    ///
    /// # Errors
    /// If there is nothing to send, or more than [`MAX_SEGMENTS`] datagrams or [`MAX_SEND_BYTES`].
    pub fn new(bytes: &'a [u8], segment: usize) -> Result<Segments<'a>, NotSendable> {
        if bytes.is_empty() || segment == 0 {
            return Err(NotSendable::Empty);
        }
        let datagrams = bytes.len().div_ceil(segment);
        if datagrams > MAX_SEGMENTS || bytes.len() > MAX_SEND_BYTES {
            return Err(NotSendable::TooLarge { datagrams, bytes: bytes.len() });
        }
        Ok(Segments { bytes, segment: segment.min(bytes.len()) as u16 })
    }

    /// One datagram.
    ///
    /// # Errors
    /// If it is empty or longer than [`MAX_SEND_BYTES`].
    pub fn one(datagram: &'a [u8]) -> Result<Segments<'a>, NotSendable> {
        Segments::new(datagram, datagram.len())
    }

    /// All datagrams, one behind the other.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of each datagram but the last.
    pub fn segment(&self) -> u16 {
        self.segment
    }

    /// How many datagrams they are.
    pub fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.into())
    }
}

impl fmt::Display for NotSendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSendable::Empty => f.write_str("there is nothing to send; give at least one byte"),
            NotSendable::TooLarge { datagrams, bytes } => write!(
                f,
                "{datagrams} datagrams of {bytes} bytes together are too much for one send; give at \
                 most {MAX_SEGMENTS} and {MAX_SEND_BYTES} bytes"
            ),
        }
    }
}

impl core::error::Error for NotSendable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_bounded() {
        let bytes = [0; MAX_SEND_BYTES + 1];
        assert_eq!(Segments::one(&[]).unwrap_err(), NotSendable::Empty);
        assert_eq!(Segments::new(&[1], 0).unwrap_err(), NotSendable::Empty);
        assert!(matches!(Segments::one(&bytes), Err(NotSendable::TooLarge { .. })));
        assert!(matches!(Segments::new(&bytes[..65], 1), Err(NotSendable::TooLarge { .. })));
        let segments = Segments::new(&bytes[..250], 100).unwrap();
        assert_eq!((segments.datagrams(), segments.segment()), (3, 100));
        assert_eq!(Segments::new(&bytes[..50], 100).unwrap().datagrams(), 1);
    }
}
