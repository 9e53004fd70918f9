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

/// The patience of one call of an engine, however many datagrams it sends: a queue that stays full
/// holds the caller up for as long as it has patience, and then each datagram is tried once.
pub struct Retries {
    /// Waits that are left.
    left: u32,
    /// Waits that there are again after progress. Half as many whenever none was left, for where one
    /// receiver's queue is stuck, another's progress says nothing of it.
    allowed: u32,
    reported: u32,
    nap: Duration,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries::new()
    }
}

impl Retries {
    /// All the patience there is.
    pub fn new() -> Retries {
        Retries { left: MAX_WAITS, allowed: MAX_WAITS, reported: 0, nap: NAPS.0 }
    }

    /// What was tried is done with. After progress there is patience again; after a queue that
    /// stayed full there is none left for what follows.
    pub fn next(&mut self, progress: bool) {
        self.reported = 0;
        if progress {
            self.left = self.allowed;
            self.nap = NAPS.0;
        }
    }

    /// Whether there is patience left.
    pub fn is_patient(&self) -> bool {
        self.left > 0
    }

    /// Somebody else has waited for so long that there is no patience left.
    pub fn give_up(&mut self) {
        self.left = 0;
        self.allowed /= 2;
    }

    /// Whether to try again what failed with `error`, once this has waited as long as it takes.
    pub fn again(&mut self, socket: &Socket, error: &io::Error, report: &mut SendReport) -> bool {
        if error.kind() == io::ErrorKind::Interrupted {
            return true;
        }
        if may_be_reported(error) {
            self.reported += 1;
            socket.take_errors();
            return self.reported <= MAX_REPORTED;
        }
        if !is_full(error) {
            return false;
        }
        if error.kind() == io::ErrorKind::WouldBlock {
            self.wait(report, |_| wait_writable(socket, WAIT))
        } else {
            self.nap(report)
        }
    }

    /// Whether there was patience for a full device queue, which then was waited for.
    pub fn nap(&mut self, report: &mut SendReport) -> bool {
        self.wait(report, |retries| {
            nap(retries.nap);
            retries.nap = (retries.nap * 2).min(NAPS.1);
        })
    }

    fn wait(&mut self, report: &mut SendReport, how: impl FnOnce(&mut Retries)) -> bool {
        if self.left == 0 {
            return false;
        }
        if self.left == 1 {
            self.give_up();
        } else {
            self.left -= 1;
        }
        report.waits += 1;
        how(self);
        true
    }
}

/// Whether the kernel has no room right now: in the send buffer, or in the device's queue.
pub fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether this may be what a router or a receiver said of an earlier datagram: the kernel hands
/// it to whatever is sent next, which it does not send.
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

    fn waits(retries: &mut Retries) -> u32 {
        let mut report = SendReport::default();
        while retries.wait(&mut report, |_| {}) {}
        report.waits as u32
    }

    #[test]
    fn a_queue_that_stays_full_uses_patience_up() {
        let mut retries = Retries::new();
        assert_eq!(waits(&mut retries), MAX_WAITS);
        retries.next(false);
        assert_eq!(waits(&mut retries), 0, "what follows is tried once");
        retries.next(true);
        assert_eq!(waits(&mut retries), MAX_WAITS / 2);
        let all: u32 = (0..20).map(|_| (retries.next(true), waits(&mut retries)).1).sum();
        assert!(all < MAX_WAITS / 2, "{all}: the progress of others does not make it endless");
    }

    #[test]
    fn a_slow_queue_is_waited_for_however_long_it_takes() {
        let mut retries = Retries::new();
        for _ in 0..1000 {
            assert!(retries.wait(&mut SendReport::default(), |_| {}));
            retries.next(true);
        }
        assert_eq!(waits(&mut retries), MAX_WAITS);
    }
}
