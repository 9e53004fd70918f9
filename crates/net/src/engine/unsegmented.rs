//! Receivers whose way has no segmentation offload.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How long a way counts as one without: the route may change.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How many are remembered. With more, the oldest are tried again sooner.
const MOST: usize = 64;

/// Receivers to whom a send of several datagrams has failed because the way there has no
/// segmentation offload (IPsec, a device without checksums). They are sent to one datagram at a
/// time for a minute; everybody else is served as ever.
#[derive(Debug, Default)]
pub struct Unsegmented {
    /// The oldest first.
    known: Vec<(IpAddr, Instant)>,
}

impl Unsegmented {
    /// Whether nobody is known, which costs no look at the clock.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes note of what a segmented send to `to` failed with.
    pub fn note(&mut self, to: SocketAddr, error: &io::Error) {
        if error.raw_os_error() == Some(libc::EIO) {
            self.add(to.ip(), Instant::now());
        }
    }

    /// Forgets whom it has known for long enough. To be called now and then while somebody is known.
    pub fn forget_old(&mut self, now: Instant) {
        self.known.retain(|(_, since)| now.duration_since(*since) < REMEMBERED);
    }

    /// Whether `to` must be sent one datagram at a time.
    pub fn contains(&self, to: SocketAddr) -> bool {
        self.known.iter().any(|(ip, _)| *ip == to.ip())
    }

    fn add(&mut self, ip: IpAddr, now: Instant) {
        self.known.retain(|(other, _)| *other != ip);
        if self.known.len() == MOST {
            self.known.remove(0);
        }
        self.known.push((ip, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 9))
    }

    #[test]
    fn ways_are_remembered_one_by_one_and_for_a_minute() {
        let (mut known, start) = (Unsegmented::default(), Instant::now());
        known.add(receiver(1).ip(), start);
        known.add(receiver(2).ip(), start + REMEMBERED / 2);
        known.forget_old(start + REMEMBERED / 2);
        assert!(known.contains(receiver(1)) && known.contains(receiver(2)));
        assert!(!known.contains(receiver(3)));
        known.forget_old(start + REMEMBERED);
        assert!(!known.contains(receiver(1)) && known.contains(receiver(2)));
        known.note(receiver(3), &io::Error::from_raw_os_error(libc::EINVAL));
        assert!(!known.contains(receiver(3)), "another error says nothing about the way");
        known.note(receiver(3), &io::Error::from_raw_os_error(libc::EIO));
        assert!(known.contains(receiver(3)));
    }

    #[test]
    fn its_memory_is_bounded() {
        let (mut known, now) = (Unsegmented::default(), Instant::now());
        (0..=255).for_each(|number| known.add(receiver(number).ip(), now));
        assert_eq!(known.known.len(), MOST);
        assert!(known.contains(receiver(255)) && !known.contains(receiver(0)));
    }
}
