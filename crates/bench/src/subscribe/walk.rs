//! Participants that walk through groups: each holds as many as before, one step after the other.

use super::{COMTREE, HELD, IN_FLIGHT, LOST_AFTER, ip_port};
use crate::members::{Heard, Member, Members};
use anyhow::{Context, ensure};
use canopy_session::Session;
use canopy_wire::{
    Group, Kind, Level, MAX_DATAGRAM, Packet, SessionId, SubscribeAck, SubscribeWriter,
    SubscriptionChange, Time,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// A participant that walks through the groups.
pub(super) struct Walker {
    pub(super) ip_port: SocketAddr,
    /// In memory; otherwise a member has it.
    pub(super) session: Option<Session>,
    /// The first of its groups; after twice as many as it holds it is back there.
    first: u32,
    /// How many it holds.
    held: u32,
    changes: u32,
    /// The last packet that was sent, and the last that was acknowledged.
    pub(super) asked: u32,
    acked: u32,
}

impl Walker {
    pub(super) fn new(number: usize, session: Option<Session>, changes: u32) -> Walker {
        let (first, held) = (number as u32 * HELD / 2, HELD);
        Walker { ip_port: ip_port(number), session, first, held, changes, asked: 0, acked: 0 }
    }

    /// One that holds so many groups and walks through no other's.
    pub(super) fn alone(number: usize, held: u32, changes: u32) -> Walker {
        Walker { first: number as u32 * 2 * held, held, ..Walker::new(number, None, changes) }
    }

    /// The group with a number of its own, round and round.
    fn group(&self, number: u32) -> Group {
        Group::new(self.first + number % (2 * self.held))
    }

    /// Those that it has left behind, and those that it has come to, before the packet of this number.
    fn steps_before(&self, sequence: u32) -> u32 {
        // The walk comes back to where it was, and a number stays small.
        (sequence.max(2) - 2) % (4 * self.held) * self.changes
    }

    /// The groups that it holds once its last packet is applied.
    pub(super) fn holds(&self) -> impl Iterator<Item = Group> {
        let steps = match self.asked {
            0 | 1 => 0,
            last => self.steps_before(last) + self.changes,
        };
        (steps / 2..steps.div_ceil(2) + self.held).map(|number| self.group(number))
    }

    /// Writes the packet of this number; the first begins the subscriptions that it holds.
    fn packet(&self, id: SessionId, sequence: u32, out: &mut [u8]) -> anyhow::Result<usize> {
        let before = self.steps_before(sequence);
        let after = if sequence == 1 { 0 } else { before + self.changes };
        let drops =
            (before / 2..after / 2).map(|number| SubscriptionChange::Drop(self.group(number)));
        let begun = if sequence == 1 { 0..self.held } else { 0..0 };
        let adds = before.div_ceil(2) + self.held..after.div_ceil(2) + self.held;
        let adds =
            begun.chain(adds).map(|number| SubscriptionChange::Add(self.group(number), Level(0)));
        let mut writer = SubscribeWriter::new(out, sequence, MAX_DATAGRAM)?;
        let fits = drops.chain(adds).all(|change| writer.push(change));
        ensure!(fits, "{} changes do not fit a packet", self.changes);
        Ok(writer.finish(COMTREE, id))
    }

    /// Writes the packet after the last one, in memory, where each has its session.
    pub(super) fn next_packet(&mut self, out: &mut [u8]) -> anyhow::Result<usize> {
        self.asked += 1;
        let session = self.session.as_ref().context("in memory each has its session")?;
        self.packet(session.id(), self.asked, out)
    }

    /// Seals what was written, in place, and returns its length.
    pub(super) fn seal(&mut self, packet: &mut [u8], len: usize) -> anyhow::Result<usize> {
        let session = self.session.as_mut().context("in memory each has its session")?;
        Ok(session.seal(packet, len)?)
    }

    /// The packets that are not acknowledged, for one segmented send: their bytes and one's length.
    fn unacknowledged(&self, session: &mut Session) -> anyhow::Result<(Vec<u8>, usize)> {
        let (mut bytes, mut each) = (Vec::new(), 0);
        for sequence in self.acked + 1..=self.asked {
            let mut out = [0; MAX_DATAGRAM];
            let len = self.packet(session.id(), sequence, &mut out)?;
            each = session.seal(&mut out, len)?;
            bytes.extend_from_slice(&out[..each]);
        }
        Ok((bytes, each))
    }
}

/// All participants of a relay that is reached through sockets.
pub(super) struct Walk {
    pub(super) members: Members,
    pub(super) walkers: Vec<Walker>,
    /// Those that wait for their turn, longest first.
    pub(super) idle: VecDeque<usize>,
    /// Those that wait for the relay, and since when.
    pub(super) in_flight: Vec<(usize, Time)>,
    /// Packets that were acknowledged.
    pub(super) packets: u64,
    /// Packets of a participant that leave in one segmented send.
    pub(super) packets_a_send: u32,
}

impl Walk {
    /// Walks for so long; with a rate, at most so many packets a second are sent.
    pub(super) fn run(&mut self, time: Duration, rate: Option<f64>) -> anyhow::Result<()> {
        let start = self.members.clock.now();
        let mut sent = 0.0;
        while self.members.clock.now().since(start) < time {
            let due = rate.map(|rate| self.members.clock.now().since(start).as_secs_f64() * rate);
            while self.in_flight.len() < IN_FLIGHT
                && due.is_none_or(|due| sent < due)
                && let Some(number) = self.idle.pop_front()
            {
                let walker = &mut self.walkers[number];
                // The first packet goes alone: it is longer than the others.
                let more = if walker.asked == 0 { 1 } else { self.packets_a_send };
                walker.asked += more;
                sent += f64::from(more);
                self.send(number)?;
            }
            self.receive(LOST_AFTER / if rate.is_some() { 100 } else { 20 })?;
        }
        Ok(())
    }

    /// Waits until everything is acknowledged.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        while !self.in_flight.is_empty() {
            self.receive(LOST_AFTER / 20)?;
        }
        Ok(())
    }

    /// Takes acknowledgements, and sends again what has none.
    pub(super) fn receive(&mut self, limit: Duration) -> anyhow::Result<()> {
        let walkers = &mut self.walkers;
        self.members.receive(limit, |heard| {
            if let Heard::Opened(number, packet) = heard
                && let Some(sequence) = acknowledged(packet)
            {
                walkers[number].acked = walkers[number].acked.max(sequence);
            }
        })?;
        let now = self.members.clock.now();
        for (number, since) in std::mem::take(&mut self.in_flight) {
            let walker = &self.walkers[number];
            if walker.acked == walker.asked {
                self.packets += if walker.acked == 1 { 0 } else { u64::from(self.packets_a_send) };
                self.idle.push_back(number);
            } else if now.since(since) > LOST_AFTER {
                self.send(number)?;
            } else {
                self.in_flight.push((number, since));
            }
        }
        Ok(())
    }

    fn send(&mut self, number: usize) -> anyhow::Result<()> {
        let Member { socket, session, .. } = &mut self.members.list[number];
        let session = session.as_mut().context("the participant has no session")?;
        let (bytes, each) = self.walkers[number].unacknowledged(session)?;
        socket
            .send_segments(&bytes, each as u16)
            .context("the kernel does not take a segmented send")?;
        self.in_flight.push((number, self.members.clock.now()));
        Ok(())
    }
}

