//! What one member, one comtree and one ip may cost, and who hears of it when that is too much.

use super::{FAILED_HANDSHAKES, Notice, Relay};
use crate::bucket::Rate;
use crate::comtrees::BeyondHalf;
use crate::gate::{Counted, Handshake};
use crate::index::{ComtreeIndex, PortIndex};
use crate::meters::{Budget, Overdue, Talker};
use crate::pending::{MAX_PENDING_BYTES, MAX_PENDING_RECORDS};
use crate::ports::{Peer, Ports};
use crate::shape::Shape;
use crate::thin::{Down, ThinnedReceiver};
use canopy_session::{Answer, Holder, SessionIndex, Sessions};
use canopy_wire::{
    Address, Bound, Busy, Comtree, DropReason, Excess, Packet, Path, SEAL_LEN, Time,
};
use core::net::IpAddr;

/// Members over a limit that are named in the log, a second: a crowd of them must not fill it.
const OVER_LIMIT_NOTES: Rate = Rate::new(5, 10);
/// Ports that are looked at in one sweep: a round over all takes a few sweeps.
const LOOKS_A_SWEEP: u32 = 4096;

impl Relay {
    /// Who sent the most in the last second, by bits, the heaviest first.
    pub fn talkers(&self) -> &[Talker] {
        self.meters.talkers()
    }

    /// Who was thinned most in the last second, by which part of what was meant for it was left out.
    pub fn thinned(&self) -> &[ThinnedReceiver] {
        self.thinning.thinned.most()
    }

    /// The peer of a port may send so much from now on.
    pub(super) fn set_budget(&mut self, now: Time, port: PortIndex, budget: Budget) {
        self.meters.set_budget(now, port, budget);
        self.budget_changed(port);
    }

    /// The peer of a port may send and be sent so much from now on, whatever its tokens say.
    pub(super) fn fix_budget(&mut self, now: Time, port: PortIndex, budget: Budget) {
        self.meters.fix_budget(now, port, budget);
        self.budget_changed(port);
    }

    /// What a port may be sent may have changed.
    pub(super) fn budget_changed(&mut self, port: PortIndex) {
        let share = self.thinning.links.share_of(port);
        self.thinning.set_down(port, self.meters.down_of(port).least(share));
    }

    /// Sets how much the participants of a comtree may send, and be sent, together from now on.
    pub(super) fn set_comtree_budget(&mut self, now: Time, comtree: ComtreeIndex, budget: Budget) {
        self.comtrees.get_mut(comtree).budget = budget;
        self.budget_parts.set(comtree, budget);
        self.set_budget_here(now, comtree);
    }

    /// Sets this data thread's part of that.
    pub(super) fn set_budget_here(&mut self, now: Time, comtree: ComtreeIndex) {
        let entry = self.comtrees.get_mut(comtree);
        let (here, part) = self.budget_parts.part_of(comtree, entry.budget);
        // As much may come at once as may come in a second on all threads.
        entry.meter.set_part(now, &here, &entry.budget);
        let down = Down { updates: here.down_packets, bits: here.down_bits };
        self.thinning.set_comtree_budget(comtree, (down, part));
    }

    /// What a port may be sent, and what bounds it.
    pub(super) fn down_and_why(&self, port: PortIndex) -> (Down, Bound) {
        let (own, because) = self.meters.down_and_why(port);
        let down = own.least(self.thinning.comtrees.limit_of(port));
        // What a comtree has was settled by who runs the relay, as what a member was admitted for.
        (down, if down == own { because } else { Bound::Admitted })
    }

    /// Takes a datagram of updates from its member's budget and its comtree's.
    pub(super) fn charge_datagram(
        &mut self,
        now: Time,
        port: PortIndex,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let bytes = packet.datagram_len() + SEAL_LEN;
        let Some(meter) = self.meters.get_mut(port) else { return Ok(()) };
        if !meter.take_datagram(now, bytes, packet.records()) {
            return Err(self.over_limit(now, port, Excess::Updates, DropReason::OverBudget));
        }
        let Some(comtree) = self.ports.get(port).map(|port| port.comtree_index) else {
            return Ok(());
        };
        self.budget_parts.note(comtree, 0, 8 * bytes as u64);
        if !self.comtrees.get_mut(comtree).meter.take_bytes(now, bytes) {
            self.budget_parts.note(comtree, packet.records().into(), 0);
            let reason = DropReason::ComtreeOverBudget;
            return Err(self.over_limit(now, port, Excess::Comtree, reason));
        }
        Ok(())
    }

