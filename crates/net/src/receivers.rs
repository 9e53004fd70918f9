//! Sets of receivers that are sent the same: the group call of the kernel groupcast (§5.1).

use crate::engine::{SendEngine, SendReport};
use crate::outlet::Outlet;
use crate::socket::Socket;
use canopy_batch::{Segments, SendBatch};
use canopy_wire::Time;
use std::net::SocketAddr;

/// Receivers that are sent the same, in one call ([`ReceiverSet::send`]). It goes the way of every
/// batch: an engine that lets the kernel make copies does so for a set as for any sends of the same
/// bytes that follow one another.
#[derive(Clone, Debug, Default)]
pub struct ReceiverSet {
    members: Vec<SocketAddr>,
}

impl ReceiverSet {
    /// A set of nobody.
    pub fn new() -> ReceiverSet {
        ReceiverSet::default()
    }

    /// The members, in the order in which they are served.
    pub fn members(&self) -> &[SocketAddr] {
        &self.members
    }

    /// Adds a member. Whoever is a member twice is sent everything twice.
    pub fn add(&mut self, member: SocketAddr) {
        self.members.push(member);
    }

    /// Takes a member out, and puts the last in its place. Returns whether it was one.
    pub fn remove(&mut self, member: SocketAddr) -> bool {
        let place = self.members.iter().position(|other| *other == member);
        place.map(|place| self.members.swap_remove(place)).is_some()
    }

    /// Makes these the members.
    pub fn replace(&mut self, members: impl IntoIterator<Item = SocketAddr>) {
        self.members.clear();
        self.members.extend(members);
    }

    /// Adds a send of the segments to each member to a batch. The bytes are in it once.
    pub fn push_to(&self, batch: &mut SendBatch, segments: Segments<'_>) {
        if let [first, others @ ..] = &self.members[..] {
            batch.push_burst(*first, &[segments.bytes()], segments.segment());
            others.iter().for_each(|to| batch.push_same(*to));
        }
    }

    /// Sends the segments to all members, each member's in order. `batch` is cleared and used for it.
    pub fn send<E: SendEngine>(
        &self,
        outlet: &mut Outlet<E>,
        socket: &Socket,
        now: Time,
        batch: &mut SendBatch,
        segments: Segments<'_>,
    ) -> SendReport {
        batch.clear();
        self.push_to(batch, segments);
        outlet.send(socket, now, batch)
    }
}

impl FromIterator<SocketAddr> for ReceiverSet {
    fn from_iter<I: IntoIterator<Item = SocketAddr>>(members: I) -> ReceiverSet {
        ReceiverSet { members: members.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_follows_its_members() {
        let [a, b, c] = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut set: ReceiverSet = [a, b].into_iter().collect();
        assert!(!set.remove(c));
        set.add(c);
        assert!(set.remove(a));
        assert_eq!(set.members(), [c, b]);
        set.replace([a]);
        assert_eq!(set.members(), [a]);
    }
}
