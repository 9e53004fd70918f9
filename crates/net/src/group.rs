//! Groups of receivers, and what is sent to them: the interface of the kernel groupcast (§5.1).

use canopy_batch::{MAX_SEGMENTS, MAX_SEND_BYTES};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Receivers that are sent the same. An engine keeps ready what it made of the group it sent to
/// last, so a group that does not change costs nothing; a changed one costs a few nanoseconds a
/// member.
#[derive(Clone, Debug)]
pub struct Group {
    members: Vec<SocketAddr>,
    stamp: u64,
}

impl Group {
    /// A group of nobody.
    pub fn new() -> Group {
        Group { members: Vec::new(), stamp: fresh_stamp() }
    }

    /// The members, in the order in which they are served.
    pub fn members(&self) -> &[SocketAddr] {
        &self.members
    }

    /// Adds a member. Whoever is a member twice is sent everything twice.
    pub fn add(&mut self, member: SocketAddr) {
        self.members.push(member);
        self.stamp = fresh_stamp();
    }

    /// Takes a member out, and puts the last in its place. Returns whether it was one.
    pub fn remove(&mut self, member: SocketAddr) -> bool {
        let place = self.members.iter().position(|other| *other == member);
        if let Some(place) = place {
            self.members.swap_remove(place);
            self.stamp = fresh_stamp();
        }
        place.is_some()
    }

    /// Makes these the members.
    pub fn replace(&mut self, members: impl IntoIterator<Item = SocketAddr>) {
        self.members.clear();
        self.members.extend(members);
        self.stamp = fresh_stamp();
    }

    /// Two groups of the same stamp have the same members.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }
}

impl Default for Group {
    fn default() -> Group {
        Group::new()
    }
}

impl FromIterator<SocketAddr> for Group {
    fn from_iter<I: IntoIterator<Item = SocketAddr>>(members: I) -> Group {
        Group { members: members.into_iter().collect(), stamp: fresh_stamp() }
    }
}

fn fresh_stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What every member of a group is sent: one datagram, or several of one size, of which the last
/// may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    bytes: &'a [u8],
    segment: u16,
}

impl<'a> Burst<'a> {
    /// One datagram.
    ///
    /// # Errors
    /// If it is empty or longer than [`MAX_SEND_BYTES`].
    pub fn datagram(bytes: &'a [u8]) -> Result<Burst<'a>, Refused> {
        Burst::segments(bytes, bytes.len())
    }

    /// Datagrams of `segment` bytes.
    ///
    /// # Errors
    /// If there is nothing to send, or more than [`MAX_SEGMENTS`] datagrams or [`MAX_SEND_BYTES`].
    pub fn segments(bytes: &'a [u8], segment: usize) -> Result<Burst<'a>, Refused> {
        if bytes.is_empty() || segment == 0 {
            return Err(Refused::Empty);
        }
        let segments = bytes.len().div_ceil(segment);
        if segments > MAX_SEGMENTS || bytes.len() > MAX_SEND_BYTES {
            return Err(Refused::BurstTooLarge { segments, bytes: bytes.len() });
        }
        Ok(Burst { bytes, segment: segment.min(bytes.len()) as u16 })
    }

    /// All datagrams, one behind the other.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of each datagram but the last.
    pub fn segment(&self) -> u16 {
        self.segment
    }

    /// How many datagrams a member is sent.
    pub fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.into())
    }
}

/// What an engine does not send, said before anything was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A burst without datagrams, or datagrams without bytes.
    #[error("there is nothing to send; give at least one byte")]
    Empty,
    /// More than one send can carry.
    #[error(
        "{segments} datagrams of {bytes} bytes together are too much for one burst; send at most \
         {MAX_SEGMENTS} and {MAX_SEND_BYTES} bytes"
    )]
    BurstTooLarge {
        /// Its datagrams.
        segments: usize,
        /// Its bytes.
        bytes: usize,
    },
    /// A datagram that would have to be cut up on its way.
    #[error("a datagram of {bytes} bytes does not fit the device; send at most {most}")]
    OverMtu {
        /// Its bytes.
        bytes: usize,
        /// What fits.
        most: usize,
    },
    /// More members than the engine's table has room for.
    #[error("a group of {members} is larger than this engine's table; have at most {most}")]
    TooManyMembers {
        /// The group's.
        members: usize,
        /// What fits.
        most: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_follows_its_members() {
        let [a, b, c] = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut group: Group = [a, b].into_iter().collect();
        let before = group.stamp();
        assert!(!group.remove(c));
        assert_eq!(group.stamp(), before, "nothing has changed");
        group.add(c);
        assert!(group.remove(a));
        assert_eq!(group.members(), [c, b]);
        group.replace([a]);
        assert_eq!(group.members(), [a]);
        assert_ne!(group.stamp(), before);
        assert_ne!(group.stamp(), Group::from_iter([a]).stamp());
    }

    #[test]
    fn bursts_are_bounded() {
        let bytes = [0; MAX_SEND_BYTES + 1];
        assert_eq!(Burst::datagram(&[]).unwrap_err(), Refused::Empty);
        assert_eq!(Burst::segments(&[1], 0).unwrap_err(), Refused::Empty);
        assert!(matches!(Burst::datagram(&bytes), Err(Refused::BurstTooLarge { .. })));
        assert!(matches!(Burst::segments(&bytes[..65], 1), Err(Refused::BurstTooLarge { .. })));
        let burst = Burst::segments(&bytes[..250], 100).unwrap();
        assert_eq!((burst.datagrams(), burst.segment()), (3, 100));
        assert_eq!(Burst::segments(&bytes[..50], 100).unwrap().datagrams(), 1);
    }
}
