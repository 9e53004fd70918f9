//! What it means when the kernel does not take a datagram: try again, wait, or give up.

use super::Full;
use crate::socket::Socket;
use std::io;

/// How many errors in a row may be about earlier datagrams.
const MAX_REPORTED: u32 = 4;

/// What to do with a datagram that the kernel did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The error was about something else: send it again at once.
    Again,
    /// There is no room at the moment.
    Full(Full),
    /// The kernel will never take it like this.
    Refused,
}

/// Judges the errors of one call of an engine.
#[derive(Debug, Default)]
pub struct Errors {
    reported: u32,
}

impl Errors {
    /// What to do after this error of a send through `socket`.
    pub fn judge(&mut self, socket: &Socket, error: &io::Error) -> Verdict {
        if error.kind() == io::ErrorKind::Interrupted {
            return Verdict::Again;
        }
        if error.kind() == io::ErrorKind::WouldBlock {
            return Verdict::Full(Full::Buffer);
        }
        if error.raw_os_error() == Some(libc::ENOBUFS) {
            return Verdict::Full(Full::Device);
        }
        if may_be_reported(error) && self.reported < MAX_REPORTED {
            self.reported += 1;
            socket.take_errors();
            return Verdict::Again;
        }
        Verdict::Refused
    }

    /// A datagram was taken, or was refused for good: the next error is about another.
    pub fn next(&mut self) {
        self.reported = 0;
    }
}

/// Whether this may be what a router or a receiver said about an earlier datagram: the kernel
/// returns it from whatever call comes next, which then does nothing else.
pub fn may_be_reported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EPROTO
                | libc::EACCES
                | libc::EMSGSIZE
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SocketOptions;

    #[test]
    fn an_error_that_stays_is_the_datagrams_own() {
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = Socket::bind(any, &SocketOptions::default()).unwrap();
        let mut errors = Errors::default();
        let unreachable = io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        for _ in 0..2 {
            for _ in 0..MAX_REPORTED {
                assert_eq!(errors.judge(&socket, &unreachable), Verdict::Again);
            }
            assert_eq!(errors.judge(&socket, &unreachable), Verdict::Refused);
            errors.next();
        }
        let mut judge = |code| errors.judge(&socket, &io::Error::from_raw_os_error(code));
        assert_eq!(judge(libc::EAGAIN), Verdict::Full(Full::Buffer));
        assert_eq!(judge(libc::ENOBUFS), Verdict::Full(Full::Device));
        assert_eq!(judge(libc::EINVAL), Verdict::Refused);
    }
}
