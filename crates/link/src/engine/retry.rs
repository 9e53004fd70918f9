//! What to do with a send that the kernel did not take: wait, look past another's error, give up.

use super::SendReport;
use crate::Socket;
use crate::wait::{nap, wait_writable};
use std::io;
use std::time::Duration;

/// Waits in a row, without anything sent, before a datagram counts as refused.
const MAX_WAITS: u32 = 50;
/// The longest wait for room in the send buffer.
const WAIT: Duration = Duration::from_millis(20);
/// The first and the longest nap while the device's queue is full: nothing tells when it is not.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));
/// Errors in a row that may be of earlier datagrams.
const MAX_REPORTED: u32 = 4;

/// How often a send was tried already.
pub(crate) struct Retries {
    waits: u32,
    reported: u32,
    nap: Duration,
}

impl Retries {
    pub(crate) fn new() -> Retries {
        Retries { waits: 0, reported: 0, nap: NAPS.0 }
    }

    /// What was tried is done with. After progress there is as much patience as at first; after a
    /// queue that stayed full there is none left for what follows.
    pub(crate) fn next(&mut self, progress: bool) {
        let patience = if progress { Retries::new() } else { Retries { reported: 0, ..*self } };
        *self = patience;
    }

    /// Whether to try again what failed with `error`, once this has waited as long as it takes.
    pub(crate) fn again(
        &mut self,
        socket: &Socket,
        error: &io::Error,
        report: &mut SendReport,
    ) -> bool {
        if error.kind() == io::ErrorKind::Interrupted {
            return true;
        }
        if may_be_reported(error) {
            self.reported += 1;
            socket.take_errors();
            return self.reported <= MAX_REPORTED;
        }
        if !is_full(error) || self.waits == MAX_WAITS {
            return false;
        }
        self.waits += 1;
        report.waits += 1;
        if error.kind() == io::ErrorKind::WouldBlock {
            wait_writable(socket, WAIT);
        } else {
            nap(self.nap);
            self.nap = (self.nap * 2).min(NAPS.1);
        }
        true
    }
}

/// Whether the kernel has no room right now: in the send buffer, or in the device's queue.
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether this may be what a router or a receiver said of an earlier datagram: the kernel hands
/// it to whatever is sent next, which it does not send.
pub(crate) fn may_be_reported(error: &io::Error) -> bool {
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
