//! An update's way in: from a participant, a branch, or another data thread, to what waits for the
//! flush.

use super::Relay;
use crate::index::{ComtreeIndex, NONE, PortIndex};
use crate::pending::{Audience, Update, Waiting};
use crate::shape::PeerClass;
use crate::tree::Reach;
use canopy_session::{Answer, SessionIndex};
use canopy_wire::{
    Address, Comtree, DropReason, Flags, Header, MAX_UPDATE, Packet, Path, Record, Time,
};

/// An update that was accepted, wherever it came from.
#[derive(Clone, Copy)]
pub(super) struct Accepted<'a> {
    pub(super) update: Update<'a>,
    /// Its comtree.
    pub(super) index: ComtreeIndex,
    /// The port that it came from, to which it does not go back; [`NONE`] if it may.
    pub(super) origin: PortIndex,
    /// Whether the other data threads may want it: not if it came from one of them.
    pub(super) may_pass: bool,
}

impl Relay {
    pub(super) fn take_updates(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let port = self.admit(now, from, packet)?;
        let header = packet.header();
        // Whoever is over its budget does not have its records read either.
        self.charge_datagram(now, port, packet)?;
        let mut updates = packet.updates()?;
        while let Some(record) = updates.next() {
            if let Err(reason) = self.charge_update(now, port) {
                // At this moment there is nothing for the others either.
                let others = updates.count() as u64;
                self.meters.count_dropped(port, others);
                self.drop_many_on(header.comtree, reason, 1 + others);
                break;
            }
            // One bad record does not cost the others.
            if let Err(reason) = self.publish(now, port, header, &record) {
                self.drop_on(header.comtree, reason);
            }
        }
        Ok(())
    }

