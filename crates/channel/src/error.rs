//! Why a channel does not come about, or ends.

use std::time::Duration;

/// Why a channel does not come about, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The connection failed.
    #[error("the connection failed: {0}; it may be tried again")]
    Io(#[from] std::io::Error),
    /// The other side has ended the connection.
    #[error(
        "the other side has ended the connection; if that is so at once, see that the controller's \
         key is right, that this side may ask, and that not too many of its ip do so at the same time"
    )]
    Ended,
    /// The other side said nothing for so long.
    #[error("the other side said nothing for {0:?}; see whether it is a controller, and runs")]
    Silent(Duration),
    /// Whoever answers does not have the key that was expected.
    #[error(
        "who answers is not the controller with this key; take the key that the controller prints \
         when it starts"
    )]
    NotTheController,
    /// Whoever calls means another controller, or speaks something else.
    #[error(
        "who calls means another controller, or speaks another protocol; see the key that it has"
    )]
    NotACaller,
    /// A message was altered, left out or repeated on the way.
    #[error("a message was altered on the way; connect again")]
    Forged,
    /// A message is longer than messages can be.
    #[error("a message of {0} bytes is too long; ask for less at once")]
    TooLong(usize),
    /// The other side does not do what was asked.
    #[error("refused: {0}")]
    Refused(serde_json::Value),
    /// A text cannot be read.
    #[error("a message cannot be read: {0}; see that both sides have the same version")]
    Text(serde_json::Error),
    /// A key cannot be used.
    #[error("the keys cannot be used: {0}; make others")]
    Keys(#[from] snow::Error),
}