    /// Takes an update from its member's budget and its comtree's.
    #[inline]
    pub(super) fn charge_update(&mut self, now: Time, port: PortIndex) -> Result<(), DropReason> {
        if !self.meters.get_mut(port).is_none_or(|meter| meter.take_update(now)) {
            return Err(self.over_limit(now, port, Excess::Updates, DropReason::OverBudget));
        }
        let Some(comtree) = self.ports.get(port).map(|port| port.comtree_index) else {
            return Ok(());
        };
        self.budget_parts.note(comtree, 1, 0);
        if !self.comtrees.get_mut(comtree).meter.take_update(now) {
            let reason = DropReason::ComtreeOverBudget;
            return Err(self.over_limit(now, port, Excess::Comtree, reason));
        }
        Ok(())
    }

    /// Takes changes of subscriptions from their member's budget. What is refused is not answered, so
    /// that the participant waits longer and longer before it asks again.
    pub(super) fn charge_changes(
        &mut self,
        now: Time,
        port: PortIndex,
        changes: usize,
    ) -> Result<(), DropReason> {
        if self.meters.take_changes(port, now, changes) {
            return Ok(());
        }
        Err(self.over_limit(now, port, Excess::Subscriptions, DropReason::SubscribeRate))
    }

    /// Takes a keepalive: each costs an answer.
    pub(super) fn charge_keepalive(
        &mut self,
        now: Time,
        port: PortIndex,
    ) -> Result<(), DropReason> {
        if self.meters.get_mut(port).is_none_or(|meter| meter.take_keepalive(now)) {
            return Ok(());
        }
        Err(self.over_limit(now, port, Excess::Keepalives, DropReason::OverBudget))
    }

    /// Takes a request that costs so much.
    pub(super) fn charge_request(
        &mut self,
        now: Time,
        port: PortIndex,
        cost: u64,
    ) -> Result<(), DropReason> {
        if self.meters.get_mut(port).is_none_or(|meter| meter.take_request(now, cost)) {
            return Ok(());
        }
        Err(self.over_limit(now, port, Excess::Requests, DropReason::OverBudget))
    }

    /// Tells a member that something of its was dropped, and the log who it is, both seldom. Returns
    /// the reason.
    #[cold]
    fn over_limit(
        &mut self,
        now: Time,
        port: PortIndex,
        what: Excess,
        reason: DropReason,
    ) -> DropReason {
        let overdue = self.meters.get_mut(port).map(|meter| meter.over_limit(now));
        let Some(Overdue { tell, note }) = overdue else { return reason };
        let Some((comtree, address, session)) = self.ports.get(port).and_then(|port| {
            let Peer::Participant(session) = port.peer else { return None };
            Some((port.comtree, port.address, session))
        }) else {
            return reason;
        };
        let Some(path) = self.sessions.path(session) else { return reason };
        if let Some(dropped) = tell {
            let (busy, mut answer) = (Busy { what, dropped }, Answer::new());
            self.sessions.busy(session, comtree, &busy, &mut answer);
            self.reply(path, answer.bytes());
        }
        if note && self.over_limit_notes.take(&OVER_LIMIT_NOTES, now, 1) {
            self.note(Notice::OverLimit { comtree, address, path, what });
        }
        reason
    }

    /// Whether a key agreement may be spent on whoever is at a path: there is a limit for its ip and
    /// for its prefix, and while many handshakes fail, those go first whose prefix is quiet. Nobody
    /// near a neighbour keeps its link down.
    pub(super) fn may_shake_hands(&mut self, now: Time, path: Path) -> bool {
        if self.is_neighbour(path) {
            return true;
        }
        match self.gate.handshake(now, path.remote.ip()) {
            Handshake::Quiet => true,
            Handshake::Crowded => self.failed_handshakes.holds_one(&FAILED_HANDSHAKES, now),
            Handshake::TooMany => false,
        }
    }

    /// Whether an ip may have one more session, unless it is to take the place of one.
    pub(super) fn may_have_a_session(&self, path: Path, holder: Holder) -> bool {
        self.sessions.at(path, holder).is_some() || !self.gate.is_full(path.remote.ip())
    }

    /// A handshake failed after it had cost a key agreement.
    pub(super) fn note_failure(&mut self, now: Time) {
        let _ = self.failed_handshakes.take(&FAILED_HANDSHAKES, now, 1);
    }