    /// The check that every packet of a port passes: it is of a session, came by that session's
    /// path, and travels on a comtree that the session is a member of, or has a branch on.
    pub(super) fn admit(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<PortIndex, DropReason> {
        let session = self.admit_session(now, from, packet)?;
        self.port_of(session, packet.header().comtree)
    }

    /// The session that a packet is of, if it came by that session's path.
    pub(super) fn admit_session(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<SessionIndex, DropReason> {
        let admitted = self.sessions.admit(from, packet.header().session);
        if admitted == Err(DropReason::SpoofedSource) {
            let mut answer = Answer::new();
            self.sessions.challenge(now, from, packet, &mut answer);
            self.reply_to_stranger(now, from, answer.bytes());
        }
        admitted
    }

    /// The port of a session on a comtree.
    pub(super) fn port_of(
        &self,
        session: SessionIndex,
        comtree: Comtree,
    ) -> Result<PortIndex, DropReason> {
        self.ports.of_member(session, comtree).ok_or_else(|| {
            let is_known = self.comtrees.find(comtree).is_some();
            if is_known { DropReason::UnknownSource } else { DropReason::UnknownComtree }
        })
    }

    /// Takes an update from a participant or a branch.
    fn publish(
        &mut self,
        now: Time,
        index: PortIndex,
        header: &Header,
        record: &Record<'_>,
    ) -> Result<(), DropReason> {
        let port = self.ports.get(index).ok_or(DropReason::UnknownSource)?;
        let (class, comtree_index) = (port.shape.class, port.comtree_index);
        let is_own = class == PeerClass::Participant;
        let src = if is_own { port.address } else { record.src };
        if is_own && record.src != Address::UNSPECIFIED && record.src != src {
            return Err(DropReason::SpoofedSource);
        }
        if let Some(rights) = &port.rights {
            rights.check_update(record.dst, record.level)?;
        }
        if !is_own && !record.dst.is_group() {
            let (to, _) = self.route_key(comtree_index, record.dst);
            self.overlay.routes.begin(comtree_index, to);
        }
        // A branch brings what others sent, but nothing of whom this relay serves itself.
        let comtree = (header.comtree, comtree_index);
        if !is_own && !self.may_bring(now, comtree, index, src) {
            return Err(DropReason::SpoofedSource);
        }
        // The hop limit falls at every relay, so what loops dies.
        let hops = header.hop_limit.checked_sub(1).ok_or(DropReason::HopLimit)?;
        if record.payload.len() > MAX_UPDATE {
            return Err(DropReason::Oversized);
        }
        // Whether its publisher gets an update back is settled here, where it came in.
        let echo = is_own && record.flags.contains(Flags::ECHO);
        let update = Update {
            comtree: header.comtree,
            src,
            series: record.series,
            dst: record.dst,
            flags: if echo { Flags::ECHO } else { Flags(0) },
            level: record.level,
            weight: record.weight,
            object: record.object,
            hops,
            from_core_peer: class == PeerClass::CorePeer,
            asks_route: !is_own
                && !record.dst.is_group()
                && record.flags.contains(Flags::ROUTE_REQUEST),
            payload: record.payload,
        };
        let origin = if echo { NONE } else { index };
        let accepted = Accepted { update, index: comtree_index, origin, may_pass: true };
        self.deliver(now, accepted)
            .inspect_err(|reason| self.undelivered(now, *reason, &update))?;
        if is_own {
            self.counters.updates_in += 1;
            let counters = &mut self.comtrees.get_mut(comtree_index).counters;
            counters.updates_in += 1;
            counters.payload_bytes_in += record.payload.len() as u64;
        }
        Ok(())
    }

    /// Takes an update that another data thread accepted.
    pub(super) fn take_passed(&mut self, now: Time, update: &Update<'_>) {
        self.counters.updates_taken += 1;
        let Some(index) = self.comtrees.find(update.comtree) else {
            return self.counters.drop(DropReason::UnknownComtree);
        };
        let accepted = Accepted { update: *update, index, origin: NONE, may_pass: false };
        if let Err(reason) = self.deliver(now, accepted) {
            self.drop_on(update.comtree, reason);
            self.undelivered(now, reason, update);
        }
    }

    /// What was to go to one endpoint goes nowhere.
    pub(super) fn undelivered(&mut self, now: Time, reason: DropReason, update: &Update<'_>) {
        // Whoever asked for the way hears from others that nobody answers.
        if reason == DropReason::UnknownDestination {
            self.tell_nobody(now, update);
        }
    }

    /// Tells a participant that nobody is at an address that it has sent to, but not too often.
    pub(super) fn tell_gone(&mut self, now: Time, sender: PortIndex, address: Address) {
        let Some(session) = self.session_of(sender) else { return };
        let Some(path) = self.sessions.path(session) else { return };
        let Some(comtree) = self.ports.get(sender).map(|port| port.comtree) else { return };
        let mut answer = Answer::new();
        self.sessions.gone(now, session, comtree, address, &mut answer);
        self.reply(path, answer.bytes());
    }

    /// Passes an update to the data threads that want it, and queues it for the receivers here: whoever
    /// has subscribed to its group, and neighbours towards the core and in it (Forest §3.3).
    fn deliver(&mut self, now: Time, accepted: Accepted<'_>) -> Result<(), DropReason> {
        let tree = &self.comtrees.get(accepted.index).tree;
        if tree.succession.is_none() && tree.doubled.is_none() {
            return self.deliver_now(now, accepted);
        }
        let Some(accepted) = self.pass_succession(now, accepted)? else { return Ok(()) };
        let Some(accepted) = self.pass_doubled(now, accepted)? else { return Ok(()) };
        let delivered = self.deliver_now(now, accepted);
        self.release_next(now, accepted.index, accepted.update.src);
        delivered
    }

    pub(super) fn deliver_now(
        &mut self,
        now: Time,
        accepted: Accepted<'_>,
    ) -> Result<(), DropReason> {
        let Accepted { update, index, origin, may_pass } = accepted;
        let Some(group) = update.dst.group() else {
            return self.deliver_to_one(now, accepted);
        };
        let group = self.table.find_group(update.comtree, group);
        let tree = &mut self.comtrees.get_mut(index).tree;
        let goes_on = tree.everything().iter().any(|port| *port != origin);
        let mut wanting = 0;
        if may_pass {
            wanting = tree.siblings_with(Reach::EVERYTHING);
            wanting |= group.map_or(0, |group| self.table.siblings_that_want(group, update.level));
        }
        if wanting != 0 {
            self.pass(wanting, &update);
        }
        let members = group.filter(|group| self.table.has_members(*group));
        if members.is_none() && !goes_on {
            self.counters.updates_without_subscriber += u64::from(may_pass && wanting == 0);
            return Ok(());
        }
        self.find_room(index, update.payload.len())?;
        let entry = self.comtrees.get_mut(index);
        let queue = self.queues.get_mut(entry.queue);
        let (audience, remembered) = match members {
            Some(group) => (Audience::Group(group), self.table.target_mut(group)),
            None => (Audience::Tree, &mut entry.tree.target),
        };
        let target = queue.pending.target_of_group((audience, index), remembered);
        queue.push(now, target, Waiting::new(origin, &update), update.payload);
        Ok(())
    }

    /// The data thread that an address of this relay's site, or a portable one, belongs to, if that is
    /// another one.
    pub(super) fn thread_of(&self, comtree: Comtree, address: Address) -> Option<u16> {
        let own_site = self.comtrees.get(self.comtrees.find(comtree)?).addresses.site();
        let thread = address.endpoint() % self.siblings.threads();
        let may_be_here = address.site() == own_site || address.is_portable();
        (may_be_here && thread != self.siblings.thread()).then_some(thread)
    }

    pub(super) fn pass(&mut self, to: u64, update: &Update<'_>) {
        // Only this thread sends an update back to its publisher.
        let update = Update { flags: Flags(0), ..*update };
        self.siblings.pass(to, &update);
        self.counters.updates_passed += u64::from(to.count_ones());
    }
}