/// The number of the subscribe packet that a datagram acknowledges.
fn acknowledged(datagram: &[u8]) -> Option<u32> {
    let packet = Packet::new_checked(datagram).ok()?;
    if packet.header().kind != Kind::SubscribeAck {
        return None;
    }
    Some(SubscribeAck::new_checked(&packet).ok()?.sequence())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscribe::CHANGES;
    use canopy_wire::Subscribe;
    use std::collections::BTreeSet;

    #[test]
    fn a_walker_always_holds_as_many_and_changes_what_it_says() {
        for changes in CHANGES {
            let walker = Walker::new(3, None, changes);
            let mut held = BTreeSet::new();
            for sequence in 1..=5 * HELD {
                let mut out = [0; MAX_DATAGRAM];
                let len = walker.packet(SessionId::new(7), sequence, &mut out).unwrap();
                let packet = Packet::new_checked(&out[..len]).unwrap();
                let subscribe = Subscribe::new_checked(&packet).unwrap();
                let expected = if sequence == 1 { HELD } else { changes };
                assert_eq!(subscribe.count() as u32, expected);
                for change in subscribe.changes() {
                    let fits = match change.wanted() {
                        Some(_) => held.insert(change.group()),
                        None => held.remove(&change.group()),
                    };
                    assert!(fits, "{change:?} of packet {sequence}, {changes} at a time");
                }
                assert!((HELD..=HELD + 1).contains(&(held.len() as u32)));
            }
        }
    }
}