    /// Counts a session that was opened from an ip.
    pub(super) fn count_in(&mut self, session: SessionIndex, ip: IpAddr) {
        let index = session as usize;
        if index >= self.counted.len() {
            self.counted.resize(index + 1, Counted::default());
        }
        self.counted[index] = self.gate.enter(ip);
    }

    /// A session is no more. It counts where it was opened, wherever it has moved since.
    pub(super) fn count_out(&mut self, session: SessionIndex) {
        if let Some(counted) = self.counted.get_mut(session as usize) {
            self.gate.leave(core::mem::take(counted));
        }
    }

    /// Opens a port, whose peer may send what all may unless it is told otherwise. A branch has no
    /// limit at first: whoever sends to the neighbour has one there.
    pub(super) fn open_port(
        &mut self,
        now: Time,
        peer: Peer,
        shape: Shape,
        comtree: (Comtree, ComtreeIndex),
        address: Address,
    ) -> Option<PortIndex> {
        let port = self.ports.open(peer, shape, comtree, address)?;
        let budget = match peer {
            Peer::Participant(_) => self.budgets.member,
            Peer::Branch(_) | Peer::Sibling(_) => Budget::default(),
        };
        self.meters.open(port, budget, now);
        if let Peer::Participant(_) = peer {
            self.thinning.enter(port, comtree.1);
        }
        self.budget_changed(port);
        self.paths.open(port);
        self.table.open_port(port, comtree.1);
        Some(port)
    }

    /// Whether an update of a comtree finds room to wait. Half of the room is for whoever
    /// comes first. One comtree gets at most half of the rest, so that another always finds some.
    #[inline]
    pub(super) fn find_room(&mut self, of: ComtreeIndex, len: usize) -> Result<(), DropReason> {
        let entry = self.comtrees.get_mut(of);
        let queue = self.queues.get(entry.queue);
        if !queue.pending.is_half_full() {
            return Ok(());
        }
        let has_room = queue.pending.has_room(len);
        let flush = queue.flushes;
        let beyond = &mut entry.beyond_half;
        if beyond.flush != flush {
            *beyond = BeyondHalf { flush, records: 0, bytes: 0 };
        }
        let is_over =
            beyond.records >= MAX_PENDING_RECORDS / 4 || beyond.bytes + len > MAX_PENDING_BYTES / 4;
        if is_over || !has_room {
            return Err(DropReason::PendingFull);
        }
        beyond.records += 1;
        beyond.bytes += len;
        Ok(())
    }

    /// Looks at a part of the ports, for who sends the most and who is thinned most.
    pub(super) fn look_at_ports(&mut self, now: Time) {
        if !self.meters.begin_round(now) {
            return;
        }
        for _ in 0..LOOKS_A_SWEEP {
            let Some(index) = self.meters.next_of_round(self.ports.high_water()) else {
                return self.thinning.thinned.end_round();
            };
            let (ports, sessions) = (&self.ports, &self.sessions);
            self.meters.look(index, now, || who(index, ports, sessions));
            self.look_for_thinning(index, now);
        }
    }

    fn look_for_thinning(&mut self, port: PortIndex, now: Time) {
        let sent = self.paths.updates_sent(port);
        let Some(rates) = self.thinning.thinned.look(port, now, sent) else { return };
        let Some((comtree, address, path)) = who(port, &self.ports, &self.sessions) else { return };
        let budget = self.thinning.budget_of(port);
        let (own, because) = self.down_and_why(port);
        // A neighbour's own budget may be less than its share of the link.
        let is_less = match budget.bits {
            0 => budget.updates != own.updates,
            bits => bits != own.bits,
        };
        let is_of_link = is_less && self.thinning.links.share_of(port).is_limited();
        let because = (!is_of_link).then_some(because);
        self.thinning.thinned.found(ThinnedReceiver {
            comtree,
            address,
            path,
            budget,
            because,
            delivered: rates.delivered,
            left_out: rates.left_out,
            part_left_out: rates.part_left_out,
        });
    }
}

/// Who is at a port that leads out of the relay.
fn who(index: PortIndex, ports: &Ports, sessions: &Sessions) -> Option<(Comtree, Address, Path)> {
    let port = ports.get(index)?;
    let path = match port.peer {
        Peer::Participant(session) | Peer::Branch(session) => sessions.path(session)?,
        Peer::Sibling(_) => return None,
    };
    Some((port.comtree, port.address, path))
}
