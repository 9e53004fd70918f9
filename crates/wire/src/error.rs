//! What can be wrong with a datagram.

use crate::DropReason;

/// Why a datagram is no packet of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The datagram has no bytes.
    #[error("the datagram is empty")]
    Empty,
    /// The datagram ends inside the base header or inside its kind's fixed part.
    #[error("the datagram has {have} bytes where its kind needs {need}")]
    TooShort {
        /// Bytes that came.
        have: usize,
        /// Bytes that the kind needs at least.
        need: usize,
    },
    /// The first byte is not this version's.
    #[error("version byte {0:#04x}, this side speaks {expected:#04x}", expected = crate::VERSION)]
    Version(u8),
    /// No packet kind has this number.
    #[error("unknown packet kind {0:#04x}")]
    Kind(u8),
    /// The datagram is longer than [`crate::MAX_DATAGRAM`].
    #[error("the datagram has {0} bytes, more than {max}", max = crate::MAX_DATAGRAM)]
    Oversized(usize),
    /// A length field points past the end, or the body does not tile.
    #[error("a length in the packet does not fit its bytes")]
    Length,
    /// A field has a value that its kind does not allow.
    #[error("the packet's field {0} has a value that is not allowed")]
    Field(&'static str),
}

impl From<WireError> for DropReason {
    fn from(error: WireError) -> DropReason {
        match error {
            WireError::Empty => DropReason::Empty,
            WireError::TooShort { .. } | WireError::Length | WireError::Field(_) => {
                DropReason::Malformed
            }
            WireError::Version(_) => DropReason::Version,
            WireError::Kind(_) => DropReason::UnknownKind,
            WireError::Oversized(_) => DropReason::Oversized,
        }
    }
}
